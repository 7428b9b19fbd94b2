/* quantize - one GGUF into another with other tensor types: plan, write the header, then a slab of rows at a
 * time. */
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "../../common/file/gguf.h"
#include "../../common/file/imatrix.h"
#include "../../common/base/json.h"
#include "../../common/base/mem.h"
#include "../../common/make/quantize.h"
#include "../../common/base/text.h"
#include "../cli.h"

static const char *out_path, *type_name, *imatrix_path;
static const char *split_size;
static struct cli_list override_args, key_args;
static int32_t threads;
static bool force, json, copy; /* copy: no tensor changes */

static const struct cli_flag flags[] = {
    {"-o", CLI_STR, &out_path, "FILE", "write the quantised file here (default: standard output)", 0, 0},
    {"--type", CLI_STR, &type_name, "TYPE",
     "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K or a mix: Q2_K, Q3_K_S, Q3_K_M, Q3_K_L, "
     "IQ4_NL, IQ4_XS, Q4_K_S, Q4_K_M, Q5_K_S, Q5_K_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ2_M, IQ3_XXS, IQ3_XS, IQ3_S, "
     "IQ3_M, MXFP4_MOE; COPY: every tensor as it is",
     0, 0},
    {"--tensor-type", CLI_LIST, &override_args, "PATTERN=TYPE",
     "type of the tensors whose names match; repeatable, the last match wins", 0, 0},
    {"--imatrix", CLI_STR, &imatrix_path, "FILE",
     "importance matrix of the model (dflash-prefill --imatrix): its columns weigh the error", 0, 0},
    {"--override-kv", CLI_LIST, &key_args, "KEY=TYPE:VALUE",
     "write this value of a key; TYPE int, float, bool, str or one of GGUF; repeatable", 0, 0},
    {"--split-size", CLI_STR, &split_size, "BYTES",
     "write FILE in parts of at most so many bytes (2G, 500M), named FILE-00001-of-00005.gguf and so on", 0,
     0},
    {"--threads", CLI_I32, &threads, "N",
     "threads (default 0: one a processor); the bytes do not depend on it", 0, CLI_MAX_THREADS},
    {"--force", CLI_FLAG, &force, NULL, "overwrite an existing file", 0, 0},
    {"--json", CLI_FLAG, &json, NULL, "also print the table as JSON lines on standard output (needs -o FILE)",
     0, 0},
    {NULL, CLI_FLAG, NULL, NULL, NULL, 0, 0},
};

static struct cli cli = {
    .tool = "quantize",
    .synopsis = "IN.gguf -o OUT.gguf --type TYPE [--tensor-type PATTERN=TYPE]...\n [--imatrix FILE] "
                "[--override-kv KEY=TYPE:VALUE]... [--split-size BYTES]\n [--threads N] [--force] [--json]",
    .summary = "Change the tensor types of a GGUF file and report the error that it costs; or copy it, with "
               "other keys, into one file or several.",
    .flags = flags,
    .wants = "IN.gguf",
    .min_args = 1,
    .max_args = 1,
};

struct work {
    struct gguf *in;
    struct gguf_writer *w;
    struct gguf_files out;
    enum quant_recipe recipe;
    struct quant_override *override;
    struct gguf_override *keys;
    struct imatrix *imatrix; /* NULL: none */
    uint32_t *to;            /* [n_tensors] */
    int name_width;          /* of the table */
    struct quant_error total;
    uint64_t bytes_in, bytes_out, elements;
    double seconds; /* in quant_rows and the writes */
};

/* <arch>.<what>, or the first element where it is an array a layer; 0 if absent. */
static int arch_int(const struct gguf *g, const char *arch, const char *what, int32_t *v, struct err *e)
{
    char key[256];
    *v = 0;
    snprintf(key, sizeof key, "%s.%s", arch, what);
    const struct gguf_kv *kv = gguf_find(g, key);
    if (kv && kv->type == GGUF_ARRAY && kv->count && kv->elem != GGUF_STRING && kv->elem != GGUF_F32 &&
        kv->elem != GGUF_F64) {
        *v = (int32_t)gguf_array_i64(kv, 0);
        return 0;
    }
    return gguf_get_i32(g, key, v, e);
}

static int read_model(const struct gguf *g, char arch[128], struct quant_model *m, struct err *e)
{
    struct gguf_str s;
    int rc = gguf_get_str(g, "general.architecture", &s, e);
    if (rc < 0) return -1;
    if (rc > 0 || s.n >= 128)
        return err_set(e, ERR_FORMAT, "%s: general.architecture: %s", g->map.path,
                       rc ? "missing" : "too long");
    memcpy(arch, s.s, s.n);
    arch[s.n] = 0;
    *m = (struct quant_model){.arch = arch};
    rc = arch_int(g, arch, "block_count", &m->n_layer, e);
    if (rc > 0)
        return err_set(e, ERR_FORMAT, "%s: %s.block_count: missing (the rules a layer need it)", g->map.path,
                       arch);
    if (rc < 0 || arch_int(g, arch, "expert_count", &m->n_expert, e) < 0 ||
        arch_int(g, arch, "attention.head_count", &m->n_head, e) < 0 ||
        arch_int(g, arch, "attention.head_count_kv", &m->n_head_kv, e) < 0)
        return -1;
    return 0;
}

static const char *recipe_name(const struct work *k)
{
    return copy ? "COPY" : quant_recipe_name(k->recipe);
}

/* Every tensor keeps its type. */
static int plan_copy(struct work *k, struct err *e)
{
    k->to = mem_calloc(k->in->n_tensors + 1, sizeof *k->to);
    if (!k->to) return err_set(e, ERR_IO, "out of memory (plan of %" PRIu64 " tensors)", k->in->n_tensors);
    for (uint64_t i = 0; i < k->in->n_tensors; i++) {
        const int width = (int)strlen(k->in->tensor[i].name);
        k->to[i] = k->in->tensor[i].type;
        k->name_width = width > k->name_width ? width : k->name_width;
    }
    return 0;
}

static int make_plan(struct work *k, struct err *e)
{
    const int64_t n = (int64_t)k->in->n_tensors;
    if (copy) return plan_copy(k, e);
    char arch[128];
    struct quant_model m = {0};
    if (quant_recipe_is_mix(k->recipe) && read_model(k->in, arch, &m, e))
        return -1; /* plain types ask no model */
    m.importance = imatrix_path != NULL;
    struct quant_tensor *t = mem_calloc((size_t)n + 1, sizeof *t);
    k->to = mem_calloc((size_t)n + 1, sizeof *k->to);
    k->override = mem_calloc((size_t)override_args.n + 1, sizeof *k->override);
    int rc = 0;
    if (!t || !k->to || !k->override)
        rc = err_set(e, ERR_IO, "out of memory (plan of %" PRId64 " tensors)", n);
    for (int i = 0; i < override_args.n && !rc; i++)
        rc = quant_override_parse(&k->override[i], override_args.v[i], e);
    for (int64_t i = 0; i < n && !rc; i++) {
        const struct gguf_tensor *g = &k->in->tensor[i];
        t[i] = (struct quant_tensor){.name = g->name, .n_dims = g->n_dims, .from = g->type};
        memcpy(t[i].ne, g->ne, sizeof t[i].ne);
        const int width = (int)strlen(g->name);
        k->name_width = width > k->name_width ? width : k->name_width;
    }
    if (!rc) rc = quant_plan(k->recipe, &m, t, n, KN_TYPE_NONE, k->override, override_args.n, k->to, e);
    int64_t first, count = rc ? 0 : quant_fell_back(k->recipe, t, n, &first);
    if (count)
        cli_note(
            &cli,
            "%" PRId64
            " tensors have rows that the blocks of %s do not divide and got another type (the first: %s, "
            "rows of %" PRId64 ", %s)",
            count, quant_recipe_name(k->recipe), t[first].name, t[first].ne[0],
            kn_type_info(k->to[first])->name);
    count = rc || imatrix_path ? 0 : quant_coarse(t, k->to, n, &first);
    if (count)
        cli_warn(&cli,
                 "%" PRId64
                 " tensors are so coarse that they want an importance matrix (--imatrix; the first: %s, %s)",
                 count, t[first].name, kn_type_info(k->to[first])->name);
    char again[128];
    count = rc ? 0 : quant_again(t, k->to, n, again, sizeof again);
    if (count) /* requantising loses twice */
        cli_warn(&cli, "%s: %" PRId64 " tensors are quantised already (%s): their error comes on top",
                 k->in->map.path, count, again);
    mem_free(t);
    return rc;
}

/* ---- importance ---- */

/* Does the search of this tensor's new type look at importance? */
static bool searched(const struct gguf_tensor *t, uint32_t to)
{
    return t->type != to && kn_type_info(to)->block > 1 && to != KN_Q8_0;
}

/* Every entry must be of this model; tensors without one, and experts that saw no row, are told. */
static int check_imatrix(const struct work *k, struct err *e)
{
    const struct imatrix *m = k->imatrix;
    const char *first = NULL, *idle_first = NULL;
    uint64_t without = 0, idle = 0;
    for (int64_t i = 0; i < m->n; i++) {
        struct imatrix_entry *x = &m->entry[i];
        const struct gguf_tensor *t = gguf_tensor(k->in, x->name);
        if (!t)
            return err_set(e, ERR_FORMAT, "%s: has '%s', which %s has not", imatrix_path, x->name,
                           k->in->map.path);
        if (imatrix_fit(x, t->ne[0], t->ne[2] * t->ne[3], e)) return err_prefix(e, "%s", imatrix_path);
        for (int64_t j = 0; j < x->n_mat; j++)
            if (!(x->count[j] > 0) && !idle++) idle_first = x->name;
    }
    for (uint64_t i = 0; i < k->in->n_tensors; i++)
        if (searched(&k->in->tensor[i], k->to[i]) && !imatrix_find(m, k->in->tensor[i].name) && !without++)
            first = k->in->tensor[i].name;
    if (without)
        cli_note(&cli, "%s: %" PRIu64 " tensors have no importance and are quantised without (the first: %s)",
                 imatrix_path, without, first);
    if (idle)
        cli_note(&cli,
                 "%s: %" PRIu64
                 " matrices saw no row and are quantised with equal columns (the first: in %s)",
                 imatrix_path, idle, idle_first);
    return 0;
}

/* The names of all data sets, with commas between. */
static int put_datasets(struct work *k, const char *key, struct err *e)
{
    const struct imatrix *m = k->imatrix;
    size_t room = 1, at = 0;
    for (int64_t i = 0; i < m->n_dataset; i++) room += strlen(m->dataset[i]) + 2;
    char *sets = mem_alloc(room);
    if (!sets) return err_set(e, ERR_IO, "out of memory (names of data sets)");
    sets[0] = 0;
    for (int64_t i = 0; i < m->n_dataset; i++)
        at += (size_t)snprintf(sets + at, room - at, "%s%s", i ? ", " : "", m->dataset[i]);
    int rc = at ? gguf_put_str(k->w, key, sets, at, e) : 0;
    mem_free(sets);
    return rc;
}

/* What the ecosystem's quantiser writes of an importance matrix; keys of an earlier one do not stay. */
static int imatrix_keys(struct work *k, struct err *e)
{
    static const char *const keys[] = {"quantize.imatrix.file", "quantize.imatrix.dataset",
                                       "quantize.imatrix.entries_count", "quantize.imatrix.chunks_count"};
    const struct imatrix *m = k->imatrix;
    for (int i = 0; i < 4; i++) gguf_remove(k->w, keys[i]);
    if (!m) return 0;
    if (gguf_put_str(k->w, keys[0], imatrix_path, strlen(imatrix_path), e) || put_datasets(k, keys[1], e))
        return -1;
    if (gguf_put_u32(k->w, keys[2], (uint32_t)m->n, e)) return -1;
    const uint32_t chunks = imatrix_chunks(m);
    return chunks ? gguf_put_u32(k->w, keys[3], chunks, e) : 0;
}

static int copy_keys(struct work *k, struct err *e)
{
    for (uint64_t i = 0; i < k->in->n_kv; i++)
        if (gguf_put_kv(k->w, &k->in->kv[i], e)) return -1;
    if (copy) return 0;
    if (imatrix_keys(k, e)) return -1;
    if (gguf_put_u32(k->w, "general.quantization_version", 2, e)) return -1;
    return gguf_put_u32(k->w, "general.file_type", quant_recipe_file_type(k->recipe), e);
}

static void shape_text(char *s, size_t n, const struct gguf_tensor *t)
{
    size_t at = 0;
    s[0] = 0;
    for (uint32_t d = 0; d < t->n_dims; d++)
        at += (size_t)snprintf(s + at, n - at, "%s%" PRId64, d ? " x " : "", t->ne[d]);
}

static uint64_t tensor_bytes(const struct gguf_tensor *t, uint32_t type)
{
    return (uint64_t)kn_row_bytes(type, t->ne[0]) * (uint64_t)(t->ne[1] * t->ne[2] * t->ne[3]);
}

static int print_json(json_t *line, struct err *e)
{
    char *s = json_line(line, 9);
    json_decref(line);
    if (!s || mem_failures()) {
        free(s);
        return err_set(e, ERR_IO, "out of memory (JSON)");
    }
    puts(s);
    free(s);
    return 0;
}

/* A line of the table: no "tool:" before it, and a progress line on a terminal gives way. */
static void row(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void row(const char *fmt, ...)
{
    va_list ap;
    char text[1024];
    if (cli.quiet || (copy && !cli.verbose)) return;
    cli_progress_clear();
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fprintf(stderr, "%s\n", text_printable(text));
}

static int report(const struct work *k, uint64_t i, const struct quant_error *q, double seconds,
                  struct err *e)
{
    const struct gguf_tensor *t = &k->in->tensor[i];
    const char *from = kn_type_info(t->type)->name, *to = kn_type_info(k->to[i])->name;
    const bool same = t->type == k->to[i];
    char shape[96], error[48] = "copied";
    shape_text(shape, sizeof shape, t);
    if (!same) snprintf(error, sizeof error, "%.6f", quant_rel_rms(q));
    if (cli.verbose && !same)
        row("%-*s %5s -> %-5s %20s  %-8s  %7.3f s %7.1f MiB/s", k->name_width, t->name, from, to, shape,
            error, seconds, (double)t->bytes / 1048576 / (seconds > 0 ? seconds : 1e-9));
    else
        row("%-*s %5s -> %-5s %20s  %s", k->name_width, t->name, from, to, shape, error);
    if (!json) return 0;
    json_t *ne = json_array();
    for (uint32_t d = 0; d < t->n_dims; d++) json_array_append_new(ne, json_integer(t->ne[d]));
    return print_json(json_pack("{si,ss,so,ss,ss,so,sI,sI,sf,sf}", "schema", 1, "kind", "tensor", "name",
                                json_text(t->name, strlen(t->name)), "from", from, "to", to, "shape", ne,
                                "bytes_in", (json_int_t)t->bytes, "bytes_out",
                                (json_int_t)tensor_bytes(t, k->to[i]), "relative_rms",
                                same ? 0.0 : quant_rel_rms(q), "seconds", seconds),
                      e);
}

/* One tensor through a slab of rows; slab is [bytes of the rows in the new type]. With importance a slab ends
 * with its matrix, for the next one weighs its columns differently. */
static int write_tensor(struct work *k, uint64_t i, struct quant_error *q, struct err *e)
{
    const struct gguf_tensor *t = &k->in->tensor[i];
    const uint32_t to = k->to[i];
    if (t->type == to) return gguf_files_data(&k->out, t->data, t->bytes, e);
    const int64_t n_rows = t->ne[1] * t->ne[2] * t->ne[3], step = quant_slab_rows(t->type, to, t->ne[0]);
    const size_t in_row = kn_row_bytes(t->type, t->ne[0]), out_row = kn_row_bytes(to, t->ne[0]);
    const struct imatrix_entry *x = k->imatrix && searched(t, to) ? imatrix_find(k->imatrix, t->name) : NULL;
    uint8_t *slab = mem_alloc(out_row * (size_t)(step < n_rows ? step : n_rows) + 1);
    float *weight = x ? mem_alloc((size_t)t->ne[0] * sizeof *weight) : NULL;
    int rc = slab && (weight || !x)
                 ? 0
                 : err_set(e, ERR_IO, "out of memory (%" PRId64 " rows of %s)", step, t->name);
    for (int64_t r = 0, rows; r < n_rows && !rc; r += rows) {
        const int64_t end = x ? (r / t->ne[1] + 1) * t->ne[1] : n_rows;
        rows = end - r < step ? end - r : step;
        if (x && r % t->ne[1] == 0) imatrix_weights(x, r / t->ne[1], weight);
        rc = quant_rows_weighted(t->name, t->type, t->data + (size_t)r * in_row, to, slab, t->ne[0], rows, r,
                                 weight, threads, q, e);
        if (rc) err_prefix(e, "%s", k->in->map.path);
        if (!rc) rc = gguf_files_data(&k->out, slab, out_row * (size_t)rows, e);
        if (!rc)
            cli_progress(&cli, "quantize", k->bytes_in + (uint64_t)(r + rows) * in_row, k->in->bytes, "B");
    }
    mem_free(slab);
    mem_free(weight);
    return rc;
}

static int write_all(struct work *k, const char *path, struct err *e)
{
    const char *inputs[] = {path, imatrix_path ? imatrix_path : path};
    const uint64_t split = split_size ? cli_bytes(&cli, "--split-size", split_size) : 0;
    if (gguf_writer_new(&k->w, e) || copy_keys(k, e)) return -1;
    for (uint64_t i = 0; i < k->in->n_tensors; i++) {
        const struct gguf_tensor *t = &k->in->tensor[i];
        if (gguf_add_tensor(k->w, t->name, k->to[i], t->n_dims, t->ne, e)) return -1;
    }
    if (gguf_files_open(&k->out, k->w, out_path, force, inputs, 2, split, e)) return -1;
    for (uint64_t i = 0; i < k->in->n_tensors; i++) {
        const struct gguf_tensor *t = &k->in->tensor[i];
        struct quant_error q = {0};
        const double begin = cli_seconds();
        if (write_tensor(k, i, &q, e)) return -1;
        const double seconds = cli_seconds() - begin;
        k->bytes_in += t->bytes;
        k->bytes_out += tensor_bytes(t, k->to[i]);
        k->elements += (uint64_t)(t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]);
        quant_error_add(&k->total, &q);
        if (report(k, i, &q, seconds, e)) return -1;
    }
    cli_progress(&cli, "quantize", k->in->bytes, k->in->bytes, "B");
    return gguf_files_end(&k->out, e);
}

static void note_total(const struct work *k, double seconds)
{
    cli_note(&cli,
             "%s: %" PRIu64
             " tensors, %.2f -> %.2f MiB (%.2f bits a weight), relative RMS %.6f, %.2f s, %.0f MiB/s read",
             recipe_name(k), k->in->n_tensors, (double)k->bytes_in / 1048576, (double)k->bytes_out / 1048576,
             k->elements ? 8.0 * (double)k->bytes_out / (double)k->elements : 0.0, quant_rel_rms(&k->total),
             seconds, (double)k->bytes_in / 1048576 / (seconds > 0 ? seconds : 1e-9));
}

static int json_total(const struct work *k, double seconds, struct err *e)
{
    if (print_json(json_pack("{si,ss,sb,ss,sI,sI,sI,sf,sf,sf}", "schema", 1, "kind", "total", "total", 1,
                             "type", recipe_name(k), "tensors", (json_int_t)k->in->n_tensors, "bytes_in",
                             (json_int_t)k->bytes_in, "bytes_out", (json_int_t)k->bytes_out, "relative_rms",
                             quant_rel_rms(&k->total), "seconds", seconds, "bytes_in_per_second",
                             (double)k->bytes_in / (seconds > 0 ? seconds : 1e-9)),
                   e))
        return -1;
    return fflush(stdout) || ferror(stdout) ? err_errno(e, "stdout: cannot write") : 0;
}

/* It has no tensor that is ever quantised: all of it would be copied, and a type written that nothing has. */
static int refuse_imatrix(const struct gguf *g, const char *path, struct err *e)
{
    if (!imatrix_is(g)) return 0;
    err_set(e, ERR_FORMAT, "%s: is an importance matrix (expected a model)", path);
    return err_hint(e, "it goes with --imatrix, beside the model that it was gathered from");
}

static int quantize(const char *path, struct err *e)
{
    struct work k = {0};
    int rc = -1;
    if ((!copy && quant_recipe_by_name(type_name, &k.recipe, e)) ||
        gguf_overrides_parse(&k.keys, key_args.v, key_args.n, e) || gguf_open(&k.in, path, e) ||
        refuse_imatrix(k.in, path, e) || gguf_override(k.in, k.keys, key_args.n, true, e) || make_plan(&k, e))
        goto out;
    if (imatrix_path && (imatrix_read(&k.imatrix, imatrix_path, e) || check_imatrix(&k, e))) goto out;
    const double begin = cli_seconds();
    if (write_all(&k, path, e)) goto out;
    const double seconds = cli_seconds() - begin;
    const uint32_t n_files = k.out.n;
    /* The file appears only if the lines of --json could be printed. */
    if ((json && json_total(&k, seconds, e)) || gguf_files_commit(&k.out, e)) goto out;
    note_total(&k, seconds);
    if (split_size) cli_note(&cli, "%s: in %u file%s", out_path, n_files, n_files == 1 ? "" : "s");
    rc = 0;
out:
    gguf_files_abort(&k.out);
    gguf_writer_free(k.w);
    for (int i = 0; k.override && i < override_args.n; i++) quant_override_free(&k.override[i]);
    mem_free(k.override);
    mem_free(k.keys);
    mem_free(k.to);
    imatrix_free(k.imatrix);
    gguf_close(k.in);
    return rc;
}

int main(int argc, char **argv)
{
    struct err e = {0};
    cli_parse(&cli, argc, argv);
    io_signals_install();
    const bool to_stdout = !out_path || !strcmp(out_path, "-");
    if (!type_name)
        cli_usage_error(&cli, "--type: missing (expected one of %s, or COPY)", quant_recipe_names());
    copy = !strcasecmp(type_name, "copy");
    if (copy && (override_args.n || imatrix_path))
        cli_usage_error(&cli, "%s: --type COPY changes no tensor (expected another type)",
                        imatrix_path ? "--imatrix" : "--tensor-type");
    if (split_size) cli_bytes(&cli, "--split-size", split_size);
    if (json && to_stdout) cli_usage_error(&cli, "--json: standard output carries the model (give -o FILE)");
    const struct cli_output out[] = {{"-o", out_path}, {"--json", json ? "-" : NULL}};
    cli_distinct_outputs(&cli, out, 2);
    cli_no_binary_out(&cli, out_path, "a GGUF file");
    if (quantize(cli.args[0], &e)) return cli_fail(&cli, &e);
    return json ? cli_close_stdout(&cli) : 0;
}
