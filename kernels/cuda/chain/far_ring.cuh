/* chain/far_ring.cuh - keys and values of a long context (chain/far.cuh) in the ring (chain/ring.cuh). A tile
 * is rows of one kv head, asked for in its turn by the warp that asks, a lane a tile; it begins at a multiple
 * of 1,024 bytes, for what turns its rows goes by addresses. */
#ifndef DFLASH_CUDA_CHAIN_FAR_RING_CUH
#define DFLASH_CUDA_CHAIN_FAR_RING_CUH

#include "far.cuh"
#include "ring.cuh"

/* What the warp that asks and the one that plans know of a step of attention. */
struct far_keys : few_keys {
    static constexpr bool ring = true;
    int pos = -1;
    far_share f;

    /* Of the step, before anything else of it: tiles of this block. */
    __device__ __forceinline__ int begin(const chain_step &s)
    {
        if (pos < 0) {
            cuda_grid_wait(); /* for the position, and keys of the launch before */
            pos = __ldcg(s.pos);
        }
        f = far_share_of(s, pos);
        return f.n * CHAIN_HEADS << far_log(s);
    }
    static __device__ __forceinline__ uint32_t align(uint32_t at)
    {
        return (at + 1023) / 1024 * 1024;
    }
    /* Tile t of the step: warp t % CHAIN_HEADS's; its leaf's keys come first. p: the map, or NULL: a leaf
     * behind the newest, of which nothing is copied. */
    __device__ __forceinline__ chain_source source(const chain_args &a, const chain_step &s, int t) const
    {
        const int log = far_log(s), rows = 16 * s.far, w = t % CHAIN_HEADS, turn = t / CHAIN_HEADS,
                  chunk = turn & ((1 << log) - 1);
        const int u = f.first + (turn >> log), head = u / f.nodes,
                  leaf = ((u - head * f.nodes) * chain_few::LEAVES + w) * chain_few::LEAF,
                  p0 = leaf + (chunk & ((1 << log) / 2 - 1)) * rows;
        chain_source c = {};
        if (leaf > pos) return c;
        c.p = (const uint8_t *)(a.maps + s.map + (chunk >> (log - 1)));
        c.bytes = (uint32_t)rows * 256;
        c.apart = (uint32_t)KV_SLOT(s.where, p0);
        c.kind = (uint32_t)head;
        return c;
    }
    /* Asks for it. */
    static __device__ __forceinline__ void copy(uint8_t *dst, const chain_source &c, uint64_t *bar)
    {
        if (!c.p) {
            bar_arrive(bar);
            return;
        }
        bar_expect(bar, c.bytes);
        const chain_map *map = (const chain_map *)c.p;
        copy_box(dst, map, 0, (int)c.kind, (int)c.apart, bar);
        copy_box(dst + c.bytes / 2, map, 64, (int)c.kind, (int)c.apart, bar);
    }
};

/* Where a warp is in the ring, and what it reads of a tile: 16 rows at a time. */
struct far_bytes : chain_reader {
    int far;
    /* Rows 16 part .. of the leaf's keys or values: their first halves. */
    __device__ __forceinline__ uint8_t *take(int part) const
    {
        const int in = part & (far - 1);
        if (in == 0) await();
        return here() + in * (16 * 128);
    }
    __device__ __forceinline__ void done(int part)
    {
        if (((part + 1) & (far - 1)) == 0) pass(CHAIN_HEADS);
    }
};
DEV far_bytes far_bytes_at(const chain_room &r, const chain_step &s, const chain_plan &plan)
{
    far_bytes b = {{}, s.far};
    b.begin(r, plan, warp_of());
    return b;
}

#endif
