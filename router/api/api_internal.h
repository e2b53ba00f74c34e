#pragma once
#include "router/api/api.h"
#include "router/api/api_error.h"
#include "router/api/request.h"
#include "router/http/http_server.h"

/* What the files of router/api share. */

struct api {
    struct api_config config;
    struct request_context context;
    struct http_server *http;
    uint64_t n_seeds;          /* drawn so far */
    uint64_t n_unknown_fields; /* ignored so far */
    int64_t start_s;
    uint32_t n_stop_ids;
    uint32_t stop_ids[MESSAGE_MAX_STOP_IDS];
};

/* Sends the error as the whole answer, with Retry-After where it has one. */
void api_send_error(struct http_request *r, const struct api_error *e);
/* Sends body, which is freed, as 200 application/json; 503 when it has failed. */
void api_send_json(struct http_request *r, struct bytes *body);

/* text_routes.c */
void text_routes_tokenize(void *ctx, struct http_request *r);
void text_routes_detokenize(void *ctx, struct http_request *r);
