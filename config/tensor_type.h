#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Number formats of tensors and KV rows. Values are GGUF's type numbers (ggml specification). */
enum tensor_type {
    TENSOR_F32 = 0,
    TENSOR_F16 = 1,
    TENSOR_Q4_0 = 2, /* 32 values: f16 scale d, 16 bytes of nibbles; (q - 8) * d */
    TENSOR_Q4_1 = 3, /* 32 values: f16 scale d, f16 minimum m, nibbles; q * d + m */
    TENSOR_Q8_0 = 8, /* 32 values: f16 scale d, 32 int8; q * d */
    TENSOR_BF16 = 30,
};

/* True when this build reads the type. */
bool tensor_type_is_known(uint32_t type);
const char *tensor_type_name(enum tensor_type type); /* "Q4_1"; static */
/* Values a block holds (1 or 32) and the bytes it takes. */
uint32_t tensor_type_block_values(enum tensor_type type);
uint32_t tensor_type_block_bytes(enum tensor_type type);
/* Bytes of a row of n values; n must be a multiple of the block's values. */
size_t tensor_type_row_bytes(enum tensor_type type, size_t n);
