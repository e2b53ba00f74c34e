/* Is what /metrics says well-formed and true? The text is checked against the Prometheus exposition
 * format (version 0.0.4): cumulative buckets, +Inf equal to the count, one HELP and TYPE a family.
 */
#include "router/metrics.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static struct metrics *m;
static struct bytes text;

static void setup(void)
{
    cr_assert_eq(metrics_new("a \"quoted\\\" model", &m), OK);
    text = (struct bytes){0};
}

static void teardown(void)
{
    bytes_fini(&text);
    metrics_free(m);
}

TestSuite(metrics, .init = setup, .fini = teardown, .timeout = 5);

static bool says(const char *line)
{
    bytes_clear(&text);
    metrics_render(m, &text);
    bytes_append_nul(&text);
    cr_assert_not(text.failed);
    return strstr(text.data, line) != NULL;
}

#define MODEL "model_name=\"a \\\"quoted\\\\\\\" model\""

Test(metrics, histogram_buckets_are_cumulative_and_end_in_the_count)
{
    metrics_time_to_first_token(m, 3000);     /* 3 ms: le 0.005 */
    metrics_time_to_first_token(m, 5000);     /* on the bound: le includes it */
    metrics_time_to_first_token(m, 90000000); /* past all bounds */
    cr_assert(says("vllm:time_to_first_token_seconds_bucket{" MODEL ",le=\"0.001\"} 0\n"));
    cr_assert(says("vllm:time_to_first_token_seconds_bucket{" MODEL ",le=\"0.005\"} 2\n"));
    cr_assert(says("vllm:time_to_first_token_seconds_bucket{" MODEL ",le=\"40\"} 2\n"));
    cr_assert(says("vllm:time_to_first_token_seconds_bucket{" MODEL ",le=\"+Inf\"} 3\n"));
    cr_assert(says("vllm:time_to_first_token_seconds_count{" MODEL "} 3\n"));
    cr_assert(says("vllm:time_to_first_token_seconds_sum{" MODEL "} 90.008000\n"));
}

Test(metrics, finished_requests_count_by_reason_and_tokens_add_up)
{
    metrics_request_finished(m, METRICS_FINISH_STOP, 100, 96, 10);
    metrics_request_finished(m, METRICS_FINISH_ABORT, 50, 0, 3);
    cr_assert(says("vllm:request_success_total{" MODEL ",finished_reason=\"stop\"} 1\n"));
    cr_assert(says("vllm:request_success_total{" MODEL ",finished_reason=\"abort\"} 1\n"));
    cr_assert(says("vllm:prompt_tokens_total{" MODEL "} 150\n"));
    cr_assert(says("vllm:generation_tokens_total{" MODEL "} 13\n"));
    cr_assert(says("kvnode_cached_prompt_tokens_total{" MODEL "} 96\n"));
    struct metrics_totals t;
    metrics_totals(m, &t);
    cr_assert_eq(t.n_finished, 1);
    cr_assert_eq(t.n_aborted, 1);
}

Test(metrics, answers_count_by_route_and_status)
{
    metrics_http(m, "/v1/models", 200);
    metrics_http(m, "/v1/models", 200);
    metrics_http(m, "/v1/models", 404);
    metrics_http(m, "/livez", 200);
    cr_assert(says("kvnode_http_responses_total{route=\"/v1/models\",status=\"200\"} 2\n"));
    cr_assert(says("kvnode_http_responses_total{route=\"/v1/models\",status=\"404\"} 1\n"));
    cr_assert(says("kvnode_http_responses_total{route=\"/livez\",status=\"200\"} 1\n"));
}

Test(metrics, more_routes_than_there_is_room_for_lose_no_memory)
{
    char route[32];
    for (int i = 0; i < 100; i++) {
        (void)snprintf(route, sizeof route, "/route/%d", i);
        metrics_http(m, route, 100 + i);
    }
    for (int status = 100; status < 200; status++)
        metrics_http(m, "/route/0", status);
    cr_assert(says("kvnode_http_responses_total{route=\"/route/0\",status=\"100\"} 2\n"));
}
