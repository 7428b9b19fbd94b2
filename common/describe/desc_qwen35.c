/* desc_qwen35.c - Qwen3.5 targets, dense and mixture of experts: gated delta nets with gated attention
 * between them, and, with experts, one that all rows share. */
#include <stdio.h>
#include <string.h>
#include "desc_impl.h"

static const struct desc_expect ends[] = {DESC_EXPECT_ENDS, {0}};
static const struct desc_expect block[] = {
    {"blk.%d.attn_norm.weight", {NE_EMBD}, 0},
    {"blk.%d.attn_q.weight", {NE_EMBD, NE_Q2}, ON_ATTENTION},
    {"blk.%d.attn_k.weight", {NE_EMBD, NE_KV}, ON_ATTENTION},
    {"blk.%d.attn_v.weight", {NE_EMBD, NE_KV}, ON_ATTENTION},
    {"blk.%d.attn_output.weight", {NE_Q, NE_EMBD}, ON_ATTENTION},
    {"blk.%d.attn_q_norm.weight", {NE_HEAD}, ON_ATTENTION},
    {"blk.%d.attn_k_norm.weight", {NE_HEAD}, ON_ATTENTION},
    {"blk.%d.attn_qkv.weight", {NE_EMBD, NE_WIDTH}, ON_RECURRENT},
    {"blk.%d.attn_gate.weight", {NE_EMBD, NE_VALUE}, ON_RECURRENT},
    {"blk.%d.ssm_alpha.weight", {NE_EMBD, NE_N_V}, ON_RECURRENT},
    {"blk.%d.ssm_beta.weight", {NE_EMBD, NE_N_V}, ON_RECURRENT},
    {"blk.%d.ssm_a", {NE_N_V}, ON_RECURRENT},
    {"blk.%d.ssm_dt.bias", {NE_N_V}, ON_RECURRENT},
    {"blk.%d.ssm_conv1d.weight", {NE_CONV, NE_WIDTH}, ON_RECURRENT},
    {"blk.%d.ssm_norm.weight", {NE_D_V}, ON_RECURRENT},
    {"blk.%d.ssm_out.weight", {NE_VALUE, NE_EMBD}, ON_RECURRENT},
    {"blk.%d.post_attention_norm.weight", {NE_EMBD}, 0},
    {0},
};

int desc_qwen35_expect(struct desc_reader *r, const struct desc_expect *before)
{
    return desc_expect_all(r, before) || desc_expect_all(r, block) || desc_expect_ff(r) ? -1 : 0;
}

/* The first N_EXPERT_KEYS are of the family with experts alone. */
enum { N_EXPERT_KEYS = 5 };
const char *const desc_qwen35moe_keys[] = {
    "expert_count",
    "expert_feed_forward_length",
    "expert_shared_feed_forward_length",
    "expert_used_count",
    "expert_weights_scale",
    "attention.recurrent_layers",
    "full_attention_interval",
    "nextn_predict_layers",
    "rope.dimension_sections", /* of a picture's axes; in text all are one */
    "ssm.conv_kernel",
    "ssm.group_count",
    "ssm.inner_size",
    "ssm.state_size",
    "ssm.time_step_rank",
    NULL};
const char *const *const desc_qwen35_keys = desc_qwen35moe_keys + N_EXPERT_KEYS;

/* Blocks that predict further tokens stand behind the others and are no part of the pass. */
static void leave_out_nextn(struct desc_reader *r, int32_t n)
{
    struct desc *d = r->d;
    d->n_nextn = n;
    d->n_layer -= n;
    for (int32_t i = d->n_layer; i < d->n_layer + n; i++) {
        char start[32];
        int len = snprintf(start, sizeof start, "blk.%d.", i);
        for (uint64_t j = 0; j < r->g->n_tensors; j++)
            if (!strncmp(r->g->tensor[j].name, start, (size_t)len)) r->seen[j] = true;
    }
}

/* Which layers are delta nets: a bool a block, else all but every full_attention_interval-th. */
static int read_kinds(struct desc_reader *r)
{
    struct desc *d = r->d;
    bool recurrent[DESC_MAX_LAYERS], any = false;
    int32_t interval = 4, nextn = 0;
    int rc = desc_maybe_bools(r, "attention.recurrent_layers", recurrent);
    if (rc < 0 || desc_maybe_i32(r, "nextn_predict_layers", 0, d->n_layer - 1, &nextn) < 0) return -1;
    int by_interval = desc_maybe_i32(r, "full_attention_interval", 1, INT32_MAX, &interval);
    if (by_interval < 0) return -1;
    if (rc && by_interval)
        desc_infer(
            r,
            "no full_attention_interval: every fourth layer has attention, as the architecture's files mean");
    leave_out_nextn(r, nextn);
    for (int32_t i = 0; i < d->n_layer; i++) {
        d->layer[i].recurrent = rc == 0 ? recurrent[i] : (i + 1) % interval != 0;
        any |= !d->layer[i].recurrent;
    }
    return any ? 0 : desc_fail(r, "no layer has attention (expected some of the %d)", d->n_layer);
}

int desc_qwen35_heads(struct desc_reader *r, int32_t i)
{
    const struct desc_layer *y = &r->d->layer[i];
    const int32_t n = r->d->first_block + i;
    char q[64], k[64], norm[64];
    snprintf(q, sizeof q, "blk.%d.attn_q.weight", n);
    snprintf(k, sizeof k, "blk.%d.attn_k.weight", n);
    snprintf(norm, sizeof norm, "blk.%d.attn_q_norm.weight", n);
    return desc_layer_heads(r, i, 2, 0) || desc_agree_i32(r, "attention.head_count", y->n_head, q) ||
                   desc_agree_i32(r, "attention.head_count_kv", y->n_head_kv, k) ||
                   desc_agree_i32(r, "attention.key_length", y->head_dim, norm) ||
                   desc_agree_i32(r, "attention.value_length", y->head_dim, norm)
               ? -1
               : 0;
}

static int read_heads(struct desc_reader *r)
{
    struct desc *d = r->d;
    int32_t heads, heads_kv;
    if (desc_need_i32(r, "attention.head_count", 1, INT32_MAX, &heads) ||
        desc_need_i32(r, "attention.head_count_kv", 1, INT32_MAX, &heads_kv))
        return -1;
    d->gated_attention = true;
    for (int32_t i = 0; i < d->n_layer; i++)
        if (!d->layer[i].recurrent && desc_qwen35_heads(r, i)) return -1;
    return 0;
}

/* The first of the recurrent layers, or -1. */
static int32_t first_delta(const struct desc *d)
{
    for (int32_t i = 0; i < d->n_layer; i++)
        if (d->layer[i].recurrent) return i;
    return -1;
}

/* No tensor tells how the keys' part of attn_qkv divides into heads, nor the values' but through ssm_norm:
 * the keys do, and must fit all shapes. */
static int read_delta(struct desc_reader *r)
{
    struct desc *d = r->d;
    int32_t i = first_delta(d), inner, width;
    char name[48];
    if (i < 0) return 0;
    if (desc_need_i32(r, "ssm.group_count", 1, INT16_MAX, &d->n_k) ||
        desc_need_i32(r, "ssm.state_size", 1, 1 << 14, &d->d_k) ||
        desc_need_i32(r, "ssm.time_step_rank", 1, INT16_MAX, &d->n_v) ||
        desc_need_i32(r, "ssm.inner_size", 1, 1 << 29, &inner) ||
        desc_need_i32(r, "ssm.conv_kernel", 1, 64, &d->n_conv))
        return -1;
    if (inner % d->n_v)
        return desc_fail(r, "key '%s.ssm.inner_size': is no multiple of ssm.time_step_rank (got %d and %d)",
                         d->arch_name, inner, d->n_v);
    if (d->n_v % d->n_k)
        return desc_fail(r, "key '%s.ssm.time_step_rank': is no multiple of ssm.group_count (got %d and %d)",
                         d->arch_name, d->n_v, d->n_k);
    d->d_v = inner / d->n_v;
    snprintf(name, sizeof name, "blk.%d.ssm_norm.weight", i);
    if (desc_dim(r, name, 0, &width)) return -1;
    if (width != d->d_v)
        return desc_fail(
            r, "tensor '%s': disagrees with ssm.inner_size / ssm.time_step_rank (expected [%d], got [%d])",
            name, d->d_v, width);
    return 0;
}

int desc_qwen35_rope(struct desc_reader *r)
{
    struct desc *d = r->d;
    const int32_t head_dim = desc_attention(d)->head_dim;
    struct desc_rope *p = &d->rope[0];
    if (desc_rope_base(r) || desc_need_i32(r, "rope.dimension_count", 2, head_dim, &p->n_rot)) return -1;
    if (p->n_rot % 2)
        return desc_fail(r, "key '%s.rope.dimension_count': is odd (expected pairs, got %d)", d->arch_name,
                         p->n_rot);
    p->base = p->n_rot;
    return 0;
}

int desc_qwen35_experts(struct desc_reader *r)
{
    struct desc *d = r->d;
    char shared[64];
    snprintf(shared, sizeof shared, "blk.%d.ffn_gate_shexp.weight", d->first_block);
    return desc_experts(r) || desc_dim(r, shared, 1, &d->n_ff_shexp) ||
                   desc_agree_i32(r, "expert_shared_feed_forward_length", d->n_ff_shexp, shared)
               ? -1
               : 0;
}

static int read_trunk(struct desc_reader *r, const char *const *known)
{
    return desc_known_keys(r, desc_stack_keys, known) || desc_base(r, true) || read_kinds(r) ||
                   read_heads(r) || read_delta(r) || desc_qwen35_rope(r)
               ? -1
               : 0;
}

static int read_qwen35(struct desc_reader *r)
{
    return read_trunk(r, desc_qwen35_keys) || desc_dense(r) ? -1 : desc_qwen35_expect(r, ends);
}

/* feed_forward_length is that of dense layers, of which there are none: it says nothing. */
static int read_qwen35moe(struct desc_reader *r)
{
    return read_trunk(r, desc_qwen35moe_keys) || desc_qwen35_experts(r) ? -1 : desc_qwen35_expect(r, ends);
}

const struct desc_family desc_qwen35 = {"qwen35", DESC_QWEN35, read_qwen35};
const struct desc_family desc_qwen35moe = {"qwen35moe", DESC_QWEN35MOE, read_qwen35moe};
