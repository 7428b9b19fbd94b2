/* chain_plan.h - what a chain that is being collected is (chain.cu), and how it is laid out (chain_plan.c):
 * who has which pairs of panels, where a block's shared memory goes, which kernel runs it. Plain C; chain.cuh
 * has the concepts. */
#ifndef DFLASH_CUDA_CHAIN_PLAN_H
#define DFLASH_CUDA_CHAIN_PLAN_H

#include "../core/cuda.h"
#include "../product/mm_plan.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CHAIN_ALIGNED(BYTES) __attribute__((aligned(BYTES)))
struct uint2;             /* CUDA's */
typedef int32_t kv_where; /* attention/kv.cuh */

#define CHAIN_STEPS 640       /* of a chain, at most */
#define CHAIN_LEAST 8         /* steps below which the launches go out one by one */
#define CHAIN_WARPS 8         /* that multiply */
#define CHAIN_HEADS 8         /* of them, that attend: attention's structure */
#define CHAIN_MATRICES 4      /* of a step */
#define CHAIN_WIDTH 65536     /* outputs of a step, at most */
#define CHAIN_NORM_BLOCKS 2   /* of 256 columns that a warp keeps of a row that is normed */
#define CHAIN_K_NORM_BLOCKS 3 /* the same in chain/kernel.cuh */
#define CHAIN_POST_WIDTH (256 * CHAIN_K_NORM_BLOCKS * CHAIN_WARPS)
#define CHAIN_ROW_BLOCKS 2      /* of a row that is not, read at a time */
#define CHAIN_ROW 308           /* bytes of activations for 256 columns: chain/pair.cuh */
#define CHAIN_KEEP 128          /* outputs of a block that it adds to later */
#define CHAIN_HEAD 128          /* columns of a head */
#define CHAIN_LEAVES 64         /* of 64 keys that a row may see, at most: eight nodes; more: chain/far.cuh */
#define CHAIN_PARTS 4096        /* partial results of a row of a head that there is room for, at least */
#define CHAIN_FAR_HEADS 8       /* of a kv head over long contexts, at most */
#define CHAIN_DESCS 8           /* descriptors in shared memory */
#define CHAIN_ROUNDED_WORDS 512 /* that a warp takes of a row that is handed on rounded, at most */

/* What the activations of a step are. */
enum chain_kind { CHAIN_K, CHAIN_32, CHAIN_F16, CHAIN_BF16, CHAIN_F32 };

struct chain_matrix {
    const uint8_t *w;
    float *out;                 /* or NULL */
    int32_t n_out, pair_end;    /* pairs of panels of this matrix and those before it */
    int32_t column, unit_bytes; /* column: of its first output among the step's values */
    uint32_t type;
};
/* A gated delta net (chain/delta.cuh), as the step of its state and as the product that reads it have it; or
 * a row in memory that is gated. */
enum chain_what { CHAIN_PLAIN, CHAIN_STATE, CHAIN_STATE_ROW, CHAIN_GATED_ROW };
struct chain_net {
    int32_t what, n_k, n_v, commit;
    int32_t per, units;       /* blocks of a key head, and units of one: 32 rows of a value head's state */
    int32_t gates;            /* place of the gates, behind the outputs */
    int32_t every;            /* kn_delta's */
    const float *gate, *norm; /* of a row in memory; of outputs [CHAIN_HEAD] */
    float *s, *conv, *log;    /* kn_delta_state */
    const float *taps, *a, *dt;
    const int32_t *pending;
    int32_t sums, slices; /* of alpha and beta, behind from: chain_step.spread of the step that makes them */
};
struct CHAIN_ALIGNED(16) chain_step {
    struct chain_matrix m[CHAIN_MATRICES]; /* gated: gate, up: a pair is a panel of each */
    int32_t n_m, gated, act;               /* n_m: 0: attention */
    const float *x;                        /* [n_in]: of the first step; the others read the step before */
    const float *norm;                     /* [n_in] or NULL */
    const float *old;                      /* NULL, or what is added to matrix 0's outputs */
    int32_t keep, kept; /* its outputs are added to later, by this block; what is added are those */
    float eps;
    int32_t units, slice_units, slices, pairs, per, cuts; /* per: units of a tile; cuts: tiles of a pair */
    int32_t rounds, rest;                                 /* pairs of a block; of the first blocks one more */
    int32_t first;                                        /* the block that counts as the first: spread */
    int32_t ahead;                                        /* tiles on the way, at most */
    int32_t pass_on;                                      /* the next step reads the outputs */
    int32_t from, at;                                     /* places of what it reads and of what it writes */
    uint32_t terms;                                       /* bytes of a panel's terms, in shared memory */
    /* Types other than K (chain/items.cuh): units are of 32 columns, `pairs` are groups of members panels. */
    int32_t kind;                   /* enum chain_kind */
    int32_t members;                /* panels of a group */
    int32_t parts;                  /* tiles of an item, of `per` units each */
    uint32_t per_slices, per_parts; /* chain_divisor of these */
    int32_t same;                   /* as in chain_args */
    /* Where tiles stand in the ring, and what only K types have: */
    int32_t cap_tiles; /* tiles in a turn of the ring */
    uint32_t tile;     /* bytes of one */
    float per_tile;    /* 1 / tile */
    uint32_t flags;    /* CHAIN_GATED ...; of other types CHAIN_ROUNDS, CHAIN_ROUNDED */
    int32_t own;       /* pairs of a block of which each warp rounds what it multiplies */
    /* Pairs that all blocks share, by pieces of so many units (chain/split.cuh). */
    int32_t split, piece, pieces, piece_cuts; /* pieces: of a pair; piece_cuts: tiles of a piece */
    int32_t each, more, split_first;  /* pieces of a block; blocks that have one more; the first of those */
    int32_t split_term, split_beside; /* floats: a panel's terms of the block's pieces; to their factors */
    /* attention: q, k and v are the values of the step before, in this order */
    void *k, *v; /* the ring */
    const int32_t *pos;
    const float *q_norm, *k_norm, *table;
    float *attn; /* [n_head][CHAIN_HEAD] or NULL: results */
    int32_t n_head, n_kv, n_rep;
    kv_where where;
    int32_t turn;
    float scale;
    int32_t map;     /* of the launch's maps, the keys'; then the values' */
    int32_t far;     /* a long context, keys and values through the ring: tiles of 16 times that; 0: not; over
                        codes, whose types are m[0].type and m[1].type: kv heads of a set of warps */
    int32_t replays; /* the delta net so many steps behind takes rows that are pending before this step */
    int32_t again;   /* it reads what the step before it reads; from is -1 where that is x */
    struct chain_net d;
    int32_t head, window, v_norm; /* columns of a head; 0: all positions; values are normed */
    int32_t k_from, v_from;       /* of what is read, where keys begin; values: with them, or behind them */
    /* What the row is before its norm, chain/post.cuh: (old row + norm(what the step before gives) * post) *
     * post_scale. post: NULL: that itself. */
    const float *post, *post_x; /* post_x: the old row in memory; NULL: the block has kept it */
    float *post_out;            /* the new one, or NULL */
    float post_eps, post_scale;
    /* Of types other than K: groups are slices of panels, the first `wide` blocks have them, and the sums are
     * handed on so far behind `at`; 0: not. */
    int32_t spread, wide;
    /* As ahead, before the step's products begin: where outputs come early and with types other than K; and
     * what comes to the L2 cache behind the ring while it is full: tiles, where outputs come early. */
    int32_t before, bring;
};
/* What the device must know of a ring of keys or values to gather rows of a head: chain/map.cu. */
struct CHAIN_ALIGNED(128) chain_map {
    uint64_t opaque[16];
};
/* Of a step: its matrices are gate and up; something is added, which the block has kept; its outputs are
 * kept, read by the next step, in memory; those of all but a block's last pair come early, and the next step
 * multiplies in their order, so that it waits for the last round alone; its outputs are handed on rounded by
 * blocks of 32, what it reads is (chain/items.cuh); it has pairs that all blocks share; a pair's tiles are as
 * large as its type wants, not as the step's largest. */
enum {
    CHAIN_GATED = 1,
    CHAIN_OLD = 2,
    CHAIN_KEPT = 4,
    CHAIN_KEEPS = 8,
    CHAIN_PASS = 16,
    CHAIN_OUT = 32,
    CHAIN_EARLY = 64,
    CHAIN_ROUNDS = 128,
    CHAIN_ROUNDED = 256,
    CHAIN_SPLIT = 512,
    CHAIN_MIXED = 1024,
    CHAIN_SHARE = 2048 /* times chain_plan's share, which is the block's */
};
/* Points of grids in shared memory, before the ring (chain/grid_words.cuh), of so many bytes. Of each type,
 * in the order of chain_grid_table: CHAIN_GRID_SLOT times where it stands, and the binary logarithm of a
 * block's bytes, or of copies, and 1; 0: no step is of that type. */
#define CHAIN_GRID_TYPES 6
#define CHAIN_GRID_LINE 256u
#define CHAIN_GRID_PAGE (256 * CHAIN_GRID_LINE) /* bytes of all lines, which come first */
#define CHAIN_GRID_SLOT 16u
#define CHAIN_GRID_AT CHAIN_K_RING /* where they begin, and what places are counted from */
struct chain_grids {
    uint32_t slot[CHAIN_GRID_TYPES];
};
/* Does the type stand in lines? */
GRID_CONST bool chain_grid_lines(uint32_t type)
{
    return type == KN_IQ3_XXS || type == KN_IQ3_S || type == KN_IQ2_XXS;
}
GRID_CONST int chain_grid_table(uint32_t type)
{
    return type == KN_IQ3_XXS   ? 0
           : type == KN_IQ3_S   ? 1
           : type == KN_IQ2_XXS ? 2
           : type == KN_IQ2_XS  ? 3
           : type == KN_IQ2_S   ? 4
                                : 5;
}
struct chain_args {
    const struct chain_step *step; /* device memory */
    int32_t count, same[2]; /* same: what is behind has its place: moved, long contexts take 2 % more */
    int32_t split;          /* steps have pairs that all blocks share */
    uint32_t ring;          /* bytes: chain/ring.cuh */
    uint32_t same_2, act, terms, keys; /* of shared memory: where activations, terms, keys and values begin */
    uint32_t net;  /* and what delta nets have there, or the row that is kept: chain/post.cuh */
    float *values; /* [2][set]: places */
    size_t set;
    unsigned extent;              /* places that the launch uses */
    const struct chain_map *maps; /* device memory */
    struct uint2 *parts;          /* partial results: chain/attend.cuh */
    const void *same_3;           /* as same */
    unsigned *state;              /* [4]: the newest tag, launches, places that the newest used */
    struct uint2 *sums;           /* [2][CHAIN_SPLIT_SUMS][32]: of pairs that all blocks share */
    struct chain_grids grids;
};
#define CHAIN_SPLIT_SUMS 512 /* sums of slices of such pairs, and of slices that two blocks share */
#define CHAIN_BLOCKS 128     /* of 256 columns of a row, at most */
/* Shared memory before the ring: barriers of tiles and of descriptors; squares; who is where, the state;
 * plans; tiles; outputs kept; descriptors. */
#define CHAIN_TILES 64 /* tiles in the ring, fewer than */
#define CHAIN_K_SQUARES (8 * CHAIN_TILES + 24 * CHAIN_DESCS)
#define CHAIN_K_DONE (CHAIN_K_SQUARES + 4 * CHAIN_BLOCKS)
#define CHAIN_K_SPLIT (CHAIN_K_DONE + 128) /* the barrier of chain/split.cuh */
#define CHAIN_K_STATE (CHAIN_K_DONE + 16 + 128)
#define CHAIN_K_PLAN (CHAIN_K_STATE + 16)
#define CHAIN_K_TILES (CHAIN_K_PLAN + 32 * CHAIN_DESCS)
#define CHAIN_K_KEEP (CHAIN_K_TILES + 16 * CHAIN_TILES)
#define CHAIN_K_STEPS ((CHAIN_K_KEEP + 4 * CHAIN_KEEP + 127) / 128 * 128)
#define CHAIN_K_RING ((CHAIN_K_STEPS + CHAIN_DESCS * (int)sizeof(struct chain_step) + 127) / 128 * 128)

/* What the kernel of a chain can do beside the rest: nothing; outputs come early; so they do, and all blocks
 * share pairs (chain/split.cuh); outputs come early, keys and values through the ring; pairs that all
 * blocks share, chain/post.cuh and chain/wide.cuh, which has all attention then; delta nets or gated rows,
 * and no attention then; these and such pairs; steps of types other than K; these and keys through the ring;
 * quantised keys and values (chain/codes.cuh), with outputs early, and with such steps; those with these
 * where some are of Q2_K, Q3_K, Q4_1, Q5_1 or MXFP4; K types of any kind, outputs early; these and types with
 * grids (chain/grid.cuh): over short contexts, outputs early; over long ones; over quantised ones; the same
 * three with steps of other types; types with grids, others and delta nets. */
enum chain_form {
    CHAIN_FEW,
    CHAIN_PAIRS,
    CHAIN_SHARED,
    CHAIN_FAR,
    CHAIN_GEMMA,
    CHAIN_NETS,
    CHAIN_NETS_SHARED,
    CHAIN_ITEMS,
    CHAIN_ITEMS_FAR,
    CHAIN_NETS_ITEMS,
    CHAIN_CODES,
    CHAIN_ITEMS_CODES,
    CHAIN_LOW,
    CHAIN_LOW_FAR,
    CHAIN_NETS_LOW,
    CHAIN_LOW_CODES,
    CHAIN_KS,
    CHAIN_GRIDS,
    CHAIN_GRIDS_FAR,
    CHAIN_GRIDS_CODES,
    CHAIN_GRIDS_ITEMS,
    CHAIN_GRIDS_ITEMS_FAR,
    CHAIN_GRIDS_ITEMS_CODES,
    CHAIN_NETS_GRIDS,
    CHAIN_FORMS
};
/* chain.cu. What was collected, and what it is if it stays alone. */
struct chain_product { /* of one row */
    const char *name;
    const struct kn_weight *w[CHAIN_MATRICES];
    float *out[CHAIN_MATRICES];
    int32_t n_w;
    const float *x, *norm;
    float eps;
    bool add, gated;
    enum kn_act act;
    const float *gate; /* or NULL: x is multiplied by sigmoid of that first */
};
/* Chosen by measurement (docs/speed/decode.md). */
struct chain_tuning {
    int off;     /* 1: no chains */
    int least;   /* steps; 0: CHAIN_LEAST */
    int context; /* positions beyond which attention is a launch */
    /* of types other than K: */
    int tile;         /* bytes of a tile, at most */
    int items;        /* bytes on the way */
    int near;         /* positions beyond which keys and values come through the ring, also of wide rows */
    int k_ahead;      /* bytes on the way in the kernel of K types, at most; 0: as the ring has room */
    int split;        /* units of a block's own pairs, from which on all share what is left over; 0: never */
    int far_ahead;    /* as k_ahead: keys and values of a long context */
    int k_near;       /* positions beyond which they come through that kernel's ring */
    int code_heads;   /* kv heads of a set over quantised keys and values, if it may have as many; 0: by
                         positions */
    int wide;         /* 1: chain/wide.cuh and chain/post.cuh */
    int wide_ahead;   /* k_ahead of such chains */
    int head;         /* bytes of terms of a part of a head */
    int head_columns; /* of rows of a head that is steps of a chain, at most */
    int head_ahead;   /* k_ahead of those */
    int rows_ahead;   /* k_ahead where rows of more than 4,096 columns are normed, without delta nets */
    int split_normed; /* `split` of rows that are normed, or gated in the step */
};
extern struct chain_tuning chain_tuning;

/* ---- what was collected ---- */

struct chain_places;

/* A norm_add, and the product that its out is promised to (kn_next). y: NULL: none. tap: [width] or NULL: its
 * out is wanted there too. */
struct chain_add_op {
    struct mm_add add;
    float *tap;
    int64_t width;
    const struct kn_weight *w;
    const float *norm;
};
/* One of the operations, in full, should it be launched by itself. post: before it. tap: of a product of one
 * matrix: [n_out] or NULL: its outputs are wanted there too. */
struct chain_op {
    float *tap;
    bool attend, net; /* net: a delta net, whose product is the next */
    struct chain_add_op post;
    struct chain_product product;
    struct kn_delta delta;
    struct kn_delta_state delta_state;
    bool head,
        part; /* of a head of several steps; a step of a product that stands whole in an operation before */
    struct kn_rope_store store;
    struct kn_attention attention;
    struct kn_kv kv;
};
struct chain_state {
    struct chain_step step[CHAIN_STEPS];
    struct chain_map map[CHAIN_STEPS]; /* two of each attention over a long context */
    struct chain_op op[CHAIN_STEPS];
    uint32_t type;               /* of keys and values, where it attends: kv_form's */
    bool attends, far, items;    /* items: steps that chain_is_other knows */
    bool coded;                  /* and far: it attends over quantised keys and values */
    bool wide;                   /* rows of more than 4,096 columns are normed */
    bool nets;                   /* delta nets or gated rows: forms of chain/kernel.cuh alone have them */
    bool rounded;                /* the row that it begins with may not be in memory, but rounded */
    bool gemma;                  /* chain/post.cuh, chain/wide.cuh */
    struct chain_add_op waits;   /* behind the newest step, for the product that reads it */
    int32_t post;                /* the newest step with one before it; -1: none */
    size_t parts;                /* partial results that the chain has, at most */
    const int32_t *pos;          /* of all attention of the chain */
    const float *tapped;         /* outputs of a step that are in memory and have a tap; NULL: none */
    struct chain_step *direct;   /* device memory: the descriptors of a launch that is not recorded */
    struct chain_places *places; /* the largest; behind it those that recordings may still name */
    void *recorded; /* descriptors of the recording that is being made: a list, each begins with the next */
};

/* ---- planning ---- */

/* Pairs of panels of the block that has most. */
static inline int32_t pairs_a_block(const struct chain_step *s, int blocks)
{
    return (s->pairs - 1) / blocks + 1;
}
/* Bytes of a unit of its widest matrix. */
static inline int32_t widest_unit(const struct chain_step *s)
{
    int32_t widest = 0;
    for (int32_t j = 0; j < s->n_m; j++)
        if (s->m[j].unit_bytes > widest) widest = s->m[j].unit_bytes;
    return widest;
}
/* The step is of types that forms of K types alone lack: others than Q4_K, Q5_K and Q6_K; of those that only
 * forms of their own have: Q2_K, Q3_K, Q4_1, Q5_1, MXFP4; types with grids. */
bool chain_is_other(const struct chain_step *s);
bool chain_is_low(const struct chain_step *s);
bool chain_is_grid(const struct chain_step *s);
/* The product as a step; false: no chain has such. */
bool chain_step_of(const struct cuda_device *dev, const struct chain_product *p, struct chain_step *s);
/* Shared memory of the launch, and its blocks: each must have outputs in a step whose outputs are read, so
 * that none can be late for the tag. Returns bytes, or 0 where the ring would be too short. */
size_t chain_lay_out(const struct cuda_device *dev, struct chain_state *c, int32_t count,
                     struct chain_args *a, int *blocks);
/* Matrices of the product that want the activations of matrix `first`, as a step: a row of several kinds is a
 * step a kind, whose outputs stand where the product has them. taken: those that a step has; the step's are
 * added. */
bool chain_part_of(const struct cuda_device *dev, const struct chain_product *p, int32_t first, bool *taken,
                   struct chain_step *s);
/* The ring, and its tiles; smem: as chain_lay_out has it. Returns bytes with the ring, or 0. */
size_t chain_lay_out_ring(const struct cuda_device *dev, struct chain_state *c, int32_t count,
                          struct chain_args *a, int blocks, size_t smem);
/* Of outputs that later steps write again only the newest are wanted in memory. */
void chain_newest_outputs(struct chain_state *c, int32_t count);
/* The kernel of a chain that is laid out. */
enum chain_form chain_form_of(const struct chain_state *c, int32_t count, const struct chain_args *a);

/* Bytes that the kernel wants of shared memory, checked where it is compiled (chain/kernel_k.cu): attention
 * in place of activations and terms; keys and values; all of that in forms with early outputs, n_rep: heads a
 * kv head; over a long context, in place of both; delta nets and gated rows, and of the latter where terms
 * are; attention of chain/wide.cuh, by columns of a head. */
#define CHAIN_ATTEND_BYTES 17280
#define CHAIN_KEYS_BYTES 34816
#define CHAIN_LATE_BYTES(n_rep) ((n_rep) <= 8 ? 24448 : 30848)
#define CHAIN_FAR_BYTES(n_rep) (5152 + 4352 * (n_rep))
#define CHAIN_CODES_BYTES(n_rep) (19200 + 4352 * (n_rep))
#define CHAIN_DELTA_BYTES 7952
#define CHAIN_GATED_BYTES 24576
#define CHAIN_WIDE_BYTES(head) ((head) == 512 ? 72064 : (head) == 256 ? 59776 : 34944)

#ifdef __cplusplus
}
#endif
#endif
