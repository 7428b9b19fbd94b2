/* mm_few.cuh - the product kernel for up to 16 rows on sm_90: the arithmetic and the bits of mm_kernel.cuh,
 * mm_int.cuh and mm_frag.cuh, with fewer instructions around units and fewer conflicts of shared memory.
 *
 * A warp has one slice of every panel it takes part in, so nothing but pointers that move by constants is
 * computed between panels; the warps of an item (its slices; gates and ups) meet by themselves and write its
 * outputs, a thread one output at a time. What depends on the type, as F (mm_few_k.cuh, mm_few_32.cuh):
 *   single        a copy is one unit; else a.stage_units of them
 *   prepare<NT>   what is put together once a block from its rows (a.at.side); all threads call
 *   view<NT>      what a lane reads of a slice's rows
 *   slice<NT>     fin = the sum of a slice of a panel
 * Bound: the bytes of the weights, once.
 *
 * Wins over mm_kernel.cuh: 8B at 16 rows 2.96 to 2.78 ms when it came. dflash-bench rows -m
 * 8b-q4_k_m.gguf --device cuda --rows 1,2,4,8,16 --context 512 */
#ifndef DFLASH_CUDA_MM_FEW_CUH
#define DFLASH_CUDA_MM_FEW_CUH

#include "../core/cluster.cuh"
#include "mm_int.cuh"
#include "mm_kernel.cuh"

#include <type_traits>

/* ---- copies ---- */

/* What a warp has: slice `local` of the block's, of items first, + stride, ...; matrix: where they are gated.
 */
struct few_share {
    int local, sub, matrix, first, stride;
};
/* What a block has: all slices, or one; of the items those of its group. */
struct few_part {
    int slice, group, groups;
};
DEV few_part few_part_of(const mm_args &a)
{
    const int block = (int)blockIdx.x, across = a.slices - a.left, all = across * a.groups;
    if (a.block_slices == a.slices) return {0, block, a.groups};
    if (a.left && block >= all) return {across, block - all, a.last_groups};
    return {block % across, block / across, a.groups};
}
DEV few_share few_share_of(const mm_args &a, int warp, const few_part &part)
{
    const int item = warp >> a.log2_slice_warps;
    few_share s;
    s.local = warp & ((1 << a.log2_slice_warps) - 1);
    s.sub = item >> a.split;
    s.matrix = item & a.split;
    s.first = part.group + s.sub * part.groups;
    s.stride = a.subs * part.groups;
    return s;
}

/* The way of a warp through items: the matrix of `item`. */
struct few_walk {
    int item, matrix;
};
/* The panel of its matrix that the item is. */
DEV int few_panel(const mm_args &a, const few_walk &w)
{
    return a.first_item + w.item - (a.gated || w.matrix == 0 ? 0 : a.panel_end[w.matrix - 1]);
}
/* Is there an item? Then w's matrix is that of it. */
DEV bool few_find(const mm_args &a, few_walk &w)
{
    if (w.item >= a.n_items) return false;
    if (a.gated) return true;
    while (a.first_item + w.item >= a.panel_end[w.matrix]) w.matrix++;
    return true;
}
DEV few_walk few_begin(const mm_args &a, const few_share &s)
{
    few_walk w = {s.local < a.block_slices ? s.first : a.n_items, s.matrix};
    few_find(a, w);
    return w;
}

/* The same lane of the warp each time. The compiler knows that it is one, so it makes no loop over lanes of
 * what wants operands that all lanes share. */
DEV bool few_one()
{
    uint32_t is = threadIdx.x % 32 == 0;
    asm_90("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(is));
    return is;
}

/* Of one lane: the next unit to ask for; left: of the slice. */
struct few_source {
    few_walk w;
    int left;
    unsigned unit_bytes;
    const uint8_t *p;
    int slice; /* mm_few_late.cuh */
};
DEV void few_late_next(const mm_args &a, const few_share &s, few_source &c);
DEV void few_seek(const mm_args &a, few_source &c, int unit0, int units)
{
    if (!few_find(a, c.w)) return;
    c.left = units;
    c.unit_bytes = (unsigned)a.unit_bytes[c.w.matrix];
    c.p = a.w[c.w.matrix] + (size_t)(few_panel(a, c.w) * a.units + unit0) * c.unit_bytes;
}
DEV uint64_t *few_bar(uint8_t *place)
{
    return (uint64_t *)(place - FEW_BARRIER);
}
/* On to the next slice: is there one? */
template <bool LATE>
DEV bool few_more(const mm_args &a, const few_share &s, few_source &c, int unit0, int units)
{
    if (LATE) {
        few_late_next(a, s, c);
        return c.left != 0;
    }
    c.w.item += s.stride;
    if (c.w.item >= a.n_items) return false;
    if (a.gated || a.first_item + c.w.item < a.panel_end[c.w.matrix]) { /* the same matrix */
        c.left = units;
        c.p += (size_t)(unsigned)(s.stride * a.units - units) * c.unit_bytes;
    } else
        few_seek(a, c, unit0, units);
    return true;
}
/* The next copy to the place `to`, in front of which is its barrier. */
template <bool SINGLE, bool LATE>
DEV void few_issue(const mm_args &a, const few_share &s, few_source &c, int unit0, int units, uint8_t *to)
{
    if (c.left == 0 && !few_more<LATE>(a, s, c, unit0, units)) return;
    const int some = SINGLE ? 1 : min(a.stage_units, c.left);
    const uint32_t bytes = (uint32_t)some * c.unit_bytes;
    bar_expect(few_bar(to), bytes);
    copy_weights_to(to, c.p, bytes, few_bar(to));
    c.p += bytes;
    c.left -= some;
}

/* A warp's ring of copies, as it takes them: wait() gives the next, next() gives its place back. */
template <bool SINGLE, bool LATE> struct few_ring {
    const mm_args &a;
    const few_share &s;
    uint8_t *smem;
    few_source source; /* of one lane */
    unsigned begin;    /* places, from smem: a copy, its barrier in front of it */
    unsigned at, end;  /* the same, of shared memory: now, behind the last */
    int unit0, units;
    uint32_t phase;

    __device__ __forceinline__ void fill(int from, int end)
    {
        if (from == 0 && !LATE) few_seek(a, source, unit0, units);
#pragma unroll 1
        for (int i = from; i < end; i++)
            few_issue<SINGLE, LATE>(a, s, source, unit0, units, smem + begin + (unsigned)i * a.pitch);
    }
    /* The same, each when the copy before has arrived, so that little is on its way, until the ring is full
     * or *over is set; returns the end. first: a barrier that opens before, or NULL. */
    __device__ __forceinline__ int pace(int from, uint64_t *first, const volatile uint32_t *over)
    {
        while (from < a.stages && !*over) {
            uint8_t *const to = smem + begin + (unsigned)from * a.pitch;
            if (!bar_test(first ? first : few_bar(to - a.pitch), 0)) continue;
            if (!first) few_issue<SINGLE, LATE>(a, s, source, unit0, units, to), from++;
            first = nullptr;
        }
        return from;
    }
    __device__ __forceinline__ const uint8_t *wait()
    {
        cluster_bar_wait(at - FEW_BARRIER, phase);
        return (const uint8_t *)__cvta_shared_to_generic(at);
    }
    /* read: what was read of the place last; its address is made with it (the low bits are 0), so nothing is
     * asked for before that is there. All reads of the place stand before the copy (it is volatile, with
     * memory clobbered), and a warp's reads of shared memory are served in their order: those that are still
     * on their way are a trip to memory ahead of the copy's first byte. */
    __device__ __forceinline__ void next(uint32_t read = 0)
    {
        __syncwarp();
        if (few_one())
            few_issue<SINGLE, LATE>(a, s, source, unit0, units,
                                    (uint8_t *)__cvta_shared_to_generic(at & ~(read & 15)));
        at += a.pitch;
        /* shorter than what is made of an if */
        asm("{\n.reg .pred p;\nsetp.eq.u32 p, %0, %2;\n@p sub.u32 %0, %0, %3;\n@p xor.b32 %1, %1, 1;\n}"
            : "+r"(at), "+r"(phase)
            : "r"(end), "r"(a.ring_bytes));
    }
};

/* The units of a slice as they come, two at a time, for those share a word of activations: pair(units, 2),
 * and of the last one pair(units, 1). */
template <int UNIT_BYTES, class R, class F> DEV void few_pairs(const mm_args &a, R &ring, int units, F pair)
{
#pragma unroll 1
    for (; units > 0; units -= a.stage_units) {
        const int some = min(a.stage_units, units);
        const uint8_t *st = ring.wait();
#pragma unroll 1
        for (int i = some / 2; i > 0; i--, st += 2 * UNIT_BYTES) pair(st, std::integral_constant<int, 2>());
        if (some % 2) pair(st, std::integral_constant<int, 1>());
        ring.next();
    }
}

/* A row to the same place in all blocks of the cluster, each of whose barriers counts it. */
DEV void few_row_to_all(void *dst, const void *src, uint32_t bytes, uint64_t *b, int cluster)
{
    if (cluster == 1)
        copy_bulk_to(dst, src, bytes, b);
    else
        asm_90("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
               "[%0], [%1], "
               "%2, [%3], %4;" ::"r"(shared_at(dst)),
               "l"(src), "r"(bytes), "r"(shared_at(b)), "h"((unsigned short)((1 << cluster) - 1))
               : "memory");
}

/* Of the block's rows, slice `local` of a token: the last of those that there are. */
DEV const uint8_t *few_row(const mm_args &a, const uint8_t *smem, int local, int token)
{
    return smem + a.at.act + min(token, a.n - 1) * a.at.row_bytes + local * a.slice_row;
}

/* ---- results ---- */

/* v, and what comes of it is put together where it is wanted: no register holds it while units are summed. */
DEV int few_here(int v)
{
    asm volatile("" : "+r"(v));
    return v;
}
/* The `warps` warps of an item meet. */
DEV void few_meet(int sub, int warps)
{
    if (warps > 1)
        asm volatile("bar.sync %0, %1;" ::"r"(1 + sub), "r"(32 * warps) : "memory");
    else
        __syncwarp();
}
/* The place of a lane's four sums among those of a tile: eight lanes side by side, and the eight that a warp
 * reads of below, are on all banks once. */
DEV unsigned few_slot(unsigned lane)
{
    return lane ^ lane / 8;
}
/* Where output i of a tile, row i % 16 and token i / 16, is among its sums: floats. */
DEV unsigned few_place(unsigned i)
{
    return 4 * few_slot(i % 8 * 4 + i / 32 % 4) + i / 16 % 2 + 2 * (i / 8 % 2);
}
/* Output i of a tile of `panel` of matrix j, or NULL: there is none. */
DEV float *few_out(const mm_args &a, int j, int panel, unsigned i)
{
    const int token = (int)(i / 16), row = 16 * panel + (int)(i % 16);
    return token < a.n && row < a.n_out[j] ? a.out[j] + (size_t)token * (size_t)a.n_out[j] + row : nullptr;
}
/* What is there, if it is added to: asked for before the sums are complete. */
DEV float few_old(const mm_args &a, const float *out)
{
    return a.add && out ? __ldcg(out) : 0.0f;
}
DEV void few_write(const mm_args &a, float *out, float v, float up, float old)
{
    const float y = a.gated ? __fmul_rn(act_gate(a.act, v), up) : v;
    *out = a.add ? __fadd_rn(old, y) : y;
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
/* The sum of `slices` slices. */
template <bool SHARED> DEV float few_add(const float *p, int slices, int step)
{
    if (slices == 4) return few_add_some<SHARED, 4>(0.0f, p, step);
    float v = 0.0f;
#pragma unroll 1
    for (; slices >= 8; slices -= 8, p += 8 * step) v = few_add_some<SHARED, 8>(v, p, step);
#pragma unroll 1
    for (; slices > 0; slices--, p += step) v = few_add_some<SHARED, 1>(v, p, step);
    return v;
}
/* The sums of the slices at p: of a gate or of any row, and of an up. */
template <int NT> DEV void few_both(const mm_args &a, const float *p, float &v, float &up)
{
    constexpr int step = NT * MM_RECORD;
    up = 0.0f;
    if (a.slices == 4) {
        float u[8];
#pragma unroll
        for (int s = 0; s < 4; s++) u[s] = p[s * step];
        if (a.gated) {
#pragma unroll
            for (int s = 4; s < 8; s++) u[s] = p[s * step];
#pragma unroll
            for (int s = 4; s < 8; s++) up = __fadd_rn(up, u[s]);
        }
        v = 0.0f;
#pragma unroll
        for (int s = 0; s < 4; s++) v = __fadd_rn(v, u[s]);
    } else {
        v = few_add<true>(p, a.slices, step);
        if (a.gated) up = few_add<true>(p + a.slices * step, a.slices, step);
    }
}
/* Of `panel` of matrix j the outputs me, me + 32 * warps, ..., from sums at `sums`; all of the item's warps
 * call, which first meet if they are to. */
template <int NT, bool MEET>
DEV void few_outputs(const mm_args &a, int sub, int warps, int j, int panel, unsigned me, const float *sums)
{
    const unsigned row = 16u * (unsigned)panel + me % 16, width = (unsigned)a.n_out[j],
                   step = 32u * (unsigned)warps;
    float *const out = a.out[j];
    unsigned i = row < width ? me : 128 * NT, at = me / 16 * width + row;
    float old = 0.0f;
    if (a.add && i < 16u * (unsigned)a.n) old = __ldcg(out + at);
    if (MEET) few_meet(sub, warps);
#pragma unroll 1
    while (i < 16u * (unsigned)a.n) {
        const float *const p = sums + few_place(i) + i / 128 * MM_RECORD;
        float v, up, next = 0.0f;
        i += step;
        if (a.add && i < 16u * (unsigned)a.n)
            next = __ldcg(out + at + step / 16 * width); /* what is added to: asked for early */
        few_both<NT>(a, p, v, up);
        few_write(a, out + at, v, up, old);
        at += step / 16 * width, old = next;
    }
}

/* Apart: this block's share of the group's sums in memory, when all blocks of the group have left theirs. */
template <int NT, int W> DEV void few_merge_group(const mm_args &a, int group, int slice)
{
    const auto find = [&](unsigned k, int *item) {
        *item = group + (int)(k / (128 * NT)) * a.groups;
        int panel;
        if (*item >= a.n_items) return (float *)nullptr;
        const int j = item_matrix(a, *item, 0, &panel);
        return few_out(a, j, panel, k % (128 * NT));
    };
    unsigned k = slice * 32 * W + threadIdx.x;
    int item;
    float *out = find(k, &item), old = few_old(a, out);
    group_wait(a, group);
    while (item < a.n_items) {
        if (out) {
            const int step = NT * MM_RECORD;
            const float *p = record_of(a, item, 0, 0, NT) + k % (128 * NT) / 128 * MM_RECORD + few_place(k);
            const float v = few_add<false>(p, a.slices, step),
                        up = a.gated ? few_add<false>(p + a.slices * step, a.slices, step) : 0.0f;
            few_write(a, out, v, up, old);
        }
        k += a.slices * 32 * W;
        out = find(k, &item), old = few_old(a, out);
    }
}

/* Apart and left: the sums of a slice of an item, row by row of the tokens, for who reads the outputs
 * (mm_owed). */
template <int NT>
DEV void few_leave(const mm_args &a, const few_walk &w, int slice, int lane, const float fin[NT][4])
{
    const unsigned width = (unsigned)a.n_out[w.matrix], panel = (unsigned)few_panel(a, w),
                   before = (unsigned)w.item - panel, /* first_item is 0 */
        row = 16u * panel + (unsigned)lane / 4;
    const int first = 2 * (few_here(lane) % 4);
    float *const p = a.partial + (16u * (unsigned)(a.slices * a.n) * before +
                                  (unsigned)(slice * a.n + first) * width + row);
#pragma unroll
    for (int t = 0; t < NT; t++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (first + 8 * t + i < a.n) {
                float *const to = p + (size_t)(8 * t + i) * width;
                to[0] = fin[t][i], to[8] = fin[t][2 + i];
            }
}

/* Bytes of a row of the block's, and of what is beside all rows. */
DEV uint32_t few_row_bytes(const mm_args &a)
{
    return (uint32_t)(a.block_slices * a.slice_row);
}
template <int NT> DEV uint32_t few_beside_bytes(const mm_args &a)
{
    return a.side ? FEW_SIDE(NT) * (uint32_t)(a.slice_units * a.block_slices) : 0;
}
/* Is token t's row, which all blocks of the cluster are given, for this one to ask for? */
DEV bool few_asks(const mm_args &a, int t)
{
    return t < a.n && (t & (a.cluster - 1)) == ((int)blockIdx.x & (a.cluster - 1));
}
DEV const uint8_t *few_row_from(const mm_args &a, int first_slice, int t)
{
    return a.rows + (unsigned)(t * a.slices + first_slice) * (unsigned)a.slice_row;
}
/* One lane of each warp: a row (`from`, known before, if it asks), one of them what is beside the rows too;
 * then rows that are more than warps. */
template <int NT>
DEV void few_ask_rows(const mm_args &a, uint8_t *smem, int first_slice, int warp, bool asks,
                      const uint8_t *from)
{
    uint64_t *const bar = (uint64_t *)smem;
    const int warps = (int)blockDim.x / 32;
    if (asks)
        few_row_to_all(smem + a.at.act + (unsigned)warp * a.at.row_bytes, from, few_row_bytes(a), bar,
                       a.cluster);
    if (warp == (a.n < warps ? a.n : 0) && a.side && (blockIdx.x & (unsigned)(a.cluster - 1)) == 0)
        few_row_to_all(smem + a.at.side,
                       a.side + (unsigned)first_slice * (FEW_SIDE(NT) * (unsigned)a.slice_units),
                       few_beside_bytes<NT>(a), bar, a.cluster);
#pragma unroll 1
    for (int t = warp + warps; t < a.n; t += warps)
        if (few_asks(a, t))
            few_row_to_all(smem + a.at.act + (unsigned)t * a.at.row_bytes, few_row_from(a, first_slice, t),
                           few_row_bytes(a), bar, a.cluster);
}

#include "mm_few_late.cuh"

template <class F, int NT, int W, bool LATE> DEV void few_product(const mm_args &a)
{
    extern __shared__ __align__(128) uint8_t smem[];
    const int lane = threadIdx.x % 32, warp = __shfl_sync(0xffffffff, (int)threadIdx.x / 32, 0);
    const bool together = a.block_slices == a.slices;
    const few_part part = few_part_of(a);
    const int first_slice = part.slice;
    uint64_t *const act_bar = (uint64_t *)smem;
    const few_share s = few_share_of(a, warp, part);
    const int unit0 = (first_slice + s.local) * a.slice_units, units = min(a.slice_units, a.units - unit0);
    few_walk w = few_begin(a, s);
    const unsigned begin = a.at.ring + FEW_BARRIER + (unsigned)warp * a.ring_bytes;
    const unsigned at = shared_at(smem) + begin;
    few_ring<F::single, LATE> ring = {
        a, s, smem, {w, 0, 0u, nullptr, s.local}, begin, at, at + a.ring_bytes, unit0, units, 0};

    /* The last warp alone waits for the launch before and tells the others, which fill their rings meanwhile.
     */
    volatile uint32_t *const over = (uint32_t *)(smem + 16);
    const bool waits = !a.pace || warp + 1 == (int)blockDim.x / 32;
    int asked = a.pace && waits ? a.stages : a.ahead;
    cuda_grid_early();
    if (few_one()) {
        if (warp == 0) bar_init(act_bar), *over = 0;
        if (w.item < a.n_items) { /* others have no ring */
#pragma unroll 1
            for (int i = 0; i < a.stages; i++) bar_init(few_bar(smem + begin + (unsigned)i * a.pitch));
        }
        if (LATE) few_late_begin(a, smem, s, ring.source);
        bar_fence();
        if (warp == 0) bar_expect(act_bar, few_row_bytes(a) * (uint32_t)a.n + few_beside_bytes<NT>(a));
        ring.fill(0, asked);
    }
    if constexpr (F::grids) grid_load(smem + a.at.grid, a.points);
    __syncthreads();
    if (a.cluster > 1) cluster_arrive(); /* my barrier is there */
    if (!waits && w.item < a.n_items && few_one())
        asked = ring.pace(asked, a.pace == FEW_HALVES && warp % 2 ? few_bar(smem + begin - a.pitch) : nullptr,
                          over);
    __syncwarp();
    const bool asks = few_asks(a, warp);
    const uint8_t *const from = few_row_from(a, first_slice, warp);
    if (a.cluster > 1) cluster_wait();
    cuda_grid_wait();
    if (few_one()) {
        if (waits) *over = 1; /* first: others wait to ask, too */
        few_ask_rows<NT>(a, smem, first_slice, warp, asks, from);
    }
    const auto view = F::template view<NT>(a, smem, s.local, lane);
    bar_wait(act_bar, 0);
    if (few_one()) ring.fill(asked, a.stages); /* behind the rows, which all wait for */
    F::template prepare<NT>(a, smem);
    if (!a.side) __syncthreads();
    if (LATE) {
        few_late<F, NT>(a, smem, ring, s, lane);
        return;
    }

    /* Sums that meet in shared memory: [sub][set][matrix][slice][tile]. Bytes. */
    const int record = NT * MM_RECORD * 4, sums = a.slices * record,
              warps = 1 << (a.log2_slice_warps + a.split);
    int set = 0;
    /* All warps of an item take as many turns, those without a slice too. */
    for (w.item = s.first; few_find(a, w); w.item += s.stride) {
        float fin[NT][4];
        if (s.local < a.block_slices)
            F::template slice<NT>(a, fin, ring, a.type[w.matrix], view, units, lane);
        if (!together && a.left) {
            few_leave<NT>(a, w, first_slice, lane, fin);
            continue;
        }
        if (!together) {
#pragma unroll
            for (int t = 0; t < NT; t++)
                *((float4 *)(record_of(a, w.item, s.matrix, first_slice, NT) + t * MM_RECORD) +
                  few_slot(lane)) = make_float4(fin[t][0], fin[t][1], fin[t][2], fin[t][3]);
            continue;
        }
        const int thread = few_here((int)threadIdx.x);
        const few_share here = few_share_of(a, thread / 32, part);
        uint8_t *const meet = smem + a.at.merge + here.sub * a.at.merge_sets * (sums << a.split) + set;
        if (here.local < a.block_slices) {
            uint8_t *const to = meet + here.matrix * sums + here.local * record + 16 * few_slot(thread % 32);
#pragma unroll
            for (int t = 0; t < NT; t++)
                *(float4 *)(to + t * 4 * MM_RECORD) = make_float4(fin[t][0], fin[t][1], fin[t][2], fin[t][3]);
        }
        few_outputs<NT, true>(a, here.sub, warps, a.gated ? 0 : w.matrix, few_panel(a, w),
                              thread & (32u * warps - 1), (const float *)meet);
        if (a.at.merge_sets == 2) /* the next sums go elsewhere: the barrier after them frees these */
            set ^= sums << a.split;
        else
            few_meet(here.sub, warps);
    }
    if (!together && !a.left) few_merge_group<NT, W>(a, part.group, first_slice);
}

/* Registers: what 16 warps leave is enough for a warp of 64 on each scheduler, so the blocks of the small
 * kernels between two products (prep.cu) stand beside a product's. K types (mm_few_k.cuh) have fewer, and
 * leave enough for a warp of 96. */
#define FEW_REGISTERS 112
template <class F, int NT, int W, bool LATE = false>
__global__ void __maxnreg__(F::registers) mm_few(const __grid_constant__ mm_args a)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    few_product<F, NT, W, LATE>(a);
#endif
}

template <class F> static mm_kernel_fn few_pick(int log2_tiles)
{
    return log2_tiles == 0   ? mm_few<F, 1, MM_WARPS_MOST>
           : log2_tiles == 1 ? mm_few<F, 2, MM_WARPS_MOST>
                             : nullptr;
}

#endif
