/* desc_pieces.c - what makes a drafter another one than a plain DFlash drafter, found by keys and tensors.
 *
 * Relatives are recognised, named and described, so that inspect, convert and quantize can work on their
 * files; those that have a piece which is not run are not run at all, because leaving it out would still
 * draft, only worse. Shapes are checked where the format is known. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "desc_impl.h"
#include "dialect.h"

/* A key (below the architecture's prefix) or a tensor that begins so; after
 * "blk.N." where it is a layer's. */
struct piece {
    const char *begins, *kind;
    bool key, layer;
};
static const struct piece pieces[] = {
    {"conv_kernel_size", "DFlash2", true, false},
    {"conv_group_size", "DFlash2", true, false},
    {"selector_", "DFlash2", true, false},
    {"dflash.conv_", "DFlash2", true, false}, /* where the other keys of the drafter's stand so */
    {"dflash.selector_", "DFlash2", true, false},
    {"attn_conv", "DFlash2", false, true},
    {"ffn_conv", "DFlash2", false, true},
    {"selector", "DFlash2", false, false},
    {"sample_from_anchor", "DSpark", true, false},
    {"has_confidence_head", "DSpark", true, false},
    {"markov_head_type", "DSpark", true, false},
    {"markov_w2.scale", "scaled", false, false},
    {"markov_", "DSpark", false, false},
    {"conf_proj", "DSpark", false, false},
    {"hyper_connection", "DeepSeek-V4", true, false},
    {"dflash.dspark.", "lucebox DSpark", true, false},
    {"dflash.dspark.", "lucebox DSpark", false, false},
    {"domino.", "Domino", true, false},
    {"domino_", "Domino", false, false},
    {"dflash.domino.", "lucebox Domino", true, false},
    {"dflash.domino.", "lucebox Domino", false, false},
    {"d2t", "reduced-vocabulary", false, false},
    {"t2d", "t2d", false, false},
    {"lilicorr", "LiLiCorr", true, false},
    {"lilicorr", "LiLiCorr", false, false},
    {"dspine", "DSpine", true, false},
    {"injection.", "DSpine", false, false},
    {"transfer_", "DSpine", false, false},
    {"dflash.laguna", "Laguna", true, false},
    {"dflash.context_kv_layer_norm", "Laguna", true, false},
    {"attention.value_scale", "value-scaled", true, false},
    {"dflash_aux_hidden_norm.", "Laguna", false, false},
    {"dflash.aux_hidden_norm.", "Laguna", false, false},
    {"attn_gate.", "gated-attention", false, true},
    {"attn_sinks", "sink-attention", false, true},
    {"attn_q.bias", "biased", false, true},
    {"attn_k.bias", "biased", false, true},
    {"attn_v.bias", "biased", false, true},
    {"attn_output.bias", "biased", false, true},
    {"fc.scale", "scaled", false, false},
    {"output.scale", "scaled", false, false},
    {"attn_q.scale", "scaled", false, true},
    {"attn_k.scale", "scaled", false, true},
    {"attn_v.scale", "scaled", false, true},
    {"attn_output.scale", "scaled", false, true},
    {"ffn_gate.scale", "scaled", false, true},
    {"ffn_up.scale", "scaled", false, true},
    {"ffn_down.scale", "scaled", false, true},
};
enum { N_PIECES = sizeof pieces / sizeof pieces[0], MAX_KINDS = 16 };

/* The kinds that are run (common/model/draft.c), and the kinds whose pieces such a drafter may have too: of
 * the second kind on in the dialect upstream alone. */
static const struct {
    const char *kind, *also[4];
} runs[] = {{"DFlash", {"reduced-vocabulary", "sink-attention", "scaled", "value-scaled"}},
            {"DFlash2", {NULL, "sink-attention", "scaled"}},
            {"DSpark", {"reduced-vocabulary", "sink-attention", "scaled", "value-scaled"}},
            {"Domino", {NULL, "sink-attention", "scaled", "value-scaled"}}};
enum { N_RUNS = sizeof runs / sizeof runs[0] };

static const struct piece *find(const char *name, bool key, bool layer)
{
    for (int i = 0; i < N_PIECES; i++)
        if (pieces[i].key == key && pieces[i].layer == layer &&
            !strncmp(name, pieces[i].begins, strlen(pieces[i].begins)))
            return &pieces[i];
    return NULL;
}

const char *desc_piece_key(const char *key, const char *arch)
{
    const size_t n = strlen(arch);
    if (strncmp(key, arch, n) || key[n] != '.') return NULL;
    const struct piece *p = find(key + n + 1, true, false);
    return p ? p->kind : NULL;
}

static const struct piece *tensor_piece(const char *name, int32_t *layer)
{
    int at = 0;
    *layer = -1;
    return sscanf(name, "blk.%9d.%n", layer, &at) == 1 && at ? find(name + at, false, true)
                                                             : find(name, false, false);
}

/* A switch that is off, or says what a DFlash drafter does anyway, is no piece. */
static bool idle(const struct gguf_kv *kv)
{
    static const char *const off[] = {"sample_from_anchor", "context_kv_layer_norm", ".enabled",
                                      "has_confidence_head", "dflash.laguna"};
    if (kv->type == GGUF_ARRAY || kv->type == GGUF_STRING || kv->type == GGUF_F32 || kv->type == GGUF_F64)
        return false;
    for (size_t i = 0; i < sizeof off / sizeof off[0]; i++)
        if (strstr(kv->key, off[i])) return gguf_array_i64(kv, 0) == 0;
    return false;
}

/* The kinds whose pieces were found, each once, in order. */
struct found {
    const char *kind[MAX_KINDS];
    int n;
};

/* Is it a kind that was not found before? */
static bool is_new(struct found *f, const char *kind)
{
    for (int i = 0; i < f->n; i++)
        if (!strcmp(f->kind[i], kind)) return false;
    if (f->n < MAX_KINDS) f->kind[f->n++] = kind;
    return true;
}

static void note(struct desc *d, struct found *f, const struct piece *p, const char *name, const char *value)
{
    const size_t n = strlen(d->pieces), left = sizeof d->pieces - n;
    is_new(f, p->kind);
    if (left < strlen(name) + strlen(value) + 16) return;
    snprintf(d->pieces + n, left, "%s%s %s", n ? ", " : "", name, value);
}

static void note_tensor(struct desc_reader *r, struct found *f, const struct gguf_tensor *t)
{
    int32_t layer;
    char shape[100] = "[";
    const struct piece *p = tensor_piece(t->name, &layer);
    if (!p) return;
    if (!is_new(f, p->kind) && layer > 0) return; /* one layer of them says it */
    for (uint32_t i = 0; i < t->n_dims; i++)
        snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%" PRId64, i ? ", " : "", t->ne[i]);
    snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "]");
    note(r->d, f, p, t->name, shape);
}

static bool also(int run, const char *kind, bool upstream)
{
    const int n = upstream ? (int)(sizeof runs[run].also / sizeof *runs[run].also) : 1;
    for (int i = 0; i < n; i++)
        if (runs[run].also[i] && !strcmp(runs[run].also[i], kind)) return true;
    return !strcmp(runs[run].kind, kind);
}

static bool is_run(const char *kind)
{
    for (int k = 0; k < N_RUNS; k++)
        if (!strcmp(runs[k].kind, kind)) return true;
    return false;
}

/* The first kind that is run and takes all the pieces that were found; else the first found that is run in
 * no dialect; else the first that is not run; else, of several that do not go together, the first. */
static void name_kind(struct desc *d, const struct found *f)
{
    const bool upstream = !strcmp(d->spelling->name, "upstream");
    d->runs = false;
    for (int k = 0; k < N_RUNS && !d->runs; k++) {
        d->runs = true;
        for (int j = 0; j < f->n && d->runs; j++) d->runs = also(k, f->kind[j], upstream);
        d->kind = runs[k].kind;
    }
    if (d->runs) return;
    d->kind = f->kind[0];
    for (int part = 0; part < 2; part++)
        for (int j = 0; j < f->n; j++)
            if (!is_run(f->kind[j]) && (part || !also(0, f->kind[j], true))) {
                d->kind = f->kind[j];
                return;
            }
}

/* Of a drafter that is run those who read a tensor know it; of another one its pieces are known by name. */
static void mark_seen(struct desc_reader *r)
{
    int32_t layer;
    for (uint64_t i = 0; i < r->g->n_tensors; i++)
        if (tensor_piece(r->g->tensor[i].name, &layer)) r->seen[i] = true;
}

int desc_pieces(struct desc_reader *r)
{
    struct desc *d = r->d;
    const size_t prefix = strlen(d->arch_name) + 1;
    char value[96];
    struct found f = {.n = 0};
    for (uint64_t i = 0; i < r->g->n_kv; i++) {
        const struct gguf_kv *kv = &r->g->kv[i];
        if (!desc_piece_key(kv->key, d->arch_name) || idle(kv)) continue;
        gguf_value_text(kv, value, sizeof value);
        note(d, &f, find(kv->key + prefix, true, false), kv->key, value);
    }
    for (uint64_t i = 0; i < r->g->n_tensors; i++) note_tensor(r, &f, &r->g->tensor[i]);
    name_kind(d, &f);
    if (!d->runs) mark_seen(r);
    const struct gguf_tensor *d2t = gguf_tensor(r->g, "d2t");
    if (!d2t) return 0;
    r->seen[d2t - r->g->tensor] = true;
    if (d2t->n_dims != 1 || d2t->ne[0] > INT32_MAX)
        return desc_fail(r, "tensor 'd2t': has the wrong shape (expected one dimension, got %u)",
                         d2t->n_dims);
    d->n_vocab_draft = (int32_t)d2t->ne[0];
    return 0;
}

/* ---- shapes, where the format is known ---- */

/* A.name, or A.dflash.name where that alone is there. */
static int dflash2_key(struct desc_reader *r, const char *name, int32_t most, int32_t *v)
{
    char longer[64], key[160];
    snprintf(longer, sizeof longer, "dflash.%s", name);
    const bool here = gguf_find(r->g, desc_key(r, name, key, sizeof key)) ||
                      !gguf_find(r->g, desc_key(r, longer, key, sizeof key));
    return desc_need_i32(r, here ? name : longer, 1, most, v);
}

static int dflash2_shape(struct desc_reader *r, const int64_t ne[3], const char *name)
{
    char spelled[64];
    return desc_shape(r, ne, dialect_spelled(r->g, name, spelled, sizeof spelled));
}

static const char *const dflash2_keys[] = {"conv_kernel_size", "conv_group_size", "selector_rank",
                                           "selector_top_k"};

/* What begins like a key of a kind that is run, and is none. */
static int strangers(struct desc_reader *r)
{
    static const char *const keys[] = {
        "sample_from_anchor", "has_confidence_head",          "markov_head_type",
        "domino.shift_label", "domino.pure_draft_prefix_len", "attention.value_scale"};
    const size_t prefix = strlen(r->d->arch_name) + 1;
    for (uint64_t i = 0; i < r->g->n_kv; i++) {
        const char *kind = desc_piece_key(r->g->kv[i].key, r->d->arch_name), *rel = r->g->kv[i].key + prefix;
        bool known = !kind || idle(&r->g->kv[i]);
        for (int k = 0; k < 4 && !known; k++)
            known = !strcmp(rel, dflash2_keys[k]) ||
                    (!strncmp(rel, "dflash.", 7) && !strcmp(rel + 7, dflash2_keys[k]));
        for (size_t k = 0; k < sizeof keys / sizeof keys[0] && !known; k++) known = !strcmp(rel, keys[k]);
        if (!known) return desc_fail(r, "key '%s': is not known", r->g->kv[i].key);
    }
    return 0;
}

static int dflash2_shapes(struct desc_reader *r)
{
    struct desc *d = r->d;
    char before[64];
    int32_t vocab;
    if (dflash2_key(r, "conv_kernel_size", 64, &d->conv_kernel) ||
        dflash2_key(r, "conv_group_size", d->n_embd, &d->conv_group) ||
        dflash2_key(r, "selector_rank", INT32_MAX / 4, &d->selector_rank) ||
        dflash2_key(r, "selector_top_k", INT32_MAX / 4, &d->selector_k))
        return -1;
    dialect_spelled(r->g, "selector_predecessor.weight", before, sizeof before);
    if (d->n_embd % d->conv_group)
        return desc_fail(
            r, "key '%s.conv_group_size': does not divide the width (expected a divisor of %d, got %d)",
            d->arch_name, d->n_embd, d->conv_group);
    const int64_t base[3] = {d->n_embd, d->conv_kernel, 2};
    const int64_t proj[3] = {d->n_embd, (int64_t)2 * d->conv_kernel * (d->n_embd / d->conv_group), 0};
    for (int i = 0; i < d->n_layer; i++)
        for (int j = 0; j < 2; j++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%d.%s_conv_base", i, j ? "ffn" : "attn");
            if (dflash2_shape(r, base, name)) return -1;
            snprintf(name, sizeof name, "blk.%d.%s_conv_proj.weight", i, j ? "ffn" : "attn");
            if (dflash2_shape(r, proj, name)) return -1;
        }
    if (desc_dim(r, before, 1, &vocab)) return -1;
    if (d->n_vocab && d->n_vocab != vocab)
        return desc_fail(r, "tensor '%s': rows (expected the vocabulary's %d, got %d)", before, d->n_vocab,
                         vocab);
    d->n_vocab = vocab;
    if (d->selector_k > vocab)
        return desc_fail(r, "key '%s.selector_top_k': more than the vocabulary (expected at most %d, got %d)",
                         d->arch_name, vocab, d->selector_k);
    const int64_t book[3] = {d->selector_rank, vocab, 0}, hidden[3] = {d->n_embd, d->selector_rank, 0};
    return dflash2_shape(r, book, "selector_predecessor.weight") ||
                   dflash2_shape(r, book, "selector_successor.weight") ||
                   dflash2_shape(r, hidden, "selector_hidden.weight")
               ? -1
               : 0;
}

int desc_piece_shapes(struct desc_reader *r)
{
    const struct gguf *g = r->g;
    const char *const keys[] = {"conv_kernel_size", "selector_rank", "dflash.conv_kernel_size",
                                "dflash.selector_rank"};
    char key[160], name[64];
    bool conv = gguf_tensor(g, dialect_spelled(g, "blk.0.attn_conv_base", name, sizeof name)) != NULL ||
                gguf_tensor(g, dialect_spelled(g, "selector_hidden.weight", name, sizeof name)) != NULL;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        conv |= gguf_find(g, desc_key(r, keys[i], key, sizeof key)) != NULL;
    if (r->d->runs && strangers(r)) return -1;
    if (conv && dflash2_shapes(r)) return -1;
    return desc_head_shapes(r);
}

int desc_runnable(const struct desc *d, struct err *e)
{
    if (d->arch != DESC_DFLASH || d->runs) return 0;
    return err_set(e, ERR_FORMAT, "a %s drafter: running it is not supported (found %s)", d->kind, d->pieces);
}

/* ---- drafters that are no DFlash at all ---- */

const char *desc_stranger(struct gguf_str arch)
{
    static const struct {
        const char *arch, *what;
    } known[] = {
        {"eagle", "an EAGLE drafter"},
        {"eagle3", "an EAGLE-3 drafter"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (gguf_str_is(arch, known[i].arch)) return known[i].what;
    return NULL;
}

/* ---- telling ---- */

static void ids_text(char *out, size_t n, const int32_t *ids, int32_t count, int32_t add)
{
    size_t used = 0;
    out[0] = 0;
    for (int32_t i = 0; i < count && used < n; i++)
        used += (size_t)snprintf(out + used, n - used, "%s%d", i ? "," : "", ids[i] + add);
}

void desc_tell(const struct desc *d, const char *flag,
               void (*say)(void *ctx, const char *subject, const char *text), void *ctx)
{
    char text[2400], here[512], there[512], key[160];
    const struct dialect *x = d->spelling;
    if (!flag) flag = "--draft-";
    snprintf(text, sizeof text, "%s (%s), architecture %s", x->name, x->whose, x->arch);
    say(ctx, "dialect", text);
    if (d->pieces[0]) {
        snprintf(text, sizeof text, "a %s drafter%s: %s", d->kind,
                 d->runs ? "" : ", which cannot be run here", d->pieces);
        say(ctx, "kind", text);
    }
    ids_text(here, sizeof here, d->taps, d->n_taps, 0);
    if (d->taps_given) {
        snprintf(text, sizeof text, "the output of blocks %s, zero-based, as %staps says", here, flag);
    } else {
        char stored[512];
        const int32_t other = d->tap_shift ? 0 : 1;
        ids_text(stored, sizeof stored, d->taps, d->n_taps, d->tap_shift);
        ids_text(there, sizeof there, d->taps, d->n_taps, d->tap_shift - other);
        snprintf(text, sizeof text,
                 "%s is %s, %s: the output of blocks %s, zero-based (the other reading, %stap-shift %d: %s)",
                 dialect_key(x, x->taps_key, key, sizeof key), stored,
                 d->tap_shift ? "counted from the embeddings" : "counted from block 0", here, flag, other,
                 there);
    }
    say(ctx, "taps", text);
    if (*d->inferred) say(ctx, "inferred", d->inferred);
}
