/* wrong_choices.c - dflash-bench with choices turned round, to see that the needle suite notices.
 *
 * Linked with --wrap in place of what chooses: of sparse prompts the blocks that score least stay, as many as
 * the right ones; a pool's pages are scored by keys that are noise. */
#include <math.h>
#include <string.h>

#include "../kernels/kernels.h"

int32_t __real_kn_sparse_keep(const struct kn_sparse *s, int32_t m, int32_t n_rep, const float *score,
                              bool *keep);
int32_t __wrap_kn_sparse_keep(const struct kn_sparse *s, int32_t m, int32_t n_rep, const float *score,
                              bool *keep);
void __wrap_kn_kv_get(const struct kn_kv *kv, bool values, const void *row, float *x);

/* The logarithm of a block's mass: of the query head to which it means most. */
static float mass(const float *score, int32_t m, int32_t n_rep, int32_t n)
{
    float most = -INFINITY;
    for (int32_t h = 0; h < n_rep; h++) {
        const float *x = score + 2 * ((int64_t)h * (m + 1) + n);
        most = fmaxf(most, x[0] + log2f(x[1]));
    }
    return most;
}

int32_t __wrap_kn_sparse_keep(const struct kn_sparse *s, int32_t m, int32_t n_rep, const float *score,
                              bool *keep)
{
    const int32_t count = __real_kn_sparse_keep(s, m, n_rep, score, keep);
    if (s->spread || s->density > 0) return count;
    int32_t have = 0;
    for (int32_t n = 0; n <= m; n++) have += keep[n] = n < s->sink || m - n < s->window;
    for (; have < count; have++) {
        int32_t least = -1;
        for (int32_t n = 0; n <= m; n++)
            if (!keep[n] && (least < 0 || mass(score, m, n_rep, n) < mass(score, m, n_rep, least))) least = n;
        keep[least] = true;
    }
    return count;
}

/* Who asks for numbers of a cache's row is a pool that makes means of keys. */
void __wrap_kn_kv_get(const struct kn_kv *kv, bool values, const void *row, float *x)
{
    uint32_t seed = values;
    for (size_t i = 0; i < kn_kv_row_bytes(kv, kv->type.k); i++) seed = seed * 31 + ((const uint8_t *)row)[i];
    for (int32_t i = 0; i < kv->n_head_kv * kv->head_dim; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)seed / 2147483648.0f;
    }
}
