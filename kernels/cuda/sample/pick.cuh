/* sample/pick.cuh - what the passes of the sampler share (pick.cu, pick_filter.cuh): a call's arguments,
 * noise and scores, the best of some. */
#ifndef DFLASH_CUDA_SAMPLE_PICK_CUH
#define DFLASH_CUDA_SAMPLE_PICK_CUH

#include "../core/math.cuh"
#include "../core/ops.cuh"

#define SCAN 4096 /* logits a block of pick_scan */
#define GREEDY_ROWS 64
#define LIST_ROWS 16 /* rows that have a list and a penalised copy at once */
#define BINS 2048
#define UNIT 0x1p44f
/* Bytes of scratch besides the rows: flags, bounds, histograms. */
#define FIXED (256 + 1024 + LIST_ROWS * BINS * (sizeof(unsigned long long) + sizeof(unsigned)))

struct best { /* of a slice of a row */
    double score;
    float top;
    int32_t id, top_id, nan;
};

struct bound { /* of a row: what pick_filter goes by */
    unsigned long long before,
        total;           /* probability of the buckets before bin, and of all ids, in units of 2^-44 */
    unsigned ids_before; /* the same in ids */
    unsigned listed;     /* ids in the list */
    int32_t bin;         /* where the last id kept lies; BINS: every id is kept */
    int32_t enough;      /* there are top_k ids or more: bin is top_k's */
};

struct pick {
    const float *logits;
    const int32_t *pos, *history;
    const struct kn_tree *tree; /* NULL, or of the rows from row0 on */
    int32_t row0;
    int32_t n, n_vocab, n_blocks;
    struct kn_sampler s;
    int32_t *out;
    float *copy;              /* [n, n_vocab] logits with biases and penalties, or NULL */
    uint32_t *times;          /* [n, n_vocab] of pick_change, where list lies: of the window's ids alone */
    uint64_t *list;           /* [n, n_vocab] keys of ids that the filters may keep; NULL without filters */
    unsigned long long *mass; /* [n, BINS] probability a bucket */
    unsigned *ids;            /* [n, BINS] ids a bucket */
    struct bound *bound;      /* [n] */
    struct best *best;        /* [n, n_blocks + 1]: the row's, then the slices' */
    int32_t *bad;             /* [n] the history holds an id outside the vocabulary; NULL without penalty */
    unsigned *count;          /* [n] */
    unsigned long long *key;  /* [n] of pick_greedy and pick_logp, zero between kernels */
    uint64_t *most;           /* [n] of pick_filter: the key of the last id that top-k and top-p keep */
    float *logp;              /* [n] or NULL */
    float2 *part; /* [n, blocks of pick_greedy] their largest logit, and the sum of weights by it */
};

enum want { WANT_TOP, WANT_SAMPLE };

/* The four words of ids 4 i .. 4 i + 3. */
DEV void philox(uint64_t seed, uint32_t position, uint32_t i, uint32_t c[4])
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    c[0] = position, c[1] = i, c[2] = 0, c[3] = 0;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const uint32_t ahi = __umulhi(c[0], 0xd2511f53u), alo = c[0] * 0xd2511f53u;
        const uint32_t bhi = __umulhi(c[2], 0xcd9e8d57u), blo = c[2] * 0xcd9e8d57u;
        c[0] = bhi ^ c[1] ^ k0;
        c[1] = blo;
        c[2] = ahi ^ c[3] ^ k1;
        c[3] = alo;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
}

DEV double score_of(float l, double temp, uint32_t word)
{
    const double u = __dmul_rn(__dadd_rn((double)word, 0.5), 0x1p-32);
    return __dadd_rn(__ddiv_rn((double)l, temp), -dev_log(-dev_log(u)));
}

DEV void offer(double &score, int32_t &id, double s, int32_t i)
{
    if (i >= 0 && (id < 0 || s > score || (s == score && i < id))) {
        score = s;
        id = i;
    }
}
DEV void offer_top(float &top, int32_t &id, float x, int32_t i)
{
    if (i >= 0 && (id < 0 || x > top || (x == top && i < id))) {
        top = x;
        id = i;
    }
}

DEV struct best join(struct best a, const struct best &b)
{
    offer(a.score, a.id, b.score, b.id);
    offer_top(a.top, a.top_id, b.top, b.top_id);
    a.nan |= b.nan;
    return a;
}

/* Of all lanes. */
DEV struct best warp_best(struct best b)
{
    for (int i = 16; i; i >>= 1) {
        struct best o;
        o.score = __shfl_xor_sync(~0u, b.score, i);
        o.top = __shfl_xor_sync(~0u, b.top, i);
        o.id = __shfl_xor_sync(~0u, b.id, i);
        o.top_id = __shfl_xor_sync(~0u, b.top_id, i);
        o.nan = __shfl_xor_sync(~0u, b.nan, i);
        b = join(b, o);
    }
    return b;
}
/* Over a block of any number of warps; the result is thread 0's. */
static __device__ struct best block_best(struct best b, struct best *warp)
{
    b = warp_best(b);
    if (threadIdx.x % 32 == 0) warp[threadIdx.x / 32] = b;
    __syncthreads();
    if (threadIdx.x == 0)
        for (unsigned w = 1; w < blockDim.x / 32; w++) b = join(b, warp[w]);
    return b;
}

DEV const float *row_of(const pick &p, int row)
{
    return (p.copy ? p.copy : p.logits) + (int64_t)row * p.n_vocab;
}

DEV struct best *row_best(const pick &p, int row)
{
    return p.best + (int64_t)row * (p.n_blocks + 1);
}

#endif
