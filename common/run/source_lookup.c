/* source_lookup.c - look-ups as a source: the history of a stream in an index of its own. */
#include "lookup.h"
#include "session_impl.h"

static int open_index(struct session *s, int32_t pass_rows, struct err *e)
{
    const struct source_lookup *x = (const struct source_lookup *)s->o.look;
    (void)pass_rows;
    if (s->op->counts) return 0; /* nothing runs, and it is no memory of the device */
    return lookup_open((struct lookup **)&s->look_context, s->g->positions, x->least, x->text, e);
}

static void close_index(struct session *s)
{
    lookup_close(s->look_context);
    s->look_context = NULL;
}

static int look(struct session *s, struct source_look *l, struct err *e)
{
    if (lookup_set(s->look_context, l->history, l->n, l->same, e)) return -1;
    l->found = lookup_find(s->look_context, l->most, l->ids, &l->match);
    return 0;
}

static const struct source_ops lookups = {
    .name = "lookup", .open = open_index, .close = close_index, .look = look};

struct source_lookup source_lookup(int32_t least, const struct lookup_text *text)
{
    return (struct source_lookup){
        .source = {.op = &lookups, .rows = SESSION_MAX_ROWS}, .least = least, .text = text};
}
