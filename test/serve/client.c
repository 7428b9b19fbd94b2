/* client.c - a client of dflash-generate --serve: random lines, and whether every reply is the right one.
 *
 * usage: client lines SEED COUNT DIR PROGRAM [FLAG...]   starts it, talks by pipes: stdin, stdout, stream
 *        client socket SEED COUNT DIR PATH               talks JSON through a socket
 *        client talk PATH                                stdin to the socket, what comes back to stdout
 *
 * DIR holds prompts and what dflash-generate alone writes for them: NAME.tok, and NAME.K.out for the K-th
 * setting (settings below); a.kept: the tokens of a that dflash-prefill --compress 0.8 keeps. The lines are
 * drawn from the seed. Checked: of bare lines, that the stream has exactly one -1 for every line that streams
 * and between them the tokens of that line, and that replies come in order, each of the right form; of JSON
 * lines, that each request has one reply that ends it, and the tokens and text of its setting. Exit status 0,
 * or 1 with what was wrong. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROMPTS = 4, SETTINGS = 3, TOKENS = 24, MOST_LINES = 100000, SLOTS = 5 };

static const char *const prompt_name[PROMPTS] = {"a", "b", "c", "d"}; /* b and c begin as a does */
static const char *const samp[SETTINGS] = {"", " samp=0.8,0.95,40,1.1,7", " samp=1.0,1.0,0,1.0,9,0.2,0.1"};
static const char *const keys[SETTINGS] = {
    "", ",\"temp\":0.8,\"top_p\":0.95,\"top_k\":40,\"repeat_penalty\":1.1,\"seed\":7",
    ",\"temp\":1,\"seed\":9,\"frequency_penalty\":0.2,\"presence_penalty\":0.1"};

struct tokens {
    int32_t *v;
    size_t n;
};

static uint64_t rnd_state;
static uint32_t rnd(uint32_t below)
{
    uint64_t z = rnd_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 32) % below;
}

static void fail(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
static void fail(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "client: ");
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, "\n");
    va_end(ap);
    exit(1);
}

static void *room(size_t n)
{
    void *p = calloc(1, n ? n : 1);
    if (!p) fail("out of memory");
    return p;
}

/* ---- what is expected ---- */

static const char *dir;
static struct tokens prompts[PROMPTS], expected[PROMPTS][SETTINGS], kept;

static struct tokens read_tokens(const char *name)
{
    char path[4096];
    struct tokens t = {0};
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "rb");
    if (!f) fail("%s: %s", path, strerror(errno));
    t.v = room(1 << 20);
    t.n = fread(t.v, 4, 1 << 18, f);
    fclose(f);
    return t;
}

static void read_expected(void)
{
    char name[64];
    kept = read_tokens("a.kept");
    for (int p = 0; p < PROMPTS; p++) {
        snprintf(name, sizeof name, "%s.tok", prompt_name[p]);
        prompts[p] = read_tokens(name);
        for (int k = 0; k < SETTINGS; k++) {
            snprintf(name, sizeof name, "%s.%d.out", prompt_name[p], k);
            expected[p][k] = read_tokens(name);
            if (expected[p][k].n != TOKENS) fail("%s: %zu tokens", name, expected[p][k].n);
        }
    }
}

/* ---- lines that were sent ---- */

enum what {
    TOKENS_ALL,  /* n tokens, then -1; ok */
    TOKENS_SOME, /* a beginning of them: it may be cancelled */
    ANY_TOKENS,  /* of a random seed */
    KEPT,        /* what stays of a */
    NOTHING,     /* -1 alone; err, [park], [unpark] or no line at all */
    NO_STREAM,   /* nothing there */
};

struct sent {
    enum what what;
    int prompt, setting, n;
    const char *reply; /* what the line's last reply begins with; NULL: there is none */
    const char *other; /* or with this */
    bool json;
    /* of JSON: */
    struct tokens got;
    int ended; /* replies that end it */
};

static struct sent *sent;
static int n_sent;
static bool drafts, trees; /* the process has a drafter; room for trees */
static const char *target;
static bool parked, undrafted;                  /* target, drafter, when the lines before were read */
static bool slot_full[SLOTS], slot_bare[SLOTS]; /* bare: without a drafter's context */
static int slot_prompt[SLOTS], slot_pos[SLOTS];
static char *out;
static size_t n_out, room_out;

static void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *fmt, ...)
{
    va_list ap;
    if (room_out - n_out < 8192) {
        room_out = 2 * room_out + 65536;
        out = realloc(out, room_out);
        if (!out) fail("out of memory");
    }
    va_start(ap, fmt);
    n_out += (size_t)vsnprintf(out + n_out, 8192, fmt, ap);
    va_end(ap);
    out[n_out++] = '\n';
}

static struct sent *add(enum what what, const char *reply)
{
    if (n_sent == MOST_LINES) fail("too many lines");
    sent[n_sent] = (struct sent){.what = what, .reply = reply};
    return &sent[n_sent++];
}

static void say_prompt(bool restore)
{
    const int p = (int)rnd(PROMPTS), k = (int)rnd(SETTINGS), n = (int)rnd(TOKENS + 1), s = (int)rnd(SLOTS);
    char snap[64] = "";
    struct sent *x = add(parked ? NOTHING : TOKENS_ALL, parked ? "err target_parked" : "ok N=");
    x->prompt = p, x->setting = k, x->n = n;
    if (restore) {
        say("RESTORE %d %s/%s.tok %d%s", s, dir, prompt_name[p], n, samp[k]);
        if (parked) return;
        const bool bare = slot_full[s] && slot_bare[s] && !undrafted;
        const bool fits = slot_full[s] && !bare && slot_pos[s] <= (int)prompts[p].n &&
                          !memcmp(prompts[p].v, prompts[slot_prompt[s]].v, (size_t)slot_pos[s] * 4);
        if (fits) return;
        x->what = NOTHING;
        x->reply = bare           ? "err invalid_snapshot_slot"
                   : slot_full[s] ? "err prefix_mismatch"
                                  : "err empty_slot";
        return;
    }
    if (!parked && rnd(4) == 0) { /* the prompt's end, or a multiple of the chunk of 64 */
        const int pos = rnd(2) ? (int)prompts[p].n : 64 * (1 + (int)rnd(3));
        if (pos <= (int)prompts[p].n) {
            snprintf(snap, sizeof snap, " snap=%d:%d", pos, s);
            slot_full[s] = true, slot_prompt[s] = p, slot_pos[s] = pos, slot_bare[s] = undrafted;
        }
    }
    say("%s/%s.tok %d%s%s", dir, prompt_name[p], n, snap, samp[k]);
}

static void say_odd(void)
{
    static const char *const odd[] = {"nonsense",
                                      "Restore 1 ./x 3",
                                      "./a.tok",
                                      "./a.tok x",
                                      "./a.tok -1",
                                      "./a.tok 3 4 5",
                                      "RESTORE",
                                      "RESTORE 77 ./a 3",
                                      "park nothing",
                                      "unpark target now",
                                      "free lunch",
                                      "./a.tok 3 samp=1,2",
                                      "./a.tok 3 samp=a,b,c,d,e",
                                      "./a.tok 3 snap=x",
                                      "\001\002",
                                      "0x41",
                                      "./a.tok 99999999999999999999",
                                      "compress",
                                      "compress ./a.tok 1001 ./x",
                                      "compress ./a.tok 500 ./x parked",
                                      "compress ./none 500 ./x nopark",
                                      "SNAPSHOT_THIN 3",
                                      "quit now"};
    static const char *const quiet[] = {"SNAPSHOT",       "SNAPSHOT 64",  "FREE_SNAPSHOT x",
                                        "LIST_SLOTS now", "generate a b", "generate ./a 3x ./b"};
    if (rnd(3)) {
        const uint32_t i = rnd(sizeof odd / sizeof *odd);
        say("%s", odd[i]);
        /* a line that never streams gets no -1, whatever stands behind it */
        add(strcmp(odd[i], "quit now") ? NOTHING : NO_STREAM, "err ");
    } else {
        say("%s", quiet[rnd(sizeof quiet / sizeof *quiet)]);
        add(NO_STREAM, "err ");
    }
}

static void say_slots(void)
{
    const int s = (int)rnd(SLOTS);
    if (rnd(2)) {
        say("FREE_SNAPSHOT %d", s);
        add(NO_STREAM, "[snap] freed slot=");
        slot_full[s] = false;
    } else {
        say("LIST_SLOTS");
        add(NO_STREAM, "[snap] slots=");
    }
}

/* The target judges; it may be parked. */
static void say_compress(void)
{
    if (rnd(4) == 0) {
        say("compress %s/a.tok 800 %s/a.tok", dir, dir); /* no model */
        add(NOTHING, "err adapter_unavailable");
        return;
    }
    say("compress %s/a.tok 800 %s%s", dir, target, rnd(2) ? " nopark" : "");
    add(KEPT, NULL);
}

/* Only where nothing that is sent beside it cares. */
static void say_park(void)
{
    static const char *const what[] = {"draft", "target", "all", ""};
    const uint32_t w = rnd(4);
    say("park %s", what[w]);
    add(NOTHING, NULL);
    parked |= w > 0, undrafted |= drafts && w != 1;
    if (rnd(3)) return;
    say("unpark");
    add(NOTHING, NULL);
    parked = undrafted = false;
}

static void say_json(void)
{
    const int p = (int)rnd(PROMPTS), k = (int)rnd(SETTINGS), n = 1 + (int)rnd(TOKENS);
    static const char *const odd[] = {"{\"id\":%d,\"op\":\"nonsense\"}",
                                      "{\"id\":%d}",
                                      "{\"id\":%d,\"prompt\":[1,\"x\"]}",
                                      "{\"id\":%d,\"prompt\":[1],\"top\":3}",
                                      "{\"id\":%d,\"prompt\":[99999999]}",
                                      "{\"id\":%d,\"file\":\"/nowhere\",\"n\":1}",
                                      "{\"id\":%d,\"op\":\"save\",\"slot\":63,\"file\":\"x\"}",
                                      "{\"id\":%d,\"prompt\":[1],\"n\":100000000}",
                                      "{\"id\":%d,\"restore\":61,\"append\":true}"};
    const int id = n_sent;
    if (rnd(8) == 0) say("{\"op\":\"stats\"}");
    struct sent *x = add(TOKENS_ALL, NULL);
    x->json = true;
    x->prompt = p, x->setting = k, x->n = n;
    x->got.v = room(4 * TOKENS);
    if (rnd(6) == 0) {
        char text[128];
        x->what = NOTHING;
        snprintf(text, sizeof text, odd[rnd(sizeof odd / sizeof *odd)], id);
        say("%s", text);
        return;
    }
    say("{\"id\":%d,\"file\":\"%s/%s.tok\",\"n\":%d%s%s%s}", id, dir, prompt_name[p], n, keys[k],
        rnd(3) ? "" : ",\"cache\":false",
        rnd(3)  ? ""
        : trees ? ",\"tree\":9"
                : ",\"width\":3");
    if (rnd(5)) return;
    x->what = TOKENS_SOME;
    say("{\"op\":\"cancel\",\"cancel\":%d}", id);
}

static void say_line(bool bare, bool parks)
{
    const uint32_t r = rnd(100);
    if (!bare || r < 15) {
        if (parks) return; /* what a JSON line meets then hangs on when it is read */
        say_json();
    } else if (r < 50) {
        say_prompt(false);
    } else if (r < 62) {
        say_prompt(true);
    } else if (r < 78) {
        say_odd();
    } else if (r < 81) {
        say_compress();
    } else if (r < 88) {
        say_slots();
    } else if (r < 92) {
        say("%s/a.tok %d samp=0.9,1,0,1,0", dir, 1 + (int)rnd(9));
        struct sent *x = add(parked ? NOTHING : ANY_TOKENS, parked ? "err target_parked" : "ok N=");
        x->n = 9;
    } else if (r < 96) {
        say("%s/none.tok 3", dir);
        add(NOTHING, parked ? "err target_parked" : "err empty_prompt");
    } else if (parks) {
        say_park();
    }
}

/* ---- replies ---- */

static struct tokens stream;
static char *said;
static size_t n_said, room_said, room_stream;
static int at_reply; /* the line whose reply comes next */

static int number_behind(const char *line, const char *key)
{
    const char *p = strstr(line, key);
    return p ? atoi(p + strlen(key)) : -1;
}

static void take_json(const char *line)
{
    if (!strncmp(line, "{\"op\":", 6)) return;
    const int id = number_behind(line, "\"id\":");
    if (id < 0) {
        if (strstr(line, "\"op\":\"cancel\"")) return;
        fail("a reply without an id: %s", line);
    }
    if (id >= n_sent || !sent[id].json) fail("a reply with another's id: %s", line);
    struct sent *x = &sent[id];
    if (x->ended) fail("a reply behind the last one: %s", line);
    const char *p = strstr(line, "\"tokens\":[");
    for (p = p ? p + 10 : NULL; p && *p != ']';) {
        if (x->got.n == TOKENS) fail("too many tokens: %s", line);
        x->got.v[x->got.n++] = (int32_t)strtol(p, (char **)&p, 10);
        if (*p == ',') p++;
    }
    if (strstr(line, "\"done\":true")) {
        x->ended++;
        if (x->what == NOTHING) fail("expected an error: %s", line);
        if (number_behind(line, "\"generated_tokens\":") != (int)x->got.n)
            fail("%zu tokens came: %s", x->got.n, line);
    } else if (strstr(line, "\"error\":")) {
        x->ended++;
        if (x->what != NOTHING) fail("line %d: %s", id, line);
    }
}

static void take_reply(const char *line)
{
    if (*line == '{') return take_json(line);
    if (strstr(line, "[daemon] ready")) return;
    if (!strncmp(line, "[park]", 6) || !strncmp(line, "[unpark]", 8)) return;
    if (!strncmp(line, "[snap] inline", 13) || !strncmp(line, "[snap] boundary", 15)) {
        if (strstr(line, "cur_pos=-1")) fail("no snapshot: %s", line);
        return;
    }
    while (at_reply < n_sent && !sent[at_reply].reply) at_reply++;
    if (at_reply == n_sent) fail("a reply to nothing: %s", line);
    const struct sent *x = &sent[at_reply++];
    if (strncmp(line, x->reply, strlen(x->reply)))
        fail("line %d: expected %s, got %s", at_reply - 1, x->reply, line);
}

static void take_replies(void)
{
    char *end, *p = said;
    while ((end = memchr(p, '\n', n_said - (size_t)(p - said)))) {
        *end = 0;
        take_reply(p);
        p = end + 1;
    }
    n_said -= (size_t)(p - said);
    memmove(said, p, n_said);
}

static bool begins(const int32_t *v, size_t n, const struct sent *x)
{
    const struct tokens *t = &expected[x->prompt][x->setting];
    return n <= t->n && !memcmp(v, t->v, n * sizeof *v);
}

static void check_stream(void)
{
    size_t at = 0;
    for (int i = 0; i < n_sent; i++) {
        const struct sent *x = &sent[i];
        size_t n = 0;
        if (x->json || x->what == NO_STREAM) continue;
        while (at + n < stream.n && stream.v[at + n] >= 0) n++;
        if (at + n == stream.n || stream.v[at + n] != -1) fail("line %d: the stream ends without a -1", i);
        const bool good = x->what == NOTHING      ? n == 0
                          : x->what == KEPT       ? n == kept.n && !memcmp(stream.v + at, kept.v, 4 * n)
                          : x->what == TOKENS_ALL ? n == (size_t)x->n && begins(stream.v + at, n, x)
                                                  : n <= (size_t)x->n;
        if (!good)
            fail("line %d: %zu tokens (expected %d of prompt %d, setting %d)", i, n, x->n, x->prompt,
                 x->setting);
        at += n + 1;
    }
    if (at != stream.n) fail("%zu tokens behind the last line's -1", stream.n - at);
}

static void check_json(void)
{
    for (int i = 0; i < n_sent; i++) {
        const struct sent *x = &sent[i];
        if (!x->json) continue;
        if (x->ended != 1) fail("line %d: %d replies that end it", i, x->ended);
        if (x->what == NOTHING) continue;
        if (!begins(x->got.v, x->got.n, x) || (x->what == TOKENS_ALL && x->got.n != (size_t)x->n))
            fail("line %d: other tokens (%zu of %d, prompt %d, setting %d)", i, x->got.n, x->n, x->prompt,
                 x->setting);
    }
}

/* ---- talking ---- */

/* All that is there from fd to p. false: it has ended. */
static bool take_some(int fd, char **p, size_t *n, size_t *have)
{
    if (*have - *n < 65536) {
        *have = 2 * *have + 65536;
        *p = realloc(*p, *have);
        if (!*p) fail("out of memory");
    }
    const ssize_t k = read(fd, *p + *n, 65536);
    if (k < 0) return errno == EINTR || errno == EAGAIN;
    *n += (size_t)k;
    return k > 0;
}

/* Write all, read all, as poll says; to is closed behind the last byte. Up to 90 seconds without a byte. */
static void talk(int to, int from, int tokens)
{
    size_t at = 0, stream_bytes = 0;
    char *raw = NULL;
    bool open_from = true, open_tokens = tokens >= 0;
    fcntl(to, F_SETFL, O_NONBLOCK);
    while (open_from || open_tokens) {
        struct pollfd p[3] = {
            {to, POLLOUT, 0}, {open_from ? from : -1, POLLIN, 0}, {open_tokens ? tokens : -1, POLLIN, 0}};
        if (poll(p, 3, 90000) <= 0)
            fail("it says nothing (%d of %d replies, %zu bytes sent)", at_reply, n_sent, at);
        if (p[0].revents) {
            const ssize_t k = write(to, out + at, n_out - at < 700 ? n_out - at : 1 + rnd(700));
            if (k < 0 && errno != EAGAIN) fail("it reads no more: %s", strerror(errno));
            if (k > 0) at += (size_t)k;
            if (at == n_out) {
                if (to == from)
                    shutdown(to, SHUT_WR);
                else
                    close(to);
                to = -1;
            }
        }
        if (p[1].revents) {
            open_from = take_some(from, &said, &n_said, &room_said);
            take_replies();
        }
        if (p[2].revents) open_tokens = take_some(tokens, &raw, &stream_bytes, &room_stream);
    }
    stream = (struct tokens){(int32_t *)(void *)raw, stream_bytes / 4};
    if (stream_bytes % 4) fail("half a token at the end of the stream");
    while (at_reply < n_sent && !sent[at_reply].reply) at_reply++;
    if (at_reply != n_sent) fail("line %d has no reply", at_reply);
}

static void lines(int count, char **program)
{
    int in[2], from[2], tokens[2], status;
    const bool parks = rnd(2);
    for (char **p = program; *p; p++) {
        drafts |= !strcmp(*p, "-d"), trees |= !strcmp(*p, "--tree");
        if (!strcmp(*p, "-m")) target = p[1];
    }
    for (int i = 0; i < count; i++) say_line(true, parks);
    if (pipe(in) || pipe(from) || pipe(tokens)) fail("pipe: %s", strerror(errno));
    const pid_t pid = fork();
    if (pid == 0) {
        dup2(in[0], 0), dup2(from[1], 1);
        if (tokens[1] == 9 ? 0 : dup2(tokens[1], 9) < 0) _exit(126);
        for (int fd = 10; fd < 64; fd++) close(fd);
        for (int fd = 3; fd < 9; fd++) close(fd);
        execvp(program[0], program);
        _exit(127);
    }
    if (pid < 0) fail("fork: %s", strerror(errno));
    close(in[0]), close(from[1]), close(tokens[1]);
    talk(in[1], from[0], tokens[0]);
    if (waitpid(pid, &status, 0) < 0 || !WIFEXITED(status) || WEXITSTATUS(status))
        fail("it ended with status %#x", status);
    check_stream();
    check_json();
}

static int dial(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a)) fail("%s: %s", path, strerror(errno));
    return fd;
}

static void copy(const char *path)
{
    char buf[4096];
    const int fd = dial(path);
    bool in = true;
    for (;;) {
        struct pollfd p[2] = {{fd, POLLIN, 0}, {in ? 0 : -1, POLLIN, 0}};
        if (poll(p, 2, 90000) <= 0) fail("it says nothing");
        if (p[1].revents) {
            const ssize_t n = read(0, buf, sizeof buf);
            if (n <= 0) shutdown(fd, SHUT_WR), in = false;
            if (n > 0 && write(fd, buf, (size_t)n) != n) fail("it reads no more");
        }
        if (!p[0].revents) continue;
        const ssize_t n = read(fd, buf, sizeof buf);
        if (n <= 0) return;
        if (write(1, buf, (size_t)n) != n) fail("stdout: %s", strerror(errno));
    }
}

static void over_socket(int count, const char *path)
{
    for (int i = 0; i < count; i++) say_line(false, false);
    const int fd = dial(path);
    talk(fd, fd, -1);
    check_json();
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "talk")) {
        copy(argv[2]);
        return 0;
    }
    if (argc < 6) fail("usage: client lines|socket SEED COUNT DIR PROGRAM|PATH [FLAG...]");
    signal(SIGPIPE, SIG_IGN);
    rnd_state = strtoull(argv[2], NULL, 10);
    dir = argv[4];
    sent = room(MOST_LINES * sizeof *sent);
    said = room(room_said = 65536);
    read_expected();
    if (!strcmp(argv[1], "lines"))
        lines(atoi(argv[3]), argv + 5);
    else
        over_socket(atoi(argv[3]), argv[5]);
    printf("%d lines\n", n_sent);
    return 0;
}
