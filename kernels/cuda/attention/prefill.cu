/* attention/prefill.cu - attention of more than FEW rows.
 *
 * Bound: tensor operations, 4 * head_dim a (query row, key); mma.sync reaches about 0.6 of what the chip can.
 * A block takes some tiles of one kv head through all the keys they see, from a ring in shared memory. Heads
 * up to 128: a warp has two tiles, so that what it loads of keys and values serves two products, and half of
 * the warps take the even leaves, half the odd ones: the chip has no room for more rows than 16 a warp
 * otherwise. At the end both halves are added, even first. Larger heads: a warp has a tile, 256 columns, and
 * all leaves (512: two blocks, each with all scores). The running top is whole, so it changes rarely, and the
 * output is brought to a new one by an exact power of two; a leaf that a row does not see changes nothing, so
 * a row's bits do not depend on its companions. */
#include "codes_launch.cuh"
#include "many.cuh"
#include "sparse.cuh"

template <int D, int WARPS> struct many {
    static constexpr int LEAF = D <= 256 ? 64 : 32;
    static constexpr int HALVES = D <= 128 ? 2 : 1; /* of the keys: even and odd leaves */
    static constexpr int MT = D <= 128 ? 2 : 1;     /* tiles of a warp */
    static constexpr int STRIP = WARPS / HALVES, TILES = STRIP * MT;
    static constexpr int DC = D < 256 ? D : 256; /* columns of a block */
    static constexpr int CHUNKS = D / DC;
    static constexpr int KPITCH = D + 8, VPITCH = DC + 8;
    static constexpr int KEYS = LEAF * HALVES,
                         VALUES = KEYS * KPITCH * 2; /* of a stage; where its values begin */
    static constexpr int STAGE = VALUES + KEYS * VPITCH * 2, STAGES = 2;
    static constexpr int QUERIES = TILES * (D / 16) * 512;
    static constexpr int FIXED = (QUERIES + TILES * TILE * 4 + 127) / 128 * 128;
    static constexpr int BYTES = FIXED + STAGES * STAGE;
};

/* acc[MT][N][4] += p v over 16 S keys at v, its first column (rows of PITCH halves). clean: NaN and Inf are
 * zeros. */
template <bool BF16, int MT, int S, int N, int PITCH>
DEV void weigh_by(float acc[MT][N][4], const uint32_t p[MT][S][4], unsigned v, bool clean)
{
    const int lane = threadIdx.x % 32;
    v += (unsigned)((lane % 8 + lane / 8 % 2 * 8) * PITCH + lane / 16 * 8) * 2;
#pragma unroll
    for (int s = 0; s < S; s++)
#pragma unroll
        for (int j = 0; j < N / 2; j++) {
            uint4 b = load_transposed(v + (s * 16 * PITCH + j * 16) * 2);
            if (clean) make_finite<BF16>(b);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma<BF16>(acc[m][2 * j], p[m][s], b.x, b.y);
                mma<BF16>(acc[m][2 * j + 1], p[m][s], b.z, b.w);
            }
        }
}

/* Quantised caches: a block unpacks each leaf to halves in shared memory, once for all its rows. */
struct prefill_codes {
    struct kv_side k, v;
};

/* KEYS keys from p0 on of one side, as kv_stage: f16 as they are, codes as halves. */
template <int D, int COLS, int KEYS, int PITCH, int THREADS>
DEV void stage_side(const attn &a, unsigned char *raw, unsigned to, const struct kv_side &s, int p0,
                    int kv_head, int col, const struct span &v)
{
    if (kv_is_f16(s.type))
        kv_stage<D, COLS, KEYS, PITCH, THREADS>(a, to, s.at, p0, kv_head, col, v);
    else
        kv_unpack_any<COLS, KEYS, PITCH, THREADS>(s, (uint16_t *)(raw + (to - shared_at(raw))),
                                                  KV_SLOT(a.where, p0), kv_head, col, v.lo - p0, v.hi - p0);
}

template <int D, bool BF16, int WARPS, class... MORE>
__global__ void __launch_bounds__(32 * WARPS, 1) attn_prefill(const attn a, MORE... more)
{
    using M = many<D, WARPS>;
    constexpr bool CODES = has_argument<prefill_codes, MORE...>, LISTS = has_argument<sparse_lists, MORE...>;
    constexpr int LEAF = M::LEAF, THREADS = 32 * WARPS, CT = M::DC / 8, NT = LEAF / 8, MT = M::MT;
    extern __shared__ __align__(128) unsigned char raw[];
    uint4 *queries = (uint4 *)raw;
    float *units = (float *)(raw + M::QUERIES);
    const unsigned ring = shared_at(raw) + M::FIXED;
    cuda_grid_start();

    const int lane = threadIdx.x % 32, w = threadIdx.x / 32, g = lane / 4;
    const int strip = w % M::STRIP, half = w / M::STRIP;
    const int tile = (int)(gridDim.x - 1 - blockIdx.x) * M::TILES,
              kv_head = blockIdx.y; /* the longest first */
    const int own = tile + strip * MT, col = blockIdx.z * M::DC;
    const int pos0 = a.pos[0], bound = a.first ? *a.first : 0;
    const struct span seen = visible_any(a, tile, M::TILES, pos0, bound),
                      mine = visible_any(a, own, MT, pos0, bound);
    const auto walk = [&] {
        if constexpr (LISTS)
            return sparse_walk<M::KEYS>(a, argument<sparse_lists>(more...), tile, kv_head, pos0);
        else
            return 0;
    }();
    int from = seen.lo / M::KEYS, to = seen.hi > seen.lo ? (seen.hi - 1) / M::KEYS + 1 : from;
    if constexpr (LISTS) from = 0, to = walk.turns;
    int filled = from;
    auto fill_means = [&](unsigned at) {
        if constexpr (LISTS) {
            const sparse_lists &l = argument<sparse_lists>(more...);
            const struct span all = {0, walk.m};
            attn means = a;
            means.where = l.means;
            kv_stage<D, D, M::KEYS, M::KPITCH, THREADS>(means, at, l.mk, walk.at(filled), kv_head, 0, all);
            kv_stage<D, M::DC, M::KEYS, M::VPITCH, THREADS>(means, at + M::VALUES, l.mv, walk.at(filled),
                                                            kv_head, col, all);
        }
    };
    auto fill = [&](int stage) {
        if (filled < to) {
            const unsigned at = ring + (unsigned)(stage * M::STAGE);
            bool means = false;
            int p0 = filled * M::KEYS;
            if constexpr (LISTS) means = walk.mean(filled), p0 = walk.at(filled);
            if (means)
                fill_means(at);
            else if constexpr (CODES) {
                const prefill_codes &c = argument<prefill_codes>(more...);
                stage_side<D, D, M::KEYS, M::KPITCH, THREADS>(a, raw, at, c.k, p0, kv_head, 0, seen);
                stage_side<D, M::DC, M::KEYS, M::VPITCH, THREADS>(a, raw, at + M::VALUES, c.v, p0, kv_head,
                                                                  col, seen);
            } else {
                kv_stage<D, D, M::KEYS, M::KPITCH, THREADS>(a, at, a.k, p0, kv_head, 0, seen);
                kv_stage<D, M::DC, M::KEYS, M::VPITCH, THREADS>(a, at + M::VALUES, a.v, p0, kv_head, col,
                                                                seen);
            }
        }
        copy_commit();
        filled++;
    };
    fill(0);
    if constexpr (CODES)
        load_queries<D, BF16, M::TILES, WARPS, 1, true>(a, queries, units, tile, kv_head,
                                                        argument<prefill_codes>(more...).k.type);
    else
        load_queries<D, BF16, M::TILES, WARPS, 1>(a, queries, units, tile, kv_head);

    struct span full[MT], v0[MT], v1[MT];
#pragma unroll
    for (int m = 0; m < MT; m++) {
        v0[m] = visible_at(a, (own + m) * TILE + g, pos0, bound);
        v1[m] = visible_at(a, (own + m) * TILE + g + 8, pos0, bound);
        full[m] = visible_all(a, own + m, pos0, bound);
    }
    const uint4 *my_q = queries + strip * MT * (D / 16) * 32;
    const float *unit_at = units + strip * MT * TILE + g;
    float acc[MT][CT][4], top[MT][2], sum[MT][2];
#pragma unroll
    for (int m = 0; m < MT; m++) {
        top[m][0] = top[m][1] = -INFINITY, sum[m][0] = sum[m][1] = 0.0f;
#pragma unroll
        for (int t = 0; t < CT; t++) acc[m][t][0] = acc[m][t][1] = acc[m][t][2] = acc[m][t][3] = 0.0f;
    }

    int stage = 0;
    for (int turn = from; turn < to; turn++) {
        bool means = false;
        int p0 = turn * M::KEYS + half * LEAF;
        if constexpr (LISTS) means = walk.mean(turn), p0 = walk.at(turn) + half * LEAF;
        copy_wait(0);
        __syncthreads(); /* these leaves are here, and all are done with the ones before */
        fill(stage ^ 1);
        const unsigned k = ring + (unsigned)(stage * M::STAGE + half * LEAF * M::KPITCH * 2),
                       v = ring + (unsigned)(stage * M::STAGE + M::VALUES + half * LEAF * M::VPITCH * 2);
        stage ^= 1;
        if (means ? p0 >= mine.hi / KN_SPARSE_BLOCK : p0 >= mine.hi || p0 + LEAF <= mine.lo) continue;
        float x[MT][NT][4];
        uint32_t p[MT][NT / 2][4];
        bool any_ragged = false;
        scores_of<D, BF16, MT, NT, M::KPITCH>(x, my_q, k);
#pragma unroll
        for (int m = 0; m < MT; m++) {
            const bool ragged = p0 < full[m].lo || p0 + LEAF > full[m].hi;
            const float unit[2] = {unit_at[m * TILE], unit_at[m * TILE + 8]};
            float here[2];
            if (means) {
                if constexpr (LISTS) walk.template hide<NT>(x[m], p0, unit);
            } else {
                if (ragged) hide<NT>(x[m], p0, v0[m], v1[m]);
                any_ragged |= ragged;
            }
            raise_top<NT>(here, x[m], unit, top[m]);
            raise_results<CT>(acc[m], sum[m], top[m], here);
            weights_of<NT, BF16>(p[m], sum[m], x[m], unit, top[m]);
        }
        uint64_t bad = 0;
        if (any_ragged)
            bad = find_unfinite<BF16, LEAF, M::DC, M::VPITCH>((const uint16_t *)(raw + (v - shared_at(raw))));
        weigh_by<BF16, MT, LEAF / 16, CT, M::VPITCH>(acc, p, v, bad != 0);
        if (bad)
#pragma unroll
            for (int m = 0; m < MT; m++) {
                if (bad & bits_of(v0[m], p0)) sum[m][0] = __int_as_float(0x7fc00000);
                if (bad & bits_of(v1[m], p0)) sum[m][1] = __int_as_float(0x7fc00000);
            }
    }
    copy_wait(0);
    if (M::HALVES > 1) {                           /* the odd leaves' results, through the ring */
        constexpr int RECORD = MT * (CT + 1) * 32; /* float4 of a warp */
        static_assert(M::STRIP * RECORD * 16 <= M::STAGES * M::STAGE, "no room for the odd leaves");
        float4 *box = (float4 *)(raw + M::FIXED) + strip * RECORD + lane;
        __syncthreads();
        if (half)
#pragma unroll
            for (int m = 0; m < MT; m++) {
                box[m * (CT + 1) * 32] = make_float4(top[m][0], top[m][1], sum[m][0], sum[m][1]);
#pragma unroll
                for (int t = 0; t < CT; t++)
                    box[(m * (CT + 1) + 1 + t) * 32] =
                        make_float4(acc[m][t][0], acc[m][t][1], acc[m][t][2], acc[m][t][3]);
            }
        __syncthreads();
        if (half) return;
#pragma unroll
        for (int m = 0; m < MT; m++) {
            const float4 o = box[m * (CT + 1) * 32];
            const float t0 = fmaxf(top[m][0], o.x), t1 = fmaxf(top[m][1], o.y), f0 = factor(top[m][0], t0),
                        f1 = factor(top[m][1], t1), h0 = factor(o.x, t0), h1 = factor(o.y, t1);
            sum[m][0] = __fmaf_rn(h0, o.z, __fmul_rn(sum[m][0], f0));
            sum[m][1] = __fmaf_rn(h1, o.w, __fmul_rn(sum[m][1], f1));
#pragma unroll
            for (int t = 0; t < CT; t++) {
                const float4 y = box[(m * (CT + 1) + 1 + t) * 32];
                acc[m][t][0] = __fmaf_rn(h0, y.x, __fmul_rn(acc[m][t][0], f0));
                acc[m][t][1] = __fmaf_rn(h0, y.y, __fmul_rn(acc[m][t][1], f0));
                acc[m][t][2] = __fmaf_rn(h1, y.z, __fmul_rn(acc[m][t][2], f1));
                acc[m][t][3] = __fmaf_rn(h1, y.w, __fmul_rn(acc[m][t][3], f1));
            }
        }
    }
#pragma unroll
    for (int m = 0; m < MT; m++) put_rows<D, CT>(a, acc[m], sum[m], own + m, kv_head, col);
}

template <int D, int WARPS>
static attn_fn kernel_of(uint32_t type, size_t *smem, int32_t *tiles, int32_t *chunks)
{
    *smem = many<D, WARPS>::BYTES;
    *tiles = many<D, WARPS>::TILES;
    *chunks = many<D, WARPS>::CHUNKS;
    return kv_bf16(type) ? attn_prefill<D, true, WARPS> : attn_prefill<D, false, WARPS>;
}

/* ---- quantised caches ---- */

/* Results of heads of D, a warp each, out of the values' rotated space. */
template <int D> __global__ void __launch_bounds__(128) turn_back(float *out, int64_t n, uint32_t type)
{
    constexpr int W = D / 32;
    const int64_t at = (int64_t)blockIdx.x * 4 + threadIdx.x / 32;
    float x[W];
    cuda_grid_start();
    if (at >= n) return;
    float *y = out + at * D + threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < W; j++) x[j] = y[32 * j];
    kv_turn_head<W>(x, type, true, true);
#pragma unroll
    for (int j = 0; j < W; j++) y[32 * j] = x[j];
}

template <int D, int WARPS, bool BF16, class... MORE>
static int launch(struct cuda_backend *be, const struct attn &a, uint32_t v_type,
                  const struct attn_plan *plan, const MORE &...more)
{
    void (*f)(const attn, MORE...) = attn_prefill<D, BF16, WARPS, MORE...>;
    const int64_t heads = (int64_t)a.n * a.n_head;
    const dim3 grid((unsigned)plan->groups, (unsigned)a.n_kv, (unsigned)plan->blocks);
    int rc = cuda_check(be, "attention",
                        cudaFuncSetAttribute((const void *)f, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             (int)many<D, WARPS>::BYTES));
    if (rc == 0)
        rc =
            cuda_check(be, "attention",
                       cuda_launch(be, f, grid, dim3(32 * WARPS), (size_t)many<D, WARPS>::BYTES, a, more...));
    if (rc == 0 && kn_kv_coded(v_type))
        rc = cuda_check(be, "attention",
                        cuda_launch(be, turn_back<D>, dim3((unsigned)((heads + 3) / 4)), dim3(128), 0, a.out,
                                    heads, v_type));
    return rc;
}

/* f(head size, warps) of a plan. */
template <class F> static int of_plan(int32_t d, int32_t warps, F f)
{
    const std::integral_constant<int, 8> eight;
    const std::integral_constant<int, 4> four;
    const auto with = [&](auto size) { return warps == 8 ? f(size, eight) : f(size, four); };
    switch (d) {
    case 64: return with(std::integral_constant<int, 64>());
    case 128: return with(std::integral_constant<int, 128>());
    case 256: return with(std::integral_constant<int, 256>());
    default: return f(std::integral_constant<int, 512>(), four);
    }
}

int attn_prefill_codes_launch(struct cuda_backend *be, const struct kn_attention *a, const struct attn *base,
                              const struct attn_plan *plan)
{
    const struct prefill_codes more = {kv_side_of(a->kv, false), kv_side_of(a->kv, true)};
    return of_plan(base->d, plan->warps, [&](auto d, auto warps) {
        return launch<d, warps, false>(be, *base, more.v.type, plan, more);
    });
}

int attn_prefill_sparse(struct cuda_backend *be, const struct kn_attention *call, const struct attn *a,
                        const struct attn_plan *plan, const struct sparse_lists *lists)
{
    const struct prefill_codes codes = {kv_side_of(call->kv, false), kv_side_of(call->kv, true)};
    return of_plan(a->d, plan->warps, [&](auto d, auto warps) {
        if (!kv_halves(a->type)) return launch<d, warps, false>(be, *a, codes.v.type, plan, codes, *lists);
        return kv_bf16(a->type) ? launch<d, warps, true>(be, *a, KN_BF16, plan, *lists)
                                : launch<d, warps, false>(be, *a, KN_F16, plan, *lists);
    });
}

attn_fn attn_prefill_of(int32_t d, uint32_t type, int32_t warps, size_t *smem, int32_t *tiles,
                        int32_t *chunks)
{
    switch (d) {
    case 64:
        return warps == 8 ? kernel_of<64, 8>(type, smem, tiles, chunks)
                          : kernel_of<64, 4>(type, smem, tiles, chunks);
    case 128:
        return warps == 8 ? kernel_of<128, 8>(type, smem, tiles, chunks)
                          : kernel_of<128, 4>(type, smem, tiles, chunks);
    case 256:
        return warps == 8 ? kernel_of<256, 8>(type, smem, tiles, chunks)
                          : kernel_of<256, 4>(type, smem, tiles, chunks);
    case 512: return kernel_of<512, 4>(type, smem, tiles, chunks);
    default: return NULL;
    }
}
