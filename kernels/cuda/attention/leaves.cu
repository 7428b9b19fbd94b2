/* attention/leaves.cu - attn_places for heads of 128 and 256. */
#include "leaves.cuh"

attn_fn attn_places_of(int32_t d, uint32_t type, size_t *smem)
{
    if (!kv_halves(type)) return NULL;
    return d == 128 ? places_of<128>(type, smem) : d == 256 ? places_of<256>(type, smem) : NULL;
}

attn_fn attn_paths_of(int32_t d, uint32_t type, int32_t n, size_t *smem)
{
    if (!kv_halves(type)) return NULL;
    return d == 128 ? paths_of<128>(type, n, smem) : d == 256 ? paths_of<256>(type, n, smem) : NULL;
}
