/* sampling_flags.h - how a stream is picked, one set of flags for every program that generates
 * (docs/sampling.md).
 *
 * sampling_flags_check behind cli_parse; sampling_flags_open when the models are open, then .sampler is
 * complete; sampling_flags_close before they are closed. */
#ifndef DFLASH_SAMPLING_FLAGS_H
#define DFLASH_SAMPLING_FLAGS_H

#include <jansson.h>
#include "cli.h"
#include "models.h"

struct sampling_flags {
    struct kn_sampler sampler;
    const char *order;    /* --samplers as given, or NULL */
    struct cli_list bias; /* --logit-bias as given */
    struct kn_bias *host; /* [sampler.n_bias] of it, by id */
};
#define SAMPLING_INIT                                                                                        \
    {                                                                                                        \
        .sampler = {.top_p = 1, .repeat_penalty = 1, .repeat_last = 64 }                                     \
    }

#define SAMPLING_FLAGS(f)                                                                                    \
    {"--temp", CLI_F32, &(f).sampler.temp, "T", "temperature (default 0: the likeliest token)", 0, 1000},    \
        {"--top-k", CLI_I32,  &(f).sampler.top_k, "K", "sample from the K likeliest (default 0: all)",       \
         0,         INT32_MAX},                                                                              \
        {"--top-p",                                                                                          \
         CLI_F32_ABOVE,                                                                                      \
         &(f).sampler.top_p,                                                                                 \
         "P",                                                                                                \
         "sample from the likeliest that make up mass P (default 1)",                                        \
         0,                                                                                                  \
         1},                                                                                                 \
        {"--min-p", CLI_F32, &(f).sampler.min_p, "P", "drop tokens below P of the likeliest (default 0)",    \
         0,         1},                                                                                      \
        {"--repeat-penalty",                                                                                 \
         CLI_F32,                                                                                            \
         &(f).sampler.repeat_penalty,                                                                        \
         "R",                                                                                                \
         "divide the logits of recent tokens (default 1: off)",                                              \
         0.001,                                                                                              \
         1000},                                                                                              \
        {"--presence-penalty",                                                                               \
         CLI_F32,                                                                                            \
         &(f).sampler.presence,                                                                              \
         "X",                                                                                                \
         "subtract X from the logits of recent tokens (default 0)",                                          \
         -1000,                                                                                              \
         1000},                                                                                              \
        {"--frequency-penalty",                                                                              \
         CLI_F32,                                                                                            \
         &(f).sampler.frequency,                                                                             \
         "X",                                                                                                \
         "subtract X for each time that a token is recent (default 0)",                                      \
         -1000,                                                                                              \
         1000},                                                                                              \
        {"--repeat-last",                                                                                    \
         CLI_I32,                                                                                            \
         &(f).sampler.repeat_last,                                                                           \
         "N",                                                                                                \
         "how many tokens are recent (default 64; 0: none)",                                                 \
         0,                                                                                                  \
         INT32_MAX},                                                                                         \
        {"--logit-bias",                                                                                     \
         CLI_LIST,                                                                                           \
         &(f).bias,                                                                                          \
         "ID=X",                                                                                             \
         "add X to a token's logit (-inf: never that token); repeatable",                                    \
         0,                                                                                                  \
         0},                                                                                                 \
        {"--samplers",                                                                                       \
         CLI_STR,                                                                                            \
         &(f).order,                                                                                         \
         "LIST",                                                                                             \
         "their order (default penalties,temperature,top_k,top_p,min_p)",                                    \
         0,                                                                                                  \
         0},                                                                                                 \
    {                                                                                                        \
        "--seed", CLI_U64, &(f).sampler.seed, "S", "of the sampling (default 0)", 0, 0                       \
    }

/* Usage errors exit; flags that do nothing are warned of: without --temp the likeliest token is taken,
 * without a penalty nothing is recent. */
void sampling_flags_check(struct sampling_flags *f, const struct cli *c);
/* The biases go to the device. ERR_USAGE: an id that the target has not; ERR_IO, ERR_DEVICE: memory. */
int sampling_flags_open(struct sampling_flags *f, const struct models *m, struct err *e);
void sampling_flags_close(struct sampling_flags *f, const struct models *m);
/* The settings into an object: "temp", "top_k", ... */
void sampling_flags_json(const struct sampling_flags *f, json_t *j);

#endif
