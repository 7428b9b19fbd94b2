/* chain_plan.c - the steps of a chain laid out (chain_plan.h): pairs of panels to blocks, shared memory, how
 * much of the ring is on its way. What is said to be measured is in docs/speed/decode.md. */
#include "chain_plan.h"

#include "../../kv_rows.h"
#include "code_share.h"

#include <string.h>

struct chain_tuning chain_tuning = {.context = 262144,
                                    .tile = 8704,
                                    .items = 65536,
                                    .near = 4096,
                                    .k_ahead = 64512,
                                    .split = 20,
                                    .far_ahead = 65536,
                                    .k_near = 1024,
                                    .wide = 1,
                                    .wide_ahead = 82944,
                                    .head = 20480,
                                    .head_columns = 2560,
                                    .head_ahead = 64512,
                                    .rows_ahead = 73728,
                                    .split_normed = 64};

#define CHAIN_BRING (64 << 10) /* bytes behind the ring that come to the L2 cache while it is full */
/* Steps, at most: the plan of a later one waits for sums of a step before (chain_fetch). */
#define CHAIN_REPLAY_MOST 4
#define CHAIN_GRID_COPIES (16u << 10) /* bytes of a type's points that stand several times, at most */
#define CHAIN_SPREAD 256              /* blocks of a launch that spread knows, at most */
#define SPREAD_EACH 4 /* slices of alpha and beta a block, where those that have less take all of them */

static uint32_t tile_bytes(const struct chain_step *s)
{
    return (s->kind == CHAIN_K ? 2 : 1) * (uint32_t)(s->per * widest_unit(s));
}
/* The smallest that a pair would want, of K types. */
static uint32_t least_tile(const struct chain_step *s)
{
    uint32_t least = s->tile;
    for (int32_t j = 0; j < s->n_m; j++)
        if (2 * (uint32_t)(s->per * s->m[j].unit_bytes) < least)
            least = 2 * (uint32_t)(s->per * s->m[j].unit_bytes);
    return least;
}
/* The smallest that there is. */
static uint32_t tile_at_least(const struct chain_step *s)
{
    return s->flags & CHAIN_MIXED ? least_tile(s) : s->tile;
}
/* Of the row's activations. */
static uint32_t row_bytes(const struct chain_step *s)
{
    static const uint32_t unit[] = {CHAIN_ROW, 40, 128, 192, 192}; /* by kind */
    return unit[s->kind] * (uint32_t)s->units;
}

/* Does each warp round the columns that it multiplies, in a row that is not normed? */
static bool rounds_own(const struct chain_step *s)
{
    return !s->norm && !s->d.what && s->units % s->per == 0 && s->units >= CHAIN_WARPS;
}
/* Of the last round of pairs, too few for all blocks, all blocks have pieces: slices, which are added where
 * they are multiplied, or tiles, where that is more even. Not where it saves less than a quarter of a pair,
 * or where the block's own pairs take too little time to add the pieces in. */
static void split_of(struct chain_step *s, int blocks)
{
    const int32_t rest = s->pairs % blocks, own = s->pairs / blocks * s->units,
                  least = s->norm || s->d.what ? chain_tuning.split_normed : chain_tuning.split;
    const bool whole = s->slice_units % s->per == 0 && s->slices * s->slice_units == s->units;
    if (!rest || own < least || rest * s->slices + blocks > CHAIN_SPLIT_SUMS) return;
    const int32_t tiles = ((rest * s->cuts - 1) / blocks + 1) * s->per,
                  slices = ((rest * s->slices - 1) / blocks + 1) * s->slice_units;
    const bool by_slices = slices <= tiles && (whole || !rounds_own(s));
    if (4 * (by_slices ? slices : tiles) > 3 * s->units) return;
    s->split = rest;
    s->piece = by_slices ? s->slice_units : s->per;
    s->pieces = by_slices ? s->slices : s->cuts;
    s->piece_cuts = (s->piece - 1) / s->per + 1;
    s->each = rest * s->pieces / blocks;
    s->more = rest * s->pieces % blocks;
    const bool factors = s->terms > (uint32_t)(64 * s->units + 64);
    const int32_t room = 16 * s->per * s->piece_cuts * (s->each + (s->more ? 1 : 0));
    s->split_beside = factors ? room : 0;
    s->split_term = room + s->split_beside + 16; /* the other panel's on other banks */
}
/* Whether there are such steps; tiles of K types. */
static bool splits(const struct cuda_device *dev, struct chain_state *c, int32_t count, int blocks, bool may)
{
    bool any = false;
    for (int32_t i = 0; i < count; i++) {
        struct chain_step *s = &c->step[i];
        s->split = 0;
        if (!s->n_m || s->kind != CHAIN_K) continue;
        s->per = pairs_a_block(s, dev->sm_count) * s->units < CHAIN_WARPS ? 1 : 2;
        s->cuts = (s->units + s->per - 1) / s->per;
        if (may && blocks && s->pairs >= blocks && !c->op[i].head && (s->pass_on || i + 1 == count))
            split_of(s, blocks);
        any = any || s->split;
    }
    return any;
}
/* Of a group of panels of a step of types other than K. */
static float part_bytes(const struct chain_step *s)
{
    return (float)(s->members * (s->spread ? s->slice_units : s->units) * s->m[0].unit_bytes);
}
/* Where pairs divide badly the first blocks of a step have one more, and weights come to a multiprocessor no
 * faster than to another: not always the same blocks, then. A step that is free to choose begins with those
 * that have had least lately. */
static void spread(struct chain_state *c, int32_t count, int blocks)
{
    float load[2 * CHAIN_SPREAD] = {0}; /* the same twice: the blocks are a circle */
    if (blocks > CHAIN_SPREAD) return;
    for (int32_t i = 0; i < count; i++) {
        struct chain_step *s = &c->step[i];
        s->first = 0;
        s->split_first = 0;
        if (s->n_m == 0 && i) s->first = s[-1].split ? s[-1].split_first : s[-1].first;
        const int32_t rest = s->split ? s->more : s->rest; /* blocks that have more */
        int32_t first = 0;
        const struct chain_step *t = i + 1 < count && s[1].again && s[1].kind != CHAIN_K ? s + 1 : NULL;
        if (s->kind != CHAIN_K) {
            for (int32_t j = 0; j < (s->spread ? s->wide : s->rest); j++)
                load[j] += part_bytes(s), load[blocks + j] = load[j];
            continue;
        }
        if (s->n_m && t && s->rest) { /* the first blocks have what of its row is of another kind */
            s->first = t->spread ? t->wide : t->rest;
            continue;
        }
        if (s->n_m == 0 || s->kind != CHAIN_K || rest == 0) continue;
        if (s->split || (!s->keep && !s->kept && !s->old)) {
            float sum[CHAIN_SPREAD] = {0}; /* of those that would have more, by the first of them */
            for (int32_t j = 0; j < rest; j++)
                for (int32_t at = 0; at < blocks; at++) sum[at] += load[at + j];
            for (int32_t at = 1; at < blocks; at++)
                if (sum[at] < sum[first]) first = at;
        }
        *(s->split ? &s->split_first : &s->first) = first;
        const float bytes = 2.0f * (float)(s->split ? s->piece : s->units) * (float)s->m[0].unit_bytes;
        for (int32_t j = 0; j < rest; j++) load[(first + j) % blocks] += bytes;
        for (int32_t j = 0; j < blocks; j++) /* what is long ago has been made up for */
            load[j] *= 0.8f, load[blocks + j] = load[j];
    }
}
/* The first of the old rows that are kept comes from memory, and the newest goes there: every block must have
 * read the one before any writes the other, so must have had outputs that all wait for in between. */
static bool posts_in_turn(const struct chain_state *c, int32_t count, int32_t blocks)
{
    int32_t first = 0;
    if (c->post < 0) return true;
    while (!c->step[first].post) first++;
    for (int32_t i = first; i < c->post && i < count; i++)
        if (c->step[i].n_m && c->step[i].pass_on && c->step[i].pairs >= blocks) return true;
    return false;
}
/* Of the row that they keep. */
static uint32_t posts_bytes(const struct chain_state *c, int32_t count)
{
    int32_t most = 0; /* blocks of a warp */
    for (int32_t i = 0; i < count; i++)
        if (c->step[i].post && c->step[i].units > CHAIN_WARPS * most)
            most = (c->step[i].units - 1) / CHAIN_WARPS + 1;
    return 1024 * CHAIN_WARPS * (uint32_t)most;
}
/* Of outputs that later steps write again only the newest are wanted in memory. */
void chain_newest_outputs(struct chain_state *c, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        for (int32_t k = i + 1; k < count && k <= i + 5; k++) {
            struct chain_step *s = &c->step[i], *t = &c->step[k];
            if (!s->n_m && !t->n_m && s->attn == t->attn && s->n_head * s->head <= t->n_head * t->head)
                s->attn = NULL;
            for (int32_t j = 0; j < s->n_m; j++)
                for (int32_t l = 0; l < t->n_m && s->m[j].out; l++)
                    if (t->m[l].out == s->m[j].out && t->m[l].n_out >= s->m[j].n_out) s->m[j].out = NULL;
        }
}

/* Are outputs of such gates and ups written early? Of fewer pairs it is no gain. */
static bool writes_early(const struct chain_step *s, int blocks)
{
    return s->kind == CHAIN_K && s->gated && s->pairs > 2 * blocks;
}

static bool has_grids(const struct chain_state *c, int32_t count)
{
    bool grids = false;
    for (int32_t i = 0; i < count; i++) grids |= chain_is_grid(&c->step[i]);
    return grids;
}
static bool has_items(const struct chain_state *c, int32_t count)
{
    bool other = false;
    for (int32_t i = 0; i < count; i++) other |= chain_is_other(&c->step[i]);
    return other;
}
/* Is all of it of K types, of any of them? */
static bool all_k(const struct chain_state *c, int32_t count)
{
    bool k = true;
    for (int32_t i = 0; i < count; i++) k &= !c->step[i].n_m || c->step[i].kind == CHAIN_K;
    return k;
}
/* Over short contexts, has it the form with early outputs, where some types are others? K types alone, and
 * chains with grids. */
static bool has_pairs(const struct chain_state *c, int32_t count)
{
    return (all_k(c, count) || has_grids(c, count)) && !c->nets && !c->gemma && !(c->attends && c->far) &&
           has_items(c, count);
}
/* Points of the chain's grids: bytes of those that do not stand in lines, from `at` on, counted as *g has it.
 * Blocks of lines are of as many bytes as the line has for all of them. */
static uint32_t grid_points_of(const struct chain_state *c, int32_t count, struct chain_grids *g, uint32_t at)
{
    static const uint32_t type[CHAIN_GRID_TYPES] = {KN_IQ3_S,  KN_IQ2_XXS, KN_IQ3_XXS,
                                                    KN_IQ2_XS, KN_IQ2_S,   KN_IQ1_S},
                          copy[CHAIN_GRID_TYPES] = {2, 1, 1, 2048, 4096, 8192}; /* blocks; bytes */
    bool has[CHAIN_GRID_TYPES] = {false};
    uint32_t blocks = 0, log = 7, first = 0, bytes = 0;
    memset(g, 0, sizeof *g);
    for (int32_t i = 0; i < count; i++)
        for (int32_t j = 0; j < c->step[i].n_m; j++)
            if (grid_has(c->step[i].m[j].type)) has[chain_grid_table(c->step[i].m[j].type)] = true;
    for (int k = 0; k < CHAIN_GRID_TYPES; k++)
        if (chain_grid_lines(type[k]) && has[chain_grid_table(type[k])]) blocks += copy[k];
    if (has[chain_grid_table(KN_IQ3_S)]) log = 6; /* in the first half of a line: grid_line_at */
    while (blocks << log > CHAIN_GRID_LINE) log--;
    for (int k = 0; k < CHAIN_GRID_TYPES; k++) {
        uint32_t *const slot = &g->slot[chain_grid_table(type[k])];
        if (!has[chain_grid_table(type[k])]) continue;
        if (chain_grid_lines(
                type[k])) { /* those with most blocks first: each begins at a multiple of its own bytes */
            *slot = first * CHAIN_GRID_SLOT + log + 1;
            first += copy[k] << log;
            continue;
        }
        uint32_t copies = 0;
        while (copy[k] << (copies + 1) <= CHAIN_GRID_COPIES) copies++;
        *slot = (at + bytes) * CHAIN_GRID_SLOT + copies + 1;
        bytes += copy[k] << copies;
    }
    return bytes;
}

/* What the steps of a chain want of a block. */
struct wants {
    int32_t pairs, n_rep, n_kv, head; /* the most pairs of a step whose result is passed on; of attention */
    uint32_t row, terms;              /* bytes of a rounded row, of the terms of sums */
    bool items, early;                /* some product is not of K types; some step writes early */
    bool writer;                      /* has_pairs */
};

static struct wants wants_of(const struct chain_state *c, int32_t count)
{
    struct wants w = {.items = has_items(c, count)};
    for (int32_t i = 0; i < count; i++) {
        const struct chain_step *s = &c->step[i];
        if (s->n_m == 0 && s->n_rep > w.n_rep) w.n_rep = s->n_rep;
        if (s->n_m == 0 && s->head > w.head) w.head = s->head;
        if (s->n_m == 0 && s->n_kv > w.n_kv) w.n_kv = s->n_kv;
        if (s->n_m == 0) continue;
        if (row_bytes(s) > w.row) w.row = row_bytes(s);
        if (s->pass_on && s->pairs > w.pairs) w.pairs = s->pairs;
    }
    return w;
}

/* The units of a net's state to the blocks; false: it does not go. i: which step s is. */
static bool share_state(struct chain_step *s, int32_t i, int blocks)
{
    const int32_t most = blocks / s->d.n_k, each = most ? (s->d.units - 1) / most + 1 : 0;
    if (each < 1 || each > 2) return false;
    s->d.per = (s->d.units - 1) / each + 1;
    int32_t own = 1; /* steps of the projections */
    while (!s->n_m && own < i && s[-own].again) own++;
    /* Before the product in front of the projections, whose row comes late to the blocks that have
     * units. (Not before what the net in front has kept is written.) */
    int32_t back = s->n_m ? 0 : i > own && s[-own - 1].d.what != CHAIN_STATE_ROW ? own + 1 : own;
    if (back > CHAIN_REPLAY_MOST) back = CHAIN_REPLAY_MOST;
    if (back) s[-back].replays = back;
    return true;
}

/* Every step's work to the blocks; false: it does not go. */
static bool share_out(struct chain_state *c, int32_t count, int blocks, struct wants *w)
{
    for (int32_t i = 0; i < count; i++) {
        struct chain_step *s = &c->step[i];
        if ((s->d.what == CHAIN_STATE || s->d.what == CHAIN_STATE_ROW) && !share_state(s, i, blocks))
            return false;
        if (s->n_m == 0) {
            s->rest = s[-1].split ? s[-1].more : s[-1].rest;
            continue;
        }
        if (s->spread) { /* to blocks that have a pair fewer of the product of K types before */
            const int32_t free = s[-1].rest ? blocks - s[-1].rest : 0;
            s->wide = SPREAD_EACH * free < s->pairs ? blocks : free;
            if (s->wide > s->pairs) s->wide = s->pairs;
        }
        s->rounds = s->pairs / blocks;
        s->rest = s->split ? 0 : s->pairs % blocks;
        const uint32_t of = s->kind == CHAIN_K ? 2 : (uint32_t)s->members,
                       t = of * (s->split
                                     ? s->terms * (uint32_t)s->rounds + 4 * (uint32_t)s->split_term
                                     : s->terms * (uint32_t)pairs_a_block(s, s->spread ? s->wide : blocks));
        if (t > w->terms) w->terms = t;
        w->early |= writes_early(s, blocks);
        if (s->keep && pairs_a_block(s, blocks) * 32 > CHAIN_KEEP) return false;
    }
    return true;
}

/* Where each step's result lies among the words that blocks pass on: how many words. */
static int32_t place_results(struct chain_state *c, int32_t count)
{
    int32_t place = 0;
    for (int32_t i = 0; i < count; i++) {
        struct chain_step *s = &c->step[i];
        s->from = !i ? -1 : s->again ? s[-1].from : s[-1].at;
        s->at = c->op[i].part && !c->op[i].head ? s[-1].at : place;
        if (s->d.what == CHAIN_STATE && s[-1].spread) s->d.sums = s[-1].spread, s->d.slices = s[-1].slices;
        if (s->d.what) s->d.gates = (s->n_m ? s->from : place) + s->d.n_v * CHAIN_HEAD;
        if (s->n_m == 0) {
            place += s->n_head * (s->d.what ? 2 * CHAIN_HEAD : s->head);
        } else if (s->pass_on) {
            const struct chain_matrix *m = &s->m[s->gated ? 0 : s->n_m - 1];
            const int32_t end = s->at + (m->column + m->n_out + 63) / 64 * 64;
            if (end > place) place = end;
            if (s->spread) {
                s->spread = place - s->at;
                place += s->slices * (m->column + m->n_out - s->m[0].column);
                place = (place + 63) / 64 * 64;
            }
        }
    }
    return place;
}

/* Attention has the room of row and terms, *rest bytes, which grows to what it wants; returns the bytes that
 * it has beside them. */
static uint32_t attention_room(const struct chain_state *c, const struct wants *w, bool split, uint32_t *rest)
{
    const bool far = c->far, wide = c->gemma;
    const size_t bytes = far    ? c->coded ? CHAIN_CODES_BYTES(w->n_rep) : CHAIN_FAR_BYTES(w->n_rep)
                            : wide ? CHAIN_WIDE_BYTES(w->head)
                                : CHAIN_ATTEND_BYTES;
    const bool late =
        !far && !wide && (w->writer || (!w->items && (w->early || split))); /* ring.cuh's near_keys */
    const uint32_t least = ((uint32_t)(late ? CHAIN_LATE_BYTES(w->n_rep) : bytes) + 127) / 128 * 128;
    if (*rest < least) *rest = least;
    return !far && !wide && !w->items && !late ? ((uint32_t)CHAIN_KEYS_BYTES + 127) / 128 * 128 : 0;
}

/* Shared memory of the launch, and its blocks: each must have outputs in a step whose outputs are read, so
 * that none can be late for the tag. Returns bytes, or 0 where the ring would be too short. */
size_t chain_lay_out(const struct cuda_device *dev, struct chain_state *c, int32_t count,
                     struct chain_args *a, int *blocks)
{
    struct wants w = wants_of(c, count);
    if (c->gemma && (c->nets || w.items)) return 0;
    if (c->gemma && c->attends && c->far) return 0;
    const bool k = (c->nets || !w.items) && !(c->attends && c->far);
    *blocks = w.pairs < dev->sm_count ? w.pairs : dev->sm_count;
    w.writer = has_pairs(c, count);
    a->split = splits(dev, c, count, *blocks, k && chain_tuning.split > 0);
    if (c->attends && c->coded && w.n_kv > CHAIN_HEADS &&
        (w.n_kv % CHAIN_HEADS || w.n_kv / CHAIN_HEADS > *blocks))
        return 0;
    if (!*blocks || !posts_in_turn(c, count, *blocks) || !share_out(c, count, *blocks, &w)) return 0;
    a->extent = (unsigned)place_results(c, count);
    if (c->nets && w.terms < CHAIN_GATED_BYTES) w.terms = (uint32_t)CHAIN_GATED_BYTES;
    const uint32_t row = (w.row + 127) / 128 * 128;
    uint32_t rest = row + (w.terms + 127) / 128 * 128;
    const uint32_t keys = c->attends ? attention_room(c, &w, a->split, &rest) : 0;
    a->act = CHAIN_K_RING; /* and the ring before it: chain_lay_out_ring */
    a->terms = a->act + row;
    a->keys = a->act + rest;
    int32_t maps = 0;
    for (int32_t i = 0; i < count; i++)
        if (c->step[i].n_m == 0) c->step[i].map = maps, maps += 2;
    return a->keys + keys;
}

/* The step takes its row from the one before as that has rounded it, if its warps have registers for it:
 * those of a slice for what they multiply, or all for all of it. */
static void handed_rounded(struct chain_step *s)
{
    const int32_t own = 10 * s->slice_units > s->own * CHAIN_ROUNDED_WORDS ? 0 : s->own;
    if (!own && 10 * s->units > CHAIN_WARPS * CHAIN_ROUNDED_WORDS) return;
    s->own = own;
    s[-1].flags |= CHAIN_ROUNDS, s->flags |= CHAIN_ROUNDED;
}

/* Of rows of up to 4,096 columns: how many tiles of a step are on the way, at most. More delay the values
 * that blocks wait for: fewer of projections, which come while down's outputs travel, and of what follows
 * attention, and of gates and ups before their row is there; then more. What the ring has no place for while
 * all blocks wait comes as far as the L2 cache. */
static void narrow_ahead(struct chain_step *s, bool attended)
{
    const int32_t all = chain_tuning.k_ahead, tile = (int32_t)tile_at_least(s);
    if (!all) return;
    s->ahead = s->gated  ? all / 7 * 10 / tile
               : s->norm ? all / 7 * 5 / tile
                         : (all / 7 * 6 + tile - 1) / tile;
    s->before = s->gated || attended ? all / 7 * 3 / tile : s->ahead;
    s->bring = CHAIN_BRING / tile;
    if (s->before < 1) s->before = 1;
}

/* The same of types other than K: fewer of what follows attention until its own products begin; of blocks of
 * 32 columns more of what is long. */
static void items_ahead(struct chain_step *s, bool attended)
{
    const int32_t all = chain_tuning.items / 7, tile = (int32_t)s->tile;
    if (s->kind == CHAIN_32)
        s->before = s->ahead = all * (s->gated ? 10 : s->norm ? 6 : attended ? 5 : 9) / tile;
    if (attended) s->before = all * 3 / tile;
    if (s->before < 1) s->before = 1;
    s->bring = 0; /* items_beside::early has its own */
}

/* Of 256 columns that a warp keeps of a row that is normed, at most. */
static int32_t norm_blocks(const struct chain_step *s)
{
    return s->units > 8 * CHAIN_NORM_BLOCKS * CHAIN_WARPS ? CHAIN_K_NORM_BLOCKS : CHAIN_NORM_BLOCKS;
}
/* The tiles of a product that is not of K types. i: which step s is. */
static void tile_items(struct chain_step *s, int32_t i, bool far)
{
    s->tile = tile_bytes(s);
    s->own = s->spread                 ? 0
             : s->kind != CHAIN_32     ? s->slices % CHAIN_WARPS == 0
             : CHAIN_WARPS % s->slices ? 0
                                       : CHAIN_WARPS / s->slices;
    if (s->kind == CHAIN_32 && s->norm && s->slice_units > 8 * norm_blocks(s) * s->own) s->own = 0;
    if (i && s->kind == CHAIN_32 && !s->norm && (s[-1].n_m ? s[-1].members == 4 : !far)) handed_rounded(s);
}

/* The tiles of a product of K types, and what the kernel is told of it. near: attention is near_keys. */
static void tile_k(struct chain_step *s, int blocks, bool near)
{
    s->flags = (s->gated ? CHAIN_GATED : 0) | (s->old ? CHAIN_OLD : 0) | (s->kept ? CHAIN_KEPT : 0) |
               (s->keep ? CHAIN_KEEPS : 0) | (s->pass_on ? CHAIN_PASS : 0) | (s->split ? CHAIN_SPLIT : 0);
    for (int32_t j = 0; j < s->n_m; j++) s->flags |= s->m[j].out ? CHAIN_OUT : 0;
    const bool projects = near && s->n_m > 1 && !s->gated && !s->split; /* q, k, v */
    if (writes_early(s, blocks) || (projects && s->pairs > blocks)) s->flags |= CHAIN_EARLY;
    /* Does each warp round what it multiplies, so that none waits for another in between? Rows that are
     * normed are taken by units in turn. */
    s->own = s->split                                 ? s->rounds == 1 && rounds_own(s)
             : s->d.what || s->units % s->per         ? 0
             : s->norm && s->units % CHAIN_WARPS == 0 ? s->rounds + (s->rest ? 1 : 0)
             : pairs_a_block(s, blocks) == 1          ? 1
                                                      : 0;
    s->tile = tile_bytes(s);
    if (projects && s->cuts <= 32 && least_tile(s) < s->tile) s->flags |= CHAIN_MIXED;
}

/* Bytes of a leaf of keys or values, of all heads or of eight of more, in shared memory. */
static uint32_t code_tile_bytes(const struct chain_step *s, bool value)
{
    const bool whole = s->n_kv <= CHAIN_HEADS;
    const struct kv_layout *y = kv_layout_of(s->m[value].type);
    const int32_t head = CHAIN_HEAD * (y->low + y->high) / 8 + CHAIN_HEAD / y->group * 2,
                  row = ATTN_CODES_ROW((whole ? s->n_kv : CHAIN_HEADS) * head);
    return (uint32_t)(ATTN_CODES_LEAF(CHAIN_HEAD) * row +
                      (ATTN_CODES_LEAF(CHAIN_HEAD) >> ATTN_CODES_RUN(row, whole)) *
                          ATTN_CODES_PAD(row, whole, value));
}
/* Its tile; how many heads a set of warps has: up to eight; two or four where no more than three quarters of
 * the blocks have a set by that. What sets share out are classes, of small nodes beside large ones two at a
 * time. */
static void tile_codes(struct chain_step *s, int blocks)
{
    const int32_t shares = code_shares(ATTN_CODES_NODE(0, 64 * s->rounds - 1) + 1),
                  want = chain_tuning.code_heads;
    s->far = s->n_kv < CHAIN_HEADS ? s->n_kv : CHAIN_HEADS;
    for (int32_t heads = 4; heads > 1; heads /= 2)
        if (heads < s->far && s->n_kv % heads == 0 &&
            (want ? heads >= want : 4 * shares * (s->n_kv / heads) <= 3 * blocks))
            s->far = heads;
    const uint32_t k = code_tile_bytes(s, false), v = code_tile_bytes(s, true);
    s->tile = k > v ? k : v;
}
/* The tiles of all steps: the least bytes that one may have, 0: it does not go. holds: the ring has a place
 * for keys and values of a short context (near_items). */
static uint32_t tile_steps(struct chain_state *c, int32_t count, int blocks, bool near, bool holds,
                           bool *early)
{
    const bool far = c->attends && c->far;
    uint32_t least = UINT32_MAX;
    for (int32_t i = 0; i < count; i++) {
        struct chain_step *s = &c->step[i];
        const bool held = s->n_m == 0 && !far; /* a place in the ring, in near_items alone */
        if (held && (!holds || c->nets)) continue;
        if (held) {
            s->tile = (uint32_t)CHAIN_KEYS_BYTES;
        } else if (s->n_m == 0 && c->coded) {
            tile_codes(s, blocks);
        } else if (s->n_m == 0) { /* keys and values of a long context as tiles of the ring of bytes */
            s->far = 2;
            s->tile = 16u * (uint32_t)s->far * (CHAIN_HEAD * 2);
        } else if (s->kind != CHAIN_K) {
            tile_items(s, i, far);
        } else {
            *early |= writes_early(s, blocks);
            tile_k(s, blocks, near);
        }
        s->per_tile = 1.0f / (float)s->tile;
        const uint32_t tile = s->n_m && s->kind == CHAIN_K ? tile_at_least(s) : s->tile;
        if (!held && tile < least) least = tile;
    }
    return least;
}

/* How far each step's tiles are asked for ahead; false: a ring of these has too few. most: tiles at once;
 * pace: with narrow_ahead. */
static bool ahead_of_steps(struct chain_state *c, int32_t count, uint32_t ring, int32_t most, bool holds,
                           bool pace)
{
    const bool far = c->attends && c->far;
    for (int32_t i = 0; i < count; i++) {
        struct chain_step *s = &c->step[i];
        if (s->n_m == 0 && !far && (!holds || c->nets)) continue;
        s->cap_tiles = (int32_t)(ring / s->tile);
        if (s->n_m == 0 && !far) {
            if (s->cap_tiles < 2) return false;
            continue;
        }
        if (s->cap_tiles < (s->n_m || !c->coded ? 4 : 2)) return false;
        s->ahead = (!s->n_m                       ? chain_tuning.far_ahead
                    : s->kind != CHAIN_K          ? chain_tuning.items
                    : c->op[i].head               ? chain_tuning.head_ahead
                    : c->gemma                    ? chain_tuning.wide_ahead
                    : c->wide && !c->nets && !far ? chain_tuning.rows_ahead
                                                  : chain_tuning.k_ahead) /
                   (int32_t)tile_at_least(s);
        s->before = s->ahead;
        if (pace && s->n_m && !c->op[i].head) narrow_ahead(s, i && !s[-1].n_m);
        if (s->n_m && s->kind != CHAIN_K) items_ahead(s, i && !s[-1].n_m);
        if (s->ahead > most || (!s->n_m && c->coded)) s->ahead = 0;
    }
    return true;
}

/* The ring, and its tiles; smem: as chain_lay_out has it. Returns bytes with the ring, or 0. */
size_t chain_lay_out_ring(const struct cuda_device *dev, struct chain_state *c, int32_t count,
                          struct chain_args *a, int blocks, size_t smem)
{
    const bool far = c->attends && c->far;
    const uint32_t row = a->terms - a->act, rest = a->keys - a->act, keys = (uint32_t)smem - a->keys,
                   net = c->nets ? ((uint32_t)CHAIN_DELTA_BYTES + 127) / 128 * 128 : posts_bytes(c, count),
                   before = CHAIN_K_RING + (has_grids(c, count) ? CHAIN_GRID_PAGE : 0) + (far ? 1024 : 0),
                   all = before + rest + keys + net + grid_points_of(c, count, &a->grids, 0) + 512;
    const bool items = has_items(c, count), pairs = has_pairs(c, count), held = items && !pairs;
    bool early = false;
    if (all >= (uint32_t)dev->smem_block) return 0;
    /* Keys beside the ring, or in it beside K types alone: outputs come early. */
    const bool near = c->attends && !c->gemma && !held && (far ? !items : !keys);
    a->ring = ((uint32_t)dev->smem_block - all) / 1024 * 1024;
    a->act = before + a->ring;
    a->terms = a->act + row;
    a->keys = a->act + rest;
    const uint32_t least = tile_steps(c, count, blocks, near, held, &early);
    if (!least) return 0;
    /* A tile's barrier is another's that is CHAIN_TILES later: both are never in the ring. */
    if (a->ring / least > CHAIN_TILES - 4) a->ring = (CHAIN_TILES - 4) * least / 1024 * 1024;
    const bool pace = early && !c->nets && !c->gemma && !c->wide && !held && (!far || near);
    if (!ahead_of_steps(c, count, a->ring, CHAIN_TILES - 4 - (int32_t)(a->ring / least), held, pace))
        return 0;
    if (a->split || c->nets || (items && !(pairs && all_k(c, count)))) spread(c, count, blocks);
    a->net = a->keys + keys;
    return a->net + net + grid_points_of(c, count, &a->grids, a->net + net - CHAIN_GRID_AT);
}

enum chain_form chain_form_of(const struct chain_state *c, int32_t count, const struct chain_args *a)
{
    const bool far = c->attends && c->far, items = has_items(c, count);
    bool early = false, low = false;
    for (int32_t i = 0; i < count; i++) {
        early |= (c->step[i].flags & CHAIN_EARLY) != 0;
        low |= chain_is_low(&c->step[i]);
    }
    const bool grids = has_grids(c, count), k = all_k(c, count);
    if (grids && c->nets) return CHAIN_NETS_GRIDS;
    if (grids && k) return !far ? CHAIN_GRIDS : c->coded ? CHAIN_GRIDS_CODES : CHAIN_GRIDS_FAR;
    if (grids) return !far ? CHAIN_GRIDS_ITEMS : c->coded ? CHAIN_GRIDS_ITEMS_CODES : CHAIN_GRIDS_ITEMS_FAR;
    if (has_pairs(c, count)) return CHAIN_KS;
    if (c->nets && items) return low ? CHAIN_NETS_LOW : CHAIN_NETS_ITEMS;
    if (c->nets) return a->split ? CHAIN_NETS_SHARED : CHAIN_NETS;
    if (c->gemma) return CHAIN_GEMMA;
    if (far && c->coded) return low ? CHAIN_LOW_CODES : items ? CHAIN_ITEMS_CODES : CHAIN_CODES;
    if (items && far) return low ? CHAIN_LOW_FAR : CHAIN_ITEMS_FAR;
    if (items) return low ? CHAIN_LOW : CHAIN_ITEMS;
    return far ? CHAIN_FAR : a->split ? CHAIN_SHARED : early ? CHAIN_PAIRS : CHAIN_FEW;
}
