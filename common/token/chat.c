/* chat.c - the templates: how each is told from the others, and what it says. Written from their published
 * texts (docs/chat.md); their string operations are Python's. */
#include "chat_priv.h"
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "../base/mem.h"
#include "tokenizer_priv.h"

/* ---- texts ---- */

int chat_mark(const struct render *r, const char *s, struct err *e)
{
    return r->out(r->ctx, s, strlen(s), true, e);
}

int chat_say(const struct render *r, struct chat_text v, struct err *e)
{
    return v.n ? r->out(r->ctx, v.s, v.n, false, e) : 0;
}

/* header, content, footer: a turn. */
static int turn(const struct render *r, const char *header, struct chat_text v, const char *footer,
                struct err *e)
{
    return chat_mark(r, header, e) || chat_say(r, v, e) || chat_mark(r, footer, e) ? -1 : 0;
}

/* Python's str.isspace. */
static bool is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
           c == 0x3000;
}

struct chat_text chat_trim(struct chat_text v)
{
    const uint8_t *p = (const uint8_t *)v.s;
    size_t a = 0, b = v.n, len;
    while (a < b && is_space(tok_char(p + a, &len))) a += len;
    while (b > a) {
        size_t k = b - 1;
        while (k > a && (p[k] & 0xc0) == 0x80) k--;
        if (!is_space(tok_char(p + k, &len))) break;
        b = k;
    }
    return (struct chat_text){v.s + a, b - a};
}

/* lstrip('\n'), rstrip('\n') */
static struct chat_text lines_l(struct chat_text v)
{
    while (v.n && v.s[0] == '\n') v.s++, v.n--;
    return v;
}

static struct chat_text lines_r(struct chat_text v)
{
    while (v.n && v.s[v.n - 1] == '\n') v.n--;
    return v;
}

static const char *find(struct chat_text v, const char *what)
{
    return memmem(v.s, v.n, what, strlen(what));
}

/* split(what)[0] and split(what)[-1]; the whole where what is not in it. */
struct chat_text chat_before(struct chat_text v, const char *what)
{
    const char *p = find(v, what);
    return p ? (struct chat_text){v.s, (size_t)(p - v.s)} : v;
}

static struct chat_text after_last(struct chat_text v, const char *what)
{
    for (const char *p; (p = find(v, what)) != NULL;) {
        p += strlen(what);
        v = (struct chat_text){p, v.n - (size_t)(p - v.s)};
    }
    return v;
}

static bool starts(struct chat_text v, const char *what)
{
    size_t k = strlen(what);
    return v.n >= k && memcmp(v.s, what, k) == 0;
}

static bool ends(struct chat_text v, const char *what)
{
    size_t k = strlen(what);
    return v.n >= k && memcmp(v.s + v.n - k, what, k) == 0;
}

int chat_refuse(const struct render *r, size_t i, const char *why, struct err *e)
{
    return err_set(e, ERR_FORMAT, "message %zu: template %s: %s", i + 1, r->t->name, why);
}

/* ---- Qwen: ChatML ---- */

#define TOOL_OPEN "<tool_response>"
#define TOOL_CLOSE "</tool_response>"

/* *query of r; false: every message of the user's is a tool's answer. In a chat that goes on the query is
 * before the messages then. */
static bool find_query(struct render *r, bool trimmed)
{
    r->query = !r->begins ? SIZE_MAX : r->n ? r->n - 1 : 0;
    for (size_t i = r->n; i-- > 0;) {
        struct chat_text v = trimmed ? chat_trim(r->m[i].content) : r->m[i].content;
        if (r->m[i].role != CHAT_USER || (starts(v, TOOL_OPEN) && ends(v, TOOL_CLOSE))) continue;
        r->query = i;
        return true;
    }
    return false;
}

static bool behind_query(const struct render *r, size_t i)
{
    return r->query == SIZE_MAX || i > r->query;
}

/* Answers of tools are a turn of the user's, those in a row one. first: of the whole chat opens one too. */
static int qwen_tool(const struct render *r, size_t i, struct chat_text v, bool first, struct err *e)
{
    if ((i ? r->m[i - 1].role != CHAT_TOOL : first) && chat_mark(r, "<|im_start|>user", e)) return -1;
    if (turn(r, "\n" TOOL_OPEN "\n", v, "\n" TOOL_CLOSE, e)) return -1;
    return i + 1 == r->n || r->m[i + 1].role != CHAT_TOOL ? chat_mark(r, "<|im_end|>\n", e) : 0;
}

/* What the assistant thought and what it said, where the one stands before the other in its content. */
static void split_thought(struct chat_text *content, struct chat_text *thought)
{
    if (thought->s || !find(*content, "</think>")) return;
    *thought = lines_l(after_last(lines_r(chat_before(*content, "</think>")), "<think>"));
    *content = lines_l(after_last(*content, "</think>"));
}

/* said: what the template takes for the content when it asks whether there is any before a call. */
static int qwen_assistant(const struct render *r, size_t i, bool shown, struct chat_text thought,
                          struct chat_text content, struct chat_text said, struct err *e)
{
    if (chat_mark(r, "<|im_start|>assistant\n", e) ||
        (shown && turn(r, "<think>\n", thought, "\n</think>\n\n", e)) || chat_say(r, content, e) ||
        chat_calls(r, i, said, e))
        return -1;
    return chat_mark(r, "<|im_end|>\n", e);
}

/* The system turn of Qwen 3 where tools are declared. */
static int qwen3_tools(const struct render *r, struct err *e)
{
    if (chat_mark(r, "<|im_start|>system\n", e) ||
        (r->m[0].role == CHAT_SYSTEM && turn(r, "", r->m[0].content, "\n\n", e)))
        return -1;
    return chat_declare(r, e) || chat_mark(r, "<|im_end|>\n", e) ? -1 : 0;
}

static int render_qwen3(const struct render *from, struct err *e)
{
    struct render copy = *from, *r = &copy;
    find_query(r, false);
    if (r->o->tools && qwen3_tools(r, e)) return -1;
    for (size_t i = r->o->tools && r->m[0].role == CHAT_SYSTEM; i < r->n; i++) {
        struct chat_text v = r->m[i].content, thought = r->m[i].reasoning;
        int rc;
        switch (r->m[i].role) {
        case CHAT_SYSTEM: rc = turn(r, "<|im_start|>system\n", v, "<|im_end|>\n", e); break;
        case CHAT_USER: rc = turn(r, "<|im_start|>user\n", v, "<|im_end|>\n", e); break;
        case CHAT_TOOL: rc = qwen_tool(r, i, v, true, e); break;
        default:
            if (r->t->think != THINK_NEVER) split_thought(&v, &thought);
            bool shown = r->t->think != THINK_NEVER && behind_query(r, i) && (i + 1 == r->n || thought.n);
            rc = qwen_assistant(r, i, shown, lines_l(lines_r(thought)), shown ? lines_l(v) : v, v, e);
        }
        if (rc) return -1;
    }
    if (!r->o->generation_prompt) return 0;
    if (r->t->think == THINK_ALWAYS) return chat_mark(r, "<|im_start|>assistant\n<think>\n", e);
    return r->t->think == THINK_NEVER || r->think
               ? chat_mark(r, "<|im_start|>assistant\n", e)
               : chat_mark(r, "<|im_start|>assistant\n<think>\n\n</think>\n\n", e);
}

/* What the template of Qwen 3.8 says to the model where nothing else is asked for. */
#define EFFORT                                                                                               \
    "Reasoning effort is set to xhigh. Please think carefully through the task, validate key assumptions, "  \
    "consider "                                                                                              \
    "plausible alternatives, and prioritize correctness, consistency, and clarity in the final answer."

static int qwen35_system(const struct render *r, struct err *e)
{
    const bool has = r->n && r->m[0].role == CHAT_SYSTEM, effort = r->t->effort && r->think;
    struct chat_text v = has ? chat_trim(r->m[0].content) : (struct chat_text){"", 0};
    if (r->o->tools)
        return chat_mark(r, effort ? "<|im_start|>system\n" EFFORT "\n\n" : "<|im_start|>system\n", e) ||
                       chat_declare(r, e) || (v.n && turn(r, "\n\n", v, "", e)) ||
                       chat_mark(r, "<|im_end|>\n", e)
                   ? -1
                   : 0;
    if (r->t->effort ? !v.n && !effort : !has) return 0;
    return turn(r,
                effort ? v.n ? "<|im_start|>system\n" EFFORT "\n\n" : "<|im_start|>system\n" EFFORT
                       : "<|im_start|>system\n",
                v, "<|im_end|>\n", e);
}

static int render_qwen35(const struct render *from, struct err *e)
{
    struct render copy = *from, *r = &copy;
    if (!find_query(r, true) && r->begins)
        return chat_refuse(r, r->n ? r->n - 1 : 0, "there is no message of the user's", e);
    if (r->begins && qwen35_system(r, e)) return -1;
    for (size_t i = 0; i < r->n; i++) {
        struct chat_text v = chat_trim(r->m[i].content), thought = r->m[i].reasoning;
        int rc = 0;
        switch (r->m[i].role) {
        case CHAT_SYSTEM:
            if (i || !r->begins) rc = chat_refuse(r, i, "role system may only begin the chat", e);
            break;
        case CHAT_USER: rc = turn(r, "<|im_start|>user\n", v, "<|im_end|>\n", e); break;
        case CHAT_TOOL: rc = qwen_tool(r, i, v, !r->begins, e); break;
        default:
            if (!r->t->effort) split_thought(&v, &thought);
            if (thought.s) thought = chat_trim(thought);
            rc = qwen_assistant(r, i, r->t->keep || behind_query(r, i), thought, v, chat_trim(v), e);
        }
        if (rc) return -1;
    }
    if (!r->o->generation_prompt) return 0;
    return chat_mark(
        r, r->think ? "<|im_start|>assistant\n<think>\n" : "<|im_start|>assistant\n<think>\n\n</think>\n\n",
        e);
}

/* ---- Llama 3 ---- */

static int llama_turn(const struct render *r, const char *role, struct chat_text v, struct err *e)
{
    return chat_mark(r, "<|start_header_id|>", e) || chat_mark(r, role, e) ||
                   turn(r, "<|end_header_id|>\n\n", v, "<|eot_id|>", e)
               ? -1
               : 0;
}

static int llama_tool(const struct render *r, struct chat_text v, struct err *e)
{
    return chat_mark(r, "<|start_header_id|>ipython<|end_header_id|>\n\n", e) || chat_say_quoted(r, v, e) ||
                   chat_mark(r, "<|eot_id|>", e)
               ? -1
               : 0;
}

static int llama_system(const struct render *r, struct chat_text v, struct err *e)
{
    char today[32] = "26 Jul 2024"; /* what the template of Llama 3.1 says on any day */
    if (r->t->date == DATE_TODAY) {
        time_t now = time(NULL);
        struct tm tm;
        static const char *const month[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                            "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
        localtime_r(&now, &tm);
        snprintf(today, sizeof today, "%02d %s %d", tm.tm_mday, month[tm.tm_mon], tm.tm_year + 1900);
    }
    const char *date = r->o->date ? r->o->date : today;
    return chat_mark(r, "<|start_header_id|>system<|end_header_id|>\n\n", e) ||
                   (r->o->tools && chat_mark(r, "Environment: ipython\n", e)) ||
                   chat_mark(r, "Cutting Knowledge Date: December 2023\nToday Date: ", e) ||
                   r->out(r->ctx, date, strlen(date), false, e) || turn(r, "\n\n", v, "<|eot_id|>", e)
               ? -1
               : 0;
}

static int render_llama3(const struct render *r, struct err *e)
{
    static const char *const role[] = {"system", "user", "assistant"};
    size_t i = 0;
    if (r->t->date != DATE_NONE && r->begins) {
        i = r->n && r->m[0].role == CHAT_SYSTEM;
        if (llama_system(r, i ? chat_trim(r->m[0].content) : (struct chat_text){"", 0}, e)) return -1;
    }
    if (r->o->tools) { /* in the first message, whoever said it */
        if (i == r->n || r->m[i].calls)
            return chat_refuse(r, i, "tools are declared in the first message, which is to have words", e);
        if (chat_mark(r, "<|start_header_id|>user<|end_header_id|>\n\n", e) || chat_declare(r, e) ||
            turn(r, "", chat_trim(r->m[i].content), "<|eot_id|>", e))
            return -1;
        i++;
    }
    for (; i < r->n; i++) {
        if (r->m[i].calls) {
            if (chat_mark(r, "<|start_header_id|>assistant<|end_header_id|>\n\n", e) ||
                chat_calls(r, i, r->m[i].content, e) || chat_mark(r, "<|eot_id|>", e))
                return -1;
        } else if (r->m[i].role == CHAT_TOOL) {
            if (r->t->date == DATE_NONE) return chat_refuse(r, i, "has no role tool", e);
            if (llama_tool(r, r->m[i].content, e)) return -1;
        } else if (llama_turn(r, role[r->m[i].role], chat_trim(r->m[i].content), e)) {
            return -1;
        }
    }
    return r->o->generation_prompt ? chat_mark(r, "<|start_header_id|>assistant<|end_header_id|>\n\n", e) : 0;
}

/* ---- the table ---- */

static const char *const chatml[] = {"<|im_start|>", "<|im_end|>", NULL};
static const char *const qwen[] = {"<|im_start|>", "<|im_end|>", "<think>", "</think>", NULL};
static const char *const llama[] = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", NULL};
#define GEMMA_TOKENS "<|turn>", "<turn|>", "<|think|>", "<|channel>", "<channel|>"
static const char *const gemma[] = {GEMMA_TOKENS, NULL};
static const char *const gemma_tools[] = {GEMMA_TOKENS,       "<|tool>",      "<tool|>",
                                          "<|tool_call>",     "<tool_call|>", "<|tool_response>",
                                          "<tool_response|>", "<|\"|>",       NULL};

#define QWEN3_HAS "<|im_start|>", "ns.last_query_index", "message.role == \"system\" and not loop.first"
#define QWEN35_HAS                                                                                           \
    "render_content(", "System message must be at the beginning.", "No user query found in messages."
#define THINK_OFF_TEXT "enable_thinking is defined and enable_thinking is false"
#define THINK_ON_TEXT "enable_thinking is defined and enable_thinking is true"
#define OTHER "or reasoning_content %}" /* edited copies that show more reasoning than the published text */
#define GEMMA_HAS "'<|turn>' + role + '\\n'", "strip_thinking(message['content'])", "'<turn|>\\n'"
#define GEMMA_EMPTY "'<|channel>thought\\n<channel|>'"
#define JOIN "continue_same_model_turn"
#define LLAMA_HAS "<|start_header_id|>", "message['content'] | trim + '<|eot_id|>'"
#define KNOWLEDGE "Cutting Knowledge Date: December 2023"

/* What the templates of a family have in common. */
#define QWEN3_TURNS                                                                                          \
    .tools = TOOLS_QWEN3, .arch = "qwen3", .turn_ends = "<|im_end|>", .between = "\n", .render = render_qwen3
#define QWEN35_TURNS                                                                                         \
    .tools = TOOLS_QWEN35, .arch = "qwen35", .tokens = qwen, .turn_ends = "<|im_end|>", .between = "\n",     \
    .render = render_qwen35
#define LLAMA3_TURNS                                                                                         \
    .arch = "llama", .tokens = llama, .turn_ends = "<|eot_id|>", .between = "", .render = render_llama3,     \
    .bos = true
#define GEMMA4_TURNS                                                                                         \
    .arch = "gemma4", .turn_ends = "<turn|>", .between = "\n", .render = chat_render_gemma4, .bos = true,    \
    .think = THINK_OFF

static const struct chat_template templates[] = {
    {.name = "qwen3",
     QWEN3_TURNS,
     .has = {QWEN3_HAS, THINK_OFF_TEXT, "reasoning_content.strip('\\n')"},
     .lacks = {OTHER, "render_content("},
     .tokens = qwen,
     .think = THINK_ON},
    {.name = "qwen3-thinking",
     QWEN3_TURNS,
     .has = {QWEN3_HAS, "'<|im_start|>assistant\\n<think>\\n' }}"},
     .lacks = {OTHER, "render_content(", "enable_thinking"},
     .tokens = qwen,
     .think = THINK_ALWAYS},
    {.name = "qwen3-instruct",
     QWEN3_TURNS,
     .has = {"<|im_start|>", "message.role == \"system\" and not loop.first"},
     .lacks = {"think>", "You are Qwen", "last_query_index", "reasoning"},
     .tokens = chatml},
    {.name = "qwen3.5",
     QWEN35_TURNS,
     .has = {QWEN35_HAS, THINK_OFF_TEXT},
     .lacks = {OTHER, "preserve_thinking", "effort"},
     .think = THINK_ON},
    {.name = "qwen3.5-small",
     QWEN35_TURNS,
     .has = {QWEN35_HAS, THINK_ON_TEXT},
     .lacks = {OTHER, "preserve_thinking", "effort"},
     .think = THINK_OFF},
    {.name = "qwen3.6",
     QWEN35_TURNS,
     .json_values = true,
     .has = {QWEN35_HAS, THINK_OFF_TEXT,
             "(preserve_thinking is defined and preserve_thinking is true) or (loop.index0 > "
             "ns.last_query_index)"},
     .lacks = {OTHER, "effort"},
     .think = THINK_ON},
    {.name = "qwen3.8",
     QWEN35_TURNS,
     .json_values = true,
     .has = {QWEN35_HAS, THINK_OFF_TEXT,
             "preserve_thinking is undefined or preserve_thinking is true or loop.index0", EFFORT},
     .lacks = {OTHER},
     .think = THINK_ON,
     .keep = true,
     .effort = true},
    {.name = "llama3",
     LLAMA3_TURNS,
     .has = {LLAMA_HAS, "loop_messages"},
     .lacks = {"tool", "Cutting", "think>"}},
    {.name = "llama3.1",
     LLAMA3_TURNS,
     .tools = TOOLS_LLAMA,
     .has = {LLAMA_HAS, KNOWLEDGE, "\"26 Jul 2024\""},
     .lacks = {"strftime_now", "think>"},
     .date = DATE_FIXED},
    {.name = "llama3.2",
     LLAMA3_TURNS,
     .tools = TOOLS_LLAMA,
     .has = {LLAMA_HAS, KNOWLEDGE, "strftime_now(\"%d %b %Y\")"},
     .lacks = {"think>"},
     .date = DATE_TODAY},
    {.name = "gemma4",
     GEMMA4_TURNS,
     .has = {GEMMA_HAS, "'<|think|>' -", GEMMA_EMPTY},
     .lacks = {JOIN},
     .tokens = gemma,
     .empty = true},
    {.name = "gemma4-e",
     GEMMA4_TURNS,
     .has = {GEMMA_HAS, "'<|think|>' -"},
     .lacks = {JOIN, GEMMA_EMPTY},
     .tokens = gemma},
    {.name = "gemma4-2",
     GEMMA4_TURNS,
     .has = {GEMMA_HAS, "'<|think|>\\n' -", JOIN},
     .lacks = {GEMMA_EMPTY, "continues_into_next"},
     .tokens = gemma_tools,
     .newline = true,
     .tools = TOOLS_GEMMA,
     .reasoning = THOUGHTS_OF_CALLS,
     .join = 1},
    {.name = "gemma4-3",
     GEMMA4_TURNS,
     .has = {GEMMA_HAS, "'<|think|>\\n' -", "continues_into_next",
             "> ns_turn.last_user_idx) or (preserve_thinking and message.get('tool_calls'))"},
     .lacks = {GEMMA_EMPTY},
     .tokens = gemma_tools,
     .newline = true,
     .tools = TOOLS_GEMMA,
     .json_values = true,
     .reasoning = THOUGHTS_ALL,
     .join = 2},
};
#define N_TEMPLATES (sizeof templates / sizeof *templates)

const struct chat_template *chat_find(const char *name)
{
    for (size_t i = 0; i < N_TEMPLATES; i++)
        if (!strcmp(templates[i].name, name)) return &templates[i];
    return NULL;
}

const struct chat_template *chat_recognise(const char *text, size_t n, const char *arch)
{
    const struct chat_text v = {text, n};
    for (size_t i = 0; i < N_TEMPLATES; i++) {
        const struct chat_template *t = &templates[i];
        /* "qwen3" is also what "qwen3moe" begins with, and what "qwen35" does */
        bool fits = !strncmp(arch, t->arch, strlen(t->arch)) &&
                    (strcmp(t->arch, "qwen3") || strncmp(arch, "qwen35", 6));
        for (int k = 0; k < 6 && fits && t->has[k]; k++) fits = find(v, t->has[k]);
        for (int k = 0; k < 4 && fits && t->lacks[k]; k++) fits = !find(v, t->lacks[k]);
        if (fits) return t;
    }
    return NULL;
}

const char *chat_name(const struct chat_template *t)
{
    return t->name;
}

const struct chat_template *chat_at(size_t i)
{
    return i < N_TEMPLATES ? &templates[i] : NULL;
}

bool chat_bos(const struct chat_template *t)
{
    return t->bos;
}

const char *chat_turn_ends(const struct chat_template *t)
{
    return t->turn_ends;
}

bool chat_can_think(const struct chat_template *t)
{
    return t->think == THINK_ON || t->think == THINK_OFF;
}

bool chat_thinks(const struct chat_template *t, const struct chat_options *o)
{
    if (!chat_can_think(t)) return t->think == THINK_ALWAYS;
    return o->think < 0 ? t->think == THINK_ON : o->think;
}

bool chat_has_date(const struct chat_template *t)
{
    return t->date != DATE_NONE;
}

const char *const *chat_tokens(const struct chat_template *t)
{
    return t->tokens;
}

int chat_render(const struct chat_template *t, const struct chat_message *m, size_t n,
                const struct chat_options *o, chat_fn out, void *ctx, struct err *e)
{
    struct render r = {t, m, n, o, out, ctx, chat_thinks(t, o), 0, o->behind == CHAT_BEGINS};
    if (!n) return err_set(e, ERR_FORMAT, "template %s: no messages", t->name);
    if (o->tools && t->tools == TOOLS_NONE)
        return err_set(e, ERR_FORMAT, "template %s: tools are not supported", t->name);
    if (o->tools && !r.begins)
        return err_set(e, ERR_FORMAT, "tools are declared where a chat begins, and this one goes on");
    for (size_t i = 0; i < n; i++)
        if (m[i].calls && t->tools == TOOLS_NONE)
            return chat_refuse(&r, i, "calls of tools are not supported", e);
    if (!r.begins && m[0].role == CHAT_ASSISTANT)
        return chat_refuse(&r, 0, "an answer stands before the messages, and this is one more", e);
    if (o->behind == CHAT_BEHIND_CUT && chat_mark(&r, t->turn_ends, e)) return -1;
    if (!r.begins && chat_mark(&r, t->between, e)) return -1;
    return t->render(&r, e);
}
