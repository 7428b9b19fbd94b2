/* mem.h - memory. All of the library's allocations pass here, so that a test can make the nth one fail.
 *
 * An arena is a chain of chunks freed at once: one arena a load. mem_* return NULL on failure; the caller
 * reports it with err_set(e, ERR_IO, "out of memory (...)"). Sizes are checked for overflow. */
#ifndef DFLASH_MEM_H
#define DFLASH_MEM_H

#include <stddef.h>
#include <stdint.h>

void *mem_alloc(size_t n);                   /* not zeroed */
void *mem_calloc(size_t count, size_t size); /* zeroed; NULL on overflow */
void *mem_realloc(void *p, size_t n);
char *mem_strdup(const char *s);
void mem_free(void *p);

struct arena;
struct arena *arena_new(void);
/* Zeroed, 16-byte aligned; NULL on overflow or failure. */
void *arena_alloc(struct arena *a, size_t count, size_t size);
char *arena_strndup(struct arena *a, const char *s, size_t n); /* NUL-terminated */
void arena_free(struct arena *a);

/* Tests: the nth allocation from now (1-based) and every one after it fails; 0 switches off. Returns how many
 * were made since the last call. */
uint64_t mem_fail_at(uint64_t nth);
uint64_t mem_fail_one(uint64_t nth); /* the same, but those after it succeed */
/* How many allocations failed in this process so far, for libraries that report no reason
 * (common/base/json.c). */
uint64_t mem_failures(void);

/* Bytes of the machine's memory that programs may still take, by the system's account; 0: it gives none. */
uint64_t mem_available(void);

#endif
