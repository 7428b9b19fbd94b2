/* make_relative.c - a relative out of a DFlash drafter: its layers as they are, and what the relative adds
 * small beside the logits. So it proposes nearly what that one does, and tests of cycles, acceptance and
 * states meet proposals that are right and wrong.
 *
 *     dflash2   convolutions near to those that change nothing, and a selector
 *     dspark    a recurrent Markov head and confidences; the anchor's row proposes nothing
 *     domino    the published form; the anchor's row proposes nothing
 *     block     layers as llama.cpp's drafters of Gemma 4 have them, with attention sinks; it drafts badly
 *
 * Of a DSpark drafter with a vanilla Markov head, so that nearly the same is computed in another way:
 *
 *     gated     a gated head whose gate is open
 *     recurrent a recurrent head of which tanh of small numbers is used, and no state
 *
 * usage: make_relative KIND DRAFTER.gguf OUT.gguf     DRAFTER: dialect upstream. The types are those of its
 * file: codebooks as its attn_q (Q4_K: what a token's logits are made of in Q6_K, as the ecosystem's mixes
 * have it), projections too. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/file/gguf.h"

enum {
    KERNEL = 2,
    GROUP = 16,
    RANK = 256,
    HEAD = 128,
    TOP_K = 16,
    MOST_LAYERS = 16,
    MOST = 6 + 4 * MOST_LAYERS
};

struct part {
    char name[64];
    uint32_t type, n_dims;
    int64_t ne[4];
    float sigma;
    bool base; /* of a convolution: tap 0 is near 1 */
    float mean;
    float pass; /* above 0: the last third of the rows passes on so much of as many columns behind as many
                   others */
    uint8_t *data;
};
#define SMALL 0x1p-4f
static struct part part[MOST];
static int n_parts, n_head;
static int64_t rank; /* of a vanilla head */

static void add(const char *name, uint32_t type, int64_t ne0, int64_t ne1, int64_t ne2, float sigma,
                bool base)
{
    struct part *p = &part[n_parts++];
    *p = (struct part){.type = type,
                       .n_dims = ne2 > 1 ? 3
                                 : ne1   ? 2
                                         : 1,
                       .ne = {ne0, ne1 ? ne1 : 1, ne2, 1},
                       .sigma = sigma,
                       .base = base};
    snprintf(p->name, sizeof p->name, "%s", name);
}

/* About a standard normal distribution, the same on every machine. */
static float number(uint64_t *s)
{
    float sum = 0;
    for (int i = 0; i < 12; i++) {
        uint64_t z = *s += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        sum += (float)((z ^ z >> 31) >> 40) * 0x1p-24f;
    }
    return sum - 6;
}

static int fill(struct part *p, uint64_t seed)
{
    const int64_t rows = p->ne[1] * p->ne[2];
    const size_t row = kn_row_bytes(p->type, p->ne[0]);
    float *x = malloc((size_t)p->ne[0] * sizeof *x);
    p->data = malloc(row * (size_t)rows);
    int rc = x && p->data ? 0 : -1;
    for (int64_t r = 0; r < rows && rc == 0; r++) {
        for (int64_t i = 0; i < p->ne[0]; i++)
            x[i] = p->sigma * number(&seed) + (p->base && r % KERNEL == 0) + p->mean;
        if (p->pass > 0 && r >= 2 * rows / 3) x[r - rows / 3] = p->pass;
        rc = kn_encode_row(p->type, x, p->data + (size_t)r * row, p->ne[0], NULL);
    }
    free(x);
    return rc;
}

static void add_dflash2(int layers, uint32_t type, int64_t width, int64_t vocab)
{
    const int64_t taps = 2 * KERNEL * (width / GROUP);
    char name[64];
    for (int i = 0; i < layers; i++)
        for (int j = 0; j < 2; j++) {
            snprintf(name, sizeof name, "blk.%d.%s_conv_base", i, j ? "ffn" : "attn");
            add(name, KN_F32, width, KERNEL, 2, 0.02f, true);
            snprintf(name, sizeof name, "blk.%d.%s_conv_proj.weight", i, j ? "ffn" : "attn");
            add(name, type, width, taps, 1, 0.002f, false);
        }
    add("selector_predecessor.weight", type, RANK, vocab, 1, 0.1f, false);
    add("selector_successor.weight", type == KN_Q4_K ? KN_Q6_K : type, RANK, vocab, 1, 0.1f, false);
    add("selector_hidden.weight", type, width, RANK, 1, 0.12f, false);
}

static int dflash2_keys(struct gguf_writer *w, struct err *e)
{
    return gguf_put_u32(w, "dflash.conv_kernel_size", KERNEL, e) ||
           gguf_put_u32(w, "dflash.conv_group_size", GROUP, e) ||
           gguf_put_u32(w, "dflash.selector_rank", RANK, e) ||
           gguf_put_u32(w, "dflash.selector_top_k", TOP_K, e);
}

static void add_dspark(int layers, uint32_t type, int64_t width, int64_t vocab)
{
    (void)layers;
    add("markov_w1.weight", type, RANK, vocab, 1, 0.1f, false);
    add("markov_w2.weight", type == KN_Q4_K ? KN_Q6_K : type, RANK, vocab, 1, 0.1f, false);
    add("markov_joint.weight", type, width + 2 * RANK, 3 * RANK, 1, 0.02f, false);
    add("markov_joint.bias", KN_F32, 3 * RANK, 0, 1, 0.1f, false);
    add("conf_proj.weight", type, width + RANK, 1, 1, 0.02f, false);
    add("conf_proj.bias", KN_F32, 1, 0, 1, 0.1f, false);
}

static int dspark_keys(struct gguf_writer *w, struct err *e)
{
    return gguf_put_str(w, "dflash.markov_head_type", "rnn", 3, e) ||
           gguf_put_bool(w, "dflash.sample_from_anchor", false, e) ||
           gguf_put_bool(w, "dflash.has_confidence_head", true, e);
}

static void add_domino(int layers, uint32_t type, int64_t width, int64_t vocab)
{
    (void)layers;
    add("domino_ih.weight", type, width, 3 * RANK, 1, 0.1f, false);
    add("domino_hh.weight", type, RANK, 3 * RANK, 1, 0.1f, false);
    add("domino_down.weight", type, width + RANK, RANK, 1, 0.02f, false);
    add("domino_up.weight", type == KN_Q4_K ? KN_Q6_K : type, RANK, vocab, 1, 0.1f, false);
}

static int domino_keys(struct gguf_writer *w, struct err *e)
{
    return gguf_put_bool(w, "dflash.domino.shift_label", false, e) ||
           gguf_put_u32(w, "dflash.domino.pure_draft_prefix_len", 1, e);
}

/* Layer 1 makes values of keys. */
static void add_block(int layers, uint32_t type, int64_t width, int64_t vocab)
{
    static const char *const names[] = {"post_attention_norm", "post_ffw_norm", "layer_output_scale"};
    char name[64];
    (void)type, (void)vocab;
    for (int i = 0; i < 3 * layers; i++) {
        snprintf(name, sizeof name, "blk.%d.%s.weight", i / 3, names[i % 3]);
        add(name, KN_F32, i % 3 < 2 ? width : 1, 0, 1, 0.1f, true);
    }
    for (int i = 0; i < layers; i++) {
        snprintf(name, sizeof name, "blk.%d.attn_sinks.weight", i);
        add(name, KN_F32, n_head, 0, 1, 1.0f, false);
    }
    add("rope_freqs.weight", KN_F32, HEAD / 2, 0, 1, 0, true);
}

static int block_keys(struct gguf_writer *w, struct err *e)
{
    return gguf_put_f32(w, "dflash.attention.scale", 0.06f, e) ||
           gguf_put_str(w, "dflash.hidden_activation", "gelu_pytorch_tanh", 17, e);
}

/* sigmoid(20) is 1 in float. */
static void add_gated(int layers, uint32_t type, int64_t width, int64_t vocab)
{
    (void)layers, (void)vocab;
    add("markov_gate.weight", type, width + rank, rank, 1, 0, false);
    add("markov_gate.bias", KN_F32, rank, 0, 1, 0, false);
    part[n_parts - 1].mean = 20;
}
static int gated_keys(struct gguf_writer *w, struct err *e)
{
    return gguf_put_str(w, "dflash.markov_head_type", "gated", 5, e);
}

/* Rows of [state; token; h]: the gate's and the state's are zeros. What tanh takes is SMALL of the token, and
 * the matrix behind it is as much larger. */
static void add_recurrent(int layers, uint32_t type, int64_t width, int64_t vocab)
{
    (void)layers, (void)vocab;
    add("markov_joint.weight", type, width + 2 * rank, 3 * rank, 1, 0, false);
    part[n_parts - 1].pass = SMALL;
    add("markov_joint.bias", KN_F32, 3 * rank, 0, 1, 0, false);
}
static int recurrent_keys(struct gguf_writer *w, struct err *e)
{
    return gguf_put_str(w, "dflash.markov_head_type", "rnn", 3, e);
}

static const struct kind {
    const char *name;
    void (*add)(int layers, uint32_t type, int64_t width, int64_t vocab);
    int (*keys)(struct gguf_writer *w, struct err *e);
} kinds[] = {{"dflash2", add_dflash2, dflash2_keys},
             {"dspark", add_dspark, dspark_keys},
             {"domino", add_domino, domino_keys},
             {"block", add_block, block_keys},
             {"gated", add_gated, gated_keys},
             {"recurrent", add_recurrent, recurrent_keys},
             {NULL, NULL, NULL}};

/* The matrix behind tanh, SMALL times smaller before it: in types of float a power of two is exact. */
static int write_tensor(const struct kind *k, struct gguf_writer *w, struct io_out *o,
                        const struct gguf_tensor *t, struct err *e)
{
    if (k->add != add_recurrent || strcmp(t->name, "markov_w2.weight"))
        return gguf_write_data(w, o, t->data, t->bytes, e);
    const size_t row = kn_row_bytes(t->type, t->ne[0]);
    float *x = malloc((size_t)t->ne[0] * sizeof *x);
    uint8_t *all = malloc((size_t)t->bytes);
    int rc = x && all ? 0 : err_set(e, ERR_IO, "out of memory (%s)", t->name);
    for (int64_t r = 0; r < t->ne[1] && !rc; r++) {
        rc = kn_decode_row(t->type, t->data + (size_t)r * row, x, t->ne[0]);
        for (int64_t i = 0; i < t->ne[0] && !rc; i++) x[i] /= SMALL;
        if (!rc) rc = kn_encode_row(t->type, x, all + (size_t)r * row, t->ne[0], NULL);
        if (rc) rc = err_set(e, ERR_FORMAT, "%s: no values of this type", t->name);
    }
    if (!rc) rc = gguf_write_data(w, o, all, t->bytes, e);
    free(x), free(all);
    return rc;
}

static bool goes(const struct kind *k, const struct gguf_tensor *t)
{
    return k->add == add_block && !strcmp(t->name, "blk.1.attn_v.weight");
}

static int plan(const struct kind *k, const struct gguf *g, struct err *e)
{
    const struct gguf_tensor *q = gguf_tensor(g, "blk.0.attn_q.weight");
    int32_t layers = 0, vocab = 0;
    if (!q || gguf_get_i32(g, "dflash.block_count", &layers, e) || layers > MOST_LAYERS ||
        gguf_get_i32(g, "dflash.vocab_size", &vocab, e))
        return err_set(e, ERR_FORMAT, "not a drafter of at most %d layers in dialect upstream", MOST_LAYERS);
    const struct gguf_tensor *w1 = gguf_tensor(g, "markov_w1.weight");
    if ((k->add == add_gated || k->add == add_recurrent) && !w1)
        return err_set(e, ERR_FORMAT, "not a DSpark drafter with a Markov head");
    rank = w1 ? w1->ne[0] : 0;
    n_head = (int)(q->ne[1] / HEAD);
    k->add(layers, q->type, q->ne[0], vocab);
    return 0;
}

static int write_out(const struct kind *k, const struct gguf *g, const char *path, struct err *e)
{
    struct gguf_writer *w = NULL;
    struct io_out o = {.fd = -1};
    int rc = gguf_writer_new(&w, e);
    for (uint64_t i = 0; i < g->n_kv && !rc; i++) rc = gguf_put_kv(w, &g->kv[i], e);
    if (!rc) rc = k->keys(w, e);
    for (uint64_t i = 0; i < g->n_tensors && !rc; i++)
        if (!goes(k, &g->tensor[i]))
            rc = gguf_add_tensor(w, g->tensor[i].name, g->tensor[i].type, g->tensor[i].n_dims,
                                 g->tensor[i].ne, e);
    for (int i = 0; i < n_parts && !rc; i++)
        rc = gguf_add_tensor(w, part[i].name, part[i].type, part[i].n_dims, part[i].ne, e);
    if (!rc) rc = io_out_open(&o, path, true, NULL, 0, e) || gguf_write_header(w, &o, e);
    for (uint64_t i = 0; i < g->n_tensors && !rc; i++)
        if (!goes(k, &g->tensor[i])) rc = write_tensor(k, w, &o, &g->tensor[i], e);
    for (int i = 0; i < n_parts && !rc; i++)
        rc = gguf_write_data(
            w, &o, part[i].data,
            kn_row_bytes(part[i].type, part[i].ne[0]) * (uint64_t)(part[i].ne[1] * part[i].ne[2]), e);
    if (!rc) rc = gguf_write_end(w, &o, e) || io_out_commit(&o, e);
    if (rc) io_out_abort(&o);
    gguf_writer_free(w);
    return rc;
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct gguf *g = NULL;
    const struct kind *k = kinds;
    while (argc == 4 && k->name && strcmp(k->name, argv[1])) k++;
    if (argc != 4 || !k->name) {
        fprintf(stderr,
                "usage: make_relative dflash2|dspark|domino|block|gated|recurrent DRAFTER.gguf OUT.gguf\n");
        return 2;
    }
    int rc = gguf_open(&g, argv[2], &e) || plan(k, g, &e);
    for (int i = 0; i < n_parts && !rc; i++)
        if (fill(&part[i], (uint64_t)i))
            rc = err_set(&e, ERR_FORMAT, "%s: no values of this type", part[i].name);
    if (!rc) rc = write_out(k, g, argv[3], &e);
    if (rc) fprintf(stderr, "make_relative: %s\n", e.msg);
    for (int i = 0; i < n_parts; i++) free(part[i].data);
    gguf_close(g);
    return rc ? 1 : 0;
}
