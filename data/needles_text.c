/* needles_text.c - texts that the model of the needle suite is trained on, made by the suite's own code.
 *
 * A library for train_sparse_needles.py:  cc -O2 -shared -fPIC -o needles_text.so needles_text.c
 * Kinds 0 to 5 are the suite's tasks, prompt by prompt. FEW: cases of all tasks, alone in groups of their
 * own. MANY: groups full of questions, whose evidence may stand alone. */
#include "../cmd/bench/needles_make.c"

enum { FEW = NEEDLE_TASKS, MANY };
enum { MOST_BLOCKS = NEEDLE_MOST / BLOCK };
enum { SOME = 4 }; /* units of a section that make a block one of the section */

struct text {
    struct maker m;
    struct needle_prompt p;
    int32_t ids[NEEDLE_MOST];
    int8_t task_of[512]; /* of cases */
    struct needle_answer answer[1024];
    struct needle_read read[2048];
    int32_t n_cases, n_answers, n_reads;
    uint8_t has[MOST_BLOCKS][NEEDLE_VOCABULARY]; /* units of a section, in part at least, that a block has */
};

/* A prompt has room for NEEDLE_CASES cases alone: what it has is moved here. */
static void gather(struct text *t, int8_t task)
{
    struct needle_prompt *p = &t->p;
    for (int32_t i = 0; i < p->n_answers; i++) {
        t->answer[t->n_answers] = p->answer[i];
        t->answer[t->n_answers++].of = t->n_cases;
    }
    for (int32_t i = 0; i < p->n_reads; i++) t->read[t->n_reads++] = p->read[i];
    t->task_of[t->n_cases++] = task;
    p->n_answers = p->n_reads = 0;
}

static void ask_one(struct text *t, int8_t task, int32_t depth, int32_t edge)
{
    struct maker *m = &t->m;
    int32_t u;
    switch (task) {
    case NEEDLE_LAST: ask_last(m, depth, edge); break;
    case NEEDLE_VALUES: ask_values(m, depth, edge); break;
    case NEEDLE_CHAINS: ask_chain(m, depth, edge, 1 + (int32_t)draw(m, 4)); break;
    case NEEDLE_COPIES: ask_copy(m, depth, (int32_t)draw(m, 4)); break;
    default:
        u = place(m, depth, edge, 0);
        settle(m, u, 1);
        fill_records(m, UNITS - 1);
        ask(m, u, false);
    }
    gather(t, task);
}

static void ask_few(struct text *t, int32_t groups)
{
    static const int8_t tasks[10] = {NEEDLE_RECORDS, NEEDLE_LAST,   NEEDLE_LAST,   NEEDLE_LAST,
                                     NEEDLE_VALUES,  NEEDLE_VALUES, NEEDLE_CHAINS, NEEDLE_COPIES,
                                     NEEDLE_COPIES,  NEEDLE_KEYS};
    struct maker *m = &t->m;
    for (int32_t g = 0; g < groups; g++) {
        const int8_t task = tasks[draw(m, 10)];
        if (task != NEEDLE_KEYS) {
            ask_one(t, task, (int32_t)draw(m, NEEDLE_DEPTHS), (int32_t)draw(m, 4));
            continue;
        }
        const int32_t depth = (int32_t)draw(m, NEEDLE_DEPTHS);
        fill_records(m, UNITS - 8);
        for (int32_t k = 0; k < 8; k++) {
            const int32_t u = place(m, (depth + 5 * k) % NEEDLE_DEPTHS, (int32_t)draw(m, 4), 0);
            settle(m, u, 1);
            ask(m, u, false);
        }
        gather(t, task);
    }
}

/* room: units that are left of a group. -> units of the question */
static int32_t ask_plain(struct text *t, int32_t room)
{
    struct maker *m = &t->m;
    const uint32_t kind = draw(m, 10);
    const int32_t u = some_unit(m, 0, m->n);
    if (u < 0) return fill_records(m, 1), 1;
    if (kind < 5) { /* the last write, or all values */
        int32_t w[4] = {u}, n = 2 + (int32_t)draw(m, 3), root = 0, last = 0;
        for (int32_t i = 1; i < n; i++) {
            const int32_t x = some_unit(m, 0, m->n);
            if (x < 0)
                n = i;
            else
                w[i] = x;
        }
        for (int32_t i = 1; i < n; i++) root = w[i] < w[root] ? i : root, last = w[i] > w[last] ? i : last;
        for (int32_t i = 0; i < n; i++)
            if (i != root) write_again(m, w[i], w[root]);
        if (kind < 4) {
            ask(m, w[last], false);
            gather(t, NEEDLE_LAST);
            return 1;
        }
        struct needle_answer *a = add_answer(m, (int32_t)(m->to - m->p->ids) + 2, 1);
        a->several = true;
        for (int32_t i = 0; i < 4; i++) a->one_of[i] = m->unit[w[i % n]].value[0];
        for (int32_t i = 0; i < n; i++) add_read(m, 1, w[i]);
        const int32_t text[UNIT] = {ASK_ALL, m->unit[u].key[0], m->unit[u].key[1], a->one_of[draw(m, 4)], PAD,
                                    PAD};
        memcpy(m->to, text, sizeof text);
        m->to += UNIT;
        gather(t, NEEDLE_VALUES);
        return 1;
    }
    int32_t hops = kind < 8 ? 0 : 1 + (int32_t)draw(m, 3), at[4] = {u};
    if (hops >= room) hops = room - 1;
    for (int32_t h = 1; h <= hops; h++) {
        at[h] = some_unit(m, 0, at[h - 1]);
        if (at[h] < 0)
            hops = h - 1;
        else
            point(m, at[h - 1], at[h]);
    }
    for (int32_t h = 0; h <= hops; h++) ask(m, at[h], h > 0);
    gather(t, hops ? NEEDLE_CHAINS : NEEDLE_RECORDS);
    return hops + 1;
}

static void ask_many(struct text *t, int32_t groups)
{
    for (int32_t g = 0; g < groups; g++) {
        if (draw(&t->m, 4) == 0) {
            ask_copy(&t->m, (int32_t)draw(&t->m, NEEDLE_DEPTHS), g % 4);
            gather(t, NEEDLE_COPIES);
            continue;
        }
        for (int32_t left = UNITS; left > 0;) left -= ask_plain(t, left);
    }
}

/* Which sections a block has. */
static void note_sections(struct text *t)
{
    const struct maker *m = &t->m;
    memset(t->has, 0, sizeof t->has);
    for (int32_t i = 0; i < m->n; i++) {
        const int32_t key = m->unit[m->unit[i].span ? i / UNITS * UNITS : i].key[0], at = m->pad + i * UNIT;
        t->has[at / BLOCK][key]++;
        if ((at + UNIT - 1) / BLOCK != at / BLOCK) t->has[(at + UNIT - 1) / BLOCK][key]++;
    }
}

size_t needles_text_size(void)
{
    return sizeof(struct text);
}

/* Text `number` of a kind. Of the last `tail` positions, a multiple of 128: task, what is asked of the row,
 * or -1; of, its case; goal, any of the four that may follow. near [tail / 128][length / 128]: of a block of
 * rows and another one, 1: the rows read of it; 2: it has a section that they ask for. -> 0; -1: questions
 * stand before. */
int needles_text(struct text *t, int32_t kind, int32_t length, uint64_t seed, int32_t number, int32_t groups,
                 int32_t tail, int16_t *ids, int8_t *task, int16_t *of, int16_t *goal, uint8_t *near)
{
    const int32_t n_blocks = length / BLOCK, first = length - tail;
    struct needle_prompt *p = &t->p;
    struct maker *m = &t->m;
    t->n_cases = t->n_answers = t->n_reads = 0;
    p->ids = t->ids;
    const uint64_t state =
        seed + 1000003u * (uint64_t)kind + 7919u * (uint64_t)(uint32_t)number + ((uint64_t)length << 40);
    begin(m, p, length, state, kind < NEEDLE_TASKS ? question_groups((enum needle_task)kind) : groups);
    if (kind == NEEDLE_KEYS)
        ask_records(m, number, 8);
    else if (kind == NEEDLE_RECORDS)
        ask_records(m, number, 1);
    else if (kind < NEEDLE_TASKS)
        ask_alone(m, (enum needle_task)kind, number);
    else if (kind == FEW)
        ask_few(t, groups);
    else
        ask_many(t, groups);
    if (kind < NEEDLE_TASKS) {
        memcpy(t->answer, p->answer, (size_t)p->n_answers * sizeof *p->answer);
        memcpy(t->read, p->read, (size_t)p->n_reads * sizeof *p->read);
        t->n_answers = p->n_answers, t->n_reads = p->n_reads, t->n_cases = m->asked;
        for (int32_t i = 0; i < t->n_cases; i++) t->task_of[i] = (int8_t)kind;
    }
    end(m);
    note_sections(t);
    for (int32_t i = 0; i < length; i++) ids[i] = (int16_t)t->ids[i];
    memset(task, -1, (size_t)tail);
    memset(of, -1, (size_t)tail * sizeof *of);
    memset(goal, 0, 4 * (size_t)tail * sizeof *goal);
    memset(near, 0, (size_t)(tail / BLOCK * n_blocks));
    if (p->body < first) return -1;
    for (int32_t k = 0; k < t->n_answers; k++) {
        const struct needle_answer *a = &t->answer[k];
        for (int32_t j = 0; j < a->n; j++) {
            const int32_t row = a->at + j - first;
            task[row] = t->task_of[a->of], of[row] = (int16_t)a->of;
            for (int w = 0; w < 4; w++)
                goal[4 * row + w] = (int16_t)(a->several ? a->one_of[w] : t->ids[a->at + j + 1]);
        }
    }
    for (int32_t k = 0; k < t->n_reads; k++) {
        const struct needle_read *r = &t->read[k];
        for (int32_t j = 0; j < r->n; j++) {
            uint8_t *row = near + (r->row + j - first) / BLOCK * n_blocks;
            row[(r->from + j) / BLOCK] |= 1;
            for (int32_t b = 0; b < n_blocks; b++) row[b] |= t->has[b][t->ids[r->from - 2]] >= SOME ? 2 : 0;
        }
    }
    return 0;
}
