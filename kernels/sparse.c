/* sparse.c - which blocks a block of rows attends to: what the CPU and tests ask; kernels/cuda/attention has
 * the same for a device. */
#include <math.h>

#include "kernels.h"

/* Of n blocks the j-th, where c of them are to be taken evenly. */
static bool spread(int64_t j, int64_t n, int64_t c)
{
    return (j + 1) * c / n > j * c / n;
}

static bool forced(const struct kn_sparse *s, int32_t m, int32_t n)
{
    return n < s->sink || m - n < s->window;
}

/* E 2^(M - top): exact, so that the same blocks are kept on every machine. */
static float mass(const float *score, float top)
{
    const float d = score[0] - top;
    if (isnan(score[1]) || isnan(d)) return NAN;
    return d < -126 ? 0 : ldexpf(score[1], (int)d);
}

/* Those of one query head that its scores keep. What is no number keeps its block. */
static void keep_by_score(const struct kn_sparse *s, int32_t m, const float *score, bool *keep)
{
    float top = -INFINITY, most = 0;
    for (int32_t n = 0; n <= m; n++) top = fmaxf(top, score[2 * n]);
    for (int32_t n = 0; n <= m; n++) most = fmaxf(most, mass(score + 2 * n, top));
    for (int32_t n = 0; n <= m; n++) keep[n] |= !(mass(score + 2 * n, top) < s->alpha * most);
}

int32_t kn_sparse_keep(const struct kn_sparse *s, int32_t m, int32_t n_rep, const float *score, bool *keep)
{
    int32_t count = 0, n_free = 0, at = 0;
    for (int32_t n = 0; n <= m; n++) keep[n] = forced(s, m, n), n_free += !keep[n];
    for (int32_t h = 0; h < n_rep; h++) keep_by_score(s, m, score + (int64_t)h * 2 * (m + 1), keep);
    for (int32_t n = 0; n <= m; n++) count += keep[n];
    if (s->spread || s->density > 0) {
        const int32_t fixed = m + 1 - n_free,
                      all = s->density > 0 ? (int32_t)ceilf(s->density * (float)(m + 1)) : count,
                      want = all < fixed            ? 0
                             : all - fixed < n_free ? all - fixed
                                                    : n_free;
        for (int32_t n = 0; n <= m; n++) keep[n] = forced(s, m, n) || spread(at++, n_free, want);
        count = fixed + want;
    }
    return count;
}
