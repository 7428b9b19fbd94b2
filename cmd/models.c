/* models.c - see models.h. */
#include "models.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../common/file/gguf.h"
#include "../common/file/imatrix.h"
#include "../common/base/io.h"
#include "../common/base/json.h"
#include "../common/base/text.h"

static const char *default_device(void)
{
    return kn_cuda_built() && kn_cuda_devices() > 0 ? "cuda" : "cpu";
}

/* "cpu", "cuda" or "cuda:N". */
static bool is_device(const char *name)
{
    if (!strcmp(name, "cpu") || !strcmp(name, "cuda")) return true;
    size_t digits = strncmp(name, "cuda:", 5) ? 0 : strspn(name + 5, "0123456789");
    return digits > 0 && digits <= 3 && !name[5 + digits];
}

/* What the other kind of device would have read. */
static void warn_device(const struct models *m, const struct cli *c, const char *device)
{
    const bool cpu = !strcmp(device, "cpu");
    if (cpu && m->kernels && strcmp(m->kernels, "auto"))
        cli_warn(c, "--kernels %s is for cuda and does nothing on the CPU, where this runs", m->kernels);
    if (!cpu && m->isa && strcmp(m->isa, "auto"))
        cli_warn(c, "--isa %s is for the CPU and does nothing on %s, where this runs", m->isa, device);
    if (cpu && (m->experts_host || m->kv_host || m->kv_host_layers))
        cli_warn(c, "--%s is for cuda and does nothing on the CPU, where all memory is the host's",
                 m->experts_host ? "experts-host"
                 : m->kv_host    ? "kv-host"
                                 : "kv-host-layers");
}

static int open_backend(struct models *m, const struct cli *c, struct err *e)
{
    char msg[256];
    const struct kn_open o = {.device = m->device ? m->device : default_device(),
                              .isa = m->isa,
                              .threads = m->threads,
                              .generic = m->kernels && !strcmp(m->kernels, "generic"),
                              .direct = m->kernels && !strcmp(m->kernels, "direct")};
    if (!is_device(o.device))
        return err_set(e, ERR_USAGE, "--device: unknown device (expected cpu or cuda[:N], got %s)", o.device);
    if (m->kernels && strcmp(m->kernels, "auto") && !o.generic && !o.direct)
        return err_set(e, ERR_USAGE, "--kernels: unknown kernels (expected auto, generic or direct, got %s)",
                       m->kernels);
    if (m->isa && strcmp(m->isa, "auto") && strcmp(m->isa, "scalar") && strcmp(m->isa, "avx2") &&
        strcmp(m->isa, "avx512"))
        return err_set(e, ERR_USAGE,
                       "--isa: unknown instruction set (expected auto, scalar, avx2 or avx512, got %s)",
                       m->isa);
    int rc = kn_backend_open(&m->be, &o, msg, sizeof msg);
    if (rc) return err_set(e, rc == KN_EMEM && !strcmp(o.device, "cpu") ? ERR_IO : ERR_DEVICE, "%s", msg);
    warn_device(m, c, o.device);
    return 0;
}

struct progress {
    const struct cli *c;
    const char *what;
};

static void show_progress(void *ctx, uint64_t done, uint64_t total)
{
    const struct progress *p = ctx;
    cli_progress(p->c, p->what, done, total, "B");
}

/* Sliding layers and full ones, each with heads of their own. */
static void describe_kinds(const struct cli *c, const char *role, const struct desc *d, int sliding)
{
    const struct desc_layer *window = NULL, *full = NULL;
    for (int i = d->n_layer - 1; i >= 0; i--) {
        if (d->layer[i].window)
            window = &d->layer[i];
        else
            full = &d->layer[i];
    }
    cli_detail(c, "%s: %d of %d layers are sliding: window %d, %d/%d heads of %d, theta %g", role, sliding,
               d->n_layer, window->window, window->n_head, window->n_head_kv, window->head_dim,
               (double)d->rope[window->rope].theta);
    if (full)
        cli_detail(c, "%s: the full ones: %d/%d heads of %d, theta %g", role, full->n_head, full->n_head_kv,
                   full->head_dim, (double)d->rope[full->rope].theta);
}

/* What only some families have. */
static void describe_parts(const struct models *m, const struct cli *c, const char *role,
                           const struct desc *d)
{
    int recurrent = 0, sliding = 0;
    for (int i = 0; i < d->n_layer; i++) {
        recurrent += d->layer[i].recurrent;
        sliding += d->layer[i].window > 0;
    }
    if (d->n_expert)
        cli_detail(c, "%s: %d experts of %d, %d used%s", role, d->n_expert, d->n_ff_exp, d->n_expert_used,
                   d->n_ff_shexp ? ", and a shared one" : "");
    if (recurrent)
        cli_detail(c, "%s: %d of %d layers are gated delta nets: %d key and %d value heads of %d and %d",
                   role, recurrent, d->n_layer, d->n_k, d->n_v, d->d_k, d->d_v);
    if (sliding && !desc_drafts(d)) describe_kinds(c, role, d, sliding);
    if (d->rope[0].has_divisors || d->rope[1].has_divisors)
        cli_detail(c, "%s: rope frequencies scaled by rope_freqs.weight", role);
    if (d->n_nextn && !m->drafter_path)
        cli_detail(c, "%s: the last %d of its %d blocks predict further tokens: -d target drafts by them",
                   role, d->n_nextn, d->n_layer + d->n_nextn);
    if (*d->inferred && d->arch != DESC_DFLASH) cli_detail(c, "%s: inferred: %s", role, d->inferred);
}

static void tell_line(void *ctx, const char *subject, const char *text)
{
    const struct cli *c = ctx;
    cli_detail(c, "drafter: %s: %s", subject, text);
}

/* Ids with their texts, those behind the keys' apart. */
static void tell_stops(const struct cli *c, const char *role, const struct model *m)
{
    const struct gguf_kv *tokens = gguf_find(m->file, "tokenizer.ggml.tokens");
    char line[1024] = "";
    size_t used = 0;
    for (int32_t i = 0; i < m->d->n_stops && used < sizeof line; i++) {
        const int32_t id = m->d->stops[i];
        char text[80] = "";
        if (tokens && tokens->strings && (uint64_t)id < tokens->count)
            text_quote(text, sizeof text, tokens->strings[id].s, tokens->strings[id].n, 40);
        used += (size_t)snprintf(line + used, sizeof line - used, "%s%d%s%s%s", i ? ", " : "", id,
                                 *text ? " " : "", text, i >= m->d->n_stops_said ? " by its text" : "");
    }
    cli_detail(c, "%s: stop ids: %s", role, m->d->n_stops ? line : "none in the file");
}

static void describe(const struct models *all, const struct cli *c, const char *role, const char *path,
                     const struct model *m)
{
    const struct desc *d = m->d;
    const struct desc_layer *y = desc_attention(d);
    char ff[48] = "";
    if (y->n_ff) snprintf(ff, sizeof ff, "feed-forward %d, ", y->n_ff);
    cli_detail(c, "%s: %s: %s%s%s, %d layers, hidden size %d, %d/%d heads of %d, %svocabulary %d, theta %g",
               role, path, d->arch_name, *d->dialect ? ", dialect " : "", d->dialect, d->n_layer, d->n_embd,
               y->n_head, y->n_head_kv, y->head_dim, ff, d->n_vocab, (double)d->rope[y->rope].theta);
    describe_parts(all, c, role, d);
    if (!desc_drafts(d)) {
        tell_stops(c, role, m);
        return;
    }
    if (d->arch == DESC_GEMMA4_ASSISTANT) {
        cli_detail(c, "%s: reads the target's caches and its last hidden state: %d rows a block%s", role,
                   d->block_size, d->n_clusters ? ", ids in clusters" : "");
        return;
    }
    if (d->arch == DESC_QWEN35_MTP) {
        cli_detail(c, "%s: the MTP block blk.%d %s: %d rows a block, %d proposals, one after the other", role,
                   d->first_block, d->apart ? "in a file of its own" : "in the target's file", d->block_size,
                   d->block_size - 1);
        return;
    }
    cli_detail(c, "%s: block %d, mask id %d", role, d->block_size, d->mask_id);
    if (desc_draft_reach(d))
        cli_detail(c,
                   "%s: layers without a window see the last %d positions (--draft-window all: all of them)",
                   role, desc_draft_reach(d));
    desc_tell(d, NULL, tell_line, (void *)(uintptr_t)c);
    int sliding = 0;
    for (int i = 0; i < d->n_layer; i++) sliding += d->layer[i].window > 0;
    if (!sliding) cli_detail(c, "%s: all layers see the whole context", role);
    for (int i = 0; i < d->n_layer && sliding; i++)
        cli_detail(c, "%s: layer %d: window %d, %s in the block", role, i, d->layer[i].window,
                   d->layer[i].causal ? "causal" : "bidirectional");
    if (!d->has_embedding_scale) cli_detail(c, "%s: embedding scale: the target's", role);
    if (!d->has_softcap) cli_detail(c, "%s: softcap on its logits: the target's", role);
}

/* What the file did not say and the rules decided. */
static void tell_inferred(const struct cli *c, const struct desc *d)
{
    int causal = 0;
    if (!d->causal_inferred) return;
    for (int i = 0; i < d->n_layer; i++) causal += d->layer[i].causal;
    if (d->causal_ignored)
        cli_note(c,
                 "drafter: attention.causal of the file does not count: writers of the dialect %s always put "
                 "it there, "
                 "its readers do not look; inferred: %d of %d layers causal in the block, the sliding ones "
                 "(--draft-causal overrides)",
                 d->dialect, causal, d->n_layer);
    else
        cli_note(
            c,
            "drafter: the file does not say which layers are causal in the block; inferred: %d of %d, the "
            "sliding ones "
            "(--draft-causal overrides)",
            causal, d->n_layer);
}

/* Is it the target's file, by whatever path? Its keys are overridden with the target's. */
static bool is_targets(const struct models *m, const char *path)
{
    return m->target_path && path && (path == m->target_path || io_same_file(path, m->target_path));
}

static void overrides(const struct models *m, const struct cli *c, struct desc_override *o)
{
    *o = (struct desc_override){.drafter = true, .draft_causal = m->draft_causal};
    drafter_flags_read(c, &m->draft, "--draft-", o);
    if (!m->drafter_path || is_targets(m, m->drafter_path)) /* its MTP block */
        o->kv = m->over, o->n_kv = m->keys.n;
}

static struct desc_override target_overrides(const struct models *m)
{
    return (struct desc_override){.draft_causal = -1, .kv = m->over, .n_kv = m->keys.n};
}

/* Which experts stay in the host's memory. */
static int place_experts(struct models *m, struct err *e)
{
    struct imatrix *counts = NULL;
    int rc = -1;
    if (m->experts_counts && imatrix_read(&counts, m->experts_counts, e)) return -1;
    if (model_place(m->target, m->experts_host, counts, e) == 0)
        rc = 0;
    else if (counts && e->code == ERR_FORMAT)
        err_prefix(e, "%s", m->experts_counts);
    imatrix_free(counts);
    return rc;
}

static int open_target(struct models *m, const struct cli *c, struct err *e)
{
    const struct desc_override o = target_overrides(m);
    if (model_open(&m->target, m->target_path, m->be, &o, e)) return -1;
    if (desc_drafts(m->target->d)) {
        err_set(e, ERR_FORMAT, "%s: is a drafter (expected a target, got architecture %s)", m->target_path,
                m->target->d->arch_name);
        return err_hint(e, "a drafter goes with -d, beside the target that it was made for");
    }
    if (place_experts(m, e)) return -1;
    describe(m, c, "target", m->target_path, m->target);
    return 0;
}

static int open_drafter(struct models *m, const struct cli *c, struct err *e)
{
    struct desc_override o;
    overrides(m, c, &o);
    if (model_open(&m->drafter, m->drafter_path, m->be, &o, e)) {
        gguf_hint_target(m->target_path, e);
        return -1;
    }
    const struct desc *t = m->target->d, *d = m->drafter->d;
    if (!desc_drafts(d) && m->drafter_path == m->target_path)
        return err_set(e, ERR_FORMAT,
                       "%s: holds no block that predicts further tokens (expected nextn_predict_layers and "
                       "blk.%d.nextn.eh_proj.weight for -d target)",
                       m->target_path, t->n_layer);
    if (m->kv.draft_kv && !desc_draft_caches(d))
        return err_set(
            e, ERR_USAGE,
            "--draft-kv: the drafter has no cache of its own (an assistant reads the target's, which "
            "--kv is for)");
    if (!desc_drafts(d))
        return err_set(e, ERR_FORMAT, "%s: is a target (expected a drafter, got architecture %s)",
                       m->drafter_path, d->arch_name);
    describe(m, c, "drafter", m->drafter_path, m->drafter);
    tell_inferred(c, d);
    if (desc_pair(t, d, e)) return -1;
    if (t->has_tokenizer && d->has_tokenizer && t->tokenizer_crc != d->tokenizer_crc)
        cli_warn(c, "target and drafter carry different vocabularies of one size: proposals may be poor");
    if (desc_other_target(t, d))
        cli_warn(c,
                 "the drafter was made for another target (crc32 of that one's final norm %08x, of this "
                 "one's %08x): proposals may be poor",
                 d->norm_crc, t->norm_crc);
    return 0;
}

static struct desc_override beside_overrides(const struct models *m)
{
    struct desc_override o = {.drafter = true, .draft_causal = -1};
    if (is_targets(m, m->mtp)) o.kv = m->over, o.n_kv = m->keys.n;
    return o;
}

/* An MTP block, beside the drafter. */
static int open_beside(struct models *m, const struct cli *c, struct err *e)
{
    const struct desc_override own = beside_overrides(m);
    if (model_open(&m->beside, m->mtp, m->be, &own, e)) return -1;
    if (m->beside->d->arch != DESC_QWEN35_MTP)
        return err_set(e, ERR_FORMAT,
                       "%s: holds no block that predicts further tokens (expected nextn_predict_layers and "
                       "blk.%d.nextn.eh_proj.weight for --mtp, got architecture %s)",
                       m->mtp, m->target->d->n_layer, m->beside->d->arch_name);
    if (desc_reads_hidden(m->drafter->d))
        return err_set(
            e, ERR_USAGE,
            "--mtp: %s reads the target's last hidden state as the MTP block does (expected a drafter that "
            "reads taps beside it)",
            m->drafter_path);
    describe(m, c, "beside it", m->mtp, m->beside);
    return desc_pair(m->target->d, m->beside->d, e);
}

struct source *models_sources(struct models *m)
{
    if (!m->drafter) return NULL;
    m->sources[0] = source_drafter(m->drafter);
    if (!m->beside) return m->sources;
    m->sources[1] = source_drafter(m->beside);
    if (m->mtp_block) m->sources[1].usual = m->mtp_block;
    m->sources[0].beside = &m->sources[1];
    return m->sources;
}

int32_t models_drafters(const struct models *m, const struct desc *list[PLAN_SOURCES])
{
    int32_t n = 0;
    if (m->drafter) list[n++] = m->drafter->d;
    if (m->beside) list[n++] = m->beside->d;
    return n;
}

int32_t models_block(const struct models *m, int32_t block)
{
    if (!m->drafter) return 1;
    if (!block) block = desc_cycle_rows(m->drafter->d);
    const int32_t beside = !m->beside ? 0 : m->mtp_block ? m->mtp_block : desc_cycle_rows(m->beside->d);
    return block > beside ? block : beside;
}

void models_warn_dropped(const struct models *m, const struct cli *c, const struct state_info *info,
                         const char *from, const char *to)
{
    const struct desc *list[PLAN_SOURCES];
    const int32_t n = models_drafters(m, list);
    if (n >= info->n_drafters) return;
    if (n)
        cli_warn(c, "%s will hold the context of %s alone, %s holds that of two drafters (--mtp keeps both)",
                 to, m->drafter_path, from);
    else
        cli_warn(c, "%s will hold no context for a drafter, %s does: this run has none (-d DRAFTER keeps it)",
                 to, from);
}

void models_no_mtp(const struct models *m, const struct cli *c, const char *what)
{
    if (m->mtp)
        cli_usage_error(c, "--mtp and %s: one drafter is asked (expected -d DRAFTER, or -d target)", what);
}

int models_check_options(struct models *m, struct session_options *o, struct err *e)
{
    return engine_check(m->target, models_sources(m), o, e);
}

/* What is wrong with flags and inputs, as far as the descriptions can tell. */
static int check(struct models *m, struct err *e)
{
    struct session_options o = m->known;
    if (o.ctx < 1) o.ctx = 1;
    if (models_kv(m, NULL, &o, e)) return -1;
    if (m->sparse.dense < 0) o.sparse.dense = 0; /* a state may say how many */
    if (models_check_options(m, &o, e)) return -1;
    return m->check ? m->check(m->check_ctx, e) : 0;
}

static int fill(const struct models *m, const struct cli *c, struct err *e)
{
    struct progress target = {c, "loading target"}, drafter = {c, "loading drafter"},
                    beside = {c, "loading MTP"};
    if (model_fill(m->target, show_progress, &target, e)) return -1;
    if (m->beside && model_fill(m->beside, show_progress, &beside, e)) return -1;
    return m->drafter ? model_fill(m->drafter, show_progress, &drafter, e) : 0;
}

/* ---- the device's memory ---- */

static int plan(struct models *m, const struct cli *c, const struct session_options *o, bool loaded,
                struct err *e)
{
    const double gib = 1024.0 * 1024 * 1024;
    struct memory_plan p;
    if (memory_plan_session(m->planner, o, loaded, &p, e)) return -1;
    cli_detail(c,
               "%s: %s%d positions: weights %.2f GiB, caches %.2f, activations %.2f, scratch %.2f: %.2f of "
               "%.2f free "
               "of %.2f",
               models_device(m), loaded ? "" : "plan for at least ", o->ctx, (double)p.weights / gib,
               (double)p.caches / gib, (double)p.activations / gib, (double)p.scratch / gib,
               (double)p.all / gib, (double)p.free / gib, (double)p.total / gib);
    if (p.host)
        cli_detail(c, "%s: %.2f GiB of the host's memory, of %.2f available", models_device(m),
                   (double)p.host / gib, (double)p.host_free / gib);
    return memory_plan_check(m->planner, o, loaded, &p, e);
}

/* Before anything is loaded. What is wrong with the files is said by loading them. */
static int plan_first(struct models *m, const struct cli *c, struct err *e)
{
    struct desc_override over;
    struct session_options o = m->known;
    struct err other = {0};
    if (!kn_op(m->be)->memory) return 0;
    overrides(m, c, &over);
    if (models_kv(m, NULL, &o, e)) return -1;
    if (o.ctx < 1) o.ctx = 1;
    const struct desc_override target = target_overrides(m), beside = beside_overrides(m);
    const struct memory_plan_of of = {.target = m->target_path,
                                      .drafter = m->drafter_path,
                                      .mtp = m->mtp,
                                      .target_override = &target,
                                      .drafter_override = &over,
                                      .mtp_override = &beside,
                                      .placed = m->target};
    if (memory_plan_open(&m->planner, m->be, &of, &other)) return 0;
    if ((!m->kv_host || memory_plan_kv_host(m->planner, &o, false, &other) == 0) &&
        plan(m, c, &o, false, &other) == 0)
        return 0;
    if (other.code != ERR_DEVICE && other.code != ERR_IO) return 0;
    *e = other;
    return -1;
}

int models_session(struct models *m, const struct cli *c, const struct session_options *o, struct session **s,
                   struct err *e)
{
    *s = NULL;
    if (m->planner && plan(m, c, o, true, e)) return -1;
    return session_over(s, m->target, models_sources(m), o, e);
}

/* Caches of so many streams beside one that fits. */
static int plan_streams(struct models *m, const struct session_options *o, int32_t streams, struct err *e)
{
    const double gib = 1024.0 * 1024 * 1024;
    struct memory_plan p;
    if (streams < 2) return 0;
    if (memory_plan_session(m->planner, o, true, &p, e)) return -1;
    const uint64_t left = p.free > p.all ? p.free - p.all : 0, more = p.caches ? left / p.caches : UINT64_MAX;
    if (more >= (uint64_t)streams - 1) return 0;
    err_set(e, ERR_DEVICE,
            "%s: too little memory for %d streams (expected %.2f GiB free, caches of %d positions take %.2f "
            "each; got "
            "%.2f of %.2f)",
            models_device(m), streams, (double)(p.all + (uint64_t)(streams - 1) * p.caches) / gib, o->ctx,
            (double)p.caches / gib, (double)p.free / gib, (double)p.total / gib);
    return err_hint(e, "--streams %d would fit, or a smaller --ctx", 1 + (int)more);
}

int models_engine(struct models *m, const struct cli *c, const struct session_options *o,
                  struct source *source, int32_t streams, struct engine **g, struct err *e)
{
    *g = NULL;
    const bool whole = m->drafter || !m->drafter_path; /* what the plan is of */
    if (m->planner && whole && (plan(m, c, o, true, e) || plan_streams(m, o, streams, e))) return -1;
    return engine_open(g, m->target, source, o, e);
}

void models_park(struct models *m, unsigned what)
{
    if (what & MODELS_DRAFTER && m->drafter) {
        memcpy(m->identity[1], m->drafter->d->identity, 16);
        model_free(m->drafter);
        m->drafter = NULL;
    }
    if (what & MODELS_DRAFTER && m->beside) {
        memcpy(m->identity[2], m->beside->d->identity, 16);
        model_free(m->beside);
        m->beside = NULL;
    }
    if (what & MODELS_TARGET && m->target) {
        memcpy(m->identity[0], m->target->d->identity, 16);
        model_free(m->target);
        m->target = NULL;
    }
}

/* which: 0 target, 1 drafter, 2 the one beside it. */
static int take_back(struct models *m, const struct cli *c, int which, struct err *e)
{
    struct desc_override o = which == 2 ? beside_overrides(m) : target_overrides(m);
    const char *path = which == 2 ? m->mtp : which ? m->drafter_path : m->target_path;
    struct model **x = which == 2 ? &m->beside : which ? &m->drafter : &m->target;
    struct progress p = {c, which ? "loading drafter" : "loading target"};
    if (which == 1) overrides(m, c, &o);
    if (model_open(x, path, m->be, &o, e)) return -1;
    if (!which && place_experts(m, e))
        ;
    else if (memcmp((*x)->d->identity, m->identity[which], 16))
        err_set(e, ERR_FORMAT, "%s: is another file than the one that was parked", path);
    else if (model_fill(*x, show_progress, &p, e) == 0)
        return 0;
    model_free(*x);
    *x = NULL;
    return -1;
}

int models_unpark(struct models *m, const struct cli *c, unsigned what, struct err *e)
{
    if (what & MODELS_TARGET && !m->target && take_back(m, c, 0, e)) return -1;
    if (what & MODELS_DRAFTER && m->drafter_path && !m->drafter && take_back(m, c, 1, e)) return -1;
    return what & MODELS_DRAFTER && m->mtp && !m->beside ? take_back(m, c, 2, e) : 0;
}

void models_check_flags(struct models *m, const struct cli *c)
{
    struct desc_override seen;
    struct err bad = {0};
    if (!m->over && gguf_overrides_parse(&m->over, m->keys.v, m->keys.n, &bad)) exit(cli_fail(c, &bad));
    if (!m->target_path) cli_usage_error(c, "-m TARGET is missing");
    if (!m->drafter_path && drafter_flags_given(&m->draft))
        cli_usage_error(c, "--draft-%s needs a drafter (-d DRAFTER)", drafter_flags_given(&m->draft));
    if (m->experts_counts && !m->experts_host) cli_usage_error(c, "--experts-counts needs --experts-host N");
    if (!m->drafter_path && m->kv.draft_kv) cli_usage_error(c, "--draft-kv needs a drafter (-d DRAFTER)");
    if (m->mtp && !m->drafter_path)
        cli_usage_error(
            c, "--mtp: the MTP block stands beside another drafter (expected -d DRAFTER; alone it is -d %s)",
            m->mtp);
    if (m->mtp_block && !m->mtp)
        cli_usage_error(c, "--mtp-block needs --mtp (of an MTP block alone it is --block)");
    if (!m->drafter_path && m->draft_causal >= 0)
        cli_usage_error(c, "--draft-causal needs a drafter (-d DRAFTER)");
    overrides(m, c, &seen);
}

int models_inputs(const struct models *m, const char **list)
{
    const char *const all[] = {m->target_path, m->drafter_path, m->mtp, m->experts_counts};
    int n = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i] && strcmp(all[i], "target")) list[n++] = all[i];
    return n;
}

int models_open(struct models *m, const struct cli *c, struct err *e)
{
    double start = cli_seconds();
    models_check_flags(m, c);
    if (m->drafter_path && !strcmp(m->drafter_path, "target")) m->drafter_path = m->target_path;
    if (m->mtp && !strcmp(m->mtp, "target")) m->mtp = m->target_path;
    if (open_backend(m, c, e) || open_target(m, c, e) || (m->drafter_path && open_drafter(m, c, e)) ||
        (m->mtp && open_beside(m, c, e)))
        return -1;
    if (check(m, e)) return -1;
    if (m->target->d->arch == DESC_GEMMA4 && kv_flags_coarse(&m->kv, m->target->d))
        cli_warn(c, "a Gemma's keys and values below q8_0: its text suffers far more than other models'");
    if (m->pool > 0)
        cli_note(
            c,
            "a pool of %d positions: rows see no more of full layers, the output is another than that of "
            "all",
            m->pool);
    if (plan_first(m, c, e) || fill(m, c, e)) return -1;
    m->load_s = cli_seconds() - start;
    cli_detail(c, "%s, %s, %d threads: loaded in %.2f s", models_device(m), kn_backend_isa(m->be),
               kn_backend_threads(m->be), m->load_s);
    return 0;
}

void models_close(struct models *m)
{
    memory_plan_close(m->planner);
    model_free(m->beside);
    model_free(m->drafter);
    model_free(m->target);
    if (m->be) kn_backend_close(m->be);
    m->beside = m->drafter = m->target = NULL;
    m->planner = NULL;
    m->be = NULL;
}

int models_kv(struct models *m, const struct state_info *info, struct session_options *o, struct err *e)
{
    const struct desc *drafters[PLAN_SOURCES];
    if (sparse_flags_resolve(&m->sparse, info, o, e)) return -1;
    if (kv_flags_resolve(&m->kv, m->target->d, drafters, models_drafters(m, drafters), info, o, e)) return -1;
    o->kv_host = m->kv_host_layers;
    o->pool = m->pool >= 0 ? m->pool : info ? info->pool : 0;
    return m->kv_host && m->planner ? memory_plan_kv_host(m->planner, o, true, e) : 0;
}

void models_check_bos(const struct models *m, const struct cli *c, const int32_t *ids, size_t n)
{
    const struct desc *d = m->target->d;
    if (d->add_bos && d->bos_id >= 0 && n > 0 && ids[0] != d->bos_id)
        cli_warn(c, "the model asks for BOS (%d) at the start, the prompt begins with %d: used as it is",
                 d->bos_id, ids[0]);
}

int64_t models_left_out(const struct cli *c, const struct state_info *info)
{
    const struct session_gaps *g = &info->gaps;
    if (g->n_text)
        cli_warn(c,
                 "the state's prompt is compressed: it holds %" PRId32 " of %" PRId32
                 " tokens; what was left out is lost",
                 g->n_kept, g->n_text);
    return (int64_t)g->n_text - g->n_kept;
}

json_t *models_gaps_json(const struct session_gaps *g)
{
    char id[33];
    if (!g->n_text) return json_null();
    for (int i = 0; i < 16; i++) snprintf(id + 2 * i, 3, "%02x", g->scorer_id[i]);
    return json_pack("{s:i,s:i,s:f,s:o,s:s}", "text_tokens", g->n_text, "kept_tokens", g->n_kept, "keep",
                     (double)g->keep, "scorer", json_text(g->scorer, strlen(g->scorer)), "scorer_identity",
                     id);
}

void models_check_length(const struct models *m, const struct cli *c, int64_t positions)
{
    const struct desc *d[] = {m->target->d, m->drafter ? m->drafter->d : NULL};
    for (int i = 0; i < 2; i++)
        if (d[i] && d[i]->n_ctx_train > 0 && positions > d[i]->n_ctx_train)
            cli_warn(c, "up to %" PRId64 " positions, the %s was trained to %d: %s", positions,
                     i ? "drafter" : "target", d[i]->n_ctx_train,
                     i ? "proposals may be poor past that" : "the text may fall apart past that");
}

int models_check_ids(const struct models *m, const char *name, const int32_t *ids, size_t n, struct err *e)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= m->target->d->n_vocab) {
            err_set(e, ERR_FORMAT, "%s: token %zu: id out of the vocabulary (expected 0 to %d, got %d)", name,
                    i, m->target->d->n_vocab - 1, ids[i]);
            return io_hint_tokens(ids, n * sizeof *ids, e);
        }
    return 0;
}

const char *models_device(const struct models *m)
{
    return kn_op(m->be)->name;
}

json_t *models_keys_json(const struct models *m)
{
    json_t *j = json_array();
    for (int i = 0; i < m->keys.n; i++)
        json_array_append_new(j, json_text(m->keys.v[i], strlen(m->keys.v[i])));
    return j;
}
