/* drafter_flags.h - flags that say how a drafter's file is to be read, one set for every program that reads
 * one.
 *
 * The names begin with "--draft-" where a run has a target beside the drafter, with "--" where the drafter is
 * the file at hand (convert, inspect). What they mean: docs/drafter.md. */
#ifndef DFLASH_DRAFTER_FLAGS_H
#define DFLASH_DRAFTER_FLAGS_H

#include "../common/describe/desc.h"
#include "cli.h"

/* As parsed; all zero but tap_shift and mask_id, which are -1 where not given. */
struct drafter_flags {
    const char *dialect, *taps, *theta, *pattern;
    int32_t tap_shift, mask_id, block_size, window;
};
#define DRAFTER_FLAGS_INIT                                                                                   \
    {                                                                                                        \
        .tap_shift = -1, .mask_id = -1                                                                       \
    }

/* p: "--draft-" or "--"; dialect: the whole name of the first one. */
#define DRAFTER_FLAGS(f, p, dialect_flag)                                                                    \
    {dialect_flag,                                                                                           \
     CLI_STR,                                                                                                \
     &(f).dialect,                                                                                           \
     "NAME",                                                                                                 \
     "dialect of the drafter's file (default: recognised)",                                                  \
     0,                                                                                                      \
     0},                                                                                                     \
        {p "taps", CLI_STR, &(f).taps, "LIST", "drafter: zero-based target layers whose output is tapped",   \
         0,        0},                                                                                       \
        {p "tap-shift",                                                                                      \
         CLI_I32,                                                                                            \
         &(f).tap_shift,                                                                                     \
         "0|1",                                                                                              \
         "the taps in the drafter's file count from block 0 (0) or from the embeddings (1)",                 \
         0,                                                                                                  \
         1},                                                                                                 \
        {p "mask-id", CLI_I32, &(f).mask_id, "N", "drafter: mask token id", 0, 2147483647},                  \
        {p "block-size", CLI_I32, &(f).block_size, "N", "drafter: rows of a block", 2, 64},                  \
        {p "rope-theta", CLI_STR, &(f).theta, "X", "drafter: rotary base", 0, 0},                            \
        {p "sliding-window", CLI_I32, &(f).window, "N", "drafter: window of its sliding layers", 1,          \
         2147483647},                                                                                        \
    {                                                                                                        \
        p "sliding-pattern", CLI_STR, &(f).pattern, "TEXT",                                                  \
            "drafter: a letter a layer, s (sliding) or f (full)", 0, 0                                       \
    }

/* Into o (draft_causal is left alone); usage errors exit. p as above. */
void drafter_flags_read(const struct cli *c, const struct drafter_flags *f, const char *p,
                        struct desc_override *o);
/* The name after p of the first flag that was given ("taps"), or NULL. */
const char *drafter_flags_given(const struct drafter_flags *f);

/* --draft-sampling: 'greedy' is true, 'coupled' and NULL (not given) are false, another word is a usage
 * error. */
bool cli_draft_greedy(const struct cli *c, const char *word);
/* "1,9,17": at most cap integers in 0 .. INT32_MAX, or a usage error; how many. */
int cli_int_list(const struct cli *c, const char *flag, const char *text, int32_t *v, int cap);
/* The blocks of --taps or --draft-taps, or a usage error; how many. */
int cli_taps(const struct cli *c, const char *flag, const char *text, int32_t taps[DESC_MAX_TAPS]);
/* A number above 0, or a usage error. */
double cli_positive(const struct cli *c, const char *flag, const char *text);
/* A rotary base: 1 or more, or a usage error. */
double cli_theta(const struct cli *c, const char *flag, const char *text);

#endif
