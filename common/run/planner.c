/* planner.c - see planner.h. */
#include "planner.h"
#include "tree.h"

int plan_check(const struct plan *p, int32_t most, bool look, struct err *e)
{
    const bool open = p->rows == 0 && (p->draft ? most > 1 : look);
    if (!open && (p->rows < 1 || p->rows > most))
        return err_set(e, ERR_USAGE, "rows of a plan out of range (expected 1 to %d, got %d)", most, p->rows);
    if (!open && !p->draft && p->rows != 1)
        return err_set(e, ERR_USAGE, "a plan of %d rows without proposals (expected 1 row)", p->rows);
    return 0;
}

int plan_choice_check(const struct plan_choice *c, const struct plan_offer *o, struct err *e)
{
    const int32_t most = 1 + (c->look ? o->n_look : o->n_draft);
    if (c->nodes && (c->look || !o->top))
        return err_set(e, ERR_USAGE, "a tree of the %s (expected a source that offers candidates)",
                       c->look ? "look-up" : "draft");
    if (c->nodes) return tree_check(c->nodes, c->rows, o->n_draft, o->n_top, e);
    if (c->rows >= 1 && c->rows <= most) return 0;
    return err_set(e, ERR_USAGE, "rows to verify out of range (expected 1 to %d of the %s, got %d)", most,
                   c->look ? "look-up" : "draft", c->rows);
}

void planner_fixed(void *ctx, struct plan *p)
{
    *p = *(const struct plan *)ctx;
}

/* ---- with look-ups ---- */

void planner_looks_next(void *ctx, struct plan *p)
{
    const struct plan_looks *y = ctx;
    *p = (struct plan){.draft = y->draft};
}

/* Rows of a look-up's chain. */
static int32_t look_rows(const struct plan_looks *y, const struct plan_offer *o)
{
    /* What the drafter says too is as good as a match. */
    const int32_t sure = o->match > o->agree ? o->match : o->agree,
                  most = 1 + (o->n_look < sure ? o->n_look : sure);
    int32_t rows = 1;
    while (2 * rows <= most) rows *= 2;
    return rows < y->rows ? rows : y->rows;
}

void planner_looks_choose(void *ctx, const struct plan_offer *o, struct plan_choice *c)
{
    const struct plan_looks *y = ctx;
    const int32_t drafted = 1 + o->n_draft < y->width ? 1 + o->n_draft : y->width,
                  looked = o->n_look ? look_rows(y, o) : 1;
    const bool longer = o->agree == o->n_draft && looked > drafted;
    c->look = looked > 1 && (o->match >= y->match || longer);
    c->rows = c->look ? looked : drafted;
}
