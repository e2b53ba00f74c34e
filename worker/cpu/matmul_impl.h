#pragma once
#include "worker/cpu/matmul.h"

/* What matmul.c and the ISA files share; nobody else includes it.
 *
 * A repacked weight is cut into tiles of `lanes` outputs (AVX-512: 16, AVX2: 8), so that one vector
 * holds one value of each output and no sum ever crosses lanes. Tile t starts at data +
 * t * tile_bytes; outputs past n_out are padding with scale 0.
 *   quantised: [n_blocks][quant_bytes], then [n_blocks][scale_bytes]
 *     Q4: quants [4][lanes][4] bytes; byte [j][o][i]: low nibble = value 4j+i, high = value 16+4j+i
 *     Q8: quants [8][lanes][4] bytes; byte [j][o][i] = value 4j+i (AVX-512: plus 128)
 *     scales: [lanes] f16 d, then for Q4_1 [lanes] f16 m
 *   float:     [n_in][lanes] values of the type
 *
 * A prepared input (AVX2, AVX512) is one region with three parts, each 64-byte aligned:
 *   f32:    [n_rows][n_in]
 *   quants: groups of MATMUL_GROUP rows (the last one what is left, g rows): [n_blocks][g][32] int8
 *   meta:   the same groups: [n_blocks][g] struct matmul_meta
 * Values past n_in in the last block are 0. */

enum { MATMUL_BLOCK = 32, MATMUL_GROUP = 16 };

struct matmul_weight {
    enum cpu_isa isa;
    enum tensor_type type;
    uint32_t n_out, n_in;
    uint32_t lanes;
    uint32_t n_blocks;               /* of 32 values along n_in; 0 for float types */
    size_t quant_bytes, scale_bytes; /* of one block of one tile */
    size_t tile_bytes;
    size_t size_bytes;
    const uint8_t *data; /* PLAIN: borrowed rows; else = owned */
    void *owned;
};

/* One row's block of 32 activations: value = q * d. */
struct matmul_meta {
    float d;
    float d_sum;       /* d * sum of q */
    int32_t offset_q4; /* -8 * sum of q: what makes nibbles signed */
    int32_t offset_q8; /* -128 * sum of q: what makes u8 signed */
};

struct matmul_input {
    const float *x;
    const int8_t *quants;
    const struct matmul_meta *meta;
    uint32_t n_rows;
};

/* One call of matmul_run, its input taken apart. */
struct matmul_job {
    const struct matmul_weight *m;
    struct matmul_input in;
    uint32_t out_begin, out_end;
    float *y;
    size_t y_stride;
};

void matmul_plain_run(const struct matmul_job *job);
