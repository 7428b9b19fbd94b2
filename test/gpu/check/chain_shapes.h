/* chain_shapes.h - the layers that chain_gpu checks and times: part of it. */
#ifndef DFLASH_TEST_CHAIN_SHAPES_H
#define DFLASH_TEST_CHAIN_SHAPES_H

struct shape {
    const char *name;
    int64_t hidden, ff;
    int32_t n_head, n_kv, layers, cap;
    uint32_t o, gate, down, qk, v, cache;
    bool norms, turn, small, cut; /* cut: no chain fits */
};
#define K4 KN_Q4_K
#define K5 KN_Q5_K
#define K6 KN_Q6_K
#define Q8 KN_Q8_0
#define BF KN_BF16
#define X4 KN_IQ4_XS
#define K2 KN_Q2_K
#define K3 KN_Q3_K
#define M4 KN_Q4_1
#define M5 KN_Q5_1
#define I3X KN_IQ3_XXS
#define I3 KN_IQ3_S
#define I2X KN_IQ2_XXS
#define I2M KN_IQ2_XS
#define I2 KN_IQ2_S
#define I1 KN_IQ1_S
#define I1M KN_IQ1_M
static const struct shape shapes[] = {
    {"256 512", 256, 512, 2, 1, 3, 256, K4, K4, K4, K4, K4, KN_F16, true, true, true, false},
    {"512 1280, Q5_K Q6_K", 512, 1280, 6, 2, 3, 256, K5, K6, K5, K6, K5, KN_BF16, false, true, true, false},
    {"768 2304, mixed", 768, 2304, 16, 1, 4, 1024, K6, K5, K6, K4, K6, KN_F16, true, false, true, false},
    {"1280 768, one head a kv head", 1280, 768, 6, 6, 3, 768, K4, K4, K6, K4, K4, KN_BF16, true, true, true,
     false},
    {"Qwen3-0.6B", 1024, 3072, 16, 8, 28, 4096, K4, K4, K6, K4, K6, KN_F16, true, true, false, false},
    {"Qwen3-8B", 4096, 12288, 32, 8, 12, 4096, K4, K4, K6, K4, K6, KN_F16, true, true, false, false},
    {"Qwen3-8B, Q4_K", 4096, 12288, 32, 8, 12, 4096, K4, K4, K4, K4, K4, KN_F16, true, true, false, false},
    {"1792 4352", 1792, 4352, 6, 2, 3, 256, K4, K4, K6, K4, K6, KN_F16, true, true, true, false},
    {"2304 768, mixed", 2304, 768, 4, 2, 3, 768, K6, K5, K4, K6, K5, KN_BF16, true, true, true, false},
    {"5376 512", 5376, 512, 2, 1, 2, 256, K5, K6, K6, K4, K6, KN_F16, true, true, true, false},
    {"5120 17408", 5120, 17408, 48, 8, 4, 4096, K4, K4, K6, K4, K6, KN_F16, true, true, false, false},
    {"5120 17408, Q6_K", 5120, 17408, 40, 8, 2, 4096, K6, K6, K6, K6, K6, KN_BF16, true, true, false, false},
    {"5376 21504", 5376, 21504, 64, 32, 4, 1024, K4, K4, K6, K4, K6, KN_F16, true, true, false, false},
    {"5376 21504, Q6_K", 5376, 21504, 64, 32, 2, 1024, K6, K6, K6, K6, K6, KN_F16, true, true, false, false},
    {"Qwen3-32B, 5120 25600", 5120, 25600, 64, 8, 3, 4096, K4, K4, K6, K4, K6, KN_F16, true, true, false,
     false},
    {"256 512, Q8_0", 256, 512, 2, 1, 3, 256, Q8, Q8, Q8, Q8, Q8, KN_F16, true, true, true, false},
    {"512 1280, 32-blocks", 512, 1280, 6, 2, 3, 256, KN_Q4_0, Q8, KN_Q5_0, KN_IQ4_NL, Q8, KN_BF16, false,
     true, true, false},
    {"768 2304, BF16", 768, 2304, 16, 1, 4, 1024, BF, BF, BF, BF, BF, KN_F16, true, false, true, false},
    {"1280 768, F16", 1280, 768, 6, 6, 3, 768, KN_F16, KN_F16, KN_F16, KN_F16, KN_F16, KN_BF16, true, true,
     true, false},
    {"768 1280, all kinds", 768, 1280, 6, 2, 4, 768, Q8, K4, BF, KN_F16, KN_F16, KN_BF16, true, true, true,
     false},
    {"1280 2304, all kinds", 1280, 2304, 6, 2, 4, 768, BF, Q8, K6, KN_Q5_0, Q8, KN_F16, true, true, true,
     false},
    {"5376 2048, wide norms beside Q8_0", 5376, 2048, 16, 2, 2, 256, BF, K4, Q8, K4, K6, KN_F16, true, true,
     true, false},
    {"512 1024, Q8_0 beside Q6_K", 512, 1024, 4, 2, 3, 256, K4, K4, K4, Q8, K6, KN_F16, true, true, true,
     false},
    {"512 1024, Q4_1", 512, 1024, 4, 2, 3, 256, M4, K4, K4, K4, K6, KN_F16, true, true, true, false},
    {"512 1280, Q3_K Q2_K", 512, 1280, 6, 2, 3, 256, K3, K2, K3, K2, K3, KN_F16, true, true, true, false},
    {"768 2304, Q3_K beside Q4_K to Q6_K", 768, 2304, 16, 1, 4, 1024, K4, K3, K6, K3, K5, KN_F16, true, false,
     true, false},
    {"1280 768, Q5_1 Q4_1", 1280, 768, 6, 6, 3, 768, M5, M4, M5, M4, M5, KN_BF16, true, true, true, false},
    {"1280 2304, low types beside others", 1280, 2304, 6, 2, 4, 768, K2, Q8, M5, K3, KN_F16, KN_F16, true,
     true, true, false},
    {"512 1024, MXFP4", 512, 1024, 4, 2, 3, 256, KN_MXFP4, KN_MXFP4, KN_MXFP4, KN_MXFP4, KN_MXFP4, KN_F16,
     true, true, true, false},
    {"256 512, 20 heads over 1", 256, 512, 20, 1, 3, 256, K4, K4, K4, K4, K4, KN_F16, true, true, true, true},
    {"Qwen3-8B, Q3_K_M", 4096, 12288, 32, 8, 12, 4096, K4, K3, K4, K3, K5, KN_F16, true, true, false, false},
    {"Qwen3-8B, Q2_K", 4096, 12288, 32, 8, 12, 4096, K3, K2, K3, K2, K3, KN_F16, true, true, false, false},
    {"256 512, IQ3_XXS", 256, 512, 2, 1, 3, 256, I3X, I3X, I3X, I3X, I3X, KN_F16, true, true, true, false},
    {"512 1280, IQ3_XXS, IQ2_XXS, IQ3_S, Q5_K", 512, 1280, 6, 2, 3, 256, I3X, I2X, I3, I3X, K5, KN_BF16,
     false, true, true, false},
    {"768 2304, IQ2_XS, IQ2_S, IQ3_S", 768, 2304, 16, 1, 4, 1024, I2M, I2, I2M, I2, I3, KN_F16, true, false,
     true, false},
    {"1280 768, IQ1_S, IQ1_M", 1280, 768, 6, 6, 3, 768, I1, I1M, I1, I1M, I1, KN_BF16, true, true, true,
     false},
    {"1792 4352, all grids beside K types", 1792, 4352, 6, 2, 3, 256, K6, I2, X4, I1M, K2, KN_F16, true, true,
     true, false},
    {"5376 512, IQ3_S, IQ2_XXS, IQ2_XS, IQ1_S", 5376, 512, 2, 1, 2, 256, I2M, I3, I1, I2X, I3, KN_F16, true,
     true, true, false},
    {"768 1280, grids beside Q8_0, F16", 768, 1280, 6, 2, 4, 768, Q8, I3X, I2, I3, KN_F16, KN_BF16, true,
     true, true, false},
    {"1280 2304, grids beside low types", 1280, 2304, 6, 2, 4, 768, I2X, Q8, I1M, I2M, M5, KN_F16, true, true,
     true, false},
    {"Qwen3-8B, dynamic IQ", 4096, 12288, 32, 8, 12, 4096, I3X, I2X, I3, I3X, K5, KN_F16, true, true, false,
     false},
    {"Qwen3-8B, IQ3_XXS", 4096, 12288, 32, 8, 12, 4096, I3X, I3X, I3X, I3X, K5, KN_F16, true, true, false,
     false},
    {"Qwen3-8B, IQ2_M", 4096, 12288, 32, 8, 12, 4096, I2, I2, I3, I2, K4, KN_F16, true, true, false, false},
    {"5120 17408, IQ3_XXS", 5120, 17408, 48, 8, 4, 4096, I3X, I3X, I3, I3X, K5, KN_F16, true, true, false,
     false},
    {"768 1280, IQ4_XS", 768, 1280, 6, 2, 3, 768, X4, X4, K6, X4, K5, KN_F16, true, true, true, false},
    {"2304 768, IQ4_XS, Q6_K, F16", 2304, 768, 4, 2, 3, 768, X4, K6, X4, KN_F16, X4, KN_BF16, true, true,
     true, false},
    {"1280 2304, F32 and Q8_0", 1280, 2304, 6, 2, 3, 768, KN_F32, Q8, X4, KN_F32, Q8, KN_F16, false, true,
     true, false},
    {"1792 4352, BF16 beside Q5_K", 1792, 4352, 6, 2, 3, 256, K4, X4, KN_F16, K5, BF, KN_F16, true, true,
     true, false},
    {"Qwen3-8B, dynamic", 4096, 12288, 32, 8, 12, 4096, Q8, X4, K6, K5, KN_F16, KN_F16, true, true, false,
     false},
    {"Qwen3-8B, low types among K types", 4096, 12288, 32, 8, 6, 4096, M4, K3, K6, K4, Q8, KN_BF16, true,
     true, false, false},
    {"Qwen3-8B, IQ4_XS", 4096, 12288, 32, 8, 12, 4096, X4, X4, X4, X4, K5, KN_F16, true, true, false, false},
    {"Qwen3-8B, IQ types beside Q8_0", 4096, 12288, 32, 8, 6, 4096, Q8, I2X, I3, I3X, Q8, KN_F16, true, true,
     false, false},
    {"Qwen3-0.6B, Q8_0", 1024, 3072, 16, 8, 28, 4096, Q8, Q8, Q8, Q8, Q8, KN_F16, true, true, false, false},
    {"Qwen3-0.6B, BF16", 1024, 3072, 16, 8, 28, 4096, BF, BF, BF, BF, BF, KN_F16, true, true, false, false},
    {"Qwen3-8B, Q8_0", 4096, 12288, 32, 8, 12, 4096, Q8, Q8, Q8, Q8, Q8, KN_F16, true, true, false, false},
    {"Qwen3-8B, BF16", 4096, 12288, 32, 8, 9, 4096, BF, BF, BF, BF, BF, KN_F16, true, true, false, false},
    {"Llama-3.1-8B, BF16, F16", 4096, 14336, 32, 8, 6, 4096, BF, BF, KN_F16, BF, BF, KN_F16, false, true,
     false, false},
    {"Llama-3.1-8B, Q5_K", 4096, 14336, 32, 8, 6, 4096, K5, K5, K6, K5, K6, KN_F16, false, true, false,
     false},
};
/* Long contexts: capacities that are no power of two, heads a kv head from 1 to 8. */
static const struct shape far_shapes[] = {
    {"256 512, 8 heads over 1, far", 256, 512, 8, 1, 3, 8448, K4, K4, K4, K4, K4, KN_BF16, true, true, true,
     false},
    {"512 1280, 6 heads over 6, far", 512, 1280, 6, 6, 3, 5376, K5, K6, K5, K6, K5, KN_F16, false, true, true,
     false},
    {"Qwen3-0.6B, far", 1024, 3072, 16, 8, 3, 20224, K4, K4, K6, K4, K6, KN_F16, true, true, false, false},
    {"Qwen3-8B, far", 4096, 12288, 32, 8, 3, 65536, K4, K4, K6, K4, K6, KN_F16, true, true, false, false},
    {"4096 12288, 64 heads over 8, far", 4096, 12288, 64, 8, 2, 36864, K4, K4, K6, K4, K6, KN_BF16, true,
     true, false, false},
    {"Qwen3-8B, farthest", 4096, 12288, 32, 8, 2, 163840, K4, K4, K4, K4, K4, KN_F16, true, true, false,
     false},
    {"1280 768, all kinds, far", 1280, 768, 6, 2, 3, 4864, BF, Q8, K6, KN_F16, KN_F16, KN_BF16, true, true,
     true, false},
    {"Qwen3-8B, Q8_0, far", 4096, 12288, 32, 8, 2, 17152, Q8, Q8, Q8, Q8, Q8, KN_F16, true, true, false,
     false},
    {"Qwen3-0.6B, BF16, far", 1024, 3072, 16, 8, 2, 17152, BF, BF, BF, BF, BF, KN_F16, true, true, false,
     false},
    {"1280 2304, 32-blocks, far", 1280, 2304, 12, 4, 2, 5120, KN_IQ4_NL, Q8, KN_Q5_0, KN_Q4_0, Q8, KN_F16,
     true, true, true, false},
    {"1280 2304, low types, far", 1280, 2304, 12, 4, 2, 5120, M4, K3, K6, K2, M5, KN_F16, true, true, true,
     false},
    {"1280 2304, IQ3_XXS, IQ2_S, far", 1280, 2304, 12, 4, 2, 5120, I3X, I2, I3X, I2M, K5, KN_F16, true, true,
     true, false},
    {"1280 768, grids beside others, far", 1280, 768, 6, 2, 3, 4864, I3, I2X, Q8, I1, KN_F16, KN_BF16, true,
     true, true, false},
    {"1280 768, mixed, far", 1280, 768, 6, 2, 3, 4864, X4, K4, Q8, K5, KN_F16, KN_F16, true, true, true,
     false},
    {"5376 1280, wide norms, far", 5376, 1280, 16, 2, 2, 5120, K4, K5, K6, K4, K6, KN_BF16, true, true, true,
     false},
};
/* Quantised caches. */
#define Q4V KN_Q4_0
#define Q5V KN_Q5_0
#define T3V KN_TQ3_0
static const struct code_shape {
    struct shape s;
    uint32_t values; /* type of values; 0: that of keys */
} code_shapes[] = {
    {{"256 512, 8 heads over 1, q8_0", 256, 512, 8, 1, 3, 8448, K4, K4, K4, K4, K4, Q8, true, true, true,
      false},
     0},
    {{"512 1280, 6 heads over 6, q4_0 and tq3_0", 512, 1280, 6, 6, 3, 5376, K5, K6, K5, K6, K5, Q4V, false,
      true, true, false},
     T3V},
    {{"1280 768, all kinds, tq3_0 and q5_0", 1280, 768, 6, 2, 3, 4864, BF, Q8, K6, KN_F16, KN_F16, T3V, true,
      true, true, false},
     Q5V},
    {{"1280 768, low types, q8_0", 1280, 768, 6, 2, 3, 4864, M5, K3, K2, K3, M4, Q8, true, true, true, false},
     0},
    {{"1280 768, IQ3_S, IQ2_XXS, q8_0", 1280, 768, 6, 2, 3, 4864, I3, I2X, K6, I1M, K4, Q8, true, true, true,
      false},
     0},
    {{"1280 768, IQ2_XXS, IQ2_S beside Q8_0, q8_0", 1280, 768, 6, 2, 3, 4864, Q8, I2X, I2, I3X, Q8, Q8, true,
      true, true, false},
     0},
    {{"768 1280, 6 heads over 1, q5_0", 768, 1280, 6, 1, 3, 4608, K4, K4, K6, K4, K6, Q5V, true, false, true,
      false},
     0},
    {{"2048 1280, 16 heads over 16, q8_0 and tq3_0", 2048, 1280, 16, 16, 2, 5376, K4, K4, K6, K4, K6, Q8,
      true, true, true, false},
     T3V},
    {{"2048 1280, 32 heads over 32, tq3_0 and q5_0", 2048, 1280, 32, 32, 2, 4864, K4, K4, K6, K4, K6, T3V,
      true, true, false, false},
     Q5V},
    {{"1024 1280, 24 heads over 4, q4_0 and q5_0", 1024, 1280, 24, 4, 2, 19712, K4, K4, K6, K4, K6, Q4V, true,
      true, true, false},
     Q5V},
    {{"Qwen3-0.6B, tq3_0", 1024, 3072, 16, 8, 3, 20224, K4, K4, K6, K4, K6, T3V, true, true, false, false},
     0},
    {{"Qwen3-8B, q8_0", 4096, 12288, 32, 8, 3, 65536, K4, K4, K6, K4, K6, Q8, true, true, false, false}, 0},
    {{"Qwen3-8B, q4_0", 4096, 12288, 32, 8, 2, 163840, K4, K4, K6, K4, K6, Q4V, true, true, false, false}, 0},
    {{"Qwen3-8B, q8_0 and q4_0", 4096, 12288, 32, 8, 2, 20480, K4, K4, K6, K4, K6, Q8, true, true, false,
      false},
     Q4V},
    {{"Qwen3-8B, tq3_0", 4096, 12288, 32, 8, 2, 36864, K4, K4, K6, K4, K6, T3V, true, true, false, false}, 0},
    {{"4096 12288, 64 heads over 8, q5_0", 4096, 12288, 64, 8, 2, 20480, K4, K4, K6, K4, K6, Q5V, true, true,
      false, false},
     0},
    {{"5120 25600, 64 heads over 8, q8_0", 5120, 25600, 64, 8, 2, 8192, K4, K4, K6, K4, K6, Q8, true, true,
      false, false},
     0},
    {{"Qwen3-8B, Q8_0, q8_0", 4096, 12288, 32, 8, 2, 17152, Q8, Q8, Q8, Q8, Q8, Q8, true, true, false, false},
     0},
};

#endif
