#pragma once
#include "worker/cpu/matmul.h"

/* What matmul.c and the ISA files share; nobody else includes it.
 *
 * A repacked weight is cut into tiles of `lanes` outputs (AVX-512: 16, AVX2: 8), so that one vector
 * holds one value of each output and no sum ever crosses lanes. Tile t starts at data +
 * t * tile_bytes; outputs past n_out are zeros.
 *   quantised: [n_blocks][quant_bytes], then [n_blocks][scale_bytes]
 *     Q4: [4][lanes][4] bytes; byte [j][o][i]: low nibble = value 4j+i, high = value 16+4j+i
 *     Q8: [8][lanes][4] bytes; byte [j][o][i] = value 4j+i (AVX-512: plus 128, as u8)
 *     scales: [lanes] f16 d, then for Q4_1 [lanes] f16 m
 *   float: [n_in][lanes] values of the type
 *
 * A prepared input is f32 [n_rows][n_in] and, for AVX2 and AVX-512, two parts more, each 64-byte
 * aligned, in groups of MATMUL_GROUP rows (the last one holds what is left: g rows), so that a
 * register tile reads one contiguous run:
 *   quants: [n_blocks][g][2][32] int8: the high parts of a block's values, then the low ones
 *   meta:   [n_blocks][g] struct matmul_meta
 * Values past n_in in the last block are 0.
 *
 * A value is q * d with q = 16 * high + low of 12 bits, because 8 bits are not enough: rounding to
 * them moves SmolLM2's logprobs by 0.13 (rms over the five best), this by 0.01. The units multiply
 * 8 bits by 8 bits, hence two parts; 16 and not 256 between them, so that 16 * nibble is a byte
 * too, both parts of a Q4 dot are one dot over 64 values, and every dot fits 24 bits: turning it
 * into a float is exact. */

enum {
    MATMUL_BLOCK = 32,
    MATMUL_GROUP = 16,
    MATMUL_ROW_BYTES = 2 * MATMUL_BLOCK, /* of one row's quants in a block */
    MATMUL_LOW_BITS = 4,
    MATMUL_TOP = 127 << MATMUL_LOW_BITS, /* the largest |q| */
};

struct matmul_weight {
    enum cpu_isa isa;
    enum tensor_type type;
    bool has_amx; /* groups of enough rows go to the tile unit */
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
    int32_t offset_q4; /* -8 * sum of q: takes the bias off Q4_0's nibbles */
    int32_t offset_q8; /* -128 * sum of q: takes the bias off Q8_0 stored as u8 */
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

/* One tile of a quantised weight times one group of rows. */
struct matmul_quant_piece {
    const uint8_t *quants, *scales; /* of the tile */
    const int8_t *q;                /* of the group: [n_blocks][n_rows][2][32] */
    const struct matmul_meta *meta;
    uint32_t n_blocks, n_rows; /* n_rows <= MATMUL_GROUP, but for AMX */
    uint32_t n_outputs;        /* of the tile's lanes that y holds */
    float *y;                  /* of the group's first row and the tile's first output */
    size_t y_stride;
};

/* Consecutive tiles of a float weight times consecutive rows. */
struct matmul_float_piece {
    const uint8_t *w; /* of the first tile */
    size_t tile_bytes;
    const float *x; /* [n_rows][n_in] */
    uint32_t n_in, n_rows, n_tiles;
    uint32_t n_outputs; /* over all tiles, that y holds */
    float *y;
    size_t y_stride;
};

/* Quantises n_blocks blocks of a row: block b goes to q[b * step] (in MATMUL_ROW_BYTES) and
 * meta[b * step]. d = max|x| / 2032, q = round(x * (2032 / max|x|)) to nearest even; low is in
 * [-8, 7]; a block whose values are all below 2^-100 counts as zeros (2032 / max would overflow).
 * NaN or infinity in x makes d, and so the outputs, NaN or infinite. */
typedef void matmul_quantise_fn(const float *x, size_t n_blocks, int8_t *q,
                                struct matmul_meta *meta, size_t step);
typedef void matmul_quant_fn(enum tensor_type type, const struct matmul_quant_piece *p);
typedef void matmul_float_fn(enum tensor_type type, const struct matmul_float_piece *p);

#define MATMUL_TINY 0x1p-100f

void matmul_plain_run(const struct matmul_job *job);

void matmul_avx512_quantise(const float *x, size_t n_blocks, int8_t *q, struct matmul_meta *meta,
                            size_t step);
void matmul_avx512_quant(enum tensor_type type, const struct matmul_quant_piece *p);
void matmul_avx512_float(enum tensor_type type, const struct matmul_float_piece *p);

/* The tile unit beside the AVX-512 path, same bits. request: asks the kernel for it, once a process
 * or more often; false where there is none. begin and end: around one thread's calls for a type.
 * quant: any number of rows from a group's first on. Reads, and drops, up to MATMUL_AMX_OVERREAD
 * bytes past the last group's quants. */
enum {
    MATMUL_AMX_ROWS = 5, /* fewer are faster on VNNI */
    MATMUL_AMX_OVERREAD = MATMUL_GROUP * MATMUL_ROW_BYTES,
};
bool matmul_amx_request(void);
void matmul_amx_begin(enum tensor_type type);
void matmul_amx_end(void);
void matmul_amx_quant(enum tensor_type type, const struct matmul_quant_piece *p);

void matmul_avx2_quantise(const float *x, size_t n_blocks, int8_t *q, struct matmul_meta *meta,
                          size_t step);
void matmul_avx2_quant(enum tensor_type type, const struct matmul_quant_piece *p);
void matmul_avx2_float(enum tensor_type type, const struct matmul_float_piece *p);
