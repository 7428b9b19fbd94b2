/* attention/alone.cu - attn_alone for heads of 128 and 256. */
#include "alone.cuh"

attn_fn attn_alone_of(int32_t d, uint32_t type, size_t *smem)
{
    if (!kv_halves(type)) return NULL;
    return d == 128 ? alone_of<128>(type, smem) : d == 256 ? alone_of<256>(type, smem) : NULL;
}
