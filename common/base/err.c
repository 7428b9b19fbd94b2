/* err.c - see err.h. */
#include "err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text.h"

static void fill(struct err *e, enum err_class code, const char *fmt, va_list ap)
{
    e->code = code;
    e->hint[0] = 0;
    vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    text_printable(e->msg); /* it quotes files and paths, and a terminal may read it */
}

int err_set(struct err *e, enum err_class code, const char *fmt, ...)
{
    va_list ap;
    if (!e || e->code != ERR_NONE) return -1;
    va_start(ap, fmt);
    fill(e, code, fmt, ap);
    va_end(ap);
    return -1;
}

int err_hint(struct err *e, const char *fmt, ...)
{
    va_list ap;
    /* The first hint stays too: it comes from where the most is known. */
    if (!e || e->hint[0]) return -1;
    va_start(ap, fmt);
    vsnprintf(e->hint, sizeof e->hint, fmt, ap);
    va_end(ap);
    text_printable(e->hint);
    return -1;
}

int err_errno(struct err *e, const char *fmt, ...)
{
    int saved = errno;
    va_list ap;
    size_t n;
    if (!e || e->code != ERR_NONE) return -1;
    va_start(ap, fmt);
    fill(e, ERR_IO, fmt, ap);
    va_end(ap);
    n = strlen(e->msg);
    snprintf(e->msg + n, sizeof e->msg - n, ": %s", strerror(saved));
    return -1;
}

int err_prefix(struct err *e, const char *fmt, ...)
{
    char text[sizeof e->msg];
    va_list ap;
    size_t n, m;
    if (!e || e->code == ERR_NONE) return -1;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    text_printable(text);
    n = strlen(text);
    if (n > sizeof text - 3) n = sizeof text - 3;
    memcpy(text + n, ": ", 2);
    n += 2;
    m = strlen(e->msg);
    if (m > sizeof text - 1 - n)
        m = sizeof text - 1 - n; /* too long: the end of the message is lost, not the subject */
    memcpy(text + n, e->msg, m);
    text[n + m] = 0;
    memcpy(e->msg, text, n + m + 1);
    return -1;
}
