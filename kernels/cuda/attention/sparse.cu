/* attention/sparse.cu - block-sparse prompts: means of blocks, their scores, and the lists that attention
 * over whole blocks of rows walks along (ops/attention.h, struct kn_sparse; sparse.cuh).
 *
 * Bound: means read each key and value once, when their block is whole. Scores are a 128th of a dense
 * prompt's products of queries and keys, and each block of rows reads the means before it. */
#include <stdio.h>

#include "many.cuh"
#include "sparse.cuh"

/* ---- means ---- */

/* One block and kv head, a thread a column. A block whose means are no halves is kept by every list: its mean
 * key is NaN, so is its score, and its mean value zero, for a weight of zero must stay one. */
template <class K, class V, bool BF16>
static __global__ void __launch_bounds__(512) make_means(const attn a, const kv_side k, const kv_side v,
                                                         uint16_t *mk, uint16_t *mv, kv_where means, int made)
{
    cuda_grid_start();
    const int block = made + blockIdx.x, head = blockIdx.y, t = threadIdx.x;
    if ((block + 1) * KN_SPARSE_BLOCK > a.pos[0] + a.n) return;
    const int64_t slot = KV_SLOT(a.where, block * KN_SPARSE_BLOCK);
    constexpr int AT_ONCE =
        std::is_same_v<K, kv_coded> && std::is_same_v<V, kv_coded> ? 4 : 8; /* by registers */
    float x = 0.0f, y = 0.0f;
#pragma unroll AT_ONCE
    for (int i = 0; i < KN_SPARSE_BLOCK; i++) {
        x = __fadd_rn(x, kv_number<K>::get(k, a.n_kv, a.d, slot + i, head, t));
        y = __fadd_rn(y, kv_number<V>::get(v, a.n_kv, a.d, slot + i, head, t));
    }
    const uint16_t hx = to_half<BF16>(__fmul_rn(x, 1.0f / KN_SPARSE_BLOCK)),
                   hy = to_half<BF16>(__fmul_rn(y, 1.0f / KN_SPARSE_BLOCK));
    const bool bad = __syncthreads_or(!isfinite(from_half<BF16>(hx)) || !isfinite(from_half<BF16>(hy))) != 0;
    const int64_t at = ((int64_t)KV_SLOT(means, block) * a.n_kv + head) * a.d + t;
    mk[at] = bad ? 0x7fff : hx; /* a NaN of either type */
    mv[at] = bad ? 0 : hy;
}

/* ---- scores ---- */

template <int D> struct scoring {
    static constexpr int KEYS = D <= 256 ? 64 : 16, PITCH = D + 8, WARPS = 8;
    static constexpr int QUERIES = 8 * (D / 16) * 512, UNITS = KN_SPARSE_BLOCK * 4, BOX = WARPS * KEYS * 4;
    static constexpr int BYTES = QUERIES + UNITS + 2 * BOX + KEYS * PITCH * 2;
};

/* M and E (struct kn_sparse) of every block up to the rows' own: a block of rows and a query head. one: a
 * with a kv head for each query head, to read queries by; means: a over the means. */
template <int D, bool BF16, bool TURN>
static __global__ void __launch_bounds__(256)
    sparse_scores(const attn a, const attn one, const attn means, const void *mk, uint32_t type, float2 *out,
                  int pitch)
{
    using S = scoring<D>;
    constexpr int NT = S::KEYS / 8;
    extern __shared__ __align__(128) unsigned char raw[];
    uint4 *queries = (uint4 *)raw;
    float *units = (float *)(raw + S::QUERIES), *most = units + KN_SPARSE_BLOCK,
          *sums = most + S::WARPS * S::KEYS;
    const unsigned k = shared_at(raw) + S::QUERIES + S::UNITS + 2 * S::BOX;
    cuda_grid_start();
    const int lane = threadIdx.x % 32, w = threadIdx.x / 32, g = lane / 4;
    const int own = (int)(gridDim.x - 1 - blockIdx.x), head = blockIdx.y; /* the longest first */
    const int m = a.pos[0] / KN_SPARSE_BLOCK + own;
    const struct span all = {0, m + 1};
    out += ((int64_t)own * a.n_head + head) * pitch;
    load_queries<D, BF16, 8, S::WARPS, 1, TURN>(one, queries, units, own * 8, head, type);
    for (int c = 0; c <= m; c += S::KEYS) {
        float x[1][NT][4];
        __syncthreads();
        kv_stage<D, D, S::KEYS, S::PITCH, 256>(means, k, mk, c, head / a.n_rep, 0, all);
        copy_commit();
        copy_wait(0);
        __syncthreads();
        scores_of<D, BF16, 1, NT, S::PITCH>(x, queries + w * (D / 16) * 32, k);
        const float unit[2] = {units[w * 16 + g], units[w * 16 + g + 8]};
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int n = c + 8 * j + 2 * (lane % 4) + e % 2, row = w * 16 + g + e / 2 * 8;
                const bool seen = n < m || (n == m && row == KN_SPARSE_BLOCK - 1);
                x[0][j][e] = seen ? __fmul_rn(x[0][j][e], unit[e / 2]) : -INFINITY;
            }
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float y = fmaxf(x[0][j][e], x[0][j][e + 2]);
#pragma unroll
                for (int i = 4; i < 32; i *= 2) y = fmaxf(y, __shfl_xor_sync(~0u, y, i));
                if (lane < 4) most[w * S::KEYS + 8 * j + 2 * lane + e] = y;
            }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int at = 8 * j + 2 * (lane % 4) + e;
                float top = most[at];
#pragma unroll
                for (int i = 1; i < S::WARPS; i++) top = fmaxf(top, most[i * S::KEYS + at]);
                top = top == -INFINITY ? 0.0f : ceilf(top);
                float y =
                    __fadd_rn(exp_two(__fsub_rn(x[0][j][e], top)), exp_two(__fsub_rn(x[0][j][e + 2], top)));
#pragma unroll
                for (int i = 4; i < 32; i *= 2) y = __fadd_rn(y, __shfl_xor_sync(~0u, y, i));
                if (lane < 4) sums[w * S::KEYS + 8 * j + 2 * lane + e] = y;
            }
        __syncthreads();
        const int t = threadIdx.x;
        if (t < S::KEYS && c + t <= m) {
            float top = most[t], sum = sums[t];
            for (int i = 1; i < S::WARPS; i++) {
                top = fmaxf(top, most[i * S::KEYS + t]);
                sum = __fadd_rn(sum, sums[i * S::KEYS + t]);
            }
            out[c + t] = make_float2(ceilf(top), sum);
        }
    }
}

/* ---- lists ---- */

struct keeping {
    float alpha, density;
    int sink, window;
    bool spread;
};

DEV float mass(const float2 &s, float top)
{
    const float d = __fsub_rn(s.x, top);
    if (isnan(s.y) || isnan(d)) return __int_as_float(0x7fc00000);
    return __fmul_rn(s.y, factor(s.x, top));
}
DEV bool forced(const keeping &k, int m, int n)
{
    return n < k.sink || m - n < k.window;
}
/* The largest of all threads' x, a NaN not being one. */
DEV float most_of(float x, float *box)
{
    for (int i = 16; i; i >>= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, i));
    __syncthreads();
    if (threadIdx.x % 32 == 0) box[threadIdx.x / 32] = x;
    __syncthreads();
    for (int i = 0; i < 8; i++) x = fmaxf(x, box[i]);
    return x;
}

/* As kernels/sparse.c: a block of rows and a kv head. */
static __global__ void __launch_bounds__(256)
    sparse_keep(const attn a, const keeping k, const float2 *scores, int pitch, int32_t *list, int32_t *count,
                uint32_t *mask, unsigned long long *kept)
{
    extern __shared__ uint32_t keep[]; /* [pitch / 32] */
    __shared__ float box[8];
    __shared__ int total;
    cuda_grid_start();
    const int own = blockIdx.x, head = blockIdx.y, t = threadIdx.x, words = pitch / 32;
    const int m = a.pos[0] / KN_SPARSE_BLOCK + own;
    const int64_t at = (int64_t)own * a.n_kv + head;
    if (t == 0) total = 0;
    for (int i = t; i < words; i += 256) keep[i] = 0;
    for (int h = 0; h < a.n_rep; h++) {
        const float2 *s = scores + ((int64_t)own * a.n_head + head * a.n_rep + h) * pitch;
        float top = -INFINITY, most = 0.0f;
        for (int n = t; n <= m; n += 256) top = fmaxf(top, s[n].x);
        top = most_of(top, box);
        for (int n = t; n <= m; n += 256) most = fmaxf(most, mass(s[n], top));
        most = __fmul_rn(k.alpha, most_of(most, box));
        for (int n = t; n <= m; n += 256)
            if (forced(k, m, n) || !(mass(s[n], top) < most)) atomicOr(&keep[n / 32], 1u << n % 32);
    }
    __syncthreads();
    for (int i = t; i < words; i += 256) atomicAdd(&total, __popc(keep[i]));
    __syncthreads();
    if (k.spread || k.density > 0.0f) {
        const int fixed = min(m + 1, k.sink + k.window), n_free = m + 1 - fixed,
                  all = k.density > 0.0f ? (int)ceilf(__fmul_rn(k.density, (float)(m + 1))) : total,
                  want = max(0, min(all - fixed, n_free));
        __syncthreads();
        for (int i = t; i < words; i += 256) keep[i] = 0;
        if (t == 0) total = fixed + want;
        __syncthreads();
        for (int n = t; n <= m; n += 256) {
            const int64_t j = n - k.sink;
            if (forced(k, m, n) || (j + 1) * want / n_free > j * want / n_free)
                atomicOr(&keep[n / 32], 1u << n % 32);
        }
        __syncthreads();
    }
    for (int i = t; i < words; i += 256) {
        int to = 0;
        for (int j = 0; j < i; j++) to += __popc(keep[j]);
        for (uint32_t left = keep[i]; left; left &= left - 1)
            list[at * pitch + to++] = 32 * i + __ffs(left) - 1;
        mask[at * words + i] = keep[i];
    }
    if (t == 0) {
        count[at] = total;
        atomicAdd(kept, (unsigned long long)total);
        atomicAdd(kept + 1, (unsigned long long)(m + 1));
    }
}

/* ---- launching ---- */

static size_t up(size_t bytes)
{
    return (bytes + 255) & ~(size_t)255;
}
/* Where things lie in the scratch of n rows; returns its size. */
static size_t layout(int32_t n, int32_t n_head, int32_t n_kv, int32_t pitch, size_t at[4])
{
    const size_t own = ((size_t)n + KN_SPARSE_BLOCK - 1) / KN_SPARSE_BLOCK, b = (size_t)pitch;
    const size_t bytes[4] = {own * (size_t)n_head * b * sizeof(float2), own * (size_t)n_kv * b * 4,
                             own * (size_t)n_kv * b / 8, own * (size_t)n_kv * 4};
    size_t used = 0;
    for (int i = 0; i < 4; i++) at[i] = used, used += up(bytes[i]);
    return used;
}

int cuda_sparse_room(struct kn_backend *kb, int32_t n, int32_t n_head, const struct kn_kv *kv,
                     struct kn_sparse_room *room)
{
    struct kn_backend_head *h = (struct kn_backend_head *)kb;
    const struct cuda_device dev = kn_op(kb)->counts ? cuda_device{} : cuda_device_of(cuda_of(kb));
    const uint32_t half = kv_form(kv->type);
    size_t at[4];
    if (!attn_takes_sparse(NULL, kv)) {
        snprintf(
            h->message, sizeof h->message,
            "sparse prompts want heads of 64, 128, 256 or 512 and caches of f16, bf16 or quantised beside "
            "f16 (got heads of %d, %s and %s)",
            kv->head_dim, kn_kv_name(kv->type.k), kn_kv_name(kv->type.v));
        return KN_ETYPE;
    }
    if (!kn_op(kb)->counts && !attn_takes_sparse(&dev, kv)) {
        snprintf(h->message, sizeof h->message,
                 "the device has too little shared memory for sparse prompts of heads of %d (%d bytes a "
                 "block)",
                 kv->head_dim, dev.smem_block);
        return KN_ETYPE;
    }
    room->mean = kn_kv_like(kv, kn_kv_positions(kv) / KN_SPARSE_BLOCK);
    room->mean.type.k = room->mean.type.v = kv_halves(half) ? half : (uint32_t)KN_F16;
    room->scratch = layout(n, n_head, kv->n_head_kv, kn_kv_positions(&room->mean), at);
    return 0;
}

typedef void (*means_fn)(const attn, const kv_side, const kv_side, uint16_t *, uint16_t *, kv_where, int);
static int launch_means(struct cuda_backend *be, const struct kn_attention *call, const struct attn *a)
{
    const struct kn_sparse *s = call->sparse;
    const int bound = be->head.kv_bound ? be->head.kv_bound : kn_kv_positions(call->kv),
              blocks = bound / KN_SPARSE_BLOCK;
    const bool k = kn_kv_coded(call->kv->type.k), v = kn_kv_coded(call->kv->type.v);
    /* The types that forms for prompts take: cuda_sparse_room. */
    const means_fn f = kv_bf16(a->type) ? make_means<__nv_bfloat16, __nv_bfloat16, true>
                       : k && v         ? make_means<kv_coded, kv_coded, false>
                       : k              ? make_means<kv_coded, __half, false>
                       : v              ? make_means<__half, kv_coded, false>
                                        : make_means<__half, __half, false>;
    if (blocks <= s->made) return 0;
    return cuda_check(be, "attention",
                      cuda_launch(be, f, dim3((unsigned)(blocks - s->made), (unsigned)a->n_kv),
                                  dim3((unsigned)a->d), 0, *a, kv_side_of(call->kv, false),
                                  kv_side_of(call->kv, true), (uint16_t *)s->mean.k, (uint16_t *)s->mean.v,
                                  kv_where_of(&s->mean), (int)s->made));
}

template <int D>
static int launch_scores(struct cuda_backend *be, const struct kn_attention *call, const struct attn *a,
                         float2 *scores)
{
    const uint32_t type = call->kv->type.k;
    const bool bf16 = kv_bf16(a->type);
    const auto f = kn_kv_coded(type) ? sparse_scores<D, false, true>
                   : bf16            ? sparse_scores<D, true, false>
                                     : sparse_scores<D, false, false>;
    struct attn one = *a, means = *a;
    one.n_rep = 1, one.rep_inverse = 0;
    means.where = kv_where_of(&call->sparse->mean);
    const int rc =
        cuda_check(be, "attention",
                   cudaFuncSetAttribute((const void *)f, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        (int)scoring<D>::BYTES));
    return rc ? rc
              : cuda_check(be, "attention",
                           cuda_launch(be, f, dim3((unsigned)(a->n / KN_SPARSE_BLOCK), (unsigned)a->n_head),
                                       dim3(256), (size_t)scoring<D>::BYTES, *a, one, means,
                                       (const void *)call->sparse->mean.k, type, scores,
                                       (int)kn_kv_positions(&call->sparse->mean)));
}

int attn_sparse_lists(struct cuda_backend *be, const struct kn_attention *call, const struct attn *a,
                      struct sparse_lists *lists)
{
    const struct kn_sparse *s = call->sparse;
    const int32_t pitch = kn_kv_positions(&s->mean), own = a->n / KN_SPARSE_BLOCK;
    const struct keeping k = {s->alpha, s->density, s->sink, s->window, s->spread};
    unsigned char *base = (unsigned char *)s->scratch;
    size_t at[4];
    (void)layout(a->n, a->n_head, a->n_kv, pitch, at);
    float2 *scores = (float2 *)(base + at[0]);
    int32_t *list = (int32_t *)(base + at[1]), *count = (int32_t *)(base + at[3]);
    uint32_t *mask = (uint32_t *)(base + at[2]);
    *lists = {list, count, mask, pitch, s->mean.k, s->mean.v, kv_where_of(&s->mean)};
    int rc = launch_means(be, call, a);
    if (rc == 0) switch (a->d) {
        case 64: rc = launch_scores<64>(be, call, a, scores); break;
        case 128: rc = launch_scores<128>(be, call, a, scores); break;
        case 256: rc = launch_scores<256>(be, call, a, scores); break;
        default: rc = launch_scores<512>(be, call, a, scores);
        }
    return rc ? rc
              : cuda_check(be, "attention",
                           cuda_launch(be, sparse_keep, dim3((unsigned)own, (unsigned)a->n_kv), dim3(256),
                                       (size_t)pitch / 8, *a, k, (const float2 *)scores, (int)pitch, list,
                                       count, mask, (unsigned long long *)s->kept));
}
