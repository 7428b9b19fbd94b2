/* hf_config.c - config.json through jansson, with a record of what was asked for. */
#include "hf_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "../base/io.h"
#include "../base/json.h"
#include "../base/mem.h"

#define MAX_PATH 256

struct hf_config {
    json_t *root;
    json_t *nested; /* borrowed from root: the object that hf_config_nest chose, looked at first; or NULL */
    char *name;
    char **asked;
    size_t n_asked, cap_asked;
    bool failed; /* an allocation of the record failed: rest() cannot vouch for anything */
};

const struct hf_rule hf_rules_common[] = {
    {"_attn_implementation", NULL},
    {"_attn_implementation_autoset", NULL},
    {"_commit_hash", NULL},
    {"_name_or_path", NULL},
    {"architectures", NULL},
    {"attention_dropout", NULL},
    {"attn_implementation", NULL},
    {"auto_map", NULL},
    {"bos_token_id", NULL},
    {"cache_implementation", NULL},
    {"chunk_size_feed_forward", NULL},
    {"dtype", NULL},
    {"eos_token_id", NULL},
    {"finetuning_task", NULL},
    {"id2label", NULL},
    {"initializer_range", NULL},
    {"is_decoder", NULL},
    {"is_encoder_decoder", "[false]"},
    {"add_cross_attention", "[false]"},
    {"label2id", NULL},
    {"max_window_layers", NULL},
    {"name_or_path", NULL},
    {"output_attentions", NULL},
    {"output_hidden_states", NULL},
    {"pad_token_id", NULL},
    {"pretraining_tp", NULL},
    {"problem_type", NULL},
    {"pruned_heads", "[{}]"},
    {"return_dict", NULL},
    {"rms_norm_eps", NULL},
    {"sep_token_id", NULL},
    {"task_specific_params", NULL},
    {"tf_legacy_loss", NULL},
    {"tokenizer_class", NULL},
    {"torch_dtype", NULL},
    {"torchscript", NULL},
    {"transformers_version", NULL},
    {"unsloth_fixed", NULL},
    {"unsloth_version", NULL},
    {"use_bfloat16", NULL},
    {"use_cache", NULL},
    {"use_return_dict", NULL},
    {NULL, NULL},
};

/* ---- opening ---- */

int hf_config_parse(struct hf_config **out, const char *text, size_t n, const char *name, struct err *e)
{
    *out = NULL;
    if (n > HF_CONFIG_MAX_BYTES)
        return err_set(e, ERR_FORMAT, "%s: too long for a config.json (expected at most %u bytes, got %zu)",
                       name, HF_CONFIG_MAX_BYTES, n);
    json_t *root;
    if (json_parse(&root, text, n, name, e)) return -1;
    if (!json_is_object(root)) {
        char buf[96];
        err_set(e, ERR_FORMAT, "%s: not a config.json (expected a JSON object, got %s)", name,
                json_show(root, buf, sizeof buf));
        json_decref(root);
        return -1;
    }
    struct hf_config *c = mem_calloc(1, sizeof *c);
    if (c) c->name = mem_strdup(name);
    if (!c || !c->name) {
        json_decref(root);
        mem_free(c);
        return err_set(e, ERR_IO, "out of memory (%s)", name);
    }
    c->root = root;
    *out = c;
    return 0;
}

int hf_config_open(struct hf_config **c, const char *path, struct err *e)
{
    struct io_map m;
    *c = NULL;
    if (io_map_open(&m, path, e)) return -1;
    int r = hf_config_parse(c, (const char *)m.data, m.size, path, e);
    io_map_close(&m);
    return r;
}

void hf_config_free(struct hf_config *c)
{
    if (!c) return;
    for (size_t i = 0; i < c->n_asked; i++) mem_free(c->asked[i]);
    mem_free(c->asked);
    mem_free(c->name);
    json_decref(c->root);
    mem_free(c);
}

const char *hf_config_name(const struct hf_config *c)
{
    return c->name;
}

/* ---- values ---- */

static bool was_asked(const struct hf_config *c, const char *path)
{
    for (size_t i = 0; i < c->n_asked; i++)
        if (!strcmp(c->asked[i], path)) return true;
    return false;
}

static void ask(struct hf_config *c, const char *path)
{
    if (was_asked(c, path)) return;
    if (c->n_asked == c->cap_asked) {
        size_t cap = c->cap_asked ? 2 * c->cap_asked : 64;
        char **p = mem_realloc(c->asked, cap * sizeof *p);
        if (!p) {
            c->failed = true;
            return;
        }
        c->asked = p;
        c->cap_asked = cap;
    }
    char *copy = mem_strdup(path);
    if (!copy) {
        c->failed = true;
        return;
    }
    c->asked[c->n_asked++] = copy;
}

/* NULL where absent or null. */
static json_t *value_in(json_t *v, const char *path)
{
    char part[MAX_PATH];
    while (v && *path) {
        size_t n = strcspn(path, ".");
        if (n >= sizeof part || !json_is_object(v)) return NULL;
        memcpy(part, path, n);
        part[n] = 0;
        v = json_object_get(v, part);
        path += n + (path[n] == '.');
    }
    return v && !json_is_null(v) ? v : NULL;
}

static json_t *value_at(const struct hf_config *c, const char *path)
{
    json_t *v = c->nested ? value_in(c->nested, path) : NULL;
    return v ? v : value_in(c->root, path);
}

int hf_config_nest(struct hf_config *c, const char *key, struct err *e)
{
    json_t *v = json_object_get(c->root, key);
    if (!json_is_object(v))
        return err_set(e, ERR_FORMAT, "%s: %s is missing (expected an object with the text model's keys)",
                       c->name, key);
    c->nested = v;
    return 0;
}

bool hf_has(const struct hf_config *c, const char *path)
{
    return value_at(c, path) != NULL;
}

const char *hf_peek_str(const struct hf_config *c, const char *path)
{
    return json_string_value(value_at(c, path));
}

const char *hf_key_with(const struct hf_config *c, const char *part, char *buf, size_t n)
{
    const char *key, *sub;
    json_t *v, *w;
    json_object_foreach(c->root, key, v)
    {
        if (strstr(key, part)) {
            snprintf(buf, n, "%s", key);
            return buf;
        }
        json_object_foreach(v, sub, w)
        {
            if (strstr(sub, part)) {
                snprintf(buf, n, "%s.%s", key, sub);
                return buf;
            }
        }
    }
    return NULL;
}

static int wrong(const struct hf_config *c, const char *path, const char *expected, const json_t *v,
                 struct err *e)
{
    char buf[96];
    return err_set(e, ERR_FORMAT, "%s: %s is not usable (expected %s, got %s)", c->name, path, expected,
                   json_show(v, buf, sizeof buf));
}

static int as_i64(const struct hf_config *c, const char *path, const json_t *v, int64_t min, int64_t max,
                  int64_t *out, struct err *e)
{
    char want[96];
    snprintf(want, sizeof want, "an integer from %lld to %lld", (long long)min, (long long)max);
    double r = json_is_real(v) ? json_real_value(v) : 0;
    int64_t x;
    if (json_is_integer(v))
        x = json_integer_value(v);
    else if (json_is_real(v) && r == floor(r) &&
             fabs(r) < 9007199254740992.0) /* 32.0 is written by some exporters */
        x = (int64_t)r;
    else
        return wrong(c, path, want, v, e);
    if (x < min || x > max) return wrong(c, path, want, v, e);
    *out = x;
    return 0;
}

int hf_get_i64(struct hf_config *c, const char *path, int64_t min, int64_t max, int64_t *v, struct err *e)
{
    ask(c, path);
    const json_t *j = value_at(c, path);
    return j ? as_i64(c, path, j, min, max, v, e) : 1;
}

int hf_get_f64(struct hf_config *c, const char *path, double *v, struct err *e)
{
    ask(c, path);
    const json_t *j = value_at(c, path);
    if (!j) return 1;
    if (!json_is_number(j)) return wrong(c, path, "a number", j, e);
    *v = json_number_value(j);
    return 0;
}

int hf_get_bool(struct hf_config *c, const char *path, bool *v, struct err *e)
{
    ask(c, path);
    const json_t *j = value_at(c, path);
    if (!j) return 1;
    if (!json_is_boolean(j)) return wrong(c, path, "true or false", j, e);
    *v = json_is_true(j);
    return 0;
}

int hf_get_str(struct hf_config *c, const char *path, const char **v, struct err *e)
{
    ask(c, path);
    const json_t *j = value_at(c, path);
    if (!j) return 1;
    if (!json_is_string(j)) return wrong(c, path, "a string", j, e);
    *v = json_string_value(j);
    return 0;
}

static int too_many(const struct hf_config *c, const char *path, int cap, size_t got, struct err *e)
{
    return err_set(e, ERR_FORMAT, "%s: %s is too long (expected at most %d, got %zu)", c->name, path, cap,
                   got);
}

int hf_get_i32_list(struct hf_config *c, const char *path, bool one_ok, int32_t *v, int cap, int *n,
                    struct err *e)
{
    ask(c, path);
    const json_t *j = value_at(c, path);
    int64_t x;
    if (!j) return 1;
    if (one_ok && json_is_number(j)) {
        if (as_i64(c, path, j, INT32_MIN, INT32_MAX, &x, e)) return -1;
        v[0] = (int32_t)x;
        *n = 1;
        return 0;
    }
    if (!json_is_array(j)) return wrong(c, path, "a list of integers", j, e);
    if (json_array_size(j) > (size_t)cap) return too_many(c, path, cap, json_array_size(j), e);
    for (size_t i = 0; i < json_array_size(j); i++) {
        if (as_i64(c, path, json_array_get(j, i), INT32_MIN, INT32_MAX, &x, e)) return -1;
        v[i] = (int32_t)x;
    }
    *n = (int)json_array_size(j);
    return 0;
}

int hf_get_str_list(struct hf_config *c, const char *path, const char **v, int cap, int *n, struct err *e)
{
    ask(c, path);
    const json_t *j = value_at(c, path);
    if (!j) return 1;
    if (!json_is_array(j)) return wrong(c, path, "a list of strings", j, e);
    if (json_array_size(j) > (size_t)cap) return too_many(c, path, cap, json_array_size(j), e);
    for (size_t i = 0; i < json_array_size(j); i++) {
        const json_t *s = json_array_get(j, i);
        if (!json_is_string(s)) return wrong(c, path, "a list of strings", j, e);
        v[i] = json_string_value(s);
    }
    *n = (int)json_array_size(j);
    return 0;
}

/* ---- several places ---- */

static int disagree(struct hf_config *c, const char *a, const char *b, struct err *e)
{
    char x[64], y[64];
    return err_set(e, ERR_FORMAT, "%s: %s and %s disagree (%s against %s)", c->name, a, b,
                   json_show(value_at(c, a), x, sizeof x), json_show(value_at(c, b), y, sizeof y));
}

/* The first of paths that has a value, taken by get into x; any other that has one must agree with it.
 * Returns from the function: 0, 1 where none has, -1. */
#define FIND(get)                                                                                            \
    do {                                                                                                     \
        const char *found = NULL;                                                                            \
        for (; *paths; paths++) {                                                                            \
            int r = get;                                                                                     \
            if (r < 0) return -1;                                                                            \
            if (r == 1) continue;                                                                            \
            if (found && x != *v) return disagree(c, found, *paths, e);                                      \
            if (!found) {                                                                                    \
                found = *paths;                                                                              \
                *v = x;                                                                                      \
            }                                                                                                \
        }                                                                                                    \
        if (found && where) *where = found;                                                                  \
        return found ? 0 : 1;                                                                                \
    } while (0)

int hf_find_i64(struct hf_config *c, const char *const *paths, int64_t min, int64_t max, int64_t *v,
                const char **where, struct err *e)
{
    int64_t x;
    FIND(hf_get_i64(c, *paths, min, max, &x, e));
}

int hf_find_f64(struct hf_config *c, const char *const *paths, double *v, const char **where, struct err *e)
{
    double x;
    FIND(hf_get_f64(c, *paths, &x, e));
}

int hf_find_bool(struct hf_config *c, const char *const *paths, bool *v, const char **where, struct err *e)
{
    bool x;
    FIND(hf_get_bool(c, *paths, &x, e));
}

int hf_find_i32_list(struct hf_config *c, const char *const *paths, int32_t *v, int cap, int *n,
                     const char **where, struct err *e)
{
    const char *found = NULL;
    for (; *paths; paths++) {
        const json_t *j = value_at(c, *paths);
        if (found) {
            ask(c, *paths);
            if (j && !json_equal(value_at(c, found), j)) return disagree(c, found, *paths, e);
            continue;
        }
        int r = hf_get_i32_list(c, *paths, false, v, cap, n, e);
        if (r < 0) return -1;
        if (r == 0) found = *paths;
    }
    if (found && where) *where = found;
    return found ? 0 : 1;
}

/* ---- rope ---- */

static const char *rope_allowed(unsigned allow)
{
    return allow & HF_ROPE_LLAMA3
               ? "\"default\" or \"llama3\": no other rotation is implemented for this family"
           : allow & HF_ROPE_PROPORTIONAL
               ? "\"default\" or \"proportional\": no other rotation is implemented for "
                 "this family"
               : "\"default\": no other rotation is implemented for this family";
}

static int rope_type(struct hf_config *c, const char *path, const json_t *v, unsigned allow,
                     struct hf_rope *r, struct err *e)
{
    const char *s = json_is_string(v) ? json_string_value(v) : "";
    if (!strcmp(s, "default"))
        r->type = "default";
    else if (!strcmp(s, "llama3") && allow & HF_ROPE_LLAMA3)
        r->type = "llama3";
    else if (!strcmp(s, "proportional") && allow & HF_ROPE_PROPORTIONAL)
        r->type = "proportional";
    else
        return wrong(c, path, rope_allowed(allow), v, e);
    return 0;
}

/* A number above 0 of llama3 scaling: 0, 1 where key is none, -1. */
static int rope_scale(struct hf_config *c, const char *path, const char *key, const json_t *v, unsigned allow,
                      struct hf_rope *r, struct err *e)
{
    const struct {
        const char *key;
        double *at;
    } all[] = {{"factor", &r->factor},
               {"low_freq_factor", &r->low_freq},
               {"high_freq_factor", &r->high_freq},
               {"original_max_position_embeddings", &r->original}};
    for (size_t i = 0; i < sizeof all / sizeof all[0] && allow & HF_ROPE_LLAMA3; i++) {
        if (strcmp(key, all[i].key)) continue;
        if (!json_is_number(v) || !(json_number_value(v) > 0))
            return wrong(c, path, "a number above 0", v, e);
        *all[i].at = json_number_value(v);
        return 0;
    }
    return 1;
}

/* One object of rope parameters at path. r->theta is set where it is there (return 0). */
static int rope_object(struct hf_config *c, const char *path, const json_t *o, unsigned allow,
                       struct hf_rope *r, struct err *e)
{
    const char *key;
    json_t *v;
    int found = 1;
    bool part = false;
    char sub[MAX_PATH + 64];
    *r = (struct hf_rope){.type = "default", .partial = 1};
    json_object_foreach((json_t *)o, key, v)
    {
        snprintf(sub, sizeof sub, "%s.%.60s", path, key);
        if (json_is_null(v)) continue;
        if (!strcmp(key, "rope_theta")) {
            if (!json_is_number(v)) return wrong(c, sub, "a number", v, e);
            r->theta = json_number_value(v);
            found = 0;
        } else if (!strcmp(key, "rope_type") || !strcmp(key, "type")) {
            if (rope_type(c, sub, v, allow, r, e)) return -1;
        } else if (!strcmp(key, "partial_rotary_factor")) {
            r->partial = json_is_number(v) ? json_number_value(v) : 0;
            part = true;
            if (!(r->partial > 0 && r->partial <= 1))
                return wrong(c, sub, "a number above 0, at most 1", v, e);
            if (!(allow & (HF_ROPE_PARTIAL | HF_ROPE_PROPORTIONAL)) && r->partial != 1)
                return wrong(c, sub, "1: a partial rotation is not implemented for this family", v, e);
        } else if (!strcmp(key, "mrope_section") || !strcmp(key, "mrope_interleaved")) {
            continue; /* in text the three axes of a position are one number: the plain rotation */
        } else {
            int scale = rope_scale(c, sub, key, v, allow, r, e);
            if (scale < 0) return -1;
            if (scale) return wrong(c, sub, "no such key: it would change the rotation", v, e);
        }
    }
    const json_t *one = json_object_get(o, "rope_type"), *other = json_object_get(o, "type");
    if (json_is_string(one) && json_is_string(other) && !json_equal(one, other))
        return err_set(e, ERR_FORMAT, "%s: %s: rope_type and type disagree (%s against %s)", c->name, path,
                       json_string_value(one), json_string_value(other));
    if (!strcmp(r->type, "proportional") && !part)
        return err_set(e, ERR_FORMAT,
                       "%s: %s.partial_rotary_factor is missing (a proportional rotation turns a part)",
                       c->name, path);
    if (!strcmp(r->type, "llama3") &&
        !(r->factor > 0 && r->low_freq > 0 && r->high_freq > r->low_freq && r->original > 0))
        return err_set(e, ERR_FORMAT,
                       "%s: %s: llama3 scaling is not whole (expected factor, low_freq_factor below "
                       "high_freq_factor, and original_max_position_embeddings)",
                       c->name, path);
    if (strcmp(r->type, "llama3") && (r->factor > 0 || r->low_freq > 0 || r->high_freq > 0))
        return err_set(e, ERR_FORMAT,
                       "%s: %s: has the numbers of llama3 scaling without \"rope_type\": \"llama3\"", c->name,
                       path);
    return found;
}

static bool same_rope(const struct hf_rope *a, const struct hf_rope *b)
{
    return a->theta == b->theta && !strcmp(a->type, b->type) && a->partial == b->partial &&
           a->factor == b->factor && a->low_freq == b->low_freq && a->high_freq == b->high_freq &&
           a->original == b->original;
}

/* rope_parameters, flat or by layer type. */
static int rope_parameters(struct hf_config *c, const char *layer_type, unsigned allow, struct hf_rope *r,
                           const char **where, struct err *e)
{
    const json_t *o = value_at(c, "rope_parameters");
    ask(c, "rope_parameters");
    if (!o) return 1;
    if (!json_is_object(o)) return wrong(c, "rope_parameters", "an object", o, e);
    const char *key, *first = NULL;
    json_t *v;
    size_t nested = 0;
    json_object_foreach((json_t *)o, key, v) nested += json_is_object(v);
    *where = "rope_parameters.rope_theta";
    if (!nested) return rope_object(c, "rope_parameters", o, allow, r, e);
    if (nested != json_object_size(o))
        return wrong(c, "rope_parameters", "either one set of values or an object a layer type", o, e);
    json_object_foreach((json_t *)o, key, v)
    {
        char path[MAX_PATH];
        struct hf_rope one;
        if (layer_type && strcmp(key, layer_type)) continue;
        snprintf(path, sizeof path, "rope_parameters.%.60s", key);
        int rc = rope_object(c, path, v, allow, &one, e);
        if (rc < 0) return -1;
        if (rc == 1) return err_set(e, ERR_FORMAT, "%s: %s.rope_theta is missing", c->name, path);
        if (first && one.theta != r->theta)
            return err_set(e, ERR_FORMAT,
                           "%s: rope_parameters: layer types disagree (%s has rope_theta %.9g, %s has %.9g): "
                           "one base for all layers is implemented",
                           c->name, first, r->theta, key, one.theta);
        if (first && !same_rope(&one, r))
            return err_set(
                e, ERR_FORMAT,
                "%s: rope_parameters: %s and %s disagree: one rotation for all layers is implemented",
                c->name, first, key);
        first = key;
        *r = one;
    }
    *where = "rope_parameters.<layer type>.rope_theta";
    return first ? 0 : 1;
}

/* The older spelling: rope_theta and partial_rotary_factor at top level, the rest in rope_scaling. */
static int rope_top(struct hf_config *c, unsigned allow, bool have, struct hf_rope *r, struct err *e)
{
    const json_t *s = value_at(c, "rope_scaling");
    double partial = 1;
    ask(c, "rope_scaling");
    if (s) {
        struct hf_rope own;
        if (!json_is_object(s)) return wrong(c, "rope_scaling", "null", s, e);
        int rc = rope_object(c, "rope_scaling", s, allow, &own, e);
        if (rc < 0) return -1;
        if (rc == 0)
            return wrong(c, "rope_scaling.rope_theta", "it in rope_parameters or at top level", s, e);
        own.theta = r->theta;
        if (have && !same_rope(&own, r))
            return err_set(e, ERR_FORMAT, "%s: rope_parameters and rope_scaling disagree", c->name);
        *r = own;
    }
    if (!(allow & HF_ROPE_PARTIAL)) return 0; /* else a rule of the family looks at it */
    int rc = hf_get_f64(c, "partial_rotary_factor", &partial, e);
    if (rc < 0) return -1;
    bool said = have && (r->partial != 1 || hf_has(c, "rope_parameters.partial_rotary_factor"));
    if (rc == 0 && said && partial != r->partial)
        return err_set(e, ERR_FORMAT,
                       "%s: partial_rotary_factor disagrees with rope_parameters (%.9g against %.9g)",
                       c->name, partial, r->partial);
    if (rc == 0) r->partial = partial;
    if (!(r->partial > 0 && r->partial <= 1))
        return err_set(e, ERR_FORMAT,
                       "%s: partial_rotary_factor is out of range (expected above 0, at most 1, got %.9g)",
                       c->name, r->partial);
    return 0;
}

int hf_get_rope(struct hf_config *c, const char *layer_type, unsigned allow, struct hf_rope *r,
                const char **where, struct err *e)
{
    struct hf_rope nested = {.type = "default", .partial = 1};
    double top = 0;
    const char *from = NULL;
    int a = rope_parameters(c, layer_type, allow, &nested, &from, e);
    if (a < 0) return -1;
    int b = hf_get_f64(c, "rope_theta", &top, e);
    if (b < 0) return -1;
    bool have = value_at(c, "rope_parameters") != NULL;
    if (a == 0 && b == 0 && nested.theta != top)
        return err_set(e, ERR_FORMAT, "%s: %s and rope_theta disagree (%.9g against %.9g)", c->name, from,
                       nested.theta, top);
    if (rope_top(c, allow, have, &nested, e)) return -1;
    if (a == 1 && b == 1) return 1;
    *r = nested;
    if (a) r->theta = top;
    *where = a == 0 ? from : "rope_theta";
    if (!(r->theta > 0) || !isfinite(r->theta))
        return err_set(e, ERR_FORMAT, "%s: %s is out of range (expected a positive number, got %.9g)",
                       c->name, *where, r->theta);
    return 0;
}

int hf_get_rope_theta(struct hf_config *c, double *theta, const char **where, struct err *e)
{
    struct hf_rope r;
    int rc = hf_get_rope(c, NULL, 0, &r, where, e);
    if (rc == 0) *theta = r.theta;
    return rc;
}

/* ---- what is left ---- */

static const struct hf_rule *rule_for(const struct hf_rule *const *tables, const char *path)
{
    for (; *tables; tables++)
        for (const struct hf_rule *r = *tables; r->path; r++)
            if (!strcmp(r->path, path)) return r;
    return NULL;
}

/* Does anything known lie below path? Then its keys are gone through one by one. */
static bool known_below(const struct hf_config *c, const struct hf_rule *const *tables, const char *path)
{
    size_t n = strlen(path);
    for (size_t i = 0; i < c->n_asked; i++)
        if (!strncmp(c->asked[i], path, n) && c->asked[i][n] == '.') return true;
    for (; *tables; tables++)
        for (const struct hf_rule *r = *tables; r->path; r++)
            if (!strncmp(r->path, path, n) && r->path[n] == '.') return true;
    return false;
}

static bool same_value(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    return json_equal(a, b);
}

static int check_accept(const struct hf_config *c, const struct hf_rule *r, const json_t *v, struct err *e)
{
    if (!r->accept) return 0;
    json_t *list;
    if (json_parse(&list, r->accept, strlen(r->accept), c->name, e)) return -1;
    bool ok = false;
    for (size_t i = 0; i < json_array_size(list) && !ok; i++) ok = same_value(json_array_get(list, i), v);
    int ret = 0;
    if (!ok) {
        char want[128], got[96];
        bool one = json_array_size(list) == 1;
        json_show(one ? json_array_get(list, 0) : list, want, sizeof want);
        ret = err_set(e, ERR_FORMAT,
                      "%s: %s changes the forward pass and is not implemented (expected %s%s, got %s)",
                      c->name, r->path, one ? "" : "one of ", want, json_show(v, got, sizeof got));
    }
    json_decref(list);
    return ret;
}

/* A key that was asked of the text model may stand at top level too, with the same value. Names, ids and
 * whether there is a head are each model's own. */
static int check_twice(const struct hf_config *c, const char *key, const json_t *v, struct err *e)
{
    static const char *const own[] = {"architectures", "model_type",   "tie_word_embeddings",
                                      "bos_token_id",  "eos_token_id", "pad_token_id"};
    const json_t *nested = json_object_get(c->nested, key);
    char in[96], out[96];
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (!strcmp(key, own[i])) return 0;
    if (!nested || json_is_null(nested) || same_value(nested, v)) return 0;
    return err_set(e, ERR_FORMAT, "%s: %s disagrees with that of the text model (%s against %s)", c->name,
                   key, json_show(v, out, sizeof out), json_show(nested, in, sizeof in));
}

static int rest_of(struct hf_config *c, const struct hf_rule *const *tables, json_t *o, const char *prefix,
                   struct err *e)
{
    const char *key;
    json_t *v;
    json_object_foreach(o, key, v)
    {
        char path[MAX_PATH], buf[96];
        if ((size_t)snprintf(path, sizeof path, "%s%s%s", prefix, *prefix ? "." : "", key) >= sizeof path ||
            strchr(key, '.'))
            return err_set(e, ERR_FORMAT, "%s: %.100s: not a key that is known", c->name, key);
        if (json_is_null(v) || v == c->nested) continue; /* the latter is gone through on its own */
        if (was_asked(c, path)) {
            if (c->nested && o == c->root && check_twice(c, key, v, e)) return -1;
            continue;
        }
        const struct hf_rule *r = rule_for(tables, path);
        if (r) {
            if (check_accept(c, r, v, e)) return -1;
        } else if (json_is_object(v) && known_below(c, tables, path)) {
            if (rest_of(c, tables, v, path, e)) return -1;
        } else {
            err_set(e, ERR_FORMAT, "%s: %s is not a key that is known (its value: %s)", c->name, path,
                    json_show(v, buf, sizeof buf));
            return err_hint(
                e,
                "if it cannot change the forward pass, remove it from a copy of the config and convert that");
        }
    }
    return 0;
}

int hf_config_rest(struct hf_config *c, const struct hf_rule *const *tables, struct err *e)
{
    if (c->failed) return err_set(e, ERR_IO, "out of memory (%s)", c->name);
    if (c->nested && rest_of(c, tables, c->nested, "", e)) return -1;
    return rest_of(c, tables, c->root, "", e);
}
