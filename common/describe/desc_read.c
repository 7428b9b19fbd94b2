/* desc_read.c - one key or one tensor of a description: found, of the right type
 * and in range, or an error. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "desc_impl.h"

/* ---- messages ---- */

int desc_fail(struct desc_reader *r, const char *fmt, ...)
{
    va_list ap;
    char text[640];
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return err_set(r->e, ERR_FORMAT, "%s: %s", r->g->map.path ? r->g->map.path : "model", text);
}

void desc_infer(struct desc_reader *r, const char *fmt, ...)
{
    char *out = r->d->inferred;
    size_t used = strlen(out), n = sizeof r->d->inferred;
    va_list ap;
    if (used) used += (size_t)snprintf(out + used, n - used, "; ");
    if (used >= n) return;
    va_start(ap, fmt);
    vsnprintf(out + used, n - used, fmt, ap);
    va_end(ap);
}

/* ---- keys ---- */

const char *desc_key(const struct desc_reader *r, const char *name, char *buf, size_t n)
{
    snprintf(buf, n, "%s.%s", r->d->arch_name, name);
    return buf;
}

int desc_missing(struct desc_reader *r, const char *key, const char *expected)
{
    return desc_fail(r, "key '%s': is missing (expected %s)", key, expected);
}

static int in_range(struct desc_reader *r, const char *key, int64_t v, int32_t lo, int32_t hi)
{
    if (v >= lo && v <= hi) return 0;
    return desc_fail(r, "key '%s': out of range (expected %d to %d, got %" PRId64 ")", key, lo, hi, v);
}

int desc_maybe_i32(struct desc_reader *r, const char *name, int32_t lo, int32_t hi, int32_t *v)
{
    char key[160];
    int rc = gguf_get_i32(r->g, desc_key(r, name, key, sizeof key), v, r->e);
    return rc ? rc : in_range(r, key, *v, lo, hi);
}

int desc_need_i32(struct desc_reader *r, const char *name, int32_t lo, int32_t hi, int32_t *v)
{
    char key[160];
    int rc = desc_maybe_i32(r, name, lo, hi, v);
    return rc > 0 ? desc_missing(r, desc_key(r, name, key, sizeof key), "an integer") : rc;
}

int desc_maybe_f32(struct desc_reader *r, const char *name, float *v)
{
    char key[160];
    int rc = gguf_get_f32(r->g, desc_key(r, name, key, sizeof key), v, r->e);
    if (rc == 0 && (!isfinite(*v) || *v <= 0))
        return desc_fail(r, "key '%s': out of range (expected a finite number above 0, got %g)", key, *v);
    return rc;
}

int desc_need_f32(struct desc_reader *r, const char *name, float *v)
{
    char key[160];
    int rc = desc_maybe_f32(r, name, v);
    return rc > 0 ? desc_missing(r, desc_key(r, name, key, sizeof key), "a number") : rc;
}

int desc_need_theta(struct desc_reader *r, const char *name, float *v)
{
    char key[160];
    if (desc_need_f32(r, name, v)) return -1;
    return *v >= 1 ? 0
                   : desc_fail(r, "key '%s': out of range (expected 1 or more, got %g)",
                               desc_key(r, name, key, sizeof key), (double)*v);
}

int desc_agree_i32(struct desc_reader *r, const char *name, int32_t found, const char *where)
{
    char key[160];
    int32_t v;
    int rc = gguf_get_i32(r->g, desc_key(r, name, key, sizeof key), &v, r->e);
    if (rc == 0 && v != found)
        return desc_fail(r, "key '%s': disagrees with %s (expected %d, got %d)", key, where, found, v);
    return rc < 0 ? -1 : 0;
}

static int wrong_array(struct desc_reader *r, const struct gguf_kv *kv, const char *expected)
{
    char text[96];
    gguf_value_text(kv, text, sizeof text);
    return desc_fail(r, "key '%s': has the wrong type (expected %s[%d], got %s)", kv->key, expected,
                     r->d->n_layer, text);
}

int desc_maybe_i32s(struct desc_reader *r, const char *name, int32_t lo, int32_t hi, int32_t *v)
{
    char key[160];
    const struct gguf_kv *kv = gguf_find(r->g, desc_key(r, name, key, sizeof key));
    if (!kv || kv->type != GGUF_ARRAY) {
        int rc = desc_maybe_i32(r, name, lo, hi, &v[0]);
        for (int i = 1; rc == 0 && i < r->d->n_layer; i++) v[i] = v[0];
        return rc;
    }
    if ((kv->elem != GGUF_I32 && kv->elem != GGUF_U32) || kv->count != (uint64_t)r->d->n_layer)
        return wrong_array(r, kv, "i32");
    for (int i = 0; i < r->d->n_layer; i++) {
        int64_t x = gguf_array_i64(kv, (uint64_t)i);
        if (in_range(r, key, x, lo, hi)) return -1;
        v[i] = (int32_t)x;
    }
    return 0;
}

int desc_maybe_bools(struct desc_reader *r, const char *name, bool *v)
{
    char key[160];
    const struct gguf_kv *kv = gguf_find(r->g, desc_key(r, name, key, sizeof key));
    if (!kv) return 1;
    if (kv->type != GGUF_ARRAY || kv->elem != GGUF_BOOL || kv->count != (uint64_t)r->d->n_layer)
        return wrong_array(r, kv, "bool");
    for (int i = 0; i < r->d->n_layer; i++) v[i] = gguf_array_i64(kv, (uint64_t)i) != 0;
    return 0;
}

static bool in_list(const char *name, const char *const *list)
{
    for (; list && *list; list++)
        if (!strcmp(name, *list)) return true;
    return false;
}

int desc_known_keys(struct desc_reader *r, const char *const *known, const char *const *more)
{
    size_t n = strlen(r->d->arch_name);
    for (uint64_t i = 0; i < r->g->n_kv; i++) {
        const struct gguf_kv *kv = &r->g->kv[i];
        char text[96];
        if (strncmp(kv->key, r->d->arch_name, n) || kv->key[n] != '.') continue;
        if (in_list(kv->key + n + 1, known) || in_list(kv->key + n + 1, more)) continue;
        gguf_value_text(kv, text, sizeof text);
        return desc_fail(
            r, "key '%s': is not supported and could change the forward pass (expected no such key, got %s)",
            kv->key, text);
    }
    return 0;
}

/* ---- tensors ---- */

/* A tensor, marked as known; NULL: absent. */
static const struct gguf_tensor *known_tensor(struct desc_reader *r, const char *name)
{
    const struct gguf_tensor *t = gguf_tensor(r->g, name);
    if (t) r->seen[t - r->g->tensor] = true;
    return t;
}

static const struct gguf_tensor *need_tensor(struct desc_reader *r, const char *name)
{
    const struct gguf_tensor *t = known_tensor(r, name);
    if (!t) desc_fail(r, "tensor '%s': is missing", name);
    return t;
}

int desc_dim(struct desc_reader *r, const char *name, int i, int32_t *v)
{
    const struct gguf_tensor *t = need_tensor(r, name);
    if (!t) return -1;
    if (t->ne[i] < 1 || t->ne[i] > INT32_MAX / 4)
        return desc_fail(r, "tensor '%s': dimension %d out of range (got %" PRId64 ")", name, i, t->ne[i]);
    *v = (int32_t)t->ne[i];
    return 0;
}

static void shape_text(const int64_t *ne, uint32_t n_dims, char *out, size_t n)
{
    size_t used = 0;
    for (uint32_t i = 0; i < n_dims && used < n; i++)
        used += (size_t)snprintf(out + used, n - used, "%s%" PRId64, i ? ", " : "", ne[i]);
}

int desc_shape(struct desc_reader *r, const int64_t ne[3], const char *name)
{
    char got[100], want[100];
    const struct gguf_tensor *t = need_tensor(r, name);
    uint32_t n_dims = ne[2] ? 3 : ne[1] ? 2 : 1;
    if (!t) return -1;
    bool same = true; /* dimensions that are not given are 1 */
    for (uint32_t i = 0; i < GGUF_MAX_DIMS; i++) same = same && t->ne[i] == (i < n_dims ? ne[i] : 1);
    if (same) return 0;
    shape_text(t->ne, t->n_dims, got, sizeof got);
    shape_text(ne, n_dims, want, sizeof want);
    return desc_fail(r, "tensor '%s': has the wrong shape (expected [%s], got [%s])", name, want, got);
}

int desc_all_or_none(struct desc_reader *r, const char *part)
{
    char name[64], lost[64] = "";
    int32_t n = 0;
    for (int32_t i = r->d->n_layer - 1; i >= 0; i--) {
        snprintf(name, sizeof name, "blk.%d.%s.weight", i, part);
        if (gguf_tensor(r->g, name))
            n++;
        else
            memcpy(lost, name, sizeof lost);
    }
    if (!n || n == r->d->n_layer) return 0;
    return desc_fail(r, "tensor '%s': is missing (%d of %d layers have it)", lost, n, r->d->n_layer);
}
