/* choices_chain.h - how chain_plan.c lays out the layers of one row of real models. */
#ifndef DFLASH_TEST_CHOICES_CHAIN_H
#define DFLASH_TEST_CHOICES_CHAIN_H

#include "../../../kernels/cuda/chain/chain_plan.h"
#include "choices.h"

#define CHOICE_LAYERS 6

/* A chain as chain.cu collects it: steps, of which each reads the one before. */
struct chain_maker {
    const struct cuda_device *dev;
    struct chain_state *c;
    int32_t count, kept; /* kept: the newest step with the row's sums, or -1 */
    uint32_t codes;      /* type of keys and values; 0: f16 */
    bool fits;
};
static inline void chain_product_of(struct chain_maker *m, int32_t n_w, const uint32_t *type, int64_t n_in,
                                    const int64_t *n_out, bool norm, bool gated, bool add)
{
    static float row[CHAIN_MATRICES]; /* addresses to tell matrices apart by; nothing is read */
    static struct kn_weight w[CHAIN_MATRICES];
    struct chain_product p = {.name = "product", .n_w = n_w, .x = row, .gated = gated, .add = add};
    if (norm) p.norm = row;
    for (int32_t j = 0; j < n_w; j++) {
        w[j] = (struct kn_weight){.type = type[j], .n_in = n_in, .n_out = n_out[j]};
        p.w[j] = &w[j];
        p.out[j] = row + j;
    }
    bool taken[CHAIN_MATRICES] = {false}; /* a step a kind of activations */
    struct chain_step *s = &m->c->step[m->count];
    for (int32_t j = 0; j < n_w && m->fits; j++) {
        if (taken[j]) continue;
        s = &m->c->step[m->count];
        m->fits = chain_part_of(m->dev, &p, j, taken, s);
        s->pass_on = 1, s->again = j > 0;
        m->c->op[m->count].part = j > 0;
        m->c->items |= m->fits && chain_is_other(s);
        m->count += m->fits;
    }
    if (!m->fits) return;
    m->count--;
    if (add && m->kept >= 0) { /* what is added is still its block's */
        m->c->step[m->kept].keep = s->kept = 1;
        m->c->step[m->kept].m[0].out = NULL;
    }
    if (add) m->kept = m->count;
    m->c->wide |= s->kind == CHAIN_K && s->norm && s->units > CHAIN_NORM_BLOCKS * CHAIN_WARPS;
    m->count++;
}
static inline void chain_attention_of(struct chain_maker *m, const struct shapes *s, int32_t bound)
{
    struct chain_step *t = &m->c->step[m->count++];
    struct chain_state *c = m->c;
    memset(t, 0, sizeof *t);
    c->op[m->count - 1].part = false;
    t->n_head = s->n_head, t->n_kv = s->n_kv, t->n_rep = s->n_head / s->n_kv, t->head = s->head;
    t->where = (bound + 255) / 256 * 256;
    t->rounds = (bound - 1) / 64 + 1;
    c->attends = true;
    c->far = bound > (c->items || c->wide ? chain_tuning.near : chain_tuning.k_near);
    t->far = c->far;
    if (!m->codes) return;
    t->far = c->far = c->coded = true;
    t->m[0].type = t->m[1].type = m->codes;
}

static inline void chain_line(FILE *out, const struct shapes *m, const char *recipe, uint32_t most,
                              uint32_t more, uint32_t codes, const struct choice_device *d, int32_t bound)
{
    static const char *const forms[CHAIN_FORMS] = {"few",
                                                   "pairs",
                                                   "shared",
                                                   "far",
                                                   "gemma",
                                                   "nets",
                                                   "nets-shared",
                                                   "items",
                                                   "items-far",
                                                   "nets-items",
                                                   "codes",
                                                   "items-codes",
                                                   "low",
                                                   "low-far",
                                                   "nets-low",
                                                   "low-codes",
                                                   "all-k",
                                                   "grids",
                                                   "grids-far",
                                                   "grids-codes",
                                                   "grids-items",
                                                   "grids-items-far",
                                                   "grids-items-codes",
                                                   "nets-grids"};
    static struct chain_state c;
    struct chain_args a;
    struct chain_maker k = {&d->dev, &c, 0, -1, codes, true};
    const int64_t q = (int64_t)m->n_head * m->head, kv = (int64_t)m->n_kv * m->head;
    int blocks = 0;
    memset(&c, 0, sizeof c);
    memset(&a, 0, sizeof a);
    c.post = -1;
    for (int l = 0; l < CHOICE_LAYERS && k.fits; l++) {
        chain_product_of(&k, 3, (const uint32_t[]){most, most, more}, m->embd, (const int64_t[]){q, kv, kv},
                         true, false, false);
        chain_attention_of(&k, m, bound);
        chain_product_of(&k, 1, &most, q, &m->embd, false, false, true);
        chain_product_of(&k, 2, (const uint32_t[]){most, most}, m->embd, (const int64_t[]){m->ff, m->ff},
                         true, true, false);
        chain_product_of(&k, 1, &more, m->ff, &m->embd, false, false, true);
    }
    fprintf(out, "chain %s %s%s%s %s %d: ", m->name, recipe, codes ? ", cache " : "",
            codes ? kn_kv_name(codes) : "", d->name, bound);
    if (!k.fits) {
        fprintf(out, "no step\n");
        return;
    }
    c.step[k.count - 1].pass_on = 0;
    size_t smem = chain_lay_out(&d->dev, &c, k.count, &a, &blocks);
    if (smem) smem = chain_lay_out_ring(&d->dev, &c, k.count, &a, blocks, smem);
    if (!smem) {
        fprintf(out, "no room\n");
        return;
    }
    fprintf(out, "%s blocks %d%s ring %u shared %zu", forms[chain_form_of(&c, k.count, &a)], blocks,
            a.split ? " split" : "", a.ring, smem);
    const int per = k.count / CHOICE_LAYERS;
    for (int i = 0; i < per; i++) { /* of a layer in the middle: pairs, tiles and how many are on the way */
        const struct chain_step *s = &c.step[per * (CHOICE_LAYERS / 2) + i];
        if (s->n_m)
            fprintf(out, "; %d of %d%s%s tile %u ahead %d before %d", s->pairs, s->rounds,
                    s->split ? " split" : "", s->flags & CHAIN_EARLY ? " early" : "", s->tile, s->ahead,
                    s->before);
        else if (codes)
            fprintf(out, "; %d heads, tile %u, %d in the ring", s->far, s->tile, s->cap_tiles);
    }
    fprintf(out, "\n");
}

static inline void choose_chains(FILE *out)
{
    static const char *const models[] = {"qwen3-8b", "qwen3-0.6b", "qwen3-4b", "llama-3.1-8b"};
    static const struct {
        const char *name;
        uint32_t most, more;
    } types[] = {{"Q4_K_M", KN_Q4_K, KN_Q6_K},
                 {"Q4_K", KN_Q4_K, KN_Q4_K},
                 {"Q6_K", KN_Q6_K, KN_Q6_K},
                 {"Q8_0", KN_Q8_0, KN_Q8_0},
                 {"Q4_0", KN_Q4_0, KN_Q4_0},
                 {"BF16", KN_BF16, KN_BF16},
                 {"F16", KN_F16, KN_F16},
                 {"F32", KN_F32, KN_F32},
                 {"Q5_K+Q8_0", KN_Q5_K, KN_Q8_0},
                 {"IQ4_XS+F16", KN_IQ4_XS, KN_F16},
                 {"IQ3_XXS+Q5_K", KN_IQ3_XXS, KN_Q5_K},
                 {"IQ2_S+IQ3_S", KN_IQ2_S, KN_IQ3_S},
                 {"IQ2_XXS+Q8_0", KN_IQ2_XXS, KN_Q8_0},
                 {"IQ4_XS+Q6_K", KN_IQ4_XS, KN_Q6_K}};
    static const int32_t bounds[] = {512, 1024, 4096, 16384, 65536};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const struct shapes m = shapes_of(models[i]);
        for (size_t t = 0; t < sizeof types / sizeof *types; t++)
            for (size_t b = 0; b < sizeof bounds / sizeof *bounds; b++)
                chain_line(out, &m, types[t].name, types[t].most, types[t].more, 0, &choice_devices[0],
                           bounds[b]);
        static const uint32_t caches[] = {KN_Q8_0, KN_Q5_0, KN_Q4_0, KN_TQ3_0};
        for (size_t c = 0; c < sizeof caches / sizeof *caches; c++)
            for (size_t t = 0; t < 4; t += 3) /* Q4_K_M, Q8_0 */
                for (size_t b = 1; b < sizeof bounds / sizeof *bounds; b++)
                    chain_line(out, &m, types[t].name, types[t].most, types[t].more, caches[c],
                               &choice_devices[0], bounds[b]);
    }
}

#endif
