/* Cases, oracles and a driver for the tests of matmul. The oracles know the formats and the
 * documented order of operations, and no vector, tile or group. */
#include "tests/kernels/support_matmul.h"

#include "worker/cpu/dequant.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 32, PADDING = 24 };

static uint64_t random_next(struct random *r)
{
    uint64_t z = (r->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint32_t random_below(struct random *r, uint32_t n)
{
    return (uint32_t)((random_next(r) >> 32) * n >> 32);
}

float random_float(struct random *r)
{
    return (float)((double)(random_next(r) >> 11) * 0x1p-52 - 1);
}

bool type_is_quantised(enum tensor_type type)
{
    return tensor_type_block_values(type) == BLOCK;
}

/* A finite half of either sign between 2^-7 and 2^1. */
static void put_half(struct random *r, unsigned char *p)
{
    const uint16_t bits = (uint16_t)(random_below(r, 2) << 15 | (8 + random_below(r, 8)) << 10 |
                                     random_below(r, 1024));
    memcpy(p, &bits, sizeof bits);
}

static void fill_block(struct random *r, enum tensor_type type, unsigned char *p)
{
    const uint32_t n_bytes = tensor_type_block_bytes(type);
    for (uint32_t i = 0; i < n_bytes; i++)
        p[i] = (unsigned char)random_below(r, 256);
    if (type_is_quantised(type))
        put_half(r, p);
    if (type == TENSOR_Q4_1)
        put_half(r, p + 2);
    if (type == TENSOR_F16)
        put_half(r, p);
    if (type == TENSOR_F32 || type == TENSOR_BF16) {
        const float f = random_float(r);
        memcpy(p, (const unsigned char *)&f + sizeof f - n_bytes, n_bytes);
    }
}

struct matmul_case matmul_case_make(enum tensor_type type, uint32_t n_out, uint32_t n_in,
                                    uint32_t n_rows, uint64_t seed)
{
    struct random r = {seed};
    struct matmul_case c = {.type = type, .n_out = n_out, .n_in = n_in, .n_rows = n_rows};
    const size_t w_bytes = n_out * tensor_type_row_bytes(type, n_in);
    c.w = malloc(w_bytes);
    for (size_t i = 0; i < w_bytes; i += tensor_type_block_bytes(type))
        fill_block(&r, type, c.w + i);
    c.x = malloc((size_t)n_rows * n_in * sizeof *c.x);
    float magnitude = 1;
    for (size_t i = 0; i < (size_t)n_rows * n_in; i++) {
        if (i % BLOCK == 0)
            magnitude = random_below(&r, 16) ? ldexpf(1, (int)random_below(&r, 8) - 4) : 0;
        c.x[i] = magnitude * random_float(&r);
    }
    return c;
}

void matmul_case_fini(struct matmul_case *c)
{
    free(c->w);
    free(c->x);
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

float *matmul_case_run(const struct matmul_case *c, enum cpu_isa isa, uint32_t n_rows,
                       uint64_t split)
{
    struct random r = {split};
    struct matmul_weight *m;
    struct err_info ei;
    cr_assert_eq(matmul_weight_new(isa, c->type, c->w, c->n_out, c->n_in, &m, &ei), OK);
    void *input = aligned_alloc(64, (matmul_input_bytes(isa, n_rows, c->n_in) + 63) / 64 * 64);
    for (uint32_t at = 0, end; at < n_rows; at = end) {
        end = split ? min_u32(n_rows, at + 1 + random_below(&r, n_rows)) : n_rows;
        matmul_prepare(isa, split ? MATMUL_FORM_ANY : matmul_weight_form(m), c->x, n_rows, c->n_in,
                       at, end, input);
    }
    const size_t stride = c->n_out + PADDING;
    float *padded = malloc(n_rows * stride * sizeof *padded);
    memset(padded, 0xa5, n_rows * stride * sizeof *padded);
    const uint32_t tile = matmul_weight_tile(m), n_tiles = (c->n_out + tile - 1) / tile;
    for (uint32_t at = 0, end; at < n_tiles; at = end) {
        end = split ? min_u32(n_tiles, at + 1 + random_below(&r, n_tiles)) : n_tiles;
        matmul_run(m, input, n_rows, at * tile, min_u32(end * tile, c->n_out), padded, stride);
    }
    float *y = malloc((size_t)n_rows * c->n_out * sizeof *y);
    for (size_t row = 0; row < n_rows; row++) {
        const unsigned char *after = (const unsigned char *)(padded + row * stride + c->n_out);
        for (size_t i = 0; i < PADDING * sizeof *y; i++)
            cr_assert_eq(after[i], 0xa5, "a write past n_out");
        memcpy(y + row * c->n_out, padded + row * stride, c->n_out * sizeof *y);
    }
    free(padded);
    free(input);
    matmul_weight_free(m);
    return y;
}

void oracle_quantise(const float *x, size_t n, int *q, float *d)
{
    for (size_t b = 0; b < n / BLOCK; b++, x += BLOCK, q += BLOCK) {
        float top = 0;
        for (int i = 0; i < BLOCK; i++)
            top = fmaxf(top, fabsf(x[i]));
        d[b] = top < 0x1p-100f ? 0 : top / 2032;
        const float inverse = top < 0x1p-100f ? 0 : 2032 / top;
        for (int i = 0; i < BLOCK; i++)
            q[i] = (int)nearbyintf(x[i] * inverse);
    }
}

double oracle_dot(const struct matmul_case *c, const float *x, uint32_t o, double *magnitude)
{
    float *w = malloc(c->n_in * sizeof *w);
    dequant_row(c->type, c->w + o * tensor_type_row_bytes(c->type, c->n_in), c->n_in, w);
    double sum = 0;
    *magnitude = 0;
    for (uint32_t k = 0; k < c->n_in; k++) {
        sum += (double)x[k] * (double)w[k];
        *magnitude += fabs((double)x[k] * (double)w[k]);
    }
    free(w);
    return sum;
}

/* The stored integer i of a block, as the format's formula names it (Q4_0: less 8). */
static int stored_integer(enum tensor_type type, const unsigned char *block, int i)
{
    if (type == TENSOR_Q8_0)
        return (signed char)block[2 + i];
    const unsigned char byte = block[(type == TENSOR_Q4_1 ? 4 : 2) + i % 16];
    return (i < 16 ? byte & 15 : byte >> 4) - (type == TENSOR_Q4_0 ? 8 : 0);
}

static float half_at(const unsigned char *p)
{
    uint16_t bits;
    memcpy(&bits, p, sizeof bits);
    return dequant_f16(bits);
}

float oracle_quantised(const struct matmul_case *c, const float *x, uint32_t o)
{
    const size_t n_blocks = c->n_in / BLOCK;
    int *q = malloc(c->n_in * sizeof *q);
    float *d = malloc(n_blocks * sizeof *d), acc = 0;
    oracle_quantise(x, c->n_in, q, d);
    const unsigned char *block = c->w + o * tensor_type_row_bytes(c->type, c->n_in);
    for (size_t b = 0; b < n_blocks; b++, block += tensor_type_block_bytes(c->type)) {
        int dot = 0, sum = 0;
        for (int i = 0; i < BLOCK; i++) {
            dot += stored_integer(c->type, block, i) * q[b * BLOCK + i];
            sum += q[b * BLOCK + i];
        }
        acc = fmaf((float)dot, half_at(block) * d[b], acc);
        if (c->type == TENSOR_Q4_1)
            acc = fmaf(half_at(block + 2), d[b] * (float)sum, acc);
    }
    free(q);
    free(d);
    return acc;
}
