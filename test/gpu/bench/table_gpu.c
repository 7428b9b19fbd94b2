/* table_gpu.c - the speed of the CUDA backend as a table: decoding, rows of a verify, drafting, cycles,
 * prompts and long contexts, each as a share of a ceiling measured in the same run.
 *
 * usage: table_gpu DIR      DIR/8b-q4_k_m.gguf, 8b-q8_0.gguf, 8b-bf16.gguf, 8b-draft-q8_0.gguf,
 * 8b-draft-q4_k_m.gguf, 0.6b-q4_k_m.gguf: Qwen3-8B, its drafter and Qwen3-0.6B at their real shapes, weights
 * random (dflash-convert
 *                           --random; `make bench-gpu` makes them). What is missing is said and left out, as
 * are models of other families, which make_models.sh makes where they are named (27b-q4_k_m, 31b-...,
 * 35b-a3b-..., 30b-a3b-..., 26b-a4b-..., drafters -draft-q8_0).
 *
 * A step is a cycle as generate runs it: started ahead, recorded and replayed. Its time is the host's, from
 * one result to the next, a mean of 16 (states of delta nets are not written in all of them), median of the
 * last two thirds of such means; draft and verify within a cycle are the device's own stamps. Contexts are
 * positions that nothing was written to: zeros take the time that anything else takes. Exit 0, 1 (something
 * failed), 5 (no device). */
#include <unistd.h>

#include "../../../common/run/cycle.h"
#include "../../../common/run/session.h"
#include "../../../kernels/cuda/core/cuda.h"
#include "../harness.h"

enum { STEPS = 90, SOME = 16 }; /* SOME: cycles whose mean is one of the times: not all do the same */
static struct kn_backend *gpu;
static const char *dir;
static double read_speed, product_speed; /* bytes/s, operations/s */

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, ascending);
    return v[n / 2];
}

static void row(const char *what, double value, const char *unit, double bar, double goal, const char *note)
{
    printf("| %-52s | %8.3f %-6s | %5.2f | %5.2f | %s |\n", what, value, unit, bar, goal, note);
    fflush(stdout);
}

static bool failure(const char *what, const struct err *e)
{
    printf("FAIL %s: %s\n", what, e->msg);
    failed++;
    return false;
}

static struct model *load(const char *name)
{
    char path[600];
    struct err e = {0};
    struct model *m = NULL;
    const struct desc_override o = {.draft_causal = -1};
    snprintf(path, sizeof path, "%s/%s.gguf", dir, name);
    if (access(path, R_OK)) {
        printf("(no %s)\n", path);
        return NULL;
    }
    double from = seconds_now();
    if (model_load(&m, path, gpu, &o, NULL, NULL, &e)) {
        failure(path, &e);
        return NULL;
    }
    double s = seconds_now() - from;
    printf("(%s: loaded in %.2f s, %.1f GB/s)\n", name, s, (double)m->file->bytes / s * 1e-9);
    return m;
}

/* ---- cycles ---- */

struct times {
    double all, draft, verify, commit; /* of a cycle, s: typical() */
};

/* Median of the means of SOME cycles in a row that end in the last two thirds. */
static double typical(const double *cycle)
{
    static double mean[STEPS];
    int n = 0;
    for (int last = STEPS / 3; last < STEPS; last++) {
        double sum = 0;
        for (int i = last - SOME + 1; i <= last; i++) sum += cycle[i];
        mean[n++] = sum / SOME;
    }
    return median(mean, n);
}

/* What may be started behind the cycles that run, as generate does it: where a cycle may not start ahead with
 * its rows, its draft does. The rows of one whose draft was started come first. */
static int start_ahead(struct session *s, const struct plan *plan, int32_t *running, bool *open,
                       struct err *e)
{
    const struct plan_choice rows = {.rows = plan->rows};
    if (*open && session_cycle_verify(s, &rows, 1000, e)) return -1;
    *running += *open;
    *open = false;
    while (!*open) {
        struct plan now = *plan;
        if (now.draft && *running > session_cycles_ahead(s, &now)) now.rows = 0;
        if (*running > session_cycles_ahead(s, &now)) return 0;
        if (session_cycle_start(s, &now, 1000, e)) return -1;
        *open = !now.rows;
        *running += !*open;
    }
    return 0;
}

/* Cycles from context on, width rows verified of a block. */
static bool cycles(struct model *t, struct model *d, int32_t context, int32_t width, struct times *out)
{
    static double all[STEPS], draft[STEPS], verify[STEPS], commit[STEPS];
    static const struct kn_sampler greedy = {.top_p = 1, .repeat_penalty = 1};
    const int32_t token = 1;
    const struct session_options o = {.ctx = context + (STEPS + 4) * SESSION_MAX_ROWS,
                                      .kv = {KN_F16, KN_F16}};
    struct session *s;
    struct err e = {0};
    bool ok = false;
    if (session_new(&s, t, d, &o, &e)) return failure("session", &e);
    s->n_past = context;
    if (session_cycles_begin(s, token, &greedy, &e)) goto out;
    const struct plan plan = {.draft = d != NULL, .rows = d ? width : 1};
    int32_t running = 0;
    bool open = false;
    double at = seconds_now();
    for (int i = 0; i < STEPS; i++) {
        struct session_cycle c;
        if (start_ahead(s, &plan, &running, &open, &e)) goto out;
        if (session_cycle_finish(s, &c, &e)) goto out;
        running--;
        const double now = seconds_now();
        all[i] = now - at, at = now;
        draft[i] = c.result.draft_s, verify[i] = c.result.verify_s, commit[i] = c.result.commit_s;
    }
    if (session_cycles_end(s, s->n_past, &e)) goto out;
    *out = (struct times){typical(all), typical(draft), typical(verify), typical(commit)};
    ok = true;
out:
    if (!ok) failure("cycle", &e);
    session_free(s);
    return ok;
}

static void decode_row(const char *what, struct model *m, double bar, double goal)
{
    struct times t;
    char note[160];
    if (!m || !cycles(m, NULL, 512, 1, &t)) return;
    snprintf(note, sizeof note, "%.3f ms, floor %.3f ms (%.2f GB)", t.all * 1e3,
             (double)m->bytes_step / read_speed * 1e3, (double)m->bytes_step * 1e-9);
    row(what, (double)m->bytes_step / read_speed / t.all, "share", bar, goal, note);
}

/* rows_bar: of 16 rows over one; bar, goal: of the draft over one. */
static void draft_rows(struct model *m, struct model *d, const char *type, double one, double rows_bar,
                       double bar, double goal)
{
    struct times t;
    char what[100], note[160];
    if (!cycles(m, d, 512, 16, &t)) return;
    snprintf(what, sizeof what, "draft step, %s / decode", type);
    snprintf(note, sizeof note, "%.3f ms", t.draft * 1e3);
    row(what, t.draft / one, "", bar, goal, note);
    snprintf(what, sizeof what, "16 rows / 1 row (verify, drafter %s)", type);
    snprintf(note, sizeof note, "%.3f ms", t.verify * 1e3);
    row(what, t.verify / one, "", rows_bar, rows_bar > 0 ? 1.08 : 0, note);
    snprintf(what, sizeof what, "cycle less draft and verify (drafter %s)", type);
    snprintf(note, sizeof note, "cycle %.3f ms; context and acceptance of it %.1f us", t.all * 1e3,
             t.commit * 1e6);
    row(what, (t.all - t.draft - t.verify) * 1e6, "us", 40, 15, note);
}

/* ---- prompts ---- */

static double operations(const struct model *m, int n)
{
    const struct desc *d = m->d;
    const struct model_layer *y = &m->layer[0];
    double heads = (double)y->wq.n_out, kv = (double)y->wk.n_out, ff = (double)y->gate.n_out;
    double layer = 2.0 * d->n_embd * (heads + 2 * kv) + 2.0 * heads * d->n_embd + 6.0 * d->n_embd * ff;
    return d->n_layer * (layer * n + 4.0 * heads * n * (n + 1) / 2) + 2.0 * d->n_embd * d->n_vocab;
}

static void prompt_row(struct model *m, int32_t n, double bar, double goal)
{
    const struct session_options o = {.ctx = n + 64, .kv = {KN_F16, KN_F16}};
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    struct session *s = NULL;
    struct err e = {0};
    double t[5];
    char what[80], note[160];
    if (!ids) return;
    for (int32_t i = 0; i < n; i++) ids[i] = (int32_t)((uint32_t)i * 2654435761u % (uint32_t)m->d->n_vocab);
    int bad = session_new(&s, m, NULL, &o, &e);
    for (int i = 0; i < 5 && !bad; i++) {
        double from = seconds_now();
        s->n_past = 0;
        bad = session_prefill(s, ids, n, NULL, NULL, &e);
        t[i] = seconds_now() - from;
    }
    if (bad) {
        failure("prompt", &e);
    } else {
        double s0 = median(t + 1, 4);
        snprintf(what, sizeof what, "prompt of %d, share of the product's ceiling", n);
        snprintf(note, sizeof note, "%.1f ms, %.0f t/s, %.0f TFLOP/s; first %.1f ms", s0 * 1e3, n / s0,
                 operations(m, n) / s0 * 1e-12, t[0] * 1e3);
        row(what, operations(m, n) / s0 / product_speed, "share", bar, goal, note);
    }
    session_free(s);
    free(ids);
}

static void long_row(struct model *m, int32_t context, double one, double goal)
{
    const struct model_layer *y = &m->layer[0];
    struct times t;
    char what[80], note[160];
    if (!cycles(m, NULL, context, 1, &t)) return;
    double bytes = 2.0 * m->d->n_layer * (double)(context - 512) * (double)y->wk.n_out * 2;
    snprintf(what, sizeof what, "context %d: extra time / reading the KV", context);
    snprintf(note, sizeof note, "%.3f ms; %.2f GB of keys and values, %.3f ms", t.all * 1e3, bytes * 1e-9,
             bytes / read_speed * 1e3);
    row(what, (t.all - one) / (bytes / read_speed), "", 1.5, goal, note);
}

/* ---- the table ---- */

static void of_8b(void)
{
    struct model *m = load("8b-q4_k_m"), *d;
    struct times one;
    if (!m) return;
    decode_row("Qwen3-8B Q4_K_M decode, share of one read", m, 0.70, 0.85);
    if (cycles(m, NULL, 512, 1, &one)) {
        if ((d = load("8b-draft-q8_0"))) draft_rows(m, d, "Q8_0", one.all, 1.20, 0.50, 0.38);
        model_free(d);
        if ((d = load("8b-draft-q4_k_m"))) draft_rows(m, d, "Q4_K_M", one.all, 1.20, 0.40, 0.28);
        model_free(d);
        long_row(m, 16384, one.all, 1.15);
        long_row(m, 65536, one.all, 1.15);
    }
    prompt_row(m, 4096, 0.50, 0.70);
    prompt_row(m, 512, 0, 0);
    model_free(m);
}

/* Models of other families; of those with experts a step's bytes are those of one row's experts. */
static void of_families(void)
{
    static const struct {
        const char *what, *target, *drafter;
        double bar, goal, rows_bar;
    } of[] = {
        {"Qwen3.5-27B Q4_K_M decode, share of one read", "27b-q4_k_m", "27b-draft-q8_0", 0.70, 0.85, 1.25},
        {"Gemma 4 31B Q4_K_M decode, share of one read", "31b-q4_k_m", "31b-draft-q8_0", 0.70, 0.85, 1.25},
        {"Qwen3.5-35B-A3B Q4_K_M decode, share of one read", "35b-a3b-q4_k_m", "35b-a3b-draft-q8_0", 0.35,
         0.5, 0},
        {"Qwen3-30B-A3B Q4_K_M decode, share of one read", "30b-a3b-q4_k_m", "30b-a3b-draft-q8_0", 0.35, 0.5,
         0},
        {"Gemma 4 26B-A4B Q4_K_M decode, share of one read", "26b-a4b-q4_k_m", "26b-a4b-draft-q8_0", 0.35,
         0.5, 0}};
    for (int i = 0; i < 5; i++) {
        struct model *m = load(of[i].target), *d;
        struct times one;
        if (!m) continue;
        decode_row(of[i].what, m, of[i].bar, of[i].goal);
        if (cycles(m, NULL, 512, 1, &one) && (d = load(of[i].drafter))) {
            draft_rows(m, d, "Q8_0", one.all, of[i].rows_bar, 0, 0);
            model_free(d);
        }
        model_free(m);
    }
}

int main(int argc, char **argv)
{
    char msg[256];
    const struct kn_open o = {.device = "cuda"};
    struct model *m;
    struct times t;
    if (argc != 2) {
        fprintf(stderr, "usage: table_gpu DIR\n");
        return 2;
    }
    dir = argv[1];
    if (kn_backend_open(&gpu, &o, msg, sizeof msg)) {
        fprintf(stderr, "table_gpu: %s\n", msg);
        return 5;
    }
    double tflops = 0;
    read_speed = kn_op(gpu)->read_speed(gpu);
    if (!(read_speed > 0) || many_ceiling(gpu, &tflops)) {
        fprintf(stderr, "table_gpu: the ceilings: %s\n", kn_message(gpu));
        kn_backend_close(gpu);
        return 5;
    }
    product_speed = tflops * 1e12;
    printf("ceilings: one read %.2f TB/s, bf16 product of 8,192 cubed %.0f TFLOP/s\n", read_speed * 1e-12,
           tflops);
    printf("| %-52s | %-15s | %5s | %5s | |\n| --- | --- | --- | --- | --- |\n", "what", "value", "bar",
           "goal");
    of_8b();
    decode_row("Qwen3-8B Q8_0 decode, share of one read", m = load("8b-q8_0"), 0.80, 0.90);
    model_free(m);
    decode_row("Qwen3-8B bf16 decode, share of one read", m = load("8b-bf16"), 0.80, 0.90);
    model_free(m);
    if ((m = load("0.6b-q4_k_m")) && cycles(m, NULL, 512, 1, &t))
        row("Qwen3-0.6B Q4_K_M decode", t.all * 1e3, "ms", 0.55, 0.30, "");
    model_free(m);
    of_families();
    kn_backend_close(gpu);
    return failed != 0;
}
