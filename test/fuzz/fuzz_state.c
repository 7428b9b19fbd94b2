/* fuzz_state.c - any bytes as a saved state: what opening one reads (header, description of the models) holds
 * or is refused. */
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "../../common/run/state.h"
#include "stream.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void open_it(const uint8_t *data, size_t size, bool regular)
{
    struct state *st;
    struct state_info info;
    struct err e = {0};
    stream_set(data, size, regular, regular ? 0 : 5, !regular);
    if (!state_open(&st, STREAM_PATH, &info, &e)) {
        if (info.n_tokens < 0 || info.chunk < 0) __builtin_trap();
    } else if (st || e.code != ERR_FORMAT || !e.msg[0])
        __builtin_trap();
    state_close(st);
    if (!stream_closed()) __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    uint64_t n;
    uint32_t crc;
    open_it(data, size, true);
    if (size) memcpy(copy, data, size);
    if (size >= 32) { /* the right checksum behind the first section: else no fuzzer comes past it */
        memcpy(&n, copy + 20, 8);
        if (n <= size - 32) {
            crc = (uint32_t)crc32_z(0, copy + 16, (size_t)n + 12);
            memcpy(copy + 28 + n, &crc, 4);
        }
        open_it(copy, size, false);
    }
    free(copy);
    return 0;
}
