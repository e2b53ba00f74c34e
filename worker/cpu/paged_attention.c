/* What do earlier tokens say to this one? The plain path, and the oracle of the others.
 * Invariant: a query's result depends on its own q and the stored K and V of positions up to its
 * own, folded in steps of 16 aligned keys; other rows of the job leave no trace.
 * Does not know models, threads, or who wrote the blocks. */
#include "worker/cpu/paged_attention.h"

#include "worker/cpu/dequant.h"

#include <assert.h>
#include <math.h>

enum { MAX_HEAD_DIM = 256, LANES = 16 };

/* A query's state between steps. */
struct running {
    float max, sum;
    float out[MAX_HEAD_DIM];
};

size_t paged_attention_scratch_bytes(uint32_t head_dim, uint32_t n_queries)
{
    const size_t padded = (head_dim + LANES - 1) / LANES * LANES;
    const size_t n = (size_t)PAGED_ATTENTION_ROWS * n_queries;
    const size_t tiles = 2 * LANES * padded;
    const size_t a_query = 2 * padded + 2 * LANES + 2; /* q, out; scores, sums; maximum, factor */
    return (tiles + n * a_query + LANES) * sizeof(float);
}

static float dot(const float *a, const float *b, uint32_t n)
{
    float sum = 0.0f;
    for (uint32_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Folds keys first .. first + n - 1 into the query's state. */
static void fold_step(const struct paged_attention *a, const float *q, uint32_t first, uint32_t n,
                      struct running *s)
{
    float row[MAX_HEAD_DIM], score[PAGED_ATTENTION_STEP];
    float max = s->max;
    for (uint32_t i = 0; i < n; i++) {
        dequant_row(a->format, paged_attention_slot(a, first + i, a->k_offset), a->head_dim, row);
        score[i] = dot(q, row, a->head_dim) * a->scale;
        max = score[i] > max ? score[i] : max;
    }
    const float keep = expf(s->max - max);
    s->max = max;
    s->sum *= keep;
    for (uint32_t d = 0; d < a->head_dim; d++)
        s->out[d] *= keep;
    for (uint32_t i = 0; i < n; i++) {
        const float p = expf(score[i] - max);
        s->sum += p;
        dequant_row(a->format, paged_attention_slot(a, first + i, a->v_offset), a->head_dim, row);
        for (uint32_t d = 0; d < a->head_dim; d++)
            s->out[d] += p * row[d];
    }
}

void paged_attention_plain(const struct paged_attention *a)
{
    assert(a->head_dim <= MAX_HEAD_DIM && a->n_rows <= PAGED_ATTENTION_ROWS);
    for (uint32_t r = 0; r < a->n_rows; r++) {
        const uint32_t n_keys = a->position + r + 1;
        for (uint32_t g = 0; g < a->n_queries; g++) {
            const size_t at = r * a->row_stride + (size_t)g * a->head_dim;
            struct running s = {.max = -INFINITY};
            for (uint32_t k = 0; k < n_keys; k += PAGED_ATTENTION_STEP) {
                const uint32_t left = n_keys - k;
                fold_step(a, a->q + at, k,
                          left < PAGED_ATTENTION_STEP ? left : PAGED_ATTENTION_STEP, &s);
            }
            for (uint32_t d = 0; d < a->head_dim; d++)
                a->out[at + d] = s.out[d] / s.sum;
        }
    }
}
