/* show.c - see show.h. JSON is built by jansson, so that any byte of a file comes out as valid JSON: text
 * that is not UTF-8 as {"hex": ...}. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "../../common/base/json.h"
#include "../../common/base/mem.h"
#include "../../common/base/text.h"
#include "../../common/token/tokenizer.h"
#include "show.h"

/* Elements of an array for people; JSON has all of up to so many numbers or strings. */
#define ARRAY_SHOWN 6
#define JSON_NUMBERS (1u << 20) /* forty bytes of memory each */
#define JSON_STRINGS 64

void show_json_line(json_t *j)
{
    if (!j) return;
    char *text = json_line(j, 9);
    if (text) puts(text); /* no memory: redirect_close sees it */
    mem_free(text);
    json_decref(j);
}

static json_t *json_name(const char *s)
{
    return s ? json_text(s, strlen(s)) : NULL;
}

static json_t *json_float(double x)
{
    return isfinite(x) ? json_real(x) : json_string(isnan(x) ? "NaN" : x > 0 ? "Infinity" : "-Infinity");
}

static void human_bytes(char *out, size_t n, uint64_t b)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double x = (double)b;
    int u = 0;
    while (x >= 1024 && u < 4) {
        x /= 1024;
        u++;
    }
    snprintf(out, n, u ? "%.1f %s" : "%.0f %s", x, unit[u]);
}

/* 7.89 M, 30.5 B; exact below 10,000. */
static void human_count(char *out, size_t n, uint64_t v)
{
    static const char *const unit[] = {"", " k", " M", " B", " T"};
    double x = (double)v;
    int u = 0;
    while (v >= 10000 && x >= 1000 && u < 4) {
        x /= 1000;
        u++;
    }
    snprintf(out, n, "%.*f%s", !u ? 0 : x < 10 ? 2 : 1, x, unit[u]);
}

const char *show_text(const char *s)
{
    static char text[4][4096];
    static int turn;
    char *t = text[turn = (turn + 1) % 4];
    snprintf(t, sizeof text[0], "%s", s);
    return text_printable(t);
}

static void put_quoted(const char *s, uint64_t n, uint64_t max)
{
    char text[512];
    fputs(text_quote(text, sizeof text, s, n, max), stdout);
}

static bool is_float(uint32_t type)
{
    return type == GGUF_F32 || type == GGUF_F64;
}

static void show_element(const struct gguf_kv *kv, uint32_t type, uint64_t i)
{
    if (type == GGUF_STRING)
        put_quoted(kv->strings[i].s, kv->strings[i].n, 72);
    else if (is_float(type))
        printf("%.9g", gguf_array_f64(kv, i));
    else if (type == GGUF_BOOL)
        fputs(gguf_array_i64(kv, i) ? "true" : "false", stdout);
    else if (type == GGUF_U64)
        printf("%" PRIu64, (uint64_t)gguf_array_i64(kv, i));
    else
        printf("%" PRId64, gguf_array_i64(kv, i));
}

static json_t *json_element(const struct gguf_kv *kv, uint32_t type, uint64_t i)
{
    if (type == GGUF_STRING) return json_text(kv->strings[i].s, kv->strings[i].n);
    if (is_float(type)) return json_float(gguf_array_f64(kv, i));
    if (type == GGUF_BOOL) return json_boolean(gguf_array_i64(kv, i));
    return json_integer(gguf_array_i64(kv, i));
}

/* What general.file_type counts, as GGUF's readers name it; NULL: not known here. */
static const char *file_type_name(const struct gguf_kv *kv)
{
    static const char *const name[] = {
        [0] = "F32",      [1] = "F16",      [2] = "Q4_0",      [3] = "Q4_1",    [7] = "Q8_0",
        [8] = "Q5_0",     [9] = "Q5_1",     [10] = "Q2_K",     [11] = "Q3_K_S", [12] = "Q3_K_M",
        [13] = "Q3_K_L",  [14] = "Q4_K_S",  [15] = "Q4_K_M",   [16] = "Q5_K_S", [17] = "Q5_K_M",
        [18] = "Q6_K",    [19] = "IQ2_XXS", [20] = "IQ2_XS",   [21] = "Q2_K_S", [22] = "IQ3_XS",
        [23] = "IQ3_XXS", [24] = "IQ1_S",   [25] = "IQ4_NL",   [26] = "IQ3_S",  [27] = "IQ3_M",
        [28] = "IQ2_S",   [29] = "IQ2_M",   [30] = "IQ4_XS",   [31] = "IQ1_M",  [32] = "BF16",
        [36] = "TQ1_0",   [37] = "TQ2_0",   [38] = "MXFP4_MOE"};
    if (strcmp(kv->key, "general.file_type") || kv->type != GGUF_U32) return NULL;
    const int64_t v = gguf_array_i64(kv, 0);
    return v >= 0 && v < (int64_t)(sizeof name / sizeof *name) ? name[v] : NULL;
}

static void show_key(const struct gguf_kv *kv, bool json, bool whole)
{
    const char *named = file_type_name(kv);
    bool array = kv->type == GGUF_ARRAY;
    uint32_t type = array ? kv->elem : kv->type;
    uint64_t shown = !array                                                                     ? 1
                     : whole                                                                    ? kv->count
                     : json && kv->count <= (type == GGUF_STRING ? JSON_STRINGS : JSON_NUMBERS) ? kv->count
                                                                                                : ARRAY_SHOWN;
    if (shown > kv->count) shown = kv->count;
    if (json) {
        json_t *value = array ? json_array() : json_element(kv, type, 0);
        for (uint64_t i = 0; array && i < shown; i++) json_array_append_new(value, json_element(kv, type, i));
        json_t *line = json_pack("{s:i,s:s,s:o,s:s}", "schema", 1, "kind", "key", "key",
                                 json_text(kv->key, strlen(kv->key)), "type", gguf_type_name(kv->type));
        if (array) {
            json_object_set_new(line, "element", json_string(gguf_type_name(type)));
            json_object_set_new(line, "count", json_integer((json_int_t)kv->count));
        }
        json_object_set_new(line, "value", value);
        if (named) json_object_set_new(line, "name", json_string(named));
        show_json_line(line);
        return;
    }
    printf("%-44s %-6s ", show_text(kv->key), array ? gguf_type_name(type) : gguf_type_name(kv->type));
    if (array) printf("[%" PRIu64 "] ", kv->count);
    for (uint64_t i = 0; i < shown; i++) {
        if (i) fputs(", ", stdout);
        show_element(kv, type, i);
    }
    if (named) printf(" (%s)", named);
    puts(shown < kv->count ? ", ..." : "");
}

/* As it is; a terminal gets no character that commands it. */
static void put_text(const char *s, uint64_t n)
{
    if (!isatty(STDOUT_FILENO)) {
        fwrite(s, 1, n, stdout);
        return;
    }
    while (n) {
        const size_t k = text_char(s, n);
        if (k)
            fwrite(s, 1, k, stdout);
        else
            putchar(*s == '\n' || *s == '\t' ? *s : '?');
        s += k ? k : 1;
        n -= k ? k : 1;
    }
}

int show_one_key(const struct gguf *g, const char *key, bool json, struct err *e)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv) return err_set(e, ERR_NEGATIVE, "%s: has no key '%s'", g->map.path, key);
    const bool array = kv->type == GGUF_ARRAY;
    const uint32_t type = array ? kv->elem : kv->type;
    if (json) {
        show_key(kv, true, true);
        return 0;
    }
    for (uint64_t i = 0; i < (array ? kv->count : 1); i++) {
        if (type == GGUF_STRING && !array) /* a template has lines */
            put_text(kv->strings[i].s, kv->strings[i].n);
        else
            show_element(kv, type, i);
        putchar('\n');
    }
    return 0;
}

int show_tokens(const struct gguf *g, bool json, struct err *e)
{
    static const char *const kind[] = {"none", "normal", "unknown", "control", "user", "unused", "byte"};
    const struct gguf_kv *types = gguf_find(g, "tokenizer.ggml.token_type");
    struct tokenizer *t = NULL;
    if (tok_open(&t, g, e)) return -1;
    for (int32_t i = 0; i < tok_n_vocab(t); i++) {
        char text[4 * 256 + 8];
        size_t n;
        bool written;
        const uint8_t *p = tok_piece(t, i, &n, &written);
        int64_t k = types && types->type == GGUF_ARRAY && (uint64_t)i < types->count
                        ? gguf_array_i64(types, (uint64_t)i)
                        : 1;
        if (k < 0 || k > 6) k = 0;
        if (json)
            show_json_line(json_pack("{s:i,s:s,s:i,s:s,s:o}", "schema", 1, "kind", "token", "id", i, "type",
                                     kind[k], "piece", json_text((const char *)p, n)));
        else
            printf("%7d %-7s %s\n", i, kind[k], text_quote(text, sizeof text, (const char *)p, n, 256));
    }
    tok_close(t);
    return 0;
}

static json_t *json_shape(const int64_t *d, uint32_t n, bool reversed)
{
    json_t *a = json_array();
    for (uint32_t i = 0; i < n; i++) json_array_append_new(a, json_integer(reversed ? d[n - 1 - i] : d[i]));
    return a;
}

static void shape_text(char *out, size_t size, const int64_t *d, uint32_t n, bool reversed)
{
    out[0] = 0;
    for (uint32_t i = 0; i < n; i++)
        snprintf(out + strlen(out), size - strlen(out), "%s%" PRId64, i ? "x" : "",
                 reversed ? d[n - 1 - i] : d[i]);
}

static void show_tensor(const char *name, const char *type, const int64_t *d, uint32_t n, bool reversed,
                        uint64_t offset, uint64_t bytes, bool json)
{
    if (json) {
        show_json_line(json_pack("{s:i,s:s,s:o,s:s,s:o,s:I,s:I}", "schema", 1, "kind", "tensor", "name",
                                 json_text(name, strlen(name)), "type", type, "shape",
                                 json_shape(d, n, reversed), "offset_bytes", (json_int_t)offset, "size_bytes",
                                 (json_int_t)bytes));
        return;
    }
    char shape[128], size[32];
    shape_text(shape, sizeof shape, d, n, reversed);
    human_bytes(size, sizeof size, bytes);
    printf("%-48s %-8s %-16s %10s\n", show_text(name), type, shape, size);
}

struct tally {
    const char *type;
    uint64_t tensors, bytes, elements;
};

static void tally_add(struct tally *t, size_t *n, const char *type, uint64_t bytes, uint64_t elements)
{
    size_t i = 0;
    while (i < *n && strcmp(t[i].type, type)) i++;
    if (i == *n) t[(*n)++] = (struct tally){.type = type};
    t[i].tensors++;
    t[i].bytes += bytes;
    t[i].elements += elements;
}

static void tally_show(const struct tally *t, size_t n, bool json)
{
    uint64_t bytes = 0, elements = 0;
    for (size_t i = 0; i < n; i++) bytes += t[i].bytes, elements += t[i].elements;
    for (size_t i = 0; i < n; i++) {
        char size[32];
        human_bytes(size, sizeof size, t[i].bytes);
        if (json)
            show_json_line(json_pack("{s:i,s:s,s:s,s:I,s:I,s:I}", "schema", 1, "kind", "type", "type",
                                     t[i].type, "tensors", (json_int_t)t[i].tensors, "elements",
                                     (json_int_t)t[i].elements, "size_bytes", (json_int_t)t[i].bytes));
        else
            printf("%-8s %6" PRIu64 " tensors %14" PRIu64 " values %12s\n", t[i].type, t[i].tensors,
                   t[i].elements, size);
    }
    char size[32], count[32];
    const double bits = elements ? 8.0 * (double)bytes / (double)elements : NAN;
    human_bytes(size, sizeof size, bytes);
    human_count(count, sizeof count, elements);
    if (json)
        show_json_line(json_pack("{s:i,s:s,s:I,s:I,s:o}", "schema", 1, "kind", "total", "parameters",
                                 (json_int_t)elements, "size_bytes", (json_int_t)bytes, "bits_a_weight",
                                 json_finite(bits)));
    else if (elements)
        printf("%s parameters in %s: %.2f bits a weight\n", count, size, bits);
}

void show_gguf(const struct gguf *g, const char *path, bool tensors, bool json)
{
    struct tally tally[64];
    size_t n = 0;
    char size[32];
    human_bytes(size, sizeof size, g->bytes);
    if (json)
        show_json_line(json_pack("{s:i,s:s,s:o,s:s,s:i,s:i,s:I,s:I,s:I}", "schema", 1, "kind", "file", "path",
                                 json_text(path, strlen(path)), "format", "gguf", "version", (int)g->version,
                                 "files", (int)g->n_parts, "keys", (json_int_t)g->n_kv, "tensors",
                                 (json_int_t)g->n_tensors, "size_bytes", (json_int_t)g->bytes));
    else if (g->n_parts > 1)
        printf("%s: GGUF v%u in %u files, %" PRIu64 " keys, %" PRIu64 " tensors, %s\n\n", show_text(path),
               g->version, g->n_parts, g->n_kv, g->n_tensors, size);
    else
        printf("%s: GGUF v%u, %" PRIu64 " keys, %" PRIu64 " tensors, %s\n\n", show_text(path), g->version,
               g->n_kv, g->n_tensors, size);
    for (uint64_t i = 0; i < g->n_kv; i++) show_key(&g->kv[i], json, false);
    if (!json) putchar('\n');
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensor[i];
        const struct kn_type_info *ti = kn_type_info(t->type);
        if (tensors) show_tensor(t->name, ti->name, t->ne, t->n_dims, true, t->offset, t->bytes, json);
        tally_add(tally, &n, ti->name, t->bytes, t->bytes / ti->bytes * ti->block);
    }
    if (tensors && !json) putchar('\n');
    tally_show(tally, n, json);
}

void show_safetensors(const struct st *s, const char *path, bool tensors, bool json)
{
    struct tally tally[64];
    size_t n = 0;
    if (json)
        show_json_line(json_pack("{s:i,s:s,s:o,s:s,s:i,s:I}", "schema", 1, "kind", "file", "path",
                                 json_text(path, strlen(path)), "format", "safetensors", "files",
                                 (int)s->n_files, "tensors", (json_int_t)s->n_tensors));
    else
        printf("%s: safetensors, %u file%s, %" PRIu64 " tensors\n\n", show_text(path), s->n_files,
               s->n_files == 1 ? "" : "s", s->n_tensors);
    for (uint64_t i = 0; i < s->n_tensors; i++) {
        const struct st_tensor *t = &s->tensor[i];
        if (tensors)
            show_tensor(t->name, st_dtype_name(t->dtype), t->shape, t->n_dims, false, 0, t->bytes, json);
        tally_add(tally, &n, st_dtype_name(t->dtype), t->bytes, t->count);
    }
    if (tensors && !json) putchar('\n');
    tally_show(tally, n, json);
}

static void json_finding(const struct check_finding *f, const char *level)
{
    json_t *line =
        json_pack("{s:i,s:s,s:s,s:o,s:o}", "schema", 1, "kind", "finding", "level", level, "subject",
                  json_text(f->subject, strlen(f->subject)), "text", json_text(f->text, strlen(f->text)));
    if (line && f->expected)
        json_object_set_new(line, "expected", json_text(f->expected, strlen(f->expected)));
    if (line && f->found) json_object_set_new(line, "found", json_text(f->found, strlen(f->found)));
    if (line && f->hint) json_object_set_new(line, "hint", json_text(f->hint, strlen(f->hint)));
    show_json_line(line);
}

void show_json_finding(const struct check_finding *f)
{
    static const char *const level[] = {"ok", "warning", "bad"};
    json_finding(f, level[f->level]);
}

void show_json_pair_finding(const struct check_finding *f)
{
    static const char *const level[] = {"ok", "note", "misfit"};
    json_finding(f, level[f->level]);
}

void show_diff_tensor(void *ctx, const struct diff_tensor *t)
{
    struct show_diff *d = ctx;
    bool above = t->comparable && d->tolerance >= 0 && !(t->rel_rms <= (double)d->tolerance);
    d->above += above;
    if (d->json) {
        json_t *line =
            json_pack("{s:i,s:s,s:o,s:o*,s:o*,s:s*,s:s*,s:b}", "schema", 1, "kind", "tensor", "name",
                      json_name(t->name), "name_a", json_name(t->name_a), "name_b", json_name(t->name_b),
                      "type_a", t->type_a, "type_b", t->type_b, "comparable", t->comparable);
        if (t->comparable) {
            json_object_set_new(line, "relative_rms", json_float(t->rel_rms));
            json_object_set_new(line, "max_abs", json_float(t->max_abs));
            json_object_set_new(line, "max_at", json_integer(t->max_at));
            json_object_set_new(line, "identical", json_boolean(t->same_bits));
        } else if (t->name_a && t->name_b) {
            json_object_set_new(line, "shape_a", json_string(t->shape_a));
            json_object_set_new(line, "shape_b", json_string(t->shape_b));
        }
        show_json_line(line);
        return;
    }
    if (!t->name_a || !t->name_b)
        printf("%-44s only in %s (%s)\n", show_text(t->name), t->name_a ? "the first" : "the second",
               t->name_a ? t->shape_a : t->shape_b);
    else if (!t->comparable && strcmp(t->shape_a, t->shape_b))
        printf("%-44s shapes differ: %s and %s\n", show_text(t->name), t->shape_a, t->shape_b);
    else if (!t->comparable)
        printf("%-44s %s and %s cannot be decoded here\n", show_text(t->name), t->type_a, t->type_b);
    else if (!t->same_bits || d->tensors || above)
        printf("%-44s %-6s %-6s %s %10.4g  max %10.4g at %" PRId64 "%s\n", show_text(t->name), t->type_a,
               t->type_b, t->same_bits ? "identical   " : "relative RMS", t->rel_rms, t->max_abs, t->max_at,
               above ? "  ABOVE" : "");
}

void show_diff_key(void *ctx, const struct diff_key *k)
{
    const struct show_diff *d = ctx;
    if (d->json) {
        show_json_line(json_pack("{s:i,s:s,s:o,s:s*,s:s*,s:b,s:b,s:o*,s:o*,s:o}", "schema", 1, "kind", "key",
                                 "key", json_name(k->key), "type_a", k->type_a, "type_b", k->type_b,
                                 "array_a", k->array_a, "array_b", k->array_b, "a",
                                 k->type_a ? json_name(k->a) : NULL, "b", k->type_b ? json_name(k->b) : NULL,
                                 "at", k->at < 0 ? json_null() : json_integer(k->at)));
        return;
    }
    if (!k->type_a || !k->type_b)
        printf("key %-40s only in %s (%s)\n", show_text(k->key), k->type_a ? "the first" : "the second",
               show_text(k->type_a ? k->a : k->b));
    else if (k->at >= 0)
        printf("key %-40s differs at %" PRId64 ": %s and %s\n", show_text(k->key), k->at, show_text(k->a),
               show_text(k->b));
    else
        printf("key %-40s %s %s and %s %s\n", show_text(k->key), k->array_a ? "array" : k->type_a,
               show_text(k->a), k->array_b ? "array" : k->type_b, show_text(k->b));
}

void show_diff_total(const struct show_diff *d, const struct diff_total *t)
{
    if (d->json) {
        show_json_line(json_pack(
            "{s:i,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:i,s:o}", "schema", 1, "kind", "total", "keys",
            (json_int_t)t->keys, "keys_differ", (json_int_t)t->keys_differ, "keys_missing",
            (json_int_t)t->keys_missing, "tensors", (json_int_t)t->tensors, "compared",
            (json_int_t)t->compared, "identical", (json_int_t)t->identical, "missing", (json_int_t)t->missing,
            "shapes_differ", (json_int_t)t->shape, "undecodable", (json_int_t)t->undecodable, "not_finite",
            (json_int_t)t->not_finite, "above_tolerance", d->above, "relative_rms", json_float(t->rel_rms)));
        return;
    }
    if (t->keys)
        printf("%" PRId64 " keys: %" PRId64 " identical, %" PRId64 " differ, %" PRId64 " in one file only\n",
               t->keys, t->keys - t->keys_differ - t->keys_missing, t->keys_differ, t->keys_missing);
    printf("%" PRId64 " tensors: %" PRId64 " compared, %" PRId64 " identical, %" PRId64
           " in one file only, %" PRId64 " of other shape, %" PRId64 " undecodable, %" PRId64
           " with NaN or Inf; relative RMS %.4g",
           t->tensors, t->compared, t->identical, t->missing, t->shape, t->undecodable, t->not_finite,
           t->rel_rms);
    if (d->tolerance >= 0) printf("; %d above %g", d->above, (double)d->tolerance);
    putchar('\n');
}
