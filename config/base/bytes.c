/* How are texts of unknown length built? By doubling, with one failure flag to check at the end. */
#include "config/base/bytes.h"

#include <assert.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int reserve(struct bytes *b, size_t extra)
{
    if (b->failed)
        return 0;
    if (extra <= b->capacity - b->size)
        return 1;
    size_t capacity = b->capacity ? b->capacity : 256;
    while (capacity - b->size < extra) {
        if (capacity > SIZE_MAX / 2) {
            b->failed = 1;
            return 0;
        }
        capacity *= 2;
    }
    char *data = realloc(b->data, capacity);
    if (!data) {
        b->failed = 1;
        return 0;
    }
    b->data = data;
    b->capacity = capacity;
    return 1;
}

void bytes_fini(struct bytes *b)
{
    free(b->data);
    *b = (struct bytes){0};
}

void bytes_clear(struct bytes *b)
{
    b->size = 0;
    b->failed = 0;
}

void bytes_append(struct bytes *b, const void *data, size_t n)
{
    if (n == 0 || !reserve(b, n))
        return;
    memcpy(b->data + b->size, data, n);
    b->size += n;
}

void bytes_append_str(struct bytes *b, const char *s)
{
    bytes_append(b, s, strlen(s));
}

void bytes_printf(struct bytes *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0) {
        b->failed = 1;
        return;
    }
    if (!reserve(b, (size_t)n + 1))
        return;
    va_start(ap, fmt);
    (void)vsnprintf(b->data + b->size, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->size += (size_t)n;
}

void bytes_append_nul(struct bytes *b)
{
    if (reserve(b, 1))
        b->data[b->size] = '\0';
}

void bytes_consume(struct bytes *b, size_t n)
{
    assert(n <= b->size);
    if (n && n < b->size)
        memmove(b->data, b->data + n, b->size - n);
    b->size -= n;
}
