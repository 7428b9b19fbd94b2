/* search_avx512.c - the encoders' arithmetic for AVX-512. */
#define W 16
#define SEARCH_NAME search_avx512
#define SEARCH_TEXT "avx512"
#include "search.inc.h"
