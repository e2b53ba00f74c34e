/* Which token comes next? Turns a row of logits into one token and its log-probabilities. Nothing
 * is remembered from row to row, so a token depends on its logits, parameters and position alone.
 * Arithmetic in double: the draw then agrees with the reference but within 1e-6 of a boundary.
 * Knows no sequence, no batch and no model. */
#include "worker/sampler.h"

#include "worker/rng.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const float GREEDY_BELOW = 1e-5F;

struct sampler {
    uint32_t vocab_size;
    float *logits;   /* [vocab_size] a row as changed before temperature */
    double *weights; /* [vocab_size] */
    uint32_t *heap;  /* [vocab_size] ids, the largest logit at the top */
};

enum err sampler_new(uint32_t vocab_size, struct sampler **out, struct err_info *ei)
{
    struct sampler *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(ei, ERR_NOMEM, "sampler: no memory");
    s->vocab_size = vocab_size;
    s->logits = calloc(vocab_size, sizeof *s->logits);
    s->weights = calloc(vocab_size, sizeof *s->weights);
    s->heap = calloc(vocab_size, sizeof *s->heap);
    if (!s->logits || !s->weights || !s->heap) {
        sampler_free(s);
        return err_set(ei, ERR_NOMEM, "sampler: no memory for %u logits", vocab_size);
    }
    *out = s;
    return OK;
}

void sampler_free(struct sampler *s)
{
    if (!s)
        return;
    free(s->logits);
    free(s->weights);
    free(s->heap);
    free(s);
}

uint32_t sampler_argmax(const float *logits, uint32_t n)
{
    uint32_t best = 0;
    float max = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        if (logits[i] > max) {
            max = logits[i];
            best = i;
        }
    }
    return best;
}

/* --- log-probabilities of the raw row ------------------------------------------------------------
 */

static double log_sum_exp(const float *logits, uint32_t n)
{
    float max = logits[sampler_argmax(logits, n)];
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - (double)max);
    /* n >= 1: the maximum alone adds exp(0) */
    return (double)max + log(sum); /* cppcheck-suppress invalidFunctionArg */
}

/* The n_top best by insertion: n_top is small, and most logits fail the first comparison. */
static void top_logprobs(const float *logits, uint32_t n, double lse, struct emitted_token *out)
{
    uint32_t n_top = out->n_top, n_found = 0;
    struct top_logprob *top = out->top; /* logprob holds the logit until the end */
    for (uint32_t i = 0; i < n; i++) {
        if (n_found == n_top && !(logits[i] > top[n_top - 1].logprob))
            continue;
        uint32_t at = n_found < n_top ? n_found++ : n_top - 1;
        for (; at > 0 && logits[i] > top[at - 1].logprob; at--)
            top[at] = top[at - 1];
        top[at] = (struct top_logprob){.token = i, .logprob = logits[i]};
    }
    out->n_top = n_found;
    for (uint32_t i = 0; i < n_found; i++)
        top[i].logprob = (float)((double)top[i].logprob - lse);
}

static void set_logprobs(const struct sampler *s, const float *logits, int32_t n_logprobs,
                         struct emitted_token *out)
{
    out->n_top = 0;
    out->logprob = 0;
    if (n_logprobs < 0)
        return;
    double lse = log_sum_exp(logits, s->vocab_size);
    out->logprob = (float)((double)logits[out->token] - lse);
    out->n_top = n_logprobs < MESSAGE_MAX_TOP_LOGPROBS ? (uint32_t)n_logprobs
                                                       : (uint32_t)MESSAGE_MAX_TOP_LOGPROBS;
    if (out->n_top > s->vocab_size)
        out->n_top = s->vocab_size;
    if (out->n_top > 0)
        top_logprobs(logits, s->vocab_size, lse, out);
}

/* --- truncation ----------------------------------------------------------------------------------
 */

/* a goes before b in descending order; of equal logits the higher id goes first, which is the
 * reference's stable ascending sort read from its end. */
static bool goes_before(const float *logits, uint32_t a, uint32_t b)
{
    if (logits[a] > logits[b])
        return true;
    return a > b && logits[a] >= logits[b];
}

static void sift_down(uint32_t *heap, uint32_t n, uint32_t at, const float *logits)
{
    uint32_t id = heap[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= n)
            break;
        if (child + 1 < n && goes_before(logits, heap[child + 1], heap[child]))
            child++;
        if (!goes_before(logits, heap[child], id))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = id;
}

/* All ids whose weight is not 0 yet, as a heap. */
static uint32_t heap_fill(struct sampler *s, const float *logits)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->vocab_size; i++)
        if (s->weights[i] > 0)
            s->heap[n++] = i;
    for (uint32_t at = n / 2; at-- > 0;)
        sift_down(s->heap, n, at, logits);
    return n;
}

static uint32_t heap_pop(struct sampler *s, uint32_t *n, const float *logits)
{
    assert(*n > 0);
    uint32_t id = s->heap[0];
    s->heap[0] = s->heap[--*n];
    if (*n > 0)
        sift_down(s->heap, *n, 0, logits);
    return id;
}

/* Zeroes the weight of everything that comes after `last` in descending order. */
static void drop_after(struct sampler *s, const float *logits, uint32_t last)
{
    for (uint32_t i = 0; i < s->vocab_size; i++)
        if (i != last && !goes_before(logits, i, last))
            s->weights[i] = 0;
}

static double sum_of(const double *weights, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += weights[i];
    return sum;
}

static void keep_top_k(struct sampler *s, const float *logits, uint32_t k)
{
    uint32_t n = heap_fill(s, logits);
    if (k >= n)
        return;
    uint32_t last = 0;
    for (uint32_t i = 0; i < k; i++)
        last = heap_pop(s, &n, logits);
    while (n > 0 && logits[s->heap[0]] == logits[last])
        last = heap_pop(s, &n, logits);
    drop_after(s, logits, last);
}

/* Going down from the largest, a token stays while the mass above it is below top_p. */
static void keep_top_p(struct sampler *s, const float *logits, double top_p)
{
    double limit = top_p * sum_of(s->weights, s->vocab_size);
    uint32_t n = heap_fill(s, logits);
    if (n == 0)
        return;
    uint32_t last = heap_pop(s, &n, logits);
    double above = s->weights[last];
    while (n > 0 && above < limit) {
        last = heap_pop(s, &n, logits);
        above += s->weights[last];
    }
    drop_after(s, logits, last);
}

const double *sampler_weights(struct sampler *s, const float *logits,
                              const struct sampling_params *params, double *sum)
{
    double max = (double)logits[sampler_argmax(logits, s->vocab_size)];
    double temperature = (double)params->temperature;
    for (uint32_t i = 0; i < s->vocab_size; i++) {
        double w = exp(((double)logits[i] - max) / temperature);
        /* NaN counts as impossible; the largest weight is 1, so min_p compares directly */
        s->weights[i] = w > 0 && w >= (double)params->min_p ? w : 0;
    }
    if (params->top_k > 0 && params->top_k < s->vocab_size)
        keep_top_k(s, logits, params->top_k);
    if (params->top_p < 1)
        keep_top_p(s, logits, (double)params->top_p);
    *sum = sum_of(s->weights, s->vocab_size);
    return s->weights;
}

uint32_t sampler_draw(const double *weights, uint32_t n, double sum, double u)
{
    double target = u * sum, cumulated = 0;
    uint32_t last = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!(weights[i] > 0))
            continue;
        last = i;
        cumulated += weights[i];
        if (cumulated > target)
            break;
    }
    return last; /* rounding may leave the sum a hair below the target: the last possible token */
}

/* --- the whole -----------------------------------------------------------------------------------
 */

/* The row that is sampled from: the raw one, or a changed copy of it. What changes logits before
 * temperature (bans now; bias and penalties later) belongs here. */
static const float *adjusted(struct sampler *s, const float *logits,
                             const struct sampling_params *params, uint32_t n_output)
{
    if (params->ignore_eos || n_output >= params->min_tokens || params->n_stop_ids == 0)
        return logits;
    memcpy(s->logits, logits, s->vocab_size * sizeof *logits);
    for (uint32_t i = 0; i < params->n_stop_ids; i++)
        if (params->stop_ids[i] < s->vocab_size)
            s->logits[params->stop_ids[i]] = -INFINITY;
    return s->logits;
}

void sampler_choose(struct sampler *s, const float *logits, const struct sampling_params *params,
                    uint32_t n_output, uint32_t position, struct emitted_token *out)
{
    const float *row = adjusted(s, logits, params, n_output);
    if (params->temperature < GREEDY_BELOW) {
        out->token = sampler_argmax(row, s->vocab_size);
    } else {
        struct rng_counter counter = {
            .seed = params->seed, .choice = params->choice, .position = position, .draw = 0};
        double sum;
        const double *weights = sampler_weights(s, row, params, &sum);
        out->token = sampler_draw(weights, s->vocab_size, sum, rng_uniform(&counter));
    }
    set_logprobs(s, logits, params->n_logprobs, out);
}
