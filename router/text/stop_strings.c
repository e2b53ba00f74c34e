/* What can be shown without ever showing a part of a stop string? Text goes out as soon as it
 * cannot be the start of one any more. Held text is always the longest tail that could still become
 * a stop string, so it is shorter than the longest of them; every push scans held + new once. Works
 * on bytes, yet cuts between code points only: UTF-8 strings match at code point borders. Does not
 * know tokens. */
#include "router/text/stop_strings.h"

#include <assert.h>
#include <string.h>

void stop_strings_init(struct stop_strings *s, const char *const *strings, const size_t *n_bytes,
                       uint32_t n)
{
    assert(n <= STOP_STRINGS_MAX);
    *s = (struct stop_strings){.n = n};
    for (uint32_t i = 0; i < n; i++) {
        assert(n_bytes[i] > 0);
        s->strings[i] = strings[i];
        s->n_bytes[i] = n_bytes[i];
    }
}

void stop_strings_fini(struct stop_strings *s)
{
    bytes_fini(&s->held);
    *s = (struct stop_strings){0};
}

/* Offset of the earliest whole match in text, or n. */
static size_t earliest_match(const struct stop_strings *s, const char *text, size_t n)
{
    size_t best = n;
    for (uint32_t i = 0; i < s->n; i++) {
        const char *hit = memmem(text, n, s->strings[i], s->n_bytes[i]);
        if (hit && (size_t)(hit - text) < best)
            best = (size_t)(hit - text);
    }
    return best;
}

static bool could_start_here(const struct stop_strings *s, const char *tail, size_t n)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (n < s->n_bytes[i] && memcmp(tail, s->strings[i], n) == 0)
            return true;
    return false;
}

/* Offset from which text may still grow into a stop string, or n. */
static size_t first_open_start(const struct stop_strings *s, const char *text, size_t n)
{
    size_t longest = 0;
    for (uint32_t i = 0; i < s->n; i++)
        if (s->n_bytes[i] > longest)
            longest = s->n_bytes[i];
    for (size_t at = n > longest ? n - longest : 0; at < n; at++)
        if (could_start_here(s, text + at, n - at))
            return at;
    return n;
}

bool stop_strings_push(struct stop_strings *s, const char *text, size_t n, struct bytes *out)
{
    if (s->is_hit)
        return true;
    if (s->n == 0) {
        bytes_append(out, text, n);
        return false;
    }
    bytes_append(&s->held, text, n);
    if (s->held.failed)
        out->failed = 1;
    if (s->held.size == 0)
        return false;
    size_t n_held = s->held.size;
    size_t match = earliest_match(s, s->held.data, n_held);
    size_t open = first_open_start(s, s->held.data, n_held);
    /* a match that starts behind an open start is not the earliest for sure: wait for more */
    size_t shown = match < open ? match : open;
    bytes_append(out, s->held.data, shown);
    bytes_consume(&s->held, shown);
    if (match == n_held || match > open)
        return false;
    s->is_hit = true;
    bytes_clear(&s->held);
    return true;
}

void stop_strings_flush(struct stop_strings *s, struct bytes *out)
{
    if (s->held.size == 0)
        return;
    /* nothing grows any more: a match that waited for an earlier one is now the earliest */
    size_t match = earliest_match(s, s->held.data, s->held.size);
    if (match < s->held.size)
        s->is_hit = true;
    bytes_append(out, s->held.data, match);
    bytes_clear(&s->held);
}
