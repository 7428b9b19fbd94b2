/* delta/owed.cuh - inputs of few rows of a gated delta net (delta/few.cuh) whose product left its slices'
 * sums in memory (mm_owed.cu): a block adds what it reads of them, each strip once, four columns a thread,
 * and has the sums in shared memory, where a thread takes its columns. The bits of owed.cuh. Rows of the log
 * and of the convolution's state are whole, as one slice. */
#ifndef DFLASH_CUDA_DELTA_OWED_CUH
#define DFLASH_CUDA_DELTA_OWED_CUH

/* Where columns of a row are: its slices `step` floats apart, or, whole, there. */
struct slices {
    const float *at;
    bool owed;
};
template <int V> DEV void slice_load(float v[V], const float *at)
{
    if (V == 1) v[0] = __ldcg(at);
#pragma unroll
    for (int i = 0; i + 3 < V; i += 4) {
        const float4 x = __ldcg((const float4 *)(at + i));
        v[i] = x.x, v[i + 1] = x.y, v[i + 2] = x.z, v[i + 3] = x.w;
    }
}
/* Of a whole row its columns, over again: loads under a condition would keep their registers from the
 * kernel's begin on. */
template <int V> DEV void slices_load(float u[SLICES][V], const struct slices &p, int64_t step)
{
    if (!p.owed) step = 0;
#pragma unroll
    for (int s = 0; s < SLICES; s++) slice_load<V>(u[s], p.at + s * step);
}
/* The first becomes the sum. */
template <int V> DEV void slices_add(float u[SLICES][V], bool owed)
{
#pragma unroll
    for (int i = 0; i < V; i++) {
        float v = __fadd_rn(0.0f, u[0][i]);
#pragma unroll
        for (int s = 1; s < SLICES; s++) v = __fadd_rn(v, u[s][i]);
        if (owed) u[0][i] = v;
    }
}
/* Token t of the call, pending ones first, from column `at` of the convolution's inputs on. */
DEV struct slices input_slices(const struct layer &l, const struct few_from &f, int32_t t, int32_t pending,
                               int64_t at)
{
    const bool owed = t >= pending;
    return {(owed ? f.qkv + (t - pending) * l.width : input(l, t, pending)) + at, owed};
}

/* Alpha and beta of token t. */
DEV float2 owed_gates(const struct layer &l, const struct few_from &f, int32_t t, int32_t pending, int h)
{
    const struct kn_delta &a = l.a;
    const bool owed = t >= pending;
    const float *const old = l.s.log + t * (l.width + 2 * a.n_v) + l.width + h;
    const int64_t at = (int64_t)(t - pending) * a.n_v + h, step = (int64_t)a.n * a.n_v;
    float u[2][SLICES][1];
    slices_load<1>(u[0], {owed ? f.alpha + at : old, owed}, step);
    slices_load<1>(u[1], {owed ? f.beta + at : old + a.n_v, owed}, step);
    slices_add<1>(u[0], owed), slices_add<1>(u[1], owed);
    return make_float2(u[0][0][0], u[1][0][0]);
}

/* Inputs of the strip of `count` tokens from t on, and of three before: a warp has a token's q, k and v, the
 * last one, in lanes with a `gates` of 0 and more, alpha and beta of that token. All threads of the block. */
DEV void owed_strip(const struct layer &l, const struct few_from &f, float (*in)[3 * D],
                    float x[2][STRIP_OF + TAPS - 1], const struct few_part &b, int32_t t, int32_t count,
                    int32_t pending, int32_t gates, float2 &g)
{
    const struct kn_delta &a = l.a;
    static_assert(STRIP_OF + TAPS - 1 <= WARPS, "a warp a token");
    if (count > 0 && b.warp < count + TAPS - 1) {
        const int32_t at = max(t + b.warp - (TAPS - 1), 1 - a.n_conv); /* or, not used, where something is */
        const struct slices row = input_slices(l, f, at, pending, 4 * b.lane);
        const int heads[3] = {b.kh, a.n_k + b.kh, 2 * a.n_k + b.h};
        __align__(16) float u[3][SLICES][4];
#pragma unroll
        for (int i = 0; i < 3; i++) slices_load<4>(u[i], {row.at + heads[i] * D, row.owed}, a.n * l.width);
#pragma unroll
        for (int i = 0; i < 3; i++) {
            slices_add<4>(u[i], row.owed);
            *(float4 *)(in[b.warp] + i * D + 4 * b.lane) = *(const float4 *)u[i][0];
        }
    }
    if (gates >= 0) g = owed_gates(l, f, gates, pending, b.h);
    __syncthreads();
#pragma unroll
    for (int j = 0; j < STRIP_OF + TAPS - 1; j++) { /* what has not been there is not used */
        x[0][j] = in[j][b.thread];
        if (b.warp >= STATE_WARPS) x[1][j] = in[j][2 * D + b.thread % D];
    }
}

/* Eight columns of z, from its element `at` on. */
DEV void owed_eight(const struct layer &l, const struct few_from &f, float v[8], int64_t at)
{
    float u[SLICES][8];
    slices_load<8>(u, {f.z + at, true}, (int64_t)l.a.n * l.a.n_v * D);
    slices_add<8>(u, true);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = u[0][i];
}

/* Four columns of token t. */
DEV float4 owed_four(const struct layer &l, const struct few_from &f, int32_t t, int32_t pending, int64_t at)
{
    const struct slices from = input_slices(l, f, t, pending, at);
    __align__(16) float u[SLICES][4];
    slices_load<4>(u, from, l.a.n * l.width);
    slices_add<4>(u, from.owed);
    return *(const float4 *)u[0];
}
/* As log_rows. */
DEV void owed_log(const struct layer &l, const struct few_from &f, int64_t at, int32_t pending, int i,
                  int step)
{
    float *const to = l.s.log + logged_at(l, pending) * (l.width + 2 * l.a.n_v) + at;
#pragma unroll 1
    for (; i < l.a.n; i += 2 * step) {
        const int second = min(i + step, l.a.n - 1);
        const float4 x = owed_four(l, f, pending + i, pending, at),
                     y = owed_four(l, f, pending + second, pending, at);
        __stcg((float4 *)(to + i * (l.width + 2 * l.a.n_v)), x);
        if (i + step < l.a.n) __stcg((float4 *)(to + second * (l.width + 2 * l.a.n_v)), y);
    }
}
#endif
