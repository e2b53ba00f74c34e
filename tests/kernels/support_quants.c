/* Reads the number-format goldens into arrays. Knows the files' shape, judges nothing itself but
 * that the fields are there. */
#include "tests/kernels/support_quants.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *hex_bytes(json_t *object, const char *key, size_t *n_bytes)
{
    const char *hex = json_string_value(json_object_get(object, key));
    cr_assert_not_null(hex, "%s", key);
    *n_bytes = strlen(hex) / 2;
    uint8_t *out = malloc(*n_bytes);
    for (size_t i = 0; i < *n_bytes; i++) {
        unsigned byte;
        cr_assert_eq(sscanf(hex + 2 * i, "%2x", &byte), 1);
        out[i] = (uint8_t)byte;
    }
    return out;
}

static double *numbers(json_t *object, const char *key, size_t n)
{
    json_t *a = json_object_get(object, key);
    cr_assert_eq(json_array_size(a), n, "%s", key);
    double *out = malloc(n * sizeof *out);
    for (size_t i = 0; i < n; i++)
        out[i] = json_number_value(json_array_get(a, i));
    return out;
}

struct quants_fixture quants_fixture_load(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "tests/fixtures/quants/%s.json", name);
    json_t *root = json_load_file(path, 0, NULL);
    cr_assert_not_null(root, "%s", path);
    struct quants_fixture f = {0};
    size_t n_bytes;
    f.type = (enum tensor_type)json_integer_value(json_object_get(root, "ggml_type_id"));
    f.n_rows = (size_t)json_integer_value(json_object_get(root, "rows"));
    f.row_values = (size_t)json_integer_value(json_object_get(root, "row_elems"));
    f.raw = hex_bytes(root, "raw_hex", &n_bytes);
    cr_assert_eq(n_bytes, f.n_rows * tensor_type_row_bytes(f.type, f.row_values));
    f.dequant = hex_bytes(root, "dequant_f32_hex", &n_bytes);
    cr_assert_eq(n_bytes, f.n_rows * f.row_values * sizeof(float));
    json_t *random = json_object_get(root, "random_blocks");
    if (random) {
        f.random_raw = hex_bytes(random, "raw_hex", &n_bytes);
        f.random_dequant = hex_bytes(random, "dequant_f32_hex", &n_bytes);
        f.n_random = n_bytes / sizeof(float);
    }
    json_t *dot = json_object_get(root, "dot");
    f.x = hex_bytes(dot, "x_f32_hex", &n_bytes);
    cr_assert_eq(n_bytes, f.row_values * sizeof(float));
    f.x_q8_0 = hex_bytes(dot, "x_q8_0_raw_hex", &n_bytes);
    f.y_exact = numbers(dot, "y_exact", f.n_rows);
    f.y_with_x_as_q8_0 = numbers(dot, "y_with_x_as_q8_0", f.n_rows);
    json_decref(root);
    return f;
}

void quants_fixture_fini(struct quants_fixture *f)
{
    free(f->raw);
    free(f->dequant);
    free(f->random_raw);
    free(f->random_dequant);
    free(f->x);
    free(f->x_q8_0);
    free(f->y_exact);
    free(f->y_with_x_as_q8_0);
    memset(f, 0, sizeof *f);
}
