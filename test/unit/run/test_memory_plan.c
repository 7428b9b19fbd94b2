/* test_memory_plan.c - plans of a device's memory: the bytes of a real session, and refusals that say what
 * would fit.
 *
 * The device is made up: it answers what memory it has, and everything else is never called. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../../../common/make/convert.h"
#include "../../../common/run/memory_plan.h"
#include "tiny_pair.h"

/* ---- a device ---- */

static size_t device_free, device_total;
static bool device_fails;

struct device {
    struct kn_backend_head head;
    struct kn_ops op;
};

static int query(struct kn_backend *be, size_t *free_bytes, size_t *total)
{
    struct device *d = (struct device *)(void *)be;
    *free_bytes = device_free;
    *total = device_total;
    snprintf(d->head.message, sizeof d->head.message, "memory: gone");
    return device_fails ? KN_EDEVICE : 0;
}
static size_t as_it_is(size_t bytes)
{
    return bytes;
}
static size_t weight(uint32_t type, int64_t n_in, int64_t n_out, int32_t n_mat, unsigned use)
{
    size_t one = kn_row_bytes(type, n_in) * (size_t)n_out * (n_mat ? (size_t)n_mat : 1);
    return one * ((use & KN_USE_LINEAR) > 0) + one * ((use & KN_USE_ROWS) > 0);
}
static size_t logits_scratch(int32_t n, int64_t n_vocab)
{
    return (size_t)n * (size_t)n_vocab;
}
static size_t scratch_kv(int32_t n, int32_t n_head, const struct kn_kv *kv, int32_t window)
{
    (void)window;
    return (size_t)n * (size_t)n_head * (size_t)kv->head_dim;
}
static size_t products(int32_t n, int64_t n_in)
{
    return (size_t)n * (size_t)n_in;
}
static size_t experts(void)
{
    return 0;
}
static size_t scratch_delta(const struct kn_delta *shape)
{
    return (size_t)shape->n * (size_t)shape->n_v;
}
static const struct kn_memory memory = {.query = query,
                                        .alloc = as_it_is,
                                        .weight = weight,
                                        .scratch = logits_scratch,
                                        .scratch_kv = scratch_kv,
                                        .scratch_delta = scratch_delta,
                                        .products = products,
                                        .experts = experts,
                                        .margin = 1000};

static struct device device;
static struct kn_backend *cpu;
static char target_path[512], drafter_path[512];

static struct kn_backend *open_device(void)
{
    device.op = *kn_op(cpu);
    device.op.name = "made up";
    device.op.memory = &memory;
    device.head.op = &device.op;
    device_free = device_total = (size_t)1 << 40;
    device_fails = false;
    return (struct kn_backend *)(void *)&device;
}

static int setup(void **state)
{
    char msg[256];
    struct err e = {0};
    const struct kn_open o = {.device = "cpu", .threads = 1};
    (void)state;
    if (kn_backend_open(&cpu, &o, msg, sizeof msg)) return -1;
    scratch_begin();
    snprintf(target_path, sizeof target_path, "%s/target.gguf", scratch_dir);
    snprintf(drafter_path, sizeof drafter_path, "%s/drafter.gguf", scratch_dir);
    return tiny_write(target_path, &(struct tiny){.seed = 1}, &e) ||
           tiny_write(drafter_path, &(struct tiny){.seed = 2, .drafter = true}, &e);
}
static int teardown(void **state)
{
    (void)state;
    kn_backend_close(cpu);
    scratch_end();
    return 0;
}

static struct memory_planner *open_planner(const char *drafter)
{
    const struct desc_override o = {.draft_causal = -1};
    struct memory_planner *p;
    struct err e = {0};
    assert_int_equal(
        memory_plan_open(
            &p, open_device(),
            &(struct memory_plan_of){.target = target_path, .drafter = drafter, .drafter_override = &o}, &e),
        0);
    return p;
}

/* ---- */

/* Caches and activations are what the same session takes where memory is taken. */
static void equals_a_session(void **state)
{
    const struct session_options cases[] = {{.ctx = 300, .kv = {KN_F16, KN_F16}},
                                            {.ctx = 5000, .kv = {KN_F32, KN_F32}, .chunk = 100},
                                            {.ctx = 1, .kv = {KN_BF16, KN_BF16}, .block = 3},
                                            {.ctx = 700, .kv = {KN_F32, KN_BF16}}};
    (void)state;
    for (int drafted = 0; drafted < 2; drafted++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            struct memory_planner *p = open_planner(drafted ? drafter_path : NULL);
            struct memory_plan b, without;
            struct model *target, *drafter = NULL;
            struct session *s;
            struct err e = {0};
            assert_int_equal(memory_plan_session(p, &cases[i], false, &b, &e), 0);
            assert_int_equal(memory_plan_session(p, &cases[i], true, &without, &e), 0);
            assert_int_equal(model_load(&target, target_path, cpu, NULL, NULL, NULL, &e), 0);
            if (drafted) assert_int_equal(model_load(&drafter, drafter_path, cpu, NULL, NULL, NULL, &e), 0);
            assert_int_equal(session_new(&s, target, drafter, &cases[i], &e), 0);
            assert_int_equal(b.caches + b.activations, session_bytes(s));
            assert_true(b.caches > 0 && b.weights > 0 && b.scratch > memory.margin);
            assert_int_equal(b.all, b.weights + b.caches + b.activations + b.scratch);
            assert_int_equal(without.weights, 0);
            assert_int_equal(without.all, b.all - b.weights);
            assert_int_equal(b.free, device_free);
            session_free(s);
            model_free(drafter);
            model_free(target);
            memory_plan_close(p);
        }
}

static void fits(void **state)
{
    const struct session_options o = {.ctx = 3000, .kv = {KN_F16, KN_F16}};
    struct memory_planner *p = open_planner(drafter_path);
    struct memory_plan b;
    struct err e = {0};
    (void)state;
    assert_int_equal(memory_plan_session(p, &o, false, &b, &e), 0);
    device_free = b.all;
    assert_int_equal(memory_plan_session(p, &o, false, &b, &e), 0);
    assert_int_equal(memory_plan_check(p, &o, false, &b, &e), 0);
    device_free--;
    assert_int_equal(memory_plan_session(p, &o, false, &b, &e), 0);
    assert_int_equal(memory_plan_check(p, &o, false, &b, &e), -1);
    assert_int_equal(e.code, ERR_DEVICE);
    memory_plan_close(p);
}

/* The context that the hint names fits, and is worth naming. */
static void names_a_context(void **state)
{
    struct session_options o = {.ctx = 100000, .kv = {KN_F16, KN_F16}};
    struct memory_planner *p = open_planner(drafter_path);
    struct memory_plan b;
    struct err e = {0};
    int ctx = 0;
    (void)state;
    assert_int_equal(memory_plan_session(p, &o, false, &b, &e), 0);
    device_free = b.all - b.caches / 2;
    assert_int_equal(memory_plan_session(p, &o, false, &b, &e), 0);
    assert_int_equal(memory_plan_check(p, &o, false, &b, &e), -1);
    assert_int_equal(e.code, ERR_DEVICE);
    assert_non_null(strstr(e.msg, "made up: too little memory"));
    assert_int_equal(sscanf(e.hint, "--ctx %d would fit", &ctx), 1);
    assert_in_range(ctx, 40000, 60000);
    o.ctx = ctx;
    memset(&e, 0, sizeof e);
    assert_int_equal(memory_plan_session(p, &o, false, &b, &e), 0);
    assert_int_equal(memory_plan_check(p, &o, false, &b, &e), 0);
    memory_plan_close(p);
}

static void names_a_type(void **state)
{
    const struct session_options o = {.ctx = 100000, .kv = {KN_F32, KN_F32}};
    struct memory_planner *p = open_planner(NULL);
    struct memory_plan b;
    struct err e = {0};
    (void)state;
    assert_int_equal(memory_plan_session(p, &o, false, &b, &e), 0);
    device_free = b.all - b.caches / 2;
    assert_int_equal(memory_plan_session(p, &o, false, &b, &e), 0);
    assert_int_equal(memory_plan_check(p, &o, false, &b, &e), -1);
    assert_string_equal(e.hint, "--kv f16 would fit");
    memory_plan_close(p);
}

static void says_that_weights_do_not_fit(void **state)
{
    const struct session_options o = {.ctx = 100, .kv = {KN_F16, KN_F16}};
    struct memory_planner *p = open_planner(NULL);
    struct memory_plan b;
    struct err e = {0};
    (void)state;
    device_free = 5000;
    assert_int_equal(memory_plan_session(p, &o, false, &b, &e), 0);
    assert_int_equal(memory_plan_check(p, &o, false, &b, &e), -1);
    assert_non_null(strstr(e.hint, "the weights alone"));
    memset(&e, 0, sizeof e);
    assert_int_equal(memory_plan_session(p, &o, true, &b, &e), 0);
    assert_int_equal(memory_plan_check(p, &o, true, &b, &e), -1);
    assert_non_null(strstr(e.hint, "no context fits beside the weights"));
    memory_plan_close(p);
}

static void reports_failures(void **state)
{
    const struct session_options good = {.ctx = 100, .kv = {KN_F16, KN_F16}},
                                 bad = {.ctx = 100, .kv = {KN_Q8_0, KN_Q8_0}};
    const struct desc_override over = {.draft_causal = -1};
    struct memory_planner *p = open_planner(NULL), *none;
    struct memory_plan b;
    struct err e = {0};
    (void)state;
    device_fails = true;
    assert_int_equal(memory_plan_session(p, &good, false, &b, &e), -1);
    assert_int_equal(e.code, ERR_DEVICE);
    assert_string_equal(e.msg, "made up: memory: gone");
    device_fails = false;
    memset(&e, 0, sizeof e);
    assert_int_equal(memory_plan_session(p, &bad, false, &b, &e), -1);
    assert_int_equal(e.code, ERR_USAGE);
    memory_plan_close(p);
    memset(&e, 0, sizeof e);
    assert_int_equal(
        memory_plan_open(&none, open_device(),
                         &(struct memory_plan_of){.target = "/nonexistent", .drafter_override = &over}, &e),
        -1);
    assert_null(none);
    assert_int_equal(e.code, ERR_IO);
    memory_plan_close(NULL);
}

/* ---- what the host's memory may hold ---- */

static void *never(struct kn_backend *be, size_t bytes)
{
    (void)be, (void)bytes;
    fail();
    return NULL;
}

/* The least number of layers whose keys and values make room, and what they take of the host's memory. */
static void moves_caches(void **state)
{
    struct session_options o = {.ctx = 100000, .kv = {KN_F16, KN_F16}};
    struct memory_planner *p;
    struct memory_plan b, all, one;
    struct err e = {0};
    (void)state;
    open_device();
    device.op.alloc_host = never;
    const struct desc_override over = {.draft_causal = -1};
    assert_int_equal(
        memory_plan_open(&p, (struct kn_backend *)(void *)&device,
                         &(struct memory_plan_of){.target = target_path, .drafter_override = &over}, &e),
        0);
    assert_int_equal(memory_plan_session(p, &o, false, &all, &e), 0);
    assert_int_equal(all.host, 0);
    const uint64_t layer = all.caches / TINY_LAYERS;
    device_free = all.all - layer / 2; /* one there, and room for it here: nothing is won */
    assert_int_equal(memory_plan_session(p, &o, false, &b, &e), 0);
    assert_int_equal(memory_plan_check(p, &o, false, &b, &e), -1);
    assert_string_equal(e.hint, "--kv-host would fit");
    assert_int_equal(memory_plan_kv_host(p, &o, false, &e), 0);
    assert_int_equal(o.kv_host, 2);
    assert_int_equal(memory_plan_session(p, &o, false, &b, &e), 0);
    assert_int_equal(memory_plan_check(p, &o, false, &b, &e), 0);
    assert_int_equal(b.host, 2 * layer);
    assert_int_equal(b.caches, layer);
    assert_int_equal(b.all, all.all - layer);
    o.kv_host = 0, device_free = 1;
    assert_int_equal(memory_plan_kv_host(p, &o, false, &e), 0); /* all of them, and one that is none */
    assert_int_equal(memory_plan_session(p, &o, false, &one, &e), 0);
    assert_int_equal(one.caches, 0);
    /* more than any machine has */
    o = (struct session_options){.ctx = 1 << 30, .kv = {KN_F32, KN_F32}, .kv_host = 3};
    device_free = (size_t)1 << 50;
    memset(&e, 0, sizeof e);
    assert_int_equal(memory_plan_session(p, &o, false, &b, &e), 0);
    assert_int_equal(memory_plan_check(p, &o, false, &b, &e), -1);
    assert_int_equal(e.code, ERR_IO);
    assert_non_null(strstr(e.msg, "too little of the host's memory (expected 768.00 GiB"));
    memory_plan_close(p);
}

/* The least number of experts, and that with it a plan fits. */
static void moves_experts(void **state)
{
    const struct session_options o = {.ctx = 10, .kv = {KN_F32, KN_F32}};
    const struct desc_override over = {.draft_causal = -1};
    const char *path = scratch("moe.gguf");
    struct convert make;
    struct memory_planner *p;
    struct memory_plan b, all;
    struct model *m;
    struct err e = {0};
    int n = 0;
    (void)state;
    convert_defaults(&make);
    make.input = "test/family/qwen3moe.json", make.output = path;
    make.random = true, make.seed = 1;
    if (convert_run(&make, &e)) fail_msg("%s", e.msg);
    struct kn_backend *be = open_device();
    assert_int_equal(
        memory_plan_open(&p, be, &(struct memory_plan_of){.target = path, .drafter_override = &over}, &e), 0);
    assert_int_equal(memory_plan_session(p, &o, false, &all, &e), 0);
    assert_int_equal(all.host, 0);
    device_free = all.all - all.weights / 3;
    assert_int_equal(memory_plan_session(p, &o, false, &b, &e), 0);
    assert_int_equal(memory_plan_check(p, &o, false, &b, &e), -1);
    assert_int_equal(sscanf(e.hint, "--experts-host %d would fit", &n), 1);
    memory_plan_close(p);
    for (int less = 1; less >= 0; less--) {
        memset(&e, 0, sizeof e);
        assert_int_equal(model_open(&m, path, be, NULL, &e), 0);
        assert_int_equal(model_place(m, n - less, NULL, &e), 0);
        assert_int_equal(
            memory_plan_open(
                &p, be, &(struct memory_plan_of){.target = path, .drafter_override = &over, .placed = m}, &e),
            0);
        assert_int_equal(memory_plan_session(p, &o, false, &b, &e), 0);
        assert_int_equal(memory_plan_check(p, &o, false, &b, &e), less ? -1 : 0);
        assert_in_range(b.host, 1, all.weights);
        /* but for the tables of places */
        assert_true(b.all + b.host > all.all && b.all + b.host < all.all + 1000);
        memory_plan_close(p);
        model_free(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(moves_caches),
        cmocka_unit_test(moves_experts),
        cmocka_unit_test(equals_a_session),
        cmocka_unit_test(fits),
        cmocka_unit_test(names_a_context),
        cmocka_unit_test(names_a_type),
        cmocka_unit_test(says_that_weights_do_not_fit),
        cmocka_unit_test(reports_failures),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
