/* kernels.h - the one bridge between the library and the devices.
 *
 * Two concepts. A *backend* is one device with its memory, its threads or stream, and a table of operations;
 * it knows no files and no models. An *operation* computes rows: a row is one token's vector, and every
 * operation gives a row the same bits whatever other rows share the call (row invariance). On the CPU a row's
 * bits are also the same for scalar, AVX2 and AVX-512 code and for any number of threads, because every
 * reduction has a fixed shape (virtual lanes), every multiply-add is fused, and exp, log, sin and cos are
 * ours (kernels/cpu/math.h).
 *
 * Memory: pointers named in an operation are device pointers, taken from op->alloc (zeroed) and returned to
 * op->free; on the CPU they are ordinary memory. Shapes in comments are C order, the last dimension
 * contiguous. Errors: every operation returns 0 or a negative KN_E*; kn_message(be) then holds one line of
 * text. No operation prints or exits. None allocates but alloc, alloc_shared, those named load and reserve,
 * record_end, read_speed and product_speed; none waits for the device but download, sync, find_bad, await,
 * these and what gives memory back. One exception: layers of one row, collected on CUDA
 * (kernels/cuda/chain/chain.cu), take memory for what they hand on when they are first launched and when
 * later ones want more, tens of MB at most, of the margin that plans leave (kn_memory), and wait until it is
 * cleared; a recording of them takes memory for their descriptors. */
#ifndef DFLASH_KERNELS_H
#define DFLASH_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- tensor types: the numbers are those of the GGUF format ---- */

enum kn_type {
    KN_F32 = 0,
    KN_F16 = 1,
    KN_Q4_0 = 2,
    KN_Q4_1 = 3,
    KN_Q5_0 = 6,
    KN_Q5_1 = 7,
    KN_Q8_0 = 8,
    KN_Q8_1 = 9,
    KN_Q2_K = 10,
    KN_Q3_K = 11,
    KN_Q4_K = 12,
    KN_Q5_K = 13,
    KN_Q6_K = 14,
    KN_Q8_K = 15,
    KN_IQ2_XXS = 16,
    KN_IQ2_XS = 17,
    KN_IQ3_XXS = 18,
    KN_IQ1_S = 19,
    KN_IQ4_NL = 20,
    KN_IQ3_S = 21,
    KN_IQ2_S = 22,
    KN_IQ4_XS = 23,
    KN_I8 = 24,
    KN_I16 = 25,
    KN_I32 = 26,
    KN_I64 = 27,
    KN_F64 = 28,
    KN_IQ1_M = 29,
    KN_BF16 = 30,
    KN_TQ1_0 = 34,
    KN_TQ2_0 = 35,
    KN_MXFP4 = 39,
    KN_NVFP4 = 40,
    KN_Q1_0 = 41,
    KN_Q2_0 = 42,
    KN_TQ3_0 = 0x10000, /* of caches alone, no file's: forks number it as others number Q2_0 */
    KN_TYPE_NONE = 0xffffffff,
};

struct kn_type_info {
    uint32_t type;
    const char *name; /* upper case, as the ecosystem writes it: "Q4_K" */
    uint32_t block;   /* elements a block */
    uint32_t bytes;   /* bytes a block */
    bool can_decode;  /* kn_decode_row knows it */
    bool can_encode;  /* kn_encode_row knows it */
};
/* Does weight_load with KN_USE_LINEAR take it there? The tables that it asks; no device is needed. */
bool kn_cpu_multiplies(uint32_t type);
bool kn_cuda_multiplies(uint32_t type);
const struct kn_type_info *kn_type_info(uint32_t type);       /* NULL: unknown number */
const struct kn_type_info *kn_type_by_name(const char *name); /* any case; NULL: unknown name */
/* Bytes of n elements in a row; 0 if n is not a multiple of the block or the type is unknown. */
size_t kn_row_bytes(uint32_t type, int64_t n);

/* Reference codecs (kernels/blocks/). n: elements, a multiple of the block. Deterministic on every machine.
 * kn_encode_row: importance is NULL or [n] positive weights of the squared error. Source NaN/Inf: returns
 * KN_EINVAL. Both return 0, KN_ETYPE (no such codec) or KN_EINVAL. */
int kn_decode_row(uint32_t type, const void *src, float *dst, int64_t n);
int kn_encode_row(uint32_t type, const float *src, void *dst, int64_t n, const float *importance);

/* Scalar conversions, round to nearest even, all values (subnormals, Inf, NaN kept NaN). */
float kn_f16_to_f32(uint16_t h);
uint16_t kn_f32_to_f16(float f);
float kn_bf16_to_f32(uint16_t h);
uint16_t kn_f32_to_bf16(float f);

/* ---- errors ---- */
#define KN_EMEM (-1)    /* allocation failed */
#define KN_ETYPE (-2)   /* type or shape not supported */
#define KN_EINVAL (-3)  /* bad argument or value */
#define KN_EDEVICE (-4) /* the device failed, or there is none */
#define KN_ESTALE (-5)  /* a recording made before memory moved: record again */

/* ---- backends ---- */

struct kn_backend; /* opaque but for its first member, the operation table: be->op */

struct kn_open {
    const char *device; /* "cpu", "cuda", "cuda:1" */
    const char
        *isa; /* CPU only: NULL or "auto", "scalar", "avx2", "avx512". One not supported here is KN_EDEVICE */
    int threads;  /* CPU only: 0 = all online processors */
    bool generic; /* CUDA only: only kernels that run on any supported device */
    bool direct;  /* CUDA only: operations are launched one by one, none recorded */
};
/* On failure *be is NULL and msg (size n) holds why. */
int kn_backend_open(struct kn_backend **be, const struct kn_open *o, char *msg, size_t n);
void kn_backend_close(struct kn_backend *be);
const char *kn_message(const struct kn_backend *be);
const char *kn_backend_isa(const struct kn_backend *be); /* the instruction set in use; "" but for the CPU */
int kn_backend_threads(const struct kn_backend *be);     /* in use; 0 but for the CPU */
bool kn_cuda_built(void);
int kn_cuda_devices(void); /* 0 if none or not built */

/* ---- weights ---- */

#define KN_MATRICES 16 /* matrices of one norm_linear, at most */

#define KN_USE_LINEAR 1u /* for op->linear, norm_linear, norm_gated */
#define KN_USE_ROWS 2u   /* for op->embed */

/* A matrix [n_out, n_in] in blocks along n_in. data handed to weight_load is in file layout and must outlive
 * the weight (a mapped file): a backend may keep pointing at it for rows, and keeps its own streaming layout
 * for linear. */
struct kn_weight {
    uint32_t type;
    int64_t n_in, n_out;
    int32_t n_mat;    /* 0: one matrix; else the number of experts: data holds [n_mat, n_out, n_in] */
    const void *rows; /* file layout, where KN_USE_ROWS */
    void *packed;     /* the backend's layout, where KN_USE_LINEAR */
    size_t packed_bytes;
    int32_t exponent; /* CUDA: floor(log2) of the largest magnitude in packed */
    /* Experts of which some stay in the host's memory (kn_hosted). */
    int32_t n_host;  /* so many of n_mat; 0: none, and what follows is NULL */
    void *host;      /* theirs, in the layout of packed: memory that the device reads over its link */
    int16_t *places; /* [n_mat] device: an expert's place in packed; ~place, below 0, in host */
};

/* ---- KV cache ---- */

#define KN_KV_SPLIT 256 /* attention cuts the keys at absolute multiples of this and merges in order */

/* The types of a layer's keys and of its values. They may differ, and a layer's from its neighbour's. */
struct kn_kv_types {
    uint32_t k, v; /* KN_F16, KN_BF16, KN_F32, KN_Q8_0, KN_Q5_0, KN_Q4_0 or KN_TQ3_0 */
};

/* One layer's keys and values by absolute position. Where a position lies, how many bytes a row takes and
 * what a number of a type is are known to few: the functions below, kernels/kv_rows.h, kernels/cpu/kv*.h, and
 * kernels/cuda/attention/kv*.cuh. All else asks them.
 *
 * Today the positions lie in a ring of cap slots, a multiple of KN_KV_SPLIT. Whoever walks along positions
 * may rely on this alone: those of one split, [KN_KV_SPLIT * i, KN_KV_SPLIT * (i + 1)), lie side by side and
 * in order. A table of pages of KN_KV_SPLIT positions keeps that too.
 *
 * A row is a pure function of its token and its position: nothing in it is shared with other rows. k is
 * stored after its norm and rope. A quantised side is stored rotated (kernels/kv_rows.h): rope_store rotates
 * what it stores, attention its queries and its result, so that nobody else sees it. */
struct kn_kv {
    void *k, *v; /* [cap] rows of n_head_kv heads of head_dim, each of its type */
    struct kn_kv_types type;
    int32_t cap, n_head_kv, head_dim;
};

#define KN_KV_TYPES "f16, bf16, f32, q8_0, q5_0, q4_0 or tq3_0" /* that kn_kv_known knows, for messages */
bool kn_kv_known(uint32_t type);
bool kn_kv_coded(uint32_t type);          /* quantised, and rotated */
const char *kn_kv_name(uint32_t type);    /* upper case; "an unknown number" */
uint32_t kn_kv_by_name(const char *name); /* any case; KN_TYPE_NONE: no cache has it */
/* What divides the head size: values that a type takes at once. */
int32_t kn_kv_block(uint32_t type);
/* 0; or KN_ETYPE or KN_EINVAL and why (size n): a type, a ring or heads that no backend takes. */
int kn_kv_check(const struct kn_kv *kv, char *why, size_t n);
/* The least cap that holds so many positions. */
int32_t kn_kv_room(int64_t positions);
/* A cache like kv with room for so many positions; its k and v are NULL. */
struct kn_kv kn_kv_like(const struct kn_kv *kv, int32_t positions);
/* Positions that are held at once: the last so many. */
int32_t kn_kv_positions(const struct kn_kv *kv);
/* Bytes of one position's keys (type: kv->type.k) or values (kv->type.v), and of all slots. 0 where there are
 * none. */
size_t kn_kv_row_bytes(const struct kn_kv *kv, uint32_t type);
size_t kn_kv_bytes(const struct kn_kv *kv, uint32_t type);
/* Where position pos lies: its row of k and of v. */
int32_t kn_kv_slot(const struct kn_kv *kv, int32_t pos);
/* How many positions from pos on, most at most, lie side by side. */
int32_t kn_kv_run(const struct kn_kv *kv, int32_t pos, int32_t most);
/* A row's numbers on the host, [n_head_kv, head_dim], as they were before they were stored: row to x, and x
 * to row. */
void kn_kv_get(const struct kn_kv *kv, bool values, const void *row, float *x);
void kn_kv_put(const struct kn_kv *kv, bool values, const float *x, void *row);
/* Once last is written: is from still there? */
bool kn_kv_holds(const struct kn_kv *kv, int32_t from, int32_t last);

/* ---- sampling ---- */

/* The order of temperature and filters: 0 is temperature, top-k, top-p, min-p. Every filter keeps the first
 * of the ids in order of their logits, so an order is what top-p and min-p measure by, and of what top-p
 * takes its share: four bits. */
enum {
    KN_ORDER_TOP_P_RAW = 1,   /* top-p stands before the temperature: its probabilities are those at 1 */
    KN_ORDER_MIN_P_RAW = 2,   /* the same of min-p */
    KN_ORDER_TOP_P_FIRST = 4, /* top-p stands before top-k: its share is of all, not of the k */
    KN_ORDER_MIN_P_FIRST = 8, /* min-p stands before top-p: the share is of what min-p keeps */
};

struct kn_bias {
    int32_t id;
    float add; /* -Inf: never picked */
};

/* temp 0: argmax. top_k 0, top_p 1, min_p 0, repeat_penalty 1, presence 0, frequency 0: off. See
 * docs/sampling.md. */
struct kn_sampler {
    float temp, top_p, min_p, repeat_penalty;
    int32_t top_k, repeat_last;
    uint64_t seed;
    float presence, frequency; /* of ids among the last repeat_last, as repeat_penalty */
    uint32_t order;            /* KN_ORDER_* */
    int32_t n_bias;
    const struct kn_bias *bias; /* [n_bias] device memory, or NULL: every id once, in the vocabulary */
};

#define KN_PICK_NAN (-1) /* in place of an id: the row's logits hold a NaN or no finite maximum */

enum kn_act { KN_ACT_SILU = 0, KN_ACT_GELU_TANH = 1 };

/* ---- trees ---- */

#define KN_CYCLE_ROWS 64 /* rows of a cycle at most */
#define KN_TOP 32        /* candidates of a place at most */

/* Tried rows that stand behind each other as a tree, in device memory. Row 0 is the anchor; row r stands
 * behind row parent[r] < r. It sees what is committed, which is all before pos[0], and the rows of its path,
 * from row 0 to itself, no other. A chain is no tree here: it is run without one. */
struct kn_tree {
    int32_t ids[KN_CYCLE_ROWS];                 /* the rows' tokens */
    int32_t parent[KN_CYCLE_ROWS];              /* -1 of row 0 */
    int32_t pos[KN_CYCLE_ROWS];                 /* pos[0] and the length of the path behind row 0 */
    int32_t at[KN_CYCLE_ROWS];                  /* pos[0] + i */
    int32_t n_leaves;                           /* rows that none stands behind, */
    int32_t leaf[KN_CYCLE_ROWS];                /* rising */
    uint8_t path[KN_CYCLE_ROWS][KN_CYCLE_ROWS]; /* [r][i]: the row of r's path at pos[0] + i; behind r: r */
    /* The host writes what is above, op->follow what is below. */
    int32_t stays[KN_CYCLE_ROWS];    /* the rows that stay, a path from row 0 on; behind them 0 */
    int32_t stay_ids[KN_CYCLE_ROWS]; /* their ids */
};

/* From row 0 on: the row that stands behind the present one and whose id its pick equals is next. *kept
 * becomes the number of rows on the way, tree->stays and stay_ids which. */
struct kn_follow {
    struct kn_tree *tree;
    const int32_t *picks; /* [n] */
    int32_t n, *kept;
};

/* Of the rows that stay, in order: keys and values from tail to their positions in kv (kv NULL: none); row i
 * of log becomes the i-th's (log NULL: none), width floats a row. Whoever reads behind them reads anything.
 */
struct kn_settle {
    const struct kn_tree *tree;
    const int32_t *kept;
    int32_t most; /* *kept at most */
    const struct kn_kv *kv, *tail;
    float *log;
    int64_t width;
    const struct kn_settle
        *next; /* NULL, or another layer's of the same tree: the call takes the whole list */
};

/* Candidates of an offer's places, for the host, in memory that host and device share. */
struct kn_candidates {
    int32_t ids[(KN_CYCLE_ROWS - 1) * KN_TOP]; /* [n - 1, top] as op->top left them */
    float values[(KN_CYCLE_ROWS - 1) * KN_TOP];
    float scores[(KN_CYCLE_ROWS - 1) * KN_TOP *
                 KN_TOP]; /* [n - 1, top, top] as op->edges left them, where it did */
};

/* The noise of sampling (docs/sampling.md): what is added to the log-probability of an id whose pick stands
 * at a position. The bits of op->pick. */
double kn_noise(uint64_t seed, int32_t position, int32_t id);

/* ---- the operation table ----
 * n is the number of rows of a call, 1 or more. pos is [n] int32 in device memory: absolute positions,
 * ascending by one. x, q, k, v, out are float32. */

/* ---- block-sparse attention of a prompt (docs/sparse.md) ----
 *
 * Positions are cut into blocks of KN_SPARSE_BLOCK at absolute multiples. Of every block before the rows of a
 * call the means of keys and of values are kept, as a cache of which position b is block b. A block m of rows
 * attends to the blocks n <= m of its list alone, a list a KV head: the first `sink`, the last `window` (its
 * own among them), and those that any query head of that KV head keeps: with s(r, n) = scale * q_r . mean key
 * of n and of rows r that see all of block n,
 *
 *     M[n] = max_r s(r, n) in units of log 2, rounded up;  E[n] = sum_r exp(s(r, n)) / 2^M[n]
 *     kept: E[n] 2^M[n] >= alpha * max_n E[n] 2^M[n]
 *
 * A block that is not kept adds KN_SPARSE_BLOCK * exp(s(r, n)) to row r's sum of weights, and that times its
 * mean value to the weighted values. Scores, the shared maximum: FlashPrefill (arXiv 2603.06199); the
 * correction by means: its second version (2608.19758). */
#define KN_SPARSE_BLOCK 128
struct kn_sparse {
    float alpha;          /* 0: every block; above 1: none but sink and window */
    int32_t sink, window; /* blocks; window 1 or more */
    struct kn_kv mean;    /* of op->sparse_room, with memory */
    int32_t made;         /* blocks whose means are there; those after it, up to the last row's, are made */
    void *scratch;        /* of op->sparse_room; may be another layer's too */
    uint64_t *kept;       /* [2] device: += (block of rows, block) kept, and seen, of all KV heads */
    bool spread;          /* for tests and benchmarks: as many as are kept, but spread evenly, */
    float density;        /* or, above 0, so large a part of what is seen */
};
/* What sparse attention wants beside the cache. */
struct kn_sparse_room {
    struct kn_kv mean; /* its k and v are NULL */
    size_t scratch;    /* bytes */
};
/* Which of the blocks 0 .. m a block m of rows attends to: keep[m + 1]. score: [n_rep, m + 1] pairs M, E.
 * Returns how many. */
int32_t kn_sparse_keep(const struct kn_sparse *s, int32_t m, int32_t n_rep, const float *score, bool *keep);

struct kn_attention {
    const float *q;         /* [n, n_head, head_dim] after norm and rope */
    float *out;             /* [n, n_head, head_dim]; may not alias q */
    const struct kn_kv *kv; /* already holds the rows' own keys (op->rope_store before) */
    const int32_t *pos;     /* [n] */
    int32_t n, n_head;      /* query head h reads kv head h / (n_head / n_head_kv) */
    float scale;
    bool causal;    /* true: keys at positions <= the row's own. false: keys up to the last row's position
                       pos[n-1] */
    int32_t window; /* 0: none; else a key is visible iff row - key < window, and key - row < window where not
                       causal */
    const int32_t
        *first; /* NULL, or one int32 in device memory: keys at positions < *first are not visible */
    const struct kn_weight *then; /* NULL, or what linear will multiply out with next, with nothing between: a
                                     device may prepare for it. Results do not depend on it */
    const float *gate; /* NULL, or what gate_linear will gate out with before that, [n, n_head, head_dim] */
    /* NULL, or rows of a tree, in device memory; pos is its pos, causal. Its rows' keys and values are not in
     * kv: row r's are row r of tail, a cache of kv's shape and types (op->rope_store at positions 0 .. n - 1
     * of it). A row gets the bits that it has as the last row of its path, run as a chain. */
    const struct kn_tree *tree;
    const struct kn_kv *tail;
    /* NULL, or causal rows, without window, first and tree, that are whole blocks: n and pos[0] are multiples
     * of KN_SPARSE_BLOCK. A row gets the bits that it has whatever other blocks of rows share the call. */
    const struct kn_sparse *sparse;
    /* NULL, or [n_head], without sparse: every row of a head sees one key more, whose score this is (as it
     * stands, without scale) and whose value is zero. A row that sees no other gives zeros. Only where
     * ops.sinks. */
    const float *sinks;
};

/* What rows of queries attend to. p[r, h, j] is the softmax, over the keys j <= pos[r] of the first n_keys,
 * of scale * q[r, h] . k[j]; 0 for other keys. m[r, h, j] is the sum of p[r, h, i] over |i - j| <= pool / 2,
 * over pool. out[r, j] becomes the largest of itself and of m[r, h, j] over all heads. */
struct kn_attention_weights {
    const float *q;         /* [n, n_head, head_dim] after norm and rope */
    const struct kn_kv *kv; /* f16, bf16 or f32 keys; holds positions 0 .. n_keys - 1 */
    const int32_t *pos;     /* [n] */
    int32_t n, n_head, n_keys;
    float scale;
    int32_t pool;   /* odd, 1 or more */
    float *scratch; /* [n, n_head, n_keys] */
    float *out;     /* [n, n_keys] */
};

struct kn_rope_store {
    float *q; /* [n, n_head, head_dim] in place, or NULL (context rows have no query) */
    float *k; /* [n, n_head_kv, head_dim] in place: overwritten with the normed, rotated key; NULL: queries
                 alone, and nothing is stored */
    const float *v; /* [n, n_head_kv, head_dim]; may be k (keys and values of one projection): the values are
                       then taken before k is normed and rotated */
    bool v_norm;    /* values are RMS normed a head, without a weight, before they are stored */
    const float *q_norm, *k_norm; /* [head_dim] or NULL: RMS norm a head before rope */
    const float *table;           /* [n, n_rot/2, 2] cos, sin of op->rope_table */
    const int32_t *pos;           /* [n] */
    int32_t n, n_head, n_rot;
    bool interleaved; /* false: pairs (i, i + n_rot/2), NEOX; true: pairs (2i, 2i+1) */
    float eps;
    const struct kn_kv *kv; /* k and v are rounded to its types and written where pos lies */
    const struct kn_rope_store
        *next; /* NULL, or another layer's rows, as many, in the same call: the call takes the whole list */
};

struct kn_pick {
    const float *logits; /* [n, n_vocab] */
    const int32_t
        *pos; /* [n] position of each row's input token; the pick stands at pos + 1, which keys the noise */
    const int32_t
        *history; /* [..] the token at each absolute position 0..pos[n-1], rows' own tokens included */
    int32_t n, n_vocab;
    struct kn_sampler sampler;
    int32_t *out;               /* [n] ids, or KN_PICK_NAN */
    const struct kn_tree *tree; /* NULL, or rows of a tree (device): pos is its pos, and a row's history is
                                   what is committed, then its path's ids */
    /* NULL, or [n]: log of the probability that the id picked had. Temperature 0: by the softmax of the row;
     * above: among what the filters keep, which adds up to 1. NaN where out is KN_PICK_NAN. */
    float *logp;
};

/* ---- drafters ---- */

/* What stands between the products of a drafter's chain of picks (DSpark, Domino), number by number. x is
 * what a product left; s is the sigmoid; every product and sum is rounded by itself. */
enum kn_cell_kind {
    KN_CELL_SILU, /* out = x s(x), 3 ulp */
    KN_CELL_GATE, /* out = e s(x + bias) */
    /* x + bias [3, width] is g, c, o: out = tanh(o), next = s(g) state + (1 - s(g)) tanh(c) */
    KN_CELL_MARKOV,
    /* x and h [3, width] are r, z, n: next = (1 - s(xz + hz)) tanh(xn + s(xr + hr) hn) + s(xz + hz) state */
    KN_CELL_GRU,
    KN_CELL_LOGP, /* out = log s(x + bias), with one bias for all */
};
struct kn_cell {
    enum kn_cell_kind kind;
    int32_t width;
    const float *x;     /* [width], or [3, width] */
    const float *h;     /* GRU: [3, width], made of state; NULL where state is */
    const float *bias;  /* as x; LOGP: [1]. NULL: 0 */
    const float *e;     /* GATE: [width] */
    const float *state; /* MARKOV, GRU: [width]; NULL: zeros */
    float *next;        /* [width]; may be state */
    float *out;         /* [width]; may be x or e */
};

/* Rows of a block through a convolution along it, whose taps are made of the rows themselves: out[i, c] = sum
 * over t ascending of (base[t, c] + dynamic[i, t, c / group]) * v[i - t, c], v = x or rms_norm(x; norm), rows
 * before the first 0. A row's bits depend on it and on the rows before it in the call. */
struct kn_conv {
    const float *x;    /* [n, width] */
    const float *norm; /* NULL, or [width] */
    float eps;
    const float *base; /* [taps, width] */
    float *dynamic; /* [n, stride]: of every row so many values, [taps, width / group] of them from offset */
    int64_t stride, offset;
    float *out; /* [n, width]; apart from x and dynamic */
    bool add;   /* out += */
    int32_t n, width, group, taps;
    /* NULL, or the first of the matrices that norm_linear or norm_gated will multiply out with next: with
     * that norm and eps, or without where then_norm is NULL. A device may prepare for it; results do not
     * depend on it. */
    const struct kn_weight *then;
    const float *then_norm;
};
#define KN_CONV_TAPS 16 /* at most */

/* The k largest logits of every row in descending order, of equals the lowest id first. A logit of -Inf is
 * none: where there are fewer, ids KN_PICK_NAN, values -Inf. Of a row with a NaN or no finite maximum: ids
 * KN_PICK_NAN, values NaN. */
struct kn_top {
    const float *logits; /* [n, n_vocab] */
    int32_t n, n_vocab, k;
    int32_t *ids;  /* [n, k] */
    float *values; /* [n, k] */
};
#define KN_TOP_MOST 64 /* k at most */
#define KN_EDGE_RANK 1024

/* How well a candidate of a slot follows each of those of the slot before: scores[i, p, c] = values[i, c] +
 * scale * sum over r of (before[b, r] * hidden[i, r]) * after[ids[i, c], r], b = ids[i - 1, p]; or with left,
 * left[i, p, r] in place of the product. Slot 0 has one predecessor, *anchor: scores[0, 0, c]; the others of
 * it are not written. NaN where the predecessor is none, -Inf where the candidate is. */
struct kn_edges {
    const int32_t *ids;                     /* [n, k] of op->top */
    const float *values;                    /* [n, k] */
    const int32_t *anchor;                  /* one id in device memory */
    const float *hidden;                    /* [n, n_in of the tables]; NULL: ones */
    const struct kn_weight *before, *after; /* KN_USE_ROWS, [n_vocab, rank], rank at most
                                               KN_EDGE_RANK */
    float scale;
    int32_t n, k;
    float *scores;     /* [n, k, k] */
    const float *left; /* NULL, or [n, k, n_in]; then before and hidden are not read */
    const int32_t
        *row_of; /* NULL, or [n_ids]: the row of after that is an id's, -1: none, which counts as zeros */
    int32_t n_ids;
};

/* A walk from slot to slot along scores: in each, the sampler's pick (docs/sampling.md) among the k
 * candidates by scores[i, p, :] in place of logits, p the candidate picked in the slot before. Penalties are
 * not looked at. Where a slot picks nothing (a NaN, no finite maximum) none behind it does. */
struct kn_walk {
    const int32_t *ids;  /* [n, k] */
    const float *scores; /* [n, k, k]; of slot 0 the first k */
    const int32_t *pos;  /* [n] as in kn_pick: the pick of slot i stands at pos[i] + 1 */
    int32_t n, k;
    struct kn_sampler sampler;
    int32_t *out; /* [n] */
    float *logp;  /* NULL, or [n], as in kn_pick */
};

/* Router of a mixture of experts. For every row: p = softmax over all n_expert logits; the n_used largest
 * (ties: the lowest id) in descending order; weight = p, divided by the sum of the chosen where renorm; times
 * scale; times expert_scale[id]. */
struct kn_route {
    const float *logits; /* [n, n_expert] */
    int32_t n, n_expert, n_used;
    bool renorm;
    float scale;
    const float *expert_scale; /* [n_expert] or NULL */
    int32_t *ids;              /* [n, n_used] */
    float *weights;            /* [n, n_used] */
};

/* A mixture of experts in one operation: the router (where there is one; else route.logits are there), route,
 * experts_gated and experts_down and, where there is one, the expert that all rows share, which is one more
 * in every row's list, the last, with the weight sigmoid(logit). Its matrices have the shape of one expert's.
 */
struct kn_mixture {
    struct kn_route route; /* n, n_used; ids and weights [n, n_used + (shared)] are filled */
    const float *x, *norm; /* [n, n_in], [n_in]: experts read rms_norm(x; norm) */
    float eps;
    enum kn_act act;
    const struct kn_weight *router; /* or NULL: logits = router rms_norm(x; router_norm) */
    const float *router_norm;
    float *logits; /* [n, n_expert] */
    const struct kn_weight *gate, *up, *down;
    const struct kn_weight *shared[3]; /* gate, up, down of the shared expert, or all NULL */
    const struct kn_weight
        *shared_gate;     /* of one row, read as the router is; NULL: shared_logits are there */
    float *shared_logits; /* [n] */
    float *h;             /* [n, n_used + (shared), n_ff]: scratch */
    float *out;           /* [n, n_out]; may be x */
    bool add;             /* out += */
};

/* Rows that a head for further tokens reads: of each token its embedding and the hidden state before it, each
 * normed, side by side. The hidden states of a pass are those of its own rows, so they are read a row late:
 * row i reads row i - 1 of y, and row 0 the row of the position before it, which was kept (op->keep). */
struct kn_norm_pair {
    float *out;                /* [n, 2 width]: rms_norm(x; x_weight), then rms_norm(y; y_weight) */
    bool raw;                  /* x and y as they are; the weights are not looked at */
    const float *x, *x_weight; /* [n, width], [width] */
    const float *y, *y_weight; /* [n, width], or late [n - 1, width] (n 1: not looked at); [width] */
    const float *late; /* NULL: row i reads y[i]; else [slots, width]: of row 0, at (pos[0] - 1) % slots */
    int32_t slots;
    const int32_t *pos; /* [n or n_before] with late or before. 0 has none before it: 0 stands for that */
    int32_t *before;    /* NULL, or [n_before]: becomes pos[i] - 1 */
    int32_t n, n_before;
    int64_t width;
    float eps;
};

/* Logits of a vocabulary that is cut into clusters: those of ids outside the n_best clusters of the largest
 * scores (ties: the lowest cluster) become the smallest of the others', minus 1. */
struct kn_clusters {
    float *logits;                          /* [n, n_vocab] */
    const float *scores;                    /* [n, n_clusters] */
    const int32_t *of_id;                   /* [n_vocab] an id's cluster */
    int32_t n, n_vocab, n_clusters, n_best; /* n_clusters: KN_CLUSTERS at most */
};
#define KN_CLUSTERS 8192

/* Recurrent state of one gated delta net layer. Committed state is never overwritten by rows that may still
 * be rejected: a call without commit leaves its rows' inputs in log, and the next call first replays the
 * *pending rows of it that were accepted, with the same code and so the same bits. All zero at the start of a
 * sequence. */
struct kn_delta_state {
    float *s;    /* [n_v, d_v, d_k] committed */
    float *conv; /* [n_conv - 1, width] committed: the last inputs of the convolution, oldest first. width as
                    in kn_delta */
    float *log;  /* [KN_DELTA_LOG, width + 2 * n_v]: qkv, alpha and beta of the last call's rows */
};
#define KN_DELTA_LOG 64   /* rows at most in a call without commit */
#define KN_DELTA_EVERY 16 /* a backend keeps what it likes for as many rows in the log's second half */
#define KN_DELTA_HEAD 256 /* d_k and d_v at most, on every backend */
#define KN_DELTA_TAPS 16  /* n_conv at most */

/* Rows of a gated delta net layer (Qwen3.5), from the projections to the gated norm. width = 2 * n_k * d_k +
 * n_v * d_v. For every row, in order: u = silu(causal depthwise convolution of qkv); q, k, v its parts; q and
 * k l2-normed a head (x / sqrt(sum of squares + 1e-6)), q / sqrt(d_k); g = a * softplus(alpha + dt), b =
 * sigmoid(beta); a value head h uses key head h % n_k: S *= exp(g); e = b (v - S k); S += e k^T; o = S q; out
 * = rms_norm(o; norm) * silu(z). A call of more than KN_DELTA_LOG rows is a prompt's, whose bits a device may
 * let depend on where the call begins (as its matrix products may); what is pending is replayed exactly
 * first. */
struct kn_delta {
    const float *qkv;                      /* [n, width] */
    const float *alpha, *beta;             /* [n, n_v] */
    const float *z;                        /* [n, n_v, d_v] */
    const float *conv;                     /* [width, n_conv]: the last tap meets the row itself */
    const float *a, *dt;                   /* [n_v] */
    const float *norm;                     /* [d_v] */
    float eps;                             /* of norm */
    float *out;                            /* [n, n_v, d_v] */
    int32_t n, n_k, n_v, d_k, d_v, n_conv; /* n 0: only replay what is pending */
    const struct kn_delta_state *state;
    const int32_t *pending; /* one int32 in device memory: rows of the log to replay first */
    bool commit;   /* the rows are final: advance the committed state, leave no log. n may then exceed
                      KN_DELTA_LOG */
    int32_t every; /* 0, or of one final row: with *pending + 1 < every the state stays as it is, and the row
                      goes to the log behind those that are pending; else it is advanced over all of them. The
                      caller then makes *pending (*pending + 1) % every. At most KN_DELTA_EVERY */
    const struct kn_tree *tree; /* NULL, or rows of a tree (device), without commit: each row is the last one
                                   of its path, run as a chain. The log has them by row */
};

/* ---- cycles ----
 * A cycle drafts, offers what it drafted to the host, verifies, accepts and commits without waiting for the
 * host: what changes from one to the next lies in device memory and is advanced by op->accept, so that the
 * same operations with the same arguments, recorded once, are the next cycle as well. */
#define KN_STAMPS 4 /* points in time a cycle: the start and end of drafting, and of the verify */

/* What may stand behind an anchor, for the host, in memory that host and device share (op->alloc_shared). */
struct kn_offer {
    int32_t ids[KN_CYCLE_ROWS]; /* the anchor, then the proposals as they were made */
    float logp[KN_CYCLE_ROWS];  /* of the proposals, from 0 */
    int32_t pos;                /* of the anchor */
    int32_t usable;             /* 0: a proposal is KN_PICK_NAN */
    uint32_t number;            /* of the offer, from 1: written last */
};

/* Tell the host; where a proposal is none, none is: all of ids but the anchor become KN_PICK_NAN. */
struct kn_offering {
    int32_t *ids;            /* [n] */
    const float *logp;       /* [n - 1] */
    const int32_t *pos;      /* of row 0 */
    int32_t n;               /* the anchor and its proposals, 1 <= n <= KN_CYCLE_ROWS */
    uint64_t *stamp;         /* as op->stamp would leave it: when drafting ended */
    uint32_t *number;        /* of the offer before, += 1 */
    struct kn_offer *offers; /* [n_offers] shared; this one's is number % n_offers */
    int32_t n_offers;
    /* NULL, or candidates too (op->top): [n - 1, top], to candidates [n_offers]. */
    const int32_t *top_ids;
    const float *top_values;
    const float *top_scores; /* NULL, or [n - 1, top, top] (op->edges) */
    int32_t top;
    struct kn_candidates *candidates;
};

/* What a cycle left for the host, in shared memory. */
struct kn_result {
    uint64_t stamp[KN_STAMPS];    /* ns: as op->stamp left them */
    uint64_t accepted;            /* ns: when accept began */
    int32_t pos;                  /* of row 0 */
    int32_t kept;                 /* rows that stay: the anchor and the accepted proposals; 1 or more */
    int32_t usable;               /* 0: a row is KN_PICK_NAN, and no proposal was accepted */
    int32_t ids[KN_CYCLE_ROWS];   /* of the verified rows: the anchor, then proposals; of a tree those that
                                     stay, then anything */
    int32_t picks[KN_CYCLE_ROWS]; /* of the same */
    int32_t rows[KN_CYCLE_ROWS];  /* of a tree: which these are */
    uint32_t number;              /* of the cycle, from 1: written last */
};

/* Keep row r + 1 while proposal ids[r + 1] equals picks[r] and all proposals are ids; then advance everything
 * by the rows kept. All but results in device memory. */
struct kn_accept {
    int32_t *ids;         /* [n] anchor and proposals; ids[0] becomes the next anchor, picks[kept - 1] */
    const int32_t *picks; /* [n] */
    int32_t n;            /* verified rows, 1 <= n <= KN_CYCLE_ROWS */
    int32_t *pos;         /* [KN_CYCLE_ROWS] ascending by one from row 0's; += kept */
    int32_t *history;     /* [..] by position: the picks of kept rows are written behind their rows */
    int32_t *anchor;      /* NULL, or the next anchor goes here too */
    int32_t *first;       /* NULL, or becomes max(0, next row 0's position - window) */
    int32_t window;
    int32_t *kept;             /* becomes the number of rows kept */
    uint32_t *number;          /* of the cycle before, += 1 */
    const uint64_t *stamp;     /* [KN_STAMPS] */
    struct kn_result *results; /* [n_results] shared; this cycle's is number % n_results */
    int32_t n_results;
    int32_t *behind; /* NULL, or becomes (*behind + kept) % every */
    int32_t every;
    /* For benchmarks. NULL, or [..] by row 0's position: so many proposals count as equal to the picks before
     * them, whatever stands in either. */
    const int32_t *equal;
    /* NULL, or the rows were a tree's, op->follow is done and kept says how many stay: ids is then written
     * alone.
     */
    const struct kn_tree *tree;
};

/* What operations that take memory would take, in bytes of the device, without taking it: for plans. */
struct kn_memory {
    int (*query)(struct kn_backend *, size_t *free_bytes, size_t *total); /* now */
    size_t (*alloc)(size_t bytes);
    size_t (*weight)(uint32_t type, int64_t n_in, int64_t n_out, int32_t n_mat, unsigned use);
    /* One scratch is as large as its largest user: reserve for n_vocab logits, reserve_kv, reserve_delta. */
    size_t (*scratch)(int32_t n, int64_t n_vocab);
    size_t (*scratch_kv)(int32_t n, int32_t n_head, const struct kn_kv *kv, int32_t window);
    size_t (*scratch_delta)(const struct kn_delta *);
    size_t (*products)(int32_t n, int64_t n_in); /* reserve for inputs of n_in */
    size_t (*experts)(void); /* the first experts_load, beside the weight; NULL: nothing */
    size_t margin; /* to be left free: for loading, for code that the device loads when it first runs, for
                    * recordings (a draft, plain steps and up to nine counts of rows), and for what layers of
                    * one row hand on */
};

struct kn_ops {
    const char *name;  /* "cpu" */
    int32_t pass_rows; /* a prefill pass is worth this many rows, where chunks are shorter; 0: the chunk's own
                          are enough */
    const struct kn_memory *memory; /* NULL: the host's memory, which is not planned */
    bool sinks;                     /* attention takes kn_attention.sinks */
    bool counts; /* takes no memory and counts what would be taken: what it is handed is not looked at */
    /* memory */
    void *(*alloc)(struct kn_backend *, size_t bytes); /* zeroed, 64-byte aligned; NULL on failure */
    void (*free)(struct kn_backend *, void *);
    int (*upload)(struct kn_backend *, void *dst, const void *host, size_t bytes);
    int (*download)(struct kn_backend *, void *host, const void *src, size_t bytes); /* waits */
    int (*copy)(struct kn_backend *, void *dst, const void *src, size_t bytes);
    int (*sync)(struct kn_backend *);
    /* Scratch for calls of up to n rows with inputs up to n_in wide, n_vocab logits: call once before the
     * token loop. */
    int (*reserve)(struct kn_backend *, int32_t n, int64_t n_in, int64_t n_vocab, int32_t n_head,
                   int32_t head_dim);
    /* Scratch of attention: calls of up to n rows of n_head heads over rings like kv (its k and v are not
     * looked at), with that window (0: none). After reserve, once for every kind of layer. */
    int (*reserve_kv)(struct kn_backend *, int32_t n, int32_t n_head, const struct kn_kv *kv, int32_t window);
    /* What sparse attention of up to n rows of n_head heads over caches like kv wants. KN_ETYPE: not of such
     * a cache. NULL: the backend has none. Looks at no memory. */
    int (*sparse_room)(struct kn_backend *, int32_t n, int32_t n_head, const struct kn_kv *kv,
                       struct kn_sparse_room *room);
    /* Scratch of delta: calls of up to n rows of heads of that shape (nothing else of it is looked at). NULL
     * where reserve is enough. */
    int (*reserve_delta)(struct kn_backend *, const struct kn_delta *);
    int (*weight_load)(struct kn_backend *, struct kn_weight *w, uint32_t type, int64_t n_in, int64_t n_out,
                       const void *data, unsigned use);
    /* n_mat matrices of one shape, for experts_gated and experts_down. data need not outlive the call. */
    int (*experts_load)(struct kn_backend *, struct kn_weight *w, uint32_t type, int64_t n_in, int64_t n_out,
                        int32_t n_mat, const void *data);
    void (*weight_free)(struct kn_backend *, struct kn_weight *w);
    /* out[n, n_in] = scale * table rows of ids; the row of KN_PICK_NAN is NaN */
    int (*embed)(struct kn_backend *, float *out, const struct kn_weight *table, const int32_t *ids,
                 int32_t n, float scale);
    /* out[n, n_rot/2, 2] = cos, sin of p * freq[i], p = pos, or where there is an origin origin[pos] (both in
     * device memory); freq [n_rot/2] double in device memory; computed in double */
    int (*rope_table)(struct kn_backend *, float *out, const int32_t *pos, const int32_t *origin, int32_t n,
                      const double *freq, int32_t n_rot);
    /* out[n, width] = x / rms(x) * weight (weight NULL: 1); out may be x */
    int (*rms_norm)(struct kn_backend *, float *out, const float *x, const float *weight, int32_t n,
                    int64_t width, float eps);
    /* out[n, n_out] = W x, or out += W x where add */
    int (*linear)(struct kn_backend *, float *out, const struct kn_weight *w, const float *x, int32_t n,
                  bool add);
    /* out[j][n, n_out_j] = W_j rms_norm(x; norm) for j < n_w <= KN_MATRICES: one norm, several matrices of
     * one n_in. norm NULL: of x as it is */
    int (*norm_linear)(struct kn_backend *, float *const *out, const struct kn_weight *const *w, int32_t n_w,
                       const float *x, const float *norm, float eps, int32_t n);
    /* out[n, n_ff] = act(W_gate y) * (W_up y), y = rms_norm(x; norm), or x where norm is NULL */
    int (*norm_gated)(struct kn_backend *, float *out, const struct kn_weight *gate,
                      const struct kn_weight *up, const float *x, const float *norm, float eps,
                      enum kn_act act, int32_t n);
    int (*rope_store)(struct kn_backend *, const struct kn_rope_store *);
    int (*attention)(struct kn_backend *, const struct kn_attention *);
    int (*attention_weights)(struct kn_backend *, const struct kn_attention_weights *);
    /* rope_store of one layer, then attention over its rows, both with the same q, pos, n, n_head and kv. q
     * and k may be left as they were. The same results as the two. NULL: the two. */
    int (*attend)(struct kn_backend *, const struct kn_rope_store *, const struct kn_attention *);
    /* Keys and values between two caches of one shape and types that hold all positions, one of them in the
     * host's memory: those of positions pos[0] to pos[0] + n - 1, n 0: of all before pos[0]. Bytes beside
     * them, fewer than 16, may be carried too. NULL where alloc_host is. */
    int (*carry)(struct kn_backend *, const struct kn_kv *to, const struct kn_kv *from, const int32_t *pos,
                 int32_t n);
    /* dst[i, offset .. offset+width) = x[i]: a tap into the features [n, stride] */
    int (*tap)(struct kn_backend *, float *dst, int64_t stride, int64_t offset, const float *x, int32_t n,
               int64_t width);
    /* The operations below are NULL where a backend lacks them; a model that needs one is then refused when
     * it is loaded. */
    /* out[n, width] = (x + rms_norm(y; weight)) * scale; weight NULL: 1; out may be x */
    int (*norm_add)(struct kn_backend *, float *out, const float *x, const float *y, const float *weight,
                    int32_t n, int64_t width, float eps, float scale);
    /* out[n, width] = (x + rms_norm(rms_norm(y; y_weight) + rms_norm(z; z_weight); weight)) * scale; out may
     * be x. NULL: rms_norm, then norm_add twice. */
    int (*norm_join)(struct kn_backend *, float *out, const float *x, const float *y, const float *y_weight,
                     const float *z, const float *z_weight, const float *weight, int32_t n, int64_t width,
                     float eps, float scale);
    int (*norm_pair)(struct kn_backend *, const struct kn_norm_pair *);
    /* x[n, width] *= sigmoid(g); g is [n, g_width], g_width = width, or 1 for one gate a row */
    int (*gate)(struct kn_backend *, float *x, const float *g, int32_t n, int64_t width, int64_t g_width);
    int (*route)(struct kn_backend *, const struct kn_route *);
    /* out[n, n_used, n_ff] = act(W_gate[e] y) * (W_up[e] y), e = ids[n, n_used], y = rms_norm(x; norm) */
    int (*experts_gated)(struct kn_backend *, float *out, const struct kn_weight *gate,
                         const struct kn_weight *up, const float *x, const float *norm, float eps,
                         enum kn_act act, const int32_t *ids, int32_t n, int32_t n_used);
    /* out[n, n_out] = sum over j ascending of weights[n, j] * (W[ids[n, j]] h[n, j]), or out += that sum
     * where add; h [n, n_used, n_in] */
    int (*experts_down)(struct kn_backend *, float *out, const struct kn_weight *w, const float *h,
                        const int32_t *ids, const float *weights, int32_t n, int32_t n_used, bool add);
    /* NULL: norm_linear, route, experts_gated and experts_down, and products of the shared expert's own. */
    int (*mixture)(struct kn_backend *, const struct kn_mixture *);
    /* May mixture take this matrix of a shared expert with those of the others? */
    bool (*mixture_shares)(const struct kn_weight *experts, const struct kn_weight *shared);
    int (*delta)(struct kn_backend *, const struct kn_delta *);
    /* out[n, n_out] += W (x * sigmoid(g)), x and g [n, n_in]; x may be left gated. NULL: gate, then linear.
     */
    int (*gate_linear)(struct kn_backend *, float *out, const struct kn_weight *w, float *x, const float *g,
                       int32_t n);
    /* out[n, n_out] += W of the outputs of delta, which may be left in its out. NULL: delta, then linear. */
    int (*delta_linear)(struct kn_backend *, const struct kn_delta *, float *out, const struct kn_weight *w);
    /* logits in place: cap * tanh(x / cap) */
    int (*softcap)(struct kn_backend *, float *x, int64_t count, float cap);
    int (*clusters)(struct kn_backend *, const struct kn_clusters *);
    int (*pick)(struct kn_backend *, const struct kn_pick *);
    int (*cell)(struct kn_backend *, const struct kn_cell *);
    /* Logits of a reduced vocabulary among those of the whole: out[n, n_out] = x[i, from[v]], or -Inf where
     * from[v] < 0; x [n, n_x], from [n_out] in device memory, below n_x. out may not be x. */
    int (*spread)(struct kn_backend *, float *out, int64_t n_out, const float *x, int64_t n_x,
                  const int32_t *from, int32_t n);
    /* Of drafters; n at most KN_CYCLE_ROWS rows. */
    int (*conv)(struct kn_backend *, const struct kn_conv *);
    int (*top)(struct kn_backend *, const struct kn_top *);
    int (*edges)(struct kn_backend *, const struct kn_edges *);
    int (*walk)(struct kn_backend *, const struct kn_walk *);
    /* *bad (host) = index of the first row of x[n, width] holding a NaN or Inf, or -1. Waits. */
    int (*find_bad)(struct kn_backend *, const float *x, int32_t n, int64_t width, int32_t *bad);
    /* Bytes a second at which the device reads its own memory once, measured now; 0: not measured. Takes
     * memory for a moment and waits. NULL: rows are in the host's memory. */
    double (*read_speed)(struct kn_backend *);
    /* The same of the host's memory (alloc_host), read over the link by the faster of a kernel and a copy. */
    double (*link_speed)(struct kn_backend *);
    /* Operations a second of the device's library in a large product of 16-bit numbers, measured now, two a
     * multiplication and addition; 0: not measured. As read_speed. */
    double (*product_speed)(struct kn_backend *);

    /* Cycles. Memory that the host may read while the device writes it; zeroed. */
    void *(*alloc_shared)(struct kn_backend *, size_t bytes);
    void (*free_shared)(struct kn_backend *, void *);
    /* Memory of the host's that operations read and write as if it were alloc's, over the device's link, and
     * that upload, download and copy take; zeroed. NULL where all memory is the host's. */
    void *(*alloc_host)(struct kn_backend *, size_t bytes);
    void (*free_host)(struct kn_backend *, void *);
    /* history[pos[i]] = ids[i] */
    int (*place)(struct kn_backend *, int32_t *history, const int32_t *pos, const int32_t *ids, int32_t n);
    /* *at (device) = the time in ns, of a clock that only differences can be taken of */
    int (*stamp)(struct kn_backend *, uint64_t *at);
    int (*offer)(struct kn_backend *, const struct kn_offering *);
    /* dst[pos[i] % slots] = x[i], rows of width values; n <= slots */
    int (*keep)(struct kn_backend *, float *dst, int32_t slots, const int32_t *pos, const float *x, int32_t n,
                int64_t width);
    int (*accept)(struct kn_backend *, const struct kn_accept *);
    /* Trees. follow is NULL where a backend runs none; then the three are. */
    int (*follow)(struct kn_backend *, const struct kn_follow *);
    int (*settle)(struct kn_backend *, const struct kn_settle *);
    /* dst[i] = src[rows[i]], rows of width values; rows in device memory */
    int (*gather)(struct kn_backend *, float *dst, const float *src, const int32_t *rows, int32_t n,
                  int64_t width);
    /* Waits until *number (shared, of a kn_offer or a kn_result) is want. */
    int (*await)(struct kn_backend *, const uint32_t *number, uint32_t want);
    /* Recording. Between record_begin and record_end operations are kept, not run; replay then runs them all.
     * Only operations that neither wait nor move memory to or from the host may be recorded; after one that
     * fails record_end still ends it (and fails). KN_ESTALE from replay: reserve has moved the scratch since.
     * All NULL where a backend does not record. */
    int (*record_begin)(struct kn_backend *);
    int (*record_end)(struct kn_backend *, void **recording);
    int (*replay)(struct kn_backend *, void *recording);
    void (*record_free)(struct kn_backend *, void *recording);
    int32_t delta_every[2]; /* kn_delta.every that pays: without experts, with them; 0: each row */
};

/* Every backend's struct begins so. */
struct kn_backend_head {
    const struct kn_ops *op;
    char message[256];
    int32_t kv_bound;               /* see kn_bound */
    const struct kn_weight *next_w; /* see kn_next */
    const float *next_norm;
    const int32_t *hosted; /* see kn_hosted */
    int32_t n_hosted;
};
static inline const struct kn_ops *kn_op(struct kn_backend *be)
{
    return ((struct kn_backend_head *)be)->op;
}

/* Promise that every position of the attention calls that follow is below bound, also when a recording of
 * them is replayed; 0 (at first): nothing is known but the ring's capacity. A launch may be made as small as
 * the promise allows; results do not depend on it. Before calls at higher positions promise anew. */
static inline void kn_bound(struct kn_backend *be, int32_t bound)
{
    ((struct kn_backend_head *)be)->kv_bound = bound;
}

/* What the operation that follows is good for: its out will be read by norm_linear or norm_gated with that
 * norm, w the first of its matrices. norm_add may then prepare out for it as well; results do not depend on
 * it. Forgotten with the next norm_add. */
static inline void kn_next(struct kn_backend *be, const struct kn_weight *w, const float *norm)
{
    struct kn_backend_head *head = (struct kn_backend_head *)be;
    head->next_w = w;
    head->next_norm = norm;
}

/* Of the matrices of the experts_loads that follow, those of these n ids, distinct and fewer than all, stay
 * in the host's memory, from where the device reads what rows choose of them; results do not depend on it.
 * ids NULL, n 0 (at first): none. Where all memory is the host's it says nothing. */
static inline void kn_hosted(struct kn_backend *be, const int32_t *ids, int32_t n)
{
    struct kn_backend_head *head = (struct kn_backend_head *)be;
    head->hosted = ids;
    head->n_hosted = n;
}

#ifdef __cplusplus
}
#endif
#endif
