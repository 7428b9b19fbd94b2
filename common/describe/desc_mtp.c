/* desc_mtp.c - the block of a Qwen3.5 file that predicts further tokens (MTP, nextn), described as a drafter.
 *
 * It stands behind the target's blocks, in the target's file or in one of its own, which then holds no block
 * of the target, at most copies of its embedding, last norm and head. Those are not read: the target's are
 * used, which every target has. */
#include <stdio.h>
#include <string.h>
#include "desc_impl.h"

enum { USUAL_BLOCK = 4, MOST_ROWS = 64 }; /* the anchor and three proposals */

static const struct desc_expect tensors[] = {
    {"blk.%d.nextn.eh_proj.weight", {NE_EMBD2, NE_EMBD}, 0},
    {"blk.%d.nextn.enorm.weight", {NE_EMBD}, 0},
    {"blk.%d.nextn.hnorm.weight", {NE_EMBD}, 0},
    {0},
};

/* The first of the blocks for further tokens; -1: the file does not say of any. Keys that are wrong are told
 * when they are read for good. */
static int32_t first_of(const struct gguf *g, struct gguf_str arch)
{
    char key[96];
    struct err none = {0};
    int32_t blocks = 0, nextn = 0;
    if (!gguf_str_is(arch, desc_qwen35_mtp.name) && !gguf_str_is(arch, desc_qwen35moe_mtp.name)) return -1;
    snprintf(key, sizeof key, "%.*s.block_count", (int)arch.n, arch.s);
    if (gguf_get_i32(g, key, &blocks, &none)) return -1;
    snprintf(key, sizeof key, "%.*s.nextn_predict_layers", (int)arch.n, arch.s);
    if (gguf_get_i32(g, key, &nextn, &none)) return -1;
    return nextn > 0 && blocks > nextn && blocks <= DESC_MAX_LAYERS ? blocks - nextn : -1;
}

bool desc_mtp_there(const struct gguf *g, struct gguf_str arch)
{
    return first_of(g, arch) >= 0;
}

bool desc_holds_mtp(const struct gguf *g)
{
    struct gguf_str arch;
    struct err none = {0};
    return !gguf_get_str(g, "general.architecture", &arch, &none) && desc_mtp_there(g, arch);
}

bool desc_mtp_apart(const struct gguf *g, struct gguf_str arch)
{
    return first_of(g, arch) >= 0 && !gguf_tensor(g, "blk.0.attn_norm.weight");
}

/* What belongs to the target is described with it. */
static void leave_target(struct desc_reader *r, int32_t first)
{
    static const char *const ends[] = {"token_embd.weight", "output_norm.weight", "output.weight"};
    for (uint64_t i = 0; i < r->g->n_tensors; i++) {
        const char *name = r->g->tensor[i].name;
        int32_t block;
        if (!r->d->apart && sscanf(name, "blk.%9d.", &block) == 1 && block < first) r->seen[i] = true;
        for (size_t j = 0; j < sizeof ends / sizeof ends[0]; j++)
            if (!strcmp(name, ends[j])) r->seen[i] = true;
    }
    if (r->d->apart && gguf_tensor(r->g, "token_embd.weight"))
        desc_infer(r, "token_embd%s of the file %s not read: the target's %s used",
                   gguf_tensor(r->g, "output.weight") ? " and output" : "",
                   gguf_tensor(r->g, "output.weight") ? "are" : "is",
                   gguf_tensor(r->g, "output.weight") ? "are" : "is");
}

/* A tensor of the block that may be there; found: it is, and of that shape. */
static int maybe(struct desc_reader *r, const char *name, const int64_t ne[3], bool *found)
{
    char full[64];
    snprintf(full, sizeof full, "blk.%d.%s", r->d->first_block, name);
    *found = gguf_tensor(r->g, full) != NULL;
    return *found ? desc_shape(r, ne, full) : 0;
}

static int read_ends(struct desc_reader *r)
{
    struct desc *d = r->d;
    const int64_t norm[3] = {d->n_embd, 0, 0};
    int64_t table[3] = {d->n_embd, 0, 0};
    const struct gguf_tensor *t = gguf_tensor(r->g, "token_embd.weight");
    char name[64], key[160];
    bool own;
    if (desc_maybe_i32(r, "vocab_size", 1, INT32_MAX, &d->n_vocab) < 0) return -1;
    snprintf(name, sizeof name, "blk.%d.nextn.embed_tokens.weight", d->first_block);
    if (!t) t = gguf_tensor(r->g, name);
    if (t && d->n_vocab && t->ne[1] != d->n_vocab)
        return desc_fail(r, "key '%s': disagrees with %s (expected %lld, got %d)",
                         desc_key(r, "vocab_size", key, sizeof key), t->name, (long long)t->ne[1],
                         d->n_vocab);
    if (t && t->ne[1] <= INT32_MAX) d->n_vocab = (int32_t)t->ne[1];
    table[1] = d->n_vocab;
    if (maybe(r, "nextn.embed_tokens.weight", table, &d->own_embed) ||
        maybe(r, "nextn.shared_head_head.weight", table, &d->own_head) ||
        maybe(r, "nextn.shared_head_norm.weight", norm, &own))
        return -1;
    d->head_norm = own ? "nextn.shared_head_norm.weight" : "output_norm.weight";
    if (own) return 0;
    desc_infer(r, "no nextn.shared_head_norm: output_norm stands before the head, as the architecture means");
    return desc_shape(r, norm, "output_norm.weight");
}

static int read_block(struct desc_reader *r)
{
    struct desc *d = r->d;
    char name[64];
    int32_t nextn = 0;
    if (desc_need_i32(r, "block_count", 2, DESC_MAX_LAYERS, &d->n_layer) ||
        desc_need_i32(r, "nextn_predict_layers", 1, d->n_layer - 1, &nextn) ||
        desc_need_i32(r, "context_length", 0, INT32_MAX, &d->n_ctx_train) ||
        desc_need_f32(r, "attention.layer_norm_rms_epsilon", &d->rms_eps))
        return -1;
    if (nextn != 1)
        return desc_fail(r,
                         "key '%s.nextn_predict_layers': several blocks, one behind the other, are not "
                         "supported (expected 1, got %d)",
                         d->arch_name, nextn);
    d->first_block = d->n_layer - 1;
    d->n_layer = 1;
    d->layer[0].causal = true;
    d->gated_attention = true;
    leave_target(r, d->first_block);
    snprintf(name, sizeof name, "blk.%d.nextn.hnorm.weight", d->first_block);
    return desc_dim(r, name, 0, &d->n_embd) || desc_agree_i32(r, "embedding_length", d->n_embd, name) ||
                   desc_qwen35_heads(r, 0) || desc_qwen35_rope(r) || read_ends(r)
               ? -1
               : 0;
}

static int read_any(struct desc_reader *r, const char *const *known)
{
    struct desc *d = r->d;
    d->apart = desc_mtp_apart(r->g, r->arch);
    d->dialect = "mtp";
    d->kind = "MTP";
    d->first_row = 1;
    d->mask_id = 0;
    d->block_size = r->o && r->o->block_size ? r->o->block_size : USUAL_BLOCK;
    d->block_most = MOST_ROWS;
    d->has_embedding_scale = false;
    return desc_known_keys(r, desc_stack_keys, known) || read_block(r) ? -1 : 0;
}

static int read_dense(struct desc_reader *r)
{
    return read_any(r, desc_qwen35_keys) || desc_dense(r) ? -1 : desc_qwen35_expect(r, tensors);
}

static int read_moe(struct desc_reader *r)
{
    return read_any(r, desc_qwen35moe_keys) || desc_qwen35_experts(r) ? -1 : desc_qwen35_expect(r, tensors);
}

const struct desc_family desc_qwen35_mtp = {"qwen35", DESC_QWEN35_MTP, read_dense};
const struct desc_family desc_qwen35moe_mtp = {"qwen35moe", DESC_QWEN35_MTP, read_moe};
