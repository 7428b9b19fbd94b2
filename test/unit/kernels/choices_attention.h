/* choices_attention.h - what attention_plan.c chooses for the attention of real models, and the table of
 * which form takes what. */
#ifndef DFLASH_TEST_CHOICES_ATTENTION_H
#define DFLASH_TEST_CHOICES_ATTENTION_H

#include "../../../kernels/cuda/attention/attention_plan.h"
#include "choices.h"

/* What a device might answer when it is asked for room (kernels/cuda/attention/attention.cu asks the real
 * one): blocks that fit by their shared memory, two at most, and as many clusters as fill it. */
static inline struct attn_device attention_device(const struct cuda_device *dev)
{
    struct attn_device a;
    memset(&a, 0, sizeof a);
    if (!cuda_device_early(dev)) return a;
    for (int i = 0; i < ATTN_SIZES; i++)
        for (int wide = 0; wide < 2; wide++)
            for (int leaves = 1; leaves <= NEAR_LEAVES; leaves++) {
                const int32_t d = attn_table[ATTN_CLUSTERS].heads[i], blocks = wide ? 16 : 8;
                const size_t bytes = attn_near_bytes(d, blocks, leaves);
                const int32_t fit = (int32_t)((size_t)dev->smem_sm / (bytes + 1024));
                a.clusters[i][wide][leaves - 1] = dev->sm_count / blocks * (fit < 2 ? fit : 2);
            }
    a.places[1] = a.places[2] = 2;
    a.paths[1] = a.paths[2] = 2;
    a.columns[3] = 1;
    a.waits = true;
    return a;
}

static inline void attention_text(const struct attn_plan *p, char *text, size_t n)
{
    const char *name = attn_table[p->form].name, *fold = p->fold ? " fold" : "";
    if (p->form == ATTN_ANY || p->form == ATTN_GROUP)
        snprintf(text, n, "%s", name);
    else if (p->form == ATTN_PREFILL)
        snprintf(text, n, "%s tiles %d warps %d blocks %d chunks %d", name, p->tiles, p->warps, p->groups,
                 p->chunks);
    else if (p->form == ATTN_CODES)
        snprintf(text, n, "%s tiles %d warps %d bytes %zu turn %s %d nodes", name, p->tiles, p->warps,
                 p->smem, p->turn == p->groups ? "all" : "part", p->slots);
    else if (p->form == ATTN_FAR_CODES)
        snprintf(text, n, "%s tiles %d stages %d bytes %zu turn %s %d nodes blocks %d", name, p->tiles,
                 p->stages, p->smem, p->turn == p->groups ? "all" : "part", p->slots, p->blocks);
    else if (p->form == ATTN_CLUSTERS)
        snprintf(text, n, "%s of %d, %d leaves a block%s", name, p->blocks, p->cluster_leaves, fold);
    else
        snprintf(text, n, "%s tiles %d warps %d stages %d resident %d turn %s %d %s blocks %d%s", name,
                 p->tiles, p->warps, p->stages, p->resident, p->turn == p->groups ? "all" : "part", p->slots,
                 p->leaves ? "leaves" : "nodes", p->blocks, fold);
}

struct attention_part {
    const char *name; /* sinks: with these */
    int32_t d, n_kv, window;
    uint32_t type; /* of the cache */
};

/* tree: rows of a tree. "one launch": all by attn_places; a form's name: that one has what all rows see,
 * before attn_tree_paths; "two launches": attn_tree has both. */
static inline void attention_lines(FILE *out, const struct shapes *m, const struct attention_part *p,
                                   const struct choice_device *d, int32_t context, bool tree)
{
    static const int32_t more[] = {65, 128, 512, 2048};
    const struct attn_device attn = attention_device(&d->dev);
    /* A ring holds a window and the rows of a pass, or all positions. */
    const int32_t ring = p->window ? p->window + 256 : context, cap = (ring + 255) / 256 * 256;
    const struct kn_kv kv = {NULL, NULL, {p->type, p->type}, cap, p->n_kv, p->d};
    struct choice_run run = {.out = out};
    snprintf(run.subject, sizeof run.subject, "attention %s %s %s %s %s%d", m->name, p->name,
             kn_kv_name(p->type), d->name, tree ? "tree " : "", context);
    for (int32_t i = tree ? 2 : 1; i <= CHOICE_ROWS + (tree ? 0 : (int32_t)(sizeof more / sizeof *more));
         i++) {
        const int32_t n = i <= CHOICE_ROWS ? i : more[i - CHOICE_ROWS - 1];
        const struct attn_call c = {.n = n,
                                    .n_head = m->n_head,
                                    .n_kv = p->n_kv,
                                    .d = p->d,
                                    .held = kn_kv_positions(&kv),
                                    .window = p->window,
                                    .bound = context,
                                    .k_type = p->type,
                                    .v_type = p->type,
                                    .causal = true,
                                    .gated = m->gated,
                                    .sinks = !strcmp(p->name, "sinks"),
                                    .stores = true,
                                    .folds = attn_can_fold(n, p->d, m->gated ? 64 : p->d, false),
                                    .maps = true,
                                    .scratch_bytes = attn_scratch(CHOICE_ROWS, m->n_head, &kv, p->window)};
        char text[CHOICE_TEXT] = "two launches";
        struct attn_plan plan;
        if (!tree) {
            plan = attn_plan_of(&d->dev, &attn, &c);
            attention_text(&plan, text, sizeof text);
        } else if (attn_plan_tree(&d->dev, &attn, &c, &plan)) {
            snprintf(text, sizeof text, "one launch, %d %s blocks %d%s", plan.slots,
                     plan.leaves ? "leaves" : "nodes", plan.blocks, plan.fold ? " fold" : "");
        } else if (attn_plan_tree_far(&d->dev, &c, &plan)) {
            attention_text(&plan, text, sizeof text);
        }
        choice_row(&run, n, text);
    }
    choice_end(&run);
}

static inline void choose_attention(FILE *out)
{
    static const char *const models[] = {"qwen3-8b",        "qwen3-0.6b",      "qwen3.5-27b",
                                         "gemma-4-31b",     "qwen3.5-35b-a3b", "qwen3-30b-a3b",
                                         "gemma-4-26b-a4b", "qwen3-8b-dflash", "gemma-4-31b-dflash"};
    static const int32_t contexts[] = {512, 4096, 16384, 65536};
    static const int32_t tree_contexts[] = {512, 2048, 2560, 3072, 4096, 8192, 65536};
    static const int32_t heads[] = {64, 80, 128, 256, 512};
    static const uint32_t types[] = {KN_F16, KN_BF16, KN_F32, KN_Q8_0, KN_TQ3_0};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const struct shapes m = shapes_of(models[i]);
        struct attention_part p[6] = {{"heads", m.head, m.n_kv, m.window, KN_F16}};
        int n = 1;
        if (m.wide_head) p[n++] = (struct attention_part){"wide", m.wide_head, m.wide_kv, 0, KN_F16};
        if (i == 0) p[n++] = (struct attention_part){"heads", m.head, m.n_kv, 0, KN_BF16};
        if (i == 0) p[n++] = (struct attention_part){"heads", m.head, m.n_kv, 0, KN_F32};
        if (i < 4) p[n++] = (struct attention_part){"heads", m.head, m.n_kv, m.window, KN_Q4_0};
        if (i < 4 && m.wide_head)
            p[n++] = (struct attention_part){"wide", m.wide_head, m.wide_kv, 0, KN_Q4_0};
        if (m.taps) p[n++] = (struct attention_part){"sinks", m.head, m.n_kv, m.window, KN_F16};
        if (m.taps) p[n++] = (struct attention_part){"sinks", m.head, m.n_kv, m.window, KN_Q4_0};
        for (int k = 0; k < n; k++)
            for (int d = 0; d < (i < 4 ? CHOICE_DEVICES : 1); d++)
                for (size_t c = 0; c < sizeof contexts / sizeof *contexts; c++)
                    attention_lines(out, &m, &p[k], &choice_devices[d], contexts[c], false);
    }
    for (size_t i = 0; i < 4; i++)
        for (size_t c = 0; c < sizeof tree_contexts / sizeof *tree_contexts; c++) {
            const struct shapes m = shapes_of(models[i]);
            const struct attention_part p =
                m.wide_head ? (struct attention_part){"wide", m.wide_head, m.wide_kv, 0, KN_F16}
                            : (struct attention_part){"heads", m.head, m.n_kv, 0, KN_F16};
            attention_lines(out, &m, &p, &choice_devices[0], tree_contexts[c], true);
        }
    /* Which form takes what, of one row, of 64 and of a prompt: on a device with early launches, and without.
     */
    for (int d = 0; d < 2; d++)
        for (size_t h = 0; h < sizeof heads / sizeof *heads; h++)
            for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
                fprintf(out, "attention takes %s head %d %s:", choice_devices[d].name, heads[h],
                        kn_kv_name(types[k]));
                for (int f = 0; f < ATTN_FORMS; f++) {
                    char rows[4] = "";
                    static const int32_t n[] = {1, 64, 65};
                    for (int r = 0, at = 0; r < 3; r++)
                        if (attn_form_takes((enum attn_form)f, &choice_devices[d].dev, heads[h], n[r],
                                            types[k], types[k]))
                            rows[at++] = "1nP"[r];
                    fprintf(out, " %s %s", attn_table[f].name, *rows ? rows : "-");
                }
                fprintf(out, "\n");
            }
}

#endif
