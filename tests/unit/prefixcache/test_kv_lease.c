/* Who holds what, and what happens when they go? */
#include "support_store.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>

TestSuite(kv_lease, .timeout = 10);

Test(kv_lease, closing_drops_pins_and_filling_rows_of_that_lease_only)
{
    struct store_pair p = support_pair(8, 2);
    struct chain c;
    uint32_t b[3], e[3];
    support_chain(&c, 1, 64, 0);
    support_publish(p.a, &c, 0, 3, b);
    cr_assert_eq(support_acquire(p.b, &c, 2, e), 2);
    cr_assert_eq(kv_store_reserve(p.a, 2, e, NULL), OK);
    cr_assert_eq(kv_store_reserve(p.b, 1, e, NULL), OK);
    kv_store_lease_close(p.a);
    support_check(p.b);
    struct kv_store_stats st = support_stats(p.b);
    cr_expect_eq(st.n_pinned, 2);
    cr_expect_eq(st.n_filling, 1);
    cr_expect_eq(st.n_ready, 3);
    cr_expect_eq(st.n_leases, 1);
    cr_expect_eq(kv_store_lease(p.a), KV_LEASE_NONE);
    support_pair_free(&p);
}

Test(kv_lease, only_leases_of_dead_processes_are_reaped)
{
    struct store_pair p = support_pair(8, 2);
    struct chain c;
    uint32_t b[3];
    support_chain(&c, 1, 64, 0);
    kv_store_lease_close(p.b);
    cr_assert_eq(kv_store_lease_open(p.b, support_dead_process(), 1, NULL), OK);
    support_publish(p.b, &c, 0, 2, b);
    cr_assert_eq(kv_store_reserve(p.b, 3, b, NULL), OK);
    support_publish(p.a, &c, 0, 1, b);
    cr_expect_eq(kv_store_reap(p.a), 1);
    support_check(p.a);
    struct kv_store_stats st = support_stats(p.a);
    cr_expect_eq(st.n_pinned, 1); /* a's own */
    cr_expect_eq(st.n_filling, 0);
    cr_expect_eq(st.n_leases, 1);
    cr_expect_eq(kv_store_reap(p.a), 0);
    kv_store_detach(p.b);
    kv_store_lease_close(p.a);
    kv_store_detach(p.a);
}

Test(kv_lease, one_more_than_the_store_has_is_refused_unless_one_is_dead)
{
    struct kv_store_config cfg = {.name = support_name(),
                                  .block_size = SUPPORT_BLOCK,
                                  .block_bytes = 64,
                                  .n_blocks = 2,
                                  .max_leases = 1,
                                  .fingerprint = support_fingerprint()};
    struct kv_store *s = NULL, *t = NULL;
    struct err_info ei = {{0}};
    cr_assert_eq(kv_store_create(&cfg, &s, NULL), OK);
    cr_assert_eq(kv_store_attach(cfg.name, &cfg.fingerprint, &t, NULL), OK);
    kv_store_remove(cfg.name);
    cr_assert_eq(kv_store_lease_open(s, process_self(), 0, NULL), OK);
    cr_expect_eq(kv_store_lease_open(t, process_self(), 0, &ei), ERR_LIMIT);
    cr_expect_str_eq(ei.text, "kv store: all 1 leases are in use");
    kv_store_lease_close(s);
    cr_assert_eq(kv_store_lease_open(s, support_dead_process(), 0, NULL), OK);
    cr_expect_eq(kv_store_lease_open(t, process_self(), 0, &ei), OK);
    support_check(t);
    kv_store_lease_close(t);
    kv_store_detach(t);
    kv_store_detach(s);
}

Test(kv_lease, leases_are_listed_with_owner_tag_and_holdings)
{
    struct store_pair p = support_pair(8, 3);
    struct chain c;
    uint32_t b[4];
    struct kv_lease_info info[3];
    support_chain(&c, 1, 64, 0);
    support_publish(p.b, &c, 0, 3, b);
    cr_assert_eq(kv_store_reserve(p.b, 2, b, NULL), OK);
    cr_assert_eq(kv_store_leases(p.a, info, 3), 2);
    cr_expect_eq(info[0].tag, 0);
    cr_expect_eq(info[1].tag, 1);
    cr_expect_eq(info[1].lease, kv_store_lease(p.b));
    cr_expect_eq(info[1].owner.pid, process_self().pid);
    cr_expect_eq(info[1].owner.start, process_self().start);
    cr_expect_eq(info[1].n_pins, 3);
    cr_expect_eq(info[1].n_filling, 2);
    cr_expect_eq(info[0].n_pins + info[0].n_filling, 0);
    cr_expect_eq(kv_store_leases(p.a, info, 1), 1);
    support_pair_free(&p);
}

Test(kv_lease, a_pulse_is_read_as_it_was_written)
{
    struct store_pair p = support_pair(2, 3);
    struct worker_pulse pulse;
    uint32_t lease = kv_store_lease(p.b);
    cr_assert(kv_store_read_pulse(p.a, lease, &pulse));
    cr_expect_eq(pulse.phase, PHASE_STARTING);
    kv_store_pulse(p.b, PHASE_STEP, 41, 1000000007);
    cr_assert(kv_store_read_pulse(p.a, lease, &pulse));
    cr_expect_eq(pulse.phase, PHASE_STEP);
    cr_expect_eq(pulse.step, 41);
    cr_expect_eq(pulse.since_us, 1000000007);
    kv_store_lease_close(p.b);
    cr_expect_not(kv_store_read_pulse(p.a, lease, &pulse));
    cr_expect_not(kv_store_read_pulse(p.a, 99, &pulse));
    cr_assert_eq(kv_store_lease_open(p.b, process_self(), 1, NULL), OK);
    cr_assert(kv_store_read_pulse(p.a, lease, &pulse));
    cr_expect_eq(pulse.phase, PHASE_STARTING); /* not the last owner's */
    support_pair_free(&p);
}

struct beat {
    struct kv_store *s;
    atomic_bool is_over;
};

static void *beat_main(void *arg)
{
    struct beat *beat = arg;
    for (uint64_t i = 1; !atomic_load(&beat->is_over); i++)
        kv_store_pulse(beat->s, (enum worker_phase)(i % 4), i, i * 3);
    return NULL;
}

Test(kv_lease, a_pulse_is_never_read_torn)
{
    struct store_pair p = support_pair(2, 3);
    struct beat beat = {.s = p.b};
    struct worker_pulse pulse;
    pthread_t thread;
    uint32_t n_read = 0;
    kv_store_pulse(p.b, PHASE_STARTING, 0, 0);
    cr_assert_eq(pthread_create(&thread, NULL, beat_main, &beat), 0);
    for (uint32_t i = 0; i < 200000; i++) {
        if (!kv_store_read_pulse(p.a, kv_store_lease(p.b), &pulse))
            continue;
        n_read++;
        cr_assert_eq(pulse.since_us, pulse.step * 3);
        cr_assert_eq((uint64_t)pulse.phase, pulse.step % 4);
    }
    atomic_store(&beat.is_over, true);
    pthread_join(thread, NULL);
    cr_expect_gt(n_read, 1000);
    support_pair_free(&p);
}
