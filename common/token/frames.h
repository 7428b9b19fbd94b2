/* frames.h - what of a prompt is a chat's frame or a tool's words, of which no token may be left out.
 *
 * Frames and tools are known by how the templates that chat.h renders write them: a token that opens a turn,
 * its header up to a line's end, marks around declarations, calls and responses. */
#ifndef DFLASH_FRAMES_H
#define DFLASH_FRAMES_H

#include "tokenizer.h"

/* stays [n] of ids [n]: set for control and user-defined tokens; headers of turns; whole turns of system,
 * developer and tools; declarations of tools, calls and responses, marks with them; what is not closed, to
 * the end. ERR_IO: memory. */
int frames_find(const struct tokenizer *t, const int32_t *ids, size_t n, bool *stays, struct err *e);

#endif
