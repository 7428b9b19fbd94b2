/* attention_prefill.cu - attention of more than FEW rows.
 *
 * Bound: tensor operations, 4 * head_dim a (query row, key); mma.sync reaches about 0.6 of what the chip can.
 * A block takes WARPS tiles (128 query rows at most) of one kv head through all the keys they see, a leaf at
 * a time, from a ring in shared memory; a warp has 16 rows and all columns (heads of 512: half of the
 * columns, in two blocks, each with all scores). The running top is whole, so it changes rarely, and the
 * output is brought to a new one by an exact power of two; a leaf that a row does not see changes nothing, so
 * a row's bits do not depend on its companions. */
#include "attention.cuh"

template <int D, int WARPS, int PARTS> struct many {
    static constexpr int LEAF = D <= 256 ? 64 : 32;
    static constexpr int DC = D < 256 ? D : 256; /* columns of a block */
    static constexpr int CHUNKS = D / DC;
    static constexpr int KPITCH = D + 8, VPITCH = DC + 8;
    static constexpr int KEYS = LEAF * KPITCH * 2, STAGE = KEYS + LEAF * VPITCH * 2;
    static constexpr int STAGES = D <= 128 && WARPS == 8 ? 3 : 2;
    static constexpr int QUERIES = WARPS * (D / 16) * PARTS * 512;
    static constexpr int FIXED = (QUERIES + WARPS * TILE * 4 + 127) / 128 * 128;
    static constexpr int BYTES = FIXED + STAGES * STAGE;
};

template <int D, bool BF16, int WARPS, int PARTS>
__global__ void __launch_bounds__(32 * WARPS, D <= 128 && WARPS == 4 ? 2 : 1) attn_prefill(const attn a)
{
    using M = many<D, WARPS, PARTS>;
    constexpr int LEAF = M::LEAF, THREADS = 32 * WARPS, CT = M::DC / 8, NT = LEAF / 8;
    extern __shared__ __align__(128) unsigned char raw[];
    uint4 *queries = (uint4 *)raw;
    float *units = (float *)(raw + M::QUERIES);
    const unsigned ring = shared_at(raw) + M::FIXED;
    cuda_grid_start();

    const int lane = threadIdx.x % 32, w = threadIdx.x / 32, g = lane / 4, c = lane % 4;
    const int tile = (int)(gridDim.x - 1 - blockIdx.x) * WARPS, kv_head = blockIdx.y; /* the longest first */
    const int col = blockIdx.z * M::DC;
    const int pos0 = a.pos[0], bound = a.first ? *a.first : 0;
    const struct span seen = visible_any(a, tile, WARPS, pos0, bound),
                      mine = visible_any(a, tile + w, 1, pos0, bound),
                      full = visible_all(a, tile + w, pos0, bound);
    const int from = seen.lo / LEAF, to = seen.hi > seen.lo ? (seen.hi - 1) / LEAF + 1 : from;
    int filled = from;
    auto fill = [&](int stage) {
        if (filled < to) {
            const unsigned at = ring + (unsigned)(stage * M::STAGE);
            fetch<D, D, LEAF, M::KPITCH, THREADS>(a, at, a.k, filled * LEAF, kv_head, 0, seen);
            fetch<D, M::DC, LEAF, M::VPITCH, THREADS>(a, at + M::KEYS, a.v, filled * LEAF, kv_head, col,
                                                      seen);
        }
        copy_commit();
        filled++;
    };
#pragma unroll
    for (int i = 0; i < M::STAGES - 1; i++) fill(i);
    load_queries<D, BF16, WARPS, WARPS, PARTS>(a, queries, units, tile, kv_head);

    const int row0 = ((tile + w) * TILE + g) / a.n_rep, row1 = ((tile + w) * TILE + g + 8) / a.n_rep;
    const struct span v0 = row0 < a.n ? visible(a, row0, pos0, bound) : span{0, 0},
                      v1 = row1 < a.n ? visible(a, row1, pos0, bound) : span{0, 0};
    const uint4 *my_q = queries + w * (D / 16) * PARTS * 32;
    float acc[CT][4], top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
#pragma unroll
    for (int t = 0; t < CT; t++) acc[t][0] = acc[t][1] = acc[t][2] = acc[t][3] = 0.0f;

    int stage = 0;
    for (int leaf = from; leaf < to; leaf++) {
        const int p0 = leaf * LEAF;
        copy_wait(M::STAGES - 2);
        __syncthreads(); /* this leaf is here, and all are done with the one before */
        fill(stage ? stage - 1 : M::STAGES - 1);
        const unsigned k = ring + (unsigned)(stage * M::STAGE), v = k + M::KEYS;
        stage = stage + 1 == M::STAGES ? 0 : stage + 1;
        if (p0 >= mine.hi || p0 + LEAF <= mine.lo) continue;
        const bool ragged = p0 < full.lo || p0 + LEAF > full.hi;
        const float unit[2] = {units[w * TILE + g], units[w * TILE + g + 8]};
        float x[NT][4], here[2], part[2];
        uint32_t p[NT / 2][PARTS][4];
        scores<D, BF16, NT, M::KPITCH, PARTS>(x, my_q, k);
        mask_scores<NT>(x, here, unit, ragged, p0, v0, v1);
        here[0] = fmaxf(here[0], top[0]);
        here[1] = fmaxf(here[1], top[1]);
        if (__any_sync(~0u, here[0] != top[0] || here[1] != top[1])) {
            const float f0 = factor(top[0], here[0]), f1 = factor(top[1], here[1]);
            sum[0] = __fmul_rn(sum[0], f0);
            sum[1] = __fmul_rn(sum[1], f1);
#pragma unroll
            for (int t = 0; t < CT; t++) {
                acc[t][0] = __fmul_rn(acc[t][0], f0);
                acc[t][1] = __fmul_rn(acc[t][1], f0);
                acc[t][2] = __fmul_rn(acc[t][2], f1);
                acc[t][3] = __fmul_rn(acc[t][3], f1);
            }
            top[0] = here[0];
            top[1] = here[1];
        }
        make_weights<NT, PARTS, BF16>(p, part, x, top);
        sum[0] = __fadd_rn(sum[0], part[0]); /* of a lane's keys: the quad meets at the end */
        sum[1] = __fadd_rn(sum[1], part[1]);
        uint64_t bad = 0;
        if (ragged)
            bad = find_unfinite<BF16, LEAF, M::DC, M::VPITCH>((const uint16_t *)(raw + (v - shared_at(raw))));
        weigh<BF16, LEAF / 16, CT, M::VPITCH, PARTS>(acc, p, v, bad != 0);
        if (bad & bits_of(v0, p0)) sum[0] = __int_as_float(0x7fc00000);
        if (bad & bits_of(v1, p0)) sum[1] = __int_as_float(0x7fc00000);
    }
    copy_wait(0);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int at = (tile + w) * TILE + g + 8 * half, row = at / a.n_rep;
        const float s = quad_sum(sum[half]);
        if (row >= a.n) continue;
        float *out = a.out + ((int64_t)row * a.n_head + kv_head * a.n_rep + at % a.n_rep) * D + col + 2 * c;
#pragma unroll
        for (int t = 0; t < CT; t++)
            *(float2 *)(out + 8 * t) =
                make_float2(divided(acc[t][2 * half], s), divided(acc[t][2 * half + 1], s));
    }
}

template <int D, int WARPS, int PARTS> static attn_fn kernel_of(uint32_t type, size_t *smem, int32_t *chunks)
{
    *smem = many<D, WARPS, PARTS>::BYTES;
    *chunks = many<D, WARPS, PARTS>::CHUNKS;
    return type == KN_BF16 ? attn_prefill<D, true, WARPS, PARTS> : attn_prefill<D, false, WARPS, PARTS>;
}

attn_fn attn_prefill_of(int32_t d, uint32_t type, int32_t warps, int32_t parts, size_t *smem, int32_t *chunks)
{
    if (d == 128 && parts == 2)
        return warps == 8 ? kernel_of<128, 8, 2>(type, smem, chunks)
                          : kernel_of<128, 4, 2>(type, smem, chunks);
    switch (d) {
    case 64: return kernel_of<64, 8, 1>(type, smem, chunks);
    case 128:
        return warps == 8 ? kernel_of<128, 8, 1>(type, smem, chunks)
                          : kernel_of<128, 4, 1>(type, smem, chunks);
    case 256:
        return warps == 8 ? kernel_of<256, 8, 1>(type, smem, chunks)
                          : kernel_of<256, 4, 1>(type, smem, chunks);
    case 512: return kernel_of<512, 4, 1>(type, smem, chunks);
    default: return NULL;
    }
}
