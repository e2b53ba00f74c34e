/* Is no part of a stop string ever shown, and everything else shown in time? The oracle searches
 * the whole text at once. */
#include "router/text/stop_strings.h"
#include "tests/unit/router/text/support_fixtures.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

TestSuite(stop_strings, .timeout = 20);

static void init(struct stop_strings *s, const char *const *strings, uint32_t n)
{
    size_t n_bytes[STOP_STRINGS_MAX] = {0};
    for (uint32_t i = 0; i < n; i++)
        n_bytes[i] = strlen(strings[i]);
    stop_strings_init(s, strings, n_bytes, n);
}

static void expect_out(struct bytes *out, const char *want)
{
    cr_expect(out->size == strlen(want) && memcmp(out->data, want, out->size) == 0,
              "%.*s instead of %s", (int)out->size, out->data, want);
}

Test(stop_strings, a_match_across_pushes_is_never_shown)
{
    struct stop_strings s;
    struct bytes out = {0};
    init(&s, (const char *[]){"ree four fi"}, 1);
    cr_expect_not(stop_strings_push(&s, "one two th", 10, &out));
    expect_out(&out, "one two th");
    cr_expect_not(stop_strings_push(&s, "ree four", 8, &out));
    expect_out(&out, "one two th");
    cr_expect(stop_strings_push(&s, " five", 5, &out));
    expect_out(&out, "one two th");
    cr_expect(stop_strings_push(&s, "more", 4, &out));
    stop_strings_flush(&s, &out);
    expect_out(&out, "one two th");
    stop_strings_fini(&s);
    bytes_fini(&out);
}

Test(stop_strings, a_part_match_is_released_at_the_end)
{
    struct stop_strings s;
    struct bytes out = {0};
    init(&s, (const char *[]){"seven\nNEVER"}, 1);
    cr_expect_not(stop_strings_push(&s, "six seven\n", 10, &out));
    expect_out(&out, "six ");
    stop_strings_flush(&s, &out);
    expect_out(&out, "six seven\n");
    cr_expect_not(s.is_hit);
    stop_strings_fini(&s);
    bytes_fini(&out);
}

Test(stop_strings, without_strings_everything_passes_at_once)
{
    struct stop_strings s;
    struct bytes out = {0};
    init(&s, NULL, 0);
    cr_expect_not(stop_strings_push(&s, "text", 4, &out));
    expect_out(&out, "text");
    stop_strings_fini(&s);
    bytes_fini(&out);
}

Test(stop_strings, a_match_waits_while_an_earlier_one_may_still_come)
{
    struct stop_strings s;
    struct bytes out = {0};
    init(&s, (const char *[]){"abcdef", "cd"}, 2);
    cr_expect_not(stop_strings_push(&s, "xabcd", 5, &out));
    expect_out(&out, "x");
    cr_expect(stop_strings_push(&s, "!", 1, &out));
    expect_out(&out, "xab");
    stop_strings_fini(&s);
    bytes_clear(&out);
    init(&s, (const char *[]){"abcdef", "cd"}, 2);
    cr_expect_not(stop_strings_push(&s, "xabcd", 5, &out));
    stop_strings_flush(&s, &out); /* the text ends: "cd" is the earliest after all */
    expect_out(&out, "xab");
    cr_expect(s.is_hit);
    stop_strings_fini(&s);
    bytes_fini(&out);
}

/* Where the whole text has its first match; n: none. */
static size_t oracle(const char *text, size_t n, const char *const *strings, uint32_t n_strings)
{
    for (size_t at = 0; at < n; at++)
        for (uint32_t i = 0; i < n_strings; i++)
            if (strlen(strings[i]) <= n - at && !memcmp(text + at, strings[i], strlen(strings[i])))
                return at;
    return n;
}

static void random_text(uint64_t *seed, char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        s[i] = "abc"[random_next(seed) % 3];
    s[n] = '\0';
}

static void one_walk(uint64_t *seed)
{
    char text[64], store[STOP_STRINGS_MAX][8];
    const char *strings[STOP_STRINGS_MAX];
    uint32_t n_strings = (uint32_t)(random_next(seed) % (STOP_STRINGS_MAX + 1));
    for (uint32_t i = 0; i < n_strings; i++) {
        random_text(seed, store[i], 1 + random_next(seed) % 6);
        strings[i] = store[i];
    }
    size_t n = random_next(seed) % 60;
    random_text(seed, text, n);
    size_t want = oracle(text, n, strings, n_strings);
    struct stop_strings s;
    struct bytes out = {0};
    init(&s, strings, n_strings);
    bool is_hit = false;
    for (size_t at = 0; at < n && !is_hit;) {
        size_t step = random_next(seed) % 7;
        step = step < n - at ? step : n - at;
        is_hit = stop_strings_push(&s, text + at, step, &out);
        at += step;
        cr_assert_leq(out.size, want, "leaked");
        /* nothing is held longer than a stop string can be */
        cr_assert(is_hit || out.size + 6 >= at, "held back too much");
    }
    stop_strings_flush(&s, &out);
    bytes_append_nul(&out); /* data is not NULL even when empty */
    cr_assert_eq(s.is_hit, want < n);
    cr_assert(out.size == want && memcmp(out.data, text, want) == 0, "%zu of %zu", out.size, want);
    stop_strings_fini(&s);
    bytes_fini(&out);
}

Test(stop_strings, random_texts_end_where_a_search_of_the_whole_text_says)
{
    uint64_t seed = (uint64_t)time(NULL) * 2 + 1;
    printf("stop_strings: seed %llu\n", (unsigned long long)seed);
    for (int i = 0; i < 50000; i++)
        one_walk(&seed);
}
