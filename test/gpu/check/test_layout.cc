/* test_layout.cc - the streaming layout of weights on CUDA, checked on the host: every type's rows are packed
 * as pack.cu packs them (pack.cuh), taken apart as products of many rows take them (unpack.cuh), and compared
 * with kn_decode_row. Needs no GPU. Every value has the codec's bits, padding is zero, and every value is
 * given once. And the sorting of rows' experts into tiles (experts.cuh), its steps run one after another for
 * all threads as the blocks of a launch run them between barriers. And that planners know which kernels there
 * are. */
#include "../../../kernels/cuda/chain/grid_words.cuh"
#include "../../../kernels/cuda/experts/experts.cuh"
#include "../../../kernels/cuda/product/unpack.cuh"
#include "../../block_scales.h"

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

template <uint32_t T> static bool check(int64_t n_in, int32_t rows)
{
    const struct kn_type_info *t = kn_type_info(T);
    const mm_type *m = product_type_of(T);
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
        for (size_t i = 0; i < file.size(); i += t->bytes)
            block_set_scales(T, file.data() + i, (float)((int32_t)rnd() * 0x1p-33),
                             (float)((int32_t)rnd() * 0x1p-33));
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

/* A type with a grid as a chain takes it apart (chain/grid_words.cuh) is what products of more rows take:
 * codes; scales of 32 columns, or 16, two a lane; d. first, log: where it stands in
 * the table. */
template <uint32_t T> static int words_of(uint32_t first, uint32_t log)
{
    using unit = grid_unit<T>;
    const struct kn_type_info *t = kn_type_info(T);
    const mm_type *m = product_type_of(T);
    const grid_slot slot = {first, log};
    std::vector<uint8_t> file(16 * t->bytes), st((size_t)m->unit_bytes), table(2 * CHAIN_GRID_PAGE, 0xee);
    for (uint8_t &b : file) b = (uint8_t)rnd();
    const mm_source source = {file.data(), t->bytes, 16, 256, T, (int32_t)t->bytes};
    for (int i = 0; i < m->unit_bytes / 4; i++) {
        const uint32_t w = mm_word(source, 0, i);
        memcpy(st.data() + 4 * i, &w, 4);
    }
    for (uint32_t i = 0; i < (uint32_t)grid_count<T>; i++)
        for (uint32_t c = 0; c < grid_block<T>(slot) / 4; c++) {
            const uint32_t w = grid_word<T>(grid_all(), i);
            memcpy(table.data() + grid_word_at<T>(i, c, slot), &w, 4);
        }
    int wrong = 0;
    for (int lane = 0; lane < 32; lane++) {
        const int g = lane / 4, q = lane % 4;
        unit want, next; /* next: of lane ^ 1 */
        grid_words<T> got;
        want.open(st.data(), lane, grid_all()), next.open(st.data(), lane ^ 1, grid_all());
        got.open(st.data(), lane, table.data(), slot, grid_none());
        for (int j = 0; j < 8; j++) {
            uint32_t a[4], n[4], b[4];
            want.step(j, a), next.step(j, n), got.step(j, b);
            for (int i = 0; i < 4; i++) {
                /* Of eight values the lane has a whole point, its own four and lane ^ 1's. */
                const bool own = unit::four || i / 2 == lane % 2;
                wrong += b[i] != (own ? a : n)[unit::four ? i : 2 * (lane % 2) + i % 2];
            }
        }
        for (int hi = 0; hi < 2; hi++) {
            wrong += (want.d_of(hi) & 0xffff) != (got.d_of(st.data(), g, hi) & 0xffff);
            for (int part = 0; part < (unit::halves ? 2 : 1); part++) {
                int v[2];
                got.scales(v, st.data(), g + 8 * hi, q, part);
                for (int k = 0; k < 2; k++)
                    wrong += 2 * v[k] + 1 != (unit::halves ? want.scale_of(4 * part + q, k, hi)
                                                           : want.scale_of(2 * q + k, 0, hi));
            }
        }
    }
    printf("%s words/%s, from %u, %u copies: %d wrong\n", wrong ? "FAIL" : "ok  ", t->name, first,
           grid_block<T>(slot) / 4, wrong);
    return wrong != 0;
}
template <uint32_t T> static int words()
{
    if (!chain_grid_lines(T))
        return words_of<T>(0, 0) + words_of<T>(CHAIN_GRID_PAGE, 1) + words_of<T>(4096, 2);
    if (T == KN_IQ3_S) return words_of<T>(0, 3) + words_of<T>(64, 4) + words_of<T>(0, 6);
    return words_of<T>(0, 3) + words_of<T>(128, 6) + words_of<T>(0, 7);
}

/* Every pair in one tile of its expert, in order, tiles full but an expert's last, as many as are made room
 * for. */
static bool check_tiles(int n_mat, const std::vector<int32_t> &ids, int tile_size, int threads, bool few)
{
    const int pairs = (int)ids.size();
    std::vector<uint8_t> memory(few ? experts_few_bytes(pairs) : experts_sort_bytes(pairs, n_mat), 0xee);
    std::vector<experts_tile> tile((size_t)experts_most_tiles(pairs, n_mat, tile_size) + 1,
                                   experts_tile{7, 7, 7, 7});
    std::vector<uint16_t> order((size_t)pairs, 0xffff);
    int n = 0;
    const uint8_t *end;
    if (few) {
        const experts_few s = experts_few_at(memory.data(), pairs, n_mat, tile_size);
        const int whole = (pairs + 7) / 8 * 8;
        for (int i = whole - 1; i >= 0; i--) experts_few_load(s, ids.data(), i);
        for (int i = 0; i < whole; i++) experts_few_place(s, order.data(), i);
        for (int i = 0; i < whole; i++) experts_few_head(s, i);
        for (int i = 0; i < whole; i++) n += experts_few_tile(s, tile.data(), i);
        end = (uint8_t *)(s.head + whole);
    } else {
        const experts_sort s = experts_sort_at(memory.data(), pairs, n_mat, tile_size);
        for (int i = threads - 1; i >= 0; i--) experts_sort_load(s, ids.data(), i, threads);
        for (int i = 0; i < 32 * EXPERTS_GROUPS; i++) experts_sort_count(s, i / 32, i % 32);
        for (int i = 0; i < threads; i++) experts_sort_total(s, i, threads);
        for (int lane = 0; lane < 32; lane++) experts_sort_sums(s, lane);
        for (int lane = 0; lane < 32; lane++) n = experts_sort_tiles(s, tile.data(), lane);
        for (int i = 32 * EXPERTS_GROUPS - 1; i >= 0; i--)
            experts_sort_place(s, order.data(), i / 32, i % 32);
        end = (uint8_t *)(s.sums + 64);
    }
    bool ok = (size_t)n < tile.size() && tile.back().expert == 7 && end <= memory.data() + memory.size();
    int next = 0, last = -1;
    for (int t = 0; t < n && ok; t++) {
        const experts_tile &a = tile[(size_t)t];
        const bool more = t + 1 < n && tile[(size_t)t + 1].expert == a.expert;
        ok = a.first == next && a.count >= 1 && a.count <= tile_size && (!more || a.count == tile_size) &&
             a.expert >= last;
        for (int i = 0; i < a.count && ok; i++) {
            const int p = order[(size_t)(next + i)];
            const int32_t id = p < pairs ? ids[(size_t)p] : -1;
            ok = p < pairs && ((uint32_t)id < (uint32_t)n_mat ? id : n_mat - 1) == a.expert &&
                 (next + i == 0 || a.expert > last || order[(size_t)(next + i - 1)] < p);
            last = a.expert;
        }
        next += a.count;
    }
    ok &= next == pairs;
    printf("%s tiles of %d, %d pairs of %d experts: %d\n", ok ? "ok  " : "FAIL", tile_size, pairs, n_mat, n);
    return ok;
}

static int all_tiles()
{
    static const int cases[][4] = {{1, 1, 8, 256},        {16, 5, 8, 256},        {64, 128, 8, 256},
                                   {128, 256, 16, 256},   {128, 256, 16, 512},    {512, 256, 32, 256},
                                   {16384, 256, 32, 256}, {16384, 1024, 32, 256}, {16384, 1, 32, 256},
                                   {333, 33, 8, 512},     {8, 1000, 8, 512}};
    int failed = 0;
    for (const auto &c : cases)
        for (int how = 0; how < 3;
             how++) { /* mixed; all the same; one beside a few, and one that names no matrix */
            std::vector<int32_t> ids((size_t)c[0]);
            for (size_t i = 0; i < ids.size(); i++)
                ids[i] = how == 1 ? c[1] / 2 : how == 2 && i % 17 ? 0 : (int32_t)(rnd() % (uint32_t)c[1]);
            if (how == 2) ids[0] = -5;
            failed += !check_tiles(c[1], ids, c[2], c[3], false);
            if (c[0] <= 512) failed += !check_tiles(c[1], ids, c[2], c[3], true);
        }
    /* The magic division of pairs by the experts a row. */
    for (uint32_t used = 2; used <= EXPERTS_USED; used++) {
        const uint32_t per = (uint32_t)((0x100000000u + used - 1) / used);
        bool ok = true;
        for (uint32_t p = 0; p < EXPERTS_PAIRS; p++) ok &= (uint32_t)((uint64_t)p * per >> 32) == p / used;
        if (!ok) printf("FAIL pairs of rows of %u experts\n", used);
        failed += !ok;
    }
    return failed;
}

/* The planner's list of what there is code for, against the code. */
static int all_kernels()
{
    int wrong = 0, n = 0;
    for (int act = MM_ACT_K; act <= MM_ACT_F32; act++)
        for (int i = 0; i < 4 * 5 * 2 * 3; i++, n++) {
            const int warps = 4 << i % 4, log2_tiles = i / 4 % 5 - 1;
            const bool generic = i / 20 % 2;
            const int low = i / 40;
            const bool has = mm_has((enum mm_act)act, log2_tiles, warps, generic, low),
                       is = mm_kernel_of((enum mm_act)act, log2_tiles, warps, generic, low) != nullptr;
            if (has == is) continue;
            wrong++;
            printf("FAIL kernels of products: act %d, %d warps, tiles 2^%d, generic %d, low %d: planned %d, "
                   "there %d\n",
                   act, warps, log2_tiles, generic, low, has, is);
        }
    printf("%s   kernels of products as planned, %d\n", wrong ? "FAIL" : "ok", n);
    return wrong;
}

static int all_experts()
{
    int wrong = 0, n = 0;
    for (int act = MM_ACT_K; act <= MM_ACT_F32; act++)
        for (int form = 0; form < EXPERTS_FORMS; form++)
            for (int i = 0; i < 4 * 2; i++, n++) {
                const enum mm_act a = (enum mm_act)act;
                const enum experts_form f = (enum experts_form)form;
                experts_kernel_fn k = experts_kernel_k(a, i / 2, f, i % 2);
                if (!k) k = experts_kernel_32(a, i / 2, f, i % 2);
                if (!k) k = experts_kernel_float(a, i / 2, f, i % 2);
                wrong += experts_has(a, i / 2, f, i % 2) != (k != nullptr);
                if (act == MM_ACT_K)
                    wrong += experts_has(a, i / 2, f, i % 2) !=
                             (experts_kernel_low(a, i / 2, f, i % 2) != nullptr);
                if (act == MM_ACT_K)
                    wrong += experts_has(a, i / 2, f, i % 2) !=
                             (experts_kernel_grid(a, i / 2, f, i % 2) != nullptr);
            }
    printf("%s   kernels of experts as planned, %d\n", wrong ? "FAIL" : "ok", n);
    return wrong;
}

/* attention/attention.cuh, which is for the device's compiler. */
typedef void (*attn_fn)(const struct attn);
attn_fn attn_step_of(int32_t d, int32_t tiles, int32_t resident, uint32_t type, int32_t stages, size_t *smem);
attn_fn attn_near_of(int32_t d, uint32_t type, int32_t blocks, int32_t leaves, size_t *smem);
attn_fn attn_stream_of(int32_t d, uint32_t type, size_t *smem);
attn_fn attn_places_of(int32_t d, uint32_t type, size_t *smem);
attn_fn attn_paths_of(int32_t d, uint32_t type, int32_t n, size_t *smem);
attn_fn attn_columns_of(int32_t d, uint32_t type, size_t *smem);
attn_fn attn_alone_of(int32_t d, uint32_t type, size_t *smem);
attn_fn attn_prefill_of(int32_t d, uint32_t type, int32_t warps, size_t *smem, int32_t *tiles,
                        int32_t *chunks);

static int same_bytes(const char *what, int32_t d, attn_fn f, size_t is, size_t planned)
{
    if (!f) is = 0;
    if (is == planned) return 0;
    printf("FAIL attention %s, heads of %d: planned %zu bytes of shared memory, %zu are wanted\n", what, d,
           planned, is);
    return 1;
}
/* The shared memory that attention's kernels want, as planned. */
static int all_attention()
{
    int wrong = 0;
    for (int i = 0; i < 2 * ATTN_SIZES; i++) {
        const int32_t d = attn_table[ATTN_STEP].heads[i / 2];
        const uint32_t type = i % 2 ? KN_BF16 : KN_F16;
        size_t s = 0;
        attn_fn f;
        for (int32_t tiles = 1; tiles <= 4; tiles *= 2)
            for (int32_t stages = 2; stages <= 6; stages++)
                for (int32_t resident = 1; resident <= 2; resident++) {
                    f = attn_step_of(d, tiles, resident, type, stages, &s);
                    wrong += same_bytes("step", d, f, s, attn_step_bytes(d, tiles, stages));
                }
        for (int32_t blocks = 8; blocks <= 16; blocks *= 2)
            for (int32_t leaves = 1; leaves <= NEAR_LEAVES; leaves++) {
                f = attn_near_of(d, type, blocks, leaves, &s);
                wrong += same_bytes("clusters", d, f, s, attn_near_bytes(d, blocks, leaves));
            }
        f = attn_stream_of(d, type, &s);
        wrong += same_bytes("stream", d, f, s, attn_stream_bytes(d));
        f = attn_places_of(d, type, &s);
        wrong += same_bytes("places", d, f, s, attn_places_bytes(d));
        for (int32_t n = 1; n <= ATTN_FEW; n += 21) {
            f = attn_paths_of(d, type, n, &s);
            wrong += same_bytes("paths", d, f, s, attn_paths_bytes(d, n));
        }
        f = attn_columns_of(d, type, &s);
        wrong += same_bytes("columns", d, f, s, attn_columns_block_bytes(d));
        f = attn_alone_of(d, type, &s);
        wrong += same_bytes("alone", d, f, s, attn_alone_bytes(d));
        for (int32_t warps = 4; warps <= 8; warps += 4) {
            int32_t a[2], b[2];
            f = attn_prefill_of(d, type, warps, &s, &a[0], &a[1]);
            const size_t planned = attn_prefill_bytes(d, warps, &b[0], &b[1]);
            wrong += same_bytes("prefill", d, f, s, planned) + (a[0] != b[0]) + (a[1] != b[1]);
        }
    }
    printf("%s   shared memory of attention as planned\n", wrong ? "FAIL" : "ok");
    return wrong;
}

int main()
{
    const int failed = both<KN_F32>() + both<KN_F16>() + both<KN_BF16>() + both<KN_Q8_0>() + both<KN_Q4_0>() +
                       both<KN_Q4_1>() + both<KN_Q5_0>() + both<KN_Q5_1>() + both<KN_Q4_K>() +
                       both<KN_Q5_K>() + both<KN_Q6_K>() + both<KN_Q2_K>() + both<KN_Q3_K>() +
                       both<KN_IQ4_NL>() + both<KN_IQ4_XS>() + both<KN_MXFP4>() + both<KN_IQ2_XXS>() +
                       both<KN_IQ2_XS>() + both<KN_IQ2_S>() + both<KN_IQ3_XXS>() + both<KN_IQ3_S>() +
                       both<KN_IQ1_S>() + both<KN_IQ1_M>() + words<KN_IQ2_XXS>() + words<KN_IQ2_XS>() +
                       words<KN_IQ2_S>() + words<KN_IQ3_XXS>() + words<KN_IQ3_S>() + words<KN_IQ1_S>() +
                       words<KN_IQ1_M>() + all_tiles() + all_kernels() + all_experts() + all_attention();
    printf("test_layout: %d failed\n", failed);
    return failed != 0;
}
