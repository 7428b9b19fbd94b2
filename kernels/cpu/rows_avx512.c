/* rows_avx512.c - the inner kernels of rows.h, compiled for this instruction set. */
#define VEC_ISA 2
#define ROWS cpu_rows_avx512
#include "rows_isa.inc.h"
