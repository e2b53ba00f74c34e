/* The surroundings of router/api: see support_fakes.h. */
#include "support_fakes.h"

#include "router/metrics.h"

#include <jansson.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fakes fakes;

void fakes_reset(void)
{
    memset(&fakes, 0, sizeof fakes);
    fakes.is_ready = true;
}

/* --- dispatch --- */

enum err dispatch_submit(struct dispatch *d, const struct dispatch_request *req,
                         const struct dispatch_sink *sink, uint64_t *id, struct err_info *ei)
{
    (void)d;
    fakes.pinned_worker = req->pinned_worker;
    if (fakes.submit_result != OK)
        return err_set(ei, fakes.submit_result, "fake: refused");
    fakes.n_submitted++;
    fakes.sink = *sink;
    fakes.sampling = req->sampling;
    fakes.n_prompt = req->n_tokens;
    memcpy(fakes.prompt, req->tokens,
           (req->n_tokens < 512 ? req->n_tokens : 512) * sizeof *fakes.prompt);
    *id = fakes.last_id = 40 + fakes.n_submitted;
    return OK;
}

void dispatch_cancel(struct dispatch *d, uint64_t id)
{
    (void)d;
    fakes.n_cancelled += id == fakes.last_id;
}

/* --- metrics --- */

void metrics_http(struct metrics *m, const char *route, int status)
{
    (void)m;
    (void)snprintf(fakes.last_route, sizeof fakes.last_route, "%s", route);
    fakes.last_status = status;
}

void metrics_request_finished(struct metrics *m, enum metrics_finish why, uint32_t n_prompt,
                              uint32_t n_cached, uint32_t n_output)
{
    (void)m, (void)n_prompt, (void)n_cached, (void)n_output;
    fakes.n_finished[why]++;
}

void metrics_time_to_first_token(struct metrics *m, uint64_t us)
{
    (void)m, (void)us;
    fakes.n_first_token++;
}

void metrics_inter_token(struct metrics *m, uint64_t us)
{
    (void)m, (void)us;
    fakes.n_inter_token++;
}

void metrics_end_to_end(struct metrics *m, uint64_t us)
{
    (void)m, (void)us;
    fakes.n_end_to_end++;
}

/* --- tokenizer --- */

static const char *special_text(uint32_t id)
{
    return id == FAKE_EOS ? "<eos>" : id == FAKE_TURN ? "<turn>" : "\xf0\x9f\xa7\xb5";
}

const char *tokenizer_token_bytes(const struct tokenizer *t, uint32_t id, size_t *n_bytes)
{
    static unsigned char bytes[256];
    (void)t;
    if (id >= FAKE_VOCAB) {
        *n_bytes = 0;
        return "";
    }
    if (id >= 256) {
        *n_bytes = strlen(special_text(id));
        return special_text(id);
    }
    bytes[id] = (unsigned char)id;
    *n_bytes = 1;
    return (const char *)&bytes[id];
}

bool tokenizer_is_special(const struct tokenizer *t, uint32_t id)
{
    (void)t;
    return id == FAKE_EOS || id == FAKE_TURN;
}

uint32_t tokenizer_vocab_size(const struct tokenizer *t)
{
    (void)t;
    return FAKE_VOCAB;
}

uint32_t tokenizer_bos(const struct tokenizer *t)
{
    (void)t;
    return UINT32_MAX;
}

uint32_t tokenizer_eos(const struct tokenizer *t)
{
    (void)t;
    return FAKE_EOS;
}

uint32_t tokenizer_stop_ids(const struct tokenizer *t, uint32_t *out, uint32_t max)
{
    (void)t;
    if (max > 0)
        out[0] = FAKE_EOS;
    return max > 0;
}

void token_ids_fini(struct token_ids *ids)
{
    free(ids->ids);
    *ids = (struct token_ids){0};
}

enum err tokenizer_encode_spans(struct tokenizer *t, const char *text, size_t n_bytes,
                                const struct text_span *spans, size_t n_spans,
                                struct tokenizer_options opt, struct token_ids *out,
                                struct err_info *ei)
{
    (void)t, (void)ei;
    out->ids = realloc(out->ids, (out->n + n_bytes + 1) * sizeof *out->ids);
    for (size_t i = 0, s = 0; i < n_bytes;) {
        while (s < n_spans && i >= spans[s].end)
            s++;
        bool is_trusted = opt.parse_special && (s == n_spans || i < spans[s].begin);
        uint32_t id = (unsigned char)text[i];
        for (uint32_t k = FAKE_EOS; is_trusted && k <= FAKE_TURN; k++) {
            size_t n = strlen(special_text(k));
            if (n <= n_bytes - i && memcmp(text + i, special_text(k), n) == 0)
                id = k;
        }
        i += id < 256 ? 1 : strlen(special_text(id));
        out->ids[out->n++] = id;
    }
    return OK;
}

enum err tokenizer_encode(struct tokenizer *t, const char *text, size_t n_bytes,
                          struct tokenizer_options opt, struct token_ids *out, struct err_info *ei)
{
    return tokenizer_encode_spans(t, text, n_bytes, NULL, 0, opt, out, ei);
}

/* --- template: "<turn>role:content" a message, then "<turn>" --- */

bool chat_template_wants_parts(const struct chat_template *t)
{
    (void)t;
    return false;
}

static void append_content(const json_t *content, struct bytes *out)
{
    size_t i;
    const json_t *part;
    if (json_is_string(content))
        bytes_append(out, json_string_value(content), json_string_length(content));
    json_array_foreach(content, i, part)
    {
        bytes_append_str(out, i ? "\n" : "");
        bytes_append_str(out, json_string_value(json_object_get(part, "text")));
    }
}

enum err chat_template_render_spans(struct chat_template *t,
                                    const struct chat_template_request *req, struct bytes *out,
                                    struct text_span *spans, size_t *n_spans, struct err_info *ei)
{
    (void)t;
    (void)snprintf(fakes.messages, sizeof fakes.messages, "%s", req->messages_json);
    if (fakes.refuses)
        return err_set(ei, ERR_PARSE, "roles must alternate");
    json_t *messages = json_loads(req->messages_json, JSON_ALLOW_NUL, NULL);
    size_t i, n = 0;
    const json_t *m;
    json_array_foreach(messages, i, m)
    {
        bytes_printf(out, "<turn>%s:", json_string_value(json_object_get(m, "role")));
        size_t begin = out->size;
        append_content(json_object_get(m, "content"), out);
        if (n < *n_spans)
            spans[n++] = (struct text_span){begin, out->size};
    }
    if (req->add_generation_prompt)
        bytes_append_str(out, "<turn>");
    *n_spans = n;
    json_decref(messages);
    return OK;
}
