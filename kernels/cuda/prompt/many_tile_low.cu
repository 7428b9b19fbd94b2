/* many_tile_low.cu - the kernel of many_tile.cuh for Q2_K, Q3_K and IQ4_XS; of gates and ups of which one is
 * of these and the other of many_tile_k.cu, which is rare, in one shape. */
#include "many_tile_launch.cuh"

cudaError_t many_tile_low(const struct cuda_backend *be, enum tile_kind kind, const struct tile_args *a)
{
    if (tile_mixed(a))
        return tile_launch<tile::shape<128, 2, 1, 5, 3, 3360>, KN_Q5_K, KN_Q6_K, KN_Q2_K, KN_Q3_K, KN_IQ4_XS,
                           KN_Q4_K>(be, a);
    return tile_launch_kind<2176, KN_Q2_K, KN_Q3_K, KN_IQ4_XS>(be, kind, a);
}
