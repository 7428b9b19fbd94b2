/* fuzz_tokens.c - any bytes as a token stream: ids, or an error, by the length alone. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../common/io.h"
#include "../../common/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = {0};
    int32_t *ids;
    size_t n;
    int fd[2], rc;
    if (size > 32768 || pipe(fd)) return 0; /* less than a pipe holds */
    if (write(fd[1], data, size) != (ssize_t)size) __builtin_trap();
    close(fd[1]);
    rc = io_read_tokens(fd[0], "fuzz", &ids, &n, &e);
    close(fd[0]);
    if ((rc == 0) != (size % 4 == 0)) __builtin_trap();
    if (rc ? e.code != ERR_FORMAT || ids : n != size / 4 || memcmp(ids, data, size)) __builtin_trap();
    mem_free(ids);
    return 0;
}
