#pragma once
#include "worker/backend/backend.h"
#include "worker/cpu/cpu_ops.h"
#include "worker/cpu/rope.h"
#include "worker/cpu/thread_pool.h"
#include "worker/model/llama_weights.h"

/* One step of a Llama model on a team of threads: everything that it reads and writes, laid out by
 * llama_forward.c, and the function that every thread of the team runs. */

enum {
    /* Up to so many rows every thread normalises and quantises all of them for itself: that costs
     * less than another meeting of the team. */
    LLAMA_STEP_PRIVATE_ROWS = 4,
};

/* A thread's own memory. */
struct llama_scratch {
    float *norm;      /* [LLAMA_STEP_PRIVATE_ROWS][widest input] */
    void *input;      /* those rows, prepared for the matrices */
    float *attention; /* paged_attention_scratch_bytes */
};

/* At most PAGED_ATTENTION_ROWS consecutive rows of one sequence. */
struct llama_tile {
    const struct batch_sequence *sequence;
    uint32_t first, n_rows; /* rows first .. first + n_rows - 1 of the sequence's */
};

struct llama_step {
    /* fixed at open */
    const struct model_shape *shape;
    const struct llama_weights *weights;
    const struct rope_table *rope;
    struct thread_pool *team;
    struct cpu_ops ops;
    enum cpu_isa isa;
    enum tensor_type kv_format;
    uint32_t block_size;
    unsigned char *kv_pool;
    size_t block_bytes;
    float *x;                      /* [rows][dim]: the residual stream */
    float *norm, *delta;           /* [rows][dim]: a norm's and a sublayer's output */
    float *q, *attention;          /* [rows][n_heads * head_dim] */
    float *k, *v;                  /* [rows][n_kv_heads * head_dim] */
    float *gate, *up;              /* [rows][ffn_dim] */
    void *input;                   /* rows prepared for the matrices */
    float *logits;                 /* [logit rows][vocab_size] */
    struct llama_scratch *scratch; /* [threads] */
    struct llama_tile *tiles;      /* [rows] */
    /* of this step */
    const struct batch *batch;
    uint32_t n_tiles;
    bool
        is_short; /* every sequence is one tile: a head's keys are written and read by one thread */
};

/* struct llama_step *step; every thread of the team calls it once. */
void llama_step_run(void *step, uint32_t thread);
