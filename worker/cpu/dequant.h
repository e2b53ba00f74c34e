#pragma once
#include "config/tensor_type.h"

#include <stddef.h>
#include <stdint.h>

/* out[i] = value i of a row of n values stored as type, exactly as the format defines it (only
 * Q4_1 rounds: q * d is exact, adding m rounds once).
 * row: GGUF's layout, any alignment; n: a multiple of the type's block. Cannot fail. Any thread.
 * Source: the ggml block formats, see config/tensor_type.h. */
void dequant_row(enum tensor_type type, const void *row, size_t n, float *out);

/* The value of one half or bfloat16 bit pattern; exact, subnormals, infinities and NaN included. */
float dequant_f16(uint16_t bits);
float dequant_bf16(uint16_t bits);
