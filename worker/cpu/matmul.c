/* Which kernel computes y = x W^T, and on what layout? Repacks weights for the ISA path, lays out
 * the prepared input, hands the work on.
 *
 * Invariant: a layout is a function of isa, type and shape alone, and what a kernel computes for a
 * row depends on no other row. The layouts are described in matmul_impl.h.
 * Does not know threads: callers split outputs and rows between them. */
#include "worker/cpu/matmul.h"

#include "worker/cpu/matmul_impl.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { PLAIN_TILE = 8 };

enum err matmul_weight_new(enum cpu_isa isa, enum tensor_type type, const void *w, uint32_t n_out,
                           uint32_t n_in, struct matmul_weight **out, struct err_info *ei)
{
    if (!tensor_type_is_known(type))
        return err_set(ei, ERR_UNSUPPORTED, "matmul: tensor type %u", (unsigned)type);
    if (!n_out || !n_in || n_in % tensor_type_block_values(type))
        return err_set(ei, ERR_UNSUPPORTED, "matmul: a %u x %u matrix of %s", (unsigned)n_out,
                       (unsigned)n_in, tensor_type_name(type));
    struct matmul_weight *m = calloc(1, sizeof *m);
    if (!m)
        return err_set(ei, ERR_NOMEM, "matmul: no memory");
    *m = (struct matmul_weight){
        .isa = isa, .type = type, .n_out = n_out, .n_in = n_in, .lanes = PLAIN_TILE, .data = w};
    m->size_bytes = n_out * tensor_type_row_bytes(type, n_in);
    *out = m;
    return OK;
}

void matmul_weight_free(struct matmul_weight *m)
{
    if (!m)
        return;
    free(m->owned);
    free(m);
}

size_t matmul_weight_bytes(const struct matmul_weight *m)
{
    return m->size_bytes;
}

uint32_t matmul_weight_tile(const struct matmul_weight *m)
{
    return m->lanes;
}

size_t matmul_input_bytes(enum cpu_isa isa, uint32_t n_rows, uint32_t n_in)
{
    (void)isa;
    return (size_t)n_rows * n_in * sizeof(float);
}

void matmul_prepare(enum cpu_isa isa, const float *x, uint32_t n_rows, uint32_t n_in,
                    uint32_t row_begin, uint32_t row_end, void *input)
{
    assert(row_begin <= row_end && row_end <= n_rows);
    (void)isa;
    (void)n_rows;
    float *f32 = input;
    const size_t first = (size_t)row_begin * n_in;
    memcpy(f32 + first, x + first, (size_t)(row_end - row_begin) * n_in * sizeof(float));
}

void matmul_run(const struct matmul_weight *m, const void *input, uint32_t n_rows,
                uint32_t out_begin, uint32_t out_end, float *y, size_t y_stride)
{
    assert(out_begin % m->lanes == 0 && (out_end % m->lanes == 0 || out_end == m->n_out));
    const struct matmul_job job = {.m = m,
                                   .in = {.x = input, .n_rows = n_rows},
                                   .out_begin = out_begin,
                                   .out_end = out_end,
                                   .y = y,
                                   .y_stride = y_stride};
    matmul_plain_run(&job);
}
