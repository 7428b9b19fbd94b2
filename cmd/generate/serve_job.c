/* serve_job.c - see serve.h. */
#include "serve.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "../../common/base/mem.h"

static uint64_t random_seed(void)
{
    uint64_t x = 0;
    while (!x)
        if (getrandom(&x, sizeof x, 0) != sizeof x) x = (uint64_t)(cli_seconds() * 1e9) | 1;
    return x;
}

struct job *job_new(struct client *c, struct request *r, enum job_form form)
{
    struct server *sv = c->sv;
    struct job *j = mem_calloc(1, sizeof *j), **at = &sv->jobs;
    if (!j) return NULL;
    j->c = c;
    j->r = *r;
    *r = (struct request){0};
    j->form = form;
    j->read_at = cli_seconds();
    const double limit = j->r.given & REQUEST_TIMEOUT ? j->r.timeout_s : sv->set->serve.time_limit;
    if (limit > 0) j->deadline = j->read_at + limit;
    while (*at) at = &(*at)->next;
    *at = j;
    return j;
}

static void job_free(struct job *j, struct server *sv)
{
    struct err e = {0};
    struct job **at = &sv->jobs;
    while (*at != j) at = &(*at)->next;
    *at = j->next;
    if (sv->turn == j) sv->turn = NULL;
    if (j->c && j->c->job == j) j->c->job = NULL;
    if (j->phase != JOB_WAITS) sv->running--;
    if (compress_end(j, sv, &e)) cli_warn(sv->cli, "models stay parked: %s", e.msg);
    if (j->s) serve_drop(sv, j->s);
    tok_decoder_free(j->decoder);
    text_close(&j->text);
    json_decref(j->line);
    mem_free(j->prompt);
    mem_free(j->stops);
    mem_free(j->made_ids);
    request_free(&j->r);
    mem_free(j);
}

void job_fail(struct job *j, struct server *sv, const char *code, const char *msg)
{
    reply_error(j->c, &j->r, code, msg);
    job_free(j, sv);
}

/* ---- tokens ---- */

static int add_text(void *ctx, const void *bytes, size_t n, struct err *e)
{
    struct job *j = ctx;
    json_t *text = json_object_get(j->line, "text"), *all;
    (void)e;
    /* Whole characters arrive; what is none becomes U+FFFD, which JSON can say. */
    char *good = mem_alloc(3 * n + 1);
    size_t k = 0;
    if (!good) return err_set(e, ERR_IO, "out of memory (a reply)");
    for (size_t i = 0; i < n;) {
        json_t *one = NULL;
        size_t len = 1;
        for (; len <= 4 && i + len <= n && !one; len++) one = json_stringn((const char *)bytes + i, len);
        if (one) {
            memcpy(good + k, (const char *)bytes + i, len - 1);
            k += len - 1;
            i += len - 1;
        } else {
            memcpy(good + k, "\xef\xbf\xbd", 3);
            k += 3;
            i++;
        }
        json_decref(one);
    }
    all = json_sprintf("%s%.*s", text ? json_string_value(text) : "", (int)k, good);
    mem_free(good);
    return json_object_set_new(j->line, "text", all) ? err_set(e, ERR_IO, "out of memory (a reply)") : 0;
}

static json_t *line_of(struct job *j)
{
    json_decref(j->line);
    j->line = json_object();
    if (j->r.id) json_object_set(j->line, "id", j->r.id);
    return j->line;
}

static int say_tokens(struct job *j, const int32_t *ids, int32_t n, struct err *e)
{
    json_t *list = json_array();
    line_of(j);
    for (int32_t i = 0; i < n; i++) json_array_append_new(list, json_integer(ids[i]));
    json_object_set_new(j->line, "tokens", list);
    if (j->decoder && tok_decode(j->decoder, ids, (size_t)n, false, add_text, j, e)) return -1;
    client_json(j->c, j->line);
    j->line = NULL;
    return 0;
}

static int hold_tokens(struct job *j, const int32_t *ids, size_t n, struct err *e)
{
    if (j->n_made + n > j->room_made) {
        const size_t room = 2 * (j->n_made + n);
        int32_t *more = mem_realloc(j->made_ids, room * sizeof *more);
        if (!more) return err_set(e, ERR_IO, "out of memory (tokens)");
        j->made_ids = more;
        j->room_made = room;
    }
    memcpy(j->made_ids + j->n_made, ids, n * sizeof *ids);
    j->n_made += n;
    return 0;
}

static int on_tokens(void *ctx, const int32_t *ids, int32_t n, struct err *e)
{
    struct job *j = ctx;
    if (!n || !j->c) return 0;
    if (j->form == JOB_JSON) return say_tokens(j, ids, n, e);
    if (j->form == JOB_FILE) return hold_tokens(j, ids, (size_t)n, e);
    client_tokens(j->c, ids, (size_t)n);
    return 0;
}

static bool on_ends(void *ctx, int32_t id)
{
    struct job *j = ctx;
    return text_ends(&j->text, id);
}

/* ---- beginning ---- */

static int make_stops(struct job *j, struct err *e)
{
    const struct server *sv = j->c->sv;
    const struct desc *d = sv->set->m.target->d;
    const bool ignore = j->r.given & REQUEST_IGNORE_EOS ? j->r.ignore_eos : sv->set->ignore_eos;
    j->stops = mem_alloc(((size_t)d->n_stops + (size_t)sv->n_stops + j->r.n_stops + 1) * sizeof *j->stops);
    if (!j->stops) return err_set(e, ERR_IO, "out of memory (stop ids)");
    for (int i = 0; i < d->n_stops && !ignore; i++) j->stops[j->n_stops++] = d->stops[i];
    for (int32_t i = 0; i < sv->n_stops; i++) j->stops[j->n_stops++] = sv->stops[i];
    for (size_t i = 0; i < j->r.n_stops; i++) {
        if (j->r.stops[i] >= d->n_vocab)
            return err_set(e, ERR_USAGE, "stop: an id out of the vocabulary (expected 0 to %d, got %d)",
                           d->n_vocab - 1, j->r.stops[i]);
        j->stops[j->n_stops++] = j->r.stops[i];
    }
    return 0;
}

static int make_text(struct job *j, struct err *e)
{
    const struct server *sv = j->c->sv;
    if (!j->r.text && !j->r.n_texts) return 0;
    if (!sv->tok) return err_set(e, ERR_USAGE, "text, stop_text: the target has no tokenizer that is known");
    if (j->r.text && tok_decoder_new(&j->decoder, sv->tok, false, e)) return -1;
    if (!j->r.n_texts) return 0;
    j->text = (struct text){.t = sv->tok, .borrowed = true};
    j->text.stops.v = mem_alloc(j->r.n_texts * sizeof *j->text.stops.v);
    if (!j->text.stops.v) return err_set(e, ERR_IO, "out of memory (stop texts)");
    for (size_t i = 0; i < j->r.n_texts; i++) j->text.stops.v[j->text.stops.n++] = j->r.texts[i];
    return text_open(&j->text, sv->set->m.target, e);
}

/* Width and tree: the request's, else the flags'. A tree wants room that the flags made. */
static int make_plan(struct job *j, struct err *e)
{
    const struct server *sv = j->c->sv;
    const struct settings *set = sv->set;
    const bool tree = j->r.given & REQUEST_TREE && j->r.tree > 0;
    struct plan_flags *p = &j->plan;
    const int32_t most = sv->g->o.tree;
    *p = set->plan;
    p->tree_most = most;
    p->tree_fixed = p->tree_fixed && most;
    if (j->r.given & REQUEST_WIDTH) {
        p->rows = j->r.width;
        p->tree_fixed = false;
        if (p->rows) p->tree_most = 0;
    }
    if (j->r.given & REQUEST_TREE) {
        if (sv->g->source && (j->r.tree > most || (j->r.tree < 0 && !most)))
            return err_set(e, ERR_USAGE,
                           "tree: more proposals than --tree made room for (expected at most %d, got %d)",
                           most, j->r.tree < 0 ? SESSION_MAX_ROWS - 1 : j->r.tree);
        p->tree_fixed = tree && most;
        p->tree_most = tree && most ? j->r.tree : j->r.tree ? most : 0;
        if (tree) p->rows = 0;
    }
    if (!sv->g->source && !sv->o.look) p->rows = 0;
    if (sv->g->n_sources > 1 && (p->rows || p->tree_fixed))
        return err_set(e, ERR_USAGE, "%s: plans choose who proposes beside --mtp (expected none, or 0)",
                       p->rows ? "width" : "tree");
    if (p->rows && spec_width_check(p->rows, sv->g->source ? sv->g->o.block : 1, sv->o.look, e)) return -1;
    return 0;
}

static int make_options(struct job *j, struct err *e)
{
    const struct server *sv = j->c->sv;
    const struct settings *set = sv->set;
    if (make_stops(j, e) || make_text(j, e) || make_plan(j, e)) return -1;
    j->sampler = request_sampler(&j->r, &set->sampling.sampler);
    if (j->r.random_seed) j->sampler.seed = random_seed();
    j->o = (struct spec_options){.sampler = j->sampler,
                                 .stops = j->stops,
                                 .n_stops = j->n_stops,
                                 .width = j->plan.rows,
                                 .tree = j->plan.tree_fixed ? j->plan.tree_most : 0,
                                 .tree_seed = j->plan.seeded,
                                 .look_only = set->lookup.only,
                                 .tokens = on_tokens,
                                 .ends = j->text.stops.n ? on_ends : NULL,
                                 .ctx = j};
    return 0;
}

bool job_begin(struct job *j, struct server *sv)
{
    struct err e = {0};
    const bool compresses = j->r.kind == REQUEST_COMPRESS;
    const char *code = sv->g || compresses ? NULL : "target_parked";
    if (compresses) {
        compress_begin(j, sv, &code, &e);
    } else if (!code) {
        if (make_options(j, &e)) code = e.code == ERR_IO ? "no_memory" : "bad_args";
        if (!code) prompt_begin(j, &code, &e);
    }
    if (code) {
        job_fail(j, sv, code, e.msg);
        return false;
    }
    j->o.n = j->r.n;
    j->phase = JOB_PREFILLS;
    sv->running++;
    return true;
}

/* ---- ending ---- */

static int64_t accepted(const struct spec_stats *st)
{
    int64_t sum = 0;
    for (int i = 1; i < SESSION_MAX_ROWS; i++) sum += i * st->accepted[i];
    return sum;
}

static const char *stop_name(const struct job *j)
{
    if (j->end) return j->end;
    if (!j->st.generated) return "length";
    return j->st.stop == SPEC_STOP_TOKEN ? "stop" : j->st.stop == SPEC_STOP_TEXT ? "text" : "length";
}

static json_t *done_json(struct job *j)
{
    const struct spec_stats *st = &j->st;
    json_t *o = line_of(j);
    j->line = NULL;
    const struct {
        const char *key;
        int64_t v;
    } n[] = {{"prompt_tokens", j->n_prompt},
             {"cached_tokens", j->begun_at},
             {"generated_tokens", st->generated},
             {"drafted_tokens", st->tried},
             {"accepted_tokens", accepted(st)},
             {"cycles", st->cycles},
             {"steps", st->steps}};
    json_object_set_new(o, "schema", json_integer(1));
    json_object_set_new(o, "done", json_true());
    json_object_set_new(o, "stop", json_string(stop_name(j)));
    if (st->generated && st->stop == SPEC_STOP_TOKEN)
        json_object_set_new(o, "stop_id", json_integer(st->stop_id));
    if (j->s && j->s->gaps.n_text) json_object_set_new(o, "compressed", models_gaps_json(&j->s->gaps));
    if (j->text.found) json_object_set_new(o, "stop_text", json_text(j->text.found, strlen(j->text.found)));
    for (size_t i = 0; i < sizeof n / sizeof *n; i++) json_object_set_new(o, n[i].key, json_integer(n[i].v));
    json_object_set_new(o, "seed", json_integer((json_int_t)(j->sampler.seed & INT64_MAX)));
    json_object_set_new(o, "wait_s", json_finite(j->prompt_s - j->prefill_s));
    json_object_set_new(o, "prefill_s", json_finite(j->prefill_s));
    json_object_set_new(o, "decode_s", json_finite(st->decode_s));
    return o;
}

/* Behind the last token: what the decoder held back. */
static void end_text(struct job *j)
{
    struct err e = {0};
    if (!j->decoder) return;
    line_of(j);
    if (tok_decode(j->decoder, NULL, 0, true, add_text, j, &e) == 0 && json_object_get(j->line, "text")) {
        client_json(j->c, j->line);
        j->line = NULL;
    }
}

static int write_file(struct job *j, struct err *e)
{
    struct io_out o;
    const int32_t n = (int32_t)j->n_made;
    const char *name = path_out(j->c->sv, j->r.out, e);
    if (!name || io_out_open(&o, name, true, NULL, 0, e)) return -1;
    if (io_write_tokens(&o, &n, 1, e) == 0 && io_write_tokens(&o, j->made_ids, j->n_made, e) == 0 &&
        io_out_commit(&o, e) == 0)
        return 0;
    io_out_abort(&o);
    return -1;
}

/* Where the stream goes, as asked. */
static const char *keep_stream(struct job *j, struct err *e)
{
    struct server *sv = j->c->sv;
    if (j->r.keep >= 0 && slot_take(sv, j->r.keep, j->s, e)) return "no_room";
    if (j->r.save && slot_save_session(sv, j->s, j->r.save, e))
        return e->code == ERR_USAGE ? "bad_args" : "write_out";
    return NULL;
}

static void say_ok(struct job *j)
{
    const struct spec_stats *st = &j->st;
    const double rate =
        st->decode_s > 0 && st->generated > 1 ? (double)(st->generated - 1) / st->decode_s : 0;
    char where[64] = "", prefix[32] = "";
    if (j->r.kind == REQUEST_RESTORE) {
        snprintf(prefix, sizeof prefix, " prefix_len=%d", j->begun_at);
        snprintf(where, sizeof where, " (RESTORE slot=%d)", j->r.slot);
    }
    if (j->form == JOB_FILE)
        client_say(j->c, "ok N=%d gen=%lld prefill_s=%.3f decode_s=%.3f decode_tok_s=%.1f out=%.512s",
                   j->n_prompt, (long long)st->generated, j->prefill_s, st->decode_s, rate, j->r.out);
    else
        client_say(j->c, "ok N=%d gen=%lld%s prefill_s=%.3f decode_s=%.3f decode_tok_s=%.1f%s stream_fd=%d",
                   j->n_prompt, (long long)st->generated, prefix, j->prefill_s, st->decode_s, rate, where,
                   j->c->tokens.fd);
}

static void count(struct job *j, struct server *sv)
{
    sv->n_prompt += j->n_prompt;
    sv->n_reused += j->begun_at;
    sv->n_tokens += j->st.generated;
    sv->n_drafted += j->st.tried;
    sv->n_accepted += accepted(&j->st);
    sv->last_used = cli_seconds();
}

/* The stream stays with its client, for SNAPSHOT, until another is wanted. */
static void hand_over(struct job *j)
{
    struct client *c = j->c;
    if (c->kept) serve_drop(c->sv, c->kept);
    c->kept = j->s;
    c->kept_when = ++c->sv->clock;
    j->s = NULL;
}

void job_end(struct job *j, struct server *sv)
{
    struct err e = {0};
    const char *code = NULL;
    const bool compressed = j->r.kind == REQUEST_COMPRESS;
    bool whole = (j->s || compressed) && j->phase != JOB_WAITS;
    if (j->run.s && spec_end(&j->run, &e)) whole = false;
    count(j, sv);
    sv->n_cancelled += j->end != NULL;
    if (!j->c) return job_free(j, sv);
    if (!j->end && !whole) code = "decode_failed";
    if (j->end && j->form != JOB_JSON) code = j->end;
    if (!code && j->s && whole && (!j->end || j->st.generated)) code = keep_stream(j, &e);
    if (!code && j->form == JOB_FILE && write_file(j, &e))
        code = e.code == ERR_USAGE ? "bad_args" : "write_out";
    if (code) {
        reply_error(j->c, &j->r, code, e.msg);
    } else if (j->form == JOB_JSON) {
        end_text(j);
        client_json(j->c, done_json(j));
    } else if (compressed) {
        client_tokens(j->c, j->prompt, j->n_made);
        client_end_stream(j->c);
    } else {
        if (j->form == JOB_STREAM) client_end_stream(j->c);
        say_ok(j);
    }
    if (j->s && whole && (j->s->n_past || j->s->logits_rows)) hand_over(j);
    job_free(j, sv);
}

/* ---- turns ---- */

static int decode_begin(struct job *j, struct server *sv, struct err *e)
{
    struct plan_flags *all = &sv->set->plan; /* what one measures is known to all who come */
    j->prompt_s = cli_seconds() - j->read_at;
    if (!j->r.n) return 0;
    j->plan.times = all->times, j->plan.timed = all->timed, j->plan.lazy = all->lazy;
    if (j->r.n > 1 && plan_flags_open(&j->plan, j->s, sv->set->lookup.only, &j->sampler, e)) return -1;
    all->times = j->plan.times, all->timed = j->plan.timed, all->lazy |= j->plan.timed;
    if (j->plan.planner.next) j->o.planner = &j->plan.planner;
    j->text.position = j->s->n_past;
    return spec_begin(&j->run, j->s, &j->o, &j->st, e);
}

/* Is the device itself of no use any more? */
static void look_at_device(struct server *sv, const struct err *e)
{
    if (e->code == ERR_DEVICE && kn_op(sv->set->m.be)->sync(sv->set->m.be)) sv->lost = *e;
}

void job_step(struct job *j, struct server *sv)
{
    struct err e = {0};
    const enum job_phase phase = j->phase;
    const char *code = phase == JOB_PREFILLS ? "prefill_failed" : "decode_failed";
    int rc = 0;
    if (!j->end && j->form == JOB_STREAM && j->c->tokens.dead) j->end = "stream_closed";
    if (j->end) return job_end(j, sv);
    const double start = cli_seconds();
    if (j->compress) {
        rc = compress_step(j, sv, &code, &e);
        if (rc > 0) return job_end(j, sv);
    } else if (phase == JOB_PREFILLS && j->s->n_past < j->n_prompt) {
        rc = prompt_step(j, &e);
        j->prefill_s += cli_seconds() - start;
    } else if (phase == JOB_PREFILLS) {
        rc = decode_begin(j, sv, &e);
        j->phase = JOB_DECODES;
    } else {
        rc = spec_step(&j->run, &e);
    }
    if (rc) {
        look_at_device(sv, &e);
        job_fail(j, sv, code, e.msg);
    } else if (j->phase == JOB_DECODES && (!j->r.n || j->run.ended)) {
        job_end(j, sv);
    }
}
