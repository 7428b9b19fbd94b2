/* text.h - what a file says, as a terminal may have it: no control characters (also not those of U+0080 to
 * U+009F, some of which begin commands) and nothing that is not UTF-8. */
#ifndef DFLASH_TEXT_H
#define DFLASH_TEXT_H

#include <stddef.h>

/* Bytes of the character that s [n] begins with, or 0 where it is one that a terminal should not get. */
size_t text_char(const char *s, size_t n);
/* Each byte that is part of no such character becomes '?'. In place; returns s. */
char *text_printable(char *s);
/* At most max bytes of s [n] in quotes, cut between characters; what a terminal should not get, quotes and
 * backslashes are escaped, and "..." follows where something was cut. out [size] is NUL-terminated, also
 * where it is too small. Returns out. */
char *text_quote(char *out, size_t size, const char *s, size_t n, size_t max);

#endif
