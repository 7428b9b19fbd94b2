/* carry.cu - keys and values over the link: from the host's memory to where attention reads them, and new
 * rows back. Bound: the link, each byte once. Plain loads of all multiprocessors: 4 MiB on their way, where
 * 55 GB/s and a round trip of 1.3 us want 72 KB. */
#include "../core/ops.cuh"
#include "kv.cuh"

struct carry_side {
    uint4 *to;
    const uint4 *from;
    int64_t row; /* bytes of a position */
};
struct carry_args {
    struct carry_side side[2]; /* keys, values */
    const int32_t *pos;
    int32_t n, held;
};

static __global__ void __launch_bounds__(512) carry_rows(const __grid_constant__ carry_args a)
{
    cuda_grid_start();
    const int64_t first = a.n ? __ldcg(a.pos) : 0, end = min((int64_t)__ldcg(a.pos) + a.n, (int64_t)a.held);
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
#pragma unroll 1
    for (int i = 0; i < 2; i++) {
        const carry_side s = a.side[i];
        const int64_t to = (end * s.row + 15) / 16;
        int64_t at = first * s.row / 16 + (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
        for (; at + 3 * step < to; at += 4 * step) {
            uint4 x[4];
#pragma unroll
            for (int j = 0; j < 4; j++) x[j] = __ldcg(s.from + at + j * step);
#pragma unroll
            for (int j = 0; j < 4; j++) __stcg(s.to + at + j * step, x[j]);
        }
        for (; at < to; at += step) __stcg(s.to + at, __ldcg(s.from + at));
    }
}

int cuda_carry(struct kn_backend *kb, const struct kn_kv *to, const struct kn_kv *from, const int32_t *pos,
               int32_t n)
{
    struct cuda_backend *be = cuda_of(kb);
    const size_t k = kn_kv_row_bytes(from, from->type.k), v = kn_kv_row_bytes(from, from->type.v);
    if (kn_kv_positions(to) != kn_kv_positions(from) || kn_kv_row_bytes(to, to->type.k) != k ||
        kn_kv_row_bytes(to, to->type.v) != v || n < 0)
        return cuda_fail(be, KN_EINVAL, "carry: caches of %d and %d positions, or of other rows (%d rows)",
                         kn_kv_positions(to), kn_kv_positions(from), n);
    const struct carry_args a = {{{(uint4 *)to->k, (const uint4 *)from->k, (int64_t)k},
                                  {(uint4 *)to->v, (const uint4 *)from->v, (int64_t)v}},
                                 pos,
                                 n,
                                 kn_kv_positions(from)};
    const unsigned blocks = n ? (unsigned)(n < be->sm_count ? n : be->sm_count) : (unsigned)be->sm_count;
    const int rc = cuda_check(be, "carry", cuda_launch(be, carry_rows, dim3(blocks), dim3(512), 0, a));
    cuda_ring_written(be, to->k);
    return rc;
}
