#pragma once
#include "router/http/http_request.h"
#include "router/http/http_response.h"

#include <event2/event.h>

/* An HTTP/1.1 server on a libevent loop: keep-alive, pipelining (one request at a time; later bytes
 * wait), Content-Length and chunked bodies, Expect: 100-continue, HEAD, limits and deadlines. It
 * knows routes but not what they mean; its own errors are worded by error_body. One owner thread.
 *
 * A client that closes, resets, or shuts down its sending side while its request is being answered
 * counts as gone, at once; one that pipelines more than max_header +
 * max_body bytes behind an unanswered request is cut. Malformed requests are answered and the
 * connection closed. */

struct http_limits {
    uint64_t max_body;        /* bytes; more: 413 before it is read */
    uint32_t max_header;      /* bytes of request line and headers; more: 414 or 431 */
    uint32_t max_connections; /* more: 503 and close */
    uint64_t idle_timeout_us; /* no byte of a request */
    uint64_t read_timeout_us; /* from a request's first byte to its end: then 408 */
    uint64_t write_buffer;    /* bytes that a stream's reader may lag */
};

struct http_server_config {
    struct event_base *base; /* outlives the server */
    const char *host;        /* name or address */
    uint32_t port;           /* 0: a free one */
    struct http_limits limits;
    const struct http_route *routes; /* [n_routes]; first match wins; outlives the server */
    size_t n_routes;
    /* Appends the body of an error answer (application/json). */
    void (*error_body)(void *ctx, int status, const char *text, struct bytes *out);
    bool (*is_draining)(void *ctx); /* may be NULL; true: answers say Connection: close */
    /* May be NULL. Once an answer's head is written; status 499: gone before that. route NULL: none
     * matched. */
    void (*on_answer)(void *ctx, const struct http_route *route, int status);
    void *ctx; /* of all callbacks, the routes' too */
};

struct http_server;

/* Errors: IO (cannot resolve or listen: names host, port and reason), NOMEM. */
NODISCARD enum err http_server_start(const struct http_server_config *cfg, struct http_server **out,
                                     struct err_info *ei);
uint32_t http_server_port(const struct http_server *s); /* the bound one */
void http_server_stop_listening(struct http_server *s); /* open connections go on */
/* Connections with a request that is being read, answered, or flushed. */
uint32_t http_server_n_active(const struct http_server *s);
uint32_t http_server_n_connections(const struct http_server *s);
/* Closes what is left (their requests' on_gone are called) and frees. */
void http_server_free(struct http_server *s);
