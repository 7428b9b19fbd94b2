/* attention_few.cu - attn_few, attn_step and attn_merge for heads of 64 and 128. */
#include "attention_step.cuh"

attn_fn attn_few_narrow(int32_t d, uint32_t type, int32_t stages, size_t *smem)
{
    return d == 64 ? few_of<64, 4>(type, stages, smem) : few_of<128, 4>(type, stages, smem);
}
attn_fn attn_step_narrow(int32_t d, uint32_t type, int32_t stages, size_t *smem)
{
    return d == 64 ? step_of<64>(type, stages, smem) : step_of<128>(type, stages, smem);
}
attn_fn attn_near_narrow(int32_t d, uint32_t type, int32_t blocks, int32_t leaves, size_t *smem)
{
    return d == 64 ? near_of<64>(type, blocks, leaves, smem) : near_of<128>(type, blocks, leaves, smem);
}
attn_fn attn_merge_narrow(int32_t d)
{
    return d == 64 ? attn_merge<64> : attn_merge<128>;
}
