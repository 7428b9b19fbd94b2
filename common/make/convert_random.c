/* convert_random.c - weights that nobody trained, at real sizes, so that speed can be measured without a
 * download.
 *
 * Every byte is a pure function of seed, tensor name and position (a hash of a counter), so any number of
 * threads on any machine makes the same file. Blocks of quantised types are made directly: their codes are
 * random bits under scales that give the matrix a standard deviation of about 0.02, which keeps logits
 * finite; vectors (norm weights) lie within 0.1 of 1, or of what their rule's flags say. */
#include "convert_impl.h"

#include <endian.h>
#include <omp.h>
#include <string.h>

#define SD 0.02

/* splitmix64's finaliser (Steele, Lea, Flood 2014): all bits of x reach all bits of the result. */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t key_of(uint64_t seed, const char *name)
{
    uint64_t h = mix(seed);
    for (; *name; name++) h = mix(h ^ (uint8_t)*name);
    return h;
}

/* Uniform in [-1, 1) from 24 bits: exact in float. */
static float uniform(uint64_t bits)
{
    return (float)((int32_t)(bits >> 40) - (1 << 23)) * 0x1p-23f;
}

static void put16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static void fill_bits(uint8_t *p, int n, uint64_t key)
{
    for (int i = 0; i < n; i += 8) {
        uint64_t v = htole64(mix(key + (uint64_t)(i / 8)));
        memcpy(p + i, &v, (size_t)(n - i < 8 ? n - i : 8));
    }
}

/* 0.75 to 1.25: blocks differ in size, as trained ones do. */
static float wobble(uint64_t bits)
{
    return 1.0f + 0.25f * uniform(bits);
}

/* Each two bits of r alike: the top of a scale of 6 bits, 00 or 11, so that less 32 it is of either sign and
 * 16 to 32. */
static uint8_t alike(uint64_t r)
{
    return (uint8_t)((r & 0x55) * 3);
}

/* The types of the small mixes. Root mean squares of uniform codes: the table of IQ4 67.4, -4..3 2.35; of
 * scales (alike) 24.4, 8..15 11.7; of blocks with grids, d = 1, in the switch. */
static void random_low_block(uint32_t type, uint8_t *p, uint64_t key, float w)
{
    const uint64_t r = mix(key + 62);
    switch (type) {
    case KN_IQ4_NL: /* the table's mean is not 0: either sign */
        put16(p, kn_f32_to_f16((float)(SD / 67.4) * (r & 1 ? w : -w)));
        fill_bits(p + 2, 16, key);
        break;
    case KN_IQ4_XS:
        put16(p, kn_f32_to_f16((float)(SD / (67.4 * 24.4)) * w));
        p[2] = alike(r);
        p[3] = alike(r >> 8);
        fill_bits(p + 4, 132, key);
        break;
    case KN_Q3_K: /* high bits 32, low bits 64, scales 8 and 4, d */
        fill_bits(p, 104, key);
        for (int j = 0; j < 4; j++) p[104 + j] = alike(r >> 8 * j);
        put16(p + 108, kn_f32_to_f16((float)(SD / (2.35 * 24.4)) * w));
        break;
    case KN_IQ2_XXS:
    case KN_IQ2_XS:
    case KN_IQ2_S:
    case KN_IQ3_XXS:
    case KN_IQ3_S:
    case KN_IQ1_S: {
        const double rms = type == KN_IQ2_XXS  ? 53.2
                           : type == KN_IQ2_XS ? 55.8
                           : type == KN_IQ2_S  ? 56.6
                           : type == KN_IQ1_S  ? 7.2
                                               : 141;
        fill_bits(p + 2, (int)kn_type_info(type)->bytes - 2, key);
        put16(p, kn_f32_to_f16((float)(SD / rms) * w));
        break;
    }
    case KN_IQ1_M: { /* d in the upper 4 bits of four words, the lowest first */
        const uint16_t d = kn_f32_to_f16((float)(SD / 7.2) * w);
        fill_bits(p, 56, key);
        for (int j = 0; j < 4; j++) p[49 + 2 * j] = (uint8_t)((p[49 + 2 * j] & 15) | (d >> 4 * j & 15) << 4);
        break;
    }
    case KN_MXFP4: /* of codes 5.84; a mean square between those of two powers of two */
        fill_bits(p + 1, 16, key);
        p[0] = (uint8_t)(128 - ((r & 255) < 177 ? 8 : 9));
        break;
    case KN_Q2_K: { /* min = scale, dmin = d * the mean code: centred on 0; deviation of 0..3 1.12 */
        const float d = (float)(SD / (11.7 * 1.12)) * w;
        fill_bits(p + 16, 64, key);
        for (int j = 0; j < 16; j++) p[j] = (uint8_t)((8 + (r >> 3 * j & 7)) * 0x11);
        put16(p + 80, kn_f32_to_f16(d));
        put16(p + 82, kn_f32_to_f16(1.5f * d));
        break;
    }
    default: break;
    }
}

/* One block of type at p. key: of this block, with room for 64 draws. Deviations of uniform codes:
 * 0..15 4.61, 0..31 9.23, 0..63 18.5, -127..127 73.3. */
static void random_block(uint32_t type, uint8_t *p, uint64_t key)
{
    float w = wobble(mix(key + 63));
    switch (type) {
    case KN_Q8_0:
        put16(p, kn_f32_to_f16((float)(SD / 73.9) * w));
        fill_bits(p + 2, 32, key);
        for (int j = 2; j < 34; j++) /* no encoder writes -128, and kernels may count on that */
            p[j] = p[j] == 0x80 ? 0x81 : p[j];
        break;
    case KN_Q5_0:
        put16(p, kn_f32_to_f16((float)(SD / 9.23) * w));
        fill_bits(p + 2, 20, key);
        break;
    case KN_Q4_0: /* codes -8 to 7: either sign, or the mean is a ninth of the deviation */
        put16(p, kn_f32_to_f16((float)(SD / 4.61) * (mix(key + 62) & 1 ? w : -w)));
        fill_bits(p + 2, 16, key);
        break;
    case KN_Q4_1: /* the least value of the block: half the codes below 0 */
        put16(p, kn_f32_to_f16((float)(SD / 4.61) * w));
        put16(p + 2, kn_f32_to_f16((float)(SD / 4.61) * w * -7.5f));
        fill_bits(p + 4, 16, key);
        break;
    case KN_Q5_1:
        put16(p, kn_f32_to_f16((float)(SD / 9.23) * w));
        put16(p + 2, kn_f32_to_f16((float)(SD / 9.23) * w * -15.5f));
        fill_bits(p + 4, 20, key);
        break;
    case KN_Q4_K:
    case KN_Q5_K: { /* min m = scale sc, dmin = d * the mean code: centred on 0. sc in 32..63, mean 47.5 */
        float top = type == KN_Q4_K ? 15 : 31, dev = type == KN_Q4_K ? 4.61f : 9.23f;
        float d = (float)SD / (48.4f * dev) * w;
        uint8_t low[4], high[4];
        put16(p, kn_f32_to_f16(d));
        put16(p + 2, kn_f32_to_f16(d * top / 2));
        uint64_t r = mix(key + 62);
        for (int j = 0; j < 4; j++) {
            low[j] = (uint8_t)(32 + ((r >> (8 * j)) & 31)); /* sub-blocks 0..3: the byte's low 6 bits */
            high[j] = (uint8_t)(32 + ((r >> (8 * j + 32)) &
                                      31)); /* sub-blocks 4..7: 4 bits below, 2 bits on top of low */
            p[4 + j] = (uint8_t)(low[j] | ((high[j] >> 4) << 6));
            p[8 + j] = p[4 + j];
            p[12 + j] = (uint8_t)((high[j] & 15) | ((high[j] & 15) << 4));
        }
        fill_bits(p + 16, type == KN_Q4_K ? 128 : 160, key);
        break;
    }
    case KN_Q6_K: { /* ql 128, qh 64, scales of either sign, 64..127, d last */
        fill_bits(p, 192, key);
        uint64_t a = mix(key + 60), b = mix(key + 61);
        for (int j = 0; j < 16; j++) {
            uint64_t r = (j < 8 ? a : b) >> (8 * (j & 7));
            int sc = 64 + (int)(r & 63);
            p[192 + j] = (uint8_t)(int8_t)(r & 64 ? -sc : sc);
        }
        put16(p + 208, kn_f32_to_f16((float)(SD / (97.2 * 18.5)) * w));
        break;
    }
    default: random_low_block(type, p, key, w); break;
    }
}

static float random_value(const struct conv_tensor *t, uint64_t key, uint64_t i)
{
    float u = uniform(mix(key + i));
    if (t->n_dims > 1) return (float)(SD * 1.7320508) * u;
    if (t->rule->flags & CONV_NEG_EXP) return -0.55f + 0.45f * u; /* a decay: below 0 */
    return t->rule->flags & CONV_AROUND_0 ? 0.1f * u : 1.0f + 0.1f * u;
}

static void random_row(const struct conv_tensor *t, uint64_t key, int64_t row, uint8_t *dst)
{
    uint64_t first = (uint64_t)row * (uint64_t)t->ne[0];
    const struct kn_type_info *info = kn_type_info(t->to);
    if (info->block > 1) {
        uint64_t n = (uint64_t)t->ne[0] / info->block, b0 = first / info->block;
        for (uint64_t b = 0; b < n; b++) random_block(t->to, dst + b * info->bytes, key + 64 * (b0 + b));
        return;
    }
    for (int64_t i = 0; i < t->ne[0]; i++) {
        float v = random_value(t, key, first + (uint64_t)i);
        if (t->to == KN_F32)
            memcpy(dst + 4 * i, &v, 4);
        else
            put16(dst + 2 * i, t->to == KN_F16 ? kn_f32_to_f16(v) : kn_f32_to_bf16(v));
    }
}

int conv_random_rows(uint64_t seed, const struct conv_tensor *t, int64_t row0, int64_t n_rows, void *dst,
                     int threads, struct err *e)
{
    switch (t->to) {
    case KN_F32:
    case KN_F16:
    case KN_BF16:
    case KN_Q8_0:
    case KN_Q5_0:
    case KN_Q5_1:
    case KN_Q4_0:
    case KN_Q4_1:
    case KN_Q4_K:
    case KN_Q5_K:
    case KN_Q6_K:
    case KN_IQ4_NL:
    case KN_IQ4_XS:
    case KN_Q3_K:
    case KN_Q2_K:
    case KN_IQ2_XXS:
    case KN_IQ2_XS:
    case KN_IQ2_S:
    case KN_IQ3_XXS:
    case KN_IQ3_S:
    case KN_IQ1_S:
    case KN_IQ1_M:
    case KN_MXFP4: break;
    default:
        return err_set(e, ERR_FORMAT, "%s: no random weights of type %s", t->name, kn_type_info(t->to)->name);
    }
    uint64_t key = key_of(seed, t->name);
    size_t bytes = kn_row_bytes(t->to, t->ne[0]);
    /* Blocks take about 0.3 ns a byte, ten times faster than a disk: a team would cost more than it saves. */
    int team = kn_type_info(t->to)->block > 1 ? 1 : threads > 0 ? threads : omp_get_max_threads();
    io_team_begin();
#pragma omp parallel for schedule(static) num_threads(team) if (team > 1 && n_rows > 1)
    for (int64_t r = 0; r < n_rows; r++) random_row(t, key, row0 + r, (uint8_t *)dst + (size_t)r * bytes);
    io_team_end();
    return 0;
}
