/* chain_step.c - a product as a step of a chain, or several (chain_plan.h): pairs of panels or items, tiles.
 */
#include "chain_plan.h"

#include <string.h>

#define CHAIN_TERMS (40 << 10)   /* bytes of shared memory for terms, at most */
#define CHAIN_K_TERMS (64 << 10) /* the same of K types: what chain_output has bits for */

/* What the kernel divides by (item_divide): exact for dividends below 2^32 / d. */
static uint32_t chain_divisor(int32_t d)
{
    return d == 1 ? 0 : (uint32_t)((((uint64_t)1 << 32) + (uint64_t)d - 1) / (uint64_t)d);
}

static bool is_k(uint32_t type)
{
    return type == KN_Q4_K || type == KN_Q5_K || type == KN_Q6_K || type == KN_IQ4_XS || type == KN_Q3_K ||
           type == KN_Q2_K || grid_has(type);
}
/* Do its units have float factors of their own? (own_factors of chain/split.cuh) */
static bool has_factors(uint32_t type)
{
    return type == KN_Q6_K || type == KN_IQ4_XS || type == KN_Q3_K || grid_has(type);
}
bool chain_is_low(const struct chain_step *s)
{
    bool low = false;
    for (int32_t j = 0; j < s->n_m; j++)
        low |= s->m[j].type == KN_Q2_K || s->m[j].type == KN_Q3_K || s->m[j].type == KN_Q4_1 ||
               s->m[j].type == KN_Q5_1 || s->m[j].type == KN_MXFP4;
    return low;
}
bool chain_is_grid(const struct chain_step *s)
{
    bool grid = false;
    for (int32_t j = 0; j < s->n_m; j++) grid |= grid_has(s->m[j].type);
    return grid;
}
bool chain_is_other(const struct chain_step *s)
{
    bool other = s->kind != CHAIN_K || chain_is_low(s) || chain_is_grid(s);
    for (int32_t j = 0; j < s->n_m; j++) other |= s->m[j].type == KN_IQ4_XS;
    return other;
}

/* Tiles of `bytes` at most, of units of 32 columns. */
static void cut_items(struct chain_step *s, int32_t bytes)
{
    const int32_t step = s->kind == CHAIN_32 ? 8 : 4; /* units that are multiplied side by side */
    s->per = bytes / widest_unit(s) / step * step;
    if (s->per < step) s->per = step;
    if (s->per > s->slice_units) s->per = s->slice_units;
    s->parts = (s->slice_units - 1) / s->per + 1;
    s->per_parts = chain_divisor(s->parts);
}

/* Gates and ups by two panels of each, so that a warp has 32 outputs, which it can round: where no block gets
 * more by that. */
static bool outputs_by_32(const struct cuda_device *dev, int64_t n_out)
{
    const int64_t blocks = dev->sm_count;
    return n_out % 32 == 0 && 2 * ((n_out / 32 - 1) / blocks) + 2 <= (n_out / 16 - 1) / blocks + 1;
}

/* The same of types whose units are of 32 columns: chain/items.cuh. */
static bool items_of(const struct cuda_device *dev, const struct chain_product *p, struct chain_step *s)
{
    const int64_t n_in = p->w[0]->n_in;
    const enum mm_act act = product_type_of(p->w[0]->type)->act;
    int64_t column = 0;
    const bool blocks = act == MM_ACT_32 || act == MM_ACT_32M; /* with minimums: the row is the same */
    if (act == MM_ACT_K) return false;
    s->kind = blocks ? CHAIN_32 : act == MM_ACT_F16 ? CHAIN_F16 : act == MM_ACT_F32 ? CHAIN_F32 : CHAIN_BF16;
    if (blocks ? p->norm && n_in > 256 * CHAIN_K_NORM_BLOCKS * CHAIN_WARPS : s->slice_units > 16)
        return false;
    s->units = (int32_t)(n_in / 32);
    s->members = p->gated || p->n_w == 1 ? 2 : 1;
    if (p->gated && blocks && outputs_by_32(dev, p->w[0]->n_out)) s->members = 4;
    for (int32_t j = 0; j < p->n_w; j++) {
        const struct kn_weight *w = p->w[j];
        const struct mm_type *t = product_type_of(w->type);
        if (!t || t->act != act) return false;
        if (j == 0 || !p->gated) s->pairs += (int32_t)((w->n_out + 15) / 16);
        s->m[j] = (struct chain_matrix){(const uint8_t *)w->packed,
                                        p->out[j],
                                        (int32_t)w->n_out,
                                        s->pairs,
                                        (int32_t)column,
                                        t->unit_bytes,
                                        w->type};
        column += w->n_out;
    }
    if (p->n_w == 1 || s->members == 4) s->pairs = s->m[0].pair_end = (s->pairs + 1) / 2;
    cut_items(s, chain_tuning.tile);
    s->per_slices = chain_divisor(s->slices);
    s->terms = (uint32_t)(64 * s->slices) + 64;
    return column <= CHAIN_WIDTH && s->slices <= MM_SLICES_MAX &&
           (uint32_t)s->members * s->terms * (size_t)pairs_a_block(s, dev->sm_count) <= CHAIN_TERMS;
}

/* The product as a step; false: not one. */
bool chain_step_of(const struct cuda_device *dev, const struct chain_product *p, struct chain_step *s)
{
    const int64_t n_in = p->w[0]->n_in;
    int64_t column = 0;
    memset(s, 0, sizeof *s);
    s->n_m = p->n_w, s->gated = p->gated, s->act = p->act;
    s->x = p->x, s->norm = p->norm, s->eps = p->eps;
    s->old = p->add ? p->out[0] : NULL;
    if (n_in % 256 || n_in > 256 * CHAIN_BLOCKS) return false;
    product_slices(product_type_of(p->w[0]->type), n_in, &s->slice_units, &s->slices);
    if (product_type_of(p->w[0]->type)->unit_k != 256) return items_of(dev, p, s);
    s->units = (int32_t)(n_in / 256);
    if (p->norm && n_in > 256 * CHAIN_K_NORM_BLOCKS * CHAIN_WARPS) return false;
    bool own = false; /* factors beside the terms */
    for (int32_t j = 0; j < p->n_w; j++) {
        const struct kn_weight *w = p->w[j];
        if (!is_k(w->type)) return false;
        if (j == 0 || !p->gated)
            s->pairs += (int32_t)(p->gated ? (w->n_out + 15) / 16 : (w->n_out + 31) / 32);
        s->m[j] = (struct chain_matrix){
            (const uint8_t *)w->packed,           p->out[j], (int32_t)w->n_out, s->pairs, (int32_t)column,
            product_type_of(w->type)->unit_bytes, w->type};
        column += w->n_out;
        own = own || has_factors(w->type);
    }
    /* Two of Q6_K need more registers than there are; of few tiles all warps shall have one. */
    s->per = own || pairs_a_block(s, dev->sm_count) * s->units < 16 ? 1 : 2;
    s->cuts = (s->units + s->per - 1) / s->per;
    s->terms = (uint32_t)(64 * s->units * (own ? 2 : 1));
    if (s->terms % 128 == 0) s->terms += 64; /* the other panel's on other banks */
    return column <= CHAIN_WIDTH && s->slices <= 8 &&
           2 * s->terms * (size_t)pairs_a_block(s, dev->sm_count) <= CHAIN_K_TERMS;
}

bool chain_part_of(const struct cuda_device *dev, const struct chain_product *p, int32_t first, bool *taken,
                   struct chain_step *s)
{
    const struct mm_type *t = product_type_of(p->w[first]->type);
    struct chain_product part = *p;
    int64_t column = 0, columns[CHAIN_MATRICES];
    part.n_w = 0;
    for (int32_t j = 0; t && j < p->n_w; column += p->w[j++]->n_out) {
        const struct mm_type *u = product_type_of(p->w[j]->type);
        if (taken[j] || !u || u->act != t->act) continue;
        taken[j] = true;
        columns[part.n_w] = column;
        part.w[part.n_w] = p->w[j], part.out[part.n_w++] = p->out[j];
    }
    if (!t || column > CHAIN_WIDTH || !chain_step_of(dev, &part, s)) return false;
    if (s->kind != CHAIN_K && part.n_w == 1 && p->n_w > 1 && part.w[0]->n_out <= 16 * dev->sm_count) {
        s->members = 1; /* a panel a block, at most */
        s->pairs = s->m[0].pair_end = (int32_t)((part.w[0]->n_out + 15) / 16);
    }
    for (int32_t j = 0; j < part.n_w && !p->gated; j++) s->m[j].column = (int32_t)columns[j];
    return true;
}
