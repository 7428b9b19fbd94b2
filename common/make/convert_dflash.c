/* convert_dflash.c - DFlash drafters (DFlashDraftModel) to the dialect asked for; the tables spell
 * upstream's.
 *
 * Every part is looked for where exporters are known to put it: under dflash_config, then at top level.
 * Nothing has a default. docs/drafter.md lists the keys, those of the dialect and our own. */
#include "convert_drafter.h"

#include "../describe/dialect.h"
#include "../base/mem.h"
#include "relabel.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct conv_rule rules[] = {
    STACK_BEGINS,
    STACK_LAYERS,
    {"norm.weight", "output_norm.weight", {DIM_EMBD}, 0},
    {NULL, NULL, {DIM_NONE}, 0},
};

/* DFlash2: a short convolution before and after attention and feed-forward of every layer, with kernels that
 * are part fixed (base), part made of the layer's input (proj), and a selector that chooses among the best
 * candidates of a row by the token before it. */
static const struct conv_rule rules2[] = {
    STACK_BEGINS,
    STACK_LAYERS,
    {"layers.%d.attention_conv.base_kernel", "blk.%d.attn_conv_base", {DIM_SIDES, DIM_CONV, DIM_EMBD}, 0},
    {"layers.%d.attention_conv.kernel_projection.weight",
     "blk.%d.attn_conv_proj.weight",
     {DIM_CONV_PROJ, DIM_EMBD},
     0},
    {"layers.%d.mlp_conv.base_kernel", "blk.%d.ffn_conv_base", {DIM_SIDES, DIM_CONV, DIM_EMBD}, 0},
    {"layers.%d.mlp_conv.kernel_projection.weight",
     "blk.%d.ffn_conv_proj.weight",
     {DIM_CONV_PROJ, DIM_EMBD},
     0},
    {"norm.weight", "output_norm.weight", {DIM_EMBD}, 0},
    {"candidate_selector.predecessor_codebook", "selector_predecessor.weight", {DIM_VOCAB, DIM_SELECT}, 0},
    {"candidate_selector.predecessor_codebook.weight",
     "selector_predecessor.weight",
     {DIM_VOCAB, DIM_SELECT},
     CONV_ALT},
    {"candidate_selector.successor_codebook", "selector_successor.weight", {DIM_VOCAB, DIM_SELECT}, 0},
    {"candidate_selector.successor_codebook.weight",
     "selector_successor.weight",
     {DIM_VOCAB, DIM_SELECT},
     CONV_ALT},
    {"candidate_selector.hidden_projection.weight", "selector_hidden.weight", {DIM_SELECT, DIM_EMBD}, 0},
    {NULL, NULL, {DIM_NONE}, 0},
};

const struct hf_rule conv_drafter_config[] = {
    {"attention_bias", "[false]"},
    {"hidden_act", "[\"silu\"]"},
    {"mlp_bias", "[false]"},
    {"model_type", "[\"qwen3\", \"dflash\"]"}, /* another backbone orders its norms and rope differently */
    {"partial_rotary_factor", "[1]"},
    {"tie_word_embeddings", NULL},                    /* a drafter has neither embedding nor head */
    {"dflash_config.projector_type", "[\"dflash\"]"}, /* Domino and DSpark exports name theirs here */
    {"dflash_config.attention_mode", "[\"gqa\", \"mha\"]"},
    {"dflash_config.sample_from_anchor", "[false]"}, /* true: row 0 proposes too, which is DSpark's way */
    {"sample_from_anchor", "[false]"},
    /* what a trainer leaves behind */
    {"attention_backend", NULL},
    {"embed_weight_key", NULL},
    {"lm_head_key", NULL},
    {"loss_decay_gamma", NULL},
    {"num_anchors", NULL},
    {"target_model_type", NULL},
    /* ids of a multimodal target's vocabulary */
    {"image_token_id", NULL},
    {"video_token_id", NULL},
    {"vision_end_token_id", NULL},
    {"vision_start_token_id", NULL},
    {NULL, NULL},
};

static const struct conv_relative relatives[] = {
    {"lilicorr", "LiLiCorr"}, /* with a DFlash2's convolutions */
    {"dspine", "DSpine"},
    {"injection.", "DSpine"},
    {"transfer_codes", "DSpine"},
    {"attention_conv.", "DFlash2"},
    {"mlp_conv.", "DFlash2"},
    {"candidate_selector.", "DFlash2"},
    {"conv_kernel_size", "DFlash2"},
    {"selector_rank", "DFlash2"},
    {"markov_", "DSpark"}, /* from here on: DFlash2's relatives, too */
    {"conf_proj", "DSpark"},
    {"confidence_head", "DSpark"},
    {"domino_", "lucebox Domino"},
    {"prefix_gru", "Domino"},
    {"embed_proj", "Domino"},
    {"gru_hidden_dim", "Domino"},
    {"d2t", "reduced-vocabulary"},
    {"draft_vocab_size", "reduced-vocabulary"},
    {"lilicorr", "LiLiCorr"},
    {NULL, NULL},
};
enum { OWN_OF_DFLASH2 = 9 };

static const char *const taps_paths[] = {"dflash_config.target_layer_ids",
                                         "dflash_config.aux_hidden_state_layer_ids", "target_layer_ids",
                                         "aux_hidden_state_layer_ids", NULL};
static const char *const block_paths[] = {"dflash_config.block_size", "block_size", NULL};
static const char *const mask_paths[] = {"dflash_config.mask_token_id", "mask_token_id", NULL};
/* causal_head: JetSpec's checkpoints, which are DFlash drafters whose layers are all causal in the block. */
static const char *const causal_paths[] = {"dflash_config.is_causal",   "dflash_config.causal", "is_causal",
                                           "dflash_config.causal_head", "causal_head",          NULL};
const struct conv_drafter_paths conv_drafter_paths = {taps_paths, block_paths, mask_paths, causal_paths};
static const char *const depth_paths[] = {"dflash_config.num_target_layers", "num_target_layers", NULL};
static const char *const width_paths[] = {"dflash_config.target_hidden_size", "target_hidden_size", NULL};
static const char *const scale_paths[] = {"dflash_config.input_embedding_scale", "input_embedding_scale",
                                          NULL};
static const char *const softcap_paths[] = {"dflash_config.final_logit_softcapping",
                                            "final_logit_softcapping", NULL};

static const char *const multiplier_paths[] = {"dflash_config.output_multiplier", "output_multiplier", NULL};

static const char *const value_scale_paths[] = {"dflash_config.attention_value_scale",
                                                "attention_value_scale", NULL};
static const char *const kernel_paths[] = {"dflash_config.conv_kernel_size", "conv_kernel_size", NULL};
static const char *const group_paths[] = {"dflash_config.conv_group_size", "conv_group_size", NULL};
static const char *const rank_paths[] = {"dflash_config.selector_rank", "selector_rank", NULL};
static const char *const top_k_paths[] = {"dflash_config.selector_top_k", "selector_top_k", NULL};

static int missing(const struct conv *c, const char *what, const char *places, const char *flag,
                   struct err *e)
{
    if (c->cfg)
        err_set(e, ERR_FORMAT, "%s: %s is missing (expected at %s)", hf_config_name(c->cfg), what, places);
    else
        err_set(e, ERR_USAGE, "%s: %s is not known: there is no config.json", c->label, what);
    return err_hint(e, "give it with %s", flag);
}

static void list_text(const int32_t *v, int n, char *buf, size_t size)
{
    size_t used = 0;
    buf[0] = 0;
    for (int i = 0; i < n && used < size; i++)
        used += (size_t)snprintf(buf + used, size - used, "%s%d", i ? "," : "", v[i]);
}

static int get_taps(struct conv *c, struct err *e)
{
    struct conv_drafter *d = &c->d;
    const char *where = NULL;
    char a[256], b[256];
    int n = 0, r = 1;
    if (c->cfg && (r = hf_find_i32_list(c->cfg, taps_paths, d->taps, CONVERT_MAX_TAPS, &n, &where, e)) < 0)
        return -1;
    if (c->o->n_taps > 0) {
        bool same =
            r == 0 && n == c->o->n_taps && !memcmp(d->taps, c->o->taps, (size_t)n * sizeof d->taps[0]);
        list_text(c->o->taps, c->o->n_taps, a, sizeof a);
        list_text(d->taps, n, b, sizeof b);
        if (r == 0 && !same)
            conv_say(c, CONVERT_WARN, "--taps %s is used, %s: %s says %s", a, hf_config_name(c->cfg), where,
                     b);
        n = c->o->n_taps;
        memcpy(d->taps, c->o->taps, (size_t)n * sizeof d->taps[0]);
        where = "--taps";
    } else if (r == 1) {
        return missing(c, "the list of tapped target layers",
                       "dflash_config.target_layer_ids, "
                       "dflash_config.aux_hidden_state_layer_ids, or either at top level",
                       "--taps LIST", e);
    }
    if (n == 0)
        return err_set(e, ERR_FORMAT,
                       "%s: %s is empty (expected the zero-based target layers whose output is tapped)",
                       c->label, where);
    for (int i = 0; i < n; i++)
        if (d->taps[i] < -1)
            return err_set(
                e, ERR_FORMAT,
                "%s: %s[%d] is out of range (expected a zero-based layer, or -1, the embeddings, got "
                "%d)",
                c->label, where, i, d->taps[i]);
    d->n_taps = n;
    list_text(d->taps, n, a, sizeof a);
    if (desc_tap_twice(d->taps, n, 0) >= 0)
        return err_set(e, ERR_FORMAT,
                       "%s: %s names block %d more than once (expected different ones, got %s)", c->label,
                       where, desc_tap_twice(d->taps, n, 0), a);
    conv_say(c, CONVERT_DETAIL, "taps: %s (%s)", a, where);
    return 0;
}

/* An integer part: flag (where flag_v >= min), else the config. */
static int get_int(struct conv *c, const char *what, const char *flag, int64_t flag_v,
                   const char *const *paths, const char *places, int64_t min, int64_t max, int64_t *v,
                   struct err *e)
{
    const char *where = NULL;
    int r = 1;
    if (c->cfg && (r = hf_find_i64(c->cfg, paths, min, max, v, &where, e)) < 0) return -1;
    if (flag_v >= min) {
        if (r == 0 && *v != flag_v)
            conv_say(c, CONVERT_WARN, "%s %lld is used, %s: %s says %lld", flag, (long long)flag_v,
                     hf_config_name(c->cfg), where, (long long)*v);
        *v = flag_v;
        where = flag;
    } else if (r == 1) {
        char f[64];
        snprintf(f, sizeof f, "%s N", flag);
        return missing(c, what, places, f, e);
    }
    conv_say(c, CONVERT_DETAIL, "%s: %lld (%s)", what, (long long)*v, where);
    return 0;
}

int conv_drafter_parts(struct conv *c, struct err *e)
{
    if (get_taps(c, e)) return -1;
    if (get_int(c, "the block size", "--block-size", c->o->block_size, block_paths,
                "dflash_config.block_size or block_size", 2, 64, &c->d.block_size, e))
        return -1;
    if (get_int(c, "the mask token id", "--mask-id", c->o->mask_id, mask_paths,
                "dflash_config.mask_token_id or mask_token_id", 0, INT32_MAX, &c->d.mask_id, e))
        return -1;
    if (c->dir) { /* some exports keep the mask's embedding apart, because the target's table has no row for
                     it */
        char path[4096];
        if ((size_t)snprintf(path, sizeof path, "%s/mask_embedding.pt", c->dir) >= sizeof path)
            return err_set(e, ERR_USAGE, "%s: path too long", c->dir);
        int there = io_exists(path, e);
        if (there < 0) return -1;
        if (there)
            return err_set(
                e, ERR_FORMAT,
                "%s: a mask embedding of the drafter's own is not supported (expected the mask token "
                "in the target's table)",
                path);
    }
    return 0;
}

/* DFlash2: sizes that config.json must say. */
static int parts2(struct conv *c, struct err *e)
{
    int64_t rank = 0;
    const struct {
        const char *what;
        const char *const *paths;
        int64_t max, *v;
    } n[] = {{"conv_kernel_size", kernel_paths, 64, &c->d.conv_kernel},
             {"conv_group_size", group_paths, INT32_MAX, &c->d.conv_group},
             {"selector_rank", rank_paths, INT32_MAX, &rank},
             {"selector_top_k", top_k_paths, INT32_MAX, &c->d.selector_k}};
    if (conv_drafter_parts(c, e)) return -1;
    if (!c->cfg)
        return err_set(e, ERR_FORMAT, "%s: a DFlash2 drafter does not convert without its config.json",
                       c->label);
    for (size_t i = 0; i < sizeof n / sizeof n[0]; i++) {
        const char *where = NULL;
        int r = hf_find_i64(c->cfg, n[i].paths, 1, n[i].max, n[i].v, &where, e);
        if (r < 0) return -1;
        if (r == 1)
            return err_set(e, ERR_FORMAT, "%s: %s is missing (expected at dflash_config.%s or %s)",
                           hf_config_name(c->cfg), n[i].what, n[i].what, n[i].what);
        conv_say(c, CONVERT_DETAIL, "%s: %lld (%s)", n[i].what, (long long)*n[i].v, where);
    }
    conv_set_dim(c, DIM_SIDES, 2, "the two sides of a convolution");
    conv_set_dim(c, DIM_CONV, c->d.conv_kernel, "conv_kernel_size");
    return conv_set_dim(c, DIM_SELECT, rank, "selector_rank");
}

/* Random weights: what the stack's sizes do not say. */
static int sizes2(struct conv *c, struct err *e)
{
    int64_t vocab;
    if (conv_need_i64(c, "vocab_size", &vocab, e)) return -1;
    conv_set_dim(c, DIM_VOCAB, vocab, "vocab_size");
    return conv_set_dim(c, DIM_CONV_PROJ, 2 * c->d.conv_kernel * (c->dim[DIM_EMBD] / c->d.conv_group),
                        "2 x conv_kernel_size x hidden_size / conv_group_size");
}

/* Which layers slide, over which window. */
static int get_window(struct conv *c, struct err *e)
{
    struct conv_drafter *d = &c->d;
    const char *types[DESC_MAX_LAYERS], *cfg = c->cfg ? hf_config_name(c->cfg) : "";
    int n = 0;
    int64_t window = 0;
    bool use = true, has_use;
    if (!c->cfg) {
        conv_say(c, CONVERT_NOTE,
                 "no config.json: every layer is taken as full attention, bidirectional in the block");
        return 0;
    }
    int r = hf_get_str_list(c->cfg, "layer_types", types, DESC_MAX_LAYERS, &n, e);
    int u = hf_get_bool(c->cfg, "use_sliding_window", &use, e);
    int w = hf_get_i64(c->cfg, "sliding_window", 0, INT32_MAX, &window, e);
    if (r < 0 || u < 0 || w < 0) return -1;
    has_use = u == 0;
    if (r == 1) {
        if (has_use && use)
            return err_set(
                e, ERR_FORMAT,
                "%s: use_sliding_window is true but layer_types is missing: which layers slide is not "
                "known",
                cfg);
        if (!has_use && w == 0 && window > 0)
            return err_set(e, ERR_FORMAT,
                           "%s: sliding_window is %lld but layer_types is missing: which layers slide is not "
                           "known",
                           cfg, (long long)window);
        conv_say(c, CONVERT_DETAIL, "window: none, every layer is full attention (no layer_types)");
        return 0;
    }
    if (n != c->n_layer)
        return err_set(e, ERR_FORMAT, "%s: layer_types has the wrong length (expected %d layers, got %d)",
                       cfg, c->n_layer, n);
    for (int i = 0; i < n; i++) {
        d->sliding[i] = !strcmp(types[i], "sliding_attention");
        d->any_sliding |= d->sliding[i];
        if (!d->sliding[i] && strcmp(types[i], "full_attention"))
            return err_set(e, ERR_FORMAT,
                           "%s: layer_types[%d] is not implemented (expected \"full_attention\" or "
                           "\"sliding_attention\", got \"%.64s\")",
                           cfg, i, types[i]);
    }
    if (!d->any_sliding) {
        conv_say(c, CONVERT_DETAIL, "window: none, every layer is full attention (layer_types)");
        return 0;
    }
    if (has_use && !use)
        return err_set(e, ERR_FORMAT, "%s: layer_types has sliding layers but use_sliding_window is false",
                       cfg);
    if (w == 1 || window == 0)
        return err_set(e, ERR_FORMAT, "%s: sliding_window is missing (layer_types has sliding layers)", cfg);
    d->window = window;
    return 0;
}

static int put_attention(struct conv *c, struct err *e)
{
    struct conv_drafter *d = &c->d;
    uint8_t pattern[DESC_MAX_LAYERS];
    char key[160];
    bool is_causal = false;
    const char *where = NULL;
    int r = c->cfg ? hf_find_bool(c->cfg, causal_paths, &is_causal, &where, e) : 1;
    if (r < 0) return -1;
    bool all = true;
    for (int i = 0; i < c->n_layer; i++)
        all &= d->causal[i] = r == 0 ? is_causal : d->sliding[i] && !c->d.conv_kernel;
    if (d->any_sliding) {
        for (int i = 0; i < c->n_layer; i++) pattern[i] = d->sliding[i];
        if (conv_put_u32(c, "attention.sliding_window", d->window, e) ||
            gguf_put_array(c->w, dialect_key(c->dialect, "attention.sliding_window_pattern", key, sizeof key),
                           GGUF_BOOL, pattern, (uint64_t)c->n_layer, e))
            return -1;
    }
    const bool put =
        c->dialect->causal == CAUSAL_IGNORED || ((r == 0 || all) && c->dialect->causal == CAUSAL_OPTIONAL);
    if (put && gguf_put_bool(c->w, dialect_key(c->dialect, "attention.causal", key, sizeof key), all, e))
        return -1;
    char text[DESC_MAX_LAYERS + 1];
    for (int i = 0; i < c->n_layer; i++) {
        pattern[i] = d->causal[i];
        text[i] = d->sliding[i] ? (d->causal[i] ? 'S' : 's') : (d->causal[i] ? 'F' : 'f');
    }
    text[c->n_layer] = 0;
    conv_say(c, CONVERT_DETAIL, "attention: %s (f full, s sliding%s; capital: causal in the block%s%s)", text,
             d->any_sliding ? "" : ", none",
             r == 0             ? ", "
             : c->d.conv_kernel ? ": none in a DFlash2, no is_causal"
                                : ": sliding layers are, no is_causal",
             r == 0 ? where : "");
    if (d->any_sliding) conv_say(c, CONVERT_DETAIL, "window: %lld", (long long)d->window);
    return gguf_put_array(c->w, dialect_key(c->dialect, "attention.causal_pattern", key, sizeof key),
                          GGUF_BOOL, pattern, (uint64_t)c->n_layer, e);
}

/* output_multiplier, on the draft logits before the softcap: 1 where the config has none. */
static int put_multiplier(struct conv *c, struct err *e)
{
    double v = 1;
    const char *where = NULL;
    int r = c->cfg ? hf_find_f64(c->cfg, multiplier_paths, &v, &where, e) : 1;
    if (r < 0) return -1;
    if (!(v > 1e-6 && v < 1e6))
        return err_set(e, ERR_FORMAT, "%s: %s is out of range (expected a positive number, got %.9g)",
                       hf_config_name(c->cfg), where, v);
    c->d.has_multiplier = v != 1;
    if (v == 1) return 0;
    conv_say(c, CONVERT_DETAIL, "scale of the draft logits: %.9g (%s)", v, where);
    return conv_put_f32(c, "logit_scale", v, e);
}

/* Sinks, which the tensors tell, and a scale of what attention leaves. */
static int put_sinks(struct conv *c, struct err *e)
{
    struct conv_drafter *d = &c->d;
    const int r = c->cfg ? hf_find_f64(c->cfg, value_scale_paths, &d->value_scale, NULL, e) : 1;
    if (r < 0) return -1;
    if (c->dim[DIM_HEADS] && c->dim[DIM_HEADS] != c->n_head)
        return err_set(e, ERR_FORMAT, "%s: %s has the wrong shape (expected %d heads, got %lld)", c->label,
                       c->dim_from[DIM_HEADS], c->n_head, (long long)c->dim[DIM_HEADS]);
    if (r == 0 && !(d->value_scale > 1e-6 && d->value_scale < 1e6))
        return err_set(e, ERR_FORMAT,
                       "%s: attention_value_scale is out of range (expected a positive number, got %.9g)",
                       hf_config_name(c->cfg), d->value_scale);
    if (r == 0 && d->conv_kernel)
        return err_set(e, ERR_FORMAT, "%s: attention_value_scale is not implemented in a DFlash2 drafter",
                       hf_config_name(c->cfg));
    if (!d->pieces && (r == 0 || c->dim[DIM_HEADS]))
        d->pieces = r == 0 ? "a scale of attention" : "attention sinks";
    return r == 0 ? conv_put_f32(c, "attention.value_scale", d->value_scale, e) : 0;
}

/* input_embedding_scale and the softcap: the config's, else the target's own, which our readers take from the
 * target. llama.cpp embeds without a scale where the key is absent and caps nothing, so it is told. */
static int put_scales(struct conv *c, struct err *e)
{
    double v = 0, scale = 1, cap = 0;
    if (c->dialect->extended && !c->d.gemma4 && conv_target_ends(c, &scale, &cap, e)) return -1;
    int r = c->cfg ? hf_find_f64(c->cfg, scale_paths, &v, NULL, e) : 1;
    if (r < 0) return -1;
    if (r == 0 && !(v > 0 && v < 1e6))
        return err_set(e, ERR_FORMAT,
                       "%s: input_embedding_scale is out of range (expected a positive number, got %.9g)",
                       hf_config_name(c->cfg), v);
    c->d.has_scale = r == 0;
    if (r == 0 && conv_put_f32(c, "embedding_scale", v, e)) return -1;
    if (r == 1 && scale > 1 && conv_put_f32(c, "embedding_scale", scale, e)) return -1;
    if (r == 1)
        conv_say(c, CONVERT_DETAIL, "embedding scale: %s (no input_embedding_scale)",
                 c->d.gemma4 ? "the root of the width, rounded to bf16" : "the target's own");
    r = c->cfg ? hf_find_f64(c->cfg, softcap_paths, &v, NULL, e) : 1;
    if (r < 0) return -1;
    if (r == 0 && !(v > 0 && v < 1e6))
        return err_set(e, ERR_FORMAT,
                       "%s: final_logit_softcapping is out of range (expected a positive number, got %.9g)",
                       hf_config_name(c->cfg), v);
    c->d.has_softcap = r == 0;
    if (r == 0 && conv_put_f32(c, "final_logit_softcapping", v, e)) return -1;
    if (r == 1 && cap > 0 && conv_put_f32(c, "final_logit_softcapping", cap, e)) return -1;
    if (r == 1)
        conv_say(c, CONVERT_DETAIL, "softcap: %s (no final_logit_softcapping)",
                 c->d.gemma4 ? "none" : "the target's own");
    return put_multiplier(c, e);
}

/* Everything that names a size of the target, against each other. */
static int check_target(struct conv *c, struct err *e)
{
    const struct conv_drafter *d = &c->d;
    const struct conv_target *t = &c->target;
    int64_t declared = 0, width = 0;
    const char *depth_at = NULL, *width_at = NULL;
    if (c->cfg && (hf_find_i64(c->cfg, depth_paths, 1, DESC_MAX_LAYERS, &declared, &depth_at, e) < 0 ||
                   hf_find_i64(c->cfg, width_paths, 1, INT32_MAX, &width, &width_at, e) < 0))
        return -1;
    if (width && width != c->dim[DIM_EMBD])
        return err_set(e, ERR_FORMAT, "%s: %s does not match the tensors (expected %lld from %s, got %lld)",
                       hf_config_name(c->cfg), width_at, (long long)c->dim[DIM_EMBD], c->dim_from[DIM_EMBD],
                       (long long)width);
    if (c->dim[DIM_FEATURES] != d->n_taps * c->dim[DIM_EMBD])
        return err_set(
            e, ERR_FORMAT,
            "%s: fc.weight does not fit the taps (expected %d taps x %lld = %lld columns, got %lld)",
            c->label, d->n_taps, (long long)c->dim[DIM_EMBD], (long long)(d->n_taps * c->dim[DIM_EMBD]),
            (long long)c->dim[DIM_FEATURES]);
    if (t->n_embd && t->n_embd != c->dim[DIM_EMBD])
        return err_set(
            e, ERR_FORMAT,
            "%s: the drafter does not fit the target %s: hidden size (expected %lld as the target, got "
            "%lld)",
            c->label, c->o->target, (long long)t->n_embd, (long long)c->dim[DIM_EMBD]);
    if (t->n_layer && declared && t->n_layer != declared)
        return err_set(e, ERR_FORMAT, "%s: %s does not fit the target %s (expected %lld, got %lld)",
                       hf_config_name(c->cfg), depth_at, c->o->target, (long long)t->n_layer,
                       (long long)declared);
    int64_t layers = t->n_layer ? t->n_layer : declared;
    for (int i = 0; layers && i < d->n_taps; i++)
        if (d->taps[i] >= layers)
            return err_set(e, ERR_FORMAT,
                           "%s: tap %d is out of range (expected below the target's %lld layers, got %d)",
                           c->label, i, (long long)layers, d->taps[i]);
    const int32_t twice = layers ? desc_tap_twice(d->taps, d->n_taps, (int32_t)layers) : -1;
    if (twice >= 0)
        return err_set(
            e, ERR_FORMAT,
            "%s: a block of the target is tapped twice (expected different ones, got %d more than once)",
            c->label, twice);
    if (t->n_vocab && c->n_vocab && t->n_vocab != c->n_vocab)
        return err_set(e, ERR_FORMAT, "%s: vocab_size does not fit the target %s (expected %lld, got %lld)",
                       hf_config_name(c->cfg), c->o->target, (long long)t->n_vocab, (long long)c->n_vocab);
    int64_t vocab = t->n_vocab ? t->n_vocab : c->n_vocab;
    if (vocab && d->mask_id >= vocab)
        return err_set(e, ERR_FORMAT,
                       "%s: the mask token id is outside the vocabulary (expected below %lld, got %lld)",
                       c->label, (long long)vocab, (long long)d->mask_id);
    return 0;
}

int conv_drafter_keys(struct conv *c, struct err *e)
{
    const struct conv_drafter *d = &c->d;
    const struct dialect_parts p = {.n_taps = d->n_taps,
                                    .taps = d->taps,
                                    .block_size = (int32_t)d->block_size,
                                    .mask_id = (int32_t)d->mask_id,
                                    .n_features = (int32_t)c->dim[DIM_FEATURES]};
    if (check_target(c, e) || get_window(c, e) || conv_put_common(c, e)) return -1;
    if (c->n_vocab && conv_put_u32(c, "vocab_size", c->n_vocab, e)) return -1;
    if (dialect_put(c->w, c->dialect, &p, e)) return -1;
    return put_attention(c, e) || put_sinks(c, e) || put_scales(c, e) || conv_put_norm_crc(c, e) ? -1 : 0;
}

/* DFlash2: the same and its own, whose shapes must agree with what was said of them. */
static int keys2(struct conv *c, struct err *e)
{
    const struct conv_drafter *d = &c->d;
    const int64_t embd = c->dim[DIM_EMBD], vocab = c->dim[DIM_VOCAB], proj = c->dim[DIM_CONV_PROJ];
    if (embd % d->conv_group)
        return err_set(e, ERR_FORMAT,
                       "%s: conv_group_size does not divide the width (expected a divisor of %lld, got %lld)",
                       hf_config_name(c->cfg), (long long)embd, (long long)d->conv_group);
    if (proj != 2 * d->conv_kernel * (embd / d->conv_group))
        return err_set(e, ERR_FORMAT,
                       "%s: %s does not fit conv_kernel_size %lld and conv_group_size %lld (expected %lld "
                       "rows, got %lld)",
                       c->label, c->dim_from[DIM_CONV_PROJ], (long long)d->conv_kernel,
                       (long long)d->conv_group, (long long)(2 * d->conv_kernel * (embd / d->conv_group)),
                       (long long)proj);
    const int64_t want = c->n_vocab ? c->n_vocab : c->target.n_vocab;
    if (want && vocab != want)
        return err_set(e, ERR_FORMAT, "%s: %s: rows (expected the vocabulary's %lld, got %lld)", c->label,
                       c->dim_from[DIM_VOCAB], (long long)want, (long long)vocab);
    if (conv_drafter_keys(c, e)) return -1;
    return conv_put_u32(c, "conv_kernel_size", d->conv_kernel, e) ||
                   conv_put_u32(c, "conv_group_size", d->conv_group, e) ||
                   conv_put_u32(c, "selector_rank", c->dim[DIM_SELECT], e) ||
                   conv_put_u32(c, "selector_top_k", d->selector_k, e)
               ? -1
               : 0;
}

int conv_no_multiplier(const struct conv *c, struct err *e)
{
    if (!c->d.has_multiplier) return 0;
    return err_set(e, ERR_FORMAT, "%s: output_multiplier is not implemented in a %s drafter (expected 1)",
                   hf_config_name(c->cfg), c->d.kind);
}

/* Does the dialect have a place for all of it. */
int conv_drafter_finish(struct conv *c, struct err *e)
{
    const struct conv_drafter *d = &c->d;
    struct desc_layer *layer = mem_calloc((size_t)c->n_layer, sizeof *layer);
    if (!layer) return err_set(e, ERR_IO, "out of memory (layers)");
    for (int i = 0; i < c->n_layer; i++) {
        layer[i].window = d->sliding[i] ? (int32_t)d->window : 0;
        layer[i].causal = d->causal[i];
    }
    const struct relabel_facts f = {.label = c->label,
                                    .kind = d->conv_kernel ? "DFlash2"
                                            : d->kind      ? d->kind
                                                           : "DFlash",
                                    .pieces = d->conv_kernel ? "convolutions, a candidate selector"
                                              : d->pieces    ? d->pieces
                                                             : "",
                                    .n_layer = c->n_layer,
                                    .layer = layer,
                                    .own_embed = d->own_embed,
                                    .own_head = d->own_head,
                                    .tied = d->own_tied,
                                    .has_scale = d->has_scale,
                                    .has_softcap = d->has_softcap,
                                    .has_multiplier = d->has_multiplier,
                                    .tokenizer = d->tokenizer || !c->dialect->tokenizer || !c->o->dialect,
                                    .rms_eps = c->rms_eps};
    int rc = 0;
    if (c->o->dialect)
        rc = relabel_check(c->dialect, &f, c->o, e);
    else
        relabel_causal(c->dialect, &f, c->o);
    mem_free(layer);
    return rc;
}

const struct conv_family conv_dflash = {
    .hf = "DFlashDraftModel",
    .arch = "dflash",
    .drafter = true,
    .rules = rules,
    .config = conv_drafter_config,
    .relatives = relatives,
    .signature = "hidden_norm.weight",
    .parts = conv_drafter_parts,
    .keys = conv_drafter_keys,
    .finish = conv_drafter_finish,
};

const struct conv_family conv_dflash2 = {
    .hf = "DFlash2DraftModel",
    .arch = "dflash",
    .drafter = true,
    .rules = rules2,
    .config = conv_drafter_config,
    .relatives = relatives + OWN_OF_DFLASH2,
    .signature = "candidate_selector.hidden_projection.weight",
    .parts = parts2,
    .sizes = sizes2,
    .keys = keys2,
    .finish = conv_drafter_finish,
};
