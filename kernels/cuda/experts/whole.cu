/* experts/whole.cu - the mixture of one row in a single launch: router, choice, gate and up, down; and with
 * it, where they fit, the product before (that of attention's or a delta net's outputs) and those behind (of
 * the next layer).
 *
 * Grid: one block a multiprocessor, all of them resident, so that blocks may wait for each other. What one
 * makes and others read passes without flags: logits as words {value, tag} (tagged.cuh), h and the row as
 * words that stand for themselves, in one of two sets (experts/whole.cuh). The first block, which has seen h
 * of all others, leaves the tag and the set behind.
 *
 * A block: in turn
 *   router   two rows of the router's matrix (its weights in registers before the wait), and every block
 * rounds the row for itself; choice   every block's own, by one more warp, which then asks for all that the
 * block will read of gate and up, and, when that has come, of down: each has a place of its own in shared
 * memory (the shared expert's were asked for at the start); gate and up  of `pairs` panels (16 columns of one
 * expert's h), a warp two units at a time; down     h of all experts is read and rounded; 16 outputs of all
 * experts, added up here. Bound: the bytes of the chosen experts, once, and what the steps' latencies add.
 * Code runs once: it is kept short.
 *
 * The bits are those of the kernels for more rows: logits (experts/router.cu), rounding (prep.cuh), the order
 * of all float sums (experts/kernel.cuh).
 *
 * Wins over three launches: a mixture of 35B-A3B 26.0 to 12.9 us, one row. dflash-bench rows -m
 * 35b-a3b-q4_k_m.gguf --device cuda --rows 1 --context 512 */
#include "../chain/chain.cuh"
#include "around.cuh"

#include <stdlib.h>

/* SMALL: down's units are of 32 columns. FIVE: there may be Q5_K. P: what stands around it. Kernels of their
 * own, for what is not run is in the way of what is. */
template <bool SMALL, bool FIVE, enum whole_place P>
static __global__ void __launch_bounds__(32 * (WARPS + 1), 1)
    whole_kernel(const __grid_constant__ whole_args a)
{
    extern __shared__ __align__(128) uint8_t smem[];
    struct whole_memory *const m = (struct whole_memory *)smem;
    const int block = blockIdx.x;
    const int own =
        (a.route.n_expert + 15) / 16 * 8; /* blocks with rows of the router's matrix, but the shared's */
    const bool routes = block < own || (block == own && a.router[1]), before = has_before<P>(a);
    const int outs = (a.out_panels - block + (int)gridDim.x - 1) / (int)gridDim.x;
    const int panel = block < own ? block / 8 : 0, row = block < own ? block % 8 : 0;
    if (!before) cuda_grid_early();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, adds = (int)threadIdx.x - 32 * (WARPS - 8);
    if (warp == WARPS) {
        if (lane == 0) {
#pragma unroll 1
            for (int i = 0; i < PAIRS_MOST + SLOTS_MOST + 1 + BEHIND_MOST; i++) bar_init(m->pair + i);
            bar_fence();
            before_ask<P>(a, m, smem);
        }
        __syncwarp();
        if (before) {
            warps_meet(0, WARPS + 1);
            cuda_grid_early(); /* the next mixture's blocks come behind this one's tickets */
        }
        whole_choose<P>(a, m, smem);
    } else {
        if (before) {
            if (warp < a.units && routes) ask_router(a, block != own || !a.router[1], panel, row);
            if (is_handed<P>(a) && threadIdx.x == 32 * (WARPS - 1)) whole_turn(a, m);
            warps_meet(0, WARPS + 1); /* barriers are there */
            cuda_grid_early();
            whole_product_before<FIVE, P>(a, m, smem);
        }
        if (warp < a.units)
            whole_router<P>(a, m, block != own || !a.router[1], routes, panel, row);
        else if (warp < 2 * a.units)
            whole_row<P>(a, m, smem + a.at_act);
        else if (!before)
            cuda_grid_wait();
        if (!before) whole_old<P>(a, m, adds);
        warps_meet(0, WARPS + 1);
        if (before) whole_old<P>(a, m, adds);
        if (adds >= 0) whole_clear(a, m, adds, 256);
        if (SMALL) whole_soon<FIVE>(a, smem);
        whole_gated<FIVE>(a, m, smem);
        whole_down<SMALL, FIVE>(a, m, smem, outs);
    }
    if (warp < WARPS) warps_meet(0, WARPS + 1);
    if (adds >= 0 && warp < WARPS) whole_add<P>(a, m, smem, adds, outs);
    if (has_behind<P>(a)) {
        if (warp == WARPS) {
            warps_meet(4, WARPS + 1); /* down's weights are done with */
            behind_ask(a, m, smem, a.behind.early, a.behind.per);
        } else {
            warps_arrive(4, WARPS + 1);
            whole_products_behind<FIVE>(a, m, smem);
        }
    }
    if (block == 0 && threadIdx.x == 0)
        __stcg((uint2 *)a.tag, make_uint2(m->tag, m->words == a.words ? 0 : 1));
}

typedef void (*whole_fn)(const whole_args);
template <bool SMALL, bool FIVE> static whole_fn kernel_at(enum whole_place p)
{
    return p == ALONE    ? whole_kernel<SMALL, FIVE, ALONE>
           : p == AROUND ? whole_kernel<SMALL, FIVE, AROUND>
                         : whole_kernel<SMALL, FIVE, ANY>;
}
static whole_fn kernel_of(bool small, bool five, enum whole_place p)
{
    return small  ? five ? kernel_at<true, true>(p) : kernel_at<true, false>(p)
            : five ? kernel_at<false, true>(p)
                  : kernel_at<false, false>(p);
}
/* Is any of the weights Q5_K? */
static bool has_five(const struct whole_args *a)
{
    bool five = a->before.w && a->before.type == KN_Q5_K;
    for (int i = 0; i < 2; i++) five |= a->type[i] == KN_Q5_K || a->down_type[i] == KN_Q5_K;
    for (int j = 0; j < KN_MATRICES; j++) five |= a->behind.panels && a->behind.type[j] == KN_Q5_K;
    return five;
}

/* ---- launching ---- */

/* A launch that waits for what comes behind it. */
struct experts_waiting {
    struct whole_args a;
    unsigned grid;
    size_t smem;
    uint32_t terms;  /* bytes of shared memory that there are for terms */
    uint64_t handed; /* the newest launch that handed its row over: experts/hand.cuh */
};

static uint4 *row_words(const struct cuda_backend *be)
{
    return (uint4 *)((uint8_t *)be->experts_tag + EXPERTS_VALUES_BYTES + EXPERTS_WORDS_BYTES);
}
/* Far apart for launches that are not. */
static unsigned salt_of(uint64_t launch)
{
    return (unsigned)launch * 2654435761u;
}

struct experts_hand experts_hand(const struct cuda_backend *be, int64_t n_in)
{
    if (!be->waiting || n_in < 256 || n_in % 256 || n_in > 256 * HAND_UNITS) return {};
    return {row_words(be), be->experts_tag, salt_of(be->launches + 1)};
}
void experts_handed(struct cuda_backend *be)
{
    if (be->waiting) be->waiting->handed = be->launches;
}

int experts_whole_open(struct cuda_backend *be)
{
    if (!be->waiting) be->waiting = (struct experts_waiting *)calloc(1, sizeof *be->waiting);
    if (!be->waiting)
        return cuda_fail(be, KN_EMEM, "mixtures: out of memory (%zu bytes)", sizeof *be->waiting);
    const cudaFuncAttribute what = cudaFuncAttributeMaxDynamicSharedMemorySize;
    cudaError_t err = cudaSuccess;
    for (int i = 0; i < 12 && !err; i++)
        err = cudaFuncSetAttribute(kernel_of(i & 1, i & 2, (enum whole_place)(i / 4)), what, be->smem_block);
    return cuda_check(be, "kernels of experts", err);
}

void experts_whole_close(struct cuda_backend *be)
{
    free(be->waiting);
    be->waiting = nullptr;
    be->waits = false;
}

static bool takes(const struct kn_weight *w)
{
    return w->type == KN_Q4_K || w->type == KN_Q5_K || w->type == KN_Q6_K;
}

static bool takes_small(const struct kn_weight *w)
{
    return product_type_of(w->type) && product_type_of(w->type)->act == MM_ACT_32;
}

/* Weights and sizes of m, or false: they are not for this kernel. */
static bool whole_weights(const struct kn_mixture *m, struct whole_args *a)
{
    const struct kn_weight *const own[2][3] = {{m->gate, m->up, m->down},
                                               {m->shared[0], m->shared[1], m->shared[2]}};
    const int64_t n_in = m->gate->n_in, ff = m->gate->n_out, n_out = m->down->n_out;
    const bool small = takes_small(m->down);
    if (m->up->n_in != n_in || m->up->n_out != ff || m->down->n_in != ff || m->up->n_mat != m->gate->n_mat ||
        m->down->n_mat != m->gate->n_mat || (small && m->shared[0]) || m->up->n_host != m->gate->n_host ||
        m->down->n_host != m->gate->n_host)
        return false;
    for (int j = 0; j < 3; j++) a->host[j] = (const uint8_t *)own[0][j]->host;
    a->places = m->gate->places;
    for (int s = 0; s < (m->shared[0] ? 2 : 1); s++) {
        for (int j = 0; j < 3; j++)
            if (!takes(own[s][j]) && (j < 2 || !small)) return false;
        if (own[s][0]->type != own[s][1]->type) return false;
        a->gate[s] = (const uint8_t *)own[s][0]->packed;
        a->up[s] = (const uint8_t *)own[s][1]->packed;
        a->down[s] = (const uint8_t *)own[s][2]->packed;
        a->type[s] = own[s][0]->type;
        a->bytes[s] = product_type_of(a->type[s])->unit_bytes;
        a->down_type[s] = own[s][2]->type;
        a->down_bytes[s] = product_type_of(a->down_type[s])->unit_bytes;
    }
    if (n_in % 256 || n_in > 256 * ROW_UNITS || ff % (small ? 64 : 256) || ff > EXPERTS_WHOLE_FF ||
        n_out > 1 << 20)
        return false;
    a->small = small;
    a->units = (int32_t)(n_in / 256);
    a->slice_units = (a->units + 3) / 4; /* as cut_slices in experts_plan.c; h is one slice */
    a->ff = (int32_t)ff;
    a->h_units = (int32_t)(ff / (small ? 32 : 256));
    a->h_blocks = (int32_t)((ff + 255) / 256);
    a->h_terms = small ? 1 : a->h_units;
    a->h_row = small ? mm_slice_row(MM_ACT_32, a->h_units) : UNIT_ACT * a->h_units;
    a->h_panels = (int32_t)(ff / 16);
    a->out_panels = (int32_t)((n_out + 15) / 16);
    a->n_out = (int32_t)n_out;
    a->per_units = (1u << 20) / (uint32_t)a->units + 1;
    a->per_panels = (1u << 20) / (uint32_t)a->h_panels + 1;
    a->per_cuts = (1u << 20) / (uint32_t)((a->units + 1) / 2) + 1;
    return true;
}

/* A place for a second panel of the product before, `weights` bytes, where the first pairs of gate and up
 * will be, or behind everything. With none every block has the panel of its number. */
static void place_second(const struct cuda_backend *be, bool shared, struct experts_waiting *l,
                         size_t weights)
{
    struct whole_args *a = &l->a;
    const int32_t grid = (int32_t)l->grid, own = (a->slots - 1) * a->h_panels - (grid - 1);
    int32_t first =
        shared ? (own > 0 ? (own + grid - 1) / grid : 0) : a->per; /* pair that may be asked for early */
    if (first > a->per) first = a->per;
    const int32_t least = grid - a->out_panels, most = grid - (a->out_panels + 1) / 2;
    a->before.late = BEFORE_LATE < least ? least : BEFORE_LATE < most ? BEFORE_LATE : most;
    a->before.at_more = a->at_pair;
    if (weights <= 2 * (size_t)(first * a->units * a->bytes[0])) return;
    a->before.at_more = (uint32_t)((l->smem + 127) / 128 * 128);
    if (a->before.at_more + weights <= (size_t)be->smem_block)
        l->smem = a->before.at_more + weights;
    else
        a->before.late = 0; /* block i has panel i */
}

/* Places in shared memory; false: there is no room. */
static bool lay_out(const struct cuda_backend *be, bool shared, struct experts_waiting *l)
{
    struct whole_args *a = &l->a;
    const size_t bytes = (size_t)(a->bytes[0] > a->bytes[1] ? a->bytes[0] : a->bytes[1]),
                 down = (size_t)(a->down_bytes[0] > a->down_bytes[1] ? a->down_bytes[0] : a->down_bytes[1]),
                 tiles = (size_t)(a->outs * a->slots * a->h_units), pairs = 2 * (size_t)(a->per * a->units),
                 sums = (size_t)(a->outs * a->slots * a->h_terms),
                 before = a->before.w ? (size_t)a->before.units : 0,
                 weights = before * (size_t)a->before.bytes;
    size_t terms = pairs > sums ? pairs : sums, h = (size_t)(a->slots * a->h_row);
    /* The shared expert's weights of down are there from the start, behind the others'. */
    if (before && (a->over || (shared && weights > (size_t)((a->slots - 1) * a->h_units) * down)))
        return false;
    if (2 * before > terms) terms = 2 * before; /* of two panels */
    if (before * UNIT_ACT > h) h = before * UNIT_ACT;
    l->terms = (uint32_t)(128 * terms);
    a->at_act = (uint32_t)WHOLE_HEAD;
    a->at_h = a->at_act + UNIT_ACT * (uint32_t)a->units;
    a->at_terms = (uint32_t)(a->at_h + h);
    a->at_pair = (uint32_t)((a->at_terms + 128 * terms + 127) / 128 * 128);
    a->at_down = (uint32_t)((a->at_pair + pairs * bytes + 127) / 128 * 128);
    l->smem = a->at_down + (tiles * down > weights ? tiles * down : weights);
    if (a->over || (l->smem > (size_t)be->smem_block && !shared && !before)) {
        a->over = 1;
        a->at_down = a->at_pair;
        l->smem = a->at_pair + (pairs * bytes > tiles * down ? pairs * bytes : tiles * down);
    }
    if (before && weights) place_second(be, shared, l, weights);
    return l->smem <= (size_t)be->smem_block;
}

/* How m is run, or false: it does not fit. */
static bool whole_plan(const struct cuda_backend *be, const struct kn_mixture *m, struct experts_waiting *l)
{
    struct whole_args *a = &l->a;
    const int32_t slots = m->route.n_used + (m->shared[0] ? 1 : 0);
    if (!whole_weights(m, a) || slots > SLOTS_MOST || m->route.n_expert > CHOICE ||
        ((uintptr_t)m->x | (uintptr_t)m->norm | (uintptr_t)m->router_norm) % 16)
        return false;
    a->slots = slots;
    a->pairs = slots * a->h_panels;
    l->grid = (unsigned)(be->sm_count < a->pairs ? be->sm_count : a->pairs);
    a->per = (a->pairs + (int32_t)l->grid - 1) / (int32_t)l->grid;
    a->outs = (a->out_panels + (int32_t)l->grid - 1) / (int32_t)l->grid;
    if ((m->route.n_expert + 15) / 16 * 8 + 1 > (int32_t)l->grid || a->per > PAIRS_MOST ||
        a->outs > PANELS_MOST)
        return false;
    return lay_out(be, m->shared[0] != nullptr, l);
}

/* The product that waits, if it is out += W row with out the mixture's x and to be added to, of a row that
 * lies rounded in memory: into the mixture's launch. Whatever waits else is launched. */
static int take_before(struct cuda_backend *be, const struct kn_mixture *m, struct experts_waiting *l)
{
    struct chain_product p;
    struct mm_prep prep;
    enum mm_act act;
    const bool may = !(experts_tuning.apart & 1) && m->route.n == 1 && m->add && m->x == m->out &&
                     l->a.outs == 1 && l->a.n_out == 256 * l->a.units && chain_last(be, m->x, &p) &&
                     takes(p.w[0]) && p.w[0]->n_out == l->a.n_out && p.w[0]->n_in % 256 == 0 &&
                     p.w[0]->n_in <= 256 * BEFORE_UNITS;
    if (!may) return cuda_flush(be);
    const int rc = chain_drop_last(be);
    if (rc) return rc;
    if (!mm_preparing(be, p.w[0], 1, &prep, &act) || act != MM_ACT_K ||
        !mm_is_prepared(be, p.x, nullptr, 1, &prep, act))
        return chain_alone(be, &p);
    struct experts_waiting with = *l;
    const bool handed = l->handed == be->launches && prep.units <= HAND_UNITS;
    with.a.before = {(const uint8_t *)p.w[0]->packed,
                     prep.rows,
                     p.w[0]->type,
                     handed ? row_words(be) : nullptr,
                     product_type_of(p.w[0]->type)->unit_bytes,
                     prep.units,
                     prep.slice_units,
                     prep.slice_row,
                     salt_of(be->launches),
                     0,
                     0};
    if (!lay_out(be, m->shared[0] != nullptr, &with)) return chain_alone(be, &p);
    *l = with;
    return 0;
}

int experts_flush(const struct cuda_backend *be)
{
    struct cuda_backend *b = const_cast<struct cuda_backend *>(be);
    if (!be->waits) return 0;
    be->waits = false; /* the launch must not come here again */
    const struct experts_waiting *l = be->waiting;
    const bool before = l->a.before.w, behind = l->a.behind.panels;
    const enum whole_place p = !before && !behind ? ALONE : l->a.before.hand && behind ? AROUND : ANY;
    cuda_count(be, before || behind ? CUDA_EXPERTS_AROUND : CUDA_EXPERTS_WHOLE);
    return cuda_check(b, "mixture",
                      cuda_launch(be, kernel_of(l->a.small, has_five(&l->a), p), dim3(l->grid),
                                  dim3(32 * (WARPS + 1)), l->smem, l->a));
}

bool experts_tap(struct cuda_backend *be, float *to, const float *x, int64_t width)
{
    if (!be->waits) return false;
    struct whole_args *a = &be->waiting->a;
    if (a->out != x || a->n_out != width || a->tap || a->behind.panels) return false;
    a->tap = to;
    return true;
}

int experts_then(struct cuda_backend *be, const struct chain_product *p)
{
    if (!be->waits || (experts_tuning.apart & 2) || be->waiting->a.behind.panels) return 0;
    struct experts_waiting *l = be->waiting;
    struct whole_args *a = &l->a;
    struct whole_behind b = {};
    const int32_t units = a->units;
    if (p->x != a->out || !p->norm || (uintptr_t)p->norm % 16 || p->add || p->gated ||
        a->n_out != 256 * units || p->w[0]->n_in != 256 * units)
        return 0;
    int32_t slices, widest = 0;
    product_slices(product_type_of(p->w[0]->type), 256 * units, &b.slice_units, &slices);
    for (int32_t j = 0; j < p->n_w; j++) {
        const struct kn_weight *w = p->w[j];
        if (!takes(w) || w->n_in != 256 * units || w->n_out > 1 << 20) return 0;
        b.w[j] = (const uint8_t *)w->packed;
        b.out[j] = p->out[j];
        b.n_out[j] = (int32_t)w->n_out;
        b.type[j] = w->type;
        b.bytes[j] = product_type_of(w->type)->unit_bytes;
        if (b.bytes[j] > widest) widest = b.bytes[j];
        b.panel_end[j] = b.panels += (int32_t)((w->n_out + 15) / 16);
    }
    b.norm = p->norm;
    b.eps = p->eps;
    b.slot = (uint32_t)(units * widest);
    b.per = (b.panels + (int32_t)l->grid - 1) / (int32_t)l->grid;
    const size_t end = a->at_pair + (size_t)b.per * b.slot;
    if (b.per > BEHIND_MOST || 128u * (uint32_t)(b.per * units) > l->terms || end > (size_t)be->smem_block)
        return 0;
    b.early = a->over ? 0 : (int32_t)((a->at_down - a->at_pair) / b.slot);
    if (b.early > b.per) b.early = b.per;
    if (end > l->smem) l->smem = end;
    a->behind = b;
    return 1;
}

/* A row: launched with what comes behind it, or when anything else is. */
static int launch_row(struct cuda_backend *be, const struct kn_mixture *m, bool *done)
{
    struct experts_waiting l = {};
    struct whole_args &a = l.a;
    l.handed = be->waiting->handed;
    *done = false;
    if (!product_type_of(m->gate->type) || !experts_router_fits(be, m, product_type_of(m->gate->type)->act) ||
        !whole_plan(be, m, &l))
        return 0;
    *done = true;
    a.router[0] = (const uint8_t *)m->router->packed;
    a.router[1] = m->shared_gate ? (const uint8_t *)m->shared_gate->packed : nullptr;
    a.x = m->x;
    a.norm = m->norm;
    a.router_norm = m->router_norm;
    a.eps = m->eps;
    a.route = m->route;
    a.logits = m->logits;
    a.shared_logits = m->shared_logits;
    a.h = m->h;
    a.out = m->out;
    a.values = be->experts_values;
    a.words = (uint32_t *)(be->experts_values + EXPERTS_WHOLE_VALUES + EXPERTS_ROUTER_VALUES);
    a.tag = be->experts_tag;
    a.act = (int32_t)m->act;
    a.add = m->add;
    const int rc = take_before(be, m, &l);
    if (rc) return rc;
    *be->waiting = l;
    be->waits = true;
    return 0;
}

int experts_whole(struct cuda_backend *be, const struct kn_mixture *m, bool *done)
{
    const int32_t used = m->route.n_used + (m->shared[0] ? 1 : 0);
    int rc = 0;
    *done = false;
    if (m->route.n > experts_tuning.whole || !m->router) return 0;
    for (int32_t i = 0; i < m->route.n && rc == 0 && (i == 0 || *done); i++) {
        struct kn_mixture row = experts_rows_of(m, i, 1, used);
        row.h += (int64_t)i * used * m->gate->n_out;
        row.out += i * m->down->n_out;
        rc = launch_row(be, &row, done);
    }
    return rc;
}
