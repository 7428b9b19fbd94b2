/* attention/plan.cuh - which kernel attention of up to FEW rows takes, and how it is cut: pure functions of
 * shape, promised positions, tuning and device. Results do not depend on it. For attention.cu. */
#ifndef DFLASH_CUDA_ATTENTION_PLAN_CUH
#define DFLASH_CUDA_ATTENTION_PLAN_CUH

#include "rows.cuh"

#define BUDGET (256u << 20) /* bytes of partial results of nodes beyond which tiles are launched in turns */
#define PLACES_BYTES (16 << 20) /* of what blocks of attn_places hand each other */
#define MADE_BYTES (2 << 20)    /* of queries as attn_columns wants them */
#define PLACES_KEYS 2048        /* that it is for */
#define LEAF_BUDGET (32u << 20) /* of leaves beyond which nodes are taken */
#define LEAF_NODES 32           /* nodes up to which partial results may be those of leaves */
#define FOLD_ROWS 16            /* rows up to which attention does rope_store's work */
#define WAITING_WARPS 8         /* of a block of the kernels whose blocks wait for each other */
#define SLOTS 2 /* of attn_step's ring with one tile or two: 3 and 5 were measured to be slower */

static const int head_sizes[] = {64, 128, 256, 512};

static attn_fn few_kernel(int32_t d, uint32_t type, int32_t tiles, int32_t resident, int32_t stages,
                          size_t *smem)
{
    if (!kv_halves(type) || (d != 64 && d != 128 && d != 256 && d != 512)) return NULL;
    return d <= 128 ? attn_step_narrow(d, tiles, type, stages, smem)
                    : attn_step_wide(d, tiles, resident, type, stages, smem);
}
static attn_fn near_kernel(int32_t d, uint32_t type, int32_t blocks, int32_t leaves, size_t *smem)
{
    return d <= 128 ? attn_near_narrow(d, type, blocks, leaves, smem)
                    : attn_near_wide(d, type, blocks, leaves, smem);
}
static attn_fn merge_kernel(int32_t d)
{
    return d <= 128 ? attn_merge_narrow(d) : attn_merge_wide(d);
}
static int32_t tiles_most(int32_t d)
{
    return d == 512 ? 2 : 4;
}
/* Blocks that one multiprocessor has registers for: step<>::RESIDENT; one tile of heads of 512 has a kernel
 * for one and a kernel for two, which wins where leaves are more than multiprocessors. */
static int32_t resident_of(const struct cuda_backend *be, int32_t d, int32_t tiles, int64_t leaves)
{
    return d <= 128 || (tiles == 1 && (d == 256 || leaves > be->sm_count)) ? 2 : 1;
}
/* Bytes of shared memory that so many blocks may have on a multiprocessor. */
static size_t room_of(const struct cuda_backend *be, int32_t resident)
{
    const size_t part = (size_t)be->smem_sm / (size_t)resident - 1024;
    return part < (size_t)be->smem_block ? part : (size_t)be->smem_block;
}

/* A block of attn_step: as many as there are registers for, then as many stages as fit. */
struct block {
    attn_fn f;
    size_t smem;
    int32_t tiles, warps, stages, resident;
};
static struct block block_of(const struct cuda_backend *be, int32_t d, uint32_t type, int32_t tiles,
                             int64_t leaves)
{
    const int32_t slots = cuda_attention_tuning.slots, most = slots >= 2 && slots <= 6 ? slots : SLOTS;
    struct block b = {NULL, 0, tiles, d == 64 ? 4 : 8, most, resident_of(be, d, tiles, leaves)};
    for (; b.resident; b.resident--)
        for (b.stages = most; b.stages > 1; b.stages--) {
            b.f = few_kernel(d, type, tiles, b.resident, b.stages, &b.smem);
            if (!b.f) return b;
            /* No more of them on one multiprocessor than on another. */
            const size_t least = (size_t)be->smem_sm / (size_t)(b.resident + 1);
            if (b.smem < least) b.smem = least;
            if (b.smem <= room_of(be, b.resident)) return b;
        }
    b.f = NULL;
    return b;
}

/* A block of attn_stream. f: NULL where there is none. */
static struct block stream_block(const struct cuda_backend *be, int32_t d, uint32_t type)
{
    struct block b = {NULL, 0, 1, 8, 2, d <= 128 ? 2 : 1};
    b.f = attn_stream_of(d, type, &b.smem);
    const size_t least = (size_t)be->smem_sm / (size_t)(b.resident + 1);
    if (b.f && b.smem < least) b.smem = least;
    if (b.f && b.smem > room_of(be, b.resident)) b.f = NULL;
    return b;
}

/* The kernels whose blocks wait for each other, and blocks of theirs that a multiprocessor is to hold. */
enum waiting { PLACES, COLUMNS };
static const int32_t waiting_blocks[] = {2, 1};

static attn_fn waiting_kernel(enum waiting k, int32_t d, uint32_t type, size_t *smem)
{
    return k == PLACES ? attn_places_of(d, type, smem) : attn_columns_of(d, type, smem);
}
static int size_index(int32_t d)
{
    int i = 0;
    while (i < 3 && head_sizes[i] != d) i++; /* others have no such kernel */
    return i;
}

/* The most units of so many keys that the rows of a call can see. positions are below bound where it is not
 * 0. */
static int32_t most_units(int32_t held, int32_t n, int32_t window, bool causal, int32_t bound, int32_t unit)
{
    int64_t keys = held, most;
    if (window) {
        const int64_t some = (int64_t)window * (causal ? 1 : 2) + n;
        if (some < keys) keys = some;
    }
    most = (keys - 1) / unit + 2;
    if (bound && ((int64_t)bound - 1) / unit + 1 < most) most = (bound - 1) / unit + 1;
    return (int32_t)most;
}
static size_t record_bytes(int32_t d)
{
    return (size_t)TILE * (size_t)(d + 2) * sizeof(float);
}
/* Of the results of a leaf of a tile. */
static int64_t place_bytes(int32_t d)
{
    return TILE * d / 256 * PLACE_FLOATS * (int64_t)sizeof(float);
}
static int32_t tiles_of(int32_t n, int32_t n_rep)
{
    return (int32_t)(((int64_t)n * n_rep + TILE - 1) / TILE);
}

/* Clusters for a call that so many units of leaves may see: blocks of one (8 or 16), leaves a block; 0: none.
 */
static int32_t plan_near(const struct cuda_backend *be, const struct attn *p, int32_t bound, int32_t *leaves)
{
    const struct cuda_attention_tuning *t = &cuda_attention_tuning;
    const int32_t clusters = tiles_of(p->n, p->n_rep) * p->n_kv,
                  most = most_units(kv_positions(p->where), p->n, p->window, p->causal, bound,
                                    p->d <= 256 ? 64 : 32);
    if (!kv_halves(p->type) || t->near == 1 || be->cc < 90 || be->generic) return 0;
    for (int i = 0; i < 4; i++) {
        if (head_sizes[i] != p->d) continue;
        for (int32_t blocks = 16; blocks >= 8; blocks /= 2) {
            *leaves = (most + blocks - 1) / blocks;
            if (*leaves > NEAR_LEAVES || (blocks == 16 && most <= 8) || (t->cluster && t->cluster != blocks))
                continue;
            const int32_t room = be->attn_clusters[i][blocks / 16][*leaves - 1];
            if (clusters <= room || (room && t->near == 2)) return blocks;
        }
    }
    return 0;
}

/* How attn_step is launched else: a pure function of shape, promise and device. Results do not depend on it.
 */
struct plan {
    struct block b;
    int32_t groups, turn; /* blocks' worth of tiles; as many at a time */
    int32_t leaves, slots, blocks;
    bool stream;     /* attn_stream, not attn_step */
    bool places;     /* attn_places, which adds its leaves by itself */
    int32_t columns; /* blocks of attn_columns in its place; 0: not that */
};
/* Few leaves of heads of 256, or of many tiles: attn_places wins over clusters. */
static bool places_first(int32_t d, int32_t n_kv, int32_t tiles, int32_t slots)
{
    return (d == 256 || n_kv * tiles >= 16) && slots <= 20;
}
/* Leaves that one launch adds: what a call must be, and their number. */
static bool places_slots(const struct cuda_backend *be, const struct kn_attention *a, int32_t *slots)
{
    const struct cuda_attention_tuning *t = &cuda_attention_tuning;
    const int32_t leaf = a->kv->head_dim <= 256 ? 64 : 32;
    *slots = most_units(kn_kv_positions(a->kv), a->n, a->window, a->causal, be->head.kv_bound, leaf);
    return be->attn_places && a->n <= FOLD_ROWS && !t->tiles && !t->unit && !t->slots && !t->spread &&
           t->places != 1 && *slots * leaf <= PLACES_KEYS;
}
/* A block's kernel for so many (tiles, kv head) at once; b->f: that. */
static bool places_block(const struct cuda_backend *be, struct block *b, int64_t at_once, int32_t slots,
                         int32_t d, int32_t most, int32_t *blocks)
{
    while (b->f && b->resident && b->smem > room_of(be, b->resident)) b->resident--;
    const int64_t fill = (int64_t)be->sm_count * b->resident / at_once;
    *blocks = fill < most ? (int32_t)fill : most;
    return b->f && fill > 0 && at_once * b->tiles * slots * place_bytes(d) <= PLACES_BYTES;
}
/* attn_places, whose blocks wait for each other, where it was measured to win: from five rows on, heads of
 * 128 and 256; before clusters from two on. */
static bool plan_places(const struct cuda_backend *be, const struct kn_attention *a, struct plan *p)
{
    const struct kn_kv *kv = a->kv;
    const int32_t d = kv->head_dim, tiles = tiles_of(a->n, a->n_head / kv->n_head_kv), side = PLACES_SIDE(d);
    int32_t slots, blocks;
    struct block b = {NULL, 0, 1, WAITING_WARPS, 0, be->attn_resident[size_index(d)][PLACES]};
    if (!places_slots(be, a, &slots)) return false;
    if (cuda_attention_tuning.places == 0 && a->n < (places_first(d, kv->n_head_kv, tiles, slots) ? 2 : 5))
        return false;
    b.f = attn_places_of(d, kv_form(kv->type), &b.smem);
    if (!places_block(be, &b, (int64_t)kv->n_head_kv * tiles, slots, d, (slots + side - 1) / side, &blocks))
        return false;
    *p = {b, tiles, tiles, 1, slots, blocks, false, true, 0};
    return true;
}
#define COLUMNS_ROWS 5 /* from which on heads of 512 are for attn_columns */
/* Rows made before, for heads of 512: blocks that add for each tile, and as many that weigh as there is room
 * for beside them. */
static bool plan_columns(const struct cuda_backend *be, const struct kn_attention *a, struct plan *p)
{
    const struct kn_kv *kv = a->kv;
    const int32_t tiles = tiles_of(a->n, a->n_head / kv->n_head_kv), adders = 2 * tiles * kv->n_head_kv,
                  room = (be->sm_count - adders) / kv->n_head_kv;
    int32_t slots;
    struct block b = {NULL, 0, 1, WAITING_WARPS, 0, be->attn_resident[size_index(kv->head_dim)][COLUMNS]};
    const int tuned = cuda_attention_tuning.made;
    if (tuned == 1 || a->gate || room < 1 || !places_slots(be, a, &slots)) return false;
    b.f = attn_columns_of(kv->head_dim, kv_form(kv->type), &b.smem);
    if (!b.f || b.resident < 1 || b.smem > room_of(be, 1) ||
        (int64_t)tiles * kv->n_head_kv * attn_made_bytes() > MADE_BYTES ||
        (int64_t)adders * slots * attn_columns_bytes() > PLACES_BYTES)
        return false;
    if (!tuned && a->n < COLUMNS_ROWS) return false;
    const int32_t ranks = slots < room ? slots : room;
    *p = {b, tiles, tiles, 1, slots, 1, false, true, adders + ranks * kv->n_head_kv};
    return true;
}
static struct plan plan_few(const struct cuda_backend *be, const struct kn_attention *a)
{
    const struct cuda_attention_tuning *t = &cuda_attention_tuning;
    const struct kn_kv *kv = a->kv;
    const int32_t n_rep = a->n_head / kv->n_head_kv, tiles = tiles_of(a->n, n_rep), d = kv->head_dim;
    struct plan p = {};
    if (plan_places(be, a, &p)) return p;
    /* One tile a block where there is little to read: keys are read once a tile then. */
    const int64_t leaves_now =
        (int64_t)tiles * kv->n_head_kv *
        most_units(kn_kv_positions(kv), a->n, a->window, a->causal, be->head.kv_bound, d <= 256 ? 64 : 32);
    const int32_t nodes =
        most_units(kn_kv_positions(kv), a->n, a->window, a->causal, be->head.kv_bound, NODE);
    int32_t most = t->tiles ? t->tiles : leaves_now <= 12 * (int64_t)be->sm_count ? 1 : tiles_most(d);
    while (most >= 2 * tiles) most /= 2;
    for (; most && !p.b.f; most /= 2)
        p.b = block_of(be, d, kv_form(kv->type), most, nodes <= LEAF_NODES || tiles > 1 ? leaves_now : 0);
    if (!p.b.f) return p;
    /* Nodes of one tile of few rows: a leaf a warp. */
    const int64_t chip_one = (int64_t)be->sm_count * (d <= 256 ? p.b.resident : 1);
    const bool far = nodes > LEAF_NODES || nodes * kv->n_head_kv > (d <= 128 ? be->sm_count : chip_one);
    if (tiles == 1 && a->n * n_rep <= STREAM_ROWS && be->cc >= 90 && !be->generic && !t->slots &&
        (t->unit ? t->unit == 2 : far)) {
        const struct block b = stream_block(be, d, kv_form(kv->type));
        p.stream = b.f != NULL;
        if (p.stream) p.b = b;
    }
    p.groups = (tiles + p.b.tiles - 1) / p.b.tiles;
    const int64_t at_once = (int64_t)kv->n_head_kv * p.groups, chip = (int64_t)be->sm_count * p.b.resident;
    const int32_t bound = be->head.kv_bound, leaf = d <= 256 ? 64 : 32;
    const int64_t fill = chip * (t->spread ? t->spread : 100) / 100 / at_once; /* blocks a (group, kv head) */
    /* Leaves where nodes would leave much of the chip idle; for many rows their partial results are as many
     * bytes as the keys. */
    p.leaves = p.stream        ? 0
               : t->unit       ? t->unit == 1
               : p.b.tiles > 1 ? nodes * at_once * 4 < be->sm_count * 3
                               : nodes <= fill && nodes <= LEAF_NODES;
    for (;; p.leaves = 0) {
        p.slots = p.leaves ? most_units(kn_kv_positions(kv), a->n, a->window, a->causal, bound, leaf) : nodes;
        const size_t group = record_bytes(d) * (size_t)kv->n_head_kv * (size_t)p.b.tiles * (size_t)p.slots;
        const int64_t room = (int64_t)(be->scratch_rows_bytes / group);
        p.turn = room < p.groups ? (int32_t)room : p.groups;
        if (!p.leaves || p.turn == p.groups) break;
    }
    /* Of the positions' bound, not of what is there when the kernel runs: the blocks share that evenly. */
    p.blocks = fill < 1 ? 1 : fill < p.slots ? (int32_t)fill : p.slots;
    return p;
}

#endif
