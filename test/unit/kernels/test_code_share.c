/* test_code_share.c - attention of one row over a quantised cache in one launch
 * (kernels/cuda/chain/code_share.h): every leaf is one set's, every result has a place of its own that who
 * adds results up reads, and there are as many places as are planned for. Of positions about the ends of
 * nodes and others, cards of several sizes, all numbers of kv heads that a set may have. No device is needed.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "../../../kernels/cuda/chain/code_share.h"

enum { NODES = 300, PLACES = 4 * NODES + 1100 };

/* kv heads of the cache, and of a set. */
static const int heads[][2] = {{1, 1}, {2, 2}, {3, 3},  {4, 2},  {4, 4},  {5, 5},  {6, 2},  {6, 6},  {8, 2},
                               {8, 4}, {8, 8}, {16, 2}, {16, 4}, {16, 8}, {24, 8}, {32, 2}, {32, 4}, {32, 8}};
static const int blocks[] = {132, 114, 78, 66, 24};

/* Positions: about the ends of leaves and nodes, then some between. */
static int position(int i)
{
    static const int ends[] = {0,     1,     31,    32,    63,    127,    128,    255,   256,   511,
                               512,   1023,  1024,  2047,  2048,  4095,   4096,   4127,  5119,  5120,
                               6143,  8191,  8192,  9216,  12287, 16383,  16384,  20480, 32767, 32768,
                               36864, 65535, 65536, 69632, 99999, 131071, 131072, 262143};
    const int n = (int)(sizeof ends / sizeof *ends);
    return i < n ? ends[i] : i < n + 60 ? (i - n) * (i - n) * 71 + 300 : -1;
}

/* The set of that number of the block, with classes or without. */
static struct code_share set_of(const struct code_cut *cut, int block, int pos, int set)
{
    struct code_share f = code_share_of(cut, block, pos);
    code_share_set(&f, cut, set);
    return f;
}

typedef void (*check)(const struct code_cut *cut, int pos, int head);

/* check for a kv head of every cut and position. */
static void all_of(check with)
{
    for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++)
        for (size_t h = 0; h < sizeof heads / sizeof *heads; h++) {
            const struct code_cut cut = {blocks[b], heads[h][0], heads[h][1]};
            if (cut.blocks * CHAIN_HEADS < 2 * cut.n_kv || cut.n_kv / CHAIN_HEADS > cut.blocks) continue;
            for (int i = 0; position(i) >= 0; i++) with(&cut, position(i), (i * 7 + (int)b) % cut.n_kv);
        }
}

/* Calls each for every set of the head that has classes; how many. */
static int sets_of(const struct code_cut *cut, int pos, int head, void (*each)(const struct code_share *))
{
    int n = 0;
    for (int block = 0; block < cut->blocks; block++) {
        const struct code_share first = code_share_of(cut, block, pos);
        int leaves;
        const int busy = code_busy(first, cut, &leaves);
        for (int set = 0; set < code_block_sets(cut->heads); set++) {
            const struct code_share f = set_of(cut, block, pos, set);
            if (set >= busy) assert_true(f.from >= f.until); /* the busy ones come first */
            if (f.from >= f.until || head < f.head || head >= f.head + cut->heads) continue;
            assert_true(code_leaves(&f) <= leaves);
            n++;
            each(&f);
        }
    }
    return n;
}

static unsigned char seen[PLACES];

static void see_classes(const struct code_share *f)
{
    for (int c = f->from; c < f->until; c++) {
        assert_in_range(c, 0, 4 * f->nodes - 1);
        assert_int_equal(seen[c]++, 0);
    }
}
static void check_classes(const struct code_cut *cut, int pos, int head)
{
    const int classes = 4 * (ATTN_CODES_NODE(0, pos) + 1);
    memset(seen, 0, sizeof seen);
    assert_true(classes <= PLACES);
    sets_of(cut, pos, head, see_classes);
    for (int c = 0; c < classes; c++) assert_int_equal(seen[c], 1);
}
static void test_classes(void **state)
{
    (void)state;
    all_of(check_classes);
}

/* The leaves of a node's classes are its keys, each once. */
static void test_leaves(void **state)
{
    (void)state;
    for (int node = 0; node < 40; node++) {
        const int from = ATTN_CODES_START(0, node), keys = ATTN_CODES_START(0, node + 1) - from;
        memset(seen, 0, sizeof seen);
        for (int c = 4 * node; c < 4 * node + 4; c++)
            for (int i = 0; i < code_leaves_of(c); i++) {
                assert_int_equal((code_at(c, i) - from) % CODE_LEAF, 0);
                assert_in_range(code_at(c, i) - from, 0, keys - 1);
                assert_int_equal(seen[(code_at(c, i) - from) / CODE_LEAF]++, 0);
            }
        for (int i = 0; i < keys / CODE_LEAF; i++) assert_int_equal(seen[i], 1);
    }
}

/* As code_classes leaves results. */
static void see_places(const struct code_share *f)
{
    for (int c = f->from; c < f->until; c++) {
        if (!code_near(f) && c % 2 == 0 && c + 1 < f->until) continue; /* the next class is added to it */
        assert_in_range(code_place_here(f, c), 0, PLACES - 1);
        assert_int_equal(seen[code_place_here(f, c)]++, 0);
    }
}
static void check_places(const struct code_cut *cut, int pos, int head)
{
    memset(seen, 0, sizeof seen);
    sets_of(cut, pos, head, see_places);
    const struct code_share f = code_share_of(cut, 0, pos);
    const bool apart = code_apart(&f);
    const int places = code_places(pos + 1, cut->blocks, cut->n_kv);
    assert_in_range(places, 1, PLACES);
    for (int node = 0; node <= f.nodes; node++)
        for (int i = 0; i < (apart ? 4 : 2); i++) {
            const int place = code_read(&f, apart, node, i);
            if (i % 2 == 0 || !apart)
                assert_int_equal(place >= 0, node < f.nodes); /* others may have been added */
            if (place < 0) continue;
            assert_in_range(place, 0, places - 1);
            assert_int_equal(seen[place]++, 1); /* left once, read once */
        }
    for (int i = 0; i < PLACES; i++) assert_int_not_equal(seen[i], 1);
}
static void test_places(void **state)
{
    (void)state;
    all_of(check_places);
}

/* As many sets as plans count, where there are as many. */
static void see_nothing(const struct code_share *f)
{
    (void)f;
}
static void check_shares(const struct code_cut *cut, int pos, int head)
{
    const struct code_share f = code_share_of(cut, 0, pos);
    const int sets = sets_of(cut, pos, head, see_nothing), shares = code_shares(f.nodes);
    if (shares <= f.on)
        assert_int_equal(sets, shares);
    else
        assert_in_range(sets, 1, f.on);
}
static void test_shares(void **state)
{
    (void)state;
    all_of(check_shares);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_classes), cmocka_unit_test(test_leaves),
                                       cmocka_unit_test(test_places), cmocka_unit_test(test_shares)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
