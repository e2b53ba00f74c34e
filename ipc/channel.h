#pragma once
#include "config/base/bytes.h"
#include "config/base/err.h"
#include "ipc/message.h"

/* ZeroMQ sockets as the node uses them: the router binds one ROUTER socket, each worker connects
 * one DEALER. Sending and receiving never block. A peer is named by its worker index and pid, so
 * that a new process of the same index is another peer. One owner thread (the channel owns its zmq
 * context). */

struct channel;

struct channel_peer {
    uint32_t worker;
    int32_t pid;
};

/* endpoint: "ipc:///path". A stale socket file is replaced. Errors: IO. */
NODISCARD enum err channel_open_router(const char *endpoint, struct channel **out,
                                       struct err_info *ei);
/* Connects (and reconnects by itself while the other side is away). A worker sends over a standing
 * connection only: while there is none, channel_send says BUSY, and what was queued for a router
 * that died is dropped: HELLO starts anew. channel_fd becomes readable when a connection stands. */
NODISCARD enum err channel_open_worker(const char *endpoint, struct channel_peer self,
                                       struct channel **out, struct err_info *ei);
void channel_close(struct channel *c); /* NULL is legal; unlinks the router's socket file */

/* Edge-triggered descriptor for an event loop (ZMQ_FD). After it is readable, and after each send,
 * call channel_receive until it says ERR_BUSY: ZeroMQ signals only changes. */
int channel_fd(const struct channel *c);

/* Router side names the peer; worker side passes NULL. Errors: BUSY (queue full; worker: no router
 * connected), GONE (peer unknown), LIMIT (message over 32 MiB), NOMEM, IO. Nothing is sent on
 * error. */
NODISCARD enum err channel_send(struct channel *c, const struct channel_peer *to,
                                const struct message *m, struct err_info *ei);
/* The next message, decoded into arena. from: NULL on the worker side. Errors: BUSY (none there),
 * PARSE and LIMIT (a message that meant nothing was dropped: log it and call again), IO. */
NODISCARD enum err channel_receive(struct channel *c, struct arena *arena,
                                   struct channel_peer *from, struct message *out,
                                   struct err_info *ei);
