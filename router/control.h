#pragma once
#include "config/base/err.h"

#include <event2/event.h>
#include <jansson.h>

/* The node's side of the control socket (ipc/control_client.h): 0600, peers of our own uid or root,
 * one JSON object a line each way. One owner thread: the event loop. */

struct control;

struct control_config {
    struct event_base *base;
    const char *path;
    /* Carries out cmd and returns the answer object (the caller's); NULL: unknown command. args:
     * the whole request object, borrowed. */
    json_t *(*execute)(void *ctx, const char *cmd, const json_t *args);
    void *ctx;
};

/* Errors: IO (names the path), NOMEM. */
NODISCARD enum err control_open(const struct control_config *cfg, struct control **out,
                                struct err_info *ei);
void control_close(struct control *c); /* NULL is legal; unlinks the socket */
