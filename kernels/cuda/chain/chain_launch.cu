/* chain_launch.cu - what was collected (chain.cu), launched: as a chain, or one by one; memory of chains. */
#include "chain.cuh"
#include "../core/ops.cuh"

#include <stdlib.h>
#include <string.h>

long chain_launched, chain_heads;
int chain_set_heads;

/* What launches hand on: device memory. */
struct chain_places {
    struct chain_places *next;
    float *values;
    size_t set, room; /* room: partial results */
    uint2 *parts;
    uint2 *sums;
    unsigned *state;
};
/* Of the margin that plans leave: 5 MB, and 17 MB for 32 heads over 262,144 positions (quantised: 22); of 60
 * layers of 5,376 columns 27 MB, and 17 MB for heads of 512 over 4,096 positions. */
static cudaError_t new_places(struct chain_state *c, size_t set, size_t room)
{
    struct chain_places *p = (struct chain_places *)calloc(1, sizeof *p);
    if (c->places && set < c->places->set) set = c->places->set;
    if (c->places && room < c->places->room) room = c->places->room;
    if (room < CHAIN_PARTS) room = CHAIN_PARTS;
    const size_t values = 2 * set * sizeof(float), parts = sizeof(uint2) * room * (CHAIN_HEAD + 2),
                 sums = sizeof(uint2[2][CHAIN_SPLIT_SUMS][32]);
    if (!p) return cudaErrorMemoryAllocation;
    p->set = set;
    p->room = room;
    cudaError_t err = cudaMalloc(&p->values, values + parts + sums + 16);
    if (err) {
        free(p);
        return err;
    }
    p->parts = (uint2 *)(p->values + 2 * set);
    p->sums = (uint2 *)((uint8_t *)p->parts + parts);
    p->state = (unsigned *)((uint8_t *)p->sums + sums);
    err = cudaMemset(p->values, 0xff, values);                  /* CHAIN_NOT_YET */
    if (!err) err = cudaMemset(p->parts, 0, parts + sums + 16); /* no tag is 0, but once in 2^32 */
    if (!err) err = cudaStreamSynchronize(nullptr);
    if (err) {
        cudaFree(p->values);
        free(p);
        return err;
    }
    p->next = c->places;
    c->places = p;
    return cudaSuccess;
}

/* Where maps stand behind so many descriptors. */
static size_t maps_at(int32_t count)
{
    return (sizeof(struct chain_step) * (size_t)count + 127) / 128 * 128;
}

int chain_open(struct cuda_backend *be)
{
    if (be->cc < 90 || be->generic) return 0;
    struct chain_state *c = (struct chain_state *)aligned_alloc(alignof(struct chain_state), sizeof *c);
    if (c) memset((void *)c, 0, sizeof *c);
    if (!c) return cuda_fail(be, KN_EMEM, "chains: out of memory (%zu bytes)", sizeof *c);
    be->chain = c;
    cudaError_t err = chain_k_open(be->smem_block);
    if (!err) err = cudaMalloc(&c->direct, maps_at(CHAIN_STEPS) + sizeof c->map);
    return cuda_check(be, "chains", err);
}

void chain_close(struct cuda_backend *be)
{
    if (!be->chain) return;
    chain_give(be, be->chain->recorded);
    for (struct chain_places *p = be->chain->places, *next; p; p = next) {
        next = p->next;
        cudaFree(p->values);
        free(p);
    }
    cudaFree(be->chain->direct);
    free(be->chain);
    be->chain = nullptr;
    be->chain_steps = 0;
}

struct chain_kept {
    struct chain_kept *next;
    struct chain_step *step; /* device memory */
};
void *chain_take(struct cuda_backend *be)
{
    if (!be->chain) return nullptr;
    void *p = be->chain->recorded;
    be->chain->recorded = nullptr;
    return p;
}
void chain_give(struct cuda_backend *be, void *descriptors)
{
    (void)be;
    for (struct chain_kept *k = (struct chain_kept *)descriptors, *next; k; k = next) {
        next = k->next;
        cudaFree(k->step);
        free(k);
    }
}

/* ---- one by one ---- */

static int norm_add_alone(struct cuda_backend *be, const struct chain_add_op *o)
{
    const struct kn_weight *w = be->head.next_w;
    const float *norm = be->head.next_norm;
    kn_next((struct kn_backend *)be, o->w, o->norm);
    const int rc = cuda_norm_add((struct kn_backend *)be, o->add.out, o->add.x, o->add.y, o->add.weight, 1,
                                 o->width, o->add.eps, o->add.scale);
    kn_next((struct kn_backend *)be, w, norm);
    return rc || !o->tap ? rc : chain_tap_alone(be, o->tap, o->add.out, o->width);
}

static int tap_of(struct cuda_backend *be, const struct chain_op *op)
{
    return chain_tap_alone(be, op->tap, op->product.out[0], op->product.w[0]->n_out);
}
/* Taps of what the launch has left in memory, the newest x. */
static int taps_behind(struct cuda_backend *be, const struct chain_state *c, int32_t count)
{
    int rc = 0;
    for (int32_t i = 0; i < count && rc == 0; i++) {
        const struct chain_op *op = &c->op[i];
        const struct chain_add_op *post = &op->post;
        if (op->tap && c->step[i].m[0].out != op->tap) rc = tap_of(be, op);
        if (rc == 0 && post->tap && c->step[i].post_out != post->tap)
            rc = chain_tap_alone(be, post->tap, post->add.out, post->width);
    }
    return rc;
}

static int go_alone(struct cuda_backend *be, const struct chain_state *c, int32_t count)
{
    int rc = 0;
    cuda_count(be, CUDA_CHAIN_ALONE);
    for (int32_t i = 0; i < count && rc == 0; i++) {
        if (c->op[i].post.add.y) rc = norm_add_alone(be, &c->op[i].post);
        if (rc == 0 && !c->op[i].part)
            rc = c->op[i].net      ? chain_delta_alone(be, &c->op[i].delta, c->op[i].product.w[0])
                 : c->op[i].attend ? chain_attend_alone(be, &c->op[i].store, &c->op[i].attention)
                                   : chain_alone(be, &c->op[i].product);
        if (rc == 0 && c->op[i].tap) rc = tap_of(be, &c->op[i]);
    }
    return rc;
}

bool chain_last(const struct cuda_backend *be, const float *out, struct chain_product *p)
{
    const int32_t last = be->chain_steps - 1;
    if (last < 0 || last > 3 || be->chain->waits.add.y || be->chain->op[last].attend ||
        be->chain->op[last].net || be->chain->op[last].tap)
        return false; /* more may be worth a chain */
    *p = be->chain->op[last].product;
    p->gate = nullptr;
    return p->n_w == 1 && p->add && !p->norm && !p->gated && p->out[0] == out;
}
int chain_drop_last(struct cuda_backend *be)
{
    const int32_t rest = be->chain_steps - 1;
    be->chain_steps = 0;
    const struct chain_product *p = &be->chain->op[rest].product;
    const int rc = go_alone(be, be->chain, rest);
    return rc || !p->gate ? rc : chain_gate_alone(be, p);
}

/* ---- launching ---- */

/* The descriptors to device memory: of a recording's own, since they must be there whenever it is replayed.
 */
static cudaError_t put_steps(const struct cuda_backend *be, struct chain_state *c, int32_t count,
                             struct chain_args *a)
{
    const size_t bytes = sizeof *c->step * (size_t)count, at = maps_at(count),
                 maps = c->attends && c->far && !c->coded ? sizeof *c->map * (size_t)count : 0;
    cudaStreamCaptureStatus status;
    cudaError_t err = cudaStreamIsCapturing(be->stream, &status);
    if (err) return err;
    const bool now = status == cudaStreamCaptureStatusNone;
    uint8_t *to = (uint8_t *)c->direct;
    if (!now) {
        struct chain_kept *k = (struct chain_kept *)calloc(1, sizeof *k);
        if (!k) return cudaErrorMemoryAllocation;
        k->next = (struct chain_kept *)c->recorded;
        c->recorded = k;
        err = cudaMalloc(&k->step, at + maps);
        to = (uint8_t *)k->step;
    }
    a->step = (const struct chain_step *)to;
    a->maps = (const struct chain_map *)(to + at);
    if (now) {
        err = cudaMemcpyAsync(to, c->step, bytes, cudaMemcpyHostToDevice, be->stream);
        if (!err && maps) err = cudaMemcpyAsync(to + at, c->map, maps, cudaMemcpyHostToDevice, be->stream);
        return err;
    }
    if (!err) err = cudaMemcpy(to, c->step, bytes, cudaMemcpyHostToDevice);
    if (!err && maps) err = cudaMemcpy(to + at, c->map, maps, cudaMemcpyHostToDevice);
    return err ? err
               : cudaStreamSynchronize(
                     nullptr); /* a copy from pageable memory may return before it is done */
}

static bool map_rings(struct chain_state *c, const struct chain_step *s)
{
    return kv_map(&c->map[s->map], s->k, c->type, s->n_kv, CHAIN_HEAD, s->where, 16 * s->far) &&
           kv_map(&c->map[s->map + 1], s->v, c->type, s->n_kv, CHAIN_HEAD, s->where, 16 * s->far);
}

static int launch_steps(struct cuda_backend *be, int32_t count)
{
    const struct cuda_device dev = cuda_device_of(be);
    struct chain_state *c = be->chain;
    struct chain_args a = {};
    int blocks = 0;
    if (count < (chain_tuning.least ? chain_tuning.least : CHAIN_LEAST)) return go_alone(be, c, count);
    if (c->gemma || c->nets) chain_newest_outputs(c, count);
    size_t smem = chain_lay_out(&dev, c, count, &a, &blocks);
    const bool far = c->attends && c->far;
    if (smem) smem = chain_lay_out_ring(&dev, c, count, &a, blocks, smem);
    for (int32_t i = 0; i < count && smem && far && !c->coded; i++)
        if (c->step[i].n_m == 0 && !map_rings(c, &c->step[i])) smem = 0;
    if (!smem) return go_alone(be, c, count);
    cudaError_t err = cudaSuccess;
    if (!c->places || c->places->set < a.extent || c->places->room < c->parts)
        err = new_places(c, a.extent, c->parts);
    if (err) return cuda_check(be, "layers of one row", err);
    a.count = count;
    a.values = c->places->values, a.set = c->places->set, a.parts = c->places->parts,
    a.state = c->places->state;
    a.sums = c->places->sums;
    int rc = cuda_check(be, "layers of one row", put_steps(be, c, count, &a));
    if (rc) return rc;
    const bool bf16 = c->attends && kv_bf16(c->type);
    const enum chain_form form = chain_form_of(c, count, &a);
    rc = cuda_check(be, "layers of one row", chain_k_launch(be, &a, bf16, form, blocks, smem));
    if (rc) return rc;
    static_assert(CUDA_CHAIN_FEW + CHAIN_NETS_GRIDS == CUDA_CHAIN_NETS_GRIDS,
                  "forms.h has chain_form's order");
    cuda_count(be, (enum cuda_form)(CUDA_CHAIN_FEW + form));
    chain_launched++;
    chain_heads += c->op[count - 1].part;
    chain_set_heads = 0;
    for (int32_t i = 0; i < count; i++) {
        if (c->op[i].attend) cuda_ring_written(be, c->op[i].kv.k);
        if (c->step[i].n_m == 0 && c->coded) chain_set_heads = c->step[i].far;
    }
    return taps_behind(be, c, count);
}
int chain_flush(const struct cuda_backend *const_be)
{
    struct cuda_backend *be = const_cast<struct cuda_backend *>(const_be);
    const int32_t count = be->chain_steps;
    const struct chain_add_op waits = be->chain->waits;
    be->chain_steps = 0; /* what is launched below must not come here again */
    be->chain->waits = {};
    const int rc = launch_steps(be, count);
    return rc == 0 && waits.add.y ? norm_add_alone(be, &waits) : rc;
}
