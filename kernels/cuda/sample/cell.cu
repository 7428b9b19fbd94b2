/* cell.cu - what stands between the products of a drafter's chain of picks: at most a few thousand numbers,
 * so bound by the launch. The CPU's bits. */
#include "../core/math.cuh"
#include "../core/ops.cuh"

/* x / (1 + exp(-x)), as v_silu has it. */
DEV float silu(float x)
{
    return __fdiv_rn(x, __fadd_rn(1.0f, dev_exp(-x)));
}

DEV float at(const float *v, int64_t i)
{
    return v ? v[i] : 0.0f;
}

/* Gates of three: what is kept of the state, and what comes in its place. */
DEV float kept(const struct kn_cell &a, int64_t i, float keep, float fresh)
{
    return __fadd_rn(__fmul_rn(keep, at(a.state, i)), __fmul_rn(__fsub_rn(1.0f, keep), fresh));
}

static __global__ void __launch_bounds__(256) cell(const __grid_constant__ struct kn_cell a)
{
    cuda_grid_start();
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x, n = a.width;
    if (i >= n) return;
    const float x = a.x[i];
    switch (a.kind) {
    case KN_CELL_SILU: a.out[i] = silu(x); break;
    case KN_CELL_GATE: a.out[i] = __fmul_rn(a.e[i], dev_sigmoid(__fadd_rn(x, at(a.bias, i)))); break;
    case KN_CELL_LOGP: a.out[i] = -dev_softplus(-__fadd_rn(x, at(a.bias, 0))); break;
    case KN_CELL_MARKOV:
        a.out[i] = dev_tanh(__fadd_rn(a.x[2 * n + i], at(a.bias, 2 * n + i)));
        a.next[i] = kept(a, i, dev_sigmoid(__fadd_rn(x, at(a.bias, i))),
                         dev_tanh(__fadd_rn(a.x[n + i], at(a.bias, n + i))));
        break;
    default: {
        const float r = dev_sigmoid(__fadd_rn(x, at(a.h, i)));
        a.next[i] = kept(a, i, dev_sigmoid(__fadd_rn(a.x[n + i], at(a.h, n + i))),
                         dev_tanh(__fadd_rn(a.x[2 * n + i], __fmul_rn(r, at(a.h, 2 * n + i)))));
    }
    }
}

int cuda_cell(struct kn_backend *kb, const struct kn_cell *a)
{
    struct cuda_backend *be = cuda_of(kb);
    const bool three = a->kind == KN_CELL_MARKOV || a->kind == KN_CELL_GRU;
    if (a->width < 1 || a->kind > KN_CELL_LOGP || !a->x || (three && !a->next) ||
        (a->kind != KN_CELL_GRU && !a->out) || (a->kind == KN_CELL_GATE && !a->e) ||
        (a->kind == KN_CELL_GRU && !a->h != !a->state))
        return cuda_fail(be, KN_EINVAL, "cell: kind %d of %d numbers", (int)a->kind, a->width);
    be->rounded.x = be->ready.x = nullptr; /* out or next may be what was rounded */
    return cuda_check(be, "cell",
                      cuda_launch(be, cell, dim3((unsigned)((a->width + 255) / 256)), dim3(256), 0, *a));
}

static __global__ void __launch_bounds__(256)
    spread_rows(float *out, int64_t n_out, const float *x, int64_t n_x, const int32_t *from)
{
    cuda_grid_start();
    out += blockIdx.y * n_out, x += blockIdx.y * n_x;
    for (int64_t v = (int64_t)blockIdx.x * 256 + threadIdx.x; v < n_out; v += (int64_t)gridDim.x * 256) {
        const int32_t i = from[v];
        out[v] = i >= 0 && i < n_x ? x[i] : -INFINITY;
    }
}

int cuda_spread(struct kn_backend *kb, float *out, int64_t n_out, const float *x, int64_t n_x,
                const int32_t *from, int32_t n)
{
    struct cuda_backend *be = cuda_of(kb);
    if (n < 1 || n > 65535 || n_out < 1 || n_x < 1 || n_x > n_out)
        return cuda_fail(be, KN_EINVAL, "spread: %d rows of %lld among %lld", n, (long long)n_x,
                         (long long)n_out);
    const int64_t blocks = (n_out + 255) / 256, most = 4 * be->sm_count;
    const dim3 grid((unsigned)(blocks < most ? blocks : most), (unsigned)n);
    return cuda_check(be, "spread",
                      cuda_launch(be, spread_rows, grid, dim3(256), 0, out, n_out, x, n_x, from));
}
