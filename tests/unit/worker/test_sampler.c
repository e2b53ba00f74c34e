/* Does the sampler choose as the reference does? */
#include "worker/rng.h"
#include "worker/sampler.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

TestSuite(sampler, .timeout = 20);

enum { MAX_VOCAB = 64, LINE_BYTES = 1 << 16 };

/* One row of tests/fixtures/sampling.jsonl: gen_sampling.py (numpy 2.4.6, float64). */
struct golden {
    json_t *row;
    uint32_t n;
    float logits[MAX_VOCAB];
    struct sampling_params params;
};

static double number(const json_t *object, const char *key, double absent)
{
    const json_t *v = json_object_get(object, key);
    return v ? json_number_value(v) : absent;
}

/* False: the row uses an option that this sampler does not have. */
static bool fill(struct golden *g)
{
    static const char *const NOT_HERE[] = {"typical_p", "logit_bias", "repetition_penalty",
                                           "frequency_penalty", "presence_penalty"};
    const json_t *p = json_object_get(g->row, "params");
    for (size_t i = 0; i < sizeof NOT_HERE / sizeof *NOT_HERE; i++)
        if (json_object_get(p, NOT_HERE[i]))
            return false;
    const json_t *logits = json_object_get(g->row, "logits");
    g->n = (uint32_t)json_array_size(logits);
    cr_assert(g->n > 0 && g->n <= MAX_VOCAB);
    for (uint32_t i = 0; i < g->n; i++)
        g->logits[i] = (float)json_number_value(json_array_get(logits, i));
    double top_k = number(p, "top_k", 0);
    g->params = (struct sampling_params){.temperature = (float)number(p, "temperature", 1),
                                         .top_p = (float)number(p, "top_p", 1),
                                         .min_p = (float)number(p, "min_p", 0),
                                         .top_k = top_k > 0 ? (uint32_t)top_k : 0,
                                         .n_logprobs = 5,
                                         .max_tokens = 1};
    return true;
}

static const char *name_of(const struct golden *g)
{
    return json_string_value(json_object_get(g->row, "id"));
}

/* Calls check for each row that applies; returns how many. */
static int for_each_golden(void (*check)(struct golden *g, struct sampler *s))
{
    FILE *f = fopen("tests/fixtures/sampling.jsonl", "r");
    cr_assert_not_null(f);
    char *line = malloc(LINE_BYTES);
    int n = 0;
    while (fgets(line, LINE_BYTES, f)) {
        struct golden g = {.row = json_loads(line, 0, NULL)};
        cr_assert_not_null(g.row);
        if (fill(&g)) {
            struct sampler *s;
            cr_assert_eq(sampler_new(g.n, &s, NULL), OK);
            check(&g, s);
            sampler_free(s);
            n++;
        }
        json_decref(g.row);
    }
    free(line);
    fclose(f);
    return n;
}

static void check_probs(struct golden *g, struct sampler *s)
{
    if (g->params.temperature == 0)
        return; /* greedy has no weights: check_draws covers it */
    double sum;
    const double *w = sampler_weights(s, g->logits, &g->params, &sum);
    const json_t *probs = json_object_get(g->row, "probs");
    bool fragile = json_is_true(json_object_get(g->row, "fragile"));
    for (uint32_t i = 0; i < g->n; i++) {
        double expected = json_number_value(json_array_get(probs, i));
        if (!fragile) /* the fixtures' README: do not test what is kept there */
            cr_assert_float_eq(w[i] / sum, expected, 1e-6, "%s: id %u: %g, reference %g",
                               name_of(g), i, w[i] / sum, expected);
    }
}

static void check_kept(struct golden *g, struct sampler *s)
{
    if (g->params.temperature == 0 || json_is_true(json_object_get(g->row, "fragile")))
        return;
    double sum;
    const double *w = sampler_weights(s, g->logits, &g->params, &sum);
    const json_t *kept = json_object_get(g->row, "kept");
    size_t at = 0;
    for (uint32_t i = 0; i < g->n; i++) {
        bool is_kept = (json_int_t)i == json_integer_value(json_array_get(kept, at));
        at += is_kept;
        cr_assert_eq(w[i] > 0, is_kept, "%s: id %u", name_of(g), i);
    }
    cr_assert_eq(at, json_array_size(kept));
}

static void check_draws(struct golden *g, struct sampler *s)
{
    const json_t *draws = json_object_get(g->row, "draws");
    for (size_t i = 0; i < json_array_size(draws); i++) {
        const json_t *d = json_array_get(draws, i);
        if (!json_is_true(json_array_get(d, 2)) || json_is_true(json_object_get(g->row, "fragile")))
            continue;
        uint32_t token = sampler_argmax(g->logits, g->n);
        if (g->params.temperature > 0) {
            double sum;
            const double *w = sampler_weights(s, g->logits, &g->params, &sum);
            token = sampler_draw(w, g->n, sum, json_number_value(json_array_get(d, 0)));
        }
        cr_assert_eq(token, json_integer_value(json_array_get(d, 1)), "%s: draw %zu: %u",
                     name_of(g), i, token);
    }
}

static void check_logprobs(struct golden *g, struct sampler *s)
{
    struct top_logprob top[5];
    struct emitted_token t = {.top = top};
    sampler_choose(s, g->logits, &g->params, 0, 7, &t);
    const json_t *best = json_object_get(g->row, "raw_logprobs_top5");
    cr_assert_eq(t.n_top, 5);
    for (uint32_t i = 0; i < 5; i++) {
        const json_t *b = json_array_get(best, i);
        cr_assert_eq(top[i].token, json_integer_value(json_array_get(b, 0)), "%s: place %u",
                     name_of(g), i);
        double expected = json_number_value(json_array_get(b, 1));
        cr_assert_float_eq(top[i].logprob, expected, fmax(1e-5, 1e-6 * fabs(expected)));
        if (top[i].token == t.token)
            cr_assert_eq(top[i].logprob, t.logprob);
    }
}

/* 17 of the 29 parameter sets need neither typical_p, nor bias, nor penalties; 7 vectors. */
enum { N_GOLDENS = 7 * 17 };

Test(sampler, probabilities_equal_the_reference)
{
    cr_assert_eq(for_each_golden(check_probs), N_GOLDENS);
}

Test(sampler, keeps_exactly_the_tokens_that_the_reference_keeps)
{
    cr_assert_eq(for_each_golden(check_kept), N_GOLDENS);
}

Test(sampler, draws_the_tokens_that_the_reference_draws)
{
    cr_assert_eq(for_each_golden(check_draws), N_GOLDENS);
}

Test(sampler, logprobs_are_of_the_raw_logits)
{
    cr_assert_eq(for_each_golden(check_logprobs), N_GOLDENS);
}

Test(sampler, greedy_takes_the_lowest_id_on_ties_and_ignores_nan)
{
    const float logits[] = {NAN, 1, 3, NAN, 3, 2};
    cr_assert_eq(sampler_argmax(logits, 6), 2);
}

Test(sampler, survives_logits_that_are_no_numbers)
{
    const float logits[] = {NAN, NAN, NAN, NAN};
    struct sampler *s;
    cr_assert_eq(sampler_new(4, &s, NULL), OK);
    struct top_logprob top[2];
    struct emitted_token t = {.top = top};
    struct sampling_params p = {
        .temperature = 1, .top_p = 0.5F, .top_k = 2, .n_logprobs = 2, .max_tokens = 1};
    sampler_choose(s, logits, &p, 0, 0, &t);
    cr_assert_lt(t.token, 4);
    sampler_free(s);
}

Test(sampler, min_tokens_bans_stop_ids_until_reached)
{
    const float logits[] = {0, 9, 5, 8};
    struct sampler *s;
    cr_assert_eq(sampler_new(4, &s, NULL), OK);
    struct sampling_params p = {.top_p = 1,
                                .min_tokens = 2,
                                .n_logprobs = 0,
                                .max_tokens = 9,
                                .n_stop_ids = 3,
                                .stop_ids = {1, 3, 4000000000U}};
    struct emitted_token t = {0};
    sampler_choose(s, logits, &p, 1, 10, &t);
    cr_assert_eq(t.token, 2);
    sampler_choose(s, logits, &p, 2, 11, &t);
    cr_assert_eq(t.token, 1);
    p.ignore_eos = true; /* stop ids neither stop nor are banned */
    sampler_choose(s, logits, &p, 0, 9, &t);
    cr_assert_eq(t.token, 1);
    sampler_free(s);
}

/* The draw is the inverse CDF of the uniform number that belongs to (seed, choice, position). */
Test(sampler, a_token_depends_on_seed_and_position_alone)
{
    enum { N = 32 };
    float logits[N];
    for (uint32_t i = 0; i < N; i++)
        logits[i] = (float)(i % 7);
    struct sampler *s;
    cr_assert_eq(sampler_new(N, &s, NULL), OK);
    for (uint32_t position = 0; position < 200; position++) {
        struct sampling_params p = {
            .temperature = 0.9F, .top_p = 0.8F, .seed = 77, .n_logprobs = -1, .max_tokens = 1};
        struct emitted_token t = {0};
        sampler_choose(s, logits, &p, position, position, &t);
        struct rng_counter c = {.seed = 77, .position = position};
        double sum;
        const double *w = sampler_weights(s, logits, &p, &sum);
        cr_assert_eq(t.token, sampler_draw(w, N, sum, rng_uniform(&c)));
    }
    sampler_free(s);
}
