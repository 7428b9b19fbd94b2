/* plan_flags.h - the flags that say how cycles are planned: --width, --tree, --tree-seed, --plan-times,
 * --calibration.
 *
 * A program puts PLAN_FLAGS(f) into its flag table, calls plan_flags_check after cli_parse, plan_flags_read
 * before models are opened, and plan_flags_open when a stream has its prompt. */
#ifndef DFLASH_PLAN_FLAGS_H
#define DFLASH_PLAN_FLAGS_H

#include <jansson.h>
#include "../common/run/planner_auto.h"
#include "../common/run/session.h"
#include "cli.h"

struct plan_flags {
    const char *width, *times_path, *calibration_path, *mtp_calibration_path; /* as given, or NULL */
    const char *tree, *tree_seed;                                             /* the same */
    int32_t rows;            /* of --width N; 0: automatic, or of a tree */
    int32_t tree_most;       /* proposals of a tree at most; 0: chains alone */
    bool tree_fixed;         /* --tree N: so many every cycle */
    bool seeded;             /* --tree-seed chain */
    struct plan_times times; /* of the file; else measured at the first stream of each bucket */
    struct calibration calibration;
    bool timed;             /* times are there */
    bool lazy;              /* a stream that finds times there records what it runs when it runs it */
    double timed_s;         /* what measuring and recording took */
    int32_t guessed;        /* times that were not measured for lack of time */
    struct planner_auto a;  /* of the last stream that was opened */
    struct planner planner; /* its planner */
};

#define PLAN_FLAGS(f)                                                                                        \
    {"--width",                                                                                              \
     CLI_STR,                                                                                                \
     &(f).width,                                                                                             \
     "auto|N",                                                                                               \
     "rows verified a cycle: as pays, drafting only where it does (auto, the default), or N at most",        \
     0,                                                                                                      \
     0},                                                                                                     \
        {"--tree",                                                                                           \
         CLI_STR,                                                                                            \
         &(f).tree,                                                                                          \
         "auto|N",                                                                                           \
         "verify trees of the drafter's candidates: of N proposals every cycle, or as pays",                 \
         0,                                                                                                  \
         0},                                                                                                 \
        {"--tree-seed",                                                                                      \
         CLI_STR,                                                                                            \
         &(f).tree_seed,                                                                                     \
         "NAME",                                                                                             \
         "what a tree begins with: none (the default: the likeliest path is next) or chain",                 \
         0,                                                                                                  \
         0},                                                                                                 \
        {"--plan-times",                                                                                     \
         CLI_STR,                                                                                            \
         &(f).times_path,                                                                                    \
         "FILE",                                                                                             \
         "times of dflash-bench rows for --width auto, not measured here: the same plans every time",        \
         0,                                                                                                  \
         0},                                                                                                 \
    {                                                                                                        \
        "--calibration", CLI_STR, &(f).calibration_path, "FILE",                                             \
            "what dflash-bench calibrate learnt of the drafter (default: what holds for most)", 0, 0         \
    }

/* The same for the MTP block beside a drafter (models.h). */
#define PLAN_MTP_FLAG(f)                                                                                     \
    {                                                                                                        \
        "--mtp-calibration", CLI_STR, &(f).mtp_calibration_path, "FILE",                                     \
            "the same of the MTP block that --mtp puts beside it", 0, 0                                      \
    }

/* Usage errors: a width or tree that is none, both, or files that --width N and --tree N have no use for. */
void plan_flags_check(struct plan_flags *f, const struct cli *c);
/* The same of the MTP block beside a drafter: who proposes is chosen by plans that are automatic. mtp: it is
 * there. */
void plan_flags_check_mtp(const struct plan_flags *f, const struct cli *c, bool mtp);
static inline bool plan_flags_auto(const struct plan_flags *f)
{
    return !f->rows && !f->tree_fixed;
}
/* The files that are named, for what refuses to write over them; list has room for PLAN_INPUTS. */
enum { PLAN_INPUTS = 3 };
int plan_flags_inputs(const struct plan_flags *f, const char **list);
/* The files. */
int plan_flags_read(struct plan_flags *f, struct err *e);
/* With --width auto a planner for s, whose prompt is committed; times are measured where they are not there
 * yet. look_only: a drafter is there and not asked. planner.next NULL: a fixed width, or nothing that
 * proposes. */
int plan_flags_open(struct plan_flags *f, struct session *s, bool look_only, const struct kn_sampler *sampler,
                    struct err *e);
/* What it did, in a few lines, with -v; where drafting is off, why. */
void plan_flags_print(const struct plan_flags *f, const struct cli *c);
/* --tree and its seed as settings: null, or {"proposals": N or "auto", "seed": NAME}. */
json_t *plan_flags_tree(const struct plan_flags *f);
/* What it did, for --stats and reports; null without a planner. */
json_t *plan_flags_json(const struct plan_flags *f);

#endif
