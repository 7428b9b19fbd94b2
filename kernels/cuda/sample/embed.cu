/* embed.cu - rows of an embedding table, decoded on the device.
 *
 * out[n, n_in] = scale * table[ids[i]]; the table is in file layout (KN_USE_ROWS). A few kilobytes a row:
 * bound by the launch. Each value is computed as kernels/blocks/decode.c does, every step rounded, so the
 * bits are the CPU's. An id outside the table gives a row of NaN, which the checks of the logits report: the
 * host refuses such ids before they come here. */
#include "../core/math.cuh"
#include "../core/ops.cuh"

#include <cuda_fp16.h>

static __device__ __forceinline__ unsigned get_u16(const uint8_t *b)
{
    return b[0] | (unsigned)b[1] << 8;
}
static __device__ __forceinline__ float get_f16(const uint8_t *b)
{
    return __half2float(__ushort_as_half((unsigned short)get_u16(b)));
}

/* 6-bit scale and min of sub-block j of Q4_K and Q5_K. */
static __device__ __forceinline__ void scale_min(const uint8_t *s, int j, unsigned *sc, unsigned *m)
{
    if (j < 4) {
        *sc = s[j] & 63;
        *m = s[j + 4] & 63;
    } else {
        *sc = (s[j + 4] & 15) | (unsigned)(s[j - 4] >> 6) << 4;
        *m = (s[j + 4] >> 4) | (unsigned)(s[j] >> 6) << 4;
    }
}

/* What the codes of IQ4_NL and IQ4_XS stand for, + 128. */
static __device__ __forceinline__ int iq4_value(unsigned code)
{
    const unsigned word = code < 8    ? (code < 4 ? 0x3f2d1801u : 0x766a5d4fu)
                          : code < 12 ? 0xa6998d81u
                                      : 0xf1d9c5b5u;
    return (int)(word >> 8 * (code & 3) & 255) - 128;
}

/* Blocks of 32: code l of the block at b. */
static __device__ float decode_32(uint32_t type, const uint8_t *b, int l)
{
    const float d = get_f16(b);
    const int half = l & 15, high = l >> 4;
    switch (type) {
    case KN_Q8_0: return __fmul_rn(d, (float)(int8_t)b[2 + l]);
    case KN_Q4_0: return __fmul_rn(d, (float)((b[2 + half] >> 4 * high & 15) - 8));
    case KN_Q4_1: return __fadd_rn(__fmul_rn(d, (float)(b[4 + half] >> 4 * high & 15)), get_f16(b + 2));
    case KN_Q5_0: {
        int h = b[2 + l / 8] >> (l & 7) & 1;
        return __fmul_rn(d, (float)(((b[6 + half] >> 4 * high & 15) | h << 4) - 16));
    }
    case KN_IQ4_NL: return __fmul_rn(d, (float)iq4_value(b[2 + half] >> 4 * high & 15));
    default: { /* Q5_1 */
        int h = b[4 + l / 8] >> (l & 7) & 1;
        return __fadd_rn(__fmul_rn(d, (float)((b[8 + half] >> 4 * high & 15) | h << 4)), get_f16(b + 2));
    }
    }
}

/* Q2_K, Q3_K, IQ4_XS: code l of the block at b. */
static __device__ float decode_low(uint32_t type, const uint8_t *b, int l)
{
    if (type == KN_IQ4_XS) {
        const int j = l / 32, nibble = b[8 + 16 * j + l % 16] >> 4 * (l / 16 % 2) & 15;
        const int sc = (b[4 + j / 2] >> 4 * (j % 2) & 15) | (int)(get_u16(b + 2) >> 2 * j & 3) << 4;
        return __fmul_rn(__fmul_rn(get_f16(b), (float)(sc - 32)), (float)iq4_value((unsigned)nibble));
    }
    const int j = l / 16, at = 32 * (j / 8) + l % 32, shift = 2 * (j / 2 % 4);
    if (type == KN_Q2_K)
        return __fsub_rn(
            __fmul_rn(__fmul_rn(get_f16(b + 80), (float)(b[j] & 15)), (float)(b[16 + at] >> shift & 3)),
            __fmul_rn(get_f16(b + 82), (float)(b[j] >> 4)));
    const int low = j < 8 ? b[96 + j] & 15 : b[88 + j] >> 4, high = b[104 + j % 4] >> 2 * (j / 4) & 3;
    const int sc = low | high << 4;
    const int code = (b[32 + at] >> shift & 3) - (b[l % 32] >> j / 2 & 1 ? 0 : 4);
    return __fmul_rn(__fmul_rn(get_f16(b + 108), (float)(sc - 32)), (float)code);
}

/* Blocks of 256: code l of the block at b. */
static __device__ float decode_256(uint32_t type, const uint8_t *b, int l)
{
    if (type == KN_Q6_K) {
        const int j = l / 16, half = j / 8, quarter = j / 2 % 4, at = 16 * (j % 2) + l % 16;
        const int low = b[64 * half + 32 * (quarter % 2) + at] >> 4 * (quarter / 2) & 15;
        const int high = b[128 + 32 * half + at] >> 2 * quarter & 3;
        return __fmul_rn(__fmul_rn(get_f16(b + 208), (float)(int8_t)b[192 + j]),
                         (float)((low | high << 4) - 32));
    }
    if (type == KN_Q2_K || type == KN_Q3_K || type == KN_IQ4_XS) return decode_low(type, b, l);
    unsigned sc, m;
    const int j = l / 32;
    scale_min(b + 4, j, &sc, &m);
    const uint8_t *q = b + (type == KN_Q4_K ? 16 : 48) + 32 * (j / 2);
    unsigned code = q[l % 32] >> 4 * (j % 2) & 15;
    if (type == KN_Q5_K) code |= (unsigned)(b[16 + l % 32] >> j & 1) << 4;
    return __fsub_rn(__fmul_rn(__fmul_rn(get_f16(b), (float)sc), (float)code),
                     __fmul_rn(get_f16(b + 2), (float)m));
}

static __device__ float decode(uint32_t type, const uint8_t *row, int64_t i, uint32_t block, uint32_t bytes)
{
    switch (type) {
    case KN_F32: return ((const float *)row)[i];
    case KN_F16: return __half2float(((const __half *)row)[i]);
    case KN_BF16: return __uint_as_float((uint32_t)((const uint16_t *)row)[i] << 16);
    case KN_F64: return (float)((const double *)row)[i];
    default: break;
    }
    const uint8_t *b = row + i / block * bytes;
    return block == 32 ? decode_32(type, b, (int)(i % 32)) : decode_256(type, b, (int)(i % 256));
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
