/* Is y = x W^T right on every path, and does a row's answer depend on nothing but the row? Oracles:
 * float64 dot products of dequantised weights, the goldens of gguf.quants, and the documented
 * sequence of operations done one scalar at a time. */
#include "tests/kernels/support_matmul.h"
#include "tests/kernels/support_quants.h"
#include "worker/cpu/dequant.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

TestSuite(matmul, .timeout = 60);

static const enum tensor_type types[] = {TENSOR_F32,  TENSOR_F16,  TENSOR_BF16,
                                         TENSOR_Q4_0, TENSOR_Q4_1, TENSOR_Q8_0};
enum { N_TYPES = sizeof types / sizeof *types };
static const enum tensor_type quantised[] = {TENSOR_Q4_0, TENSOR_Q4_1, TENSOR_Q8_0};

/* n_out, n_in, n_rows: tiny models, odd widths, every register tile. n_in of the last ones fits
 * float types alone. */
static const uint32_t shapes[][3] = {{1, 32, 1},     {3, 64, 2},    {16, 96, 3},  {17, 64, 5},
                                     {33, 576, 17},  {129, 288, 9}, {7, 1536, 6}, {64, 64, 48},
                                     {20, 4160, 45}, {19, 50, 6},   {40, 1, 3}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, N_SHAPES_QUANTISED = 9 };

static struct matmul_case shape_case(enum tensor_type type, size_t shape)
{
    const uint32_t *s = shapes[shape];
    return matmul_case_make(type, s[0], s[1], s[2], 1 + shape);
}

/* fp32 sums of n products, in any order, fused or not, are off by at most about n * 2^-24 times
 * the sum of |x w| (Higham 2002, eq. 3.5); one more for what double leaves out. */
static void expect_float_dots(const struct matmul_case *c, enum cpu_isa isa)
{
    float *y = matmul_case_run(c, isa, c->n_rows, 0);
    for (uint32_t r = 0; r < c->n_rows; r++)
        for (uint32_t o = 0; o < c->n_out; o++) {
            double magnitude;
            const double want = oracle_dot(c, c->x + (size_t)r * c->n_in, o, &magnitude);
            const double got = (double)y[(size_t)r * c->n_out + o];
            cr_assert(fabs(got - want) <= (c->n_in + 1) * 0x1p-24 * magnitude,
                      "%s %s [%u][%u]: %.9g, not %.9g", cpu_isa_name(isa),
                      tensor_type_name(c->type), r, o, got, want);
        }
    free(y);
}

Test(matmul, plain_sums_are_those_of_float64_within_rounding)
{
    for (size_t t = 0; t < N_TYPES; t++)
        for (size_t s = 0; s < (type_is_quantised(types[t]) ? N_SHAPES_QUANTISED : N_SHAPES); s++) {
            struct matmul_case c = shape_case(types[t], s);
            expect_float_dots(&c, CPU_ISA_PLAIN);
            matmul_case_fini(&c);
        }
}

Test(matmul, float_weights_on_vectors_give_the_sums_of_float64_within_rounding)
{
    for (int isa = CPU_ISA_AVX2; isa <= (int)cpu_isa_detect(); isa++)
        for (size_t t = 0; t < N_TYPES; t++)
            for (size_t s = 0; s < N_SHAPES && !type_is_quantised(types[t]); s++) {
                struct matmul_case c = shape_case(types[t], s);
                expect_float_dots(&c, (enum cpu_isa)isa);
                matmul_case_fini(&c);
            }
}

Test(matmul, quantised_sums_equal_the_documented_operations_bit_for_bit)
{
    for (int isa = CPU_ISA_AVX2; isa <= (int)cpu_isa_detect(); isa++)
        for (size_t t = 0; t < sizeof quantised / sizeof *quantised; t++)
            for (size_t s = 0; s < N_SHAPES_QUANTISED; s++) {
                struct matmul_case c = shape_case(quantised[t], s);
                float *y = matmul_case_run(&c, (enum cpu_isa)isa, c.n_rows, 0);
                for (size_t i = 0; i < (size_t)c.n_rows * c.n_out; i++) {
                    const float want =
                        oracle_quantised(&c, c.x + i / c.n_out * c.n_in, (uint32_t)(i % c.n_out));
                    cr_assert_eq(memcmp(&y[i], &want, sizeof want), 0,
                                 "%s %s shape %zu value %zu: %a, not %a",
                                 cpu_isa_name((enum cpu_isa)isa), tensor_type_name(c.type), s, i,
                                 (double)y[i], (double)want);
                }
                free(y);
                matmul_case_fini(&c);
            }
}

/* Replaces x by the numbers that its quantised form stands for. */
static void round_to_twelve_bits(struct matmul_case *c)
{
    const size_t n = (size_t)c->n_rows * c->n_in;
    int *q = malloc(n * sizeof *q);
    float *d = malloc(n / 32 * sizeof *d);
    oracle_quantise(c->x, n, q, d);
    for (size_t i = 0; i < n; i++)
        c->x[i] = (float)q[i] * d[i / 32];
    free(q);
    free(d);
}

/* Beyond the activations' rounding only the float sum is left: three roundings a block, each of
 * 2^-24 of partial sums that never pass sum |x| * max |w|, which is 15 * 2 + 2 = 32 for Q4_1 (scale
 * and minimum are below 2) and 256 for Q8_0. */
Test(matmul, quantised_sums_are_those_of_float64_over_the_rounded_activations)
{
    for (int isa = CPU_ISA_AVX2; isa <= (int)cpu_isa_detect(); isa++)
        for (size_t t = 0; t < sizeof quantised / sizeof *quantised; t++) {
            struct matmul_case c = matmul_case_make(quantised[t], 33, 576, 7, 99);
            const double top = quantised[t] == TENSOR_Q8_0 ? 256 : 32;
            float *y = matmul_case_run(&c, (enum cpu_isa)isa, c.n_rows, 0);
            round_to_twelve_bits(&c);
            for (uint32_t i = 0; i < c.n_rows * c.n_out; i++) {
                const float *x = c.x + i / c.n_out * c.n_in;
                double magnitude, sum_x = 0;
                for (uint32_t k = 0; k < c.n_in; k++)
                    sum_x += fabs((double)x[k]);
                const double want = oracle_dot(&c, x, i % c.n_out, &magnitude);
                cr_assert_float_eq((double)y[i], want, 3 * (576 / 32) * 0x1p-24 * top * sum_x);
            }
            free(y);
            matmul_case_fini(&c);
        }
}

/* x stored as Q8_0 has a value of 127 in each block, so that it is 16 times as large in 12 bits:
 * nothing is rounded, the golden holds within the float sum. y is printed with nine digits. */
Test(matmul, goldens_with_activations_as_q8_0_are_met)
{
    const char *names[] = {"Q4_0", "Q4_1", "Q8_0", "BF16"};
    for (int isa = CPU_ISA_PLAIN; isa <= (int)cpu_isa_detect(); isa++)
        for (size_t t = 0; t < sizeof names / sizeof *names; t++) {
            struct quants_fixture f = quants_fixture_load(names[t]);
            struct matmul_case c = {.type = f.type,
                                    .n_out = (uint32_t)f.n_rows,
                                    .n_in = (uint32_t)f.row_values,
                                    .n_rows = 1,
                                    .w = f.raw,
                                    .x = malloc(f.row_values * sizeof(float))};
            dequant_row(TENSOR_Q8_0, f.x_q8_0, f.row_values, c.x);
            float *y = matmul_case_run(&c, (enum cpu_isa)isa, 1, 0);
            for (uint32_t o = 0; o < c.n_out; o++) {
                double magnitude;
                (void)oracle_dot(&c, c.x, o, &magnitude);
                const double tolerance =
                    512 * 0x1p-24 * magnitude + 1e-8 * fabs(f.y_with_x_as_q8_0[o]);
                cr_assert_float_eq((double)y[o], f.y_with_x_as_q8_0[o], tolerance, "%s: %.9g",
                                   names[t], (double)y[o]);
            }
            free(y);
            free(c.x);
            quants_fixture_fini(&f);
        }
}

/* Exact activations: PLAIN within fp32 rounding; 12 bits within half a step of each activation,
 * a step being at most max |x| / 2032, times |w|. */
Test(matmul, goldens_with_exact_activations_are_met_within_the_rounding_of_the_path)
{
    const char *names[] = {"Q4_0", "Q4_1", "Q8_0", "BF16"};
    for (int isa = CPU_ISA_PLAIN; isa <= (int)cpu_isa_detect(); isa++)
        for (size_t t = 0; t < sizeof names / sizeof *names; t++) {
            struct quants_fixture f = quants_fixture_load(names[t]);
            struct matmul_case c = {f.type, (uint32_t)f.n_rows, (uint32_t)f.row_values, 1, f.raw,
                                    f.x};
            const bool is_rounded = isa != CPU_ISA_PLAIN && type_is_quantised(f.type);
            float *y = matmul_case_run(&c, (enum cpu_isa)isa, 1, 0);
            for (uint32_t o = 0; o < c.n_out; o++) {
                double magnitude, top_x = 0, sum_w = 0;
                (void)oracle_dot(&c, c.x, o, &magnitude);
                for (uint32_t k = 0; k < c.n_in; k++) {
                    top_x = fmax(top_x, fabs((double)c.x[k]));
                    sum_w += fabs((double)f.dequant[o * c.n_in + k]);
                }
                const double tolerance = 512 * 0x1p-24 * magnitude + 1e-8 * fabs(f.y_exact[o]) +
                                         (is_rounded ? top_x / 4064 * sum_w : 0);
                cr_assert_float_eq((double)y[o], f.y_exact[o], tolerance, "%s", names[t]);
            }
            free(y);
            quants_fixture_fini(&f);
        }
}

Test(matmul, a_row_has_the_same_bits_in_any_batch_and_any_split)
{
    const uint32_t batches[] = {1, 2, 3, 7, 16, 17, 30, 64, 512};
    for (int isa = CPU_ISA_PLAIN; isa <= (int)cpu_isa_detect(); isa++)
        for (size_t t = 0; t < N_TYPES; t++) {
            struct matmul_case c = matmul_case_make(types[t], 83, 64, 512, 7);
            float *want = malloc(512 * 83 * sizeof *want);
            for (size_t r = 0; r < 512; r++) { /* each row alone */
                const struct matmul_case one = {c.type, 83, 64, 1, c.w, c.x + r * 64};
                float *y = matmul_case_run(&one, (enum cpu_isa)isa, 1, 0);
                memcpy(want + r * 83, y, 83 * sizeof *y);
                free(y);
            }
            for (size_t b = 0; b < sizeof batches / sizeof *batches; b++) {
                const uint64_t split = 1 + 100 * t + b;
                float *y = matmul_case_run(&c, (enum cpu_isa)isa, batches[b], split);
                cr_assert_eq(memcmp(y, want, batches[b] * 83 * sizeof *y), 0,
                             "%s %s, %u rows, split %zu", cpu_isa_name((enum cpu_isa)isa),
                             tensor_type_name(types[t]), batches[b], (size_t)split);
                free(y);
            }
            free(want);
            matmul_case_fini(&c);
        }
}

/* Long rows make a strip short: rows of later strips must not differ from the first's. */
Test(matmul, equal_rows_far_apart_give_equal_bits)
{
    for (int isa = CPU_ISA_PLAIN; isa <= (int)cpu_isa_detect(); isa++)
        for (size_t t = 0; t < N_TYPES; t++) {
            struct matmul_case c = matmul_case_make(types[t], 5, 8192, 100, 11);
            for (size_t r = 1; r < 100; r++)
                memcpy(c.x + r * 8192, c.x, 8192 * sizeof *c.x);
            float *y = matmul_case_run(&c, (enum cpu_isa)isa, 100, 3);
            for (size_t r = 1; r < 100; r++)
                cr_assert_eq(memcmp(y + r * 5, y, 5 * sizeof *y), 0, "row %zu", r);
            free(y);
            matmul_case_fini(&c);
        }
}

/* Every weight and activation at its bound and of one sign: the largest sums the integers see, of
 * the high parts in even rows, and of the low ones (q = 2024 = 16 * 127 - 8, or 16 * -126 - 8, but
 * for the block's first) in odd ones. */
Test(matmul, extreme_weights_and_activations_do_not_saturate)
{
    for (int isa = CPU_ISA_AVX2; isa <= (int)cpu_isa_detect(); isa++)
        for (size_t t = 0; t < sizeof quantised / sizeof *quantised; t++)
            for (int value = 0; value < 4; value++) {
                struct matmul_case c = matmul_case_make(quantised[t], 20, 64, 5, 5);
                const size_t n = tensor_type_block_bytes(c.type),
                             skip = c.type == TENSOR_Q4_1 ? 4 : 2;
                for (size_t b = 0; b < 40; b++)
                    memset(c.w + b * n + skip, (const int[]){0x80, 0x7f, 0xff, 0x00}[value],
                           n - skip);
                for (size_t i = 0; i < 5 * 64; i++)
                    c.x[i] = (i / 128 % 2 ? -3.0f : 3.0f) *
                             (i / 64 % 2 && i % 32 ? 2024.0f / 2032.0f : 1.0f);
                float *y = matmul_case_run(&c, (enum cpu_isa)isa, 5, 0);
                for (uint32_t i = 0; i < 5 * 20; i++)
                    cr_assert_eq(y[i], oracle_quantised(&c, c.x + i / 20 * 64, i % 20));
                free(y);
                matmul_case_fini(&c);
            }
}

Test(matmul, tiny_activations_count_as_zeros_and_nan_or_infinity_reach_their_row_alone)
{
    for (int isa = CPU_ISA_AVX2; isa <= (int)cpu_isa_detect(); isa++)
        for (size_t t = 0; t < sizeof quantised / sizeof *quantised; t++) {
            struct matmul_case c = matmul_case_make(quantised[t], 9, 64, 4, 21);
            for (int k = 0; k < 64; k++)
                c.x[k] = 1e-39f; /* subnormal: 2032 / max overflows */
            c.x[64 + 40] = NAN;
            c.x[192 + 3] = -INFINITY;
            float *y = matmul_case_run(&c, (enum cpu_isa)isa, 4, 0);
            for (uint32_t o = 0; o < 9; o++) {
                cr_assert_eq(y[o], 0.0f);
                cr_assert(isnan(y[9 + o]));
                cr_assert_eq(y[18 + o], oracle_quantised(&c, c.x + 128, o));
                cr_assert_not(isfinite(y[27 + o]));
            }
            free(y);
            matmul_case_fini(&c);
        }
}

Test(matmul, a_matrix_that_does_not_fit_its_type_is_refused)
{
    const unsigned char w[256] = {0};
    struct matmul_weight *m = NULL;
    struct err_info ei;
    for (int isa = CPU_ISA_PLAIN; isa <= CPU_ISA_AVX512; isa++) {
        const enum cpu_isa i = (enum cpu_isa)isa;
        cr_assert_eq(matmul_weight_new(i, TENSOR_Q4_1, w, 1, 48, &m, &ei), ERR_UNSUPPORTED);
        cr_assert_eq(matmul_weight_new(i, (enum tensor_type)12, w, 1, 32, &m, &ei),
                     ERR_UNSUPPORTED);
        cr_assert_eq(matmul_weight_new(i, TENSOR_F32, w, 0, 32, &m, NULL), ERR_UNSUPPORTED);
        cr_assert_null(m);
    }
    matmul_weight_free(NULL);
}

/* Whole tiles and 64-byte steps of a tile are all that repacking may add. */
Test(matmul, a_repacked_weight_is_about_as_large_as_the_original)
{
    for (int isa = CPU_ISA_PLAIN; isa <= CPU_ISA_AVX512; isa++)
        for (size_t t = 0; t < N_TYPES; t++) {
            struct matmul_case c = matmul_case_make(types[t], 576, 576, 1, 1);
            struct matmul_weight *m;
            struct err_info ei;
            cr_assert_eq(matmul_weight_new((enum cpu_isa)isa, c.type, c.w, 576, 576, &m, &ei), OK);
            const size_t original = 576 * tensor_type_row_bytes(c.type, 576);
            cr_assert_geq(matmul_weight_bytes(m), original);
            cr_assert_leq(matmul_weight_bytes(m), original + 576 / 8 * 64);
            matmul_weight_free(m);
            matmul_case_fini(&c);
        }
}
