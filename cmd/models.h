/* models.h - what the programs that run a model share: device, target and drafter, opened from flags.
 *
 * A program puts MODELS_FLAGS(m) into its flag table, calls models_open after cli_parse, and models_close at
 * its end. */
#ifndef DFLASH_MODELS_H
#define DFLASH_MODELS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "cli.h"
#include "drafter_flags.h"
#include "kv_flags.h"
#include "sparse_flags.h"
#include "../common/run/engine.h"
#include "../common/run/memory_plan.h"
#include "../common/run/source.h"

struct models {
    const char *target_path, *drafter_path; /* drafter_path may be NULL */
    const char *device, *isa, *kernels;     /* NULL: the default */
    struct kv_flags kv;
    struct sparse_flags sparse;
    int32_t threads, draft_causal, mtp_block; /* mtp_block: 0: as usual */
    int32_t experts_host;                     /* experts a layer that stay in the host's memory */
    const char *experts_counts;               /* the importance matrix that says which; NULL: none */
    bool kv_host;           /* as many layers' keys and values as do not fit, and at least */
    int32_t pool;           /* positions that layers without a window keep; 0: all; -1: not said */
    int32_t kv_host_layers; /* so many, stay in the host's memory */
    struct drafter_flags draft;
    struct cli_list keys;       /* --override-kv */
    struct gguf_override *over; /* [keys.n] as models_check_flags read them, until the program ends */
    bool check_layers;
    const char *mtp; /* NULL, or the file of an MTP block beside the drafter */
    /* What the flags say of the session to come, before the models are opened: for the plan of the device's
     * memory. ctx: positions it will have at least. */
    struct session_options known;
    /* What else a program would refuse, asked when the files are open and no weight has been read: target->d
     * and drafter->d are there. NULL: nothing. */
    int (*check)(void *ctx, struct err *e);
    void *check_ctx;
    struct kn_backend *be;
    struct model *target, *drafter, *beside; /* beside: NULL without mtp */
    struct source sources[PLAN_SOURCES];     /* of these: models_sources */
    struct memory_planner *planner;          /* NULL where nothing is planned */
    uint8_t identity[3][16]; /* of target, drafter and the one beside it, when they were parked */
    double load_s;
};
#define MODELS_INIT                                                                                          \
    {                                                                                                        \
        .draft_causal = -1, .pool = -1, .draft = DRAFTER_FLAGS_INIT, .sparse = SPARSE_FLAGS_INIT             \
    }

/* How a model is run. */
#define MODELS_RUN_FLAGS(m)                                                                                  \
    {"--override-kv",                                                                                        \
     CLI_LIST,                                                                                               \
     &(m).keys,                                                                                              \
     "KEY=TYPE:VALUE",                                                                                       \
     "the target's key has this value; TYPE int, float, bool, str or one of GGUF; repeatable",               \
     0,                                                                                                      \
     0},                                                                                                     \
        KV_FLAGS((m).kv), {"--device",                                                                       \
                           CLI_STR,                                                                          \
                           &(m).device,                                                                      \
                           "NAME",                                                                           \
                           "cpu or cuda[:N] (default cuda if built in and present, else cpu)",               \
                           0,                                                                                \
                           0},                                                                               \
        {"--kernels",                                                                                        \
         CLI_STR,                                                                                            \
         &(m).kernels,                                                                                       \
         "NAME",                                                                                             \
         "cuda: auto; generic: kernels that run on any supported device; direct: nothing recorded",          \
         0,                                                                                                  \
         0},                                                                                                 \
        {"--isa",                                                                                            \
         CLI_STR,                                                                                            \
         &(m).isa,                                                                                           \
         "NAME",                                                                                             \
         "instruction set: auto, scalar, avx2 or avx512 (the bits are the same)",                            \
         0,                                                                                                  \
         0},                                                                                                 \
    {                                                                                                        \
        "--threads", CLI_I32, &(m).threads, "N", "threads (default 0: one a processor)", 0, CLI_MAX_THREADS  \
    }
/* What stays in the host's memory. */
#define MODELS_HOST_FLAGS(m)                                                                                 \
    {"--experts-host",                                                                                       \
     CLI_I32,                                                                                                \
     &(m).experts_host,                                                                                      \
     "N",                                                                                                    \
     "experts a layer that stay in the host's memory (default 0)",                                           \
     0,                                                                                                      \
     1023},                                                                                                  \
        {"--experts-counts",                                                                                 \
         CLI_STR,                                                                                            \
         &(m).experts_counts,                                                                                \
         "IMATRIX",                                                                                          \
         "which: those that this importance matrix counts least (default: those with the highest ids)",      \
         0,                                                                                                  \
         0},                                                                                                 \
        {"--pool",                                                                                           \
         CLI_I32,                                                                                            \
         &(m).pool,                                                                                          \
         "TOKENS",                                                                                           \
         "positions that layers without a window keep on the device, a multiple of 64 (default 0: all, or "  \
         "as STATE has it; lossy)",                                                                          \
         0,                                                                                                  \
         SESSION_MAX_CTX},                                                                                   \
        {"--kv-host",                                                                                        \
         CLI_FLAG,                                                                                           \
         &(m).kv_host,                                                                                       \
         NULL,                                                                                               \
         "keys and values of as many layers as do not fit the device stay in the host's memory",             \
         0,                                                                                                  \
         0},                                                                                                 \
    {                                                                                                        \
        "--kv-host-layers", CLI_I32, &(m).kv_host_layers, "N",                                               \
            "those of so many at least, though they fit (default 0)", 0, DESC_MAX_LAYERS                     \
    }
#define MODELS_CHECK_FLAG(m)                                                                                 \
    {                                                                                                        \
        "--check-layers", CLI_FLAG, &(m).check_layers, NULL,                                                 \
            "name the first layer that leaves a NaN or Inf (slow)", 0, 0                                     \
    }
#define MODELS_MTP_FLAGS(m)                                                                                  \
    {"--mtp",                                                                                                \
     CLI_STR,                                                                                                \
     &(m).mtp,                                                                                               \
     "FILE",                                                                                                 \
     "an MTP block beside -d DRAFTER (a GGUF file, or target): plans choose who proposes",                   \
     0,                                                                                                      \
     0},                                                                                                     \
    {                                                                                                        \
        "--mtp-block", CLI_I32, &(m).mtp_block, "B", "rows of its block (default 4: 3 proposals)", 2,        \
            SESSION_MAX_ROWS                                                                                 \
    }
#define MODELS_FLAGS(m)                                                                                      \
    {"-m", CLI_STR, &(m).target_path, "TARGET", "target model, a GGUF file", 0, 0},                          \
        {"-d", CLI_STR, &(m).drafter_path, "DRAFTER", "drafter for it, a GGUF file, or target", 0, 0},       \
        MODELS_RUN_FLAGS(m),                                                                                 \
        {"--draft-causal",                                                                                   \
         CLI_I32,                                                                                            \
         &(m).draft_causal,                                                                                  \
         "0|1",                                                                                              \
         "drafter layers see ahead in the block (0) or not (1)",                                             \
         0,                                                                                                  \
         1},                                                                                                 \
        MODELS_MTP_FLAGS(m), KV_DRAFT_FLAG((m).kv), DRAFTER_FLAGS((m).draft, "--draft-", "--draft-dialect"), \
        MODELS_HOST_FLAGS(m), MODELS_CHECK_FLAG(m)

/* Usage errors of these flags that need no file: for programs that read something else before models_open,
 * which asks too. */
void models_check_flags(struct models *m, const struct cli *c);
/* The files that these flags name, for what refuses to write over what is read: models first, then what else
 * there is. list has room for MODELS_INPUTS; returns how many. */
enum { MODELS_INPUTS = 4 };
int models_inputs(const struct models *m, const char **list);
/* Open the backend and load the models; notes what was inferred about the drafter, with -v what is in the
 * files and what a device's memory will hold. Before any weight is read: both files are described and fitted
 * to each other, known and check are looked at, and ERR_DEVICE is returned where the device's memory cannot
 * hold it. */
int models_open(struct models *m, const struct cli *c, struct err *e);
/* What proposes: the drafter, and beside it an MTP block; NULL: nothing. It is m's. */
struct source *models_sources(struct models *m);
/* The descriptions of the same; returns how many. */
int32_t models_drafters(const struct models *m, const struct desc *list[PLAN_SOURCES]);
/* Rows of a draft at most, of those: the drafter's (block: as --block has it; 0: as usual) or the MTP block's
 * beside it; 1 without. A stream wants room for so many behind its last token. */
int32_t models_block(const struct models *m, int32_t block);
/* Warn where `to`, a state that goes on from `from`, will lack context of a drafter that info, from's, has.
 */
void models_warn_dropped(const struct models *m, const struct cli *c, const struct state_info *info,
                         const char *from, const char *to);
/* Refuse --mtp, for what: a program or flag that has no use for a second drafter. */
void models_no_mtp(const struct models *m, const struct cli *c, const char *what);
/* A session over the models and an engine of its own; ERR_DEVICE where it does not fit the device's memory,
 * saying what would. */
int models_session(struct models *m, const struct cli *c, const struct session_options *o, struct session **s,
                   struct err *e);
/* engine_open over them, with that source (NULL: none); the same refusal, for so many streams. */
int models_engine(struct models *m, const struct cli *c, const struct session_options *o,
                  struct source *source, int32_t streams, struct engine **g, struct err *e);
/* A model's memory is given back, and taken again: opened by its path, and refused (ERR_FORMAT) where that is
 * another file by now. No engine and no session is there. Parked, m->target or m->drafter is NULL. */
enum { MODELS_TARGET = 1, MODELS_DRAFTER = 2 };
void models_park(struct models *m, unsigned what);
int models_unpark(struct models *m, const struct cli *c, unsigned what, struct err *e);
void models_close(struct models *m);

/* The types of o's caches and whether its prompts are sparse, by the flags, else as the state has them (info
 * NULL: no state), and how many layers' caches are in the host's memory: with --kv-host those that o, its ctx
 * set, has no room for. o borrows m. */
int models_kv(struct models *m, const struct state_info *info, struct session_options *o, struct err *e);
/* What a session with these options would be refused for, before a weight is read: engine_check. */
int models_check_options(struct models *m, struct session_options *o, struct err *e);
/* Warn about a raw prompt without the BOS that the model asks for. */
void models_check_bos(const struct models *m, const struct cli *c, const int32_t *ids, size_t n);
/* Tokens of a state's text that were left out of it (info zero: no state); warns if there are any. */
int64_t models_left_out(const struct cli *c, const struct state_info *info);
/* null, or what a stream's first prompt lost: {"text_tokens":..,"kept_tokens":..,"keep":..,"scorer":..,
 * "scorer_identity":..}. */
json_t *models_gaps_json(const struct session_gaps *g);
/* Warn where a run may go past the positions that the target was trained for, or the drafter. */
void models_check_length(const struct models *m, const struct cli *c, int64_t positions);
/* Refuse ids that the target does not have, naming their file (or stdin), the index and the id. */
int models_check_ids(const struct models *m, const char *name, const int32_t *ids, size_t n, struct err *e);
const char *models_device(const struct models *m); /* "cpu" */
json_t *models_keys_json(const struct models *m);  /* what --override-kv says, an array of its texts */

#endif
