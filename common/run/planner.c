/* planner.c - see planner.h. */
#include "planner.h"

int plan_check(const struct plan *p, int32_t most, struct err *e)
{
    const bool open = p->draft && p->rows == 0 && most > 1;
    if (!open && (p->rows < 1 || p->rows > most))
        return err_set(e, ERR_USAGE, "rows of a plan out of range (expected 1 to %d, got %d)", most, p->rows);
    if (!p->draft && p->rows != 1)
        return err_set(e, ERR_USAGE, "a plan of %d rows without proposals (expected 1 row)", p->rows);
    for (int32_t r = 0; p->parents && r < p->rows; r++)
        if (p->parents[r] != r - 1)
            return err_set(e, ERR_USAGE,
                           "a plan's rows are no chain, and trees are not run (expected the parent %d of row "
                           "%d, got %d)",
                           r - 1, r, p->parents[r]);
    return 0;
}

int plan_choice_check(const struct plan_choice *c, const struct plan_offer *o, struct err *e)
{
    const int32_t most = 1 + (c->look ? o->n_look : o->n_draft);
    if (c->rows >= 1 && c->rows <= most) return 0;
    return err_set(e, ERR_USAGE, "rows to verify out of range (expected 1 to %d of the %s, got %d)", most,
                   c->look ? "look-up" : "draft", c->rows);
}

void planner_fixed(void *ctx, struct plan *p)
{
    *p = *(const struct plan *)ctx;
}
