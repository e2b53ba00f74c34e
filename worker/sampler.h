#pragma once
#include "config/base/err.h"
#include "ipc/message.h"

#include <stdint.h>

/* From a row of logits to a token. Definitions (the order of vLLM V1): log-probabilities are taken
 * from the raw logits; then what changes logits (stop ids banned by min_tokens); then temperature,
 * min_p on the softmax, top_k (ties at the k-th are all kept), top_p (the smallest set of the
 * largest whose mass reaches it; of equal logits the higher id stays); the token is drawn by the
 * inverse CDF over ids ascending. Temperature below 1e-5 is greedy: the largest logit, lowest id on
 * ties. A pure function of its input: the scratch is only room. One owner thread. */

struct sampler;

NODISCARD enum err sampler_new(uint32_t vocab_size, struct sampler **out, struct err_info *ei);
void sampler_free(struct sampler *s); /* NULL is legal */

/* Chooses the token at absolute position `position`, of which n_output output tokens came before
 * it. logits: [vocab_size]. out->top: room for params->n_logprobs entries, the caller's; n_top and
 * logprob are set (0 when n_logprobs < 0). Allocates nothing. Cannot fail. */
void sampler_choose(struct sampler *s, const float *logits, const struct sampling_params *params,
                    uint32_t n_output, uint32_t position, struct emitted_token *out);

/* The parts of it, as pure functions; tests hold them against the reference. */

/* Final probabilities [vocab_size] in double, not normalised: returns their sum. 0 where dropped.
 * The array is the sampler's, valid until its next call. */
const double *sampler_weights(struct sampler *s, const float *logits,
                              const struct sampling_params *params, double *sum);
/* First id whose cumulative weight exceeds u * sum; u in [0, 1). */
uint32_t sampler_draw(const double *weights, uint32_t n, double sum, double u);
/* Largest logit, lowest id on ties; NaN is never chosen over a number. */
uint32_t sampler_argmax(const float *logits, uint32_t n);
