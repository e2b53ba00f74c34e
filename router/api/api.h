#pragma once
#include "config/base/bytes.h"
#include "config/model_shape.h"
#include "config/node_config.h"
#include "router/dispatch.h"
#include "router/text/chat_template.h"
#include "router/text/tokenizer.h"

#include <event2/event.h>

/* The node's HTTP surface: routes, requests, streams. It sees the rest of the router through this
 * struct only. */

struct metrics;

struct api_config {
    struct event_base *base; /* the router's loop; outlives the api */
    const struct node_config *config;
    const struct model_shape *shape; /* max_context below is the served window */
    uint32_t max_context;            /* tokens of prompt + output */
    size_t max_prompt_bytes; /* of text that can fit the window; 0: api_start works it out */
    struct tokenizer *tokenizer;
    struct chat_template *chat_template; /* NULL: the model has none; chat is then 400 */
    struct dispatch *dispatch;
    struct metrics *metrics;
    uint64_t seed_base; /* missing seeds are drawn from it by counter */
    /* Node state, owned by the router core. */
    bool (*is_ready)(void *ctx);    /* a worker lives, loaded, not draining */
    bool (*is_draining)(void *ctx); /* keep-alive ends with Connection: close */
    void (*render_metrics)(void *ctx,
                           struct bytes *); /* Prometheus text, from memory, milliseconds */
    void *ctx;
};

struct api;

/* Listens on config->host:port. Errors: IO (address in use: says which), NOMEM. */
NODISCARD enum err api_start(const struct api_config *cfg, struct api **out, struct err_info *ei);
uint32_t api_port(const struct api *a); /* the bound port */
/* Stops accepting; open streams go on. */
void api_stop_listening(struct api *a);
/* Requests that have not been answered whole. */
uint32_t api_n_active(const struct api *a);
/* Fields of request bodies that nobody knows, ignored so far. */
uint64_t api_n_unknown_fields(const struct api *a);
/* Closes what is left and frees. */
void api_free(struct api *a);
