/* Do stored rows turn into the numbers that the formats define? Against gguf.quants' goldens and
 * the IEEE definition; bit for bit. */
#include "tests/kernels/support_quants.h"
#include "worker/cpu/dequant.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

TestSuite(dequant, .timeout = 10);

static void expect_same_bits(const float *got, const float *want, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(memcmp(&got[i], &want[i], sizeof(float)), 0, "%s: value %zu: %a, not %a", what,
                     i, (double)got[i], (double)want[i]);
}

Test(dequant, rows_and_random_blocks_equal_the_goldens_bit_for_bit)
{
    const char *names[] = {"Q4_0", "Q4_1", "Q8_0", "BF16"};
    for (size_t t = 0; t < sizeof names / sizeof *names; t++) {
        struct quants_fixture f = quants_fixture_load(names[t]);
        const size_t n = f.n_rows * f.row_values;
        float *got = malloc((n + f.n_random) * sizeof *got);
        dequant_row(f.type, f.raw, n, got);
        expect_same_bits(got, f.dequant, n, names[t]);
        if (f.n_random) {
            dequant_row(f.type, f.random_raw, f.n_random, got);
            expect_same_bits(got, f.random_dequant, f.n_random, names[t]);
        }
        free(got);
        quants_fixture_fini(&f);
    }
}

/* IEEE 754-2019, binary16: sign, 5 bits of exponent with bias 15, 10 bits of fraction. */
static double half_by_definition(unsigned bits)
{
    const double sign = bits & 0x8000u ? -1 : 1;
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    if (exponent == 31)
        return fraction ? (double)NAN : sign * (double)INFINITY;
    return sign * (exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24));
}

Test(dequant, every_half_has_the_value_that_ieee_754_gives_it)
{
    for (unsigned bits = 0; bits < 65536; bits++) {
        const uint16_t stored = (uint16_t)bits;
        const double want = half_by_definition(bits);
        float got;
        dequant_row(TENSOR_F16, &stored, 1, &got);
        if (isnan(want))
            cr_assert(isnan(got), "%04x", bits);
        else
            cr_assert((double)got == want && !signbit(got) == !signbit(want), "%04x: %a, not %a",
                      bits, (double)got, want);
    }
}

Test(dequant, a_float_row_at_an_odd_address_is_copied)
{
    const float want[3] = {1.5f, -0.0f, 3e-42f};
    unsigned char raw[sizeof want + 1];
    float got[3];
    memcpy(raw + 1, want, sizeof want);
    dequant_row(TENSOR_F32, raw + 1, 3, got);
    expect_same_bits(got, want, 3, "F32");
}
