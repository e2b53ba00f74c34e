/* kvnode-worker: one process that makes tokens. Started by the router with the flags that give it
 * the router's own configuration (node_config_to_argv, isa and threads resolved) and with
 *
 *   KVNODE_WORKER_INDEX   0.., its place in the node, the tag of its lease
 *
 * It opens the model, attaches the node's store (another fingerprint is refused), greets the router
 * of that name and serves it, and every later one of the name, until STOP, SIGTERM, or
 * worker.orphan_grace_s without a router: the last one out then clears the node's things away.
 * SIGINT and SIGHUP are the router's to decide: a terminal sends them to the whole group. */
#include "config/base/clock.h"
#include "config/base/log.h"
#include "config/node_config.h"
#include "config/version.h"
#include "ipc/runtime_dir.h"
#include "prefixcache/kv_store.h"
#include "worker/backend/backend.h"
#include "worker/serve.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { MAX_LEASES = 1024, LOCK_WAIT_MS = 1000 };

static volatile sig_atomic_t stop_signal;

struct worker {
    struct node_config config;
    uint32_t index;
    struct runtime_paths paths;
    struct gguf *model;
    struct model_shape shape;
    enum cpu_isa isa;
    struct fingerprint fingerprint;
    struct kv_store *store;
    struct backend *backend;
    struct router_link *link;
};

static void on_stop_signal(int signal_number)
{
    stop_signal = signal_number;
}

static enum err read_index(uint32_t *out, struct err_info *ei)
{
    const char *text = getenv("KVNODE_WORKER_INDEX");
    if (!text)
        return err_set(ei, ERR_PARSE,
                       "KVNODE_WORKER_INDEX is not set: kvnode starts its workers by itself");
    char *end;
    errno = 0;
    unsigned long v = strtoul(text, &end, 10);
    if (errno || end == text || *end || v >= MAX_LEASES)
        return err_set(ei, ERR_PARSE, "KVNODE_WORKER_INDEX: %s is not a number below %d", text,
                       MAX_LEASES);
    *out = (uint32_t)v;
    return OK;
}

static enum err open_model(struct worker *w, struct err_info *ei)
{
    const struct node_config *c = &w->config;
    if (!c->model)
        return err_set(ei, ERR_PARSE, "no model: give the path of a GGUF file");
    if (c->tp != 1)
        return err_set(ei, ERR_UNSUPPORTED, "tp %u: a CPU worker has one rank", c->tp);
    enum err rc = cpu_isa_choose(c->isa, &w->isa, ei);
    if (!rc)
        rc = gguf_open(c->model, &w->model, ei);
    if (!rc)
        rc = model_shape_from_gguf(w->model, &w->shape, ei);
    if (rc)
        return rc;
    struct fingerprint_input in = {.model = w->model,
                                   .kv_format = c->kv.format,
                                   .block_size = c->kv.block_size,
                                   .backend = "cpu",
                                   .isa = w->isa,
                                   .tp = c->tp};
    fingerprint_compute(&in, &w->fingerprint);
    return OK;
}

static enum err open_store(struct worker *w, struct err_info *ei)
{
    const struct node_config *c = &w->config;
    enum err rc = runtime_paths_fill(c->runtime_dir, c->name, &w->paths, ei);
    if (!rc)
        rc = kv_store_attach(w->paths.store, &w->fingerprint, &w->store, ei);
    if (rc)
        return rc;
    size_t block_bytes = c->kv.block_size * model_shape_kv_bytes_per_token(&w->shape, c->kv.format);
    if (kv_store_block_bytes(w->store) != block_bytes)
        return err_set(ei, ERR_UNSUPPORTED, "store %s: blocks of %zu bytes, this model's have %zu",
                       w->paths.store, kv_store_block_bytes(w->store), block_bytes);
    rc = kv_store_lease_open(w->store, process_self(), w->index, ei);
    if (!rc)
        kv_store_pulse(w->store, PHASE_STARTING, 0, clock_now_us());
    return rc;
}

static enum err open_backend(struct worker *w, struct err_info *ei)
{
    const struct node_config *c = &w->config;
    struct backend_config b = {.model = w->model,
                               .shape = &w->shape,
                               .isa = w->isa,
                               .n_threads = c->threads > 0 ? c->threads : 1,
                               .max_batch_tokens = c->scheduler.max_batch_tokens,
                               .max_logit_rows = c->scheduler.max_sequences,
                               .kv_format = c->kv.format,
                               .block_size = c->kv.block_size,
                               .kv_pool = kv_store_data(w->store),
                               .block_bytes = kv_store_block_bytes(w->store)};
    return backend_cpu_open(&b, NULL, NULL, &w->backend, ei);
}

static enum err open_link(struct worker *w, struct err_info *ei)
{
    struct process_id self = process_self();
    struct router_link_config l = {.endpoint = w->paths.endpoint,
                                   .grace_us = w->config.worker.orphan_grace_s * 1000000ULL,
                                   .hello = {.protocol = PROTOCOL_VERSION,
                                             .worker = w->index,
                                             .pid = self.pid,
                                             .pid_start = self.start,
                                             .fingerprint = w->fingerprint,
                                             .lease = kv_store_lease(w->store),
                                             .n_threads = w->config.threads}};
    (void)snprintf(l.hello.isa, sizeof l.hello.isa, "%s", cpu_isa_name(w->isa));
    return router_link_open(&l, clock_now_us(), &w->link, ei);
}

static enum err serve(struct worker *w, enum serve_end *end, struct err_info *ei)
{
    const struct node_config *c = &w->config;
    uint32_t window = w->shape.max_context;
    if (c->max_context > 0 && c->max_context < window)
        window = c->max_context;
    struct serve_config s = {
        .link = w->link,
        .stop_signal = &stop_signal,
        .engine = {.backend = w->backend,
                   .forward = backend_forward,
                   .scheduler = {.store = w->store,
                                 .tag = w->index,
                                 .max_batch_tokens = c->scheduler.max_batch_tokens,
                                 .max_sequences = c->scheduler.max_sequences,
                                 .max_context = window,
                                 .vocab_size = w->shape.vocab_size}}};
    /* until here SIGTERM ended the process at once: there was nothing to finish */
    struct sigaction on_stop = {.sa_handler = on_stop_signal};
    if (sigaction(SIGTERM, &on_stop, NULL) != 0)
        return err_set(ei, ERR_IO, "sigaction: %s", strerror(errno));
    return serve_run(&s, end, ei);
}

static bool somebody_listens(const char *socket_path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    (void)snprintf(a.sun_path, sizeof a.sun_path, "%s", socket_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return true;
    bool is_live = connect(fd, (const struct sockaddr *)&a, sizeof a) == 0 || errno == EAGAIN;
    close(fd);
    return is_live;
}

/* After the grace, our lease closed: no living process holds a lease and no router of this name
 * listens, so what bears the name belongs to nobody. Under the name's lock: a router that starts
 * holds it before it listens, and may have adopted the store already. */
static void clear_away_if_last(const struct worker *w)
{
    int lock_fd;
    struct err_info ei = {0};
    if (runtime_lock_take(&w->paths, LOCK_WAIT_MS, &lock_fd, &ei) != OK) {
        log_info("not cleared up: %s", ei.text);
        return;
    }
    struct kv_lease_info *leases = calloc(MAX_LEASES, sizeof *leases);
    uint32_t n = leases ? kv_store_leases(w->store, leases, MAX_LEASES) : 0;
    bool is_last = leases && !somebody_listens(w->paths.control);
    for (uint32_t i = 0; i < n; i++)
        if (process_is_alive(leases[i].owner))
            is_last = false;
    free(leases);
    if (is_last) {
        log_info("no router came: the node's shared memory and sockets are removed");
        kv_store_remove(w->paths.store);
        (void)unlink(w->paths.control);
        (void)unlink(w->paths.endpoint + strlen("ipc://"));
    }
    runtime_lock_release(&w->paths, lock_fd);
}

static void close_worker(struct worker *w)
{
    router_link_close(w->link);
    backend_close(w->backend);
    kv_store_detach(w->store);
    gguf_close(w->model);
    node_config_fini(&w->config);
}

static enum err run(struct worker *w, struct err_info *ei)
{
    enum serve_end end = SERVE_STOPPED;
    enum err rc = open_model(w, ei);
    if (!rc)
        rc = open_store(w, ei);
    if (!rc)
        rc = open_backend(w, ei);
    if (!rc)
        rc = open_link(w, ei);
    if (!rc)
        rc = serve(w, &end, ei);
    if (w->store && kv_store_lease(w->store) != KV_LEASE_NONE)
        kv_store_lease_close(w->store);
    if (!rc && end == SERVE_ORPHANED)
        clear_away_if_last(w);
    return rc;
}

int main(int argc, char **argv)
{
    struct worker w = {0};
    struct err_info ei = {0};
    enum node_config_action action = NODE_CONFIG_RUN;
    if (node_config_parse(argc, argv, &w.config, &action, &ei) != OK) {
        fprintf(stderr, "kvnode-worker: %s\n", ei.text);
        return 1;
    }
    if (action != NODE_CONFIG_RUN) {
        puts("kvnode-worker " KVNODE_VERSION ": kvnode starts its workers by itself");
        node_config_fini(&w.config);
        return 0;
    }
    if (read_index(&w.index, &ei) != OK) {
        fprintf(stderr, "kvnode-worker: %s\n", ei.text);
        node_config_fini(&w.config);
        return 1;
    }
    char who[32];
    (void)snprintf(who, sizeof who, "worker %u", w.index);
    log_init(who, w.config.log_level);
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    enum err rc = run(&w, &ei);
    if (rc)
        log_error("%s", ei.text);
    close_worker(&w);
    return rc ? 1 : 0;
}
