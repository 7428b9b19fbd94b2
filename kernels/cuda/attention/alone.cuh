/* attention/alone.cuh - attention of many tiles over few keys, in one launch: a block has a tile, and all
 * keys that it sees. For 17 to 64 rows, and prompts of up to 128.
 *
 * There are tiles enough for the chip, so nothing is handed on: P leaves stand side by side, SIDE warps share
 * one as in attn_places (scores by keys, the output by columns), and after each P all warps add what these
 * came to, in the one order, from shared memory into registers. So the leaves are taken in the order in which
 * they are added: those of a node in order, nodes by class, of which each has one at most. Keys and values of
 * a leaf have one place each; the next leaf's are asked for as soon as that is free. New keys are normed and
 * rotated by all warps when their leaf's turn comes: by every block for itself, and written to the ring by
 * the tile that has the row's first head.
 *
 * Bound: reading the keys of a kv head from the L2 cache once a tile; P leaves take 5 us.
 *
 * Wins over two launches and rope_store: 64 rows of 8B's heads at the first position 16.9 to 7.5 us, at
 * position 512 39.5 to 18.3; 27B's 24.1 to 11.2 and 56.3 to 31.5. build/test/attention_gpu wide */
#include "leaves.cuh"

template <int D> struct alone {
    static constexpr int LEAF = few<D>::LEAF, LEAVES = few<D>::LEAVES;
    static constexpr int WARPS = 16, THREADS = 32 * WARPS;
    static constexpr int P = D <= 128 ? 4 : 2;           /* leaves side by side */
    static constexpr int SIDE = WARPS / P;               /* warps of a leaf */
    static constexpr int NT = LEAF / 8;                  /* n8 tiles of scores */
    static constexpr int KT = NT / 4, KEYED = NT / KT;   /* of a warp; warps of a leaf that have keys: 4 */
    static constexpr int CT = D / 8 / SIDE;              /* n8 tiles of a warp's output */
    static constexpr int PITCH = D + 8, BPITCH = D + 8;  /* halves of a key; floats of a row of results */
    static constexpr int SLOT = LEAF * PITCH * 2;        /* bytes of a leaf's keys, or values */
    static constexpr int QUERY = (D / 16) * 2 * 512;     /* bytes, [D / 16][part][lane] */
    static constexpr int WEIGHT = (LEAF / 16) * 2 * 512; /* of a leaf, [LEAF / 16][part][lane] */
    static constexpr int TOPS = TILE * KEYED * 4;        /* maxima of a leaf, [row][warp] */
    static constexpr int SUMS = TILE * 4 * KEYED * 4;    /* sums of a leaf, [row][lane of a quad][warp] */
    static constexpr int BOX = TILE * BPITCH * 4;        /* results of a leaf */
    static constexpr int MINE = TILE * D / THREADS;      /* results of a thread */
    static constexpr int FIXED =
        (QUERY + P * (WEIGHT + TOPS + SUMS + BOX + TILE * 8) + TILE * (4 + 8) + 16 * P + 127) / 128 * 128;
    static constexpr int BYTES = FIXED + 2 * P * SLOT;
};

/* A barrier that so many threads complete, each when what it has copied is there. */
DEV void landing_open(unsigned bar, int threads)
{
    asm_90("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(threads) : "memory");
}
DEV void landing_arrive(unsigned bar)
{
    asm_90("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}

template <int D, bool BF16>
__global__ void __launch_bounds__(alone<D>::THREADS, 1) attn_alone(const __grid_constant__ attn a)
{
    using F = alone<D>;
    using H = heads_of<D, 16>;
    constexpr int LEAF = F::LEAF, PITCH = F::PITCH, WARPS = F::WARPS, SIDE = F::SIDE, CT = F::CT, P = F::P;
    extern __shared__ __align__(128) unsigned char raw[];
    uint4 *const queries = (uint4 *)raw;
    const int lane = threadIdx.x % 32, w = threadIdx.x / 32, g = lane / 4, c = lane % 4;
    const int p = w / SIDE, side = w % SIDE; /* my leaf of those side by side, my share of it */
    uint4 *const weights = (uint4 *)(raw + F::QUERY + p * F::WEIGHT);
    float *const tops = (float *)(raw + F::QUERY + P * F::WEIGHT + p * F::TOPS);
    float *const sums = (float *)(raw + F::QUERY + P * (F::WEIGHT + F::TOPS) + p * F::SUMS);
    unsigned char *const boxes = raw + F::QUERY + P * (F::WEIGHT + F::TOPS + F::SUMS);
    float2 *const all_tops = (float2 *)(boxes + P * F::BOX); /* (top, sum) of [leaf][row] */
    int2 *const spans = (int2 *)(all_tops + P * TILE);
    float *const units = (float *)(spans + TILE);
    const unsigned bars = shared_at(units + TILE); /* of 8 bytes: keys of P leaves, values of them */
    unsigned char *const slots = raw + F::FIXED;
    touch_arguments(a);
    if (threadIdx.x < 2 * P) landing_open(bars + 8 * threadIdx.x, 32 * SIDE);
    cuda_grid_early();
    __syncthreads(); /* barriers are there */
    if (!a.known) cuda_grid_wait();
    const int tile = a.tile0 + (int)blockIdx.x, kv_head = blockIdx.y;
    const int pos0 = a.pos[0], bound = a.first ? *a.first : 0;
    const struct span seen = visible_any(a, tile, 1, pos0, bound);
    const int first = seen.lo / LEAF, count = seen.hi > seen.lo ? (seen.hi - 1) / LEAF + 1 - first : 0,
              ahead = count ? leaves_ahead<D>(first, count) : 0;
    const int real = min(TILE, a.n * a.n_rep - tile * TILE), groups_q = (real + H::ROWS - 1) / H::ROWS;
    const auto leaf_at = [&](int q) { return first + ahead + q - (ahead + q < count ? 0 : count); };
    /* Of what the tile sees, [seen.lo, old_hi) comes from the ring and [new_lo, seen.hi) is made here. */
    const int old_hi = a.fold ? min(seen.hi, pos0) : seen.hi, new_lo = a.fold ? max(seen.lo, pos0) : seen.hi;
    const int stride = a.n_kv * D, in_side = (int)threadIdx.x % (32 * SIDE);
    const auto ring_at = [&](int position, bool value) {
        return KV_ROW(D, value ? a.v : a.k, KV_SLOT(a.where, position), (int64_t)stride, kv_head);
    };
    const auto query_of = [&](int i, int j) {
        return a.q + (j * (a.n_head - a.n_rep) + kv_head * a.n_rep + tile * TILE + i) * D;
    };
    const auto table_of = [&](int j) { return a.half ? (const float2 *)a.table + j * a.half : NULL; };
    /* My leaf's warps ask for what is there of the keys or values of the q-th leaf. */
    constexpr int PIECES = D / 8, AT_ONCE = 32 * SIDE / PIECES; /* 16 bytes of a key; keys */
    const auto ask = [&](int q, bool value) {
        if (q >= count) return;
        const int p0 = leaf_at(q) * LEAF, from = seen.lo - p0, to = old_hi - p0, key = in_side / PIECES;
        const uint16_t *src = ring_at(p0, value) + key * stride + in_side % PIECES * 8;
        const unsigned dst = shared_at(slots) + (unsigned)((2 * p + value) * F::SLOT) +
                             (unsigned)(key * PITCH + in_side % PIECES * 8) * 2;
        if (from <= 0 && to >= LEAF) {
#pragma unroll
            for (int i = 0; i < LEAF; i += AT_ONCE)
                copy_async(dst + (unsigned)(i * PITCH * 2), src + i * stride);
        } else {
#pragma unroll 1
            for (int i = 0; i < LEAF; i += AT_ONCE)
                if (key + i >= from && key + i < to)
                    copy_async(dst + (unsigned)(i * PITCH * 2), src + i * stride);
        }
        landing_arrive(bars + 8 * (unsigned)(p + (value ? P : 0)));
    };
    const bool soon = a.early && a.fold; /* what is asked for was there before this pass */
    if (a.known && !soon) cuda_grid_wait();
    ask(p, false);
    ask(p, true);
    if (soon) cuda_grid_wait();
    if (threadIdx.x < TILE) {
        const struct span v = visible_at(a, tile * TILE + (int)threadIdx.x, pos0, bound);
        spans[threadIdx.x] = make_int2(v.lo, v.hi);
    }
    const struct span full = visible_all(a, tile, pos0, bound);
    const int own = row_of(a, tile * TILE + a.n_rep - 1), /* rows whose first head the tile has */
        own_to = min(row_of(a, (tile + 1) * TILE + a.n_rep - 1), a.n);
    /* Rows that are normed and rotated here, some of a kind at a time, the next ones' loads before: the
     * queries, where that begins; new keys and values [low, high), whose leaves' turn it is, which go to
     * their slots and, where they are the tile's, to the ring; of the tile's those that no row sees. */
    const auto make_rows = [&](int low, int high, int q0, bool begins) {
        const int mine = low - pos0, count_mine = max(high - low, 0),
                  unseen = begins && a.fold
                               ? max(min(own_to, seen.hi > seen.lo ? new_lo - pos0 : a.n) - own, 0)
                               : 0;
        const made_rows rows =
            made_rows_of<H>(tile, begins ? groups_q : 0, real, mine, count_mine, own, unseen);
        H ahead_rows;
#pragma unroll 1
        for (int it = w - WARPS; it < rows.all; it += WARPS) {
            H h = ahead_rows;
            if (it + WARPS < rows.all) {
                const made_row r = made_row_of<H>(a, rows, it + WARPS, lane);
                ahead_rows.load(a,
                                r.query ? query_of(r.i, r.j)
                                        : (r.value ? a.new_v : a.new_k) + r.j * stride + kv_head * D,
                                r.value ? NULL : table_of(r.j));
            }
            if (it < 0) continue;
            const made_row r = made_row_of<H>(a, rows, it, lane);
            const float *norm = r.query ? a.q_norm : r.value ? NULL : a.k_norm;
            h.turn(a, r.value ? a.v_norm : norm != NULL, norm, !r.value && a.half);
            if (r.query) {
                h.template put_query<BF16>(a, queries, units, r.i, r.really);
            } else if (r.really) {
                const int at = pos0 + r.j;
                int place = at / LEAF - first - ahead; /* of its leaf, among those side by side */
                if (place < 0) place += count;
                place -= q0;
                if (r.local)
                    h.template put<BF16>((uint16_t *)(slots + (2 * place + r.value) * F::SLOT) +
                                         at % LEAF * PITCH);
                if (!r.local || (r.j >= own && r.j < own_to)) h.template put<BF16>(ring_at(at, r.value));
            }
        }
    };
    constexpr int MINE = F::MINE;
    const int my_row = (int)threadIdx.x * MINE / D, my_col = (int)threadIdx.x * MINE % D;
    float T = -INFINITY, S = 0.0f, Y[MINE] = {}, t = -INFINITY, s = 0.0f, y[MINE] = {};
#pragma unroll 1
    for (int q0 = 0; q0 == 0 || q0 < count; q0 += P) {
        const int turn = q0 / P, q = q0 + p, leaf = leaf_at(q), p0 = leaf * LEAF;
        const bool mine = q < count;
        unsigned char *const keys = slots + 2 * p * F::SLOT, *const values = keys + F::SLOT;
        int low = INT32_MAX, high = 0; /* new positions of these leaves, which lie side by side */
        bool edge = q0 == 0;           /* some of them are not seen whole */
        for (int i = 0; i < P && q0 + i < count; i++) {
            const int at = leaf_at(q0 + i) * LEAF, lo = max(at, new_lo), hi = min(at + LEAF, seen.hi);
            if (lo < hi) low = min(low, lo), high = max(high, hi);
            edge |= at < seen.lo || at + LEAF > seen.hi;
        }
        if (mine && (p0 < seen.lo ||
                     p0 + LEAF > seen.hi)) /* values that nobody sees weigh nothing: no NaN among them */
#pragma unroll 1
            for (int i = threadIdx.x % (32 * SIDE); i < LEAF * D / 8; i += 32 * SIDE) {
                const int key = i / (D / 8);
                if (p0 + key < seen.lo || p0 + key >= seen.hi)
                    *((uint4 *)(values + key * PITCH * 2) + i % (D / 8)) = make_uint4(0, 0, 0, 0);
            }
        if (q0 == 0 || low < high) make_rows(low, high, q0, q0 == 0);
        if (edge || low < high) __syncthreads(); /* rows that are made here */
        float acc[CT][4];
        if (mine) {
            float x[F::KT][4], top[2];
            cluster_bar_wait(bars + 8 * p, turn & 1);
            if (side < F::KEYED)
                scores<D, BF16, F::KT, PITCH, 2>(x, queries, shared_at(keys) + side * F::KT * 8 * PITCH * 2);
            const int2 s0 = spans[g], s1 = spans[g + 8];
            const struct span sees[2] = {{s0.x, s0.y}, {s1.x, s1.y}};
            const float unit[2] = {units[g], units[g + 8]};
            side_weights<F, BF16>(x, top, unit, sees, p0, p, side, tops, sums,
                                  weights); /* all have met: the keys are done with */
            ask(q + P, false);
            meet_side<SIDE>(p); /* weights and sums are here */
            const float sum[2] = {side_sum(sums, g), side_sum(sums, g + 8)};
            cluster_bar_wait(bars + 8 * (P + p), turn & 1);
            /* A NaN that another row of the tile does not see: as in attn_places. */
            const bool ragged =
                (full.lo > seen.lo && p0 < full.lo) || (full.hi < seen.hi && p0 + LEAF > full.hi);
            uint64_t bad = 0;
#pragma unroll 1
            for (bool again = false;; again = true) {
                weigh_stored<BF16, LEAF / 16, CT, PITCH>(acc, weights, shared_at(values), side * CT * 8);
                if (!ragged || again) break;
                float odd[4] = {};
#pragma unroll
                for (int i = 0; i < CT; i++)
#pragma unroll
                    for (int e = 0; e < 4; e++) odd[e] = __fmaf_rn(acc[i][e], 0.0f, odd[e]);
                if (!__any_sync(~0u, !(odd[0] + odd[1] + odd[2] + odd[3] == 0.0f))) break;
                bad = clean_values<BF16, LEAF, CT * 8, PITCH>((uint16_t *)values + side * CT * 8);
            }
            if (bad) {
                const uint64_t b0 = bits_of(sees[0], p0), b1 = bits_of(sees[1], p0);
#pragma unroll
                for (int i = 0; i < CT; i++) {
                    if (bad & b0) acc[i][0] = acc[i][1] = __int_as_float(0x7fc00000);
                    if (bad & b1) acc[i][2] = acc[i][3] = __int_as_float(0x7fc00000);
                }
            }
            if (turn) __syncthreads(); /* the results before have been added */
            float *const box = (float *)(boxes + p * F::BOX) + side * CT * 8 + 2 * c;
#pragma unroll
            for (int i = 0; i < CT; i++) {
                *(float2 *)(box + g * F::BPITCH + 8 * i) = make_float2(acc[i][0], acc[i][1]);
                *(float2 *)(box + (g + 8) * F::BPITCH + 8 * i) = make_float2(acc[i][2], acc[i][3]);
            }
            if (side == 0 && c == 0) {
                all_tops[p * TILE + g] = make_float2(top[0], sum[0]);
                all_tops[p * TILE + g + 8] = make_float2(top[1], sum[1]);
            }
        } else if (turn) {
            __syncthreads();
        }
        __syncthreads(); /* these are here, and their values done with */
        ask(q + P, true);
#pragma unroll 1
        for (int i = 0; i < P && q0 + i < count; i++) {
            const float2 ts = all_tops[i * TILE + my_row];
            const float *const from = (const float *)(boxes + i * F::BOX) + my_row * F::BPITCH + my_col;
            float z[MINE];
#pragma unroll
            for (int k = 0; k < MINE; k += 4) *(float4 *)(z + k) = *(const float4 *)(from + k);
            if (q0 + i == 0 || leaf_at(q0 + i) == first || leaf_at(q0 + i) % F::LEAVES == 0) { /* a node */
                add_result<MINE>(T, S, Y, t, s, y);
                t = -INFINITY, s = 0.0f;
#pragma unroll
                for (int k = 0; k < MINE; k++) y[k] = 0.0f;
            }
            add_result<MINE>(t, s, y, ts.x, ts.y, z);
        }
    }
    add_result<MINE>(T, S, Y, t, s, y);
    const int at_row = tile * TILE + my_row;
    const int64_t at_out = head_of_row(a, row_of(a, at_row), kv_head, at_row) * D + my_col;
    float *const copy = (float *)queries; /* which are done with */
    static_assert(TILE * D * 4 <= F::QUERY, "no room for the results");
    if (a.prepare) __syncthreads();
#pragma unroll
    for (int k = 0; k < MINE; k += 4) {
        const float4 z =
            make_float4(divided(Y[k], S), divided(Y[k + 1], S), divided(Y[k + 2], S), divided(Y[k + 3], S));
        if (my_row < real) *(float4 *)(a.out + at_out + k) = z;
        if (a.prepare)
            *(float4 *)(copy + my_row * D + my_col + k) = gated(a, z, gate_at(a, at_out + k, my_row < real));
    }
    if (!a.prepare) return;
    __syncthreads();
    for (int strip = w; strip < real * D / 256; strip += WARPS)
        prepare_strip<D>(a, copy + strip * 256, kv_head, tile * TILE + strip * 256 / D, strip * 256 % D);
}

template <int D> static attn_fn alone_of(uint32_t type, size_t *smem)
{
    *smem = (size_t)alone<D>::BYTES;
    return kv_bf16(type) ? attn_alone<D, true> : attn_alone<D, false>;
}
