/* compress.h - prompts of which tokens are left out: dflash-prefill's --compress (docs/compress.md). */
#ifndef DFLASH_PREFILL_COMPRESS_H
#define DFLASH_PREFILL_COMPRESS_H

#include "../models.h"
#include "../../common/run/compress.h"

struct compress_flags {
    float keep; /* 0: not given */
    const char *scorer, *kept_path;
};
#define COMPRESS_FLAGS(f)                                                                                    \
    {"--compress",                                                                                           \
     CLI_F32_ABOVE,                                                                                          \
     &(f).keep,                                                                                              \
     "KEEP",                                                                                                 \
     "run that fraction of the prompt's tokens alone, at their own positions (lossy)",                       \
     0,                                                                                                      \
     1},                                                                                                     \
        {"--scorer",                                                                                         \
         CLI_STR,                                                                                            \
         &(f).scorer,                                                                                        \
         "MODEL",                                                                                            \
         "a smaller target of the same vocabulary that says which (default: the target)",                    \
         0,                                                                                                  \
         0},                                                                                                 \
    {                                                                                                        \
        "--kept", CLI_STR, &(f).kept_path, "FILE", "write the positions that were kept, raw int32", 0, 0     \
    }

/* A prompt on its way to fewer tokens. */
struct compress {
    const struct compress_flags *f;
    struct model *scorer; /* NULL: the target */
    bool *stays;          /* [n] */
    int32_t budget;       /* tokens at most */
    struct session_gaps gaps;
    int32_t *at; /* [gaps.n_kept] */
    double seconds;
};

/* A usage error: flags that do not go with each other. others: what else was given that wants every row of
 * the prompt, NULL: nothing. */
void compress_check_flags(const struct compress_flags *f, const char *state_path, const char *others,
                          bool pool, const struct cli *c);
/* Behind models_open's descriptions, before weights: open the scorer, see what must stay of ids [n]. */
int compress_inputs(struct compress *x, const struct models *m, const struct cli *c, const int32_t *ids,
                    int32_t n, struct err *e);
/* Behind the weights: which tokens stay. o: the session's to come. */
int compress_run(struct compress *x, const struct models *m, const struct cli *c, const int32_t *ids,
                 int32_t n, const struct session_options *o, struct err *e);
void compress_free(struct compress *x);

#endif
