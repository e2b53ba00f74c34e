/* Is the shape read right, and is every way a file can contradict itself refused? Numbers of the
 * tiny checkpoints come from their config.json (hub format, the fixtures' make_tiny.py), those of
 * SmolLM2 from tests/fixtures/smollm2_gguf_dump.txt; parameter counts are the sums of the products
 * of those dims. */
#include "config/model_shape.h"
#include "tests/unit/config/support_gguf_writer.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

TestSuite(model_shape, .timeout = 10);

static struct model_shape read_file(const char *path)
{
    struct gguf *g = NULL;
    struct model_shape m = {0};
    struct err_info ei = {0};
    cr_assert_eq(gguf_open(path, &g, &ei), OK, "%s", ei.text);
    cr_assert_eq(model_shape_from_gguf(g, &m, &ei), OK, "%s", ei.text);
    gguf_close(g);
    return m;
}

static enum err read_changed(const struct llama_change *change, struct model_shape *m,
                             struct err_info *ei)
{
    struct bytes b = {0};
    struct gguf *g = NULL;
    write_llama(&b, change);
    cr_assert_eq(open_bytes(b.data, b.size, &g, ei), OK, "%s", ei->text);
    enum err rc = model_shape_from_gguf(g, m, ei);
    gguf_close(g);
    bytes_fini(&b);
    return rc;
}

Test(model_shape, tiny_llama_in_every_format_has_the_shape_of_its_config)
{
    static const char *const formats[] = {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        char path[96];
        (void)snprintf(path, sizeof path, "tests/fixtures/tiny/llama/model-%s.gguf", formats[i]);
        struct model_shape m = read_file(path);
        cr_expect(m.n_layers == 3 && m.dim == 64 && m.n_heads == 4 && m.n_kv_heads == 2);
        cr_expect(m.head_dim == 16 && m.ffn_dim == 128 && m.vocab_size == 384);
        cr_expect(m.max_context == 512 && m.rope_base == 10000.0F && m.rope_dim == 16);
        cr_expect(m.rope_scale == 1 && m.norm_eps == 1e-5F && !m.tied_embeddings);
        cr_expect_str_eq(m.arch, "llama");
        cr_expect_eq(m.n_parameters, 160192, "%s: %lu", formats[i], m.n_parameters);
    }
}

Test(model_shape, rope_frequencies_are_accepted_and_are_no_parameters)
{
    struct model_shape m = read_file("tests/fixtures/tiny/llama_rope3/model-F16.gguf");
    cr_expect(m.n_layers == 2 && m.n_kv_heads == 1 && m.ffn_dim == 96 && m.tied_embeddings);
    cr_expect_eq(m.rope_base, 500000.0F);
    cr_expect_eq(m.n_parameters, 82240, "%lu", m.n_parameters);
}

Test(model_shape, smollm2_has_the_shape_of_its_metadata)
{
    const char *path = ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (access(path, R_OK) != 0)
        cr_skip_test("no %s here", path);
    struct model_shape m = read_file(path);
    cr_expect_str_eq(m.name, "Smollm2 135M 8k Lc100K Mix1 Ep2");
    cr_expect(m.n_layers == 30 && m.dim == 576 && m.n_heads == 9 && m.n_kv_heads == 3);
    cr_expect(m.head_dim == 64 && m.ffn_dim == 1536 && m.vocab_size == 49152);
    cr_expect(m.max_context == 8192 && m.rope_base == 100000.0F && m.tied_embeddings);
    cr_expect_eq(m.n_parameters, 134515008, "%lu", m.n_parameters);
    /* tensor data runs from 1785664 to the end of 98362432 bytes, in multiples of 32: no gaps */
    cr_expect_eq(m.weight_bytes, 98362432 - 1785664);
    cr_expect_eq(model_shape_kv_bytes_per_token(&m, TENSOR_F16), 23040); /* model_shape.h */
    cr_expect_eq(model_shape_kv_bytes_per_token(&m, TENSOR_BF16), 23040);
    cr_expect_eq(model_shape_kv_bytes_per_token(&m, TENSOR_F32), 46080);
}

Test(model_shape, what_a_llama_may_leave_out_has_its_default)
{
    struct model_shape m;
    struct err_info ei = {0};
    cr_assert_eq(read_changed(&(struct llama_change){0}, &m, &ei), OK, "%s", ei.text);
    cr_expect(m.head_dim == 2 && m.rope_dim == 2 && m.rope_base == 10000.0F && m.vocab_size == 10);
    cr_expect(strncmp(m.name, "", 1) != 0); /* no general.name: the file's */
    cr_assert_eq(read_changed(&(struct llama_change){.omit = "llama.vocab_size"}, &m, &ei), OK);
    cr_expect_eq(m.vocab_size, 10);
    cr_assert_eq(read_changed(&(struct llama_change){.omit = "output.weight"}, &m, &ei), OK);
    cr_expect(m.tied_embeddings);
}

Test(model_shape, linear_rope_scaling_is_read_in_all_spellings)
{
    static const struct llama_change changes[] = {
        {.key = "llama.rope.scaling.factor", .f32 = 4},
        {.key = "llama.rope.scale_linear", .f32 = 4},
    };
    struct model_shape m;
    struct err_info ei = {0};
    for (size_t i = 0; i < 2; i++) {
        cr_assert_eq(read_changed(&changes[i], &m, &ei), OK, "%s", ei.text);
        cr_expect_eq(m.rope_scale, 4.0F);
    }
    const struct llama_change none = {.key = "llama.rope.scaling.type", .str = "none"};
    const struct llama_change linear = {.key = "llama.rope.scaling.type", .str = "linear"};
    cr_expect(read_changed(&none, &m, &ei) == OK && m.rope_scale == 1);
    cr_expect(read_changed(&linear, &m, &ei) == OK && m.rope_scale == 1);
}

Test(model_shape, a_long_name_is_cut_between_characters)
{
    struct model_shape m;
    struct err_info ei = {0};
    /* 62 bytes, then a character of 3 bytes that does not fit in 63 */
    const char *name =
        "0123456789012345678901234567890123456789012345678901234567890\n\xe2\x82\xac";
    const struct llama_change change = {.key = "general.name", .str = name};
    cr_assert_eq(read_changed(&change, &m, &ei), OK);
    cr_expect_str_eq(m.name, "0123456789012345678901234567890123456789012345678901234567890?");
}

/* --- refusals -----------------------------------------------------------------------------------
 */

struct refusal {
    struct llama_change change;
    enum err code;
    const char *says[2];
};

static void expect_refusals(const struct refusal *all, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct model_shape m = {.n_layers = 77};
        struct err_info ei = {0};
        enum err rc = read_changed(&all[i].change, &m, &ei);
        cr_expect_eq(rc, all[i].code, "%s (%s): %s", all[i].says[0], err_name(rc), ei.text);
        cr_expect(strstr(ei.text, all[i].says[0]), "\"%s\" lacks \"%s\"", ei.text, all[i].says[0]);
        cr_expect(!all[i].says[1] || strstr(ei.text, all[i].says[1]), "\"%s\" lacks \"%s\"",
                  ei.text, all[i].says[1] ? all[i].says[1] : "");
        cr_expect(strstr(ei.text, "/proc/self/fd/"), "%s", ei.text);
        cr_expect_eq(m.n_layers, 77, "the output was touched");
    }
}

Test(model_shape, a_missing_or_impossible_key_is_named)
{
    static const struct refusal all[] = {
        {{.omit = "general.architecture"}, ERR_PARSE, {"general.architecture"}},
        {{.omit = "llama.block_count"}, ERR_PARSE, {"llama.block_count"}},
        {{.omit = "llama.embedding_length"}, ERR_PARSE, {"llama.embedding_length"}},
        {{.omit = "llama.feed_forward_length"}, ERR_PARSE, {"llama.feed_forward_length"}},
        {{.omit = "llama.context_length"}, ERR_PARSE, {"llama.context_length"}},
        {{.omit = "llama.attention.head_count"}, ERR_PARSE, {"llama.attention.head_count"}},
        {{.omit = "llama.attention.layer_norm_rms_epsilon"}, ERR_PARSE, {"rms_epsilon"}},
        {{.key = "llama.block_count", .u32 = 0}, ERR_PARSE, {"block_count: 0", "1 to 1024"}},
        {{.key = "llama.block_count", .u32 = 1025}, ERR_PARSE, {"block_count: 1025"}},
        {{.key = "llama.block_count", .str = "1"}, ERR_PARSE, {"llama.block_count", "whole"}},
        {{.key = "llama.attention.head_count", .u32 = 0}, ERR_PARSE, {"head_count: 0"}},
        {{.key = "llama.attention.head_count", .u32 = 3}, ERR_PARSE, {"3", "head_count_kv 2"}},
        {{.key = "llama.attention.head_count_kv", .u32 = 3}, ERR_PARSE, {"4", "head_count_kv 3"}},
        {{.key = "llama.embedding_length", .u32 = 10}, ERR_PARSE, {"10", "head_count 4"}},
        {{.key = "llama.embedding_length", .u32 = 4}, ERR_PARSE, {"head of 1 "}},
        {{.key = "llama.attention.key_length", .u32 = 300}, ERR_PARSE, {"300", "1 to 256"}},
        {{.key = "llama.attention.key_length", .u32 = 3}, ERR_PARSE, {"head of 3 "}},
        {{.key = "llama.attention.layer_norm_rms_epsilon", .f32 = -1}, ERR_PARSE, {"-1"}},
        {{.key = "llama.rope.freq_base", .f32 = -2}, ERR_PARSE, {"freq_base: -2"}},
        {{.key = "llama.rope.freq_base", .u32 = 2}, ERR_PARSE, {"freq_base", "floating"}},
        {{.key = "llama.rope.scaling.factor", .f32 = -4}, ERR_PARSE, {"factor: -4"}},
        {{.key = "llama.vocab_size", .u32 = 11}, ERR_PARSE, {"vocab_size: 11", "10 rows"}},
    };
    expect_refusals(all, sizeof all / sizeof *all);
}

Test(model_shape, what_this_build_does_not_compute_is_named)
{
    static const struct refusal all[] = {
        {{.key = "general.architecture", .str = "qwen3"}, ERR_UNSUPPORTED, {"\"qwen3\""}},
        {{.key = "general.architecture", .str = "llama4"}, ERR_UNSUPPORTED, {"\"llama4\""}},
        {{.key = "llama.rope.scaling.type", .str = "yarn"}, ERR_UNSUPPORTED, {"\"yarn\""}},
        {{.key = "llama.rope.scaling.type", .str = "longrope"}, ERR_UNSUPPORTED, {"longrope"}},
        {{.key = "llama.rope.dimension_count", .u32 = 1}, ERR_UNSUPPORTED, {"dimension_count: 1"}},
        {{.key = "llama.attention.value_length", .u32 = 4}, ERR_UNSUPPORTED, {"value_length: 4"}},
        {{.key = "llama.expert_count", .u32 = 8}, ERR_UNSUPPORTED, {"llama.expert_count"}},
        {{.key = "llama.logit_scale", .f32 = 2}, ERR_UNSUPPORTED, {"llama.logit_scale"}},
        {{.tensor = "blk.0.attn_q.bias", .dims = {8}}, ERR_UNSUPPORTED, {"blk.0.attn_q.bias"}},
        {{.tensor = "blk.1.attn_q.weight", .dims = {8, 8}}, ERR_UNSUPPORTED, {"blk.1.attn_q"}},
        {{.tensor = "blk.00.attn_q.weight", .dims = {8, 8}}, ERR_UNSUPPORTED, {"blk.00.attn_q"}},
        {{.tensor = "output_norm.weight", .dims = {8}, .type = TENSOR_F16},
         ERR_UNSUPPORTED,
         {"output_norm.weight", "F16"}},
    };
    expect_refusals(all, sizeof all / sizeof *all);
}

Test(model_shape, a_missing_or_misshapen_tensor_is_named_with_both_shapes)
{
    static const struct refusal all[] = {
        {{.omit = "token_embd.weight"}, ERR_PARSE, {"token_embd.weight"}},
        {{.omit = "output_norm.weight"}, ERR_PARSE, {"output_norm.weight"}},
        {{.omit = "blk.0.attn_norm.weight"}, ERR_PARSE, {"blk.0.attn_norm.weight"}},
        {{.omit = "blk.0.ffn_down.weight"}, ERR_PARSE, {"blk.0.ffn_down.weight", "missing"}},
        {{.tensor = "token_embd.weight", .dims = {10, 10}}, ERR_PARSE, {"[10, 10,", "[8, 10]"}},
        {{.tensor = "output.weight", .dims = {8, 9}}, ERR_PARSE, {"output.weight", "[8, 10]"}},
        {{.tensor = "blk.0.attn_k.weight", .dims = {8, 8}}, ERR_PARSE, {"[8, 8,", "[8, 4]"}},
        {{.tensor = "blk.0.ffn_down.weight", .dims = {8, 12}}, ERR_PARSE, {"[8, 12,", "[12, 8]"}},
        {{.tensor = "blk.0.ffn_norm.weight", .dims = {8, 1}}, ERR_PARSE, {"of 2 should be"}},
        {{.tensor = "rope_freqs.weight", .dims = {2}}, ERR_PARSE, {"rope_freqs.weight", "[1, 1]"}},
    };
    expect_refusals(all, sizeof all / sizeof *all);
}
