/* chat.h - --chat: JSON lines on stdin, one message each, to the ids of the model's chat template
 * (common/token/chat.h). */
#ifndef DFLASH_TOKENIZE_CHAT_H
#define DFLASH_TOKENIZE_CHAT_H

#include "../../common/token/chat.h"
#include "../../common/file/gguf.h"
#include "../../common/token/tokenizer.h"
#include "../cli.h"

/* The template of g, or the one of that name (NULL: g's own), checked against
 * the tokenizer and the options. */
int chat_choose(const struct chat_template **t, const struct gguf *g, const struct tokenizer *tok,
                const char *name, const struct chat_options *o, const struct cli *cli, struct err *e);
/* Read stdin to its end and encode. */
int chat_encode(const struct chat_template *t, const struct tokenizer *tok, const struct chat_options *o,
                bool normalize, tok_ids_fn out, void *ctx, struct err *e);

#endif
