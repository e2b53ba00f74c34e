/* Where does a code point end, and is it one? The single decoder of this folder: the tokeniser's
 * check, the detokeniser's repair and the byte alphabet all agree because they ask here. A sequence
 * is cut at its maximal subpart, so that joining pieces differently never changes the repair.
 * Knows nothing of normal forms or of tokens. */
#include "router/text/utf8.h"

#include <string.h>

enum { REPLACEMENT = 0xfffd };

/* Table 3-7: allowed range of the second byte; every later one is 80..BF. */
static uint32_t sequence_shape(unsigned char lead, unsigned char *lo, unsigned char *hi)
{
    *lo = 0x80;
    *hi = 0xbf;
    if (lead < 0x80)
        return 1;
    if (lead < 0xc2)
        return 0;
    if (lead < 0xe0)
        return 2;
    if (lead < 0xf0) {
        if (lead == 0xe0)
            *lo = 0xa0;
        if (lead == 0xed)
            *hi = 0x9f;
        return 3;
    }
    if (lead == 0xf0)
        *lo = 0x90;
    if (lead == 0xf4)
        *hi = 0x8f;
    return lead <= 0xf4 ? 4 : 0;
}

struct utf8_step utf8_next(const char *s, size_t n)
{
    const unsigned char *p = (const unsigned char *)s;
    unsigned char lo, hi;
    uint32_t want = sequence_shape(p[0], &lo, &hi);
    if (want == 1)
        return (struct utf8_step){UTF8_WHOLE, 1, p[0]};
    if (want == 0)
        return (struct utf8_step){UTF8_BROKEN, 1, REPLACEMENT};
    uint32_t cp = p[0] & (0x7fu >> want);
    for (uint32_t i = 1; i < want; i++) {
        if (i == n)
            return (struct utf8_step){UTF8_UNFINISHED, i, REPLACEMENT};
        if (p[i] < lo || p[i] > hi)
            return (struct utf8_step){UTF8_BROKEN, i, REPLACEMENT};
        cp = cp << 6 | (p[i] & 0x3fu);
        lo = 0x80;
        hi = 0xbf;
    }
    return (struct utf8_step){UTF8_WHOLE, want, cp};
}

size_t utf8_valid_prefix(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n) {
        uint64_t eight;
        if (n - i >= sizeof eight) {
            memcpy(&eight, s + i, sizeof eight);
            if (!(eight & 0x8080808080808080u)) {
                i += sizeof eight;
                continue;
            }
        }
        struct utf8_step step = utf8_next(s + i, n - i);
        if (step.kind != UTF8_WHOLE)
            break;
        i += step.n_bytes;
    }
    return i;
}

uint32_t utf8_put(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    uint32_t n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (uint32_t i = n - 1; i > 0; i--) {
        out[i] = (char)(0x80u | (cp & 0x3fu));
        cp >>= 6;
    }
    /* the lead byte: n ones, a zero, then what is left of the code point */
    out[0] = (char)((0xf00u >> n & 0xffu) | cp);
    return n;
}
