/* Who may connect? Listens, accepts up to a limit, and tells those beyond it so. Keeps: a lack of
 * file descriptors pauses accepting instead of spinning on it. Does not know what a connection
 * does. */
#include "router/http/http_connection.h"

#include "config/base/log.h"

#include <event2/listener.h>

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    REFUSED_MAX = 64, /* connections over the limit that are told so at one time */
    ACCEPT_RETRY_US = 100 * 1000,
};

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *addr, int len,
                      void *ctx)
{
    (void)l, (void)addr, (void)len;
    struct http_server *s = ctx;
    uint32_t max = s->config.limits.max_connections;
    if (s->n_connections >= max + REFUSED_MAX) {
        close(fd);
        return;
    }
    http_connection_open(s, fd, s->n_connections >= max);
}

static void on_accept_error(struct evconnlistener *l, void *ctx)
{
    struct http_server *s = ctx;
    log_warn("http: cannot accept: %s; trying again in %d ms", strerror(errno),
             ACCEPT_RETRY_US / 1000);
    evconnlistener_disable(l);
    struct timeval tv = {.tv_usec = ACCEPT_RETRY_US};
    (void)event_add(s->accept_retry, &tv);
}

static void on_accept_retry(evutil_socket_t fd, short what, void *ctx)
{
    (void)fd, (void)what;
    struct http_server *s = ctx;
    if (s->listener)
        evconnlistener_enable(s->listener);
}

static uint32_t port_of(evutil_socket_t fd)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    if (getsockname(fd, (struct sockaddr *)&a, &n) != 0)
        return 0;
    if (a.ss_family == AF_INET6) {
        struct sockaddr_in6 in6;
        memcpy(&in6, &a, sizeof in6);
        return ntohs(in6.sin6_port);
    }
    struct sockaddr_in in;
    memcpy(&in, &a, sizeof in);
    return ntohs(in.sin_port);
}

static enum err start_listening(struct http_server *s, struct err_info *ei)
{
    const struct http_server_config *cfg = &s->config;
    char port[16];
    (void)snprintf(port, sizeof port, "%u", cfg->port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *list = NULL;
    int gai = getaddrinfo(s->host, port, &hints, &list);
    if (gai != 0)
        return err_set(ei, ERR_IO, "http: cannot resolve %s: %s", s->host, gai_strerror(gai));
    int last = 0;
    for (struct addrinfo *a = list; a && !s->listener; a = a->ai_next) {
        errno = 0;
        s->listener = evconnlistener_new_bind(cfg->base, on_accept, s,
                                              LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC |
                                                  LEV_OPT_REUSEABLE,
                                              511, a->ai_addr, (int)a->ai_addrlen);
        last = errno;
    }
    freeaddrinfo(list);
    if (!s->listener)
        return err_set(ei, ERR_IO, "http: cannot listen on %s:%u: %s", s->host, cfg->port,
                       strerror(last));
    evconnlistener_set_error_cb(s->listener, on_accept_error);
    s->port = port_of(evconnlistener_get_fd(s->listener));
    return OK;
}

enum err http_server_start(const struct http_server_config *cfg, struct http_server **out,
                           struct err_info *ei)
{
    enum err rc;
    struct http_server *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(ei, ERR_NOMEM, "http: no memory");
    s->config = *cfg;
    s->host = strdup(cfg->host);
    s->accept_retry = evtimer_new(cfg->base, on_accept_retry, s);
    if (!s->host || !s->accept_retry) {
        rc = err_set(ei, ERR_NOMEM, "http: no memory");
        goto fail;
    }
    /* the library's own limit must not be met before ours */
    http_parser_set_max_header_size(cfg->limits.max_header + 1024);
    rc = start_listening(s, ei);
    if (rc != OK)
        goto fail;
    *out = s;
    return OK;
fail:
    http_server_free(s);
    return rc;
}

uint32_t http_server_port(const struct http_server *s)
{
    return s->port;
}

void http_server_stop_listening(struct http_server *s)
{
    if (s->listener)
        evconnlistener_free(s->listener);
    s->listener = NULL;
}

uint32_t http_server_n_active(const struct http_server *s)
{
    uint32_t n = 0;
    for (const struct http_connection *c = s->connections; c; c = c->next)
        n += c->state == HTTP_CONNECTION_READING || c->state == HTTP_CONNECTION_ANSWERING ||
             c->state == HTTP_CONNECTION_FLUSHING;
    return n;
}

uint32_t http_server_n_connections(const struct http_server *s)
{
    return s->n_connections;
}

void http_server_free(struct http_server *s)
{
    if (!s)
        return;
    http_server_stop_listening(s);
    while (s->connections)
        http_connection_free(s->connections);
    if (s->accept_retry)
        event_free(s->accept_retry);
    free(s->host);
    free(s);
}
