#pragma once
#include "config/base/err.h"
#include "config/gguf.h"
#include "router/text/vocab.h"

#include <stddef.h>
#include <stdint.h>

/* Byte-pair encoding of one piece: the pair of lowest rank is merged first, the leftmost of equals.
 * Built once; one owner thread (scratch inside). Source: Sennrich et al. 2016, in the order of
 * application that Hugging Face's tokenizers use. */

struct bpe;

/* Errors: PARSE (merges that are not two tokens, or whose parts or result are not in the
 * vocabulary: names key and index), NOMEM. vocab is only read here. */
NODISCARD enum err bpe_new(const struct gguf *g, const struct vocab *vocab, struct bpe **out,
                           struct err_info *ei);
void bpe_free(struct bpe *b); /* NULL is legal */

/* Encodes n bytes, n >= 1. *ids: *n_ids of them, at most n; valid until the next call. Bytes
 * without a token of their own are left out, as the reference does without an unknown token. Time
 * O(n log n). Errors: NOMEM; LIMIT at 2^31 bytes. */
NODISCARD enum err bpe_encode(struct bpe *b, const char *piece, size_t n, const uint32_t **ids,
                              size_t *n_ids, struct err_info *ei);
