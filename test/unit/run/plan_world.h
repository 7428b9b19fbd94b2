/* plan_world.h - a made-up world for planners: its own clock, text, drafter and look-ups.
 *
 * What a drafter proposes at an anchor, and whether it is right, depends on the world's seed and the anchor's
 * position alone, as with a model. So two planners in one world meet the same proposals where they stop at
 * the same anchors, and ratios are of paired runs.
 *
 * Text has stretches that are easy and hard (an autoregressive process over positions). The chance that a
 * proposal is right, given those before it were, is sigma(y), y normal by slot and stretch. A drafter claims
 * sigma(claim + trust y + noise): 0, 1 and no noise is a calibrated one. */
#ifndef TEST_PLAN_WORLD_H
#define TEST_PLAN_WORLD_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "../../../common/run/planner_auto.h"

enum { WORLD_POSITIONS = 6144, WORLD_FIRST = 100, WORLD_SLOTS = 63 }; /* FIRST: the first anchor */

/* Times of a machine and a model. */
struct machine {
    const char *name;
    double plain_s, draft_s, overhead_s;
    int32_t counts[12], n_counts;
    double verify_s[12];
    int32_t block;
};

/* What proposes in a stretch of text. */
struct drafter {
    double mean, fall, spread; /* of y: at slot 1; less, a slot; deviation */
    double claim, trust, noise;
    bool never;     /* never right, whatever y is */
    double look;    /* share of the stretches in which a look-up finds something */
    double look_is; /* chance that a proposal of it is right */
    int32_t look_match;
};

/* What may stand behind an anchor, and how much of it is right. */
struct world_offer {
    float logp[WORLD_SLOTS];
    int32_t right, n, look_right, n_look, match, agree;
};

struct world {
    const struct machine *m;
    struct drafter d[4];
    int32_t until[4]; /* position where each ends; the last has no end */
    uint64_t seed;
    double jitter;        /* deviation of a stamp, relative */
    int32_t ahead;        /* plans that are asked for before a cycle's result is seen: 0 to 2 */
    bool look;            /* look-ups are on */
    struct world *beside; /* of a second drafter, over the same text (seed); NULL: there is none */
    double easy[WORLD_POSITIONS];
    bool made[WORLD_POSITIONS]; /* proposals, which are the same whoever asks */
    struct world_offer offers[WORLD_POSITIONS];
};

struct world_run {
    double s; /* the clock */
    int64_t tokens, cycles, drafts, verified, looks, by[2];
    uint64_t hash;         /* of every plan and choice */
    int64_t drafted_at[8]; /* drafted cycles by eighths of the tokens */
    double bad_drafts;     /* drafted cycles in d[1], a stretch between two, before a pause of eight */
    int32_t pause;         /* in d[1]: cycles since a draft */
    int32_t back_pos;      /* in d[2]: where the eighth drafted cycle was */
    int32_t good_drafts;   /* in d[2] */
};

/* ---- chance ---- */

static inline uint64_t world_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* In (0, 1), of what is asked (salt) at a place. */
static inline double world_uniform(uint64_t seed, uint64_t place, uint64_t salt)
{
    return ((double)(world_mix(world_mix(seed ^ world_mix(place)) ^ salt) >> 11) + 0.5) / 9007199254740992.;
}

static inline double world_normal(uint64_t seed, uint64_t place, uint64_t salt)
{
    return sqrt(-2 * log(world_uniform(seed, place, 2 * salt))) *
           cos(6.283185307179586 * world_uniform(seed, place, 2 * salt + 1));
}

/* ---- the world ---- */

static inline void world_begin(struct world *w, uint64_t seed)
{
    w->seed = world_mix(seed + 1);
    double x = world_normal(w->seed, 0, 900);
    memset(w->made, 0, sizeof w->made);
    for (int32_t i = 0; i < WORLD_POSITIONS; i++) {
        w->easy[i] = x;
        x = 0.95 * x + sqrt(1 - 0.95 * 0.95) * world_normal(w->seed, (uint64_t)i + 1, 900);
    }
}

static inline const struct drafter *world_drafter(const struct world *w, int32_t pos)
{
    int i = 0;
    while (i < 3 && w->until[i] && pos >= w->until[i]) i++;
    return &w->d[i];
}

static inline void world_make(const struct world *w, int32_t pos, struct world_offer *o)
{
    const struct drafter *d = world_drafter(w, pos);
    const uint64_t at = (uint64_t)pos;
    bool good = true;
    memset(o, 0, sizeof *o);
    o->n = w->m->block - 1;
    for (int32_t j = 1; j <= o->n; j++) {
        const uint64_t slot = (uint64_t)j;
        const double y = d->mean - d->fall * (j - 1) +
                         d->spread * (0.6 * w->easy[pos] + 0.8 * world_normal(w->seed, at, 1000 + slot));
        const double x =
            d->claim + d->trust * y + (d->noise > 0 ? d->noise * world_normal(w->seed, at, 2000 + slot) : 0);
        o->logp[j - 1] = (float)-log1p(exp(-x));
        good = good && !d->never && world_uniform(w->seed, at, 10000 + slot) < 1 / (1 + exp(-y));
        o->right += good;
    }
    if (!w->look || world_uniform(w->seed, at / 64, 5) >= d->look) return;
    o->n_look = WORLD_SLOTS, o->match = d->look_match;
    while (o->look_right < o->n_look &&
           world_uniform(w->seed, at, 20000 + (uint64_t)o->look_right) < d->look_is)
        o->look_right++;
}

static inline void world_propose(struct world *w, int32_t pos, bool draft, bool look, struct world_offer *o)
{
    if (!w->made[pos]) world_make(w, pos, &w->offers[pos]);
    w->made[pos] = true;
    *o = w->offers[pos];
    if (!draft) o->n = o->right = 0;
    if (!look) o->n_look = o->look_right = o->match = 0;
    /* Proposals that are both right are the same; others are taken to differ. */
    o->agree = o->right < o->look_right ? o->right : o->look_right;
}

/* Every anchor's proposals as dflash-bench run --accept-rates P --seed S has them (cmd/bench/synthetic.c):
 * the same chance for every slot, which the drafter says, and splitmix64's draws from the first anchor on. */
static inline void world_states(struct world *w, double rate, uint64_t seed)
{
    for (int32_t pos = WORLD_FIRST; pos < WORLD_POSITIONS; pos++) {
        struct world_offer *o = &w->offers[pos];
        memset(o, 0, sizeof *o);
        o->n = w->m->block - 1;
        for (int32_t j = 0; j < o->n; j++) o->logp[j] = logf((float)rate);
        for (; o->right < o->n; o->right++) {
            const double u = (double)(world_mix(seed) >> 11) * 0x1p-53;
            seed += 0x9e3779b97f4a7c15u;
            if (u >= rate) break;
        }
        w->made[pos] = true;
    }
}

static inline double world_verify_s(const struct machine *m, int32_t rows)
{
    for (int32_t i = 0; i < m->n_counts; i++)
        if (m->counts[i] == rows) return m->verify_s[i];
    return m->plain_s;
}

static inline void world_times(const struct machine *m, struct plan_times *t)
{
    memset(t, 0, sizeof *t);
    t->overhead_s = m->overhead_s, t->draft_s[0][0] = m->draft_s, t->rows_s[0][1] = m->plain_s;
    for (int32_t i = 0; i < m->n_counts; i++) t->rows_s[0][m->counts[i]] = m->verify_s[i];
}

/* n tokens by a planner. check: of every choice, may be NULL. */
static inline void world_run(struct world *w, const struct planner *p, int64_t n, struct world_run *r,
                             void (*check)(const struct world *, const struct plan *,
                                           const struct plan_offer *, const struct plan_choice *))
{
    struct plan plan, then[3];
    int32_t pos = WORLD_FIRST;
    memset(r, 0, sizeof *r);
    for (int32_t i = 0; i <= w->ahead; i++) p->next(p->ctx, &then[i]);
    while (r->tokens < n) {
        struct world_offer o;
        struct plan_choice c = {.rows = 1};
        struct plan_result x = {0};
        plan = then[0];
        const bool asks = plan.rows == 0;
        for (int32_t i = 0; i < w->ahead; i++) then[i] = then[i + 1];
        struct world *by = plan.draft == 2 ? w->beside : w;
        world_propose(by, pos, plan.draft, asks, &o);
        x.offer = (struct plan_offer){.pos = pos,
                                      .source = plan.draft,
                                      .n_draft = o.n,
                                      .logp = o.logp,
                                      .n_look = o.n_look,
                                      .match = o.match,
                                      .agree = o.agree};
        if (asks)
            p->choose(p->ctx, &x.offer, &c);
        else
            c.rows = plan.rows;
        if (check) check(w, &plan, &x.offer, &c);
        const int32_t right = c.look ? o.look_right : o.right;
        x.choice = c, x.drafted = plan.draft;
        x.kept = 1 + (right < c.rows - 1 ? right : c.rows - 1);
        const int32_t n_chain = c.look ? o.n_look : o.n;
        x.labelled = n_chain < x.kept ? n_chain : x.kept;
        x.equal = right < x.labelled ? right : x.labelled;
        const double noise = 1 + w->jitter * world_normal(w->seed, (uint64_t)r->cycles, 31);
        x.verify_s = world_verify_s(w->m, c.rows) * noise;
        x.draft_s = plan.draft ? by->m->draft_s * noise : 0;
        x.wait_s = asks ? w->m->overhead_s : 0;
        r->s += x.verify_s + x.draft_s + x.wait_s;
        if (plan.draft) r->drafted_at[r->tokens * 8 / n < 8 ? r->tokens * 8 / n : 7]++;
        if (world_drafter(w, pos) == &w->d[1] && r->pause < 8) {
            r->pause = plan.draft ? 0 : r->pause + 1;
            r->bad_drafts += plan.draft > 0;
        }
        if (plan.draft && world_drafter(w, pos) == &w->d[2] && ++r->good_drafts == 8) r->back_pos = pos;
        r->by[by != w] += plan.draft > 0;
        r->tokens += x.kept, r->cycles++, r->drafts += plan.draft > 0, r->verified += c.rows,
            r->looks += c.look;
        r->hash = world_mix(r->hash ^ (uint64_t)(c.rows * 4 + c.look * 2 + plan.draft));
        pos += x.kept;
        if (p->seen) p->seen(p->ctx, &x);
        p->next(p->ctx, &then[w->ahead]);
    }
    /* The last cycle may have made more than was asked for. */
    r->s *= (double)n / (double)r->tokens;
}

#endif
