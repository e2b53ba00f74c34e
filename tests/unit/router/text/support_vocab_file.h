#pragma once
#include "config/gguf.h"

#include <stddef.h>
#include <stdint.h>

/* A GGUF file with nothing but a vocabulary, as a test describes it. Zero fields are left out of
 * the file, except model and pre: NULL means gpt2. */
struct vocab_file {
    const char *model, *pre;
    const char *const *tokens;
    size_t n_tokens;
    const int32_t *types;
    size_t n_types;
    const char *const *merges;
    size_t n_merges;
    const char *id_key; /* a key that names a token id, and the id */
    uint32_t id;
};

/* Writes it to memory and opens it; fails the test when it is not a GGUF. */
struct gguf *open_vocab_file(const struct vocab_file *v);

/* The 256 characters of the byte alphabet, in byte order; then room for more tokens. Free it. */
char **byte_tokens(size_t room);
void byte_tokens_free(char **tokens);
