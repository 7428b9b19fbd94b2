/* test_frames.c - what of a prompt is a chat's frame or a tool's words. */
#include "tok_fixture.h"

#include "../../../common/token/frames.h"

/* A text in pieces: those that stay, and those that may go. */
struct piece {
    bool stays;
    const char *s;
};

static void check(const char *vocabulary, const struct piece *p)
{
    struct model m;
    struct result r = {0};
    struct err e = {0};
    char text[4096] = "", stays[4096];
    size_t n = 0, at = 0, some;
    bool written;
    open_fixture(&m, vocabulary);
    for (; p->s; p++) {
        const size_t k = strlen(p->s);
        memcpy(text + n, p->s, k + 1);
        memset(stays + n, p->stays, k);
        n += k;
    }
    encode_all(m.t, true, false, text, n, &r);
    bool *got = calloc(r.n, sizeof *got);
    assert_non_null(got);
    must(frames_find(m.t, r.ids, r.n, got, &e), &e);
    for (size_t i = 0; i < r.n; i++) {
        bool want = false;
        tok_piece(m.t, r.ids[i], &some, &written);
        for (size_t k = 0; k < some; k++) want |= stays[at + k];
        if (got[i] != want)
            fail_msg("%s: token %zu, '%.*s' at %zu: %d", vocabulary, i, (int)some, text + at, at, got[i]);
        at += some;
    }
    assert_int_equal(at, n);
    free(got);
    free_result(&r);
    close_model(&m);
}

static void test_turns(void **state)
{
    static const struct piece qwen[] = {{true, "<|im_start|>system\nYou are helpful.\nBe short.<|im_end|>\n"},
                                        {true, "<|im_start|>user\n"},
                                        {false, "A long text of several words, in\ntwo lines"},
                                        {true, "<|im_end|>"},
                                        {false, "\n"},
                                        {true, "<|im_start|>assistant\n"},
                                        {false, "Yes. No"},
                                        {true, "<|im_end|>"},
                                        {false, "\n"},
                                        {true, "<|im_start|>tool\n17 degrees\n<|im_end|>\n"},
                                        {true, "<|im_start|>user\n"},
                                        {false, "Why"},
                                        {true, "<|im_end|>"},
                                        {false, "\n"},
                                        {true, "<|im_start|>assistant\n"},
                                        {false, NULL}};
    (void)state;
    check("qwen2", qwen);
}

static void test_tools(void **state)
{
    static const struct piece text[] = {
        {false, "before "},   {true, "<tools>\n{\"name\": \"a\"}\n</tools>"},
        {false, " between "}, {true, "<tool_call>one</tool_call>"},
        {false, " and "},     {true, "<tool_call>two</tool_call>"},
        {false, " then "},    {true, "<tool_response>never closed, to the end"},
        {false, NULL}};
    (void)state;
    check("qwen2", text);
    check("gpt-2", text); /* marks that no vocabulary knows as tokens */
}

static void test_none(void **state)
{
    static const struct piece text[] = {{false, "A text of its own, with </tools> and a system\nin it"},
                                        {false, NULL}};
    (void)state;
    check("qwen2", text);
    check("llama-bpe", text);
}

/* Rows of an embedding that no token is of. */
static void test_no_tokens(void **state)
{
    struct model m;
    struct err e = {0};
    (void)state;
    open_fixture(&m, "qwen2");
    const int32_t n = tok_n_vocab(m.t), ids[] = {n, 0, INT32_MAX, n - 1, -1};
    bool stays[5] = {false};
    must(frames_find(m.t, ids, 5, stays, &e), &e);
    assert_false(stays[0] || stays[2] || stays[4]);
    close_model(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_tools),
        cmocka_unit_test(test_none),
        cmocka_unit_test(test_no_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
