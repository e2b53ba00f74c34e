#pragma once
#include "config/base/err.h"
#include "router/text/vocab.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Control and user-defined tokens of a vocabulary, found in text. Immutable: any thread. */

struct special_tokens;

/* Errors: NOMEM. Copies what it needs. */
NODISCARD enum err special_tokens_new(const struct vocab *v, struct special_tokens **out,
                                      struct err_info *ei);
void special_tokens_free(struct special_tokens *s); /* NULL is legal */

/* The longest token that stands at the start of text; false: none does. */
bool special_tokens_match(const struct special_tokens *s, const char *text, size_t n, uint32_t *id,
                          size_t *n_bytes);

/* Whether a token may start with this byte. */
bool special_tokens_may_start(const struct special_tokens *s, unsigned char byte);
