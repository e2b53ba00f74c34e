#pragma once
#include "config/base/err.h"
#include "config/cpu_isa.h"
#include "config/tensor_type.h"

#include <stddef.h>
#include <stdint.h>

/* y = x W^T for weights of any tensor type, on the CPU: the kernels that decode and prefill live
 * in. Weights are repacked once for the ISA path; activations are prepared (quantised) once per
 * input and shared by the matrices that read it (q, k, v; gate, up).
 *
 * Row independence: y[r][o] depends on x[r] and W[o] alone, accumulated along K in one fixed order,
 * whatever n_rows, the tile sizes and the number of threads. */

struct matmul_weight; /* repacked [n_out][n_in] matrix; opaque, immutable, any thread reads */

/* Repacks w (rows of n_in values of type, n_out rows, in GGUF's layout). PLAIN keeps a borrowed
 * pointer: w must then outlive it. n_in is a multiple of the type's block. Errors: NOMEM,
 * UNSUPPORTED. */
NODISCARD enum err matmul_weight_new(enum cpu_isa isa, enum tensor_type type, const void *w,
                                     uint32_t n_out, uint32_t n_in, struct matmul_weight **out,
                                     struct err_info *ei);
void matmul_weight_free(struct matmul_weight *m); /* NULL is legal */
size_t matmul_weight_bytes(const struct matmul_weight *m);
/* Rows of output that one unit of work covers; threads split [0, n_out) at multiples of it. */
uint32_t matmul_weight_tile(const struct matmul_weight *m);

/* What of the activations a weight reads: f32, or the 12-bit form (per 32 values: scale, sum) that
 * quantised weights use on AVX2 and AVX512. */
enum matmul_form {
    MATMUL_FORM_F32 = 1,
    MATMUL_FORM_QUANTS = 2,
    MATMUL_FORM_ANY = MATMUL_FORM_F32 | MATMUL_FORM_QUANTS,
};
enum matmul_form matmul_weight_form(const struct matmul_weight *m);

/* Bytes that prepared activations of n_rows rows of n_in values need, for any weight of this isa
 * and type. 64-byte aligned storage is the caller's. */
size_t matmul_input_bytes(enum cpu_isa isa, uint32_t n_rows, uint32_t n_in);
/* Prepares rows [row_begin, row_end) of x: [n_rows][n_in] f32 for weights of the given form, or of
 * either. */
void matmul_prepare(enum cpu_isa isa, enum matmul_form form, const float *x, uint32_t n_rows,
                    uint32_t n_in, uint32_t row_begin, uint32_t row_end, void *input);
/* y[r][o] for all n_rows rows and outputs [out_begin, out_end) (multiples of the tile, or n_out):
 * y: [n_rows] with stride y_stride floats. input: prepared, for n_rows rows. */
void matmul_run(const struct matmul_weight *m, const void *input, uint32_t n_rows,
                uint32_t out_begin, uint32_t out_end, float *y, size_t y_stride);
