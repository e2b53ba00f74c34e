/* How is text brought to NFC in linear time? utf8proc decomposes and composes; the canonical
 * ordering between the two is ours, since its own sort is quadratic in a run of combining marks,
 * and a client chooses the text. Text below U+0300 is NFC already and is copied. Knows no tokens.
 */
#include "router/text/nfc.h"

#include "router/text/utf8.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum {
    N_CLASSES = 256,
    LONGEST_DECOMPOSITION =
        18, /* code points of one code point; Unicode's bound, kept by utf8proc */
};

/* Code points from U+0300 on start with a byte from CC on. */
static bool is_surely_nfc(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] >= 0xcc)
            return false;
    return true;
}

static int combining_class(utf8proc_int32_t cp)
{
    return utf8proc_get_property(cp)->combining_class & (N_CLASSES - 1);
}

/* Stable counting sort of one run of marks by combining class. */
static void order_run(utf8proc_int32_t *run, size_t n, utf8proc_int32_t *scratch)
{
    size_t start[N_CLASSES + 1] = {0};
    for (size_t i = 0; i < n; i++)
        start[combining_class(run[i]) + 1]++;
    for (size_t c = 0; c < N_CLASSES; c++)
        start[c + 1] += start[c];
    for (size_t i = 0; i < n; i++)
        scratch[start[combining_class(run[i])]++] = run[i];
    memcpy(run, scratch, n * sizeof *run);
}

static void order_marks(utf8proc_int32_t *cps, size_t n, utf8proc_int32_t *scratch)
{
    for (size_t i = 0; i < n; i++) {
        size_t begin = i;
        bool is_ordered = true;
        while (i < n && combining_class(cps[i]) != 0) {
            if (i > begin && combining_class(cps[i - 1]) > combining_class(cps[i]))
                is_ordered = false;
            i++;
        }
        if (!is_ordered)
            order_run(cps + begin, i - begin, scratch);
    }
}

static size_t decompose(const char *text, size_t n, utf8proc_int32_t *cps, size_t capacity)
{
    size_t n_cps = 0;
    int boundclass = 0;
    for (size_t i = 0; i < n;) {
        struct utf8_step step = utf8_next(text + i, n - i);
        i += step.n_bytes;
        utf8proc_ssize_t got =
            utf8proc_decompose_char((utf8proc_int32_t)step.code_point, cps ? cps + n_cps : NULL,
                                    cps ? (utf8proc_ssize_t)(capacity - n_cps) : 0,
                                    UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &boundclass);
        if (got > 0)
            n_cps += (size_t)got;
    }
    return n_cps;
}

enum err nfc_append(const char *text, size_t n, struct bytes *out, struct err_info *ei)
{
    if (is_surely_nfc(text, n)) {
        bytes_append(out, text, n);
        return out->failed ? err_set(ei, ERR_NOMEM, "tokenizer: no memory") : OK;
    }
    /* counted first: the worst case is far above the usual one */
    size_t capacity = decompose(text, n, NULL, 0) + LONGEST_DECOMPOSITION;
    utf8proc_int32_t *cps = calloc(capacity, 2 * sizeof *cps);
    if (!cps)
        return err_set(ei, ERR_NOMEM, "tokenizer: no memory");
    size_t n_cps = decompose(text, n, cps, capacity);
    order_marks(cps, n_cps, cps + capacity);
    utf8proc_ssize_t left =
        utf8proc_normalize_utf32(cps, (utf8proc_ssize_t)n_cps, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    for (utf8proc_ssize_t i = 0; i < left; i++) {
        char encoded[4];
        bytes_append(out, encoded, utf8_put((uint32_t)cps[i], encoded));
    }
    free(cps);
    return out->failed ? err_set(ei, ERR_NOMEM, "tokenizer: no memory") : OK;
}
