/* gate_rows.cu - a gate and the rounding of what it leaves for the product behind it, in one launch: between
 * attention and its output's projection, bound by latency.
 *
 * A warp has 256 columns of a row, which are what is rounded together (prep.cuh); the gated values have the
 * bits of op->gate's, so the product has those of gate and linear. */
#include "../chain/chain.cuh"
#include "../core/math.cuh"
#include "../product/mm.cuh"
#include "../core/ops.cuh"
#include "../product/prep.cuh"

bool gate_apart;

#define WARPS 4

template <enum mm_act ACT>
static __global__ void __launch_bounds__(32 * WARPS)
    gate_and_round(const __grid_constant__ mm_prep a, const float *g)
{
    const int block = (int)blockIdx.x * WARPS + threadIdx.x / 32, k = 256 * block + 8 * (threadIdx.x % 32);
    const size_t row = blockIdx.y;
    float v[8], s[8];
    cuda_grid_start();
    if (256 * block >= a.n_in) return;
    load_eight(v, a.x + row * (size_t)a.n_in, k, a.n_in);
    load_eight(s, g + row * (size_t)a.n_in, k, a.n_in);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = __fmul_rn(v[i], dev_sigmoid(s[i]));
    store_block<ACT>(a, a.rows + row * (size_t)a.slices * (size_t)a.slice_row, block, v, (int)row);
}

/* p, act: of mm_preparing. */
static int launch(struct cuda_backend *be, struct mm_prep *p, enum mm_act act, const float *x, const float *g,
                  int32_t n)
{
    p->x = x;
    const dim3 grid((unsigned)((p->n_in + 256 * WARPS - 1) / (256 * WARPS)), (unsigned)n);
    const int rc = cuda_check(be, "gate_linear",
                              cuda_launch(be,
                                          act == MM_ACT_K    ? gate_and_round<MM_ACT_K>
                                          : act == MM_ACT_32 ? gate_and_round<MM_ACT_32>
                                                             : gate_and_round<MM_ACT_32M>,
                                          grid, dim3(32 * WARPS), 0, *p, g));
    if (rc == 0) mm_prepared(be, x, nullptr, n, p, act);
    return rc;
}

int chain_gate_alone(struct cuda_backend *be, const struct chain_product *c)
{
    enum mm_act act;
    struct mm_prep p;
    if (!mm_preparing(be, c->w[0], 1, &p, &act))
        return cuda_fail(be, KN_EINVAL, "gate_linear: a row that nothing rounds");
    if (mm_is_prepared(be, c->x, c->gate, 1, &p, act)) { /* attention has */
        mm_prepared(be, c->x, nullptr, 1, &p, act);
        return 0;
    }
    return launch(be, &p, act, c->x, c->gate, 1);
}

int cuda_gate_linear(struct kn_backend *kb, float *out, const struct kn_weight *w, float *x, const float *g,
                     int32_t n)
{
    struct cuda_backend *be = cuda_of(kb);
    enum mm_act act;
    struct mm_prep p;
    if (n < 1) return cuda_fail(be, KN_EINVAL, "gate_linear: %d rows", n);
    if (gate_apart || n > MM_PREP_ROWS || !mm_preparing(be, w, n, &p, &act)) {
        const int rc = cuda_gate(kb, x, g, n, w->n_in, w->n_in);
        return rc ? rc : cuda_linear(kb, out, w, x, n, true);
    }
    if (mm_is_prepared(be, x, g, n, &p, act)) { /* attention has */
        mm_prepared(be, x, nullptr, n, &p, act);
        return cuda_linear(kb, out, w, x, n, true);
    }
    if (n == 1 && act == MM_ACT_K) { /* the first product of a chain, perhaps */
        const struct chain_product c = {"gate_linear", {w},  {out}, 1,           x, nullptr,
                                        0.0f,          true, false, KN_ACT_SILU, g};
        const int rc = chain_add(be, &c);
        if (rc) return rc < 0 ? rc : 0;
    }
    const int rc = launch(be, &p, act, x, g, n);
    return rc ? rc : cuda_linear(kb, out, w, x, n, true);
}
