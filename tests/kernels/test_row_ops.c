/* Norm, gate, rotation and rounding, one row at a time, on every path. Oracles: the definitions in
 * double, written out here; tests/fixtures/quants/encode_f32.json (made with ml_dtypes) for the
 * roundings; tests/fixtures/rope.jsonl (transformers 5) for the frequencies. */
#include "tests/kernels/support_rows.h"
#include "worker/cpu/dequant.h"
#include "worker/cpu/rope.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TestSuite(row_ops, .timeout = 30);

Test(row_ops, rmsnorm_equals_its_definition_for_any_length)
{
    const uint32_t lengths[] = {1, 2, 15, 16, 17, 31, 48, 64, 576, 1000};
    enum cpu_isa isas[3];
    const uint32_t n_isas = rows_isas(isas);
    float x[1000], w[1000], y[1000];
    rows_fill(1, x, 1000, 30.0f);
    rows_fill(2, w, 1000, 2.0f);
    for (uint32_t i = 0; i < n_isas; i++)
        for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
            const uint32_t n = lengths[k];
            double squares = 0;
            for (uint32_t j = 0; j < n; j++)
                squares += (double)x[j] * (double)x[j];
            cpu_ops_of(isas[i]).rmsnorm(x, w, n, 1e-5f, y);
            for (uint32_t j = 0; j < n; j++) {
                const double exact = (double)x[j] / sqrt(squares / n + 1e-5) * (double)w[j];
                /* a sum of n squares in f32 lanes and three roundings */
                cr_assert_float_eq((double)y[j], exact, 2e-6 * fabs(exact) + 1e-12, "%s, n %u",
                                   cpu_isa_name(isas[i]), n);
            }
        }
}

Test(row_ops, swiglu_equals_its_definition_and_may_be_cut_anywhere)
{
    enum { N = 203 };
    enum cpu_isa isas[3];
    const uint32_t n_isas = rows_isas(isas);
    float gate[N], up[N], whole[N], cut[N];
    rows_fill(3, gate, N, 40.0f);
    rows_fill(4, up, N, 3.0f);
    gate[0] = 0, gate[1] = -1e30f, gate[2] = 1e30f, gate[3] = -200.0f, gate[4] = 200.0f;
    for (uint32_t i = 0; i < n_isas; i++) {
        memcpy(whole, gate, sizeof gate);
        memcpy(cut, gate, sizeof gate);
        cpu_ops_of(isas[i]).swiglu(whole, up, N);
        cpu_ops_of(isas[i]).swiglu(cut, up, 77);
        cpu_ops_of(isas[i]).swiglu(cut + 77, up + 77, N - 77);
        cr_assert_arr_eq(whole, cut, sizeof whole, "%s", cpu_isa_name(isas[i]));
        for (int j = 0; j < N; j++) {
            const double g = (double)gate[j], exact = g / (1 + exp(-g)) * (double)up[j];
            /* exp of up to 40 in f32: some 3e-6 relative; far below 0 the vector paths stop at
             * 2^-126 of the gate, which is nothing beside the sums it goes into */
            cr_assert_float_eq((double)whole[j], exact, 4e-6 * fabs(exact) + 1e-7, "%s: gate %g",
                               cpu_isa_name(isas[i]), g);
        }
    }
}

Test(row_ops, the_pools_roundings_are_those_of_the_goldens)
{
    json_t *root = json_load_file("tests/fixtures/quants/encode_f32.json", 0, NULL);
    json_t *inputs = json_object_get(root, "input_f32_bits");
    cr_assert_gt(json_array_size(inputs), 200);
    for (size_t i = 0; i < json_array_size(inputs); i++) {
        const uint32_t bits =
            (uint32_t)strtoul(json_string_value(json_array_get(inputs, i)), NULL, 16);
        float x;
        memcpy(&x, &bits, sizeof x);
        const uint16_t f16 = kv_format_f16(x), bf16 = kv_format_bf16(x);
        if (isnan(x)) { /* payloads are free */
            cr_assert(isnan(dequant_f16(f16)) && isnan(dequant_bf16(bf16)), "%08x", bits);
            continue;
        }
        cr_assert_eq(f16, json_integer_value(json_array_get(json_object_get(root, "f16"), i)),
                     "%08x: f16 %04x", bits, f16);
        cr_assert_eq(bf16, json_integer_value(json_array_get(json_object_get(root, "bf16"), i)),
                     "%08x: bf16 %04x", bits, bf16);
    }
    json_decref(root);
}

/* Every upper half of an f32 with the lower halves where roundings turn: plain is held against the
 * processor's own conversion, and any length against the same values one by one. */
Test(row_ops, the_pools_roundings_are_the_same_bytes_on_every_path)
{
    const uint32_t low[] = {0x0000, 0x0001, 0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000,
                            0x3001, 0x7fff, 0x8000, 0x8001, 0xf000, 0xffff};
    enum { N = sizeof low / sizeof *low };
    const enum tensor_type formats[] = {TENSOR_F16, TENSOR_BF16, TENSOR_F32};
    enum cpu_isa isas[3];
    const uint32_t n_isas = rows_isas(isas);
    for (uint32_t high = 0; high < 0x10000; high++) {
        float x[2 * N];
        for (uint32_t j = 0; j < 2 * N; j++) {
            const uint32_t bits = high << 16 | low[j % N];
            memcpy(&x[j], &bits, sizeof bits);
        }
        for (uint32_t i = 1; i < n_isas; i++)
            for (size_t f = 0; f < 3; f++) {
                unsigned char plain[8 * N] = {0}, fast[8 * N] = {0};
                kv_format_store_plain(formats[f], x, 2 * N, plain);
                cpu_ops_of(isas[i]).kv_store(formats[f], x, 2 * N, fast);
                cr_assert_arr_eq(plain, fast, sizeof plain, "%s, format %d, high half %04x",
                                 cpu_isa_name(isas[i]), (int)formats[f], high);
            }
    }
}

/* Turns (1, 0) in every pair: cosines and sines of position * inv_freq come out. */
static void check_rope(const struct rope_config *cfg, json_t *inv_freq, uint32_t position)
{
    struct rope_table *t = NULL;
    cr_assert_eq(rope_table_new(cfg, &t, NULL), OK);
    float x[512] = {0};
    for (uint32_t i = 0; i < cfg->head_dim; i++)
        x[i] = x[cfg->head_dim + i] = i % 2 ? 0.0f : 1.0f;
    rope_table_apply(t, position, x, 2);
    for (uint32_t i = 0; i < cfg->rope_dim / 2; i++) {
        const double f = json_number_value(json_array_get(inv_freq, i));
        /* the goldens' frequencies have nine digits, from f32: 1e-7 of the angle */
        const double near = 1e-7 + 2e-7 * position * f;
        for (uint32_t h = 0; h < 2; h++) {
            const float *pair = x + h * cfg->head_dim + 2 * i;
            cr_assert_float_eq((double)pair[0], cos(position * f), near, "pair %u", i);
            cr_assert_float_eq((double)pair[1], sin(position * f), near, "pair %u", i);
        }
    }
    rope_table_free(t);
}

Test(row_ops, rope_turns_pairs_by_the_models_frequencies)
{
    FILE *f = fopen("tests/fixtures/rope.jsonl", "r");
    cr_assert_not_null(f);
    json_t *row;
    uint32_t n_checked = 0;
    while ((row = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL))) {
        const char *id = json_string_value(json_object_get(row, "id"));
        json_t *config = json_object_get(row, "config");
        const bool is_linear = strcmp(id, "llama-linear4") == 0;
        if (is_linear || strcmp(id, "smollm2-135m") == 0) {
            const uint32_t dim = (uint32_t)json_integer_value(json_object_get(config, "head_dim"));
            const struct rope_config cfg = {
                .head_dim = dim,
                .rope_dim = dim,
                .n_positions = 100,
                .base = (float)json_number_value(json_object_get(config, "rope_theta")),
                .scale = is_linear ? 4.0f : 1.0f};
            check_rope(&cfg, json_object_get(row, "inv_freq"), 0);
            check_rope(&cfg, json_object_get(row, "inv_freq"), 99);
            check_rope(&cfg, json_object_get(row, "inv_freq"), 7000); /* beyond the table */
            n_checked++;
        }
        json_decref(row);
    }
    fclose(f);
    cr_assert_eq(n_checked, 2);
}

Test(row_ops, rope_beyond_the_table_has_the_bits_of_the_table)
{
    struct rope_config cfg = {
        .head_dim = 64, .rope_dim = 48, .n_positions = 300, .base = 1e5f, .scale = 1.0f};
    struct rope_table *large = NULL, *small = NULL;
    cr_assert_eq(rope_table_new(&cfg, &large, NULL), OK);
    cfg.n_positions = 0;
    cr_assert_eq(rope_table_new(&cfg, &small, NULL), OK);
    for (uint32_t p = 0; p < 300; p++) {
        float x[128], a[128], b[128];
        rows_fill(p, x, 128, 1.0f);
        memcpy(a, x, sizeof x);
        memcpy(b, x, sizeof x);
        rope_table_apply(large, p, a, 2);
        rope_table_apply(small, p, b, 2);
        cr_assert_arr_eq(a, b, sizeof a, "position %u", p);
        cr_assert_arr_eq(a + 48, x + 48, 16 * sizeof *a, "what is past rope_dim stays");
    }
    rope_table_free(large);
    rope_table_free(small);
}
