/* prep_ahead.cuh - for the small kernels between K types' products of few rows (prep.cu): what can be done
 * before the product ends is done then, and what is left is few instructions. The bits of prep.cuh,
 * prep_block.cuh and owed.cuh.
 *
 * Such a kernel runs through its code once, cold, so an instruction costs 2 to 4 clocks: quotients and roots
 * are the steps that the compiler has for them where no operand is extreme, and one check leads to __fdiv_rn
 * and __fsqrt_rn where one is.
 *
 * Wins: 8B at 2, 8, 16 rows 1.871 to 1.842, 2.060 to 2.005, 2.252 to 2.170 ms; 27B at 16 rows 6.211 to
 * 6.018. dflash-bench rows -m 27b-q4_k_m.gguf --device cuda --rows 1,2,4,8,16 --context 512 */
#ifndef DFLASH_CUDA_PREP_AHEAD_CUH
#define DFLASH_CUDA_PREP_AHEAD_CUH

#include "../core/cluster.cuh"
#include "prep.cuh"

#define AHEAD_REGISTERS 96 /* of so many those products leave a warp on each scheduler (mm_few.cuh) */
#define AHEAD_SLICES 8     /* whose values are on their way together */

/* Here it is computed: the compiler moves none of it behind what follows. */
template <class T> DEV void ahead_now(T *&p)
{
    asm volatile("" : "+l"(p));
}
DEV void ahead_now(unsigned &v)
{
    asm volatile("" : "+r"(v));
}
/* Read again, not kept: registers are few. */
DEV unsigned ahead_thread()
{
    unsigned v;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(v));
    return v;
}
DEV unsigned ahead_token()
{
    unsigned v;
    asm volatile("mov.u32 %0, %%ctaid.y;" : "=r"(v));
    return v;
}

/* ---- quotients ---- */

DEV float ahead_rcp(float x)
{
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return __fmaf_rn(r, __fmaf_rn(-x, r, 1.0f), r);
}
/* x / y; r: ahead_rcp(y). y within 2^+-120, the quotient and 2^24 times less are normal. */
DEV float ahead_div(float x, float y, float r)
{
    const float q = __fmul_rn(x, r);
    return __fmaf_rn(r, __fmaf_rn(-y, q, x), q);
}
/* Bits of a float from 2^low up to 2^high? */
DEV bool ahead_within(uint32_t bits, int low, int high)
{
    return bits - ((uint32_t)(127 + low) << 23) < (uint32_t)(high - low) << 23;
}
static __device__ __noinline__ float ahead_inverse_rms_far(float s, float n, float eps)
{
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(s, n), eps)));
}
/* 127 / amax, amax / 127 as round_block has them; the first is 0 where all codes are. */
static __device__ __noinline__ float2 ahead_quotients_far(uint32_t top)
{
    const bool odd = top >= 0x7f800000, none = odd || __uint_as_float(top) < 1e-30f;
    const float amax = __uint_as_float(top);
    return make_float2(none ? 0.0f : __fdiv_rn(127.0f, amax), odd    ? __uint_as_float(0x7fc00000)
                                                              : none ? 0.0f
                                                                     : __fdiv_rn(amax, 127.0f));
}
/* 1 / sqrt(s / n + eps), s >= 0; r: ahead_rcp(n), n a number of columns. */
DEV float ahead_inverse_rms(float s, float n, float r, float eps)
{
    const float x = __fadd_rn(ahead_div(s, n, r), eps);
    if (__builtin_expect(!ahead_within(__float_as_uint(x), -80, 100), 0))
        return ahead_inverse_rms_far(s, n, eps);
    float i;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(i) : "f"(x));
    const float y = __fmul_rn(x, i), root = __fmaf_rn(__fmaf_rn(-y, y, x), __fmul_rn(i, 0.5f), y);
    const float q = ahead_rcp(root);
    return __fmaf_rn(q, __fmaf_rn(-root, q, 1.0f), q);
}
/* round_block, of N blocks that are WHOLE. */
template <int N> DEV void ahead_round(rounded r[N], float v[N][8])
{
    uint32_t top[N];
    float inverse[N];
    bool far = false;
#pragma unroll
    for (int b = 0; b < N; b++) {
        top[b] = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) top[b] = max(top[b], __float_as_uint(v[b][i]) & 0x7fffffff);
        top[b] = __reduce_max_sync(0xffffffff, top[b]);
        const float amax = __uint_as_float(top[b]);
        inverse[b] = ahead_div(127.0f, amax, ahead_rcp(amax));
        r[b].d = ahead_div(amax, 127.0f, ahead_rcp(127.0f));
        far |= !ahead_within(top[b], -90, 120);
    }
    if (__builtin_expect(far, 0))
#pragma unroll
        for (int b = 0; b < N; b++) {
            const float2 q = ahead_quotients_far(top[b]);
            inverse[b] = q.x, r[b].d = q.y;
            if (q.x == 0.0f)
#pragma unroll
                for (int i = 0; i < 8; i++) v[b][i] = 0.0f;
        }
#pragma unroll
    for (int b = 0; b < N; b++)
        r[b].w0 = round_four(v[b], inverse[b]), r[b].w1 = round_four(v[b] + 4, inverse[b]);
}

/* ---- a block of columns that K types' products of few rows want (a.side) ---- */

/* Where a lane stores: from a.rows, from a.side. */
struct ahead_place {
    unsigned codes, sums;
};
DEV ahead_place ahead_place_of(const mm_prep &a, int block, int token)
{
    const int lane = threadIdx.x % 32, slice = block / a.slice_units, k = lane / 2 % 4;
    ahead_place p;
    p.codes = (unsigned)((token * a.slices + slice) * a.slice_row + 256 * (block - slice * a.slice_units) +
                         64 * (lane / 8) + 32 * (lane % 2) + 8 * (lane / 4 % 2) + 4 * (lane / 2 % 2));
    p.sums = (unsigned)block * FEW_SIDE(a.tiles) + (unsigned)(32 * token + 8 * (lane / 8) +
                                                              (k == 1   ? 4
                                                               : k == 2 ? 2
                                                                        : 2 * k));
    return p;
}
/* store_block, of N blocks, those that there are. */
template <int N> DEV void ahead_store(const mm_prep &a, const ahead_place p[N], float v[N][8], int there)
{
    const unsigned lane = ahead_thread() % 32;
    const int to_scale = 256 * a.tiles - 28 * (int)ahead_token(); /* from the place of lane 0's sums */
    rounded r[N];
    int sum[N];
    ahead_round<N>(r, v);
#pragma unroll
    for (int b = 0; b < N; b++) {
        uint8_t *const codes = a.rows + p[b].codes;
        sum[b] = __dp4a((int)r[b].w0, 0x01010101, __dp4a((int)r[b].w1, 0x01010101, 0));
        sum[b] += __shfl_xor_sync(0xffffffff, sum[b], 1);
        if (b < there) {
            *(uint32_t *)codes = r[b].w0;
            *(uint32_t *)(codes + 16) = r[b].w1;
        }
    }
#pragma unroll
    for (int b = 0; b < N; b++) {
        uint8_t *const sums = a.side + p[b].sums;
        if (b < there && lane == 0) *(float *)(sums + to_scale) = r[b].d;
        if (b < there && lane % 2 == 0) *(__half *)sums = __int2half_rn(sum[b]);
    }
}

/* ---- a row of a cluster ---- */

/* What is known before the kernel is launched. */
struct ahead_args {
    float n, r;            /* columns, 1 / that */
    const float *from;     /* slices; or rows that are whole, as the only one */
    float *out;            /* what the sums are added to, or NULL: they are whole */
    unsigned step, slices; /* floats from one to the next; 8, 4 or 1 */
    float zero;            /* what they are added to: -0 changes nothing */
    int32_t blocks;
};
/* What a lane has ready, in shared memory, where the compiler does not compute it again. */
struct __align__(16) ahead_lane
{
    ahead_place place;
    unsigned give, there; /* of a block of the cluster, if the lane has one: where this warp's squares belong,
                             what counts them */
};
/* Its address in shared memory. mine: where this warp's squares belong; bar: counts them. */
DEV unsigned ahead_ready(ahead_lane *lanes, const ahead_place &place, const float *mine, unsigned bar)
{
    const unsigned lane = threadIdx.x % 32, there = cluster_at(bar, lane < gridDim.x ? lane : 0);
    lanes[threadIdx.x] = {place, lane < gridDim.x ? there + shared_at(mine) - bar : 0, there};
    return shared_at(lanes + threadIdx.x);
}
DEV float4 ahead_shared(unsigned at)
{
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}
DEV void ahead_load(float v[8], const float *p)
{
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
                 : "l"(p)
                 : "memory");
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4 + 16];"
                 : "=f"(v[4]), "=f"(v[5]), "=f"(v[6]), "=f"(v[7])
                 : "l"(p)
                 : "memory");
}
/* v += the N slices at p, in ascending order; all loads first. OLD: x = what is at `old`, too. */
template <int N, bool OLD>
DEV void ahead_sums(float v[8], float x[8], const float *const p[AHEAD_SLICES], const float *old)
{
    float u[N][8];
#pragma unroll
    for (int s = 0; s < N; s++) ahead_load(u[s], p[s]);
    if (OLD) ahead_load(x, old);
#pragma unroll
    for (int s = 0; s < N; s++)
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = __fadd_rn(v[i], u[s][i]);
}
/* v = a lane's columns of the row. OLD: slices are added to what is at `old`. */
template <bool OLD>
DEV void ahead_values(float v[8], const ahead_args &h, const float *const from[AHEAD_SLICES],
                      const float *old)
{
    float x[8];
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = h.zero, x[i] = -0.0f;
    if (h.slices == 8)
        ahead_sums<8, OLD>(v, x, from, old);
    else if (h.slices == 4)
        ahead_sums<4, OLD>(v, x, from, old);
    else
        ahead_sums<1, false>(v, x, from, old);
    if (OLD)
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = __fadd_rn(x[i], v[i]);
}
/* The inverse root of the row's mean square; s: of this warp's block, given to all blocks of the cluster.
 * square: of this lane's, in shared memory. */
DEV float ahead_exchange(float s, unsigned give, unsigned there, unsigned square, unsigned bar,
                         const ahead_args &h, float eps)
{
    asm_90("{\n.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n"
           "@p st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];\n}" ::"r"(give),
           "f"(s), "r"(there)
           : "memory");
    cluster_bar_wait(bar);
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(s) : "r"(square) : "memory");
#pragma unroll
    for (int o = 16; o; o /= 2) s = __fadd_rn(s, __shfl_xor_sync(0xffffffff, s, o));
    return ahead_inverse_rms(s, h.n, h.r, eps);
}

#endif
