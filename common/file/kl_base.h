/* kl_base.h - a reference's log-probabilities over windows of a text, for KL divergences: the file that
 * llama-perplexity --kl-divergence-base writes and reads.
 *
 * Little-endian: the letters _logits_, then i32 tokens a window, i32 n_vocab, i32 windows; the tokens, i32
 * [windows, window]; then of every window the rows that are scored, those of the positions window / 2 to
 * window - 2, each predicting the next token. A row is f32 scale, f32 least, and n_vocab u16 codes (an even
 * number of them, the last one 0 where n_vocab is odd): log p(i) = scale * code + least. Codes span the 16
 * below the largest logit, what is lower has code 0. docs/perplexity.md. */
#ifndef DFLASH_KL_BASE_H
#define DFLASH_KL_BASE_H

#include "../base/err.h"
#include "../base/io.h"

struct kl_base {
    struct io_map map;
    int32_t n_ctx, n_vocab, n_window;
    const int32_t *ids;  /* [n_window, n_ctx], in the map */
    const uint8_t *rows; /* [n_window, kl_scored(n_ctx), kl_row_bytes(n_vocab)], in the map */
};
/* ERR_FORMAT: no such file, sizes that are none, or another length than they say. */
int kl_base_open(struct kl_base *b, const char *path, struct err *e);
void kl_base_close(struct kl_base *b); /* zeroed struct is legal */

/* The first position of a window whose row is scored, and how many rows are. n_ctx is 3 or more. */
int32_t kl_first(int32_t n_ctx);
int32_t kl_scored(int32_t n_ctx);
size_t kl_row_bytes(int32_t n_vocab);
/* The row of logits [n_vocab], all finite or -inf, as the file has it. */
void kl_row_encode(const float *logits, int32_t n_vocab, uint8_t *row);
void kl_row_scale(const uint8_t *row, float *scale, float *least);
/* What stands before the first row. */
int kl_base_header(struct io_out *o, int32_t n_ctx, int32_t n_vocab, int32_t n_window, const int32_t *ids,
                   struct err *e);

#endif
