/* What does OpenAI's JSON look like around a piece of text? Chat and completion shapes, plain and
 * as chunks. Keeps: every chunk of a stream has the same id and time, and usage: null exactly when
 * the client asked for usage. Does not decide when anything is sent. */
#include "router/api/completion_render.h"

#include "router/api/api_internal.h"
#include "router/api/json_text.h"

#include <string.h>

static const char *finish_name(enum finish_reason why)
{
    switch (why) {
    case FINISH_NONE:
        return "null";
    case FINISH_STOP:
        return "\"stop\"";
    case FINISH_LENGTH:
        return "\"length\"";
    }
    return "null";
}

static void append_text(const struct bytes *text, struct bytes *out)
{
    if (text->failed)
        out->failed = 1;
    json_text_append_string(out, text->data ? text->data : "", text->size);
}

/* {"id":...,"object":...,"created":...,"model":..., */
static void append_head(const struct completion *c, const char *object, struct bytes *out)
{
    const char *model = c->api->context.model;
    bytes_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", c->id, object,
                 (long long)c->created);
    json_text_append_string(out, model, strlen(model));
    bytes_append_str(out, ",");
}

static void append_usage(const struct completion *c, struct bytes *out)
{
    bytes_printf(out,
                 "\"usage\":{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%llu,"
                 "\"prompt_tokens_details\":{\"cached_tokens\":%u}}",
                 c->n_prompt, c->n_output, (unsigned long long)c->n_prompt + c->n_output,
                 c->n_cached);
}

static void append_logprobs(struct completion *c, bool is_last, struct bytes *out)
{
    bytes_append_str(out, ",\"logprobs\":");
    if (c->logprobs.entries.failed)
        out->failed = 1;
    if (c->request.n_logprobs < 0)
        bytes_append_str(out, "null");
    else
        logprobs_render(&c->logprobs, c->request.kind, c->api->config.tokenizer, c->n_shown,
                        is_last, out);
}

void completion_render_body(struct completion *c, enum finish_reason why, struct bytes *out)
{
    bool is_chat = c->request.kind == REQUEST_CHAT;
    append_head(c, is_chat ? "chat.completion" : "text_completion", out);
    bytes_append_str(out, "\"choices\":[{\"index\":0,");
    bytes_append_str(out,
                     is_chat ? "\"message\":{\"role\":\"assistant\",\"content\":" : "\"text\":");
    append_text(&c->text, out);
    if (is_chat)
        bytes_append_str(out, ",\"refusal\":null}");
    append_logprobs(c, true, out);
    bytes_printf(out, ",\"finish_reason\":%s}],", finish_name(why));
    append_usage(c, out);
    bytes_append_str(out, "}");
}

static void begin_event(const struct completion *c, struct bytes *out)
{
    bool is_chat = c->request.kind == REQUEST_CHAT;
    bytes_append_str(out, "data: ");
    append_head(c, is_chat ? "chat.completion.chunk" : "text_completion", out);
}

static void end_choice(const struct completion *c, enum finish_reason why, struct bytes *out)
{
    bytes_printf(out, ",\"finish_reason\":%s}]%s}\n\n", finish_name(why),
                 c->request.include_usage ? ",\"usage\":null" : "");
}

static void append_role(const struct completion *c, struct bytes *out)
{
    begin_event(c, out);
    bytes_append_str(out, "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":"
                          "\"\"},\"logprobs\":null");
    end_choice(c, FINISH_NONE, out);
}

static void append_piece(struct completion *c, bool is_last, struct bytes *out)
{
    bool is_chat = c->request.kind == REQUEST_CHAT;
    begin_event(c, out);
    bytes_append_str(out, "\"choices\":[{\"index\":0,");
    bytes_append_str(out, is_chat ? "\"delta\":{\"content\":" : "\"text\":");
    append_text(&c->text, out);
    bytes_append_str(out, is_chat ? "}" : "");
    append_logprobs(c, is_last, out);
    end_choice(c, FINISH_NONE, out);
}

static void append_end(struct completion *c, enum finish_reason why, struct bytes *out)
{
    begin_event(c, out);
    bytes_append_str(out, "\"choices\":[{\"index\":0,");
    bytes_append_str(out, c->request.kind == REQUEST_CHAT ? "\"delta\":{}" : "\"text\":\"\"");
    /* tokens without text at the very end have no piece to go with */
    if (c->request.n_logprobs >= 0 && logprobs_n_due(&c->logprobs, c->n_shown, true) > 0)
        append_logprobs(c, true, out);
    else
        bytes_append_str(out, ",\"logprobs\":null");
    end_choice(c, why, out);
    if (c->request.include_usage) {
        begin_event(c, out);
        bytes_append_str(out, "\"choices\":[],");
        append_usage(c, out);
        bytes_append_str(out, "}\n\n");
    }
    bytes_append_str(out, "data: [DONE]\n\n");
}

void completion_render_events(struct completion *c, enum finish_reason why, struct bytes *out)
{
    bool is_last = why != FINISH_NONE;
    if (c->text.failed)
        out->failed = 1;
    if (c->text.size == 0 && !is_last)
        return;
    if (!c->is_begun && c->request.kind == REQUEST_CHAT)
        append_role(c, out);
    if (c->text.size > 0)
        append_piece(c, is_last, out);
    if (is_last)
        append_end(c, why, out);
    bytes_clear(&c->text);
}
