/* How do tests get vocabularies that no real model has? A writer of the few GGUF fields that a
 * tokeniser reads (ggml's specification, version 3), into a file that lives in memory only. */
#include "tests/unit/router/text/support_vocab_file.h"

#include "config/base/bytes.h"
#include "router/text/vocab.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { KIND_U32 = 4, KIND_I32 = 5, KIND_STRING = 8, KIND_ARRAY = 9 };

static void put_u32(struct bytes *b, uint32_t v)
{
    bytes_append(b, &v, sizeof v);
}

static void put_u64(struct bytes *b, uint64_t v)
{
    bytes_append(b, &v, sizeof v);
}

static void put_str(struct bytes *b, const char *s)
{
    put_u64(b, strlen(s));
    bytes_append_str(b, s);
}

static void put_key(struct bytes *b, uint64_t *n, const char *key, uint32_t kind)
{
    ++*n;
    put_str(b, key);
    put_u32(b, kind);
}

static void put_strs(struct bytes *b, uint64_t *n, const char *key, const char *const *strs,
                     size_t n_strs)
{
    if (!strs)
        return;
    put_key(b, n, key, KIND_ARRAY);
    put_u32(b, KIND_STRING);
    put_u64(b, n_strs);
    for (size_t i = 0; i < n_strs; i++)
        put_str(b, strs[i]);
}

static struct gguf *open_bytes(const struct bytes *b)
{
    char path[64];
    struct gguf *g = NULL;
    struct err_info ei = {{0}};
    int fd = memfd_create("vocab", MFD_CLOEXEC);
    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, b->data, b->size), (ssize_t)b->size);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    cr_assert_eq(gguf_open(path, &g, &ei), OK, "%s", ei.text);
    close(fd);
    return g;
}

struct gguf *open_vocab_file(const struct vocab_file *v)
{
    struct bytes pairs = {0}, file = {0};
    uint64_t n = 0;
    put_key(&pairs, &n, "tokenizer.ggml.model", KIND_STRING);
    put_str(&pairs, v->model ? v->model : "gpt2");
    put_key(&pairs, &n, "tokenizer.ggml.pre", KIND_STRING);
    put_str(&pairs, v->pre ? v->pre : "gpt2");
    put_strs(&pairs, &n, "tokenizer.ggml.tokens", v->tokens, v->n_tokens);
    put_strs(&pairs, &n, "tokenizer.ggml.merges", v->merges, v->n_merges);
    if (v->types) {
        put_key(&pairs, &n, "tokenizer.ggml.token_type", KIND_ARRAY);
        put_u32(&pairs, KIND_I32);
        put_u64(&pairs, v->n_types);
        bytes_append(&pairs, v->types, v->n_types * sizeof *v->types);
    }
    if (v->id_key) {
        put_key(&pairs, &n, v->id_key, KIND_U32);
        put_u32(&pairs, v->id);
    }
    bytes_append_str(&file, "GGUF");
    put_u32(&file, 3);
    put_u64(&file, 0);
    put_u64(&file, n);
    bytes_append(&file, pairs.data, pairs.size);
    struct gguf *g = open_bytes(&file);
    bytes_fini(&pairs);
    bytes_fini(&file);
    return g;
}

char **byte_tokens(size_t room)
{
    char **tokens = calloc(256 + room, sizeof *tokens);
    cr_assert_not_null(tokens);
    for (int byte = 0; byte < 256; byte++) {
        char text[2];
        uint32_t n = vocab_byte_char((unsigned char)byte, text);
        tokens[byte] = strndup(text, n);
    }
    return tokens;
}

void byte_tokens_free(char **tokens)
{
    for (int byte = 0; byte < 256; byte++)
        free(tokens[byte]);
    free(tokens);
}
