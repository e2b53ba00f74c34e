/* Which kernel computes y = x W^T, and in what order are tiles and rows visited? Lays out the
 * prepared input and hands pieces to the kernels of the ISA path.
 *
 * Invariant: what a kernel computes for a row depends on no other row, so neither the groups nor
 * the strips here can change a bit. The layouts are described in matmul_impl.h.
 * Does not know threads (callers split outputs and rows between them), nor how weights are
 * repacked (matmul_weight.c). */
#include "worker/cpu/matmul.h"

#include "worker/cpu/matmul_impl.h"

#include <assert.h>
#include <string.h>

/* Rows are taken in strips whose activations stay in a second-level cache beside a weight tile. */
enum { STRIP_BYTES = 768 * 1024 };

static size_t align64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

static size_t blocks_for(size_t n_in)
{
    return (n_in + MATMUL_BLOCK - 1) / MATMUL_BLOCK;
}

static size_t f32_bytes(size_t n_rows, size_t n_in)
{
    return align64(n_rows * n_in * sizeof(float));
}

static size_t quants_bytes(size_t n_rows, size_t n_in)
{
    return align64(n_rows * blocks_for(n_in) * MATMUL_ROW_BYTES);
}

size_t matmul_input_bytes(enum cpu_isa isa, uint32_t n_rows, uint32_t n_in)
{
    size_t bytes = f32_bytes(n_rows, n_in);
    if (isa != CPU_ISA_PLAIN)
        bytes += quants_bytes(n_rows, n_in) +
                 align64(n_rows * blocks_for(n_in) * sizeof(struct matmul_meta)) +
                 MATMUL_AMX_OVERREAD;
    return bytes;
}

/* Index of row r's first block among all blocks, and the step between its blocks. */
static size_t first_block(size_t n_rows, size_t n_blocks, size_t r, size_t *step)
{
    const size_t group = r / MATMUL_GROUP * MATMUL_GROUP;
    *step = n_rows - group < MATMUL_GROUP ? n_rows - group : MATMUL_GROUP;
    return group * n_blocks + (r - group);
}

static void quantise_row(matmul_quantise_fn *quantise, const float *x, size_t n_in, int8_t *q,
                         struct matmul_meta *meta, size_t step)
{
    const size_t n_whole = n_in / MATMUL_BLOCK, k = n_whole * MATMUL_BLOCK;
    quantise(x, n_whole, q, meta, step);
    if (k < n_in) {
        float rest[MATMUL_BLOCK] = {0};
        memcpy(rest, x + k, (n_in - k) * sizeof *rest);
        quantise(rest, 1, q + n_whole * step * MATMUL_ROW_BYTES, meta + n_whole * step, step);
    }
}

void matmul_prepare(enum cpu_isa isa, enum matmul_form form, const float *x, uint32_t n_rows,
                    uint32_t n_in, uint32_t row_begin, uint32_t row_end, void *input)
{
    assert(row_begin <= row_end && row_end <= n_rows);
    matmul_quantise_fn *quantise =
        isa == CPU_ISA_AVX512 ? matmul_avx512_quantise : matmul_avx2_quantise;
    float *f32 = input;
    uint8_t *at = (uint8_t *)input + f32_bytes(n_rows, n_in);
    int8_t *q = (int8_t *)at;
    struct matmul_meta *meta = (struct matmul_meta *)(void *)(at + quants_bytes(n_rows, n_in));
    for (size_t r = row_begin; r < row_end; r++) {
        size_t step;
        const size_t block = first_block(n_rows, blocks_for(n_in), r, &step);
        if (isa != CPU_ISA_PLAIN && form & MATMUL_FORM_QUANTS)
            quantise_row(quantise, x + r * n_in, n_in, q + block * MATMUL_ROW_BYTES, meta + block,
                         step);
        if (form & MATMUL_FORM_F32)
            memcpy(f32 + r * n_in, x + r * n_in, n_in * sizeof *x); /* while the row is in cache */
    }
}

static struct matmul_input take_apart(const struct matmul_weight *m, const void *input,
                                      uint32_t n_rows)
{
    struct matmul_input in = {.x = input, .n_rows = n_rows};
    if (m->isa != CPU_ISA_PLAIN) {
        const uint8_t *at = (const uint8_t *)input + f32_bytes(n_rows, m->n_in);
        in.quants = (const int8_t *)at;
        in.meta = (const struct matmul_meta *)(const void *)(at + quants_bytes(n_rows, m->n_in));
    }
    return in;
}

static uint32_t rows_of_strip(size_t row_bytes)
{
    const size_t groups = STRIP_BYTES / (row_bytes * MATMUL_GROUP);
    return (uint32_t)(groups ? groups * MATMUL_GROUP : MATMUL_GROUP);
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* One tile times the rows [begin, end), which start at a group's first row. */
static void run_quant_tile(const struct matmul_job *job, matmul_quant_fn *kernel, size_t tile,
                           uint32_t begin, uint32_t end)
{
    const struct matmul_weight *m = job->m;
    const uint8_t *w = m->data + tile * m->tile_bytes;
    const uint32_t first_output = (uint32_t)tile * m->lanes;
    struct matmul_quant_piece p = {.quants = w,
                                   .scales = w + m->n_blocks * m->quant_bytes,
                                   .n_blocks = m->n_blocks,
                                   .n_outputs = min_u32(m->lanes, m->n_out - first_output),
                                   .y_stride = job->y_stride};
    const uint32_t n = end - begin, left = n % MATMUL_GROUP;
    const uint32_t n_tiled = !m->has_amx ? 0 : left < MATMUL_AMX_ROWS ? n - left : n;
    for (uint32_t r = begin; r < end; r += p.n_rows) {
        p.q = job->in.quants + (size_t)r * m->n_blocks * MATMUL_ROW_BYTES;
        p.meta = job->in.meta + (size_t)r * m->n_blocks;
        p.n_rows = min_u32(MATMUL_GROUP, end - r);
        p.y = job->y + r * job->y_stride + first_output;
        if (n_tiled && r == begin) {
            p.n_rows = n_tiled;
            matmul_amx_quant(m->type, &p);
        } else {
            kernel(m->type, &p);
        }
    }
}

static void run_quant(const struct matmul_job *job, matmul_quant_fn *kernel)
{
    const struct matmul_weight *m = job->m;
    const uint32_t strip =
        rows_of_strip(m->n_blocks * (MATMUL_ROW_BYTES + sizeof(struct matmul_meta)));
    const bool is_tiled = m->has_amx && job->in.n_rows >= MATMUL_AMX_ROWS;
    if (is_tiled)
        matmul_amx_begin(m->type);
    for (uint32_t r = 0; r < job->in.n_rows; r += strip)
        for (uint32_t o = job->out_begin; o < job->out_end; o += m->lanes)
            run_quant_tile(job, kernel, o / m->lanes, r, min_u32(r + strip, job->in.n_rows));
    if (is_tiled)
        matmul_amx_end();
}

static void run_float(const struct matmul_job *job, matmul_float_fn *kernel)
{
    const struct matmul_weight *m = job->m;
    const uint32_t strip = rows_of_strip(m->n_in * sizeof(float));
    const uint32_t tiles_at_once = 4;
    for (uint32_t r = 0; r < job->in.n_rows; r += strip)
        for (uint32_t o = job->out_begin; o < job->out_end; o += tiles_at_once * m->lanes) {
            const uint32_t n = min_u32(job->out_end - o, tiles_at_once * m->lanes);
            const struct matmul_float_piece p = {.w = m->data + o / m->lanes * m->tile_bytes,
                                                 .tile_bytes = m->tile_bytes,
                                                 .x = job->in.x + (size_t)r * m->n_in,
                                                 .n_in = m->n_in,
                                                 .n_rows = min_u32(strip, job->in.n_rows - r),
                                                 .n_tiles = (n + m->lanes - 1) / m->lanes,
                                                 .n_outputs = n,
                                                 .y = job->y + r * job->y_stride + o,
                                                 .y_stride = job->y_stride};
            kernel(m->type, &p);
        }
}

void matmul_run(const struct matmul_weight *m, const void *input, uint32_t n_rows,
                uint32_t out_begin, uint32_t out_end, float *y, size_t y_stride)
{
    assert(out_begin % m->lanes == 0 && out_end <= m->n_out);
    assert(out_end % m->lanes == 0 || out_end == m->n_out);
    const struct matmul_job job = {.m = m,
                                   .in = take_apart(m, input, n_rows),
                                   .out_begin = out_begin,
                                   .out_end = out_end,
                                   .y = y,
                                   .y_stride = y_stride};
    switch (m->isa) {
    case CPU_ISA_PLAIN:
        matmul_plain_run(&job);
        return;
    case CPU_ISA_AVX2:
        if (m->n_blocks)
            run_quant(&job, matmul_avx2_quant);
        else
            run_float(&job, matmul_avx2_float);
        return;
    case CPU_ISA_AVX512:
        if (m->n_blocks)
            run_quant(&job, matmul_avx512_quant);
        else
            run_float(&job, matmul_avx512_float);
        return;
    }
}
