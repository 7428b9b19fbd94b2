/* attention_few.cu - attn_few and attn_near for heads of 64 and 128. */
#include "attention_near.cuh"

attn_fn attn_few_narrow(int32_t d, uint32_t type, int32_t tiles, int32_t stages, size_t *smem)
{
    if (tiles == 1) return d == 64 ? few_of<64, 1>(type, stages, smem) : few_of<128, 1>(type, stages, smem);
    return d == 64 ? few_of<64, 4>(type, stages, smem) : few_of<128, 4>(type, stages, smem);
}
attn_fn attn_near_narrow(int32_t d, uint32_t type, int32_t stages, size_t *smem)
{
    return d == 64 ? near_of<64>(type, stages, smem) : near_of<128>(type, stages, smem);
}
attn_fn attn_merge_narrow(int32_t d)
{
    return d == 64 ? attn_merge<64> : attn_merge<128>;
}
