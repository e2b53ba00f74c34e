#pragma once
#include <stddef.h>
#include <stdint.h>

/* UTF-8 as Unicode 15, 3.9 (table 3-7) defines it: no overlong forms, no surrogates, nothing past
 * U+10FFFF. Pure functions; any thread. */

enum utf8_kind {
    UTF8_WHOLE,      /* one code point */
    UTF8_BROKEN,     /* a maximal subpart that can never become one: stands for one U+FFFD */
    UTF8_UNFINISHED, /* the text ends inside a code point that may still become whole */
};

struct utf8_step {
    enum utf8_kind kind;
    uint32_t n_bytes;    /* how many bytes it covers, at least 1 */
    uint32_t code_point; /* U+FFFD unless whole */
};

/* What stands at the start of s; n >= 1. */
struct utf8_step utf8_next(const char *s, size_t n);

/* Length of the longest prefix that is valid: n when all of it is. */
size_t utf8_valid_prefix(const char *s, size_t n);

/* Writes 1 to 4 bytes; returns how many. cp must be a Unicode scalar value. */
uint32_t utf8_put(uint32_t cp, char out[4]);
