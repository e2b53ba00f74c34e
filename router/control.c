/* Who administers the node? Whoever may open its control socket. Lines of JSON in, lines of JSON
 * out; peers are checked by their credentials, lines and connections are bounded. Knows no command
 * by name. */
#include "router/control.h"

#include "config/base/log.h"
#include "ipc/control_client.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/listener.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    MAX_CONNECTIONS = 32,
    IDLE_TIMEOUT_S = 300,
    OUTPUT_BYTES_MAX = 4 * 1024 * 1024, /* of answers that a peer has not read */
    ACCEPT_RETRY_US = 100 * 1000,
};

struct connection {
    struct connection *next, **link; /* in the control's list */
    struct control *control;
    struct bufferevent *bev;
    bool is_peer_done; /* has shut its sending side: closed once its answers are out */
};

struct control {
    struct control_config cfg;
    char path[sizeof((struct sockaddr_un *)0)->sun_path];
    struct evconnlistener *listener;
    struct event *accept_retry;
    struct connection *connections;
    int n_connections;
};

static void connection_free(struct connection *c)
{
    *c->link = c->next;
    if (c->next)
        c->next->link = c->link;
    c->control->n_connections--;
    bufferevent_free(c->bev);
    free(c);
}

static json_t *answer_line(struct control *ctl, const char *line, size_t n)
{
    json_error_t je;
    json_t *req = json_loadb(line, n, JSON_REJECT_DUPLICATES, &je);
    const char *cmd = json_string_value(json_object_get(req, "cmd"));
    json_t *answer;
    if (!req)
        answer = json_pack("{s:b,s:s}", "ok", 0, "error", je.text);
    else if (!cmd)
        answer = json_pack("{s:b,s:s}", "ok", 0, "error", "no \"cmd\" in the request");
    else {
        answer = ctl->cfg.execute(ctl->cfg.ctx, cmd, req);
        if (!answer)
            answer = json_pack("{s:b,s:s+}", "ok", 0, "error", "unknown command: ", cmd);
    }
    json_decref(req);
    return answer;
}

static size_t n_output(const struct connection *c)
{
    return evbuffer_get_length(bufferevent_get_output(c->bev));
}

static void on_read(struct bufferevent *bev, void *ctx)
{
    struct connection *c = ctx;
    struct evbuffer *in = bufferevent_get_input(bev);
    size_t n;
    char *line;
    while ((line = evbuffer_readln(in, &n, EVBUFFER_EOL_LF)) != NULL) {
        if (n_output(c) > OUTPUT_BYTES_MAX) { /* asks and asks, and never reads */
            free(line);
            connection_free(c);
            return;
        }
        json_t *answer = answer_line(c->control, line, n);
        free(line);
        char *text = answer ? json_dumps(answer, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
        json_decref(answer);
        if (!text) {
            connection_free(c);
            return;
        }
        bufferevent_write(bev, text, strlen(text));
        bufferevent_write(bev, "\n", 1);
        free(text);
    }
    if (evbuffer_get_length(in) > CONTROL_LINE_BYTES)
        connection_free(c);
}

/* The output is empty. */
static void on_write(struct bufferevent *bev, void *ctx)
{
    (void)bev;
    struct connection *c = ctx;
    if (c->is_peer_done)
        connection_free(c);
}

static void on_event(struct bufferevent *bev, short what, void *ctx)
{
    (void)bev;
    struct connection *c = ctx;
    if ((what & BEV_EVENT_EOF) && n_output(c) > 0)
        c->is_peer_done = true; /* on_write follows, or the idle timeout */
    else
        connection_free(c);
}

static bool is_allowed(evutil_socket_t fd)
{
    struct ucred peer;
    socklen_t n = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) == 0 &&
           (peer.uid == geteuid() || peer.uid == 0);
}

static void on_accept(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *addr,
                      int addr_bytes, void *ctx)
{
    (void)listener, (void)addr, (void)addr_bytes;
    struct control *ctl = ctx;
    struct connection *c = NULL;
    if (is_allowed(fd) && ctl->n_connections < MAX_CONNECTIONS)
        c = calloc(1, sizeof *c);
    struct bufferevent *bev =
        c ? bufferevent_socket_new(ctl->cfg.base, fd, BEV_OPT_CLOSE_ON_FREE) : NULL;
    if (!bev) {
        free(c);
        close(fd);
        return;
    }
    *c = (struct connection){
        .control = ctl, .bev = bev, .next = ctl->connections, .link = &ctl->connections};
    if (c->next)
        c->next->link = &c->next;
    ctl->connections = c;
    ctl->n_connections++;
    struct timeval idle = {.tv_sec = IDLE_TIMEOUT_S};
    bufferevent_setcb(bev, on_read, on_write, on_event, c);
    bufferevent_set_timeouts(bev, &idle, &idle);
    bufferevent_enable(bev, EV_READ | EV_WRITE);
}

/* Without a descriptor to spare, the waiting peer would wake the loop again and again. */
static void on_accept_error(struct evconnlistener *listener, void *ctx)
{
    struct control *ctl = ctx;
    log_warn("control: cannot accept: %s; trying again in %d ms", strerror(errno),
             ACCEPT_RETRY_US / 1000);
    evconnlistener_disable(listener);
    struct timeval tv = {.tv_usec = ACCEPT_RETRY_US};
    (void)event_add(ctl->accept_retry, &tv);
}

static void on_accept_retry(evutil_socket_t fd, short what, void *ctx)
{
    (void)fd, (void)what;
    struct control *ctl = ctx;
    evconnlistener_enable(ctl->listener);
}

enum err control_open(const struct control_config *cfg, struct control **out, struct err_info *ei)
{
    struct sockaddr_un sun = {.sun_family = AF_UNIX};
    if (strlen(cfg->path) >= sizeof sun.sun_path)
        return err_set(ei, ERR_LIMIT, "control: socket path too long: %s", cfg->path);
    struct control *c = calloc(1, sizeof *c);
    if (!c)
        return err_set(ei, ERR_NOMEM, "control: no memory");
    c->accept_retry = evtimer_new(cfg->base, on_accept_retry, c);
    if (!c->accept_retry) {
        free(c);
        return err_set(ei, ERR_NOMEM, "control: no memory");
    }
    c->cfg = *cfg;
    strcpy(c->path, cfg->path);
    strcpy(sun.sun_path, cfg->path);
    unlink(c->path); /* a crashed node's; the node's lock says that it is ours */
    mode_t old = umask(0177);
    c->listener = evconnlistener_new_bind(cfg->base, on_accept, c,
                                          LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 16,
                                          (struct sockaddr *)&sun, sizeof sun);
    umask(old);
    if (!c->listener) {
        enum err rc =
            err_set(ei, ERR_IO, "control: cannot listen on %s: %s", c->path, strerror(errno));
        event_free(c->accept_retry);
        free(c);
        return rc;
    }
    evconnlistener_set_error_cb(c->listener, on_accept_error);
    *out = c;
    return OK;
}

void control_close(struct control *c)
{
    if (!c)
        return;
    while (c->connections)
        connection_free(c->connections);
    evconnlistener_free(c->listener);
    event_free(c->accept_retry);
    unlink(c->path);
    free(c);
}
