#pragma once
#include "config/base/err.h"

#include <stdbool.h>
#include <stddef.h>

/* Text -> pieces that BPE never merges across, as the regexes behind `tokenizer.ggml.pre` split it.
 * One owner thread (match data and scratch inside). */

struct pretokenizer;

/* name: of tokenizer.ggml.pre, n bytes. Errors: UNSUPPORTED (no such name), NOMEM. */
NODISCARD enum err pretokenizer_new(const char *name, size_t n, struct pretokenizer **out,
                                    struct err_info *ei);
void pretokenizer_free(struct pretokenizer *p); /* NULL is legal */

/* Properties that belong to the name rather than to the file. */
bool pretokenizer_wants_nfc(const struct pretokenizer *p); /* normalise to NFC before splitting */
bool pretokenizer_ignores_merges(const struct pretokenizer *p); /* a piece that is a token is one */
bool pretokenizer_adds_bos(const struct pretokenizer *p);       /* where the file does not say */

/* Splits n bytes of valid UTF-8. *ends: offsets where pieces end, ascending, the last one is n;
 * *n_pieces of them (0 for empty text); valid until the next call. Errors: NOMEM; LIMIT where even
 * the interpreter gives up (does not happen with these expressions). */
NODISCARD enum err pretokenizer_split(struct pretokenizer *p, const char *text, size_t n,
                                      const size_t **ends, size_t *n_pieces, struct err_info *ei);
