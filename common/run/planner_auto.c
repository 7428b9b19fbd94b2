/* planner_auto.c - see planner_auto.h. */
#include "planner_auto.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The unit is the token that a plain step would have made in the same time, where nothing else is said. */
#define MARGIN 0.03        /* what drafting is to gain a cycle */
#define GAINS 8            /* cycles that the average of gains remembers */
#define REGRET 1.5         /* what averages below the margin add up to before drafting ends, */
#define REGRET_SAVED 0.05  /* and of what the account has saved, on top */
#define OPTIMISM 0.55      /* deviations of what is believed of a drafter: what is unknown is worth a try */
#define FADE (1. / 32)     /* of the rate that was had, a cycle */
#define ALLOWED 11.0       /* the account of drafting */
#define LOOK_ALLOWED 2.0   /* of look-ups */
#define SAVED 40.0         /* gains that either counts at most */
#define FORGET 2048.       /* tokens after which 1 - 1/e of a loss is forgotten */
#define PROBE_SHARE 0.0075 /* of the time */
#define PROBES_SAVED 8     /* probes that the credit holds at most */
#define WAIT_FIRST 8       /* plain steps before the first probe of a pause */
#define TREE_RATIO 1.1     /* a tree's rows over a chain's, before any was seen */
#define TREE_SIBLING 0.9   /* what a missed place's other candidates are over what the drafter says, before */
#define TREE_BESIDE 0.7    /* what children of second choices are over those of first ones, before */
#define TREE_LABELS 4.     /* that these two stand for */
#define TREE_FADE 0.98     /* of what was seen of them, a label */
#define TRIALS 3           /* trials of the other drafter that its average remembers */
#define TRIAL_FIRST 3      /* cycles between two of them, before there were as many, */
#define TRIAL_MOST 128     /* and at most */
#define MUCH_WORSE 1.      /* the wait grows faster where the other's gains are so much smaller */
#define TRIAL_LOST 8       /* cycles after which a trial that was planned is not to come */
#define BETTER 0.05        /* by so much the other's gains are to be larger */
#define WAIT_SHARE 0.007   /* of the time, that probes take when the wait has stopped doubling */

int32_t planner_auto_counts(int32_t block, bool look, bool records, int32_t *counts)
{
    static const int32_t few[] = {2, 3, 4, 6, 8, 12, 16}, looks[] = {2, 4, 6, 8, 12, 16, 32, PLAN_TIMES_ROWS};
    const int32_t n_looks = sizeof looks / sizeof *looks;
    int32_t n = 0, i = 0;
    if (look) {
        memcpy(counts, looks, sizeof looks);
        while (i < n_looks && looks[i] < block) i++;
        /* The block has the place of the count above it; the last stays, for copies. */
        if (block > 1 && looks[i] != block) counts[i < n_looks - 1 ? i : i - 1] = block;
        return n_looks;
    }
    if (!records) {
        for (int32_t r = 2; r <= block; r++) counts[n++] = r;
        return n;
    }
    for (; i < (int32_t)(sizeof few / sizeof *few) && few[i] < block; i++) counts[n++] = few[i];
    if (block > 1) counts[n++] = block;
    return n;
}

static int trees_init(struct planner_auto *a, const struct planner_auto_options *o, struct err *e)
{
    static const int32_t counts[] = {4, 8, 12, 16, 24, 32, 48, PLAN_TIMES_ROWS};
    if (o->tree < 0 || o->tree >= PLAN_TIMES_ROWS || (o->tree && !o->drafter))
        return err_set(e, ERR_USAGE, "proposals of trees in plans (expected 0 to %d, and a drafter, got %d)",
                       PLAN_TIMES_ROWS - 1, o->tree);
    a->tree = o->tree, a->seed = o->seed;
    for (size_t i = 0; i < sizeof counts / sizeof *counts && counts[i] <= o->tree; i++)
        a->tree_counts[a->n_tree_counts++] = counts[i];
    if (o->tree) a->tree_counts[a->n_tree_counts++] = o->tree + 1;
    a->any_ratio = TREE_RATIO;
    return 0;
}

static int drafters_init(struct planner_auto *a, const struct planner_auto_options *o, struct err *e)
{
    const int32_t blocks[PLAN_SOURCES] = {o->block, o->beside};
    a->n_drafters = !o->drafter ? 0 : o->beside ? 2 : 1;
    a->turn = 1, a->trial_wait = TRIAL_FIRST;
    for (int32_t i = 0; i < PLAN_SOURCES; i++) {
        struct planner_auto_drafter *y = &a->by[i];
        y->block = 1;
        y->bucket = calibration_bucket(i + 1, o->temperature, o->draft_greedy);
        y->sibling[0] = TREE_LABELS * TREE_SIBLING, y->sibling[1] = TREE_LABELS;
        y->beside[0] = TREE_LABELS * TREE_BESIDE, y->beside[1] = TREE_LABELS;
        if (i >= a->n_drafters) continue;
        if (blocks[i] < 2 || blocks[i] > PLAN_TIMES_ROWS)
            return err_set(e, ERR_USAGE, "rows of a block of plans (expected 2 to %d, got %d)",
                           PLAN_TIMES_ROWS, blocks[i]);
        y->block = blocks[i];
    }
    return 0;
}

int planner_auto_init(struct planner_auto *a, const struct planner_auto_options *o, struct err *e)
{
    memset(a, 0, sizeof *a);
    if (o->n_counts < 0 || o->n_counts >= PLAN_TIMES_ROWS)
        return err_set(e, ERR_USAGE, "row counts of plans (expected 0 to %d of them, got %d)",
                       PLAN_TIMES_ROWS - 1, o->n_counts);
    for (int32_t i = 0; i < o->n_counts; i++) {
        const int32_t before = i ? o->counts[i - 1] : 1;
        if (o->counts[i] <= before || o->counts[i] > PLAN_TIMES_ROWS)
            return err_set(e, ERR_USAGE, "row count %d of plans (expected %d to %d, got %d)", i, before + 1,
                           PLAN_TIMES_ROWS, o->counts[i]);
    }
    if (drafters_init(a, o, e) || plan_times_check(o->times, a->n_drafters, e)) return -1;
    a->times = *o->times;
    if (o->calibration)
        a->calibration = *o->calibration;
    else
        calibration_init(&a->calibration);
    if (o->n_counts) memcpy(a->counts, o->counts, (size_t)o->n_counts * sizeof *o->counts);
    a->n_counts = o->n_counts;
    a->fixed = o->fixed, a->look = o->look;
    a->drafting = o->drafter;
    if (trees_init(a, o, e)) return -1;
    a->off = o->drafter ? AUTO_ON : AUTO_NO_DRAFTER;
    a->interval = WAIT_FIRST;
    a->stats.stays = a->drafting;
    return 0;
}

/* ---- what things are worth, at a context ---- */

struct worth {
    double plain_s, draft_s; /* draft_s: with the round trip */
    double lambda;
};

/* Of the drafter that an offer is of; where none was asked, of the one whose turn it is. */
static int32_t drafter_of(const struct planner_auto *a, const struct plan_offer *o)
{
    return o->source ? o->source : a->turn;
}

static struct worth worth_at(const struct planner_auto *a, int32_t source, int32_t pos)
{
    struct worth w = {.plain_s = plan_times_rows(&a->times, 1, pos),
                      .draft_s = plan_times_draft(&a->times, source, pos) + a->times.overhead_s};
    w.lambda = 1 / w.plain_s;
    if (a->elapsed > 0 && a->emitted / a->elapsed > w.lambda) w.lambda = a->emitted / a->elapsed;
    return w;
}

/* What bounds a choice of rows. */
struct bet {
    int32_t least; /* rows at least, where the chain has them */
    double most_s; /* that a verify may take */
    double risk;   /* tokens that a squared token of variance is counted as */
};

/* The best row count of a chain of n proposals, h [n] their probabilities. Returns its worth in tokens; *rows
 * 1 where nothing is better. */
static double best_of(const struct planner_auto *a, const struct worth *w, int32_t pos, const double *h,
                      int32_t n, const struct bet *b, int32_t *rows)
{
    double worth = 1 - w->lambda * w->plain_s, best = b->least > 1 ? -INFINITY : worth;
    double sum = 1, reach = 1, squares = 0;
    int32_t j = 0;
    *rows = 1;
    for (int32_t i = 0; i < a->n_counts && a->counts[i] <= n + 1; i++) {
        const double s = plan_times_rows(&a->times, a->counts[i], pos);
        for (; j < a->counts[i] - 1; j++) reach *= h[j], sum += reach, squares += (2 * j + 1) * reach;
        const double net = sum - w->lambda * s, score = net - b->risk * (squares - (sum - 1) * (sum - 1));
        if (a->counts[i] < b->least || s > b->most_s || !(score > best)) continue;
        best = score, worth = net, *rows = a->counts[i];
    }
    return worth;
}

/* ---- trees ---- */

static double tree_rows_s(const struct planner_auto *a, int32_t n, int32_t pos)
{
    const double ratio = a->tree_ratio[n] > 0 ? a->tree_ratio[n] : a->any_ratio;
    return ratio * plan_times_rows(&a->times, n, pos);
}

/* Seconds of what was, or would be, verified. */
static double choice_s(const struct planner_auto *a, const struct plan_choice *c, int32_t pos)
{
    return c->nodes ? tree_rows_s(a, c->rows, pos) : plan_times_rows(&a->times, c->rows, pos);
}

/* Of a row of candidates the logs of their h, where that of candidate first is known; the others share what
 * is left as the drafter has it, times what was seen of that. */
static void row_chances(const struct planner_auto *a, const struct planner_auto_drafter *y, const float *row,
                        int32_t n, int32_t first, double first_h, float *h)
{
    const double sibling = y->sibling[0] / y->sibling[1], left = fmax(-expm1((double)row[first]), 1e-6),
                 share = (1 - first_h) * sibling / left;
    (void)a;
    for (int32_t i = 0; i < n; i++) {
        const double p = i == first ? fmax(first_h, 1e-6) : fmin(share * exp((double)row[i]), 1 - first_h);
        h[i] = p > 1e-6 ? (float)log(p) : i == first ? (float)log(1e-6) : -INFINITY;
    }
}

static int32_t likeliest(const float *row, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (row[i] > row[best]) best = i;
    return best;
}

/* Of each place's candidates behind the proposals, [n, n_top] in a->h. */
static void tree_chances(struct planner_auto *a, const struct plan_offer *o, const double *draft, int32_t n)
{
    const struct planner_auto_drafter *y = &a->by[drafter_of(a, o) - 1];
    for (int32_t j = 0; j < n; j++)
        row_chances(a, y, o->top + (int64_t)j * o->n_top, o->n_top, 0, draft[j],
                    a->h + (int64_t)j * o->n_top);
}

/* The same behind another candidate, for which the drafter says what it thinks: h of its likeliest as of a
 * proposal. */
static const float *chances_behind(void *ctx, int32_t j, int32_t rank)
{
    struct planner_auto *a = ctx;
    const struct plan_offer *o = a->grown_of;
    const struct planner_auto_drafter *y = &a->by[drafter_of(a, o) - 1];
    const float *row = o->behind(o->behind_ctx, j, rank);
    const int32_t first = likeliest(row, o->n_top);
    const double h = calibration_draft(&a->calibration, y->bucket, j + 1, (double)row[first], OPTIMISM);
    row_chances(a, y, row, o->n_top, first, h, a->row_h);
    return a->row_h;
}

/* The best tree, as best_of; it is left in a->chosen, *rows 1 where none is better than one row. */
static double best_tree(struct planner_auto *a, const struct worth *w, const struct plan_offer *o,
                        const double *draft, int32_t n, const struct bet *b, int32_t *rows)
{
    double sum = 1, squares = 0, reach, worth = -INFINITY, best = -INFINITY;
    int32_t depth;
    *rows = 1;
    if (!a->tree || !o->top || n < 1 || o->n_top > TREE_CANDIDATES) return worth;
    tree_chances(a, o, draft, n);
    tree_begin(&a->grown, a->h, n, o->n_top, a->seed);
    a->grown_of = o;
    if (o->behind) a->grown.behind = chances_behind, a->grown.behind_ctx = a;
    const struct planner_auto_drafter *y = &a->by[drafter_of(a, o) - 1];
    a->grown.beside = log(y->beside[0] / y->beside[1]);
    for (int32_t i = 0; i < a->n_tree_counts; i++) {
        while (a->grown.n < a->tree_counts[i] && tree_add(&a->grown, &reach, &depth))
            sum += reach, squares += (2 * depth - 1) * reach;
        const double s = tree_rows_s(a, a->grown.n, o->pos), net = sum - w->lambda * s,
                     score = net - b->risk * (squares - (sum - 1) * (sum - 1));
        const bool whole = a->grown.n == a->tree_counts[i];
        if (s <= b->most_s && score > best && a->grown.n > 1) {
            best = score, worth = net, *rows = a->grown.n;
            a->chosen = a->grown;
        }
        if (!whole) break;
    }
    return worth;
}

/* Behind a second choice: was the pick what was likeliest there? first: h of the proposal of that place.
 * Where the drafter knows what stands before it, and the pick before was none of its candidates, nothing was
 * said. */
static void seen_beside(const struct planner_auto *a, struct planner_auto_drafter *y,
                        const struct plan_result *r, int32_t j, double first)
{
    const struct plan_offer *o = &r->offer;
    const int32_t before = r->ranks[j - 1];
    int32_t best = 0;
    if (o->behind && before < 0) return;
    if (o->behind && before > 0) {
        const float *row = o->behind(o->behind_ctx, j, before);
        best = likeliest(row, o->n_top);
        first = calibration_draft(&a->calibration, y->bucket, j + 1, (double)row[best], 0);
    }
    y->beside[0] = TREE_FADE * y->beside[0] + (r->ranks[j] == best);
    y->beside[1] = TREE_FADE * y->beside[1] + first;
}

/* What came of a tree: its rows' time, and candidates that the picks were. */
static void seen_tree(struct planner_auto *a, const struct plan_result *r)
{
    const struct plan_offer *o = &r->offer;
    const double chain_s = plan_times_rows(&a->times, r->choice.rows, o->pos),
                 ratio = chain_s > 0 ? (r->verify_s + r->commit_s) / chain_s : 0;
    struct planner_auto_drafter *y = &a->by[drafter_of(a, o) - 1];
    double *own = &a->tree_ratio[r->choice.rows];
    bool off = false;
    if (!a->fixed && ratio > 0) {
        const double bounded = fmin(fmax(ratio, 0.5), 4);
        *own = *own > 0 ? *own + (bounded - *own) / 8 : bounded;
        a->any_ratio += (bounded - a->any_ratio) / 16;
    }
    for (int32_t j = 0; r->ranks && o->top && j < r->labelled; j++) {
        const float *top = o->top + (int64_t)j * o->n_top;
        const double first = calibration_draft(&a->calibration, y->bucket, j + 1, o->logp[j], 0);
        if (off) {
            seen_beside(a, y, r, j, first);
        } else if (r->ranks[j]) {
            double others = 0;
            for (int32_t i = 1; i < o->n_top; i++) others += exp((double)top[i]);
            y->sibling[0] = TREE_FADE * y->sibling[0] + (r->ranks[j] > 0);
            y->sibling[1] = TREE_FADE * y->sibling[1] + fmin(others / fmax(-expm1((double)top[0]), 1e-6), 1);
        }
        off = off || r->ranks[j] != 0;
    }
}

/* h of both chains; where they share a proposal, the surer one's. Both have room for CALIBRATION_SLOTS. */
static void chances(const struct planner_auto *a, const struct plan_offer *o, double *draft, double *look,
                    int32_t *n_draft, int32_t *n_look)
{
    const struct planner_auto_drafter *y = &a->by[drafter_of(a, o) - 1];
    *n_draft = o->n_draft < y->block ? o->n_draft : y->block - 1;
    *n_look = o->n_look < CALIBRATION_SLOTS ? o->n_look : CALIBRATION_SLOTS;
    for (int32_t j = 0; j < *n_draft; j++)
        draft[j] = calibration_draft(&a->calibration, y->bucket, j + 1, o->logp[j], OPTIMISM);
    for (int32_t j = 0; j < *n_look; j++) look[j] = calibration_look(&a->calibration, o->match, j + 1);
    for (int32_t j = 0; j < o->agree && j < *n_draft && j < *n_look; j++)
        draft[j] = look[j] = draft[j] > look[j] ? draft[j] : look[j];
}

/* A verify that an account still allows, if no proposal of it is right. */
static struct bet bet_of(const struct worth *w, double lost, double allowed)
{
    return (struct bet){.least = 1, .most_s = w->plain_s * (1 + allowed - lost)};
}

/* What drafting gains where this was offered, in tokens a cycle. */
static double gain_of(struct planner_auto *a, const struct plan_offer *o)
{
    const struct worth w = worth_at(a, drafter_of(a, o), o->pos);
    double draft[CALIBRATION_SLOTS], look[CALIBRATION_SLOTS];
    int32_t n_draft, n_look, rows;
    chances(a, o, draft, look, &n_draft, &n_look);
    const struct bet any = {.least = 1, .most_s = INFINITY};
    const double with = fmax(best_of(a, &w, o->pos, draft, n_draft, &any, &rows),
                             best_tree(a, &w, o, draft, n_draft, &any, &rows)),
                 without = best_of(a, &w, o->pos, look, n_look, &any, &rows);
    return fmax(with, without) - without - w.lambda * w.draft_s;
}

/* ---- plans ---- */

static double probe_s(const struct planner_auto *a)
{
    const struct worth w = worth_at(a, a->turn, a->pos);
    return a->n_counts ? w.draft_s + plan_times_rows(&a->times, a->counts[0], a->pos) - w.plain_s : 0;
}

/* Of the account: what look-ups lost counts, what they won does not. */
static double spent(const struct planner_auto *a)
{
    return a->lost + fmax(0, a->look_lost);
}

/* Is there room for a draft and the cheapest verify that can win, if nothing comes of both? A draft that
 * could not be followed by one is time thrown away. */
static bool has_room(const struct planner_auto *a)
{
    const struct worth w = worth_at(a, a->turn, a->pos);
    double lost = w.draft_s / w.plain_s;
    for (int32_t i = 0; i < a->n_counts; i++) {
        const double cost = (w.draft_s + plan_times_rows(&a->times, a->counts[i], a->pos)) / w.plain_s;
        if (cost >= a->counts[i]) continue;
        lost = cost - 1;
        break;
    }
    return spent(a) + lost < ALLOWED;
}

static void leave(struct planner_auto *a, int why)
{
    a->drafting = false;
    if (a->stay < 0) a->stats.draft_lost_s -= a->stay * plan_times_rows(&a->times, 1, a->pos);
    if (a->stay > 1) a->interval = WAIT_FIRST;
    a->waited = 0;
    a->off = why, a->off_gain = a->by[a->turn - 1].gain;
    for (int32_t i = 0; i < a->n_drafters; i++) a->by[i].n_gain = 0;
    a->regret = 0, a->stay = 0, a->trial_wait = TRIAL_FIRST;
}

/* The other drafter; 0: there is none. */
static int32_t other(const struct planner_auto *a)
{
    return a->n_drafters > 1 ? PLAN_SOURCES + 1 - a->turn : 0;
}

static void take_turns(struct planner_auto *a)
{
    a->turn = other(a);
    a->regret = 0, a->rested = 0, a->trial_wait = TRIAL_FIRST;
}

static bool wants_probe(const struct planner_auto *a)
{
    return !a->asked && a->n_counts && a->waited >= a->interval && a->credit >= probe_s(a) && has_room(a);
}

static void auto_next(void *ctx, struct plan *p)
{
    struct planner_auto *a = ctx;
    *p = (struct plan){0};
    if (a->drafting && !has_room(a)) leave(a, AUTO_SPENT);
    if (a->drafting) {
        p->draft = a->turn;
        a->rested++;
        if (a->trying && a->rested > TRIAL_LOST) a->trying = false; /* a stream ended before it */
        if (other(a) && !a->trying && a->rested > a->trial_wait) {
            p->draft = other(a);
            a->trying = true;
            a->rested = 0;
        }
    } else if (a->n_drafters && wants_probe(a)) {
        p->draft = a->turn;
        a->asked = true;
        a->waited = 0;
    }
    p->rows = p->draft || a->look ? 0 : 1;
}

static void auto_choose(void *ctx, const struct plan_offer *o, struct plan_choice *c)
{
    struct planner_auto *a = ctx;
    const struct worth w = worth_at(a, drafter_of(a, o), o->pos);
    const bool probe = o->n_draft && !a->drafting && a->asked;
    double draft[CALIBRATION_SLOTS], look[CALIBRATION_SLOTS];
    int32_t n_draft, n_look, draft_rows, look_rows;
    chances(a, o, draft, look, &n_draft, &n_look);
    const double left = ALLOWED - spent(a) - w.draft_s / w.plain_s;
    struct bet bet = bet_of(&w, a->look_lost, LOOK_ALLOWED);
    const double of_look = best_of(a, &w, o->pos, look, n_look, &bet, &look_rows);
    bet = bet_of(&w, ALLOWED - left, ALLOWED);
    if (probe) {
        /* It may lose its credit. */
        bet.most_s = fmin(bet.most_s, w.plain_s + a->credit - w.draft_s);
        bet.least = 2;
    } else {
        bet.risk = 1 / fmax(left, ALLOWED);
    }
    const double of_draft = best_of(a, &w, o->pos, draft, n_draft, &bet, &draft_rows);
    int32_t tree_rows = 1;
    const double of_tree = probe ? -INFINITY : best_tree(a, &w, o, draft, n_draft, &bet, &tree_rows);
    const bool tree = tree_rows > 1 && of_tree > of_draft && !tree_is_chain(a->chosen.nodes, tree_rows);
    c->look = look_rows > 1 && of_look > fmax(of_draft, of_tree);
    c->rows = c->look ? look_rows : tree ? tree_rows : draft_rows;
    c->nodes = tree && !c->look ? a->chosen.nodes : NULL;
}

/* ---- what came of them ---- */

/* Seconds of a cycle; *draft_s: of these the draft's, with the round trip. One that took more than twice what
 * it should have counts as that much: somebody else had the machine, or nobody took the tokens. */
static double cost_of(const struct planner_auto *a, const struct plan_result *r, double *draft_s)
{
    const int32_t pos = r->offer.pos;
    const double expected_draft_s =
        r->drafted ? plan_times_draft(&a->times, drafter_of(a, &r->offer), pos) + a->times.overhead_s : 0;
    const double expected_s =
        expected_draft_s + choice_s(a, &r->choice, pos) + (a->look && !r->drafted ? a->times.overhead_s : 0);
    *draft_s = a->fixed ? expected_draft_s : fmin(r->draft_s + r->wait_s, 2 * expected_draft_s);
    const double s = r->draft_s + r->wait_s + r->verify_s + r->commit_s + r->idle_s;
    return a->fixed || !(s > 0) ? expected_s : fmin(s, 2 * expected_s);
}

static void correct_times(struct planner_auto *a, const struct plan_result *r)
{
    const int32_t pos = r->offer.pos;
    /* One row behind a draft is no plain step: its context is made with it. */
    if ((!r->drafted || r->choice.rows > 1) && !r->choice.nodes)
        plan_times_seen_rows(&a->times, r->choice.rows, pos, r->verify_s + r->commit_s);
    if (!r->drafted) return;
    plan_times_seen_draft(&a->times, drafter_of(a, &r->offer), pos, r->draft_s);
    plan_times_seen_overhead(&a->times, r->wait_s);
}

/* won: tokens beyond what plain steps would have made; it may be negative. */
static void book(double *lost, double won, int32_t kept)
{
    *lost -= won;
    if (*lost > 0) *lost *= 1 - kept / FORGET;
    if (*lost < -SAVED) *lost = -SAVED;
}

static void count(struct planner_auto *a, const struct plan_result *r, double cost, double plain_s,
                  bool probe)
{
    struct planner_auto_stats *s = &a->stats;
    const int32_t rows = r->choice.rows;
    s->cycles++, s->tokens += r->kept;
    s->total_s += cost, s->plain_s += r->kept * plain_s;
    if (r->drafted) s->drafted[rows]++, s->by[drafter_of(a, &r->offer) - 1]++;
    if (r->choice.nodes) s->tree[rows]++;
    if (r->choice.look && rows > 1)
        s->look[rows]++;
    else if (!r->drafted)
        s->plain++;
    if (!probe) return;
    s->probes++;
    if (cost > r->kept * plain_s) s->probe_lost_s += cost - r->kept * plain_s;
}

/* A cycle that drafted while drafting is on: does it stay on? */
static void stayed(struct planner_auto *a, int32_t source, double gain, double won)
{
    struct planner_auto_drafter *y = &a->by[source - 1];
    const bool trial = source != a->turn;
    a->stay += won;
    y->n_gain += y->n_gain < (trial ? TRIALS : GAINS);
    y->gain += (gain - y->gain) / y->n_gain;
    if (trial) {
        a->trying = false;
        if (y->n_gain < TRIALS) return;
        const double behind = a->by[a->turn - 1].gain - y->gain;
        if (behind < -BETTER)
            take_turns(a);
        else
            a->trial_wait = behind > MUCH_WORSE ? 4 * a->trial_wait : 2 * a->trial_wait;
        if (a->trial_wait > TRIAL_MOST) a->trial_wait = TRIAL_MOST;
        return;
    }
    a->regret = y->gain < MARGIN ? a->regret + MARGIN - y->gain : 0;
    if (a->regret <= REGRET + REGRET_SAVED * fmax(0, -a->lost)) return;
    if (other(a) && (!a->by[other(a) - 1].n_gain || a->by[other(a) - 1].gain > MARGIN))
        take_turns(a);
    else
        leave(a, AUTO_LOSES);
}

/* A probe: does drafting come back? gain: as it is reckoned with its labels. */
static void probed(struct planner_auto *a, const struct plan_result *r, double gain)
{
    const double cost = probe_s(a);
    const int64_t longest = (int64_t)ceil(cost / (WAIT_SHARE * plan_times_rows(&a->times, 1, a->pos)));
    a->asked = false;
    a->off_gain = gain;
    /* All of several rows right: the account bounds what is tried. */
    const bool right = r->kept > 1 && r->kept == r->choice.rows && !r->choice.look;
    if (gain > MARGIN || right) {
        a->drafting = true, a->off = AUTO_ON;
        a->turn = drafter_of(a, &r->offer), a->trying = false;
        a->by[a->turn - 1].gain = gain, a->by[a->turn - 1].n_gain = 1;
        a->regret = 0, a->stay = 0;
        a->stats.stays++;
    } else {
        a->interval = a->interval * 2 < longest ? a->interval * 2
                      : longest > WAIT_FIRST    ? longest
                                                : WAIT_FIRST;
        if (other(a)) a->turn = other(a);
    }
}

static void auto_seen(void *ctx, const struct plan_result *r)
{
    struct planner_auto *a = ctx;
    double draft_s;
    const double plain_s = plan_times_rows(&a->times, 1, r->offer.pos), cost = cost_of(a, r, &draft_s);
    const double won = r->kept - cost / plain_s;
    const bool probe = r->drafted && !a->drafting && a->asked, look = r->choice.look && r->choice.rows > 1;
    const double gain = r->drafted && !probe ? gain_of(a, &r->offer) : 0;
    a->pos = r->offer.pos;
    if (r->choice.nodes) seen_tree(a, r);
    calibration_seen(&a->calibration, a->by[drafter_of(a, &r->offer) - 1].bucket, r);
    for (int32_t i = 0; i < a->n_drafters; i++)
        if (i != drafter_of(a, &r->offer) - 1) calibration_ages(&a->calibration, a->by[i].bucket);
    if (!a->fixed) correct_times(a, r);
    a->emitted += r->kept - FADE * a->emitted, a->elapsed += cost - FADE * a->elapsed;
    count(a, r, cost, plain_s, probe);
    a->credit = fmin(a->credit + PROBE_SHARE * cost, PROBES_SAVED * probe_s(a));
    if (probe && won < 0) a->credit += won * plain_s;
    book(&a->lost, !r->drafted ? 0 : look ? -draft_s / plain_s : won, r->kept);
    book(&a->look_lost, look ? won + draft_s / plain_s : 0, r->kept);
    if (!r->drafted) {
        a->waited += !a->drafting;
        if (a->waited >= WAIT_FIRST) a->asked = false; /* a stream ended before the probe that was planned */
    } else if (probe) {
        probed(a, r, gain_of(a, &r->offer));
    } else if (a->drafting) {
        stayed(a, drafter_of(a, &r->offer), gain, won);
    }
}

struct planner planner_auto(struct planner_auto *a)
{
    return (struct planner){.next = auto_next, .choose = auto_choose, .seen = auto_seen, .ctx = a};
}

/* ---- what it says ---- */

double planner_auto_plain_rate(const struct planner_auto *a)
{
    return a->stats.plain_s > 0 ? (double)a->stats.tokens / a->stats.plain_s : 0;
}

double planner_auto_lost(const struct planner_auto *a)
{
    return a->stats.draft_lost_s - (a->stay < 0 ? a->stay * plan_times_rows(&a->times, 1, a->pos) : 0);
}

const char *planner_auto_why(const struct planner_auto *a, char *buf, size_t n)
{
    const double draft_ms = 1e3 * plan_times_draft(&a->times, a->turn, a->pos),
                 plain_ms = 1e3 * plan_times_rows(&a->times, 1, a->pos);
    if (a->off == AUTO_ON)
        snprintf(buf, n, "drafting is on");
    else if (a->off == AUTO_NO_DRAFTER)
        snprintf(buf, n, "drafting is off: there is no drafter");
    else if (a->off == AUTO_SPENT)
        snprintf(buf, n,
                 "drafting is off: cycles lost %.1f tokens against plain steps of %.3g ms, and at most %.0f "
                 "may be",
                 a->lost, plain_ms, ALLOWED);
    else
        snprintf(
            buf, n,
            "drafting is off: with a draft of %.3g ms a cycle gains %.2f tokens over plain steps of %.3g "
            "ms (expected %.2f or more)",
            draft_ms, a->off_gain, plain_ms, MARGIN);
    return buf;
}
