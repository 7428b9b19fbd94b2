/* types.h - the types of tensors and their numbers, which are those of the GGUF format, and the codecs of
 * their blocks. */
#ifndef DFLASH_OPS_TYPES_H
#define DFLASH_OPS_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum kn_type {
    KN_F32 = 0,
    KN_F16 = 1,
    KN_Q4_0 = 2,
    KN_Q4_1 = 3,
    KN_Q5_0 = 6,
    KN_Q5_1 = 7,
    KN_Q8_0 = 8,
    KN_Q8_1 = 9,
    KN_Q2_K = 10,
    KN_Q3_K = 11,
    KN_Q4_K = 12,
    KN_Q5_K = 13,
    KN_Q6_K = 14,
    KN_Q8_K = 15,
    KN_IQ2_XXS = 16,
    KN_IQ2_XS = 17,
    KN_IQ3_XXS = 18,
    KN_IQ1_S = 19,
    KN_IQ4_NL = 20,
    KN_IQ3_S = 21,
    KN_IQ2_S = 22,
    KN_IQ4_XS = 23,
    KN_I8 = 24,
    KN_I16 = 25,
    KN_I32 = 26,
    KN_I64 = 27,
    KN_F64 = 28,
    KN_IQ1_M = 29,
    KN_BF16 = 30,
    KN_TQ1_0 = 34,
    KN_TQ2_0 = 35,
    KN_MXFP4 = 39,
    KN_NVFP4 = 40,
    KN_Q1_0 = 41,
    KN_Q2_0 = 42,
    KN_TQ3_0 = 0x10000, /* of caches alone, no file's: forks number it as others number Q2_0 */
    KN_TYPE_NONE = 0xffffffff,
};

struct kn_type_info {
    uint32_t type;
    const char *name; /* upper case, as the ecosystem writes it: "Q4_K" */
    uint32_t block;   /* elements a block */
    uint32_t bytes;   /* bytes a block */
    bool can_decode;  /* kn_decode_row knows it */
    bool can_encode;  /* kn_encode_row knows it */
};
/* Does weight_load with KN_USE_LINEAR take it there? The tables that it asks; no device is needed. */
bool kn_cpu_multiplies(uint32_t type);
bool kn_cuda_multiplies(uint32_t type);
const struct kn_type_info *kn_type_info(uint32_t type);       /* NULL: unknown number */
const struct kn_type_info *kn_type_by_name(const char *name); /* any case; NULL: unknown name */
/* Bytes of n elements in a row; 0 if n is not a multiple of the block or the type is unknown. */
size_t kn_row_bytes(uint32_t type, int64_t n);

/* Reference codecs (kernels/blocks/). n: elements, a multiple of the block. Deterministic on every machine.
 * kn_encode_row: importance is NULL or [n] positive weights of the squared error. Source NaN/Inf: returns
 * KN_EINVAL. Both return 0, KN_ETYPE (no such codec) or KN_EINVAL. */
int kn_decode_row(uint32_t type, const void *src, float *dst, int64_t n);
int kn_encode_row(uint32_t type, const float *src, void *dst, int64_t n, const float *importance);

/* Scalar conversions, round to nearest even, all values (subnormals, Inf, NaN kept NaN). */
float kn_f16_to_f32(uint16_t h);
uint16_t kn_f32_to_f16(float f);
float kn_bf16_to_f32(uint16_t h);
uint16_t kn_f32_to_bf16(float f);

#ifdef __cplusplus
}
#endif
#endif
