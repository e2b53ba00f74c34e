/* y = x W^T on AVX2, FMA and F16C: 8 outputs a vector.
 *
 * Invariant: the same sequence of operations an output as on AVX-512 (see matmul_avx512.c), so the
 * two paths agree bit for bit. No 16-bit sum can saturate: Q4 pairs are at most 15 * 127 * 2 and
 * eight of them are added, 30480; Q8_0 pairs, by absolute weights and signed activations, at most
 * 128 * 127 * 2 = 32512, and go to 32 bits at once, but eight pairs of the low parts, at most
 * 128 * 8 * 2 * 8 = 16384.
 * Does not know threads, strips of rows, nor how the layouts came to be (matmul_impl.h). */
#include "worker/cpu/matmul_impl.h"

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum { LANES = 8, PREFETCH_BYTES = 4096 };

INLINE int32_t add_lanes(__m256i v)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, _MM_SHUFFLE(1, 0, 3, 2)));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, _MM_SHUFFLE(2, 3, 0, 1))));
}

INLINE int32_t max_lanes(__m256i v)
{
    __m128i s = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_max_epi32(s, _mm_shuffle_epi32(s, _MM_SHUFFLE(1, 0, 3, 2)));
    return _mm_cvtsi128_si32(_mm_max_epi32(s, _mm_shuffle_epi32(s, _MM_SHUFFLE(2, 3, 0, 1))));
}

INLINE void store_bytes(const __m256i v[4], int8_t *q)
{
    /* packing works within halves: the permutation puts the groups of four back in order */
    const __m256i mixed =
        _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256((__m256i *)(void *)q, _mm256_permutevar8x32_epi32(mixed, order));
}

/* high = (v + 8) >> 4, low = v - 16 * high */
INLINE void store_parts(const __m256i v[4], int8_t *q)
{
    const __m256i half = _mm256_set1_epi32(1 << (MATMUL_LOW_BITS - 1));
    __m256i high[4], low[4];
    for (int i = 0; i < 4; i++) {
        high[i] = _mm256_srai_epi32(_mm256_add_epi32(v[i], half), MATMUL_LOW_BITS);
        low[i] = _mm256_sub_epi32(v[i], _mm256_slli_epi32(high[i], MATMUL_LOW_BITS));
    }
    store_bytes(high, q);
    store_bytes(low, q + MATMUL_BLOCK);
}

INLINE void quantise_block(const float *x, int8_t *q, struct matmul_meta *meta)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i top = _mm256_setzero_si256(), sum = _mm256_setzero_si256(), v[4];
    /* the order of positive floats is that of their bits, where NaN is the largest */
    for (int i = 0; i < 4; i++) {
        const __m256i bits = _mm256_castps_si256(_mm256_loadu_ps(x + 8 * i));
        top = _mm256_max_epi32(top, _mm256_and_si256(bits, magnitude));
    }
    const int32_t bits = max_lanes(top);
    float amax;
    memcpy(&amax, &bits, sizeof amax);
    const bool is_tiny = amax < MATMUL_TINY;
    const __m256 inverse = _mm256_set1_ps(is_tiny ? 0 : MATMUL_TOP / amax);
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), inverse));
        sum = _mm256_add_epi32(sum, v[i]);
    }
    store_parts(v, q);
    const int32_t total = add_lanes(sum);
    meta->d = is_tiny ? 0 : amax / MATMUL_TOP;
    meta->d_sum = meta->d * (float)total;
    meta->offset_q4 = (int32_t)(0u - 8u * (uint32_t)total);
    meta->offset_q8 = (int32_t)(0u - 128u * (uint32_t)total);
}

void matmul_avx2_quantise(const float *x, size_t n_blocks, int8_t *q, struct matmul_meta *meta,
                          size_t step)
{
    for (size_t b = 0; b < n_blocks; b++)
        quantise_block(x + b * MATMUL_BLOCK, q + b * step * MATMUL_ROW_BYTES, &meta[b * step]);
}

INLINE __m256i load_bytes(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

INLINE __m256i load_four(const int8_t *q)
{
    int32_t four;
    memcpy(&four, q, sizeof four);
    return _mm256_set1_epi32(four);
}

INLINE __m256 load_halves(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

INLINE __m256i weighted_pairs(__m256i v, const int16_t weight)
{
    return _mm256_madd_epi16(v, _mm256_set1_epi16(weight));
}

/* The integer dots of one block for `rows` rows: sum[r] has 8 outputs. */
INLINE void dot_q4(const uint8_t *quants, const int8_t *q, const int rows, __m256i *sum)
{
    const __m256i nibble = _mm256_set1_epi8(15);
    __m256i pairs[4], rest[4];
    for (int r = 0; r < rows; r++)
        pairs[r] = rest[r] = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        const __m256i both = load_bytes(quants + 32 * j);
        const __m256i low = _mm256_and_si256(both, nibble);
        const __m256i high = _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble);
        for (int r = 0; r < rows; r++) {
            const int8_t *at = q + r * MATMUL_ROW_BYTES + 4 * j, *then = at + MATMUL_BLOCK;
            pairs[r] = _mm256_add_epi16(pairs[r], _mm256_maddubs_epi16(low, load_four(at)));
            pairs[r] = _mm256_add_epi16(pairs[r], _mm256_maddubs_epi16(high, load_four(at + 16)));
            rest[r] = _mm256_add_epi16(rest[r], _mm256_maddubs_epi16(low, load_four(then)));
            rest[r] = _mm256_add_epi16(rest[r], _mm256_maddubs_epi16(high, load_four(then + 16)));
        }
    }
    for (int r = 0; r < rows; r++)
        sum[r] = _mm256_add_epi32(weighted_pairs(pairs[r], 1 << MATMUL_LOW_BITS),
                                  weighted_pairs(rest[r], 1));
}

INLINE void dot_q8(const uint8_t *quants, const int8_t *q, const int rows, __m256i *sum)
{
    __m256i rest[4];
    for (int r = 0; r < rows; r++)
        sum[r] = rest[r] = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        const __m256i w = load_bytes(quants + 32 * j);
        const __m256i size = _mm256_abs_epi8(w); /* -128 becomes 128 as u8 */
        for (int r = 0; r < rows; r++) {
            const int8_t *at = q + r * MATMUL_ROW_BYTES + 4 * j;
            const __m256i high = _mm256_sign_epi8(load_four(at), w);
            const __m256i low = _mm256_sign_epi8(load_four(at + MATMUL_BLOCK), w);
            sum[r] = _mm256_add_epi32(
                sum[r], weighted_pairs(_mm256_maddubs_epi16(size, high), 1 << MATMUL_LOW_BITS));
            rest[r] = _mm256_add_epi16(rest[r], _mm256_maddubs_epi16(size, low));
        }
    }
    for (int r = 0; r < rows; r++)
        sum[r] = _mm256_add_epi32(sum[r], weighted_pairs(rest[r], 1));
}

INLINE void store(float *y, __m256 v, uint32_t n)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    _mm256_maskstore_ps(y, _mm256_cmpgt_epi32(_mm256_set1_epi32((int32_t)n), lane), v);
}

/* Few rows wait for memory: the lines of some blocks ahead are asked for early. An address
 * past the weight is harmless. */
INLINE void prefetch(const uint8_t *p, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i += 64)
        _mm_prefetch((const char *)(p + i), _MM_HINT_T0);
}

/* Rows [first, first + rows) of the piece; rows is a constant once inlined. */
INLINE void quant_rows(enum tensor_type type, const struct matmul_quant_piece *p, uint32_t first,
                       const int rows)
{
    const size_t quant_bytes = (type == TENSOR_Q8_0 ? 32 : 16) * LANES;
    const size_t scale_bytes = (type == TENSOR_Q4_1 ? 4 : 2) * LANES;
    const uint8_t *quants = p->quants, *scales = p->scales;
    const int8_t *q = p->q + first * MATMUL_ROW_BYTES;
    const struct matmul_meta *meta = p->meta + first;
    __m256 acc[4];
    for (int r = 0; r < rows; r++)
        acc[r] = _mm256_setzero_ps();
    for (uint32_t b = 0; b < p->n_blocks; b++) {
        __m256i sum[4];
        if (type == TENSOR_Q8_0)
            dot_q8(quants, q, rows, sum);
        else
            dot_q4(quants, q, rows, sum);
        const __m256 d_w = load_halves(scales);
        for (int r = 0; r < rows; r++) {
            if (type == TENSOR_Q4_0)
                sum[r] = _mm256_add_epi32(sum[r], _mm256_set1_epi32(meta[r].offset_q4));
            const __m256 d = _mm256_mul_ps(d_w, _mm256_set1_ps(meta[r].d));
            acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[r]), d, acc[r]);
            if (type == TENSOR_Q4_1)
                acc[r] = _mm256_fmadd_ps(load_halves(scales + 2 * LANES),
                                         _mm256_set1_ps(meta[r].d_sum), acc[r]);
        }
        if (rows <= 4)
            prefetch(quants + PREFETCH_BYTES, quant_bytes);
        quants += quant_bytes;
        scales += scale_bytes;
        q += (size_t)p->n_rows * MATMUL_ROW_BYTES;
        meta += p->n_rows;
    }
    for (int r = 0; r < rows; r++)
        store(p->y + (first + r) * p->y_stride, acc[r], p->n_outputs);
}

INLINE void quant_piece(enum tensor_type type, const struct matmul_quant_piece *p)
{
    uint32_t r = 0;
    for (; r + 4 <= p->n_rows; r += 4)
        quant_rows(type, p, r, 4);
    for (; r + 2 <= p->n_rows; r += 2)
        quant_rows(type, p, r, 2);
    for (; r < p->n_rows; r++)
        quant_rows(type, p, r, 1);
}

void matmul_avx2_quant(enum tensor_type type, const struct matmul_quant_piece *p)
{
    if (type == TENSOR_Q4_0)
        quant_piece(TENSOR_Q4_0, p);
    else if (type == TENSOR_Q4_1)
        quant_piece(TENSOR_Q4_1, p);
    else
        quant_piece(TENSOR_Q8_0, p);
}

INLINE size_t value_bytes(enum tensor_type type)
{
    return type == TENSOR_F32 ? 4 : 2;
}

INLINE __m256 load_floats(enum tensor_type type, const uint8_t *p)
{
    if (type == TENSOR_F32)
        return _mm256_loadu_ps((const float *)(const void *)p);
    if (type == TENSOR_F16)
        return load_halves(p);
    const __m128i bits = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

/* rows x tiles outputs, both constants once inlined. */
INLINE void float_rows(enum tensor_type type, const struct matmul_float_piece *p, uint32_t row,
                       uint32_t tile, const int rows, const int tiles)
{
    const uint8_t *w = p->w + tile * p->tile_bytes;
    const float *x = p->x + (size_t)row * p->n_in;
    __m256 acc[4][4];
    for (int r = 0; r < rows; r++)
        for (int t = 0; t < tiles; t++)
            acc[r][t] = _mm256_setzero_ps();
    for (size_t k = 0; k < p->n_in; k++) {
        __m256 wk[4];
        for (int t = 0; t < tiles; t++)
            wk[t] = load_floats(type, w + t * p->tile_bytes + k * LANES * value_bytes(type));
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            const __m256 xk = _mm256_set1_ps(x[(size_t)r * p->n_in + k]);
            for (int t = 0; t < tiles; t++)
                acc[r][t] = _mm256_fmadd_ps(xk, wk[t], acc[r][t]);
        }
    }
    for (int t = 0; t < tiles; t++) {
        const uint32_t o = (tile + (uint32_t)t) * LANES;
        for (int r = 0; r < rows; r++)
            store(p->y + (row + r) * p->y_stride + o, acc[r][t], p->n_outputs - o);
    }
}

INLINE void float_piece(enum tensor_type type, const struct matmul_float_piece *p)
{
    uint32_t r = 0, t;
    for (; r + 4 <= p->n_rows; r += 4) {
        for (t = 0; t + 2 <= p->n_tiles; t += 2)
            float_rows(type, p, r, t, 4, 2);
        for (; t < p->n_tiles; t++)
            float_rows(type, p, r, t, 4, 1);
    }
    for (; r < p->n_rows; r++) {
        for (t = 0; t + 4 <= p->n_tiles; t += 4)
            float_rows(type, p, r, t, 1, 4);
        for (; t < p->n_tiles; t++)
            float_rows(type, p, r, t, 1, 1);
    }
}

void matmul_avx2_float(enum tensor_type type, const struct matmul_float_piece *p)
{
    if (type == TENSOR_F32)
        float_piece(TENSOR_F32, p);
    else if (type == TENSOR_F16)
        float_piece(TENSOR_F16, p);
    else
        float_piece(TENSOR_BF16, p);
}
