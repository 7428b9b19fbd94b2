/* attention/made.cu - attn_rows. */
#include "made.cuh"
#include "rows.cuh"

int attn_rows_launch(struct cuda_backend *be, const struct kn_rope_store *s, const struct attn *p,
                     unsigned char *made)
{
    struct made_source from = {};
    const bool both = s->v == s->k;
    from.made = made, from.count = both ? 2 : 3, from.all = p->n_head + (from.count - 1) * p->n_kv;
    from.from[0] = s->q, from.heads[0] = p->n_head, from.role[0] = MADE_QUERY;
    from.from[1] = s->k, from.heads[1] = p->n_kv, from.role[1] = both ? MADE_BOTH : MADE_KEY;
    from.from[2] = s->v, from.heads[2] = p->n_kv, from.role[2] = MADE_VALUE;
    const dim3 grid((unsigned)((from.all + ROWS_WARPS - 1) / ROWS_WARPS), (unsigned)p->n);
    return cuda_check(be, "rows of attention",
                      cuda_launch(be, kv_bf16(p->type) ? attn_rows<true> : attn_rows<false>, grid,
                                  dim3(32 * ROWS_WARPS), 0, *p, from));
}
