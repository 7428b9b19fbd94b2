/* test_layout.cc - the streaming layout of weights on CUDA, checked on the host: every type's rows are packed
 * as pack.cu packs them (pack.cuh), taken apart as products of many rows take them (unpack.cuh), and compared
 * with kn_decode_row. Needs no GPU. Every value has the codec's bits, padding is zero, and every value is
 * given once. */
#include "../../kernels/cuda/mm.cuh"
#include "../../kernels/cuda/unpack.cuh"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

static uint64_t state = 1;
static uint32_t rnd()
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(state >> 32);
}

struct found {
    float *at; /* row lane / 4, at the unit's first column */
    int64_t high, *count;
    void operator()(int hi, int column, const float v[4]) const
    {
        memcpy(at + (hi ? high : 0) + column, v, 16);
        *count += 4;
    }
};

/* The scales of a block: ordinary numbers, where random bits would give Inf and NaN. */
static void set_scales(const struct kn_type_info *t, uint8_t *b)
{
    const int at = t->type == KN_Q6_K ? 208 : 0;
    const bool two = t->type == KN_Q4_K || t->type == KN_Q5_K || t->type == KN_Q4_1 || t->type == KN_Q5_1;
    for (int i = 0; i < (two ? 2 : 1); i++) {
        const uint16_t h = kn_f32_to_f16((float)((int32_t)rnd() * 0x1p-33));
        memcpy(b + at + 2 * i, &h, 2);
    }
}

template <uint32_t T> static bool check(int64_t n_in, int32_t rows)
{
    const struct kn_type_info *t = kn_type_info(T);
    const mm_type *m = mm_type_of(T);
    const size_t row_bytes = kn_row_bytes(T, n_in);
    const int64_t panel_bytes = mm_panel_bytes(m, n_in), units = panel_bytes / m->unit_bytes,
                  ld = units * m->unit_k;
    std::vector<uint8_t> file(row_bytes * (size_t)rows), unit((size_t)m->unit_bytes);
    for (uint8_t &b : file) b = (uint8_t)rnd();
    if (t->block == 1) /* floats: numbers of ordinary size */
        for (size_t i = 0; i < file.size(); i += t->bytes) {
            const float f = (float)((int32_t)rnd() * 0x1p-31);
            const uint16_t h = T == KN_F16 ? kn_f32_to_f16(f) : kn_f32_to_bf16(f);
            memcpy(file.data() + i, T == KN_F32 ? (const void *)&f : &h, t->bytes);
        }
    else
        for (size_t i = 0; i < file.size(); i += t->bytes) set_scales(t, file.data() + i);
    int64_t count = 0, wrong = 0;
    double worst = 0;
    for (int32_t first = 0; first < rows; first += 16) {
        const mm_source source = {
            file.data() + (size_t)first * row_bytes, row_bytes, rows - first, n_in, T, (int32_t)t->bytes};
        std::vector<float> got((size_t)(16 * ld), NAN), want((size_t)n_in);
        for (int64_t u = 0; u < units; u++) {
            for (int i = 0; i < m->unit_bytes / 4; i++) {
                const uint32_t w = mm_word(source, u, i);
                memcpy(unit.data() + 4 * i, &w, 4);
            }
            for (int lane = 0; lane < 32; lane++)
                unpack_unit<T>(unit.data(), lane,
                               found{&got[(size_t)(lane / 4 * ld + u * m->unit_k)], 8 * ld, &count});
        }
        for (int r = 0; r < 16; r++) {
            if (first + r < rows &&
                kn_decode_row(T, file.data() + (size_t)(first + r) * row_bytes, want.data(), n_in))
                return false;
            for (int64_t k = 0; k < ld; k++) {
                const float have = got[(size_t)(r * ld + k)];
                const float y = first + r < rows && k < n_in ? want[(size_t)k] : 0.0f;
                const double off = std::fabs((double)have - y);
                wrong += !(off <= 0);
                if (!(off <= worst)) worst = off;
            }
        }
    }
    const bool ok = !wrong && count == (rows + 15) / 16 * 16 * ld;
    printf("%s layout/%s [%d, %lld]: %lld values, %lld wrong, largest difference %.2g\n",
           ok ? "ok  " : "FAIL", t->name, rows, (long long)n_in, (long long)count, (long long)wrong, worst);
    return ok;
}

template <uint32_t T> static int both()
{
    const int64_t block = kn_type_info(T)->block;
    int failed = !check<T>(block == 1 ? 77 : 3 * block, 21);
    return failed + !check<T>(block == 1 ? 1 : block, 1);
}

int main()
{
    const int failed = both<KN_F32>() + both<KN_F16>() + both<KN_BF16>() + both<KN_Q8_0>() + both<KN_Q4_0>() +
                       both<KN_Q4_1>() + both<KN_Q5_0>() + both<KN_Q5_1>() + both<KN_Q4_K>() +
                       both<KN_Q5_K>() + both<KN_Q6_K>();
    printf("test_layout: %d failed\n", failed);
    return failed != 0;
}
