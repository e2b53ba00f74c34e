#pragma once

/* A server on loopback and raw clients of it, for tests of the HTTP layer. */
#include "config/base/clock.h"
#include "router/http/http_server.h"

#include <criterion/criterion.h>
#include <event2/event.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct {
    struct event_base *base;
    struct http_server *server;
    struct http_request *held; /* what /hold left unanswered */
    int n_gone, n_calls, last_status;
    bool is_draining;
    struct bytes got; /* what the client has read */
} t;

static inline void echo(void *ctx, struct http_request *r)
{
    (void)ctx;
    t.n_calls++;
    struct http_answer a = {.status = 200,
                            .content_type = "text/plain",
                            .body = r->body.data,
                            .body_bytes = r->body.size};
    http_response_send(r, &a);
}

static inline void name(void *ctx, struct http_request *r)
{
    (void)ctx;
    http_response_send(
        r, &(struct http_answer){.status = 200, .body = r->rest, .body_bytes = strlen(r->rest)});
}

static inline void gone(void *ctx)
{
    (void)ctx;
    t.n_gone++;
    t.held = NULL;
}

static inline void hold(void *ctx, struct http_request *r)
{
    (void)ctx;
    t.n_calls++;
    t.held = r;
    r->on_gone = gone;
}

static const struct http_route routes[] = {
    {"/echo", NULL, HTTP_METHOD_POST | HTTP_METHOD_GET, false, echo},
    {"/json", NULL, HTTP_METHOD_POST, true, echo},
    {"/hold", NULL, HTTP_METHOD_GET | HTTP_METHOD_POST, false, hold},
    {"/name/*", "/name/{x}", HTTP_METHOD_GET, false, name},
};

static inline void error_body(void *ctx, int status, const char *text, struct bytes *out)
{
    (void)ctx;
    bytes_printf(out, "{\"status\":%d,\"text\":\"%s\"}", status, text);
}

static inline void on_answer(void *ctx, const struct http_route *route, int status)
{
    (void)ctx, (void)route;
    t.last_status = status;
}

static inline bool is_draining(void *ctx)
{
    (void)ctx;
    return t.is_draining;
}

static struct http_limits limits = {.max_body = 1000,
                                    .max_header = 512,
                                    .max_connections = 4,
                                    .idle_timeout_us = 400000,
                                    .read_timeout_us = 200000,
                                    .write_buffer = 64 * 1024};

static inline void start(void)
{
    memset(&t, 0, sizeof t);
    t.base = event_base_new();
    struct http_server_config cfg = {.base = t.base,
                                     .host = "127.0.0.1",
                                     .limits = limits,
                                     .routes = routes,
                                     .n_routes = sizeof routes / sizeof *routes,
                                     .error_body = error_body,
                                     .is_draining = is_draining,
                                     .on_answer = on_answer};
    struct err_info ei;
    cr_assert_eq(http_server_start(&cfg, &t.server, &ei), OK, "%s", ei.text);
}

static inline void stop(void)
{
    http_server_free(t.server);
    event_base_free(t.base);
    bytes_fini(&t.got);
}

static inline int dial(void)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)http_server_port(t.server)),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    cr_assert_eq(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

/* Runs the loop for about ms. */
static inline void turn(int ms)
{
    uint64_t end = clock_now_us() + (uint64_t)ms * 1000;
    do {
        event_base_loop(t.base, EVLOOP_NONBLOCK);
        usleep(500);
    } while (clock_now_us() < end);
}

static inline void say(int fd, const char *s)
{
    cr_assert_eq(send(fd, s, strlen(s), MSG_NOSIGNAL), (ssize_t)strlen(s));
}

/* Reads until `until` has come, the peer closes, or ms are over. True: the peer closed. */
static inline bool hear(int fd, const char *until, int ms)
{
    uint64_t end = clock_now_us() + (uint64_t)ms * 1000;
    bytes_clear(&t.got);
    while (clock_now_us() < end) {
        char buf[4096];
        turn(1);
        ssize_t n = recv(fd, buf, sizeof buf, 0);
        if (n == 0 || (n < 0 && errno != EAGAIN))
            break;
        if (n > 0)
            bytes_append(&t.got, buf, (size_t)n);
        bytes_append_nul(&t.got);
        if (until && t.got.data && strstr(t.got.data, until))
            return false;
    }
    bytes_append_nul(&t.got);
    return clock_now_us() < end;
}

static inline int n_found(const char *needle)
{
    int n = 0;
    for (const char *p = t.got.data; p && (p = strstr(p, needle)); p++)
        n++;
    return n;
}

/* Sends one text; expects a status, and (is_closed) the end of the connection. */
static inline void expect(const char *request, const char *status, bool is_closed)
{
    int fd = dial();
    say(fd, request);
    bool was_closed = hear(fd, is_closed ? NULL : "\r\n\r\n", 1500);
    cr_assert(strncmp(t.got.data, "HTTP/1.1 ", 9) == 0 && strncmp(t.got.data + 9, status, 3) == 0,
              "%s -> %s, wanted %s", request, t.got.data, status);
    cr_assert_eq(was_closed, is_closed, "%s", request);
    close(fd);
    turn(5);
}
