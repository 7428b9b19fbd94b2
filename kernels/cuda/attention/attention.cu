/* attention.cu - grouped-query attention over the ring of keys and values: which kernel, how it is cut, and
 * the kernel for any type and head size.
 *
 * Bound: up to 64 rows reading the visible keys and values once, 4 * head_dim * n_head_kv bytes a position
 * (f16, bf16); above, tensor operations. attention.cuh has the concepts. attn_any (f32 caches and other head
 * sizes): one block a query row, keys by threads, plain float arithmetic. For completeness, not speed. */
#include "rows.cuh"
#include "../chain/chain.cuh"
#include "codes_launch.cuh"
#include "kv_codes.cuh"
#include "sparse.cuh"

/* ---- any type, any head size ---- */

struct any_args {
    struct attn a;
    struct kv_side k, v;
};
/* K, V: numbers of keys and of values. */
template <class K, class V>
static __global__ void __launch_bounds__(KN_KV_SPLIT) attn_any(const __grid_constant__ struct any_args p)
{
    const struct attn &a = p.a;
    const auto meet = [] { __syncthreads(); };
    __shared__ float q[512], w[KN_KV_SPLIT], tree[KN_KV_SPLIT / 32];
    cuda_grid_start();
    const int t = threadIdx.x, head = blockIdx.x, row = blockIdx.y, kv_head = head / a.n_rep;
    const int64_t at = ((int64_t)row * a.n_head + head) * a.d;
    for (int i = t; i < a.d; i += KN_KV_SPLIT) q[i] = a.q[at + i];
    kv_turn_shared(q, a.d, p.k.type, false, false, t, KN_KV_SPLIT, meet);
    const struct span seen = visible(a, row, a.pos[0], a.first ? *a.first : 0);
    const int lo = seen.lo, hi = seen.hi;
    float top = -INFINITY, sum = 0.0f, acc[2] = {0.0f, 0.0f};
    for (int s = lo / KN_KV_SPLIT; lo < hi && s <= (hi - 1) / KN_KV_SPLIT; s++) {
        const int key = s * KN_KV_SPLIT + t, from = max(lo - s * KN_KV_SPLIT, 0),
                  to = min(hi - s * KN_KV_SPLIT, KN_KV_SPLIT);
        const int64_t base = KV_SLOT(a.where, s * KN_KV_SPLIT);
        float x = -INFINITY;
        __syncthreads();
        if (key >= lo && key < hi) {
            x = 0.0f;
            for (int i = 0; i < a.d; i++)
                x = __fmaf_rn(q[i], kv_number<K>::get(p.k, a.n_kv, a.d, base + t, kv_head, i), x);
            x = __fmul_rn(x, a.scale);
        }
        const float f = any_weigh(x, top, sum, w, tree);
        for (int i = 0; i < 2; i++) {
            const int d = t + i * KN_KV_SPLIT;
            if (d >= a.d) break;
            acc[i] = __fmul_rn(acc[i], f);
            for (int j = from; j < to; j++)
                acc[i] = __fmaf_rn(w[j], kv_number<V>::get(p.v, a.n_kv, a.d, base + j, kv_head, d), acc[i]);
        }
    }
    if (a.sinks) any_sink(top, sum, acc, __ldg(a.sinks + head));
    __syncthreads();
    for (int i = 0; i < 2; i++)
        if (t + i * KN_KV_SPLIT < a.d) q[t + i * KN_KV_SPLIT] = sum == 0.0f ? 0.0f : __fdiv_rn(acc[i], sum);
    kv_turn_shared(q, a.d, p.v.type, true, true, t, KN_KV_SPLIT, meet);
    for (int i = t; i < a.d; i += KN_KV_SPLIT) a.out[at + i] = q[i];
}

typedef void (*any_fn)(const struct any_args);
static int launch_any(struct cuda_backend *be, const struct kn_attention *a, const struct attn &p)
{
    const any_fn f = kv_of_all_types(
        a->kv->type, [](auto k, auto v) -> any_fn { return attn_any<decltype(k), decltype(v)>; });
    struct any_args all = {p, kv_side_of(a->kv, false), kv_side_of(a->kv, true)};
    return cuda_check(be, "attention",
                      cuda_launch(be, f, dim3((unsigned)p.n_head, (unsigned)p.n), dim3(KN_KV_SPLIT), 0, all));
}

/* ---- launching ---- */

#define WAITING_WARPS 8 /* of a block of the kernels whose blocks wait for each other */

static attn_fn few_kernel(int32_t d, uint32_t type, const struct attn_plan *p)
{
    size_t smem;
    return attn_step_of(d, p->tiles, p->resident, type, p->stages, &smem);
}
static int allow(struct cuda_backend *be, attn_fn f, size_t smem)
{
    return cuda_check(
        be, "attention",
        cudaFuncSetAttribute((const void *)f, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem));
}

/* The kernels whose blocks wait for each other: blocks a multiprocessor, what the device says it has room
 * for, of one type or the other. most: that it is to hold. */
static int open_waiting(struct cuda_backend *be, attn_fn f, uint32_t type, size_t smem, int32_t most,
                        int32_t *blocks)
{
    int room = 0;
    if (!f) return 0;
    int rc = allow(be, f, (size_t)be->smem_block);
    if (rc == 0)
        rc = cuda_check(be, "attention",
                        cudaFuncSetAttribute((const void *)f, cudaFuncAttributePreferredSharedMemoryCarveout,
                                             cudaSharedmemCarveoutMaxShared)); /* as cuda_launch */
    if (rc == 0 && smem <= (size_t)be->smem_block)
        rc = cuda_check(
            be, "attention",
            cudaOccupancyMaxActiveBlocksPerMultiprocessor(&room, (const void *)f, 32 * WAITING_WARPS, smem));
    if (rc) return rc;
    if (!kv_bf16(type)) *blocks = most;
    if (room < *blocks) *blocks = room;
    return 0;
}

/* Which clusters the device can hold. */
static int open_near(struct cuda_backend *be, int i, uint32_t type)
{
    const int32_t d = attn_table[ATTN_STEP].heads[i];
    for (unsigned blocks = 8; blocks <= 16; blocks *= 2)
        for (int32_t leaves = 1; leaves <= NEAR_LEAVES; leaves++) {
            int most = 0;
            size_t smem;
            const attn_fn f = attn_near_of(d, type, (int32_t)blocks, leaves, &smem);
            cudaLaunchAttribute attr = {};
            cudaLaunchConfig_t config = {};
            if (smem > (size_t)be->smem_block) break;
            const int rc = allow(be, f, (size_t)be->smem_block);
            if (rc) return rc;
            config.gridDim = dim3(1, 1, blocks);
            config.blockDim = dim3(d == 64 ? 128 : 256);
            config.dynamicSmemBytes = smem;
            attr.id = cudaLaunchAttributeClusterDimension;
            attr.val.clusterDim = {1, 1, blocks};
            config.attrs = &attr;
            config.numAttrs = 1;
            if (cudaFuncSetAttribute((const void *)f, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) !=
                    cudaSuccess ||
                cudaOccupancyMaxActiveClusters(&most, (const void *)f, &config) != cudaSuccess) {
                (void)cudaGetLastError(); /* a device without: not taken */
                most = 0;
            }
            be->attn.clusters[i][blocks / 16][leaves - 1] = most;
        }
    return 0;
}

int cuda_attention_open(struct cuda_backend *be)
{
    if (be->cc >= 90 && !be->generic) {
        be->attn_places = (float *)cuda_alloc((struct kn_backend *)be, ATTN_PATHS_BYTES + ATTN_MADE_BYTES);
        if (!be->attn_places) return KN_EMEM;
        be->attn.waits = true;
        const int rc =
            cuda_check(be, "attention", cudaMemsetAsync(be->attn_places, 0xff, ATTN_PATHS_BYTES, be->stream));
        if (rc) return rc;
    }
    static const uint32_t types[] = {KN_F16, KN_BF16};
    const struct cuda_device dev = cuda_device_of(be);
    for (int i = 0; i < 8; i++) {
        const int32_t d = attn_table[ATTN_STEP].heads[i / 2];
        const uint32_t type = types[i % 2];
        int rc = 0;
        struct attn_plan b = {};
        for (int k = 1; k <= 4; k *= 2)
            for (int leaves = 0; leaves < 2 && rc == 0; leaves++)
                if (attn_step_block(&dev, d, k, leaves ? INT64_MAX : 0, &b))
                    rc = allow(be, few_kernel(d, type, &b), (size_t)be->smem_block);
        size_t smem = 0;
        attn_fn f = attn_places_of(d, type, &smem);
        if (be->attn_places && rc == 0) rc = open_waiting(be, f, type, smem, 2, &be->attn.places[i / 2]);
        f = attn_paths_of(d, type, 1, &smem);
        if (be->attn_places && rc == 0) rc = open_waiting(be, f, type, smem, 2, &be->attn.paths[i / 2]);
        f = attn_alone_of(d, type, &smem);
        if (f && rc == 0 && be->cc >= 90 && smem <= (size_t)be->smem_block) rc = allow(be, f, smem);
        f = attn_columns_of(d, type, &smem);
        if (be->attn_places && rc == 0) rc = open_waiting(be, f, type, smem, 1, &be->attn.columns[i / 2]);
        if (rc == 0 && attn_stream_block(&dev, d, &b))
            rc = allow(be, attn_stream_of(d, type, &smem), (size_t)be->smem_block);
        for (int k = 0; k < 2 && rc == 0; k++) {
            int32_t tiles, chunks;
            f = attn_prefill_of(d, type, k ? 8 : 4, &smem, &tiles, &chunks);
            if (f && smem <= (size_t)be->smem_block) rc = allow(be, f, smem);
        }
        if (rc == 0 && be->cc >= 90 && !be->generic) rc = open_near(be, i / 2, type);
        if (rc) return rc;
    }
    return attn_codes_open(be);
}

size_t cuda_attention_scratch(int32_t n, int32_t n_head, const struct kn_kv *kv, int32_t window)
{
    return attn_scratch(n, n_head, kv, window);
}

#ifdef CUDA_DEBUG_SYNC
/* Keys that a row should see but that the ring no longer holds would be read as others. */
static int check_ring(struct cuda_backend *be, const struct kn_attention *a)
{
    int32_t first[2], last, bound = 0;
    int rc = be->head.op->download((struct kn_backend *)be, first, a->pos, sizeof *first);
    if (rc == 0) rc = be->head.op->download((struct kn_backend *)be, &last, a->pos + a->n - 1, sizeof last);
    if (rc == 0 && a->first)
        rc = be->head.op->download((struct kn_backend *)be, &bound, a->first, sizeof bound);
    if (rc) return rc;
    int32_t lo = a->window && first[0] >= a->window ? first[0] - a->window + 1 : 0;
    if (lo < bound) lo = bound;
    if (first[0] < 0 || last != first[0] + a->n - 1)
        return cuda_fail(be, KN_EINVAL, "attention: positions %d to %d in %d rows", first[0], last, a->n);
    if (be->head.kv_bound && last >= be->head.kv_bound)
        return cuda_fail(be, KN_EINVAL, "attention: a row at %d, and positions below %d were promised", last,
                         be->head.kv_bound);
    if (!kn_kv_holds(a->kv, lo, last))
        return cuda_fail(
            be, KN_EINVAL,
            "attention: row at %d sees position %d, which a ring of %d at position %d no longer holds",
            first[0], lo, kn_kv_positions(a->kv), last);
    return 0;
}
#endif

/* May attention start to read keys before its predecessor is complete? All but those of this pass, which
 * begin at pos[0]. stored: by a launch of its own. */
static bool reads_early(const struct cuda_backend *be, const struct kn_attention *a, bool stored)
{
    const uint64_t written = cuda_ring_launch(be, a->kv->k);
    if (be->generic || be->cc < 90 || cuda_attention_tuning.late || be->positions >= be->settled)
        return false;
    if (written < be->settled) return true;
    return stored && written == be->settled && be->store_launch == written && be->store_k == a->kv->k &&
           be->store_pos == a->pos;
}

/* tiles: of a block. */
static void fold(struct attn *p, const struct kn_rope_store *s, int32_t tiles)
{
    const int32_t groups = (attn_tiles(p->n, p->n_rep) + tiles - 1) / tiles;
    p->duty = (p->n + groups - 1) / groups;
    p->fold = true, p->v_norm = s->v_norm, p->half = s->n_rot / 2, p->eps = s->eps;
    p->new_k = s->k, p->new_v = s->v, p->q_norm = s->q_norm, p->k_norm = s->k_norm, p->table = s->table;
}

/* All in one launch, by clusters of blocks. */
static int launch_clusters(struct cuda_backend *be, const struct kn_attention *a, struct attn *p,
                           const struct attn_plan *plan)
{
    size_t smem;
    attn_fn f = attn_near_of(p->d, p->type, plan->blocks, plan->cluster_leaves, &smem);
    p->log_blocks = plan->blocks == 16 ? 4 : 3;
    p->stages = plan->stages;
    const dim3 grid((unsigned)plan->groups, (unsigned)p->n_kv, (unsigned)plan->blocks);
    if (p->prepare && p->n == 1 && p->act == MM_ACT_K) p->hand = experts_hand(be, a->then->n_in);
    const int rc = cuda_check(
        be, "attention",
        cuda_launch_clusters(be, f, grid, dim3((unsigned)(32 * plan->warps)), smem, dim3(1, 1, grid.z), *p));
    if (p->fold) cuda_ring_written(be, p->k);
    if (p->prepare && rc == 0) mm_prepared(be, p->out, p->gate, p->n, &p->then, p->act);
    if (p->hand.words && rc == 0) experts_handed(be);
    return rc;
}

/* The sum of slots that lie in memory, for the tiles of one turn. */
static int launch_sum(struct cuda_backend *be, struct attn *p)
{
    const int32_t tiles = attn_tiles(p->n, p->n_rep);
    const int32_t rows = (tiles - p->tile0 < p->n_tiles ? tiles - p->tile0 : p->n_tiles) * TILE;
    const dim3 merge((unsigned)(rows * p->d / 256), (unsigned)p->n_kv);
    cuda_count(be, CUDA_ATTN_MERGE);
    return cuda_check(be, "attention",
                      cuda_launch(be, attn_merge_of(p->d), merge, dim3(64 * CLASSES), 0, *p));
}

static attn_fn turns_kernel(const struct attn *p, const struct attn_plan *plan)
{
    size_t smem;
    return plan->form == ATTN_STEP     ? few_kernel(p->d, p->type, plan)
           : plan->form == ATTN_STREAM ? attn_stream_of(p->d, p->type, &smem)
           : p->tree                   ? attn_paths_of(p->d, p->type, p->n, &smem)
           : plan->form == ATTN_PLACES ? attn_places_of(p->d, p->type, &smem)
           : plan->form == ATTN_ALONE  ? attn_alone_of(p->d, p->type, &smem)
                                       : attn_columns_of(p->d, p->type, &smem);
}

/* As many tiles at once as the scratch has room for. */
static int launch_turns(struct cuda_backend *be, struct attn *p, const struct attn_plan *plan)
{
    const bool far = plan->form == ATTN_FAR,
               step = far || plan->form == ATTN_STEP || plan->form == ATTN_STREAM;
    const attn_fn f = far ? NULL : turns_kernel(p, plan);
    int rc = 0;
    p->part = step ? (float *)be->scratch_rows : be->attn_places;
    p->tiles = plan->tiles, p->stages = plan->stages;
    p->slots = plan->slots, p->leaves = plan->leaves;
    p->per = plan->form == ATTN_PLACES       ? PLACES_SIDE(p->d)
             : cuda_attention_tuning.per > 1 ? cuda_attention_tuning.per
                                             : 1;
    for (int32_t g = 0; g < plan->groups && rc == 0; g += plan->turn) {
        const int32_t groups = plan->groups - g < plan->turn ? plan->groups - g : plan->turn;
        p->tile0 = g * plan->tiles;
        p->n_tiles = groups * plan->tiles;
        const dim3 grid = plan->form == ATTN_COLUMNS
                              ? dim3((unsigned)plan->blocks)
                              : dim3((unsigned)groups, (unsigned)p->n_kv, (unsigned)plan->blocks);
        rc = far ? attn_far_launch(be, p, plan->blocks)
                 : cuda_check(be, "attention",
                              cuda_launch(be, f, grid, dim3((unsigned)(32 * plan->warps)), plan->smem, *p));
        if (p->fold) cuda_ring_written(be, p->tree ? p->tail_k : p->k);
        p->early = false; /* what comes next writes where this one reads */
        if ((plan->slots > 1 || p->sinks) && step && rc == 0) rc = launch_sum(be, p);
    }
    if (p->prepare && rc == 0) mm_prepared(be, p->out, p->gate, p->n, &p->then, p->act);
    return rc;
}

static int no_room(struct cuda_backend *be, const struct kn_attention *a, const struct attn &p)
{
    return cuda_fail(
        be, KN_EINVAL,
        "attention: %d heads of %d over a ring of %d want more scratch than the %zu bytes reserved "
        "(reserve_kv)",
        a->n_head, p.d, kv_positions(p.where), be->scratch_rows_bytes);
}

/* Are results rounded for the product behind? Whole blocks of 256 of a token in each kv head. */
static void prepares(struct cuda_backend *be, const struct kn_attention *a, const struct attn_plan *plan,
                     struct attn *p)
{
    p->prepare = a->then && !cuda_attention_tuning.plain && p->n <= MM_PREP_ROWS &&
                 p->n_rep * p->d % 256 == 0 && a->then->n_in == (int64_t)p->n_head * p->d &&
                 plan->form != ATTN_ANY &&
                 (plan->form == ATTN_CLUSTERS || plan->slots > 1 || p->sinks || plan->form >= ATTN_PLACES) &&
                 (!a->gate || !gate_apart) && mm_preparing(be, a->then, p->n, &p->then, &p->act);
    p->gate = a->gate;
}

static int launch_codes(struct cuda_backend *be, const struct kn_attention *a, const struct attn *p,
                        const struct attn_plan *plan)
{
    const int rc = attn_codes_launch(be, a, p, plan);
    if (p->fold) cuda_ring_written(be, p->k);
    if (p->prepare && rc == 0) mm_prepared(be, p->out, p->gate, p->n, &p->then, p->act);
    return rc;
}

static int launch_few(struct cuda_backend *be, const struct kn_attention *a, const struct kn_rope_store *s,
                      struct attn p, const struct attn_plan *plan)
{
    int rc = 0;
    if (plan->fold)
        fold(&p, s, plan->tiles);
    else if (s && (rc = cuda_rope_store((struct kn_backend *)be, s)))
        return rc;
    if (plan->turn < 1 && plan->form != ATTN_CLUSTERS && plan->form != ATTN_ANY) return no_room(be, a, p);
    p.early = p.known = plan->form != ATTN_CODES && reads_early(be, a, !p.fold);
    if (plan->form == ATTN_COLUMNS) {
        unsigned char *queries = (unsigned char *)be->attn_places + ATTN_PATHS_BYTES;
        if ((rc = attn_rows_launch(be, s, &p, queries))) return rc;
        cuda_ring_written(be, p.k);
        p.q = (const float *)queries;
    }
    prepares(be, a, plan, &p);
    if (plan->form == ATTN_CLUSTERS) return launch_clusters(be, a, &p, plan);
    if (plan->form == ATTN_ANY) return launch_any(be, a, p);
    if (plan->form == ATTN_CODES || plan->form == ATTN_FAR_CODES) return launch_codes(be, a, &p, plan);
    return launch_turns(be, &p, plan);
}

#define GROUP_FOLD_ROWS 257 /* from which on that is no longer slower */
/* More than FEW rows by attention/group.cu, which norms and rotates queries itself. */
static int attend_group(struct cuda_backend *be, const struct kn_rope_store *s, struct attn *p)
{
    int rc = 0;
    if (s) {
        struct kn_rope_store rest = *s;
        p->fold = !s->interleaved && (s->n_rot == p->d || s->n_rot == 0) && !cuda_attention_tuning.apart &&
                  p->n >= GROUP_FOLD_ROWS;
        p->half = s->n_rot / 2, p->q_norm = s->q_norm, p->table = s->table, p->eps = s->eps;
        if (p->fold) rest.q = NULL;
        rc = cuda_rope_store((struct kn_backend *)be, &rest);
    }
    return rc ? rc : attn_group_launch(be, p);
}

static int launch_prefill(struct cuda_backend *be, const struct kn_attention *a,
                          const struct kn_rope_store *s, const struct attn &p, const struct attn_plan *plan)
{
    size_t smem;
    int32_t tiles, chunks;
    const attn_fn f = attn_prefill_of(p.d, p.type, plan->warps, &smem, &tiles, &chunks);
    const int rc = s ? cuda_rope_store((struct kn_backend *)be, s) : 0;
    const dim3 grid((unsigned)plan->groups, (unsigned)p.n_kv, (unsigned)plan->blocks);
    if (rc == 0 && !kv_halves(p.type)) return attn_prefill_codes_launch(be, a, &p, plan);
    return rc ? rc
              : cuda_check(be, "attention",
                           cuda_launch(be, f, grid, dim3((unsigned)(32 * plan->warps)), smem, p));
}

/* Whole blocks of rows of a prompt: lists, and a form for prompts over them. */
static int attend_sparse(struct cuda_backend *be, const struct kn_attention *a, const struct kn_rope_store *s,
                         const struct attn *p, const struct attn_plan *plan)
{
    const struct kn_sparse *x = a->sparse;
    struct sparse_lists lists;
    if (!a->causal || a->window || a->first || a->tree || a->sinks || a->n % KN_SPARSE_BLOCK ||
        x->window < 1 || x->sink < 0 || !(x->alpha >= 0) ||
        (plan->form != ATTN_GROUP && plan->form != ATTN_PREFILL))
        return cuda_fail(
            be, KN_EINVAL,
            "attention: %d sparse rows (expected whole blocks of %d, causal, without window or sinks, heads "
            "and caches that prompts have a form for)",
            a->n, KN_SPARSE_BLOCK);
    int rc = s ? cuda_rope_store((struct kn_backend *)be, s) : 0;
    if (rc == 0) rc = attn_sparse_lists(be, a, p, &lists);
    if (rc) return rc;
    return plan->form == ATTN_GROUP ? attn_group_sparse(be, p, &lists)
                                    : attn_prefill_sparse(be, a, p, plan, &lists);
}

/* Rows of a tree: s stores into the tail. */
static int attend_tree(struct cuda_backend *be, const struct kn_rope_store *s, const struct kn_attention *a,
                       const struct attn_call *c, struct attn p)
{
    const struct cuda_device dev = cuda_device_of(be);
    struct attn_plan plan;
    int rc = attn_tree_check(be, a);
    if (rc) return rc;
    const bool places = attn_plan_tree(&dev, &be->attn, c, &plan);
    if (s && !(places && plan.fold) && (rc = cuda_rope_store((struct kn_backend *)be, s))) return rc;
    if (!places) {
        const bool far = attn_plan_tree_far(&dev, c, &plan);
        if (far) p.early = reads_early(be, a, true);
        return attn_tree(be, a, &p, far ? &plan : NULL);
    }
    cuda_count(be, CUDA_ATTN_PATHS);
    if (plan.fold) fold(&p, s, plan.tiles);
    p.tree = a->tree, p.tail_k = a->tail->k, p.tail_v = a->tail->v;
    p.early = p.known = reads_early(be, a, !p.fold);
    prepares(be, a, &plan, &p);
    return launch_turns(be, &p, &plan);
}

/* s: NULL, or what comes before. */
static int attend(struct cuda_backend *be, const struct kn_rope_store *s, const struct kn_attention *a)
{
    const struct kn_kv *kv = a->kv;
    int rc = cuda_check_kv(be, "attention", kv);
    if (rc == 0) rc = cuda_flush(be);
    if (rc) return rc;
    if (a->n < 1 || a->n > 65535 || a->n_head < 1 || a->n_head % kv->n_head_kv || a->window < 0 ||
        kv->n_head_kv > 65535)
        return cuda_fail(be, KN_EINVAL, "attention: %d rows of %d heads over %d KV heads, window %d", a->n,
                         a->n_head, kv->n_head_kv, a->window);
#ifdef CUDA_DEBUG_SYNC
    if (!a->tree && (rc = check_ring(be, a))) return rc;
#endif
    struct attn p = {};
    p.q = a->q, p.out = a->out, p.k = kv->k, p.v = kv->v, p.pos = a->pos, p.first = a->first;
    p.n = a->n, p.n_head = a->n_head, p.n_kv = kv->n_head_kv, p.n_rep = a->n_head / kv->n_head_kv;
    p.d = kv->head_dim, p.where = kv_where_of(kv), p.window = a->window, p.type = kv_form(kv->type);
    p.scale = a->scale, p.causal = a->causal, p.sinks = a->sinks;
    p.rep_inverse = p.n_rep > 1 ? (uint32_t)((1ull << 32) / (uint64_t)p.n_rep + 1) : 0;
    const struct cuda_device dev = cuda_device_of(be);
    struct attn_call c = {};
    c.n = p.n, c.n_head = p.n_head, c.n_kv = p.n_kv, c.d = p.d, c.window = p.window, c.causal = p.causal;
    c.held = kn_kv_positions(kv), c.bound = be->head.kv_bound, c.k_type = kv->type.k, c.v_type = kv->type.v;
    c.gated = a->gate != NULL, c.stores = s != NULL, c.sinks = a->sinks != NULL;
    c.folds = s && attn_can_fold(a->n, kv->head_dim, s->n_rot, s->interleaved);
    c.maps = a->n > FEW ? attn_group_takes(be, &p)
                        : a->n > 1 && (attn_far_takes(be, &p) || attn_far_codes_takes(be, kv));
    c.scratch_bytes = be->scratch_rows_bytes;
    c.whole = a->sparse != NULL;
    if (a->tree) return attend_tree(be, s, a, &c, p);
    const struct attn_plan plan = attn_plan_of(&dev, &be->attn, &c);
    static_assert(CUDA_ATTN_ANY + ATTN_GROUP == CUDA_ATTN_GROUP, "forms.h has attn_form's order");
    cuda_count(be, (enum cuda_form)(CUDA_ATTN_ANY + plan.form));
    if (a->sparse) return attend_sparse(be, a, s, &p, &plan);
    if (plan.form == ATTN_GROUP) return attend_group(be, s, &p);
    return plan.form == ATTN_PREFILL ? launch_prefill(be, a, s, p, &plan) : launch_few(be, a, s, p, &plan);
}

int cuda_attention(struct kn_backend *kb, const struct kn_attention *a)
{
    return attend(cuda_of(kb), NULL, a);
}

int cuda_attend(struct kn_backend *kb, const struct kn_rope_store *s, const struct kn_attention *a)
{
    struct cuda_backend *be = cuda_of(kb);
    const int rc = cuda_check_store(be, s, a->n);
    if (rc) return rc;
    const struct kn_kv *kv = a->tree ? a->tail : a->kv; /* a tree's rows have rows of the tail */
    if (s->next || s->q != a->q || (!a->tree && s->pos != a->pos) || s->n_head != a->n_head || !kv ||
        s->kv->k != kv->k)
        return cuda_fail(be, KN_EINVAL, "attend: rope_store and attention of different rows");
    if (be->chain_steps && a->n == 1 && !a->tree && !a->sinks) {
        const int kept = chain_attend(be, s, a);
        if (kept) return kept < 0 ? kept : 0;
    }
    return attend(be, s, a);
}

int chain_attend_alone(struct cuda_backend *be, const struct kn_rope_store *s, const struct kn_attention *a)
{
    return attend(be, s, a);
}
