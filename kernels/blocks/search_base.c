/* search_base.c - the encoders' arithmetic for the vectors that every x86-64 and
 * every other processor has. */
#define W 4
#define SEARCH_NAME search_base
#define SEARCH_TEXT "base"
#include "search.inc.h"
