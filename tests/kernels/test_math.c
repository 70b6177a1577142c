/* The number functions whose bits we own are as near the truth as their headers say, and parallel_for covers every range once.
 * Method: against libm in double or long double, over the whole range; conversions for all 65,536 values. Replay: kernels_math SEED. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/check.h"
#include "common/splitmix64.h"
#include "kernels/double_math.h"
#include "kernels/float_math.h"
#include "kernels/parallel.h"

static uint64_t seed = 1, random_state;

static uint64_t next_random(void)
{
    return splitmix64(&random_state);
}

static double random_unit(void) /* [0, 1) */
{
    return (double)(next_random() >> 11) * 0x1p-53;
}

static uint32_t bits_of(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}

static float float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

/* Distance in units of the last place of an f32 near the true value; below the normal range that unit is 2^-149. */
static double ulps_off(float got, double truth)
{
    int exponent;
    frexp(truth, &exponent);
    if (exponent < FLT_MIN_EXP)
        exponent = FLT_MIN_EXP;
    return fabs((double)got - truth) / ldexp(1.0, exponent - FLT_MANT_DIG);
}

/* ---- f32 ---- */

static void f32_exp_is_within_1_5_ulp_everywhere(void **state)
{
    (void)state;
    double worst = 0, worst_denormal = 0;
    float worst_at = 0;
    for (uint32_t i = 0; i < 0x42d00000u; i += 331) /* both signs of 0 .. 104 */
        for (int sign = 0; sign < 2; sign++) {
            float x = float_of(i | (uint32_t)sign << 31);
            if (x > 88.72f)
                continue; /* overflow, below */
            double off = ulps_off(f32_exp(x), exp((double)x));
            if (x < -87.33f) {
                worst_denormal = fmax(worst_denormal, off);
            } else if (off > worst) {
                worst = off;
                worst_at = x;
            }
        }
    printf("f32_exp: %.3f ulp at %a, %.3f units of 2^-149 below the normal range\n", worst, (double)worst_at, worst_denormal);
    assert_true(worst <= 1.5);
    assert_true(worst_denormal <= 1.5);
}

static void f32_exp_at_the_ends(void **state)
{
    (void)state;
    assert_int_equal(bits_of(f32_exp(0.0f)), bits_of(1.0f));
    assert_int_equal(bits_of(f32_exp(-0.0f)), bits_of(1.0f));
    assert_int_equal(bits_of(f32_exp(-INFINITY)), 0);
    assert_int_equal(bits_of(f32_exp(-1e30f)), 0);
    assert_true(isinf(f32_exp(INFINITY)) && f32_exp(INFINITY) > 0);
    assert_true(isinf(f32_exp(89.0f)));
    assert_true(isnan(f32_exp(NAN)));
    assert_true(f32_exp(-103.0f) > 0); /* denormals are kept */
    assert_true(f32_exp(88.72f) < INFINITY);
}

static void f32_sigmoid_is_within_four_ulp(void **state)
{
    (void)state;
    double worst = 0;
    for (uint32_t i = 0; i < 0x42b00000u; i += 331) /* both signs of 0 .. 88 */
        for (int sign = 0; sign < 2; sign++) {
            float x = float_of(i | (uint32_t)sign << 31);
            worst = fmax(worst, ulps_off(f32_sigmoid(x), 1.0 / (1.0 + exp(-(double)x))));
        }
    printf("f32_sigmoid: %.3f ulp\n", worst);
    assert_true(worst <= 4);
    assert_true(bits_of(f32_sigmoid(0.0f)) == bits_of(0.5f));
    assert_true(bits_of(f32_sigmoid(INFINITY)) == bits_of(1.0f) && bits_of(f32_sigmoid(-INFINITY)) == 0);
}

static void f32_tree_adds_halves(void **state)
{
    (void)state;
    float t[LANES], expected[LANES];
    for (int i = 0; i < LANES; i++)
        t[i] = expected[i] = ldexpf((float)(i + 1), 3 * i % 40 - 10);
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++)
            expected[i] = expected[i] + expected[i + half];
    assert_int_equal(bits_of(f32_tree(t)), bits_of(expected[0]));
}

/* ---- f16 and bf16 ---- */

static void every_f16_survives_the_round_trip(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = f16_to_f32((uint16_t)h);
        int fraction = (int)(h & 0x3ff), exponent = (int)(h >> 10 & 31);
        if (exponent == 31 && fraction) {
            assert_true(isnan(f));
            uint16_t back = f32_to_f16(f);
            assert_true((back & 0x7c00) == 0x7c00 && (back & 0x3ff));
            continue;
        }
        double value = exponent == 31 ? INFINITY : exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
        assert_true((double)f == (h & 0x8000 ? -value : value));
        assert_int_equal(f32_to_f16(f), h);
    }
}

static void every_bf16_survives_the_round_trip(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = bf16_to_f32((uint16_t)h);
        assert_int_equal(bits_of(f), h << 16);
        if (isnan(f))
            assert_true(isnan(bf16_to_f32(f32_to_bf16(f))));
        else
            assert_int_equal(f32_to_bf16(f), h);
    }
}

/* Goal: f32 -> f16, bf16 rounds to the nearest, ties to even. Method: between two neighbours, the middle and one f32 step either side. */
static void narrowing_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7bff; h++) { /* all f16 neighbours that are finite */
        float low = f16_to_f32((uint16_t)h), high = f16_to_f32((uint16_t)(h + 1)), middle = (low + high) / 2;
        assert_int_equal(f32_to_f16(middle), h & 1 ? h + 1 : h);
        assert_int_equal(f32_to_f16(nextafterf(middle, 0)), h);
        assert_int_equal(f32_to_f16(nextafterf(middle, INFINITY)), h + 1);
        assert_int_equal(f32_to_f16(-middle), (h & 1 ? h + 1 : h) | 0x8000);
    }
    assert_int_equal(f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(f32_to_f16(65520.0f), 0x7c00); /* the middle between the largest and 2^16 */
    assert_int_equal(f32_to_f16(INFINITY), 0x7c00);
    for (uint32_t h = 0; h < 0x7f80; h++) {
        assert_int_equal(f32_to_bf16(float_of(h << 16 | 0x8000)), h & 1 ? h + 1 : h);
        assert_int_equal(f32_to_bf16(float_of(h << 16 | 0x7fff)), h);
        assert_int_equal(f32_to_bf16(float_of(h << 16 | 0x8001)), h + 1);
    }
}

/* ---- double ---- */

static double relative(double got, long double truth)
{
    return (double)fabsl(((long double)got - truth) / truth);
}

static void f64_log_and_exp_are_within_two_ulp(void **state)
{
    (void)state;
    random_state = seed;
    double worst_log = 0, worst_exp = 0;
    for (int i = 0; i < 300000; i++) {
        double x =
            i & 1 ? 1.0 + (random_unit() - 0.5) * ldexp(1.0, -(i % 40)) : ldexp(1.0 + random_unit(), (int)(next_random() % 2040) - 1020);
        if (x != 1.0)
            worst_log = fmax(worst_log, relative(f64_log(x), logl((long double)x)));
        double y = i & 1 ? (random_unit() - 0.5) * 1400 : (random_unit() - 0.5) * ldexp(1.0, -(i % 60));
        worst_exp = fmax(worst_exp, relative(f64_exp(y), expl((long double)y)));
    }
    printf("f64_log %.3g, f64_exp %.3g relative (2 ulp: 4.44e-16)\n", worst_log, worst_exp);
    assert_true(worst_log <= 2 * DBL_EPSILON);
    assert_true(worst_exp <= 2 * DBL_EPSILON);
    assert_true(f64_log(0) == -INFINITY && isnan(f64_log(-1)) && isnan(f64_log(NAN)) && f64_log(1.0) == 0 && f64_log(INFINITY) == INFINITY);
    assert_true(fabs(f64_log(DBL_TRUE_MIN) - log(DBL_TRUE_MIN)) < 1e-12);
    assert_true(f64_exp(0) == 1.0 && f64_exp(-INFINITY) == 0 && f64_exp(INFINITY) == INFINITY && isnan(f64_exp(NAN)));
    assert_true(f64_exp(-800) == 0 && f64_exp(710) == INFINITY);
}

static void f64_pow_is_within_1e_14(void **state)
{
    (void)state;
    random_state = seed;
    double worst = 0;
    for (int i = 0; i < 100000; i++) {
        double base = ldexp(1.0 + random_unit(), (int)(next_random() % 60) - 30), exponent = (random_unit() - 0.5) * 20;
        worst = fmax(worst, relative(f64_pow(base, exponent), powl((long double)base, (long double)exponent)));
    }
    printf("f64_pow %.3g relative\n", worst);
    assert_true(worst <= 1e-14);
    assert_true(f64_pow(8e6, 0) == 1.0);
}

static void f64_sincos_is_within_1e_14(void **state)
{
    (void)state;
    random_state = seed;
    double worst = 0;
    for (int i = 0; i < 300000; i++) {
        double x = i % 3 == 0   ? (random_unit() - 0.5) * 0x1p25
                   : i % 3 == 1 ? (double)(next_random() % 20000000) * 1.5707963267948966 / 2
                                : (random_unit() - 0.5) * 8;
        if (fabs(x) > 0x1p24)
            continue;
        double s, c;
        f64_sincos(x, &s, &c);
        worst =
            fmax(worst, fmax((double)fabsl((long double)s - sinl((long double)x)), (double)fabsl((long double)c - cosl((long double)x))));
    }
    printf("f64_sincos %.3g absolute\n", worst);
    assert_true(worst <= 1e-14);
}

static void rope_turns_by_position_times_omega(void **state)
{
    (void)state;
    enum { DIM = 64 };
    float cosine[DIM / 2], sine[DIM / 2], x[2 * DIM], before[2 * DIM];
    static const int positions[] = {0, 1, 63, 4096, 131071, 1000000};
    for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) {
        rope_table(cosine, sine, positions[i], DIM, 8e6);
        for (int j = 0; j < DIM / 2; j++) {
            float omega = 1.0f / (float)pow(8e6, (double)(2 * j) / DIM), phi = (float)positions[i] * omega;
            /* one f32 step of omega or phi, and the rounding of the result */
            double tolerance = 2.5 * FLT_EPSILON * fabs((double)phi) + FLT_EPSILON;
            assert_true(fabs((double)cosine[j] - cos((double)phi)) <= tolerance);
            assert_true(fabs((double)sine[j] - sin((double)phi)) <= tolerance);
        }
        for (int j = 0; j < 2 * DIM; j++)
            x[j] = before[j] = (float)(j - 40) * 0.01f;
        rope_rotate(x, 2, DIM, DIM, cosine, sine);
        for (int j = 0; j < DIM; j++) {
            double a = before[2 * j], b = before[2 * j + 1], c = cosine[j % (DIM / 2)], s = sine[j % (DIM / 2)];
            assert_true(fabs((double)x[2 * j] - (a * c - b * s)) <= 2e-7);
            assert_true(fabs((double)x[2 * j + 1] - (b * c + a * s)) <= 2e-7);
        }
    }
}

/* ---- parallel_for ---- */

struct cover {
    int n, grain;
    int *times; /* [n], how often each index was in a range */
    int bad;
};

static void cover_range(void *ctx, int begin, int end)
{
    struct cover *c = ctx;
    if (begin < 0 || end > c->n || begin >= end || begin % c->grain || (end % c->grain && end != c->n))
        __atomic_fetch_add(&c->bad, 1, __ATOMIC_RELAXED);
    for (int i = begin; i < end; i++)
        __atomic_fetch_add(&c->times[i], 1, __ATOMIC_RELAXED);
}

static void parallel_for_covers_every_index_once(void **state)
{
    (void)state;
    static const int ns[] = {0, 1, 2, 3, 7, 15, 16, 17, 64, 100, 1000, 4097}, grains[] = {1, 2, 3, 8, 16, 100, 5000},
                     threads[] = {1, 2, 3, 5, 8};
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++)
        for (size_t i = 0; i < sizeof ns / sizeof *ns; i++)
            for (size_t g = 0; g < sizeof grains / sizeof *grains; g++) {
                struct cover c = {ns[i], grains[g], calloc((size_t)ns[i] + 1, sizeof(int)), 0};
                parallel_set_threads(threads[t]);
                assert_int_equal(parallel_threads(), threads[t]);
                parallel_for(c.n, c.grain, cover_range, &c);
                assert_int_equal(c.bad, 0);
                for (int k = 0; k < c.n; k++)
                    assert_int_equal(c.times[k], 1);
                free(c.times);
            }
    parallel_set_threads(1);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        seed = strtoull(argv[1], NULL, 0);
    printf("seed %llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_exp_is_within_1_5_ulp_everywhere),
        cmocka_unit_test(f32_exp_at_the_ends),
        cmocka_unit_test(f32_sigmoid_is_within_four_ulp),
        cmocka_unit_test(f32_tree_adds_halves),
        cmocka_unit_test(every_f16_survives_the_round_trip),
        cmocka_unit_test(every_bf16_survives_the_round_trip),
        cmocka_unit_test(narrowing_rounds_to_nearest_even),
        cmocka_unit_test(f64_log_and_exp_are_within_two_ulp),
        cmocka_unit_test(f64_pow_is_within_1e_14),
        cmocka_unit_test(f64_sincos_is_within_1e_14),
        cmocka_unit_test(rope_turns_by_position_times_omega),
        cmocka_unit_test(parallel_for_covers_every_index_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
