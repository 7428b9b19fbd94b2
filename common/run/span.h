/* span.h - what some positions of a stream left behind, as bytes in memory: the parts that prefixes are kept
 * in (prefix.h).
 *
 * A span holds keys and values of positions first .. first + n - 1 of every cache, the target's and those
 * among the source's context (a position earlier where the source's end earlier), and what the source keeps
 * of the last position alone; a *point* holds recurrent state behind position n_past - 1. Together, all spans
 * up to a point and the point bring a new stream to where the old one stood, but for the logits of its last
 * token. The bytes are those of this engine: they know the cache types, and no ring size. */
#ifndef DFLASH_SPAN_H
#define DFLASH_SPAN_H

#include "session.h"

/* Can all that a stream of this engine keeps be taken so? A source may keep context that is no cache. */
bool span_possible(const struct session *s);
uint64_t span_bytes(const struct session *s, int32_t n);
uint64_t span_point_bytes(const struct session *s); /* 0: there is no recurrent state */
/* Into out, span_bytes of it. The positions are committed, and the last pass_rows rows of the stream (no ring
 * has written over them). ERR_DEVICE, ERR_IO: memory. */
int span_take(struct session *s, int32_t first, int32_t n, uint8_t *out, struct err *e);
int span_point_take(struct session *s, uint8_t *out, struct err *e); /* settles what is pending first */
/* Back. Spans are put in ascending order into a new stream that will stand at end. */
int span_put(struct session *s, int32_t first, int32_t n, int32_t end, const uint8_t *in, struct err *e);
int span_point_put(struct session *s, const uint8_t *in, struct err *e);
/* The new stream stands behind the tokens ids [n], whose spans and point were put. */
int span_stand(struct session *s, const int32_t *ids, int32_t n, struct err *e);

#endif
