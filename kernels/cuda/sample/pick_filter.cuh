/* sample/pick_filter.cuh - top-k, top-p and min-p without sorting (pick.cu has the way): pick_hist,
 * pick_list, pick_filter; and pick_logp. */
#ifndef DFLASH_CUDA_SAMPLE_PICK_FILTER_CUH
#define DFLASH_CUDA_SAMPLE_PICK_FILTER_CUH

#include "pick.cuh"

DEV uint64_t key_of(float l, uint32_t id)
{
    uint32_t u = __float_as_uint(__fadd_rn(l, 0.0f)); /* -0 and 0 tie */
    u = u >> 31 ? u : ~u & 0x7fffffffu;
    return (uint64_t)u << 32 | id;
}
DEV float logit_of(uint64_t key)
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
DEV void tally(unsigned *count, unsigned long long *masses, int bin, unsigned long long mass)
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
    float top, temp, inverse; /* temp: what masses are by; the buckets are by the sampler's own */
};

DEV row make_row(const pick &p, int i, float temp)
{
    row r = {row_of(p, i), row_best(p, i)->top, temp, __fdiv_rn(1.0f, p.s.temp)};
    if (!(r.inverse < 3e38f)) r.inverse = 3e38f;
    return r;
}
/* What top-p measures by, and min-p. */
DEV float temp_p(const pick &p)
{
    return p.s.order & KN_ORDER_TOP_P_RAW ? 1.0f : p.s.temp;
}
DEV float temp_m(const pick &p)
{
    return p.s.order & KN_ORDER_MIN_P_RAW ? 1.0f : p.s.temp;
}

/* Does min-p drop a logit? */
struct min_p {
    double temp, top, log_p;
};
DEV min_p make_min_p(const pick &p, float top)
{
    const double temp = (double)temp_m(p);
    return {temp, __ddiv_rn((double)top, temp), p.s.min_p > 0.0f ? dev_log((double)p.s.min_p) : -INFINITY};
}
DEV bool below(const min_p &m, float l)
{
    return __dsub_rn(__ddiv_rn((double)l, m.temp), m.top) < m.log_p;
}
/* Buckets of a 64th of a nat below the top for 16 nats, then of a quarter; the last holds the rest. */
DEV int bin_at(float nats)
{
    return (int)(nats < 16.0f ? __fmul_rn(nats, 64.0f)
                              : fminf(__fmaf_rn(nats, 4.0f, 960.0f), (float)(BINS - 1)));
}
DEV int bin_of(const row &r, float l)
{
    return bin_at(__fmul_rn(__fsub_rn(r.top, l), r.inverse));
}
DEV unsigned long long mass_of(const row &r, float l)
{
    return __float2ull_rn(__fmul_rn(dev_exp(__fdiv_rn(__fsub_rn(l, r.top), r.temp)), UNIT));
}
DEV unsigned long long limit_of(const pick &p, unsigned long long total)
{
    const unsigned long long limit = (unsigned long long)ceil(__dmul_rn((double)p.s.top_p, (double)total));
    return limit < 1 ? 1 : limit;
}
DEV bool wants_k(const pick &p)
{
    return p.s.top_k > 0 && p.s.top_k < p.n_vocab;
}

/* Noise and score of id i, to b. */
DEV void offer_id(struct best &b, const pick &p, uint32_t position, float l, uint32_t i)
{
    uint32_t word[4];
    philox(p.s.seed, position, i / 4, word);
    const uint32_t mine = i % 4 == 0 ? word[0] : i % 4 == 1 ? word[1] : i % 4 == 2 ? word[2] : word[3];
    offer(b.score, b.id, score_of(l, (double)p.s.temp, mine), (int32_t)i);
}

static __global__ void __launch_bounds__(1024) pick_hist(const pick p)
{
    __shared__ struct filter f;
    cuda_grid_start();
    const int t = threadIdx.x, at = blockIdx.y;
    const bool top_k = wants_k(p), top_p = p.s.top_p < 1.0f;
    const row r = make_row(p, at, temp_p(p));
    unsigned *ids = p.ids + (int64_t)at * BINS;
    unsigned long long *mass = p.mass + (int64_t)at * BINS;
    if (row_best(p, at)->nan) return; /* pick_scan has said so */
    const min_p m = make_min_p(p, r.top);
    const bool min_first = p.s.order & KN_ORDER_MIN_P_FIRST;
    if (top_k || top_p)
        for (int j = 0; j < SCAN / 1024; j++) {
            const int32_t i = blockIdx.x * SCAN + j * 1024 + t;
            const float l = i < p.n_vocab ? r.l[i] : -INFINITY;
            const bool in = l > -INFINITY;
            const bool counts = in && top_p && !(min_first && below(m, l));
            tally(ids, mass, in ? bin_of(r, l) : -1, counts ? mass_of(r, l) : 0);
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
    const row r = make_row(p, at, temp_p(p));
    const int bin = p.bound[at].bin;
    const bool certain = !(p.bound[at].enough && p.s.top_p < 1.0f);
    const min_p m = make_min_p(p, r.top);
    const double nats = -m.log_p * m.temp / (double)p.s.temp; /* of min-p, in those of the buckets */
    const int deepest =
        p.s.min_p > 0.0f ? bin_at((float)(nats * 1.0001 + 0.01)) : BINS; /* min-p keeps nothing below */
    const uint32_t position = (uint32_t)p.pos[at] + 1;
    uint64_t *list = p.list + (int64_t)at * p.n_vocab;
    struct best b = {0.0, -INFINITY, -1, -1, 0};
    for (int j = 0; j < SCAN / 256; j++) {
        const int32_t i = blockIdx.x * SCAN + j * 256 + threadIdx.x;
        const float l = i < p.n_vocab ? r.l[i] : -INFINITY;
        const int mine = l > -INFINITY ? bin_of(r, l) : BINS + 1;
        if (certain && mine < bin && mine <= deepest && !below(m, l))
            offer_id(b, p, position, l, (uint32_t)i);
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
    const row r = make_row(p, at, temp_p(p));
    const min_p m = make_min_p(p, r.top);
    const uint64_t *list = p.list + (int64_t)at * p.n_vocab;
    const struct bound known = p.bound[at];
    const unsigned n = known.listed;
    const bool top_p = p.s.top_p < 1.0f;
    uint64_t most = ~(uint64_t)0;
    if (known.enough && !top_p) {
        most = find_key(f, r, list, n, false, (unsigned long long)p.s.top_k - known.ids_before, most);
    } else if (known.enough) { /* the list holds the buckets before, too */
        const bool min_first = p.s.order & KN_ORDER_MIN_P_FIRST;
        unsigned long long kept = 0;
        most = find_key(f, r, list, n, false, (unsigned long long)p.s.top_k, most);
        for (unsigned i = t; i < n; i += 1024)
            if (list[i] <= most && !(min_first && below(m, logit_of(list[i]))))
                kept += mass_of(r, logit_of(list[i]));
        kept = p.s.order & KN_ORDER_TOP_P_FIRST ? known.total : block_total(f, kept);
        most = find_key(f, r, list, n, true, limit_of(p, kept), most);
    } else if (top_p) {
        most = find_key(f, r, list, n, true, limit_of(p, known.total) - known.before, most);
    }
    const uint32_t position = (uint32_t)p.pos[at] + 1;
    struct best b = {0.0, -INFINITY, -1, -1, 0};
    for (unsigned i = t; i < n; i += 1024) {
        const uint64_t key = list[i];
        const uint32_t id = (uint32_t)key;
        const float l = logit_of(key);
        if (key > most || below(m, l)) continue;
        offer_id(b, p, position, l, id);
    }
    for (int i = t; i < p.n_blocks; i += 1024) b = join(b, row_best(p, at)[1 + i]);
    __syncthreads();
    b = block_best(b, f.best);
    if (t == 0) p.out[at] = b.id, p.most[at] = most;
}

/* How probable a sampled pick was: a second pass over the row, for what was kept is known only behind the
 * first. Weights are added as integers, in any order. */
static __global__ void __launch_bounds__(256) pick_logp(const pick p)
{
    __shared__ unsigned long long warp[8];
    cuda_grid_start();
    const int t = threadIdx.x, at = blockIdx.y;
    const int32_t id = p.out[at];
    if (id == KN_PICK_NAN) {
        if (blockIdx.x == 0 && t == 0) p.logp[at] = __int_as_float(0x7fc00000);
        return;
    }
    const row r = make_row(p, at, p.s.temp);
    const uint64_t most = p.list ? p.most[at] : ~(uint64_t)0;
    const min_p m = make_min_p(p, r.top);
    unsigned long long mass = 0;
    for (int j = 0; j < SCAN / 256; j++) {
        const int32_t i = blockIdx.x * SCAN + j * 256 + t;
        const float l = i < p.n_vocab ? r.l[i] : -INFINITY;
        if (!(l > -INFINITY) || key_of(l, (uint32_t)i) > most) continue;
        if (p.s.min_p > 0.0f && below(m, l)) continue;
        mass += mass_of(r, l);
    }
    for (int i = 16; i; i >>= 1) mass += __shfl_xor_sync(~0u, mass, i);
    if (t % 32 == 0) warp[t / 32] = mass;
    __syncthreads();
    if (t) return;
    for (int w = 1; w < 8; w++) mass += warp[w];
    atomicAdd(&p.key[at], mass);
    __threadfence();
    if (atomicAdd(&p.count[at], 1u) != gridDim.x - 1) return;
    __threadfence();
    const double all = __dmul_rn(__ull2double_rn(__ldcg(&p.key[at])), 0x1p-44);
    const double nats = __ddiv_rn(__dsub_rn((double)r.l[id], (double)r.top), (double)p.s.temp);
    p.key[at] = 0;
    p.count[at] = 0;
    p.logp[at] = __double2float_rn(__dsub_rn(nats, dev_log(all)));
}

#endif
