#pragma once
#include "config/base/bytes.h"
#include "router/text/tokenizer.h"

/* Ids, one after another, to text that never ends inside a code point. A broken UTF-8 sequence
 * becomes U+FFFD once per maximal subpart (Unicode 15, 3.9; as Python's errors="replace"); an
 * unfinished tail is held back until it is finished or flushed. The joined output equals decoding
 * the whole id list at once. Caller's storage, zero = ready after init. */
struct detokenizer {
    const struct tokenizer *tokenizer;
    bool keep_special;     /* false: control tokens give no text */
    unsigned char tail[4]; /* bytes of an unfinished code point */
    uint32_t n_tail;
};

void detokenizer_init(struct detokenizer *d, const struct tokenizer *t, bool keep_special);
/* Appends the text that id completes (perhaps none). */
void detokenizer_push(struct detokenizer *d, uint32_t id, struct bytes *out);
/* Appends what is left (as U+FFFD). */
void detokenizer_flush(struct detokenizer *d, struct bytes *out);
