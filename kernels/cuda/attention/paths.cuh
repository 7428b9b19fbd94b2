/* attention/paths.cuh - the keys and values that rows of a tree tried, as a block of attn_places has them.
 *
 * A row of a tree sees what is committed, then its own path: of the keys at one position every row has its
 * own (tree.cu). So the tried rows that a tile's paths have stand beside the block's leaves, a pair of rows
 * of shared memory each, and a product takes its factors by path: ldmatrix has an address a lane. Where 16
 * keys, a step of a product, have no tried position, a tile's rows share one product as ever. Else there is a
 * product a row of the tree, of which its heads' lanes keep what they get. So a row's chain of products is a
 * chain's, key by key, and what another row's path holds, a NaN even, it never meets. */
#include "attention.cuh"

/* Whose path a position is on, of a tile: the rows of the tree that have heads there, at most TILE. */
struct tile_paths {
    const uint8_t *way; /* [row of these][KN_CYCLE_ROWS]: which tried row stands at pos0 + i; a.n: none */
    unsigned tried;  /* shared memory: tried row r's key at 2 r rows of PITCH, its value behind; a.n: zeros */
    int first, rows; /* of the tree */
    int pos0;
};
#define WAY_BYTES (TILE * KN_CYCLE_ROWS)
#define MINE_BYTES KN_CYCLE_ROWS /* of a warp: the tried rows that its block has to make */

/* By all threads. */
DEV void find_ways(const attn &a, const tile_paths &t, uint8_t *way)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < t.rows * KN_CYCLE_ROWS; i += blockDim.x) {
        const int r = t.first + i / KN_CYCLE_ROWS, at = i % KN_CYCLE_ROWS;
        const uint8_t row = a.tree->path[r][at];
        way[i] = at <= a.pos[r] - t.pos0 ? row : (uint8_t)a.n;
    }
}
/* Which tried rows stand at [low, high) on a path of the tile, rising: mine, by a warp for itself. Their
 * number. */
DEV int find_mine(const attn &a, const tile_paths &t, int low, int high, uint8_t *mine)
{
    const int lane = threadIdx.x % 32;
    int n = 0;
    for (int r0 = 0; r0 < a.n; r0 += 32) {
        const int r = r0 + lane, pos = r < a.n ? a.pos[r] : high;
        bool on = false;
        if (pos >= low && pos < high)
            for (int i = 0; i < t.rows; i++)
                on |=
                    a.tree->path[t.first + i][pos - t.pos0] == r; /* behind its end a path has its last row */
        const unsigned all = __ballot_sync(~0u, on);
        if (on) mine[n + __popc(all & ((1u << lane) - 1))] = (uint8_t)r;
        n += __popc(all);
    }
    __syncwarp();
    return n;
}
/* Where row `row` (of these) finds the key at p0 + key: among the leaf's own, at `leaf`, or the tried ones.
 */
template <int PITCH>
DEV unsigned key_at(const attn &a, const tile_paths &t, int row, unsigned leaf, int p0, int key, bool value)
{
    const int past = p0 + key - t.pos0;
    if (past < 0) return leaf + (unsigned)(key * PITCH * 2);
    const int at = past < KN_CYCLE_ROWS ? t.way[row * KN_CYCLE_ROWS + past] : a.n;
    return t.tried + (unsigned)((2 * at + value) * PITCH * 2);
}
/* Which of these rows the tile's row i is of; none is below 0. */
DEV int path_of(const attn &a, const tile_paths &t, int tile, int i)
{
    const int row = row_of(a, tile * TILE + i);
    return row < a.n ? row - t.first : -1;
}

/* Scores of the 16 keys from `key` on of the leaf at p0, whose keys stand at `keys`; hi: nobody sees more. */
template <int D, bool BF16, int PITCH>
DEV void scores_by_path(float x[2][4], const attn &a, const tile_paths &t, const uint4 *queries,
                        unsigned keys, int p0, int key, int tile, int hi)
{
    const int lane = threadIdx.x % 32, i = lane % 8 + lane / 16 * 8; /* scores() has the key of this lane */
    const bool shared = p0 + key + 16 <= t.pos0;
    const int own[2] = {path_of(a, t, tile, lane / 4), path_of(a, t, tile, lane / 4 + 8)},
              rows = shared          ? 1
                     : p0 + key < hi ? t.rows
                                     : 0;
#pragma unroll
    for (int j = 0; j < 2; j++) x[j][0] = x[j][1] = x[j][2] = x[j][3] = 0.0f;
#pragma unroll 1
    for (int row = 0; row < rows; row++) {
        float y[2][4];
        scores<D, BF16, 2, PITCH, 2>(
            y, queries, key_at<PITCH>(a, t, row, keys, p0, key + i, false) - (unsigned)(i * PITCH * 2));
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (shared || own[e / 2] == row) x[j][e] = y[j][e];
    }
}

/* acc += weights of 16 keys, [part][lane], times their values at v, which has the lane's key and column. */
template <bool BF16, int N> DEV void weigh_step(float acc[N][4], const uint4 *weights, unsigned v)
{
    const uint4 f0 = weights[threadIdx.x % 32], f1 = weights[32 + threadIdx.x % 32];
    const uint32_t p[2][4] = {{f0.x, f0.y, f0.z, f0.w}, {f1.x, f1.y, f1.z, f1.w}};
#pragma unroll
    for (int j = 0; j < N / 2; j++) {
        const uint4 b = load_transposed(v + (unsigned)(j * 32));
#pragma unroll
        for (int i = 0; i < 2; i++) {
            mma<BF16>(acc[2 * j], p[i], b.x, b.y);
            mma<BF16>(acc[2 * j + 1], p[i], b.z, b.w);
        }
    }
}
/* As weigh_stored, of the leaf at p0, whose values stand at `values`. */
template <bool BF16, int S, int N, int PITCH>
DEV void weigh_by_path(float acc[N][4], const attn &a, const tile_paths &t, const uint4 *weights,
                       unsigned values, int p0, int col, int tile, int hi)
{
    const int lane = threadIdx.x % 32, i = lane % 8 + lane / 8 % 2 * 8;
    const unsigned at_col = (unsigned)(lane / 16 * 8 + col) * 2;
#pragma unroll
    for (int k = 0; k < N; k++) acc[k][0] = acc[k][1] = acc[k][2] = acc[k][3] = 0.0f;
    const int own[2] = {path_of(a, t, tile, lane / 4), path_of(a, t, tile, lane / 4 + 8)};
#pragma unroll 1
    for (int s = 0; s < S && p0 + 16 * s < hi; s++) { /* further ones weigh nothing: they would add zeros */
        const bool shared = p0 + 16 * s + 16 <= t.pos0;
#pragma unroll 1
        for (int row = 0; row < (shared ? 1 : t.rows); row++) {
            float y[N][4];
#pragma unroll
            for (int k = 0; k < N; k++)
#pragma unroll
                for (int e = 0; e < 4; e++) y[k][e] = acc[k][e];
            weigh_step<BF16, N>(y, weights + s * 64,
                                key_at<PITCH>(a, t, row, values, p0, 16 * s + i, true) + at_col);
#pragma unroll
            for (int k = 0; k < N; k++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (shared || own[e / 2] == row) acc[k][e] = y[k][e];
        }
    }
}
