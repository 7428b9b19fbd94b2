/* test_ends.c - tokens that end a generation, found by their text in vocabularies as other engines'
 * converters write them: with eos alone, and with types of their own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "../../../common/describe/ends.h"
#include "../scratch.h"

#define K "tokenizer.ggml."
enum { MAX = 8, NORMAL = 1, CONTROL = 3, USER = 4, UNUSED = 5 };

struct vocabulary {
    const char *token[MAX]; /* ends with NULL */
    int32_t type[MAX];
    const char *want; /* the ids */
};

static const struct vocabulary cases[] = {
    {{"a", "<|im_start|>", "<|im_end|>", "<|endoftext|>"}, {NORMAL, CONTROL, CONTROL, CONTROL}, "2 3 "},
    {{"<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>"},
     {CONTROL, CONTROL, CONTROL, CONTROL},
     "0 1 2 "},
    /* Gemma 4 of llama.cpp's converter: what is to be seen is user-defined, and </s> is HTML */
    {{"<eos>", "<|turn>", "<turn|>", "<|tool_response>", "<tool_response|>", "</s>"},
     {CONTROL, CONTROL, CONTROL, USER, USER, USER},
     "0 2 3 "},
    {{"<s>", "</s>"}, {CONTROL, CONTROL}, "1 "},
    /* what plain text becomes, and what there is no such token of */
    {{"<|im_end|>", "</s>", "<|im_end|> ", "<|im_en", "[EOS]"},
     {NORMAL, UNUSED, CONTROL, CONTROL, NORMAL},
     ""},
    {{"<|end|>", "<|return|>", "<|call|>"}, {CONTROL, CONTROL, CONTROL}, "1 2 "},
    {{"<|end|>", "<|flush|>", "<|calls|>"}, {CONTROL, CONTROL, CONTROL}, "1 2 "},
    {{"<|end|>", "<|return|>"}, {CONTROL, CONTROL}, "0 1 "},
    {{"<\xef\xbd\x9c"
      "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>",
      "[EOT]", "", "<"},
     {CONTROL, USER, CONTROL, CONTROL},
     "0 1 "},
};

static struct gguf *open_with(const struct vocabulary *v, uint32_t elem, int n_types)
{
    struct err e = {0};
    struct gguf_writer *w;
    struct gguf *g;
    struct io_out o;
    struct gguf_str s[MAX];
    int n = 0;
    for (; n < MAX && v->token[n]; n++) s[n] = (struct gguf_str){v->token[n], strlen(v->token[n])};
    assert_int_equal(gguf_writer_new(&w, &e), 0);
    assert_int_equal(gguf_put_strings(w, K "tokens", s, (uint64_t)n, &e), 0);
    if (n_types)
        assert_int_equal(
            gguf_put_array(w, K "token_type", elem, v->type, (uint64_t)(n_types < 0 ? n : n_types), &e), 0);
    assert_int_equal(io_out_open(&o, scratch("a.gguf"), true, NULL, 0, &e), 0);
    assert_int_equal(gguf_write_header(w, &o, &e) | gguf_write_end(w, &o, &e) | io_out_commit(&o, &e), 0);
    gguf_writer_free(w);
    assert_int_equal(gguf_open(&g, scratch("a.gguf"), &e), 0);
    return g;
}

static void test_found(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gguf *g = open_with(&cases[i], i % 2 ? GGUF_U32 : GGUF_I32, -1);
        int32_t ids[ENDS_MAX];
        char text[128] = "";
        const int32_t n = ends_find(g, ids);
        for (int32_t k = 0; k < n; k++)
            snprintf(text + strlen(text), sizeof text - strlen(text), "%d ", ids[k]);
        if (strcmp(text, cases[i].want)) fail_msg("vocabulary %zu: %s, expected %s", i, text, cases[i].want);
        gguf_close(g);
    }
}

/* Nothing is guessed where there are no types, or others than the tokens'. */
static void test_none(void **state)
{
    (void)state;
    int32_t ids[ENDS_MAX];
    struct gguf *g = open_with(&cases[0], GGUF_I32, 0);
    assert_int_equal(ends_find(g, ids), 0);
    gguf_close(g);
    g = open_with(&cases[0], GGUF_I32, 3);
    assert_int_equal(ends_find(g, ids), 0);
    gguf_close(g);
    g = open_with(&cases[0], GGUF_F32, -1);
    assert_int_equal(ends_find(g, ids), 0);
    gguf_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_found), cmocka_unit_test(test_none)};
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
