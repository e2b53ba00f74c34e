/* y = x W^T on AVX-512 with VNNI: 16 outputs a vector.
 *
 * Invariant: an output's arithmetic is one sequence, whatever else is computed beside it.
 *   quantised: for each block of 32, in order: acc = fma((f32)idot, d_w * d_x, acc), and for Q4_1
 *              acc = fma(m_w, d_x * sum, acc); idot is an exact integer, so its order is free
 *              (16 * the dot of the high parts + that of the low ones)
 *   float:     for each k, in order: acc = fma(x, w, acc)
 * So register tiles of any number of rows give the same bits, and so does AVX2.
 * Does not know threads, strips of rows, nor how the layouts came to be (matmul_impl.h). */
#include "worker/cpu/matmul_impl.h"

#include <assert.h>
#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum {
    LANES = 16,
    PREFETCH_BYTES = 4096,
    DOTS = MATMUL_BLOCK / 4
}; /* one vpdpbusd takes 4 values of each output */

/* high = (v + 8) >> 4, low = v - 16 * high */
INLINE void store_parts(__m512i v, int8_t *q)
{
    const __m512i half = _mm512_set1_epi32(1 << (MATMUL_LOW_BITS - 1));
    const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(v, half), MATMUL_LOW_BITS);
    const __m512i low = _mm512_sub_epi32(v, _mm512_slli_epi32(high, MATMUL_LOW_BITS));
    _mm_storeu_si128((__m128i *)(void *)q, _mm512_cvtsepi32_epi8(high));
    _mm_storeu_si128((__m128i *)(void *)(q + MATMUL_BLOCK), _mm512_cvtsepi32_epi8(low));
}

INLINE void quantise_block(const float *x, int8_t *q, struct matmul_meta *meta)
{
    const __m512 x0 = _mm512_loadu_ps(x), x1 = _mm512_loadu_ps(x + 16);
    /* the order of positive floats is that of their bits, where NaN is the largest */
    const __m512i top = _mm512_max_epi32(_mm512_castps_si512(_mm512_abs_ps(x0)),
                                         _mm512_castps_si512(_mm512_abs_ps(x1)));
    const int32_t bits = _mm512_reduce_max_epi32(top);
    float amax;
    memcpy(&amax, &bits, sizeof amax);
    const bool is_tiny = amax < MATMUL_TINY;
    const __m512 inverse = _mm512_set1_ps(is_tiny ? 0 : MATMUL_TOP / amax);
    const __m512i q0 = _mm512_cvtps_epi32(_mm512_mul_ps(x0, inverse));
    const __m512i q1 = _mm512_cvtps_epi32(_mm512_mul_ps(x1, inverse));
    store_parts(q0, q);
    store_parts(q1, q + 16);
    const int32_t sum = _mm512_reduce_add_epi32(_mm512_add_epi32(q0, q1));
    meta->d = is_tiny ? 0 : amax / MATMUL_TOP;
    meta->d_sum = meta->d * (float)sum;
    meta->offset_q4 = (int32_t)(0u - 8u * (uint32_t)sum);
    meta->offset_q8 = (int32_t)(0u - 128u * (uint32_t)sum);
}

void matmul_avx512_quantise(const float *x, size_t n_blocks, int8_t *q, struct matmul_meta *meta,
                            size_t step)
{
    for (size_t b = 0; b < n_blocks; b++)
        quantise_block(x + b * MATMUL_BLOCK, q + b * step * MATMUL_ROW_BYTES, &meta[b * step]);
}

INLINE __m512i load_four(const int8_t *q)
{
    int32_t four;
    memcpy(&four, q, sizeof four);
    return _mm512_set1_epi32(four);
}

INLINE __m512 load_halves(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

/* The block's weights as u8: vector j holds values 4j..4j+3 of each output. */
INLINE void load_weights(enum tensor_type type, const uint8_t *quants, __m512i w[DOTS])
{
    if (type == TENSOR_Q8_0) {
        for (int j = 0; j < DOTS; j++)
            w[j] = _mm512_loadu_si512(quants + 64 * j);
        return;
    }
    const __m512i nibble = _mm512_set1_epi8(15);
    for (int j = 0; j < DOTS / 2; j++) {
        const __m512i both = _mm512_loadu_si512(quants + 64 * j);
        w[j] = _mm512_and_si512(both, nibble);
        w[j + DOTS / 2] = _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble);
    }
}

INLINE __m512i first_sum(enum tensor_type type, const struct matmul_meta *meta)
{
    if (type == TENSOR_Q4_0)
        return _mm512_set1_epi32(meta->offset_q4);
    if (type == TENSOR_Q8_0)
        return _mm512_set1_epi32(meta->offset_q8);
    return _mm512_setzero_si512();
}

/* Few rows wait for memory: the lines of some blocks ahead are asked for early. An address
 * past the weight is harmless. */
INLINE void prefetch(const uint8_t *p, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i += 64)
        _mm_prefetch((const char *)(p + i), _MM_HINT_T0);
}

/* sum[i] += w times one part of row i of `side` rows. */
INLINE void add_dots(const __m512i w[DOTS], const int8_t *q, const int side, __m512i sum[4])
{
#pragma GCC unroll 8
    for (int j = 0; j < DOTS; j++)
        for (int i = 0; i < side; i++)
            sum[i] = _mm512_dpbusd_epi32(sum[i], w[j], load_four(q + i * MATMUL_ROW_BYTES + 4 * j));
}

/* Rows [first, first + rows) of the piece; rows is a constant once inlined. Rows go `side` at a
 * time, so that their chains of vpdpbusd overlap. */
INLINE void quant_rows(enum tensor_type type, const struct matmul_quant_piece *p, uint32_t first,
                       const int rows)
{
    const int side = rows < 4 ? rows : 4;
    const size_t quant_bytes = (type == TENSOR_Q8_0 ? 32 : 16) * LANES;
    const size_t scale_bytes = (type == TENSOR_Q4_1 ? 4 : 2) * LANES;
    const uint8_t *quants = p->quants, *scales = p->scales;
    const int8_t *q = p->q + first * MATMUL_ROW_BYTES;
    const struct matmul_meta *meta = p->meta + first;
    __m512 acc[MATMUL_GROUP], m_w = _mm512_setzero_ps();
    for (int r = 0; r < rows; r++)
        acc[r] = _mm512_setzero_ps();
    for (uint32_t b = 0; b < p->n_blocks; b++) {
        __m512i w[DOTS], sum[4];
        load_weights(type, quants, w);
        const __m512 d_w = load_halves(scales);
        if (type == TENSOR_Q4_1)
            m_w = load_halves(scales + 2 * LANES);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r += side) {
            const int8_t *at = q + r * MATMUL_ROW_BYTES;
            for (int i = 0; i < side; i++)
                sum[i] = _mm512_setzero_si512();
            add_dots(w, at, side, sum);
            for (int i = 0; i < side; i++)
                sum[i] = _mm512_add_epi32(_mm512_slli_epi32(sum[i], MATMUL_LOW_BITS),
                                          first_sum(type, &meta[r + i]));
            add_dots(w, at + MATMUL_BLOCK, side, sum);
            for (int i = 0; i < side; i++) {
                const __m512 d = _mm512_mul_ps(d_w, _mm512_set1_ps(meta[r + i].d));
                acc[r + i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[i]), d, acc[r + i]);
                if (type == TENSOR_Q4_1)
                    acc[r + i] =
                        _mm512_fmadd_ps(m_w, _mm512_set1_ps(meta[r + i].d_sum), acc[r + i]);
            }
        }
        if (rows <= 4)
            prefetch(quants + PREFETCH_BYTES, quant_bytes);
        quants += quant_bytes;
        scales += scale_bytes;
        q += (size_t)p->n_rows * MATMUL_ROW_BYTES;
        meta += p->n_rows;
    }
    const __mmask16 mask = (__mmask16)((1u << p->n_outputs) - 1);
    for (int r = 0; r < rows; r++)
        _mm512_mask_storeu_ps(p->y + (first + r) * p->y_stride, mask, acc[r]);
}

INLINE void quant_piece(enum tensor_type type, const struct matmul_quant_piece *p)
{
    uint32_t r = 0;
    for (; r + 16 <= p->n_rows; r += 16)
        quant_rows(type, p, r, 16);
    for (; r + 8 <= p->n_rows; r += 8)
        quant_rows(type, p, r, 8);
    for (; r + 4 <= p->n_rows; r += 4)
        quant_rows(type, p, r, 4);
    for (; r + 2 <= p->n_rows; r += 2)
        quant_rows(type, p, r, 2);
    for (; r < p->n_rows; r++)
        quant_rows(type, p, r, 1);
}

void matmul_avx512_quant(enum tensor_type type, const struct matmul_quant_piece *p)
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

INLINE __m512 load_floats(enum tensor_type type, const uint8_t *p)
{
    if (type == TENSOR_F32)
        return _mm512_loadu_ps(p);
    if (type == TENSOR_F16)
        return load_halves(p);
    const __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

/* rows x tiles outputs, both constants once inlined. */
INLINE void float_rows(enum tensor_type type, const struct matmul_float_piece *p, uint32_t row,
                       uint32_t tile, const int rows, const int tiles)
{
    const uint8_t *w = p->w + tile * p->tile_bytes;
    const float *x = p->x + (size_t)row * p->n_in;
    __m512 acc[8][4];
    for (int r = 0; r < rows; r++)
        for (int t = 0; t < tiles; t++)
            acc[r][t] = _mm512_setzero_ps();
    for (size_t k = 0; k < p->n_in; k++) {
        __m512 wk[4];
        for (int t = 0; t < tiles; t++)
            wk[t] = load_floats(type, w + t * p->tile_bytes + k * LANES * value_bytes(type));
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const __m512 xk = _mm512_set1_ps(x[(size_t)r * p->n_in + k]);
            for (int t = 0; t < tiles; t++)
                acc[r][t] = _mm512_fmadd_ps(xk, wk[t], acc[r][t]);
        }
    }
    for (int t = 0; t < tiles; t++) {
        const uint32_t o = (tile + (uint32_t)t) * LANES;
        const uint32_t n = p->n_outputs - o < LANES ? p->n_outputs - o : LANES;
        for (int r = 0; r < rows; r++)
            _mm512_mask_storeu_ps(p->y + (row + r) * p->y_stride + o, (__mmask16)((1u << n) - 1),
                                  acc[r][t]);
    }
}

INLINE void float_piece(enum tensor_type type, const struct matmul_float_piece *p)
{
    uint32_t r = 0, t;
    for (; r + 4 <= p->n_rows; r += 4) {
        for (t = 0; t + 4 <= p->n_tiles; t += 4)
            float_rows(type, p, r, t, 4, 4);
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

void matmul_avx512_float(enum tensor_type type, const struct matmul_float_piece *p)
{
    if (type == TENSOR_F32)
        float_piece(TENSOR_F32, p);
    else if (type == TENSOR_F16)
        float_piece(TENSOR_F16, p);
    else
        float_piece(TENSOR_BF16, p);
}
