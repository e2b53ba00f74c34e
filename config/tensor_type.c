/* How many bytes does a number format take? One row a format, so that a new one is a line here and
 * kernels elsewhere. Invariant: every enumerator of tensor_type.h has a row, and block sizes follow
 * ggml's layouts (32 values a block, f16 scale, optional f16 minimum). Knows sizes only, no
 * arithmetic on the values. */
#include "config/tensor_type.h"

#include <assert.h>

struct format {
    const char *name;
    uint32_t block_values, block_bytes;
};

/* NULL: not a format that this build reads. */
static const struct format *format_of(uint32_t type)
{
    static const struct format f32 = {"F32", 1, 4}, f16 = {"F16", 1, 2}, bf16 = {"BF16", 1, 2},
                               q4_0 = {"Q4_0", 32, 2 + 16}, q4_1 = {"Q4_1", 32, 2 + 2 + 16},
                               q8_0 = {"Q8_0", 32, 2 + 32};
    switch (type) {
    case TENSOR_F32:
        return &f32;
    case TENSOR_F16:
        return &f16;
    case TENSOR_Q4_0:
        return &q4_0;
    case TENSOR_Q4_1:
        return &q4_1;
    case TENSOR_Q8_0:
        return &q8_0;
    case TENSOR_BF16:
        return &bf16;
    default: /* a number from a file, not an enum: unknown ones are expected */
        return NULL;
    }
}

bool tensor_type_is_known(uint32_t type)
{
    return format_of(type) != NULL;
}

const char *tensor_type_name(enum tensor_type type)
{
    const struct format *f = format_of((uint32_t)type);
    return f ? f->name : "unknown";
}

uint32_t tensor_type_block_values(enum tensor_type type)
{
    const struct format *f = format_of((uint32_t)type);
    assert(f);
    return f->block_values;
}

uint32_t tensor_type_block_bytes(enum tensor_type type)
{
    const struct format *f = format_of((uint32_t)type);
    assert(f);
    return f->block_bytes;
}

size_t tensor_type_row_bytes(enum tensor_type type, size_t n)
{
    const struct format *f = format_of((uint32_t)type);
    assert(f && n % f->block_values == 0);
    return n / f->block_values * f->block_bytes;
}
