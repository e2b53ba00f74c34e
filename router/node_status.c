/* What does the node say of itself? `kvctl status` and /metrics, from memory: the fleet's slots,
 * the store's counters, the router's own. Asks no worker, so it answers whatever they do. */
#include "config/base/clock.h"
#include "config/version.h"
#include "prefixcache/kv_store.h"
#include "router/api/api.h"
#include "router/dispatch.h"
#include "router/fleet.h"
#include "router/metrics.h"
#include "router/node_state.h"

#include <stdio.h>
#include <unistd.h>

bool node_is_ready(const struct node *n)
{
    return n->phase != NODE_STOPPING && !n->is_draining && fleet_n_ready(n->fleet) > 0;
}

const char *node_state_name(const struct node *n)
{
    if (n->phase == NODE_STOPPING)
        return "stopping";
    if (n->phase == NODE_LOADING && fleet_n_ready(n->fleet) == 0)
        return "loading";
    if (n->is_draining)
        return "draining";
    return fleet_n_ready(n->fleet) > 0 ? "ready" : "unready";
}

static const char *phase_name(enum worker_phase p)
{
    switch (p) {
    case PHASE_STARTING:
        return "starting";
    case PHASE_IDLE:
        return "idle";
    case PHASE_STEP:
        return "step";
    case PHASE_STOPPING:
        return "stopping";
    }
    return "unknown";
}

static json_t *worker_json(struct node *n, uint32_t index)
{
    const struct fleet_worker *w = fleet_worker_at(n->fleet, index);
    struct worker_pulse pulse = {0};
    bool has_pulse = w->lease != KV_LEASE_NONE && kv_store_read_pulse(n->store, w->lease, &pulse);
    return json_pack(
        "{s:i,s:i,s:s,s:i,s:i,s:i,s:i,s:s,s:I,s:i,s:I,s:o}", "index", (int)index, "pid",
        (int)w->process.pid, "state", fleet_state_name(w->state), "restarts", (int)w->n_restarts,
        "running", (int)w->stats.n_running, "waiting", (int)w->stats.n_waiting, "in_flight",
        (int)dispatch_load(n->dispatch, index).n_in_flight, "phase",
        has_pulse ? phase_name(pulse.phase) : "none", "step", (json_int_t)pulse.step, "threads",
        (int)w->n_threads, "preemptions", (json_int_t)w->stats.n_preemptions, "last_exit",
        w->last_exit[0] ? json_string(w->last_exit) : json_null());
}

static json_t *workers_json(struct node *n)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < fleet_n_workers(n->fleet); i++)
        if (json_array_append_new(list, worker_json(n, i)) != 0)
            break;
    return list;
}

static json_t *kv_json(struct node *n)
{
    struct kv_store_stats s;
    kv_store_get_stats(n->store, &s);
    uint32_t block_size = kv_store_block_size(n->store);
    return json_pack("{s:i,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:b,s:I,s:I,s:I,s:{s:I,s:I}}", "block_size",
                     (int)block_size, "blocks", (json_int_t)s.n_blocks, "free",
                     (json_int_t)s.n_free, "filling", (json_int_t)s.n_filling, "ready",
                     (json_int_t)s.n_ready, "pinned", (json_int_t)s.n_pinned, "tokens",
                     (json_int_t)s.n_blocks * block_size, "bytes",
                     (json_int_t)s.n_blocks * (json_int_t)kv_store_block_bytes(n->store),
                     "huge_pages", (int)s.has_huge_pages, "published", (json_int_t)s.n_published,
                     "evicted", (json_int_t)s.n_evicted, "rebuilds", (json_int_t)s.n_rebuilds,
                     "prompt_tokens", "computed", (json_int_t)s.prompt_tokens[KV_SOURCE_COMPUTED],
                     "host", (json_int_t)s.prompt_tokens[KV_SOURCE_HOST]);
}

json_t *node_status_json(struct node *n)
{
    char address[300];
    (void)snprintf(address, sizeof address, "%s:%u", n->config->host, api_port(n->api));
    struct metrics_totals t;
    metrics_totals(n->metrics, &t);
    return json_pack(
        "{s:b,s:{s:s,s:s,s:i,s:f,s:s,s:s,s:s,s:s,s:i},s:o,s:o,s:{s:i,s:I,s:I,s:I,s:I}}", "ok", 1,
        "node", "name", n->config->name, "version", KVNODE_VERSION, "pid", (int)getpid(),
        "uptime_s", (double)(clock_now_us() - n->started_us) * 1e-6, "state", node_state_name(n),
        "address", address, "model", n->config->served_model_name, "isa", n->config->isa,
        "max_context", (int)n->model.max_context, "workers", workers_json(n), "kv", kv_json(n),
        "requests", "active", (int)api_n_active(n->api), "finished", (json_int_t)t.n_finished,
        "failed", (json_int_t)t.n_failed, "retried", (json_int_t)t.n_retried, "aborted",
        (json_int_t)t.n_aborted);
}

static void gauge(struct bytes *out, const char *name, const char *help, double value)
{
    bytes_printf(out, "# HELP %s %s\n# TYPE %s gauge\n%s %.10g\n", name, help, name, name, value);
}

static void counter(struct bytes *out, const char *name, const char *help, uint64_t value)
{
    bytes_printf(out, "# HELP %s %s\n# TYPE %s counter\n%s %llu\n", name, help, name, name,
                 (unsigned long long)value);
}

static void store_metrics(struct node *n, struct bytes *out)
{
    struct kv_store_stats s;
    kv_store_get_stats(n->store, &s);
    bytes_append_str(out, "# HELP kvnode_kv_blocks Blocks of the node's KV pool by state; pinned "
                          "ones are ready and in use.\n# TYPE kvnode_kv_blocks gauge\n");
    bytes_printf(out, "kvnode_kv_blocks{state=\"free\"} %u\n", s.n_free);
    bytes_printf(out, "kvnode_kv_blocks{state=\"filling\"} %u\n", s.n_filling);
    bytes_printf(out, "kvnode_kv_blocks{state=\"ready\"} %u\n", s.n_ready);
    bytes_printf(out, "kvnode_kv_blocks{state=\"pinned\"} %u\n", s.n_pinned);
    gauge(out, "vllm:kv_cache_usage_perc",
          "Share of KV blocks that running requests hold (0 to 1).",
          s.n_blocks ? (double)(s.n_filling + s.n_pinned) / s.n_blocks : 0);
    bytes_append_str(out, "# HELP kvnode_prompt_tokens_total Prompt tokens by where their KV came "
                          "from, counted once, at admission.\n"
                          "# TYPE kvnode_prompt_tokens_total counter\n");
    bytes_printf(out, "kvnode_prompt_tokens_total{source=\"computed\"} %llu\n",
                 (unsigned long long)s.prompt_tokens[KV_SOURCE_COMPUTED]);
    bytes_printf(out, "kvnode_prompt_tokens_total{source=\"host\"} %llu\n",
                 (unsigned long long)s.prompt_tokens[KV_SOURCE_HOST]);
    uint64_t hits = s.prompt_tokens[KV_SOURCE_HOST];
    counter(out, "vllm:prefix_cache_queries_total", "Prompt tokens looked up in the KV store.",
            hits + s.prompt_tokens[KV_SOURCE_COMPUTED]);
    counter(out, "vllm:prefix_cache_hits_total", "Prompt tokens found in the KV store.", hits);
    counter(out, "kvnode_kv_blocks_published_total", "Blocks that became ready.", s.n_published);
    counter(out, "kvnode_kv_blocks_evicted_total", "Ready blocks given up for room.", s.n_evicted);
    counter(out, "kvnode_kv_rebuilds_total", "Index rebuilds after a process died in the store.",
            s.n_rebuilds);
}

static void worker_metrics(struct node *n, struct bytes *out)
{
    static const char *const heads[] = {
        "# HELP kvnode_worker_up Worker is ready (1) or not (0).\n# TYPE kvnode_worker_up gauge\n",
        "# HELP kvnode_worker_restarts_total Deaths of this worker since the router started.\n"
        "# TYPE kvnode_worker_restarts_total counter\n",
        "# HELP kvnode_worker_steps_total Steps this worker process has run.\n"
        "# TYPE kvnode_worker_steps_total counter\n",
        "# HELP kvnode_worker_preemptions_total Sequences preempted when blocks ran out.\n"
        "# TYPE kvnode_worker_preemptions_total counter\n",
    };
    for (size_t f = 0; f < sizeof heads / sizeof *heads; f++) {
        bytes_append_str(out, heads[f]);
        for (uint32_t i = 0; i < fleet_n_workers(n->fleet); i++) {
            const struct fleet_worker *w = fleet_worker_at(n->fleet, i);
            uint64_t values[] = {w->state == FLEET_READY, w->n_restarts, w->stats.n_steps,
                                 w->stats.n_preemptions};
            static const char *const names[] = {"kvnode_worker_up", "kvnode_worker_restarts_total",
                                                "kvnode_worker_steps_total",
                                                "kvnode_worker_preemptions_total"};
            bytes_printf(out, "%s{worker=\"%u\"} %llu\n", names[f], i,
                         (unsigned long long)values[f]);
        }
    }
}

void node_status_metrics(struct node *n, struct bytes *out)
{
    struct dispatch_load load = dispatch_load(n->dispatch, UINT32_MAX);
    gauge(out, "vllm:num_requests_running", "Requests admitted by a worker and not ended.",
          load.n_in_flight - load.n_waiting);
    gauge(out, "vllm:num_requests_waiting", "Requests that no worker has admitted yet.",
          load.n_waiting);
    gauge(out, "kvnode_ready", "1 when /readyz says 200.", node_is_ready(n));
    gauge(out, "kvnode_http_active_requests", "HTTP requests not answered whole.",
          api_n_active(n->api));
    counter(out, "kvnode_unknown_fields_total",
            "Fields of request bodies that nobody knows and that were ignored.",
            api_n_unknown_fields(n->api));
    store_metrics(n, out);
    worker_metrics(n, out);
    metrics_render(n->metrics, out);
}
