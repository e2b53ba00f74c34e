/* When does a worker compute, listen, wait or end? One thread does all in turn. Keeps: what
 * belongs to a router that is gone is dropped before anything of the next one is handled, and a
 * step's tokens are never lost while their router lives. Knows nothing of tokens. */
#include "worker/serve.h"

#include "config/base/clock.h"
#include "config/base/log.h"
#include "worker/step_budget.h"

#include <poll.h>

enum {
    MESSAGES_AT_ONCE = 1024,       /* then a step, whatever still waits */
    IDLE_WAIT_MS = 200,            /* also the longest that the stop signal may go unseen */
    NO_ROOM_WAIT_MS = 2,           /* others hold the pool; the store wakes nobody */
    FULL_QUEUE_WAIT_MS = 2,        /* the router is behind */
    STATS_CHANGED_US = 200 * 1000, /* between STATS that say something new */
    STEP_TARGET_US = 250 * 1000,   /* what a step may take, prefill in it or not */
    STATS_US = 1000 * 1000,        /* the router takes longer silence for a hang */
};

struct serve {
    const struct serve_config *cfg;
    struct engine *engine;
    uint64_t generation; /* of the router whose sequences the engine holds */
    enum worker_phase phase;
    bool is_told_to_stop;
    struct message_stats last_stats;
    uint64_t last_stats_us;
    struct step_budget budget;
};

static void set_phase(struct serve *s, enum worker_phase phase, uint64_t now_us)
{
    if (s->phase == phase)
        return;
    s->phase = phase;
    kv_store_pulse(s->cfg->engine.scheduler.store, phase, engine_n_steps(s->engine), now_us);
}

/* True when the router is lost or another: its sequences are void. */
static bool drop_void_sequences(struct serve *s)
{
    uint64_t generation = router_link_generation(s->cfg->link);
    if (generation == s->generation)
        return false;
    s->generation = generation;
    engine_abandon(s->engine);
    return true;
}

/* Waits while the router's queue is full, for as long as it lives. What is said of sequences of a
 * router that is gone is not for the next one, whose sequences have the same ids. */
static void send_patiently(void *ctx, const struct message *m)
{
    struct serve *s = ctx;
    while (router_link_generation(s->cfg->link) == s->generation) {
        struct err_info ei = {0};
        enum err rc = router_link_send(s->cfg->link, m, &ei);
        if (rc == OK)
            return;
        if (rc != ERR_BUSY) {
            log_error("%s not sent: %s", message_kind_name(m->kind), ei.text);
            return;
        }
        uint64_t now_us = clock_now_us();
        if (*s->cfg->stop_signal || router_link_tick(s->cfg->link, now_us) != ROUTER_LINK_SERVING)
            return;
        set_phase(s, PHASE_IDLE, now_us);
        (void)poll(NULL, 0, FULL_QUEUE_WAIT_MS);
    }
}

static bool is_news(const struct message_stats *a, const struct message_stats *b)
{
    return a->n_running != b->n_running || a->n_waiting != b->n_waiting ||
           a->n_steps != b->n_steps || a->n_cancelled != b->n_cancelled ||
           a->is_draining != b->is_draining;
}

static void send_stats(struct serve *s, uint64_t now_us)
{
    struct message m = {.kind = MESSAGE_STATS};
    uint64_t since_us = now_us - s->last_stats_us;
    if (since_us < STATS_CHANGED_US)
        return;
    engine_get_stats(s->engine, &m.as.stats);
    if (since_us < STATS_US && !is_news(&m.as.stats, &s->last_stats))
        return;
    struct err_info ei = {0};
    if (router_link_send(s->cfg->link, &m, &ei) != OK)
        log_debug("STATS: %s", ei.text); /* the next ones will do */
    s->last_stats = m.as.stats;
    s->last_stats_us = now_us;
}

/* Takes what has come. *n: how many messages. Errors: IO. */
static enum err listen_to_router(struct serve *s, uint64_t now_us, uint32_t *n, struct err_info *ei)
{
    struct message m;
    for (*n = 0; *n < MESSAGES_AT_ONCE && !s->is_told_to_stop; (*n)++) {
        enum err rc = router_link_receive(s->cfg->link, now_us, &m, ei);
        drop_void_sequences(s);
        if (rc == ERR_BUSY)
            return OK;
        if (rc)
            return rc;
        if (m.kind == MESSAGE_STOP)
            s->is_told_to_stop = true;
        else
            engine_handle(s->engine, &m);
    }
    return OK;
}

static void wait_for_news(struct serve *s)
{
    struct pollfd fds[ROUTER_LINK_POLL_FDS];
    router_link_poll_fds(s->cfg->link, fds);
    bool has_work = engine_has_work(s->engine);
    if (!has_work)
        set_phase(s, PHASE_IDLE, clock_now_us());
    (void)poll(fds, ROUTER_LINK_POLL_FDS, has_work ? NO_ROOM_WAIT_MS : IDLE_WAIT_MS);
}

/* One step, as wide as its time allows, and timed. */
static bool step(struct serve *s, uint64_t now_us)
{
    struct message_stats before, after;
    engine_get_stats(s->engine, &before);
    engine_limit_step(s->engine, step_budget_tokens(&s->budget));
    if (!engine_step(s->engine, now_us))
        return false;
    s->phase = PHASE_STEP; /* the engine has said so */
    engine_get_stats(s->engine, &after);
    uint64_t n_tokens = after.n_prefill_tokens + after.n_decode_tokens - before.n_prefill_tokens -
                        before.n_decode_tokens;
    step_budget_observe(&s->budget, (uint32_t)n_tokens, clock_now_us() - now_us);
    return true;
}

/* ZeroMQ's descriptor signals changes only: between the last send and the wait the queue is read
 * until it is empty. */
static enum err serve_loop(struct serve *s, enum serve_end *end, struct err_info *ei)
{
    *end = SERVE_STOPPED;
    while (!*s->cfg->stop_signal && !s->is_told_to_stop) {
        uint64_t now_us = clock_now_us();
        enum router_link_state state = router_link_tick(s->cfg->link, now_us);
        drop_void_sequences(s);
        if (state == ROUTER_LINK_EXPIRED) {
            *end = SERVE_ORPHANED;
            break;
        }
        bool has_stepped = step(s, now_us);
        if (state == ROUTER_LINK_SERVING)
            send_stats(s, now_us);
        uint32_t n_messages;
        enum err rc = listen_to_router(s, clock_now_us(), &n_messages, ei);
        if (rc)
            return rc;
        if (!has_stepped && n_messages == 0)
            wait_for_news(s);
    }
    return OK;
}

enum err serve_run(const struct serve_config *cfg, enum serve_end *end, struct err_info *ei)
{
    struct serve s = {
        .cfg = cfg, .generation = router_link_generation(cfg->link), .phase = PHASE_STARTING};
    step_budget_init(&s.budget, cfg->engine.scheduler.max_batch_tokens, STEP_TARGET_US);
    struct engine_config engine = cfg->engine;
    engine.send = send_patiently;
    engine.ctx = &s;
    enum err rc = engine_new(&engine, &s.engine, ei);
    if (rc)
        return rc;
    rc = serve_loop(&s, end, ei);
    set_phase(&s, PHASE_STOPPING, clock_now_us());
    engine_free(s.engine);
    return rc;
}
