/* How does a matrix lie in memory so that its kernel reads it in one straight line? Repacks GGUF
 * rows into tiles of interleaved outputs, once, at load.
 *
 * Invariant: repacking moves values, it never rounds one; padding is zeros with scale 0, so that a
 * kernel may compute it blindly. The layouts are described in matmul_impl.h.
 * Does not know activations. */
#include "worker/cpu/aligned_memory.h"
#include "worker/cpu/matmul_impl.h"

#include <stdlib.h>
#include <string.h>

enum { PLAIN_TILE = 8 };

static uint32_t lanes_of(enum cpu_isa isa)
{
    switch (isa) {
    case CPU_ISA_PLAIN:
        return PLAIN_TILE;
    case CPU_ISA_AVX2:
        return 8;
    case CPU_ISA_AVX512:
        return 16;
    }
    return PLAIN_TILE;
}

/* Bytes of values and of scales (f16 d, and m if any) in one GGUF block; false for float types. */
static bool block_parts(enum tensor_type type, size_t *value_bytes, size_t *scale_bytes)
{
    *scale_bytes = type == TENSOR_Q4_1 ? 4 : 2;
    *value_bytes = tensor_type_block_bytes(type) - *scale_bytes;
    return tensor_type_block_values(type) == MATMUL_BLOCK;
}

static void lay_out(struct matmul_weight *m)
{
    const size_t n_tiles = ((size_t)m->n_out + m->lanes - 1) / m->lanes;
    size_t value_bytes, scale_bytes;
    if (block_parts(m->type, &value_bytes, &scale_bytes)) {
        m->n_blocks = m->n_in / MATMUL_BLOCK;
        m->quant_bytes = value_bytes * m->lanes;
        m->scale_bytes = scale_bytes * m->lanes;
        m->tile_bytes = m->n_blocks * (m->quant_bytes + m->scale_bytes);
    } else {
        m->tile_bytes = tensor_type_row_bytes(m->type, m->n_in) * m->lanes;
    }
    m->tile_bytes = (m->tile_bytes + 63) & ~(size_t)63;
    m->size_bytes = n_tiles * m->tile_bytes;
}

/* GGUF packs value i of a Q4 block beside value 16 + i, as the tile wants it: 4 bytes move as one
 * for Q4 and Q8 alike. */
static void repack_quant_row(const struct matmul_weight *m, const uint8_t *row, uint8_t *tile,
                             size_t lane)
{
    size_t value_bytes, scale_bytes;
    block_parts(m->type, &value_bytes, &scale_bytes);
    const uint32_t flip = m->type == TENSOR_Q8_0 && m->isa == CPU_ISA_AVX512 ? 0x80808080u : 0;
    uint8_t *scales = tile + m->n_blocks * m->quant_bytes;
    for (size_t b = 0; b < m->n_blocks; b++, row += scale_bytes + value_bytes) {
        for (size_t s = 0; s < scale_bytes; s += 2)
            memcpy(scales + b * m->scale_bytes + s * m->lanes + 2 * lane, row + s, 2);
        for (size_t j = 0; j < value_bytes; j += 4) {
            uint32_t four;
            memcpy(&four, row + scale_bytes + j, 4);
            four ^= flip;
            memcpy(tile + b * m->quant_bytes + j * m->lanes + 4 * lane, &four, 4);
        }
    }
}

static void repack_float_row(const struct matmul_weight *m, const uint8_t *row, uint8_t *tile,
                             size_t lane)
{
    const size_t size = tensor_type_block_bytes(m->type);
    for (size_t k = 0; k < m->n_in; k++)
        memcpy(tile + (k * m->lanes + lane) * size, row + k * size, size);
}

static void repack(const struct matmul_weight *m, const uint8_t *w, uint8_t *data)
{
    const size_t row_bytes = tensor_type_row_bytes(m->type, m->n_in);
    for (size_t o = 0; o < m->n_out; o++) {
        uint8_t *tile = data + o / m->lanes * m->tile_bytes;
        if (m->n_blocks)
            repack_quant_row(m, w + o * row_bytes, tile, o % m->lanes);
        else
            repack_float_row(m, w + o * row_bytes, tile, o % m->lanes);
    }
}

enum err matmul_weight_new(enum cpu_isa isa, enum tensor_type type, const void *w, uint32_t n_out,
                           uint32_t n_in, struct matmul_weight **out, struct err_info *ei)
{
    if (!tensor_type_is_known(type))
        return err_set(ei, ERR_UNSUPPORTED, "matmul: tensor type %u", (unsigned)type);
    if (!n_out || !n_in || n_in % tensor_type_block_values(type))
        return err_set(ei, ERR_UNSUPPORTED, "matmul: a %u x %u matrix of %s", (unsigned)n_out,
                       (unsigned)n_in, tensor_type_name(type));
    struct matmul_weight *m = calloc(1, sizeof *m);
    if (!m)
        goto fail;
    *m = (struct matmul_weight){
        .isa = isa, .type = type, .n_out = n_out, .n_in = n_in, .lanes = lanes_of(isa), .data = w};
    if (isa == CPU_ISA_PLAIN) {
        m->size_bytes = n_out * tensor_type_row_bytes(type, n_in);
    } else {
        lay_out(m);
        m->owned = aligned_memory_new(m->size_bytes);
        if (!m->owned)
            goto fail;
        m->data = m->owned;
        repack(m, w, m->owned);
        m->has_amx = isa == CPU_ISA_AVX512 && m->n_blocks && matmul_amx_request();
    }
    *out = m;
    return OK;
fail:
    matmul_weight_free(m);
    return err_set(ei, ERR_NOMEM, "matmul: no memory for a %u x %u matrix of %s", (unsigned)n_out,
                   (unsigned)n_in, tensor_type_name(type));
}

void matmul_weight_free(struct matmul_weight *m)
{
    if (!m)
        return;
    free(m->owned);
    free(m);
}

size_t matmul_weight_bytes(const struct matmul_weight *m)
{
    return m->size_bytes;
}

enum matmul_form matmul_weight_form(const struct matmul_weight *m)
{
    return m->n_blocks ? MATMUL_FORM_QUANTS : MATMUL_FORM_F32;
}

uint32_t matmul_weight_tile(const struct matmul_weight *m)
{
    return m->lanes;
}
