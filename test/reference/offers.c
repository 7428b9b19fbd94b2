/* offers.c - what a planner is told of a drafter's proposals: their probabilities, or what a head says of
 * them.
 *
 * usage: offers TARGET.gguf DRAFTER.gguf [DEVICE] < ids > p.f32      float32, one a proposal, greedy, of the
 * block behind the prompt, whose caches are f32. Exit 2: usage, or what could not be run. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "../../common/run/cycle.h"
#include "../../common/run/session.h"

static void must(int rc, const struct err *e)
{
    if (!rc) return;
    fprintf(stderr, "offers: %s\n", e->msg);
    exit(2);
}

int main(int argc, char **argv)
{
    static int32_t ids[4096];
    const struct kn_open open = {.device = argc > 3 ? argv[3] : "cpu"};
    const struct kn_sampler greedy = {.top_p = 1, .repeat_penalty = 1};
    struct kn_backend *be;
    struct model *m[2];
    struct session *s;
    struct plan_offer offer;
    struct err e = {0};
    char msg[256];
    int32_t anchor;
    const size_t n = fread(ids, sizeof *ids, sizeof ids / sizeof *ids, stdin);
    if (argc < 3 || !n || kn_backend_open(&be, &open, msg, sizeof msg)) {
        fprintf(stderr, "usage: offers TARGET.gguf DRAFTER.gguf [DEVICE] < ids > p.f32\n");
        return 2;
    }
    for (int i = 0; i < 2; i++) must(model_load(&m[i], argv[1 + i], be, NULL, NULL, NULL, &e), &e);
    const struct session_options o = {
        .ctx = (int32_t)n + SESSION_MAX_ROWS, .chunk = 64, .kv = {KN_F32, KN_F32}};
    must(session_new(&s, m[0], m[1], &o, &e), &e);
    must(session_prefill(s, ids, (int64_t)n, NULL, NULL, &e), &e);
    must(session_pick(s, &greedy, 1, &anchor, &e), &e);
    must(session_cycles_begin(s, anchor, &greedy, &e), &e);
    must(session_cycle_start(s, &(struct plan){.draft = true}, 64, &e), &e);
    must(session_cycle_offer(s, &offer, NULL, &e), &e);
    for (int32_t i = 0; i < offer.n_draft; i++) {
        const float p = (float)exp((double)offer.logp[i]);
        fwrite(&p, sizeof p, 1, stdout);
    }
    session_free(s);
    for (int i = 0; i < 2; i++) model_free(m[i]);
    kn_backend_close(be);
    return fflush(stdout) ? 2 : 0;
}
