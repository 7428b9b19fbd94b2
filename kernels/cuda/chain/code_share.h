/* chain/code_share.h - attention of one row over a quantised cache (codes.cuh): which sets of warps have
 * which leaves of keys, and where their results lie. Plain C, for the kernel, for what plans it and for a
 * test of every class and place.
 *
 * A class is the leaves of a node whose number modulo 4 is the same: class c of node n has number 4 n + c.
 * Small nodes, of 256 keys, come first; the others have 1,024. A set has classes that follow each other.
 * Beside large nodes the first sets have halves of small ones, two classes each; the others have large
 * classes, two at a time where no set has more by that, for what lies in one set is added there. Where no
 * node is large, sets have classes. The first sets of all blocks come first, those of the same keys and other
 * heads behind each other. */
#ifndef DFLASH_CUDA_CHAIN_CODE_SHARE_H
#define DFLASH_CUDA_CHAIN_CODE_SHARE_H

#include "chain_plan.h"

#include <limits.h>

#include "../attention/codes.h"

#ifdef __CUDACC__
#define CODE_FN static __host__ __device__ __forceinline__
#else
#define CODE_FN static inline
#endif

#define CODE_LEAF ATTN_CODES_LEAF(CHAIN_HEAD)
#define CODE_HALVES (2 * ATTN_CODES_SMALL) /* of small nodes */

/* What all blocks know: how many they are; kv heads of the cache, and of a set. */
struct code_cut {
    int blocks, n_kv, heads;
};
struct code_share {
    int number, on;       /* the block's number; how many sets have the same heads */
    int head, rank;       /* the set's first kv head; its number among those */
    int nodes, halves;    /* how many; sets that have halves */
    int each, more, step; /* classes of a set of the others; the first `more` of these have step more */
    int from, until;      /* the set's classes */
};

CODE_FN int code_least(int a, int b)
{
    return a < b ? a : b;
}
CODE_FN int code_most(int a, int b)
{
    return a > b ? a : b;
}
CODE_FN int code_warps(int heads) /* of a set of so many; a power of two */
{
    return heads > 4 ? CHAIN_HEADS : heads > 2 ? 4 : heads;
}
CODE_FN int code_block_sets(int heads) /* of a block */
{
    return CHAIN_HEADS / code_warps(heads);
}
CODE_FN int code_leaves_of(int c) /* of class c */
{
    return c < 4 * ATTN_CODES_SMALL ? 2 : 8;
}
/* The first position of leaf i of class c. */
CODE_FN int code_at(int c, int i)
{
    return ATTN_CODES_START(0, c / 4) + (4 * i + c % 4) * CODE_LEAF;
}

/* ---- places of results, among those of a head ---- */

CODE_FN bool code_near(const struct code_share *f) /* no node is large */
{
    return f->nodes <= ATTN_CODES_SMALL;
}
/* The first class of the set of that rank. */
CODE_FN int code_first(const struct code_share *f, int rank)
{
    if (rank >= f->halves)
        return (code_near(f) ? 0 : 4 * ATTN_CODES_SMALL) + (rank - f->halves) * f->each +
               code_least(rank - f->halves, f->more) * f->step;
    const int some = CODE_HALVES / f->halves;
    return 2 * (rank * some + code_least(rank, CODE_HALVES - some * f->halves));
}
/* Of class c, an even one alone or what two are added up to; of an odd one that the set of a rank begins
 * with. */
CODE_FN int code_place_of(const struct code_share *f, int c)
{
    return code_near(f) ? c : c / 2;
}
CODE_FN int code_place_apart(const struct code_share *f, int rank)
{
    return 2 * f->nodes + rank;
}
/* Where class c of this set leaves its results, or those of the class before it and its own. */
CODE_FN int code_place_here(const struct code_share *f, int c)
{
    return code_near(f) ? c : c % 2 && f->from == c ? code_place_apart(f, f->rank) : code_place_of(f, c);
}
/* May a set begin with the second class of two? */
CODE_FN bool code_apart(const struct code_share *f)
{
    return code_near(f) || (f->step == 1 && (f->each % 2 || f->more));
}
/* Where are the results of the class behind c, an even one: -1: where those of c are, added to them. */
CODE_FN int code_beside(const struct code_share *f, int c)
{
    if (code_near(f)) return code_place_of(f, c + 1);
    if (c < 4 * ATTN_CODES_SMALL || f->step > 1) return -1;
    const int behind = c + 1 - 4 * ATTN_CODES_SMALL, longer = f->more * (f->each + 1),
              rank = f->halves + (behind < longer ? behind / (f->each + 1)
                                                  : f->more + (behind - longer) / code_most(f->each, 1));
    return code_first(f, rank) == c + 1 ? code_place_apart(f, rank) : -1;
}
/* The ith place of a node's results, of four if code_apart, else of two; -1: there is none. */
CODE_FN int code_read(const struct code_share *f, bool apart, int node, int i)
{
    const int of = apart ? 4 : 2, c = 4 * node + i * (4 / of) / 2 * 2;
    return node >= f->nodes ? -1 : apart && i % 2 ? code_beside(f, c) : code_place_of(f, c);
}

/* ---- sets ---- */

CODE_FN int code_leaves(const struct code_share *f)
{
    return code_leaves_of(f->from) * (f->until - f->from);
}
/* The block's set `set` of its own. */
CODE_FN void code_share_set(struct code_share *f, const struct code_cut *cut, int set)
{
    const int groups = cut->n_kv / cut->heads, number = f->number + cut->blocks * set;
    f->rank = groups > 1 ? number / groups : number, f->head = (number - f->rank * groups) * cut->heads;
    f->from = code_first(f, f->rank);
    f->until = f->rank < f->on ? code_first(f, f->rank + 1) : f->from;
}
/* How many sets have halves of small nodes, so that the slowest takes as little as can be: by measurement
 * eight leaves take 20, half of a small node 12. large: classes of the others. */
CODE_FN int code_halves(int large, int on)
{
    const int most = (large + on - 2) / (on - 1); /* classes of a set, at least: one set has halves */
    int best = INT_MAX, halves = 0;
#ifdef __CUDA_ARCH__
#pragma unroll 1
#endif
    for (int i = most; i < most + 2; i++) {
        const int some = code_least(on - (large + i - 1) / i, CODE_HALVES),
                  cost = code_most(12 * ((CODE_HALVES + some - 1) / some), 20 * i);
        if (cost < best) best = cost, halves = some;
    }
    return halves;
}
/* Of the first set of the block of that number, for a row at position pos. */
CODE_FN struct code_share code_share_of(const struct code_cut *cut, int number, int pos)
{
    struct code_share f;
    f.number = number;
    f.on = cut->blocks * code_block_sets(cut->heads) / (cut->n_kv / cut->heads);
    f.nodes = ATTN_CODES_NODE(0, pos) + 1;
    const bool near = code_near(&f);
    const int classes = 4 * f.nodes - (near ? 0 : 4 * ATTN_CODES_SMALL);
    f.halves = near ? 0 : code_halves(classes, f.on);
    const int on = f.on - f.halves, single = classes / on, pair = classes / 2 / on,
              left = classes - single * on, left_pairs = classes / 2 - pair * on;
    const bool pairs = !near && 2 * (pair + (left_pairs > 0)) <= single + (left > 0);
    f.step = pairs ? 2 : 1, f.each = pairs ? 2 * pair : single, f.more = pairs ? left_pairs : left;
    code_share_set(&f, cut, 0);
    return f;
}
/* How many of the block's sets have classes: the first of them; leaves: what one has, at most. f: of its
 * first. */
CODE_FN int code_busy(struct code_share f, const struct code_cut *cut, int *leaves)
{
    int n = 0;
    *leaves = 0;
    while (f.from < f.until) {
        *leaves = code_most(*leaves, code_leaves(&f));
        if (++n == code_block_sets(cut->heads)) break;
        code_share_set(&f, cut, n);
    }
    return n;
}

/* ---- for plans ---- */

/* How many sets of the same heads have classes, if there are as many. */
CODE_FN int code_shares(int nodes)
{
    return 4 * nodes - (nodes <= ATTN_CODES_SMALL ? 0 : 4 * ATTN_CODES_SMALL - CODE_HALVES);
}
/* Places of a head's results over so many positions, or fewer, at most: of a class of each node; or two of
 * each node, and one of each set. */
CODE_FN int code_places(int positions, int blocks, int n_kv)
{
    const int near = ATTN_CODES_SMALL, nodes = ATTN_CODES_NODE(0, positions - 1) + 1,
              sets = blocks * CHAIN_HEADS / n_kv, few = 4 * code_least(nodes, near),
              many = nodes > near ? 2 * nodes + sets : 0;
    return code_most(few, many);
}

#endif
