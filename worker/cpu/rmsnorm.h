#pragma once
#include <stdint.h>

/* y = x / sqrt(mean(x^2) + eps) * w over one row of n values; n >= 1, eps > 0; y must not overlap
 * x. Cannot fail. Any thread. One function an ISA path: the sums run in different, but each in a
 * fixed, order. PLAIN sums in double. Source: Zhang & Sennrich 2019, RMSNorm. */
void rmsnorm_plain(const float *restrict x, const float *restrict w, uint32_t n, float eps,
                   float *restrict y);
void rmsnorm_avx2(const float *restrict x, const float *restrict w, uint32_t n, float eps,
                  float *restrict y);
void rmsnorm_avx512(const float *restrict x, const float *restrict w, uint32_t n, float eps,
                    float *restrict y);
