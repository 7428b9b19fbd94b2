/* attention/made.cuh - the rows of heads of 512 before attention (attention/columns.cuh), in a launch of
 * their own: attn_rows, a warp a head, norms and rotates what the projections left, in the order of
 * rope_store's kernel. Queries become fragments in memory, as the tensor operations want them, keys and
 * values go to the ring. */
#include "leaves.cuh"

/* What attn_rows leaves of the queries of a tile: fragments [D / 16][part][lane], then what the scores are
 * multiplied by. */
struct made {
    static constexpr int D = 512, QUERY = places<D>::QUERY, BYTES = QUERY + TILE * 4;
    static_assert(BYTES == ATTN_MADE_TILE, "as attention_plan.h has it");
};
DEV int made_at(const attn &a, int tile, int kv_head)
{
    return (kv_head * ((a.n * a.n_rep + TILE - 1) / TILE) + tile) * made::BYTES;
}

/* Heads of q, k and v, or of q and what is both. */
struct made_source {
    const float *from[3];
    int32_t heads[3], role[3], count, all; /* all: heads */
    unsigned char *made;
};
enum { MADE_QUERY, MADE_KEY, MADE_VALUE, MADE_BOTH };
#define ROWS_WARPS 2 /* of a block of attn_rows: 8,192 registers, which a product's block leaves */

/* The query of row r of a tile as fragments: two columns a word, which a pair of lanes have. */
template <bool BF16> DEV void put_made(const attn &a, const head_of<made::D> &h, unsigned char *to, int r)
{
    constexpr int W = made::D / 32;
    const int lane = threadIdx.x % 32, odd = lane % 2;
    unsigned top = 0;
#pragma unroll
    for (int j = 0; j < W; j++) top = max(top, __float_as_uint(h.x[j]) & 0x7fffffff);
    top = __reduce_max_sync(~0u, top);
    int e = (int)(top >> 23) - 126; /* |x| < 2^e */
    e = top >= 0x7f800000 || e < -100 ? 0 : e;
    const float down = __int_as_float((127 - e) << 23);
    if (lane == 0)
        *(float *)(to + made::QUERY + 4 * r) =
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

template <bool BF16>
__global__ void __launch_bounds__(32 * ROWS_WARPS, 8)
    attn_rows(const __grid_constant__ attn a, const __grid_constant__ made_source s)
{
    constexpr int D = made::D, W = D / 32;
    const int lane = threadIdx.x % 32, item = (int)blockIdx.x * ROWS_WARPS + (int)threadIdx.x / 32,
              j = blockIdx.y;
    cuda_grid_early();
    int m = 0, head = item;
    while (m < s.count && head >= s.heads[m]) head -= s.heads[m++];
    const int some = m < s.count ? m : 0, role = s.role[some];
    const float *norm = role == MADE_QUERY ? a.q_norm : a.k_norm;
    head_of<D> h;
#pragma unroll
    for (int k = 0; k < W; k++) h.g[k] = norm && role != MADE_VALUE ? __ldg(norm + lane + 32 * k) : 1.0f;
    const int half = role == MADE_VALUE ? 0 : a.half;
    const float *p = s.from[some] + (j * s.heads[some] + head) * D + lane;
    const float2 *table = (const float2 *)a.table + j * a.half + lane;
    cuda_grid_wait();
    if (m == s.count) return;
    const int pos = a.pos[0] + j;
#pragma unroll
    for (int k = 0; k < W; k++) h.x[k] = __ldcg(p + 32 * k);
#pragma unroll
    for (int k = 0; k < W / 2; k++)
        if (32 * k < half) h.cs[k] = __ldcg(table + 32 * k);
    const int64_t at = ((int64_t)KV_SLOT(a.where, pos) * a.n_kv + head) * D;
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
        put_made<BF16>(a, h, s.made + made_at(a, row / TILE, kv_head), row % TILE);
    } else {
        h.template put<BF16>((uint16_t *)a.k + at);
    }
}
