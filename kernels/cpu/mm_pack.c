/* mm_pack.c - weights from the file's layout into panels, at load.
 *
 * A panel interleaves the codes of `lanes` rows so that a kernel's vector is [lanes][4 consecutive k]. Apart
 * from rows filled up to whole panels it takes the bytes of the file, not one more: f16 scales stay f16,
 * 6-bit scales 6-bit. */
#include "../blocks/blocks.h"
#include "mm.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const struct mm_type mm_types[MM_TYPES] = {
    {KN_F32, MM_ACT_F32, 2, 8},         {KN_F16, MM_ACT_F32, 2, 4},         {KN_BF16, MM_ACT_F32, 2, 4},
    {KN_Q8_0, MM_ACT_Q32, 32, 34},      {KN_Q4_0, MM_ACT_Q32, 32, 18},      {KN_Q5_0, MM_ACT_Q32, 32, 22},
    {KN_Q4_1, MM_ACT_Q32, 32, 20},      {KN_Q5_1, MM_ACT_Q32, 32, 24},      {KN_Q4_K, MM_ACT_Q256, 256, 144},
    {KN_Q5_K, MM_ACT_Q256, 256, 176},   {KN_Q6_K, MM_ACT_Q256, 256, 210},   {KN_IQ4_NL, MM_ACT_Q32, 32, 18},
    {KN_IQ4_XS, MM_ACT_Q256, 256, 136}, {KN_Q2_K, MM_ACT_Q256, 256, 84},    {KN_Q3_K, MM_ACT_Q256, 256, 110},
    {KN_MXFP4, MM_ACT_Q32, 32, 17},     {KN_IQ2_XXS, MM_ACT_Q256, 256, 66}, {KN_IQ2_XS, MM_ACT_Q256, 256, 74},
    {KN_IQ2_S, MM_ACT_Q256, 256, 82},   {KN_IQ3_XXS, MM_ACT_Q256, 256, 98}, {KN_IQ3_S, MM_ACT_Q256, 256, 110},
    {KN_IQ1_S, MM_ACT_Q256, 256, 50},   {KN_IQ1_M, MM_ACT_Q256, 256, 56},
};

int mm_type_index(uint32_t type)
{
    for (int i = 0; i < MM_TYPES; i++)
        if (mm_types[i].type == type) return i;
    return -1;
}

const struct mm_type *mm_type_of(uint32_t type)
{
    const int i = mm_type_index(type);
    return i < 0 ? NULL : &mm_types[i];
}

size_t mm_panel_bytes(const struct mm_type *t, int64_t n_in, int lanes)
{
    const size_t blocks = (size_t)(n_in + t->block - 1) / (size_t)t->block;
    return (blocks * (size_t)t->lane_bytes * (size_t)lanes + 63) & ~(size_t)63;
}

/* ---- one block of one row: lane l of a block at dst ---- */

static void put_word(uint8_t *dst, int vector, int lanes, int lane, uint32_t w)
{
    memcpy(dst + ((size_t)vector * (size_t)lanes + (size_t)lane) * 4, &w, 4);
}

static uint32_t get_word(const uint8_t *p)
{
    uint32_t w;
    memcpy(&w, p, 4);
    return w;
}

/* 32 codes as nibbles: word g holds group g low and group g + 4 high. Returns the fifth bits: bit g of each
 * byte is group g's. */
static uint32_t put_nibbles(uint8_t *dst, int vector, int lanes, int lane, const uint8_t *code)
{
    uint32_t fifth = 0;
    for (int g = 0; g < 8; g++) fifth |= (get_word(code + 4 * g) >> 4 & 0x01010101u) << g;
    for (int g = 0; g < 4; g++) {
        const uint32_t low = get_word(code + 4 * g), high = get_word(code + 16 + 4 * g);
        put_word(dst, vector + g, lanes, lane, (low & 0x0f0f0f0fu) | (high & 0x0f0f0f0fu) << 4);
    }
    return fifth;
}

/* Codes 0..15 (or 31) of a 32-block: byte j holds j and j + 16. */
static void codes_32(uint8_t code[32], const uint8_t *q, const uint8_t *high)
{
    for (int j = 0; j < 16; j++) {
        code[j] = q[j] & 15;
        code[j + 16] = q[j] >> 4;
    }
    if (!high) return;
    const uint32_t h = get_word(high);
    for (int j = 0; j < 32; j++) code[j] |= (uint8_t)((h >> j & 1) << 4);
}

static void pack_32(uint32_t type, uint8_t *dst, const uint8_t *b, int lanes, int lane)
{
    uint8_t code[32];
    const int has_min = type == KN_Q4_1 || type == KN_Q5_1, five = type == KN_Q5_0 || type == KN_Q5_1;
    if (type == KN_MXFP4) {
        dst[lane] = b[0];
        codes_32(code, b + 1, NULL);
        put_nibbles(dst + lanes, 0, lanes, lane, code);
        return;
    }
    memcpy(dst + 2 * lane, b, 2);
    if (has_min) memcpy(dst + 2 * lanes + 2 * lane, b + 2, 2);
    dst += (has_min ? 4 : 2) * lanes;
    b += has_min ? 4 : 2;
    if (type == KN_Q8_0) {
        for (int g = 0; g < 8; g++) put_word(dst, g, lanes, lane, get_word(b + 4 * g) ^ 0x80808080u);
        return;
    }
    codes_32(code, five ? b + 4 : b, five ? b : NULL);
    const uint32_t fifth = put_nibbles(dst, five, lanes, lane, code);
    if (five) put_word(dst, 0, lanes, lane, fifth);
}

/* The K types' order of codes: sub-blocks 32 apart are a pair, (even, odd) beside each other in the vectors
 * of half of the lanes: the first two of every four (0, low), the others (1, high). */
static int half_of(int lane)
{
    return lane % 4 / 2;
}

/* w << shift into the word of a lane's even or odd sub-block. */
static void put_half(uint8_t *dst, int vector, int lanes, int lane, int odd, uint32_t w, int shift)
{
    uint8_t *at = dst + ((size_t)vector * (size_t)lanes + (size_t)(lane / 4 * 4 + lane % 2 * 2 + odd)) * 4;
    w = get_word(at) | w << shift;
    memcpy(at, &w, 4);
}

/* 8 pairs of 6-bit numbers (low and high half of a word) as three words: pair_6bit of mm_quant.inc.h. */
static void put_pairs(uint8_t *dst, int lanes, int lane, const uint32_t pair[8])
{
    uint32_t w[3];
    for (int i = 0; i < 3; i++) w[i] = pair[2 * i] | pair[2 * i + 1] << 6;
    w[0] |= (pair[6] & 0x000f000fu) << 12;
    w[1] |= (pair[6] & 0x00300030u) << 8 | (pair[7] & 0x00030003u) << 14;
    w[2] |= (pair[7] & 0x003c003cu) << 10;
    for (int i = 0; i < 3; i++) put_word(dst, i, lanes, lane, w[i]);
}

/* Q4_K, Q5_K. The file: d, dmin, 12 bytes of 6-bit scales and minimums, [32 bytes of fifth bits], 128 bytes
 * of nibbles. */
static void pack_45k(int bits, uint8_t *dst, const uint8_t *b, int lanes, int lane)
{
    const uint8_t *high = b + 16, *q = bits == 5 ? b + 48 : b + 16;
    uint32_t pair[8] = {0};
    for (int j = 0; j < 8; j++) {
        unsigned sc, m;
        get_scale_min(b + 4, j, &sc, &m);
        pair[j / 2] |= m << 16 * (j % 2);
        pair[4 + j / 2] |= sc << 16 * (j % 2);
    }
    put_pairs(dst, lanes, lane, pair);
    memcpy(dst + 12 * lanes + 2 * lane, b, 2);
    memcpy(dst + 14 * lanes + 2 * lane, b + 2, 2);
    for (int j = 0; j < 8; j++)
        for (int g = 0; g < 8; g++) {
            const uint32_t low = get_word(q + 32 * (j / 2) + 4 * g) >> 4 * (j % 2) & 0x0f0f0f0fu;
            const int vector = 4 + (j / 2 * 2 + g / 4) * (bits == 5 ? 5 : 4), half = half_of(lane),
                      odd = j % 2;
            put_half(dst, vector + (bits == 5) + g % 4, lanes, lane, odd, low, 4 * half);
            if (bits == 5)
                put_half(dst, vector, lanes, lane, odd, get_word(high + 4 * g) >> j & 0x01010101u,
                         g % 4 + 4 * half);
        }
}

/* Q6_K. The file: 128 bytes of low nibbles, 64 of high bit pairs, 16 int8 scales, d. */
static void pack_6k(uint8_t *dst, const uint8_t *b, int lanes, int lane)
{
    memcpy(dst + 2 * lane, b + 208, 2);
    dst += 2 * lanes;
    for (int s = 0; s < 16; s++) {
        const int i = s / 4 * 2 + s % 2, odd = s / 2 % 2; /* its pair, and which of it */
        dst[(i * lanes + lane) * 2 + odd] = b[192 + s];
        const int half = s / 8, quarter = s / 2 % 4, base = 16 * (s % 2);
        const uint8_t *ql = b + 64 * half + 32 * (quarter % 2) + base, *qh = b + 128 + 32 * half + base;
        uint32_t code[4];
        for (int g = 0; g < 4; g++)
            code[g] = (get_word(ql + 4 * g) >> 4 * (quarter / 2) & 0x0f0f0f0fu) |
                      (get_word(qh + 4 * g) >> 2 * quarter & 0x03030303u) << 4;
        for (int g = 0; g < 3; g++) {
            const int last = 3 * half_of(lane) + g; /* vectors 0 to 2 hold low's last group, 3 to 5 high's */
            put_half(dst, 4 + 6 * i + 2 * g + half_of(lane), lanes, lane, odd, code[g], 0);
            put_half(dst, 4 + 6 * i + last, lanes, lane, odd, code[3] >> 2 * g & 0x03030303u, 6);
        }
    }
}

/* IQ4_XS. The file: d, u16 high bit pairs and 4 bytes of low nibbles of the scales, 128 bytes of nibbles. */
static void pack_iq4_xs(uint8_t *dst, const uint8_t *b, int lanes, int lane)
{
    memcpy(dst + 2 * lane, b, 2);
    memcpy(dst + 2 * lanes + 2 * lane, b + 2, 2);
    put_word(dst, 1, lanes, lane, get_word(b + 4));
    for (int j = 0; j < 8; j++) {
        uint8_t code[32];
        codes_32(code, b + 8 + 16 * j, NULL);
        put_nibbles(dst, 2 + 4 * j, lanes, lane, code);
    }
}

/* The 2-bit codes of sub-block j (0..15) of Q2_K or Q3_K, in a word: group g in bits 2g of each byte. */
static uint32_t two_bits(const uint8_t *qs, int j)
{
    const uint8_t *q = qs + 32 * (j / 8) + 16 * (j % 2);
    uint32_t w = 0;
    for (int g = 0; g < 4; g++) w |= (get_word(q + 4 * g) >> 2 * (j / 2 % 4) & 0x03030303u) << 2 * g;
    return w;
}

/* Q2_K. The file: 16 bytes of scale (low) and minimum (high nibble), 64 bytes of codes, d, dmin. */
static void pack_2k(uint8_t *dst, const uint8_t *b, int lanes, int lane)
{
    memcpy(dst + 2 * lane, b + 80, 2);
    memcpy(dst + 2 * lanes + 2 * lane, b + 82, 2);
    dst += 4 * lanes;
    for (int i = 0; i < 8; i++) memcpy(dst + (i * lanes + lane) * 2, b + 2 * i, 2);
    for (int j = 0; j < 16; j++) put_word(dst, 4 + j, lanes, lane, two_bits(b + 16, j));
}

/* Q3_K. The file: 32 bytes of third bits, 64 of codes, 12 of 6-bit scales, d. */
static void pack_3k(uint8_t *dst, const uint8_t *b, int lanes, int lane)
{
    uint32_t pair[8] = {0};
    for (int j = 0; j < 16; j++) pair[j / 2] |= (uint32_t)get_scale_q3(b + 96, j) << 16 * (j % 2);
    put_pairs(dst, lanes, lane, pair);
    memcpy(dst + 12 * lanes + 2 * lane, b + 108, 2);
    dst += 14 * lanes;
    for (int i = 0; i < 8; i++) {
        uint32_t high = 0;
        for (int g = 0; g < 8; g++) high |= (get_word(b + 4 * g) >> i & 0x01010101u) << g;
        put_word(dst, 3 * i, lanes, lane, two_bits(b + 32, 2 * i));
        put_word(dst, 3 * i + 1, lanes, lane, two_bits(b + 32, 2 * i + 1));
        put_word(dst, 3 * i + 2, lanes, lane, high);
    }
}

/* The types with grids: d, then the block's words as they are (IQ1_M: words alone). */
static void pack_grid(const struct mm_type *t, uint8_t *dst, const uint8_t *b, int lanes, int lane)
{
    const int head = t->type == KN_IQ1_M ? 0 : 2;
    if (head) memcpy(dst + 2 * lane, b, 2);
    dst += head * lanes;
    for (int i = 0; i < (t->lane_bytes - head) / 4; i++)
        put_word(dst, i, lanes, lane, get_word(b + head + 4 * i));
}

static void pack_float(const struct mm_type *t, uint8_t *dst, const uint8_t *row, int64_t n_in, int lanes,
                       int lane)
{
    const size_t size = (size_t)t->lane_bytes / 2;
    for (int64_t k = 0; k < n_in; k++)
        memcpy(dst + ((size_t)k * (size_t)lanes + (size_t)lane) * size, row + (size_t)k * size, size);
}

static void pack_block(const struct mm_type *t, uint8_t *dst, const uint8_t *b, int lanes, int lane)
{
    switch (t->type) {
    case KN_Q2_K: pack_2k(dst, b, lanes, lane); break;
    case KN_Q3_K: pack_3k(dst, b, lanes, lane); break;
    case KN_Q4_K: pack_45k(4, dst, b, lanes, lane); break;
    case KN_Q5_K: pack_45k(5, dst, b, lanes, lane); break;
    case KN_Q6_K: pack_6k(dst, b, lanes, lane); break;
    case KN_IQ4_XS: pack_iq4_xs(dst, b, lanes, lane); break;
    case KN_IQ2_XXS:
    case KN_IQ2_XS:
    case KN_IQ2_S:
    case KN_IQ3_XXS:
    case KN_IQ3_S:
    case KN_IQ1_S:
    case KN_IQ1_M: pack_grid(t, dst, b, lanes, lane); break;
    default: pack_32(t->type, dst, b, lanes, lane); /* IQ4_NL too: where its nibbles lie is as in Q4_0 */
    }
}

/* Pack rows first .. first + lanes of data (file layout, n_out rows; rows past the end are zeros) into dst.
 */
static void pack_panel(const struct mm_type *t, uint8_t *dst, const void *data, int64_t n_in, int64_t n_out,
                       int64_t first, int lanes)
{
    const size_t row_bytes = kn_row_bytes(t->type, n_in);
    const int64_t blocks = n_in / t->block;
    memset(dst, 0, mm_panel_bytes(t, n_in, lanes));
    for (int lane = 0; lane < lanes && first + lane < n_out; lane++) {
        const uint8_t *row = (const uint8_t *)data + (size_t)(first + lane) * row_bytes;
        if (t->act == MM_ACT_F32) {
            pack_float(t, dst, row, n_in, lanes, lane);
            continue;
        }
        const size_t file_block = row_bytes / (size_t)blocks;
        for (int64_t b = 0; b < blocks; b++, row += file_block) {
            uint8_t *block = dst + (size_t)b * (size_t)t->lane_bytes * (size_t)lanes;
            pack_block(t, block, row, lanes, lane);
        }
    }
}

/* ---- load ---- */

/* Packed weights lie one after the other in arenas on huge pages: a step streams all of them, and on 4 KB
 * pages it waits for address translations and the hardware's prefetching stops at every page. An arena goes
 * with its last weight. */
struct mm_arena {
    struct mm_arena *next;
    size_t used, size;
    int live; /* weights in it */
};

#define ARENA_BYTES ((size_t)64 << 20)
#define HUGE_PAGE ((size_t)2 << 20)

static void *panels_alloc(struct cpu_backend *be, size_t bytes)
{
    struct mm_arena *a = be->arena;
    bytes = (bytes + 63) & ~(size_t)63;
    if (!a || a->size - a->used < bytes) {
        const size_t need = bytes + 64 > ARENA_BYTES ? bytes + 64 : ARENA_BYTES;
        const size_t size = (need + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
        void *p = NULL;
        if (posix_memalign(&p, HUGE_PAGE, size)) return NULL;
        madvise(p, size, MADV_HUGEPAGE); /* advice: nothing depends on its success */
        a = p;
        *a = (struct mm_arena){.next = be->arena, .used = 64, .size = size};
        be->arena = a;
    }
    uint8_t *p = (uint8_t *)a + a->used;
    a->used += bytes;
    a->live++;
    return p;
}

static void panels_free(struct cpu_backend *be, const void *p)
{
    for (struct mm_arena **at = &be->arena; *at; at = &(*at)->next) {
        struct mm_arena *a = *at;
        if ((const uint8_t *)p <= (uint8_t *)a || (const uint8_t *)p >= (uint8_t *)a + a->size) continue;
        if (--a->live == 0) {
            *at = a->next;
            free(a);
        }
        return;
    }
}

struct packing {
    const struct mm_type *type;
    uint8_t *packed;
    const void *data;
    size_t panel, file;                     /* bytes a panel, and a matrix of data */
    int64_t n_in, n_out, panels, all, each; /* panels a matrix, of all matrices, an item */
    int lanes;
};

static void pack_item(void *ctx, int64_t item, int thread)
{
    const struct packing *k = ctx;
    (void)thread;
    for (int64_t p = item * k->each; p < k->all && p < (item + 1) * k->each; p++)
        pack_panel(k->type, k->packed + (size_t)p * k->panel,
                   (const uint8_t *)k->data + (size_t)(p / k->panels) * k->file, k->n_in, k->n_out,
                   p % k->panels * k->lanes, k->lanes);
}

/* n_mat matrices of w's type and shape, one after the other. */
static int pack(struct cpu_backend *be, struct kn_weight *w, int32_t n_mat, const void *data)
{
    const struct mm_type *t = mm_type_of(w->type);
    const char *name = kn_type_info(w->type)->name;
    if (!t) return cpu_fail(be, KN_ETYPE, "%s weight: no matrix product for this type", name);
    const int lanes = be->isa->mm->lanes;
    const int64_t panels = (w->n_out + lanes - 1) / lanes;
    if (w->n_in > INT32_MAX ||
        (uint64_t)panels > (SIZE_MAX >> 1) / mm_panel_bytes(t, w->n_in, lanes) / (uint64_t)n_mat)
        return cpu_fail(be, KN_ETYPE, "weight [%lld, %lld] of %s: too large", (long long)w->n_out,
                        (long long)w->n_in, name);
    const size_t panel = mm_panel_bytes(t, w->n_in, lanes), bytes = (size_t)n_mat * (size_t)panels * panel;
    uint8_t *packed = panels_alloc(be, bytes);
    if (!packed)
        return cpu_fail(be, KN_EMEM, "no memory for %zu bytes of a weight [%lld, %lld] of %s", bytes,
                        (long long)w->n_out, (long long)w->n_in, name);
    const int64_t all = panels * n_mat;
    struct packing job = {.type = t,
                          .packed = packed,
                          .data = data,
                          .panel = panel,
                          .file = kn_row_bytes(w->type, w->n_in) * (size_t)w->n_out,
                          .n_in = w->n_in,
                          .n_out = w->n_out,
                          .panels = panels,
                          .all = all,
                          .each = (all + POOL_MAX_ITEMS - 1) / POOL_MAX_ITEMS,
                          .lanes = lanes};
    pool_run(be->pool, (all + job.each - 1) / job.each, pack_item, &job);
    w->packed = packed;
    w->packed_bytes = bytes;
    return 0;
}

int cpu_weight_load(struct kn_backend *kb, struct kn_weight *w, uint32_t type, int64_t n_in, int64_t n_out,
                    const void *data, unsigned use)
{
    struct cpu_backend *be = cpu_of(kb);
    const struct kn_type_info *info = kn_type_info(type);
    *w = (struct kn_weight){.type = type, .n_in = n_in, .n_out = n_out};
    if (!info) return cpu_fail(be, KN_ETYPE, "weight of unknown type number %u", type);
    if (n_in < 1 || n_out < 1 || !data || !(use & (KN_USE_LINEAR | KN_USE_ROWS)))
        return cpu_fail(be, KN_EINVAL, "weight [%lld, %lld] of %s: empty, without data, or without a use",
                        (long long)n_out, (long long)n_in, info->name);
    if (n_in % info->block)
        return cpu_fail(be, KN_ETYPE, "%s weight: rows of %lld elements are not whole blocks of %u",
                        info->name, (long long)n_in, info->block);
    if ((use & KN_USE_ROWS) && !info->can_decode)
        return cpu_fail(be, KN_ETYPE, "%s weight: the type cannot be decoded (rows)", info->name);
    if (use & KN_USE_ROWS) w->rows = data;
    return use & KN_USE_LINEAR ? pack(be, w, 1, data) : 0;
}

int cpu_experts_load(struct kn_backend *kb, struct kn_weight *w, uint32_t type, int64_t n_in, int64_t n_out,
                     int32_t n_mat, const void *data)
{
    struct cpu_backend *be = cpu_of(kb);
    const struct kn_type_info *info = kn_type_info(type);
    *w = (struct kn_weight){.type = type, .n_in = n_in, .n_out = n_out, .n_mat = n_mat};
    if (!info) return cpu_fail(be, KN_ETYPE, "experts_load: unknown type number %u", type);
    if (n_in < 1 || n_out < 1 || n_mat < 1 || !data)
        return cpu_fail(be, KN_EINVAL, "experts_load: [%d, %lld, %lld] of %s: empty or without data", n_mat,
                        (long long)n_out, (long long)n_in, info->name);
    if (!mm_type_of(type))
        return cpu_fail(be, KN_ETYPE, "experts_load: no matrix product for %s", info->name);
    if (n_in % info->block)
        return cpu_fail(be, KN_ETYPE, "experts_load: %s rows of %lld elements are not whole blocks of %u",
                        info->name, (long long)n_in, info->block);
    int rc = pack(be, w, n_mat, data);
    if (!rc) rc = cpu_experts_reserve(be, w);
    if (rc) cpu_weight_free(kb, w);
    return rc;
}

void cpu_weight_free(struct kn_backend *kb, struct kn_weight *w)
{
    if (!w) return;
    if (w->packed) panels_free(cpu_of(kb), w->packed);
    *w = (struct kn_weight){.type = KN_TYPE_NONE};
}
