/* experts_plan.h - how products with the matrices that rows chose are run: the form, tiles, warps and stages,
 * a pure function of shapes, types, rows and device, in plain C. experts.cu asks and launches. None of it
 * changes a bit; experts.cuh has the concepts. */
#ifndef DFLASH_CUDA_EXPERTS_PLAN_H
#define DFLASH_CUDA_EXPERTS_PLAN_H

#include "../core/cuda.h"
#include "../product/mm_plan.h"

#ifdef __cplusplus
extern "C" {
#endif

#define EXPERTS_PAIRS 18432 /* of a launch, at most: 2,048 rows of 8 and a shared one */
#define EXPERTS_WHOLE_FF                                                                                     \
    1024 /* columns of an expert's h, at most, where one launch is a row's whole mixture */
#define WHOLE_LOGITS 512
#define WHOLE_ROW 3072 /* columns of a row, at most, that blocks of such a launch hand each other */
/* What blocks hand each other (experts/whole.cu, experts/router.cu), behind the tag. */
#define EXPERTS_WHOLE_VALUES ((size_t)WHOLE_LOGITS)
#define WHOLE_WORDS (16 * EXPERTS_WHOLE_FF + 2 * WHOLE_ROW) /* of a set: experts/whole.cuh */
#define EXPERTS_ROUTER_VALUES ((size_t)320 << 10)           /* experts/router.cu's */
#define EXPERTS_VALUES_BYTES (256 + 8 * (EXPERTS_WHOLE_VALUES + EXPERTS_ROUTER_VALUES))
#define EXPERTS_WORDS_BYTES ((size_t)8 * WHOLE_WORDS) /* two sets, behind the values */
#define EXPERTS_ROW_BYTES                                                                                    \
    ((size_t)32 * 33 * 16)     /* a row on its way to a mixture, behind the words: experts/hand.cuh */
#define EXPERTS_ROUTER_ROWS 64 /* that the router's own kernel takes */
#define EXPERTS_MATRICES 1024
#define EXPERTS_USED 33                       /* of a row, at most: as route.cu, and a shared one */
#define EXPERTS_SUMS_BYTES ((size_t)64 << 20) /* sums of pairs on their way to rows */
#define EXPERTS_GROUPS 8                      /* warps that sort */

enum experts_form { EXPERTS_PLAIN, EXPERTS_HELD, EXPERTS_SOLO, EXPERTS_STAGED, EXPERTS_OWNED, EXPERTS_FORMS };

struct experts_tile {
    uint16_t expert, count, first, unused; /* pairs order[first ..] */
};

/* Shared memory of a block, bytes from its start; the rings follow the barriers at MM_BARS. sums: of slices
 * on their way to one (PLAIN, STAGED), or of pairs (OWNED); act: STAGED, a tile's activations, row_bytes
 * apart. Sorting many pairs has the place of
 * both before. */
struct experts_memory {
    uint32_t tiles, order, sums, act, row_bytes, total;
    uint32_t few;  /* sorting few pairs */
    uint32_t grid; /* mm_points */
};

struct experts_args {
    const uint8_t
        *w[4]; /* gate and up, or down: [matrices][all_panels][units]; from 2 on, of the shared expert */
    const uint8_t *host[2]; /* of the experts, where places has some below 0 */
    const int16_t *places;  /* NULL: an expert's matrix is in w, at its number; else kn_weight's */
    uint32_t type[4];
    int32_t unit_bytes[4];
    const uint8_t *rows; /* prepared activations [rows][slices][slice_row] */
    const float *x;      /* OWNED: not NULL: every block prepares them for itself, from [rows, n_in] */
    int32_t n_in;
    const int32_t *ids; /* [n, used] */
    const float *weights;
    float *out; /* gated: [n, used, ld]; PLAIN, STAGED: sums [n, used, ld]; OWNED: [n, ld] */
    int64_t ld;
    int32_t n, used, pairs, n_mat; /* the shared expert, the last, included */
    int32_t shared;                /* its id, or -1 */
    uint32_t per_row; /* 2^32 / pairs that share a row of activations, rounded up; 0: each has its own */
    int32_t all_panels, first_panel, panels; /* of a matrix; of this launch */
    int32_t n_out;
    int32_t units, slice_units, slices, slice_row;
    int32_t members, slice_warps, warps;
    int32_t parts; /* sums that a member's warps leave: slices, or 1 where one warp has them all */
    int32_t tile;  /* pairs of a tile at most */
    int32_t run;   /* panels that a block takes of a tile at a time */
    int32_t stages, stage_units, stage_bytes;
    int32_t act, add;
    int32_t early; /* ids may be read before the wait */
    int32_t few;   /* a thread a pair sorts */
    struct mm_points points;
    struct experts_memory at;
};

static inline size_t experts_sort_bytes(int32_t pairs, int32_t n_mat)
{
    return 2 * ((size_t)(pairs + 7) / 8 * 8 + (size_t)(EXPERTS_GROUPS + 1) * (size_t)n_mat + 64);
}
/* Tiles at most. */
static inline int32_t experts_most_tiles(int32_t pairs, int32_t n_mat, int32_t tile)
{
    const int32_t distinct = pairs < n_mat ? pairs : n_mat, most = distinct + pairs / tile;
    return most < pairs ? most : pairs;
}
static inline size_t experts_few_bytes(int32_t pairs)
{
    return 8 * ((size_t)(pairs + 7) / 8 * 8) + 16;
}

/* ---- planning ---- */

/* One product: gate and up, or down, of n rows that use `used` experts each (the shared one included). */
struct experts_shape {
    int32_t n, used, n_mat; /* n_mat: without the shared one */
    int64_t n_in, n_out;
    int32_t members;  /* 2: gate and up; 1: down */
    bool shared;      /* one of used is an expert that all rows share */
    uint32_t type[4]; /* of w[members]; from 2 on of the shared expert's */
};
struct experts_choice {
    bool found; /* a kernel fits */
    enum experts_form form;
    int log2_tiles;
    int low;       /* the highest mm_low of the matrices */
    unsigned grid; /* blocks at most */
};
/* Shapes and slices to a, and how it is run; false: rows are too long. */
bool experts_plan(const struct cuda_device *dev, const struct experts_shape *s, struct experts_args *a,
                  struct experts_choice *c);
/* Of a launch of a->panels panels: a->run; returns blocks that have something to do. */
unsigned experts_plan_blocks(const struct experts_choice *c, struct experts_args *a);
/* Down, not OWNED: panels of a launch whose sums of pairs there is room for. */
int32_t experts_plan_panels(const struct experts_args *a);
/* Rows of a call that are run at a time, in equal parts: as many as tables of pairs and rows_bytes of
 * prepared activations have room for; 0: not even one fits; -1: they are too long. s->n: of the call. */
int32_t experts_plan_rows(const struct cuda_device *dev, const struct experts_shape *s, size_t rows_bytes);
/* Is there code for it? */
bool experts_has(enum mm_act act, int log2_tiles, enum experts_form form, bool generic);

#ifdef __cplusplus
}
#endif
#endif
