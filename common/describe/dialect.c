/* dialect.c - see dialect.h. The rows were taken from the engines' own readers and writers. */
#include "dialect.h"

#include <stdio.h>
#include <string.h>

#define UPSTREAM_NAMES                                                                                       \
    .fc = "fc.weight", .hidden_norm = "enc.output_norm.weight", .ffn_norm = "ffn_norm.weight"
/* Keys and tensors of the architecture dflash-draft, and of those made after it. */
#define DRAFT_KEYS                                                                                           \
    .taps_key = "dflash.target_layer_ids", .tap_shift = 0, .block_key = "dflash.block_size",                 \
    .mask_key = "dflash.mask_token_id"
#define DRAFT_NAMES                                                                                          \
    .fc = "dflash_fc.weight", .hidden_norm = "dflash_hidden_norm.weight",                                    \
    .ffn_norm = "post_attention_norm.weight", .width_key = "dflash.n_target_features",                       \
    .width = WIDTH_FEATURES
#define LUCEBOX(row, architecture, tell)                                                                     \
    {                                                                                                        \
        .name = row, .whose = "lucebox", .arch = architecture, .tell_tensor = tell, DRAFT_KEYS,              \
        .width_key = "dflash.n_target_layers", .width = WIDTH_TAPS, .fc = "dflash.fc.weight",                \
        .hidden_norm = "dflash.hidden_norm.weight", .ffn_norm = "ffn_norm.weight",                           \
        .fc_too = "dflash_fc.weight", .hidden_norm_too = "dflash_hidden_norm.weight",                        \
        .ffn_norm_too = "post_attention_norm.weight", .slides_causal = true, .windows = true,                \
        .own_ends = true, .softcap = true                                                                    \
    }

const struct dialect dialects[] = {
    {.name = "unshifted",
     .whose = "a branch of llama.cpp that counts taps from zero",
     .arch = "dflash",
     .tell_key = "target_hidden_size",
     .taps_key = "target_layers",
     .tap_shift = 0,
     .block_key = "block_size",
     .mask_key = "mask_token_id",
     .mask_too = true,
     .width_key = "target_hidden_size",
     .width = WIDTH_TARGET,
     UPSTREAM_NAMES,
     .hidden_norm_too = "hidden_norm.weight",
     .causal = CAUSAL_OPTIONAL,
     .windows = true,
     .own_ends = true,
     .tokenizer = true},
    {.name = "upstream",
     .whose = "llama.cpp",
     .arch = "dflash",
     .tell_key = "target_layers",
     .taps_key = "target_layers",
     .tap_shift = 1,
     .block_key = "block_size",
     UPSTREAM_NAMES,
     .causal = CAUSAL_OPTIONAL,
     .windows = true,
     .own_ends = true,
     .softcap = true,
     .tokenizer = true,
     .extended = true},
    {.name = "rx",
     .whose = "branch RX of llama.cpp, before DFlash was merged",
     .arch = "dflash",
     .tell_key = "target_layer_ids",
     .taps_key = "target_layer_ids",
     .tap_shift = 1,
     .block_key = "block_size",
     .mask_key = "mask_token_id",
     .fc = "fc.weight",
     .hidden_norm = "hidden_norm.weight",
     .ffn_norm = "ffn_norm.weight",
     .tokenizer = true},
    {.name = "ik",
     .whose = "ik_llama.cpp",
     .arch = "dflash-draft",
     .tell_key = "attention.causal",
     .tell_tensor = "dflash_fc.weight",
     DRAFT_KEYS,
     DRAFT_NAMES,
     .causal = CAUSAL_IGNORED,
     .slides_causal = true,
     .windows = true,
     .own_ends = true,
     .ties = true,
     .tokenizer = true},
    {.name = "buun",
     .whose = "ht, Anbeeld and buun, forks of llama.cpp",
     .arch = "dflash-draft",
     .tell_tensor = "dflash_fc.weight",
     DRAFT_KEYS,
     DRAFT_NAMES,
     .windows = true,
     .tokenizer = true},
    LUCEBOX("lucebox", "qwen35-dflash-draft", NULL),
    LUCEBOX("lucebox-gemma4", "gemma4-dflash-draft", NULL),
    LUCEBOX("lucebox-draft", "dflash-draft", "dflash.fc.weight"),
    {.name = "lucebox-deepseek4",
     .whose = "lucebox",
     .arch = "deepseek4-dflash-draft",
     .refused = "a DeepSeek V4 drafter of lucebox: its blocks are not those of a DFlash drafter"},
    {.name = NULL},
};

const struct dialect *dialect_by_name(const char *name)
{
    for (const struct dialect *x = dialects; x->name; x++)
        if (!strcmp(x->name, name)) return x;
    return NULL;
}

const char *dialect_names(void)
{
    return "upstream, unshifted, rx, ik, buun, lucebox, lucebox-gemma4 or lucebox-draft";
}

bool dialect_is_drafter(struct gguf_str arch)
{
    for (const struct dialect *x = dialects; x->name; x++)
        if (gguf_str_is(arch, x->arch)) return true;
    for (uint64_t i = 0; i + 6 <= arch.n; i++)
        if (!memcmp(arch.s + i, "dflash", 6)) return true;
    return false;
}

const char *dialect_key(const struct dialect *x, const char *rel, char *buf, size_t n)
{
    if (rel)
        snprintf(buf, n, "%s.%s", x->arch, rel);
    else
        snprintf(buf, n, "tokenizer.ggml.mask_token_id");
    return buf;
}

/* ---- recognition ---- */

static const char *file_name(const struct gguf *g)
{
    return g->map.path ? g->map.path : "model";
}

static bool has_key(const struct gguf *g, const struct dialect *x, const char *rel)
{
    char key[160];
    return gguf_find(g, dialect_key(x, rel, key, sizeof key)) != NULL;
}

static bool tells(const struct gguf *g, const struct dialect *x)
{
    return (!x->tell_key || has_key(g, x, x->tell_key)) &&
           (!x->tell_tensor || gguf_tensor(g, x->tell_tensor));
}

/* Where a file has no taps, the key that would tell is gone as well. */
static bool tells_by_tensors(const struct gguf *g, const struct dialect *x)
{
    return gguf_tensor(g, x->fc) && gguf_tensor(g, x->hidden_norm);
}

static const struct dialect *first(const struct gguf *g, struct gguf_str arch, bool by_tensors)
{
    for (const struct dialect *x = dialects; x->name; x++)
        if (!x->refused && gguf_str_is(arch, x->arch) && (by_tensors ? tells_by_tensors(g, x) : tells(g, x)))
            return x;
    return NULL;
}

/* Keys that begin with another dialect's architecture, of a file that has none of
 * its own: its name, or NULL. */
static const char *other_prefix(const struct gguf *g, struct gguf_str arch)
{
    const char *other = NULL;
    for (uint64_t i = 0; i < g->n_kv; i++) {
        const char *key = g->kv[i].key;
        if (!strncmp(key, arch.s, arch.n) && key[arch.n] == '.') return NULL;
        for (const struct dialect *x = dialects; x->name && !other; x++) {
            size_t n = strlen(x->arch);
            if (!strncmp(key, x->arch, n) && key[n] == '.') other = x->arch;
        }
    }
    return other;
}

/* No row: say what is there instead. */
static int not_found(const struct gguf *g, struct gguf_str arch, bool known, const char *flag, struct err *e)
{
    const struct gguf_kv *taps = NULL;
    const char *other = other_prefix(g, arch);
    const int n = (int)(arch.n < 63 ? arch.n : 63);
    if (known && other)
        return err_set(e, ERR_FORMAT,
                       "%s: keys begin with '%s.' (expected '%.*s.', as general.architecture says)",
                       file_name(g), other, n, arch.s);
    for (uint64_t i = 0; i < g->n_kv && !taps; i++)
        if (strstr(g->kv[i].key, "target_layer")) taps = &g->kv[i];
    if (!known)
        return err_set(e, ERR_FORMAT,
                       "%s: drafter dialect not supported (expected architecture dflash, dflash-draft, "
                       "qwen35-dflash-draft or gemma4-dflash-draft, got %.*s)",
                       file_name(g), n, arch.s);
    if (!gguf_str_is(arch, "dflash"))
        return err_set(
            e, ERR_FORMAT,
            "%s: tensor 'dflash_fc.weight': is missing, and 'dflash.fc.weight' too: whose %.*s this is "
            "is not known",
            file_name(g), n, arch.s);
    err_set(e, ERR_FORMAT,
            "%s: the taps are missing (expected dflash.target_layers or dflash.target_layer_ids, got %s)",
            file_name(g), taps ? taps->key : "no key that lists target layers");
    return err_hint(
        e, "%staps LIST gives them: zero-based blocks of the target, in the order of fc's columns", flag);
}

/* Beside --draft-X of a run stands --draft-dialect; beside --X of convert and inspect --from-dialect. */
static const char *from(const char *flag)
{
    return strcmp(flag, "--") ? flag : "--from-";
}

int dialect_find(const struct dialect **out, const struct gguf *g, const char *forced, bool taps_given,
                 const char *flag, struct err *e)
{
    struct gguf_str arch = {0};
    const struct dialect *x = forced ? dialect_by_name(forced) : NULL;
    if (gguf_get_str(g, "general.architecture", &arch, e)) return -1;
    if (forced && (!x || x->refused))
        return err_set(e, ERR_USAGE, "%sdialect %s is not known (expected %s)", from(flag), forced,
                       dialect_names());
    if (x && !gguf_str_is(arch, x->arch))
        return err_set(e, ERR_FORMAT, "%s: dialect %s has another architecture (expected %s, got %.*s)",
                       file_name(g), x->name, x->arch, (int)(arch.n < 63 ? arch.n : 63), arch.s);
    bool known = false;
    for (const struct dialect *y = dialects; y->name; y++) {
        if (y->refused && gguf_str_is(arch, y->arch))
            return err_set(e, ERR_FORMAT, "%s: %s: running it is not supported", file_name(g), y->refused);
        known |= gguf_str_is(arch, y->arch);
    }
    if (!x && known && other_prefix(g, arch)) return not_found(g, arch, known, flag, e);
    if (!x) x = first(g, arch, false);
    if (!x && taps_given) x = first(g, arch, true);
    if (!x) return not_found(g, arch, known, flag, e);
    if (!forced && gguf_find(g, "dflash.target_layers") && gguf_find(g, "dflash.target_layer_ids")) {
        err_set(e, ERR_FORMAT,
                "%s: taps under two keys, dflash.target_layers and dflash.target_layer_ids (expected one)",
                file_name(g));
        return err_hint(e, "%sdialect upstream, unshifted or rx says which counts", from(flag));
    }
    *out = x;
    return 0;
}

/* ---- names ---- */

/* "blk.N." in front: its length, else 0. */
static size_t block_prefix(const char *name)
{
    if (strncmp(name, "blk.", 4)) return 0;
    size_t digits = strspn(name + 4, "0123456789");
    return digits && name[4 + digits] == '.' ? 5 + digits : 0;
}

/* DFlash2's tensors: upstream's names, after "blk.N." or whole, and those of lucebox and buun. */
static const struct {
    const char *upstream, *alias;
    bool layer;
} aliases[] = {
    {"attn_conv_base", "attn_conv.base", true},
    {"attn_conv_proj.weight", "attn_conv.proj.weight", true},
    {"ffn_conv_base", "ffn_conv.base", true},
    {"ffn_conv_proj.weight", "ffn_conv.proj.weight", true},
    {"selector_hidden.weight", "selector.hidden_proj.weight", false},
    {"selector_predecessor.weight", "selector.pred_codebook", false},
    {"selector_successor.weight", "selector.succ_codebook", false},
};
enum { N_ALIASES = sizeof aliases / sizeof aliases[0] };

const char *dialect_spelled(const struct gguf *g, const char *name, char *buf, size_t n)
{
    const size_t at = block_prefix(name);
    snprintf(buf, n, "%s", name);
    for (int i = 0; i < N_ALIASES && !gguf_tensor(g, name); i++) {
        if (aliases[i].layer != (at > 0) || strcmp(name + at, aliases[i].upstream)) continue;
        snprintf(buf, n, "%.*s%s", (int)at, name, aliases[i].alias);
        if (!gguf_tensor(g, buf)) snprintf(buf, n, "%s", name);
    }
    return buf;
}

const char *dialect_to_upstream(const struct gguf *g, const char *name, char *buf, size_t n)
{
    const struct dialect *up = dialect_by_name("upstream");
    const size_t at = block_prefix(name);
    snprintf(buf, n, "%s", name);
    for (int i = 0; i < N_ALIASES; i++)
        if (aliases[i].layer == (at > 0) && !strcmp(name + at, aliases[i].alias)) {
            snprintf(buf, n, "%.*s%s", (int)at, name, aliases[i].upstream);
            return buf;
        }
    for (const struct dialect *x = dialects; x->name; x++) {
        if (x->refused) continue;
        if (!at && (!strcmp(name, x->fc) || (x->fc_too && !strcmp(name, x->fc_too))))
            snprintf(buf, n, "%s", up->fc);
        else if (!at &&
                 (!strcmp(name, x->hidden_norm) || (x->hidden_norm_too && !strcmp(name, x->hidden_norm_too))))
            snprintf(buf, n, "%s", up->hidden_norm);
        else if (at && (!strcmp(name + at, x->ffn_norm) ||
                        (x->ffn_norm_too && !strcmp(name + at, x->ffn_norm_too))))
            snprintf(buf, n, "%.*s%s", (int)at, name, up->ffn_norm);
        else
            continue;
        if (g && strcmp(buf, name) && gguf_tensor(g, buf))
            snprintf(buf, n, "%s", name); /* another norm's name */
        break;
    }
    return buf;
}

const char *dialect_from_upstream(const struct dialect *x, const char *name, char *buf, size_t n)
{
    const struct dialect *up = dialect_by_name("upstream");
    const size_t at = block_prefix(name);
    if (!at && !strcmp(name, up->fc))
        snprintf(buf, n, "%s", x->fc);
    else if (!at && !strcmp(name, up->hidden_norm))
        snprintf(buf, n, "%s", x->hidden_norm);
    else if (at && !strcmp(name + at, up->ffn_norm))
        snprintf(buf, n, "%.*s%s", (int)at, name, x->ffn_norm);
    else
        snprintf(buf, n, "%s", name);
    return buf;
}

/* ---- writing ---- */

int dialect_put(struct gguf_writer *w, const struct dialect *x, const struct dialect_parts *p, struct err *e)
{
    char key[160];
    int32_t ids[DIALECT_MAX_TAPS];
    if (p->n_taps < 1 || p->n_taps > DIALECT_MAX_TAPS)
        return err_set(e, ERR_FORMAT, "number of taps out of range (expected 1 to %d, got %d)",
                       DIALECT_MAX_TAPS, p->n_taps);
    for (int i = 0; i < p->n_taps; i++) {
        ids[i] = p->taps[i] + x->tap_shift;
        if (ids[i] < 0)
            return err_set(e, ERR_FORMAT,
                           "dialect %s has no place for a tap of the embeddings: it counts from block 0",
                           x->name);
    }
    if (gguf_put_u32(w, dialect_key(x, x->block_key, key, sizeof key), (uint32_t)p->block_size, e) ||
        gguf_put_array(w, dialect_key(x, x->taps_key, key, sizeof key), GGUF_I32, ids, (uint64_t)p->n_taps,
                       e) ||
        gguf_put_u32(w, dialect_key(x, x->mask_key, key, sizeof key), (uint32_t)p->mask_id, e))
        return -1;
    if (x->mask_too && gguf_put_u32(w, dialect_key(x, NULL, key, sizeof key), (uint32_t)p->mask_id, e))
        return -1;
    const int32_t width = x->width == WIDTH_FEATURES ? p->n_features
                          : x->width == WIDTH_TAPS   ? p->n_taps
                                                     : p->n_features / p->n_taps;
    if (x->width == WIDTH_NONE) return 0;
    return gguf_put_u32(w, dialect_key(x, x->width_key, key, sizeof key), (uint32_t)width, e);
}
