/* attention/kv_codes.cuh - the device's door to quantised caches: where a head's codes lie, what four or
 * eight of them are as halves, rotation, and how a warp makes them. ../../kv_rows.h has the formats.
 *
 * A code becomes a half by exact steps: its bits under the exponent of 1024, minus 1024 and the bias; then it
 * is multiplied by its scale, rounded once. So a number is a function of its row alone. tq3_0 looks its eight
 * levels up. Types are known where a leaf is taken up: read_keys and the like are made for each type, what
 * multiplies is written once. */
#ifndef DFLASH_CUDA_ATTENTION_KV_CODES_CUH
#define DFLASH_CUDA_ATTENTION_KV_CODES_CUH

#include "../../kv_rows.h"
#include "kv.cuh"

/* ---- where ---- */

/* Keys or values of a layer: bytes of a row, from its beginning to each plane, and of a head in each. */
struct kv_side {
    const unsigned char *at;
    uint32_t type;
    int32_t row, high, scale, head[3];
};
static inline struct kv_side kv_side_of(const struct kn_kv *kv, bool values)
{
    const uint32_t type = values ? kv->type.v : kv->type.k;
    const struct kv_layout *y = kv_layout_of(type);
    struct kv_side s = {};
    s.at = (const unsigned char *)(values ? kv->v : kv->k);
    s.type = type;
    s.row = (int32_t)kn_kv_row_bytes(kv, type);
    s.head[0] = s.row / kv->n_head_kv;
    if (!y) return s;
    const struct kv_planes p = kv_planes_of(y, kv->n_head_kv, kv->head_dim, 0);
    s.high = (int32_t)p.high, s.scale = (int32_t)p.scale;
    s.head[0] = kv->head_dim * y->low / 8;
    s.head[1] = kv->head_dim * y->high / 8;
    s.head[2] = kv->head_dim / y->group * 2;
    return s;
}
/* Forms with tensor products take f16 and codes, of either side. */
static __device__ __forceinline__ bool kv_is_f16(uint32_t type)
{
    return type == KN_F16;
}

static __device__ __forceinline__ bool kv_is_coded(uint32_t type)
{
    return !(type == KN_F16 || type == KN_BF16 || type == KN_F32);
}

/* What a type is made of, for code that is made for one. */
template <uint32_t TYPE> struct kv_code {
    static constexpr int LOW = TYPE == KN_Q8_0 ? 8 : TYPE == KN_TQ3_0 ? 2 : 4;
    static constexpr int HIGH = TYPE == KN_Q5_0 || TYPE == KN_TQ3_0 ? 1 : 0;
    static constexpr int GROUP = TYPE == KN_TQ3_0 ? 128 : 32;
    /* Halves of 1024 and the bias, twice. */
    static constexpr uint32_t BIAS = TYPE == KN_Q8_0   ? 0x64806480u
                                     : TYPE == KN_Q5_0 ? 0x64106410u
                                                       : 0x64086408u;
};

/* Bytes of 128 numbers' codes in each plane. */
struct kv_code_bytes {
    int low, high, scale;
    __device__ __forceinline__ int all() const
    {
        return low + high + scale;
    }
};
static __device__ __forceinline__ kv_code_bytes kv_code_bytes_of(uint32_t type)
{
    return {type == KN_Q8_0    ? 128
            : type == KN_TQ3_0 ? 32
                               : 64,
            type == KN_Q5_0 || type == KN_TQ3_0 ? 16 : 0, type == KN_TQ3_0 ? 2 : 8};
}

/* ---- codes to halves ---- */

/* __byte_perm with what it would do beside left out: nibbles of s have no sign here. */
static __device__ __forceinline__ uint32_t kv_perm(uint32_t a, uint32_t b, uint32_t s)
{
    uint32_t y;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(s));
    return y;
}
static __device__ __forceinline__ uint32_t kv_sub(uint32_t a, uint32_t b)
{
    const __half2 y = __hsub2(*(const __half2 *)&a, *(const __half2 *)&b);
    return *(const uint32_t *)&y;
}
static __device__ __forceinline__ uint32_t kv_mul(uint32_t a, uint32_t b)
{
    const __half2 y = __hmul2(*(const __half2 *)&a, *(const __half2 *)&b);
    return *(const uint32_t *)&y;
}
/* Bytes 0 and 1 (or 2 and 3) of w, the codes, as halves. */
template <uint32_t TYPE, bool UPPER> static __device__ __forceinline__ uint32_t kv_pair(uint32_t w)
{
    return kv_sub(__byte_perm(w, 0x64646464u, UPPER ? 0x4342 : 0x4140), kv_code<TYPE>::BIAS);
}
/* Four levels of tq3_0 by the codes in the nibbles of sel's lower half: their lower and upper bytes. */
static __device__ __forceinline__ void kv_levels(uint32_t sel, uint32_t &low, uint32_t &high)
{
    low = kv_perm(0x7e358b1au, 0x1a8b357eu, sel);
    high = kv_perm(0xa5acafb2u, 0x322f2c25u, sel);
}
/* Eight codes of tq3_0 as nibbles: values 8 i to 8 i + 7 of a block of 32, i < 4. low: the word that they are
 * in, of 16 values. */
static __device__ __forceinline__ uint32_t kv_nibbles(uint32_t low, uint32_t high, int i)
{
    return (low >> 2 * (i & 1) & 0x33333333u) | (high >> i & 0x11111111u) << 2;
}
/* The four bytes of values 4 i to 4 i + 3 of a block of 32, i < 8: the codes of all types but tq3_0, whose
 * nibbles are the lower half. low, high: where the head's codes of the block begin. */
template <uint32_t TYPE>
static __device__ __forceinline__ uint32_t kv_four(const unsigned char *low, const unsigned char *high, int i)
{
    if (TYPE == KN_Q8_0) return *(const uint32_t *)(low + 4 * i) ^ 0x80808080u;
    if (TYPE == KN_TQ3_0)
        return kv_nibbles(*(const uint32_t *)(low + i / 4 * 4), *(const uint32_t *)high, i / 2) >>
               16 * (i & 1);
    uint32_t w = *(const uint32_t *)(low + i % 4 * 4) >> i / 4 * 4 & 0x0f0f0f0fu;
    if (TYPE == KN_Q5_0) w |= (*(const uint32_t *)high >> (i % 4 + i / 4 * 4) & 0x01010101u) << 4;
    return w;
}
/* The same as halves, in order, without their scale. */
template <uint32_t TYPE> static __device__ __forceinline__ void kv_halves_of(uint32_t four, uint32_t to[2])
{
    if (TYPE == KN_TQ3_0) {
        uint32_t low, high;
        kv_levels(four, low, high);
        to[0] = __byte_perm(low, high, 0x5140);
        to[1] = __byte_perm(low, high, 0x7362);
    } else {
        to[0] = kv_pair<TYPE, false>(four);
        to[1] = kv_pair<TYPE, true>(four);
    }
}
/* Four values of two keys, a and b, as pairs (a, b). */
template <uint32_t TYPE>
static __device__ __forceinline__ void kv_crossed(uint32_t a, uint32_t b, uint32_t to[4])
{
    if (TYPE == KN_TQ3_0) {
        uint32_t x[2], y[2];
        kv_halves_of<TYPE>(a, x);
        kv_halves_of<TYPE>(b, y);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            to[2 * i] = __byte_perm(x[i], y[i], 0x5410);
            to[2 * i + 1] = __byte_perm(x[i], y[i], 0x7632);
        }
    } else {
        const uint32_t p = __byte_perm(a, b, 0x5140), q = __byte_perm(a, b, 0x7362);
        to[0] = kv_pair<TYPE, false>(p), to[1] = kv_pair<TYPE, true>(p);
        to[2] = kv_pair<TYPE, false>(q), to[3] = kv_pair<TYPE, true>(q);
    }
}

/* Eight values of a key, 8 i to 8 i + 7 of a block of 32, i < 4, with their scale. */
template <uint32_t TYPE>
static __device__ __forceinline__ uint4 kv_eight(const unsigned char *low, const unsigned char *high,
                                                 const unsigned char *scale, int i)
{
    const uint32_t h = *(const uint16_t *)scale, d = h | h << 16;
    uint32_t y[2][2];
#pragma unroll
    for (int k = 0; k < 2; k++) kv_halves_of<TYPE>(kv_four<TYPE>(low, high, 2 * i + k), y[k]);
    return make_uint4(kv_mul(y[0][0], d), kv_mul(y[0][1], d), kv_mul(y[1][0], d), kv_mul(y[1][1], d));
}
/* KEYS keys from slot on, COLS columns from col, as halves to rows of PITCH halves; zeros for keys outside
 * [lo, hi), which are counted from the first. By THREADS threads, at their own pace. */
template <uint32_t TYPE, int COLS, int KEYS, int PITCH, int THREADS>
static __device__ __forceinline__ void kv_unpack(const struct kv_side &s, uint16_t *to, int64_t slot,
                                                 int kv_head, int col, int lo, int hi)
{
    constexpr int PIECES = COLS / 8;
    const unsigned char *base = s.at + slot * s.row, *low0 = base + kv_head * s.head[0],
                        *high0 = base + s.high + kv_head * s.head[1],
                        *scale0 = base + s.scale + kv_head * s.head[2];
#pragma unroll 4
    for (int at = (int)threadIdx.x; at < KEYS * PIECES; at += THREADS) {
        const int key = at / PIECES, piece = at % PIECES, b = col / 32 + piece / 4;
        const int64_t row = (int64_t)key * s.row;
        uint4 y = make_uint4(0, 0, 0, 0);
        if (key >= lo && key < hi)
            y = kv_eight<TYPE>(low0 + row + b * (4 * kv_code<TYPE>::LOW), high0 + row + 4 * b,
                               scale0 + row + b * 32 / kv_code<TYPE>::GROUP * 2, piece % 4);
        *(uint4 *)(to + key * PITCH + piece * 8) = y;
    }
}
/* Of any quantised type. */
template <int COLS, int KEYS, int PITCH, int THREADS>
static __device__ __forceinline__ void kv_unpack_any(const struct kv_side &s, uint16_t *to, int64_t slot,
                                                     int kv_head, int col, int lo, int hi)
{
    switch (s.type) {
    case KN_Q8_0: kv_unpack<KN_Q8_0, COLS, KEYS, PITCH, THREADS>(s, to, slot, kv_head, col, lo, hi); break;
    case KN_Q5_0: kv_unpack<KN_Q5_0, COLS, KEYS, PITCH, THREADS>(s, to, slot, kv_head, col, lo, hi); break;
    case KN_Q4_0: kv_unpack<KN_Q4_0, COLS, KEYS, PITCH, THREADS>(s, to, slot, kv_head, col, lo, hi); break;
    default: kv_unpack<KN_TQ3_0, COLS, KEYS, PITCH, THREADS>(s, to, slot, kv_head, col, lo, hi);
    }
}

/* ---- rotation ---- */

/* x[W] of a warp, value j of a lane being number lane + 32 j: the butterflies of n <= 32 W numbers side by
 * side, in the order of kv_rows.c, so with its bits. */
template <int W> static __device__ __forceinline__ void kv_hadamard(float x[W], int n)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 1; h < 32; h *= 2)
#pragma unroll
        for (int j = 0; j < W; j++) {
            const float y = __shfl_xor_sync(~0u, x[j], h);
            x[j] = lane & h ? __fsub_rn(y, x[j]) : __fadd_rn(x[j], y);
        }
#pragma unroll
    for (int h = 1; h < W; h *= 2) {
        if (32 * h >= n) break;
#pragma unroll
        for (int j = 0; j < W; j++)
            if (!(j & h)) {
                const float a = x[j], b = x[j + h];
                x[j] = __fadd_rn(a, b);
                x[j + h] = __fsub_rn(a, b);
            }
    }
    const float scale = __fdiv_rn(1.0f, __fsqrt_rn((float)n));
#pragma unroll
    for (int j = 0; j < W; j++) x[j] = __fmul_rn(x[j], scale);
}
static __device__ __forceinline__ uint32_t kv_sign_mask(int which, int word)
{
    switch (4 * which + word) {
    case 0: return 0xe46a0359u;
    case 1: return 0x42f85949u;
    case 2: return 0xa4c63bbbu;
    case 3: return 0x49f250a9u;
    case 4: return 0x16acee90u;
    case 5: return 0x3f628fdcu;
    case 6: return 0xb7a5357au;
    default: return 0xbea56562u;
    }
}
/* With another sign where the last bit of `flip` is set. A change of sign could become a negated factor, of
 * which a NaN knows nothing: one kernel's NaNs would have other bits than another's. */
static __device__ __forceinline__ float kv_signed(float x, uint32_t flip)
{
    return __uint_as_float(__float_as_uint(x) ^ flip << 31);
}

/* A head of 32 W numbers, a power of two, into the rotated space of a type, or back. Nothing for a type
 * without codes. */
template <int W>
static __device__ __forceinline__ void kv_turn_head(float x[W], uint32_t type, bool values, bool back)
{
    const int lane = threadIdx.x % 32;
    const bool signs = type == KN_TQ3_0;
    if (!kv_is_coded(type)) return;
    if (signs)
#pragma unroll
        for (int j = 0; j < W; j++) x[j] = kv_signed(x[j], kv_sign_mask(back, j % 4) >> lane);
    kv_hadamard<W>(x, signs ? 128 : values ? 64 : 32 * W);
    if (signs)
#pragma unroll
        for (int j = 0; j < W; j++) x[j] = kv_signed(x[j], kv_sign_mask(!back, j % 4) >> lane);
}

/* The same of a head of 128 into the space of keys of a quantised type, without a branch: several side by
 * side wait for one chain of latencies. */
static __device__ __forceinline__ void kv_turn_keys(float x[4], uint32_t type)
{
    const int lane = threadIdx.x % 32;
    const uint32_t signs = type == KN_TQ3_0 ? ~0u : 0u;
#pragma unroll
    for (int j = 0; j < 4; j++) x[j] = kv_signed(x[j], (kv_sign_mask(0, j) & signs) >> lane);
    kv_hadamard<4>(x, 128);
#pragma unroll
    for (int j = 0; j < 4; j++) x[j] = kv_signed(x[j], (kv_sign_mask(1, j) & signs) >> lane);
}

/* And of values. */
static __device__ __forceinline__ void kv_turn_values(float x[4], uint32_t type)
{
    if (type == KN_TQ3_0)
        kv_turn_keys(x, type);
    else
        kv_hadamard<4>(x, 64);
}

static __device__ __forceinline__ int kv_turn_size_of(uint32_t type, int d) /* of keys */
{
    return type == KN_TQ3_0 ? 128 : d;
}
/* As kv_turn_head's keys, x[W] of a lane being numbers 64 j + 2 lane and the next. */
template <int W>
static __device__ __forceinline__ void kv_turn_pairs(float2 x[W], uint32_t type, int n, int lane)
{
    const bool signs = type == KN_TQ3_0;
    if (!kv_is_coded(type)) return;
    const auto sign = [&](int which) {
#pragma unroll
        for (int j = 0; j < W; j++) {
            const uint32_t m = kv_sign_mask(which, (2 * j + lane / 16) % 4) >> lane % 16 * 2;
            if (m & 1) x[j].x = -x[j].x;
            if (m & 2) x[j].y = -x[j].y;
        }
    };
    if (signs) sign(0);
#pragma unroll
    for (int j = 0; j < W; j++) x[j] = make_float2(__fadd_rn(x[j].x, x[j].y), __fsub_rn(x[j].x, x[j].y));
#pragma unroll
    for (int h = 1; h < 32; h *= 2)
#pragma unroll
        for (int j = 0; j < W; j++) {
            const float u = __shfl_xor_sync(~0u, x[j].x, h), v = __shfl_xor_sync(~0u, x[j].y, h);
            x[j].x = lane & h ? __fsub_rn(u, x[j].x) : __fadd_rn(x[j].x, u);
            x[j].y = lane & h ? __fsub_rn(v, x[j].y) : __fadd_rn(x[j].y, v);
        }
#pragma unroll
    for (int h = 1; h < W; h *= 2) {
        if (64 * h >= n) break;
#pragma unroll
        for (int j = 0; j < W; j++)
            if (!(j & h)) {
                const float2 a = x[j], b = x[j + h];
                x[j] = make_float2(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y));
                x[j + h] = make_float2(__fsub_rn(a.x, b.x), __fsub_rn(a.y, b.y));
            }
    }
    const float scale = __fdiv_rn(1.0f, __fsqrt_rn((float)n));
#pragma unroll
    for (int j = 0; j < W; j++) x[j].x = __fmul_rn(x[j].x, scale), x[j].y = __fmul_rn(x[j].y, scale);
    if (signs) sign(1);
}

/* The same of any head, x[d] in shared memory, by the threads that sync() makes meet: t of n. */
template <class SYNC>
static __device__ void kv_turn_shared(float *x, int d, uint32_t type, bool values, bool back, int t, int n,
                                      SYNC sync)
{
    const int size = type == KN_TQ3_0 ? 128 : values ? (d % 64 ? 32 : 64) : d & -d;
    const bool signs = type == KN_TQ3_0;
    const float scale = __fdiv_rn(1.0f, __fsqrt_rn((float)size));
    if (!kv_is_coded(type)) return;
    if (signs)
        for (int i = t; i < d; i += n)
            if (kv_sign_mask(back, i / 32 % 4) >> i % 32 & 1) x[i] = -x[i];
    sync();
    for (int h = 1; h < size; h *= 2) {
        for (int i = t; i < d / 2; i += n) {
            const int at = i / h * 2 * h + i % h;
            const float a = x[at], b = x[at + h];
            x[at] = __fadd_rn(a, b);
            x[at + h] = __fsub_rn(a, b);
        }
        sync();
    }
    for (int i = t; i < d; i += n) {
        float y = __fmul_rn(x[i], scale);
        if (signs && (kv_sign_mask(!back, i / 32 % 4) >> i % 32 & 1)) y = -y;
        x[i] = y;
    }
    sync();
}

/* ---- a row's codes, made by a warp ---- */

static __device__ __forceinline__ float kv_warp_max(float x)
{
    for (int i = 16; i; i >>= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, i));
    return x;
}
/* Blocks of 32 of a head that is rotated already, n <= 4 of them: y[b] is the lane's number of block b. A
 * lane makes a block's scale, so that one chain of divisions serves all. */
static __device__ __forceinline__ void kv_put_blocks(const float y[4], int n, uint32_t type,
                                                     unsigned char *low, unsigned char *high,
                                                     unsigned char *scale)
{
    const int lane = threadIdx.x % 32;
    const float top = type == KN_Q8_0   ? 127.0f
                      : type == KN_Q5_0 ? 15.0f
                                        : 7.0f,
                least = type == KN_Q8_0 ? -127.0f : -(top + 1.0f);
    float hi[4], lo[4], peak = 0.0f;
    bool fine = false;
#pragma unroll
    for (int b = 0; b < 4; b++) hi[b] = y[b], lo[b] = -y[b];
#pragma unroll
    for (int i = 16; i; i >>= 1)
#pragma unroll
        for (int b = 0; b < 4; b++) {
            hi[b] = fmaxf(hi[b], __shfl_xor_sync(~0u, hi[b], i));
            lo[b] = fmaxf(lo[b], __shfl_xor_sync(~0u, lo[b], i));
        }
#pragma unroll
    for (int b = 0; b < 4; b++) {
        const bool all = __all_sync(~0u, __fsub_rn(y[b], y[b]) == 0.0f);
        if (lane % 4 == b) fine = all, peak = hi[b] > lo[b] ? hi[b] : -lo[b];
    }
    const float want = type == KN_Q8_0 ? __fdiv_rn(fabsf(peak), 127.0f) : __fdiv_rn(peak, least);
    const __half h = fine ? __float2half_rn(want) : __ushort_as_half(0x7e00);
    const float own = __half2float(h), inverse = own == 0.0f || own != own ? 0.0f : __fdiv_rn(1.0f, own);
    if (lane < n) *(__half *)(scale + 2 * lane) = h;
#pragma unroll
    for (int b = 0; b < 4; b++) {
        const float s = __shfl_sync(~0u, own, b), inv = __shfl_sync(~0u, inverse, b);
        float z = s != s ? 0.0f : __fmul_rn(y[b], inv);
        z = z < least ? least : z > top ? top : z;
        const int q = __float2int_rn(z);
        if (type == KN_Q8_0) {
            if (b < n) low[32 * b + lane] = (unsigned char)q;
            continue;
        }
        const unsigned c = (unsigned)(q + (type == KN_Q5_0 ? 16 : 8)), above = __shfl_down_sync(~0u, c, 16);
        if (b < n && lane < 16) low[16 * b + lane] = (unsigned char)((c & 15) | (above & 15) << 4);
        if (type == KN_Q5_0) {
            const unsigned bit = (c >> 4 & 1) << (lane % 4 * 8 + lane % 16 / 4 + lane / 16 * 4);
            const unsigned all = __reduce_or_sync(~0u, bit);
            if (b < n && lane == 0) *(uint32_t *)(high + 4 * b) = all;
        }
    }
}
/* A group of 128 of tq3_0: y[j] is the lane's number of block j. */
static __device__ __forceinline__ void kv_put_group(const float y[4], unsigned char *low, unsigned char *high,
                                                    unsigned char *scale)
{
    const int lane = threadIdx.x % 32;
    float sum = 0.0f, length = 0.0f;
#pragma unroll
    for (int j = 0; j < 4; j++) sum = __fmaf_rn(y[j], y[j], sum);
    for (int i = 16; i; i >>= 1) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, i));
    const float norm = __fsqrt_rn(sum);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float v = y[j];
        unsigned c = 0;
        c += v >= __fmul_rn(-0.154259f, norm), c += v >= __fmul_rn(-0.091775f, norm);
        c += v >= __fmul_rn(-0.043589f, norm), c += v >= 0.0f, c += v >= __fmul_rn(0.043589f, norm);
        c += v >= __fmul_rn(0.091775f, norm), c += v >= __fmul_rn(0.154259f, norm);
        const float level = c == 0 || c == 7   ? 0.190685f
                            : c == 1 || c == 6 ? 0.117832f
                            : c == 2 || c == 5 ? 0.065717f
                                               : 0.021460f;
        length = __fmaf_rn(level, level, length);
        const unsigned two = (c & 3) << (lane % 8 * 4 + lane / 8 % 2 * 2);
        const unsigned w0 = __reduce_or_sync(~0u, lane < 16 ? two : 0u),
                       w1 = __reduce_or_sync(~0u, lane < 16 ? 0u : two),
                       up = __reduce_or_sync(~0u, (c >> 2) << (lane % 8 * 4 + lane / 8));
        if (lane == 0) {
            *(uint32_t *)(low + 8 * j) = w0;
            *(uint32_t *)(low + 8 * j + 4) = w1;
            *(uint32_t *)(high + 4 * j) = up;
        }
    }
    for (int i = 16; i; i >>= 1) length = __fadd_rn(length, __shfl_xor_sync(~0u, length, i));
    /* A NaN or an Inf makes the norm, and so the scale, none. */
    const float s = __fdiv_rn(norm, __fsqrt_rn(length));
    if (lane == 0) *(__half *)scale = norm < INFINITY ? __float2half_rn(s) : __ushort_as_half(0x7e00);
}
/* Up to 128 numbers of a head that is rotated already, from a multiple of 128 on: y as above, n blocks of 32;
 * low, high, scale: where the first one's are. */
static __device__ __forceinline__ void kv_put_some(const float y[4], int n, uint32_t type, unsigned char *low,
                                                   unsigned char *high, unsigned char *scale)
{
    if (type == KN_TQ3_0)
        kv_put_group(y, low, high, scale);
    else
        kv_put_blocks(y, n, type, low, high, scale);
}
/* A head, x[d] in shared memory, of a warp, into the row at slot: rotated (x too) and coded. */
static __device__ void kv_put_head(const struct kv_side &s, int64_t slot, int head, float *x, int d,
                                   bool values)
{
    unsigned char *row = (unsigned char *)s.at + slot * s.row, *low = row + head * s.head[0],
                  *high = row + s.high + head * s.head[1], *scale = row + s.scale + head * s.head[2];
    __syncwarp();
    kv_turn_shared(x, d, s.type, values, false, threadIdx.x % 32, 32, [] { __syncwarp(); });
    const kv_code_bytes b = kv_code_bytes_of(s.type);
    for (int at = 0; at < d; at += 128, low += b.low, high += b.high, scale += b.scale) {
        float y[4];
#pragma unroll
        for (int j = 0; j < 4; j++) y[j] = at + 32 * j < d ? x[at + 32 * j + threadIdx.x % 32] : 0.0f;
        kv_put_some(y, min(d - at, 128) / 32, s.type, low, high, scale);
    }
}

/* ---- one number, for the form for any types ---- */

/* Number i of a head, still rotated. */
static __device__ float kv_get_code(const struct kv_side &s, int64_t slot, int head, int i)
{
    const unsigned char *row = s.at + slot * s.row, *low = row + head * s.head[0],
                        *high = row + s.high + head * s.head[1], *scale = row + s.scale + head * s.head[2];
    const int b = i / 32, j = i % 32;
    if (s.type == KN_Q8_0)
        return __fmul_rn(__half2float(*(const __half *)(scale + 2 * b)), (float)(signed char)low[i]);
    if (s.type == KN_TQ3_0) {
        uint32_t l, h;
        kv_levels(
            kv_nibbles(*(const uint32_t *)(low + i / 16 * 4), *(const uint32_t *)(high + 4 * b), j / 8) >>
                    4 * (j % 8) &
                7,
            l, h);
        return __fmul_rn(__half2float(*(const __half *)(scale + i / 128 * 2)),
                         __half2float(__ushort_as_half((unsigned short)((l & 255) | (h & 255) << 8))));
    }
    int q = low[16 * b + j % 16] >> j / 16 * 4 & 15;
    if (s.type == KN_Q5_0)
        q |= (int)(*(const uint32_t *)(high + 4 * b) >> (j % 4 * 8 + j % 16 / 4 + j / 16 * 4) & 1) << 4;
    return __fmul_rn(__half2float(*(const __half *)(scale + 2 * b)),
                     (float)(q - (s.type == KN_Q5_0 ? 16 : 8)));
}

/* Of a side of numbers N, n_kv heads of d: quantised ones still rotated. */
template <class N> struct kv_number {
    static __device__ __forceinline__ float get(const struct kv_side &s, int n_kv, int d, int64_t slot,
                                                int head, int i)
    {
        return kv_get<N>(s.at, (slot * n_kv + head) * d + i);
    }
};
template <> struct kv_number<kv_coded> {
    static __device__ __forceinline__ float get(const struct kv_side &s, int, int, int64_t slot, int head,
                                                int i)
    {
        return kv_get_code(s, slot, head, i);
    }
};

#endif
