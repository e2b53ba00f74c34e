#pragma once
#include "router/http/http_request.h"

/* Answers. Exactly one of: send; or begin, any number of writes, then end or abort. None of them
 * calls back into the handler or frees the request at once; after send, end or abort the handler
 * must not touch it. A connection that was lost meanwhile makes them do nothing: on_gone follows.
 * One owner thread: the server's loop. */

struct http_answer {
    int status;
    const char *content_type; /* NULL: application/json */
    const char *headers;      /* more header lines, each ending in CRLF; NULL: none */
    const void *body;
    size_t body_bytes;
};

void http_response_send(struct http_request *r, const struct http_answer *a);
/* The server's error body (http_server_config.error_body). */
void http_response_error(struct http_request *r, int status, const char *text);
/* Head of a stream; a->body is sent with it. Chunked, or until close for an HTTP/1.0 client. */
void http_response_begin(struct http_request *r, const struct http_answer *a);
/* A reader that lags by more than limits.write_buffer is cut: on_gone follows from the loop. */
void http_response_write(struct http_request *r, const void *data, size_t n);
void http_response_end(struct http_request *r);
/* Cuts the connection so that the client sees the stream as broken; on_gone is not called. */
void http_response_abort(struct http_request *r);
