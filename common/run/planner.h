/* planner.h - what a cycle is to do, and who decides it.
 *
 * A plan is one cycle's: which source proposes, if any, how many rows does the target run, and, where they
 * are not a chain, what stands behind what. It may change from cycle to cycle. No output depends on it, only
 * speed: the rows that stay are those that the target's picks agree with, whichever were tried.
 *
 * A planner makes plans, in two steps where it likes: a plan may leave the rows open (rows 0) until the
 * proposals are there, and then the planner chooses, knowing how sure they are (struct plan_offer). When a
 * cycle is finished the planner is told what came of it (struct plan_result). It sees no token's value. Its
 * clock and its times come from outside, and it takes no memory once it is made. */
#ifndef DFLASH_PLANNER_H
#define DFLASH_PLANNER_H

#include <stdbool.h>
#include <stdint.h>
#include "../base/err.h"

enum { PLAN_SOURCES = 2 }; /* that may take turns, at most */

struct plan {
    int32_t draft; /* the number of the source that proposes, from 1; 0: the anchor runs alone, and rows is 1,
                      or 0 for what a look-up may find */
    int32_t rows;  /* that the target runs at most, 1 to that source's: the anchor, then proposals.
                      0: asked for when the proposals are there (planner.choose). Without a draft
                      such a cycle need not wait to be asked: where look-ups find nothing behind the
                      token before, it is a row alone, started ahead */
};

/* What may stand behind an anchor: a drafter's chain, a look-up's chain, both or none. */
struct plan_offer {
    int32_t pos;       /* of the anchor */
    int32_t source;    /* the drafter that was asked, its number from 1; 0: none */
    int32_t n_draft;   /* proposals of the drafter; 0: not asked, or unusable */
    const float *logp; /* [n_draft] natural log of the probability that the drafter gave its proposal; NaN
                          where it is not known */
    int32_t n_look;    /* proposals of a look-up; 0: none */
    int32_t match;     /* tokens up to and with the anchor that the look-up matched */
    int32_t agree;     /* leading proposals that both chains share */
    const float *top; /* NULL, or [n_draft, n_top]: of each place the drafter's candidates, falling. The first
                         is its proposal. -Inf: none */
    int32_t n_top;
    /* NULL: top holds whatever stands before a place. Else top is behind the proposals, and this is the row
     * of place j behind candidate rank, not 0, of the place before: [n_top] in the order of top's ids, not
     * falling. It stays until the next call. */
    const float *(*behind)(void *ctx, int32_t j, int32_t rank);
    void *behind_ctx;
};

/* A row of a tree: a candidate of the place behind its parent's. */
struct plan_node {
    int8_t parent; /* the row whose pick its token is held against; -1 for the anchor, else before it */
    int8_t rank;   /* among the candidates of its place */
};

struct plan_choice {
    int32_t rows; /* to verify, 1 .. 1 + proposals of the chosen chain; of a tree all its nodes */
    bool look;    /* of the look-up's chain */
    const struct plan_node *nodes; /* NULL: a chain; else [rows] a tree of the drafter's candidates, the
                                      anchor first. Stays until the next call */
};

/* A finished cycle. */
struct plan_result {
    struct plan_offer offer; /* n_draft and n_look 0 where none was asked */
    struct plan_choice choice;
    bool drafted;        /* by offer.source */
    int32_t kept;        /* rows that stay, the anchor's among them */
    int32_t labelled;    /* slots with a label: the first so many proposals of the chosen chain (the drafter's
                            where one row ran) were compared with a pick while what stands before matched. The
                            last row that stays has a pick, too, so the next proposal is labelled whether it was
                            verified or not: min(proposals, kept) */
    int32_t equal;       /* of these, the leading ones that were equal: kept - 1 or kept. Of a tree: that the
                            first candidates were */
    const int8_t *ranks; /* NULL, or [labelled] of a tree: which of its place's candidates the pick was, -1:
                            none */
    /* By the device's clock: the draft; its end to the verify's start; the verify; its commit; the time
     * between the cycle before and this one. */
    double draft_s, wait_s, verify_s, commit_s, idle_s;
};

/* ERR_USAGE: rows out of range (most: of the source that the plan names; 1 without one), or proposals that
 * nobody makes. look: there are look-ups beside it, whose rows are always left open. */
int plan_check(const struct plan *p, int32_t most, bool look, struct err *e);
/* ERR_USAGE: rows that the offer has no proposals for. */
int plan_choice_check(const struct plan_choice *c, const struct plan_offer *o, struct err *e);

struct planner {
    /* The plan of the cycle that is started next. What parents points at stays until the next call. */
    void (*next)(void *ctx, struct plan *p);
    /* The rows of a plan that left them open. The offer is good until the call returns. NULL: next never says
     * rows 0. */
    void (*choose)(void *ctx, const struct plan_offer *o, struct plan_choice *c);
    /* A cycle is finished; they come in order. NULL: it does not learn. */
    void (*seen)(void *ctx, const struct plan_result *r);
    void *ctx;
};

/* The same plan for every cycle: ctx is a struct plan with rows. */
void planner_fixed(void *ctx, struct plan *p);

/* The same plan with look-ups: ctx is a struct plan_looks. A look-up's chain is chosen where it matched
 * `match` tokens or more, where it says what the whole draft says and goes on, and where there is no draft.
 * Its rows are a power of two, as many as the match is long at most: with each chain that was right to its
 * end the next one doubles, a short match costs little, and few row counts are recorded. */
#define PLAN_LOOK_MATCH 8 /* default of match */
struct plan_looks {
    int32_t draft;
    int32_t width; /* rows of a draft, at most */
    int32_t rows;  /* of a look-up's chain, at most */
    int32_t match;
};
void planner_looks_next(void *ctx, struct plan *p);
void planner_looks_choose(void *ctx, const struct plan_offer *o, struct plan_choice *c);

#endif
