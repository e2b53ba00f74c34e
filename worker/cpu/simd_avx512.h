#pragma once
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

/* Sixteen f32 lanes in one 512-bit register: what the kernels written over `struct v16` need.
 * Included by *_avx512.c files only; simd_avx2.h is the same set for AVX2. */

enum { SIMD_QUERIES = 8, SIMD_CHUNKS = 2 }; /* register tile of attention: 32 registers */

struct v16 {
    __m512 v;
};

static inline struct v16 v16_set1(float x)
{
    return (struct v16){_mm512_set1_ps(x)};
}

static inline struct v16 v16_load(const float *p)
{
    return (struct v16){_mm512_loadu_ps(p)};
}

/* The first n <= 16 values, zeros behind them. */
static inline struct v16 v16_load_first(const float *p, uint32_t n)
{
    return (struct v16){_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p)};
}

static inline void v16_store(float *p, struct v16 a)
{
    _mm512_storeu_ps(p, a.v);
}

static inline void v16_store_first(float *p, struct v16 a, uint32_t n)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), a.v);
}

static inline struct v16 v16_add(struct v16 a, struct v16 b)
{
    return (struct v16){_mm512_add_ps(a.v, b.v)};
}

static inline struct v16 v16_sub(struct v16 a, struct v16 b)
{
    return (struct v16){_mm512_sub_ps(a.v, b.v)};
}

static inline struct v16 v16_mul(struct v16 a, struct v16 b)
{
    return (struct v16){_mm512_mul_ps(a.v, b.v)};
}

static inline struct v16 v16_div(struct v16 a, struct v16 b)
{
    return (struct v16){_mm512_div_ps(a.v, b.v)};
}

/* a * b + c, rounded once. */
static inline struct v16 v16_fma(struct v16 a, struct v16 b, struct v16 c)
{
    return (struct v16){_mm512_fmadd_ps(a.v, b.v, c.v)};
}

/* Lanes from n on become fill. */
static inline struct v16 v16_first(struct v16 a, uint32_t n, float fill)
{
    return (struct v16){
        _mm512_mask_blend_ps((__mmask16)((1u << n) - 1), _mm512_set1_ps(fill), a.v)};
}

static inline float v16_reduce_max(struct v16 a)
{
    return _mm512_reduce_max_ps(a.v);
}

/* Halves onto each other until one lane is left. */
static inline float v16_reduce_add(struct v16 a)
{
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

/* 2^x, x clamped to [-126, 126]. Taylor series of 2^f around 0, |f| <= 1/2, to the sixth power:
 * within 2 units of the last place; 2^0 is exactly 1. */
static inline struct v16 v16_exp2(struct v16 x)
{
    const __m512 a =
        _mm512_min_ps(_mm512_max_ps(x.v, _mm512_set1_ps(-126.0f)), _mm512_set1_ps(126.0f));
    const __m512 n = _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 f = _mm512_sub_ps(a, n);
    __m512 p = _mm512_set1_ps(1.5403530e-4f); /* ln(2)^k / k!, k = 6 ... 0 */
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.3333558e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.6181291e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.5504109e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4022651e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9314718e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return (struct v16){_mm512_scalef_ps(p, n)};
}

static inline struct v16 v16_load_f16(const void *p)
{
    return (struct v16){_mm512_cvtph_ps(_mm256_loadu_si256(p))};
}

static inline struct v16 v16_load_bf16(const void *p)
{
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p));
    return (struct v16){_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}

static inline void v16_store_f16(void *p, struct v16 a)
{
    _mm256_storeu_si256(p, _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static inline void v16_store_bf16(void *p, struct v16 a)
{
    const __m512i bits = _mm512_castps_si512(a.v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
    const __m512i best = _mm512_srli_epi32(_mm512_mask_blend_epi32(is_nan, up, quiet), 16);
    _mm256_storeu_si256(p, _mm512_cvtepi32_epi16(best));
}

/* out[j * 16 + i] = lane j of row[i]: pairs, then fours within 128 bits, then the 128-bit parts. */
static inline void v16_transpose(const struct v16 row[16], float *out)
{
    __m512 t[16], u[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(row[i].v, row[i + 1].v);
        t[i + 1] = _mm512_unpackhi_ps(row[i].v, row[i + 1].v);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        u[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
        u[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) { /* u[4g + i], part p: lanes 4p + i of rows 4g .. 4g + 3 */
        const __m512 a = _mm512_shuffle_f32x4(u[i], u[4 + i], 0x88);
        const __m512 b = _mm512_shuffle_f32x4(u[8 + i], u[12 + i], 0x88);
        const __m512 c = _mm512_shuffle_f32x4(u[i], u[4 + i], 0xdd);
        const __m512 d = _mm512_shuffle_f32x4(u[8 + i], u[12 + i], 0xdd);
        _mm512_storeu_ps(out + 16 * i, _mm512_shuffle_f32x4(a, b, 0x88));
        _mm512_storeu_ps(out + 16 * (8 + i), _mm512_shuffle_f32x4(a, b, 0xdd));
        _mm512_storeu_ps(out + 16 * (4 + i), _mm512_shuffle_f32x4(c, d, 0x88));
        _mm512_storeu_ps(out + 16 * (12 + i), _mm512_shuffle_f32x4(c, d, 0xdd));
    }
}
