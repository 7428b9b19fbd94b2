/* chat_gemma.c - the templates of Gemma 4: turns, declarations and calls of tools. What a template renders of
 * a declaration that is none by JSON Schema (a type that is a list, a text where an object belongs) is
 * refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "../base/mem.h"
#include "chat_priv.h"
#include "tokenizer_priv.h"

#define QUOTE "<|\"|>" /* a token of its own, on both sides of a string */

/* ---- values ---- */

static struct chat_text text_of(const json_t *s)
{
    return (struct chat_text){json_string_value(s), json_string_length(s)};
}

static int say_quoted(const struct render *r, struct chat_text v, struct err *e)
{
    return chat_mark(r, QUOTE, e) || chat_say(r, v, e) || chat_mark(r, QUOTE, e) ? -1 : 0;
}

/* Jinja's dictsort: keys by their lower case, those that are equal by it in the object's order. */
struct entry {
    const char *key;
    json_t *value;
    uint8_t *low; /* the key's lower case */
    size_t at;
};

static int by_key(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int c = strcmp((const char *)x->low, (const char *)y->low);
    return c ? c : x->at < y->at ? -1 : x->at > y->at;
}

/* Lower case, a character by a character: 4 bytes at most for each of the key's. */
static uint8_t *lower(const char *key)
{
    const uint8_t *p = (const uint8_t *)key;
    const size_t n = strlen(key);
    uint8_t *low = mem_alloc(4 * n + 1), *to = low;
    size_t len;
    for (size_t i = 0; low && i < n; i += len)
        to += utf8proc_encode_char(utf8proc_tolower((utf8proc_int32_t)tok_char(p + i, &len)), to);
    if (low) *to = 0;
    return low;
}

static void free_entries(struct entry *v, size_t n)
{
    for (size_t i = 0; v && i < n; i++) mem_free(v[i].low);
    mem_free(v);
}

static int sort_entries(struct entry **out, const json_t *object, struct err *e)
{
    const size_t n = json_object_size(object);
    struct entry *v = mem_calloc(n + 1, sizeof *v);
    const char *key;
    json_t *value;
    size_t i = 0;
    bool ok = v != NULL;
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        if (!ok) break;
        v[i] = (struct entry){key, value, lower(key), i};
        ok = v[i++].low != NULL;
    }
    if (!ok) {
        free_entries(v, i);
        return err_set(e, ERR_IO, "out of memory (declarations)");
    }
    qsort(v, n, sizeof *v, by_key);
    *out = v;
    return 0;
}

/* An argument: strings in their quotes, keys in them where quoted. */
static int say_argument(const struct render *r, const json_t *j, bool quoted, struct err *e)
{
    struct entry *v = NULL;
    json_t *item;
    size_t i;
    int rc = 0;
    if (json_is_string(j)) return say_quoted(r, text_of(j), e);
    if (json_is_boolean(j)) return chat_mark(r, json_is_true(j) ? "true" : "false", e);
    if (json_is_null(j)) return chat_mark(r, r->t->json_values ? "null" : "None", e);
    if (json_is_number(j)) return chat_say_json(r, j, 0, e);
    if (json_is_array(j)) {
        if (chat_mark(r, "[", e)) return -1;
        json_array_foreach(j, i, item)
        {
            if ((i && chat_mark(r, ",", e)) || say_argument(r, item, quoted, e)) return -1;
        }
        return chat_mark(r, "]", e);
    }
    if (sort_entries(&v, j, e)) return -1;
    rc = chat_mark(r, "{", e);
    for (i = 0; i < json_object_size(j) && rc == 0; i++) {
        struct chat_text key = {v[i].key, strlen(v[i].key)};
        rc = (i && chat_mark(r, ",", e)) || (quoted ? say_quoted(r, key, e) : chat_say(r, key, e)) ||
             chat_mark(r, ":", e) || say_argument(r, v[i].value, quoted, e);
    }
    free_entries(v, json_object_size(j));
    return rc || chat_mark(r, "}", e) ? -1 : 0;
}

/* ---- declarations ---- */

static int odd(const struct render *r, const char *what, const json_t *found, const char *expected,
               struct err *e)
{
    char buf[96];
    return err_set(e, ERR_FORMAT, "template %s: a declaration of a tool: %s: expected %s, got %s", r->t->name,
                   what, expected, json_show(found, buf, sizeof buf));
}

/* Python's truth. */
static bool is_true(const json_t *j)
{
    return j && !json_is_null(j) && !json_is_false(j) && !(json_is_string(j) && !json_string_length(j)) &&
           !(json_is_array(j) && !json_array_size(j)) && !(json_is_object(j) && !json_object_size(j)) &&
           !(json_is_number(j) && json_number_value(j) == 0);
}

/* A type in upper case; none is an empty one. */
static int say_type(const struct render *r, const json_t *type, struct err *e)
{
    char up[64];
    size_t n = json_string_length(type);
    if (type && (!json_is_string(type) || n >= sizeof up)) return odd(r, "type", type, "a short string", e);
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)json_string_value(type)[i];
        if (c >= 0x80) return odd(r, "type", type, "a string of ASCII", e);
        up[i] = (char)(c >= 'a' && c <= 'z' ? c - 32 : c);
    }
    return say_quoted(r, (struct chat_text){up, n}, e);
}

static bool is_type(const json_t *type, const char *name)
{
    const char *s = json_string_value(type);
    return s && !strcasecmp(s, name);
}

/* required:[...], names of parameters. */
static int say_required(const struct render *r, const json_t *names, struct err *e)
{
    json_t *name;
    size_t i;
    if (!json_is_array(names)) return odd(r, "required", names, "an array of strings", e);
    if (chat_mark(r, "required:[", e)) return -1;
    json_array_foreach(names, i, name)
    {
        if (!json_is_string(name)) return odd(r, "required", name, "a string", e);
        if ((i && chat_mark(r, ",", e)) || say_quoted(r, text_of(name), e)) return -1;
    }
    return chat_mark(r, "]", e);
}

static int say_description(const struct render *r, const json_t *d, struct err *e)
{
    if (d && !json_is_string(d)) return odd(r, "description", d, "a string", e);
    return chat_mark(r, "description:", e) || say_quoted(r, text_of(d), e) ? -1 : 0;
}

static int say_parameters(const struct render *r, const json_t *properties, bool filter, struct err *e);

/* What the elements of an array are. */
static int say_items(const struct render *r, const json_t *items, struct err *e)
{
    struct entry *v = NULL;
    bool any = false;
    int rc;
    if (sort_entries(&v, items, e)) return -1;
    rc = chat_mark(r, "items:{", e);
    for (size_t i = 0; i < json_object_size(items) && rc == 0; i++) {
        const json_t *j = v[i].value;
        json_t *type;
        size_t k;
        if (json_is_null(j)) continue;
        if (any && chat_mark(r, ",", e)) rc = -1;
        any = true;
        if (rc) break;
        if (!strcmp(v[i].key, "properties")) {
            rc = chat_mark(r, "properties:{", e) || (json_is_object(j) && say_parameters(r, j, false, e)) ||
                 chat_mark(r, "}", e);
        } else if (!strcmp(v[i].key, "required")) {
            rc = say_required(r, j, e);
        } else if (!strcmp(v[i].key, "type") && json_is_array(j)) {
            rc = chat_mark(r, "type:[", e);
            json_array_foreach(j, k, type)
            {
                if (rc == 0) rc = (k && chat_mark(r, ",", e)) || say_type(r, type, e);
            }
            if (rc == 0) rc = chat_mark(r, "]", e);
        } else if (!strcmp(v[i].key, "type")) {
            rc = chat_mark(r, "type:", e) || say_type(r, j, e);
        } else {
            rc = chat_say(r, (struct chat_text){v[i].key, strlen(v[i].key)}, e) || chat_mark(r, ":", e) ||
                 say_argument(r, j, true, e);
        }
    }
    free_entries(v, json_object_size(items));
    return rc || chat_mark(r, "}", e) ? -1 : 0;
}

/* A comma before all but the first of a parameter's parts. */
static int part(const struct render *r, bool *any, struct err *e)
{
    const bool before = *any;
    *any = true;
    return before ? chat_mark(r, ",", e) : 0;
}

static int say_parameter(const struct render *r, const char *key, const json_t *p, struct err *e)
{
    const json_t *type = json_object_get(p, "type"), *what = json_object_get(p, "description");
    const json_t *list = json_object_get(p, "enum"), *items = json_object_get(p, "items");
    const json_t *properties = json_object_get(p, "properties"), *required = json_object_get(p, "required");
    bool any = false;
    if (chat_say(r, (struct chat_text){key, strlen(key)}, e) || chat_mark(r, ":{", e)) return -1;
    if (is_true(what) && (part(r, &any, e) || say_description(r, what, e))) return -1;
    if (is_type(type, "string") && is_true(list) &&
        (part(r, &any, e) || chat_mark(r, "enum:", e) || say_argument(r, list, true, e)))
        return -1;
    if (is_type(type, "array") && json_is_object(items) && json_object_size(items) &&
        (part(r, &any, e) || say_items(r, items, e)))
        return -1;
    if (is_true(json_object_get(p, "nullable")) && (part(r, &any, e) || chat_mark(r, "nullable:true", e)))
        return -1;
    if (is_type(type, "object")) { /* without properties its other keys are taken for them */
        const bool has = json_is_object(properties);
        if (part(r, &any, e) || chat_mark(r, "properties:{", e) ||
            say_parameters(r, has ? properties : p, !has, e) || chat_mark(r, "}", e))
            return -1;
        if (is_true(required) && (part(r, &any, e) || say_required(r, required, e))) return -1;
    }
    return part(r, &any, e) || chat_mark(r, "type:", e) || say_type(r, type, e) || chat_mark(r, "}", e) ? -1
                                                                                                        : 0;
}

/* filter: leave keywords of a schema out; the template before July 2026 always does. */
static int say_parameters(const struct render *r, const json_t *properties, bool filter, struct err *e)
{
    static const char *const keywords[] = {"description", "type", "properties", "required", "nullable"};
    struct entry *v = NULL;
    bool any = false;
    int rc = 0;
    if (!json_is_object(properties)) return odd(r, "properties", properties, "an object", e);
    if (sort_entries(&v, properties, e)) return -1;
    for (size_t i = 0; i < json_object_size(properties) && rc == 0; i++) {
        bool left = false;
        for (int k = 0; k < 5; k++) left |= (filter || !r->t->json_values) && !strcmp(v[i].key, keywords[k]);
        if (left) continue;
        rc = part(r, &any, e) || say_parameter(r, v[i].key, v[i].value, e);
    }
    free_entries(v, json_object_size(properties));
    return rc ? -1 : 0;
}

/* The brace behind the parameters is the type's, as in the template. */
static int say_declaration(const struct render *r, const json_t *tool, struct err *e)
{
    const json_t *f = json_object_get(tool, "function");
    const json_t *name = json_object_get(f, "name"), *p = json_object_get(f, "parameters");
    const json_t *response = json_object_get(f, "response"), *k;
    if (!json_is_string(name)) return odd(r, "function.name", name, "a string", e);
    if (chat_mark(r, "<|tool>declaration:", e) || chat_say(r, text_of(name), e) || chat_mark(r, "{", e) ||
        say_description(r, json_object_get(f, "description"), e))
        return -1;
    if (is_true(p)) {
        if (!json_is_object(p)) return odd(r, "parameters", p, "an object", e);
        if (chat_mark(r, ",parameters:{", e)) return -1;
        if (is_true(k = json_object_get(p, "properties")) &&
            (chat_mark(r, "properties:{", e) || say_parameters(r, k, false, e) || chat_mark(r, "},", e)))
            return -1;
        if (is_true(k = json_object_get(p, "required")) && (say_required(r, k, e) || chat_mark(r, ",", e)))
            return -1;
        if (is_true(k = json_object_get(p, "type")) &&
            (chat_mark(r, "type:", e) || say_type(r, k, e) || chat_mark(r, "}", e)))
            return -1;
    }
    if (response) {
        if (!json_is_object(response)) return odd(r, "response", response, "an object", e);
        if (chat_mark(r, ",response:{", e)) return -1;
        if (is_true(k = json_object_get(response, "description")) &&
            (say_description(r, k, e) || chat_mark(r, ",", e)))
            return -1;
        if (is_type(k = json_object_get(response, "type"), "object") &&
            (chat_mark(r, "type:", e) || say_type(r, k, e) || chat_mark(r, "}", e)))
            return -1;
    }
    return chat_mark(r, "}<tool|>", e);
}

/* ---- turns ---- */

/* What the model said, without the thoughts in it: of each part that ends in <channel|>, what stands before
 * <|channel>. */
static int gemma_said(const struct render *r, struct chat_text v, bool *any, struct err *e)
{
    struct tok_buf b = {0};
    int rc = 0;
    *any = false;
    for (bool more = true; more && rc == 0;) {
        struct chat_text before = chat_before(v, "<channel|>");
        size_t used = before.n + strlen("<channel|>");
        more = before.n < v.n;
        if (more) v = (struct chat_text){v.s + used, v.n - used};
        before = chat_before(before, "<|channel>");
        rc = tok_buf_add(&b, before.s, before.n, e);
    }
    if (rc == 0 && b.n) {
        struct chat_text said = chat_trim((struct chat_text){(const char *)b.p, b.n});
        *any = said.n != 0;
        rc = chat_say(r, said, e);
    }
    mem_free(b.p);
    return rc;
}

static int say_call(const struct render *r, size_t i, const json_t *call, struct err *e)
{
    const json_t *f = json_object_get(call, "function"), *args = json_object_get(f, "arguments");
    const json_t *name = json_object_get(f, "name");
    struct entry *v = NULL;
    const size_t n = json_object_size(args);
    if (!json_is_string(name)) return chat_refuse(r, i, "a call of a tool without function.name", e);
    if (args && !json_is_null(args) && !json_is_object(args))
        return chat_refuse(r, i, "the arguments of a call are an object in this template", e);
    if (chat_mark(r, "<|tool_call>call:", e) || chat_say(r, text_of(name), e) || chat_mark(r, "{", e))
        return -1;
    if (sort_entries(&v, args, e)) return -1;
    int rc = 0;
    for (size_t k = 0; k < n && rc == 0; k++)
        rc = (k && chat_mark(r, ",", e)) || chat_say(r, (struct chat_text){v[k].key, strlen(v[k].key)}, e) ||
             chat_mark(r, ":", e) || say_argument(r, v[k].value, false, e);
    free_entries(v, n);
    return rc || chat_mark(r, "}<tool_call|>", e) ? -1 : 0;
}

/* The answer, under the name of the last call whose id it has. */
static int say_answer(const struct render *r, size_t calls, size_t i, struct err *e)
{
    const json_t *name = NULL, *id = r->m[i].call_id;
    json_t *call;
    size_t k;
    json_array_foreach(r->m[calls].calls, k, call)
    {
        const json_t *of = json_object_get(call, "id");
        if (of && json_is_null(of)) of = NULL;
        if (of == id || (of && id && json_equal(of, id)))
            name = json_object_get(json_object_get(call, "function"), "name");
    }
    if (!name) return chat_refuse(r, i, "no call of a tool before this answer has its tool_call_id", e);
    return chat_mark(r, "<|tool_response>response:", e) || chat_say(r, text_of(name), e) ||
                   chat_mark(r, "{value:", e) || say_quoted(r, r->m[i].content, e) ||
                   chat_mark(r, "}<tool_response|>", e)
               ? -1
               : 0;
}

/* What a message leaves behind it. */
enum ending { ENDED, CALLED, ANSWERED };

/* The message behind i that is no tool's; n: none. */
static size_t next_said(const struct render *r, size_t i)
{
    while (++i < r->n && r->m[i].role == CHAT_TOOL) {
    }
    return i;
}

static int gemma_model(const struct render *r, size_t i, bool goes_on, bool after_user, enum ending *end,
                       struct err *e)
{
    const struct chat_message *m = &r->m[i];
    const size_t n_calls = json_array_size(m->calls), next = next_said(r, i);
    const bool answered = n_calls && i + 1 < next, last = next == r->n;
    const bool shown = r->t->reasoning == THOUGHTS_ALL || (r->t->reasoning == THOUGHTS_OF_CALLS && n_calls);
    const bool stays =
        r->t->join == 2 && !last && r->m[next].role == CHAT_ASSISTANT && (!n_calls || answered);
    json_t *call;
    size_t k;
    bool said;
    if ((!(goes_on && r->t->join) && chat_mark(r, "<|turn>model\n", e)) ||
        (shown && after_user && m->reasoning.n &&
         (chat_mark(r, "<|channel>thought\n", e) || chat_say(r, m->reasoning, e) ||
          chat_mark(r, "\n<channel|>", e))))
        return -1;
    json_array_foreach(m->calls, k, call)
    {
        if (say_call(r, i, call, e)) return -1;
    }
    for (k = i + 1; answered && k < next; k++)
        if (say_answer(r, i, k, e)) return -1;
    if (gemma_said(r, m->content, &said, e)) return -1;
    *end = answered ? ANSWERED : n_calls ? CALLED : ENDED;
    if (*end == CALLED) return chat_mark(r, "<|tool_response>", e);
    if (stays || (answered && (r->t->join == 2 ? !said && last : !m->content.n))) return 0;
    return chat_mark(r, "<turn|>\n", e);
}

static int gemma_system(const struct render *r, bool has, struct err *e)
{
    json_t *tool;
    size_t i;
    if (chat_mark(r,
                  !r->think       ? "<|turn>system\n"
                  : r->t->newline ? "<|turn>system\n<|think|>\n"
                                  : "<|turn>system\n<|think|>",
                  e) ||
        (has && chat_say(r, chat_trim(r->m[0].content), e)))
        return -1;
    json_array_foreach(r->o->tools, i, tool)
    {
        if (say_declaration(r, tool, e)) return -1;
    }
    return chat_mark(r, "<turn|>\n", e);
}

static int gemma_turn(const struct render *r, const char *header, struct chat_text v, struct err *e)
{
    return chat_mark(r, header, e) || chat_say(r, chat_trim(v), e) || chat_mark(r, "<turn|>\n", e) ? -1 : 0;
}

int chat_render_gemma4(const struct render *r, struct err *e)
{
    const size_t first = r->begins && r->n && r->m[0].role == CHAT_SYSTEM;
    size_t last_user = 0, said = r->n; /* said: the message before that is no tool's */
    bool any_user = false;
    enum ending end = ENDED;
    if (((r->begins && (r->think || r->o->tools)) || first) && gemma_system(r, first, e)) return -1;
    for (size_t i = first; i < r->n; i++)
        if (r->m[i].role == CHAT_USER) last_user = i, any_user = true;
    for (size_t i = first; i < r->n; i++) {
        const bool goes_on = said < r->n && r->m[said].role == CHAT_ASSISTANT;
        int rc = 0;
        if (r->m[i].role == CHAT_TOOL) {
            if (!goes_on || !json_array_size(r->m[said].calls))
                return chat_refuse(r, i,
                                   r->t->tools == TOOLS_NONE
                                       ? "role tool belongs to a call of a tool, which is not supported"
                                       : "no call of a tool stands before this answer",
                                   e);
            continue;
        }
        end = ENDED;
        switch (r->m[i].role) {
        case CHAT_SYSTEM: rc = gemma_turn(r, "<|turn>system\n", r->m[i].content, e); break;
        case CHAT_USER: rc = gemma_turn(r, "<|turn>user\n", r->m[i].content, e); break;
        default: rc = gemma_model(r, i, goes_on, !any_user || i > last_user, &end, e);
        }
        if (rc) return -1;
        said = i;
    }
    if (!r->o->generation_prompt) return 0;
    if (end != ENDED) /* the model goes on in its turn */
        return end == ANSWERED && r->t->join == 2 && r->think ? chat_mark(r, "<|channel>thought\n", e) : 0;
    return chat_mark(
        r, r->t->empty && !r->think ? "<|turn>model\n<|channel>thought\n<channel|>" : "<|turn>model\n", e);
}
