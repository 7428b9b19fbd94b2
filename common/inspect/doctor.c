/* doctor.c - why a drafter does not work with a target: check_pair of check.h.
 *
 * Each finding is one aspect: what, expected, found. A misfit (CHECK_BAD) is what makes proposals wrong or a
 * run impossible; a note (CHECK_WARN) is what was inferred, or what can be right and is often the reason
 * where it is not. The order is that of a consultation: is it one, does it read the right things, does it
 * know the words, is it the arithmetic. */
#include <math.h>
#include "../describe/dialect.h"
#include "../base/io.h"
#include "../base/mem.h"
#include "beside.h"
#include "doctor.h"
#include "usable.h"

static struct text list_text(const int32_t *v, int32_t n, int32_t add)
{
    struct text t = {""};
    for (int32_t i = 0; i < n && strlen(t.s) < sizeof t.s - 16; i++)
        snprintf(t.s + strlen(t.s), sizeof t.s - strlen(t.s), "%s%d", i ? "," : "", v[i] + add);
    return t;
}

/* ---- who they are ---- */

/* Said to be so by the file or a flag. */
static bool all_causal(const struct desc *d)
{
    for (int i = 0; i < d->n_layer; i++)
        if (!d->layer[i].causal) return false;
    return !d->causal_inferred;
}

/* What a proposal costs beside the block: what is read again for each. */
static void see_head(struct doctor *p)
{
    static const char *const markov[] = {"vanilla", "gated", "recurrent"};
    const struct desc *d = p->d;
    const char *const each[] = {"markov_w2.weight", "markov_gate.weight", "markov_joint.weight",
                                "domino_ih.weight", "domino_hh.weight",   "domino_down.weight",
                                "domino_up.weight"};
    const struct gguf_tensor *largest = NULL;
    uint64_t bytes = 0;
    for (size_t i = 0; i < sizeof each / sizeof each[0]; i++) {
        const struct gguf_tensor *t = gguf_tensor(p->dg, each[i]);
        if (!t) continue;
        bytes += t->bytes;
        if (!largest || t->bytes > largest->bytes) largest = t;
    }
    if (d->n_state)
        ok(p, "head",
           textf("a recurrent unit of %d, corrections through %d, %d of %d proposals without", d->n_state,
                 d->n_correct, d->pure_prefix, desc_cycle_rows(d) - 1));
    else if (d->markov_rank)
        ok(p, "head", textf("a %s Markov head of rank %d", markov[d->markov], d->markov_rank));
    if (d->confidence)
        ok(p, "confidence",
           textf("a head says how likely a proposal is taken, of the row%s",
                 d->confidence_markov ? " and the token before" : ""));
    if (!largest) return;
    const struct kn_type_info *t = kn_type_info(largest->type);
    const struct text what = textf("%.1f MB are read again for every proposal, the most of them %s in %s",
                                   (double)bytes / 1e6, largest->name, t->name);
    if (t->block == 1 && bytes > 1 << 24)
        note(p, "head bytes", what, "dflash-quantize DRAFTER --type q8_0 halves them or better");
    else
        ok(p, "head bytes", what);
}

static void see_dialect(struct doctor *p)
{
    const struct desc *t = p->t, *d = p->d;
    const char *family = !strcmp(d->dialect, "lucebox")          ? "qwen35"
                         : !strcmp(d->dialect, "lucebox-gemma4") ? "gemma4"
                                                                 : NULL;
    ok(p, "dialect",
       textf("target %s, drafter %s: %s (%s)", t->arch_name, d->arch_name, d->dialect, d->spelling->whose));
    if (family && strncmp(t->arch_name, family, strlen(family)))
        note(p, "target",
             textf("the drafter's architecture %s names another family than the target's %s", d->arch_name,
                   t->arch_name),
             "a drafter goes with the model that it was trained beside");
    if (!d->runs)
        misfit(p, "kind", textf("a %s drafter, which cannot be run here", d->kind),
               textf("a plain DFlash drafter"), textf("%s", d->pieces), NULL);
    else
        ok(p, "kind",
           textf("a %s drafter of %d layers%s", d->kind, d->n_layer,
                 all_causal(d) ? ", all causal in the block, as JetSpec's heads are" : ""));
    if (d->markov_rank || d->confidence || d->n_state) see_head(p);
    if (*d->inferred) note(p, "inferred", textf("%s", d->inferred), NULL);
}

static void see_sizes(struct doctor *p)
{
    const struct desc *t = p->t, *d = p->d;
    const struct desc_layer *y = desc_attention(t), *z = desc_attention(d);
    same(p, "features",
         textf("fc takes %d, the target gives %d taps x %d", d->n_features, d->n_taps, t->n_embd),
         (int64_t)d->n_taps * t->n_embd, d->n_features,
         "the taps may be too few or too many, or the target another one");
    same(p, "hidden size", textf("the borrowed embedding and head need the target's %d", t->n_embd),
         t->n_embd, d->n_embd, NULL);
    if (z->head_dim % 16)
        misfit(p, "heads", textf("attention works in heads of a multiple of 16"), textf("a multiple of 16"),
               textf("%d", z->head_dim), NULL);
    else
        ok(p, "heads",
           textf("target %d/%d of %d, drafter %d/%d of %d: each its own", y->n_head, y->n_head_kv,
                 y->head_dim, z->n_head, z->n_head_kv, z->head_dim));
}

/* Fine-tunes of the target share what the drafter learnt of it, so that another one need not be wrong. */
static void see_target(struct doctor *p)
{
    const struct desc *t = p->t, *d = p->d;
    if (!d->has_norm_crc)
        ok(p, "made for", textf("not said: the drafter has no key " DESC_NORM_KEY));
    else if (!t->has_norm_crc)
        ok(p, "made for", textf("not known: the target has no output_norm.weight in F32 to compare"));
    else if (!desc_other_target(t, d))
        ok(p, "made for", textf("this target: crc32 of its final norm %08x", t->norm_crc));
    else
        note(
            p, "made for",
            textf("another target: crc32 of its final norm %08x, of this one %08x", d->norm_crc, t->norm_crc),
            "right where the target is a fine-tune of that one; else proposals are hardly ever accepted");
}

/* ---- taps ---- */

static bool taps_are(const struct desc *d, const int32_t *v, int32_t add)
{
    for (int32_t i = 0; i < d->n_taps; i++)
        if (d->taps[i] + add != v[i]) return false;
    return true;
}

static void see_taps(struct doctor *p)
{
    const struct desc *t = p->t, *d = p->d;
    int32_t usual[DESC_MAX_TAPS], out = -1;
    const int32_t twice = desc_tap_twice(d->taps, d->n_taps, t->n_layer);
    const struct text here = list_text(d->taps, d->n_taps, 0), counted = list_text(d->taps, d->n_taps, 1);
    for (int32_t i = 0; i < d->n_taps; i++)
        if (d->taps[i] >= t->n_layer && out < 0) out = d->taps[i];
    const struct text what =
        textf("output of blocks %.300s, zero-based (%.300s counted from the embeddings)", here.s, counted.s);
    if (out >= 0)
        misfit(p, "taps", what, textf("blocks 0 to %d of the target", t->n_layer - 1), textf("%d", out),
               d->taps_given || d->tap_shift ? "was the drafter made for this target?"
                                             : "are they shifted by one? --tap-shift 1");
    else
        ok(p, "taps", what);
    if (twice >= 0)
        misfit(p, "taps twice", textf("a block is tapped more than once"), textf("different blocks"),
               textf("%d", twice), NULL);
    if (d->n_taps >= t->n_layer || t->n_layer < 5) return;
    desc_usual_taps(t->n_layer, d->n_taps, usual);
    if (taps_are(d, usual, 0)) return;
    const struct text want = list_text(usual, d->n_taps, 0);
    if (taps_are(d, usual, 1) || taps_are(d, usual, -1))
        note(p, "tap shift",
             textf("one off the usual blocks of a target of %d, which are %.300s: the file may count the "
                   "other way than its dialect does",
                   t->n_layer, want.s),
             taps_are(d, usual, 1) ? "--tap-shift 0 reads them one higher, where the file is shifted"
                                   : "--tap-shift 1 reads them one lower");
}

/* Two rules that readers fall back to, for a file without taps. */
static void suggest_taps(struct doctor *p)
{
    static const char *const names[] = {"fc.weight", "dflash_fc.weight", "dflash.fc.weight"};
    const struct gguf_tensor *fc = NULL;
    int32_t even[DESC_MAX_TAPS], steps[DESC_MAX_TAPS];
    for (int i = 0; i < 3 && !fc; i++) fc = gguf_tensor(p->dg, names[i]);
    const int64_t n = fc ? fc->ne[0] / p->t->n_embd : 0;
    if (n < 2 || n > DESC_MAX_TAPS || n >= p->t->n_layer) return;
    desc_usual_taps(p->t->n_layer, (int32_t)n, even);
    for (int32_t i = 0; i < n; i++) steps[i] = 1 + i * ((p->t->n_layer - 2) / ((int32_t)n - 1));
    const struct text a = list_text(even, (int32_t)n, 0), b = list_text(steps, (int32_t)n, 0);
    note(p, "taps",
         textf("the file says none; for %d taps of %d blocks lucebox would take %.300s (qwen35) or %.300s "
               "(others)",
               (int)n, p->t->n_layer, b.s, a.s),
         "try them: --taps LIST");
}

/* ---- positions ---- */

static void see_rope(struct doctor *p)
{
    const struct desc_rope *a = &p->t->rope[desc_attention(p->t)->rope], *b = &p->d->rope[0];
    bool known = a->theta == b->theta;
    for (int i = 0; i < p->t->n_rope; i++) known |= p->t->rope[i].theta == b->theta;
    if (known)
        ok(p, "rope", textf("theta %g, as the target's", (double)b->theta));
    else
        note(p, "rope",
             textf("theta %g in the target, %g in the drafter", (double)a->theta, (double)b->theta),
             b->theta == 1e6f || b->theta == 1e4f
                 ? "right where it was trained so; converters that miss rope_parameters.rope_theta write "
                   "this number: compare config.json, --rope-theta X"
                 : "right where it was trained so: compare the drafter's config.json, --rope-theta X");
    if (a->has_divisors && !b->has_divisors)
        note(p, "rope scaling",
             textf("the target's frequencies are scaled (rope_freqs.weight), the drafter's are not"),
             "right where the drafter was trained so");
}

static void see_layers(struct doctor *p)
{
    const struct desc *d = p->d;
    struct text text = {""};
    bool slides = false;
    for (int i = 0; i < d->n_layer && strlen(text.s) < sizeof text.s - 64; i++) {
        const struct desc_layer *y = &d->layer[i];
        const size_t n = strlen(text.s);
        slides |= y->window > 0;
        if (y->window)
            snprintf(text.s + n, sizeof text.s - n, "%s%d: window %d, %s", i ? "; " : "", i, y->window,
                     y->causal ? "causal" : "bidirectional");
        else
            snprintf(text.s + n, sizeof text.s - n, "%s%d: full, %s", i ? "; " : "", i,
                     y->causal ? "causal" : "bidirectional");
    }
    if (d->causal_inferred && !d->causal_ignored)
        note(p, "layers", text,
             "the file does not say which layers are causal inside the block; --causal (--draft-causal) "
             "overrides");
    else
        ok(p, "layers", text);
    if (!slides && !strncmp(d->dialect, "lucebox", 7))
        note(p, "windows", textf("no sliding layers; converters of this dialect leave them out"),
             "compare layer_types in the drafter's config.json: --sliding-window N --sliding-pattern ssssf");
    if (d->causal_ignored)
        note(p, "causality",
             textf("attention.causal of the file does not count: writers of this dialect always put it "
                   "there, its "
                   "readers do not look; the sliding layers are causal"),
             "so the reference has it unless config.json has is_causal: compare, --causal (--draft-causal) "
             "overrides");
}

/* Sinks, which a reader that leaves them out takes for less attention than there was in training. */
static void see_sinks(struct doctor *p)
{
    const struct desc *d = p->d;
    char name[64];
    int32_t layers = 0;
    for (int i = 0; i < d->n_layer; i++) {
        snprintf(name, sizeof name, "blk.%d.attn_sinks.weight", i);
        layers += gguf_tensor(p->dg, name) != NULL;
    }
    if (layers)
        ok(p, "sinks",
           textf("%d of %d layers: a head sees one key more, of a score of its own and the value zero",
                 layers, d->n_layer));
}

static void see_difference(void *ctx, const struct beside_difference *b)
{
    misfit(ctx, "config", textf("%s: config.json beside the file says otherwise", b->what),
           textf("%s", b->expected), textf("%s", b->found), b->hint);
}

/* -1: e. */
static int see_config(struct doctor *p, struct err *e)
{
    struct err why = {0};
    const int before = p->bad, rc = beside_compare(p->drafter, p->d, see_difference, p, &why, e);
    if (rc == 0 && p->bad == before) ok(p, "config", textf("config.json beside the file says the same"));
    if (rc == 2) note(p, "config", textf("%s", why.msg), "config.json beside the file was not compared");
    return rc < 0 ? -1 : 0;
}

static void see_lengths(struct doctor *p)
{
    const struct desc *t = p->t, *d = p->d;
    const struct text text =
        textf("target trained to %d positions, drafter to %d", t->n_ctx_train, d->n_ctx_train);
    if (d->n_ctx_train && d->n_ctx_train < t->n_ctx_train)
        note(p, "context", text, "--draft-window bounds what the drafter sees");
    else
        ok(p, "context", text);
    ok(p, "block", textf("%d rows: up to %d proposals a cycle", d->block_size, desc_cycle_rows(d) - 1));
    if (d->block_size != 16 && d->block_size != 8 && desc_cycle_rows(d) != 8)
        note(p, "block size", textf("%d is neither 16 nor 8, as published drafters have it", d->block_size),
             "a block can be run shorter than it was trained (--block), not longer");
}

/* ---- numbers ---- */

struct values {
    uint64_t bad, zero, n; /* NaN and Inf */
    double max;
    bool decoded;
};

static struct values look(struct doctor *p, const struct gguf_tensor *t)
{
    struct values v = {.decoded = true};
    float *x = mem_alloc((size_t)t->ne[0] * sizeof *x);
    p->no_memory |= !x;
    for (int64_t r = 0; r < t->ne[1] && v.decoded; r++) {
        v.decoded = x && read_row(t, r, x);
        for (int64_t i = 0; i < t->ne[0] && v.decoded; i++) {
            v.n++;
            v.bad += !isfinite(x[i]);
            v.zero += x[i] == 0;
            if (isfinite(x[i]) && fabs((double)x[i]) > v.max) v.max = fabs((double)x[i]);
        }
    }
    mem_free(x);
    return v;
}

/* The path of the features: the target's residual stream has values that f16 cannot hold, and what makes
 * context of them must not be broken. */
static void see_features(struct doctor *p)
{
    char mtp[3][64];
    const char *names[] = {p->d->fc_name, p->d->hidden_norm_name, "output_norm.weight"};
    const char *const of_assistant[] = {p->d->pre_name, p->d->post_name, "output_norm.weight"};
    static const char *const of_mtp[] = {"nextn.eh_proj.weight", "nextn.hnorm.weight", "nextn.enorm.weight"};
    for (int i = 0; i < 3; i++) {
        snprintf(mtp[i], sizeof mtp[i], "blk.%d.%s", p->d->first_block, of_mtp[i]);
        if (p->d->arch == DESC_QWEN35_MTP) names[i] = mtp[i];
        if (p->d->arch == DESC_GEMMA4_ASSISTANT) names[i] = of_assistant[i];
        const struct gguf_tensor *t = gguf_tensor(p->dg, names[i]);
        const struct values v = look(p, t);
        const char *type = kn_type_info(t->type)->name;
        const struct text what = textf("%s: %s, largest value %.4g", names[i], type, v.max);
        if (!v.decoded)
            note(p, "weights", textf("%s: %s, not decoded here", names[i], type), NULL);
        else if (v.bad)
            misfit(p, "weights", what, textf("numbers"),
                   textf("%" PRIu64 " NaN or Inf of %" PRIu64, v.bad, v.n),
                   "a conversion from bf16 to f16 overflows so");
        else if (v.zero == v.n)
            misfit(p, "weights", what, textf("numbers that are not all zero"),
                   textf("%" PRIu64 " zeros", v.n), NULL);
        else if (!i && t->type == KN_F16)
            note(p, "weights", what,
                 "here the features stay float32; an engine that multiplies them in f16 overflows on real "
                 "models");
        else
            ok(p, "weights", what);
    }
}

static void see_types(struct doctor *p)
{
    for (int i = 0; i < 2; i++) {
        char types[256];
        int64_t n;
        const struct gguf_tensor *t =
            usable_types(i ? p->dg : p->tg, i ? p->d : p->t, usable_any, &n, types, sizeof types);
        if (t)
            misfit(p, "types",
                   textf("%s's %s cannot be multiplied here", i ? "the drafter" : "the target", t->name),
                   textf("types of docs/types.md"), textf("%s", types),
                   "dflash-convert makes another file of the checkpoint");
    }
    const bool mtp = p->d->arch == DESC_QWEN35_MTP; /* what its file has of the target's is not read */
    const struct gguf_tensor *own = mtp ? NULL
                                    : p->d->arch == DESC_GEMMA4_ASSISTANT
                                        ? gguf_tensor(p->dg, "token_embd.weight")
                                        : gguf_tensor(p->dg, "output.weight"),
                             *head = own ? own : gguf_tensor(p->tg, "output.weight");
    if (!head) head = gguf_tensor(p->tg, "token_embd.weight");
    if (!head) return;
    const struct kn_type_info *ti = kn_type_info(head->type);
    const double bits = 8.0 * ti->bytes / ti->block;
    const struct text what = textf("%s: %s, %.2f bits a weight",
                                   own ? "the drafter's own" : "borrowed from the target", ti->name, bits);
    if (bits < 6)
        note(p, "head", what, "proposals are the head's as well: a head of 6 bits or more costs little");
    else
        ok(p, "head", what);
}

static void see_scales(struct doctor *p)
{
    const struct desc *t = p->t, *d = p->d;
    if (!d->has_embedding_scale)
        ok(p, "embedding scale", textf("the target's own, %g", (double)t->embedding_scale));
    else if (d->embedding_scale == t->embedding_scale)
        ok(p, "embedding scale", textf("%g, as the target's", (double)d->embedding_scale));
    else
        note(p, "embedding scale",
             textf("%g, the target's is %g", (double)d->embedding_scale, (double)t->embedding_scale),
             "right where the drafter was trained so (input_embedding_scale)");
    if (d->has_softcap && d->softcap != (t->has_softcap ? t->softcap : 0))
        note(p, "softcap",
             textf("%g, the target's is %g", (double)d->softcap, t->has_softcap ? (double)t->softcap : 0.0),
             "right where the drafter was trained so");
}

/* ---- the consultation ---- */

/* A description that cannot be made is the finding, and the last one. 1: so it was. */
static int describe(struct doctor *p, const char *subject, const struct gguf *g,
                    const struct desc_override *o, struct desc **d, struct err *e)
{
    struct err mine = {0};
    if (!desc_read(d, g, o, &mine)) return 0;
    if (mine.code != ERR_FORMAT) {
        *e = mine;
        return -1;
    }
    misfit(p, subject, textf("the file is not understood"), textf("a model that is known"),
           textf("%s", mine.msg), mine.hint[0] ? mine.hint : NULL);
    if (o && p->t && strstr(mine.msg, "target_layer") && strstr(mine.msg, "missing")) suggest_taps(p);
    return 1;
}

/* An MTP block and the target that it reads. */
static void see_mtp(struct doctor *p)
{
    const struct desc *t = p->t, *d = p->d;
    const struct desc_layer *y = d->layer;
    ok(p, "kind",
       textf("the MTP block blk.%d of a %s, %s: %d proposals a cycle, one after the other", d->first_block,
             d->arch_name, d->apart ? "in a file of its own" : "in the target's file", d->block_size - 1));
    if (strcmp(t->arch_name, d->arch_name))
        misfit(p, "target", textf("the block is of another architecture"), textf("%s", t->arch_name),
               textf("%s", d->arch_name), "an MTP block goes with the model that it was trained in");
    same(p, "hidden size",
         textf("it reads the target's last hidden state, and borrows embedding and head: %d values",
               t->n_embd),
         t->n_embd, d->n_embd, NULL);
    if (t->n_layer != d->first_block)
        note(p, "target",
             textf("the block stands behind %d others, the target has %d", d->first_block, t->n_layer),
             "right where both were made of one model, cut apart");
    ok(p, "heads",
       textf("%d/%d of %d, %s", y->n_head, y->n_head_kv, y->head_dim, y->moe ? "experts" : "dense"));
    if (d->rope[0].theta != t->rope[0].theta || d->rope[0].n_rot != t->rope[0].n_rot)
        note(p, "rope",
             textf("theta %g over %d dimensions, the target's is %g over %d", (double)d->rope[0].theta,
                   d->rope[0].n_rot, (double)t->rope[0].theta, t->rope[0].n_rot),
             "the block was trained with its target's");
    else
        ok(p, "rope", textf("theta %g, as the target's", (double)d->rope[0].theta));
    if (*d->inferred) ok(p, "inferred", textf("%s", d->inferred));
}

/* A Gemma 4 assistant and the target whose caches it reads. */
static void see_assistant(struct doctor *p)
{
    const struct desc *t = p->t, *d = p->d;
    ok(p, "kind",
       textf("an assistant of Gemma 4 of %d layers: %d proposals a cycle, one after the other", d->n_layer,
             d->block_size - 1));
    if (t->arch != DESC_GEMMA4)
        misfit(p, "target", textf("its layers read the caches of a Gemma 4"), textf("gemma4"),
               textf("%s", t->arch_name), "an assistant goes with the model that it was trained beside");
    same(p, "hidden size", textf("it reads the target's last hidden state: %d values", t->n_embd), t->n_embd,
         d->n_embd_target, "another size of Gemma 4 has another assistant");
    for (int32_t i = 0; i < d->n_layer; i++) {
        const struct desc_layer *y = &d->layer[i];
        const int32_t donor = desc_donor(t, y);
        const struct desc_layer *z = donor < 0 ? NULL : &t->layer[donor];
        if (!z)
            misfit(p, "caches", textf("layer %d finds no layer to read", i),
                   textf("a %s layer of the target", y->window ? "sliding" : "full"), textf("none"), NULL);
        else if (y->head_dim != z->head_dim || y->n_head % z->n_head_kv || y->window != z->window)
            misfit(p, "caches", textf("layer %d reads the target's layer %d", i, donor),
                   textf("a multiple of %d heads of %d, window %d", z->n_head_kv, z->head_dim, z->window),
                   textf("%d of %d, window %d", y->n_head, y->head_dim, y->window), NULL);
        else
            ok(p, "caches", textf("layer %d reads the target's layer %d", i, donor));
        if (z && (d->rope[y->rope].theta != t->rope[z->rope].theta ||
                  d->rope[y->rope].n_rot != t->rope[z->rope].n_rot))
            note(p, "rope",
                 textf("layer %d: theta %g, the target's layer %d has %g", i, (double)d->rope[y->rope].theta,
                       donor, (double)t->rope[z->rope].theta),
                 "keys are turned by the target's");
    }
    if (*d->inferred) ok(p, "inferred", textf("%s", d->inferred));
}

static int see_all(struct doctor *p, struct err *e)
{
    if (p->d->arch == DESC_GEMMA4_ASSISTANT) {
        see_assistant(p);
        doctor_tokenizer(p);
        doctor_special(p);
        see_features(p);
        see_types(p);
        return 0;
    }
    if (p->d->arch == DESC_QWEN35_MTP) {
        see_mtp(p);
        see_target(p);
        doctor_tokenizer(p);
        doctor_special(p);
        see_features(p);
        see_types(p);
        return 0;
    }
    see_dialect(p);
    see_sizes(p);
    see_target(p);
    see_taps(p);
    doctor_tokenizer(p);
    doctor_special(p);
    doctor_mask(p);
    see_rope(p);
    see_layers(p);
    see_sinks(p);
    if (see_config(p, e)) return -1;
    see_lengths(p);
    see_scales(p);
    see_features(p);
    see_types(p);
    return 0;
}

int check_pair(const char *target, const char *drafter, const struct desc_override *o, check_fn fn, void *ctx,
               struct err *e)
{
    struct doctor p = {.drafter = drafter, .fn = fn, .ctx = ctx};
    struct desc_override over = o ? *o : (struct desc_override){.draft_causal = -1};
    int rc = -1;
    over.drafter = true, over.flag = over.flag ? over.flag : "--";
    if (gguf_open(&p.tg, target, e) || gguf_override(p.tg, over.kv, over.n_kv, false, e)) goto done;
    if (gguf_open(&p.dg, drafter, e)) {
        gguf_hint_target(target, e);
        goto done;
    }
    if (io_same_file(target, drafter) && gguf_override(p.dg, over.kv, over.n_kv, false, e)) goto done;
    rc = describe(&p, "target", p.tg, NULL, &p.t, e);
    if (!rc) rc = describe(&p, "drafter", p.dg, &over, &p.d, e);
    if (rc) {
        rc = rc < 0 ? -1 : p.bad;
        goto done;
    }
    const bool t_drafts = desc_drafts(p.t), d_drafts = desc_drafts(p.d);
    if (t_drafts || !d_drafts)
        misfit(&p, "roles", textf("first a target, then a drafter"), textf("a target and a drafter"),
               textf("%s is a %s, %s is a %s", target, t_drafts ? "drafter" : "target", drafter,
                     d_drafts ? "drafter" : "target"),
               "dflash-inspect --pair TARGET DRAFTER");
    else if (see_all(&p, e)) {
        rc = -1;
        goto done;
    }
    rc = p.no_memory        ? err_set(e, ERR_IO, "out of memory (values of %s)", drafter)
         : io_maps_check(e) ? -1
                            : p.bad;
done:
    desc_free(p.t);
    desc_free(p.d);
    gguf_close(p.tg);
    gguf_close(p.dg);
    return rc;
}
