/* types.c - the tensor types of GGUF: numbers, names, elements and bytes a block (docs/types.md). */
#include "../kernels.h"

#include <strings.h>

/* Types 4, 5, 31..33 and 36..38 existed once and were withdrawn by the format; a file with one is refused. */
#define PLAIN false, false, false
#define FULL true, true, true
#define READ true, false, true
static const struct kn_type_info table[] = {
    {KN_F32, "F32", 1, 4, FULL},
    {KN_F16, "F16", 1, 2, FULL},
    {KN_Q4_0, "Q4_0", 32, 18, FULL},
    {KN_Q4_1, "Q4_1", 32, 20, FULL},
    {KN_Q5_0, "Q5_0", 32, 22, FULL},
    {KN_Q5_1, "Q5_1", 32, 24, FULL},
    {KN_Q8_0, "Q8_0", 32, 34, FULL},
    {KN_Q8_1, "Q8_1", 32, 36, PLAIN}, /* two f16 and 32 codes; an activation format that no file holds */
    {KN_Q2_K, "Q2_K", 256, 84, FULL},
    {KN_Q3_K, "Q3_K", 256, 110, FULL},
    {KN_Q4_K, "Q4_K", 256, 144, FULL},
    {KN_Q5_K, "Q5_K", 256, 176, FULL},
    {KN_Q6_K, "Q6_K", 256, 210, FULL},
    {KN_Q8_K, "Q8_K", 256, 292, PLAIN},
    {KN_IQ2_XXS, "IQ2_XXS", 256, 66, FULL},
    {KN_IQ2_XS, "IQ2_XS", 256, 74, FULL},
    {KN_IQ3_XXS, "IQ3_XXS", 256, 98, FULL},
    {KN_IQ1_S, "IQ1_S", 256, 50, READ},
    {KN_IQ4_NL, "IQ4_NL", 32, 18, FULL},
    {KN_IQ3_S, "IQ3_S", 256, 110, FULL},
    {KN_IQ2_S, "IQ2_S", 256, 82, FULL},
    {KN_IQ4_XS, "IQ4_XS", 256, 136, FULL},
    {KN_I8, "I8", 1, 1, PLAIN},
    {KN_I16, "I16", 1, 2, PLAIN},
    {KN_I32, "I32", 1, 4, PLAIN},
    {KN_I64, "I64", 1, 8, PLAIN},
    {KN_F64, "F64", 1, 8, true, false, false},
    {KN_IQ1_M, "IQ1_M", 256, 56, READ},
    {KN_BF16, "BF16", 1, 2, FULL},
    {KN_TQ1_0, "TQ1_0", 256, 54, PLAIN},
    {KN_TQ2_0, "TQ2_0", 256, 66, PLAIN},
    {KN_MXFP4, "MXFP4", 32, 17, FULL},
    {KN_NVFP4, "NVFP4", 64, 36, PLAIN},
    {KN_Q1_0, "Q1_0", 128, 18, PLAIN},
    {KN_Q2_0, "Q2_0", 64, 18, PLAIN},
};
#define TABLE_N (sizeof table / sizeof *table)

const struct kn_type_info *kn_type_info(uint32_t type)
{
    for (size_t i = 0; i < TABLE_N; i++)
        if (table[i].type == type) return &table[i];
    return NULL;
}

const struct kn_type_info *kn_type_by_name(const char *name)
{
    for (size_t i = 0; i < TABLE_N; i++)
        if (!strcasecmp(table[i].name, name)) return &table[i];
    return NULL;
}

size_t kn_row_bytes(uint32_t type, int64_t n)
{
    const struct kn_type_info *t = kn_type_info(type);
    if (!t || n < 0 || n % t->block) return 0;
    uint64_t blocks = (uint64_t)n / t->block;
    if (blocks > SIZE_MAX / t->bytes) return 0;
    return (size_t)blocks * t->bytes;
}
