#pragma once
/* Paged attention over `struct v16`, written once for both vector widths: included by the _avx2 and
 * _avx512 files after their simd header.
 *
 * A step's 16 keys are widened to f32 once for all queries of the job, K transposed, so that a
 * vector holds one dimension of 16 keys and no score needs a sum across lanes. A score is two
 * chains of FMAs, even and odd dimensions; an output value one chain over the keys. How many
 * queries stand in registers at a time (nq, a constant after inlining) changes neither. */
#include "worker/cpu/paged_attention.h"

#include <assert.h>
#include <math.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum {
    STEP = PAGED_ATTENTION_STEP,
    AHEAD = 1, /* steps between asking for keys and using them */
};

/* The job's scratch, taken apart; query i = row * n_queries + g. */
struct attention_tiles {
    uint32_t n, padded; /* queries; head_dim rounded up to 16 */
    float *k, *v;       /* [padded][16 keys], [16 keys][padded] */
    float *q, *out;     /* [n][padded] */
    float *score, *sum; /* [n][16] */
    float *max, *keep;  /* [n] */
};

static inline struct attention_tiles tiles_of(const struct paged_attention *a)
{
    struct attention_tiles t = {.n = a->n_rows * a->n_queries,
                                .padded = (a->head_dim + 15) / 16 * 16};
    const size_t tile = (size_t)STEP * t.padded, rows = (size_t)t.n * t.padded;
    t.k = a->scratch;
    t.v = t.k + tile;
    t.q = t.v + tile;
    t.out = t.q + rows;
    t.score = t.out + rows;
    t.sum = t.score + (size_t)t.n * STEP;
    t.max = t.sum + (size_t)t.n * STEP;
    t.keep = t.max + t.n;
    return t;
}

/* Scores are made in base 2: the factor 1/ln 2 goes into q with the scale. */
static inline void start_queries(const struct paged_attention *a, const struct attention_tiles *t)
{
    const struct v16 scale = v16_set1(a->scale * 1.44269504f), zero = v16_set1(0.0f);
    for (uint32_t i = 0; i < t->n; i++) {
        const float *q =
            a->q + i / a->n_queries * a->row_stride + (size_t)(i % a->n_queries) * a->head_dim;
        for (uint32_t d = 0; d < t->padded; d += 16) {
            const uint32_t left = a->head_dim - d < 16 ? a->head_dim - d : 16;
            const struct v16 x = left == 16 ? v16_load(q + d) : v16_load_first(q + d, left);
            v16_store(t->q + (size_t)i * t->padded + d, v16_mul(x, scale));
            v16_store(t->out + (size_t)i * t->padded + d, zero);
        }
        v16_store(t->sum + (size_t)i * STEP, zero);
        t->max[i] = -INFINITY;
    }
}

ALWAYS_INLINE size_t each_bytes(enum tensor_type format)
{
    return format == TENSOR_F32 ? sizeof(float) : sizeof(uint16_t);
}

/* n <= 16 values of a stored row, zeros behind them. */
ALWAYS_INLINE struct v16 load_stored(enum tensor_type format, const unsigned char *p, uint32_t n)
{
    unsigned char part[64];
    if (n < 16) {
        memset(part, 0, sizeof part);
        memcpy(part, p, n * each_bytes(format));
        p = part;
    }
    if (format == TENSOR_F16)
        return v16_load_f16(p);
    if (format == TENSOR_BF16)
        return v16_load_bf16(p);
    float wide[16];
    memcpy(wide, p, sizeof wide);
    return v16_load(wide);
}

/* Where the keys and values of a step stand. */
struct step_rows {
    const unsigned char *k[STEP], *v[STEP];
};

static inline void find_rows(const struct paged_attention *a, uint32_t first, uint32_t n,
                             struct step_rows *rows)
{
    const size_t row_bytes = a->head_dim * each_bytes(a->format);
    if (a->block_size % STEP == 0) { /* a step lies within one block */
        const unsigned char *k = paged_attention_slot(a, first, a->k_offset);
        for (uint32_t i = 0; i < STEP; i++)
            rows->k[i] = k + i * row_bytes;
    } else {
        for (uint32_t i = 0; i < n; i++)
            rows->k[i] = paged_attention_slot(a, first + i, a->k_offset);
        for (uint32_t i = n; i < STEP; i++)
            rows->k[i] = rows->k[0];
    }
    for (uint32_t i = 0; i < STEP; i++)
        rows->v[i] = rows->k[i] + (a->v_offset - a->k_offset);
}

/* A step's rows are far from the last one's: the processor does not guess them by itself. */
static inline void prefetch_rows(const struct paged_attention *a, const struct step_rows *rows)
{
    const size_t row_bytes = a->head_dim * each_bytes(a->format);
    for (uint32_t i = 0; i < STEP; i++) {
        for (size_t at = 0; at < row_bytes; at += 64) {
            _mm_prefetch((const char *)rows->k[i] + at, _MM_HINT_T0);
            _mm_prefetch((const char *)rows->v[i] + at, _MM_HINT_T0);
        }
    }
}

/* The step's first n keys into the tiles, zeros for the rest of it. */
ALWAYS_INLINE void load_step(const struct paged_attention *a, const struct attention_tiles *t,
                             enum tensor_type format, const struct step_rows *rows, uint32_t n)
{
    const size_t each = each_bytes(format);
    const struct v16 zero = v16_set1(0.0f);
    for (uint32_t d = 0; d < t->padded; d += 16) {
        const uint32_t left = a->head_dim - d < 16 ? a->head_dim - d : 16;
        struct v16 row[STEP];
        if (n == STEP && left == 16) { /* nearly always: the rows stay in registers */
#pragma GCC unroll 16
            for (uint32_t i = 0; i < STEP; i++)
                row[i] = load_stored(format, rows->k[i] + d * each, 16);
            v16_transpose(row, t->k + (size_t)d * STEP);
        } else {
            for (uint32_t i = 0; i < STEP; i++)
                row[i] = i < n ? load_stored(format, rows->k[i] + d * each, left) : zero;
            v16_transpose(row, t->k + (size_t)d * STEP);
        }
        for (uint32_t i = 0; i < n; i++)
            v16_store(t->v + (size_t)i * t->padded + d,
                      load_stored(format, rows->v[i] + d * each, left));
    }
}

ALWAYS_INLINE void score_queries(const struct attention_tiles *t, uint32_t first, const int nq)
{
    struct v16 even[SIMD_QUERIES], odd[SIMD_QUERIES];
    const float *q = t->q + (size_t)first * t->padded;
#pragma GCC unroll 8
    for (int i = 0; i < nq; i++)
        even[i] = odd[i] = v16_set1(0.0f);
    for (uint32_t d = 0; d < t->padded; d += 2) {
        const struct v16 k0 = v16_load(t->k + (size_t)d * STEP);
        const struct v16 k1 = v16_load(t->k + (size_t)(d + 1) * STEP);
#pragma GCC unroll 8
        for (int i = 0; i < nq; i++) {
            even[i] = v16_fma(v16_set1(q[i * t->padded + d]), k0, even[i]);
            odd[i] = v16_fma(v16_set1(q[i * t->padded + d + 1]), k1, odd[i]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < nq; i++)
        v16_store(t->score + (size_t)(first + i) * STEP, v16_add(even[i], odd[i]));
}

/* Scores become weights; what the query gathered before is to be multiplied by keep. */
static inline void weigh_query(const struct attention_tiles *t, uint32_t i, uint32_t n_keys)
{
    float *score = t->score + (size_t)i * STEP, *sum = t->sum + (size_t)i * STEP;
    struct v16 s = v16_load(score);
    if (n_keys < STEP)
        s = v16_first(s, n_keys, -INFINITY);
    const float step_max = v16_reduce_max(s), old_max = t->max[i];
    struct v16 keep = v16_set1(1.0f);
    if (step_max > old_max) {
        keep = v16_exp2(v16_set1(old_max - step_max));
        t->max[i] = step_max;
    }
    struct v16 p = v16_exp2(v16_sub(s, v16_set1(t->max[i])));
    if (n_keys < STEP)
        p = v16_first(p, n_keys, 0.0f);
    v16_store(score, p);
    v16_store(sum, v16_fma(v16_load(sum), keep, p));
    float lanes[16];
    v16_store(lanes, keep);
    t->keep[i] = lanes[0];
}

ALWAYS_INLINE void gather_values(const struct attention_tiles *t, uint32_t first, const int nq,
                                 uint32_t d, const int nc, uint32_t n_keys)
{
    struct v16 acc[SIMD_QUERIES][4];
    float *out = t->out + (size_t)first * t->padded + d;
    const float *p = t->score + (size_t)first * STEP;
#pragma GCC unroll 8
    for (int i = 0; i < nq; i++)
#pragma GCC unroll 4
        for (int c = 0; c < nc; c++)
            acc[i][c] =
                v16_mul(v16_load(out + i * t->padded + 16 * c), v16_set1(t->keep[first + i]));
    for (uint32_t k = 0; k < n_keys; k++) {
        const float *row = t->v + (size_t)k * t->padded + d;
        struct v16 v[4];
#pragma GCC unroll 4
        for (int c = 0; c < nc; c++)
            v[c] = v16_load(row + 16 * c);
#pragma GCC unroll 8
        for (int i = 0; i < nq; i++) {
            const struct v16 w = v16_set1(p[i * STEP + k]);
#pragma GCC unroll 4
            for (int c = 0; c < nc; c++)
                acc[i][c] = v16_fma(w, v[c], acc[i][c]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < nq; i++)
#pragma GCC unroll 4
        for (int c = 0; c < nc; c++)
            v16_store(out + i * t->padded + 16 * c, acc[i][c]);
}

/* One step for nq queries that all see its first n_keys keys. */
ALWAYS_INLINE void fold_queries(const struct attention_tiles *t, uint32_t first, const int nq,
                                uint32_t n_keys)
{
    score_queries(t, first, nq);
    for (int i = 0; i < nq; i++)
        weigh_query(t, first + i, n_keys);
    uint32_t d = 0;
    for (; d + 16 * SIMD_CHUNKS <= t->padded; d += 16 * SIMD_CHUNKS)
        gather_values(t, first, nq, d, SIMD_CHUNKS, n_keys);
    for (; d < t->padded; d += 16)
        gather_values(t, first, nq, d, 1, n_keys);
}

static void fold_range(const struct attention_tiles *t, uint32_t first, uint32_t end,
                       uint32_t n_keys)
{
    for (; first + SIMD_QUERIES <= end; first += SIMD_QUERIES)
        fold_queries(t, first, SIMD_QUERIES, n_keys);
    for (; first + 3 <= end; first += 3)
        fold_queries(t, first, 3, n_keys);
    for (; first < end; first++)
        fold_queries(t, first, 1, n_keys);
}

static inline void finish_queries(const struct paged_attention *a, const struct attention_tiles *t)
{
    for (uint32_t i = 0; i < t->n; i++) {
        float *out =
            a->out + i / a->n_queries * a->row_stride + (size_t)(i % a->n_queries) * a->head_dim;
        const struct v16 sum = v16_set1(v16_reduce_add(v16_load(t->sum + (size_t)i * STEP)));
        for (uint32_t d = 0; d < a->head_dim; d += 16) {
            const struct v16 y = v16_div(v16_load(t->out + (size_t)i * t->padded + d), sum);
            if (a->head_dim - d < 16)
                v16_store_first(out + d, y, a->head_dim - d);
            else
                v16_store(out + d, y);
        }
    }
}

static void load_format(const struct paged_attention *a, const struct attention_tiles *t,
                        const struct step_rows *rows, uint32_t n)
{
    switch (a->format) {
    case TENSOR_F16:
        load_step(a, t, TENSOR_F16, rows, n);
        break;
    case TENSOR_BF16:
        load_step(a, t, TENSOR_BF16, rows, n);
        break;
    case TENSOR_F32:
    case TENSOR_Q4_0:
    case TENSOR_Q4_1:
    case TENSOR_Q8_0: /* no pool has these: refused at open */
        load_step(a, t, TENSOR_F32, rows, n);
        break;
    }
}

static inline void simd_paged_attention(const struct paged_attention *a)
{
    assert(a->head_dim <= 256 && a->n_rows <= PAGED_ATTENTION_ROWS);
    const struct attention_tiles t = tiles_of(a);
    start_queries(a, &t);
    const uint32_t end = a->position + a->n_rows; /* keys of the last row */
    for (uint32_t k = 0; k < end; k += STEP) {
        const uint32_t n = end - k < STEP ? end - k : STEP;
        struct step_rows rows;
        if (end - k > AHEAD * STEP) {
            const uint32_t left = end - k - AHEAD * STEP;
            find_rows(a, k + AHEAD * STEP, left < STEP ? left : STEP, &rows);
            prefetch_rows(a, &rows);
        }
        find_rows(a, k, n, &rows);
        load_format(a, &t, &rows, n);
        /* rows that end within the step see a part of it; later ones all */
        uint32_t r = k > a->position ? k - a->position : 0;
        for (; r < a->n_rows && a->position + r + 1 < k + STEP; r++)
            fold_range(&t, r * a->n_queries, (r + 1) * a->n_queries, a->position + r + 1 - k);
        fold_range(&t, r * a->n_queries, t.n, STEP);
    }
    finish_queries(a, &t);
}
