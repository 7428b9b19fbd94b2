/* desc_llama.c - Llama 3 targets: no head norms, interleaved rope (the converter permutes the rows of attn_q
 * and attn_k to it), the frequencies of llama3 scaling as divisors in rope_freqs.weight. */
#include "desc_impl.h"

static const struct desc_expect tensors[] = {
    DESC_EXPECT_ENDS,
    {"rope_freqs.weight", {NE_ROT}, ON_DIVISORS},
    {"blk.%d.attn_norm.weight", {NE_EMBD}, 0},
    {"blk.%d.attn_q.weight", {NE_EMBD, NE_Q}, 0},
    {"blk.%d.attn_k.weight", {NE_EMBD, NE_KV}, 0},
    {"blk.%d.attn_v.weight", {NE_EMBD, NE_KV}, 0},
    {"blk.%d.attn_output.weight", {NE_Q, NE_EMBD}, 0},
    {"blk.%d.ffn_norm.weight", {NE_EMBD}, 0},
    {"blk.%d.ffn_gate.weight", {NE_EMBD, NE_FF}, 0},
    {"blk.%d.ffn_up.weight", {NE_EMBD, NE_FF}, 0},
    {"blk.%d.ffn_down.weight", {NE_FF, NE_EMBD}, 0},
    {0},
};

static int read_llama(struct desc_reader *r)
{
    if (desc_known_keys(r, desc_stack_keys, NULL) || desc_base(r, true) || desc_heads(r) || desc_dense(r) ||
        desc_rope_plain(r))
        return -1;
    r->d->rope[0].interleaved = true;
    r->d->rope[0].has_divisors = gguf_tensor(r->g, "rope_freqs.weight") != NULL;
    return desc_expect_all(r, tensors);
}

const struct desc_family desc_llama = {"llama", DESC_LLAMA, read_llama};
