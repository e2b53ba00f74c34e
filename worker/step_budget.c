/* How wide may the next step be? Target time over measured time a token, within fixed bounds. Knows
 * no clock: it is told what steps took. */
#include "worker/step_budget.h"

enum { WIDE_TOKENS = 24 };

void step_budget_init(struct step_budget *b, uint32_t max_tokens, uint64_t target_us)
{
    *b = (struct step_budget){.max_tokens = max_tokens, .target_us = (double)target_us};
}

uint32_t step_budget_tokens(const struct step_budget *b)
{
    double n = b->us_per_token > 0 ? b->target_us / b->us_per_token : STEP_BUDGET_FIRST;
    if (n < STEP_BUDGET_LEAST)
        n = STEP_BUDGET_LEAST;
    return n < b->max_tokens ? (uint32_t)n : b->max_tokens;
}

void step_budget_observe(struct step_budget *b, uint32_t n_tokens, uint64_t took_us)
{
    if (n_tokens < WIDE_TOKENS)
        return;
    double us_per_token = (double)took_us / n_tokens;
    b->us_per_token = b->us_per_token > 0 ? 0.5 * (b->us_per_token + us_per_token) : us_per_token;
}
