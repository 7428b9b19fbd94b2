/* chain/items_rows.cuh - the row of a step of chain/items.cuh: taken from the step before, normed, rounded to
 * blocks of 32 columns or to the planes of floats, in shared memory. */
#ifndef DFLASH_CUDA_CHAIN_ITEMS_ROWS_CUH
#define DFLASH_CUDA_CHAIN_ITEMS_ROWS_CUH

#include "sync.cuh"
#include "pair.cuh"

#define ITEM_INVERSE 64 /* of CHAIN_BLOCKS squares */
static_assert(ITEM_INVERSE >= MM_SLICES_MAX && ITEM_INVERSE + MM_SLICES_MAX <= CHAIN_BLOCKS, "no room");

/* Columns 128 i + 4 lane .. of a slice at p, as values_ask and values_settle have it. */
#define ITEM_PARTS 4 /* of 128 columns: a slice, at most */
DEV void item_ask(float v[ITEM_PARTS][4], const float *p, int parts, unsigned there)
{
#pragma unroll
    for (int i = 0; i < ITEM_PARTS; i++)
        four_ask(v[i], p + 128 * i + threadIdx.x % 32 * 4, (there >> i & 1) | (i < parts ? 0u : 1u));
}
DEV void item_settle(float v[ITEM_PARTS][4], const float *p, int parts)
{
    value_wait wait;
    for (;;) {
        unsigned there = 0;
#pragma unroll
        for (int i = 0; i < ITEM_PARTS; i++) there |= four_there(v[i]) || i >= parts ? 1u << i : 0;
        if (!wait.more(!__all_sync(0xffffffff, there == (1u << ITEM_PARTS) - 1))) return;
        item_ask(v, p, parts, there);
    }
}

/* ---- the row, for blocks of 32 ---- */

/* Blocks of 256 columns that a warp rounds: those of a slice by the warps that multiply it (s.own of them,
 * all its items are of one slice), or all blocks by all warps. */
struct item_share {
    int first, on, n; /* on: from one to the next */
};
DEV item_share item_share_of(const chain_step &s)
{
    const int warp = warp_of(), own = s.own, from = (warp & (s.slices - 1)) * s.slice_units,
              m = warp * own / CHAIN_WARPS;
    if (!own) return {warp, CHAIN_WARPS, (s.units / 8 - warp + CHAIN_WARPS - 1) / CHAIN_WARPS};
    return {from / 8 + m, own, (min(s.slice_units, s.units - from) / 8 - m + own - 1) >> (31 - __clz(own))};
}
/* They meet. */
DEV void item_meet(const chain_step &s)
{
    const int own = s.own;
    if (own == 1)
        __syncwarp();
    else if (own == 0 || own == CHAIN_WARPS)
        chain_meet();
    else
        asm volatile("bar.sync %0, %1;" ::"r"(4 + (warp_of() & (s.slices - 1))), "r"(32 * own) : "memory");
}
/* n <= N blocks, `block`, `block` + on... (v: columns 8 lane ..): rounded as store_block rounds. */
template <int N> DEV void item_round(uint8_t *act, int units, int block, int on, int n, const float (*v)[8])
{
    const int lane = threadIdx.x % 32;
    uint32_t top[N], w[N][2];
    float d[N];
    int sum[N];
#pragma unroll
    for (int c = 0; c < N; c++) {
        uint32_t m[8];
#pragma unroll
        for (int i = 0; i < 8; i++) m[i] = __float_as_uint(v[c][i]) & 0x7fffffff;
        top[c] = max(max(max(m[0], m[1]), max(m[2], m[3])), max(max(m[4], m[5]), max(m[6], m[7])));
    }
#pragma unroll
    for (int o = 1; o < 4; o *= 2)
#pragma unroll
        for (int c = 0; c < N; c++) top[c] = max(top[c], __shfl_xor_sync(0xffffffff, top[c], o));
#pragma unroll
    for (int c = 0; c < N; c++) {
        const bool odd = top[c] >= 0x7f800000, none = odd || __uint_as_float(top[c]) < 1e-30f;
        const float amax = none ? 1.0f : __uint_as_float(top[c]), inverse = __fdiv_rn(127.0f, amax);
        d[c] = odd ? __uint_as_float(0x7fc00000) : none ? 0.0f : over_127(amax);
        w[c][0] = none ? 0 : round_four(v[c], inverse);
        w[c][1] = none ? 0 : round_four(v[c] + 4, inverse);
        sum[c] = __dp4a((int)w[c][0], 0x01010101, __dp4a((int)w[c][1], 0x01010101, 0));
    }
#pragma unroll
    for (int o = 1; o < 4; o *= 2)
#pragma unroll
        for (int c = 0; c < N; c++) sum[c] += __shfl_xor_sync(0xffffffff, sum[c], o);
#pragma unroll
    for (int c = 0; c < N; c++) {
        const bool there = c < n;
        const uint32_t b = (uint32_t)(block + c * on), at = shared_at(act),
                       q = at + 256 * b + 64 * (lane / 8) + 32 * (lane % 2) + 8 * (lane / 4 % 2) +
                           4 * (lane / 2 % 2);
        put_shared_if(there, q, w[c][0]);
        put_shared_if(there, q + 16, w[c][1]);
        put_shared_two_if(there && lane % 4 == 0, at + 32 * units + 64 * b + 2 * lane, __float_as_uint(d[c]),
                          (uint32_t)-sum[c]);
    }
}
/* The row, normed as prepare_row does. B: blocks of a warp, at most. */
template <int B>
DEV void item_norm_32(const chain_step &s, bool first, const float *row, uint8_t *act, float *squares)
{
    const item_share h = item_share_of(s);
    const int lane = threadIdx.x % 32, n_in = 32 * s.units;
    const float *p = row + 256 * h.first;
    float v[B][8] = {}, w[B][8] = {};
    values_ask<B, 0>(v, p, h.n, 0, h.on);
#pragma unroll
    for (int c = 0; c < B; c++)
        if (c < h.n) load_eight(w[c], s.norm, 256 * (h.first + c * h.on) + 8 * lane, n_in);
    if (!first) values_settle<B, 0>(v, p, h.n, h.on);
    const uint32_t to = shared_at(squares + h.first);
    if (h.n == 1)
        put_shared_if(lane == 0, to, __float_as_uint(block_squares(v[0])));
    else if (h.n > 1)
#pragma unroll
        for (int c = 0; c < B; c++) {
            const float ss = block_squares(v[c]);
            put_shared_if(c < h.n && lane == 0, to + 4 * c * h.on, __float_as_uint(ss));
        }
    chain_meet();
    const float r = norm_factor(s, squares, lane, s.units / 8, n_in);
#pragma unroll
    for (int c = 0; c < B; c++)
#pragma unroll
        for (int i = 0; i < 8; i++) v[c][i] = __fmul_rn(__fmul_rn(v[c][i], r), w[c][i]);
    if (h.n > 0) item_round<B>(act, s.units, h.first, h.on, h.n, v);
}
static __device__ __noinline__ void item_norm_wide(const chain_step &s, bool first, const float *row,
                                                   uint8_t *act, float *squares)
{
    item_norm_32<CHAIN_K_NORM_BLOCKS>(s, first, row, act, squares);
}
/* The row as it is: what comes next is asked for before what is there is rounded. */
DEV void item_row_32(const chain_step &s, bool first, const float *row, uint8_t *act)
{
    constexpr int B = 3;
    const item_share h = item_share_of(s);
    const float *p = row + 256 * h.first;
    float v[B][8] = {};
    values_ask<B, 0>(v, p, h.n, 0, h.on);
#pragma unroll 1
    for (int at = h.first, n = h.n; n > 0; n -= B, at += B * h.on) {
        float u[B][8];
        if (!first) values_settle<B, 0>(v, p, n, h.on);
#pragma unroll
        for (int i = 0; i < 8 * B; i++) u[i / 8][i % 8] = v[i / 8][i % 8];
        p += 256 * B * h.on;
        values_ask<B, 0>(v, p, n - B, 0, h.on);
        item_round<B>(act, s.units, at, h.on, n, u);
    }
}

/* The row as the step before has rounded it (rounded_put): a copy, of a slice by the warps that multiply it,
 * or of all by all; CHAIN_ROUNDED_WORDS of a warp at most. */
DEV void item_row_rounded(const chain_step &s, const float *row, uint8_t *act)
{
    static_assert(CHAIN_ROUNDED_WORDS == 128 * ITEM_PARTS, "as many as a lane has registers for");
    const int warp = warp_of(), own = s.own, by = own ? own : CHAIN_WARPS,
              unit = own ? (warp & (s.slices - 1)) * s.slice_units : 0,
              units = own ? min(s.slice_units, s.units - unit) : s.units, codes = 8 * units,
              words = 10 * units, each = ((words + 127) / 128 + by - 1) >> (31 - __clz(by)),
              jump = 8 * (s.units - units) - 6 * unit, /* of sums, to where they stand */
        first = 128 * each * (warp * by / CHAIN_WARPS) + threadIdx.x % 32 * 4;
    const float *const p = row + 8 * unit + first;
    float v[ITEM_PARTS][4] = {};
    value_wait wait;
    unsigned there = 0;
    do {
#pragma unroll
        for (int i = 0; i < ITEM_PARTS; i++) {
            const int k = first + 128 * i;
            four_ask(v[i], p + 128 * i + (k < codes ? 0 : jump),
                     (there >> i & 1) | (i < each && k < words ? 0u : 1u));
        }
        there = 0;
#pragma unroll
        for (int i = 0; i < ITEM_PARTS; i++) there |= four_there(v[i]) ? 1u << i : 0;
    } while (wait.more(!__all_sync(0xffffffff, there == (1u << ITEM_PARTS) - 1)));
#pragma unroll
    for (int i = 0; i < ITEM_PARTS; i++) {
        const int k = first + 128 * i;
        if (i >= each || k >= words) continue;
        const bool sums = k >= codes;
        const uint32_t x = sums ? 0 : ROUNDED_CODES, y = sums ? ROUNDED_SUM : ROUNDED_CODES;
        *(uint4 *)(act + 4 * (8 * unit + k + (sums ? jump : 0))) =
            make_uint4(__float_as_uint(v[i][0]) ^ x, __float_as_uint(v[i][1]) ^ y,
                       __float_as_uint(v[i][2]) ^ x, __float_as_uint(v[i][3]) ^ y);
    }
}

/* ---- sums of slices that another step adds (chain_step.spread) ---- */

/* Groups of panels of this block, and the number of one of them; of a step that is spread a group is a slice
 * of a panel, and the first s.wide blocks have them. */
DEV int groups_here(const chain_step &s)
{
    const int b = (int)blockIdx.x, wide = s.wide;
    if (!s.spread) return pairs_here(s);
    return b < wide && b < s.pairs ? (s.pairs - 1 - b) / wide + 1 : 0;
}
DEV int group_at(const chain_step &s, int local)
{
    return (int)blockIdx.x + local * (s.spread ? s.wide : (int)gridDim.x);
}
DEV int item_divide(int v, uint32_t by) /* by: chain_divisor */
{
    return by ? (int)__umulhi((unsigned)v, by) : v;
}
/* The slice of such a group. */
DEV int slice_at(const chain_step &s, int local)
{
    const int group = group_at(s, local);
    return group - item_divide(group, s.per_slices) * s.slices;
}
/* Does the block multiply the row's slice? */
DEV bool item_wants(const chain_step &s, int slice)
{
    bool wants = !s.spread;
    for (int i = 0; !wants && i < groups_here(s); i++) wants = slice_at(s, i) == slice;
    return wants;
}

/* ---- the row, for floats ---- */

/* The 16-bit parts of (x, y), as prep.cu has them. */
template <bool BF16> DEV void item_planes(uint32_t *p, float x, float y)
{
#pragma unroll
    for (int i = 0; i < (BF16 ? 3 : 2); i++) {
        if (BF16) { /* truncated: what is left is exact */
            p[i] = __byte_perm(__float_as_uint(x), __float_as_uint(y), 0x7632);
            x = __fsub_rn(x, __uint_as_float(__float_as_uint(x) & 0xffff0000));
            y = __fsub_rn(y, __uint_as_float(__float_as_uint(y) & 0xffff0000));
        } else {
            const __half2 h = __floats2half2_rn(x, y);
            p[i] = *(const uint32_t *)&h;
            x = __fsub_rn(x, h_low(p[i]));
            y = __fsub_rn(y, h_high(p[i]));
        }
    }
}
/* A slice, scaled so that its largest magnitude is in [512, 1024), in planes. */
template <bool BF16>
DEV void item_slice(const chain_step &s, int slice, int parts, float v[ITEM_PARTS][4],
                    const float w[ITEM_PARTS][4], uint8_t *act, float *squares)
{
    constexpr int planes = BF16 ? 3 : 2;
    const int lane = threadIdx.x % 32;
    uint32_t top = 0;
    float ss = 0.0f;
#pragma unroll
    for (int i = 0; i < ITEM_PARTS; i++) {
        if (i >= parts) continue;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (s.norm) {
                ss = __fmaf_rn(v[i][j], v[i][j], ss);
                v[i][j] = __fmul_rn(v[i][j], w[i][j]);
            }
            top = max(top, __float_as_uint(v[i][j]) & 0x7fffffff);
        }
    }
    top = __reduce_max_sync(0xffffffff, top);
    if (s.norm)
#pragma unroll
        for (int o = 16; o; o /= 2) ss = __fadd_rn(ss, __shfl_xor_sync(0xffffffff, ss, o));
    const uint32_t e = max(top >> 23, 9u);
    float scale = 1.0f, inverse = 1.0f;
    if (e != 255 && top) {
        scale = __uint_as_float((263 - e) << 23);
        inverse = __uint_as_float(e > 9 ? (e - 9) << 23 : 0x00400000);
    }
    if (lane == 0) {
        squares[slice] = ss;
        squares[ITEM_INVERSE + slice] = inverse;
    }
    if (!item_wants(s, slice)) return;
    uint8_t *to = act + 64 * slice * s.slice_units + lane / 8 * 64 + lane % 4 * 16 + lane / 4 % 2 * 8;
#pragma unroll
    for (int i = 0; i < ITEM_PARTS; i++) {
        if (i >= parts) continue;
        uint32_t lo[planes], hi[planes];
        item_planes<BF16>(lo, __fmul_rn(v[i][0], scale), __fmul_rn(v[i][1], scale));
        item_planes<BF16>(hi, __fmul_rn(v[i][2], scale), __fmul_rn(v[i][3], scale));
#pragma unroll
        for (int p = 0; p < planes; p++)
            *(uint2 *)(to + p * 64 * s.units + 256 * i) = make_uint2(lo[p], hi[p]);
    }
}
/* Parts of a slice; and what a norm multiplies those of one by, at `norm`. */
DEV int item_parts(const chain_step &s, int slice)
{
    return min(s.slice_units, s.units - slice * s.slice_units) / 4;
}
DEV void item_norm(float w[ITEM_PARTS][4], const chain_step &s, const float *norm, int parts)
{
#pragma unroll
    for (int i = 0; i < ITEM_PARTS; i++)
        if (s.norm && i < parts) {
            const float4 f = __ldcg((const float4 *)(norm + 128 * i));
            w[i][0] = f.x, w[i][1] = f.y, w[i][2] = f.z, w[i][3] = f.w;
        }
}
template <bool BF16>
DEV void item_row_float(const chain_step &s, bool first, const float *values, uint8_t *act, float *squares)
{
    const int lane = threadIdx.x % 32, warp = warp_of(), whole = 32 * s.slice_units;
    const float *p = (first ? s.x : values) + warp * whole, *norm = s.norm + warp * whole + 4 * lane;
    float v[ITEM_PARTS][4] = {};
    if (warp < s.slices) item_ask(v, p, item_parts(s, warp), 0);
#pragma unroll 1
    for (int slice = warp; slice < s.slices; slice += CHAIN_WARPS) {
        const int parts = item_parts(s, slice);
        float u[ITEM_PARTS][4], w[ITEM_PARTS][4];
        item_norm(w, s, norm, parts);
        if (!first) item_settle(v, p, parts);
#pragma unroll
        for (int i = 0; i < 4 * ITEM_PARTS; i++) u[i / 4][i % 4] = v[i / 4][i % 4];
        p += CHAIN_WARPS * whole;
        norm += CHAIN_WARPS * whole;
        if (slice + CHAIN_WARPS < s.slices) item_ask(v, p, item_parts(s, slice + CHAIN_WARPS), 0);
        item_slice<BF16>(s, slice, parts, u, w, act, squares);
    }
}
/* 1 / rms, of the squares of all slices, as prep.cu adds them; 1 where there is no norm. */
DEV float item_inverse_rms(const chain_step &s, const float *squares)
{
    if (!s.norm) return 1.0f;
    float ss = 0.0f;
#pragma unroll 8
    for (int i = 0; i < s.slices; i++) ss = __fadd_rn(ss, squares[i]);
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(ss, (float)(32 * s.units)), s.eps)));
}

#endif
