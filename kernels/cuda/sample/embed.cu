/* embed.cu - rows of an embedding table, decoded on the device.
 *
 * out[n, n_in] = scale * table[ids[i]]; the table is in file layout (KN_USE_ROWS). A few kilobytes a row:
 * bound by the launch. Each value is computed as kernels/blocks/decode.c does, every step rounded, so the
 * bits are the CPU's. An id outside the table gives a row of NaN, which the checks of the logits report: the
 * host refuses such ids before they come here. */
#include "../core/math.cuh"
#include "../core/ops.cuh"
#include "../product/pack.cuh"

#include <cuda_fp16.h>

/* Code k of the block at b; Q2_K and Q3_K: its low two bits. */
DEV int code_of(uint32_t type, const uint8_t *b, int k)
{
    if (type == KN_Q2_K || type == KN_Q3_K) return (int)mm_two(type, b, k);
    const bool high = type == KN_Q5_0 || type == KN_Q5_1 || type == KN_Q5_K || type == KN_Q6_K;
    return (int)(mm_nibble(type, b, k) | (high ? mm_high(type, b, k) << 4 : 0));
}
DEV float times(float d, int code)
{
    return __fmul_rn(d, (float)code);
}

/* Value k of the block at b. */
static __device__ float decode_block(uint32_t type, const uint8_t *b, int k)
{
    const auto f16 = [&](int at) { return __half2float(__ushort_as_half((unsigned short)mm_u16(b + at))); };
    if (type == KN_Q8_0) return times(f16(0), (int8_t)b[2 + k]);
    const int code = code_of(type, b, k), i = k / 16, j = k / 32;
    switch (type) {
    case KN_Q4_0: return times(f16(0), code - 8);
    case KN_Q5_0: return times(f16(0), code - 16);
    case KN_IQ4_NL: return times(f16(0), mm_iq4((uint32_t)code));
    case KN_Q4_1:
    case KN_Q5_1: return __fadd_rn(times(f16(0), code), f16(2));
    case KN_IQ4_XS: {
        const int sc = (b[4 + j / 2] >> 4 * (j % 2) & 15) | (int)(mm_u16(b + 2) >> 2 * j & 3) << 4;
        return times(times(f16(0), sc - 32), mm_iq4((uint32_t)code));
    }
    case KN_Q2_K: return __fsub_rn(times(times(f16(80), b[i] & 15), code), times(f16(82), b[i] >> 4));
    case KN_Q3_K: {
        const int low = i < 8 ? b[96 + i] & 15 : b[88 + i] >> 4, high = b[104 + i % 4] >> 2 * (i / 4) & 3;
        return times(times(f16(108), (low | high << 4) - 32), code - (mm_high(type, b, k) ? 0 : 4));
    }
    case KN_Q6_K: return times(times(f16(208), (int8_t)b[192 + i]), code - 32);
    default: { /* Q4_K, Q5_K: the 6-bit scale and minimum j of 12 bytes */
        const uint8_t *s = b + 4 + j % 4;
        const int sc = j < 4 ? s[0] & 63 : (s[8] & 15) | s[0] >> 6 << 4,
                  m = j < 4 ? s[4] & 63 : s[8] >> 4 | s[4] >> 6 << 4;
        return __fsub_rn(times(times(f16(0), sc), code), times(f16(2), m));
    }
    }
}

static __device__ float decode(uint32_t type, const uint8_t *row, int64_t i, uint32_t block, uint32_t bytes)
{
    switch (type) {
    case KN_F32: return ((const float *)row)[i];
    case KN_F16: return __half2float(((const __half *)row)[i]);
    case KN_BF16: return __uint_as_float((uint32_t)((const uint16_t *)row)[i] << 16);
    case KN_F64: return (float)((const double *)row)[i];
    default: return decode_block(type, row + i / block * bytes, (int)((uint32_t)i & (block - 1)));
    }
}

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
    table_rows(float *out, const int32_t *pos, const double *freq, int32_t n, int32_t half)
{
    cuda_grid_wait();
    cuda_grid_early();
    const int64_t at = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (at >= (int64_t)n * half) return;
    double p = (double)pos[at / half], f = freq[at % half], x = __dmul_rn(p, f), s, c;
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

int cuda_rope_table(struct kn_backend *kb, float *out, const int32_t *pos, int32_t n, const double *freq,
                    int32_t n_rot)
{
    struct cuda_backend *be = cuda_of(kb);
    if (n < 1 || n_rot < 2 || n_rot % 2)
        return cuda_fail(be, KN_EINVAL, "rope_table: %d rows, n_rot %d (expected an even number)", n, n_rot);
    const int64_t blocks = ((int64_t)n * (n_rot / 2) + 255) / 256;
    const int rc = cuda_check(
        be, "rope_table",
        cuda_launch(be, table_rows, dim3((unsigned)blocks), dim3(256), 0, out, pos, freq, n, n_rot / 2));
    be->settled = be->launches;
    return rc;
}
