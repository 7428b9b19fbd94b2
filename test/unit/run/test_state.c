/* test_state.c - states whose checksums are right and whose contents are not: each field changed in turn,
 * every checksum made anew, must be refused by what it says, or end in a message about the numbers that came
 * of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <zlib.h>

#include "../../../common/base/mem.h"
#include "../../../common/run/session.h"
#include "../../../common/run/spec.h"
#include "../../../common/run/state.h"
#include "tiny_pair.h"

enum { N_PROMPT = 20 };

static struct kn_backend *be;
static struct model *target, *drafter;
static uint8_t *good; /* a state of target and drafter */
static uint64_t n_good;

static void must(int rc, const struct err *e)
{
    if (rc) fail_msg("(%d) %s", e->code, e->msg);
}

static struct session *start(void)
{
    struct err e = {0};
    struct session *s;
    const struct session_options o = {.ctx = 60, .kv = {KN_F16, KN_F16}};
    must(session_new(&s, target, drafter, &o, &e), &e);
    return s;
}

static uint64_t get(const uint8_t *p, int n)
{
    uint64_t v = 0;
    while (n--) v = v << 8 | p[n];
    return v;
}

static void put(uint8_t *p, int n, uint64_t v)
{
    for (int i = 0; i < n; i++, v >>= 8) p[i] = (uint8_t)v;
}

/* The payload of the n-th section. */
static uint8_t *section(uint8_t *data, int n)
{
    uint8_t *p = data + 16;
    while (n--) p += 12 + get(p + 4, 8) + 4;
    return p + 12;
}

static void checksums(uint8_t *data, uint64_t n)
{
    for (uint8_t *p = data + 16; p < data + n;) {
        uint64_t size = 12 + get(p + 4, 8);
        put(p + size, 4, crc32(0, p, (uInt)size));
        p += size + 4;
    }
}

/* Resumes from data and generates; e says how that went. */
static void resume(const uint8_t *data, uint64_t n, struct err *e)
{
    const char *path = scratch("state");
    const struct spec_options g = {.n = 9, .sampler = {.top_p = 1, .repeat_penalty = 1}};
    struct session *s = start();
    struct spec_stats st;
    struct state *in = NULL;
    struct state_info info;
    scratch_write(path, data, n);
    if (state_open(&in, path, &info, e) == 0 && state_restore(in, s, e) == 0)
        (void)spec_generate(s, &g, &st, e);
    state_close(in);
    session_free(s);
}

static const struct {
    const char *what;
    int section, offset, bytes;
    uint64_t value;
    enum err_class code; /* ERR_NONE: nothing to see, a number that changes no size */
    const char *message;
} edit[] = {
    {"nothing", 0, 0, 4, N_PROMPT, ERR_NONE, NULL},
    {"no tokens", 0, 0, 4, 0, ERR_FORMAT, "tokens or chunk out of range"},
    {"fewer tokens", 0, 0, 4, N_PROMPT - 1, ERR_FORMAT, "section TOKN has the wrong size"},
    {"2^30 tokens", 0, 0, 4, 1 << 30, ERR_FORMAT, "ends early"},
    {"2^32-1 tokens", 0, 0, 4, UINT32_MAX, ERR_FORMAT, "tokens or chunk out of range"},
    {"no chunk", 0, 4, 4, 0, ERR_FORMAT, "tokens or chunk out of range"},
    {"another chunk", 0, 4, 4, 7, ERR_FORMAT, "made with another chunk (expected 512, got 7)"},
    {"a cache of Q4_1", 0, 8, 4, KN_Q4_1, ERR_FORMAT, "cache type not supported"},
    {"a cache of f32", 0, 8, 4, KN_F32, ERR_FORMAT, "another cache type"},
    {"another vocabulary", 0, 12, 4, TINY_VOCAB + 1, ERR_FORMAT, "sizes do not fit the target"},
    {"another depth", 0, 16, 4, TINY_LAYERS - 1, ERR_FORMAT, "sizes do not fit the target"},
    {"a deeper drafter", 0, 20, 4, TINY_DRAFT_LAYERS + 1, ERR_FORMAT, "drafter layers"},
    {"more taps", 0, 24, 4, 60000, ERR_FORMAT, "section META: taps out of range"},
    {"flags", 0, 28, 4, 32, ERR_FORMAT, "section META: unknown flags (expected 0 to 31, got 32)"},
    {"a compressed prompt", 0, 28, 4, 16, ERR_FORMAT, "or more for a compressed prompt, got"},
    {"a second drafter", 0, 28, 4, 2, ERR_FORMAT,
     "section META has the wrong size (expected 484 or more for a second"},
    {"a hidden state", 0, 28, 4, 1, ERR_FORMAT, "with the last hidden state"},
    {"another target", 0, 32, 8, 1, ERR_FORMAT, "was made with another target"},
    {"another drafter", 0, 48, 8, 1, ERR_FORMAT, "holds the context of another drafter"},
    {"another tap", 0, 320, 4, 77, ERR_FORMAT, "with taps 77"},
    {"an id too large", 1, 8, 4, TINY_VOCAB, ERR_FORMAT, "token 2: id out of the vocabulary"},
    {"an id below 0", 1, 0, 4, UINT32_MAX, ERR_FORMAT, "token 0: id out of the vocabulary"},
    {"a logit that is NaN", 2, 4, 4, 0x7fc00000, ERR_DEVICE, "position 19"},
    {"an endless logit", 2, 4, 4, 0x7f800000, ERR_DEVICE, "position 19"},
    {"another first position", 3, 0, 4, 1, ERR_FORMAT, "section KV  : its header does not fit"},
    {"more positions", 3, 4, 4, N_PROMPT + 1, ERR_FORMAT, "section KV  : its header does not fit"},
    {"more heads", 3, 8, 4, 9, ERR_FORMAT, "section KV  : its header does not fit"},
    {"a key that is NaN", 3, 16, 2, 0x7e00, ERR_DEVICE, "position 20"},
    {"another context", 3 + TINY_LAYERS, 0, 4, 5, ERR_FORMAT, "section DKV : its header does not fit"},
    {"a context that is NaN", 3 + TINY_LAYERS + TINY_DRAFT_LAYERS - 1, 16, 2, 0x7e00, ERR_NONE, NULL},
};

static void test_fields(void **state)
{
    uint8_t *data = mem_alloc(n_good);
    (void)state;
    assert_non_null(data);
    for (size_t i = 0; i < sizeof edit / sizeof edit[0]; i++) {
        struct err e = {0};
        memcpy(data, good, n_good);
        put(section(data, edit[i].section) + edit[i].offset, edit[i].bytes, edit[i].value);
        checksums(data, n_good);
        resume(data, n_good, &e);
        if (e.code != edit[i].code || (edit[i].message && !strstr(e.msg, edit[i].message)))
            fail_msg("%s: expected (%d) %s, got (%d) %s", edit[i].what, edit[i].code,
                     edit[i].message ? edit[i].message : "", e.code, e.msg);
    }
    mem_free(data);
}

/* A section left out or in another place. */
static void test_order(void **state)
{
    const uint64_t from = (uint64_t)(section(good, 1) - 12 - good), size = get(good + from + 4, 8) + 16;
    uint8_t *data = mem_alloc(n_good + size);
    struct err e = {0};
    (void)state;
    assert_non_null(data);
    memcpy(data, good, from);
    memcpy(data + from, good + from + size, n_good - from - size);
    resume(data, n_good - size, &e);
    assert_int_equal(e.code, ERR_FORMAT);
    assert_non_null(strstr(e.msg, "section out of order (expected TOKN, got LOGT)"));
    e = (struct err){0};
    memcpy(data, good, from + size);
    memcpy(data + from + size, good + from, n_good - from); /* TOKN twice */
    resume(data, n_good + size, &e);
    assert_int_equal(e.code, ERR_FORMAT);
    assert_non_null(strstr(e.msg, "section out of order (expected LOGT, got TOKN)"));
    mem_free(data);
}

static void prepare(void)
{
    char path[2][128], msg[256];
    const struct kn_open o = {.device = "cpu", .isa = "auto", .threads = 1};
    struct err e = {0};
    struct io_out out;
    int32_t ids[N_PROMPT];
    for (int i = 0; i < 2; i++) snprintf(path[i], sizeof path[i], "%s", scratch(i ? "d.gguf" : "t.gguf"));
    for (int i = 0; i < N_PROMPT; i++) ids[i] = i * 7 % TINY_MASK;
    must(tiny_write(path[0], &(struct tiny){.seed = 1}, &e) ||
             tiny_write(path[1], &(struct tiny){.seed = 2, .drafter = true}, &e),
         &e);
    assert_int_equal(kn_backend_open(&be, &o, msg, sizeof msg), 0);
    must(model_load(&target, path[0], be, NULL, NULL, NULL, &e) ||
             model_load(&drafter, path[1], be, NULL, NULL, NULL, &e),
         &e);
    struct session *s = start();
    must(session_prefill(s, ids, N_PROMPT, NULL, NULL, &e), &e);
    must(io_out_open(&out, scratch("good"), true, NULL, 0, &e) || state_save(s, &out, &e) ||
             io_out_commit(&out, &e),
         &e);
    session_free(s);
    FILE *f = fopen(scratch("good"), "rb");
    assert_non_null(f);
    must(io_read_all(fileno(f), "good", 1 << 20, &good, &n_good, &e), &e);
    fclose(f);
}

static int setup(void **state)
{
    (void)state;
    prepare();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    mem_free(good);
    model_free(drafter);
    model_free(target);
    kn_backend_close(be);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fields), cmocka_unit_test(test_order)};
    scratch_begin();
    int rc = cmocka_run_group_tests_name("state", tests, setup, teardown);
    scratch_end();
    return rc;
}
