/* prefix.h - prompts that were run before, as a tree of their beginnings.
 *
 * A node is a whole chunk of tokens behind its parent's: the path to it spells the first depth * chunk tokens
 * of a prompt, exactly. It keeps a span of rows (span.h) and, where the models have recurrent state, perhaps
 * a point; a stream can begin behind a node that has one, or behind any node where none is needed. Nodes hold
 * rows of prompts alone, run a chunk a pass, so what a prompt finds here is what it would compute: on a
 * device decoded rows, and rows of shorter passes, have other bits.
 *
 * Memory is bounded. What was used longest ago goes first: a leaf with all it has, or the point of an inner
 * node, whose rows others still need. Looking a prompt up uses its whole path, so no node is older than those
 * below it. The tree knows bytes, not what they mean. One thread uses it at a time. */
#ifndef DFLASH_PREFIX_H
#define DFLASH_PREFIX_H

#include <stdbool.h>
#include <stdint.h>

struct prefix_node {
    struct prefix_node *parent, *child, *next; /* next: of the parent's children */
    int32_t depth;                             /* 1: the first chunk */
    uint64_t used, point_used;                 /* when, by the tree's clock; point_used: the point alone */
    uint8_t *rows, *point;                     /* point NULL: none */
    uint64_t n_rows, n_point;                  /* bytes */
    int32_t tokens[];                          /* [chunk] */
};

struct prefix {
    int32_t chunk;
    uint64_t budget, bytes; /* all that nodes take */
    uint64_t clock;
    int64_t nodes, points, evicted; /* evicted: nodes and points since the start */
    struct prefix_node *first;      /* of the roots */
};

void prefix_init(struct prefix *p, int32_t chunk, uint64_t budget);
void prefix_clear(struct prefix *p); /* forget everything */
/* The deepest node whose path begins ids [n]; NULL: none. Its path is used now. */
struct prefix_node *prefix_find(struct prefix *p, const int32_t *ids, int32_t n);
/* From node upwards the first with a point; NULL: none. Its point is used now. */
struct prefix_node *prefix_pointed(struct prefix *p, struct prefix_node *node);
/* A child of parent (NULL: a root) for these tokens [chunk], with room for its rows, for the caller to fill;
 * the child that is there already, its rows kept, *fresh false. NULL where the budget or memory does not
 * allow it. No node of the path is evicted for it. */
struct prefix_node *prefix_add(struct prefix *p, struct prefix_node *parent, const int32_t *tokens,
                               uint64_t n_rows, bool *fresh);
/* Room for a point of a node that has none, for the caller to fill; NULL as above. */
uint8_t *prefix_add_point(struct prefix *p, struct prefix_node *node, uint64_t n_point);
/* A node without children that could not be filled. */
void prefix_remove(struct prefix *p, struct prefix_node *node);
void prefix_remove_point(struct prefix *p, struct prefix_node *node);
/* Make room for bytes of somebody else's within a budget that he has been told of: evict until what is left
 * takes no more than most. */
void prefix_shrink(struct prefix *p, uint64_t most);

#endif
