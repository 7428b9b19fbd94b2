/* request_impl.h - what the two readers of lines share (request.c: words; request_json.c: JSON). */
#ifndef DFLASH_REQUEST_IMPL_H
#define DFLASH_REQUEST_IMPL_H

#include "request.h"

/* The line becomes one that gets this reply. The first one stays. */
void request_bad(struct request *r, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* A number of the sampler, held against its range; name for the message. */
void request_number(struct request *r, unsigned bit, const char *name, double x);
int request_json(struct request *r, const char *line, size_t n, struct err *e);

#endif
