#pragma once
#include "config/node_config.h"
#include "ipc/runtime_dir.h"
#include "router/node_model.h"

#include <event2/event.h>
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>

/* The parts of a node, shared by node.c (life), node_status.c (what it says of itself). */

enum node_phase { NODE_LOADING, NODE_READY, NODE_STOPPING };

struct node {
    struct node_config *config; /* borrowed */
    struct node_model model;
    struct runtime_paths paths;
    int lock_fd;
    char worker_program[PATH_MAX];
    struct kv_store *store;
    struct channel *channel;
    struct arena *arena; /* of the message at hand */
    struct event_base *base;
    struct event *on_channel, *on_sigterm, *on_sigint, *on_sighup, *stop_tick;
    struct metrics *metrics;
    struct fleet *fleet;
    struct dispatch *dispatch;
    struct api *api;
    struct control *control;
    enum node_phase phase;
    bool is_draining; /* by kvctl; reversible */
    bool is_fleet_stopped;
    uint64_t started_us, stop_deadline_us, fleet_stopped_us;
    enum err failure;
    char failure_text[ERR_TEXT_BYTES];
};

bool node_is_ready(const struct node *n);
const char *node_state_name(const struct node *n); /* "ready", "draining", ... */
/* Answer object of `kvctl status`; the caller's; NULL when out of memory. */
json_t *node_status_json(struct node *n);
/* Prometheus text: the router's counters and what the store and the workers say. */
void node_status_metrics(struct node *n, struct bytes *out);
