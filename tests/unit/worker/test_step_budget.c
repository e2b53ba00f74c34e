/* Is a step as wide as its time allows? Expected widths are target / time a token, by hand. */
#include "worker/step_budget.h"

#include <criterion/criterion.h>

TestSuite(step_budget, .timeout = 5);

static struct step_budget budget;

static void setup(void)
{
    step_budget_init(&budget, 512, 250000);
}

Test(step_budget, is_cautious_until_a_wide_step_was_timed, .init = setup)
{
    cr_assert_eq(step_budget_tokens(&budget), STEP_BUDGET_FIRST);
    step_budget_observe(&budget, 1, 10000); /* a decode says nothing of prefill */
    cr_assert_eq(step_budget_tokens(&budget), STEP_BUDGET_FIRST);
}

Test(step_budget, follows_the_measured_pace, .init = setup)
{
    step_budget_observe(&budget, 64, 64 * 1000); /* 1 ms a token: 250 fit */
    cr_assert_eq(step_budget_tokens(&budget), 250);
    step_budget_observe(&budget, 250, 250 * 3000); /* mean of 1 and 3 ms: 125 fit */
    cr_assert_eq(step_budget_tokens(&budget), 125);
}

Test(step_budget, stays_within_its_bounds, .init = setup)
{
    step_budget_observe(&budget, 64, 64); /* a microsecond a token */
    cr_assert_eq(step_budget_tokens(&budget), 512);
    step_budget_observe(&budget, 64, UINT64_C(3600) * 1000000);
    cr_assert_eq(step_budget_tokens(&budget), STEP_BUDGET_LEAST);
    step_budget_init(&budget, 8, 250000); /* a configured maximum wins over the least */
    cr_assert_eq(step_budget_tokens(&budget), 8);
}
