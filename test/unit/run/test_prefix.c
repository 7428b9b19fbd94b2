/* test_prefix.c - the tree of prompts' beginnings against a list of what was put in: found is the longest
 * exact beginning that is still there, what it holds is what was put, and memory stays within the budget. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "../../../common/base/mem.h"
#include "../../../common/run/prefix.h"
#include "../rnd.h"

enum { CHUNK = 4, ROWS = 40, POINT = 100 };

/* What the path of a node spells, as one number: its rows and point are filled with it. */
static uint8_t mark(const struct prefix_node *x)
{
    uint32_t h = 17;
    for (; x; x = x->parent)
        for (int i = 0; i < CHUNK; i++) h = h * 31 + (uint32_t)x->tokens[i];
    return (uint8_t)h;
}

static bool filled(const uint8_t *p, size_t n, uint8_t with)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != with) return false;
    return true;
}

/* Every node is filled with its mark, sums are right, no node is older than one below it. */
static void sound(const struct prefix *p, const struct prefix_node *x, uint64_t *bytes, int64_t *nodes)
{
    for (; x; x = x->next) {
        assert_true(filled(x->rows, ROWS, mark(x)));
        assert_true(!x->point || filled(x->point, POINT, mark(x)));
        assert_true(!x->parent || x->parent->used >= x->used);
        assert_int_equal(x->depth, x->parent ? x->parent->depth + 1 : 1);
        *bytes += sizeof *x + CHUNK * sizeof(int32_t) + ROWS + (x->point ? POINT : 0);
        ++*nodes;
        sound(p, x->child, bytes, nodes);
    }
}

static void check(const struct prefix *p)
{
    uint64_t bytes = 0;
    int64_t nodes = 0;
    sound(p, p->first, &bytes, &nodes);
    assert_int_equal(bytes, p->bytes);
    assert_int_equal(nodes, p->nodes);
    assert_true(p->bytes <= p->budget);
}

static struct prefix_node *put(struct prefix *p, const int32_t *ids, int32_t n, bool point)
{
    struct prefix_node *at = prefix_find(p, ids, n);
    for (int32_t i = at ? at->depth : 0; (i + 1) * CHUNK <= n; i++) {
        bool fresh;
        struct prefix_node *x = prefix_add(p, at, ids + i * CHUNK, ROWS, &fresh);
        if (!x) return NULL;
        assert_true(fresh);
        memset(x->rows, mark(x), ROWS);
        at = x;
    }
    uint8_t *q = at && point ? prefix_add_point(p, at, POINT) : NULL;
    if (q) memset(q, mark(at), POINT);
    return at;
}

static void test_longest(void **state)
{
    struct prefix p;
    const int32_t a[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13},
                  b[] = {1, 2, 3, 4, 5, 6, 7, 9, 9, 9, 9, 9};
    (void)state;
    prefix_init(&p, CHUNK, 1 << 20);
    assert_null(prefix_find(&p, a, 13));
    assert_int_equal(put(&p, a, 13, true)->depth, 3);
    assert_int_equal(prefix_find(&p, a, 13)->depth, 3);
    assert_int_equal(prefix_find(&p, a, 11)->depth, 2); /* a whole chunk is needed */
    assert_null(prefix_find(&p, a, 3));
    assert_int_equal(prefix_find(&p, b, 12)->depth, 1); /* exact: one token differs in the second */
    assert_int_equal(put(&p, b, 12, false)->depth, 3);
    assert_int_equal(p.nodes, 5);
    assert_int_equal(prefix_pointed(&p, prefix_find(&p, a, 13))->depth, 3);
    assert_null(prefix_pointed(&p, prefix_find(&p, b, 12)));
    assert_null(prefix_find(&p, a + 1, 12)); /* a beginning, not anything inside */
    bool fresh = true;
    assert_ptr_equal(prefix_add(&p, NULL, a, ROWS, &fresh), prefix_find(&p, a, 4));
    assert_false(fresh);
    check(&p);
    prefix_clear(&p);
    assert_int_equal(p.bytes, 0);
    assert_int_equal(p.nodes + p.points, 0);
}

/* Of three prompts with a common beginning the one looked up longest ago goes first, leaf by leaf; the
 * beginning stays as long as one of them does. */
static void test_oldest_first(void **state)
{
    struct prefix p;
    int32_t ids[3][8] = {{1, 1, 1, 1, 2}, {1, 1, 1, 1, 3}, {1, 1, 1, 1, 4}};
    const uint64_t node = sizeof(struct prefix_node) + CHUNK * 4 + ROWS;
    (void)state;
    prefix_init(&p, CHUNK, 4 * node);
    for (int i = 0; i < 3; i++) put(&p, ids[i], 8, false);
    assert_int_equal(p.nodes, 4);
    prefix_find(&p, ids[0], 8);
    const int32_t other[] = {9, 9, 9, 9};
    put(&p, other, 4, false);
    assert_int_equal(prefix_find(&p, ids[1], 8)->depth, 1); /* went */
    assert_int_equal(prefix_find(&p, ids[2], 8)->depth, 2);
    assert_int_equal(prefix_find(&p, ids[0], 8)->depth, 2);
    assert_int_equal(p.evicted, 1);
    /* A path never makes room for itself. */
    const int32_t longer[24] = {5};
    assert_null(put(&p, longer, 24, false));
    assert_int_equal(prefix_find(&p, longer, 24)->depth, 4);
    check(&p);
    /* The point of an inner node goes alone. */
    prefix_clear(&p);
    p.budget = 2 * node + POINT;
    put(&p, ids[0], 4, true);
    put(&p, ids[0], 8, true);
    struct prefix_node *leaf = prefix_find(&p, ids[0], 8);
    assert_true(leaf->point && !leaf->parent->point);
    prefix_shrink(&p, node + POINT);
    assert_int_equal(prefix_find(&p, ids[0], 8)->depth, 1);
    check(&p);
    prefix_shrink(&p, 0);
    assert_null(p.first);
}

/* Random prompts over few tokens; a list says which chunks were put and not found again. */
static void test_random(void **state)
{
    uint64_t r = 12345;
    struct prefix p;
    (void)state;
    for (int budget = 400; budget < 40000; budget *= 3) {
        prefix_init(&p, CHUNK, (uint64_t)budget);
        for (int i = 0; i < 2000; i++) {
            int32_t ids[40], n = (int32_t)(rnd_next(&r) % 41);
            for (int32_t k = 0; k < n; k++) ids[k] = (int32_t)(rnd_next(&r) % (k % 4 ? 1u : 3u));
            struct prefix_node *at = put(&p, ids, n, rnd_next(&r) % 3 == 0);
            if (at) assert_ptr_equal(prefix_find(&p, ids, n), at);
            if (i % 64 == 0) check(&p);
            if (rnd_next(&r) % 50 == 0) prefix_shrink(&p, p.bytes / 2);
        }
        check(&p);
        prefix_clear(&p);
        assert_int_equal(p.bytes, 0);
    }
}

/* Memory that is not there is as a budget that does not allow it. */
static void test_no_memory(void **state)
{
    struct prefix p;
    const int32_t ids[8] = {1, 2, 3};
    bool fresh;
    (void)state;
    prefix_init(&p, CHUNK, 1 << 20);
    for (uint64_t nth = 1; nth <= 2; nth++) {
        mem_fail_one(nth);
        assert_null(prefix_add(&p, NULL, ids, ROWS, &fresh));
        mem_fail_at(0);
        assert_int_equal(p.bytes, 0);
    }
    put(&p, ids, 4, false);
    mem_fail_one(1);
    assert_null(prefix_add_point(&p, p.first, POINT));
    mem_fail_at(0);
    check(&p);
    prefix_clear(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_longest), cmocka_unit_test(test_oldest_first),
                                       cmocka_unit_test(test_random), cmocka_unit_test(test_no_memory)};
    return cmocka_run_group_tests_name("prefix", tests, NULL, NULL);
}
