/* tree.h - trees of proposals: how they grow, and their rows as the device reads them.
 *
 * A drafter offers candidates for every place behind the anchor, each with the probability that it gave it. A
 * node is a candidate behind a path of others; the probability of its path is the product of theirs. The tree
 * grows best first: of all nodes whose parent is in it, the likeliest path's is next. So the nodes of a tree
 * of N are the first N of any larger one, a parent stands before its children, and a tree where every place
 * has one likely candidate is a chain. Source: DDTree (liranringel/ddtree), from the marginals of a block. */
#ifndef DFLASH_TREE_H
#define DFLASH_TREE_H

#include "planner.h"
#include "../../kernels/kernels.h"

enum { TREE_ROWS = KN_CYCLE_ROWS, TREE_CANDIDATES = KN_TOP /* at most 32: bits of a word */ };

/* A tree that grows. Made by tree_begin; private but for n and nodes. */
struct tree {
    int32_t n;                         /* rows, the anchor's among them */
    struct plan_node nodes[TREE_ROWS]; /* [n]; node 0 is the anchor */
    int32_t slots, top;
    const float *logp; /* [slots, top] falling in each slot; -Inf or NaN: no candidate */
    const float *(*behind)(void *ctx, int32_t slot, int32_t rank); /* plan_offer.behind */
    void *behind_ctx;
    bool seed;
    double beside;           /* log of what children of a path count that has second choices; 0: as any */
    bool off[TREE_ROWS];     /* the path has one */
    double reach[TREE_ROWS]; /* log of the probability of a node's path */
    int8_t depth[TREE_ROWS];
    /* Of each node its next child: its rank, and what it would reach, -Inf: there is none. Ranks that are
     * children already. */
    int8_t next[TREE_ROWS];
    double promise[TREE_ROWS];
    uint32_t used[TREE_ROWS];
};

/* behind may be set before the first node is added. logp: [slots, top], the logs of the probabilities of the
 * candidates of each place; borrowed. seed: the chain of first candidates comes first, whatever it reaches.
 */
void tree_begin(struct tree *t, const float *logp, int32_t slots, int32_t top, bool seed);
/* One more node; false: there is none. *reach: NULL, or the probability of its path; *depth: its place, from
 * 1. */
bool tree_add(struct tree *t, double *reach, int32_t *depth);
/* Are the nodes a chain of first candidates? */
bool tree_is_chain(const struct plan_node *nodes, int32_t n);
/* ERR_USAGE: n nodes that are no tree of at most so many places with so many candidates each: a parent that
 * does not stand before, a candidate twice behind one node, or out of range. */
int tree_check(const struct plan_node *nodes, int32_t n, int32_t slots, int32_t top, struct err *e);

/* What the host writes of a struct kn_tree: n rows whose anchor is at pos, ids and parents [n]; parents[r] <
 * r. Rows from n on are as row 0. */
void tree_rows(struct kn_tree *t, const int32_t *ids, const int32_t *parents, int32_t n, int32_t pos);

/* Plans of a tree of so many proposals every cycle, fewer where there are no more candidates; of a look-up's
 * chain where planner_looks_choose would take one. ctx of both is a struct plan_trees. */
struct plan_trees {
    int32_t proposals; /* 1 .. TREE_ROWS - 1 */
    bool seed;
    struct plan_looks looks; /* width: rows of the block; rows: 1 without look-ups */
    struct tree tree;
};
void planner_trees_next(void *ctx, struct plan *p);
void planner_trees_choose(void *ctx, const struct plan_offer *o, struct plan_choice *c);

#endif
