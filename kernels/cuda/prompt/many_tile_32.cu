/* many_tile_32.cu - the kernel of many_tile.cuh for quantised blocks of 32. */
#include "many_tile_launch.cuh"

cudaError_t many_tile_32(const struct cuda_backend *be, enum tile_kind kind, const struct tile_args *a)
{
    return tile_set_of(a->w[0].type) == TILE_32
               ? tile_launch_kind<2176, KN_Q4_0, KN_Q4_1, KN_Q8_0>(be, kind, a)
               : tile_launch_kind<2176, KN_Q5_0, KN_Q5_1, KN_IQ4_NL>(be, kind, a);
}
