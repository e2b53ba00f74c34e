#pragma once
#include "config/base/err.h"
#include "config/gguf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Token texts of a GGUF vocabulary in the byte alphabet of GPT-2, and the way back from text to id.
 * Immutable after vocab_new: any thread may read. */

#define VOCAB_NONE UINT32_MAX /* beyond what an enum may hold */

/* llama.cpp's numbers in tokenizer.ggml.token_type */
enum token_type {
    TOKEN_UNDEFINED = 0,
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2,
    TOKEN_CONTROL = 3,
    TOKEN_USER_DEFINED = 4,
    TOKEN_UNUSED = 5,
    TOKEN_BYTE = 6,
};

struct vocab;

/* Errors: PARSE (no tokens; empty or duplicate ones; token types that do not fit: names key and
 * index), NOMEM. Copies what it needs. */
NODISCARD enum err vocab_new(const struct gguf *g, struct vocab **out, struct err_info *ei);
void vocab_free(struct vocab *v); /* NULL is legal */

uint32_t vocab_size(const struct vocab *v);
enum token_type vocab_type(const struct vocab *v,
                           uint32_t id); /* UNDEFINED beyond the vocabulary */
/* Text as the file has it (n bytes, no NUL added); NULL and 0 beyond the vocabulary. */
const char *vocab_text(const struct vocab *v, uint32_t id, size_t *n);
/* Bytes as they stand in the output. */
const char *vocab_bytes(const struct vocab *v, uint32_t id, size_t *n);
/* The token with this text, of any type; VOCAB_NONE: none. */
uint32_t vocab_find(const struct vocab *v, const char *text, size_t n);

/* The byte alphabet: the character that stands for a byte, as UTF-8 (at most 2 bytes; returns how
 * many). Source: GPT-2's encoder: printable Latin-1 stands for itself, the rest for U+0100 on. */
uint32_t vocab_byte_char(unsigned char byte, char out[2]);
