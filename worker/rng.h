#pragma once
#include <stdint.h>

/* Randomness without state: a number is a pure function of what it is for, so a sequence that was
 * preempted, retried or batched otherwise draws the same numbers. Any thread.
 * Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (Philox4x32-10). */

struct rng_counter {
    uint64_t seed;     /* of the request */
    uint32_t choice;   /* index of the choice (OpenAI's n) */
    uint32_t position; /* absolute position of the token to be chosen */
    uint32_t draw;     /* number of the draw at that position: 0 for the token itself */
};

/* One Philox4x32-10 block. */
void rng_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* Uniform in [0, 1), 53 bits. */
double rng_uniform(const struct rng_counter *c);
