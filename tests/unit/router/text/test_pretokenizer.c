/* Are texts split where Hugging Face's regex engine splits them? Goldens:
 * tests/fixtures/pretokenizer.jsonl (HF tokenizers 0.23.3, Oniguruma). */
#include "router/text/pretokenizer.h"
#include "tests/unit/router/text/support_fixtures.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(pretokenizer, .timeout = 20);

static struct pretokenizer *make(const char *name)
{
    struct pretokenizer *p = NULL;
    struct err_info ei = {{0}};
    cr_assert_eq(pretokenizer_new(name, strlen(name), &p, &ei), OK, "%s", ei.text);
    return p;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* The reference engine reads the {1,3}+ of cl100k as a repeated group, so that any run of digits is
 * one piece there; tiktoken, whose expression it is, reads it as possessive: threes (test below).
 * Cuts inside a run of digits are therefore left out of the comparison for cl100k. */
static bool is_compared(const char *pre, const char *text, size_t n, size_t at)
{
    return at == n || strcmp(pre, "cl100k") != 0 || !is_digit(text[at - 1]) || !is_digit(text[at]);
}

static bool is_split(struct pretokenizer *p, const json_t *row)
{
    size_t n_pieces, n_pre, n_text, k = 0, want = 0;
    const size_t *ends;
    const char *text = row_str(row, "text", &n_text), *pre = row_str(row, "pre", &n_pre);
    const json_t *pieces = json_object_get(row, "pieces");
    cr_assert_eq(pretokenizer_split(p, text, n_text, &ends, &n_pieces, NULL), OK);
    for (size_t i = 0; i < json_array_size(pieces); i++) {
        want += json_string_length(json_array_get(pieces, i));
        while (k < n_pieces && !is_compared(pre, text, n_text, ends[k]))
            k++;
        if (!is_compared(pre, text, n_text, want))
            continue;
        if (k == n_pieces || ends[k++] != want)
            return false;
    }
    return want == n_text && k == n_pieces;
}

Test(pretokenizer, every_family_splits_as_the_reference_does)
{
    struct fixture f;
    struct pretokenizer *p = NULL;
    char current[32] = "";
    for (fixture_open(&f, "tests/fixtures/pretokenizer.jsonl"); fixture_next(&f);) {
        size_t n;
        const char *pre = row_str(f.row, "pre", &n);
        if (strcmp(pre, current) != 0) {
            pretokenizer_free(p);
            p = make(pre);
            snprintf(current, sizeof current, "%s", pre);
        }
        cr_expect(is_split(p, f.row), "%s: %s", pre, row_str(f.row, "id", &n));
    }
    pretokenizer_free(p);
    fixture_close(&f, 544);
}

/* tiktoken's own cut, seen in its ids for this text (fixtures' tokenizer_cl100k.jsonl, row digits:
 * 123 456 789 0 are four tokens). */
Test(pretokenizer, cl100k_cuts_digits_in_threes)
{
    struct pretokenizer *p = make("cl100k");
    const size_t *ends;
    size_t n;
    cr_assert_eq(pretokenizer_split(p, "1234567890", 10, &ends, &n, NULL), OK);
    cr_assert_eq(n, 4);
    cr_expect_eq(ends[0], 3);
    cr_expect_eq(ends[1], 6);
    cr_expect_eq(ends[2], 9);
    cr_expect_eq(ends[3], 10);
    pretokenizer_free(p);
}

/* White_Space in the Unicode character database: U+180E left it with Unicode 6.3. */
Test(pretokenizer, white_space_is_unicodes_and_not_pcre2s)
{
    struct pretokenizer *p = make("gpt2");
    const size_t *ends;
    size_t n;
    cr_assert_eq(pretokenizer_split(p, "\xe1\xa0\x8e!", 4, &ends, &n, NULL), OK);
    cr_expect_eq(n, 1, "U+180E is no white space");
    cr_assert_eq(pretokenizer_split(p, "\xe2\x80\x83!", 4, &ends, &n, NULL), OK);
    cr_expect_eq(n, 2, "U+2003 is white space");
    pretokenizer_free(p);
}

Test(pretokenizer, unknown_names_are_refused_by_name)
{
    static const char *const NAMES[] = {"", "nonesuch", "gpt2 ", "gpt2 gpt-2", "pt2"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        struct pretokenizer *p = NULL;
        struct err_info ei = {{0}};
        enum err rc = pretokenizer_new(NAMES[i], strlen(NAMES[i]), &p, &ei);
        cr_expect_eq(rc, ERR_UNSUPPORTED, "%s", NAMES[i]);
        cr_expect_not_null(strstr(ei.text, "tokenizer.ggml.pre"));
        cr_expect_null(p);
    }
}

Test(pretokenizer, properties_follow_the_family)
{
    struct pretokenizer *qwen = make("qwen2"), *llama = make("llama-bpe");
    cr_expect(pretokenizer_wants_nfc(qwen));
    cr_expect_not(pretokenizer_ignores_merges(qwen));
    cr_expect_not(pretokenizer_wants_nfc(llama));
    cr_expect(pretokenizer_ignores_merges(llama));
    pretokenizer_free(qwen);
    pretokenizer_free(llama);
}
