/* chat.h - a chat to the one text that a model was trained on, by the published templates of the families we
 * run.
 *
 * A model's file carries its template as a program in Jinja (tokenizer.chat_template). None is run here: the
 * file's template is recognised by what tells the published ones apart, and rendered by code that says the
 * same for messages of text; one that is not recognised is refused. docs/chat.md lists them.
 *
 * Rendering gives the text in parts, each of them markup (the template's own, in which control tokens count)
 * or content (somebody's words, which must never become a control token). Messages and templates are
 * borrowed. */
#ifndef DFLASH_CHAT_H
#define DFLASH_CHAT_H

#include <stdbool.h>
#include <stddef.h>
#include "../base/err.h"
#include "../base/json.h"

enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_TOOL };

struct chat_text {
    const char *s; /* NULL: none; whole, valid UTF-8 characters */
    size_t n;
};

struct chat_message {
    enum chat_role role;
    struct chat_text content;   /* NULL only where there are calls */
    struct chat_text reasoning; /* "reasoning_content" of the assistant's; where the template has no place for
                                   it, it is left out, as there */
    const json_t *calls;        /* "tool_calls" of the assistant's, an array; NULL: the message has none */
    const json_t *call_id;      /* "tool_call_id" of a tool's; NULL: none, or null */
};

/* What stands before the messages: nothing; an answer of the model's and the token that ends its turn; one
 * that was cut before it. Of a chat that goes on, what the template writes behind that answer is rendered. */
enum chat_behind { CHAT_BEGINS, CHAT_BEHIND_TURN, CHAT_BEHIND_CUT };

struct chat_options {
    int think; /* 1, 0, or -1: what the template does when not told */
    bool generation_prompt;
    enum chat_behind behind;
    const json_t *tools; /* declarations, an array of objects; NULL: none */
    const char *date;    /* "26 Jul 2024", for templates that name the day; NULL: the template's own */
};

struct chat_template;
/* A template by our name for it; NULL: none. */
const struct chat_template *chat_find(const char *name);
/* The templates one after the other, from 0; NULL: no more. */
const struct chat_template *chat_at(size_t i);
/* The template whose published text this is, in a file of that architecture; NULL: none that we know. */
const struct chat_template *chat_recognise(const char *text, size_t n, const char *arch);
const char *chat_name(const struct chat_template *t);
bool chat_bos(
    const struct chat_template *t); /* the text begins with the bos token, which rendering leaves out */
/* The token that ends a turn of the model's. */
const char *chat_turn_ends(const struct chat_template *t);
bool chat_can_think(const struct chat_template *t);                            /* thinking can be switched */
bool chat_thinks(const struct chat_template *t, const struct chat_options *o); /* it is on */
bool chat_has_date(const struct chat_template *t);
/* The special tokens without which the text means nothing, NULL-terminated. */
const char *const *chat_tokens(const struct chat_template *t);

typedef int (*chat_fn)(void *ctx, const char *s, size_t n, bool markup, struct err *e);
/* ERR_FORMAT where the template refuses the messages, naming the message by its number from 1. */
int chat_render(const struct chat_template *t, const struct chat_message *m, size_t n,
                const struct chat_options *o, chat_fn out, void *ctx, struct err *e);

#endif
