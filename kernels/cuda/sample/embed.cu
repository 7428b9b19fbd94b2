/* embed.cu - rows of an embedding table, decoded on the device.
 *
 * out[n, n_in] = scale * table[ids[i]]; the table is in file layout (KN_USE_ROWS). A few kilobytes a row:
 * bound by the launch. An id outside the table gives a row of NaN, which the checks of the logits report: the
 * host refuses such ids before they come here. */
#include "../core/math.cuh"
#include "../core/ops.cuh"
#include "decode.cuh"

/* ---- kernels: all before is complete for those that come after ---- */

struct embed_args {
    float *x; /* [n, n_in] */
    const uint8_t *rows;
    const int32_t *ids;
    uint32_t type, block, bytes;
    int64_t n_in, n_out;
    size_t row_bytes;
    float scale;
};
static __global__ void __launch_bounds__(256) embed_rows(const __grid_constant__ embed_args a)
{
    cuda_grid_wait();
    cuda_grid_early();
    const int32_t row = (int32_t)blockIdx.y, id = a.ids[row];
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= a.n_in) return;
    float x = __int_as_float(0x7fc00000);
    if (id >= 0 && id < a.n_out) {
        x = decode(a.type, a.rows + (size_t)id * a.row_bytes, i, a.block, a.bytes);
        if (a.scale != 1.0f) x = __fmul_rn(x, a.scale);
    }
    a.x[row * a.n_in + i] = x;
}

static __global__ void __launch_bounds__(256)
    table_rows(float *out, const int32_t *pos, const int32_t *origin, const double *freq, int32_t n,
               int32_t half)
{
    cuda_grid_wait();
    cuda_grid_early();
    const int64_t at = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (at >= (int64_t)n * half) return;
    const int32_t row = pos[at / half];
    double p = (double)(origin ? origin[row] : row), f = freq[at % half], x = __dmul_rn(p, f), s, c;
    dev_sincos(x, __fma_rn(p, f, -x), &s, &c);
    out[2 * at] = __double2float_rn(c);
    out[2 * at + 1] = __double2float_rn(s);
}

int cuda_embed(struct kn_backend *kb, float *out, const struct kn_weight *table, const int32_t *ids,
               int32_t n, float scale)
{
    struct cuda_backend *be = cuda_of(kb);
    const struct kn_type_info *t = kn_type_info(table->type);
    size_t row = kn_row_bytes(table->type, table->n_in);
    if (!table->rows || !row)
        return cuda_fail(be, KN_EINVAL, "embed: the table has no rows (it was not loaded with KN_USE_ROWS)");
    if (!t->can_decode) return cuda_fail(be, KN_ETYPE, "embed: rows of type %s cannot be decoded", t->name);
    if (t->block != 1 && t->block != 32 && t->block != 256)
        return cuda_fail(be, KN_ETYPE, "embed: rows of type %s cannot be decoded on the device", t->name);
    if (n < 1 || n > 65535) return cuda_fail(be, KN_EINVAL, "embed: %d rows (expected 1 to 65535)", n);
    be->rounded.x = be->ready.x = nullptr; /* out may be what was rounded */
    const struct embed_args a = {.x = out,
                                 .rows = (const uint8_t *)table->rows,
                                 .ids = ids,
                                 .type = table->type,
                                 .block = t->block,
                                 .bytes = t->bytes,
                                 .n_in = table->n_in,
                                 .n_out = table->n_out,
                                 .row_bytes = row,
                                 .scale = scale};
    const dim3 grid((unsigned)((table->n_in + 255) / 256), (unsigned)n);
    const int rc = cuda_check(be, "embed", cuda_launch(be, embed_rows, grid, dim3(256), 0, a));
    be->settled = be->launches;
    return rc;
}

int cuda_rope_table(struct kn_backend *kb, float *out, const int32_t *pos, const int32_t *origin, int32_t n,
                    const double *freq, int32_t n_rot)
{
    struct cuda_backend *be = cuda_of(kb);
    if (n < 1 || n_rot < 2 || n_rot % 2)
        return cuda_fail(be, KN_EINVAL, "rope_table: %d rows, n_rot %d (expected an even number)", n, n_rot);
    const int64_t blocks = ((int64_t)n * (n_rot / 2) + 255) / 256;
    const int rc = cuda_check(be, "rope_table",
                              cuda_launch(be, table_rows, dim3((unsigned)blocks), dim3(256), 0, out, pos,
                                          origin, freq, n, n_rot / 2));
    be->settled = be->launches;
    return rc;
}
