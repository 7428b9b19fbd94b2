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
 * bits.
 *
 * How probable a pick was costs nothing where nobody asks. A greedy row adds up its weights on the way: no
 * logit is read again, 8 bytes for 1,024 are written and read. A sampled row is read again by pick_logp, 0.6
 * MB at 151,936 from the L2 cache (9.1 MB for 15 rows). */
#include "pick_filter.cuh"

/* ---- biases and penalties: a copy of the rows, then its ids ---- */

static __global__ void __launch_bounds__(256) pick_copy(const pick p)
{
    cuda_grid_start();
    const int64_t row = (int64_t)blockIdx.y * p.n_vocab;
    for (int32_t i = blockIdx.x * SCAN + threadIdx.x; i < p.n_vocab && i < (int32_t)(blockIdx.x + 1) * SCAN;
         i += 256)
        p.copy[row + i] = p.logits[row + i];
}

static __host__ __device__ __forceinline__ bool penalises(const struct kn_sampler &s)
{
    return (s.repeat_penalty != 1.0f || s.presence != 0.0f || s.frequency != 0.0f) && s.repeat_last > 0;
}

/* The token at position i of the history of the block's row. */
static __device__ __forceinline__ int32_t past(const pick &p, int64_t i)
{
    const struct kn_tree *t = p.tree;
    return t && i >= t->pos[0] ? t->ids[t->path[p.row0 + blockIdx.x][i - t->pos[0]]] : p.history[i];
}

/* A block a row. Ids of the window are counted; the thread that takes a count away changes the id, once. */
static __global__ void __launch_bounds__(256) pick_change(const pick p)
{
    cuda_grid_start();
    const int64_t row = (int64_t)blockIdx.x * p.n_vocab, last = p.pos[blockIdx.x];
    int64_t from = last - p.s.repeat_last + 1;
    from = !penalises(p.s) ? last + 1 : from < 0 ? 0 : from;
    uint32_t *times = p.times + row;
    bool bad = false;
    for (int32_t i = threadIdx.x; i < p.s.n_bias; i += 256) {
        const int32_t id = p.s.bias[i].id;
        if (id < 0 || id >= p.n_vocab)
            bad = true;
        else
            p.copy[row + id] = __fadd_rn(p.copy[row + id], p.s.bias[i].add);
    }
    for (int64_t i = from + threadIdx.x; i <= last; i += 256) {
        const int32_t id = past(p, i);
        if (id < 0 || id >= p.n_vocab)
            bad = true;
        else
            times[id] = 0;
    }
    bad = __syncthreads_or(bad);
    if (threadIdx.x == 0) p.bad[blockIdx.x] = bad;
    if (bad) return;
    for (int64_t i = from + threadIdx.x; i <= last; i += 256) atomicAdd(&times[past(p, i)], 1u);
    __syncthreads();
    for (int64_t i = from + threadIdx.x; i <= last; i += 256) {
        const int32_t id = past(p, i);
        const uint32_t n = atomicExch(&times[id], 0u);
        if (!n) continue;
        float l = p.copy[row + id];
        l = l > 0.0f ? __fdiv_rn(l, p.s.repeat_penalty) : __fmul_rn(l, p.s.repeat_penalty);
        p.copy[row + id] =
            __fsub_rn(l, __fadd_rn(__fmul_rn(__int2float_rn((int)n), p.s.frequency), p.s.presence));
    }
}

/* ---- one pass ---- */

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
    b = warp_best(b);
    b.nan |= !isfinite(b.top) || (p.bad && p.bad[row]);
    if (threadIdx.x == 0) {
        p.count[row] = 0;
        *row_best(p, row) = b;
        p.out[row] = b.nan ? KN_PICK_NAN : WANT == WANT_SAMPLE ? b.id : b.top_id;
    }
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

/* What the blocks of rows leave: a best each, or of pick_greedy, whose blocks are SCAN / GREEDY times as
 * many, a part each. */
#define GREEDY 1024 /* logits a block of pick_greedy */
static size_t left_bytes(size_t rows, int64_t n_vocab)
{
    const size_t best = (blocks_of(n_vocab) + 1) * sizeof(struct best),
                 part = (size_t)blocks_of(n_vocab) * (SCAN / GREEDY) * sizeof(float2);
    return round256(rows * (best > part ? best : part));
}

size_t cuda_pick_scratch(int32_t n, int64_t n_vocab)
{
    size_t rows = n < GREEDY_ROWS ? n : GREEDY_ROWS, listed = n < LIST_ROWS ? n : LIST_ROWS;
    const size_t pick = left_bytes(rows, n_vocab) + FIXED + round256(listed * n_vocab * sizeof(float)) +
                        round256(listed * n_vocab * sizeof(uint64_t)),
                 top = cuda_top_scratch((int32_t)rows, n_vocab);
    return pick > top ? pick : top;
}

int cuda_check_sampler(struct cuda_backend *be, const char *op, const struct kn_sampler *s)
{
    if (!(s->temp >= 0.0f) || s->temp - s->temp != 0.0f)
        return cuda_fail(be, KN_EINVAL, "%s: temperature %g (expected 0 or more)", op, (double)s->temp);
    if (!(s->top_p >= 0.0f && s->top_p <= 1.0f) || !(s->min_p >= 0.0f && s->min_p <= 1.0f))
        return cuda_fail(be, KN_EINVAL, "%s: top-p %g, min-p %g (expected 0 to 1)", op, (double)s->top_p,
                         (double)s->min_p);
    if (s->top_k < 0 || s->repeat_last < 0)
        return cuda_fail(be, KN_EINVAL, "%s: top-k %d, repeat-last %d (expected 0 or more)", op, s->top_k,
                         s->repeat_last);
    if (!(s->repeat_penalty > 0.0f) || s->repeat_penalty - s->repeat_penalty != 0.0f)
        return cuda_fail(be, KN_EINVAL, "%s: repeat penalty %g (expected more than 0)", op,
                         (double)s->repeat_penalty);
    if (s->presence - s->presence != 0.0f || s->frequency - s->frequency != 0.0f)
        return cuda_fail(be, KN_EINVAL, "%s: penalties of presence %g and frequency %g (expected numbers)",
                         op, (double)s->presence, (double)s->frequency);
    if (s->order > 15 || s->n_bias < 0)
        return cuda_fail(be, KN_EINVAL, "%s: order %u, %d biases (expected 0 to 15, 0 or more)", op, s->order,
                         s->n_bias);
    return 0;
}

static int check(struct cuda_backend *be, const struct kn_pick *p)
{
    if (p->n < 1 || p->n_vocab < 1)
        return cuda_fail(be, KN_EINVAL, "pick: %d rows of %d logits", p->n, p->n_vocab);
    return cuda_check_sampler(be, "pick", &p->sampler);
}

/* Greedy rows: the whole device, and a word a row that all blocks' best meet in: of the largest logit the
 * first id. Words and counters are zero between kernels. */
DEV unsigned long long greedy_key(float x, uint32_t id)
{
    const uint32_t u = __float_as_uint(__fadd_rn(x, 0.0f)); /* -0 and 0 tie */
    return (unsigned long long)(u >> 31 ? ~u : u | 0x80000000u) << 32 | ~id;
}
DEV float greedy_logit(uint32_t high)
{
    return __uint_as_float(high >> 31 ? high & 0x7fffffffu : ~high);
}
template <bool LOGP> static __global__ void __launch_bounds__(256) pick_greedy(const pick p)
{
    __shared__ unsigned long long warp[8];
    __shared__ bool odd[8], last;
    __shared__ float sums[8];
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
    if (LOGP) { /* weights by the block's largest logit */
        uint32_t high = 0;
        float sum = 0.0f;
        for (int w = 0; w < 8; w++) high = max(high, (uint32_t)(warp[w] >> 32));
        for (int j = 0; j < 4; j++)
            if (x[j] > -INFINITY) sum = __fadd_rn(sum, dev_exp(__fsub_rn(x[j], greedy_logit(high))));
        for (int i = 16; i; i >>= 1) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, i));
        if (lane == 0) sums[t / 32] = sum;
        __syncthreads();
    }
    if (t == 0) {
        for (int w = 1; w < 8; w++) {
            if (warp[w] > warp[0]) warp[0] = warp[w];
            odd[0] |= odd[w];
            if (LOGP) sums[0] = __fadd_rn(sums[0], sums[w]);
        }
        if (LOGP)
            p.part[(int64_t)row * gridDim.x + blockIdx.x] =
                make_float2(greedy_logit((uint32_t)(warp[0] >> 32)), sums[0]);
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
    if (!LOGP) return;
    double mass = 0.0;
    for (unsigned i = lane; i < gridDim.x; i += 32) {
        const float2 b = __ldcg(&p.part[(int64_t)row * gridDim.x + i]);
        const float less = __fsub_rn(b.x, greedy_logit(high));
        if (b.y > 0.0f) mass = __dadd_rn(mass, __dmul_rn((double)b.y, (double)dev_exp(less)));
    }
    for (int i = 16; i; i >>= 1) mass = __dadd_rn(mass, __shfl_xor_sync(~0u, mass, i));
    if (lane == 0) p.logp[row] = bad ? __int_as_float(0x7fc00000) : __double2float_rn(-dev_log(mass));
}

static dim3 greedy_grid(const struct pick *p)
{
    return dim3((unsigned)((p->n_vocab + GREEDY - 1) / GREEDY), (unsigned)p->n);
}
/* A token of the history outside the vocabulary, or a bias of one, gives KN_PICK_NAN in its row: the host
 * checks ids before they come here. */
int cuda_pick(struct kn_backend *kb, const struct kn_pick *a)
{
    struct cuda_backend *be = cuda_of(kb);
    int rc = check(be, a);
    if (rc) return rc;
    const struct kn_sampler *s = &a->sampler;
    const bool changed = penalises(*s) || s->n_bias, sample = s->temp > 0.0f;
    const bool filters =
        sample && ((s->top_k > 0 && s->top_k < a->n_vocab) || s->top_p < 1.0f || s->min_p > 0.0f);
    const int32_t most = changed || filters ? LIST_ROWS : GREEDY_ROWS;
    const int32_t rows = a->n < most ? a->n : most;
    char *at = (char *)be->scratch_rows;
    const size_t best_bytes = left_bytes((size_t)rows, a->n_vocab);
    const size_t row_bytes = round256((size_t)rows * a->n_vocab * sizeof(float));
    const size_t list_bytes = round256((size_t)rows * a->n_vocab * sizeof(uint64_t));
    const size_t need = best_bytes + FIXED + (changed || filters ? row_bytes + list_bytes : 0);
    if (need > be->scratch_rows_bytes)
        return cuda_fail(be, KN_EINVAL,
                         "pick: %d rows of %d logits want %zu bytes of scratch, %zu are reserved", a->n,
                         a->n_vocab, need, be->scratch_rows_bytes);
    struct pick p = {};
    p.n_vocab = a->n_vocab, p.n_blocks = blocks_of(a->n_vocab), p.s = *s, p.history = a->history;
    p.tree = a->tree;
    p.best = (struct best *)at, p.part = (float2 *)at, p.count = be->count + 1,
    p.key = (unsigned long long *)(be->count + 512);
    p.bad = changed ? (int32_t *)(at + best_bytes) : NULL;
    p.bound = (struct bound *)(at + best_bytes + 256);
    p.most = (uint64_t *)(p.bound + LIST_ROWS);
    p.mass = (unsigned long long *)(at + best_bytes + 256 + 1024);
    p.ids = (unsigned *)(p.mass + LIST_ROWS * BINS);
    p.copy = changed ? (float *)(at + best_bytes + FIXED) : NULL;
    p.times = (uint32_t *)(at + best_bytes + FIXED + row_bytes);
    p.list = filters ? (uint64_t *)(at + best_bytes + FIXED + row_bytes) : NULL;
    for (int32_t i = 0; i < a->n && rc == 0; i += rows) {
        p.n = a->n - i < rows ? a->n - i : rows;
        p.row0 = i;
        p.logits = a->logits + (int64_t)i * a->n_vocab, p.pos = a->pos + i, p.out = a->out + i;
        p.logp = a->logp ? a->logp + i : NULL;
        const dim3 scan((unsigned)p.n_blocks, (unsigned)p.n), each((unsigned)p.n), block(256);
        if (changed) rc = cuda_check(be, "pick", cuda_launch(be, pick_copy, scan, block, 0, p));
        if (changed && rc == 0) rc = cuda_check(be, "pick", cuda_launch(be, pick_change, each, block, 0, p));
        if (rc) return rc;
        void (*one)(pick) = sample   ? filters ? pick_scan<WANT_TOP> : pick_scan<WANT_SAMPLE>
                              : p.logp ? pick_greedy<true>
                                     : pick_greedy<false>;
        rc = cuda_check(be, "pick", cuda_launch(be, one, sample ? scan : greedy_grid(&p), block, 0, p));
        if (filters && rc == 0)
            rc = cuda_check(be, "pick", cuda_launch(be, pick_hist, scan, dim3(1024), 0, p));
        if (filters && rc == 0) rc = cuda_check(be, "pick", cuda_launch(be, pick_list, scan, block, 0, p));
        if (filters && rc == 0)
            rc = cuda_check(be, "pick", cuda_launch(be, pick_filter, each, dim3(1024), 0, p));
        if (sample && p.logp && rc == 0)
            rc = cuda_check(be, "pick", cuda_launch(be, pick_logp, scan, block, 0, p));
    }
    return rc;
}
