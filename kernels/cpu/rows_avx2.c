/* rows_avx2.c - the inner kernels of rows.h, compiled for this instruction set. */
#define VEC_ISA 1
#define ROWS cpu_rows_avx2
#include "rows_isa.inc.h"
