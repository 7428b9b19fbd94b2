/* convert_gguf.c - a GGUF into the GGUF that convert itself would have written: read through the description,
 * so that nothing that is not understood passes, then rewritten in the dialect asked for, with what a reader
 * had to infer said by our own keys, in the types asked for (else its own).
 *
 * A drafter changes its dialect on the way where --dialect says so (relabel.h): keys and names change, tensor
 * bytes do not. Keys and tensors keep their order. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "convert_impl.h"
#include "../describe/desc.h"
#include "../describe/dialect.h"
#include "../file/gguf.h"
#include "../base/io.h"
#include "../base/mem.h"
#include "relabel.h"
#include "../token/tokenizer.h"

struct regguf {
    const struct convert *o;
    struct gguf *in, *target;
    struct desc *d, *target_desc;
    struct desc_override over;
    const struct dialect *dialect; /* drafters: to write */
    struct gguf_writer *w;
    struct gguf_files out;
    uint32_t *to; /* [n_tensors] */
    uint64_t done;
};

static void say(const struct regguf *c, enum convert_level level, const char *text)
{
    if (c->o->say) c->o->say(c->o->ctx, level, text);
}

/* What only makes sense for a checkpoint has no place here, nor have a drafter's parts with a target. */
static int check_flags(const struct convert *o, struct err *e)
{
    const char *flag = o->random        ? "--random"
                       : o->rms_eps > 0 ? "--rms-eps"
                       : o->n_head > 0  ? "--heads"
                       : o->n_ctx > 0   ? "--context-length"
                                        : NULL;
    if (flag) return err_set(e, ERR_USAGE, "%s: %s is for checkpoints, this is a GGUF", o->input, flag);
    return 0;
}

/* The flags that say how a drafter is read, or replace parts of it. */
static const char *overrides(const struct convert *o, struct desc_override *v)
{
    *v = (struct desc_override){.draft_causal = o->causal,
                                .dialect = o->from_dialect,
                                .n_taps = o->n_taps,
                                .has_tap_shift = o->has_tap_shift,
                                .tap_shift = o->tap_shift,
                                .has_mask_id = o->mask_id >= 0,
                                .mask_id = o->mask_id,
                                .block_size = o->block_size,
                                .rope_theta = (float)o->rope_theta,
                                .sliding_window = o->sliding_window,
                                .sliding_pattern = o->sliding_pattern,
                                .flag = "--"};
    memcpy(v->taps, o->taps, sizeof o->taps);
    return o->from_dialect      ? "--from-dialect"
           : o->n_taps > 0      ? "--taps"
           : o->has_tap_shift   ? "--tap-shift"
           : o->mask_id >= 0    ? "--mask-id"
           : o->block_size > 0  ? "--block-size"
           : o->rope_theta > 0  ? "--rope-theta"
           : o->sliding_window  ? "--sliding-window"
           : o->sliding_pattern ? "--sliding-pattern"
           : o->causal >= 0     ? "--causal"
           : o->dialect         ? "--dialect"
                                : NULL;
}

static int open_input(struct regguf *c, struct err *e)
{
    const struct convert *o = c->o;
    const char *given = overrides(o, &c->over);
    const struct dialect *x;
    if (o->dialect && conv_dialect(o, NULL, &x, e)) return -1;
    if (gguf_open(&c->in, o->input, e) || desc_read(&c->d, c->in, &c->over, e)) return -1;
    if (c->d->arch == DESC_DFLASH) return conv_dialect(o, c->d->dialect, &c->dialect, e);
    if (given && (strcmp(given, "--dialect") || strcmp(o->dialect, "upstream")))
        return err_set(e, ERR_USAGE, "%s: %s is for drafters, this is a %s", o->input, given,
                       c->d->arch_name);
    return 0;
}

static int open_target(struct regguf *c, struct err *e)
{
    if (!c->o->target) return 0;
    if (c->d->arch != DESC_DFLASH) {
        err_set(e, ERR_USAGE, "%s: --target is for drafters that read taps, this is a %s", c->o->input,
                c->d->arch_name);
        return err_hint(e, CONV_NO_TARGET);
    }
    if (gguf_open(&c->target, c->o->target, e) || desc_read(&c->target_desc, c->target, NULL, e)) return -1;
    if (c->target_desc->arch == DESC_DFLASH)
        return err_set(e, ERR_FORMAT, "%s: is a drafter (expected a target, got architecture %s)",
                       c->o->target, c->target_desc->arch_name);
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
    int64_t first, count = c->o->type_given ? quant_fell_back(c->o->type, q, n, &first) : 0;
    if (count) {
        char text[512];
        snprintf(text, sizeof text,
                 "%lld tensors have rows that the blocks of %s do not divide and got another type (the "
                 "first: %s, rows of %lld, %s)",
                 (long long)count, quant_recipe_name(c->o->type), q[first].name, (long long)q[first].ne[0],
                 kn_type_info(c->to[first])->name);
        say(c, CONVERT_NOTE, text);
    }
    count = c->o->type_given ? quant_coarse(q, c->to, n, &first) : 0;
    if (count) {
        char text[512];
        snprintf(text, sizeof text,
                 "%lld tensors are so coarse that they want an importance matrix, which dflash-quantize "
                 "takes (the "
                 "first: %s, %s)",
                 (long long)count, q[first].name, kn_type_info(c->to[first])->name);
        say(c, CONVERT_WARN, text);
    }
    char types[128], text[256];
    const int64_t again = quant_again(q, c->to, n, types, sizeof types);
    if (again) {
        snprintf(text, sizeof text, "%lld tensors are quantised already (%s): their error comes on top",
                 (long long)again, types);
        say(c, CONVERT_WARN, text);
    }
    rc = 0;
done:
    mem_free(q);
    return rc;
}

static int put_key(void *ctx, const struct gguf_kv *kv, struct err *e)
{
    struct regguf *c = ctx;
    if (c->o->type_given && !strcmp(kv->key, "general.file_type"))
        return gguf_put_u32(c->w, kv->key, quant_recipe_file_type(c->o->type), e);
    if (c->o->name && !strcmp(kv->key, "general.name"))
        return gguf_put_str(c->w, kv->key, c->o->name, strlen(c->o->name), e);
    return gguf_put_kv(c->w, kv, e);
}

static int put_target_keys(struct regguf *c, struct err *e)
{
    for (uint64_t i = 0; i < c->in->n_kv; i++)
        if (put_key(c, &c->in->kv[i], e)) return -1;
    return 0;
}

/* Which target it is for, where the file does not say. */
static int put_norm_crc(struct regguf *c, struct err *e)
{
    char key[160];
    if (!c->target_desc || !c->target_desc->has_norm_crc) return 0;
    if (desc_other_target(c->target_desc, c->d))
        say(c, CONVERT_WARN, "the drafter was made for another target than --target: proposals may be poor");
    if (c->d->has_norm_crc) return 0;
    return gguf_put_u32(c->w, dialect_key(c->dialect, DESC_NORM_KEY, key, sizeof key),
                        c->target_desc->norm_crc, e);
}

static int put_drafter_keys(struct regguf *c, struct err *e)
{
    const struct desc *d = c->d;
    char key[160];
    bool found = d->has_tokenizer;
    if (!gguf_find(c->in, dialect_key(d->spelling, "attention.causal_pattern", key, sizeof key)))
        say(c, CONVERT_NOTE,
            d->causal_inferred && !strcmp(d->kind, "DFlash2")
                ? "the file does not say which layers are causal in the block: written as inferred, none of "
                  "a DFlash2"
            : d->causal_ignored ? "attention.causal does not count in the file's dialect: which layers are "
                                  "causal in the block is "
                                  "written as inferred, the sliding ones"
            : d->causal_inferred
                ? "the file does not say which layers are causal in the block: written as inferred, the "
                  "sliding ones"
                : "which layers are causal in the block: written a layer, as attention.causal says");
    if (*d->inferred) say(c, CONVERT_NOTE, d->inferred);
    if (relabel_keys(c->w, c->in, d, c->dialect, &c->over, put_key, c, e) || put_norm_crc(c, e)) return -1;
    if (c->target && !found) {
        if (tok_copy(c->w, c->target, &found, e)) return -1;
        if (!found) say(c, CONVERT_NOTE, "the target has no tokenizer: the drafter file has no tokenizer");
        if ((!c->dialect->mask_key || c->dialect->mask_too) && /* in place of a mask id of the target's own */
            gguf_put_u32(c->w, "tokenizer.ggml.mask_token_id", (uint32_t)d->mask_id, e))
            return -1;
    }
    const struct relabel_facts f = {.label = c->o->input,
                                    .kind = d->kind,
                                    .pieces = d->pieces,
                                    .from = d->spelling,
                                    .n_layer = d->n_layer,
                                    .layer = d->layer,
                                    .own_embed = gguf_tensor(c->in, "token_embd.weight") != NULL,
                                    .own_head = gguf_tensor(c->in, "output.weight") != NULL,
                                    .tied = d->tied_head,
                                    .has_scale = d->has_embedding_scale,
                                    .has_softcap = d->has_softcap,
                                    .has_multiplier = d->logit_scale != 1,
                                    .tokenizer = found,
                                    .rms_eps = (double)d->rms_eps};
    return relabel_check(c->dialect, &f, c->o, e);
}

static int put_keys(struct regguf *c, struct err *e)
{
    if (c->dialect ? put_drafter_keys(c, e) : put_target_keys(c, e)) return -1;
    if (c->o->name && !gguf_find(c->in, "general.name") &&
        gguf_put_str(c->w, "general.name", c->o->name, strlen(c->o->name), e))
        return -1;
    if (c->o->type_given && !gguf_find(c->in, "general.file_type") &&
        gguf_put_u32(c->w, "general.file_type", quant_recipe_file_type(c->o->type), e))
        return -1;
    return 0;
}

/* Name of a tensor in the output. */
static const char *out_name(const struct regguf *c, const char *name, char *buf, size_t n)
{
    char upstream[256];
    if (!c->dialect) return name;
    return dialect_from_upstream(c->dialect, dialect_to_upstream(c->in, name, upstream, sizeof upstream), buf,
                                 n);
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
        if (!rc) rc = gguf_files_data(&c->out, same ? src : slab, (uint64_t)n * out, e);
        if (!rc && c->o->progress) c->o->progress(c->o->ctx, c->done + (uint64_t)(r + n) * in, c->in->bytes);
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
        char name[256];
        if (gguf_add_tensor(c->w, out_name(c, t->name, name, sizeof name), c->to[i], t->n_dims, t->ne, e))
            return -1;
    }
    if (gguf_files_open(&c->out, c->w, c->o->output, c->o->force, inputs, 2, c->o->split, e)) return -1;
    for (uint64_t i = 0; i < c->in->n_tensors; i++)
        if (write_tensor(c, i, e)) return -1;
    if (gguf_files_end(&c->out, e) || gguf_files_commit(&c->out, e)) return -1;
    if (c->o->progress) c->o->progress(c->o->ctx, c->in->bytes, c->in->bytes);
    return 0;
}

int convert_from_gguf(const struct convert *o, struct err *e)
{
    struct regguf c = {.o = o};
    int rc = -1;
    if (check_flags(o, e) || open_input(&c, e)) goto done;
    if (open_target(&c, e) || plan(&c, e)) goto done;
    rc = write_all(&c, e);
done:
    gguf_files_abort(&c.out);
    gguf_writer_free(c.w);
    mem_free(c.to);
    desc_free(c.target_desc);
    desc_free(c.d);
    gguf_close(c.target);
    gguf_close(c.in);
    return rc;
}
