/* request_json.c - lines of JSON (request_impl.h): one object a line, every key known. */
#include "request.h"

#include <stdio.h>
#include <string.h>
#include "../base/mem.h"
#include "request_impl.h"
#include "session.h"

/* The value of key, which is now known; NULL: not there. */
struct reader {
    struct request *r;
    const json_t *o;
    struct err *e;
    bool failed; /* out of memory */
};

static void wrong(struct reader *x, const char *key, const char *expected, const json_t *found)
{
    char text[64];
    request_bad(x->r, "bad_args", "%s: expected %s, got %s", key, expected,
                json_show(found, text, sizeof text));
}

static bool boolean(struct reader *x, const char *key)
{
    const json_t *v = json_object_get(x->o, key);
    if (v && !json_is_boolean(v)) wrong(x, key, "true or false", v);
    return json_is_true(v);
}

static bool integer(struct reader *x, const char *key, int64_t min, int64_t max, int64_t *out)
{
    const json_t *v = json_object_get(x->o, key);
    if (!v) return false;
    if (json_is_integer(v) && json_integer_value(v) >= min && json_integer_value(v) <= max) {
        *out = json_integer_value(v);
        return true;
    }
    char expected[64];
    snprintf(expected, sizeof expected, "a whole number from %lld to %lld", (long long)min, (long long)max);
    wrong(x, key, expected, v);
    return false;
}

static void slot(struct reader *x, const char *key, int32_t *out)
{
    int64_t v;
    if (integer(x, key, 0, REQUEST_SLOTS - 1, &v)) *out = (int32_t)v;
}

static void out_of_memory(struct reader *x)
{
    if (!x->failed) err_set(x->e, ERR_IO, "out of memory (a request)");
    x->failed = true;
}

static void string(struct reader *x, const char *key, char **out)
{
    const json_t *v = json_object_get(x->o, key);
    if (!v) return;
    if (!json_is_string(v) || !json_string_length(v)) return wrong(x, key, "a text", v);
    *out = mem_strdup(json_string_value(v));
    if (!*out) out_of_memory(x);
}

/* An id: a string or an integer. */
static json_t *id(struct reader *x, const char *key)
{
    json_t *v = json_object_get(x->o, key);
    if (!v) return NULL;
    if (json_is_integer(v) || (json_is_string(v) && json_string_length(v) <= 256)) return json_incref(v);
    wrong(x, key, "an integer or a text of at most 256 bytes", v);
    return NULL;
}

/* Token ids; whether they are in a vocabulary is not known here. */
static void ids(struct reader *x, const char *key, int32_t **out, size_t *n)
{
    const json_t *v = json_object_get(x->o, key);
    if (!v) return;
    if (!json_is_array(v)) return wrong(x, key, "an array of token ids", v);
    *n = json_array_size(v);
    *out = mem_alloc((*n + 1) * sizeof **out);
    if (!*out) {
        *n = 0;
        return out_of_memory(x);
    }
    for (size_t i = 0; i < *n; i++) {
        const json_t *one = json_array_get(v, i);
        const json_int_t k = json_integer_value(one);
        if (!json_is_integer(one) || k < 0 || k > INT32_MAX) return wrong(x, key, "token ids", one);
        (*out)[i] = (int32_t)k;
    }
}

static void texts(struct reader *x, const char *key)
{
    struct request *r = x->r;
    const json_t *v = json_object_get(x->o, key);
    if (!v) return;
    if (!json_is_array(v) || json_array_size(v) > 64) return wrong(x, key, "an array of at most 64 texts", v);
    r->texts = mem_calloc(json_array_size(v) + 1, sizeof *r->texts);
    if (!r->texts) return out_of_memory(x);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *one = json_array_get(v, i);
        if (!json_is_string(one) || !json_string_length(one))
            return wrong(x, key, "texts that are not empty", one);
        r->texts[i] = mem_strdup(json_string_value(one));
        if (!r->texts[i]) return out_of_memory(x);
        r->n_texts++;
    }
}

static void sampler(struct reader *x)
{
    static const struct {
        const char *key;
        unsigned bit;
    } numbers[] = {{"temp", REQUEST_TEMP},
                   {"top_k", REQUEST_TOP_K},
                   {"top_p", REQUEST_TOP_P},
                   {"min_p", REQUEST_MIN_P},
                   {"repeat_penalty", REQUEST_REPEAT},
                   {"repeat_last", REQUEST_REPEAT_LAST},
                   {"presence_penalty", REQUEST_PRESENCE},
                   {"frequency_penalty", REQUEST_FREQUENCY}};
    int64_t seed;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const json_t *v = json_object_get(x->o, numbers[i].key);
        if (!v) continue;
        if (!json_is_number(v)) return wrong(x, numbers[i].key, "a number", v);
        request_number(x->r, numbers[i].bit, numbers[i].key, json_number_value(v));
    }
    if (!integer(x, "seed", 0, INT64_MAX, &seed)) return;
    x->r->take.seed = (uint64_t)seed;
    x->r->given |= REQUEST_SEED;
}

static void width(struct reader *x)
{
    const json_t *v = json_object_get(x->o, "width");
    int64_t n;
    if (!v) return;
    x->r->given |= REQUEST_WIDTH;
    if (json_is_string(v) && !strcmp(json_string_value(v), "auto")) return;
    if (!json_is_integer(v)) return wrong(x, "width", "\"auto\" or a number of rows", v);
    if (integer(x, "width", 1, SESSION_MAX_ROWS, &n)) x->r->width = (int32_t)n;
}

static void tree(struct reader *x)
{
    const json_t *v = json_object_get(x->o, "tree");
    int64_t n;
    if (!v) return;
    x->r->given |= REQUEST_TREE;
    x->r->tree = -1;
    if (json_is_string(v) && !strcmp(json_string_value(v), "auto")) return;
    if (!json_is_integer(v)) return wrong(x, "tree", "\"auto\" or a number of proposals", v);
    if (integer(x, "tree", 0, SESSION_MAX_ROWS - 1, &n)) x->r->tree = (int32_t)n;
    if (x->r->tree > 0 && x->r->width)
        request_bad(x->r, "bad_args", "width and tree: both say the rows (expected one of them)");
}

static void timeout(struct reader *x)
{
    const json_t *v = json_object_get(x->o, "timeout_s");
    if (!v) return;
    const double s = json_number_value(v);
    if (!json_is_number(v) || !(s > 0 && s <= 1e9)) return wrong(x, "timeout_s", "seconds above 0", v);
    x->r->timeout_s = s;
    x->r->given |= REQUEST_TIMEOUT;
}

/* ---- what each kind has ---- */

static void generate(struct reader *x)
{
    struct request *r = x->r;
    string(x, "file", &r->path);
    string(x, "state", &r->state);
    string(x, "save_state", &r->save);
    ids(x, "prompt", &r->ids, &r->n_ids);
    ids(x, "stop", &r->stops, &r->n_stops);
    texts(x, "stop_text");
    integer(x, "n", 0, SESSION_MAX_CTX, &r->n);
    slot(x, "restore", &r->slot);
    slot(x, "snapshot", &r->keep);
    sampler(x);
    width(x);
    tree(x);
    timeout(x);
    if (json_object_get(x->o, "ignore_eos")) r->given |= REQUEST_IGNORE_EOS;
    r->ignore_eos = boolean(x, "ignore_eos");
    r->append = boolean(x, "append");
    r->text = boolean(x, "text");
    r->no_cache = json_object_get(x->o, "cache") && !boolean(x, "cache");
    if (r->path && r->ids) request_bad(r, "bad_args", "prompt and file: expected one of them");
    if (r->state && r->slot >= 0) request_bad(r, "bad_args", "state and restore: expected one of them");
    const bool behind = r->state || r->slot >= 0;
    if (!r->path && !r->ids && !(behind && r->append))
        request_bad(r, "bad_args", "no prompt (expected prompt, an array of ids, or file, a path)");
    if (r->append && !behind) request_bad(r, "bad_args", "append: expected state or restore beside it");
}

static void about_slot(struct reader *x)
{
    slot(x, "slot", &x->r->slot);
    if (x->r->slot < 0) request_bad(x->r, "bad_args", "slot is missing");
    if (x->r->kind != REQUEST_SAVE && x->r->kind != REQUEST_LOAD) return;
    string(x, "file", &x->r->path);
    if (!x->r->path && !x->failed) request_bad(x->r, "bad_args", "file is missing");
}

static void about_parts(struct reader *x)
{
    const json_t *v = json_object_get(x->o, "what");
    const char *s = json_string_value(v);
    x->r->what = !v                          ? REQUEST_TARGET | REQUEST_DRAFT
                 : s && !strcmp(s, "target") ? REQUEST_TARGET
                 : s && !strcmp(s, "draft")  ? REQUEST_DRAFT
                 : s && !strcmp(s, "all")    ? REQUEST_TARGET | REQUEST_DRAFT
                                             : 0;
    if (!x->r->what) wrong(x, "what", "\"target\", \"draft\" or \"all\"", v);
}

static void cancel(struct reader *x)
{
    x->r->cancel = id(x, "cancel");
    x->r->line = boolean(x, "line");
    if (!x->r->cancel == !x->r->line) request_bad(x->r, "bad_args", "expected cancel, an id, or line, true");
}

static void nothing(struct reader *x)
{
    (void)x;
}

static const char *const none[] = {"op", "id", NULL};

static const struct op {
    const char *name;
    enum request_kind kind;
    void (*read)(struct reader *);
} ops[] = {{"generate", REQUEST_PROMPT, generate}, {"snapshot", REQUEST_SNAPSHOT, about_slot},
           {"free", REQUEST_FREE, about_slot},     {"save", REQUEST_SAVE, about_slot},
           {"load", REQUEST_LOAD, about_slot},     {"list", REQUEST_LIST, nothing},
           {"park", REQUEST_PARK, about_parts},    {"unpark", REQUEST_UNPARK, about_parts},
           {"cancel", REQUEST_CANCEL, cancel},     {"stats", REQUEST_STATS, nothing},
           {"quit", REQUEST_QUIT, nothing}};

static const char *const *keys_of(enum request_kind kind)
{
    static const char *const prompt[] = {"op",
                                         "id",
                                         "file",
                                         "state",
                                         "save_state",
                                         "prompt",
                                         "stop",
                                         "stop_text",
                                         "n",
                                         "restore",
                                         "snapshot",
                                         "temp",
                                         "top_k",
                                         "top_p",
                                         "min_p",
                                         "repeat_penalty",
                                         "repeat_last",
                                         "presence_penalty",
                                         "frequency_penalty",
                                         "seed",
                                         "width",
                                         "tree",
                                         "timeout_s",
                                         "ignore_eos",
                                         "append",
                                         "text",
                                         "cache",
                                         NULL};
    static const char *const about[] = {"op", "id", "slot", NULL},
                             *const file[] = {"op", "id", "slot", "file", NULL},
                             *const what[] = {"op", "id", "what", NULL},
                             *const stop[] = {"op", "id", "cancel", "line", NULL};
    switch (kind) {
    case REQUEST_PROMPT: return prompt;
    case REQUEST_SNAPSHOT:
    case REQUEST_FREE: return about;
    case REQUEST_SAVE:
    case REQUEST_LOAD: return file;
    case REQUEST_PARK:
    case REQUEST_UNPARK: return what;
    case REQUEST_CANCEL: return stop;
    default: return none;
    }
}

static const struct op *op_of(struct reader *x)
{
    const json_t *v = json_object_get(x->o, "op");
    const char *name = v ? json_string_value(v) : "generate";
    for (size_t i = 0; name && i < sizeof ops / sizeof *ops; i++)
        if (!strcmp(name, ops[i].name)) return &ops[i];
    wrong(x, "op", "generate, snapshot, free, save, load, list, park, unpark, cancel, stats or quit", v);
    return NULL;
}

int request_json(struct request *r, const char *line, size_t n, struct err *e)
{
    struct err bad = {0};
    json_t *o = NULL;
    if (n > REQUEST_MAX_LINE) {
        request_bad(r, "bad_args", "the line is too long (expected at most %d bytes)", REQUEST_MAX_LINE);
        return 0;
    }
    if (json_parse(&o, line, n, "the line", &bad)) {
        if (bad.code == ERR_IO) {
            *e = bad;
            return -1;
        }
        request_bad(r, "bad_json", "%s", bad.msg);
        return 0;
    }
    struct reader x = {r, o, e, false};
    r->id = id(&x, "id");
    const struct op *op = op_of(&x);
    if (op && r->kind != REQUEST_BAD) {
        r->kind = op->kind;
        if (json_only(o, "the request", keys_of(op->kind), &bad))
            request_bad(r, "bad_args", "%s", bad.msg);
        else
            op->read(&x);
    }
    json_decref(o);
    return x.failed ? -1 : 0;
}
