/* delta/chunks.cuh - 17 to 64 rows of a gated delta net (delta/step.cu), and those pending before them:
 * chunks of 16 tokens, prepared while those before go through the state.
 *
 * Four warps have a block's 32 rows of the state, as in few.cuh, and do nothing else. The other four prepare:
 * of a chunk each of a head's four blocks has four tokens, one strip, all columns of the head; a thread has a
 * column of q, of k and of v, a warp norms a token. What all need goes to the four blocks, into one of two
 * places, which their state's warps have let go (`free`). Outputs have places of their own, so that nobody
 * waits to send them. Meanwhile two of the preparing warps norm, gate and round outputs; the other two write
 * what is kept when the last chunk has been read.
 *
 * Bound: the chain of the tokens' steps, 526 clocks each (docs/speed/delta-nets.md). */
#ifndef DFLASH_CUDA_DELTA_CHUNKS_CUH
#define DFLASH_CUDA_DELTA_CHUNKS_CUH

#define CHUNK_OF (QUARTERS * STRIP_OF) /* tokens */
#define FINISHERS 2                    /* warps that finish outputs */

struct chunks_memory {
    float qk[2 * CHUNK_OF][2 * D]; /* two chunks: a token's q and k, normed */
    float v[2 * CHUNK_OF][ROWS];
    float4 gates[2 * CHUNK_OF];                    /* decay, beta, k . q */
    float raw[2][STRIP_OF][2 * D];                 /* this block's tokens of two chunks, convolved */
    float o[KN_DELTA_LOG / BLOCKS][BLOCKS * ROWS]; /* of rows rank, rank + 8, ...: from all blocks */
    uint64_t tokens[2], free[2], come[KN_DELTA_LOG / BLOCKS];
};
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

/* A preparing warp's part of a chunk: of this block's strip. */
struct chunk_part {
    int32_t t0, n, have; /* the chunk's first token and tokens; of the strip */
    int slot;            /* the place of the chunk's first token */
};
DEV struct chunk_part chunk_part_of(const struct few_part &b, int32_t c, int32_t all)
{
    const int32_t t0 = c * CHUNK_OF, n = min(CHUNK_OF, all - t0);
    return {t0, n, min(STRIP_OF, n - b.quarter * STRIP_OF), c % 2 * CHUNK_OF};
}

/* A barrier that `count` arrivals complete, of any block of the cluster: what these have read has been read.
 */
DEV void chunks_bar_init(unsigned bar, unsigned count)
{
    asm_90("mbarrier.init.shared::cta.b64 [%0], %1;\n fence.mbarrier_init.release.cluster;" ::"r"(bar),
           "r"(count)
           : "memory");
}
DEV void chunks_let_go(unsigned bar_there)
{
    asm_90("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(bar_there) : "memory");
}
DEV void chunks_wait_free(unsigned bar, unsigned phase)
{
    asm_90("{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], "
           "%1;\n@p bra done;\nbra again;\ndone:\n}" ::"r"(bar),
           "r"(phase)
           : "memory");
}

/* Chunk c of a head, its strip: convolved, normed, sent. column: of q, k and v. */
DEV void chunks_prepare(const struct layer &l, struct chunks_memory &m, const struct few_part &b, int32_t c,
                        int32_t all, int32_t pending, const int64_t column[3], const float4 taps_in[3],
                        const float2 &own)
{
    const struct chunk_part k = chunk_part_of(b, c, all);
    const int i = b.thread % D, helper = b.warp - STATE_WARPS, skip = TAPS - l.a.n_conv,
              at = b.lane % STRIP_OF, token = k.t0 + b.quarter * STRIP_OF + at;
    const bool last_warp = b.warp == WARPS - 1, gates = last_warp && b.lane < CHUNK_OF && at < k.have;
    const int32_t u = k.t0 + b.quarter * STRIP_OF + b.lane - (TAPS - 1);
    const unsigned tokens = shared_at(&m.tokens[c % 2]);
    const float *row = l.a.qkv;
    float x[3][STRIP_OF + TAPS - 1], y[STRIP_OF];
    float4 taps[3] = {taps_in[0], taps_in[1], taps_in[2]};
    if (b.lane < k.have + TAPS - 1 && u > -l.a.n_conv) row = input(l, u, pending);
#pragma unroll
    for (int j = 0; j < STRIP_OF + TAPS - 1; j++) {
        const float *from = (const float *)__shfl_sync(~0u, (unsigned long long)row, j);
#pragma unroll
        for (int w = 0; w < 3; w++) x[w][j] = __ldcg(from + column[w]);
    }
    float2 g = gates ? few_gates_of(l, b, token, pending) : make_float2(0.0f, 0.0f);
#pragma unroll 1
    for (int w = 0;; w++) {
        strip_outputs(y, taps[0], x[0], k.have, skip);
        if (w == 2) break;
#pragma unroll
        for (int j = 0; j < STRIP_OF; j++) m.raw[c % 2][j][w * D + i] = y[j];
#pragma unroll
        for (int j = 0; j < STRIP_OF + TAPS - 1; j++) x[0][j] = x[1][j], x[1][j] = x[2][j];
        taps[0] = taps[1], taps[1] = taps[2];
    }
    if (gates) g = few_gates_value(own, g);
    one_meet(2, 32 * (WARPS - STATE_WARPS));
    if (c == 0) cluster_wait(); /* all have their barriers */
    const auto free = [&] {
        if (c >= 2) chunks_wait_free(shared_at(&m.free[c % 2]), (c / 2 - 1) % 2);
    };
    if (helper < k.have)
        norm_token(m, b, m.raw[c % 2][helper], k.slot + b.quarter * STRIP_OF + helper, tokens, free);
    else
        free();
    if (last_warp && b.lane == 0) cluster_bar_expect(tokens, (unsigned)k.n * TOKEN_BYTES);
    const unsigned to = b.head0 + i / ROWS, bar = cluster_at(tokens, to);
#pragma unroll
    for (int j = 0; j < STRIP_OF; j++)
        if (j < k.have)
            cluster_store(cluster_at(shared_at(&m.v[k.slot + b.quarter * STRIP_OF + j][i % ROWS]), to), y[j],
                          bar);
    if (gates) {
        const int there = b.head0 + b.lane / STRIP_OF;
        cluster_store(cluster_at(shared_at(&m.gates[k.slot + b.quarter * STRIP_OF + at]), there), g,
                      cluster_at(tokens, there));
    }
    __syncwarp();
}

/* What a token's output is still made of: few_token's of it, after the next token has begun. */
struct chunk_output {
    float y[2], e[2], kq;
};
/* The first of the sums over a row's lanes; and what is behind the last. */
DEV float chunk_halves(const struct chunk_output &c, bool second)
{
    return __fadd_rn(second ? c.y[1] : c.y[0], __shfl_xor_sync(~0u, second ? c.y[0] : c.y[1], LANES / 2));
}
DEV float chunk_whole(const struct chunk_output &c, bool second, float o)
{
    return __fmaf_rn(second ? c.e[1] : c.e[0], c.kq, o);
}
/* few_token, but for the sums of its output, which are left in c; where BEFORE, those of the token before go
 * beside it: their result, as few_token returns it. */
template <bool BEFORE>
DEV float chunk_token(float s[2][D / LANES], const struct chunks_memory &m, int t, int row, int lane,
                      struct chunk_output &c)
{
    const float *const from = m.qk[t] + 4 * lane;
    const float4 gates = m.gates[t];
    const float2 v = *(const float2 *)(m.v[t] + row);
    const bool second = lane >= LANES / 2;
    __align__(16) float k[D / LANES], q[D / LANES];
    float sk[2][2] = {}, sq[2][2] = {}, x[2], o = 0.0f;
#pragma unroll
    for (int i = 0; i < D / 32; i++) *(float4 *)(k + 4 * i) = *(const float4 *)(from + D + 32 * i);
#pragma unroll
    for (int i = 0; i < D / 32; i++) *(float4 *)(q + 4 * i) = *(const float4 *)(from + 32 * i);
    if (BEFORE) o = chunk_halves(c, second);
#pragma unroll
    for (int i = 0; i < D / LANES; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            s[r][i] = __fmul_rn(s[r][i], gates.x);
            sk[r][i & 1] = __fmaf_rn(s[r][i], k[i], sk[r][i & 1]);
        }
    if (BEFORE) o = __fadd_rn(o, __shfl_xor_sync(~0u, o, LANES / 4));
#pragma unroll
    for (int r = 0; r < 2; r++) x[r] = __fadd_rn(sk[r][0], sk[r][1]);
#pragma unroll
    for (int i = 0; i < D / LANES; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) sq[r][i & 1] = __fmaf_rn(s[r][i], q[i], sq[r][i & 1]);
#pragma unroll
    for (int i = LANES / 2; i; i >>= 1) {
#pragma unroll
        for (int r = 0; r < 2; r++) x[r] = __fadd_rn(x[r], __shfl_xor_sync(~0u, x[r], i));
        if (BEFORE && i == LANES / 2) o = __fadd_rn(o, __shfl_xor_sync(~0u, o, LANES / 8));
    }
    if (BEFORE) o = chunk_whole(c, second, o);
    c.e[0] = __fmul_rn(gates.y, __fsub_rn(v.x, x[0]));
    c.e[1] = __fmul_rn(gates.y, __fsub_rn(v.y, x[1]));
#pragma unroll
    for (int i = 0; i < D / LANES; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) s[r][i] = __fmaf_rn(c.e[r], k[i], s[r][i]);
    c.y[0] = __fadd_rn(sq[0][0], sq[0][1]), c.y[1] = __fadd_rn(sq[1][0], sq[1][1]), c.kq = gates.z;
    return o;
}

/* The warps with a state: all chunks; outputs to the blocks that finish them. */
DEV void chunks_walk(const struct layer &l, struct chunks_memory &m, const struct few_part &b,
                     float s[2][D / LANES], int32_t all, int32_t pending)
{
    const int lane = b.thread % LANES, row = b.thread / LANES * 2;
    const int32_t chunks = (all + CHUNK_OF - 1) / CHUNK_OF;
    const unsigned come = shared_at(m.come),
                   to = shared_at(&m.o[0][b.rank * ROWS + row + lane / (LANES / 2)]);
    static_assert(LANES == 8, "three sums");
    const auto put = [&](int r, float o) {
        if (lane % (LANES / 2) == 0)
            cluster_store(cluster_at(to + r / BLOCKS * (BLOCKS * ROWS * 4), r % BLOCKS), o,
                          cluster_at(come + r / BLOCKS * 8, r % BLOCKS));
    };
#pragma unroll 1
    for (int32_t i = 0; i < chunks; i++) {
        const int32_t t0 = i * CHUNK_OF, n = min(CHUNK_OF, all - t0), old = min(max(pending - t0, 0), n);
        const int slot = i % 2 * CHUNK_OF, first = t0 - pending; /* row of the chunk's first token */
        cluster_bar_wait(shared_at(&m.tokens[i % 2]), i / 2 % 2);
#pragma unroll 1
        for (int t = 0; t < old; t++) few_token<false>(s, m, slot + t, row, lane);
        if (pending && !l.a.commit && pending >= t0 && pending < t0 + n) few_state<true>(l, b, s);
        if (old < n) {
            struct chunk_output c;
            chunk_token<false>(s, m, slot + old, row, lane, c);
#pragma unroll 1
            for (int t = old + 1; t < n; t++)
                put(first + t - 1, chunk_token<true>(s, m, slot + t, row, lane, c));
            float o = chunk_halves(c, lane >= LANES / 2);
#pragma unroll
            for (int j = LANES / 4; j; j >>= 1) o = __fadd_rn(o, __shfl_xor_sync(~0u, o, j));
            put(first + n - 1, chunk_whole(c, lane >= LANES / 2, o));
        }
        __syncwarp();
        if (i + 2 < chunks && b.lane < QUARTERS)
            chunks_let_go(cluster_at(shared_at(&m.free[i % 2]), b.head0 + b.lane));
    }
}

/* A warp: outputs of the block's rows rank + 8 j, for every second j from *next on, whose tokens lie before
 * `until`. */
template <enum mm_act ACT>
DEV void chunks_finish(const struct layer &l, const mm_prep &p, struct chunks_memory &m,
                       const struct few_part &b, int *next, int32_t until, int32_t pending)
{
    const struct kn_delta &a = l.a;
#pragma unroll 1
    for (; *next * BLOCKS + b.rank < a.n && pending + min(*next * BLOCKS + BLOCKS, a.n) <= until;
         *next += FINISHERS) {
        const int j = *next;
        const int64_t r = j * BLOCKS + b.rank, z = (r * a.n_v + (int64_t)(b.h & ~1)) * D;
        const unsigned come = shared_at(&m.come[j]);
        float gate[8], norm[8];
        load_eight(gate, a.z + z, 8 * b.lane, 2 * D), load_eight(norm, a.norm, 8 * (b.lane % 16), D);
        if (b.lane == 0) cluster_bar_expect(come, BLOCKS * ROWS * 4);
        silu_all(gate);
        cluster_bar_wait(come, 0);
        finish_row<ACT>(l, p, m.o[j], r, gate, norm);
    }
}

template <enum mm_act ACT>
DEV void chunks_block(const struct layer &l, const mm_prep &p, unsigned *count, struct chunks_memory &m)
{
    const struct kn_delta &a = l.a;
    const struct few_part b = few_part_of(a);
    const bool has_state = b.warp < STATE_WARPS;
    const int64_t column[3] = {(int64_t)b.kh * D + b.thread % D, (int64_t)(a.n_k + b.kh) * D + b.thread % D,
                               (int64_t)(2 * a.n_k + b.h) * D + b.thread % D};
    cuda_grid_early();
    if (threadIdx.x == 0) {
        for (int j = 0; j < 2; j++) {
            cluster_bar_init(shared_at(&m.tokens[j]));
            chunks_bar_init(shared_at(&m.free[j]), QUARTERS * STATE_WARPS);
        }
        for (int j = 0; j < KN_DELTA_LOG / BLOCKS; j++) cluster_bar_init(shared_at(&m.come[j]));
    }
    cluster_arrive();
    ask_early(l, columns_of(a, b.quarter * ROWS), b.quarter * ROWS);
    if (has_state) {
        float s[2][D / LANES];
        cuda_grid_wait();
        const int32_t pending = uniform(pending_of(l)), all = pending + a.n;
        few_state<false>(l, b, s);
        cluster_wait();
        chunks_walk(l, m, b, s, all, pending);
        if (final_of(l, pending)) few_state<true>(l, b, s);
        return;
    }
    const float4 taps[3] = {taps_of(a, column[0]), taps_of(a, column[1]), taps_of(a, column[2])};
    const float2 own = make_float2(a.a[b.h], a.dt[b.h]);
    cuda_grid_wait();
    const int32_t pending = uniform(pending_of(l)), all = pending + a.n,
                  chunks = (all + CHUNK_OF - 1) / CHUNK_OF;
    int next = b.warp - STATE_WARPS; /* of the outputs that this warp finishes, where it does */
#pragma unroll 1
    for (int32_t c = 0; c < chunks; c++) {
        chunks_prepare(l, m, b, c, all, pending, column, taps, own);
        if (b.warp < STATE_WARPS + FINISHERS)
            chunks_finish<ACT>(l, p, m, b, &next, (c - 1) * CHUNK_OF, pending);
    }
    if (b.warp < STATE_WARPS + FINISHERS) {
        chunks_finish<ACT>(l, p, m, b, &next, all, pending);
        return;
    }
    /* The head's blocks have read what they read of the log. */
    cluster_bar_wait(shared_at(&m.tokens[(chunks - 1) % 2]), (chunks - 1) / 2 % 2);
    few_keep_all<8>(l, b, count, pending);
}
#endif
#endif
