/* pool.c - see pool.h.
 *
 * One 64-bit word says what there is to take: generation (24 bits), number of items (20), next item (20). A
 * thread reads the word, reads the job's fields, and takes the item by compare-and-swap: that succeeds only
 * if the word has not moved, so the fields it read belong to the item it took. The fields change only while
 * every item of the last run is taken and done. */
#include "pool.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#define SPIN 3000       /* looks before a thread sleeps: about 30 us */
#define SPIN_CALLER 300 /* looks before the caller lets others run */

struct pool {
    _Alignas(64) atomic_uint_fast64_t word;
    _Atomic(void (*)(void *, int64_t, int)) fn;
    _Atomic(void *) ctx;
    _Alignas(64) atomic_int_fast64_t done; /* items of this run that are finished */
    _Alignas(64) atomic_int sleepers;
    atomic_bool stop;
    pthread_mutex_t lock; /* for sleeping alone */
    pthread_cond_t wake;
    int threads;
    struct worker {
        struct pool *pool;
        pthread_t id;
        int number;
    } worker[];
};

static inline uint64_t items_of(uint64_t w)
{
    return w >> 20 & POOL_MAX_ITEMS;
}

static inline uint64_t next_of(uint64_t w)
{
    return w & POOL_MAX_ITEMS;
}

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* Take and do items until none is left to take. */
static void work(struct pool *p, int thread)
{
    uint64_t w = atomic_load_explicit(&p->word, memory_order_acquire);
    while (next_of(w) < items_of(w)) {
        void (*fn)(void *, int64_t, int) = atomic_load_explicit(&p->fn, memory_order_relaxed);
        void *ctx = atomic_load_explicit(&p->ctx, memory_order_relaxed);
        if (!atomic_compare_exchange_weak_explicit(&p->word, &w, w + 1, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        fn(ctx, (int64_t)next_of(w), thread);
        atomic_fetch_add_explicit(&p->done, 1, memory_order_release);
        w = atomic_load_explicit(&p->word, memory_order_acquire);
    }
}

static bool nothing(struct pool *p)
{
    uint64_t w = atomic_load(&p->word);
    return next_of(w) >= items_of(w) && !atomic_load(&p->stop);
}

static void *worker_main(void *arg)
{
    struct worker *me = arg;
    struct pool *p = me->pool;
    for (;;) {
        int looks = 0;
        while (nothing(p) && looks++ < SPIN) relax();
        if (nothing(p)) {
            pthread_mutex_lock(&p->lock);
            atomic_fetch_add(&p->sleepers, 1); /* before the last look: pool_run looks the other way round */
            while (nothing(p)) pthread_cond_wait(&p->wake, &p->lock);
            atomic_fetch_sub(&p->sleepers, 1);
            pthread_mutex_unlock(&p->lock);
        }
        if (atomic_load(&p->stop)) return NULL;
        work(p, me->number);
    }
}

static void wake_all(struct pool *p)
{
    if (!atomic_load(&p->sleepers)) return;
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

static void stop_workers(struct pool *p, int started)
{
    atomic_store(&p->stop, true);
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < started; i++) pthread_join(p->worker[i].id, NULL);
}

static void destroy(struct pool *p)
{
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

struct pool *pool_new(int threads)
{
    size_t bytes = (sizeof(struct pool) + (size_t)threads * sizeof(struct worker) + 63) & ~(size_t)63;
    struct pool *p = aligned_alloc(64, bytes);
    if (!p) return NULL;
    *p = (struct pool){.threads = threads};
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    for (int i = 0; i + 1 < threads; i++) {
        p->worker[i] = (struct worker){.pool = p, .number = i + 1};
        int rc = pthread_create(&p->worker[i].id, NULL, worker_main, &p->worker[i]);
        if (rc) {
            stop_workers(p, i);
            destroy(p);
            errno = rc;
            return NULL;
        }
    }
    return p;
}

void pool_free(struct pool *p)
{
    if (!p) return;
    stop_workers(p, p->threads - 1);
    destroy(p);
}

int pool_threads(const struct pool *p)
{
    return p->threads;
}

void pool_run(struct pool *p, int64_t n_items, void (*fn)(void *ctx, int64_t item, int thread), void *ctx)
{
    if (p->threads == 1 || n_items <= 1) {
        for (int64_t i = 0; i < n_items; i++) fn(ctx, i, 0);
        return;
    }
    uint64_t generation = (atomic_load_explicit(&p->word, memory_order_relaxed) >> 40) + 1;
    atomic_store_explicit(&p->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&p->ctx, ctx, memory_order_relaxed);
    atomic_store_explicit(&p->done, 0, memory_order_relaxed);
    atomic_store(&p->word, generation << 40 | (uint64_t)n_items << 20);
    wake_all(p);
    work(p, 0);
    for (int looks = 0; atomic_load_explicit(&p->done, memory_order_acquire) < n_items; looks++) {
        if (looks < SPIN_CALLER)
            relax();
        else
            sched_yield(); /* the thread that holds the item may be waiting for this processor */
    }
}
