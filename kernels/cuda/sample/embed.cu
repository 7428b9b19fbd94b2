/* embed.cu - rows of an embedding table, decoded on the device.
 *
 * out[n, n_in] = scale * table[ids[i]]; the table is in file layout (KN_USE_ROWS). A few kilobytes a row:
 * bound by the launch. Each value is computed as kernels/blocks/decode.c does, every step rounded, so the
 * bits are the CPU's. An id outside the table gives a row of NaN, which the checks of the logits report: the
 * host refuses such ids before they come here. */
#include "../chain/around.cuh"
#include "../core/math.cuh"
#include "../core/ops.cuh"

#include <cuda_fp16.h>
#include <stdlib.h>

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

/* ---- the beginning of a pass: around.cuh ---- */

static __device__ void embed_at(const around_start &a, int row, int column)
{
    const int32_t id = a.ids[row];
    const int64_t i = (int64_t)column * 256 + threadIdx.x;
    if (i >= a.n_in) return;
    float x = __int_as_float(0x7fc00000);
    if (id >= 0 && id < a.n_out) {
        x = decode(a.type, a.rows + (size_t)id * a.row_bytes, i, a.block, a.bytes);
        if (a.scale != 1.0f) x = __fmul_rn(x, a.scale);
    }
    a.x[row * a.n_in + i] = x;
}

static __device__ void table_at(const around_table &a, int64_t at)
{
    if (at >= (int64_t)a.n * a.half) return;
    double p = (double)a.pos[at / a.half], f = a.freq[at % a.half], x = __dmul_rn(p, f), s, c;
    dev_sincos(x, __fma_rn(p, f, -x), &s, &c);
    a.out[2 * at] = __double2float_rn(c);
    a.out[2 * at + 1] = __double2float_rn(s);
}

/* Blocks: of the tables, then those of the rows. */
static __global__ void __launch_bounds__(256) start_rows(const __grid_constant__ around_start a)
{
    if (a.early) cuda_grid_early();
    cuda_grid_wait();
    if (!a.early) cuda_grid_early(); /* in this order: all before it is complete for those that come after */
    if (a.stamp && blockIdx.x == 0 && threadIdx.x == 0) *a.stamp = device_ns();
    int64_t at = blockIdx.x;
    for (int j = 0; j < a.n_tables; j++) {
        const int64_t blocks = ((int64_t)a.table[j].n * a.table[j].half + 255) / 256;
        if (at < blocks) {
            table_at(a.table[j], 256 * at + threadIdx.x);
            return;
        }
        at -= blocks;
    }
    if (a.x && at < (int64_t)a.n * a.columns) embed_at(a, (int)(at / a.columns), (int)(at % a.columns));
}

struct around_state {
    struct around_start start;
};

int around_starting(struct cuda_backend *be, struct around_start **start)
{
    if (!be->around) be->around = (struct around_state *)calloc(1, sizeof *be->around);
    if (!be->around) return cuda_fail(be, KN_EMEM, "out of memory (%zu bytes)", sizeof *be->around);
    *start = &be->around->start;
    if (be->around_waits == AROUND_START && !be->chain_steps && !be->waits) return 0;
    const int rc = cuda_flush(be);
    if (rc) return rc;
    be->around->start = {};
    be->around_waits = AROUND_START;
    return 0;
}
/* A start that has no rows of an embedding yet, or room for a table. */
static int starting_with(struct cuda_backend *be, bool rows, struct around_start **start)
{
    int rc = around_starting(be, start);
    if (rc || !(rows ? (*start)->x != nullptr : (*start)->n_tables == AROUND_TABLES)) return rc;
    rc = cuda_flush(be);
    return rc ? rc : around_starting(be, start);
}

int around_start_flush(struct cuda_backend *be, bool early)
{
    struct around_start *a = &be->around->start;
    int64_t blocks = a->x ? (int64_t)a->n * a->columns : 0;
    be->around_waits = AROUND_NOTHING;
    for (int32_t j = 0; j < a->n_tables; j++)
        blocks += ((int64_t)a->table[j].n * a->table[j].half + 255) / 256;
    a->early = early;
    const int rc = cuda_check(
        be, "the beginning of a pass",
        cuda_launch_first(be, start_rows, dim3((unsigned)(blocks ? blocks : 1)), dim3(256), 0, *a));
    be->settled = early ? 0 : be->launches;
    return rc;
}

int around_flush(const struct cuda_backend *const_be)
{
    struct cuda_backend *be = const_cast<struct cuda_backend *>(const_be);
    if (be->around_waits == AROUND_END) return around_end_flush(be);
    return be->chain_steps ? chain_flush(be)
                           : around_start_flush(be, false); /* which knows what comes next */
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
    struct around_start *a;
    const int rc = starting_with(be, true, &a);
    if (rc) return rc;
    be->rounded.x = be->ready.x = nullptr; /* out may be what was rounded */
    a->x = out, a->rows = (const uint8_t *)table->rows, a->ids = ids;
    a->type = table->type, a->block = t->block, a->bytes = t->bytes;
    a->n = n, a->columns = (int32_t)((table->n_in + 255) / 256), a->n_in = table->n_in,
    a->n_out = table->n_out;
    a->row_bytes = row, a->scale = scale;
    return 0;
}

int cuda_rope_table(struct kn_backend *kb, float *out, const int32_t *pos, int32_t n, const double *freq,
                    int32_t n_rot)
{
    struct cuda_backend *be = cuda_of(kb);
    if (n < 1 || n_rot < 2 || n_rot % 2)
        return cuda_fail(be, KN_EINVAL, "rope_table: %d rows, n_rot %d (expected an even number)", n, n_rot);
    struct around_start *a;
    const int rc = starting_with(be, false, &a);
    if (rc) return rc;
    a->table[a->n_tables++] = {out, pos, freq, n, n_rot / 2};
    return 0;
}
