/* Does the heap merge in the order of the definition? The oracle is the definition itself: of all
 * neighbouring pairs take the one of lowest rank, leftmost, merge it, start again. */
#include "router/text/bpe.h"
#include "tests/unit/router/text/support_fixtures.h"
#include "tests/unit/router/text/support_vocab_file.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

TestSuite(bpe, .timeout = 20);

enum { N_MERGES = 60, MAX_TOKEN = 16, LETTERS = 3, MAX_WORD = 64 };

struct model {
    char **tokens; /* the byte alphabet, then the results of the merges */
    size_t n_tokens;
    uint32_t left[N_MERGES], right[N_MERGES];
    char merges[N_MERGES][2 * MAX_TOKEN + 2];
    char results[N_MERGES][MAX_TOKEN + 1];
    size_t n_merges;
};

static uint32_t pick_token(const struct model *m, uint64_t *seed)
{
    size_t i = random_next(seed) % (LETTERS + m->n_merges);
    return (uint32_t)(i < LETTERS ? 'a' + i : 256 + i - LETTERS);
}

static void make_model(struct model *m, uint64_t *seed)
{
    *m = (struct model){.tokens = byte_tokens(N_MERGES), .n_tokens = 256};
    for (int tries = 0; tries < 1000 && m->n_merges < N_MERGES; tries++) {
        uint32_t left = pick_token(m, seed), right = pick_token(m, seed);
        const char *a = m->tokens[left], *b = m->tokens[right];
        char joined[2 * MAX_TOKEN + 1];
        (void)snprintf(joined, sizeof joined, "%s%s", a, b);
        bool is_new = strlen(joined) <= MAX_TOKEN;
        for (size_t i = 256; i < m->n_tokens && is_new; i++)
            is_new = strcmp(m->tokens[i], joined) != 0;
        if (!is_new)
            continue;
        size_t k = m->n_merges++;
        m->left[k] = left;
        m->right[k] = right;
        (void)snprintf(m->merges[k], sizeof m->merges[k], "%s %s", a, b);
        (void)snprintf(m->results[k], sizeof m->results[k], "%.*s", MAX_TOKEN, joined);
        m->tokens[m->n_tokens++] = m->results[k];
    }
}

static size_t oracle(const struct model *m, const char *word, size_t n, uint32_t *ids)
{
    for (size_t i = 0; i < n; i++)
        ids[i] = (unsigned char)word[i];
    for (size_t rank = 0; rank < m->n_merges;) {
        size_t at = 0;
        while (at + 1 < n && (ids[at] != m->left[rank] || ids[at + 1] != m->right[rank]))
            at++;
        if (at + 1 >= n) {
            rank++;
            continue;
        }
        ids[at] = (uint32_t)(256 + rank);
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
        n--;
        rank = 0;
    }
    return n;
}

static void expect_word(struct bpe *b, const struct model *m, uint64_t *seed)
{
    char word[MAX_WORD];
    uint32_t want[MAX_WORD];
    const uint32_t *got;
    size_t n = 1 + random_next(seed) % MAX_WORD, n_got;
    /* one, two or three letters: long runs of one are where merges overlap */
    size_t n_letters = 1 + random_next(seed) % LETTERS;
    for (size_t i = 0; i < n; i++)
        word[i] = (char)('a' + random_next(seed) % n_letters);
    size_t n_want = oracle(m, word, n, want);
    cr_assert_eq(bpe_encode(b, word, n, &got, &n_got, NULL), OK);
    cr_assert_eq(n_got, n_want, "%.*s", (int)n, word);
    cr_assert_arr_eq(got, want, n_want * sizeof *want);
}

Test(bpe, random_merges_on_random_words_follow_the_definition)
{
    uint64_t seed = (uint64_t)time(NULL) * 2 + 1;
    printf("bpe: seed %llu\n", (unsigned long long)seed);
    for (int round = 0; round < 50; round++) {
        struct model m;
        make_model(&m, &seed);
        const char *merges[N_MERGES];
        for (size_t i = 0; i < m.n_merges; i++)
            merges[i] = m.merges[i];
        struct vocab_file file = {.tokens = (const char *const *)m.tokens,
                                  .n_tokens = m.n_tokens,
                                  .merges = merges,
                                  .n_merges = m.n_merges};
        struct gguf *g = open_vocab_file(&file);
        struct vocab *v = NULL;
        struct bpe *b = NULL;
        cr_assert_eq(vocab_new(g, &v, NULL), OK);
        cr_assert_eq(bpe_new(g, v, &b, NULL), OK);
        for (int i = 0; i < 200; i++)
            expect_word(b, &m, &seed);
        bpe_free(b);
        vocab_free(v);
        gguf_close(g);
        byte_tokens_free(m.tokens);
    }
}

Test(bpe, bytes_without_a_token_are_left_out)
{
    static const char *const TOKENS[] = {"a", "b", "ab"}, *const MERGES[] = {"a b"};
    struct vocab_file file = {.tokens = TOKENS, .n_tokens = 3, .merges = MERGES, .n_merges = 1};
    struct gguf *g = open_vocab_file(&file);
    struct vocab *v = NULL;
    struct bpe *b = NULL;
    const uint32_t *ids;
    size_t n;
    cr_assert_eq(vocab_new(g, &v, NULL), OK);
    cr_assert_eq(bpe_new(g, v, &b, NULL), OK);
    cr_assert_eq(bpe_encode(b, "xaxbx", 5, &ids, &n, NULL), OK);
    cr_assert_eq(n, 1); /* what is left over is neighbours, as in the reference */
    cr_expect_eq(ids[0], 2);
    cr_assert_eq(bpe_encode(b, "xyz", 3, &ids, &n, NULL), OK);
    cr_expect_eq(n, 0);
    bpe_free(b);
    vocab_free(v);
    gguf_close(g);
}
