#pragma once
#include "config/base/err.h"

#include <stddef.h>

/* A growing byte string. Zero-initialised is empty and valid. One owner thread.
 * Append functions set `failed` instead of returning an error, so that writers of long texts (JSON,
 * metrics, messages) check once at the end; after a failure appends do nothing. */
struct bytes {
    char *data; /* owned; not NUL-terminated unless bytes_append_nul was called */
    size_t size, capacity;
    int failed; /* out of memory */
};

void bytes_fini(struct bytes *b);  /* frees and zeroes */
void bytes_clear(struct bytes *b); /* size 0, memory kept */
void bytes_append(struct bytes *b, const void *data, size_t n);
void bytes_append_str(struct bytes *b, const char *s);
void bytes_printf(struct bytes *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* A NUL behind the data that size does not count. */
void bytes_append_nul(struct bytes *b);
/* Drops the first n bytes (n <= size). */
void bytes_consume(struct bytes *b, size_t n);
