/* convert_gguf.c - a GGUF into the GGUF that convert itself would have written: read through the description,
 * so that nothing that is not understood passes, then rewritten in the dialect asked for, with what a reader
 * had to infer said by our own keys, in the types asked for (else its own).
 *
 * There is one dialect to write, so the names stay; keys and tensors keep their order. */
#include <math.h>
#include <string.h>
#include "convert_impl.h"
#include "desc.h"
#include "gguf.h"
#include "io.h"
#include "mem.h"
#include "tokenizer.h"

struct regguf {
    const struct convert *o;
    struct gguf *in, *target;
    struct desc *d, *target_desc;
    struct gguf_writer *w;
    struct io_out out;
    uint32_t *to; /* [n_tensors] */
    uint64_t done;
};

static void say(const struct regguf *c, enum convert_level level, const char *text)
{
    if (c->o->say) c->o->say(c->o->ctx, level, text);
}

/* What describes a checkpoint without config.json has no place here: a GGUF says it all, or is refused. */
static int check_flags(const struct convert *o, struct err *e)
{
    const char *flag = o->random           ? "--random"
                       : o->rope_theta > 0 ? "--rope-theta"
                       : o->rms_eps > 0    ? "--rms-eps"
                       : o->n_taps > 0     ? "--taps"
                       : o->mask_id >= 0   ? "--mask-id"
                       : o->block_size > 0 ? "--block-size"
                       : o->n_head > 0     ? "--heads"
                       : o->n_ctx > 0      ? "--context-length"
                                           : NULL;
    if (flag) return err_set(e, ERR_USAGE, "%s: %s is for checkpoints, this is a GGUF", o->input, flag);
    if (o->dialect && strcmp(o->dialect, "upstream"))
        return err_set(e, ERR_USAGE, "--dialect %s is not known (expected %s)", o->dialect,
                       convert_dialect_names());
    return 0;
}

static int open_target(struct regguf *c, struct err *e)
{
    if (!c->o->target) return 0;
    if (c->d->arch != DESC_DFLASH)
        return err_set(e, ERR_USAGE, "%s: --target is for drafters, this is a %s", c->o->input,
                       c->d->arch_name);
    if (gguf_open(&c->target, c->o->target, e) || desc_read(&c->target_desc, c->target, NULL, e)) return -1;
    return desc_pair(c->target_desc, c->d, e);
}

static int plan(struct regguf *c, struct err *e)
{
    const int64_t n = (int64_t)c->in->n_tensors;
    const struct quant_model m = {.arch = c->d->arch_name,
                                  .n_layer = c->d->n_layer,
                                  .n_expert = c->d->n_expert,
                                  .n_head = desc_attention(c->d)->n_head,
                                  .n_head_kv = desc_attention(c->d)->n_head_kv};
    struct quant_tensor *q = mem_calloc((size_t)n + 1, sizeof *q);
    int rc = -1;
    c->to = mem_calloc((size_t)n + 1, sizeof *c->to);
    if (!q || !c->to) {
        err_set(e, ERR_IO, "out of memory (%lld tensors)", (long long)n);
        goto done;
    }
    for (int64_t i = 0; i < n; i++) {
        const struct gguf_tensor *t = &c->in->tensor[i];
        q[i] = (struct quant_tensor){.name = t->name, .n_dims = t->n_dims, .from = t->type};
        memcpy(q[i].ne, t->ne, sizeof q[i].ne);
        c->to[i] = t->type;
    }
    if (c->o->type_given && quant_plan(c->o->type, &m, q, n, KN_F32, NULL, 0, c->to, e)) {
        err_prefix(e, "%s", c->o->input);
        goto done;
    }
    rc = 0;
done:
    mem_free(q);
    return rc;
}

static int put_key(struct regguf *c, const struct gguf_kv *kv, struct err *e)
{
    if (c->o->type_given && !strcmp(kv->key, "general.file_type"))
        return gguf_put_u32(c->w, kv->key, quant_recipe_file_type(c->o->type), e);
    if (c->o->name && !strcmp(kv->key, "general.name"))
        return gguf_put_str(c->w, kv->key, c->o->name, strlen(c->o->name), e);
    return gguf_put_kv(c->w, kv, e);
}

static int put_keys(struct regguf *c, struct err *e)
{
    const struct desc *d = c->d;
    bool found = true;
    for (uint64_t i = 0; i < c->in->n_kv; i++)
        if (put_key(c, &c->in->kv[i], e)) return -1;
    if (c->o->name && !gguf_find(c->in, "general.name") &&
        gguf_put_str(c->w, "general.name", c->o->name, strlen(c->o->name), e))
        return -1;
    if (c->o->type_given && !gguf_find(c->in, "general.file_type") &&
        gguf_put_u32(c->w, "general.file_type", quant_recipe_file_type(c->o->type), e))
        return -1;
    if (d->arch == DESC_DFLASH && !gguf_find(c->in, "dflash.attention.causal_pattern")) {
        uint8_t pattern[DESC_MAX_LAYERS];
        for (int i = 0; i < d->n_layer; i++) pattern[i] = d->layer[i].causal;
        if (gguf_put_array(c->w, "dflash.attention.causal_pattern", GGUF_BOOL, pattern, (uint64_t)d->n_layer,
                           e))
            return -1;
        say(c, CONVERT_NOTE,
            d->causal_inferred
                ? "the file does not say which layers are causal in the block: written as inferred, the "
                  "sliding ones"
                : "which layers are causal in the block: written a layer, as dflash.attention.causal says");
    }
    if (c->target && !d->has_tokenizer && tok_copy(c->w, c->target, &found, e)) return -1;
    if (!found) say(c, CONVERT_NOTE, "the target has no tokenizer: the drafter file has no tokenizer");
    return 0;
}

/* What is copied is looked at as well, as in every conversion: a NaN must not travel on in silence. x:
 * [t->ne[0]]. */
static int check_rows(const struct regguf *c, const struct gguf_tensor *t, int64_t row0, int64_t n, float *x,
                      struct err *e)
{
    for (int64_t r = row0; r < row0 + n; r++) {
        if (kn_decode_row(t->type, t->data + (size_t)r * kn_row_bytes(t->type, t->ne[0]), x, t->ne[0]))
            return 0; /* a type without codec */
        for (int64_t k = 0; k < t->ne[0]; k++)
            if (!isfinite(x[k]))
                return err_set(e, ERR_FORMAT, "%s: %s holds a NaN or an infinity (row %lld, element %lld)",
                               c->o->input, t->name, (long long)r, (long long)k);
    }
    return 0;
}

static int write_tensor(struct regguf *c, uint64_t i, struct err *e)
{
    const struct gguf_tensor *t = &c->in->tensor[i];
    const int64_t rows = t->ne[1] * t->ne[2] * t->ne[3], step = quant_slab_rows(t->type, c->to[i], t->ne[0]);
    const size_t in = kn_row_bytes(t->type, t->ne[0]), out = kn_row_bytes(c->to[i], t->ne[0]);
    const bool same = c->to[i] == t->type;
    /* encoded rows, or one decoded row to look at */
    uint8_t *slab =
        mem_alloc(same ? (size_t)t->ne[0] * sizeof(float) : out * (size_t)(step < rows ? step : rows) + 1);
    int rc = slab ? 0 : err_set(e, ERR_IO, "out of memory (rows of %s)", t->name);
    for (int64_t r = 0; r < rows && !rc; r += step) {
        const int64_t n = rows - r < step ? rows - r : step;
        const uint8_t *src = t->data + (size_t)r * in;
        if (same) {
            rc = check_rows(c, t, r, n, (float *)(void *)slab, e);
        } else if (quant_rows(t->name, t->type, src, c->to[i], slab, t->ne[0], n, r, c->o->threads, NULL,
                              e)) {
            err_prefix(e, "%s", c->o->input);
            rc = -1;
        }
        if (!rc) rc = gguf_write_data(c->w, &c->out, same ? src : slab, (uint64_t)n * out, e);
        if (!rc && c->o->progress)
            c->o->progress(c->o->ctx, c->done + (uint64_t)(r + n) * in, c->in->map.size);
    }
    c->done += t->bytes;
    mem_free(slab);
    return rc;
}

static int write_all(struct regguf *c, struct err *e)
{
    const char *inputs[] = {c->o->input, c->o->target ? c->o->target : c->o->input};
    if (gguf_writer_new(&c->w, e) || put_keys(c, e)) return -1;
    for (uint64_t i = 0; i < c->in->n_tensors; i++) {
        const struct gguf_tensor *t = &c->in->tensor[i];
        if (gguf_add_tensor(c->w, t->name, c->to[i], t->n_dims, t->ne, e)) return -1;
    }
    if (io_out_open(&c->out, c->o->output, c->o->force, inputs, 2, e) || gguf_write_header(c->w, &c->out, e))
        return -1;
    for (uint64_t i = 0; i < c->in->n_tensors; i++)
        if (write_tensor(c, i, e)) return -1;
    if (gguf_write_end(c->w, &c->out, e) || io_out_commit(&c->out, e)) return -1;
    if (c->o->progress) c->o->progress(c->o->ctx, c->in->map.size, c->in->map.size);
    return 0;
}

int convert_from_gguf(const struct convert *o, struct err *e)
{
    struct regguf c = {.o = o, .out = {.fd = -1}};
    int rc = -1;
    if (check_flags(o, e) || gguf_open(&c.in, o->input, e) || desc_read(&c.d, c.in, NULL, e)) goto done;
    if (open_target(&c, e) || plan(&c, e)) goto done;
    rc = write_all(&c, e);
done:
    io_out_abort(&c.out);
    gguf_writer_free(c.w);
    mem_free(c.to);
    desc_free(c.target_desc);
    desc_free(c.d);
    gguf_close(c.target);
    gguf_close(c.in);
    return rc;
}
