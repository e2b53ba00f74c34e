/* Paged attention for avx512; the body is shared by both vector widths (paged_attention_simd.h).
 * Invariant: as in paged_attention.h, a query's result depends on itself and the stored keys alone.
 * Does not know why its instruction set was chosen. */
#include "worker/cpu/paged_attention.h"

#include "worker/cpu/simd_avx512.h"

#include "worker/cpu/paged_attention_simd.h"

void paged_attention_avx512(const struct paged_attention *a)
{
    simd_paged_attention(a);
}
