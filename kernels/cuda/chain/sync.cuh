/* chain/sync.cuh - how the warps and blocks of a chain wait for each other. */
#ifndef DFLASH_CUDA_CHAIN_SYNC_CUH
#define DFLASH_CUDA_CHAIN_SYNC_CUH

#include "../core/bulk.cuh"
#include "chain.cuh"

#define DEV static __device__ __forceinline__

/* A wait that is no wait any more is a fault of this code: the launch ends with an error, not never. */
#define CHAIN_PATIENCE (1u << 23)
static __device__ __noinline__ void chain_fault()
{
    __trap();
}

/* ---- in a block ---- */

/* The matrix of a pair, its panel in it (the first of two, where not gated), and whether there is a second.
 */
DEV const chain_matrix &pair_of(const chain_step &s, int pair, int *panel, bool *two)
{
    int j = 0;
    if (s.gated) {
        *panel = pair;
        *two = true;
        return s.m[0];
    }
    while (pair >= s.m[j].pair_end) j++;
    *panel = 2 * (j ? pair - s.m[j - 1].pair_end : pair);
    *two = 16 * *panel + 16 < s.m[j].n_out;
    return s.m[j];
}
/* The block's number where a step's pairs are given out: its first has number 0. */
DEV int block_of(const chain_step &s)
{
    const int b = (int)blockIdx.x - s.first;
    return b < 0 ? b + (int)gridDim.x : b;
}
/* Pairs of this block: its number, + gridDim.x, ... */
DEV int pairs_here(const chain_step &s)
{
    return s.rounds + (block_of(s) < s.rest ? 1 : 0);
}

/* The warp's number, and any value that all its lanes have, so that the compiler knows it too: where it does
 * not, it guards every wait, vote and loop for lanes that are elsewhere (50 clocks a turn of a loop). */
DEV int same_of(int v)
{
    return __shfl_sync(0xffffffff, v, 0);
}
DEV int warp_of()
{
    return same_of((int)threadIdx.x / 32);
}
/* threadIdx.x and blockIdx.x, read again: what is made of them is not kept in a register, or in local memory,
 * until then. */
DEV unsigned thread_now()
{
    unsigned t;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
    return t;
}
DEV unsigned block_now()
{
    unsigned b;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(b));
    return b;
}
DEV void chain_meet() /* the warps that multiply */
{
    asm volatile("bar.sync 1, %0;" ::"n"(32 * CHAIN_WARPS) : "memory");
}
DEV void chain_early_over(bool meet) /* they, and the warp that writes early outputs, which goes on */
{
    if (meet)
        asm volatile("bar.sync 3, %0;" ::"n"(32 * CHAIN_WARPS + 32) : "memory");
    else
        asm volatile("bar.arrive 3, %0;" ::"n"(32 * CHAIN_WARPS + 32) : "memory");
}
DEV void chain_heads_meet() /* those that attend */
{
    asm volatile("bar.sync 2, %0;" ::"n"(32 * CHAIN_HEADS) : "memory");
}
/* A thread: the first descriptors are on their way. */
DEV void first_steps(const chain_args &a, chain_step *steps, uint64_t *told)
{
    for (int i = 0; i < 2 && i < a.count; i++) {
        bar_expect(told + i, sizeof(chain_step));
        copy_bulk_to(steps + i, a.step + i, sizeof(chain_step), told + i);
    }
}
/* Sixteen values as lanes that each have one and exchange them add them up; without the exchanges. */
DEV float sum_16(const float *p)
{
    float v[16];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float4 f = *(const float4 *)(p + 4 * i);
        v[4 * i] = f.x, v[4 * i + 1] = f.y, v[4 * i + 2] = f.z, v[4 * i + 3] = f.w;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = __fadd_rn(v[i], v[i + 8]);
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = __fadd_rn(v[i], v[i + 4]);
    return __fadd_rn(__fadd_rn(v[0], v[2]), __fadd_rn(v[1], v[3]));
}
/* 1 / sqrt(t) as __frcp_rn(__fsqrt_rn(t)) has it, to the bit: what these do where nothing is close to the
 * ends of what a float is, without two checks on the way. */
DEV float inverse_root(float t)
{
    if (!(t > 0x1p-60f && t < 0x1p60f)) return __frcp_rn(__fsqrt_rn(t));
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(t));
    const float g = __fmul_rn(t, y), root = __fmaf_rn(__fmaf_rn(-g, g, t), __fmul_rn(0.5f, y), g);
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(root));
    return __fmaf_rn(y, __fmaf_rn(-root, y, 1.0f), y);
}
/* The factor of a norm of n_in columns, from the squares of its blocks of 256, as prepare_row adds them. */
DEV float norm_factor(const chain_step &s, const float *squares, int lane, int blocks, int n_in)
{
    float ss = 0.0f;
    if (blocks == 16) {
        ss = sum_16(squares);
    } else {
        for (int b = lane; b < blocks; b += 32) ss = __fadd_rn(ss, squares[b]);
#pragma unroll
        for (int o = 16; o; o /= 2) ss = __fadd_rn(ss, __shfl_xor_sync(0xffffffff, ss, o));
    }
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(ss, (float)n_in), s.eps)));
}
/* ---- between blocks ----
 * Values: a word that stands for itself; until it is written, CHAIN_NOT_YET stands there, a NaN that no
 * arithmetic gives. Partial results of attention: {value, tag}. */
#define CHAIN_NOT_YET 0xffffffffu
DEV void value_put(float *to, float v)
{
    const uint32_t x = __float_as_uint(v);
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(x == CHAIN_NOT_YET ? 0x7fffffff : x)
                 : "memory");
}
DEV bool value_get(float *v, const float *from)
{
    uint32_t x;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    *v = __uint_as_float(x);
    return x != CHAIN_NOT_YET;
}
/* Two neighbours at `to`; each half of the 16 bytes bears the tag. */
DEV void pair_put(uint2 *to, float v, float w, unsigned tag)
{
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(to), "r"(__float_as_uint(v)),
                 "r"(tag), "r"(__float_as_uint(w))
                 : "memory");
}
DEV bool one_try(float *v, const uint2 *from, unsigned tag)
{
    uint32_t x, t;
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(x), "=r"(t) : "l"(from) : "memory");
    *v = __uint_as_float(x);
    return t == tag;
}
/* Of several, those are asked for that are not there yet, whose tags are others, and all of them before one
 * is looked at: what is looked at is waited for; and who asks again for what it has is in the way of who
 * writes. */
DEV void one_ask(uint2 &x, const uint2 *from, unsigned tag)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.u32 p, %1, %3;\n@p ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];\n}"
        : "+r"(x.x), "+r"(x.y)
        : "l"(from), "r"(tag)
        : "memory");
}
DEV void pair_ask(uint4 &x, const uint2 *from, unsigned tag)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %1, %5;\nsetp.ne.or.u32 p, %3, %5, p;\n@p "
                 "ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
                 : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w)
                 : "l"(from), "r"(tag)
                 : "memory");
}
struct value_wait {
    unsigned turns = 0;
    __device__ __forceinline__ bool more(bool again)
    {
        if (again && ++turns == CHAIN_PATIENCE) chain_fault();
        return again;
    }
};
/* Four values at p, asked for where they are not there yet; have they come? */
DEV void four_ask(float v[4], const float *p, unsigned there)
{
    asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, %4, 0;\n@p ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, "
                 "[%5];\n}"
                 : "+f"(v[0]), "+f"(v[1]), "+f"(v[2]), "+f"(v[3])
                 : "r"(there), "l"(p)
                 : "memory");
}
DEV bool four_there(const float v[4])
{
    bool here = true;
#pragma unroll
    for (int j = 0; j < 4; j++) here = here && __float_as_uint(v[j]) != CHAIN_NOT_YET;
    return here;
}
/* Columns 8 lane .. of n <= B blocks of a row, of which p is the first and STRIDE to the next. Ask: all at
 * once, one trip. Settle: until they are there; only what was not is asked for again. */
template <int B, int STRIDE>
DEV void values_ask(float v[B][8], const float *p, int n, unsigned there, int stride = STRIDE)
{
#pragma unroll
    for (int c = 0; c < B; c++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            four_ask(v[c] + 4 * i, p + 256 * stride * c + threadIdx.x % 32 * 8 + 4 * i,
                     (there >> (2 * c + i) & 1) | (c < n ? 0u : 1u));
}
template <int B, int STRIDE> DEV void values_settle(float v[B][8], const float *p, int n, int stride = STRIDE)
{
    value_wait wait;
    for (;;) {
        unsigned there = 0;
        bool all = true;
#pragma unroll
        for (int c = 0; c < B; c++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const bool here = four_there(v[c] + 4 * i) || c >= n;
                there |= here ? 1u << (2 * c + i) : 0;
                all = all && here;
            }
        if (!wait.more(!__all_sync(0xffffffff, all))) return;
        values_ask<B, STRIDE>(v, p, n, there, stride);
    }
}

#endif
