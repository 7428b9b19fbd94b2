/* cuda.h - what kernels/backend.c (C) calls of the CUDA backend. Only in builds with CUDA. */
#ifndef DFLASH_CUDA_H
#define DFLASH_CUDA_H

#include "../../kernels.h"
#include "forms.h"

#ifdef __cplusplus
extern "C" {
#endif

/* o->device is "cuda" or "cuda:N". On failure *be is NULL and msg says why (KN_EDEVICE, KN_EMEM, KN_EINVAL).
 */
int cuda_open(struct kn_backend **be, const struct kn_open *o, char *msg, size_t n);
void cuda_close(struct kn_backend *be);
int cuda_devices(void);                        /* 0: none, or no driver */
bool cuda_is_early(const struct kn_backend *); /* kernels start while the one before still runs: compute
                                                  capability 9.0, not generic. For tests */

/* Launches of each form since the backend was opened [CUDA_FORMS]; what is recorded counts once. For tests
 * and benchmarks. */
const uint64_t *cuda_forms(const struct kn_backend *);
const char *cuda_form_name(enum cuda_form form);

/* How attention is launched; none of it changes a bit of the results. For benchmarks and tests. 0: as
 * attention.cu chooses. */
struct cuda_attention_tuning {
    int unit;    /* partial results of 1: leaves; 2: nodes */
    int tiles;   /* of a block, at most: 1, 2 or 4 */
    int per;     /* units a block, at least */
    int spread;  /* blocks in place of as many as are resident, in percent of these */
    int slots;   /* of the ring of a block with one tile, at most */
    int apart;   /* 1: rope_store is a launch of its own */
    int fold;    /* rows up to which it is not */
    int plain;   /* 1: nothing is prepared for the product that follows */
    int warps;   /* of a prefill block: 4 or 8 */
    int late;    /* 1: nothing is read before the wait for the kernel before */
    int near;    /* clusters at short contexts: 1: never; 2: also where they take turns */
    int cluster; /* blocks of a cluster: 8 or 16 */
    int places;  /* few rows over few keys in one launch (attn_places): 1: never; 2: also where clusters would
                    do */
    int prefill; /* 1: more than 64 rows without products of four warps */
    int alone;   /* 17 to 64 rows, a block a tile (attn_alone): 1: never; 2: any rows, wherever it can be */
    int far; /* 2 to 64 rows over long contexts by products of four warps (attn_far): 1: never; 2: wherever it
                can be, with nodes or leaves as unit says */
    int made; /* rows that a launch before makes (attn_made, attn_columns): 1: never; 2: wherever it can be */
};
extern struct cuda_attention_tuning cuda_attention_tuning;
/* How the delta nets of a prompt are run (delta/many.cu). For benchmarks and tests. */
struct delta_tuning {
    int segment;     /* rows whose blocks are made at a time, a multiple of 32 */
    bool rows;       /* token by token, as a step is */
    int chunks_from; /* rows from which a call that is fused with its product goes by chunks (chunks.cuh) */
    bool apart;      /* rows that may be rejected: state, norm and rounding for the next product as kernels of
                        their own */
};
extern struct delta_tuning delta_tuning;
/* How products of more than 64 rows are run (many.cuh). For benchmarks and tests. */
struct many_tuning {
    size_t panel_bytes; /* of dequantised weights, twice */
    size_t gate_bytes;  /* of the outputs of gate and up, both halves together */
    int rows;           /* of one pass over the weights */
    bool alone;         /* dequantise on the stream of the products */
    bool beside;        /* gate on a stream of its own */
    bool together;      /* small weights as one */
    int tile_rows;      /* rows of a pass up to which tiles take it (compute capability 9.0); 0: never */
    int wide_rows;      /* rows up to which K types go through the kernels of 17 to 64 rows, 64 at a time */
    int tile;           /* only this one, 0 .. many_tile_kinds - 1; -1: as chosen */
};
extern struct many_tuning many_tuning;
extern const int many_tile_kinds;
/* How products of rows with the experts they chose are run (experts.cu). For benchmarks and tests; none of it
 * changes a bit. */
struct experts_tuning {
    int spread_rows;     /* rows up to which several warps share a panel */
    int held_rows;       /* rows up to which all rows' activations may stand in shared memory */
    int made_rows;       /* rows up to which the blocks of the owning form round activations themselves */
    int slice_warps;     /* that share a panel's slices */
    int copy_k;          /* units of 256 columns a copy */
    int copy_32;         /* units of 32 columns a copy, quantised types */
    int copy_float;      /* units of 32 columns a copy, float types */
    int staged_rows[2];  /* from, to: rows of the first product whose tiles' activations blocks take into
                            shared memory */
    int staged_pairs[2]; /* pairs an expert up to which tiles of the staged form have 8, and 16, of them */
    int staged_tile;     /* such tiles are of 8 << that; -1: by the pairs */
    int form;  /* only this one (enum experts_form), or, where it does not fit, the plain one; -1: any */
    int whole; /* rows up to which a mixture is one launch a row, where it fits */
    int apart; /* such a launch leaves alone: 1: the product before it; 2: those behind it */
};
extern struct experts_tuning experts_tuning;
extern bool gate_apart; /* gate_linear as gate and linear: for benchmarks and tests */
/* TFLOP/s of the library's bf16 product of 8,192 cubed, random data: the ceiling of a prompt. Waits. */
int many_ceiling(struct kn_backend *, double *tflops);

#ifdef __cplusplus
}
#endif
#endif
