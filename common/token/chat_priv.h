/* chat_priv.h - what the parts of the templates share: chat.c (turns), chat_tools.c (declarations and calls),
 * chat_gemma.c (all of Gemma 4). */
#ifndef DFLASH_CHAT_PRIV_H
#define DFLASH_CHAT_PRIV_H

#include "chat.h"

struct render {
    const struct chat_template *t;
    const struct chat_message *m;
    size_t n;
    const struct chat_options *o;
    chat_fn out;
    void *ctx;
    bool think;
    size_t query; /* the last message of the user's that is no tool's answer */
    bool begins;  /* these messages begin the chat */
};

struct chat_template {
    const char *name;
    const char *arch;              /* what general.architecture begins with */
    const char *has[6], *lacks[4]; /* in the template's text */
    const char *const *tokens;
    const char *turn_ends,
        *between; /* the token that ends a turn of the model's, and what stands before the next one */
    int (*render)(const struct render *r, struct err *e);
    bool bos;
    enum { THINK_NEVER, THINK_ON, THINK_OFF, THINK_ALWAYS } think; /* _ON, _OFF: when not told */
    /* Qwen 3.5 and later */
    bool keep, effort; /* reasoning of earlier turns stays; an instruction says how much to think */
    enum {
        TOOLS_NONE,
        TOOLS_QWEN3,
        TOOLS_QWEN35,
        TOOLS_LLAMA,
        TOOLS_GEMMA
    } tools; /* how declarations and calls look; _NONE: refused */
    /* of TOOLS_QWEN35: a value that is no text is JSON, else what Python's str makes of it; of TOOLS_GEMMA:
     * null is null and names of parameters are any, else None, and keywords of a schema are no names */
    bool json_values;
    /* Gemma */
    bool newline, empty; /* after <|think|>; an empty thought where thinking is off */
    enum { THOUGHTS_NONE, THOUGHTS_OF_CALLS, THOUGHTS_ALL } reasoning; /* behind the last question */
    int join; /* turns of the model in a row: 1 one header, 2 one turn */
    enum { DATE_NONE, DATE_FIXED, DATE_TODAY } date;
};

/* The template's own text, and somebody's words. */
int chat_mark(const struct render *r, const char *s, struct err *e);
int chat_say(const struct render *r, struct chat_text v, struct err *e);
int chat_refuse(const struct render *r, size_t i, const char *why, struct err *e);
struct chat_text chat_trim(struct chat_text v);
/* What stands before the first of that; the whole where there is none. */
struct chat_text chat_before(struct chat_text v, const char *what);

/* Somebody's words as a string of JSON. */
int chat_say_quoted(const struct render *r, struct chat_text v, struct err *e);
/* JSON; indent 0: in one line. */
int chat_say_json(const struct render *r, const json_t *j, int indent, struct err *e);
/* The declarations, as the template of that kind puts them: what stands from its introduction to the last of
 * them and what is said behind. */
int chat_declare(const struct render *r, struct err *e);
/* Message i's calls, behind what it said. */
int chat_calls(const struct render *r, size_t i, struct chat_text said, struct err *e);

int chat_render_gemma4(const struct render *r, struct err *e);

#endif
