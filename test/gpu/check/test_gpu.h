/* test_gpu.h - what the files of test_gpu share. */
#ifndef DFLASH_TEST_GPU_H
#define DFLASH_TEST_GPU_H

#include "../../../kernels/cuda/core/cuda.h"
#include "../../unit/kernels/attention_case.h"
#include "../harness.h"

extern struct kn_backend *cpu, *gpu;
extern bool small; /* leave out what takes long under compute-sanitizer */

/* test_gpu_attention.c: rope_store, attention, both in one. */
void check_rope_store(void);
void check_attention(void);
void check_attention_forms(void);
void check_attention_extremes(void);
void check_attend(void);
/* The result of all rows of c, step of them a call, to be given to free(); of, q and pos are the host's. */
float *attend_rows(struct kn_backend *be, const struct att_case *c, const struct kn_kv *of, const float *q,
                   const int32_t *pos, int step);
/* test_gpu_sinks.c: attention with sinks. */
void check_sinks(void);
/* test_gpu_kv.c: quantised caches. */
void check_kv(void);

/* test_gpu_sparse.c: block-sparse prompts. */
void check_sparse(void);

/* test_gpu_cell.c: cell, spread, and a chain of picks. */
void check_cells(void);

/* test_gpu_weights.c: what rows attend to. */
void check_weights(void);

/* test_gpu_draft.c: what only drafters do, and its times. */
void check_conv(void);
void check_conv_then(void);
void check_top(void);
void check_edges(void);
void check_walk(const struct kn_sampler *samplers, size_t n_samplers);
void bench_draft(void);

/* Seconds a call, of so many. */
#define TIMED(seconds, times, call)                                                                          \
    do {                                                                                                     \
        for (int i_ = 0; i_ < 3; i_++) must(gpu, "bench", call);                                             \
        kn_op(gpu)->sync(gpu);                                                                               \
        double from_ = seconds_now();                                                                        \
        for (int i_ = 0; i_ < times; i_++) must(gpu, "bench", call);                                         \
        kn_op(gpu)->sync(gpu);                                                                               \
        seconds = (seconds_now() - from_) / times;                                                           \
    } while (0)

/* test_gpu_pair.c: logits and drafts of the pairs in dir, over the text at prompt. */
void check_pair(const char *dir, const char *prompt);
/* The same file: recorded cycles against those that are launched one by one. */
void check_cycles(const char *dir, const char *prompt, bool generic);
/* Plans drawn at random, of either pair. */
void check_plans(const char *dir, const char *prompt);
void check_pieces(const char *dir, const char *prompt);

#endif
