/* fuzz_chat.c - any messages through every chat template: the first byte picks the template, the second the
 * options; each line after that is a message whose first byte is the role. Every byte that somebody said
 * comes out at most once and as content; markup is what the same messages without words have, but for the
 * thoughts that are split off. And any text may be asked whether it is a known template. */
#include <stdlib.h>
#include <string.h>

#include "../../common/token/chat.h"
#include "../../common/token/tokenizer_priv.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MAX_MESSAGES 64

struct sums {
    size_t content, markup;
};

static int take(void *ctx, const char *s, size_t n, bool markup, struct err *e)
{
    struct sums *x = ctx;
    volatile char last = n ? s[n - 1] : 0; /* all of it can be read */
    (void)last;
    (void)e;
    *(markup ? &x->markup : &x->content) += n;
    return 0;
}

static bool is_text(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n;) {
        int len = tok_utf8(p + i, n - i);
        if (len <= 0) return false;
        i += (size_t)len;
    }
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const archs[] = {"qwen3", "qwen35moe", "llama", "gemma4"};
    struct chat_message m[MAX_MESSAGES] = {0};
    size_t n = 0, said = 0, n_templates = 0;
    if (size < 2) return 0;
    for (int i = 0; i < 4; i++) chat_recognise((const char *)data, size, archs[i]);
    while (chat_at(n_templates)) n_templates++;
    const struct chat_template *t = chat_at(data[0] % n_templates);
    const struct chat_options o = {.think = data[1] % 3 - 1, .generation_prompt = data[1] & 64};
    char *text = malloc(size); /* of exactly that size, so that reading past it is seen */
    if (!text) return 0;
    memcpy(text, data, size);
    for (size_t i = 2; i < size && n < MAX_MESSAGES;) {
        const uint8_t *nl = memchr(data + i, 0xff, size - i);
        size_t end = nl ? (size_t)(nl - data) : size;
        struct chat_text v = {text + i + 1, end - i ? end - i - 1 : 0};
        if (end > i && is_text(data + i + 1, v.n)) {
            m[n].role = (enum chat_role)(data[i] & 3);
            if (m[n].role == CHAT_ASSISTANT && data[i] & 4) {
                m[n].reasoning = (struct chat_text){v.s, v.n / 2};
                if (!is_text((const uint8_t *)v.s, v.n / 2) ||
                    !is_text((const uint8_t *)v.s + v.n / 2, v.n - v.n / 2))
                    m[n].reasoning = (struct chat_text){NULL, 0};
                else
                    v = (struct chat_text){v.s + v.n / 2, v.n - v.n / 2};
            }
            m[n++].content = v;
            said += v.n + m[n - 1].reasoning.n;
        }
        i = end + 1;
    }
    struct sums s = {0};
    struct err e = {0};
    if (chat_render(t, m, n, &o, take, &s, &e)) {
        if (e.code != ERR_FORMAT || !e.msg[0]) abort();
    } else if (chat_has_date(t)) {
        if (s.content > 6 * said + 2 * n + 16) abort(); /* a tool's answer is spelled as JSON */
    } else if (s.content > said) {
        abort();
    }
    free(text);
    return 0;
}
