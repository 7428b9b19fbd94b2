/* make_iq1.c - a target of which the blocks' matrices are IQ1_S or IQ1_M, which nothing here writes: random
 * codes at each matrix's own root mean square.
 *
 * usage: make_iq1 iq1_s|iq1_m IN.gguf OUT.gguf
 *
 * What it writes is no text; streams of it are as equal as any, drafted and not. */
#include "../common/file/gguf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CODES_RMS 7.2 /* of uniform codes and scales, d = 1 */

static void die(const char *what, const struct err *e)
{
    fprintf(stderr, "make_iq1: %s: %s\n", what, e->msg);
    exit(1);
}

static bool taken(const struct gguf_tensor *t)
{
    return !strncmp(t->name, "blk.", 4) && t->n_dims == 2 && t->ne[0] % 256 == 0;
}

static double rms_of(const struct gguf_tensor *t)
{
    const int64_t n = t->ne[0] * t->ne[1];
    float *x = malloc((size_t)n * sizeof *x);
    double sum = 0;
    kn_decode_row(t->type, t->data, x, n);
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    free(x);
    return sqrt(sum / (double)n);
}

/* IQ1_S has d at its start; IQ1_M in the upper 4 bits of its last four words, the lowest first. */
static uint8_t *random_codes(const struct gguf_tensor *t, uint32_t type, size_t *bytes)
{
    static uint32_t seed = 1;
    const size_t block = kn_type_info(type)->bytes;
    const uint16_t d = kn_f32_to_f16((float)(rms_of(t) / CODES_RMS));
    *bytes = kn_row_bytes(type, t->ne[0]) * (size_t)t->ne[1];
    uint8_t *p = malloc(*bytes);
    for (size_t i = 0; i < *bytes; i++) p[i] = (uint8_t)((seed = seed * 1664525u + 1013904223u) >> 24);
    for (uint8_t *b = p; b < p + *bytes; b += block) {
        if (type == KN_IQ1_S) b[0] = (uint8_t)d, b[1] = (uint8_t)(d >> 8);
        for (int j = 0; j < 4 && type == KN_IQ1_M; j++)
            b[49 + 2 * j] = (uint8_t)((b[49 + 2 * j] & 15) | (d >> 4 * j & 15) << 4);
    }
    return p;
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct gguf *g;
    struct gguf_writer *w;
    struct io_out out;
    const bool m = argc == 4 && !strcmp(argv[1], "iq1_m");
    if (argc != 4 || (!m && strcmp(argv[1], "iq1_s"))) {
        fprintf(stderr, "usage: make_iq1 iq1_s|iq1_m IN.gguf OUT.gguf\n");
        return 2;
    }
    const uint32_t type = m ? KN_IQ1_M : KN_IQ1_S;
    if (gguf_open(&g, argv[2], &e) || gguf_writer_new(&w, &e)) die(argv[2], &e);
    for (uint64_t i = 0; i < g->n_kv; i++)
        if (gguf_put_kv(w, &g->kv[i], &e)) die("keys", &e);
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensor[i];
        if (gguf_add_tensor(w, t->name, taken(t) ? type : t->type, t->n_dims, t->ne, &e)) die(t->name, &e);
    }
    if (io_out_open(&out, argv[3], true, NULL, 0, &e) || gguf_write_header(w, &out, &e)) die(argv[3], &e);
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensor[i];
        size_t bytes = t->bytes;
        uint8_t *own = taken(t) ? random_codes(t, type, &bytes) : NULL;
        if (gguf_write_data(w, &out, own ? own : t->data, bytes, &e)) die(t->name, &e);
        free(own);
    }
    if (gguf_write_end(w, &out, &e) || io_out_commit(&out, &e)) die(argv[3], &e);
    gguf_writer_free(w);
    gguf_close(g);
    return 0;
}
