/* Does streamed text end between code points, and is the whole the decoding of all bytes? Goldens:
 * tests/fixtures/detok_smollm2.jsonl (Python's incremental UTF-8 decoder, errors="replace"). */
#include "router/text/detokenizer.h"
#include "tests/unit/router/text/support_fixtures.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(detokenizer, .timeout = 20);

static void expect_chunk(const json_t *row, size_t i, const struct bytes *got)
{
    const json_t *want = json_array_get(json_object_get(row, "chunks"), i);
    size_t n;
    cr_expect(json_string_length(want) == got->size &&
                  memcmp(json_string_value(want), got->data, got->size) == 0,
              "%s: chunk %zu", row_str(row, "id", &n), i);
}

Test(detokenizer, chunks_are_those_of_the_reference)
{
    struct tokenizer *t = load_tokenizer(SMOLLM2_GGUF);
    struct fixture f;
    for (fixture_open(&f, "tests/fixtures/detok_smollm2.jsonl"); fixture_next(&f);) {
        const json_t *ids = json_object_get(f.row, "ids");
        struct detokenizer d;
        struct bytes chunk = {0}, all = {0};
        detokenizer_init(&d, t, row_bool(f.row, "keep_special"));
        size_t n = json_array_size(ids);
        cr_assert_eq(json_array_size(json_object_get(f.row, "chunks")), n + 1);
        for (size_t i = 0; i <= n; i++) {
            bytes_clear(&chunk);
            if (i < n)
                detokenizer_push(&d, (uint32_t)json_integer_value(json_array_get(ids, i)), &chunk);
            else
                detokenizer_flush(&d, &chunk);
            bytes_append_nul(&chunk); /* data is not NULL even when empty */
            expect_chunk(f.row, i, &chunk);
            bytes_append(&all, chunk.data, chunk.size);
        }
        bytes_append_nul(&all);
        const char *text = row_str(f.row, "text", &n);
        cr_expect(all.size == n && memcmp(text, all.data, n) == 0, "row %d", f.n_rows);
        bytes_fini(&chunk);
        bytes_fini(&all);
    }
    fixture_close(&f, 95);
    tokenizer_free(t);
}

Test(detokenizer, ids_beyond_the_vocabulary_give_no_text)
{
    struct tokenizer *t = load_tokenizer("tests/fixtures/tiny/llama-vocab.gguf");
    struct detokenizer d;
    struct bytes out = {0};
    detokenizer_init(&d, t, true);
    detokenizer_push(&d, UINT32_MAX, &out);
    detokenizer_push(&d, tokenizer_vocab_size(t), &out);
    detokenizer_flush(&d, &out);
    cr_expect_eq(out.size, 0);
    bytes_fini(&out);
    tokenizer_free(t);
}
