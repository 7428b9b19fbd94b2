/* make_dialects.c - a drafter's file as every engine's own writer would have it, for the command line tests.
 *
 * usage: make_dialects DRAFTER.gguf DIR     DRAFTER: dialect upstream
 * Writes DIR/NAME.gguf of that drafter, and DIR/small-NAME.gguf of a few KB;
 * DIR/relative-NAME.gguf: drafters of other kinds, recognised and not run; DIR/small-sunk.gguf: with
 * attention sinks; DIR/types/NAME.gguf: the drafter with a matrix of a type that has no product here, of
 * zeros. */
#include <sys/stat.h>

#include "dialect_files.h"

static int write_all(const char *dir, const char *prefix, const struct df_drafter *d, struct err *e)
{
    char path[4096];
    for (int i = 0; i < N_SPELLINGS; i++) {
        const struct df_change plain = {.windows = spellings[i].pattern && d->window > 0};
        snprintf(path, sizeof path, "%s/%s%s.gguf", dir, prefix, spellings[i].name);
        if (df_write(path, d, &spellings[i], &plain, e)) return -1;
    }
    return 0;
}

/* ---- relatives of a few KB, which cannot be run ---- */

static int dflash2_keys(struct gguf_writer *w, struct err *e)
{
    return gguf_put_u32(w, "dflash.conv_kernel_size", 2, e) |
           gguf_put_u32(w, "dflash.conv_group_size", 16, e) | gguf_put_u32(w, "dflash.selector_rank", 8, e) |
           gguf_put_u32(w, "dflash.selector_top_k", 4, e);
}
static int dspark_keys(struct gguf_writer *w, struct err *e)
{
    return gguf_put_u32(w, "qwen35-dflash-draft.dflash.dspark.enabled", 1, e);
}
static int deepseek_keys(struct gguf_writer *w, struct err *e)
{
    return gguf_put_bool(w, "dflash.sample_from_anchor", true, e) |
           gguf_put_u32(w, "dflash.hyper_connection.count", 4, e);
}
static int domino_keys(struct gguf_writer *w, struct err *e)
{
    return gguf_put_u32(w, "qwen35-dflash-draft.dflash.domino.enabled", 1, e) |
           gguf_put_u32(w, "qwen35-dflash-draft.dflash.domino.gru_hidden_dim", 8, e);
}
static int laguna_keys(struct gguf_writer *w, struct err *e)
{
    return gguf_put_bool(w, "dflash-draft.dflash.laguna", true, e);
}
static const struct df_extra dspark[] = {
    {"dflash.dspark.markov.w1", {4, DF_VOCAB}}, {"dflash.dspark.markov.w2", {4, DF_VOCAB}}, {NULL, {0}}};
static const struct df_extra torn_dspark[] = {{"markov_w1.weight", {4, DF_VOCAB}}, {NULL, {0}}};
static const struct df_extra domino[] = {{"dflash.domino.gru.weight_hh", {8, 24}}, {NULL, {0}}};
static const struct df_extra reduced[] = {{"d2t", {24}}, {"output.weight", {DF_EMBD, 24}}, {NULL, {0}}};
static const struct df_extra laguna[] = {{"dflash_aux_hidden_norm.0.weight", {DF_EMBD}}, {NULL, {0}}};
static const struct df_extra sinks[] = {
    {"blk.0.attn_sinks.weight", {DF_HEADS}}, {"blk.1.attn_sinks.weight", {DF_HEADS}}, {NULL, {0}}};
static const struct df_extra biased[] = {{"blk.0.attn_q.bias", {DF_HEADS * DF_HEAD}}, {NULL, {0}}};

static int write_relatives(const char *dir, const struct df_drafter *d, struct err *e)
{
    static const struct {
        const char *name, *dialect;
        struct df_change c;
    } r[] = {{"dflash2-torn", "upstream", {.edit = dflash2_keys}},
             {"dspark-lucebox", "lucebox", {.edit = dspark_keys, .extra = dspark}},
             {"dspark-torn", "upstream", {.extra = torn_dspark}},
             {"deepseek4", "upstream", {.edit = deepseek_keys}},
             {"domino-lucebox", "lucebox", {.edit = domino_keys, .extra = domino}},
             {"reduced-torn", "upstream", {.extra = reduced}},
             {"laguna", "ik", {.edit = laguna_keys, .extra = laguna}},
             {"sinks", "ik", {.extra = sinks}},
             {"biased", "ik", {.extra = biased}}};
    char path[4096];
    for (size_t i = 0; i < sizeof r / sizeof r[0]; i++) {
        const struct spelling *s = spellings;
        while (strcmp(s->name, r[i].dialect)) s++;
        snprintf(path, sizeof path, "%s/relative-%s.gguf", dir, r[i].name);
        if (df_write(path, d, s, &r[i].c, e)) return -1;
    }
    const struct df_change sunk = {.extra = sinks}; /* which is run */
    snprintf(path, sizeof path, "%s/small-sunk.gguf", dir);
    return df_write(path, d, spellings, &sunk, e);
}

/* What llama.cpp's quantiser makes of a drafter, a type each. */
static int write_types(const char *dir, const struct df_drafter *d, struct err *e)
{
    static const uint32_t types[] = {KN_TQ1_0, KN_TQ2_0, KN_Q2_0, KN_Q1_0, KN_NVFP4};
    const struct df_change plain = {.windows = d->window > 0};
    struct df_drafter other = *d;
    char path[4096];
    int i = 0;
    while (i < d->n && strcmp(d->t[i].name, "blk.0.ffn_down.weight")) i++;
    if (i == d->n) return err_set(e, ERR_FORMAT, "no blk.0.ffn_down.weight");
    struct df_tensor *t = &other.t[i];
    snprintf(path, sizeof path, "%s/types", dir);
    mkdir(path, 0777);
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        t->type = types[k];
        t->bytes = (uint64_t)kn_row_bytes(t->type, t->ne[0]) * (uint64_t)t->ne[1];
        void *zeros = calloc(1, t->bytes);
        t->data = zeros;
        snprintf(path, sizeof path, "%s/types/%s.gguf", dir, kn_type_info(types[k])->name);
        const int rc = zeros ? df_write(path, &other, spellings, &plain, e) : -1;
        free(zeros);
        if (rc) return -1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct df_drafter d, small;
    struct err e = {0};
    if (argc != 3) {
        fprintf(stderr, "usage: make_dialects DRAFTER.gguf DIR\n");
        return 2;
    }
    df_make(&small);
    int rc = df_open(&d, argv[1], &e) || write_all(argv[2], "", &d, &e) ||
             write_all(argv[2], "small-", &small, &e) || write_relatives(argv[2], &small, &e) ||
             write_types(argv[2], &d, &e);
    if (rc) fprintf(stderr, "make_dialects: %s\n", e.msg);
    df_free(&small);
    df_free(&d);
    return rc ? 1 : 0;
}
