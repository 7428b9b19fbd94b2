/* chain/delta.cuh - a gated delta net of one row as a step of a chain, and rows that are gated where they are
 * read.
 *
 * A *unit* is 32 rows of a value head's state; a block has one or two, of one key head, whose q and k it
 * convolves and norms for itself. The state is asked for into the L2 cache steps before (chain_delta_early).
 * Rows that are pending in the log are taken through it two steps earlier (s.replays), where the blocks that
 * have units, the last ones, wait for those with more pairs of products; so only the row itself is left when
 * the projections' values come. Handed on are a head's outputs as they are and silu of z: who reads
 * them, each block of the projection behind, norms and gates two heads at a time before it rounds them, so
 * that no exchange is needed for the norm.
 *
 * The log and the convolution's state: of its own columns of v a block writes them at once, for nobody else
 * reads them. Those of q and k and the gates are read by all blocks of a key head; the first of these keeps
 * them until it has seen the outputs of all its heads, which depend on all that was read.
 *
 * Where the state is written after several rows (d.every), those since are pending in the log, and beside
 * them stands what each added to the state: its decay, its normed key, and for each row of the state what the
 * key was times. By that the state is taken over them, with the bits that it had, while the row's values
 * come.
 *
 * Arithmetic: that of delta/step.cu (delta/rows.cuh) to the bit.
 *
 * Wins over launches: 27B 89.2 to 77.8 us a layer, one row. dflash-bench rows -m 27b-q4_k_m.gguf
 * --device cuda --rows 1 --context 512 */
#ifndef DFLASH_CUDA_CHAIN_DELTA_CUH
#define DFLASH_CUDA_CHAIN_DELTA_CUH

#include "ring.cuh"
#include "../delta/delta.cuh"
#include "../delta/norm.cuh"

#define DELTA CHAIN_HEAD /* d_k and d_v */
#define DELTA_ROWS 32    /* of a unit */
#define DELTA_LANES 8    /* a row of the state */
static_assert(32 * CHAIN_WARPS == DELTA_ROWS * DELTA_LANES && 32 * CHAIN_WARPS == 2 * DELTA,
              "a thread an eighth of a row of each unit, and a column of q or k");

/* In shared memory. */
struct chain_delta_room {
    float raw[4][2 * DELTA];        /* the convolution's inputs of q and k: three before the row, the row */
    float raw_v[3][2 * DELTA_ROWS]; /* those before it of v */
    float ab[2][32];                /* alpha and beta of the row, of the key head's value heads */
    float q[2][DELTA], k[2][DELTA]; /* convolved, of two tokens in turn */
    float v[2][2 * DELTA_ROWS];     /* of two units */
    float decay[32], beta[32];      /* of the token, by value head of the key head */
    float root_q, root_k, kq;       /* the factors of q's and k's norms; k . q */
    int pending;                    /* as it was */
};

DEV void state_load(float v[DELTA / DELTA_LANES], const float *row, int lane)
{
#pragma unroll
    for (int i = 0; i < DELTA / 32; i++) {
        const float4 x = __ldcg((const float4 *)(row + 32 * i + 4 * lane));
        v[4 * i] = x.x, v[4 * i + 1] = x.y, v[4 * i + 2] = x.z, v[4 * i + 3] = x.w;
    }
}
DEV void state_store(const float v[DELTA / DELTA_LANES], float *row, int lane)
{
#pragma unroll
    for (int i = 0; i < DELTA / 32; i++)
        __stcg((float4 *)(row + 32 * i + 4 * lane),
               make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]));
}
/* As convolve of delta/rows.cuh: the oldest first. */
DEV float delta_convolved(const float4 &w, float x0, float x1, float x2, float x3)
{
    return __fmaf_rn(w.w, x3, __fmaf_rn(w.z, x2, __fmaf_rn(w.y, x1, __fmul_rn(w.x, x0))));
}
/* A warp: what norms<D> of delta/rows.cuh makes of a token. */
DEV void delta_norms(chain_delta_room &m, const float *q, const float *k)
{
    const int lane = threadIdx.x % 32;
    const struct delta_roots r = delta_roots_of(q, k, lane);
    if (lane == 0) m.root_q = r.q, m.root_k = r.k, m.kq = r.kq;
}
/* step of delta/rows.cuh for two units at once: q and k are not normed yet. o: in every lane of the row, and
 * e, what the key is added times. */
DEV void delta_token(float s[2][DELTA / DELTA_LANES], const chain_delta_room &m, int turn, const int head[2],
                     float o[2], float e[2])
{
    const int lane = threadIdx.x % DELTA_LANES, row = threadIdx.x / DELTA_LANES;
    const float root_q = m.root_q, root_k = m.root_k, kq = m.kq;
    float k[DELTA / DELTA_LANES], x[2], y[2];
#pragma unroll
    for (int i = 0; i < DELTA / 32; i++) {
        const float4 t = *(const float4 *)(m.k[turn] + 32 * i + 4 * lane);
        k[4 * i] = __fmul_rn(t.x, root_k), k[4 * i + 1] = __fmul_rn(t.y, root_k);
        k[4 * i + 2] = __fmul_rn(t.z, root_k), k[4 * i + 3] = __fmul_rn(t.w, root_k);
    }
    float sk[2][2] = {}, sq[2][2] = {};
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const float decay = m.decay[head[j]];
#pragma unroll
        for (int i = 0; i < DELTA / DELTA_LANES; i++) {
            s[j][i] = __fmul_rn(s[j][i], decay);
            sk[j][i & 1] = __fmaf_rn(s[j][i], k[i], sk[j][i & 1]);
        }
    }
#pragma unroll
    for (int i = 0; i < DELTA / 32; i++) {
        const float4 t = *(const float4 *)(m.q[turn] + 32 * i + 4 * lane);
        const float q[4] = {
            __fmul_rn(__fmul_rn(t.x, root_q), DELTA_SCALE), __fmul_rn(__fmul_rn(t.y, root_q), DELTA_SCALE),
            __fmul_rn(__fmul_rn(t.z, root_q), DELTA_SCALE), __fmul_rn(__fmul_rn(t.w, root_q), DELTA_SCALE)};
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int n = 0; n < 4; n++) sq[j][n & 1] = __fmaf_rn(s[j][4 * i + n], q[n], sq[j][n & 1]);
    }
#pragma unroll
    for (int j = 0; j < 2; j++) x[j] = __fadd_rn(sk[j][0], sk[j][1]), y[j] = __fadd_rn(sq[j][0], sq[j][1]);
#pragma unroll
    for (int i = DELTA_LANES / 2; i; i >>= 1)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            x[j] = __fadd_rn(x[j], __shfl_xor_sync(~0u, x[j], i));
            y[j] = __fadd_rn(y[j], __shfl_xor_sync(~0u, y[j], i));
        }
#pragma unroll
    for (int j = 0; j < 2; j++) {
        e[j] = __fmul_rn(m.beta[head[j]], __fsub_rn(m.v[turn][DELTA_ROWS * j + row], x[j]));
#pragma unroll
        for (int i = 0; i < DELTA / DELTA_LANES; i++) s[j][i] = __fmaf_rn(e[j], k[i], s[j][i]);
        o[j] = __fmaf_rn(e[j], kq, y[j]);
    }
}

/* What pending rows left for delta_again, asked for. box: in shared memory, DELTA_AGAIN floats a row. */
#define DELTA_AGAIN (DELTA + 2 * DELTA_ROWS + 4)
DEV void delta_again_ask(const chain_net &d, int kh, int pending, const int head[2], const int unit[2],
                         float *box)
{
    constexpr int PIECES = (DELTA + 2 * DELTA_ROWS) / 4;
    const int i = threadIdx.x, width = (2 * d.n_k + d.n_v) * DELTA, stride = width + 2 * d.n_v;
    const float *const log = d.log + KN_DELTA_LOG / 2 * stride;
#pragma unroll 1
    for (int j = i; j < pending * PIECES; j += 32 * CHAIN_WARPS) {
        const int t = j / PIECES, c = 4 * (j % PIECES), v = c - DELTA,
                  from = v < 0 ? (d.n_k + kh) * DELTA + c
                               : 2 * d.n_k * DELTA + DELTA_ROWS * unit[v / DELTA_ROWS] + v % DELTA_ROWS;
        copy_async(shared_at(box + t * DELTA_AGAIN + c), log + t * stride + from, true);
    }
    if (i < 2 * pending)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(
                         shared_at(box + i / 2 * DELTA_AGAIN + 4 * PIECES + i % 2)),
                     "l"(log + i / 2 * stride + width + kh + d.n_k * head[i % 2])
                     : "memory");
    copy_commit();
}
/* The state of two units, taken over pending rows by what their steps were (again_of). */
DEV void delta_again(float s[2][DELTA / DELTA_LANES], int pending, const float *box)
{
    const int lane = threadIdx.x % DELTA_LANES;
#pragma unroll 1
    for (int t = 0; t < pending; t++, box += DELTA_AGAIN) {
        const float *const e = box + DELTA + threadIdx.x / DELTA_LANES, *const decay =
                                                                            box + DELTA + 2 * DELTA_ROWS;
#pragma unroll
        for (int n = 0; n < DELTA / 32; n++) {
            const float4 x = *(const float4 *)(box + 32 * n + 4 * lane);
            const float k[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
            for (int j = 0; j < 2; j++)
#pragma unroll
                for (int c = 0; c < 4; c++)
                    s[j][4 * n + c] =
                        __fmaf_rn(e[DELTA_ROWS * j], k[c], __fmul_rn(s[j][4 * n + c], decay[j]));
        }
    }
}

/* Is the state written with the row? */
DEV bool delta_final(const chain_net &d, int pending)
{
    return d.every ? pending + 1 >= d.every : d.commit != 0;
}

/* What stands before the row, where the rows pending are not taken through the state: to shared memory. */
static __device__ __noinline__ void chain_delta_before(const chain_net &d, const chain_plan &plan,
                                                       chain_delta_room &m, int pending)
{
    const int i = threadIdx.x, kh = plan.kv_head, width = (2 * d.n_k + d.n_v) * DELTA, warp = i / 32,
              stride = width + 2 * d.n_v, u = plan.unit + (warp & 1 ? d.per : 0),
              head = 2 * d.n_k + kh + d.n_k * (u / 4);
    const int q = (i / DELTA * d.n_k + kh) * DELTA + i % DELTA,
              v = head * DELTA + DELTA_ROWS * (u % 4) + i % 32;
    float x[3], y[3];
#pragma unroll
    for (int j = 0; j < 3; j++) {
        const int t = pending - 3 + j;
        const float *const from = t < 0 ? d.conv + (t + 3) * width : d.log + t * stride;
        x[j] = __ldcg(from + q);
        y[j] = warp < plan.leaf ? __ldcg(from + v) : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < 3; j++) {
        m.raw[j][i] = x[j];
        if (warp < plan.leaf) m.raw_v[j][i] = y[j];
    }
    m.pending = pending;
}

/* A thread's columns: of q or k, and, with warps 0 and 1, of v; warps 2 and 3: of z; warps 4 and 6: alpha and
 * beta of a head. */
struct delta_thread {
    int mine, half, c, c_v, gate; /* mine: the unit of its v and z; gate: among alphas, then betas */
    bool has_v, has_z, has_gate;
};
DEV delta_thread delta_thread_of(const chain_net &d, int kh, int units, const int unit[2])
{
    const int i = threadIdx.x, lane = i % 32, warp = i / 32, rep = d.units / 4;
    delta_thread t;
    t.mine = warp & 1 ? unit[1] : unit[0];
    t.half = i / DELTA, t.c = (t.half * d.n_k + kh) * DELTA + i % DELTA;
    t.c_v = 2 * d.n_k * DELTA + DELTA_ROWS * t.mine + lane;
    t.gate = kh + d.n_k * lane + (warp == 6 ? d.n_v : 0);
    t.has_v = warp < units, t.has_z = warp >= 2 && warp < 2 + units;
    t.has_gate = (warp == 4 || warp == 6) && lane < rep;
    return t;
}
/* Norms, by warp 5, and gates of a token whose q, k and v are there, the gates' inputs xo in has_gate's
 * threads.
 */
DEV void delta_gates(chain_delta_room &m, int turn, bool has_gate, float xo, float scale, float shift)
{
    const int lane = threadIdx.x % 32, warp = warp_of();
    if (warp == 5) {
        delta_norms(m, m.q[turn], m.k[turn]);
    } else if (has_gate) {
        m.ab[warp == 6][lane] = xo;
        if (warp == 4)
            m.decay[lane] = dev_exp(__fmul_rn(scale, dev_softplus(__fadd_rn(xo, shift))));
        else
            m.beta[lane] = dev_sigmoid(xo);
    }
    chain_meet();
}
/* What nobody else reads: the thread's column of v to the convolution's state (w: those before x) and the
 * log; and, where it will be pending, the token as delta_again wants it. e: of the units' rows. */
DEV void delta_leave(const chain_net &d, const chain_plan &plan, const delta_thread &a, const int unit[2],
                     const chain_delta_room &m, int pending, const float w[3], float x, const float e[2])
{
    const int i = threadIdx.x, width = (2 * d.n_k + d.n_v) * DELTA, stride = width + 2 * d.n_v;
    const bool final = delta_final(d, pending);
    if (a.has_v) {
        float *const to = d.conv + a.c_v;
        if (final)
            __stcg(to, w[1]), __stcg(to + width, w[2]), __stcg(to + 2 * width, x);
        else if (pending && !d.every)
            __stcg(to, w[0]), __stcg(to + width, w[1]), __stcg(to + 2 * width, w[2]);
        if (!final) __stcg(d.log + (d.every ? pending * stride : 0) + a.c_v, x);
    }
    if (!d.every || final) return;
    float *const to = d.log + (KN_DELTA_LOG / 2 + pending) * stride;
    if (i % DELTA_LANES == 0)
#pragma unroll
        for (int j = 0; j < 2; j++)
            if (j < plan.leaf) __stcg(to + 2 * d.n_k * DELTA + DELTA_ROWS * unit[j] + i / DELTA_LANES, e[j]);
    if (plan.unit) return;
    if (a.half) __stcg(to + a.c, __fmul_rn(m.k[pending & 1][i % DELTA], m.root_k));
    if (i / 32 == 4 && a.has_gate) __stcg(to + width + a.gate, m.decay[i % 32]);
}

/* A value of which the sums of slices are handed on, `apart` to the next. */
DEV bool delta_sums(float *v, const float *from, int slices, int apart)
{
    bool there = true;
    float y = 0.0f;
#pragma unroll 4
    for (int i = 0; i < slices; i++) {
        float x;
        there &= value_get(&x, from + i * apart);
        y = __fadd_rn(y, x);
    }
    *v = y;
    return there;
}
/* The rows pending (ROW: false), or the row itself: the step. in: the values of the projections (qkv, z,
 * alpha, beta); out: outputs of all heads, then silu of z. The convolution's inputs before the row pass from
 * one call to the other in m, the state in memory. box: as delta_again has it. SUMS: alpha and beta may
 * come as sums of slices. */
template <bool ROW, bool SUMS>
static __device__ __noinline__ void chain_delta_run(const chain_step &s, const chain_plan &plan,
                                                    const float *in, float *out, chain_delta_room &m,
                                                    float *box)
{
    const chain_net &d = s.d;
    const int i = threadIdx.x, units = plan.leaf, kh = plan.kv_head, width = (2 * d.n_k + d.n_v) * DELTA;
    if (!units) return;
    const int pending = ROW ? m.pending : min(max(__ldcg(d.pending), 0), KN_DELTA_LOG);
    if (!ROW && (!pending || d.every)) {
        chain_delta_before(d, plan, m, pending);
        return;
    }
    int head[2], unit[2]; /* of the key head's; by rows of 32, of all heads */
    float st[2][DELTA / DELTA_LANES];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const int u = plan.unit + (j < units ? j * d.per : 0); /* or the same once more */
        head[j] = u / 4;
        unit[j] = 4 * (kh + d.n_k * head[j]) + u % 4;
        state_load(st[j], d.s + (size_t)(DELTA_ROWS * unit[j] + i / DELTA_LANES) * DELTA, i % DELTA_LANES);
    }
    const delta_thread a = delta_thread_of(d, kh, units, unit);
    const float4 taps = __ldg((const float4 *)d.taps + a.c),
                 taps_v = a.has_v ? __ldg((const float4 *)d.taps + a.c_v) : make_float4(0, 0, 0, 0);
    float w[3], wv[3] = {0.0f, 0.0f, 0.0f}, scale = 0.0f, shift = 0.0f;
    if (i / 32 == 4 && a.has_gate) scale = __ldg(d.a + a.gate), shift = __ldg(d.dt + a.gate);
    const bool again = ROW && d.every && pending;
    if (again) delta_again_ask(d, kh, pending, head, unit, box);
#pragma unroll
    for (int j = 0; j < 3; j++) {
        w[j] = ROW ? m.raw[j][i] : __ldcg(d.conv + j * width + a.c);
        if (a.has_v) wv[j] = ROW ? m.raw_v[j][i] : __ldcg(d.conv + j * width + a.c_v);
    }
#pragma unroll 1
    for (int t = ROW ? pending : 0; t < pending + ROW; t++) {
        const int turn = t & 1;
        float x = 0.0f, xv = 0.0f, xo = 0.0f, y[2], o[2], e[2];
        if (ROW) {
            const float *const other = a.has_z ? in + width + DELTA_ROWS * a.mine + i % 32
                                               : in + width + DELTA * d.n_v + a.gate; /* z; gates */
            const auto get = [&]() {
                bool there = value_get(&x, in + a.c);
                if (a.has_v) there &= value_get(&xv, in + a.c_v);
                if (SUMS && d.slices && a.has_gate)
                    there &= delta_sums(&xo, in + d.sums + a.gate, d.slices, 2 * d.n_v);
                else if (a.has_z || a.has_gate)
                    there &= value_get(&xo, other);
                return there;
            };
            value_wait wait;
            bool there = get();
            if (again) { /* while the values come */
                copy_wait(0);
                chain_meet();
                if (!__all_sync(~0u, there)) there = get();
                delta_again(st, pending, box);
            }
            while (wait.more(!__all_sync(~0u, there))) there = get();
        } else {
            const float *const log = d.log + t * (width + 2 * d.n_v);
            x = __ldcg(log + a.c);
            if (a.has_v) xv = __ldcg(log + a.c_v);
            if (a.has_gate) xo = __ldcg(log + width + a.gate);
        }
        y[0] = delta_convolved(taps, w[0], w[1], w[2], x);
        y[1] = a.has_v ? delta_convolved(taps_v, wv[0], wv[1], wv[2], xv) : ROW && a.has_z ? xo : 1.0f;
        silu_all(y);
        (a.half ? m.k : m.q)[turn][i % DELTA] = y[0];
        if (a.has_v) m.v[turn][i] = y[1];
        if (ROW && a.has_z) value_put(out + DELTA * d.n_v + DELTA_ROWS * a.mine + i % 32, y[1]);
        chain_meet();
        delta_gates(m, turn, a.has_gate, xo, scale, shift);
        delta_token(st, m, turn, head, o, e);
        if (ROW) {
            if (i % DELTA_LANES == 0)
#pragma unroll
                for (int j = 0; j < 2; j++)
                    if (j < units) value_put(out + DELTA_ROWS * unit[j] + i / DELTA_LANES, o[j]);
            m.raw[3][i] = x;
            delta_leave(d, plan, a, unit, m, pending, wv, xv, e);
        } else {
            w[0] = w[1], w[1] = w[2], w[2] = x;
            wv[0] = wv[1], wv[1] = wv[2], wv[2] = xv;
        }
    }
    if (!ROW) {
        m.pending = pending;
        m.raw[0][i] = w[0], m.raw[1][i] = w[1], m.raw[2][i] = w[2];
        if (a.has_v) m.raw_v[0][i] = wv[0], m.raw_v[1][i] = wv[1], m.raw_v[2][i] = wv[2];
    }
    if (ROW && !delta_final(d, pending)) return;
#pragma unroll
    for (int j = 0; j < 2; j++)
        if (j < units)
            state_store(st[j], d.s + (size_t)(DELTA_ROWS * unit[j] + i / DELTA_LANES) * DELTA,
                        i % DELTA_LANES);
}

/* What the key head's first block kept of its q, k and gates to the convolution's state and the log, in the
 * step that reads the outputs: all of them have been seen, by the block, or, with wait, are now. out: they.
 */
static __device__ __noinline__ void chain_delta_keep(const chain_step &s, const chain_plan &plan, bool wait,
                                                     const float *out, const chain_delta_room &m)
{
    const chain_net &d = s.d;
    if (plan.unit || !plan.leaf) return;
    const int i = threadIdx.x, kh = plan.kv_head, rep = d.units / 4, width = (2 * d.n_k + d.n_v) * DELTA;
    if (wait) {
#pragma unroll 1
        for (int j = i; j < rep * DELTA; j += 32 * CHAIN_WARPS) {
            value_wait w;
            float v;
            while (
                w.more(!__all_sync(~0u, value_get(&v, out + (kh + j / DELTA * d.n_k) * DELTA + j % DELTA))))
                ;
        }
        chain_meet();
    }
    float *const conv = d.conv + (i / DELTA * d.n_k + kh) * DELTA + i % DELTA;
    const bool final = delta_final(d, m.pending);
    const int from = final ? 1 : 0;
    if (final || (m.pending && !d.every))
#pragma unroll
        for (int j = 0; j < 3; j++) __stcg(conv + (size_t)j * (size_t)width, m.raw[from + j][i]);
    if (final) return;
    float *const log = d.log + (d.every ? m.pending * (width + 2 * d.n_v) : 0);
    __stcg(log + (i / DELTA * d.n_k + kh) * DELTA + i % DELTA, m.raw[3][i]);
    if (i < 2 * 32 && i % 32 < rep)
        __stcg(log + width + i / 32 * d.n_v + kh + i % 32 * d.n_k, m.ab[i / 32][i % 32]);
}

/* ---- rows that are gated where they are read ---- */

#define DELTA_GATED 3 /* blocks of 256 columns that a warp gates at a time */

/* Blocks of two heads' outputs in v, columns 8 lane ..: normed and gated as finish_row of delta/step.cu does.
 * box: [DELTA_GATED][256], of the warp. */
DEV void delta_gate(float v[DELTA_GATED][8], const float g[DELTA_GATED][8], const float norm[8], float eps,
                    float *box)
{
    constexpr int B = DELTA_GATED;
    const int lane = threadIdx.x % 32;
    float sum[2 * B] = {};
    __syncwarp(); /* the box is done with */
#pragma unroll
    for (int c = 0; c < B; c++) {
        *(float4 *)(box + 256 * c + 8 * lane) = make_float4(v[c][0], v[c][1], v[c][2], v[c][3]);
        *(float4 *)(box + 256 * c + 8 * lane + 4) = make_float4(v[c][4], v[c][5], v[c][6], v[c][7]);
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < DELTA / 32; j++)
#pragma unroll
        for (int h = 0; h < 2 * B; h++) {
            const float x = box[DELTA * h + 32 * j + lane];
            sum[h] = __fmaf_rn(x, x, sum[h]);
        }
#pragma unroll
    for (int i = 16; i; i >>= 1)
#pragma unroll
        for (int h = 0; h < 2 * B; h++) sum[h] = __fadd_rn(sum[h], __shfl_xor_sync(~0u, sum[h], i));
    float mine = sum[0];
#pragma unroll
    for (int h = 1; h < 2 * B; h++) mine = lane == h ? sum[h] : mine;
    const float root =
        __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fmul_rn(mine, 1.0f / (float)DELTA), eps))); /* exact */
#pragma unroll
    for (int c = 0; c < B; c++) {
        const float r = __shfl_sync(~0u, root, 2 * c + (lane >= 16));
#pragma unroll
        for (int i = 0; i < 8; i++) v[c][i] = __fmul_rn(__fmul_rn(__fmul_rn(v[c][i], r), norm[i]), g[c][i]);
    }
}
/* The row at p gated and rounded, all of it: a delta net's outputs, or, where those are a row in memory, that
 * times sigmoid of gates in memory. box: [CHAIN_WARPS][DELTA_GATED][256]. */
static __device__ __noinline__ void chain_row_gated(const chain_step &s, const float *p, const float *gates,
                                                    uint8_t *act, float *box)
{
    constexpr int B = DELTA_GATED;
    const int lane = threadIdx.x % 32, warp = warp_of(), units = s.units;
    const bool net = s.d.what == CHAIN_STATE_ROW;
    float norm[8] = {};
    if (net) load_eight(norm, s.d.norm, 8 * (lane % 16), DELTA);
#pragma unroll 1
    for (int b = warp; b < units; b += B * CHAIN_WARPS) {
        const int n = (units - b + CHAIN_WARPS - 1) / CHAIN_WARPS;
        float v[B][8] = {}, g[B][8] = {};
        values_ask<B, CHAIN_WARPS>(g, gates + 256 * b, n, 0);
        values_ask<B, CHAIN_WARPS>(v, p + 256 * b, n, 0);
        if (net) {
            values_settle<B, CHAIN_WARPS>(g, gates + 256 * b, n);
            values_settle<B, CHAIN_WARPS>(v, p + 256 * b, n);
        }
        if (net) {
            delta_gate(v, g, norm, s.eps, box + 256 * B * warp);
        } else {
#pragma unroll 1
            for (int k = 0; k < B; k++) /* turned round, so that the code is there once */
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    const float x = __fmul_rn(v[0][i], dev_sigmoid(g[0][i]));
#pragma unroll
                    for (int c = 0; c + 1 < B; c++) v[c][i] = v[c + 1][i], g[c][i] = g[c + 1][i];
                    v[B - 1][i] = x;
                }
        }
        chain_some<B> e;
#pragma unroll
        for (int i = 0; i < 8 * B; i++) e.v[i / 8][i % 8] = v[i / 8][i % 8];
        chain_round<B, true>(shared_at(act), units, b, CHAIN_WARPS, n, e);
    }
    chain_meet();
}

#endif
