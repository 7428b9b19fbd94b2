/* lossless.h - the parts of lossless: which cases there are (cases.c), one run of a case (run.c), what else
 * is run of some cases (ways.c), and the program that compares them (main.c, which says what is compared).
 *
 * A case is a point: an index into the values of every axis. A way says how it is run: with a drafter or
 * without, with look-ups, in trees. Nothing here is freed before the program ends, but for models of a
 * backend that is closed.
 */
#ifndef TEST_LOSSLESS_H
#define TEST_LOSSLESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../../common/base/err.h"
#include "../../common/run/session.h"
#include "../../common/run/source.h"
#include "../../kernels/kernels.h"

enum axis {
    PROMPT,
    TARGET,
    DRAFTER,
    BLOCK,
    WIDTH,
    SAMPLING,
    GREEDY, /* proposals are greedy: the value itself */
    CACHE,
    RESUME, /* through a state on disk: the value itself */
    CHUNK,
    ISA, /* of isa_of */
    THREADS,
    AXES
};

#define TYPES 23
#define CACHES 64
#define N_NEW 40 /* tokens a stream has */

/* ---- the values of the axes (cases.c) ---- */
extern const int prompt_len[], block_rows[], width_rows[], chunk_rows[], thread_count[];
extern const char *target_type[TYPES], *const drafter_type[], *const isa_name[];
extern const struct kn_sampler sampling[];
/* layers: every second layer of the target has other types than kv, and the drafter's are its own. */
struct cache {
    char name[32];
    struct kn_kv_types kv;
    bool layers;
};
extern struct cache cache_type[CACHES];
extern int axis_size[AXES];  /* how many of them are run */
extern int isa_of[3], n_isa; /* the instruction sets this machine has, best first; on a device n_isa is 1 */

/* ---- what holds for all cases; main sets it ---- */
struct setting {
    const char *dir, *device;
    bool on_cpu;
    bool kv_host, no_trees; /* no_trees: the drafter offers no candidates, or streams have a pool */
    bool quantised;         /* --kv: caches are every type with every other, and each with a neighbour */
    int32_t pool;
    int32_t *text; /* [n_text] the longest prompt, and maybe more */
    size_t n_text;
};
extern struct setting setting;

/* ---- cases (cases.c) ---- */
struct one_case {
    int c[AXES];
};
extern struct one_case *cases;
extern size_t n_cases;

/* Keep the types of target that the list names, in its order; an unknown one is -1. */
int cases_take_types(char *list);
/* --kv. */
void cases_take_caches(void);
/* Find the instruction sets; on a device there is one, and one number of threads. */
void cases_find_isas(void);
/* Collect the cases: every combination, or a set in which every pair of values of two axes occurs. */
void cases_everything(void);
void cases_pairwise(void);
/* Keep the cases of one of n_parts: those that share a target's own stream stay together. */
void cases_keep_part(unsigned part, unsigned n_parts);
/* By backend and models, so that each model is loaded once a backend. */
void cases_sort(void);
void case_describe(const int *c, char *out, size_t n);
int case_width(const int *c);

/* ---- one run (run.c) ---- */
struct way {
    bool drafter;
    struct source *look; /* NULL: none */
    bool look_only;
    int tree; /* proposals of a tree every cycle; 0: chains */
    bool tree_seed;
};

struct run {
    int made;
    int32_t id[N_NEW];
    int n_trace;
    int32_t trace[N_NEW * 8];
    int64_t accepted, cycles, looked, trees;
};

/* What went wrong is no difference of streams: print it and exit. */
_Noreturn void die(const char *what, const struct err *e);

extern struct kn_backend *backend; /* that of the last run_backend */
void run_backend(int isa, int threads);
struct model *run_model(bool drafter, int type);
/* way and what the case says; drafter: its model, or NULL. */
struct session_options run_options(const int *c, const struct model *drafter, const struct way *way);
void run_case(const int *c, const struct way *way, struct run *r);
/* The plainest run that must give the case's stream or, with a drafter, its trace; made once. */
struct run *run_reference(const int *c, bool drafter);
/* A state on disk: save frees s, restore removes the file. */
#define RUN_STATE_PATH "/tmp/lossless-XXXXXX"
void run_save(struct session *s, char *path);
void run_restore(struct session *s, const char *path);
/* For spec_options and cycles: ctx is a struct run. */
int run_take_tokens(void *ctx, const int32_t *ids, int32_t n, struct err *e);
int run_take_proposals(void *ctx, const int32_t *ids, int32_t n, struct err *e);

/* ---- what else is run of case number n (ways.c): does it give the target's stream, and the blocks of the
 * drafter's own run? ---- */
#define LOOKS 3 /* one case of so many */
#define TREES 2
#define TURNS 5
bool ways_looks_agree(const int *c, const struct run *plain, const struct run *drafted, long n);
struct tree_tally {
    int cases, ran; /* ran: with a tree in a cycle at least; few nodes may be a chain in every one */
};
bool ways_trees_agree(const int *c, const struct run *plain, const struct run *drafted, long n,
                      struct tree_tally *tally);
bool ways_turns_agree(const int *c, const struct run *plain, const struct run *drafted);

#endif
