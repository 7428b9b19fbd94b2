/* attention/codes.cu - attn_codes and codes_merge: launched, as many tiles at a time as there is scratch for.
 */
#include "codes.cuh"
#include "codes_launch.cuh"

typedef void (*codes_fn)(const struct codes_args);

static codes_fn codes_of(int32_t d, int32_t tiles)
{
    switch (2 * d + tiles) {
    case 2 * 64 + 1: return attn_codes<64, 1, false>;
    case 2 * 64 + 2: return attn_codes<64, 2, false>;
    case 2 * 128 + 1: return attn_codes<128, 1, false>;
    case 2 * 128 + 2: return attn_codes<128, 2, false>;
    case 2 * 256 + 1: return attn_codes<256, 1, false>;
    case 2 * 512 + 1: return attn_codes<512, 1, false>;
    default: return NULL;
    }
}
static codes_fn paths_of(int32_t d)
{
    return d == 64    ? attn_codes<64, 1, true>
           : d == 128 ? attn_codes<128, 1, true>
           : d == 256 ? attn_codes<256, 1, true>
                      : attn_codes<512, 1, true>;
}
static codes_fn merge_of(int32_t d)
{
    return d == 64    ? codes_merge<64>
           : d == 128 ? codes_merge<128>
           : d == 256 ? codes_merge<256>
                      : codes_merge<512>;
}

static int allow(struct cuda_backend *be, codes_fn f)
{
    return !f ? 0
              : cuda_check(be, "attention",
                           cudaFuncSetAttribute((const void *)f, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                be->smem_block));
}
int attn_codes_open(struct cuda_backend *be)
{
    int rc = 0;
    for (int32_t d = 64; d <= 512 && rc == 0; d *= 2) {
        for (int32_t tiles = 1; tiles <= 2 && rc == 0; tiles++) rc = allow(be, codes_of(d, tiles));
        if (rc == 0) rc = allow(be, paths_of(d));
    }
    return rc ? rc : attn_far_codes_open(be);
}

static struct codes_args args_of(struct cuda_backend *be, const struct kn_kv *kv, const struct attn *base,
                                 int32_t slots, int32_t tiles)
{
    struct codes_args p = {};
    p.a = *base;
    p.k = kv_side_of(kv, false), p.v = kv_side_of(kv, true);
    p.a.part = (float *)be->scratch_rows;
    p.a.slots = slots, p.a.tiles = tiles;
    p.values_at = attn_codes_leaf_bytes(p.a.d, p.a.d, p.k.type);
    p.warp_bytes = p.values_at + attn_codes_leaf_bytes(p.a.d, p.a.d / ATTN_CODES_GROUPS(p.a.d), p.v.type);
    return p;
}
static int launch(struct cuda_backend *be, codes_fn f, dim3 grid, int32_t threads, size_t smem,
                  const struct codes_args &p)
{
    return cuda_check(be, "attention", cuda_launch(be, f, grid, dim3((unsigned)threads), smem, p));
}
static int merge(struct cuda_backend *be, const struct codes_args &p)
{
    cuda_count(be, CUDA_ATTN_MERGE);
    const int32_t heads = CODES_HEADS(p.a.d);
    return launch(be, merge_of(p.a.d), dim3((unsigned)(p.turned * TILE / heads), (unsigned)p.a.n_kv),
                  32 * CLASSES * heads, 0, p);
}

int attn_codes_launch(struct cuda_backend *be, const struct kn_attention *a, const struct attn *base,
                      const struct attn_plan *plan)
{
    struct codes_args p = args_of(be, a->kv, base, plan->slots, plan->tiles);
    const bool far = plan->form == ATTN_FAR_CODES;
    int rc = 0;
    if (far) { /* of an item */
        p.values_at = attn_far_codes_side(p.a.d, p.k.type);
        p.warp_bytes = p.values_at + attn_far_codes_side(p.a.d, p.v.type);
    }
    for (int32_t g = 0; g < plan->groups && rc == 0; g += plan->turn) {
        const int32_t groups = plan->groups - g < plan->turn ? plan->groups - g : plan->turn;
        p.a.tile0 = g * plan->tiles;
        p.turned = groups * plan->tiles;
        const dim3 grid((unsigned)groups, (unsigned)p.a.n_kv, (unsigned)plan->blocks);
        rc = far ? attn_far_codes_launch(be, &p, plan)
                 : launch(be, codes_of(p.a.d, plan->tiles), grid, 32 * plan->warps, plan->smem, p);
        p.a.early = false; /* what comes next writes where this one reads */
        if (rc == 0) rc = merge(be, p);
    }
    return rc;
}

/* As many rows at a time as there is scratch for. */
int attn_codes_tree(struct cuda_backend *be, const struct kn_kv *kv, const struct attn *base,
                    const struct kn_kv *tail, const int32_t *pos, const uint8_t *path)
{
    const int32_t d = base->d, n_kv = base->n_kv, n_rep = base->n_rep, two = d <= 128 ? 2 : 1;
    const int32_t held = kv_positions(base->where),
                  slots = attn_codes_nodes(held, base->n + 1, base->window, true, be->head.kv_bound);
    const int32_t turn = attn_codes_turn(base->n, n_rep, n_kv, d, slots, be->scratch_rows_bytes);
    if (turn < 1)
        return cuda_fail(
            be, KN_EINVAL,
            "attention: a tree of %d heads of %d over a ring of %d wants more scratch than the %zu bytes "
            "reserved (reserve_kv)",
            base->n_head, d, held, be->scratch_rows_bytes);
    struct codes_args p = args_of(be, kv, base, slots, two);
    const int32_t threads = 128 * ATTN_CODES_GROUPS(d);
    int rc = 0;
    p.tail_k = (const unsigned char *)tail->k, p.tail_v = (const unsigned char *)tail->v;
    p.tree_pos = pos, p.tree_path = path;
    for (int32_t row = 0; row < base->n && rc == 0; row += turn) {
        const int32_t rows = base->n - row < turn ? base->n - row : turn,
                      groups = ((rows * n_rep + TILE - 1) / TILE + two - 1) / two;
        p.row0 = row;
        p.a.tile0 = row * n_rep / TILE;
        p.turned = groups * two;
        p.shared = true;
        if (!p.a.window)
            rc = launch(be, codes_of(d, two), dim3((unsigned)groups, (unsigned)n_kv, (unsigned)slots),
                        threads, attn_codes_bytes(d, two, p.k.type, p.v.type), p);
        p.shared = false;
        if (rc == 0)
            rc = launch(be, paths_of(d),
                        dim3((unsigned)(rows * ((n_rep + TILE - 1) / TILE)), (unsigned)n_kv,
                             (unsigned)(p.a.window ? slots : 2)),
                        threads, attn_codes_bytes(d, 1, p.k.type, p.v.type), p);
        if (rc == 0) rc = merge(be, p);
    }
    return rc;
}
