/* chain/state.cuh - what a chain that is being collected is (chain.cu), and how it is laid out
 * (chain/layout.cu): who has which pairs of panels, where a block's shared memory goes. Host code. */
#ifndef DFLASH_CUDA_CHAIN_STATE_CUH
#define DFLASH_CUDA_CHAIN_STATE_CUH

#include "chain.cuh"

struct chain_places;

/* A norm_add, and the product that its out is promised to (kn_next). y: NULL: none. */
struct chain_add_op {
    struct mm_add add;
    int64_t width;
    const struct kn_weight *w;
    const float *norm;
};
/* One of the operations, in full, should it be launched by itself. post: before it. */
struct chain_op {
    bool attend, net; /* net: a delta net, whose product is the next */
    struct chain_add_op post;
    struct chain_product product;
    struct kn_delta delta;
    struct kn_delta_state delta_state;
    bool head, part; /* of a product of several steps; and it stands whole in an operation before */
    struct kn_rope_store store;
    struct kn_attention attention;
    struct kn_kv kv;
};
struct chain_state {
    struct chain_step step[CHAIN_STEPS];
    struct chain_map map[CHAIN_STEPS]; /* two of each attention over a long context */
    struct chain_op op[CHAIN_STEPS];
    uint32_t type;               /* of keys and values, where it attends: kv_form's */
    bool attends, far, items;    /* items: steps of other types than K */
    bool wide;                   /* rows of more than 4,096 columns are normed */
    bool nets;                   /* delta nets or gated rows: forms of chain/kernel_k.cu alone have them */
    bool rounded;                /* the row that it begins with may not be in memory, but rounded */
    bool gemma;                  /* chain/post.cuh, chain/wide.cuh */
    struct chain_add_op waits;   /* behind the newest step, for the product that reads it */
    int32_t post;                /* the newest step with one before it; -1: none */
    size_t parts;                /* partial results that the chain has, at most */
    const int32_t *pos;          /* of all attention of the chain */
    struct chain_step *direct;   /* device memory: the descriptors of a launch that is not recorded */
    struct chain_places *places; /* the largest; behind it those that recordings may still name */
    void *recorded; /* descriptors of the recording that is being made: a list, each begins with the next */
};

/* The product as a step; false: no chain has such. */
bool chain_step_of(const struct cuda_backend *be, const struct chain_product *p, struct chain_step *s);
/* Shared memory of the launch, and its blocks: each must have outputs in a step whose outputs are read, so
 * that none can be late for the tag. Returns bytes, or 0 where the ring would be too short. */
size_t chain_lay_out(const struct cuda_backend *be, struct chain_state *c, int32_t count,
                     struct chain_args *a, int *blocks);
/* The ring, and its tiles; smem: as chain_lay_out has it. Returns bytes with the ring, or 0. */
size_t chain_lay_out_ring(const struct cuda_backend *be, struct chain_state *c, int32_t count,
                          struct chain_args *a, int blocks, size_t smem);
/* Of outputs that later steps write again only the newest are wanted in memory. */
void chain_newest_outputs(struct chain_state *c, int32_t count);

#endif
