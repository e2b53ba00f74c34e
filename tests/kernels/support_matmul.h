#pragma once
#include "worker/cpu/matmul.h"

#include <stdbool.h>
#include <stddef.h>

/* Cases, oracles and a driver for the tests of matmul. */

/* Numbers from a seed: splitmix64 (Steele, Lea, Flood 2014). */
struct random {
    uint64_t state;
};
uint32_t random_below(struct random *r, uint32_t n);
float random_float(struct random *r); /* [-1, 1) */

/* A matrix and its inputs; everything owned. */
struct matmul_case {
    enum tensor_type type;
    uint32_t n_out, n_in, n_rows;
    unsigned char *w; /* GGUF rows: random values, scales of either sign */
    float *x;         /* [n_rows][n_in]; block magnitudes differ, some blocks are zeros */
};
struct matmul_case matmul_case_make(enum tensor_type type, uint32_t n_out, uint32_t n_in,
                                    uint32_t n_rows, uint64_t seed);
void matmul_case_fini(struct matmul_case *c);

/* y [n_rows][n_out] of the case's first n_rows rows; caller frees. Fails the test if y's padding
 * is touched. split: a seed for cutting rows and outputs as threads would, 0 = one call each. */
float *matmul_case_run(const struct matmul_case *c, enum cpu_isa isa, uint32_t n_rows,
                       uint64_t split);

bool type_is_quantised(enum tensor_type type);

/* The activations as quantised weights meet them, by the definition in worker/cpu/matmul_impl.h. */
void oracle_quantise(const float *x, size_t n, int *q, float *d);
/* sum x w in double over dequantised weights, and the sum of |x w|. */
double oracle_dot(const struct matmul_case *c, const float *x, uint32_t o, double *magnitude);
/* The arithmetic of quantised weights for one output, one scalar operation after another. */
float oracle_quantised(const struct matmul_case *c, const float *x, uint32_t o);
