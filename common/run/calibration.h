/* calibration.h - how likely the target's pick equals a proposal.
 *
 * h_j = P(the pick equals proposal j | all proposals before it equalled theirs). A plan needs these, not what
 * a drafter thinks of itself: its probabilities are over- or under-confident, differently by slot, and at a
 * temperature equality is another event than being likely.
 *
 * Of a drafter:  h_j = sigma(a + w logit(p_j) + s_j), p_j the probability that the drafter gave its proposal.
 * a, w and s_j are Gaussian beliefs, a mean and a variance each, one set a bucket: a range of temperatures,
 * and above 0 whether proposals are coupled or greedy (session_options.draft_greedy). A label moves them by
 * one step of a Kalman filter on the logistic's linearisation, each by its share of the variance. s_j begins
 * narrow, so slots share what they learn until labels say otherwise: it is shrunk towards the slot's rate in
 * the prior. Each cycle adds a little variance (what was learnt ages), plain steps too, up to the built-in
 * prior's: after a long time without labels few labels are needed to change the mind. The returned
 * probability is the mean over the belief, so uncertainty pulls it towards a half; a planner may ask for some
 * deviations more.
 *
 * The prior's a and w are fitted to data/pair (bf16, block 8, greedy proposals, 128 anchors of data/prompts,
 * one stream each; labels 421, 398, 357 and 306 at temperatures 0, 0.5, 0.8 and 1; p of the row's softmax): a
 * .90, .71, .35, -.14; w .82, .91, .84, .73. Seen and predicted equality of slots 1 to 7 at 0: .77 .74 .70
 * .63 .72 .65 .60 and .76 .75 .67 .68 .69 .66 .62, where the drafter itself said .65 .63 .54 .53 .54 .52 .45.
 * No slot was off by more than its labels' noise, so s_j begins at 0.
 * Coupled proposals are a kind of their own. One that the noise chose is often improbable and yet the pick of
 * the target, whose noise is the same: so their w is flatter (9,036, 7,261 and 6,147 labels at 0.5, 0.8 and
 * 1, 14 of data/prompts, three seeds, 64 tokens each: a -.10, .55, .79; w .46, .38, .36, standard errors .04
 * and .01). By the greedy ones' a and w a proposal of probability 0.01 would be right in 3 % of the cases at
 * 0.8; by these it is in 23 %.
 *
 * Of a look-up: by how many tokens matched (buckets) and slot (ranges): a rate, with counts that age. A
 * proposal whose prefix matched has matched that much more, so slot j of a match of m tokens is filed under
 * m + j - 1.
 *
 * Only slots whose prefix matched have labels: of a cycle that kept k rows the first k, the last of them by
 * the pick of the last row that stays (planner.h). None else is learnt from.
 *
 * The file is JSON, the state itself:
 *   {
 *     "schema": 1,
 *     "of": "...",                                     optional, for people
 *     "draft": [                                       one or more; buckets that are absent keep the prior
 *       {"bucket": "0",                                temperature 0; or "coupled" or "greedy" and "0.65",
 *                                                       "0.9" (temperatures up to that) or "above", as in
 *                                                       "coupled 0.9"
 *        "intercept": [0.1, 0.5],                      mean and variance
 *        "slope": [0.9, 0.05],
 *        "slots": [[0, 0.1], [-0.2, 0.1]]}             from slot 1 on; slots that are absent have the last
 * one's
 *     ],
 *     "lookup": [[[0.5, 2], ...], ...]                 optional; [CALIBRATION_MATCHES][CALIBRATION_RANGES],
 * rate }                                                  and labels that stand for it */
#ifndef DFLASH_CALIBRATION_H
#define DFLASH_CALIBRATION_H

#include <stdbool.h>
#include <stdint.h>
#include "../base/err.h"
#include "planner.h"

enum {
    CALIBRATION_SLOTS = 63, /* proposals of a chain at most */
    CALIBRATION_BUCKETS =
        7, /* of a drafter: temperature 0; coupled up to 0.65, up to 0.9, above; greedy the same */
    CALIBRATION_SETS = PLAN_SOURCES * CALIBRATION_BUCKETS,
    CALIBRATION_MATCHES = 7, /* matched tokens: up to 2, 4, 6, 9, 15, 31; more */
    CALIBRATION_RANGES = 4,  /* slots 1, 2 to 4, 5 to 16, more */
    CALIBRATION_OF = 128,
};

/* A Gaussian belief. */
struct belief {
    double mean, variance;
};

struct calibration_slope {
    struct belief intercept, slope, slot[CALIBRATION_SLOTS];
};

/* A rate and the labels that stand for it. */
struct calibration_rate {
    double rate, labels;
};

/* Predicted and seen equality, of a slot. */
struct calibration_gauge {
    int64_t labels, equal;
    double predicted; /* sum over the labels of what was predicted before each */
};

struct calibration {
    char of[CALIBRATION_OF];
    struct calibration_slope draft[CALIBRATION_SETS]; /* the buckets of the first drafter, then of the next */
    struct calibration_rate look[CALIBRATION_MATCHES][CALIBRATION_RANGES];
    struct calibration_gauge draft_gauge[PLAN_SOURCES][CALIBRATION_SLOTS], look_gauge[CALIBRATION_SLOTS];
};

/* The built-in prior. */
void calibration_init(struct calibration *c);
/* The bucket of proposals at a temperature; greedy: the drafter's likeliest, not coupled ones. Of the drafter
 * with that number, from 1. */
int32_t calibration_bucket(int32_t source, double temperature, bool greedy);

/* h of slot j (1 ..) whose proposal the drafter gave the probability exp(logp); NaN: not known, and slots'
 * rates are learnt alone. deviations: of the belief, added; 0 for the mean, more to try what is little known.
 */
double calibration_draft(const struct calibration *c, int32_t bucket, int32_t j, double logp,
                         double deviations);
/* h of slot j of a look-up that matched so many tokens. */
double calibration_look(const struct calibration *c, int32_t match, int32_t j);

/* Learn from a finished cycle, whose drafter's bucket is this, and let what that one learnt before age by a
 * cycle. A look-up's labels are the
 * drafter's too, and the other way, for the leading proposals that both chains share. */
void calibration_seen(struct calibration *c, int32_t bucket, const struct plan_result *r);
/* What a bucket learnt ages by a cycle, in which another drafter was asked. */
void calibration_ages(struct calibration *c, int32_t bucket);

/* Read FILE over the prior. ERR_FORMAT naming the file, the key, what was expected and what is there;
 * ERR_IO. */
int calibration_read(struct calibration *c, const char *path, struct err *e);
int calibration_parse(struct calibration *c, const void *data, uint64_t n, const char *name, struct err *e);
/* Of FILE what it says of its drafter, for the one with that number; else as calibration_read. */
int calibration_read_source(struct calibration *c, int32_t source, const char *path, struct err *e);
/* Of the first drafter and of look-ups what calibration_read reads, exactly. NULL when out of memory;
 * mem_free. */
char *calibration_text(const struct calibration *c);
int calibration_write(const struct calibration *c, const char *path, bool force, struct err *e);

#endif
