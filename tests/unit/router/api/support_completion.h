#pragma once

/* A client of the API and the world behind it, for tests of completions: see support_fakes. */
#include "config/base/clock.h"
#include "support_fakes.h"

#include <criterion/criterion.h>
#include <event2/event.h>
#include <jansson.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct {
    struct event_base *base;
    struct api *api;
    struct node_config config;
    int fd;
    struct bytes got, body; /* raw answer; its body without chunk framing */
} t;

static inline bool is_ready(void *ctx)
{
    (void)ctx;
    return fakes.is_ready;
}

static inline bool is_draining(void *ctx)
{
    (void)ctx;
    return fakes.is_draining;
}

static inline void render_metrics(void *ctx, struct bytes *out)
{
    (void)ctx;
    bytes_append_str(out, "a_metric 1\n");
}

static char model_name[] = "m", host[] = "127.0.0.1";

static inline void start(void)
{
    fakes_reset();
    memset(&t, 0, sizeof t);
    t.base = event_base_new();
    t.config = (struct node_config){.served_model_name = model_name, .host = host};
    t.config.http.max_body = 100000;
    t.config.http.max_header = 4096;
    t.config.http.max_connections = 8;
    t.config.http.idle_timeout_s = 5;
    t.config.http.read_timeout_s = 5;
    t.config.http.write_buffer = 100000;
    t.config.http.json_depth = 16;
    static int some_template;
    struct api_config cfg = {.base = t.base,
                             .config = &t.config,
                             .max_context = 100,
                             .chat_template = (struct chat_template *)&some_template,
                             .seed_base = 1,
                             .is_ready = is_ready,
                             .is_draining = is_draining,
                             .render_metrics = render_metrics};
    struct err_info ei;
    cr_assert_eq(api_start(&cfg, &t.api, &ei), OK, "%s", ei.text);
    t.fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)api_port(t.api)),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    cr_assert_eq(connect(t.fd, (struct sockaddr *)&a, sizeof a), 0);
    fcntl(t.fd, F_SETFL, O_NONBLOCK);
}

static inline void stop(void)
{
    close(t.fd);
    api_free(t.api);
    event_base_free(t.base);
    bytes_fini(&t.got);
    bytes_fini(&t.body);
}

static inline void turn(int ms)
{
    uint64_t end = clock_now_us() + (uint64_t)ms * 1000;
    do {
        event_base_loop(t.base, EVLOOP_NONBLOCK);
        usleep(300);
    } while (clock_now_us() < end);
}

static inline void post_with(const char *path, const char *headers, const char *body)
{
    struct bytes out = {0};
    bytes_printf(&out, "POST %s HTTP/1.1\r\n%sContent-Length: %zu\r\n\r\n%s", path, headers,
                 strlen(body), body);
    cr_assert_eq(send(t.fd, out.data, out.size, MSG_NOSIGNAL), (ssize_t)out.size);
    bytes_fini(&out);
    turn(10);
}

static inline void post(const char *path, const char *body)
{
    post_with(path, "", body);
}

/* Takes what has come, as status and body. */
static inline int hear(void)
{
    char buf[8192];
    ssize_t n;
    turn(10);
    bytes_clear(&t.got);
    bytes_clear(&t.body);
    while ((n = recv(t.fd, buf, sizeof buf, 0)) > 0)
        bytes_append(&t.got, buf, (size_t)n);
    bytes_append(&t.got, "", 1);
    const char *head = strstr(t.got.data, "HTTP/1.1 "), *p = strstr(t.got.data, "\r\n\r\n");
    const char *start_of = head == t.got.data && p ? p + 4 : t.got.data;
    bool is_chunked = head != t.got.data || strstr(t.got.data, "chunked");
    for (const char *s = start_of; is_chunked && *s;) { /* chunk framing */
        char *data;
        size_t size = strtoul(s, &data, 16);
        bytes_append(&t.body, data + 2, size);
        s = data + 2 + size + 2;
    }
    if (!is_chunked)
        bytes_append_str(&t.body, start_of);
    bytes_append(&t.body, "", 1);
    return head == t.got.data ? atoi(t.got.data + 9) : 0;
}

/* One TOKENS entry. Logprobs: -0.5 for the token, alternatives 'x' (-1) and 'y' (-inf). */
static inline void emit(const uint32_t *ids, uint32_t n, enum finish_reason finish)
{
    struct top_logprob top[2] = {{'x', -1}, {'y', -INFINITY}};
    struct emitted_token tokens[64];
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (struct emitted_token){.token = ids[i],
                                           .logprob = -0.5f,
                                           .n_top = fakes.sampling.n_logprobs > 0 ? 2 : 0,
                                           .top = top};
    struct sequence_tokens s = {
        .id = fakes.last_id, .n_tokens = n, .tokens = tokens, .finish = finish};
    fakes.sink.on_tokens(fakes.sink.ctx, &s);
}

static inline void emit_text(const char *s, enum finish_reason finish)
{
    uint32_t ids[64], n = 0;
    for (; *s; s++)
        ids[n++] = (unsigned char)*s;
    emit(ids, n, finish);
}

static inline void admit(uint32_t n_cached)
{
    struct sequence_tokens s = {.id = fakes.last_id, .is_admission = true, .n_cached = n_cached};
    fakes.sink.on_tokens(fakes.sink.ctx, &s);
}

static inline const char *text_at(const json_t *v, const char *key)
{
    const char *s = json_string_value(json_object_get(v, key));
    return s ? s : "(none)";
}

static inline json_t *body_json(void)
{
    json_error_t je;
    json_t *v = json_loads(t.body.data, JSON_REJECT_DUPLICATES, &je);
    cr_assert(v, "%s in %s", je.text, t.body.data);
    return v;
}

#define CHAT "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
