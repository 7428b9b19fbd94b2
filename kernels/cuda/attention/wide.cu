/* attention/wide.cu - attn_step and attn_merge for heads of 256 and 512. */
#include "step.cuh"

attn_fn attn_step_wide(int32_t d, int32_t tiles, int32_t resident, uint32_t type, int32_t stages,
                       size_t *smem)
{
    switch (8 * d + tiles) {
    case 8 * 256 + 1: return step_of<256, 1>(type, stages, smem);
    case 8 * 256 + 2: return step_of<256, 2>(type, stages, smem);
    case 8 * 256 + 4: return step_of<256, 4>(type, stages, smem);
    case 8 * 512 + 1:
        return resident > 1 ? step_of<512, 1, 2>(type, stages, smem) : step_of<512, 1>(type, stages, smem);
    case 8 * 512 + 2: return step_of<512, 2>(type, stages, smem);
    default: return NULL;
    }
}
attn_fn attn_near_wide(int32_t d, uint32_t type, int32_t blocks, int32_t leaves, size_t *smem)
{
    return d == 256 ? near_of<256>(type, blocks, leaves, smem) : near_of<512>(type, blocks, leaves, smem);
}
attn_fn attn_merge_wide(int32_t d)
{
    return d == 256 ? attn_merge<256> : attn_merge<512>;
}
