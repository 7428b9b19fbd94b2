/* convert_data.c - tensor data, a slab of rows at a time, from the source (or the random generator) to the
 * output. */
#include "convert_impl.h"

#include <math.h>
#include <string.h>
#include "../base/mem.h"

/* The type that most of the weights are stored in, where --type does not say: nothing is lost then. */
static enum quant_recipe source_recipe(const struct conv *c)
{
    uint64_t f32 = 0, f16 = 0, bf16 = 0;
    if (!c->st) return QUANT_BF16;
    for (int64_t i = 0; i < c->n_t; i++) {
        if (c->t[i].n_dims < 2 || !c->t[i].src) continue;
        f16 += c->t[i].from == KN_F16;
        bf16 += c->t[i].from == KN_BF16;
        f32 += c->t[i].from == KN_F32;
    }
    if (f32 || (f16 && bf16)) return QUANT_F32;
    return f16 ? QUANT_F16 : QUANT_BF16;
}

int conv_plan_types(struct conv *c, struct err *e, uint32_t *file_type)
{
    enum quant_recipe recipe = c->o->type_given ? c->o->type : source_recipe(c);
    struct quant_model m = {.arch = conv_arch(c),
                            .n_layer = c->n_layer,
                            .n_expert = (int32_t)c->dim[DIM_EXPERTS],
                            .n_head = c->n_head,
                            .n_head_kv = c->n_head_kv};
    struct quant_tensor *q = mem_calloc((size_t)c->n_t, sizeof *q);
    uint32_t *to = mem_calloc((size_t)c->n_t, sizeof *to);
    int ret = -1;
    if (!q || !to) {
        err_set(e, ERR_IO, "out of memory (%lld tensors)", (long long)c->n_t);
        goto done;
    }
    for (int64_t i = 0; i < c->n_t; i++) {
        q[i].name = c->t[i].name;
        q[i].n_dims = c->t[i].n_dims;
        memcpy(q[i].ne, c->t[i].ne, sizeof q[i].ne);
        q[i].from = c->t[i].from;
    }
    if (quant_plan(recipe, &m, q, c->n_t, KN_F32, c->o->override, c->o->n_override, to, e)) goto done;
    for (int64_t i = 0; i < c->n_t; i++) {
        const unsigned flags = c->t[i].rule->flags;
        c->t[i].to = flags & CONV_IDS ? KN_I64 : flags & CONV_ORDER ? KN_I32 : to[i];
    }
    *file_type = quant_recipe_file_type(recipe);
    int64_t first, count = quant_fell_back(recipe, q, c->n_t, &first);
    if (count)
        conv_say(c, CONVERT_NOTE,
                 "%lld tensors have rows that the blocks of %s do not divide and got another type (the "
                 "first: %s, rows of %lld, %s)",
                 (long long)count, quant_recipe_name(recipe), q[first].name, (long long)q[first].ne[0],
                 kn_type_info(to[first])->name);
    count = c->st ? quant_coarse(q, to, c->n_t, &first) : 0;
    if (count)
        conv_say(c, CONVERT_WARN,
                 "%lld tensors are so coarse that they want an importance matrix, which dflash-quantize "
                 "takes (the "
                 "first: %s, %s)",
                 (long long)count, q[first].name, kn_type_info(to[first])->name);
    if (!c->o->type_given)
        conv_say(c, CONVERT_DETAIL, "type: %s (%s)", quant_recipe_name(recipe),
                 c->st ? "as stored" : "of random weights");
    ret = 0;
done:
    mem_free(q);
    mem_free(to);
    return ret;
}

/* Is any of n floats of type (KN_F32, KN_F16, KN_BF16) a NaN or an infinity: all exponent bits set? p is
 * aligned. */
static bool any_bad(uint32_t type, const void *p, int64_t n)
{
    const uint32_t *w = p;
    const uint16_t *h = p;
    const uint16_t mask = type == KN_F16 ? 0x7c00 : 0x7f80;
    int bad = 0;
    if (type == KN_F32) {
#pragma omp simd reduction(| : bad)
        for (int64_t i = 0; i < n; i++) bad |= (w[i] & 0x7f800000u) == 0x7f800000u;
    } else {
#pragma omp simd reduction(| : bad)
        for (int64_t i = 0; i < n; i++) bad |= (h[i] & mask) == mask;
    }
    return bad;
}

/* A copied tensor is looked at as well: a NaN must not travel on in silence. first: index of p's first
 * element. */
static int check_finite(const struct conv *c, const struct conv_tensor *t, const uint8_t *p, int64_t first,
                        int64_t n, struct err *e)
{
    if (!any_bad(t->from, p, n)) return 0;
    int64_t size = t->from == KN_F32 ? 4 : 2, bad = 0;
    while (!any_bad(t->from, p + bad * size, 1)) bad++;
    return err_set(e, ERR_FORMAT, "%s: %s holds a NaN or an infinity (row %lld, element %lld)", c->label,
                   t->src ? t->src->name : t->name, (long long)((first + bad) / t->ne[0]),
                   (long long)((first + bad) % t->ne[0]));
}

struct slab {
    uint8_t *src, *dst;
    int64_t rows;
};

/* ---- the source as the output orders it ---- */

/* Is a run of rows of t a run of rows of its source? */
static bool straight(const struct conv_tensor *t)
{
    const unsigned moved =
        CONV_STACK | CONV_HALF_1 | CONV_HALF_2 | CONV_PLUS_ONE | CONV_NEG_EXP | CONV_ROWS | CONV_COLS;
    return !(t->rule->flags & moved);
}

/* The source of row r of all of t's matrices, and its first element there. */
static const struct st_tensor *source_row(const struct conv *c, const struct conv_tensor *t, int64_t r,
                                          uint64_t *first)
{
    const unsigned flags = t->rule->flags;
    int64_t matrix = r / t->ne[1], row = r % t->ne[1], rows = t->ne[1];
    if (flags & CONV_ROWS) row = c->fam->row(c, t->rule, row);
    if (flags & (CONV_HALF_1 | CONV_HALF_2)) rows *= 2;
    if (flags & CONV_HALF_2) row += t->ne[1];
    if (t->part) {
        *first = (uint64_t)row * (uint64_t)t->ne[0];
        return t->part[matrix];
    }
    *first = (uint64_t)(matrix * rows + row) * (uint64_t)t->ne[0];
    return t->src;
}

static void reorder_columns(const struct conv *c, const struct conv_tensor *t, const uint8_t *from,
                            uint8_t *to, size_t size)
{
    for (int64_t i = 0; i < t->ne[0]; i++)
        memcpy(to + (size_t)i * size, from + (size_t)c->fam->col(c, t->rule, i) * size, size);
}

static void change_values(unsigned flags, float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (flags & CONV_PLUS_ONE) x[i] += 1.0f;
        if (flags & CONV_NEG_EXP) x[i] = (float)-exp((double)x[i]);
    }
}

/* One row of t as float32, or in its own type (native), at dst. row: scratch of a row. */
static int gather_row(const struct conv *c, const struct conv_tensor *t, int64_t r, bool native, uint8_t *dst,
                      uint8_t *row, struct err *e)
{
    uint64_t first;
    const struct st_tensor *s = source_row(c, t, r, &first);
    const unsigned flags = t->rule->flags;
    uint8_t *raw = flags & CONV_COLS ? row : dst;
    size_t size = native ? st_dtype_size(s->dtype) : sizeof(float);
    if (native)
        memcpy(raw, s->data + first * size, (size_t)t->ne[0] * size);
    else if (st_read_f32(s, first, (uint64_t)t->ne[0], (float *)(void *)raw, e))
        return -1;
    if (flags & CONV_COLS) reorder_columns(c, t, raw, dst, size);
    if (flags & (CONV_PLUS_ONE | CONV_NEG_EXP)) change_values(flags, (float *)(void *)dst, t->ne[0]);
    return 0;
}

static int gather(const struct conv *c, const struct conv_tensor *t, int64_t row0, int64_t n, bool native,
                  uint8_t *dst, struct err *e)
{
    size_t bytes = (size_t)t->ne[0] * (native ? st_dtype_size(t->src->dtype) : sizeof(float));
    uint8_t *row = mem_alloc(bytes);
    int rc = row ? 0 : err_set(e, ERR_IO, "out of memory (a row of %s)", t->name);
    for (int64_t i = 0; i < n && !rc; i++)
        rc = gather_row(c, t, row0 + i, native, dst + (size_t)i * bytes, row, e);
    mem_free(row);
    return rc;
}

/* n ids from the first on, as int32. Without a source: 0, 1, 2, ... */
static int read_order(const struct conv *c, const struct conv_tensor *t, int64_t n, int32_t *dst,
                      struct err *e)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t v = i;
        int32_t small;
        if (t->src && t->src->dtype == ST_I64)
            memcpy(&v, t->src->data + 8 * (size_t)i, sizeof v);
        else if (t->src)
            memcpy(&small, t->src->data + 4 * (size_t)i, sizeof small), v = small;
        if (v < 0 || v > INT32_MAX)
            return err_set(e, ERR_FORMAT, "%s: %s: element %lld is no id (got %lld)", c->label, t->name,
                           (long long)i, (long long)v);
        dst[i] = (int32_t)v;
    }
    return 0;
}

/* The ids that a row of differences stands for. */
static void read_ids(const struct conv_tensor *t, int64_t *ids)
{
    for (int64_t i = 0; i < t->ne[0]; i++) {
        int32_t narrow = 0;
        memcpy(t->src->dtype == ST_I64 ? (void *)&ids[i] : (void *)&narrow,
               t->src->data + (size_t)i * st_dtype_size(t->src->dtype), st_dtype_size(t->src->dtype));
        ids[i] = i + (t->src->dtype == ST_I64 ? ids[i] : narrow);
    }
}

/* Every id is in the vocabulary, and none comes twice. */
static int check_ids(const struct conv *c, const struct conv_tensor *t, const int64_t *ids, struct err *e)
{
    const int64_t vocab = c->dim[DIM_VOCAB] ? c->dim[DIM_VOCAB] : c->n_vocab;
    uint8_t *seen = mem_calloc((size_t)vocab + 1, 1);
    if (!seen) return err_set(e, ERR_IO, "out of memory (ids of %s)", t->src->name);
    int rc = 0;
    for (int64_t i = 0; i < t->ne[0] && !rc; i++) {
        if (ids[i] < 0 || ids[i] >= vocab)
            rc = err_set(e, ERR_FORMAT,
                         "%s: %s: row %lld is of a token outside the vocabulary (expected 0 to %lld, got "
                         "%lld)",
                         c->label, t->src->name, (long long)i, (long long)vocab - 1, (long long)ids[i]);
        else if (seen[ids[i]])
            rc = err_set(e, ERR_FORMAT, "%s: %s: row %lld is of a token that has one (got %lld twice)",
                         c->label, t->src->name, (long long)i, (long long)ids[i]);
        else
            seen[ids[i]] = 1;
    }
    mem_free(seen);
    return rc;
}

int conv_read_rows(const struct conv *c, const struct conv_tensor *t, int64_t row0, int64_t n, float *dst,
                   struct err *e)
{
    if (t->made) {
        memcpy(dst, t->made + row0 * t->ne[0], (size_t)n * (size_t)t->ne[0] * sizeof *dst);
        return 0;
    }
    if (t->rule->flags & CONV_ORDER) { /* a vector: in place */
        if (read_order(c, t, t->ne[0], (int32_t *)(void *)dst, e)) return -1;
        for (int64_t i = 0; i < t->ne[0]; i++) {
            int32_t v;
            memcpy(&v, &dst[i], sizeof v);
            dst[i] = (float)v;
        }
        return 0;
    }
    if (t->rule->flags & CONV_IDS) return err_set(e, ERR_FORMAT, "%s: %s holds integers", c->label, t->name);
    return gather(c, t, row0, n, false, (uint8_t *)dst, e);
}

/* Rows row0 .. row0 + n of t, in type t->to, at s->dst. */
static int fill_slab(struct conv *c, const struct conv_tensor *t, int64_t row0, int64_t n, struct slab *s,
                     struct err *e)
{
    const char *name = t->src ? t->src->name : t->name;
    if (t->rule->flags & CONV_ORDER) return read_order(c, t, t->ne[0], (int32_t *)(void *)s->dst, e);
    if (t->rule->flags & CONV_IDS && t->src) {
        read_ids(t, (int64_t *)(void *)s->dst);
        return check_ids(c, t, (const int64_t *)(const void *)s->dst, e);
    }
    if (!t->src && !t->made) return conv_random_rows(c->o->seed, t, row0, n, s->dst, c->o->threads, e);
    bool native = t->src && (t->src->dtype == ST_F32 || t->src->dtype == ST_F16 || t->src->dtype == ST_BF16);
    native = native && !(t->rule->flags & (CONV_PLUS_ONE | CONV_NEG_EXP));
    uint64_t first = (uint64_t)row0 * (uint64_t)t->ne[0], count = (uint64_t)n * (uint64_t)t->ne[0];
    const uint8_t *src = s->src;
    if (t->made) {
        if (conv_read_rows(c, t, row0, n, (float *)(void *)s->src, e)) return -1;
    } else if (!straight(t)) {
        if (gather(c, t, row0, n, native, s->src, e)) return -1;
    } else if (!native) {
        if (st_read_f32(t->src, first, count, (float *)(void *)s->src, e)) return -1;
    } else {
        uint64_t size = st_dtype_size(t->src->dtype);
        src = t->src->data + first * size;
        if ((uintptr_t)src % 64) { /* a file need not align its tensors */
            memcpy(s->src, src, count * size);
            src = s->src;
        }
    }
    if (t->from == t->to && check_finite(c, t, src, (int64_t)first, (int64_t)count, e)) return -1;
    int r = quant_rows(name, t->from, src, t->to, s->dst, t->ne[0], n, row0, c->o->threads, NULL, e);
    return r ? err_prefix(e, "%s", c->label) : 0;
}

/* Rows that have been read need not stay in memory; of a source out of order, once all of it has been. */
static void release(const struct conv_tensor *t, int64_t row, int64_t n, bool last)
{
    if (!t->src) return;
    if (straight(t)) {
        uint64_t row_bytes = (uint64_t)t->ne[0] * st_dtype_size(t->src->dtype);
        io_map_done(t->src->data + (uint64_t)row * row_bytes, (uint64_t)n * row_bytes);
    }
    for (int64_t i = 0; last && t->part && i < t->ne[2]; i++)
        io_map_done(t->part[i]->data, t->part[i]->bytes);
}

static int64_t rows_of(const struct conv_tensor *t)
{
    return t->ne[1] * t->ne[2] * t->ne[3];
}

static uint64_t total_bytes(const struct conv *c)
{
    uint64_t n = 0;
    for (int64_t i = 0; i < c->n_t; i++)
        n += kn_row_bytes(c->t[i].to, c->t[i].ne[0]) * (uint64_t)rows_of(&c->t[i]);
    return n;
}

static int write_tensor(struct conv *c, const struct conv_tensor *t, struct gguf_files *out, uint64_t *done,
                        uint64_t total, struct err *e)
{
    size_t in_row = kn_row_bytes(t->from, t->ne[0]), out_row = kn_row_bytes(t->to, t->ne[0]);
    struct slab s = {.rows = t->rule->flags & CONV_ORDER ? 1 : quant_slab_rows(t->from, t->to, t->ne[0])};
    int ret = -1;
    const int64_t rows = rows_of(t);
    if (s.rows > rows) s.rows = rows;
    s.src = mem_alloc((size_t)s.rows * in_row);
    s.dst = mem_alloc((size_t)s.rows * out_row);
    if (!s.src || !s.dst) {
        err_set(e, ERR_IO, "out of memory (%lld rows of %s)", (long long)s.rows, t->name);
        goto out;
    }
    for (int64_t row = 0; row < rows; row += s.rows) {
        int64_t n = rows - row < s.rows ? rows - row : s.rows;
        if (fill_slab(c, t, row, n, &s, e) || gguf_files_data(out, s.dst, (uint64_t)n * out_row, e)) goto out;
        release(t, row, n, row + n == rows);
        *done += (uint64_t)n * out_row;
        if (c->o->progress) c->o->progress(c->o->ctx, *done, total);
    }
    ret = 0;
out:
    mem_free(s.src);
    mem_free(s.dst);
    return ret;
}

int conv_write_tensors(struct conv *c, struct gguf_files *out, struct err *e)
{
    uint64_t done = 0, total = total_bytes(c);
    for (int64_t i = 0; i < c->n_t; i++)
        if (write_tensor(c, &c->t[i], out, &done, total, e)) return -1;
    return 0;
}
