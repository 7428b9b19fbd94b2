/* many_tile_low.cu - the kernel of many_tile.cuh for Q2_K, Q3_K and IQ4_XS. */
#include "many_tile_launch.cuh"

cudaError_t many_tile_low(const struct cuda_backend *be, enum tile_kind kind, const struct tile_args *a)
{
    return tile_launch_kind<2176, KN_Q2_K, KN_Q3_K, KN_IQ4_XS>(be, kind, a);
}
