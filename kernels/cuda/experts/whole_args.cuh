/* experts/whole_args.cuh - a mixture of one row in a single launch (experts/whole.cu): its arguments, a
 * block's shared memory, and the words that blocks hand each other. */
#ifndef DFLASH_CUDA_EXPERTS_WHOLE_ARGS_CUH
#define DFLASH_CUDA_EXPERTS_WHOLE_ARGS_CUH

#include "experts.cuh"
#include "unit.cuh"
#include "../product/mm_kernel.cuh"
#include "../core/ops.cuh"
#include "../core/patience.cuh"
#include "route.cuh"
#include "../core/tagged.cuh"

#define WARPS 24      /* that multiply; one more chooses */
#define PAIRS_MOST 8  /* of a block: panels of gate, and the same of up */
#define PANELS_MOST 2 /* of a block: of outputs */
#define SLOTS_MOST 16 /* experts of a row */
#define CHOICE 256    /* experts at most */
#define ROW_UNITS (WARPS / 2)
#define BEFORE_UNITS 32                 /* of 256 columns of the row of the product before, at most */
#define BEFORE_LATE 24                  /* blocks without a panel of the product before, at least */
#define BEHIND_MOST 8                   /* panels of a block, of the products behind */
#define WHOLE_X (16 * EXPERTS_WHOLE_FF) /* in a set of words: h; x before, x after the mixture */
#define WHOLE_Y (WHOLE_X + WHOLE_ROW)
#define WHOLE_TICKET 2 /* behind the tag and the set: counts a launch's blocks as they start */

struct whole_memory { /* at the start of a block's */
    uint64_t pair[PAIRS_MOST], slot[SLOTS_MOST], before, behind[BEHIND_MOST];
    float squares[ROW_UNITS], part[3][ROW_UNITS], weights[SLOTS_MOST];
    float old[PANELS_MOST][16]; /* what outputs are added to */
    int32_t ids[SLOTS_MOST];
    int32_t panel[2], panels; /* of the product before, and how many */
    unsigned tag;
    uint32_t *words; /* the set that this launch uses */
};
#define WHOLE_HEAD ((sizeof(struct whole_memory) + 127) / 128 * 128)

/* What else such a launch may be: x += W row before the mixture, of a row that lies rounded in memory. w
 * NULL: not. */
struct whole_before {
    const uint8_t *w, *rows;
    uint32_t type;
    const uint4 *hand;                            /* not NULL: the row comes as words (experts/hand.cuh) */
    int32_t bytes, units, slice_units, slice_row; /* bytes: of a unit */
    unsigned salt;                                /* of their tag */
    int32_t late;     /* blocks that have no panel, the last to start; 0: block i has panel i */
    uint32_t at_more; /* of a block's second panel */
};
/* And products of the new x, normed. panels: of all; 0: none. */
struct whole_behind {
    const uint8_t *w[KN_MATRICES];
    float *out[KN_MATRICES];
    int32_t n_out[KN_MATRICES], panel_end[KN_MATRICES], bytes[KN_MATRICES];
    uint32_t type[KN_MATRICES];
    const float *norm;
    float eps;
    int32_t panels, slice_units;
    int32_t per, early; /* panels of a block, at most; of them asked for when gate and up are done with */
    uint32_t slot;      /* bytes of a panel, at most */
};
struct whole_args {
    const uint8_t *router[2];                 /* packed F32: of the experts, of the shared one (or NULL) */
    const uint8_t *gate[2], *up[2], *down[2]; /* of the experts, of the shared one */
    const uint8_t *host[3];                   /* gate, up and down of experts in the host's memory */
    const int16_t *places;                    /* NULL: there are none; else kn_weight's */
    uint32_t type[2], down_type[2];
    int32_t bytes[2], down_bytes[2]; /* of a unit */
    const float *x, *norm, *router_norm;
    float eps;
    struct kn_route route;
    float *logits, *shared_logits, *h, *out, *tap; /* tap: NULL, or where out is wanted too */
    unsigned long long *values;                    /* {value, tag}: [n_expert + 1] logits */
    uint32_t *words;            /* two sets of WHOLE_WORDS: [slots][h_blocks][256] h; WHOLE_X */
    unsigned *tag;              /* and the set */
    int32_t units, slice_units; /* of 256 columns: a row, its slices */
    int32_t h_units, h_blocks, h_terms,
        ff; /* of h of an expert: down's units, runs of 256 columns, terms of a sum */
    int32_t h_panels, out_panels, n_out, h_row; /* h_row: bytes of an expert's rounded h */
    int32_t small; /* down's units are of 32 columns: a warp has all of an expert's for a panel */
    int32_t over;  /* down's weights lie where gate's and up's were */
    int32_t slots, pairs, per,
        outs; /* experts a row; h_panels of all; a block's, at most; panels of outputs a block */
    int32_t act, add;
    uint32_t per_units, per_panels, per_cuts;          /* for whole_over: units, h_panels, (units + 1) / 2 */
    uint32_t at_act, at_h, at_terms, at_pair, at_down; /* shared memory */
    struct whole_before before;
    struct whole_behind behind;
};

/* What stands around the mixture of a kernel: whatever the arguments say; a product before, whose row is
 * handed over, and products behind; nothing. */
enum whole_place { ANY, AROUND, ALONE };
template <enum whole_place P> DEV bool has_before(const whole_args &a)
{
    return P == AROUND || (P == ANY && a.before.w);
}
template <enum whole_place P> DEV bool has_behind(const whole_args &a)
{
    return P == AROUND || (P == ANY && a.behind.panels);
}
template <enum whole_place P> DEV bool is_handed(const whole_args &a)
{
    return P == AROUND || (P == ANY && a.before.hand);
}

/* t / d, t <= 1,024, by 2^20 / d + 1. */
DEV int whole_over(int t, uint32_t per)
{
    return (int)((uint32_t)t * per >> 20);
}
DEV void warps_meet(int bar, int warps)
{
    asm volatile("bar.sync %0, %1;" ::"r"(bar), "r"(32 * warps) : "memory");
}

/* Who arrives does not wait for those who meet. */
DEV void warps_arrive(int bar, int warps)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(bar), "r"(32 * warps) : "memory");
}

/* ---- values that blocks hand each other ---- */

/* Words that stand for themselves (as in chain/sync.cuh): until one is written, WHOLE_NOT_YET stands there, a
 * NaN that no arithmetic gives. A launch uses one of two sets and clears the other, which the one before has
 * used. */
#define WHOLE_NOT_YET 0xffffffffu

/* Where a column lies in its 256, so that lane c / 8 finds its eight in two 16-byte reads, each 512 bytes of
 * the warp. */
DEV int word_at(int column)
{
    return column / 256 * 256 + column % 8 / 4 * 128 + column % 256 / 8 * 4 + column % 4;
}
DEV void word_put(uint32_t *p, float v)
{
    const uint32_t x = __float_as_uint(v);
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(x == WHOLE_NOT_YET ? 0x7fffffff : x)
                 : "memory");
}
/* One that is known to be there. */
DEV float word_ask(const uint32_t *p)
{
    uint32_t x;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    return __uint_as_float(x);
}
/* The first `columns` of 256; zeros behind. COUNTED: others of the block wait for the same and have patience.
 */
template <bool COUNTED = false> DEV void words_get(float v[8], const uint32_t *words, int columns)
{
    const bool mine = 8 * (int)(threadIdx.x % 32) < columns;
    const uint32_t *p = words + 4 * (threadIdx.x % 32);
    uint32_t a[8];
    bool there;
    patience wait;
    do {
#pragma unroll
        for (int i = 0; i < 2; i++)
            asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(a[4 * i]), "=r"(a[4 * i + 1]), "=r"(a[4 * i + 2]), "=r"(a[4 * i + 3])
                         : "l"(p + 128 * i)
                         : "memory");
        if (!COUNTED) wait.turn();
        there = true;
#pragma unroll
        for (int i = 0; i < 8; i++) there = there && a[i] != WHOLE_NOT_YET;
    } while (!__all_sync(~0u, there || !mine));
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = mine ? __uint_as_float(a[i]) : 0.0f;
}
/* Tag and set of this launch, once the one before is complete. */
DEV void whole_turn(const whole_args &a, struct whole_memory *m)
{
    const uint2 last = __ldcg((const uint2 *)a.tag);
    m->tag = last.x + 1;
    m->words = a.words + (last.y ? 0 : WHOLE_WORDS);
}
/* The other set, for the next launch: thread i of the n of a block that call. */
DEV void whole_clear(const whole_args &a, const struct whole_memory *m, int i, int n)
{
    uint4 *const other = (uint4 *)(a.words + (m->words == a.words ? WHOLE_WORDS : 0));
    const uint4 none = make_uint4(WHOLE_NOT_YET, WHOLE_NOT_YET, WHOLE_NOT_YET, WHOLE_NOT_YET);
#pragma unroll 1
    for (int k = (int)blockIdx.x + (int)gridDim.x * i; k < WHOLE_WORDS / 4; k += (int)gridDim.x * n)
        __stcg(other + k, none);
}

#endif
