/* cells.c - cells among the lines of a report, and which of them are alike. See report.h. */
#include <math.h>
#include <string.h>
#include "../../common/base/mem.h"
#include "report.h"

static const char *const axis_name[AXES] = {"target", "drafter", "class", "setting", "plan"};

static const char *axis_of(const json_t *j, enum axis a)
{
    const json_t *tag = json_object_get(json_object_get(j, "tags"), axis_name[a]);
    const char *s = NULL;
    if (a == AXIS_TARGET || a == AXIS_DRAFTER)
        s = json_string_value(json_object_get(json_object_get(j, axis_name[a]), "file"));
    else if (json_is_string(tag))
        s = json_string_value(tag);
    else if (a == AXIS_CLASS)
        s = json_string_value(json_object_get(j, "label"));
    return s ? s : "";
}

const char *cells_axis(enum axis a)
{
    return axis_name[a];
}

int cells_read(struct report_cells *c, const json_t *lines)
{
    const size_t n = json_array_size(lines);
    const char **known = mem_calloc(n + 1, sizeof *known); /* the names of an axis, by their numbers */
    c->n = 0;
    c->v = mem_calloc(n + 1, sizeof *c->v);
    if (!known || !c->v) {
        mem_free(known);
        return -1;
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *j = json_array_get(lines, i), *drafted = json_object_get(j, "drafted");
        const json_t *kept = json_object_get(drafted, "accepted_histogram");
        if (!report_is(j, "cell")) continue;
        c->v[c->n++] =
            (struct report_cell){.j = j, .drafted = drafted, .kept = json_is_array(kept) ? kept : NULL};
    }
    for (int a = 0; a < AXES; a++) {
        int n_known = 0;
        for (size_t i = 0; i < c->n; i++) {
            struct report_cell *x = &c->v[i];
            x->of[a] = axis_of(x->j, (enum axis)a);
            while (x->id[a] < n_known && strcmp(known[x->id[a]], x->of[a]) != 0) x->id[a]++;
            if (x->id[a] == n_known) known[n_known++] = x->of[a];
        }
    }
    mem_free(known);
    return 0;
}

void cells_free(struct report_cells *c)
{
    mem_free(c->v);
    memset(c, 0, sizeof *c);
}

bool cells_alike(const struct report_cell *a, const struct report_cell *b, unsigned axes)
{
    for (int k = 0; k < AXES; k++)
        if ((axes >> k & 1) && a->id[k] != b->id[k]) return false;
    return true;
}

bool cells_first(const struct report_cells *c, size_t i, unsigned axes, bool with_kept)
{
    for (size_t k = 0; k < i; k++)
        if ((c->v[k].kept || !with_kept) && cells_alike(&c->v[k], &c->v[i], axes)) return false;
    return true;
}

double cells_kept(const struct report_cells *c, const struct report_cell *like, unsigned axes, int proposals)
{
    double all = 0, kept = 0;
    for (size_t k = 0; k < c->n; k++) {
        const json_t *h = c->v[k].kept;
        if (!h || !cells_alike(&c->v[k], like, axes)) continue;
        for (size_t a = 0; a < json_array_size(h); a++) {
            const double n = json_number_value(json_array_get(h, a));
            all += n;
            if ((int)a >= proposals) kept += n;
        }
    }
    return all > 0 ? kept / all : NAN;
}
