/* work.c - the activations of a pass: one buffer an intermediate result, as wide as the widest layer of the
 * two models needs it. */
#include <string.h>
#include "../base/mem.h"
#include "model.h"

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Values a row, of each buffer; 0: not needed. */
struct widths {
    int64_t x, y, q, g, k, fused, context, attn, ff, rope[DESC_MAX_ROPES], draft_rope, router, used,
        expert_ff, shared, qkv, z, n_v, conv, dynamic, selector, candidates, edges;
    int64_t n_head, head_dim, features;
};

static void widen(struct widths *w, const struct desc *d)
{
    w->x = most(w->x, d->n_embd);
    const bool assists = d->arch == DESC_GEMMA4_ASSISTANT;
    if (d->arch == DESC_GEMMA4 || d->other_block || assists) w->y = most(w->y, d->n_embd);
    for (int i = 0; i < d->n_layer; i++) {
        const struct desc_layer *y = &d->layer[i];
        int64_t q = (int64_t)y->n_head * y->head_dim;
        w->q = most(w->q, q);
        w->k = most(w->k, (int64_t)y->n_head_kv * y->head_dim);
        w->attn = most(w->attn, q);
        w->ff = most(w->ff, y->n_ff);
        w->n_head = most(w->n_head, y->n_head);
        w->head_dim = most(w->head_dim, y->head_dim);
        if (d->gated_attention) w->g = most(w->g, q);
        if (!y->recurrent) continue;
        w->attn = most(w->attn, (int64_t)d->n_v * d->d_v);
        w->qkv = most(w->qkv, desc_delta_width(d));
        w->z = most(w->z, (int64_t)d->n_v * d->d_v);
        w->n_v = most(w->n_v, d->n_v);
    }
    const bool drafts = desc_drafts(d) && !assists; /* which takes turns in the target's angles */
    for (int i = 0; i < d->n_rope && !drafts; i++) w->rope[i] = most(w->rope[i], d->rope[i].n_rot);
    if (drafts) w->draft_rope = most(w->draft_rope, d->rope[0].n_rot);
    w->router = most(w->router, d->n_expert);
    int64_t used =
        d->n_expert_used + (d->n_ff_shexp ? 1 : 0); /* the shared one among them, where it may be */
    w->used = most(w->used, used);
    w->expert_ff = most(w->expert_ff, used * d->n_ff_exp);
    w->ff = most(w->ff, d->n_ff_shexp);
    if (d->n_ff_shexp) w->shared = 1;
    w->features = most(w->features, d->n_features);
    if (d->arch == DESC_DFLASH) w->context = dflash_context_width(d), w->fused = most(w->fused, d->n_embd);
    if (d->arch == DESC_QWEN35_MTP) w->fused = most(w->fused, 2 * (int64_t)d->n_embd);
    if (assists) w->fused = most(w->fused, 2 * (int64_t)d->n_embd_target);
    if (d->value_scale > 0) w->dynamic = 1; /* zeros, which nobody writes */
    if (!d->conv_kernel) return;
    w->conv = d->n_embd;
    w->dynamic = 2 * (int64_t)d->conv_kernel * (d->n_embd / d->conv_group);
    w->selector = d->selector_rank;
    w->candidates = d->selector_k;
    w->edges = (int64_t)d->selector_k * d->selector_k;
}

int64_t work_mixed(const struct desc *d)
{
    const int64_t rank = 4 * (int64_t)d->markov_rank, state = 6 * (int64_t)d->n_state + d->n_correct;
    return most(most(rank, state), KN_CYCLE_ROWS);
}

/* Which row of a reduced vocabulary is an id's. */
static int new_from(struct work *w, const struct model *target, const struct model *drafter, struct err *e)
{
    const struct kn_ops *op = kn_op(target->be);
    const int32_t n = target->d->n_vocab;
    if (op->counts) return 0;
    int32_t *from = mem_alloc((size_t)n * sizeof *from);
    if (!from) return err_set(e, ERR_IO, "out of memory (a reduced vocabulary)");
    for (int32_t v = 0; v < n; v++) from[v] = -1;
    for (int32_t i = 0; i < drafter->d->n_vocab_draft; i++) from[desc_d2t(drafter->file, i)] = i;
    const int rc = op->upload(target->be, w->from, from, (size_t)n * sizeof *from);
    mem_free(from);
    return rc ? model_failed(drafter, "upload", rc, e) : 0;
}

/* What a drafter's head needs beside the layers' activations. */
static int new_head(struct work *w, const struct model *target, const struct model *drafter, uint64_t *bytes,
                    int64_t *widest, struct err *e)
{
    const struct desc *d = drafter->d;
    const struct kn_ops *op = kn_op(target->be);
    const int64_t block = d->block_size + 1, beside = d->n_embd + (int64_t)d->markov_rank + d->n_state,
                  joint = d->n_state                ? d->n_embd
                          : d->markov == MARKOV_RNN ? 2 * (int64_t)d->markov_rank + d->n_embd
                                                    : 0;
    struct {
        void *at;
        int64_t count, width; /* width: of what is an input of products */
    } all[] = {
        {&w->from, d->n_vocab_draft ? target->d->n_vocab : 0, 0},
        {&w->part, block * d->n_vocab_draft, 0},
        {&w->beside, block * beside, beside},
        {&w->joint, block * joint, joint},
        {&w->mixed, work_mixed(d), work_mixed(d)},
    };
    if (!d->markov_rank && !d->n_state && !d->confidence && !d->n_vocab_draft) return 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const size_t size = (size_t)all[i].count * 4;
        void *p = size ? op->alloc(target->be, size) : NULL;
        if (size && !p) return model_no_memory(target->be, e, "activations of a drafter's head");
        memcpy(all[i].at, &p, sizeof p);
        *bytes += size;
        *widest = most(*widest, all[i].width);
    }
    return d->n_vocab_draft ? new_from(w, target, drafter, e) : 0;
}

int work_new(struct work *w, const struct model *target, const struct model *const *drafters,
             int32_t n_drafters, int32_t rows, uint64_t *bytes, struct err *e)
{
    struct kn_backend *be = target->be;
    const struct kn_ops *op = kn_op(be);
    struct widths n = {0};
    widen(&n, target->d);
    for (int32_t i = 0; i < n_drafters; i++) widen(&n, drafters[i]->d);
    struct {
        void *at; /* a pointer to 32-bit values */
        int64_t width;
    } all[] = {
        /* of blocks alone */
        {&w->conv, n.conv},
        {&w->dynamic, n.dynamic},
        {&w->selector, n.selector},
        {&w->candidates, n.candidates},
        {&w->candidate_logits, n.candidates},
        {&w->edges, n.edges},
        /* of every pass */
        {&w->x, n.x},
        {&w->y, n.y},
        {&w->y2, n.y},
        {&w->q, n.q},
        {&w->g, n.g},
        {&w->k, n.k},
        {&w->v, n.k},
        {&w->fused, n.fused},
        {&w->context, n.context},
        {&w->attn, n.attn},
        {&w->ff, n.ff},
        {&w->router, n.router},
        {&w->expert, n.used},
        {&w->expert_w, n.used},
        {&w->shared, n.shared},
        {&w->qkv, n.qkv},
        {&w->z, n.z},
        {&w->alpha, n.n_v},
        {&w->beta, n.n_v},
        {&w->expert_ff, n.expert_ff},
        {&w->rope[0], n.rope[0]},
        {&w->rope[1], n.rope[1]},
        {&w->draft_rope, n.draft_rope},
    };
    enum { OF_BLOCKS = 6 };
    int64_t widest = n.features;
    w->rows = rows;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const int32_t n_rows = i < OF_BLOCKS && rows > KN_CYCLE_ROWS ? KN_CYCLE_ROWS : rows;
        size_t size = (size_t)n_rows * (size_t)all[i].width * 4;
        void *p = size ? op->alloc(be, size) : NULL;
        if (size && !p) return model_no_memory(be, e, "activations of %d rows: lower --chunk", rows);
        memcpy(all[i].at, &p, sizeof p);
        *bytes += size;
        if (i >= OF_BLOCKS && all[i].at != (void *)&w->context)
            widest = most(widest, all[i].width); /* never an input */
    }
    for (int32_t i = 0; i < n_drafters; i++) /* one of them has a head at most: a pass leaves taps for one */
        if (new_head(w, target, drafters[i], bytes, &widest, e)) return -1;
    int rc = op->reserve(be, rows, widest, target->d->n_vocab, (int32_t)n.n_head, (int32_t)n.head_dim);
    return rc ? model_failed(target, "reserve", rc, e) : 0;
}

void work_free(struct work *w, struct kn_backend *be)
{
    void *all[] = {
        w->x,     w->y,          w->y2,     w->q,       w->g,        w->k,          w->v,
        w->attn,  w->ff,         w->router, w->expert,  w->expert_w, w->expert_ff,  w->shared,
        w->qkv,   w->z,          w->alpha,  w->beta,    w->rope[0],  w->rope[1],    w->context,
        w->fused, w->draft_rope, w->conv,   w->dynamic, w->selector, w->candidates, w->candidate_logits,
        w->edges, w->from,       w->part,   w->beside,  w->joint,    w->mixed};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) kn_op(be)->free(be, all[i]);
    *w = (struct work){0};
}
