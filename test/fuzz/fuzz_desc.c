/* fuzz_desc.c - any bytes that are a GGUF through the description: what it accepts is whole and in range.
 * Drafters also with flags over the file, told as text, and their keys written in every dialect. */
#include "../../common/describe/desc.h"
#include "../../common/file/gguf.h"
#include "../../common/make/relabel.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct desc *d)
{
    if (d->n_layer < 1 || d->n_layer > DESC_MAX_LAYERS || d->n_embd < 1 || d->n_rope < 1 ||
        d->n_rope > DESC_MAX_ROPES)
        __builtin_trap();
    if (!(d->rms_eps > 0) || !(d->rope[0].theta > 0)) __builtin_trap();
    for (int i = 0; i < d->n_layer; i++) {
        const struct desc_layer *y = &d->layer[i];
        if (y->n_ff < 0 || (!y->n_ff && !y->moe) || y->rope < 0 || y->rope >= d->n_rope) __builtin_trap();
        if (y->moe &&
            (d->n_expert < 1 || d->n_expert_used < 1 || d->n_expert_used > d->n_expert || d->n_ff_exp < 1))
            __builtin_trap();
        if (y->recurrent &&
            (d->n_k < 1 || d->n_v < 1 || d->n_v % d->n_k || d->d_k < 1 || d->d_v < 1 || d->n_conv < 1))
            __builtin_trap();
        if (y->recurrent) continue;
        if (y->head_dim < 2 || y->n_head_kv < 1 || y->n_head < 1 || y->n_head % y->n_head_kv)
            __builtin_trap();
    }
    if (d->n_stops < 0 || d->n_stops_said > DESC_MAX_STOPS || d->n_stops < d->n_stops_said ||
        d->n_stops > DESC_MAX_STOPS + ENDS_MAX)
        __builtin_trap();
    for (int i = 0; i < d->n_stops; i++)
        if (d->stops[i] < 0 || (d->n_vocab && d->stops[i] >= d->n_vocab)) __builtin_trap();
    for (int i = 0; i < d->n_layer; i++)
        if (d->layer[i].window < 0) __builtin_trap();
    if (d->arch == DESC_QWEN35_MTP) {
        if (d->n_layer != 1 || d->first_block < 1 || d->block_size < 2 || d->block_size > d->block_most ||
            !d->head_norm || d->n_vocab < 0)
            __builtin_trap();
        return;
    }
    if (d->arch != DESC_DFLASH) {
        if (d->n_vocab < 1) __builtin_trap();
        return;
    }
    if (d->block_size < 2 || d->block_size > 64 || d->mask_id < 0 || d->n_taps < 1 ||
        d->n_taps > DESC_MAX_TAPS)
        __builtin_trap();
    if (d->n_features % d->n_taps) __builtin_trap();
    for (int i = 0; i < d->n_taps; i++)
        if (d->taps[i] < 0) __builtin_trap();
}

static void hear(void *ctx, const char *subject, const char *text)
{
    (void)ctx;
    if (!*subject || !*text) __builtin_trap();
}

static int put(void *ctx, const struct gguf_kv *kv, struct err *e)
{
    return gguf_put_kv(ctx, kv, e);
}

static void relabel(const struct desc *d, const struct gguf *g)
{
    for (const struct dialect *x = dialects; x->name; x++) {
        struct gguf_writer *w;
        struct err e = {0};
        if (x->refused) continue;
        if (gguf_writer_new(&w, &e)) return;
        if (relabel_keys(w, g, d, x, NULL, put, w, &e) && !e.msg[0]) __builtin_trap();
        gguf_writer_free(w);
    }
}

/* The file's MTP block, where it has one. */
static void mtp(const struct gguf *g)
{
    const struct desc_override o = {.drafter = true, .draft_causal = -1, .block_size = 5};
    struct err e = {0};
    struct desc *d = NULL;
    if (!desc_holds_mtp(g)) return;
    if (!desc_read(&d, g, &o, &e)) {
        check(d);
        if (!desc_drafts(d) || d->block_size != 5) __builtin_trap();
    } else if (d || e.code != ERR_FORMAT || !e.msg[0])
        __builtin_trap();
    desc_free(d);
}

static void drafter(const struct gguf *g)
{
    const struct desc_override o = {.draft_causal = 1,
                                    .n_taps = 2,
                                    .taps = {0, 1},
                                    .has_mask_id = true,
                                    .mask_id = 3,
                                    .block_size = 4,
                                    .rope_theta = 100,
                                    .sliding_window = 5,
                                    .sliding_pattern = "sf"};
    struct err e = {0};
    struct desc *d = NULL;
    if (!desc_read(&d, g, &o, &e)) {
        check(d);
        if (d->arch == DESC_DFLASH && (d->n_taps != 2 || d->block_size != 4)) __builtin_trap();
    } else if (d || !e.msg[0])
        __builtin_trap();
    desc_free(d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct gguf *g;
    struct desc *d = NULL;
    struct err e = {0};
    if (gguf_open_memory(&g, data, size, "fuzz", &e)) return 0;
    if (!desc_read(&d, g, NULL, &e)) {
        check(d);
        desc_pair(d, d, &e);
        if (d->arch == DESC_DFLASH) {
            desc_tell(d, NULL, hear, NULL);
            relabel(d, g);
        }
    } else if (d || e.code != ERR_FORMAT || !e.msg[0])
        __builtin_trap();
    desc_free(d);
    drafter(g);
    mtp(g);
    gguf_close(g);
    return 0;
}
