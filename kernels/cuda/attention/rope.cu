/* rope.cu - the table of cosines and sines, and the operation between the projections and attention: norm of
 * each head, rotation, and the cache's slots.
 *
 * rope_store: one warp a head of a row: query heads, then key heads, then value heads. A row is 4 * head_dim
 * * (n_head + 2 n_head_kv) bytes; bound by the launch. The order of products in a rotation is the CPU's; the
 * sum of a norm is a tree. A list of layers is one launch (a drafter's context: a launch a layer took longer
 * than its work). */
#include "../core/math.cuh"
#include "../core/ops.cuh"
#include "kv_codes.cuh"

#define MAX_HEAD 512
#define WARPS 4

int cuda_check_kv(struct cuda_backend *be, const char *op, const struct kn_kv *kv)
{
    char why[160];
    const int rc = kn_kv_check(kv, why, sizeof why);
    if (rc) return cuda_fail(be, rc, "%s: %s", op, why);
    if (kv->head_dim > MAX_HEAD)
        return cuda_fail(be, KN_ETYPE,
                         "%s: %d KV heads of %d (expected a head size that 16 divides, at most %d)", op,
                         kv->n_head_kv, kv->head_dim, MAX_HEAD);
    return 0;
}

struct store {
    float *q, *k;
    const float *v, *q_norm, *k_norm, *table;
    const int32_t *pos;
    int32_t n_head, n_head_kv, d, n_rot;
    kv_where where;
    struct kv_side k_dst, v_dst;
    bool interleaved, v_norm;
    float eps;
};

/* A head, y[d] of a warp in shared memory, to its place in the cache; y of a quantised side is rotated. */
static __device__ void put_head(const struct store &a, bool values, int64_t slot, int head, float *y,
                                int lane)
{
    const struct kv_side &s = values ? a.v_dst : a.k_dst;
    if (s.head[2]) {
        kv_put_head(s, slot, head, y, a.d, values);
        return;
    }
    const int64_t to = (slot * a.n_head_kv + head) * a.d;
    for (int i = lane; i < a.d; i += 32) kv_put((void *)s.at, s.type, to + i, y[i]);
}

/* Layers of one launch. One alone, as in every block of a model, carries no others' arguments. */
#define LAYERS 8
template <int N> struct stores {
    struct store layer[N];
};

/* Norm and rotate a head in place; y is the warp's copy of it. */
static __device__ void turn(const struct store &a, float *x, const float *norm, const float *table, float *y,
                            int lane)
{
    float sum = 0.0f, r = 1.0f;
    for (int i = lane; i < a.d; i += 32) sum = __fmaf_rn(x[i], x[i], sum);
    for (int i = 16; i; i >>= 1) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, i));
    if (norm) r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)a.d), a.eps)));
    for (int i = lane; i < a.d; i += 32) y[i] = norm ? __fmul_rn(__fmul_rn(x[i], r), norm[i]) : x[i];
    __syncwarp();
    const int half = a.n_rot / 2;
    for (int i = lane; i < half; i += 32) {
        const int p = a.interleaved ? 2 * i : i, q = a.interleaved ? 2 * i + 1 : i + half;
        const float c = table[2 * i], s = table[2 * i + 1], u = y[p], w = y[q];
        y[p] = __fmaf_rn(u, c, -__fmul_rn(w, s));
        y[q] = __fmaf_rn(u, s, __fmul_rn(w, c));
    }
    __syncwarp();
    for (int i = lane; i < a.d; i += 32) x[i] = y[i];
}

/* A head's values into the cache, RMS normed without a weight where asked; y is the warp's copy of them. */
static __device__ void keep(const struct store &a, const float *v, int64_t slot, int head, float *y, int lane)
{
    float sum = 0.0f, r = 1.0f;
    if (a.v_norm) {
        for (int i = lane; i < a.d; i += 32) sum = __fmaf_rn(v[i], v[i], sum);
        for (int i = 16; i; i >>= 1) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, i));
        r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)a.d), a.eps)));
    }
    for (int i = lane; i < a.d; i += 32) y[i] = a.v_norm ? __fmul_rn(v[i], r) : v[i];
    put_head(a, true, slot, head, y, lane);
    __syncwarp();
}

/* Where v is k the key's warp stores the values first: no other may read what it rotates. */
template <int N>
static __global__ void __launch_bounds__(32 * WARPS)
    rope_store_heads(const __grid_constant__ struct stores<N> all)
{
    __shared__ float copy[WARPS][MAX_HEAD];
    const struct store &a = all.layer[N == 1 ? 0 : blockIdx.z];
    /* In this order: attention, which may start then, reads older keys before it waits. */
    cuda_grid_wait();
    cuda_grid_early();
    const int lane = threadIdx.x % 32, w = threadIdx.x / 32, n_q = a.q ? a.n_head : 0;
    const int64_t row = blockIdx.y;
    int head = (int)blockIdx.x * WARPS + w;
    const bool shared = a.v == a.k;
    if (head >= n_q + (shared ? 1 : 2) * a.n_head_kv) return;
    const float *table = a.table + row * a.n_rot;
    if (head < n_q) {
        turn(a, a.q + (row * a.n_head + head) * a.d, a.q_norm, table, copy[w], lane);
        return;
    }
    head -= n_q;
    const bool key = head < a.n_head_kv;
    if (!key) head -= a.n_head_kv;
    const int pos = a.pos[row];
    const int64_t from = (row * a.n_head_kv + head) * a.d, slot = KV_SLOT(a.where, pos);
    if (!key || shared) keep(a, a.v + from, slot, head, copy[w], lane);
    if (!key) return;
    turn(a, a.k + from, a.k_norm, table, copy[w], lane);
    put_head(a, false, slot, head, copy[w], lane);
}

int cuda_check_store(struct cuda_backend *be, const struct kn_rope_store *a, int32_t n)
{
    const struct kn_kv *kv = a->kv;
    int rc = cuda_check_kv(be, "rope_store", kv);
    if (rc) return rc;
    if (a->n_rot < 0 || a->n_rot % 2 || a->n_rot > kv->head_dim)
        return cuda_fail(be, KN_EINVAL, "rope_store: n_rot %d (expected even, at most %d)", a->n_rot,
                         kv->head_dim);
    if (a->n < 1 || a->n > kn_kv_positions(kv) || a->n > 65535)
        return cuda_fail(be, KN_EINVAL, "rope_store: %d rows into a KV ring of %d", a->n,
                         kn_kv_positions(kv));
    if (a->n != n)
        return cuda_fail(be, KN_EINVAL, "rope_store: layers of %d and %d rows (expected the same)", n, a->n);
    return 0;
}

/* As many layers as a launch takes, from *list on. */
template <int N> static int store_layers(struct cuda_backend *be, const struct kn_rope_store **list)
{
    const struct kn_rope_store *first = *list;
    const int32_t n = first->n;
    struct stores<N> all = {
    };
    int layers = 0, most = 0;
    for (; *list && layers < N; *list = (*list)->next, layers++) {
        const struct kn_rope_store *a = *list;
        const int rc = cuda_check_store(be, a, n);
        if (rc) return rc;
        const struct kn_kv *kv = a->kv;
        const int n_kv = a->k ? kv->n_head_kv : 0; /* none: queries alone */
        all.layer[layers] = {a->q,
                             a->k,
                             a->v,
                             a->q_norm,
                             a->k_norm,
                             a->table,
                             a->pos,
                             a->n_head,
                             n_kv,
                             kv->head_dim,
                             a->n_rot,
                             kv_where_of(kv),
                             kv_side_of(kv, false),
                             kv_side_of(kv, true),
                             a->interleaved,
                             a->v_norm,
                             a->eps};
        const int heads = (a->q ? a->n_head : 0) + (a->v == a->k ? 1 : 2) * n_kv;
        if (heads > most) most = heads;
    }
    const dim3 grid((unsigned)((most + WARPS - 1) / WARPS), (unsigned)n, (unsigned)layers);
    const int rc =
        cuda_check(be, "rope_store", cuda_launch(be, rope_store_heads<N>, grid, dim3(32 * WARPS), 0, all));
    be->settled = be->launches;
    for (int i = 0; i < layers; i++)
        if (all.layer[i].k) cuda_ring_written(be, all.layer[i].k_dst.at);
    if (N == 1 && first->k) { /* attention over this layer may follow */
        be->store_launch = be->launches;
        be->store_k = first->kv->k;
        be->store_pos = first->pos;
    }
    return rc;
}

int cuda_rope_store(struct kn_backend *kb, const struct kn_rope_store *a)
{
    struct cuda_backend *be = cuda_of(kb);
    int rc = 0;
    while (a && rc == 0) rc = a->next ? store_layers<LAYERS>(be, &a) : store_layers<1>(be, &a);
    return rc;
}
