#pragma once
#include "router/http/http_server.h"

#include <event2/bufferevent.h>
#include <http_parser.h>

/* The inside of router/http: a connection and its state, shared by http_server.c (who accepts),
 * http_connection.c (who reads) and http_response.c (who writes). */

enum http_connection_state {
    HTTP_CONNECTION_IDLE,      /* no byte of the next request yet */
    HTTP_CONNECTION_READING,   /* part of a request */
    HTTP_CONNECTION_ANSWERING, /* the handler has it */
    HTTP_CONNECTION_FLUSHING,  /* answer complete, part of it still in our buffer */
    HTTP_CONNECTION_LINGERING, /* sending side shut; input is discarded so that no RST overtakes
                                  the answer */
};

struct http_connection {
    struct http_server *server;
    struct http_connection *next, *prev;
    struct bufferevent *bev;
    struct event *timer; /* deadline of the state */
    struct event *kick;  /* deferred step: what a handler's call has caused */
    enum http_connection_state state;
    http_parser parser;
    struct http_request request;
    size_t head_bytes;    /* of the request being read */
    size_t flush_pending; /* output when the flush timer was set: progress re-arms it */
    bool is_head_done, is_body_done;
    bool is_keep_alive;
    bool is_begun;   /* the answer's head is written */
    bool is_chunked; /* the answer's body is */
    bool is_doomed;  /* cut; the kick frees it */
    bool is_peer_done;
    int reject_status; /* set inside parser callbacks: answer this and close */
    const char *reject_headers;
    char reject_text[ERR_TEXT_BYTES];
};

struct http_server {
    struct http_server_config config;
    char *host;
    struct evconnlistener *listener;
    struct event *accept_retry;
    struct http_connection *connections;
    uint32_t n_connections;
    uint32_t port;
    char allow[64]; /* scratch of a 405 */
};

/* Takes fd. is_over_limit: it only hears a 503. */
void http_connection_open(struct http_server *s, evutil_socket_t fd, bool is_over_limit);
/* Calls on_gone when a request is being answered, unlinks and frees. */
void http_connection_free(struct http_connection *c);
/* Answer complete: flush, then next request or close. */
void http_connection_answered(struct http_connection *c);
/* Cut, from any depth: freed by the loop. */
void http_connection_doom(struct http_connection *c);
