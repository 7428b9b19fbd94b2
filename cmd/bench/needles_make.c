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
    AGAIN, /* a record whose key was written before; AGAIN + 1: twice, AGAIN + 2: oftener */
    KEY_0 = 16,
    KEYS = 240,
    VALUE_0 = 256,
    VALUES = 256
};
enum { UNIT = 6, UNITS = 12, GROUP = NEEDLE_GROUP, MOST_UNITS = (NEEDLE_MOST / GROUP + 1) * UNITS };
enum { BLOCK = 128, SINK = 2, WINDOW = 4 };
enum { BESIDE = 7 };                            /* records of its section on either side of evidence */
enum { SECTION_LEAST = 16, SECTION_MOST = 32 }; /* records of a section */
enum { ALONE = 4 };                             /* groups, each with a question or a copy */
enum { DECOY_POINTERS = 12, DECOY_WRITES = 8 }; /* of 100 records that are nobody's evidence */

const char *const needle_names[NEEDLE_TASKS] = {"records", "keys",   "last", "values",
                                                "chains",  "copies", "turns"};

struct unit {
    int32_t key[2], value[3];
    bool span, used, settled; /* part of a span; evidence, or its key's; beside evidence */
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

/* Records under keys that are each there once; sections of some 24 share the first half. */
static void fill_body(struct maker *m)
{
    int32_t first[KEYS], second[KEYS], section = 0, left = SECTION_LEAST;
    for (int32_t i = 0; i < KEYS; i++) first[i] = second[i] = KEY_0 + i;
    shuffle(m, first, KEYS);
    shuffle(m, second, KEYS);
    m->spare = first[KEYS - 1];
    for (int32_t i = 0; i < m->n; i++) {
        if (left-- == 0) {
            section++;
            left = SECTION_LEAST - 1 + (int32_t)draw(m, SECTION_MOST - SECTION_LEAST + 1);
        }
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

/* What stands beside it is nobody's yet. */
static bool has_room(const struct maker *m, int32_t u)
{
    const int32_t low = u < BESIDE ? 0 : u - BESIDE, high = u + BESIDE < m->n ? u + BESIDE : m->n - 1;
    return !m->unit[low].settled && !m->unit[u].settled && !m->unit[high].settled;
}

/* A unit near there that is nobody's and at or behind `from`: one that begins a block, lies in its middle,
 * ends it or lies across its end, by turns, if there is such. */
static int32_t place(struct maker *m, int32_t depth, int32_t edge, int32_t from)
{
    static const int32_t offset[4] = {0, 62, BLOCK - UNIT, BLOCK - 2};
    const int32_t near = at_depth(m, depth);
    int32_t best = -1;
    bool roomy = false;
    for (int32_t i = 0; i < 2 * m->n; i++) { /* outwards: the first that fits, else the nearest with room */
        const int32_t u = i % 2 ? near - (i + 1) / 2 : near + i / 2;
        if (u < from || u >= m->n || m->unit[u].span || m->unit[u].used) continue;
        const bool room = has_room(m, u), fits = room && (m->pad + u * UNIT) % BLOCK == offset[edge % 4];
        if (best < 0 || fits || (room && !roomy)) best = u, roomy = room;
        if (fits || (roomy && i > BLOCK)) break;
    }
    m->unit[best].used = true;
    return best;
}

/* Any unit below `below` that is nobody's; -1: there is none. */
static int32_t some_unit(struct maker *m, int32_t from, int32_t below)
{
    for (int try = 0; try < 1000 && below > from; try++) {
        const int32_t u = from + (int32_t)draw(m, (uint32_t)(below - from));
        if (m->unit[u].span || m->unit[u].used || (try < 200 && !has_room(m, u))) continue;
        m->unit[u].used = true;
        return u;
    }
    return -1;
}

static void write_again(struct maker *m, int32_t unit, int32_t root)
{
    memcpy(m->unit[unit].key, m->unit[root].key, sizeof m->unit[unit].key);
}

static bool has_key(const struct maker *m, int32_t first, int32_t second)
{
    for (int32_t i = 0; i < m->n; i++)
        if (m->unit[i].key[0] == first && m->unit[i].key[1] == second) return true;
    return false;
}

/* Evidence stands in its section: n units from `unit` on have BESIDE records on either side that share the
 * first half of their key, and spans there are of the section too. A lone record is not what means of blocks
 * can tell (docs/sparse.md). */
static void settle(struct maker *m, int32_t unit, int32_t n)
{
    const int32_t first = m->unit[unit].key[0];
    for (int32_t i = unit - BESIDE; i < unit + n + BESIDE; i++) {
        if (i < 0 || i >= m->n || m->unit[i].used || m->unit[i].settled) continue;
        struct unit *u = &m->unit[m->unit[i].span ? i / UNITS * UNITS : i];
        m->unit[i].settled = true;
        if (u->key[0] == first || u->used) continue;
        for (int try = 0; try < 9 && has_key(m, first, u->key[1]); try++)
            u->key[1] = KEY_0 + (int32_t)draw(m, KEYS);
        if (!has_key(m, first, u->key[1])) u->key[0] = first;
    }
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

/* The question at m->to has n values that are read of a unit, or of a span that begins there. */
static void add_read(struct maker *m, int32_t n, int32_t unit)
{
    struct needle_prompt *p = m->p;
    p->read[p->n_reads++] =
        (struct needle_read){.row = (int32_t)(m->to - p->ids) + 2, .from = m->pad + unit * UNIT + 3, .n = n};
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
    add_read(m, 3, unit);
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
        for (int32_t k = 0; k < together; k++) {
            const int32_t u = place(m, (depth + 5 * k) % NEEDLE_DEPTHS, i + number + k, 0);
            settle(m, u, 1);
            ask(m, u, false);
        }
        end_case(m, depth);
    }
}

static void ask_last(struct maker *m, int32_t depth, int32_t edge)
{
    const int32_t writes = 2 + (int32_t)draw(m, 3), last = place(m, depth, edge, 8),
                  root = some_unit(m, 0, last);
    if (root >= 0) write_again(m, last, root), settle(m, root, 1);
    settle(m, last, 1);
    for (int32_t w = 2; w < writes && root >= 0; w++) {
        const int32_t u = some_unit(m, root + 1, last);
        if (u < 0) continue;
        write_again(m, u, root);
        settle(m, u, 1);
    }
    fill_records(m, UNITS - 1);
    ask(m, last, false);
}

static void ask_values(struct maker *m, int32_t depth, int32_t edge)
{
    int32_t u[4] = {place(m, depth, edge, 0)}, root = 0;
    for (int w = 1; w < 4; w++) u[w] = some_unit(m, 0, m->n);
    for (int w = 1; w < 4; w++) root = u[w] < u[root] ? w : root;
    for (int w = 0; w < 4; w++)
        if (w != root) write_again(m, u[w], u[root]);
    for (int w = 0; w < 4; w++) settle(m, u[w], 1);
    fill_records(m, UNITS - 1);
    struct needle_answer *a = add_answer(m, (int32_t)(m->to - m->p->ids) + 2, 1);
    a->several = true;
    for (int w = 0; w < 4; w++) a->one_of[w] = m->unit[u[w]].value[0];
    const int32_t text[UNIT] = {
        ASK_ALL, m->unit[u[0]].key[0], m->unit[u[0]].key[1], a->one_of[draw(m, 4)], PAD, PAD};
    for (int w = 0; w < 4; w++) add_read(m, 1, u[w]);
    memcpy(m->to, text, sizeof text);
    m->to += UNIT;
}

static void ask_chain(struct maker *m, int32_t depth, int32_t edge, int32_t hops)
{
    int32_t u[5];
    u[0] = place(m, depth, edge, 4); /* what is asked; what it points to stands before it */
    settle(m, u[0], 1);
    for (int32_t h = 1; h <= hops; h++) {
        u[h] = some_unit(m, 0, u[h - 1]);
        if (u[h] < 0) u[h] = place(m, 0, 0, 0);
        settle(m, u[h], 1);
        point(m, u[h - 1], u[h]);
    }
    fill_records(m, UNITS - 1 - hops);
    for (int32_t h = 0; h <= hops; h++) ask(m, u[h], h > 0);
}

static bool group_is_used(const struct maker *m, int32_t g)
{
    bool used = false;
    for (int32_t j = 0; j < UNITS; j++) used |= m->unit[g * UNITS + j].used;
    return used;
}

/* A span stands where records stood. */
static void ask_copy(struct maker *m, int32_t depth, int32_t i)
{
    const int32_t groups = m->n / UNITS;
    int32_t g = at_depth(m, depth) / UNITS;
    while (group_is_used(m, g)) g = (g + 1) % groups;
    struct unit *u = &m->unit[g * UNITS];
    int32_t *span = m->p->ids + m->pad + g * GROUP;
    span[0] = SPAN, span[1] = u->key[0], span[2] = KEY_0 + (i * 60 + (int32_t)draw(m, 60)) % KEYS;
    for (int32_t j = 3; j < GROUP; j++) span[j] = VALUE_0 + (int32_t)draw(m, VALUES);
    for (int32_t j = 0; j < UNITS; j++) u[j].span = u[j].used = true;
    settle(m, g * UNITS, UNITS);
    memcpy(m->to, span, GROUP * sizeof *span);
    m->to[0] = COPY;
    add_answer(m, (int32_t)(m->to - m->p->ids) + 2, GROUP - 3);
    add_read(m, GROUP - 3, g * UNITS);
    m->to += GROUP;
}

/* ALONE cases, each in a group of its own. */
static void ask_alone(struct maker *m, enum needle_task task, int32_t number)
{
    for (int32_t i = 0; i < ALONE; i++) {
        const int32_t depth = next_depth(m, number, ALONE);
        switch (task) {
        case NEEDLE_LAST: ask_last(m, depth, i + number); break;
        case NEEDLE_VALUES: ask_values(m, depth, i + number); break;
        case NEEDLE_CHAINS: ask_chain(m, depth, i + number, 1 + (i + number / 3) % 4); break;
        default: ask_copy(m, depth, i); break;
        }
        end_case(m, depth);
    }
}

/* ---- all of it ---- */

/* Spans that nobody asks for, one group in seven. */
static void fill_spans(struct maker *m)
{
    for (int32_t g = 3; g < m->n / UNITS; g += 7)
        for (int32_t j = 0; j < UNITS; j++) m->unit[g * UNITS + j].span = true;
}

/* Chains and keys written again that nobody asks for. */
static void fill_decoys(struct maker *m)
{
    for (int32_t i = 1; i < m->n; i++) {
        const uint32_t kind = draw(m, 100), to = draw(m, (uint32_t)i);
        if (m->unit[i].span || m->unit[i].used || m->unit[to].span || m->unit[to].used) continue;
        if (kind < DECOY_POINTERS)
            point(m, i, (int32_t)to);
        else if (kind < DECOY_POINTERS + DECOY_WRITES && !m->unit[i].settled)
            write_again(m, i, (int32_t)to);
    }
}

static int32_t writes_before(const struct maker *m, int32_t unit)
{
    int32_t n = 0;
    for (int32_t i = 0; i < unit; i++)
        n += !m->unit[i].span && m->unit[i].key[0] == m->unit[unit].key[0] &&
             m->unit[i].key[1] == m->unit[unit].key[1];
    return n;
}

static void write_body(struct maker *m)
{
    for (int32_t i = 0; i < m->n; i++) {
        const struct unit *u = &m->unit[i];
        int32_t *to = m->p->ids + m->pad + i * UNIT;
        const int32_t before = u->span ? 0 : writes_before(m, i);
        const int32_t mark = before == 0 ? RECORD : before < 4 ? AGAIN + before - 1 : AGAIN + 2;
        const int32_t text[UNIT] = {mark, u->key[0], u->key[1], u->value[0], u->value[1], u->value[2]};
        if (!u->span) memcpy(to, text, sizeof text);
        if (u->span && !u->used)
            for (int j = 0; j < UNIT; j++) to[j] = VALUE_0 + (int32_t)draw(m, VALUES);
        if (u->span && !u->used && i % UNITS == 0)
            to[0] = SPAN, to[1] = u->key[0], to[2] = KEY_0 + (int32_t)draw(m, KEYS);
    }
}

static int32_t question_groups(enum needle_task task)
{
    return task == NEEDLE_KEYS ? 1 : ALONE;
}

/* The body of a prompt whose questions take so many groups. */
static void begin(struct maker *m, struct needle_prompt *p, int32_t length, uint64_t state, int32_t questions)
{
    *p = (struct needle_prompt){.ids = p->ids, .length = length};
    m->p = p, m->asked = 0, m->state = state;
    m->pad = 2 + 2 * (int32_t)draw(m, GROUP / 2);
    const int32_t groups = (length - m->pad) / GROUP - questions;
    m->n = groups * UNITS;
    p->body = m->pad + groups * GROUP;
    m->to = p->ids + p->body;
    for (int32_t i = 0; i < length; i++) p->ids[i] = PAD;
    fill_body(m);
    fill_spans(m);
}

static void end(struct maker *m)
{
    fill_decoys(m);
    write_body(m);
    m->p->n_cases = m->asked;
    fill_records(m, (int32_t)(m->p->ids + m->p->length - m->to) / UNIT); /* nothing is asked of the rest */
}

void needle_make(struct needle_prompt *p, enum needle_task task, int32_t length, uint64_t seed,
                 int32_t number, int32_t *ids)
{
    static struct maker m; /* large; the suite makes one prompt at a time */
    p->ids = ids;
    begin(&m, p, length,
          seed + 1000003u * (uint64_t)task + 7919u * (uint64_t)number + ((uint64_t)length << 40),
          question_groups(task));
    switch (task) {
    case NEEDLE_KEYS: ask_records(&m, number, 8); break;
    case NEEDLE_RECORDS:
    case NEEDLE_TURNS: ask_records(&m, number, 1); break;
    default: ask_alone(&m, task, number);
    }
    end(&m);
}
