/* In which order is a Llama step computed, and which thread does what?
 * A layer is a chain of phases between barriers; within one, threads take units of work (some rows,
 * some outputs, a head) until none is left. Invariant: a unit's result is the same whoever does it
 * and however many rows the batch has: rows never meet but in attention, through the stored K and V
 * of their own sequence.
 * Does not know requests, sampling or who owns the blocks. */
#include "worker/model/llama_step.h"

#include "worker/cpu/dequant.h"

#include <math.h>

enum {
    ROWS_A_UNIT = 16,
    PIECES_A_THREAD = 4, /* finer than one, so that a thread that lost its core holds up little */
};

/* One matrix of a phase; y: [rows][n_out]. */
struct product {
    const struct matmul_weight *w;
    float *y;
    uint32_t n_out;
};

static uint32_t divide_up(uint32_t a, uint32_t b)
{
    return (a + b - 1) / b;
}

/* --- rows --------------------------------------------------------------------------------------
 */

static void embed(const struct llama_step *s)
{
    const uint32_t dim = s->shape->dim;
    const unsigned char *table = s->weights->embedding;
    const size_t row_bytes = tensor_type_row_bytes(s->weights->embedding_type, dim);
    uint32_t r;
    while ((r = thread_pool_next(s->team)) < s->batch->n_tokens)
        dequant_row(s->weights->embedding_type, table + s->batch->tokens[r] * row_bytes, dim,
                    s->x + (size_t)r * dim);
    thread_pool_barrier(s->team);
}

/* Rows [begin, end) of x (of x[rows[i]] if rows is given), normalised. */
static void norm_rows(const struct llama_step *s, const uint32_t *rows, const float *w,
                      uint32_t begin, uint32_t end, float *out)
{
    const uint32_t dim = s->shape->dim;
    for (uint32_t i = begin; i < end; i++)
        s->ops.rmsnorm(s->x + (size_t)(rows ? rows[i] : i) * dim, w, dim, s->shape->norm_eps,
                       out + (size_t)i * dim);
}

/* The matrices' input: n rows of the residual stream, normalised by w. */
static const void *norm_input(const struct llama_step *s, uint32_t thread, const uint32_t *rows,
                              uint32_t n, const float *w)
{
    const uint32_t dim = s->shape->dim;
    if (n <= LLAMA_STEP_PRIVATE_ROWS) {
        const struct llama_scratch *own = &s->scratch[thread];
        norm_rows(s, rows, w, 0, n, own->norm);
        matmul_prepare(s->isa, s->weights->input_form, own->norm, n, dim, 0, n, own->input);
        return own->input;
    }
    uint32_t begin;
    while ((begin = thread_pool_next(s->team) * ROWS_A_UNIT) < n) {
        const uint32_t end = n - begin < ROWS_A_UNIT ? n : begin + ROWS_A_UNIT;
        norm_rows(s, rows, w, begin, end, s->norm);
        matmul_prepare(s->isa, s->weights->input_form, s->norm, n, dim, begin, end, s->input);
    }
    thread_pool_barrier(s->team);
    return s->input;
}

/* The matrices' input: the batch's rows of y: [rows][n_in], as they are. */
static const void *plain_input(const struct llama_step *s, uint32_t thread, const float *y,
                               uint32_t n_in)
{
    const uint32_t n = s->batch->n_tokens;
    if (n <= LLAMA_STEP_PRIVATE_ROWS) {
        matmul_prepare(s->isa, s->weights->input_form, y, n, n_in, 0, n, s->scratch[thread].input);
        return s->scratch[thread].input;
    }
    uint32_t begin;
    while ((begin = thread_pool_next(s->team) * ROWS_A_UNIT) < n) {
        const uint32_t end = n - begin < ROWS_A_UNIT ? n : begin + ROWS_A_UNIT;
        matmul_prepare(s->isa, s->weights->input_form, y, n, n_in, begin, end, s->input);
    }
    thread_pool_barrier(s->team);
    return s->input;
}

/* --- matrices ----------------------------------------------------------------------------------
 */

/* Outputs of one unit of work. */
static uint32_t piece_of(const struct llama_step *s, const struct product *p)
{
    const uint32_t n_threads = thread_pool_n_threads(s->team);
    const uint32_t tile = matmul_weight_tile(p->w);
    if (n_threads == 1)
        return p->n_out;
    return divide_up(divide_up(p->n_out, n_threads * PIECES_A_THREAD), tile) * tile;
}

static uint32_t pieces_of(const struct llama_step *s, const struct product *p)
{
    return divide_up(p->n_out, piece_of(s, p));
}

static void run_product(const struct product *p, const void *input, uint32_t n_rows, uint32_t begin,
                        uint32_t end)
{
    matmul_run(p->w, input, n_rows, begin, end, p->y, p->n_out);
}

static uint32_t piece_end(const struct product *p, uint32_t begin, uint32_t piece)
{
    return p->n_out - begin < piece ? p->n_out : begin + piece;
}

/* All outputs of n products of one input. */
static void multiply(const struct llama_step *s, const void *input, uint32_t n_rows,
                     const struct product *products, uint32_t n)
{
    uint32_t first = 0, i = 0;
    for (;;) {
        const uint32_t unit = thread_pool_next(s->team);
        /* units ascend, so the product at hand never goes back */
        while (i < n && unit - first >= pieces_of(s, &products[i]))
            first += pieces_of(s, &products[i++]);
        if (i == n)
            break;
        const uint32_t piece = piece_of(s, &products[i]), begin = (unit - first) * piece;
        run_product(&products[i], input, n_rows, begin, piece_end(&products[i], begin, piece));
    }
    thread_pool_barrier(s->team);
}

/* x += W input, for the batch's rows. */
static void multiply_and_add(const struct llama_step *s, const void *input,
                             const struct matmul_weight *w)
{
    const uint32_t dim = s->shape->dim;
    const struct product p = {w, s->delta, dim};
    const uint32_t piece = piece_of(s, &p);
    uint32_t begin;
    while ((begin = thread_pool_next(s->team) * piece) < dim) {
        const uint32_t end = piece_end(&p, begin, piece);
        run_product(&p, input, s->batch->n_tokens, begin, end);
        for (size_t r = 0; r < s->batch->n_tokens; r++)
            for (uint32_t o = begin; o < end; o++)
                s->x[r * dim + o] += s->delta[r * dim + o];
    }
    thread_pool_barrier(s->team);
}

/* gate = silu(gate input) * (up input), for the batch's rows. */
static void multiply_gated(const struct llama_step *s, const void *input,
                           const struct llama_layer *layer)
{
    const uint32_t ffn = s->shape->ffn_dim;
    const struct product gate = {layer->gate, s->gate, ffn}, up = {layer->up, s->up, ffn};
    /* the two may differ in type, and so in tile */
    const uint32_t a = piece_of(s, &gate), b = piece_of(s, &up);
    const uint32_t piece = a == b ? a : ffn;
    uint32_t begin;
    while ((begin = thread_pool_next(s->team) * piece) < ffn) {
        const uint32_t end = piece_end(&gate, begin, piece);
        run_product(&gate, input, s->batch->n_tokens, begin, end);
        run_product(&up, input, s->batch->n_tokens, begin, end);
        for (size_t r = 0; r < s->batch->n_tokens; r++)
            s->ops.swiglu(s->gate + r * ffn + begin, s->up + r * ffn + begin, end - begin);
    }
    thread_pool_barrier(s->team);
}

/* --- attention ---------------------------------------------------------------------------------
 */

/* Bytes of [slot][head_dim] of one head in a block. */
static size_t head_bytes(const struct llama_step *s)
{
    return s->block_size * tensor_type_row_bytes(s->kv_format, s->shape->head_dim);
}

static size_t k_offset(const struct llama_step *s, uint32_t layer, uint32_t head)
{
    return ((size_t)layer * 2 * s->shape->n_kv_heads + head) * head_bytes(s);
}

/* Turns the tile's queries and keys of one key/value head, and stores its keys and values. */
static void store_tile(const struct llama_step *s, const struct llama_tile *t, uint32_t layer,
                       uint32_t head)
{
    const struct model_shape *m = s->shape;
    const uint32_t group = m->n_heads / m->n_kv_heads;
    const size_t row_bytes = tensor_type_row_bytes(s->kv_format, m->head_dim);
    const size_t to_v = m->n_kv_heads * head_bytes(s);
    for (uint32_t i = 0; i < t->n_rows; i++) {
        const size_t row = t->sequence->first_row + t->first + i;
        const uint32_t position = t->sequence->position + t->first + i;
        const size_t kv = (row * m->n_kv_heads + head) * m->head_dim;
        rope_table_apply(s->rope, position, s->q + (row * m->n_heads + head * group) * m->head_dim,
                         group);
        rope_table_apply(s->rope, position, s->k + kv, 1);
        unsigned char *slot = s->kv_pool +
                              t->sequence->blocks[position / s->block_size] * s->block_bytes +
                              k_offset(s, layer, head) + position % s->block_size * row_bytes;
        s->ops.kv_store(s->kv_format, s->k + kv, m->head_dim, slot);
        s->ops.kv_store(s->kv_format, s->v + kv, m->head_dim, slot + to_v);
    }
}

static void attend_tile(const struct llama_step *s, const struct llama_tile *t, uint32_t layer,
                        uint32_t head, float *scratch)
{
    const struct model_shape *m = s->shape;
    const uint32_t group = m->n_heads / m->n_kv_heads;
    const size_t row = t->sequence->first_row + t->first;
    const size_t at = (row * m->n_heads + head * group) * m->head_dim;
    const struct paged_attention job = {
        .pool = s->kv_pool,
        .block_bytes = s->block_bytes,
        .block_size = s->block_size,
        .format = s->kv_format,
        .k_offset = k_offset(s, layer, head),
        .v_offset = k_offset(s, layer, head) + m->n_kv_heads * head_bytes(s),
        .blocks = t->sequence->blocks,
        .position = t->sequence->position + t->first,
        .n_rows = t->n_rows,
        .head_dim = m->head_dim,
        .n_queries = group,
        .q = s->q + at,
        .out = s->attention + at,
        .row_stride = (size_t)m->n_heads * m->head_dim,
        .scale = 1.0f / sqrtf((float)m->head_dim),
        .scratch = scratch,
    };
    s->ops.attend(&job);
}

/* All tiles and heads: keys are stored, rounded, before any query reads them. */
static void attend(const struct llama_step *s, uint32_t thread, uint32_t layer)
{
    const uint32_t n_heads = s->shape->n_kv_heads;
    const uint32_t n_units = s->n_tiles * n_heads;
    float *scratch = s->scratch[thread].attention;
    uint32_t unit;
    if (!s->is_short) {
        while ((unit = thread_pool_next(s->team)) < n_units)
            store_tile(s, &s->tiles[unit / n_heads], layer, unit % n_heads);
        thread_pool_barrier(s->team);
    }
    while ((unit = thread_pool_next(s->team)) < n_units) {
        /* the last rows of a prompt have the most keys: first, so that the end is even */
        const struct llama_tile *t = &s->tiles[s->n_tiles - 1 - unit / n_heads];
        if (s->is_short)
            store_tile(s, t, layer, unit % n_heads);
        attend_tile(s, t, layer, unit % n_heads, scratch);
    }
    thread_pool_barrier(s->team);
}

/* --- the step ----------------------------------------------------------------------------------
 */

static void run_layer(const struct llama_step *s, uint32_t thread, uint32_t index)
{
    const struct model_shape *m = s->shape;
    const struct llama_layer *layer = &s->weights->layers[index];
    const uint32_t n = s->batch->n_tokens;
    const uint32_t q_dim = m->n_heads * m->head_dim, kv_dim = m->n_kv_heads * m->head_dim;
    const struct product qkv[] = {
        {layer->q, s->q, q_dim}, {layer->k, s->k, kv_dim}, {layer->v, s->v, kv_dim}};

    multiply(s, norm_input(s, thread, NULL, n, layer->attn_norm), n, qkv, 3);
    attend(s, thread, index);
    multiply_and_add(s, plain_input(s, thread, s->attention, q_dim), layer->o);

    multiply_gated(s, norm_input(s, thread, NULL, n, layer->ffn_norm), layer);
    multiply_and_add(s, plain_input(s, thread, s->gate, m->ffn_dim), layer->down);
}

void llama_step_run(void *step, uint32_t thread)
{
    const struct llama_step *s = step;
    embed(s);
    for (uint32_t i = 0; i < s->shape->n_layers; i++)
        run_layer(s, thread, i);
    const uint32_t n = s->batch->n_logit_rows;
    if (n == 0)
        return;
    const struct product head = {s->weights->head, s->logits, s->shape->vocab_size};
    const void *input = norm_input(s, thread, s->batch->logit_rows, n, s->weights->output_norm);
    multiply(s, input, n, &head, 1);
}
