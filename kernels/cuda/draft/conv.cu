/* conv.cu - a convolution along the rows of a block: between two products, bound by latency.
 *
 * A warp has 256 columns of a row, 8 a lane, and reads the same of the rows before it. A norm before it wants
 * the squares of as many whole rows, which every block adds up for itself: 2 rows of 16 to 20 KB from the L2
 * cache. What a product of few rows left as sums of slices is added here (owed.cuh): the taps, which are then
 * completed in memory for the convolution behind the branch, or the branch itself. What the next product
 * rounds to 8 bits is rounded here and stored both ways, for its matrices may be of several kinds. Where that
 * product norms what it reads, the blocks of a row are a cluster and give each other their squares. */
#include "../core/ops.cuh"
#include "../product/exchange.cuh"
#include "../product/owed.cuh"

#define WARPS 4
#define REGISTERS 96 /* so that blocks stand beside those of a product (mm_few.cuh) */
#define PLAIN -1     /* nothing is rounded */

struct conv {
    const float *x, *norm, *base;
    float *dynamic, *out;
    int64_t stride, offset;
    float eps;
    int n, width, group, taps;
    const float *then_norm; /* NORMS: of what is rounded */
    bool add, whole;        /* whole: rows are groups of four that begin at multiples of 16 bytes */
};
enum from { FROM_MEMORY, FROM_SUMS_TAPS, FROM_SUMS_X };

/* Columns k .. k + 7 of a row; zeros beyond its end. */
DEV void load_columns(float v[8], const float *p, int k, int width, bool whole)
{
    if (whole) {
        load_eight(v, p, k, width);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = k + i < width ? __ldcg(p + k + i) : 0.0f;
}

/* Value j of row i's taps, of sums of slices. */
DEV float owed_tap(const mm_owed &o, int i, int64_t j)
{
    const float *p = o.sums + (int64_t)i * o.width[0] + j;
    float v = 0.0f;
    for (int s = 0; s < o.slices; s++) v = __fadd_rn(v, __ldcg(p + (int64_t)s * o.n * o.width[0]));
    return v;
}

/* w += dynamic of columns k .. k + 7, tap t of row i. */
template <enum from FROM> DEV void add_taps(float w[8], const conv &a, const mm_owed &o, int i, int t, int k)
{
    const int64_t at = a.offset + (int64_t)t * (a.width / a.group);
    const float *row = a.dynamic + (int64_t)i * a.stride + at;
    const auto tap = [&](int g) { return FROM == FROM_SUMS_TAPS ? owed_tap(o, i, at + g) : __ldcg(row + g); };
    if (k >= a.width) return;
    if (a.group % 8 == 0) {
        const float d = tap(k / a.group);
#pragma unroll
        for (int e = 0; e < 8; e++) w[e] = __fadd_rn(w[e], d);
        return;
    }
#pragma unroll
    for (int e = 0; e < 8; e++)
        if (k + e < a.width) w[e] = __fadd_rn(w[e], tap((k + e) / a.group));
}

/* 1 / rms of rows i, i - 1, ... into scale, by all threads. */
DEV void row_scales(const conv &a, int i, float *scale, float (*part)[WARPS])
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int t = 0; t < a.taps && t <= i; t++) {
        const float *x = a.x + (int64_t)(i - t) * a.width;
        float s = 0.0f;
        if (a.whole) {
#pragma unroll 8
            for (int k = 4 * threadIdx.x; k < a.width; k += 128 * WARPS) {
                const float4 v = __ldcg((const float4 *)(x + k));
                s = __fmaf_rn(v.w, v.w, __fmaf_rn(v.z, v.z, __fmaf_rn(v.y, v.y, __fmaf_rn(v.x, v.x, s))));
            }
        } else {
            for (int k = threadIdx.x; k < a.width; k += 32 * WARPS) s = __fmaf_rn(x[k], x[k], s);
        }
#pragma unroll
        for (int o = 16; o; o /= 2) s = __fadd_rn(s, __shfl_xor_sync(0xffffffff, s, o));
        if (lane == 0) part[t][warp] = s;
    }
    __syncthreads();
    if ((int)threadIdx.x < a.taps && (int)threadIdx.x <= i) {
        float s = part[threadIdx.x][0];
        for (int w = 1; w < WARPS; w++) s = __fadd_rn(s, part[threadIdx.x][w]);
        scale[threadIdx.x] = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(s, (float)a.width), a.eps)));
    }
    __syncthreads();
}

/* Columns k .. k + 7 of row j. */
template <enum from FROM> DEV void load_x(float v[8], const conv &a, const mm_owed &o, int j, int k)
{
    const int64_t at = (int64_t)j * a.width;
    if (FROM == FROM_SUMS_X && k < a.width)
        owed_values<8>(v, o.sums + at + k, nullptr, o.slices, (size_t)o.n * (size_t)a.width, false);
    else
        load_columns(v, a.x + at, k, a.width, a.whole);
}

/* Two taps at a time: all that is read of them is on its way before anything is added up. What is constant,
 * and has left the L2 cache since the last draft, is asked for before the wait. */
template <int ACT, enum from FROM, bool NORMS>
static __global__ void __launch_bounds__(32 * WARPS, 65536 / (32 * WARPS * REGISTERS))
    conv_rows(const __grid_constant__ conv a, const __grid_constant__ mm_owed o,
              const __grid_constant__ mm_prep p)
{
    __shared__ __align__(16) float norms[WARPS * 256];
    __shared__ float scale[KN_CONV_TAPS], part[KN_CONV_TAPS][WARPS], squares[NORMS ? MM_ADD_WIDTH / 256 : 1];
    __shared__ uint64_t bar;
    const int block = (int)blockIdx.x * WARPS + (int)threadIdx.x / 32,
              k = 256 * block + 8 * (threadIdx.x % 32), i = (int)blockIdx.y, taps = min(a.taps, i + 1);
    float sum[8], old[8], v[2][8], w[2][8], *const norm = norms + 8 * threadIdx.x; /* registers are few */
    float *out = a.out + (int64_t)i * a.width;
    const float *before = NORMS ? a.then_norm : a.norm;
    cuda_grid_early();
    if constexpr (NORMS) exchange_open(&bar, 1);
#pragma unroll
    for (int e = 0; e < 8; e++) sum[e] = old[e] = 0.0f;
    if (before) {
        load_columns(v[0], before, k, a.width, a.whole);
#pragma unroll
        for (int e = 0; e < 8; e++) norm[e] = v[0][e];
    }
#pragma unroll
    for (int s = 0; s < 2; s++)
        if (s < taps) load_columns(w[s], a.base + (int64_t)s * a.width, k, a.width, a.whole);
    cuda_grid_wait();
    if (a.add) load_columns(old, out, k, a.width, a.whole);
    for (int t = 0; t < taps; t += 2) {
#pragma unroll
        for (int s = 0; s < 2; s++) {
            if (t + s >= taps) continue;
            if (t) load_columns(w[s], a.base + (int64_t)(t + s) * a.width, k, a.width, a.whole);
            load_x<FROM>(v[s], a, o, i - t - s, k);
            add_taps<FROM>(w[s], a, o, i, t + s, k);
        }
        if (!NORMS && t == 0 && a.norm) row_scales(a, i, scale, part);
#pragma unroll
        for (int s = 0; s < 2; s++) {
            if (t + s >= taps) continue;
            if (!NORMS && a.norm) scale_eight(v[s], scale[t + s], norm);
#pragma unroll
            for (int e = 0; e < 8; e++)
                sum[e] = t + s ? __fmaf_rn(w[s][e], v[s][e], sum[e]) : __fmul_rn(w[s][e], v[s][e]);
        }
    }
    if (FROM == FROM_SUMS_TAPS) /* the taps of the other side are read later */
        for (int64_t j = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; j < a.stride;
             j += (int64_t)gridDim.x * blockDim.x)
            a.dynamic[(int64_t)i * a.stride + j] = owed_tap(o, i, j);
    if (a.add)
#pragma unroll
        for (int e = 0; e < 8; e++) sum[e] = __fadd_rn(old[e], sum[e]);
    if (a.whole && k < a.width) {
        *(float4 *)(out + k) = make_float4(sum[0], sum[1], sum[2], sum[3]);
        *(float4 *)(out + k + 4) = make_float4(sum[4], sum[5], sum[6], sum[7]);
    } else {
#pragma unroll
        for (int e = 0; e < 8; e++)
            if (k + e < a.width) out[k + e] = sum[e];
    }
    if constexpr (NORMS) {
        cluster_wait();
        exchange(squares, shared_at(&bar), block, block_squares(sum));
        scale_eight(sum, inverse_rms(squares, a.width / 256, a.width, a.eps), norm);
    }
    if constexpr (ACT != PLAIN) {
        if (k < a.width)
            store_block<(enum mm_act)ACT>(p, p.rows + (size_t)i * (size_t)p.slices * (size_t)p.slice_row,
                                          block, sum, i);
    }
}

typedef void (*conv_fn)(const conv, const mm_owed, const mm_prep);
template <enum from FROM> static conv_fn kernel_of(int act)
{
    return act == MM_ACT_K     ? conv_rows<MM_ACT_K, FROM, false>
           : act == MM_ACT_32  ? conv_rows<MM_ACT_32, FROM, false>
           : act == MM_ACT_32M ? conv_rows<MM_ACT_32M, FROM, false>
                               : conv_rows<PLAIN, FROM, false>;
}
/* Behind a branch: rounded with a norm, or not at all. */
static conv_fn kernel_behind(int act)
{
    return act == MM_ACT_K     ? conv_rows<MM_ACT_K, FROM_SUMS_X, true>
           : act == MM_ACT_32  ? conv_rows<MM_ACT_32, FROM_SUMS_X, true>
           : act == MM_ACT_32M ? conv_rows<MM_ACT_32M, FROM_SUMS_X, true>
                               : conv_rows<PLAIN, FROM_SUMS_X, false>;
}
/* May the blocks of a row exchange squares: a cluster of them, for 8,192 columns at most. */
static bool may_norm(const struct cuda_backend *be, const struct kn_conv *a)
{
    return be->cc >= 90 && !be->generic && !a->norm && a->width <= MM_ADD_WIDTH && a->n <= 16 &&
           ((uintptr_t)a->then_norm & 15) == 0;
}

static int check(struct cuda_backend *be, const struct kn_conv *a)
{
    if (a->n < 1 || a->n > KN_CYCLE_ROWS || a->width < 1 || a->group < 1 || a->width % a->group ||
        a->taps < 1 || a->taps > KN_CONV_TAPS)
        return cuda_fail(be, KN_EINVAL, "conv: %d rows of %d by %d taps of groups of %d", a->n, a->width,
                         a->taps, a->group);
    if (a->offset < 0 || a->offset + (int64_t)a->taps * (a->width / a->group) > a->stride || a->out == a->x)
        return cuda_fail(be, KN_EINVAL, "conv: %lld taps of a row from %lld on, or out is x",
                         (long long)a->stride, (long long)a->offset);
    return 0;
}

int cuda_conv(struct kn_backend *kb, const struct kn_conv *a)
{
    struct cuda_backend *be = cuda_of(kb);
    struct mm_owed o = {};
    struct mm_prep p = {};
    enum mm_act act = MM_ACT_K;
    enum from from = FROM_MEMORY;
    int rc = check(be, a);
    if (rc) return rc;
    const bool whole =
        a->width % 8 == 0 &&
        (((uintptr_t)a->x | (uintptr_t)a->out | (uintptr_t)a->base | (uintptr_t)a->norm) & 15) == 0;
    if (mm_take(be, a->dynamic, a->n, a->stride, &o))
        from = FROM_SUMS_TAPS;
    else if (whole && !a->norm && (!a->then || a->then_norm) && mm_is_owed(be, a->x, a->n, a->width) &&
             !be->owed->add && mm_take(be, a->x, a->n, a->width, &o))
        from = FROM_SUMS_X;
    const bool norms = from == FROM_SUMS_X && a->then_norm && may_norm(be, a);
    const bool rounds = a->then && whole && (!a->then_norm || norms) && a->then->n_in == a->width &&
                        a->then->packed && mm_preparing(be, a->then, a->n, &p, &act);
    p.x = a->out;
    const struct conv args = {a->x,      a->norm,   a->base,      a->dynamic, a->out,
                              a->stride, a->offset, a->eps,       a->n,       a->width,
                              a->group,  a->taps,   a->then_norm, a->add,     whole};
    const int want = rounds ? (int)act : PLAIN;
    const conv_fn f = from == FROM_SUMS_X      ? kernel_behind(want)
                      : from == FROM_SUMS_TAPS ? kernel_of<FROM_SUMS_TAPS>(want)
                                               : kernel_of<FROM_MEMORY>(want);
    dim3 grid((unsigned)((a->width + 256 * WARPS - 1) / (256 * WARPS)), (unsigned)a->n), block(32 * WARPS);
    if (rounds && norms) {
        if (grid.x < 2)
            grid.x = 2; /* memcheck refuses stores in a cluster of one; the second has no columns */
        rc = cuda_check(be, "conv", cuda_launch_clusters(be, f, grid, block, 0, dim3(grid.x), args, o, p));
        if (rc == 0)
            be->rounded = {be->launches, a->out,       a->then_norm,      a->eps,
                           a->n,         (int32_t)act, (int32_t)a->width, p.slice_row};
        return rc;
    }
    rc = cuda_check(be, "conv", cuda_launch(be, f, grid, block, 0, args, o, p));
    if (rc == 0 && rounds) mm_prepared(be, a->out, nullptr, a->n, &p, act);
    return rc;
}
