/* mm_few_late.cuh - in mm_few.cuh: gates and ups of many panels a block, where the last slice of a row is
 * shorter than the others. A warp has another slice of each item, so that all have as much to do, and writes
 * its share of an item's outputs behind its next slice, when the others have long left their sums: none waits
 * for another but at the end.
 *
 * Sums meet in two sets that take turns. A warp that leaves a sum has seen all sums of the item before, and
 * so all outputs of the one before that are written: its set is free.
 *
 * Wins: 31B at 16 rows 2.5 % (its gate and up 43.7 to 40.2 us). dflash-bench rows -m 31b-q4_k_m.gguf
 * --device cuda --rows 1,16 --context 512 */
#ifndef DFLASH_CUDA_MM_FEW_LATE_CUH
#define DFLASH_CUDA_MM_FEW_LATE_CUH

/* Where a warp is among the parts of an item: gates' slices, ups'. */
DEV int few_late_part(const mm_args &a, const few_share &s, int local)
{
    return (s.matrix ? a.slices : 0) + local;
}
DEV int few_late_turn(const mm_args &a, int local)
{
    return local + 1 < a.slices ? local + 1 : 0;
}
DEV int few_late_units(const mm_args &a, int local)
{
    return min(a.slice_units, a.units - local * a.slice_units);
}
DEV void few_late_seek(const mm_args &a, const few_share &s, few_source &c)
{
    if (c.w.item >= a.n_items) return;
    c.left = few_late_units(a, c.slice);
    c.unit_bytes = (unsigned)a.unit_bytes[s.matrix];
    c.p = a.w[s.matrix] +
          (size_t)((a.first_item + c.w.item) * a.units + c.slice * a.slice_units) * c.unit_bytes;
}
DEV void few_late_next(const mm_args &a, const few_share &s, few_source &c)
{
    c.w.item += s.stride;
    c.slice = few_late_turn(a, c.slice);
    few_late_seek(a, s, c);
}

/* Counts the parts of an item whose sums are there. */
DEV uint64_t *few_late_there(uint8_t *smem, int sub, unsigned turn)
{
    return (uint64_t *)(smem + FEW_THERE) + 2 * sub + (turn & 1);
}
/* One lane, before the ring is filled. */
DEV void few_late_begin(const mm_args &a, uint8_t *smem, const few_share &s, few_source &c)
{
    if (s.matrix == 0 && s.local == 0)
        for (unsigned i = 0; i < 2; i++) bar_open(few_late_there(smem, s.sub, i), 2 * a.slices);
    if (s.local < a.slices) few_late_seek(a, s, c);
}

template <class F, int NT, class R>
DEV void few_late(const mm_args &a, uint8_t *smem, R &ring, const few_share &s, int lane)
{
    const unsigned sums = 2u * (unsigned)a.slices * (NT * MM_RECORD);
    float *const meet = (float *)(smem + a.at.merge) + s.sub * 2 * sums;
    int local = s.local, item = s.first, older = 0;
    unsigned turn = 0;
    if (local >= a.slices) return;
    const auto outputs = [&]() { /* of the item before, when its sums are there */
                                 bar_wait(few_late_there(smem, s.sub, turn - 1), (turn - 1) / 2 & 1);
                                 few_outputs<NT, false>(a, s.sub, 2 * a.slices, 0, a.first_item + older,
                                                        32 * few_late_part(a, s, local) + lane,
                                                        meet + ((turn - 1) & 1) * sums);
    };
    for (; item < a.n_items; turn++) {
        float fin[NT][4];
        F::template slice<NT>(a, fin, ring, a.type[s.matrix], F::template view<NT>(a, smem, local, lane),
                              few_late_units(a, local), lane);
        if (turn) outputs();
        float *const to =
            meet + (turn & 1) * sums + few_late_part(a, s, local) * (NT * MM_RECORD) + 4 * few_slot(lane);
#pragma unroll
        for (int t = 0; t < NT; t++)
            *(float4 *)(to + t * MM_RECORD) = make_float4(fin[t][0], fin[t][1], fin[t][2], fin[t][3]);
        __syncwarp();
        if (lane == 0) bar_arrive(few_late_there(smem, s.sub, turn));
        older = item, item += s.stride, local = few_late_turn(a, local);
    }
    if (turn) outputs();
}

#endif
