/* router/http over real loopback sockets: the server's loop and the client take turns in one
 * thread. Expected statuses and framing are RFC 9110 and 9112's (sections named at the tests). */
#include "tests/unit/router/http/support_http.h"

TestSuite(http_limits, .init = start, .fini = stop, .timeout = 10);

Test(http_limits, a_request_has_an_absolute_deadline)
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

Test(http_limits, an_idle_connection_is_closed_silently)
{
    int fd = dial();
    cr_assert(hear(fd, NULL, 2000));
    cr_assert_eq(t.got.size, 0);
    close(fd);
}

Test(http_limits, connections_over_the_limit_hear_503)
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

Test(http_limits, notices_a_close_before_the_first_byte)
{
    int fd = dial();
    say(fd, "GET /hold HTTP/1.1\r\n\r\n");
    turn(10);
    cr_assert_eq(http_server_n_active(t.server), 1);
    close(fd);
    expect_gone();
}

Test(http_limits, notices_a_reset_before_the_first_byte)
{
    int fd = dial();
    say(fd, "GET /hold HTTP/1.1\r\n\r\n");
    turn(10);
    struct linger hard = {.l_onoff = 1};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close(fd);
    expect_gone();
}

Test(http_limits, a_half_closed_client_counts_as_gone)
{
    int fd = dial();
    say(fd, "GET /hold HTTP/1.1\r\n\r\n");
    turn(10);
    shutdown(fd, SHUT_WR);
    expect_gone();
    close(fd);
}

Test(http_limits, a_synchronous_answer_still_reaches_a_half_closed_client)
{
    int fd = dial();
    say(fd, "GET /name/abc HTTP/1.1\r\n\r\n");
    shutdown(fd, SHUT_WR);
    hear(fd, "\r\n\r\nabc", 1000);
    cr_assert_eq(n_found("\r\n\r\nabc"), 1);
    close(fd);
}

Test(http_limits, notices_a_close_behind_pipelined_bytes)
{
    int fd = dial();
    say(fd, "GET /hold HTTP/1.1\r\n\r\nGET /name/later HTTP/1.1\r\n\r\n");
    turn(10);
    close(fd);
    expect_gone();
}

Test(http_limits, cuts_a_client_that_pipelines_without_end)
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

Test(http_limits, streams_chunks_and_ends_them)
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

Test(http_limits, a_reader_that_lags_too_far_is_cut)
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

Test(http_limits, an_aborted_stream_looks_broken)
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

Test(http_limits, freeing_tells_the_handlers)
{
    int fd = dial();
    say(fd, "GET /hold HTTP/1.1\r\n\r\n");
    turn(10);
    http_server_free(t.server);
    t.server = NULL;
    cr_assert_eq(t.n_gone, 1);
    close(fd);
}

Test(http_limits, says_why_it_cannot_listen)
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
