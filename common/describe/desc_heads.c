/* desc_heads.c - heads that a drafter corrects its logits with, proposal by proposal: DSpark's and Domino's;
 * and heads of a reduced vocabulary, whose rows a table d2t names.
 *
 * Keys and tensors are llama.cpp's where it has any: markov_w1, markov_w2, conf_proj, d2t,
 * sample_from_anchor, has_confidence_head. Ours are markov_head_type with the tensors of the gated and the
 * recurrent head, and all of Domino, which has no other GGUF: docs/drafter.md lists them. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "../../kernels/kernels.h"
#include "../base/mem.h"
#include "desc_impl.h"
#include "dialect.h"

static bool has(const struct desc_reader *r, const char *name)
{
    return gguf_tensor(r->g, name) != NULL;
}

/* 1: absent. */
static int maybe_bool(struct desc_reader *r, const char *name, bool *v)
{
    char key[160];
    return gguf_get_bool(r->g, desc_key(r, name, key, sizeof key), v, r->e);
}

/* A tensor [ne0, ne1] (ne1 0: a vector). */
static int shape(struct desc_reader *r, const char *name, int64_t ne0, int64_t ne1)
{
    const int64_t ne[3] = {ne0, ne1, 0};
    return desc_shape(r, ne, name);
}

/* A tensor of another head than this file's. */
static int none_of(struct desc_reader *r, const char *const *names, const char *why)
{
    for (; *names; names++)
        if (has(r, *names)) return desc_fail(r, "tensor '%s': is not expected (%s)", *names, why);
    return 0;
}

/* ---- reduced vocabularies ---- */

int64_t desc_d2t(const struct gguf *g, int64_t row)
{
    int64_t id;
    memcpy(&id, gguf_tensor(g, "d2t")->data + 8 * row, sizeof id);
    return id;
}

/* Every row's id is one of the vocabulary (as far as that is known), and no other's. */
static int check_ids(struct desc_reader *r, int64_t n)
{
    const int64_t most = r->d->n_vocab ? r->d->n_vocab : INT32_MAX;
    int64_t top = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t id = desc_d2t(r->g, i);
        if (id < 0 || id >= most)
            return desc_fail(r,
                             "tensor 'd2t': row %" PRId64 " is out of range (expected 0 to %" PRId64
                             ", got %" PRId64 ")",
                             i, most - 1, id);
        if (id > top) top = id;
    }
    r->d->d2t_top = (int32_t)top;
    uint8_t *seen = mem_calloc((size_t)top / 8 + 1, 1);
    if (!seen) return err_set(r->e, ERR_IO, "out of memory (%" PRId64 " ids of d2t)", n);
    int64_t twice = -1;
    for (int64_t i = 0; i < n && twice < 0; i++) {
        const int64_t id = desc_d2t(r->g, i);
        if (seen[id / 8] >> id % 8 & 1) twice = i;
        seen[id / 8] |= (uint8_t)(1u << id % 8);
    }
    mem_free(seen);
    if (twice < 0) return 0;
    desc_fail(r,
              "tensor 'd2t': row %" PRId64
              " has an id that a row before it has (expected each once, got %" PRId64 ")",
              twice, desc_d2t(r->g, twice));
    return err_hint(r->e, "checkpoints hold differences, id - row, where a GGUF holds ids: convert it again");
}

static int read_reduced(struct desc_reader *r)
{
    const struct gguf_tensor *t = gguf_tensor(r->g, "d2t");
    const char *name = t ? kn_type_info(t->type) ? kn_type_info(t->type)->name : "?" : "";
    if (!t) return 0;
    if (t->type != KN_I64)
        return desc_fail(r, "tensor 'd2t': has the wrong type (expected I64, got %s)", name);
    if (!has(r, "output.weight"))
        return desc_fail(r,
                         "tensor 'output.weight': is missing (a vocabulary of %d rows needs a head of its "
                         "own)",
                         r->d->n_vocab_draft);
    if (r->d->n_vocab && r->d->n_vocab_draft > r->d->n_vocab)
        return desc_fail(r, "tensor 'd2t': has more rows than the vocabulary (expected at most %d, got %d)",
                         r->d->n_vocab, r->d->n_vocab_draft);
    return check_ids(r, t->ne[0]);
}

/* ---- DSpark ---- */

/* Whether row 0 proposes. llama.cpp takes it so where its dialect does not say. */
static int read_first_row(struct desc_reader *r)
{
    bool from = false;
    const int rc = maybe_bool(r, "sample_from_anchor", &from);
    char key[160];
    if (rc < 0) return -1;
    if (rc > 0 && r->d->markov_rank && strcmp(r->d->spelling->name, "upstream"))
        return desc_missing(r, desc_key(r, "sample_from_anchor", key, sizeof key),
                            "whether the anchor's row proposes");
    if (rc > 0 && r->d->markov_rank) {
        from = true;
        desc_infer(r, "the anchor's row proposes: no %s", desc_key(r, "sample_from_anchor", key, sizeof key));
    }
    r->d->first_row = from ? 0 : 1;
    return 0;
}

static int read_markov_type(struct desc_reader *r)
{
    static const char *const types[] = {"vanilla", "gated", "rnn"};
    struct gguf_str v = {0};
    char key[160];
    const int rc = gguf_get_str(r->g, desc_key(r, "markov_head_type", key, sizeof key), &v, r->e);
    if (rc < 0) return -1;
    if (rc > 0) return 0; /* llama.cpp has no other; tensors of one would not be known */
    for (int i = 0; i < 3; i++)
        if (gguf_str_is(v, types[i])) {
            r->d->markov = (enum desc_markov)i;
            return 0;
        }
    return desc_fail(r, "key '%s': is not known (expected vanilla, gated or rnn, got %.*s)", key,
                     (int)(v.n < 63 ? v.n : 63), v.s);
}

static int markov_shapes(struct desc_reader *r)
{
    static const char *const gate[] = {"markov_gate.weight", "markov_gate.bias", NULL},
                             *const joint[] = {"markov_joint.weight", "markov_joint.bias", NULL};
    struct desc *d = r->d;
    int32_t vocab, draft;
    if (desc_dim(r, "markov_w1.weight", 0, &d->markov_rank) || desc_dim(r, "markov_w1.weight", 1, &vocab) ||
        desc_dim(r, "markov_w2.weight", 1, &draft) || read_markov_type(r))
        return -1;
    const int32_t want = d->n_vocab_draft ? d->n_vocab_draft : vocab;
    if ((d->n_vocab && vocab != d->n_vocab) || draft != want) {
        desc_fail(r,
                  "tensor 'markov_w1.weight', 'markov_w2.weight': rows (expected %d and %d, got %d and %d)",
                  d->n_vocab ? d->n_vocab : vocab, want, vocab, draft);
        return draft < vocab && !d->n_vocab_draft ? err_hint(r->e, DESC_REDUCED_HINT) : -1;
    }
    d->n_vocab = vocab;
    const int64_t e = d->n_embd, k = d->markov_rank;
    if (shape(r, "markov_w2.weight", k, draft)) return -1;
    if (d->markov == MARKOV_GATED ? shape(r, gate[0], e + k, k) || shape(r, gate[1], k, 0)
                                  : none_of(r, gate, "markov_head_type is not gated"))
        return -1;
    return d->markov == MARKOV_RNN ? shape(r, joint[0], e + 2 * k, 3 * k) || shape(r, joint[1], 3 * k, 0)
                                   : none_of(r, joint, "markov_head_type is not rnn");
}

static int confidence_shapes(struct desc_reader *r)
{
    struct desc *d = r->d;
    bool said = has(r, "conf_proj.weight");
    int32_t width;
    char key[160];
    if (maybe_bool(r, "has_confidence_head", &said) < 0) return -1;
    d->confidence = has(r, "conf_proj.weight");
    if (said != d->confidence)
        return desc_fail(r, "key '%s': disagrees with the tensors (expected %s, got %s)",
                         desc_key(r, "has_confidence_head", key, sizeof key),
                         d->confidence ? "true" : "false", said ? "true" : "false");
    if (!d->confidence)
        return has(r, "conf_proj.bias") ? desc_fail(r, "tensor 'conf_proj.weight': is missing") : 0;
    if (desc_dim(r, "conf_proj.weight", 0, &width)) return -1;
    d->confidence_markov = d->markov_rank && width == d->n_embd + d->markov_rank;
    if (!d->confidence_markov && width != d->n_embd)
        return desc_fail(r,
                         "tensor 'conf_proj.weight': width (expected %d, or %d with the token before, got "
                         "%d)",
                         d->n_embd, d->n_embd + d->markov_rank, width);
    return shape(r, "conf_proj.weight", width, 1) ||
           (has(r, "conf_proj.bias") && shape(r, "conf_proj.bias", 1, 0));
}

/* ---- Domino ---- */

static int domino_shapes(struct desc_reader *r)
{
    struct desc *d = r->d;
    bool shift = false;
    int32_t vocab;
    char key[160];
    const int rc = maybe_bool(r, "domino.shift_label", &shift);
    if (rc < 0) return -1;
    if (rc > 0)
        return desc_missing(r, desc_key(r, "domino.shift_label", key, sizeof key),
                            "whether a row proposes what follows its own place");
    if (desc_need_i32(r, "domino.pure_draft_prefix_len", 0, d->block_size, &d->pure_prefix) ||
        desc_dim(r, "domino_hh.weight", 0, &d->n_state) ||
        desc_dim(r, "domino_down.weight", 1, &d->n_correct) || desc_dim(r, "domino_up.weight", 1, &vocab))
        return -1;
    if (d->n_vocab && vocab != d->n_vocab)
        return desc_fail(r, "tensor 'domino_up.weight': rows (expected the vocabulary's %d, got %d)",
                         d->n_vocab, vocab);
    d->n_vocab = vocab;
    d->first_row = shift ? 0 : 1;
    d->idle_rows = shift ? 1 : 0;
    const int64_t e = d->n_embd, s = d->n_state;
    return shape(r, "domino_ih.weight", e, 3 * s) || shape(r, "domino_hh.weight", s, 3 * s) ||
           shape(r, "domino_down.weight", e + s, d->n_correct) ||
           shape(r, "domino_up.weight", d->n_correct, vocab);
}

/* What reads the rows behind the final norm, and adds to logits, is not known to go with a scale of theirs.
 */
static int check_scale(struct desc_reader *r)
{
    char key[160];
    if (r->d->logit_scale == 1) return 0;
    return desc_fail(r, "key '%s': is not supported in a %s drafter (expected 1, got %g)",
                     desc_key(r, "logit_scale", key, sizeof key), r->d->kind, (double)r->d->logit_scale);
}

int desc_head_shapes(struct desc_reader *r)
{
    const bool domino = !strcmp(r->d->kind, "Domino"), dspark = !strcmp(r->d->kind, "DSpark");
    if ((domino || dspark) && check_scale(r)) return -1;
    if (domino && domino_shapes(r)) return -1;
    if (!domino && has(r, "markov_w1.weight") && markov_shapes(r)) return -1;
    if (dspark && (confidence_shapes(r) || read_first_row(r))) return -1;
    return read_reduced(r); /* all that may tell the vocabulary has been read */
}
