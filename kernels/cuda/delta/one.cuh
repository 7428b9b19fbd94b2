/* delta/one.cuh - one row of a gated delta net (delta/step.cu): what is pending, mostly the row before or
 * nothing, and the row.
 *
 * Tokens in pairs: a pending one, and the row. All that is read is asked for at once, whether or not a row is
 * pending; both are convolved, normed and gated side by side, so that only the state takes one after the
 * other, and what the next call reads is written from registers. More rows pending: one after another before.
 * Eight warps have the columns of the convolution and the state, one more the gates, and in a cluster's first
 * block the outputs.
 *
 * Wins: a call of one row 7.0 to 8.0 us before, 4.8 now; eight layers of 35B-A3B 0.400 to 0.389 ms.
 * dflash-bench rows -m 35b-a3b-q4_k_m.gguf --device cuda --rows 1 --context 512 */
#ifndef DFLASH_CUDA_DELTA_ONE_CUH
#define DFLASH_CUDA_DELTA_ONE_CUH

struct one_memory {
    float qk[2][2 * D], v[2][ROWS];  /* of the pending token and of the row, convolved */
    __align__(16) float gate[2 * D]; /* of both heads' outputs */
    __align__(16) float norm[D];
    __align__(16) float o[BLOCKS * ROWS]; /* outputs, from all blocks of the cluster */
    float decay[2], beta[2], roots[3], kq;
    uint64_t come;
    bool last;
};

DEV void one_async(float *to, const float *from) /* 16 bytes */
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_at(to)), "l"(from) : "memory");
}
DEV void one_meet(int bar, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(bar), "r"(threads) : "memory");
}

/* Roots of the norms of k (both tokens) and q (the row), and k . q of the row: by one warp. */
DEV void one_norms(struct one_memory &m)
{
    const int lane = threadIdx.x % 32;
    const float *const at[3] = {m.qk[0] + D, m.qk[1] + D, m.qk[1]};
    float x[3][D / 32], sum[3] = {0.0f, 0.0f, 0.0f}, kq = 0.0f;
#pragma unroll
    for (int i = 0; i < D / 32; i++)
#pragma unroll
        for (int j = 0; j < 3; j++) {
            x[j][i] = at[j][32 * i + lane];
            sum[j] = __fmaf_rn(x[j][i], x[j][i], sum[j]);
        }
#pragma unroll
    for (int o = 16; o; o >>= 1)
#pragma unroll
        for (int j = 0; j < 3; j++) sum[j] = __fadd_rn(sum[j], __shfl_xor_sync(~0u, sum[j], o));
    const float mine = lane == 2   ? sum[2]
                       : lane == 1 ? sum[1]
                                   : sum[0],
                root = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mine, 1e-6f)));
    const float r_k = __shfl_sync(~0u, root, 1), r_q = __shfl_sync(~0u, root, 2);
    if (lane < 3) m.roots[lane] = root;
#pragma unroll
    for (int i = 0; i < D / 32; i++)
        kq = __fmaf_rn(__fmul_rn(x[1][i], r_k), __fmul_rn(__fmul_rn(x[2][i], r_q), DELTA_SCALE), kq);
#pragma unroll
    for (int o = 16; o; o >>= 1) kq = __fadd_rn(kq, __shfl_xor_sync(~0u, kq, o));
    if (lane == 0) m.kq = kq;
}

/* A token, as step (delta/rows.cuh), of q and k that are not normed yet. e: what k is added times. */
template <bool OUTPUT>
DEV float one_step(float s[D / LANES], const struct one_memory &m, int row, int lane, float *added)
{
    constexpr int t = OUTPUT;
    const float decay = m.decay[t], r_k = m.roots[t], r_q = m.roots[2];
    float k[D / LANES], sk[2] = {0.0f, 0.0f}, sq[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < D / 32; i++) {
        const float4 x = *(const float4 *)(m.qk[t] + D + 32 * i + 4 * lane);
        k[4 * i] = __fmul_rn(x.x, r_k), k[4 * i + 1] = __fmul_rn(x.y, r_k);
        k[4 * i + 2] = __fmul_rn(x.z, r_k), k[4 * i + 3] = __fmul_rn(x.w, r_k);
    }
#pragma unroll
    for (int i = 0; i < D / LANES; i++) {
        s[i] = __fmul_rn(s[i], decay);
        sk[i & 1] = __fmaf_rn(s[i], k[i], sk[i & 1]);
    }
    if (OUTPUT)
#pragma unroll
        for (int i = 0; i < D / 32; i++) {
            const float4 x = *(const float4 *)(m.qk[t] + 32 * i + 4 * lane);
            sq[0] = __fmaf_rn(s[4 * i], __fmul_rn(__fmul_rn(x.x, r_q), DELTA_SCALE), sq[0]);
            sq[1] = __fmaf_rn(s[4 * i + 1], __fmul_rn(__fmul_rn(x.y, r_q), DELTA_SCALE), sq[1]);
            sq[0] = __fmaf_rn(s[4 * i + 2], __fmul_rn(__fmul_rn(x.z, r_q), DELTA_SCALE), sq[0]);
            sq[1] = __fmaf_rn(s[4 * i + 3], __fmul_rn(__fmul_rn(x.w, r_q), DELTA_SCALE), sq[1]);
        }
    float x = __fadd_rn(sk[0], sk[1]), y = __fadd_rn(sq[0], sq[1]);
#pragma unroll
    for (int i = LANES / 2; i; i >>= 1) {
        x = __fadd_rn(x, __shfl_xor_sync(~0u, x, i));
        if (OUTPUT) y = __fadd_rn(y, __shfl_xor_sync(~0u, y, i));
    }
    const float e = __fmul_rn(m.beta[t], __fsub_rn(m.v[t][row], x));
#pragma unroll
    for (int i = 0; i < D / LANES; i++) s[i] = __fmaf_rn(e, k[i], s[i]);
    *added = e;
    return OUTPUT ? __fmaf_rn(e, m.kq, y) : 0.0f;
}

/* What the convolution keeps of a column whose last inputs are x, and the log. */
DEV void one_keep(const struct layer &l, const float x[5], int64_t column, int32_t pending)
{
    const bool final = final_of(l, pending);
    if (final || (pending && !l.a.commit))
#pragma unroll
        for (int j = 0; j < TAPS - 1; j++)
            __stcg(l.s.conv + j * l.width + column, final ? x[2 + j] : x[1 + j]);
    if (!final) __stcg(l.s.log + logged_at(l, pending) * (l.width + 2 * l.a.n_v) + column, x[4]);
}
/* The row as a chain replays it (again_of), where it is pending from now on: threads that have the state. */
DEV void one_again(const struct layer &l, const struct one_memory &m, int32_t pending, float added, int h,
                   int row0)
{
    const struct kn_delta &a = l.a;
    const int i = threadIdx.x, kh = h % a.n_k;
    float *const to = again_of(l.s, l.width + 2 * a.n_v, pending);
    if (i % LANES == 0) __stcg(to + (2 * a.n_k + h) * D + row0 + i / LANES, added);
    if (h == kh && !row0 && i < D) __stcg(to + (a.n_k + kh) * D + i, __fmul_rn(m.qk[1][D + i], m.roots[1]));
    if (!row0 && i == 0) __stcg(to + l.width + h, m.decay[1]);
}

/* Inputs of my two columns: the last ones before the pending token t, that one, and the row. */
DEV void one_inputs(const struct layer &l, const int64_t column[2], int t, int64_t stride, float x[2][5])
{
    const float *const from = l.s.log + t * stride;
#pragma unroll
    for (int c = 0; c < 2; c++) {
#pragma unroll
        for (int j = 0; j < TAPS - 1; j++) {
            const int u = t + j - (TAPS - 1);
            x[c][j] =
                __ldcg((u < 0 ? l.s.conv + (u + TAPS - 1) * l.width : l.s.log + u * stride) + column[c]);
        }
        x[c][3] = __ldcg(from + column[c]);
        x[c][4] = __ldcg(l.a.qkv + column[c]);
    }
}
/* Both tokens' columns, convolved, to shared memory. */
DEV void one_convolve(struct one_memory &m, const float4 taps[2], float x[2][5], bool pending)
{
    const int i = threadIdx.x, lane = i % 32, warp = i / 32;
    float u[4];
#pragma unroll
    for (int c = 0; c < 2; c++) {
        if (!pending) x[c][3] = x[c][2], x[c][2] = x[c][1], x[c][1] = x[c][0];
        u[2 * c] = convolved(taps[c], x[c], 0);
        u[2 * c + 1] = convolved(taps[c], x[c] + 1, 0);
    }
    silu_all(u);
    m.qk[0][i] = u[0], m.qk[1][i] = u[1];
    if (lane < 4) m.v[0][4 * warp + lane] = u[2], m.v[1][4 * warp + lane] = u[3];
}
/* The gates of both heads' outputs, which have come by now: by one warp, for the one that finishes. */
DEV void one_gates(struct one_memory &m, int lane)
{
    __align__(16) float z[8];
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
    *(float4 *)z = *(const float4 *)(m.gate + 8 * lane);
    *(float4 *)(z + 4) = *(const float4 *)(m.gate + 8 * lane + 4);
    silu_all(z);
    *(float4 *)(m.gate + 8 * lane) = *(const float4 *)z;
    *(float4 *)(m.gate + 8 * lane + 4) = *(const float4 *)(z + 4);
}
/* The cluster's outputs, when all are there: by one warp. */
template <enum mm_act ACT>
DEV void one_finish(const struct layer &l, const mm_prep &p, const struct experts_hand &hand,
                    struct one_memory &m, int lane)
{
    const unsigned tag = hand.words ? hand_tag(hand.tag, hand.salt) : 0;
    __align__(16) float g[8], n[8];
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 8; j += 4) {
        *(float4 *)(g + j) = *(const float4 *)(m.gate + 8 * lane + j);
        *(float4 *)(n + j) = *(const float4 *)(m.norm + 8 * (lane % 16) + j);
    }
    cluster_bar_wait(shared_at(&m.come));
    finish_row<ACT>(l, p, m.o, 0, g, n, hand.words, tag);
}

/* The row's alpha or beta of a head of mine, to the log. */
DEV void one_log(const struct layer &l, int kh, int rep, int64_t stride, int32_t pending, int i)
{
    const struct kn_delta &a = l.a;
    const int head = kh + i % rep * a.n_k;
    __stcg(l.s.log + logged_at(l, pending) * stride + l.width + (i < rep ? head : a.n_v + head),
           __ldcg((i < rep ? a.alpha : a.beta) + head));
}

template <enum mm_act ACT>
DEV void one_block(const struct layer &l, const mm_prep &p, unsigned *count, const struct experts_hand &hand,
                   struct one_memory &m)
{
    const struct kn_delta &a = l.a;
    const int i = threadIdx.x, lane = i % 32, warp = i / 32, h = blockIdx.y, kh = h % a.n_k,
              row0 = (int)blockIdx.x * ROWS, rank = (int)(blockIdx.x + QUARTERS * (blockIdx.y % 2)),
              rep = a.n_v / a.n_k, row = i / LANES % ROWS;
    const bool gates = warp == THREADS / 32, finishes = gates && rank == 0;
    const int64_t stride = l.width + 2 * a.n_v;
    float *const state = l.s.s + ((int64_t)h * D + row0 + row) * D;
    if (!hand.words) cuda_grid_early();
    if (i == THREADS) cluster_bar_init(shared_at(&m.come));
    cluster_arrive();
    if (!gates) ask_early(l, columns_of(a, row0), row0);
    const int64_t column[2] = {(int64_t)(i / D % 2 * a.n_k + kh) * D + i % D,
                               (int64_t)(2 * a.n_k + h) * D + row0 + 4 * (warp % 8) + lane % 4};
    const float4 taps[2] = {__ldg((const float4 *)a.conv + column[0]),
                            __ldg((const float4 *)a.conv + column[1])};
    if (finishes) one_async(m.norm + 4 * lane, a.norm + 4 * lane);
    const float own_a = a.a[h], own_dt = a.dt[h];
    cuda_grid_wait();
    if (hand.words) cuda_grid_early(); /* experts/hand.cuh says why */
    float x[2][5], s[D / LANES], added;
    const int32_t pending = pending_of(l);
    const bool final = final_of(l, pending);
    unsigned before = 0; /* blocks that have read what this one has */
    if (finishes && lane == 0) cluster_bar_expect(shared_at(&m.come), BLOCKS * ROWS * 4);
#pragma unroll 1
    for (int t = 0;; t++) { /* the pending token t, and with the last the row */
        const float *const from = l.s.log + t * stride;
        const bool row_too = t + 1 >= pending;
        if (!gates) {
            one_inputs(l, column, t, stride, x);
            if (rank == 0 && warp == 2)
#pragma unroll
                for (int j = 0; j < 2; j++)
                    one_async(m.gate + 4 * lane + 128 * j, a.z + (int64_t)h * D + 4 * lane + 128 * j);
            if (t == 0) move_state<D, false>(s, state, i % LANES, D);
            one_convolve(m, taps, x, pending);
            one_meet(1, THREADS);
            if (warp == 0)
                one_norms(m);
            else if (rank == 0 && warp == 2)
                one_gates(m, lane);
        } else if (lane < 2) { /* of both tokens */
            const float alpha = __ldcg(lane ? a.alpha + h : from + l.width + h),
                        beta = __ldcg(lane ? a.beta + h : from + l.width + a.n_v + h);
            m.decay[lane] = dev_exp(__fmul_rn(own_a, dev_softplus(__fadd_rn(alpha, own_dt))));
            m.beta[lane] = dev_sigmoid(beta);
        }
        __syncwarp();
        one_meet(2, THREADS + 32);
        if (!gates) {
            if (pending) one_step<false>(s, m, row, i % LANES, &added);
            if (row_too) {
                if (pending && !a.commit) move_state<D, true>(s, state, i % LANES, D);
                const float o = one_step<true>(s, m, row, i % LANES, &added);
                cluster_wait(); /* all have barriers */
                if (i % LANES == 0)
                    cluster_store(cluster_at(shared_at(&m.o[rank * ROWS + row]), 0), o,
                                  cluster_at(shared_at(&m.come), 0));
                if (final)
                    move_state<D, true>(s, state, i % LANES, D);
                else if (a.commit)
                    one_again(l, m, pending, added, h, row0);
                break;
            }
        } else if (row_too) {
            if (lane == 0) before = atomicInc(count + kh, (unsigned)(QUARTERS * rep) - 1);
            __syncwarp();
            cluster_wait();
            if (finishes) one_finish<ACT>(l, p, hand, m, lane);
            __syncwarp();
            if (lane == 0) m.last = before == (unsigned)(QUARTERS * rep) - 1;
            break;
        }
        one_meet(2, THREADS + 32); /* before the next token's columns */
    }
    if (!gates && lane < 4) one_keep(l, x[1], column[1], pending); /* nobody else reads them */
    one_meet(2, THREADS + 32);
    if (!m.last) return;
    if (!gates) one_keep(l, x[0], column[0], pending);
    if (!final && i < 2 * rep) one_log(l, kh, rep, stride, pending, i);
}

#endif
