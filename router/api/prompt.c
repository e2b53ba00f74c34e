/* Which tokens does the model see? Chat goes through the template, whose own text may hold control
 * tokens while the users' text may not; completions are taken as written, control tokens included.
 * Keeps: a prompt has at least one token. Does not know limits. */
#include "router/api/prompt.h"

#include "config/base/clock.h"
#include "router/api/json_field.h"

#include <jansson.h>

#include <stdlib.h>
#include <string.h>

enum { MAX_SPANS = 1024 * 1024 };

static enum err failed(enum err rc, const char *param, const struct err_info *ei,
                       struct api_error *e)
{
    if (rc == ERR_PARSE || rc == ERR_UNSUPPORTED || rc == ERR_LIMIT)
        return api_error_set(e, 400, NULL, param, "%s", ei->text);
    return api_error_set(e, 500, NULL, NULL, "the prompt could not be tokenised: %s", ei->text);
}

/* A text of megabytes would hold up everybody for seconds, only to be refused for its length. */
static enum err check_length(const struct api_config *cfg, size_t n_bytes, const char *param,
                             const struct prompt_options *opt, struct api_error *e)
{
    if (opt->max_bytes == 0 || n_bytes <= opt->max_bytes)
        return OK;
    return api_error_set(e, 400, "context_length_exceeded", param,
                         "the prompt has %zu bytes of text, more than the context window of %u "
                         "tokens can hold",
                         n_bytes, cfg->max_context);
}

/* Renders with room for *n_spans, and with more as long as that is too little. */
static enum err render(const struct api_config *cfg, const struct chat_template_request *req,
                       struct bytes *text, struct text_span **spans, size_t *n_spans,
                       struct err_info *ei)
{
    size_t capacity = *n_spans;
    enum err rc;
    do {
        free(*spans);
        *spans = calloc(capacity, sizeof **spans);
        if (!*spans)
            return err_set(ei, ERR_NOMEM, "no memory");
        *n_spans = capacity;
        bytes_clear(text);
        rc = chat_template_render_spans(cfg->chat_template, req, text, *spans, n_spans, ei);
        capacity *= 4;
    } while (rc == ERR_LIMIT && capacity <= MAX_SPANS);
    return rc;
}

/* The messages with "" for each content that is null or absent; NULL when there is none, or no
 * memory. The caller's. */
static char *fill_contents(const char *messages_json)
{
    json_t *messages = json_loads(messages_json, JSON_ALLOW_NUL, NULL);
    json_t *message;
    size_t i;
    bool is_changed = false;
    json_array_foreach(messages, i, message)
    {
        if (!json_field(message, "content"))
            is_changed |= json_object_set_new(message, "content", json_string("")) == 0;
    }
    char *out = is_changed ? json_dumps(messages, JSON_COMPACT) : NULL;
    json_decref(messages);
    return out;
}

/* As it is first, for templates may tell null from ""; one that fails on null, not by its own
 * refusal, gets "", as in vLLM. */
static enum err render_messages(const struct api_config *cfg, struct chat_template_request *req,
                                struct bytes *text, struct text_span **spans, size_t *n_spans,
                                struct err_info *ei)
{
    size_t n_room = *n_spans;
    enum err rc = render(cfg, req, text, spans, n_spans, ei);
    char *filled = rc == ERR_UNSUPPORTED ? fill_contents(req->messages_json) : NULL;
    if (!filled)
        return rc;
    *n_spans = n_room;
    req->messages_json = filled;
    rc = render(cfg, req, text, spans, n_spans, ei);
    req->messages_json = NULL;
    free(filled);
    return rc;
}

enum err prompt_from_messages(const struct api_config *cfg, const char *messages_json,
                              size_t n_strings, const struct prompt_options *opt,
                              struct token_ids *out, struct api_error *e)
{
    if (!cfg->chat_template)
        return api_error_set(e, 400, NULL, "messages",
                             "this model has no chat template; use /v1/completions");
    struct chat_template_request req = {.messages_json = messages_json,
                                        .add_generation_prompt = opt->add_generation_prompt,
                                        .flatten = !chat_template_wants_parts(cfg->chat_template),
                                        .now_s = clock_wall_s()};
    struct bytes text = {0};
    struct text_span *spans = NULL;
    size_t n_spans = n_strings + 16;
    struct err_info ei = {{0}};
    enum err rc = render_messages(cfg, &req, &text, &spans, &n_spans, &ei);
    enum err length = rc == OK ? check_length(cfg, text.size, "messages", opt, e) : OK;
    if (rc == OK && length == OK)
        rc = tokenizer_encode_spans(
            cfg->tokenizer, text.size ? text.data : "", text.size, spans, n_spans,
            (struct tokenizer_options){.add_special = opt->add_special, .parse_special = true}, out,
            &ei);
    free(spans);
    bytes_fini(&text);
    if (length != OK)
        return length;
    return rc == OK ? OK : failed(rc, "messages", &ei, e);
}

enum err prompt_from_text(const struct api_config *cfg, const char *text, size_t n_bytes,
                          const struct prompt_options *opt, struct token_ids *out,
                          struct api_error *e)
{
    struct err_info ei = {{0}};
    enum err rc = check_length(cfg, n_bytes, "prompt", opt, e);
    if (rc != OK)
        return rc;
    rc = tokenizer_encode(cfg->tokenizer, text, n_bytes,
                          (struct tokenizer_options){.add_special = opt->add_special,
                                                     .parse_special = opt->parse_special},
                          out, &ei);
    return rc == OK ? OK : failed(rc, "prompt", &ei, e);
}

static enum err push(struct token_ids *out, const uint32_t *ids, size_t n, struct api_error *e)
{
    if (out->n + n > out->capacity) {
        uint32_t *grown = realloc(out->ids, (out->n + n) * sizeof *grown);
        if (!grown)
            return api_error_set(e, 503, NULL, NULL, "the server has no memory for this prompt");
        out->ids = grown;
        out->capacity = out->n + n;
    }
    memcpy(out->ids + out->n, ids, n * sizeof *ids);
    out->n += n;
    return OK;
}

enum err prompt_tokenize(const struct api_config *cfg, const struct request *r,
                         struct token_ids *out, struct api_error *e)
{
    enum err rc;
    if (r->kind == REQUEST_CHAT)
        rc = prompt_from_messages(cfg, r->messages_json, r->n_messages_strings,
                                  &(struct prompt_options){.add_generation_prompt = true,
                                                           .max_bytes = cfg->max_prompt_bytes},
                                  out, e);
    else if (r->has_ids)
        rc = push(out, r->ids, r->n_ids, e);
    else
        rc = prompt_from_text(cfg, r->text, r->text_bytes,
                              &(struct prompt_options){.add_special = true,
                                                       .parse_special = true,
                                                       .max_bytes = cfg->max_prompt_bytes},
                              out, e);
    if (rc != OK || out->n > 0)
        return rc;
    uint32_t start = tokenizer_bos(cfg->tokenizer);
    if (start == UINT32_MAX)
        start = tokenizer_eos(cfg->tokenizer);
    if (start == UINT32_MAX)
        return api_error_set(e, 400, NULL, r->kind == REQUEST_CHAT ? "messages" : "prompt",
                             "the prompt is empty and this model has no token to start from");
    return push(out, &start, 1, e);
}
