/* By how much is a query or key turned at its position?
 * One table of (cos, sin) pairs, made once in double precision. Invariant: a position inside the
 * table and one beyond it go through the same function, so the table's size changes no bit.
 * Does not know the model: frequencies come from base, scale and the file's factors. */
#include "worker/cpu/rope.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

enum { MAX_PAIRS = 128 }; /* of a head: head_dim <= 256 */

struct rope_table {
    uint32_t head_dim, n_pairs, n_positions;
    double turn[MAX_PAIRS]; /* angle of one position */
    float *cos_sin;         /* [n_positions][n_pairs][2] */
};

static void fill_row(const struct rope_table *t, uint32_t position, float *cos_sin)
{
    for (uint32_t i = 0; i < t->n_pairs; i++) {
        const double angle = (double)position * t->turn[i];
        cos_sin[2 * i] = (float)cos(angle);
        cos_sin[2 * i + 1] = (float)sin(angle);
    }
}

enum err rope_table_new(const struct rope_config *cfg, struct rope_table **out, struct err_info *ei)
{
    assert(cfg->rope_dim % 2 == 0 && cfg->rope_dim <= cfg->head_dim && cfg->head_dim <= 256);
    struct rope_table *t = calloc(1, sizeof *t);
    if (!t)
        return err_set(ei, ERR_NOMEM, "rope: no memory");
    t->head_dim = cfg->head_dim;
    t->n_pairs = cfg->rope_dim / 2;
    t->n_positions = cfg->n_positions;
    const size_t row_floats = 2 * (size_t)t->n_pairs;
    t->cos_sin = calloc((size_t)cfg->n_positions * row_floats + 1, sizeof(float));
    if (!t->cos_sin) {
        rope_table_free(t);
        return err_set(ei, ERR_NOMEM, "rope: no memory for %u positions", cfg->n_positions);
    }
    for (uint32_t i = 0; i < t->n_pairs; i++) {
        const double frequency = pow((double)cfg->base, -2.0 * i / (double)cfg->rope_dim);
        const double factor = cfg->factors ? (double)cfg->factors[i] : 1.0;
        t->turn[i] = frequency / factor / (double)cfg->scale;
    }
    for (uint32_t p = 0; p < cfg->n_positions; p++)
        fill_row(t, p, t->cos_sin + (size_t)p * row_floats);
    *out = t;
    return OK;
}

void rope_table_free(struct rope_table *t)
{
    if (!t)
        return;
    free(t->cos_sin);
    free(t);
}

void rope_table_apply(const struct rope_table *t, uint32_t position, float *x, uint32_t n_heads)
{
    float beyond[2 * MAX_PAIRS];
    const float *cos_sin = beyond;
    if (position < t->n_positions)
        cos_sin = t->cos_sin + (size_t)position * 2 * t->n_pairs;
    else
        fill_row(t, position, beyond);
    for (uint32_t h = 0; h < n_heads; h++, x += t->head_dim) {
        for (uint32_t i = 0; i < t->n_pairs; i++) {
            const float a = x[2 * i], b = x[2 * i + 1];
            const float c = cos_sin[2 * i], s = cos_sin[2 * i + 1];
            x[2 * i] = a * c - b * s;
            x[2 * i + 1] = a * s + b * c;
        }
    }
}
