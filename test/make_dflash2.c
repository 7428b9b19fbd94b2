/* make_dflash2.c - a DFlash2 drafter out of a DFlash one: its layers as they are, convolutions near to those
 * that change nothing, and edges small beside the logits. So it proposes nearly what that one does, and tests
 * of cycles, acceptance and states meet proposals that are right and wrong.
 *
 * usage: make_dflash2 DRAFTER.gguf OUT.gguf     DRAFTER: dialect upstream. The types are those of its file:
 * codebooks as its attn_q (Q4_K: the one behind a candidate in Q6_K, as the ecosystem's mixes have them),
 * projections too. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/file/gguf.h"

enum { KERNEL = 2, GROUP = 16, RANK = 256, TOP_K = 16, MOST_LAYERS = 16, MOST = 3 + 4 * MOST_LAYERS };

struct part {
    char name[64];
    uint32_t type, n_dims;
    int64_t ne[4];
    float sigma;
    bool base; /* of a convolution: tap 0 is near 1 */
    uint8_t *data;
};
static struct part part[MOST];
static int n_parts;

static void add(const char *name, uint32_t type, int64_t ne0, int64_t ne1, int64_t ne2, float sigma,
                bool base)
{
    struct part *p = &part[n_parts++];
    *p = (struct part){
        .type = type, .n_dims = ne2 > 1 ? 3 : 2, .ne = {ne0, ne1, ne2, 1}, .sigma = sigma, .base = base};
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
        for (int64_t i = 0; i < p->ne[0]; i++) x[i] = p->sigma * number(&seed) + (p->base && r % KERNEL == 0);
        rc = kn_encode_row(p->type, x, p->data + (size_t)r * row, p->ne[0], NULL);
    }
    free(x);
    return rc;
}

static int plan(const struct gguf *g, struct err *e)
{
    const struct gguf_tensor *q = gguf_tensor(g, "blk.0.attn_q.weight");
    int32_t layers = 0, vocab = 0;
    char name[64];
    if (!q || gguf_get_i32(g, "dflash.block_count", &layers, e) || layers > MOST_LAYERS ||
        gguf_get_i32(g, "dflash.vocab_size", &vocab, e))
        return err_set(e, ERR_FORMAT, "not a drafter of at most %d layers in dialect upstream", MOST_LAYERS);
    const int64_t width = q->ne[0], taps = 2 * KERNEL * (width / GROUP);
    for (int i = 0; i < layers; i++)
        for (int j = 0; j < 2; j++) {
            snprintf(name, sizeof name, "blk.%d.%s_conv_base", i, j ? "ffn" : "attn");
            add(name, KN_F32, width, KERNEL, 2, 0.02f, true);
            snprintf(name, sizeof name, "blk.%d.%s_conv_proj.weight", i, j ? "ffn" : "attn");
            add(name, q->type, width, taps, 1, 0.002f, false);
        }
    add("selector_predecessor.weight", q->type, RANK, vocab, 1, 0.1f, false);
    add("selector_successor.weight", q->type == KN_Q4_K ? KN_Q6_K : q->type, RANK, vocab, 1, 0.1f, false);
    add("selector_hidden.weight", q->type, width, RANK, 1, 0.12f, false);
    return 0;
}

static int write_out(const struct gguf *g, const char *path, struct err *e)
{
    struct gguf_writer *w = NULL;
    struct io_out o = {.fd = -1};
    int rc = gguf_writer_new(&w, e);
    for (uint64_t i = 0; i < g->n_kv && !rc; i++) rc = gguf_put_kv(w, &g->kv[i], e);
    if (!rc)
        rc = gguf_put_u32(w, "dflash.conv_kernel_size", KERNEL, e) ||
             gguf_put_u32(w, "dflash.conv_group_size", GROUP, e) ||
             gguf_put_u32(w, "dflash.selector_rank", RANK, e) ||
             gguf_put_u32(w, "dflash.selector_top_k", TOP_K, e);
    for (uint64_t i = 0; i < g->n_tensors && !rc; i++)
        rc =
            gguf_add_tensor(w, g->tensor[i].name, g->tensor[i].type, g->tensor[i].n_dims, g->tensor[i].ne, e);
    for (int i = 0; i < n_parts && !rc; i++)
        rc = gguf_add_tensor(w, part[i].name, part[i].type, part[i].n_dims, part[i].ne, e);
    if (!rc) rc = io_out_open(&o, path, true, NULL, 0, e) || gguf_write_header(w, &o, e);
    for (uint64_t i = 0; i < g->n_tensors && !rc; i++)
        rc = gguf_write_data(w, &o, g->tensor[i].data, g->tensor[i].bytes, e);
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
    if (argc != 3) {
        fprintf(stderr, "usage: make_dflash2 DRAFTER.gguf OUT.gguf\n");
        return 2;
    }
    int rc = gguf_open(&g, argv[1], &e) || plan(g, &e);
    for (int i = 0; i < n_parts && !rc; i++)
        if (fill(&part[i], (uint64_t)i))
            rc = err_set(&e, ERR_FORMAT, "%s: no values of this type", part[i].name);
    if (!rc) rc = write_out(g, argv[2], &e);
    if (rc) fprintf(stderr, "make_dflash2: %s\n", e.msg);
    for (int i = 0; i < n_parts; i++) free(part[i].data);
    gguf_close(g);
    return rc ? 1 : 0;
}
