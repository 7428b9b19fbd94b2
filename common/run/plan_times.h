/* plan_times.h - how long the parts of a cycle take: what a planner weighs proposals against.
 *
 * Seconds of a plain step (one row), of a draft, and of verifies (the commit included) by row count, each by
 * context; and of the host's round trip between a draft and its verify. Contexts are in buckets that double:
 * below 2,048 positions, below 4,096, below 8,192, ... A row count costs what its kernels cost: there are
 * cliffs, so nothing is smoothed over row counts, and a measured time is returned as it is.
 *
 * What was not measured is estimated, in this order:
 *  - a bucket without times has those of the nearest bucket below that has some, else above; where the plain
 *    step of both is known, times the ratio of the two;
 *  - a row count between two measured ones lies on the line through them;
 *  - a row count above the largest measured one lies on the line through the two largest (plain counts as one
 *    row), which never falls.
 *
 * Times come from measuring at load or from a file, and may be corrected by the device's stamps of cycles. A
 * stamp moves its own row count in its own bucket by an eighth of the difference and no other. A stamp of
 * more than twice or less than half the time counts as that much, so that one pause does not move the plans.
 *
 * The file is JSON:
 *   {
 *     "schema": 1,
 *     "of": "Qwen3-8B Q4_K_M, NVIDIA H200",      optional, for people
 *     "overhead_s": 6e-6,
 *     "buckets": [                               one or more, contexts rising
 *       {"context": 0,                           from here on: 0, or 2048 times a power of two
 *        "plain_s": 0.00137,
 *        "draft_s": 0.00055,                     optional: no drafter; of two [0.00055, 0.0011]
 *        "verify": [[2, 0.00175], [4, 0.0018]]}  rows and seconds, rows rising, 2 to 64
 *     ]
 *   }
 * Other keys are refused: a misspelt key must not be a default. */
#ifndef DFLASH_PLAN_TIMES_H
#define DFLASH_PLAN_TIMES_H

#include <stdbool.h>
#include <stdint.h>
#include "../base/err.h"
#include "planner.h"

enum {
    PLAN_TIMES_ROWS = 64,    /* the most rows of a verify */
    PLAN_TIMES_BUCKETS = 12, /* 0: below 2,048; then doubling; the last has no end */
    PLAN_TIMES_FIRST = 2048,
    PLAN_TIMES_OF = 128,
};

struct plan_times {
    char of[PLAN_TIMES_OF];                           /* what was measured; "" where nobody said */
    double overhead_s;                                /* the round trip */
    double draft_s[PLAN_SOURCES][PLAN_TIMES_BUCKETS]; /* of each drafter; 0: not measured */
    double rows_s[PLAN_TIMES_BUCKETS]
                 [PLAN_TIMES_ROWS + 1]; /* [n]: of n rows, [1] a plain step; 0: not measured */
};

/* The bucket of a context of so many positions, and the smallest context of a bucket. */
int32_t plan_times_bucket(int32_t context);
int32_t plan_times_context(int32_t bucket);

/* Seconds of n rows (1: a plain step) and of a draft, by the drafter with that number from 1, at a context. 0
 * where no bucket has any. Rows below 1 count as 1, above PLAN_TIMES_ROWS as that many. */
double plan_times_rows(const struct plan_times *t, int32_t n, int32_t context);
double plan_times_draft(const struct plan_times *t, int32_t source, int32_t context);
/* Were n rows measured in the bucket of that context? */
bool plan_times_measured(const struct plan_times *t, int32_t n, int32_t context);

/* What was measured at a context: a plain step, drafts ([PLAN_SOURCES], 0: none), and verifies by rows,
 * [PLAN_TIMES_ROWS + 1], 0 where not measured; [0] and [1] are not read. Replaces what the bucket had. */
void plan_times_put(struct plan_times *t, int32_t context, double plain_s, const double *draft_s,
                    const double *verify_s);

/* Stamps. The first one of what was not measured is taken as it is (but see above); those that are no
 * positive number are ignored. */
void plan_times_seen_rows(struct plan_times *t, int32_t n, int32_t context, double s);
void plan_times_seen_draft(struct plan_times *t, int32_t source, int32_t context, double s);
void plan_times_seen_overhead(struct plan_times *t, double s);

/* ERR_USAGE naming what is missing: a plain step, a verify of two rows or more, and, with drafters, a
 * draft of each. */
int plan_times_check(const struct plan_times *t, int32_t drafters, struct err *e);

/* Read FILE. ERR_FORMAT naming the file, the key, what was expected and what is there; ERR_IO. */
int plan_times_read(struct plan_times *t, const char *path, struct err *e);
/* The same of n bytes; name is for messages. */
int plan_times_parse(struct plan_times *t, const void *data, uint64_t n, const char *name, struct err *e);
/* What plan_times_read reads, exactly: numbers keep all their digits. NULL when out of memory; mem_free. */
char *plan_times_text(const struct plan_times *t);
/* The same to a file, by io.h's rules. ERR_USAGE as plan_times_check, without a drafter. */
int plan_times_write(const struct plan_times *t, const char *path, bool force, struct err *e);

#endif
