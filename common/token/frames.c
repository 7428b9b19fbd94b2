/* frames.c - see frames.h. The prompt is looked at as bytes, each of which knows its token. */
#include "frames.h"

#include <string.h>

#include "../base/mem.h"

struct text {
    uint8_t *s;
    uint32_t *token; /* [n] of each byte */
    size_t n;
    bool *stays; /* [tokens] */
};

/* Marks that open a turn. Its header ends with a line. */
static const char *const turns[] = {"<|im_start|>", "<|start_header_id|>", "<|turn>", "<start_of_turn>"};
/* Whose words no token may be taken from. */
static const char *const roles[] = {"system", "developer", "tool", "ipython"};
static const struct {
    const char *open, *close;
} tools[] = {{"<tools>", "</tools>"},
             {"<tool_call>", "</tool_call>"},
             {"<tool_response>", "</tool_response>"},
             {"<|tool>", "<tool|>"},
             {"<|tool_call>", "<tool_call|>"},
             {"<|tool_response>", "<tool_response|>"},
             {"<|python_tag|>", "<|eom_id|>"}};

/* The first place from `from` on; x->n: none. */
static size_t find(const struct text *x, size_t from, const char *mark)
{
    const uint8_t *at = from < x->n ? memmem(x->s + from, x->n - from, mark, strlen(mark)) : NULL;
    return at ? (size_t)(at - x->s) : x->n;
}

/* The tokens of the bytes [from, end). */
static void stay(struct text *x, size_t from, size_t end)
{
    if (from < end) memset(x->stays + x->token[from], 1, x->token[end - 1] - x->token[from] + 1);
}

static size_t next_turn(const struct text *x, size_t from, size_t *length)
{
    size_t first = x->n;
    for (size_t i = 0; i < sizeof turns / sizeof turns[0]; i++) {
        const size_t at = find(x, from, turns[i]);
        if (at < first) first = at, *length = strlen(turns[i]);
    }
    return first;
}

static bool guarded(const struct text *x, size_t role)
{
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++)
        if (x->n - role >= strlen(roles[i]) && !memcmp(x->s + role, roles[i], strlen(roles[i]))) return true;
    return false;
}

static void find_turns(struct text *x)
{
    size_t length = 0, at = next_turn(x, 0, &length);
    while (at < x->n) {
        const size_t role = at + length, next = next_turn(x, role, &length), line = find(x, role, "\n");
        const size_t header = line < next ? line + 1 : next;
        stay(x, at, guarded(x, role) ? next : header);
        at = next;
    }
}

static void find_tools(struct text *x)
{
    for (size_t i = 0; i < sizeof tools / sizeof tools[0]; i++)
        for (size_t at = find(x, 0, tools[i].open); at < x->n;) {
            const size_t close = find(x, at, tools[i].close),
                         end = close < x->n ? close + strlen(tools[i].close) : x->n;
            stay(x, at, end);
            at = find(x, end, tools[i].open);
        }
}

/* An embedding may have more rows than there are tokens: those are no text. */
static const uint8_t *piece_of(const struct tokenizer *t, int32_t id, size_t *n)
{
    bool written;
    *n = 0;
    return id >= 0 && id < tok_n_vocab(t) ? tok_piece(t, id, n, &written) : NULL;
}

int frames_find(const struct tokenizer *t, const int32_t *ids, size_t n, bool *stays, struct err *e)
{
    struct text x = {.stays = stays};
    size_t some;
    for (size_t i = 0; i < n; i++) {
        piece_of(t, ids[i], &some);
        x.n += some;
    }
    x.s = mem_alloc(x.n + 1);
    x.token = mem_alloc((x.n + 1) * sizeof *x.token);
    if (!x.s || !x.token) {
        mem_free(x.s);
        mem_free(x.token);
        return err_set(e, ERR_IO, "out of memory (a prompt of %zu bytes)", x.n);
    }
    x.n = 0;
    for (size_t i = 0; i < n; i++) {
        const uint8_t *piece = piece_of(t, ids[i], &some);
        if (some) memcpy(x.s + x.n, piece, some);
        for (size_t k = 0; k < some; k++) x.token[x.n++] = (uint32_t)i;
        stays[i] |= tok_is_special(t, ids[i]) != 0;
    }
    find_turns(&x);
    find_tools(&x);
    mem_free(x.s);
    mem_free(x.token);
    return 0;
}
