/* serve_line.c - see serve.h. */
#include "serve.h"

#include <stdio.h>
#include <string.h>

#include "../../common/base/mem.h"

/* ---- replies ---- */

/* {"id":..., "op":...}, to be filled. */
static json_t *reply_to(const struct request *r, const char *op)
{
    json_t *j = json_object();
    if (r->id) json_object_set(j, "id", r->id);
    if (op) json_object_set_new(j, "op", json_string(op));
    return j;
}

/* more, which is given up, into j. */
static void join(json_t *j, json_t *more)
{
    json_object_update(j, more);
    json_decref(more);
}

/* The order of the two is that of the engine whose lines these are. */
void reply_error(struct client *c, const struct request *r, const char *code, const char *msg)
{
    if (!c) return;
    c->sv->n_errors++;
    if (r->json) {
        json_t *j = reply_to(r, NULL);
        json_object_set_new(j, "error", json_string(code));
        json_object_set_new(j, "message", json_text(msg, strlen(msg)));
        client_json(c, j);
        return;
    }
    if (r->streams && r->kind != REQUEST_RESTORE) client_end_stream(c);
    client_say(c, *msg ? "err %s %s" : "err %s%s", code, msg);
    if (r->streams && r->kind == REQUEST_RESTORE) client_end_stream(c);
}

static void reply_bad(struct client *c, const struct request *r)
{
    reply_error(c, r, r->code, r->msg);
}

/* ---- slots ---- */

static const char *slot_code(const struct err *e)
{
    return e->code == ERR_USAGE ? "bad_args" : e->code == ERR_IO ? "no_room" : "invalid_snapshot_slot";
}

static void snapshot(struct client *c, const struct request *r)
{
    struct err e = {0};
    struct server *sv = c->sv;
    int32_t at = -1;
    if (!c->kept)
        err_set(&e, ERR_USAGE, "there is no stream (expected one that this client had before)");
    else if (slot_take(sv, r->slot, c->kept, &e) == 0)
        at = sv->slots[r->slot].n_tokens;
    if (!r->json) {
        client_say(c, "[snap] inline slot=%d cur_pos=%d", r->slot, at);
        if (at < 0) cli_warn(sv->cli, "slot %d: %s", r->slot, e.msg);
    } else if (at < 0) {
        reply_error(c, r, slot_code(&e), e.msg);
    } else {
        json_t *j = reply_to(r, "snapshot");
        json_object_set_new(j, "slot", json_integer(r->slot));
        json_object_set_new(j, "tokens", json_integer(at));
        client_json(c, j);
    }
}

static void free_slot(struct client *c, const struct request *r)
{
    slot_free(c->sv, r->slot);
    if (!r->json) {
        client_say(c, "[snap] freed slot=%d", r->slot);
        return;
    }
    json_t *j = reply_to(r, "free");
    json_object_set_new(j, "slot", json_integer(r->slot));
    client_json(c, j);
}

static void list_slots(struct client *c, const struct request *r)
{
    const struct server *sv = c->sv;
    char text[REQUEST_SLOTS * 3 + 1] = "";
    json_t *j = r->json ? reply_to(r, "list") : NULL, *slots = r->json ? json_array() : NULL;
    for (int32_t i = 0, used = 0; i < REQUEST_SLOTS; i++) {
        const struct slot *x = &sv->slots[i];
        if (x->fd < 0) continue;
        used += snprintf(text + used, sizeof text - (size_t)used, "%s%d", used ? "," : "", i);
        if (slots)
            json_array_append_new(slots, json_pack("{s:i,s:i,s:I}", "slot", i, "tokens", x->n_tokens, "bytes",
                                                   (json_int_t)x->bytes));
    }
    if (!r->json) {
        client_say(c, "[snap] slots=%s", text);
        return;
    }
    json_object_set_new(j, "slots", slots);
    client_json(c, j);
}

static void slot_file(struct client *c, const struct request *r)
{
    struct err e = {0};
    struct server *sv = c->sv;
    const bool saves = r->kind == REQUEST_SAVE;
    if (saves && sv->slots[r->slot].fd < 0) return reply_error(c, r, "empty_slot", "");
    if (!saves && !sv->g) return reply_error(c, r, "target_parked", "");
    if (saves ? slot_save(sv, r->slot, r->path, &e) : slot_load(sv, r->slot, r->path, &e))
        return reply_error(c, r, saves && e.code != ERR_USAGE ? "write_out" : slot_code(&e), e.msg);
    json_t *j = reply_to(r, saves ? "save" : "load");
    json_object_set_new(j, "slot", json_integer(r->slot));
    json_object_set_new(j, "tokens", json_integer(sv->slots[r->slot].n_tokens));
    client_json(c, j);
}

/* ---- jobs that run ---- */

static void cancel(struct client *c, const struct request *r)
{
    int found = 0;
    for (struct job *j = c->sv->jobs; j; j = j->next) {
        if (j->c != c || j->end ||
            (r->line ? j->form == JOB_JSON : !j->r.id || !json_equal(j->r.id, r->cancel)))
            continue;
        j->end = "cancelled";
        found++;
    }
    json_t *j = reply_to(r, "cancel");
    json_object_set_new(j, "found", json_integer(found));
    client_json(c, j);
}

static json_t *models_json(const struct server *sv)
{
    const struct models *m = &sv->set->m;
    json_t *j = json_object();
    json_object_set_new(j, "target", json_text(m->target_path, strlen(m->target_path)));
    json_object_set_new(j, "drafter", json_text_or_null(m->drafter_path));
    json_object_set_new(j, "target_parked", json_boolean(sv->parked & REQUEST_TARGET));
    json_object_set_new(j, "draft_parked", json_boolean(sv->parked & REQUEST_DRAFT));
    return j;
}

static void stats(struct client *c, const struct request *r)
{
    const struct server *sv = c->sv;
    const struct prefix *p = &sv->prefix;
    json_t *j = reply_to(r, "stats");
    int slots = 0, waiting = 0;
    for (int i = 0; i < REQUEST_SLOTS; i++) slots += sv->slots[i].fd >= 0;
    for (struct job *x = sv->jobs; x; x = x->next) waiting += x->phase == JOB_WAITS;
    json_object_set_new(j, "schema", json_integer(1));
    json_object_set_new(j, "version", json_string(cli_version()));
    json_object_set_new(j, "models", models_json(sv));
    join(j, json_pack("{s:i,s:i,s:i,s:i,s:i}", "ctx", sv->o.ctx, "chunk", sv->o.chunk, "streams",
                      sv->set->serve.streams, "running", sv->running, "waiting", waiting));
    const struct {
        const char *key;
        int64_t v;
    } n[] = {{"max_tokens", sv->set->n > 0 ? sv->set->n : sv->o.ctx},
             {"requests", sv->n_requests},
             {"errors", sv->n_errors},
             {"cancelled", sv->n_cancelled},
             {"prompt_tokens", sv->n_prompt},
             {"cached_tokens", sv->n_reused},
             {"generated_tokens", sv->n_tokens},
             {"drafted_tokens", sv->n_drafted},
             {"accepted_tokens", sv->n_accepted},
             {"prefix_nodes", p->nodes},
             {"prefix_points", p->points},
             {"prefix_bytes", (int64_t)p->bytes},
             {"prefix_evicted", p->evicted},
             {"slots", slots},
             {"slot_bytes", (int64_t)sv->slot_bytes},
             {"budget_bytes", (int64_t)sv->budget}};
    for (size_t i = 0; i < sizeof n / sizeof *n; i++) json_object_set_new(j, n[i].key, json_integer(n[i].v));
    json_object_set_new(j, "up_s", json_finite(cli_seconds() - sv->started));
    json_object_set_new(j, "last_used_s",
                        sv->last_used > 0 ? json_finite(cli_seconds() - sv->last_used) : json_null());
    client_json(c, j);
}

/* ---- park, unpark ---- */

static void told(const struct server *sv, struct client *c, const struct request *r, unsigned what, bool park)
{
    static const char *const name[] = {"target", "draft"};
    for (unsigned i = 0; i < 2 && !r->json && c; i++)
        if (what & 1u << i) client_say(c, park ? "[park] %s released" : "[unpark] %s restored", name[i]);
    if (r->json) {
        json_t *j = reply_to(r, park ? "park" : "unpark");
        join(j, models_json(sv));
        if (c)
            client_json(c, j);
        else
            json_decref(j);
    } else {
        client_end_stream(c);
    }
}

/* No stream is there any more: the kept ones neither. */
static void drop_streams(struct server *sv)
{
    for (struct client *c = sv->clients; c; c = c->next) {
        if (c->kept) serve_drop(sv, c->kept);
        c->kept = NULL;
    }
}

unsigned serve_parts(const struct server *sv)
{
    return sv->set->m.drafter_path ? REQUEST_TARGET | REQUEST_DRAFT : REQUEST_TARGET;
}

int serve_park(struct server *sv, unsigned what, bool park, struct err *e)
{
    drop_streams(sv);
    serve_close_engine(sv);
    if (park) models_park(&sv->set->m, what);
    int rc = park ? 0 : models_unpark(&sv->set->m, sv->cli, what, e);
    if (rc) models_park(&sv->set->m, what);
    if (rc == 0) sv->parked = park ? sv->parked | what : sv->parked & ~what;
    if (!(sv->parked & REQUEST_TARGET) && serve_open_engine(sv, e)) {
        /* Not even what was there before fits any more: then nothing is there. */
        models_park(&sv->set->m, serve_parts(sv));
        sv->parked = serve_parts(sv);
        rc = -1;
    }
    return rc;
}

static void do_parts(struct server *sv, struct client *c, const struct request *r)
{
    struct err e = {0};
    const bool park = r->kind == REQUEST_PARK;
    const unsigned changes = r->what & serve_parts(sv) & (park ? ~sv->parked : sv->parked);
    if (!changes) return told(sv, c, r, 0, park);
    if (serve_park(sv, changes, park, &e))
        reply_error(c, r, "model_parked", e.msg);
    else
        told(sv, c, r, changes, park);
}

void line_parts(struct server *sv)
{
    struct line_wait *w = sv->waits;
    if (!w || sv->running) return;
    sv->waits = w->next;
    do_parts(sv, w->c, &w->l->r);
    if (w->l->r.json) {
        request_free(&w->l->r);
        mem_free(w->l);
    } else if (w->c) { /* the client's first, which has waited */
        struct line *l = w->c->first;
        w->c->first = l->next;
        if (!l->next) w->c->last = &w->c->first;
        w->c->n_lines--;
        request_free(&l->r);
        mem_free(l);
    }
    mem_free(w);
}

static bool wait_for_jobs(struct client *c, struct line *l)
{
    struct line_wait *w = mem_calloc(1, sizeof *w), **at = &c->sv->waits;
    if (!w) return false;
    *w = (struct line_wait){.c = c, .l = l, .json = l->r.json};
    while (*at) at = &(*at)->next;
    *at = w;
    return true;
}

/* ---- lines ---- */

static void json_parts(struct client *c, struct request *r)
{
    struct line *l = mem_calloc(1, sizeof *l);
    if (l) l->r = *r;
    if (l && wait_for_jobs(c, l)) {
        *r = (struct request){0};
        return;
    }
    mem_free(l);
    reply_error(c, r, "no_memory", "");
}

void line_json(struct client *c, struct request *r)
{
    switch (r->kind) {
    case REQUEST_BAD: reply_bad(c, r); break;
    case REQUEST_PROMPT:
        if (!job_new(c, r, JOB_JSON)) reply_error(c, r, "no_memory", "");
        break;
    case REQUEST_SNAPSHOT: snapshot(c, r); break;
    case REQUEST_FREE: free_slot(c, r); break;
    case REQUEST_LIST: list_slots(c, r); break;
    case REQUEST_SAVE:
    case REQUEST_LOAD: slot_file(c, r); break;
    case REQUEST_PARK:
    case REQUEST_UNPARK: json_parts(c, r); break;
    case REQUEST_CANCEL: cancel(c, r); break;
    case REQUEST_STATS: stats(c, r); break;
    default: c->sv->quits = true; break;
    }
}

/* A bare line that needs no stream, answered. false: it was not, and waits. */
static bool answer(struct client *c, struct line *l)
{
    struct request *r = &l->r;
    switch (r->kind) {
    case REQUEST_SNAPSHOT: snapshot(c, r); break;
    case REQUEST_FREE: free_slot(c, r); break;
    case REQUEST_LIST: list_slots(c, r); break;
    case REQUEST_FREE_DRAFTER: told(c->sv, c, r, 0, true); break;
    case REQUEST_QUIT: c->sv->quits = true; break;
    case REQUEST_PARK:
    case REQUEST_UNPARK:
        if (wait_for_jobs(c, l)) return false;
        reply_error(c, r, "no_memory", "");
        break;
    default: reply_bad(c, r); break;
    }
    return true;
}

static bool waits_already(const struct client *c)
{
    for (const struct line_wait *w = c->sv->waits; w; w = w->next)
        if (w->l == c->first) return true;
    return false;
}

static bool has_jobs(const struct client *c)
{
    const struct job *j = c->sv->jobs;
    while (j && j->c != c) j = j->next;
    return j;
}

bool line_next(struct client *c)
{
    struct line *l = c->first;
    if (!l || c->job || c->gone || waits_already(c)) return false;
    const enum request_kind k = l->r.kind;
    if (k == REQUEST_QUIT && has_jobs(c)) return false; /* behind the lines before it, those of JSON too */
    if (k == REQUEST_PROMPT || k == REQUEST_RESTORE || k == REQUEST_GENERATE || k == REQUEST_COMPRESS) {
        if (k == REQUEST_GENERATE || (c->tokens.fd >= 0 && !c->tokens.dead)) {
            c->job = job_new(c, &l->r, k == REQUEST_GENERATE ? JOB_FILE : JOB_STREAM);
            if (!c->job) reply_error(c, &l->r, "no_memory", "");
        } else {
            reply_error(c, &l->r, "no_stream_fd", "");
        }
    } else if (!answer(c, l)) {
        return true;
    }
    c->first = l->next;
    if (!l->next) c->last = &c->first;
    c->n_lines--;
    request_free(&l->r);
    mem_free(l);
    return true;
}
