/* What is at which path? The table of routes and the small answers; texts are made elsewhere.
 * Keeps: liveness, readiness and metrics are answered from memory, whatever workers do. Does not
 * parse requests for text. */
#include "router/api/api.h"

#include "config/base/clock.h"
#include "router/api/api_internal.h"
#include "router/api/completion.h"
#include "router/api/json_text.h"
#include "router/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void api_send_error(struct http_request *r, const struct api_error *e)
{
    char retry[48];
    struct bytes body = {0};
    (void)snprintf(retry, sizeof retry, "Retry-After: %u\r\n", e->retry_after);
    api_error_render(e, &body);
    struct http_answer a = {.status = e->status,
                            .headers = e->retry_after ? retry : NULL,
                            .body = body.data,
                            .body_bytes = body.size};
    http_response_send(r, &a);
    bytes_fini(&body);
}

void api_send_json(struct http_request *r, struct bytes *body)
{
    struct http_answer a = {.status = 200, .body = body->data, .body_bytes = body->size};
    if (body->failed)
        http_response_error(r, 503, "the server has no memory for this answer");
    else
        http_response_send(r, &a);
    bytes_fini(body);
}

/* --- small routes
 * ----------------------------------------------------------------------------------- */

static void chat(void *ctx, struct http_request *r)
{
    completion_start(ctx, r, REQUEST_CHAT);
}

static void complete(void *ctx, struct http_request *r)
{
    completion_start(ctx, r, REQUEST_COMPLETION);
}

static void append_model(const struct api *api, struct bytes *out)
{
    const char *model = api->context.model;
    bytes_append_str(out, "{\"id\":");
    json_text_append_string(out, model, strlen(model));
    bytes_printf(out,
                 ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"kvnode\","
                 "\"max_model_len\":%u}",
                 (long long)api->start_s, api->config.max_context);
}

static void list_models(void *ctx, struct http_request *r)
{
    struct bytes out = {0};
    bytes_append_str(&out, "{\"object\":\"list\",\"data\":[");
    append_model(ctx, &out);
    bytes_append_str(&out, "]}");
    api_send_json(r, &out);
}

static void get_model(void *ctx, struct http_request *r)
{
    const struct api *api = ctx;
    if (strcmp(r->rest, api->context.model) != 0) {
        struct api_error e;
        (void)api_error_set(&e, 404, "model_not_found", "model",
                            "the model '%.200s' is not served here; '%.200s' is", r->rest,
                            api->context.model);
        api_send_error(r, &e);
        return;
    }
    struct bytes out = {0};
    append_model(api, &out);
    api_send_json(r, &out);
}

static void live(void *ctx, struct http_request *r)
{
    (void)ctx;
    struct bytes out = {0};
    bytes_append_str(&out, "{\"status\":\"ok\"}");
    api_send_json(r, &out);
}

static void ready(void *ctx, struct http_request *r)
{
    const struct api *api = ctx;
    if (api->config.is_ready(api->config.ctx)) {
        live(ctx, r);
        return;
    }
    bool is_draining = api->config.is_draining(api->config.ctx);
    struct api_error e;
    (void)api_error_set(&e, 503, is_draining ? "draining" : "not_ready", NULL, "%s",
                        is_draining ? "the node is draining" : "no worker is ready");
    e.retry_after = 1;
    api_send_error(r, &e);
}

static void metrics(void *ctx, struct http_request *r)
{
    const struct api *api = ctx;
    struct bytes out = {0};
    api->config.render_metrics(api->config.ctx, &out);
    struct http_answer a = {.status = 200,
                            .content_type = "text/plain; version=0.0.4; charset=utf-8",
                            .body = out.data,
                            .body_bytes = out.size};
    if (out.failed)
        http_response_error(r, 503, "the server has no memory for this answer");
    else
        http_response_send(r, &a);
    bytes_fini(&out);
}

static const struct http_route routes[] = {
    {"/v1/chat/completions", NULL, HTTP_METHOD_POST, true, chat},
    {"/v1/completions", NULL, HTTP_METHOD_POST, true, complete},
    {"/v1/models", NULL, HTTP_METHOD_GET, false, list_models},
    {"/v1/models/*", "/v1/models/{id}", HTTP_METHOD_GET, false, get_model},
    {"/tokenize", NULL, HTTP_METHOD_POST, true, text_routes_tokenize},
    {"/detokenize", NULL, HTTP_METHOD_POST, true, text_routes_detokenize},
    {"/livez", NULL, HTTP_METHOD_GET, false, live},
    {"/readyz", NULL, HTTP_METHOD_GET, false, ready},
    {"/health", NULL, HTTP_METHOD_GET, false, ready},
    {"/metrics", NULL, HTTP_METHOD_GET, false, metrics},
};

/* --- the server's questions
 * ------------------------------------------------------------------------- */

static void error_body(void *ctx, int status, const char *text, struct bytes *out)
{
    (void)ctx;
    struct api_error e;
    (void)api_error_set(&e, status, NULL, NULL, "%s", text);
    api_error_render(&e, out);
}

static bool is_draining(void *ctx)
{
    const struct api *api = ctx;
    return api->config.is_draining(api->config.ctx);
}

static void on_answer(void *ctx, const struct http_route *route, int status)
{
    const struct api *api = ctx;
    const char *label = !route ? "other" : route->label ? route->label : route->path;
    metrics_http(api->config.metrics, label, status);
}

/* --- life
 * ------------------------------------------------------------------------------------------- */

static struct http_limits limits_of(const struct node_config *c)
{
    return (struct http_limits){
        .max_body = c->http.max_body,
        .max_header = c->http.max_header,
        .max_connections = c->http.max_connections,
        .idle_timeout_us = (uint64_t)c->http.idle_timeout_s * 1000000u,
        .read_timeout_us = (uint64_t)c->http.read_timeout_s * 1000000u,
        .write_buffer = c->http.write_buffer,
    };
}

/* What is longer has more tokens than the window for sure. NFC, where a tokeniser wants it, makes
 * text shorter by a factor of 3 at most (Unicode FAQ "Normalization": expansion of NFD in UTF-8).
 */
static size_t longest_prompt(const struct api_config *cfg)
{
    size_t longest = 1, n_bytes;
    for (uint32_t id = 0; id < tokenizer_vocab_size(cfg->tokenizer); id++)
        if (tokenizer_token_bytes(cfg->tokenizer, id, &n_bytes) && n_bytes > longest)
            longest = n_bytes;
    return 3 * longest * cfg->max_context;
}

enum err api_start(const struct api_config *cfg, struct api **out, struct err_info *ei)
{
    struct api *a = calloc(1, sizeof *a);
    if (!a)
        return err_set(ei, ERR_NOMEM, "api: no memory");
    a->config = *cfg;
    if (a->config.max_prompt_bytes == 0)
        a->config.max_prompt_bytes = longest_prompt(cfg);
    a->context = (struct request_context){.model = cfg->config->served_model_name,
                                          .vocab_size = tokenizer_vocab_size(cfg->tokenizer),
                                          .json_depth = cfg->config->http.json_depth};
    a->start_s = clock_wall_s();
    a->n_stop_ids = tokenizer_stop_ids(cfg->tokenizer, a->stop_ids, MESSAGE_MAX_STOP_IDS);
    struct http_server_config http = {.base = cfg->base,
                                      .host = cfg->config->host,
                                      .port = cfg->config->port,
                                      .limits = limits_of(cfg->config),
                                      .routes = routes,
                                      .n_routes = sizeof routes / sizeof *routes,
                                      .error_body = error_body,
                                      .is_draining = is_draining,
                                      .on_answer = on_answer,
                                      .ctx = a};
    enum err rc = http_server_start(&http, &a->http, ei);
    if (rc != OK) {
        api_free(a);
        return rc;
    }
    *out = a;
    return OK;
}

uint32_t api_port(const struct api *a)
{
    return http_server_port(a->http);
}

void api_stop_listening(struct api *a)
{
    http_server_stop_listening(a->http);
}

uint32_t api_n_active(const struct api *a)
{
    return http_server_n_active(a->http);
}

uint64_t api_n_unknown_fields(const struct api *a)
{
    return a->n_unknown_fields;
}

void api_free(struct api *a)
{
    if (!a)
        return;
    http_server_free(a->http);
    free(a);
}
