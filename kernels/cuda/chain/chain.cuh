/* chain.cuh - one row through many operations in a single launch: products, each of which reads what the one
 * before wrote, and attention between them; all layers of a dense model.
 *
 * Concepts. A *step* is a product (norm_linear, linear, norm_gated) of one row with weights of Q4_K, Q5_K
 * and Q6_K, of Q8_0, Q4_0, Q5_0 and IQ4_NL, of F16 or of BF16, or attend or delta of one row. A *chain* is a
 * run of steps. The operations collect steps (chain_add, chain_attend); whatever else is launched, copied or
 * waited for first launches what was collected (chain_flush), so that the stream's order is kept. A chain too
 * short to pay, or without room, goes out as the launches it stands for.
 *
 * A launch is one block a multiprocessor, all of them resident. In a block one warp asks for weights, through
 * all steps and without waiting for any activations, as far as a ring in shared memory has room
 * (chain/ring.cuh); another fetches the descriptors of steps and makes of them what is the block's own; a
 * third writes outputs of gates and ups while others of the block are multiplied. The rest multiply and
 * attend. Blocks do not meet between steps: every
 * step has a place of its own for its outputs, where CHAIN_NOT_YET stands (a NaN that no arithmetic gives)
 * until they are written, and whoever needs a value reads until it is another. So a step costs one trip
 * through the L2 cache, where a flag would need a fence, a flag's trip and the value's. Launches take two
 * sets of places in turn; each makes the set of the launch before, as much of it as that one used, what it
 * has to be again: launches do not overlap in what they write, so nothing is ever overrun.
 *
 * A norm_add between a product and the norm of the next is part of the step behind it (chain/post.cuh).
 * Windows, heads of 256 and 512 and values that are normed or made of the keys' projection: chain/wide.cuh,
 * over what short contexts are. Both are of K types alone, in an instance of their kernel that other chains
 * do not use.
 *
 * Attention's partial results are many, and have one place for all layers: each comes as {value, tag} in one
 * store, with a tag that is used once. They are read in the step that writes them. A block writes those of
 * the next layer when it has seen queries there, which depend on all outputs of the product before, so on all
 * results of attention, so on whatever was read for them.
 *
 * A gated delta net is a step between its projections and the product of its outputs (chain/delta.cuh), with
 * weights of K types, in forms of chain/kernel_k.cu's kernel of their own. Gated attention between delta nets
 * ends a chain: it is a launch, and the next chain begins with the product of its results, which gates them.
 *
 * Over a short context keys and values have a place of their own beside the ring, asked for during the step
 * before, or, where outputs come early, stand in turn where activations and terms were, brought to the L2
 * cache steps before (chain/attend.cuh); over a long one, which the bound of positions tells, they come
 * through the ring like weights (chain/far.cuh, chain/far_ring.cuh).
 *
 * Arithmetic: that of mm_int.cuh and attention/step.cuh to the bit; of types other than K: chain/items.cuh.
 * One row needs one column of the mma's B; here its eight columns are the sub-blocks of a 256-column block,
 * so that one accumulator holds all of their sums and the integer scales are applied once a lane. A unit's
 * sum and its float factor are a *term*; terms of a row are added as mm_kernel.cuh adds them: by units within
 * a slice, then slices. Two panels are multiplied at a time and share what is made from the activations. */
#ifndef DFLASH_CUDA_CHAIN_CUH
#define DFLASH_CUDA_CHAIN_CUH

#include "../attention/kv.cuh"
#include "../product/mm.cuh"

#define CHAIN_STEPS 640       /* of a chain, at most */
#define CHAIN_LEAST 8         /* steps below which the launches go out one by one */
#define CHAIN_WARPS 8         /* that multiply */
#define CHAIN_HEADS 8         /* of them, that attend: attention's structure */
#define CHAIN_MATRICES 4      /* of a step */
#define CHAIN_WIDTH 65536     /* outputs of a step, at most */
#define CHAIN_NORM_BLOCKS 2   /* of 256 columns that a warp keeps of a row that is normed */
#define CHAIN_K_NORM_BLOCKS 3 /* the same in chain/kernel_k.cu */
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
enum chain_kind { CHAIN_K, CHAIN_32, CHAIN_F16, CHAIN_BF16 };

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
};
struct __align__(16) chain_step
{
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
    int32_t far;     /* a long context, keys and values through the ring: tiles of 16 times that; 0: not */
    int32_t replays; /* the delta net so many steps behind takes rows that are pending before this step */
    int32_t again;   /* it reads what the step before it reads */
    struct chain_net d;
    int32_t head, window, v_norm; /* columns of a head; 0: all positions; values are normed */
    int32_t k_from, v_from;       /* of what is read, where keys begin; values: with them, or behind them */
    /* What the row is before its norm, chain/post.cuh: (old row + norm(what the step before gives) * post) *
     * post_scale. post: NULL: that itself. */
    const float *post, *post_x; /* post_x: the old row in memory; NULL: the block has kept it */
    float *post_out;            /* the new one, or NULL */
    float post_eps, post_scale;
    /* As ahead, before the step's products begin: in chains of near_keys and with types other than K; and
     * what comes to the L2 cache behind the ring while it is full: tiles, in chains of near_keys alone. */
    int32_t before, bring;
};
/* What the device must know of a ring of keys or values to gather rows of a head: chain/map.cu. */
struct __align__(128) chain_map
{
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
    uint2 *parts;                 /* partial results: chain/attend.cuh */
    const void *same_3;           /* as same */
    unsigned *state;              /* [4]: the newest tag, launches, places that the newest used */
    uint2 *sums;                  /* [2][CHAIN_SPLIT_SUMS][32]: of pairs that all blocks share */
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

/* chain/kernel_k.cu */
cudaError_t chain_k_open(int smem);
/* What the kernel of a chain can do beside the rest: nothing; outputs come early; so they do, and all blocks
 * share pairs (chain/split.cuh); keys and values come through the ring, and no outputs early; pairs that all
 * blocks share, chain/post.cuh and chain/wide.cuh, which has all attention then; delta nets or gated rows,
 * and no attention then; these and such pairs; steps of types other than K; these and keys through the ring.
 */
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
    CHAIN_FORMS
};
cudaError_t chain_k_launch(const struct cuda_backend *be, const struct chain_args *a, bool bf16,
                           enum chain_form form, int blocks, size_t smem);
/* chain/map.cu: boxes of `rows` rows of half a head. False: this driver has no such maps. */
/* Bytes of attention in shared memory: in place of activations and terms; keys and values; all of that in
 * forms with early outputs, n_rep: heads a kv head. */
size_t chain_attend_bytes(void);
size_t chain_keys_bytes(void);
size_t chain_late_bytes(int32_t n_rep);
size_t chain_delta_bytes(void);        /* of delta nets and gated rows */
size_t chain_gated_bytes(void);        /* of the latter where terms are */
size_t chain_wide_bytes(int32_t head); /* both in place of activations and terms */
size_t chain_far_bytes(int32_t n_rep); /* over a long context, in place of both; n_rep: heads a kv head */

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
int chain_open(struct cuda_backend *be);
void chain_close(struct cuda_backend *be);
/* Collects the operation and returns 1, or 0 where it does not fit a chain (what was collected is launched
 * then), or an error. */
int chain_add(struct cuda_backend *be, const struct chain_product *p);
int chain_attend(struct cuda_backend *be, const struct kn_rope_store *s, const struct kn_attention *a);
int chain_norm_add(struct cuda_backend *be, const struct mm_add *add, int64_t width);
/* The same of a delta net and of out += W times its outputs. */
int chain_delta(struct cuda_backend *be, const struct kn_delta *a, float *out, const struct kn_weight *w);
/* The newest of what was collected, where it is out += W x. drop: launches all but it, and what gates its
 * row; it is the caller's then. */
bool chain_last(const struct cuda_backend *be, const float *out, struct chain_product *p);
int chain_drop_last(struct cuda_backend *be);
/* mm.cu, attention.cu, delta/step.cu, gate_rows.cu: launch it by itself; the delta net so that its outputs
 * lie rounded for w, or in a->out; the row of p gated, and rounded for the product. */
int chain_alone(struct cuda_backend *be, const struct chain_product *p);
int chain_attend_alone(struct cuda_backend *be, const struct kn_rope_store *s, const struct kn_attention *a);
int chain_delta_alone(struct cuda_backend *be, const struct kn_delta *a, const struct kn_weight *w);
int chain_gate_alone(struct cuda_backend *be, const struct chain_product *p);
/* Descriptors that the recording being made needs: to whoever frees them; and that. */
void *chain_take(struct cuda_backend *be);
void chain_give(struct cuda_backend *be, void *descriptors);

/* Chosen by measurement (docs/speed/decode.md). */
struct chain_tuning {
    int off = 0;          /* 1: no chains */
    int least = 0;        /* steps; 0: CHAIN_LEAST */
    int context = 262144; /* positions beyond which attention is a launch */
    /* of types other than K: */
    int tile = 8704;     /* bytes of a tile, at most */
    int items = 65536;   /* bytes on the way */
    int near = 4096;     /* positions beyond which keys and values come through the ring, also of wide rows */
    int k_ahead = 64512; /* bytes on the way in the kernel of K types, at most; 0: as the ring has room */
    int split = 20; /* units of a block's own pairs, from which on all share what is left over; 0: never */
    int far_ahead = 65536;   /* as k_ahead: keys and values of a long context */
    int k_near = 1024;       /* positions beyond which they come through that kernel's ring */
    int wide = 1;            /* 1: chain/wide.cuh and chain/post.cuh */
    int wide_ahead = 82944;  /* k_ahead of such chains */
    int head = 20480;        /* bytes of terms of a part of a head */
    int head_columns = 2560; /* of rows of a head that is steps of a chain, at most */
    int head_ahead = 64512;  /* k_ahead of those */
    int rows_ahead = 73728; /* k_ahead where rows of more than 4,096 columns are normed, without delta nets */
    int split_normed = 64;  /* `split` of rows that are normed, or gated in the step */
};
extern struct chain_tuning chain_tuning;
extern long chain_launched, chain_heads; /* chains, and of them with a head, by this process: for tests */

#endif
