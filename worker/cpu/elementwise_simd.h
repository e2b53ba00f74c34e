#pragma once
/* The row ops over `struct v16`, written once for both vector widths: included by the _avx2 and
 * _avx512 files after their simd header. Every loop runs in steps of 16 lanes with a partly filled
 * last step, so a value meets the same instructions wherever a range is cut. */
#include "config/tensor_type.h"

#include <assert.h>
#include <math.h>

static inline void simd_rmsnorm(const float *restrict x, const float *restrict w, uint32_t n,
                                float eps, float *restrict y)
{
    struct v16 even = v16_set1(0.0f), odd = v16_set1(0.0f);
    uint32_t i = 0;
    for (; i + 32 <= n; i += 32) {
        const struct v16 a = v16_load(x + i), b = v16_load(x + i + 16);
        even = v16_fma(a, a, even);
        odd = v16_fma(b, b, odd);
    }
    for (; i < n; i += 16) {
        const struct v16 a = v16_load_first(x + i, n - i < 16 ? n - i : 16);
        even = v16_fma(a, a, even);
    }
    const float mean = v16_reduce_add(v16_add(even, odd)) / (float)n;
    const struct v16 scale = v16_set1(1.0f / sqrtf(mean + eps));
    for (i = 0; i + 16 <= n; i += 16)
        v16_store(y + i, v16_mul(v16_mul(v16_load(x + i), scale), v16_load(w + i)));
    if (i < n) {
        const struct v16 v = v16_mul(v16_load_first(x + i, n - i), scale);
        v16_store_first(y + i, v16_mul(v, v16_load_first(w + i, n - i)), n - i);
    }
}

static inline struct v16 simd_silu_times(struct v16 g, struct v16 u)
{
    const struct v16 e = v16_exp2(v16_mul(g, v16_set1(-1.44269504f))); /* exp(-g) */
    return v16_mul(v16_div(g, v16_add(v16_set1(1.0f), e)), u);
}

static inline void simd_swiglu(float *restrict gate, const float *restrict up, uint32_t n)
{
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16)
        v16_store(gate + i, simd_silu_times(v16_load(gate + i), v16_load(up + i)));
    if (i < n) {
        const struct v16 g = v16_load_first(gate + i, n - i), u = v16_load_first(up + i, n - i);
        v16_store_first(gate + i, simd_silu_times(g, u), n - i);
    }
}

static inline void simd_kv_store(enum tensor_type format, const float *restrict x, uint32_t n,
                                 void *restrict dst)
{
    if (format == TENSOR_F32) {
        memcpy(dst, x, (size_t)n * sizeof *x);
        return;
    }
    assert(format == TENSOR_F16 || format == TENSOR_BF16);
    unsigned char *to = dst;
    for (uint32_t i = 0; i < n; i += 16, to += 32) {
        const uint32_t left = n - i < 16 ? n - i : 16;
        unsigned char part[32];
        unsigned char *p = left == 16 ? to : part;
        const struct v16 v = left == 16 ? v16_load(x + i) : v16_load_first(x + i, left);
        if (format == TENSOR_F16)
            v16_store_f16(p, v);
        else
            v16_store_bf16(p, v);
        if (left < 16)
            memcpy(to, part, left * sizeof(uint16_t));
    }
}
