/* Does the reader see the real model as the gguf Python package does? The oracle is
 * tests/fixtures/smollm2_gguf_dump.txt, written by that package: every metadata key and every
 * tensor. Skipped where the model has not been downloaded. */
#include "config/gguf.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char model_path[] = ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf";
static const char dump_path[] = "tests/fixtures/smollm2_gguf_dump.txt";

TestSuite(gguf_smollm2, .timeout = 20);

static struct gguf *open_model(void)
{
    struct gguf *g = NULL;
    struct err_info ei = {0};
    if (access(model_path, R_OK) != 0)
        cr_skip_test("no %s here", model_path);
    cr_assert_eq(gguf_open(model_path, &g, &ei), OK, "%s", ei.text);
    return g;
}

static bool equals(struct gguf_str s, const json_t *text)
{
    return json_is_string(text) && s.n == json_string_length(text) &&
           memcmp(s.s, json_string_value(text), s.n) == 0;
}

static bool text_matches(const struct gguf *g, const char *key, const char *value)
{
    struct gguf_str s;
    json_t *want = json_loads(value, JSON_DECODE_ANY, NULL);
    bool ok = gguf_get_str(g, key, &s) && equals(s, want);
    json_decref(want);
    return ok;
}

/* value: "[n] [first, ...] ..." */
static bool array_matches(const struct gguf *g, const char *key, const char *value)
{
    size_t n = strtoul(value + 1, NULL, 10);
    json_t *first = json_loads(strstr(value, "] ") + 2, JSON_DISABLE_EOF_CHECK, NULL);
    bool is_text = json_is_string(json_array_get(first, 0));
    bool ok =
        json_array_size(first) > 0 && n == (is_text ? gguf_n_strs(g, key) : gguf_n_ints(g, key));
    for (size_t i = 0; ok && i < json_array_size(first); i++) {
        const json_t *want = json_array_get(first, i);
        ok = is_text ? equals(gguf_str_at(g, key, i), want)
                     : gguf_int_at(g, key, i) == json_integer_value(want);
    }
    json_decref(first);
    return ok;
}

static bool key_matches(const struct gguf *g, const char *key, const char *kind, const char *value)
{
    uint32_t u;
    float f;
    bool b;
    if (strcmp(key, "GGUF.tensor_count") == 0)
        return gguf_n_tensors(g) == strtoul(value, NULL, 10);
    if (strncmp(key, "GGUF.", 5) == 0)
        return true; /* of the file's head, not of its metadata */
    if (strcmp(kind, "STRING") == 0)
        return text_matches(g, key, value);
    if (strncmp(kind, "ARRAY/", 6) == 0)
        return array_matches(g, key, value);
    if (strcmp(kind, "UINT32") == 0)
        return gguf_get_u32(g, key, &u) && u == strtoul(value, NULL, 10);
    if (strcmp(kind, "FLOAT32") == 0)
        return gguf_get_f32(g, key, &f) && (double)f == strtod(value, NULL);
    if (strcmp(kind, "BOOL") == 0)
        return gguf_get_bool(g, key, &b) && b == (strcmp(value, "true") == 0);
    return false;
}

/* "T name [a, b] TYPE bytes offset", the index-th tensor of the file */
static bool tensor_matches(const struct gguf *g, size_t index, const char *line)
{
    char name[65], dims[64], type[16];
    uint64_t d[2] = {1, 1};
    size_t bytes, offset;
    if (sscanf(line, "T %64s [%63[^]]] %15s %zu %zu", name, dims, type, &bytes, &offset) != 5)
        return false;
    int n_dims = sscanf(dims, "%lu, %lu", &d[0], &d[1]);
    const struct gguf_tensor *t = gguf_find_tensor(g, name);
    return t && t == gguf_tensor_at(g, index) && (int)t->n_dims == n_dims && t->dims[0] == d[0] &&
           t->dims[1] == d[1] && strcmp(tensor_type_name(t->type), type) == 0 &&
           t->size_bytes == bytes && t->offset == offset;
}

Test(gguf_smollm2, every_key_and_tensor_equals_the_reference_dump)
{
    struct gguf *g = open_model();
    FILE *f = fopen(dump_path, "r");
    cr_assert_not_null(f);
    char *line = NULL;
    size_t capacity = 0, n_keys = 0, n_tensors = 0;
    while (getline(&line, &capacity, f) > 0) {
        char key[80], kind[32];
        int value = 0;
        line[strcspn(line, "\n")] = '\0';
        if (sscanf(line, "KV %79s %31s %n", key, kind, &value) == 2) {
            cr_expect(key_matches(g, key, kind, line + value), "%s", line);
            n_keys++;
        } else if (line[0] == 'T') {
            cr_expect(tensor_matches(g, n_tensors, line), "%s", line);
            n_tensors++;
        }
    }
    free(line);
    fclose(f);
    cr_expect(n_keys == 36 && n_tensors == 272, "%zu keys, %zu tensors", n_keys, n_tensors);
    gguf_close(g);
}

Test(gguf_smollm2, the_first_norm_weights_lie_where_the_dump_says)
{
    struct gguf *g = open_model();
    const struct gguf_tensor *t = gguf_find_tensor(g, "blk.0.attn_norm.weight");
    cr_assert_not_null(t);
    FILE *f = fopen(model_path, "rb");
    unsigned char raw[2304]; /* bytes of the tensor, offset 31866688: the dump's line */
    cr_assert(f && fseek(f, 31866688, SEEK_SET) == 0 && fread(raw, sizeof raw, 1, f) == 1);
    fclose(f);
    cr_expect(t->size_bytes == sizeof raw && memcmp(t->data, raw, sizeof raw) == 0);
    gguf_close(g);
}
