/* kv_flags.c - see kv_flags.h. */
#include "kv_flags.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int no_type(const char *flag, const char *got, size_t n, struct err *e)
{
    return err_set(e, ERR_USAGE, "%s: cache type not supported (expected " KN_KV_TYPES ", got %.*s)", flag,
                   (int)n, got);
}

static int one_type(const char *flag, const char *text, size_t n, uint32_t *type, struct err *e)
{
    char name[16];
    if (n >= sizeof name) return no_type(flag, text, n, e);
    memcpy(name, text, n);
    name[n] = 0;
    *type = kn_kv_by_name(name);
    return *type == KN_TYPE_NONE ? no_type(flag, text, n, e) : 0;
}

/* "K" or "K,V". */
static int both_types(const char *flag, const char *text, struct kn_kv_types *types, struct err *e)
{
    const size_t k = strcspn(text, ",");
    if (one_type(flag, text, k, &types->k, e)) return -1;
    types->v = types->k;
    return text[k] ? one_type(flag, text + k + 1, strlen(text + k + 1), &types->v, e) : 0;
}

/* ---- lists of layers ---- */

static int bad_item(const char *item, const char *why, struct err *e)
{
    return err_set(e, ERR_USAGE,
                   "--kv-layers: %s (expected N, N-N, taps, donors, sliding, first N or last N, got '%s')",
                   why, item);
}

/* A number that all of text is; -1: it is none, or larger than a layer's. */
static int32_t number(const char *text)
{
    char *end;
    if (!isdigit((unsigned char)*text)) return -1;
    const long x = strtol(text, &end, 10);
    return *end || x > DESC_MAX_LAYERS ? -1 : (int32_t)x;
}

/* The first n layers with a cache, or the last. */
static void mark_ends(const struct desc *t, bool last, int32_t n, bool *in)
{
    for (int i = 0; i < t->n_layer && n > 0; i++) {
        const int at = last ? t->n_layer - 1 - i : i;
        if (!t->layer[at].recurrent) in[at] = true, n--;
    }
}

static int mark_range(const struct desc *t, const char *item, bool *in, struct err *e)
{
    char low[16];
    const size_t n = strcspn(item, "-");
    if (n >= sizeof low) return bad_item(item, "no such layers", e);
    memcpy(low, item, n);
    low[n] = 0;
    const int32_t from = number(low), to = item[n] ? number(item + n + 1) : from;
    if (from < 0 || to < from) return bad_item(item, "no such layers", e);
    if (to >= t->n_layer) return bad_item(item, "past the last layer", e);
    for (int32_t i = from; i <= to; i++) in[i] = true;
    return 0;
}

/* The layers whose keys and values the drafter reads. */
static int mark_donors(const struct desc *t, const struct desc *d, const char *item, bool *in, struct err *e)
{
    if (!d || d->arch != DESC_GEMMA4_ASSISTANT)
        return bad_item(item, "no drafter reads the target's keys and values", e);
    for (int i = 0; i < d->n_layer; i++) {
        const int32_t donor = desc_donor(t, &d->layer[i]);
        if (donor >= 0) in[donor] = true;
    }
    return 0;
}

static int mark(const struct desc *t, const struct desc *d, const char *item, bool *in, struct err *e)
{
    const bool first = !strncmp(item, "first ", 6), last = !strncmp(item, "last ", 5);
    if (first || last) {
        const int32_t n = number(item + (first ? 6 : 5));
        if (n < 1) return bad_item(item, "not a number of layers", e);
        mark_ends(t, last, n, in);
        return 0;
    }
    if (!strcmp(item, "sliding")) {
        for (int i = 0; i < t->n_layer; i++) in[i] |= t->layer[i].window > 0;
        return 0;
    }
    if (!strcmp(item, "donors")) return mark_donors(t, d, item, in, e);
    if (strcmp(item, "taps")) return mark_range(t, item, in, e);
    if (!d) return bad_item(item, "there is no drafter (-d DRAFTER)", e);
    for (int i = 0; i < d->n_taps; i++)
        if (d->taps[i] >= 0 && d->taps[i] < t->n_layer) in[d->taps[i]] = true;
    return 0;
}

/* One "LIST=K[,V]" onto the layers that it names. */
static int some_layers(const struct desc *t, const struct desc *d, const char *text, struct kn_kv_types *of,
                       struct err *e)
{
    char item[32];
    struct kn_kv_types types;
    const char *is = strrchr(text, '=');
    if (!is) return err_set(e, ERR_USAGE, "--kv-layers: expected LIST=K[,V], got '%s'", text);
    if (both_types("--kv-layers", is + 1, &types, e)) return -1;
    for (const char *p = text; p <= is; p++) {
        const size_t n = strcspn(p, ",=");
        bool in[DESC_MAX_LAYERS] = {false};
        int named = 0;
        snprintf(item, sizeof item, "%.*s", (int)(n < sizeof item ? n : sizeof item - 1), p);
        if (mark(t, d, item, in, e)) return -1;
        for (int i = 0; i < t->n_layer; i++)
            if (in[i] && !t->layer[i].recurrent) of[i] = types, named++;
        if (!named) return bad_item(item, "none of the target's layers with keys and values", e);
        p += n;
    }
    return 0;
}

/* ---- all of it ---- */

/* true: all layers with a cache have these types. */
static bool all_are(const struct desc *d, const struct kn_kv_types *of, struct kn_kv_types types)
{
    for (int i = 0; i < d->n_layer; i++)
        if (!d->layer[i].recurrent && (of[i].k != types.k || of[i].v != types.v)) return false;
    return true;
}

/* What a quantised drafter's cache would cost is acceptance, and it is small: without --draft-kv it is f16.
 */
static struct kn_kv_types of_drafter(struct kn_kv_types all)
{
    return (struct kn_kv_types){kn_kv_coded(all.k) ? KN_F16 : all.k, kn_kv_coded(all.v) ? KN_F16 : all.v};
}

/* Do the types fit the heads? */
static int check_heads(const struct desc *d, const char *role, const struct kn_kv_types *of, struct err *e)
{
    char why[160];
    for (int i = 0; d && i < (desc_drafts(d) ? desc_draft_caches(d) : d->n_layer); i++) {
        const struct desc_layer *y = &d->layer[i];
        const struct kn_kv kv = {
            .type = of[i], .cap = KN_KV_SPLIT, .n_head_kv = y->n_head_kv, .head_dim = y->head_dim};
        if (y->recurrent || (!kn_kv_coded(of[i].k) && !kn_kv_coded(of[i].v))) continue;
        if (kn_kv_check(&kv, why, sizeof why))
            return err_set(e, ERR_USAGE, "cache of %s layer %d: %s", role, i, why);
    }
    return 0;
}

/* The types of a state's drafter, or of its place among them; NULL: it has none. */
static const struct kn_kv_types *kept_types(const struct state_info *info, const struct desc *d)
{
    for (int32_t i = 0; i < info->n_drafters; i++)
        if (!memcmp(info->by[i].id, d->identity, 16) && info->by[i].n_layer == desc_draft_caches(d))
            return info->by[i].kv;
    return NULL;
}

int kv_flags_resolve(struct kv_flags *f, const struct desc *t, const struct desc *const *drafters, int32_t n,
                     const struct state_info *info, struct session_options *o, struct err *e)
{
    const struct desc *d = n ? drafters[0] : NULL;
    const bool kept = info && !f->kv;
    struct kn_kv_types all = {KN_F16, KN_F16}, draft, *y = f->of[1];
    bool alike = true;
    if (f->kv && both_types("--kv", f->kv, &all, e)) return -1;
    draft = of_drafter(all);
    if (f->draft_kv && both_types("--draft-kv", f->draft_kv, &draft, e)) return -1;
    for (int i = 0; i < DESC_MAX_LAYERS; i++)
        f->of[0][i] = kept && i < info->n_layer && kn_kv_known(info->kv[i].k) ? info->kv[i] : all;
    for (int i = 0; i < f->layers.n; i++)
        if (some_layers(t, d, f->layers.v[i], f->of[0], e)) return -1;
    if (check_heads(t, "target", f->of[0], e)) return -1;
    o->kv_convert = f->convert;
    o->kv = f->of[0][desc_attention(t) - t->layer];
    for (int32_t k = 0; k < n; y += desc_draft_caches(drafters[k++])) {
        const struct kn_kv_types *saved = kept && !f->draft_kv ? kept_types(info, drafters[k]) : NULL;
        for (int i = 0; i < drafters[k]->n_layer; i++) y[i] = saved ? saved[i] : draft;
        if (check_heads(drafters[k], "drafter", y, e)) return -1;
        alike = alike && all_are(drafters[k], y, o->kv);
    }
    o->kv_layers = all_are(t, f->of[0], o->kv) ? NULL : f->of[0];
    o->draft_kv_layers = alike ? NULL : f->of[1];
    return 0;
}

const char *kv_flags_text(struct kn_kv_types types, char text[32])
{
    const bool one = types.k == types.v;
    snprintf(text, 32, "%s%s%s", kn_kv_name(types.k), one ? "" : ",", one ? "" : kn_kv_name(types.v));
    for (char *p = text; *p; p++) *p = (char)tolower((unsigned char)*p);
    return text;
}

bool kv_flags_coarse(const struct kv_flags *f, const struct desc *t)
{
    for (int i = 0; i < t->n_layer; i++) {
        const uint32_t side[2] = {f->of[0][i].k, f->of[0][i].v};
        for (int j = 0; j < 2 && !t->layer[i].recurrent; j++)
            if (kn_kv_coded(side[j]) && side[j] != KN_Q8_0) return true;
    }
    return false;
}

const char *kv_flags_convert_doubt(const struct kv_flags *f, const char *state_path)
{
    if (f->convert && !state_path) return "--kv-convert needs --state STATE";
    return f->convert && !f->kv && !f->draft_kv && !f->layers.n
               ? "--kv-convert needs --kv, --kv-layers or --draft-kv"
               : "";
}
