/* serve_prompt.c - see serve.h. A prompt runs a chunk a pass, whatever a pass could hold: then the rows of a
 * whole chunk are a function of the tokens up to its end, and may be kept for every prompt that begins so
 * (docs/design/serve.md). */
#include "serve.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "../../common/base/mem.h"
#include "../../common/run/span.h"

/* ---- tokens ---- */

/* generate's files begin with a count. */
static int counted(const char *path, int32_t *ids, size_t *n, struct err *e)
{
    if (!*n || (uint32_t)ids[0] != *n - 1)
        return err_set(e, ERR_FORMAT, "%s: not a count and so many ids (expected %" PRIu32 " ids, got %zu)",
                       path, *n ? (uint32_t)ids[0] : 0, *n ? *n - 1 : 0);
    memmove(ids, ids + 1, --*n * sizeof *ids);
    return 0;
}

static int read_file(struct job *j, struct server *sv, struct err *e)
{
    size_t n = 0;
    const int fd = path_open(sv, j->r.path, e);
    if (fd < 0) return -1;
    int rc = io_read_tokens(fd, j->r.path, &j->prompt, &n, e);
    close(fd);
    if (rc == 0 && j->form == JOB_FILE) rc = counted(j->r.path, j->prompt, &n, e);
    if (rc == 0 && n > SESSION_MAX_CTX)
        rc = err_set(e, ERR_USAGE, "%s: too long a prompt (%zu ids)", j->r.path, n);
    j->n_prompt = (int32_t)n;
    return rc;
}

const char *prompt_read(struct job *j, struct server *sv, struct err *e)
{
    if (j->r.path) {
        const int rc = read_file(j, sv, e);
        if (rc)
            return e->code == ERR_USAGE ? "bad_args" : e->code == ERR_FORMAT ? "bad_prompt" : "empty_prompt";
    } else {
        if (j->r.n_ids > SESSION_MAX_CTX) {
            err_set(e, ERR_USAGE, "too long a prompt (%zu ids)", j->r.n_ids);
            return "context_overflow";
        }
        j->prompt = j->r.ids, j->r.ids = NULL;
        j->n_prompt = (int32_t)j->r.n_ids;
    }
    return !j->n_prompt && !j->r.append ? "empty_prompt" : NULL;
}

static const char *read_prompt(struct job *j, struct err *e)
{
    const char *code = prompt_read(j, j->c->sv, e);
    if (code) return code;
    return models_check_ids(&j->c->sv->set->m, "the prompt", j->prompt, (size_t)j->n_prompt, e) ? "bad_prompt"
                                                                                                : NULL;
}

/* ---- states ---- */

static const char *open_state(struct job *j, struct state **st, struct state_info *info, struct err *e)
{
    struct server *sv = j->c->sv;
    const struct models *m = &sv->set->m;
    const bool slot = j->r.slot >= 0;
    *st = NULL;
    if (slot && sv->slots[j->r.slot].fd < 0) return "empty_slot";
    const int fd = slot ? -1 : path_open(sv, j->r.state, e);
    if (!slot && fd < 0) return "bad_args";
    if (slot ? slot_open(sv, j->r.slot, st, info, e) : state_open_fd(st, fd, j->r.state, info, e))
        return "invalid_snapshot_slot";
    const struct desc *drafters[PLAN_SOURCES];
    if (state_check(*st, m->target->d, drafters, models_drafters(m, drafters), &sv->o, e))
        return e->code == ERR_USAGE ? "context_overflow" : "invalid_snapshot_slot";
    models_left_out(sv->cli, info);
    return NULL;
}

/* The stream goes on from the state; its tokens stand before the prompt's, or are their beginning. */
static const char *stand(struct job *j, struct state *st, struct err *e)
{
    struct session *s = j->s;
    if (st && state_restore(st, s, e)) return "invalid_snapshot_slot";
    const size_t bytes = (size_t)s->n_past * sizeof *s->history;
    if (j->r.append) {
        int32_t *all = mem_alloc(bytes + (size_t)j->n_prompt * sizeof *all + 1);
        if (!all) {
            err_set(e, ERR_IO, "out of memory (a prompt)");
            return "no_memory";
        }
        memcpy(all, s->history, bytes);
        if (j->n_prompt) memcpy(all + s->n_past, j->prompt, (size_t)j->n_prompt * sizeof *all);
        mem_free(j->prompt);
        j->prompt = all;
        j->n_prompt += s->n_past;
    } else if (j->n_prompt < s->n_past || memcmp(s->history, j->prompt, bytes)) {
        err_set(e, ERR_USAGE, "the prompt does not begin with the %d tokens of the %s", s->n_past,
                j->r.slot >= 0 ? "slot" : "state");
        return "prefix_mismatch";
    }
    j->begun_at = s->n_past;
    return NULL;
}

/* ---- kept beginnings ---- */

static int put_path(struct job *j, const struct prefix_node *x, int32_t end, struct err *e)
{
    const int32_t chunk = j->s->o.chunk;
    if (x->parent && put_path(j, x->parent, end, e)) return -1;
    return span_put(j->s, (x->depth - 1) * chunk, chunk, end, x->rows, e);
}

/* The longest kept beginning that leaves a token to be run, and a chunk where a snapshot is wanted at its
 * end. */
static int use_kept(struct job *j, struct err *e)
{
    struct server *sv = j->c->sv;
    const int32_t chunk = sv->o.chunk, most = (j->snap_at ? j->snap_at : j->n_prompt) - 1;
    struct prefix_node *x = prefix_find(&sv->prefix, j->prompt, most);
    j->found = x ? x->depth : 0;
    if (sv->point_bytes) x = prefix_pointed(&sv->prefix, x);
    if (!x) return 0;
    const int32_t end = x->depth * chunk;
    if (put_path(j, x, end, e) || (x->point && span_point_put(j->s, x->point, e)) ||
        span_stand(j->s, j->prompt, end, e))
        return -1;
    j->begun_at = end;
    return 0;
}

/* The chunk that ends here. Where there is no room the rest of the prompt is not kept either. */
static int keep(struct job *j, struct err *e)
{
    struct server *sv = j->c->sv;
    const int32_t chunk = sv->o.chunk, end = j->s->n_past, depth = end / chunk;
    struct prefix_node *parent = prefix_find(&sv->prefix, j->prompt, end - chunk);
    bool fresh;
    j->keeps = false;
    if ((parent ? parent->depth : 0) != depth - 1) return 0;
    struct prefix_node *x = prefix_add(&sv->prefix, parent, j->prompt + end - chunk, sv->span_bytes, &fresh);
    if (!x) return 0;
    if (fresh && span_take(j->s, end - chunk, chunk, x->rows, e)) {
        prefix_remove(&sv->prefix, x);
        return -1;
    }
    j->keeps = true;
    /* A stream can begin where a prompt ended, and where two parted. */
    if (!sv->point_bytes || x->point || (depth != j->found && j->n_prompt - end >= chunk)) return 0;
    uint8_t *point = prefix_add_point(&sv->prefix, x, sv->point_bytes);
    if (point && span_point_take(j->s, point, e)) {
        prefix_remove_point(&sv->prefix, x);
        return -1;
    }
    return 0;
}

/* ---- snap= ---- */

/* At an absolute multiple of the chunk, or the prompt's end. */
static void place_snap(struct job *j)
{
    const int32_t pos = j->r.snap_pos;
    if (!pos) return;
    j->snap_at = pos >= j->n_prompt ? j->n_prompt : pos - pos % j->c->sv->o.chunk;
}

static void snap(struct job *j)
{
    struct err e = {0};
    const int32_t pos = j->r.snap_pos, slot = j->r.snap_slot, n = j->snap_at;
    int32_t at = -1;
    if (j->s->n_past == n && j->s->logits_rows && slot_take(j->c->sv, slot, j->s, &e) == 0) at = n;
    slots_forget(j->c->sv, j->s); /* it goes on */
    j->r.snap_pos = 0;
    if (at < 0) cli_warn(j->c->sv->cli, "slot %d: %s", slot, *e.msg ? e.msg : "no place at that position");
    if (pos > j->n_prompt)
        client_say(j->c, "[snap] end-of-prefill slot=%d cur_pos=%d", slot, at);
    else if (pos == n)
        client_say(j->c, "[snap] inline slot=%d cur_pos=%d", slot, at);
    else
        client_say(j->c, "[snap] boundary slot=%d cur_pos=%d (req snap_pos=%d)", slot, at, pos);
}

/* ---- the prompt ---- */

/* What is wanted against what the context holds; the count where none was said. */
static const char *check_room(struct job *j, struct err *e)
{
    const struct server *sv = j->c->sv;
    const int64_t block = models_block(&sv->set->m, sv->set->block), limit = sv->set->n,
                  room = (int64_t)sv->o.ctx - j->n_prompt - block + 1;
    if (limit > 0 && j->r.n > limit) {
        err_set(e, ERR_USAGE,
                "more tokens than a request may have (expected at most %" PRId64 ", got %" PRId64 ")", limit,
                j->r.n);
        return "token_budget";
    }
    if (j->r.n < 0) j->r.n = limit > 0 && limit < room ? limit : room > 0 ? room : 1;
    if (j->r.n <= room) return NULL;
    err_set(e, ERR_USAGE,
            "does not fit the context of %d (a prompt of %d, %" PRId64 " new tokens and a block of %" PRId64
            ")",
            sv->o.ctx, j->n_prompt, j->r.n, block);
    return "context_overflow";
}

/* The client's last stream is the slot's own, and still stands there: then nothing is read back. */
static bool stands_there(struct job *j)
{
    struct client *c = j->c;
    if (j->r.slot < 0 || !c->kept || c->sv->slots[j->r.slot].of != c->kept) return false;
    j->s = c->kept;
    c->kept = NULL;
    slots_forget(c->sv, j->s);
    return true;
}

static const char *begin_state(struct job *j, struct err *e)
{
    struct state *st = NULL;
    struct state_info info;
    const char *code = stands_there(j) ? stand(j, NULL, e) : open_state(j, &st, &info, e);
    if (j->s) return code ? code : check_room(j, e);
    if (!code) {
        j->s = serve_stream(j->c->sv, e);
        code = j->s ? stand(j, st, e) : "no_memory";
    }
    state_close(st);
    return code ? code : check_room(j, e);
}

static const char *begin_prompt(struct job *j, struct err *e)
{
    struct server *sv = j->c->sv;
    const char *code = check_room(j, e);
    if (code) return code;
    j->s = serve_stream(sv, e);
    if (!j->s) return "no_memory";
    place_snap(j);
    j->keeps = sv->keeps && !j->r.no_cache;
    return j->keeps && use_kept(j, e) ? "prefill_failed" : NULL;
}

int prompt_begin(struct job *j, const char **code, struct err *e)
{
    *code = read_prompt(j, e);
    if (*code) return -1;
    const bool behind = j->r.slot >= 0 || j->r.state;
    *code = behind ? begin_state(j, e) : begin_prompt(j, e);
    if (*code) return -1;
    if (behind) place_snap(j);
    if (j->r.snap_pos && j->snap_at <= j->begun_at) snap(j);
    return 0;
}

int prompt_step(struct job *j, struct err *e)
{
    struct session *s = j->s;
    const int32_t chunk = s->o.chunk, pos = s->n_past, whole = pos - pos % chunk + chunk,
                  end = whole < j->n_prompt ? whole : j->n_prompt;
    if (session_prefill(s, j->prompt + pos, end - pos, NULL, NULL, e)) return -1;
    if (j->keeps && end == whole && keep(j, e)) return -1;
    if (j->r.snap_pos && j->snap_at == end) snap(j);
    return 0;
}
