/* draft.c - see draft.h. */
#include "draft.h"

#include <string.h>

static const struct draft_kind *const kinds[] = {&draft_dflash, &draft_dflash2};

const struct draft_kind *draft_kind_of(const struct desc *d)
{
    for (size_t i = 0; d->kind && i < sizeof kinds / sizeof kinds[0]; i++)
        if (!strcmp(kinds[i]->name, d->kind)) return kinds[i];
    return NULL;
}

int draft_propose(const struct model *m, const struct draft *t, struct err *e)
{
    return dflash_block(m, t->target, &t->pass, e) ? -1 : m->kind->propose(m, t, e);
}

int draft_logits(const struct model *m, const struct draft *t, struct err *e)
{
    const float *x = t->pass.w->x + (int64_t)t->skip * m->d->n_embd;
    return model_logits(m, t->target, x, t->pass.n - t->skip, t->logits, e);
}
