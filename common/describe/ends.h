/* ends.h - tokens that end a generation, known by their text.
 *
 * Files name an end of text and perhaps an end of a turn by id; converters often forget one of the two. The
 * ecosystem's engines therefore know ends of turns by their text as well, and so do we. A token counts where
 * its whole text is in the list and the file declares it control or user-defined: what plain text can become
 * is no end. */
#ifndef DFLASH_ENDS_H
#define DFLASH_ENDS_H

#include <stdint.h>
#include "../file/gguf.h"

/* Ids of such tokens of the file's tokenizer, ascending, to ids [ENDS_MAX]; how many. A file without tokens
 * and their types has none. */
#define ENDS_MAX 32
int32_t ends_find(const struct gguf *g, int32_t *ids);

#endif
