#pragma once
#include "config/base/arena.h"
#include "ipc/message.h"
#include "router/api/api_error.h"
#include "router/text/stop_strings.h"

#include <jansson.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One validated request for text. Nothing behind this struct sees JSON (the chat messages are kept
 * as JSON text for the template alone). Plain data; everything it points to lives in its arena. One
 * owner thread. */

enum request_kind { REQUEST_CHAT, REQUEST_COMPLETION };

struct request_context {
    const char *model; /* served_model_name */
    uint32_t vocab_size;
    uint32_t json_depth;
};

struct request {
    struct arena *arena;
    enum request_kind kind;
    bool is_stream;
    bool include_usage; /* stream_options.include_usage */
    /* The prompt. Chat: messages_json. Completion: ids when has_ids, else text. */
    const char *messages_json;
    size_t n_messages_strings; /* strings in messages: how many spans a template may make of them */
    const char *text;
    size_t text_bytes;
    bool has_ids;
    const uint32_t *ids;
    size_t n_ids;
    /* Where both are given, max_completion_tokens supersedes max_tokens (OpenAI: the latter is the
     * deprecated name). 0 in a completion generates nothing; chat wants at least 1. */
    bool has_max_tokens;
    int64_t max_tokens;
    const char *max_tokens_field; /* the name it was given under */
    int64_t min_tokens;
    bool has_seed;
    int64_t seed;
    float temperature, top_p, min_p;
    uint32_t top_k;
    bool ignore_eos;
    int32_t n_logprobs; /* -1: none */
    const char *stop[STOP_STRINGS_MAX];
    size_t stop_bytes[STOP_STRINGS_MAX];
    uint32_t n_stop;
    uint32_t n_unknown_fields; /* of the body, ignored */
};

/* body: any bytes. On success *out must be freed with request_fini; on failure e says what the
 * client is told and *out needs nothing. Errors: PARSE (4xx), GONE (5xx: memory). */
NODISCARD enum err request_parse(const struct request_context *ctx, enum request_kind kind,
                                 const char *body, size_t n_bytes, struct request *out,
                                 struct api_error *e);
void request_fini(struct request *r);

/* --- pieces that other routes use too
 * --------------------------------------------------------------- */

/* The body as an object; the caller's reference. Limits, syntax, duplicates, UTF-8 are checked. */
NODISCARD enum err request_load(const struct request_context *ctx, const char *body, size_t n_bytes,
                                json_t **out, struct api_error *e);
/* `model`: absent, empty, or the served one; else 404. */
NODISCARD enum err request_check_model(const struct request_context *ctx, const json_t *body,
                                       struct api_error *e);
/* Array of token ids below vocab_size. name: the field's, for the error. */
NODISCARD enum err request_ids(const struct request_context *ctx, const char *name,
                               const json_t *array, struct arena *arena, uint32_t **out,
                               struct api_error *e);

/* request_messages.c: roles, contents and parts; *n_strings as in struct request. */
NODISCARD enum err request_messages_check(const json_t *messages, size_t *n_strings,
                                          struct api_error *e);
/* request_unserved.c: refuses by name what is known but not served; tells served fields apart from
 * unknown ones. */
NODISCARD enum err request_unserved_check(const json_t *body, enum request_kind kind,
                                          uint32_t *n_unknown, struct api_error *e);
