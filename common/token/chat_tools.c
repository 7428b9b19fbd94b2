/* chat_tools.c - declarations and calls of tools, as the published templates write them: JSON as Python's
 * json.dumps does (ensure_ascii off), values as Python's str does where the template asks for that. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../base/mem.h"
#include "chat_priv.h"
#include "tokenizer_priv.h"

/* ---- JSON ---- */

static int add(struct tok_buf *b, const char *s, struct err *e)
{
    return tok_buf_add(b, s, strlen(s), e);
}

static int add_string(struct tok_buf *b, const char *s, size_t n, struct err *e)
{
    static const char plain[] = "\"\\\n\r\t\b\f", letter[] = "\"\\nrtbf";
    if (add(b, "\"", e)) return -1;
    for (size_t i = 0, run = 0; i <= n; i++) {
        const unsigned char c = i < n ? (unsigned char)s[i] : 0;
        if (i < n && c >= 0x20 && c != '"' && c != '\\') continue;
        if (tok_buf_add(b, s + run, i - run, e)) return -1;
        run = i + 1;
        if (i == n) break;
        char u[8] = {'\\'};
        const char *k = strchr(plain, c);
        if (k && c)
            u[1] = letter[k - plain];
        else
            snprintf(u, sizeof u, "\\u%04x", c);
        if (add(b, u, e)) return -1;
    }
    return add(b, "\"", e);
}

/* Python's repr of a float: the fewest digits that read back as it, with an exponent below 1e-4 and from 1e16
 * on. */
static int add_real(struct tok_buf *b, double x, struct err *e)
{
    char digits[40], out[64];
    int n = 17;
    for (int k = 1; k < n; k++) {
        snprintf(digits, sizeof digits, "%.*e", k - 1, x);
        if (strtod(digits, NULL) == x) n = k;
    }
    snprintf(digits, sizeof digits, "%.*e", n - 1, x);
    const int exponent = atoi(strchr(digits, 'e') + 1);
    if (exponent >= -4 && exponent < 16) {
        snprintf(out, sizeof out, "%.*f", n - 1 > exponent ? n - 1 - exponent : 0, x);
        if (!strchr(out, '.')) strcat(out, ".0");
        return add(b, out, e);
    }
    *strchr(digits, 'e') = 0;
    snprintf(out, sizeof out, "%se%c%02d", digits, exponent < 0 ? '-' : '+', abs(exponent));
    return add(b, out, e);
}

static int add_line(struct tok_buf *b, int indent, int level, struct err *e)
{
    if (indent && add(b, "\n", e)) return -1;
    for (int i = 0; i < indent * level; i++)
        if (add(b, " ", e)) return -1;
    return 0;
}

/* indent 0: one line. */
static int add_json(struct tok_buf *b, const json_t *j, int indent, int level, struct err *e)
{
    char number[32];
    const char *key;
    json_t *v;
    size_t i, n = 0;
    const char *between = indent ? "," : ", ";
    switch (json_typeof(j)) {
    case JSON_STRING: return add_string(b, json_string_value(j), json_string_length(j), e);
    case JSON_TRUE: return add(b, "true", e);
    case JSON_FALSE: return add(b, "false", e);
    case JSON_NULL: return add(b, "null", e);
    case JSON_REAL: return add_real(b, json_real_value(j), e);
    case JSON_INTEGER:
        snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, json_integer_value(j));
        return add(b, number, e);
    case JSON_ARRAY:
        if (!json_array_size(j)) return add(b, "[]", e);
        if (add(b, "[", e)) return -1;
        json_array_foreach(j, i, v)
        {
            if ((i && add(b, between, e)) || add_line(b, indent, level + 1, e) ||
                add_json(b, v, indent, level + 1, e))
                return -1;
        }
        return add_line(b, indent, level, e) || add(b, "]", e) ? -1 : 0;
    default:
        if (!json_object_size(j)) return add(b, "{}", e);
        if (add(b, "{", e)) return -1;
        json_object_foreach((json_t *)(uintptr_t)j, key, v)
        {
            if ((n++ && add(b, between, e)) || add_line(b, indent, level + 1, e) ||
                add_string(b, key, strlen(key), e) || add(b, ": ", e) || add_json(b, v, indent, level + 1, e))
                return -1;
        }
        return add_line(b, indent, level, e) || add(b, "}", e) ? -1 : 0;
    }
}

int chat_say_json(const struct render *r, const json_t *j, int indent, struct err *e)
{
    struct tok_buf b = {0};
    int rc = add_json(&b, j, indent, 0, e);
    if (rc == 0) rc = chat_say(r, (struct chat_text){(const char *)b.p, b.n}, e);
    mem_free(b.p);
    return rc;
}

int chat_say_quoted(const struct render *r, struct chat_text v, struct err *e)
{
    struct tok_buf b = {0};
    int rc = add_string(&b, v.s, v.n, e);
    if (rc == 0) rc = chat_say(r, (struct chat_text){(const char *)b.p, b.n}, e);
    mem_free(b.p);
    return rc;
}

/* What Python's str makes of a JSON value that is a scalar; of others JSON. */
static int say_value(const struct render *r, const json_t *j, struct err *e)
{
    if (json_is_string(j))
        return chat_say(r, (struct chat_text){json_string_value(j), json_string_length(j)}, e);
    if (!r->t->json_values && (json_is_boolean(j) || json_is_null(j))) {
        const char *s = json_is_true(j) ? "True" : json_is_null(j) ? "None" : "False";
        return chat_say(r, (struct chat_text){s, strlen(s)}, e);
    }
    return chat_say_json(r, j, 0, e);
}

/* ---- declarations ---- */

int chat_declare(const struct render *r, struct err *e)
{
    static const char *const before[] = {
        [TOOLS_QWEN3] = "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
                        "You are provided with function signatures within <tools></tools> XML tags:\n<tools>",
        [TOOLS_QWEN35] = "# Tools\n\nYou have access to the following functions:\n\n<tools>",
        [TOOLS_LLAMA] =
            "Given the following functions, please respond with a JSON for a function call with its proper "
            "arguments that best answers the given prompt.\n\nRespond in the format {\"name\": function "
            "name, "
            "\"parameters\": dictionary of argument name and its value}.Do not use variables.\n\n"};
    static const char *const behind[] = {
        [TOOLS_QWEN3] =
            "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
            "within "
            "<tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": "
            "<args-json-object>}\n</tool_call>",
        [TOOLS_QWEN35] =
            "\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO "
            "suffix:\n\n<tool_call>\n"
            "<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
            "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can "
            "span\nmultiple lines\n"
            "</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n- Function calls MUST follow "
            "the specified "
            "format: an inner <function=...></function> block must be nested within <tool_call></tool_call> "
            "XML tags\n"
            "- Required parameters MUST be specified\n- You may provide optional reasoning for your function "
            "call in natural "
            "language BEFORE the function call, but NOT after\n- If there is no function call available, "
            "answer the question "
            "like normal with your current knowledge and do not tell the user about function "
            "calls\n</IMPORTANT>",
        [TOOLS_LLAMA] = ""};
    const bool llama = r->t->tools == TOOLS_LLAMA;
    json_t *tool;
    size_t i;
    if (chat_mark(r, before[r->t->tools], e)) return -1;
    json_array_foreach(r->o->tools, i, tool)
    {
        if ((!llama && chat_mark(r, "\n", e)) || chat_say_json(r, tool, llama ? 4 : 0, e) ||
            (llama && chat_mark(r, "\n\n", e)))
            return -1;
    }
    return chat_mark(r, behind[r->t->tools], e);
}

/* ---- calls ---- */

static int say_name(const struct render *r, const json_t *call, size_t i, struct err *e)
{
    const json_t *name = json_object_get(call, "name");
    if (!json_is_string(name)) return chat_refuse(r, i, "a call of a tool without a name", e);
    return chat_say(r, (struct chat_text){json_string_value(name), json_string_length(name)}, e);
}

static int call_as_json(const struct render *r, const json_t *call, size_t i, const char *key, struct err *e)
{
    const json_t *args = json_object_get(call, "arguments");
    const bool text = json_is_string(args) && r->t->tools == TOOLS_QWEN3; /* JSON already */
    if (!args) return chat_refuse(r, i, "a call of a tool without arguments", e);
    if (chat_mark(r, "{\"name\": \"", e) || say_name(r, call, i, e) || chat_mark(r, "\", \"", e) ||
        chat_mark(r, key, e) || chat_mark(r, "\": ", e))
        return -1;
    return (text ? chat_say(r, (struct chat_text){json_string_value(args), json_string_length(args)}, e)
                 : chat_say_json(r, args, 0, e)) ||
                   chat_mark(r, "}", e)
               ? -1
               : 0;
}

static int call_by_parameters(const struct render *r, const json_t *call, size_t i, struct err *e)
{
    json_t *args = json_object_get(call, "arguments"), *v;
    const char *key;
    const bool none = !args || (r->t->effort && json_is_string(args) && !json_string_length(args));
    if (!none && !json_is_object(args))
        return chat_refuse(r, i, "the arguments of a call are an object in this template", e);
    if (chat_mark(r, "<function=", e) || say_name(r, call, i, e) || chat_mark(r, ">\n", e)) return -1;
    json_object_foreach(none ? NULL : args, key, v)
    {
        if (chat_mark(r, "<parameter=", e) || chat_say(r, (struct chat_text){key, strlen(key)}, e) ||
            chat_mark(r, ">\n", e) || say_value(r, v, e) || chat_mark(r, "\n</parameter>\n", e))
            return -1;
    }
    return chat_mark(r, "</function>\n", e);
}

int chat_calls(const struct render *r, size_t i, struct chat_text said, struct err *e)
{
    const json_t *calls = r->m[i].calls;
    json_t *call;
    size_t k;
    if (!calls) return 0;
    if (r->t->tools == TOOLS_LLAMA && json_array_size(calls) != 1)
        return chat_refuse(r, i, "this template takes one call of a tool at a time", e);
    json_array_foreach(calls, k, call)
    {
        json_t *function = json_object_get(call, "function");
        if (json_is_object(function) && (json_object_size(function) || r->t->tools != TOOLS_QWEN3))
            call = function;
        else if (function || r->t->tools == TOOLS_LLAMA)
            return chat_refuse(r, i, "a call of a tool without a function", e);
        if (r->t->tools == TOOLS_LLAMA) return call_as_json(r, call, i, "parameters", e);
        const bool qwen3 = r->t->tools == TOOLS_QWEN3;
        if ((k || said.n) && chat_mark(r, k || qwen3 ? "\n" : "\n\n", e)) return -1;
        if (chat_mark(r, "<tool_call>\n", e) ||
            (qwen3 ? call_as_json(r, call, i, "arguments", e) : call_by_parameters(r, call, i, e)) ||
            chat_mark(r, qwen3 ? "\n</tool_call>" : "</tool_call>", e))
            return -1;
    }
    return 0;
}
