#pragma once
#include "config/base/err.h"

#include <stdint.h>

/* Rotary position embedding over adjacent pairs, as GGUF's llama tensors are laid out:
 * (x[2i], x[2i+1]) is turned by position / scale * base^(-2i/dim) / factor[i]. Angles and their
 * cosines are computed in double and rounded once. Source: Su et al. 2021, RoFormer. */

struct rope_table; /* cosines and sines; immutable after rope_table_new */

struct rope_config {
    uint32_t head_dim;    /* values of a head */
    uint32_t rope_dim;    /* rotated ones: the first rope_dim, even, <= head_dim */
    uint32_t n_positions; /* tabulated; positions beyond are computed when met, to the same bits */
    float base;
    float scale;          /* positions are divided by it; > 0 */
    const float *factors; /* [rope_dim / 2] divisors of the frequencies, or NULL; copied */
};

/* Errors: NOMEM. */
NODISCARD enum err rope_table_new(const struct rope_config *cfg, struct rope_table **out,
                                  struct err_info *ei);
void rope_table_free(struct rope_table *t); /* NULL is legal */

/* Turns n_heads consecutive heads of x, in place. Any thread. */
void rope_table_apply(const struct rope_table *t, uint32_t position, float *x, uint32_t n_heads);
