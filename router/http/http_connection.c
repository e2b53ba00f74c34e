/* What happens to a connection from its first byte to its last? Reads one request at a time, hands
 * it to its route, flushes the answer, then goes on or closes. Keeps: one timer, set anew at each
 * change of state; a lost client is noticed in every state; nothing is freed while the parser or a
 * handler is on the stack (they doom or answer, and the kick event acts). Does not know what
 * requests mean. */
#include "router/http/http_connection.h"

#include "config/base/clock.h"
#include "config/base/log.h"
#include "router/http/http_parse.h"

#include <event2/buffer.h>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    LINGER_US = 2 * 1000 * 1000,
    FLUSH_US = 30 * 1000 * 1000, /* without any progress of the reader */
};

static void set_timer(struct event *timer, uint64_t us)
{
    struct timeval tv = {.tv_sec = (time_t)(us / 1000000), .tv_usec = (suseconds_t)(us % 1000000)};
    (void)event_add(timer, &tv);
}

static size_t n_output(const struct http_connection *c)
{
    return evbuffer_get_length(bufferevent_get_output(c->bev));
}

/* --- the end
 * -------------------------------------------------------------------------------------- */

void http_connection_free(struct http_connection *c)
{
    struct http_server *s = c->server;
    if (c->state == HTTP_CONNECTION_ANSWERING) {
        c->state = HTTP_CONNECTION_LINGERING;
        if (!c->is_begun && s->config.on_answer)
            s->config.on_answer(s->config.ctx, c->request.route, 499);
        if (c->request.on_gone)
            c->request.on_gone(c->request.gone_ctx);
    }
    if (c->prev)
        c->prev->next = c->next;
    else if (s->connections == c)
        s->connections = c->next;
    if (c->next)
        c->next->prev = c->prev;
    s->n_connections--;
    if (c->timer)
        event_free(c->timer);
    if (c->kick)
        event_free(c->kick);
    if (c->bev)
        bufferevent_free(c->bev);
    http_request_fini(&c->request);
    free(c);
}

void http_connection_doom(struct http_connection *c)
{
    c->is_doomed = true;
    event_active(c->kick, EV_TIMEOUT, 0);
}

/* --- reading
 * --------------------------------------------------------------------------------------- */

static void start_request(struct http_connection *c)
{
    http_request_fini(&c->request);
    c->request.connection = c;
    c->request.start_us = clock_now_us();
    c->request.rest = "";
    http_parser_init(&c->parser, HTTP_REQUEST);
    c->parser.data = c;
    c->head_bytes = 0;
    c->is_head_done = c->is_body_done = c->is_begun = c->is_keep_alive = false;
    c->reject_status = 0;
    c->reject_headers = NULL;
    c->state = HTTP_CONNECTION_READING;
    set_timer(c->timer, c->server->config.limits.read_timeout_us);
}

/* The answer to what the handler never sees. */
static void reject(struct http_connection *c)
{
    struct http_server *s = c->server;
    c->is_keep_alive = false;
    c->state = HTTP_CONNECTION_ANSWERING;
    (void)event_del(c->timer);
    if (!c->request.id[0])
        http_request_draw_id(&c->request);
    struct bytes body = {0};
    s->config.error_body(s->config.ctx, c->reject_status, c->reject_text, &body);
    struct http_answer a = {.status = c->reject_status,
                            .headers = c->reject_headers,
                            .body = body.data,
                            .body_bytes = body.size};
    c->request.on_gone = NULL;
    http_response_send(&c->request, &a);
    bytes_fini(&body);
}

static void hand_over(struct http_connection *c)
{
    c->state = HTTP_CONNECTION_ANSWERING;
    (void)event_del(c->timer);
    c->request.route->handle(c->server->config.ctx, &c->request);
}

static void parse_failed(struct http_connection *c)
{
    enum http_errno e = HTTP_PARSER_ERRNO(&c->parser);
    if (c->reject_status == 0 && e == HPE_HEADER_OVERFLOW)
        (void)http_parse_refuse(c, 431, NULL, "the header fields are too large");
    if (c->reject_status == 0) {
        char text[ERR_TEXT_BYTES];
        (void)snprintf(text, sizeof text, "malformed HTTP request: %s", http_errno_description(e));
        (void)http_parse_refuse(c, 400, NULL, text);
    }
    reject(c);
}

/* Parses what has come, until a request is whole or the bytes are used up. */
static void feed(struct http_connection *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    size_t max_header = c->server->config.limits.max_header;
    struct evbuffer_iovec piece;
    while (evbuffer_peek(in, -1, NULL, &piece, 1) > 0 && piece.iov_len > 0) {
        if (c->state == HTTP_CONNECTION_IDLE)
            start_request(c);
        if (c->state != HTTP_CONNECTION_READING)
            return;
        size_t n = piece.iov_len;
        if (!c->is_head_done && n > max_header - c->head_bytes)
            n = max_header - c->head_bytes;
        if (n == 0) {
            bool is_line = c->request.spans.size == 0;
            (void)http_parse_refuse(c, is_line ? 414 : 431, NULL,
                                    is_line ? "the request line is too long"
                                            : "the header fields are too large");
            reject(c);
            return;
        }
        bool was_head = !c->is_head_done;
        size_t used = http_parser_execute(&c->parser, http_parse_callbacks(), piece.iov_base, n);
        evbuffer_drain(in, used);
        c->head_bytes += was_head ? used : 0;
        if (c->is_body_done && c->reject_status == 0) {
            hand_over(c);
            return;
        }
        if (HTTP_PARSER_ERRNO(&c->parser) != HPE_OK) {
            parse_failed(c);
            return;
        }
    }
}

/* --- between requests
 * ------------------------------------------------------------------------------- */

static void go_idle(struct http_connection *c)
{
    http_request_fini(&c->request);
    c->state = HTTP_CONNECTION_IDLE;
    set_timer(c->timer, c->server->config.limits.idle_timeout_us);
    feed(c);
}

static void linger(struct http_connection *c)
{
    c->state = HTTP_CONNECTION_LINGERING;
    struct evbuffer *in = bufferevent_get_input(c->bev);
    evbuffer_drain(in, evbuffer_get_length(in));
    if (c->is_peer_done || shutdown(bufferevent_getfd(c->bev), SHUT_WR) != 0) {
        http_connection_free(c);
        return;
    }
    set_timer(c->timer, LINGER_US);
}

static void flushed(struct http_connection *c)
{
    if (c->is_keep_alive && !c->is_peer_done)
        go_idle(c);
    else
        linger(c);
}

void http_connection_answered(struct http_connection *c)
{
    c->state = HTTP_CONNECTION_FLUSHING;
    c->request.on_gone = NULL;
    c->flush_pending = n_output(c);
    set_timer(c->timer, FLUSH_US);
    event_active(c->kick, EV_TIMEOUT, 0);
}

/* --- events
 * -------------------------------------------------------------------------------------------- */

static void on_kick(evutil_socket_t fd, short what, void *ctx)
{
    (void)fd, (void)what;
    struct http_connection *c = ctx;
    if (c->is_doomed)
        http_connection_free(c);
    else if (c->state == HTTP_CONNECTION_FLUSHING && n_output(c) == 0)
        flushed(c);
}

static void on_write(struct bufferevent *bev, void *ctx)
{
    (void)bev;
    struct http_connection *c = ctx;
    if (c->state == HTTP_CONNECTION_FLUSHING && !c->is_doomed)
        event_active(c->kick, EV_TIMEOUT, 0);
}

static void on_read(struct bufferevent *bev, void *ctx)
{
    struct http_connection *c = ctx;
    struct evbuffer *in = bufferevent_get_input(bev);
    const struct http_limits *limits = &c->server->config.limits;
    if (c->is_doomed)
        return;
    switch (c->state) {
    case HTTP_CONNECTION_IDLE:
    case HTTP_CONNECTION_READING:
        feed(c);
        break;
    case HTTP_CONNECTION_ANSWERING:
    case HTTP_CONNECTION_FLUSHING:
        /* Reading goes on, for else the client's end would not be seen; so what waits is bounded.
         */
        if (evbuffer_get_length(in) > limits->max_body + limits->max_header)
            http_connection_free(c);
        break;
    case HTTP_CONNECTION_LINGERING:
        evbuffer_drain(in, evbuffer_get_length(in));
        break;
    }
}

static void on_event(struct bufferevent *bev, short what, void *ctx)
{
    (void)bev;
    struct http_connection *c = ctx;
    if ((what & BEV_EVENT_EOF) && c->state == HTTP_CONNECTION_FLUSHING && n_output(c) > 0) {
        c->is_peer_done = true; /* it may still read what it asked for */
        return;
    }
    http_connection_free(c);
}

static void on_timer(evutil_socket_t fd, short what, void *ctx)
{
    (void)fd, (void)what;
    struct http_connection *c = ctx;
    if (c->state == HTTP_CONNECTION_READING) {
        (void)http_parse_refuse(c, 408, NULL, "the request did not arrive in time");
        reject(c);
    } else if (c->state == HTTP_CONNECTION_FLUSHING && n_output(c) < c->flush_pending) {
        c->flush_pending = n_output(c);
        set_timer(c->timer, FLUSH_US);
    } else {
        http_connection_free(c);
    }
}

/* --- the beginning
 * ----------------------------------------------------------------------------------- */

static bool set_up(struct http_connection *c, evutil_socket_t fd)
{
    struct event_base *base = c->server->config.base;
    c->bev = bufferevent_socket_new(base, fd, BEV_OPT_CLOSE_ON_FREE);
    if (!c->bev) {
        close(fd);
        return false;
    }
    c->timer = evtimer_new(base, on_timer, c);
    c->kick = evtimer_new(base, on_kick, c);
    if (!c->timer || !c->kick)
        return false;
    int one = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    bufferevent_setcb(c->bev, on_read, on_write, on_event, c);
    return bufferevent_enable(c->bev, EV_READ | EV_WRITE) == 0;
}

void http_connection_open(struct http_server *s, evutil_socket_t fd, bool is_over_limit)
{
    struct http_connection *c = calloc(1, sizeof *c);
    if (!c) {
        close(fd);
        return;
    }
    c->server = s;
    c->next = s->connections;
    if (c->next)
        c->next->prev = c;
    s->connections = c;
    s->n_connections++;
    if (!set_up(c, fd)) {
        log_warn("http: no memory for a connection");
        http_connection_free(c);
        return;
    }
    if (!is_over_limit) {
        go_idle(c);
        return;
    }
    start_request(c);
    (void)http_parse_refuse(c, 503, "Retry-After: 1\r\n", "too many connections");
    reject(c);
}
