/* pick.cu - the sampler's chain on the device: docs/sampling.md has the definition.
 *
 * Bound: reading a row of logits once, 0.6 MB at a vocabulary of 151,936. Greedy picks and plain temperature
 * take one pass over the whole chip (pick_scan). top-k, top-p and min-p never sort. After a pass for the
 * largest logit, one for a histogram of counts and probability over buckets a 64th of a nat wide (pick_hist,
 * whose last block finds the bucket where the bound lies) and one that lists the ids up to that bucket
 * (pick_list), one block a row (pick_filter) finds the key of the last id kept and offers every id up to it.
 * A key orders ids as the chain does: logit descending, then id ascending, 64 bits, all different; the search
 * goes over 8 bits of it at a time. All passes but the last use the whole chip. Variant that lost: one block
 * a row for everything, 242 us a row. Nothing depends on an order of atomics: counts are integers, and
 * probabilities are added as integers in units of 2^-44 (the CPU adds float32 exponentials in double: an id
 * at the very edge of top-p may differ, as between any two orders of adding). Noise and scores have the CPU's
 * bits. */
#include "../core/math.cuh"
#include "../core/ops.cuh"

#include <stdlib.h>

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
    int32_t n, n_vocab, n_blocks;
    struct kn_sampler s;
    int32_t *out;
    float *copy;              /* [n, n_vocab] penalised logits, or NULL */
    uint64_t *list;           /* [n, n_vocab] keys of ids that the filters may keep; NULL without filters */
    unsigned long long *mass; /* [n, BINS] probability a bucket */
    unsigned *ids;            /* [n, BINS] ids a bucket */
    struct bound *bound;      /* [n] */
    struct best *best;        /* [n, n_blocks + 1]: the row's, then the slices' */
    int32_t *bad;             /* [n] the history holds an id outside the vocabulary; NULL without penalty */
    unsigned *count;          /* [n] */
    unsigned long long *key;  /* [n] of pick_greedy */
};

enum want { WANT_TOP, WANT_SAMPLE };

/* The four words of ids 4 i .. 4 i + 3. */
static __device__ __forceinline__ void philox(uint64_t seed, uint32_t position, uint32_t i, uint32_t c[4])
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

static __device__ __forceinline__ double score_of(float l, double temp, uint32_t word)
{
    const double u = __dmul_rn(__dadd_rn((double)word, 0.5), 0x1p-32);
    return __dadd_rn(__ddiv_rn((double)l, temp), -dev_log(-dev_log(u)));
}

static __device__ __forceinline__ void offer(double &score, int32_t &id, double s, int32_t i)
{
    if (i >= 0 && (id < 0 || s > score || (s == score && i < id))) {
        score = s;
        id = i;
    }
}
static __device__ __forceinline__ void offer_top(float &top, int32_t &id, float x, int32_t i)
{
    if (i >= 0 && (id < 0 || x > top || (x == top && i < id))) {
        top = x;
        id = i;
    }
}

static __device__ __forceinline__ struct best join(struct best a, const struct best &b)
{
    offer(a.score, a.id, b.score, b.id);
    offer_top(a.top, a.top_id, b.top, b.top_id);
    a.nan |= b.nan;
    return a;
}

/* Over a block of any number of warps; the result is thread 0's. */
static __device__ struct best block_best(struct best b, struct best *warp)
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
    if (threadIdx.x % 32 == 0) warp[threadIdx.x / 32] = b;
    __syncthreads();
    if (threadIdx.x == 0)
        for (unsigned w = 1; w < blockDim.x / 32; w++) b = join(b, warp[w]);
    return b;
}

/* ---- penalty: a copy of the rows, then each distinct id of the window, from the original: twice changes
 * nothing ---- */

static __global__ void __launch_bounds__(256) pick_copy(const pick p)
{
    cuda_grid_start();
    const int64_t row = (int64_t)blockIdx.y * p.n_vocab;
    for (int32_t i = blockIdx.x * SCAN + threadIdx.x; i < p.n_vocab && i < (int32_t)(blockIdx.x + 1) * SCAN;
         i += 256)
        p.copy[row + i] = p.logits[row + i];
}

static __global__ void __launch_bounds__(256) pick_penalise(const pick p)
{
    cuda_grid_start();
    const int64_t row = (int64_t)blockIdx.x * p.n_vocab, last = p.pos[blockIdx.x],
                  from = last - p.s.repeat_last + 1;
    bool bad = false;
    for (int64_t i = (from < 0 ? 0 : from) + threadIdx.x; i <= last; i += 256) {
        const int32_t id = p.history[i];
        if (id < 0 || id >= p.n_vocab) {
            bad = true;
            continue;
        }
        const float l = p.logits[row + id];
        p.copy[row + id] = l > 0.0f ? __fdiv_rn(l, p.s.repeat_penalty) : __fmul_rn(l, p.s.repeat_penalty);
    }
    bad = __syncthreads_or(bad);
    if (threadIdx.x == 0) p.bad[blockIdx.x] = bad;
}

/* ---- one pass ---- */

static __device__ __forceinline__ const float *row_of(const pick &p, int row)
{
    return (p.copy ? p.copy : p.logits) + (int64_t)row * p.n_vocab;
}

static __device__ __forceinline__ struct best *row_best(const pick &p, int row)
{
    return p.best + (int64_t)row * (p.n_blocks + 1);
}

template <int WANT> static __global__ void __launch_bounds__(256) pick_scan(const pick p)
{
    __shared__ struct best warp[8];
    __shared__ bool last;
    cuda_grid_start();
    const int row = blockIdx.y;
    const float *l = row_of(p, row);
    const double temp = (double)p.s.temp;
    const uint32_t position = (uint32_t)p.pos[row] + 1;
    if (WANT == WANT_TOP) { /* what pick_hist and pick_list add to */
        for (int i = blockIdx.x * 256 + threadIdx.x; i < BINS; i += gridDim.x * 256) {
            p.mass[(int64_t)row * BINS + i] = 0;
            p.ids[(int64_t)row * BINS + i] = 0;
        }
        if (blockIdx.x == 0 && threadIdx.x == 0) p.bound[row].listed = 0;
    }
    struct best b = {0.0, -INFINITY, -1, -1, 0};
    for (int32_t i = blockIdx.x * SCAN + 4 * threadIdx.x;
         i < p.n_vocab && i < (int32_t)(blockIdx.x + 1) * SCAN; i += 1024) {
        uint32_t word[4];
        if (WANT == WANT_SAMPLE) philox(p.s.seed, position, (uint32_t)i / 4, word);
        for (int j = 0; j < 4 && i + j < p.n_vocab; j++) {
            const float x = l[i + j];
            b.nan |= x != x;
            offer_top(b.top, b.top_id, x, i + j);
            if (WANT == WANT_SAMPLE && x > -INFINITY) offer(b.score, b.id, score_of(x, temp, word[j]), i + j);
        }
    }
    b = block_best(b, warp);
    struct best *mine = row_best(p, row) + 1;
    if (threadIdx.x == 0) {
        mine[blockIdx.x] = b;
        __threadfence();
        last = atomicAdd(&p.count[row], 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last || threadIdx.x >= 32) return;
    __threadfence();
    b = {0.0, -INFINITY, -1, -1, 0};
    for (int i = threadIdx.x; i < p.n_blocks; i += 32) {
        struct best o;
        o.score = __ldcg(&mine[i].score);
        o.top = __ldcg(&mine[i].top);
        o.id = __ldcg(&mine[i].id);
        o.top_id = __ldcg(&mine[i].top_id);
        o.nan = __ldcg(&mine[i].nan);
        b = join(b, o);
    }
    for (int i = 16; i; i >>= 1) {
        struct best o;
        o.score = __shfl_xor_sync(~0u, b.score, i);
        o.top = __shfl_xor_sync(~0u, b.top, i);
        o.id = __shfl_xor_sync(~0u, b.id, i);
        o.top_id = __shfl_xor_sync(~0u, b.top_id, i);
        o.nan = __shfl_xor_sync(~0u, b.nan, i);
        b = join(b, o);
    }
    b.nan |= !isfinite(b.top) || (p.bad && p.bad[row]);
    if (threadIdx.x == 0) {
        p.count[row] = 0;
        *row_best(p, row) = b;
        p.out[row] = b.nan ? KN_PICK_NAN : WANT == WANT_SAMPLE ? b.id : b.top_id;
    }
}

/* ---- filters ---- */

static __device__ __forceinline__ uint64_t key_of(float l, uint32_t id)
{
    uint32_t u = __float_as_uint(__fadd_rn(l, 0.0f)); /* -0 and 0 tie */
    u = u >> 31 ? u : ~u & 0x7fffffffu;
    return (uint64_t)u << 32 | id;
}
static __device__ __forceinline__ float logit_of(uint64_t key)
{
    const uint32_t u = (uint32_t)(key >> 32);
    return __uint_as_float(u >> 31 ? u : ~u & 0x7fffffffu);
}

struct filter { /* shared memory of pick_hist and pick_filter */
    unsigned long long mass[BINS];
    unsigned count[BINS];
    unsigned long long warp[32];
    int32_t bin;
    bool last;
    unsigned long long before;
    uint64_t found;
    struct best best[32];
};

/* Add one to a bin, and mass to it; every lane of the warp comes, bin -1 adds nothing. */
static __device__ __forceinline__ void tally(unsigned *count, unsigned long long *masses, int bin,
                                             unsigned long long mass)
{
    if (__all_sync(
            ~0u,
            bin == __shfl_sync(~0u, bin, 0))) { /* often: all beyond the buckets, or one sign and exponent */
        for (int i = 16; i; i >>= 1) mass += __shfl_xor_sync(~0u, mass, i);
        if (bin < 0 || threadIdx.x % 32) return;
        atomicAdd(&count[bin], 32u);
        if (mass) atomicAdd(&masses[bin], mass);
        return;
    }
    if (bin < 0) return;
    atomicAdd(&count[bin], 1u);
    if (mass) atomicAdd(&masses[bin], mass);
}

/* The first bin whose counts (or mass) with all before it reach target: f.bin, and f.before what lies before
 * it; -1 if the total is less. 1024 threads. */
static __device__ void find_bin(struct filter &f, int n, bool by_mass, unsigned long long target)
{
    const int t = threadIdx.x, lane = t % 32;
    unsigned long long a = 0, b = 0, sum;
    __syncthreads();
    if (2 * t < n) {
        a = by_mass ? f.mass[2 * t] : f.count[2 * t];
        b = by_mass ? f.mass[2 * t + 1] : f.count[2 * t + 1];
    }
    sum = a + b;
    for (int i = 1; i < 32; i <<= 1) {
        unsigned long long o = __shfl_up_sync(~0u, sum, i);
        if (lane >= i) sum += o;
    }
    if (lane == 31) f.warp[t / 32] = sum;
    if (t == 0) f.bin = -1;
    __syncthreads();
    for (int w = 0; w < t / 32; w++) sum += f.warp[w];
    unsigned long long before = sum - a - b;
    if (before < target && before + a >= target) {
        f.bin = 2 * t;
        f.before = before;
    } else if (before + a < target && sum >= target) {
        f.bin = 2 * t + 1;
        f.before = before + a;
    }
    __syncthreads();
}

static __device__ unsigned long long block_total(struct filter &f, unsigned long long x)
{
    for (int i = 16; i; i >>= 1) x += __shfl_xor_sync(~0u, x, i);
    __syncthreads();
    if (threadIdx.x % 32 == 0) f.warp[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int w = 0; w < 32; w++) x += f.warp[w];
    return x;
}

struct row {
    const float *l;
    float top, temp, inverse;
};

static __device__ __forceinline__ row make_row(const pick &p, int i)
{
    row r = {row_of(p, i), row_best(p, i)->top, p.s.temp, __fdiv_rn(1.0f, p.s.temp)};
    if (!(r.inverse < 3e38f)) r.inverse = 3e38f;
    return r;
}
/* Buckets of a 64th of a nat below the top for 16 nats, then of a quarter; the last holds the rest. */
static __device__ __forceinline__ int bin_at(float nats)
{
    return (int)(nats < 16.0f ? __fmul_rn(nats, 64.0f)
                              : fminf(__fmaf_rn(nats, 4.0f, 960.0f), (float)(BINS - 1)));
}
static __device__ __forceinline__ int bin_of(const row &r, float l)
{
    return bin_at(__fmul_rn(__fsub_rn(r.top, l), r.inverse));
}
static __device__ __forceinline__ unsigned long long mass_of(const row &r, float l)
{
    return __float2ull_rn(__fmul_rn(dev_exp(__fdiv_rn(__fsub_rn(l, r.top), r.temp)), UNIT));
}
static __device__ __forceinline__ unsigned long long limit_of(const pick &p, unsigned long long total)
{
    const unsigned long long limit = (unsigned long long)ceil(__dmul_rn((double)p.s.top_p, (double)total));
    return limit < 1 ? 1 : limit;
}
static __device__ __forceinline__ bool wants_k(const pick &p)
{
    return p.s.top_k > 0 && p.s.top_k < p.n_vocab;
}

static __global__ void __launch_bounds__(1024) pick_hist(const pick p)
{
    __shared__ struct filter f;
    cuda_grid_start();
    const int t = threadIdx.x, at = blockIdx.y;
    const bool top_k = wants_k(p), top_p = p.s.top_p < 1.0f;
    const row r = make_row(p, at);
    unsigned *ids = p.ids + (int64_t)at * BINS;
    unsigned long long *mass = p.mass + (int64_t)at * BINS;
    if (row_best(p, at)->nan) return; /* pick_scan has said so */
    if (top_k || top_p)
        for (int j = 0; j < SCAN / 1024; j++) {
            const int32_t i = blockIdx.x * SCAN + j * 1024 + t;
            const float l = i < p.n_vocab ? r.l[i] : -INFINITY;
            const bool in = l > -INFINITY;
            tally(ids, mass, in ? bin_of(r, l) : -1, in && top_p ? mass_of(r, l) : 0);
        }
    __threadfence();
    __syncthreads();
    if (t == 0) {
        f.last = atomicAdd(&p.count[at], 1u) == gridDim.x - 1;
        if (f.last) p.count[at] = 0;
    }
    __syncthreads();
    if (!f.last) return;
    __threadfence();
    for (int i = t; i < BINS; i += 1024) {
        f.count[i] = __ldcg(&ids[i]);
        f.mass[i] = __ldcg(&mass[i]);
    }
    __syncthreads();
    struct bound b = {0, 0, 0, 0, BINS, 0};
    if (top_p) b.total = block_total(f, f.mass[2 * t] + f.mass[2 * t + 1]);
    if (top_k) {
        find_bin(f, BINS, false, (unsigned long long)p.s.top_k);
        b.enough = f.bin >= 0;
        if (b.enough) b.bin = f.bin, b.ids_before = (unsigned)f.before;
    }
    if (top_p && !b.enough) {
        find_bin(f, BINS, true, limit_of(p, b.total));
        if (f.bin >= 0) b.bin = f.bin, b.before = f.before;
    }
    if (t == 0) p.bound[at] = b;
}

/* Ids before the bound's bucket are kept for certain, but where top-p comes after top-k. */
static __global__ void __launch_bounds__(256) pick_list(const pick p)
{
    __shared__ struct best warp[8];
    cuda_grid_start();
    const int at = blockIdx.y;
    if (row_best(p, at)->nan) return;
    const row r = make_row(p, at);
    const int bin = p.bound[at].bin;
    const bool certain = !(p.bound[at].enough && p.s.top_p < 1.0f);
    const double temp = (double)p.s.temp, top = __ddiv_rn((double)r.top, temp);
    const double log_min_p = p.s.min_p > 0.0f ? dev_log((double)p.s.min_p) : -INFINITY;
    const int deepest =
        p.s.min_p > 0.0f ? bin_at((float)(-log_min_p * 1.0001 + 0.01)) : BINS; /* min-p keeps nothing below */
    const uint32_t position = (uint32_t)p.pos[at] + 1;
    uint64_t *list = p.list + (int64_t)at * p.n_vocab;
    struct best b = {0.0, -INFINITY, -1, -1, 0};
    for (int j = 0; j < SCAN / 256; j++) {
        const int32_t i = blockIdx.x * SCAN + j * 256 + threadIdx.x;
        const float l = i < p.n_vocab ? r.l[i] : -INFINITY;
        const int mine = l > -INFINITY ? bin_of(r, l) : BINS + 1;
        if (certain && mine < bin && mine <= deepest &&
            !(__dsub_rn(__ddiv_rn((double)l, temp), top) < log_min_p)) {
            uint32_t word[4];
            philox(p.s.seed, position, (uint32_t)i / 4, word);
            offer(b.score, b.id,
                  score_of(l, temp,
                           i % 4 == 0   ? word[0]
                           : i % 4 == 1 ? word[1]
                           : i % 4 == 2 ? word[2]
                                        : word[3]),
                  i);
        }
        const bool in = mine == bin || (!certain && mine < bin);
        const unsigned who = __ballot_sync(~0u, in), lane = threadIdx.x % 32;
        unsigned first = 0;
        if (!who) continue;
        if (lane == 0) first = atomicAdd(&p.bound[at].listed, (unsigned)__popc(who));
        first = __shfl_sync(~0u, first, 0);
        if (in) list[first + __popc(who & ((1u << lane) - 1))] = key_of(l, (uint32_t)i);
    }
    b = block_best(b, warp);
    if (threadIdx.x == 0) row_best(p, at)[1 + blockIdx.x] = b;
}

/* Of the listed keys up to most: the one at which the count (or mass), ascending, reaches target; most if the
 * total is less. */
static __device__ uint64_t find_key(struct filter &f, const row &r, const uint64_t *list, unsigned n,
                                    bool by_mass, unsigned long long target, uint64_t most)
{
    uint64_t prefix = 0;
    for (int shift = 56;; shift -= 8) {
        __syncthreads();
        if (threadIdx.x < 256) f.count[threadIdx.x] = 0, f.mass[threadIdx.x] = 0;
        __syncthreads();
        for (unsigned base = 0; base < n; base += 1024) {
            const uint64_t key = base + threadIdx.x < n ? list[base + threadIdx.x] : ~(uint64_t)0;
            int digit = -1;
            unsigned long long mass = 0;
            if (base + threadIdx.x < n && key <= most && (shift == 56 || key >> (shift + 8) == prefix)) {
                digit = (int)(key >> shift & 255);
                mass = by_mass ? mass_of(r, logit_of(key)) : 0;
            }
            tally(f.count, f.mass, digit, mass);
        }
        find_bin(f, 256, by_mass, target);
        const int digit = f.bin;
        if (digit < 0) return most;
        prefix = prefix << 8 | (unsigned)digit;
        target -= f.before;
        if (shift == 0) return prefix;
        if (f.count[digit] > 1) continue;
        for (unsigned i = threadIdx.x; i < n; i += 1024) /* one id left */
            if (list[i] <= most && list[i] >> shift == prefix) f.found = list[i];
        __syncthreads();
        return f.found;
    }
}

static __global__ void __launch_bounds__(1024) pick_filter(const pick p)
{
    __shared__ struct filter f;
    cuda_grid_start();
    const int t = threadIdx.x, at = blockIdx.x;
    if (row_best(p, at)->nan) return;
    const row r = make_row(p, at);
    const uint64_t *list = p.list + (int64_t)at * p.n_vocab;
    const struct bound known = p.bound[at];
    const unsigned n = known.listed;
    const bool top_p = p.s.top_p < 1.0f;
    uint64_t most = ~(uint64_t)0;
    if (known.enough && !top_p) {
        most = find_key(f, r, list, n, false, (unsigned long long)p.s.top_k - known.ids_before, most);
    } else if (known.enough) { /* the list holds the buckets before, too */
        unsigned long long kept = 0;
        most = find_key(f, r, list, n, false, (unsigned long long)p.s.top_k, most);
        for (unsigned i = t; i < n; i += 1024)
            if (list[i] <= most) kept += mass_of(r, logit_of(list[i]));
        kept = block_total(f, kept);
        most = find_key(f, r, list, n, true, limit_of(p, kept), most);
    } else if (top_p) {
        most = find_key(f, r, list, n, true, limit_of(p, known.total) - known.before, most);
    }
    const double temp = (double)p.s.temp, top = __ddiv_rn((double)r.top, temp);
    const double log_min_p = p.s.min_p > 0.0f ? dev_log((double)p.s.min_p) : -INFINITY;
    const uint32_t position = (uint32_t)p.pos[at] + 1;
    struct best b = {0.0, -INFINITY, -1, -1, 0};
    for (unsigned i = t; i < n; i += 1024) {
        const uint64_t key = list[i];
        const uint32_t id = (uint32_t)key;
        const float l = logit_of(key);
        if (key > most || __dsub_rn(__ddiv_rn((double)l, temp), top) < log_min_p) continue;
        uint32_t word[4];
        philox(p.s.seed, position, id / 4, word);
        offer(b.score, b.id,
              score_of(l, temp,
                       id % 4 == 0   ? word[0]
                       : id % 4 == 1 ? word[1]
                       : id % 4 == 2 ? word[2]
                                     : word[3]),
              (int32_t)id);
    }
    for (int i = t; i < p.n_blocks; i += 1024) b = join(b, row_best(p, at)[1 + i]);
    __syncthreads();
    b = block_best(b, f.best);
    if (t == 0) p.out[at] = b.id;
}

/* ---- launching ---- */

static int32_t blocks_of(int64_t n_vocab)
{
    return (int32_t)((n_vocab + SCAN - 1) / SCAN);
}

static size_t round256(size_t bytes)
{
    return (bytes + 255) & ~(size_t)255;
}

size_t cuda_pick_scratch(int32_t n, int64_t n_vocab)
{
    size_t rows = n < GREEDY_ROWS ? n : GREEDY_ROWS, listed = n < LIST_ROWS ? n : LIST_ROWS;
    return round256(rows * (blocks_of(n_vocab) + 1) * sizeof(struct best)) + FIXED +
           round256(listed * n_vocab * sizeof(float)) + round256(listed * n_vocab * sizeof(uint64_t));
}

static int check(struct cuda_backend *be, const struct kn_pick *p)
{
    const struct kn_sampler *s = &p->sampler;
    if (p->n < 1 || p->n_vocab < 1)
        return cuda_fail(be, KN_EINVAL, "pick: %d rows of %d logits", p->n, p->n_vocab);
    if (!(s->temp >= 0.0f) || s->temp - s->temp != 0.0f)
        return cuda_fail(be, KN_EINVAL, "pick: temperature %g (expected 0 or more)", (double)s->temp);
    if (!(s->top_p >= 0.0f && s->top_p <= 1.0f) || !(s->min_p >= 0.0f && s->min_p <= 1.0f))
        return cuda_fail(be, KN_EINVAL, "pick: top-p %g, min-p %g (expected 0 to 1)", (double)s->top_p,
                         (double)s->min_p);
    if (s->top_k < 0 || s->repeat_last < 0)
        return cuda_fail(be, KN_EINVAL, "pick: top-k %d, repeat-last %d (expected 0 or more)", s->top_k,
                         s->repeat_last);
    if (!(s->repeat_penalty > 0.0f) || s->repeat_penalty - s->repeat_penalty != 0.0f)
        return cuda_fail(be, KN_EINVAL, "pick: repeat penalty %g (expected more than 0)",
                         (double)s->repeat_penalty);
    return 0;
}

/* Greedy rows: the whole device, and a word a row that all blocks' best meet in: of the largest logit the
 * first id. Words and counters are zero between kernels. */
#define GREEDY 1024 /* logits a block */
static __device__ __forceinline__ unsigned long long greedy_key(float x, uint32_t id)
{
    const uint32_t u = __float_as_uint(__fadd_rn(x, 0.0f)); /* -0 and 0 tie */
    return (unsigned long long)(u >> 31 ? ~u : u | 0x80000000u) << 32 | ~id;
}
static __global__ void __launch_bounds__(256) pick_greedy(const pick p)
{
    __shared__ unsigned long long warp[8];
    __shared__ bool odd[8], last;
    const int row = blockIdx.y, t = threadIdx.x, lane = t % 32;
    const int32_t at = (int32_t)blockIdx.x * GREEDY + 4 * t;
    cuda_grid_start();
    const float *l = row_of(p, row);
    float x[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    if (((uintptr_t)l & 15) == 0 && at + 3 < p.n_vocab) {
        const float4 v = *(const float4 *)(l + at);
        x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    } else {
        for (int j = 0; j < 4; j++)
            if (at + j < p.n_vocab) x[j] = l[at + j];
    }
    unsigned long long best = 0;
    bool nan = false;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        nan |= x[j] != x[j];
        best = max(best, greedy_key(x[j], (uint32_t)(at + j)));
    }
    const uint32_t top = __reduce_max_sync(~0u, (uint32_t)(best >> 32));
    const uint32_t id = __reduce_max_sync(~0u, (uint32_t)(best >> 32) == top ? (uint32_t)best : 0u);
    nan = __any_sync(~0u, nan);
    if (lane == 0) warp[t / 32] = (unsigned long long)top << 32 | id, odd[t / 32] = nan;
    __syncthreads();
    if (t == 0) {
        for (int w = 1; w < 8; w++) {
            if (warp[w] > warp[0]) warp[0] = warp[w];
            odd[0] |= odd[w];
        }
        atomicMax(&p.key[row], odd[0] ? ~0ull : warp[0]); /* a NaN is above all */
        __threadfence();
        last = atomicAdd(&p.count[row], 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last || t >= 32) return;
    __threadfence();
    best = __ldcg(&p.key[row]);
    __syncwarp();
    const uint32_t high =
        (uint32_t)(best >> 32); /* of an infinity, or of NaN: above and below the finite ones */
    const bool bad = high >= 0xff800000u || high <= 0x007fffffu || (p.bad && p.bad[row]);
    const int32_t pick = bad ? KN_PICK_NAN : (int32_t) ~(uint32_t)best;
    if (lane == 0) {
        p.key[row] = 0;
        p.count[row] = 0;
        p.out[row] = pick;
    }
}

static dim3 greedy_grid(const struct pick *p)
{
    return dim3((unsigned)((p->n_vocab + GREEDY - 1) / GREEDY), (unsigned)p->n);
}
/* A token of the history outside the vocabulary gives KN_PICK_NAN in its row: the host checks ids before they
 * come here. */
int cuda_pick(struct kn_backend *kb, const struct kn_pick *a)
{
    struct cuda_backend *be = cuda_of(kb);
    int rc = check(be, a);
    if (rc) return rc;
    const struct kn_sampler *s = &a->sampler;
    const bool penalty = s->repeat_penalty != 1.0f && s->repeat_last > 0, sample = s->temp > 0.0f;
    const bool filters =
        sample && ((s->top_k > 0 && s->top_k < a->n_vocab) || s->top_p < 1.0f || s->min_p > 0.0f);
    const int32_t most = penalty || filters ? LIST_ROWS : GREEDY_ROWS;
    const int32_t rows = a->n < most ? a->n : most;
    char *at = (char *)be->scratch_rows;
    const size_t best_bytes = round256((size_t)rows * (blocks_of(a->n_vocab) + 1) * sizeof(struct best));
    const size_t row_bytes = round256((size_t)rows * a->n_vocab * sizeof(float));
    const size_t list_bytes = round256((size_t)rows * a->n_vocab * sizeof(uint64_t));
    const size_t need = best_bytes + FIXED + (penalty || filters ? row_bytes + list_bytes : 0);
    if (need > be->scratch_rows_bytes)
        return cuda_fail(be, KN_EINVAL,
                         "pick: %d rows of %d logits want %zu bytes of scratch, %zu are reserved", a->n,
                         a->n_vocab, need, be->scratch_rows_bytes);
    struct pick p = {};
    p.n_vocab = a->n_vocab, p.n_blocks = blocks_of(a->n_vocab), p.s = *s, p.history = a->history;
    p.best = (struct best *)at, p.count = be->count + 1, p.key = (unsigned long long *)(be->count + 512);
    p.bad = penalty ? (int32_t *)(at + best_bytes) : NULL;
    p.bound = (struct bound *)(at + best_bytes + 256);
    p.mass = (unsigned long long *)(at + best_bytes + 256 + 1024);
    p.ids = (unsigned *)(p.mass + LIST_ROWS * BINS);
    p.copy = penalty ? (float *)(at + best_bytes + FIXED) : NULL;
    p.list = filters ? (uint64_t *)(at + best_bytes + FIXED + row_bytes) : NULL;
    for (int32_t i = 0; i < a->n && rc == 0; i += rows) {
        p.n = a->n - i < rows ? a->n - i : rows;
        p.logits = a->logits + (int64_t)i * a->n_vocab, p.pos = a->pos + i, p.out = a->out + i;
        const dim3 scan((unsigned)p.n_blocks, (unsigned)p.n), each((unsigned)p.n), block(256);
        if (penalty) rc = cuda_check(be, "pick", cuda_launch(be, pick_copy, scan, block, 0, p));
        if (penalty && rc == 0)
            rc = cuda_check(be, "pick", cuda_launch(be, pick_penalise, each, block, 0, p));
        if (rc) return rc;
        void (*one)(pick) = !sample ? pick_greedy : filters ? pick_scan<WANT_TOP> : pick_scan<WANT_SAMPLE>;
        rc = cuda_check(be, "pick", cuda_launch(be, one, sample ? scan : greedy_grid(&p), block, 0, p));
        if (filters && rc == 0)
            rc = cuda_check(be, "pick", cuda_launch(be, pick_hist, scan, dim3(1024), 0, p));
        if (filters && rc == 0) rc = cuda_check(be, "pick", cuda_launch(be, pick_list, scan, block, 0, p));
        if (filters && rc == 0)
            rc = cuda_check(be, "pick", cuda_launch(be, pick_filter, each, dim3(1024), 0, p));
    }
    return rc;
}
