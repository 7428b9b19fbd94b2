/* convert.c - the course of a conversion: find the input's parts, check them against each other, write. */
#include "convert_impl.h"

#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../describe/dialect.h"
#include "../base/io.h"
#include "../base/mem.h"
#include "../token/tokenizer.h"

const struct conv_family *const conv_families[] = {&conv_qwen3,        &conv_qwen3moe,
                                                   &conv_qwen35,       &conv_qwen35moe,
                                                   &conv_llama,        &conv_gemma4,
                                                   &conv_assistant,    &conv_dspark,
                                                   &conv_dspark_forge, &conv_dspark_gemma4,
                                                   &conv_domino,       &conv_dflash2,
                                                   &conv_dflash,       NULL};

/* Their names in config.json, for messages. */
static const char *family_names(char *buf, size_t n)
{
    size_t used = 0;
    for (int i = 0; conv_families[i] && used < n; i++)
        used += (size_t)snprintf(buf + used, n - used, "%s%s",
                                 !i                     ? ""
                                 : conv_families[i + 1] ? ", "
                                                        : " or ",
                                 conv_families[i]->hf);
    return buf;
}

void convert_defaults(struct convert *o)
{
    memset(o, 0, sizeof *o);
    o->mask_id = -1;
    o->causal = -1;
}

void conv_say(const struct conv *c, enum convert_level level, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    if (!c->o->say) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    c->o->say(c->o->ctx, level, text);
}

/* ---- keys ---- */

int conv_put_u32(struct conv *c, const char *key, int64_t v, struct err *e)
{
    char full[128];
    snprintf(full, sizeof full, "%s.%s", conv_arch(c), key);
    if (v < 0 || v > UINT32_MAX)
        return err_set(e, ERR_FORMAT, "%s: %s is out of range (got %lld)", c->label, full, (long long)v);
    return gguf_put_u32(c->w, full, (uint32_t)v, e);
}

int conv_put_f32(struct conv *c, const char *key, double v, struct err *e)
{
    char full[128];
    snprintf(full, sizeof full, "%s.%s", conv_arch(c), key);
    return gguf_put_f32(c->w, full, (float)v, e);
}

int conv_put_bool(struct conv *c, const char *key, bool v, struct err *e)
{
    char full[128];
    snprintf(full, sizeof full, "%s.%s", conv_arch(c), key);
    return gguf_put_bool(c->w, full, v, e);
}

int conv_put_str(struct conv *c, const char *key, const char *v, struct err *e)
{
    char full[128];
    snprintf(full, sizeof full, "%s.%s", conv_arch(c), key);
    return gguf_put_str(c->w, full, v, strlen(v), e);
}

int conv_put_common(struct conv *c, struct err *e)
{
    const struct {
        const char *key;
        int64_t v;
        bool leave_out;
    } n[] = {
        {"context_length", c->n_ctx, false},
        {"embedding_length", c->dim[DIM_EMBD], false},
        {"block_count", c->n_layer + c->n_mtp, false},
        {"feed_forward_length", c->dim[DIM_FF], !c->dim[DIM_FF]}, /* no dense layers */
        {"attention.head_count", c->n_head, false},
        {"attention.head_count_kv", c->n_head_kv, c->layer_kv[0] > 0},
        {"attention.key_length", c->head_dim, false},
        {"attention.value_length", c->head_dim, false},
    };
    /* A family has one activation, and its rule for it takes nothing else; but a config must say it. */
    const char *act_key = c->fam->act_key ? c->fam->act_key : "hidden_act";
    if (c->cfg && !hf_has(c->cfg, act_key))
        return err_set(e, ERR_FORMAT, "%s: %s is missing (expected \"%s\")", hf_config_name(c->cfg), act_key,
                       c->fam->act ? c->fam->act : "silu");
    for (size_t i = 0; i < sizeof n / sizeof n[0]; i++)
        if (!n[i].leave_out && conv_put_u32(c, n[i].key, n[i].v, e)) return -1;
    if (c->layer_kv[0]) {
        char key[128];
        snprintf(key, sizeof key, "%s.attention.head_count_kv", conv_arch(c));
        if (gguf_put_array(c->w, key, GGUF_I32, c->layer_kv, (uint64_t)c->n_layer, e)) return -1;
    }
    return conv_put_f32(c, "attention.layer_norm_rms_epsilon", c->rms_eps, e) ||
                   conv_put_f32(c, "rope.freq_base", c->rope_theta, e)
               ? -1
               : 0;
}

int conv_put_experts(struct conv *c, const char *used_key, struct err *e)
{
    static const char *const count_paths[] = {"num_experts", "num_local_experts", NULL};
    int64_t n = c->dim[DIM_EXPERTS], said = n, used = 0;
    const char *where = NULL;
    int r = hf_find_i64(c->cfg, count_paths, 1, INT32_MAX, &said, &where, e);
    if (r < 0) return -1;
    if (r == 0 && said != n)
        return err_set(e, ERR_FORMAT, "%s: %s does not match the tensors (expected %lld from %s, got %lld)",
                       hf_config_name(c->cfg), where, (long long)n, c->dim_from[DIM_EXPERTS],
                       (long long)said);
    if (conv_witness(c, "moe_intermediate_size", c->dim[DIM_FFX], c->dim_from[DIM_FFX], e)) return -1;
    r = hf_get_i64(c->cfg, used_key, 1, n, &used, e);
    if (r == 1) return err_set(e, ERR_FORMAT, "%s: %s is missing", hf_config_name(c->cfg), used_key);
    if (r < 0) return -1;
    conv_say(c, CONVERT_DETAIL, "experts: %lld of width %lld, %lld used (%s)", (long long)n,
             (long long)c->dim[DIM_FFX], (long long)used, used_key);
    return conv_put_u32(c, "expert_count", n, e) || conv_put_u32(c, "expert_used_count", used, e) ||
                   conv_put_u32(c, "expert_feed_forward_length", c->dim[DIM_FFX], e)
               ? -1
               : 0;
}

/* ---- parts that every family has: a flag first, with a warning where config.json says another value ---- */

static int get_rope_theta(struct conv *c, struct err *e)
{
    const char *where = NULL;
    int r = c->cfg ? hf_get_rope(c->cfg, c->fam->rope_layers, c->fam->rope, &c->rope, &where, e) : 1;
    if (r < 0) return -1;
    if (r == 0) c->rope_theta = c->rope.theta;
    if (c->o->rope_theta > 0) {
        if (r == 0 && c->rope_theta != c->o->rope_theta)
            conv_say(c, CONVERT_WARN, "--rope-theta %.9g is used, %s: %s says %.9g", c->o->rope_theta,
                     hf_config_name(c->cfg), where, c->rope_theta);
        c->rope_theta = c->o->rope_theta;
        where = "--rope-theta";
    } else if (r == 1) {
        if (c->cfg)
            err_set(e, ERR_FORMAT,
                    "%s: rope_theta is missing (expected at rope_parameters.rope_theta, "
                    "rope_parameters.<layer type>.rope_theta or rope_theta)",
                    hf_config_name(c->cfg));
        else
            err_set(e, ERR_USAGE, "%s: the rope base is not known: there is no config.json", c->label);
        return c->fam->drafter ? err_hint(e, "give it with --rope-theta X") : -1;
    }
    if (!((float)c->rope_theta >= 1))
        return err_set(e, c->o->rope_theta > 0 ? ERR_USAGE : ERR_FORMAT,
                       "%s: %s: out of range (expected 1 or more, got %.9g)", c->label, where, c->rope_theta);
    conv_say(c, CONVERT_DETAIL, "rope theta: %.9g (%s)", c->rope_theta, where);
    return 0;
}

static int get_rms_eps(struct conv *c, struct err *e)
{
    int r = c->cfg ? hf_get_f64(c->cfg, "rms_norm_eps", &c->rms_eps, e) : 1;
    if (r < 0) return -1;
    if (c->o->rms_eps > 0) {
        if (r == 0 && c->rms_eps != c->o->rms_eps)
            conv_say(c, CONVERT_WARN, "--rms-eps %.9g is used, %s: rms_norm_eps says %.9g", c->o->rms_eps,
                     hf_config_name(c->cfg), c->rms_eps);
        c->rms_eps = c->o->rms_eps;
    } else if (r == 1) {
        if (c->cfg)
            err_set(e, ERR_FORMAT, "%s: rms_norm_eps is missing", hf_config_name(c->cfg));
        else
            err_set(e, ERR_USAGE, "%s: the norms' epsilon is not known: there is no config.json", c->label);
        return c->fam->drafter ? err_hint(e, "give it with --rms-eps X") : -1;
    }
    if (!(c->rms_eps > 0 && c->rms_eps < 1))
        return err_set(e, ERR_FORMAT,
                       "%s: rms_norm_eps is out of range (expected a small positive number, got %.9g)",
                       c->label, c->rms_eps);
    return 0;
}

/* The trained length. It bounds nothing in the forward pass: a drafter without config.json may do without. */
static int get_context(struct conv *c, struct err *e)
{
    int r = c->cfg ? hf_get_i64(c->cfg, "max_position_embeddings", 1, INT32_MAX, &c->n_ctx, e) : 1;
    if (r < 0) return -1;
    if (c->o->n_ctx > 0) {
        if (r == 0 && c->n_ctx != c->o->n_ctx)
            conv_say(c, CONVERT_WARN, "--context-length %d is used, %s: max_position_embeddings says %lld",
                     c->o->n_ctx, hf_config_name(c->cfg), (long long)c->n_ctx);
        c->n_ctx = c->o->n_ctx;
    } else if (r == 1 && c->cfg) {
        return err_set(e, ERR_FORMAT, "%s: max_position_embeddings is missing", hf_config_name(c->cfg));
    } else if (r == 1) {
        c->n_ctx = c->target.n_ctx;
        conv_say(c, CONVERT_NOTE, "no config.json: context length %lld %s", (long long)c->n_ctx,
                 c->n_ctx ? "is the target's" : "stands for not known (--context-length N sets it)");
    }
    return 0;
}

/* ---- opening ---- */

static bool is_dir(const char *path)
{
    struct stat s;
    return !stat(path, &s) && S_ISDIR(s.st_mode);
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

/* 1 yes, 0 no (or nothing that can be read here, which is said where it is opened), -1 it cannot be told. */
static int is_gguf(const char *path, struct err *e)
{
    char magic[4] = {0};
    struct stat st;
    size_t have = 0, got = 1;
    /* A pipe would be waited for here; the map that follows says that it cannot be one. */
    if (stat(path, &st) || !S_ISREG(st.st_mode)) return 0;
    int rc = 0, fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return err_errno(e, "%s", path);
    for (; have < sizeof magic && got && !rc; have += got)
        rc = io_read_some(fd, path, magic + have, sizeof magic - have, &got, e);
    close(fd);
    return rc ? -1 : have == sizeof magic && !memcmp(magic, "GGUF", 4);
}

/* Is there such a file in the directory of path, or in path itself? */
static bool beside(const char *path, const char *file)
{
    char p[4096];
    const char *slash = strrchr(path, '/');
    int n = is_dir(path) ? (int)strlen(path) : slash ? (int)(slash - path) : 1;
    return (size_t)snprintf(p, sizeof p, "%.*s/%s", n, is_dir(path) || slash ? path : ".", file) < sizeof p &&
           !access(p, F_OK);
}

/* dir/file opened as JSON; absent: *c NULL and 0. */
static int open_beside(struct hf_config **c, const char *dir, const char *file, struct err *e)
{
    char path[4096];
    *c = NULL;
    if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, file) >= sizeof path)
        return err_set(e, ERR_USAGE, "%s: path too long", dir);
    int there = io_exists(path, e);
    return there > 0 ? hf_config_open(c, path, e) : there;
}

static int open_input(struct conv *c, struct err *e)
{
    const char *in = c->o->input;
    bool dir = is_dir(in);
    c->label = mem_strdup(in);
    if (!c->label) return err_set(e, ERR_IO, "out of memory");
    bool json = !dir && ends_with(in, ".json") && !ends_with(in, ".index.json");
    if (json && !c->o->random) {
        err_set(e, ERR_USAGE,
                "%s: a config holds no weights (expected a Hugging Face directory or a .safetensors file)",
                in);
        return err_hint(e, "random weights at its sizes: --random SEED");
    }
    if (json) return hf_config_open(&c->cfg, in, e);
    if (!dir && ends_with(in, ".safetensors") && !ends_with(in, "/model.safetensors") &&
        strcmp(in, "model.safetensors") && beside(in, "model.safetensors.index.json")) {
        err_set(e, ERR_USAGE,
                "%s: is one of several files of a model (there is model.safetensors.index.json beside it)",
                in);
        const char *slash = strrchr(in, '/');
        return err_hint(e, "dflash-convert %.*s -o OUT.gguf", slash ? (int)(slash - in) : 1,
                        slash ? in : ".");
    }
    if (access(in, F_OK)) return err_errno(e, "%s", in);
    c->dir = mem_strdup(in);
    if (!c->dir) return err_set(e, ERR_IO, "out of memory");
    if (!dir) {
        char *slash = strrchr(c->dir, '/');
        if (slash == c->dir) slash++;
        if (slash)
            *slash = 0;
        else
            strcpy(c->dir, "."); /* in holds at least one byte: it exists */
    }
    if (open_beside(&c->cfg, c->dir, "config.json", e) ||
        open_beside(&c->gen, c->dir, "generation_config.json", e))
        return -1;
    if (!dir && c->cfg) conv_say(c, CONVERT_NOTE, "config: %s", hf_config_name(c->cfg));
    if (c->o->random)
        return c->cfg ? 0
                      : err_set(e, ERR_USAGE, "%s: no config.json (random weights take their sizes from it)",
                                in);
    if (dir && st_two_forms(in))
        conv_say(c, CONVERT_WARN,
                 "%s: model.safetensors is used, model.safetensors.index.json beside it is not", in);
    return st_open(&c->st, in, e);
}

/* ---- family ---- */

static int refuse_relative(struct conv *c, struct err *e)
{
    char key[160];
    if (c->nested) {
        if (hf_config_nest(c->cfg, "text_config", e)) return -1;
    } else if (c->cfg && hf_key_with(c->cfg, "text_config", key, sizeof key))
        return err_set(e, ERR_FORMAT,
                       "%s: key %s: a text model nested in another one's config is not supported (expected "
                       "the keys of a "
                       "%s at top level)",
                       hf_config_name(c->cfg), key, c->fam->hf);
    for (const struct conv_relative *r = c->fam->relatives; r && r->part; r++)
        if (c->cfg && hf_key_with(c->cfg, r->part, key, sizeof key))
            return err_set(e, ERR_FORMAT,
                           "%s: key %s shows a %s drafter, which is not supported (expected a plain %s)",
                           hf_config_name(c->cfg), key, r->name, c->fam->hf);
    return 0;
}

/* Exporters name some relatives by the projector alone. */
static const struct conv_family *by_projector(const struct conv *c, const struct conv_family *fam)
{
    const char *projector = fam->drafter ? hf_peek_str(c->cfg, "dflash_config.projector_type") : NULL;
    for (int i = 0; projector && conv_families[i]; i++)
        if (conv_families[i]->projector && !strcmp(conv_families[i]->projector, projector))
            return conv_families[i];
    return fam;
}

/* Without config.json: a drafter shows itself by a tensor that only it has. 1: none does. */
static int family_from_tensors(struct conv *c)
{
    char name[128];
    for (int i = 0; conv_families[i]; i++) {
        if (!conv_families[i]->signature) continue;
        snprintf(name, sizeof name, "model.%s", conv_families[i]->signature);
        if (st_tensor(c->st, name) || st_tensor(c->st, conv_families[i]->signature)) {
            c->fam = conv_families[i];
            conv_say(c, CONVERT_NOTE, "no config.json: taken as a %s, which alone has %s", c->fam->hf,
                     c->fam->signature);
            return 0;
        }
    }
    return 1;
}

static int find_family(struct conv *c, struct err *e)
{
    const char *arch[8];
    char names[512];
    int n = 0;
    if (!c->cfg && family_from_tensors(c))
        return err_set(e, ERR_FORMAT,
                       "%s: no config.json (only a DFlash drafter converts without, with its parts as flags)",
                       c->label);
    if (!c->cfg) return 0;
    int r = hf_get_str_list(c->cfg, "architectures", arch, 8, &n, e);
    if (r < 0) return -1;
    if (r == 1 || n != 1)
        return err_set(e, ERR_FORMAT,
                       "%s: architectures does not name one model (expected one name, got %d: known are %s)",
                       hf_config_name(c->cfg), n, family_names(names, sizeof names));
    for (int i = 0; conv_families[i]; i++)
        if (!strcmp(conv_families[i]->hf, arch[0]) ||
            (conv_families[i]->hf_nested && !strcmp(conv_families[i]->hf_nested, arch[0]))) {
            c->nested = conv_families[i]->hf_nested && !strcmp(conv_families[i]->hf_nested, arch[0]);
            c->fam = by_projector(c, conv_families[i]);
            return refuse_relative(c, e);
        }
    static const struct conv_relative strangers[] = {{"Lfm2DSpark", "DSpark (LFM2's rotation)"},
                                                     {"DSparkSpeculator", "DSpark (nested configs)"},
                                                     {"DSpark", "DSpark (of this name)"},
                                                     {"Domino", "Domino (of this name)"},
                                                     {"DSpine", "DSpine"},
                                                     {"LiLiCorr", "LiLiCorr"},
                                                     {"Eagle", "EAGLE"},
                                                     {"Assistant", "MTP assistant"},
                                                     {NULL, NULL}};
    for (const struct conv_relative *s = strangers; s->part; s++)
        if (strstr(arch[0], s->part))
            return err_set(e, ERR_FORMAT,
                           "%s: architecture %.100s: %s drafters are not supported (expected %s)",
                           hf_config_name(c->cfg), arch[0], s->name, family_names(names, sizeof names));
    return err_set(e, ERR_FORMAT, "%s: architecture %.100s is not supported (expected %s)",
                   hf_config_name(c->cfg), arch[0], family_names(names, sizeof names));
}

bool conv_has_mtp(const struct conv_family *f)
{
    for (const struct conv_rule *r = f->rules; r->hf; r++)
        if (r->flags & CONV_MTP) return true;
    return false;
}

int conv_dialect(const struct convert *o, const char *otherwise, const struct dialect **x, struct err *e)
{
    const char *name = o->dialect ? o->dialect : otherwise;
    *x = dialect_by_name(name);
    if (*x && !(*x)->refused) return 0;
    return err_set(e, ERR_USAGE, "--dialect %s is not known (expected %s)", name, dialect_names());
}

const char *conv_arch(const struct conv *c)
{
    return c->fam->drafter ? c->dialect->arch : c->fam->arch;
}

static int check_flags(struct conv *c, struct err *e)
{
    const struct convert *o = c->o;
    const char *flag = o->target           ? "--target"
                       : o->rope_theta > 0 ? "--rope-theta"
                       : o->rms_eps > 0    ? "--rms-eps"
                       : o->n_taps > 0     ? "--taps"
                       : o->mask_id >= 0   ? "--mask-id"
                       : o->block_size > 0 ? "--block-size"
                       : o->n_head > 0     ? "--heads"
                       : o->n_ctx > 0      ? "--context-length"
                                           : NULL;
    if (flag && !c->fam->drafter) {
        err_set(e, ERR_USAGE, "%s: %s is for drafters that read taps, this is a %s", c->label, flag,
                c->fam->hf);
        return o->target ? err_hint(e, CONV_NO_TARGET) : -1;
    }
    if (o->mtp != CONVERT_MTP_FOUND && !conv_has_mtp(c->fam))
        return err_set(e, ERR_USAGE, "%s: --mtp is for families that predict further tokens, this is a %s",
                       c->label, c->fam->hf);
    const char *gguf_only = o->from_dialect      ? "--from-dialect"
                            : o->has_tap_shift   ? "--tap-shift"
                            : o->sliding_window  ? "--sliding-window"
                            : o->sliding_pattern ? "--sliding-pattern"
                            : o->causal >= 0     ? "--causal"
                                                 : NULL;
    if (gguf_only)
        return err_set(e, ERR_USAGE, "%s: %s says how a drafter's GGUF is read, this is a checkpoint",
                       c->label, gguf_only);
    if (o->dialect && !c->fam->drafter && strcmp(o->dialect, "upstream"))
        return err_set(e, ERR_USAGE, "%s: --dialect %s is for drafters, this is a %s", c->label, o->dialect,
                       c->fam->hf);
    return conv_dialect(o, "upstream", &c->dialect, e);
}

/* ---- target ---- */

static int target_gguf(struct conv *c, struct err *e)
{
    struct conv_target *t = &c->target;
    struct gguf_str arch;
    char key[160];
    uint32_t v;
    if (gguf_open(&t->gguf, c->o->target, e)) return -1;
    int r = gguf_get_str(t->gguf, "general.architecture", &arch, e);
    if (r) return r < 0 ? -1 : err_set(e, ERR_FORMAT, "%s: general.architecture is missing", c->o->target);
    if (dialect_is_drafter(arch))
        return err_set(e, ERR_FORMAT, "%s: is a drafter (expected a target, got architecture %.*s)",
                       c->o->target, (int)(arch.n < 64 ? arch.n : 64), arch.s);
    const struct {
        const char *key;
        int64_t *v;
        bool must;
    } want[] = {{"embedding_length", &t->n_embd, true},
                {"block_count", &t->n_layer, true},
                {"context_length", &t->n_ctx, false},
                {"vocab_size", &t->n_vocab, false}};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        snprintf(key, sizeof key, "%.*s.%s", (int)(arch.n < 64 ? arch.n : 64), arch.s, want[i].key);
        r = gguf_get_u32(t->gguf, key, &v, e);
        if (r < 0) return -1;
        if (r == 1 && want[i].must) return err_set(e, ERR_FORMAT, "%s: %s is missing", c->o->target, key);
        if (r == 0) *want[i].v = v;
    }
    const struct gguf_tensor *embed = gguf_tensor(t->gguf, "token_embd.weight");
    if (!embed)
        return err_set(e, ERR_FORMAT, "%s: no token_embd.weight (expected a target model)", c->o->target);
    t->n_vocab = embed->ne[1];
    return 0;
}

/* A drafter's config has all that is asked of a target's. */
static int refuse_drafter(struct hf_config *cfg, const char *path, struct err *e)
{
    const char *arch[8];
    int n = 0, r = hf_get_str_list(cfg, "architectures", arch, 8, &n, e);
    for (int k = 0; r == 0 && k < n; k++)
        for (int i = 0; conv_families[i]; i++)
            if (conv_families[i]->drafter && !strcmp(conv_families[i]->hf, arch[k]))
                return err_set(e, ERR_FORMAT, "%s: is a drafter (expected a target, got architecture %s)",
                               path, arch[k]);
    return r < 0 ? -1 : 0;
}

static int target_dir(struct conv *c, struct err *e)
{
    static const char *const embd[] = {"hidden_size", "text_config.hidden_size", NULL};
    static const char *const layers[] = {"num_hidden_layers", "text_config.num_hidden_layers", NULL};
    static const char *const vocab[] = {"vocab_size", "text_config.vocab_size", NULL};
    static const char *const ctx[] = {"max_position_embeddings", "text_config.max_position_embeddings", NULL};
    const struct {
        const char *const *paths;
        int64_t *v;
        bool must;
    } want[] = {{embd, &c->target.n_embd, true},
                {layers, &c->target.n_layer, true},
                {vocab, &c->target.n_vocab, true},
                {ctx, &c->target.n_ctx, false}};
    if (open_beside(&c->target.cfg, c->o->target, "config.json", e)) return -1;
    if (!c->target.cfg)
        return err_set(e, ERR_FORMAT,
                       "%s: no config.json (expected the target's Hugging Face directory or GGUF)",
                       c->o->target);
    if (refuse_drafter(c->target.cfg, c->o->target, e)) return -1;
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        int r = hf_find_i64(c->target.cfg, want[i].paths, 1, INT32_MAX, want[i].v, NULL, e);
        if (r < 0) return -1;
        if (r == 1 && want[i].must)
            return err_set(e, ERR_FORMAT, "%s: %s is missing", hf_config_name(c->target.cfg),
                           want[i].paths[0]);
    }
    return 0;
}

static int open_target(struct conv *c, struct err *e)
{
    if (!c->o->target) return 0;
    return is_dir(c->o->target) ? target_dir(c, e) : target_gguf(c, e);
}

/* ---- tokenizer and stop ids ---- */

static int add_ids(struct conv *c, struct hf_config *cfg, const char *path, int32_t *ids, int *n,
                   struct err *e)
{
    int32_t more[DESC_MAX_STOPS];
    int k = 0;
    int r = cfg ? hf_get_i32_list(cfg, path, true, more, DESC_MAX_STOPS, &k, e) : 1;
    if (r < 0) return -1;
    for (int i = 0; r == 0 && i < k; i++) {
        int j = 0;
        if (more[i] < 0 || (c->n_vocab && more[i] >= c->n_vocab))
            return err_set(e, ERR_FORMAT, "%s: %s is outside the vocabulary (expected 0 to %lld, got %d)",
                           hf_config_name(cfg), path, (long long)c->n_vocab - 1, more[i]);
        while (j < *n && ids[j] != more[i]) j++;
        if (j == *n && *n == DESC_MAX_STOPS)
            return err_set(e, ERR_FORMAT, "%s: %s: too many stop ids (expected at most %d)",
                           hf_config_name(cfg), path, DESC_MAX_STOPS);
        if (j == *n) ids[(*n)++] = more[i];
    }
    return 0;
}

/* A model without tokenizer.json still has to stop: bos, eos and the stop list from config.json and
 * generation_config.json. */
static int put_bare_ids(struct conv *c, struct err *e)
{
    int32_t bos[DESC_MAX_STOPS], stops[DESC_MAX_STOPS];
    int n_bos = 0, n = 0;
    if (gguf_put_str(c->w, "tokenizer.ggml.model", "no_vocab", 8, e)) return -1;
    if (add_ids(c, c->gen, "bos_token_id", bos, &n_bos, e) ||
        add_ids(c, c->cfg, "bos_token_id", bos, &n_bos, e) ||
        add_ids(c, c->gen, "eos_token_id", stops, &n, e) || add_ids(c, c->cfg, "eos_token_id", stops, &n, e))
        return -1;
    if (n_bos && gguf_put_u32(c->w, "tokenizer.ggml.bos_token_id", (uint32_t)bos[0], e)) return -1;
    if (n && (gguf_put_u32(c->w, "tokenizer.ggml.eos_token_id", (uint32_t)stops[0], e) ||
              gguf_put_array(c->w, "tokenizer.ggml.stop_token_ids", GGUF_I32, stops, (uint64_t)n, e)))
        return -1;
    conv_say(c, CONVERT_NOTE, "no tokenizer.json: the file has no tokenizer (%d stop id%s)", n,
             n == 1 ? "" : "s");
    return 0;
}

/* Beside tokenizer.json generation_config.json's list counts, as in transformers; what config.json has more
 * is told. */
static int tell_stops(const struct conv *c, struct err *e)
{
    int32_t gen[DESC_MAX_STOPS], cfg[DESC_MAX_STOPS];
    int n_gen = 0, n_cfg = 0;
    if (!c->gen || !c->cfg) return 0;
    if (hf_get_i32_list(c->gen, "eos_token_id", true, gen, DESC_MAX_STOPS, &n_gen, e) < 0 ||
        hf_get_i32_list(c->cfg, "eos_token_id", true, cfg, DESC_MAX_STOPS, &n_cfg, e) < 0)
        return -1;
    for (int i = 0; n_gen && i < n_cfg; i++) {
        int j = 0;
        while (j < n_gen && gen[j] != cfg[i]) j++;
        if (j == n_gen && cfg[i] >= 0) /* -1: none */
            conv_say(c, CONVERT_WARN, "%s: eos_token_id %d does not stop the model: %s has another list",
                     hf_config_name(c->cfg), cfg[i], hf_config_name(c->gen));
    }
    return 0;
}

static int put_tokenizer(struct conv *c, struct err *e)
{
    bool found = false;
    if (!c->fam->drafter) {
        if (c->dir && tok_import(c->w, c->dir, c->n_vocab, &found, e)) return -1;
        return found ? tell_stops(c, e) : put_bare_ids(c, e);
    }
    if (c->target.gguf) {
        if (tok_copy(c->w, c->target.gguf, &found, e)) return -1;
    } else if (c->o->target) {
        if (tok_import(c->w, c->o->target, c->target.n_vocab, &found, e)) return -1;
    }
    if (!found)
        conv_say(c, CONVERT_NOTE, "%s: the drafter file has no tokenizer",
                 c->o->target ? "the target has no tokenizer" : "no --target");
    c->d.tokenizer = found;
    /* Other engines want to be told that there is none, as the target's file tells them. */
    if (!found && c->o->target && !(c->target.gguf && gguf_find(c->target.gguf, "tokenizer.ggml.model")) &&
        gguf_put_str(c->w, "tokenizer.ggml.model", "no_vocab", 8, e))
        return -1;
    if (c->dialect->mask_key && !c->dialect->mask_too) return 0; /* it has its own place */
    return gguf_put_u32(c->w, "tokenizer.ggml.mask_token_id", (uint32_t)c->d.mask_id, e);
}

/* ---- the whole ---- */

static int put_general(struct conv *c, struct err *e)
{
    char path[PATH_MAX];
    const char *name = c->o->name;
    if (!name) { /* "." and "x/.." have a name too */
        if (!realpath(c->o->input, path)) return err_errno(e, "%s: cannot find its name", c->o->input);
        name = strrchr(path, '/') + 1;
    }
    size_t n = strlen(name);
    if (!c->o->name && ends_with(name, ".json"))
        n -= 5;
    else if (!c->o->name && ends_with(name, ".safetensors"))
        n -= 12;
    int r = gguf_put_str(c->w, "general.architecture", conv_arch(c), strlen(conv_arch(c)), e) ||
            gguf_put_str(c->w, "general.type", "model", 5, e) ||
            gguf_put_str(c->w, "general.name", name, n, e) ||
            gguf_put_u32(c->w, "general.quantization_version", 2, e);
    return r ? -1 : 0;
}

static int check_rest(struct conv *c, struct err *e)
{
    const struct hf_rule *tables[] = {hf_rules_common, c->fam->config, NULL};
    return c->cfg ? hf_config_rest(c->cfg, tables, e) : 0;
}

#define MAX_BESIDE (2 * ST_FOLDER_FILES)

/* What is read of a folder beside the tensors, where path is one; paths [at most MAX_BESIDE] to free. */
static int folder_inputs(const char *path, char **out, int n)
{
    struct stat st;
    if (!path || stat(path, &st) || !S_ISDIR(st.st_mode)) return n;
    for (int i = 0; i < ST_FOLDER_FILES; i++) {
        size_t room = strlen(path) + strlen(st_folder_files[i]) + 2;
        char *p = mem_alloc(room);
        if (!p) return -1;
        snprintf(p, room, "%s/%s", path, st_folder_files[i]);
        out[n++] = p;
    }
    return n;
}

static int write_out(struct conv *c, struct err *e)
{
    char *own[MAX_BESIDE] = {0};
    struct gguf_files out = {0};
    int n = 0, ret = -1;
    uint32_t n_files = c->st ? c->st->n_files : 0;
    const char **inputs = mem_calloc(n_files + 3u + MAX_BESIDE, sizeof *inputs);
    int n_own = folder_inputs(c->o->input, own, 0);
    if (n_own >= 0) n_own = folder_inputs(c->o->target, own, n_own);
    if (!inputs || n_own < 0) {
        err_set(e, ERR_IO, "out of memory (%u files)", n_files);
        goto done;
    }
    for (int i = 0; i < n_own; i++) inputs[n++] = own[i];
    for (uint32_t i = 0; i < n_files; i++) inputs[n++] = c->st->file[i].path;
    if (c->cfg) inputs[n++] = hf_config_name(c->cfg);
    if (c->target.gguf) inputs[n++] = c->o->target;
    if (gguf_files_open(&out, c->w, c->o->output, c->o->force, inputs, n, c->o->split, e)) goto done;
    if (!conv_write_tensors(c, &out, e) && !gguf_files_end(&out, e) && !gguf_files_commit(&out, e)) ret = 0;
done:
    gguf_files_abort(&out);
    for (int i = 0; i < MAX_BESIDE; i++) mem_free(own[i]);
    mem_free(inputs);
    return ret;
}

/* Tensors and sizes: all that a checkpoint's shapes say. */
static int map_input(struct conv *c, struct err *e)
{
    if (c->o->random && conv_sizes_from_config(c, e)) return -1;
    if (conv_map_tensors(c, e)) return -1;
    return c->fam->heads ? c->fam->heads(c, e) : conv_heads(c, e);
}

static int run(struct conv *c, struct err *e)
{
    uint32_t file_type = 0;
    if (open_input(c, e) || find_family(c, e) || check_flags(c, e) || open_target(c, e)) return -1;
    if (c->fam->parts && c->fam->parts(c, e)) return -1;
    if (map_input(c, e)) return -1;
    if (get_rope_theta(c, e) || get_rms_eps(c, e) || get_context(c, e)) return -1;
    if (gguf_writer_new(&c->w, e) || put_general(c, e) || c->fam->keys(c, e) || check_rest(c, e)) return -1;
    if (conv_plan_types(c, e, &file_type) || gguf_put_u32(c->w, "general.file_type", file_type, e) ||
        put_tokenizer(c, e))
        return -1;
    if (c->fam->finish && c->fam->finish(c, e)) return -1;
    for (int64_t i = 0; i < c->n_t; i++) {
        char name[128];
        if (c->fam->drafter)
            dialect_from_upstream(c->dialect, c->t[i].name, name, sizeof name);
        else
            snprintf(name, sizeof name, "%s", c->t[i].name);
        if (gguf_add_tensor(c->w, name, c->t[i].to, c->t[i].n_dims, c->t[i].ne, e)) return -1;
    }
    return write_out(c, e);
}

int conv_open(struct conv **out, const struct convert *o, struct err *e)
{
    struct conv *c = mem_calloc(1, sizeof *c);
    *out = NULL;
    if (!c) return err_set(e, ERR_IO, "out of memory");
    c->o = o;
    int rc = open_input(c, e);
    if (!rc && !c->cfg) rc = family_from_tensors(c);
    if (!rc && !c->fam) rc = find_family(c, e);
    if (!rc) rc = map_input(c, e);
    if (rc)
        conv_close(c);
    else
        *out = c;
    return rc;
}

void conv_close(struct conv *c)
{
    if (!c) return;
    for (int64_t i = 0; i < c->n_t; i++) {
        mem_free(c->t[i].part);
        mem_free(c->t[i].made);
    }
    gguf_writer_free(c->w);
    gguf_close(c->target.gguf);
    hf_config_free(c->target.cfg);
    hf_config_free(c->gen);
    hf_config_free(c->cfg);
    st_close(c->st);
    mem_free(c->t);
    mem_free(c->dir);
    mem_free(c->label);
    mem_free(c);
}

int convert_run(const struct convert *o, struct err *e)
{
    int gguf = is_dir(o->input) ? 0 : is_gguf(o->input, e);
    if (gguf) return gguf < 0 ? -1 : convert_from_gguf(o, e);
    struct conv *c = mem_calloc(1, sizeof *c);
    if (!c) return err_set(e, ERR_IO, "out of memory");
    c->o = o;
    int r = run(c, e);
    conv_close(c);
    return r;
}
