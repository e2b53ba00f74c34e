/* What numbers does a stored row hold? Turns one row of a tensor, in GGUF's layout, into f32.
 *
 * Invariant: plain C without contraction, so every machine gets the same bits; values are those of
 * the format's definition, and the integer kernels are tested against them.
 * Does not know matrices, activations or instruction sets. */
#include "worker/cpu/dequant.h"

#include <assert.h>
#include <string.h>

enum { BLOCK = 32 };

static float float_of_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint16_t load_u16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

float dequant_f16(uint16_t bits)
{
    const uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
    const uint32_t rest = bits & 0x7fffu;
    if (rest >= 0x7c00u) /* infinity, NaN */
        return float_of_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    if (rest >= 0x0400u) /* the exponent's bias goes from 15 to 127 */
        return float_of_bits(sign | ((rest << 13) + (112u << 23)));
    /* zero or subnormal: a count of 2^-24, which f32 holds exactly */
    const float magnitude = (float)rest * 0x1p-24f;
    return sign ? -magnitude : magnitude;
}

float dequant_bf16(uint16_t bits)
{
    return float_of_bits((uint32_t)bits << 16);
}

static void dequant_q4_0(const uint8_t *p, size_t n, float *out)
{
    for (size_t b = 0; b < n / BLOCK; b++, p += 18, out += BLOCK) {
        const float d = dequant_f16(load_u16(p));
        for (int i = 0; i < BLOCK / 2; i++) {
            out[i] = (float)((p[2 + i] & 15) - 8) * d;
            out[i + BLOCK / 2] = (float)((p[2 + i] >> 4) - 8) * d;
        }
    }
}

static void dequant_q4_1(const uint8_t *p, size_t n, float *out)
{
    for (size_t b = 0; b < n / BLOCK; b++, p += 20, out += BLOCK) {
        const float d = dequant_f16(load_u16(p));
        const float m = dequant_f16(load_u16(p + 2));
        for (int i = 0; i < BLOCK / 2; i++) {
            out[i] = (float)(p[4 + i] & 15) * d + m;
            out[i + BLOCK / 2] = (float)(p[4 + i] >> 4) * d + m;
        }
    }
}

static void dequant_q8_0(const uint8_t *p, size_t n, float *out)
{
    for (size_t b = 0; b < n / BLOCK; b++, p += 34, out += BLOCK) {
        const float d = dequant_f16(load_u16(p));
        for (int i = 0; i < BLOCK; i++)
            out[i] = (float)(int8_t)p[2 + i] * d;
    }
}

void dequant_row(enum tensor_type type, const void *row, size_t n, float *out)
{
    const uint8_t *p = row;
    switch (type) {
    case TENSOR_F32:
        memcpy(out, p, n * sizeof *out);
        return;
    case TENSOR_F16:
        for (size_t i = 0; i < n; i++)
            out[i] = dequant_f16(load_u16(p + 2 * i));
        return;
    case TENSOR_BF16:
        for (size_t i = 0; i < n; i++)
            out[i] = dequant_bf16(load_u16(p + 2 * i));
        return;
    case TENSOR_Q4_0:
        dequant_q4_0(p, n, out);
        return;
    case TENSOR_Q4_1:
        dequant_q4_1(p, n, out);
        return;
    case TENSOR_Q8_0:
        dequant_q8_0(p, n, out);
        return;
    }
    assert(!"dequant: a type that tensor_type_is_known refuses");
}
