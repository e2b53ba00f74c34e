/* What memory does a step need, and how is a batch cut for the team?
 * Invariant: everything is allocated here, once, for max_batch_tokens rows and max_logit_rows rows
 * of logits; a step allocates nothing.
 * Does not know the order of the computation: llama_step.c does. */
#include "worker/model/llama_forward.h"

#include "worker/cpu/aligned_memory.h"
#include "worker/model/llama_step.h"

#include <assert.h>
#include <stdlib.h>

enum { ROPE_TABLE_POSITIONS = 32768 }; /* a longer context computes the rest as it goes */

struct llama_forward {
    struct llama_step step;
    struct rope_table *rope;
    uint32_t n_threads, max_rows, max_logit_rows;
};

static uint32_t max_of(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static uint32_t widest_input(const struct model_shape *m)
{
    return max_of(m->dim, max_of(m->n_heads * m->head_dim, m->ffn_dim));
}

/* [n][each] floats. */
static enum err new_floats(size_t n, size_t each, float **out, struct err_info *ei)
{
    *out = aligned_memory_new_array(n, each * sizeof **out);
    if (!*out)
        return err_set(ei, ERR_NOMEM, "forward: no memory for %zu rows of %zu values", n, each);
    return OK;
}

static enum err new_activations(struct llama_forward *f, struct err_info *ei)
{
    struct llama_step *s = &f->step;
    const struct model_shape *m = s->shape;
    const size_t q_dim = (size_t)m->n_heads * m->head_dim;
    const size_t kv_dim = (size_t)m->n_kv_heads * m->head_dim;
    const struct {
        float **to;
        size_t n, each;
    } arrays[] = {
        {&s->x, f->max_rows, m->dim},        {&s->norm, f->max_rows, m->dim},
        {&s->delta, f->max_rows, m->dim},    {&s->q, f->max_rows, q_dim},
        {&s->attention, f->max_rows, q_dim}, {&s->k, f->max_rows, kv_dim},
        {&s->v, f->max_rows, kv_dim},        {&s->gate, f->max_rows, m->ffn_dim},
        {&s->up, f->max_rows, m->ffn_dim},   {&s->logits, f->max_logit_rows, m->vocab_size},
    };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        enum err rc = new_floats(arrays[i].n, arrays[i].each, arrays[i].to, ei);
        if (rc != OK)
            return rc;
    }
    const uint32_t n_rows = max_of(f->max_rows, f->max_logit_rows);
    s->input = aligned_memory_new(matmul_input_bytes(s->isa, n_rows, widest_input(m)));
    s->tiles = calloc(f->max_rows, sizeof *s->tiles);
    if (!s->input || !s->tiles)
        return err_set(ei, ERR_NOMEM, "forward: no memory for %u rows", n_rows);
    return OK;
}

static enum err new_scratch(struct llama_forward *f, struct err_info *ei)
{
    struct llama_step *s = &f->step;
    const struct model_shape *m = s->shape;
    const uint32_t n_in = widest_input(m);
    s->scratch = calloc(f->n_threads, sizeof *s->scratch);
    if (!s->scratch)
        return err_set(ei, ERR_NOMEM, "forward: no memory for %u threads", f->n_threads);
    for (uint32_t i = 0; i < f->n_threads; i++) {
        struct llama_scratch *own = &s->scratch[i];
        own->norm = aligned_memory_new_array((size_t)LLAMA_STEP_PRIVATE_ROWS * n_in, sizeof(float));
        own->input = aligned_memory_new(matmul_input_bytes(s->isa, LLAMA_STEP_PRIVATE_ROWS, n_in));
        own->attention = aligned_memory_new(
            paged_attention_scratch_bytes(m->head_dim, m->n_heads / m->n_kv_heads));
        if (!own->norm || !own->input || !own->attention)
            return err_set(ei, ERR_NOMEM, "forward: no memory for thread %u", i);
    }
    return OK;
}

static enum err new_rope(struct llama_forward *f, struct err_info *ei)
{
    const struct model_shape *m = f->step.shape;
    const struct rope_config cfg = {
        .head_dim = m->head_dim,
        .rope_dim = m->rope_dim,
        .n_positions =
            m->max_context < ROPE_TABLE_POSITIONS ? m->max_context : ROPE_TABLE_POSITIONS,
        .base = m->rope_base,
        .scale = m->rope_scale,
        .factors = f->step.weights->rope_factors,
    };
    enum err rc = rope_table_new(&cfg, &f->rope, ei);
    f->step.rope = f->rope;
    return rc;
}

enum err llama_forward_new(const struct backend_config *cfg, const struct llama_weights *w,
                           struct llama_forward **out, struct err_info *ei)
{
    if (cfg->kv_format != TENSOR_F16 && cfg->kv_format != TENSOR_BF16 &&
        cfg->kv_format != TENSOR_F32)
        return err_set(ei, ERR_UNSUPPORTED, "forward: kv format %u", (unsigned)cfg->kv_format);
    assert(cfg->n_threads >= 1 && cfg->max_batch_tokens >= 1 && cfg->block_size >= 1);
    assert(cfg->block_bytes ==
           cfg->block_size * model_shape_kv_bytes_per_token(cfg->shape, cfg->kv_format));
    struct llama_forward *f = calloc(1, sizeof *f);
    if (!f)
        return err_set(ei, ERR_NOMEM, "forward: no memory");
    f->n_threads = cfg->n_threads;
    f->max_rows = cfg->max_batch_tokens;
    f->max_logit_rows = cfg->max_logit_rows;
    f->step = (struct llama_step){.shape = cfg->shape,
                                  .weights = w,
                                  .ops = cpu_ops_of(cfg->isa),
                                  .isa = cfg->isa,
                                  .kv_format = cfg->kv_format,
                                  .block_size = cfg->block_size,
                                  .kv_pool = cfg->kv_pool,
                                  .block_bytes = cfg->block_bytes};
    enum err rc = new_activations(f, ei);
    if (rc == OK)
        rc = new_scratch(f, ei);
    if (rc == OK)
        rc = new_rope(f, ei);
    if (rc == OK)
        rc = thread_pool_new(cfg->n_threads, &f->step.team, ei);
    if (rc != OK)
        goto fail;
    *out = f;
    return OK;
fail:
    llama_forward_free(f);
    return rc;
}

void llama_forward_free(struct llama_forward *f)
{
    if (!f)
        return;
    struct llama_step *s = &f->step;
    thread_pool_free(s->team);
    rope_table_free(f->rope);
    float *const arrays[] = {s->x, s->norm, s->delta, s->q,  s->attention,
                             s->k, s->v,    s->gate,  s->up, s->logits};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
    free(s->input);
    free(s->tiles);
    for (uint32_t i = 0; s->scratch && i < f->n_threads; i++) {
        free(s->scratch[i].norm);
        free(s->scratch[i].input);
        free(s->scratch[i].attention);
    }
    free(s->scratch);
    free(f);
}

/* Cuts the sequences into tiles of consecutive rows. */
static void plan(struct llama_step *s, const struct batch *batch)
{
    uint32_t n = 0, next_row = 0;
    s->is_short = true;
    for (uint32_t i = 0; i < batch->n_sequences; i++) {
        const struct batch_sequence *seq = &batch->sequences[i];
        assert(seq->n_tokens >= 1 && seq->first_row == next_row);
        next_row += seq->n_tokens;
        s->is_short = s->is_short && seq->n_tokens <= PAGED_ATTENTION_ROWS;
        for (uint32_t first = 0; first < seq->n_tokens; first += PAGED_ATTENTION_ROWS) {
            const uint32_t left = seq->n_tokens - first;
            s->tiles[n++] = (struct llama_tile){
                seq, first, left < PAGED_ATTENTION_ROWS ? left : PAGED_ATTENTION_ROWS};
        }
    }
    assert(next_row == batch->n_tokens);
    s->n_tiles = n;
    s->batch = batch;
}

const float *llama_forward_run(struct llama_forward *f, const struct batch *batch)
{
    assert(batch->n_tokens <= f->max_rows && batch->n_logit_rows <= f->max_logit_rows);
    for (uint32_t i = 0; i < batch->n_tokens; i++)
        assert(batch->tokens[i] < f->step.shape->vocab_size);
    if (batch->n_tokens > 0) {
        plan(&f->step, batch);
        thread_pool_run(f->step.team, llama_step_run, &f->step);
    }
    return f->step.logits;
}
