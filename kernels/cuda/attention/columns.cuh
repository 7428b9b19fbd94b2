/* attention/columns.cuh - attention of some rows, up to 16, with heads of 512, whose rows were made before,
 * in one launch: weights by some blocks, their products with the values by others.
 *
 * A leaf's results of a tile are 32 KB, its weights 2: so weights cross memory, and nobody adds results of
 * others. A block that weighs has leaves of a kv head: their keys once, for all tiles, of which a warp has
 * one at a time, with the queries' fragments straight from memory (attn_rows). A block that adds has a tile
 * and 256 columns: values before the wait as far as its ring holds them, then leaf after leaf in attn_step's
 * order, node by node, and at the end a row's 256 results side by side, as the product that follows wants
 * them rounded. Weights and tops come in words that no arithmetic gives until they are written, of a place
 * for each reader, who puts the words back (attention/leaves.cuh). All blocks must be resident. A weight or a
 * result has attn_step's chain of operations.
 *
 * Wins: 31B at 16 rows 7.07 to 6.93 ms, a full layer 136.3 to 123.7 us. dflash-bench rows -m
 * 31b-q4_k_m.gguf --device cuda --rows 1,16 --context 512 */
#include "made.cuh"

struct column_form {
    static constexpr int D = 512, HALF = 256, LEAF = few<D>::LEAF, LEAVES = few<D>::LEAVES, WARPS = 8,
                         THREADS = 32 * WARPS;
    static constexpr int KEY_PITCH = D + 8, KEY_SLOT = LEAF * KEY_PITCH * 2, KEY_SLOTS = 4;
    static constexpr int PITCH = HALF + 8, SLOT = LEAF * PITCH * 2, SLOTS = 9; /* values */
    static constexpr int CT = HALF / 8 / WARPS; /* n8 tiles of a warp's output */
    static constexpr int WEIGHT = (LEAF / 16) * 2 * 512,
                         PLACE = WEIGHT + TILE * 8; /* bytes: fragments, (top, sum) */
    static constexpr int EACH = 3,
                         CHUNK = EACH * WARPS; /* leaves whose weights are here at once, of a warp */
    static constexpr int RECORDS = PLACE,
                         HERE = PLACE + TILE * 16 + 16; /* bytes of a leaf's here: then a record a row */
    static constexpr int RING = SLOTS * SLOT, BYTES = RING + CHUNK * HERE + 8 * SLOTS;
    static_assert(PLACE == ATTN_COLUMN_PLACE, "as attention_plan.h has it");
    static_assert(KEY_SLOTS * KEY_SLOT <= RING && TILE * (HALF + 1) * 4 <= RING, "a ring for both");
};

DEV unsigned char *column_place(const attn &a, int kv_head, int tile, int half, int leaf)
{
    return (unsigned char *)a.part +
           (((kv_head * a.n_tiles + tile) * 2 + half) * a.slots + leaf) * column_form::PLACE;
}
DEV void put_words(void *p, const uint4 &v)
{
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w)
                 : "memory");
}
DEV uint4 get_words(const void *p)
{
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
DEV bool words_missing(const uint4 &v)
{
    return max(max(v.x, v.y), max(v.z, v.w)) == PLACE_EMPTY;
}

/* The ring of a block's keys: of a leaf the positions that `seen` has, a copy each, which its slot's barrier
 * counts. */
struct key_ring {
    static constexpr int COLS = column_form::D, PITCH = column_form::KEY_PITCH,
                         SLOTS = column_form::KEY_SLOTS;
    unsigned at, bars; /* shared memory */
    const uint16_t *from;
    struct span seen;
    kv_where_from place;
    __device__ __forceinline__ void expect(int turn, int p0) const
    {
        if (threadIdx.x == 0)
            cluster_bar_expect(bars + 8 * (turn % SLOTS),
                               (unsigned)(min(p0 + column_form::LEAF, seen.hi) - max(p0, seen.lo)) *
                                   kv_bytes<COLS>);
    }
    /* Those in [lo, hi), by all warps. */
    __device__ __forceinline__ void ask(const attn &a, int turn, int p0, int lo, int hi) const
    {
        const int end = min(min(hi, seen.hi) - p0, column_form::LEAF), w = threadIdx.x / 32,
                  lane = threadIdx.x % 32;
#pragma unroll 1
        for (int k = max(max(lo, seen.lo) - p0, 0) + w + column_form::WARPS * lane; k < end;
             k += column_form::THREADS) {
            copy_counted(at + (unsigned)((turn % SLOTS * column_form::LEAF + k) * PITCH * 2),
                         from + (int64_t)place.slot(p0 + k) * (a.n_kv * column_form::D), kv_bytes<COLS>,
                         bars + 8 * (turn % SLOTS));
        }
    }
    __device__ __forceinline__ void wait(int turn) const
    {
        cluster_bar_wait(bars + 8 * (turn % SLOTS), (unsigned)(turn / SLOTS & 1));
    }
};

/* Scores of a tile, whose fragments are in memory, with a leaf's keys: the order of scores(). Eight steps of
 * 16 columns are on their way while eight are multiplied. */
template <bool BF16> DEV void column_scores(float x[4][4], const uint4 *q, unsigned k)
{
    using F = column_form;
    constexpr int BATCH = 8, STEPS = F::D / 16;
    const int lane = threadIdx.x % 32;
    float low[4][4];
    uint4 f[2][2 * BATCH];
    k += (unsigned)((lane % 8 + lane / 16 * 8) * F::KEY_PITCH + lane / 8 % 2 * 8) * 2;
    q += lane;
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) x[j][e] = low[j][e] = 0.0f;
    const auto load = [&](uint4 to[2 * BATCH]) {
#pragma unroll
        for (int i = 0; i < 2 * BATCH; i++) to[i] = __ldcg(q + 32 * i);
        q += 32 * 2 * BATCH;
    };
    const auto multiply = [&](const uint4 with[2 * BATCH]) {
#pragma unroll
        for (int s = 0; s < BATCH; s++) {
            const uint4 b[2] = {load_matrices(k + s * 32), load_matrices(k + 16 * F::KEY_PITCH * 2 + s * 32)};
#pragma unroll
            for (int p = 0; p < 2; p++) {
                const uint4 v = with[2 * s + p];
                const uint32_t r[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    mma<BF16>(p ? low[2 * j] : x[2 * j], r, b[j].x, b[j].y);
                    mma<BF16>(p ? low[2 * j + 1] : x[2 * j + 1], r, b[j].z, b[j].w);
                }
            }
        }
        k += BATCH * 32;
    };
    load(f[0]);
#pragma unroll 1
    for (int s = 0; s < STEPS; s += 2 * BATCH) {
        load(f[1]);
        multiply(f[0]);
        if (s + 2 * BATCH < STEPS) load(f[0]);
        multiply(f[1]);
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) x[j][e] = __fadd_rn(x[j][e], low[j][e]);
}

/* A block's leaves of a kv head: those with number rank, rank + ranks, ... of `u`, which all tiles see
 * together. */
template <bool BF16>
DEV void weigh_leaves(const attn &a, unsigned char *raw, unsigned bars, int kv_head, int rank, int ranks,
                      const struct units &u, const struct span &seen, int pos0, int bound)
{
    using F = column_form;
    const int lane = threadIdx.x % 32, w = threadIdx.x / 32, g = lane / 4, c = lane % 4;
    const key_ring ring = {
        shared_at(raw), bars, (const uint16_t *)a.k + kv_head * F::D, seen, {a.where, seen.lo}};
    const int mine = rank < u.count ? (u.count - rank + ranks - 1) / ranks : 0,
              there = a.early ? pos0 : seen.lo;
    const auto start = [&](int i) { return (u.first + rank + i * ranks) * F::LEAF; };
#pragma unroll 1
    for (int i = 0; i < min(mine, F::KEY_SLOTS); i++) {
        ring.expect(i, start(i));
        ring.ask(a, i, start(i), seen.lo, there);
    }
    if (a.early) cuda_grid_wait();
#pragma unroll 1
    for (int i = 0; i < min(mine, F::KEY_SLOTS); i++) ring.ask(a, i, start(i), there, seen.hi);
#pragma unroll 1
    for (int i = 0; i < mine; i++) {
        const int p0 = start(i), leaf = p0 / F::LEAF;
        ring.wait(i);
#pragma unroll 1
        for (int tile = w; tile < a.n_tiles; tile += F::WARPS) {
            const struct span own = visible_any(a, tile, 1, pos0, bound);
            if (p0 >= own.hi || p0 + F::LEAF <= own.lo) continue; /* nobody reads these */
            const unsigned char *from = (const unsigned char *)a.q + made_at(a, tile, kv_head);
            const float unit[2] = {__ldcg((const float *)(from + made::QUERY) + g),
                                   __ldcg((const float *)(from + made::QUERY) + g + 8)};
            float x[4][4], top[2], sum[2];
            uint32_t part[2][2][4];
            column_scores<BF16>(x, (const uint4 *)from, ring.at + (unsigned)(i % F::KEY_SLOTS * F::KEY_SLOT));
            mask_scores<4>(x, top, unit, true, p0, visible_at(a, tile * TILE + g, pos0, bound),
                           visible_at(a, tile * TILE + g + 8, pos0, bound));
            make_weights<4, 2, BF16>(part, sum, x, top);
            sum[0] = quad_sum(sum[0]), sum[1] = quad_sum(sum[1]);
            unsigned char *place = column_place(a, kv_head, tile, 0, leaf - u.first);
#pragma unroll 1
            for (int half = 0; half < 2; half++, place += a.slots * F::PLACE) {
#pragma unroll
                for (int s = 0; s < 4; s++)
                    put_words((uint4 *)place + s * 32 + lane,
                              make_uint4(part[s / 2][s % 2][0], part[s / 2][s % 2][1], part[s / 2][s % 2][2],
                                         part[s / 2][s % 2][3]));
                if (c == 0) place_put((float *)(place + F::WEIGHT) + 2 * g, top[0], sum[0]);
                if (c == 0) place_put((float *)(place + F::WEIGHT) + 2 * g + 16, top[1], sum[1]);
            }
        }
        if (i + F::KEY_SLOTS < mine) {
            __syncthreads(); /* these keys are done with */
            ring.expect(i + F::KEY_SLOTS, start(i + F::KEY_SLOTS));
            ring.ask(a, i + F::KEY_SLOTS, start(i + F::KEY_SLOTS), seen.lo, seen.hi);
        }
    }
}

/* Weights and tops of a warp's leaves of those that are here at once, as soon as they are there, from their
 * places to shared memory; and the places as they were before. Tops come last: they alone are asked for until
 * they are there. */
DEV void take_weights(unsigned char *const place[column_form::EACH], unsigned char *to, int count)
{
    constexpr int WEIGHT = column_form::WEIGHT, EACH = column_form::EACH,
                  NEXT = column_form::WARPS * column_form::HERE;
    const int lane = threadIdx.x % 32;
    uint4 v[EACH][4], ts;
    bool waits;
    const int mine = lane / 8 < count ? lane / 8 : 0; /* leaf of my tops */
    const unsigned char *tops = place[0] + WEIGHT + lane % 8 * 16;
#pragma unroll
    for (int i = 1; i < EACH; i++)
        if (mine == i) tops = place[i] + WEIGHT + lane % 8 * 16;
    patience wait;
    do {
        ts = get_words(tops);
        wait.turn();
    } while (__any_sync(~0u, words_missing(ts)));
    do { /* these are on their way */
        waits = false;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (i < count)
#pragma unroll
                for (int s = 0; s < 4; s++) v[i][s] = get_words((const uint4 *)place[i] + s * 32 + lane);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (i < count)
#pragma unroll
                for (int s = 0; s < 4; s++) waits |= words_missing(v[i][s]);
    } while (__any_sync(~0u, waits));
    const uint4 e = make_uint4(PLACE_EMPTY, PLACE_EMPTY, PLACE_EMPTY, PLACE_EMPTY);
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (i < count)
#pragma unroll
            for (int s = 0; s < 4; s++) {
                ((uint4 *)(to + i * NEXT))[s * 32 + lane] = v[i][s];
                __stcg((uint4 *)place[i] + s * 32 + lane, e);
            }
    if (lane / 8 < count) {
        ((uint4 *)(to + mine * NEXT + WEIGHT))[lane % 8] = ts;
        __stcg((uint4 *)tops, e);
    }
}

/* Of a chunk's n leaves, for a warp's rows: records {down, weight, sum, top} a leaf and row: what a node's
 * sum so far and the leaf's results are multiplied by to be of one top, the sum of the leaf's weights, the
 * node's top. k: a lane's leaf, from that first one on; t: tops of what came before. */
DEV void make_records(unsigned char *chunk, int n, int first, int k, float t[TILE / column_form::WARPS])
{
    using F = column_form;
    const int lane = threadIdx.x % 32, w = threadIdx.x / 32;
    unsigned char *const mine = chunk + min(lane, n - 1) * F::HERE;
#pragma unroll
    for (int i = 0; i < TILE / F::WARPS; i++) {
        const int r = w + i * F::WARPS;
        const float2 ts = ((const float2 *)(mine + F::WEIGHT))[r];
        const node_tops nodes = tops_of_nodes(ts.x, lane - min((first + k) % F::LEAVES, k), t[i]);
        if (lane < n)
            ((float4 *)(mine + F::RECORDS))[r] = make_float4(nodes.down, nodes.weight, ts.y, nodes.top);
        t[i] = __shfl_sync(~0u, nodes.top, n - 1);
    }
}

/* What a warp adds of its columns: a node's leaves, then nodes; of rows g and g + 8. */
struct column_sums {
    float t[2], s[2], y[column_form::CT][4];
    __device__ __forceinline__ void clear()
    {
        t[0] = t[1] = -INFINITY, s[0] = s[1] = 0.0f;
#pragma unroll
        for (int i = 0; i < column_form::CT; i++) y[i][0] = y[i][1] = y[i][2] = y[i][3] = 0.0f;
    }
    __device__ __forceinline__ void add(const float4 record[2], const float x[column_form::CT][4])
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float f = record[half].x, h = record[half].y;
            s[half] = __fmaf_rn(h, record[half].z, __fmul_rn(s[half], f));
            t[half] = record[half].w;
#pragma unroll
            for (int i = 0; i < column_form::CT; i++)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++)
                    y[i][e] = __fmaf_rn(h, x[i][e], __fmul_rn(y[i][e], f));
        }
    }
    __device__ __forceinline__ void add(const column_sums &o)
    {
        float4 record[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float to = fmaxf(t[half], o.t[half]);
            record[half] = make_float4(factor(t[half], to), factor(o.t[half], to), o.s[half], to);
        }
        add(record, o.y);
    }
};

/* acc = a leaf's weights times its values at my columns, all loads first. CLEAN: NaN and Inf among these
 * count as zeros. */
template <bool BF16, bool CLEAN>
DEV void weigh_leaf(float acc[column_form::CT][4], const uint4 *weights, unsigned values)
{
    using F = column_form;
    const int lane = threadIdx.x % 32;
    uint4 f[4], b[2][F::CT / 2];
#pragma unroll
    for (int s = 0; s < 4; s++) f[s] = weights[s * 32 + lane];
#pragma unroll
    for (int s = 0; s < 2; s++)
#pragma unroll
        for (int j = 0; j < F::CT / 2; j++) {
            b[s][j] = load_transposed(values + (unsigned)(s * 16 * F::PITCH + j * 16) * 2);
            if (CLEAN) make_finite<BF16>(b[s][j]);
        }
#pragma unroll
    for (int t = 0; t < F::CT; t++) acc[t][0] = acc[t][1] = acc[t][2] = acc[t][3] = 0.0f;
#pragma unroll
    for (int s = 0; s < 4; s++) {
        const uint32_t part[4] = {f[s].x, f[s].y, f[s].z, f[s].w};
#pragma unroll
        for (int j = 0; j < F::CT / 2; j++) {
            mma<BF16>(acc[2 * j], part, b[s / 2][j].x, b[s / 2][j].y);
            mma<BF16>(acc[2 * j + 1], part, b[s / 2][j].z, b[s / 2][j].w);
        }
    }
}

/* Where some row sees a key that another of the tile does not, a NaN there must not meet its zero weight. One
 * shows in what came out, and then all is done again without. Of the 64 columns that attn_step's warp has
 * this one has 32: all warps of the block call. */
template <bool BF16>
DEV void column_ragged(float acc[column_form::CT][4], const uint4 *weights, const unsigned char *values,
                       unsigned at_values, int p0, const struct span sees[2])
{
    using F = column_form;
    float odd = 0.0f;
#pragma unroll
    for (int t = 0; t < F::CT; t++)
#pragma unroll
        for (int e = 0; e < 4; e++) odd = __fmaf_rn(acc[t][e], 0.0f, odd);
    if (!__syncthreads_or(!(odd == 0.0f))) return;
    weigh_leaf<BF16, true>(acc, weights, at_values);
    const uint64_t b0 = bits_of(sees[0], p0), b1 = bits_of(sees[1], p0),
                   bad = find_unfinite<BF16, F::LEAF, 64, F::PITCH>((const uint16_t *)values +
                                                                    threadIdx.x / 64 * 64);
#pragma unroll
    for (int t = 0; t < F::CT; t++) {
        if (bad & b0) acc[t][0] = acc[t][1] = __int_as_float(0x7fc00000);
        if (bad & b1) acc[t][2] = acc[t][3] = __int_as_float(0x7fc00000);
    }
}

DEV void open_values(unsigned bars)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (threadIdx.x < column_form::SLOTS)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bars + 8 * threadIdx.x),
                     "n"(column_form::THREADS)
                     : "memory");
#endif
}
/* The ring of a block's values: leaves by the threads' own copies, zeros for keys that nobody sees. A slot's
 * barrier counts the threads whose copies have landed. */
struct value_ring {
    unsigned at, bars; /* shared memory */
    const uint16_t *from;
    struct span seen;
    kv_where_from place;
    __device__ __forceinline__ void ask(const attn &a, int slot, int p0) const
    {
        using F = column_form;
        const int w = threadIdx.x / 32, lane = threadIdx.x % 32;
        unsigned to = at + (unsigned)(((slot * F::LEAF + w) * F::PITCH + 8 * lane) * 2);
        int p = p0 + w;
        const int64_t stride = (int64_t)a.n_kv * F::D;
        const uint16_t *src =
            from + (int64_t)place.slot(p0) * stride + w * stride + 8 * lane; /* a leaf does not wrap */
#pragma unroll
        for (int i = 0; i < F::LEAF / F::WARPS;
             i++, p += F::WARPS, src += F::WARPS * stride, to += F::WARPS * F::PITCH * 2) {
            const bool in = p >= seen.lo && p < seen.hi;
            copy_async(to, in ? src : (const uint16_t *)a.v, in);
        }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bars + 8 * slot)
                     : "memory");
#endif
    }
};

/* A tile's results at 256 columns. all_first: the first leaf that there is a place for. */
template <bool BF16>
DEV void add_columns(const attn &a, unsigned char *raw, unsigned bars, int kv_head, int tile, int half,
                     int all_first, int pos0, int bound)
{
    using F = column_form;
    const int lane = threadIdx.x % 32, w = threadIdx.x / 32, g = lane / 4, c = lane % 4;
    const struct span seen = visible_any(a, tile, 1, pos0, bound), full = visible_all(a, tile, pos0, bound);
    const struct units u = units_of<F::D>(a, seen);
    const int ahead = leaves_ahead<F::D>(u.first, u.count);
    const value_ring ring = {shared_at(raw),
                             bars,
                             (const uint16_t *)a.v + kv_head * F::D + half * F::HALF,
                             seen,
                             {a.where, seen.lo}};
    unsigned char *const chunk = raw + F::RING;
    const auto leaf_of = [&](int q) {
        return u.first + (ahead + q < u.count ? ahead + q : ahead + q - u.count);
    };
    /* Where some row sees a key that another of the tile does not. */
    const int ragged_below = full.lo > seen.lo ? full.lo : 0,
              ragged_above = full.hi < seen.hi ? full.hi : INT32_MAX;
    const int there = a.early ? pos0 : 0, first_ones = min(u.count, F::SLOTS);
    int late = 0; /* leaves of which some keys are not there yet: the highest */
#pragma unroll 1
    for (int q = 0; q < first_ones; q++)
        if (leaf_of(q) * F::LEAF + F::LEAF <= there)
            ring.ask(a, q, leaf_of(q) * F::LEAF);
        else
            late |= 1 << q;
    const struct span sees[2] = {visible_at(a, tile * TILE + g, pos0, bound),
                                 visible_at(a, tile * TILE + g + 8, pos0, bound)};
    struct column_sums node, all;
    node.clear();
    all.clear();
    if (a.early) cuda_grid_wait();
#pragma unroll 1
    for (int q = 0; q < first_ones; q++)
        if (late >> q & 1) ring.ask(a, q, leaf_of(q) * F::LEAF);
    const unsigned my_values =
        shared_at(raw) +
        (unsigned)((lane % 8 + lane / 8 % 2 * 8) * F::PITCH + lane / 16 * 8 + w * F::CT * 8) * 2;
    float t[TILE / F::WARPS];
#pragma unroll
    for (int i = 0; i < TILE / F::WARPS; i++) t[i] = -INFINITY;
    int slot = 0, phase = 0, at = 0,
        taken = 0; /* leaves whose weights have come, of which `at` are done with */
#pragma unroll 1
    for (int q = 0; q < u.count; q++, at++) {
        if (at == taken) {
            if (q) __syncthreads(); /* those before are done with */
            const int n = min(u.count - q, F::CHUNK);
            unsigned char *place[F::EACH];
#pragma unroll
            for (int i = 0; i < F::EACH; i++)
                place[i] = column_place(a, kv_head, tile, half,
                                        leaf_of(q + min(w + i * F::WARPS, n - 1)) - all_first);
            if (w < n) take_weights(place, chunk + w * F::HERE, (n - w + F::WARPS - 1) / F::WARPS);
            __syncthreads();
            make_records(chunk, n, u.first, leaf_of(q + min(lane, n - 1)) - u.first, t);
            __syncthreads();
            at = 0, taken = n;
        }
        const int leaf = leaf_of(q);
        const unsigned char *const here = chunk + at * F::HERE;
        const float4 *const rows = (const float4 *)(here + F::RECORDS) + g;
        const float4 record[2] = {rows[0], rows[8]};
        const unsigned values = my_values + slot * F::SLOT;
        float acc[F::CT][4];
        cluster_bar_wait(bars + 8 * slot, (unsigned)phase);
        weigh_leaf<BF16, false>(acc, (const uint4 *)here, values);
        if (leaf * F::LEAF < ragged_below || leaf * F::LEAF + F::LEAF > ragged_above)
            column_ragged<BF16>(acc, (const uint4 *)here, raw + slot * F::SLOT, values, leaf * F::LEAF, sees);
        if (q && (leaf % F::LEAVES == 0 || leaf == u.first)) { /* a node begins */
            all.add(node);
            node.clear();
        }
        node.add(record, acc);
        if (q + F::SLOTS < u.count) {
            __syncthreads(); /* these values are done with */
            ring.ask(a, slot, leaf_of(q + F::SLOTS) * F::LEAF);
        }
        if (++slot == F::SLOTS) slot = 0, phase ^= 1;
    }
    all.add(node);
    __syncthreads(); /* the ring is done with */
    float *const stage = (float *)raw, *const sums = stage + TILE * F::HALF;
    if (w == 0 && c == 0) sums[g] = all.s[0], sums[g + 8] = all.s[1];
#pragma unroll
    for (int i = 0; i < F::CT; i++) {
        const int col = w * F::CT * 8 + 8 * i + 2 * c;
        *(float2 *)(stage + g * F::HALF + col) = make_float2(all.y[i][0], all.y[i][1]);
        *(float2 *)(stage + (g + 8) * F::HALF + col) = make_float2(all.y[i][2], all.y[i][3]);
    }
    __syncthreads();
    const int real = min(TILE, a.n * a.n_rep - tile * TILE);
#pragma unroll 1
    for (int r = w; r < real; r += F::WARPS) {
        const int at_row = tile * TILE + r;
        const int64_t head = head_of_row(a, row_of(a, at_row), kv_head, at_row);
        float *const out = a.out + head * F::D + half * F::HALF + 4 * lane;
        float4 *const mine = (float4 *)(stage + r * F::HALF) + lane;
        const float sum = sums[r];
#pragma unroll 1
        for (int i = 0; i < 2; i++) {
            const float4 y = mine[32 * i], z = make_float4(divided(y.x, sum), divided(y.y, sum),
                                                           divided(y.z, sum), divided(y.w, sum));
            __stcg((float4 *)out + 32 * i, z);
            mine[32 * i] = z;
        }
        __syncwarp();
        if (a.prepare) prepare_strip<F::D>(a, stage + r * F::HALF, kv_head, at_row, half * F::HALF);
    }
}

/* Blocks that weigh come first: ranks of them for each kv head. */
template <bool BF16>
__global__ void __launch_bounds__(column_form::THREADS, 1) attn_columns(const __grid_constant__ attn a)
{
    using F = column_form;
    extern __shared__ __align__(128) unsigned char raw[];
    const unsigned bars = shared_at(raw + F::RING + F::CHUNK * F::HERE);
    const int adders = 2 * a.n_tiles * a.n_kv, weighers = (int)gridDim.x - adders,
              block = (int)blockIdx.x - weighers;
    touch_arguments(a);
    if (block < 0) {
        if (threadIdx.x < F::KEY_SLOTS) cluster_bar_init(bars + 8 * threadIdx.x);
    } else {
        open_values(bars);
    }
    cuda_grid_early();
    __syncthreads(); /* barriers are there */
    if (!a.early) cuda_grid_wait();
    const int pos0 = a.pos[0], bound = a.first ? *a.first : 0;
    const struct span seen = visible_any(a, 0, a.n_tiles, pos0, bound);
    const struct units u = units_of<F::D>(a, seen);
    if (__builtin_expect(block < 0, 1))
        weigh_leaves<BF16>(a, raw, bars, (int)blockIdx.x % a.n_kv, (int)blockIdx.x / a.n_kv,
                           weighers / a.n_kv, u, seen, pos0, bound);
    else
        add_columns<BF16>(a, raw, bars, block / 2 % a.n_kv, block / 2 / a.n_kv, block % 2, u.first, pos0,
                          bound);
}
