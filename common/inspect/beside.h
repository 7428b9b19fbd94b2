/* beside.h - a drafter's GGUF against the config.json in its folder, which was perhaps what it was made of.
 *
 * Converters lose what they do not know: a nested theta, sliding layers, which of them are causal. The file
 * then runs, and hardly a proposal is accepted. Where the config is there the difference can be told. */
#ifndef DFLASH_BESIDE_H
#define DFLASH_BESIDE_H

#include "../describe/desc.h"

struct beside_difference {
    const char *what;             /* "theta", ... */
    const char *expected, *found; /* what the config says, what the file says (or a flag in its place) */
    const char *hint;             /* the flag that says otherwise */
};
typedef void (*beside_fn)(void *ctx, const struct beside_difference *b);

/* fn once a difference in what decides proposals. 0: compared; 1: there is no config.json, or it is no
 * drafter's; 2: it is another drafter's, or cannot be read, with the reason in why; -1: e. */
int beside_compare(const char *path, const struct desc *d, beside_fn fn, void *ctx, struct err *why,
                   struct err *e);

#endif
