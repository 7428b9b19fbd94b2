/* convert_domino.c - Domino drafters as they are published (DominoDraftModel, or a DFlashDraftModel whose
 * dflash_config has the projector "domino"). lucebox has another form, with a learnt start and biases: it is
 * recognised and refused. No other GGUF of them is known, so keys and tensors are ours: docs/drafter.md. */
#include "convert_drafter.h"

#include <string.h>

static const struct conv_rule rules[] = {
    STACK_BEGINS,
    STACK_LAYERS,
    {"norm.weight", "output_norm.weight", {DIM_EMBD}, 0},
    {"prefix_gru.weight_ih_l0", "domino_ih.weight", {DIM_STATE3, DIM_EMBD}, 0},
    {"prefix_gru.weight_hh_l0", "domino_hh.weight", {DIM_STATE3, DIM_STATE}, 0},
    {"embed_proj.0.weight", "domino_down.weight", {DIM_CORRECT, DIM_STATE_IN}, 0},
    {"embed_proj.2.weight", "domino_up.weight", {DIM_VOCAB, DIM_CORRECT}, 0},
    {NULL, NULL, {DIM_NONE}, 0},
};

static const struct conv_relative relatives[] = {
    {"attention_conv.", "DFlash2"},
    {"mlp_conv.", "DFlash2"},
    {"candidate_selector.", "DFlash2"},
    {"conv_kernel_size", "DFlash2"},
    {"markov_", "DSpark"},
    {"confidence_head", "DSpark"},
    {"domino_start", "lucebox Domino"},
    {"domino_gru", "lucebox Domino"},
    {"domino_head", "lucebox Domino"},
    {"d2t", "reduced-vocabulary"},
    {NULL, NULL},
};

static const char *const shift_paths[] = {"dflash_config.shift_label", "shift_label", NULL};
static const char *const pure_paths[] = {"dflash_config.pure_draft_prefix_len", "pure_draft_prefix_len",
                                         NULL};
static const char *const state_paths[] = {"dflash_config.gru_hidden_dim", "gru_hidden_dim", NULL};
static const char *const correct_paths[] = {"dflash_config.emb_dim", "emb_dim", NULL};

static int missing(const struct conv *c, const char *key, struct err *e)
{
    return err_set(e, ERR_FORMAT, "%s: %s is missing (expected at dflash_config.%s or %s)",
                   hf_config_name(c->cfg), key, key, key);
}

static int parts(struct conv *c, struct err *e)
{
    const char *projector = NULL, *where = NULL;
    if (!c->cfg)
        return err_set(e, ERR_FORMAT, "%s: a Domino drafter does not convert without its config.json",
                       c->label);
    if (conv_drafter_parts(c, e) || hf_get_str(c->cfg, "dflash_config.projector_type", &projector, e) < 0)
        return -1;
    if (projector && strcmp(projector, "domino"))
        return err_set(e, ERR_FORMAT,
                       "%s: dflash_config.projector_type is not a Domino drafter's (expected \"domino\", got "
                       "\"%.64s\")",
                       hf_config_name(c->cfg), projector);
    int rc = hf_find_bool(c->cfg, shift_paths, &c->d.shift_label, &where, e);
    if (rc) return rc < 0 ? -1 : missing(c, "shift_label", e);
    rc = hf_find_i64(c->cfg, pure_paths, 0, c->d.block_size, &c->d.pure_prefix, &where, e);
    if (rc) return rc < 0 ? -1 : missing(c, "pure_draft_prefix_len", e);
    conv_say(c, CONVERT_DETAIL, "proposals: of %s, the first %lld without correction",
             c->d.shift_label ? "the anchor's row on" : "the rows behind the anchor's",
             (long long)c->d.pure_prefix);
    c->d.kind = "Domino", c->d.pieces = "a recurrent unit over the block";
    return 0;
}

static int sizes(struct conv *c, struct err *e)
{
    int64_t state = 0, correct = 0, vocab;
    if (conv_need_i64(c, "vocab_size", &vocab, e) ||
        hf_find_i64(c->cfg, state_paths, 1, 1 << 20, &state, NULL, e) < 0 ||
        hf_find_i64(c->cfg, correct_paths, 1, 1 << 20, &correct, NULL, e) < 0)
        return -1;
    if (!state || !correct) return missing(c, state ? "emb_dim" : "gru_hidden_dim", e);
    conv_set_dim(c, DIM_VOCAB, vocab, "vocab_size");
    conv_set_dim(c, DIM_STATE, state, "gru_hidden_dim");
    conv_set_dim(c, DIM_STATE3, 3 * state, "3 x gru_hidden_dim");
    conv_set_dim(c, DIM_STATE_IN, c->dim[DIM_EMBD] + state, "hidden_size + gru_hidden_dim");
    return conv_set_dim(c, DIM_CORRECT, correct, "emb_dim");
}

static int check(const struct conv *c, enum conv_dim d, int64_t want, const char *what, struct err *e)
{
    if (c->dim[d] == want) return 0;
    return err_set(e, ERR_FORMAT, "%s: %s has the wrong shape (expected %lld: %s, got %lld)", c->label,
                   c->dim_from[d], (long long)want, what, (long long)c->dim[d]);
}

static int witness(struct conv *c, const char *const *paths, enum conv_dim d, struct err *e)
{
    int64_t v = c->dim[d];
    const char *where = NULL;
    if (hf_find_i64(c->cfg, paths, 1, INT32_MAX, &v, &where, e) < 0) return -1;
    if (v == c->dim[d]) return 0;
    return err_set(e, ERR_FORMAT, "%s: %s does not match the tensors (expected %lld from %s, got %lld)",
                   hf_config_name(c->cfg), where, (long long)c->dim[d], c->dim_from[d], (long long)v);
}

static int keys(struct conv *c, struct err *e)
{
    const int64_t want = c->n_vocab ? c->n_vocab : c->target.n_vocab;
    if (check(c, DIM_STATE3, 3 * c->dim[DIM_STATE], "three times the state", e) ||
        check(c, DIM_STATE_IN, c->dim[DIM_EMBD] + c->dim[DIM_STATE], "the stream and the state", e) ||
        (want && check(c, DIM_VOCAB, want, "the vocabulary's rows", e)) ||
        witness(c, state_paths, DIM_STATE, e) || witness(c, correct_paths, DIM_CORRECT, e))
        return -1;
    return conv_drafter_keys(c, e) || conv_no_multiplier(c, e) ||
                   conv_put_bool(c, "domino.shift_label", c->d.shift_label, e) ||
                   conv_put_u32(c, "domino.pure_draft_prefix_len", c->d.pure_prefix, e)
               ? -1
               : 0;
}

const struct conv_family conv_domino = {
    .hf = "DominoDraftModel",
    .arch = "dflash",
    .drafter = true,
    .projector = "domino",
    .rules = rules,
    .config = conv_drafter_config,
    .relatives = relatives,
    .signature = "prefix_gru.weight_ih_l0",
    .parts = parts,
    .sizes = sizes,
    .keys = keys,
    .finish = conv_drafter_finish,
};
