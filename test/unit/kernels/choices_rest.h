/* choices_rest.h - what experts_plan.c and delta_plan.c choose for real models. */
#ifndef DFLASH_TEST_CHOICES_REST_H
#define DFLASH_TEST_CHOICES_REST_H

#include "../../../kernels/cuda/delta/delta_plan.h"
#include "../../../kernels/cuda/experts/experts_plan.h"
#include "choices.h"

#define CHOICE_ROWS_BYTES ((size_t)32 << 20) /* of prepared rows, as mm.cu reserves */

static inline void experts_text(const struct cuda_device *dev, const struct experts_shape *s, char *text,
                                size_t n)
{
    static const char *const forms[] = {"plain", "held", "solo", "staged", "owned"};
    struct experts_args a;
    struct experts_choice c;
    const int32_t rows = experts_plan_rows(dev, s, CHOICE_ROWS_BYTES);
    struct experts_shape part = *s;
    part.n = rows;
    if (rows < 1 || !experts_plan(dev, &part, &a, &c) || !c.found) {
        snprintf(text, n, "none");
        return;
    }
    if (s->members == 1 && c.form != EXPERTS_OWNED) a.panels = experts_plan_panels(&a);
    const unsigned blocks = experts_plan_blocks(&c, &a);
    snprintf(text, n, "%s%s%s tile %d warps %d share %d run %d ring %dx%d slices %d blocks %s",
             rows < s->n ? "parts of " : "", forms[c.form],
             c.low == 2 ? " grid"
             : c.low    ? " low"
                        : "",
             a.tile, a.warps, a.slice_warps, a.run, a.stages, a.stage_units, a.slices,
             blocks == c.grid ? "all" : "fewer");
}

static inline void choose_experts(FILE *out)
{
    static const char *const models[] = {"qwen3.5-35b-a3b", "qwen3-30b-a3b", "gemma-4-26b-a4b"};
    static const struct {
        uint32_t up, down;
    } types[] = {{KN_Q4_K, KN_Q6_K}, {KN_Q4_K, KN_Q5_0}, {KN_Q8_0, KN_Q8_0}, {KN_BF16, KN_BF16}};
    static const int32_t more[] = {65, 128, 512, 2048};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const struct shapes m = shapes_of(models[i]);
        const bool shared = m.ff_share == m.ff_exp;
        for (size_t t = 0; t < sizeof types / sizeof *types; t++)
            for (int d = 0; d < (i == 0 ? CHOICE_DEVICES : 1); d++)
                for (int members = 2; members > 0; members--) {
                    const uint32_t type = members == 2 ? types[t].up : types[t].down;
                    struct choice_run run = {.out = out};
                    if (m.ff_exp % 256 && product_type_of(type)->unit_k == 256 && members == 1) continue;
                    snprintf(run.subject, sizeof run.subject, "experts %s %s %s %s", m.name,
                             members == 2 ? "gate-up" : "down", choice_type(type), choice_devices[d].name);
                    for (int32_t k = 1; k <= CHOICE_ROWS + (int32_t)(sizeof more / sizeof *more); k++) {
                        const struct experts_shape s = {.n = k <= CHOICE_ROWS ? k : more[k - CHOICE_ROWS - 1],
                                                        .used = m.used + shared,
                                                        .n_mat = m.expert,
                                                        .n_in = members == 2 ? m.embd : m.ff_exp,
                                                        .n_out = members == 2 ? m.ff_exp : m.embd,
                                                        .members = members,
                                                        .shared = shared,
                                                        .type = {type, members == 2 ? type : 0,
                                                                 shared ? type : 0,
                                                                 shared && members == 2 ? type : 0}};
                        char text[CHOICE_TEXT];
                        experts_text(&choice_devices[d].dev, &s, text, sizeof text);
                        choice_row(&run, s.n, text);
                    }
                    choice_end(&run);
                }
    }
}

static inline void choose_delta(FILE *out)
{
    static const char *const forms[] = {"rows", "few", "one", "chunks", "blocks"};
    static const struct {
        const char *name;
        int32_t n_k, n_v, d, conv;
    } nets[] = {{"qwen3.5-27b", 16, 48, 128, 4}, {"qwen3.5-35b-a3b", 16, 32, 128, 4},
                {"heads-64", 2, 4, 64, 4},       {"heads-256", 2, 4, 256, 4},
                {"odd", 3, 3, 128, 4},           {"taps-3", 2, 4, 128, 3},
                {"taps-8", 2, 4, 128, 8}};
    for (size_t i = 0; i < sizeof nets / sizeof *nets; i++)
        for (int d = 0; d < CHOICE_DEVICES; d++)
            for (int product = 0; product < 2; product++) {
                struct choice_run run = {.out = out};
                snprintf(run.subject, sizeof run.subject, "delta %s %s %s", nets[i].name,
                         product ? "with-product" : "alone", choice_devices[d].name);
                for (int32_t n = 1; n <= CHOICE_ROWS + 1; n++) {
                    const struct kn_delta a = {.n = n,
                                               .n_k = nets[i].n_k,
                                               .n_v = nets[i].n_v,
                                               .d_k = nets[i].d,
                                               .d_v = nets[i].d,
                                               .n_conv = nets[i].conv,
                                               .commit = n > CHOICE_ROWS};
                    choice_row(&run, n,
                               forms[delta_form_of(&choice_devices[d].dev, &a,
                                                   product ? (int64_t)a.n_v * a.d_v : 0)]);
                }
                choice_end(&run);
            }
}

#endif
