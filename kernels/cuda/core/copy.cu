/* copy.cu - see copy.cuh. */
#include "copy.cuh"

#include <condition_variable>
#include <mutex>
#include <new>
#include <string.h>
#include <sys/mman.h>
#include <system_error>
#include <thread>
#include <unistd.h>

#define MOST 8
#define PART_MIN ((size_t)256 << 10) /* below that a thread is not worth waking */

struct copy_crew {
    std::mutex mutex;
    std::condition_variable go, done;
    std::thread thread[MOST];
    int n; /* threads beside the caller */
    uint8_t *dst;
    const uint8_t *src;
    size_t bytes, part;
    unsigned turn; /* of the copy */
    int left;      /* threads that have not finished it */
    bool quit;
};

/* A mapped file's pages are entered into the page table all at once, where the system knows how, rather than
 * by a fault each. */
static void populate(const uint8_t *p, size_t n)
{
#ifdef MADV_POPULATE_READ
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), head = (size_t)(uintptr_t)p % page;
    (void)madvise((void *)(p - head), n + head, MADV_POPULATE_READ);
#else
    (void)p, (void)n;
#endif
}

static void copy_part(struct copy_crew *c, int i)
{
    const size_t from = (size_t)i * c->part;
    if (from >= c->bytes) return;
    const size_t n = c->bytes - from < c->part ? c->bytes - from : c->part;
    populate(c->src + from, n);
    memcpy(c->dst + from, c->src + from, n);
}

static void work(struct copy_crew *c, int i)
{
    std::unique_lock<std::mutex> lock(c->mutex);
    for (unsigned seen = 0;;) {
        c->go.wait(lock, [&] { return c->quit || c->turn != seen; });
        if (c->quit) return;
        seen = c->turn;
        lock.unlock();
        copy_part(c, i);
        lock.lock();
        if (--c->left == 0) c->done.notify_one();
    }
}

struct copy_crew *copy_open(void)
{
    struct copy_crew *c = new (std::nothrow) copy_crew();
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (!c) return nullptr;
    try {
        while (c->n + 1 < MOST && c->n + 1 < online) {
            c->thread[c->n] = std::thread(work, c, c->n + 1);
            c->n++;
        }
    } catch (const std::system_error &) { /* as many as there are */
    }
    return c;
}

void copy_run(struct copy_crew *c, void *dst, const void *src, size_t bytes)
{
    {
        std::lock_guard<std::mutex> lock(c->mutex);
        c->dst = (uint8_t *)dst;
        c->src = (const uint8_t *)src;
        c->bytes = bytes;
        c->part = (bytes / (size_t)(c->n + 1) + 4096) / 4096 * 4096;
        if (c->part < PART_MIN) c->part = PART_MIN;
        c->left = c->n;
        c->turn++;
    }
    c->go.notify_all();
    copy_part(c, 0);
    std::unique_lock<std::mutex> lock(c->mutex);
    c->done.wait(lock, [&] { return c->left == 0; });
}

void copy_close(struct copy_crew *c)
{
    if (!c) return;
    {
        std::lock_guard<std::mutex> lock(c->mutex);
        c->quit = true;
    }
    c->go.notify_all();
    for (int i = 0; i < c->n; i++) c->thread[i].join();
    delete c;
}
