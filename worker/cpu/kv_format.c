/* How are keys and values rounded on their way into the pool? The plain path.
 * Invariant: round to nearest, ties to even, as IEEE 754 and the processors' own conversions do, so
 * the bytes do not depend on the instruction set.
 * Does not know blocks or layouts. */
#include "worker/cpu/kv_format.h"

#include <assert.h>
#include <string.h>

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

uint16_t kv_format_f16(float value)
{
    const uint32_t bits = bits_of(value);
    const uint32_t sign = bits >> 16 & 0x8000u;
    const uint32_t rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) /* NaN: quiet, the payload's head kept */
        return (uint16_t)(sign | 0x7e00u | (rest >> 13 & 0x3ffu));
    if (rest >= 0x47800000u) /* 2^16 and up */
        return (uint16_t)(sign | 0x7c00u);
    if (rest < 0x33000000u) /* below 2^-25: half of the least subnormal */
        return (uint16_t)sign;
    if (rest < 0x38800000u) { /* below 2^-14: a count of 2^-24 */
        const uint32_t shift = 126u - (rest >> 23);
        const uint32_t mantissa = (rest & 0x7fffffu) | 0x800000u;
        const uint32_t kept = mantissa >> shift;
        const uint32_t half = 1u << (shift - 1), lost = mantissa & ((1u << shift) - 1);
        return (uint16_t)(sign | (kept + (lost > half || (lost == half && (kept & 1u)))));
    }
    /* a carry out of the mantissa raises the exponent, at the top into infinity: as it should */
    const uint32_t rounded = rest + 0xfffu + (rest >> 13 & 1u);
    return (uint16_t)(sign | ((rounded - (112u << 23)) >> 13));
}

uint16_t kv_format_bf16(float value)
{
    const uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

void kv_format_store_plain(enum tensor_type format, const float *restrict x, uint32_t n,
                           void *restrict dst)
{
    if (format == TENSOR_F32) {
        memcpy(dst, x, (size_t)n * sizeof *x);
        return;
    }
    assert(format == TENSOR_F16 || format == TENSOR_BF16);
    unsigned char *to = dst;
    for (uint32_t i = 0; i < n; i++) {
        const uint16_t v = format == TENSOR_F16 ? kv_format_f16(x[i]) : kv_format_bf16(x[i]);
        memcpy(to + (size_t)i * sizeof v, &v, sizeof v);
    }
}
