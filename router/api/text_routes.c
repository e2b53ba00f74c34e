/* How does this model's text look as tokens, and back? /tokenize and /detokenize in vLLM's shape.
 * Keeps: the ids are those that the same prompt has in a completion or a chat. No worker is asked.
 */
#include "router/api/api_internal.h"
#include "router/api/json_field.h"
#include "router/api/json_text.h"
#include "router/api/logprobs.h"
#include "router/api/prompt.h"
#include "router/text/detokenizer.h"

#include <stdlib.h>
#include <string.h>

static enum err load(const struct api *api, const struct http_request *r, json_t **body,
                     struct api_error *e)
{
    enum err rc =
        request_load(&api->context, r->body.data ? r->body.data : "", r->body.size, body, e);
    return rc == OK ? request_check_model(&api->context, *body, e) : rc;
}

static enum err tokenize_messages(const struct api *api, const json_t *messages,
                                  const struct prompt_options *opt, struct token_ids *ids,
                                  struct api_error *e)
{
    size_t n_strings = 0;
    enum err rc = request_messages_check(messages, &n_strings, e);
    if (rc != OK)
        return rc;
    char *text = json_dumps(messages, JSON_COMPACT);
    if (!text)
        return api_error_set(e, 503, NULL, NULL, "the server has no memory for this request");
    rc = prompt_from_messages(&api->config, text, n_strings, opt, ids, e);
    free(text);
    return rc;
}

static enum err tokenize(const struct api *api, const json_t *body, struct token_ids *ids,
                         bool *wants_strings, struct api_error *e)
{
    const json_t *prompt = json_field(body, "prompt"), *messages = json_field(body, "messages");
    bool is_continued = false;
    struct prompt_options opt = {
        .add_special = messages == NULL, .parse_special = true, .add_generation_prompt = true};
    enum err rc = json_field_bool(body, "add_special_tokens", &opt.add_special, e);
    if (rc == OK)
        rc = json_field_bool(body, "parse_special", &opt.parse_special, e);
    if (rc == OK)
        rc = json_field_bool(body, "add_generation_prompt", &opt.add_generation_prompt, e);
    if (rc == OK)
        rc = json_field_bool(body, "return_token_strs", wants_strings, e);
    if (rc == OK)
        rc = json_field_bool(body, "continue_final_message", &is_continued, e);
    if (rc != OK)
        return rc;
    if (is_continued)
        return api_error_set(e, 400, "unsupported_parameter", "continue_final_message",
                             "continue_final_message is not supported with this value by this "
                             "server");
    if (messages && prompt)
        return api_error_set(e, 400, NULL, "messages", "give either prompt or messages, not both");
    if (messages)
        return tokenize_messages(api, messages, &opt, ids, e);
    if (!json_is_string(prompt))
        return api_error_set(e, 400, NULL, "prompt", "prompt must be a string");
    return prompt_from_text(&api->config, json_string_value(prompt), json_string_length(prompt),
                            &opt, ids, e);
}

void text_routes_tokenize(void *ctx, struct http_request *r)
{
    struct api *api = ctx;
    struct api_error e = {0};
    json_t *body = NULL;
    struct token_ids ids = {0};
    bool wants_strings = false;
    enum err rc = load(api, r, &body, &e);
    if (rc == OK)
        rc = tokenize(api, body, &ids, &wants_strings, &e);
    json_decref(body);
    if (rc != OK) {
        token_ids_fini(&ids);
        api_send_error(r, &e);
        return;
    }
    struct bytes out = {0};
    bytes_printf(&out, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":[", ids.n,
                 api->config.max_context);
    for (size_t i = 0; i < ids.n; i++)
        bytes_printf(&out, "%s%u", i ? "," : "", ids.ids[i]);
    bytes_append_str(&out, wants_strings ? "],\"token_strs\":[" : "],\"token_strs\":null}");
    for (size_t i = 0; wants_strings && i < ids.n; i++) {
        bytes_append_str(&out, i ? "," : "");
        logprobs_append_token(api->config.tokenizer, ids.ids[i], &out);
    }
    bytes_append_str(&out, wants_strings ? "]}" : "");
    token_ids_fini(&ids);
    api_send_json(r, &out);
}

static enum err detokenize(const struct api *api, const json_t *body, struct bytes *text,
                           struct api_error *e)
{
    const json_t *tokens = json_field(body, "tokens");
    if (!json_is_array(tokens))
        return api_error_set(e, 400, NULL, "tokens", "tokens must be an array of token ids");
    struct arena *arena = arena_new(0);
    if (!arena)
        return api_error_set(e, 503, NULL, NULL, "the server has no memory for this request");
    uint32_t *ids = NULL;
    enum err rc = request_ids(&api->context, "tokens", tokens, arena, &ids, e);
    struct detokenizer d;
    detokenizer_init(&d, api->config.tokenizer, true);
    for (size_t i = 0; rc == OK && i < json_array_size(tokens); i++)
        detokenizer_push(&d, ids[i], text);
    detokenizer_flush(&d, text);
    arena_free(arena);
    return rc;
}

void text_routes_detokenize(void *ctx, struct http_request *r)
{
    struct api *api = ctx;
    struct api_error e = {0};
    json_t *body = NULL;
    struct bytes text = {0}, out = {0};
    enum err rc = load(api, r, &body, &e);
    if (rc == OK)
        rc = detokenize(api, body, &text, &e);
    json_decref(body);
    if (rc != OK) {
        api_send_error(r, &e);
    } else {
        bytes_append_str(&out, "{\"prompt\":");
        json_text_append_string(&out, text.data ? text.data : "", text.size);
        bytes_append_str(&out, "}");
        out.failed |= text.failed;
        api_send_json(r, &out);
    }
    bytes_fini(&text);
}
