/* What do the tests of this folder share? Reading goldens and vocabularies. Every failure here is a
 * failure of the test that called. */
#include "tests/unit/router/text/support_fixtures.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

void fixture_open(struct fixture *f, const char *path)
{
    *f = (struct fixture){.file = fopen(path, "r")};
    cr_assert_not_null(f->file, "cannot open %s", path);
}

bool fixture_next(struct fixture *f)
{
    json_decref(f->row);
    f->row = NULL;
    ssize_t n = getline(&f->line, &f->capacity, f->file);
    if (n < 0)
        return false;
    json_error_t error;
    f->row = json_loadb(f->line, (size_t)n, JSON_ALLOW_NUL, &error);
    cr_assert_not_null(f->row, "row %d: %s", f->n_rows, error.text);
    f->n_rows++;
    return true;
}

void fixture_close(struct fixture *f, int at_least)
{
    cr_expect_geq(f->n_rows, at_least, "%d rows", f->n_rows);
    json_decref(f->row);
    free(f->line);
    fclose(f->file);
}

const char *row_str(const json_t *row, const char *key, size_t *n)
{
    const json_t *v = json_object_get(row, key);
    *n = json_string_length(v);
    return json_string_value(v);
}

bool row_bool(const json_t *row, const char *key)
{
    return json_is_true(json_object_get(row, key));
}

struct tokenizer *load_tokenizer(const char *path)
{
    struct gguf *g = NULL;
    struct tokenizer *t = NULL;
    struct err_info ei = {{0}};
    cr_assert_eq(gguf_open(path, &g, &ei), OK, "%s", ei.text);
    cr_assert_eq(tokenizer_new(g, &t, &ei), OK, "%s", ei.text);
    gguf_close(g);
    return t;
}

char *read_whole_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    cr_assert_not_null(f, "cannot open %s", path);
    cr_assert_eq(fseek(f, 0, SEEK_END), 0);
    long size = ftell(f);
    rewind(f);
    char *s = malloc((size_t)size + 1);
    cr_assert_not_null(s);
    cr_assert_eq(fread(s, 1, (size_t)size, f), (size_t)size);
    s[size] = '\0';
    *n = (size_t)size;
    fclose(f);
    return s;
}

uint64_t random_next(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1du;
}
