/* test_host.c - keys and values in the host's memory: streams are those of caches in the device's.
 *
 * The device is the CPU with a table that tells the two memories apart: what alloc_host gave may not be read
 * by an operation but carry, so it is kept unreadable meanwhile. */
#include <sys/mman.h>
#include <unistd.h>

#include "engine_fixture.h"

/* ---- a device with a memory of its own ---- */

static struct {
    const struct kn_ops *own;
    struct kn_ops op;
    struct {
        char *at;
        size_t bytes;
    } area[64];
    size_t taken, most;
    int brought, sent; /* calls of carry */
} apart;

static size_t whole_pages(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

static void *take_host(struct kn_backend *b, size_t bytes)
{
    (void)b;
    for (size_t i = 0; i < sizeof apart.area / sizeof *apart.area; i++) {
        if (apart.area[i].at) continue;
        char *p = mmap(NULL, whole_pages(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_true(p != MAP_FAILED);
        apart.area[i].at = p, apart.area[i].bytes = whole_pages(bytes);
        apart.taken += bytes;
        if (apart.taken > apart.most) apart.most = apart.taken;
        return p;
    }
    fail_msg("more areas than layers");
    return NULL;
}

/* The area that p lies in, or -1. */
static int area_of(const void *p)
{
    for (size_t i = 0; i < sizeof apart.area / sizeof *apart.area; i++)
        if (apart.area[i].at && (const char *)p >= apart.area[i].at &&
            (const char *)p < apart.area[i].at + apart.area[i].bytes)
            return (int)i;
    return -1;
}

static void may_touch(const void *p, bool may)
{
    const int i = area_of(p);
    if (i >= 0)
        assert_int_equal(
            mprotect(apart.area[i].at, apart.area[i].bytes, may ? PROT_READ | PROT_WRITE : PROT_NONE), 0);
}

static void give_host(struct kn_backend *b, void *p)
{
    const int i = area_of(p);
    (void)b;
    if (!p) return;
    assert_true(i >= 0);
    munmap(p, apart.area[i].bytes);
    apart.area[i].at = NULL;
    apart.taken = 0;
    for (size_t j = 0; j < sizeof apart.area / sizeof *apart.area; j++)
        if (apart.area[j].at) apart.taken += apart.area[j].bytes;
}

static void carry_side(void *to, const void *from, size_t row, int32_t first, int32_t n)
{
    may_touch(to, true), may_touch(from, true);
    memcpy((char *)to + (size_t)first * row, (const char *)from + (size_t)first * row, (size_t)n * row);
    may_touch(to, false), may_touch(from, false);
}

static int carry(struct kn_backend *b, const struct kn_kv *to, const struct kn_kv *from, const int32_t *pos,
                 int32_t n)
{
    const int32_t first = n ? pos[0] : 0, count = n ? n : pos[0];
    (void)b;
    assert_int_equal(kn_kv_positions(to), kn_kv_positions(from));
    assert_true((area_of(to->k) < 0) != (area_of(from->k) < 0) && (area_of(from->k) >= 0) == !n);
    assert_true(first + count <= kn_kv_positions(to));
    carry_side(to->k, from->k, kn_kv_row_bytes(to, to->type.k), first, count);
    carry_side(to->v, from->v, kn_kv_row_bytes(to, to->type.v), first, count);
    if (n)
        apart.sent++;
    else
        apart.brought++;
    return 0;
}

static int to_memory(struct kn_backend *b, void *dst, const void *host, size_t bytes)
{
    may_touch(dst, true);
    const int rc = apart.own->upload(b, dst, host, bytes);
    may_touch(dst, false);
    return rc;
}

static int from_memory(struct kn_backend *b, void *host, const void *src, size_t bytes)
{
    may_touch(src, true);
    const int rc = apart.own->download(b, host, src, bytes);
    may_touch(src, false);
    return rc;
}

static void apart_on(void)
{
    struct kn_backend_head *head = (struct kn_backend_head *)(void *)be;
    apart.own = head->op;
    apart.op = *head->op;
    apart.op.alloc_host = take_host;
    apart.op.free_host = give_host;
    apart.op.carry = carry;
    apart.op.upload = to_memory;
    apart.op.download = from_memory;
    head->op = &apart.op;
    apart.taken = apart.most = 0, apart.brought = apart.sent = 0;
}

static void apart_off(void)
{
    ((struct kn_backend_head *)(void *)be)->op = apart.own;
    assert_int_equal(apart.taken, 0); /* all is given back */
}

/* ---- streams ---- */

static void alike(const struct way *y, bool recorded)
{
    static struct run want, got;
    run(y, &want);
    for (int layers = 1; layers <= TINY_LAYERS + 1; layers++) {
        struct way hosted = *y;
        hosted.kv_host = layers;
        apart_on();
        if (recorded)
            run_recorded(&hosted, &got);
        else
            run(&hosted, &got);
        assert_true(apart.brought >= layers % (TINY_LAYERS + 1) && apart.sent > 0 && apart.most > 0);
        apart_off();
        assert_memory_equal(want.id, got.id, sizeof want.id);
        assert_int_equal(want.n_trace, got.n_trace);
        assert_memory_equal(want.trace, got.trace, (size_t)want.n_trace * sizeof *want.trace);
        same_counts(&want.st, &got.st);
    }
}

static void test_plain(void **state)
{
    (void)state;
    alike(&(struct way){.prompt = 70, .chunk = 17}, false);
    alike(&(struct way){.prompt = 300, .sampler = sampled, .kv = KN_BF16}, false);
    alike(&(struct way){.prompt = 1, .kv = KN_F32}, false);
}

static void test_drafted(void **state)
{
    (void)state;
    alike(&(struct way){.prompt = 70, .drafter = true}, false);
    alike(&(struct way){.prompt = 260, .drafter = true, .block = 3, .sampler = sampled, .chunk = 64}, false);
}

static void test_recorded(void **state)
{
    (void)state;
    alike(&(struct way){.prompt = 70, .drafter = true}, true);
}

static void test_resumed(void **state)
{
    (void)state;
    alike(&(struct way){.prompt = 70, .drafter = true, .state = true}, false);
    alike(&(struct way){.prompt = 70, .drafter = true, .state = true, .append = true}, false);
}

/* A state that one wrote the other continues. */
static void test_states_are_alike(void **state)
{
    (void)state;
    struct err e = {0};
    struct way y = {.prompt = 90, .drafter = true};
    uint8_t *file[2] = {NULL, NULL};
    long n[2];
    for (int host = 0; host < 2; host++) {
        y.kv_host = host * 2;
        apart_on();
        struct model *t = load(target_path, be), *d = load(drafter_path, be);
        struct session *s = start(&y, t, d);
        must(session_prefill(s, prompt, y.prompt, NULL, NULL, &e), &e);
        assert_int_equal(session_kv_hosted(s), y.kv_host);
        assert_true((s->host_bytes > 0) == (host > 0));
        save(s, scratch("one"));
        session_free(s);
        model_free(d), model_free(t);
        apart_off();
        FILE *f = fopen(scratch("one"), "rb");
        assert_true(f && fseek(f, 0, SEEK_END) == 0);
        n[host] = ftell(f);
        rewind(f);
        file[host] = malloc((size_t)n[host]);
        assert_true(file[host] && fread(file[host], 1, (size_t)n[host], f) == (size_t)n[host]);
        fclose(f);
    }
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(file[0], file[1], (size_t)n[0]);
    free(file[0]), free(file[1]);
}

/* Where all memory is the host's nothing moves; a negative number is none. */
static void test_options(void **state)
{
    (void)state;
    struct err e = {0};
    struct session *s;
    struct model *t = load(target_path, be);
    const struct way y = {.prompt = 9, .kv_host = 2};
    s = start(&y, t, NULL);
    assert_int_equal(session_kv_hosted(s), 0);
    session_free(s);
    const struct session_options o = {.ctx = 10, .kv = {KN_F16, KN_F16}, .kv_host = -1};
    expect_error(session_new(&s, t, NULL, &o, &e), &e, ERR_USAGE,
                 "layers in the host's memory out of range (expected 0 or more, got -1)");
    model_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),    cmocka_unit_test(test_drafted),
        cmocka_unit_test(test_recorded), cmocka_unit_test(test_resumed),
        cmocka_unit_test(test_options),  cmocka_unit_test(test_states_are_alike),
    };
    return cmocka_run_group_tests(tests, engine_begin, engine_end);
}
