/* Which text is certain by now? Bytes of tokens go through a buffer that never holds more than the
 * start of one code point; what is whole leaves at once, what is broken leaves as U+FFFD, and what
 * is unfinished waits. Since repair works on maximal subparts, how ids are grouped does not change
 * the joined text. Does not know stop strings. */
#include "router/text/detokenizer.h"

#include "router/text/utf8.h"

#include <string.h>

static void append_replacement(struct bytes *out)
{
    bytes_append(out, "\xef\xbf\xbd", 3);
}

void detokenizer_init(struct detokenizer *d, const struct tokenizer *t, bool keep_special)
{
    *d = (struct detokenizer){.tokenizer = t, .keep_special = keep_special};
}

/* Valid stretches are copied whole; returns how many bytes were used up. */
static size_t append_certain(const char *s, size_t n, struct bytes *out)
{
    size_t i = 0;
    while (i < n) {
        size_t valid = utf8_valid_prefix(s + i, n - i);
        bytes_append(out, s + i, valid);
        i += valid;
        if (i == n)
            break;
        struct utf8_step step = utf8_next(s + i, n - i);
        if (step.kind == UTF8_UNFINISHED)
            break;
        append_replacement(out);
        i += step.n_bytes;
    }
    return i;
}

void detokenizer_push(struct detokenizer *d, uint32_t id, struct bytes *out)
{
    if (!d->keep_special && tokenizer_is_special(d->tokenizer, id))
        return;
    size_t n, used = 0;
    const char *s = tokenizer_token_bytes(d->tokenizer, id, &n);
    /* first finish the waiting code point, one byte at a time: at most three are needed */
    while (d->n_tail > 0 && used < n) {
        d->tail[d->n_tail++] = (unsigned char)s[used++];
        size_t done = append_certain((const char *)d->tail, d->n_tail, out);
        d->n_tail -= (uint32_t)done;
        memmove(d->tail, d->tail + done, d->n_tail);
    }
    if (d->n_tail > 0)
        return;
    used += append_certain(s + used, n - used, out);
    d->n_tail = (uint32_t)(n - used);
    if (d->n_tail)
        memcpy(d->tail, s + used, d->n_tail);
}

void detokenizer_flush(struct detokenizer *d, struct bytes *out)
{
    /* what waits is always a proper prefix of one code point: one maximal subpart */
    if (d->n_tail > 0)
        append_replacement(out);
    d->n_tail = 0;
}
