#pragma once
#include "config/base/err.h"
#include "config/cpu_isa.h"
#include "config/gguf.h"
#include "config/model_shape.h"
#include "worker/cpu/matmul.h"

/* A Llama model's tensors, found by name and made ready for one ISA path. Immutable after
 * llama_weights_new: any thread reads. */

struct llama_layer {
    float *attn_norm, *ffn_norm;         /* [dim] */
    struct matmul_weight *q, *k, *v, *o; /* [heads * head_dim][dim]; o: [dim][heads * head_dim] */
    struct matmul_weight *gate, *up;     /* [ffn_dim][dim] */
    struct matmul_weight *down;          /* [dim][ffn_dim] */
};

struct llama_weights {
    uint32_t n_layers;
    struct llama_layer *layers;
    const void *embedding; /* [vocab_size][dim] as stored: borrowed from the file's mapping */
    enum tensor_type embedding_type;
    float *output_norm;          /* [dim] */
    struct matmul_weight *head;  /* [vocab_size][dim]; repacked from the embedding when tied */
    float *rope_factors;         /* [rope_dim / 2] divisors of the frequencies, or NULL */
    enum matmul_form input_form; /* that the matrices read, all together */
    size_t repacked_bytes;       /* what the matrices take, for the log */
};

/* shape must come from model_shape_from_gguf(g); g must outlive the weights. progress (or NULL) is
 * called with 0..100. Errors: NOMEM, UNSUPPORTED (a tensor's type), PARSE (a tensor is missing). */
NODISCARD enum err llama_weights_new(const struct gguf *g, const struct model_shape *shape,
                                     enum cpu_isa isa, void (*progress)(void *ctx, int percent),
                                     void *ctx, struct llama_weights **out, struct err_info *ei);
void llama_weights_free(struct llama_weights *w); /* NULL is legal */
