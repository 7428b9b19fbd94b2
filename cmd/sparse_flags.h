/* sparse_flags.h - the flags of block-sparse prompts: --sparse, --sparse-dense. */
#ifndef DFLASH_SPARSE_FLAGS_H
#define DFLASH_SPARSE_FLAGS_H

#include <jansson.h>

#include "../common/run/state.h"
#include "cli.h"

struct sparse_flags {
    float alpha;   /* below 0: not given */
    int32_t dense; /* the same */
};
#define SPARSE_FLAGS_INIT                                                                                    \
    {                                                                                                        \
        .alpha = -1, .dense = -1                                                                             \
    }
#define SPARSE_FLAGS(f)                                                                                      \
    {"--sparse",                                                                                             \
     CLI_F32,                                                                                                \
     &(f).alpha,                                                                                             \
     "ALPHA",                                                                                                \
     "prompts attend to blocks of 128 that score ALPHA of the best (lossy; 0: to all; advised 0.1)",         \
     0,                                                                                                      \
     1000},                                                                                                  \
    {                                                                                                        \
        "--sparse-dense", CLI_I32, &(f).dense, "N", "the first N full layers stay dense (default 2)", 0,     \
            DESC_MAX_LAYERS                                                                                  \
    }

/* A usage error: --sparse-dense where neither --sparse nor a state can say that prompts are sparse. */
void sparse_flags_check(const struct sparse_flags *f, const char *state_path, const struct cli *c);
/* What o's prompts are by the flags, else as info has it (a state's; NULL: there is none), else dense.
 * ERR_USAGE: --sparse-dense, and the state's are dense. */
int sparse_flags_resolve(const struct sparse_flags *f, const struct state_info *info,
                         struct session_options *o, struct err *e);
/* null without sparse prompts; else what they kept:
 * {"alpha":..,"dense":..,"density":..,"layers":[{"layer":.., "density":..,"seconds":..}]}, density null where
 * a layer is dense. seconds: of all that a layer does. */
json_t *sparse_flags_json(struct session *s, struct err *e);
/* Blocks attended to, of all that could be, in the layers that are sparse; NaN: none. */
double sparse_flags_density(struct session *s, struct err *e);

#endif
