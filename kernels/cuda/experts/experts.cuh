/* experts.cuh - products of rows with the matrices that each of them chose (mixtures of experts).
 *
 * Concepts. A *pair* is a row and one of its experts. Pairs of one expert, up to 8, 16 or 32 of them, are a
 * *tile*: what a warp multiplies with 16 rows of the expert's matrix at a time, with the fragments, the
 * streaming layout and the prepared activations of dense products (mm.cuh), so that an expert's weights are
 * read once for all pairs of a tile. Tiles are found on the device, by every block for itself (sort_*
 * below): nothing is known to the host but the number of rows, and a recorded launch serves whatever experts
 * the next rows choose. A token of a tile never meets another, slices of a row depend on its length and type
 * alone, and a row's experts are added in the order of its list: a row has the same bits in every company
 * and in every form of the kernel.
 *
 * Forms. PLAIN: a block takes a few panels of one tile, a panel is the work of several warps (members and
 * slices apart), activations come through the caches. HELD: the same with the activations of all rows in
 * shared memory. SOLO: so, and a warp does a panel alone. STAGED: a warp alone; a block takes a run of panels
 * of a tile, whose activations are in shared memory. OWNED (down only): a block has the same 16 output rows
 * of all experts and so adds up a row's experts itself; in the other forms sums of pairs go to memory and a
 * kernel adds them. */
#ifndef DFLASH_CUDA_EXPERTS_CUH
#define DFLASH_CUDA_EXPERTS_CUH

#include "../product/mm.cuh"
#include "experts_plan.h"

typedef void (*experts_kernel_fn)(const experts_args);
/* The kernel of a kind of activations for tiles of 8, 16 or 32 pairs (log2_tiles 0, 1, 2), or NULL where it
 * is not compiled. experts/types_k.cu, experts/types_low.cu, experts/types_grid.cu, experts/types_32.cu,
 * experts/types_float.cu. */
experts_kernel_fn experts_kernel_k(enum mm_act act, int log2_tiles, enum experts_form form, bool generic);
experts_kernel_fn experts_kernel_low(enum mm_act act, int log2_tiles, enum experts_form form, bool generic);
experts_kernel_fn experts_kernel_grid(enum mm_act act, int log2_tiles, enum experts_form form, bool generic);
experts_kernel_fn experts_kernel_32(enum mm_act act, int log2_tiles, enum experts_form form, bool generic);
experts_kernel_fn experts_kernel_float(enum mm_act act, int log2_tiles, enum experts_form form, bool generic);

/* experts/router.cu: the router's logits, the choice, and rows to p->rows, in one launch, where it fits. */
bool experts_router_fits(const struct cuda_backend *be, const struct kn_mixture *m, enum mm_act act);
int experts_router(struct cuda_backend *be, const struct kn_mixture *m, enum mm_act act,
                   const struct mm_prep *p);
/* experts/whole.cu: m in one launch a row, where it has few rows (experts_tuning.whole) and fits: *done.
 * open: once, before. */
int experts_whole_open(struct cuda_backend *be);
void experts_whole_close(struct cuda_backend *be);
int experts_whole(struct cuda_backend *be, const struct kn_mixture *m, bool *done);
/* experts.cu: what the router and gate and up are of m's rows from i on, n of them, `used` experts each. */
struct kn_mixture experts_rows_of(const struct kn_mixture *m, int32_t i, int32_t n, int32_t used);
/* experts/rows.cu: n rows to p->rows. route, if not NULL, is made as well (of n rows; kn_mixture says where
 * the shared logits, if not NULL, go). early: whether the next kernel may read the choice before its wait. */
int experts_prepare(struct cuda_backend *be, const char *name, enum mm_act act, const struct mm_prep *p,
                    int32_t n, const struct kn_route *route, const float *shared_logits, bool *early);

/* ---- pairs to tiles ----
 * A counting sort by expert, stable, by EXPERTS_GROUPS warps: each counts the experts of its run of pairs, a
 * lane those of its residue modulo 32, so no two lanes share a counter. The steps stand between barriers;
 * the test runs them on the host, step by step. */

/* Loops that run a few times a block are not unrolled: their instructions come from afar each time. */
#ifdef __CUDACC__
#define EXPERTS_HD static __host__ __device__ __forceinline__
#else
#define EXPERTS_HD static inline
#endif
#ifdef __CUDA_ARCH__
#define EXPERTS_ROLLED _Pragma("unroll 1")
#else
#define EXPERTS_ROLLED
#endif

struct experts_sort {
    uint16_t *ids;    /* [pairs rounded up to 8] */
    uint16_t *counts; /* [EXPERTS_GROUPS][n_mat]: a group's pairs of an expert; then where they go */
    uint16_t *total;  /* [n_mat] */
    uint16_t *sums;   /* [32][2] pairs and tiles of a lane's run of experts */
    int32_t pairs, n_mat, tile;
};

EXPERTS_HD struct experts_sort experts_sort_at(uint8_t *p, int32_t pairs, int32_t n_mat, int32_t tile)
{
    uint16_t *ids = (uint16_t *)p, *counts = ids + (pairs + 7) / 8 * 8,
             *total = counts + EXPERTS_GROUPS * n_mat;
    return experts_sort{ids, counts, total, total + n_mat, pairs, n_mat, tile};
}

/* A pair's expert, from memory that an earlier launch wrote: not through a cache that may hold what was there
 * before. */
EXPERTS_HD uint16_t experts_id(const int32_t *ids, int pair, int32_t n_mat)
{
#ifdef __CUDA_ARCH__
    const int32_t id = __ldcg(ids + pair);
#else
    const int32_t id = ids[pair];
#endif
    return (uint16_t)((uint32_t)id < (uint32_t)n_mat ? id : n_mat - 1); /* no memory is read but a matrix's */
}
/* Step 1: thread `i` of `threads`. */
EXPERTS_HD void experts_sort_load(const experts_sort &s, const int32_t *ids, int i, int threads)
{
    EXPERTS_ROLLED
    for (int p = i; p < s.pairs; p += threads) s.ids[p] = experts_id(ids, p, s.n_mat);
    EXPERTS_ROLLED
    for (int c = i; c < EXPERTS_GROUPS * s.n_mat; c += threads) s.counts[c] = 0;
}
/* Steps 2 and 6: the group's pairs in order; those of the lane are given to f(pair, counter). */
template <class F> EXPERTS_HD void experts_sort_walk(const experts_sort &s, int group, int lane, F f)
{
    const int run = (s.pairs + EXPERTS_GROUPS - 1) / EXPERTS_GROUPS, first = group * run;
    const int end = first + run < s.pairs ? first + run : s.pairs;
    EXPERTS_ROLLED
    for (int p = first; p < end; p++) {
        const int e = s.ids[p];
        if (e % 32 == lane) f(p, s.counts + group * s.n_mat + e);
    }
}
EXPERTS_HD void experts_sort_count(const experts_sort &s, int group, int lane)
{
    experts_sort_walk(s, group, lane, [](int, uint16_t *c) { ++*c; });
}
/* Step 3: counts of an expert become where a group's pairs of it begin, from the expert's first. */
EXPERTS_HD void experts_sort_total(const experts_sort &s, int i, int threads)
{
    EXPERTS_ROLLED
    for (int e = i; e < s.n_mat; e += threads) {
        int sum = 0;
        EXPERTS_ROLLED
        for (int g = 0; g < EXPERTS_GROUPS; g++) {
            uint16_t *c = s.counts + g * s.n_mat + e;
            const int n = *c;
            *c = (uint16_t)sum;
            sum += n;
        }
        s.total[e] = (uint16_t)sum;
    }
}
/* Steps 4 and 5: lane l has a run of experts: sums, then tiles and beginnings. Step 5 returns the number of
 * tiles in lane 31. */
EXPERTS_HD void experts_sort_sums(const experts_sort &s, int lane)
{
    const int run = (s.n_mat + 31) / 32;
    int pairs = 0, tiles = 0;
    EXPERTS_ROLLED
    for (int e = lane * run; e < (lane + 1) * run && e < s.n_mat; e++)
        pairs += s.total[e], tiles += (s.total[e] + s.tile - 1) / s.tile;
    s.sums[2 * lane] = (uint16_t)pairs;
    s.sums[2 * lane + 1] = (uint16_t)tiles;
}
EXPERTS_HD int experts_sort_tiles(const experts_sort &s, experts_tile *tile, int lane)
{
    const int run = (s.n_mat + 31) / 32;
    int at = 0, t = 0;
    EXPERTS_ROLLED
    for (int l = 0; l < lane; l++) at += s.sums[2 * l], t += s.sums[2 * l + 1];
    EXPERTS_ROLLED
    for (int e = lane * run; e < (lane + 1) * run && e < s.n_mat; e++) {
        const int n = s.total[e];
        s.total[e] = (uint16_t)at;
        EXPERTS_ROLLED
        for (int i = 0; i < n; i += s.tile)
            tile[t++] =
                experts_tile{(uint16_t)e, (uint16_t)(n - i < s.tile ? n - i : s.tile), (uint16_t)(at + i), 0};
        at += n;
    }
    return t;
}
EXPERTS_HD void experts_sort_place(const experts_sort &s, uint16_t *order, int group, int lane)
{
    experts_sort_walk(s, group, lane,
                      [&](int p, uint16_t *c) { order[s.total[s.ids[p]] + (*c)++] = (uint16_t)p; });
}

/* ---- the same for few pairs ----
 * A thread a pair: it finds its place by comparing with all others, which for some hundred is a tenth of the
 * counting's time. */

struct experts_few {
    uint32_t *keys; /* [pairs rounded up to 4] expert and pair, what is past the end above all */
    uint16_t *ids;  /* [pairs rounded up to 8] in order */
    uint16_t *head; /* [the same] 1 where a tile begins */
    int32_t *found; /* tiles */
    int32_t pairs, n_mat, tile;
};

EXPERTS_HD struct experts_few experts_few_at(uint8_t *p, int32_t pairs, int32_t n_mat, int32_t tile)
{
    const int whole = (pairs + 7) / 8 * 8;
    return experts_few{(uint32_t *)p,
                       (uint16_t *)(p + 4 * whole),
                       (uint16_t *)(p + 6 * whole),
                       (int32_t *)(p + 8 * whole),
                       pairs,
                       n_mat,
                       tile};
}
struct experts_words {
    uint32_t w[4];
};
EXPERTS_HD struct experts_words experts_four(const void *p)
{
#ifdef __CUDA_ARCH__
    const uint4 v = *(const uint4 *)p;
    return experts_words{{v.x, v.y, v.z, v.w}};
#else
    struct experts_words v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
#endif
}
/* Step 1: of (pairs rounded up to 8) threads, at least. */
EXPERTS_HD void experts_few_load(const experts_few &s, const int32_t *ids, int i)
{
    if (i < s.pairs)
        s.keys[i] = (uint32_t)experts_id(ids, i, s.n_mat) << 16 | (uint32_t)i;
    else if (i < (s.pairs + 7) / 8 * 8)
        s.keys[i] = 0xffffffffu;
}
/* Step 2: a pair to its place. */
EXPERTS_HD void experts_few_place(const experts_few &s, uint16_t *order, int i)
{
    if (i >= s.pairs) return;
    const uint32_t mine = s.keys[i];
    int place = 0;
    for (int q = 0; q < s.pairs; q += 4) {
        const struct experts_words k = experts_four(s.keys + q);
        place += (k.w[0] < mine) + (k.w[1] < mine) + (k.w[2] < mine) + (k.w[3] < mine);
    }
    order[place] = (uint16_t)i;
    s.ids[place] = (uint16_t)(mine >> 16);
}
/* Step 3: does a tile begin at place i? */
EXPERTS_HD void experts_few_head(const experts_few &s, int i)
{
    if (i >= (s.pairs + 7) / 8 * 8) return;
    int before = 0; /* of the same expert */
    if (i < s.pairs)
        while (before < i && s.ids[i - before - 1] == s.ids[i]) before++;
    s.head[i] = (uint16_t)(i < s.pairs && before % s.tile == 0);
}
/* Step 4: the tile that begins there. Returns, at the last place, the number of tiles, else 0. */
EXPERTS_HD int experts_few_tile(const experts_few &s, experts_tile *tile, int i)
{
    if (i >= s.pairs) return 0;
    uint32_t two = 0; /* counts of even and of odd places: of at most 2^16 each */
    for (int q = 0; q + 8 <= i; q += 8) {
        const struct experts_words h = experts_four(s.head + q);
        two += h.w[0] + h.w[1] + h.w[2] + h.w[3];
    }
    int at = (int)((two & 0xffff) + (two >> 16));
    EXPERTS_ROLLED
    for (int q = i / 8 * 8; q < i; q++) at += s.head[q];
    if (s.head[i]) {
        int n = 1;
        while (i + n < s.pairs && s.ids[i + n] == s.ids[i] && !s.head[i + n]) n++;
        tile[at] = experts_tile{s.ids[i], (uint16_t)n, (uint16_t)i, 0};
    }
    return i == s.pairs - 1 ? at + s.head[i] : 0;
}

#endif
