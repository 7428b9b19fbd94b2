/* mm_gpu_layout.cu - decode the units on the host as the kernels do, and compare with kn_decode_row. */
#include "../mm_gpu.cuh"

static double f16(uint32_t h)
{
    return kn_f16_to_f32((uint16_t)h);
}
/* Value of the weight that lane `lane` holds in register r, half h of step s of 32-group j of a unit. */
static double unit_value(uint32_t type, const uint8_t *u, int lane, int j, int s, int r, int h)
{
    auto word = [&](int at) {
        uint32_t w;
        memcpy(&w, u + at, 4);
        return w;
    };
    auto u16 = [&](int at) { return word(at & ~3) >> (at & 2) * 8 & 0xffff; };
    const int g = lane / 4, hi = r & 1, rp = r >> 1;
    const int row = g + 8 * hi;
    if (type == KN_F32) {
        float f;
        const uint32_t w = word(1024 * s + 512 * rp + 16 * lane + 4 * (2 * hi + h));
        memcpy(&f, &w, 4);
        return f;
    }
    if (type == KN_F16 || type == KN_BF16) {
        const uint16_t v = (uint16_t)(word(512 * s + 16 * lane + 4 * r) >> 16 * h);
        return type == KN_F16 ? kn_f16_to_f32(v) : kn_bf16_to_f32(v);
    }
    if (type == KN_Q8_0) {
        const int b = (int8_t)(word(16 * lane + 4 * (2 * s + hi)) >> 8 * (2 * h + rp));
        return b * f16(u16(512 + 4 * g + 2 * hi));
    }
    if (type == KN_Q4_0 || type == KN_Q4_1 || type == KN_Q5_0 || type == KN_Q5_1) {
        const bool five = type == KN_Q5_0 || type == KN_Q5_1, min = type == KN_Q4_1 || type == KN_Q5_1;
        int q = word(8 * lane + 4 * s) >> (4 * r + 16 * h) & 15;
        if (five) q |= (u16(256 + 2 * lane) >> (2 * s + rp + 4 * hi + 8 * h) & 1) << 4;
        const int at = five ? 320 : 256;
        if (!min) return (q - (five ? 16 : 8)) * f16(u16(at + 4 * g + 2 * hi));
        return q * f16(u16(at + 8 * g + 2 * hi)) + f16(u16(at + 8 * g + 4 + 2 * hi));
    }
    if (type == KN_Q2_K || type == KN_Q3_K) {
        const bool three = type == KN_Q3_K;
        const int bit = 2 * s + 8 * rp + 4 * hi + 16 * h, sub = 2 * j + s;
        int c = word(512 * (j / 4) + 16 * lane + 4 * (j % 4)) >> bit & 3;
        if (!three) {
            const int m = u[1024 + 16 * row + sub];
            return f16(u16(1280 + 8 * g + 2 * hi)) * (m & 15) * c -
                   f16(u16(1284 + 8 * g + 2 * hi)) * (m >> 4);
        }
        c |= (word(1024 + 16 * lane + 4 * (j / 2)) >> (bit + j % 2) & 1) << 2;
        const uint8_t *p = u + 1536 + 12 * row;
        const int sc = (p[sub % 8] >> 4 * (sub / 8) & 15) | (p[8 + sub % 4] >> 2 * (sub / 4) & 3) << 4;
        return f16(u16(1728 + 4 * g + 2 * hi)) * (sc - 32) * (c - 4);
    }
    if (type == KN_IQ4_NL)
        return f16(u16(256 + 4 * g + 2 * hi)) *
               mm_iq4(word(8 * lane + 4 * s) >> (4 * rp + 8 * h + 16 * hi) & 15);
    int q = word(512 * (j / 2) + 16 * lane + 4 * (2 * (j % 2) + s)) >> (4 * r + 16 * h) & 15;
    if (type == KN_IQ4_XS) {
        const uint8_t *p = u + 2048 + 8 * row;
        const int sc = (p[4 + j / 2] >> 4 * (j % 2) & 15) | ((p[2] | p[3] << 8) >> 2 * j & 3) << 4;
        q = word(512 * (j / 2) + 16 * lane + 4 * (2 * (j % 2) + s)) >> (4 * rp + 8 * h + 16 * hi) & 15;
        return f16(p[0] | p[1] << 8) * (sc - 32) * mm_iq4((uint32_t)q);
    }
    if (type == KN_Q6_K) {
        q |= (word(2048 + 512 * (j / 4) + 16 * lane + 4 * (j % 4)) >> (2 * s + 8 * rp + 4 * hi + 16 * h) & 3)
             << 4;
        const int sc = (int)u[3072 + 16 * row + 2 * j + s] - 128;
        return (float)(f16(u16(3328 + 4 * g + 2 * hi)) * sc) * (q - 32);
    }
    if (type == KN_Q5_K)
        q |= (word(2048 + 16 * lane + 4 * (j / 2)) >> (j % 2 + 2 * s + 8 * rp + 4 * hi + 16 * h) & 1) << 4;
    const uint8_t *rec = u + (type == KN_Q5_K ? 2560 : 2048) + 16 * row, *p = rec + 4;
    const int sc = j < 4 ? p[j] & 63 : (p[j + 4] & 15) | p[j - 4] >> 6 << 4,
              m = j < 4 ? p[j + 4] & 63 : p[j + 4] >> 4 | p[j] >> 6 << 4;
    return f16(u16((int)(rec - u))) * sc * q - f16(u16((int)(rec - u) + 2)) * m;
}

void check_layout()
{
    for (uint32_t type : all_types) {
        if (grid_has(type) || type == KN_MXFP4) continue; /* test_layout.cc has them */
        const struct kn_type_info *info = kn_type_info(type);
        const mm_type *t = product_type_of(type);
        const int64_t n_in = info->block == 1 ? 77 : info->block * 3, rows = 21;
        std::vector<uint8_t> w = random_weight(type, n_in, rows);
        const size_t row_bytes = kn_row_bytes(type, n_in);
        int bad = 0;
        for (int panel = 0; panel < 2; panel++)
            for (int64_t unit = 0; unit < (n_in + t->unit_k - 1) / t->unit_k; unit++) {
                std::vector<uint8_t> u((size_t)t->unit_bytes);
                const mm_source m = {w.data() + panel * 16 * row_bytes,
                                     row_bytes,
                                     (int32_t)(rows - 16 * panel),
                                     n_in,
                                     type,
                                     (int32_t)info->bytes};
                for (int i = 0; i < t->unit_bytes / 4; i++) {
                    const uint32_t v = mm_word(m, unit, i);
                    memcpy(u.data() + 4 * i, &v, 4);
                }
                for (int j = 0; j < t->unit_k / 32; j++)
                    for (int lane = 0; lane < 32; lane++)
                        for (int e = 0; e < 16; e++) {
                            const int s = e / 8, r = e / 2 % 4, h = e % 2, row = mm_row(lane, r) + 16 * panel;
                            const int64_t k = unit * t->unit_k + 32 * j + mm_col(lane, s, r, h);
                            float want = 0;
                            if (row < rows && k < n_in) {
                                std::vector<float> y((size_t)n_in);
                                kn_decode_row(type, w.data() + row * row_bytes, y.data(), n_in);
                                want = y[k];
                            }
                            const double got = unit_value(type, u.data(), lane, j, s, r, h);
                            if (!(std::fabs(got - want) <= 1e-6 * (1e-3 + std::fabs(want))) && bad++ < 3)
                                printf("  %s row %d k %lld: %g, expected %g\n", info->name, row, (long long)k,
                                       got, want);
                        }
            }
        printf("%s layout %s\n", bad ? "FAIL" : "ok  ", info->name);
        failures += bad != 0;
    }
}
