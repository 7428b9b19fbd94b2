/* attention/tree.cu - attention of the rows of a tree: what is committed from the ring, the keys of a row's
 * path from its tail, into the places that they have in a chain (ops/cycle.h, struct kn_tree).
 *
 * The leaves before the one that holds the anchor are the same for all rows. attn_tree_shared takes them, a
 * block a (tile of rows, kv head, some nodes), and leaves a partial result a node in memory, of the last node
 * that of its leaves so far. Over few nodes that would be a handful of blocks, each with 8 leaves one after
 * the other: there a block has some leaves and leaves a partial result each, which the second kernel adds to
 * their node, in order. Over long contexts attn_far takes those leaves, of which it sees nodes as rows that
 * are not causal do. attn_tree_paths has a block a (row, kv head): it goes on where those end, over
 * the one or two leaves that hold tried positions, staged by the row's own path, and adds nodes in the one
 * order (attention.cuh). Layers with a window see few keys: there the second kernel takes all of them.
 *
 * Products, weights and sums are those of attn_step with several tiles, so a row has the bits of a chain's.
 * Bound: the ring's keys once a tile through the L2 cache, and 128 keys a row. attn_tree_any is for types and
 * heads that have no other form; it is attn_any by paths. Quantised caches: codes.cuh. Heads of 128 and 256
 * over few keys: attn_places (paths.cuh). */
#include "codes_launch.cuh"
#include "few.cuh"

template <int D> struct tree_block {
    static constexpr int LEAF = few<D>::LEAF;
    static constexpr int WARPS = D <= 128 ? 4 : 8, THREADS = 32 * WARPS;
    static constexpr int NT = LEAF / 8, KT = NT > WARPS ? NT / WARPS : 1; /* n8 tiles of scores; of a warp */
    static constexpr int CT = D / 8 / WARPS;                              /* of a warp's output */
    static constexpr int PITCH = D + 8, SLOT = LEAF * PITCH * 2, QUERY = (D / 16) * 2 * 512;
    static constexpr int SPITCH = LEAF + 8;
    static constexpr int NOTES = (TILE * SPITCH * 4 + TILE * 4 + 127) / 128 * 128;
    static constexpr int BYTES = QUERY + NOTES + 2 * SLOT;
};

struct tree_rows {
    struct attn a; /* n: of all rows; part, n_tiles and slots of this turn */
    const struct kn_tree *tree;
    const void *tail_k, *tail_v;
    int32_t row0, rows; /* of this turn */
    int32_t row_tiles;  /* tiles that a row's heads of a kv head take */
    bool leaves;        /* partial results are of leaves, not nodes */
};

/* The end of what the first kernel takes: whole leaves before the anchor's. */
template <int D> DEV int shared_end(const struct attn &a, int base)
{
    return a.window ? 0 : base / few<D>::LEAF * few<D>::LEAF;
}

/* Partial results in fragments: rows g and g + 8 of a tile, CT n8 tiles of columns. */
template <int CT> struct part_of {
    float top[2], sum[2], y[CT][4];
    __device__ __forceinline__ void clear()
    {
        top[0] = top[1] = -INFINITY, sum[0] = sum[1] = 0.0f;
#pragma unroll
        for (int t = 0; t < CT; t++) y[t][0] = y[t][1] = y[t][2] = y[t][3] = 0.0f;
    }
    __device__ __forceinline__ void add(const part_of &o)
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float to = fmaxf(top[half], o.top[half]), f = factor(top[half], to),
                        h = factor(o.top[half], to);
            sum[half] = __fmaf_rn(h, o.sum[half], __fmul_rn(sum[half], f));
            top[half] = to;
#pragma unroll
            for (int t = 0; t < CT; t++)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++)
                    y[t][e] = __fmaf_rn(h, o.y[t][e], __fmul_rn(y[t][e], f));
        }
    }
    /* few.cuh's add_sink, of one of the rows. */
    __device__ __forceinline__ void sink(int half, float x)
    {
        float mine[2 * CT];
#pragma unroll
        for (int t = 0; t < CT; t++) mine[2 * t] = y[t][2 * half], mine[2 * t + 1] = y[t][2 * half + 1];
        add_sink<2 * CT>(top[half], sum[half], mine, x);
#pragma unroll
        for (int t = 0; t < CT; t++) y[t][2 * half] = mine[2 * t], y[t][2 * half + 1] = mine[2 * t + 1];
    }
};

/* Where the partial result of row `at` of the turn's rows and heads stands, of a node. */
DEV float *shared_record(const struct attn &a, int kv_head, int at, int node, int d)
{
    return a.part + ((int64_t)(kv_head * a.n_tiles + at / TILE) * a.slots + node) * (TILE * (d + 2));
}

/* One leaf: keys at `k`, then values at `v`, of which the newest two groups of copies are. next(): asks for
 * the next leaf's keys, when these are done with. */
template <int D, bool BF16, class NEXT>
DEV void tree_leaf(part_of<tree_block<D>::CT> &node, const uint4 *queries, float *exchange,
                   const float *units, unsigned k, unsigned v, int p0, const struct span (&spans)[2],
                   NEXT next)
{
    using F = tree_block<D>;
    const int lane = threadIdx.x % 32, w = threadIdx.x / 32, g = lane / 4, c = lane % 4;
    copy_wait(1);
    __syncthreads(); /* the keys are here */
    if (w * F::KT < F::NT) {
        float x[F::KT][4];
        scores<D, BF16, F::KT, F::PITCH, 2>(x, queries, k + (unsigned)(w * F::KT * 8 * F::PITCH * 2));
        float *row = exchange + g * F::SPITCH + w * F::KT * 8 + 2 * c;
#pragma unroll
        for (int j = 0; j < F::KT; j++) {
            *(float2 *)(row + 8 * j) = make_float2(x[j][0], x[j][1]);
            *(float2 *)(row + 8 * F::SPITCH + 8 * j) = make_float2(x[j][2], x[j][3]);
        }
    }
    __syncthreads(); /* all scores; the keys are done with */
    next();
    float x[F::NT][4];
    uint32_t p[F::NT / 2][2][4];
    const float unit[2] = {units[g], units[g + 8]};
    const float *row = exchange + g * F::SPITCH + 2 * c;
#pragma unroll
    for (int j = 0; j < F::NT; j++) {
        const float2 y = *(const float2 *)(row + 8 * j), z = *(const float2 *)(row + 8 * F::SPITCH + 8 * j);
        x[j][0] = y.x, x[j][1] = y.y, x[j][2] = z.x, x[j][3] = z.y;
    }
    part_of<F::CT> leaf;
    leaf.clear();
    mask_scores<F::NT>(x, leaf.top, unit, true, p0, spans[0], spans[1]);
    make_weights<F::NT, 2, BF16>(p, leaf.sum, x, leaf.top);
    leaf.sum[0] = quad_sum(leaf.sum[0]);
    leaf.sum[1] = quad_sum(leaf.sum[1]);
    copy_wait(1);
    __syncthreads(); /* the values are here */
    weigh<BF16, F::LEAF / 16, F::CT, F::PITCH, 2>(leaf.y, p, v, w * F::CT * 8, false);
    node.add(leaf);
    __syncthreads(); /* values and scores are done with */
}

/* ---- what is committed ---- */

template <int D, bool BF16>
__global__ void __launch_bounds__(tree_block<D>::THREADS, 1)
    attn_tree_shared(const __grid_constant__ struct tree_rows r)
{
    using F = tree_block<D>;
    extern __shared__ __align__(128) unsigned char raw[];
    uint4 *const queries = (uint4 *)raw;
    float *const exchange = (float *)(raw + F::QUERY), *const units = exchange + TILE * F::SPITCH;
    const unsigned k = shared_at(raw + F::QUERY + F::NOTES), v = k + F::SLOT;
    cuda_grid_start();
    const struct attn &a = r.a;
    const int tile = blockIdx.x, kv_head = blockIdx.y, w = threadIdx.x / 32, lane = threadIdx.x % 32,
              g = lane / 4, c = lane % 4;
    const int end = shared_end<D>(a, r.tree->pos[0]), unit = r.leaves ? F::LEAF : NODE,
              count = (end + unit - 1) / unit;
    int at = blockIdx.z;
    if (at >= count) return;
    const struct span all = {0, end}, spans[2] = {all, all};
    const auto ask = [&](int p0, bool values) {
        if (p0 < end)
            kv_stage<D, D, F::LEAF, F::PITCH, F::THREADS>(a, values ? v : k, values ? a.v : a.k, p0, kv_head,
                                                          0, all);
        copy_commit();
    };
    ask(at * unit, false);
    ask(at * unit, true);
    struct attn mine = a; /* of this turn's rows */
    mine.q = a.q + (int64_t)r.row0 * a.n_head * D;
    mine.n = r.rows;
    load_queries<D, BF16, 1, F::WARPS, 2>(mine, queries, units, tile, kv_head);
    for (; at < count; at += gridDim.z) {
        part_of<F::CT> node;
        node.clear();
        const int to = min((at + 1) * unit, end);
        for (int p0 = at * unit; p0 < to; p0 += F::LEAF) {
            const int then = p0 + F::LEAF < to ? p0 + F::LEAF : (at + (int)gridDim.z) * unit;
            tree_leaf<D, BF16>(node, queries, exchange, units, k, v, p0, spans, [&]() { ask(then, false); });
            ask(then, true);
        }
        float *record = shared_record(a, kv_head, tile * TILE, at, D);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = g + 8 * half;
            float *to_row = record + 2 * TILE + i * D + w * F::CT * 8 + 2 * c;
#pragma unroll
            for (int t = 0; t < F::CT; t++)
                *(float2 *)(to_row + 8 * t) = make_float2(node.y[t][2 * half], node.y[t][2 * half + 1]);
            if (w == 0 && c == 0) record[i] = node.top[half], record[TILE + i] = node.sum[half];
        }
    }
}

/* ---- paths ---- */

/* The keys (or values) of a leaf at p0 that row `row` sees: of the ring before base, else of its path. */
template <int D>
DEV void stage_path(const struct tree_rows &r, unsigned to, bool values, int p0, int row, int kv_head,
                    int base, const struct span &seen)
{
    using F = tree_block<D>;
    constexpr int PIECES = D / 8;
    const int64_t stride = (int64_t)r.a.n_kv * D;
    const void *ring = values ? r.a.v : r.a.k, *tail = values ? r.tail_v : r.tail_k;
    for (int i = threadIdx.x; i < F::LEAF * PIECES; i += F::THREADS) {
        const int key = i / PIECES, piece = i % PIECES * 8, p = p0 + key;
        const bool in = p >= seen.lo && p < seen.hi, tried = in && p >= base;
        const int slot = tried ? r.tree->path[row][p - base] : in ? KV_SLOT(r.a.where, p) : 0;
        const uint16_t *from = KV_ROW(D, tried ? tail : ring, slot, stride, kv_head) + piece;
        copy_async(to + (unsigned)(key * F::PITCH + piece) * 2, from, in);
    }
}

/* The partial result of a node, or leaf, for the heads from head0 on of the turn's row `own`. */
template <int D>
DEV void load_part(part_of<tree_block<D>::CT> &to, const struct attn &a, int kv_head, int own, int head0,
                   int unit)
{
    constexpr int CT = tree_block<D>::CT;
    const int w = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    to.clear();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int head = head0 + g + 8 * half, i = own * a.n_rep + head;
        if (head >= a.n_rep) continue;
        const float *record = shared_record(a, kv_head, i, unit, D),
                    *from = record + 2 * TILE + i % TILE * D + w * CT * 8 + 2 * c;
        to.top[half] = __ldcg(record + i % TILE);
        to.sum[half] = __ldcg(record + TILE + i % TILE);
#pragma unroll
        for (int t = 0; t < CT; t++) {
            const float2 y = __ldcg((const float2 *)(from + 8 * t));
            to.y[t][2 * half] = y.x, to.y[t][2 * half + 1] = y.y;
        }
    }
}
/* Those of a node's leaves before `end`, in order: some are on their way at once. */
template <int D>
DEV void load_leaves(part_of<tree_block<D>::CT> &to, const struct attn &a, int kv_head, int own, int head0,
                     int node, int end)
{
    constexpr int LEAF = tree_block<D>::LEAF, LEAVES = NODE / LEAF, BATCH = tree_block<D>::CT <= 4 ? 4 : 2;
    const int first = node * LEAVES, n = min(LEAVES, end / LEAF - first);
    for (int i = 0; i < n; i += BATCH) {
        part_of<tree_block<D>::CT> one[BATCH];
#pragma unroll
        for (int j = 0; j < BATCH; j++)
            if (i + j < n) load_part<D>(one[j], a, kv_head, own, head0, first + i + j);
#pragma unroll
        for (int j = 0; j < BATCH; j++)
            if (i + j < n) to.add(one[j]);
    }
}

template <int D, bool BF16>
__global__ void __launch_bounds__(tree_block<D>::THREADS, 1)
    attn_tree_paths(const __grid_constant__ struct tree_rows r)
{
    using F = tree_block<D>;
    extern __shared__ __align__(128) unsigned char raw[];
    uint4 *const queries = (uint4 *)raw;
    float *const exchange = (float *)(raw + F::QUERY), *const units = exchange + TILE * F::SPITCH;
    const unsigned k = shared_at(raw + F::QUERY + F::NOTES), v = k + F::SLOT;
    cuda_grid_start();
    const struct attn &a = r.a;
    const int own = (int)blockIdx.x / r.row_tiles, tile = (int)blockIdx.x % r.row_tiles, kv_head = blockIdx.y,
              row = r.row0 + own, w = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    const int base = r.tree->pos[0], pos = r.tree->pos[row], end = shared_end<D>(a, base);
    const struct span seen = {a.window ? max(pos - a.window + 1, 0) : 0, pos + 1}, spans[2] = {seen, seen};
    const int node0 = seen.lo / NODE, node1 = pos / NODE;
    /* Of a node: the keys that its partial results do not have. */
    const auto own_keys = [&](int at) {
        return span{max(max(at * NODE, end), seen.lo / F::LEAF * F::LEAF), min((at + 1) * NODE, seen.hi)};
    };
    const auto ask = [&](int p0, const span &keys, bool values) {
        if (p0 < keys.hi) stage_path<D>(r, values ? v : k, values, p0, row, kv_head, base, seen);
        copy_commit();
    };
    /* The first node in the order below that has such; its keys come while the queries are made. */
    const int least = max(node0, end / NODE), round = (least + CLASSES - 1) / CLASSES * CLASSES,
              begin = round <= node1 ? round : least;
    const span first = own_keys(begin);
    ask(first.lo, first, false);
    ask(first.lo, first, true);
    struct attn mine = a; /* the row alone */
    mine.q = a.q + (int64_t)row * a.n_head * D;
    mine.n = 1;
    load_queries<D, BF16, 1, F::WARPS, 2>(mine, queries, units, tile, kv_head);
    part_of<F::CT> sum, class_sum, node;
    sum.clear();
    for (int cls = 0; cls < CLASSES; cls++) {
        class_sum.clear();
        for (int at = node0 + ((cls - node0) & (CLASSES - 1)); at <= node1; at += CLASSES) {
            node.clear();
            if (at * NODE < end) { /* there are partial results of it */
                if (r.leaves)
                    load_leaves<D>(node, a, kv_head, own, tile * TILE, at, end);
                else
                    load_part<D>(node, a, kv_head, own, tile * TILE, at);
            }
            const span keys = own_keys(at);
            if (keys.lo < keys.hi && at != begin) {
                ask(keys.lo, keys, false);
                ask(keys.lo, keys, true);
            }
            for (int p0 = keys.lo; p0 < keys.hi; p0 += F::LEAF) {
                tree_leaf<D, BF16>(node, queries, exchange, units, k, v, p0, spans,
                                   [&]() { ask(p0 + F::LEAF, keys, false); });
                ask(p0 + F::LEAF, keys, true);
            }
            class_sum.add(node);
        }
        sum.add(class_sum);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int head = tile * TILE + g + 8 * half;
        if (head >= a.n_rep) continue;
        if (a.sinks) sum.sink(half, __ldg(a.sinks + kv_head * a.n_rep + head));
        const int col = w * F::CT * 8 + 2 * c;
        const int64_t at = ((int64_t)row * a.n_head + kv_head * a.n_rep + head) * D + col;
#pragma unroll
        for (int t = 0; t < F::CT; t++) {
            float2 y = make_float2(divided(sum.y[t][2 * half], sum.sum[half]),
                                   divided(sum.y[t][2 * half + 1], sum.sum[half]));
            *(float2 *)(a.out + at + 8 * t) = y;
            if (!a.prepare) continue;
            if (a.gate) {
                const float2 z = __ldcg((const float2 *)(a.gate + at + 8 * t));
                y = make_float2(__fmul_rn(y.x, dev_sigmoid(z.x)), __fmul_rn(y.y, dev_sigmoid(z.y)));
            }
            *(float2 *)((float *)queries + head * D + col + 8 * t) = y; /* which are done with */
        }
    }
    if (!a.prepare) return;
    static_assert(TILE * D * 4 <= F::QUERY, "no room for the results");
    __syncthreads();
    for (int from = w * 256; from < a.n_rep * D; from += F::WARPS * 256)
        prepare_strip<D>(a, (const float *)queries + from, kv_head, row * a.n_rep + from / D, from % D);
}

typedef void (*tree_fn)(const struct tree_rows);
struct tree_form {
    tree_fn shared, paths;
    int threads, bytes, leaf;
};
template <int D> static struct tree_form form_of(bool bf16)
{
    using F = tree_block<D>;
    return {bf16 ? attn_tree_shared<D, true> : attn_tree_shared<D, false>,
            bf16 ? attn_tree_paths<D, true> : attn_tree_paths<D, false>, F::THREADS, F::BYTES, F::LEAF};
}

static int allow_bytes(struct cuda_backend *be, tree_fn f, int bytes)
{
    return cuda_check(
        be, "attention",
        cudaFuncSetAttribute((const void *)f, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

/* Over few nodes partial results are of leaves: bytes of those of a tile, or 0. More nodes than these are as
 * many blocks at once, and a row would wait for more results than it gains by. */
#define LEAF_NODES 4
static size_t leaf_bytes(const struct cuda_backend *be, const struct attn *p, int32_t bound, int32_t leaf)
{
    const int32_t units = (bound + leaf - 1) / leaf;
    const size_t all = (size_t)TILE * (size_t)(p->d + 2) * sizeof(float) * (size_t)p->n_kv * (size_t)units;
    if (p->window || bound > LEAF_NODES * NODE || cuda_attention_tuning.unit == 2) return 0;
    return all * (size_t)attn_tiles(p->n, p->n_rep) <= be->scratch_rows_bytes ? all : 0;
}

/* Whole leaves before the anchor's, over long contexts: as attn_tree_shared. */
static int launch_far(struct cuda_backend *be, const struct kn_attention *ka, const struct attn *p,
                      const struct attn_plan *far)
{
    struct attn all = *p;
    all.tree = ka->tree, all.causal = false, all.prepare = false;
    all.tiles = far->tiles, all.stages = far->stages, all.leaves = 0, all.per = 1;
    cuda_count(be, CUDA_ATTN_FAR);
    return attn_far_launch(be, &all, far->blocks);
}

/* As many rows at once as the scratch has room for. */
static int launch_halves(struct cuda_backend *be, const struct kn_attention *ka, struct tree_rows *r,
                         const struct tree_form *f, const struct attn_plan *far)
{
    struct attn *p = &r->a;
    const int32_t bound = be->head.kv_bound ? be->head.kv_bound : kv_positions(p->where);
    const size_t leaves = far ? 0 : leaf_bytes(be, p, bound, f->leaf);
    const int32_t unit = leaves ? f->leaf : NODE, fit = be->smem_block / f->bytes,
                  most = 512 / f->threads, /* registers */
        resident = leaves ? (fit < most ? fit : most) : 2;
    r->leaves = leaves > 0;
    /* As attention.cu's launch_few: whole blocks of 256 of a token in each kv head, by one block. */
    p->prepare = ka->then && !cuda_attention_tuning.plain && p->n <= MM_PREP_ROWS && r->row_tiles == 1 &&
                 p->n_rep * p->d % 256 == 0 && ka->then->n_in == (int64_t)p->n_head * p->d &&
                 (!ka->gate || !gate_apart) && mm_preparing(be, ka->then, p->n, &p->then, &p->act);
    p->gate = ka->gate;
    p->slots = far ? far->slots : p->window ? 0 : (bound + unit - 1) / unit;
    p->part = (float *)be->scratch_rows;
    const size_t record =
        (size_t)TILE * (size_t)(p->d + 2) * sizeof(float) * (size_t)p->n_kv * (size_t)p->slots;
    const size_t room = record ? be->scratch_rows_bytes / record * TILE / (size_t)p->n_rep : KN_CYCLE_ROWS;
    const int32_t turn = !far && room < (size_t)p->n ? (int32_t)room : p->n;
    int rc = allow_bytes(be, f->shared, f->bytes);
    if (rc == 0) rc = allow_bytes(be, f->paths, f->bytes);
    if (rc) return rc;
    if (turn < 1)
        return cuda_fail(be, KN_EINVAL,
                         "attention: a tree of %d heads of %d over a ring of %d wants more scratch than the "
                         "%zu bytes reserved (reserve_kv)",
                         p->n_head, p->d, kv_positions(p->where), be->scratch_rows_bytes);
    for (r->row0 = 0; r->row0 < p->n && rc == 0; r->row0 += turn) {
        r->rows = p->n - r->row0 < turn ? p->n - r->row0 : turn;
        p->n_tiles = far ? far->groups * far->tiles : attn_tiles(r->rows, p->n_rep);
        const int64_t at_once = (int64_t)p->n_tiles * p->n_kv,
                      fill = (int64_t)(resident > 1 ? resident : 1) * be->sm_count / at_once;
        const int32_t some = fill < 1 ? 1 : fill < p->slots ? (int32_t)fill : p->slots;
        if (far)
            rc = launch_far(be, ka, p, far);
        else if (p->slots)
            rc = cuda_check(be, "attention",
                            cuda_launch(be, f->shared,
                                        dim3((unsigned)p->n_tiles, (unsigned)p->n_kv, (unsigned)some),
                                        dim3((unsigned)f->threads), (size_t)f->bytes, *r));
        if (rc == 0)
            rc = cuda_check(be, "attention",
                            cuda_launch(be, f->paths,
                                        dim3((unsigned)(r->rows * r->row_tiles), (unsigned)p->n_kv),
                                        dim3((unsigned)f->threads), (size_t)f->bytes, *r));
    }
    if (p->prepare && rc == 0) mm_prepared(be, p->out, p->gate, p->n, &p->then, p->act);
    return rc;
}

/* ---- any type, any head size ---- */

struct any_tree {
    struct tree_rows r;
    struct kv_side k, v, tail_k, tail_v;
};
template <class K, class V>
static __global__ void __launch_bounds__(KN_KV_SPLIT) attn_tree_any(const __grid_constant__ struct any_tree u)
{
    const struct tree_rows &r = u.r;
    const auto meet = [] { __syncthreads(); };
    __shared__ float q[512], w[KN_KV_SPLIT], tree[KN_KV_SPLIT / 32];
    cuda_grid_start();
    const struct attn &a = r.a;
    const int t = threadIdx.x, head = blockIdx.x, row = blockIdx.y, kv_head = head / a.n_rep;
    const int64_t at = ((int64_t)row * a.n_head + head) * a.d;
    for (int i = t; i < a.d; i += KN_KV_SPLIT) q[i] = a.q[at + i];
    kv_turn_shared(q, a.d, u.k.type, false, false, t, KN_KV_SPLIT, meet);
    const int base = r.tree->pos[0], pos = r.tree->pos[row], lo = a.window ? max(pos - a.window + 1, 0) : 0,
              hi = pos + 1;
    const auto slot_of = [&](int p) {
        return p < base ? KV_SLOT(a.where, p) : (int)r.tree->path[row][p - base];
    };
    float top = -INFINITY, sum = 0.0f, acc[2] = {0.0f, 0.0f};
    for (int s = lo / KN_KV_SPLIT; s <= (hi - 1) / KN_KV_SPLIT; s++) {
        const int p = s * KN_KV_SPLIT + t, from = max(lo - s * KN_KV_SPLIT, 0),
                  to = min(hi - s * KN_KV_SPLIT, KN_KV_SPLIT);
        float x = -INFINITY;
        __syncthreads();
        if (p >= lo && p < hi) {
            const int64_t slot = slot_of(p);
            x = 0.0f;
            for (int i = 0; i < a.d; i++)
                x = __fmaf_rn(q[i],
                              kv_number<K>::get(p < base ? u.k : u.tail_k, a.n_kv, a.d, slot, kv_head, i), x);
            x = __fmul_rn(x, a.scale);
        }
        const float f = any_weigh(x, top, sum, w, tree);
        for (int i = 0; i < 2; i++) {
            const int d = t + i * KN_KV_SPLIT;
            if (d >= a.d) break;
            acc[i] = __fmul_rn(acc[i], f);
            for (int j = from; j < to; j++) {
                const int key = s * KN_KV_SPLIT + j;
                acc[i] = __fmaf_rn(
                    w[j],
                    kv_number<V>::get(key < base ? u.v : u.tail_v, a.n_kv, a.d, slot_of(key), kv_head, d),
                    acc[i]);
            }
        }
    }
    if (a.sinks) any_sink(top, sum, acc, __ldg(a.sinks + head));
    __syncthreads();
    for (int i = 0; i < 2; i++)
        if (t + i * KN_KV_SPLIT < a.d) q[t + i * KN_KV_SPLIT] = sum == 0.0f ? 0.0f : __fdiv_rn(acc[i], sum);
    kv_turn_shared(q, a.d, u.v.type, true, true, t, KN_KV_SPLIT, meet);
    for (int i = t; i < a.d; i += KN_KV_SPLIT) a.out[at + i] = q[i];
}

static int launch_any_tree(struct cuda_backend *be, const struct kn_attention *a, const struct tree_rows &r)
{
    typedef void (*any_fn)(const struct any_tree);
    const any_fn f = kv_of_all_types(
        a->kv->type, [](auto k, auto v) -> any_fn { return attn_tree_any<decltype(k), decltype(v)>; });
    const struct any_tree u = {r, kv_side_of(a->kv, false), kv_side_of(a->kv, true),
                               kv_side_of(a->tail, false), kv_side_of(a->tail, true)};
    return cuda_check(
        be, "attention",
        cuda_launch(be, f, dim3((unsigned)r.a.n_head, (unsigned)r.a.n), dim3(KN_KV_SPLIT), 0, u));
}

int attn_tree_check(struct cuda_backend *be, const struct kn_attention *a)
{
    const struct kn_kv *tail = a->tail;
    if (!a->causal || a->first || !tail || a->n > KN_CYCLE_ROWS || tail->head_dim != a->kv->head_dim ||
        tail->n_head_kv != a->kv->n_head_kv || tail->type.k != a->kv->type.k || tail->type.v != a->kv->type.v)
        return cuda_fail(be, KN_EINVAL,
                         "attention: %d rows of a tree, not causal or without a tail like the cache", a->n);
    return 0;
}

int attn_tree(struct cuda_backend *be, const struct kn_attention *a, const struct attn *p,
              const struct attn_plan *far)
{
    const struct kn_kv *tail = a->tail;
    struct tree_rows r = {};
    r.a = *p;
    r.tree = a->tree, r.tail_k = tail->k, r.tail_v = tail->v;
    r.row_tiles = attn_tiles(1, p->n_rep);
    cuda_count(be, CUDA_ATTN_TREE);
    const struct cuda_device dev = cuda_device_of(be);
    if (attn_form_takes(ATTN_CODES, &dev, p->d, a->n, a->kv->type.k, a->kv->type.v) &&
        attn_codes_bytes(p->d, p->d <= 128 ? 2 : 1, a->kv->type.k, a->kv->type.v) <= (size_t)be->smem_block)
        return attn_codes_tree(be, a->kv, p, tail, a->tree->pos, a->tree->path[0]);
    const bool bf16 = kv_bf16(p->type);
    const struct tree_form f = p->d == 64    ? form_of<64>(bf16)
                               : p->d == 128 ? form_of<128>(bf16)
                               : p->d == 256 ? form_of<256>(bf16)
                                             : form_of<512>(bf16);
    const bool size = p->d == 64 || p->d == 128 || p->d == 256 || p->d == 512;
    /* As a chain's rows: what attn_step has no form for is attn_any's. */
    if (!kv_halves(p->type) || !size) return launch_any_tree(be, a, r);
    return launch_halves(be, a, &r, &f, far);
}
