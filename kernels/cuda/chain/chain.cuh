/* chain.cuh - one row through many operations in a single launch: products, each of which reads what the one
 * before wrote, and attention between them; all layers of a dense model.
 *
 * Concepts. A *step* is a product (norm_linear, linear, norm_gated) of one row with weights of Q2_K to Q6_K
 * and IQ4_XS, of types with grids (IQ1 to IQ3), of blocks of 32 (Q8_0, Q4_0, Q5_0, Q4_1, Q5_1, IQ4_NL,
 * MXFP4), of F16, of BF16 or of F32, or attend or delta of one row. A product of matrices of several of these
 * kinds is a step a kind; these read the same row, and their outputs stand where those of one step would. A
 * *chain* is a run of steps. The operations collect steps (chain_add, chain_attend); whatever else is
 * launched, copied or waited for first launches what was collected (chain_flush), so that the stream's order
 * is kept. A chain too short to pay, or without room, goes out as the launches it stands for.
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
 * weights of K types, in forms of chain/kernel.cuh's kernel of their own. Gated attention between delta nets
 * ends a chain: it is a launch, and the next chain begins with the product of its results, which gates them.
 *
 * Over a short context keys and values have a place of their own beside the ring, asked for during the step
 * before, or, where outputs come early, stand in turn where activations and terms were, brought to the L2
 * cache steps before (chain/attend.cuh); over a long one, which the bound of positions tells, they come
 * through the ring like weights (chain/far.cuh, chain/far_ring.cuh), and so do quantised ones, rows of all
 * heads (chain/codes.cuh).
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
#include "chain_plan.h"

/* chain/kernel_k.cu */
cudaError_t chain_k_open(int smem);
cudaError_t chain_k_launch(const struct cuda_backend *be, const struct chain_args *a, bool bf16,
                           enum chain_form form, int blocks, size_t smem);

int chain_open(struct cuda_backend *be);
void chain_close(struct cuda_backend *be);
/* Collects the operation and returns 1, or 0 where it does not fit a chain (what was collected is launched
 * then), or an error. */
int chain_add(struct cuda_backend *be, const struct chain_product *p);
int chain_attend(struct cuda_backend *be, const struct kn_rope_store *s, const struct kn_attention *a);
int chain_norm_add(struct cuda_backend *be, const struct mm_add *add, int64_t width);
/* x, width values that the newest operation leaves, to `to` as well: in the launch where the step behind it
 * keeps x from memory, behind the launch else. Returns as chain_add. */
int chain_tap(struct cuda_backend *be, float *to, const float *x, int64_t width);
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
/* experts/whole.cu: the same of the mixture that waits; false: x is not what it leaves. */
bool experts_tap(struct cuda_backend *be, float *to, const float *x, int64_t width);
/* sample/rows.cu: a tap by itself. */
int chain_tap_alone(struct cuda_backend *be, float *to, const float *x, int64_t width);
/* Descriptors that the recording being made needs: to whoever frees them; and that. */
void *chain_take(struct cuda_backend *be);
void chain_give(struct cuda_backend *be, void *descriptors);

/* For tests: chains, and of them with a head, by this process; kv heads of a set over codes of the last one,
 * 0: it had none. */
extern long chain_launched, chain_heads;
extern int chain_set_heads;

#endif
