/* planner.h - what a cycle is to do, and who decides it.
 *
 * A plan is one cycle's: does the source propose, how many rows does the target run, and what stands behind
 * what. It may change from cycle to cycle. No output depends on it, only speed: the rows that stay are those
 * that the target's picks agree with, whichever were tried.
 *
 * A planner makes plans. It sees no token's value. */
#ifndef DFLASH_PLANNER_H
#define DFLASH_PLANNER_H

#include <stdbool.h>
#include <stdint.h>
#include "../base/err.h"

struct plan {
    bool draft;             /* the source proposes; else the anchor runs alone, and rows is 1 */
    int32_t rows;           /* that the target runs at most, 1 to the source's: the anchor, then proposals */
    const int32_t *parents; /* NULL, or [rows]: the row whose pick each row's token is held against, -1 for
                               the anchor. Only chains are run: parents[r] is r - 1 */
};

/* ERR_USAGE: rows out of range (most: of the source; 1 without one), proposals that nobody makes, or parents
 * that are no chain. */
int plan_check(const struct plan *p, int32_t most, struct err *e);

struct planner {
    /* The plan of the cycle that is started next. What parents points at stays until the next call. */
    void (*next)(void *ctx, struct plan *p);
    void *ctx;
};

/* The same plan for every cycle: ctx is a struct plan. */
void planner_fixed(void *ctx, struct plan *p);

#endif
