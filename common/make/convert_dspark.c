/* convert_dspark.c - DSpark drafters: DeepSpec's Qwen3DSparkModel, whose config is flat, and SpecForge's
 * DSparkDraftModel, whose parts are in dflash_config.
 *
 * The type of the Markov head, whether there is a confidence head and whether that reads the token before are
 * told by the tensors; config.json must agree where it says them. docs/drafter.md has the tables. */
#include "convert_drafter.h"

#include <stdio.h>
#include <string.h>

static const struct conv_rule rules[] = {
    STACK_BEGINS,
    STACK_LAYERS,
    {"norm.weight", "output_norm.weight", {DIM_EMBD}, 0},
    DSPARK_HEADS,
    {NULL, NULL, {DIM_NONE}, 0},
};

const struct conv_relative conv_dspark_relatives[] = {
    {"attention_conv.", "DFlash2"},
    {"mlp_conv.", "DFlash2"},
    {"candidate_selector.", "DFlash2"},
    {"conv_kernel_size", "DFlash2"},
    {"prefix_gru", "Domino"},
    {"gru_hidden_dim", "Domino"},
    {NULL, NULL},
};

/* The same as d2t, a bit for every token. */
const struct conv_relative conv_dspark_skip[] = {{"t2d", "reduced vocabulary's other table"}, {NULL, NULL}};

#define PLACES(key)                                                                                          \
    (const char *const[])                                                                                    \
    {                                                                                                        \
        "dflash_config." key, key, NULL                                                                      \
    }

static const char *const types[] = {"vanilla", "gated", "rnn"};

static int get_type(struct conv *c, struct err *e)
{
    const char *v = NULL;
    int rc = 1;
    c->d.markov = -1;
    for (const char *const *p = PLACES("markov_head_type"); *p && rc == 1; p++)
        rc = hf_get_str(c->cfg, *p, &v, e);
    if (rc) return rc < 0 ? -1 : 0;
    for (int i = 0; i < 3; i++)
        if (!strcmp(v, types[i])) c->d.markov = i;
    if (c->d.markov >= 0) return 0;
    return err_set(e, ERR_FORMAT,
                   "%s: markov_head_type is not known (expected \"vanilla\", \"gated\" or \"rnn\", got "
                   "\"%.64s\")",
                   hf_config_name(c->cfg), v);
}

/* -1: it does not say. */
static int get_flag(struct conv *c, const char *const *places, int *flag, struct err *e)
{
    bool v = false;
    const int rc = hf_find_bool(c->cfg, places, &v, NULL, e);
    *flag = rc == 0 ? v : -1;
    return rc < 0 ? -1 : 0;
}

/* What stands where a DFlash drafter has something else. */
static int check_names(struct conv *c, struct err *e)
{
    static const struct {
        const char *path, *ok[3];
    } names[] = {{"dflash_config.projector_type", {"dspark", NULL, NULL}},
                 {"model_type", {"qwen3", "dspark", "dflash"}}};
    const size_t n = c->fam->head_key ? 1 : 2; /* a family of other blocks has its own model_type */
    for (size_t i = 0; i < n; i++) {
        const char *v = NULL;
        const int rc = hf_get_str(c->cfg, names[i].path, &v, e);
        bool good = rc == 1;
        if (rc < 0) return -1;
        for (int k = 0; k < 3 && rc == 0; k++) good |= names[i].ok[k] && !strcmp(v, names[i].ok[k]);
        if (!good)
            return err_set(e, ERR_FORMAT, "%s: %s is not a DSpark drafter's (expected \"%s\", got \"%.64s\")",
                           hf_config_name(c->cfg), names[i].path, names[i].ok[0], v);
    }
    return 0;
}

int conv_dspark_parts(struct conv *c, struct err *e)
{
    const char *where = NULL;
    if (!c->cfg)
        return err_set(e, ERR_FORMAT, "%s: a DSpark drafter does not convert without its config.json",
                       c->label);
    if (conv_drafter_parts(c, e) || check_names(c, e) || get_type(c, e) ||
        get_flag(c, PLACES("enable_confidence_head"), &c->d.confidence, e) ||
        get_flag(c, PLACES("confidence_head_with_markov"), &c->d.confidence_markov, e))
        return -1;
    c->d.from_anchor = true; /* what the class does, which has no switch for it */
    const int rc = hf_find_bool(c->cfg, PLACES("sample_from_anchor"), &c->d.from_anchor, &where, e);
    if (rc < 0) return -1;
    conv_say(c, CONVERT_DETAIL, "the anchor's row %s (%s)",
             c->d.from_anchor ? "proposes" : "proposes nothing",
             rc == 0 ? where : "as the class has it: no sample_from_anchor");
    c->d.kind = "DSpark", c->d.pieces = "a Markov head, a confidence head";
    return 0;
}

/* Random weights: what config.json must say then. */
int conv_dspark_sizes(struct conv *c, struct err *e)
{
    int64_t rank = -1, draft = 0, vocab;
    if (conv_need_i64(c, "vocab_size", &vocab, e) ||
        hf_find_i64(c->cfg, PLACES("markov_rank"), 0, 1 << 20, &rank, NULL, e) < 0 ||
        hf_find_i64(c->cfg, PLACES("draft_vocab_size"), 1, INT32_MAX, &draft, NULL, e) < 0)
        return -1;
    if (rank < 0 || (rank && c->d.markov < 0) || c->d.confidence < 0 ||
        (c->d.confidence > 0 && c->d.confidence_markov < 0))
        return err_set(e, ERR_FORMAT,
                       "%s: markov_rank, markov_head_type, enable_confidence_head or "
                       "confidence_head_with_markov is missing (there are no weights to tell it)",
                       hf_config_name(c->cfg));
    if (draft && draft != vocab)
        return err_set(e, ERR_FORMAT,
                       "%s: random weights of a reduced vocabulary are not made (expected "
                       "draft_vocab_size %lld, got %lld)",
                       hf_config_name(c->cfg), (long long)vocab, (long long)draft);
    const int64_t embd = c->dim[DIM_EMBD];
    conv_set_dim(c, DIM_VOCAB, rank ? vocab : 0, "vocab_size");
    conv_set_dim(c, DIM_VOCAB_DRAFT, rank ? vocab : 0, "vocab_size");
    conv_set_dim(c, DIM_RANK, rank, "markov_rank");
    conv_set_dim(c, DIM_GATE_IN, c->d.markov == 1 ? embd + rank : 0, "hidden_size + markov_rank");
    conv_set_dim(c, DIM_RANK3, c->d.markov == 2 ? 3 * rank : 0, "3 x markov_rank");
    conv_set_dim(c, DIM_JOINT_IN, c->d.markov == 2 ? embd + 2 * rank : 0, "hidden_size + 2 x markov_rank");
    return conv_set_dim(c, DIM_CONF_IN,
                        !c->d.confidence         ? 0
                        : c->d.confidence_markov ? embd + rank
                                                 : embd,
                        "the confidence head's input");
}

/* A size that two of a head's tensors agree about and that another one gives. */
static int must_be(const struct conv *c, enum conv_dim d, int64_t want, const char *what, struct err *e)
{
    if (!c->dim[d] || c->dim[d] == want) return 0;
    return err_set(e, ERR_FORMAT, "%s: %s has the wrong shape (expected %lld: %s, got %lld)", c->label,
                   c->dim_from[d], (long long)want, what, (long long)c->dim[d]);
}

static const struct conv_tensor *tensor(const struct conv *c, const char *name)
{
    for (int64_t i = 0; i < c->n_t; i++)
        if (!strcmp(c->t[i].name, name)) return &c->t[i];
    return NULL;
}

/* config.json against a fact of the tensors. */
static int agrees(const struct conv *c, const char *key, int said, int found, const char *from, struct err *e)
{
    if (said < 0 || said == found) return 0;
    return err_set(e, ERR_FORMAT, "%s: %s does not match the tensors (expected %s from %s, got %s)",
                   hf_config_name(c->cfg), key, found ? "true" : "false", from, said ? "true" : "false");
}

static int check_markov(struct conv *c, struct err *e)
{
    const bool w1 = tensor(c, "markov_w1.weight"), w2 = tensor(c, "markov_w2.weight");
    const bool gate = tensor(c, "markov_gate.weight"), joint = tensor(c, "markov_joint.weight");
    const int64_t rank = w1 ? c->dim[DIM_RANK] : 0, embd = c->dim[DIM_EMBD];
    int64_t said = rank;
    if (w1 != w2 || (gate && joint) || ((gate || joint) && !w1) || gate != !!tensor(c, "markov_gate.bias") ||
        joint != !!tensor(c, "markov_joint.bias"))
        return err_set(e, ERR_FORMAT,
                       "%s: no whole Markov head (expected markov_w1 and markov_w2, and with them weight and "
                       "bias of none or one of gate_proj and joint_proj)",
                       c->label);
    if (hf_find_i64(c->cfg, PLACES("markov_rank"), 0, INT32_MAX, &said, NULL, e) < 0) return -1;
    if (said != rank)
        return err_set(e, ERR_FORMAT, "%s: markov_rank does not match the tensors (expected %lld, got %lld)",
                       hf_config_name(c->cfg), (long long)rank, (long long)said);
    const int found = gate ? 1 : joint ? 2 : 0;
    if (w1 && c->d.markov >= 0 && c->d.markov != found)
        return err_set(e, ERR_FORMAT,
                       "%s: markov_head_type does not match the tensors (expected \"%s\", got \"%s\")",
                       hf_config_name(c->cfg), types[found], types[c->d.markov]);
    c->d.markov = found;
    if (must_be(c, DIM_GATE_IN, embd + rank, "the stream and the rank", e) ||
        must_be(c, DIM_JOINT_IN, embd + 2 * rank, "the stream and twice the rank", e) ||
        must_be(c, DIM_RANK3, 3 * rank, "three times the rank", e))
        return -1;
    return w1 ? conv_put_str(c, "markov_head_type", types[found], e) : 0;
}

static int check_confidence(struct conv *c, struct err *e)
{
    const bool there = tensor(c, "conf_proj.weight");
    const int64_t rank = c->dim[DIM_RANK], embd = c->dim[DIM_EMBD];
    const bool with = there && rank && c->dim[DIM_CONF_IN] == embd + rank;
    if (there && !with && must_be(c, DIM_CONF_IN, embd, "the stream, or the stream and the rank", e))
        return -1;
    if (agrees(c, "enable_confidence_head", c->d.confidence, there, "confidence_head.proj", e) ||
        (there &&
         agrees(c, "confidence_head_with_markov", c->d.confidence_markov, with, "its input's width", e)))
        return -1;
    return conv_put_bool(c, "has_confidence_head", there, e);
}

static int check_vocab(struct conv *c, struct err *e)
{
    const int64_t vocab = c->dim[DIM_VOCAB] ? c->dim[DIM_VOCAB] : c->n_vocab;
    int64_t draft = c->dim[DIM_VOCAB_DRAFT];
    const int64_t rows = draft, want = c->n_vocab ? c->n_vocab : c->target.n_vocab;
    if (want && vocab != want)
        return err_set(e, ERR_FORMAT, "%s: %s: rows (expected the vocabulary's %lld, got %lld)", c->label,
                       c->dim_from[DIM_VOCAB], (long long)want, (long long)vocab);
    if (hf_find_i64(c->cfg, PLACES("draft_vocab_size"), 1, INT32_MAX, &draft, NULL, e) < 0) return -1;
    if (rows && draft != rows)
        return err_set(e, ERR_FORMAT,
                       "%s: draft_vocab_size does not match the tensors (expected %lld from %s, "
                       "got %lld)",
                       hf_config_name(c->cfg), (long long)rows, c->dim_from[DIM_VOCAB_DRAFT],
                       (long long)draft);
    if (rows && rows != vocab && !tensor(c, "d2t")) {
        err_set(e, ERR_FORMAT, "%s: %s has %lld rows of a vocabulary of %lld, and d2t is missing", c->label,
                c->dim_from[DIM_VOCAB_DRAFT], (long long)rows, (long long)vocab);
        return err_hint(e, DESC_REDUCED_HINT);
    }
    if (tensor(c, "d2t") && !tensor(c, "output.weight"))
        return err_set(e, ERR_FORMAT, "%s: d2t is there and lm_head.weight is missing", c->label);
    return 0;
}

int conv_dspark_keys(struct conv *c, struct err *e)
{
    if (check_vocab(c, e) || conv_drafter_keys(c, e) || conv_no_multiplier(c, e) ||
        conv_put_bool(c, "sample_from_anchor", c->d.from_anchor, e))
        return -1;
    return check_markov(c, e) || check_confidence(c, e) || conv_own_ends(c, e) ? -1 : 0;
}

#define FAMILY(name)                                                                                         \
    .hf = name, .arch = "dflash", .drafter = true, .projector = "dspark", .rules = rules,                    \
    .config = conv_drafter_config, .relatives = conv_dspark_relatives, .skip = conv_dspark_skip,             \
    .signature = "markov_head.markov_w1.weight", .parts = conv_dspark_parts, .sizes = conv_dspark_sizes,     \
    .keys = conv_dspark_keys, .finish = conv_drafter_finish

const struct conv_family conv_dspark = {FAMILY("Qwen3DSparkModel")};
const struct conv_family conv_dspark_forge = {FAMILY("DSparkDraftModel")};
