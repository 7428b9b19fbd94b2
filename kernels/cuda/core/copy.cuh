/* copy.cuh - host memory copied by several threads: one thread moves 5 to 10 GB/s out of the page cache, the
 * bus takes 50.
 *
 * A crew owns its threads, which sleep between copies. One caller at a time. */
#ifndef DFLASH_CUDA_COPY_CUH
#define DFLASH_CUDA_COPY_CUH

#include <stddef.h>

struct copy_crew;
/* At most 8 threads, the caller among them. NULL: no memory, or no thread could be made. */
struct copy_crew *copy_open(void);
void copy_run(struct copy_crew *c, void *dst, const void *src, size_t bytes);
void copy_close(struct copy_crew *c);

#endif
