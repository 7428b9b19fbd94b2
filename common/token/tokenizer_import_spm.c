/* tokenizer_import_spm.c - tokenizer.json with byte_fallback: Gemma (spaces to U+2581, merges over the whole
 * text), and Llama 2 and its kin (the same behind a space prefix). Anything else is refused by name. */
#include <stdio.h>
#include <string.h>
#include "tokenizer_import.h"

#define SPACE "\xe2\x96\x81" /* U+2581 */

static bool is_str(const json_t *o, const char *key, const char *want)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s && !strcmp(s, want);
}

static bool is_int(const json_t *o, const char *key, int want)
{
    const json_t *v = json_object_get(o, key);
    return json_is_integer(v) && json_integer_value(v) == want;
}

/* {"type": "Replace", "pattern": {"String": from}, "content": to} */
static bool is_replace(const json_t *v, const char *from, const char *to)
{
    const json_t *p = json_object_get(v, "pattern");
    return is_str(v, "type", "Replace") && json_object_size(p) == 1 && is_str(p, "String", from) &&
           is_str(v, "content", to) && json_object_size(v) == 3;
}

int tok_hf_spm_normalizer(struct tok_import *m, const json_t *v, struct err *e)
{
    const char *expected = "with byte_fallback: Replace of ' ' by U+2581, alone or after Prepend of U+2581";
    const json_t *one = v, *prepend = NULL;
    if (is_str(v, "type", "Sequence")) {
        const json_t *list = json_object_get(v, "normalizers");
        size_t n = json_array_size(list);
        if (n == 2) prepend = json_array_get(list, 0);
        one = n == 1 || n == 2 ? json_array_get(list, n - 1) : NULL;
    }
    if (!is_replace(one, " ", SPACE) ||
        (prepend && !(is_str(prepend, "type", "Prepend") && is_str(prepend, "prepend", SPACE) &&
                      json_object_size(prepend) == 2)))
        return tok_hf_bad(e, "normalizer", expected, v ? v : json_null());
    m->spec.kind = prepend ? TOK_SPM : TOK_GEMMA;
    m->spec.space_prefix = prepend != NULL;
    if (prepend) m->spec.merge_key = "tokenizer.ggml.spm_merges";
    return 0;
}

/* None; or a split at spaces, of which the normaliser leaves none. */
int tok_hf_spm_pre_tokenizer(const json_t *v, struct err *e)
{
    const json_t *p = json_object_get(v, "pattern");
    if (tok_hf_null(v)) return 0;
    if (is_str(v, "type", "Split") && json_object_size(p) == 1 && is_str(p, "String", " ") &&
        is_str(v, "behavior", "MergedWithPrevious") &&
        tok_hf_off(v, "pre_tokenizer.Split.", "invert", NULL) == 0)
        return 0;
    return tok_hf_bad(e, "pre_tokenizer", "with byte_fallback: null, or Split at ' '", v);
}

int tok_hf_spm_decoder(const struct tok_import *m, const json_t *v, struct err *e)
{
    const json_t *list = json_object_get(v, "decoders");
    const json_t *strip = json_array_get(list, 3);
    bool ok = is_str(v, "type", "Sequence") && json_array_size(list) == (m->spec.space_prefix ? 4 : 3) &&
              is_replace(json_array_get(list, 0), SPACE, " ") &&
              is_str(json_array_get(list, 1), "type", "ByteFallback") &&
              is_str(json_array_get(list, 2), "type", "Fuse");
    if (ok && m->spec.space_prefix)
        ok = is_str(strip, "type", "Strip") && is_str(strip, "content", " ") && is_int(strip, "start", 1) &&
             is_int(strip, "stop", 0);
    return ok ? 0
              : tok_hf_bad(e, "decoder",
                           m->spec.space_prefix
                               ? "Replace of U+2581 by ' ', ByteFallback, Fuse, Strip of one ' ' at the start"
                               : "Replace of U+2581 by ' ', ByteFallback, Fuse",
                           v ? v : json_null());
}

void tok_hf_spm_types(struct tok_import *m)
{
    for (int b = 0; b < 256; b++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", (unsigned)b);
        const json_t *id = json_object_get(m->vocab, text);
        if (id) m->type[json_integer_value(id)] = TOK_BYTE;
    }
}

/* Scores for programs that merge by them alone: the place of the first merge that makes a token. */
static int put_scores(const struct tokenizer *t, uint64_t n_merges, struct gguf_writer *w, struct err *e)
{
    float *score = mem_alloc((size_t)t->n_vocab * sizeof *score);
    if (!score) return err_set(e, ERR_IO, "out of memory (scores)");
    for (int32_t i = 0; i < t->n_vocab; i++) score[i] = t->type[i] == TOK_NORMAL ? -(float)n_merges - 1 : 0;
    for (uint64_t i = 0; i <= t->merge_mask; i++) {
        const struct tok_merge *m = &t->merge[i];
        if (m->rank != TOK_NO_RANK && t->type[m->id] == TOK_NORMAL && score[m->id] < -(float)m->rank)
            score[m->id] = -(float)m->rank;
    }
    int rc = gguf_put_array(w, "tokenizer.ggml.scores", GGUF_F32, score, (uint64_t)t->n_vocab, e);
    mem_free(score);
    return rc;
}

int tok_hf_spm_keys(const struct tok_import *m, const struct tokenizer *t, struct gguf_writer *w,
                    struct err *e)
{
    const bool prefix = m->spec.space_prefix;
    if (gguf_put_str(w, "tokenizer.ggml.model", prefix ? "llama" : "gemma4", prefix ? 5 : 6, e) ||
        gguf_put_bool(w, "tokenizer.ggml.add_space_prefix", prefix, e))
        return -1;
    if (!prefix) return 0;
    return gguf_put_str(w, "tokenizer.ggml.pre", "default", 7, e) || put_scores(t, m->spec.n_merges, w, e)
               ? -1
               : 0;
}
