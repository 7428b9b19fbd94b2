/* convert_norm.c - which target a drafter is made for: the crc32 of the target's final norm, float32 as a
 * GGUF holds it. No two models that were trained apart have the same, and every type that a model is
 * converted to keeps it. */
#include <string.h>
#include <zlib.h>
#include "convert_impl.h"
#include "../base/mem.h"
#include "../file/safetensors.h"

static int crc_of(const struct conv *t, uint32_t *crc, struct err *e)
{
    for (int64_t i = 0; i < t->n_t; i++) {
        const struct conv_tensor *norm = &t->t[i];
        if (strcmp(norm->name, "output_norm.weight")) continue;
        const size_t n = (size_t)norm->ne[0];
        float *x = mem_alloc(n * sizeof *x);
        int rc =
            x ? conv_read_rows(t, norm, 0, 1, x, e) : err_set(e, ERR_IO, "out of memory (%s)", norm->name);
        if (!rc) *crc = (uint32_t)crc32_z(0, (const Bytef *)x, n * sizeof *x);
        mem_free(x);
        return rc ? -1 : 0;
    }
    return 1;
}

/* A folder need not hold the weights: config and tokenizer are enough for the rest. */
static int crc_of_dir(const struct conv *c, uint32_t *crc, struct err *e)
{
    const char *dir = c->o->target;
    struct convert o;
    struct conv *t;
    struct err mine = {0};
    char shard[256];
    int rc = st_has_weights(dir, e);
    if (rc <= 0) return rc < 0 ? -1 : 1;
    rc = st_absent_shard(dir, shard, sizeof shard, &mine);
    if (!rc && *shard)
        rc = err_set(&mine, ERR_FORMAT, "%s: shard '%s': is not there", dir, shard); /* was not fetched */
    convert_defaults(&o);
    o.input = dir;
    if (!rc) rc = conv_open(&t, &o, &mine);
    if (rc) {
        if (rc > 0 || mine.code == ERR_FORMAT) {
            if (rc < 0)
                conv_say(c, CONVERT_NOTE, "which target the drafter is for is not written: %s", mine.msg);
            return 1;
        }
        *e = mine;
        return -1;
    }
    rc = crc_of(t, crc, e);
    conv_close(t);
    return rc;
}

int conv_put_norm_crc(struct conv *c, struct err *e)
{
    uint32_t crc = 0;
    int rc = !c->o->target    ? 1
             : c->target.gguf ? !desc_norm_crc(c->target.gguf, &crc)
                              : crc_of_dir(c, &crc, e);
    return rc < 0 ? -1 : rc > 0 ? 0 : conv_put_u32(c, DESC_NORM_KEY, crc, e);
}
