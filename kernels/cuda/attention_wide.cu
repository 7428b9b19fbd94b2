/* attention_wide.cu - attn_few, attn_step and attn_merge for heads of 256 and 512. */
#include "attention_step.cuh"

attn_fn attn_few_wide(int32_t d, uint32_t type, int32_t stages, size_t *smem)
{
    return d == 256 ? few_of<256, 4>(type, stages, smem) : few_of<512, 2>(type, stages, smem);
}
attn_fn attn_step_wide(int32_t d, uint32_t type, int32_t stages, size_t *smem)
{
    return d == 256 ? step_of<256>(type, stages, smem) : step_of<512>(type, stages, smem);
}
attn_fn attn_near_wide(int32_t d, uint32_t type, int32_t blocks, int32_t leaves, size_t *smem)
{
    return d == 256 ? near_of<256>(type, blocks, leaves, smem) : near_of<512>(type, blocks, leaves, smem);
}
attn_fn attn_merge_wide(int32_t d)
{
    return d == 256 ? attn_merge<256> : attn_merge<512>;
}
