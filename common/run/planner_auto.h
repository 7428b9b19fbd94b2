/* planner_auto.h - plans that never cost and gain what they can: draft or not, and how many rows, every
 * cycle.
 *
 * Weighed are tokens against time. lambda is the rate that can be had, in tokens a second: that of plain
 * steps, or what the last cycles gave where that is more. A verify of n rows whose chain has probabilities
 * h_j (calibration.h) is worth 1 + h_1 + h_1 h_2 + ... (n - 1 terms) - lambda t(n) (plan_times.h).
 *
 *  - Rows: once proposals are there, a draft's time is spent. The row count worth most is verified, of the
 *    drafter's chain or of a look-up's; one row is a choice too.
 *  - Draft or not: a draft gains that maximum, less what could be had without it (a plain step, or the
 *    look-up), less lambda times the draft and the round trip. The gain is averaged over about eight cycles.
 *    Drafting ends when averages below the margin have added up to a token and a half.
 *  - Probes: while it does not draft it drafts now and then, after a wait that doubles on failure, and
 *    verifies two rows or more for a label. Its credit for probes is a small share of the time, so they stay
 *    below one per cent. One that would have gained, or whose rows were all right, brings drafting back.
 *  - Never slower, whatever the probabilities claim: an account has the tokens that plain steps would have
 *    made in the time of drafted cycles, less those that were made. Gains count up to a bound and losses are
 *    forgotten slowly. A verify whose failure would overdraw it is not made, and without room for a draft and
 *    the cheapest verify that can win there is no draft. Look-ups have a smaller account of their own;
 *    what they lost counts in this one.
 *  - Bad luck: an account that is spent on unlucky wide verifies ends drafting that pays. So a row count is
 *    worth less by its variance over what the account has left, at least what it had at first: that makes
 *    ruin least likely.
 *
 *  - Two drafters: both have a calibration of their own, a draft's time, and an average of gains; there is
 *    one account. The one whose gains are larger drafts. The other is tried after some cycles, after twice as
 *    many where it is no better, and in turn in probes.
 *  - Trees, where they are allowed: best first by the probabilities of paths. A place's first candidate has
 *    the chain's h; what is left is shared among the others as the drafter has it, times what was seen of
 *    that; behind a second choice, which the drafter did not know, times what was seen of those. A tree is
 *    worth the sum over its nodes less lambda t(n), t a chain's time times what trees were seen to take over
 *    it.
 *
 * It sees probabilities, times and counts, no token's value, and it has no clock: with times that are fixed
 * its plans are a function of what was offered and kept. It allocates nothing. The caller owns the struct;
 * one a stream. The next plan may be asked for before the last result was seen. */
#ifndef DFLASH_PLANNER_AUTO_H
#define DFLASH_PLANNER_AUTO_H

#include <stddef.h>
#include "calibration.h"
#include "plan_times.h"
#include "planner.h"
#include "tree.h"

struct planner_auto_options {
    const struct plan_times *times; /* copied */
    bool fixed;                     /* times are not corrected by stamps, and stamps are not read at all */
    const struct calibration *calibration; /* copied; NULL: the prior */
    double temperature;                    /* of the sampler */
    bool draft_greedy;                     /* the drafter's proposals are greedy, not coupled */
    const int32_t *counts; /* [n_counts] row counts of verifies that may be chosen, rising, 2 .. */
    int32_t n_counts;      /* at most PLAN_TIMES_ROWS; one row may always be */
    int32_t block;         /* rows of a drafter's block; counts above are for look-ups only */
    int32_t beside;        /* rows of a second drafter's; 0: there is none */
    bool drafter, look;    /* what there is */
    int32_t tree;          /* proposals of a tree at most; 0: chains alone */
    bool seed;             /* trees begin with the chain */
};

struct planner_auto_stats {
    int64_t cycles, tokens;
    int64_t plain;                        /* cycles of one row, without a draft */
    int64_t drafted[PLAN_TIMES_ROWS + 1]; /* by rows; look-ups' chains chosen after a draft are in look too */
    int64_t look[PLAN_TIMES_ROWS + 1];    /* cycles that verified a look-up's chain, by rows */
    int64_t tree[PLAN_TIMES_ROWS + 1];    /* of drafted: those that verified a tree */
    int64_t by[PLAN_SOURCES];             /* of drafted: by each drafter */
    int64_t probes, stays;                /* stays: times that it began to draft */
    double total_s, plain_s; /* of all cycles; that plain steps would have taken for the same tokens */
    double probe_lost_s;     /* time that probes took beyond plain's, winning ones not deducted */
    double draft_lost_s;     /* the same of stays that lost on the whole */
};

struct planner_auto {
    struct plan_times times;
    struct calibration calibration; /* also the gauges; what calibration_write writes */
    struct planner_auto_stats stats;

    /* Private from here on. */
    int32_t counts[PLAN_TIMES_ROWS], n_counts;
    bool fixed, look;
    /* The drafters. gain: an average. Of their trees: what of a missed place its other candidates were, over
     * what the drafter said; what children of second choices were over what is said of the same place
     * elsewhere. Seen and said, fading. */
    struct planner_auto_drafter {
        int32_t block, bucket, n_gain;
        double gain, sibling[2], beside[2];
    } by[PLAN_SOURCES];
    int32_t n_drafters, turn;   /* the number of the one that drafts, from 1 */
    int32_t rested, trial_wait; /* cycles since the other one was tried; that are to pass */
    bool trying;                /* a trial was planned and is not seen yet */
    double emitted, elapsed;    /* of the last cycles, fading */
    bool drafting;              /* else probes only */
    bool asked;                 /* a probe was planned and is not seen yet */
    double regret, stay;        /* what averages of gains lacked; tokens won by this stay */
    double lost, look_lost;     /* the accounts, tokens */
    double credit;              /* for probes, seconds */
    int64_t waited, interval;   /* plain steps since the last probe; that are to pass */
    int32_t pos;                /* of the newest anchor seen */
    /* Trees: what their rows cost over a chain's, by rows and in general. */
    int32_t tree, tree_counts[PLAN_TIMES_ROWS], n_tree_counts;
    bool seed;
    double tree_ratio[PLAN_TIMES_ROWS + 1], any_ratio;
    struct tree grown, chosen;
    const struct plan_offer *grown_of; /* while it grows */
    float row_h[TREE_CANDIDATES], h[CALIBRATION_SLOTS * TREE_CANDIDATES];
    enum { AUTO_ON, AUTO_NO_DRAFTER, AUTO_LOSES, AUTO_SPENT } off;
    double off_gain;
};

/* The row counts of verifies that auto chooses among, rising, into counts [PLAN_TIMES_ROWS]; returns how
 * many. block: a drafter's, always one of them; 1 without one. look: there are look-ups, whose chains are
 * longer. records: a count costs a recording, so there are eight at most. */
int32_t planner_auto_counts(int32_t block, bool look, bool records, int32_t *counts);

/* ERR_USAGE: counts that do not rise or are out of range, or times that lack what they must have. */
int planner_auto_init(struct planner_auto *a, const struct planner_auto_options *o, struct err *e);
/* The planner; a stays where it is. */
struct planner planner_auto(struct planner_auto *a);

/* Tokens a second that plain steps alone would have had. */
double planner_auto_plain_rate(const struct planner_auto *a);
/* Time lost in stays that lost, the present one too. */
double planner_auto_lost(const struct planner_auto *a);
/* One line: does it draft now, and why not. buf [n]; returns buf. */
const char *planner_auto_why(const struct planner_auto *a, char *buf, size_t n);

#endif
