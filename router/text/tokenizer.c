/* From text to ids and back: special tokens are found first, the stretches between them are
 * normalised, split and merged each on its own. The order is Hugging Face's, so that the ids are
 * those the model was trained on. Everything the file says is checked here once; afterwards
 * encoding can only fail for want of memory or for text that is not UTF-8. Knows no chats. */
#include "router/text/tokenizer.h"

#include "config/base/bytes.h"
#include "router/text/bpe.h"
#include "router/text/chat_template.h"
#include "router/text/nfc.h"
#include "router/text/pretokenizer.h"
#include "router/text/special_tokens.h"
#include "router/text/utf8.h"
#include "router/text/vocab.h"

#include <stdlib.h>
#include <string.h>

struct tokenizer {
    struct vocab *vocab;
    struct bpe *bpe;
    struct special_tokens *specials;
    struct pretokenizer *pretokenizer;
    uint32_t bos, eos, eot, eom; /* VOCAB_NONE: the model has none */
    bool adds_bos;
    struct bytes normal; /* scratch: the stretch in NFC */
    struct bytes mapped; /* scratch: a piece in the byte alphabet */
};

void token_ids_fini(struct token_ids *ids)
{
    free(ids->ids);
    *ids = (struct token_ids){0};
}

static enum err append_ids(struct token_ids *out, const uint32_t *ids, size_t n,
                           struct err_info *ei)
{
    if (n > out->capacity - out->n) {
        size_t capacity = out->capacity ? out->capacity : 64;
        while (capacity - out->n < n)
            capacity *= 2;
        uint32_t *grown = reallocarray(out->ids, capacity, sizeof *grown);
        if (!grown)
            return err_set(ei, ERR_NOMEM, "tokenizer: no memory for %zu ids", capacity);
        out->ids = grown;
        out->capacity = capacity;
    }
    if (n)
        memcpy(out->ids + out->n, ids, n * sizeof *ids);
    out->n += n;
    return OK;
}

static enum err load_special_ids(struct tokenizer *t, const struct gguf *g, struct err_info *ei)
{
    const struct {
        const char *key;
        uint32_t *to;
    } keys[] = {
        {"tokenizer.ggml.bos_token_id", &t->bos},    {"tokenizer.ggml.eos_token_id", &t->eos},
        {"tokenizer.ggml.eot_token_id", &t->eot},    {"tokenizer.ggml.eom_token_id", &t->eom},
        {"tokenizer.ggml.unknown_token_id", NULL},   {"tokenizer.ggml.padding_token_id", NULL},
        {"tokenizer.ggml.seperator_token_id", NULL}, /* spelled so in the format */
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        uint32_t id;
        if (keys[i].to)
            *keys[i].to = VOCAB_NONE;
        if (!gguf_get_u32(g, keys[i].key, &id))
            continue;
        if (id >= vocab_size(t->vocab))
            return err_set(ei, ERR_PARSE, "tokenizer: %s: %u is beyond the vocabulary of %u",
                           keys[i].key, id, vocab_size(t->vocab));
        if (keys[i].to)
            *keys[i].to = id;
    }
    t->adds_bos = pretokenizer_adds_bos(t->pretokenizer);
    (void)gguf_get_bool(g, "tokenizer.ggml.add_bos_token", &t->adds_bos);
    return OK;
}

enum err tokenizer_new(const struct gguf *g, struct tokenizer **out, struct err_info *ei)
{
    struct gguf_str model, pre;
    if (!gguf_get_str(g, "tokenizer.ggml.model", &model))
        return err_set(ei, ERR_PARSE, "tokenizer: tokenizer.ggml.model is missing");
    if (model.n != 4 || memcmp(model.s, "gpt2", 4) != 0)
        return err_set(ei, ERR_UNSUPPORTED,
                       "tokenizer: tokenizer.ggml.model: only gpt2 (byte-level BPE), not %.*s",
                       model.n < 64 ? (int)model.n : 64, model.s);
    if (!gguf_get_str(g, "tokenizer.ggml.pre", &pre))
        return err_set(ei, ERR_PARSE, "tokenizer: tokenizer.ggml.pre is missing");
    struct tokenizer *t = calloc(1, sizeof *t);
    if (!t)
        return err_set(ei, ERR_NOMEM, "tokenizer: no memory");
    enum err rc = pretokenizer_new(pre.s, pre.n, &t->pretokenizer, ei);
    if (!rc)
        rc = vocab_new(g, &t->vocab, ei);
    if (!rc)
        rc = load_special_ids(t, g, ei);
    if (!rc)
        rc = bpe_new(g, t->vocab, &t->bpe, ei);
    if (!rc)
        rc = special_tokens_new(t->vocab, &t->specials, ei);
    if (rc) {
        tokenizer_free(t);
        return rc;
    }
    *out = t;
    return OK;
}

void tokenizer_free(struct tokenizer *t)
{
    if (!t)
        return;
    vocab_free(t->vocab);
    bpe_free(t->bpe);
    special_tokens_free(t->specials);
    pretokenizer_free(t->pretokenizer);
    bytes_fini(&t->normal);
    bytes_fini(&t->mapped);
    free(t);
}

/* The ordinary token that the whole piece is, or VOCAB_NONE. */
static uint32_t whole_piece(struct tokenizer *t, const char *piece, size_t n)
{
    bytes_clear(&t->mapped);
    for (size_t i = 0; i < n; i++) {
        char text[2];
        bytes_append(&t->mapped, text, vocab_byte_char((unsigned char)piece[i], text));
    }
    if (t->mapped.failed)
        return VOCAB_NONE; /* merging, which comes next, reports the want of memory */
    uint32_t id = vocab_find(t->vocab, t->mapped.data, t->mapped.size);
    return id != VOCAB_NONE && vocab_type(t->vocab, id) == TOKEN_NORMAL ? id : VOCAB_NONE;
}

static enum err encode_piece(struct tokenizer *t, const char *piece, size_t n,
                             struct token_ids *out, struct err_info *ei)
{
    if (pretokenizer_ignores_merges(t->pretokenizer)) {
        uint32_t id = whole_piece(t, piece, n);
        if (id != VOCAB_NONE)
            return append_ids(out, &id, 1, ei);
    }
    const uint32_t *ids;
    size_t n_ids;
    enum err rc = bpe_encode(t->bpe, piece, n, &ids, &n_ids, ei);
    return rc ? rc : append_ids(out, ids, n_ids, ei);
}

/* A stretch of ordinary text. */
static enum err encode_stretch(struct tokenizer *t, const char *text, size_t n,
                               struct token_ids *out, struct err_info *ei)
{
    if (n == 0)
        return OK;
    if (pretokenizer_wants_nfc(t->pretokenizer)) {
        bytes_clear(&t->normal);
        enum err rc = nfc_append(text, n, &t->normal, ei);
        if (rc)
            return rc;
        text = t->normal.data;
        n = t->normal.size;
    }
    const size_t *ends;
    size_t n_pieces, begin = 0;
    enum err rc = pretokenizer_split(t->pretokenizer, text, n, &ends, &n_pieces, ei);
    for (size_t i = 0; i < n_pieces && !rc; i++) {
        rc = encode_piece(t, text + begin, ends[i] - begin, out, ei);
        begin = ends[i];
    }
    return rc;
}

struct found {
    size_t begin, end; /* begin == n_bytes: none */
    uint32_t id;
};

/* The first special token from `at` on that touches no span. *span: first one that ends behind at.
 */
static struct found next_special(const struct tokenizer *t, const char *text, size_t n, size_t at,
                                 const struct text_span **span, const struct text_span *spans_end)
{
    while (at < n) {
        while (*span < spans_end && (*span)->end <= at)
            ++*span;
        size_t limit = *span < spans_end && (*span)->begin < n ? (*span)->begin : n;
        if (at >= limit && *span < spans_end) {
            at = (*span)->end > at ? (*span)->end : at + 1;
            continue;
        }
        struct found f = {.begin = at};
        size_t n_match;
        if (special_tokens_may_start(t->specials, (unsigned char)text[at]) &&
            special_tokens_match(t->specials, text + at, limit - at, &f.id, &n_match)) {
            f.end = at + n_match;
            return f;
        }
        at++;
    }
    return (struct found){n, n, VOCAB_NONE};
}

enum err tokenizer_encode_spans(struct tokenizer *t, const char *text, size_t n_bytes,
                                const struct text_span *spans, size_t n_spans,
                                struct tokenizer_options opt, struct token_ids *out,
                                struct err_info *ei)
{
    size_t valid = utf8_valid_prefix(text, n_bytes);
    if (valid < n_bytes)
        return err_set(ei, ERR_PARSE, "tokenizer: text is not UTF-8 at byte %zu", valid);
    enum err rc = OK;
    if (opt.add_special && t->adds_bos && t->bos != VOCAB_NONE)
        rc = append_ids(out, &t->bos, 1, ei);
    if (!opt.parse_special)
        return rc ? rc : encode_stretch(t, text, n_bytes, out, ei);
    const struct text_span *span = spans;
    const struct text_span *spans_end = n_spans ? spans + n_spans : spans;
    size_t at = 0;
    while (at < n_bytes && !rc) {
        struct found f = next_special(t, text, n_bytes, at, &span, spans_end);
        rc = encode_stretch(t, text + at, f.begin - at, out, ei);
        if (!rc && f.id != VOCAB_NONE)
            rc = append_ids(out, &f.id, 1, ei);
        at = f.end;
    }
    return rc;
}

enum err tokenizer_encode(struct tokenizer *t, const char *text, size_t n_bytes,
                          struct tokenizer_options opt, struct token_ids *out, struct err_info *ei)
{
    return tokenizer_encode_spans(t, text, n_bytes, NULL, 0, opt, out, ei);
}

const char *tokenizer_token_bytes(const struct tokenizer *t, uint32_t id, size_t *n_bytes)
{
    return vocab_bytes(t->vocab, id, n_bytes);
}

bool tokenizer_is_special(const struct tokenizer *t, uint32_t id)
{
    return vocab_type(t->vocab, id) == TOKEN_CONTROL;
}

uint32_t tokenizer_vocab_size(const struct tokenizer *t)
{
    return vocab_size(t->vocab);
}

uint32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->bos;
}

uint32_t tokenizer_eos(const struct tokenizer *t)
{
    return t->eos;
}

static uint32_t add_stop(uint32_t id, uint32_t *out, uint32_t n, uint32_t max)
{
    for (uint32_t i = 0; i < n; i++)
        if (out[i] == id)
            return n;
    if (id != VOCAB_NONE && n < max)
        out[n++] = id;
    return n;
}

uint32_t tokenizer_stop_ids(const struct tokenizer *t, uint32_t *out, uint32_t max)
{
    static const char *const TEXTS[] = {"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "</s>"};
    uint32_t n = add_stop(t->eos, out, 0, max);
    n = add_stop(t->eot, out, n, max);
    n = add_stop(t->eom, out, n, max);
    for (size_t i = 0; i < sizeof TEXTS / sizeof *TEXTS; i++) {
        uint32_t id = vocab_find(t->vocab, TEXTS[i], strlen(TEXTS[i]));
        if (vocab_type(t->vocab, id) == TOKEN_CONTROL)
            n = add_stop(id, out, n, max);
    }
    return n;
}
