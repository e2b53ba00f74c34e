/* What is a node's life? Open in the order of need, run the loop, stop from the outside in:
 * listener, streams, workers, store. One thread; the loop drains the ZeroMQ channel after each
 * round of events, since its descriptor signals only changes. */
#include "router/node.h"

#include "config/base/clock.h"
#include "config/base/log.h"
#include "ipc/shm.h"
#include "prefixcache/kv_store.h"
#include "router/api/api.h"
#include "router/control.h"
#include "router/fleet.h"
#include "router/metrics.h"
#include "router/node_state.h"
#include "router/spawn.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    STOP_TICK_MS = 20,
    FLUSH_US = 1000 * 1000,
    MAX_LEASES =
        128, /* twice the workers there can be: the next router of the name may have more */
    OWN_DESCRIPTORS = 160, /* control socket's 32, HTTP's 64 that are told to go, files, loop */
    DESCRIPTORS_PER_WORKER = 4,
    LOCK_WAIT_MS = 200, /* a worker that clears up after a dead router holds it for a moment */
};

/* --- stopping
 * ------------------------------------------------------------------------------------- */

static void begin_stop(struct node *n, const char *why)
{
    uint64_t now_us = clock_now_us();
    if (n->phase == NODE_STOPPING) { /* asked twice: no more grace */
        n->stop_deadline_us = now_us;
        return;
    }
    log_info("stopping (%s): %u requests may finish within %u s", why, api_n_active(n->api),
             n->config->shutdown_grace_s);
    n->phase = NODE_STOPPING;
    n->stop_deadline_us = now_us + (uint64_t)n->config->shutdown_grace_s * 1000000u;
    api_stop_listening(n->api);
    struct timeval tick = {.tv_usec = STOP_TICK_MS * 1000};
    if (event_add(n->stop_tick, &tick) != 0)
        fleet_stop(n->fleet);
    n->fleet_stopped_us = clock_now_us();
}

static void on_stop_tick(evutil_socket_t fd, short what, void *ctx)
{
    (void)fd, (void)what;
    struct node *n = ctx;
    if (api_n_active(n->api) == 0 || clock_now_us() >= n->stop_deadline_us)
        fleet_stop(n->fleet); /* idempotent; on_fleet_stopped follows */
}

static void on_signal(evutil_socket_t fd, short what, void *ctx)
{
    (void)what;
    begin_stop(ctx, fd == SIGINT ? "SIGINT" : fd == SIGHUP ? "SIGHUP" : "SIGTERM");
}

static void on_fleet_stopped(void *ctx)
{
    struct node *n = ctx;
    n->is_fleet_stopped = true;
    n->fleet_stopped_us = clock_now_us();
}

/* --- workers
 * -------------------------------------------------------------------------------------- */

/* Loading is over: says so on stdout, once, with the workers that serve. */
static void settle(struct node *n)
{
    uint32_t n_ready = fleet_n_ready(n->fleet);
    n->phase = NODE_READY;
    bool is_ipv6 = strchr(n->config->host, ':') != NULL; /* RFC 3986 3.2.2: in brackets */
    printf(
        "kvnode ready: http://%s%s%s:%u model %s, %u worker%s x %u thread%s (%s), KV capacity %llu "
        "tokens\n",
        is_ipv6 ? "[" : "", n->config->host, is_ipv6 ? "]" : "", api_port(n->api),
        n->config->served_model_name, n_ready, n_ready == 1 ? "" : "s", n->config->threads,
        n->config->threads == 1 ? "" : "s", n->config->isa,
        (unsigned long long)kv_store_n_blocks(n->store) * kv_store_block_size(n->store));
    fflush(stdout);
}

static void on_worker_ready(void *ctx, uint32_t worker)
{
    struct node *n = ctx;
    log_info("worker %u is ready", worker);
    if (n->phase == NODE_LOADING && fleet_n_ready(n->fleet) == fleet_n_workers(n->fleet))
        settle(n);
}

static void on_worker_lost(void *ctx, uint32_t worker)
{
    struct node *n = ctx;
    metrics_worker_restarted(n->metrics, worker);
    dispatch_worker_lost(n->dispatch, worker);
}

/* One worker cannot start: the others serve without it; when none can, the node gives up loading.
 */
static void on_hopeless(void *ctx, uint32_t worker, const char *why)
{
    struct node *n = ctx;
    if (n->phase != NODE_LOADING)
        return; /* the fleet has logged it and tries again */
    if (fleet_n_ready(n->fleet) > 0) {
        log_error("worker %u does not get ready: %s", worker, why);
        settle(n);
    } else if (!fleet_has_process(n->fleet)) {
        n->failure = ERR_GONE;
        (void)snprintf(n->failure_text, sizeof n->failure_text,
                       "worker %u did not get ready, again and again: %s", worker, why);
        begin_stop(n, "workers do not start");
    }
}

/* --- messages
 * ------------------------------------------------------------------------------------- */

static void on_message(struct node *n, struct channel_peer from, const struct message *m)
{
    if (m->kind == MESSAGE_HELLO) {
        fleet_on_hello(n->fleet, from, &m->as.hello);
        return;
    }
    if (!fleet_heard(n->fleet, from))
        return; /* the last words of a process already replaced */
    switch (m->kind) {
    case MESSAGE_TOKENS:
        dispatch_on_tokens(n->dispatch, from.worker, &m->as.tokens);
        break;
    case MESSAGE_FAILED:
        dispatch_on_failed(n->dispatch, from.worker, &m->as.failed);
        break;
    case MESSAGE_STATS:
        fleet_on_stats(n->fleet, from, &m->as.stats);
        break;
    case MESSAGE_HELLO:
    case MESSAGE_WELCOME:
    case MESSAGE_SUBMIT:
    case MESSAGE_CANCEL:
    case MESSAGE_DRAIN:
    case MESSAGE_STOP:
        log_warn("worker %u sent a %s: dropped", from.worker, message_kind_name(m->kind));
        break;
    }
}

static void drain_channel(struct node *n)
{
    for (;;) {
        struct channel_peer from;
        struct message m;
        struct err_info ei = {0};
        arena_reset(n->arena);
        enum err rc = channel_receive(n->channel, n->arena, &from, &m, &ei);
        if (rc == ERR_BUSY)
            return;
        if (rc == OK)
            on_message(n, from, &m);
        else
            log_warn("channel: %s", ei.text);
        if (rc == ERR_IO || rc == ERR_NOMEM)
            return;
    }
}

/* The descriptor only wakes the loop; node_run drains. */
static void on_channel_readable(evutil_socket_t fd, short what, void *ctx)
{
    (void)fd, (void)what, (void)ctx;
}

/* --- for api and control
 * -------------------------------------------------------------------------- */

static bool api_is_ready(void *ctx)
{
    return node_is_ready(ctx);
}

static bool api_is_draining(void *ctx)
{
    const struct node *n = ctx;
    return n->is_draining || n->phase == NODE_STOPPING;
}

static void api_render_metrics(void *ctx, struct bytes *out)
{
    node_status_metrics(ctx, out);
}

static json_t *set_draining(struct node *n, bool is_draining)
{
    if (n->phase == NODE_STOPPING)
        return json_pack("{s:b,s:s}", "ok", 0, "error", "the node is stopping");
    if (n->is_draining != is_draining)
        log_info("%s", is_draining ? "draining: /readyz says 503 now" : "not draining any more");
    n->is_draining = is_draining;
    return json_pack("{s:b,s:s,s:i}", "ok", 1, "state", node_state_name(n), "active",
                     (int)api_n_active(n->api));
}

static json_t *execute(void *ctx, const char *cmd, const json_t *args)
{
    (void)args;
    struct node *n = ctx;
    if (strcmp(cmd, "status") == 0)
        return node_status_json(n);
    if (strcmp(cmd, "drain") == 0)
        return set_draining(n, true);
    if (strcmp(cmd, "undrain") == 0)
        return set_draining(n, false);
    if (strcmp(cmd, "shutdown") == 0) {
        begin_stop(n, "kvctl shutdown");
        return json_pack("{s:b,s:s,s:i}", "ok", 1, "state", node_state_name(n), "active",
                         (int)api_n_active(n->api));
    }
    return NULL;
}

/* --- opening
 * -------------------------------------------------------------------------------------- */

/* One node a name: the lock lives as long as the router. */
static enum err take_lock(struct node *n, struct err_info *ei)
{
    struct err_info why = {0};
    enum err rc = runtime_lock_take(&n->paths, LOCK_WAIT_MS, &n->lock_fd, &why);
    if (rc == ERR_BUSY)
        return err_set(ei, rc, "node: one named %s runs already (lock %s); choose another --name",
                       n->config->name, n->paths.lock);
    return rc == OK ? OK : err_set(ei, rc, "node: %s", why.text);
}

/* "auto" follows the memory that is free, another amount each time: what a former router made of it
 * is as good, if the window fits. */
static bool is_of_right_size(const struct node *n)
{
    uint64_t n_blocks = kv_store_n_blocks(n->store);
    if (!n->model.is_auto_memory)
        return n_blocks == n->model.n_blocks;
    return n_blocks * n->config->kv.block_size >= n->model.max_context;
}

/* Adopts the store that a former router of this name left, if it is ours to use, else makes a new
 * one. */
static enum err open_store(struct node *n, struct err_info *ei)
{
    struct err_info why = {0};
    enum err rc = kv_store_attach(n->paths.store, &n->model.fingerprint, &n->store, &why);
    if (rc == OK && is_of_right_size(n)) {
        n->model.n_blocks = kv_store_n_blocks(n->store);
        uint32_t n_dead = kv_store_reap(n->store);
        log_info("store %s adopted (%u dead processes reaped)", n->paths.store, n_dead);
        return OK;
    }
    if (rc == OK)
        (void)err_set(&why, ERR_UNSUPPORTED, "it has another size");
    kv_store_detach(n->store);
    n->store = NULL;
    if (rc != ERR_GONE) {
        log_warn("store %s of a former node is replaced: %s", n->paths.store, why.text);
        kv_store_remove(n->paths.store);
    }
    return kv_store_create(&(struct kv_store_config){.name = n->paths.store,
                                                     .block_size = n->config->kv.block_size,
                                                     .block_bytes = n->model.block_bytes,
                                                     .n_blocks = n->model.n_blocks,
                                                     .max_leases = MAX_LEASES,
                                                     .fingerprint = n->model.fingerprint},
                           &n->store, ei);
}

/* A terminal that hangs up is a stop like any other, lest shared memory stay behind; nohup stays
 * nohup. */
static bool watch_hangup(struct node *n)
{
    struct sigaction now;
    if (sigaction(SIGHUP, NULL, &now) == 0 && now.sa_handler == SIG_IGN)
        return true;
    n->on_sighup = evsignal_new(n->base, SIGHUP, on_signal, n);
    return n->on_sighup && event_add(n->on_sighup, NULL) == 0;
}

static enum err open_loop(struct node *n, struct err_info *ei)
{
    n->base = event_base_new();
    n->arena = arena_new(0);
    if (!n->base || !n->arena)
        return err_set(ei, ERR_NOMEM, "node: no memory");
    enum err rc = channel_open_router(n->paths.endpoint, &n->channel, ei);
    if (rc != OK)
        return rc;
    n->on_channel =
        event_new(n->base, channel_fd(n->channel), EV_READ | EV_PERSIST, on_channel_readable, n);
    n->on_sigterm = evsignal_new(n->base, SIGTERM, on_signal, n);
    n->on_sigint = evsignal_new(n->base, SIGINT, on_signal, n);
    n->stop_tick = event_new(n->base, -1, EV_PERSIST, on_stop_tick, n);
    if (!n->on_channel || !n->on_sigterm || !n->on_sigint || !n->stop_tick ||
        event_add(n->on_channel, NULL) != 0 || event_add(n->on_sigterm, NULL) != 0 ||
        event_add(n->on_sigint, NULL) != 0 || !watch_hangup(n))
        return err_set(ei, ERR_NOMEM, "node: no event loop");
    return OK;
}

static enum err open_workers(struct node *n, struct err_info *ei)
{
    enum err rc = spawn_find_worker(n->worker_program, sizeof n->worker_program, ei);
    if (rc != OK)
        return rc;
    if (metrics_new(n->config->served_model_name, &n->metrics) != OK)
        return err_set(ei, ERR_NOMEM, "node: no memory");
    rc = fleet_new(&(struct fleet_config){.base = n->base,
                                          .config = n->config,
                                          .program = n->worker_program,
                                          .channel = n->channel,
                                          .store = n->store,
                                          .fingerprint = n->model.fingerprint,
                                          .on_ready = on_worker_ready,
                                          .on_lost = on_worker_lost,
                                          .on_hopeless = on_hopeless,
                                          .on_stopped = on_fleet_stopped,
                                          .ctx = n},
                   &n->fleet, ei);
    if (rc != OK)
        return rc;
    uint64_t id_base;
    if (getrandom(&id_base, sizeof id_base, 0) != sizeof id_base)
        return err_set(ei, ERR_IO, "node: no random numbers: %s", strerror(errno));
    if (dispatch_new(&(struct dispatch_config){.channel = n->channel,
                                               .fleet = n->fleet,
                                               .store = n->store,
                                               .metrics = n->metrics,
                                               .fingerprint = n->model.fingerprint,
                                               .id_base = id_base >> 1, /* far from the end */
                                               .max_waiting = n->config->scheduler.max_waiting},
                     &n->dispatch) != OK)
        return err_set(ei, ERR_NOMEM, "node: no memory");
    return OK;
}

/* Descriptors for all the connections that may be, or fewer connections: ZeroMQ ends the process
 * when a worker connects and there is none left. */
static void reserve_descriptors(struct node *n)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    uint32_t *max = &n->config->http.max_connections;
    rlim_t own = OWN_DESCRIPTORS + DESCRIPTORS_PER_WORKER * (rlim_t)n->config->workers;
    rlim_t wanted = own + *max;
    if (limit.rlim_cur < wanted) {
        limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
        if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || getrlimit(RLIMIT_NOFILE, &limit) != 0)
            log_warn("node: cannot raise the limit of open files: %s", strerror(errno));
    }
    if (limit.rlim_cur >= wanted)
        return;
    rlim_t rest = limit.rlim_cur > own ? limit.rlim_cur - own : 1;
    log_warn("node: at most %llu open files (ulimit -n): http.max_connections is %llu, not %u",
             (unsigned long long)limit.rlim_cur, (unsigned long long)rest, *max);
    *max = (uint32_t)rest;
}

static enum err open_doors(struct node *n, struct err_info *ei)
{
    uint64_t seed_base;
    reserve_descriptors(n);
    if (getrandom(&seed_base, sizeof seed_base, 0) != sizeof seed_base)
        return err_set(ei, ERR_IO, "node: no random numbers: %s", strerror(errno));
    enum err rc = api_start(&(struct api_config){.base = n->base,
                                                 .config = n->config,
                                                 .shape = &n->model.shape,
                                                 .max_context = n->model.max_context,
                                                 .tokenizer = n->model.tokenizer,
                                                 .chat_template = n->model.chat_template,
                                                 .dispatch = n->dispatch,
                                                 .metrics = n->metrics,
                                                 .seed_base = seed_base,
                                                 .is_ready = api_is_ready,
                                                 .is_draining = api_is_draining,
                                                 .render_metrics = api_render_metrics,
                                                 .ctx = n},
                            &n->api, ei);
    if (rc != OK)
        return rc;
    return control_open(
        &(struct control_config){
            .base = n->base, .path = n->paths.control, .execute = execute, .ctx = n},
        &n->control, ei);
}

enum err node_open(struct node_config *config, struct node **out, struct err_info *ei)
{
    struct node *n = calloc(1, sizeof *n);
    if (!n)
        return err_set(ei, ERR_NOMEM, "node: no memory");
    n->config = config;
    n->lock_fd = -1;
    n->started_us = clock_now_us();
    enum err rc = runtime_paths_fill(config->runtime_dir, config->name, &n->paths, ei);
    if (rc == OK)
        rc = runtime_dir_make(&n->paths, ei);
    if (rc == OK)
        rc = take_lock(n, ei);
    if (rc == OK)
        rc = node_model_open(config, shm_size(n->paths.store), &n->model, ei);
    if (rc == OK)
        rc = open_store(n, ei);
    if (rc == OK)
        rc = open_loop(n, ei);
    if (rc == OK)
        rc = open_workers(n, ei);
    if (rc == OK)
        rc = open_doors(n, ei);
    if (rc != OK) {
        node_close(n);
        return rc;
    }
    fleet_start(n->fleet);
    *out = n;
    return OK;
}

/* The workers are gone; their last words, errors among them, are still on their way to clients. */
static bool is_flushing(const struct node *n)
{
    return api_n_active(n->api) > 0 && clock_now_us() < n->fleet_stopped_us + FLUSH_US;
}

enum err node_run(struct node *n, struct err_info *ei)
{
    while (!n->is_fleet_stopped || is_flushing(n)) {
        if (event_base_loop(n->base, EVLOOP_ONCE) != 0)
            return err_set(ei, ERR_IO, "node: the event loop failed");
        drain_channel(n);
    }
    if (n->failure != OK)
        return err_set(ei, n->failure, "node: %s", n->failure_text);
    return OK;
}

void node_close(struct node *n)
{
    if (!n)
        return;
    bool is_owner = n->lock_fd >= 0;
    control_close(n->control);
    api_free(n->api);
    dispatch_free(n->dispatch);
    fleet_free(n->fleet);
    metrics_free(n->metrics);
    channel_close(n->channel);
    struct event *events[] = {n->on_channel, n->on_sigterm, n->on_sigint, n->on_sighup,
                              n->stop_tick};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (events[i])
            event_free(events[i]);
    if (n->base)
        event_base_free(n->base);
    arena_free(n->arena);
    bool had_store = n->store != NULL;
    kv_store_detach(n->store);
    if (is_owner && had_store)
        kv_store_remove(n->paths.store);
    node_model_fini(&n->model);
    if (is_owner)
        runtime_lock_release(&n->paths, n->lock_fd);
    free(n);
}
