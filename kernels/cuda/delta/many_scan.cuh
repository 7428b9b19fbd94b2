/* delta/many_scan.cuh - delta_scan: the state of a value head through the blocks of a prompt (delta/many.cu).
 */
#ifndef DFLASH_CUDA_DELTA_MANY_SCAN_CUH
#define DFLASH_CUDA_DELTA_MANY_SCAN_CUH

#include "many.cuh"

/* Chunks of 16 bytes of a row are exchanged so that the rows that are read together lie in different banks.
 */
struct stage {
    uint8_t keys[4][PLANE];     /* k high, k low, q high, q low: chunk c of row t at c ^ t % 8 */
    uint8_t squares[4][SQUARE]; /* T high, T low, P high, P low: chunk c of row t at c ^ t / 2 % 4 */
    float values[BLOCK * WIDE]; /* [token, row of the state]: chunk c of token t at c ^ t / 2 % 4 * 2 */
    float gates[GATES];
};

DEV void copy16(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_at(to)), "l"(from) : "memory");
}

/* Block i of the head into a stage. */
static __device__ void fetch(struct stage *s, const struct blocks &b, int32_t n_k, int32_t i)
{
    const int32_t h = blockIdx.y;
    const int64_t at = (int64_t)h * b.n_blocks + i;
    const uint8_t *keys = b.keys + ((int64_t)(h % n_k) * b.n_blocks + i) * (4 * PLANE),
                  *squares = b.squares + at * (4 * SQUARE);
    const float *values = b.values + at * BLOCK * b.wide + (int64_t)blockIdx.x * WIDE,
                *gates = b.gates + at * GATES;
    const int thread = threadIdx.x;
#pragma unroll
    for (int j = 0; j < 4 * PLANE / 16; j += STHREADS) {
        const int c = (j + thread) % 16, t = (j + thread) / 16; /* rows of all four planes */
        copy16(s->keys[0] + t * 256 + (c ^ t % 8) * 16, keys + (j + thread) * 16);
    }
#pragma unroll
    for (int j = 0; j < 4 * SQUARE / 16; j += STHREADS) {
        const int c = (j + thread) % 4, t = (j + thread) / 4;
        copy16(s->squares[0] + t * 64 + (c ^ t / 2 % 4) * 16, squares + (j + thread) * 16);
    }
#pragma unroll
    for (int j = 0; j < BLOCK * WIDE / 4; j += STHREADS) {
        const int c = (j + thread) % 16, t = (j + thread) / 16;
        copy16(s->values + t * WIDE + (c ^ t / 2 % 4 * 2) * 4, values + (int64_t)t * b.wide + 4 * c);
    }
    if (thread < GATES / 4) copy16(s->gates + 4 * thread, gates + 4 * thread);
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Two tiles of sums as the left factor of a product along their 16 columns. */
DEV void factor(uint32_t high[4], uint32_t low[4], const float x[4], const float y[4])
{
    high[0] = split(x[0], x[1], low), high[1] = split(x[2], x[3], low + 1);
    high[2] = split(y[0], y[1], low + 2), high[3] = split(y[2], y[3], low + 3);
}

/* r += S K^T and o += S Q^T: the rows' products with all tokens of the block. */
DEV void project(float r[4][4], float o[4][4], const float s[16][4], unsigned keys)
{
    const int lane = threadIdx.x % 32,
              t = lane % 8 + lane / 16 * 8; /* row of the matrix that the lane points at */
#pragma unroll
    for (int i = 0; i < HEAD / 16; i++) {
        uint32_t fh[4], fl[4];
        factor(fh, fl, s[2 * i], s[2 * i + 1]);
        const unsigned at = keys + t * 256 + ((2 * i + lane / 8 % 2) ^ t % 8) * 16;
        uint4 k[2][2], q[2][2]; /* high, low; tokens 0 .. 15, 16 .. 31 */
#pragma unroll
        for (int p = 0; p < 2; p++)
#pragma unroll
            for (int n = 0; n < 2; n++) {
                k[p][n] = load_matrices(at + p * PLANE + n * 16 * 256);
                q[p][n] = load_matrices(at + (2 + p) * PLANE + n * 16 * 256);
            }
#pragma unroll
        for (int part = 0; part < 3;
             part++) { /* low * high, high * low, high * high: eight chains side by side */
            const uint32_t *f = part ? fh : fl;
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const uint4 x = k[part == 1][n], y = q[part == 1][n];
                mma(r[2 * n], f, x.x, x.y), mma(r[2 * n + 1], f, x.z, x.w);
                mma(o[2 * n], f, y.x, y.y), mma(o[2 * n + 1], f, y.z, y.w);
            }
        }
    }
}

/* c += x Y^T, Y a square at y (T or P), zero above its diagonal. Products of high parts and the others are
 * chains of their own. */
DEV void by_square(float c[4][4], const uint32_t xh[2][4], const uint32_t xl[2][4], unsigned y)
{
    const int lane = threadIdx.x % 32, t = lane % 8 + lane / 16 * 8;
    float small[4][4] = {};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint4 h[2], s[2];
#pragma unroll
        for (int n = i; n < 2; n++) {
            const unsigned at = y + (t + 16 * n) * 64 + ((2 * i + lane / 8 % 2) ^ t / 2 % 4) * 16;
            h[n] = load_matrices(at), s[n] = load_matrices(at + SQUARE);
        }
#pragma unroll
        for (int n = i; n < 2; n++) {
            mma(small[2 * n], xl[i], h[n].x, h[n].y), mma(small[2 * n + 1], xl[i], h[n].z, h[n].w);
            mma(c[2 * n], xh[i], h[n].x, h[n].y), mma(c[2 * n + 1], xh[i], h[n].z, h[n].w);
        }
#pragma unroll
        for (int n = i; n < 2; n++)
            mma(small[2 * n], xh[i], s[n].x, s[n].y), mma(small[2 * n + 1], xh[i], s[n].z, s[n].w);
    }
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) c[n][e] = __fadd_rn(c[n][e], small[n][e]);
}

/* s += x K: 16 rows of the state, and the block's keys; eight chains side by side. */
DEV void update(float s[16][4], const uint32_t xh[2][4], const uint32_t xl[2][4], unsigned keys)
{
    const int lane = threadIdx.x % 32, t = lane % 16; /* matrices: tokens 0 and 8, then the next 8 columns */
#pragma unroll
    for (int j = 0; j < 8; j += 4)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint4 h[4], g[4];
#pragma unroll
            for (int n = 0; n < 4; n++) {
                const unsigned at = keys + (t + 16 * i) * 256 + ((2 * (j + n) + lane / 16) ^ t % 8) * 16;
                h[n] = load_transposed(at), g[n] = load_transposed(at + PLANE);
            }
#pragma unroll
            for (int part = 0; part < 3; part++) {
                const uint32_t *f = part ? xh[i] : xl[i];
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    const uint4 y = part == 1 ? g[n] : h[n];
                    mma(s[2 * (j + n)], f, y.x, y.y), mma(s[2 * (j + n) + 1], f, y.z, y.w);
                }
            }
        }
}

/* A block of 32 tokens for a warp's 16 rows: from the row `row` on of those that the stage has. out: the row
 * of the block's first token. left: tokens, rows: rows of the state that there are. */
static __device__ void take_block(const struct stage &st, float s[16][4], int row, float *out, int64_t stride,
                                  int left, int rows)
{
    const int g = threadIdx.x % 32 / 4, c = 2 * (threadIdx.x % 4);
    const unsigned keys = shared_at(st.keys[0]), squares = shared_at(st.squares[0]);
    float r[4][4] = {}, o[4][4] = {}, e[4][4] = {};
    uint32_t xh[2][4], xl[2][4];
    project(r, o, s, keys);
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int t = 8 * n + c + i % 2, v = row + g + i / 2 * 8;
            const float decay = st.gates[t],
                        value = st.values[t * WIDE + ((v / 4) ^ t / 2 % 4 * 2) * 4 + v % 4];
            r[n][i] = __fmul_rn(st.gates[2 * BLOCK + t], __fmaf_rn(-decay, r[n][i], value));
            o[n][i] = __fmul_rn(o[n][i], decay);
        }
    factor(xh[0], xl[0], r[0], r[1]), factor(xh[1], xl[1], r[2], r[3]);
    by_square(e, xh, xl, squares);
    factor(xh[0], xl[0], e[0], e[1]), factor(xh[1], xl[1], e[2], e[3]);
    by_square(o, xh, xl, squares + 2 * SQUARE);
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int t = 8 * n + c + i % 2, v = g + i / 2 * 8;
            if (t < left && v < rows) out[t * stride + v] = o[n][i];
            e[n][i] = __fmul_rn(e[n][i], st.gates[BLOCK + t]);
        }
    factor(xh[0], xl[0], e[0], e[1]), factor(xh[1], xl[1], e[2], e[3]);
    const float decay = st.gates[BLOCK - 1];
#pragma unroll
    for (int n = 0; n < 16; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) s[n][i] = __fmul_rn(s[n][i], decay);
    update(s, xh, xl, keys);
}

/* A warp's 16 rows of the state at p, from or to memory, elements past d_k zeros. */
template <bool STORE> DEV void move_rows(float s[16][4], float *p, int rows, int d_k)
{
    const int g = threadIdx.x % 32 / 4, c = 2 * (threadIdx.x % 4);
#pragma unroll
    for (int n = 0; n < 16; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int v = g + i / 2 * 8, k = 8 * n + c + i % 2;
            if (STORE && v < rows && k < d_k) p[(int64_t)v * d_k + k] = s[n][i];
            if (!STORE) s[n][i] = v < rows && k < d_k ? p[(int64_t)v * d_k + k] : 0.0f;
        }
}

/* Rows [WIDE x, ..) of value head y's state through all blocks. */
static __global__ void __launch_bounds__(STHREADS) delta_scan(const struct layer l, const struct blocks b)
{
    extern __shared__ __align__(16) uint8_t memory[];
    struct stage *stages = (struct stage *)memory;
    const struct kn_delta &a = l.a;
    const int row = (int)threadIdx.x / 32 * 16, first = (int)blockIdx.x * WIDE + row, rows = a.d_v - first;
    const int64_t stride = (int64_t)a.n_v * a.d_v;
    float *state = l.s.s + ((int64_t)blockIdx.y * a.d_v + first) * a.d_k,
          *out = a.out + (int64_t)b.from * stride + (int64_t)blockIdx.y * a.d_v + first;
    float s[16][4];
    cuda_grid_start();
    fetch(&stages[0], b, a.n_k, 0);
    move_rows<false>(s, state, rows, a.d_k);
    for (int32_t i = 0; i < b.n_blocks; i++) {
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        if (i + 1 < b.n_blocks) fetch(&stages[(i + 1) % 2], b, a.n_k, i + 1);
        take_block(stages[i % 2], s, row, out + (int64_t)i * BLOCK * stride, stride, b.n - i * BLOCK, rows);
    }
    move_rows<true>(s, state, rows, a.d_k);
}

#endif
