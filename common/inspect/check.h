/* check.h - what is wrong with a model file, and whether a drafter fits its target: findings instead of a
 * first error.
 *
 * Each examination calls back once a finding and returns the number of bad ones, or -1 with e set where it
 * could not be made at all (unreadable file, no memory). A malformed file is a finding. */
#ifndef DFLASH_CHECK_H
#define DFLASH_CHECK_H

#include <stdint.h>
#include "../describe/desc.h"
#include "../base/err.h"

enum check_level { CHECK_OK, CHECK_WARN, CHECK_BAD };
struct check_finding {
    enum check_level level;
    const char *subject; /* "tensor blk.0.attn_q.weight", "taps", ... */
    const char *text;
    const char *hint;             /* or NULL */
    const char *expected, *found; /* of a misfit of a pair; else NULL */
};
typedef void (*check_fn)(void *ctx, const struct check_finding *f);

/* A GGUF: structure, keys and types known, keys agree with tensor shapes, a tokenizer that can be used, no
 * NaN or Inf in any decodable tensor; and whether it can be run here, which is bad where not only if for_use.
 * o->kv: keys as if the file had these values.
 * threads: 0 = all. progress may be NULL: bytes examined of total. */
int check_gguf(const char *path, const struct desc_override *o, bool for_use, int threads, check_fn fn,
               void (*progress)(void *ctx, uint64_t done, uint64_t total), void *ctx, struct err *e);
/* A safetensors file, index or directory: structure, and NaN or Inf in float tensors. */
int check_safetensors(const char *path, int threads, check_fn fn,
                      void (*progress)(void *ctx, uint64_t done, uint64_t total), void *ctx, struct err *e);
/* doctor.c: target and drafter, both GGUF, as docs/dflash-inspect.1 lists it, one finding an aspect; o: how
 * the drafter is to be read, and o->kv keys of the target, or NULL. A file that is a GGUF and not understood
 * is a finding. */
int check_pair(const char *target, const char *drafter, const struct desc_override *o, check_fn fn, void *ctx,
               struct err *e);

#endif
