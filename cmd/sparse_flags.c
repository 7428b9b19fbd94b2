/* sparse_flags.c - see sparse_flags.h. */
#include "sparse_flags.h"

#include <math.h>

enum { DENSE = 2 };

void sparse_flags_check(const struct sparse_flags *f, const char *state_path, const struct cli *c)
{
    if (f->dense >= 0 && f->alpha < 0 && !state_path)
        cli_usage_error(c, "--sparse-dense needs --sparse ALPHA");
}

int sparse_flags_resolve(const struct sparse_flags *f, const struct state_info *info,
                         struct session_options *o, struct err *e)
{
    const struct session_sparse none = {0}, had = info ? info->sparse : none;
    o->sparse = had;
    if (f->alpha >= 0) {
        o->sparse.on = true;
        o->sparse.alpha = f->alpha;
        if (!had.on) o->sparse.dense = DENSE;
    }
    if (f->dense >= 0 && o->sparse.on) o->sparse.dense = f->dense;
    if (f->dense >= 0 && info && !o->sparse.on)
        return err_set(e, ERR_USAGE,
                       "--sparse-dense %d: the state is of dense prompts (expected no such flag)", f->dense);
    return 0;
}

static int totals(struct session *s, uint64_t *kept, double *all, struct err *e)
{
    uint64_t sum[2] = {0, 0};
    if (session_sparse_kept(s, kept, e)) return -1;
    for (int i = 0; i < 2 * s->target->d->n_layer; i++) sum[i % 2] += kept[i];
    *all = sum[1] ? (double)sum[0] / (double)sum[1] : NAN;
    return 0;
}

double sparse_flags_density(struct session *s, struct err *e)
{
    uint64_t kept[2 * DESC_MAX_LAYERS];
    double all;
    return totals(s, kept, &all, e) ? NAN : all;
}

static json_t *number(double x)
{
    return isnan(x) ? json_null() : json_real(x);
}

json_t *sparse_flags_json(struct session *s, struct err *e)
{
    uint64_t kept[2 * DESC_MAX_LAYERS];
    double all;
    if (!s->sparse || totals(s, kept, &all, e)) return json_null();
    json_t *j = json_object(), *layers = json_array();
    for (int i = 0; i < s->target->d->n_layer; i++) {
        json_t *y = json_object();
        json_object_set_new(y, "layer", json_integer(i));
        json_object_set_new(y, "density",
                            number(kept[2 * i + 1] ? (double)kept[2 * i] / (double)kept[2 * i + 1] : NAN));
        json_object_set_new(y, "seconds", json_real(s->layer_ns[i] * 1e-9));
        json_array_append_new(layers, y);
    }
    json_object_set_new(j, "alpha", json_real((double)s->o.sparse.alpha));
    json_object_set_new(j, "dense", json_integer(s->o.sparse.dense));
    json_object_set_new(j, "density", number(all));
    json_object_set_new(j, "layers", layers);
    return j;
}
