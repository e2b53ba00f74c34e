/* Rounding into the pool's format for avx2; the body is shared by both vector widths
 * (elementwise_simd.h). Invariant: the same bytes as kv_format_store_plain.
 * Does not know why its instruction set was chosen. */
#include "worker/cpu/kv_format.h"

#include "worker/cpu/simd_avx2.h"

#include "worker/cpu/elementwise_simd.h"

void kv_format_store_avx2(enum tensor_type format, const float *restrict x, uint32_t n,
                          void *restrict dst)
{
    simd_kv_store(format, x, n, dst);
}
