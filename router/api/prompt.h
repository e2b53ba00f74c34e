#pragma once
#include "router/api/api.h"
#include "router/api/api_error.h"
#include "router/api/request.h"

/* From a request's prompt to token ids. One owner thread (the template's and the tokenizer's). */

struct prompt_options {
    bool add_special; /* BOS where the model adds one */
    bool parse_special;
    bool add_generation_prompt; /* chat only */
    size_t max_bytes; /* longer text is refused before it is tokenised (LIMIT); 0: any length */
};

/* messages_json through the chat template. Text of contents never becomes a control token. Errors:
 * PARSE (the template refuses: 400 with its words), GONE. */
NODISCARD enum err prompt_from_messages(const struct api_config *cfg, const char *messages_json,
                                        size_t n_strings, const struct prompt_options *opt,
                                        struct token_ids *out, struct api_error *e);
NODISCARD enum err prompt_from_text(const struct api_config *cfg, const char *text, size_t n_bytes,
                                    const struct prompt_options *opt, struct token_ids *out,
                                    struct api_error *e);
/* The request's prompt, never empty: an empty one starts from BOS, or EOS where there is no BOS.
 * On failure *out still wants token_ids_fini. */
NODISCARD enum err prompt_tokenize(const struct api_config *cfg, const struct request *r,
                                   struct token_ids *out, struct api_error *e);
