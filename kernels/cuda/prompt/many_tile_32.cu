/* many_tile_32.cu - the kernel of many_tile.cuh for quantised blocks of 32. With all six types in one the
 * assembler has no registers left to run products beside each other (C7512, in every shape). Gates and ups of
 * two sets, which are rare, have the six in one shape. */
#include "many_tile_launch.cuh"

#define UNIT 2176

cudaError_t many_tile_32(const struct cuda_backend *be, enum tile_kind kind, const struct tile_args *a)
{
    if (tile_mixed(a))
        return tile_launch<tile::shape<128, 2, 1, 5, 3, UNIT>, KN_Q4_0, KN_Q5_0, KN_Q4_1, KN_Q5_1, KN_IQ4_NL,
                           KN_Q8_0>(be, a);
    switch (tile_set_of(a->w[0].type)) {
    case TILE_80: return tile_launch_kind<UNIT, KN_Q4_0, KN_Q8_0>(be, kind, a);
    case TILE_5: return tile_launch_kind<UNIT, KN_Q5_0, KN_Q5_1>(be, kind, a);
    default: return tile_launch_kind<UNIT, KN_Q4_1, KN_IQ4_NL>(be, kind, a);
    }
}
