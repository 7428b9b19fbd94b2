/* cpu.c - the CPU backend: which instruction set, how many threads, memory, and
 * the table of its operations. */
#include "cpu.h"
#include "rows.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CPU_MAX_THREADS 1024

const struct cpu_isa cpu_isa_scalar = {"scalar", &cpu_rows_scalar, &cpu_mm_scalar};
const struct cpu_isa cpu_isa_avx2 = {"avx2", &cpu_rows_avx2, &cpu_mm_avx2};
const struct cpu_isa cpu_isa_avxvnni = {"avx2+vnni", &cpu_rows_avx2, &cpu_mm_avxvnni};
const struct cpu_isa cpu_isa_avx512 = {"avx512", &cpu_rows_avx512, &cpu_mm_avx512};

int cpu_fail(struct cpu_backend *be, int code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(be->head.message, sizeof be->head.message, fmt, ap);
    va_end(ap);
    return code;
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}

/* AVX-VNNI: cpuid leaf 7.1, eax bit 4. */
static bool has_avxvnni(void)
{
#if defined(__x86_64__)
    unsigned a, b, c, d;
    return has_avx2() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && a >= 1 &&
           __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
#else
    return false;
#endif
}

/* The best of AVX2: with AVX-VNNI where the processor has it, which changes no bit. */
static const struct cpu_isa *isa_avx2(void)
{
    return has_avxvnni() ? &cpu_isa_avxvnni : &cpu_isa_avx2;
}

static int choose_isa(const struct cpu_isa **isa, const char *name, char *msg, size_t n)
{
    if (!name || !strcmp(name, "auto")) {
        *isa = has_avx512() ? &cpu_isa_avx512 : has_avx2() ? isa_avx2() : &cpu_isa_scalar;
        return 0;
    }
    if (!strcmp(name, "scalar")) {
        *isa = &cpu_isa_scalar;
        return 0;
    }
    if (strcmp(name, "avx2") && strcmp(name, "avx512")) {
        snprintf(msg, n, "instruction set %s: unknown (expected auto, scalar, avx2 or avx512)", name);
        return KN_EINVAL;
    }
    bool wide = !strcmp(name, "avx512");
    if (!(wide ? has_avx512() : has_avx2())) {
        snprintf(msg, n, "instruction set %s: not supported by this processor (needs %s)", name,
                 wide ? "avx512f, bw, vl, dq and vnni" : "avx2, fma and f16c");
        return KN_EDEVICE;
    }
    *isa = wide ? &cpu_isa_avx512 : isa_avx2();
    return 0;
}

/* ---- memory ---- */

/* calloc, so that the pages of a large cache are the system's zero pages until a row is written there. What
 * calloc returned stands in front of the aligned block. */
static void *cpu_alloc(struct kn_backend *be, size_t bytes)
{
    size_t room = bytes + 64 + sizeof(void *);
    char *whole = room > bytes ? calloc(1, room) : NULL;
    if (!whole) {
        cpu_fail(cpu_of(be), KN_EMEM, "out of memory (%zu bytes)", bytes);
        return NULL;
    }
    char *p = whole + sizeof(void *);
    p += (64 - (uintptr_t)p % 64) % 64;
    memcpy(p - sizeof whole, &whole, sizeof whole);
    return p;
}

static void cpu_free(struct kn_backend *be, void *p)
{
    void *whole;
    (void)be;
    if (!p) return;
    memcpy(&whole, (char *)p - sizeof whole, sizeof whole);
    free(whole);
}

static int cpu_move(struct kn_backend *be, void *dst, const void *src, size_t bytes)
{
    (void)be;
    if (bytes) memmove(dst, src, bytes);
    return 0;
}

static int cpu_sync(struct kn_backend *be)
{
    (void)be;
    return 0;
}

static int cpu_reserve(struct kn_backend *kb, int32_t n, int64_t n_in, int64_t n_vocab, int32_t n_head,
                       int32_t head_dim)
{
    struct cpu_backend *be = cpu_of(kb);
    if (n < 1 || n_in < 0 || n_vocab < 0 || n_vocab > INT32_MAX || n_head < 0 || head_dim < 0)
        return cpu_fail(be, KN_EINVAL, "reserve: bad shape (%d rows, %lld in, %lld logits, %d heads of %d)",
                        n, (long long)n_in, (long long)n_vocab, n_head, head_dim);
    size_t a = cpu_attention_scratch(be, n, n_head, head_dim), b = cpu_pick_scratch(be, n, n_vocab);
    size_t c = cpu_delta_scratch(be), most = a > b ? a : b;
    size_t bytes = ((most > c ? most : c) + 63) & ~(size_t)63; /* memory that no call touches costs nothing */
    if (bytes > be->scratch_rows_bytes) {
        void *p = aligned_alloc(64, bytes);
        if (!p) return cpu_fail(be, KN_EMEM, "out of memory (%zu bytes of scratch)", bytes);
        free(be->scratch_rows);
        be->scratch_rows = p;
        be->scratch_rows_bytes = bytes;
    }
    return n_in ? cpu_mm_reserve(be, n, n_in) : 0;
}

/* Attention's scratch here depends on rows and heads alone. */
static int cpu_reserve_kv(struct kn_backend *kb, int32_t n, int32_t n_head, const struct kn_kv *kv,
                          int32_t window)
{
    struct cpu_backend *be = cpu_of(kb);
    int rc = cpu_check_kv(be, "reserve_kv", kv);
    if (rc) return rc;
    if (n < 1 || n_head < 1 || n_head % kv->n_head_kv || window < 0)
        return cpu_fail(be, KN_EINVAL, "reserve_kv: %d rows of %d heads over %d KV heads, window %d", n,
                        n_head, kv->n_head_kv, window);
    return 0;
}

static const struct kn_ops cpu_ops = {
    .name = "cpu",
    .sinks = true,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .upload = cpu_move,
    .download = cpu_move,
    .copy = cpu_move,
    .sync = cpu_sync,
    .reserve = cpu_reserve,
    .reserve_kv = cpu_reserve_kv,
    .weight_load = cpu_weight_load,
    .experts_load = cpu_experts_load,
    .weight_free = cpu_weight_free,
    .embed = cpu_embed,
    .rope_table = cpu_rope_table,
    .attention_weights = cpu_attention_weights,
    .rms_norm = cpu_rms_norm,
    .linear = cpu_linear,
    .norm_linear = cpu_norm_linear,
    .norm_gated = cpu_norm_gated,
    .rope_store = cpu_rope_store,
    .attention = cpu_attention,
    .sparse_room = cpu_sparse_room,
    .tap = cpu_tap,
    .norm_add = cpu_norm_add,
    .norm_pair = cpu_norm_pair,
    .clusters = cpu_clusters,
    .gate = cpu_gate,
    .route = cpu_route,
    .experts_gated = cpu_experts_gated,
    .experts_down = cpu_experts_down,
    .delta = cpu_delta,
    .softcap = cpu_softcap,
    .pick = cpu_pick,
    .cell = cpu_cell,
    .spread = cpu_spread,
    .conv = cpu_conv,
    .top = cpu_top,
    .edges = cpu_edges,
    .walk = cpu_walk,
    .find_bad = cpu_find_bad,
    .alloc_shared = cpu_alloc_shared,
    .free_shared = cpu_free_shared,
    .place = cpu_place,
    .stamp = cpu_stamp,
    .offer = cpu_offer,
    .keep = cpu_keep,
    .accept = cpu_accept,
    .follow = cpu_follow,
    .settle = cpu_settle,
    .gather = cpu_gather,
    .await = cpu_await,
};

/* Those that this process may run on. */
static int online_processors(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    return n < CPU_MAX_THREADS ? n : CPU_MAX_THREADS;
}

int cpu_open(struct kn_backend **out, const struct kn_open *o, char *msg, size_t n)
{
    const struct cpu_isa *isa;
    int rc = choose_isa(&isa, o->isa, msg, n);
    if (rc) return rc;
    if (o->threads < 0 || o->threads > CPU_MAX_THREADS) {
        snprintf(msg, n, "threads: %d (expected 1 to %d, or 0 for all processors)", o->threads,
                 CPU_MAX_THREADS);
        return KN_EINVAL;
    }
    struct cpu_backend *be = calloc(1, sizeof *be);
    if (!be) {
        snprintf(msg, n, "out of memory (%zu bytes)", sizeof *be);
        return KN_EMEM;
    }
    be->head.op = &cpu_ops;
    be->isa = isa;
    be->threads = o->threads ? o->threads : online_processors();
    be->pool = pool_new(be->threads);
    if (!be->pool) {
        snprintf(msg, n, "%d threads could not be started: %s", be->threads, strerror(errno));
        free(be);
        return KN_EMEM;
    }
    if (cpu_mm_open(be)) {
        snprintf(msg, n, "out of memory (%d threads)", be->threads);
        pool_free(be->pool);
        free(be);
        return KN_EMEM;
    }
    *out = (struct kn_backend *)be;
    return 0;
}

void cpu_close(struct kn_backend *kb)
{
    struct cpu_backend *be = cpu_of(kb);
    cpu_mm_close(be);
    free(be->scratch_rows);
    free(be->scratch_experts);
    pool_free(be->pool);
    free(be);
}
