/* doctor.h - what the parts of the doctor share: the pair that is looked at, and how a finding is said. */
#ifndef DFLASH_DOCTOR_H
#define DFLASH_DOCTOR_H

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "check.h"
#include "../describe/desc.h"
#include "../file/gguf.h"

struct doctor {
    const char *drafter; /* its path */
    check_fn fn;
    void *ctx;
    int bad;
    bool no_memory; /* something was not looked at */
    struct gguf *tg, *dg;
    struct desc *t, *d;
};

struct text {
    char s[768];
};

static inline struct text textf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static inline struct text textf(const char *fmt, ...)
{
    struct text t;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(t.s, sizeof t.s, fmt, ap);
    va_end(ap);
    return t;
}

static inline void say(struct doctor *p, const struct check_finding *f)
{
    if (f->level == CHECK_BAD) p->bad++;
    p->fn(p->ctx, f);
}

static inline void ok(struct doctor *p, const char *subject, struct text text)
{
    say(p, &(struct check_finding){.level = CHECK_OK, .subject = subject, .text = text.s});
}

static inline void note(struct doctor *p, const char *subject, struct text text, const char *hint)
{
    say(p, &(struct check_finding){.level = CHECK_WARN, .subject = subject, .text = text.s, .hint = hint});
}

static inline void misfit(struct doctor *p, const char *subject, struct text text, struct text expected,
                          struct text found, const char *hint)
{
    say(p, &(struct check_finding){.level = CHECK_BAD,
                                   .subject = subject,
                                   .text = text.s,
                                   .expected = expected.s,
                                   .found = found.s,
                                   .hint = hint});
}

/* ok where two numbers agree. */
static inline void same(struct doctor *p, const char *subject, struct text text, int64_t expected,
                        int64_t found, const char *hint)
{
    if (expected == found)
        ok(p, subject, text);
    else
        misfit(p, subject, text, textf("%" PRId64, expected), textf("%" PRId64, found), hint);
}

/* Row `row` of a tensor: false where its type is not decoded. */
static inline bool read_row(const struct gguf_tensor *t, int64_t row, float *x)
{
    return !kn_decode_row(t->type, t->data + (size_t)row * kn_row_bytes(t->type, t->ne[0]), x, t->ne[0]);
}

/* doctor_words.c: do both mean the same by an id? */
void doctor_tokenizer(struct doctor *p);
void doctor_special(struct doctor *p);
void doctor_mask(struct doctor *p);

#endif
