/* synthetic.h - acceptance that is stated instead of computed: the work of every cycle is real, how many
 * proposals stay is not. So speed at a published acceptance can be measured with random weights.
 *
 * What is stated is stated by the anchor's position: how many of the proposals there would stay if all were
 * verified, and what probability the drafter gives each. So every plan meets the same world: a position says
 * the same whether cycles before it drafted or not, and however wide they were. */
#ifndef DFLASH_BENCH_SYNTHETIC_H
#define DFLASH_BENCH_SYNTHETIC_H

#include <stdint.h>
#include "../../common/base/err.h"
#include "../../common/run/session.h"

struct synthetic {
    int32_t slots;  /* proposals at a position: a block less one */
    int32_t n;      /* positions; after the last the first comes again */
    int32_t *equal; /* [n] leading proposals that stay, 0 .. slots */
    float *logp;    /* [n, slots] natural log of the drafter's probability of each */
    int8_t *rank;   /* NULL, or [n, slots] the candidate of each place that stays, -1: none */
    float *top;     /* the same: [slots, KN_TOP] logs of their probabilities */
};

/* list: "P1,P2,...", by slot the probability that a proposal stays where all before it do; or
 * "P1/Q1/..,P2/Q2/..", of a slot's candidates by rank, each beside the others: for trees. Slots behind the
 * list are as its last. The drafter's probabilities are the same. Drawn for n positions from seed. ERR_USAGE:
 * no list of numbers from 0 to 1, more of them than slots or candidates, or more than 1 a slot. */
int synthetic_rates(struct synthetic *s, const char *list, int32_t slots, int32_t n, uint64_t seed,
                    struct err *e);
/* A trace as dflash-bench calibrate writes it: {"kind": "accept-trace", "schema": 1, "slots": S, "positions":
 * [[stay, P1, .., PS], ..]}. ERR_FORMAT: it is none, or has other slots than these. */
int synthetic_trace(struct synthetic *s, const char *path, int32_t slots, struct err *e);
/* What a session of that many positions takes (session.h), number `first` of s at position `from`. Memory is
 * t's. */
int synthetic_table(const struct synthetic *s, int64_t first, int32_t from, int32_t positions,
                    struct session_synthetic *t, struct err *e);
void synthetic_table_free(struct session_synthetic *t);
/* Mean tokens a cycle, the one behind the last that stays included, where every position is as likely. */
double synthetic_mean(const struct synthetic *s);
void synthetic_free(struct synthetic *s);

#endif
