/* ops_util.h - what the tests of operations share: seeded numbers, and backends of every instruction set and
 * thread count that this machine can run. */
#ifndef TEST_OPS_UTIL_H
#define TEST_OPS_UTIL_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "../../../kernels/kernels.h"
#include "../rnd.h"
#include "attention_case.h"

static inline void *test_alloc(size_t bytes)
{
    void *p = calloc(1, bytes ? bytes : 1);
    assert_non_null(p);
    return p;
}

/* Backend i of every instruction set here x threads 1, 2, 3; NULL past the last. Index 0 is scalar with one
 * thread. */
#define TEST_BACKENDS 9
static inline struct kn_backend *test_backend(int i)
{
    static const char *const isa[] = {"scalar", "avx2", "avx512"};
    if (i >= TEST_BACKENDS) return NULL;
    struct kn_open o = {.device = "cpu", .isa = isa[i / 3], .threads = i % 3 + 1};
    struct kn_backend *be;
    char msg[256];
    int rc = kn_backend_open(&be, &o, msg, sizeof msg);
    if (rc == KN_EDEVICE) return NULL; /* not on this machine: the list is ascending */
    assert_int_equal(rc, 0);
    return be;
}

/* The widest instruction set, one thread: all have the same bits, which test_*_bits check. */
static inline struct kn_backend *test_fastest(void)
{
    struct kn_backend *be = test_backend(0), *next;
    for (int i = 3; i < TEST_BACKENDS && (next = test_backend(i)); i += 3) {
        kn_backend_close(be);
        be = next;
    }
    return be;
}

static inline void assert_ok(struct kn_backend *be, int rc)
{
    if (rc) fail_msg("operation failed (%d): %s", rc, kn_message(be));
}

#define EPS32 0x1p-24 /* half an ulp of 1: the rounding of one float operation */

/* f as a cache of that type keeps it. */
static inline float round_to(uint32_t type, float f)
{
    return type == KN_F16    ? kn_f16_to_f32(kn_f32_to_f16(f))
           : type == KN_BF16 ? kn_bf16_to_f32(kn_f32_to_bf16(f))
                             : f;
}

#endif
