/* Does the store keep the rules of kv_store.h for chains, pins and states? Two handles stand for
 * two processes. kv_store_check runs after every mutation (in the support functions). */
#include "support_store.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(kv_store, .timeout = 10);

Test(kv_store, a_new_store_is_all_free)
{
    struct store_pair p = support_pair(8, 4);
    struct kv_store_stats st = support_stats(p.b);
    cr_expect_eq(st.n_blocks, 8);
    cr_expect_eq(st.n_free, 8);
    cr_expect_eq(st.n_filling + st.n_ready + st.n_pinned, 0);
    cr_expect_eq(st.n_leases, 2);
    cr_expect_eq(st.n_rebuilds, 0);
    cr_expect_eq(kv_store_block_size(p.b), 16);
    cr_expect_eq(kv_store_block_bytes(p.b), 64);
    cr_expect_eq(kv_store_n_blocks(p.b), 8);
    cr_expect_eq((uintptr_t)kv_store_data(p.b) % 64, 0);
    support_pair_free(&p);
}

Test(kv_store, a_published_chain_is_found_by_another_process)
{
    struct store_pair p = support_pair(8, 4);
    struct chain c;
    uint32_t mine[5], theirs[5];
    support_chain(&c, 1, 64, 0);
    support_publish(p.a, &c, 0, 4, mine);
    cr_expect_eq(support_match(p.b, &c, 5), 4);
    cr_expect_eq(support_acquire(p.b, &c, 5, theirs), 4);
    cr_expect_arr_eq(mine, theirs, 4 * sizeof *mine);
    cr_expect_eq(support_stats(p.a).n_pinned, 4);
    kv_store_release(p.a, mine, 4);
    cr_expect_eq(support_stats(p.a).n_pinned, 4);
    kv_store_release(p.b, theirs, 4);
    cr_expect_eq(support_stats(p.a).n_pinned, 0);
    support_pair_free(&p);
}

Test(kv_store, block_bytes_written_by_one_process_are_read_by_another)
{
    struct store_pair p = support_pair(4, 4);
    struct chain c;
    uint32_t b[2];
    support_chain(&c, 1, 64, 0);
    cr_assert_eq(kv_store_reserve(p.a, 1, b, NULL), OK);
    memset((char *)kv_store_data(p.a) + b[0] * 64, 0x77, 64);
    b[0] = kv_store_publish(p.a, b[0], c.keys, KV_BLOCK_NONE, c.tokens);
    cr_assert_eq(support_acquire(p.b, &c, 1, b + 1), 1);
    for (int i = 0; i < 64; i++)
        cr_assert_eq(((char *)kv_store_data(p.b))[b[1] * 64 + i], 0x77);
    support_pair_free(&p);
}

Test(kv_store, filling_blocks_are_not_found)
{
    struct store_pair p = support_pair(8, 4);
    struct chain c;
    uint32_t b[3];
    support_chain(&c, 1, 64, 0);
    support_publish(p.a, &c, 0, 1, b);
    cr_assert_eq(kv_store_reserve(p.a, 2, b + 1, NULL), OK);
    cr_expect_eq(support_match(p.b, &c, 3), 1);
    cr_expect_eq(support_stats(p.b).n_filling, 2);
    support_pair_free(&p);
}

Test(kv_store, chains_that_fork_share_their_stem_only)
{
    struct store_pair p = support_pair(16, 4);
    struct chain c, d;
    uint32_t b[6], e[6];
    support_chain(&c, 1, 3, 2);
    support_chain(&d, 1, 3, 3);
    support_publish(p.a, &c, 0, 6, b);
    cr_expect_eq(support_acquire(p.b, &d, 6, e), 3);
    support_publish(p.b, &d, 3, 6, e);
    cr_expect_arr_eq(b, e, 3 * sizeof *b);
    cr_expect_neq(b[3], e[3]);
    cr_expect_eq(support_stats(p.a).n_ready, 9);
    cr_expect_eq(support_match(p.a, &d, 6), 6);
    support_pair_free(&p);
}

Test(kv_store, tokens_are_compared_and_not_only_the_key)
{
    struct store_pair p = support_pair(8, 4);
    struct chain c, forged;
    uint32_t b[3];
    support_chain(&c, 1, 64, 0);
    support_publish(p.a, &c, 0, 3, b);
    forged = c;
    forged.tokens[SUPPORT_BLOCK + 5] ^= 1; /* same keys, another token in block 1 */
    cr_expect_eq(support_match(p.b, &forged, 3), 1);
    cr_expect_eq(support_acquire(p.b, &forged, 3, b), 1);
    support_pair_free(&p);
}

Test(kv_store, a_key_under_another_parent_is_not_the_same_block)
{
    struct store_pair p = support_pair(8, 4);
    struct chain c;
    uint32_t b[2];
    support_chain(&c, 1, 64, 0);
    support_publish(p.a, &c, 0, 2, b);
    /* block 1's key and tokens offered as a first block */
    cr_expect_eq(kv_store_match(p.b, c.keys + 1, c.tokens + SUPPORT_BLOCK, 1), 0);
    support_pair_free(&p);
}

Test(kv_store, publishing_what_is_ready_returns_the_other_block_and_frees_ours)
{
    struct store_pair p = support_pair(8, 4);
    struct chain c;
    uint32_t b[2], d[2];
    support_chain(&c, 1, 64, 0);
    support_publish(p.a, &c, 0, 2, b);
    support_publish(p.b, &c, 0, 2, d);
    cr_expect_arr_eq(b, d, sizeof b);
    struct kv_store_stats st = support_stats(p.a);
    cr_expect_eq(st.n_ready, 2);
    cr_expect_eq(st.n_free, 6);
    cr_expect_eq(st.n_published, 2);
    cr_expect_eq(st.n_deduplicated, 2);
    kv_store_release(p.a, b, 2);
    cr_expect_eq(support_stats(p.a).n_pinned, 2); /* b's pins hold them */
    support_pair_free(&p);
}

Test(kv_store, a_collision_stays_private_with_all_that_follows)
{
    struct store_pair p = support_pair(8, 4);
    struct chain c, forged;
    uint32_t b[1], mine[2], out[2];
    support_chain(&c, 1, 64, 0);
    support_publish(p.a, &c, 0, 1, b);
    forged = c;
    forged.tokens[3] ^= 1;
    cr_assert_eq(kv_store_reserve(p.b, 2, mine, NULL), OK);
    out[0] = kv_store_publish(p.b, mine[0], &forged.keys[0], KV_BLOCK_NONE, forged.tokens);
    support_check(p.b);
    out[1] = kv_store_publish(p.b, mine[1], &forged.keys[1], out[0], forged.tokens + SUPPORT_BLOCK);
    support_check(p.b);
    cr_expect_arr_eq(out, mine, sizeof out);
    cr_expect_eq(support_stats(p.b).n_filling, 2);
    cr_expect_eq(support_match(p.a, &c, 1), 1);
    kv_store_release(p.b, out, 2);
    support_check(p.b);
    cr_expect_eq(support_stats(p.b).n_free, 7);
    support_pair_free(&p);
}

Test(kv_store, a_block_acquired_twice_is_released_twice)
{
    struct store_pair p = support_pair(4, 4);
    struct chain c;
    uint32_t b[1];
    support_chain(&c, 1, 64, 0);
    support_cache(p.a, &c, 1, b);
    cr_assert_eq(support_acquire(p.a, &c, 1, b), 1);
    cr_assert_eq(support_acquire(p.a, &c, 1, b), 1);
    kv_store_release(p.a, b, 1);
    support_check(p.a);
    cr_expect_eq(support_stats(p.a).n_pinned, 1);
    kv_store_release(p.a, b, 1);
    support_check(p.a);
    cr_expect_eq(support_stats(p.a).n_pinned, 0);
    support_pair_free(&p);
}

Test(kv_store, more_pins_than_a_count_holds_shorten_the_hit_and_never_wrap)
{
    struct store_pair p = support_pair(4, 4);
    struct chain c;
    uint32_t b[2];
    support_chain(&c, 1, 64, 0);
    support_publish(p.a, &c, 0, 1, b);
    for (uint32_t i = 1; i < UINT16_MAX; i++)
        cr_assert_eq(kv_store_acquire(p.a, c.keys, c.tokens, 1, b), 1);
    cr_expect_eq(support_acquire(p.a, &c, 1, b), 0);
    support_publish(p.a, &c, 0, 1, b + 1); /* its twin stays private */
    cr_expect_neq(b[1], b[0]);
    cr_expect_eq(support_acquire(p.b, &c, 1, b), 1);
    support_pair_free(&p);
}

Test(kv_store, reserve_takes_all_or_none)
{
    struct store_pair p = support_pair(4, 4);
    struct err_info ei = {{0}};
    uint32_t b[5];
    cr_assert_eq(kv_store_reserve(p.a, 3, b, &ei), OK);
    cr_expect_eq(kv_store_reserve(p.b, 2, b, &ei), ERR_BUSY);
    cr_expect_str_eq(ei.text, "kv store: no room: 2 blocks wanted, 1 free, 0 evictable");
    support_check(p.a);
    cr_expect_eq(support_stats(p.a).n_filling, 3);
    cr_expect_eq(kv_store_reserve(p.b, 1, b, &ei), OK);
    cr_expect_eq(kv_store_reserve(p.b, 0, NULL, &ei), OK);
    support_pair_free(&p);
}

Test(kv_store, prompt_tokens_are_counted_by_source)
{
    struct store_pair p = support_pair(4, 4);
    kv_store_count_prompt(p.a, KV_SOURCE_COMPUTED, 100);
    kv_store_count_prompt(p.b, KV_SOURCE_COMPUTED, 23);
    kv_store_count_prompt(p.b, KV_SOURCE_HOST, 64);
    struct kv_store_stats st = support_stats(p.a);
    cr_expect_eq(st.prompt_tokens[KV_SOURCE_COMPUTED], 123);
    cr_expect_eq(st.prompt_tokens[KV_SOURCE_HOST], 64);
    support_pair_free(&p);
}

/* --- creating and attaching ---------------------------------------------------------------------
 */

static struct kv_store_config small_config(void)
{
    return (struct kv_store_config){.name = support_name(),
                                    .block_size = 32,
                                    .block_bytes = 128,
                                    .n_blocks = 3,
                                    .max_leases = 2,
                                    .fingerprint = support_fingerprint()};
}

Test(kv_store, contents_outlive_the_handle_that_made_them)
{
    struct kv_store_config cfg = small_config();
    struct kv_store *s = NULL;
    uint32_t tokens[32] = {5}, b;
    struct block_key key = {{1, 2, 3}};
    cr_assert_eq(kv_store_create(&cfg, &s, NULL), OK);
    cr_assert_eq(kv_store_lease_open(s, process_self(), 0, NULL), OK);
    cr_assert_eq(kv_store_reserve(s, 1, &b, NULL), OK);
    (void)kv_store_publish(s, b, &key, KV_BLOCK_NONE, tokens);
    kv_store_lease_close(s);
    kv_store_detach(s);
    cr_assert_eq(kv_store_attach(cfg.name, &cfg.fingerprint, &s, NULL), OK);
    kv_store_remove(cfg.name);
    cr_expect_eq(kv_store_match(s, &key, tokens, 1), 1);
    cr_expect_eq(kv_store_block_size(s), 32);
    cr_expect_eq(kv_store_block_bytes(s), 128);
    support_check(s);
    kv_store_detach(s);
    kv_store_detach(NULL);
}

Test(kv_store, a_name_is_created_once_and_gone_when_removed)
{
    struct kv_store_config cfg = small_config();
    struct kv_store *s = NULL, *t = NULL;
    cr_assert_eq(kv_store_create(&cfg, &s, NULL), OK);
    cr_expect_eq(kv_store_create(&cfg, &t, NULL), ERR_IO);
    kv_store_remove(cfg.name);
    cr_expect_eq(kv_store_attach(cfg.name, &cfg.fingerprint, &t, NULL), ERR_GONE);
    kv_store_detach(s);
}

Test(kv_store, another_fingerprint_is_refused_and_both_are_named)
{
    struct kv_store_config cfg = small_config();
    struct fingerprint other = cfg.fingerprint;
    struct kv_store *s = NULL, *t = NULL;
    struct err_info ei = {{0}};
    other.bytes[31] = 0xa6;
    cr_assert_eq(kv_store_create(&cfg, &s, NULL), OK);
    enum err rc = kv_store_attach(cfg.name, &other, &t, &ei);
    kv_store_remove(cfg.name);
    cr_expect_eq(rc, ERR_UNSUPPORTED);
    cr_expect(strstr(ei.text, "5a000000"), "%s", ei.text);
    cr_expect(strstr(ei.text, "00a5") && strstr(ei.text, "00a6"), "%s", ei.text);
    kv_store_detach(s);
}

Test(kv_store, sizes_out_of_range_are_refused)
{
    struct kv_store *s = NULL;
    struct err_info ei = {{0}};
    struct kv_store_config ok = small_config(), bad[7] = {ok, ok, ok, ok, ok, ok, ok};
    bad[0].block_size = 8;
    bad[1].n_blocks = 0;
    bad[2].max_leases = 0;
    bad[3].max_leases = 1025;
    bad[4].block_bytes = 100;
    bad[5].block_bytes = SIZE_MAX / 64 * 64;
    bad[6].n_blocks = UINT32_MAX;
    for (int i = 0; i < 7; i++) {
        cr_expect_eq(kv_store_create(&bad[i], &s, &ei), ERR_LIMIT, "case %d: %s", i, ei.text);
        cr_expect_null(s);
    }
}

Test(kv_store, blocks_may_have_no_bytes)
{
    struct kv_store_config cfg = small_config();
    struct kv_store *s = NULL;
    uint32_t b[3];
    cfg.block_bytes = 0; /* replaying a trace needs keys only */
    cr_assert_eq(kv_store_create(&cfg, &s, NULL), OK);
    kv_store_remove(cfg.name);
    cr_assert_eq(kv_store_lease_open(s, process_self(), 0, NULL), OK);
    cr_expect_eq(kv_store_reserve(s, 3, b, NULL), OK);
    support_check(s);
    kv_store_detach(s);
}
