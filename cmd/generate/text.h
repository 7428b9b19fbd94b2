/* text.h - what dflash-generate knows of text: the target's tokenizer, texts that end the stream, and the
 * log-probabilities of what was written, as lines of JSON. */
#ifndef DFLASH_GENERATE_TEXT_H
#define DFLASH_GENERATE_TEXT_H

#include <stdbool.h>
#include <stdint.h>
#include "../cli.h"
#include "../../common/base/io.h"
#include "../../common/model/model.h"
#include "../../common/token/tokenizer.h"

struct text {
    struct cli_list stops; /* texts that end the stream, as given */
    struct cli_counted logprobs;
    struct tokenizer *t; /* NULL: neither stops nor logprobs, or of those alone a target without one */
    bool borrowed;       /* t is somebody else's, and was there before text_open */
    char *tail;          /* [most + a token] the last bytes of the text, for what begins in them */
    size_t n_tail, most; /* most: one byte less than the longest of the stops */
    const char *found;   /* the one of the stops that stood there; NULL: none yet */
    int64_t position;    /* of the next token */
    struct best *best;   /* [logprobs.n] */
    float *row;          /* [n_vocab] of the target, where logprobs are wanted */
};

/* Usage errors exit. */
void text_check(const struct text *x, const struct cli *c);
/* ERR_FORMAT: --stop-text, and the target has no tokenizer; ERR_IO. Once the target is there. */
int text_open(struct text *x, const struct model *target, struct err *e);
void text_close(struct text *x);
/* Does the text, with this token behind it, hold one of the stops? */
bool text_ends(struct text *x, int32_t id);
/* One line for the token at x->position, and on to the next: its log-probability by the softmax of the logits
 * as they are, and the likeliest logprobs.n. */
int text_picked(struct text *x, int32_t id, const float *logits, int32_t n_vocab, struct io_out *o,
                struct err *e);

#endif
