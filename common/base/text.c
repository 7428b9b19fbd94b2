/* text.c - see text.h. */
#include "text.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

size_t text_char(const char *s, size_t n)
{
    const uint8_t *p = (const uint8_t *)s;
    if (!n || p[0] < 0x20 || p[0] == 0x7f) return 0;
    if (p[0] < 0x80) return 1;
    const size_t len = p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf5 ? 4 : 0;
    if (!len || len > n) return 0;
    for (size_t i = 1; i < len; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    if (p[0] == 0xc2 && p[1] < 0xa0) return 0;                                    /* U+0080 to U+009F */
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xf0 && p[1] < 0x90)) return 0; /* too long a form */
    if ((p[0] == 0xed && p[1] >= 0xa0) || (p[0] == 0xf4 && p[1] >= 0x90))
        return 0; /* surrogates, above U+10FFFF */
    return len;
}

char *text_printable(char *s)
{
    size_t n = strlen(s);
    for (char *p = s; n;) {
        size_t k = text_char(p, n);
        if (!k) *p = '?', k = 1;
        p += k;
        n -= k;
    }
    return s;
}

char *text_quote(char *out, size_t size, const char *s, size_t n, size_t max)
{
    size_t at = 0, i = 0, k;
    if (!size) return out;
    out[0] = 0;
    if (size < 6) return out; /* quotes, dots, NUL */
    out[at++] = '"';
    for (; i < n; i += k) {
        char part[8];
        k = text_char(s + i, n - i);
        if (s[i] == '"' || s[i] == '\\')
            snprintf(part, sizeof part, "\\%c", s[i]);
        else if (s[i] == '\n')
            snprintf(part, sizeof part, "\\n");
        else if (k)
            snprintf(part, sizeof part, "%.*s", (int)k, s + i);
        else
            snprintf(part, sizeof part, "\\x%02x", (unsigned char)s[i]);
        if (!k) k = 1;
        if (i + k > max || at + strlen(part) + 5 > size) break; /* a quote, three dots, NUL */
        memcpy(out + at, part, strlen(part));
        at += strlen(part);
    }
    strcpy(out + at, i < n ? "\"..." : "\"");
    return out;
}
