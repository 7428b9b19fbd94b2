/* memory_gpu.c - plans of the device's memory against what a run takes, and running out of it.
 *
 * usage: memory_gpu TARGET.gguf [DRAFTER.gguf]
 * Prints "ok   gpu/..." or "FAIL gpu/..." a case; exit 1 if any failed, 5 if there is no device. */
#include "../../common/plan.h"
#include "harness.h"

static struct kn_backend *gpu;

static size_t free_now(void)
{
    size_t left = 0, total = 0;
    if (kn_op(gpu)->sync(gpu) || kn_op(gpu)->memory->query(gpu, &left, &total)) left = 0;
    return left;
}

/* What is taken is what was planned, but for the margin and the pages that the driver rounds small pieces up
 * to. */
static void compare(struct planner *p, const char *target, const char *drafter)
{
    const struct session_options o = {.ctx = 20000, .kv_type = KN_F16};
    const struct desc_override over = {.draft_causal = -1};
    const double mib = 1 << 20;
    struct plan_bytes b;
    struct model *t = NULL, *d = NULL;
    struct session *s = NULL;
    struct err e = {0};
    size_t before = free_now(), margin = kn_op(gpu)->memory->margin;
    int bad = plan_session(p, &o, false, &b, &e) || plan_check(p, &o, false, &b, &e) ||
              model_load(&t, target, gpu, NULL, NULL, NULL, &e) ||
              (drafter && model_load(&d, drafter, gpu, &over, NULL, NULL, &e));
    size_t loaded = free_now();
    bad = bad || session_new(&s, t, d, &o, &e);
    size_t after = free_now();
    if (bad) {
        verdict(false, "memory: %s", e.msg);
    } else {
        double weights = (double)(before - loaded), rest = (double)(loaded - after);
        double plan_rest = (double)(b.caches + b.activations + b.scratch - margin);
        verdict(weights <= (double)b.weights + (double)margin &&
                    weights >= 0.98 * (double)b.weights - 4 * mib,
                "memory of weights: %.1f MiB taken, %.1f planned", weights / mib, (double)b.weights / mib);
        verdict(rest <= plan_rest + (double)margin && rest >= 0.98 * plan_rest - 16 * mib,
                "memory of a session: %.1f MiB taken, %.1f planned, and %.1f to be left free", rest / mib,
                plan_rest / mib, (double)margin / mib);
    }
    session_free(s);
    model_free(d);
    model_free(t);
}

/* A context that no device holds: refused by the plan with one that fits, and by the session where nobody
 * planned. */
static void run_out(struct planner *p, const char *target)
{
    const struct session_options o = {.ctx = 1 << 29, .kv_type = KN_F16};
    struct plan_bytes b;
    struct model *t;
    struct session *s;
    struct err e = {0}, f = {0};
    int ctx = 0;
    if (plan_session(p, &o, false, &b, &e)) {
        verdict(false, "memory: %s", e.msg);
        return;
    }
    plan_check(p, &o, false, &b, &e);
    sscanf(e.hint, "--ctx %d would fit", &ctx);
    verdict(e.code == ERR_DEVICE && ctx > 0, "memory, too long a context: %s (%s)", e.msg, e.hint);
    if (model_load(&t, target, gpu, NULL, NULL, NULL, &f)) {
        verdict(false, "memory: %s", f.msg);
        return;
    }
    size_t before = free_now();
    session_new(&s, t, NULL, &o, &f);
    verdict(f.code == ERR_DEVICE && strstr(f.msg, "cache of layer"), "memory, unplanned: %s", f.msg);
    session_free(s);
    size_t after = free_now();
    verdict(after + ((size_t)64 << 20) >= before, "memory given back: %.1f of %.1f MiB",
            (double)after / (1 << 20), (double)before / (1 << 20));
    memset(&f, 0, sizeof f);
    const struct session_options fits = {.ctx = 100, .kv_type = KN_F16};
    verdict(session_new(&s, t, NULL, &fits, &f) == 0, "a session after the one that did not fit %s", f.msg);
    session_free(s);
    model_free(t);
}

int main(int argc, char **argv)
{
    char msg[256];
    const struct kn_open o = {.device = "cuda"};
    const struct desc_override over = {.draft_causal = -1};
    struct planner *p;
    struct err e = {0};
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: memory_gpu TARGET.gguf [DRAFTER.gguf]\n");
        return 2;
    }
    if (kn_backend_open(&gpu, &o, msg, sizeof msg)) {
        fprintf(stderr, "memory_gpu: %s\n", msg);
        return 5;
    }
    if (plan_open(&p, gpu, argv[1], argc > 2 ? argv[2] : NULL, &over, &e)) {
        verdict(false, "plan: %s", e.msg);
    } else {
        compare(p, argv[1], argc > 2 ? argv[2] : NULL);
        run_out(p, argv[1]);
        plan_close(p);
    }
    printf("memory_gpu: %ld passed, %ld failed\n", passed, failed);
    kn_backend_close(gpu);
    return failed != 0;
}
