/* convert_data.c - tensor data, a slab of rows at a time, from the source (or the random generator) to the
 * output. */
#include "convert_impl.h"

#include <string.h>
#include "mem.h"

/* The type that most of the weights are stored in, where --type does not say: nothing is lost then. */
static enum quant_recipe source_recipe(const struct conv *c)
{
    uint64_t f32 = 0, f16 = 0, bf16 = 0;
    if (!c->st) return QUANT_BF16;
    for (int64_t i = 0; i < c->n_t; i++) {
        if (c->t[i].n_dims < 2) continue;
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
    struct quant_model m = {
        .arch = c->fam->arch, .n_layer = c->n_layer, .n_head = c->n_head, .n_head_kv = c->n_head_kv};
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
    if (quant_plan(recipe, &m, q, c->n_t, KN_F32, NULL, 0, to, e)) goto done;
    for (int64_t i = 0; i < c->n_t; i++) c->t[i].to = to[i];
    *file_type = quant_recipe_file_type(recipe);
    int64_t first, count = quant_fell_back(recipe, q, c->n_t, &first);
    if (count)
        conv_say(c, CONVERT_NOTE,
                 "%lld tensors have rows that the blocks of %s do not divide and got another type (the "
                 "first: %s, rows of "
                 "%lld, %s)",
                 (long long)count, quant_recipe_name(recipe), q[first].name, (long long)q[first].ne[0],
                 kn_type_info(to[first])->name);
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
                   t->src->name, (long long)((first + bad) / t->ne[0]),
                   (long long)((first + bad) % t->ne[0]));
}

struct slab {
    uint8_t *src, *dst;
    int64_t rows;
};

/* Rows row0 .. row0 + n of t, in type t->to, at s->dst. */
static int fill_slab(struct conv *c, const struct conv_tensor *t, int64_t row0, int64_t n, struct slab *s,
                     struct err *e)
{
    if (!t->src) return conv_random_rows(c->o->seed, t, row0, n, s->dst, c->o->threads, e);
    bool native = t->src->dtype == ST_F32 || t->src->dtype == ST_F16 || t->src->dtype == ST_BF16;
    uint64_t size = st_dtype_size(t->src->dtype), first = (uint64_t)row0 * (uint64_t)t->ne[0],
             count = (uint64_t)n * (uint64_t)t->ne[0];
    const uint8_t *src = t->src->data + first * size;
    if (!native) {
        if (st_read_f32(t->src, first, count, (float *)(void *)s->src, e)) return -1;
        src = s->src;
    } else if ((uintptr_t)src % 64) { /* a file need not align its tensors */
        memcpy(s->src, src, count * size);
        src = s->src;
    }
    if (t->from == t->to && check_finite(c, t, src, (int64_t)first, (int64_t)count, e)) return -1;
    int r = quant_rows(t->src->name, t->from, src, t->to, s->dst, t->ne[0], n, row0, c->o->threads, NULL, e);
    return r ? err_prefix(e, "%s", c->label) : 0;
}

static uint64_t total_bytes(const struct conv *c)
{
    uint64_t n = 0;
    for (int64_t i = 0; i < c->n_t; i++)
        n += kn_row_bytes(c->t[i].to, c->t[i].ne[0]) * (uint64_t)c->t[i].ne[1];
    return n;
}

static int write_tensor(struct conv *c, const struct conv_tensor *t, struct io_out *out, uint64_t *done,
                        uint64_t total, struct err *e)
{
    size_t in_row = kn_row_bytes(t->from, t->ne[0]), out_row = kn_row_bytes(t->to, t->ne[0]);
    struct slab s = {.rows = quant_slab_rows(t->from, t->to, t->ne[0])};
    int ret = -1;
    if (s.rows > t->ne[1]) s.rows = t->ne[1];
    s.src = mem_alloc((size_t)s.rows * in_row);
    s.dst = mem_alloc((size_t)s.rows * out_row);
    if (!s.src || !s.dst) {
        err_set(e, ERR_IO, "out of memory (%lld rows of %s)", (long long)s.rows, t->name);
        goto out;
    }
    for (int64_t row = 0; row < t->ne[1]; row += s.rows) {
        int64_t n = t->ne[1] - row < s.rows ? t->ne[1] - row : s.rows;
        if (fill_slab(c, t, row, n, &s, e) || gguf_write_data(c->w, out, s.dst, (uint64_t)n * out_row, e))
            goto out;
        if (t->src) {
            uint64_t row_bytes = (uint64_t)t->ne[0] * st_dtype_size(t->src->dtype);
            io_map_done(t->src->data + (uint64_t)row * row_bytes, (uint64_t)n * row_bytes);
        }
        *done += (uint64_t)n * out_row;
        if (c->o->progress) c->o->progress(c->o->ctx, *done, total);
    }
    ret = 0;
out:
    mem_free(s.src);
    mem_free(s.dst);
    return ret;
}

int conv_write_tensors(struct conv *c, struct io_out *out, struct err *e)
{
    uint64_t done = 0, total = total_bytes(c);
    for (int64_t i = 0; i < c->n_t; i++)
        if (write_tensor(c, &c->t[i], out, &done, total, e)) return -1;
    return 0;
}
