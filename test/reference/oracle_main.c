/* oracle_main.c - the float64 reference as a program, and comparisons with it.
 *
 * usage: oracle logits TARGET_DIR < ids > logits.f32             [n, V]
 *        oracle draft TARGET_DIR DRAFTER_DIR < ids > logits.f32  first block after the prompt: [block, V],
 * anchor = argmax oracle trace TARGET_DIR DRAFTER_DIR N NAME=IDS... > trace.json oracle floats A B TOLERANCE
 * max |A - B|; exit 1 above the tolerance, or where sizes differ oracle hidden|hidden-norm GOT.f32
 * REFERENCE.npy TOLERANCE  planes of hidden states, the largest difference, or its 2-norm a block; exit 1
 * naming the first plane that is out of it oracle check TRACE.json NAME GREEDY.i32 TRACE.i32 MARGIN   an
 * engine's ids and proposals, near-ties below MARGIN excused oracle tops TRACE.json NAME LOGITS.f32 TOLERANCE
 * the best logit of each row of an engine's first block [block, V] oracle prompt TRACE.json NAME > ids Token
 * files are raw little-endian int32. Exit 0 they agree, 1 they do not, 2 usage or unreadable input. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "oracle.h"
#include "../../kernels/kernels.h"

static void *slurp(FILE *f, size_t *n)
{
    char *b = NULL;
    size_t cap = 0;
    *n = 0;
    do {
        if (*n == cap) b = realloc(b, cap = cap ? 2 * cap : 65536);
        *n += fread(b + *n, 1, cap - *n, f);
    } while (!feof(f) && !ferror(f));
    return b;
}

static void *slurp_path(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    if (!f) {
        perror(path);
        exit(2);
    }
    void *b = slurp(f, n);
    fclose(f);
    return b;
}

static struct oracle *open_or_die(const char *dir)
{
    struct err e = {0};
    struct oracle *o;
    if (oracle_open(&o, dir, &e)) {
        fprintf(stderr, "%s\n", e.msg);
        exit(2);
    }
    return o;
}

static int argmax(const double *x, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

static double margin(const double *x, int n)
{
    double a = -INFINITY, b = -INFINITY;
    for (int i = 0; i < n; i++) {
        if (x[i] > a) {
            b = a;
            a = x[i];
        } else if (x[i] > b)
            b = x[i];
    }
    return a - b;
}

static void write_floats(const double *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float f = (float)x[i];
        fwrite(&f, sizeof f, 1, stdout);
    }
}

static int run_logits(const char *target, const char *drafter)
{
    size_t bytes;
    int32_t *ids = slurp(stdin, &bytes);
    int n = (int)(bytes / 4);
    struct oracle *t = open_or_die(target), *d = drafter ? open_or_die(drafter) : NULL;
    struct oracle_cache *c = oracle_cache_new(t, n);
    double *logits = malloc((size_t)n * (size_t)t->V * sizeof *logits), *taps = NULL;
    if (d) taps = malloc((size_t)n * (size_t)d->n_taps * (size_t)t->E * sizeof *taps);
    oracle_forward(t, c, ids, n, logits, d, taps);
    if (!d) {
        write_floats(logits, (size_t)n * (size_t)t->V);
    } else {
        struct oracle_cache *dc = oracle_cache_new(d, n + d->block);
        double *block = malloc((size_t)d->block * (size_t)t->V * sizeof *block);
        oracle_context(d, dc, taps, n);
        oracle_draft(d, t, dc, argmax(logits + (size_t)(n - 1) * (size_t)t->V, t->V), block, NULL, NULL,
                     NULL);
        write_floats(block, (size_t)d->block * (size_t)t->V);
        oracle_cache_free(d, dc);
        free(block);
    }
    oracle_cache_free(t, c);
    oracle_close(t);
    oracle_close(d);
    free(logits);
    free(taps);
    free(ids);
    return fflush(stdout) ? 2 : 0;
}

static json_t *ints(const int32_t *v, int n)
{
    json_t *a = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(a, json_integer(v[i]));
    return a;
}

static json_t *rounded(double x)
{
    return json_real(round(x * 1e6) / 1e6);
}

/* One prompt: the target's own greedy ids, and every cycle of the speculative loop. Stop ids are ignored. */
static json_t *trace_prompt(const struct oracle *t, const struct oracle *d, const char *name,
                            const int32_t *prompt, int n, int n_new)
{
    size_t V = (size_t)t->V;
    int B = d->block;
    struct oracle_cache *c = oracle_cache_new(t, n + n_new + B), *dc = oracle_cache_new(d, n + n_new + B);
    double *logits = malloc((size_t)(n > B ? n : B) * V * sizeof *logits),
           *draft = malloc((size_t)B * V * sizeof *draft);
    double *taps = malloc((size_t)(n > B ? n : B) * (size_t)d->n_taps * (size_t)t->E * sizeof *taps);
    int32_t *out = malloc((size_t)(n_new + B) * sizeof *out), row[64];
    json_t *cycles = json_array(), *margins = json_array(), *entry = json_object();
    oracle_forward(t, c, prompt, n, logits, d, taps);
    oracle_context(d, dc, taps, n);
    out[0] = argmax(logits + (size_t)(n - 1) * V, t->V);
    json_array_append_new(margins, rounded(margin(logits + (size_t)(n - 1) * V, t->V)));
    for (int made = 1; made < n_new;) {
        int start = n + made - 1, accepted = 0;
        json_t *tops = json_array(), *dm = json_array(), *tm = json_array(), *cycle = json_object();
        double top[64], far[64];
        oracle_draft(d, t, dc, out[made - 1], draft, row + 1, top, far);
        row[0] = out[made - 1];
        for (int i = 1; i < B; i++) {
            json_array_append_new(tops, rounded(top[i - 1]));
            json_array_append_new(dm, rounded(far[i - 1]));
        }
        oracle_forward(t, c, row, B, logits, d, taps);
        for (int i = 0; i <= accepted; i++) {
            int32_t pick = argmax(logits + (size_t)i * V, t->V);
            json_array_append_new(tm, rounded(margin(logits + (size_t)i * V, t->V)));
            if (made + i < n_new) json_array_append(margins, json_array_get(tm, (size_t)i));
            out[made + i] = pick;
            if (i + 1 < B && row[i + 1] == pick) accepted++;
        }
        int committed = accepted + 1 < n_new - made ? accepted + 1 : n_new - made;
        json_object_set_new(cycle, "start", json_integer(start));
        json_object_set_new(cycle, "accepted", json_integer(accepted));
        json_object_set_new(cycle, "committed", json_integer(committed));
        json_object_set_new(cycle, "proposals", ints(row + 1, B - 1));
        json_object_set_new(cycle, "draft_top_logits", tops);
        json_object_set_new(cycle, "draft_margins", dm);
        json_object_set_new(cycle, "target_margins", tm);
        json_array_append_new(cycles, cycle);
        made += accepted + 1;
        c->n = start + accepted + 1;
        oracle_context(d, dc, taps, accepted + 1);
    }
    json_object_set_new(entry, "name", json_string(name));
    json_object_set_new(entry, "n_prompt", json_integer(n));
    json_object_set_new(entry, "prompt", ints(prompt, n));
    json_object_set_new(entry, "greedy", ints(out, n_new));
    json_object_set_new(entry, "greedy_margins", margins);
    json_object_set_new(entry, "cycles", cycles);
    oracle_cache_free(t, c);
    oracle_cache_free(d, dc);
    free(logits);
    free(draft);
    free(taps);
    free(out);
    return entry;
}

static int run_trace(int argc, char **argv)
{
    struct oracle *t = open_or_die(argv[0]), *d = open_or_die(argv[1]);
    int n_new = atoi(argv[2]);
    json_t *root = json_object(), *prompts = json_array();
    json_object_set_new(root, "schema", json_integer(1));
    json_object_set_new(root, "made_by", json_string("test/reference/make_trace.sh"));
    json_object_set_new(root, "n_new", json_integer(n_new));
    json_object_set_new(root, "block_size", json_integer(d->block));
    for (int i = 3; i < argc; i++) {
        char *eq = strchr(argv[i], '=');
        if (!eq) return 2;
        *eq = 0;
        size_t bytes;
        int32_t *ids = slurp_path(eq + 1, &bytes);
        json_array_append_new(prompts, trace_prompt(t, d, argv[i], ids, (int)(bytes / 4), n_new));
        free(ids);
    }
    json_object_set_new(root, "prompts", prompts);
    json_dumpf(root, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
    putchar('\n');
    json_decref(root);
    oracle_close(t);
    oracle_close(d);
    return fflush(stdout) ? 2 : 0;
}

static int run_floats(const char *a_path, const char *b_path, double tolerance)
{
    size_t na, nb, where = 0;
    float *a = slurp_path(a_path, &na), *b = slurp_path(b_path, &nb);
    double worst = 0;
    if (na != nb || na % 4 || !na) {
        fprintf(stderr, "oracle: %s has %zu bytes, %s %zu\n", a_path, na, b_path, nb);
        return 1;
    }
    for (size_t i = 0; i < na / 4; i++) {
        double d = fabs((double)a[i] - b[i]);
        if (!(d <= worst)) {
            worst = d;
            where = i;
        }
    }
    printf("max difference %.2e at %zu (tolerance %.0e)\n", worst, where, tolerance);
    free(a);
    free(b);
    return worst <= tolerance ? 0 : 1;
}

/* The header of an array of float16 in numpy's format: where its values begin, 0 if it is none. */
static size_t npy_start(uint8_t *file, size_t n, long shape[3])
{
    if (n < 10 || memcmp(file, "\x93NUMPY\1", 7)) return 0;
    const size_t start = 10 + (size_t)file[8] + 256 * (size_t)file[9];
    if (start >= n) return 0;
    file[start - 1] = 0; /* the newline that ends it */
    const char *text = (char *)file + 10, *s = strstr(text, "'shape': (");
    return strstr(text, "'descr': '<f2'") && s &&
                   sscanf(s, "'shape': (%ld, %ld, %ld)", shape, shape + 1, shape + 2) == 3
               ? start
               : 0;
}

static double f16_at(const uint8_t *p)
{
    return (double)kn_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

/* The largest difference of n values from float16 ones, beyond half a unit of each, in sizes of the plane
 * (roots of its mean square). */
static double plane_error(const float *got, const uint8_t *want, size_t n, size_t *where)
{
    double squares = 0, worst = 0;
    for (size_t i = 0; i < n; i++) squares += f16_at(want + 2 * i) * f16_at(want + 2 * i);
    for (size_t i = 0; i < n; i++) {
        const double x = f16_at(want + 2 * i),
                     d = (fabs(got[i] - x) - fmax(fabs(x) * 0x1p-11, 0x1p-25)) / sqrt(squares / (double)n);
        if (d <= worst) continue;
        worst = d; /* a NaN too, and it stays */
        *where = i;
        if (d != d) break;
    }
    return worst;
}

/* The 2-norm of the difference over that of the plane. */
static double plane_norm(const float *got, const uint8_t *want, size_t n)
{
    double squares = 0, sum = 0;
    for (size_t i = 0; i < n; i++) {
        const double x = f16_at(want + 2 * i), d = got[i] - x;
        squares += x * x, sum += d * d;
    }
    return sqrt(sum / squares);
}

/* What layers leave, [planes, n, width] of float32, against float16: the embeddings, every block's rows, the
 * last after the final norm. norm: what blocks may err adds up, tolerance each. */
static int run_hidden(const char *got_path, const char *want_path, double tolerance, bool norm)
{
    size_t n_got, n_want, where = 0, p = 0;
    long shape[3] = {0};
    float *got = slurp_path(got_path, &n_got);
    uint8_t *file = slurp_path(want_path, &n_want);
    const size_t start = npy_start(file, n_want, shape), planes = (size_t)shape[0],
                 size = (size_t)(shape[1] * shape[2]);
    double worst = 0;
    if (!start || n_want - start != planes * size * 2 || n_got != planes * size * 4) {
        fprintf(stderr, "oracle: %s has %zu bytes, %s %ld planes of %ld x %ld\n", got_path, n_got, want_path,
                shape[0], shape[1], shape[2]);
        return 2;
    }
    for (; p < planes; p++) {
        const uint8_t *want = file + start + p * size * 2;
        const double e =
            norm ? plane_norm(got + p * size, want, size) : plane_error(got + p * size, want, size, &where);
        if (e > worst || e != e) worst = e;
        if (!(e <= tolerance * (norm && p ? (double)p : 1))) break;
    }
    if (p < planes && norm)
        printf("plane %zu of %zu, what block %d leaves, is the first out of tolerance: a difference of %.2e "
               "of its norm (tolerance %.1e a block)\n",
               p, planes, (int)p - 1, worst, tolerance);
    else if (norm)
        printf("%zu planes, differences of at most %.2e of a plane's norm (tolerance %.1e a block)\n", planes,
               worst, tolerance);
    else if (p < planes)
        printf("plane %zu of %zu, what block %d leaves, is the first out of tolerance: %.2e of its size "
               "(position %zu, element %zu; tolerance %.0e)\n",
               p, planes, (int)p - 1, worst, where / (size_t)shape[2], where % (size_t)shape[2], tolerance);
    else
        printf(
            "%zu planes, at most %.2e of a plane's size beyond the reference's rounding (tolerance %.0e)\n",
            planes, worst, tolerance);
    free(got);
    free(file);
    return p < planes;
}

static json_t *find_prompt(const char *path, const char *name, json_t **root)
{
    json_t *p;
    size_t i;
    *root = json_load_file(path, 0, NULL);
    json_array_foreach(json_object_get(*root, "prompts"), i,
                       p) if (!strcmp(json_string_value(json_object_get(p, "name")), name)) return p;
    fprintf(stderr, "oracle: %s: no prompt %s\n", path, name);
    exit(2);
}

static double at(json_t *array, size_t i)
{
    return json_number_value(json_array_get(array, i));
}

/* ids must be equal up to the first row whose margin is below the limit; proposals of cycles that start alike
 * likewise. */
static int run_check(const char *path, const char *name, const char *ids_path, const char *trace_path,
                     double limit)
{
    json_t *root, *p = find_prompt(path, name, &root), *greedy = json_object_get(p, "greedy");
    size_t n, m, ties = 0, compared = 0, cycle = 0, part = SIZE_MAX; /* part: the first id that differs */
    int32_t *ids = slurp_path(ids_path, &n), *trace = slurp_path(trace_path, &m);
    int n_prompt = (int)json_integer_value(json_object_get(p, "n_prompt")), bad = 0;
    size_t rows = (size_t)json_integer_value(json_object_get(root, "block_size")) - 1;
    n /= 4;
    m /= 4;
    if (n != json_array_size(greedy)) {
        fprintf(stderr, "%s: %zu ids, expected %zu\n", name, n, json_array_size(greedy));
        return 1;
    }
    for (size_t i = 0; i < n; i++)
        if (ids[i] != (int32_t)at(greedy, i)) {
            double mg = at(json_object_get(p, "greedy_margins"), i);
            printf("%s: id %zu is %d, expected %d (margin %.4f)\n", name, i, ids[i], (int)at(greedy, i), mg);
            if (mg >= limit) return 1;
            part = i; /* a near-tie: the texts part here, and blocks after it follow other words */
            break;
        }
    json_t *cycles = json_object_get(p, "cycles"), *c;
    size_t k, made = 1; /* the engine's own position, found again from its ids and proposals */
    json_array_foreach(cycles, k, c)
    {
        size_t start = (size_t)json_integer_value(json_object_get(c, "start"));
        while (cycle * rows < m &&
               (size_t)n_prompt + made - 1 < start) { /* the engine's cycle began earlier: step over it */
            size_t acc = 0;
            while (acc < rows && made + acc < n && trace[cycle * rows + acc] == ids[made + acc]) acc++;
            made += acc + 1;
            cycle++;
        }
        if (cycle * rows >= m || (size_t)n_prompt + made - 1 != start || made > part) continue;
        for (size_t r = 0; r < rows; r++) {
            int want = (int)at(json_object_get(c, "proposals"), r), got = trace[cycle * rows + r];
            double mg = at(json_object_get(c, "draft_margins"), r);
            compared++;
            if (got == want) continue;
            printf("%s: cycle %zu row %zu proposes %d, expected %d (margin %.4f)\n", name, k, r + 1, got,
                   want, mg);
            if (mg < limit)
                ties++;
            else
                bad++;
        }
    }
    printf("%s: %zu ids, %zu proposals compared, %zu near-ties, %d wrong\n", name, n, compared, ties, bad);
    if (compared < rows * json_array_size(cycles) / 2) {
        fprintf(stderr, "%s: only %zu proposals could be compared\n", name, compared);
        bad = 1;
    }
    json_decref(root);
    free(ids);
    free(trace);
    return bad ? 1 : 0;
}

static int run_tops(const char *path, const char *name, const char *logits_path, double tolerance)
{
    json_t *root, *p = find_prompt(path, name, &root), *tops;
    size_t n, block = (size_t)json_integer_value(json_object_get(root, "block_size"));
    float *x = slurp_path(logits_path, &n);
    size_t V = n / 4 / block;
    double worst = 0;
    tops = json_object_get(json_array_get(json_object_get(p, "cycles"), 0), "draft_top_logits");
    if (!V || n != 4 * V * block || json_array_size(tops) != block - 1) {
        fprintf(stderr, "oracle: %s: not %zu rows of logits\n", logits_path, block);
        return 1;
    }
    for (size_t r = 1; r < block; r++) {
        double best = -INFINITY;
        for (size_t v = 0; v < V; v++)
            if (!(x[r * V + v] <= best)) best = (double)x[r * V + v];
        double d = fabs(best - at(tops, r - 1));
        if (!(d <= worst)) worst = d;
    }
    printf("%zu rows, max difference of the best logit %.2e (tolerance %.0e)\n", block - 1, worst, tolerance);
    json_decref(root);
    free(x);
    return worst <= tolerance ? 0 : 1;
}

static int run_prompt(const char *path, const char *name)
{
    json_t *root, *ids = json_object_get(find_prompt(path, name, &root), "prompt");
    for (size_t i = 0; i < json_array_size(ids); i++) {
        int32_t id = (int32_t)at(ids, i);
        fwrite(&id, sizeof id, 1, stdout);
    }
    json_decref(root);
    return fflush(stdout) ? 2 : 0;
}

int main(int argc, char **argv)
{
    const char *verb = argc > 1 ? argv[1] : "";
    if (!strcmp(verb, "logits") && argc == 3) return run_logits(argv[2], NULL);
    if (!strcmp(verb, "draft") && argc == 4) return run_logits(argv[2], argv[3]);
    if (!strcmp(verb, "trace") && argc > 5) return run_trace(argc - 2, argv + 2);
    if (!strcmp(verb, "hidden") && argc == 5)
        return run_hidden(argv[2], argv[3], strtod(argv[4], NULL), false);
    if (!strcmp(verb, "hidden-norm") && argc == 5)
        return run_hidden(argv[2], argv[3], strtod(argv[4], NULL), true);
    if (!strcmp(verb, "floats") && argc == 5) return run_floats(argv[2], argv[3], strtod(argv[4], NULL));
    if (!strcmp(verb, "check") && argc == 7)
        return run_check(argv[2], argv[3], argv[4], argv[5], strtod(argv[6], NULL));
    if (!strcmp(verb, "tops") && argc == 6) return run_tops(argv[2], argv[3], argv[4], strtod(argv[5], NULL));
    if (!strcmp(verb, "prompt") && argc == 4) return run_prompt(argv[2], argv[3]);
    fprintf(stderr, "usage: oracle logits|draft|trace|floats|hidden|check|prompt ... (see "
                    "test/reference/oracle_main.c)\n");
    return 2;
}
