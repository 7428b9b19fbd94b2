/* chain.cu - operations on one row, collected into chains (chain.cuh). */
#include "chain.cuh"
#include "code_share.h"
#include "../core/ops.cuh"

#include <string.h>

static const struct chain_step *newest(const struct cuda_backend *be)
{
    return be->chain_steps ? &be->chain->step[be->chain_steps - 1] : nullptr;
}

/* The product whose step, or last of several, is the newest; NULL: the newest is none. */
static const struct chain_product *newest_product(const struct cuda_backend *be)
{
    const struct chain_step *last = newest(be);
    return last && last->n_m ? &be->chain->op[be->chain_steps - 1].product : nullptr;
}
/* The newest step's outputs, and those of its product's other steps, are read by the next one. */
static void pass_on(const struct cuda_backend *be, struct chain_state *c)
{
    int32_t i = be->chain_steps - 1;
    c->step[i].pass_on = 1;
    while (c->op[i].part && !c->op[i].head) c->step[--i].pass_on = 1;
}

/* Does the product read what the newest step writes? */
static bool reads(const struct cuda_backend *be, const struct chain_product *p)
{
    const struct chain_step *last = newest(be);
    if (!last || be->chain->op[be->chain_steps - 1].part) return false;
    if (last->n_m == 0) return last->attn == p->x && (int64_t)last->n_head * last->head == p->w[0]->n_in;
    return (last->n_m == 1 || last->gated) && last->m[0].out == p->x && last->m[0].n_out == p->w[0]->n_in;
}

/* The operation of step i, of which nothing is said yet. */
static struct chain_op *new_op(struct chain_state *c, int32_t i)
{
    struct chain_op *op = &c->op[i];
    op->attend = op->net = op->head = op->part = false;
    op->post = {};
    op->tap = nullptr;
    return op;
}

/* s adds to the newest outputs there that a step has, which are still its block's: nobody needs them in
 * memory, but a tap, whose place they take. */
static void keep_old(struct chain_state *c, int32_t steps, struct chain_step *s)
{
    for (int32_t i = steps - 1; s->old && i >= 0; i--)
        if (c->step[i].n_m == 1 && c->step[i].m[0].out == s->old && c->step[i].m[0].n_out == s->m[0].n_out) {
            c->step[i].keep = s->kept = 1;
            c->step[i].m[0].out = c->op[i].tap;
            if (c->op[i].tap) c->tapped = nullptr;
            break;
        }
}
/* The first of a chain comes. x: its row. */
static void begin(const struct cuda_backend *be, struct chain_state *c, const float *x)
{
    c->attends = c->items = c->wide = c->nets = c->coded = false;
    c->gemma = false;
    c->post = -1;
    c->parts = 0;
    c->tapped = nullptr;
    c->rounded = x && be->ready.x == x && be->ready.n == 1 && be->ready.launch == be->launches;
}
/* Is it the product that the norm_add is promised to? Then that is the first thing it does. */
static bool link_post(struct chain_state *c, struct chain_step *last, const struct chain_product *p,
                      struct chain_step *s)
{
    const struct chain_add_op *o = &c->waits;
    struct chain_step *before = c->post < 0 ? nullptr : &c->step[c->post];
    if (c->nets || c->rounded || p->gate || chain_is_other(s) || s->old || p->x != o->add.out ||
        p->norm != o->norm || p->w[0] != o->w || p->eps != o->add.eps || p->w[0]->n_in != o->width ||
        (before && before->post_out != o->add.x))
        return false;
    for (int32_t j = 0; j < p->n_w; j++)
        if (p->out[j] == o->add.x) return false;
    for (struct chain_step *i = c->step; i <= last; i++)
        if (i->n_m && (chain_is_other(i) || i->old)) return false;
    s->post = o->add.weight, s->post_eps = o->add.eps, s->post_scale = o->add.scale;
    s->post_out = o->add.out;
    s->post_x = before ? nullptr : o->add.x;
    if (before) before->post_out = c->op[c->post].post.tap;
    return true;
}

/* A product too wide for a step (a head), behind a chain that fills the device: as many steps as its terms
 * want, which all read the same row. Each has the same number of pairs for every block, but the last, and no
 * block waits for another between them. Returns as chain_add; it is the last of its chain. */
static int add_wide(struct cuda_backend *be, const struct chain_product *p)
{
    struct chain_state *c = be->chain;
    const struct kn_weight *w = p->w[0];
    const struct mm_type *t = product_type_of(w->type);
    int32_t most = 0, count = be->chain_steps;
    for (int32_t i = 0; i < count; i++)
        if (c->step[i].pass_on && c->step[i].pairs > most) most = c->step[i].pairs;
    if (count < CHAIN_LEAST || w->n_in > chain_tuning.head_columns || most < be->sm_count || p->n_w != 1 ||
        p->add || p->gate || c->rounded || c->nets || c->gemma || c->waits.add.y || !t || !reads(be, p))
        return cuda_flush(be);
    const struct cuda_device dev = cuda_device_of(be);
    struct kn_weight part_w = *w;
    struct chain_product part = *p;
    struct chain_step s;
    int64_t rows = 0;
    part.w[0] = &part_w;
    for (int64_t pairs = 1; pairs <= 64; pairs++) { /* of a block */
        part_w.n_out = 32 * pairs * be->sm_count;
        if (part_w.n_out > w->n_out + 32 * be->sm_count || !chain_step_of(&dev, &part, &s) ||
            (pairs > 1 && 2 * (int64_t)s.terms * pairs > chain_tuning.head))
            break;
        rows = part_w.n_out;
    }
    if (!rows || count + (w->n_out + rows - 1) / rows > CHAIN_STEPS) return cuda_flush(be);
    c->step[count - 1].pass_on = 1;
    for (int64_t first = 0; first < w->n_out; first += rows) {
        struct chain_op *op = new_op(c, be->chain_steps);
        op->product = *p;
        op->head = true, op->part = first > 0;
        part_w.packed = (uint8_t *)w->packed + first / 16 * mm_panel_bytes(t, w->n_in);
        part_w.n_out = w->n_out - first < rows ? w->n_out - first : rows;
        part.out[0] = p->out[0] + first;
        if (!chain_step_of(&dev, &part, &s))
            return cuda_fail(be, KN_EINVAL, "%s: a part that is no step", p->name);
        s.again = first > 0;
        c->step[be->chain_steps++] = s;
    }
    return 1;
}

/* Would the product write over what a tap is still to be taken of? (Where it adds to that, the tap has it.)
 */
static bool over_tapped(const struct chain_state *c, const struct chain_product *p)
{
    bool over = false;
    for (int32_t j = 0; j < p->n_w && c->tapped; j++) over |= !p->add && p->out[j] == c->tapped;
    return over;
}

static bool is_mixed(const struct chain_product *p)
{
    const struct mm_type *t = product_type_of(p->w[0]->type);
    for (int32_t j = 1; j < p->n_w; j++)
        if (t && product_type_of(p->w[j]->type) && product_type_of(p->w[j]->type)->act != t->act) return true;
    return false;
}
/* A product of matrices that want several kinds of activations: a step a kind, which read the same row. */
static int add_mixed(struct cuda_backend *be, const struct chain_product *p)
{
    const struct cuda_device dev = cuda_device_of(be);
    struct chain_state *c = be->chain;
    struct chain_step s[CHAIN_MATRICES];
    bool taken[CHAIN_MATRICES] = {};
    int32_t n = 0;
    for (int32_t j = 0; j < p->n_w; j++)
        if (!taken[j] && !chain_part_of(&dev, p, j, taken, &s[n++])) return cuda_flush(be);
    if (p->add || p->gated || p->gate) return cuda_flush(be);
    if (newest(be) && be->chain_steps + n <= CHAIN_STEPS && !over_tapped(c, p) && !c->waits.add.y &&
        !c->rounded && !c->gemma && reads(be, p)) {
        pass_on(be, c);
    } else {
        const int rc = cuda_flush(be);
        if (rc) return rc;
        begin(be, c, p->x);
    }
    c->items = true;
    for (int32_t i = 0; i < n; i++) {
        struct chain_op *op = new_op(c, be->chain_steps);
        op->product = *p, op->part = i > 0;
        s[i].again = i > 0;
        c->wide |= s[i].kind == CHAIN_K && s[i].norm && s[i].units > CHAIN_NORM_BLOCKS * CHAIN_WARPS;
        c->step[be->chain_steps++] = s[i];
    }
    return 1;
}

int chain_add(struct cuda_backend *be, const struct chain_product *p)
{
    const struct cuda_device dev = cuda_device_of(be);
    struct chain_state *c = be->chain;
    struct chain_step s;
    if (!c) return 0;
    if (chain_tuning.off) return cuda_flush(be);
    if (is_mixed(p)) return add_mixed(be, p);
    if (!chain_step_of(&dev, p, &s) || (p->gate && s.kind != CHAIN_K)) return add_wide(be, p);
    struct chain_step *last = (struct chain_step *)newest(be);
    bool linked = false;
    if (last && over_tapped(c, p))
        linked = false;
    else if (last && c->waits.add.y)
        linked = be->chain_steps < CHAIN_STEPS && link_post(c, last, p, &s);
    else if (be->chain_steps < CHAIN_STEPS && !c->rounded && !(c->gemma && chain_is_other(&s)) &&
             !(c->post >= 0 && s.old))
        linked = !p->gate && reads(be, p);
    if (!linked) {
        const int rc = cuda_flush(be);
        if (rc) return rc;
        begin(be, c, p->x);
    } else {
        pass_on(be, c);
        keep_old(c, be->chain_steps, &s);
    }
    if (p->gate) s.d.what = CHAIN_GATED_ROW, s.d.gate = p->gate, c->nets = true;
    c->items |= chain_is_other(&s);
    c->wide |= s.kind == CHAIN_K && s.norm && s.units > CHAIN_NORM_BLOCKS * CHAIN_WARPS;
    c->step[be->chain_steps] = s;
    struct chain_op *op = new_op(c, be->chain_steps++);
    op->product = *p;
    op->post = c->waits;
    if (c->waits.add.y) {
        c->post = be->chain_steps - 1;
        c->gemma = true;
        c->waits = {};
    }
    return 1;
}

/* How a norm_add is launched by itself where what it is promised to is known (mm_norm_add): with those bits.
 */
int chain_norm_add(struct cuda_backend *be, const struct mm_add *add, int64_t width)
{
    struct chain_state *c = be->chain;
    const struct chain_step *last = c ? newest(be) : nullptr;
    const struct kn_weight *w = be->head.next_w;
    const float *norm = be->head.next_norm;
    if (!last) return 0;
    if (chain_tuning.off || !chain_tuning.wide || c->nets || c->rounded || c->waits.add.y || !w || !norm ||
        !add->weight || add->out != add->x || c->tapped == add->out || c->items || last->n_m != 1 ||
        last->gated || last->old || last->m[0].out != add->y || last->m[0].n_out != width ||
        last->kind != CHAIN_K || width % 256 || width > CHAIN_POST_WIDTH || w->n_in != width ||
        ((uintptr_t)add->x | (uintptr_t)add->weight | (uintptr_t)norm) & 15)
        return cuda_flush(be);
    c->waits = {*add, nullptr, width, w, norm};
    be->head.next_w = nullptr;
    return 1;
}
int chain_tap(struct cuda_backend *be, float *to, const float *x, int64_t width)
{
    struct chain_state *c = be->chain;
    const struct chain_step *last = c ? newest(be) : nullptr;
    struct chain_add_op *waits = last && c->waits.add.y ? &c->waits : nullptr;
    struct chain_op *op = last ? &c->op[be->chain_steps - 1] : nullptr;
    if (!last) return 0;
    if (waits && !waits->tap && waits->add.out == x && waits->width == width && (uintptr_t)to % 16 == 0) {
        waits->tap = to;
        return 1;
    }
    if (waits || op->tap || op->head || op->part || c->tapped || last->n_m != 1 || last->gated ||
        last->m[0].out != x || last->m[0].n_out != width)
        return cuda_flush(be);
    op->tap = to;
    c->tapped = x;
    return 1;
}
/* The step, and the operation in full. */
static struct chain_step *put_attend(struct cuda_backend *be, const struct kn_rope_store *s,
                                     const struct kn_attention *a, size_t parts)
{
    struct chain_state *c = be->chain;
    const struct kn_kv *kv = a->kv;
    const int32_t d = kv->head_dim;
    struct chain_step *t = &c->step[be->chain_steps];
    pass_on(be, c);
    struct chain_op *op = new_op(c, be->chain_steps++);
    *t = {};
    t->k = kv->k, t->v = kv->v, t->pos = a->pos, t->q_norm = s->q_norm, t->k_norm = s->k_norm,
    t->table = s->table;
    t->attn = a->out, t->n_head = a->n_head, t->n_kv = kv->n_head_kv, t->n_rep = a->n_head / kv->n_head_kv,
    t->where = kv_where_of(kv);
    t->turn = s->n_rot / 2, t->scale = a->scale, t->eps = s->eps;
    t->head = d, t->window = a->window, t->v_norm = s->v_norm;
    t->k_from = a->n_head * d, t->v_from = t->k_from + (s->k == s->v ? 0 : t->n_kv) * d;
    if (parts > c->parts) c->parts = parts;
    op->attend = true;
    op->kv = *kv;
    op->store = *s, op->store.kv = &op->kv;
    op->attention = *a, op->attention.kv = &op->kv;
    c->attends = true;
    c->pos = a->pos;
    c->type = kv_form(kv->type);
    t->m[0].type = kv->type.k, t->m[1].type = kv->type.v;
    return t;
}
/* Positions that a row may see, however often what is collected is replayed. */
static int32_t bound_of(const struct cuda_backend *be, const struct kn_kv *kv)
{
    return be->head.kv_bound && be->head.kv_bound < kn_kv_positions(kv) ? be->head.kv_bound
                                                                        : kn_kv_positions(kv);
}

/* Windows and heads that chain/wide.cuh alone has. */
static int attend_wide(struct cuda_backend *be, const struct kn_rope_store *s, const struct kn_attention *a,
                       const struct chain_step *last)
{
    struct chain_state *c = be->chain;
    const struct kn_kv *kv = a->kv;
    const int32_t d = kv->head_dim, n_kv = kv->n_head_kv, n_rep = a->n_head / n_kv, half = s->n_rot / 2,
                  bound = bound_of(be, kv), leaf = d == 512 ? 32 : 64,
                  window = a->window && a->window < bound ? a->window : 0,
                  keys = window ? window : bound, /* that are seen, at most */
        leaves = (keys - 1) / leaf + 1 + (window ? 1 : 0);
    const bool same = s->k == s->v;
    const bool fits = !chain_tuning.off && chain_tuning.wide && be->chain_steps < CHAIN_STEPS && a->causal &&
                      !a->first && (d == 128 || d == 256 || d == 512) && kv_halves(kv_form(kv->type)) &&
                      kn_kv_positions(kv) >= keys && n_rep <= 16 &&
                      keys <= (window                     ? 6 * 512
                               : chain_tuning.near < 4096 ? chain_tuning.near
                                                          : 4096) &&
                      !s->interleaved && (half == d / 2 || half == 32 || half == 0) &&
                      (!c->attends || (c->type == kv_form(kv->type) && !c->far && c->pos == a->pos));
    const bool linked = !last->gated && last->kind == CHAIN_K && last->n_m == (same ? 2 : 3) &&
                        last->m[0].out == s->q && last->m[1].out == s->k &&
                        last->m[0].n_out == a->n_head * d && last->m[1].n_out == n_kv * d &&
                        (same || (last->m[2].out == s->v && last->m[2].n_out == n_kv * d));
    if (!fits || !linked || c->items || c->nets || c->rounded) return cuda_flush(be);
    (void)put_attend(be, s, a,
                     ((size_t)leaves * (size_t)a->n_head * (size_t)(d + 2) - 1) / (CHAIN_HEAD + 2) + 1);
    c->far = false;
    c->gemma = true;
    return 1;
}

int chain_attend(struct cuda_backend *be, const struct kn_rope_store *s, const struct kn_attention *a)
{
    struct chain_state *c = be->chain;
    struct chain_step *last = c ? (struct chain_step *)newest(be) : nullptr;
    const struct kn_kv *kv = a->kv;
    if (!last) return 0;
    if (a->n != 1 || c->waits.add.y || a->gate || a->n_head % kv->n_head_kv) return cuda_flush(be);
    if (a->window || kv->head_dim != CHAIN_HEAD || s->v_norm || s->k == s->v)
        return attend_wide(be, s, a, last);
    const int32_t n_kv = kv->n_head_kv, bound = bound_of(be, kv);
    const bool coded = kn_kv_coded(kv->type.k) && kn_kv_coded(kv->type.v);
    const bool late = c->items || c->wide, /* no pairs that all share: longer contexts pay */
        far = coded || bound > (late ? chain_tuning.near : chain_tuning.k_near) || (c->attends && c->far);
    const int32_t leaves = (bound - 1) / 64 + 1,
                  nodes =
                      coded ? 1 + code_places(bound, cuda_device_of(be).sm_count, n_kv) /* and of new rows */
                            : (bound - 1) / 512 + 1,
                  parts = (far ? nodes : leaves) * a->n_head;
    const bool fits =
        !chain_tuning.off && be->chain_steps < CHAIN_STEPS && a->n == 1 && a->causal && !a->window &&
        !a->first && kv->head_dim == CHAIN_HEAD && (coded || kv_halves(kv_form(kv->type))) &&
        a->n_head / n_kv <= 16 && bound <= chain_tuning.context &&
        (far ? a->n_head / n_kv <= CHAIN_FAR_HEADS : leaves <= CHAIN_LEAVES && parts <= CHAIN_PARTS) &&
        (!coded || cuda_device_of(be).sm_count * CHAIN_HEADS >= 2 * n_kv) && /* two sets share a head */
        !s->v_norm && !s->interleaved && (s->n_rot == CHAIN_HEAD || s->n_rot == 0) &&
        (!c->attends ||
         (c->type == kv_form(kv->type) && c->far == far && c->coded == coded && c->pos == a->pos)) &&
        !(far && c->gemma);
    const struct chain_product *p = newest_product(be);
    const bool linked = !c->nets && p && p->n_w == 3 && !p->gated && p->out[0] == s->q && p->out[1] == s->k &&
                        p->out[2] == s->v && p->w[0]->n_out == a->n_head * CHAIN_HEAD &&
                        p->w[1]->n_out == n_kv * CHAIN_HEAD && p->w[2]->n_out == n_kv * CHAIN_HEAD;
    if (!fits || !linked) return cuda_flush(be);
    struct chain_step *t = put_attend(be, s, a, (size_t)parts);
    t->far = c->far = far;
    c->coded = coded;
    t->rounds = leaves;
    return 1;
}

int chain_delta(struct cuda_backend *be, const struct kn_delta *a, float *out, const struct kn_weight *w)
{
    const struct cuda_device dev = cuda_device_of(be);
    struct chain_state *c = be->chain;
    struct chain_step *last = c ? (struct chain_step *)newest(be) : nullptr, s;
    const struct kn_delta_state *y = a->state;
    const struct chain_product p = {"delta_linear", {w},  {out}, 1,           a->out, nullptr,
                                    0.0f,           true, false, KN_ACT_SILU, nullptr};
    const int64_t inner = (int64_t)a->n_v * CHAIN_HEAD, width = 2 * (int64_t)a->n_k * CHAIN_HEAD + inner;
    if (!last) return 0;
    const struct chain_product *q = newest_product(be);
    const bool fits = !chain_tuning.off && be->chain_steps + 2 <= CHAIN_STEPS && a->n == 1 &&
                      a->d_k == CHAIN_HEAD && a->d_v == CHAIN_HEAD && a->n_conv == 4 &&
                      a->n_v / a->n_k <= 32 && !c->rounded && !c->attends && !c->gemma && !c->waits.add.y &&
                      w->n_in == inner && !(a->every && (a->n_k > DELTA_COUNTERS || delta_tuning.apart)) &&
                      !(((uintptr_t)y->s | (uintptr_t)y->conv | (uintptr_t)y->log | (uintptr_t)a->conv |
                         (uintptr_t)a->norm) %
                        16);
    const bool linked = q && q->n_w == 4 && !q->gated && q->out[0] == a->qkv && q->out[1] == a->z &&
                        q->out[2] == a->alpha && q->out[3] == a->beta && q->w[0]->n_out == width &&
                        q->w[1]->n_out == inner && q->w[2]->n_out == a->n_v && q->w[3]->n_out == a->n_v;
    if (!fits || !linked || !chain_step_of(&dev, &p, &s) || s.kind != CHAIN_K) return 0;
    struct chain_step *t = &c->step[be->chain_steps];
    pass_on(be, c);
    c->items |= chain_is_other(&s);
    if (last->kind != CHAIN_K && last->again && last->n_m == 2 && last->m[0].out == a->alpha) {
        last->spread = 1; /* few outputs: a block has slices of them, and the net adds */
        last->pairs *= last->slices;
        last->terms = 128;
        last->m[0].out = last->m[1].out = nullptr;
    }
    *t = {};
    t->n_head = a->n_v, t->pass_on = 1;
    t->d = {CHAIN_STATE,
            a->n_k,
            a->n_v,
            a->commit,
            0,
            4 * (a->n_v / a->n_k),
            0,
            a->every,
            nullptr,
            a->norm,
            y->s,
            y->conv,
            y->log,
            a->conv,
            a->a,
            a->dt,
            a->pending,
            0,
            0};
    s.d = t->d, s.d.what = CHAIN_STATE_ROW, s.eps = a->eps;
    keep_old(c, be->chain_steps, &s);
    c->step[be->chain_steps + 1] = s;
    struct chain_op *op = new_op(c, be->chain_steps);
    new_op(c, be->chain_steps + 1)->product = p;
    op->net = true;
    op->product = p;
    op->delta = *a, op->delta_state = *y, op->delta.state = &op->delta_state;
    be->chain_steps += 2;
    c->nets = true;
    return 1;
}
