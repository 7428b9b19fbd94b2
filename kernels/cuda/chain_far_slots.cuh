/* chain_far_slots.cuh - keys and values of a long context (chain_far.cuh) in a ring of slots, that of chains
 * with weights of other types than K (chain_kernel.cu). */
#ifndef DFLASH_CUDA_CHAIN_FAR_SLOTS_CUH
#define DFLASH_CUDA_CHAIN_FAR_SLOTS_CUH

#include "chain_far.cuh"

/* Every other tile of the step, as chain_ask asks for weights; base, lap: the slot of its first. Tile t is
 * warp t % CHAIN_HEADS's; its leaf's keys come first. Leaves behind the newest are empty tiles. */
DEV void far_ask(const chain_args &a, const chain_step &s, int pos, int which, int base, int lap)
{
    extern __shared__ __align__(128) uint8_t smem[];
    uint64_t *const full = (uint64_t *)smem, *const empty = full + CHAIN_SLOTS;
    const int lane = threadIdx.x % 32, slots = a.slots, ahead = s.ahead, rows = 16 * s.far, log = far_log(s),
              tiles = far_tiles(s, pos), t0 = (base ^ which) & 1;
    const far_share f = far_share_of(s, pos);
    int w = t0, chunk = 0, head = f.first / f.nodes, node = f.first - head * f.nodes, slot = base + t0;
    const uint64_t policy = once_policy();
    if (slot >= slots) slot -= slots, lap++;
#pragma unroll 1
    for (int t = t0; t < tiles; t += 2) {
        const int before = slot - ahead, slot_before = before < 0 ? before + slots : before,
                  lap_before = before < 0 ? lap - 1 : lap;
        const int leaf = (node * chain_few::LEAVES + w) * chain_few::LEAF,
                  p0 = leaf + (chunk & ((1 << log) / 2 - 1)) * rows, at = p0 < s.cap ? p0 : p0 % s.cap;
        const chain_map *map = a.maps + s.map + (chunk >> (log - 1));
        uint8_t *dst = smem + CHAIN_RING + (size_t)slot * a.slot_bytes;
        if (lap > 0) CHAIN_SPENT(48, 32 * CHAIN_WARPS + 32, bar_pass(empty + slot, (lap - 1) & 1));
        if (lap_before >= 0)
            CHAIN_SPENT(49, 32 * CHAIN_WARPS + 32, bar_pass(full + slot_before, lap_before & 1));
        __syncwarp();
        if (lane == 0) {
            if (leaf <= pos) {
                bar_expect(full + slot, (uint32_t)rows * 256);
                copy_box(dst, map, 0, head, at, full + slot, policy);
                copy_box(dst + rows * 128, map, 64, head, at, full + slot, policy);
            } else {
                bar_arrive(full + slot);
            }
        }
        __syncwarp();
        slot += 2;
        if (slot >= slots) slot -= slots, lap++;
        w += 2;
        if (w >= CHAIN_HEADS) {
            w -= CHAIN_HEADS;
            if (++chunk >> log) {
                chunk = 0;
                if (++node == f.nodes) node = 0, head++;
            }
        }
    }
}

/* Where a warp is in the ring, and what it reads of a tile: 16 rows at a time. */
struct far_ring {
    uint64_t *full; /* empty: CHAIN_SLOTS further */
    uint8_t *ring;
    uint32_t slot_bytes;
    int slots, slot, lap, far;
    /* Rows 16 part .. of the leaf's keys or values: their first halves. */
    __device__ __forceinline__ uint8_t *take(int part)
    {
        const int in = part & (far - 1);
        if (in == 0) bar_pass(full + slot, lap & 1);
        return ring + (size_t)slot * slot_bytes + in * (16 * 128);
    }
    __device__ __forceinline__ void leave()
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            bulk_fence();
            bar_arrive(full + CHAIN_SLOTS + slot);
        }
        slot += CHAIN_HEADS;
        if (slot >= slots) slot -= slots, lap++;
    }
    __device__ __forceinline__ void done(int part)
    {
        if (((part + 1) & (far - 1)) == 0) leave();
    }
};

#endif
