/* mm_few.cuh - the product kernel for 2 to 16 rows of K types on sm_90: the arithmetic and the bits of
 * mm_kernel.cuh and mm_int.cuh, with fewer instructions around units.
 *
 * A warp has one slice of every panel it takes part in, so nothing but pointers that move by constants is
 * computed between panels; the warps of an item (its slices; gates and ups) meet by themselves and write its
 * outputs, a thread one output at a time. *Side*: for each unit the sums of 16 columns as f16 (|sum| <=
 * 2,032) and the scales of all tokens, put together once a block: one tensor operation multiplies the sums by
 * the minimums (by the scales, for the codes' offset), exactly: all are integers below 2^22, or such times
 * 2^-24. Bound: the bytes of the weights, once. */
#ifndef DFLASH_CUDA_MM_FEW_CUH
#define DFLASH_CUDA_MM_FEW_CUH

#include "mm_int.cuh"
#include "mm_kernel.cuh"

/* ---- units: y, which the float sum takes as fin += y * (scale of the token), or * (d * that): few_has_mins
 * ---- */

/* What a unit is multiplied with: activations of this lane's token of each tile; sums; scales. */
template <int NT> struct few_view {
    const uint8_t *b[NT], *sums, *scales;
};

/* y of minimums m (a: as f16, their integers times 2^-24), dmin times 2^24. */
template <int NT>
DEV void few_less_mins(float y[NT][4], const int sum[NT][4], const float d[2], const float dmin[2],
                       const uint32_t a[4], const few_view<NT> &v)
{
    const float up[2] = {__fmul_rn(dmin[0], 16777216.0f), __fmul_rn(dmin[1], 16777216.0f)};
#pragma unroll
    for (int t = 0; t < NT; t++) {
        const uint2 s = lds8(v.sums + 256 * t);
        float m[4];
        zero(m);
        mma<false>(m, a, s.x, s.y);
#pragma unroll
        for (int i = 0; i < 4; i++)
            y[t][i] = __fmaf_rn(__int2float_rn(sum[t][i]), d[i / 2], -__fmul_rn(m[i], up[i / 2]));
    }
}
/* y of signed scales (128 added: four bytes of rows g and g + 8), less `offset` times the sums that they
 * multiply. sum counts from offset times MM_BITS_OF, what the bits of m + 12582912 count from. */
template <int NT>
DEV void few_less_offset(float y[NT][4], const int sum[NT][4], const uint32_t scales[2], uint32_t offset,
                         const few_view<NT> &v)
{
    uint32_t a[4];
#pragma unroll
    for (int hi = 0; hi < 2; hi++) { /* as f16: 1024 + (128 + scale) - 1152 */
        const uint32_t even = (scales[hi] & 0x00ff00ff) | 0x64006400,
                       odd = __byte_perm(scales[hi], 0x64646464, 0x4341);
        asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(a[hi]) : "r"(even), "r"(0x64806480));
        asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(a[2 + hi]) : "r"(odd), "r"(0x64806480));
    }
#pragma unroll
    for (int t = 0; t < NT; t++) {
        const uint2 s = lds8(v.sums + 256 * t);
        float m[4];
        zero(m);
        mma<false>(m, a, s.x, s.y);
#pragma unroll
        for (int i = 0; i < 4; i++)
            y[t][i] = __int2float_rn(
                (int)((uint32_t)sum[t][i] - offset * __float_as_uint(__fadd_rn(m[i], 12582912.0f))));
    }
}

/* Types whose float sum takes y * (scale of the token); of the others it takes y * (d * that). */
DEV constexpr bool few_has_mins(uint32_t type)
{
    return type == KN_Q4_K || type == KN_Q5_K || type == KN_Q2_K;
}
template <uint32_t TYPE, int NT>
DEV void few_unit(float y[NT][4], float d[2], const uint8_t *st, const few_view<NT> &v, int lane)
{
    const auto act = [&](int t, int part) { return lds16(v.b[t] + 64 * part); };
    int sum[NT][4];
    float dmin[2];
    if constexpr (TYPE == KN_Q4_K || TYPE == KN_Q5_K) {
        uint32_t mins[2][2], a[4];
        codes_45<TYPE == KN_Q4_K ? 4 : 5, NT>(sum, d, dmin, mins, st, lane, act);
#pragma unroll
        for (int hi = 0; hi < 2; hi++) /* minimums 2 q and 2 q + 1: each for two sums */
            a[hi] = a[2 + hi] =
                __byte_perm(mins[hi][0], mins[hi][1], 0x0100 + 0x0202 * (lane % 4)) & 0x00ff00ff;
        few_less_mins<NT>(y, sum, d, dmin, a, v);
    } else if constexpr (TYPE == KN_Q6_K) {
        const uint32_t scales[2] = {lds4(st + 3072 + 4 * lane), lds4(st + 3200 + 4 * lane)};
        codes_6<NT>(sum, d, st, lane, act, 32u * MM_BITS_OF);
        few_less_offset<NT>(y, sum, scales, 32, v);
    } else if constexpr (TYPE == KN_IQ4_XS) {
        codes_iq4_xs<NT>(sum, d, st, lane, act);
#pragma unroll
        for (int t = 0; t < NT; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) y[t][i] = __int2float_rn(sum[t][i]);
    } else {
        uint32_t am[2];
        codes_23<TYPE == KN_Q2_K ? 2 : 3, NT>(sum, d, dmin, am, st, lane, act,
                                              TYPE == KN_Q2_K ? 0 : 4u * MM_BITS_OF);
        if (TYPE == KN_Q2_K) {
            const uint32_t a[4] = {am[0] & 0x00ff00ff, am[1] & 0x00ff00ff, am[0] >> 8 & 0x00ff00ff,
                                   am[1] >> 8 & 0x00ff00ff};
            few_less_mins<NT>(y, sum, d, dmin, a, v);
        } else {
            const uint32_t scales[2] = {am[0] ^ 0x80808080, am[1] ^ 0x80808080};
            few_less_offset<NT>(y, sum, scales, 4, v);
        }
    }
}

/* ---- copies ---- */

/* What a warp has: slice `local` of the block's, of items first, + stride, ...; matrix: where they are gated.
 */
struct few_share {
    int local, sub, matrix, first, stride;
};
DEV few_share few_share_of(const mm_args &a, int warp, int group)
{
    const int item = warp >> a.log2_slice_warps;
    few_share s;
    s.local = warp & ((1 << a.log2_slice_warps) - 1);
    s.sub = item >> a.split;
    s.matrix = item & a.split;
    s.first = group + s.sub * a.groups;
    s.stride = a.subs * a.groups;
    return s;
}

/* The way of a warp through items: the matrix of `item`, panels before that matrix and up to its end. */
struct few_walk {
    int item, matrix, before, end;
};
/* Is there an item? Then w's matrix is that of it. */
DEV bool few_find(const mm_args &a, few_walk &w)
{
    if (w.item >= a.n_items) return false;
    if (a.gated) return true;
    while (a.first_item + w.item >= w.end) {
        w.before = w.end;
        w.end = a.panel_end[++w.matrix];
    }
    return true;
}
DEV few_walk few_begin(const mm_args &a, const few_share &s)
{
    few_walk w = {s.local < a.block_slices ? s.first : a.n_items, s.matrix, 0, a.panel_end[0]};
    few_find(a, w);
    return w;
}

/* Of one lane: the next unit to ask for; left: of the slice. */
struct few_source {
    few_walk w;
    int left, unit_bytes;
    const uint8_t *p;
};
DEV void few_seek(const mm_args &a, few_source &c, int unit0, int units)
{
    if (!few_find(a, c.w)) return;
    c.left = units;
    c.unit_bytes = a.unit_bytes[c.w.matrix];
    c.p = a.w[c.w.matrix] +
          (size_t)((a.first_item + c.w.item - c.w.before) * a.units + unit0) * (size_t)c.unit_bytes;
}
DEV void few_issue(const mm_args &a, const few_share &s, few_source &c, int unit0, int units, uint8_t *to,
                   uint64_t *full)
{
    if (c.w.item >= a.n_items) return;
    copy_bulk(to, c.p, (uint32_t)c.unit_bytes, full);
    c.p += c.unit_bytes;
    if (--c.left == 0) {
        c.w.item += s.stride;
        few_seek(a, c, unit0, units);
    }
}

/* ---- side: [unit]{[token][sums of columns 64 k + 16 {0, 2, 1, 3}], [token] scales} ---- */

#define FEW_SIDE(NT) (288 * (NT)) /* bytes of a unit */

/* f16 of bytes (0, 2) or (1, 3) of w, which have 128 added, less 128 */
DEV __half2 few_halves(uint32_t w, uint32_t which)
{
    const uint32_t h = __byte_perm(w, 0x64646464, which), offset = 0x64806480;
    return __hsub2(*(const __half2 *)&h, *(const __half2 *)&offset);
}
/* A warp a token; then they meet. */
template <int NT> DEV void few_side(const mm_args &a, uint8_t *smem)
{
    const uint8_t *act = smem + a.at.act;
    const __half2 high = __float2half2_rn(128.0f);
    const int t = threadIdx.x / 32;
    if (t < a.n)
#pragma unroll 1
        for (int slice = 0; slice < a.block_slices; slice++) {
            const uint8_t *src = act + t * a.at.row_bytes + slice * a.slice_row + 256 * a.slice_units;
            uint8_t *to = smem + a.at.side + FEW_SIDE(NT) * slice * a.slice_units;
            for (int i = threadIdx.x % 32; i < 4 * a.slice_units; i += 32) {
                uint2 w = lds8(src + 8 * i);
                w.x ^= 0x80808080, w.y ^= 0x80808080;
                const __half2 even = __hfma2(few_halves(w.y, 0x4240), high, few_halves(w.x, 0x4240)),
                              odd = __hfma2(few_halves(w.y, 0x4341), high, few_halves(w.x, 0x4341));
                uint8_t *u = to + FEW_SIDE(NT) * (i / 4);
                *(uint2 *)(u + 32 * t + 8 * (i % 4)) =
                    make_uint2(*(const uint32_t *)&even, *(const uint32_t *)&odd);
                if (i % 4 == 0) *(float *)(u + 256 * NT + 4 * t) = lds_float(src + 32 * a.slice_units + i);
            }
        }
}

/* ---- a slice ---- */

/* fin = the sum of `units` units. next(slot): the ring's slot is free. */
template <uint32_t TYPE, int NT, class N>
DEV void few_slice(const mm_args &a, float fin[NT][4], const uint8_t *ring, uint64_t *full, int &slot,
                   uint32_t &phase, few_view<NT> v, int units, int lane, N next)
{
#pragma unroll
    for (int t = 0; t < NT; t++) zero(fin[t]);
#pragma unroll 1
    for (; units > 0; units--) {
        float y[NT][4], d[2];
        bar_wait(full + slot, phase);
        few_unit<TYPE, NT>(y, d, ring + slot * a.stage_bytes, v, lane);
#pragma unroll
        for (int t = 0; t < NT; t++) {
            const float2 da = *(const float2 *)(v.scales + 32 * t);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float f = i % 2 ? da.y : da.x;
                fin[t][i] = __fmaf_rn(y[t][i], few_has_mins(TYPE) ? f : __fmul_rn(d[i / 2], f), fin[t][i]);
            }
            v.b[t] += 256;
        }
        v.sums += FEW_SIDE(NT), v.scales += FEW_SIDE(NT);
        __syncwarp();
        next(slot);
        if (++slot == a.stages) slot = 0, phase ^= 1;
    }
}
template <uint32_t TYPE> struct few_type {
    static constexpr uint32_t type = TYPE;
};
template <bool LOW, class F> DEV void few_of_type(uint32_t type, F f)
{
    if (type == KN_Q4_K)
        f(few_type<KN_Q4_K>());
    else if (type == KN_Q6_K)
        f(few_type<KN_Q6_K>());
    else if (!LOW || type == KN_Q5_K)
        f(few_type<KN_Q5_K>());
    else if (type == KN_IQ4_XS)
        f(few_type<KN_IQ4_XS>());
    else if (type == KN_Q3_K)
        f(few_type<KN_Q3_K>());
    else
        f(few_type<KN_Q2_K>());
}

/* ---- results ---- */

/* The `warps` warps of an item meet. */
DEV void few_meet(int sub, int warps)
{
    if (warps > 1)
        asm volatile("bar.sync %0, %1;" ::"r"(1 + sub), "r"(32 * warps) : "memory");
    else
        __syncwarp();
}
/* Where output i of a tile, row i % 16 and token i / 16, is among its sums: floats. */
DEV unsigned few_place(unsigned i)
{
    return i % 8 * 16 + i / 32 % 4 * 4 + i / 16 % 2 + 2 * (i / 8 % 2);
}
DEV void few_write(const mm_args &a, float *out, float v, float up)
{
    const float y = a.gated ? __fmul_rn(act_gate(a.act, v), up) : v;
    *out = a.add ? __fadd_rn(__ldcg(out), y) : y;
}
/* v += N values that are `step` floats apart, in ascending order; all loads first. */
template <bool SHARED, int N> DEV float few_add_some(float v, const float *p, int step)
{
    float u[N];
#pragma unroll
    for (int s = 0; s < N; s++) u[s] = SHARED ? p[s * step] : __ldcg(p + s * step);
#pragma unroll
    for (int s = 0; s < N; s++) v = __fadd_rn(v, u[s]);
    return v;
}
/* The sum of `slices` slices: four or eight of them, but for short rows. */
template <bool SHARED> DEV float few_add(const float *p, int slices, int step)
{
    if (slices == 4) return few_add_some<SHARED, 4>(0.0f, p, step);
    if (slices == 8) return few_add_some<SHARED, 8>(0.0f, p, step);
    float v = 0.0f;
#pragma unroll 1
    for (int s = 0; s < slices; s++) v = few_add_some<SHARED, 1>(v, p + s * step, step);
    return v;
}
/* Apart: this block's share of the group's sums in memory. */
template <int NT, int W> DEV void few_merge_group(const mm_args &a, int group, int slice)
{
    for (unsigned k = slice * 32 * W + threadIdx.x;; k += a.slices * 32 * W) {
        const int token = (int)(k / 16 % (8 * NT)), item = group + (int)(k / (128 * NT)) * a.groups;
        if (item >= a.n_items) break;
        int panel;
        const int j = item_matrix(a, item, 0, &panel), row = 16 * panel + (int)(k % 16),
                  step = NT * MM_RECORD;
        if (token >= a.n || row >= a.n_out[j]) continue;
        const float *p = record_of(a, item, 0, 0, NT) + token / 8 * MM_RECORD + few_place(k);
        const float v = few_add<false>(p, a.slices, step),
                    up = a.gated ? few_add<false>(p + a.slices * step, a.slices, step) : 0.0f;
        few_write(a, a.out[j] + (size_t)token * (size_t)a.n_out[j] + row, v, up);
    }
}

/* LOW: Q2_K, Q3_K and IQ4_XS as well. */
template <int NT, int W, bool LOW> DEV void few_product(const mm_args &a)
{
    extern __shared__ __align__(128) uint8_t smem[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const bool together = a.block_slices == a.slices;
    const int group = together ? (int)blockIdx.x : (int)blockIdx.x / a.slices,
              first_slice = together ? 0 : (int)blockIdx.x % a.slices;
    uint64_t *const act_bar = (uint64_t *)smem, *const full = act_bar + 1 + warp * a.stages;
    uint8_t *const ring = smem + a.at.ring + warp * a.stages * a.stage_bytes;
    const few_share s = few_share_of(a, warp, group);
    const int unit0 = (first_slice + s.local) * a.slice_units, units = min(a.slice_units, a.units - unit0);
    few_walk w = few_begin(a, s);
    few_source source = {w, 0, 0, nullptr};

    cuda_grid_early();
    MM_STAMP(0);
    if (lane == 0) {
#pragma unroll 1
        for (int i = 0; i < a.stages; i++) bar_init(full + i);
        if (warp == 0) bar_init(act_bar);
        bar_fence();
        few_seek(a, source, unit0, units);
#pragma unroll 1
        for (int i = 0; i < a.stages; i++)
            few_issue(a, s, source, unit0, units, ring + i * a.stage_bytes, full + i);
    }
    __syncthreads();
    MM_STAMP(1);
    cuda_grid_wait();
    MM_STAMP(2);
#if __CUDA_ARCH__ >= 900
    if (lane == 0) { /* every warp asks for a row; the barrier may hear of bytes before it knows how many */
        const uint32_t bytes = (uint32_t)(a.block_slices * a.slice_row);
        if (warp == 0)
            asm volatile(
                "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(act_bar)),
                "r"(bytes * a.n)
                : "memory");
        if (warp < a.n)
            copy_bulk_to(smem + a.at.act + warp * a.at.row_bytes,
                         a.rows + (size_t)warp * (size_t)(a.slices * a.slice_row) +
                             (size_t)(first_slice * a.slice_row),
                         bytes, act_bar);
    }
#endif
    bar_wait(act_bar, 0);
    few_side<NT>(a, smem);
    __syncthreads();
    MM_STAMP(3);

    few_view<NT> view;
    view.sums = smem + a.at.side + FEW_SIDE(NT) * a.slice_units * s.local + 8 * lane;
    view.scales = smem + a.at.side + FEW_SIDE(NT) * a.slice_units * s.local + 256 * NT + lane % 4 * 8;
#pragma unroll
    for (int t = 0; t < NT; t++)
        view.b[t] = smem + a.at.act + min(8 * t + lane / 4, a.n - 1) * a.at.row_bytes +
                    s.local * a.slice_row + lane % 4 * 16;
    /* Sums that meet in shared memory: [sub][set][matrix][slice][tile]. Bytes. */
    const int record = NT * MM_RECORD * 4, sums = a.slices * record,
              warps = 1 << (a.log2_slice_warps + a.split);
    const unsigned me = threadIdx.x & (32u * warps - 1);
    uint8_t *const meet = smem + a.at.merge + s.sub * a.at.merge_sets * (sums << a.split);
    uint8_t *const to = meet + s.matrix * sums + s.local * record + 16 * lane;
    int slot = 0, set = 0;
    uint32_t phase = 0;
    const auto next = [&](int free) {
        if (lane == 0) few_issue(a, s, source, unit0, units, ring + free * a.stage_bytes, full + free);
    };
    /* All warps of an item take as many turns, those without a slice too. */
    for (w.item = s.first; few_find(a, w); w.item += s.stride) {
        float fin[NT][4];
        if (s.local < a.block_slices)
            few_of_type<LOW>(a.type[w.matrix], [&](auto of) {
                few_slice<of.type, NT>(a, fin, ring, full, slot, phase, view, units, lane, next);
            });
        if (!together) {
#pragma unroll
            for (int t = 0; t < NT; t++)
                *((float4 *)(record_of(a, w.item, s.matrix, first_slice, NT) + t * MM_RECORD) + lane) =
                    make_float4(fin[t][0], fin[t][1], fin[t][2], fin[t][3]);
            continue;
        }
        if (s.local < a.block_slices)
#pragma unroll
            for (int t = 0; t < NT; t++)
                *(float4 *)(to + set + t * 4 * MM_RECORD) =
                    make_float4(fin[t][0], fin[t][1], fin[t][2], fin[t][3]);
        few_meet(s.sub, warps);
        const int panel = a.first_item + w.item - w.before, j = a.gated ? 0 : w.matrix;
#pragma unroll 1
        for (unsigned i = me; i < 128 * NT; i += 32 * warps) {
            const int token = (int)(i / 16), row = 16 * panel + (int)(i % 16);
            const uint8_t *p = meet + set + i / 128 * (4 * MM_RECORD) + 4 * few_place(i);
            if (token >= a.n || row >= a.n_out[j]) continue;
            const float v = few_add<true>((const float *)p, a.slices, record / 4),
                        up = a.gated ? few_add<true>((const float *)(p + sums), a.slices, record / 4) : 0.0f;
            few_write(a, a.out[j] + (size_t)token * (size_t)a.n_out[j] + row, v, up);
        }
        if (a.at.merge_sets == 2) /* the next sums go elsewhere: the barrier after them frees these */
            set ^= sums << a.split;
        else
            few_meet(s.sub, warps);
    }
    if (!together) {
        group_wait(a, group);
        few_merge_group<NT, W>(a, group, first_slice);
    }
    MM_STAMP(4);
}

template <int NT, int W, int BLOCKS, bool LOW>
__global__ void __launch_bounds__(32 * W, BLOCKS) mm_few(const __grid_constant__ mm_args a)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    few_product<NT, W, LOW>(a);
#endif
}

#endif
