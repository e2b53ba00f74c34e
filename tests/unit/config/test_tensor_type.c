/* Do the formats have the sizes of ggml's specification? Bytes of whole tensors come from
 * tests/fixtures/smollm2_gguf_dump.txt (Q8_0, Q4_1, F32); block layouts from the header's text. */
#include "config/tensor_type.h"

#include <criterion/criterion.h>

TestSuite(tensor_type, .timeout = 5);

Test(tensor_type, rows_take_the_bytes_that_the_reference_dump_lists)
{
    cr_expect_eq(tensor_type_row_bytes(TENSOR_Q8_0, 576) * 49152, 30081024); /* token_embd */
    cr_expect_eq(tensor_type_row_bytes(TENSOR_Q4_1, 1536) * 576, 552960);    /* ffn_down */
    cr_expect_eq(tensor_type_row_bytes(TENSOR_Q4_1, 576) * 192, 69120);      /* attn_k */
    cr_expect_eq(tensor_type_row_bytes(TENSOR_F32, 576), 2304);              /* attn_norm */
}

Test(tensor_type, blocks_are_those_of_the_specification)
{
    static const struct {
        enum tensor_type type;
        const char *name;
        uint32_t number, values, bytes;
    } want[] = {
        {TENSOR_F32, "F32", 0, 1, 4},     {TENSOR_F16, "F16", 1, 1, 2},
        {TENSOR_Q4_0, "Q4_0", 2, 32, 18}, {TENSOR_Q4_1, "Q4_1", 3, 32, 20},
        {TENSOR_Q8_0, "Q8_0", 8, 32, 34}, {TENSOR_BF16, "BF16", 30, 1, 2},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        cr_expect_eq((uint32_t)want[i].type, want[i].number);
        cr_expect(tensor_type_is_known(want[i].number));
        cr_expect_str_eq(tensor_type_name(want[i].type), want[i].name);
        cr_expect_eq(tensor_type_block_values(want[i].type), want[i].values);
        cr_expect_eq(tensor_type_block_bytes(want[i].type), want[i].bytes);
    }
}

Test(tensor_type, other_numbers_are_unknown)
{
    static const uint32_t others[] = {4, 5, 6, 7, 9, 10, 12, 14, 24, 29, 31, 39, 255, UINT32_MAX};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        cr_expect_not(tensor_type_is_known(others[i]), "%u", others[i]);
}
