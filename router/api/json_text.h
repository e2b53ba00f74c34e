#pragma once
#include "config/base/bytes.h"
#include "config/base/err.h"

#include <stddef.h>
#include <stdint.h>

/* JSON as text: what is written by hand (answers), and what is looked at before a parser may see it
 * (bodies). Pure functions; any thread. */

/* Appends s in quotes, escaped; bytes that are not UTF-8 become U+FFFD. */
void json_text_append_string(struct bytes *out, const char *s, size_t n);
/* A finite number with the digits of a float; -inf and NaN become -9999.0. */
void json_text_append_logprob(struct bytes *out, float v);

struct json_text_limits {
    uint32_t depth;      /* nested arrays and objects */
    uint32_t containers; /* arrays and objects in all */
    uint32_t values;     /* commas in all */
};
/* Counts brackets and commas outside strings, so that parsing cannot use memory or stack out of
 * proportion. Says nothing of syntax. Errors: LIMIT, naming which. */
NODISCARD enum err json_text_check(const char *s, size_t n, const struct json_text_limits *limits,
                                   struct err_info *ei);
