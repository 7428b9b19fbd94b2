/* attention/stream.cu - attn_stream for heads of 64, 128 and 256. */
#include "stream.cuh"

attn_fn attn_stream_of(int32_t d, uint32_t type, size_t *smem)
{
    return d == 64    ? stream_of<64>(type, smem)
           : d == 128 ? stream_of<128>(type, smem)
           : d == 256 ? stream_of<256>(type, smem)
                      : NULL;
}
