/* desc_qwen3.c - Qwen3 targets, dense and mixture of experts: head norms, NEOX rope, no biases. */
#include "desc_impl.h"

static const struct desc_expect tensors[] = {
    DESC_EXPECT_ENDS,
    {"blk.%d.attn_norm.weight", {NE_EMBD}, 0},
    {"blk.%d.attn_q.weight", {NE_EMBD, NE_Q}, 0},
    {"blk.%d.attn_k.weight", {NE_EMBD, NE_KV}, 0},
    {"blk.%d.attn_v.weight", {NE_EMBD, NE_KV}, 0},
    {"blk.%d.attn_output.weight", {NE_Q, NE_EMBD}, 0},
    {"blk.%d.attn_q_norm.weight", {NE_HEAD}, 0},
    {"blk.%d.attn_k_norm.weight", {NE_HEAD}, 0},
    {"blk.%d.ffn_norm.weight", {NE_EMBD}, 0},
    {0},
};

static const char *const windows[] = {"attention.sliding_window", "attention.sliding_window_pattern", NULL};
static const char *const experts[] = {"expert_count", "expert_used_count", "expert_feed_forward_length",
                                      "expert_weights_scale", NULL};

static int read_qwen3(struct desc_reader *r)
{
    if (desc_known_keys(r, desc_stack_keys, windows) || desc_base(r, true) || desc_heads(r) ||
        desc_dense(r) || desc_rope_plain(r) || desc_windows(r) || desc_expect_all(r, tensors))
        return -1;
    return desc_expect_ff(r);
}

/* feed_forward_length is that of dense layers, of which there are none: it says nothing. */
static int read_qwen3moe(struct desc_reader *r)
{
    if (desc_known_keys(r, desc_stack_keys, experts) || desc_base(r, true) || desc_heads(r) ||
        desc_experts(r) || desc_rope_plain(r) || desc_expect_all(r, tensors))
        return -1;
    return desc_expect_ff(r);
}

const struct desc_family desc_qwen3 = {"qwen3", DESC_QWEN3, read_qwen3};
const struct desc_family desc_qwen3moe = {"qwen3moe", DESC_QWEN3MOE, read_qwen3moe};
