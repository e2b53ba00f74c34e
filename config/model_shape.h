#pragma once
#include "config/base/err.h"
#include "config/gguf.h"
#include "config/tensor_type.h"

/* What the model is: the numbers that every cost follows from. Read and validated once, here;
 * nobody behind this point doubts them. Plain data. */
struct model_shape {
    char name[64];       /* general.name, or the file's */
    char arch[32];       /* "llama" */
    uint32_t n_layers;   /* 1..1024 */
    uint32_t dim;        /* hidden size */
    uint32_t n_heads;    /* query heads; a multiple of n_kv_heads */
    uint32_t n_kv_heads; /* key/value heads */
    uint32_t head_dim;   /* even, <= 256 */
    uint32_t ffn_dim;
    uint32_t vocab_size;
    uint32_t max_context; /* tokens the model was trained for */
    float rope_base;      /* theta */
    uint32_t rope_dim;    /* rotated values of a head (= head_dim in llama) */
    float rope_scale;     /* linear position factor: positions are divided by it; 1 = none */
    float norm_eps;
    bool tied_embeddings;  /* no output.weight: lm_head is token_embd.weight */
    uint64_t n_parameters; /* all weights, embeddings included */
    size_t weight_bytes;   /* as stored in the file */
};

/* Reads and validates the shape of a Llama-architecture GGUF: keys present and consistent, every
 * tensor that the forward pass reads (token_embd, output_norm, [output], [rope_freqs],
 * blk.N.{attn_norm, attn_q, attn_k, attn_v, attn_output, ffn_norm, ffn_gate, ffn_up,
 * ffn_down}.weight) present with exactly the dims the keys imply. Errors: PARSE (missing,
 * inconsistent: names key or tensor, both values), UNSUPPORTED (architecture, rope scaling type).
 */
NODISCARD enum err model_shape_from_gguf(const struct gguf *g, struct model_shape *out,
                                         struct err_info *ei);

/* Bytes of K and V of one token over all layers: 2 * n_layers * n_kv_heads * head_dim *
 * bytes(format); format is F16, BF16 or F32. SmolLM2-135M in F16: 23,040. */
size_t model_shape_kv_bytes_per_token(const struct model_shape *m, enum tensor_type kv_format);
