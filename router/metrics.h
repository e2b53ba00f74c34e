#pragma once
#include "config/base/bytes.h"
#include "config/base/err.h"

#include <stdint.h>

/* Counters and histograms of the router, written by whoever sees the event, rendered as Prometheus
 * text. vLLM's names where they exist (vllm:...), kvnode_* else. One owner thread. */

struct metrics;

enum metrics_finish {
    METRICS_FINISH_STOP,
    METRICS_FINISH_LENGTH,
    METRICS_FINISH_ABORT, /* the client went away */
    METRICS_FINISH_ERROR,
    METRICS_N_FINISH,
};

NODISCARD enum err metrics_new(const char *model_name, struct metrics **out);
void metrics_free(struct metrics *m);

/* HTTP answers by route pattern and status. */
void metrics_http(struct metrics *m, const char *route, int status);
void metrics_request_finished(struct metrics *m, enum metrics_finish why, uint32_t n_prompt,
                              uint32_t n_cached, uint32_t n_output);
/* All times in microseconds. */
void metrics_time_to_first_token(struct metrics *m, uint64_t us);
void metrics_inter_token(struct metrics *m, uint64_t us);
void metrics_end_to_end(struct metrics *m, uint64_t us);
void metrics_worker_restarted(struct metrics *m, uint32_t worker);
void metrics_retried(struct metrics *m);

/* Sums for `kvctl status`. */
struct metrics_totals {
    uint64_t n_finished, n_failed, n_aborted, n_retried;
};
void metrics_totals(const struct metrics *m, struct metrics_totals *out);

/* Appends the router's own families (HELP, TYPE, samples). */
void metrics_render(const struct metrics *m, struct bytes *out);
