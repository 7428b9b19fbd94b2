/* convert_llama.c - Llama 3 (LlamaForCausalLM) to arch "llama" as llama.cpp names it.
 *
 * Hugging Face rotates dimensions i and i + D/2 of a head together, the architecture 2i and 2i + 1: the rows
 * of q and k move within each head, HF's i to 2i and its i + D/2 to 2i + 1. llama3 scaling becomes
 * rope_freqs.weight, one divisor a frequency. HF's post_attention_layernorm is a norm before the
 * feed-forward, hence ffn_norm. */
#include "convert_impl.h"

#include <math.h>
#include "../base/mem.h"

static const struct conv_rule rules[] = {
    {"embed_tokens.weight", "token_embd.weight", {DIM_VOCAB, DIM_EMBD}, CONV_EMBED},
    {"layers.%d.input_layernorm.weight", "blk.%d.attn_norm.weight", {DIM_EMBD}, 0},
    {"layers.%d.self_attn.q_proj.weight", "blk.%d.attn_q.weight", {DIM_Q, DIM_EMBD}, CONV_ROWS},
    {"layers.%d.self_attn.k_proj.weight", "blk.%d.attn_k.weight", {DIM_KV, DIM_EMBD}, CONV_ROWS},
    {"layers.%d.self_attn.v_proj.weight", "blk.%d.attn_v.weight", {DIM_KV, DIM_EMBD}, 0},
    {"layers.%d.self_attn.o_proj.weight", "blk.%d.attn_output.weight", {DIM_EMBD, DIM_Q}, 0},
    {"layers.%d.post_attention_layernorm.weight", "blk.%d.ffn_norm.weight", {DIM_EMBD}, 0},
    CONV_FFN_RULES,
    CONV_END_RULES,
    {"rope_freqs", "rope_freqs.weight", {DIM_ROT}, CONV_MADE},
    {NULL, NULL, {DIM_NONE}, 0},
};

static const struct hf_rule config[] = {
    {"attention_bias", "[false]"},
    {"hidden_act", "[\"silu\"]"},
    {"mlp_bias", "[false]"},
    {"model_type", "[\"llama\"]"},
    {"partial_rotary_factor", "[1]"},
    {"sliding_window", "[null]"},
    {NULL, NULL},
};

/* No tensor tells the head size: the config's head count does, and its head_dim must agree. */
static int heads(struct conv *c, struct err *e)
{
    int64_t n;
    if (conv_need_i64(c, "num_attention_heads", &n, e)) return -1;
    if (c->dim[DIM_Q] % n)
        return err_set(
            e, ERR_FORMAT,
            "%s: num_attention_heads does not divide the rows of q_proj (got %lld heads, %lld rows)",
            hf_config_name(c->cfg), (long long)n, (long long)c->dim[DIM_Q]);
    conv_set_dim(c, DIM_HEAD, c->dim[DIM_Q] / n, "q_proj / num_attention_heads");
    return 0;
}

static int check_heads(struct conv *c, struct err *e)
{
    return heads(c, e) || conv_heads(c, e) ? -1 : 0;
}

static int64_t row(const struct conv *c, const struct conv_rule *r, int64_t i)
{
    (void)r;
    int64_t d = c->dim[DIM_HEAD], head = i / d, j = i % d;
    return head * d + (j % 2) * (d / 2) + j / 2;
}

/* Divisors of the frequencies: 1 for wavelengths below original / high, factor above original / low, between
 * them blended. */
static int make(struct conv *c, struct conv_tensor *t, struct err *e)
{
    const char *where = NULL;
    int r = hf_get_rope(c->cfg, NULL, HF_ROPE_LLAMA3, &c->rope, &where, e);
    if (r < 0 || heads(c, e)) return -1;
    if (r == 1 || c->rope.factor == 0) return 0;
    const struct hf_rope *p = &c->rope;
    int64_t d = c->dim[DIM_HEAD];
    conv_set_dim(c, DIM_ROT, d / 2, "head_dim / 2");
    t->made = mem_alloc((size_t)(d / 2 + 1) * sizeof *t->made);
    if (!t->made) return err_set(e, ERR_IO, "out of memory (rope divisors)");
    for (int64_t i = 0; i < d / 2; i++) {
        double wave = 2 * M_PI * pow(p->theta, 2.0 * (double)i / (double)d);
        double s = (p->original / wave - p->low_freq) / (p->high_freq - p->low_freq);
        double div = wave < p->original / p->high_freq  ? 1
                     : wave > p->original / p->low_freq ? p->factor
                                                        : 1 / ((1 - s) / p->factor + s);
        t->made[i] = (float)div;
    }
    conv_say(c, CONVERT_DETAIL, "rope scaling: llama3, factor %.9g beyond %.9g positions (rope_freqs.weight)",
             p->factor, p->original);
    return 0;
}

static int keys(struct conv *c, struct err *e)
{
    return conv_put_common(c, e) || conv_put_u32(c, "vocab_size", c->n_vocab, e) ||
                   conv_put_u32(c, "rope.dimension_count", c->head_dim, e)
               ? -1
               : 0;
}

const struct conv_family conv_llama = {
    .hf = "LlamaForCausalLM",
    .arch = "llama",
    .rules = rules,
    .config = config,
    .rope = HF_ROPE_LLAMA3,
    .heads = check_heads,
    .make = make,
    .row = row,
    .keys = keys,
};
