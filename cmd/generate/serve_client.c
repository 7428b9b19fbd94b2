/* serve_client.c - see serve.h. Descriptors are written where poll says that they take something, a pipe in
 * parts that it takes whole, so nobody who does not read holds the others up; nothing here changes a flag of
 * a descriptor that a parent shares. */
#include "serve.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "../../common/base/mem.h"

enum {
    READ_PIECE = 1 << 16,
    HELD_BYTES = 1 << 18, /* pending output from which a client gets no turn */
    HELD_LINES = 1 << 12, /* bare lines that wait, from which no more is read */
};

/* ---- going out ---- */

static bool takes_some(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    return poll(&p, 1, 0) > 0;
}

static ssize_t write_some(const struct outbox *o)
{
    const size_t n = o->to - o->from;
    if (o->socket) return send(o->fd, o->p + o->from, n, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (!takes_some(o->fd)) {
        errno = EAGAIN;
        return -1;
    }
    return write(o->fd, o->p + o->from, n < PIPE_BUF ? n : PIPE_BUF);
}

int outbox_flush(struct outbox *o)
{
    while (!o->dead && o->from < o->to) {
        const ssize_t n = write_some(o);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
        if (n <= 0)
            o->dead = true;
        else
            o->from += (size_t)n;
    }
    o->from = o->to = 0;
    return o->dead ? -1 : 0;
}

/* What cannot be held for lack of memory is lost with its reader: half a reply would be worse. */
void outbox_put(struct outbox *o, const void *p, size_t n)
{
    if (o->fd < 0 || o->dead) return;
    if (o->from && o->to + n > o->room) {
        memmove(o->p, o->p + o->from, o->to - o->from);
        o->to -= o->from;
        o->from = 0;
    }
    if (o->to + n > o->room) {
        const size_t room = 2 * (o->to + n);
        char *more = mem_realloc(o->p, room);
        if (!more) {
            o->dead = true;
            return;
        }
        o->p = more;
        o->room = room;
    }
    memcpy(o->p + o->to, p, n);
    o->to += n;
}

void client_say(struct client *c, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    if (!c) return;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text - 1, fmt, ap);
    va_end(ap);
    if (n < 0) return;
    if ((size_t)n > sizeof text - 2) n = sizeof text - 2;
    text[n++] = '\n';
    outbox_put(&c->reply, text, (size_t)n);
    outbox_flush(&c->reply);
}

void client_json(struct client *c, json_t *j)
{
    char *text = json_line(j, 9);
    json_decref(j);
    if (!c || !text) {
        if (c) c->reply.dead = true; /* no memory for a reply that somebody waits for */
    } else {
        outbox_put(&c->reply, text, strlen(text));
        outbox_put(&c->reply, "\n", 1);
        outbox_flush(&c->reply);
    }
    free(text);
}

void client_tokens(struct client *c, const int32_t *ids, size_t n)
{
    outbox_put(&c->tokens, ids, n * sizeof *ids);
    outbox_flush(&c->tokens);
}

void client_end_stream(struct client *c)
{
    const int32_t end = -1;
    if (c) client_tokens(c, &end, 1);
}

bool client_takes(const struct client *c)
{
    return outbox_pending(&c->reply) < HELD_BYTES && outbox_pending(&c->tokens) < HELD_BYTES;
}

/* ---- coming in ---- */

struct client *client_new(struct server *sv, int in, int out, int tokens, bool socket)
{
    struct client *c = mem_calloc(1, sizeof *c);
    if (!c) return NULL;
    *c = (struct client){.sv = sv,
                         .number = ++sv->n_clients,
                         .in = in,
                         .reply = {.fd = out, .socket = socket},
                         .tokens = {.fd = tokens}};
    c->last = &c->first;
    c->next = sv->clients;
    sv->clients = c;
    return c;
}

void client_free(struct client *c)
{
    struct client **at = &c->sv->clients;
    while (*at != c) at = &(*at)->next;
    *at = c->next;
    while (c->first) {
        struct line *l = c->first;
        c->first = l->next;
        request_free(&l->r);
        mem_free(l);
    }
    for (struct line_wait **w = &c->sv->waits, *x; (x = *w);) {
        if (x->c != c || x->json) {
            if (x->c == c) x->c = NULL; /* what was asked for is done, and nobody told */
            w = &x->next;
            continue;
        }
        *w = x->next;
        mem_free(x);
    }
    if (c->kept) serve_drop(c->sv, c->kept);
    if (c->reply.socket) close(c->reply.fd);
    c->sv->full = false;
    mem_free(c->reply.p);
    mem_free(c->tokens.p);
    mem_free(c->buf);
    mem_free(c);
}

/* A line that is complete: one of JSON acts now, a bare one waits behind those before it. */
static void take_line(struct client *c, const char *p, size_t n)
{
    struct err e = {0};
    struct line *l = mem_calloc(1, sizeof *l);
    if (!l || request_read(&l->r, p, n, &e)) {
        cli_warn(c->sv->cli, "%s: a client is given up", l ? e.msg : "out of memory (a request)");
        if (l) request_free(&l->r);
        mem_free(l);
        c->gone = true;
        return;
    }
    if (l->r.kind != REQUEST_NONE) c->sv->n_requests++;
    if (l->r.kind == REQUEST_NONE || l->r.json) {
        if (l->r.json) line_json(c, &l->r);
        request_free(&l->r);
        mem_free(l);
        return;
    }
    *c->last = l;
    c->last = &l->next;
    c->n_lines++;
}

/* Blanks alone, so far, are the beginning of a line that asks for something. */
static void too_long(struct client *c)
{
    size_t at = 0;
    while (at < c->used && strchr(" \t\r", c->buf[at])) at++;
    if (at == c->used) *c->buf = '\1';
    take_line(c, c->buf, c->used);
    c->skip = true;
    c->used = c->seen = 0;
}

static void take_lines(struct client *c)
{
    size_t from = 0;
    char *end;
    while (!c->gone && (end = memchr(c->buf + c->seen, '\n', c->used - c->seen))) {
        const size_t at = (size_t)(end - c->buf);
        if (!c->skip) take_line(c, c->buf + from, at - from);
        c->skip = false;
        from = c->seen = at + 1;
    }
    c->used -= from;
    memmove(c->buf, c->buf + from, c->used);
    c->seen = c->used;
    if (c->skip) c->used = c->seen = 0;
    if (c->used > REQUEST_MAX_LINE) too_long(c);
}

void client_read(struct client *c)
{
    if (c->in < 0 || c->n_lines >= HELD_LINES) return;
    if (c->room - c->used < READ_PIECE) {
        const size_t room = c->room ? 2 * c->room : 2 * READ_PIECE;
        char *more = mem_realloc(c->buf, room);
        if (!more) {
            c->gone = true;
            return;
        }
        c->buf = more;
        c->room = room;
    }
    const ssize_t n = c->reply.socket ? recv(c->in, c->buf + c->used, READ_PIECE, MSG_DONTWAIT)
                                      : read(c->in, c->buf + c->used, READ_PIECE);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (n <= 0) { /* no more comes; what was asked for is still answered */
        c->in = -1;
        if (c->used && !c->skip) take_line(c, c->buf, c->used);
        c->used = c->seen = 0;
        if (n < 0 && c->reply.socket) c->gone = true;
        return;
    }
    c->used += (size_t)n;
    take_lines(c);
}

/* ---- the socket ---- */

/* What is at path may be replaced: nothing, or a socket that nobody listens to any more. */
static int may_take(const struct sockaddr_un *a, struct err *e)
{
    struct stat st;
    if (lstat(a->sun_path, &st)) return errno == ENOENT ? 0 : err_errno(e, "%s", a->sun_path);
    if (!S_ISSOCK(st.st_mode))
        return err_set(e, ERR_USAGE, "%s: exists already, and is no socket", a->sun_path);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int rc = fd < 0 ? 0 : connect(fd, (const struct sockaddr *)a, sizeof *a);
    const bool refused = rc && errno == ECONNREFUSED;
    if (fd >= 0) close(fd);
    return refused ? 0 : err_set(e, ERR_USAGE, "%s: another process listens there", a->sun_path);
}

/* It listens before it has its name, so whoever sees the name can connect. */
int serve_listen(const char *path, struct err *e)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX}, own = a;
    const int n = snprintf(own.sun_path, sizeof own.sun_path, "%s.%ld", path, (long)getpid());
    if (!*path || n < 0 || (size_t)n >= sizeof own.sun_path)
        return err_set(e, ERR_USAGE, "--listen: not the name of a socket (expected 1 to %zu bytes, got '%s')",
                       sizeof own.sun_path - 12, path);
    memcpy(a.sun_path, path, strlen(path) + 1);
    if (may_take(&a, e)) return -1;
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return err_errno(e, "%s", path);
    const mode_t before = umask(0177); /* the owner's alone, from its first moment on */
    int rc = bind(fd, (const struct sockaddr *)&own, sizeof own);
    umask(before);
    const bool bound = rc == 0;
    if (rc == 0) rc = listen(fd, 64);
    if (rc == 0) rc = rename(own.sun_path, path);
    if (rc == 0) return fd;
    err_errno(e, "%s", path);
    if (bound) unlink(own.sun_path);
    close(fd);
    return -1;
}

void serve_accept(struct server *sv)
{
    for (;;) {
        const int fd = accept4(sv->listen, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0) { /* nobody, or he has gone, or he waits until somebody goes */
            sv->full = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
            return;
        }
        if (!client_new(sv, fd, fd, -1, true)) close(fd);
    }
}
