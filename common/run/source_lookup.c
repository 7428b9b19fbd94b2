/* source_lookup.c - look-ups as a source: the history of a stream in an index of its own. */
#include "lookup.h"
#include "session_impl.h"

static int open_index(struct session *s, struct session_source *x, int32_t pass_rows, struct err *e)
{
    const struct source_lookup *y = (const struct source_lookup *)x->of;
    (void)pass_rows;
    if (s->op->counts) return 0; /* nothing runs, and it is no memory of the device */
    return lookup_open((struct lookup **)&x->context, s->g->positions, y->least, y->text, e);
}

static void close_index(struct session *s, struct session_source *x)
{
    (void)s;
    lookup_close(x->context);
    x->context = NULL;
}

static int look(struct session *s, struct session_source *x, struct source_look *l, struct err *e)
{
    (void)s;
    if (lookup_set(x->context, l->history, l->n, l->same, e)) return -1;
    l->found = lookup_find(x->context, l->most, l->ids, &l->match);
    return 0;
}

static const struct source_ops lookups = {
    .name = "lookup", .open = open_index, .close = close_index, .look = look};

struct source_lookup source_lookup(int32_t least, const struct lookup_text *text)
{
    return (struct source_lookup){
        .source = {.op = &lookups, .rows = SESSION_MAX_ROWS}, .least = least, .text = text};
}
