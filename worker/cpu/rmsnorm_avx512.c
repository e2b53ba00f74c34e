/* RMSNorm for avx512; the body is shared by both vector widths (elementwise_simd.h).
 * Invariant: a row depends on itself alone, summed in a fixed order.
 * Does not know why its instruction set was chosen. */
#include "worker/cpu/rmsnorm.h"

#include "worker/cpu/simd_avx512.h"

#include "worker/cpu/elementwise_simd.h"

void rmsnorm_avx512(const float *restrict x, const float *restrict w, uint32_t n, float eps,
                    float *restrict y)
{
    simd_rmsnorm(x, w, n, eps, y);
}
