/* test_tokenizer_spm.c - SentencePiece-style vocabularies: against ids of the reference implementations
 * (test/data/make_tok.py), against merging by the book, cut everywhere, and where vocabularies come from. */
#include "tok_fixture.h"

#define SPACE "\xe2\x96\x81" /* U+2581 */

enum { GEMMA, LLAMA, SCORES, N_MODELS };
static const char *const names[N_MODELS] = {"gemma4", "llama-spm", "spm"};

static void open_model(struct model *m, int which)
{
    struct err e = {0};
    if (which != SCORES) {
        open_fixture(m, names[which]);
        return;
    }
    must(gguf_open(&m->g, TEST_DATA "/tok_spm.gguf", &e), &e);
    must(tok_open(&m->t, m->g, &e), &e);
}

static void check_ids(const struct tokenizer *t, const char *file, bool special)
{
    char name[64];
    size_t n_text, n_ids;
    struct result r = {0}, b = {0};
    snprintf(name, sizeof name, "tok_%s.i32", file);
    char *text = read_data("tok.txt", &n_text), *ids = read_data(name, &n_ids);
    encode_all(t, special, true, text, n_text, &r);
    assert_int_equal(r.n, n_ids / 4);
    for (size_t i = 0; i < r.n; i++)
        if (memcmp(&r.ids[i], ids + 4 * i, 4)) fail_msg("%s: id %zu is %d", name, i, r.ids[i]);
    decode_all(t, true, r.ids, r.n, &b);
    if (t->kind != TOK_SPM || !special) {
        /* without a special token in it the text comes back; llama-spm's
         * user-defined ones add a space each */
        size_t extra = strncmp(file, "llama", 5) ? 0 : b.n - n_text;
        assert_int_equal(b.n, n_text + extra);
        if (!extra) assert_memory_equal(b.bytes, text, n_text);
    }
    free_result(&r);
    free_result(&b);
    free(text);
    free(ids);
}

static void test_reference_ids(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        struct model m;
        char plain[64];
        open_model(&m, i);
        check_ids(m.t, names[i], i != SCORES);
        snprintf(plain, sizeof plain, "%s_plain", names[i]);
        if (i != SCORES) check_ids(m.t, plain, false);
        close_model(&m);
    }
}

static void test_getters(void **state)
{
    (void)state;
    struct model m;
    open_model(&m, GEMMA);
    assert_int_equal(tok_n_vocab(m.t), 1100);
    assert_true(tok_add_bos(m.t));
    assert_int_equal(tok_bos(m.t), 2);
    assert_true(tok_is_special(m.t, 4));
    assert_true(tok_is_special(m.t, 963));
    assert_false(tok_is_special(m.t, 7 + 65)); /* a byte */
    assert_false(m.t->space_prefix);
    close_model(&m);
    open_model(&m, SCORES);
    assert_true(m.t->space_prefix);
    assert_true(tok_add_bos(m.t));
    close_model(&m);
}

/* Characters, or the bytes of one that is no token. Returns how many. */
static size_t split_by_the_book(const struct tokenizer *t, const uint8_t *p, size_t n, int32_t *ids)
{
    size_t k = 0;
    for (size_t i = 0; i < n;) {
        size_t len = (size_t)tok_utf8(p + i, n - i);
        int32_t id = tok_find_piece(t, p + i, len);
        if (id >= 0) ids[k++] = id;
        for (size_t j = 0; id < 0 && j < len; j++) ids[k++] = t->byte_id[p[i + j]];
        i += len;
    }
    return k;
}

/* The whole text is one piece by the book; the encoder splits it where no merge reaches across, and holds
 * back the rest. The same ids, in one go and in small cuts. */
static void test_merging(void **state)
{
    (void)state;
    static const char *const pools[] = {"a",
                                        " ",
                                        "etaoin ",
                                        " se",
                                        "-=0\n",
                                        "self.arg name",
                                        "a\xc3\xa9\xe6\x97\xa5 \xf0\x9f\x98\x80"
                                        "e",
                                        "\t\n x"};
    for (int which = 0; which < N_MODELS; which++) {
        struct model m;
        struct tok_encoder *x;
        uint64_t seed = 3;
        open_model(&m, which);
        m.t->space_prefix = false;
        must(tok_encoder_new(&x, m.t, TOK_SPECIAL_ALL, true, NULL), &(struct err){0});
        for (int k = 0; k < 800; k++) {
            uint8_t p[400];
            int32_t want[400];
            const char *pool = pools[k % 8];
            size_t n = 0, max = 1 + rnd(&seed) % (k % 3 ? 70 : 390);
            while (n < max) {
                size_t at = rnd(&seed) % strlen(pool);
                while ((pool[at] & 0xc0) == 0x80) at--;
                int len = tok_utf8((const uint8_t *)pool + at, strlen(pool) - at);
                memcpy(p + n, pool + at, (size_t)len);
                n += (size_t)len;
            }
            size_t n_want = merge_by_the_book(m.t, want, split_by_the_book(m.t, p, n, want));
            struct result whole = {0}, cut = {0};
            encode(x, p, n, true, &whole);
            for (size_t i = 0; i < n;) {
                size_t c = 1 + rnd(&seed) % 9;
                c = c < n - i ? c : n - i;
                encode(x, p + i, c, i + c == n, &cut);
                i += c;
            }
            assert_int_equal(whole.n, n_want);
            assert_memory_equal(whole.ids, want, n_want * sizeof *want);
            assert_int_equal(cut.n, n_want);
            assert_memory_equal(cut.ids, want, n_want * sizeof *want);
            free_result(&whole);
            free_result(&cut);
        }
        tok_encoder_free(x);
        close_model(&m);
    }
}

static const char cutting[] =
    "It's  x   \n\n\n  y\r\n<|im<|im_start|><|im_star<think>\n\n<think>\n<think\n\n" SPACE SPACE SPACE
    "a" SPACE "\xe2\x96 \xe2\x96\x82 \xe6\x97\xa5\xe6\x9c\xac<x>\xe6\x97\xa5\xe6\x9c <\xff " SPACE
    "\xe2\x82\xe2\x82\xac\xf0\x9f"
    "\x98\xf0\x9f\x98\x80\xed\xa0\x80\xc0\x80    -----<bos> "
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\xe2\x96";

static void test_cuts(void **state)
{
    (void)state;
    const size_t n = sizeof cutting - 1;
    for (int which = 0; which < N_MODELS; which++) {
        for (int how = 0; how < 3; how++) {
            struct model m;
            struct tok_encoder *x;
            struct result want = {0};
            open_model(&m, which);
            must(tok_encoder_new(&x, m.t, (enum tok_special)how, true, NULL), &(struct err){0});
            encode(x, cutting, n, true, &want);
            for (size_t a = 0; a <= n; a++) {
                struct result r = {0};
                encode(x, cutting, a, false, &r);
                for (size_t i = a; i < n; i += 1 + a % 5)
                    encode(x, cutting + i, n - i < 1 + a % 5 ? n - i : 1 + a % 5, false, &r);
                encode(x, NULL, 0, true, &r);
                if (r.n != want.n || memcmp(r.ids, want.ids, r.n * sizeof *r.ids)) fail_msg("cut at %zu", a);
                free_result(&r);
            }
            free_result(&want);
            tok_encoder_free(x);
            close_model(&m);
        }
    }
}

/* Ids that nothing later can change leave before the text ends. */
static void test_streams(void **state)
{
    (void)state;
    struct model m;
    struct tok_encoder *x;
    struct result r = {0};
    open_model(&m, GEMMA);
    must(tok_encoder_new(&x, m.t, TOK_SPECIAL_ALL, true, NULL), &(struct err){0});
    encode(x, "return the value of", 19, false, &r);
    assert_true(r.n >= 3); /* no token of this vocabulary holds a letter and then a space */
    tok_encoder_free(x);
    free_result(&r);
    close_model(&m);
}

/* Without normalisation any bytes come back. With it the difference is U+2581, which is a space. */
static void test_any_bytes(void **state)
{
    (void)state;
    static const uint8_t edge[] = {0x00, 0x20, 0x41, 0x7f, 0x80, 0x81, 0x90, 0x96, 0x96, 0xa0, 0xbf, 0xc0,
                                   0xc2, 0xdf, 0xe0, 0xe2, 0xe2, 0xed, 0xef, 0xf0, 0xf1, 0xf4, 0xf5, 0xff};
    for (int which = 0; which < N_MODELS; which++) {
        struct model m;
        struct tok_encoder *x[2];
        uint64_t seed = 5;
        open_model(&m, which);
        for (int i = 0; i < 2; i++)
            must(tok_encoder_new(&x[i], m.t, TOK_SPECIAL_NOT, i, NULL), &(struct err){0});
        for (int k = 0; k < 15000; k++) {
            uint8_t p[16], want[16];
            size_t n = rnd(&seed) % 12;
            for (size_t i = 0; i < n; i++)
                p[i] = k & 1 ? edge[rnd(&seed) % sizeof edge] : (uint8_t)rnd(&seed);
            for (int i = 0; i < 2; i++) {
                struct result r = {0}, b = {0};
                memcpy(want, p, n);
                size_t n_want = i ? tok_spm_spaces((const char *)p, n, want) : n;
                encode(x[i], p, n, true, &r);
                decode_all(m.t, true, r.ids, r.n, &b);
                if (b.n != n_want || (n_want && memcmp(b.bytes, want, n_want)))
                    fail_msg("%s: bytes %02x %02x %02x..", names[which], p[0], p[1], p[2]);
                free_result(&r);
                free_result(&b);
            }
        }
        for (int i = 0; i < 2; i++) tok_encoder_free(x[i]);
        close_model(&m);
    }
}

static void check_text(const struct tokenizer *t, bool special, const char *in, const char *out)
{
    struct result r = {0}, b = {0};
    encode_all(t, special, true, in, strlen(in), &r);
    decode_all(t, true, r.ids, r.n, &b);
    if (b.n != strlen(out) || (b.n && memcmp(b.bytes, out, b.n)))
        fail_msg("'%s' gives '%.*s' (expected '%s')", in, (int)b.n, (char *)b.bytes, out);
    free_result(&r);
    free_result(&b);
}

/* The space prefix: before each text that follows a special token or begins the whole, and taken off once. */
static void test_space_prefix(void **state)
{
    (void)state;
    struct model m;
    struct result r = {0};
    open_model(&m, LLAMA);
    check_text(m.t, true, "", "");
    check_text(m.t, true, "a", "a");
    check_text(m.t, true, " a", " a");
    check_text(m.t, true, "<bos>a<eos>b<eos><eos>", "<bos>a<eos> b<eos><eos>");
    check_text(m.t, true, "a<think> b", "a<think>  b");
    check_text(m.t, true,
               "\xff"
               "a",
               "\xff"
               "a");
    check_text(m.t, true,
               "<eos>\xff"
               "a",
               "<eos>\xff"
               "a");
    check_text(m.t, false, "<bos>a", "<bos>a");
    encode_all(m.t, true, true, "", 0, &r);
    assert_int_equal(r.n, 0); /* nothing gets no prefix */
    free_result(&r);
    close_model(&m);
    open_model(&m, GEMMA);
    check_text(m.t, true, "<bos>a<eos>b", "<bos>a<eos>b");
    check_text(m.t, true, " a" SPACE "b", " a b");
    close_model(&m);
}

/* What is said in a chat: no control token, and no user-defined token that looks like one; and nothing
 * reaches across a change of what is found. */
static void test_chat_text(void **state)
{
    (void)state;
    static const char text[] = "<|im_start|>x<|channel>y<think><|im";
    static const int32_t marks[] = {4, 6, 963, 967}; /* <|im_start|>, <|im, <think>, <|channel> */
    static const size_t count[3][4] = {{0, 0, 1, 1}, {1, 1, 1, 1}, {0, 0, 1, 0}};
    struct model m;
    struct err e = {0};
    open_model(&m, GEMMA);
    for (int how = 0; how < 3; how++) {
        struct tok_encoder *x;
        struct result r = {0};
        must(tok_encoder_new(&x, m.t, (enum tok_special)how, true, &e), &e);
        encode(x, text, sizeof text - 1, true, &r);
        for (int k = 0; k < 4; k++) {
            size_t n = 0;
            for (size_t i = 0; i < r.n; i++) n += r.ids[i] == marks[k];
            assert_int_equal(n, count[how][k]);
        }
        tok_encoder_free(x);
        free_result(&r);
    }
    struct tok_encoder *x;
    struct result r = {0}, want = {0}, b = {0};
    must(tok_encoder_new(&x, m.t, TOK_SPECIAL_CHAT, true, &e), &e);
    encode(x, "<|im_sta<thi", 12, false, &r);
    must(tok_encoder_special(x, TOK_SPECIAL_ALL, take_ids, &r, &e), &e);
    encode(x, "rt|>nk><|im_start|>re", 21, false, &r);
    must(tok_encoder_special(x, TOK_SPECIAL_CHAT, take_ids, &r, &e), &e);
    encode(x, "turn", 4, true, &r);
    size_t n_marks = 0;
    for (size_t i = 0; i < r.n; i++) n_marks += r.ids[i] < 7 || r.ids[i] >= 963;
    assert_int_equal(n_marks, 1);
    encode(x, "return", 6, true, &want); /* ordinary text does merge across a change */
    assert_int_equal(want.ids[want.n - 1], r.ids[r.n - 1]);
    decode_all(m.t, true, r.ids, r.n, &b);
    assert_int_equal(b.n, 37);
    assert_memory_equal(b.bytes, "<|im_sta<thirt|>nk><|im_start|>return", 37);
    tok_encoder_free(x);
    free_result(&r);
    free_result(&want);
    free_result(&b);
    close_model(&m);
}

/* 400 kB without a place to split: quadratic work would take minutes here. */
static void test_long_runs(void **state)
{
    (void)state;
    static const char *const units[] = {"a", " ", "\n", "\xe5\xad\x97", "\xff", SPACE, "self."};
    const size_t size = 400000;
    char *p = malloc(size);
    assert_non_null(p);
    for (int which = 0; which < N_MODELS; which++) {
        struct model m;
        open_model(&m, which);
        for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
            struct result whole = {0}, cut = {0}, back = {0};
            struct tok_encoder *x;
            size_t k = strlen(units[u]), n = size / k * k;
            for (size_t i = 0; i < n; i++) p[i] = units[u][i % k];
            encode_all(m.t, false, true, p, n, &whole);
            must(tok_encoder_new(&x, m.t, TOK_SPECIAL_NOT, true, NULL), &(struct err){0});
            for (size_t i = 0; i < n; i += 97) encode(x, p + i, n - i < 97 ? n - i : 97, n - i <= 97, &cut);
            assert_int_equal(whole.n, cut.n);
            assert_memory_equal(whole.ids, cut.ids, cut.n * sizeof *cut.ids);
            decode_all(m.t, true, whole.ids, whole.n, &back);
            if (which != LLAMA) assert_int_equal(back.n, u == 5 ? n / 3 : n);
            tok_encoder_free(x);
            free_result(&whole);
            free_result(&cut);
            free_result(&back);
        }
        close_model(&m);
    }
    free(p);
}

/* Byte tokens: no write ends inside a character, wherever the ids were cut. */
static void test_decode_bytes(void **state)
{
    (void)state;
    static const char text[] =
        "a\xe2\x82\xac\xf0\x9f\x98\x80 \xe2\x82\xf0\x9f\xff\xf0\x9f\x98z\xc3\xa9\xe2\x82";
    struct model m;
    struct result ids = {0};
    open_model(&m, GEMMA);
    for (size_t i = 0; i < sizeof text - 1; i++) take_ids(&ids, &m.t->byte_id[(uint8_t)text[i]], 1, NULL);
    for (size_t cut = 0; cut <= ids.n; cut++) {
        struct tok_decoder *x;
        struct result b = {0};
        struct err e = {0};
        must(tok_decoder_new(&x, m.t, false, &e), &e);
        must(tok_decode(x, ids.ids, cut, false, take_bytes, &b, &e), &e);
        must(tok_decode(x, ids.ids + cut, ids.n - cut, false, take_bytes, &b, &e), &e);
        must(tok_decode(x, NULL, 0, true, take_bytes, &b, &e), &e);
        assert_int_equal(b.n, sizeof text - 1);
        assert_memory_equal(b.bytes, text, b.n);
        for (size_t i = 0; i < b.n;) {
            int len = tok_utf8(b.bytes + i, b.n - i);
            for (size_t k = 0; k < b.calls; k++)
                if (len > 1 && b.ends[k] > i && b.ends[k] < i + (size_t)len)
                    fail_msg("a write ended at %zu", b.ends[k]);
            i += len > 0 ? (size_t)len : 1;
        }
        tok_decoder_free(x);
        free_result(&b);
    }
    free_result(&ids);
    close_model(&m);
}

/* ---- GGUF ---- */

#define K "tokenizer.ggml."
#define N_TOKENS 264

/* 256 bytes, a control token, the characters of "ab" and a space, "ab", " a", "  " user-defined,
 * one unused. */
static struct gguf_writer *tiny(const char *model)
{
    static char text[256][8];
    static struct gguf_str token[N_TOKENS];
    static int32_t type[N_TOKENS];
    static float score[N_TOKENS];
    static const char *const rest[] = {"<s>", "a", "b", SPACE, "ab", SPACE "a", "  ", "[PAD263]"};
    static const int32_t types[] = {3, 1, 1, 1, 1, 1, 4, 5};
    static const float scores[] = {0, -3, -4, -5, -2, -1, 0, 0};
    static const struct gguf_str merges[] = {{SPACE " a", 5}, {"a b", 3}};
    struct err e = {0};
    struct gguf_writer *w;
    for (int i = 0; i < N_TOKENS; i++) {
        if (i < 256) snprintf(text[i], 8, "<0x%02X>", (unsigned)i);
        const char *s = i < 256 ? text[i] : rest[i - 256];
        token[i] = (struct gguf_str){s, strlen(s)};
        type[i] = i < 256 ? 6 : types[i - 256];
        score[i] = i < 256 ? 0 : scores[i - 256];
    }
    must(gguf_writer_new(&w, &e), &e);
    must(gguf_put_str(w, K "model", model, strlen(model), &e), &e);
    must(gguf_put_strings(w, K "tokens", token, N_TOKENS, &e), &e);
    must(gguf_put_array(w, K "token_type", GGUF_I32, type, N_TOKENS, &e), &e);
    must(gguf_put_array(w, K "scores", GGUF_F32, score, N_TOKENS, &e), &e);
    must(gguf_put_strings(w, K "merges", merges, 2, &e), &e);
    must(gguf_put_u32(w, K "bos_token_id", 256, &e), &e);
    return w;
}

/* One change to tiny, and the message. Tokens and types are changed one at a time. */
static const struct change {
    const char *model, *key;
    enum { REMOVE, STR, BOOL, MERGE, TOKEN, TYPE, SCORE, SHORT } how;
    int64_t at;
    const char *s;
    const char *message; /* NULL: opens */
} changes[] = {
    {"gemma4", K "add_space_prefix", BOOL, 0, NULL, NULL},
    {"gemma4", K "add_space_prefix", BOOL, 1, NULL, K "add_space_prefix: true is not supported"},
    {"gemma4", K "remove_extra_whitespaces", BOOL, 1, NULL,
     K "remove_extra_whitespaces: true is not supported"},
    {"gemma4", K "scores", REMOVE, 0, NULL, NULL},
    {"gemma4", K "merges", REMOVE, 0, NULL, K "merges is missing"},
    {"gemma4", K "merges", MERGE, 0, "a b a",
     K "merges: merge 0 'a b a' (expected two tokens and one space)"},
    {"gemma4", K "merges", MERGE, 0, "ab", "merge 0 'ab' (expected two tokens and one space)"},
    {"gemma4", K "merges", MERGE, 0, "", "(expected two tokens and one space)"},
    {"gemma4", K "merges", MERGE, 0, "a ", "(expected two tokens and one space)"},
    {"gemma4", K "merges", MERGE, 0, "a c", "merge 0 'a c': no token 'c'"},
    {"gemma4", K "merges", MERGE, 0, "b a", "merge 0 'b a': no token for the result"},
    {"gemma4", K "merges", MERGE, 0, "<0x41> b", "merge 0 '<0x41> b': no token '<0x41>'"},
    {"gemma4", K "merges", MERGE, 0, SPACE " " SPACE, NULL}, /* makes the user-defined two spaces */
    {"gemma4", K "tokens", TOKEN, 5, "<0x5>", "byte token 5 is '<0x5>' (expected '<0x00>' to '<0xFF>')"},
    {"gemma4", K "tokens", TOKEN, 5, "<0x06>", "'<0x06>' is both token 5 and token 6"},
    {"gemma4", K "tokens", TOKEN, 5, "<0x0G>", "byte token 5"},
    {"gemma4", K "token_type", TYPE, 5, NULL, "no byte token '<0x05>' (expected all 256, of type 6)"},
    {"gemma4", K "token_type", TYPE, 259, NULL, NULL},
    {"gemma4", K "tokens", TOKEN, 257, "ab", "'ab' is both token 257 and token 260"},
    {"gemma4", K "tokens", TOKEN, 260, "a b",
     "merge 1 'a b': no token for the result"}, /* a literal space: out of reach */
    {"llama", K "add_space_prefix", BOOL, 0, NULL, NULL},
    {"llama", K "scores", REMOVE, 0, NULL, "the key " K "scores is missing"},
    {"llama", K "scores", STR, 0, "x", K "scores: expected an array of f32, got str"},
    {"llama", K "scores", SHORT, 0, NULL, K "scores: 3 elements (expected 264, one a token)"},
    {"llama", K "scores", SCORE, 259, NULL, "the score of token 259 is not a number"},
    {"llama", K "merges", REMOVE, 0, NULL, NULL},
    {"llama", K "tokens", TOKEN, 260, "ac", "token 260 'ac' holds a character that is no token of its own"},
    {"llama", K "tokens", TOKEN, 260, "cd", "token 260 'cd' holds a character"},
    {"llama", K "tokens", TOKEN, 260, "cde", NULL}, /* nothing can make it */
    {"llama", K "spm_merges", MERGE, 0, "b a", K "spm_merges: merge 0 'b a': no token for the result"},
};

static void apply(struct gguf_writer *w, const struct change *c)
{
    struct err e = {0};
    struct gguf_str v = {c->s, c->s ? strlen(c->s) : 0};
    float f[N_TOKENS] = {0};
    struct gguf *g = through_file(tiny(c->model)); /* arrays to start from */
    const struct gguf_kv *tokens = gguf_find(g, K "tokens"), *types = gguf_find(g, K "token_type");
    struct gguf_str token[N_TOKENS];
    int32_t type[N_TOKENS];
    for (uint64_t i = 0; i < N_TOKENS; i++) {
        token[i] = tokens->strings[i];
        type[i] = (int32_t)gguf_array_i64(types, i);
    }
    const struct gguf_str merges[2] = {v, {"a b", 3}};
    switch (c->how) {
    case REMOVE: gguf_remove(w, c->key); break;
    case STR: must(gguf_put_str(w, c->key, v.s, v.n, &e), &e); break;
    case BOOL: must(gguf_put_bool(w, c->key, c->at, &e), &e); break;
    case MERGE: must(gguf_put_strings(w, c->key, merges, 2, &e), &e); break;
    case TOKEN:
        token[c->at] = v;
        must(gguf_put_strings(w, c->key, token, N_TOKENS, &e), &e);
        break;
    case TYPE:
        type[c->at] = TOK_NORMAL;
        must(gguf_put_array(w, c->key, GGUF_I32, type, N_TOKENS, &e), &e);
        break;
    case SCORE: f[c->at] = __builtin_nanf(""); /* fall through */
    case SHORT: must(gguf_put_array(w, c->key, GGUF_F32, f, c->how == SHORT ? 3 : N_TOKENS, &e), &e); break;
    }
    gguf_close(g);
}

static void test_open_refuses(void **state)
{
    (void)state;
    static char longest[2][1026];
    for (int i = 0; i < 2; i++) { /* cut everywhere up to 1024 bytes, refused beyond */
        struct change c = {"llama", K "tokens", TOKEN, 260, longest[i], NULL};
        struct gguf_writer *w = tiny(c.model);
        struct tokenizer *t;
        struct err e = {0};
        memset(longest[i], 'a', (size_t)1024 + (size_t)i);
        apply(w, &c);
        struct gguf *g = through_file(w);
        assert_int_equal(tok_open(&t, g, &e), -i);
        if (i)
            assert_non_null(strstr(e.msg, "token 260 is 1025 bytes long (expected at most 1024 by score)"));
        tok_close(t);
        gguf_close(g);
    }
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        struct gguf_writer *w = tiny(changes[i].model);
        apply(w, &changes[i]);
        struct gguf *g = through_file(w);
        struct tokenizer *t = (void *)1;
        struct err e = {0};
        int rc = tok_open(&t, g, &e);
        if (!changes[i].message) {
            must(rc, &e);
            tok_close(t);
        } else {
            if (rc != -1) fail_msg("change %zu was accepted", i);
            assert_null(t);
            assert_int_equal(e.code, ERR_FORMAT);
            if (!strstr(e.msg, changes[i].message)) fail_msg("change %zu: got '%s'", i, e.msg);
        }
        gguf_close(g);
    }
}

/* llama.cpp's converter declares Gemma 4's <|tool_response> user-defined, and its engine takes it for a
 * control token that ends a generation: plain text does not become it. */
static void test_tool_response(void **state)
{
    (void)state;
    static const char text[] = "a<|tool_response>b<|tool_response|>";
    struct change c = {"gemma4", K "tokens", TOKEN, 262, "<|tool_response>", NULL};
    for (int i = 0; i < 2; i++) {
        struct gguf_writer *w = tiny(c.model);
        struct tokenizer *t;
        struct err e = {0};
        apply(w, &c);
        struct gguf *g = through_file(w);
        must(tok_open(&t, g, &e), &e);
        for (int special = 0; special < 2; special++) {
            struct result r = {0};
            int seen = 0;
            encode_all(t, special, false, text, sizeof text - 1, &r);
            for (size_t k = 0; k < r.n; k++) seen += r.ids[k] == 262;
            assert_int_equal(seen, special || i);
            free_result(&r);
        }
        tok_close(t);
        gguf_close(g);
        c.s = "<|tool_response|>"; /* another user-defined token stays one */
    }
}

/* The better score first, not the earlier place: " ab" is " a" + "b" by score and by these merges; equal
 * scores go by place. */
static void test_scores(void **state)
{
    (void)state;
    struct err e = {0};
    struct model m;
    struct result r = {0};
    m.g = through_file(tiny("llama"));
    must(tok_open(&m.t, m.g, &e), &e);
    encode_all(m.t, false, true, "ab ab  b", 8, &r); /* " ab ab  b": user-defined two spaces, then a prefix */
    static const int32_t want[] = {261, 258, 261, 258, 262, 259, 258};
    assert_int_equal(r.n, sizeof want / sizeof *want);
    assert_memory_equal(r.ids, want, sizeof want);
    free_result(&r);
    close_model(&m);
}

/* ---- tokenizer.json ---- */

static void test_import_refuses(void **state)
{
    (void)state;
    static const struct {
        const char *file, *old, *new, *message; /* NULL: accepted */
    } cases[] = {
        {"gemma4", "\"byte_fallback\":true", "\"byte_fallback\":false", "normalizer: {\"type\":\"Replace\""},
        {"gemma4", "\"ignore_merges\":false", "\"ignore_merges\":true", "model.ignore_merges: true"},
        {"gemma4", "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"}",
         "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"  \"}", "normalizer: "},
        {"gemma4", "\"normalizer\":{\"type\":\"Replace\"", "\"normalizer\":{\"type\":\"Lowercase\"",
         "normalizer: "},
        {"gemma4", "\"behavior\":\"MergedWithPrevious\"", "\"behavior\":\"Isolated\"", "pre_tokenizer: "},
        {"gemma4", "\"invert\":false", "\"invert\":true", "pre_tokenizer: "},
        {"gemma4", "\"type\":\"Fuse\"", "\"type\":\"Fuze\"", "decoder: "},
        {"gemma4", "{\"type\":\"ByteFallback\"},", "", "decoder: "},
        {"gemma4", "\"<0x41>\":", "\"<0x4l>\":", "no byte token '<0x41>'"},
        {"gemma4", "\"lstrip\":false", "\"lstrip\":true", "added_tokens[0].lstrip: true"},
        {"gemma4", "\"normalized\":false", "\"normalized\":true", "added_tokens[0].normalized: true"},
        {"gemma4", "\"single\":[{\"SpecialToken\":{\"id\":\"<bos>\",\"type_id\":0}},", "\"single\":[", NULL},
        {"llama-spm", "\"prepend\":\"" SPACE "\"", "\"prepend\":\"_\"", "normalizer: "},
        {"llama-spm", "\"start\":1", "\"start\":2", "decoder: "},
        {"llama-spm", "\"pre_tokenizer\":null",
         "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"" SPACE
         "\",\"prepend_scheme\":\"first\"}",
         "pre_tokenizer: "},
        {"llama-spm", "\"type\":\"Prepend\"", "\"type\":\"Prepend\"", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n;
        char name[64];
        snprintf(name, sizeof name, "tok_%s.json", cases[i].file);
        char *json = read_data(name, &n), *changed = with(json, cases[i].old, cases[i].new);
        check_import(i, cases[i].new, (const char *const[4]){changed, "{\"bos_token\":\"<bos>\"}"}, 1100,
                     cases[i].message);
        free(changed);
        free(json);
    }
}

static bool has_str(const struct gguf *g, const char *key, const char *want)
{
    struct gguf_str v;
    return gguf_get_str(g, key, &v, NULL) == 0 && gguf_str_is(v, want);
}

/* The keys that programs of the ecosystem look for, and ours. */
static void test_import_keys(void **state)
{
    (void)state;
    struct model m;
    bool v = false;
    open_model(&m, GEMMA);
    assert_true(has_str(m.g, K "model", "gemma4"));
    assert_int_equal(gguf_get_bool(m.g, K "add_bos_token", &v, NULL), 0);
    assert_true(v);
    assert_int_equal(gguf_get_bool(m.g, K "add_space_prefix", &v, NULL), 0);
    assert_false(v);
    assert_non_null(gguf_find(m.g, K "merges"));
    assert_int_equal(gguf_array_i64(gguf_find(m.g, K "token_type"), 7), TOK_BYTE);
    close_model(&m);
    open_model(&m, LLAMA);
    assert_true(has_str(m.g, K "model", "llama"));
    assert_int_equal(gguf_get_bool(m.g, K "add_space_prefix", &v, NULL), 0);
    assert_true(v);
    assert_null(gguf_find(m.g, K "merges"));
    assert_non_null(gguf_find(m.g, K "spm_merges"));
    const struct gguf_kv *scores = gguf_find(m.g, K "scores");
    assert_int_equal(scores->count, 1100);
    for (uint32_t i = 0; i <= m.t->merge_mask; i++) /* a token's score is the place of its best merge */
        if (m.t->merge[i].rank != TOK_NO_RANK && m.t->type[m.t->merge[i].id] == TOK_NORMAL)
            assert_true(gguf_array_f64(scores, m.t->merge[i].id) >= -(double)m.t->merge[i].rank);
    close_model(&m);
}

static void test_import_chat_template(void **state)
{
    (void)state;
    static const struct {
        const char *config, *file, *want; /* NULL: none */
    } cases[] = {
        {NULL, NULL, NULL},
        {"{}", NULL, NULL},
        {"{\"chat_template\":\"one\"}", NULL, "one"},
        {"{\"chat_template\":\"one\"}", "two", "two"},
        {"{\"chat_template\":null}", "two", "two"},
        {"{\"chat_template\":[{\"name\":\"rag\",\"template\":\"r\"},{\"name\":\"default\",\"template\":\"d\"}"
         "]}",
         NULL, "d"},
        {"{\"chat_template\":[{\"name\":\"rag\",\"template\":\"r\"}]}", NULL, NULL},
    };
    size_t n;
    char *json = read_data("tok_qwen2.json", &n);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gguf_writer *w;
        struct err e = {0};
        const char *c = cases[i].config, *f = cases[i].file;
        struct tok_hf hf = {{json, c, NULL, NULL}, {n, c ? strlen(c) : 0, 0, 0}, f, f ? strlen(f) : 0};
        must(gguf_writer_new(&w, &e), &e);
        must(tok_import_texts(w, &hf, 0, &e), &e);
        struct gguf *g = through_file(w);
        if (cases[i].want)
            assert_true(has_str(g, "tokenizer.chat_template", cases[i].want));
        else
            assert_null(gguf_find(g, "tokenizer.chat_template"));
        gguf_close(g);
    }
    struct gguf_writer *w;
    struct err e = {0};
    assert_int_equal(import(&w, (const char *const[4]){json, "{\"chat_template\":5}"}, 0, &e), -1);
    assert_non_null(strstr(e.msg, "chat_template: expected a string"));
    gguf_writer_free(w);
    free(json);
}

static void test_no_memory(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        struct gguf *g = through_file(tiny(k ? "llama" : "gemma4"));
        uint64_t nth = 1;
        for (;; nth++) {
            struct tokenizer *t = NULL;
            struct tok_encoder *x = NULL;
            struct result r = {0};
            struct err e = {0};
            mem_fail_at(nth);
            int rc = tok_open(&t, g, &e) || tok_encoder_new(&x, t, TOK_SPECIAL_ALL, true, &e) ||
                     tok_encode(x, cutting, sizeof cutting - 1, true, take_ids, &r, &e);
            mem_fail_at(0);
            tok_encoder_free(x);
            tok_close(t);
            free_result(&r);
            if (rc == 0) break;
            assert_int_equal(e.code, ERR_IO);
            assert_non_null(strstr(e.msg, "out of memory"));
        }
        assert_true(nth > 10);
        gguf_close(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_ids), cmocka_unit_test(test_getters),
        cmocka_unit_test(test_merging),       cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_streams),       cmocka_unit_test(test_any_bytes),
        cmocka_unit_test(test_space_prefix),  cmocka_unit_test(test_chat_text),
        cmocka_unit_test(test_long_runs),     cmocka_unit_test(test_decode_bytes),
        cmocka_unit_test(test_open_refuses),  cmocka_unit_test(test_tool_response),
        cmocka_unit_test(test_scores),        cmocka_unit_test(test_import_refuses),
        cmocka_unit_test(test_import_keys),   cmocka_unit_test(test_import_chat_template),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
