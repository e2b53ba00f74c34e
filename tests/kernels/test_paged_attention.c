/* Does every path attend to the right keys, and to nothing else? The oracle is softmax(q K^T) V in
 * double, written out here, over K and V as the pool holds them. */
#include "tests/kernels/support_rows.h"
#include "worker/cpu/dequant.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

TestSuite(paged_attention, .timeout = 60);

enum { POSITIONS = 70, BLOCKS = 40, HEADS = 2, MAX_DIM = 256 };

struct setting {
    enum cpu_isa isa;
    enum tensor_type format;
    uint32_t head_dim, n_queries, block_size;
};

struct pool {
    unsigned char *bytes;
    uint32_t blocks[POSITIONS];
    struct paged_attention job; /* for head 1 */
    float *q, *out;             /* [ROWS][n_queries][head_dim] */
};

/* A pool whose unwritten slots are NaN, with positions 0 .. n - 1 of head 1 filled. */
static struct pool pool_new(const struct setting *s, uint32_t n)
{
    const size_t row = tensor_type_row_bytes(s->format, s->head_dim);
    const size_t head = row * s->block_size;
    const size_t n_floats = (size_t)PAGED_ATTENTION_ROWS * s->n_queries * s->head_dim;
    const size_t scratch = paged_attention_scratch_bytes(s->head_dim, s->n_queries);
    struct pool p = {.bytes = malloc(2 * HEADS * head * BLOCKS),
                     .q = calloc(n_floats, sizeof(float)),
                     .out = calloc(n_floats, sizeof(float))};
    memset(p.bytes, 0xff, 2 * HEADS * head * BLOCKS);
    rows_fill(7, p.q, n_floats, 2.0f);
    p.job = (struct paged_attention){.pool = p.bytes,
                                     .block_bytes = 2 * HEADS * head,
                                     .block_size = s->block_size,
                                     .format = s->format,
                                     .k_offset = head,
                                     .v_offset = (HEADS + 1) * head,
                                     .head_dim = s->head_dim,
                                     .n_queries = s->n_queries,
                                     .q = p.q,
                                     .out = p.out,
                                     .row_stride = (size_t)s->n_queries * s->head_dim,
                                     .scale = 1.0f / sqrtf((float)s->head_dim),
                                     .scratch = aligned_alloc(64, (scratch + 63) / 64 * 64)};
    for (uint32_t i = 0; i < n; i++) {
        float x[2 * MAX_DIM];
        rows_fill(100 + i, x, 2 * s->head_dim, 1.5f);
        p.blocks[i / s->block_size] = (i / s->block_size * 7 + 3) % BLOCKS;
        unsigned char *k = p.bytes + p.blocks[i / s->block_size] * p.job.block_bytes + head +
                           i % s->block_size * row;
        kv_format_store_plain(s->format, x, s->head_dim, k);
        kv_format_store_plain(s->format, x + s->head_dim, s->head_dim, k + HEADS * head);
    }
    return p;
}

static void pool_fini(struct pool *p)
{
    free(p->bytes);
    free(p->q);
    free(p->out);
    free(p->job.scratch);
}

static void attend_exactly(const struct paged_attention *a, uint32_t row, uint32_t query,
                           double *out)
{
    const uint32_t n = a->position + row + 1, dim = a->head_dim;
    const float *q = a->q + row * a->row_stride + (size_t)query * dim;
    double score[POSITIONS], max = -INFINITY, sum = 0;
    float x[MAX_DIM];
    for (uint32_t i = 0; i < n; i++) {
        dequant_row(a->format, paged_attention_slot(a, i, a->k_offset), dim, x);
        score[i] = 0;
        for (uint32_t d = 0; d < dim; d++)
            score[i] += (double)q[d] * (double)x[d];
        score[i] /= sqrt(dim);
        max = fmax(max, score[i]);
    }
    memset(out, 0, dim * sizeof *out);
    for (uint32_t i = 0; i < n; i++)
        sum += score[i] = exp(score[i] - max);
    for (uint32_t i = 0; i < n; i++) {
        dequant_row(a->format, paged_attention_slot(a, i, a->v_offset), dim, x);
        for (uint32_t d = 0; d < dim; d++)
            out[d] += score[i] / sum * (double)x[d];
    }
}

/* f32 sums of up to 70 products of values up to 1.5, weights off by some 1e-6: 2e-5 absolute. */
static void check_rows(const struct setting *s, uint32_t position, uint32_t n_rows)
{
    struct pool p = pool_new(s, position + n_rows);
    p.job.blocks = p.blocks;
    p.job.position = position;
    p.job.n_rows = n_rows;
    cpu_ops_of(s->isa).attend(&p.job);
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t g = 0; g < s->n_queries; g++) {
            double exact[MAX_DIM];
            attend_exactly(&p.job, r, g, exact);
            for (uint32_t d = 0; d < s->head_dim; d++)
                cr_assert_float_eq(
                    (double)p.out[r * p.job.row_stride + (size_t)g * s->head_dim + d], exact[d],
                    2e-5, "%s, format %d, head_dim %u, %u queries, position %u + %u, value %u",
                    cpu_isa_name(s->isa), (int)s->format, s->head_dim, s->n_queries, position, r,
                    d);
        }
    pool_fini(&p);
}

Test(paged_attention, every_path_equals_the_definition_in_double)
{
    const enum tensor_type formats[] = {TENSOR_F16, TENSOR_BF16, TENSOR_F32};
    const uint32_t dims[] = {64, 128, 256, 16, 2, 20, 90};
    const struct {
        uint32_t position, n_rows;
    } spans[] = {{0, 1}, {0, 16}, {15, 1}, {16, 1}, {31, 2}, {50, 16}, {5, 13}};
    enum cpu_isa isas[3];
    const uint32_t n_isas = rows_isas(isas);
    for (uint32_t i = 0; i < n_isas; i++)
        for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
            for (size_t k = 0; k < sizeof spans / sizeof *spans; k++) {
                const struct setting s = {.isa = isas[i],
                                          .format = formats[(d + k) % 3],
                                          .head_dim = dims[d],
                                          .n_queries = 1 + (uint32_t)(d + k) % 5,
                                          .block_size = (k % 3 == 0)   ? 16
                                                        : (k % 3 == 1) ? 32
                                                                       : 5};
                check_rows(&s, spans[k].position, spans[k].n_rows);
            }
}

/* A row of a prefill is the decode of that position, to the last bit. */
Test(paged_attention, a_row_among_others_has_the_bits_of_a_row_alone)
{
    enum cpu_isa isas[3];
    const uint32_t n_isas = rows_isas(isas);
    for (uint32_t i = 0; i < n_isas; i++) {
        const struct setting s = {isas[i], TENSOR_F16, 64, 3, 16};
        struct pool p = pool_new(&s, 53), alone = pool_new(&s, 53);
        p.job.blocks = alone.job.blocks = p.blocks;
        p.job.position = 40;
        p.job.n_rows = 13;
        cpu_ops_of(s.isa).attend(&p.job);
        for (uint32_t r = 0; r < p.job.n_rows; r++) {
            alone.job.position = p.job.position + r;
            alone.job.n_rows = 1;
            alone.job.q = p.q + r * p.job.row_stride;
            cpu_ops_of(s.isa).attend(&alone.job);
            cr_assert_arr_eq(p.out + r * p.job.row_stride, alone.out,
                             p.job.row_stride * sizeof(float), "%s, row %u", cpu_isa_name(s.isa),
                             r);
        }
        pool_fini(&p);
        pool_fini(&alone);
    }
}
