/* mm_types.c - the weight types that products take: a file of its own, so that a program that only asks links
 * no product. */
#include "mm.h"

static const struct mm_type mm_types[MM_TYPES] = {
    {KN_F32, MM_ACT_F32, 2, 8},         {KN_F16, MM_ACT_F32, 2, 4},         {KN_BF16, MM_ACT_F32, 2, 4},
    {KN_Q8_0, MM_ACT_Q32, 32, 34},      {KN_Q4_0, MM_ACT_Q32, 32, 18},      {KN_Q5_0, MM_ACT_Q32, 32, 22},
    {KN_Q4_1, MM_ACT_Q32, 32, 20},      {KN_Q5_1, MM_ACT_Q32, 32, 24},      {KN_Q4_K, MM_ACT_Q256, 256, 144},
    {KN_Q5_K, MM_ACT_Q256, 256, 176},   {KN_Q6_K, MM_ACT_Q256, 256, 210},   {KN_IQ4_NL, MM_ACT_Q32, 32, 18},
    {KN_IQ4_XS, MM_ACT_Q256, 256, 136}, {KN_Q2_K, MM_ACT_Q256, 256, 84},    {KN_Q3_K, MM_ACT_Q256, 256, 110},
    {KN_MXFP4, MM_ACT_Q32, 32, 17},     {KN_IQ2_XXS, MM_ACT_Q256, 256, 66}, {KN_IQ2_XS, MM_ACT_Q256, 256, 74},
    {KN_IQ2_S, MM_ACT_Q256, 256, 82},   {KN_IQ3_XXS, MM_ACT_Q256, 256, 98}, {KN_IQ3_S, MM_ACT_Q256, 256, 110},
    {KN_IQ1_S, MM_ACT_Q256, 256, 50},   {KN_IQ1_M, MM_ACT_Q256, 256, 56},
};

int mm_type_index(uint32_t type)
{
    for (int i = 0; i < MM_TYPES; i++)
        if (mm_types[i].type == type) return i;
    return -1;
}

const struct mm_type *mm_type_of(uint32_t type)
{
    const int i = mm_type_index(type);
    return i < 0 ? NULL : &mm_types[i];
}

bool kn_cpu_multiplies(uint32_t type)
{
    return mm_type_of(type) != NULL;
}
