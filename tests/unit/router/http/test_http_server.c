/* router/http over real loopback sockets: the server's loop and the client take turns in one
 * thread. Expected statuses and framing are RFC 9110 and 9112's (sections named at the tests). */
#include "config/base/clock.h"
#include "router/http/http_server.h"

#include <criterion/criterion.h>
#include <event2/event.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct {
    struct event_base *base;
    struct http_server *server;
    struct http_request *held; /* what /hold left unanswered */
    int n_gone, n_calls, last_status;
    bool is_draining;
    struct bytes got; /* what the client has read */
} t;

static void echo(void *ctx, struct http_request *r)
{
    (void)ctx;
    t.n_calls++;
    struct http_answer a = {.status = 200,
                            .content_type = "text/plain",
                            .body = r->body.data,
                            .body_bytes = r->body.size};
    http_response_send(r, &a);
}

static void name(void *ctx, struct http_request *r)
{
    (void)ctx;
    http_response_send(
        r, &(struct http_answer){.status = 200, .body = r->rest, .body_bytes = strlen(r->rest)});
}

static void gone(void *ctx)
{
    (void)ctx;
    t.n_gone++;
    t.held = NULL;
}

static void hold(void *ctx, struct http_request *r)
{
    (void)ctx;
    t.n_calls++;
    t.held = r;
    r->on_gone = gone;
}

static const struct http_route routes[] = {
    {"/echo", NULL, HTTP_METHOD_POST | HTTP_METHOD_GET, false, echo},
    {"/json", NULL, HTTP_METHOD_POST, true, echo},
    {"/hold", NULL, HTTP_METHOD_GET | HTTP_METHOD_POST, false, hold},
    {"/name/*", "/name/{x}", HTTP_METHOD_GET, false, name},
};

static void error_body(void *ctx, int status, const char *text, struct bytes *out)
{
    (void)ctx;
    bytes_printf(out, "{\"status\":%d,\"text\":\"%s\"}", status, text);
}

static void on_answer(void *ctx, const struct http_route *route, int status)
{
    (void)ctx, (void)route;
    t.last_status = status;
}

static bool is_draining(void *ctx)
{
    (void)ctx;
    return t.is_draining;
}

static struct http_limits limits = {.max_body = 1000,
                                    .max_header = 512,
                                    .max_connections = 4,
                                    .idle_timeout_us = 400000,
                                    .read_timeout_us = 200000,
                                    .write_buffer = 64 * 1024};

static void start(void)
{
    memset(&t, 0, sizeof t);
    t.base = event_base_new();
    struct http_server_config cfg = {.base = t.base,
                                     .host = "127.0.0.1",
                                     .limits = limits,
                                     .routes = routes,
                                     .n_routes = sizeof routes / sizeof *routes,
                                     .error_body = error_body,
                                     .is_draining = is_draining,
                                     .on_answer = on_answer};
    struct err_info ei;
    cr_assert_eq(http_server_start(&cfg, &t.server, &ei), OK, "%s", ei.text);
}

static void stop(void)
{
    http_server_free(t.server);
    event_base_free(t.base);
    bytes_fini(&t.got);
}

TestSuite(http_server, .init = start, .fini = stop, .timeout = 10);

static int dial(void)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)http_server_port(t.server)),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    cr_assert_eq(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

/* Runs the loop for about ms. */
static void turn(int ms)
{
    uint64_t end = clock_now_us() + (uint64_t)ms * 1000;
    do {
        event_base_loop(t.base, EVLOOP_NONBLOCK);
        usleep(500);
    } while (clock_now_us() < end);
}

static void say(int fd, const char *s)
{
    cr_assert_eq(send(fd, s, strlen(s), MSG_NOSIGNAL), (ssize_t)strlen(s));
}

/* Reads until `until` has come, the peer closes, or ms are over. True: the peer closed. */
static bool hear(int fd, const char *until, int ms)
{
    uint64_t end = clock_now_us() + (uint64_t)ms * 1000;
    bytes_clear(&t.got);
    while (clock_now_us() < end) {
        char buf[4096];
        turn(1);
        ssize_t n = recv(fd, buf, sizeof buf, 0);
        if (n == 0 || (n < 0 && errno != EAGAIN))
            break;
        if (n > 0)
            bytes_append(&t.got, buf, (size_t)n);
        bytes_append_nul(&t.got);
        if (until && t.got.data && strstr(t.got.data, until))
            return false;
    }
    bytes_append_nul(&t.got);
    return clock_now_us() < end;
}

static int n_found(const char *needle)
{
    int n = 0;
    for (const char *p = t.got.data; p && (p = strstr(p, needle)); p++)
        n++;
    return n;
}

/* Sends one text; expects a status, and (is_closed) the end of the connection. */
static void expect(const char *request, const char *status, bool is_closed)
{
    int fd = dial();
    say(fd, request);
    bool was_closed = hear(fd, is_closed ? NULL : "\r\n\r\n", 1500);
    cr_assert(strncmp(t.got.data, "HTTP/1.1 ", 9) == 0 && strncmp(t.got.data + 9, status, 3) == 0,
              "%s -> %s, wanted %s", request, t.got.data, status);
    cr_assert_eq(was_closed, is_closed, "%s", request);
    close(fd);
    turn(5);
}

Test(http_server, answers_a_request_that_comes_byte_by_byte)
{
    int fd = dial();
    const char *s = "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";
    for (; *s; s++) {
        cr_assert_eq(send(fd, s, 1, MSG_NOSIGNAL), 1);
        turn(1);
    }
    hear(fd, "hello", 1000);
    cr_assert_eq(n_found("HTTP/1.1 200 OK\r\n"), 1);
    cr_assert_eq(n_found("Content-Length: 5\r\n"), 1);
    cr_assert_eq(n_found("\r\n\r\nhello"), 1);
    close(fd);
}

Test(http_server, keeps_the_connection_and_answers_pipelined_requests_in_order)
{
    int fd = dial();
    say(fd, "POST /echo HTTP/1.1\r\nContent-Length: 3\r\n\r\nonePOST /echo HTTP/1.1\r\n"
            "Transfer-Encoding: chunked\r\n\r\n2\r\ntw\r\n1\r\no\r\n0\r\n\r\n"
            "GET /name/x%20y%2Fz?q=1 HTTP/1.1\r\n\r\n");
    hear(fd, "x y/z", 1000);
    const char *one = strstr(t.got.data, "\r\n\r\none"), *two = strstr(t.got.data, "\r\n\r\ntwo");
    cr_assert(one && two && one < two);
    cr_assert_eq(n_found("HTTP/1.1 200"), 3);
    cr_assert_eq(n_found("Connection: close"), 0);
    close(fd);
}

Test(http_server, a_pipelined_request_waits_until_the_one_before_is_answered)
{
    int fd = dial();
    say(fd, "GET /hold HTTP/1.1\r\n\r\nGET /name/next HTTP/1.1\r\n\r\n");
    hear(fd, NULL, 50);
    cr_assert_eq(t.got.size, 0);
    http_response_send(t.held, &(struct http_answer){.status = 200, .body = "A", .body_bytes = 1});
    hear(fd, "next", 1000);
    cr_assert_eq(n_found("HTTP/1.1 200"), 2);
    close(fd);
}

Test(http_server, refuses_what_it_does_not_serve_with_a_json_body)
{
    expect("GET /nowhere HTTP/1.1\r\n\r\n", "404", false);
    cr_assert_eq(n_found("Content-Type: application/json\r\n"), 1);
    expect("DELETE /echo HTTP/1.1\r\nConnection: close\r\n\r\n", "405", true);
    cr_assert_eq(n_found("Allow: GET, HEAD, POST\r\n"), 1);
    cr_assert_eq(n_found("{\"status\":405"), 1);
    expect("POST /json HTTP/1.1\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}", "415",
           true);
    expect("POST /json HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", "415",
           true);
    expect("POST /json HTTP/1.1\r\nContent-Type: Application/JSON; charset=UTF-8\r\n"
           "Content-Length: 2\r\n\r\n{}",
           "200", false);
    expect("POST /json HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", "200", false);
}

/* RFC 9112 6.1, 6.3, 5.1, 2.3 */
Test(http_server, refuses_ambiguous_and_malformed_framing)
{
    const char *both = "POST /echo HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: "
                       "chunked\r\n\r\n0\r\n\r\n";
    expect(both, "400", true);
    expect("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n", "400",
           true);
    expect("POST /echo HTTP/1.1\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n", "400", true);
    expect("POST /echo HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "400", true);
    expect("POST /echo HTTP/1.1\r\nContent-Length: 0x5\r\n\r\n", "400", true);
    expect("POST /echo HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n", "400", true);
    expect("POST /echo HTTP/1.1\r\nContent-Length : 5\r\n\r\nhello", "400", true);
    expect("POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400", true);
    expect("POST /echo HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "501", true);
    expect("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "400", true);
    expect("GET /echo HTTP/2.0\r\n\r\n", "505", true);
    expect("GET /name/%00 HTTP/1.1\r\n\r\n", "400", true);
    expect("\x16\x03\x01\x02", "400", true);
    cr_assert_eq(t.n_calls, 0);
}

Test(http_server, refuses_what_is_too_large_before_reading_it)
{
    char text[2048] = "GET /";
    memset(text + 5, 'a', 600);
    expect(text, "414", true);
    strcpy(text, "GET /echo HTTP/1.1\r\nX: ");
    memset(text + strlen(text), 'b', 600);
    text[23 + 600] = '\0';
    expect(text, "431", true);
    expect("POST /echo HTTP/1.1\r\nContent-Length: 1001\r\n\r\n", "413", true);
    expect("POST /echo HTTP/1.1\r\nContent-Length: 10000000000\r\n\r\n", "413", true);
    strcpy(text, "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n");
    memset(text + strlen(text), 'c', 1001);
    text[57 + 1001] = '\0';
    expect(text, "413", true);
    cr_assert_eq(t.n_calls, 0);
}

Test(http_server, invites_a_body_that_asks_first)
{
    int fd = dial();
    say(fd, "POST /echo HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
    hear(fd, "100 Continue\r\n\r\n", 1000);
    cr_assert_eq(n_found("HTTP/1.1 100 Continue\r\n\r\n"), 1);
    say(fd, "ok");
    hear(fd, "\r\n\r\nok", 1000);
    cr_assert_eq(n_found("HTTP/1.1 200"), 1);
    close(fd);
    expect("POST /echo HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 5000\r\n\r\n", "413",
           true);
    expect("POST /echo HTTP/1.1\r\nExpect: tea\r\nContent-Length: 1\r\n\r\n", "417", true);
}

/* RFC 9110 9.3.2: as GET, without the body */
Test(http_server, answers_head_without_a_body)
{
    expect("HEAD /name/abc HTTP/1.1\r\nConnection: close\r\n\r\n", "200", true);
    cr_assert_eq(n_found("Content-Length: 3\r\n"), 1);
    cr_assert(t.got.size >= 4 && memcmp(t.got.data + t.got.size - 4, "\r\n\r\n", 4) == 0);
}

Test(http_server, closes_for_http_1_0_unless_asked_to_keep)
{
    expect("GET /name/abc HTTP/1.0\r\n\r\n", "200", true);
    expect("GET /name/abc HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "200", false);
    cr_assert_eq(n_found("Connection: keep-alive\r\n"), 1);
}

Test(http_server, says_close_while_draining)
{
    t.is_draining = true;
    expect("GET /name/abc HTTP/1.1\r\n\r\n", "200", true);
    cr_assert_eq(n_found("Connection: close\r\n"), 1);
}

Test(http_server, echoes_a_sane_request_id_and_draws_one_otherwise)
{
    expect("GET /name/a HTTP/1.1\r\nX-Request-Id: abc-1\r\n\r\n", "200", false);
    cr_assert_eq(n_found("x-request-id: abc-1\r\n"), 1);
    char text[400] = "GET /name/a HTTP/1.1\r\nX-Request-Id: ";
    memset(text + strlen(text), 'i', 129);
    strcat(text, "\r\n\r\n");
    expect(text, "200", false);
    cr_assert_eq(n_found("iiii"), 0);
    const char *id = strstr(t.got.data, "x-request-id: ");
    cr_assert(id && strspn(id + 14, "0123456789abcdef") == 32);
}

Test(http_server, a_request_has_an_absolute_deadline)
{
    int fd = dial();
    uint64_t start_us = clock_now_us();
    const char *s = "POST /echo HTTP/1.1\r\nContent-Length: 500\r\n\r\nslow slow slow slow slow";
    bool is_closed = false;
    for (size_t i = 0; i < strlen(s) && !is_closed; i++) { /* 60 bytes, one each 10 ms */
        (void)!send(fd, s + i, 1, MSG_NOSIGNAL);
        is_closed = hear(fd, "408", 10);
        if (n_found("HTTP/1.1 408"))
            break;
    }
    cr_assert_eq(n_found("HTTP/1.1 408"), 1);
    uint64_t took_us = clock_now_us() - start_us;
    cr_assert(took_us > 190000 && took_us < 600000, "%lu", (unsigned long)took_us);
    close(fd);
}

Test(http_server, an_idle_connection_is_closed_silently)
{
    int fd = dial();
    cr_assert(hear(fd, NULL, 2000));
    cr_assert_eq(t.got.size, 0);
    close(fd);
}

Test(http_server, connections_over_the_limit_hear_503)
{
    int fds[4];
    for (int i = 0; i < 4; i++)
        fds[i] = dial();
    turn(20);
    expect("GET /name/a HTTP/1.1\r\n\r\n", "503", true);
    cr_assert_eq(n_found("Retry-After: "), 1);
    close(fds[0]);
    turn(20);
    expect("GET /name/a HTTP/1.1\r\n\r\n", "200", false);
    for (int i = 1; i < 4; i++)
        close(fds[i]);
}

static void expect_gone(void)
{
    turn(20);
    cr_assert_eq(t.n_gone, 1);
    cr_assert_eq(t.last_status, 499);
    cr_assert_eq(http_server_n_active(t.server), 0);
    cr_assert_eq(http_server_n_connections(t.server), 0);
}

Test(http_server, notices_a_close_before_the_first_byte)
{
    int fd = dial();
    say(fd, "GET /hold HTTP/1.1\r\n\r\n");
    turn(10);
    cr_assert_eq(http_server_n_active(t.server), 1);
    close(fd);
    expect_gone();
}

Test(http_server, notices_a_reset_before_the_first_byte)
{
    int fd = dial();
    say(fd, "GET /hold HTTP/1.1\r\n\r\n");
    turn(10);
    struct linger hard = {.l_onoff = 1};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close(fd);
    expect_gone();
}

Test(http_server, a_half_closed_client_counts_as_gone)
{
    int fd = dial();
    say(fd, "GET /hold HTTP/1.1\r\n\r\n");
    turn(10);
    shutdown(fd, SHUT_WR);
    expect_gone();
    close(fd);
}

Test(http_server, a_synchronous_answer_still_reaches_a_half_closed_client)
{
    int fd = dial();
    say(fd, "GET /name/abc HTTP/1.1\r\n\r\n");
    shutdown(fd, SHUT_WR);
    hear(fd, "\r\n\r\nabc", 1000);
    cr_assert_eq(n_found("\r\n\r\nabc"), 1);
    close(fd);
}

Test(http_server, notices_a_close_behind_pipelined_bytes)
{
    int fd = dial();
    say(fd, "GET /hold HTTP/1.1\r\n\r\nGET /name/later HTTP/1.1\r\n\r\n");
    turn(10);
    close(fd);
    expect_gone();
}

Test(http_server, cuts_a_client_that_pipelines_without_end)
{
    int fd = dial();
    say(fd, "GET /hold HTTP/1.1\r\n\r\n");
    turn(10);
    char junk[2000]; /* more than max_header + max_body */
    memset(junk, 'j', sizeof junk);
    (void)!send(fd, junk, sizeof junk, MSG_NOSIGNAL);
    expect_gone();
    close(fd);
}

Test(http_server, streams_chunks_and_ends_them)
{
    int fd = dial();
    say(fd, "GET /hold HTTP/1.1\r\n\r\n");
    turn(10);
    http_response_begin(t.held, &(struct http_answer){.status = 200,
                                                      .content_type = "text/event-stream",
                                                      .body = "first",
                                                      .body_bytes = 5});
    http_response_write(t.held, "0123456789abcdef", 16);
    http_response_end(t.held);
    hear(fd, "0\r\n\r\n", 1000);
    cr_assert_eq(n_found("Transfer-Encoding: chunked\r\n"), 1);
    cr_assert_eq(n_found("Content-Length"), 0);
    cr_assert_eq(n_found("\r\n\r\n5\r\nfirst\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n"), 1);
    say(fd, "GET /name/again HTTP/1.1\r\n\r\n");
    hear(fd, "again", 1000);
    cr_assert_eq(n_found("again"), 1);
    close(fd);
}

Test(http_server, a_reader_that_lags_too_far_is_cut)
{
    int fd = dial();
    int small = 4096;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    say(fd, "GET /hold HTTP/1.1\r\n\r\n");
    turn(10);
    http_response_begin(t.held, &(struct http_answer){.status = 200});
    static char chunk[16 * 1024];
    int n = 0;
    for (; n < 2000 && t.n_gone == 0; n++) {
        http_response_write(t.held, chunk, sizeof chunk);
        event_base_loop(t.base, EVLOOP_NONBLOCK);
    }
    cr_assert_eq(t.n_gone, 1);
    cr_assert_gt(n, 4); /* the buffer's worth at least */
    cr_assert_eq(http_server_n_connections(t.server), 0);
    close(fd);
}

Test(http_server, an_aborted_stream_looks_broken)
{
    int fd = dial();
    say(fd, "GET /hold HTTP/1.1\r\n\r\n");
    turn(10);
    http_response_begin(t.held, &(struct http_answer){.status = 200, .body = "x", .body_bytes = 1});
    turn(5);
    http_response_abort(t.held);
    cr_assert(hear(fd, NULL, 1000));
    cr_assert_eq(n_found("0\r\n\r\n"), 0);
    cr_assert_eq(t.n_gone, 0);
    close(fd);
}

Test(http_server, freeing_tells_the_handlers)
{
    int fd = dial();
    say(fd, "GET /hold HTTP/1.1\r\n\r\n");
    turn(10);
    http_server_free(t.server);
    t.server = NULL;
    cr_assert_eq(t.n_gone, 1);
    close(fd);
}

Test(http_server, says_why_it_cannot_listen)
{
    struct http_server_config cfg = {.base = t.base,
                                     .host = "127.0.0.1",
                                     .port = http_server_port(t.server),
                                     .limits = limits,
                                     .error_body = error_body};
    struct http_server *second = NULL;
    struct err_info ei;
    cr_assert_eq(http_server_start(&cfg, &second, &ei), ERR_IO);
    cr_assert(strstr(ei.text, "127.0.0.1") && strstr(ei.text, "Address already in use"), "%s",
              ei.text);
}
