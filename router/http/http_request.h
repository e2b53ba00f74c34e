#pragma once
#include "config/base/bytes.h"
#include "config/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One HTTP request as its handler sees it: line, headers, body, and who to tell when the client
 * goes away. Made and freed by the connection; valid from the handler's call until the answer is
 * finished (http_response.h) or on_gone was called. One owner thread: the server's loop. */

struct http_connection;
struct http_request;

enum { HTTP_REQUEST_ID_MAX = 128 };

enum http_method_bit { HTTP_METHOD_GET = 1, HTTP_METHOD_POST = 2 }; /* GET serves HEAD too */

struct http_route {
    const char *path;  /* "/v1/models"; ending in '*': a prefix, r->rest is what follows it */
    const char *label; /* for metrics: "/v1/models/{id}"; NULL: path */
    uint32_t methods;  /* bits */
    bool is_json;      /* the body must be application/json (absent type: taken as JSON) */
    void (*handle)(void *ctx, struct http_request *r); /* the server's ctx */
};

struct http_header_span {
    size_t name, value; /* offsets into head */
};

struct http_request {
    const struct http_route *route;
    const char *path;                 /* decoded, without the query */
    const char *rest;                 /* behind a prefix route's path; "" otherwise */
    char id[HTTP_REQUEST_ID_MAX + 1]; /* x-request-id: the client's when sane, else random */
    struct bytes body;
    uint64_t start_us; /* when its first byte was seen */
    bool is_head;      /* HEAD: the answer's body is not sent */
    /* Set by the handler when it answers later. Called once, from the loop, never from within
     * http_response_*, when the connection ends before the answer does. r is dead afterwards. */
    void (*on_gone)(void *ctx);
    void *gone_ctx;

    /* the connection's own */
    struct http_connection *connection;
    struct bytes url, head;
    struct bytes spans; /* struct http_header_span[] */
    bool in_value;
};

/* First value of a header (any case), or NULL. Borrowed. */
const char *http_request_header(const struct http_request *r, const char *name);

/* --- for the connection ------------------------------------------------------------------------
 */
void http_request_fini(struct http_request *r);
/* Parser callbacks' work: pieces of the head, in order. */
void http_request_add_name(struct http_request *r, const char *s, size_t n);
void http_request_add_value(struct http_request *r, const char *s, size_t n);
/* Head is whole: terminates strings, decodes the path, takes or draws the id. Errors: PARSE (a
 * header name, target or escape that is not allowed: says which), NOMEM. */
NODISCARD enum err http_request_seal(struct http_request *r, struct err_info *ei);
/* A random id, for a request whose head could not be read. */
void http_request_draw_id(struct http_request *r);
/* How many headers of that name there are. */
uint32_t http_request_count_header(const struct http_request *r, const char *name);
