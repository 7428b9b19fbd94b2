/* memory_gpu.c - plans of the device's memory against what a run takes, and running out of it.
 *
 * usage: memory_gpu TARGET.gguf [DRAFTER.gguf]
 * Prints "ok   gpu/..." or "FAIL gpu/..." a case; exit 1 if any failed, 5 if there is no device.
 *
 * What a run takes is the free memory of the whole device before and after, so what other programs take or
 * give back meanwhile is counted too. Therefore a measurement is begun while the free memory stands still, on
 * a new backend, and one that is not as planned is made again, up to ATTEMPTS times: a wrong plan is wrong
 * each time. Where none was as planned and free memory was seen to move while this program did nothing, that
 * is said. */
#include <time.h>
#include "../../../common/run/memory_plan.h"
#include "../harness.h"

enum { ATTEMPTS = 12, STILL = 20 /* looks, 10 ms apart */ };

static struct kn_backend *gpu;
static bool moved; /* free memory changed by itself at some time */

static size_t free_now(void)
{
    size_t left = 0, total = 0;
    if (kn_op(gpu)->sync(gpu) || kn_op(gpu)->memory->query(gpu, &left, &total)) left = 0;
    return left;
}

/* Free memory, once it has not changed for STILL looks; after two seconds as it is. */
static size_t free_still(void)
{
    const struct timespec pause = {0, 10000000};
    size_t left = free_now();
    for (int still = 0, looks = 0; still < STILL && looks < 10 * STILL; still++, looks++) {
        nanosleep(&pause, NULL);
        const size_t seen = free_now();
        if (seen != left) {
            moved = true;
            still = 0;
        }
        left = seen;
    }
    return left;
}

static const char *beside(void)
{
    return moved ? "; free memory changed while nothing was done here: other programs use the device, run "
                   "this alone"
                 : "";
}

static int open_gpu(struct err *e)
{
    char msg[256];
    const struct kn_open o = {.device = "cuda"};
    if (kn_backend_open(&gpu, &o, msg, sizeof msg) == 0) return 0;
    gpu = NULL;
    return err_set(e, ERR_DEVICE, "%s", msg);
}

/* ---- what is taken is what was planned, but for the margin and the pages that the driver rounds small
 * pieces up to ---- */

struct taken {
    double weights, rest; /* bytes */
    struct memory_plan plan;
    double plan_rest, margin;
};

static int measure(const char *target, const char *drafter, struct taken *r, struct err *e)
{
    const struct session_options o = {.ctx = 20000, .kv = {KN_F16, KN_F16}};
    const struct desc_override over = {.draft_causal = -1};
    struct memory_planner *p = NULL;
    struct model *t = NULL, *d = NULL;
    struct session *s = NULL;
    int rc = -1;
    if (memory_plan_open(
            &p, gpu,
            &(struct memory_plan_of){.target = target, .drafter = drafter, .drafter_override = &over}, e))
        return -1;
    const size_t before = free_still();
    if (memory_plan_session(p, &o, false, &r->plan, e) || memory_plan_check(p, &o, false, &r->plan, e) ||
        model_load(&t, target, gpu, NULL, NULL, NULL, e) ||
        (drafter && model_load(&d, drafter, gpu, &over, NULL, NULL, e)))
        goto done;
    const size_t loaded = free_now();
    if (session_new(&s, t, d, &o, e)) goto done;
    const size_t after = free_now();
    r->margin = (double)kn_op(gpu)->memory->margin;
    r->weights = (double)before - (double)loaded;
    r->rest = (double)loaded - (double)after;
    r->plan_rest = (double)(r->plan.caches + r->plan.activations + r->plan.scratch) - r->margin;
    rc = 0;
done:
    session_free(s);
    model_free(d);
    model_free(t);
    memory_plan_close(p);
    return rc;
}

static bool good_weights(const struct taken *r)
{
    const double plan = (double)r->plan.weights;
    return r->weights <= plan + r->margin && r->weights >= 0.98 * plan - (4 << 20);
}

static bool good_rest(const struct taken *r)
{
    return r->rest <= r->plan_rest + r->margin && r->rest >= 0.98 * r->plan_rest - (16 << 20);
}

static void compare(const char *target, const char *drafter)
{
    const double mib = 1 << 20;
    struct taken r = {0};
    struct err e = {0};
    for (int i = 0; i < ATTEMPTS; i++) {
        memset(&e, 0, sizeof e);
        if (i) kn_backend_close(gpu); /* it keeps its scratch */
        if ((i && open_gpu(&e)) || measure(target, drafter, &r, &e)) break;
        if (good_weights(&r) && good_rest(&r)) break;
    }
    if (e.code) {
        verdict(false, "memory: %s%s", e.msg, beside());
        return;
    }
    verdict(good_weights(&r), "memory of weights: %.1f MiB taken, %.1f planned%s", r.weights / mib,
            (double)r.plan.weights / mib, good_weights(&r) ? "" : beside());
    verdict(good_rest(&r), "memory of a session: %.1f MiB taken, %.1f planned, and %.1f to be left free%s",
            r.rest / mib, r.plan_rest / mib, r.margin / mib, good_rest(&r) ? "" : beside());
}

/* ---- a context that no device holds: refused by the plan with one that fits, and by the session where
 * nobody planned ---- */

static void run_out_planned(const char *target)
{
    const struct session_options o = {.ctx = 1 << 29, .kv = {KN_F16, KN_F16}};
    const struct desc_override over = {.draft_causal = -1};
    struct memory_planner *p = NULL;
    struct memory_plan b;
    struct err e = {0};
    int ctx = 0;
    if (memory_plan_open(&p, gpu, &(struct memory_plan_of){.target = target, .drafter_override = &over},
                         &e) ||
        memory_plan_session(p, &o, false, &b, &e)) {
        verdict(false, "memory: %s", e.msg);
    } else {
        memory_plan_check(p, &o, false, &b, &e);
        sscanf(e.hint, "--ctx %d would fit", &ctx);
        verdict(e.code == ERR_DEVICE && ctx > 0, "memory, too long a context: %s (%s)", e.msg, e.hint);
    }
    memory_plan_close(p);
}

static void run_out(const char *target)
{
    const struct session_options o = {.ctx = 1 << 29, .kv = {KN_F16, KN_F16}},
                                 fits = {.ctx = 100, .kv = {KN_F16, KN_F16}};
    struct model *t;
    struct session *s;
    struct err f = {0};
    size_t before = 0, after = 0;
    bool refused = false, back = false;
    if (model_load(&t, target, gpu, NULL, NULL, NULL, &f)) {
        verdict(false, "memory: %s", f.msg);
        return;
    }
    for (int i = 0; i < ATTEMPTS && !back; i++) {
        memset(&f, 0, sizeof f);
        before = free_still();
        session_new(&s, t, NULL, &o, &f);
        refused = f.code == ERR_DEVICE && strstr(f.msg, "cache of layer");
        session_free(s);
        after = free_now();
        back = after + ((size_t)64 << 20) >= before;
        if (!refused) break;
    }
    verdict(refused, "memory, unplanned: %s", f.msg);
    verdict(back, "memory given back: %.1f of %.1f MiB%s", (double)after / (1 << 20),
            (double)before / (1 << 20), back ? "" : beside());
    memset(&f, 0, sizeof f);
    verdict(session_new(&s, t, NULL, &fits, &f) == 0, "a session after the one that did not fit %s", f.msg);
    session_free(s);
    model_free(t);
}

int main(int argc, char **argv)
{
    struct err e = {0};
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: memory_gpu TARGET.gguf [DRAFTER.gguf]\n");
        return 2;
    }
    if (open_gpu(&e)) {
        fprintf(stderr, "memory_gpu: %s\n", e.msg);
        return 5;
    }
    compare(argv[1], argc > 2 ? argv[2] : NULL);
    if (gpu) run_out_planned(argv[1]);
    if (gpu) run_out(argv[1]);
    printf("memory_gpu: %ld passed, %ld failed\n", passed, failed);
    if (gpu) kn_backend_close(gpu);
    return failed != 0;
}
