/* pool.h - threads that share items of work, made for calls of a few microseconds on processors that may be
 * busy.
 *
 * The caller of pool_run works too, and waits only for items that another thread has begun: a thread that the
 * system does not run at the moment delays nothing. (A team of OpenMP threads meets at barriers; on two
 * shared cores that made a step of a small model ten times slower. docs/speed/cpu.md has the numbers.) Idle
 * threads spin for some microseconds, then sleep. Which thread runs an item must not matter for its result.
 * One caller at a time. */
#ifndef DFLASH_CPU_POOL_H
#define DFLASH_CPU_POOL_H

#include <stdint.h>

struct pool;
#define POOL_MAX_ITEMS ((1 << 20) - 1) /* items a run */

/* threads counts the caller: threads - 1 are started. NULL: no memory or no thread could be started;
 * errno says which. */
struct pool *pool_new(int threads);
void pool_free(struct pool *p); /* NULL is legal */
int pool_threads(const struct pool *p);

/* fn(ctx, item, thread) once for each item 0 .. n_items-1, thread in 0 .. threads-1 (0 is the caller), at
 * most one item a thread at a time; returns when all are done, and what they wrote is visible. n_items: 0 ..
 * POOL_MAX_ITEMS. */
void pool_run(struct pool *p, int64_t n_items, void (*fn)(void *ctx, int64_t item, int thread), void *ctx);

#endif
