/* many_tile_k.cu - the kernel of many_tile.cuh for Q4_K, Q5_K and Q6_K. */
#include "many_tile_launch.cuh"

cudaError_t many_tile_k(const struct cuda_backend *be, enum tile_kind kind, const struct tile_args *a)
{
    return tile_launch_kind<3360, KN_Q5_K, KN_Q6_K, KN_Q4_K>(be, kind, a);
}
