/* lookup.c - see lookup.h.
 *
 * Every run of `least` tokens (a gram) that has a follower is in a table by its newest end; the ends before
 * it with the same gram hang behind it in a list. The table holds grams, not hashes: a slot's gram is read
 * where it ends, so a list has the places of one gram alone and LOOKUP_TRIES counts places. Slots are twice
 * the tokens at least. A gram is added when its follower comes, and taken back in the opposite order, so the
 * slot that is freed is the last that was taken, and no probe went past it. */
#include "lookup.h"

#include <string.h>
#include "../base/mem.h"

struct grams {
    const int32_t *ids;
    int32_t n;       /* tokens; grams that end before the last one are in the table */
    int32_t length;  /* of a gram */
    uint32_t mask;   /* slots - 1, a power of two less one */
    int32_t *newest; /* [slots] end of the newest place of a gram; 0: a free slot */
    int32_t *before; /* [room] by end: the place before it of the same gram; 0: none */
};

struct lookup_text {
    struct grams g;
};

struct lookup {
    struct grams g;
    int32_t *ids; /* [room] g.ids */
    int32_t room;
    const struct lookup_text *text;
};

/* ---- the table ---- */

static uint64_t hash_of(const int32_t *gram, int32_t n)
{
    uint64_t h = 0x9e3779b97f4a7c15u;
    for (int32_t i = 0; i < n; i++) {
        h = (h ^ (uint32_t)gram[i]) * 0xbf58476d1ce4e5b9u;
        h ^= h >> 29;
    }
    return h ^ h >> 32;
}

/* The slot of a gram, or the free one where it would go. */
static int32_t *slot_of(const struct grams *g, const int32_t *gram)
{
    const size_t bytes = (size_t)g->length * sizeof *gram;
    uint32_t i = (uint32_t)hash_of(gram, g->length) & g->mask;
    while (g->newest[i] && memcmp(g->ids + g->newest[i] - g->length, gram, bytes)) i = (i + 1) & g->mask;
    return &g->newest[i];
}

/* The token at g->n stands in ids: the gram before it has a follower. */
static void add(struct grams *g)
{
    const int32_t end = g->n++;
    if (end < g->length) return;
    int32_t *slot = slot_of(g, g->ids + end - g->length);
    g->before[end] = *slot;
    *slot = end;
}

static void take_back(struct grams *g)
{
    const int32_t end = --g->n;
    if (end >= g->length) *slot_of(g, g->ids + end - g->length) = g->before[end];
}

static int check(int64_t n, int32_t least, struct err *e)
{
    if (least < 1 || least > LOOKUP_MATCH)
        return err_set(e, ERR_USAGE, "shortest match of a look-up out of range (expected 1 to %d, got %d)",
                       LOOKUP_MATCH, least);
    if (n < 0 || n > LOOKUP_MAX)
        return err_set(e, ERR_USAGE, "too many tokens to look up in (expected at most %d, got %lld)",
                       LOOKUP_MAX, (long long)n);
    return 0;
}

static int open_grams(struct grams *g, int64_t room, int32_t least, struct err *e)
{
    size_t slots = 16;
    if (check(room, least, e)) return -1;
    while (slots < 2 * (size_t)room) slots *= 2;
    *g = (struct grams){.length = least, .mask = (uint32_t)(slots - 1)};
    g->newest = mem_calloc(slots, sizeof *g->newest);
    g->before = mem_calloc((size_t)room + 1, sizeof *g->before);
    if (g->newest && g->before) return 0;
    return err_set(e, ERR_IO, "out of memory (look-ups in %lld tokens)", (long long)room);
}

static void close_grams(struct grams *g)
{
    mem_free(g->newest);
    mem_free(g->before);
}

/* ---- searching ---- */

struct place {
    int32_t end, match; /* match 0: none */
};

/* How many of the last tokens before a and b are equal, of most; the first `known` are. */
static int32_t match_of(const int32_t *a, const int32_t *b, int32_t known, int32_t most)
{
    while (known < most && a[-1 - known] == b[-1 - known]) known++;
    return known;
}

/* The best place of g for n tokens that end before tail. */
static struct place search(const struct grams *g, const int32_t *tail, int32_t n)
{
    struct place best = {0, 0};
    if (n < g->length) return best;
    int32_t end = *slot_of(g, tail - g->length);
    const int32_t longest = n < LOOKUP_MATCH ? n : LOOKUP_MATCH;
    for (int tries = 0; end && tries < LOOKUP_TRIES && best.match < longest; tries++) {
        const int32_t most = end < longest ? end : longest;
        /* A longer match has the token before that of the best one. */
        if (most > best.match && g->ids[end - 1 - best.match] == tail[-1 - best.match]) {
            const int32_t match = match_of(g->ids + end, tail, g->length, most);
            if (match > best.match) best = (struct place){end, match};
        }
        end = g->before[end];
    }
    return best;
}

/* Up to most tokens behind an end; where the tokens of g end, those that were proposed follow. */
static int32_t followers(const struct grams *g, int32_t end, int32_t most, int32_t *ids, int into_itself)
{
    const int32_t there = g->n - end;
    int32_t n = most < there ? most : there;
    memcpy(ids, g->ids + end, (size_t)n * sizeof *ids);
    for (; into_itself && n < most; n++) ids[n] = ids[n - there];
    return n;
}

int32_t lookup_find(const struct lookup *x, int32_t most, int32_t *ids, int32_t *match)
{
    const int32_t *tail = x->ids + x->g.n;
    const struct place own = search(&x->g, tail, x->g.n);
    struct place other = {0, 0};
    if (x->text && own.match < LOOKUP_MATCH) other = search(&x->text->g, tail, x->g.n);
    const int from_text = other.match > own.match;
    *match = from_text ? other.match : own.match;
    if (!*match || most < 1) return 0;
    return from_text ? followers(&x->text->g, other.end, most, ids, 0)
                     : followers(&x->g, own.end, most, ids, 1);
}

/* ---- texts and streams ---- */

int lookup_text_open(struct lookup_text **out, const int32_t *ids, int64_t n, int32_t least, struct err *e)
{
    struct lookup_text *t = *out = mem_calloc(1, sizeof *t);
    if (!t) return err_set(e, ERR_IO, "out of memory (look-ups)");
    if (open_grams(&t->g, n, least, e)) {
        lookup_text_close(t);
        *out = NULL;
        return -1;
    }
    t->g.ids = ids;
    while (t->g.n < n) add(&t->g);
    return 0;
}

void lookup_text_close(struct lookup_text *t)
{
    if (t) close_grams(&t->g);
    mem_free(t);
}

int lookup_open(struct lookup **out, int32_t room, int32_t least, const struct lookup_text *text,
                struct err *e)
{
    struct lookup *x = *out = mem_calloc(1, sizeof *x);
    int bad = !x;
    if (bad) return err_set(e, ERR_IO, "out of memory (look-ups)");
    x->text = text;
    x->room = room;
    if (text && text->g.length != least)
        bad = err_set(e, ERR_USAGE,
                      "the text of look-ups was opened for another shortest match (expected %d, got %d)",
                      least, text->g.length);
    bad = bad || open_grams(&x->g, room, least, e);
    if (!bad && !(x->ids = mem_alloc(((size_t)room + 1) * sizeof *x->ids)))
        bad = err_set(e, ERR_IO, "out of memory (look-ups in %d tokens)", room);
    if (bad) {
        lookup_close(x);
        *out = NULL;
        return -1;
    }
    x->g.ids = x->ids;
    return 0;
}

void lookup_close(struct lookup *x)
{
    if (!x) return;
    close_grams(&x->g);
    mem_free(x->ids);
    mem_free(x);
}

int lookup_set(struct lookup *x, const int32_t *ids, int32_t n, int32_t same, struct err *e)
{
    const int32_t both = n < x->g.n ? n : x->g.n;
    if (n > x->room)
        return err_set(e, ERR_USAGE, "more tokens than look-ups have room for (expected at most %d, got %d)",
                       x->room, n);
    while (same < both && x->ids[same] == ids[same]) same++;
    while (x->g.n > both || x->g.n > same) take_back(&x->g);
    while (x->g.n < n) {
        x->ids[x->g.n] = ids[x->g.n];
        add(&x->g);
    }
    return 0;
}
