/* err.h - how the library says what went wrong.
 *
 * A function that can fail takes a struct err * and returns 0 or a negative value; on failure the struct
 * holds a class, a message "subject: what (expected X, got Y)" and sometimes a hint. The library never
 * prints: a main() writes "tool: message" and "hint: ..." to stderr and turns the class into the exit status.
 */
#ifndef DFLASH_ERR_H
#define DFLASH_ERR_H

enum err_class { /* the values are the documented exit statuses */
                 ERR_NONE = 0,
                 ERR_NEGATIVE = 1, /* a negative answer: streams differ, a check failed */
                 ERR_USAGE = 2,
                 ERR_FORMAT = 3, /* malformed or unsupported input */
                 ERR_IO = 4,     /* I/O or memory */
                 ERR_DEVICE = 5, /* the device, or numbers that came out of it */
};

struct err {
    enum err_class code;
    char msg[768];
    char hint[768]; /* "" if none */
};

/* Fill e (a first error stays: a later call on a filled struct is ignored);
 * always returns -1. e may be NULL. */
int err_set(struct err *e, enum err_class code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int err_hint(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3))); /* returns -1 */
/* As err_set, and appends ": strerror(errno)". */
int err_errno(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Put "prefix: " before the message of a filled e; returns -1. */
int err_prefix(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
