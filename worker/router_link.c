/* Is there a router, and what does it say? Keeps: messages reach the engine only from the router
 * that said WELCOME last, while its process lives. A router is (pid, start time), watched by a
 * pidfd. Knows no sequence: what a router's death means for them is the engine's business. */
#include "worker/router_link.h"

#include "config/base/log.h"
#include "ipc/channel.h"

#include <stdlib.h>
#include <unistd.h>

struct router_link {
    struct router_link_config cfg;
    struct channel *channel;
    struct arena *arena; /* of the last message */
    enum router_link_state state;
    struct process_id router; /* serving: whose WELCOME it was */
    int router_fd;            /* pidfd, or -1 */
    uint64_t generation;
    uint64_t greeting_since_us, last_hello_us;
    bool has_said_hello;
};

enum err router_link_open(const struct router_link_config *cfg, uint64_t now_us,
                          struct router_link **out, struct err_info *ei)
{
    struct router_link *l = calloc(1, sizeof *l);
    if (!l)
        return err_set(ei, ERR_NOMEM, "router link: no memory");
    l->cfg = *cfg;
    l->state = ROUTER_LINK_GREETING;
    l->router_fd = -1;
    l->greeting_since_us = now_us;
    l->arena = arena_new(0);
    struct channel_peer self = {.worker = cfg->hello.worker, .pid = cfg->hello.pid};
    enum err rc = l->arena ? channel_open_worker(cfg->endpoint, self, &l->channel, ei)
                           : err_set(ei, ERR_NOMEM, "router link: no memory");
    if (rc) {
        router_link_close(l);
        return rc;
    }
    *out = l;
    return OK;
}

void router_link_close(struct router_link *l)
{
    if (!l)
        return;
    channel_close(l->channel);
    arena_free(l->arena);
    if (l->router_fd >= 0)
        close(l->router_fd);
    free(l);
}

static bool is_router_alive(const struct router_link *l)
{
    struct pollfd p = {.fd = l->router_fd, .events = POLLIN};
    /* a process that could not be watched any more was gone when it said WELCOME */
    return l->router_fd >= 0 && poll(&p, 1, 0) <= 0;
}

static void lose_router(struct router_link *l, uint64_t now_us)
{
    log_warn("the router (pid %d) is gone: waiting %llu s for another", l->router.pid,
             (unsigned long long)(l->cfg.grace_us / 1000000));
    if (l->router_fd >= 0)
        close(l->router_fd);
    l->router_fd = -1;
    l->state = ROUTER_LINK_GREETING;
    l->generation++;
    l->greeting_since_us = now_us;
    l->has_said_hello = false;
}

static void say_hello(struct router_link *l, uint64_t now_us)
{
    if (l->has_said_hello && now_us - l->last_hello_us < ROUTER_LINK_GREET_US)
        return;
    l->has_said_hello = true;
    l->last_hello_us = now_us;
    struct message m = {.kind = MESSAGE_HELLO, .as.hello = l->cfg.hello};
    struct err_info ei = {0};
    if (channel_send(l->channel, NULL, &m, &ei) != OK)
        log_debug("HELLO: %s", ei.text);
}

enum router_link_state router_link_tick(struct router_link *l, uint64_t now_us)
{
    if (l->state == ROUTER_LINK_SERVING && !is_router_alive(l))
        lose_router(l, now_us);
    if (l->state == ROUTER_LINK_GREETING) {
        if (now_us - l->greeting_since_us >= l->cfg.grace_us)
            l->state = ROUTER_LINK_EXPIRED;
        else
            say_hello(l, now_us);
    }
    return l->state;
}

static void meet(struct router_link *l, const struct message_welcome *w, uint64_t now_us)
{
    struct process_id router = {.pid = w->router_pid, .start = w->router_start};
    if (w->protocol != PROTOCOL_VERSION) {
        log_warn("a router speaks protocol %u, not %d: ignored", w->protocol, PROTOCOL_VERSION);
        return;
    }
    if (l->state == ROUTER_LINK_SERVING) {
        if (router.pid == l->router.pid && router.start == l->router.start)
            return; /* the answer to a HELLO said twice */
        lose_router(l, now_us);
    }
    int fd = process_open(router);
    if (fd < 0) {
        log_warn("a router (pid %d) said WELCOME and is gone", router.pid);
        return;
    }
    l->router = router;
    l->router_fd = fd;
    l->state = ROUTER_LINK_SERVING;
    l->generation++;
    log_info("welcomed by the router (pid %d)", router.pid);
}

enum err router_link_receive(struct router_link *l, uint64_t now_us, struct message *out,
                             struct err_info *ei)
{
    for (;;) {
        struct err_info why = {0};
        arena_reset(l->arena);
        enum err rc = channel_receive(l->channel, l->arena, NULL, out, &why);
        if (rc == ERR_BUSY || rc == ERR_IO)
            return err_set(ei, rc, "%s", why.text);
        if (rc) {
            log_warn("message dropped: %s", why.text);
            continue;
        }
        switch (out->kind) {
        case MESSAGE_WELCOME:
            meet(l, &out->as.welcome, now_us);
            continue;
        case MESSAGE_STOP:
            return OK; /* also the answer to a HELLO that is not wanted */
        case MESSAGE_SUBMIT:
        case MESSAGE_CANCEL:
        case MESSAGE_DRAIN:
            if (l->state == ROUTER_LINK_SERVING)
                return OK;
            log_debug("%s before WELCOME: dropped", message_kind_name(out->kind));
            continue;
        case MESSAGE_HELLO:
        case MESSAGE_TOKENS:
        case MESSAGE_FAILED:
        case MESSAGE_STATS:
            log_warn("the router sent a %s: dropped", message_kind_name(out->kind));
            continue;
        }
    }
}

enum err router_link_send(struct router_link *l, const struct message *m, struct err_info *ei)
{
    return channel_send(l->channel, NULL, m, ei);
}

uint64_t router_link_generation(const struct router_link *l)
{
    return l->generation;
}

void router_link_poll_fds(const struct router_link *l, struct pollfd fds[ROUTER_LINK_POLL_FDS])
{
    fds[0] = (struct pollfd){.fd = channel_fd(l->channel), .events = POLLIN};
    fds[1] = (struct pollfd){.fd = l->router_fd, .events = POLLIN};
}
