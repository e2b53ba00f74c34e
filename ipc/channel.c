/* How do messages travel? One ZeroMQ ROUTER in the router, one DEALER a worker, one frame a
 * message. Invariant: a peer's routing id is its worker index and pid, so what is sent to a process
 * never reaches its successor; a worker sends only over a connection that stands, so nothing meant
 * for a dead router reaches the next one. Knows nothing of handshakes or of what messages mean. */
#include "ipc/channel.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

enum {
    ROUTING_ID_BYTES = 9, /* 'w', index, pid; the first byte must not be 0 (ZeroMQ keeps those) */
    QUEUE_MESSAGES = 4096,
    LINGER_MS = 500, /* STOP and last tokens still leave, a peer that hangs does not hold us */
    RECONNECT_MS = 50,
    MESSAGE_BYTES_MAX = 32 * 1024 * 1024, /* SUBMIT: 4 bytes a token; far above any TOKENS */
};

struct channel {
    void *context, *socket;
    bool is_router;
    int fd;
    char *bound_path;     /* the router's socket file, owned; NULL when none */
    struct bytes encoded; /* reused by each send */
};

static void put_u32(unsigned char *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (unsigned char)(v >> (8 * i));
}

static uint32_t get_u32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void make_routing_id(struct channel_peer peer, unsigned char id[ROUTING_ID_BYTES])
{
    id[0] = 'w';
    put_u32(id + 1, peer.worker);
    put_u32(id + 5, (uint32_t)peer.pid);
}

static bool parse_routing_id(zmq_msg_t *frame, struct channel_peer *out)
{
    const unsigned char *id = zmq_msg_data(frame);
    if (zmq_msg_size(frame) != ROUTING_ID_BYTES || id[0] != 'w')
        return false;
    *out = (struct channel_peer){.worker = get_u32(id + 1), .pid = (int32_t)get_u32(id + 5)};
    return true;
}

static bool set_int(struct channel *c, int option, int value)
{
    return zmq_setsockopt(c->socket, option, &value, sizeof value) == 0;
}

static bool set_common_options(struct channel *c)
{
    int64_t max_bytes = MESSAGE_BYTES_MAX;
    return set_int(c, ZMQ_LINGER, LINGER_MS) && set_int(c, ZMQ_SNDHWM, QUEUE_MESSAGES) &&
           set_int(c, ZMQ_RCVHWM, QUEUE_MESSAGES) &&
           zmq_setsockopt(c->socket, ZMQ_MAXMSGSIZE, &max_bytes, sizeof max_bytes) == 0;
}

static enum err open_socket(int type, struct channel **out, struct err_info *ei)
{
    struct channel *c = calloc(1, sizeof *c);
    if (!c)
        return err_set(ei, ERR_NOMEM, "channel: no memory");
    size_t fd_bytes = sizeof c->fd;
    c->is_router = type == ZMQ_ROUTER;
    c->context = zmq_ctx_new();
    if (c->context)
        c->socket = zmq_socket(c->context, type);
    if (c->socket && set_common_options(c) &&
        zmq_getsockopt(c->socket, ZMQ_FD, &c->fd, &fd_bytes) == 0) {
        *out = c;
        return OK;
    }
    enum err rc = err_set(ei, ERR_IO, "channel: cannot make a socket: %s", zmq_strerror(errno));
    channel_close(c);
    return rc;
}

/* The path of "ipc:///path", or NULL when the endpoint is of another kind. */
static const char *path_of(const char *endpoint)
{
    static const char scheme[] = "ipc://";
    size_t n = sizeof scheme - 1;
    return strncmp(endpoint, scheme, n) == 0 ? endpoint + n : NULL;
}

/* ZeroMQ replaces whatever lies at the path, the socket of a living router too: ask it first. */
static bool somebody_listens(const char *endpoint)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    const char *path = path_of(endpoint);
    if (!path || strlen(path) >= sizeof addr.sun_path)
        return false;
    memcpy(addr.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return false;
    int rc = connect(fd, (const struct sockaddr *)&addr, sizeof addr);
    bool is_live = rc == 0 || errno == EAGAIN; /* EAGAIN: its backlog is full */
    close(fd);
    return is_live;
}

enum err channel_open_router(const char *endpoint, struct channel **out, struct err_info *ei)
{
    struct channel *c = NULL;
    *out = NULL;
    if (somebody_listens(endpoint))
        return err_set(ei, ERR_IO, "channel: %s: another process listens there", endpoint);
    enum err rc = open_socket(ZMQ_ROUTER, &c, ei);
    if (rc)
        return rc;
    /* mandatory: an unknown peer is an error, not silence; handover: a worker that reconnects
     * before its old connection was noticed dead is still heard */
    if (!set_int(c, ZMQ_ROUTER_MANDATORY, 1) || !set_int(c, ZMQ_ROUTER_HANDOVER, 1) ||
        zmq_bind(c->socket, endpoint) != 0) {
        rc = err_set(ei, ERR_IO, "channel: cannot bind %s: %s", endpoint, zmq_strerror(errno));
        channel_close(c);
        return rc;
    }
    const char *path = path_of(endpoint);
    if (path)
        c->bound_path = strdup(path);
    if (path && !c->bound_path) {
        (void)unlink(path);
        channel_close(c);
        return err_set(ei, ERR_NOMEM, "channel: no memory");
    }
    *out = c;
    return OK;
}

enum err channel_open_worker(const char *endpoint, struct channel_peer self, struct channel **out,
                             struct err_info *ei)
{
    struct channel *c = NULL;
    unsigned char id[ROUTING_ID_BYTES];
    *out = NULL;
    enum err rc = open_socket(ZMQ_DEALER, &c, ei);
    if (rc)
        return rc;
    make_routing_id(self, id);
    /* immediate: messages go to a connection that stands, or not at all; what is queued for a
     * router that dies, dies with it */
    if (zmq_setsockopt(c->socket, ZMQ_ROUTING_ID, id, sizeof id) != 0 ||
        !set_int(c, ZMQ_IMMEDIATE, 1) || !set_int(c, ZMQ_RECONNECT_IVL, RECONNECT_MS) ||
        zmq_connect(c->socket, endpoint) != 0) {
        rc =
            err_set(ei, ERR_IO, "channel: cannot connect to %s: %s", endpoint, zmq_strerror(errno));
        channel_close(c);
        return rc;
    }
    *out = c;
    return OK;
}

void channel_close(struct channel *c)
{
    if (!c)
        return;
    /* ZeroMQ leaves the file. It goes while we still listen: nobody else can have bound it yet. */
    if (c->bound_path)
        (void)unlink(c->bound_path);
    free(c->bound_path);
    if (c->socket)
        (void)zmq_close(c->socket);
    if (c->context)
        while (zmq_ctx_term(c->context) != 0 && errno == EINTR)
            continue;
    bytes_fini(&c->encoded);
    free(c);
}

int channel_fd(const struct channel *c)
{
    return c->fd;
}

static int send_frame(struct channel *c, const void *data, size_t n, int flags)
{
    int rc;
    do
        rc = zmq_send(c->socket, data, n, flags | ZMQ_DONTWAIT);
    while (rc < 0 && errno == EINTR);
    return rc;
}

static enum err send_error(const struct channel_peer *to, struct err_info *ei)
{
    if (to && errno == EHOSTUNREACH)
        return err_set(ei, ERR_GONE, "channel: worker %u (pid %d) is not connected", to->worker,
                       (int)to->pid);
    if (errno == EAGAIN)
        return err_set(ei, ERR_BUSY,
                       to ? "channel: the queue to the worker is full"
                          : "channel: no router is connected, or its queue is full");
    return err_set(ei, ERR_IO, "channel: cannot send: %s", zmq_strerror(errno));
}

enum err channel_send(struct channel *c, const struct channel_peer *to, const struct message *m,
                      struct err_info *ei)
{
    unsigned char id[ROUTING_ID_BYTES];
    bytes_clear(&c->encoded);
    enum err rc = message_encode(m, &c->encoded, ei);
    if (rc)
        return rc;
    if (c->encoded.size > MESSAGE_BYTES_MAX)
        return err_set(ei, ERR_LIMIT, "channel: %s of %zu bytes (at most %d)",
                       message_kind_name(m->kind), c->encoded.size, MESSAGE_BYTES_MAX);
    if (c->is_router) {
        make_routing_id(*to, id);
        if (send_frame(c, id, sizeof id, ZMQ_SNDMORE) < 0)
            return send_error(to, ei);
    }
    if (send_frame(c, c->encoded.data, c->encoded.size, 0) < 0)
        return send_error(to, ei);
    return OK;
}

static int receive_frame(struct channel *c, zmq_msg_t *frame)
{
    int rc;
    do
        rc = zmq_msg_recv(frame, c->socket, ZMQ_DONTWAIT);
    while (rc < 0 && errno == EINTR);
    return rc;
}

/* Reads what is left of a message whose shape is wrong, so that the next call starts at one. */
static void skip_parts(struct channel *c, zmq_msg_t *frame)
{
    while (zmq_msg_more(frame) && receive_frame(c, frame) >= 0)
        continue;
}

enum err channel_receive(struct channel *c, struct arena *arena, struct channel_peer *from,
                         struct message *out, struct err_info *ei)
{
    zmq_msg_t frame;
    enum err rc = OK;
    (void)zmq_msg_init(&frame); /* cannot fail (zmq_msg_init(3)) */
    if (receive_frame(c, &frame) < 0)
        goto refused;
    if (c->is_router) {
        struct channel_peer peer;
        if (!parse_routing_id(&frame, &peer) || !zmq_msg_more(&frame)) {
            skip_parts(c, &frame);
            rc = err_set(ei, ERR_PARSE, "channel: message from a peer that is no worker");
            goto done;
        }
        if (from)
            *from = peer;
        if (receive_frame(c, &frame) < 0)
            goto refused;
    }
    if (zmq_msg_more(&frame)) {
        skip_parts(c, &frame);
        rc = err_set(ei, ERR_PARSE, "channel: message of more than one frame");
        goto done;
    }
    rc = message_decode(zmq_msg_data(&frame), zmq_msg_size(&frame), arena, out, ei);
    goto done;
refused:
    rc = errno == EAGAIN ? err_set(ei, ERR_BUSY, "channel: no message")
                         : err_set(ei, ERR_IO, "channel: cannot receive: %s", zmq_strerror(errno));
done:
    (void)zmq_msg_close(&frame);
    return rc;
}
