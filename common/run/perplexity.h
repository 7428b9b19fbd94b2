/* perplexity.h - how well rows of logits predict a text, and how far they are from a reference's.
 *
 * Rows are added as they come, each with the token that it is to predict, and, where there is a reference,
 * its log-probabilities in the form of kl_base.h. Sums are in double and in the order of the rows: the same
 * for any number of threads. Errors are standard errors of a mean over rows, as if these were independent,
 * which is what the field reports. */
#ifndef DFLASH_PERPLEXITY_H
#define DFLASH_PERPLEXITY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../base/err.h"

struct perplexity_row {
    double nll;                  /* -log p(next), natural logarithm */
    double base_nll, kl, p_diff; /* of the reference; sum p_base (log p_base - log p); p - p_base of next */
    bool same_top;               /* the likeliest token is the reference's */
};
struct perplexity {
    int32_t n_vocab;
    int threads; /* set by the caller; 0: one a processor */
    bool base;   /* there is a reference */
    int64_t n;   /* rows so far */
    double nll, nll2, base_nll, base_nll2, nll_base_nll, kl, kl2, p_diff, p_diff2,
        p_diff4; /* sums, of squares, ... */
    int64_t same_top;
    double *each; /* [n] divergences, of room */
    int64_t room;
    struct perplexity_row *row; /* [row_room] of one call */
    int64_t row_room;
};
struct estimate {
    double value, error; /* error NaN where one row is all there is */
};

void perplexity_begin(struct perplexity *p, int32_t n_vocab, bool base);
void perplexity_free(struct perplexity *p); /* zeroed struct is legal */
/* n rows [n, n_vocab] on the host, next[i] the token after row i's, base [n, kl_row_bytes] or NULL. */
int perplexity_add(struct perplexity *p, const float *rows, int32_t n, const int32_t *next,
                   const uint8_t *base, struct err *e);
/* The same of one row. */
void perplexity_row_of(const float *row, int32_t n_vocab, int32_t next, const uint8_t *base,
                       struct perplexity_row *out);

struct estimate perplexity_nll(const struct perplexity *p);      /* mean of -log p */
struct estimate perplexity_ppl(const struct perplexity *p);      /* its exponential; error to first order */
struct estimate perplexity_base_ppl(const struct perplexity *p); /* the reference's */
struct estimate perplexity_ln_ratio(const struct perplexity *p); /* log(ppl / base_ppl), paired rows */
struct estimate perplexity_kl(const struct perplexity *p);
struct estimate perplexity_p_rms(const struct perplexity *p);    /* rms of p - p_base of the text's token */
struct estimate perplexity_same_top(const struct perplexity *p); /* share of rows */
/* Quantile q of the rows' divergences: 0 least, 1 largest; linear between. Sorts them. */
double perplexity_kl_quantile(struct perplexity *p, double q);

#endif
