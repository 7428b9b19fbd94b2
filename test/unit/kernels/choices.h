/* choices.h - what the parts of test_choices.c share: models, devices, and lines that say what a planner
 * chose.
 *
 * A line is "<kernel> <model> <part> <types> <device> <context> rows <from>-<to>: <choice>": rows in turn
 * that get the same choice are one line, so the table holds every row count, and a changed choice is a
 * changed line. */
#ifndef DFLASH_TEST_CHOICES_H
#define DFLASH_TEST_CHOICES_H

#include "../../../common/base/json.h"
#include "../../../kernels/cuda/core/device.h"
#include "../../../kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHOICE_ROWS 64
#define CHOICE_TEXT 512

/* A model's shapes, from data/configs/NAME.json. */
struct shapes {
    const char *name;
    int64_t embd, ff, vocab;
    int32_t n_head, n_kv, head, window;     /* window: 0, or of its sliding layers */
    int32_t wide_head, wide_kv;             /* of layers without a window, where they differ; else 0 */
    int32_t expert, used, ff_exp, ff_share; /* 0: no experts, no shared one */
    int32_t net_k, net_v;                   /* heads of delta nets, 128 wide; 0: none */
    bool gated;                             /* attention has gates */
    int32_t taps;                           /* of a drafter's fc; 0: a target */
};

static inline int64_t shapes_number(const json_t *j, const char *key)
{
    return json_integer_value(json_object_get(j, key));
}

static inline struct shapes shapes_of(const char *name)
{
    char path[256];
    struct err e = {ERR_NONE, "", ""};
    json_t *all;
    snprintf(path, sizeof path, "data/configs/%s.json", name);
    if (json_parse_file(&all, path, 1 << 20, &e)) {
        fprintf(stderr, "%s\n", e.msg);
        exit(1);
    }
    const json_t *inner = json_object_get(all, "text_config"), *j = inner ? inner : all;
    struct shapes s = {
        .name = name,
        .embd = shapes_number(j, "hidden_size"),
        .ff = shapes_number(j, "intermediate_size"),
        .vocab = shapes_number(j, "vocab_size"),
        .n_head = (int32_t)shapes_number(j, "num_attention_heads"),
        .n_kv = (int32_t)shapes_number(j, "num_key_value_heads"),
        .head = (int32_t)shapes_number(j, "head_dim"),
        .window = (int32_t)shapes_number(j, "sliding_window"),
        .wide_head = (int32_t)shapes_number(j, "global_head_dim"),
        .wide_kv = (int32_t)shapes_number(j, "num_global_key_value_heads"),
        .expert = (int32_t)shapes_number(j, "num_experts"),
        .used = (int32_t)(shapes_number(j, "num_experts_per_tok") + shapes_number(j, "top_k_experts")),
        .ff_exp = (int32_t)shapes_number(j, "moe_intermediate_size"),
        .ff_share = (int32_t)shapes_number(j, "shared_expert_intermediate_size"),
        .net_k = (int32_t)shapes_number(j, "linear_num_key_heads"),
        .net_v = (int32_t)shapes_number(j, "linear_num_value_heads"),
        .gated = json_is_true(json_object_get(j, "attn_output_gate")),
        .taps = (int32_t)json_array_size(
            json_object_get(json_object_get(j, "dflash_config"), "target_layer_ids"))};
    if (!s.head && s.n_head) s.head = (int32_t)(s.embd / s.n_head);
    if (!s.embd || !s.n_head || !s.n_kv || !s.head || (!s.ff && !s.ff_exp)) {
        fprintf(stderr, "%s: not the config of a model (hidden_size, heads, head_dim)\n", path);
        exit(1);
    }
    json_decref(all);
    return s;
}

/* bytes of shared memory: of a block, of a multiprocessor */
struct choice_device {
    const char *name;
    struct cuda_device dev;
};
static const struct choice_device choice_devices[] = {
    {"H200", {.cc = 90, .sm_count = 132, .smem_block = 232448, .smem_sm = 233472}},
    {"H200-generic", {.cc = 90, .sm_count = 132, .smem_block = 232448, .smem_sm = 233472, .generic = true}},
    {"A100", {.cc = 80, .sm_count = 108, .smem_block = 166912, .smem_sm = 167936}},
    {"small", {.cc = 80, .sm_count = 20, .smem_block = 101376, .smem_sm = 102400}},
};
#define CHOICE_DEVICES (int)(sizeof choice_devices / sizeof *choice_devices)

static inline const char *choice_type(uint32_t type)
{
    return kn_type_info(type)->name;
}

/* Lines of one subject, row after row. */
struct choice_run {
    FILE *out;
    char subject[256], text[CHOICE_TEXT];
    int from, to;
};
static inline void choice_end(struct choice_run *r)
{
    if (r->from == r->to)
        fprintf(r->out, "%s rows %d: %s\n", r->subject, r->from, r->text);
    else if (r->from)
        fprintf(r->out, "%s rows %d-%d: %s\n", r->subject, r->from, r->to, r->text);
    r->from = 0;
}
static inline void choice_row(struct choice_run *r, int rows, const char *text)
{
    if (r->from && !strcmp(r->text, text)) {
        r->to = rows;
        return;
    }
    if (r->from) choice_end(r);
    snprintf(r->text, sizeof r->text, "%s", text);
    r->from = r->to = rows;
}

#endif
