#pragma once
#include "config/tensor_type.h"

#include <stddef.h>
#include <stdint.h>

/* tests/fixtures/quants/TYPE.json, made by gguf.quants (numpy) and float64 sums: see its
 * quantized_by. Any miss fails the test at once. */
struct quants_fixture {
    enum tensor_type type;
    size_t n_rows, row_values;
    uint8_t *raw;        /* [n_rows] rows in GGUF's layout */
    float *dequant;      /* [n_rows][row_values] */
    size_t n_random;     /* values in the random blocks; 0 if the file has none */
    uint8_t *random_raw; /* random bytes with finite scales */
    float *random_dequant;
    float *x;                 /* [row_values] */
    uint8_t *x_q8_0;          /* x stored as Q8_0 */
    double *y_exact;          /* [n_rows] */
    double *y_with_x_as_q8_0; /* [n_rows] */
};

struct quants_fixture quants_fixture_load(const char *name);
void quants_fixture_fini(struct quants_fixture *f);
