/* Are vocabularies that lie refused by key and index (case 15 of the reports)? And is the byte
 * alphabet GPT-2's: the first and last of each of its ranges, from the published encoder. */
#include "router/text/tokenizer.h"
#include "router/text/vocab.h"
#include "tests/unit/router/text/support_vocab_file.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(vocab, .timeout = 20);

static const char *const TOKENS[] = {"a", "b", "c", "ab", "abc", "<end>"};
static const char *const MERGES[] = {"a b", "ab c"};
static const int32_t TYPES[] = {1, 1, 1, 1, 1, 3};

static struct vocab_file good(void)
{
    return (struct vocab_file){.tokens = TOKENS,
                               .n_tokens = 6,
                               .types = TYPES,
                               .n_types = 6,
                               .merges = MERGES,
                               .n_merges = 2,
                               .id_key = "tokenizer.ggml.eos_token_id",
                               .id = 5};
}

static void expect_refused(const struct vocab_file *v, enum err want, const char *words)
{
    struct tokenizer *t = NULL;
    struct err_info ei = {{0}};
    struct gguf *g = open_vocab_file(v);
    enum err rc = tokenizer_new(g, &t, &ei);
    cr_expect_eq(rc, want, "%s: %s", words, err_name(rc));
    cr_expect_not_null(strstr(ei.text, words), "%s: %s", words, ei.text);
    cr_expect_null(t);
    gguf_close(g);
}

Test(vocab, a_good_small_file_loads)
{
    struct vocab_file v = good();
    struct gguf *g = open_vocab_file(&v);
    struct tokenizer *t = NULL;
    struct token_ids ids = {0};
    struct tokenizer_options opt = {.parse_special = true};
    cr_assert_eq(tokenizer_new(g, &t, NULL), OK);
    gguf_close(g);
    cr_assert_eq(tokenizer_encode(t, "abcab<end>b", 11, opt, &ids, NULL), OK);
    cr_assert_eq(ids.n, 4);
    cr_expect(ids.ids[0] == 4 && ids.ids[1] == 3 && ids.ids[2] == 5 && ids.ids[3] == 1);
    cr_expect_eq(tokenizer_eos(t), 5);
    cr_expect_eq(tokenizer_bos(t), UINT32_MAX);
    token_ids_fini(&ids);
    tokenizer_free(t);
}

Test(vocab, duplicate_and_empty_tokens_are_refused)
{
    static const char *const TWINS[] = {"a", "b", "c", "ab", "abc", "b"};
    static const char *const EMPTY[] = {"a", "b", "", "ab", "abc", "x"};
    struct vocab_file v = good();
    v.tokens = TWINS;
    expect_refused(&v, ERR_PARSE, "tokenizer.ggml.tokens[5]");
    v.tokens = EMPTY;
    expect_refused(&v, ERR_PARSE, "tokenizer.ggml.tokens[2]");
    v.tokens = NULL;
    expect_refused(&v, ERR_PARSE, "tokenizer.ggml.tokens");
}

Test(vocab, token_types_that_do_not_fit_are_refused)
{
    static const int32_t WILD[] = {1, 1, 7, 1, 1, 3}, NEGATIVE[] = {1, -1, 1, 1, 1, 3};
    struct vocab_file v = good();
    v.n_types = 5;
    expect_refused(&v, ERR_PARSE, "tokenizer.ggml.token_type: 5");
    v.n_types = 6;
    v.types = WILD;
    expect_refused(&v, ERR_PARSE, "tokenizer.ggml.token_type[2]");
    v.types = NEGATIVE;
    expect_refused(&v, ERR_PARSE, "tokenizer.ggml.token_type[1]");
}

Test(vocab, merges_that_name_no_tokens_are_refused)
{
    static const char *const BAD[][2] = {{"a b", "x c"}, {"a b", "ab x"}, {"a b", "b c"},
                                         {"a b", "abc"}, {"a b", ""},     {"a b", " "},
                                         {"a b", "ab "}, {"a b", " ab"},  {"a b", "a  b"}};
    struct vocab_file v = good();
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        v.merges = BAD[i];
        expect_refused(&v, ERR_PARSE, "tokenizer.ggml.merges[1]");
    }
    v.merges = NULL;
    expect_refused(&v, ERR_PARSE, "tokenizer.ggml.merges");
}

Test(vocab, special_ids_beyond_the_vocabulary_are_refused)
{
    static const char *const KEYS[] = {
        "tokenizer.ggml.bos_token_id",     "tokenizer.ggml.eos_token_id",
        "tokenizer.ggml.eot_token_id",     "tokenizer.ggml.eom_token_id",
        "tokenizer.ggml.unknown_token_id", "tokenizer.ggml.padding_token_id"};
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
        struct vocab_file v = good();
        v.id_key = KEYS[i];
        v.id = 6;
        expect_refused(&v, ERR_PARSE, KEYS[i]);
        v.id = UINT32_MAX;
        expect_refused(&v, ERR_PARSE, KEYS[i]);
    }
}

Test(vocab, other_tokeniser_kinds_are_unsupported_by_name)
{
    struct vocab_file v = good();
    v.model = "llama";
    expect_refused(&v, ERR_UNSUPPORTED, "llama");
    v.model = NULL;
    v.pre = "nonesuch";
    expect_refused(&v, ERR_UNSUPPORTED, "nonesuch");
}

Test(vocab, the_longest_special_token_wins_and_unused_ones_are_text)
{
    static const char *const MORE[] = {"a", "b", "<", ">", "ab", "<a>", "<a><b>", "<b>", "<ab>"};
    static const int32_t MORE_TYPES[] = {1, 1, 1, 1, 1, 3, 4, 3, 5};
    struct vocab_file v = good();
    v.tokens = MORE;
    v.types = MORE_TYPES;
    v.n_tokens = v.n_types = 9;
    v.n_merges = 1;
    struct gguf *g = open_vocab_file(&v);
    struct tokenizer *t = NULL;
    struct token_ids ids = {0};
    struct tokenizer_options opt = {.parse_special = true};
    cr_assert_eq(tokenizer_new(g, &t, NULL), OK);
    cr_assert_eq(tokenizer_encode(t, "<a><b><b><a><ab>", 16, opt, &ids, NULL), OK);
    const uint32_t want[] = {6, 7, 5, 2, 4, 3};
    cr_assert_eq(ids.n, 6);
    cr_expect_arr_eq(ids.ids, want, sizeof want);
    token_ids_fini(&ids);
    tokenizer_free(t);
    gguf_close(g);
}

Test(vocab, the_byte_alphabet_is_gpt2s)
{
    static const struct {
        unsigned char byte;
        const char *text;
    } CASES[] = {{0x00, "\xc4\x80"}, {'\n', "\xc4\x8a"}, {' ', "\xc4\xa0"},  {'!', "!"},
                 {'~', "~"},         {0x7f, "\xc4\xa1"}, {0xa0, "\xc5\x82"}, {0xa1, "\xc2\xa1"},
                 {0xac, "\xc2\xac"}, {0xad, "\xc5\x83"}, {0xae, "\xc2\xae"}, {0xff, "\xc3\xbf"}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char text[2];
        uint32_t n = vocab_byte_char(CASES[i].byte, text);
        cr_expect(n == strlen(CASES[i].text) && memcmp(text, CASES[i].text, n) == 0, "%02x",
                  CASES[i].byte);
    }
}
