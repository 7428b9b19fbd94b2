/* request.h - what one line asks of a resident process (docs/serve.md).
 *
 * There are two kinds of lines. A bare one is words, as an existing engine reads them: a prompt's path and a
 * count, RESTORE, SNAPSHOT and so on. One that begins with '{' is a JSON object, for what those cannot say.
 * Reading a line is pure: no file is looked at, no flag and no model is known, and what does not depend on
 * those is checked here. A line that asks for nothing sensible is a request too (REQUEST_BAD), with the code
 * and the message of the reply that it gets. */
#ifndef DFLASH_REQUEST_H
#define DFLASH_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../../kernels/kernels.h"
#include "../base/err.h"
#include "../base/json.h"

#define REQUEST_MAX_LINE (1 << 24) /* bytes; a prompt of a million ids fits */
#define REQUEST_SLOTS 64           /* numbered slots, 0 .. */

enum request_kind {
    REQUEST_NONE, /* a blank line: no reply */
    REQUEST_BAD,
    REQUEST_PROMPT,   /* PATH N, or JSON: tokens to be written behind a prompt */
    REQUEST_GENERATE, /* generate IN N OUT */
    REQUEST_RESTORE,  /* RESTORE SLOT PATH N */
    REQUEST_SNAPSHOT, /* these three are about the slot */
    REQUEST_FREE,
    REQUEST_LIST,
    REQUEST_SAVE, /* JSON alone: a slot to a file, a file to a slot */
    REQUEST_LOAD,
    REQUEST_PARK,
    REQUEST_UNPARK,
    REQUEST_FREE_DRAFTER,
    REQUEST_COMPRESS, /* compress IN KEEP_X1000 SCORER [nopark] */
    REQUEST_CANCEL,   /* JSON alone */
    REQUEST_STATS,    /* JSON alone */
    REQUEST_QUIT,
};

/* Bits of request.given: which of the sampler's fields, and what else, the line says. */
enum {
    REQUEST_TEMP = 1,
    REQUEST_TOP_K = 2,
    REQUEST_TOP_P = 4,
    REQUEST_MIN_P = 8,
    REQUEST_REPEAT = 16,
    REQUEST_REPEAT_LAST = 32,
    REQUEST_PRESENCE = 64,
    REQUEST_FREQUENCY = 128,
    REQUEST_SEED = 256,
    REQUEST_IGNORE_EOS = 512,
    REQUEST_WIDTH = 1024,
    REQUEST_TIMEOUT = 2048,
    REQUEST_TREE = 4096,
};

/* What is parked: both are all. */
enum { REQUEST_TARGET = 1, REQUEST_DRAFT = 2 };

struct request {
    enum request_kind kind;
    bool json;
    bool streams; /* a bare line that owes the stream exactly one -1, whatever becomes of it */
    /* REQUEST_BAD: */
    const char *code; /* of the reply, as "bad_args" */
    char msg[384];
    /* What there is; the strings, ids and JSON are the request's (request_free). */
    json_t *id;             /* of JSON: a string or an integer; NULL: none */
    char *path, *out;       /* of the prompt, or of a slot's file; of generate's result */
    char *scorer;           /* compress: the model that says what is kept */
    int32_t keep_x1000;     /* compress: thousandths of the prompt's tokens */
    bool nopark;            /* compress: the models stay meanwhile */
    int32_t *ids;           /* [n_ids] JSON's own prompt; NULL: none */
    size_t n_ids;           /* */
    int64_t n;              /* tokens wanted; -1: not said */
    int32_t slot;           /* that a line is about, or a prompt goes on from; -1: none */
    int32_t keep;           /* JSON: the slot that gets the stream when it ends; -1: none */
    int32_t snap_pos;       /* of snap=; 0: none */
    int32_t snap_slot;      /* */
    char *state, *save;     /* JSON: files of states, to begin with and to end with */
    bool append;            /* JSON: the prompt's tokens stand behind those of slot or state */
    bool no_cache;          /* JSON: kept beginnings are neither used nor made */
    bool text;              /* JSON: the reply has text beside ids */
    uint32_t given;         /* bits */
    struct kn_sampler take; /* those fields of it that are given */
    bool random_seed;       /* of samp=, where 0 asks for one */
    bool ignore_eos;
    int32_t width; /* 0: automatic */
    int32_t tree;  /* proposals of a tree; 0: chains; -1: automatic */
    double timeout_s;
    int32_t *stops; /* [n_stops] */
    size_t n_stops;
    char **texts; /* [n_texts] */
    size_t n_texts;
    unsigned what;  /* park, unpark */
    bool line;      /* cancel: the bare line of this client that runs */
    json_t *cancel; /* the id of what is cancelled */
};

/* Read a line of n bytes, without its newline. 0, and whatever it asks for; ERR_IO: memory. */
int request_read(struct request *r, const char *line, size_t n, struct err *e);
void request_free(struct request *r); /* a zeroed struct is legal */
/* The sampler of a request whose process has that one. */
struct kn_sampler request_sampler(const struct request *r, const struct kn_sampler *own);

#endif
