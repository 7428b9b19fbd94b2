/* attention/made.cuh - attention of some rows, up to 16, over few keys, whose rows were made before, in one
 * launch.
 *
 * attn_rows, a warp a head, makes what attention reads of what the projections left, which may be owed
 * (mm_owed.cu): it adds the slices, norms and rotates in the order of rope_store's kernel; queries become
 * fragments in memory, as the tensor operations want them, keys and values go to the ring. attn_made is
 * attn_places (attention/leaves.cuh) without these: a block copies its queries, so it may have two tiles,
 * which read a leaf's keys and values once. What is before pos[0] in the ring is asked for before the wait. A
 * weight or a result has attn_step's chain of operations. */
#include "leaves.cuh"

/* What attn_rows leaves of the queries of a tile: fragments [D / 16][part][lane], then what the scores are
 * multiplied by. */
template <int D> struct made {
    static constexpr int QUERY = places<D>::QUERY, BYTES = QUERY + TILE * 4;
};
DEV int made_at(const attn &a, int bytes, int tile, int kv_head)
{
    return (kv_head * ((a.n * a.n_rep + TILE - 1) / TILE) + tile) * bytes;
}

/* ---- rows ---- */

/* Where they come from: matrix after matrix, [slices][n][width] each, or the rows themselves (slices: 1). A
 * head of q, k or v is made; of others the sums are written. */
struct made_source {
    const float *from[MM_WIDTH_MAX];
    float *out[MM_WIDTH_MAX];                                            /* NULL: q, k or v */
    int32_t heads[MM_WIDTH_MAX], role[MM_WIDTH_MAX], count, slices, all; /* heads of D columns, of all */
    unsigned char *made;
};
enum { MADE_QUERY, MADE_KEY, MADE_VALUE, MADE_BOTH };
#define ROWS_WARPS 2 /* of a block of attn_rows: 8,192 registers, which a product's block leaves */

/* The query of row r of a tile as fragments: two columns a word, which a pair of lanes have. */
template <int D, bool BF16> DEV void put_made(const attn &a, const head_of<D> &h, unsigned char *to, int r)
{
    constexpr int W = D / 32;
    const int lane = threadIdx.x % 32, odd = lane % 2;
    unsigned top = 0;
#pragma unroll
    for (int j = 0; j < W; j++) top = max(top, __float_as_uint(h.x[j]) & 0x7fffffff);
    top = __reduce_max_sync(~0u, top);
    int e = (int)(top >> 23) - 126; /* |x| < 2^e */
    e = top >= 0x7f800000 || e < -100 ? 0 : e;
    const float down = __int_as_float((127 - e) << 23);
    if (lane == 0)
        *(float *)(to + made<D>::QUERY + 4 * r) =
            __fmul_rn(__fmul_rn(a.scale, 0x1.715476p+0f), __int_as_float((127 + e) << 23));
    const int at = lane - odd + 32 * odd; /* my first column */
    uint16_t *word =
        (uint16_t *)to + r % 8 * 32 + r / 8 % 2 * 2 + at / 16 * 512 + at % 8 / 2 * 8 + at % 16 / 8 * 4;
#pragma unroll
    for (int j = 0; j < W; j += 2) {
        const float other = __shfl_xor_sync(~0u, odd ? h.x[j] : h.x[j + 1], 1), u = odd ? other : h.x[j],
                    w = odd ? h.x[j + 1] : other;
        uint32_t part[2];
        parts_of<2, BF16>(__fmul_rn(u, down), __fmul_rn(w, down), part);
        *(uint32_t *)(word + j * 1024) = part[0];
        *(uint32_t *)(word + j * 1024 + 256) = part[1];
    }
}

template <int D, bool BF16>
__global__ void __launch_bounds__(32 * ROWS_WARPS, 8)
    attn_rows(const __grid_constant__ attn a, const __grid_constant__ made_source s)
{
    constexpr int W = D / 32;
    const int lane = threadIdx.x % 32, item = (int)blockIdx.x * ROWS_WARPS + (int)threadIdx.x / 32,
              j = blockIdx.y;
    cuda_grid_early();
    STAMP(0);
    int m = 0, head = item;
    while (m < s.count && head >= s.heads[m]) head -= s.heads[m++];
    const int role = m < s.count ? s.role[m] : 0;
    const bool plain = m < s.count && s.out[m];
    const float *norm = plain ? NULL : role == MADE_QUERY ? a.q_norm : a.k_norm;
    head_of<D> h;
#pragma unroll
    for (int k = 0; k < W; k++) h.g[k] = norm && role != MADE_VALUE ? __ldg(norm + lane + 32 * k) : 1.0f;
    const int some = m < s.count ? m : 0, width = s.heads[some] * D, step = a.n * width, slices = s.slices,
              half = plain || role == MADE_VALUE ? 0 : a.half;
    const float *p = s.from[some] + j * width + head * D + lane;
    const float2 *table = (const float2 *)a.table + j * a.half + lane;
    cuda_grid_wait();
    STAMP(2);
    if (m == s.count) return;
    const int pos = a.pos[0] + j;
    float u[4][W];
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (i < slices)
#pragma unroll
            for (int k = 0; k < W; k++) u[i][k] = __ldcg(p + i * step + 32 * k);
#pragma unroll
    for (int k = 0; k < W / 2; k++)
        if (32 * k < half) h.cs[k] = __ldcg(table + 32 * k);
#pragma unroll
    for (int k = 0; k < W; k++) h.x[k] = slices > 1 ? __fadd_rn(0.0f, u[0][k]) : u[0][k];
#pragma unroll 1
    for (int left = slices;;) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (i < left && (i || left < slices))
#pragma unroll
                for (int k = 0; k < W; k++) h.x[k] = __fadd_rn(h.x[k], u[i][k]);
        left -= 4, p += 4 * step;
        if (left <= 0) break;
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (i < left)
#pragma unroll
                for (int k = 0; k < W; k++) u[i][k] = __ldcg(p + i * step + 32 * k);
    }
    STAMP(3);
    if (plain) {
#pragma unroll
        for (int k = 0; k < W; k++) s.out[m][j * width + head * D + lane + 32 * k] = h.x[k];
        return;
    }
    const int64_t at = ((int64_t)(pos < a.cap ? pos : pos % a.cap) * a.n_kv + head) * D;
    if (role >= MADE_VALUE) {
        head_of<D> v = h;
        if (role == MADE_BOTH)
#pragma unroll
            for (int k = 0; k < W; k++) v.g[k] = 1.0f;
        v.turn(a, a.v_norm, false);
        v.template put<BF16>((uint16_t *)a.v + at);
        if (role == MADE_VALUE) return;
    }
    h.turn(a, norm != NULL, a.half);
    if (role == MADE_QUERY) {
        const int kv_head = head / a.n_rep, row = j * a.n_rep + head % a.n_rep;
        put_made<D, BF16>(a, h, s.made + made_at(a, made<D>::BYTES, row / TILE, kv_head), row % TILE);
        STAMP(4);
    } else {
        h.template put<BF16>((uint16_t *)a.k + at);
    }
}

/* ---- attention ---- */

template <int D, int TILES> struct made_places {
    using P1 = places<D>;
    static constexpr int LEAF = P1::LEAF, WARPS = 8, THREADS = 32 * WARPS,
                         SIDE = WARPS / TILES; /* warps of a tile */
    static constexpr int KEYED = 4, KT = LEAF / 8 / KEYED, CT = D / 8 / SIDE;
    static constexpr int PITCH = P1::PITCH, SLOT = P1::SLOT, QUERY = P1::QUERY, WEIGHT = P1::WEIGHT;
    static constexpr int TOPS = TILE * KEYED * 4, SUMS = TILE * 4 * KEYED * 4;
    static constexpr int FIXED =
        (TILES * (QUERY + WEIGHT + TOPS + SUMS + TILE * (4 + 8)) + 8 * 3 + 127) / 128 * 128;
    static constexpr int BYTES = FIXED + 2 * SLOT;
};

/* Of the keys p0 .. p0 + KEYS - 1 those whose values at my columns, COLS of them, hold a NaN or Inf: a bit
 * each. */
template <bool BF16, int KEYS, int COLS, int PITCH> DEV uint64_t odd_values(const uint16_t *v)
{
    uint64_t bits = 0;
#pragma unroll 1
    for (int part = 0; part < KEYS / 32; part++) {
        const uint4 *row = (const uint4 *)(v + (part * 32 + threadIdx.x % 32) * PITCH);
        bool bad = false;
#pragma unroll 1
        for (int i = 0; i < COLS / 8; i++) {
            uint4 x = row[i];
            bad |= make_finite<BF16>(x);
        }
        bits |= (uint64_t)__ballot_sync(~0u, bad) << (32 * part);
    }
    return bits;
}

/* acc = the weights of 16-key steps [s, s_to) times the values at my columns; clean: NaN and Inf among these
 * count as zeros. */
template <class F, bool BF16>
DEV void weigh_steps(float acc[F::CT][4], const uint4 *weights, unsigned at_values, int s, int s_to,
                     bool clean)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int t = 0; t < F::CT; t++) acc[t][0] = acc[t][1] = acc[t][2] = acc[t][3] = 0.0f;
#pragma unroll 1
    for (; s < s_to; s++) {
        const uint4 f0 = weights[s * 64 + lane], f1 = weights[s * 64 + 32 + lane];
        const uint32_t part[2][4] = {{f0.x, f0.y, f0.z, f0.w}, {f1.x, f1.y, f1.z, f1.w}};
#pragma unroll
        for (int j = 0; j < F::CT / 2; j++) {
            uint4 b = load_transposed(at_values + (unsigned)(s * 16 * F::PITCH + j * 16) * 2);
            if (clean) make_finite<BF16>(b);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                mma<BF16>(acc[2 * j], part[i], b.x, b.y);
                mma<BF16>(acc[2 * j + 1], part[i], b.z, b.w);
            }
        }
    }
}
/* The same where some row sees a key that another of the tile does not: a NaN there must not meet its zero
 * weight. One shows in what came out, and then all is done again without. D / 8 columns each, as attn_step
 * has them. */
template <class F, bool BF16, int D>
DEV void weigh_ragged(float acc[F::CT][4], const uint4 *weights, const unsigned char *values,
                      unsigned at_values, int s, int s_to, int side, int p0, const struct span sees[2])
{
    constexpr int PARTS = F::CT * 64 / D;
    float odd[4] = {};
#pragma unroll
    for (int t = 0; t < F::CT; t++)
#pragma unroll
        for (int e = 0; e < 4; e++) odd[e] = __fmaf_rn(acc[t][e], 0.0f, odd[e]);
    if (!__any_sync(~0u, !(odd[0] + odd[1] + odd[2] + odd[3] == 0.0f))) return;
    weigh_steps<F, BF16>(acc, weights, at_values, s, s_to, true);
    const uint16_t *const mine = (const uint16_t *)values + side * F::CT * 8;
    const uint64_t b0 = bits_of(sees[0], p0), b1 = bits_of(sees[1], p0);
    uint64_t bad[2];
#pragma unroll 1
    for (int i = 0; i < PARTS; i++) {
        const uint64_t here = odd_values<BF16, F::LEAF, D / 8, F::PITCH>(mine + i * (D / 8));
        bad[1] = here, bad[0] = i ? bad[0] : here;
    }
#pragma unroll
    for (int t = 0; t < F::CT; t++) {
        const uint64_t here = bad[t * PARTS / F::CT];
        if (here & b0) acc[t][0] = acc[t][1] = __int_as_float(0x7fc00000);
        if (here & b1) acc[t][2] = acc[t][3] = __int_as_float(0x7fc00000);
    }
}

template <int D, bool BF16, int TILES>
__global__ void __launch_bounds__(made_places<D, TILES>::THREADS, 2) attn_made(const __grid_constant__ attn a)
{
    using F = made_places<D, TILES>;
    constexpr int LEAF = F::LEAF, PITCH = F::PITCH, WARPS = F::WARPS, SIDE = F::SIDE, CT = F::CT, KEYS = 0,
                  VALUES = 1, QUERIES = 2;
    extern __shared__ __align__(128) unsigned char raw[];
    const int lane = threadIdx.x % 32, w = threadIdx.x / 32, g = lane / 4, c = lane % 4;
    const int m = w / SIDE, side = w % SIDE; /* my tile of the block's, my share of it */
    uint4 *const queries = (uint4 *)(raw + m * F::QUERY), *const weights = (uint4 *)(raw + TILES * F::QUERY +
                                                                                     m * F::WEIGHT);
    float *const tops = (float *)(raw + TILES * (F::QUERY + F::WEIGHT) + m * F::TOPS),
                 *const sums = (float *)(raw + TILES * (F::QUERY + F::WEIGHT + F::TOPS) + m * F::SUMS),
                 *const all_units = (float *)(raw + TILES * (F::QUERY + F::WEIGHT + F::TOPS + F::SUMS)),
                 *const units = all_units + m * TILE;
    int2 *const all_spans = (int2 *)(all_units + TILES * TILE), *const spans = all_spans + m * TILE;
    const unsigned bars = shared_at(all_spans + TILES * TILE); /* of 8 bytes: keys, values, queries */
    unsigned char *const keys = raw + F::FIXED, *const values = keys + F::SLOT;
    touch_arguments(a);
    if (threadIdx.x < 3) cluster_bar_init(bars + 8 * threadIdx.x);
    cuda_grid_early();
    __syncthreads(); /* barriers are there */
    STAMP(0);
    if (!a.early) cuda_grid_wait();
    const int first_tile = a.tile0 + (int)blockIdx.x * TILES, tile = first_tile + m, kv_head = blockIdx.y,
              rank = blockIdx.z;
    const int pos0 = a.pos[0], bound = a.first ? *a.first : 0;
    const struct span seen = visible_any(a, first_tile, TILES, pos0, bound);
    const struct units u = units_of<D>(a, seen);
    const int per = units_a_block(a, u), busy = max((u.count + per - 1) / per, 1); /* blocks at work */
    if (rank >= busy) return;
    const int from = u.first + rank * per, to = min(from + per, u.first + u.count);
    const int rows_left = a.n * a.n_rep - first_tile * TILE, real = min(TILE, rows_left - m * TILE),
              stride = a.n_kv * D;
    /* All warps ask for those keys (1), values (2) or both (3) of a leaf that lie in [lo, hi). */
    const auto ask = [&](int leaf, int lo, int hi, int which) {
        const int p0 = leaf * LEAF, end = min(hi - p0, LEAF), both = which == 3;
        const bool value = both ? lane % 2 : which == 2;
#pragma unroll 1
        for (int k = max(lo - p0, 0) + w + WARPS * (lane >> both); k < end; k += WARPS * (32 >> both)) {
            const int p = p0 + k;
            const uint16_t *const from_ring = (const uint16_t *)(value ? a.v : a.k) +
                                              (int64_t)(p < a.cap ? p : p % a.cap) * stride + kv_head * D;
            copy_counted(shared_at(value ? values : keys) + (unsigned)(k * PITCH * 2), from_ring, 2 * D,
                         bars + 8 * (unsigned)value);
        }
    };
    const auto expect =
        [&](int leaf,
            int which) { /* what comes of them */
                         const int p0 = leaf * LEAF;
                         if (threadIdx.x < 2 && which >> threadIdx.x & 1)
                             cluster_bar_expect(bars + 8 * threadIdx.x,
                                                (unsigned)max(min(p0 + LEAF, seen.hi) - max(p0, seen.lo), 0) *
                                                    2 * D);
        };
    /* Values that nobody sees in steps of which somebody sees some weigh nothing: no NaN among them. */
    const auto clear = [&](int leaf) {
        const int p0 = leaf * LEAF, lo = max(seen.lo - p0, 0), hi = min(seen.hi - p0, LEAF);
        if (lo % 16 == 0 && hi % 16 == 0) return;
#pragma unroll 1
        for (int i = threadIdx.x; i < 32 * (D / 8); i += F::THREADS) { /* of the first step, of the last */
            const int k = i / (D / 8), key = k < 16 ? lo / 16 * 16 + k : (hi - 1) / 16 * 16 + k - 16;
            if (key < lo || key >= hi)
                *((uint4 *)(values + key * PITCH * 2) + i % (D / 8)) = make_uint4(0, 0, 0, 0);
        }
    };
    STAMP(1);
    const int there = a.early ? min(pos0, seen.hi) : seen.lo; /* keys before were there before this pass */
    if (from < to) {
        expect(to - 1, 3);
        ask(to - 1, seen.lo, there, 3);
        clear(to - 1);
    }
    if (threadIdx.x < TILES * TILE) {
        const int row = row_of(a, first_tile * TILE + (int)threadIdx.x);
        const struct span v = row < a.n ? visible(a, row, pos0, bound) : span{0, 0};
        all_spans[threadIdx.x] = make_int2(v.lo, v.hi);
    }
    const struct span full = visible_all(a, tile, pos0, bound);
    if (a.early) cuda_grid_wait();
    STAMP(2);
    if (w == 0) {
        const int some = min((rows_left + TILE - 1) / TILE, TILES);
        if (lane == 0) cluster_bar_expect(bars + 8 * QUERIES, (unsigned)(some * made<D>::BYTES));
        __syncwarp();
        if (lane < some) {
            const unsigned char *src =
                (const unsigned char *)a.q + made_at(a, made<D>::BYTES, first_tile + lane, kv_head);
            copy_counted(shared_at(raw + lane * F::QUERY), src, F::QUERY, bars + 8 * QUERIES);
            copy_counted(shared_at(all_units + lane * TILE), src + F::QUERY, TILE * 4, bars + 8 * QUERIES);
        }
    }
    if (from < to) ask(to - 1, max(there, seen.lo), seen.hi, 3);
    __syncthreads(); /* spans and zeros are there */
    cluster_bar_wait(bars + 8 * QUERIES);
    STAMP(3);
#pragma unroll 1
    for (int leaf = to - 1, turn = 0; leaf >= from; leaf--, turn++) {
        const int p0 = leaf * LEAF;
        cluster_bar_wait(bars + 8 * KEYS, turn & 1);
        if (turn == 0) STAMP(4);
        float x[F::KT][4] = {}, top[2];
        const int my_keys = p0 + side * F::KT * 8;
        if (side < F::KEYED && my_keys < seen.hi && my_keys + F::KT * 8 > seen.lo)
            scores<D, BF16, F::KT, PITCH, 2>(x, queries, shared_at(keys) + side * F::KT * 8 * PITCH * 2);
        const int2 s0 = spans[g], s1 = spans[g + 8];
        const struct span sees[2] = {{s0.x, s0.y}, {s1.x, s1.y}};
        const float unit[2] = {units[g], units[g + 8]};
        side_weights<F, BF16, WARPS>(x, top, unit, sees, p0, 0, side, tops, sums,
                                     weights); /* all have met: the keys are done with */
        if (leaf > from) {
            expect(leaf - 1, 1);
            ask(leaf - 1, seen.lo, seen.hi, 1);
        }
        meet_side<SIDE>(1 + m); /* weights and sums are here */
        if (turn == 0) STAMP(5);
        const auto place = [&](int r) {
            return place_of(a, places<D>::STRIPS, tile, kv_head, (r * D + side * CT * 8) / 256,
                            leaf - u.first);
        };
        if (side * CT * 8 % 256 == 0) { /* a strip's first columns: its tops are there before the values */
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int r = g + 8 * half;
                const float sum = side_sum(sums, r);
                if (r < real && c == 0)
                    place_put(place(r) + 256 + (D < 256 ? 2 * (r % 2) : 0), top[half], sum);
            }
        }
        cluster_bar_wait(bars + 8 * VALUES, turn & 1);
        float acc[CT][4];
        const int s_from = max(seen.lo - p0, 0) / 16, s_to = (min(seen.hi - p0, LEAF) + 15) / 16;
        const unsigned at_values =
            shared_at(values) +
            (unsigned)((lane % 8 + lane / 8 % 2 * 8) * PITCH + lane / 16 * 8 + side * CT * 8) * 2;
        weigh_steps<F, BF16>(acc, weights, at_values, s_from, s_to, false);
        if ((full.lo > seen.lo && p0 < full.lo) || (full.hi < seen.hi && p0 + LEAF > full.hi))
            weigh_ragged<F, BF16, D>(acc, weights, values, at_values, s_from, s_to, side, p0, sees);
        if (turn == 0) STAMP(6);
        if (leaf > from) {
            __syncthreads(); /* values are done with */
            clear(leaf - 1);
            shared_fence(); /* before copies to where they were read, or cleared */
            __syncthreads();
            expect(leaf - 1, 2);
            ask(leaf - 1, seen.lo, seen.hi, 2);
        }
        put_results<D, CT>(acc, real, side * CT * 8, place);
    }
    STAMP(7);
    __syncthreads(); /* slots are done with */
    constexpr int STRIPS = places<D>::STRIPS;
    const int strips = (min(rows_left, TILES * TILE) * D + 255) / 256,
              shares = min((strips - rank + busy - 1) / busy, WARPS / 2),
              at_once = min(32, 2 * F::SLOT / (1024 * max(shares, 1)));
#pragma unroll 1
    for (int strip = rank + busy * (w / 2); strip < strips; strip += busy * (WARPS / 2))
        add_strip<D>(a, (float4 *)keys + w / 2 * at_once * 64 + threadIdx.x % 64, at_once,
                     first_tile + strip / STRIPS, kv_head, strip % STRIPS,
                     min(TILE, rows_left - strip / STRIPS * TILE), u.first, u.count);
    STAMP(8);
}
