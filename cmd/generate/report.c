/* report.c - the statistics of a run: for people on stderr, for programs as JSON. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../../common/run/engine.h"
#include "../../common/run/pages.h"
#include "../../common/run/source.h"
#include "generate.h"
#include "../../common/base/json.h"
#include "../../common/base/mem.h"

/* Tokens a second of decoding: the first token is the prefill's. */
static double decode_rate(const struct spec_stats *st)
{
    return st->decode_s > 0 && st->generated > 1 ? (double)(st->generated - 1) / st->decode_s : NAN;
}

static double rest_s(const struct spec_stats *st)
{
    double rest = st->decode_s - st->draft_s - st->verify_s;
    return rest > 0 ? rest : 0;
}

static const char *stop_reason(const struct spec_stats *st)
{
    return st->stop == SPEC_STOP_TOKEN       ? "stop"
           : st->stop == SPEC_STOP_TEXT      ? "text"
           : st->stop == SPEC_STOP_INTERRUPT ? "interrupt"
                                             : "length";
}

/* Places of the histogram: those of a block, and as many more as look-ups took. */
static int32_t histogram(const struct session *s, const struct spec_stats *st)
{
    int32_t n = session_block(s);
    for (int32_t i = n; s->o.look && i < SESSION_MAX_ROWS; i++)
        if (st->accepted[i]) n = i + 1;
    return s->source || s->o.look ? n : 0;
}

/* Does the drafter look as if it were for another target? Planned cycles end soon then: the first proposals
 * of a few say it. */
static bool hardly_right(const struct settings *set, const struct session *s, const struct spec_stats *st,
                         double tau)
{
    const struct calibration_gauge *first = set->plan.a.calibration.draft_gauge[0];
    if (!s->source || set->lookup.only || set->plan.rows == 1) return false;
    if (set->plan.planner.next)
        return first->labels >= 5 && (double)first->equal < 0.05 * (double)first->labels;
    return st->full_cycles >= 32 && tau < 1.1;
}

void report_prefill(const struct cli *c, const struct result *r)
{
    if (r->prefilled)
        cli_note(c, "prefill: %" PRId64 " token%s in %.3f s, %.1f t/s", r->prefilled,
                 r->prefilled == 1 ? "" : "s", r->prefill_s, (double)r->prefilled / r->prefill_s);
}

/* Where the tokens went down a pipe and messages to a terminal, text that is made of them stands on that
 * terminal, and has mostly no newline at its end: wait until the pipe was read, and begin a line. */
static void behind_text(void)
{
    struct stat st;
    int waiting = 0;
    if (!isatty(STDERR_FILENO) || fstat(STDOUT_FILENO, &st) || !S_ISFIFO(st.st_mode)) return;
    for (int i = 0; i < 50 && ioctl(STDOUT_FILENO, FIONREAD, &waiting) == 0 && waiting; i++)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL); /* what was read last is being written */
    fputc('\n', stderr);
}

void report_print(const struct cli *c, const struct settings *set, const struct session *s,
                  const struct result *r)
{
    const struct spec_stats *st = &r->st;
    double rate = decode_rate(st), tau = spec_tau(st);
    char text[64 * 12] = "";
    const char *who = s->source && !set->lookup.only ? "drafter" : "look-ups";
    const int32_t top = histogram(s, st);
    if (!c->quiet) behind_text();
    if (isnan(rate))
        cli_note(c, "decode: %" PRId64 " token", st->generated);
    else
        cli_note(c, "decode: %" PRId64 " token%s behind the first in %.3f s, %.1f t/s", st->generated - 1,
                 st->generated == 2 ? "" : "s", st->decode_s, rate);
    if (st->stop == SPEC_STOP_TOKEN) cli_detail(c, "ended by stop id %d", st->stop_id);
    if (st->stop == SPEC_STOP_TEXT) cli_detail(c, "ended by the text '%s'", set->text.found);
    if (st->stop == SPEC_STOP_INTERRUPT) cli_note(c, "ended by an interrupt");
    if (set->save_path) cli_detail(c, "%s: a state of %d positions", set->save_path, s->n_past);
    if (!s->source && !s->o.look) return;
    if (isnan(tau))
        cli_note(c, "%s: no whole cycle", who);
    else
        cli_note(c,
                 "%s: tau %.2f over %" PRId64 " cycles (%" PRId64
                 " cut by -n); draft %.3f s, verify %.3f s, rest %.3f s",
                 who, tau, st->full_cycles, st->cycles - st->full_cycles, st->draft_s, st->verify_s,
                 rest_s(st));
    if (s->o.look)
        cli_note(c, "look-ups: %" PRId64 " of %" PRId64 " cycles, %" PRId64 " tokens", st->look_cycles,
                 st->cycles, st->look_accepted);
    if (hardly_right(set, s, st, tau))
        cli_note(c, "hardly a proposal was right: the drafter may be for another target, or be read wrongly "
                    "(dflash-inspect --pair TARGET DRAFTER)");
    if (set->plan.planner.next) plan_flags_print(&set->plan, c);
    for (int32_t i = 0, used = 0; i < top; i++)
        used +=
            snprintf(text + used, sizeof text - (size_t)used, "%s%" PRId64, i ? " " : "", st->accepted[i]);
    cli_note(c, "cycles by accepted proposals, 0 to %d: %s", top - 1, text);
    if (st->nan_cycles)
        cli_warn(c, "the drafter gave NaN in %" PRId64 " of %" PRId64 " cycles; those proposed nothing",
                 st->nan_cycles, st->cycles);
}

/* kv: of all of the target's layers, or of the first; kv_layers: of each, where they differ. */
static void add_cache_types(json_t *j, const struct session *s)
{
    char text[32];
    json_t *layers = s->o.kv_layers ? json_array() : json_null();
    for (int i = 0; s->o.kv_layers && i < s->target->d->n_layer; i++)
        json_array_append_new(layers, s->target->d->layer[i].recurrent
                                          ? json_null()
                                          : json_string(kv_flags_text(s->o.kv_layers[i], text)));
    json_object_set_new(j, "kv", json_string(kv_flags_text(s->o.kv, text)));
    json_object_set_new(j, "kv_layers", layers);
    json_object_set_new(j, "draft_kv",
                        s->source && s->source->model
                            ? json_string(kv_flags_text(session_kv(&s->o, true, 0), text))
                            : json_null());
    json_object_set_new(j, "kv_convert", json_boolean(s->o.kv_convert));
}

/* Sizes, where everything lies, and what computes it. */
static void add_memory(json_t *j, const struct settings *set, const struct session *s)
{
    json_object_set_new(j, "n", json_integer(set->n));
    json_object_set_new(j, "ctx", json_integer(s->o.ctx));
    json_object_set_new(j, "chunk", json_integer(s->o.chunk));
    add_cache_types(j, s);
    json_object_set_new(j, "pool", json_integer(s->o.pool));
    json_object_set_new(j, "kv_host", json_boolean(set->m.kv_host));
    json_object_set_new(j, "kv_host_layers", json_integer(set->m.kv_host_layers));
    json_object_set_new(j, "experts_host", json_integer(set->m.experts_host));
    json_object_set_new(j, "experts_counts", json_text_or_null(set->m.experts_counts));
    json_object_set_new(j, "kernels", json_string(set->m.kernels ? set->m.kernels : "auto"));
    json_object_set_new(j, "check_layers", json_boolean(set->m.check_layers));
}

static void add_plan(json_t *j, const struct settings *set, const struct session *s)
{
    json_object_set_new(j, "block", s->source ? json_integer(s->o.block) : json_null());
    json_object_set_new(j, "width",
                        !s->source               ? json_null()
                        : set->plan.planner.next ? json_string("auto")
                        : set->plan.tree_fixed   ? json_null()
                                               : json_integer(set->plan.rows ? set->plan.rows : s->o.block));
    json_object_set_new(j, "tree", plan_flags_tree(&set->plan));
    json_object_set_new(j, "tree_seed",
                        set->plan.tree ? json_string(set->plan.seeded ? "chain" : "none") : json_null());
    json_object_set_new(j, "plan_times", json_text_or_null(set->plan.times_path));
    json_object_set_new(j, "calibration", json_text_or_null(set->plan.calibration_path));
    json_object_set_new(j, "mtp_calibration", json_text_or_null(set->plan.mtp_calibration_path));
}

static void add_drafting(json_t *j, const struct settings *set, const struct session *s)
{
    json_object_set_new(j, "sparse_dense", s->o.sparse.on ? json_integer(s->o.sparse.dense) : json_null());
    json_object_set_new(j, "draft_window",
                        set->draft_window == SESSION_DRAFT_ALL ? json_string("all")
                                                               : json_integer(set->draft_window));
    json_object_set_new(j, "draft_reach", s->g->draft_reach ? json_integer(s->g->draft_reach) : json_null());
    json_object_set_new(j, "draft_sampling",
                        s->source ? json_string(s->o.draft_greedy ? "greedy" : "coupled") : json_null());
    json_object_set_new(j, "lookup", json_string(s->o.look ? set->lookup.mode : "off"));
    json_object_set_new(j, "lookup_file", json_text_or_null(set->lookup.path));
}

static void add_ends(json_t *j, const struct settings *set)
{
    json_object_set_new(j, "state", json_text_or_null(set->state_path));
    json_object_set_new(j, "append", json_boolean(set->append));
    json_object_set_new(j, "save_state", json_text_or_null(set->save_path));
    json_object_set_new(j, "ignore_eos", json_boolean(set->ignore_eos));
    json_t *stops = json_array();
    for (int i = 0; i < set->text.stops.n; i++)
        json_array_append_new(stops, json_text(set->text.stops.v[i], strlen(set->text.stops.v[i])));
    json_object_set_new(j, "stop_text", stops);
    json_object_set_new(j, "logprobs",
                        set->text.logprobs.name ? json_integer(set->text.logprobs.n) : json_null());
    json_object_set_new(j, "stop", set->stop_list ? json_string(set->stop_list) : json_null());
}

/* What the flags say in place of the drafter's file. */
static void add_drafter_keys(json_t *j, const struct settings *set)
{
    const struct drafter_flags *f = &set->m.draft;
    const struct {
        const char *key, *v;
    } text[] = {{"draft_dialect", f->dialect},
                {"draft_taps", f->taps},
                {"draft_rope_theta", f->theta},
                {"draft_sliding_pattern", f->pattern}};
    const struct {
        const char *key;
        int32_t v, none;
    } number_of[] = {{"draft_tap_shift", f->tap_shift, -1},
                     {"draft_mask_id", f->mask_id, -1},
                     {"draft_block_size", f->block_size, 0},
                     {"draft_sliding_window", f->window, 0}};
    for (size_t i = 0; i < 4; i++) {
        json_object_set_new(j, text[i].key, text[i].v ? json_string(text[i].v) : json_null());
        json_object_set_new(j, number_of[i].key,
                            number_of[i].v != number_of[i].none ? json_integer(number_of[i].v) : json_null());
    }
    json_object_set_new(j, "draft_causal",
                        set->m.draft_causal < 0 ? json_null() : json_integer(set->m.draft_causal));
}

static json_t *settings_json(const struct settings *set, const struct session *s)
{
    json_t *j = json_object();
    json_object_set_new(j, "target", json_text(set->m.target_path, strlen(set->m.target_path)));
    json_object_set_new(j, "drafter", json_text_or_null(set->m.drafter_path));
    json_object_set_new(j, "mtp", json_text_or_null(set->m.mtp));
    json_object_set_new(j, "mtp_block", s->n_sources > 1 ? json_integer(s->by[1].block) : json_null());
    add_memory(j, set, s);
    add_plan(j, set, s);
    add_drafting(j, set, s);
    sampling_flags_json(&set->sampling, j);
    add_ends(j, set);
    json_object_set_new(j, "override_kv", models_keys_json(&set->m));
    add_drafter_keys(j, set);
    return j;
}

/* Seconds, cycles and what they accepted. */
static void add_decoding(json_t *j, const struct settings *set, const struct session *s,
                         const struct result *r)
{
    const struct spec_stats *st = &r->st;
    json_t *hist = json_array();
    json_object_set_new(j, "load_s", json_finite(set->m.load_s));
    json_object_set_new(j, "prefill_s", json_finite(r->prefill_s));
    json_object_set_new(j, "decode_s", json_finite(st->decode_s));
    json_object_set_new(j, "decode_tokens_per_s", json_finite(decode_rate(st)));
    json_object_set_new(j, "cycles", json_integer(st->cycles));
    json_object_set_new(j, "tau", json_finite(spec_tau(st)));
    for (int32_t i = 0; i < histogram(s, st); i++) json_array_append_new(hist, json_integer(st->accepted[i]));
    json_object_set_new(j, "accepted_histogram", hist);
    json_object_set_new(j, "tree_cycles", json_integer(st->tree_cycles));
    json_object_set_new(j, "tree_rows", json_integer(st->tree_rows));
    json_object_set_new(j, "lookup_cycles", json_integer(st->look_cycles));
    json_object_set_new(j, "lookup_accepted", json_integer(st->look_accepted));
    json_object_set_new(j, "draft_s", json_finite(st->draft_s));
    json_object_set_new(j, "verify_s", json_finite(st->verify_s));
    json_object_set_new(j, "wait_s", json_finite(st->wait_s));
    json_object_set_new(j, "commit_s", json_finite(st->commit_s));
    json_object_set_new(j, "idle_s", json_finite(st->idle_s));
    json_object_set_new(j, "idle_max_s", json_finite(st->idle_max_s));
    json_object_set_new(j, "rest_s", json_finite(rest_s(st)));
    json_object_set_new(j, "drafter_nan_cycles", json_integer(st->nan_cycles));
}

int report_write(const struct settings *set, struct session *s, const struct result *r, struct io_out *o,
                 struct err *e)
{
    const struct spec_stats *st = &r->st;
    json_t *j = json_object();
    bool changed;
    const char *commit = cli_commit(&changed);
    int rc = -1;
    json_object_set_new(j, "schema", json_integer(1));
    json_object_set_new(j, "version", json_string(DFLASH_VERSION));
    json_object_set_new(j, "commit", commit ? json_string(commit) : json_null());
    json_object_set_new(j, "changed", commit ? json_boolean(changed) : json_null());
    json_object_set_new(j, "device", json_string(models_device(&set->m)));
    json_object_set_new(j, "isa", json_string(kn_backend_isa(set->m.be)));
    json_object_set_new(j, "threads", json_integer(kn_backend_threads(set->m.be)));
    const bool host = kn_op(set->m.be)->alloc_host != NULL;
    json_object_set_new(j, "experts_host", json_integer(host ? set->m.target->n_host : 0));
    json_object_set_new(j, "kv_host_layers", json_integer(session_kv_hosted(s)));
    json_object_set_new(
        j, "host_bytes",
        json_integer((json_int_t)(s->host_bytes + (host ? model_host_bytes(set->m.target) : 0))));
    const struct pages_stats pages = pages_stats(s);
    json_object_set_new(j, "pool_turns", json_integer(pages.turns));
    json_object_set_new(j, "pool_scored", json_integer(pages.scored));
    json_object_set_new(j, "pool_pages_back", json_integer(pages.came));
    json_object_set_new(j, "prompt_tokens", json_integer(r->prompt_tokens));
    json_object_set_new(j, "prefilled_tokens", json_integer(r->prefilled));
    json_object_set_new(j, "generated_tokens", json_integer(st->generated));
    json_object_set_new(j, "stop", json_string(stop_reason(st)));
    json_object_set_new(j, "stop_id", st->stop == SPEC_STOP_TOKEN ? json_integer(st->stop_id) : json_null());
    json_object_set_new(j, "text_found", json_text_or_null(set->text.found));
    add_decoding(j, set, s, r);
    json_object_set_new(j, "sparse", sparse_flags_json(s, e));
    json_object_set_new(j, "compressed", models_gaps_json(&s->gaps));
    json_object_set_new(j, "plan", plan_flags_json(&set->plan));
    json_object_set_new(j, "settings", settings_json(set, s));
    char *text = json_line(j, 9);
    if (!text || mem_failures())
        err_set(e, ERR_IO, "out of memory (statistics)");
    else
        rc = io_out_write(o, text, strlen(text), e) || io_out_write(o, "\n", 1, e) ? -1 : 0;
    json_decref(j);
    free(text);
    return rc;
}
