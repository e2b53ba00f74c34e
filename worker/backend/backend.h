#pragma once
#include "config/base/err.h"
#include "config/cpu_isa.h"
#include "config/gguf.h"
#include "config/model_shape.h"

#include <stdint.h>

/* The seam between the engine and the arithmetic: weights in, a batch of tokens in, logits out. The
 * engine knows no device; a backend knows no request. One owner thread calls it (the backend may
 * run others).
 *
 * Determinism (DESIGN §6): a row of logits depends bit for bit on its tokens, positions and the KV
 * bytes of its own sequence alone, never on what else is in the batch or how a prompt was cut into
 * chunks. */

struct backend;

struct backend_config {
    const struct gguf *model; /* must outlive the backend */
    const struct model_shape *shape;
    enum cpu_isa isa;
    uint32_t n_threads;         /* >= 1, the caller's thread included */
    uint32_t max_batch_tokens;  /* rows of the largest batch */
    uint32_t max_logit_rows;    /* rows of logits asked of one batch */
    enum tensor_type kv_format; /* F16, BF16, F32 */
    uint32_t block_size;        /* tokens */
    void *
        kv_pool; /* block b at kv_pool + b * block_bytes; layout [layer][k|v][kv_head][slot][dim] */
    size_t block_bytes; /* block_size * model_shape_kv_bytes_per_token */
};

/* A run of consecutive tokens of one sequence within a batch. */
struct batch_sequence {
    uint32_t first_row; /* row of its first token in the batch */
    uint32_t n_tokens;  /* rows: >= 1 */
    uint32_t
        position; /* absolute position of its first token; positions before it are in the blocks */
    const uint32_t
        *blocks; /* block table: [>= ceil((position + n_tokens) / block_size)]; K and V of the
                    new tokens are written into it, so those blocks must be the sequence's own */
};

struct batch {
    uint32_t n_tokens;
    const uint32_t *tokens; /* [n_tokens], each < vocab_size */
    uint32_t n_sequences;
    const struct batch_sequence *sequences; /* cover rows 0..n_tokens-1 in order */
    uint32_t n_logit_rows;
    const uint32_t
        *logit_rows; /* [n_logit_rows]: rows of the batch whose logits are wanted, ascending */
};

/* Loads and repacks the weights. Errors: NOMEM, UNSUPPORTED (a tensor type, kv format). progress,
 * if not NULL, is called with 0..100 now and then. */
NODISCARD enum err backend_cpu_open(const struct backend_config *cfg,
                                    void (*progress)(void *ctx, int percent), void *ctx,
                                    struct backend **out, struct err_info *ei);
void backend_close(struct backend *b); /* NULL is legal */

/* Runs one step: writes K and V of all tokens into their blocks and *logits:
 * [n_logit_rows][vocab_size] f32, the backend's, valid until the next call. Allocates nothing.
 * Errors: DEVICE. */
NODISCARD enum err backend_forward(struct backend *b, const struct batch *batch,
                                   const float **logits, struct err_info *ei);
