/* rows_scalar.c - the inner kernels of rows.h, compiled for this instruction set. */
#define VEC_ISA 0
#define ROWS cpu_rows_scalar
#include "rows_isa.inc.h"
