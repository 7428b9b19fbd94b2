/* spec.c - see spec.h. */
#include "spec.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <time.h>
#include "mem.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One cycle's ids: row 0 is the anchor, row r the r-th proposal. */
struct cycle {
    int32_t row[SESSION_MAX_ROWS];
    int32_t pick[SESSION_MAX_ROWS];
    int32_t proposed; /* ids in row[1..]; all that the drafter said, also those not verified */
};

static bool is_stop(const struct spec_options *o, int32_t id)
{
    for (int32_t i = 0; i < o->n_stops; i++)
        if (o->stops[i] == id) return true;
    return false;
}

/* Hand out ids up to the first stop; *ended where there is one. */
static int write_out(const struct spec_options *o, struct spec_stats *st, const int32_t *ids, int32_t n,
                     bool *ended, struct err *e)
{
    int32_t k = 0;
    *ended = false;
    while (k < n && !*ended) *ended = is_stop(o, ids[k++]);
    if (*ended) {
        st->stop = SPEC_STOP_TOKEN;
        st->stop_id = ids[k - 1];
    }
    st->generated += k;
    return o->tokens ? o->tokens(o->ctx, ids, k, e) : 0;
}

static int write_draft_rows(struct session *s, const struct spec_options *o, struct err *e)
{
    int32_t n_vocab = s->target->d->n_vocab;
    float *row = mem_alloc((size_t)n_vocab * sizeof *row);
    int rc = row ? 0 : err_set(e, ERR_IO, "out of memory (a row of logits)");
    for (int32_t i = 0; i < s->o.block && rc == 0; i++) {
        rc = session_logits(s, i, row, e);
        if (rc == 0) rc = o->draft_row(o->ctx, row, n_vocab, e);
    }
    mem_free(row);
    return rc;
}

static int draft(struct session *s, const struct spec_options *o, struct spec_stats *st, struct cycle *c,
                 struct err *e)
{
    bool usable, first = st->cycles == 0 && o->draft_logits;
    double t = now();
    if (session_draft(s, c->row[0], c->row + 1, &usable, first, e)) return -1;
    st->draft_s += now() - t;
    c->proposed = usable ? s->o.block - 1 : 0;
    st->nan_cycles += !usable;
    if (first && o->draft_row && write_draft_rows(s, o, e)) return -1;
    return usable && o->proposals ? o->proposals(o->ctx, c->row + 1, c->proposed, e) : 0;
}

/* Count a cycle that verified rows rows, where the setting allows full. */
static void count_cycle(struct spec_stats *st, const struct cycle *c, int32_t accepted, int32_t rows,
                        int32_t full)
{
    bool would_go_on = accepted == rows - 1 && rows < full && c->pick[accepted] == c->row[rows];
    st->cycles++;
    st->accepted[accepted]++;
    if (would_go_on) return;
    st->full_cycles++;
    st->full_accepted += accepted;
}

/* Draft, verify, accept, commit. c->row[0] is the anchor, and the next one on return. */
static int run_cycle(struct session *s, const struct spec_options *o, struct spec_stats *st, struct cycle *c,
                     bool *ended, struct err *e)
{
    int64_t wanted = o->n - st->generated;
    int32_t width = o->width ? o->width : s->o.block, accepted = 0;
    c->proposed = 0;
    if (s->drafter && draft(s, o, st, c, e)) return -1;
    int32_t full = c->proposed + 1 < width || !s->drafter ? c->proposed + 1 : width;
    int32_t rows = full < wanted ? full : (int32_t)wanted;
    double t = now();
    if (session_forward(s, c->row, rows, e) || session_pick(s, &o->sampler, rows, c->pick, e)) return -1;
    st->verify_s += now() - t;
    st->steps++;
    while (accepted < rows - 1 && c->row[accepted + 1] == c->pick[accepted]) accepted++;
    if (s->drafter) count_cycle(st, c, accepted, rows, full);
    /* Accepted proposals are the picks before the first that differs, and that one follows them. */
    if (write_out(o, st, c->pick, accepted + 1, ended, e)) return -1;
    if (*ended || st->generated == o->n) return 0;
    c->row[0] = c->pick[accepted];
    return session_commit(s, accepted + 1, e);
}

static int check(const struct session *s, const struct spec_options *o, struct err *e)
{
    int64_t need = s->n_past + o->n + (s->drafter ? s->o.block : 1) - 1;
    if (o->n < 1)
        return err_set(e, ERR_USAGE, "nothing to generate (expected 1 token or more, got %" PRId64 ")", o->n);
    if (need > s->o.ctx)
        return err_set(e, ERR_USAGE,
                       "the context is too small (expected %" PRId64 " positions for %d tokens, %" PRId64
                       " new ones and a block, got %d)",
                       need, s->n_past, o->n, s->o.ctx);
    if (o->width < 0 || (s->drafter && o->width > s->o.block))
        return err_set(e, ERR_USAGE, "width out of range (expected 1 to the block of %d, got %d)", s->o.block,
                       o->width);
    if (s->n_past < 1 || s->logits_rows != 1 || s->logits_pos != s->n_past - 1)
        return err_set(e, ERR_USAGE, "the session holds no logits of its last token (prefill first)");
    return 0;
}

int spec_generate(struct session *s, const struct spec_options *o, struct spec_stats *st, struct err *e)
{
    struct cycle c;
    bool ended = false;
    memset(st, 0, sizeof *st);
    if (check(s, o, e)) return -1;
    double start = now();
    if (session_pick(s, &o->sampler, 1, c.row, e)) return -1;
    st->first_s = now() - start;
    if (write_out(o, st, c.row, 1, &ended, e)) return -1;
    start = now();
    while (!ended && st->generated < o->n) {
        int rc = run_cycle(s, o, st, &c, &ended, e);
        st->decode_s = now() - start;
        if (rc) return -1;
    }
    return 0;
}

double spec_tau(const struct spec_stats *st)
{
    return st->full_cycles ? 1 + (double)st->full_accepted / (double)st->full_cycles : NAN;
}
