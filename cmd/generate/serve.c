/* serve.c - see serve.h: the loop. */
#include "serve.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../common/base/mem.h"
#include "../../common/run/span.h"

/* ---- flags ---- */

void serve_check_flags(struct settings *set, const struct cli *c)
{
    static const char *const alone[] = {"-o",         "--force",       "--state",
                                        "--append",   "--save-state",  "--stats",
                                        "--logprobs", "--draft-trace", "--draft-logits",
                                        "--stop-text"},
                             *const own[] = {"--stream-fd", "--root", "--streams", "--slot-bytes",
                                             "--time-limit"};
    struct serve_flags *f = &set->serve;
    if (f->listen) f->on = true;
    for (size_t i = 0; i < sizeof own / sizeof *own && !f->on; i++)
        if (cli_given(c, own[i])) cli_usage_error(c, "%s needs --serve or --listen PATH", own[i]);
    if (!f->on) return;
    for (size_t i = 0; i < sizeof alone / sizeof *alone; i++)
        if (cli_given(c, alone[i]))
            cli_usage_error(c, "%s is for one run (with --serve requests say it)", alone[i]);
    if (f->listen && f->stream_fd >= 0)
        cli_usage_error(c, "--stream-fd is for requests on stdin (with --listen tokens come as JSON)");
    if (f->stream_fd >= 0 && fcntl(f->stream_fd, F_GETFD) < 0)
        cli_usage_error(c, "--stream-fd: no such descriptor (expected one that is open, got %d)",
                        f->stream_fd);
    if (!f->streams) f->streams = f->listen ? 2 : 1;
}

/* ---- engine and streams ---- */

void serve_drop(struct server *sv, struct session *s)
{
    slots_forget(sv, s);
    session_free(s);
    sv->open--;
}

struct session *serve_stream(struct server *sv, struct err *e)
{
    struct session *s = NULL;
    struct client *oldest = NULL;
    for (struct client *c = sv->clients; c && sv->open >= sv->set->serve.streams; c = c->next)
        if (c->kept && (!oldest || c->kept_when < oldest->kept_when)) oldest = c;
    if (oldest) {
        serve_drop(sv, oldest->kept);
        oldest->kept = NULL;
    }
    if (session_open(&s, sv->g, e)) return NULL;
    sv->open++;
    return s;
}

void serve_close_engine(struct server *sv)
{
    engine_close(sv->g);
    sv->g = NULL;
}

/* All streams that may run find their memory now, or never. */
static int open_streams(struct server *sv, struct err *e)
{
    const int32_t n = sv->set->serve.streams;
    struct session **s = mem_calloc((size_t)n, sizeof *s);
    int rc = s ? 0 : err_set(e, ERR_IO, "out of memory (streams)");
    for (int32_t i = 0; i < n && rc == 0; i++) rc = session_open(&s[i], sv->g, e);
    if (rc == 0) {
        const uint64_t rows = span_bytes(s[0], sv->o.chunk), point = span_point_bytes(s[0]);
        sv->keeps = sv->budget && span_possible(s[0]);
        if (rows != sv->span_bytes || point != sv->point_bytes)
            prefix_clear(&sv->prefix); /* a drafter more or less */
        sv->span_bytes = rows;
        sv->point_bytes = point;
    }
    for (int32_t i = 0; i < n && s && s[i]; i++) session_free(s[i]);
    mem_free(s);
    return rc;
}

int serve_open_engine(struct server *sv, struct err *e)
{
    struct models *m = &sv->set->m;
    sv->o.tree = m->drafter ? sv->set->plan.tree_most : 0;
    if (models_engine(m, sv->cli, &sv->o, models_sources(m), sv->set->serve.streams, &sv->g, e)) return -1;
    if (open_streams(sv, e) == 0) return 0;
    serve_close_engine(sv);
    return -1;
}

static int check_all(void *ctx, struct err *e)
{
    struct server *sv = ctx;
    struct settings *set = sv->set;
    const struct desc *t = set->m.target->d, *d = set->m.drafter ? set->m.drafter->d : NULL;
    const int32_t ctx_n = set->ctx ? set->ctx : t->n_ctx_train;
    if (ctx_n < 1)
        return err_set(e, ERR_USAGE, "--ctx N is missing, and the target does not say its context");
    if (stops_read(set, &sv->stops, &sv->n_stops, e) || sampling_flags_open(&set->sampling, &set->m, e) ||
        lookup_flags_open(&set->lookup, &set->m, e))
        return -1;
    sv->o = (struct session_options){.ctx = ctx_n,
                                     .chunk = set->chunk,
                                     .block = set->block,
                                     .draft_window = set->draft_window,
                                     .draft_greedy = cli_draft_greedy(sv->cli, set->draft_sampling),
                                     .look = set->lookup.look,
                                     .tree = set->plan.tree_most,
                                     .check_layers = set->m.check_layers};
    if (models_kv(&set->m, NULL, &sv->o, e) || models_check_options(&set->m, &sv->o, e)) return -1;
    models_check_length(&set->m, sv->cli, ctx_n);
    return (d || sv->o.look) && spec_width_check(set->plan.rows, sv->o.block, sv->o.look, e) ? -1 : 0;
}

static int open_models(struct server *sv, struct err *e)
{
    struct settings *set = sv->set;
    struct err none = {0};
    set->m.known = (struct session_options){.ctx = set->ctx ? set->ctx : 1,
                                            .chunk = set->chunk,
                                            .block = set->block,
                                            .draft_window = set->draft_window,
                                            .tree = set->plan.tree_most,
                                            .check_layers = set->m.check_layers};
    set->m.check = check_all;
    set->m.check_ctx = sv;
    if (plan_flags_read(&set->plan, e) || lookup_flags_read(&set->lookup, e) ||
        models_open(&set->m, sv->cli, e))
        return -1;
    if (tok_open(&sv->tok, set->m.target->file, &none)) { /* text is then refused, ids are not */
        sv->tok = NULL;
        cli_detail(sv->cli, "no text: %s", none.msg);
    }
    prefix_init(&sv->prefix, sv->o.chunk, sv->budget);
    return serve_open_engine(sv, e);
}

/* ---- signals ---- */

static int wake[2] = {-1, -1};
static volatile sig_atomic_t stopped_by;

/* The first one ends the loop; a second ends the process as before. */
static void on_stop(int sig)
{
    const int before = errno;
    stopped_by = sig;
    if (write(wake[1], "", 1) < 0) errno = before; /* the pipe is full: it wakes all the same */
    errno = before;
}

static int catch_signals(struct err *e)
{
    static const int sigs[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction old, sa = {.sa_handler = on_stop, .sa_flags = (int)SA_RESETHAND | SA_RESTART},
                          none = {.sa_handler = SIG_IGN};
    if (pipe2(wake, O_CLOEXEC | O_NONBLOCK)) return err_errno(e, "signals");
    sigemptyset(&sa.sa_mask);
    for (size_t i = 0; i < sizeof sigs / sizeof *sigs; i++)
        if (sigaction(sigs[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN) sigaction(sigs[i], &sa, NULL);
    sigaction(SIGPIPE, &none, NULL);
    return 0;
}

/* ---- who is next ---- */

/* Jobs whose client went have nobody to tell. */
static void reap_clients(struct server *sv)
{
    for (struct client *c = sv->clients, *next; c; c = next) {
        next = c->next;
        if (c->reply.socket && c->reply.dead) c->gone = true;
        bool busy = c->first || outbox_pending(&c->reply) || outbox_pending(&c->tokens);
        for (struct job *j = sv->jobs; j; j = j->next) {
            busy |= j->c == c;
            if (j->c != c || !c->gone) continue;
            j->end = "client_gone";
            j->c = NULL;
        }
        for (struct line_wait *w = sv->waits; w; w = w->next) busy |= w->c == c;
        /* The parent's own client stays: its kept stream and its descriptors are the process's. */
        if (c->gone || (c->reply.socket && c->in < 0 && !busy)) client_free(c);
    }
}

/* Who begins next: the first request of the client that began one the longest ago. So no client waits behind
 * all that another has asked for. */
static struct job *next_waiting(const struct server *sv)
{
    struct job *next = NULL;
    uint64_t begun = 0;
    for (struct job *j = sv->jobs; j; j = j->next) {
        const uint64_t b = j->c ? j->c->begun : 0;
        if (j->phase != JOB_WAITS || (next && b >= begun)) continue;
        next = j;
        begun = b;
    }
    return next;
}

static void start_jobs(struct server *sv)
{
    for (struct job *j = sv->jobs, *next; j; j = next) {
        next = j->next;
        if (!j->end && j->deadline > 0 && cli_seconds() > j->deadline) j->end = "timeout";
        if (j->phase == JOB_WAITS && j->end) job_end(j, sv);
    }
    for (struct job *j; sv->running < sv->set->serve.streams && !sv->waits && !sv->alone;) {
        j = next_waiting(sv);
        if (!j || (j->r.kind == REQUEST_COMPRESS && sv->running)) break; /* it will run alone */
        if (j->c) j->c->begun = ++sv->n_begun;
        job_begin(j, sv); /* runs, or has failed and is gone */
    }
}

static bool can_run(const struct job *j)
{
    return j->phase != JOB_WAITS && (j->end || !j->c || client_takes(j->c));
}

static struct job *next_turn(struct server *sv)
{
    struct job *j = sv->turn && sv->turn->next ? sv->turn->next : sv->jobs;
    for (struct job *first = j; j;) {
        if (can_run(j)) return j;
        j = j->next ? j->next : sv->jobs;
        if (j == first) break;
    }
    return NULL;
}

/* ---- waiting ---- */

struct watch {
    struct pollfd *p;
    int n, room;
};

static int watch(struct watch *w, int fd, short events)
{
    if (w->n == w->room) {
        const int room = 2 * w->room + 16;
        struct pollfd *more = mem_realloc(w->p, (size_t)room * sizeof *more);
        if (!more) return -1;
        w->p = more;
        w->room = room;
    }
    w->p[w->n++] = (struct pollfd){.fd = fd, .events = events};
    return 0;
}

static int fd_of(const struct outbox *o)
{
    return o->dead ? -1 : o->fd;
}

static short wants_out(const struct outbox *o)
{
    return outbox_pending(o) ? POLLOUT : 0;
}

/* Three places a client: what it says, replies, tokens. */
static int watch_all(struct watch *w, const struct server *sv)
{
    w->n = 0;
    if (watch(w, wake[0], POLLIN) || watch(w, sv->full ? -1 : sv->listen, POLLIN)) return -1;
    for (const struct client *c = sv->clients; c; c = c->next) {
        const bool reads = c->in >= 0 && client_takes(c);
        if (watch(w, reads ? c->in : -1, POLLIN) || watch(w, fd_of(&c->reply), wants_out(&c->reply)) ||
            watch(w, fd_of(&c->tokens), wants_out(&c->tokens)))
            return -1;
    }
    return 0;
}

static void see_client(struct client *c, const struct pollfd *p)
{
    if (p[0].revents) client_read(c);
    if (p[1].revents & POLLOUT) outbox_flush(&c->reply);
    if (p[2].revents & POLLOUT) outbox_flush(&c->tokens);
    if (p[2].revents & (POLLERR | POLLNVAL)) c->tokens.dead = true;
    if (!(p[1].revents & (POLLERR | POLLHUP | POLLNVAL))) return;
    /* What it still said counts; then nobody is there. */
    for (int i = 0; c->reply.socket && c->in >= 0 && !c->gone && i < 1 << 10; i++) client_read(c);
    if (c->reply.socket)
        c->gone = true;
    else
        c->reply.dead = true;
}

static int wait_ms(const struct server *sv, bool busy)
{
    double first = 0;
    if (busy) return 0;
    for (const struct job *j = sv->jobs; j; j = j->next)
        if (j->deadline > 0 && !j->end && (first == 0 || j->deadline < first)) first = j->deadline;
    const double ms = first > 0 ? (first - cli_seconds()) * 1000 + 1 : -1;
    return first == 0 ? -1 : ms < 0 ? 0 : ms > 1e6 ? 1000000 : (int)ms;
}

static int see_all(struct server *sv, struct watch *w, bool busy, struct err *e)
{
    if (watch_all(w, sv)) return err_set(e, ERR_IO, "out of memory (clients)");
    const int rc = poll(w->p, (nfds_t)w->n, wait_ms(sv, busy));
    if (rc < 0 && errno != EINTR) return err_errno(e, "poll");
    if (rc <= 0) return 0;
    int i = 2;
    for (struct client *c = sv->clients; c; c = c->next, i += 3) see_client(c, w->p + i);
    if (w->p[1].revents) serve_accept(sv);
    return 0;
}

/* ---- the loop ---- */

/* Of requests on stdin: nothing is left to do, and nothing will come. */
static bool done(const struct server *sv)
{
    const struct client *c = sv->clients;
    return sv->listen < 0 && !sv->jobs && !sv->waits && (!c || (c->in < 0 && !c->first));
}

static bool lines(struct server *sv)
{
    bool any = false;
    for (struct client *c = sv->clients; c && !sv->quits; c = c->next)
        for (int i = 0; i < 64 && !sv->quits && client_takes(c) && line_next(c); i++) any = true;
    return any;
}

static int loop(struct server *sv, struct err *e)
{
    struct watch w = {0};
    int rc = 0;
    while (rc == 0 && !sv->quits && !stopped_by && !sv->lost.code && !done(sv)) {
        bool busy = lines(sv);
        line_parts(sv);
        start_jobs(sv);
        struct job *j = next_turn(sv);
        if (j) {
            sv->turn = j;
            job_step(j, sv);
        }
        busy |= j || next_turn(sv) != NULL || (sv->waits && !sv->running) || done(sv);
        for (const struct client *c = sv->clients; c && !busy; c = c->next)
            busy = c->first && !c->job && client_takes(c) && !sv->waits && c->first->r.kind != REQUEST_QUIT;
        rc = see_all(sv, &w, busy, e);
        reap_clients(sv);
    }
    mem_free(w.p);
    return rc;
}

/* Everybody is told; whoever reads gets it. */
static void wind_up(struct server *sv)
{
    const double until = cli_seconds() + 5;
    const bool patient = done(sv);
    for (struct job *j = sv->jobs; j; j = sv->jobs) {
        j->end = sv->lost.code ? "device_lost" : "cancelled";
        job_end(j, sv);
    }
    for (struct client *c = sv->clients; c; c = c->next)
        for (struct line *l = c->first; l; l = l->next)
            if (l->r.kind != REQUEST_QUIT) reply_error(c, &l->r, "cancelled", "");
    for (struct client *c = sv->clients; c; c = c->next)
        for (int i = 0; i < 2; i++) {
            struct outbox *o = i ? &c->tokens : &c->reply;
            while (outbox_flush(o) == 0 && outbox_pending(o) && !stopped_by &&
                   (patient || cli_seconds() < until)) {
                struct pollfd p = {.fd = o->fd, .events = POLLOUT};
                poll(&p, 1, 100);
            }
        }
    while (sv->clients) client_free(sv->clients);
    while (sv->waits) {
        struct line_wait *x = sv->waits;
        sv->waits = x->next;
        request_free(&x->l->r);
        mem_free(x->l);
        mem_free(x);
    }
}

static int open_all(struct server *sv, struct err *e)
{
    const struct serve_flags *f = &sv->set->serve;
    slots_init(sv);
    if (f->root && (sv->root = open(f->root, O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0)
        return err_errno(e, "--root: %s", f->root);
    if (catch_signals(e) || open_models(sv, e)) return -1;
    if (f->listen) return (sv->listen = serve_listen(f->listen, e)) < 0 ? -1 : 0;
    struct client *c = client_new(sv, STDIN_FILENO, STDOUT_FILENO, f->stream_fd, false);
    if (!c) return err_set(e, ERR_IO, "out of memory (a client)");
    client_say(c, "dflash-generate %s [daemon] ready", cli_version());
    return 0;
}

static void close_all(struct server *sv)
{
    wind_up(sv);
    if (sv->listen >= 0) {
        close(sv->listen);
        unlink(sv->set->serve.listen);
    }
    slots_close(sv);
    prefix_clear(&sv->prefix);
    serve_close_engine(sv);
    tok_close(sv->tok);
    mem_free(sv->stops);
    if (sv->root >= 0) close(sv->root);
}

int serve(struct settings *set, const struct cli *c)
{
    struct err e = {0};
    struct server sv = {
        .cli = c, .set = set, .listen = -1, .root = -1, .budget = (uint64_t)set->serve.slot_bytes};
    sv.started = cli_seconds();
    int rc = open_all(&sv, &e);
    if (rc == 0 && set->serve.listen)
        cli_note(c, "%s [daemon] ready at %s", cli_version(), set->serve.listen);
    if (rc == 0) rc = loop(&sv, &e);
    if (sv.lost.code && rc == 0) {
        e = sv.lost;
        rc = -1;
    }
    close_all(&sv);
    return rc ? cli_fail(c, &e) : 0;
}

int serve_stopped(void)
{
    return stopped_by;
}
