/* mm_kernel.cuh - the product kernel: rings of packed weights, activations, the loop, the sums of slices.
 *
 * Grid: groups blocks (slices together) or groups * slices blocks (apart) of 8 warps, see mm_args. Nothing but weights is touched before
 * cuda_grid_wait(): each warp has its ring filled by then. Bound: the bytes of the weights, once. */
#ifndef DFLASH_CUDA_MM_KERNEL_CUH
#define DFLASH_CUDA_MM_KERNEL_CUH

#include "mm_frag.cuh"

#ifdef MM_PROBE /* to time a kernel without one of its parts */
#define MM_SKIP(bit) (a.probe & (bit))
#else
#define MM_SKIP(bit) false
#endif

/* ---- copies from memory to a warp's ring ---- */

DEV uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
DEV void bar_init(uint64_t *b)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(b)) : "memory");
#endif
}
DEV void bar_fence()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
DEV void bar_wait(uint64_t *b, uint32_t phase)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done;\nbra again;\ndone:\n}"
                 ::"r"(shared_address(b)), "r"(phase) : "memory");
#endif
}
DEV void copy_bulk(void *dst, const void *src, uint32_t bytes, uint64_t *b)
{
#if __CUDA_ARCH__ >= 900
    const uint32_t bar = shared_address(b);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(dst)),
                 "l"(src), "r"(bytes), "r"(bar) : "memory");
#endif
}
DEV void copy_async(void *dst, const void *src)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(dst)), "l"(src) : "memory");
}
DEV void copy_wait(int stages) /* until the oldest of `stages` groups is complete */
{
    if (stages == 2)
        asm volatile("cp.async.wait_group 1;" ::: "memory");
    else if (stages == 3)
        asm volatile("cp.async.wait_group 2;" ::: "memory");
    else
        asm volatile("cp.async.wait_group 3;" ::: "memory");
}

/* ---- items ---- */

/* The matrix of an item, and the panel in it. */
DEV int item_matrix(const mm_args &a, int item, int member, int *panel)
{
    int j = member;
    *panel = a.first_item + item;
    if (!a.gated) {
        while (*panel >= a.panel_end[j]) j++;
        if (j) *panel -= a.panel_end[j - 1];
    }
    return j;
}
DEV const uint8_t *item_bytes(const mm_args &a, int item, int member)
{
    int panel;
    const int j = item_matrix(a, item, member, &panel);
    return a.w[j] + (size_t)panel * (size_t)a.panel_bytes;
}

/* ---- activations: scaled, rounded, in shared memory. One warp a (token, slice): 8 * 4 columns a lane ---- */

struct mm_shared {
    uint8_t *act, *sums;
    float *inverse, *squares; /* [block_slices][tokens] */
    float *factor;            /* [tokens] */
    float4 *merge;
};

DEV uint32_t pack_f16(float x, float y)
{
    const __half2 h = __floats2half2_rn(x, y);
    return *(const uint32_t *)&h;
}
/* The 16-bit parts of (x, y). */
template <class F> DEV void planes_of(uint32_t p[F::planes], float x, float y)
{
#pragma unroll
    for (int i = 0; i < F::planes; i++) {
        if (F::bf16) { /* truncated: what is left is exact, three hold all 24 bits */
            p[i] = __byte_perm(__float_as_uint(x), __float_as_uint(y), 0x7632);
            x = __fsub_rn(x, __uint_as_float(__float_as_uint(x) & 0xffff0000));
            y = __fsub_rn(y, __uint_as_float(__float_as_uint(y) & 0xffff0000));
        } else {
            p[i] = pack_f16(x, y);
            x = __fsub_rn(x, h_low(p[i]));
            y = __fsub_rn(y, h_high(p[i]));
        }
    }
}
DEV uint32_t magnitude(float x)
{
    return __float_as_uint(x) & 0x7fffffff;
}
DEV float4 load_four(const float *x, int k, int end, bool aligned)
{
    if (aligned && k + 3 < end) return __ldcg((const float4 *)(x + k));
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (k < end) v.x = __ldcg(x + k);
    if (k + 1 < end) v.y = __ldcg(x + k + 1);
    if (k + 2 < end) v.z = __ldcg(x + k + 2);
    if (k + 3 < end) v.w = __ldcg(x + k + 3);
    return v;
}

template <class F, int NT> struct mm_row {
    static constexpr int parts = F::slice_k > 512 ? 8 : 4; /* of 128 columns */

    DEV void load(float4 v[parts], const mm_args &a, int token, int k0, int columns, int lane)
    {
        const float *x = a.x + (size_t)token * (size_t)a.n_in;
        const int end = min(a.n_in, k0 + columns);
#pragma unroll
        for (int i = 0; i < parts; i++) v[i] = load_four(x, k0 + 128 * i + 4 * lane, end, (a.n_in & 3) == 0);
    }
    /* v: columns k0 ... of a token. local: its slice among the block's. */
    DEV void store(float4 v[parts], const mm_args &a, const mm_shared &m, uint32_t row_bytes, int token, int local, int k0,
                          int columns, int lane)
    {
        const int end = min(a.n_in, k0 + columns);
        uint32_t top = 0;
        float ss = 0.0f;
#pragma unroll
        for (int i = 0; i < parts; i++) {
            if (a.norm) {
                const float4 w = load_four(a.norm, k0 + 128 * i + 4 * lane, end, (a.n_in & 3) == 0);
                ss = __fmaf_rn(v[i].x, v[i].x, ss);
                ss = __fmaf_rn(v[i].y, v[i].y, ss);
                ss = __fmaf_rn(v[i].z, v[i].z, ss);
                ss = __fmaf_rn(v[i].w, v[i].w, ss);
                v[i] = make_float4(__fmul_rn(v[i].x, w.x), __fmul_rn(v[i].y, w.y), __fmul_rn(v[i].z, w.z), __fmul_rn(v[i].w, w.w));
            }
            top = max(top, max(max(magnitude(v[i].x), magnitude(v[i].y)), max(magnitude(v[i].z), magnitude(v[i].w))));
        }
        top = __reduce_max_sync(0xffffffff, top);
#pragma unroll
        for (int o = 16; o; o /= 2) ss = __fadd_rn(ss, __shfl_xor_sync(0xffffffff, ss, o));
        /* scale = 2^(9 - exponent of the largest), inverse = 1 / scale; both finite and exact */
        const uint32_t e = max(top >> 23, 9u);
        float scale = 1.0f, inverse = 1.0f;
        if (e != 255 && top) {
            scale = __uint_as_float((263 - e) << 23);
            inverse = __uint_as_float(e > 9 ? (e - 9) << 23 : 0x00400000);
        }
        if (lane == 0) {
            m.inverse[local * NT * 8 + token] = inverse;
            m.squares[local * NT * 8 + token] = ss;
        }
        const int base = local * a.slice_units * F::unit_k;
#pragma unroll
        for (int i = 0; i < parts; i++) {
            const int in = 128 * i + 4 * lane, at = base + in;
            uint32_t lo[F::planes], hi[F::planes];
            planes_of<F>(lo, __fmul_rn(v[i].x, scale), __fmul_rn(v[i].y, scale));
            planes_of<F>(hi, __fmul_rn(v[i].z, scale), __fmul_rn(v[i].w, scale));
            if (in < columns) {
                uint8_t *row = m.act + token * row_bytes + at / 32 * 64 + at % 16 / 4 * 16 + at / 16 % 2 * 8;
#pragma unroll
                for (int p = 0; p < F::planes; p++) *(uint2 *)(row + p * a.n * row_bytes) = make_uint2(lo[p], hi[p]);
            }
            if (F::sums != MM_SUMS_NONE) { /* of the rounded values */
                float s = __fadd_rn(__fadd_rn(h_low(lo[0]), h_high(lo[0])), __fadd_rn(h_low(hi[0]), h_high(hi[0])));
                s = __fadd_rn(s, __shfl_xor_sync(0xffffffff, s, 1));
                s = __fadd_rn(s, __shfl_xor_sync(0xffffffff, s, 2));
                s = __fadd_rn(s, __shfl_xor_sync(0xffffffff, s, 4));
                if (lane % 8 == 0 && in < columns) {
                    const int group = at / 32;
                    if (F::sums == MM_SUMS_K) {
                        const __half h = __float2half_rn(s), l = __float2half_rn(__fsub_rn(s, __half2float(h)));
                        __half *d = (__half *)(m.sums + (group / 8 * NT * 8 + token) * 32 + group % 8 / 2 * 8) + group % 2;
                        d[0] = h;
                        d[2] = l;
                    } else {
                        ((float *)m.sums)[group * NT * 8 + token] = s;
                    }
                }
            }
        }
    }
};

DEV float norm_factor(const mm_args &a, float squares_sum)
{
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(squares_sum, (float)a.n_in), a.eps)));
}

/* All (token, slice) of the block. The next row is on its way while one is worked on. */
template <class F, int NT> DEV void prologue(const mm_args &a, const mm_shared &m, uint32_t row_bytes, int first_slice)
{
    using row = mm_row<F, NT>;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, total = a.n * a.block_slices;
    auto span = [&](int i, int *k0, int *columns) {
        const int unit0 = (first_slice + i % a.block_slices) * a.slice_units;
        *k0 = unit0 * F::unit_k;
        *columns = min(a.slice_units, a.units - unit0) * F::unit_k;
    };
    cuda_grid_wait();
    float4 now[row::parts], next[row::parts];
    int k0, columns;
    if (warp < total) {
        span(warp, &k0, &columns);
        row::load(now, a, warp / a.block_slices, k0, columns, lane);
    }
#pragma unroll 1
    for (int i = warp; i < total; i += MM_WARPS) {
        int next_k0 = 0, next_columns = 0;
        if (i + MM_WARPS < total) {
            span(i + MM_WARPS, &next_k0, &next_columns);
            row::load(next, a, (i + MM_WARPS) / a.block_slices, next_k0, next_columns, lane);
        }
        row::store(now, a, m, row_bytes, i / a.block_slices, i % a.block_slices, k0, columns, lane);
#pragma unroll
        for (int p = 0; p < row::parts; p++) now[p] = next[p];
        k0 = next_k0;
        columns = next_columns;
    }
    __syncthreads();
    if (a.norm && a.block_slices == a.slices) {
        for (int t = threadIdx.x; t < a.n; t += 32 * MM_WARPS) {
            float ss = 0.0f;
            for (int s = 0; s < a.slices; s++) ss = __fadd_rn(ss, m.squares[s * NT * 8 + t]);
            m.factor[t] = norm_factor(a, ss);
        }
        __syncthreads();
    }
}

/* ---- results ---- */

DEV float act_gate(int act, float g)
{
    if (act == KN_ACT_SILU) return __fdiv_rn(g, __fadd_rn(1.0f, expf(-g)));
    const float c = __fmul_rn(0.7978845608028654f, __fmul_rn(g, __fmaf_rn(__fmul_rn(0.044715f, g), g, 1.0f)));
    return __fmul_rn(__fmul_rn(0.5f, g), __fadd_rn(1.0f, tanhf(c)));
}
/* v, up: sums of all slices of tile t of an item as lane `lane` holds them, up where gated; f0, f1: the norms of its two tokens. */
DEV void write_tile(const mm_args &a, int item, int t, int lane, const float v[4], const float up[4], float f0, float f1)
{
    int panel;
    const int j = item_matrix(a, item, 0, &panel);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int token = 8 * t + 2 * (lane % 4) + i % 2, row = 16 * panel + lane / 4 + 8 * (i / 2);
        if (token >= a.n || row >= a.n_out[j]) continue;
        float *out = a.out[j] + (size_t)token * (size_t)a.n_out[j] + row;
        float y = a.norm ? __fmul_rn(v[i], i % 2 ? f1 : f0) : v[i];
        if (a.gated) y = __fmul_rn(act_gate(a.act, y), a.norm ? __fmul_rn(up[i], i % 2 ? f1 : f0) : up[i]);
        *out = a.add ? __fadd_rn(*out, y) : y;
    }
}
DEV void add_four(float v[4], const float4 &c)
{
    v[0] = __fadd_rn(v[0], c.x);
    v[1] = __fadd_rn(v[1], c.y);
    v[2] = __fadd_rn(v[2], c.z);
    v[3] = __fadd_rn(v[3], c.w);
}

/* Together: the items of one round, from shared memory [member][sub][slice][tile][lane]. */
template <int NT> DEV void merge_round(const mm_args &a, const mm_shared &m, const float4 *merge, int first_item, int round)
{
    const int subs = MM_WARPS / a.slice_warps, lane = threadIdx.x % 32;
    for (int i = (threadIdx.x / 32 + round) % MM_WARPS; i < subs * NT; i += MM_WARPS) {
        const int sub = i / NT, t = i % NT, item = first_item + sub * a.groups, token = 8 * t + 2 * (lane % 4);
        if (item >= a.n_items || token >= a.n) continue;
        float v[4], up[4];
        zero(v);
        zero(up);
        const float4 *p = merge + (sub * a.slices * NT + t) * 32 + lane;
        for (int s = 0; s < a.slices; s++) add_four(v, p[s * NT * 32]);
        if (a.gated)
            for (int s = 0; s < a.slices; s++) add_four(up, p[(subs * a.slices + s) * NT * 32]);
        const float2 f = *(const float2 *)(m.factor + token);
        write_tile(a, item, t, lane, v, up, f.x, f.y);
    }
}

DEV float *record_of(const mm_args &a, int item, int member, int slice, int tiles)
{
    return a.partial + (((size_t)item * (a.gated ? 2 : 1) + member) * (size_t)a.slices + slice) * (size_t)tiles * MM_RECORD;
}
/* Apart: all blocks of the group have left their sums; this one adds up its share of the group's (item, tile)s. */
template <int NT> DEV void merge_group(const mm_args &a, int group, int slice)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int items = a.n_items > group ? (a.n_items - group + a.groups - 1) / a.groups : 0;
    for (int i = slice * MM_WARPS + warp; i < items * NT; i += a.slices * MM_WARPS) {
        const int item = group + i / NT * a.groups, t = i % NT, token = 8 * t + 2 * (lane % 4);
        if (token >= a.n) continue;
        float v[4], up[4];
        float2 ss = make_float2(0.0f, 0.0f);
        zero(v);
        zero(up);
        const float *p = record_of(a, item, 0, 0, NT) + t * MM_RECORD, *u = p + a.slices * NT * MM_RECORD;
#pragma unroll 4
        for (int s = 0; s < a.slices; s++) {
            add_four(v, __ldcg((const float4 *)(p + s * NT * MM_RECORD) + lane));
            if (a.gated) add_four(up, __ldcg((const float4 *)(u + s * NT * MM_RECORD) + lane));
            if (a.norm) {
                const float2 q = __ldcg((const float2 *)(p + s * NT * MM_RECORD + 128) + lane % 4);
                ss.x = __fadd_rn(ss.x, q.x);
                ss.y = __fadd_rn(ss.y, q.y);
            }
        }
        write_tile(a, item, t, lane, v, up, norm_factor(a, ss.x), norm_factor(a, ss.y));
    }
}
/* Wait until all blocks of the group have come here. The counter only grows: a launch adds a.slices to it. */
DEV void group_wait(const mm_args &a, int group)
{
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned *c = a.count + group, now, target;
        target = (atomicAdd(c, 1u) / a.slices + 1) * a.slices;
        do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(c) : "memory");
        while ((int)(now - target) < 0);
    }
    __syncthreads();
}

/* ---- the kernel ---- */

template <class F, int NT>
__global__ void __launch_bounds__(32 * MM_WARPS, NT <= 4 ? 2 : 1) mm_kernel(const __grid_constant__ mm_args a)
{
    extern __shared__ __align__(128) uint8_t smem[];
    constexpr int stage_bytes = F::unit_bytes * F::stage_units, tokens = 8 * NT;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const mm_memory at = mm_memory_of(stage_bytes, F::unit_k, F::planes, F::sums, &a, NT);
    uint8_t *ring = smem + MM_BARS + (size_t)warp * a.stages * stage_bytes;
    uint64_t *bars = (uint64_t *)smem + warp * a.stages;
    const mm_shared m = {smem + at.act, smem + at.sums, (float *)(smem + at.inverse), (float *)(smem + at.squares),
                         (float *)(smem + at.factor), (float4 *)(smem + at.merge)};

    cuda_grid_early();
    if (a.bulk && lane == 0) {
        for (int i = 0; i < a.stages; i++) bar_init(bars + i);
        bar_fence();
    }
    __syncwarp();

    /* this warp's part: items first, + stride, ...; of each, slices first_slice + part, + slice_warps, ... */
    const bool together = a.block_slices == a.slices;
    const int group = together ? (int)blockIdx.x : (int)blockIdx.x / a.slices, first_slice = together ? 0 : (int)blockIdx.x % a.slices;
    const int sub = warp / a.slice_warps, part = warp % a.slice_warps, members = a.gated ? 2 : 1;
    const int first = group + sub * a.groups, stride = MM_WARPS / a.slice_warps * a.groups;

    int slot = 0, put = 0;
    uint32_t phase = 0;
    int next_item = part < a.block_slices ? first : a.n_items, next_member = 0, next_local = part, next_unit = 0, next_units = 0;
    const uint8_t *next = nullptr;
    auto seek = [&]() { /* the first stage of (next_item, next_member, next_local) */
        if (next_item >= a.n_items) return;
        const int unit0 = (first_slice + next_local) * a.slice_units;
        next = item_bytes(a, next_item, next_member) + (size_t)unit0 * F::unit_bytes;
        next_units = min(a.slice_units, a.units - unit0);
        next_unit = 0;
    };
    auto issue = [&]() {
        if (next_item < a.n_items) {
            const int bytes = min(F::stage_units, next_units - next_unit) * F::unit_bytes;
            uint8_t *dst = ring + put * stage_bytes;
            if (a.bulk) {
                if (lane == 0) copy_bulk(dst, next, bytes, bars + put);
            } else {
                for (int o = 16 * lane; o < bytes; o += 512) copy_async(dst + o, next + o);
            }
            next += bytes;
            next_unit += F::stage_units;
            if (next_unit >= next_units) {
                next_local += a.slice_warps;
                if (next_local >= a.block_slices) {
                    next_local = part;
                    if (++next_member == members) {
                        next_member = 0;
                        next_item += stride;
                    }
                }
                seek();
            }
        }
        if (!a.bulk) asm volatile("cp.async.commit_group;" ::: "memory");
        if (++put == a.stages) put = 0;
    };
    seek();
    for (int i = 0; i < a.stages; i++) issue();
    if (MM_SKIP(2)) cuda_grid_wait();
    else prologue<F, NT>(a, m, at.row_bytes, first_slice);

    mm_view<NT> view;
    view.plane_bytes = a.n * at.row_bytes;
#pragma unroll
    for (int t = 0; t < NT; t++) view.row[t] = min(8 * t + lane / 4, a.n - 1) * at.row_bytes + lane % 4 * 16;
    const uint8_t *sums = m.sums + (F::sums == MM_SUMS_K ? lane * 8 : lane % 4 * 8);
    constexpr int sums_columns = F::sums == MM_SUMS_K ? 256 : 32, sums_bytes = tokens * sums_columns / 8;

    const bool in_shared = together && (a.slices > 1 || a.gated);
    const int rounds = (a.n_items - group + stride - 1) / stride; /* the same for all warps: they meet in merge_round */
    for (int round = 0; round < rounds; round++) {
        const int item = first + round * stride;
        float4 *merge = m.merge + (NT == 1 ? round % 2 * (at.merge_bytes / 16) : 0);
        for (int member = 0; member < members && item < a.n_items; member++)
            for (int local = part; local < a.block_slices; local += a.slice_warps) {
                const int units = min(a.slice_units, a.units - (first_slice + local) * a.slice_units);
                float fin[NT][4];
#pragma unroll
                for (int t = 0; t < NT; t++) zero(fin[t]);
                for (int unit = 0; unit < units; unit += F::stage_units) {
                    if (a.bulk) {
                        bar_wait(bars + slot, phase);
                    } else {
                        copy_wait(a.stages);
                        __syncwarp();
                    }
                    const int column = (local * a.slice_units + unit) * F::unit_k;
                    view.b = m.act + column * 2;
                    view.sums = sums + column / sums_columns * sums_bytes;
                    if (!MM_SKIP(1)) F::template stage<NT>(fin, ring + slot * stage_bytes, min(F::stage_units, units - unit), view, lane);
                    __syncwarp();
                    issue();
                    if (++slot == a.stages) {
                        slot = 0;
                        phase ^= 1;
                    }
                }
#pragma unroll
                for (int t = 0; t < NT; t++) {
                    const int token = 8 * t + 2 * (lane % 4);
                    if (token >= a.n || MM_SKIP(4)) break;
                    const float2 inverse = *(const float2 *)(m.inverse + local * tokens + token);
                    const float4 c = make_float4(__fmul_rn(fin[t][0], inverse.x), __fmul_rn(fin[t][1], inverse.y),
                                                 __fmul_rn(fin[t][2], inverse.x), __fmul_rn(fin[t][3], inverse.y));
                    if (in_shared) {
                        merge[(((member * (MM_WARPS / a.slice_warps) + sub) * a.slices + local) * NT + t) * 32 + lane] = c;
                    } else if (together) {
                        float v[4];
                        const float2 f = *(const float2 *)(m.factor + token);
                        zero(v);
                        add_four(v, c);
                        write_tile(a, item, t, lane, v, v, f.x, f.y);
                    } else {
                        float *p = record_of(a, item, member, first_slice, NT) + t * MM_RECORD;
                        __stcg((float4 *)p + lane, c);
                        if (lane < 4) __stcg((float2 *)(p + 128) + lane, *(const float2 *)(m.squares + token));
                    }
                }
            }
        if (in_shared && !MM_SKIP(4)) {
            __syncthreads();
            merge_round<NT>(a, m, merge, group + round * stride, round);
            if (NT > 1) __syncthreads();
        }
    }
    if (!together && !MM_SKIP(4)) {
        group_wait(a, group);
        merge_group<NT>(a, group, first_slice);
    }
    if (!a.bulk) asm volatile("cp.async.wait_all;" ::: "memory");
}

template <class F> static mm_kernel_fn mm_pick_kernel(int log2_tiles)
{
    switch (log2_tiles) {
    case 0: return mm_kernel<F, 1>;
    case 1: return mm_kernel<F, 2>;
    case 2: return mm_kernel<F, 4>;
    case 3:
        if constexpr (F::tiles_max >= 8) return mm_kernel<F, 8>;
        return nullptr;
    default: return nullptr;
    }
}

#endif
