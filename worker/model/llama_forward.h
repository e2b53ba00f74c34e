#pragma once
#include "worker/backend/backend.h"
#include "worker/model/llama_weights.h"

/* A Llama model ready to run steps: its threads, its RoPE table and all activation memory, made
 * once for the largest batch. One owner thread. */

struct llama_forward;

/* Copies what it needs of cfg except shape, and borrows it and w, which must outlive it. Errors:
 * NOMEM, LIMIT (threads), UNSUPPORTED (kv format). */
NODISCARD enum err llama_forward_new(const struct backend_config *cfg,
                                     const struct llama_weights *w, struct llama_forward **out,
                                     struct err_info *ei);
void llama_forward_free(struct llama_forward *f); /* NULL is legal */

/* Runs the batch: K and V of all its tokens into the pool. Returns [n_logit_rows][vocab_size]
 * logits, valid until the next call. Allocates nothing; cannot fail. */
const float *llama_forward_run(struct llama_forward *f, const struct batch *batch);
