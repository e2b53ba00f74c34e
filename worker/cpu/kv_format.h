#pragma once
#include "config/tensor_type.h"

#include <stdint.h>

/* Rounds n values to the pool's format (F32: copied; F16, BF16: nearest, ties to even, overflow to
 * infinity) and stores them at dst, any alignment. All ISA paths give the same bytes. Cannot fail.
 * Any thread. The way back is dequant_row. */
void kv_format_store_plain(enum tensor_type format, const float *restrict x, uint32_t n,
                           void *restrict dst);
void kv_format_store_avx2(enum tensor_type format, const float *restrict x, uint32_t n,
                          void *restrict dst);
void kv_format_store_avx512(enum tensor_type format, const float *restrict x, uint32_t n,
                            void *restrict dst);

/* One value: the bit pattern of the nearest half, or bfloat16. NaN stays a (quiet) NaN. */
uint16_t kv_format_f16(float value);
uint16_t kv_format_bf16(float value);
