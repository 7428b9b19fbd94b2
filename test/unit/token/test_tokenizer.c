/* test_tokenizer.c - encoding and decoding: against ids of the reference implementation
 * (test/data/make_tok.py), cut everywhere, over arbitrary bytes, and over long runs. */
#include "tok_fixture.h"
#include <utf8proc.h>

static const char *const pres[] = {"gpt-2", "qwen2", "qwen35", "llama-bpe"};

static void check_reference(const struct tokenizer *t, const char *pre, bool plain)
{
    char name[64];
    size_t n_text, n_ids, n_want;
    bool nfc = strncmp(pre, "qwen", 4) == 0;
    snprintf(name, sizeof name, "tok_%s%s.i32", pre, plain ? "_plain" : "");
    char *text = read_data("tok.txt", &n_text), *ids = read_data(name, &n_ids);
    char *want = read_data(nfc ? "tok_nfc.txt" : "tok.txt", &n_want);
    struct result r = {0}, b = {0};
    encode_all(t, !plain, true, text, n_text, &r);
    assert_int_equal(r.n, n_ids / 4);
    for (size_t i = 0; i < r.n; i++)
        if (memcmp(&r.ids[i], ids + 4 * i, 4)) fail_msg("%s: id %zu is %d", name, i, r.ids[i]);
    decode_all(t, true, r.ids, r.n, &b);
    assert_int_equal(b.n, n_want);
    assert_memory_equal(b.bytes, want, n_want);
    free_result(&r);
    free_result(&b);
    free(text);
    free(ids);
    free(want);
}

static void test_reference_ids(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct model m;
        open_fixture(&m, pres[i]);
        check_reference(m.t, pres[i], false);
        check_reference(m.t, pres[i], true);
        m.t->jit = false; /* as where a system forbids it: the interpreter, the same ids */
        check_reference(m.t, pres[i], false);
        close_model(&m);
    }
}

static void test_getters(void **state)
{
    (void)state;
    struct model m;
    open_fixture(&m, "llama-bpe");
    assert_int_equal(tok_n_vocab(m.t), 700);
    assert_true(tok_add_bos(m.t));
    assert_int_equal(tok_bos(m.t), 627);
    assert_true(tok_is_special(m.t, 620)); /* control */
    assert_true(tok_is_special(m.t, 624)); /* user-defined */
    assert_false(tok_is_special(m.t, 100));
    assert_false(tok_is_special(m.t, 699)); /* padding */
    assert_false(tok_is_special(m.t, -1));
    assert_false(tok_is_special(m.t, 700));
    close_model(&m);
    open_fixture(&m, "qwen2");
    assert_false(tok_add_bos(m.t));
    assert_int_equal(tok_bos(m.t), -1);
    close_model(&m);
}

/* Text whose ids depend on what follows: everything that the encoder holds back. */
static const char cutting[] =
    "It's we'LL 'S  x   \n  y\r\n\r\n  \t z12345 1a<|im<|im_start|><|im_star<think>\n\n<think>\n<think\n\n"
    "caf\x65\xcc\x81 q\xcc\xa3\xcc\x87 \xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8 "
    "\xe6\x97\xa5\xe6\x9c\xac<x>\xe6\x97\xa5\xe6\x9c <\xcc\xb8"
    "\xff\xcc\x81\xe2\x82\xe2\x82\xac\xf0\x9f\x98\xf0\x9f\x98\x80\xed\xa0\x80\xc0\x80    -----\n\n    !!!\n "
    "e\xcc\x81<|endoftext|"
    ">\xcc\x81 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa       "
    "\xe2\x80";

static void check_cut(struct tok_encoder *x, const struct result *want, size_t a, size_t b)
{
    struct result r = {0};
    const size_t n = sizeof cutting - 1;
    encode(x, cutting, a, false, &r);
    encode(x, cutting + a, b - a, false, &r);
    encode(x, cutting + b, n - b, true, &r);
    if (r.n != want->n || memcmp(r.ids, want->ids, r.n * sizeof *r.ids)) fail_msg("cut at %zu and %zu", a, b);
    free_result(&r);
}

static void test_cuts(void **state)
{
    (void)state;
    const size_t n = sizeof cutting - 1;
    for (int i = 0; i < 4; i++) {
        for (int special = 0; special < 2; special++) {
            struct model m;
            struct tok_encoder *x;
            struct result want = {0}, r = {0};
            uint64_t seed = 1;
            open_fixture(&m, pres[i]);
            must(tok_encoder_new(&x, m.t, special ? TOK_SPECIAL_ALL : TOK_SPECIAL_NOT, true, NULL),
                 &(struct err){0});
            encode(x, cutting, n, true, &want);
            for (size_t a = 0; a <= n; a++) check_cut(x, &want, a, n);
            for (int k = 0; k < 300; k++) {
                size_t a = rnd(&seed) % n, b = a + rnd(&seed) % (n - a);
                check_cut(x, &want, a, b);
            }
            for (size_t a = 0; a < n; a++) encode(x, cutting + a, 1, false, &r);
            encode(x, NULL, 0, true, &r);
            assert_int_equal(r.n, want.n);
            assert_memory_equal(r.ids, want.ids, r.n * sizeof *r.ids);
            free_result(&r);
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
    open_fixture(&m, "qwen2");
    must(tok_encoder_new(&x, m.t, true, true, NULL), &(struct err){0});
    encode(x, "def f(", 6, false, &r);
    assert_true(r.n >= 1);
    r.n = 0;
    encode(x, "x):\n<|endof", 11, false, &r);
    assert_true(r.n >= 2);
    r.n = 0;
    encode(x, "text|>", 6, false, &r); /* a special token ends what stands before it */
    assert_int_equal(r.ids[r.n - 1], 620);
    r.n = 0;
    encode(x, NULL, 0, true, &r);
    assert_int_equal(r.n, 0);
    tok_encoder_free(x);
    free_result(&r);
    close_model(&m);
}

static void check_bytes(const struct model *m, struct tok_encoder *x, const uint8_t *p, size_t n)
{
    struct result r = {0}, b = {0};
    encode(x, p, n, true, &r);
    decode_all(m->t, true, r.ids, r.n, &b);
    if (b.n != n || (n && memcmp(b.bytes, p, n))) fail_msg("bytes %02x %02x..", p[0], n > 1 ? p[1] : 0);
    free_result(&r);
    free_result(&b);
}

/* Without normalisation any bytes come back; all of length 1 and 2, many of length 3 and 4 around UTF-8's
 * edges. */
static void test_any_bytes(void **state)
{
    (void)state;
    static const uint8_t edge[] = {0x00, 0x20, 0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1,
                                   0xc2, 0xdf, 0xe0, 0xe1, 0xed, 0xef, 0xf0, 0xf1, 0xf4, 0xf5, 0xff, 0xcc};
    struct model m;
    struct tok_encoder *x;
    uint64_t seed = 5;
    uint8_t p[64];
    open_fixture(&m, "qwen35");
    must(tok_encoder_new(&x, m.t, true, false, NULL), &(struct err){0});
    check_bytes(&m, x, p, 0);
    for (int a = 0; a < 256; a++) {
        p[0] = (uint8_t)a;
        check_bytes(&m, x, p, 1);
        for (int b = 0; b < 256; b += 1 + (a & 1)) {
            p[1] = (uint8_t)b;
            check_bytes(&m, x, p, 2);
        }
    }
    for (int k = 0; k < 20000; k++) {
        size_t n = 3 + rnd(&seed) % 10;
        for (size_t i = 0; i < n; i++) p[i] = k & 1 ? edge[rnd(&seed) % sizeof edge] : (uint8_t)rnd(&seed);
        check_bytes(&m, x, p, n);
    }
    tok_encoder_free(x);
    close_model(&m);
}

/* NFC works on each stretch of valid text; nothing combines across bytes that are not text, or across special
 * tokens. */
static void test_nfc_stretches(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"e\xcc\x81", "\xc3\xa9"},
        {"e\xff\xcc\x81", "e\xff\xcc\x81"},
        {"\xff"
         "e\xcc\x81\xff",
         "\xff\xc3\xa9\xff"},
        {"e\xcc", "e\xcc"},
        {"<|im_end|>\xcc\xb8", "<|im_end|>\xcc\xb8"}, /* > and the mark compose, but not out of a token */
        {"x>\xcc\xb8", "x\xe2\x89\xaf"},
        {"\xe2\x84\xab", "\xc3\x85"},                             /* a singleton */
        {"q\xcc\x87\xcc\xa3", "q\xcc\xa3\xcc\x87"},               /* reordered */
        {"\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "\xea\xb0\x81"}, /* Hangul */
        {"\xea\xb0\x80\xe1\x86\xa7", "\xea\xb0\x80\xe1\x86\xa7"}, /* U+11A7 is no final */
        {"\xcc\x81", "\xcc\x81"},
    };
    struct model m;
    open_fixture(&m, "qwen2");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct result r = {0}, b = {0};
        encode_all(m.t, true, true, cases[i].in, strlen(cases[i].in), &r);
        decode_all(m.t, true, r.ids, r.n, &b);
        if (b.n != strlen(cases[i].out) || memcmp(b.bytes, cases[i].out, b.n)) fail_msg("case %zu", i);
        b.n = r.n = 0;
        encode_all(m.t, true, false, cases[i].in, strlen(cases[i].in), &r); /* --no-normalize */
        decode_all(m.t, true, r.ids, r.n, &b);
        assert_int_equal(b.n, strlen(cases[i].in));
        assert_memory_equal(b.bytes, cases[i].in, b.n);
        free_result(&r);
        free_result(&b);
    }
    close_model(&m);
}

/* Over every code point: the second half of a composition is no boundary, nor is what decomposes to a mark
 * first. */
static void test_nfc_boundaries(void **state)
{
    (void)state;
    for (int32_t c = 0; c < 0x110000; c++) {
        int32_t d[32];
        int boundclass = 0;
        if (c >= 0xd800 && c < 0xe000) continue;
        long n = utf8proc_decompose_char(c, d, 32, UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &boundclass);
        assert_in_range(n, 1, 4);
        if (n > 1 && tok_nfc_boundary(d[n - 1]))
            fail_msg("U+%04X is the last of U+%04X", (unsigned)d[n - 1], (unsigned)c);
        if (tok_nfc_boundary(c) && (utf8proc_get_property(d[0])->combining_class || !tok_nfc_boundary(d[0])))
            fail_msg("U+%04X is a boundary, but begins with U+%04X", (unsigned)c, (unsigned)d[0]);
    }
    assert_true(tok_nfc_boundary(0x11a7));
}

/* Long clusters against utf8proc's own NFC, with marks in every order. */
static void test_nfc_marks(void **state)
{
    (void)state;
    static const int32_t pool[] = {0x300, 0x301, 0x323,  0x327, 0x334, 0x345, 0x344,
                                   0x5b0, 0x5b1, 0x3099, 0x93c, 'a',   0x1ea5};
    uint64_t seed = 9;
    for (int k = 0; k < 400; k++) {
        uint8_t in[1024];
        size_t n = 0, count = 1 + rnd(&seed) % (k & 1 ? 200 : 12);
        for (size_t i = 0; i < count; i++)
            n += (size_t)utf8proc_encode_char(pool[rnd(&seed) % (rnd(&seed) % 8 ? 11 : 13)], in + n);
        uint8_t *want = NULL;
        long m = utf8proc_map(in, (long)n, &want, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        assert_true(m >= 0);
        struct tok_nfc x = {0};
        struct tok_buf out = {0};
        struct err e = {0};
        must(tok_nfc_add(&x, in, n, true, &out, &e), &e);
        assert_int_equal(out.n, m);
        assert_memory_equal(out.p, want, out.n);
        free(want);
        mem_free(out.p);
        tok_nfc_free(&x);
    }
}

static void test_merging(void **state)
{
    (void)state;
    static const char *const pools[] = {"a", " ", "etaoin", " se", "-=0", "self.arg name"};
    struct model m;
    struct tok_bpe b;
    uint64_t seed = 3;
    open_fixture(&m, "gpt-2");
    must(tok_bpe_init(&b, NULL), &(struct err){0});
    for (int k = 0; k < 600; k++) {
        uint8_t p[300];
        int32_t want[300];
        const int32_t *ids;
        const char *pool = pools[k % 6];
        size_t n = 1 + rnd(&seed) % (k % 3 ? 70 : 300), n_ids;
        for (size_t i = 0; i < n; i++) p[i] = (uint8_t)pool[rnd(&seed) % strlen(pool)];
        for (size_t i = 0; i < n; i++) want[i] = m.t->byte_id[p[i]];
        size_t n_want = merge_by_the_book(m.t, want, n);
        for (int again = 0; again < 2; again++) { /* the second time from the cache */
            must(tok_bpe_piece(&b, m.t, p, n, &ids, &n_ids, NULL), &(struct err){0});
            assert_int_equal(n_ids, n_want);
            assert_memory_equal(ids, want, n_want * sizeof *want);
        }
    }
    tok_bpe_free(&b);
    close_model(&m);
}

/* 400 kB without a place to split, in one go and in small cuts: quadratic
 * work would take minutes here. */
static void test_long_runs(void **state)
{
    (void)state;
    static const char *const units[] = {"a", " ",    " \n",         "e\xcc\x81\xcc\xa3", "\xcc\x81\xcc\xa3",
                                        "'", "\xff", "\xe5\xad\x97"};
    const size_t size = 400000;
    struct model m;
    open_fixture(&m, "qwen2");
    char *p = malloc(size);
    assert_non_null(p);
    const bool jit = m.t->jit;
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        m.t->jit = jit && u != 2; /* one by the interpreter */
        struct result whole = {0}, cut = {0}, back = {0}, again = {0};
        struct tok_encoder *x;
        size_t k = strlen(units[u]), n = size / k * k;
        for (size_t i = 0; i < n; i++) p[i] = units[u][i % k];
        encode_all(m.t, true, true, p, n, &whole);
        must(tok_encoder_new(&x, m.t, true, true, NULL), &(struct err){0});
        for (size_t i = 0; i < n; i += 97) encode(x, p + i, n - i < 97 ? n - i : 97, n - i <= 97, &cut);
        assert_int_equal(whole.n, cut.n);
        assert_memory_equal(whole.ids, cut.ids, cut.n * sizeof *cut.ids);
        decode_all(m.t, true, whole.ids, whole.n, &back);
        encode(x, back.bytes, back.n, true, &again); /* normalised text is its own normal form */
        assert_int_equal(again.n, whole.n);
        assert_memory_equal(again.ids, whole.ids, whole.n * sizeof *cut.ids);
        tok_encoder_free(x);
        free_result(&whole);
        free_result(&cut);
        free_result(&back);
        free_result(&again);
    }
    free(p);
    close_model(&m);
}

/* ---- decoding ---- */

/* No write ended inside a character. */
static void check_ends(const struct result *b)
{
    for (size_t i = 0; i < b->n;) {
        int len = tok_utf8(b->bytes + i, b->n - i);
        for (size_t k = 0; k < b->calls && k < 256; k++)
            if (len > 1 && b->ends[k] > i && b->ends[k] < i + (size_t)len)
                fail_msg("a write ended in the character at %zu", i);
        i += len > 0 ? (size_t)len : 1;
    }
}

static void test_decode_cuts(void **state)
{
    (void)state;
    static const char text[] =
        "a\xe2\x82\xac\xf0\x9f\x98\x80 \xe2\x82\xf0\x9f\xff\xf0\x9f\x98z\xc3\xa9\xed\xa0\x80\xe2\x82";
    struct model m;
    struct result ids = {0};
    open_fixture(&m, "gpt-2");
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
        check_ends(&b);
        tok_decoder_free(x);
        free_result(&b);
    }
    free_result(&ids);
    close_model(&m);
}

/* What is held back, id by id: only what could still become a character. */
static void test_decode_holds(void **state)
{
    (void)state;
    static const struct {
        uint8_t byte, out;
    } steps[] = {{'a', 1},  {0xe2, 0}, {0x82, 0}, {0xac, 3}, {0xe2, 0}, {0x41, 2}, {0xff, 1}, {0x80, 1},
                 {0xf0, 0}, {0x9f, 0}, {0x98, 0}, {0x80, 4}, {0xed, 0}, {0xa0, 2}, {0xc3, 0}, {0xc3, 1}};
    struct model m;
    struct tok_decoder *x;
    struct result b = {0};
    struct err e = {0};
    open_fixture(&m, "gpt-2");
    must(tok_decoder_new(&x, m.t, false, &e), &e);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        b.n = 0;
        must(tok_decode(x, &m.t->byte_id[steps[i].byte], 1, false, take_bytes, &b, &e), &e);
        if (b.n != steps[i].out) fail_msg("step %zu: %zu bytes", i, b.n);
    }
    b.n = 0;
    must(tok_decode(x, NULL, 0, true, take_bytes, &b, &e), &e);
    assert_int_equal(b.n, 1);
    tok_decoder_free(x);
    free_result(&b);
    close_model(&m);
}

static void test_decode_special(void **state)
{
    (void)state;
    struct model m;
    struct result ids = {0}, b = {0};
    const char *text = "<|im_start|>x<think>y<|im_end|>";
    open_fixture(&m, "qwen2");
    encode_all(m.t, true, true, text, strlen(text), &ids);
    assert_int_equal(ids.n, 5);
    int32_t pad = 699;
    take_ids(&ids, &pad, 1, NULL);
    decode_all(m.t, true, ids.ids, ids.n, &b);
    assert_int_equal(b.n, strlen(text) + 8);
    assert_memory_equal(b.bytes, "<|im_start|>x<think>y<|im_end|>[PAD699]", b.n);
    b.n = 0;
    decode_all(m.t, false, ids.ids, ids.n, &b);
    assert_int_equal(b.n, 9);
    assert_memory_equal(b.bytes, "x<think>y", 9);
    free_result(&ids);
    free_result(&b);
    close_model(&m);
}

static void test_decode_bad_id(void **state)
{
    (void)state;
    static const int32_t bad[] = {700, -1, INT32_MAX, INT32_MIN};
    struct model m;
    open_fixture(&m, "gpt-2");
    for (int i = 0; i < 4; i++) {
        struct tok_decoder *x;
        struct result b = {0};
        struct err e = {0};
        char want[64];
        const int32_t ids[] = {m.t->byte_id['h'], m.t->byte_id['i'], bad[i], m.t->byte_id['!']};
        must(tok_decoder_new(&x, m.t, false, &e), &e);
        must(tok_decode(x, ids, 1, false, take_bytes, &b, &e), &e);
        assert_int_equal(tok_decode(x, ids + 1, 3, true, take_bytes, &b, &e), -1);
        assert_int_equal(e.code, ERR_FORMAT);
        snprintf(want, sizeof want, "token 2 of the stream: id %d ", bad[i]);
        assert_non_null(strstr(e.msg, want));
        assert_int_equal(b.n, 2); /* what came before it was written */
        assert_int_equal(tok_decode(x, ids, 1, false, take_bytes, &b, &(struct err){0}), -1);
        tok_decoder_free(x);
        free_result(&b);
    }
    close_model(&m);
}

static int refuse_ids(void *ctx, const int32_t *ids, size_t n, struct err *e)
{
    (void)ctx, (void)ids, (void)n;
    return err_set(e, ERR_IO, "the disk is full");
}

static void test_callback_fails(void **state)
{
    (void)state;
    struct model m;
    struct tok_encoder *x;
    struct err e = {0};
    open_fixture(&m, "gpt-2");
    must(tok_encoder_new(&x, m.t, false, true, &e), &e);
    assert_int_equal(tok_encode(x, "some text", 9, true, refuse_ids, NULL, &e), -1);
    assert_string_equal(e.msg, "the disk is full");
    assert_int_equal(tok_encode(x, "some text", 9, true, refuse_ids, NULL, &(struct err){0}), -1);
    tok_encoder_free(x);
    close_model(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_ids),  cmocka_unit_test(test_getters),
        cmocka_unit_test(test_cuts),           cmocka_unit_test(test_streams),
        cmocka_unit_test(test_any_bytes),      cmocka_unit_test(test_nfc_stretches),
        cmocka_unit_test(test_nfc_boundaries), cmocka_unit_test(test_nfc_marks),
        cmocka_unit_test(test_merging),        cmocka_unit_test(test_long_runs),
        cmocka_unit_test(test_decode_cuts),    cmocka_unit_test(test_decode_holds),
        cmocka_unit_test(test_decode_special), cmocka_unit_test(test_decode_bad_id),
        cmocka_unit_test(test_callback_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
