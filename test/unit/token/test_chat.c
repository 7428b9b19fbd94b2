/* test_chat.c - the chat templates: how each is recognised, and the edges of rendering. What they render is
 * in test/cli/tokenize_chat. */
#include "tok_fixture.h"
#include "../../../common/token/chat.h"

/* The marks of each template as its published text spells them. */
#define Q3 "'<|im_start|>system\\n' ns.last_query_index message.role == \"system\" and not loop.first "
#define Q35                                                                                                  \
    "macro render_content( 'System message must be at the beginning.' 'No user query found in messages.' "   \
    "<|im_start|> "
#define OFF "enable_thinking is defined and enable_thinking is false "
#define ON "enable_thinking is defined and enable_thinking is true "
#define KEEP                                                                                                 \
    "(preserve_thinking is defined and preserve_thinking is true) or (loop.index0 > ns.last_query_index) "
#define LL "<|start_header_id|> message['content'] | trim + '<|eot_id|>' "
#define DATE "Cutting Knowledge Date: December 2023 \"26 Jul 2024\" "
#define G "{{- '<|turn>' + role + '\\n' }} strip_thinking(message['content']) {{- '<turn|>\\n' -}} "
#define GATE "(loop.index0 > ns_turn.last_user_idx) or (preserve_thinking and message.get('tool_calls')) "
#define EMPTY "'<|channel>thought\\n<channel|>' "

static void test_recognise(void **state)
{
    (void)state;
    static const struct {
        const char *arch, *text, *name; /* NULL: not known */
    } cases[] = {
        {"qwen3", Q3 OFF "reasoning_content.strip('\\n')", "qwen3"},
        {"qwen3moe", Q3 OFF "reasoning_content.strip('\\n')", "qwen3"},
        {"qwen35", Q3 OFF "reasoning_content.strip('\\n')", NULL},
        {"llama", Q3 OFF "reasoning_content.strip('\\n')", NULL},
        {"qwen3", Q3 OFF "reasoning_content.strip('\\n') or reasoning_content %}", NULL}, /* an edited copy */
        {"qwen3", Q3 "'<|im_start|>assistant\\n<think>\\n' }}", "qwen3-thinking"},
        {"qwen3", "<|im_start|> message.role == \"system\" and not loop.first", "qwen3-instruct"},
        {"qwen3", "<|im_start|> message.role == \"system\" and not loop.first You are Qwen, created by",
         NULL},
        {"qwen35", Q35 OFF, "qwen3.5"},
        {"qwen35moe", Q35 ON, "qwen3.5-small"},
        {"qwen35", Q35 OFF KEEP, "qwen3.6"},
        {"qwen35", Q35 OFF "preserve_thinking", NULL},
        {"qwen35", Q35 OFF KEEP "or reasoning_content %}", NULL},
        {"qwen35", Q35, NULL},
        {"qwen3", Q35 OFF, NULL},
        {"llama", LL "loop_messages", "llama3"},
        {"llama", LL DATE, "llama3.1"},
        {"llama", LL DATE "strftime_now(\"%d %b %Y\")", "llama3.2"},
        {"llama", LL DATE "<think>", NULL},
        {"llama", LL, NULL},
        {"gemma4", G EMPTY "{{- '<|think|>' -}}", "gemma4"},
        {"gemma4", G "{{- '<|think|>' -}}", "gemma4-e"},
        {"gemma4", G "{{- '<|think|>\\n' -}} continue_same_model_turn", "gemma4-2"},
        {"gemma4", G "{{- '<|think|>\\n' -}} continue_same_model_turn continues_into_next " GATE, "gemma4-3"},
        {"gemma4", G EMPTY "{{- '<|think|>\\n' -}} continue_same_model_turn", NULL},
        {"gemma4", G "{{- '<|think|>\\n' -}} continue_same_model_turn continues_into_next thinking_gate",
         NULL},
        {"gemma3", G EMPTY "{{- '<|think|>' -}}", NULL},
        {"gemma4", "", NULL},
        {"", G, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct chat_template *t = chat_recognise(cases[i].text, strlen(cases[i].text), cases[i].arch);
        const char *name = t ? chat_name(t) : "none", *want = cases[i].name ? cases[i].name : "none";
        if (strcmp(name, want)) fail_msg("case %zu: %s (expected %s)", i, name, want);
    }
    size_t n = 0;
    for (const struct chat_template *t; (t = chat_at(n)); n++) {
        assert_ptr_equal(chat_find(chat_name(t)), t);
        assert_non_null(chat_tokens(t)[0]);
    }
    assert_int_equal(n, 14);
    assert_null(chat_find("chatml"));
}

static int append(void *ctx, const char *s, size_t n, bool markup, struct err *e)
{
    return tok_buf_add(ctx, markup ? "" : "[", markup ? 0 : 1, e) || tok_buf_add(ctx, s, n, e) ||
                   tok_buf_add(ctx, "]", markup ? 0 : 1, e)
               ? -1
               : 0;
}

static void check(const char *name, const struct chat_message *m, size_t n, int think, const char *want)
{
    const struct chat_options o = {.think = think, .generation_prompt = true};
    struct tok_buf b = {0};
    struct err e = {0};
    must(chat_render(chat_find(name), m, n, &o, append, &b, &e), &e);
    if (b.n != strlen(want) || memcmp(b.p, want, b.n)) fail_msg("%s: got %.*s", name, (int)b.n, (char *)b.p);
    mem_free(b.p);
}

#define T(s)                                                                                                 \
    {                                                                                                        \
        s, sizeof s - 1                                                                                      \
    }
#define NONE                                                                                                 \
    {                                                                                                        \
        NULL, 0                                                                                              \
    }

/* Which of the text is somebody's words, in brackets. */
static void test_parts(void **state)
{
    (void)state;
    static const struct chat_message user = {CHAT_USER, T("\xe3\x80\x80\x1f a\n<|im_end|> \xc2\xa0"), NONE,
                                             NULL, NULL};
    static const struct chat_message said[] = {
        {CHAT_USER, T("q"), NONE, NULL, NULL},
        {CHAT_ASSISTANT, T("\n<think>\n\na<think>b\n</think>\n\nc</think>\nd"), NONE, NULL, NULL}};
    static const struct chat_message thought[] = {{CHAT_USER, T("q"), NONE, NULL, NULL},
                                                  {CHAT_ASSISTANT, T("\nd\n"), T("\n x \n"), NULL, NULL}};
    static const struct chat_message tool[] = {
        {CHAT_TOOL, T("\x01\"\\\b\f\n\r\t\x7f\xc3\xa9"), NONE, NULL, NULL}};
    static const struct chat_message gemma[] = {
        {CHAT_ASSISTANT, T(" a<|channel>b<channel|>c<channel|>d<|channel>e<|channel>f "), T("why"), NULL,
         NULL},
        {CHAT_ASSISTANT, T(""), NONE, NULL, NULL}};
    check("qwen3", &user, 1, 1,
          "<|im_start|>user\n[\xe3\x80\x80\x1f a\n<|im_end|> \xc2\xa0]<|im_end|>\n<|im_start|>assistant\n");
    check("qwen3.5", &user, 1, 0,
          "<|im_start|>user\n[a\n<|im_end|>]<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
    check("qwen3", said, 2, -1,
          "<|im_start|>user\n[q]<|im_end|>\n<|im_start|>assistant\n<think>\n[b]\n</think>\n\n[d]<|im_end|>\n"
          "<|im_start|>assistant\n");
    check("qwen3.6", thought, 2, -1,
          "<|im_start|>user\n[q]<|im_end|>\n<|im_start|>assistant\n<think>\n[x]\n</think>\n\n[d]<|im_end|>\n"
          "<|im_start|>assistant\n<think>\n");
    check("llama3.1", tool, 1, -1,
          "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: "
          "[26 Jul 2024]\n\n"
          "<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n"
          "[\"\\u0001\\\"\\\\\\b\\f\\n\\r\\t\x7f\xc3\xa9\"]<|eot_id|>"
          "<|start_header_id|>assistant<|end_header_id|>\n\n");
    check("gemma4", gemma, 2, -1,
          "<|turn>model\n[acd]<turn|>\n<|turn>model\n<turn|>\n<|turn>model\n<|channel>thought\n<channel|>");
    check("gemma4-2", gemma, 2, 1,
          "<|turn>system\n<|think|>\n<turn|>\n<|turn>model\n[acd]<turn|>\n<turn|>\n<|turn>model\n");
    check("gemma4-3", gemma, 2, -1,
          "<|turn>model\n<|channel>thought\n[why]\n<channel|>[acd]<turn|>\n<|turn>model\n");
}

static int stop(void *ctx, const char *s, size_t n, bool markup, struct err *e)
{
    int *left = ctx;
    (void)s;
    (void)n;
    (void)markup;
    return --*left < 0 ? err_set(e, ERR_IO, "enough") : 0;
}

/* Wherever the sink fails, rendering ends with its error; and no messages are refused. */
static void test_failures(void **state)
{
    (void)state;
    static const struct chat_message m[] = {{CHAT_SYSTEM, T("s"), NONE, NULL, NULL},
                                            {CHAT_USER, T("u"), NONE, NULL, NULL},
                                            {CHAT_ASSISTANT, T("a</think>b<channel|>\"c"), NONE, NULL, NULL},
                                            {CHAT_TOOL, T("\"t\n"), NONE, NULL, NULL}};
    const struct chat_options o = {.think = -1, .generation_prompt = true};
    for (size_t i = 0; chat_at(i); i++) {
        struct err e = {0};
        /* all but Llama's and Qwen's have no role tool */
        size_t n = strncmp(chat_name(chat_at(i)), "qwen", 4) && !chat_has_date(chat_at(i)) ? 3 : 4;
        int left = 1, rc = -1;
        for (int k = 0; rc; k++) {
            struct err f = {0};
            left = k;
            rc = chat_render(chat_at(i), m, n, &o, stop, &left, &f);
            if (rc) assert_int_equal(f.code, ERR_IO);
            assert_in_range(k, 0, 100);
        }
        assert_int_equal(left, 0);
        assert_int_equal(chat_render(chat_at(i), m, 0, &o, stop, &left, &e), -1);
        assert_int_equal(e.code, ERR_FORMAT);
        assert_non_null(strstr(e.msg, "no messages"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_recognise), cmocka_unit_test(test_parts),
                                       cmocka_unit_test(test_failures)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
