/* tokenizer_gguf.c - the tokenizer.ggml.* keys of a GGUF: read, and copied from one file to another. */
#include <string.h>
#include "../describe/ends.h"
#include "tokenizer_priv.h"

#define PREFIX "tokenizer.ggml."

static const char *file_name(const struct gguf *g)
{
    return g->map.path ? g->map.path : "(memory)";
}

static int missing(const struct gguf *g, const char *key, struct err *e)
{
    err_set(e, ERR_FORMAT, "%s: no tokenizer: the key %s is missing", file_name(g), key);
    return err_hint(e, "convert the model again with its tokenizer.json in the directory");
}

static int get_array(const struct gguf *g, const char *key, bool strings, const struct gguf_kv **kv,
                     struct err *e)
{
    *kv = gguf_find(g, key);
    if (!*kv) return missing(g, key, e);
    bool is_int = (*kv)->elem <= GGUF_I32 || (*kv)->elem == GGUF_U64 || (*kv)->elem == GGUF_I64;
    if ((*kv)->type != GGUF_ARRAY || (strings ? (*kv)->elem != GGUF_STRING : !is_int))
        return err_set(e, ERR_FORMAT, "%s: %s: expected an array of %s, got %s%s", file_name(g), key,
                       strings ? "strings" : "integers", (*kv)->type == GGUF_ARRAY ? "an array of " : "",
                       gguf_type_name((*kv)->type == GGUF_ARRAY ? (*kv)->elem : (*kv)->type));
    return 0;
}

/* A bool that would change the ids if it were set, and that we do not do. */
static int refuse_true(const struct gguf *g, const char *key, struct err *e)
{
    bool v = false;
    if (gguf_get_bool(g, key, &v, e) < 0) return -1;
    return v ? err_set(e, ERR_FORMAT, "%s: %s: true is not supported", file_name(g), key) : 0;
}

static int refuse_others(const struct gguf *g, const struct tok_spec *s, struct err *e)
{
    static const char *const keys[] = {PREFIX "add_eos_token", PREFIX "add_sep_token",
                                       PREFIX "remove_extra_whitespaces"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (refuse_true(g, keys[i], e)) return -1;
    return s->kind == TOK_SPM ? 0 : refuse_true(g, PREFIX "add_space_prefix", e);
}

/* An id that must lie in the vocabulary; *v stays where the key is absent. */
static int get_id(const struct gguf *g, const char *key, uint64_t n_vocab, int32_t *v, struct err *e)
{
    uint64_t id;
    int rc = gguf_get_u64(g, key, &id, e);
    if (rc) return rc < 0 ? -1 : 0;
    if (id >= n_vocab)
        return err_set(e, ERR_FORMAT, "%s: %s: %llu (expected 0 to %llu, the vocabulary)", file_name(g), key,
                       (unsigned long long)id, (unsigned long long)n_vocab - 1);
    *v = (int32_t)id;
    return 0;
}

bool tok_is_none(struct gguf_str model)
{
    return gguf_str_is(model, "no_vocab") || gguf_str_is(model, "none");
}

/* What the model says of itself: kind, pre-tokenizer, normaliser, flags. */
static int get_kind(const struct gguf *g, struct tok_spec *s, struct err *e)
{
    struct gguf_str v;
    int rc = gguf_get_str(g, PREFIX "model", &v, e);
    if (rc) return rc < 0 ? -1 : missing(g, PREFIX "model", e);
    if (tok_is_none(v)) return missing(g, PREFIX "tokens", e);
    s->merge_key = PREFIX "merges";
    if (gguf_str_is(v, "gemma4")) {
        s->kind = TOK_GEMMA;
        return 0;
    }
    if (gguf_str_is(v, "llama")) {
        s->kind = TOK_SPM;
        s->space_prefix = true;
        return gguf_get_bool(g, PREFIX "add_space_prefix", &s->space_prefix, e) < 0 ? -1 : 0;
    }
    if (!gguf_str_is(v, "gpt2"))
        return err_set(e, ERR_FORMAT,
                       "%s: " PREFIX
                       "model: '%.*s' is not supported (expected 'gpt2', byte-level BPE, or 'gemma4' or "
                       "'llama', SentencePiece)",
                       s->name, (int)(v.n > 60 ? 60 : v.n), v.s);
    rc = gguf_get_str(g, PREFIX "pre", &v, e);
    if (rc) return rc < 0 ? -1 : missing(g, PREFIX "pre", e);
    s->pre = tok_pre_by_name(v);
    if (!s->pre)
        return err_set(e, ERR_FORMAT,
                       "%s: " PREFIX
                       "pre: '%.*s' is not known (expected 'gpt-2', 'qwen2', 'qwen35' or 'llama-bpe')",
                       s->name, (int)(v.n > 60 ? 60 : v.n), v.s);
    s->nfc = s->pre->nfc;
    rc = gguf_get_str(g, PREFIX "normalizer", &v, e);
    if (rc < 0) return -1;
    if (rc == 0) {
        s->nfc = gguf_str_is(v, "nfc");
        if (!s->nfc && !gguf_str_is(v, "none"))
            return err_set(e, ERR_FORMAT,
                           "%s: " PREFIX "normalizer: '%.*s' is not known (expected 'nfc' or 'none')",
                           s->name, (int)(v.n > 60 ? 60 : v.n), v.s);
    }
    s->ignore_merges = s->pre->ignore_merges;
    return gguf_get_bool(g, PREFIX "ignore_merges", &s->ignore_merges, e) < 0 ? -1 : 0;
}

static int get_ids(const struct gguf *g, struct tok_spec *s, struct err *e)
{
    static const char *const ids[] = {PREFIX "eos_token_id", PREFIX "eot_token_id", PREFIX "padding_token_id",
                                      PREFIX "mask_token_id"};
    int32_t ignored;
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        if (get_id(g, ids[i], (uint64_t)s->n_vocab, &ignored, e)) return -1;
    s->bos = -1;
    if (get_id(g, PREFIX "bos_token_id", (uint64_t)s->n_vocab, &s->bos, e)) return -1;
    /* The ecosystem puts a bos before every text of Gemma 4, whatever the file says. */
    s->add_bos = (s->kind != TOK_GPT2 || s->pre->add_bos) && s->bos >= 0;
    if (s->kind == TOK_GEMMA) return 0;
    return gguf_get_bool(g, PREFIX "add_bos_token", &s->add_bos, e) < 0 ? -1 : 0;
}

/* What decides how symbols merge: merges; or, for "llama", our own merges of a tokenizer.json, else scores.
 * *score is the caller's to free. */
static int get_merges(const struct gguf *g, struct tok_spec *s, float **score, struct err *e)
{
    const struct gguf_kv *kv;
    *score = NULL;
    if (s->kind == TOK_SPM) s->merge_key = PREFIX "spm_merges";
    if (s->kind != TOK_SPM || gguf_find(g, s->merge_key)) {
        if (get_array(g, s->merge_key, true, &kv, e)) return -1;
        s->merge = kv->strings;
        s->n_merges = kv->count;
        return 0;
    }
    kv = gguf_find(g, PREFIX "scores");
    if (!kv) return missing(g, PREFIX "scores", e);
    if (kv->type != GGUF_ARRAY || (kv->elem != GGUF_F32 && kv->elem != GGUF_I32))
        return err_set(e, ERR_FORMAT, "%s: " PREFIX "scores: expected an array of f32, got %s%s", s->name,
                       kv->type == GGUF_ARRAY ? "an array of " : "",
                       gguf_type_name(kv->type == GGUF_ARRAY ? kv->elem : kv->type));
    if (kv->count != (uint64_t)s->n_vocab)
        return err_set(e, ERR_FORMAT, "%s: " PREFIX "scores: %llu elements (expected %lld, one a token)",
                       s->name, (unsigned long long)kv->count, (long long)s->n_vocab);
    *score = mem_calloc(kv->count, sizeof **score);
    if (!*score) return err_set(e, ERR_IO, "out of memory (scores)");
    for (uint64_t i = 0; i < kv->count; i++) (*score)[i] = (float)gguf_array_f64(kv, i);
    s->score = *score;
    return 0;
}

int tok_open(struct tokenizer **t, const struct gguf *g, struct err *e)
{
    struct tok_spec s = {.name = file_name(g)};
    const struct gguf_kv *tokens, *types;
    float *score = NULL;
    *t = NULL;
    if (get_kind(g, &s, e) || get_array(g, PREFIX "tokens", true, &tokens, e) ||
        get_array(g, PREFIX "token_type", false, &types, e) || refuse_others(g, &s, e))
        return -1;
    if (tokens->count == 0 || tokens->count >= INT32_MAX)
        return err_set(e, ERR_FORMAT, "%s: " PREFIX "tokens: %llu tokens", s.name,
                       (unsigned long long)tokens->count);
    if (types->count != tokens->count)
        return err_set(e, ERR_FORMAT, "%s: " PREFIX "token_type: %llu elements (expected %llu, one a token)",
                       s.name, (unsigned long long)types->count, (unsigned long long)tokens->count);
    s.n_vocab = (int64_t)tokens->count;
    s.token = tokens->strings;
    if (get_ids(g, &s, e) || get_merges(g, &s, &score, e)) return -1;
    int32_t *type = mem_calloc(tokens->count, sizeof *type);
    if (!type) {
        mem_free(score);
        return err_set(e, ERR_IO, "out of memory (token types)");
    }
    for (uint64_t i = 0; i < tokens->count; i++) {
        int64_t v = gguf_array_i64(types, i);
        type[i] = v < 0 || v > 100 ? -1 : (int32_t)v; /* out of range either way: tok_build names it */
    }
    /* A token that ends a generation is a control token, whatever the file declares: files of Gemma 4 have
     * <|tool_response> as user-defined, and then plain text would become it. */
    int32_t ends[ENDS_MAX];
    for (int32_t n = ends_find(g, ends); n > 0; n--) type[ends[n - 1]] = TOK_CONTROL;
    s.type = type;
    int rc = tok_build(t, &s, e);
    mem_free(type);
    mem_free(score);
    return rc;
}

int tok_copy(struct gguf_writer *w, const struct gguf *g, bool *found, struct err *e)
{
    *found = gguf_find(g, PREFIX "tokens") != NULL;
    for (uint64_t i = 0; i < g->n_kv; i++)
        if (strncmp(g->kv[i].key, PREFIX, strlen(PREFIX)) == 0 && gguf_put_kv(w, &g->kv[i], e)) return -1;
    return 0;
}
