/* test_tokenizer_files.c - where vocabularies come from: GGUF keys and tokenizer.json, what is refused and
 * how it is named, and running out of memory on the way. */
#include "tok_fixture.h"
#include <fcntl.h>
#include <sys/stat.h>

/* ---- GGUF ---- */

#define N_TOKENS 262

/* 256 bytes, "ab", "abc", a control token, a user-defined one, an unused one, and one that is no byte-level
 * text. */
static struct gguf_writer *tiny(void)
{
    static char text[256][4];
    static struct gguf_str token[N_TOKENS];
    static int32_t type[N_TOKENS];
    static const char *const rest[] = {"ab", "abc", "<|end|>", "<tool>", "[PAD260]", "a b"};
    static const int32_t types[] = {1, 1, 3, 4, 5, 1};
    static const struct gguf_str merges[] = {{"a b", 3}, {"ab c", 4}};
    struct err e = {0};
    struct gguf_writer *w;
    int gap = 0;
    for (int b = 0; b < 256; b++) {
        bool own = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad);
        int c = own ? b : 0x100 + gap++;
        if (c < 0x80)
            snprintf(text[b], 4, "%c", c);
        else
            snprintf(text[b], 4, "%c%c", 0xc0 | c >> 6, 0x80 | (c & 0x3f));
        token[b] = (struct gguf_str){text[b], strlen(text[b])};
        type[b] = 1;
    }
    for (int i = 0; i < 6; i++) {
        token[256 + i] = (struct gguf_str){rest[i], strlen(rest[i])};
        type[256 + i] = types[i];
    }
    must(gguf_writer_new(&w, &e), &e);
    must(gguf_put_str(w, "tokenizer.ggml.model", "gpt2", 4, &e), &e);
    must(gguf_put_str(w, "tokenizer.ggml.pre", "qwen2", 5, &e), &e);
    must(gguf_put_strings(w, "tokenizer.ggml.tokens", token, N_TOKENS, &e), &e);
    must(gguf_put_array(w, "tokenizer.ggml.token_type", GGUF_I32, type, N_TOKENS, &e), &e);
    must(gguf_put_strings(w, "tokenizer.ggml.merges", merges, 2, &e), &e);
    must(gguf_put_u32(w, "tokenizer.ggml.bos_token_id", 258, &e), &e);
    return w;
}

/* The value of a key as the test wants it: s a string or the elements of an array, i a number. */
struct change {
    const char *key;
    enum { REMOVE, STR, U32, I32, BOOL, STRS, TYPES } how;
    const char *s[4];
    int64_t i;
    const char *message; /* NULL: opens */
};

static void apply(struct gguf_writer *w, const struct change *c)
{
    struct err e = {0};
    struct gguf_str v[4];
    int32_t type[N_TOKENS + 1];
    int n = 0;
    while (n < 4 && c->s[n]) {
        v[n] = (struct gguf_str){c->s[n], strlen(c->s[n])};
        n++;
    }
    switch (c->how) {
    case REMOVE: gguf_remove(w, c->key); break;
    case STR: must(gguf_put_str(w, c->key, v[0].s, v[0].n, &e), &e); break;
    case U32: must(gguf_put_u32(w, c->key, (uint32_t)c->i, &e), &e); break;
    case I32: must(gguf_put_i32(w, c->key, (int32_t)c->i, &e), &e); break;
    case BOOL: must(gguf_put_bool(w, c->key, c->i, &e), &e); break;
    case STRS: must(gguf_put_strings(w, c->key, v, (uint64_t)n, &e), &e); break;
    case TYPES: /* all normal but the last, which is i; one too many where i is 0 */
        for (int k = 0; k <= N_TOKENS; k++) type[k] = 1;
        type[N_TOKENS - 1] = (int32_t)c->i;
        must(gguf_put_array(w, c->key, GGUF_I32, type, N_TOKENS + (c->i == 0), &e), &e);
        break;
    }
}

#define K "tokenizer.ggml."
static const struct change changes[] = {
    {K "model", REMOVE, {0}, 0, "no tokenizer: the key tokenizer.ggml.model is missing"},
    {K "model", STR, {"bert"}, 0, K "model: 'bert' is not supported (expected 'gpt2'"},
    {K "model", STR, {"no_vocab"}, 0, "no tokenizer: the key tokenizer.ggml.tokens is missing"},
    {K "model", U32, {0}, 1, K "model"},
    {K "pre", REMOVE, {0}, 0, K "pre is missing"},
    {K "pre", STR, {"default"}, 0, K "pre: 'default' is not known (expected 'gpt-2'"},
    {K "tokens", REMOVE, {0}, 0, K "tokens is missing"},
    {K "tokens", STRS, {"a", "b"}, 0, K "token_type: 262 elements (expected 2"},
    {K "tokens", STRS, {0}, 0, K "tokens"},
    {K "tokens", U32, {0}, 1, K "tokens: expected an array of strings, got u32"},
    {K "token_type", REMOVE, {0}, 0, K "token_type is missing"},
    {K "token_type", STRS, {"a"}, 0, K "token_type: expected an array of integers, got an array of string"},
    {K "token_type", TYPES, {0}, 0, K "token_type: 263 elements (expected 262, one a token)"},
    {K "token_type", TYPES, {0}, 6, K "token_type: token 261 'a b' has type 6 (expected 1 to 5)"},
    {K "token_type", TYPES, {0}, -3, "has type -1 (expected 1 to 5)"},
    {K "merges", REMOVE, {0}, 0, K "merges is missing"},
    {K "merges", STRS, {"a b", "a b"}, 0, "merge 1 'a b' repeats an earlier one"},
    {K "merges", STRS, {"a b", "b a"}, 0, "merge 1 'b a': no token for the result"},
    {K "merges", STRS, {"ax b"}, 0, "merge 0 'ax b': no token 'ax'"},
    {K "merges", STRS, {"\x1b[31m b"}, 0, "merge 0 '?[31m b': no token '?[31m'"}, /* not to a terminal */
    {K "merges", STRS, {"ab"}, 0, "merge 0 'ab' (expected two tokens and one space)"},
    {K "merges", STRS, {"a b c"}, 0, "merge 0 'a b c' (expected two tokens and one space)"},
    {K "merges", STRS, {" b"}, 0, "(expected two tokens and one space)"},
    {K "merges", STRS, {""}, 0, "(expected two tokens and one space)"},
    {K "bos_token_id", U32, {0}, 262, K "bos_token_id: 262 (expected 0 to 261"},
    {K "bos_token_id", I32, {0}, -1, K "bos_token_id"},
    {K "eos_token_id", U32, {0}, 99999, K "eos_token_id: 99999 (expected 0 to 261"},
    {K "mask_token_id", U32, {0}, 262, K "mask_token_id: 262"},
    {K "padding_token_id", STR, {"x"}, 0, K "padding_token_id"},
    {K "normalizer", STR, {"nfkc"}, 0, K "normalizer: 'nfkc' is not known (expected 'nfc' or 'none')"},
    {K "add_space_prefix", BOOL, {0}, 1, K "add_space_prefix: true is not supported"},
    {K "add_eos_token", BOOL, {0}, 1, K "add_eos_token: true is not supported"},
    {K "add_bos_token", STR, {"yes"}, 0, K "add_bos_token"},
    {K "add_eos_token", BOOL, {0}, 0, NULL},
    {K "normalizer", STR, {"none"}, 0, NULL},
    {K "bos_token_id", I32, {0}, 258, NULL},
    {K "merges", STRS, {0}, 0, NULL},
    {K "bos_token_id", REMOVE, {0}, 0, NULL},
};

static void test_open_refuses(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        struct gguf_writer *w = tiny();
        apply(w, &changes[i]);
        struct gguf *g = through_file(w);
        struct tokenizer *t = (void *)1;
        struct err e = {0};
        int rc = tok_open(&t, g, &e);
        if (!changes[i].message) {
            must(rc, &e);
            tok_close(t);
        } else {
            assert_int_equal(rc, -1);
            assert_null(t);
            assert_int_equal(e.code, ERR_FORMAT);
            if (!strstr(e.msg, changes[i].message))
                fail_msg("change %zu of %s: got '%s'", i, changes[i].key, e.msg);
            assert_non_null(strstr(e.msg, ".gguf")); /* the file is named */
        }
        gguf_close(g);
    }
}

static void test_open_needs_bytes(void **state)
{
    (void)state;
    static const struct gguf_str token[] = {{"a", 1}, {"b", 1}, {"a", 1}};
    static const int32_t type[] = {1, 1, 1};
    struct tok_spec s = {
        .name = "x", .pre = tok_pre_by_regex(NULL), .bos = -1, .token = token, .type = type, .n_vocab = 2};
    struct tokenizer *t;
    struct err e = {0};
    assert_int_equal(tok_build(&t, &s, &e), -1);
    assert_non_null(strstr(e.msg, "no token for the byte 0x00 (expected all 256)"));
    s.n_vocab = 3;
    e = (struct err){0};
    assert_int_equal(tok_build(&t, &s, &e), -1);
    assert_non_null(strstr(e.msg, "'a' is both token 0 and token 2"));
    s.add_bos = true;
    e = (struct err){0};
    assert_int_equal(tok_build(&t, &s, &e), -1);
    assert_non_null(strstr(e.msg, "bos_token_id is missing"));
}

/* A special token of as many bytes as there may be, and of one more. */
static void test_long_special(void **state)
{
    (void)state;
    size_t n;
    char *json = read_data("tok_qwen2.json", &n);
    for (int more = 0; more < 2; more++) {
        struct gguf_writer *w;
        struct tokenizer *t = NULL;
        struct err e = {0};
        char name[1026];
        memset(name, 'a', sizeof name);
        name[1024 + more] = 0;
        char *changed = with(json, "\xe6\x97\xa5\xe6\x9c\xac<x>", name);
        const char *const text[4] = {changed};
        int rc = import(&w, text, 700, &e);
        struct gguf *g = NULL;
        if (rc)
            gguf_writer_free(w);
        else
            rc = tok_open(&t, g = through_file(w), &e);
        assert_int_equal(rc, more ? -1 : 0);
        if (more) {
            assert_int_equal(e.code, ERR_FORMAT);
            assert_non_null(strstr(e.msg, "special token 626 has 1025 bytes (expected at most 1024)"));
        }
        tok_close(t);
        gguf_close(g);
        free(changed);
    }
    free(json);
}

/* Where the keys are absent: what the ecosystem means by that. */
static void test_open_defaults(void **state)
{
    (void)state;
    static const struct {
        const char *pre;
        bool nfc, ignore_merges, add_bos;
    } cases[] = {{"gpt-2", false, false, false},
                 {"qwen2", true, false, false},
                 {"qwen35", true, false, false},
                 {"llama-bpe", false, true, true}};
    for (size_t i = 0; i < 4; i++) {
        struct gguf_writer *w = tiny();
        must(gguf_put_str(w, K "pre", cases[i].pre, strlen(cases[i].pre), NULL), &(struct err){0});
        struct gguf *g = through_file(w);
        struct tokenizer *t;
        struct err e = {0};
        must(tok_open(&t, g, &e), &e);
        assert_int_equal(t->nfc, cases[i].nfc);
        assert_int_equal(t->ignore_merges, cases[i].ignore_merges);
        assert_int_equal(tok_add_bos(t), cases[i].add_bos);
        tok_close(t);
        gguf_close(g);
    }
}

static void test_copy(void **state)
{
    (void)state;
    struct err e = {0};
    bool found;
    struct gguf_writer *w = tiny(), *copy;
    must(gguf_put_u32(w, "general.alignment", 32, &e), &e);
    struct gguf *g = through_file(w);
    must(gguf_writer_new(&copy, &e), &e);
    must(tok_copy(copy, g, &found, &e), &e);
    assert_true(found);
    struct gguf *h = through_file(copy);
    assert_int_equal(h->n_kv, 6);
    for (uint64_t i = 0; i < h->n_kv; i++) {
        const struct gguf_kv *a = &h->kv[i], *b = gguf_find(g, a->key);
        assert_non_null(b);
        assert_int_equal(a->bytes, b->bytes);
        assert_memory_equal(a->data, b->data, a->bytes);
    }
    gguf_close(h);
    gguf_close(g);
    must(gguf_writer_new(&copy, &e), &e);
    must(gguf_put_u32(copy, "general.alignment", 32, &e), &e);
    g = through_file(copy);
    must(gguf_writer_new(&copy, &e), &e);
    must(tok_copy(copy, g, &found, &e), &e);
    assert_false(found);
    gguf_writer_free(copy);
    gguf_close(g);
}

/* ---- tokenizer.json ---- */

static const struct {
    const char *old, *new, *message; /* NULL: accepted */
} bad_imports[] = {
    {"\"truncation\":null", "\"truncation\":{\"max_length\":5}",
     "truncation: {\"max_length\":5} is not supported"},
    {"\"padding\":null", "\"padding\":{}", "padding: {}"},
    {"\"padding\":null", "\"padding\":null,\"extra\":1", "extra is not known"},
    {"{\"type\":\"NFC\"}", "{\"type\":\"NFKC\"}",
     "normalizer: {\"type\":\"NFKC\"} is not supported (expected NFC or null)"},
    {"{\"type\":\"NFC\"}",
     "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Lowercase\"}]}", "Lowercase"},
    {"{\"type\":\"NFC\"}", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]}", NULL},
    {"{\"type\":\"NFC\"}", "null", NULL},
    {"\\\\p{N}|", "\\\\p{N}+|", "pre_tokenizer: "},
    {"\"behavior\":\"Isolated\"", "\"behavior\":\"Removed\"", "behavior Isolated"},
    {"\"invert\":false", "\"invert\":true", "pre_tokenizer.Split.invert: true"},
    {"\"add_prefix_space\":false", "\"add_prefix_space\":true", "add_prefix_space false"},
    {"\"use_regex\":false", "\"use_regex\":true", "pre_tokenizer: "},
    {"\"post_processor\":null", "\"post_processor\":{\"type\":\"BertProcessing\"}", "post_processor: "},
    {"\"post_processor\":null",
     "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"A\"}},{"
     "\"SpecialToken\":{"
     "\"id\":\"<|im_end|>\"}}],\"special_tokens\":{}}",
     "at most one special token before the text"},
    {"\"post_processor\":null", "\"post_processor\":{\"type\":\"ByteLevel\"}", NULL},
    {"\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"Metaspace\"", "decoder: "},
    {"\"type\":\"BPE\"", "\"type\":\"WordPiece\"", "model.type: \"WordPiece\""},
    {"\"dropout\":null", "\"dropout\":0.1", "model.dropout: 0.1"},
    {"\"dropout\":null", "\"dropout\":0.0", NULL},
    {"\"byte_fallback\":false", "\"byte_fallback\":true",
     "normalizer: {\"type\":\"NFC\"} is not supported (expected with byte_fallback"},
    {"\"continuing_subword_prefix\":null", "\"continuing_subword_prefix\":\"##\"",
     "model.continuing_subword_prefix: \"##\""},
    {"\"end_of_word_suffix\":null", "\"end_of_word_suffix\":\"</w>\"", "model.end_of_word_suffix: \"</w>\""},
    {"\"end_of_word_suffix\":null", "\"end_of_word_suffix\":\"\"", NULL},
    {"\"ignore_merges\":false", "\"ignore_merges\":3", "model.ignore_merges: 3"},
    {"\"ignore_merges\":false", "\"ignore_merges\":true", NULL},
    {"\"unk_token\":null", "\"unk_token\":\"<unk>\"", NULL}, /* every byte has a token: it never occurs */
    {"\"fuse_unk\":false", "\"fuse_unk\":false,\"new_option\":1", "model.new_option is not known"},
    {"\"lstrip\":false", "\"lstrip\":true", "added_tokens[0].lstrip: true"},
    {"\"rstrip\":false", "\"rstrip\":true", "added_tokens[0].rstrip: true"},
    {"\"single_word\":false", "\"single_word\":true", "added_tokens[0].single_word: true"},
    {"\"normalized\":false", "\"normalized\":true", "added_tokens[0].normalized: true"},
    {"{\"id\":620,", "{\"id\":619,", "added_tokens: "},
    {"{\"id\":620,", "{\"id\":-1,", "added_tokens: -1"},
    {"{\"id\":620,", "{\"id\":700,", "token id 700 lies outside the model's vocabulary (expected 0 to 699)"},
    {"{\"id\":620,", "{", "added_tokens[0] has no id"},
    {"\"content\":\"<|endoftext|>\"", "\"content\":\"\"", "a token with content"},
    {"\"!\":0,", "\"!\":0.5,", "model.vocab: 0.5"},
    {"\"!\":0,", "\"!\":1,", "are both token 1"},
    {"\"!\":0,", "\"!!\":0,", "no token for the byte 0x21"},
    {"\"!\":0,", "\"!\":0,\"!\":2,", "bad JSON"},
    {"\"merges\":[", "\"merges\":[[\"a\"],", "model.merges[0]: [\"a\"]"},
    {"\"merges\":[", "\"merges\":[[\"a b\",\"c\"],", "(expected two tokens and one space)"},
    {"\"merges\":[", "\"merges\":[\"zz qq\",", "no token 'zz'"},
    {"\"merges\":[", "\"mergers\":[", "model.mergers is not known"},
    {"\"vocab\":{", "\"vocab\":null,\"x\":{", "model.x is not known"},
};

static void test_import_refuses(void **state)
{
    (void)state;
    size_t n;
    char *json = read_data("tok_qwen2.json", &n);
    for (size_t i = 0; i < sizeof bad_imports / sizeof *bad_imports; i++) {
        char *changed = with(json, bad_imports[i].old, bad_imports[i].new);
        check_import(i, bad_imports[i].new, (const char *const[4]){changed}, 700, bad_imports[i].message);
        free(changed);
    }
    free(json);
}

static void check_u32(const struct gguf *g, const char *key, int64_t want)
{
    uint32_t v = 0;
    struct err e = {0};
    int rc = gguf_get_u32(g, key, &v, &e);
    if (want < 0 ? rc != 1 : rc != 0 || v != want)
        fail_msg("%s: %d, %u (expected %lld)", key, rc, v, (long long)want);
}

/* ids: <|endoftext|> 620, <|im_start|> 621, <|im_end|> 622 */
static void test_import_ids(void **state)
{
    (void)state;
    static const struct {
        const char *tokenizer, *generation, *config;
        int bos, eos, eot, pad;
        int stop[3], n_stop;
    } cases[] = {
        {NULL, NULL, NULL, -1, -1, -1, -1, {0}, 0},
        {NULL,
         NULL,
         "{\"bos_token_id\":620,\"eos_token_id\":622,\"pad_token_id\":-1}",
         620,
         622,
         -1,
         -1,
         {622},
         1},
        {NULL, "{\"eos_token_id\":[620,622]}", "{\"eos_token_id\":621}", -1, 620, 622, -1, {620, 622}, 2},
        {"{\"eos_token\":\"<|im_end|>\",\"pad_token\":{\"content\":\"<|endoftext|>\"},\"bos_token\":null}",
         "{\"eos_token_id\":[622,620],\"bos_token_id\":621}",
         "{\"eos_token_id\":621}",
         621,
         622,
         -1,
         620,
         {622, 620},
         2},
        {NULL, "{}", "{\"text_config\":{\"eos_token_id\":[621,622]}}", -1, 621, 622, -1, {621, 622}, 2},
    };
    size_t n;
    char *json = read_data("tok_qwen2.json", &n);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gguf_writer *w;
        struct err e = {0};
        const char *const text[4] = {json, cases[i].tokenizer, cases[i].generation, cases[i].config};
        must(import(&w, text, 0, &e), &e);
        struct gguf *g = through_file(w);
        check_u32(g, K "bos_token_id", cases[i].bos);
        check_u32(g, K "eos_token_id", cases[i].eos);
        check_u32(g, K "eot_token_id", cases[i].eot);
        check_u32(g, K "padding_token_id", cases[i].pad);
        const struct gguf_kv *stop = gguf_find(g, K "stop_token_ids");
        assert_int_equal(stop ? stop->count : 0, cases[i].n_stop);
        for (int k = 0; k < cases[i].n_stop; k++) {
            assert_int_equal(stop->elem, GGUF_I32);
            assert_int_equal(gguf_array_i64(stop, (uint64_t)k), cases[i].stop[k]);
        }
        assert_int_equal(gguf_find(g, K "tokens")->count, 627); /* n_vocab 0: as many as there are */
        gguf_close(g);
    }
    free(json);
}

static void test_import_config_refuses(void **state)
{
    (void)state;
    static const struct {
        const char *fixture, *text[4], *message; /* text[0] unused */
    } cases[] = {
        {"tok_qwen2.json",
         {0, "{\"eos_token\":\"<eos>\"}"},
         "tokenizer_config.json: eos_token: '<eos>' is not in tokenizer.json"},
        {"tok_qwen2.json",
         {0, "{\"eos_token\":5}"},
         "tokenizer_config.json: eos_token: expected a string, got 5"},
        {"tok_qwen2.json",
         {0, "{\"add_bos_token\":true}"},
         "add_bos_token is true, but post_processor of tokenizer.json adds none"},
        {"tok_llama-bpe.json",
         {0, "{\"add_bos_token\":false}"},
         "add_bos_token is false, but post_processor of tokenizer.json adds a"},
        {"tok_llama-bpe.json", {0, "{\"bos_token\":\"<|im|\"}"}, "bos_token: '<|im|' is not in"},
        {"tok_llama-bpe.json",
         {0, "{\"bos_token\":\"<|im\"}"},
         "post_processor adds token 627 (expected the bos token, 623)"},
        {"tok_qwen2.json", {0, "{\"add_prefix_space\":true}"}, "add_prefix_space: true is not supported"},
        {"tok_qwen2.json",
         {0, "{\"added_tokens_decoder\":{\"620\":{\"content\":\"<new>\"}}}"},
         "token 620 '<new>' is not so"},
        {"tok_qwen2.json",
         {0, 0, "{\"eos_token_id\":700}"},
         "generation_config.json: eos_token_id: expected an id from 0 to 699, got 700"},
        {"tok_qwen2.json",
         {0, 0, 0, "{\"eos_token_id\":[1,2.5]}"},
         "config.json: eos_token_id: expected an id"},
        {"tok_qwen2.json", {0, 0, 0, "{\"eos_token_id\":true}"}, "config.json: eos_token_id: expected an id"},
        {"tok_qwen2.json", {0, 0, "{"}, "generation_config.json: bad JSON"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gguf_writer *w;
        struct err e = {0};
        size_t n;
        char *json = read_data(cases[i].fixture, &n);
        const char *const text[4] = {json, cases[i].text[1], cases[i].text[2], cases[i].text[3]};
        if (import(&w, text, 700, &e) != -1) fail_msg("case %zu was accepted", i);
        assert_int_equal(e.code, ERR_FORMAT);
        if (!strstr(e.msg, cases[i].message)) fail_msg("case %zu: got '%s'", i, e.msg);
        gguf_writer_free(w);
        free(json);
    }
}

/* The pair of ignore_merges and pre-tokenizer that no name of the ecosystem stands for is written as our own
 * key. */
static void test_import_ignore_merges(void **state)
{
    (void)state;
    size_t n;
    char *json = read_data("tok_llama-bpe.json", &n),
         *changed = with(json, "\"ignore_merges\":true", "\"ignore_merges\":false");
    for (int i = 0; i < 2; i++) {
        struct gguf_writer *w;
        struct tokenizer *t;
        struct err e = {0};
        bool v = true;
        must(import(&w, (const char *const[4]){i ? changed : json}, 0, &e), &e);
        struct gguf *g = through_file(w);
        assert_int_equal(gguf_get_bool(g, K "ignore_merges", &v, &e), i ? 0 : 1);
        must(tok_open(&t, g, &e), &e);
        assert_int_equal(t->ignore_merges, !i);
        tok_close(t);
        gguf_close(g);
    }
    free(json);
    free(changed);
}

static void put_file(const char *dir, const char *name, const char *text, size_t n)
{
    char path[600];
    struct io_out o = {0};
    struct err e = {0};
    snprintf(path, sizeof path, "%s/%s", dir, name);
    must(io_out_open(&o, path, true, NULL, 0, &e), &e);
    must(io_out_write(&o, text, n, &e), &e);
    must(io_out_commit(&o, &e), &e);
}

static void test_import_directory(void **state)
{
    (void)state;
    const char *tmp = getenv("TMPDIR");
    char dir[512], path[600];
    struct gguf_writer *w;
    struct err e = {0};
    bool found = true;
    size_t n;
    char *json = read_data("tok_qwen2.json", &n);
    snprintf(dir, sizeof dir, "%s/test_tokenizer_XXXXXX", tmp ? tmp : P_tmpdir);
    assert_non_null(mkdtemp(dir));
    must(gguf_writer_new(&w, &e), &e);
    put_file(dir, "config.json", "{\"eos_token_id\":622}", 20);
    must(tok_import(w, dir, 700, &found, &e), &e);
    assert_false(found); /* a model without a tokenizer is none of our business */
    put_file(dir, "tokenizer.json", json, n);
    must(tok_import(w, dir, 700, &found, &e), &e);
    assert_true(found);
    struct gguf *g = through_file(w);
    check_u32(g, K "eos_token_id", 622);
    gguf_close(g);
    put_file(dir, "tokenizer.json", json, n / 2);
    must(gguf_writer_new(&w, &e), &e);
    assert_int_equal(tok_import(w, dir, 700, &found, &e), -1);
    assert_int_equal(e.code, ERR_FORMAT);
    assert_non_null(strstr(e.msg, "tokenizer.json: bad JSON"));
    assert_memory_equal(e.msg, dir, strlen(dir));
    gguf_writer_free(w);
    snprintf(path, sizeof path, "%s/config.json", dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    unlink(path);
    rmdir(dir);
    free(json);
}

/* ---- memory ---- */

static int open_and_use(const struct gguf *g, struct err *e)
{
    static const char text[] = "abc e\xcc\x81\xcc\xa3 <|end|> "
                               "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx \xff";
    struct tokenizer *t = NULL;
    struct tok_encoder *x = NULL;
    struct tok_decoder *d = NULL;
    struct result r = {0}, b = {0};
    int rc = tok_open(&t, g, e) || tok_encoder_new(&x, t, true, true, e) ||
             tok_encode(x, text, sizeof text - 1, false, take_ids, &r, e) ||
             tok_encode(x, NULL, 0, true, take_ids, &r, e) || tok_decoder_new(&d, t, true, e) ||
             tok_decode(d, r.ids, r.n, true, take_bytes, &b, e);
    tok_decoder_free(d);
    tok_encoder_free(x);
    tok_close(t);
    free_result(&r);
    free_result(&b);
    return rc;
}

static void test_no_memory(void **state)
{
    (void)state;
    struct gguf *g = through_file(tiny());
    uint64_t nth = 1;
    for (;; nth++) {
        struct err e = {0};
        mem_fail_at(nth);
        int rc = open_and_use(g, &e);
        mem_fail_at(0);
        if (rc == 0) break;
        assert_int_equal(e.code, ERR_IO);
        assert_non_null(strstr(e.msg, "out of memory"));
    }
    assert_true(nth > 10);
    gguf_close(g);
}

static void test_import_no_memory(void **state)
{
    (void)state;
    size_t n;
    char *json = read_data("tok_qwen2.json", &n);
    uint64_t step = 1, nth = 1;
    for (;; nth += step) {
        struct gguf_writer *w;
        struct err e = {0}, ignored = {0};
        struct tok_hf f = {{json, NULL, "{\"eos_token_id\":[620,622]}", NULL}, {n, 0, 26, 0}, NULL, 0};
        must(gguf_writer_new(&w, &ignored), &ignored);
        mem_fail_at(nth);
        int rc = tok_import_texts(w, &f, 700, &e);
        mem_fail_at(0);
        gguf_writer_free(w);
        if (rc == 0) break;
        if (e.code != ERR_IO) fail_msg("allocation %llu: '%s'", (unsigned long long)nth, e.msg);
        if (nth > 50) step = 37; /* thousands of JSON values, all alike */
    }
    assert_true(nth > 1000);
    free(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_refuses),
        cmocka_unit_test(test_open_needs_bytes),
        cmocka_unit_test(test_long_special),
        cmocka_unit_test(test_open_defaults),
        cmocka_unit_test(test_copy),
        cmocka_unit_test(test_import_refuses),
        cmocka_unit_test(test_import_ids),
        cmocka_unit_test(test_import_config_refuses),
        cmocka_unit_test(test_import_ignore_merges),
        cmocka_unit_test(test_import_directory),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_import_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
