/* fuzz_safetensors.c - any bytes through the safetensors reader; what it accepts is decoded. */
#include "../../common/file/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct st *s;
    struct err e = {0};
    float f[64];
    if (!st_open_memory(&s, data, size, "fuzz", &e)) {
        uint64_t bytes = 0;
        for (uint64_t i = 0; i < s->n_tensors; i++) {
            const struct st_tensor *t = &s->tensor[i];
            uint64_t n = t->count < 64 ? t->count : 64;
            struct err e2 = {0};
            st_read_f32(t, t->count - n, n, f, &e2);
            if (st_tensor(s, t->name) != t) __builtin_trap();
            bytes += t->bytes;
        }
        if (bytes > size) __builtin_trap();
    } else if (s || e.code != ERR_FORMAT || !e.msg[0])
        __builtin_trap();
    st_close(s);
    return 0;
}
