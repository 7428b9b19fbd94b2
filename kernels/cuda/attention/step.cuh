/* attention/step.cuh - attention of up to FEW rows: one, two or four tiles a block.
 *
 * What such a call costs is a chain of latencies and, as long, the fetching of instructions that are executed
 * once: code is kept short and in loops, and every thread has a small share of each step. A block streams its
 * leaves through a ring whose slots hold the keys or the values of one. Its warps stand T tiles by SIDE: the
 * warps of a tile share a leaf's scores by keys and its output by columns. In between, with one tile, a warp
 * makes the weights of a row, a lane two keys, and all meet once more; with several, each warp makes all
 * weights of its tile for itself, in registers. A weight or a result has the same chain of operations either
 * way: a leaf begins anew at its own T, and a node adds its leaves in order. One tile is for little to read
 * and for decoding; several read keys once for all of them.
 *
 * Folded (a.fold), q, k and v come as the projections left them: each block norms and rotates its own queries
 * and the new keys of its leaves, and some blocks write the new keys and values to the ring; a warp a head
 * (in clusters some at once), in the order of rope_store's kernel, so with its bits. Nobody reads new
 * positions from the ring.
 *
 * In clusters (NEAR, one tile), all leaves of a (tile, kv head) are in the shared memory of one cluster. A
 * leaf's results go, in strips of 256, to the blocks of the cluster that add them; these wait for as many
 * bytes as there must be. No result crosses global memory, and no fence is needed, which would wait for the
 * ring's writes as well. Else partial results go to memory and attn_merge adds them. */
#include "heads.cuh"

template <int D, int T> struct step {
    static constexpr int LEAF = few<D>::LEAF, LEAVES = few<D>::LEAVES;
    static constexpr int WARPS = D == 64 ? 4 : 8;
    static constexpr int THREADS = 32 * WARPS;
    static constexpr int RESIDENT = D <= 128 || (D == 256 && T == 1) ? 2 : 1; /* blocks a multiprocessor */
    static constexpr int SIDE = WARPS / T;                                    /* warps of a tile */
    static constexpr int ROWS = T * TILE;
    static constexpr int NT = LEAF / 8;                  /* n8 tiles of scores */
    static constexpr int KT = NT > SIDE ? NT / SIDE : 1; /* of a warp */
    static constexpr int CT = D / 8 / SIDE;              /* n8 tiles of a warp's output */
    static constexpr int LANES = LEAF / 2;               /* of a row of weights */
    static constexpr int PITCH = D + 8;                  /* halves of a key: on other banks than the next */
    static constexpr int SLOT = LEAF * PITCH * 2;        /* bytes */
    static constexpr int SPITCH = LEAF + 8;              /* floats of a row of scores */
    static constexpr int QUERY = (D / 16) * 2 * 512;     /* bytes of a tile, [D / 16][part][lane] */
    static constexpr int WEIGHT = T == 1 ? (LEAF / 16) * 2 * 512 : 0; /* [LEAF / 16][part][lane] */
    static constexpr int SCORES = SIDE > 1 ? ROWS *SPITCH * 4 : 0;
    static constexpr int NOTES = ROWS * (4 + 8 + 8) + 16; /* units, (top, sum), spans; a barrier */
    static constexpr int FIXED = (T * QUERY + T * WEIGHT + SCORES + NOTES + 127) / 128 * 128;
    /* A strip is 256 results of the tiles, row after row: what one block of a cluster adds. Strips of a block
     * at most, and bytes of a leaf's results in it with (top, sum) of the rows. */
    static __host__ __device__ constexpr int strips(int blocks)
    {
        return (ROWS * D / 256 + blocks - 1) / blocks;
    }
    static __host__ __device__ constexpr int box_bytes(int blocks)
    {
        return strips(blocks) * 1024 + ROWS * 8;
    }
};

/* A float's order as that of an int, and back. */
DEV int ordered(float x)
{
    const int i = __float_as_int(x);
    return i ^ (i >> 31 & 0x7fffffff);
}

/* The weights of the leaf's keys for the rows that count, from their scores: fragments, and (top, sum) a row,
 * also to each block of a cluster at `box` (of this leaf). */
template <int D, bool BF16, bool NEAR>
DEV void step_weights(const float *exchange, const float *units, const int2 *spans, uint32_t *weights,
                      float2 *tops, int rows, int p0, unsigned box, unsigned bar, unsigned blocks)
{
    using F = step<D, 1>;
    constexpr int LANES = F::LANES, AT_ONCE = 32 / LANES;
    const int w = threadIdx.x / 32, lane = threadIdx.x % 32, l = lane % LANES;
#pragma unroll 1
    for (int r0 = w * AT_ONCE; r0 < rows; r0 += F::WARPS * AT_ONCE) {
        const int r = r0 + lane / LANES;
        const float2 s = *(const float2 *)(exchange + r * F::SPITCH + 2 * l);
        const float unit = units[r];
        const int2 v = spans[r];
        const int p = p0 + 2 * l;
        float x = p >= v.x && p < v.y ? __fmul_rn(s.x, unit) : -INFINITY,
              y = p + 1 >= v.x && p + 1 < v.y ? __fmul_rn(s.y, unit) : -INFINITY;
        const unsigned mates = LANES == 32 ? ~0u : 0xffffu << (lane & 16);
        const int most = __reduce_max_sync(mates, ordered(ceilf(fmaxf(fmaxf(-INFINITY, x), y))));
        const float top = __int_as_float(most ^ (most >> 31 & 0x7fffffff)),
                    base = top == -INFINITY ? 0.0f : top;
        x = exp_two(__fsub_rn(x, base));
        y = exp_two(__fsub_rn(y, base));
        float sum = __fadd_rn(x, y);
#pragma unroll
        for (int i = 4; i < LANES; i *= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, i));
        sum = quad_sum(sum);
        if (r < rows) {
            uint32_t part[2], *at = weights + (l / 8 * 64 + r % 8 * 4 + l % 4) * 4 + l / 4 % 2 * 2 + r / 8;
            parts_of<2, BF16>(x, y, part);
            at[0] = part[0];
            at[128] = part[1];
            if (NEAR) {
                if (l < (int)blocks) {
                    const unsigned there = cluster_at(bar, (unsigned)l);
                    cluster_store(there + box - bar + (unsigned)r * 8, make_float2(top, sum), there);
                }
            } else if (l == 0) {
                tops[r] = make_float2(top, sum);
            }
        }
    }
}

/* Leaves [0, count), the first being leaf `first` absolutely, of row r: values lie a leaf `leaf_bytes` apart
 * from y on, tops and sums 8 * TILES * TILE bytes from ts on. Leaves of a node in order, nodes by class. */
template <int D, int TILES>
DEV float near_sum(const unsigned char *y, const float2 *ts, int leaf_bytes, int first, int count)
{
    constexpr int L = few<D>::LEAVES;
    const int node0 = first / L, node1 = (first + count - 1) / L;
    float T = -INFINITY, S = 0.0f, Y = 0.0f;
#pragma unroll 1
    for (int cls = 0; cls < CLASSES; cls++) { /* a node a class at most */
        const int node = node0 + ((cls - node0) & (CLASSES - 1));
        if (node > node1) continue;
        const int from = max(node * L - first, 0), to = min(node * L + L - first, count);
        float t = -INFINITY, s = 0.0f, z = 0.0f;
#pragma unroll 4
        for (int i = from; i < to; i++) {
            const float2 one = ts[i * TILES * TILE];
            add_result<1>(t, s, &z, one.x, one.y, (const float *)(y + i * leaf_bytes));
        }
        add_result<1>(T, S, &Y, t, s, &z);
    }
    return divided(Y, S);
}

template <int D, bool BF16, bool NEAR, int T, int RESIDENT = step<D, T>::RESIDENT>
__global__ void __launch_bounds__(step<D, T>::THREADS, RESIDENT) attn_step(const __grid_constant__ attn a)
{
    using F = step<D, T>;
    constexpr int LEAF = F::LEAF, PITCH = F::PITCH, THREADS = F::THREADS, CT = F::CT, WARPS = F::WARPS;
    extern __shared__ __align__(128) unsigned char raw[];
    uint4 *queries = (uint4 *)raw, *weights = (uint4 *)(raw + T * F::QUERY);
    float *exchange = (float *)(raw + T * (F::QUERY + F::WEIGHT)), *units = exchange + F::SCORES / 4;
    float2 *tops = (float2 *)(units + F::ROWS);
    int2 *spans = (int2 *)(tops + F::ROWS);
    unsigned char *slots = raw + F::FIXED;
    const unsigned ring = shared_at(slots);
    const unsigned bar = shared_at(spans + F::ROWS);
    if (!NEAR || !a.hand.words) cuda_grid_early();
    if (NEAR) {
        if (threadIdx.x == 0) cluster_bar_init(bar);
        __syncwarp();
        cluster_arrive();
    }

    const int lane = threadIdx.x % 32, w = threadIdx.x / 32, g = lane / 4, c = lane % 4;
    const int m = w % T, side = w / T; /* my tile of the block's, my share of it */
    const int tile = a.tile0 + (int)blockIdx.x * T, kv_head = blockIdx.y, rank = blockIdx.z,
              blocks = gridDim.z;
    if (!a.early) cuda_grid_wait();
    const int pos0 = a.pos[0], bound = a.first ? *a.first : 0;
    const struct span seen = visible_any(a, tile, T, pos0, bound);
    int first, count, from, to, busy; /* leaves of all: first, how many; mine: from, to; blocks at work */
    struct units u = {0, 0};
    if (NEAR) {
        first = seen.lo / LEAF;
        count = seen.hi > seen.lo ? (seen.hi - 1) / LEAF + 1 - first : 0;
        const int per = max((count + blocks - 1) >> a.log_blocks, 1);
        from = first + min(rank * per, count);
        to = first + min(rank * per + per, count);
        busy = blocks;
    } else {
        u = units_of<D>(a, seen);
        const int per = units_a_block(a, u), scale = a.leaves ? 1 : F::LEAVES;
        if (rank * per >= max(u.count, 1)) return;
        from = max((u.first + rank * per) * scale, seen.lo / LEAF);
        to = u.count ? min((u.first + min(rank * per + per, u.count)) * scale, (seen.hi - 1) / LEAF + 1)
                     : from;
        busy = max((u.count + per - 1) / per, 1);
        first = u.first;
        count = u.count;
    }

    /* Of what the tile sees, [seen.lo, old_hi) comes from the ring and [new_lo, seen.hi) is made here. */
    const int old_hi = a.fold ? min(seen.hi, pos0) : seen.hi, new_lo = a.fold ? max(seen.lo, pos0) : seen.hi;
    const int S = a.stages, items = 2 * (to - from); /* keys, values, keys of the next leaf, ... */
    int asked = 0, slot = 0,
        at = KV_SLOT(a.where, from * LEAF); /* the next of them, its slot; its place in the ring */
    constexpr int PIECES = D / 8, EACH = LEAF * PIECES / THREADS; /* of 16 bytes: of a key, of a thread */
    const int my_key = (int)threadIdx.x / PIECES, my_piece = (int)threadIdx.x % PIECES * 8;
    const int64_t stride = (int64_t)a.n_kv * D, mine_from = my_key * stride + kv_head * D + my_piece;
    auto ask = [&]() {
        if (asked < items) {
            const int p0 = (from + asked / 2) * LEAF;
            const uint16_t *src = (const uint16_t *)(asked % 2 ? a.v : a.k) + at * stride + mine_from;
            unsigned dst = ring + (unsigned)(slot * F::SLOT + (my_key * PITCH + my_piece) * 2);
            if (p0 >= seen.lo && p0 + LEAF <= old_hi) {
#pragma unroll
                for (int i = 0; i < EACH; i++)
                    copy_async(dst + (unsigned)(i * (THREADS / PIECES) * PITCH * 2),
                               src + i * (THREADS / PIECES) * stride);
            } else {
                int p = p0 + my_key;
#pragma unroll 1
                for (int i = 0; i < EACH; i++, p += THREADS / PIECES) {
                    const bool in = p >= seen.lo && p < old_hi;
                    if (!(p >= new_lo && p < seen.hi)) copy_async(dst, in ? src : (const uint16_t *)a.k, in);
                    src += THREADS / PIECES * stride;
                    dst += (unsigned)(THREADS / PIECES * PITCH * 2);
                }
            }
            if (asked % 2) at = kv_next(a.where, at, LEAF);
        }
        copy_commit();
        asked++;
        if (++slot == S) slot = 0;
    };
    if (a.early) { /* this pass's own keys begin at pos0 */
        while (asked < S && asked < items && (a.fold || (from + asked / 2 + 1) * LEAF <= pos0)) ask();
    }
    const int real = min(F::ROWS, a.n * a.n_rep - tile * TILE); /* rows of the tiles */
    if (threadIdx.x < F::ROWS) {
        const struct span v = visible_at(a, tile * TILE + (int)threadIdx.x, pos0, bound);
        spans[threadIdx.x] = make_int2(v.lo, v.hi);
    }
    const struct span full = visible_all(a, tile + m, pos0, bound);
    const bool active = m * TILE < real;

    const int strips = (real * D + 255) / 256; /* of results, of all; mine: rank, rank + blocks, ... */
    if (NEAR && threadIdx.x == 0) {
        int values = (strips - rank + blocks - 1) >> a.log_blocks << 8;
        if (((strips - 1) & (blocks - 1)) == rank) values -= strips * 256 - real * D;
        if (rank >= strips) values = 0;
        cluster_bar_expect(bar, (unsigned)(4 * count * (values + 2 * real)));
    }
    /* New keys that this block writes to the ring: of the tiles', every busy-th. */
    const int duty = (int)blockIdx.x * a.duty + rank;
    int n_duty = 0;
    if (a.fold)
        for (int j = duty; j < min(((int)blockIdx.x + 1) * a.duty, a.n); j += busy) n_duty++;

    if (a.early) cuda_grid_wait();
    if (NEAR && a.hand.words) cuda_grid_early(); /* experts/hand.cuh says why */
    while (asked < S) ask();

    float node[NEAR ? 1 : CT][4], node_top[2] = {-INFINITY, -INFINITY}, node_sum[2] = {};
#pragma unroll
    for (int t = 0; t < (NEAR ? 1 : CT); t++) node[t][0] = node[t][1] = node[t][2] = node[t][3] = 0.0f;
    /* Write what the node (or leaf) came to; the result itself where it is all there is. */
    auto put = [&](int unit) {
        float *record = record_of(a, tile + m, kv_head, unit, D);
#pragma unroll 1
        for (int half = 0; half < 2; half++) {
            const int r = g + 8 * half, at_row = (tile + m) * TILE + r;
            if (m * TILE + r >= real) break;
            const bool alone = count <= 1 && !a.sinks;
            float *dst = alone ? a.out + head_of_row(a, row_of(a, at_row), kv_head, at_row) * D
                               : record + 2 * TILE + r * D;
            dst += side * CT * 8 + 2 * c;
            const float sum = half ? node_sum[1] : node_sum[0];
#pragma unroll
            for (int t = 0; t < (NEAR ? 1 : CT); t++) {
                float2 z = half ? make_float2(node[t][2], node[t][3]) : make_float2(node[t][0], node[t][1]);
                if (alone) z = make_float2(divided(z.x, sum), divided(z.y, sum));
                *(float2 *)(dst + 8 * t) = z;
            }
            if (!alone && side == 0 && c == 0) {
                record[r] = half ? node_top[1] : node_top[0];
                record[TILE + r] = sum;
            }
        }
    };

    const unsigned box_leaf = (unsigned)((F::ROWS * D / 256 + blocks - 1) >> a.log_blocks) * 1024;
    const unsigned tops_at = ring + (unsigned)(S * F::SLOT),
                   box = tops_at + (unsigned)(NEAR ? blocks * S / 2 : 0) * F::ROWS * 8;
    int here = 0; /* slot of this leaf's keys */
    /* Rows that are normed and rotated here, a warp one at a time (several tiles: the next one's loads
     * before): queries; new keys and values of the leaf, or, in a cluster, whose slots are their leaf's from
     * the start, of all; those to write. Were there any? */
    const auto make_one = [&](int leaf, bool begins) {
        const int p0 = leaf * LEAF, n_q = begins && from < to ? real : 0;
        int mine = 0, mine_to = 0;
        if (a.fold) {
            mine = max(p0, new_lo) - pos0;
            mine_to = max(min(NEAR ? to * LEAF : p0 + LEAF, seen.hi) - pos0, mine);
        }
        const int n_mine = 2 * (mine_to - mine), all = n_q + n_mine + (begins ? 2 * n_duty : 0);
        const auto is = [&](int i, int &j, bool &query, bool &local, bool &value) {
            const int at = i - n_q - (i - n_q < n_mine ? 0 : n_mine);
            query = i < n_q, local = i - n_q < n_mine, value = !query && at % 2;
            j = query ? row_of(a, tile * TILE + i) : local ? mine + at / 2 : duty + at / 2 * busy;
        };
        const auto load = [&](struct head_of<D> &h, int i, int j, bool query, bool value) {
            const float *src = query ? a.q + head_of_row(a, j, kv_head, tile * TILE + i) * D
                                     : (value ? a.new_v : a.new_k) + ((int64_t)j * a.n_kv + kv_head) * D;
            h.load(a, src,
                   query   ? a.q_norm
                   : value ? NULL
                           : a.k_norm,
                   value || !a.half ? NULL : (const float2 *)a.table + (int64_t)j * a.half);
        };
        constexpr int BEFORE = T == 1 ? 0 : WARPS; /* one tile: a row or two a warp, and shorter code */
        struct head_of<D> h, ahead;
#pragma unroll 1
        for (int it = w - BEFORE; it < all; it += WARPS) {
            int j;
            bool query, local, value;
            if (BEFORE) {
                h = ahead;
                if (it + WARPS < all) {
                    is(it + WARPS, j, query, local, value);
                    load(ahead, it + WARPS, j, query, value);
                }
                if (it < 0) continue;
            }
            is(it, j, query, local, value);
            if (!BEFORE) load(h, it, j, query, value);
            h.turn(a, value ? a.v_norm : (query ? a.q_norm : a.k_norm) != NULL, !value && a.half);
            if (query) {
                h.template put_query<BF16>(a, queries, units, it);
            } else {
                const int p = pos0 + j;
                int at = here + 2 * (p / LEAF - leaf) + value;
                if (at >= S) at -= S;
                uint16_t *dst = local ? (uint16_t *)(slots + at * F::SLOT) + p % LEAF * PITCH
                                      : KV_ROW(D, value ? a.v : a.k, KV_SLOT(a.where, p), stride, kv_head);
                h.template put<BF16>(dst);
            }
        }
        return all > 0;
    };
    /* The same in a cluster, a warp some of a kind at a time: elsewhere it was slower. */
    const auto make_some = [&](int leaf, bool begins) {
        using H = heads_of<D, 16>;
        const int p0 = leaf * LEAF, n_q = begins && from < to ? real : 0, some = begins ? n_duty : 0;
        int mine = 0, mine_to = 0;
        if (a.fold) {
            mine = max(p0, new_lo) - pos0;
            mine_to = max(min(to * LEAF, seen.hi) - pos0, mine);
        }
        const int groups_q = (n_q + H::ROWS - 1) / H::ROWS,
                  groups_mine = (mine_to - mine + H::ROWS - 1) / H::ROWS * 2,
                  all = groups_q + groups_mine + (some + H::ROWS - 1) / H::ROWS * 2;
#pragma unroll 1
        for (int it = w; it < all; it += WARPS) {
            const bool query = it < groups_q, local = it - groups_q < groups_mine;
            const int at = it - groups_q - (local ? 0 : groups_mine),
                      count = query   ? n_q
                              : local ? mine_to - mine
                                      : some,
                      mate = (query ? it : at / 2) * H::ROWS + lane / H::LANES, i = min(mate, count - 1);
            const bool value = !query && at % 2, really = mate < count;
            const int j = query ? row_of(a, tile * TILE + i) : local ? mine + i : duty + i * busy;
            const float *norm = query ? a.q_norm : value ? NULL : a.k_norm;
            const bool turned = !value && a.half;
            H h;
            h.load(a,
                   query ? a.q + head_of_row(a, j, kv_head, tile * TILE + i) * D
                         : (value ? a.new_v : a.new_k) + ((int64_t)j * a.n_kv + kv_head) * D,
                   turned ? (const float2 *)a.table + (int64_t)j * a.half : NULL);
            h.turn(a, value ? a.v_norm : norm != NULL, norm, turned);
            if (query) {
                h.template put_query<BF16>(a, queries, units, i, really);
            } else if (really) {
                const int p = pos0 + j;
                int slot_at = here + 2 * (p / LEAF - leaf) + value;
                if (slot_at >= S) slot_at -= S;
                h.template put<BF16>(
                    local ? (uint16_t *)(slots + slot_at * F::SLOT) + p % LEAF * PITCH
                          : KV_ROW(D, value ? a.v : a.k, KV_SLOT(a.where, p), stride, kv_head));
            }
        }
        return all > 0;
    };
    const auto make_rows = [&](int leaf, bool begins) {
        if constexpr (NEAR)
            return make_some(leaf, begins);
        else
            return make_one(leaf, begins);
    };
    if (NEAR || from >= to) {
        make_rows(from, true);
        if (NEAR) {
            __syncwarp();
            cluster_wait(); /* the others have started */
        }
    }
    for (int leaf = from; leaf < to; leaf++) {
        const int p0 = leaf * LEAF, next = here + 1 == S ? 0 : here + 1;
        const unsigned k = ring + (unsigned)(here * F::SLOT), v = ring + (unsigned)(next * F::SLOT);
        const int before = 2 * (leaf - from); /* items of leaves before */
        if (NEAR || leaf != from) {
            copy_wait(asked - before - 1);
            __syncthreads(); /* these keys are here, and all are done with the leaf before */
        }
        if constexpr (!NEAR) {
            if (leaf != from) ask();
            if (make_rows(leaf, leaf == from)) {
                if (leaf == from) copy_wait(asked - 1);
                __syncthreads(); /* and the rows that are made here */
            }
        }
        float x[F::NT][4]; /* scores, where a warp has all of its tile's */
        if constexpr (F::SIDE == 1) {
            if (active) scores<D, BF16, F::NT, PITCH, 2>(x, queries + m * (F::QUERY / 16), k);
        } else if (active && side * F::KT < F::NT) {
            float part[F::KT][4];
            scores<D, BF16, F::KT, PITCH, 2>(part, queries + m * (F::QUERY / 16),
                                             k + side * F::KT * 8 * PITCH * 2);
            float *row = exchange + (m * TILE + g) * F::SPITCH + side * F::KT * 8 + 2 * c;
#pragma unroll
            for (int j = 0; j < F::KT; j++) {
                *(float2 *)(row + 8 * j) = make_float2(part[j][0], part[j][1]);
                *(float2 *)(row + 8 * F::SPITCH + 8 * j) = make_float2(part[j][2], part[j][3]);
            }
        }
        if (T > 1) copy_wait(asked - before - 2);
        __syncthreads(); /* all scores are here (and these values); the keys are done with */
        if (!NEAR) ask();
        if (T == 1) {
            step_weights<D, BF16, NEAR>(exchange, units, spans, (uint32_t *)weights, tops, real, p0,
                                        tops_at + (unsigned)(leaf - first) * F::ROWS * 8, bar,
                                        (unsigned)blocks);
            copy_wait(asked - before - 2);
            __syncthreads(); /* weights and these values are here */
        }
        here = next + 1 == S ? 0 : next + 1;
        if (!active) continue; /* no rows in my tile */
        /* Several tiles: each warp makes all weights of its tile, in registers. */
        uint32_t p[LEAF / 16][2][4];
        float top[2], sum[2];
        if constexpr (T > 1) {
            const float *row = exchange + (m * TILE + g) * F::SPITCH + 2 * c;
            const float unit[2] = {units[m * TILE + g], units[m * TILE + g + 8]};
            const int2 s0 = spans[m * TILE + g], s1 = spans[m * TILE + g + 8];
#pragma unroll
            for (int j = 0; j < F::NT && F::SIDE > 1; j++) {
                const float2 y = *(const float2 *)(row + 8 * j),
                             z = *(const float2 *)(row + 8 * F::SPITCH + 8 * j);
                x[j][0] = y.x, x[j][1] = y.y, x[j][2] = z.x, x[j][3] = z.y;
            }
            mask_scores<F::NT>(x, top, unit, p0 < full.lo || p0 + LEAF > full.hi, p0, {s0.x, s0.y},
                               {s1.x, s1.y});
            make_weights<F::NT, 2, BF16>(p, sum, x, top);
            sum[0] = quad_sum(sum[0]);
            sum[1] = quad_sum(sum[1]);
        }
        /* Some row sees a key that another of the tiles does not: a NaN there must not meet its zero weight.
         */
        uint64_t bad = 0;
        if ((full.lo > seen.lo && p0 < full.lo) || (full.hi < seen.hi && p0 + LEAF > full.hi)) {
            uint16_t *mine = (uint16_t *)(slots + (v - ring)) + side * CT * 8;
            bad = T == 1 ? clean_values<BF16, LEAF, CT * 8, PITCH>(mine)
                         : find_unfinite<BF16, LEAF, CT * 8, PITCH>(mine);
        }
        float acc[CT][4];
        if constexpr (T == 1) {
            weigh_stored<BF16, LEAF / 16, CT, PITCH>(acc, weights, v, side * CT * 8);
        } else {
#pragma unroll
            for (int t = 0; t < CT; t++) acc[t][0] = acc[t][1] = acc[t][2] = acc[t][3] = 0.0f;
            weigh<BF16, LEAF / 16, CT, PITCH, 2>(acc, p, v, side * CT * 8, bad);
        }
        if (bad) {
            const int2 s0 = spans[m * TILE + g], s1 = spans[m * TILE + g + 8];
            const bool nan0 = bad & bits_of({s0.x, s0.y}, p0), nan1 = bad & bits_of({s1.x, s1.y}, p0);
#pragma unroll
            for (int t = 0; t < CT; t++) {
                if (nan0) acc[t][0] = acc[t][1] = __int_as_float(0x7fc00000);
                if (nan1) acc[t][2] = acc[t][3] = __int_as_float(0x7fc00000);
            }
        }
        if constexpr (NEAR) {
#pragma unroll
            for (int half = 0; half < 2; half++) { /* a warp's columns are in one strip */
                const int r = m * TILE + g + 8 * half;
                const unsigned at_value = (unsigned)(r * D + side * CT * 8 + 2 * c), strip = at_value / 256,
                               bar_there = cluster_at(bar, strip & (unsigned)(blocks - 1)),
                               there = bar_there - bar + box + (unsigned)(leaf - first) * box_leaf +
                                       (strip >> a.log_blocks) * 1024 + at_value % 256 * 4;
                if (r >= real) continue;
#pragma unroll
                for (int t = 0; t < CT; t++)
                    cluster_store(there + 32 * t, make_float2(acc[t][2 * half], acc[t][2 * half + 1]),
                                  bar_there);
            }
        } else {
            if (T == 1) {
                const float2 t0 = tops[g], t1 = tops[g + 8];
                top[0] = t0.x, sum[0] = t0.y, top[1] = t1.x, sum[1] = t1.y;
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float to_top = fmaxf(node_top[half], top[half]), f = factor(node_top[half], to_top),
                            h = factor(top[half], to_top);
                node_sum[half] = __fmaf_rn(h, sum[half], __fmul_rn(node_sum[half], f));
                node_top[half] = to_top;
#pragma unroll
                for (int t = 0; t < CT; t++)
#pragma unroll
                    for (int e = 2 * half; e < 2 * half + 2; e++)
                        node[t][e] = __fmaf_rn(h, acc[t][e], __fmul_rn(node[t][e], f));
            }
            if (a.leaves || (leaf + 1) % F::LEAVES == 0 || leaf + 1 == to) {
                put(a.leaves ? leaf - first : leaf / F::LEAVES - first);
#pragma unroll
                for (int half = 0; half < 2; half++) node_top[half] = -INFINITY, node_sum[half] = 0.0f;
#pragma unroll
                for (int t = 0; t < CT; t++) node[t][0] = node[t][1] = node[t][2] = node[t][3] = 0.0f;
            }
        }
    }
    if constexpr (!NEAR) {
        if (count == 0) put(0); /* nothing to see: zeros */
    } else {
        const bool gates = a.prepare && a.gate; /* asked for before the others' results are there */
        float *copy = (float *)queries; /* which are done with: nothing arrives before all blocks' are */
        static_assert(F::strips(8) * 1024 <= T * F::QUERY, "no room for the results");
        if (rank >= strips) cluster_bar_wait(bar); /* all results are here */
#pragma unroll 1
        for (int strip = rank, i = threadIdx.x; strip < strips;) {
            const int at_value = strip * 256 + i, r = at_value / D, at_row = tile * TILE + r;
            const int64_t at_out = head_of_row(a, row_of(a, at_row), kv_head, at_row) * D + at_value % D;
            float gate = 0.0f;
            if (gates && r < real) gate = dev_sigmoid(__ldcg(a.gate + at_out));
            cluster_bar_wait(bar); /* all results are here */
            if (r < real) {
                const float y = near_sum<D, T>(slots + (box - ring) + ((strip >> a.log_blocks) * 256 + i) * 4,
                                               (const float2 *)(slots + (tops_at - ring)) + r, (int)box_leaf,
                                               first, count);
                a.out[at_out] = y;
                copy[(strip >> a.log_blocks) * 256 + i] = gates ? __fmul_rn(y, gate) : y;
            }
            i += THREADS;
            if (i >= 256) i -= 256, strip += blocks;
        }
        if (a.prepare) { /* a strip is a block of 256 of a token, for as many are in a token's part of a kv
                            head */
            __syncthreads();
            for (int strip = rank + w * blocks; strip < strips; strip += WARPS * blocks) {
                prepare_strip<D>(a, copy + (strip >> a.log_blocks) * 256, kv_head,
                                 tile * TILE + strip * 256 / D, strip * 256 % D);
            }
        }
    }
}

/* stages: slots of the ring. */
template <int D, int T, int RESIDENT = step<D, T>::RESIDENT>
static attn_fn step_of(uint32_t type, int32_t stages, size_t *smem)
{
    using F = step<D, T>;
    *smem = (size_t)(F::FIXED + stages * F::SLOT);
    return kv_bf16(type) ? attn_step<D, true, false, T, RESIDENT> : attn_step<D, false, false, T, RESIDENT>;
}
template <int D> static attn_fn near_of(uint32_t type, int32_t blocks, int32_t leaves, size_t *smem)
{
    using F = step<D, 1>;
    *smem = (size_t)(F::FIXED + 2 * leaves * F::SLOT + leaves * blocks * F::box_bytes(blocks));
    return kv_bf16(type) ? attn_step<D, true, true, 1> : attn_step<D, false, true, 1>;
}
