/* How does a tool ask a node? One Unix stream connection, one line there, one line back, all within
 * one deadline. Invariant: whatever the other side does, the call ends in time and holds at most
 * CONTROL_ANSWER_BYTES. Knows nothing of what the lines say. */
#include "ipc/control_client.h"

#include "config/base/bytes.h"
#include "config/base/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct call {
    int fd;
    const char *path;
    uint64_t deadline_us;
    struct err_info *ei;
};

static enum err wait_for(const struct call *c, short events)
{
    for (;;) {
        uint64_t now_us = clock_now_us();
        if (now_us >= c->deadline_us)
            return err_set(c->ei, ERR_IO, "control: %s: no answer in time", c->path);
        struct pollfd p = {.fd = c->fd, .events = events};
        uint64_t wait_ms = (c->deadline_us - now_us + 999) / 1000;
        int n = poll(&p, 1, wait_ms > INT32_MAX ? INT32_MAX : (int)wait_ms);
        if (n > 0)
            return OK;
        if (n < 0 && errno != EINTR)
            return err_set(c->ei, ERR_IO, "control: %s: %s", c->path, strerror(errno));
    }
}

static enum err connect_to(struct call *c)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    size_t n = strlen(c->path);
    if (n == 0 || n >= sizeof addr.sun_path)
        return err_set(c->ei, ERR_LIMIT, "control: socket path is %zu bytes, at most %zu: %s", n,
                       sizeof addr.sun_path - 1, c->path);
    memcpy(addr.sun_path, c->path, n + 1);
    c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->fd < 0)
        return err_set(c->ei, ERR_IO, "control: no socket: %s", strerror(errno));
    while (connect(c->fd, (const struct sockaddr *)&addr, sizeof addr) != 0) {
        if (errno == ENOENT || errno == ECONNREFUSED)
            return err_set(c->ei, ERR_GONE, "control: no node listens at %s", c->path);
        if (errno == EINTR)
            continue;
        /* EAGAIN: the backlog of a Unix socket is full, and poll does not tell when it is not */
        if (errno != EAGAIN || clock_now_us() >= c->deadline_us)
            return err_set(c->ei, ERR_IO, "control: cannot connect to %s: %s", c->path,
                           strerror(errno));
        (void)poll(NULL, 0, 10);
    }
    return OK;
}

static enum err send_all(const struct call *c, const char *data, size_t n)
{
    while (n > 0) {
        ssize_t sent = send(c->fd, data, n, MSG_NOSIGNAL);
        if (sent >= 0) {
            data += sent;
            n -= (size_t)sent;
            continue;
        }
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN)
            return err_set(c->ei, ERR_IO, "control: %s: cannot send: %s", c->path, strerror(errno));
        enum err rc = wait_for(c, POLLOUT);
        if (rc)
            return rc;
    }
    return OK;
}

/* Up to the first newline, which is cut off; a close before it is no answer. */
static enum err receive_line(const struct call *c, struct bytes *line)
{
    for (;;) {
        char chunk[16 * 1024];
        ssize_t n = recv(c->fd, chunk, sizeof chunk, 0);
        if (n > 0) {
            const char *end = memchr(chunk, '\n', (size_t)n);
            size_t n_new = end ? (size_t)(end - chunk) : (size_t)n;
            if (line->size + n_new > CONTROL_ANSWER_BYTES)
                return err_set(c->ei, ERR_LIMIT, "control: %s: answer is longer than %d bytes",
                               c->path, CONTROL_ANSWER_BYTES);
            bytes_append(line, chunk, n_new);
            if (end)
                bytes_append_nul(line);
            if (line->failed)
                return err_set(c->ei, ERR_NOMEM, "control: no memory for the answer");
            if (end)
                return OK;
        } else if (n == 0) {
            return err_set(c->ei, ERR_IO, "control: %s: closed before it answered", c->path);
        } else if (errno == EAGAIN) {
            enum err rc = wait_for(c, POLLIN);
            if (rc)
                return rc;
        } else if (errno != EINTR) {
            return err_set(c->ei, ERR_IO, "control: %s: cannot receive: %s", c->path,
                           strerror(errno));
        }
    }
}

enum err control_request(const char *socket_path, const char *request, int timeout_ms,
                         char **answer, struct err_info *ei)
{
    struct bytes line = {0};
    struct call c = {.fd = -1, .path = socket_path, .ei = ei};
    size_t n = strlen(request);
    *answer = NULL;
    if (n >= CONTROL_LINE_BYTES || memchr(request, '\n', n))
        return err_set(ei, ERR_LIMIT, "control: a request is one line of at most %d bytes",
                       CONTROL_LINE_BYTES - 1);
    c.deadline_us = clock_now_us() + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0) * 1000;
    enum err rc = connect_to(&c);
    if (!rc)
        rc = send_all(&c, request, n);
    if (!rc)
        rc = send_all(&c, "\n", 1);
    if (!rc)
        rc = receive_line(&c, &line);
    if (c.fd >= 0)
        close(c.fd);
    if (rc)
        bytes_fini(&line);
    *answer = line.data; /* NULL on error */
    return rc;
}
