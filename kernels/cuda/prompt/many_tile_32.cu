/* many_tile_32.cu - the kernel of many_tile.cuh for quantised blocks of 32. Two types a kernel: with all six the
 * assembler has no registers left to run products beside each other (C7512, in every shape). Gates and ups of
 * two pairs of types, which are rare, have the six in one shape. */
#include "many_tile_launch.cuh"

#define UNIT 2176

cudaError_t many_tile_32(const struct cuda_backend *be, enum tile_kind kind, const struct tile_args *a)
{
    const int pair = tile_pair(a->w[0].type);
    if (a->gated && tile_pair(a->w[1].type) != pair)
        return tile_launch<tile::shape<128, 2, 1, 5, 3, UNIT>, KN_Q4_0, KN_Q5_0, KN_Q4_1, KN_Q5_1, KN_IQ4_NL,
                           KN_Q8_0>(be, a);
    return pair == 0   ? tile_launch_kind<UNIT, KN_Q4_0, KN_Q8_0>(be, kind, a)
           : pair == 1 ? tile_launch_kind<UNIT, KN_Q5_0, KN_Q5_1>(be, kind, a)
                       : tile_launch_kind<UNIT, KN_Q4_1, KN_IQ4_NL>(be, kind, a);
}
