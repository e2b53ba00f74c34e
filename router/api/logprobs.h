#pragma once
#include "ipc/message.h"
#include "router/api/request.h"
#include "router/text/tokenizer.h"

/* Log-probabilities waiting for the text they belong to: a token's entry leaves with the chunk that
 * carries its text. Zero-initialised is empty. One owner thread. */

struct logprobs {
    struct bytes entries; /* struct logprobs_entry[] */
    size_t n_left;        /* how many of them have left */
};

struct logprobs_entry {
    size_t begin, end;          /* bytes of output text before and behind the token */
    size_t n_chars;             /* code points before it: the completion shape's text_offset */
    struct emitted_token token; /* .top points at top */
    struct top_logprob top[MESSAGE_MAX_TOP_LOGPROBS];
};

void logprobs_fini(struct logprobs *l);
void logprobs_push(struct logprobs *l, const struct emitted_token *token, size_t begin, size_t end,
                   size_t n_chars);
/* Appends the JSON of `logprobs` with the entries that end at or before `shown` bytes of text; with
 * is_last all that begin before it (what a stop string cut away is dropped). "null" when there is
 * none to send yet. kind: chat {"content":[...]} or the completion shape's arrays. */
void logprobs_render(struct logprobs *l, enum request_kind kind, const struct tokenizer *t,
                     size_t shown, bool is_last, struct bytes *out);
/* How many entries that would be. */
size_t logprobs_n_due(const struct logprobs *l, size_t shown, bool is_last);
/* A token's text for people: its UTF-8, or "bytes:\xNN..." where it is a piece of a character.
 * Appended as a JSON string. */
void logprobs_append_token(const struct tokenizer *t, uint32_t id, struct bytes *out);
