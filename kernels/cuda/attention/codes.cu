/* attention/codes.cu - attn_codes and codes_merge: launched, as many tiles at a time as there is scratch for.
 */
#include "codes.cuh"
#include "codes_launch.cuh"

typedef void (*codes_fn)(const struct codes_args);

static codes_fn codes_of(int32_t d, int32_t tiles)
{
    switch (2 * d + tiles) {
    case 2 * 64 + 1: return attn_codes<64, 1>;
    case 2 * 64 + 2: return attn_codes<64, 2>;
    case 2 * 128 + 1: return attn_codes<128, 1>;
    case 2 * 128 + 2: return attn_codes<128, 2>;
    case 2 * 256 + 1: return attn_codes<256, 1>;
    case 2 * 512 + 1: return attn_codes<512, 1>;
    default: return NULL;
    }
}
static codes_fn merge_of(int32_t d)
{
    return d == 64    ? codes_merge<64>
           : d == 128 ? codes_merge<128>
           : d == 256 ? codes_merge<256>
                      : codes_merge<512>;
}

int attn_codes_open(struct cuda_backend *be)
{
    int rc = 0;
    for (int32_t d = 64; d <= 512; d *= 2)
        for (int32_t tiles = 1; tiles <= 2 && rc == 0; tiles++)
            if (codes_of(d, tiles))
                rc = cuda_check(be, "attention",
                                cudaFuncSetAttribute((const void *)codes_of(d, tiles),
                                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                     be->smem_block));
    return rc;
}

int attn_codes_launch(struct cuda_backend *be, const struct kn_attention *a, const struct attn *base,
                      const struct attn_plan *plan)
{
    struct codes_args p = {};
    int rc = 0;
    p.a = *base;
    p.k = kv_side_of(a->kv, false), p.v = kv_side_of(a->kv, true);
    p.a.part = (float *)be->scratch_rows;
    p.a.slots = plan->slots, p.a.tiles = plan->tiles;
    p.values_at = attn_codes_leaf_bytes(p.a.d, p.a.d, p.k.type);
    p.warp_bytes = p.values_at + attn_codes_leaf_bytes(p.a.d, p.a.d / ATTN_CODES_GROUPS(p.a.d), p.v.type);
    for (int32_t g = 0; g < plan->groups && rc == 0; g += plan->turn) {
        const int32_t groups = plan->groups - g < plan->turn ? plan->groups - g : plan->turn;
        p.a.tile0 = g * plan->tiles;
        p.turned = groups * plan->tiles;
        const dim3 grid((unsigned)groups, (unsigned)p.a.n_kv, (unsigned)plan->slots);
        rc = cuda_check(be, "attention",
                        cuda_launch(be, codes_of(p.a.d, plan->tiles), grid,
                                    dim3((unsigned)(32 * plan->warps)), plan->smem, p));
        cuda_count(be, CUDA_ATTN_MERGE);
        if (rc == 0)
            rc = cuda_check(be, "attention",
                            cuda_launch(be, merge_of(p.a.d),
                                        dim3((unsigned)(p.turned * TILE), (unsigned)p.a.n_kv),
                                        dim3(32 * CLASSES), 0, p));
    }
    return rc;
}
