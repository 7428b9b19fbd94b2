/* mm_owed.cu - sums of slices that a product of few rows left in memory: who reads its outputs next adds
 * them, for the end of a launch orders what blocks would else wait for each other for.
 *
 * The small kernels that round the next product's rows do it (prep.cu, mm_take). Before anything else is
 * launched, copied or waited for (cuda_flush) a kernel of its own does. Bound by latency.
 *
 * Wins over blocks that wait for each other: at 16 rows 8B 2.474 to 2.407 ms, 27B 7.099 to 6.927, 31B
 * 8.510 to 8.269. dflash-bench rows -m 27b-q4_k_m.gguf --device cuda --rows 1,16 --context 512 */
#include "owed.cuh"

#include <stdlib.h>

#define THREADS 128

/* Four columns a thread, of the matrices side by side; blockIdx.y: the row. */
static __global__ void __launch_bounds__(THREADS, 8) owed_rows(const __grid_constant__ mm_owed a)
{
    int k = 4 * (int)(THREADS * blockIdx.x + threadIdx.x), j = 0;
    const float *sums = a.sums;
    cuda_grid_early();
    while (j < a.count && k >= a.width[j]) {
        sums += (size_t)(a.slices * a.n) * (size_t)a.width[j];
        k -= a.width[j++];
    }
    cuda_grid_wait();
    if (j == a.count) return;
    const size_t at = (size_t)blockIdx.y * (size_t)a.width[j] + (size_t)k,
                 step = (size_t)a.n * (size_t)a.width[j];
    float4 *const out = (float4 *)(a.out[j] + at);
    float v[4];
    owed_values<4>(v, sums + at, (float *)out, a.slices, step, a.add);
    *out = make_float4(v[0], v[1], v[2], v[3]);
}

int mm_owed_open(struct cuda_backend *be)
{
    be->owed = (struct mm_owed *)calloc(1, sizeof *be->owed);
    return be->owed ? 0 : cuda_fail(be, KN_EMEM, "out of memory (%zu bytes)", sizeof *be->owed);
}

int mm_settle(const struct cuda_backend *const_be)
{
    struct cuda_backend *be = const_cast<struct cuda_backend *>(const_be);
    const struct mm_owed *o = be->owed;
    int32_t width = 0;
    for (int32_t j = 0; j < o->count; j++) width += o->width[j];
    be->owes = false;
    cuda_count(be, CUDA_PRODUCT_SUMS);
    return cuda_check(be, "sums of slices",
                      cuda_launch_first(be, owed_rows,
                                        dim3((unsigned)((width / 4 + THREADS - 1) / THREADS), (unsigned)o->n),
                                        dim3(THREADS), 0, *o));
}

void mm_owe(struct cuda_backend *be, const struct mm_args *a, int count)
{
    struct mm_owed *o = be->owed;
    o->sums = a->partial;
    o->n = a->n, o->slices = a->slices, o->count = count, o->add = a->add;
    for (int j = 0; j < count; j++) o->out[j] = a->out[j], o->width[j] = a->n_out[j];
    be->owes = true;
}

bool mm_is_owed(const struct cuda_backend *be, const float *x, int32_t n, int64_t width)
{
    const struct mm_owed *o = be->owed;
    return be->owes && o->count == 1 && o->out[0] == x && o->n == n && o->width[0] == width && !be->waits &&
           !be->chain_steps;
}

bool mm_take(const struct cuda_backend *be, const float *x, int32_t n, int64_t width, struct mm_owed *o)
{
    if (!mm_is_owed(be, x, n, width)) return false;
    *o = *be->owed;
    be->owes = false;
    return true;
}
