/* mem.c - see mem.h. */
#include "mem.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Counters are atomic because threads allocate too; relaxed order is enough, tests count on one thread. */
static atomic_uint_fast64_t made;     /* allocations since the last mem_fail_at */
static atomic_uint_fast64_t fail_nth; /* 0: off */
static atomic_bool fail_rest;         /* those after it too */
static atomic_uint_fast64_t failed;   /* for ever */

static bool refuse(void)
{
    uint64_t n = atomic_fetch_add_explicit(&made, 1, memory_order_relaxed) + 1;
    uint64_t f = atomic_load_explicit(&fail_nth, memory_order_relaxed);
    return f && (n == f || (n > f && atomic_load_explicit(&fail_rest, memory_order_relaxed)));
}

static void *note(void *p)
{
    if (!p) atomic_fetch_add_explicit(&failed, 1, memory_order_relaxed);
    return p;
}

uint64_t mem_failures(void)
{
    return atomic_load(&failed);
}

static uint64_t fail_from(uint64_t nth, bool rest)
{
    uint64_t n = atomic_exchange(&made, 0);
    atomic_store(&fail_rest, rest);
    atomic_store(&fail_nth, nth);
    return n;
}

uint64_t mem_fail_at(uint64_t nth)
{
    return fail_from(nth, true);
}

uint64_t mem_fail_one(uint64_t nth)
{
    return fail_from(nth, false);
}

void *mem_alloc(size_t n)
{
    return note(refuse() ? NULL : malloc(n ? n : 1)); /* never NULL for size 0: NULL means failure */
}

void *mem_calloc(size_t count, size_t size)
{
    size_t n; /* calloc checks it too, but a sanitizer's ends the program there */
    if (__builtin_mul_overflow(count, size, &n)) return note(NULL);
    return note(refuse() ? NULL : calloc(1, n ? n : 1));
}

void *mem_realloc(void *p, size_t n)
{
    return note(refuse() ? NULL : realloc(p, n ? n : 1));
}

char *mem_strdup(const char *s)
{
    size_t n = strlen(s) + 1;
    char *p = mem_alloc(n);
    if (p) memcpy(p, s, n);
    return p;
}

void mem_free(void *p)
{
    free(p);
}

/* ---- arenas ---- */

#define CHUNK_MIN ((size_t)16 << 10)
#define CHUNK_MAX ((size_t)1 << 20)
#define ALIGN ((size_t)16)

struct chunk {
    struct chunk *next;
    size_t size, used; /* of the payload, which follows at HEAD */
};
#define HEAD ((sizeof(struct chunk) + ALIGN - 1) / ALIGN * ALIGN)

struct arena {
    struct chunk *head; /* the chunk that is being filled */
    size_t next_size;
};

struct arena *arena_new(void)
{
    struct arena *a = mem_calloc(1, sizeof *a);
    if (a) a->next_size = CHUNK_MIN;
    return a;
}

void *arena_alloc(struct arena *a, size_t count, size_t size)
{
    size_t n, payload;
    struct chunk *c = a->head;
    void *p;
    if (__builtin_mul_overflow(count, size, &n) || n > SIZE_MAX / 2) return NULL;
    n = (n + ALIGN - 1) / ALIGN * ALIGN;
    if (!n) n = ALIGN;
    if (!c || c->size - c->used < n) {
        bool alone =
            n > a->next_size / 4; /* a large block gets its own chunk, and the one in use stays in use */
        payload = alone ? n : a->next_size;
        c = mem_alloc(HEAD + payload);
        if (!c) return NULL;
        c->size = payload;
        c->used = 0;
        if (alone && a->head) {
            c->next = a->head->next;
            a->head->next = c;
        } else {
            c->next = a->head;
            a->head = c;
        }
        if (!alone && a->next_size < CHUNK_MAX) a->next_size *= 2;
    }
    p = (uint8_t *)c + HEAD + c->used;
    c->used += n;
    return memset(p, 0, n);
}

char *arena_strndup(struct arena *a, const char *s, size_t n)
{
    char *p;
    if (n == SIZE_MAX) return NULL;
    p = arena_alloc(a, n + 1, 1);
    if (p && n) memcpy(p, s, n);
    return p;
}

void arena_free(struct arena *a)
{
    if (!a) return;
    for (struct chunk *c = a->head, *next; c; c = next) {
        next = c->next;
        mem_free(c);
    }
    mem_free(a);
}

uint64_t mem_available(void)
{
    unsigned long long kib = 0;
    char line[128];
    FILE *f = fopen("/proc/meminfo", "r");
    while (f && !kib && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) != 1) kib = 0;
    if (f) fclose(f);
    return (uint64_t)kib << 10;
}
