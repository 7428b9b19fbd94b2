/* test_math.c - our own functions against long double, and the conversions, with the bounds that math.h
 * states. */
#include "ops_util.h"

#include "../../../kernels/cpu/math.h"
#include "../../../kernels/cpu/rows.h"

/* Distance of got from want in units of the last place of a float at want. */
static double ulps(float got, long double want)
{
    int e;
    frexpl(want, &e);
    long double ulp = ldexpl(1.0L, (e < -125 ? -125 : e) - 24);
    return (double)(fabsl((long double)got - want) / ulp);
}

static void each(struct vec (*f)(struct vec), float *x, int n)
{
    for (int i = 0; i < n; i += 16) v_store(x + i, f(v_load(x + i)));
}

typedef long double (*exact_fn)(long double);

static double sweep(struct vec (*f)(struct vec), exact_fn exact, float from, float to, int n, double floor)
{
    double worst = 0;
    for (int i = 0; i < n; i += 16) {
        float x[16], y[16];
        for (int j = 0; j < 16; j++) x[j] = y[j] = (float)(from + ((double)to - from) * (i + j) / n);
        each(f, y, 16);
        for (int j = 0; j < 16; j++) {
            long double want = exact(x[j]);
            double u = ulps(y[j], want);
            if (fabsl((long double)y[j] - want) > floor && u > worst) worst = u;
        }
    }
    return worst;
}

static long double silu_exact(long double x)
{
    return x / (1.0L + expl(-x));
}
static long double gelu_exact(long double x)
{
    return 0.5L * x * (1.0L + tanhl(sqrtl(2.0L / acosl(-1.0L)) * (x + 0.044715L * x * x * x)));
}

static void test_exp(void **state)
{
    (void)state;
    double a = sweep(v_exp, expl, -103.9f, 88.7f, 400000, 0), b = sweep(v_exp, expl, -1e-3f, 1e-3f, 20000, 0);
    print_message("exp: %.3f ulp, near 0 %.3f\n", a, b);
    assert_true(a < 1.0 && b < 1.0);
    assert_true(cpu_expf(0.0f) == 1.0f);
    assert_true(cpu_expf(-INFINITY) == 0.0f && cpu_expf(-200.0f) == 0.0f);
    assert_true(cpu_expf(INFINITY) == INFINITY && cpu_expf(1000.0f) == INFINITY);
    assert_true(isnan(cpu_expf(NAN)));
}

static void test_tanh(void **state)
{
    (void)state;
    double a = sweep(v_tanh, tanhl, -12.0f, 12.0f, 200000, 0),
           b = sweep(v_tanh, tanhl, -0.7f, 0.7f, 200000, 0);
    print_message("tanh: %.3f ulp, small %.3f\n", a, b);
    assert_true(a < 1.5 && b < 1.5);
    float x[16] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-40f, -1e-40f, 100.0f, -100.0f};
    each(v_tanh, x, 16);
    assert_true(x[0] == 0.0f && !signbit(x[0]) && signbit(x[1]) && x[2] == 1.0f && x[3] == -1.0f);
    assert_true(isnan(x[4]) && x[5] == 1e-40f && x[6] == -1e-40f && x[7] == 1.0f && x[8] == -1.0f);
}

static void test_activations(void **state)
{
    (void)state;
    /* silu: the errors of exp, a sum and a division. gelu: 1 + tanh cancels below 0, where 2^-24 of x/2
     * stays. */
    double s = sweep(v_silu, silu_exact, -80.0f, 80.0f, 200000, 0),
           g = sweep(v_gelu_tanh, gelu_exact, 0.0f, 20.0f, 100000, 0);
    double n = sweep(v_gelu_tanh, gelu_exact, -12.0f, 0.0f, 100000, 1e-6);
    print_message("silu %.3f ulp, gelu %.3f ulp above 0, %.3f below\n", s, g, n);
    assert_true(s < 3.0 && g < 2.0 && n == 0.0);
    float x[16] = {NAN, -200.0f, 200.0f, 0.0f};
    each(v_silu, x, 16);
    assert_true(isnan(x[0]) && x[1] == 0.0f && x[2] == 200.0f && x[3] == 0.0f);
}

static long double sigmoid_exact(long double x)
{
    return 1.0L / (1.0L + expl(-x));
}

static void test_sigmoid(void **state)
{
    (void)state;
    /* The errors of exp, a sum and a division. The exact values below -87 are subnormal. */
    double a = sweep(v_sigmoid, sigmoid_exact, -103.0f, 40.0f, 400000, 0),
           b = sweep(v_sigmoid, sigmoid_exact, -1e-3f, 1e-3f, 20000, 0);
    print_message("sigmoid %.3f ulp, near 0 %.3f\n", a, b);
    assert_true(a < 3.0 && b < 3.0);
    float x[16] = {NAN, -INFINITY, INFINITY, 0.0f, -0.0f, -1e30f, 1e30f};
    each(v_sigmoid, x, 16);
    assert_true(isnan(x[0]) && x[1] == 0.0f && x[2] == 1.0f && x[3] == 0.5f && x[4] == 0.5f && x[5] == 0.0f &&
                x[6] == 1.0f);
}

static void test_softplus(void **state)
{
    (void)state;
    double worst = 0;
    for (int i = 0; i < 400000; i++) { /* one rounding, and where exp is all of it, exp's */
        float x = (float)(-103.0 + 203.0 * i / 400000);
        double u = ulps(cpu_softplus(x), fmaxl(x, 0) + log1pl(expl(-fabsl((long double)x))));
        worst = u > worst ? u : worst;
    }
    print_message("softplus %.3f ulp\n", worst);
    assert_true(worst < 2.0);
    assert_true(cpu_softplus(-INFINITY) == 0.0f && cpu_softplus(-1e30f) == 0.0f);
    assert_true(cpu_softplus(INFINITY) == INFINITY && cpu_softplus(1e30f) == 1e30f);
    assert_true(isnan(cpu_softplus(NAN)));
}

static void test_log(void **state)
{
    (void)state;
    uint64_t seed = 1;
    double worst = 0;
    for (int i = 0; i < 200000; i++) {
        double x;
        if (i % 4 == 0)
            x = rnd_uniform(&seed);
        else if (i % 4 == 1)
            x = 1.0 - ((double)(rnd_next(&seed) >> 40) + 0.5) * 0x1p-32;
        else if (i % 4 == 2)
            x = ldexp(rnd_uniform(&seed), (int)(rnd_next(&seed) % 2000) - 1000);
        else
            x = 0.5 + rnd_uniform(&seed);
        long double want = logl(x);
        int e;
        frexpl(want, &e);
        double u = (double)(fabsl((long double)cpu_log(x) - want) / ldexpl(1.0L, e - 53));
        worst = u > worst ? u : worst;
    }
    print_message("log: %.3f ulp\n", worst);
    assert_true(worst < 1.0);
    assert_true(cpu_log(1.0) == 0.0 && cpu_log(0.0) == -HUGE_VAL && isnan(cpu_log(-1.0)) &&
                isnan(cpu_log(NAN)));
    assert_true(cpu_log(HUGE_VAL) == HUGE_VAL && fabs(cpu_log(0x1p-1074) + 744.4400719213812) < 1e-12);
}

static void test_sincos(void **state)
{
    (void)state;
    uint64_t seed = 2;
    long double worst = 0;
    for (int i = 0; i < 200000; i++) {
        double range = i % 3 == 0 ? 1e6 : i % 3 == 1 ? 2147483647.0 : 10.0;
        double p = floor(rnd_uniform(&seed) * range), f = i % 2 ? rnd_uniform(&seed) : 1.0, x = p * f, s, c;
        cpu_sincos(x, fma(p, f, -x), &s, &c);
        long double exact = (long double)p * f; /* 64 bits: 2^-64 of 2^31 lost at most */
        long double a = fabsl(s - sinl(exact)), b = fabsl(c - cosl(exact));
        worst = a > worst ? a : worst;
        worst = b > worst ? b : worst;
    }
    print_message("sincos: error %.3Lg\n", worst);
    /* half an ulp of 1 (1.1e-16), the reduction's, and what the long double product lost: 2^31 * 2^-64
     * = 1.2e-10 of the largest range would hide it, so the bound is met where that product is exact, below */
    assert_true(worst < 2.5e-10L);
    worst = 0;
    for (int i = 0; i < 200000; i++) {
        double x = floor(rnd_uniform(&seed) * 1048576.0) + (i % 2 ? rnd_uniform(&seed) : 0.0), s, c;
        cpu_sincos(x, 0.0, &s, &c);
        long double a = fabsl(s - sinl(x)), b = fabsl(c - cosl(x));
        worst = a > worst ? a : worst;
        worst = b > worst ? b : worst;
    }
    print_message("sincos to 2^20: error %.3Lg\n", worst);
    assert_true(worst < 2.3e-16L); /* 1 ulp of 1 */
}

/* Every half, and floats around every half and between: against the definition written out with ldexp and
 * rint. */
static uint16_t f16_slow(float f)
{
    uint16_t sign = signbit(f) ? 0x8000 : 0;
    double a = fabs((double)f);
    if (a >= 65520.0) return sign | 0x7c00;
    if (a == 0.0) return sign;
    int e;
    frexp(a, &e);
    e = e < -13 ? -13 : e;
    double m = rint(ldexp(a, 11 - e)); /* ulp 2^(e-11) */
    return sign | (uint16_t)((int)m + (e + 13) * 1024);
}

static void test_halves(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = vec_f16_1((uint16_t)h), k = kn_f16_to_f32((uint16_t)h);
        if ((h & 0x7c00) == 0x7c00) {
            assert_true((h & 0x3ff) ? isnan(f) && isnan(k) : isinf(f) && f == k);
            continue;
        }
        double m = (h & 0x3ff) + ((h & 0x7c00) ? 1024 : 0);
        int e = (h & 0x7c00) ? (int)(h >> 10 & 31) - 25 : -24;
        assert_true((double)f == (h & 0x8000 ? -1 : 1) * ldexp(m, e) && f == k);
        assert_int_equal(vec_to_f16_1(f), h);
        for (int d = -2; d <= 2; d++)
            for (int half = 0; half < 2; half++) {
                float g = vec_float1(vec_bits1(f) + (uint32_t)(half ? 0x1000 : 0) + (uint32_t)d);
                if (isnan(g)) continue;
                assert_int_equal(vec_to_f16_1(g), f16_slow(g));
                assert_int_equal(vec_to_f16_1(g), kn_f32_to_f16(g));
            }
    }
    uint64_t seed = 3;
    for (int i = 0; i < 200000; i++) {
        float f = vec_float1((uint32_t)rnd_next(&seed));
        if (isnan(f)) {
            assert_true(isnan(vec_bf16_1(vec_to_bf16_1(f))) && isnan(vec_f16_1(vec_to_f16_1(f))));
            continue;
        }
        assert_int_equal(vec_to_bf16_1(f), kn_f32_to_bf16(f));
        assert_int_equal(vec_to_f16_1(f), f16_slow(f));
        float b = vec_bf16_1(vec_to_bf16_1(f));
        assert_true(isinf(b) || fabs((double)b - f) <= fabs((double)f) * 0x1p-8 || fabsf(f) < 1e-37f);
    }
}

/* The three compilations give the bits of the scalar one. */
static void test_same_bits(void **state)
{
    (void)state;
    enum { N = 100003 };
    float *x = test_alloc(N * 4), *y = test_alloc(N * 4), *want = test_alloc(N * 4), *up = test_alloc(N * 4);
    uint64_t seed = 4;
    for (int i = 0; i < N; i++) {
        x[i] = i % 3 ? 30.0f * rnd_normal(&seed) : vec_float1((uint32_t)rnd_next(&seed));
        if (isnan(x[i])) x[i] = 0.0f; /* which NaN comes out is the one thing left open */
        up[i] = 1.0f;
    }
    const struct cpu_rows *other[] = {&cpu_rows_avx2, &cpu_rows_avx512};
    for (int op = 0; op < 4; op++)
        for (int o = -1; o < 2; o++) {
            struct kn_backend *be = test_backend(o < 0 ? 0 : 3 * (o + 1));
            if (!be) continue;
            kn_backend_close(be);
            const struct cpu_rows *r = o < 0 ? &cpu_rows_scalar : other[o];
            memcpy(y, x, N * 4);
            if (op == 0)
                r->exp(y, N);
            else if (op == 1)
                r->softcap(y, N, 30.0f);
            else
                r->gated(y, x, up, N, op == 2 ? KN_ACT_SILU : KN_ACT_GELU_TANH);
            if (o < 0)
                memcpy(want, y, N * 4);
            else
                assert_memory_equal(want, y, N * 4);
        }
    free(x);
    free(y);
    free(want);
    free(up);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp),     cmocka_unit_test(test_tanh),     cmocka_unit_test(test_activations),
        cmocka_unit_test(test_log),     cmocka_unit_test(test_sincos),   cmocka_unit_test(test_halves),
        cmocka_unit_test(test_sigmoid), cmocka_unit_test(test_softplus), cmocka_unit_test(test_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
