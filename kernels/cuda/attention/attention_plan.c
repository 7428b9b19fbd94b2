/* attention_plan.c - see attention_plan.h. What is said to be measured is in docs/speed/attention.md. */
#include "attention_plan.h"
#include "codes.h"
#include "../../kv_rows.h"

#include <string.h>

struct cuda_attention_tuning cuda_attention_tuning;

#define BUDGET (256u << 20) /* bytes of partial results of nodes beyond which tiles are launched in turns */
#define PLACES_KEYS 2048    /* keys that attn_places is for, */
#define PATHS_KEYS 4096     /* and over rows of a tree: a node a class, of which add_strip has the order */
#define LEAF_BUDGET (32u << 20)   /* of leaves beyond which nodes are taken */
#define CODES_BUDGET (160u << 20) /* of nodes of quantised caches, then in turns too */
#define LEAF_NODES 32             /* nodes up to which partial results may be those of leaves */
#define FOLD_ROWS 16              /* rows up to which forms with a merge, or clusters, do rope_store's work */
#define ALONE_ROWS 128            /* rows up to which a block may attend alone, */
#define ALONE_FOLD_ROWS 80        /* and up to which it does rope_store's work */
#define WAITING_WARPS 8           /* of a block of the kernels whose blocks wait for each other */
#define SLOTS 2 /* of attn_step's ring with one tile or two: 3 and 5 were measured to be slower */

/* ---- which form takes what ---- */

const struct attn_takes attn_table[ATTN_FORMS] = {
    [ATTN_ANY] = {.name = "any", .wide_types = true, .sinks = true},
    [ATTN_STEP] = {.name = "step", .heads = {64, 128, 256, 512}, .halves = true, .sinks = true},
    [ATTN_STREAM] =
        {.name = "stream", .heads = {64, 128, 256}, .to = ATTN_STREAM_ROWS, .halves = true, .early = true},
    [ATTN_FAR] =
        {.name = "far", .heads = {128, 256}, .from = 2, .to = ATTN_FEW, .halves = true, .early = true},
    [ATTN_CLUSTERS] = {.name = "clusters", .heads = {64, 128, 256, 512}, .halves = true, .early = true},
    [ATTN_PLACES] = {.name = "places", .heads = {128, 256}, .to = ATTN_FEW, .halves = true, .early = true},
    [ATTN_COLUMNS] = {.name = "columns", .heads = {512}, .to = FOLD_ROWS, .halves = true, .early = true},
    [ATTN_ALONE] = {.name = "alone", .heads = {128, 256}, .to = ALONE_ROWS, .halves = true, .early = true},
    [ATTN_PREFILL] = {.name = "prefill",
                      .heads = {64, 128, 256, 512},
                      .from = ATTN_FEW + 1,
                      .halves = true,
                      .codes = true},
    [ATTN_GROUP] = {.name = "group", .heads = {128}, .from = ATTN_FEW + 1, .halves = true, .early = true},
    [ATTN_FAR_CODES] = {.name = "far codes",
                        .heads = {128},
                        .from = 2,
                        .to = ATTN_FEW,
                        .codes = true,
                        .both = true,
                        .early = true},
    [ATTN_CODES] =
        {.name = "codes", .heads = {64, 128, 256, 512}, .to = ATTN_FEW, .codes = true, .sinks = true},
};

/* Quantised, F16 perhaps beside. */
static bool coded(uint32_t k, uint32_t v)
{
    return (kn_kv_coded(k) || kn_kv_coded(v)) && (kn_kv_coded(k) || k == KN_F16) &&
           (kn_kv_coded(v) || v == KN_F16);
}

bool attn_form_takes(enum attn_form form, const struct cuda_device *dev, int32_t d, int32_t n,
                     uint32_t k_type, uint32_t v_type)
{
    const struct attn_takes *t = &attn_table[form];
    bool head = t->heads[0] == 0;
    for (int i = 0; i < ATTN_SIZES && t->heads[i]; i++) head |= t->heads[i] == d;
    if (!head || n < t->from || (t->to && n > t->to) || (t->early && !cuda_device_early(dev))) return false;
    if (t->wide_types) return kn_kv_known(k_type) && kn_kv_known(v_type);
    if (coded(k_type, v_type))
        return t->codes && (!t->both || (kn_kv_coded(k_type) && kn_kv_coded(v_type))) &&
               d % kn_kv_block(k_type) == 0 && d % kn_kv_block(v_type) == 0;
    return t->halves && k_type == v_type && (k_type == KN_F16 || k_type == KN_BF16);
}

/* ---- what blocks want ---- */

/* Bytes of attn_step's block: what stands, and of a leaf's keys or values. */
static const struct {
    int32_t d, tiles, fixed, slot;
} steps[] = {
    {64, 1, 13184, 9216},   {64, 4, 17792, 9216},   {128, 1, 17280, 17408}, {128, 2, 26368, 17408},
    {128, 4, 52608, 17408}, {256, 1, 25472, 33792}, {256, 2, 42752, 33792}, {256, 4, 85376, 33792},
    {512, 1, 37760, 33280}, {512, 2, 71424, 33280},
};

size_t attn_step_bytes(int32_t d, int32_t tiles, int32_t stages)
{
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        if (steps[i].d == d && steps[i].tiles == tiles)
            return (size_t)(steps[i].fixed + stages * steps[i].slot);
    return 0;
}

size_t attn_stream_bytes(int32_t d)
{
    return d == 64 ? 60608 : d == 128 ? 113856 : d == 256 ? 220352 : 0;
}

size_t attn_near_bytes(int32_t d, int32_t blocks, int32_t leaves)
{
    static const int32_t bytes[ATTN_SIZES][2][NEAR_LEAVES] = {{{40832, 68480}, {50048, 86912}},
                                                              {{61312, 105344}, {70528, 123776}},
                                                              {{110464, 195456}, {111488, 197504}},
                                                              {{138112, 238464}, {139136, 240512}}};
    const int i = attn_size_index(d);
    return attn_table[ATTN_CLUSTERS].heads[i] == d ? (size_t)bytes[i][blocks == 16][leaves - 1] : 0;
}

size_t attn_places_bytes(int32_t d)
{
    return d == 128 ? 88832 : d == 256 ? 89600 : 0;
}

size_t attn_paths_bytes(int32_t d, int32_t n)
{
    const size_t one = attn_places_bytes(d);
    return one ? one + 1536 + (size_t)(4 * (n + 1) * (d + 8)) : 0;
}

size_t attn_columns_block_bytes(int32_t d)
{
    return d == 512 ? 210888 : 0;
}

size_t attn_alone_bytes(int32_t d)
{
    return d == 128 ? 204544 : d == 256 ? 196608 : 0;
}

int32_t attn_codes_leaf_bytes(int32_t d, int32_t n, uint32_t type)
{
    const struct kv_layout *y = kv_layout_of(type);
    if (!y) return 0;
    const int32_t low = n * y->low / 8, high = n * y->high / 8, scale = n / y->group * 2;
    return ATTN_CODES_LEAF(d) * (ATTN_CODES_PITCH(low) + ATTN_CODES_PITCH(high) + (scale < 4 ? 4 : scale));
}

size_t attn_codes_bytes(int32_t d, int32_t tiles, uint32_t k_type, uint32_t v_type)
{
    const int32_t groups = ATTN_CODES_GROUPS(d), c = d / groups,
                  fixed = tiles * (d / 16 * 1024 + ATTN_TILE * 4),
                  leaves = 4 * groups *
                           (attn_codes_leaf_bytes(d, d, k_type) + attn_codes_leaf_bytes(d, c, v_type)),
                  boxes = 2 * groups * tiles * (c / 8 + 1) * 512;
    return (size_t)(fixed + (d <= 128 ? leaves + boxes : leaves > boxes ? leaves : boxes));
}

size_t attn_prefill_bytes(int32_t d, int32_t warps, int32_t *tiles, int32_t *chunks)
{
    *tiles = warps == 8 && d < 512 ? 8 : 4;
    *chunks = d == 512 ? 2 : 1;
    switch (d) {
    case 64: return warps == 8 ? 90624 : 82176;
    case 128: return warps == 8 ? 172544 : 155904;
    case 256: return warps == 8 ? 201216 : 168192;
    case 512: return 166144;
    default: return 0;
    }
}

int attn_size_index(int32_t d)
{
    int i = 0;
    while (i < ATTN_SIZES - 1 && attn_table[ATTN_STEP].heads[i] != d) i++;
    return i;
}

static int32_t tiles_most(int32_t d)
{
    return d == 512 ? 2 : 4;
}
/* Blocks that one multiprocessor has registers for: step<>::RESIDENT; one tile of heads of 512 has a kernel
 * for one and a kernel for two, which wins where leaves are more than multiprocessors. */
static int32_t resident_of(const struct cuda_device *dev, int32_t d, int32_t tiles, int64_t leaves)
{
    return d <= 128 || (tiles == 1 && (d == 256 || leaves > dev->sm_count)) ? 2 : 1;
}
/* Bytes of shared memory that so many blocks may have on a multiprocessor. */
static size_t room_of(const struct cuda_device *dev, int32_t resident)
{
    const size_t part = (size_t)dev->smem_sm / (size_t)resident - 1024;
    return part < (size_t)dev->smem_block ? part : (size_t)dev->smem_block;
}

/* p->smem, or more, so that there are no more of these blocks on one multiprocessor than on another: is there
 * room for p->resident of them? */
static bool even_out(const struct cuda_device *dev, struct attn_plan *p)
{
    const size_t least = (size_t)dev->smem_sm / (size_t)(p->resident + 1);
    if (p->smem < least) p->smem = least;
    return p->smem <= room_of(dev, p->resident);
}

bool attn_step_block(const struct cuda_device *dev, int32_t d, int32_t tiles, int64_t leaves,
                     struct attn_plan *p)
{
    const int32_t slots = cuda_attention_tuning.slots, most = slots >= 2 && slots <= 6 ? slots : SLOTS;
    p->tiles = tiles, p->warps = d == 64 ? 4 : 8;
    for (p->resident = resident_of(dev, d, tiles, leaves); p->resident; p->resident--)
        for (p->stages = most; p->stages > 1; p->stages--) {
            p->smem = attn_step_bytes(d, tiles, p->stages);
            if (!p->smem) return false;
            if (even_out(dev, p)) return true;
        }
    return false;
}

bool attn_stream_block(const struct cuda_device *dev, int32_t d, struct attn_plan *p)
{
    p->form = ATTN_STREAM;
    p->tiles = 1, p->warps = 8, p->stages = 2, p->resident = d <= 128 ? 2 : 1;
    p->smem = attn_stream_bytes(d);
    return p->smem && even_out(dev, p);
}

/* ---- up to ATTN_FEW rows ---- */

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
static int32_t units_of(const struct attn_call *c, int32_t unit)
{
    return most_units(c->held, c->n, c->window, c->causal, c->bound, unit);
}
static size_t record_bytes(int32_t d)
{
    return (size_t)ATTN_TILE * (size_t)(d + 2) * sizeof(float);
}
/* Of the results of a leaf of a tile. */
static int64_t place_bytes(int32_t d)
{
    return ATTN_TILE * d / 256 * ATTN_PLACE_FLOATS * (int64_t)sizeof(float);
}
static int32_t call_tiles(const struct attn_call *c)
{
    return attn_tiles(c->n, c->n_head / c->n_kv);
}
static bool takes(enum attn_form form, const struct cuda_device *dev, const struct attn_call *c)
{
    return (!c->sinks || attn_table[form].sinks) &&
           attn_form_takes(form, dev, c->d, c->n, c->k_type, c->v_type);
}

/* Clusters for a call that so many units of leaves may see: blocks of one (8 or 16), leaves a block. */
static bool plan_near(const struct cuda_device *dev, const struct attn_device *attn,
                      const struct attn_call *c, struct attn_plan *p)
{
    const struct cuda_attention_tuning *t = &cuda_attention_tuning;
    const int32_t clusters = call_tiles(c) * c->n_kv, most = units_of(c, attn_leaf(c->d));
    if (t->near == 1 || !takes(ATTN_CLUSTERS, dev, c)) return false;
    for (int32_t blocks = 16; blocks >= 8; blocks /= 2) {
        const int32_t leaves = (most + blocks - 1) / blocks;
        if (leaves > NEAR_LEAVES || (blocks == 16 && most <= 8) || (t->cluster && t->cluster != blocks))
            continue;
        const int32_t room = attn->clusters[attn_size_index(c->d)][blocks / 16][leaves - 1];
        if (clusters > room && !(room && t->near == 2)) continue;
        p->form = ATTN_CLUSTERS;
        p->tiles = 1, p->warps = c->d == 64 ? 4 : 8, p->stages = 2 * leaves;
        p->smem = attn_near_bytes(c->d, blocks, leaves);
        p->groups = p->turn = call_tiles(c), p->slots = 0, p->leaves = 0;
        p->blocks = blocks, p->cluster_leaves = leaves;
        return true;
    }
    return false;
}

/* Few leaves of heads of 256, or of many tiles: attn_places wins over clusters. */
static bool places_first(const struct attn_call *c, int32_t slots)
{
    return (c->d == 256 || c->n_kv * call_tiles(c) >= 16) && slots <= 20;
}
/* Leaves that one launch adds: what a call must be, and their number. */
static bool places_slots(const struct attn_device *attn, const struct attn_call *c, int32_t keys,
                         int32_t *slots)
{
    const struct cuda_attention_tuning *t = &cuda_attention_tuning;
    *slots = units_of(c, attn_leaf(c->d));
    return attn->waits && !t->tiles && !t->unit && !t->slots && !t->spread && t->places != 1 &&
           *slots * attn_leaf(c->d) <= keys;
}
/* What both forms whose blocks wait for each other have. */
static void waiting(struct attn_plan *p, enum attn_form form, int32_t resident, size_t smem, int32_t tiles,
                    int32_t slots)
{
    p->form = form;
    p->tiles = 1, p->warps = WAITING_WARPS, p->stages = 0, p->resident = resident, p->smem = smem;
    p->groups = p->turn = tiles;
    p->leaves = 1, p->slots = slots;
}
/* Blocks of attn_places that are resident together: so many a multiprocessor at most, each of smem bytes.
 * bytes: of places. */
static bool fill_places(const struct cuda_device *dev, const struct attn_call *c, int32_t slots,
                        int32_t resident, size_t smem, int64_t bytes, struct attn_plan *p)
{
    const int32_t d = c->d, tiles = call_tiles(c), side = ATTN_PLACES_SIDE(d),
                  most = (slots + side - 1) / side;
    const int64_t at_once = (int64_t)c->n_kv * tiles;
    while (resident && smem > room_of(dev, resident)) resident--;
    const int64_t fill = (int64_t)dev->sm_count * resident / at_once;
    if (fill < 1 || at_once * slots * place_bytes(d) > bytes) return false;
    waiting(p, ATTN_PLACES, resident, smem, tiles, slots);
    p->blocks = fill < most ? (int32_t)fill : most;
    return true;
}
/* attn_places, whose blocks wait for each other, where it was measured to win: from five rows on, heads of
 * 128 and 256; before clusters from two on. */
static bool plan_places(const struct cuda_device *dev, const struct attn_device *attn,
                        const struct attn_call *c, struct attn_plan *p)
{
    int32_t slots;
    if (!places_slots(attn, c, PLACES_KEYS, &slots) || !takes(ATTN_PLACES, dev, c)) return false;
    if (cuda_attention_tuning.places == 0 && c->n < (places_first(c, slots) ? 2 : 5)) return false;
    return fill_places(dev, c, slots, attn->places[attn_size_index(c->d)], attn_places_bytes(c->d),
                       ATTN_PLACES_BYTES, p);
}

#define COLUMNS_ROWS 5 /* from which on heads of 512 are for attn_columns */
/* Rows made before, for heads of 512: blocks that add for each tile, and as many that weigh as there is room
 * for beside them. */
static bool plan_columns(const struct cuda_device *dev, const struct attn_device *attn,
                         const struct attn_call *c, struct attn_plan *p)
{
    const int32_t tiles = call_tiles(c), adders = 2 * tiles * c->n_kv,
                  room = (dev->sm_count - adders) / c->n_kv, resident = attn->columns[attn_size_index(c->d)];
    const int tuned = cuda_attention_tuning.made;
    int32_t slots;
    if (tuned == 1 || c->gated || room < 1 || !places_slots(attn, c, PLACES_KEYS, &slots)) return false;
    const size_t smem = attn_columns_block_bytes(c->d);
    if (!takes(ATTN_COLUMNS, dev, c) || resident < 1 || smem > room_of(dev, 1) ||
        (int64_t)tiles * c->n_kv * ATTN_MADE_TILE > ATTN_MADE_BYTES ||
        (int64_t)adders * slots * ATTN_COLUMN_PLACE > ATTN_PLACES_BYTES)
        return false;
    if (!tuned && c->n < COLUMNS_ROWS) return false;
    const int32_t ranks = slots < room ? slots : room;
    waiting(p, ATTN_COLUMNS, resident, smem, tiles, slots);
    p->blocks = adders + ranks * c->n_kv;
    return true;
}

/* attn_step, whose partial results lie in memory. */
static bool plan_step(const struct cuda_device *dev, const struct attn_call *c, struct attn_plan *p)
{
    const struct cuda_attention_tuning *t = &cuda_attention_tuning;
    const int32_t tiles = call_tiles(c), d = c->d, nodes = units_of(c, ATTN_NODE);
    /* One tile a block where there is little to read: keys are read once a tile then. */
    const int64_t leaves_now = (int64_t)tiles * c->n_kv * units_of(c, attn_leaf(d));
    int32_t most = t->tiles ? t->tiles : leaves_now <= 12 * (int64_t)dev->sm_count ? 1 : tiles_most(d);
    bool found = false;
    if (!takes(ATTN_STEP, dev, c)) return false;
    while (most >= 2 * tiles) most /= 2;
    for (; most && !found; most /= 2)
        found = attn_step_block(dev, d, most, nodes <= LEAF_NODES || tiles > 1 ? leaves_now : 0, p);
    if (!found) return false;
    p->form = ATTN_STEP;
    /* Nodes of one tile of few rows: a leaf a warp. */
    const int64_t chip_one = (int64_t)dev->sm_count * (d <= 256 ? p->resident : 1);
    const bool far = nodes > LEAF_NODES || nodes * c->n_kv > (d <= 128 ? dev->sm_count : chip_one);
    if (tiles == 1 && c->n * (c->n_head / c->n_kv) <= ATTN_STREAM_ROWS && takes(ATTN_STREAM, dev, c) &&
        !t->slots && (t->unit ? t->unit == 2 : far)) {
        struct attn_plan stream = *p;
        if (attn_stream_block(dev, d, &stream)) *p = stream;
    }
    p->groups = (tiles + p->tiles - 1) / p->tiles;
    const int64_t at_once = (int64_t)c->n_kv * p->groups, chip = (int64_t)dev->sm_count * p->resident,
                  fill = chip * (t->spread ? t->spread : 100) / 100 / at_once; /* blocks a (group, kv head) */
    /* Leaves where nodes would leave much of the chip idle; for many rows their partial results are as many
     * bytes as the keys. */
    p->leaves = p->form == ATTN_STREAM ? 0
                : t->unit              ? t->unit == 1
                : p->tiles > 1         ? nodes * at_once * 4 < dev->sm_count * 3
                                       : nodes <= fill && nodes <= LEAF_NODES;
    for (;; p->leaves = 0) {
        p->slots = p->leaves ? units_of(c, attn_leaf(d)) : nodes;
        const size_t group = record_bytes(d) * (size_t)c->n_kv * (size_t)p->tiles * (size_t)p->slots;
        const int64_t room = (int64_t)(c->scratch_bytes / group);
        p->turn = room < p->groups ? (int32_t)room : p->groups;
        if (!p->leaves || p->turn == p->groups) break;
    }
    /* Of the positions' bound, not of what is there when the kernel runs: the blocks share that evenly. */
    p->blocks = fill < 1 ? 1 : fill < p->slots ? (int32_t)fill : p->slots;
    return true;
}

#define FAR_TILES 4 /* of a group of rows; a block has two groups, or a group twice */
static int32_t far_groups(int32_t n, int32_t n_rep)
{
    return (attn_tiles(n, n_rep) + FAR_TILES - 1) / FAR_TILES;
}
/* Blocks, one at least for each of so many pairs of groups and kv head. */
static int32_t far_blocks(const struct cuda_device *dev, const struct attn_call *c, int32_t pairs)
{
    return pairs * c->n_kv > dev->sm_count ? pairs * c->n_kv : dev->sm_count;
}
/* Are there keys enough for so many tiles? One tile has a form of its own that is as fast, but for more than
 * ATTN_STREAM_ROWS of heads of 128 over very many. */
static bool far_wins(const struct attn_call *c)
{
    const int32_t tiles = call_tiles(c), nodes = units_of(c, ATTN_NODE);
    if (tiles == 1) return c->d == 128 && c->n * (c->n_head / c->n_kv) > ATTN_STREAM_ROWS && nodes > 40;
    return nodes > (tiles < 4 ? 6 : 4);
}
/* Nodes spread over the chip, by products of four warps: where `wins`, or a test says (tuning.far = 2). */
static bool plan_far(const struct cuda_device *dev, const struct attn_call *c, bool wins, struct attn_plan *p)
{
    const struct cuda_attention_tuning *t = &cuda_attention_tuning;
    const bool cut = t->tiles || t->unit || t->slots || t->spread; /* as only attn_step can be */
    const int32_t nodes = units_of(c, ATTN_NODE), groups = far_groups(c->n, c->n_head / c->n_kv);
    if (t->far == 1 || !c->maps || !takes(ATTN_FAR, dev, c) || ATTN_FAR_BYTES > dev->smem_block ||
        (t->far != 2 && (cut || !wins)))
        return false;
    const int32_t slots = t->unit == 1 ? units_of(c, attn_leaf(c->d)) : nodes;
    const size_t group = record_bytes(c->d) * (size_t)c->n_kv * FAR_TILES * (size_t)slots;
    const int64_t room = (int64_t)(c->scratch_bytes / group);
    memset(p, 0, sizeof *p);
    p->form = ATTN_FAR;
    p->tiles = FAR_TILES, p->warps = 12, p->resident = 1, p->smem = ATTN_FAR_BYTES;
    p->groups = groups, p->turn = room < groups ? (int32_t)room : groups;
    p->leaves = t->unit == 1, p->slots = slots;
    p->blocks = far_blocks(dev, c, (p->turn + 1) / 2);
    return p->turn > 0;
}

/* Does a block a tile win: over attn_places where that could be, else over attn_step; of more than ATTN_FEW
 * rows, where it has bits of its own, over the forms for prompts? It takes 4 leaves (heads of 256: 2) at a
 * time, for each of which it needs 5 us, whatever the rows; the others need the longer the more tiles there
 * are. */
static bool alone_wins(const struct attn_call *c, bool places)
{
    const int tuned = cuda_attention_tuning.alone;
    const int32_t leaves = units_of(c, attn_leaf(c->d)), at_once = c->n_kv * call_tiles(c);
    if (c->n > ATTN_FEW) return c->d == 256 || leaves <= 2;
    if (tuned) return tuned > 1;
    if (c->n <= FOLD_ROWS) return false;
    return leaves <= 4 || (c->d == 128 ? at_once >= 96 && leaves <= 32 : !places && leaves <= 20);
}
/* Does attention do rope_store's work? */
static bool folds(const struct attn_call *c, const struct attn_plan *p)
{
    const int32_t tuned = cuda_attention_tuning.fold;
    const int32_t most = tuned                    ? tuned
                         : p->form == ATTN_ALONE  ? ALONE_FOLD_ROWS
                         : p->form == ATTN_PLACES ? ATTN_FEW
                                                  : FOLD_ROWS;
    return c->stores && c->folds && c->n <= most && p->form != ATTN_ANY && p->turn == p->groups;
}
/* A tile and all its keys a block: no block waits for another. */
static bool plan_alone(const struct cuda_device *dev, const struct attn_call *c, struct attn_plan *p)
{
    const struct cuda_attention_tuning *t = &cuda_attention_tuning;
    const bool cut = t->tiles || t->unit || t->slots || t->spread; /* as only attn_step can be */
    if ((cut && c->n <= ATTN_FEW) || !takes(ATTN_ALONE, dev, c)) return false;
    if (units_of(c, ATTN_NODE) > ATTN_CLASSES || attn_alone_bytes(c->d) > room_of(dev, 1)) return false;
    memset(p, 0, sizeof *p);
    p->form = ATTN_ALONE;
    p->tiles = 1, p->warps = 16, p->resident = 1, p->smem = attn_alone_bytes(c->d);
    p->groups = p->turn = call_tiles(c);
    p->leaves = 1, p->slots = 1, p->blocks = 1;
    return true;
}

int32_t attn_codes_nodes(int32_t held, int32_t n, int32_t window, bool causal, int32_t bound)
{
    int64_t keys = held, most;
    if (window && (int64_t)window * (causal ? 1 : 2) + n < keys)
        keys = (int64_t)window * (causal ? 1 : 2) + n;
    const int64_t small = keys / 256 + 2, large = ATTN_CODES_SMALL + keys / 1024 + 2;
    most = window || small < large ? small : large;
    if (bound && ATTN_CODES_NODE(window, bound - 1) + 1 < most) most = ATTN_CODES_NODE(window, bound - 1) + 1;
    return (int32_t)most;
}
/* Tiles of a block: two share what is made of codes. */
static int32_t codes_tiles(int32_t n, int32_t n_rep, int32_t d)
{
    return d <= 128 && attn_tiles(n, n_rep) > 1 ? 2 : 1;
}
static size_t codes_group_bytes(int32_t d, int32_t n_kv, int32_t tiles, int32_t nodes)
{
    return record_bytes(d) * (size_t)n_kv * (size_t)tiles * (size_t)nodes;
}
/* Tiles of the blocks that rows of a tree want. */
static int32_t tree_tiles(int32_t rows, int32_t n_rep, int32_t d)
{
    const int32_t two = d <= 128 ? 2 : 1;
    return (attn_tiles(rows, n_rep) + two - 1) / two * two;
}
/* The fewest rows behind which the next one begins with a tile. */
static int32_t tree_step(int32_t n_rep)
{
    int32_t rows = ATTN_TILE;
    while (rows > 1 && rows / 2 * n_rep % ATTN_TILE == 0) rows /= 2;
    return rows;
}
int32_t attn_codes_turn(int32_t n, int32_t n_rep, int32_t n_kv, int32_t d, int32_t slots,
                        size_t scratch_bytes)
{
    const size_t tiles = scratch_bytes / codes_group_bytes(d, n_kv, 1, slots);
    const int32_t step = tree_step(n_rep);
    if ((size_t)tree_tiles(n, n_rep, d) <= tiles) return n;
    int32_t turn = (n - 1) / step * step;
    while (turn > 0 && (size_t)tree_tiles(turn, n_rep, d) > tiles) turn -= step;
    return turn;
}

/* Of n groups of which `most` have room: a turn's, where all turns are alike and as few as that. */
static int32_t alike(int32_t n, int32_t most)
{
    const int32_t turns = most > 0 ? (n + most - 1) / most : 0;
    return turns ? (n + turns - 1) / turns : 0;
}
int32_t attn_far_codes_side(int32_t d, uint32_t type)
{
    const struct kv_layout *y = kv_layout_of(type);
    return y ? ATTN_FAR_CODES_ITEM * (d * y->low / 8) : 0;
}
/* One group of rows: always, but for one tile over very many keys, where halves cost more than they save,
 * which is later where both sides are Q8_0. Several: over so many keys; of an odd number the last has half a
 * block's products. */
static bool far_codes_wins(const struct attn_call *c)
{
    const int32_t keys = 256 * units_of(c, 256), groups = far_groups(c->n, c->n_head / c->n_kv);
    const bool wide = c->k_type == KN_Q8_0 && c->v_type == KN_Q8_0;
    if (groups == 1) return call_tiles(c) > 1 || keys <= (wide ? 65536 : 24576);
    return keys >= (groups % 2 ? 32768 : groups == 2 ? 6144 : 8192);
}
/* Nodes spread over the chip, by products of four warps: where it wins, or a test says (tuning.far = 2). */
static bool plan_far_codes(const struct cuda_device *dev, const struct attn_call *c, struct attn_plan *p)
{
    const struct cuda_attention_tuning *t = &cuda_attention_tuning;
    if (t->far == 1 || !c->maps || !takes(ATTN_FAR_CODES, dev, c) || (t->far != 2 && !far_codes_wins(c)))
        return false;
    const int32_t item = attn_far_codes_side(c->d, c->k_type) + attn_far_codes_side(c->d, c->v_type),
                  stages = ((int32_t)dev->smem_block - ATTN_FAR_CODES_BYTES) / item,
                  groups = far_groups(c->n, c->n_head / c->n_kv);
    if (stages < 2) return false;
    memset(p, 0, sizeof *p);
    p->form = ATTN_FAR_CODES;
    p->stages = stages < ATTN_FAR_CODES_MOST ? stages : ATTN_FAR_CODES_MOST;
    p->tiles = FAR_TILES, p->warps = 16, p->resident = 1;
    p->smem = (size_t)(ATTN_FAR_CODES_BYTES + p->stages * item);
    p->groups = groups;
    p->slots = attn_codes_nodes(c->held, c->n, c->window, c->causal, c->bound);
    const size_t room = c->scratch_bytes / codes_group_bytes(c->d, c->n_kv, FAR_TILES, p->slots);
    p->turn = alike(groups, room < (size_t)groups ? (int32_t)room : groups);
    const int32_t pairs = (p->turn + 1) / 2;
    p->blocks = far_blocks(dev, c, pairs);
    p->fold = folds(c, p);
    /* A block's share, and small nodes that it may have on top. */
    return p->turn > 0 && p->slots / (p->blocks / (pairs * c->n_kv)) + 20 <= ATTN_FAR_CODES_NODES;
}

static bool plan_codes(const struct cuda_device *dev, const struct attn_call *c, struct attn_plan *p)
{
    if (plan_far_codes(dev, c, p)) return true;
    const int32_t tiles = codes_tiles(c->n, c->n_head / c->n_kv, c->d);
    if (!takes(ATTN_CODES, dev, c)) return false;
    const size_t smem = attn_codes_bytes(c->d, tiles, c->k_type, c->v_type);
    if (smem > (size_t)dev->smem_block) return false;
    memset(p, 0, sizeof *p);
    p->form = ATTN_CODES;
    p->tiles = tiles, p->warps = 4 * ATTN_CODES_GROUPS(c->d), p->smem = smem;
    p->groups = (call_tiles(c) + tiles - 1) / tiles;
    p->slots = p->blocks = attn_codes_nodes(c->held, c->n, c->window, c->causal, c->bound);
    const size_t room = c->scratch_bytes / codes_group_bytes(c->d, c->n_kv, tiles, p->slots);
    p->turn = room < (size_t)p->groups ? alike(p->groups, (int32_t)room) : p->groups;
    /* Blocks that stand at once take nodes in turn where that saves half of making queries: codes.cuh's
     * RESIDENT. */
    const int32_t all = dev->sm_count * (c->d <= 128 && tiles == 1 ? 3 : 2),
                  each = p->turn > 0 ? all / (p->turn * c->n_kv) : 0;
    if (c->d <= 128 && each > 0 && p->slots >= 2 * each) p->blocks = each;
    return true;
}

static void plan_few(const struct cuda_device *dev, const struct attn_device *attn, const struct attn_call *c,
                     struct attn_plan *p)
{
    const struct cuda_attention_tuning *t = &cuda_attention_tuning;
    if (plan_codes(dev, c, p)) return;
    if (t->far == 2 && plan_far(dev, c, true, p)) return;
    const bool places = plan_places(dev, attn, c, p);
    if (!places && plan_far(dev, c, far_wins(c), p)) return;
    if (!places && !plan_step(dev, c, p)) {
        memset(p, 0, sizeof *p);
        p->form = ATTN_ANY;
    }
    const bool near = !(places && (t->places == 2 || (!t->near && places_first(c, p->slots)))) &&
                      plan_near(dev, attn, c, p);
    if (!near && c->stores && c->folds) (void)plan_columns(dev, attn, c, p);
    if (!near && alone_wins(c, places)) (void)plan_alone(dev, c, p);
    p->fold = folds(c, p);
}

/* ---- more ---- */

/* 8 warps a block where the blocks fill the chip. */
static bool plan_prefill(const struct cuda_device *dev, const struct attn_call *c, struct attn_plan *p)
{
    const struct cuda_attention_tuning *t = &cuda_attention_tuning;
    const int32_t n = call_tiles(c);
    if (!takes(ATTN_PREFILL, dev, c)) return false;
    p->warps = c->d == 512                                                          ? 4
               : t->warps                                                           ? t->warps
               : (int64_t)((n + 7) / 8) * c->n_kv * 4 >= (int64_t)dev->sm_count * 3 ? 8
                                                                                    : 4;
    p->smem = attn_prefill_bytes(c->d, p->warps, &p->tiles, &p->chunks);
    if (p->smem > (size_t)dev->smem_block && p->warps == 8)
        p->smem = attn_prefill_bytes(c->d, p->warps = 4, &p->tiles, &p->chunks);
    if (p->smem > (size_t)dev->smem_block) return false;
    p->form = ATTN_PREFILL;
    p->groups = p->turn = (n + p->tiles - 1) / p->tiles;
    p->blocks = p->chunks;
    return true;
}

static bool plan_group(const struct cuda_device *dev, const struct attn_call *c, struct attn_plan *p)
{
    if (cuda_attention_tuning.prefill || !c->maps || !takes(ATTN_GROUP, dev, c) ||
        dev->smem_block < ATTN_GROUP_BYTES)
        return false;
    p->form = ATTN_GROUP;
    p->smem = ATTN_GROUP_BYTES;
    return true;
}

/* What all rows of a tree see, by attn_far: where one launch does not have it all. */
bool attn_plan_tree_far(const struct cuda_device *dev, const struct attn_call *c, struct attn_plan *p)
{
    return !c->window && plan_far(dev, c, units_of(c, ATTN_NODE) > 2, p) && p->turn == p->groups &&
           !p->leaves;
}

/* Leaves that a block of one launch has at most: more, and attn_far wins (docs/speed/trees.md). One that
 * hands nothing on needs less for each. */
#define TREE_LEAVES 10
#define TREE_LEAVES_ALONE 20

bool attn_plan_tree(const struct cuda_device *dev, const struct attn_device *attn, const struct attn_call *c,
                    struct attn_plan *p)
{
    struct attn_plan far;
    int32_t slots;
    memset(p, 0, sizeof *p);
    if (c->window || !places_slots(attn, c, PATHS_KEYS, &slots) || !takes(ATTN_PLACES, dev, c) ||
        !fill_places(dev, c, slots, attn->paths[attn_size_index(c->d)], attn_paths_bytes(c->d, c->n),
                     ATTN_PATHS_BYTES, p))
        return false;
    const int32_t each = (slots + p->blocks - 1) / p->blocks;
    if (cuda_attention_tuning.far != 2 && each > (p->blocks == 1 ? TREE_LEAVES_ALONE : TREE_LEAVES) &&
        attn_plan_tree_far(dev, c, &far))
        return false;
    p->fold = folds(c, p);
    return true;
}

struct attn_plan attn_plan_of(const struct cuda_device *dev, const struct attn_device *attn,
                              const struct attn_call *c)
{
    struct attn_plan p;
    memset(&p, 0, sizeof p);
    if (!c->whole && c->n > ATTN_FEW && alone_wins(c, false) && plan_alone(dev, c, &p)) {
        p.fold = folds(c, &p);
        return p;
    }
    if (plan_group(dev, c, &p) || plan_prefill(dev, c, &p)) return p;
    memset(&p, 0, sizeof p);
    plan_few(dev, attn, c, &p);
    return p;
}

/* ATTN_GROUP takes less, and wants more memory; the scores want less of it. */
bool attn_takes_sparse(const struct cuda_device *dev, const struct kn_kv *kv)
{
    const struct cuda_device any = {.smem_block = INT32_MAX};
    int32_t tiles, chunks;
    if (!dev) dev = &any;
    return attn_form_takes(ATTN_PREFILL, dev, kv->head_dim, KN_SPARSE_BLOCK, kv->type.k, kv->type.v) &&
           attn_prefill_bytes(kv->head_dim, 4, &tiles, &chunks) <= (size_t)dev->smem_block;
}

bool attn_can_fold(int32_t n, int32_t d, int32_t n_rot, bool interleaved)
{
    const int32_t half = n_rot / 2,
                  most = cuda_attention_tuning.fold ? cuda_attention_tuning.fold : ALONE_FOLD_ROWS;
    return !interleaved && (half == d / 2 || half == 32 || half == 0) && n <= most &&
           !cuda_attention_tuning.apart;
}

size_t attn_scratch(int32_t n, int32_t n_head, const struct kn_kv *kv, int32_t window)
{
    const int32_t d = kv->head_dim;
    const struct cuda_device any = {0};
    if (attn_form_takes(ATTN_CODES, &any, d, 1, kv->type.k, kv->type.v)) {
        const int32_t rows = n < ATTN_FEW ? n : ATTN_FEW, n_rep = n_head / kv->n_head_kv,
                      step = tree_step(n_rep), few = rows < step ? rows : step,
                      nodes = attn_codes_nodes(kn_kv_positions(kv), rows, window, false, 0);
        const int32_t in_turn = tree_tiles(few, n_rep, d), at_once = tree_tiles(rows, n_rep, d),
                      group = rows > 1 && d == attn_table[ATTN_FAR_CODES].heads[0] ? FAR_TILES : 1;
        const size_t tile = codes_group_bytes(d, kv->n_head_kv, 1, nodes),
                     all = tile * (size_t)((at_once + group - 1) / group * group),
                     least = tile * (size_t)(in_turn > group ? in_turn : group);
        return all < CODES_BUDGET ? all : least > CODES_BUDGET ? least : CODES_BUDGET;
    }
    if (!attn_form_takes(ATTN_STEP, &any, d, 1, kv->type.k, kv->type.v)) return 0;
    const int32_t most = tiles_most(d),
                  tiles = (attn_tiles(n < ATTN_FEW ? n : ATTN_FEW, n_head / kv->n_head_kv) + most - 1) / most;
    const size_t one = record_bytes(d) * (size_t)kv->n_head_kv * (size_t)most;
    const size_t node = one * (size_t)most_units(kn_kv_positions(kv), n, window, false, 0, ATTN_NODE),
                 leaf = one * (size_t)most_units(kn_kv_positions(kv), n, window, false, 0, attn_leaf(d)) *
                        (size_t)tiles;
    size_t turn = BUDGET / node;
    if (turn > (size_t)tiles) turn = (size_t)tiles;
    if (turn < 1) turn = 1;
    const size_t nodes = node * turn, leaves = leaf < LEAF_BUDGET ? leaf : LEAF_BUDGET;
    return nodes > leaves ? nodes : leaves;
}
