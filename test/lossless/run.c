/* run.c - one run of a case, the models it needs, and the runs that others are compared with. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../common/run/spec.h"
#include "../../common/run/state.h"
#include "lossless.h"

_Noreturn void die(const char *what, const struct err *e)
{
    fprintf(stderr, "lossless: %s: %s\n", what, e ? e->msg : "failed");
    printf("FAIL lossless/%s\n", what);
    exit(1);
}

/* ---- models: loaded once a backend, dropped when the backend changes ---- */
struct kn_backend *backend;
static int be_isa = -1, be_threads = -1;
static struct model *loaded[2][TYPES];

void run_backend(int isa, int threads)
{
    char msg[256];
    if (backend && be_isa == isa && be_threads == threads) return;
    for (int i = 0; i < 2 * TYPES; i++) {
        model_free(loaded[i / TYPES][i % TYPES]);
        loaded[i / TYPES][i % TYPES] = NULL;
    }
    if (backend) kn_backend_close(backend);
    struct kn_open o = {.device = setting.device,
                        .isa = setting.on_cpu ? isa_name[isa_of[isa]] : NULL,
                        .threads = thread_count[threads]};
    if (kn_backend_open(&backend, &o, msg, sizeof msg)) {
        fprintf(stderr, "lossless: %s\n", msg);
        exit(setting.on_cpu ? 1 : 5);
    }
    be_isa = isa;
    be_threads = threads;
}

struct model *run_model(bool drafter, int type)
{
    struct err e = {0};
    char path[512];
    struct model **m = &loaded[drafter][type];
    snprintf(path, sizeof path, "%s/%s-%s.gguf", setting.dir, drafter ? "drafter" : "target",
             drafter ? drafter_type[type] : target_type[type]);
    if (!*m && model_load(m, path, backend, NULL, NULL, NULL, &e)) die(path, &e);
    return *m;
}

/* ---- one run ---- */
int run_take_tokens(void *ctx, const int32_t *ids, int32_t n, struct err *e)
{
    struct run *r = ctx;
    (void)e;
    memcpy(r->id + r->made, ids, (size_t)n * sizeof *ids);
    r->made += n;
    return 0;
}

int run_take_proposals(void *ctx, const int32_t *ids, int32_t n, struct err *e)
{
    struct run *r = ctx;
    (void)e;
    memcpy(r->trace + r->n_trace, ids, (size_t)n * sizeof *ids);
    r->n_trace += n;
    return 0;
}

/* --kv-host: layers of a case in the host's memory; none without a drafter, and of what traces are compared
 * with: all axes at their first values. */
static int32_t layers_hosted(const int *c, const struct model *d)
{
    int sum = 0;
    for (int a = 0; a < AXES; a++) sum += a == PROMPT || a == TARGET || a == DRAFTER ? 0 : c[a];
    return !setting.kv_host || !d ? 0 : sum % 3 == 2 ? 1 : sum % 3 ? DESC_MAX_LAYERS : 0;
}

static struct kn_kv_types of_target[DESC_MAX_LAYERS], of_drafter[DESC_MAX_LAYERS];

struct session_options run_options(const int *c, const struct model *d, const struct way *way)
{
    for (int i = 0; i < DESC_MAX_LAYERS; i++) {
        const struct kn_kv_types kv = cache_type[c[CACHE]].kv;
        of_target[i] = i % 2 ? (struct kn_kv_types){kv.v, kv.k} : kv;
        of_drafter[i] =
            i % 2 ? (struct kn_kv_types){KN_TQ3_0, KN_Q5_0} : (struct kn_kv_types){KN_Q8_0, KN_Q4_0};
        if (setting.quantised) continue;
        of_target[i] = i % 2 ? (struct kn_kv_types){KN_BF16, KN_F32} : cache_type[c[CACHE]].kv;
        of_drafter[i] = (struct kn_kv_types){KN_F32, KN_F16};
    }
    return (struct session_options){
        .ctx = prompt_len[c[PROMPT]] + N_NEW + 16,
        .chunk = chunk_rows[c[CHUNK]],
        .block = d ? block_rows[c[BLOCK]] : 0,
        .draft_greedy = d && c[GREEDY],
        .kv = cache_type[c[CACHE]].kv,
        .kv_host = layers_hosted(c, d),
        .pool = setting.pool,
        .look = way->look,
        .tree = d ? way->tree : 0,
        .kv_layers = cache_type[c[CACHE]].layers ? of_target : NULL,
        .draft_kv_layers = cache_type[c[CACHE]].layers ? of_drafter : NULL,
    };
}

static struct session *start(const int *c, const struct way *way, struct model *t, struct model *d)
{
    struct err e = {0};
    struct session *s;
    const struct session_options o = run_options(c, d, way);
    if (session_new(&s, t, d, &o, &e)) die("session", &e);
    return s;
}

void run_save(struct session *s, char *path)
{
    struct err e = {0};
    struct io_out out;
    int fd = mkstemp(path);
    if (fd < 0) die("temporary file", NULL);
    close(fd);
    if (io_out_open(&out, path, true, NULL, 0, &e) || state_save(s, &out, &e) || io_out_commit(&out, &e))
        die("state_save", &e);
    session_free(s);
}

void run_restore(struct session *s, const char *path)
{
    struct err e = {0};
    struct state *st;
    struct state_info info;
    if (state_open(&st, path, &info, &e)) die("state_open", &e);
    if (state_restore(st, s, &e)) die("state_restore", &e);
    state_close(st);
    unlink(path);
}

void run_case(const int *c, const struct way *way, struct run *r)
{
    struct err e = {0};
    struct spec_stats stats;
    run_backend(c[ISA], c[THREADS]);
    struct model *t = run_model(false, c[TARGET]), *d = way->drafter ? run_model(true, c[DRAFTER]) : NULL;
    struct session *s = start(c, way, t, d);
    struct spec_options o = {
        .n = N_NEW,
        .sampler = sampling[c[SAMPLING]],
        .width = way->drafter && !way->look && !way->tree ? case_width(c) : 0,
        .tree = way->drafter ? way->tree : 0,
        .tree_seed = way->tree_seed,
        .look_only = way->look_only,
        .tokens = run_take_tokens,
        .proposals = run_take_proposals,
        .ctx = r,
    };
    memset(r, 0, sizeof *r);
    if (session_prefill(s, setting.text, prompt_len[c[PROMPT]], NULL, NULL, &e)) die("prefill", &e);
    if (c[RESUME] && way->drafter) {
        char path[] = RUN_STATE_PATH;
        run_save(s, path);
        s = start(c, way, t, d);
        run_restore(s, path);
    }
    if (spec_generate(s, &o, &stats, &e)) die("generate", &e);
    for (int i = 0; i < 64; i++) r->accepted += stats.accepted[i] * i;
    r->cycles = stats.cycles;
    r->looked = stats.look_accepted;
    r->trees = stats.tree_cycles;
    session_free(s);
}

/* ---- references, kept by their key ---- */
struct kept {
    long key;
    struct run *r;
    struct kept *next;
};
static struct kept *kept[4096];

struct run *run_reference(const int *c, bool drafter)
{
    int plain[AXES];
    memcpy(plain, c, sizeof plain);
    plain[RESUME] = plain[ISA] = plain[THREADS] = 0;
    if (setting.on_cpu) plain[CHUNK] = 0;
    if (!drafter) plain[DRAFTER] = plain[BLOCK] = plain[WIDTH] = 0;
    if (!drafter || sampling[c[SAMPLING]].temp == 0) plain[GREEDY] = 0; /* the same proposals */
    long key = drafter;
    for (int a = 0; a < AXES; a++) key = key * axis_size[a] + plain[a];
    struct kept **slot = &kept[(unsigned long)key * 2654435761UL % 4096];
    for (struct kept *k = *slot; k; k = k->next)
        if (k->key == key) return k->r;
    struct kept *k = calloc(1, sizeof *k);
    k->key = key;
    k->r = malloc(sizeof *k->r);
    k->next = *slot;
    *slot = k;
    run_case(plain, &(struct way){.drafter = drafter}, k->r);
    return k->r;
}
