/* doctor_words.c - the words of a drafter and of its target: vocabulary, tokenizer, special tokens, the mask.
 */
#include <math.h>
#include "../base/mem.h"
#include "../base/text.h"
#include "doctor.h"

/* ---- words ---- */

/* First index at which two lists of strings differ, or -1. */
static int64_t first_difference(const struct gguf_kv *a, const struct gguf_kv *b)
{
    if (!a || !b || !a->strings || !b->strings) return a || b ? 0 : -1;
    const uint64_t n = a->count < b->count ? a->count : b->count;
    for (uint64_t i = 0; i < n; i++)
        if (a->strings[i].n != b->strings[i].n || memcmp(a->strings[i].s, b->strings[i].s, a->strings[i].n))
            return (int64_t)i;
    return a->count == b->count ? -1 : (int64_t)n;
}

static struct text element(const struct gguf_kv *kv, int64_t i)
{
    if (!kv || !kv->strings || (uint64_t)i >= kv->count) return textf("nothing");
    struct text t;
    text_quote(t.s, sizeof t.s, kv->strings[i].s, kv->strings[i].n, 60);
    return t;
}

void doctor_tokenizer(struct doctor *p)
{
    static const char *const lists[] = {"tokenizer.ggml.tokens", "tokenizer.ggml.merges"};
    const struct desc *t = p->t, *d = p->d;
    if (!d->n_vocab)
        ok(p, "vocabulary", textf("%d, embedding and head borrowed from the target", t->n_vocab));
    else
        same(p, "vocabulary", textf("rows of embedding and head"), t->n_vocab, d->n_vocab,
             d->n_vocab < t->n_vocab && !d->n_vocab_draft ? DESC_REDUCED_HINT : NULL);
    if (d->n_vocab_draft && d->d2t_top >= t->n_vocab)
        misfit(p, "d2t", textf("rows of a reduced vocabulary of %d", d->n_vocab_draft),
               textf("ids 0 to %d", t->n_vocab - 1), textf("%d", d->d2t_top),
               "the drafter was trained with another vocabulary");
    else if (d->n_vocab_draft)
        ok(p, "d2t", textf("%d of %d tokens can be proposed", d->n_vocab_draft, t->n_vocab));
    if (!t->has_tokenizer || !d->has_tokenizer) {
        note(
            p, "tokenizer",
            textf("%s", t->has_tokenizer ? "the drafter's file has none" : "the target's file has none"),
            "the target's is used; other engines may want it in the drafter's file: dflash-convert --target");
        return;
    }
    if (t->tokenizer_crc == d->tokenizer_crc) {
        ok(p, "tokenizer",
           textf("%d tokens, tokens and merges crc32 %08x in both", t->n_tokens, t->tokenizer_crc));
        return;
    }
    for (int i = 0; i < 2; i++) {
        const struct gguf_kv *a = gguf_find(p->tg, lists[i]), *b = gguf_find(p->dg, lists[i]);
        const int64_t at = first_difference(a, b);
        if (at < 0) continue;
        misfit(p, "tokenizer",
               textf("crc32 %08x in the target, %08x in the drafter: %s differ, first at %" PRId64,
                     t->tokenizer_crc, d->tokenizer_crc, lists[i] + 15, at),
               element(a, at), element(b, at), "the drafter was trained with another vocabulary");
        return;
    }
}

/* Special tokens and chat template of the drafter's copy against the target's: the copy shows which model the
 * drafter was trained beside. */
void doctor_special(struct doctor *p)
{
    static const char *const ids[] = {"bos", "eos", "eot", "padding", "unknown"};
    const struct desc *t = p->t, *d = p->d;
    struct text list = {""};
    char key[96];
    if (!t->has_tokenizer || !d->has_tokenizer) return;
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        int32_t a = -1, b = -1;
        struct err ignored = {0};
        snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", ids[i]);
        gguf_get_i32(p->tg, key, &a, &ignored);
        gguf_get_i32(p->dg, key, &b, &ignored);
        if (a != b)
            snprintf(list.s + strlen(list.s), sizeof list.s - strlen(list.s),
                     "%s%s %d in the target, %d in the drafter", list.s[0] ? "; " : "", ids[i], a, b);
    }
    if (list.s[0])
        note(p, "special tokens", list,
             "a base model under a drafter of the instruct model (or the other way) differs so; proposals "
             "are poor then");
    else
        ok(p, "special tokens", textf("the same in both"));
    struct gguf_str a = {0}, b = {0};
    struct err ignored = {0};
    const bool in_t = gguf_get_str(p->tg, "tokenizer.chat_template", &a, &ignored) == 0;
    const bool in_d = gguf_get_str(p->dg, "tokenizer.chat_template", &b, &ignored) == 0;
    const bool equal = in_t == in_d && a.n == b.n && !memcmp(a.n ? a.s : "", b.n ? b.s : "", a.n);
    if (equal)
        ok(p, "chat template", textf("%s", in_t ? "the same in both" : "none in either"));
    else
        note(p, "chat template",
             textf("%s", in_t && in_d ? "they differ"
                         : in_d       ? "the drafter's copy has one, the target has none"
                                      : "the target has one, the drafter's copy has none"),
             in_d && !in_t ? "a base model under a drafter of the instruct model?"
                           : "was the drafter made for another version of the target?");
}

/* ---- the mask ---- */

static double row_rms(const float *x, int64_t n)
{
    double s = 0;
    for (int64_t i = 0; i < n; i++) s += (double)x[i] * x[i];
    return sqrt(s / (double)n);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of up to 255 rows, evenly spread; 0 where none can be decoded. x: scratch [ne[0]]. */
static double median_rms(const struct gguf_tensor *t, float *x)
{
    enum { SAMPLES = 255 };
    double rms[SAMPLES];
    int n = 0;
    for (int i = 0; i < SAMPLES; i++)
        if (read_row(t, (t->ne[1] - 1) * i / (SAMPLES - 1), x)) rms[n++] = row_rms(x, t->ne[0]);
    qsort(rms, (size_t)n, sizeof rms[0], by_value);
    return n ? rms[n / 2] : 0;
}

static struct text token_text(const struct gguf *g, int32_t id)
{
    const struct gguf_kv *tokens = gguf_find(g, "tokenizer.ggml.tokens");
    return tokens && tokens->strings && (uint64_t)id < tokens->count ? element(tokens, id)
                                                                     : textf("no token of the tokenizer");
}

static void see_mask_row(struct doctor *p, const struct gguf_tensor *embd, float *x)
{
    const struct desc *d = p->d;
    const struct text token = token_text(p->tg, d->mask_id);
    if (!read_row(embd, d->mask_id, x)) {
        note(p, "mask id",
             textf("%d: its embedding row (%s) could not be decoded", d->mask_id,
                   kn_type_info(embd->type)->name),
             NULL);
        return;
    }
    const double rms = row_rms(x, embd->ne[0]), usual = median_rms(embd, x);
    const struct text what =
        textf("%d (%.100s), its embedding row has RMS %.4g, others %.4g", d->mask_id, token.s, rms, usual);
    if (!(rms > 0))
        misfit(p, "mask id", what, textf("a row that is not zero"), textf("%g", rms),
               "the drafter would see nothing");
    else if (rms < usual / 100)
        note(p, "mask id", what, "nearly nothing: was the row ever trained, is it the right id?");
    else
        ok(p, "mask id", what);
}

/* The mask token needs a row of the embedding, and one that is not zero. */
void doctor_mask(struct doctor *p)
{
    const struct desc *t = p->t, *d = p->d;
    const struct gguf_tensor *own = gguf_tensor(p->dg, "token_embd.weight");
    const struct gguf_tensor *embd = own ? own : gguf_tensor(p->tg, "token_embd.weight");
    if (d->mask_id < 0 || d->mask_id >= t->n_vocab) {
        misfit(p, "mask id", textf("an id of the target's vocabulary"), textf("0 to %d", t->n_vocab - 1),
               textf("%d", d->mask_id), "--mask-id N");
        return;
    }
    float *x = embd ? mem_alloc((size_t)embd->ne[0] * sizeof *x) : NULL;
    p->no_memory |= embd && !x;
    if (x && d->mask_id < embd->ne[1])
        see_mask_row(p, embd, x);
    else
        note(p, "mask id", textf("%d: its embedding row could not be read", d->mask_id), NULL);
    mem_free(x);
    for (int i = 0; i < t->n_stops; i++)
        if (t->stops[i] == d->mask_id)
            note(p, "mask token", textf("%d is also a token that ends the text", d->mask_id),
                 "is it the right id? --mask-id N");
}
