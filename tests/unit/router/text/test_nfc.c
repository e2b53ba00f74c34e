/* Is NFC what the standard says? Expected values: examples of Unicode Standard Annex 15 (figures 3
 * to 6) and of chapter 3.12 (Hangul). */
#include "router/text/nfc.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

TestSuite(nfc, .timeout = 20);

Test(nfc, composes_as_the_annex_shows)
{
    static const char *const CASES[][2] = {
        {"plain", "plain"},
        {"A\xcc\x8a", "\xc3\x85"},                        /* A + ring */
        {"\xe2\x84\xab", "\xc3\x85"},                     /* angstrom sign, a singleton */
        {"\xe2\x84\xa6", "\xce\xa9"},                     /* ohm sign */
        {"s\xcc\xa3\xcc\x87", "\xe1\xb9\xa9"},            /* s + dot below + dot above */
        {"s\xcc\x87\xcc\xa3", "\xe1\xb9\xa9"},            /* the same in the other order */
        {"\xe1\xb8\x8b\xcc\xa3", "\xe1\xb8\x8d\xcc\x87"}, /* d-dot-above + dot below */
        {"\xef\xac\x81", "\xef\xac\x81"},                 /* fi ligature: compatibility only */
        {"\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab", "\xed\x95\x9c"}, /* jamo -> one syllable */
        {"\xe0\xa5\x98", "\xe0\xa4\x95\xe0\xa4\xbc"},             /* composition exclusion */
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct bytes out = {0};
        cr_assert_eq(nfc_append(CASES[i][0], strlen(CASES[i][0]), &out, NULL), OK);
        bytes_append_nul(&out);
        cr_expect_str_eq(out.data, CASES[i][1], "case %zu", i);
        bytes_fini(&out);
    }
}

/* Canonical ordering is stable by class: dots below (220) go before acutes (230), whose order among
 * themselves stays. */
Test(nfc, long_runs_of_marks_are_ordered_stably)
{
    enum { N = 1000 };
    struct bytes in = {0}, want = {0}, out = {0};
    bytes_append_str(&in, "q");
    bytes_append_str(&want, "q");
    for (int i = 0; i < N; i++) {
        bytes_append_str(&in, i % 2 ? "\xcc\x80" : "\xcc\x81"); /* grave, acute */
        bytes_append_str(&in, "\xcc\xa3");
        bytes_append_str(&want, "\xcc\xa3");
    }
    for (int i = 0; i < N; i++)
        bytes_append_str(&want, i % 2 ? "\xcc\x80" : "\xcc\x81");
    cr_assert_eq(nfc_append(in.data, in.size, &out, NULL), OK);
    cr_assert_eq(out.size, want.size);
    cr_expect_arr_eq(out.data, want.data, want.size);
    bytes_fini(&in);
    bytes_fini(&want);
    bytes_fini(&out);
}
