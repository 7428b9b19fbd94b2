/* prefix.c - see prefix.h. */
#include "prefix.h"

#include <string.h>
#include "../base/mem.h"

static uint64_t node_bytes(const struct prefix *p)
{
    return sizeof(struct prefix_node) + (uint64_t)p->chunk * sizeof(int32_t);
}

void prefix_init(struct prefix *p, int32_t chunk, uint64_t budget)
{
    *p = (struct prefix){.chunk = chunk, .budget = budget};
}

/* ---- taking away ---- */

static struct prefix_node **link_to(struct prefix *p, struct prefix_node *node)
{
    struct prefix_node **at = node->parent ? &node->parent->child : &p->first;
    while (*at != node) at = &(*at)->next;
    return at;
}

void prefix_remove_point(struct prefix *p, struct prefix_node *node)
{
    if (!node->point) return;
    mem_free(node->point);
    p->bytes -= node->n_point;
    p->points--;
    node->point = NULL;
    node->n_point = 0;
}

void prefix_remove(struct prefix *p, struct prefix_node *node)
{
    *link_to(p, node) = node->next;
    prefix_remove_point(p, node);
    p->bytes -= node_bytes(p) + node->n_rows;
    p->nodes--;
    mem_free(node->rows);
    mem_free(node);
}

/* The node behind this one, children first: every leaf comes before its parent. */
static struct prefix_node *deepest(struct prefix_node *node)
{
    while (node && node->child) node = node->child;
    return node;
}

static struct prefix_node *behind(struct prefix_node *node)
{
    return node->next ? deepest(node->next) : node->parent;
}

void prefix_clear(struct prefix *p)
{
    while (p->first) prefix_remove(p, deepest(p->first));
}

static bool on_path(const struct prefix_node *node, const struct prefix_node *path)
{
    while (path && path != node) path = path->parent;
    return path;
}

/* Take away what was used longest ago, but no node of the path. false: there is nothing. */
static bool evict(struct prefix *p, const struct prefix_node *path)
{
    struct prefix_node *oldest = NULL;
    uint64_t when = UINT64_MAX;
    for (struct prefix_node *x = deepest(p->first); x; x = behind(x)) {
        const bool leaf = !x->child && !on_path(x, path);
        const uint64_t used = leaf ? x->used : x->point_used;
        if ((!leaf && !x->point) || used >= when) continue;
        oldest = x;
        when = used;
    }
    if (!oldest) return false;
    p->evicted++;
    if (oldest->child || on_path(oldest, path))
        prefix_remove_point(p, oldest);
    else
        prefix_remove(p, oldest);
    return true;
}

void prefix_shrink(struct prefix *p, uint64_t most)
{
    while (p->bytes > most && evict(p, NULL)) continue;
}

static bool make_room(struct prefix *p, uint64_t bytes, const struct prefix_node *path)
{
    if (bytes > p->budget) return false;
    while (p->bytes > p->budget - bytes)
        if (!evict(p, path)) return false;
    return true;
}

/* ---- finding ---- */

static struct prefix_node *child_of(const struct prefix *p, const struct prefix_node *parent,
                                    const int32_t *tokens)
{
    struct prefix_node *x = parent ? parent->child : p->first;
    while (x && memcmp(x->tokens, tokens, (size_t)p->chunk * sizeof *tokens)) x = x->next;
    return x;
}

struct prefix_node *prefix_find(struct prefix *p, const int32_t *ids, int32_t n)
{
    struct prefix_node *found = NULL, *x;
    p->clock++;
    for (int64_t end = p->chunk; end <= n; end += p->chunk) {
        x = child_of(p, found, ids + end - p->chunk);
        if (!x) break;
        x->used = p->clock;
        found = x;
    }
    return found;
}

struct prefix_node *prefix_pointed(struct prefix *p, struct prefix_node *node)
{
    while (node && !node->point) node = node->parent;
    if (node) node->point_used = p->clock;
    return node;
}

/* ---- adding ---- */

struct prefix_node *prefix_add(struct prefix *p, struct prefix_node *parent, const int32_t *tokens,
                               uint64_t n_rows, bool *fresh)
{
    struct prefix_node *x = child_of(p, parent, tokens);
    *fresh = !x;
    if (x) {
        x->used = p->clock;
        return x;
    }
    if (!make_room(p, node_bytes(p) + n_rows, parent)) return NULL;
    x = mem_calloc(1, (size_t)node_bytes(p));
    if (!x) return NULL;
    x->rows = mem_alloc((size_t)n_rows + !n_rows);
    if (!x->rows) {
        mem_free(x);
        return NULL;
    }
    x->parent = parent;
    x->depth = parent ? parent->depth + 1 : 1;
    x->used = p->clock;
    x->n_rows = n_rows;
    memcpy(x->tokens, tokens, (size_t)p->chunk * sizeof *tokens);
    struct prefix_node **list = parent ? &parent->child : &p->first;
    x->next = *list;
    *list = x;
    p->bytes += node_bytes(p) + n_rows;
    p->nodes++;
    return x;
}

uint8_t *prefix_add_point(struct prefix *p, struct prefix_node *node, uint64_t n_point)
{
    if (node->point || !make_room(p, n_point, node)) return NULL;
    node->point = mem_alloc((size_t)n_point + !n_point);
    if (!node->point) return NULL;
    node->n_point = n_point;
    node->point_used = p->clock;
    p->bytes += n_point;
    p->points++;
    return node->point;
}
