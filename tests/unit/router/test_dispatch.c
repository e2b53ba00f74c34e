/* Does every request in flight end exactly once, whatever workers do? Dispatch runs against a real
 * store and against a fleet and a channel of this file: two workers whose lives and inboxes the
 * tests hold. */
#include "ipc/channel.h"
#include "prefixcache/kv_store.h"
#include "router/dispatch.h"
#include "router/fleet.h"
#include "router/metrics.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { N_WORKERS = 2, MAX_SENT = 64 };

static struct {
    struct fleet_worker workers[N_WORKERS];
    struct {
        uint32_t worker;
        enum message_kind kind;
        uint64_t id;
        bool is_counted;
    } sent[MAX_SENT];
    int n_sent;
    enum err send_error;
} world;

uint32_t fleet_n_workers(const struct fleet *f)
{
    (void)f;
    return N_WORKERS;
}

const struct fleet_worker *fleet_worker_at(const struct fleet *f, uint32_t index)
{
    (void)f;
    return &world.workers[index];
}

enum err channel_send(struct channel *c, const struct channel_peer *to, const struct message *m,
                      struct err_info *ei)
{
    (void)c;
    if (world.send_error != OK)
        return err_set(ei, world.send_error, "no way");
    world.sent[world.n_sent].worker = to->worker;
    world.sent[world.n_sent].kind = m->kind;
    world.sent[world.n_sent].is_counted = m->kind == MESSAGE_SUBMIT && m->as.submit.is_counted;
    world.sent[world.n_sent++].id = m->kind == MESSAGE_SUBMIT ? m->as.submit.id : m->as.cancel.id;
    return OK;
}

struct client {
    uint64_t id;
    int n_tokens, n_failed, n_finished;
    enum dispatch_failure why;
    struct client *cancels; /* when it fails, it cancels this one too */
    bool restarts;          /* nothing of it has left: it may start anew */
};

static struct dispatch *d;
static struct metrics *metrics;
static struct kv_store *store;
static char store_name[64];

static void on_tokens(void *ctx, const struct sequence_tokens *s)
{
    struct client *c = ctx;
    c->n_tokens += (int)s->n_tokens;
    c->n_finished += s->finish != FINISH_NONE;
}

static bool on_restart(void *ctx)
{
    struct client *c = ctx;
    c->n_tokens = 0;
    return true;
}

static void on_failed(void *ctx, enum dispatch_failure why, enum err code, const char *text)
{
    (void)code;
    struct client *c = ctx;
    cr_assert(text[0]);
    c->n_failed++;
    c->why = why;
    if (c->cancels)
        dispatch_cancel(d, c->cancels->id);
}

static void setup(void)
{
    memset(&world, 0, sizeof world);
    for (uint32_t i = 0; i < N_WORKERS; i++)
        world.workers[i] = (struct fleet_worker){
            .index = i, .state = FLEET_READY, .process = {.pid = 100 + (int)i}};
    (void)snprintf(store_name, sizeof store_name, "kvnode-test-dispatch-%d", getpid());
    struct kv_store_config sc = {
        .name = store_name, .block_size = 16, .block_bytes = 64, .n_blocks = 8, .max_leases = 2};
    struct err_info ei;
    cr_assert_eq(kv_store_create(&sc, &store, &ei), OK, "%s", ei.text);
    cr_assert_eq(metrics_new("m", &metrics), OK);
    struct dispatch_config cfg = {.store = store, .metrics = metrics, .max_waiting = 4};
    cr_assert_eq(dispatch_new(&cfg, &d), OK);
}

static void teardown(void)
{
    dispatch_free(d);
    metrics_free(metrics);
    kv_store_detach(store);
    kv_store_remove(store_name);
}

TestSuite(dispatch, .init = setup, .fini = teardown, .timeout = 10);

static enum err submit(struct client *c, int32_t pinned)
{
    static const uint32_t tokens[] = {1, 2, 3, 4, 5};
    struct dispatch_request req = {
        .tokens = tokens, .n_tokens = 5, .tenant = "", .salt = "", .pinned_worker = pinned};
    struct dispatch_sink sink = {on_tokens, on_failed, c->restarts ? on_restart : NULL, c};
    struct err_info ei;
    return dispatch_submit(d, &req, &sink, &c->id, &ei);
}

/* Worker says: n tokens for id, and how it goes on. */
static void tokens(uint32_t worker, uint64_t id, uint32_t n, enum finish_reason finish)
{
    struct emitted_token t[4] = {{.token = 7}};
    struct sequence_tokens s = {
        .id = id, .is_admission = true, .n_tokens = n, .tokens = t, .finish = finish};
    struct message_tokens m = {.step = 1, .n_sequences = 1, .sequences = &s};
    dispatch_on_tokens(d, worker, &m);
}

static void die(uint32_t worker)
{
    world.workers[worker].state = FLEET_DOWN;
    dispatch_worker_lost(d, worker);
}

static uint32_t n_in_flight(void)
{
    return dispatch_load(d, UINT32_MAX).n_in_flight;
}

Test(dispatch, a_finished_sequence_is_forgotten)
{
    struct client c = {0};
    cr_assert_eq(submit(&c, 0), OK);
    tokens(0, c.id, 2, FINISH_NONE);
    tokens(0, c.id, 1, FINISH_STOP);
    tokens(0, c.id, 1, FINISH_STOP); /* late words change nothing */
    cr_assert_eq(c.n_tokens, 3);
    cr_assert_eq(c.n_finished, 1);
    cr_assert_eq(n_in_flight(), 0);
}

Test(dispatch, requests_spread_over_idle_workers)
{
    struct client a = {0}, b = {0};
    cr_assert_eq(submit(&a, -1), OK);
    cr_assert_eq(submit(&b, -1), OK);
    cr_assert_neq(world.sent[0].worker, world.sent[1].worker);
}

Test(dispatch, a_cancelled_sequence_hears_nothing_more_and_its_worker_is_told)
{
    struct client c = {0};
    cr_assert_eq(submit(&c, 1), OK);
    dispatch_cancel(d, c.id);
    dispatch_cancel(d, c.id);
    tokens(1, c.id, 1, FINISH_NONE);
    cr_assert_eq(c.n_tokens, 0);
    cr_assert_eq(world.n_sent, 2);
    cr_assert_eq(world.sent[1].kind, MESSAGE_CANCEL);
    cr_assert_eq(world.sent[1].id, c.id);
    cr_assert_eq(n_in_flight(), 0);
}

Test(dispatch, what_has_emitted_nothing_is_retried_once_elsewhere)
{
    struct client c = {0};
    cr_assert_eq(submit(&c, -1), OK);
    uint32_t first = world.sent[0].worker;
    tokens(first, c.id, 0, FINISH_NONE); /* admitted, nothing emitted */
    die(first);
    cr_assert_eq(c.n_failed, 0);
    cr_assert_eq(world.n_sent, 2);
    cr_assert_neq(world.sent[1].worker, first);
    world.workers[first].state = FLEET_READY;
    die(!first); /* the second death is one too many */
    cr_assert_eq(c.n_failed, 1);
    cr_assert_eq(c.why, DISPATCH_WORKER_LOST);
    cr_assert_eq(n_in_flight(), 0);
    struct metrics_totals t;
    metrics_totals(metrics, &t);
    cr_assert_eq(t.n_retried, 1);
}

Test(dispatch, a_retry_says_whether_the_prompt_is_accounted_already)
{
    struct client admitted = {0}, waiting = {0};
    world.workers[1].state = FLEET_DOWN;
    cr_assert_eq(submit(&admitted, -1), OK);
    cr_assert_eq(submit(&waiting, -1), OK);
    cr_assert_not(world.sent[0].is_counted || world.sent[1].is_counted);
    tokens(0, admitted.id, 0, FINISH_NONE);
    world.workers[1].state = FLEET_READY;
    world.n_sent = 0;
    die(0);
    cr_assert_eq(world.n_sent, 2);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(world.sent[i].is_counted, world.sent[i].id == admitted.id);
}

Test(dispatch, what_has_emitted_something_fails_with_its_worker)
{
    struct client c = {0}, other = {0};
    cr_assert_eq(submit(&c, 0), OK);
    cr_assert_eq(submit(&other, 1), OK);
    tokens(0, c.id, 1, FINISH_NONE);
    die(0);
    cr_assert_eq(c.n_failed, 1);
    cr_assert_eq(c.why, DISPATCH_WORKER_LOST);
    cr_assert_eq(other.n_failed, 0);
    cr_assert_eq(n_in_flight(), 1);
}

Test(dispatch, what_has_sent_nothing_to_its_client_starts_anew_once)
{
    struct client c = {.restarts = true};
    cr_assert_eq(submit(&c, -1), OK);
    uint32_t first = world.sent[0].worker, second = 1 - first;
    tokens(first, c.id, 3, FINISH_NONE);
    die(first);
    cr_assert_eq(world.n_sent, 2);
    cr_assert_eq(world.sent[1].worker, second);
    cr_assert_eq(c.n_tokens, 0);
    cr_assert_eq(dispatch_load(d, UINT32_MAX).n_waiting, 1);
    tokens(second, c.id, 2, FINISH_NONE);
    world.workers[first].state = FLEET_READY;
    die(second);
    cr_assert_eq(c.n_failed, 1);
    cr_assert_eq(c.why, DISPATCH_WORKER_LOST);
    cr_assert_eq(c.n_tokens, 2, "not asked a second time");
    cr_assert_eq(n_in_flight(), 0);
}

Test(dispatch, ids_count_up_from_their_base)
{
    struct dispatch *other;
    struct dispatch_config cfg = {
        .store = store, .metrics = metrics, .max_waiting = 4, .id_base = UINT64_C(1) << 40};
    cr_assert_eq(dispatch_new(&cfg, &other), OK);
    dispatch_free(d);
    d = other;
    struct client c = {0};
    cr_assert_eq(submit(&c, 0), OK);
    tokens(0, 1, 2, FINISH_STOP); /* for a request of a former router */
    cr_assert_eq(c.n_tokens, 0);
    tokens(0, c.id, 2, FINISH_STOP);
    cr_assert_eq(c.n_tokens, 2);
}

Test(dispatch, with_no_worker_left_requests_are_unavailable)
{
    struct client c = {0}, late = {0};
    world.workers[1].state = FLEET_STARTING;
    cr_assert_eq(submit(&c, -1), OK);
    die(0);
    cr_assert_eq(c.n_failed, 1);
    cr_assert_eq(c.why, DISPATCH_UNAVAILABLE);
    cr_assert_eq(submit(&late, -1), ERR_GONE);
    cr_assert_eq(n_in_flight(), 0);
}

Test(dispatch, a_failing_request_may_cancel_another_of_the_same_worker)
{
    struct client a = {0}, b = {0};
    cr_assert_eq(submit(&a, 0), OK);
    cr_assert_eq(submit(&b, 0), OK);
    a.cancels = &b;
    b.cancels = &a;
    tokens(0, a.id, 1, FINISH_NONE);
    tokens(0, b.id, 1, FINISH_NONE);
    die(0);
    cr_assert_eq(a.n_failed + b.n_failed, 1, "the one that failed first cancelled the other");
    cr_assert_eq(n_in_flight(), 0);
}

Test(dispatch, waiting_requests_are_bounded_and_admission_makes_room)
{
    struct client c[5] = {{0}};
    for (int i = 0; i < 4; i++)
        cr_assert_eq(submit(&c[i], 0), OK);
    cr_assert_eq(submit(&c[4], 0), ERR_BUSY);
    tokens(0, c[0].id, 0, FINISH_NONE);
    cr_assert_eq(submit(&c[4], 0), OK);
}

Test(dispatch, a_worker_out_of_range_is_named_as_the_clients_fault)
{
    struct client c = {0};
    cr_assert_eq(submit(&c, N_WORKERS), ERR_LIMIT);
    cr_assert_eq(submit(&c, 1), OK);
    world.workers[1].state = FLEET_DOWN;
    cr_assert_eq(submit(&c, 1), ERR_GONE);
}

Test(dispatch, a_submit_that_cannot_be_sent_leaves_nothing)
{
    struct client c = {0};
    world.send_error = ERR_BUSY;
    cr_assert_eq(submit(&c, -1), ERR_BUSY);
    cr_assert_eq(n_in_flight(), 0);
    cr_assert_eq(dispatch_load(d, 0).n_waiting, 0);
}
