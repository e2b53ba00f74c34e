/* Do sections lie where kv_layout.h says, and are sizes from outside refused when they cannot be?
 */
#include "prefixcache/kv_layout.h"

#include <criterion/criterion.h>

TestSuite(kv_layout, .timeout = 5);

Test(kv_layout, sections_follow_each_other_as_the_page_says)
{
    struct kv_geometry g = {
        .block_size = 16, .n_blocks = 100, .max_leases = 3, .block_bytes = 4096};
    cr_assert_eq(kv_layout_compute(&g, NULL), OK);
    /* by hand: each section's size, rounded up to 64; the pool at a multiple of 2 MiB */
    cr_expect_eq(g.n_buckets, 256);
    cr_expect_eq(g.rows_at, 512);
    cr_expect_eq(g.tokens_at, 512 + 6400);
    cr_expect_eq(g.buckets_at, 6912 + 6400);
    cr_expect_eq(g.heap_at, 13312 + 1024);
    cr_expect_eq(g.leases_at, 14336 + 448);
    cr_expect_eq(g.pins_at, 14784 + 384);
    cr_expect_eq(g.pool_at, 2097152);
    cr_expect_eq(g.size_bytes, 2097152 + 409600);
}

Test(kv_layout, products_that_overflow_are_refused)
{
    static const struct kv_geometry bad[] = {
        {.block_size = 16, .n_blocks = 1u << 30, .max_leases = 1, .block_bytes = UINT64_C(1) << 34},
        {.block_size = 16, .n_blocks = 2, .max_leases = 1, .block_bytes = UINT64_C(1) << 63},
        {.block_size = 16, .n_blocks = 1, .max_leases = 1, .block_bytes = UINT64_MAX - 63},
        {.block_size = 16, .n_blocks = (1u << 30) + 1, .max_leases = 1, .block_bytes = 0},
        {.block_size = 17, .n_blocks = 1, .max_leases = 1, .block_bytes = 0},
        {.block_size = 16, .n_blocks = 1, .max_leases = 1, .block_bytes = 32},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct kv_geometry g = bad[i];
        struct err_info ei = {{0}};
        cr_expect_eq(kv_layout_compute(&g, &ei), ERR_LIMIT, "case %zu", i);
        cr_expect_neq(ei.text[0], 0);
    }
}

Test(kv_layout, the_largest_store_still_computes)
{
    struct kv_geometry g = {
        .block_size = 32, .n_blocks = 1u << 30, .max_leases = 1024, .block_bytes = 1u << 20};
    cr_assert_eq(kv_layout_compute(&g, NULL), OK);
    cr_expect_eq(g.n_buckets, 1u << 31);
    cr_expect_eq(g.size_bytes - g.pool_at, UINT64_C(1) << 50);
}
