/* many_impl.cuh - what the files of many.cuh share: panels (many_panel.cu), activations (many_rows.cu), the
 * library (many_lt.cu), and the order of all of it (many.cu). Launches go to the stream given and are checked
 * by the caller. */
#ifndef DFLASH_CUDA_MANY_IMPL_CUH
#define DFLASH_CUDA_MANY_IMPL_CUH

#include "many.cuh"
#include "../product/mm.cuh"

#include <cuda_fp16.h>

#define MANY_WORKSPACE ((size_t)32 << 20)

struct many_lt; /* the library, its handle, and the algorithms it chose */

struct many_state {
    struct many_lt *lt;
    int32_t rows;
    int64_t n_in;
    size_t panel_bytes, gate_bytes;
    uint8_t *all;      /* one allocation: */
    uint8_t *panel[2]; /* [panel_bytes] f16 of a panel */
    __half *act;       /* [rows, n_in padded] */
    float *factor;     /* [rows] what a row's results are multiplied by: a power of two */
    float *sums[2];    /* [gate_bytes / 2] outputs of gate and up of a panel, or of several small weights */
    void *workspace;
    cudaStream_t side, tail;         /* side dequantises, tail gates */
    cudaEvent_t ready[2], done[2];   /* a half of the panels: dequantised; multiplied */
    cudaEvent_t summed[2], gated[2]; /* a half of the sums: multiplied; gated */
    int turn, sums_turn;             /* the halves that come next */
};

/* ---- many_panel.cu ---- */

struct panel_args {
    const uint8_t *packed; /* at the first panel of 16 rows */
    __half *dst;           /* [rows, ld] */
    int64_t ld, panel_bytes;
    int32_t units, panels; /* units a panel of 16 rows; such panels */
    float scale;
};
/* Rows first .. of w; dst and scale are the caller's to fill. */
struct panel_args many_panel_args(const struct kn_weight *w, int32_t first, int32_t rows);
cudaError_t many_unpack(const struct cuda_backend *be, cudaStream_t s, uint32_t type,
                        const struct panel_args *a);

/* ---- many_rows.cu ---- */

struct act_args {
    const float *x, *norm;
    __half *act;
    float *factor, *residual; /* residual: [n, n_out], scaled with its row, or NULL */
    int64_t ld, n_out;
    int32_t n_in;
    float eps;
    int64_t pad; /* 0: act [n, ld]; else [ld / 64][pad][64], in the order of many_tile.cuh */
};
cudaError_t many_prepare(const struct cuda_backend *be, const struct act_args *a, int32_t n);

/* Rows that were scaled, back, in place. Nearly always there is none. */
struct restore_args {
    float *out[MM_WIDTH_MAX];
    int64_t n_out[MM_WIDTH_MAX];
    const float *factor;
    int32_t n_w;
};
cudaError_t many_restore(const struct cuda_backend *be, const struct restore_args *a, int32_t n);

/* sums [n, all of n_out, each rounded up to 16] to out[j] [n, n_out[j]], times the rows' factors. */
struct share_args {
    const float *sums, *factor;
    float *out[MM_WIDTH_MAX];
    int32_t n_out[MM_WIDTH_MAX], n_w, width;
};
cudaError_t many_share(const struct cuda_backend *be, const struct share_args *a, int32_t n);

/* out[n, n_out], from column 0: act(gate) * up; sums: [n, 2 rows], gate's first. rows is a multiple of 16. */
struct gate_args {
    const float *sums, *factor;
    float *out;
    int64_t n_out;
    int32_t rows, some, act; /* some: rows that exist */
};
cudaError_t many_gate(const struct cuda_backend *be, cudaStream_t s, const struct gate_args *a, int32_t n);

/* ---- many_tile.cu ---- */

/* Columns of a weight that come at a time, and the bytes of 16 rows of a unit. */
static __host__ __device__ constexpr int tile_stage_columns(uint32_t type)
{
    return type == KN_F16 || type == KN_BF16 || type == KN_F32 ? 64
           : type == KN_Q8_0 || type == KN_Q4_0 || type == KN_Q5_0 || type == KN_Q4_1 || type == KN_Q5_1 ||
                   type == KN_IQ4_NL
               ? 128
               : 256;
}
static __host__ __device__ constexpr int tile_unit_bytes(uint32_t type)
{
    return type == KN_Q4_K                        ? 2304
           : type == KN_Q5_K                      ? 2816
           : type == KN_Q6_K                      ? 3360
           : type == KN_IQ4_XS                    ? 2176
           : type == KN_Q3_K                      ? 1760
           : type == KN_Q2_K                      ? 1344
           : type == KN_Q8_0                      ? 544
           : type == KN_Q5_0                      ? 352
           : type == KN_Q5_1                      ? 384
           : type == KN_Q4_1                      ? 320
           : type == KN_Q4_0 || type == KN_IQ4_NL ? 288
           : type == KN_F32                       ? 2048
                                                  : 1024;
}
/* Kernels of many_tile.cuh have the types of one set: with more the assembler runs out of registers. */
enum tile_set { TILE_K, TILE_LOW, TILE_32, TILE_32_MORE, TILE_FLOAT };
static inline enum tile_set tile_set_of(uint32_t type)
{
    switch (type) {
    case KN_Q4_K:
    case KN_Q5_K:
    case KN_Q6_K: return TILE_K;
    case KN_Q2_K:
    case KN_Q3_K:
    case KN_IQ4_XS: return TILE_LOW;
    case KN_Q8_0:
    case KN_Q4_0:
    case KN_Q4_1: return TILE_32;
    case KN_Q5_0:
    case KN_Q5_1:
    case KN_IQ4_NL: return TILE_32_MORE;
    default: return TILE_FLOAT;
    }
}
struct tile_weight {
    const uint8_t *packed;
    float *out; /* [n, n_out] */
    int64_t panel_bytes;
    int32_t n_out, panels, stage_bytes; /* stage: of a panel, the columns that come at a time */
    uint32_t type;
    float scale, back; /* on the way to f16, and back: powers of two */
};
struct tile_args {
    struct tile_weight w[MM_WIDTH_MAX];
    int32_t first[MM_WIDTH_MAX]; /* the first tile of each */
    int32_t n_w, tiles, parts;   /* tiles of outputs; parts of N rows */
    int32_t n, groups, stages;   /* groups of 32 columns; stages of columns */
    int64_t pad;                 /* rows that act has room for */
    const __half *act;           /* [columns / 64][pad][64], turned: many_rows.cu */
    const float *factor;         /* [n] */
    bool add, gated;
    int act_kind;
    uint32_t magic; /* unpack.cuh */
};
/* Rows of the pass by outputs of a tile. A group has 64 outputs; those of a block share the rows. TWICE: two
 * blocks stand on a multiprocessor. */
enum tile_kind {
    TILE_256,       /* 256 by 128 */
    TILE_192,       /* 192 by 128 */
    TILE_128,       /* 128 by 128 */
    TILE_96_TWICE,  /* 96 by 64 */
    TILE_128_THREE, /* 128 by 192 */
    TILE_96_THREE,  /* 96 by 192 */
    TILE_64_TWO,    /* 64 by 128 */
    TILE_KINDS
};
/* A launch for weights of one set. */
cudaError_t many_tile_k(const struct cuda_backend *be, enum tile_kind kind, const struct tile_args *a);
cudaError_t many_tile_low(const struct cuda_backend *be, enum tile_kind kind, const struct tile_args *a);
cudaError_t many_tile_32(const struct cuda_backend *be, enum tile_kind kind, const struct tile_args *a);
cudaError_t many_tile_float(const struct cuda_backend *be, enum tile_kind kind, const struct tile_args *a);
/* The rows of a pass as many_prepare left them. */
struct tile_act {
    const __half *act;
    const float *factor;
    int64_t pad;
};
/* Can the kernel take the product? */
bool many_tiles(const struct cuda_backend *be, const struct mm_product *p);
cudaError_t many_tile_run(const struct cuda_backend *be, const struct mm_product *p,
                          const struct tile_act *act);
/* many.cu: what a weight is scaled by on the way to f16, 2^it; 2^e, in the range of floats. */
int many_scale_exponent(const struct kn_weight *w);
float many_power(int e);

/* ---- many_lt.cu ---- */

struct gemm {
    int64_t m, k, ldc; /* m: rows of the panel; out [n, ldc] */
    const __half *w, *act;
    float *out;
    float alpha, beta;
};
int many_lt_open(struct cuda_backend *be, struct many_lt **lt);
void many_lt_close(struct many_lt *lt);
/* out[n, m of ldc] = beta out + alpha act W^T, on the backend's stream. */
int many_lt_multiply(struct cuda_backend *be, const char *name, const struct gemm *g, int32_t n);

#endif
