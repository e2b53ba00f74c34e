#pragma once
#include "config/base/arena.h"
#include "config/base/err.h"
#include "ipc/message.h"
#include "ipc/process.h"

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

/* The worker's side of the protocol: says HELLO until a router says WELCOME, notices that router's
 * death, then greets again until one of the same name answers or the grace is over. Time is an
 * argument; it waits nowhere. One owner thread. */

struct router_link;

struct router_link_config {
    const char *endpoint;
    struct message_hello hello;
    uint64_t grace_us; /* how long without a router */
};

enum router_link_state {
    ROUTER_LINK_GREETING, /* no router yet, or none any more: hold no sequence */
    ROUTER_LINK_SERVING,
    ROUTER_LINK_EXPIRED, /* no router came within the grace */
};

enum { ROUTER_LINK_POLL_FDS = 2, ROUTER_LINK_GREET_US = 200 * 1000 };

/* Errors: NOMEM, IO. The grace starts now. */
NODISCARD enum err router_link_open(const struct router_link_config *cfg, uint64_t now_us,
                                    struct router_link **out, struct err_info *ei);
void router_link_close(struct router_link *l); /* NULL is legal */

/* Looks whether the router lives, says HELLO when it is due. */
enum router_link_state router_link_tick(struct router_link *l, uint64_t now_us);

/* The next message for the engine (SUBMIT, CANCEL, DRAIN, STOP), valid until the next call. WELCOME
 * is dealt with here: compare router_link_generation before handling what comes. Messages that mean
 * nothing, or that no router has the right to say, are logged and dropped. Errors: BUSY (none
 * there), IO. */
NODISCARD enum err router_link_receive(struct router_link *l, uint64_t now_us, struct message *out,
                                       struct err_info *ei);
/* Errors: BUSY (queue full: try again), others as channel_send. */
NODISCARD enum err router_link_send(struct router_link *l, const struct message *m,
                                    struct err_info *ei);

/* Changes whenever a router is lost or met: what belongs to the one before is void then. */
uint64_t router_link_generation(const struct router_link *l);
/* What to wait for: messages, and the router's death (fd -1: not watched). After a wait call
 * router_link_receive until BUSY. */
void router_link_poll_fds(const struct router_link *l, struct pollfd fds[ROUTER_LINK_POLL_FDS]);
