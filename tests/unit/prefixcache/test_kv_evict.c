/* Who is evicted? Least recently used first, tails before heads, pinned never. Seen through
 * kv_store_match; kv_store_check walks the heap after every mutation. */
#include "support_store.h"

#include <criterion/criterion.h>

TestSuite(kv_evict, .timeout = 10);

static void press(struct kv_store *s, uint32_t n)
{
    uint32_t b[SUPPORT_MAX_CHAIN];
    cr_assert_eq(kv_store_reserve(s, n, b, NULL), OK);
    support_check(s);
    kv_store_release(s, b, n);
    support_check(s);
}

Test(kv_evict, free_blocks_are_taken_before_any_is_evicted)
{
    struct store_pair p = support_pair(8, 2);
    struct chain c;
    uint32_t b[8];
    support_chain(&c, 1, 64, 0);
    support_cache(p.a, &c, 5, b);
    press(p.a, 3);
    cr_expect_eq(support_stats(p.a).n_evicted, 0);
    cr_expect_eq(support_match(p.a, &c, 5), 5);
    support_pair_free(&p);
}

Test(kv_evict, tails_go_before_heads)
{
    struct store_pair p = support_pair(6, 2);
    struct chain c;
    uint32_t b[6];
    support_chain(&c, 1, 64, 0);
    support_cache(p.a, &c, 6, b);
    for (uint32_t n = 1; n <= 6; n++) {
        press(p.a, n); /* n - 1 are free by then: one more goes */
        cr_expect_eq(support_match(p.a, &c, 6), 6 - n);
        cr_expect_eq(support_stats(p.a).n_evicted, n);
    }
    support_pair_free(&p);
}

Test(kv_evict, the_chain_used_longest_ago_goes_first)
{
    struct store_pair p = support_pair(9, 2);
    struct chain c[3];
    uint32_t b[3];
    for (uint32_t i = 0; i < 3; i++) {
        support_chain(&c[i], i, 64, 0);
        support_cache(p.a, &c[i], 3, b);
    }
    cr_assert_eq(support_acquire(p.b, &c[0], 3, b), 3); /* 0 becomes the latest */
    kv_store_release(p.b, b, 3);
    press(p.a, 4);
    cr_expect_eq(support_match(p.a, &c[1], 3), 0);
    cr_expect_eq(support_match(p.a, &c[2], 3), 2);
    cr_expect_eq(support_match(p.a, &c[0], 3), 3);
    support_pair_free(&p);
}

Test(kv_evict, a_shared_stem_outlives_its_branches)
{
    struct store_pair p = support_pair(8, 2);
    struct chain c, d;
    uint32_t b[8];
    support_chain(&c, 1, 2, 2);
    support_chain(&d, 1, 2, 3);
    support_cache(p.a, &c, 5, b);                    /* stem 2 + branch 3 */
    cr_assert_eq(support_acquire(p.a, &d, 5, b), 2); /* stem again */
    support_publish(p.a, &d, 2, 5, b);               /* second branch 3 */
    kv_store_release(p.a, b, 5);
    press(p.a, 6);
    cr_expect_eq(support_match(p.a, &c, 5), 2);
    cr_expect_eq(support_match(p.a, &d, 5), 2);
    support_pair_free(&p);
}

Test(kv_evict, pinned_blocks_stay)
{
    struct store_pair p = support_pair(6, 2);
    struct chain c, d;
    uint32_t b[6], e[6];
    support_chain(&c, 1, 64, 0);
    support_chain(&d, 2, 64, 0);
    support_cache(p.a, &c, 3, b);
    support_cache(p.a, &d, 3, e);
    cr_assert_eq(support_acquire(p.b, &c, 2, b), 2);
    cr_expect_eq(kv_store_reserve(p.a, 5, e, NULL), ERR_BUSY);
    support_check(p.a);
    cr_expect_eq(support_stats(p.a).n_evicted, 0); /* a refusal costs nobody anything */
    press(p.a, 4);
    cr_expect_eq(support_match(p.a, &c, 3), 2);
    cr_expect_eq(support_match(p.a, &d, 3), 0);
    support_pair_free(&p);
}

Test(kv_evict, a_chain_whose_publisher_died_still_goes_tail_first)
{
    struct store_pair p = support_pair(6, 3);
    struct chain c;
    uint32_t b[6];
    support_chain(&c, 1, 64, 0);
    kv_store_lease_close(p.b);
    cr_assert_eq(kv_store_lease_open(p.b, support_dead_process(), 1, NULL), OK);
    support_publish(p.b, &c, 0, 5, b); /* never released: no block is marked used again */
    cr_assert_eq(kv_store_reap(p.a), 1);
    support_check(p.a);
    press(p.a, 3);
    cr_expect_eq(support_match(p.a, &c, 5), 3);
    kv_store_detach(p.b);
    kv_store_lease_close(p.a);
    kv_store_detach(p.a);
}

Test(kv_evict, a_tail_released_later_than_its_head_keeps_the_head_alive)
{
    struct store_pair p = support_pair(6, 2);
    struct chain c, d;
    uint32_t b[4], e[2];
    support_chain(&c, 1, 64, 0);
    support_chain(&d, 2, 64, 0);
    support_publish(p.a, &c, 0, 4, b);
    kv_store_release(p.a, b, 2); /* not the whole sequence, as the header asks */
    support_check(p.a);
    support_cache(p.a, &d, 2, e);
    cr_expect_eq(kv_store_reserve(p.b, 3, e, NULL), ERR_BUSY); /* heads under pinned tails stay */
    support_check(p.a);
    cr_expect_eq(support_match(p.a, &c, 4), 4);
    kv_store_release(p.a, b + 2, 2);
    support_check(p.a);
    press(p.b, 3);
    cr_expect_eq(support_match(p.a, &c, 4), 3);
    support_pair_free(&p);
}

Test(kv_evict, looking_on_marks_nothing)
{
    struct store_pair p = support_pair(4, 2);
    struct chain c, d;
    uint32_t b[2];
    support_chain(&c, 1, 64, 0);
    support_chain(&d, 2, 64, 0);
    support_cache(p.a, &c, 2, b);
    support_cache(p.a, &d, 2, b);
    cr_expect_eq(support_match(p.a, &c, 2), 2);
    press(p.a, 2);
    cr_expect_eq(support_match(p.a, &c, 2), 0);
    cr_expect_eq(support_match(p.a, &d, 2), 2);
    support_pair_free(&p);
}

Test(kv_evict, of_tails_used_at_the_same_time_the_deepest_goes_first)
{
    struct store_pair p = support_pair(7, 3);
    struct chain c, d;
    uint32_t b[5], e[3];
    support_chain(&c, 1, 1, 2);
    support_chain(&d, 1, 1, 3);
    kv_store_lease_close(p.b);
    cr_assert_eq(kv_store_lease_open(p.b, support_dead_process(), 1, NULL), OK);
    support_publish(p.b, &c, 0, 5, b); /* all inherit the stem's use, none is released */
    e[0] = b[0];
    support_publish(p.b, &d, 1, 3, e);
    cr_assert_eq(kv_store_reap(p.a), 1);
    press(p.a, 2);
    cr_expect_eq(support_match(p.a, &c, 5), 3); /* depths 4 and 3 */
    cr_expect_eq(support_match(p.a, &d, 3), 3);
    kv_store_detach(p.b);
    kv_store_lease_close(p.a);
    kv_store_detach(p.a);
}

Test(kv_evict, the_heap_keeps_its_order_whichever_block_leaves_it)
{
    enum { N = 63, N_HELD = 20, N_ROUNDS = 60 };
    struct store_pair p = support_pair(N, 2);
    struct chain *c = calloc(N, sizeof *c);
    uint32_t held[N_HELD], b[1], random = 7;
    cr_assert(c);
    for (uint32_t i = 0; i < N; i++) {
        support_chain(&c[i], i, 64, 0);
        support_cache(p.a, &c[i], 1, b);
    }
    for (uint32_t round = 0; round < N_ROUNDS; round++) {
        for (uint32_t i = 0; i < N_HELD; i++) {
            random = random * 1664525u + 1013904223u; /* Numerical Recipes' constants */
            cr_assert_eq(support_acquire(p.a, &c[(random >> 16) % N], 1, &held[i]), 1);
        }
        for (uint32_t i = 0; i < N_HELD; i++) {
            kv_store_release(p.a, &held[i], 1);
            support_check(p.a);
        }
    }
    free(c);
    support_pair_free(&p);
}
