#pragma once
#include <stdint.h>

/* gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i], in place. Element by element: a value's result
 * does not depend on where in a range it stands, so ranges may be cut anywhere. Cannot fail. Any
 * thread. Source: Shazeer 2020, GLU Variants Improve Transformer. */
void swiglu_plain(float *restrict gate, const float *restrict up, uint32_t n);
void swiglu_avx2(float *restrict gate, const float *restrict up, uint32_t n);
void swiglu_avx512(float *restrict gate, const float *restrict up, uint32_t n);
