/* chain/split.cuh - pairs of panels that would be left over if all blocks had equally many: all blocks have a
 * part of them.
 *
 * Concepts. Of s.split pairs the blocks take *pieces* in turn, some units of both panels each: whole slices,
 * or single tiles where that is more even. A block multiplies them first in its step. Who adds their terms is
 * the warp that plans steps, which has little to do else, meanwhile the others multiply the block's own
 * pairs: the sum of a slice, as mm_kernel.cuh adds it, is handed on as {value, tag} (args.sums) to the block
 * whose output it is; where two blocks share a slice, the first hands on what it has and the second goes on
 * with it, so that the order is that of the slice. Places are used by two such steps in turn: by the time a
 * block has sums for the second step behind, its row depends on all outputs of this one, so on whatever was
 * read for them.
 *
 * Wins: 5,120 columns 66.9 to 64.0 us a layer (27B, one row). dflash-bench rows -m 27b-q4_k_m.gguf
 * --device cuda --rows 1 --context 512 */
#ifndef DFLASH_CUDA_CHAIN_SPLIT_CUH
#define DFLASH_CUDA_CHAIN_SPLIT_CUH

#include "pair.cuh"
#include "ring.cuh"

/* Outputs from terms: 2^share lanes an output, each with every so manieth slice. */
struct chain_output {
    int at;        /* among the step's values; -1: none */
    unsigned bits; /* of its term, 14; whether the factors are the terms' own, 1; its matrix, 2; its number of
                      the block's outputs, 15 */
};
/* Do the terms of the type have factors of their own? */
DEV bool own_factors(uint32_t type)
{
    return type == KN_Q6_K || type == KN_IQ4_XS || type == KN_Q3_K || grid_has(type);
}
DEV chain_output output_here(const chain_step &s, int pairs, int item, int share)
{
    const int lane = threadIdx.x % 32, term = (int)s.terms / 4, log = 5 - share, width = 1 << log,
              at = lane & (width - 1), pair = item >> share, part = item & ((1 << share) - 1);
    chain_output c = {-1, 0};
    if (pair >= pairs) return c;
    const int all = pair_at(s, pair);
    int j = 0, panel = all, which = at + (part << log);
    if (s.gated) { /* half of the lanes gates, half their ups */
        const int half = width / 2;
        which = (at & (half - 1)) + half * part + (at >= half ? 16 : 0);
    } else {
        while (all >= s.m[j].pair_end) j++;
        panel = 2 * (j ? all - s.m[j - 1].pair_end : all);
    }
    const int row = 16 * panel + (s.gated ? which & 15 : which);
    if (row < s.m[j].n_out) c.at = s.m[j].column + row;
    c.bits = (unsigned)((2 * pair + which / 16) * term + which % 16) |
             (own_factors(s.m[j].type) ? 1u << 14 : 0) | (unsigned)j << 15 |
             (unsigned)(32 * pair + which) << 17;
    return c;
}
static __device__ __noinline__ chain_output output_of(const chain_step &s, int pairs, int item, int share)
{
    return output_here(s, pairs, item, share);
}

/* Both: the warps that multiply, behind a step's outputs, and the one that adds: it has read the terms. */
DEV void split_meet()
{
    asm volatile("bar.sync 5, %0;" ::"n"(32 * CHAIN_WARPS + 32) : "memory");
}
DEV void split_read()
{
    asm volatile("bar.arrive 5, %0;" ::"n"(32 * CHAIN_WARPS + 32) : "memory");
}
DEV void one_put(uint2 *to, float v, unsigned tag)
{
    asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(__float_as_uint(v)), "r"(tag)
                 : "memory");
}

/* A run of units of one slice that the block has: a lane knows one, for all. What depends on nothing but the
 * step is made before its terms are there. */
struct split_run {
    int at, unit, n; /* of the room that pieces have, in units; the first; how many */
    int to; /* where its sum goes, among args.sums; SPLIT_GOES_ON: with what the block before left over;
               SPLIT_FACTORS: these are beside the terms, else by units */
};
enum { SPLIT_GOES_ON = 65536, SPLIT_FACTORS = 131072, SPLIT_TO = 65535 };
/* The runs of the block's pieces, of which the last is one that goes on; returns how many. */
DEV int split_runs(const chain_step &s, split_run &mine)
{
    const split_part g = split_part_of(s);
    const int lane = threadIdx.x % 32, units = s.units, wide = s.per * s.piece_cuts,
              slice_units = s.slice_units, over = s.split * s.slices;
    int pair = g.pair, left = g.n, piece = g.piece, runs = 0;
    bool goes_on = false;
    int u = piece * s.piece, slice = u / slice_units;
    split_run first = {};
#pragma unroll 1
    while (left > 0) { /* a pair */
        const int here = min(left, s.pieces - piece), end = min((piece + here) * s.piece, units),
                  base = wide * (s.pieces * (pair - g.pair) - g.piece);
        int panel;
        bool two;
        const bool factors = own_factors(pair_of(s, s.rounds * (int)gridDim.x + pair, &panel, &two).type);
#pragma unroll 1
        while (u < end) {
            const int from = slice * slice_units, whole = min(from + slice_units, units),
                      until = min(whole, end);
            split_run r = {base + (wide - s.piece) * slice + u, u, until - u,
                           (until == whole ? pair * s.slices + slice : over + g.number) |
                               (factors ? SPLIT_FACTORS : 0)};
            if (u > from) {
                r.to |= SPLIT_GOES_ON;
                first = r, goes_on = true;
            } else {
                if (lane == runs) mine = r;
                runs++;
            }
            u = until, slice++;
        }
        left -= here, piece = 0, pair++, u = 0, slice = 0;
    }
    if (goes_on) {
        if (lane == runs) mine = first;
        runs++;
    }
    return runs;
}
static __device__ __noinline__ void split_sums(const chain_args &a, uint8_t *smem, int i, int turn)
{
    constexpr int MOST = 8; /* slices */
    const chain_step &s = ((const chain_step *)(smem + CHAIN_K_STEPS))[i % CHAIN_DESCS];
    const volatile uint32_t *const state = (const uint32_t *)(smem + CHAIN_K_STATE);
    const int lane = threadIdx.x % 32, slices = s.slices, pair = block_of(s), beside = s.split_beside,
              number = split_part_of(s).number;
    split_run mine = {};
    const int runs = split_runs(s, mine);
    const float *const terms = (const float *)(smem + a.terms) + s.rounds * 2 * ((int)s.terms / 4) +
                               lane / 16 * s.split_term + lane % 16,
                       *const scale = chain_row_at(smem + a.act, s.units).scale;
    uint2 *const sums = a.sums + (turn & 1) * (32 * CHAIN_SPLIT_SUMS) + lane;
    /* The pair that is the block's to write. */
    const unsigned flags = s.flags;
    const bool writes = pair < s.split;
    chain_output c = {-1, 0};
    if (writes) c = output_of(s, s.rounds + 1, s.rounds, 0);
    const bool puts = c.at >= 0 && (!(flags & CHAIN_GATED) || lane < 16);
    float *const keep = (float *)(smem + CHAIN_K_KEEP) + (c.bits >> 17),
                 *const out = flags & CHAIN_OUT && puts && s.m[c.bits >> 15 & 3].out
                                  ? s.m[c.bits >> 15 & 3].out + (c.at - s.m[c.bits >> 15 & 3].column)
                                  : nullptr;
    float *values = a.values + s.at + c.at;
    bar_wait((uint64_t *)(smem + CHAIN_K_SPLIT), turn & 1);
    const unsigned tag = state[0] + 1 + (unsigned)i;
#pragma unroll 1
    for (int k = 0; k < runs; k++) {
        const int at = __shfl_sync(~0u, mine.at, k), u = __shfl_sync(~0u, mine.unit, k),
                  n = __shfl_sync(~0u, mine.n, k), to = __shfl_sync(~0u, mine.to, k);
        const float *p = terms + 16 * at, *f = to & SPLIT_FACTORS ? p + beside : scale + u;
        const int on = to & SPLIT_FACTORS ? 16 : 1;
        float fin = 0.0f;
        if (to & SPLIT_GOES_ON) {
            const uint2 *const before = sums + 32 * (s.split * slices + number - 1);
            value_wait wait;
            while (wait.more(!__all_sync(~0u, one_try(&fin, before, tag))))
                ;
        }
#pragma unroll 4
        for (int j = 0; j < n; j++, p += 16, f += on) fin = __fmaf_rn(*p, *f, fin);
        one_put(sums + 32 * (to & SPLIT_TO), fin, tag);
    }
    split_read();
    if (writes) {
        float old = 0.0f, fin[MOST], y = 0.0f;
        if (flags & CHAIN_OLD && puts) old = flags & CHAIN_KEPT ? *keep : __ldcg(s.old + c.at);
        if (state[1] & 1) values += a.set;
        value_wait wait;
        bool there;
        do {
            there = true;
#pragma unroll
            for (int k = 0; k < MOST; k++)
                if (k < slices) there &= one_try(fin + k, sums + 32 * (pair * slices + k), tag);
        } while (wait.more(!__all_sync(~0u, there)));
#pragma unroll
        for (int k = 0; k < MOST; k++)
            if (k < slices) y = __fadd_rn(y, fin[k]);
        if (flags & CHAIN_GATED) {
            const float up = __shfl_down_sync(0xffffffff, y, 16);
            y = __fmul_rn(act_gate(s.act, y), up);
        }
        if (puts) {
            if (flags & CHAIN_OLD) y = __fadd_rn(old, y);
            if (flags & CHAIN_PASS) value_put(values, y);
            if (flags & CHAIN_KEEPS) *keep = y;
            if (out) *out = y;
        }
    }
    __syncwarp();
}

#endif
