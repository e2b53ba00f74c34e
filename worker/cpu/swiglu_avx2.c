/* SwiGLU for avx2; the body is shared by both vector widths (elementwise_simd.h).
 * Invariant: element by element, whatever the range.
 * Does not know why its instruction set was chosen. */
#include "worker/cpu/swiglu.h"

#include "worker/cpu/simd_avx2.h"

#include "worker/cpu/elementwise_simd.h"

void swiglu_avx2(float *restrict gate, const float *restrict up, uint32_t n)
{
    simd_swiglu(gate, up, n);
}
