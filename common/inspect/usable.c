/* usable.c - see usable.h. */
#include "usable.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

bool usable_any(uint32_t type)
{
    return kn_cpu_multiplies(type) || kn_cuda_multiplies(type);
}

/* Of a drafter's matrix with a scale beside it, which is multiplied as float32. */
static bool scaled(const struct gguf *g, const struct gguf_tensor *t, const struct desc *d)
{
    char scale[128];
    snprintf(scale, sizeof scale, "%.*s.scale", (int)(strlen(t->name) - strlen(".weight")), t->name);
    return d->arch == DESC_DFLASH && gguf_tensor(g, scale);
}

static bool takes(const struct gguf *g, const struct gguf_tensor *t, const struct desc *d,
                  usable_fn multiplies)
{
    const struct kn_type_info *ti = kn_type_info(t->type);
    const size_t n = strlen(t->name);
    if (t->type == KN_I32) return strstr(t->name, "token_ordering") != NULL; /* ids */
    const bool weight = n > 7 && !strcmp(t->name + n - 7, ".weight");
    if (!strcmp(t->name, "d2t")) return t->type == KN_I64;
    if (t->n_dims < 2 || !weight || strstr(t->name, "ssm_conv1d")) return ti->can_decode;
    return scaled(g, t, d) ? ti->can_decode : multiplies(t->type);
}

/* Of a block behind those that are run, or before. */
static bool left_out(const struct gguf_tensor *t, const struct desc *d)
{
    int32_t layer;
    return sscanf(t->name, "blk.%9d.", &layer) == 1 &&
           (layer < d->first_block || layer >= d->first_block + d->n_layer);
}

const struct gguf_tensor *usable_types(const struct gguf *g, const struct desc *d, usable_fn multiplies,
                                       int64_t *n, char *text, size_t size)
{
    const struct gguf_tensor *first = NULL;
    *n = 0;
    text[0] = 0;
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensor[i];
        int64_t same = 0;
        bool told = false;
        if (takes(g, t, d, multiplies) || left_out(t, d)) continue;
        if (!first) first = t;
        (*n)++;
        for (uint64_t j = 0; j < g->n_tensors; j++) {
            const struct gguf_tensor *u = &g->tensor[j];
            if (u->type != t->type || takes(g, u, d, multiplies) || left_out(u, d)) continue;
            told |= j < i;
            same++;
        }
        const size_t used = strlen(text);
        if (!told && used < size)
            snprintf(text + used, size - used, "%s%s (%" PRId64 " tensor%s)", used ? ", " : "",
                     kn_type_info(t->type)->name, same, same == 1 ? "" : "s");
    }
    return first;
}
