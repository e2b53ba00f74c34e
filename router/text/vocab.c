/* Which id has this text, and which bytes has this id? Every text is kept once as the file has it
 * (merges and specials are named so) and once as the bytes it stands for. Each text is unique and
 * not empty: a file that breaks this is refused, since one of two twins could never be produced.
 * Knows no merges and no special matching. */
#include "router/text/vocab.h"

#include "router/text/utf8.h"

#include <stdlib.h>
#include <string.h>

#define KEY_TOKENS "tokenizer.ggml.tokens"
#define KEY_TYPES "tokenizer.ggml.token_type"

enum { MAX_TOKENS = 1 << 26 };

struct vocab {
    uint32_t n;
    char *text, *bytes;     /* all of them, one after another */
    size_t *text_at;        /* [n + 1] */
    size_t *bytes_at;       /* [n + 1] */
    unsigned char *type;    /* [n] */
    uint32_t *slots;        /* open addressing: id + 1, 0 = free */
    size_t n_slots;         /* power of two, at least twice n */
    uint64_t hash_key;      /* keeps a crafted file from aiming at one slot */
    int16_t char_byte[512]; /* code point -> byte, -1: none */
};

static bool stands_for_itself(int byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

static uint32_t code_point_of(unsigned char byte)
{
    if (stands_for_itself(byte))
        return byte;
    uint32_t next = 0x100;
    for (int b = 0; b < byte; b++)
        next += !stands_for_itself(b);
    return next;
}

uint32_t vocab_byte_char(unsigned char byte, char out[2])
{
    char four[4];
    uint32_t n = utf8_put(code_point_of(byte), four);
    memcpy(out, four, 2);
    return n;
}

static uint64_t hash_text(const struct vocab *v, const char *s, size_t n)
{
    uint64_t h = v->hash_key ^ n;
    for (size_t i = 0; i < n; i++) {
        h = (h ^ (unsigned char)s[i]) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return h;
}

/* The slot that holds the text, or the free one where it would go. */
static size_t slot_of(const struct vocab *v, const char *s, size_t n)
{
    size_t i = hash_text(v, s, n) & (v->n_slots - 1);
    for (;; i = (i + 1) & (v->n_slots - 1)) {
        if (!v->slots[i])
            return i;
        size_t n_here;
        const char *here = vocab_text(v, v->slots[i] - 1, &n_here);
        if (n_here == n && memcmp(here, s, n) == 0)
            return i;
    }
}

/* Bytes a token stands for: through the alphabet where every character is in it, else as they are.
 */
static size_t decode_text(const struct vocab *v, const char *s, size_t n, char *out)
{
    size_t n_out = 0;
    for (size_t i = 0; i < n;) {
        struct utf8_step step = utf8_next(s + i, n - i);
        int byte =
            step.kind == UTF8_WHOLE && step.code_point < 512 ? v->char_byte[step.code_point] : -1;
        if (byte < 0) {
            memcpy(out, s, n);
            return n;
        }
        out[n_out++] = (char)byte;
        i += step.n_bytes;
    }
    return n_out;
}

static enum err load_types(struct vocab *v, const struct gguf *g, struct err_info *ei)
{
    size_t n = gguf_n_ints(g, KEY_TYPES);
    memset(v->type, TOKEN_NORMAL, v->n);
    if (n == 0)
        return OK;
    if (n != v->n)
        return err_set(ei, ERR_PARSE, "tokenizer: " KEY_TYPES ": %zu entries for %u tokens", n,
                       v->n);
    for (uint32_t id = 0; id < v->n; id++) {
        int64_t type = gguf_int_at(g, KEY_TYPES, id);
        if (type < TOKEN_UNDEFINED || type > TOKEN_BYTE)
            return err_set(ei, ERR_PARSE, "tokenizer: " KEY_TYPES "[%u]: no type %lld", id,
                           (long long)type);
        v->type[id] = (unsigned char)type;
    }
    return OK;
}

static enum err load_texts(struct vocab *v, const struct gguf *g, struct err_info *ei)
{
    size_t total = 0, n_decoded = 0;
    for (uint32_t id = 0; id < v->n; id++)
        total += gguf_str_at(g, KEY_TOKENS, id).n;
    v->text = malloc(total + 1);
    v->bytes = malloc(total + 1);
    if (!v->text || !v->bytes)
        return err_set(ei, ERR_NOMEM, "tokenizer: no memory for %zu bytes of tokens", total);
    total = 0;
    for (uint32_t id = 0; id < v->n; id++) {
        struct gguf_str s = gguf_str_at(g, KEY_TOKENS, id);
        if (s.n == 0)
            return err_set(ei, ERR_PARSE, "tokenizer: " KEY_TOKENS "[%u]: empty token", id);
        memcpy(v->text + total, s.s, s.n);
        v->text_at[id] = total;
        total += s.n;
        v->text_at[id + 1] = total;
        v->bytes_at[id] = n_decoded;
        bool is_coded = v->type[id] != TOKEN_CONTROL && v->type[id] != TOKEN_USER_DEFINED;
        if (is_coded)
            n_decoded += decode_text(v, s.s, s.n, v->bytes + n_decoded);
        else {
            memcpy(v->bytes + n_decoded, s.s, s.n);
            n_decoded += s.n;
        }
        v->bytes_at[id + 1] = n_decoded;
        size_t slot = slot_of(v, s.s, s.n);
        if (v->slots[slot])
            return err_set(ei, ERR_PARSE, "tokenizer: " KEY_TOKENS "[%u]: the same text as [%u]",
                           id, v->slots[slot] - 1);
        v->slots[slot] = id + 1;
    }
    return OK;
}

static enum err allocate(struct vocab *v, struct err_info *ei)
{
    for (v->n_slots = 16; v->n_slots < 2 * (size_t)v->n;)
        v->n_slots *= 2;
    v->slots = calloc(v->n_slots, sizeof *v->slots);
    v->text_at = calloc((size_t)v->n + 1, sizeof *v->text_at);
    v->bytes_at = calloc((size_t)v->n + 1, sizeof *v->bytes_at);
    v->type = calloc(v->n, 1);
    if (!v->slots || !v->text_at || !v->bytes_at || !v->type)
        return err_set(ei, ERR_NOMEM, "tokenizer: no memory for %u tokens", v->n);
    /* any address will do: it only has to be unknown to whoever wrote the file */
    v->hash_key = (uint64_t)(uintptr_t)v->slots * 0xff51afd7ed558ccdu;
    memset(v->char_byte, -1, sizeof v->char_byte);
    for (int b = 0; b < 256; b++)
        v->char_byte[code_point_of((unsigned char)b)] = (int16_t)b;
    return OK;
}

enum err vocab_new(const struct gguf *g, struct vocab **out, struct err_info *ei)
{
    size_t n = gguf_n_strs(g, KEY_TOKENS);
    if (n == 0 || n > MAX_TOKENS)
        return err_set(ei, ERR_PARSE, "tokenizer: " KEY_TOKENS ": %zu tokens", n);
    struct vocab *v = calloc(1, sizeof *v);
    if (!v)
        return err_set(ei, ERR_NOMEM, "tokenizer: no memory");
    v->n = (uint32_t)n;
    enum err rc = allocate(v, ei);
    if (!rc)
        rc = load_types(v, g, ei);
    if (!rc)
        rc = load_texts(v, g, ei);
    if (rc) {
        vocab_free(v);
        return rc;
    }
    *out = v;
    return OK;
}

void vocab_free(struct vocab *v)
{
    if (!v)
        return;
    free(v->text);
    free(v->bytes);
    free(v->text_at);
    free(v->bytes_at);
    free(v->type);
    free(v->slots);
    free(v);
}

uint32_t vocab_size(const struct vocab *v)
{
    return v->n;
}

enum token_type vocab_type(const struct vocab *v, uint32_t id)
{
    return id < v->n ? (enum token_type)v->type[id] : TOKEN_UNDEFINED;
}

const char *vocab_text(const struct vocab *v, uint32_t id, size_t *n)
{
    *n = id < v->n ? v->text_at[id + 1] - v->text_at[id] : 0;
    return id < v->n ? v->text + v->text_at[id] : NULL;
}

const char *vocab_bytes(const struct vocab *v, uint32_t id, size_t *n)
{
    *n = id < v->n ? v->bytes_at[id + 1] - v->bytes_at[id] : 0;
    return id < v->n ? v->bytes + v->bytes_at[id] : NULL;
}

uint32_t vocab_find(const struct vocab *v, const char *text, size_t n)
{
    uint32_t held = v->slots[slot_of(v, text, n)];
    return held ? held - 1 : VOCAB_NONE;
}
