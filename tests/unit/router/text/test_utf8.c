/* Is UTF-8 cut and judged as the Unicode Standard says? Cases: Unicode 15, 3.9, tables 3-7 to 3-11
 * (the tables' own byte sequences). */
#include "router/text/utf8.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(utf8, .timeout = 20);

/* How many U+FFFD and how many whole code points a finished text gives. */
static void count(const char *s, size_t n, int *broken, int *whole)
{
    *broken = *whole = 0;
    for (size_t i = 0; i < n;) {
        struct utf8_step step = utf8_next(s + i, n - i);
        *(step.kind == UTF8_WHOLE ? whole : broken) += 1;
        i += step.n_bytes;
    }
}

Test(utf8, broken_sequences_are_cut_at_maximal_subparts)
{
    static const struct {
        const char *s;
        int broken, whole;
    } CASES[] = {
        {"\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41", 8, 1}, /* table 3-8: non-shortest forms */
        {"\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41", 8, 1}, /* table 3-9: surrogates */
        {"\xf4\x91\x92\x93\xff\x41\x80\xbf\x42", 7, 2}, /* table 3-10: other ill-formed */
        {"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", 4, 1}, /* table 3-11: truncated ones */
        {"a\xc3\xa9\xe2\x82\xac\xf0\x9f\xa7\xb5", 0, 4},
        {"\xf4\x8f\xbf\xbf\xee\x80\x80\xed\x9f\xbf", 0, 3},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        int broken, whole;
        count(CASES[i].s, strlen(CASES[i].s), &broken, &whole);
        cr_expect_eq(broken, CASES[i].broken, "case %zu: %d broken", i, broken);
        cr_expect_eq(whole, CASES[i].whole, "case %zu: %d whole", i, whole);
    }
}

Test(utf8, every_code_point_is_written_and_read_back)
{
    for (uint32_t cp = 0; cp <= 0x10ffff; cp++) {
        if (cp >= 0xd800 && cp <= 0xdfff)
            continue;
        char s[4];
        uint32_t n = utf8_put(cp, s);
        struct utf8_step step = utf8_next(s, n);
        cr_assert(step.kind == UTF8_WHOLE && step.n_bytes == n && step.code_point == cp, "U+%04X",
                  cp);
        cr_assert_eq(utf8_valid_prefix(s, n), n);
        for (uint32_t cut = 1; cut < n; cut++)
            cr_assert_eq(utf8_next(s, cut).kind, UTF8_UNFINISHED);
    }
}

Test(utf8, the_valid_prefix_ends_where_the_fault_begins)
{
    char text[64];
    for (size_t at = 0; at < 40; at++) {
        memset(text, 'a', sizeof text);
        text[at] = (char)0xff;
        cr_expect_eq(utf8_valid_prefix(text, 40), at);
    }
    cr_expect_eq(utf8_valid_prefix("", 0), 0);
}
