#pragma once
#include "config/base/bytes.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Stop strings over a stream of text: text that might be the start of a stop string is held back,
 * so no part of it is ever sent; the earliest match in the text wins (at one start, the first that
 * completes). Whole code points in, whole code points out. */

enum { STOP_STRINGS_MAX = 4 };

struct stop_strings {
    const char *strings[STOP_STRINGS_MAX]; /* borrowed, UTF-8 bytes, non-empty */
    size_t n_bytes[STOP_STRINGS_MAX];
    uint32_t n;
    struct bytes held; /* owned */
    bool is_hit;
};

/* n 0: everything passes through at once. */
void stop_strings_init(struct stop_strings *s, const char *const *strings, const size_t *n_bytes,
                       uint32_t n);
void stop_strings_fini(struct stop_strings *s);
/* Takes text; appends to out what can be shown for sure. True on a match: out got the text before
 * it, and nothing comes after. */
bool stop_strings_push(struct stop_strings *s, const char *text, size_t n, struct bytes *out);
/* End without a match: appends what was held back. */
void stop_strings_flush(struct stop_strings *s, struct bytes *out);
