/* test_pool.c - every item once, on any number of threads, run after run, and what it wrote is seen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "../../../kernels/cpu/pool.h"

struct tally {
    int64_t n;
    int32_t *times;      /* [n] plain memory: an item run twice at once would be a race */
    atomic_int busy[64]; /* items under way a thread */
    atomic_int wrong;
    int threads;
};

static void count(void *ctx, int64_t i, int thread)
{
    struct tally *t = ctx;
    if (thread < 0 || thread >= t->threads || i < 0 || i >= t->n) {
        atomic_fetch_add(&t->wrong, 1);
        return;
    }
    if (atomic_fetch_add(&t->busy[thread], 1)) atomic_fetch_add(&t->wrong, 1);
    t->times[i]++;
    atomic_fetch_sub(&t->busy[thread], 1);
}

static void test_each_once(void **state)
{
    static const int64_t items[] = {0, 1, 2, 3, 7, 64, 1000};
    (void)state;
    for (int threads = 1; threads <= 5; threads++) {
        struct pool *p = pool_new(threads);
        assert_non_null(p);
        assert_int_equal(pool_threads(p), threads);
        for (int run = 0; run < 300; run++) {
            struct tally t = {.n = items[run % 7], .threads = threads};
            t.times = calloc((size_t)t.n + 1, sizeof *t.times);
            pool_run(p, t.n, count, &t);
            for (int64_t i = 0; i < t.n; i++) assert_int_equal(t.times[i], 1);
            assert_int_equal(atomic_load(&t.wrong), 0);
            free(t.times);
            if (run % 100 == 99) usleep(2000); /* long enough for the others to fall asleep */
        }
        pool_free(p);
    }
}

static void test_many_items(void **state)
{
    (void)state;
    struct pool *p = pool_new(3);
    struct tally t = {.n = POOL_MAX_ITEMS, .threads = 3};
    t.times = calloc((size_t)t.n, sizeof *t.times);
    pool_run(p, t.n, count, &t);
    for (int64_t i = 0; i < t.n; i++) assert_int_equal(t.times[i], 1);
    free(t.times);
    pool_free(p);
}

static void test_free_asleep_and_awake(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        struct pool *p = pool_new(4);
        if (i % 2) usleep(1000);
        pool_free(p);
    }
    pool_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_once),
        cmocka_unit_test(test_many_items),
        cmocka_unit_test(test_free_asleep_and_awake),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
