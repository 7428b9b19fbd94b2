/* attention_plan.h - which kernel attends, and how it is cut: a pure function of the call, the device and the
 * promise of positions, in plain C. attention.cu asks and launches. No choice changes a bit of the results;
 * attention.cuh has the concepts. */
#ifndef DFLASH_CUDA_ATTENTION_PLAN_H
#define DFLASH_CUDA_ATTENTION_PLAN_H

#include "../../kernels.h"
#include "../core/cuda.h"
#include "../core/device.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ATTN_TILE 16 /* rows of queries that are multiplied together */
#define ATTN_FEW 64  /* rows up to which keys are spread over blocks */
#define ATTN_NODE 512
#define ATTN_CLASSES 8                           /* nodes are added by their number modulo this */
#define ATTN_STREAM_ROWS 8                       /* of a tile that attn_stream takes */
#define ATTN_PLACES_SIDE(D) ((D) <= 128 ? 2 : 1) /* leaves that a block of attn_places has at once */
#define ATTN_PLACE_FLOATS 260        /* attention/leaves.cuh: 256 results; (top, sum) of one row or two */
#define NEAR_LEAVES 2                /* of a block of attention in clusters at most */
#define ATTN_SIZES 4                 /* heads of 64, 128, 256 and 512 have kernels of their own */
#define ATTN_PLACES_BYTES (16 << 20) /* of what blocks of attn_places hand each other, */
#define ATTN_PATHS_BYTES (36 << 20)  /* and over rows of a tree */
#define ATTN_MADE_BYTES (2 << 20)    /* of queries as attn_columns wants them */

enum attn_form {
    ATTN_ANY,       /* attention.cu: any type and head size, for completeness */
    ATTN_STEP,      /* attention/step.cuh: partial results in memory, and a merge */
    ATTN_STREAM,    /* attention/stream.cuh: the same of one tile, a leaf a warp, over long contexts */
    ATTN_FAR,       /* attention/far.cu: several rows over long contexts, products of four warps */
    ATTN_CLUSTERS,  /* attn_step in clusters of blocks, one launch */
    ATTN_PLACES,    /* attention/leaves.cuh: blocks that hand each other leaves, one launch */
    ATTN_COLUMNS,   /* attention/columns.cuh: rows made by a launch before */
    ATTN_ALONE,     /* attention/alone.cuh: a block has a tile and all its keys, one launch */
    ATTN_PREFILL,   /* attention/prefill.cu */
    ATTN_GROUP,     /* attention/group.cu: products of four warps */
    ATTN_CODES,     /* attention/codes.cuh: quantised caches, partial results in memory, and a merge */
    ATTN_FAR_CODES, /* attention/far_codes.cu: the same of several rows, products of four warps */
    ATTN_FORMS
};

/* Which form takes what, whatever wins where several do. */
struct attn_takes {
    const char *name;
    int32_t heads[ATTN_SIZES]; /* head sizes; 0: no more; heads[0] 0: all up to 512 */
    int32_t from, to;          /* rows; 0: any */
    bool wide_types;           /* takes all types, K and V each its own; else F16 or BF16, both alike, */
    bool halves, codes;        /* and these; also quantised ones, K and V each its own, F16 beside them, */
    bool both;                 /* or not: K and V both quantised */
    bool early;                /* only where cuda_device_early */
    bool sinks;                /* takes kn_attention.sinks */
};
extern const struct attn_takes attn_table[ATTN_FORMS];
bool attn_form_takes(enum attn_form form, const struct cuda_device *dev, int32_t d, int32_t n,
                     uint32_t k_type, uint32_t v_type);

/* What the device said when the backend was opened. [ATTN_SIZES]: by head size. */
struct attn_device {
    int32_t clusters[ATTN_SIZES][2][NEAR_LEAVES]; /* resident together: of 8 or 16 blocks, leaves a block */
    int32_t places[ATTN_SIZES], columns[ATTN_SIZES]; /* resident blocks a multiprocessor of these kernels, */
    int32_t paths[ATTN_SIZES];                       /* of attn_places over rows of a tree */
    bool waits; /* blocks may wait for each other: there is memory for what they hand on */
};

struct attn_call {
    int32_t n, n_head, n_kv, d;
    int32_t held; /* positions that the cache holds at once: kn_kv_positions */
    int32_t window;
    int32_t bound; /* positions are below it; 0: nothing is promised */
    uint32_t k_type, v_type;
    bool causal, gated, sinks;
    bool stores; /* rope_store is to be done too, */
    bool folds;  /* and is such that attention can do it: attn_can_fold */
    bool maps;   /* more than one row: the driver has maps for the ring (attention/group.cu, far.cu,
                    far_codes.cu) */
    bool whole;  /* sparse attention of whole blocks: forms for prompts alone */
    size_t scratch_bytes;
};

struct attn_plan {
    enum attn_form form;
    int32_t tiles, warps, stages, resident; /* of a block; blocks a multiprocessor */
    size_t smem;                            /* bytes of a block */
    int32_t groups, turn;   /* blocks' worth of tiles; as many at a time; turn 0: no scratch */
    int32_t leaves, slots;  /* partial results of leaves, not nodes; of a (tile, kv head) */
    int32_t blocks;         /* of a (group, kv head), or of a cluster; COLUMNS: of the grid */
    int32_t cluster_leaves; /* CLUSTERS: leaves a block */
    int32_t chunks;         /* PREFILL: of columns */
    bool fold;              /* attention does rope_store's work */
};

struct attn_plan attn_plan_of(const struct cuda_device *dev, const struct attn_device *attn,
                              const struct attn_call *c);
/* Rows of a tree by attn_places; false: by the kernels of attention/tree.cu. */
bool attn_plan_tree(const struct cuda_device *dev, const struct attn_device *attn, const struct attn_call *c,
                    struct attn_plan *p);
/* Is there a form for sparse prompts over such caches that dev has the shared memory for? NULL: of whatever
 * device. */
bool attn_takes_sparse(const struct cuda_device *dev, const struct kn_kv *kv);
/* What such rows all see, by attn_far, before attn_tree_paths. */
bool attn_plan_tree_far(const struct cuda_device *dev, const struct attn_call *c, struct attn_plan *p);
/* Rope_stores that attention has the arithmetic of. */
bool attn_can_fold(int32_t n, int32_t d, int32_t n_rot, bool interleaved);
/* Bytes of scratch that calls of up to n rows want: kn_ops.reserve_kv. */
size_t attn_scratch(int32_t n, int32_t n_head, const struct kn_kv *kv, int32_t window);

/* A block of attn_step: as many a multiprocessor as there are registers for, then as many stages as fit;
 * false: none. leaves: of all tiles. */
bool attn_step_block(const struct cuda_device *dev, int32_t d, int32_t tiles, int64_t leaves,
                     struct attn_plan *p);
bool attn_stream_block(const struct cuda_device *dev, int32_t d, struct attn_plan *p);
/* Bytes of shared memory that kernels say they want; 0: no such kernel. Checked against them (test_layout).
 */
size_t attn_step_bytes(int32_t d, int32_t tiles, int32_t stages);
size_t attn_stream_bytes(int32_t d);
size_t attn_near_bytes(int32_t d, int32_t blocks, int32_t leaves);
size_t attn_places_bytes(int32_t d);
size_t attn_paths_bytes(int32_t d, int32_t n); /* rows of a tree */
size_t attn_columns_block_bytes(int32_t d);
size_t attn_alone_bytes(int32_t d);
/* Of a leaf's codes of n columns of a head of d; of a block. */
int32_t attn_codes_leaf_bytes(int32_t d, int32_t n, uint32_t type);
/* Nodes that rows can see, of caches that hold so many positions at once; bound: as attn_call's. */
int32_t attn_codes_nodes(int32_t held, int32_t n, int32_t window, bool causal, int32_t bound);
size_t attn_codes_bytes(int32_t d, int32_t tiles, uint32_t k_type, uint32_t v_type);
/* Rows of a tree over quantised caches that are launched together (codes.cu): all n, or as many as there is
 * scratch for and the next begins with a tile; 0: of those there is no room. slots: nodes. */
int32_t attn_codes_turn(int32_t n, int32_t n_rep, int32_t n_kv, int32_t d, int32_t slots,
                        size_t scratch_bytes);
/* Low bits of a side of an item of attn_far_codes, so many keys: a box of as many rows. */
#define ATTN_FAR_CODES_ITEM 64
int32_t attn_far_codes_side(int32_t d, uint32_t type);
size_t attn_prefill_bytes(int32_t d, int32_t warps, int32_t *tiles, int32_t *chunks);
#define ATTN_GROUP_BYTES 165952
#define ATTN_FAR_BYTES 231104
/* Without codes; items' codes, and nodes, that a block has at most. */
#define ATTN_FAR_CODES_BYTES 157696
#define ATTN_FAR_CODES_MOST 8
#define ATTN_FAR_CODES_NODES 512
#define ATTN_COLUMN_PLACE 2176 /* of a leaf's weights for one of two readers */
#define ATTN_MADE_TILE 32832   /* of a tile's queries */

static inline int32_t attn_tiles(int32_t n, int32_t n_rep)
{
    return (int32_t)(((int64_t)n * n_rep + ATTN_TILE - 1) / ATTN_TILE);
}
static inline int32_t attn_leaf(int32_t d) /* keys of a leaf */
{
    return d <= 256 ? 64 : 32;
}
int attn_size_index(int32_t d); /* of a head size; others: the last */

#ifdef __cplusplus
}
#endif
#endif
