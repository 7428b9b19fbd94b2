/* test_choices.c - which form of a CUDA kernel runs, with how many warps, stages and blocks: what the
 * planners (kernels/cuda, plain C) choose for real models, compared line by line with choices.txt. No device
 * is needed.
 *
 * A difference is a changed choice: where it is meant, `test_choices --write` makes the table anew, and its
 * diff goes into the commit that changes the choice. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "choices_attention.h"
#include "choices_chain.h"
#include "choices_product.h"
#include "choices_rest.h"

#define TABLE "test/unit/kernels/choices.txt"
#define SHOWN 20 /* differences that are printed */

static char *choose_all(void)
{
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    if (!out) return NULL;
    choose_products(out);
    choose_attention(out);
    choose_chains(out);
    choose_experts(out);
    choose_delta(out);
    return fclose(out) ? NULL : text;
}

static char *read_table(void)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = fopen(TABLE, "r");
    FILE *out = f ? open_memstream(&text, &n) : NULL;
    if (!out) return NULL;
    for (int c; (c = getc(f)) != EOF;) putc(c, out);
    fclose(f);
    return fclose(out) ? NULL : text;
}

static size_t line_length(const char *s)
{
    const char *end = strchr(s, '\n');
    return end ? (size_t)(end - s) : strlen(s);
}

static void test_table(void **state)
{
    (void)state;
    char *now = choose_all(), *table = read_table();
    long lines = 0, wrong = 0;
    assert_non_null(now);
    if (!table) fail_msg("%s cannot be read (run from the root of the repository)", TABLE);
    const char *a = table, *b = now;
    while (*a || *b) {
        const size_t na = line_length(a), nb = line_length(b);
        if (na != nb || memcmp(a, b, na)) {
            if (wrong++ < SHOWN) print_message("- %.*s\n+ %.*s\n", (int)na, a, (int)nb, b);
        }
        lines++;
        a += na + (a[na] == '\n');
        b += nb + (b[nb] == '\n');
    }
    free(now);
    free(table);
    if (wrong)
        fail_msg("%ld of %ld choices differ from %s (where that is meant: test_choices --write)", wrong,
                 lines, TABLE);
    assert_true(lines > 1000); /* a table cut short is no table */
}

/* Rows that are taken fit where they are prepared, as many as there are at a time. */
static void test_long_rows(void **state)
{
    (void)state;
    const struct mm_type *t = product_type_of(KN_Q4_K);
    int64_t longest = 0;
    for (int64_t n_in = 256; n_in <= 1 << 19; n_in += 256) {
        struct mm_args a = {0};
        if (!mm_plan_slices(t, n_in, &a)) continue;
        longest = n_in;
        assert_true((size_t)a.slices * (size_t)mm_wide_slice(MM_WIDE_MOST, a.slice_units) <= MM_ROWS_BYTES);
        assert_true((size_t)a.slices * (size_t)a.slice_row * MM_PREP_ROWS <= MM_ROWS_BYTES);
    }
    assert_true(longest > 1 << 17);
}

/* What is reserved is enough for a tree of any number of rows, however long the context: rows that go
 * together have room for the tiles of their blocks, and the next ones begin with a tile. */
static void test_trees_over_codes(void **state)
{
    (void)state;
    static const int32_t heads[] = {64, 128, 256, 512}, positions[] = {512, 4096, 16384, 131072, 262144};
    long turns = 0;
    for (size_t h = 0; h < sizeof heads / sizeof *heads; h++)
        for (size_t k = 0; k < sizeof positions / sizeof *positions; k++)
            for (int32_t n_rep = 1; n_rep <= 20; n_rep++)
                for (int32_t n_kv = 1; n_kv <= 32; n_kv *= 2)
                    for (int32_t n = 1; n <= ATTN_FEW; n++) {
                        const int32_t d = heads[h], two = d <= 128 ? 2 : 1;
                        const struct kn_kv kv = {NULL, NULL, {KN_Q8_0, KN_Q8_0}, positions[k], n_kv, d};
                        const int32_t slots = attn_codes_nodes(positions[k], n + 1, 0, true, 0);
                        const size_t tile = (size_t)ATTN_TILE * (size_t)(d + 2) * 4 * (size_t)(n_kv * slots),
                                     room = attn_scratch(n % 3 ? 64 : n, n_kv * n_rep, &kv, 0);
                        const int32_t turn = attn_codes_turn(n, n_rep, n_kv, d, slots, room),
                                      tiles = (attn_tiles(turn, n_rep) + two - 1) / two * two;
                        if (turn < 1 || turn > n || (turn < n && turn * n_rep % ATTN_TILE) ||
                            (size_t)tiles * tile > room)
                            fail_msg("%d rows, %d of %d heads of %d, %d positions: %d rows in %zu bytes", n,
                                     n_kv, n_rep, d, positions[k], turn, room);
                        turns += turn < n;
                    }
    assert_true(turns > 1000);
    assert_int_equal(attn_codes_turn(31, 6, 4, 256, 6, (size_t)12 * 6 * 4 * 16 * 258 * 4), 31);
    assert_int_equal(attn_codes_turn(31, 6, 4, 256, 6, (size_t)11 * 6 * 4 * 16 * 258 * 4), 24);
    assert_int_equal(attn_codes_turn(31, 6, 4, 256, 6, (size_t)2 * 6 * 4 * 16 * 258 * 4), 0);
}

/* Sparse prompts are refused at loading of heads that no form for prompts has the shared memory for: else the
 * first pass would be. */
static void test_sparse_room(void **state)
{
    (void)state;
    static const int32_t heads[] = {64, 128, 256, 512, 96};
    static const struct cuda_device dev[] = {{86, 82, 101376, 102400, false},
                                             {90, 132, 232448, 233472, false}};
    const struct attn_device attn = {0};
    for (int k = 0; k < 2; k++)
        for (int h = 0; h < 5; h++) {
            const struct kn_kv kv = {NULL, NULL, {KN_F16, KN_F16}, 4096, 8, heads[h]};
            const struct attn_call c = {.n = KN_SPARSE_BLOCK,
                                        .n_head = 32,
                                        .n_kv = 8,
                                        .d = heads[h],
                                        .held = 4096,
                                        .k_type = KN_F16,
                                        .v_type = KN_F16,
                                        .causal = true,
                                        .whole = true};
            assert_int_equal(attn_takes_sparse(NULL, &kv), h < 4);
            assert_int_equal(attn_takes_sparse(&dev[k], &kv), k ? h < 4 : h < 1);
            assert_int_equal(attn_plan_of(&dev[k], &attn, &c).form == ATTN_PREFILL, k ? h < 4 : h < 1);
        }
}

static int write_table(void)
{
    char *now = choose_all();
    FILE *f = now ? fopen(TABLE, "w") : NULL;
    if (!f || fputs(now, f) < 0 || fclose(f)) {
        fprintf(stderr, "%s cannot be written\n", TABLE);
        return 4;
    }
    free(now);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "--write")) return write_table();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_table), cmocka_unit_test(test_long_rows),
                                       cmocka_unit_test(test_trees_over_codes),
                                       cmocka_unit_test(test_sparse_room)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
