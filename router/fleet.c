/* Who keeps the workers alive? The fleet: one slot a worker index, one process a slot, watched by
 * pidfd. A death is confirmed by the kernel, never guessed from silence; a silent worker is killed
 * first. Knows nothing of requests: who lost some hears it through on_lost. */
#include "router/fleet.h"

#include "config/base/clock.h"
#include "config/base/log.h"
#include "prefixcache/kv_store.h"
#include "router/spawn.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    TICK_MS = 250,
    ADOPT_TIMEOUT_US = 3 * 1000 * 1000,
    STOP_TIMEOUT_US = 5 * 1000 * 1000,
    BACKOFF_FIRST_US = 100 * 1000,
    BACKOFF_MOST_US = 10 * 1000 * 1000,
    HOPELESS_DEATHS = 3,
    MAX_LEASES = 1024, /* kv_store_config.max_leases at most */
};

struct slot {
    struct fleet_worker w;
    struct fleet *fleet;
    struct event *death; /* pidfd readable */
    int pidfd;
    bool is_killed;          /* by us; its death is awaited */
    bool was_ready;          /* this process said HELLO */
    uint32_t n_early_deaths; /* in a row, before HELLO */
    uint64_t start_at_us;    /* when DOWN: not before */
};

struct fleet {
    struct fleet_config cfg;
    struct slot *slots;
    uint32_t n;
    struct event *tick;
    bool is_stopping, is_stopped;
    uint64_t stop_us;
};

static void on_tick(evutil_socket_t fd, short what, void *ctx);
static void on_death(evutil_socket_t fd, short what, void *ctx);

enum err fleet_new(const struct fleet_config *cfg, struct fleet **out, struct err_info *ei)
{
    struct fleet *f = calloc(1, sizeof *f);
    if (!f)
        return err_set(ei, ERR_NOMEM, "fleet: no memory");
    f->cfg = *cfg;
    f->n = cfg->config->workers;
    f->slots = calloc(f->n, sizeof *f->slots);
    f->tick = event_new(cfg->base, -1, EV_PERSIST, on_tick, f);
    if (!f->slots || !f->tick) {
        fleet_free(f);
        return err_set(ei, ERR_NOMEM, "fleet: no memory for %u workers", f->n);
    }
    for (uint32_t i = 0; i < f->n; i++)
        f->slots[i] =
            (struct slot){.fleet = f, .pidfd = -1, .w = {.index = i, .lease = KV_LEASE_NONE}};
    *out = f;
    return OK;
}

static void forget_process(struct slot *s)
{
    if (s->death)
        event_free(s->death);
    if (s->pidfd >= 0)
        close(s->pidfd);
    s->death = NULL;
    s->pidfd = -1;
    s->was_ready = s->is_killed = false;
    s->w.process = (struct process_id){0};
    s->w.lease = KV_LEASE_NONE;
    s->w.state = FLEET_DOWN;
    s->w.stats = (struct message_stats){0};
}

void fleet_free(struct fleet *f)
{
    if (!f)
        return;
    for (uint32_t i = 0; f->slots && i < f->n; i++)
        forget_process(&f->slots[i]);
    if (f->tick)
        event_free(f->tick);
    free(f->slots);
    free(f);
}

/* Watches process p; false when it is gone already. */
static bool watch(struct slot *s, struct process_id p)
{
    s->pidfd = process_open(p);
    if (s->pidfd < 0)
        return false;
    s->death = event_new(s->fleet->cfg.base, s->pidfd, EV_READ, on_death, s);
    if (!s->death || event_add(s->death, NULL) != 0) {
        forget_process(s);
        return false;
    }
    s->w.process = p;
    return true;
}

static void back_off(struct slot *s, uint64_t now_us)
{
    uint64_t wait_us = 0;
    if (s->n_early_deaths > 0) {
        wait_us = BACKOFF_FIRST_US;
        for (uint32_t i = 1; i < s->n_early_deaths && wait_us < BACKOFF_MOST_US; i++)
            wait_us *= 3;
        if (wait_us > BACKOFF_MOST_US)
            wait_us = BACKOFF_MOST_US;
    }
    s->start_at_us = now_us + wait_us;
}

static void start_worker(struct slot *s, uint64_t now_us)
{
    struct fleet *f = s->fleet;
    struct err_info ei = {0};
    pid_t pid = -1;
    enum err rc = spawn_worker(f->cfg.program, f->cfg.config, s->w.index, &pid, &ei);
    struct process_id p = {.pid = pid, .start = pid > 0 ? process_start_time(pid) : 0};
    if (rc == OK && watch(s, p)) {
        s->w.state = FLEET_STARTING;
        s->w.started_us = s->w.heard_us = now_us;
        return;
    }
    /* dead already, or there is no descriptor to watch it with: collect it, try again later */
    log_error("%s", rc == OK ? "fleet: a worker died at once or cannot be watched" : ei.text);
    if (rc == OK) {
        kill(pid, SIGKILL); /* our child and not waited for: the pid is still its own */
        waitpid(pid, NULL, 0);
    }
    s->n_early_deaths++;
    back_off(s, now_us);
}

void fleet_start(struct fleet *f)
{
    struct kv_lease_info leases[MAX_LEASES];
    uint64_t now_us = clock_now_us();
    kv_store_reap(f->cfg.store);
    uint32_t n = kv_store_leases(f->cfg.store, leases, MAX_LEASES);
    for (uint32_t i = 0; i < n; i++) {
        if (leases[i].tag >= f->n || f->slots[leases[i].tag].w.state != FLEET_DOWN)
            continue;
        struct slot *s = &f->slots[leases[i].tag];
        if (watch(s, leases[i].owner)) {
            s->w.state = FLEET_ADOPTING;
            s->w.started_us = s->w.heard_us = now_us;
            log_info("fleet: worker %u (pid %d) of a former router lives: waiting for its HELLO",
                     s->w.index, s->w.process.pid);
        }
    }
    for (uint32_t i = 0; i < f->n; i++)
        if (f->slots[i].w.state == FLEET_DOWN)
            start_worker(&f->slots[i], now_us);
    struct timeval tv = {.tv_usec = TICK_MS * 1000};
    if (event_add(f->tick, &tv) != 0)
        log_error("fleet: no timer: dead workers will not be restarted");
}

static void describe_exit(struct slot *s)
{
    siginfo_t info = {0};
    bool is_child = waitid(P_PID, (id_t)s->w.process.pid, &info, WEXITED | WNOHANG) == 0 &&
                    info.si_pid == s->w.process.pid;
    if (!is_child)
        (void)snprintf(s->w.last_exit, sizeof s->w.last_exit, "ended (not our child)");
    else if (info.si_code == CLD_EXITED)
        (void)snprintf(s->w.last_exit, sizeof s->w.last_exit, "exited with code %d",
                       info.si_status);
    else
        (void)snprintf(s->w.last_exit, sizeof s->w.last_exit, "killed by signal %d",
                       info.si_status);
}

static void check_stopped(struct fleet *f)
{
    if (!f->is_stopping || f->is_stopped)
        return;
    for (uint32_t i = 0; i < f->n; i++)
        if (f->slots[i].w.state != FLEET_DOWN)
            return;
    f->is_stopped = true;
    f->cfg.on_stopped(f->cfg.ctx);
}

static void on_death(evutil_socket_t fd, short what, void *ctx)
{
    (void)fd, (void)what;
    struct slot *s = ctx;
    struct fleet *f = s->fleet;
    uint64_t now_us = clock_now_us();
    bool was_ready = s->was_ready;
    describe_exit(s);
    if (f->is_stopping)
        log_debug("fleet: worker %u (pid %d) %s", s->w.index, s->w.process.pid, s->w.last_exit);
    else
        log_warn("fleet: worker %u (pid %d) %s", s->w.index, s->w.process.pid, s->w.last_exit);
    /* who got ready is started again at once, for requests wait; who never does backs off */
    s->n_early_deaths = was_ready ? 0 : s->n_early_deaths + 1;
    forget_process(s);
    kv_store_reap(f->cfg.store);
    if (was_ready)
        f->cfg.on_lost(f->cfg.ctx, s->w.index);
    if (f->is_stopping) {
        check_stopped(f);
        return;
    }
    s->w.n_restarts++;
    back_off(s, now_us);
    if (s->n_early_deaths >= HOPELESS_DEATHS)
        f->cfg.on_hopeless(f->cfg.ctx, s->w.index, s->w.last_exit);
    if (!f->is_stopping && s->start_at_us <= now_us)
        start_worker(s, now_us);
}

/* By the pidfd: an adopted worker's pid may be another process's by now. */
static void send_signal(const struct slot *s, int signal_number)
{
    if (s->pidfd >= 0)
        (void)syscall(SYS_pidfd_send_signal, s->pidfd, signal_number, NULL, 0);
}

static void kill_worker(struct slot *s, const char *why)
{
    if (s->is_killed)
        return;
    log_error("fleet: worker %u (pid %d) %s: killed", s->w.index, s->w.process.pid, why);
    send_signal(s, SIGKILL);
    s->is_killed = true; /* the rest follows when the pidfd says so */
}

static void check_slot(struct slot *s, uint64_t now_us)
{
    const struct node_config *c = s->fleet->cfg.config;
    uint64_t silent_us = now_us - s->w.heard_us;
    switch (s->w.state) {
    case FLEET_DOWN:
        if (!s->fleet->is_stopping && now_us >= s->start_at_us)
            start_worker(s, now_us);
        break;
    case FLEET_ADOPTING:
        if (silent_us > ADOPT_TIMEOUT_US)
            kill_worker(s, "of a former router said no HELLO");
        break;
    case FLEET_STARTING:
        if (silent_us > (uint64_t)c->worker.start_timeout_s * 1000000u)
            kill_worker(s, "did not get ready in worker.start_timeout_s");
        break;
    case FLEET_READY:
        /* it sends STATS every second, a step apart at most: silence is a hang */
        if (silent_us > (uint64_t)c->worker.hang_timeout_s * 1000000u)
            kill_worker(s, "was silent for worker.hang_timeout_s");
        break;
    case FLEET_STOPPING:
        /* however much it talks: STOP may not have reached it */
        if (now_us - s->fleet->stop_us > STOP_TIMEOUT_US)
            kill_worker(s, "did not stop when told");
        break;
    }
}

static void on_tick(evutil_socket_t fd, short what, void *ctx)
{
    (void)fd, (void)what;
    struct fleet *f = ctx;
    uint64_t now_us = clock_now_us();
    for (uint32_t i = 0; i < f->n; i++)
        check_slot(&f->slots[i], now_us);
    check_stopped(f);
}

static void tell_to_stop(struct fleet *f, struct channel_peer to)
{
    struct err_info ei = {0};
    struct message m = {.kind = MESSAGE_STOP};
    if (channel_send(f->cfg.channel, &to, &m, &ei) != OK)
        log_debug("fleet: worker %u: %s", to.worker, ei.text);
}

void fleet_stop(struct fleet *f)
{
    if (f->is_stopping)
        return;
    f->is_stopping = true;
    f->stop_us = clock_now_us();
    for (uint32_t i = 0; i < f->n; i++) {
        struct slot *s = &f->slots[i];
        if (s->w.state == FLEET_DOWN)
            continue;
        if (s->w.state == FLEET_READY)
            tell_to_stop(f, (struct channel_peer){s->w.index, s->w.process.pid});
        else
            send_signal(s, SIGTERM);
        s->w.state = FLEET_STOPPING;
    }
}

/* An orphan may still map a store that was replaced under the same name: what it caches there would
 * be seen by nobody, and its lease number is another's here. */
static bool is_of_our_store(const struct fleet *f, const struct message_hello *m)
{
    struct kv_lease_info leases[MAX_LEASES];
    uint32_t n = kv_store_leases(f->cfg.store, leases, MAX_LEASES);
    for (uint32_t i = 0; i < n; i++)
        if (leases[i].lease == m->lease)
            return leases[i].owner.pid == m->pid && leases[i].owner.start == m->pid_start;
    return false;
}

/* Why this HELLO is refused, or NULL. */
static const char *refusal(const struct fleet *f, struct channel_peer from,
                           const struct message_hello *m)
{
    if (m->protocol != PROTOCOL_VERSION)
        return "another protocol version";
    if (m->worker >= f->n || from.worker != m->worker || from.pid != m->pid)
        return "no such worker in this node";
    if (!fingerprint_equal(&m->fingerprint, &f->cfg.fingerprint))
        return "another model or configuration (fingerprints differ)";
    const struct slot *s = &f->slots[m->worker];
    if (s->w.state != FLEET_DOWN && s->w.process.pid != m->pid)
        return "another process serves as this worker";
    if (!is_of_our_store(f, m))
        return "it has no lease in this node's store";
    return NULL;
}

void fleet_on_hello(struct fleet *f, struct channel_peer from, const struct message_hello *m)
{
    const char *why = f->is_stopping ? "the node is stopping" : refusal(f, from, m);
    if (why) {
        log_warn("fleet: HELLO of worker %u (pid %d) refused: %s", from.worker, from.pid, why);
        tell_to_stop(f, from);
        return;
    }
    struct slot *s = &f->slots[m->worker];
    struct process_id p = {.pid = m->pid, .start = m->pid_start};
    if (s->w.state == FLEET_DOWN) {
        if (!watch(s, p))
            return;                  /* gone again */
        s->w.state = FLEET_ADOPTING; /* until it is welcomed: the slot is taken */
        s->w.started_us = s->w.heard_us = clock_now_us();
    }
    struct process_id self = process_self();
    struct message welcome = {.kind = MESSAGE_WELCOME,
                              .as.welcome = {.protocol = PROTOCOL_VERSION,
                                             .router_pid = self.pid,
                                             .router_start = self.start}};
    struct err_info ei = {0};
    if (channel_send(f->cfg.channel, &from, &welcome, &ei) != OK) {
        log_warn("fleet: worker %u cannot be welcomed: %s", from.worker, ei.text);
        return; /* it will say HELLO again */
    }
    bool is_new = s->w.state != FLEET_READY;
    s->w.state = FLEET_READY;
    s->w.lease = m->lease;
    s->w.n_threads = m->n_threads;
    s->w.heard_us = clock_now_us();
    if (is_new) {
        s->was_ready = true;
        f->cfg.on_ready(f->cfg.ctx, s->w.index);
    }
}

bool fleet_heard(struct fleet *f, struct channel_peer from)
{
    if (from.worker >= f->n || f->slots[from.worker].w.process.pid != from.pid)
        return false;
    f->slots[from.worker].w.heard_us = clock_now_us();
    return true;
}

void fleet_on_stats(struct fleet *f, struct channel_peer from, const struct message_stats *m)
{
    if (from.worker < f->n && f->slots[from.worker].w.process.pid == from.pid)
        f->slots[from.worker].w.stats = *m;
}

uint32_t fleet_n_workers(const struct fleet *f)
{
    return f->n;
}

const struct fleet_worker *fleet_worker_at(const struct fleet *f, uint32_t index)
{
    assert(index < f->n);
    return &f->slots[index].w;
}

uint32_t fleet_n_ready(const struct fleet *f)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->n; i++)
        n += f->slots[i].w.state == FLEET_READY;
    return n;
}

bool fleet_has_process(const struct fleet *f)
{
    for (uint32_t i = 0; i < f->n; i++)
        if (f->slots[i].w.state != FLEET_DOWN)
            return true;
    return false;
}

const char *fleet_state_name(enum fleet_state s)
{
    switch (s) {
    case FLEET_DOWN:
        return "dead";
    case FLEET_ADOPTING:
    case FLEET_STARTING:
        return "starting";
    case FLEET_READY:
        return "ready";
    case FLEET_STOPPING:
        return "stopping";
    }
    return "unknown";
}
