/* How does an answer get onto the wire? Heads, bodies, chunks and their end, each write as one
 * piece. Keeps: what a client sees is framed by Content-Length, by chunks, or by the close of the
 * connection, never by two of them; a reader that lags too far is cut. Does not know why. */
#include "router/http/http_connection.h"

#include <event2/buffer.h>

#include <assert.h>
#include <string.h>
#include <time.h>

static void append_date(struct bytes *out)
{
    time_t now = time(NULL);
    struct tm tm;
    char text[64];
    if (gmtime_r(&now, &tm) &&
        strftime(text, sizeof text, "Date: %a, %d %b %Y %H:%M:%S GMT\r\n", &tm))
        bytes_append_str(out, text);
}

static const char *status_text(int status)
{
    return http_status_str((enum http_status)status);
}

static void append_head(struct http_connection *c, const struct http_answer *a, struct bytes *out)
{
    const struct http_server_config *cfg = &c->server->config;
    if (cfg->is_draining && cfg->is_draining(cfg->ctx))
        c->is_keep_alive = false;
    bytes_printf(out, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\n", a->status, status_text(a->status),
                 a->content_type ? a->content_type : "application/json");
    append_date(out);
    if (c->request.id[0])
        bytes_printf(out, "x-request-id: %s\r\n", c->request.id);
    if (a->headers)
        bytes_append_str(out, a->headers);
    if (!c->is_keep_alive)
        bytes_append_str(out, "Connection: close\r\n");
    else if (c->parser.http_minor == 0)
        bytes_append_str(out, "Connection: keep-alive\r\n");
}

static void append_chunk(const struct http_connection *c, const void *data, size_t n,
                         struct bytes *out)
{
    if (n == 0 || c->request.is_head)
        return;
    if (c->is_chunked)
        bytes_printf(out, "%zx\r\n", n);
    bytes_append(out, data, n);
    if (c->is_chunked)
        bytes_append(out, "\r\n", 2);
}

/* Hands the bytes to the socket's buffer. */
static void put(struct http_connection *c, struct bytes *out)
{
    if (out->failed || bufferevent_write(c->bev, out->data, out->size) != 0)
        http_connection_doom(c);
    bytes_fini(out);
}

static void answer_begun(struct http_connection *c, int status)
{
    const struct http_server_config *cfg = &c->server->config;
    c->is_begun = true;
    if (cfg->on_answer)
        cfg->on_answer(cfg->ctx, c->request.route, status);
}

void http_response_send(struct http_request *r, const struct http_answer *a)
{
    struct http_connection *c = r->connection;
    assert(c->state == HTTP_CONNECTION_ANSWERING && !c->is_begun);
    struct bytes out = {0};
    append_head(c, a, &out);
    bytes_printf(&out, "Content-Length: %zu\r\n\r\n", a->body_bytes);
    if (!r->is_head)
        bytes_append(&out, a->body, a->body_bytes);
    answer_begun(c, a->status);
    put(c, &out);
    http_connection_answered(c);
}

void http_response_error(struct http_request *r, int status, const char *text)
{
    const struct http_server_config *cfg = &r->connection->server->config;
    struct bytes body = {0};
    cfg->error_body(cfg->ctx, status, text, &body);
    struct http_answer a = {.status = status, .body = body.data, .body_bytes = body.size};
    http_response_send(r, &a);
    bytes_fini(&body);
}

void http_response_begin(struct http_request *r, const struct http_answer *a)
{
    struct http_connection *c = r->connection;
    assert(c->state == HTTP_CONNECTION_ANSWERING && !c->is_begun);
    c->is_chunked = c->parser.http_minor > 0;
    if (!c->is_chunked)
        c->is_keep_alive = false;
    struct bytes out = {0};
    append_head(c, a, &out);
    bytes_append_str(&out, c->is_chunked ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n");
    append_chunk(c, a->body, a->body_bytes, &out);
    answer_begun(c, a->status);
    put(c, &out);
}

void http_response_write(struct http_request *r, const void *data, size_t n)
{
    struct http_connection *c = r->connection;
    assert(c->state == HTTP_CONNECTION_ANSWERING && c->is_begun);
    if (c->is_doomed)
        return;
    size_t lag = evbuffer_get_length(bufferevent_get_output(c->bev));
    if (lag + n > c->server->config.limits.write_buffer && lag > 0) {
        http_connection_doom(c);
        return;
    }
    struct bytes out = {0};
    append_chunk(c, data, n, &out);
    put(c, &out);
}

void http_response_end(struct http_request *r)
{
    struct http_connection *c = r->connection;
    assert(c->state == HTTP_CONNECTION_ANSWERING && c->is_begun);
    if (c->is_chunked && !r->is_head)
        bufferevent_write(c->bev, "0\r\n\r\n", 5);
    http_connection_answered(c);
}

void http_response_abort(struct http_request *r)
{
    struct http_connection *c = r->connection;
    assert(c->state == HTTP_CONNECTION_ANSWERING);
    c->state = HTTP_CONNECTION_LINGERING; /* no on_gone, no 499 */
    http_connection_doom(c);
}
