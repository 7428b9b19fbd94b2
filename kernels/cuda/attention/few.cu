/* attention/few.cu - attn_step and attn_merge for heads of 64 and 128. */
#include "step.cuh"

attn_fn attn_step_narrow(int32_t d, int32_t tiles, uint32_t type, int32_t stages, size_t *smem)
{
    switch (8 * d + tiles) {
    case 8 * 64 + 1: return step_of<64, 1>(type, stages, smem);
    case 8 * 64 + 4: return step_of<64, 4>(type, stages, smem);
    case 8 * 128 + 1: return step_of<128, 1>(type, stages, smem);
    case 8 * 128 + 2: return step_of<128, 2>(type, stages, smem);
    case 8 * 128 + 4: return step_of<128, 4>(type, stages, smem);
    default: return NULL;
    }
}
attn_fn attn_near_narrow(int32_t d, uint32_t type, int32_t blocks, int32_t leaves, size_t *smem)
{
    return d == 64 ? near_of<64>(type, blocks, leaves, smem) : near_of<128>(type, blocks, leaves, smem);
}
attn_fn attn_merge_narrow(int32_t d)
{
    return d == 64 ? attn_merge<64> : attn_merge<128>;
}
