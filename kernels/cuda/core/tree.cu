/* tree.cu - what a verify of a tree needs beside its rows (ops/cycle.h, struct kn_tree): the path that stays,
 * its keys, values, inputs of recurrent layers and features to where a chain's are; candidates for the host.
 *
 * Nothing here starts early: each is a few KB, bound by its launch. settle is one launch for up to
 * SETTLE_LAYERS layers, a block a layer and quarter. */
#include "../attention/kv.cuh"
#include "ops.cuh"

/* A thread a row: does its id equal the pick of its parent's row, and its ancestors' theirs? */
static __global__ void __launch_bounds__(KN_CYCLE_ROWS) follow_rows(const struct kn_follow a)
{
    __shared__ bool equal[KN_CYCLE_ROWS];
    __shared__ int32_t stays[KN_CYCLE_ROWS], kept;
    cuda_grid_start();
    struct kn_tree *t = a.tree;
    const int32_t r = (int32_t)threadIdx.x, parent = r && r < a.n ? t->parent[r] : 0,
                  depth = r < a.n ? t->pos[r] - t->pos[0] : 0;
    equal[r] = r == 0 || (r < a.n && t->ids[r] == a.picks[parent]);
    stays[r] = 0;
    if (r == 0) kept = 0;
    __syncthreads();
    bool stands = r < a.n;
    for (int32_t i = 0; i <= depth && stands; i++) stands = equal[t->path[r][i]];
    if (stands) {
        stays[depth] = r;
        atomicMax(&kept, depth + 1);
    }
    __syncthreads();
    t->stays[r] = stays[r];
    t->stay_ids[r] = t->ids[stays[r]];
    if (r == 0) *a.kept = kept;
}

static int follow(struct kn_backend *kb, const struct kn_follow *a)
{
    struct cuda_backend *be = cuda_of(kb);
    int rc = cuda_flush(be);
    if (rc) return rc;
    if (a->n < 1 || a->n > KN_CYCLE_ROWS)
        return cuda_fail(be, KN_EINVAL, "follow: %d rows (expected 1 to %d)", a->n, KN_CYCLE_ROWS);
    return cuda_check(be, "follow", cuda_launch(be, follow_rows, dim3(1), dim3(KN_CYCLE_ROWS), 0, *a));
}

#define SETTLE_LAYERS 16 /* of a launch */
#define SETTLE_BLOCKS 4  /* of a layer */
#define SETTLE_THREADS 256

struct settle_layers {
    const struct kn_tree *tree;
    const int32_t *kept;
    int32_t n;
    struct settle_layer {
        unsigned char *to[2]; /* keys, values; NULL: a log */
        const unsigned char *from[2];
        int32_t bytes[2]; /* of a position: multiples of 16 */
        kv_where where;
        float *log;
        int64_t width;
    } layer[SETTLE_LAYERS];
};

/* A thread has columns of the log. stays[i] >= i, and they rise: what is read of four rows before they are
 * written is not written by those before. */
static __device__ void settle_log(const struct settle_layers::settle_layer &y, const int32_t *stays,
                                  int32_t kept)
{
    for (int64_t c = blockIdx.y * SETTLE_THREADS + threadIdx.x; c < y.width;
         c += SETTLE_BLOCKS * SETTLE_THREADS)
        for (int32_t i = 0; i < kept; i += 4) {
            float x[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (i + j < kept) x[j] = y.log[stays[i + j] * y.width + c];
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (i + j < kept) y.log[(i + j) * y.width + c] = x[j];
        }
}

static __global__ void __launch_bounds__(SETTLE_THREADS)
    settle_rows(const __grid_constant__ struct settle_layers s)
{
    cuda_grid_start();
    const struct settle_layers::settle_layer &y = s.layer[blockIdx.x];
    const int32_t kept = min(*s.kept, KN_CYCLE_ROWS), *stays = s.tree->stays;
    if (y.log) {
        settle_log(y, stays, kept);
        return;
    }
    for (int side = 0; side < 2; side++) {
        const int pieces = y.bytes[side] / 16;
        for (int at = blockIdx.y * SETTLE_THREADS + threadIdx.x; at < kept * pieces;
             at += SETTLE_BLOCKS * SETTLE_THREADS) {
            const int i = at / pieces, piece = at % pieces;
            const int64_t to = (int64_t)KV_SLOT(y.where, s.tree->at[i]) * y.bytes[side] + 16 * piece,
                          from = (int64_t)stays[i] * y.bytes[side] + 16 * piece;
            *(uint4 *)(y.to[side] + to) = *(const uint4 *)(y.from[side] + from);
        }
    }
}

static int settle(struct kn_backend *kb, const struct kn_settle *a)
{
    struct cuda_backend *be = cuda_of(kb);
    int rc = cuda_flush(be);
    while (a && rc == 0) {
        struct settle_layers s = {};
        const struct kn_settle *first = a;
        s.tree = a->tree, s.kept = a->kept;
        for (; a && s.n < SETTLE_LAYERS; a = a->next) {
            struct settle_layers::settle_layer &y = s.layer[s.n++];
            if (a->tree != s.tree || a->kept != s.kept || a->most < 1 || a->most > KN_CYCLE_ROWS)
                return cuda_fail(be, KN_EINVAL,
                                 "settle: layers of several trees, or %d rows (expected 1 to %d)", a->most,
                                 KN_CYCLE_ROWS);
            y.log = a->log, y.width = a->width;
            if (!a->kv) continue;
            y.where = kv_where_of(a->kv);
            y.to[0] = (unsigned char *)a->kv->k, y.to[1] = (unsigned char *)a->kv->v;
            y.from[0] = (const unsigned char *)a->tail->k, y.from[1] = (const unsigned char *)a->tail->v;
            y.bytes[0] = (int32_t)kn_kv_row_bytes(a->kv, a->kv->type.k);
            y.bytes[1] = (int32_t)kn_kv_row_bytes(a->kv, a->kv->type.v);
            if (y.bytes[0] % 16 || y.bytes[1] % 16)
                return cuda_fail(be, KN_ETYPE,
                                 "settle: positions of %d and %d bytes (expected multiples of 16)",
                                 y.bytes[0], y.bytes[1]);
        }
        rc = cuda_check(
            be, "settle",
            cuda_launch(be, settle_rows, dim3((unsigned)s.n, SETTLE_BLOCKS), dim3(SETTLE_THREADS), 0, s));
        for (; first != a; first = first->next)
            if (first->kv) cuda_ring_written(be, first->kv->k);
    }
    return rc;
}

static __global__ void __launch_bounds__(256)
    gather_rows(float *dst, const float *src, const int32_t *rows, int64_t width)
{
    cuda_grid_start();
    const int64_t from = rows[blockIdx.y] * width, to = blockIdx.y * width;
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < width; i += (int64_t)gridDim.x * 256)
        dst[to + i] = src[from + i];
}

static int gather(struct kn_backend *kb, float *dst, const float *src, const int32_t *rows, int32_t n,
                  int64_t width)
{
    struct cuda_backend *be = cuda_of(kb);
    int rc = cuda_flush(be);
    if (rc) return rc;
    if (n < 1 || n > KN_CYCLE_ROWS || width < 1)
        return cuda_fail(be, KN_EINVAL, "gather: %d rows of width %lld", n, (long long)width);
    const int64_t blocks = (width + 255) / 256;
    const dim3 grid((unsigned)(blocks < be->sm_count ? blocks : be->sm_count), (unsigned)n);
    return cuda_check(be, "gather", cuda_launch(be, gather_rows, grid, dim3(256), 0, dst, src, rows, width));
}

#define OFFER_BLOCKS 16 /* for scores, some 60 KB that go over the bus */

/* Before the offer that they go with, whose number is the next. */
static __global__ void __launch_bounds__(256) offer_candidates(const struct kn_offering a)
{
    cuda_grid_start();
    struct kn_candidates *c = &a.candidates[*a.number % (uint32_t)a.n_offers];
    const int32_t first = (int32_t)(blockIdx.x * 256 + threadIdx.x), step = (int32_t)gridDim.x * 256,
                  count = (a.n - 1) * a.top;
    for (int32_t i = first; i < count; i += step) {
        c->ids[i] = a.top_ids[i];
        c->values[i] = a.top_values[i];
    }
    for (int32_t i = first; a.top_scores && i < count * a.top; i += step) c->scores[i] = a.top_scores[i];
    __threadfence_system();
}

int cuda_offer_candidates(struct cuda_backend *be, const struct kn_offering *a)
{
    if (!a->top_ids) return 0;
    if (a->top < 1 || a->top > KN_TOP)
        return cuda_fail(be, KN_EINVAL, "offer: %d candidates a place (expected 1 to %d)", a->top, KN_TOP);
    const unsigned blocks = a->top_scores ? OFFER_BLOCKS : 1;
    return cuda_check(be, "offer", cuda_launch(be, offer_candidates, dim3(blocks), dim3(256), 0, *a));
}

void cuda_tree_table(struct kn_ops *t)
{
    t->follow = follow;
    t->settle = settle;
    t->gather = gather;
}
