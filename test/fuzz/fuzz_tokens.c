/* fuzz_tokens.c - any bytes as a token stream, arriving in pieces of any size: ids, or an error, by the
 * length alone. The first byte picks the pieces. */
#include <string.h>

#include "../../common/base/io.h"
#include "../../common/base/mem.h"
#include "stream.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = {0};
    int32_t *ids;
    size_t n;
    if (!size) return 0;
    stream_set(data + 1, size - 1, data[0] & 1, data[0] >> 2, data[0] & 2);
    size--;
    int rc = io_read_tokens(STREAM_FD, "fuzz", &ids, &n, &e);
    if ((rc == 0) != (size % 4 == 0)) __builtin_trap();
    if (rc ? e.code != ERR_FORMAT || ids : n != size / 4 || memcmp(ids, data + 1, size)) __builtin_trap();
    mem_free(ids);
    return 0;
}
