/* convert_ends.c - an embedding and a head of a drafter's own. Exporters put frozen copies of the target's in
 * the checkpoint, which would cost their bytes again: where --target has its weights, a copy is left out. */
#include "convert_drafter.h"

#include <string.h>
#include "../base/io.h"
#include "../base/mem.h"

/* The target's tensors as the converter would write them, of either form. */
struct ends {
    struct gguf *g; /* c->target's */
    struct conv *t;
    struct convert o;
};

static const struct conv_tensor *made(const struct conv *t, const char *name)
{
    for (int64_t i = 0; i < t->n_t; i++)
        if (!strcmp(t->t[i].name, name)) return &t->t[i];
    return NULL;
}

/* Row r of a tensor of the target, as float32; its head may be its embedding. 1: there is no such, or of a
 * type that has lost what a copy would be compared by. */
static int target_row(const struct ends *s, const char *name, int64_t width, int64_t rows, int64_t r,
                      float *x, struct err *e)
{
    const bool head = !strcmp(name, "output.weight");
    if (s->g) {
        const struct gguf_tensor *t = gguf_tensor(s->g, name);
        if (!t && head) t = gguf_tensor(s->g, "token_embd.weight");
        if (!t || t->ne[0] != width || t->ne[1] != rows ||
            (t->type != KN_F32 && t->type != KN_F16 && t->type != KN_BF16))
            return 1;
        return kn_decode_row(t->type, t->data + (size_t)r * kn_row_bytes(t->type, width), x, width) ? 1 : 0;
    }
    const struct conv_tensor *t = made(s->t, name);
    if (!t && head) t = made(s->t, "token_embd.weight");
    if (!t || t->ne[0] != width || t->ne[1] != rows) return 1;
    return conv_read_rows(s->t, t, r, 1, x, e);
}

/* 1: it is the target's; 0: it is not, or that cannot be told (*told false). */
static int is_copy(const struct conv *c, const struct ends *s, const struct conv_tensor *t, bool *told,
                   struct err *e)
{
    const int64_t width = t->ne[0], rows = t->ne[1];
    float *x = mem_alloc(2 * (size_t)width * sizeof *x);
    int rc = x ? 0 : err_set(e, ERR_IO, "out of memory (a row of %s)", t->name);
    bool same = true;
    *told = true;
    for (int64_t r = 0; r < rows && !rc && same; r++) {
        rc = conv_read_rows(c, t, r, 1, x, e);
        if (!rc) rc = target_row(s, t->name, width, rows, r, x + width, e);
        if (!rc) same = !memcmp(x, x + width, (size_t)width * sizeof *x);
    }
    mem_free(x);
    if (rc > 0) *told = false;
    return rc < 0 ? -1 : rc == 0 && same;
}

/* Both are NULL where --target has no weights, or none that could be read: 1. */
static int open_target(const struct conv *c, struct ends *s, struct err *e)
{
    struct err mine = {0};
    char shard[256];
    *s = (struct ends){.g = c->target.gguf};
    if (!c->o->target) return 1;
    if (s->g) return 0;
    int rc = st_has_weights(c->o->target, e);
    if (rc <= 0) return rc < 0 ? -1 : 1;
    if (st_absent_shard(c->o->target, shard, sizeof shard, &mine) || *shard) return 1;
    convert_defaults(&s->o);
    s->o.input = c->o->target;
    return conv_open(&s->t, &s->o, &mine) ? 1 : 0;
}

static void leave_out(struct conv *c, struct conv_tensor *t)
{
    conv_say(c, CONVERT_NOTE, "left out: %s, a copy of the target's", t->src->name);
    memmove(t, t + 1, (size_t)(&c->t[--c->n_t] - t) * sizeof *t);
}

/* One of the two. had: it is in the output. */
static int end(struct conv *c, const struct ends *s, bool target, const char *name, bool *had, struct err *e)
{
    struct conv_tensor *t = (struct conv_tensor *)made(c, name);
    bool told = false;
    *had = t != NULL;
    if (!t || !t->src) return 0;
    const int copy = target ? is_copy(c, s, t, &told, e) : 0;
    if (copy < 0) return -1;
    if (copy) {
        leave_out(c, t);
        *had = false;
        return 0;
    }
    conv_say(c, CONVERT_NOTE, "%s is kept, %.1f MB: %s", t->src->name, (double)t->src->bytes / 1e6,
             told ? "it is not the target's" : "whether it is the target's cannot be told");
    return 0;
}

int conv_own_ends(struct conv *c, struct err *e)
{
    struct ends s;
    bool tie = false;
    int rc = open_target(c, &s, e);
    if (rc < 0) return -1;
    const bool target = rc == 0;
    rc = end(c, &s, target, "token_embd.weight", &c->d.own_embed, e) ||
         end(c, &s, target, "output.weight", &c->d.own_head, e);
    conv_close(s.t);
    if (rc || hf_get_bool(c->cfg, "tie_word_embeddings", &tie, e) < 0) return -1;
    c->d.own_tied = c->d.own_embed && !c->d.own_head && tie;
    return c->d.own_tied ? conv_put_bool(c, "tie_word_embeddings", true, e) : 0;
}
