/* state.c - a saved state: which models it wants, and what it holds. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "../../common/base/json.h"
#include "../../common/base/text.h"
#include "../../common/run/state.h"
#include "show.h"

bool show_is_state(const char *path)
{
    char magic[6];
    struct stat st;
    if (stat(path, &st) || !S_ISREG(st.st_mode)) return false; /* opening it says why */
    FILE *f = fopen(path, "rb");
    const bool is = f && fread(magic, 1, sizeof magic, f) == sizeof magic && !memcmp(magic, "DFSNAP", 6);
    if (f) fclose(f);
    return is;
}

/* n: of 33 bytes. */
static const char *hex(const uint8_t id[16], char *text)
{
    for (int i = 0; i < 16; i++) sprintf(text + 2 * i, "%02x", id[i]);
    return text;
}

static const char *type_name(uint32_t type)
{
    return kn_kv_known(type) ? kn_kv_name(type) : "none";
}

static const char *types_text(struct kn_kv_types y, char text[32])
{
    snprintf(text, 32, y.k == y.v ? "%s" : "%s,%s", type_name(y.k), type_name(y.v));
    return text;
}

static json_t *types_json(const struct kn_kv_types *y, int32_t n)
{
    char text[32];
    json_t *a = json_array();
    for (int32_t i = 0; i < n; i++)
        json_array_append_new(a, y[i].k == KN_TYPE_NONE ? json_null() : json_string(types_text(y[i], text)));
    return a;
}

static void show_model_wanted(const char *role, const char *name, const uint8_t id[16])
{
    char text[160], id_text[33];
    if (*name)
        text_quote(text, sizeof text, name, strlen(name), 120);
    else
        snprintf(text, sizeof text, "a model without a name");
    printf("%-12s %s\n%-12s identity %s\n", role, text, "", hex(id, id_text));
}

/* Runs of layers that are alike. */
static void show_types(const char *role, const struct kn_kv_types *y, int32_t n)
{
    char text[32];
    printf("%-12s", role);
    for (int32_t i = 0, k; i < n; i = k) {
        for (k = i + 1; k < n && y[k].k == y[i].k && y[k].v == y[i].v;) k++;
        printf("%s %s", i ? "," : "", types_text(y[i], text));
        if (k - i < n)
            printf(k - i > 1 ? " (layers %" PRId32 " to %" PRId32 ")" : " (layer %" PRId32 ")", i, k - 1);
    }
    putchar('\n');
}

static void state_json(const struct state_info *x, const char *path, const struct stat *st)
{
    char id[33];
    json_t *taps = json_array();
    for (int32_t k = 0; k < x->n_drafters; k++)
        for (int32_t i = 0; i < x->by[k].n_taps; i++)
            json_array_append_new(taps, json_integer((json_int_t)(int32_t)x->by[k].taps[i]));
    json_t *j = json_pack("{s:i,s:s,s:o,s:s,s:I,s:i,s:i,s:i,s:o,s:s,s:i,s:o}", "schema", 1, "kind", "state",
                          "path", json_text(path, strlen(path)), "format", "state", "size_bytes",
                          (json_int_t)st->st_size, "positions", x->n_tokens, "chunk", x->chunk, "n_vocab",
                          x->n_vocab, "target", json_text(x->target, strlen(x->target)), "target_identity",
                          hex(x->target_id, id), "layers", x->n_layer, "kv", types_json(x->kv, x->n_layer));
    if (j && x->sparse.on)
        json_object_set_new(
            j, "sparse", json_pack("{s:f,s:i}", "alpha", (double)x->sparse.alpha, "dense", x->sparse.dense));
    if (j && x->pool) json_object_set_new(j, "pool", json_integer(x->pool));
    if (j && x->gaps.n_text)
        json_object_set_new(j, "compressed",
                            json_pack("{s:i,s:i,s:f,s:o,s:s}", "text_tokens", x->gaps.n_text, "kept_tokens",
                                      x->gaps.n_kept, "keep", (double)x->gaps.keep, "scorer",
                                      json_text(x->gaps.scorer, strlen(x->gaps.scorer)), "scorer_identity",
                                      hex(x->gaps.scorer_id, id)));
    for (int32_t i = 0; j && i < x->n_drafters; i++) {
        const struct state_drafter_info *d = &x->by[i];
        json_t *to = i ? json_object() : json_incref(j); /* the first one's keys stand with the rest */
        json_object_set_new(to, "drafter", json_text(d->name, strlen(d->name)));
        json_object_set_new(to, "drafter_identity", json_string(hex(d->id, id)));
        json_object_set_new(to, "drafter_layers", json_integer(d->n_layer));
        json_object_set_new(to, "hidden", json_boolean(d->hidden));
        json_object_set_new(to, "draft_kv", types_json(d->kv, d->n_layer));
        if (i) json_object_set(j, "beside", to);
        json_decref(to);
    }
    if (j) json_object_set_new(j, "taps", json_incref(taps));
    json_decref(taps);
    show_json_line(j);
}

int show_state(const char *path, bool json, struct err *e)
{
    struct state *s;
    struct state_info x;
    struct stat st = {0};
    if (state_open(&s, path, &x, e)) return -1;
    stat(path, &st);
    if (json) {
        state_json(&x, path, &st);
        state_close(s);
        return 0;
    }
    printf("%s: a state of %" PRId32 " positions, %.1f MiB\n\n", show_text(path), x.n_tokens,
           (double)st.st_size / 1048576);
    show_model_wanted("target", x.target, x.target_id);
    printf("%-12s %" PRId32 " layers, a vocabulary of %" PRId32 "\n", "", x.n_layer, x.n_vocab);
    show_types("cache", x.kv, x.n_layer);
    printf("%-12s %" PRId32 " tokens a prefill pass\n", "chunk", x.chunk);
    if (x.sparse.on)
        printf("%-12s --sparse %g --sparse-dense %" PRId32 "\n", "prompts", (double)x.sparse.alpha,
               x.sparse.dense);
    if (x.pool) printf("%-12s %" PRId32 " positions\n", "pool", x.pool);
    if (x.gaps.n_text) {
        printf("%-12s %" PRId32 " of %" PRId32 " tokens of the prompt were kept (--compress %g): lossy\n",
               "compressed", x.gaps.n_kept, x.gaps.n_text, (double)x.gaps.keep);
        show_model_wanted("scorer", x.gaps.scorer, x.gaps.scorer_id);
    }
    for (int32_t k = 0; k < x.n_drafters; k++) {
        const struct state_drafter_info *d = &x.by[k];
        show_model_wanted(k ? "beside it" : "drafter", d->name, d->id);
        printf("%-12s %" PRId32 " layer%s, %s", "", d->n_layer, d->n_layer == 1 ? "" : "s",
               d->hidden ? "the target's last hidden state" : "taps");
        for (int32_t i = 0; i < d->n_taps; i++) printf(" %" PRId32, (int32_t)d->taps[i]);
        putchar('\n');
        if (d->n_layer) show_types("its cache", d->kv, d->n_layer);
    }
    if (!x.n_drafters)
        printf("%-12s none: it was made without one, and -d wants one that was made with it\n", "drafter");
    printf("\ndflash-generate -m TARGET%s --state goes on from it; dflash-inspect prints the identity of a "
           "model's file\n",
           x.n_drafters > 1 ? " [-d DRAFTER [--mtp]]"
           : x.n_drafters   ? " [-d DRAFTER]"
                            : "");
    state_close(s);
    return 0;
}

int check_state(const char *path, check_fn fn, struct err *e)
{
    struct state *s = NULL;
    struct state_info x;
    struct err mine = {0};
    uint64_t n;
    char text[160];
    int rc = state_open(&s, path, &x, &mine) || state_verify(s, &n, &mine) ? -1 : 0;
    state_close(s);
    if (rc && mine.code != ERR_FORMAT) {
        *e = mine;
        return -1;
    }
    if (rc) {
        fn(NULL, &(struct check_finding){.level = CHECK_BAD, .subject = "state", .text = mine.msg});
        return 1;
    }
    snprintf(text, sizeof text, "%" PRId32 " positions; %" PRIu64 " sections in order, all checksums right",
             x.n_tokens, n);
    fn(NULL, &(struct check_finding){.level = CHECK_OK, .subject = "state", .text = text});
    return 0;
}

int show_identity(const struct gguf *g, bool json, struct err *e)
{
    const struct desc_override none = {.draft_causal = -1};
    struct err mine = {0};
    struct desc *d = NULL;
    char id[33];
    if (desc_read(&d, g, &none, &mine)) {
        if (mine.code == ERR_FORMAT) return 0; /* no model that is run here */
        *e = mine;
        return -1;
    }
    hex(d->identity, id);
    desc_free(d);
    if (json)
        show_json_line(json_pack("{s:i,s:s,s:s}", "schema", 1, "kind", "identity", "identity", id));
    else
        printf("\n%-12s %s (what a state names the file by)\n", "identity", id);
    return 0;
}
