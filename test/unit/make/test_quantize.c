/* test_quantize.c - recipes over the tensor lists of real models, overrides, and
 * rows encoded with threads. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../common/base/mem.h"
#include "../../../common/make/quantize.h"

#define MAX 1200
static struct quant_tensor list[MAX];
static char names[MAX][64];
static uint32_t to[MAX];
static int count;

static void add(uint32_t n_dims, int64_t n_in, int64_t n_out, int64_t n_3, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
static void add(uint32_t n_dims, int64_t n_in, int64_t n_out, int64_t n_3, const char *fmt, ...)
{
    va_list ap;
    assert_true(count < MAX);
    va_start(ap, fmt);
    vsnprintf(names[count], sizeof names[count], fmt, ap);
    va_end(ap);
    list[count] =
        (struct quant_tensor){names[count], n_dims, {n_in, n_out, n_3, 1}, n_dims > 1 ? KN_BF16 : KN_F32};
    count++;
}

static void add_layers(int n_layer, int64_t embd, int64_t q, int64_t kv, int64_t head, int64_t ff)
{
    for (int i = 0; i < n_layer; i++) {
        add(1, embd, 1, 1, "blk.%d.attn_norm.weight", i);
        add(2, embd, q, 1, "blk.%d.attn_q.weight", i);
        add(2, embd, kv, 1, "blk.%d.attn_k.weight", i);
        add(2, embd, kv, 1, "blk.%d.attn_v.weight", i);
        add(2, q, embd, 1, "blk.%d.attn_output.weight", i);
        add(1, head, 1, 1, "blk.%d.attn_q_norm.weight", i);
        add(1, head, 1, 1, "blk.%d.attn_k_norm.weight", i);
        add(1, embd, 1, 1, "blk.%d.ffn_norm.weight", i);
        add(2, embd, ff, 1, "blk.%d.ffn_gate.weight", i);
        add(2, embd, ff, 1, "blk.%d.ffn_up.weight", i);
        add(2, ff, embd, 1, "blk.%d.ffn_down.weight", i);
    }
}

static void qwen3_8b(void)
{
    count = 0;
    add(2, 4096, 151936, 1, "token_embd.weight");
    add_layers(36, 4096, 4096, 1024, 128, 12288);
    add(1, 4096, 1, 1, "output_norm.weight");
    add(2, 4096, 151936, 1, "output.weight");
}

static void qwen3_06b(void)
{
    count = 0;
    add(2, 1024, 151936, 1, "token_embd.weight");
    add_layers(28, 1024, 2048, 1024, 128, 3072);
    add(1, 1024, 1, 1, "output_norm.weight");
}

static void drafter(void) /* of Qwen3-8B: 5 layers, 5 taps */
{
    count = 0;
    add(2, 5 * 4096, 4096, 1, "fc.weight");
    add(1, 4096, 1, 1, "enc.output_norm.weight");
    add_layers(5, 4096, 4096, 1024, 128, 12288);
    add(1, 4096, 1, 1, "output_norm.weight");
}

static int number(uint32_t type)
{
    int n = 0;
    for (int i = 0; i < count; i++) n += to[i] == type;
    return n;
}

static uint32_t type_of(const char *name)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(list[i].name, name)) return to[i];
    fail_msg("no tensor %s", name);
    return 0;
}

static void plan(enum quant_recipe r, const struct quant_model *m)
{
    struct err e = {0};
    if (quant_plan(r, m, list, count, KN_TYPE_NONE, NULL, 0, to, &e)) fail_msg("%s", e.msg);
}

/* The layers of each list whose attn_v and ffn_down get Q6_K: the first and last
 * eighth, every third between. */
static void check_layers(int n_layer, const int *six, uint32_t other)
{
    for (int i = 0, k = 0; i < n_layer; i++) {
        char name[64];
        const bool more = six[k] == i;
        k += more;
        snprintf(name, sizeof name, "blk.%d.attn_v.weight", i);
        assert_int_equal(type_of(name), more ? KN_Q6_K : other);
        snprintf(name, sizeof name, "blk.%d.ffn_down.weight", i);
        assert_int_equal(type_of(name), more ? KN_Q6_K : KN_Q4_K);
    }
}

static void test_q4_k_m(void **state)
{
    (void)state;
    static const int six_36[] = {0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 31, 32, 33, 34, 35, -1};
    static const int six_28[] = {0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27, -1};
    static const int six_5[] = {2, 4, -1};
    qwen3_8b();
    plan(QUANT_Q4_K_M, &(struct quant_model){"qwen3", 36, 0, 32, 8, false});
    assert_int_equal(count, 399);
    assert_int_equal(number(KN_F32), 145);
    assert_int_equal(number(KN_Q4_K), 217);
    assert_int_equal(number(KN_Q6_K), 37);
    assert_int_equal(type_of("token_embd.weight"), KN_Q4_K);
    assert_int_equal(type_of("output.weight"), KN_Q6_K);
    check_layers(36, six_36, KN_Q4_K);

    qwen3_06b(); /* tied: the embedding is the head too */
    plan(QUANT_Q4_K_M, &(struct quant_model){"qwen3", 28, 0, 16, 8, false});
    assert_int_equal(number(KN_Q6_K), 29);
    assert_int_equal(number(KN_Q4_K), 168);
    assert_int_equal(type_of("token_embd.weight"), KN_Q6_K);
    check_layers(28, six_28, KN_Q4_K);

    drafter();
    plan(QUANT_Q4_K_M, &(struct quant_model){"dflash", 5, 0, 32, 8, false});
    assert_int_equal(count, 58);
    assert_int_equal(number(KN_F32), 22);
    assert_int_equal(type_of("fc.weight"), KN_Q4_K);
    check_layers(5, six_5, KN_Q4_K);
}

static void test_special_mixes(void **state)
{
    (void)state;
    static const int six_80[] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  12, 15, 18, 21,
                                 24, 27, 30, 33, 36, 39, 42, 45, 48, 51, 54, 57, 60, 63,
                                 66, 69, 70, 71, 72, 73, 74, 75, 76, 77, 78, 79, -1};
    count = 0;
    add_layers(80, 8192, 8192, 1024, 128, 28672);
    plan(QUANT_Q4_K_M, &(struct quant_model){"llama", 80, 0, 64, 8, false});
    check_layers(80, six_80, KN_Q5_K); /* 70B: eight heads share a v */
    plan(QUANT_Q4_K_M, &(struct quant_model){"llama", 80, 0, 64, 64, false});
    check_layers(80, six_80, KN_Q4_K); /* 65B */

    count = 0; /* 8 experts */
    for (int i = 0; i < 32; i++) {
        add(2, 4096, 1024, 1, "blk.%d.attn_k.weight", i);
        add(2, 4096, 1024, 1, "blk.%d.attn_v.weight", i);
        add(2, 4096, 4096, 1, "blk.%d.attn_output.weight", i);
        add(2, 4096, 8, 1, "blk.%d.ffn_gate_inp.weight", i);
        add(3, 14336, 4096, 8, "blk.%d.ffn_down_exps.weight", i);
    }
    plan(QUANT_Q4_K_M, &(struct quant_model){"llama", 32, 8, 32, 8, false});
    assert_int_equal(number(KN_Q8_0), 64);
    assert_int_equal(number(KN_Q5_K), 32);
    assert_int_equal(number(KN_BF16), 32); /* routers stay */
    assert_int_equal(type_of("blk.3.ffn_down_exps.weight"), KN_Q6_K);
    assert_int_equal(type_of("blk.4.ffn_down_exps.weight"), KN_Q4_K);
    assert_int_equal(type_of("blk.6.ffn_down_exps.weight"), KN_Q6_K);

    count = 0; /* two down matrices a layer: the layer's number decides, not how many came before */
    for (int i = 0; i < 16; i++) {
        add(3, 1024, 2048, 64, "blk.%d.ffn_down_exps.weight", i);
        add(2, 1024, 2048, 1, "blk.%d.ffn_down_shexp.weight", i);
    }
    plan(QUANT_Q4_K_M, &(struct quant_model){"qwen3moe", 16, 64, 32, 4, false});
    for (int i = 0; i < 32; i++)
        assert_int_equal(to[i], i / 2 < 2 || i / 2 >= 14 || (i / 2 - 2) % 3 == 2 ? KN_Q6_K : KN_Q4_K);
}

/* The small mixes and Q5_K_M, whose rules differ from Q4_K_M's in a few places. */
static void test_other_mixes(void **state)
{
    (void)state;
    static const int six_36[] = {0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 31, 32, 33, 34, 35, -1};
    const struct quant_model m = {"qwen3", 36, 0, 32, 8, false};
    char name[64];
    qwen3_8b();
    plan(QUANT_Q5_K_M, &m);
    assert_int_equal(number(KN_Q5_K), 217);
    assert_int_equal(number(KN_Q6_K), 37);
    assert_int_equal(type_of("token_embd.weight"), KN_Q5_K);
    for (int i = 0, k = 0; i < 36; i++) {
        const bool more = six_36[k] == i;
        k += more;
        snprintf(name, sizeof name, "blk.%d.ffn_down.weight", i);
        assert_int_equal(type_of(name), more ? KN_Q6_K : KN_Q5_K);
    }
    plan(QUANT_Q5_K_S, &m); /* the head alone has more */
    assert_int_equal(number(KN_Q5_K), 253);
    assert_int_equal(type_of("output.weight"), KN_Q6_K);
    plan(QUANT_Q4_K_S, &m); /* four of attn_v, the first eighth (4) of ffn_down */
    assert_int_equal(number(KN_Q5_K), 8);
    assert_int_equal(number(KN_Q6_K), 1);
    for (int i = 0; i < 36; i++) {
        snprintf(name, sizeof name, "blk.%d.ffn_down.weight", i);
        assert_int_equal(type_of(name), i < 4 ? KN_Q5_K : KN_Q4_K);
        snprintf(name, sizeof name, "blk.%d.attn_v.weight", i);
        assert_int_equal(type_of(name), i < 4 ? KN_Q5_K : KN_Q4_K);
    }
    drafter(); /* 5 layers: no eighth */
    plan(QUANT_Q4_K_S, &(struct quant_model){"dflash", 5, 0, 32, 8, false});
    assert_int_equal(number(KN_Q5_K), 4);
    assert_int_equal(type_of("blk.4.attn_v.weight"), KN_Q4_K);
    assert_int_equal(type_of("blk.0.ffn_down.weight"), KN_Q4_K);
    qwen3_06b(); /* tied */
    plan(QUANT_Q5_K_S, &(struct quant_model){"qwen3", 28, 0, 16, 8, false});
    assert_int_equal(type_of("token_embd.weight"), KN_Q6_K);

    count = 0; /* eight experts: more for what they share, where the mix is of 4 bits */
    for (int i = 0; i < 32; i++) {
        add(2, 4096, 1024, 1, "blk.%d.attn_k.weight", i);
        add(2, 4096, 1024, 1, "blk.%d.attn_v.weight", i);
        add(2, 4096, 4096, 1, "blk.%d.attn_output.weight", i);
        add(3, 14336, 4096, 8, "blk.%d.ffn_down_exps.weight", i);
    }
    plan(QUANT_Q4_K_S, &(struct quant_model){"llama", 32, 8, 32, 8, false});
    assert_int_equal(number(KN_Q8_0), 64);
    assert_int_equal(number(KN_Q5_K), 32 + 4);
    plan(QUANT_Q5_K_M, &(struct quant_model){"llama", 32, 8, 32, 8, false});
    assert_int_equal(number(KN_Q8_0), 64);
    assert_int_equal(type_of("blk.9.attn_output.weight"), KN_Q5_K);
    assert_int_equal(type_of("blk.3.ffn_down_exps.weight"), KN_Q6_K);
}

/* The types of layer i's attn_v, ffn_down and attn_output. */
static void check_three(int i, uint32_t v, uint32_t down, uint32_t output)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%d.attn_v.weight", i);
    assert_int_equal(type_of(name), v);
    snprintf(name, sizeof name, "blk.%d.ffn_down.weight", i);
    assert_int_equal(type_of(name), down);
    snprintf(name, sizeof name, "blk.%d.attn_output.weight", i);
    assert_int_equal(type_of(name), output);
}

static const struct quant_model four = {"qwen3", 36, 0, 32, 8, false}, two = {"qwen3", 36, 0, 16, 8, false},
                                weighed = {"qwen3", 36, 0, 32, 8, true};

/* Of k-quants and of four bits. */
static void check_low_k(void)
{
    qwen3_8b();
    plan(QUANT_Q2_K, &four);
    for (int i = 0; i < 36; i++) check_three(i, KN_Q4_K, KN_Q3_K, KN_Q3_K);
    assert_int_equal(number(KN_Q2_K), 36 * 4 + 1); /* q, k, gate, up; the embedding */
    assert_int_equal(type_of("output.weight"), KN_Q6_K);
    plan(QUANT_Q2_K, &two);
    check_three(7, KN_Q3_K, KN_Q3_K, KN_Q3_K);
    plan(QUANT_Q3_K_S, &four);
    for (int i = 0; i < 36; i++) check_three(i, KN_Q3_K, KN_Q3_K, KN_Q3_K);
    plan(QUANT_Q3_K_M, &four); /* two of attn_v, the first sixteenth (2) of ffn_down */
    for (int i = 0; i < 36; i++)
        check_three(i, i < 2 ? KN_Q5_K : KN_Q4_K, i < 2 ? KN_Q5_K : KN_Q4_K, KN_Q4_K);
    plan(QUANT_Q3_K_L, &four);
    for (int i = 0; i < 36; i++) check_three(i, KN_Q5_K, KN_Q5_K, KN_Q5_K);
    assert_int_equal(type_of("token_embd.weight"), KN_Q3_K);
    plan(QUANT_IQ4_XS, &four); /* the first eighth (4) of ffn_down, where no importance matrix says better */
    for (int i = 0; i < 36; i++) check_three(i, KN_Q5_K, i < 4 ? KN_Q5_K : KN_IQ4_XS, KN_IQ4_XS);
    plan(QUANT_IQ4_XS, &weighed);
    for (int i = 0; i < 36; i++) check_three(i, KN_Q5_K, KN_IQ4_XS, KN_IQ4_XS);
    plan(QUANT_IQ4_NL, &two);
    check_three(3, KN_IQ4_NL, KN_Q5_K, KN_IQ4_NL);
    check_three(4, KN_IQ4_NL, KN_IQ4_NL, KN_IQ4_NL);
}

static void check_low_iq(void)
{
    qwen3_8b();
    plan(QUANT_IQ2_XXS, &four); /* the first eighth (4) of ffn_down */
    for (int i = 0; i < 36; i++) check_three(i, KN_Q4_K, i < 4 ? KN_Q2_K : KN_IQ2_XXS, KN_IQ2_XXS);
    assert_int_equal(type_of("output.weight"), KN_Q5_K);
    assert_int_equal(type_of("token_embd.weight"), KN_Q2_K);
    plan(QUANT_IQ2_M, &two);
    for (int i = 0; i < 36; i++) check_three(i, KN_IQ3_S, i < 4 ? KN_IQ3_S : KN_IQ2_S, KN_IQ3_S);
    assert_int_equal(type_of("token_embd.weight"), KN_IQ3_S);
    assert_int_equal(type_of("blk.20.attn_q.weight"), KN_IQ2_S);
    plan(QUANT_IQ2_S, &two);
    assert_int_equal(type_of("blk.20.ffn_up.weight"), KN_IQ2_XS);
    plan(QUANT_IQ3_XXS, &weighed);
    for (int i = 0; i < 36; i++) check_three(i, KN_Q4_K, KN_IQ3_XXS, KN_IQ3_S);
    assert_int_equal(type_of("blk.20.attn_q.weight"), KN_IQ2_S);
    assert_int_equal(type_of("output.weight"), KN_Q5_K);
    plan(QUANT_IQ3_XXS, &two); /* no importance matrix */
    for (int i = 0; i < 36; i++) check_three(i, KN_IQ3_S, i < 4 ? KN_Q4_K : KN_Q3_K, KN_IQ3_S);
    plan(QUANT_IQ3_XS, &two); /* gates and ups but those of the first and the last eighth */
    for (int i = 0; i < 36; i++) {
        char name[64];
        check_three(i, KN_IQ3_S, KN_IQ3_S, KN_IQ3_S);
        snprintf(name, sizeof name, "blk.%d.ffn_gate.weight", i);
        assert_int_equal(type_of(name), i >= 4 && i < 31 ? KN_IQ3_XXS : KN_IQ3_S);
        snprintf(name, sizeof name, "blk.%d.attn_k.weight", i);
        assert_int_equal(type_of(name), KN_IQ3_XXS);
    }
    plan(QUANT_IQ3_S, &four);
    for (int i = 0; i < 36; i++) check_three(i, KN_Q4_K, KN_IQ3_S, KN_IQ3_S);
    plan(QUANT_IQ3_M, &two);
    for (int i = 0; i < 36; i++) check_three(i, KN_Q4_K, i < 4 ? KN_Q4_K : KN_IQ3_S, KN_Q4_K);
    assert_int_equal(type_of("output.weight"), KN_Q6_K);
    plan(QUANT_MXFP4_MOE, &four); /* no experts */
    for (int i = 0; i < 36; i++) check_three(i, KN_Q8_0, KN_Q8_0, KN_Q8_0);
}

static void check_low_others(void)
{
    qwen3_06b(); /* tied */
    plan(QUANT_IQ4_XS, &(struct quant_model){"qwen3", 28, 0, 16, 8, false});
    assert_int_equal(type_of("token_embd.weight"), KN_Q6_K);

    count = 0; /* 70B */
    add_layers(80, 8192, 8192, 1024, 128, 28672);
    plan(QUANT_Q2_K, &(struct quant_model){"llama", 80, 0, 64, 8, false});
    check_three(40, KN_Q5_K, KN_Q3_K, KN_Q3_K);
    plan(QUANT_Q3_K_S, &(struct quant_model){"llama", 80, 0, 64, 8, false});
    check_three(40, KN_Q5_K, KN_Q3_K, KN_Q3_K);

    count = 0; /* experts alone */
    add(3, 2880, 2880, 32, "blk.0.ffn_up_exps.weight");
    add(2, 2880, 4096, 1, "blk.0.attn_q.weight");
    plan(QUANT_MXFP4_MOE, &(struct quant_model){"gpt-oss", 24, 32, 64, 8, false});
    assert_int_equal(to[0], KN_MXFP4);
    assert_int_equal(to[1], KN_Q8_0);

    count = 0; /* 8 experts: all the mixes of four bits or fewer but Q3_K_L */
    add(2, 4096, 1024, 1, "blk.0.attn_v.weight");
    add(2, 4096, 1024, 1, "blk.0.attn_k.weight");
    add(2, 4096, 4096, 1, "blk.0.attn_output.weight");
    for (enum quant_recipe r = QUANT_Q2_K; r <= QUANT_IQ4_XS; r++) {
        plan(r, &(struct quant_model){"llama", 32, 8, 32, 8, false});
        assert_int_equal(to[0], KN_Q8_0);
        assert_int_equal(to[1], KN_Q8_0);
        assert_int_equal(to[2], r == QUANT_Q3_K_L ? KN_Q3_K : KN_Q5_K);
    }
}

static void test_low_mixes(void **state)
{
    (void)state;
    check_low_k();
    check_low_iq();
    check_low_others();
}

/* A file may list layer 10 before layer 2. */
static void test_order(void **state)
{
    (void)state;
    static uint32_t sorted[MAX];
    static char name[MAX][64];
    const struct quant_model m = {"qwen3", 36, 0, 32, 8, false};
    qwen3_8b();
    plan(QUANT_Q4_K_M, &m);
    memcpy(sorted, to, sizeof to);
    memcpy(name, names, sizeof names);
    for (int i = 0; i < count; i++) { /* 250 and 399 have no common divisor */
        list[i].name = name[i * 250 % count];
        const bool matrix = !strstr(list[i].name, "norm");
        list[i] = (struct quant_tensor){
            list[i].name, matrix ? 2 : 1, {4096, 1024, 1, 1}, matrix ? KN_BF16 : KN_F32};
    }
    plan(QUANT_Q4_K_M, &m);
    for (int i = 0; i < count; i++) assert_int_equal(to[i], sorted[i * 250 % count]);
}

static void test_plain_recipes(void **state)
{
    (void)state;
    static const uint32_t type[] = {KN_F32,  KN_F16,  KN_BF16, KN_Q8_0, KN_Q4_0, KN_Q5_0,
                                    KN_Q4_K, KN_Q5_K, KN_Q6_K, KN_Q4_1, KN_Q5_1};
    static const uint32_t file_type[] = {0, 1, 32, 7, 2, 8, 14, 16, 18, 3, 9};
    const struct quant_model m = {"qwen3", 28, 0, 16, 8, false};
    struct err e = {0};
    for (int r = QUANT_F32; r <= QUANT_Q5_1; r++) {
        enum quant_recipe back;
        qwen3_06b();
        plan((enum quant_recipe)r, &m);
        assert_int_equal(quant_recipe_file_type((enum quant_recipe)r), file_type[r]);
        assert_int_equal(quant_recipe_by_name(quant_recipe_name((enum quant_recipe)r), &back, &e), 0);
        assert_int_equal(back, r);
        assert_false(quant_recipe_is_mix(back));
        for (int i = 0; i < count; i++) assert_int_equal(to[i], list[i].n_dims > 1 ? type[r] : KN_F32);
    }
    enum quant_recipe mix;
    assert_int_equal(quant_recipe_by_name("q4_k_m", &mix, &e), 0);
    assert_int_equal(mix, QUANT_Q4_K_M);
    static const struct {
        const char *name;
        enum quant_recipe r;
        uint32_t file_type;
    } mixes[] = {
        {"Q4_K_S", QUANT_Q4_K_S, 14},      {"Q4_K_M", QUANT_Q4_K_M, 15},   {"Q5_K_S", QUANT_Q5_K_S, 16},
        {"Q5_K_M", QUANT_Q5_K_M, 17},      {"Q2_K", QUANT_Q2_K, 10},       {"Q3_K_S", QUANT_Q3_K_S, 11},
        {"Q3_K_M", QUANT_Q3_K_M, 12},      {"Q3_K_L", QUANT_Q3_K_L, 13},   {"IQ4_NL", QUANT_IQ4_NL, 25},
        {"IQ4_XS", QUANT_IQ4_XS, 30},      {"IQ2_XXS", QUANT_IQ2_XXS, 19}, {"IQ2_XS", QUANT_IQ2_XS, 20},
        {"IQ2_S", QUANT_IQ2_S, 28},        {"IQ2_M", QUANT_IQ2_M, 29},     {"IQ3_XXS", QUANT_IQ3_XXS, 23},
        {"IQ3_XS", QUANT_IQ3_XS, 22},      {"IQ3_S", QUANT_IQ3_S, 26},     {"IQ3_M", QUANT_IQ3_M, 27},
        {"MXFP4_MOE", QUANT_MXFP4_MOE, 38}};
    for (size_t i = 0; i < sizeof mixes / sizeof *mixes; i++) {
        assert_int_equal(quant_recipe_by_name(mixes[i].name, &mix, &e), 0);
        assert_int_equal(mix, mixes[i].r);
        assert_true(quant_recipe_is_mix(mix));
        assert_int_equal(quant_recipe_file_type(mix), mixes[i].file_type);
    }
    assert_int_equal(quant_recipe_by_name("q4_k_l", &mix, &e), -1);
    assert_int_equal(e.code, ERR_USAGE);
    assert_non_null(strstr(e.msg, "q4_k_l"));
    assert_non_null(strstr(e.msg, "Q4_K_M"));
}

static void test_kept_and_fallbacks(void **state)
{
    (void)state;
    const struct quant_model m = {"x", 2, 0, 4, 2, false};
    count = 0;
    add(2, 512, 64, 1, "a_norm.weight");
    add(2, 512, 8, 1, "blk.0.ffn_gate_inp.weight");
    add(2, 4, 512, 1, "blk.0.ssm_conv1d.weight");
    add(3, 512, 2, 2, "blk.0.attn_conv_base");
    add(2, 512, 64, 1, "rope_freqs.bias");
    add(1, 512, 1, 1, "b.weight");
    const int kept = count;
    add(2, 288, 64, 1, "c.weight"); /* blocks of 32 only */
    add(2, 100, 64, 1, "d.weight"); /* no block */
    add(2, 512, 64, 1, "e.weight");
    static const struct {
        enum quant_recipe r;
        uint32_t c, d, e;
    } want[] = {{QUANT_Q4_K, KN_Q5_0, KN_F16, KN_Q4_K},       {QUANT_Q5_K, KN_Q5_1, KN_F16, KN_Q5_K},
                {QUANT_Q6_K, KN_Q8_0, KN_F16, KN_Q6_K},       {QUANT_Q8_0, KN_Q8_0, KN_F16, KN_Q8_0},
                {QUANT_Q4_0, KN_Q4_0, KN_F16, KN_Q4_0},       {QUANT_F16, KN_F16, KN_F16, KN_F16},
                {QUANT_Q4_K_M, KN_Q5_0, KN_F16, KN_Q4_K},     {QUANT_Q5_K_M, KN_Q5_1, KN_F16, KN_Q5_K},
                {QUANT_Q4_1, KN_Q4_1, KN_F16, KN_Q4_1},       {QUANT_Q5_1, KN_Q5_1, KN_F16, KN_Q5_1},
                {QUANT_Q2_K, KN_Q4_0, KN_F16, KN_Q2_K},       {QUANT_Q3_K_M, KN_Q4_0, KN_F16, KN_Q3_K},
                {QUANT_IQ4_XS, KN_IQ4_NL, KN_F16, KN_IQ4_XS}, {QUANT_IQ4_NL, KN_IQ4_NL, KN_F16, KN_IQ4_NL},
                {QUANT_IQ3_S, KN_IQ4_NL, KN_F16, KN_IQ3_S},   {QUANT_IQ2_XXS, KN_IQ4_NL, KN_F16, KN_IQ2_XXS}};
    struct err e = {0};
    for (size_t k = 0; k < sizeof want / sizeof *want; k++) {
        plan(want[k].r, &m);
        for (int i = 0; i < kept; i++) assert_int_equal(to[i], list[i].from);
        assert_int_equal(to[kept], want[k].c);
        assert_int_equal(to[kept + 1], want[k].d);
        assert_int_equal(to[kept + 2], want[k].e);
    }
    /* a head whose rows the recipe's blocks do not divide */
    add(2, 288, 64, 1, "output.weight");
    static const enum quant_recipe heads[] = {QUANT_IQ2_XXS, QUANT_IQ3_XXS, QUANT_IQ3_M, QUANT_Q4_K_M};
    for (size_t k = 0; k < sizeof heads / sizeof *heads; k++) {
        plan(heads[k], &m);
        assert_int_equal(type_of("output.weight"), KN_Q8_0);
    }
    count--;
    /* convert keeps what is left alone as F32 */
    assert_int_equal(quant_plan(QUANT_Q4_K, &m, list, count, KN_F32, NULL, 0, to, &e), 0);
    for (int i = 0; i < kept; i++) assert_int_equal(to[i], KN_F32);
    plan(QUANT_F32, &m);
    for (int i = 0; i < count; i++) assert_int_equal(to[i], KN_F32);
    /* integers stay; a type that cannot be read is refused unless it stays */
    add(2, 512, 2, 1, "table.weight");
    list[count - 1].from = KN_I32;
    plan(QUANT_Q4_K, &m);
    assert_int_equal(to[count - 1], KN_I32);
    list[count - 1].from = KN_TQ2_0;
    assert_int_equal(quant_plan(QUANT_Q4_K, &m, list, count, KN_TYPE_NONE, NULL, 0, to, &e), -1);
    assert_int_equal(e.code, ERR_FORMAT);
    assert_non_null(strstr(e.msg, "table.weight"));
    assert_non_null(strstr(e.msg, "TQ2_0"));
}

static void override_fails(const char *arg, const char *part)
{
    struct err e = {0};
    struct quant_override o;
    const struct quant_model m = {"qwen3", 28, 0, 16, 8, false};
    int rc = quant_override_parse(&o, arg, &e);
    if (!rc) rc = quant_plan(QUANT_Q4_K_M, &m, list, count, KN_TYPE_NONE, &o, 1, to, &e);
    quant_override_free(&o);
    assert_int_equal(rc, -1);
    assert_int_equal(e.code, ERR_USAGE);
    if (!strstr(e.msg, part)) fail_msg("'%s' does not say '%s'", e.msg, part);
}

static void test_overrides(void **state)
{
    (void)state;
    static const char *const args[] = {"blk.*.attn_*=q8_0", "blk.[01].attn_v.weight=F16",
                                       "token_embd.weight=Q4_1"};
    const struct quant_model m = {"qwen3", 28, 0, 16, 8, false};
    struct quant_override o[3];
    struct err e = {0};
    qwen3_06b();
    for (int i = 0; i < 3; i++) assert_int_equal(quant_override_parse(&o[i], args[i], &e), 0);
    assert_int_equal(quant_plan(QUANT_Q4_K_M, &m, list, count, KN_TYPE_NONE, o, 3, to, &e), 0);
    for (int i = 0; i < 3; i++) quant_override_free(&o[i]);
    assert_int_equal(type_of("token_embd.weight"), KN_Q4_1);
    assert_int_equal(type_of("blk.0.attn_v.weight"), KN_F16); /* the later one wins */
    assert_int_equal(type_of("blk.10.attn_v.weight"), KN_Q8_0);
    assert_int_equal(type_of("blk.0.attn_norm.weight"), KN_F32); /* matched, never quantised */
    assert_int_equal(number(KN_Q8_0), 28 * 4 - 2);

    override_fails("blk.99.*=Q8_0", "blk.99.*=Q8_0: matches no tensor");
    override_fails("*_norm.weight=Q8_0", "never quantised");
    override_fails("attn_v=IQ4_XS", "IQ4_XS");
    override_fails("attn_v=", "PATTERN=TYPE");
    override_fails("=Q8_0", "PATTERN=TYPE");
    override_fails("Q8_0", "PATTERN=TYPE");
    list[1].ne[0] = list[2].ne[0] = 96; /* blk.0.attn_q */
    override_fails("blk.0.attn_q.weight=Q6_K",
                   "blk.0.attn_q.weight has rows of 96 (expected a multiple of 256)");
}

/* ---- rows ---- */

#define ROWS 37
#define IN 4096
static float x[ROWS * IN];
static uint16_t half[ROWS * IN];
static uint8_t a[ROWS * IN * 4], b[ROWS * IN * 4];

static void fill(void)
{
    uint64_t s = 99;
    for (int i = 0; i < ROWS * IN; i++) {
        s = s * 6364136223846793005ull + 1442695040888963407ull;
        half[i] = kn_f32_to_bf16((float)((double)(s >> 40) / 8388608.0 - 1.0));
        x[i] = kn_bf16_to_f32(half[i]);
    }
}

static void test_threads(void **state)
{
    (void)state;
    static const uint32_t types[] = {KN_F32,  KN_F16,  KN_BF16, KN_Q8_0, KN_Q4_0,
                                     KN_Q5_1, KN_Q4_K, KN_Q5_K, KN_Q6_K};
    fill();
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        const size_t row = kn_row_bytes(types[k], IN);
        struct quant_error one = {0}, many, parts = {0};
        struct err e = {0};
        assert_int_equal(quant_rows("t", KN_BF16, half, types[k], a, IN, ROWS, 0, 1, &one, &e), 0);
        for (int threads = 2; threads <= 3; threads++) {
            memset(b, 0x5a, sizeof b);
            many = (struct quant_error){0};
            assert_int_equal(quant_rows("t", KN_BF16, half, types[k], b, IN, ROWS, 0, threads, &many, &e), 0);
            assert_memory_equal(a, b, row * ROWS);
            assert_memory_equal(&one, &many, sizeof one);
        }
        /* in slabs, and from floats */
        for (int r = 0; r < ROWS; r += 10) {
            const int n = ROWS - r < 10 ? ROWS - r : 10;
            assert_int_equal(quant_rows("t", KN_BF16, half + r * IN, types[k], b + row * (size_t)r, IN, n, r,
                                        2, &parts, &e),
                             0);
        }
        assert_memory_equal(a, b, row * ROWS);
        if (types[k] != KN_BF16) assert_int_equal(parts.count, ROWS * IN);
        assert_int_equal(quant_rows("t", KN_F32, x, types[k], b, IN, ROWS, 0, 0, NULL, &e), 0);
        assert_memory_equal(a, b, row * ROWS);
    }
}

/* The error is that of what was written: recomputed here from the bytes. */
static void test_error(void **state)
{
    (void)state;
    static float y[ROWS * IN];
    struct quant_error q = {0}, sum = {0};
    struct err e = {0};
    double err2 = 0, ref2 = 0;
    fill();
    assert_int_equal(quant_rows("t", KN_F32, x, KN_Q4_K, a, IN, ROWS, 0, 2, &q, &e), 0);
    assert_int_equal(kn_decode_row(KN_Q4_K, a, y, ROWS * IN), 0);
    for (int i = 0; i < ROWS * IN; i++) {
        err2 += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
        ref2 += (double)x[i] * (double)x[i];
    }
    assert_true(fabs(quant_rel_rms(&q) / sqrt(err2 / ref2) - 1) < 1e-12); /* doubles added in another order */
    quant_error_add(&sum, &q);
    quant_error_add(&sum, &q);
    assert_int_equal(sum.count, 2 * ROWS * IN);
    assert_true(fabs(quant_rel_rms(&sum) / quant_rel_rms(&q) - 1) < 1e-15);
    assert_true(quant_rel_rms(&(struct quant_error){0}) == 0);
    q = (struct quant_error){0};
    assert_int_equal(quant_rows("t", KN_BF16, half, KN_F32, a, IN, ROWS, 0, 2, &q, &e), 0);
    assert_true(q.err2 == 0 && q.ref2 > 0 && quant_rel_rms(&q) == 0); /* lossless, and measured */
}

/* Weights move error from columns that matter to columns that do not, whatever the threads. */
static void test_weighted_rows(void **state)
{
    (void)state;
    static const uint32_t types[] = {KN_Q4_0, KN_Q4_1, KN_Q5_0, KN_Q5_1, KN_Q4_K, KN_Q5_K, KN_Q6_K};
    static float w[IN], y[IN];
    struct err e = {0};
    for (int i = 0; i < ROWS * IN; i++) x[i] = (float)((i * 2654435761u >> 8) % 2001) * 1e-3f - 1;
    for (int i = 0; i < IN; i++) w[i] = i % 8 == 3 ? 4.0f : 0.25f;
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        const size_t row = kn_row_bytes(types[k], IN);
        double loss[2] = {0, 0};
        struct quant_error q = {0}, one = {0};
        assert_int_equal(quant_rows_weighted("t", KN_F32, x, types[k], a, IN, ROWS, 0, w, 3, &q, &e), 0);
        assert_int_equal(quant_rows_weighted("t", KN_F32, x, types[k], b, IN, ROWS, 0, w, 1, &one, &e), 0);
        assert_memory_equal(a, b, row * ROWS);
        assert_true(q.err2 == one.err2);
        assert_int_equal(quant_rows("t", KN_F32, x, types[k], b, IN, ROWS, 0, 1, NULL, &e), 0);
        for (int s = 0; s < 2; s++)
            for (int r = 0; r < ROWS; r++) {
                assert_int_equal(kn_decode_row(types[k], (s ? b : a) + row * (size_t)r, y, IN), 0);
                for (int i = 0; i < IN; i++) {
                    const double d = (double)y[i] - (double)x[r * IN + i];
                    loss[s] += (double)w[i] * d * d;
                }
            }
        if (!(loss[0] < 0.97 * loss[1]))
            fail_msg("%s: %g weighted, %g not", kn_type_info(types[k])->name, loss[0], loss[1]);
    }
}

static void test_bad_rows(void **state)
{
    (void)state;
    struct err e = {0};
    fill();
    x[20 * IN + 5] = NAN; /* a later row, so that threads meet it first */
    x[3 * IN + 17] = -INFINITY;
    assert_int_equal(quant_rows("blk.0.w", KN_F32, x, KN_Q8_0, a, IN, ROWS, 100, 3, NULL, &e), -1);
    assert_int_equal(e.code, ERR_FORMAT);
    assert_string_equal(e.msg, "blk.0.w: row 103, element 17 is infinite (expected finite values)");
    e = (struct err){0};
    x[3 * IN + 17] = 70000;
    assert_int_equal(quant_rows("blk.0.w", KN_F32, x, KN_F16, a, IN, 10, 0, 2, NULL, &e), -1);
    assert_string_equal(e.msg, "blk.0.w: row 3, element 17: 70000 is more than F16 can hold");
    e = (struct err){0};
    assert_int_equal(quant_rows("w", KN_F32, x, KN_Q4_K, a, 100, 1, 0, 1, NULL, &e), -1);
    assert_string_equal(e.msg, "w: rows of 100 are not whole blocks of Q4_K");
    e = (struct err){0};
    assert_int_equal(quant_rows("w", KN_TQ2_0, x, KN_Q4_K, a, 256, 1, 0, 1, NULL, &e), -1);
    assert_string_equal(e.msg, "w: cannot make Q4_K from TQ2_0");
    e = (struct err){0};
    assert_int_equal(quant_rows("w", KN_IQ4_XS, half, KN_IQ4_XS, a, 256, 2, 0, 1, NULL, &e), 0); /* a copy */
    assert_memory_equal(a, half, 2 * kn_row_bytes(KN_IQ4_XS, 256));
}

static void test_memory(void **state)
{
    (void)state;
    const struct quant_model m = {"qwen3", 28, 0, 16, 8, false};
    struct quant_error q = {0};
    fill();
    qwen3_06b();
    mem_fail_at(0);
    for (uint64_t nth = 1; nth <= 2; nth++) {
        struct err e = {0};
        mem_fail_at(nth);
        assert_int_equal(quant_plan(QUANT_Q4_K_M, &m, list, count, KN_TYPE_NONE, NULL, 0, to, &e), -1);
        assert_int_equal(e.code, ERR_IO);
        e = (struct err){0};
        mem_fail_at(nth);
        assert_int_equal(quant_rows("t", KN_F32, x, KN_Q8_0, a, IN, 2, 0, 1, &q, &e), -1);
        assert_int_equal(e.code, ERR_IO);
        mem_fail_at(0);
    }
    struct err e = {0};
    struct quant_override o;
    mem_fail_at(1);
    assert_int_equal(quant_override_parse(&o, "a=F16", &e), -1);
    mem_fail_at(0);
    assert_int_equal(e.code, ERR_IO);
    quant_override_free(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_q4_k_m),
        cmocka_unit_test(test_special_mixes),
        cmocka_unit_test(test_other_mixes),
        cmocka_unit_test(test_low_mixes),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_plain_recipes),
        cmocka_unit_test(test_kept_and_fallbacks),
        cmocka_unit_test(test_overrides),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_error),
        cmocka_unit_test(test_weighted_rows),
        cmocka_unit_test(test_bad_rows),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
