/* lookup.h - look-ups: what followed when the last tokens stood there before.
 *
 * A look-up holds the tokens of one stream, prompt and output, and finds the place in them, or in a text that
 * many streams share, whose last tokens are the stream's last ones. The tokens that followed there are
 * proposals. No model is asked, so they cost what a search costs; a text that repeats, quotes or edits itself
 * is mostly made of such places.
 *
 * The rule. A place is an end e: so many tokens of the stream or the text stand before it and at least one
 * behind. Its match is the number of tokens before e that equal the last ones of the stream, LOOKUP_MATCH at
 * most. Only places with a match of at least `least` count, and of those the LOOKUP_TRIES newest in the
 * stream and the LOOKUP_TRIES last in the text. The longest match wins; among equals the stream before the
 * text, then the newest. A place may overlap the end: its followers run into the proposals themselves, so a
 * repetition goes on for as many as are asked for.
 *
 * So what is found is a function of the stream's tokens and the text alone: a look-up that is made from the
 * history again answers as the one that grew with it, and one that went back (lookup_set) as one that was
 * never further.
 *
 * Cost: a token added is a hash of `least` tokens and a probe, a search is LOOKUP_TRIES comparisons of
 * LOOKUP_MATCH tokens at most. Memory is taken at opening: 16 to 24 bytes a position of a stream, 12 to 20 a
 * token of a text. */
#ifndef DFLASH_LOOKUP_H
#define DFLASH_LOOKUP_H

#include <stdint.h>
#include "../base/err.h"

#define LOOKUP_LEAST 4       /* default of least */
#define LOOKUP_MATCH 64      /* tokens of a match that are counted; of least at most */
#define LOOKUP_TRIES 64      /* places that are compared in the stream; the same in the text */
#define LOOKUP_MAX (1 << 30) /* tokens of a text, and of a stream */

/* Tokens with their index. Never written after it was opened: streams share it. */
struct lookup_text;
/* ids: [n], borrowed; they stay as they are until it is closed. least: of the look-ups over it, 1 ..
 * LOOKUP_MATCH. ERR_USAGE: out of range, or more than LOOKUP_MAX tokens; ERR_IO: memory. */
int lookup_text_open(struct lookup_text **t, const int32_t *ids, int64_t n, int32_t least, struct err *e);
void lookup_text_close(struct lookup_text *t); /* NULL is legal */

struct lookup;
/* An empty stream, with room for so many tokens. text: borrowed, with the same least; NULL: none. Errors:
 * those of a text. */
int lookup_open(struct lookup **x, int32_t room, int32_t least, const struct lookup_text *text,
                struct err *e);
void lookup_close(struct lookup *x); /* NULL is legal */

/* The stream is ids[0 .. n): what it has in common with the tokens held stays, what else is held is taken
 * back, and the rest is added. same: so many leading tokens are known to be in common, as far as they are
 * held; they are not compared. ERR_USAGE: more tokens than there is room for. */
int lookup_set(struct lookup *x, const int32_t *ids, int32_t n, int32_t same, struct err *e);

/* Up to most tokens that may follow the stream, into ids. Returns how many; 0: no place has a match of least
 * or more. *match: that of the place; 0 where there is none. */
int32_t lookup_find(const struct lookup *x, int32_t most, int32_t *ids, int32_t *match);

#endif
