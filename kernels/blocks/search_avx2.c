/* search_avx2.c - the encoders' arithmetic for AVX2. */
#define W 8
#define SEARCH_NAME search_avx2
#define SEARCH_TEXT "avx2"
#include "search.inc.h"
