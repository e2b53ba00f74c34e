/* How does a request become text at its client? Parses, tokenises, dispatches; then tokens pass
 * through detokeniser and stop strings into one body or a stream of events. Keeps: exactly one end
 * (answered, failed, or gone), after which nothing refers to it; text is whole characters and never
 * part of a stop string. Does not know HTTP framing or where tokens come from. */
#include "router/api/completion.h"

#include "config/base/clock.h"
#include "config/base/log.h"
#include "router/api/api_internal.h"
#include "router/api/completion_render.h"
#include "router/api/prompt.h"
#include "router/metrics.h"
#include "router/text/utf8.h"

#include <event2/util.h>

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- life
 * ------------------------------------------------------------------------------------------- */

static void completion_free(struct completion *c)
{
    stop_strings_fini(&c->stops);
    logprobs_fini(&c->logprobs);
    bytes_fini(&c->decoded);
    bytes_fini(&c->text);
    request_fini(&c->request);
    free(c);
}

static void count_end(const struct completion *c, enum metrics_finish why)
{
    struct metrics *m = c->api->config.metrics;
    metrics_request_finished(m, why, c->n_prompt, c->n_cached, c->n_output);
    if (why == METRICS_FINISH_STOP || why == METRICS_FINISH_LENGTH)
        metrics_end_to_end(m, clock_now_us() - c->start_us);
}

static void on_gone(void *ctx)
{
    struct completion *c = ctx;
    dispatch_cancel(c->api->config.dispatch, c->dispatch_id);
    count_end(c, METRICS_FINISH_ABORT);
    completion_free(c);
}

/* --- output
 * ----------------------------------------------------------------------------------------- */

/* False: out of memory, and the client sees the connection break, for a stream with a hole must not
 * look whole. */
static bool send_events(struct completion *c, struct bytes *events)
{
    bool is_sent = !events->failed;
    if (!is_sent) {
        http_response_abort(c->http);
    } else if (!c->is_begun && events->size > 0) {
        struct http_answer head = {.status = 200,
                                   .content_type = "text/event-stream; charset=utf-8",
                                   .headers = "Cache-Control: no-cache\r\n"
                                              "X-Accel-Buffering: no\r\n",
                                   .body = events->data,
                                   .body_bytes = events->size};
        http_response_begin(c->http, &head);
        c->is_begun = true;
    } else if (events->size > 0) {
        http_response_write(c->http, events->data, events->size);
    }
    bytes_fini(events);
    return is_sent;
}

static void send_failure(struct completion *c, const struct api_error *e)
{
    if (!c->is_begun) {
        api_send_error(c->http, e);
        return;
    }
    struct bytes events = {0};
    bytes_append_str(&events, "data: ");
    api_error_render(e, &events);
    bytes_append_str(&events, "\n\n");
    if (send_events(c, &events))
        http_response_end(c->http);
}

/* --- tokens
 * ----------------------------------------------------------------------------------------- */

static size_t count_chars(const char *s, size_t n)
{
    size_t chars = 0;
    for (size_t i = 0; i < n; i++)
        chars += ((unsigned char)s[i] & 0xc0) != 0x80;
    return chars;
}

/* Moves decoded text through the stop strings. True on a match. */
static bool release(struct completion *c)
{
    size_t before = c->text.size;
    c->n_decoded += c->decoded.size;
    c->n_chars += count_chars(c->decoded.data, c->decoded.size);
    bool is_hit = stop_strings_push(&c->stops, c->decoded.data, c->decoded.size, &c->text);
    if (c->decoded.failed)
        c->text.failed = 1;
    c->n_shown += c->text.size - before;
    bytes_clear(&c->decoded);
    return is_hit;
}

/* Takes one token; true when a stop string ends the text. */
static bool take_token(struct completion *c, const struct emitted_token *t, bool is_stop_token)
{
    c->n_output++;
    if (is_stop_token)
        return false;
    size_t begin = c->n_decoded, chars = c->n_chars;
    detokenizer_push(&c->detokenizer, t->token, &c->decoded);
    if (c->request.n_logprobs >= 0)
        logprobs_push(&c->logprobs, t, begin, begin + c->decoded.size, chars);
    return release(c);
}

/* The text is over without a match: what is held back leaves. True when that holds a match. */
static bool flush(struct completion *c)
{
    detokenizer_flush(&c->detokenizer, &c->decoded);
    if (release(c))
        return true;
    size_t before = c->text.size;
    stop_strings_flush(&c->stops, &c->text);
    c->n_shown += c->text.size - before;
    return c->stops.is_hit;
}

static void count_step(struct completion *c, uint32_t n_tokens)
{
    struct metrics *m = c->api->config.metrics;
    uint64_t now_us = clock_now_us();
    if (n_tokens > 0 && c->last_token_us == 0) {
        metrics_time_to_first_token(m, now_us - c->start_us);
        n_tokens--;
        c->last_token_us = now_us;
    }
    for (uint32_t i = 0; i < n_tokens; i++)
        metrics_inter_token(m, (now_us - c->last_token_us) / n_tokens);
    if (n_tokens > 0)
        c->last_token_us = now_us;
}

/* Everything is known: the rest of the answer in one write. */
static bool send_rest(struct completion *c, enum finish_reason why)
{
    struct bytes out = {0};
    if (!c->request.is_stream) {
        completion_render_body(c, why, &out);
        api_send_json(c->http, &out);
        return true;
    }
    completion_render_events(c, why, &out);
    if (!send_events(c, &out))
        return false;
    http_response_end(c->http);
    return true;
}

static void finish(struct completion *c, enum finish_reason why)
{
    assert(why != FINISH_NONE);
    if (!send_rest(c, why))
        count_end(c, METRICS_FINISH_ERROR);
    else
        count_end(c, why == FINISH_STOP ? METRICS_FINISH_STOP : METRICS_FINISH_LENGTH);
    completion_free(c);
}

static void on_tokens(void *ctx, const struct sequence_tokens *s)
{
    struct completion *c = ctx;
    if (s->is_admission)
        c->n_cached = s->n_cached;
    count_step(c, s->n_tokens);
    bool is_hit = false;
    for (uint32_t i = 0; i < s->n_tokens && !is_hit; i++)
        is_hit = take_token(c, &s->tokens[i], s->finish == FINISH_STOP && i + 1 == s->n_tokens);
    if (!is_hit && s->finish != FINISH_NONE)
        is_hit = flush(c);
    if (is_hit && s->finish == FINISH_NONE)
        dispatch_cancel(c->api->config.dispatch, c->dispatch_id);
    if (is_hit || s->finish != FINISH_NONE) {
        finish(c, is_hit ? FINISH_STOP : s->finish);
        return;
    }
    if (!c->request.is_stream)
        return;
    struct bytes events = {0};
    completion_render_events(c, FINISH_NONE, &events);
    if (!send_events(c, &events)) {
        dispatch_cancel(c->api->config.dispatch, c->dispatch_id);
        count_end(c, METRICS_FINISH_ERROR);
        completion_free(c);
    }
}

/* Plain answers, and streams that have not begun, can start anew: the seed is drawn already. */
static bool on_restart(void *ctx)
{
    struct completion *c = ctx;
    const struct request *r = &c->request;
    if (c->is_begun)
        return false;
    stop_strings_fini(&c->stops);
    stop_strings_init(&c->stops, r->stop, r->stop_bytes, r->n_stop);
    detokenizer_init(&c->detokenizer, c->api->config.tokenizer, r->ignore_eos);
    logprobs_fini(&c->logprobs);
    bytes_fini(&c->decoded);
    bytes_fini(&c->text);
    c->n_decoded = c->n_chars = c->n_shown = 0;
    c->n_cached = c->n_output = 0;
    return true;
}

static void on_failed(void *ctx, enum dispatch_failure why, enum err code, const char *text)
{
    struct completion *c = ctx;
    struct api_error e = {0};
    switch (why) {
    case DISPATCH_WORKER_LOST:
        (void)api_error_set(&e, 500, "worker_lost", NULL, "%s", text);
        break;
    case DISPATCH_UNAVAILABLE:
        (void)api_error_set(&e, 503, "unavailable", NULL, "%s", text);
        e.retry_after = 1;
        break;
    case DISPATCH_OVERLOADED:
        (void)api_error_set(&e, 429, "overloaded", NULL, "%s", text);
        e.retry_after = 1;
        break;
    case DISPATCH_REJECTED:
        if (code == ERR_PARSE || code == ERR_LIMIT || code == ERR_UNSUPPORTED)
            (void)api_error_set(&e, 400, NULL, NULL, "%s", text);
        else
            (void)api_error_set(&e, code == ERR_BUSY ? 503 : 500, NULL, NULL, "%s", text);
        e.retry_after = code == ERR_BUSY;
        break;
    }
    send_failure(c, &e);
    count_end(c, METRICS_FINISH_ERROR);
    completion_free(c);
}

/* --- the start
 * -------------------------------------------------------------------------------------- */

/* splitmix64's finaliser (Steele, Lea, Flood 2014) over base + counter */
static uint64_t draw_seed(struct api *api)
{
    uint64_t z = api->config.seed_base + ++api->n_seeds * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Bounds the output by the window. *max_tokens may be 0. */
static enum err fit(const struct completion *c, uint32_t *max_tokens, struct api_error *e)
{
    const struct request *r = &c->request;
    const char *field = r->kind == REQUEST_CHAT ? "messages" : "prompt";
    uint32_t window = c->api->config.max_context;
    if (c->n_prompt >= window)
        return api_error_set(e, 400, "context_length_exceeded", field,
                             "the prompt has %u tokens, which leaves no room in the context window "
                             "of %u tokens",
                             c->n_prompt, window);
    uint32_t room = window - c->n_prompt;
    if (r->has_max_tokens && r->max_tokens > (int64_t)room)
        return api_error_set(e, 400, "context_length_exceeded", r->max_tokens_field,
                             "the prompt has %u tokens and %s is %lld, together more than the "
                             "context window of %u tokens",
                             c->n_prompt, r->max_tokens_field, (long long)r->max_tokens, window);
    uint32_t absent = r->kind == REQUEST_CHAT ? room : COMPLETION_DEFAULT_MAX_TOKENS;
    *max_tokens = r->has_max_tokens ? (uint32_t)r->max_tokens : absent < room ? absent : room;
    if (r->min_tokens > *max_tokens)
        return api_error_set(e, 400, NULL, "min_tokens",
                             "min_tokens is %lld, but at most %u tokens may be generated",
                             (long long)r->min_tokens, *max_tokens);
    return OK;
}

static enum err pinned_worker(const struct http_request *http, int32_t *out, struct api_error *e)
{
    const char *text = http_request_header(http, "x-data-parallel-rank");
    *out = -1;
    if (!text)
        return OK;
    size_t n = strspn(text, "0123456789");
    if (n == 0 || n > 9 || text[n])
        return api_error_set(e, 400, NULL, "x-data-parallel-rank",
                             "the header x-data-parallel-rank must be the index of a worker");
    *out = (int32_t)strtol(text, NULL, 10);
    return OK;
}

static void fill_sampling(struct completion *c, uint32_t max_tokens, struct sampling_params *out)
{
    struct api *api = c->api;
    const struct request *r = &c->request;
    *out = (struct sampling_params){
        .temperature = r->temperature,
        .top_p = r->top_p,
        .top_k = r->top_k,
        .min_p = r->min_p,
        .seed = r->has_seed ? (uint64_t)r->seed : draw_seed(api),
        .n_logprobs = r->n_logprobs,
        .max_tokens = max_tokens,
        .min_tokens = (uint32_t)r->min_tokens,
        .ignore_eos = r->ignore_eos,
        .n_stop_ids = api->n_stop_ids,
    };
    memcpy(out->stop_ids, api->stop_ids, sizeof out->stop_ids);
}

static enum err submit(struct completion *c, const struct token_ids *prompt, uint32_t max_tokens,
                       struct api_error *e)
{
    struct dispatch_request d = {.tokens = prompt->ids,
                                 .n_tokens = c->n_prompt,
                                 .tenant = "",
                                 .salt = "",
                                 .pinned_worker = -1};
    enum err rc = pinned_worker(c->http, &d.pinned_worker, e);
    if (rc != OK)
        return rc;
    fill_sampling(c, max_tokens, &d.sampling);
    struct dispatch_sink sink = {
        .on_tokens = on_tokens, .on_failed = on_failed, .on_restart = on_restart, .ctx = c};
    struct err_info ei = {{0}};
    rc = dispatch_submit(c->api->config.dispatch, &d, &sink, &c->dispatch_id, &ei);
    if (rc == OK)
        return OK;
    if (rc == ERR_LIMIT)
        return api_error_set(e, 400, NULL, "x-data-parallel-rank", "%s", ei.text);
    if (rc == ERR_BUSY)
        rc = api_error_set(e, 429, "overloaded", NULL, "%s", ei.text);
    else
        rc = api_error_set(e, 503, "unavailable", NULL, "%s", ei.text);
    e->retry_after = 1;
    return rc;
}

static void name(struct completion *c)
{
    unsigned char random[12];
    evutil_secure_rng_get_bytes(random, sizeof random);
    int n =
        snprintf(c->id, sizeof c->id, "%s-", c->request.kind == REQUEST_CHAT ? "chatcmpl" : "cmpl");
    for (size_t i = 0; i < sizeof random; i++)
        n += snprintf(c->id + n, sizeof c->id - (size_t)n, "%02x", random[i]);
    c->created = clock_wall_s();
}

/* OK with *max_tokens 0: nothing is to be generated. */
static enum err launch(struct completion *c, enum request_kind kind, uint32_t *max_tokens,
                       struct api_error *e)
{
    const struct api *api = c->api;
    const struct bytes *body = &c->http->body;
    struct token_ids prompt = {0};
    enum err rc = request_parse(&api->context, kind, body->data ? body->data : "", body->size,
                                &c->request, e);
    if (rc != OK)
        return rc;
    c->api->n_unknown_fields += c->request.n_unknown_fields;
    if (c->request.n_unknown_fields)
        log_debug("api: request %s: %u unknown fields ignored", c->http->id,
                  c->request.n_unknown_fields);
    name(c);
    stop_strings_init(&c->stops, c->request.stop, c->request.stop_bytes, c->request.n_stop);
    detokenizer_init(&c->detokenizer, api->config.tokenizer, c->request.ignore_eos);
    rc = prompt_tokenize(&api->config, &c->request, &prompt, e);
    if (rc == OK) {
        c->n_prompt = (uint32_t)(prompt.n < UINT32_MAX ? prompt.n : UINT32_MAX);
        rc = fit(c, max_tokens, e);
    }
    if (rc == OK && *max_tokens > 0)
        rc = submit(c, &prompt, *max_tokens, e);
    token_ids_fini(&prompt);
    return rc;
}

void completion_start(struct api *api, struct http_request *http, enum request_kind kind)
{
    struct api_error e = {0};
    uint32_t max_tokens = 0;
    struct completion *c = calloc(1, sizeof *c);
    if (!c) {
        http_response_error(http, 503, "the server has no memory for this request");
        return;
    }
    c->api = api;
    c->http = http;
    c->start_us = http->start_us;
    enum err rc = launch(c, kind, &max_tokens, &e);
    if (rc == OK && max_tokens > 0) {
        http->on_gone = on_gone;
        http->gone_ctx = c;
        return;
    }
    /* no worker has heard of it: not one of the requests that metrics count */
    if (rc != OK)
        send_failure(c, &e);
    else
        (void)send_rest(c, FINISH_LENGTH);
    completion_free(c);
}
