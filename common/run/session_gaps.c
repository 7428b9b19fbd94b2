/* session_gaps.c - prompts of which tokens were left out: the place of every row in the text. */
#include <inttypes.h>
#include <string.h>

#include "../base/mem.h"
#include "session_impl.h"

int session_gaps_check(const struct desc *target, struct err *e)
{
    for (int i = 0; i < target->n_layer; i++)
        if (target->layer[i].window)
            return err_set(
                e, ERR_USAGE,
                "a compressed prompt: the target has sliding layers, which would see further in "
                "the text than they were trained to (expected none, got layer %d with a window of %d)",
                i, target->layer[i].window);
    return 0;
}

static int check_places(const struct session *s, const struct session_gaps *g, const int32_t *at,
                        struct err *e)
{
    if (session_gaps_check(s->target->d, e)) return -1;
    if (s->n_past || g->n_kept < 1 || g->n_kept > g->n_text || g->n_kept > s->o.ctx ||
        g->n_text > SESSION_MAX_CTX || g->n_text > INT32_MAX - s->g->positions)
        return err_set(e, ERR_USAGE,
                       "a compressed prompt does not fit (expected at most %d tokens of at most %d at "
                       "position 0, got %d of %d at %d)",
                       s->o.ctx, SESSION_MAX_CTX, g->n_kept, g->n_text, s->n_past);
    for (int32_t i = 0; i < g->n_kept; i++)
        if (at[i] < i || at[i] >= g->n_text || (i && at[i] <= at[i - 1]))
            return err_set(e, ERR_FORMAT,
                           "a compressed prompt: place %d of %d (expected ascending ones below %d, got %d)",
                           i, g->n_kept, g->n_text, at[i]);
    return 0;
}

int session_set_gaps(struct session *s, const struct session_gaps *g, const int32_t *at, struct err *e)
{
    const size_t n = (size_t)s->g->positions, bytes = n * sizeof *s->d_origin;
    if (s->o.pool)
        return err_set(e, ERR_USAGE, "a compressed prompt in a pool is not supported (expected no --pool)");
    if (check_places(s, g, at, e)) return -1;
    if (!s->d_origin) {
        s->d_origin = s->op->alloc(s->be, bytes);
        if (!s->d_origin) return model_no_memory(s->be, e, "places of %d positions", s->g->positions);
        s->bytes += bytes;
    }
    int32_t *all = mem_alloc(bytes), *kept = mem_alloc((size_t)g->n_kept * sizeof *kept);
    if (!all || !kept) {
        mem_free(all);
        mem_free(kept);
        return err_set(e, ERR_IO, "out of memory (places of %d positions)", s->g->positions);
    }
    memcpy(kept, at, (size_t)g->n_kept * sizeof *kept);
    for (int32_t i = 0; i < s->g->positions; i++) all[i] = i < g->n_kept ? at[i] : g->n_text + i - g->n_kept;
    const int rc = s->op->upload(s->be, s->d_origin, all, bytes);
    mem_free(all);
    session_gaps_reset(s);
    session_plays_forget(s, 0); /* recordings of streams without gaps */
    s->gaps = *g;
    s->gaps_at = kept;
    s->origin = s->d_origin;
    return rc ? model_failed(s->target, "upload", rc, e) : 0;
}

int32_t session_text(const struct session *s)
{
    return s->n_past + s->gaps.n_text - s->gaps.n_kept;
}

void session_gaps_reset(struct session *s)
{
    if (s->origin) session_plays_forget(s, 0);
    mem_free(s->gaps_at);
    s->gaps_at = NULL;
    s->gaps = (struct session_gaps){0};
    s->origin = NULL;
}

void session_gaps_free(struct session *s)
{
    mem_free(s->gaps_at);
    s->op->free(s->be, s->d_origin);
}
