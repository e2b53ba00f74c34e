/* What did the client's head say? Collects the pieces that the parser hands over, then checks what
 * the parser lets through: header names that are no tokens, targets with bytes outside printable
 * ASCII, bad percent escapes. Keeps: after seal every string ends in NUL and path starts with '/'
 * or is "*". Does not know routes, sockets or limits. */
#include "router/http/http_request.h"

#include <event2/util.h>
#include <http_parser.h>

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

void http_request_fini(struct http_request *r)
{
    bytes_fini(&r->body);
    bytes_fini(&r->url);
    bytes_fini(&r->head);
    bytes_fini(&r->spans);
    *r = (struct http_request){0};
}

static size_t n_headers(const struct http_request *r)
{
    return r->spans.size / sizeof(struct http_header_span);
}

static struct http_header_span span_at(const struct http_request *r, size_t i)
{
    struct http_header_span s;
    memcpy(&s, r->spans.data + i * sizeof s, sizeof s);
    return s;
}

void http_request_add_name(struct http_request *r, const char *s, size_t n)
{
    if (r->in_value || n_headers(r) == 0) {
        if (r->in_value)
            bytes_append(&r->head, "", 1);
        struct http_header_span span = {.name = r->head.size, .value = 0};
        bytes_append(&r->spans, &span, sizeof span);
        r->in_value = false;
    }
    bytes_append(&r->head, s, n);
}

void http_request_add_value(struct http_request *r, const char *s, size_t n)
{
    if (!r->in_value) {
        bytes_append(&r->head, "", 1);
        r->in_value = true;
        if (!r->spans.failed && n_headers(r)) {
            size_t at = (n_headers(r) - 1) * sizeof(struct http_header_span);
            struct http_header_span span = span_at(r, n_headers(r) - 1);
            span.value = r->head.size;
            memcpy(r->spans.data + at, &span, sizeof span);
        }
    }
    bytes_append(&r->head, s, n);
}

const char *http_request_header(const struct http_request *r, const char *name)
{
    for (size_t i = 0; i < n_headers(r); i++) {
        struct http_header_span s = span_at(r, i);
        if (strcasecmp(r->head.data + s.name, name) == 0)
            return r->head.data + s.value;
    }
    return NULL;
}

uint32_t http_request_count_header(const struct http_request *r, const char *name)
{
    uint32_t n = 0;
    for (size_t i = 0; i < n_headers(r); i++)
        n += strcasecmp(r->head.data + span_at(r, i).name, name) == 0;
    return n;
}

/* RFC 9110 5.6.2: tchar */
static bool is_token(const char *s)
{
    if (!*s)
        return false;
    for (; *s; s++)
        if (!isalnum((unsigned char)*s) && !strchr("!#$%&'*+-.^_`|~", *s))
            return false;
    return true;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/* In place; false on a bad escape or an escaped NUL. */
static bool percent_decode(char *s)
{
    char *to = s;
    for (; *s; s++, to++) {
        if (*s != '%') {
            *to = *s;
            continue;
        }
        int high = hex_digit(s[1]);
        int low = high < 0 ? -1 : hex_digit(s[2]);
        if (low < 0 || (high == 0 && low == 0))
            return false;
        *to = (char)(high * 16 + low);
        s += 2;
    }
    *to = '\0';
    return true;
}

static enum err seal_path(struct http_request *r, struct err_info *ei)
{
    for (size_t i = 0; i < r->url.size; i++)
        if (r->url.data[i] < 0x21 || r->url.data[i] == 0x7f)
            return err_set(ei, ERR_PARSE, "the request target holds a byte that is not allowed");
    bytes_append_nul(&r->url);
    if (r->url.failed)
        return err_set(ei, ERR_NOMEM, "http: no memory");
    char *path = r->url.data;
    r->rest = "";
    if (*path != '/' && strcmp(path, "*") != 0) {
        struct http_parser_url u;
        http_parser_url_init(&u);
        /* the parser's offsets have 16 bits */
        if (r->url.size > UINT16_MAX || http_parser_parse_url(path, r->url.size, 0, &u) != 0)
            return err_set(ei, ERR_PARSE, "the request target is not a path");
        if (!(u.field_set & (1u << UF_PATH))) {
            r->path = "/";
            return OK;
        }
        path += u.field_data[UF_PATH].off;
    }
    size_t n = strcspn(path, "?#");
    if (path[n])
        path[n] = '\0';
    if (!percent_decode(path))
        return err_set(ei, ERR_PARSE, "the request target holds a bad percent escape");
    r->path = path;
    return OK;
}

void http_request_draw_id(struct http_request *r)
{
    unsigned char random[16];
    evutil_secure_rng_get_bytes(random, sizeof random);
    for (size_t i = 0; i < sizeof random; i++)
        (void)snprintf(r->id + 2 * i, 3, "%02x", random[i]);
}

static void seal_id(struct http_request *r)
{
    const char *given = http_request_header(r, "x-request-id");
    size_t n = given ? strlen(given) : 0;
    bool is_sane = n > 0 && n <= HTTP_REQUEST_ID_MAX;
    for (size_t i = 0; is_sane && i < n; i++)
        is_sane = given[i] >= 0x20 && given[i] < 0x7f;
    if (is_sane) {
        memcpy(r->id, given, n + 1);
        return;
    }
    http_request_draw_id(r);
}

/* RFC 9110 5.5: space around a value is no part of it. The parser skips what leads. */
static void trim_values(struct http_request *r)
{
    for (size_t i = 0; i < n_headers(r); i++) {
        char *value = r->head.data + span_at(r, i).value;
        size_t n = strlen(value);
        while (n > 0 && (value[n - 1] == ' ' || value[n - 1] == '\t'))
            value[--n] = '\0';
    }
}

enum err http_request_seal(struct http_request *r, struct err_info *ei)
{
    bytes_append(&r->head, "", 1);
    if (r->head.failed || r->spans.failed || r->url.failed)
        return err_set(ei, ERR_NOMEM, "http: no memory");
    trim_values(r);
    seal_id(r);
    for (size_t i = 0; i < n_headers(r); i++)
        if (!is_token(r->head.data + span_at(r, i).name))
            return err_set(ei, ERR_PARSE, "header %zu has a name that is not allowed", i + 1);
    return seal_path(r, ei);
}
