/* request.c - see request.h: lines of words, and what both kinds share. */
#include "request.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../base/mem.h"
#include "../base/text.h"
#include "request_impl.h"
#include "session.h"

void request_bad(struct request *r, const char *code, const char *fmt, ...)
{
    va_list ap;
    if (r->kind == REQUEST_BAD) return;
    r->kind = REQUEST_BAD;
    r->code = code;
    va_start(ap, fmt);
    vsnprintf(r->msg, sizeof r->msg, fmt, ap);
    va_end(ap);
    text_printable(r->msg);
}

/* ---- the sampler ---- */

static const struct range {
    unsigned bit;
    double min, max;
    bool whole, above; /* above: min itself is outside */
} ranges[] = {
    {REQUEST_TEMP, 0, 1000, false, false},
    {REQUEST_TOP_K, 0, INT32_MAX, true, false},
    {REQUEST_TOP_P, 0, 1, false, true},
    {REQUEST_MIN_P, 0, 1, false, false},
    {REQUEST_REPEAT, 0.001, 1000, false, false},
    {REQUEST_REPEAT_LAST, 0, INT32_MAX, true, false},
    {REQUEST_PRESENCE, -1000, 1000, false, false},
    {REQUEST_FREQUENCY, -1000, 1000, false, false},
};

static void put_number(struct kn_sampler *k, unsigned bit, double x)
{
    switch (bit) {
    case REQUEST_TEMP: k->temp = (float)x; break;
    case REQUEST_TOP_K: k->top_k = (int32_t)x; break;
    case REQUEST_TOP_P: k->top_p = (float)x; break;
    case REQUEST_MIN_P: k->min_p = (float)x; break;
    case REQUEST_REPEAT: k->repeat_penalty = (float)x; break;
    case REQUEST_REPEAT_LAST: k->repeat_last = (int32_t)x; break;
    case REQUEST_PRESENCE: k->presence = (float)x; break;
    default: k->frequency = (float)x; break;
    }
}

void request_number(struct request *r, unsigned bit, const char *name, double x)
{
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        const struct range *y = &ranges[i];
        if (y->bit != bit) continue;
        if (!(x >= y->min && x <= y->max) || (y->above && x <= y->min) || (y->whole && x != floor(x)) ||
            (y->above && (float)x <= 0)) {
            request_bad(r, "bad_args", "%s out of range (expected %s%g to %g%s, got %g)", name,
                        y->above ? "above " : "", y->min, y->max, y->whole ? ", whole" : "", x);
            return;
        }
        r->given |= bit;
        put_number(&r->take, bit, x);
    }
}

struct kn_sampler request_sampler(const struct request *r, const struct kn_sampler *own)
{
    struct kn_sampler k = *own;
    const struct kn_sampler *t = &r->take;
    if (r->given & REQUEST_TEMP) k.temp = t->temp;
    if (r->given & REQUEST_TOP_K) k.top_k = t->top_k;
    if (r->given & REQUEST_TOP_P) k.top_p = t->top_p;
    if (r->given & REQUEST_MIN_P) k.min_p = t->min_p;
    if (r->given & REQUEST_REPEAT) k.repeat_penalty = t->repeat_penalty;
    if (r->given & REQUEST_REPEAT_LAST) k.repeat_last = t->repeat_last;
    if (r->given & REQUEST_PRESENCE) k.presence = t->presence;
    if (r->given & REQUEST_FREQUENCY) k.frequency = t->frequency;
    if (r->given & REQUEST_SEED) k.seed = t->seed;
    return k;
}

/* ---- words ---- */

/* A whole number that all of text is. */
static bool whole(const char *text, int64_t min, int64_t max, int64_t *v)
{
    char *end;
    const char *digits = *text == '-' ? text + 1 : text;
    if (!*digits || digits[strspn(digits, "0123456789")]) return false;
    errno = 0;
    const long long x = strtoll(text, &end, 10);
    if (errno || *end || x < min || x > max) return false;
    *v = x;
    return true;
}

static bool real(const char *text, double *v)
{
    char *end;
    if (!*text || text[strspn(text, "+-.eE0123456789")]) return false;
    *v = strtod(text, &end);
    return !*end && isfinite(*v);
}

/* samp=temp,top_p,top_k,rep_pen,seed[,freq,pres]: text is what stands behind the sign. */
static void read_samp(struct request *r, char *text)
{
    static const unsigned bits[] = {REQUEST_TEMP,      REQUEST_TOP_P,   REQUEST_TOP_K, REQUEST_REPEAT, 0,
                                    REQUEST_FREQUENCY, REQUEST_PRESENCE};
    static const char *const names[] = {"temp", "top_p", "top_k", "rep_pen", "seed", "freq", "pres"};
    int n = 0;
    for (char *p = text, *next; p; p = next, n++) {
        double x;
        next = strchr(p, ',');
        if (next) *next++ = 0;
        if (n == 7) return request_bad(r, "bad_args", "samp=: more than seven values");
        if (n == 4) {
            char *end;
            errno = 0;
            r->take.seed = strtoull(p, &end, 10);
            if (!*p || p[strspn(p, "0123456789")] || errno)
                return request_bad(r, "bad_args", "samp=: seed is not a whole number (got '%.40s')", p);
            r->given |= REQUEST_SEED;
            r->random_seed = r->take.seed == 0;
            continue;
        }
        if (!real(p, &x))
            return request_bad(r, "bad_args", "samp=: %s is not a number (got '%.40s')", names[n], p);
        request_number(r, bits[n], names[n], x);
    }
    if (n < 5) request_bad(r, "bad_args", "samp=: expected temp,top_p,top_k,rep_pen,seed, got %d values", n);
}

/* snap=pos:slot, which counts where pos is above 0 and the slot is one, as in the engine that it is from. */
static void read_snap(struct request *r, char *text)
{
    int64_t pos, slot;
    char *colon = strchr(text, ':');
    if (colon) *colon++ = 0;
    if (!colon || !whole(text, INT32_MIN, INT32_MAX, &pos) || !whole(colon, INT32_MIN, INT32_MAX, &slot))
        return request_bad(r, "bad_args", "snap=: expected POS:SLOT");
    if (pos <= 0 || slot < 0 || slot >= REQUEST_SLOTS) return;
    r->snap_pos = (int32_t)pos;
    r->snap_slot = (int32_t)slot;
}

enum { WORDS = 6 }; /* of a line, at most, one more than any takes */

struct words {
    char *w[WORDS];
    int n;
    char *samp, *snap; /* NULL: none */
};

static void split(char *line, struct words *s)
{
    char *save = NULL;
    for (char *p = strtok_r(line, " \t\r", &save); p; p = strtok_r(NULL, " \t\r", &save)) {
        if (s->n && !strncmp(p, "samp=", 5))
            s->samp = p + 5;
        else if (s->n && !strncmp(p, "snap=", 5))
            s->snap = p + 5;
        else if (s->n < WORDS)
            s->w[s->n++] = p;
    }
}

static int copy(char **out, const char *text, struct err *e)
{
    *out = mem_strdup(text);
    return *out ? 0 : err_set(e, ERR_IO, "out of memory (a request)");
}

/* Tokens wanted: the word. */
static void read_count(struct request *r, const char *word)
{
    if (!whole(word, 0, SESSION_MAX_CTX, &r->n))
        request_bad(r, "bad_args", "not a count of tokens (expected 0 to %d, got '%.40s')", SESSION_MAX_CTX,
                    word);
}

static void read_slot(struct request *r, const char *word)
{
    int64_t slot;
    if (!whole(word, 0, REQUEST_SLOTS - 1, &slot))
        return request_bad(r, "bad_args", "not a slot (expected 0 to %d, got '%.40s')", REQUEST_SLOTS - 1,
                           word);
    r->slot = (int32_t)slot;
}

static void read_what(struct request *r, const struct words *s)
{
    const char *x = s->n > 1 ? s->w[1] : "all";
    r->what = !strcmp(x, "all")      ? REQUEST_TARGET | REQUEST_DRAFT
              : !strcmp(x, "target") ? REQUEST_TARGET
              : !strcmp(x, "draft")  ? REQUEST_DRAFT
                                     : 0;
    if (!r->what || s->n > 2)
        request_bad(r, "bad_args", "%s: expected target, draft, all or nothing", s->w[0]);
}

/* The first word, the words that such a line has, and does it owe the stream a -1? */
static const struct command {
    const char *word, *form;
    enum request_kind kind;
    int n;
    bool streams;
} commands[] = {
    {"generate", "generate IN N OUT", REQUEST_GENERATE, 4, false},
    {"RESTORE", "RESTORE SLOT PATH N", REQUEST_RESTORE, 4, true},
    {"SNAPSHOT", "SNAPSHOT SLOT", REQUEST_SNAPSHOT, 2, false},
    {"FREE_SNAPSHOT", "FREE_SNAPSHOT SLOT", REQUEST_FREE, 2, false},
    {"LIST_SLOTS", "LIST_SLOTS", REQUEST_LIST, 1, false},
    {"park", NULL, REQUEST_PARK, 0, true},
    {"unpark", NULL, REQUEST_UNPARK, 0, true},
    {"free", "free drafter", REQUEST_FREE_DRAFTER, 2, true},
    {"compress", NULL, REQUEST_COMPRESS, 0, true}, /* of four words, or five */
    {"quit", "quit", REQUEST_QUIT, 1, false},
    {"exit", "exit", REQUEST_QUIT, 1, false},
};

/* compress IN KEEP_X1000 SCORER [nopark] */
static int read_compress(struct request *r, const struct words *s, struct err *e)
{
    int64_t keep;
    r->nopark = s->n == 5 && !strcmp(s->w[4], "nopark");
    if (s->n != 4 && !r->nopark) {
        request_bad(r, "bad_args", "expected compress IN KEEP_X1000 SCORER [nopark]");
        return 0;
    }
    if (!whole(s->w[2], 1, 1000, &keep)) {
        request_bad(r, "bad_args", "not thousandths of the tokens to keep (expected 1 to 1000, got '%.40s')",
                    s->w[2]);
        return 0;
    }
    r->keep_x1000 = (int32_t)keep;
    return copy(&r->path, s->w[1], e) || copy(&r->scorer, s->w[3], e) ? -1 : 0;
}

static int read_command(struct request *r, const struct command *c, const struct words *s, struct err *e)
{
    r->kind = c->kind;
    r->streams = c->streams;
    if (c->form && s->n != c->n) {
        request_bad(r, "bad_args", "expected %s", c->form);
        return 0;
    }
    switch (c->kind) {
    case REQUEST_GENERATE:
        read_count(r, s->w[2]);
        return copy(&r->path, s->w[1], e) || copy(&r->out, s->w[3], e) ? -1 : 0;
    case REQUEST_RESTORE:
        read_slot(r, s->w[1]);
        read_count(r, s->w[3]);
        return copy(&r->path, s->w[2], e);
    case REQUEST_SNAPSHOT:
    case REQUEST_FREE: read_slot(r, s->w[1]); break;
    case REQUEST_PARK:
    case REQUEST_UNPARK: read_what(r, s); break;
    case REQUEST_COMPRESS: return read_compress(r, s, e);
    case REQUEST_FREE_DRAFTER:
        if (strcmp(s->w[1], "drafter")) request_bad(r, "bad_args", "expected free drafter");
        break;
    default: break;
    }
    return 0;
}

static int read_words(struct request *r, char *line, struct err *e)
{
    struct words s = {.n = 0};
    split(line, &s);
    if (!s.n) return 0;
    r->streams = true;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (!strcmp(s.w[0], commands[i].word)) {
            if (read_command(r, &commands[i], &s, e)) return -1;
            if (s.samp) read_samp(r, s.samp);
            if (s.snap) read_snap(r, s.snap);
            return 0;
        }
    r->kind = REQUEST_PROMPT;
    if (s.w[0][0] != '.' && !strchr(s.w[0], '/')) {
        request_bad(r, "unknown_command", "'%.40s'", s.w[0]);
        return 0;
    }
    if (s.n != 2)
        request_bad(r, "bad_args", "expected PATH N [snap=POS:SLOT] [samp=...]");
    else
        read_count(r, s.w[1]);
    if (s.samp) read_samp(r, s.samp);
    if (s.snap) read_snap(r, s.snap);
    return copy(&r->path, s.w[0], e);
}

int request_read(struct request *r, const char *line, size_t n, struct err *e)
{
    *r = (struct request){.n = -1, .slot = -1, .keep = -1, .snap_slot = -1};
    size_t at = 0;
    while (at < n && (line[at] == ' ' || line[at] == '\t' || line[at] == '\r')) at++;
    if (at == n) return 0;
    if (line[at] == '{') {
        r->json = true;
        return request_json(r, line + at, n - at, e);
    }
    r->streams = true;
    if (n > REQUEST_MAX_LINE || memchr(line, 0, n)) {
        request_bad(r, "unknown_command",
                    n > REQUEST_MAX_LINE ? "the line is too long (expected at most %d bytes)"
                                         : "the line holds a NUL byte",
                    REQUEST_MAX_LINE);
        return 0;
    }
    char *text = mem_alloc(n + 1);
    if (!text) return err_set(e, ERR_IO, "out of memory (a request)");
    memcpy(text, line, n);
    text[n] = 0;
    const int rc = read_words(r, text, e);
    mem_free(text);
    return rc;
}

void request_free(struct request *r)
{
    for (size_t i = 0; i < r->n_texts; i++) mem_free(r->texts[i]);
    json_decref(r->id);
    json_decref(r->cancel);
    mem_free(r->path);
    mem_free(r->out);
    mem_free(r->scorer);
    mem_free(r->ids);
    mem_free(r->state);
    mem_free(r->save);
    mem_free(r->stops);
    mem_free(r->texts);
    *r = (struct request){0};
}
