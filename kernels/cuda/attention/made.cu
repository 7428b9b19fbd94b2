/* attention/made.cu - attn_rows for heads of 256 and 512, attn_made for those of 256. */
#include "made.cuh"
#include "rows.cuh"
#include "../product/owe.cuh"

template <int D, int TILES> static attn_fn made_places_of(uint32_t type, size_t *smem)
{
    *smem = (size_t)made_places<D, TILES>::BYTES;
    return type == KN_BF16 ? attn_made<D, true, TILES> : attn_made<D, false, TILES>;
}
attn_fn attn_made_of(int32_t d, int32_t tiles, uint32_t type, size_t *smem)
{
    if (type == KN_F32 || d != 256) return NULL;
    return tiles == 1 ? made_places_of<256, 1>(type, smem) : made_places_of<256, 2>(type, smem);
}
int64_t attn_made_bytes(int32_t d)
{
    return d == 256 ? made<256>::BYTES : d == 512 ? made<512>::BYTES : 0;
}

static void (*rows_of(int32_t d, uint32_t type))(attn, made_source)
{
    if (d == 512) return type == KN_BF16 ? attn_rows<512, true> : attn_rows<512, false>;
    return type == KN_BF16 ? attn_rows<256, true> : attn_rows<256, false>;
}

int attn_rows_launch(struct cuda_backend *be, const struct kn_rope_store *s, const struct attn *p,
                     unsigned char *made)
{
    struct made_source from = {};
    struct mm_owed owed = {};
    const float *const rows[] = {s->q, s->k, s->v};
    const int32_t heads[] = {p->n_head, p->n_kv, p->n_kv};
    if (!mm_take_rows(be, p->n, p->d, rows, s->v == s->k ? 2 : 3, &owed)) {
        const int rc = cuda_flush(be);
        if (rc) return rc;
        owed.slices = 1, owed.count = s->v == s->k ? 2 : 3;
        for (int j = 0; j < owed.count; j++) owed.out[j] = (float *)rows[j], owed.width[j] = heads[j] * p->d;
    }
    const float *sums = owed.sums;
    from.made = made;
    from.count = owed.count, from.slices = owed.slices;
    for (int j = 0; j < owed.count; j++) {
        const int role = owed.out[j] == s->q ? MADE_QUERY : owed.out[j] == s->k ? MADE_KEY : MADE_VALUE;
        from.from[j] = sums ? sums : owed.out[j];
        from.heads[j] = owed.width[j] / p->d;
        from.role[j] = role == MADE_KEY && s->v == s->k ? MADE_BOTH : role;
        if (owed.out[j] != s->q && owed.out[j] != s->k && owed.out[j] != s->v) from.out[j] = owed.out[j];
        from.all += from.heads[j];
        if (sums) sums += (size_t)(owed.slices * owed.n) * (size_t)owed.width[j];
    }
    const dim3 grid((unsigned)((from.all + ROWS_WARPS - 1) / ROWS_WARPS), (unsigned)p->n);
    struct attn a = *p;
#ifdef MM_TRACE
    a.times = mm_trace_next("rows");
#endif
    return cuda_check(be, "rows of attention",
                      cuda_launch(be, rows_of(p->d, p->type), grid, dim3(32 * ROWS_WARPS), 0, a, from));
}
