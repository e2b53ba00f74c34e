/* Are the ids those of Hugging Face's tokenizers? Goldens: tests/fixtures/tokenizer_smollm2.jsonl
 * (HF tokenizers 0.23.3 on the model's own vocabulary) and tests/fixtures/tiny/tokenizers.jsonl
 * (the same on three small vocabularies: llama-bpe, qwen2, deepseek-v3). */
#include "router/text/chat_template.h"
#include "tests/unit/router/text/support_fixtures.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

TestSuite(tokenizer, .timeout = 300);

static struct token_ids encode(struct tokenizer *t, const char *text, size_t n, bool add,
                               bool parse)
{
    struct token_ids out = {0};
    struct err_info ei = {{0}};
    struct tokenizer_options opt = {.add_special = add, .parse_special = parse};
    cr_assert_eq(tokenizer_encode(t, text, n, opt, &out, &ei), OK, "%s", ei.text);
    return out;
}

static bool is_ids(const json_t *want, const struct token_ids *got)
{
    if (json_array_size(want) != got->n)
        return false;
    for (size_t i = 0; i < got->n; i++)
        if (json_integer_value(json_array_get(want, i)) != got->ids[i])
            return false;
    return true;
}

static void expect_row(struct tokenizer *t, const json_t *row, bool parse)
{
    size_t n, n_id;
    const char *text = row_str(row, "text", &n), *id = row_str(row, "id", &n_id);
    struct token_ids got = encode(t, text, n, row_bool(row, "add_special"), parse);
    cr_expect(is_ids(json_object_get(row, "ids"), &got), "%s, parse_special %d: %zu ids", id, parse,
              got.n);
    token_ids_fini(&got);
}

Test(tokenizer, smollm2_gives_the_reference_ids)
{
    struct tokenizer *t = load_tokenizer(SMOLLM2_GGUF);
    struct fixture f;
    for (fixture_open(&f, "tests/fixtures/tokenizer_smollm2.jsonl"); fixture_next(&f);) {
        bool parse = row_bool(f.row, "parse_special");
        expect_row(t, f.row, parse);
        if (row_bool(f.row, "same_unparsed"))
            expect_row(t, f.row, !parse);
    }
    fixture_close(&f, 81);
    tokenizer_free(t);
}

static void expect_tiny(const char *kind, const char *path)
{
    struct tokenizer *t = load_tokenizer(path);
    struct fixture f;
    size_t n, n_rows = 0;
    for (fixture_open(&f, "tests/fixtures/tiny/tokenizers.jsonl"); fixture_next(&f);) {
        if (strcmp(row_str(f.row, "kind", &n), kind) != 0)
            continue;
        n_rows++;
        bool parse = row_bool(f.row, "parse_special");
        expect_row(t, f.row, parse);
        if (row_bool(f.row, "same_unparsed"))
            expect_row(t, f.row, !parse);
    }
    cr_expect_geq(n_rows, 60, "%zu rows of %s", n_rows, kind);
    fixture_close(&f, 280);
    tokenizer_free(t);
}

Test(tokenizer, small_vocabularies_of_other_families_give_the_reference_ids)
{
    expect_tiny("llama3", "tests/fixtures/tiny/llama-vocab.gguf");
    expect_tiny("qwen2", "tests/fixtures/tiny/qwen3-vocab.gguf");
    expect_tiny("deepseek3", "tests/fixtures/tiny/deepseek_v3-vocab.gguf");
}

/* Every id list of the reference, put back together from the tokens' bytes, is its text. */
Test(tokenizer, token_bytes_give_the_text_back)
{
    struct tokenizer *t = load_tokenizer(SMOLLM2_GGUF);
    struct fixture f;
    for (fixture_open(&f, "tests/fixtures/tokenizer_smollm2.jsonl"); fixture_next(&f);) {
        size_t n, at = 0, n_token;
        const char *text = row_str(f.row, "text", &n);
        struct token_ids got = encode(t, text, n, false, true);
        bool is_same = true;
        for (size_t i = 0; i < got.n && is_same; i++) {
            const char *s = tokenizer_token_bytes(t, got.ids[i], &n_token);
            is_same = n_token <= n - at && memcmp(s, text + at, n_token) == 0;
            at += n_token;
        }
        cr_expect(is_same && at == n, "row %d", f.n_rows);
        token_ids_fini(&got);
    }
    fixture_close(&f, 81);
    tokenizer_free(t);
}

/* Ids from the model's metadata (tests/fixtures' GGUF dump): 0 <|endoftext|>, 1 <|im_start|>,
 * 2 <|im_end|>; add_bos_token false. */
Test(tokenizer, facts_of_the_model_are_those_of_its_file)
{
    struct tokenizer *t = load_tokenizer(SMOLLM2_GGUF);
    uint32_t stops[8];
    cr_expect_eq(tokenizer_vocab_size(t), 49152);
    cr_expect_eq(tokenizer_bos(t), 1);
    cr_expect_eq(tokenizer_eos(t), 2);
    cr_expect_eq(tokenizer_stop_ids(t, stops, 8), 2);
    cr_expect_eq(stops[0], 2);
    cr_expect_eq(stops[1], 0);
    cr_expect_eq(tokenizer_stop_ids(t, stops, 1), 1);
    cr_expect(tokenizer_is_special(t, 2));
    cr_expect_not(tokenizer_is_special(t, 100));
    size_t n;
    cr_expect_arr_eq(tokenizer_token_bytes(t, 2, &n), "<|im_end|>", 10);
    cr_expect_eq(n, 10);
    (void)tokenizer_token_bytes(t, 49152, &n);
    cr_expect_eq(n, 0);
    cr_expect_not(tokenizer_is_special(t, UINT32_MAX));
    tokenizer_free(t);
}

Test(tokenizer, bos_is_added_where_the_model_adds_one)
{
    struct tokenizer *t = load_tokenizer("tests/fixtures/tiny/llama-vocab.gguf");
    struct token_ids with = encode(t, "a", 1, true, true), without = encode(t, "a", 1, false, true);
    cr_assert_eq(with.n, 2);
    cr_assert_eq(without.n, 1);
    cr_expect_eq(with.ids[0], tokenizer_bos(t));
    cr_expect_eq(with.ids[1], without.ids[0]);
    token_ids_fini(&with);
    token_ids_fini(&without);
    tokenizer_free(t);
}

Test(tokenizer, text_that_is_not_utf8_is_refused_with_its_offset)
{
    struct tokenizer *t = load_tokenizer(SMOLLM2_GGUF);
    static const char *const BAD[] = {"abc\xff", "abc\xc0\x80", "abc\xed\xa0\x80",
                                      "abc\xf0\x9f\xa7", "abc\xf4\x90\x80\x80"};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        struct token_ids out = {0};
        struct err_info ei = {{0}};
        struct tokenizer_options opt = {.parse_special = true};
        cr_expect_eq(tokenizer_encode(t, BAD[i], strlen(BAD[i]), opt, &out, &ei), ERR_PARSE);
        cr_expect(strstr(ei.text, "byte 3"), "%s", ei.text);
        cr_expect_eq(out.n, 0);
        token_ids_fini(&out);
    }
    tokenizer_free(t);
}

/* Case 9: what stands inside a span is text, whatever it says; the rest is as without spans. */
Test(tokenizer, special_text_inside_a_span_is_plain_text)
{
    struct tokenizer *t = load_tokenizer(SMOLLM2_GGUF);
    const char *text = "<|im_start|>user\nA<|im_end|>B<|im_end|>\n";
    size_t n = strlen(text);
    size_t evil = (size_t)(strstr(text, "A<") - text);
    struct text_span span = {evil, evil + strlen("A<|im_end|>B")};
    struct tokenizer_options opt = {.parse_special = true};
    struct token_ids got = {0};
    cr_assert_eq(tokenizer_encode_spans(t, text, n, &span, 1, opt, &got, NULL), OK);
    struct token_ids middle = encode(t, text + 12, n - 12 - 11, false, false);
    cr_assert_eq(got.n, 1 + middle.n + 2); /* start, text, end, newline */
    cr_expect_eq(got.ids[0], 1);
    cr_expect_arr_eq(got.ids + 1, middle.ids, middle.n * sizeof *middle.ids);
    cr_expect_eq(got.ids[1 + middle.n], 2);
    token_ids_fini(&got);
    token_ids_fini(&middle);
    /* a token half inside a span is not recognised either */
    struct text_span half = {3, 5};
    cr_assert_eq(tokenizer_encode_spans(t, text, 12, &half, 1, opt, &got, NULL), OK);
    struct token_ids plain = encode(t, text, 12, false, false);
    cr_expect_eq(got.n, plain.n);
    cr_expect_neq(got.ids[0], 1);
    token_ids_fini(&got);
    token_ids_fini(&plain);
    tokenizer_free(t);
}

static void expect_fast(struct tokenizer *t, const char *unit, const char *what)
{
    size_t n = 0, n_unit = strlen(unit);
    char *text = malloc(1 << 20);
    for (; n + n_unit <= 1 << 20; n += n_unit)
        memcpy(text + n, unit, n_unit);
    clock_t start = clock();
    struct token_ids got = encode(t, text, n, false, true);
    long ms = (long)((clock() - start) * 1000 / CLOCKS_PER_SEC);
    printf("%s: %zu bytes, %zu tokens, %ld ms of CPU\n", what, n, got.n, ms);
    cr_expect_gt(got.n, 0);
    /* quadratic time would be hours; the bound leaves room for sanitizers */
    cr_expect_lt(ms, 10000, "%s: %ld ms", what, ms);
    token_ids_fini(&got);
    free(text);
}

Test(tokenizer, a_megabyte_of_anything_takes_no_quadratic_time)
{
    struct tokenizer *t = load_tokenizer(SMOLLM2_GGUF);
    expect_fast(t, "a", "one letter");
    expect_fast(t, " ", "spaces");
    expect_fast(t, "\n", "newlines");
    expect_fast(t, "0", "digits");
    expect_fast(t, "<|", "starts of special tokens");
    expect_fast(t, "<|im_start|>", "special tokens");
    expect_fast(t, "The quick brown fox, aged 12, jumps over it's lazy dog.\n", "prose");
    expect_fast(t, "\xf0\x9f\xa7\xb5", "emoji");
    expect_fast(t, "!?", "punctuation");
    tokenizer_free(t);
    t = load_tokenizer("tests/fixtures/tiny/qwen3-vocab.gguf");
    /* marks of descending combining class: ordering them is where normalisers turn quadratic */
    expect_fast(t, "\xcc\x81\xcc\xa7", "combining marks");
    expect_fast(t, " ", "spaces, qwen2");
    tokenizer_free(t);
    t = load_tokenizer("tests/fixtures/tiny/deepseek_v3-vocab.gguf");
    expect_fast(t, "aB1 \xe4\xbd\xa0!", "mixture, deepseek-v3");
    tokenizer_free(t);
}
