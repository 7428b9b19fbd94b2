/* attention/stream.cuh - attention of one tile of few rows over long contexts: a leaf a warp.
 *
 * A block takes nodes of one kv head, each of its warps a leaf of each, 16 keys or values at a time through a
 * ring of its own: no warp waits for another until the node's leaves are added, so memory streams. Scores,
 * weights and results of a leaf stay in registers; results go to the ring's slot that was read last, and all
 * threads add them in order. Numbers and the order of additions are those of attn_step, as are queries and
 * new keys.
 *
 * Wins over attn_step: 35B-A3B at 16,384 positions, one row 1.479 to 1.342 ms (10 %), 27B 5.272 to 5.185
 * (1.7 %): dflash-bench rows -m 35b-a3b-q4_k_m.gguf --device cuda --rows 1,16 --context 16384. */
#include "step.cuh"

template <int D> struct stream {
    static constexpr int LEAF = few<D>::LEAF, LEAVES = few<D>::LEAVES;
    static constexpr int WARPS = 8, THREADS = 32 * WARPS, RESIDENT = D <= 128 ? 2 : 1;
    static constexpr int CHUNK = 16, SLOTS = 3; /* keys or values; of a warp */
    static constexpr int PITCH = D + 8;
    static constexpr int SLOT = CHUNK * PITCH * 2; /* bytes; 8 rows of results fit */
    static constexpr int QUERY = (D / 16) * 2 * 512;
    static constexpr int FIXED =
        QUERY + TILE * (4 + 8 + 8 * WARPS); /* queries; units, spans, (top, sum) a warp */
    static constexpr int SMEM = FIXED + WARPS * SLOTS * SLOT;
    static_assert(LEAVES == WARPS && LEAF == 64, "a leaf a warp");
    static_assert(STREAM_ROWS * D * 4 <= SLOT, "no room for the results");
};

/* The chunk's 16 rows: a bit for each that holds a NaN or Inf, and zeros in their place. */
template <bool BF16, int D, int PITCH> DEV unsigned clean_chunk(uint16_t *v)
{
    uint4 *row = (uint4 *)(v + threadIdx.x % 16 * PITCH + threadIdx.x % 32 / 16 * (D / 2));
    bool bad = false;
#pragma unroll 1
    for (int i = 0; i < D / 16; i++) {
        uint4 x = row[i];
        const bool here = make_finite<BF16>(x);
        if (here) row[i] = x;
        bad |= here;
    }
    const unsigned bits = __ballot_sync(~0u, bad);
    __syncwarp();
    return (bits | bits >> 16) & 0xffff;
}

template <int D, bool BF16>
__global__ void __launch_bounds__(stream<D>::THREADS, stream<D>::RESIDENT)
    attn_stream(const __grid_constant__ attn a)
{
    using F = stream<D>;
    constexpr int LEAF = F::LEAF, PITCH = F::PITCH, WARPS = F::WARPS, CHUNK = F::CHUNK, NT = LEAF / 8,
                  CT = D / 8;
    extern __shared__ __align__(128) unsigned char raw[];
    uint4 *queries = (uint4 *)raw;
    float *units = (float *)(raw + F::QUERY);
    int2 *spans = (int2 *)(units + TILE);
    float2 *tops = (float2 *)(spans + TILE); /* [warp][row] */
    const int lane = threadIdx.x % 32, w = threadIdx.x / 32, g = lane / 4, c = lane % 4;
    unsigned char *const slots = raw + F::FIXED, *const my_slots = slots + w * F::SLOTS * F::SLOT;
    const unsigned ring = shared_at(my_slots);
    cuda_grid_early();

    const int tile = a.tile0 + (int)blockIdx.x, kv_head = blockIdx.y, rank = blockIdx.z;
    if (!a.early) cuda_grid_wait();
    const int pos0 = a.pos[0], bound = a.first ? *a.first : 0;
    const struct span seen = visible_any(a, tile, 1, pos0, bound);
    const struct units u = units_of<D>(a, seen);
    const int per = units_a_block(a, u), node0 = u.first + rank * per, nodes = min(per, u.count - rank * per);
    if (rank * per >= max(u.count, 1)) return;
    const int leaf0 = seen.lo / LEAF, leaf_end = u.count ? (seen.hi - 1) / LEAF + 1 : leaf0;

    /* Of what the tile sees, [seen.lo, old_hi) comes from the ring and [new_lo, seen.hi) is made here. */
    const int old_hi = a.fold ? min(seen.hi, pos0) : seen.hi, new_lo = a.fold ? max(seen.lo, pos0) : seen.hi;
    constexpr int PIECES = D / 8, EACH = CHUNK * PIECES / 32, KEYS = 32 / PIECES; /* of a copy of all lanes */
    const int64_t stride = (int64_t)a.n_kv * D;
    int asked = 0, slot = 0; /* chunks: four of a leaf's keys, four of its values, then the next node's */
    auto ask = [&]() {
        const int leaf = (node0 + asked / 8) * F::LEAVES + w;
        if (asked < 8 * nodes && leaf >= leaf0 && leaf < leaf_end) {
            const int p0 = leaf * LEAF + asked % 4 * CHUNK, key = lane / PIECES, piece = lane % PIECES * 8;
            const uint16_t *src =
                KV_ROW(D, asked & 4 ? a.v : a.k, KV_SLOT(a.where, p0) + key, stride, kv_head) + piece;
            unsigned dst = ring + (unsigned)(slot * F::SLOT + (key * PITCH + piece) * 2);
            if (p0 >= seen.lo && p0 + CHUNK <= old_hi) {
#pragma unroll
                for (int i = 0; i < EACH; i++)
                    copy_async(dst + (unsigned)(i * KEYS * PITCH * 2), src + i * KEYS * stride);
            } else {
#pragma unroll 1
                for (int p = p0 + key; p < p0 + CHUNK; p += KEYS) {
                    const bool in = p >= seen.lo && p < old_hi;
                    if (!(p >= new_lo && p < seen.hi)) copy_async(dst, in ? src : (const uint16_t *)a.k, in);
                    src += KEYS * stride;
                    dst += (unsigned)(KEYS * PITCH * 2);
                }
            }
        }
        copy_commit();
        asked++;
        if (++slot == F::SLOTS) slot = 0;
    };
    if (a.early) { /* this pass's own keys begin at pos0 */
        while (asked < F::SLOTS && (a.fold || ((node0 * F::LEAVES + w) * LEAF + (asked + 1) * CHUNK <= pos0)))
            ask();
    }
    const int real = min(TILE, a.n * a.n_rep - tile * TILE); /* rows of the tile */
    if (threadIdx.x < TILE) {
        const struct span v = visible_at(a, tile * TILE + (int)threadIdx.x, pos0, bound);
        spans[threadIdx.x] = make_int2(v.lo, v.hi);
    }
    const struct span full = visible_all(a, tile, pos0, bound);
    const int duty = (int)blockIdx.x * a.duty + rank, busy = max((u.count + per - 1) / per, 1);
    int n_duty = 0;
    if (a.fold)
        for (int j = duty; j < min(((int)blockIdx.x + 1) * a.duty, a.n); j += busy) n_duty++;

    if (a.early) cuda_grid_wait();
    while (asked < F::SLOTS) ask();
        /* Queries, and the new keys and values that this block writes to the cache; a warp one at a time. */
#pragma unroll 1
    for (int it = w; it < real + 2 * n_duty; it += WARPS) {
        struct head_of<D> h;
        const bool query = it < real, value = !query && (it - real) % 2;
        const int j = query ? row_of(a, tile * TILE + it) : duty + (it - real) / 2 * busy, p = pos0 + j;
        const float *src = query ? a.q + head_of_row(a, j, kv_head, tile * TILE + it) * D
                                 : (value ? a.new_v : a.new_k) + ((int64_t)j * a.n_kv + kv_head) * D,
                    *norm = query   ? a.q_norm
                            : value ? NULL
                                    : a.k_norm;
        const bool turned = !value && a.half;
        h.load(a, src, norm, turned ? (const float2 *)a.table + (int64_t)j * a.half : NULL);
        h.turn(a, value ? a.v_norm : norm != NULL, turned);
        if (query)
            h.template put_query<BF16>(a, queries, units, it);
        else
            h.template put<BF16>(KV_ROW(D, value ? a.v : a.k, KV_SLOT(a.where, p), stride, kv_head));
    }
    __syncthreads();

    /* A chunk is here, with the new rows in it. */
    int here = 0; /* its slot */
    auto arrive = [&](int p, bool value) {
        copy_wait(F::SLOTS - 1);
        __syncwarp();
        if (a.fold && p + CHUNK > new_lo && p < seen.hi) {
#pragma unroll 1
            for (int q = max(p, new_lo); q < min(p + CHUNK, seen.hi); q++) {
                struct head_of<D> h;
                const int j = q - pos0;
                const bool turned = !value && a.half;
                h.load(a, (value ? a.new_v : a.new_k) + ((int64_t)j * a.n_kv + kv_head) * D,
                       value ? NULL : a.k_norm,
                       turned ? (const float2 *)a.table + (int64_t)j * a.half : NULL);
                h.turn(a, value ? a.v_norm : a.k_norm != NULL, turned);
                h.template put<BF16>((uint16_t *)(my_slots + here * F::SLOT) + (q - p) * PITCH);
            }
            __syncwarp();
        }
    };
    auto leave = [&]() {
        if (++here == F::SLOTS) here = 0;
    };
#pragma unroll 1
    for (int i = 0; i < nodes; i++) {
        const int base = (node0 + i) * F::LEAVES, leaf = base + w, p0 = leaf * LEAF;
        const int from = max(base, leaf0) - base,
                  to = min(base + F::LEAVES, leaf_end) - base; /* of the node */
        int result = 0;                                        /* the slot of results */
        if (w >= from && w < to) {
            float x[NT][4], top[2], sum[2];
#pragma unroll
            for (int j = 0; j < NT; j++) x[j][0] = x[j][1] = x[j][2] = x[j][3] = 0.0f;
#pragma unroll 1
            for (int part = 0; part < 4; part++) {
                float y[2][4];
                arrive(p0 + part * CHUNK, false);
                scores<D, BF16, 2, PITCH, 2>(y, queries, ring + (unsigned)(here * F::SLOT));
#pragma unroll
                for (int j = 0; j < NT - 2; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) x[j][e] = x[j + 2][e];
#pragma unroll
                for (int e = 0; e < 4; e++) x[NT - 2][e] = y[0][e], x[NT - 1][e] = y[1][e];
                __syncwarp();
                ask();
                leave();
            }
            const int2 s0 = spans[g], s1 = spans[g + 8];
            const struct span v0 = {s0.x, s0.y}, v1 = {s1.x, s1.y};
            const float unit[2] = {units[g], units[g + 8]};
            uint32_t p[NT / 2][2][4];
            mask_scores<NT>(x, top, unit, p0 < full.lo || p0 + LEAF > full.hi, p0, v0, v1);
            make_weights<NT, 2, BF16>(p, sum, x, top);
            sum[0] = quad_sum(sum[0]);
            sum[1] = quad_sum(sum[1]);
            /* Some row sees a key that another does not: a NaN there must not meet its zero weight. */
            const bool ragged =
                (full.lo > seen.lo && p0 < full.lo) || (full.hi < seen.hi && p0 + LEAF > full.hi);
            uint64_t bad = 0;
            float acc[CT][4];
#pragma unroll
            for (int t = 0; t < CT; t++) acc[t][0] = acc[t][1] = acc[t][2] = acc[t][3] = 0.0f;
#pragma unroll 1
            for (int part = 0; part < 4; part++) {
                arrive(p0 + part * CHUNK, true);
                if (ragged)
                    bad |= (uint64_t)clean_chunk<BF16, D, PITCH>((uint16_t *)(my_slots + here * F::SLOT))
                           << part * CHUNK;
                weigh<BF16, 1, CT, PITCH, 2>(acc, p, ring + (unsigned)(here * F::SLOT), 0, false);
#pragma unroll
                for (int s = 0; s < NT / 2 - 1; s++)
#pragma unroll
                    for (int e = 0; e < 4; e++) p[s][0][e] = p[s + 1][0][e], p[s][1][e] = p[s + 1][1][e];
                __syncwarp();
                result = here;
                if (part < 3) ask();
                leave();
            }
            if (bad) {
                const bool nan0 = bad & bits_of(v0, p0), nan1 = bad & bits_of(v1, p0);
#pragma unroll
                for (int t = 0; t < CT; t++) {
                    if (nan0) acc[t][0] = acc[t][1] = __int_as_float(0x7fc00000);
                    if (nan1) acc[t][2] = acc[t][3] = __int_as_float(0x7fc00000);
                }
            }
            float *y = (float *)(my_slots + result * F::SLOT) + g * D + 2 * c;
            if (g < real)
#pragma unroll
                for (int t = 0; t < CT; t++) *(float2 *)(y + 8 * t) = make_float2(acc[t][0], acc[t][1]);
            if (c == 0) {
                tops[w * TILE + g] = make_float2(top[0], sum[0]);
                tops[w * TILE + g + 8] = make_float2(top[1], sum[1]);
            }
        } else { /* the same chunks, none of them here */
#pragma unroll 1
            for (int part = 0; part < 8; part++) {
                result = here;
                if (part < 7) ask();
                leave();
            }
        }
        __syncthreads(); /* the node's leaves */
        const unsigned char *results = slots + result * F::SLOT;
#pragma unroll 1
        for (int at = 2 * (int)threadIdx.x; at < real * D; at += 2 * F::THREADS) {
            const int r = at / D, at_row = tile * TILE + r;
            float T = -INFINITY, S = 0.0f, Y[2] = {0.0f, 0.0f};
#pragma unroll 4
            for (int l = from; l < to; l++) {
                const float2 ts = tops[l * TILE + r],
                             y = *(const float2 *)(results + l * F::SLOTS * F::SLOT + at * 4);
                const float v[2] = {y.x, y.y};
                add_result<2>(T, S, Y, ts.x, ts.y, v);
            }
            if (u.count <= 1) {
                *(float2 *)(a.out + head_of_row(a, row_of(a, at_row), kv_head, at_row) * D + at % D) =
                    make_float2(divided(Y[0], S), divided(Y[1], S));
            } else {
                float *record = record_of(a, tile, kv_head, node0 + i - u.first, D);
                *(float2 *)(record + 2 * TILE + at) = make_float2(Y[0], Y[1]);
                if (at % D == 0) record[r] = T, record[TILE + r] = S;
            }
        }
        if (i + 1 < nodes) __syncthreads(); /* the results' slots are free */
        ask();
    }
    if (nodes <= 0) /* nothing to see: zeros */
        for (int at = (int)threadIdx.x; at < real * D; at += F::THREADS) {
            const int at_row = tile * TILE + at / D;
            a.out[head_of_row(a, row_of(a, at_row), kv_head, at_row) * D + at % D] = 0.0f;
        }
}

template <int D> static attn_fn stream_of(uint32_t type, size_t *smem)
{
    *smem = (size_t)stream<D>::SMEM;
    return kv_bf16(type) ? attn_stream<D, true> : attn_stream<D, false>;
}
