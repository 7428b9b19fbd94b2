/* fuzz_imatrix.c - any bytes as an importance matrix, a GGUF or the binary form: entries whose weights can be
 * used, whatever shape a tensor asks of them, or an error. */
#include <math.h>
#include <string.h>

#include "../../common/file/imatrix.h"
#include "../../common/base/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(struct imatrix_entry *t)
{
    for (int64_t i = 0; i < t->n_mat; i++) {
        float *w = mem_alloc((size_t)t->n_in * sizeof *w);
        if (!w) return;
        imatrix_weights(t, i, w);
        for (int64_t c = 0; c < t->n_in; c++)
            if (!(w[c] >= IMATRIX_LEAST) || !isfinite(w[c])) __builtin_trap();
        mem_free(w);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = {0};
    struct imatrix *m;
    if (imatrix_read_memory(&m, data, size, "fuzz", &e)) {
        if (e.code != ERR_FORMAT || m || !e.msg[0]) __builtin_trap();
        return 0;
    }
    for (int64_t i = 0; i < m->n; i++) {
        struct imatrix_entry *t = &m->entry[i];
        struct err why = {0};
        if (imatrix_find(m, t->name) != t || (i && strcmp(t[-1].name, t->name) >= 0)) __builtin_trap();
        use(t);
        const int64_t all = t->n_in * t->n_mat, parts = 2 + i % 3;
        const int fits = t->n_mat == 1 && all % parts == 0;
        if (!imatrix_fit(t, all / parts, parts, &why) !=
            (fits || (t->n_mat == parts && t->n_in * parts == all)))
            __builtin_trap();
        use(t);
    }
    imatrix_chunks(m);
    imatrix_free(m);
    return 0;
}
