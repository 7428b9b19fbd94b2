/* edges.cu - how well candidates follow each other, and the walk along them: bound by latency.
 *
 * A walk is serial, but what it needs is not. Every score of every pair of candidates of neighbouring slots
 * is computed at once (edges: a warp a predecessor, 65,536 products a slot of 16 candidates and rank 256,
 * 0.25 MB of table rows for 15 slots). So is the pick that would follow each predecessor (walk: a warp a
 * predecessor); the last block then goes from place to place through a table in shared memory. Walking step
 * by step instead waits once a slot for memory: some 1 us times 15. */
#include "../core/ops.cuh"
#include "../sample/decode.cuh"
#include "../sample/pick.cuh"

#define EDGE_WARPS 4
#define TILE 16 /* candidates at a time */

struct table {
    const uint8_t *rows;
    uint32_t type, block, bytes;
    int64_t n_out;
    size_t row_bytes;
};
struct edges {
    const int32_t *ids, *anchor;
    const float *values, *hidden, *left;
    const int32_t *row_of;
    float *scores, scale;
    struct table before, after;
    int k, rank, n_ids;
};

/* Values r .. r + 7 of a row, zeros beyond its end or where there is no such row. ANY: the type is t.type. */
#define ANY KN_TYPE_NONE
template <uint32_t TYPE> DEV void row_eight(float v[8], const table &t, int32_t id, int r, int rank)
{
    const uint8_t *row = t.rows + (size_t)(id < 0 ? 0 : id) * t.row_bytes;
    if ((TYPE == KN_BF16 || TYPE == KN_F16) && t.row_bytes % 16 == 0) {
        uint4 u = make_uint4(0, 0, 0, 0);
        if (r < rank && id >= 0) u = __ldg((const uint4 *)(row + 2 * r));
        const uint32_t w[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
        for (int e = 0; e < 8; e++) {
            const uint16_t h = (uint16_t)(w[e / 2] >> 16 * (e % 2));
            v[e] = TYPE == KN_BF16 ? __uint_as_float((uint32_t)h << 16) : __half2float(__ushort_as_half(h));
        }
        return;
    }
    const uint32_t type = TYPE == ANY ? t.type : TYPE;
#pragma unroll
    for (int e = 0; e < 8; e++)
        v[e] = r + e < rank && id >= 0 ? decode(type, row, r + e, t.block, t.bytes) : 0.0f;
}

DEV int32_t known(const table &t, int32_t id)
{
    return id >= 0 && id < t.n_out ? id : -1;
}

DEV int32_t row_of(const edges &a, int32_t id)
{
    return !a.row_of ? id : id >= 0 && id < a.n_ids ? __ldg(a.row_of + id) : -1;
}

/* blockIdx.x: the slot; a warp has a predecessor, a lane every eighth 8 of the ranks. */
template <uint32_t TYPE>
static __global__ void __launch_bounds__(32 * EDGE_WARPS) edge_scores(const __grid_constant__ edges a)
{
    const int i = blockIdx.x, lane = threadIdx.x % 32,
              p = (int)blockIdx.y * EDGE_WARPS + (int)threadIdx.x / 32;
    cuda_grid_start();
    if (p >= (i ? a.k : 1)) return;
    const int32_t *ids = a.ids + (int64_t)i * a.k;
    const int32_t before_id = i ? ids[p - a.k] : *a.anchor,
                  before = a.left ? (before_id < 0 ? -1 : 0) : known(a.before, before_id);
    /* What the row of before is multiplied with, or what stands in place of both. */
    const float *hidden = a.left     ? a.left + ((int64_t)i * a.k + p) * a.rank
                          : a.hidden ? a.hidden + (int64_t)i * a.rank
                                     : NULL;
    float *scores = a.scores + ((int64_t)i * a.k + p) * a.k;
    for (int c = 0; c < a.k; c += TILE) {
        float sum[TILE];
        int32_t id = -1;
#pragma unroll
        for (int j = 0; j < TILE; j++) sum[j] = 0.0f;
        if (lane < TILE && c + lane < a.k) id = known(a.after, row_of(a, ids[c + lane]));
        for (int r = 8 * lane; r < (a.rank + 255) / 256 * 256; r += 256) {
            float from[8];
            if (!a.left) row_eight<TYPE>(from, a.before, before, r, a.rank);
#pragma unroll
            for (int e = 0; e < 8; e++) {
                const float h = r + e >= a.rank ? 0.0f : hidden ? hidden[r + e] : 1.0f;
                from[e] = a.left ? h : __fmul_rn(from[e], h);
            }
#pragma unroll
            for (int j = 0; j < TILE; j++) {
                float to[8];
                row_eight<TYPE>(to, a.after, __shfl_sync(~0u, id, j), r, a.rank);
#pragma unroll
                for (int e = 0; e < 8; e++) sum[j] = __fmaf_rn(from[e], to[e], sum[j]);
            }
        }
        float mine = 0.0f;
#pragma unroll
        for (int j = 0; j < TILE; j++) {
#pragma unroll
            for (int o = 16; o; o /= 2) sum[j] = __fadd_rn(sum[j], __shfl_xor_sync(~0u, sum[j], o));
            if (lane == j) mine = sum[j];
        }
        if (lane < TILE && c + lane < a.k)
            scores[c + lane] =
                before < 0 ? __int_as_float(0x7fc00000)
                           : __fadd_rn(a.values[(int64_t)i * a.k + c + lane], __fmul_rn(a.scale, mine));
    }
}

static struct table table_of(const struct kn_weight *w)
{
    const struct kn_type_info *t = kn_type_info(w->type);
    return {(const uint8_t *)w->rows, w->type, t->block, t->bytes, w->n_out, kn_row_bytes(w->type, w->n_in)};
}

int cuda_edges(struct kn_backend *kb, const struct kn_edges *a)
{
    struct cuda_backend *be = cuda_of(kb);
    const struct kn_weight *w[] = {a->left ? a->after : a->before, a->after};
    if (a->n < 1 || a->n > KN_CYCLE_ROWS || a->k < 1 || a->k > KN_TOP_MOST)
        return cuda_fail(be, KN_EINVAL, "edges: %d slots of %d candidates", a->n, a->k);
    for (int i = 0; i < 2; i++) {
        const struct kn_type_info *t = kn_type_info(w[i]->type);
        if (!w[i]->rows || w[i]->n_in != w[0]->n_in || (!a->row_of && w[i]->n_out != w[0]->n_out) ||
            w[i]->n_in > KN_EDGE_RANK || !t->can_decode ||
            (t->block != 1 && t->block != 32 && t->block != 256))
            return cuda_fail(be, KN_EINVAL,
                             "edges: tables of unequal shapes, without rows, or of a type that is "
                             "not decoded");
    }
    const struct edges args = {a->ids,    a->anchor,       a->values, a->hidden,      a->left,
                               a->row_of, a->scores,       a->scale,  table_of(w[0]), table_of(w[1]),
                               a->k,      (int)w[0]->n_in, a->n_ids};
    const uint32_t type = w[0]->type == w[1]->type ? w[0]->type : ANY;
    void (*f)(const edges) = type == KN_BF16   ? edge_scores<KN_BF16>
                             : type == KN_F16  ? edge_scores<KN_F16>
                             : type == KN_F32  ? edge_scores<KN_F32>
                             : type == KN_Q8_0 ? edge_scores<KN_Q8_0>
                             : type == KN_Q4_K ? edge_scores<KN_Q4_K>
                             : type == KN_Q6_K ? edge_scores<KN_Q6_K>
                                               : edge_scores<ANY>;
    const dim3 grid((unsigned)a->n, (unsigned)((a->k + EDGE_WARPS - 1) / EDGE_WARPS));
    return cuda_check(be, "edges", cuda_launch(be, f, grid, dim3(32 * EDGE_WARPS), 0, args));
}

/* ---- the walk ---- */

#define WALK_WARPS 16
#define WALK_COUNTER 400 /* of be->count */

struct walk {
    const int32_t *ids, *pos;
    const float *scores;
    int n, k;
    struct kn_sampler s;
    int32_t *out;
    float *logp;
    int32_t *place; /* [n, k] where among the k the pick behind a predecessor is; -1: nothing */
    float *logps;   /* [n, k] */
    unsigned *count;
};

/* The candidates of one slot behind one predecessor, in order: score descending, then id ascending. */
struct walk_row {
    float l[KN_TOP_MOST], weight[KN_TOP_MOST], weight_p[KN_TOP_MOST];
    int32_t id[KN_TOP_MOST], from[KN_TOP_MOST];
};

/* A lane's candidates lane and lane + 32 to their places; returns how many there are, -1: a NaN, or no finite
 * maximum. */
static __device__ int walk_sort(const walk &a, int i, const float *scores, walk_row &w)
{
    const int lane = threadIdx.x % 32;
    float l[2];
    int32_t id[2];
    int n = 0;
    bool odd = false;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int c = lane + 32 * h;
        l[h] = -INFINITY, id[h] = -1;
        if (c < a.k) id[h] = a.ids[(int64_t)i * a.k + c], l[h] = __ldcg(scores + c);
        for (int b = 0; b < a.s.n_bias; b++)
            if (id[h] >= 0 && a.s.bias[b].id == id[h]) l[h] = __fadd_rn(l[h], a.s.bias[b].add);
        odd |= l[h] != l[h] || l[h] == INFINITY;
        if (id[h] < 0) l[h] = -INFINITY;
        n += __popc(__ballot_sync(~0u, l[h] > -INFINITY));
    }
    if (__any_sync(~0u, odd) || n == 0) return -1;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int rank = 0;
        for (int c = 0; c < a.k; c++) {
            const float o = __shfl_sync(~0u, c < 32 ? l[0] : l[1], c % 32);
            const int32_t other = __shfl_sync(~0u, c < 32 ? id[0] : id[1], c % 32);
            rank += o > l[h] || (o == l[h] && other < id[h]);
        }
        if (l[h] > -INFINITY) w.l[rank] = l[h], w.id[rank] = id[h], w.from[rank] = lane + 32 * h;
    }
    __syncwarp();
    return n;
}

DEV float walk_weight(const walk_row &w, int i, float temp)
{
    return dev_exp(__fdiv_rn(__fsub_rn(w.l[i], w.l[0]), temp));
}

/* How many the filters keep: kernels/cpu/draft.c, step by step. Every lane counts for itself. */
static __device__ int walk_kept(const struct kn_sampler &s, const walk_row &w, int n)
{
    const double temp_m = s.order & KN_ORDER_MIN_P_RAW ? 1.0 : (double)s.temp,
                 log_min_p = s.min_p > 0.0f ? dev_log((double)s.min_p) : -INFINITY,
                 first = __ddiv_rn((double)w.l[0], temp_m);
    const int most = s.top_k > 0 && s.top_k < n ? s.top_k : n,
              all = s.order & KN_ORDER_TOP_P_FIRST ? n : most;
    double limit = INFINITY, before = 0.0, mass = 0.0;
    int kept = 0, likely = s.min_p > 0.0f ? 1 : n;
    while (likely < n && !(__dsub_rn(__ddiv_rn((double)w.l[likely], temp_m), first) < log_min_p)) likely++;
    if (s.top_p < 1.0f) {
        for (int i = 0; i < all && (!(s.order & KN_ORDER_MIN_P_FIRST) || i < likely); i++)
            mass = __dadd_rn(mass, (double)w.weight_p[i]);
        limit = __dmul_rn((double)s.top_p, mass);
    }
    for (; kept < most && kept < likely && (kept == 0 || before < limit); kept++)
        before = __dadd_rn(before, (double)w.weight_p[kept]);
    return kept;
}

/* The pick of slot i behind predecessor p, by a warp. */
static __device__ void walk_pick(const walk &a, int i, int p, walk_row &w)
{
    const int lane = threadIdx.x % 32, n = walk_sort(a, i, a.scores + ((int64_t)i * a.k + p) * a.k, w);
    const bool sample = a.s.temp > 0.0f;
    const float temp = sample ? a.s.temp : 1.0f, temp_p = a.s.order & KN_ORDER_TOP_P_RAW ? 1.0f : temp;
    struct best b = {0.0, -INFINITY, -1, -1, 0};
    if (n < 0) {
        if (lane == 0) a.place[i * a.k + p] = -1, a.logps[i * a.k + p] = __int_as_float(0x7fc00000);
        return;
    }
    for (int c = lane; c < n; c += 32)
        w.weight[c] = walk_weight(w, c, temp), w.weight_p[c] = walk_weight(w, c, temp_p);
    __syncwarp();
    const int kept = sample ? walk_kept(a.s, w, n) : n;
    for (int c = lane; sample && c < kept; c += 32) {
        uint32_t word[4];
        philox(a.s.seed, (uint32_t)a.pos[i] + 1, (uint32_t)w.id[c] / 4, word);
        const int which = w.id[c] % 4;
        const uint32_t mine = which == 0 ? word[0] : which == 1 ? word[1] : which == 2 ? word[2] : word[3];
        const double score = score_of(w.l[c], (double)temp, mine);
        if (b.id < 0 || score > b.score || (score == b.score && w.id[c] < b.id))
            b.score = score, b.id = w.id[c], b.top_id = c; /* top_id: its place in the order */
    }
    for (int o = 16; sample && o; o /= 2) {
        const double score = __shfl_xor_sync(~0u, b.score, o);
        const int32_t id = __shfl_xor_sync(~0u, b.id, o), at = __shfl_xor_sync(~0u, b.top_id, o);
        if (id >= 0 && (b.id < 0 || score > b.score || (score == b.score && id < b.id)))
            b.score = score, b.id = id, b.top_id = at;
    }
    if (lane) return;
    const int pick = b.top_id < 0 ? 0 : b.top_id;
    double mass = 0.0;
    for (int c = 0; a.logp && c < kept; c++) mass = __dadd_rn(mass, (double)w.weight[c]);
    a.place[i * a.k + p] = w.from[pick];
    if (a.logp)
        a.logps[i * a.k + p] = __double2float_rn(
            __dsub_rn(__ddiv_rn(__dsub_rn((double)w.l[pick], (double)w.l[0]), (double)temp), dev_log(mass)));
}

static __global__ void __launch_bounds__(32 * WALK_WARPS) walk_rows(const __grid_constant__ walk a)
{
    __shared__ union {
        struct walk_row row[WALK_WARPS];
        int16_t place[KN_CYCLE_ROWS * KN_TOP_MOST];
    } m;
    __shared__ int32_t path[KN_CYCLE_ROWS];
    __shared__ bool last;
    const int i = blockIdx.x, t = threadIdx.x, warp = t / 32;
    cuda_grid_start();
    for (int p = warp; p < (i ? a.k : 1); p += blockDim.x / 32) walk_pick(a, i, p, m.row[warp]);
    __threadfence();
    __syncthreads();
    if (t == 0) last = atomicAdd(a.count, 1u) == gridDim.x - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    for (int j = t; j < a.n * a.k; j += blockDim.x) m.place[j] = (int16_t)__ldcg(a.place + j);
    __syncthreads();
    if (t == 0) {
        *a.count = 0;
        for (int s = 0, p = 0; s < a.n; s++) {
            path[s] = p; /* the predecessor's place, -1: there is none */
            p = p < 0 ? -1 : m.place[s * a.k + p];
        }
    }
    __syncthreads();
    for (int s = t; s < a.n; s += blockDim.x) {
        const int p = path[s], c = p < 0 ? -1 : m.place[s * a.k + p];
        a.out[s] = c < 0 ? KN_PICK_NAN : a.ids[(int64_t)s * a.k + c];
        if (a.logp) a.logp[s] = c < 0 ? __int_as_float(0x7fc00000) : __ldcg(a.logps + s * a.k + p);
    }
}

int cuda_walk(struct kn_backend *kb, const struct kn_walk *a)
{
    struct cuda_backend *be = cuda_of(kb);
    if (a->n < 1 || a->n > KN_CYCLE_ROWS || a->k < 1 || a->k > KN_TOP_MOST)
        return cuda_fail(be, KN_EINVAL, "walk: %d slots of %d candidates", a->n, a->k);
    const int rc = cuda_check_sampler(be, "walk", &a->sampler);
    if (rc) return rc;
    const size_t all = (size_t)a->n * (size_t)a->k, need = all * (sizeof(int32_t) + sizeof(float));
    if (need > be->scratch_rows_bytes)
        return cuda_fail(be, KN_EINVAL,
                         "walk: %d slots of %d candidates want %zu bytes of scratch, %zu are "
                         "reserved",
                         a->n, a->k, need, be->scratch_rows_bytes);
    const struct walk args = {a->ids,
                              a->pos,
                              a->scores,
                              a->n,
                              a->k,
                              a->sampler,
                              a->out,
                              a->logp,
                              (int32_t *)be->scratch_rows,
                              (float *)be->scratch_rows + all,
                              be->count + WALK_COUNTER};
    const int warps = a->k < WALK_WARPS ? a->k : WALK_WARPS;
    return cuda_check(be, "walk",
                      cuda_launch(be, walk_rows, dim3((unsigned)a->n), dim3(32 * (unsigned)warps), 0, args));
}
