/* May this request be read on? The parser's callbacks: they collect the head, check it against what
 * the server serves and limits, and collect the body. Keeps: a refusal is decided before the bytes
 * it concerns are stored. Does not read, answer, or free anything. */
#include "router/http/http_parse.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

int http_parse_refuse(struct http_connection *c, int status, const char *headers, const char *text)
{
    c->reject_status = status;
    c->reject_headers = headers;
    (void)snprintf(c->reject_text, sizeof c->reject_text, "%s", text);
    return -1;
}

static int on_url(http_parser *p, const char *at, size_t n)
{
    struct http_connection *c = p->data;
    bytes_append(&c->request.url, at, n);
    return 0;
}

static int on_header_field(http_parser *p, const char *at, size_t n)
{
    struct http_connection *c = p->data;
    if (!c->is_head_done) /* else a trailer: of no use here */
        http_request_add_name(&c->request, at, n);
    return 0;
}

static int on_header_value(http_parser *p, const char *at, size_t n)
{
    struct http_connection *c = p->data;
    if (!c->is_head_done)
        http_request_add_value(&c->request, at, n);
    return 0;
}

static bool matches(const struct http_route *route, struct http_request *r)
{
    size_t n = strlen(route->path);
    if (route->path[n - 1] != '*')
        return strcmp(route->path, r->path) == 0;
    if (strncmp(route->path, r->path, n - 1) != 0 || !r->path[n - 1])
        return false;
    r->rest = r->path + n - 1;
    return true;
}

static int choose_route(struct http_connection *c)
{
    struct http_request *r = &c->request;
    const struct http_server_config *cfg = &c->server->config;
    unsigned method = c->parser.method;
    uint32_t bit = method == HTTP_GET || method == HTTP_HEAD ? HTTP_METHOD_GET
                   : method == HTTP_POST                     ? HTTP_METHOD_POST
                                                             : 0;
    uint32_t allowed = 0;
    for (size_t i = 0; i < cfg->n_routes && !r->route; i++) {
        if (!matches(&cfg->routes[i], r))
            continue;
        allowed |= cfg->routes[i].methods;
        if (cfg->routes[i].methods & bit)
            r->route = &cfg->routes[i];
    }
    if (r->route)
        return 0;
    char text[ERR_TEXT_BYTES];
    if (!allowed) {
        (void)snprintf(text, sizeof text, "there is nothing at %.200s", r->path);
        return http_parse_refuse(c, 404, NULL, text);
    }
    (void)snprintf(text, sizeof text, "%s is not allowed at %.200s",
                   http_method_str((enum http_method)method), r->path);
    (void)snprintf(c->server->allow, sizeof c->server->allow, "Allow: %s%s%s\r\n",
                   allowed & HTTP_METHOD_GET ? "GET, HEAD" : "",
                   allowed == (HTTP_METHOD_GET | HTTP_METHOD_POST) ? ", " : "",
                   allowed & HTTP_METHOD_POST ? "POST" : "");
    return http_parse_refuse(c, 405, c->server->allow, text);
}

/* application/json, with charset utf-8 or none; no type at all is taken as JSON */
static bool is_json_type(const char *type)
{
    if (!type)
        return true;
    static const char json[] = "application/json";
    if (strncasecmp(type, json, sizeof json - 1) != 0)
        return false;
    const char *rest = type + sizeof json - 1;
    rest += strspn(rest, " \t");
    if (*rest == '\0')
        return true;
    if (*rest != ';')
        return false;
    const char *charset = strcasestr(rest, "charset=");
    if (!charset)
        return true;
    charset += sizeof "charset=" - 1;
    charset += *charset == '"';
    return strncasecmp(charset, "utf-8", 5) == 0 || strncasecmp(charset, "utf8", 4) == 0 ||
           strncasecmp(charset, "us-ascii", 8) == 0;
}

static int check_body(struct http_connection *c)
{
    struct http_request *r = &c->request;
    bool is_chunked = (c->parser.flags & F_CHUNKED) != 0;
    bool has_length = (c->parser.flags & F_CONTENTLENGTH) != 0;
    if (has_length && c->parser.content_length > c->server->config.limits.max_body)
        return http_parse_refuse(c, 413, NULL, "the body is larger than this server accepts");
    const char *encoding = http_request_header(r, "content-encoding");
    if (encoding && *encoding && strcasecmp(encoding, "identity") != 0)
        return http_parse_refuse(c, 415, NULL, "Content-Encoding is not supported");
    if (r->route->is_json && !is_json_type(http_request_header(r, "content-type")))
        return http_parse_refuse(c, 415, NULL, "Content-Type must be application/json");
    const char *expect = http_request_header(r, "expect");
    if (!expect || c->parser.http_minor == 0)
        return 0;
    if (strcasecmp(expect, "100-continue") != 0)
        return http_parse_refuse(c, 417, NULL,
                                 "the only expectation that can be met is 100-continue");
    if (is_chunked || (has_length && c->parser.content_length > 0))
        bufferevent_write(c->bev, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    return 0;
}

static int on_headers_complete(http_parser *p)
{
    struct http_connection *c = p->data;
    struct http_request *r = &c->request;
    c->is_head_done = true;
    struct err_info ei;
    enum err rc = http_request_seal(r, &ei);
    if (rc != OK)
        return http_parse_refuse(c, rc == ERR_NOMEM ? 503 : 400, NULL, ei.text);
    r->is_head = p->method == HTTP_HEAD;
    c->is_keep_alive = http_should_keep_alive(p);
    if (p->http_major != 1)
        return http_parse_refuse(c, 505, NULL, "only HTTP/1.0 and HTTP/1.1 are served");
    if (http_request_count_header(r, "host") > 1)
        return http_parse_refuse(c, 400, NULL, "there is more than one Host header");
    uint32_t n_codings = http_request_count_header(r, "transfer-encoding");
    if (n_codings > 0) {
        if (p->http_minor == 0 || http_request_count_header(r, "content-length") > 0)
            return http_parse_refuse(c, 400, NULL,
                                     "Transfer-Encoding contradicts the rest of the head");
        if (n_codings > 1 ||
            strcasecmp(http_request_header(r, "transfer-encoding"), "chunked") != 0)
            return http_parse_refuse(c, 501, NULL, "the only transfer coding supported is chunked");
    }
    if (choose_route(c) != 0)
        return -1;
    return check_body(c);
}

static int on_body(http_parser *p, const char *at, size_t n)
{
    struct http_connection *c = p->data;
    if (n > c->server->config.limits.max_body - c->request.body.size)
        return http_parse_refuse(c, 413, NULL, "the body is larger than this server accepts");
    bytes_append(&c->request.body, at, n);
    if (c->request.body.failed)
        return http_parse_refuse(c, 503, NULL, "no memory for the body");
    return 0;
}

static int on_message_complete(http_parser *p)
{
    struct http_connection *c = p->data;
    c->is_body_done = true;
    http_parser_pause(p, 1);
    return 0;
}

const http_parser_settings *http_parse_callbacks(void)
{
    static const http_parser_settings callbacks = {.on_url = on_url,
                                                   .on_header_field = on_header_field,
                                                   .on_header_value = on_header_value,
                                                   .on_headers_complete = on_headers_complete,
                                                   .on_body = on_body,
                                                   .on_message_complete = on_message_complete};
    return &callbacks;
}
