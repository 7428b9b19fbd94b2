/* needles_make.c - see needles_make.h. */
#include "needles_make.h"

#include <string.h>

enum {
    PAD = 1,
    RECORD,
    ASK,
    ASK_ALL,
    POINTER,
    SPAN,
    COPY,
    KEY_0 = 16,
    KEYS = 240,
    VALUE_0 = 256,
    VALUES = 256
};
enum { UNIT = 6, UNITS = 12, GROUP = NEEDLE_GROUP, MOST_UNITS = (NEEDLE_MOST / GROUP + 1) * UNITS };
enum { BLOCK = 128, SINK = 2, WINDOW = 4 };
enum { ALONE = 4 };                             /* groups, each with a question or a copy */
enum { DECOY_POINTERS = 12, DECOY_WRITES = 8 }; /* of 100 records that are nobody's evidence */

const char *const needle_names[NEEDLE_TASKS] = {"records", "keys",   "last", "values",
                                                "chains",  "copies", "turns"};

struct unit {
    int32_t key[2], value[3];
    bool span, used; /* part of a span; evidence, or its key's */
};

struct maker {
    struct needle_prompt *p;
    uint64_t state;
    int32_t pad, n; /* units before the questions */
    int32_t asked;  /* cases so far */
    int32_t spare;  /* half of a key that no record has */
    int32_t *to;    /* where the next question stands */
    struct unit unit[MOST_UNITS];
};

static uint32_t draw(struct maker *m, uint32_t below)
{
    uint64_t z = m->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 33) % below;
}

static void shuffle(struct maker *m, int32_t *x, int32_t n)
{
    for (int32_t i = n - 1; i > 0; i--) {
        const int32_t j = (int32_t)draw(m, (uint32_t)i + 1), y = x[i];
        x[i] = x[j], x[j] = y;
    }
}

/* Records under keys that are each there once; sections of some 32 share the first half. */
static void fill_body(struct maker *m)
{
    int32_t first[KEYS], second[KEYS], section = 0;
    for (int32_t i = 0; i < KEYS; i++) first[i] = second[i] = KEY_0 + i;
    shuffle(m, first, KEYS);
    shuffle(m, second, KEYS);
    m->spare = first[KEYS - 1];
    for (int32_t i = 0; i < m->n; i++) {
        section += draw(m, 32) == 0;
        m->unit[i] = (struct unit){.key = {first[section % KEYS], second[i % KEYS]}};
        for (int j = 0; j < 3; j++) m->unit[i].value[j] = VALUE_0 + (int32_t)draw(m, VALUES);
    }
}

/* ---- where evidence lies ---- */

/* The first unit of a depth. */
static int32_t at_depth(const struct maker *m, int32_t depth)
{
    const int32_t asked = (m->pad + m->n * UNIT) / BLOCK, last = (asked - WINDOW + 1) * BLOCK;
    const int32_t sink = SINK * BLOCK + 1;
    const int32_t token = depth == 0                   ? 0
                          : depth == 1                 ? sink
                          : depth == NEEDLE_DEPTHS - 2 ? last - BLOCK / 2
                          : depth == NEEDLE_DEPTHS - 1
                              ? m->pad + m->n * UNIT
                              : sink + (last - sink) * (depth - 1) / (NEEDLE_DEPTHS - 3);
    const int32_t unit = (token - m->pad) / UNIT;
    return unit < 0 ? 0 : unit >= m->n ? m->n - 1 : unit;
}

/* A unit near there that is nobody's and at or behind `from`: one that begins a block, lies in its middle,
 * ends it or lies across its end, by turns, if there is such. */
static int32_t place(struct maker *m, int32_t depth, int32_t edge, int32_t from)
{
    static const int32_t offset[4] = {0, 62, BLOCK - UNIT, BLOCK - 2};
    const int32_t near = at_depth(m, depth);
    int32_t best = -1;
    for (int32_t i = 0; i < 2 * m->n; i++) { /* outwards: the first that fits, else the nearest of all */
        const int32_t u = i % 2 ? near - (i + 1) / 2 : near + i / 2;
        if (u < from || u >= m->n || m->unit[u].span || m->unit[u].used) continue;
        const bool fits = (m->pad + u * UNIT) % BLOCK == offset[edge % 4];
        if (best < 0 || fits) best = u;
        if (fits || i > BLOCK) break;
    }
    m->unit[best].used = true;
    return best;
}

/* Any unit below `below` that is nobody's; -1: there is none. */
static int32_t some_unit(struct maker *m, int32_t from, int32_t below)
{
    for (int try = 0; try < 1000 && below > from; try++) {
        const int32_t u = from + (int32_t)draw(m, (uint32_t)(below - from));
        if (m->unit[u].span || m->unit[u].used) continue;
        m->unit[u].used = true;
        return u;
    }
    return -1;
}

static void write_again(struct maker *m, int32_t unit, int32_t root)
{
    memcpy(m->unit[unit].key, m->unit[root].key, sizeof m->unit[unit].key);
}

static void point(struct maker *m, int32_t unit, int32_t to)
{
    m->unit[unit].value[0] = m->unit[to].key[0], m->unit[unit].value[1] = m->unit[to].key[1];
    m->unit[unit].value[2] = POINTER;
}

/* ---- asking ---- */

static struct needle_answer *add_answer(struct maker *m, int32_t at, int32_t n)
{
    struct needle_answer *a = &m->p->answer[m->p->n_answers++];
    *a = (struct needle_answer){.at = at, .n = n, .of = m->asked};
    return a;
}

/* A question for a unit's key, and what stands there. follows: the whole of it is to be written. */
static void ask(struct maker *m, int32_t unit, bool follows)
{
    const struct unit *u = &m->unit[unit];
    const int32_t at = (int32_t)(m->to - m->p->ids),
                  text[UNIT] = {ASK, u->key[0], u->key[1], u->value[0], u->value[1], u->value[2]};
    memcpy(m->to, text, sizeof text);
    if (follows)
        m->p->answer[m->p->n_answers - 1].n += UNIT;
    else
        add_answer(m, at + 2, 3);
    m->to += UNIT;
}

/* Records under keys that nobody asks for. */
static void fill_records(struct maker *m, int32_t n)
{
    for (int32_t i = 0; i < n; i++, m->to += UNIT) {
        const int32_t text[3] = {RECORD, m->spare, KEY_0 + (int32_t)draw(m, KEYS)};
        memcpy(m->to, text, sizeof text);
        for (int j = 3; j < UNIT; j++) m->to[j] = VALUE_0 + (int32_t)draw(m, VALUES);
    }
}

static void end_case(struct maker *m, int32_t depth)
{
    m->p->depth[m->asked++] = depth;
}

static int32_t next_depth(const struct maker *m, int32_t number, int32_t per)
{
    return (number * per + m->asked) % NEEDLE_DEPTHS;
}

/* Questions alone among records, ALONE of them; or `together` in turn that are one. */
static void ask_records(struct maker *m, int32_t number, int32_t together)
{
    for (int32_t i = 0; i < (together > 1 ? 1 : ALONE); i++) {
        const int32_t depth = next_depth(m, number, together > 1 ? 1 : ALONE);
        fill_records(m, UNITS - together);
        for (int32_t k = 0; k < together; k++)
            ask(m, place(m, (depth + 5 * k) % NEEDLE_DEPTHS, i + number + k, 0), false);
        end_case(m, depth);
    }
}

static void ask_last(struct maker *m, int32_t number)
{
    for (int32_t i = 0; i < ALONE; i++) {
        const int32_t depth = next_depth(m, number, ALONE), writes = 2 + (int32_t)draw(m, 3);
        const int32_t last = place(m, depth, i + number, 8), root = some_unit(m, 0, last);
        if (root >= 0) write_again(m, last, root);
        for (int32_t w = 2; w < writes && root >= 0; w++) {
            const int32_t u = some_unit(m, root + 1, last);
            if (u >= 0) write_again(m, u, root);
        }
        fill_records(m, UNITS - 1);
        ask(m, last, false);
        end_case(m, depth);
    }
}

static void ask_values(struct maker *m, int32_t number)
{
    for (int32_t i = 0; i < ALONE; i++) {
        const int32_t depth = next_depth(m, number, ALONE);
        fill_records(m, UNITS - 1);
        const int32_t at = (int32_t)(m->to - m->p->ids);
        int32_t u[4] = {place(m, depth, i + number, 0)}, root = 0;
        for (int w = 1; w < 4; w++) u[w] = some_unit(m, 0, m->n);
        for (int w = 1; w < 4; w++) root = u[w] < u[root] ? w : root;
        for (int w = 0; w < 4; w++)
            if (w != root) write_again(m, u[w], u[root]);
        struct needle_answer *a = add_answer(m, at + 2, 1);
        a->several = true;
        for (int w = 0; w < 4; w++) a->one_of[w] = m->unit[u[w]].value[0];
        const int32_t text[UNIT] = {
            ASK_ALL, m->unit[u[0]].key[0], m->unit[u[0]].key[1], a->one_of[draw(m, 4)], PAD, PAD};
        memcpy(m->to, text, sizeof text);
        m->to += UNIT;
        end_case(m, depth);
    }
}

static void ask_chains(struct maker *m, int32_t number)
{
    static const int32_t hops[8] = {4, 3, 2, 1, 1, 1, 2, 2}; /* of 12 units, and 12 */
    for (int32_t i = 0; i < 8; i++) {
        const int32_t depth = next_depth(m, number, 8);
        int32_t u[5];
        u[0] = place(m, depth, i + number, 4); /* what is asked; what it points to stands before it */
        for (int32_t h = 1; h <= hops[i]; h++) {
            u[h] = some_unit(m, 0, u[h - 1]);
            if (u[h] < 0) u[h] = place(m, 0, 0, 0);
            point(m, u[h - 1], u[h]);
        }
        for (int32_t h = 0; h <= hops[i]; h++) ask(m, u[h], h > 0);
        end_case(m, depth);
    }
}

/* Spans stand where records stood. */
static void ask_copies(struct maker *m, int32_t number)
{
    const int32_t groups = m->n / UNITS;
    bool taken[MOST_UNITS / UNITS] = {false};
    for (int32_t i = 0; i < 4; i++) {
        const int32_t depth = next_depth(m, number, 4);
        int32_t g = at_depth(m, depth) / UNITS;
        while (taken[g]) g = (g + 1) % groups;
        taken[g] = true;
        int32_t *span = m->p->ids + m->pad + g * GROUP;
        span[0] = SPAN, span[1] = m->unit[g * UNITS].key[0],
        span[2] = KEY_0 + (i * 60 + (int32_t)draw(m, 60)) % KEYS;
        for (int32_t j = 3; j < GROUP; j++) span[j] = VALUE_0 + (int32_t)draw(m, VALUES);
        for (int32_t j = 0; j < UNITS; j++) m->unit[g * UNITS + j].span = true;
        memcpy(m->to, span, GROUP * sizeof *span);
        m->to[0] = COPY;
        add_answer(m, (int32_t)(m->to - m->p->ids) + 2, GROUP - 3);
        m->to += GROUP;
        end_case(m, depth);
    }
}

/* ---- all of it ---- */

/* Spans that nobody asks for, one group in seven. */
static void fill_spans(struct maker *m)
{
    for (int32_t g = 3; g < m->n / UNITS; g += 7) {
        int32_t *span = m->p->ids + m->pad + g * GROUP;
        span[0] = SPAN, span[1] = m->unit[g * UNITS].key[0], span[2] = KEY_0 + (int32_t)draw(m, KEYS);
        for (int32_t j = 3; j < GROUP; j++) span[j] = VALUE_0 + (int32_t)draw(m, VALUES);
        for (int32_t j = 0; j < UNITS; j++) m->unit[g * UNITS + j].span = true;
    }
}

/* Chains and keys written again that nobody asks for. */
static void fill_decoys(struct maker *m)
{
    for (int32_t i = 1; i < m->n; i++) {
        const uint32_t kind = draw(m, 100), to = draw(m, (uint32_t)i);
        if (m->unit[i].span || m->unit[i].used || m->unit[to].span || m->unit[to].used) continue;
        if (kind < DECOY_POINTERS)
            point(m, i, (int32_t)to);
        else if (kind < DECOY_POINTERS + DECOY_WRITES)
            write_again(m, i, (int32_t)to);
    }
}

static void write_body(struct maker *m)
{
    for (int32_t i = 0; i < m->n; i++) {
        const struct unit *u = &m->unit[i];
        const int32_t text[UNIT] = {RECORD, u->key[0], u->key[1], u->value[0], u->value[1], u->value[2]};
        if (!u->span) memcpy(m->p->ids + m->pad + i * UNIT, text, sizeof text);
    }
}

static int32_t question_groups(enum needle_task task)
{
    return task == NEEDLE_KEYS ? 1 : task == NEEDLE_CHAINS ? 2 : ALONE;
}

void needle_make(struct needle_prompt *p, enum needle_task task, int32_t length, uint64_t seed,
                 int32_t number, int32_t *ids)
{
    static struct maker m; /* large; the suite makes one prompt at a time */
    const int32_t questions = question_groups(task) * GROUP;
    *p = (struct needle_prompt){.ids = ids, .length = length};
    m.p = p, m.asked = 0;
    m.state = seed + 1000003u * (uint64_t)task + 7919u * (uint64_t)number + ((uint64_t)length << 40);
    m.pad = 2 + 2 * (int32_t)draw(&m, GROUP / 2);
    const int32_t groups = (length - m.pad - questions) / GROUP,
                  rest = length - m.pad - questions - groups * GROUP;
    m.n = groups * UNITS;
    p->body = m.pad + groups * GROUP;
    m.to = ids + p->body;
    for (int32_t i = 0; i < length; i++) ids[i] = PAD;
    fill_body(&m);
    fill_spans(&m);
    switch (task) {
    case NEEDLE_KEYS: ask_records(&m, number, 8); break;
    case NEEDLE_LAST: ask_last(&m, number); break;
    case NEEDLE_VALUES: ask_values(&m, number); break;
    case NEEDLE_CHAINS: ask_chains(&m, number); break;
    case NEEDLE_COPIES: ask_copies(&m, number); break;
    default: ask_records(&m, number, 1);
    }
    fill_decoys(&m);
    write_body(&m);
    p->n_cases = m.asked;
    m.to = ids + length - rest;
    fill_records(&m, rest / UNIT); /* nothing is asked of the rest */
}
