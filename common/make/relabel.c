/* relabel.c - see relabel.h. */
#include "relabel.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- what a dialect cannot say ---- */

static void note(const struct convert *o, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void note(const struct convert *o, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    if (!o->say) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    o->say(o->ctx, CONVERT_NOTE, text);
}

static int refuse(const struct dialect *to, const struct relabel_facts *f, struct err *e, const char *fmt,
                  ...) __attribute__((format(printf, 4, 5)));
static int refuse(const struct dialect *to, const struct relabel_facts *f, struct err *e, const char *fmt,
                  ...)
{
    char text[800];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return err_set(e, ERR_FORMAT, "%s: dialect %s has no place for %s", f->label, to->name, text);
}

static int check_parts(const struct dialect *to, const struct relabel_facts *f, struct err *e)
{
    const bool named =
        to->extended && (!f->from || !strcmp(f->kind, "DFlash2")); /* whatever they are called there */
    if (f->pieces[0] && f->from != to && !named)
        return refuse(to, f, e, "the parts of a %s drafter (%s)", f->kind, f->pieces);
    for (int i = 0; i < f->n_layer; i++)
        if (f->layer[i].window && !to->windows)
            return refuse(to, f, e, "sliding layers (layer %d has a window of %d)", i, f->layer[i].window);
    if ((f->own_embed || f->own_head) && !to->own_ends)
        return refuse(to, f, e, "an embedding or a head of the drafter's own (%s)",
                      f->own_embed ? "token_embd.weight" : "output.weight");
    if (f->own_embed && !f->own_head && f->tied != to->ties)
        return refuse(to, f, e,
                      "an embedding without a head: its readers take the head from %s, here it is %s",
                      to->ties ? "the embedding" : "the target", f->tied ? "the embedding" : "the target's");
    return 0;
}

/* Its readers know one bool for all layers, or a rule of their own. */
void relabel_causal(const struct dialect *to, const struct relabel_facts *f, const struct convert *o)
{
    int causal = 0, like_window = 0;
    for (int i = 0; i < f->n_layer; i++) {
        causal += f->layer[i].causal;
        like_window += f->layer[i].causal == (f->layer[i].window > 0);
    }
    if (to->slides_causal ? like_window == f->n_layer
                          : causal == 0 || (causal == f->n_layer && to->causal == CAUSAL_OPTIONAL))
        return;
    note(o,
         "%d of %d layers are causal in the block: only our key %s.attention.causal_pattern says so, readers "
         "of the %s dialect take %s%s",
         causal, f->n_layer, to->arch, to->name,
         to->slides_causal ? "the sliding ones as causal" : "all layers as bidirectional",
         to->slides_causal ? "" : ", and fewer of its proposals are accepted there");
}

int relabel_check(const struct dialect *to, const struct relabel_facts *f, const struct convert *o,
                  struct err *e)
{
    if (check_parts(to, f, e)) return -1;
    if (f->from != to || o->dialect) relabel_causal(to, f, o);
    if (f->from == to) return 0; /* as it was */
    if (to->width == WIDTH_TARGET)
        note(o,
             "the taps under %s.%s count from block 0: llama.cpp as merged reads the same key as counting "
             "from the embeddings",
             to->arch, to->taps_key);
    if (f->has_scale && !to->extended)
        note(o,
             "embedding scale: only our key %s.embedding_scale says it, other readers of the %s dialect do "
             "not look",
             to->arch, to->name);
    if (f->has_softcap && !to->softcap)
        note(o,
             "softcap: only our key %s.final_logit_softcapping says it, other readers of the %s dialect do "
             "not look",
             to->arch, to->name);
    if (f->has_multiplier && !to->extended)
        note(
            o,
            "scale of the draft logits: only the key %s.logit_scale says it, other readers of the %s dialect "
            "do not look",
            to->arch, to->name);
    if (to->tokenizer && !f->tokenizer)
        note(o,
             "readers of the %s dialect need the target's tokenizer in the file, and there is none: give "
             "--target",
             to->name);
    if (!strcmp(to->whose, "lucebox") && f->rms_eps != (double)1e-6f && f->rms_eps != 1e-6)
        note(o, "epsilon of the norms is %g: lucebox takes 1e-06 whatever the file says", f->rms_eps);
    return 0;
}

/* ---- keys ---- */

struct relabel {
    struct gguf_writer *w;
    const struct gguf *in;
    const struct desc *d;
    const struct dialect *from, *to;
    const struct desc_override *over;
    bool parts_done;
};

static bool is_key(const struct gguf_kv *kv, const struct dialect *x, const char *rel)
{
    char key[160];
    return !strcmp(kv->key, dialect_key(x, rel, key, sizeof key));
}

/* One of the keys that dialect_put writes anew, in the dialect of the input or in the one to write. */
static bool is_part(const struct relabel *r, const struct gguf_kv *kv)
{
    const struct dialect *x = r->from;
    return is_key(kv, x, x->taps_key) || is_key(kv, x, x->block_key) || is_key(kv, x, x->mask_key) ||
           (x->width_key && is_key(kv, x, x->width_key)) || is_key(kv, x, "dflash.n_target_features") ||
           is_key(kv, x, "dflash.n_target_layers") ||
           (!strcmp(x->arch, "dflash") && (is_key(kv, x, "mask_token_id") || is_key(kv, x, "target_layers") ||
                                           is_key(kv, x, "target_layer_ids"))) ||
           ((!r->to->mask_key || r->to->mask_too || x->mask_too) &&
            is_key(kv, x, NULL)); /* a tokenizer's own, where the drafter's goes */
}

static int put_parts(struct relabel *r, struct err *e)
{
    const struct dialect_parts p = {.n_taps = r->d->n_taps,
                                    .taps = r->d->taps,
                                    .block_size = r->d->block_size,
                                    .mask_id = r->d->mask_id,
                                    .n_features = r->d->n_features};
    if (r->parts_done) return 0;
    r->parts_done = true;
    return dialect_put(r->w, r->to, &p, e);
}

static bool all_causal(const struct desc *d)
{
    for (int i = 0; i < d->n_layer; i++)
        if (!d->layer[i].causal) return false;
    return true;
}

/* attention.causal, which the pattern beside it outranks for our own reader, as the dialect's own readers
 * want it: always there, or only where it says true, or where it stood and still holds. */
static bool keeps_causal(const struct relabel *r)
{
    bool said = false;
    struct err ignored = {0};
    char key[160];
    int rc = gguf_get_bool(r->in, dialect_key(r->from, "attention.causal", key, sizeof key), &said, &ignored);
    if (r->to->causal == CAUSAL_IGNORED || (all_causal(r->d) && r->to->causal != CAUSAL_NONE)) return true;
    return rc == 0 && r->from->causal != CAUSAL_IGNORED && said == all_causal(r->d) &&
           r->to->causal != CAUSAL_NONE;
}

/* A key of the architecture under the new prefix; some are written anew from the description at the end. */
static int put_arch_key(struct relabel *r, const struct gguf_kv *kv, struct err *e)
{
    const char *rel = kv->key + strlen(r->from->arch) + 1;
    if (r->to->extended && (!strncmp(rel, "dflash.conv_", 12) || !strncmp(rel, "dflash.selector_", 16)))
        rel += 7;
    const struct desc_override *o = r->over;
    const bool windows = o && (o->sliding_window || o->sliding_pattern);
    char key[256];
    if (!strcmp(rel, "attention.causal")) return 0; /* beside the pattern, where convert puts it */
    if (o && o->rope_theta > 0 && !strcmp(rel, "rope.freq_base"))
        return gguf_put_f32(r->w, dialect_key(r->to, rel, key, sizeof key), r->d->rope[0].theta, e);
    if (windows && !strncmp(rel, "attention.sliding_window", 24)) return 0;
    if (!strcmp(rel, "attention.causal_pattern") && keeps_causal(r) &&
        gguf_put_bool(r->w, dialect_key(r->to, "attention.causal", key, sizeof key), all_causal(r->d), e))
        return -1;
    struct gguf_kv copy = *kv;
    copy.key = key;
    if (snprintf(key, sizeof key, "%s.%s", r->to->arch, rel) >= (int)sizeof key)
        return err_set(e, ERR_FORMAT, "key '%.200s': is too long", kv->key);
    return gguf_put_kv(r->w, &copy, e);
}

/* What a flag or a rule decided is written down. */
static int put_decided(struct relabel *r, struct err *e)
{
    const struct desc *d = r->d;
    const struct desc_override *o = r->over;
    uint8_t flags[DESC_MAX_LAYERS];
    char key[160];
    if (put_parts(r, e)) return -1;
    if (o && o->rope_theta > 0 &&
        gguf_put_f32(r->w, dialect_key(r->to, "rope.freq_base", key, sizeof key), d->rope[0].theta, e))
        return -1;
    int32_t window = 0;
    for (int i = 0; i < d->n_layer; i++) {
        if (d->layer[i].window) window = d->layer[i].window;
        flags[i] = d->layer[i].window > 0;
    }
    if (o && (o->sliding_window || o->sliding_pattern) && window &&
        (gguf_put_u32(r->w, dialect_key(r->to, "attention.sliding_window", key, sizeof key), (uint32_t)window,
                      e) ||
         gguf_put_array(r->w, dialect_key(r->to, "attention.sliding_window_pattern", key, sizeof key),
                        GGUF_BOOL, flags, (uint64_t)d->n_layer, e)))
        return -1;
    if (keeps_causal(r) &&
        gguf_put_bool(r->w, dialect_key(r->to, "attention.causal", key, sizeof key), all_causal(d), e))
        return -1;
    for (int i = 0; i < d->n_layer; i++) flags[i] = d->layer[i].causal;
    return gguf_put_array(r->w, dialect_key(r->to, "attention.causal_pattern", key, sizeof key), GGUF_BOOL,
                          flags, (uint64_t)d->n_layer, e);
}

int relabel_keys(struct gguf_writer *w, const struct gguf *in, const struct desc *d, const struct dialect *to,
                 const struct desc_override *over,
                 int (*put_general)(void *ctx, const struct gguf_kv *kv, struct err *e), void *ctx,
                 struct err *e)
{
    struct relabel r = {.w = w, .in = in, .d = d, .from = d->spelling, .to = to, .over = over};
    const size_t n = strlen(r.from->arch);
    for (uint64_t i = 0; i < in->n_kv; i++) {
        const struct gguf_kv *kv = &in->kv[i];
        int rc;
        if (!strcmp(kv->key, "general.architecture"))
            rc = gguf_put_str(w, kv->key, to->arch, strlen(to->arch), e);
        else if (is_part(&r, kv))
            rc = put_parts(&r, e);
        else if (!strncmp(kv->key, r.from->arch, n) && kv->key[n] == '.')
            rc = put_arch_key(&r, kv, e);
        else if (!strncmp(kv->key, "general.", 8))
            rc = put_general(ctx, kv, e);
        else
            rc = gguf_put_kv(w, kv, e);
        if (rc) return -1;
    }
    return put_decided(&r, e);
}
