/* serve.h - dflash-generate --serve: the models stay, requests come as lines (docs/serve.md).
 *
 * One thread, one loop (docs/design/serve.md). Clients have lines that wait, in order, and bytes that go out.
 * Jobs are requests that write tokens; each has a stream of the engine while it runs, and gets a turn - a
 * chunk of its prompt, or a cycle - when all others that can run had theirs. Whatever waits for a descriptor
 * waits in poll; nothing blocks.
 *
 *   serve.c          the loop; who runs next
 *   serve_client.c   descriptors: lines in, replies and tokens out, the socket
 *   serve_line.c     what a line is answered with that needs no stream
 *   serve_job.c      a job from its first turn to its reply
 *   serve_prompt.c   where a job's prompt comes from, kept beginnings, states
 *   serve_compress.c which tokens of a prompt stay
 *   serve_slot.c     numbered slots and files of states
 *   serve_path.c     paths of requests, below the root */
#ifndef DFLASH_SERVE_H
#define DFLASH_SERVE_H

#include <sys/types.h>
#include "../../common/run/engine.h"
#include "../../common/run/prefix.h"
#include "../../common/run/request.h"
#include "../../common/run/source.h"
#include "generate.h"

struct server;
struct client;

/* Bytes on their way to a descriptor. */
struct outbox {
    int fd;    /* -1: there is none */
    bool dead; /* its reader is gone: what is put is dropped */
    bool socket;
    char *p; /* [room] bytes from .. to of it are pending */
    size_t from, to, room;
};

/* A line that waits for its turn, or that runs. */
struct line {
    struct line *next;
    struct request r;
};

struct client {
    struct client *next;
    struct server *sv;
    int64_t number;
    int in;                     /* -1: no more lines come */
    bool gone;                  /* nobody is there any more: its jobs end */
    char *buf;                  /* [room] of a line that is not complete */
    size_t used, room, seen;    /* seen: bytes without a newline */
    bool skip;                  /* the rest of a line that is too long */
    struct line *first, **last; /* bare lines, in order; the first runs or is next */
    int32_t n_lines;
    struct job *job;             /* of the first line; NULL: it has not begun */
    struct outbox reply, tokens; /* tokens.fd -1: there is no stream */
    struct session *kept;        /* the stream of its last job that ended */
    uint64_t kept_when, begun;   /* begun: when its last job did, counted in jobs */
};

enum job_form { JOB_STREAM, JOB_FILE, JOB_JSON }; /* where tokens go */
enum job_phase { JOB_WAITS, JOB_PREFILLS, JOB_DECODES };

struct job {
    struct job *next;
    struct client *c; /* NULL: it has gone */
    struct request r;
    enum job_form form;
    enum job_phase phase;
    const char *end;          /* why it is to end before its time: the reply's code; NULL */
    double read_at, deadline; /* 0: none */
    struct session *s;
    int32_t *prompt; /* [n_prompt] the whole history that its first token stands behind */
    int32_t n_prompt, begun_at,
        found;       /* begun_at: rows that were not run again; found: chunks that were known */
    bool keeps;      /* whole chunks go to the kept beginnings */
    int32_t snap_at; /* snapshot there; 0: none */
    struct kn_sampler sampler;
    int32_t *stops, n_stops;
    struct text text;
    struct tok_decoder *decoder; /* NULL: no text is wanted */
    struct plan_flags plan;
    struct spec_options o;
    struct spec_stats st;
    struct spec_run run;
    double prefill_s, prompt_s; /* run; from being read to the end of the prompt */
    int32_t *made_ids;          /* [n_made] of JOB_FILE */
    size_t n_made, room_made;
    json_t *line;                    /* JOB_JSON: text of this turn */
    struct serve_compress *compress; /* of a compress that runs; NULL */
};

/* A slot's state, in memory, as its file would be. */
struct slot {
    int fd;             /* -1: empty */
    struct session *of; /* the stream that stands where it was taken; NULL: none any more */
    int32_t n_tokens;
    uint64_t bytes, used;
};

struct server {
    const struct cli *cli;
    struct settings *set;
    struct session_options o;
    struct engine *g; /* NULL: the target is parked */
    unsigned parked;  /* REQUEST_TARGET, REQUEST_DRAFT */
    int32_t *stops, n_stops;
    struct tokenizer *tok; /* NULL: the target has none that is known */
    struct prefix prefix;
    bool keeps;                       /* beginnings are kept */
    uint64_t span_bytes, point_bytes; /* of a chunk; at a place */
    struct slot slots[REQUEST_SLOTS];
    uint64_t slot_bytes, budget, clock; /* budget: of slots and kept beginnings together */
    struct client *clients;
    int64_t n_clients;
    struct job *jobs;      /* in the order of being read; clients begin in turn, and turns go round */
    struct job *turn;      /* who had the last turn */
    int32_t running, open; /* jobs that run; streams, kept ones among them */
    bool alone;            /* a job runs beside which no other may */
    uint64_t n_begun;      /* jobs that had one */
    struct line_wait {     /* park and unpark wait until no job runs */
        struct line_wait *next;
        struct client *c;
        struct line *l; /* in the client's list; of JSON owned */
        bool json;
    } * waits;
    int listen, root;
    bool full; /* no descriptor is left for another client */
    bool quits;
    int64_t n_requests, n_errors, n_cancelled, n_tokens, n_prompt, n_reused, n_accepted, n_drafted;
    double started, last_used;
    struct err lost; /* the device gave up */
};

/* ---- serve.c ---- */

/* The whole run; returns the exit status. */
int serve(struct settings *set, const struct cli *c);
int serve_stopped(void); /* the signal that ended it; 0: none */
/* What flags cannot go together; exits. */
void serve_check_flags(struct settings *set, const struct cli *c);
int serve_open_engine(struct server *sv, struct err *e);
void serve_close_engine(struct server *sv);

/* ---- serve_client.c ---- */

struct client *client_new(struct server *sv, int in, int out, int tokens, bool socket);
void client_free(struct client *c);
void client_read(struct client *c); /* what is there, and the lines in it */
int outbox_flush(struct outbox *o); /* what can be written now; -1: its reader is gone */
static inline size_t outbox_pending(const struct outbox *o)
{
    return o->to - o->from;
}
void outbox_put(struct outbox *o, const void *p, size_t n);
void client_say(struct client *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));     /* and a newline */
void client_json(struct client *c, json_t *j); /* a line of it; j is given up */
void client_tokens(struct client *c, const int32_t *ids, size_t n);
void client_end_stream(struct client *c); /* a -1 */
/* Does it take more output now? */
bool client_takes(const struct client *c);
int serve_listen(const char *path, struct err *e);
void serve_accept(struct server *sv);

/* ---- serve_line.c ---- */

/* The reply that a request ends with where something was wrong; msg may be "". */
void reply_error(struct client *c, const struct request *r, const char *code, const char *msg);
/* A request of JSON, which is freed or taken. */
void line_json(struct client *c, struct request *r);
/* The client's first bare line, if nothing is in its way. true: something was done. */
bool line_next(struct client *c);
/* park and unpark, when no job runs. */
void line_parts(struct server *sv);
/* The models that the process has, as REQUEST_TARGET and REQUEST_DRAFT. */
unsigned serve_parts(const struct server *sv);
/* No job runs: these models are parked, or there again. What cannot be held any more is parked then. */
int serve_park(struct server *sv, unsigned what, bool park, struct err *e);

/* ---- serve_job.c ---- */

struct job *job_new(struct client *c, struct request *r, enum job_form form);
void job_fail(struct job *j, struct server *sv, const char *code, const char *msg); /* replies, frees it */
void job_end(struct job *j, struct server *sv); /* the same of one that is done, or has j->end */
/* It gets a stream. false: it failed, and is freed. */
bool job_begin(struct job *j, struct server *sv);
void job_step(struct job *j, struct server *sv); /* a turn; may free it */

/* ---- serve_prompt.c ---- */

/* The prompt's tokens, the stream behind what is known of them; *code where it fails. */
int prompt_begin(struct job *j, const char **code, struct err *e);
/* The next chunk. */
int prompt_step(struct job *j, struct err *e);
/* The tokens alone, of any vocabulary: a code where that fails, or NULL. */
const char *prompt_read(struct job *j, struct server *sv, struct err *e);

/* ---- serve_compress.c ---- */

/* As prompt_begin; the scorer is loaded. */
int compress_begin(struct job *j, struct server *sv, const char **code, struct err *e);
/* A pass. 1: the first n_made of the prompt's ids are those that stay, and the models are there again. */
int compress_step(struct job *j, struct server *sv, const char **code, struct err *e);
/* However it ended: the scorer goes, the models come back. */
int compress_end(struct job *j, struct server *sv, struct err *e);

/* ---- serve_slot.c ---- */

void slots_init(struct server *sv);
void slots_close(struct server *sv);
void slot_free(struct server *sv, int32_t i);
/* The state of s into the slot. */
int slot_take(struct server *sv, int32_t i, struct session *s, struct err *e);
/* The stream goes on, or ends. */
void slots_forget(struct server *sv, const struct session *s);
int slot_open(struct server *sv, int32_t i, struct state **st, struct state_info *info, struct err *e);
int slot_save(struct server *sv, int32_t i, const char *path, struct err *e);
int slot_load(struct server *sv, int32_t i, const char *path, struct err *e);
int slot_save_session(struct server *sv, struct session *s, const char *path, struct err *e);

/* ---- serve_path.c ---- */

/* A file to be read: its descriptor, or -1. ERR_USAGE: it is not below the root. */
int path_open(struct server *sv, const char *path, struct err *e);
/* A name for a file to be written, which stands until the next call. NULL as above. */
const char *path_out(struct server *sv, const char *path, struct err *e);

/* Streams: a new one, perhaps in place of the one that was kept longest. */
struct session *serve_stream(struct server *sv, struct err *e);
void serve_drop(struct server *sv, struct session *s);

#endif
