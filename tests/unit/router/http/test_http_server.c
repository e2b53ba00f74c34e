/* router/http over real loopback sockets: the server's loop and the client take turns in one
 * thread. Expected statuses and framing are RFC 9110 and 9112's (sections named at the tests). */
#include "tests/unit/router/http/support_http.h"

TestSuite(http_server, .init = start, .fini = stop, .timeout = 10);

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
