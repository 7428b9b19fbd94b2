/* tokenizer_decode.c - ids to bytes as a stream that never ends a write inside a UTF-8 sequence. */
#include <string.h>
#include "tokenizer_priv.h"

#define N_OUT 16384

struct tok_decoder {
    const struct tokenizer *t;
    bool special, failed;
    bool started;   /* some text has been decoded: a space prefix is no longer due */
    uint64_t index; /* of the next id in the stream */
    uint8_t out[N_OUT];
    size_t n_out;
    tok_bytes_fn fn; /* of the current call */
    void *fn_ctx;
};

int tok_decoder_new(struct tok_decoder **out, const struct tokenizer *t, bool special, struct err *e)
{
    struct tok_decoder *x = *out = mem_calloc(1, sizeof *x);
    if (!x) return err_set(e, ERR_IO, "out of memory (decoder)");
    x->t = t;
    x->special = special;
    return 0;
}

void tok_decoder_free(struct tok_decoder *x)
{
    mem_free(x);
}

/* How many of the last bytes are the beginning of a UTF-8 sequence that later bytes may complete: 0 to 3. A
 * byte that starts a sequence does so whatever stands before it. */
static size_t unfinished(const uint8_t *p, size_t n)
{
    for (size_t k = 1; k <= 3 && k <= n; k++) {
        if (p[n - k] >= 0xc0) return tok_utf8(p + n - k, k) == 0 ? k : 0;
        if (p[n - k] < 0x80) break;
    }
    return 0;
}

static int flush(struct tok_decoder *x, bool end, struct err *e)
{
    size_t keep = end ? 0 : unfinished(x->out, x->n_out), n = x->n_out - keep;
    if (n && x->fn(x->fn_ctx, x->out, n, e) < 0) return -1;
    memmove(x->out, x->out + n, keep);
    x->n_out = keep;
    return 0;
}

static int put(struct tok_decoder *x, const uint8_t *p, size_t n, struct err *e)
{
    while (n) {
        size_t k = N_OUT - x->n_out < n ? N_OUT - x->n_out : n;
        memcpy(x->out + x->n_out, p, k);
        x->n_out += k;
        p += k;
        n -= k;
        if (x->n_out == N_OUT && flush(x, false, e)) return -1;
    }
    return 0;
}

const uint8_t *tok_piece(const struct tokenizer *t, int32_t id, size_t *n, bool *written)
{
    *n = t->offset[id + 1] - t->offset[id];
    *written = t->type[id] == TOK_NORMAL || t->type[id] == TOK_BYTE || t->type[id] == TOK_USER_DEFINED;
    return t->bytes + t->offset[id];
}

int tok_decode(struct tok_decoder *x, const int32_t *ids, size_t n, bool end, tok_bytes_fn out, void *ctx,
               struct err *e)
{
    const struct tokenizer *t = x->t;
    if (x->failed) return err_set(e, ERR_IO, "the decoder has failed before");
    x->fn = out;
    x->fn_ctx = ctx;
    x->failed = true;
    for (size_t i = 0; i < n; i++, x->index++) {
        int32_t id = ids[i];
        if (id < 0 || id >= t->n_vocab) {
            /* What came before it is good: it is not held back. */
            if (flush(x, true, e)) return -1;
            return err_set(e, ERR_FORMAT,
                           "token %llu of the stream: id %d is outside the vocabulary (expected 0 to %d)",
                           (unsigned long long)x->index, id, t->n_vocab - 1);
        }
        bool piece = t->type[id] == TOK_NORMAL || t->type[id] == TOK_BYTE;
        if (!x->special && !piece && t->type[id] != TOK_USER_DEFINED) continue;
        const uint8_t *p = t->bytes + t->offset[id];
        size_t k = t->offset[id + 1] - t->offset[id];
        if (piece && k && !x->started && t->space_prefix && p[0] == ' ') {
            p++; /* the prefix that encoding put before the text */
            k--;
        }
        if (piece || t->type[id] == TOK_USER_DEFINED) x->started = true;
        if (put(x, p, k, e)) return -1;
    }
    if (flush(x, end, e)) return -1;
    if (end) {
        x->index = 0;
        x->started = false;
    }
    x->failed = false;
    return 0;
}
