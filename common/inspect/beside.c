/* beside.c - see beside.h. What a config means is the converter's to say: the same places, the same rules. */
#include "beside.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "../base/io.h"
#include "../make/convert_impl.h"

struct beside {
    struct hf_config *c;
    const struct desc *d;
    beside_fn fn;
    void *ctx;
    bool dflash2;
};

/* "1,2,3" */
static void list_text(const int32_t *v, int n, char *out, size_t size)
{
    size_t used = 0;
    out[0] = 0;
    for (int i = 0; i < n && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%d", i ? "," : "", v[i]);
}

static void tell(const struct beside *b, const char *what, const char *expected, const char *found,
                 const char *hint)
{
    if (strcmp(expected, found)) b->fn(b->ctx, &(struct beside_difference){what, expected, found, hint});
}

static void tell_number(const struct beside *b, const char *what, int64_t expected, int64_t found,
                        const char *hint)
{
    char x[32], y[32];
    snprintf(x, sizeof x, "%" PRId64, expected);
    snprintf(y, sizeof y, "%" PRId64, found);
    tell(b, what, x, y, hint);
}

/* Is it the config of a drafter; of another one than the file: e says by which size. 0, 1: no drafter's; -1.
 */
static int is_its(struct beside *b, struct err *e)
{
    const struct desc *d = b->d;
    const struct desc_layer *y = desc_attention(d);
    const struct {
        const char *path;
        int64_t have;
    } size[] = {{"num_hidden_layers", d->n_layer},  {"hidden_size", d->n_embd},
                {"num_attention_heads", y->n_head}, {"num_key_value_heads", y->n_head_kv},
                {"head_dim", y->head_dim},          {"intermediate_size", y->n_ff}};
    const char *arch[8];
    bool drafter = hf_has(b->c, "dflash_config");
    int n = 0;
    if (hf_get_str_list(b->c, "architectures", arch, 8, &n, e) < 0) return -1;
    for (int k = 0; k < n; k++) {
        for (int i = 0; conv_families[i]; i++)
            drafter |= conv_families[i]->drafter && !strcmp(conv_families[i]->hf, arch[k]);
        b->dflash2 |= !strcmp(arch[k], "DFlash2DraftModel");
    }
    if (!drafter) return 1;
    for (size_t i = 0; i < sizeof size / sizeof size[0]; i++) {
        int64_t v = size[i].have;
        if (hf_get_i64(b->c, size[i].path, 0, INT32_MAX, &v, e) < 0) return -1;
        if (v != size[i].have)
            return err_set(e, ERR_FORMAT,
                           "%s: is of another drafter: %s (expected %" PRId64 ", got %" PRId64 ")",
                           hf_config_name(b->c), size[i].path, size[i].have, v);
    }
    return 0;
}

static int compare_numbers(struct beside *b, struct err *e)
{
    const struct desc *d = b->d;
    int32_t taps[DESC_MAX_TAPS];
    int64_t block = d->block_size, mask = d->mask_id;
    double theta = (double)d->rope[0].theta;
    const char *where = NULL;
    int n = 0;
    char x[512], y[512];
    if (hf_get_rope_theta(b->c, &theta, &where, e) < 0 ||
        hf_find_i64(b->c, conv_drafter_paths.block, 0, INT32_MAX, &block, NULL, e) < 0 ||
        hf_find_i64(b->c, conv_drafter_paths.mask, 0, INT32_MAX, &mask, NULL, e) < 0)
        return -1;
    const int r = hf_find_i32_list(b->c, conv_drafter_paths.taps, taps, DESC_MAX_TAPS, &n, NULL, e);
    if (r < 0) return -1;
    if ((float)theta != d->rope[0].theta) {
        snprintf(x, sizeof x, "%.9g", theta);
        snprintf(y, sizeof y, "%.9g", (double)d->rope[0].theta);
        tell(b, "theta", x, y, "--rope-theta X");
    }
    if (r == 0) {
        list_text(taps, n, x, sizeof x);
        list_text(d->taps, d->n_taps, y, sizeof y);
        tell(b, "taps", x, y, "--taps LIST");
    }
    tell_number(b, "block size", block, d->block_size, "--block-size N");
    tell_number(b, "mask id", mask, d->mask_id, "--mask-id N");
    return 0;
}

/* A letter a layer, s (sliding) or f (full), and the window. */
static void pattern_text(const int64_t *window, int n, char *out, size_t size)
{
    int64_t any = 0;
    int k = 0;
    for (; k < n && k < 64; k++) {
        out[k] = window[k] ? 's' : 'f';
        if (window[k]) any = window[k];
    }
    out[k] = 0;
    if (any) snprintf(out + k, size - (size_t)k, ", window %" PRId64, any);
}

static int compare_layers(struct beside *b, struct err *e)
{
    const struct desc *d = b->d;
    const char *types[DESC_MAX_LAYERS];
    int64_t window = 0, want[DESC_MAX_LAYERS] = {0}, have[DESC_MAX_LAYERS];
    bool causal = false;
    int n = 0;
    char x[160], y[160];
    const int listed = hf_get_str_list(b->c, "layer_types", types, DESC_MAX_LAYERS, &n, e);
    const int said = hf_find_bool(b->c, conv_drafter_paths.causal, &causal, NULL, e);
    if (listed < 0 || said < 0 || hf_get_i64(b->c, "sliding_window", 0, INT32_MAX, &window, e) < 0) return -1;
    if (listed == 0 && n != d->n_layer)
        return err_set(e, ERR_FORMAT, "%s: layer_types has the wrong length (expected %d layers, got %d)",
                       hf_config_name(b->c), d->n_layer, n);
    for (int i = 0; i < d->n_layer; i++) {
        if (listed == 0 && !strcmp(types[i], "sliding_attention")) want[i] = window;
        have[i] = d->layer[i].window;
    }
    pattern_text(want, d->n_layer, x, sizeof x);
    pattern_text(have, d->n_layer, y, sizeof y);
    tell(b, "layers", x, y, "--sliding-window N --sliding-pattern TEXT");
    for (int i = 0; i < d->n_layer && i < 64; i++) {
        x[i] = (said == 0 ? causal : want[i] && !b->dflash2) ? 'c' : 'b';
        y[i] = d->layer[i].causal ? 'c' : 'b';
        x[i + 1] = y[i + 1] = 0;
    }
    tell(b, "causality (c causal in the block, b bidirectional)", x, y, "--causal 0|1");
    return 0;
}

int beside_compare(const char *path, const struct desc *d, beside_fn fn, void *ctx, struct err *why,
                   struct err *e)
{
    struct beside b = {.d = d, .fn = fn, .ctx = ctx};
    const char *slash = strrchr(path, '/');
    char config[4096];
    const int n = slash ? (int)(slash - path) + 1 : 0;
    if ((size_t)snprintf(config, sizeof config, "%.*sconfig.json", n, path) >= sizeof config) return 1;
    const int there = io_exists(config, e);
    if (there <= 0) return there < 0 ? -1 : 1;
    int rc = hf_config_open(&b.c, config, why);
    if (!rc) rc = is_its(&b, why);
    if (!rc) rc = compare_numbers(&b, why) || compare_layers(&b, why) ? -1 : 0;
    hf_config_free(b.c);
    if (rc < 0 && why->code != ERR_FORMAT) {
        *e = *why;
        return -1;
    }
    return rc < 0 ? 2 : rc;
}
