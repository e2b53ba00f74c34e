/* What happens to a connection from its first byte to its last? Reads one request at a time, hands
 * it to its route, flushes the answer, then goes on or closes. Keeps: one timer, set anew at each
 * change of state; a lost client is noticed in every state; nothing is freed while the parser or a
 * handler is on the stack (they doom or answer, and the kick event acts). Does not know what
 * requests mean. */
#include "router/http/http_connection.h"

#include "config/base/clock.h"
#include "config/base/log.h"

#include <event2/buffer.h>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    PIPELINE_MAX = 64 * 1024, /* bytes kept of later requests while one is being answered */
    WATCH_US = 100 * 1000,
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
    if (c->watch)
        event_free(c->watch);
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

/* --- the parser's callbacks ---------------------------------------------------------------------
 */

static int refuse(struct http_connection *c, int status, const char *headers, const char *text)
{
    c->reject_status = status;
    c->reject_headers = headers;
    (void)snprintf(c->reject_text, sizeof c->reject_text, "%s", text);
    return -1;
}

static int on_url(http_parser *p, const char *at, size_t n)
{
    struct http_connection *c = p->data;
    bytes_append(&c->request.url, at, n);
    return 0;
}

static int on_header_field(http_parser *p, const char *at, size_t n)
{
    struct http_connection *c = p->data;
    if (!c->is_head_done) /* else a trailer: of no use here */
        http_request_add_name(&c->request, at, n);
    return 0;
}

static int on_header_value(http_parser *p, const char *at, size_t n)
{
    struct http_connection *c = p->data;
    if (!c->is_head_done)
        http_request_add_value(&c->request, at, n);
    return 0;
}

static bool matches(const struct http_route *route, struct http_request *r)
{
    size_t n = strlen(route->path);
    if (route->path[n - 1] != '*')
        return strcmp(route->path, r->path) == 0;
    if (strncmp(route->path, r->path, n - 1) != 0 || !r->path[n - 1])
        return false;
    r->rest = r->path + n - 1;
    return true;
}

static int choose_route(struct http_connection *c)
{
    struct http_request *r = &c->request;
    const struct http_server_config *cfg = &c->server->config;
    unsigned method = c->parser.method;
    uint32_t bit = method == HTTP_GET || method == HTTP_HEAD ? HTTP_METHOD_GET
                   : method == HTTP_POST                     ? HTTP_METHOD_POST
                                                             : 0;
    uint32_t allowed = 0;
    for (size_t i = 0; i < cfg->n_routes && !r->route; i++) {
        if (!matches(&cfg->routes[i], r))
            continue;
        allowed |= cfg->routes[i].methods;
        if (cfg->routes[i].methods & bit)
            r->route = &cfg->routes[i];
    }
    if (r->route)
        return 0;
    char text[ERR_TEXT_BYTES];
    if (!allowed) {
        (void)snprintf(text, sizeof text, "there is nothing at %.200s", r->path);
        return refuse(c, 404, NULL, text);
    }
    (void)snprintf(text, sizeof text, "%s is not allowed at %.200s",
                   http_method_str((enum http_method)method), r->path);
    (void)snprintf(c->server->allow, sizeof c->server->allow, "Allow: %s%s%s\r\n",
                   allowed & HTTP_METHOD_GET ? "GET, HEAD" : "",
                   allowed == (HTTP_METHOD_GET | HTTP_METHOD_POST) ? ", " : "",
                   allowed & HTTP_METHOD_POST ? "POST" : "");
    return refuse(c, 405, c->server->allow, text);
}

/* application/json, with charset utf-8 or none; no type at all is taken as JSON */
static bool is_json_type(const char *type)
{
    if (!type)
        return true;
    static const char json[] = "application/json";
    if (strncasecmp(type, json, sizeof json - 1) != 0)
        return false;
    const char *rest = type + sizeof json - 1;
    rest += strspn(rest, " \t");
    if (*rest == '\0')
        return true;
    if (*rest != ';')
        return false;
    const char *charset = strcasestr(rest, "charset=");
    if (!charset)
        return true;
    charset += sizeof "charset=" - 1;
    charset += *charset == '"';
    return strncasecmp(charset, "utf-8", 5) == 0 || strncasecmp(charset, "utf8", 4) == 0 ||
           strncasecmp(charset, "us-ascii", 8) == 0;
}

static int check_body(struct http_connection *c)
{
    struct http_request *r = &c->request;
    bool is_chunked = (c->parser.flags & F_CHUNKED) != 0;
    bool has_length = (c->parser.flags & F_CONTENTLENGTH) != 0;
    if (has_length && c->parser.content_length > c->server->config.limits.max_body)
        return refuse(c, 413, NULL, "the body is larger than this server accepts");
    const char *encoding = http_request_header(r, "content-encoding");
    if (encoding && *encoding && strcasecmp(encoding, "identity") != 0)
        return refuse(c, 415, NULL, "Content-Encoding is not supported");
    if (r->route->is_json && !is_json_type(http_request_header(r, "content-type")))
        return refuse(c, 415, NULL, "Content-Type must be application/json");
    const char *expect = http_request_header(r, "expect");
    if (!expect || c->parser.http_minor == 0)
        return 0;
    if (strcasecmp(expect, "100-continue") != 0)
        return refuse(c, 417, NULL, "the only expectation that can be met is 100-continue");
    if (is_chunked || (has_length && c->parser.content_length > 0))
        bufferevent_write(c->bev, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    return 0;
}

static int on_headers_complete(http_parser *p)
{
    struct http_connection *c = p->data;
    struct http_request *r = &c->request;
    c->is_head_done = true;
    struct err_info ei;
    enum err rc = http_request_seal(r, &ei);
    if (rc != OK)
        return refuse(c, rc == ERR_NOMEM ? 503 : 400, NULL, ei.text);
    r->is_head = p->method == HTTP_HEAD;
    c->is_keep_alive = http_should_keep_alive(p);
    if (p->http_major != 1)
        return refuse(c, 505, NULL, "only HTTP/1.0 and HTTP/1.1 are served");
    uint32_t n_codings = http_request_count_header(r, "transfer-encoding");
    if (n_codings > 0) {
        if (p->http_minor == 0 || http_request_count_header(r, "content-length") > 0)
            return refuse(c, 400, NULL, "Transfer-Encoding contradicts the rest of the head");
        if (n_codings > 1 ||
            strcasecmp(http_request_header(r, "transfer-encoding"), "chunked") != 0)
            return refuse(c, 501, NULL, "the only transfer coding supported is chunked");
    }
    if (choose_route(c) != 0)
        return -1;
    return check_body(c);
}

static int on_body(http_parser *p, const char *at, size_t n)
{
    struct http_connection *c = p->data;
    if (n > c->server->config.limits.max_body - c->request.body.size)
        return refuse(c, 413, NULL, "the body is larger than this server accepts");
    bytes_append(&c->request.body, at, n);
    if (c->request.body.failed)
        return refuse(c, 503, NULL, "no memory for the body");
    return 0;
}

static int on_message_complete(http_parser *p)
{
    struct http_connection *c = p->data;
    c->is_body_done = true;
    http_parser_pause(p, 1);
    return 0;
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
        (void)refuse(c, 431, NULL, "the header fields are too large");
    if (c->reject_status == 0) {
        char text[ERR_TEXT_BYTES];
        (void)snprintf(text, sizeof text, "malformed HTTP request: %s", http_errno_description(e));
        (void)refuse(c, 400, NULL, text);
    }
    reject(c);
}

/* Parses what has come, until a request is whole or the bytes are used up. */
static void feed(struct http_connection *c)
{
    static const http_parser_settings callbacks = {.on_url = on_url,
                                                   .on_header_field = on_header_field,
                                                   .on_header_value = on_header_value,
                                                   .on_headers_complete = on_headers_complete,
                                                   .on_body = on_body,
                                                   .on_message_complete = on_message_complete};
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
            (void)refuse(c, is_line ? 414 : 431, NULL,
                         is_line ? "the request line is too long"
                                 : "the header fields are too large");
            reject(c);
            return;
        }
        bool was_head = !c->is_head_done;
        size_t used = http_parser_execute(&c->parser, &callbacks, piece.iov_base, n);
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
    (void)event_del(c->watch);
    bufferevent_enable(c->bev, EV_READ);
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
    (void)event_del(c->watch);
    bufferevent_enable(c->bev, EV_READ);
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
    if (c->is_doomed)
        return;
    switch (c->state) {
    case HTTP_CONNECTION_IDLE:
    case HTTP_CONNECTION_READING:
        feed(c);
        break;
    case HTTP_CONNECTION_ANSWERING:
    case HTTP_CONNECTION_FLUSHING:
        if (evbuffer_get_length(in) > PIPELINE_MAX) {
            bufferevent_disable(bev, EV_READ);
            set_timer(c->watch, WATCH_US);
        }
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

/* Reading is suspended, so libevent does not see the end of the stream. */
static void on_watch(evutil_socket_t fd, short what, void *ctx)
{
    (void)fd, (void)what;
    struct http_connection *c = ctx;
    struct pollfd p = {.fd = bufferevent_getfd(c->bev), .events = POLLRDHUP};
    if (poll(&p, 1, 0) > 0)
        http_connection_free(c);
    else
        set_timer(c->watch, WATCH_US);
}

static void on_timer(evutil_socket_t fd, short what, void *ctx)
{
    (void)fd, (void)what;
    struct http_connection *c = ctx;
    if (c->state == HTTP_CONNECTION_READING) {
        (void)refuse(c, 408, NULL, "the request did not arrive in time");
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
    c->watch = evtimer_new(base, on_watch, c);
    if (!c->timer || !c->kick || !c->watch)
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
    (void)refuse(c, 503, "Retry-After: 1\r\n", "too many connections");
    reject(c);
}
