/* owed.cuh - the values of outputs that are owed as sums of slices (mm_owed.cu): the bits of the product that
 * adds them itself. */
#ifndef DFLASH_CUDA_OWED_CUH
#define DFLASH_CUDA_OWED_CUH

#include "prep.cuh"

/* What a product of few rows left: matrix after matrix [slices][n][width]. */
struct mm_owed {
    const float *sums;
    int32_t n, slices, count, add; /* add: to what is in out */
    float *out[MM_WIDTH_MAX];
    int32_t width[MM_WIDTH_MAX];
};

/* V values, 4 or 8, side by side. */
template <int V> DEV void owed_load(float v[V], const float *p)
{
#pragma unroll
    for (int i = 0; i < V; i += 4) {
        const float4 u = __ldcg((const float4 *)(p + i));
        v[i] = u.x, v[i + 1] = u.y, v[i + 2] = u.z, v[i + 3] = u.w;
    }
}
/* v = the sums of slices at p, p + step, ... in ascending order, added to those at `old` where `add` is set.
 * Four slices are on their way at a time. */
template <int V>
DEV void owed_values(float v[V], const float *p, const float *old, int slices, size_t step, bool add)
{
    float u[4][V], x[V];
#pragma unroll
    for (int i = 0; i < V; i++) v[i] = x[i] = 0.0f;
    if (add) owed_load<V>(x, old);
#pragma unroll
    for (int s = 0; s < 4; s++)
        if (s < slices) owed_load<V>(u[s], p + s * step);
#pragma unroll 1
    for (p += 4 * step; slices > 0; slices -= 4, p += 4 * step)
#pragma unroll
        for (int s = 0; s < 4; s++) {
            if (s < slices)
#pragma unroll
                for (int i = 0; i < V; i++) v[i] = __fadd_rn(v[i], u[s][i]);
            if (s + 4 < slices) owed_load<V>(u[s], p + s * step);
        }
    if (add)
#pragma unroll
        for (int i = 0; i < V; i++) v[i] = __fadd_rn(x[i], v[i]);
}

#endif
