/* chain/ring.cuh - weights of a chain, from memory to shared memory: one warp of a block asks for tiles
 * through all steps, as far as the ring has room; another fetches the descriptors of steps and plans them.
 *
 * A *tile* is s.per units of two panels at the same columns. Tiles are
 * numbered through the launch; number n has barrier n % CHAIN_TILES, told when its bytes have come, and the
 * ring holds fewer than CHAIN_TILES, so that a parity tells one filling from the next. They stand in the ring
 * one after the other, whatever their size, which a step's tiles share. Whoever multiplies says which number
 * it needs next: all bytes before the least of these are free. */
#ifndef DFLASH_CUDA_CHAIN_RING_CUH
#define DFLASH_CUDA_CHAIN_RING_CUH

#include "sync.cuh"

struct chain_plan;
/* A block's rings in shared memory. Barriers: of tiles, filled; of descriptors; chain/split.cuh. */
struct chain_room {
    uint64_t *full, *told, *planned, *read, *split;
    chain_plan *plan;
    uint32_t *state;
    uint8_t *ring;
    chain_step *steps;
    uint4 *tile;        /* [CHAIN_TILES]: what is in the ring: chain_tile */
    volatile int *done; /* [CHAIN_WARPS]: the tile that the warp needs next */
};
DEV void prefetch_line(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p) : "memory");
}

/* Where tiles stand in the ring. Bytes are counted through all its turns (modulo 2^32), and who is done with
 * them says so by that count; a tile that would not fit before the ring's end begins at its start. */
struct chain_place {
    int i, n;             /* the tile, of those in this turn */
    uint32_t first, turn; /* where the first of them begins in the ring; the turn's begin, counted */
};
/* bytes / tile, without a division. */
DEV int tiles_in(uint32_t bytes, uint32_t tile, float per_tile)
{
    const uint32_t n = (uint32_t)__fmul_rz((float)bytes, per_tile);
    return (int)((n + 1) * tile <= bytes ? n + 1 : n);
}
DEV chain_place place_at(uint32_t at, uint32_t turn, uint32_t tile, float per_tile, uint32_t ring)
{
    return {0, tiles_in(ring - at, tile, per_tile), at, turn};
}
DEV void place_on(chain_place &p, int tiles, int cap, uint32_t ring)
{
    p.i += tiles;
    while (p.i >= p.n) p.i -= p.n, p.n = cap, p.first = 0, p.turn += ring;
}
DEV uint32_t place_of(const chain_place &p, uint32_t tile)
{
    return p.first + (uint32_t)p.i * tile;
}

/* The pair that is the block's `here`th, among the step's. */
DEV int pair_at(const chain_step &s, int here)
{
    return here * (int)gridDim.x + block_of(s);
}
/* The block's part of the pairs that all share, in pieces one after the other: from `piece` of pair `pair` of
 * these on; its number among the blocks. */
struct split_part {
    int number, pair, piece, n;
};
DEV split_part split_part_of(const chain_step &s)
{
    const int b = (int)blockIdx.x - s.split_first, number = b < 0 ? b + (int)gridDim.x : b,
              first = number * s.each + min(number, s.more), pair = first / s.pieces;
    return {number, pair, first - pair * s.pieces, s.each + (number < s.more ? 1 : 0)};
}
DEV int tiles_here(const chain_step &s) /* but of such pairs */
{
    return pairs_here(s) * s.cuts;
}

/* What is the block's own of a step, made in advance. */
struct chain_plan {
    int total, tiles;        /* tiles before the step, and of it */
    int split;               /* of these, of pairs that all blocks share, the first; 65536 times the unit that
                                the first of them begins with */
    int pairs, share;        /* pairs of panels; 2^share lanes an output of those that are not early */
    int unit, leaf, kv_head; /* of attention: the first unit, and which it is; where it may be gated, or keys
                                come through the ring, kv_head is the position, and over quantised ones the
                                rest is code_share_put's; of a delta net: the first of the key head's units,
                                how many, and the key head */
};
/* Of the block's pairs, those whose outputs a warp of its own writes as soon as their sums are complete. */
template <class KV> DEV int early_of(const chain_step &s, int pairs)
{
    return KV::writer && s.flags & CHAIN_EARLY ? max(pairs - 1, 0) : 0;
}
DEV void prefetch_bulk(const void *p, uint32_t bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
#endif
}
/* The block's units of a delta net; and what the step reads beside values, to the L2 cache: all lanes. */
DEV void chain_delta_plan(const chain_net &d, chain_plan &g)
{
    const int b = (int)(gridDim.x - 1 - blockIdx.x); /* the last blocks have fewer pairs of products */
    g.kv_head = b / d.per;
    g.unit = b - g.kv_head * d.per;
    g.leaf = g.kv_head >= d.n_k ? 0 : (g.unit < d.units) + (g.unit + d.per < d.units);
}
/* What pending rows left for the step, where the state is not written after each: the same. */
DEV void chain_delta_behind(const chain_net &d, int c, int n, bool q, int pending)
{
    const int width = (2 * d.n_k + d.n_v) * CHAIN_HEAD, stride = width + 2 * d.n_v, what = threadIdx.x % 8;
#pragma unroll 1
    for (int t = pending - 1 - what; t >= 0; t -= 8) {
        const float *const again = d.log + (KN_DELTA_LOG / 2 + t) * stride;
        if (pending - t < 4) prefetch_bulk(d.log + t * stride + c, (uint32_t)(4 * n));
        if (!q) prefetch_bulk(again + c, (uint32_t)(4 * n));
        if (!q) prefetch_line(again + width);
    }
}
DEV void chain_delta_early(const chain_net &d, const chain_plan &g)
{
    constexpr int D = CHAIN_HEAD, R = 32; /* rows of a unit */
    const int lane = threadIdx.x % 32, width = (2 * d.n_k + d.n_v) * D;
    const int j = lane / 8 % 2;
    if (!g.leaf || (lane < 16 && j >= g.leaf)) return;
    const int u = g.unit + (lane < 16 && j ? d.per : 0),
              rows = R * (4 * (g.kv_head + d.n_k * (u / 4)) + u % 4);
    /* Lanes 0 to 15: of a unit the state, its columns of v; 16 to 31: columns of q and k */
    const int c = lane < 16 ? 2 * d.n_k * D + rows : (j * d.n_k + g.kv_head) * D;
    const uint32_t n = lane < 16 ? R : D;
    const int what = lane % 8;
    if (d.every) {
        cuda_grid_wait(); /* for the number of rows */
        chain_delta_behind(d, c, (int)n, lane >= 16 && !j, min(max(__ldcg(d.pending), 0), KN_DELTA_EVERY));
    }
    if (what < 3) prefetch_bulk(d.conv + (size_t)what * (size_t)width + c, 4 * n);
    if (what == 3 && !d.every) prefetch_bulk(d.log + c, 4 * n);
    if (what == 4) prefetch_bulk(d.taps + 4 * (size_t)c, 16 * n);
    if (what == 5 && lane < 16) prefetch_bulk(d.s + (size_t)rows * D, 4 * R * D);
    if (what == 6) prefetch_line(lane < 16 ? d.log + width + g.kv_head : j ? d.a : d.dt);
}

/* Keys and values of the block's first unit of attention at pos, heads of CHAIN_HEAD, to the L2 cache: all
 * lanes, some rows each. */
DEV void chain_keys_near(const chain_step &s, const chain_plan &g, int pos)
{
    constexpr int LEAF = 64;
    const int p0 = g.leaf * LEAF, at = KV_SLOT(s.where, p0);
#pragma unroll 1
    for (int i = threadIdx.x % 32; i < LEAF && p0 + i < pos; i += 32) {
        const size_t from = KV_INDEX(CHAIN_HEAD, at + i, s.n_kv, g.kv_head);
        prefetch_bulk((const uint16_t *)s.k + from, kv_bytes<CHAIN_HEAD>);
        prefetch_bulk((const uint16_t *)s.v + from, kv_bytes<CHAIN_HEAD>);
    }
}

/* What whoever multiplies knows of a tile: x: where it stands in the ring; y: the same, counted; z: its first
 * unit, and 65536 times where the terms of its panels begin; w: its type (0 Q4_K, 1 Q5_K, 2 Q6_K, 3 IQ4_XS,
 * 4 Q3_K, 5 Q2_K; CHAIN_GRID and behind: types with grids), CHAIN_UNITS times its units, CHAIN_TERM times
 * what is between its panels' terms, by sixteens. */
#define CHAIN_GRID 8
DEV unsigned code_of(uint32_t type)
{
    return type == KN_Q4_K     ? 0
           : type == KN_Q6_K   ? 2
           : type == KN_IQ4_XS ? 3
           : type == KN_Q3_K   ? 4
           : type == KN_Q2_K   ? 5
                               : 1;
}
DEV unsigned code_of_grid(uint32_t type)
{
    return CHAIN_GRID + (type == KN_IQ1_M ? 6u : (unsigned)chain_grid_table(type));
}

/* What a tile is copied from: of the first panel, and of the second. */
#define CHAIN_UNITS 65536u
#define CHAIN_TERM 262144u
struct chain_source {
    const uint8_t *p, *q;
    uint32_t bytes, apart, kind;
    int unit;
};
/* A lane's, to all. */
DEV chain_source source_at(const chain_source &c, int lane)
{
    chain_source all = {};
    all.p = (const uint8_t *)__shfl_sync(0xffffffff, (unsigned long long)c.p, lane);
    all.bytes = __shfl_sync(0xffffffff, c.bytes, lane);
    all.apart = __shfl_sync(0xffffffff, c.apart, lane);
    all.kind = __shfl_sync(0xffffffff, c.kind, lane);
    return all;
}
/* Units [unit, end) of a pair, at most a tile. */
template <bool GRIDS> DEV chain_source source_of(const chain_step &s, bool plain, int pair, int unit, int end)
{
    const int units = s.units, n = max(min(s.per, end - unit), 0);
    int panel = s.gated ? pair : 2 * pair;
    bool two = true;
    const chain_matrix &x = plain ? s.m[0] : pair_of(s, pair, &panel, &two);
    if (!s.gated) two = 16 * panel + 16 < x.n_out;
    chain_source c;
    c.unit = unit;
    c.bytes = (uint32_t)(n * x.unit_bytes);
    c.apart = (uint32_t)(s.per * x.unit_bytes);
    c.kind = (GRIDS && grid_has(x.type) ? code_of_grid(x.type) : code_of(x.type)) | (uint32_t)n * CHAIN_UNITS;
    const size_t at = (size_t)(panel * units + c.unit) * (size_t)x.unit_bytes;
    c.p = x.w + at;
    c.q = s.gated ? s.m[1].w + at : two ? c.p + (size_t)(units * x.unit_bytes) : nullptr;
    return c;
}
/* Tile k of the block's pieces. */
template <bool GRIDS>
DEV chain_source split_source(const chain_step &s, bool plain, const split_part &g, int k)
{
    int piece = g.piece, pair = g.pair;
    while (k >= s.piece_cuts) k -= s.piece_cuts, piece++;
    while (piece >= s.pieces) piece -= s.pieces, pair++;
    return source_of<GRIDS>(s, plain, s.rounds * (int)gridDim.x + pair, piece * s.piece + k * s.per,
                            min((piece + 1) * s.piece, s.units));
}

DEV chain_room chain_room_at(uint8_t *smem)
{
    chain_room r;
    r.full = (uint64_t *)smem, r.told = r.full + CHAIN_TILES, r.read = r.told + CHAIN_DESCS,
    r.planned = r.read + CHAIN_DESCS, r.split = (uint64_t *)(smem + CHAIN_K_SPLIT);
    r.plan = (chain_plan *)(smem + CHAIN_K_PLAN), r.state = (uint32_t *)(smem + CHAIN_K_STATE);
    r.done = (volatile int *)(smem + CHAIN_K_DONE);
    r.tile = (uint4 *)(smem + CHAIN_K_TILES);
    r.ring = smem + CHAIN_K_RING;
    r.steps = (chain_step *)(smem + CHAIN_K_STEPS);
    return r;
}

/* Where a warp is among a step's tiles of keys and values. */
struct chain_reader {
    uint64_t *full;
    uint8_t *ring;
    const uint4 *tile;
    volatile int *next; /* chain_room's `done`, the warp's */
    int number, until;
    /* At the step's tile `first`. */
    __device__ __forceinline__ void begin(const chain_room &r, const chain_plan &plan, int first)
    {
        full = r.full, ring = r.ring, tile = r.tile, next = r.done + warp_of();
        number = plan.total + first, until = plan.total + plan.tiles;
        if (threadIdx.x % 32 == 0) *next = min(number, until);
    }
    __device__ __forceinline__ void await() const
    {
        bar_wait(full + number % CHAIN_TILES, number / CHAIN_TILES & 1);
    }
    __device__ __forceinline__ uint8_t *here() const
    {
        return ring + tile[number % CHAIN_TILES].x;
    }
    /* The tile is done with, whatever was written to it; what follows is `on` behind it. */
    __device__ __forceinline__ void pass(int on)
    {
        number += on;
        __syncwarp();
        if (threadIdx.x % 32) return;
        shared_fence();
        *next = min(number, until);
    }
};

/* Keys and values of attention: beside the ring (chain/attend.cuh), or in it: far_keys of chain/far_ring.cuh;
 * codes: code_keys of chain/codes.cuh. items: some steps have weights of types other than K, as
 * chain/items.cuh knows them. held: keys and values of a short context have a place in the ring, a tile of
 * which nothing is copied: who attends fills it. writer: a warp of its own writes outputs of early pairs
 * (early_of). low: some are of Q2_K, Q3_K, Q4_1, Q5_1 or MXFP4. grids: some are of types with grids. */
struct near_keys {
    static constexpr bool ring = false, codes = false, nets = false, wide = false, post = false,
                          items = false, held = false, low = false, grids = false, writer = true;
};
/* Those, with K types of any kind, and with types with grids. */
template <class KEYS> struct all_k : KEYS {
    static constexpr bool low = true;
};
template <class KEYS> struct all_grids : all_k<KEYS> {
    static constexpr bool grids = true;
};
struct few_keys : near_keys { /* no outputs come early */
    static constexpr bool writer = false;
};
template <class KEYS> struct early_beside : KEYS { /* keys in the ring, and outputs come early */
    static constexpr bool writer = true;
};
struct net_steps : near_keys { /* no attention, but gated delta nets or gated rows */
    static constexpr bool nets = true;
};
struct wide_keys : near_keys { /* of chain/wide.cuh; and chain/post.cuh */
    static constexpr bool wide = true, post = true;
};
/* The block's: those that multiply; those that ask, fetch, write early. */
template <class KV> constexpr int CHAIN_ALL_WARPS = CHAIN_WARPS + (KV::writer ? 3 : 2);

/* Tiles that are asked for at once, at most: each one's barrier but one is looked at for it, lane by lane. */
#define ASK_AT_ONCE 4
/* The warp that asks for tiles (s.per units of two panels at the same columns), a lane a tile, as soon as
 * nobody needs what stands in its place. */
template <bool SPLIT, class KV> DEV void chain_ask(const chain_args &a, const chain_room &m, KV keys)
{
    const int lane = threadIdx.x % 32;
    const uint32_t ring = a.ring;
    constexpr bool near = KV::writer && !KV::nets && !KV::wide; /* before, bring: these alone */
    uint32_t at = 0, turn = 0, until_asked = 0;                 /* the end of the last asked for */
    int total = 0, asked = 0;
#pragma unroll 1
    for (int i = 0; i < a.count; i++) {
        const chain_step &s = m.steps[i % CHAIN_DESCS];
        bar_wait(m.told + i % CHAIN_DESCS, i / CHAIN_DESCS & 1);
        const int cuts = s.cuts, ahead = s.ahead, before = s.before, bring = s.bring;
        const bool kv = KV::ring && s.n_m == 0;
        int tiles = kv ? 0 : tiles_here(s);
        if constexpr (KV::ring)
            if (kv) tiles = keys.begin(s), at = keys.align(at);
        const bool item = KV::items && s.n_m && s.kind != CHAIN_K;
        if constexpr (KV::items)
            if (item) tiles = keys.tiles(s);
        const bool empty = KV::held && !s.n_m;
        if constexpr (KV::held)
            if (empty) tiles = keys.place(s);
        split_part mine = {};
        int shared = 0, turn_by = 0; /* tiles of pairs that all share; a pair's tile that comes first */
        if (SPLIT && s.n_m && s.split) {
            mine = split_part_of(s);
            shared = mine.n * s.piece_cuts, tiles += shared;
            if (s.own) turn_by = mine.piece * s.piece_cuts;
        }
        if (tiles) {
            uint32_t tile = s.tile;
            float per_tile = s.per_tile;
            int cap = s.cap_tiles;
            const int term = (int)s.terms / 4;
            const bool plain = s.gated || s.n_m == 1; /* one type, and pairs the same way apart */
            const bool mixed = near && s.flags & CHAIN_MIXED;
            const int on = mixed ? cuts : 32;
            chain_place p = {};
            int cut = lane - shared, here = 0;
#pragma unroll 1
            for (int first = 0, pair = 0; first < tiles; first += on) {
                if (mixed) {
                    int panel;
                    bool two;
                    tile = 2 * (uint32_t)(s.per * pair_of(s, pair_at(s, pair++), &panel, &two).unit_bytes);
                    per_tile = __fdividef(1.0f, (float)tile), cap = tiles_in(ring, tile, per_tile);
                }
                if (mixed || !first) {
                    p = place_at(at, turn, tile, per_tile, ring);
                    chain_place end = p;
                    place_on(p, lane, cap, ring);
                    place_on(end, mixed ? cuts : tiles, cap, ring);
                    at = place_of(end, tile), turn = end.turn;
                }
                const int many = min(tiles - first, on); /* tiles of this turn: lanes */
                const bool mine_too = lane < many;
                const unsigned number = (unsigned)(total + first + lane);
                chain_source c = {};
                while (!kv && !item && !empty && cut >= cuts) cut -= cuts, here++;
                int terms = here * 2 * term, apart = term; /* terms: where those of unit 0 would be */
                if (SPLIT && mine_too && cut < 0) {
                    c = split_source<KV::grids>(s, plain, mine, cut + shared);
                    terms = s.rounds * 2 * term + 16 * (s.per * (cut + shared) - c.unit);
                    apart = s.split_term;
                } else if (mine_too && !kv && !item && !empty) {
                    const int by = SPLIT ? cut + turn_by - (cut + turn_by >= cuts ? cuts : 0) : cut;
                    c = source_of<KV::grids>(s, plain, pair_at(s, here), by * s.per, s.units);
                }
                if (SPLIT) c.kind |= (uint32_t)apart / 16 * CHAIN_TERM;
                if constexpr (KV::items)
                    if (mine_too && item) c = keys.item(s, first + lane);
                if constexpr (KV::ring)
                    if (mine_too && kv) c = keys.source(a, s, first + lane);
                const uint32_t to = place_of(p, tile);
                const uint4 known = make_uint4(to, p.turn + to, (uint32_t)(c.unit + (terms << 16)), c.kind);
                const uint32_t end = known.y + tile, room = end - ring;
                cut += on;
                uint64_t *const bar = m.full + number % CHAIN_TILES;
                const int behind = (int)number - ahead, long_behind = (int)number - before;
                unsigned left = 0xffffffff >> (32 - many); /* lanes whose tiles are not asked for */
                int brought = 0, next = 0;                 /* next: the first of them */
                for (;;) {
                    /* The tile that somebody needs and nobody an earlier one, and where it stands: what was
                     * asked for last if it is not yet there. */
                    const int oldest = __reduce_min_sync(0xffffffff, m.done[lane % CHAIN_WARPS]);
                    const uint32_t low =
                        oldest < asked ? m.tile[(unsigned)oldest % CHAIN_TILES].y : until_asked;
                    bool ready = (int)(room - low) <= 0 && (unsigned)(lane - next) < ASK_AT_ONCE;
                    const int back = (near || KV::items) && oldest < total ? long_behind : behind;
                    if (ahead && ready && back >= 0)
                        ready =
                            bar_test(m.full + (unsigned)back % CHAIN_TILES, (unsigned)back / CHAIN_TILES & 1);
                    const unsigned held = left & ~__ballot_sync(0xffffffff, ready),
                                   now = left & ((held & (0u - held)) - 1); /* in order */
                    ready = now >> lane & 1;
                    if (ready) m.tile[number % CHAIN_TILES] = known;
                    if ((KV::items || SPLIT) && ready && !kv && !c.bytes)
                        bar_arrive(bar); /* there is no such item, or unit */
                    if (ready && !kv && (!(KV::items || SPLIT) || c.bytes)) {
                        bar_expect(bar, c.q ? 2 * c.bytes : c.bytes);
                        copy_weights_to(m.ring + to, c.p, c.bytes, bar);
                        if (c.q) copy_weights_to(m.ring + to + c.apart, c.q, c.bytes, bar);
                    }
                    if constexpr (KV::codes) {
                        for (unsigned some = kv ? now : 0; some; some &= some - 1) {
                            const int of = __ffs((int)some) - 1;
                            keys.copy(s, m.ring + __shfl_sync(0xffffffff, to, of), source_at(c, of),
                                      m.full + (unsigned)(total + first + of) % CHAIN_TILES);
                        }
                    } else if constexpr (KV::ring) {
                        if (ready && kv) keys.copy(m.ring + to, c, bar);
                    }
                    __syncwarp();
                    if (now) {
                        const int newest = 31 - __clz((int)now);
                        left &= ~now, next = newest + 1, asked = total + first + next;
                        until_asked = __shfl_sync(0xffffffff, end, newest);
                    }
                    if (!left) break;
                    /* Nothing is on its way, for the ring is full: what comes next, to the L2 cache. */
                    if (near && bring && !now && asked &&
                        bar_test(m.full + (unsigned)(asked - 1) % CHAIN_TILES,
                                 (unsigned)(asked - 1) / CHAIN_TILES & 1)) {
                        const int then = max(brought, next);
                        if (then < min(next + bring, 32)) {
                            if (lane == then && mine_too) {
                                prefetch_bulk(c.p, c.bytes);
                                if (c.q) prefetch_bulk(c.q, c.bytes);
                            }
                            brought = then + 1;
                        }
                    }
                    if constexpr (KV::items)
                        if (!now && item) {
                            const uint32_t wanted = __shfl_sync(0xffffffff, room, __ffs((int)held) - 1);
                            if ((int)(wanted - low) > 0) keys.early(s, i, asked - total, tiles);
                        }
                    if ((!KV::items || KV::nets) && !now) __nanosleep(40);
                }
                place_on(p, 32, cap, ring);
            }
            total += tiles;
        }
        if (lane == 0) bar_arrive(m.read + i % CHAIN_DESCS);
    }
}
/* A step's pairs that all blocks share, while their own are multiplied: chain/split.cuh. turn: such steps
 * before. */
static __device__ __noinline__ void split_sums(const chain_args &a, uint8_t *smem, int i, int turn);

/* The warp that fetches descriptors, plans steps, and has what they read beside weights and keys brought to
 * the L2 cache. */
template <bool SPLIT, class KV> DEV void chain_fetch(const chain_args &a, const chain_room &m, KV keys)
{
    constexpr int BEHIND = SPLIT ? CHAIN_DESCS - 3 : 0; /* whose sums are added while a step is planned */
    const int lane = threadIdx.x % 32;
    int total = 0, pos = -1, turn = 0;
#pragma unroll 1
    for (int i = 0; i < a.count + BEHIND; i++) {
        if (SPLIT && i >= BEHIND) {
            const int at = (i - BEHIND) % CHAIN_DESCS;
            if (m.steps[at].n_m && m.steps[at].split) split_sums(a, (uint8_t *)m.full, i - BEHIND, turn++);
            if (lane == 0) bar_arrive(m.read + at);
        }
        if (SPLIT && i >= a.count) continue;
        if (lane == 0 && i + 2 < a.count) {
            const int next = i + 2, at = next % CHAIN_DESCS;
            if (next >= CHAIN_DESCS) bar_wait(m.read + at, (next / CHAIN_DESCS - 1) & 1);
            bar_expect(m.told + at, sizeof(chain_step));
            copy_bulk_to(m.steps + at, a.step + next, sizeof(chain_step), m.told + at);
        }
        __syncwarp();
        const chain_step &s = m.steps[i % CHAIN_DESCS];
        bar_wait(m.told + i % CHAIN_DESCS, i / CHAIN_DESCS & 1);
        /* What a step reads beside weights and keys: one block for all. */
        if (blockIdx.x == i % gridDim.x) {
            const int near = s.n_m ? 0 : KV::wide ? s.head : CHAIN_HEAD;
            for (int k = 32 * lane; s.norm && k < (KV::items && s.kind ? 32 : 256) * s.units; k += 1024)
                prefetch_line(s.norm + k);
            if (KV::post)
                for (int k = 32 * lane; s.post && k < 256 * s.units; k += 1024) prefetch_line(s.post + k);
            if (32 * lane < near) {
                if (s.q_norm) prefetch_line(s.q_norm + 32 * lane);
                if (s.k_norm) prefetch_line(s.k_norm + 32 * lane);
            }
        }
        int tiles = s.n_m ? tiles_here(s) : 0;
        chain_plan g = {};
        g.pairs = tiles ? pairs_here(s) : 0;
        if constexpr (KV::items)
            if (s.n_m && s.kind != CHAIN_K) tiles = keys.plan(s, g);
        if constexpr (KV::ring)
            if (!s.n_m) tiles = keys.begin(s), g.kv_head = keys.pos;
        if constexpr (KV::held)
            if (!s.n_m) tiles = keys.place(s);
        if (SPLIT && s.n_m && s.split) {
            const split_part mine = split_part_of(s);
            g.split = mine.n * s.piece_cuts | mine.piece * s.piece << 16;
            tiles += mine.n * s.piece_cuts;
        }
        g.total = total, g.tiles = tiles;
        const int late = g.pairs - early_of<KV>(s, g.pairs);
        g.share = 4 * late <= CHAIN_WARPS ? 2 : 2 * late <= CHAIN_WARPS ? 1 : 0;
        if constexpr (KV::codes)
            if (!s.n_m) keys.share(s, g);
        if (!KV::ring && !KV::nets && !s.n_m) {
            g.unit = block_of(s) - s.rest; /* blocks with less of the projections have leaves first */
            if (g.unit < 0) g.unit += (int)gridDim.x;
            g.leaf = g.unit / s.n_kv, g.kv_head = g.unit - g.leaf * s.n_kv;
        }
        if (KV::nets && (s.d.what == CHAIN_STATE || s.d.what == CHAIN_STATE_ROW)) chain_delta_plan(s.d, g);
        if (KV::nets && s.d.what == CHAIN_STATE) chain_delta_early(s.d, g);
        if (lane == 0) {
            m.plan[i % CHAIN_DESCS] = g;
            bar_arrive(m.planned + i % CHAIN_DESCS);
        }
        if (KV::writer && !KV::nets && !KV::wide && !KV::ring && !s.n_m) {
            if (pos < 0) {
                cuda_grid_wait(); /* for the position */
                pos = __ldcg(s.pos);
            }
            chain_keys_near(s, g, pos);
        }
        total += tiles;
        if (!SPLIT && lane == 0) bar_arrive(m.read + i % CHAIN_DESCS);
    }
}

#endif
