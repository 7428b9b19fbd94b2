/* attention/step.cu - attn_step and attn_merge. */
#include "step.cuh"

attn_fn attn_step_of(int32_t d, int32_t tiles, int32_t resident, uint32_t type, int32_t stages, size_t *smem)
{
    switch (8 * d + tiles) {
    case 8 * 64 + 1: return step_of<64, 1>(type, stages, smem);
    case 8 * 64 + 4: return step_of<64, 4>(type, stages, smem);
    case 8 * 128 + 1: return step_of<128, 1>(type, stages, smem);
    case 8 * 128 + 2: return step_of<128, 2>(type, stages, smem);
    case 8 * 128 + 4: return step_of<128, 4>(type, stages, smem);
    case 8 * 256 + 1: return step_of<256, 1>(type, stages, smem);
    case 8 * 256 + 2: return step_of<256, 2>(type, stages, smem);
    case 8 * 256 + 4: return step_of<256, 4>(type, stages, smem);
    case 8 * 512 + 1:
        return resident > 1 ? step_of<512, 1, 2>(type, stages, smem) : step_of<512, 1>(type, stages, smem);
    case 8 * 512 + 2: return step_of<512, 2>(type, stages, smem);
    default: return NULL;
    }
}
attn_fn attn_near_of(int32_t d, uint32_t type, int32_t blocks, int32_t leaves, size_t *smem)
{
    return d == 64    ? near_of<64>(type, blocks, leaves, smem)
           : d == 128 ? near_of<128>(type, blocks, leaves, smem)
           : d == 256 ? near_of<256>(type, blocks, leaves, smem)
                      : near_of<512>(type, blocks, leaves, smem);
}
attn_fn attn_merge_of(int32_t d)
{
    return d == 64    ? attn_merge<64>
           : d == 128 ? attn_merge<128>
           : d == 256 ? attn_merge<256>
                      : attn_merge<512>;
}
