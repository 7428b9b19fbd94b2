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
/* What stdin is, and what else is said. */
struct chat_input {
    bool text;          /* the words of one message of the user's; else a message a line, in JSON */
    const char *system; /* a system message before it; NULL: none */
};
/* Read stdin to its end and encode. */
int chat_encode(const struct chat_template *t, const struct tokenizer *tok, const struct chat_options *o,
                const struct chat_input *in, bool normalize, tok_ids_fn out, void *ctx, struct err *e);
/* The declarations of tools in a file, an array of objects; json_decref, also where it failed. */
int chat_read_tools(json_t **tools, const char *path, struct err *e);
/* Does the answer that a state ends with end by the token that ends a turn? */
int chat_behind_state(const char *path, const struct chat_template *t, const struct tokenizer *tok,
                      enum chat_behind *behind, struct err *e);

#endif
