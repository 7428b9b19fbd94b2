/* pages.h - a bounded set of a stream's keys and values: pages in the device's memory that a row may see, all
 * of them in the host's.
 *
 * A page is POOL_PAGE positions, whole leaves of attention, of every layer of the target that sees
 * everything; layers with a window, and recurrent ones, are as they are. The caches of a stream with a pool
 * have room for the pool and one page more. Pages that are *held* fill slots of it; the page that is being
 * written has the last slot, so a row's place in the cache is its position less `shift`, and attention needs
 * to know of nothing: keys have their rotation already, and all before the last slot are before the row. When
 * a page is full the stream *turns*: at an absolute multiple of POOL_PAGE, and no pass of rows stands across
 * one. Then the full page's bytes go to the host, and the next one takes its slot. Who leaves for it:
 *
 *     sink (the first page) and tail (the last POOL_TAIL full ones)     never
 *     others        those of the least score; of equals, and of those that have none yet, the earliest
 *
 * Scores are made at some turns (pages_scores_at): the target runs the row that comes next, which it forgets
 * again, and its queries are held against the mean keys of all pages: the cosine, the best of a group's query
 * heads and of the page, added over heads and layers. Then the best pages are held, whoever they were: those
 * that come back come from the host, byte for byte. Between, one page leaves a turn.
 *
 * So what a row sees is a function of the tokens before its turn, and of the row at it. With drafts and
 * without, and in whatever pieces a prompt comes, it is the same. Before the pool is full the stream is as
 * without one. */
#ifndef DFLASH_PAGES_H
#define DFLASH_PAGES_H

#include "session.h"

enum { POOL_PAGE = 64, POOL_TAIL = 4, POOL_LEAST = (1 + POOL_TAIL + 2) * POOL_PAGE };

struct pages;
/* ERR_USAGE: positions are no multiple of a page, or fewer than POOL_LEAST. */
int pages_check(int32_t positions, struct err *e);
/* After the caches. ERR_IO, ERR_DEVICE: memory. */
int pages_new(struct session *s, struct err *e);
void pages_free(struct session *s);
void pages_reset(struct session *s); /* the slot has a new stream */
/* Are scores made at the turn at that position? At times that double with the length. */
bool pages_scores_at(int32_t pos);

/* Before rows at n_past: the turn, if there is one. id: of the token at n_past. Nothing runs. */
int pages_turn(struct session *s, int32_t id, struct err *e);
int32_t
pages_rows(const struct session *s); /* rows from n_past on to the next turn; without a pool INT32_MAX */
int32_t pages_shift(const struct session *s); /* a place in the cache is a position less so many */

struct pages_stats {
    int64_t turns, scored; /* those with scores */
    int64_t came;          /* pages that came back from the host */
    uint64_t bytes;        /* of the host's memory */
};
struct pages_stats pages_stats(const struct session *s);
/* Pages held, [*n] by slots, the last one being written; NULL without a pool. For tests. */
const int32_t *pages_held(const struct session *s, int32_t *n);

#endif
