#pragma once
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

/* Sixteen f32 lanes in two 256-bit registers: what the kernels written over `struct v16` need.
 * Included by *_avx2.c files only; simd_avx512.h is the same set for AVX-512. */

enum { SIMD_QUERIES = 3, SIMD_CHUNKS = 2 }; /* register tile of attention: 16 registers */

struct v16 {
    __m256 lo, hi;
};

static inline struct v16 v16_set1(float x)
{
    return (struct v16){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}

static inline struct v16 v16_load(const float *p)
{
    return (struct v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

/* The first n <= 16 values, zeros behind them. */
static inline struct v16 v16_load_first(const float *p, uint32_t n)
{
    float whole[16] = {0};
    memcpy(whole, p, n * sizeof *p);
    return v16_load(whole);
}

static inline void v16_store(float *p, struct v16 a)
{
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}

static inline void v16_store_first(float *p, struct v16 a, uint32_t n)
{
    float whole[16];
    v16_store(whole, a);
    memcpy(p, whole, n * sizeof *p);
}

static inline struct v16 v16_add(struct v16 a, struct v16 b)
{
    return (struct v16){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}

static inline struct v16 v16_sub(struct v16 a, struct v16 b)
{
    return (struct v16){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}

static inline struct v16 v16_mul(struct v16 a, struct v16 b)
{
    return (struct v16){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}

static inline struct v16 v16_div(struct v16 a, struct v16 b)
{
    return (struct v16){_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}

/* a * b + c, rounded once. */
static inline struct v16 v16_fma(struct v16 a, struct v16 b, struct v16 c)
{
    return (struct v16){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}

/* Lanes from n on become fill. */
static inline struct v16 v16_first(struct v16 a, uint32_t n, float fill)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256 f = _mm256_set1_ps(fill);
    const __m256i lo = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lane);
    const __m256i hi = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n - 8), lane);
    return (struct v16){_mm256_blendv_ps(f, a.lo, _mm256_castsi256_ps(lo)),
                        _mm256_blendv_ps(f, a.hi, _mm256_castsi256_ps(hi))};
}

static inline float v16_reduce_max(struct v16 a)
{
    const __m256 h = _mm256_max_ps(a.lo, a.hi);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

/* Halves onto each other until one lane is left. */
static inline float v16_reduce_add(struct v16 a)
{
    const __m256 h = _mm256_add_ps(a.lo, a.hi);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

static inline __m256 exp2_half(__m256 x)
{
    const __m256 a =
        _mm256_min_ps(_mm256_max_ps(x, _mm256_set1_ps(-126.0f)), _mm256_set1_ps(126.0f));
    const __m256 n = _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256 f = _mm256_sub_ps(a, n);
    __m256 p = _mm256_set1_ps(1.5403530e-4f); /* ln(2)^k / k!, k = 6 ... 0 */
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.3333558e-3f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(9.6181291e-3f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(5.5504109e-2f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(2.4022651e-1f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(6.9314718e-1f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    const __m256i power = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(power, 23)));
}

/* 2^x, x clamped to [-126, 126]. Taylor series of 2^f around 0, |f| <= 1/2, to the sixth power:
 * within 2 units of the last place; 2^0 is exactly 1. */
static inline struct v16 v16_exp2(struct v16 x)
{
    return (struct v16){exp2_half(x.lo), exp2_half(x.hi)};
}

static inline struct v16 v16_load_f16(const void *p)
{
    const __m256i bits = _mm256_loadu_si256(p);
    return (struct v16){_mm256_cvtph_ps(_mm256_castsi256_si128(bits)),
                        _mm256_cvtph_ps(_mm256_extracti128_si256(bits, 1))};
}

static inline __m256 bf16_half(__m128i bits)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

static inline struct v16 v16_load_bf16(const void *p)
{
    const __m256i bits = _mm256_loadu_si256(p);
    return (struct v16){bf16_half(_mm256_castsi256_si128(bits)),
                        bf16_half(_mm256_extracti128_si256(bits, 1))};
}

static inline void v16_store_f16(void *p, struct v16 a)
{
    const __m128i lo = _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m128i hi = _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256(p, _mm256_set_m128i(hi, lo));
}

static inline __m256i round_bf16(__m256 x)
{
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(up, quiet, is_nan), 16);
}

static inline void v16_store_bf16(void *p, struct v16 a)
{
    /* packing goes by 128-bit parts: put them back in order */
    const __m256i packed = _mm256_packus_epi32(round_bf16(a.lo), round_bf16(a.hi));
    _mm256_storeu_si256(p, _mm256_permute4x64_epi64(packed, 0xd8));
}

/* out[j * 16 + i] = lane j of row[i], for eight rows and eight lanes. */
static inline void transpose_8x8(const __m256 r[8], float *out)
{
    __m256 t[8], u[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(out + 16 * i, _mm256_permute2f128_ps(u[i], u[4 + i], 0x20));
        _mm256_storeu_ps(out + 16 * (4 + i), _mm256_permute2f128_ps(u[i], u[4 + i], 0x31));
    }
}

/* out[j * 16 + i] = lane j of row[i]. */
static inline void v16_transpose(const struct v16 row[16], float *out)
{
    for (int g = 0; g < 16; g += 8) {
        __m256 lo[8], hi[8];
        for (int i = 0; i < 8; i++) {
            lo[i] = row[g + i].lo;
            hi[i] = row[g + i].hi;
        }
        transpose_8x8(lo, out + g);
        transpose_8x8(hi, out + 16 * 8 + g);
    }
}
