/* What is known of one sequence? Its tokens, its chain of blocks, and when it ends. Keeps
 * n_prompt + n_output = n_tokens <= capacity. Takes no decision, knows no store and no step. */
#include "worker/sequence.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum err sequence_new(const struct message_submit *m, uint32_t max_context, uint32_t block_size,
                      struct sequence **out, struct err_info *ei)
{
    assert(m->n_emitted < m->sampling.max_tokens);
    struct sequence *q = calloc(1, sizeof *q);
    if (!q)
        return err_set(ei, ERR_NOMEM, "worker: no memory for a sequence");
    q->id = m->id;
    q->priority = m->priority;
    q->sampling = m->sampling;
    q->n_prompt = m->n_prompt;
    q->n_output = m->n_emitted;
    q->n_tokens = m->n_prompt + m->n_emitted;
    q->is_counted = m->is_counted || m->n_emitted > 0;
    uint64_t longest = (uint64_t)m->n_prompt + m->sampling.max_tokens;
    q->capacity = longest < max_context ? (uint32_t)longest : max_context;
    assert(q->n_tokens < q->capacity);
    size_t n_blocks = q->capacity / block_size + 1;
    q->tokens = malloc(q->capacity * sizeof *q->tokens);
    q->keys = malloc(n_blocks * sizeof *q->keys);
    q->blocks = malloc(n_blocks * sizeof *q->blocks);
    if (!q->tokens || !q->keys || !q->blocks) {
        sequence_free(q);
        return err_set(ei, ERR_NOMEM, "worker: no memory for a sequence of %u tokens", m->n_prompt);
    }
    memcpy(q->tokens, m->tokens, q->n_tokens * sizeof *q->tokens);
    memcpy(q->root.bytes, m->root, sizeof q->root.bytes);
    *out = q;
    return OK;
}

void sequence_free(struct sequence *q)
{
    if (!q)
        return;
    assert(q->n_blocks == 0);
    free(q->tokens);
    free(q->keys);
    free(q->blocks);
    free(q);
}

static bool is_stop(const struct sampling_params *p, uint32_t token)
{
    for (uint32_t i = 0; i < p->n_stop_ids; i++)
        if (p->stop_ids[i] == token)
            return true;
    return false;
}

enum finish_reason sequence_append(struct sequence *q, uint32_t token)
{
    assert(q->n_tokens < q->capacity);
    q->tokens[q->n_tokens++] = token;
    q->n_output++;
    if (!q->sampling.ignore_eos && is_stop(&q->sampling, token))
        return FINISH_STOP;
    /* capacity is the smaller of the window and what max_tokens allows */
    return q->n_tokens == q->capacity ? FINISH_LENGTH : FINISH_NONE;
}

void sequence_extend_keys(struct sequence *q, uint32_t n, uint32_t block_size)
{
    assert(n <= q->n_tokens);
    uint32_t n_full = n / block_size;
    if (n_full <= q->n_keys)
        return;
    const struct block_key *parent = q->n_keys > 0 ? &q->keys[q->n_keys - 1] : &q->root;
    size_t from = (size_t)q->n_keys * block_size;
    prefix_hash_chain(parent, q->tokens + from, (size_t)n_full * block_size - from, block_size,
                      &q->keys[q->n_keys]);
    q->n_keys = n_full;
}

bool sequence_goes_before(const struct sequence *a, const struct sequence *b)
{
    return a->priority != b->priority ? a->priority > b->priority : a->arrival < b->arrival;
}
