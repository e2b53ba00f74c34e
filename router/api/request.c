/* Is this body a request that we can serve? Bytes in, one validated struct out, or one refusal that
 * names the field. Keeps: nothing is parsed before its size in brackets and commas is known; every
 * number in the result is within the range its comment states. Does not tokenise and does not know
 * the window. */
#include "router/api/request.h"

#include "router/api/json_field.h"
#include "router/api/json_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_CONTAINERS = 64 * 1024,
    MAX_VALUES = 1024 * 1024,
    MAX_STOP_BYTES = 4096,
    MAX_COMPLETION_LOGPROBS = 5,
};

static enum err no_memory(struct api_error *e)
{
    (void)api_error_set(e, 503, NULL, NULL, "the server has no memory for this request");
    e->retry_after = 1;
    return ERR_GONE;
}

enum err request_load(const struct request_context *ctx, const char *body, size_t n_bytes,
                      json_t **out, struct api_error *e)
{
    const struct json_text_limits limits = {
        .depth = ctx->json_depth, .containers = MAX_CONTAINERS, .values = MAX_VALUES};
    struct err_info ei;
    if (json_text_check(body, n_bytes, &limits, &ei) != OK)
        return api_error_set(e, 400, NULL, NULL, "the body is refused: %s", ei.text);
    if (n_bytes == 0)
        return api_error_set(e, 400, NULL, NULL, "the body is empty; it must be a JSON object");
    const size_t flags = JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY;
    json_error_t je;
    json_t *v = json_loadb(body, n_bytes, flags, &je);
    /* so that the field with the number beyond 64 bits can be named */
    if (!v && json_error_code(&je) == json_error_numeric_overflow)
        v = json_loadb(body, n_bytes, flags | JSON_DECODE_INT_AS_REAL, &je);
    if (!v && json_error_code(&je) == json_error_out_of_memory)
        return no_memory(e);
    if (!v)
        return api_error_set(e, 400, NULL, NULL,
                             "the body is not valid JSON: %.200s (line %d, column %d)", je.text,
                             je.line, je.column);
    if (!json_is_object(v)) {
        json_decref(v);
        return api_error_set(e, 400, NULL, NULL, "the body must be a JSON object");
    }
    *out = v;
    return OK;
}

enum err request_check_model(const struct request_context *ctx, const json_t *body,
                             struct api_error *e)
{
    const json_t *v = json_field(body, "model");
    if (!v)
        return OK;
    if (!json_is_string(v))
        return api_error_set(e, 400, NULL, "model", "model must be a string");
    const char *name = json_string_value(v);
    if (json_string_length(v) == 0 ||
        (strcmp(name, ctx->model) == 0 && strlen(name) == json_string_length(v)))
        return OK;
    return api_error_set(e, 404, "model_not_found", "model",
                         "the model '%.200s' is not served here; '%.200s' is", name, ctx->model);
}

enum err request_ids(const struct request_context *ctx, const char *name, const json_t *array,
                     struct arena *arena, uint32_t **out, struct api_error *e)
{
    size_t n = json_array_size(array), i;
    uint32_t *ids = arena_alloc_array(arena, n, sizeof *ids);
    if (!ids)
        return no_memory(e);
    const json_t *v;
    json_array_foreach(array, i, v)
    {
        int64_t id;
        if (!json_field_as_integer(v, &id) || id < 0 || id >= (int64_t)ctx->vocab_size)
            return api_error_set(e, 400, NULL, name, "%s[%zu] must be a token id from 0 to %u",
                                 name, i, ctx->vocab_size - 1);
        ids[i] = (uint32_t)id;
    }
    *out = ids;
    return OK;
}

static enum err copy_string(struct request *r, const json_t *v, const char **out, size_t *n,
                            struct api_error *e)
{
    *n = json_string_length(v);
    *out = arena_strndup(r->arena, json_string_value(v), *n);
    return *out ? OK : no_memory(e);
}

/* --- the prompt
 * ------------------------------------------------------------------------------------ */

static enum err parse_messages(const json_t *body, struct request *r, struct api_error *e)
{
    const json_t *messages = json_object_get(body, "messages");
    enum err rc = request_messages_check(messages, &r->n_messages_strings, e);
    if (rc != OK)
        return rc;
    char *text = json_dumps(messages, JSON_COMPACT);
    if (!text)
        return no_memory(e);
    r->messages_json = arena_strndup(r->arena, text, strlen(text));
    free(text);
    return r->messages_json ? OK : no_memory(e);
}

static enum err take_ids(const struct request_context *ctx, const json_t *array, struct request *r,
                         struct api_error *e)
{
    uint32_t *ids = NULL;
    if (json_array_size(array) == 0)
        return api_error_set(e, 400, NULL, "prompt", "prompt must not be an empty array");
    enum err rc = request_ids(ctx, "prompt", array, r->arena, &ids, e);
    r->has_ids = true;
    r->ids = ids;
    r->n_ids = json_array_size(array);
    return rc;
}

/* A string, [string], [ids] or [[ids]]; absent is "". */
static enum err parse_prompt(const struct request_context *ctx, const json_t *body,
                             struct request *r, struct api_error *e)
{
    const json_t *v = json_field(body, "prompt");
    r->text = "";
    if (!v)
        return OK;
    const json_t *first = json_array_get(v, 0);
    if (json_is_string(first) || json_is_array(first)) {
        if (json_array_size(v) > 1)
            return api_error_set(e, 400, "unsupported_parameter", "prompt",
                                 "several prompts in one request are not supported by this server");
        v = first;
    }
    if (json_is_string(v))
        return copy_string(r, v, &r->text, &r->text_bytes, e);
    if (json_is_array(v))
        return take_ids(ctx, v, r, e);
    return api_error_set(e, 400, NULL, "prompt",
                         "prompt must be a string or an array of token ids");
}

/* --- the options
 * ----------------------------------------------------------------------------------- */

static enum err parse_length(const json_t *body, struct request *r, struct api_error *e)
{
    const struct json_field_range range = {r->kind == REQUEST_CHAT ? 1 : 0, INT64_MAX};
    bool has_new = false;
    r->max_tokens_field = "max_tokens";
    enum err rc =
        json_field_integer(body, "max_tokens", range, &r->has_max_tokens, &r->max_tokens, e);
    if (rc != OK)
        return rc;
    rc = json_field_integer(body, "max_completion_tokens", range, &has_new, &r->max_tokens, e);
    if (rc != OK)
        return rc;
    if (has_new) {
        r->has_max_tokens = true;
        r->max_tokens_field = "max_completion_tokens";
    }
    const struct json_field_range least = {0, UINT32_MAX};
    rc = json_field_integer(body, "min_tokens", least, NULL, &r->min_tokens, e);
    if (rc != OK)
        return rc;
    if (r->has_max_tokens && r->min_tokens > r->max_tokens)
        return api_error_set(e, 400, NULL, "min_tokens", "min_tokens is %lld, above %s, %lld",
                             (long long)r->min_tokens, r->max_tokens_field,
                             (long long)r->max_tokens);
    return OK;
}

static enum err parse_sampling(const json_t *body, struct request *r, struct api_error *e)
{
    int64_t top_k = 0;
    r->temperature = 1;
    r->top_p = 1;
    enum err rc = json_field_number(body, "temperature", (struct json_field_interval){0, 2, false},
                                    &r->temperature, e);
    if (rc == OK)
        rc = json_field_number(body, "top_p", (struct json_field_interval){0, 1, true}, &r->top_p,
                               e);
    if (rc == OK)
        rc = json_field_number(body, "min_p", (struct json_field_interval){0, 1, false}, &r->min_p,
                               e);
    if (rc == OK)
        rc = json_field_integer(body, "top_k", (struct json_field_range){-1, UINT32_MAX}, NULL,
                                &top_k, e);
    if (rc == OK)
        rc = json_field_integer(body, "seed", (struct json_field_range){INT64_MIN, INT64_MAX},
                                &r->has_seed, &r->seed, e);
    if (rc == OK)
        rc = json_field_bool(body, "ignore_eos", &r->ignore_eos, e);
    r->top_k = top_k < 0 ? 0 : (uint32_t)top_k;
    return rc;
}

static enum err parse_logprobs(const json_t *body, struct request *r, struct api_error *e)
{
    int64_t n = 0;
    bool has_top = false, is_on = false;
    r->n_logprobs = -1;
    if (r->kind == REQUEST_COMPLETION) {
        enum err rc = json_field_integer(
            body, "logprobs", (struct json_field_range){0, MAX_COMPLETION_LOGPROBS}, &is_on, &n, e);
        if (rc == OK && is_on)
            r->n_logprobs = (int32_t)n;
        return rc;
    }
    enum err rc = json_field_bool(body, "logprobs", &is_on, e);
    if (rc == OK)
        rc = json_field_integer(body, "top_logprobs",
                                (struct json_field_range){0, MESSAGE_MAX_TOP_LOGPROBS}, &has_top,
                                &n, e);
    if (rc != OK)
        return rc;
    if (n > 0 && !is_on)
        return api_error_set(e, 400, NULL, "top_logprobs", "top_logprobs needs logprobs: true");
    if (is_on)
        r->n_logprobs = (int32_t)n;
    return OK;
}

static enum err add_stop(struct request *r, const json_t *v, struct api_error *e)
{
    if (!json_is_string(v))
        return api_error_set(e, 400, NULL, "stop", "stop must be a string or an array of strings");
    if (json_string_length(v) == 0 || json_string_length(v) > MAX_STOP_BYTES)
        return api_error_set(e, 400, NULL, "stop", "a stop string must have from 1 to %d bytes",
                             MAX_STOP_BYTES);
    enum err rc = copy_string(r, v, &r->stop[r->n_stop], &r->stop_bytes[r->n_stop], e);
    r->n_stop += rc == OK;
    return rc;
}

static enum err parse_stop(const json_t *body, struct request *r, struct api_error *e)
{
    const json_t *v = json_field(body, "stop");
    if (!v)
        return OK;
    if (!json_is_array(v))
        return add_stop(r, v, e);
    if (json_array_size(v) > STOP_STRINGS_MAX)
        return api_error_set(e, 400, NULL, "stop", "stop has %zu strings; at most %d are allowed",
                             json_array_size(v), STOP_STRINGS_MAX);
    size_t i;
    const json_t *s;
    json_array_foreach(v, i, s)
    {
        enum err rc = add_stop(r, s, e);
        if (rc != OK)
            return rc;
    }
    return OK;
}

static enum err parse_stream(const json_t *body, struct request *r, struct api_error *e)
{
    enum err rc = json_field_bool(body, "stream", &r->is_stream, e);
    if (rc != OK)
        return rc;
    const json_t *options = json_field(body, "stream_options");
    if (!options)
        return OK;
    if (!json_is_object(options))
        return api_error_set(e, 400, NULL, "stream_options", "stream_options must be an object");
    if (!r->is_stream)
        return api_error_set(e, 400, NULL, "stream_options", "stream_options needs stream: true");
    bool is_continuous = false;
    rc = json_field_bool(options, "include_usage", &r->include_usage, e);
    if (rc == OK)
        rc = json_field_bool(options, "continuous_usage_stats", &is_continuous, e);
    if (rc != OK)
        (void)snprintf(e->param, sizeof e->param, "stream_options");
    else if (is_continuous)
        rc = api_error_set(e, 400, "unsupported_parameter", "stream_options",
                           "stream_options.continuous_usage_stats is not supported by this server");
    return rc;
}

static enum err parse_labels(const json_t *body, struct api_error *e)
{
    const json_t *user = json_field(body, "user"), *metadata = json_field(body, "metadata");
    if (user && !json_is_string(user))
        return api_error_set(e, 400, NULL, "user", "user must be a string");
    if (metadata && !json_is_object(metadata))
        return api_error_set(e, 400, NULL, "metadata", "metadata must be an object");
    return OK;
}

static enum err parse_fields(const struct request_context *ctx, const json_t *body,
                             struct request *r, struct api_error *e)
{
    enum err rc = request_check_model(ctx, body, e);
    if (rc == OK)
        rc = request_unserved_check(body, r->kind, &r->n_unknown_fields, e);
    if (rc == OK)
        rc = r->kind == REQUEST_CHAT ? parse_messages(body, r, e) : parse_prompt(ctx, body, r, e);
    if (rc == OK)
        rc = parse_length(body, r, e);
    if (rc == OK)
        rc = parse_sampling(body, r, e);
    if (rc == OK)
        rc = parse_logprobs(body, r, e);
    if (rc == OK)
        rc = parse_stop(body, r, e);
    if (rc == OK)
        rc = parse_stream(body, r, e);
    if (rc == OK)
        rc = parse_labels(body, e);
    return rc;
}

enum err request_parse(const struct request_context *ctx, enum request_kind kind, const char *body,
                       size_t n_bytes, struct request *out, struct api_error *e)
{
    json_t *v = NULL;
    enum err rc = request_load(ctx, body, n_bytes, &v, e);
    if (rc != OK)
        return rc;
    *out = (struct request){.arena = arena_new(0), .kind = kind};
    rc = out->arena ? parse_fields(ctx, v, out, e) : no_memory(e);
    json_decref(v);
    if (rc != OK)
        request_fini(out);
    return rc;
}

void request_fini(struct request *r)
{
    arena_free(r->arena);
    *r = (struct request){0};
}
