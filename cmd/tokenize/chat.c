/* chat.c - --chat of dflash-tokenize: which template, the messages, and the ids. */
#include "chat.h"
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include "../../common/base/io.h"
#include "../../common/base/json.h"
#include "../../common/base/mem.h"
#include "../../common/run/state.h"

#define MAX_CHAT ((uint64_t)1 << 30)

static int hint(struct err *e)
{
    char names[512];
    const struct chat_template *t;
    size_t at = 0;
    for (size_t i = 0; (t = chat_at(i)) && at < sizeof names; i++)
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", i ? ", " : "", chat_name(t));
    return err_hint(e, "--chat-template NAME takes one of: %s", names);
}

/* The template that the file carries, recognised. */
static int recognise(const struct chat_template **t, const struct gguf *g, uint32_t *crc, struct err *e)
{
    struct gguf_str text, arch = {"", 0};
    char a[64];
    int rc = gguf_get_str(g, "tokenizer.chat_template", &text, e);
    if (rc < 0 || gguf_get_str(g, "general.architecture", &arch, e) < 0) return -1;
    if (rc) {
        err_set(e, ERR_FORMAT, "%s: no chat template: the key tokenizer.chat_template is missing",
                g->map.path);
        return hint(e);
    }
    snprintf(a, sizeof a, "%.*s", (int)(arch.n < 60 ? arch.n : 60), arch.s);
    *crc = (uint32_t)crc32_z(0, (const Bytef *)text.s, text.n);
    *t = chat_recognise(text.s, text.n, a);
    if (*t) return 0;
    err_set(e, ERR_FORMAT,
            "%s: tokenizer.chat_template: %llu bytes, crc32 %08x: not a template that is known for "
            "architecture '%s'",
            g->map.path, (unsigned long long)text.n, *crc, a);
    return hint(e);
}

int chat_choose(const struct chat_template **t, const struct gguf *g, const struct tokenizer *tok,
                const char *name, const struct chat_options *o, const struct cli *cli, struct err *e)
{
    uint32_t crc = 0;
    *t = name ? chat_find(name) : NULL;
    if (name && !*t) {
        err_set(e, ERR_USAGE, "--chat-template %.60s is not known", name);
        return hint(e);
    }
    if (!name && recognise(t, g, &crc, e)) return -1;
    const char *n = chat_name(*t);
    if (o->think >= 0 && !chat_can_think(*t))
        return err_set(e, ERR_USAGE, "%s: the template %s has no thinking to switch",
                       o->think ? "--think" : "--no-think", n);
    if (o->date && !chat_has_date(*t))
        return err_set(e, ERR_USAGE, "--chat-date: the template %s names no date", n);
    if (chat_bos(*t) && tok_bos(tok) < 0)
        return err_set(
            e, ERR_FORMAT,
            "%s: the template %s begins with the bos token: tokenizer.ggml.bos_token_id is missing",
            g->map.path, n);
    for (const char *const *k = chat_tokens(*t); *k; k++)
        if (tok_special_id(tok, *k) < 0)
            return err_set(e, ERR_FORMAT,
                           "%s: the template %s needs the token %s, which the vocabulary lacks", g->map.path,
                           n, *k);
    if (name)
        cli_detail(cli, "chat template: %s, as asked for; thinking %s", n, chat_thinks(*t, o) ? "on" : "off");
    else
        cli_detail(cli, "chat template: %s, recognised (crc32 %08x); thinking %s", n, crc,
                   chat_thinks(*t, o) ? "on" : "off");
    return 0;
}

/* ---- messages ---- */

struct chat {
    struct chat_message *m; /* [n], texts borrowed from j */
    json_t **j;             /* [n] */
    size_t n, cap;
};

static int text_of(const json_t *o, const char *key, size_t line, struct chat_text *v, struct err *e)
{
    const json_t *s = json_object_get(o, key);
    char buf[96];
    *v = (struct chat_text){json_string_value(s), json_string_length(s)};
    return !s || json_is_string(s) || (json_is_null(s) && strcmp(key, "content"))
               ? 0
               : err_set(e, ERR_FORMAT, "stdin: line %zu: %s: expected a string, got %s", line, key,
                         json_show(s, buf, sizeof buf));
}

/* What a template does with a call is its business; that it is one is ours. */
static int calls_of(const json_t *o, size_t line, struct chat_message *m, struct err *e)
{
    json_t *call;
    size_t i;
    char buf[96];
    m->calls = json_object_get(o, "tool_calls");
    m->call_id = json_object_get(o, "tool_call_id");
    if (json_is_null(m->call_id)) m->call_id = NULL;
    if (m->calls && !json_is_array(m->calls))
        return err_set(e, ERR_FORMAT, "stdin: line %zu: tool_calls: expected an array, got %s", line,
                       json_show(m->calls, buf, sizeof buf));
    json_array_foreach(m->calls, i, call)
    {
        if (!json_is_object(call))
            return err_set(e, ERR_FORMAT, "stdin: line %zu: tool_calls: expected objects, got %s", line,
                           json_show(call, buf, sizeof buf));
    }
    return 0;
}

static int read_message(const json_t *o, size_t line, struct chat_message *m, struct err *e)
{
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    const char *key;
    json_t *v;
    char buf[96];
    if (!json_is_object(o))
        return err_set(e, ERR_FORMAT, "stdin: line %zu: expected an object, got %s", line,
                       json_show(o, buf, sizeof buf));
    const json_t *said = json_object_get(o, "role");
    const char *role = json_string_value(said);
    size_t r = 0;
    while (role && r < 4 && strcmp(role, roles[r])) r++;
    if (!role || r == 4)
        return err_set(e, ERR_FORMAT,
                       "stdin: line %zu: role: %.60s (expected system, user, assistant or tool)", line,
                       role   ? role
                       : said ? json_show(said, buf, sizeof buf)
                              : "none");
    m->role = (enum chat_role)r;
    json_object_foreach((json_t *)o, key, v)
    {
        if (!strcmp(key, "role") || !strcmp(key, "content")) continue;
        if (m->role == CHAT_ASSISTANT && !strcmp(key, "reasoning_content")) continue;
        if (m->role == CHAT_ASSISTANT && !strcmp(key, "tool_calls")) continue;
        if (m->role == CHAT_TOOL && !strcmp(key, "tool_call_id")) continue;
        return err_set(e, ERR_FORMAT, "stdin: line %zu: %.60s is not supported (expected role, content%s)",
                       line, key,
                       m->role == CHAT_ASSISTANT ? ", reasoning_content, tool_calls"
                       : m->role == CHAT_TOOL    ? ", tool_call_id"
                                                 : "");
    }
    if (calls_of(o, line, m, e)) return -1;
    const bool none = m->calls && json_is_null(json_object_get(o, "content"));
    if ((!none && text_of(o, "content", line, &m->content, e)) ||
        text_of(o, "reasoning_content", line, &m->reasoning, e))
        return -1;
    if (m->calls && !m->content.s) m->content = (struct chat_text){"", 0};
    return m->content.s ? 0 : err_set(e, ERR_FORMAT, "stdin: line %zu: content is missing", line);
}

static int add_line(struct chat *c, const uint8_t *p, size_t n, size_t line, struct err *e)
{
    char name[64];
    size_t blank = 0;
    while (blank < n && strchr(" \t\r", p[blank]) && p[blank]) blank++;
    if (blank == n) return 0;
    if (c->n == c->cap) {
        size_t cap = 2 * c->cap + 16;
        struct chat_message *m = mem_realloc(c->m, cap * sizeof *m);
        if (m) c->m = m;
        json_t **j = mem_realloc(c->j, cap * sizeof *j);
        if (j) c->j = j;
        if (!m || !j) return err_set(e, ERR_IO, "out of memory (messages)");
        c->cap = cap;
    }
    snprintf(name, sizeof name, "stdin: line %zu", line);
    if (json_parse(&c->j[c->n], p, n, name, e)) return -1;
    struct chat_message *m = &c->m[c->n];
    *m = (struct chat_message){0};
    return read_message(c->j[c->n++], line, m, e);
}

static int read_chat(struct chat *c, const uint8_t *p, uint64_t n, struct err *e)
{
    size_t line = 1;
    for (uint64_t i = 0; i < n; line++) {
        const uint8_t *nl = memchr(p + i, '\n', n - i);
        uint64_t end = nl ? (uint64_t)(nl - p) : n;
        if (add_line(c, p + i, end - i, line, e)) return -1;
        i = end + 1;
    }
    return c->n ? 0
                : err_set(
                      e, ERR_FORMAT,
                      "stdin: no messages (expected lines such as {\"role\":\"user\",\"content\":\"Hi\"})");
}

/* Words as they are, a message of that role. */
static int add_text(struct chat *c, const char *role, const char *what, const void *text, size_t n,
                    struct err *e)
{
    struct chat_message *m = mem_realloc(c->m, (c->n + 1) * sizeof *m);
    if (m) c->m = m;
    json_t **j = mem_realloc(c->j, (c->n + 1) * sizeof *j);
    if (j) c->j = j;
    if (!m || !j) return err_set(e, ERR_IO, "out of memory (messages)");
    c->cap = c->n + 1;
    json_use_mem();
    json_t *s = memchr(text, 0, n) ? NULL : json_stringn(text, n);
    if (!s) return err_set(e, ERR_FORMAT, "%s: not text (expected UTF-8 without U+0000)", what);
    c->j[c->n] = json_pack("{s:s,s:o}", "role", role, "content", s);
    if (!c->j[c->n]) return err_set(e, ERR_IO, "out of memory (messages)");
    c->m[c->n] = (struct chat_message){0};
    c->n++;
    return read_message(c->j[c->n - 1], 1, &c->m[c->n - 1], e);
}

int chat_read_tools(json_t **tools, const char *path, struct err *e)
{
    json_t *tool;
    size_t i;
    char buf[96];
    if (json_parse_file(tools, path, MAX_CHAT, e)) return -1;
    if (!json_array_size(*tools))
        return err_set(e, ERR_FORMAT, "%s: expected an array of declarations of tools, got %s", path,
                       json_show(*tools, buf, sizeof buf));
    json_array_foreach(*tools, i, tool)
    {
        if (!json_is_object(tool))
            return err_set(e, ERR_FORMAT, "%s: expected a declaration of a tool, an object, got %s", path,
                           json_show(tool, buf, sizeof buf));
    }
    return 0;
}

/* ---- a chat that goes on ---- */

int chat_behind_state(const char *path, const struct chat_template *t, const struct tokenizer *tok,
                      enum chat_behind *behind, struct err *e)
{
    struct state *s = NULL;
    struct state_info info;
    int32_t id = -1;
    int rc = state_open(&s, path, &info, e) || state_last_token(s, &id, e) ? -1 : 0;
    state_close(s);
    *behind = id == tok_special_id(tok, chat_turn_ends(t)) ? CHAT_BEHIND_TURN : CHAT_BEHIND_CUT;
    return rc;
}

/* ---- ids ---- */

struct encoding {
    struct tok_encoder *x;
    tok_ids_fn out;
    void *ctx;
};

static int put_text(void *ctx, const char *s, size_t n, bool markup, struct err *e)
{
    struct encoding *k = ctx;
    enum tok_special how = markup ? TOK_SPECIAL_ALL : TOK_SPECIAL_CHAT;
    return tok_encoder_special(k->x, how, k->out, k->ctx, e) ||
                   tok_encode(k->x, s, n, false, k->out, k->ctx, e)
               ? -1
               : 0;
}

int chat_encode(const struct chat_template *t, const struct tokenizer *tok, const struct chat_options *o,
                const struct chat_input *in, bool normalize, tok_ids_fn out, void *ctx, struct err *e)
{
    struct chat c = {0};
    struct encoding k = {NULL, out, ctx};
    uint8_t *data = NULL;
    uint64_t size = 0;
    int rc = -1;
    if (io_read_all(STDIN_FILENO, "stdin", MAX_CHAT, &data, &size, e) ||
        (in->system && add_text(&c, "system", "--chat-system", in->system, strlen(in->system), e)) ||
        (in->text ? add_text(&c, "user", "stdin", data, (size_t)size, e) : read_chat(&c, data, size, e)) ||
        tok_encoder_new(&k.x, tok, TOK_SPECIAL_ALL, normalize, e) ||
        chat_render(t, c.m, c.n, o, put_text, &k, e) || tok_encode(k.x, NULL, 0, true, out, ctx, e))
        goto done;
    rc = 0;
done:
    tok_encoder_free(k.x);
    for (size_t i = 0; i < c.n; i++) json_decref(c.j[i]);
    mem_free(c.j);
    mem_free(c.m);
    mem_free(data);
    return rc;
}
