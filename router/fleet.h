#pragma once
#include "config/base/err.h"
#include "config/fingerprint.h"
#include "config/node_config.h"
#include "ipc/channel.h"
#include "ipc/process.h"

#include <event2/event.h>
#include <stdbool.h>
#include <stdint.h>

/* The worker processes: starts them, watches each by its pidfd, restarts one that dies (with
 * back-off), kills one that hangs, takes over workers that a former router of this name left
 * behind, and stops all at the end. One owner thread: the router's event loop. */

struct fleet;
struct kv_store;

enum fleet_state {
    FLEET_DOWN,     /* no process; waiting to be started */
    FLEET_ADOPTING, /* a former router's worker lives; its HELLO is awaited */
    FLEET_STARTING, /* started, no HELLO yet */
    FLEET_READY,    /* said HELLO, was welcomed */
    FLEET_STOPPING, /* told to stop */
};

struct fleet_worker {
    uint32_t index;
    enum fleet_state state;
    struct process_id process; /* pid 0: none */
    uint32_t lease;            /* in the node store, once ready */
    uint32_t n_restarts;       /* deaths since the router started */
    uint32_t n_threads;
    uint64_t started_us, heard_us;
    struct message_stats stats; /* the latest it sent */
    char last_exit[64];         /* how the former process ended; "" = none has */
};

struct fleet_config {
    struct event_base *base;
    const struct node_config *config; /* resolved: workers, threads, isa */
    const char *program;              /* path of kvnode-worker */
    struct channel *channel;
    struct kv_store *store;
    struct fingerprint fingerprint;
    void (*on_ready)(void *ctx, uint32_t worker);
    void (*on_lost)(void *ctx, uint32_t worker); /* after its lease was reaped */
    /* Worker died several times on end before it got ready. It is tried again all the same, with
     * back-off. */
    void (*on_hopeless)(void *ctx, uint32_t worker, const char *why);
    void (*on_stopped)(void *ctx); /* after fleet_stop: no process is left */
    void *ctx;
};

NODISCARD enum err fleet_new(const struct fleet_config *cfg, struct fleet **out,
                             struct err_info *ei);
/* Adopts what lives, starts the rest. */
void fleet_start(struct fleet *f);
/* Tells all to stop; SIGKILL after a few seconds; on_stopped follows from the loop. Nothing is
 * restarted any more. */
void fleet_stop(struct fleet *f);
/* Frees; processes that still live are left to their orphan grace. NULL is legal. */
void fleet_free(struct fleet *f);

void fleet_on_hello(struct fleet *f, struct channel_peer from, const struct message_hello *m);
void fleet_on_stats(struct fleet *f, struct channel_peer from, const struct message_stats *m);
/* Any message: the peer is alive. False when it is not the process we know under that index. */
bool fleet_heard(struct fleet *f, struct channel_peer from);

uint32_t fleet_n_workers(const struct fleet *f);
const struct fleet_worker *fleet_worker_at(const struct fleet *f, uint32_t index);
uint32_t fleet_n_ready(const struct fleet *f);
bool fleet_has_process(const struct fleet *f); /* any worker at all, ready or not */
const char *fleet_state_name(enum fleet_state s);
