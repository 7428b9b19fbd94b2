/* tokenizer_import.c - tokenizer.json (Hugging Face tokenizers) and the files beside it to tokenizer.ggml.*
 * keys.
 *
 * Every member that can change which ids a text gets is either understood or refused by name; what is
 * understood is listed in docs/tokenizer.md. The result goes through tok_build before anything is written. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "tokenizer_import.h"

#define MAX_FILE ((uint64_t)256 << 20) /* the largest tokenizer.json we know of is 34 MB */
#ifndef MAX_VOCAB /* `make fuzz` has a small one: a short text can ask for a vocabulary that takes long to   \
                     build */
#define MAX_VOCAB (1 << 24)
#endif
const char *const tok_hf_names[4] = {"tokenizer.json", "tokenizer_config.json", "generation_config.json",
                                     "config.json"};

int tok_hf_bad(struct err *e, const char *what, const char *expected, const json_t *got)
{
    char *s = json_dumps(got, JSON_ENCODE_ANY | JSON_COMPACT);
    err_set(e, ERR_FORMAT, "tokenizer.json: %s: %.300s is not supported (expected %s)", what, s ? s : "?",
            expected);
    if (s) mem_free(s); /* jansson's memory comes from mem.h */
    return -1;
}

bool tok_hf_null(const json_t *v)
{
    return !v || json_is_null(v);
}

static bool is_empty_string(const json_t *v)
{
    return json_is_string(v) && json_string_length(v) == 0;
}

const char *tok_hf_type(const json_t *v)
{
    const char *s = json_string_value(json_object_get(v, "type"));
    return s ? s : "";
}

int tok_hf_only_keys(const json_t *o, const char *where, const char *const *known, struct err *e)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)o, key, v)
    {
        size_t i = 0;
        while (known[i] && strcmp(known[i], key)) i++;
        if (!known[i]) return err_set(e, ERR_FORMAT, "tokenizer.json: %s%.80s is not known", where, key);
    }
    return 0;
}

/* A member that must be absent, null or false. */
int tok_hf_off(const json_t *o, const char *where, const char *key, struct err *e)
{
    const json_t *v = json_object_get(o, key);
    char what[128];
    if (tok_hf_null(v) || json_is_false(v)) return 0;
    snprintf(what, sizeof what, "%s%s", where, key);
    return tok_hf_bad(e, what, "false", v);
}

static int read_normalizer(struct tok_import *m, const json_t *v, struct err *e)
{
    if (tok_hf_null(v)) return 0;
    if (!strcmp(tok_hf_type(v), "Sequence")) {
        const json_t *list = json_object_get(v, "normalizers");
        if (!json_is_array(list)) return tok_hf_bad(e, "normalizer", "NFC or null", v);
        for (size_t i = 0; i < json_array_size(list); i++)
            if (read_normalizer(m, json_array_get(list, i), e)) return -1;
        return 0;
    }
    if (strcmp(tok_hf_type(v), "NFC")) return tok_hf_bad(e, "normalizer", "NFC or null", v);
    m->spec.nfc = true;
    return 0;
}

/* ByteLevel as pre-tokenizer: *regex says whether it also splits. */
static int read_byte_level(const json_t *v, bool *regex, struct err *e)
{
    static const char *const known[] = {"type", "add_prefix_space", "trim_offsets", "use_regex", NULL};
    const json_t *space = json_object_get(v, "add_prefix_space"), *use = json_object_get(v, "use_regex");
    if (tok_hf_only_keys(v, "pre_tokenizer.ByteLevel.", known, e)) return -1;
    if (!json_is_false(space))
        return tok_hf_bad(e, "pre_tokenizer", "ByteLevel with add_prefix_space false", v);
    if (use && !json_is_boolean(use))
        return tok_hf_bad(e, "pre_tokenizer", "ByteLevel with use_regex true or false", v);
    *regex = !use || json_is_true(use);
    return 0;
}

static int read_pre_tokenizer(struct tok_import *m, const json_t *v, struct err *e)
{
    static const char *const known[] = {"type", "pattern", "behavior", "invert", NULL};
    const char *expected =
        "ByteLevel with its own regex, or a Sequence of one Split by regex and ByteLevel without";
    const json_t *list = json_object_get(v, "pretokenizers"), *split = NULL, *level = v;
    bool regex;
    if (!strcmp(tok_hf_type(v), "Sequence")) {
        size_t n = json_array_size(list);
        if (n != 1 && n != 2) return tok_hf_bad(e, "pre_tokenizer", expected, v);
        split = n == 2 ? json_array_get(list, 0) : NULL;
        level = json_array_get(list, n - 1);
    }
    if (strcmp(tok_hf_type(level), "ByteLevel"))
        return tok_hf_bad(e, "pre_tokenizer", expected, tok_hf_null(v) ? json_null() : v);
    if (read_byte_level(level, &regex, e)) return -1;
    if (regex == (split != NULL)) return tok_hf_bad(e, "pre_tokenizer", expected, v);
    if (!split) {
        m->spec.pre = tok_pre_by_regex(NULL);
        return 0;
    }
    const char *pattern = json_string_value(json_object_get(json_object_get(split, "pattern"), "Regex"));
    const char *behavior = json_string_value(json_object_get(split, "behavior"));
    if (strcmp(tok_hf_type(split), "Split") || !pattern || !behavior || strcmp(behavior, "Isolated"))
        return tok_hf_bad(e, "pre_tokenizer", "Split by a Regex, behavior Isolated", split);
    if (tok_hf_only_keys(split, "pre_tokenizer.Split.", known, e) ||
        tok_hf_off(split, "pre_tokenizer.Split.", "invert", e))
        return -1;
    m->spec.pre = tok_pre_by_regex(pattern);
    return m->spec.pre
               ? 0
               : tok_hf_bad(e, "pre_tokenizer", "the regex of gpt-2, qwen2, qwen35 or llama-bpe", split);
}

/* TemplateProcessing that puts one token before the text, or none. */
static int read_template(struct tok_import *m, const json_t *v, struct err *e)
{
    const char *expected = "a template of at most one special token before the text";
    const json_t *single = json_object_get(v, "single");
    size_t n = json_array_size(single);
    if (n < 1 || n > 2) return tok_hf_bad(e, "post_processor", expected, v);
    const char *text =
        json_string_value(json_object_get(json_object_get(json_array_get(single, n - 1), "Sequence"), "id"));
    if (!text || strcmp(text, "A")) return tok_hf_bad(e, "post_processor", expected, v);
    if (n == 1) return 0;
    const char *name =
        json_string_value(json_object_get(json_object_get(json_array_get(single, 0), "SpecialToken"), "id"));
    const json_t *ids =
        name ? json_object_get(json_object_get(json_object_get(v, "special_tokens"), name), "ids") : NULL;
    const json_t *id = json_array_get(ids, 0);
    if (json_array_size(ids) != 1 || !json_is_integer(id) || json_integer_value(id) < 0 ||
        json_integer_value(id) >= MAX_VOCAB)
        return tok_hf_bad(e, "post_processor", expected, v);
    if (m->template_bos >= 0) return tok_hf_bad(e, "post_processor", "one template", v);
    m->template_bos = (int32_t)json_integer_value(id);
    return 0;
}

static int read_post_processor(struct tok_import *m, const json_t *v, struct err *e)
{
    if (tok_hf_null(v) || !strcmp(tok_hf_type(v), "ByteLevel")) return 0; /* ByteLevel: offsets only */
    if (!strcmp(tok_hf_type(v), "TemplateProcessing")) return read_template(m, v, e);
    const json_t *list = json_object_get(v, "processors");
    if (strcmp(tok_hf_type(v), "Sequence") || !json_is_array(list))
        return tok_hf_bad(e, "post_processor", "ByteLevel or TemplateProcessing", v);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *p = json_array_get(list, i);
        if (!strcmp(tok_hf_type(p), "Sequence"))
            return tok_hf_bad(e, "post_processor", "ByteLevel or TemplateProcessing", p);
        if (read_post_processor(m, p, e)) return -1;
    }
    return 0;
}

static int read_decoder(const json_t *v, struct err *e)
{
    const json_t *list = json_object_get(v, "decoders");
    if (!strcmp(tok_hf_type(v), "Sequence") && json_array_size(list) == 1) v = json_array_get(list, 0);
    return strcmp(tok_hf_type(v), "ByteLevel") ? tok_hf_bad(e, "decoder", "ByteLevel", v ? v : json_null())
                                               : 0;
}

/* The options of the model. unk_token and fuse_unk have no effect: tok_build
 * demands a token for every byte. */
static int read_model(struct tok_import *m, const json_t *v, struct err *e)
{
    static const char *const known[] = {"type",
                                        "dropout",
                                        "unk_token",
                                        "continuing_subword_prefix",
                                        "end_of_word_suffix",
                                        "fuse_unk",
                                        "byte_fallback",
                                        "ignore_merges",
                                        "vocab",
                                        "merges",
                                        NULL};
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    if (!json_is_object(v)) return err_set(e, ERR_FORMAT, "tokenizer.json: model is missing");
    const json_t *type = json_object_get(v, "type"); /* absent in files of old versions */
    if (type && strcmp(tok_hf_type(v), "BPE")) return tok_hf_bad(e, "model.type", "BPE", type);
    if (tok_hf_only_keys(v, "model.", known, e)) return -1;
    const json_t *fallback = json_object_get(v, "byte_fallback");
    m->spm = json_is_true(fallback);
    if (!m->spm && tok_hf_off(v, "model.", "byte_fallback", e)) return -1;
    const json_t *dropout = json_object_get(v, "dropout");
    if (!tok_hf_null(dropout) && !(json_is_number(dropout) && json_number_value(dropout) == 0))
        return tok_hf_bad(e, "model.dropout", "null", dropout);
    for (size_t i = 0; i < 2; i++) {
        const json_t *a = json_object_get(v, affixes[i]);
        char what[64];
        snprintf(what, sizeof what, "model.%s", affixes[i]);
        if (!tok_hf_null(a) && !is_empty_string(a)) return tok_hf_bad(e, what, "null", a);
    }
    const json_t *ignore = json_object_get(v, "ignore_merges");
    if (!tok_hf_null(ignore) && !json_is_boolean(ignore))
        return tok_hf_bad(e, "model.ignore_merges", "true or false", ignore);
    if (m->spm && json_is_true(ignore))
        return tok_hf_bad(e, "model.ignore_merges", "false with byte_fallback", ignore);
    m->spec.ignore_merges = json_is_true(ignore);
    m->vocab = json_object_get(v, "vocab");
    if (!json_is_object(m->vocab))
        return err_set(e, ERR_FORMAT, "tokenizer.json: model.vocab is missing or no object");
    return 0;
}

static int read_merges(struct tok_import *m, const json_t *list, struct err *e)
{
    if (!json_is_array(list))
        return err_set(e, ERR_FORMAT, "tokenizer.json: model.merges is missing or no array");
    size_t n = json_array_size(list);
    m->merge = arena_alloc(m->arena, n + 1, sizeof *m->merge);
    if (!m->merge) return err_set(e, ERR_IO, "out of memory (merges)");
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        if (json_is_string(v)) {
            m->merge[i] = (struct gguf_str){json_string_value(v), json_string_length(v)};
            continue;
        }
        const json_t *a = json_array_get(v, 0), *b = json_array_get(v, 1);
        char what[64];
        snprintf(what, sizeof what, "model.merges[%zu]", i);
        if (json_array_size(v) != 2 || !json_is_string(a) || !json_is_string(b))
            return tok_hf_bad(e, what, "\"left right\" or [left, right]", v);
        size_t na = json_string_length(a), nb = json_string_length(b);
        char *s = arena_alloc(m->arena, na + nb + 2, 1);
        if (!s) return err_set(e, ERR_IO, "out of memory (merges)");
        memcpy(s, json_string_value(a), na);
        s[na] = ' ';
        memcpy(s + na + 1, json_string_value(b), nb);
        m->merge[i] = (struct gguf_str){s, na + nb + 1};
    }
    m->spec.merge = m->merge;
    m->spec.n_merges = n;
    return 0;
}

static int check_id(const json_t *v, const char *what, struct err *e)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= MAX_VOCAB)
        return tok_hf_bad(e, what, "an id from 0 to 16777215", v);
    return 0;
}

/* The number of ids: rows of the embedding, or as many as the file needs. */
static int count_vocab(struct tok_import *m, int64_t n_vocab, struct err *e)
{
    int64_t need = 0;
    const char *key;
    json_t *v;
    json_object_foreach(m->vocab, key, v)
    {
        if (check_id(v, "model.vocab", e)) return -1;
        if (json_integer_value(v) >= need) need = json_integer_value(v) + 1;
    }
    for (size_t i = 0; i < json_array_size(m->added); i++) {
        v = json_object_get(json_array_get(m->added, i), "id");
        if (!v) return err_set(e, ERR_FORMAT, "tokenizer.json: added_tokens[%zu] has no id", i);
        if (check_id(v, "added_tokens", e)) return -1;
        if (json_integer_value(v) >= need) need = json_integer_value(v) + 1;
    }
    if (n_vocab > 0 && need > n_vocab)
        return err_set(
            e, ERR_FORMAT,
            "tokenizer.json: token id %lld lies outside the model's vocabulary (expected 0 to %lld)",
            (long long)need - 1, (long long)n_vocab - 1);
    if (n_vocab > MAX_VOCAB)
        return err_set(e, ERR_FORMAT, "vocabulary of %lld tokens (expected at most %d)", (long long)n_vocab,
                       MAX_VOCAB);
    m->spec.n_vocab = n_vocab > 0 ? n_vocab : need;
    return 0;
}

static int read_added(struct tok_import *m, size_t i, struct err *e)
{
    static const char *const known[] = {"id",     "content",    "single_word", "lstrip",
                                        "rstrip", "normalized", "special",     NULL};
    const json_t *a = json_array_get(m->added, i), *text = json_object_get(a, "content");
    char where[64];
    snprintf(where, sizeof where, "added_tokens[%zu].", i);
    if (!json_is_string(text) || json_string_length(text) == 0)
        return tok_hf_bad(e, "added_tokens", "a token with content", a);
    if (tok_hf_only_keys(a, where, known, e) || tok_hf_off(a, where, "single_word", e) ||
        tok_hf_off(a, where, "lstrip", e) || tok_hf_off(a, where, "rstrip", e))
        return -1;
    /* Such a token is looked for in normalised text: without a normaliser that is the text. */
    if ((m->spec.nfc || m->spm) && tok_hf_off(a, where, "normalized", e)) return -1;
    int64_t id = json_integer_value(json_object_get(a, "id"));
    const json_t *same = json_object_get(m->vocab, json_string_value(text));
    if (same && json_integer_value(same) != id)
        return tok_hf_bad(e, "added_tokens", "the id that model.vocab gives it", a);
    struct gguf_str s = {json_string_value(text), json_string_length(text)};
    if (m->token[id].s && (m->token[id].n != s.n || memcmp(m->token[id].s, s.s, s.n)))
        return tok_hf_bad(e, "added_tokens", "an id that no other token has", a);
    m->token[id] = s;
    m->type[id] = json_is_true(json_object_get(a, "special")) ? TOK_CONTROL : TOK_USER_DEFINED;
    return 0;
}

static int read_vocab(struct tok_import *m, int64_t n_vocab, struct err *e)
{
    if (count_vocab(m, n_vocab, e)) return -1;
    m->token = arena_alloc(m->arena, (size_t)m->spec.n_vocab + 1, sizeof *m->token);
    m->type = arena_alloc(m->arena, (size_t)m->spec.n_vocab + 1, sizeof *m->type);
    if (!m->token || !m->type) return err_set(e, ERR_IO, "out of memory (vocabulary)");
    const char *key;
    json_t *v;
    json_object_foreach(m->vocab, key, v)
    {
        int64_t id = json_integer_value(v);
        if (m->token[id].s)
            return err_set(e, ERR_FORMAT,
                           "tokenizer.json: model.vocab: '%.60s' and '%.60s' are both token %lld",
                           m->token[id].s, key, (long long)id);
        m->token[id] = (struct gguf_str){key, strlen(key)};
        m->type[id] = TOK_NORMAL;
    }
    if (m->spm) tok_hf_spm_types(m);
    for (size_t i = 0; i < json_array_size(m->added); i++)
        if (read_added(m, i, e)) return -1;
    for (int64_t id = 0; id < m->spec.n_vocab; id++) {
        if (m->token[id].s) continue;
        char pad[32];
        int n = snprintf(pad, sizeof pad, "[PAD%lld]", (long long)id);
        m->token[id] = (struct gguf_str){arena_strndup(m->arena, pad, (size_t)n), (uint64_t)n};
        m->type[id] = TOK_UNUSED;
        if (!m->token[id].s) return err_set(e, ERR_IO, "out of memory (vocabulary)");
    }
    m->spec.token = m->token;
    m->spec.type = m->type;
    return 0;
}

static int read_tokenizer(struct tok_import *m, int64_t n_vocab, struct err *e)
{
    static const char *const known[] = {
        "version",       "truncation",     "padding", "added_tokens", "normalizer",
        "pre_tokenizer", "post_processor", "decoder", "model",        NULL};
    const json_t *t = m->j[TOK_HF_TOKENIZER];
    char buf[96];
    if (!json_is_object(t))
        return err_set(e, ERR_FORMAT, "tokenizer.json: expected an object, got %s",
                       json_show(t, buf, sizeof buf));
    if (tok_hf_only_keys(t, "", known, e)) return -1;
    for (int i = 0; i < 2; i++) {
        const json_t *v = json_object_get(t, i ? "padding" : "truncation");
        if (!tok_hf_null(v)) return tok_hf_bad(e, i ? "padding" : "truncation", "null", v);
    }
    m->added = json_object_get(t, "added_tokens");
    if (!tok_hf_null(m->added) && !json_is_array(m->added))
        return tok_hf_bad(e, "added_tokens", "an array", m->added);
    const json_t *model = json_object_get(t, "model");
    const json_t *norm = json_object_get(t, "normalizer"), *pre = json_object_get(t, "pre_tokenizer"),
                 *decoder = json_object_get(t, "decoder");
    if (read_model(m, model, e)) return -1;
    if (m->spm ? tok_hf_spm_normalizer(m, norm, e) || tok_hf_spm_pre_tokenizer(pre, e) ||
                     tok_hf_spm_decoder(m, decoder, e)
               : read_normalizer(m, norm, e) || read_pre_tokenizer(m, pre, e) || read_decoder(decoder, e))
        return -1;
    return read_post_processor(m, json_object_get(t, "post_processor"), e) || read_vocab(m, n_vocab, e) ||
                   read_merges(m, json_object_get(model, "merges"), e)
               ? -1
               : 0;
}

/* ---- the ids of special tokens, from all four files ---- */

static int32_t id_of_text(const struct tok_import *m, const char *text)
{
    const json_t *v = json_object_get(m->vocab, text);
    if (v) return (int32_t)json_integer_value(v);
    for (size_t i = 0; i < json_array_size(m->added); i++) {
        const json_t *a = json_array_get(m->added, i);
        if (!strcmp(json_string_value(json_object_get(a, "content")), text))
            return (int32_t)json_integer_value(json_object_get(a, "id"));
    }
    return -1;
}

/* tokenizer_config.json's token of that name: its text, or an object with the text as content. *id stays if
 * absent. */
static int named_token(const struct tok_import *m, const char *key, int32_t *id, struct err *e)
{
    const json_t *v = json_object_get(m->j[TOK_HF_TOKENIZER_CONFIG], key);
    char buf[96];
    if (json_is_object(v)) v = json_object_get(v, "content");
    if (tok_hf_null(v)) return 0;
    const char *text = json_string_value(v);
    if (!text)
        return err_set(e, ERR_FORMAT, "tokenizer_config.json: %s: expected a string, got %s", key,
                       json_show(v, buf, sizeof buf));
    *id = id_of_text(m, text);
    return *id < 0 ? err_set(e, ERR_FORMAT, "tokenizer_config.json: %s: '%.60s' is not in tokenizer.json",
                             key, text)
                   : 0;
}

/* The ids under key (a number or a list) of file; -1 stands for none. Returns
 * their count, or -1 with e set. */
static int listed_ids(const struct tok_import *m, int file, const char *key, int32_t *ids, struct err *e)
{
    const json_t *v = json_object_get(m->j[file], key);
    if (tok_hf_null(v)) v = json_object_get(json_object_get(m->j[file], "text_config"), key);
    if (tok_hf_null(v)) return 0;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (n > TOK_MAX_STOP)
        return err_set(e, ERR_FORMAT, "%s: %s: %zu ids (expected at most %d)", tok_hf_names[file], key, n,
                       TOK_MAX_STOP);
    int k = 0;
    char buf[96];
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(v) ? json_array_get(v, i) : v;
        int64_t x = json_integer_value(id);
        if (json_is_integer(id) && x == -1) continue;
        if (!json_is_integer(id) || x < 0 || x >= m->spec.n_vocab)
            return err_set(e, ERR_FORMAT, "%s: %s: expected an id from 0 to %lld, got %s", tok_hf_names[file],
                           key, (long long)m->spec.n_vocab - 1, json_show(id, buf, sizeof buf));
        ids[k++] = (int32_t)x;
    }
    return k;
}

/* One special id: tokenizer_config.json's token, else generation_config.json's id, else config.json's. */
static int find_id(const struct tok_import *m, const char *token, const char *key, int32_t *id, struct err *e)
{
    int32_t ids[TOK_MAX_STOP];
    *id = -1;
    if (named_token(m, token, id, e)) return -1;
    for (int file = TOK_HF_GENERATION_CONFIG; file <= TOK_HF_CONFIG && *id < 0; file++) {
        int n = listed_ids(m, file, key, ids, e);
        if (n < 0) return -1;
        if (n > 0) *id = ids[0];
    }
    return 0;
}

/* Stop ids: generation_config.json's list, else config.json's (which is what transformers takes where there
 * is no generation_config.json). The end-of-turn token is one of them that is named so. */
static int find_stops(struct tok_import *m, struct err *e)
{
    static const char *const turn[] = {"<|im_end|>", "<|eot_id|>", "<|end_of_turn|>", "<end_of_turn>",
                                       "<turn|>"};
    m->eot = -1;
    for (int file = TOK_HF_GENERATION_CONFIG; file <= TOK_HF_CONFIG && !m->n_stop; file++) {
        int n = listed_ids(m, file, "eos_token_id", m->stop, e);
        if (n < 0) return -1;
        m->n_stop = (size_t)n;
    }
    for (size_t k = 0; k < sizeof turn / sizeof *turn && m->eot < 0; k++) {
        int32_t id = id_of_text(m, turn[k]);
        for (size_t i = 0; i < m->n_stop && id >= 0; i++)
            if (m->stop[i] == id && id != m->eos) m->eot = id;
    }
    return 0;
}

/* What tokenizer_config.json adds to tokenizer.json when transformers loads both. */
static int check_config(const struct tok_import *m, struct err *e)
{
    static const char *const off[] = {"add_prefix_space", "split_special_tokens", "add_eos_token"};
    const json_t *c = m->j[TOK_HF_TOKENIZER_CONFIG];
    for (size_t i = m->spec.space_prefix ? 1 : 0; i < sizeof off / sizeof *off; i++)
        if (json_is_true(json_object_get(c, off[i])))
            return err_set(e, ERR_FORMAT, "tokenizer_config.json: %s: true is not supported", off[i]);
    const char *key;
    json_t *v;
    json_object_foreach(json_object_get(c, "added_tokens_decoder"), key, v)
    {
        const char *text = json_string_value(json_object_get(v, "content"));
        char id[16];
        snprintf(id, sizeof id, "%d", text ? id_of_text(m, text) : -1);
        if (strcmp(id, key))
            return err_set(e, ERR_FORMAT,
                           "tokenizer_config.json: added_tokens_decoder: token %.20s '%.60s' is not so in "
                           "tokenizer.json",
                           key, text ? text : "");
    }
    return 0;
}

static int find_bos(struct tok_import *m, struct err *e)
{
    const json_t *add = json_object_get(m->j[TOK_HF_TOKENIZER_CONFIG], "add_bos_token");
    if (find_id(m, "bos_token", "bos_token_id", &m->spec.bos, e)) return -1;
    m->spec.add_bos = m->template_bos >= 0;
    /* As everywhere in the ecosystem, a text of Gemma 4 begins with the bos token: some of its files say so
     * only in the program that loads them. */
    if (m->spec.kind == TOK_GEMMA && !m->spec.add_bos) {
        m->spec.add_bos = m->spec.bos >= 0;
        return 0;
    }
    if (json_is_boolean(add) && json_is_true(add) != m->spec.add_bos)
        return err_set(e, ERR_FORMAT,
                       "tokenizer_config.json: add_bos_token is %s, but post_processor of tokenizer.json %s",
                       json_is_true(add) ? "true" : "false", m->spec.add_bos ? "adds a token" : "adds none");
    if (!m->spec.add_bos) return 0;
    if (m->template_bos >= m->spec.n_vocab || (m->spec.bos >= 0 && m->spec.bos != m->template_bos))
        return err_set(e, ERR_FORMAT,
                       "tokenizer.json: post_processor adds token %d (expected the bos token, %d)",
                       m->template_bos, m->spec.bos);
    m->spec.bos = m->template_bos;
    return 0;
}

static int put_id(struct gguf_writer *w, const char *key, int32_t id, struct err *e)
{
    return id < 0 ? 0 : gguf_put_u32(w, key, (uint32_t)id, e);
}

static int put_str(struct gguf_writer *w, const char *key, const char *s, struct err *e)
{
    return gguf_put_str(w, key, s, strlen(s), e);
}

/* The chat template: chat_template.jinja where there is one, else tokenizer_config.json's. Of a list of named
 * templates the one named default is meant where none is asked for. */
static int put_chat(const struct tok_import *m, const struct tok_hf *f, struct gguf_writer *w, struct err *e)
{
    static const char key[] = "tokenizer.chat_template";
    char buf[96];
    if (f->chat) return gguf_put_str(w, key, f->chat, f->chat_size, e);
    const json_t *v = json_object_get(m->j[TOK_HF_TOKENIZER_CONFIG], "chat_template");
    for (size_t i = 0; json_is_array(v) && i < json_array_size(v); i++) {
        const json_t *one = json_array_get(v, i);
        const char *name = json_string_value(json_object_get(one, "name"));
        if (name && !strcmp(name, "default")) v = json_object_get(one, "template");
    }
    if (tok_hf_null(v) || json_is_array(v)) return 0;
    if (!json_is_string(v))
        return err_set(
            e, ERR_FORMAT,
            "tokenizer_config.json: chat_template: expected a string, or a list of templates, got %s",
            json_show(v, buf, sizeof buf));
    return gguf_put_str(w, key, json_string_value(v), json_string_length(v), e);
}

static int put_keys(const struct tok_import *m, const struct tokenizer *t, struct gguf_writer *w,
                    struct err *e)
{
    const struct tok_spec *s = &m->spec;
    if (m->spm ? tok_hf_spm_keys(m, t, w, e)
               : put_str(w, "tokenizer.ggml.model", "gpt2", e) ||
                     put_str(w, "tokenizer.ggml.pre", s->pre->name, e))
        return -1;
    if (gguf_put_strings(w, "tokenizer.ggml.tokens", s->token, (uint64_t)s->n_vocab, e) ||
        gguf_put_array(w, "tokenizer.ggml.token_type", GGUF_I32, s->type, (uint64_t)s->n_vocab, e) ||
        gguf_put_strings(w, s->merge_key, s->merge, s->n_merges, e) ||
        put_id(w, "tokenizer.ggml.bos_token_id", s->bos, e) ||
        put_id(w, "tokenizer.ggml.eos_token_id", m->eos, e) ||
        put_id(w, "tokenizer.ggml.eot_token_id", m->eot, e) ||
        put_id(w, "tokenizer.ggml.padding_token_id", m->pad, e) ||
        gguf_put_bool(w, "tokenizer.ggml.add_bos_token", s->add_bos, e) ||
        (!m->spm && put_str(w, "tokenizer.ggml.normalizer", s->nfc ? "nfc" : "none", e)))
        return -1;
    if (!m->spm && s->ignore_merges != s->pre->ignore_merges &&
        gguf_put_bool(w, "tokenizer.ggml.ignore_merges", s->ignore_merges, e))
        return -1;
    return m->n_stop ? gguf_put_array(w, "tokenizer.ggml.stop_token_ids", GGUF_I32, m->stop, m->n_stop, e)
                     : 0;
}

int tok_import_texts(struct gguf_writer *w, const struct tok_hf *f, int64_t n_vocab, struct err *e)
{
    struct tok_import m = {.template_bos = -1};
    struct tokenizer *t = NULL;
    int rc = -1;
    m.arena = arena_new();
    if (!m.arena) {
        err_set(e, ERR_IO, "out of memory (tokenizer)");
        goto done;
    }
    for (int i = 0; i < 4; i++)
        if (f->text[i] && json_parse(&m.j[i], f->text[i], f->size[i], tok_hf_names[i], e)) goto done;
    m.spec.name = tok_hf_names[TOK_HF_TOKENIZER];
    m.spec.merge_key = "tokenizer.ggml.merges";
    if (read_tokenizer(&m, n_vocab, e) || check_config(&m, e) || find_bos(&m, e) ||
        find_id(&m, "eos_token", "eos_token_id", &m.eos, e) ||
        find_id(&m, "pad_token", "pad_token_id", &m.pad, e) || find_stops(&m, e) ||
        tok_build(&t, &m.spec, e) || put_keys(&m, t, w, e) || put_chat(&m, f, w, e))
        goto done;
    rc = 0;
done:
    tok_close(t);
    for (int i = 0; i < 4; i++) json_decref(m.j[i]);
    arena_free(m.arena);
    return rc;
}

/* A file of dir, or *data NULL where there is none. */
static int read_file(const char *dir, const char *name, uint8_t **data, uint64_t *size, struct err *e)
{
    char path[4096];
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return err_set(e, ERR_IO, "%s: the path is too long", dir);
    int there = io_exists(path, e);
    if (there < 1) return there;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return err_errno(e, "%s: cannot open", path);
    int rc = io_read_all(fd, path, MAX_FILE, data, size, e);
    close(fd);
    return rc;
}

int tok_import(struct gguf_writer *w, const char *dir, int64_t n_vocab, bool *found, struct err *e)
{
    struct tok_hf f = {0};
    uint8_t *data[5] = {0};
    int rc = 0;
    for (int i = 0; i < 5 && rc == 0; i++) {
        uint64_t size = 0;
        rc = read_file(dir, i < 4 ? tok_hf_names[i] : "chat_template.jinja", &data[i], &size, e);
        *(i < 4 ? &f.text[i] : &f.chat) = (const char *)data[i];
        *(i < 4 ? &f.size[i] : &f.chat_size) = size;
    }
    *found = rc == 0 && data[TOK_HF_TOKENIZER] != NULL;
    if (*found && (rc = tok_import_texts(w, &f, n_vocab, e)) != 0) err_prefix(e, "%s", dir);
    for (int i = 0; i < 5; i++) mem_free(data[i]);
    return rc;
}
