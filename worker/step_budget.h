#pragma once
#include <stdint.h>

/* How many tokens may a step compute? As many as take about the target time on this machine, learnt
 * from the steps that were: a long prompt then never holds up decoding streams, nor the worker's
 * heartbeat, for long, however slow the machine. Answers do not depend on it (DESIGN §6). Pure;
 * caller's storage. */

struct step_budget {
    uint32_t max_tokens; /* never more than this */
    double target_us;
    double us_per_token; /* of wide steps, exponentially averaged; 0 = none seen yet */
};

enum {
    STEP_BUDGET_FIRST = 64, /* until a wide step has been timed */
    STEP_BUDGET_LEAST = 32,
};

void step_budget_init(struct step_budget *b, uint32_t max_tokens, uint64_t target_us);
/* At least 1, at most max_tokens. */
uint32_t step_budget_tokens(const struct step_budget *b);
/* A step of n_tokens rows took so long. Narrow ones say nothing of prefill and are ignored. */
void step_budget_observe(struct step_budget *b, uint32_t n_tokens, uint64_t took_us);
