/* fuzz_gguf.c - any bytes through the GGUF reader; what it accepts is read to the last element. */
#include "../../common/file/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const struct gguf *g)
{
    struct err e = {0};
    volatile uint64_t sum = 0;
    uint64_t u;
    float f;
    for (uint64_t i = 0; i < g->n_kv; i++) {
        const struct gguf_kv *kv = &g->kv[i];
        for (uint64_t k = 0; k < kv->count; k++) {
            if (!kv->strings)
                sum += (uint64_t)gguf_array_i64(kv, k) + (gguf_array_f64(kv, k) > 0);
            else
                for (uint64_t b = 0; b < kv->strings[k].n; b++) sum += (uint8_t)kv->strings[k].s[b];
        }
        if (gguf_find(g, kv->key) != kv) __builtin_trap();
        gguf_get_u64(g, kv->key, &u, &e);
        gguf_get_f32(g, kv->key, &f, &e);
    }
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensor[i];
        if (t->bytes) sum += t->data[0] + t->data[t->bytes - 1];
        if (gguf_tensor(g, t->name) != t) __builtin_trap();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct gguf *g;
    struct err e = {0};
    if (!gguf_open_memory(&g, data, size, "fuzz", &e))
        use(g);
    else if (g || e.code != ERR_FORMAT || !e.msg[0])
        __builtin_trap();
    gguf_close(g);
    return 0;
}
