/* many_tile_k.cu - the kernel of many_tile.cuh for the K types. */
#include "many_tile_launch.cuh"

cudaError_t many_tile_k(const struct cuda_backend *be, enum tile_kind kind, const struct tile_args *a)
{
    return tile_launch_kind<3360, KN_Q5_K, KN_Q6_K, KN_Q2_K, KN_Q3_K, KN_IQ4_XS, KN_Q4_K>(be, kind, a);
}
