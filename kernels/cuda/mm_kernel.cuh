/* mm_kernel.cuh - the product kernel: rings of packed weights, activations, the loop, partial sums.
 *
 * Grid: slice_lanes * slice_blocks blocks of 8 warps. Block b works on slices b % slice_lanes, + slice_lanes, ... and there on items
 * b / slice_lanes + m * slice_blocks, its warps on every eighth m. Nothing but the weights is touched before cuda_grid_wait(): each warp
 * has its ring filled by then. Bound: the bytes of the weights, once. */
#ifndef DFLASH_CUDA_MM_KERNEL_CUH
#define DFLASH_CUDA_MM_KERNEL_CUH

#include "mm_frag.cuh"

#define MM_BARS 512 /* bytes of barriers: 8 warps * up to 8 stages */

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

/* Where a warp stands in its list of (panel, stage). */
struct mm_cursor {
    int item, member, unit;
    const uint8_t *p; /* the stage */
};

/* The matrix of an item, and the panel in it. */
DEV int item_matrix(const mm_args &a, int item, int member, int *panel)
{
    int j = member;
    *panel = a.first_item + item;
    if (!a.gated)
        while (*panel >= a.panel_end[j]) j++;
    if (!a.gated && j) *panel -= a.panel_end[j - 1];
    return j;
}
DEV const uint8_t *item_bytes(const mm_args &a, int item, int member, size_t slice_offset)
{
    int panel;
    const int j = item_matrix(a, item, member, &panel);
    return a.w[j] + (size_t)panel * (size_t)a.panel_bytes + slice_offset;
}

/* ---- activations of a slice: scaled, rounded, in shared memory ---- */

struct mm_shared {
    uint8_t *act, *sums;
    float *inverse, *squares; /* [tokens] */
    uint32_t *red_max;        /* [tokens][MM_WARPS] */
    float *red_squares;       /* [tokens][MM_WARPS] */
};

DEV float4 load_x(const mm_args &a, int token, int k, int end, const float4 &w)
{
    const float *x = a.x + (size_t)token * (size_t)a.n_in;
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (k + 3 < end && (a.n_in & 3) == 0) {
        v = *(const float4 *)(x + k);
    } else {
        if (k < end) v.x = x[k];
        if (k + 1 < end) v.y = x[k + 1];
        if (k + 2 < end) v.z = x[k + 2];
        if (k + 3 < end) v.w = x[k + 3];
    }
    if (a.norm) {
        v.x = __fmul_rn(v.x, w.x);
        v.y = __fmul_rn(v.y, w.y);
        v.z = __fmul_rn(v.z, w.z);
        v.w = __fmul_rn(v.w, w.w);
    }
    return v;
}
DEV float squares(const mm_args &a, int token, int k, int end)
{
    const float *x = a.x + (size_t)token * (size_t)a.n_in;
    float s = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (k + i < end) s = __fmaf_rn(x[k + i], x[k + i], s);
    return s;
}

DEV uint32_t pack_f16(float x, float y)
{
    const __half2 h = __floats2half2_rn(x, y);
    return *(const uint32_t *)&h;
}
/* Planes of (x, y) and their values' sum as the tensor core sees them (used with one plane). */
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

/* Columns k0 .. k0 + columns - 1 (a whole number of units; those past n_in are zero) of the n tokens. Each warp takes 128 columns
 * of every so many tokens; sums of squares are added over lanes, then over the slice's 128-column parts in order. */
template <class F, int NT> DEV void prologue(const mm_args &a, const mm_shared &m, int k0, int columns, int slice_columns, int row_bytes)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int parts = slice_columns > 512 ? 8 : slice_columns > 256 ? 4 : slice_columns > 128 ? 2 : 1;
    const int part = warp % parts, first = warp / parts, step = MM_WARPS / parts;
    const int at = 128 * part + 4 * lane, k = k0 + at, limit = min(a.n_in, k0 + columns);
    float4 w = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (a.norm) { /* constant: may be read before the wait */
        if (k < limit) w.x = a.norm[k];
        if (k + 1 < limit) w.y = a.norm[k + 1];
        if (k + 2 < limit) w.z = a.norm[k + 2];
        if (k + 3 < limit) w.w = a.norm[k + 3];
    }
    cuda_grid_wait();
#pragma unroll 4
    for (int t = first; t < a.n; t += step) {
        const float4 v = load_x(a, t, k, limit, w);
        const uint32_t x = __float_as_uint(v.x) & 0x7fffffff, y = __float_as_uint(v.y) & 0x7fffffff;
        const uint32_t z = __float_as_uint(v.z) & 0x7fffffff, u = __float_as_uint(v.w) & 0x7fffffff;
        const uint32_t top = __reduce_max_sync(0xffffffff, max(max(x, y), max(z, u)));
        float s = 0.0f;
        if (a.norm) {
            s = squares(a, t, k, limit);
#pragma unroll
            for (int o = 16; o; o /= 2) s = __fadd_rn(s, __shfl_xor_sync(0xffffffff, s, o));
        }
        if (lane == 0) {
            m.red_max[t * MM_WARPS + part] = top;
            m.red_squares[t * MM_WARPS + part] = s;
        }
    }
    __syncthreads();
    if (threadIdx.x < a.n) {
        float s = 0.0f;
        for (int p = 0; p < parts; p++) s = __fadd_rn(s, m.red_squares[threadIdx.x * MM_WARPS + p]);
        m.squares[threadIdx.x] = s;
    }
#pragma unroll 2
    for (int t = first; t < a.n; t += step) {
        uint32_t top = 0;
        for (int p = 0; p < parts; p++) top = max(top, m.red_max[t * MM_WARPS + p]);
        /* scale = 2^(9 - exponent of the largest), inverse = 1 / scale; both finite and exact */
        const uint32_t e = max(top >> 23, 9u);
        float scale = 1.0f, inverse = 1.0f;
        if (e != 255 && top) {
            scale = __uint_as_float((263 - e) << 23);
            inverse = __uint_as_float(e > 9 ? (e - 9) << 23 : 0x00400000);
        }
        if (part == 0 && lane == 0) m.inverse[t] = inverse;
        const float4 v = load_x(a, t, k, limit, w);
        const float x = __fmul_rn(v.x, scale), y = __fmul_rn(v.y, scale), z = __fmul_rn(v.z, scale), u = __fmul_rn(v.w, scale);
        uint32_t lo[F::planes], hi[F::planes];
        planes_of<F>(lo, x, y);
        planes_of<F>(hi, z, u);
        if (at < columns) {
            uint8_t *row = m.act + t * row_bytes + at / 32 * 64 + at % 16 / 4 * 16 + at / 16 % 2 * 8;
#pragma unroll
            for (int p = 0; p < F::planes; p++) *(uint2 *)(row + p * NT * 8 * row_bytes) = make_uint2(lo[p], hi[p]);
        }
        if (F::sums != MM_SUMS_NONE) {
            float s = __fadd_rn(__fadd_rn(h_low(lo[0]), h_high(lo[0])), __fadd_rn(h_low(hi[0]), h_high(hi[0])));
            s = __fadd_rn(s, __shfl_xor_sync(0xffffffff, s, 1));
            s = __fadd_rn(s, __shfl_xor_sync(0xffffffff, s, 2));
            s = __fadd_rn(s, __shfl_xor_sync(0xffffffff, s, 4));
            if (lane % 8 == 0 && at < columns) {
                const int group = at / 32;
                if (F::sums == MM_SUMS_K) {
                    const __half h = __float2half_rn(s), l = __float2half_rn(__fsub_rn(s, __half2float(h)));
                    __half *d = (__half *)(m.sums + (group / 8 * NT * 8 + t) * 32 + group % 8 / 2 * 8) + group % 2;
                    d[0] = h;
                    d[2] = l;
                } else {
                    ((float *)m.sums)[group * NT * 8 + t] = s;
                }
            }
        }
    }
    __syncthreads();
}

/* ---- results ---- */

DEV float act_gate(int act, float g)
{
    if (act == KN_ACT_SILU) return __fdiv_rn(g, __fadd_rn(1.0f, expf(-g)));
    const float c = __fmul_rn(0.7978845608028654f, __fmul_rn(g, __fmaf_rn(__fmul_rn(0.044715f, g), g, 1.0f)));
    return __fmul_rn(__fmul_rn(0.5f, g), __fadd_rn(1.0f, tanhf(c)));
}
DEV float norm_factor(const mm_args &a, float squares_sum)
{
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(squares_sum, (float)a.n_in), a.eps)));
}
/* v: a C fragment of tile t of an item: to out. */
DEV void write_tile(const mm_args &a, int item, int t, const float v[4])
{
    int panel;
    const int j = item_matrix(a, item, 0, &panel), lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int token = 8 * t + 2 * (lane % 4) + i % 2, row = 16 * panel + lane / 4 + 8 * (i / 2);
        if (token >= a.n || row >= a.n_out[j]) continue;
        float *out = a.out[j] + (size_t)token * (size_t)a.n_out[j] + row;
        *out = a.add ? __fadd_rn(*out, v[i]) : v[i];
    }
}
/* The sum over slices of record r0, r0 + 1, ... of tile t, normed. */
template <int NT> DEV void sum_slices(const mm_args &a, size_t r0, int t, float v[4])
{
    const int lane = threadIdx.x % 32;
    const float *p = a.partial + (r0 * NT + t) * MM_RECORD;
    float2 ss = make_float2(0.0f, 0.0f);
    zero(v);
#pragma unroll 4
    for (int s = 0; s < a.slices; s++, p += NT * MM_RECORD) {
        const float4 c = __ldcg((const float4 *)p + lane);
        v[0] = __fadd_rn(v[0], c.x);
        v[1] = __fadd_rn(v[1], c.y);
        v[2] = __fadd_rn(v[2], c.z);
        v[3] = __fadd_rn(v[3], c.w);
        if (a.norm) {
            const float2 q = __ldcg((const float2 *)(p + 128) + lane % 4);
            ss.x = __fadd_rn(ss.x, q.x);
            ss.y = __fadd_rn(ss.y, q.y);
        }
    }
    if (!a.norm) return;
    const float f0 = norm_factor(a, ss.x), f1 = norm_factor(a, ss.y);
    v[0] = __fmul_rn(v[0], f0);
    v[1] = __fmul_rn(v[1], f1);
    v[2] = __fmul_rn(v[2], f0);
    v[3] = __fmul_rn(v[3], f1);
}

/* One (panel, slice) is done: write it; the last of its item adds up and writes the results. fin is scaled here. */
template <int NT> DEV void finish(const mm_args &a, const mm_shared &m, int item, int member, int slice, float fin[NT][4])
{
    const int lane = threadIdx.x % 32, q = lane % 4, members = a.gated ? 2 : 1;
    const bool direct = a.slices == 1 && !a.gated;
    const size_t record = (size_t)(item * members) * (size_t)a.slices;
#pragma unroll
    for (int t = 0; t < NT; t++) {
        const int token = 8 * t + 2 * q;
        if (8 * t >= a.n) break;
        if (token < a.n) {
            const float2 inverse = *(const float2 *)(m.inverse + token), ss = *(const float2 *)(m.squares + token);
            float4 c = make_float4(__fmul_rn(fin[t][0], inverse.x), __fmul_rn(fin[t][1], inverse.y),
                                   __fmul_rn(fin[t][2], inverse.x), __fmul_rn(fin[t][3], inverse.y));
            if (direct) {
                float v[4] = {c.x, c.y, c.z, c.w};
                if (a.norm) {
                    const float f0 = norm_factor(a, ss.x), f1 = norm_factor(a, ss.y);
                    v[0] = __fmul_rn(v[0], f0);
                    v[1] = __fmul_rn(v[1], f1);
                    v[2] = __fmul_rn(v[2], f0);
                    v[3] = __fmul_rn(v[3], f1);
                }
                write_tile(a, item, t, v);
            } else {
                float *p = a.partial + ((record + member * a.slices + slice) * NT + t) * MM_RECORD;
                __stcg((float4 *)p + lane, c);
                if (lane < 4) __stcg((float2 *)(p + 128) + q, ss);
            }
        }
    }
    if (direct) return;
    __threadfence();
    __syncwarp();
    unsigned before = 0;
    if (lane == 0) before = atomicAdd(a.count + item, 1u);
    before = __shfl_sync(0xffffffff, before, 0);
    if (before != (unsigned)(members * a.slices - 1)) return;
    __threadfence();
    if (lane == 0) a.count[item] = 0;
    for (int t = 0; 8 * t < a.n; t++) {
        if (8 * t + 2 * q >= a.n) break;
        float v[4];
        sum_slices<NT>(a, record, t, v);
        if (a.gated) {
            float up[4];
            sum_slices<NT>(a, record + a.slices, t, up);
#pragma unroll
            for (int i = 0; i < 4; i++) v[i] = __fmul_rn(act_gate(a.act, v[i]), up[i]);
        }
        write_tile(a, item, t, v);
    }
}

/* ---- the kernel ---- */

template <class F, int NT>
__global__ void __launch_bounds__(32 * MM_WARPS, NT <= 4 ? 2 : 1) mm_kernel(const __grid_constant__ mm_args a)
{
    extern __shared__ __align__(128) uint8_t smem[];
    constexpr int stage_bytes = F::unit_bytes * F::stage_units, tokens = 8 * NT;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int slice_columns = a.slice_units * F::unit_k, row_bytes = 2 * slice_columns + 64;
    uint8_t *ring = smem + MM_BARS + (size_t)warp * a.stages * stage_bytes;
    uint64_t *bars = (uint64_t *)smem + warp * a.stages;
    mm_shared m;
    m.act = smem + MM_BARS + MM_WARPS * a.stages * stage_bytes;
    m.sums = m.act + F::planes * tokens * row_bytes;
    m.inverse = (float *)(m.sums + (F::sums == MM_SUMS_K    ? slice_columns / 256 * tokens * 32
                                    : F::sums == MM_SUMS_32 ? slice_columns / 32 * tokens * 4
                                                            : 0));
    m.squares = m.inverse + tokens;
    m.red_max = (uint32_t *)(m.squares + tokens);
    m.red_squares = (float *)(m.red_max + tokens * MM_WARPS);

    cuda_grid_early();
    if (a.bulk && lane == 0) {
        for (int i = 0; i < a.stages; i++) bar_init(bars + i);
        bar_fence();
    }
    __syncwarp();

    const int members = a.gated ? 2 : 1, stride = MM_WARPS * a.slice_blocks;
    const int first = (int)blockIdx.x / a.slice_lanes + warp * a.slice_blocks;
    int slot = 0, put = 0;
    uint32_t phase = 0;
    for (int slice = (int)blockIdx.x % a.slice_lanes; slice < a.slices; slice += a.slice_lanes) {
        const int unit0 = slice * a.slice_units, units = min(a.slice_units, a.units - unit0);
        const size_t offset = (size_t)unit0 * F::unit_bytes;
        mm_cursor next = {first, 0, 0, nullptr};
        if (first < a.n_items) next.p = item_bytes(a, first, 0, offset);
        auto issue = [&]() {
            if (next.item < a.n_items) {
                const int count = min(F::stage_units, units - next.unit), bytes = count * F::unit_bytes;
                uint8_t *dst = ring + put * stage_bytes;
                if (a.bulk) {
                    if (lane == 0) copy_bulk(dst, next.p, bytes, bars + put);
                } else {
                    for (int o = 16 * lane; o < bytes; o += 512) copy_async(dst + o, next.p + o);
                }
                next.p += bytes;
                next.unit += F::stage_units;
                if (next.unit >= units) {
                    next.unit = 0;
                    if (++next.member == members) {
                        next.member = 0;
                        next.item += stride;
                    }
                    if (next.item < a.n_items) next.p = item_bytes(a, next.item, next.member, offset);
                }
            }
            if (!a.bulk) asm volatile("cp.async.commit_group;" ::: "memory");
            if (++put == a.stages) put = 0;
        };
        put = slot;
        for (int i = 0; i < a.stages; i++) issue();
        prologue<F, NT>(a, m, unit0 * F::unit_k, units * F::unit_k, slice_columns, row_bytes);

        mm_view view;
        view.row_bytes = row_bytes;
        view.plane_bytes = tokens * row_bytes;
        view.sums_step = F::sums == MM_SUMS_K ? tokens * 32 : tokens * 4;
        const uint8_t *act = m.act + lane / 4 * row_bytes + lane % 4 * 16;
        const uint8_t *sums = m.sums + (F::sums == MM_SUMS_K ? lane * 8 : lane % 4 * 8);
        for (int item = first; item < a.n_items; item += stride) {
            for (int member = 0; member < members; member++) {
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
                    view.b = act + unit * F::unit_k * 2;
                    view.sums = sums + unit * F::unit_k / (F::sums == MM_SUMS_K ? 256 : 32) * view.sums_step;
                    F::template stage<NT>(fin, ring + slot * stage_bytes, min(F::stage_units, units - unit), view, lane);
                    __syncwarp();
                    issue();
                    if (++slot == a.stages) {
                        slot = 0;
                        phase ^= 1;
                    }
                }
                finish<NT>(a, m, item, member, slice, fin);
            }
        }
        __syncthreads(); /* before the next slice's activations */
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
