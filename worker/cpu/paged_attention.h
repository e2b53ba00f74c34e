#pragma once
#include "config/tensor_type.h"

#include <stddef.h>
#include <stdint.h>

/* Causal attention of a few consecutive query rows of one sequence, for the query heads that share
 * one key/value head, over keys and values as stored in the pool.
 *
 * Keys are taken in steps of 16 that begin at multiples of 16 of the absolute position, each step
 * folded into a running softmax; a query meets the same instructions whether it comes alone
 * (decode) or among others (prefill). Keys past a query's own position are never multiplied in.
 * Source of the running softmax: Milakov & Gimelshein 2018, Online normalizer calculation. */

enum {
    PAGED_ATTENTION_ROWS = 16, /* query rows of one job at most */
    PAGED_ATTENTION_STEP = 16, /* keys of one step */
};

struct paged_attention {
    const void *pool;    /* block b at pool + b * block_bytes */
    size_t block_bytes;  /* of one block, all layers */
    uint32_t block_size; /* tokens */
    enum tensor_type format;
    size_t k_offset, v_offset; /* of this layer's and head's [slot][head_dim] within a block */
    const uint32_t *blocks;    /* the sequence's table */
    uint32_t position;         /* of the first row */
    uint32_t n_rows;           /* 1..PAGED_ATTENTION_ROWS */
    uint32_t head_dim;         /* 1..256 */
    uint32_t n_queries;        /* query heads of a row that read this key/value head */
    const float *q;            /* row r, query g at q + r * row_stride + g * head_dim */
    float *out;                /* likewise */
    size_t row_stride;         /* floats */
    float scale;               /* of the scores: 1 / sqrt(head_dim) */
    float *scratch;            /* paged_attention_scratch_bytes, 64-byte aligned; a thread's own */
};

size_t paged_attention_scratch_bytes(uint32_t head_dim, uint32_t n_queries);

/* K and V of positions 0 .. position + n_rows - 1 must be in the pool. Cannot fail. Any thread. */
void paged_attention_plain(const struct paged_attention *a);
void paged_attention_avx2(const struct paged_attention *a);
void paged_attention_avx512(const struct paged_attention *a);

/* Where position p of the sequence has its K (or V): offset is k_offset or v_offset. */
static inline const unsigned char *paged_attention_slot(const struct paged_attention *a, uint32_t p,
                                                        size_t offset)
{
    const size_t row_bytes = tensor_type_row_bytes(a->format, a->head_dim);
    return (const unsigned char *)a->pool + a->blocks[p / a->block_size] * a->block_bytes + offset +
           p % a->block_size * row_bytes;
}
