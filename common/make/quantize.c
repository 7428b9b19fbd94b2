/* quantize.c - recipes and rows. The rules of the mixes are those of the ecosystem's quantiser
 * (docs/dflash-quantize.1), so that a file of ours has the types that a file of that name is expected to
 * have. */
#include "quantize.h"
#include "../base/io.h"
#include "../file/gguf.h"
#include "../base/mem.h"

#include <fnmatch.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static const struct {
    const char *name;
    uint32_t type, file_type;
} recipes[QUANT_RECIPES] = {
    [QUANT_F32] = {"F32", KN_F32, 0},
    [QUANT_F16] = {"F16", KN_F16, 1},
    [QUANT_BF16] = {"BF16", KN_BF16, 32},
    [QUANT_Q8_0] = {"Q8_0", KN_Q8_0, 7},
    [QUANT_Q4_0] = {"Q4_0", KN_Q4_0, 2},
    [QUANT_Q5_0] = {"Q5_0", KN_Q5_0, 8},
    [QUANT_Q4_K] = {"Q4_K", KN_Q4_K, 14}, /* 14, 16: the small mixes, the closest that the key can say */
    [QUANT_Q5_K] = {"Q5_K", KN_Q5_K, 16},
    [QUANT_Q6_K] = {"Q6_K", KN_Q6_K, 18},
    [QUANT_Q4_1] = {"Q4_1", KN_Q4_1, 3},
    [QUANT_Q5_1] = {"Q5_1", KN_Q5_1, 9},
    [QUANT_Q4_K_S] = {"Q4_K_S", KN_Q4_K, 14},
    [QUANT_Q4_K_M] = {"Q4_K_M", KN_Q4_K, 15},
    [QUANT_Q5_K_S] = {"Q5_K_S", KN_Q5_K, 16},
    [QUANT_Q5_K_M] = {"Q5_K_M", KN_Q5_K, 17},
    [QUANT_Q2_K] = {"Q2_K", KN_Q2_K, 10},
    [QUANT_Q3_K_S] = {"Q3_K_S", KN_Q3_K, 11},
    [QUANT_Q3_K_M] = {"Q3_K_M", KN_Q3_K, 12},
    [QUANT_Q3_K_L] = {"Q3_K_L", KN_Q3_K, 13},
    [QUANT_IQ4_NL] = {"IQ4_NL", KN_IQ4_NL, 25},
    [QUANT_IQ4_XS] = {"IQ4_XS", KN_IQ4_XS, 30},
    [QUANT_IQ2_XXS] = {"IQ2_XXS", KN_IQ2_XXS, 19},
    [QUANT_IQ2_XS] = {"IQ2_XS", KN_IQ2_XS, 20},
    [QUANT_IQ2_S] = {"IQ2_S", KN_IQ2_XS, 28},
    [QUANT_IQ2_M] = {"IQ2_M", KN_IQ2_S, 29},
    [QUANT_IQ3_XXS] = {"IQ3_XXS", KN_IQ3_XXS, 23},
    [QUANT_IQ3_XS] = {"IQ3_XS", KN_IQ3_S, 22},
    [QUANT_IQ3_S] = {"IQ3_S", KN_IQ3_S, 26},
    [QUANT_IQ3_M] = {"IQ3_M", KN_IQ3_S, 27},
    [QUANT_MXFP4_MOE] = {"MXFP4_MOE", KN_MXFP4, 38},
};

const char *quant_recipe_names(void)
{
    return "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, Q4_K_S, Q4_K_M, Q5_K_S, Q5_K_M, "
           "Q2_K, Q3_K_S, Q3_K_M, Q3_K_L, IQ4_NL, IQ4_XS, IQ2_XXS, IQ2_XS, IQ2_S, IQ2_M, IQ3_XXS, IQ3_XS, "
           "IQ3_S, IQ3_M, MXFP4_MOE";
}

int quant_recipe_by_name(const char *name, enum quant_recipe *r, struct err *e)
{
    for (int i = 0; i < QUANT_RECIPES; i++)
        if (!strcasecmp(recipes[i].name, name)) {
            *r = (enum quant_recipe)i;
            return 0;
        }
    return err_set(e, ERR_USAGE, "type %s: unknown (expected one of %s)", name, quant_recipe_names());
}

const char *quant_recipe_name(enum quant_recipe r)
{
    return recipes[r].name;
}

bool quant_recipe_is_mix(enum quant_recipe r)
{
    return r >= QUANT_Q4_K_S;
}

uint32_t quant_recipe_file_type(enum quant_recipe r)
{
    return recipes[r].file_type;
}

/* ---- overrides ---- */

int quant_override_parse(struct quant_override *o, const char *arg, struct err *e)
{
    const char *eq = strrchr(arg, '=');
    *o = (struct quant_override){0};
    if (!eq || eq == arg || !eq[1])
        return err_set(e, ERR_USAGE,
                       "--tensor-type %s: expected PATTERN=TYPE, such as 'blk.*.attn_v.weight=Q6_K'", arg);
    const struct kn_type_info *t = kn_type_by_name(eq + 1);
    if (!t || !t->can_encode)
        return err_set(
            e, ERR_USAGE,
            "--tensor-type %s: cannot write type %s (expected F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, "
            "Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S or MXFP4)",
            arg, eq + 1);
    o->pattern = mem_strdup(arg);
    if (!o->pattern) return err_set(e, ERR_IO, "out of memory (pattern of --tensor-type)");
    o->pattern[eq - arg] = 0;
    o->type = t->type;
    return 0;
}

void quant_override_free(struct quant_override *o)
{
    mem_free(o->pattern);
    o->pattern = NULL;
}

/* ---- rules ---- */

static bool has(const char *name, const char *part)
{
    return strstr(name, part) != NULL;
}

bool quant_may_quantize(const struct quant_tensor *t)
{
    /* Routers, short convolutions, positions and small projections: little to gain, much to lose. */
    static const char *const never[] = {
        "_norm.weight", "ffn_gate_inp.weight",  "ssm_conv1d", "shortconv.conv", "position_embd",
        "token_types",  "per_layer_model_proj", "altup",      "laurel",         "attn_rel_b.weight",
        "conf_proj",    "mtp.centroids"};
    const size_t n = strlen(t->name);
    if (gguf_n_dims(t->n_dims, t->ne) < 2 || n < 6 || strcmp(t->name + n - 6, "weight")) return false;
    for (size_t i = 0; i < sizeof never / sizeof *never; i++)
        if (has(t->name, never[i])) return false;
    return true;
}

static bool is_attn_v(const char *name)
{
    return has(name, "attn_v.weight") || has(name, "attn_qkv.weight") || has(name, "attn_kv_b.weight");
}

static bool is_ffn_down(const char *name)
{
    return has(name, "ffn_down");
}

static bool is_ffn_gate(const char *name)
{
    return has(name, "ffn_gate");
}

static bool is_ffn_up(const char *name)
{
    return has(name, "ffn_up");
}

static int64_t layer_of(const char *name) /* of "blk.N."; -1 if none */
{
    char *end;
    if (strncmp(name, "blk.", 4) || name[4] < '0' || name[4] > '9') return -1;
    const unsigned long v = strtoul(name + 4, &end, 10);
    return *end == '.' && v < 1000000 ? (int64_t)v : -1;
}

struct place {
    int64_t layer, index;
};

static int by_layer(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

/* rank[i] = how many tensors of i's class come before it, by layer and then by place in the file, so that the
 * order in which a file lists its layers does not matter. Returns the size of the class. */
static int64_t rank_class(const struct quant_tensor *t, int64_t n, bool (*in)(const char *), struct place *p,
                          int64_t *rank)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        if (in(t[i].name)) p[count++] = (struct place){layer_of(t[i].name), i};
    qsort(p, (size_t)count, sizeof *p, by_layer);
    for (int64_t i = 0; i < count; i++) rank[p[i].index] = i;
    return count;
}

/* The first and last eighth, and every third between. */
static bool more_bits(int64_t i, int64_t n)
{
    return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
}

struct mix {
    enum quant_recipe r;
    const struct quant_model *m;
    bool tied;
    int64_t n_attn_v;
    int64_t *rank; /* [n], valid in the four classes */
};

static bool is_70b(const struct quant_model *m)
{
    return m->arch && (!strcmp(m->arch, "llama") || !strcmp(m->arch, "qwen2")) && m->n_layer == 80 &&
           m->n_head != m->n_head_kv;
}

static bool is_medium(enum quant_recipe r)
{
    return r == QUANT_Q4_K_M || r == QUANT_Q5_K_M;
}
static bool is_iq4(enum quant_recipe r)
{
    return r == QUANT_IQ4_NL || r == QUANT_IQ4_XS;
}

static bool is_iq2(enum quant_recipe r)
{
    return r >= QUANT_IQ2_XXS && r <= QUANT_IQ2_M;
}

static uint32_t mix_attn_v(const struct mix *x, int64_t i)
{
    const bool shared =
        x->m->n_head_kv > 0 && x->m->n_head / x->m->n_head_kv >= 4; /* by four heads or more */
    uint32_t type = recipes[x->r].type;
    if (x->m->n_expert == 8) return KN_Q8_0;
    if (is_medium(x->r) && more_bits(x->rank[i], x->n_attn_v)) return KN_Q6_K;
    if (x->r == QUANT_Q4_K_S && x->rank[i] < 4) return KN_Q5_K;
    if (x->r == QUANT_Q3_K_L || (is_iq4(x->r) && shared)) return KN_Q5_K;
    if (x->r == QUANT_Q3_K_M) type = x->rank[i] < 2 ? KN_Q5_K : KN_Q4_K;
    if (x->r == QUANT_Q2_K) type = shared ? KN_Q4_K : KN_Q3_K;
    if (x->r == QUANT_IQ3_XXS)
        type = shared ? KN_Q4_K : x->m->importance ? (uint32_t)KN_IQ3_XXS : (uint32_t)KN_IQ3_S;
    if (x->r == QUANT_IQ3_M || ((x->r == QUANT_IQ3_XS || x->r == QUANT_IQ3_S) && shared)) type = KN_Q4_K;
    return (type == KN_Q3_K || type == KN_Q4_K) && is_70b(x->m) ? KN_Q5_K : type;
}

static uint32_t mix_ffn_down(const struct mix *x, const char *name, int64_t i)
{
    const int64_t layer = x->m->n_expert > 1 && layer_of(name) >= 0 ? layer_of(name) : x->rank[i];
    const bool early = layer < x->m->n_layer / 8;
    if (is_medium(x->r) && more_bits(layer, x->m->n_layer)) return KN_Q6_K;
    if (early && (x->r == QUANT_Q4_K_S || (is_iq4(x->r) && !x->m->importance))) return KN_Q5_K;
    if (x->r == QUANT_Q2_K) return KN_Q3_K;
    if (x->r == QUANT_IQ3_XXS && !x->m->importance) return early ? KN_Q4_K : KN_Q3_K;
    if (x->r == QUANT_IQ3_M && (early || (x->m->n_expert == 8 && more_bits(layer, x->m->n_layer))))
        return KN_Q4_K;
    if (x->r == QUANT_Q3_K_L) return KN_Q5_K;
    if (x->r == QUANT_Q3_K_M) return layer < x->m->n_layer / 16 ? KN_Q5_K : KN_Q4_K;
    return recipes[x->r].type;
}

static uint32_t mix_attn_output(const struct mix *x)
{
    const uint32_t type = recipes[x->r].type;
    if (x->m->n_expert == 8) return type == KN_Q5_K || x->r == QUANT_Q3_K_L ? type : (uint32_t)KN_Q5_K;
    if (x->r == QUANT_Q2_K) return KN_Q3_K;
    if (x->r == QUANT_IQ3_XXS) return KN_IQ3_S;
    if (x->r == QUANT_Q3_K_L) return KN_Q5_K;
    return x->r == QUANT_Q3_K_M || x->r == QUANT_IQ3_M ? (uint32_t)KN_Q4_K : type;
}

/* IQ2: the larger two have IQ3_S where the others have Q2_K. */
static uint32_t mix_iq2(const struct mix *x, const char *name, int64_t i)
{
    const bool large = x->r == QUANT_IQ2_S || x->r == QUANT_IQ2_M;
    const uint32_t type = recipes[x->r].type, more = large ? KN_IQ3_S : KN_Q2_K;
    if (is_attn_v(name))
        return (x->m->n_head_kv > 0 && x->m->n_head / x->m->n_head_kv >= 4) || x->m->n_expert >= 4
                   ? (uint32_t)KN_Q4_K
                   : more;
    if (x->m->n_expert == 8 && has(name, "attn_k.weight")) return KN_Q4_K;
    if (is_ffn_down(name)) return x->rank[i] < x->m->n_layer / 8 ? more : type;
    if (!has(name, "attn_output.weight")) return type;
    return x->m->n_expert == 8 ? (uint32_t)KN_Q5_K : large ? more : type;
}

/* IQ3_XS and IQ3_XXS: queries, keys, and the middle layers' gates and ups of IQ3_XS. */
static uint32_t mix_iq3_rest(const struct mix *x, const char *name, int64_t i)
{
    const int64_t layers = x->m->n_layer,
                  layer = x->m->n_expert > 1 && layer_of(name) >= 0 ? layer_of(name) : x->rank[i];
    if (has(name, "attn_k.weight") || has(name, "attn_q.weight"))
        return x->r == QUANT_IQ3_XS ? KN_IQ3_XXS : x->r == QUANT_IQ3_XXS ? KN_IQ2_S : recipes[x->r].type;
    if (x->r == QUANT_IQ3_XS && (is_ffn_gate(name) || is_ffn_up(name)) && layer >= layers / 8 &&
        layer < 7 * layers / 8)
        return KN_IQ3_XXS;
    return recipes[x->r].type;
}

/* A head's type, which a tied embedding has too. */
static uint32_t mix_head(enum quant_recipe r, int64_t n_in)
{
    if (n_in % kn_type_info(recipes[r].type)->block) return KN_Q8_0;
    return r == QUANT_MXFP4_MOE ? KN_Q8_0 : is_iq2(r) || r == QUANT_IQ3_XXS ? KN_Q5_K : KN_Q6_K;
}
static uint32_t mix_embedding(enum quant_recipe r)
{
    return r == QUANT_IQ2_XXS || r == QUANT_IQ2_XS                      ? KN_Q2_K
           : r == QUANT_IQ2_S || r == QUANT_IQ2_M || r == QUANT_IQ3_XXS ? KN_IQ3_S
                                                                        : recipes[r].type;
}

static uint32_t mix_type(const struct mix *x, const struct quant_tensor *t, int64_t i)
{
    const char *name = t[i].name;
    const bool eight = x->m->n_expert == 8;
    const bool embedding = !strcmp(name, "token_embd.weight") || !strcmp(name, "per_layer_token_embd.weight");
    if (!strcmp(name, "output.weight") || (embedding && x->tied)) return mix_head(x->r, t[i].ne[0]);
    if (x->r == QUANT_MXFP4_MOE) return t[i].n_dims > 2 && t[i].ne[2] > 1 ? KN_MXFP4 : KN_Q8_0;
    if (embedding) return mix_embedding(x->r);
    if (is_iq2(x->r)) return mix_iq2(x, name, i);
    if (is_attn_v(name)) return mix_attn_v(x, i);
    if (eight && has(name, "attn_k.weight")) return KN_Q8_0;
    if (has(name, "attn_output.weight")) return mix_attn_output(x);
    return is_ffn_down(name) ? mix_ffn_down(x, name, i) : mix_iq3_rest(x, name, i);
}

static bool grid_type(uint32_t type)
{
    return type == KN_IQ2_XXS || type == KN_IQ2_XS || type == KN_IQ2_S || type == KN_IQ3_XXS ||
           type == KN_IQ3_S;
}

/* A type whose blocks divide the row, no worse than the one whose do not. */
static uint32_t fallback(uint32_t type, int64_t n_in)
{
    if (n_in % kn_type_info(type)->block == 0) return type;
    const uint32_t next = type == KN_Q2_K || type == KN_Q3_K     ? KN_Q4_0
                          : type == KN_IQ4_XS || grid_type(type) ? KN_IQ4_NL
                          : type == KN_Q4_K                      ? KN_Q5_0
                          : type == KN_Q5_K                      ? KN_Q5_1
                          : type == KN_Q6_K                      ? KN_Q8_0
                                                                 : KN_F16;
    return n_in % kn_type_info(next)->block == 0 ? next : KN_F16;
}

static bool is_float(uint32_t type)
{
    return type == KN_F32 || type == KN_F16 || type == KN_BF16 || type == KN_F64;
}

static int apply_overrides(const struct quant_tensor *t, int64_t n, const struct quant_override *o,
                           int n_override, uint32_t *to, struct err *e)
{
    for (int k = 0; k < n_override; k++) {
        const struct kn_type_info *type = kn_type_info(o[k].type);
        const char *kept = NULL;
        bool used = false;
        for (int64_t i = 0; i < n; i++) {
            if (fnmatch(o[k].pattern, t[i].name, 0)) continue;
            if (!quant_may_quantize(&t[i])) {
                kept = t[i].name;
                continue;
            }
            if (t[i].ne[0] % type->block)
                return err_set(e, ERR_USAGE,
                               "--tensor-type %s=%s: %s has rows of %lld (expected a multiple of %u)",
                               o[k].pattern, type->name, t[i].name, (long long)t[i].ne[0], type->block);
            to[i] = o[k].type;
            used = true;
        }
        if (!used && kept)
            return err_set(e, ERR_USAGE,
                           "--tensor-type %s=%s: matches only tensors that are never quantised (%s)",
                           o[k].pattern, type->name, kept);
        if (!used) {
            err_set(e, ERR_USAGE, "--tensor-type %s=%s: matches no tensor", o[k].pattern, type->name);
            return strpbrk(o[k].pattern, "*?[")
                       ? -1
                       : err_hint(e, "a pattern is of whole names: --tensor-type '*%s*=%s'", o[k].pattern,
                                  type->name);
        }
    }
    return 0;
}

static int mix_init(struct mix *x, enum quant_recipe r, const struct quant_model *m,
                    const struct quant_tensor *t, int64_t n, struct err *e)
{
    *x = (struct mix){.r = r, .m = m, .tied = true};
    for (int64_t i = 0; i < n; i++)
        if (!strcmp(t[i].name, "output.weight")) x->tied = false;
    x->rank = mem_calloc((size_t)n + 1, sizeof *x->rank);
    struct place *p = mem_calloc((size_t)n + 1, sizeof *p);
    if (!x->rank || !p) {
        mem_free(p);
        return err_set(e, ERR_IO, "out of memory (plan of %lld tensors)", (long long)n);
    }
    x->n_attn_v = rank_class(t, n, is_attn_v, p, x->rank);
    rank_class(t, n, is_ffn_down, p, x->rank);
    rank_class(t, n, is_ffn_gate, p, x->rank);
    rank_class(t, n, is_ffn_up, p, x->rank);
    mem_free(p);
    return 0;
}

int quant_plan(enum quant_recipe r, const struct quant_model *m, const struct quant_tensor *t, int64_t n,
               uint32_t keep, const struct quant_override *o, int n_override, uint32_t *to, struct err *e)
{
    struct mix x;
    int rc = mix_init(&x, r, m, t, n, e);
    for (int64_t i = 0; i < n && !rc; i++) {
        const struct kn_type_info *from = kn_type_info(t[i].from);
        if (!from) {
            rc = err_set(e, ERR_FORMAT, "%s: unknown type %u", t[i].name, t[i].from);
        } else if (quant_may_quantize(&t[i]) && (from->can_decode || from->block > 1)) {
            const uint32_t type = quant_recipe_is_mix(r) ? mix_type(&x, t, i) : recipes[r].type;
            to[i] = fallback(type, t[i].ne[0]);
        } else if (is_float(from->type)) {
            to[i] = r == QUANT_F32 ? (uint32_t)KN_F32 : keep == KN_TYPE_NONE ? from->type : keep;
        } else {
            to[i] = from->type;
        }
    }
    if (!rc) rc = apply_overrides(t, n, o, n_override, to, e);
    for (int64_t i = 0; i < n && !rc; i++)
        if (to[i] != t[i].from && !kn_type_info(t[i].from)->can_decode)
            rc = err_set(e, ERR_FORMAT, "%s: type %s cannot be decoded, so it cannot become %s", t[i].name,
                         kn_type_info(t[i].from)->name, kn_type_info(to[i])->name);
    mem_free(x.rank);
    return rc;
}

int64_t quant_fell_back(enum quant_recipe r, const struct quant_tensor *t, int64_t n, int64_t *first)
{
    const int64_t block = kn_type_info(recipes[r].type)->block;
    int64_t count = 0;
    *first = -1;
    for (int64_t i = 0; i < n; i++) {
        if (!quant_may_quantize(&t[i]) || t[i].ne[0] % block == 0) continue;
        if (!count++) *first = i;
    }
    return count;
}

int64_t quant_again(const struct quant_tensor *t, const uint32_t *to, int64_t n, char *text, size_t room)
{
    int64_t all = 0;
    size_t at = 0;
    text[0] = 0;
    for (uint32_t type = 0; type < 256; type++) {
        const struct kn_type_info *info = kn_type_info(type);
        int64_t count = 0;
        if (!info || info->block == 1) continue;
        for (int64_t i = 0; i < n; i++) count += t[i].from == type && to[i] != type;
        if (count && at < room)
            at += (size_t)snprintf(text + at, room - at, "%s%lld %s", all ? ", " : "", (long long)count,
                                   info->name);
        all += count;
    }
    return all;
}

int64_t quant_coarse(const struct quant_tensor *t, const uint32_t *to, int64_t n, int64_t *first)
{
    int64_t count = 0;
    *first = -1;
    for (int64_t i = 0; i < n; i++) {
        if (to[i] == t[i].from || !grid_type(to[i]) || to[i] == KN_IQ3_S) continue;
        if (!count++) *first = i;
    }
    return count;
}

/* ---- rows ---- */

double quant_rel_rms(const struct quant_error *q)
{
    return q->err2 > 0 ? sqrt(q->err2 / q->ref2) : 0;
}

void quant_error_add(struct quant_error *sum, const struct quant_error *part)
{
    sum->err2 += part->err2;
    sum->ref2 += part->ref2;
    sum->count += part->count;
}

typedef float f8 __attribute__((vector_size(32)));
typedef double d8 __attribute__((vector_size(64)));

/* Eight partial sums, added in one order: quick and always the same. */
static struct quant_error row_error(const float *x, const float *y, int64_t n)
{
    d8 a = {0}, b = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        f8 u, v;
        memcpy(&u, x + i, sizeof u);
        memcpy(&v, y + i, sizeof v);
        const d8 p = __builtin_convertvector(u, d8), d = p - __builtin_convertvector(v, d8);
        a += d * d;
        b += p * p;
    }
    for (; i < n; i++) {
        const double d = (double)x[i] - (double)y[i];
        a[0] += d * d;
        b[0] += (double)x[i] * (double)x[i];
    }
    struct quant_error q = {.count = (uint64_t)n};
    for (int j = 0; j < 8; j++) {
        q.err2 += a[j];
        q.ref2 += b[j];
    }
    return q;
}

struct job {
    uint32_t from, to;
    const uint8_t *src;
    uint8_t *dst;
    int64_t n_in;
    size_t src_row, dst_row;
    bool measure;
    const float *importance; /* [n_in] or NULL */
};

/* scratch: [2, n_in] */
static int one_row(const struct job *b, int64_t r, float *scratch, struct quant_error *q)
{
    const uint8_t *s = b->src + (size_t)r * b->src_row;
    const float *x = (const float *)(const void *)s;
    int rc = 0;
    /* A mapped F32 tensor is aligned by its file; one that is not goes through the copy. */
    if (b->from != KN_F32 || (uintptr_t)s % _Alignof(float)) {
        rc = kn_decode_row(b->from, s, scratch, b->n_in);
        x = scratch;
    }
    uint8_t *d = b->dst + (size_t)r * b->dst_row;
    if (!rc) rc = kn_encode_row(b->to, x, d, b->n_in, b->importance);
    if (!rc && b->measure) {
        float *y = scratch + b->n_in;
        rc = kn_decode_row(b->to, d, y, b->n_in);
        *q = row_error(x, y, b->n_in);
    }
    return rc;
}

/* Say which element of a row that could not be encoded is to blame. */
static int row_failed(const char *name, const struct job *b, int64_t r, int64_t row0, float *scratch,
                      struct err *e)
{
    if (kn_decode_row(b->from, b->src + (size_t)r * b->src_row, scratch, b->n_in))
        return err_set(e, ERR_FORMAT, "%s: type %s cannot be decoded", name, kn_type_info(b->from)->name);
    int64_t worst = 0;
    for (int64_t i = 0; i < b->n_in; i++) {
        if (!isfinite(scratch[i]))
            return err_set(e, ERR_FORMAT, "%s: row %lld, element %lld is %s (expected finite values)", name,
                           (long long)(row0 + r), (long long)i, isnan(scratch[i]) ? "NaN" : "infinite");
        if (fabsf(scratch[i]) > fabsf(scratch[worst])) worst = i;
    }
    err_set(e, ERR_FORMAT, "%s: row %lld, element %lld: %g is more than %s can hold", name,
            (long long)(row0 + r), (long long)worst, (double)scratch[worst], kn_type_info(b->to)->name);
    return err_hint(e, "bf16 has the range of f32: --type bf16");
}

static int run_rows(const char *name, const struct job *b, int64_t n_rows, int64_t row0, int threads,
                    struct quant_error *q, struct err *e)
{
    int rc = 0;
    int64_t bad = n_rows; /* lowest row that failed */
    struct quant_error *part = q ? mem_calloc((size_t)n_rows, sizeof *part) : NULL;
    float *scratch = mem_calloc((size_t)threads * 2, (size_t)b->n_in * sizeof *scratch);
    if (!scratch || (q && !part)) {
        rc = err_set(e, ERR_IO, "out of memory (scratch for rows of %lld)", (long long)b->n_in);
        goto out;
    }
    io_team_begin();
#pragma omp parallel for num_threads(threads) schedule(dynamic, 4) reduction(min : bad)
    for (int64_t r = 0; r < n_rows; r++) {
        struct quant_error one = {0};
        if (one_row(b, r, scratch + (size_t)omp_get_thread_num() * 2 * (size_t)b->n_in, &one))
            bad = r < bad ? r : bad;
        else if (part)
            part[r] = one;
    }
    io_team_end();
    if (bad < n_rows) {
        rc = row_failed(name, b, bad, row0, scratch, e);
        goto out;
    }
    for (int64_t r = 0; q && r < n_rows; r++) quant_error_add(q, &part[r]);
out:
    mem_free(part);
    mem_free(scratch);
    return rc;
}

int quant_rows(const char *name, uint32_t from, const void *src, uint32_t to, void *dst, int64_t n_in,
               int64_t n_rows, int64_t row0, int threads, struct quant_error *q, struct err *e)
{
    return quant_rows_weighted(name, from, src, to, dst, n_in, n_rows, row0, NULL, threads, q, e);
}

int quant_rows_weighted(const char *name, uint32_t from, const void *src, uint32_t to, void *dst,
                        int64_t n_in, int64_t n_rows, int64_t row0, const float *importance, int threads,
                        struct quant_error *q, struct err *e)
{
    const struct kn_type_info *f = kn_type_info(from), *t = kn_type_info(to);
    struct job b = {from,      to,        src, dst, n_in, kn_row_bytes(from, n_in), kn_row_bytes(to, n_in),
                    q != NULL, importance};
    if (n_in <= 0 || n_rows <= 0) return 0;
    if (!f || !t || (from != to && (!f->can_decode || !t->can_encode)))
        return err_set(e, ERR_FORMAT, "%s: cannot make %s from %s", name, t ? t->name : "an unknown type",
                       f ? f->name : "an unknown type");
    if (!b.src_row || !b.dst_row)
        return err_set(e, ERR_FORMAT, "%s: rows of %lld are not whole blocks of %s", name, (long long)n_in,
                       b.src_row ? t->name : f->name);
    if (from == to) {
        memcpy(dst, src, b.src_row * (size_t)n_rows);
        return 0;
    }
    if (threads <= 0) threads = omp_get_max_threads();
    /* Waking a thread for less than about a millisecond of work costs more than it brings. */
    const int64_t most = 1 + n_rows * n_in / (128 << 10);
    if (threads > most) threads = (int)most;
    if (threads > n_rows) threads = (int)n_rows;
    return run_rows(name, &b, n_rows, row0, threads, q, e);
}

int64_t quant_slab_rows(uint32_t from, uint32_t to, int64_t n_in)
{
    const uint64_t row = (uint64_t)kn_row_bytes(from, n_in) + kn_row_bytes(to, n_in) + 32;
    const uint64_t rows = (uint64_t)(32 << 20) / row;
    return rows < 1 ? 1 : (int64_t)rows;
}
