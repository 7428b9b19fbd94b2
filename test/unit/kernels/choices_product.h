/* choices_product.h - what mm_plan.c chooses for the products of real models. */
#ifndef DFLASH_TEST_CHOICES_PRODUCT_H
#define DFLASH_TEST_CHOICES_PRODUCT_H

#include "../../../kernels/cuda/product/mm_plan.h"
#include "choices.h"

#define CHOICE_PARTIAL_BYTES ((size_t)48 << 20) /* as mm.cu reserves */

/* Types of a file: of most matrices; of values and down projections; of the head. */
struct recipe {
    const char *name;
    uint32_t most, more, head;
};
static const struct recipe recipes[] = {
    {"Q4_K_M", KN_Q4_K, KN_Q6_K, KN_Q6_K}, {"Q8_0", KN_Q8_0, KN_Q8_0, KN_Q8_0},
    {"BF16", KN_BF16, KN_BF16, KN_BF16},   {"Q4_K", KN_Q4_K, KN_Q4_K, KN_Q4_K},
    {"Q6_K", KN_Q6_K, KN_Q6_K, KN_Q6_K},   {"Q5_K", KN_Q5_K, KN_Q5_K, KN_Q5_K},
    {"F16", KN_F16, KN_F16, KN_F16},       {"F32", KN_F32, KN_F32, KN_F32},
    {"Q4_0", KN_Q4_0, KN_Q4_0, KN_Q4_0},   {"Q4_1", KN_Q4_1, KN_Q4_1, KN_Q4_1},
    {"Q3_K", KN_Q3_K, KN_Q4_K, KN_Q6_K},
};
#define RECIPES (int)(sizeof recipes / sizeof *recipes)
#define RECIPES_OF_ALL 3 /* for every model, the first ones */

struct part {
    const char *name;
    int32_t n_w;
    int64_t n_in, n_out[KN_MATRICES];
    uint32_t type[KN_MATRICES];
    bool norm, gated;
};

/* One launch. */
static inline void product_text(const struct mm_choice *c, const struct mm_args *a, char *text, size_t n)
{
    static const char *const forms[] = {"generic", "bulk", "few", "late", "wide"};
    static const char *const early[] = {"once", "paced", "halves"};
    if (c->form == MM_WIDE) {
        snprintf(text, n, "wide %d tiles %d warps %d blocks %d %s %dx%d ring %d", c->wide_rows,
                 c->wide_groups, c->warps, c->blocks,
                 a->left         ? "left"
                 : a->wide_share ? "shared"
                                 : "whole",
                 a->slices, a->slice_units, a->stages);
        return;
    }
    const int at = snprintf(text, n, "%s%s tiles %d warps %d blocks %d %s %dx%d ring %dx%d", forms[c->form],
                            c->low == 2 ? " grid"
                            : c->low    ? " low"
                                        : "",
                            1 << c->log2_tiles, c->warps, c->blocks,
                            a->left       ? "left"
                            : c->together ? "together"
                                          : "apart",
                            a->slices, a->slice_units, a->stages, a->stage_units);
    if (c->few)
        snprintf(text + at, n - (size_t)at, " sets %d early %s+%d cluster %d%s", a->at.merge_sets,
                 early[a->pace], a->ahead, a->cluster, a->split ? " split" : "");
    else
        snprintf(text + at, n - (size_t)at, " share %d sums %dx%d%s", a->slice_warps, a->at.merge_rounds,
                 a->at.merge_sets, a->split ? " split" : "");
}

/* All launches of n rows. */
static inline void product_rows(const struct cuda_device *dev, const struct part *p, int32_t n, char *text,
                                size_t size)
{
    struct mm_shape s = {
        .n_w = p->n_w, .n_in = p->n_in, .n = n, .gated = p->gated, .norm = p->norm, .placed = true};
    struct mm_args a;
    struct mm_group g;
    char one[CHOICE_TEXT], last[CHOICE_TEXT] = "";
    size_t at = 0;
    int times = 0;
    memcpy(s.type, p->type, sizeof s.type);
    memcpy(s.n_out, p->n_out, sizeof s.n_out);
    memset(&a, 0, sizeof a);
    if (!mm_plan_group(&s, CHOICE_PARTIAL_BYTES, &g, &a)) {
        snprintf(text, size, "too long");
        return;
    }
    struct mm_choice c;
    if (mm_wide_format(dev, g.t->act, n)) {
        mm_plan_wide(dev, &g, n, CHOICE_PARTIAL_BYTES, &a, &c);
        product_text(&c, &a, text, size);
        return;
    }
    if (mm_few_format(dev, g.t->act, n, a.slice_units)) {
        a.slice_row = mm_few_row(a.slice_units);
        if (!mm_plan_few(dev, &g, n, &a, &c)) a.slice_row = mm_slice_row(g.t->act, a.slice_units);
    }
    for (int32_t row = 0; row < n; row += a.n) {
        if (!mm_plan_rows(dev, &g, n - row, &a, &c)) {
            snprintf(text, size, "none");
            return;
        }
        a.left = g.leave;
        const int32_t most = mm_plan_panels(dev, &c, g.panels, CHOICE_PARTIAL_BYTES, &a);
        for (int32_t first = 0; first < g.panels; first += most) {
            mm_plan_launch(dev, &c, first, most, g.panels, &a);
            product_text(&c, &a, one, sizeof one);
            if (times && strcmp(one, last)) {
                at += (size_t)snprintf(text + at, size - at, "%d of %s; ", times, last);
                times = 0;
            }
            strcpy(last, one);
            times++;
        }
    }
    if (times > 1 || at)
        snprintf(text + at, size - at, "%d of %s", times, last);
    else
        snprintf(text, size, "%s", last);
}

static inline void product_lines(FILE *out, const struct shapes *m, const struct recipe *r,
                                 const struct part *p, const struct choice_device *d)
{
    struct choice_run run = {.out = out};
    snprintf(run.subject, sizeof run.subject, "product %s %s %s %s", m->name, p->name, r->name, d->name);
    const enum mm_act act = product_type_of(p->type[0])->act;
    for (int32_t n = 1; n <= CHOICE_ROWS || mm_wide_format(&d->dev, act, n); n++) {
        char text[CHOICE_TEXT];
        product_rows(&d->dev, p, n, text, sizeof text);
        choice_row(&run, n, text);
    }
    choice_end(&run);
}

/* The products of a model's layers and its ends. */
static inline int product_parts(const struct shapes *m, const struct recipe *r, struct part *p)
{
    const uint32_t most = r->most, more = r->more;
    const int64_t q = (int64_t)m->n_head * m->head, kv = (int64_t)m->n_kv * m->head;
    int n = 0;
    if (m->gated)
        p[n++] = (struct part){"qgkv", 4, m->embd, {q, q, kv, kv}, {most, most, most, more}, true, false};
    else
        p[n++] = (struct part){"qkv", 3, m->embd, {q, kv, kv}, {most, most, more}, true, false};
    p[n++] = (struct part){"o", 1, q, {m->embd}, {most}, false, false};
    if (m->wide_head) {
        const int64_t wq = (int64_t)m->n_head * m->wide_head, wk = (int64_t)m->wide_kv * m->wide_head;
        p[n++] = (struct part){"wide-qk", 2, m->embd, {wq, wk}, {most, most}, true, false};
        p[n++] = (struct part){"wide-o", 1, wq, {m->embd}, {most}, false, false};
    }
    if (m->net_k) {
        const int64_t inner = 128 * (int64_t)m->net_v, width = 256 * (int64_t)m->net_k + inner;
        p[n++] = (struct part){
            "net", 4, m->embd, {width, inner, m->net_v, m->net_v}, {most, most, most, most}, true, false};
        p[n++] = (struct part){"net-o", 1, inner, {m->embd}, {most}, false, false};
    }
    if (m->ff && !(m->expert && !m->wide_head)) {
        p[n++] = (struct part){"gate-up", 2, m->embd, {m->ff, m->ff}, {most, most}, true, true};
        p[n++] = (struct part){"down", 1, m->ff, {m->embd}, {more}, false, false};
    }
    if (m->taps)
        p[n++] = (struct part){"fc", 1, m->taps * m->embd, {m->embd}, {most}, false, false};
    else
        p[n++] = (struct part){"head", 1, m->embd, {m->vocab}, {r->head}, true, false};
    return n;
}

static inline void choose_products(FILE *out)
{
    static const char *const models[] = {"qwen3-8b",           "qwen3-0.6b",        "qwen3.5-27b",
                                         "gemma-4-31b",        "qwen3.5-35b-a3b",   "qwen3-30b-a3b",
                                         "gemma-4-26b-a4b",    "llama-3.1-8b",      "qwen3-8b-dflash",
                                         "qwen3.5-27b-dflash", "gemma-4-31b-dflash"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const struct shapes m = shapes_of(models[i]);
        for (int r = 0; r < (i == 0 ? RECIPES : RECIPES_OF_ALL); r++)
            for (int d = 0; d < (i == 0 && r < RECIPES_OF_ALL ? CHOICE_DEVICES : 1); d++) {
                struct part parts[16];
                const int n = product_parts(&m, &recipes[r], parts);
                for (int p = 0; p < n; p++)
                    product_lines(out, &m, &recipes[r], &parts[p], &choice_devices[d]);
            }
    }
}

#endif
