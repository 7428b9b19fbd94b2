/* prep.cu - activations for matrix products as kernels of their own; bound by latency: they stand between two
 * products.
 *
 * 8-bit kinds (prep.cuh): one block for 4,096 columns of a token. A norm needs the whole row's squares, and
 * every block reads them for itself.
 *
 * Float kinds: one block a token, one warp a slice at a time. A row, slice by slice: [planes][columns] 16-bit
 * values, in every 32 columns in the order 4 (k % 16 / 4) + k % 4 + 4 (k / 16) pairs of quarters (lane
 * quarter q finds its 8 values in 16 bytes); the slice's factor, padded to 16 bytes. */
#include "exchange.cuh"
#include "owed.cuh"
#include "prep_ahead.cuh"

#define WARPS 16

DEV uint32_t magnitude(float x)
{
    return __float_as_uint(x) & 0x7fffffff;
}
DEV float4 load_four(const float *x, int k, int end, bool aligned)
{
    if (aligned && k + 3 < end) return __ldcg((const float4 *)(x + k));
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (k < end) v.x = __ldcg(x + k);
    if (k + 1 < end) v.y = __ldcg(x + k + 1);
    if (k + 2 < end) v.z = __ldcg(x + k + 2);
    if (k + 3 < end) v.w = __ldcg(x + k + 3);
    return v;
}
template <enum mm_act ACT>
__global__ void __launch_bounds__(32 * WARPS, 2) prep_whole(const __grid_constant__ mm_prep a)
{
    __shared__ float squares[MM_ROW_BLOCKS];
    const int first = (int)blockIdx.x * WARPS, blocks = (a.n_in + 255) / 256;
    cuda_grid_early();
    prepare_row<ACT, WARPS>(a, a.x + (size_t)blockIdx.y * (size_t)a.n_in,
                            a.rows + (size_t)blockIdx.y * (size_t)a.slices * (size_t)a.slice_row, first,
                            min(blocks, first + WARPS), squares, (int)blockIdx.y);
}

/* The same for few rows, between two products whose blocks leave room beside them for blocks of FEW_WARPS
 * warps with 64 registers: so these stand there before the product ends, and the next product's take its
 * places when it does. A warp has one block of columns of a row that is normed, whose squares each block adds
 * up for itself, else FEW_ALONE. */
#define FEW_WARPS 4
#define FEW_ALONE 2
#define FEW_BLOCKS 32 /* of a row that is normed, at most: each block reads all of it */
template <enum mm_act ACT>
__global__ void __launch_bounds__(32 * FEW_WARPS, 32 / FEW_WARPS) prep_few(const __grid_constant__ mm_prep a)
{
    __shared__ float squares[FEW_BLOCKS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = (a.n_in + 255) / 256;
    const float *x = a.x + (size_t)blockIdx.y * (size_t)a.n_in;
    uint8_t *row = a.rows + (size_t)blockIdx.y * (size_t)a.slices * (size_t)a.slice_row;
    cuda_grid_early();
    if (!a.norm) {
        float v[FEW_ALONE][8];
        const int first = ((int)blockIdx.x * FEW_WARPS + warp) * FEW_ALONE;
        cuda_grid_wait();
#pragma unroll
        for (int c = 0; c < FEW_ALONE; c++) load_eight(v[c], x, 256 * (first + c) + 8 * lane, a.n_in);
#pragma unroll
        for (int c = 0; c < FEW_ALONE; c++)
            if (first + c < blocks) store_block<ACT>(a, row, first + c, v[c], (int)blockIdx.y);
        return;
    }
    const int mine = (int)blockIdx.x * FEW_WARPS + warp,
              around = (blocks + FEW_WARPS - 1) / FEW_WARPS * FEW_WARPS;
    float v[8], w[8];
    load_eight(w, a.norm, 256 * mine + 8 * lane, a.n_in);
    cuda_grid_wait();
    load_eight(v, x, 256 * mine + 8 * lane, a.n_in);
    constexpr int batch = 4;
#pragma unroll 1
    for (int c = FEW_WARPS; c < around; c += batch * FEW_WARPS) { /* the warp's share of the others */
        float u[batch][8];
#pragma unroll
        for (int i = 0; i < batch; i++) {
            const int b = mine + c + i * FEW_WARPS;
            load_eight(u[i], x, 256 * (b < around ? b : b - around) + 8 * lane,
                       c + i * FEW_WARPS < around ? a.n_in : 0);
        }
#pragma unroll
        for (int i = 0; i < batch; i++) {
            const int b = mine + c + i * FEW_WARPS;
            const float s = block_squares(u[i]);
            if (lane == 0 && c + i * FEW_WARPS < around) squares[b < around ? b : b - around] = s;
        }
    }
    const float own = block_squares(v);
    if (lane == 0) squares[mine] = own;
    __syncthreads();
    const float r = inverse_rms(squares, blocks, a.n_in, a.eps);
    scale_eight(v, r, w);
    if (mine < blocks) store_block<ACT>(a, row, mine, v, (int)blockIdx.y);
}

template <int PLANES, bool BF16>
__global__ void __launch_bounds__(32 * WARPS) prep_float(const __grid_constant__ mm_prep a)
{
    constexpr int parts = MM_SLICE_MAX / 128;
    __shared__ float squares[MM_SLICES_MAX], inverses[MM_SLICES_MAX];
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const float *x = a.x + (size_t)blockIdx.x * (size_t)a.n_in;
    uint8_t *row = a.rows + (size_t)blockIdx.x * (size_t)a.slices * (size_t)a.slice_row;
    const bool aligned = (a.n_in & 3) == 0;
    cuda_grid_start();
    for (int s = threadIdx.x / 32; s < a.slices; s += warps) {
        const int k0 = s * a.slice_units * a.unit_k, whole = a.slice_units * a.unit_k;
        const int columns = min(a.slice_units, a.units - s * a.slice_units) * a.unit_k,
                  end = min(a.n_in, k0 + columns);
        float4 v[parts], w[parts];
#pragma unroll
        for (int i = 0; i < parts; i++)
            if (128 * i < columns) v[i] = load_four(x, k0 + 128 * i + 4 * lane, end, aligned);
        if (a.norm)
#pragma unroll
            for (int i = 0; i < parts; i++)
                if (128 * i < columns) w[i] = load_four(a.norm, k0 + 128 * i + 4 * lane, end, aligned);
        uint32_t top = 0;
        float ss = 0.0f;
#pragma unroll
        for (int i = 0; i < parts; i++) {
            if (128 * i >= columns) continue;
            if (a.norm) {
                ss = __fmaf_rn(v[i].x, v[i].x, ss);
                ss = __fmaf_rn(v[i].y, v[i].y, ss);
                ss = __fmaf_rn(v[i].z, v[i].z, ss);
                ss = __fmaf_rn(v[i].w, v[i].w, ss);
                v[i] = make_float4(__fmul_rn(v[i].x, w[i].x), __fmul_rn(v[i].y, w[i].y),
                                   __fmul_rn(v[i].z, w[i].z), __fmul_rn(v[i].w, w[i].w));
            }
            top = max(top, max(max(magnitude(v[i].x), magnitude(v[i].y)),
                               max(magnitude(v[i].z), magnitude(v[i].w))));
        }
        top = __reduce_max_sync(0xffffffff, top);
        if (a.norm)
#pragma unroll
            for (int o = 16; o; o /= 2) ss = __fadd_rn(ss, __shfl_xor_sync(0xffffffff, ss, o));
        /* scale = 2^(9 - exponent of the largest), inverse = 1 / scale; both finite and exact. NaN, Inf and
         * zeros: as they are */
        const uint32_t e = max(top >> 23, 9u);
        float scale = 1.0f, inverse = 1.0f;
        if (e != 255 && top) {
            scale = __uint_as_float((263 - e) << 23);
            inverse = __uint_as_float(e > 9 ? (e - 9) << 23 : 0x00400000);
        }
        if (lane == 0) {
            squares[s] = ss;
            inverses[s] = inverse;
        }
        uint8_t *dst = row + (size_t)s * (size_t)a.slice_row;
#pragma unroll
        for (int i = 0; i < parts; i++) {
            if (128 * i >= columns) continue;
            const int at = 128 * i + 4 * lane;
            uint32_t lo[PLANES], hi[PLANES];
            planes_of<PLANES, BF16>(lo, __fmul_rn(v[i].x, scale), __fmul_rn(v[i].y, scale));
            planes_of<PLANES, BF16>(hi, __fmul_rn(v[i].z, scale), __fmul_rn(v[i].w, scale));
            if (at < columns)
#pragma unroll
                for (int p = 0; p < PLANES; p++)
                    *(uint2 *)(dst + p * 2 * whole + at / 32 * 64 + at % 16 / 4 * 16 + at / 16 % 2 * 8) =
                        make_uint2(lo[p], hi[p]);
        }
    }
    __syncthreads();
    for (int s = threadIdx.x; s < a.slices; s += blockDim.x) {
        float f = inverses[s];
        if (a.norm) {
            float ss = 0.0f;
            for (int i = 0; i < a.slices; i++) ss = __fadd_rn(ss, squares[i]);
            f = __fmul_rn(f, __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(ss, (float)a.n_in), a.eps))));
        }
        *(float *)(row + (size_t)(s + 1) * (size_t)a.slice_row - 16) = f;
    }
}

/* ---- a residual added, normed and rounded ---- */

#define ADD_WARPS (MM_ADD_WIDTH / 256)
/* v = (x + v r w) scale */
DEV void add_eight(float v[8], const float x[8], float r, const float w[8], float scale)
{
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = __fmul_rn(__fadd_rn(x[i], __fmul_rn(__fmul_rn(v[i], r), w[i])), scale);
}
DEV void store_eight(float *p, const float v[8])
{
    *(float4 *)p = make_float4(v[0], v[1], v[2], v[3]);
    *(float4 *)(p + 4) = make_float4(v[4], v[5], v[6], v[7]);
}

/* One block a token, a warp 256 columns: two norms, one after the other, and all values in registers. */
template <enum mm_act ACT>
__global__ void __launch_bounds__(32 * ADD_WARPS)
    add_whole(const __grid_constant__ mm_prep a, const __grid_constant__ mm_add add)
{
    __shared__ float squares[2][ADD_WARPS];
    const int lane = threadIdx.x % 32, b = threadIdx.x / 32, blocks = (a.n_in + 255) / 256,
              k = 256 * b + 8 * lane;
    const size_t at = (size_t)blockIdx.x * (size_t)a.n_in;
    float v[8], x[8], w[8], norm[8];
    cuda_grid_early();
    load_eight(w, add.weight, k, a.n_in);
    load_eight(norm, a.norm, k, a.n_in);
    cuda_grid_wait();
    load_eight(v, add.y + at, k, a.n_in);
    load_eight(x, add.x + at, k, a.n_in);
    float s = block_squares(v);
    if (lane == 0) squares[0][b] = s;
    __syncthreads();
    float r = inverse_rms(squares[0], blocks, a.n_in, add.eps);
    add_eight(v, x, r, w, add.scale);
    if (k < a.n_in) store_eight(add.out + at + k, v);
    s = block_squares(v);
    if (lane == 0) squares[1][b] = s;
    __syncthreads();
    r = inverse_rms(squares[1], blocks, a.n_in, a.eps);
    scale_eight(v, r, norm);
    if (b < blocks)
        store_block<ACT>(a, a.rows + (size_t)blockIdx.x * (size_t)a.slices * (size_t)a.slice_row, b, v,
                         (int)blockIdx.x);
}

/* The same for few rows, by blocks that stand beside products as those of prep_few do: a cluster has a row,
 * and its warps give their squares to all of its blocks. */
#define ADD_FEW ((ADD_WARPS + FEW_WARPS - 1) / FEW_WARPS) /* blocks of a cluster at most */
/* Columns k .. k + 7 of row blockIdx.y, which are owed, and to their place. */
DEV void take_eight(float v[8], const mm_owed &o, int k)
{
    const size_t step = (size_t)o.n * (size_t)o.width[0],
                 at = (size_t)blockIdx.y * (size_t)o.width[0] + (size_t)k;
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = 0.0f;
    if (k >= o.width[0]) return;
    owed_values<8>(v, o.sums + at, o.out[0] + at, o.slices, step, o.add);
    store_eight(o.out[0] + at, v);
}
/* A normed row as prep_few rounds it, of one that is owed, so it is read once and a cluster has it; ADD: of a
 * norm_add, whose y may be owed. */
template <enum mm_act ACT, bool ADD>
__global__ void __launch_bounds__(32 * FEW_WARPS, 32 / FEW_WARPS)
    take_few(const __grid_constant__ mm_prep a, const __grid_constant__ mm_owed owed,
             const __grid_constant__ mm_add add)
{
    __shared__ float squares[ADD ? 2 : 1][ADD_FEW * FEW_WARPS], norms[FEW_WARPS * 256];
    __shared__ uint64_t bars[ADD ? 2 : 1];
    const int lane = threadIdx.x % 32, blocks = (a.n_in + 255) / 256,
              b = (int)blockIdx.x * FEW_WARPS + (int)threadIdx.x / 32, k = 256 * b + 8 * lane;
    const size_t at = (size_t)blockIdx.y * (size_t)a.n_in;
    float v[8], x[8], w[8], *const norm = norms + 8 * threadIdx.x; /* registers are few */
    cuda_grid_early();
    exchange_open(bars, ADD ? 2 : 1);
    load_eight(w, a.norm, k, a.n_in);
    store_eight(norm, w);
    if (ADD) load_eight(w, add.weight, k, a.n_in);
    cuda_grid_wait();
    cluster_wait();
    if (!ADD || owed.slices)
        take_eight(v, owed, k);
    else
        load_eight(v, add.y + at, k, a.n_in);
    if (ADD) load_eight(x, add.x + at, k, a.n_in);
    exchange(squares[0], shared_at(bars), b, block_squares(v));
    float r = inverse_rms(squares[0], blocks, a.n_in, ADD ? add.eps : a.eps);
    if constexpr (ADD) {
        add_eight(v, x, r, w, add.scale);
        if (k < a.n_in) store_eight(add.out + at + k, v);
        exchange(squares[1], shared_at(bars + 1), b, block_squares(v));
        r = inverse_rms(squares[1], blocks, a.n_in, a.eps);
    }
    scale_eight(v, r, norm);
    if (b < blocks)
        store_block<ACT>(a, a.rows + (size_t)blockIdx.y * (size_t)a.slices * (size_t)a.slice_row, b, v,
                         (int)blockIdx.y);
}
/* The same for K types' products of few rows, of rows that are whole too:
 * prep_ahead.cuh. A warp has registers for a lane's columns of eight slices, so there is one trip to memory.
 */
template <bool ADD, int W>
__global__ void __launch_bounds__(32 * W, 65536 / (32 * W * AHEAD_REGISTERS))
    take_ahead(const __grid_constant__ mm_prep a, const __grid_constant__ ahead_args h,
               const __grid_constant__ mm_add add)
{
    __shared__ float squares[2][ADD_FEW * FEW_WARPS];
    __shared__ ahead_lane lanes[32 * W];
    __shared__ uint64_t bars[2];
    const int lane = threadIdx.x % 32, b = (int)blockIdx.x * W + (int)threadIdx.x / 32;
    const bool in = b < h.blocks; /* else the warp reads what another does, and stores nothing */
    const unsigned k = 256 * (in ? (unsigned)b : 0) + 8 * (unsigned)lane,
                   at = blockIdx.y * (unsigned)a.n_in + k, bar = shared_at(bars);
    const float *from[AHEAD_SLICES], *x_at = add.x + at, *w_at = add.weight + k;
    float *out = h.out + at, norm[8], w[8], all[1][8], (&v)[8] = all[0], x[8];
    cuda_grid_early();
    if (threadIdx.x < sizeof squares / sizeof(float)) squares[0][threadIdx.x] = 0.0f;
    exchange_open(bars, ADD ? 2 : 1, W);
    ahead_load(norm, a.norm + k);
    unsigned me = ahead_ready(lanes, ahead_place_of(a, in ? b : 0, (int)blockIdx.y), squares[0] + b, bar);
#pragma unroll
    for (unsigned i = 0; i < AHEAD_SLICES; i++) {
        from[i] = h.from + at + i * h.step;
        ahead_now(from[i]);
    }
    ahead_now(out), ahead_now(me);
    if (ADD) ahead_now(x_at), ahead_now(w_at);
    cluster_wait();
    cuda_grid_wait();
    ahead_values<!ADD>(v, h, from, out);
    if (ADD) {
        ahead_load(x, x_at);
        ahead_load(w, w_at);
    }
    const float mine = block_squares(v);
    if (in && h.out) store_eight(out, v);
    const float4 ready = ahead_shared(me);
    const unsigned give = __float_as_uint(ready.z), there = __float_as_uint(ready.w), set = sizeof squares[0],
                   square = shared_at(squares[0]) + 4 * (ahead_thread() % 32);
    float r = ahead_exchange(in ? mine : 0.0f, give, there, square, bar, h, ADD ? add.eps : a.eps);
    if (ADD) {
        add_eight(v, x, r, w, add.scale);
        const float again = block_squares(v);
        if (in) store_eight(add.out + at, v);
        r = ahead_exchange(in ? again : 0.0f, give ? give + set : 0, there + 8, square + set, bar + 8, h,
                           a.eps);
    }
    scale_eight(v, r, norm);
    const ahead_place place = {__float_as_uint(ready.x), __float_as_uint(ready.y)};
    ahead_store<1>(a, &place, all, in);
}
/* prep_few of rows that are not normed, in the same way. */
__global__ void __launch_bounds__(32 * FEW_WARPS, 32 / FEW_WARPS)
    prep_ahead(const __grid_constant__ mm_prep a)
{
    __shared__ __align__(16) ahead_place places[32 * FEW_WARPS][FEW_ALONE];
    const int lane = threadIdx.x % 32, blocks = a.n_in / 256,
              first = ((int)blockIdx.x * FEW_WARPS + (int)threadIdx.x / 32) * FEW_ALONE;
    const float *from[FEW_ALONE];
    float v[FEW_ALONE][8];
    cuda_grid_early();
#pragma unroll
    for (int c = 0; c < FEW_ALONE; c++) {
        const int b = first + c < blocks ? first + c : 0;
        from[c] = a.x + (blockIdx.y * (unsigned)a.n_in + 256 * (unsigned)b + 8 * (unsigned)lane);
        places[threadIdx.x][c] = ahead_place_of(a, b, (int)blockIdx.y);
        asm volatile("prefetch.global.L2 [%0];" ::"l"(from[c])); /* so that the address is there */
    }
    cuda_grid_wait();
#pragma unroll
    for (int c = 0; c < FEW_ALONE; c++) ahead_load(v[c], from[c]);
    const float4 ready = ahead_shared(shared_at(places + threadIdx.x));
    const ahead_place place[FEW_ALONE] = {{__float_as_uint(ready.x), __float_as_uint(ready.y)},
                                          {__float_as_uint(ready.z), __float_as_uint(ready.w)}};
    ahead_store<FEW_ALONE>(a, place, v, blocks - first);
}
/* Blocks of a cluster that has a row: memcheck refuses stores in a cluster of one; the second block has no
 * columns. */
static unsigned cluster_blocks(int32_t n_in, int32_t warps = FEW_WARPS)
{
    const unsigned all = (unsigned)((n_in + 256 * warps - 1) / (256 * warps));
    return all < 2 ? 2 : all;
}

/* Are there kernels of their own for rows that are prepared as *a? */
static bool is_ahead(enum mm_act act, const struct mm_prep *a)
{
    return act == MM_ACT_K && a->side && a->n_in % 256 == 0;
}
/* take_ahead, if there is one for these rows: of what is owed, or, where nothing is, of add->y or a->x. */
static bool launch_ahead(const struct cuda_backend *be, enum mm_act act, const struct mm_prep *a,
                         const struct mm_add *add, const struct mm_owed *o, int32_t n, cudaError_t *err)
{
    const bool sums = o->slices > 0;
    if (!is_ahead(act, a) || a->n_in > MM_ADD_WIDTH) return false;
    if (sums && ((o->slices != 4 && o->slices != 8) || o->add == (add != nullptr))) return false;
    /* More blocks where there is most to read: 31B at 16 rows 7.269 -> 7.184 ms (dflash-bench rows -m
     * 31b-q4_k_m.gguf --device cuda --rows 1,16 --context 512, at b4a8acd). */
    const int32_t warps = add && n > 8 && a->n_in <= 8 * 256 * 3 ? 3 : FEW_WARPS;
    const unsigned blocks = cluster_blocks(a->n_in, warps);
    const float *const whole = add ? add->y : a->x;
    const struct ahead_args h = {(float)a->n_in,
                                 1.0f / (float)a->n_in,
                                 sums ? o->sums : whole,
                                 o->out[0],
                                 (unsigned)(o->n * o->width[0]),
                                 sums ? (unsigned)o->slices : 1,
                                 sums ? 0.0f : -0.0f,
                                 a->n_in / 256};
    const struct mm_add none = {};
    *err = cuda_launch_clusters(be,
                                !add         ? take_ahead<false, FEW_WARPS>
                                : warps == 3 ? take_ahead<true, 3>
                                             : take_ahead<true, FEW_WARPS>,
                                dim3(blocks, (unsigned)n), dim3(32 * (unsigned)warps), 0, blocks, *a, h,
                                add ? *add : none);
    return true;
}

/* Of a kernel for each of the 8-bit kinds the one for `act`. */
#define OF_WHOLE(act, kernel, ...)                                                                           \
    ((act) == MM_ACT_K    ? kernel<MM_ACT_K, ##__VA_ARGS__>                                                  \
     : (act) == MM_ACT_32 ? kernel<MM_ACT_32, ##__VA_ARGS__>                                                 \
                          : kernel<MM_ACT_32M, ##__VA_ARGS__>)

/* take_few of rows that are owed, or with *add. */
static cudaError_t launch_take(const struct cuda_backend *be, enum mm_act act, const struct mm_prep *a,
                               const struct mm_add *add, const struct mm_owed *o, int32_t n)
{
    const unsigned blocks = cluster_blocks(a->n_in);
    const struct mm_add none = {};
    return cuda_launch_clusters(be, add ? OF_WHOLE(act, take_few, true) : OF_WHOLE(act, take_few, false),
                                dim3(blocks, (unsigned)n), dim3(32 * FEW_WARPS), 0, blocks, *a, *o,
                                add ? *add : none);
}

cudaError_t mm_add_prepare(const struct cuda_backend *be, enum mm_act act, const struct mm_add *add,
                           const struct mm_prep *p, int32_t n)
{
    if (be->cc >= 90 && !be->generic && n <= 16) {
        struct mm_owed owed = {};
        mm_take(be, add->y, n, p->n_in, &owed);
        cudaError_t err;
        if (launch_ahead(be, act, p, add, &owed, n, &err)) return err;
        return launch_take(be, act, p, add, &owed, n);
    }
    return cuda_launch(be, OF_WHOLE(act, add_whole), dim3((unsigned)n), dim3(32 * ADD_WARPS), 0, *p, *add);
}

cudaError_t mm_prepare(const struct cuda_backend *be, enum mm_act act, const struct mm_prep *p, int32_t n,
                       bool few)
{
    const struct mm_prep &a = *p;
    if (!mm_is_int8(act))
        return cuda_launch(be, act == MM_ACT_F16 ? prep_float<2, false> : prep_float<3, true>,
                           dim3((unsigned)n), dim3(32 * (a.slices < WARPS ? a.slices : WARPS)), 0, a);
    struct mm_owed owed = {};
    const bool took =
        few && a.norm && n <= 16 && a.n_in <= MM_ADD_WIDTH && mm_take(be, a.x, n, a.n_in, &owed);
    cudaError_t err;
    if (few && a.norm && n <= 16 && launch_ahead(be, act, &a, nullptr, &owed, n, &err)) return err;
    if (took) return launch_take(be, act, &a, nullptr, &owed, n);
    if (few && n <= 16 && (!a.norm || a.n_in <= 256 * FEW_BLOCKS)) {
        const int columns = 256 * FEW_WARPS * (a.norm ? 1 : FEW_ALONE);
        return cuda_launch(be, !a.norm && is_ahead(act, &a) ? prep_ahead : OF_WHOLE(act, prep_few),
                           dim3((unsigned)((a.n_in + columns - 1) / columns), (unsigned)n),
                           dim3(32 * FEW_WARPS), 0, a);
    }
    return cuda_launch(be, OF_WHOLE(act, prep_whole),
                       dim3((unsigned)((a.n_in + 256 * WARPS - 1) / (256 * WARPS)), (unsigned)n),
                       dim3(32 * WARPS), 0, a);
}
