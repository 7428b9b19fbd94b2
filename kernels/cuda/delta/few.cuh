/* delta/few.cuh - few rows of a gated delta net (delta/step.cu), and those pending before them.
 *
 * The four blocks of a head share what all of its rows need: each convolves and norms a quarter of a chunk's
 * tokens, all columns of the head, and sends them to the four, with their gates. All eight warps have a
 * column of q or k a thread; then four take two rows of the state a thread through the tokens, while the
 * others convolve v, make the gates, norm and gate outputs as they come, and write what is kept. Of the log
 * and the convolution's state q and k are read by all value heads of a key head: of their blocks of the same
 * quarter, the last writes that quarter of the columns.
 *
 * What decides about branches is made known to be the same in all lanes (uniform): else each shuffle is a
 * block of code by itself, whose results are not moved past each other. And no load is under a condition
 * whose registers have not been set before: they would be taken from the kernel's begin on, and the tokens
 * want them.
 *
 * Wins: a call of 16 rows 17.62 to 9.53 us (27B's heads); 27B of 16 layers 1.967 to 1.880 ms.
 * dflash-bench rows -m 27b-q4_k_m.gguf --device cuda --rows 1,2,4,8,16 --context 512 */
#ifndef DFLASH_CUDA_DELTA_FEW_CUH
#define DFLASH_CUDA_DELTA_FEW_CUH

#define STRIP_OF 4 /* tokens that a thread convolves together */
#define STATE_WARPS 4
#define WARPS (THREADS / 32)

struct few_memory {
    __align__(16) float qk[CHUNK][2 * D]; /* a token's q and k, convolved, then normed */
    float v[CHUNK][ROWS];
    float4 gates[CHUNK];                        /* decay, beta, k . q */
    __align__(16) float o[MINE][BLOCKS * ROWS]; /* of the tokens that are finished here, from all blocks */
    uint64_t tokens, come[MINE];                /* count the bytes of all q, k, v; of each of o */
};
#define TOKEN_BYTES ((2 * D + ROWS + 3) * 4) /* that come to a block */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

/* What a block, a warp and a thread have. */
struct few_part {
    int h, kh, quarter, rank, head0; /* head0: rank of the head's first block */
    int thread, warp, lane;
    int64_t column[2]; /* of the convolution's inputs: of q or k; of v, which warps with a state have not */
};
/* The same in all lanes, and known to be. */
DEV int uniform(int x)
{
    return __reduce_max_sync(~0u, x);
}
DEV struct few_part few_part_of(const struct kn_delta &a)
{
    const int i = threadIdx.x, h = blockIdx.y, kh = h % a.n_k, head0 = QUARTERS * (h % 2);
    const int64_t qk = (int64_t)(i / D * a.n_k + kh) * D + i % D, v = (int64_t)(2 * a.n_k + h) * D + i % D;
    const int quarter = (int)blockIdx.x;
    return {h, kh, quarter, head0 + quarter, head0, i, uniform(i / 32), i % 32, {qk, v}};
}
DEV int quarter_of(int n) /* of tokens, but for the last of them */
{
    return (n + QUARTERS - 1) / QUARTERS;
}
/* A lane's token of a chunk, whose gates it makes, or -1. */
DEV int gates_token(const struct few_part &b, int32_t n)
{
    const int own = b.lane % (CHUNK / QUARTERS), at = b.quarter * quarter_of(n) + own;
    return b.warp == WARPS - 1 && own < quarter_of(n) && at < n ? at : -1;
}
/* The thread's two rows of the state, from or to memory. */
template <bool STORE>
DEV void few_state(const struct layer &l, const struct few_part &b, float s[2][D / LANES])
{
    int lane = b.thread % LANES, row = b.quarter * ROWS + b.thread / LANES * 2;
    if (STORE) asm volatile("" : "+r"(row)); /* addresses are made here, not before the tokens */
#pragma unroll
    for (int r = 0; r < 2; r++) move_state<D, STORE>(s[r], l.s.s + ((int64_t)b.h * D + row + r) * D, lane, D);
}

/* Inputs of the strip of `count` tokens from t on, and of three before, of the thread's columns. A lane has a
 * row's address; what is not there is read where something is, and not used. */
DEV void strip_inputs(const struct layer &l, float x[2][STRIP_OF + TAPS - 1], const struct few_part &b,
                      int32_t t, int32_t count, int32_t pending)
{
    const int32_t u = t + b.lane - (TAPS - 1);
    const float *row = l.a.qkv;
#pragma unroll
    for (int j = 0; j < STRIP_OF + TAPS - 1; j++) x[0][j] = x[1][j] = 0.0f;
    if (count < 1) return;
    if (b.lane < count + TAPS - 1 && u > -l.a.n_conv) row = input(l, u, pending);
#pragma unroll
    for (int j = 0; j < STRIP_OF + TAPS - 1; j++) {
        const float *from = (const float *)__shfl_sync(~0u, (unsigned long long)row, j);
        x[0][j] = __ldcg(from + b.column[0]);
        if (b.warp >= STATE_WARPS) x[1][j] = __ldcg(from + b.column[1]);
    }
}
/* Outputs of the strip. What is not there becomes 1, not 0, which silu_all has a slow path for. */
DEV void strip_outputs(float y[STRIP_OF], const float4 &taps, const float x[STRIP_OF + TAPS - 1],
                       int32_t count, int skip)
{
#pragma unroll
    for (int j = 0; j < STRIP_OF; j++) y[j] = j < count ? convolved(taps, x + j, skip) : 1.0f;
    silu_all(*(float(*)[STRIP_OF])y);
}

/* A warp: norms of a token's q and k, which stand at q, and their product; as token t to the head's four
 * blocks, whose barrier is `bar`, once these are free for it. */
template <class M, class FREE>
DEV void norm_token(M &m, const struct few_part &b, const float *q, int t, unsigned bar, FREE free)
{
    const float *const k = q + D;
    const int lane = b.lane;
    float4 q4 = *(const float4 *)(q + 4 * lane), k4 = *(const float4 *)(k + 4 * lane);
    const struct delta_roots r = delta_roots_of(q, k, lane);
    float *const q_of[4] = {&q4.x, &q4.y, &q4.z, &q4.w}, *const k_of[4] = {&k4.x, &k4.y, &k4.z, &k4.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        *q_of[i] = __fmul_rn(__fmul_rn(*q_of[i], r.q), DELTA_SCALE);
        *k_of[i] = __fmul_rn(*k_of[i], r.k);
    }
    free();
    const unsigned at = shared_at(m.qk[t] + 4 * lane), to_kq = shared_at(&m.gates[t].z);
#pragma unroll
    for (int i = 0; i < QUARTERS; i++) {
        const unsigned there = cluster_at(bar, b.head0 + i);
        cluster_store(cluster_at(at, b.head0 + i), q4, there);
        cluster_store(cluster_at(at + 4 * D, b.head0 + i), k4, there);
    }
    if (lane < QUARTERS)
        cluster_store(cluster_at(to_kq, b.head0 + lane), r.kq, cluster_at(bar, b.head0 + lane));
}

/* The strips of this block's quarter of a chunk's n tokens: q and k, a column a thread, to be normed here; v,
 * by the warps that have no state, to the blocks of its rows. x: the first strip's inputs. Behind it warps
 * with states see all of q and k, and all of them that the cluster is ready for what they send. */
DEV void convolve_quarter(const struct layer &l, struct few_memory &m, const struct few_part &b,
                          float x[2][STRIP_OF + TAPS - 1], const float4 &w, const float4 &w_v, int32_t t0,
                          int32_t n, int32_t pending)
{
    const int i = b.thread, skip = TAPS - l.a.n_conv, from = b.quarter * quarter_of(n),
              end = min(from + quarter_of(n), n);
    const bool helps = b.warp >= STATE_WARPS;
    const unsigned to = b.head0 + i % D / ROWS, bar = cluster_at(shared_at(&m.tokens), to);
    int s = from;
    do {
        const int count = min(STRIP_OF, end - s);
        float4 taps = w;
        if (s > from) strip_inputs(l, x, b, t0 + s, count, pending);
#pragma unroll 1
        for (int pass = 0; pass < 2; pass++) {
            float y[STRIP_OF];
            strip_outputs(y, taps, x[0], count, skip);
            if (pass) {
#pragma unroll
                for (int j = 0; j < STRIP_OF; j++)
                    if (j < count) cluster_store(cluster_at(shared_at(&m.v[s + j][i % ROWS]), to), y[j], bar);
                break;
            }
#pragma unroll
            for (int j = 0; j < STRIP_OF; j++)
                if (j < count) m.qk[s + j][i] = y[j];
            if (!helps) break;
            if (s + STRIP_OF >= end) asm volatile("bar.arrive 1, %0;" ::"n"(THREADS) : "memory");
            if (s == from) cluster_wait();
#pragma unroll
            for (int j = 0; j < STRIP_OF + TAPS - 1; j++) x[0][j] = x[1][j];
            taps = w_v;
        }
    } while ((s += STRIP_OF) < end);
    if (helps) return;
    one_meet(1, THREADS);
    cluster_wait();
}

/* The last warp: gates of the quarter's tokens, lane after lane, over again for each of the head's blocks, to
 * that; in two parts, for what they read comes from far. */
DEV float2 few_gates_of(const struct layer &l, const struct few_part &b, int32_t t, int32_t pending)
{
    const struct kn_delta &a = l.a;
    const int32_t row = t - pending;
    const float *alpha =
                    row < 0 ? l.s.log + t * (l.width + 2 * a.n_v) + l.width : a.alpha + (int64_t)row * a.n_v,
                *beta = row < 0 ? alpha + a.n_v : a.beta + (int64_t)row * a.n_v;
    return make_float2(__ldcg(alpha + b.h), __ldcg(beta + b.h));
}
DEV float2 few_gates_value(const float2 &own, const float2 &g)
{
    return make_float2(dev_exp(__fmul_rn(own.x, dev_softplus(__fadd_rn(g.x, own.y)))), dev_sigmoid(g.y));
}
DEV void few_gates(struct few_memory &m, const struct few_part &b, const float2 &own, const float2 &g,
                   int32_t n)
{
    const int at = gates_token(b, n), to = b.head0 + b.lane / (CHUNK / QUARTERS);
    const unsigned tokens = shared_at(&m.tokens);
    if (b.lane == 0) cluster_bar_expect(tokens, (unsigned)n * TOKEN_BYTES);
    if (at >= 0) {
        cluster_store(cluster_at(shared_at(&m.gates[at]), to), few_gates_value(own, g),
                      cluster_at(tokens, to));
    }
    __syncwarp();
}

/* A token: s is the thread's part of two rows of the state. Returns, where OUTPUT, S q of the first row in
 * the first half of a row's lanes, of the second in the other. */
template <bool OUTPUT, class M>
DEV float few_token(float s[2][D / LANES], const M &m, int t, int row, int lane)
{
    const float *const from = m.qk[t] + 4 * lane;
    const float4 gates = m.gates[t];
    const float2 v = *(const float2 *)(m.v[t] + row);
    __align__(16) float k[D / LANES], q[D / LANES];
    float sk[2][2] = {}, sq[2][2] = {}, x[2], y[2], e[2];
#pragma unroll
    for (int i = 0; i < D / 32; i++) *(float4 *)(k + 4 * i) = *(const float4 *)(from + D + 32 * i);
    if (OUTPUT)
#pragma unroll
        for (int i = 0; i < D / 32; i++) *(float4 *)(q + 4 * i) = *(const float4 *)(from + 32 * i);
#pragma unroll
    for (int i = 0; i < D / LANES; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            s[r][i] = __fmul_rn(s[r][i], gates.x);
            sk[r][i & 1] = __fmaf_rn(s[r][i], k[i], sk[r][i & 1]);
        }
#pragma unroll
    for (int r = 0; r < 2; r++) x[r] = __fadd_rn(sk[r][0], sk[r][1]);
    if (OUTPUT)
#pragma unroll
        for (int i = 0; i < D / LANES; i++)
#pragma unroll
            for (int r = 0; r < 2; r++) sq[r][i & 1] = __fmaf_rn(s[r][i], q[i], sq[r][i & 1]);
#pragma unroll
    for (int o = LANES / 2; o; o >>= 1)
#pragma unroll
        for (int r = 0; r < 2; r++) x[r] = __fadd_rn(x[r], __shfl_xor_sync(~0u, x[r], o));
    e[0] = __fmul_rn(gates.y, __fsub_rn(v.x, x[0]));
    e[1] = __fmul_rn(gates.y, __fsub_rn(v.y, x[1]));
#pragma unroll
    for (int i = 0; i < D / LANES; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) s[r][i] = __fmaf_rn(e[r], k[i], s[r][i]);
    if (!OUTPUT) return 0.0f;
    y[0] = __fadd_rn(sq[0][0], sq[0][1]), y[1] = __fadd_rn(sq[1][0], sq[1][1]);
    const bool second = lane >= LANES / 2;
    float o = __fadd_rn(second ? y[1] : y[0], __shfl_xor_sync(~0u, second ? y[0] : y[1], LANES / 2));
#pragma unroll
    for (int i = LANES / 4; i; i >>= 1) o = __fadd_rn(o, __shfl_xor_sync(~0u, o, i));
    return __fmaf_rn(second ? e[1] : e[0], gates.z, o);
}

/* Warps with a state: the tokens of a chunk, first those pending; outputs to the blocks that finish them. */
DEV void few_tokens(const struct layer &l, struct few_memory &m, const struct few_part &b,
                    float s[2][D / LANES], int32_t n, int32_t old, bool keep)
{
    const int lane = b.thread % LANES, row = b.thread / LANES * 2;
    unsigned come = shared_at(m.come) + old / BLOCKS * 8,
             to = shared_at(&m.o[old / BLOCKS][b.rank * ROWS + row + lane / (LANES / 2)]);
#pragma unroll 1
    for (int t = 0; t < old; t++) few_token<false>(s, m, t, row, lane);
    if (keep) few_state<true>(l, b, s);
#pragma unroll 1
    for (int t = old; t < n; t++) {
        const float o = few_token<true>(s, m, t, row, lane);
        if (lane % (LANES / 2) == 0)
            cluster_store(cluster_at(to, t % BLOCKS), o, cluster_at(come, t % BLOCKS));
        if (t % BLOCKS == BLOCKS - 1) to += BLOCKS * ROWS * 4, come += 8;
    }
}

/* A lane: four columns of what the convolution keeps, and of the log, every `step`th row from row i on. */
template <int AT_ONCE> DEV void few_keep(const struct layer &l, int64_t at, int i, int step, int32_t pending)
{
    const struct kn_delta &a = l.a;
    const bool final = final_of(l, pending);
    const int32_t done = final ? pending + a.n : a.commit ? 0 : pending, before = a.n_conv - 1;
    if (done) {
        float4 x[TAPS - 1];
#pragma unroll
        for (int j = 0; j < TAPS - 1; j++)
            if (j < before) x[j] = __ldcg((const float4 *)(input(l, done - before + j, pending) + at));
        __syncwarp();
#pragma unroll
        for (int j = 0; j < TAPS - 1; j++)
            if (j < before && i == 0) __stcg((float4 *)(l.s.conv + j * l.width + at), x[j]);
    }
    if (!final) log_rows<AT_ONCE>(l, at, logged_at(l, pending), i, step);
}
/* The last two warps: the block's columns of v; and those of its quarter of q and k, with the gates, where
 * its head is the last that has read them. All of the head's inputs have been read. AT_ONCE: rows on their
 * way together. */
template <int AT_ONCE>
DEV void few_keep_all(const struct layer &l, const struct few_part &b, unsigned *count, int32_t pending)
{
    const struct kn_delta &a = l.a;
    const bool of_v = b.warp == WARPS - 2;
    const int lane = b.lane, rep = a.n_v / a.n_k, wide = of_v ? 8 : 16, four = lane % wide;
    if (!of_v) {
        unsigned before = 0;
        if (lane == 0) {
            __threadfence();
            before = atomicInc(count + b.kh * QUARTERS + b.quarter, (unsigned)rep - 1);
        }
        if (__shfl_sync(~0u, before, 0) != (unsigned)rep - 1) return;
    }
    const int head = of_v ? 2 * a.n_k + b.h : four / 8 * a.n_k + b.kh;
    few_keep<AT_ONCE>(l, (int64_t)head * D + b.quarter * ROWS + 4 * (four % 8), lane / wide, 32 / wide,
                      pending);
    if (of_v || final_of(l, pending) || b.quarter) return;
#pragma unroll 1
    for (int i = lane; i < rep * a.n; i += 8 * AT_ONCE) {
        float x[AT_ONCE / 4][2];
#pragma unroll
        for (int j = 0; j < AT_ONCE / 4; j++) {
            const int k = min(i + 32 * j, rep * a.n - 1);
            const int64_t at = (int64_t)(k / rep) * a.n_v + b.kh + k % rep * a.n_k;
            x[j][0] = __ldcg(a.alpha + at), x[j][1] = __ldcg(a.beta + at);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE / 4; j++) {
            const int k = i + 32 * j;
            if (k >= rep * a.n) break;
            float *const to = l.s.log + (logged_at(l, pending) + k / rep) * (l.width + 2 * a.n_v) + l.width +
                              b.kh + k % rep * a.n_k;
            to[0] = x[j][0], to[a.n_v] = x[j][1];
        }
    }
}

template <enum mm_act ACT>
DEV void few_block(const struct layer &l, const mm_prep &p, unsigned *count, struct few_memory &m)
{
    const struct kn_delta &a = l.a;
    struct few_part b = few_part_of(a);
    const bool has_state = b.warp < STATE_WARPS, last_warp = b.warp == WARPS - 1;
    const unsigned tokens = shared_at(&m.tokens), come = shared_at(&m.come[b.warp % STATE_WARPS]);
    float s[2][D / LANES];
    volatile float
        kept[2 * D / LANES]; /* the state, between chunks: in registers it would stand beside all else */
    unsigned turn = 0;
    cuda_grid_early();
    if (threadIdx.x == 0) {
        cluster_bar_init(tokens);
        for (int j = 0; j < MINE; j++) cluster_bar_init(shared_at(&m.come[j]));
    }
    cluster_arrive();
    ask_early(l, columns_of(a, b.quarter * ROWS), b.quarter * ROWS);
    float4 w = taps_of(a, b.column[0]), w_v = has_state ? w : taps_of(a, b.column[1]);
    float2 own = last_warp ? make_float2(a.a[b.h], a.dt[b.h]) : make_float2(0.0f, 0.0f);
    cuda_grid_wait();
    const int32_t pending = uniform(pending_of(l)), all = pending + a.n;
    for (int32_t t0 = 0; t0 < all; t0 += CHUNK) {
        const int32_t n = min(CHUNK, all - t0), from = b.quarter * quarter_of(n),
                      have = min(quarter_of(n), n - from);
        const int mine = b.rank + BLOCKS * (b.warp - STATE_WARPS); /* the token that this warp finishes */
        const int64_t r = t0 + mine - pending;
        const bool finishes = !has_state && mine < n && r >= 0;
        float x[2][STRIP_OF + TAPS - 1], gate[8], norm[8];
        /* What a second chunk needs again is made again: else it would stand in registers beside the state.
         */
        asm volatile("" : "+r"(b.lane), "+r"(b.thread));
        if (t0) { /* the chunk before has been finished: its places are free, in all blocks and here */
            cluster_arrive();
            __syncthreads();
            w = taps_of(a, b.column[0]), w_v = has_state ? w : taps_of(a, b.column[1]);
            own = make_float2(a.a[b.h], a.dt[b.h]);
        }
        const int64_t z = (r * a.n_v + (int64_t)(b.h & ~1)) * D; /* its gates */
        strip_inputs(l, x, b, t0 + from, min(STRIP_OF, have), pending);
        const int gates = gates_token(b, n);
        float2 g = gates >= 0 ? few_gates_of(l, b, t0 + gates, pending) : make_float2(0.0f, 0.0f);
#pragma unroll
        for (int i = 0; i < 8; i++) gate[i] = norm[i] = 0.0f;
        if (finishes)
            load_eight(gate, a.z + z, 8 * b.lane, 2 * D), load_eight(norm, a.norm, 8 * (b.lane % 16), D);
        convolve_quarter(l, m, b, x, w, w_v, t0, n, pending);
        if (has_state) {
            if (!t0)
                few_state<false>(l, b, s);
            else
#pragma unroll
                for (int i = 0; i < 2 * D / LANES; i++) s[i / (D / LANES)][i % (D / LANES)] = kept[i];
#pragma unroll 1
            for (int t = b.warp; t < have; t += STATE_WARPS)
                norm_token(m, b, m.qk[from + t], from + t, tokens, [] {});
            cluster_bar_wait(tokens, t0 / CHUNK % 2);
            few_tokens(l, m, b, s, n, min(max(pending - t0, 0), n),
                       pending && !a.commit && pending >= t0 && pending < t0 + n);
            if (t0 + n < all)
#pragma unroll
                for (int i = 0; i < 2 * D / LANES; i++) kept[i] = s[i / (D / LANES)][i % (D / LANES)];
            else if (final_of(l, pending))
                few_state<true>(l, b, s);
            continue;
        }
        if (last_warp) few_gates(m, b, own, g, n);
        if (!finishes) continue;
        if (b.lane == 0) cluster_bar_expect(come, BLOCKS * ROWS * 4);
        silu_all(gate);
        cluster_bar_wait(come, turn);
        turn ^= 1;
        finish_row<ACT>(l, p, m.o[b.warp - STATE_WARPS], r, gate, norm);
    }
    if (b.warp < WARPS - 2) return;
    cluster_bar_wait(tokens,
                     (all - 1) / CHUNK % 2); /* the head's blocks have read what they read of the log */
    few_keep_all<4>(l, b, count, pending);
}
#endif
#endif
