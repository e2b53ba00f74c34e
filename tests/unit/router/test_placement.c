/* Does a request land where it costs least? Expected winners follow from the definition in
 * placement.h by hand calculation; no number here comes from running it. */
#include "router/placement.h"

#include <criterion/criterion.h>

TestSuite(placement, .timeout = 5);

/* one millisecond a prefill token, two a running sequence */
static const struct placement_rates RATES = {
    .prefill_s_per_token = 1e-3, .decode_s_per_sequence = 2e-3, .slowdown_weight = 0.1};
static const struct placement_request ANY = {.n_tokens = 100, .n_cached = 0, .pinned = -1};

Test(placement, an_idle_worker_wins_over_a_busy_one)
{
    struct placement_worker w[] = {{.is_alive = true, .queued_prefill_tokens = 500},
                                   {.is_alive = true}};
    struct placement_decision d;
    cr_assert(placement_pick(w, 2, &RATES, &ANY, &d));
    cr_assert_eq(d.worker, 1);
}

Test(placement, ties_go_to_the_least_recently_used)
{
    struct placement_worker w[] = {{.is_alive = true, .last_used = 7},
                                   {.is_alive = true, .last_used = 3},
                                   {.is_alive = true, .last_used = 5}};
    struct placement_decision d;
    cr_assert(placement_pick(w, 3, &RATES, &ANY, &d));
    cr_assert_eq(d.worker, 1);
}

Test(placement, a_long_queue_costs_more_than_many_decoders)
{
    /* worker 0: 50 ms of queue; worker 1: 8 decoders = 16 ms + 0.1 * 8 * 100 ms = 96 ms in all */
    struct placement_worker w[] = {{.is_alive = true, .queued_prefill_tokens = 50},
                                   {.is_alive = true, .n_decoding = 8}};
    struct placement_decision d;
    cr_assert(placement_pick(w, 2, &RATES, &ANY, &d));
    cr_assert_eq(d.worker, 0);
    cr_assert_float_eq(d.wait_s, 0.050, 1e-9);
    cr_assert_float_eq(d.prefill_s, 0.100, 1e-9);
    cr_assert_float_eq(d.slowdown_s, 0, 1e-9);
}

Test(placement, cached_tokens_are_not_paid_for)
{
    struct placement_worker w[] = {{.is_alive = true, .n_decoding = 2}};
    struct placement_request req = {.n_tokens = 100, .n_cached = 96, .pinned = -1};
    struct placement_decision d;
    cr_assert(placement_pick(w, 1, &RATES, &req, &d));
    cr_assert_float_eq(d.prefill_s, 0.004, 1e-9);
    cr_assert_float_eq(d.slowdown_s, 0.1 * 2 * 0.004, 1e-9);
}

Test(placement, the_dead_are_never_picked)
{
    struct placement_worker w[] = {{.is_alive = false}, {.is_alive = true, .n_decoding = 60}};
    struct placement_decision d;
    cr_assert(placement_pick(w, 2, &RATES, &ANY, &d));
    cr_assert_eq(d.worker, 1);
    w[1].is_alive = false;
    cr_assert_not(placement_pick(w, 2, &RATES, &ANY, &d));
}

Test(placement, a_pinned_request_goes_there_or_nowhere)
{
    struct placement_worker w[] = {{.is_alive = true}, {.is_alive = true, .n_decoding = 60}};
    struct placement_request req = {.n_tokens = 10, .n_cached = 0, .pinned = 1};
    struct placement_decision d;
    cr_assert(placement_pick(w, 2, &RATES, &req, &d));
    cr_assert_eq(d.worker, 1);
    w[1].is_alive = false;
    cr_assert_not(placement_pick(w, 2, &RATES, &req, &d));
}
