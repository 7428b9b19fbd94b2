/* tree.c - see tree.h. */
#include "tree.h"

#include <math.h>
#include <string.h>

/* The next child of node i: by rank where the row is one of places alone; else the likeliest that is left. */
static void find_next(struct tree *t, int32_t i)
{
    const int32_t slot = t->depth[i], rank = t->nodes[i].rank;
    const bool row_of_place = !t->behind || !i || !rank;
    const float *row;
    int32_t best = -1;
    t->promise[i] = -INFINITY, t->next[i] = -1;
    if (slot >= t->slots) return;
    row = row_of_place ? t->logp + (int64_t)slot * t->top : t->behind(t->behind_ctx, slot, rank);
    for (int32_t r = 0; r < t->top; r++) {
        if (t->used[i] >> r & 1) continue;
        if (row_of_place || (row[r] > -INFINITY && (best < 0 || row[r] > row[best]))) best = r;
        if (row_of_place) break;
    }
    if (best < 0 || !(row[best] > -INFINITY)) return; /* a NaN is none */
    t->next[i] = (int8_t)best;
    t->promise[i] = t->reach[i] + (double)row[best] + (t->off[i] ? t->beside : 0);
}

void tree_begin(struct tree *t, const float *logp, int32_t slots, int32_t top, bool seed)
{
    memset(t, 0, sizeof *t);
    t->logp = logp, t->slots = slots, t->top = top, t->seed = seed;
    t->nodes[0] = (struct plan_node){-1, 0};
    t->n = 1;
    find_next(t, 0);
}

bool tree_add(struct tree *t, double *reach, int32_t *depth)
{
    int32_t best = t->n - 1;
    if (t->n >= TREE_ROWS) return false;
    if (t->seed && t->next[best] != 0) t->seed = false; /* the chain ends */
    for (int32_t i = 0; i < t->n && !t->seed; i++)
        if (t->promise[i] > t->promise[best] || (t->promise[i] == t->promise[best] && i < best)) best = i;
    if (t->promise[best] == -INFINITY) return false;
    const int32_t r = t->n++;
    t->nodes[r] = (struct plan_node){(int8_t)best, t->next[best]};
    t->reach[r] = t->promise[best];
    t->off[r] = t->off[best] || t->nodes[r].rank;
    t->depth[r] = (int8_t)(t->depth[best] + 1);
    t->used[best] |= 1u << t->next[best];
    find_next(t, best);
    find_next(t, r);
    if (reach) *reach = exp(t->reach[r]);
    if (depth) *depth = t->depth[r];
    return true;
}

bool tree_is_chain(const struct plan_node *nodes, int32_t n)
{
    for (int32_t r = 1; r < n; r++)
        if (nodes[r].parent != r - 1 || nodes[r].rank) return false;
    return true;
}

int tree_check(const struct plan_node *nodes, int32_t n, int32_t slots, int32_t top, struct err *e)
{
    int32_t depth[TREE_ROWS] = {0};
    if (n < 1 || n > TREE_ROWS)
        return err_set(e, ERR_USAGE, "rows of a tree out of range (expected 1 to %d, got %d)", TREE_ROWS, n);
    for (int32_t r = 1; r < n; r++) {
        const int32_t p = nodes[r].parent, rank = nodes[r].rank;
        if (p < 0 || p >= r)
            return err_set(e, ERR_USAGE, "node %d of a tree stands behind %d (expected 0 to %d)", r, p,
                           r - 1);
        depth[r] = depth[p] + 1;
        if (depth[r] > slots || rank < 0 || rank >= top)
            return err_set(
                e, ERR_USAGE,
                "node %d of a tree: candidate %d of place %d (expected %d candidates of %d places)", r, rank,
                depth[r], top, slots);
        for (int32_t i = 1; i < r; i++)
            if (nodes[i].parent == p && nodes[i].rank == rank)
                return err_set(e, ERR_USAGE, "nodes %d and %d of a tree are the same candidate behind %d", i,
                               r, p);
    }
    return 0;
}

void tree_rows(struct kn_tree *t, const int32_t *ids, const int32_t *parents, int32_t n, int32_t pos)
{
    bool inner[KN_CYCLE_ROWS] = {0};
    memset(t, 0, sizeof *t);
    for (int32_t r = 0; r < KN_CYCLE_ROWS; r++) {
        const int32_t p = r < n ? parents[r] : -1, depth = r && r < n ? t->pos[p] - pos + 1 : 0;
        t->ids[r] = ids[r < n ? r : 0];
        t->parent[r] = r && r < n ? p : -1;
        t->pos[r] = pos + depth;
        t->at[r] = pos + r;
        if (depth) inner[p] = true;
        if (depth) memcpy(t->path[r], t->path[p], (size_t)depth);
        memset(t->path[r] + depth, r < n ? r : 0, (size_t)(KN_CYCLE_ROWS - depth));
    }
    for (int32_t r = 0; r < n; r++)
        if (!inner[r]) t->leaf[t->n_leaves++] = r;
}

void planner_trees_next(void *ctx, struct plan *p)
{
    (void)ctx;
    *p = (struct plan){.draft = true};
}

void planner_trees_choose(void *ctx, const struct plan_offer *o, struct plan_choice *c)
{
    struct plan_trees *y = ctx;
    *c = (struct plan_choice){.rows = 1};
    if (o->n_look && y->looks.rows > 1) planner_looks_choose(&y->looks, o, c);
    if (c->look || !o->n_draft || !o->top) return;
    tree_begin(&y->tree, o->top, o->n_draft, o->n_top, y->seed);
    y->tree.behind = o->behind, y->tree.behind_ctx = o->behind_ctx;
    while (y->tree.n <= y->proposals && tree_add(&y->tree, NULL, NULL)) continue;
    *c = (struct plan_choice){.rows = y->tree.n, .nodes = y->tree.nodes};
}
