/* kv_flags.h - the flags that say of which types a session's caches are: --kv, --kv-layers, --draft-kv. */
#ifndef DFLASH_KV_FLAGS_H
#define DFLASH_KV_FLAGS_H

#include "../common/run/state.h"
#include "cli.h"

struct kv_flags {
    const char *kv, *draft_kv; /* as given, or NULL */
    struct cli_list layers;
    bool convert;
    struct kn_kv_types
        of[2][PLAN_SOURCES * DESC_MAX_LAYERS]; /* of target and drafters: what the flags come to */
};

#define KV_FLAGS(f)                                                                                          \
    {"--kv",                                                                                                 \
     CLI_STR,                                                                                                \
     &(f).kv,                                                                                                \
     "K[,V]",                                                                                                \
     "cache types of keys and values: f16 (default, or as the state has it), bf16, f32, q8_0, q5_0, q4_0, "  \
     "tq3_0",                                                                                                \
     0,                                                                                                      \
     0},                                                                                                     \
    {                                                                                                        \
        "--kv-layers", CLI_LIST, &(f).layers, "LIST=K[,V]",                                                  \
            "the same of some target layers: N, N-N, taps, donors, sliding, first N, last N (repeatable)",   \
            0, 0                                                                                             \
    }
#define KV_DRAFT_FLAG(f)                                                                                     \
    {                                                                                                        \
        "--draft-kv", CLI_STR, &(f).draft_kv, "K[,V]",                                                       \
            "the same of the drafter's layers (default as --kv; f16 where that is quantised)", 0, 0          \
    }

#define KV_CONVERT_FLAG(f)                                                                                   \
    {                                                                                                        \
        "--kv-convert", CLI_FLAG, &(f).convert, NULL,                                                        \
            "bring the keys and values of --state into the types that are given", 0, 0                       \
    }

/* "" or what is wrong with --kv-convert. */
const char *kv_flags_convert_doubt(const struct kv_flags *f, const char *state_path);
/* The types of o's caches. What no flag says is as info has it (a state's; NULL: there is none), else f16.
 * drafters: n of them. o borrows f. ERR_USAGE: a type or a list that is none, or a
 * type that does not fit the heads. */
int kv_flags_resolve(struct kv_flags *f, const struct desc *t, const struct desc *const *drafters, int32_t n,
                     const struct state_info *info, struct session_options *o, struct err *e);
/* Has a layer of the target keys or values of fewer than 8 bits? f: resolved. */
bool kv_flags_coarse(const struct kv_flags *f, const struct desc *t);
/* "f16", or "f16,bf16". */
const char *kv_flags_text(struct kn_kv_types types, char text[32]);

#endif
