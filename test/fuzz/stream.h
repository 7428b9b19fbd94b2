/* stream.h - the bytes of a fuzzer's run behind a file descriptor, without a kernel: the linker sends the
 * library's read, fstat, lseek, open and close here (--wrap, see the Makefile), which is several times faster
 * than pipes and memfds, and delivers them in pieces of any size. One stream at a time. */
#ifndef DFLASH_FUZZ_STREAM_H
#define DFLASH_FUZZ_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STREAM_FD 1000000
#define STREAM_PATH "/fuzz/stream" /* opens as STREAM_FD */

/* From now on STREAM_FD gives data [n], borrowed: from its start, at most step bytes a read (0: as many as
 * are asked for), every third read first interrupted by a signal where interrupt. regular: fstat says a file
 * of n bytes, and lseek works; else a pipe. */
void stream_set(const uint8_t *data, size_t n, bool regular, size_t step, bool interrupt);
/* Whether it was closed since. */
bool stream_closed(void);

#endif
