/* What has the router seen? Plain counters and fixed-bucket histograms in one struct, rendered as
 * Prometheus text without asking anybody. vLLM's metric names where they exist. */
#include "router/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROUTES = 24, MAX_STATUSES = 16, MAX_BUCKETS = 20, MODEL_NAME_BYTES = 256 };

struct histogram {
    const double *bounds; /* seconds, ascending */
    uint32_t n_bounds;
    uint64_t counts[MAX_BUCKETS + 1]; /* the last one is +Inf's */
    uint64_t sum_us, n;
};

struct route_counts {
    char route[64];
    int status[MAX_STATUSES];
    uint64_t counts[MAX_STATUSES];
};

struct metrics {
    char model_label[2 * MODEL_NAME_BYTES]; /* escaped for a label value */
    struct route_counts routes[MAX_ROUTES];
    uint64_t finished[METRICS_N_FINISH];
    uint64_t n_prompt, n_cached, n_output, n_restarts, n_retried;
    struct histogram first_token, inter_token, end_to_end;
};

static const double FIRST_TOKEN_BOUNDS[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25,
                                            0.5,   0.75,  1,    2.5,  5,    7.5,  10,   20,  40};
static const double INTER_TOKEN_BOUNDS[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1,
                                            0.15,  0.2,    0.3,   0.4,  0.5,   0.75, 1,     2.5};
static const double END_TO_END_BOUNDS[] = {0.05, 0.1, 0.3, 0.5, 0.8, 1,  1.5, 2,
                                           2.5,  5,   10,  15,  20,  30, 60,  120};

#define BOUNDS(array) .bounds = (array), .n_bounds = sizeof(array) / sizeof *(array)

static void escape_label(const char *s, char *out, size_t out_bytes)
{
    size_t n = 0;
    for (; *s && n + 3 < out_bytes; s++) {
        if (*s == '"' || *s == '\\')
            out[n++] = '\\';
        out[n++] = *s == '\n' ? ' ' : *s;
    }
    out[n] = '\0';
}

enum err metrics_new(const char *model_name, struct metrics **out)
{
    struct metrics *m = calloc(1, sizeof *m);
    if (!m)
        return ERR_NOMEM;
    escape_label(model_name, m->model_label, sizeof m->model_label);
    m->first_token = (struct histogram){BOUNDS(FIRST_TOKEN_BOUNDS)};
    m->inter_token = (struct histogram){BOUNDS(INTER_TOKEN_BOUNDS)};
    m->end_to_end = (struct histogram){BOUNDS(END_TO_END_BOUNDS)};
    *out = m;
    return OK;
}

void metrics_free(struct metrics *m)
{
    free(m);
}

void metrics_http(struct metrics *m, const char *route, int status)
{
    for (int i = 0; i < MAX_ROUTES; i++) {
        struct route_counts *r = &m->routes[i];
        if (r->route[0] && strcmp(r->route, route) != 0)
            continue;
        if (!r->route[0])
            (void)snprintf(r->route, sizeof r->route, "%s", route);
        for (int j = 0; j < MAX_STATUSES; j++) {
            if (r->status[j] && r->status[j] != status)
                continue;
            r->status[j] = status;
            r->counts[j]++;
            return;
        }
        return;
    }
}

void metrics_request_finished(struct metrics *m, enum metrics_finish why, uint32_t n_prompt,
                              uint32_t n_cached, uint32_t n_output)
{
    m->finished[why]++;
    m->n_prompt += n_prompt;
    m->n_cached += n_cached;
    m->n_output += n_output;
}

static void observe(struct histogram *h, uint64_t us)
{
    double s = (double)us * 1e-6;
    uint32_t i = 0;
    while (i < h->n_bounds && s > h->bounds[i])
        i++;
    h->counts[i]++;
    h->sum_us += us;
    h->n++;
}

void metrics_time_to_first_token(struct metrics *m, uint64_t us)
{
    observe(&m->first_token, us);
}

void metrics_inter_token(struct metrics *m, uint64_t us)
{
    observe(&m->inter_token, us);
}

void metrics_end_to_end(struct metrics *m, uint64_t us)
{
    observe(&m->end_to_end, us);
}

void metrics_worker_restarted(struct metrics *m, uint32_t worker)
{
    (void)worker; /* kvnode_worker_restarts_total carries the index, from the fleet */
    m->n_restarts++;
}

void metrics_retried(struct metrics *m)
{
    m->n_retried++;
}

void metrics_totals(const struct metrics *m, struct metrics_totals *out)
{
    *out = (struct metrics_totals){
        .n_finished = m->finished[METRICS_FINISH_STOP] + m->finished[METRICS_FINISH_LENGTH],
        .n_failed = m->finished[METRICS_FINISH_ERROR],
        .n_aborted = m->finished[METRICS_FINISH_ABORT],
        .n_retried = m->n_retried,
    };
}

static void family(struct bytes *out, const char *name, const char *type, const char *help)
{
    bytes_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void counter(const struct metrics *m, struct bytes *out, const char *name, const char *help,
                    uint64_t value)
{
    family(out, name, "counter", help);
    bytes_printf(out, "%s{model_name=\"%s\"} %llu\n", name, m->model_label,
                 (unsigned long long)value);
}

static void render_histogram(const struct metrics *m, struct bytes *out, const char *name,
                             const char *help, const struct histogram *h)
{
    family(out, name, "histogram", help);
    uint64_t n = 0;
    for (uint32_t i = 0; i < h->n_bounds; i++) {
        n += h->counts[i];
        bytes_printf(out, "%s_bucket{model_name=\"%s\",le=\"%g\"} %llu\n", name, m->model_label,
                     h->bounds[i], (unsigned long long)n);
    }
    bytes_printf(out, "%s_bucket{model_name=\"%s\",le=\"+Inf\"} %llu\n", name, m->model_label,
                 (unsigned long long)h->n);
    bytes_printf(out, "%s_sum{model_name=\"%s\"} %.6f\n", name, m->model_label,
                 (double)h->sum_us * 1e-6);
    bytes_printf(out, "%s_count{model_name=\"%s\"} %llu\n", name, m->model_label,
                 (unsigned long long)h->n);
}

static void render_http(const struct metrics *m, struct bytes *out)
{
    family(out, "kvnode_http_responses_total", "counter", "HTTP answers by route and status.");
    for (int i = 0; i < MAX_ROUTES && m->routes[i].route[0]; i++)
        for (int j = 0; j < MAX_STATUSES && m->routes[i].status[j]; j++)
            bytes_printf(out, "kvnode_http_responses_total{route=\"%s\",status=\"%d\"} %llu\n",
                         m->routes[i].route, m->routes[i].status[j],
                         (unsigned long long)m->routes[i].counts[j]);
}

void metrics_render(const struct metrics *m, struct bytes *out)
{
    static const char *const reasons[METRICS_N_FINISH] = {"stop", "length", "abort", "error"};
    render_http(m, out);
    family(out, "vllm:request_success_total", "counter", "Requests that ended, by reason.");
    for (int i = 0; i < METRICS_N_FINISH; i++)
        bytes_printf(out,
                     "vllm:request_success_total{model_name=\"%s\",finished_reason=\"%s\"} %llu\n",
                     m->model_label, reasons[i], (unsigned long long)m->finished[i]);
    counter(m, out, "vllm:prompt_tokens_total", "Prompt tokens of ended requests.", m->n_prompt);
    counter(m, out, "vllm:generation_tokens_total", "Tokens generated by ended requests.",
            m->n_output);
    counter(m, out, "kvnode_cached_prompt_tokens_total",
            "Prompt tokens of ended requests that came from the KV store.", m->n_cached);
    counter(m, out, "kvnode_requests_retried_total",
            "Requests sent to a second worker after the first one died.", m->n_retried);
    counter(m, out, "kvnode_worker_deaths_total", "Worker processes that died and were restarted.",
            m->n_restarts);
    render_histogram(m, out, "vllm:time_to_first_token_seconds",
                     "From request received to first token.", &m->first_token);
    render_histogram(m, out, "vllm:inter_token_latency_seconds", "Between tokens of one request.",
                     &m->inter_token);
    render_histogram(m, out, "vllm:e2e_request_latency_seconds",
                     "From request received to its end.", &m->end_to_end);
}
