#pragma once
#include "config/base/err.h"
#include "config/gguf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Text <-> token ids: byte-level BPE (GGUF `gpt2` vocabularies), pre-tokenised by the regexes that
 * `tokenizer.ggml.pre` names (PCRE2, UTF and UCP). Equal to Hugging Face's tokenizers on the same
 * vocabulary (tests/unit/router fixtures). Built once from the GGUF; tokenizer_encode needs one
 * owner thread (scratch memory inside), the rest may be called from any. */

struct tokenizer;

/* Errors: PARSE (malformed vocabulary: duplicate or empty tokens, merges naming unknown tokens,
 * special ids beyond the vocabulary: names key and index), UNSUPPORTED (tokenizer model or
 * pre-tokeniser), NOMEM. Copies what it needs: the GGUF may be closed afterwards. */
NODISCARD enum err tokenizer_new(const struct gguf *g, struct tokenizer **out, struct err_info *ei);
void tokenizer_free(struct tokenizer *t); /* NULL is legal */

struct tokenizer_options {
    bool add_special;   /* BOS where the model adds one */
    bool parse_special; /* text of control/added tokens becomes their id; false: encoded as plain
                           text */
};

struct token_ids {
    uint32_t *ids; /* malloc'ed; token_ids_fini */
    size_t n, capacity;
};
void token_ids_fini(struct token_ids *ids);

/* text: n_bytes of valid UTF-8 (may hold NUL). Appends to *out. Errors: PARSE (not UTF-8: byte
 * offset), NOMEM. Time is O(n log n) for any input, hostile ones (a megabyte of one letter)
 * included. */
NODISCARD enum err tokenizer_encode(struct tokenizer *t, const char *text, size_t n_bytes,
                                    struct tokenizer_options opt, struct token_ids *out,
                                    struct err_info *ei);

/* As tokenizer_encode, with text that must not be trusted: [begin, end) byte ranges of text,
 * ascending, non-overlapping (chat_template_render_spans finds them). A special token is recognised
 * only where it lies wholly outside every span; everything between recognised ones is encoded as
 * one stretch of ordinary text, so spans change no other token. (Hugging Face: split_special_tokens
 * on the untrusted parts.) spans NULL: n_spans 0. */
struct text_span;
NODISCARD enum err tokenizer_encode_spans(struct tokenizer *t, const char *text, size_t n_bytes,
                                          const struct text_span *spans, size_t n_spans,
                                          struct tokenizer_options opt, struct token_ids *out,
                                          struct err_info *ei);

/* Bytes of one token as they stand in the output; n_bytes 0 for ids out of range. Special tokens
 * give their text. Borrowed from the tokenizer. */
const char *tokenizer_token_bytes(const struct tokenizer *t, uint32_t id, size_t *n_bytes);
bool tokenizer_is_special(const struct tokenizer *t, uint32_t id); /* control token (type 3) */

uint32_t tokenizer_vocab_size(const struct tokenizer *t);
/* UINT32_MAX where the model has none. */
uint32_t tokenizer_bos(const struct tokenizer *t);
uint32_t tokenizer_eos(const struct tokenizer *t);
/* All ids that end a turn or a document (eos, eot, eom from the GGUF, and the control tokens
 * <|im_end|>,
 * <|endoftext|>, <|eot_id|>, </s> where present); returns how many, at most max. */
uint32_t tokenizer_stop_ids(const struct tokenizer *t, uint32_t *out, uint32_t max);
