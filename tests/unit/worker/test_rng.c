/* Does the counter-based generator give the published numbers? */
#include "worker/rng.h"

#include <criterion/criterion.h>

TestSuite(rng, .timeout = 5);

/* Known answers: Random123 1.14, tests/kat_vectors, lines "philox4x32 10". */
static const struct {
    uint32_t counter[4], key[2], expected[4];
} KNOWN[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

Test(rng, philox_gives_the_published_numbers)
{
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++) {
        uint32_t out[4];
        rng_philox(KNOWN[i].counter, KNOWN[i].key, out);
        for (int j = 0; j < 4; j++)
            cr_assert_eq(out[j], KNOWN[i].expected[j], "vector %zu word %d: %08x", i, j, out[j]);
    }
}

Test(rng, every_field_of_the_counter_matters)
{
    const struct rng_counter base = {.seed = 1, .choice = 2, .position = 3, .draw = 4};
    const struct rng_counter others[] = {
        {.seed = 2, .choice = 2, .position = 3, .draw = 4},
        {.seed = 1 + (1ULL << 32), .choice = 2, .position = 3, .draw = 4},
        {.seed = 1, .choice = 3, .position = 3, .draw = 4},
        {.seed = 1, .choice = 2, .position = 4, .draw = 4},
        {.seed = 1, .choice = 2, .position = 3, .draw = 5},
    };
    cr_assert_eq(rng_uniform(&base), rng_uniform(&base));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        cr_assert_neq(rng_uniform(&base), rng_uniform(&others[i]), "field %zu", i);
}

Test(rng, uniform_numbers_fill_the_unit_interval_evenly)
{
    enum { N = 100000, BINS = 10 };
    int bins[BINS] = {0};
    for (uint32_t i = 0; i < N; i++) {
        double u = rng_uniform(&(struct rng_counter){.seed = 42, .position = i});
        cr_assert(u >= 0 && u < 1);
        bins[(int)(u * BINS)]++;
    }
    /* binomial: a bin's standard deviation is 95; 5 of them */
    for (int i = 0; i < BINS; i++)
        cr_assert(bins[i] > N / BINS - 475 && bins[i] < N / BINS + 475, "bin %d: %d", i, bins[i]);
}
