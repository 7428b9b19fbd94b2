/* test_check.c - inspect --check of files that are sound and no whole model, or that cannot be run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "../../../common/inspect/check.h"
#include "../run/tiny_pair.h"
#include "../token/tok_fixture.h"

static char seen[8192];

static void collect(void *ctx, const struct check_finding *f)
{
    static const char *const level[] = {"ok", "warn", "BAD"};
    (void)ctx;
    snprintf(seen + strlen(seen), sizeof seen - strlen(seen), "%s %s: %s\n", level[f->level], f->subject,
             f->text);
}

static int check(const char *path, bool for_use)
{
    struct err e = {0};
    seen[0] = 0;
    const int bad = check_gguf(path, NULL, for_use, 1, collect, NULL, NULL, &e);
    if (bad < 0) fail_msg("%s", e.msg);
    return bad;
}

static void said(const char *text, bool is)
{
    if ((strstr(seen, text) != NULL) != is) fail_msg("%s '%s' in:\n%s", is ? "no" : "there is", text, seen);
}

static int no_tokenizer(struct gguf_writer *w, struct err *e)
{
    return gguf_put_str(w, "tokenizer.ggml.model", "none", 4, e);
}
static int no_vocab(struct gguf_writer *w, struct err *e)
{
    return gguf_put_str(w, "tokenizer.ggml.model", "no_vocab", 8, e);
}
static int unknown(struct gguf_writer *w, struct err *e)
{
    return gguf_put_str(w, "tokenizer.ggml.model", "nonesuch", 8, e);
}

/* llama.cpp writes "none" into a model that has no tokenizer, and runs it. */
static void test_no_tokenizer(void **state)
{
    (void)state;
    int (*const edits[])(struct gguf_writer *, struct err *) = {NULL, no_tokenizer, no_vocab, unknown};
    for (int i = 0; i < 4; i++) {
        const struct tiny y = {.edit = edits[i]};
        struct err e = {0};
        must(tiny_write(scratch("t.gguf"), &y, &e), &e);
        assert_int_equal(check(scratch("t.gguf"), true), i == 3);
        said("warn tokenizer: none in the file", i < 3);
        said("BAD tokenizer: ", i == 3);
        said("ok use: every matrix", true);
    }
}

/* Tokens and no tensor, as its converter writes with --vocab-only. */
static void test_vocabulary(void **state)
{
    (void)state;
    static const char *const names[] = {"llama-bpe", "gemma4"};
    for (int i = 0; i < 2; i++) {
        struct gguf_writer *w;
        struct gguf *g;
        struct desc *d;
        struct io_out o;
        struct err e = {0};
        char name[64];
        size_t n;
        const char *arch = i ? "gemma4" : "llama";
        snprintf(name, sizeof name, "tok_%s.json", names[i]);
        char *json = read_data(name, &n);
        const char *const text[4] = {json};
        must(import(&w, text, i ? 1100 : 700, &e), &e);
        free(json);
        must(gguf_put_str(w, "general.architecture", arch, strlen(arch), &e), &e);
        must(gguf_put_u32(w, i ? "gemma4.block_count" : "llama.block_count", 2, &e), &e);
        must(io_out_open(&o, scratch("v.gguf"), true, NULL, 0, &e), &e);
        must(gguf_write_header(w, &o, &e) | gguf_write_end(w, &o, &e) | io_out_commit(&o, &e), &e);
        gguf_writer_free(w);
        assert_int_equal(check(scratch("v.gguf"), false), 0);
        said(i ? "ok vocabulary: a vocabulary alone, without a model: architecture gemma4, no tensors"
               : "ok vocabulary: a vocabulary alone, without a model: architecture llama, no tensors",
             true);
        said(i ? "ok tokenizer: 1100 tokens" : "ok tokenizer: 700 tokens", true);
        said("output_norm", false);
        said("values", false);
        assert_int_equal(check(scratch("v.gguf"), true), 1);
        said("BAD use: cannot be run: dflash-tokenize reads it", true);
        /* a run says what it is, not what it lacks */
        must(gguf_open(&g, scratch("v.gguf"), &e), &e);
        assert_int_equal(desc_read(&d, g, NULL, &e), -1);
        assert_non_null(
            strstr(e.msg, "v.gguf: is a vocabulary alone, without a model (expected tensors, got none)"));
        gguf_close(g);
    }
}

/* A matrix of a type without products is told, and bad for use alone; a vector must be decoded. */
static void test_types(void **state)
{
    (void)state;
    struct err e = {0};
    const struct tiny y = {0};
    for (int i = 0; i < 2; i++) {
        must(tiny_write(scratch("t.gguf"), &y, &e), &e);
        /* its type in the file: behind the name and the dimensions */
        const char *name = i ? "blk.1.ffn_norm.weight" : "blk.1.ffn_up.weight";
        size_t n = 0, at = 0;
        char *file = scratch_read(scratch("t.gguf"), &n);
        while (at + 64 < n && memcmp(file + at, name, strlen(name))) at++;
        at += strlen(name) + 4 + (i ? 8 : 16);
        file[at] = KN_I32; /* of the same size */
        scratch_write(scratch("t.gguf"), file, n);
        free(file);
        assert_int_equal(check(scratch("t.gguf"), false), 0);
        said(i ? "warn use: cannot be run here: no products with I32 (1 tensor), the first is "
                 "blk.1.ffn_norm.weight"
               : "warn use: cannot be run here: no products with I32 (1 tensor), the first is "
                 "blk.1.ffn_up.weight",
             true);
        assert_int_equal(check(scratch("t.gguf"), true), 1);
        said("BAD use: cannot be run here", true);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_tokenizer), cmocka_unit_test(test_vocabulary),
                                       cmocka_unit_test(test_types)};
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
