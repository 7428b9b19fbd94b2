/* many_tile_float.cu - the kernel of many_tile.cuh for float weights. */
#include "many_tile_launch.cuh"

cudaError_t many_tile_float(const struct cuda_backend *be, enum tile_kind kind, const struct tile_args *a)
{
    return tile_launch_kind<4096, KN_F16, KN_BF16, KN_F32>(be, kind, a);
}
