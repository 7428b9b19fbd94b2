/* chain/map.cu - tensor maps of rings of keys and values, by which a chain's kernel fetches rows of one kv
 * head (chain/far.cuh), or of a head's codes (attention/far_codes.cu). The driver makes them; it is asked for
 * at run time, so that no program needs it to link. */
#include "chain.cuh"

#include <cuda.h>

static_assert(sizeof(CUtensorMap) == sizeof(struct chain_map) &&
                  alignof(CUtensorMap) <= alignof(struct chain_map),
              "what chain.cuh says of maps");

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                              const cuuint64_t *, const cuuint32_t *, const cuuint32_t *,
                              CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                              CUtensorMapFloatOOBfill);

static encode_fn encoder(void)
{
    void *p = nullptr;
    cudaDriverEntryPointQueryResult got;
    const cudaError_t err =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &p, 12000, cudaEnableDefault, &got);
    return err == cudaSuccess && got == cudaDriverEntryPointSuccess ? (encode_fn)p : nullptr;
}

bool kv_map(struct chain_map *map, void *cache, uint32_t type, int32_t n_kv, int32_t d, kv_where where,
            int32_t rows)
{
    static const encode_fn encode = encoder();
    const cuuint64_t size[3] = {(cuuint64_t)d, (cuuint64_t)n_kv, (cuuint64_t)kv_positions(where)},
                     stride[2] = {(cuuint64_t)d * 2, (cuuint64_t)n_kv * (cuuint64_t)d * 2};
    const cuuint32_t box[3] = {64, 1, (cuuint32_t)rows}, one[3] = {1, 1, 1};
    return encode &&
           encode((CUtensorMap *)map,
                  kv_bf16(type) ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3,
                  cache, size, stride, box, one, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

bool kv_code_map(struct chain_map *map, const void *rows, int32_t row, kv_where where, int32_t bytes,
                 int32_t keys)
{
    static const encode_fn encode = encoder();
    const cuuint64_t size[2] = {(cuuint64_t)row, (cuuint64_t)kv_positions(where)},
                     stride[1] = {(cuuint64_t)row};
    const cuuint32_t box[2] = {(cuuint32_t)bytes, (cuuint32_t)keys}, one[2] = {1, 1};
    const CUtensorMapSwizzle turned = bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                      : bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                      : bytes == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                                    : CU_TENSOR_MAP_SWIZZLE_NONE;
    return encode &&
           encode((CUtensorMap *)map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, (void *)rows, size, stride, box, one,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, turned, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}
