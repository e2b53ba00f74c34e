/* router/api end to end over a loopback socket, with a dispatch that this program plays. Expected
 * shapes: OpenAI's API reference and the project's cases from the field 1, 2, 4, 6, 7, 11, 13. */
#include "tests/unit/router/api/support_completion.h"

TestSuite(completion_ends, .init = start, .fini = stop, .timeout = 10);

Test(completion_ends, lengths_follow_the_window)
{
    char body[600];
    post("/v1/completions", "{\"prompt\":[1,2,3]}");
    cr_expect_eq(fakes.sampling.max_tokens, 16);
    emit_text("a", FINISH_LENGTH);
    hear();
    struct bytes ids = {0};
    for (int i = 0; i < 99; i++)
        bytes_append_str(&ids, i ? ",1" : "1");
    bytes_append_nul(&ids);
    snprintf(body, sizeof body, "{\"prompt\":[%s]}", ids.data); /* the window less one */
    post("/v1/completions", body);
    cr_expect_eq(fakes.sampling.max_tokens, 1);
    emit_text("a", FINISH_LENGTH);
    cr_expect_eq(hear(), 200);
    snprintf(body, sizeof body, "{\"prompt\":[%s,1]}", ids.data); /* the window */
    post("/v1/completions", body);
    cr_expect_eq(hear(), 400);
    cr_expect(strstr(t.body.data, "\"code\":\"context_length_exceeded\""));
    cr_expect(strstr(t.body.data, "100 tokens"));
    post("/v1/completions", "{\"prompt\":[1,2,3],\"max_tokens\":98}");
    cr_expect_eq(hear(), 400);
    cr_expect(strstr(t.body.data, "\"param\":\"max_tokens\"") && strstr(t.body.data, "98") &&
              strstr(t.body.data, " 100 "));
    cr_expect_eq(fakes.n_submitted, 2);
    bytes_fini(&ids);
}

Test(completion_ends, zero_tokens_ask_no_worker)
{
    post("/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":0}");
    cr_assert_eq(hear(), 200);
    cr_expect_eq(fakes.n_submitted, 0);
    cr_expect(strstr(t.body.data, "\"text\":\"\"") && strstr(t.body.data, "\"length\"") &&
              strstr(t.body.data, "\"completion_tokens\":0"));
}

Test(completion_ends, an_empty_prompt_starts_the_document)
{
    post("/v1/completions", "{\"prompt\":\"\"}");
    cr_assert_eq(fakes.n_prompt, 1);
    cr_assert_eq(fakes.prompt[0], FAKE_EOS); /* this model has no BOS */
}

Test(completion_ends, a_template_that_refuses_is_the_clients_fault)
{
    fakes.refuses = true;
    post("/v1/chat/completions", CHAT "}");
    cr_assert_eq(hear(), 400);
    cr_expect(strstr(t.body.data,
                     "{\"error\":{\"message\":\"roles must alternate\",\"type\":"
                     "\"invalid_request_error\",\"param\":\"messages\",\"code\":null}}"));
}

Test(completion_ends, failures_before_the_first_byte_have_their_status)
{
    static const struct {
        enum dispatch_failure why;
        enum err code;
        int status;
        bool is_retryable;
    } rows[] = {{DISPATCH_WORKER_LOST, ERR_GONE, 500, false},
                {DISPATCH_UNAVAILABLE, ERR_GONE, 503, true},
                {DISPATCH_OVERLOADED, ERR_BUSY, 429, true},
                {DISPATCH_REJECTED, ERR_LIMIT, 400, false},
                {DISPATCH_REJECTED, ERR_DEVICE, 500, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        post("/v1/completions", "{\"prompt\":\"a\",\"stream\":true}");
        fakes.sink.on_failed(fakes.sink.ctx, rows[i].why, rows[i].code, "it broke");
        cr_expect_eq(hear(), rows[i].status, "row %zu", i);
        cr_expect_eq(strstr(t.got.data, "Retry-After: ") != NULL, rows[i].is_retryable);
        cr_expect(strstr(t.body.data, "it broke"));
    }
    cr_expect_eq(fakes.n_finished[3], 5);
}

Test(completion_ends, a_refused_submit_has_its_status)
{
    static const struct {
        enum err rc;
        int status;
    } rows[] = {{ERR_GONE, 503}, {ERR_BUSY, 429}, {ERR_LIMIT, 400}, {ERR_NOMEM, 503}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fakes.submit_result = rows[i].rc;
        post_with("/v1/completions", "x-data-parallel-rank: 3\r\n", "{\"prompt\":\"a\"}");
        cr_expect_eq(fakes.pinned_worker, 3);
        cr_expect_eq(hear(), rows[i].status, "row %zu", i);
    }
    post_with("/v1/completions", "x-data-parallel-rank: one\r\n", "{\"prompt\":\"a\"}");
    cr_expect_eq(hear(), 400);
    cr_expect(strstr(t.body.data, "\"param\":\"x-data-parallel-rank\""));
}

Test(completion_ends, a_failure_amid_a_stream_is_an_event_and_no_success)
{
    post("/v1/chat/completions", CHAT ",\"stream\":true}");
    emit_text("ab", FINISH_NONE);
    fakes.sink.on_failed(fakes.sink.ctx, DISPATCH_WORKER_LOST, ERR_GONE, "worker died");
    cr_assert_eq(hear(), 200);
    cr_expect(strstr(t.body.data, "data: {\"error\":{\"message\":\"worker died\""));
    cr_expect(!strstr(t.body.data, "[DONE]"));
    cr_expect(!strstr(t.body.data, "\"finish_reason\":\"")); /* only null ones */
    cr_expect_eq(api_n_active(t.api), 0);
}

Test(completion_ends, a_client_that_leaves_is_cancelled)
{
    post("/v1/completions", "{\"prompt\":\"a\"}");
    close(t.fd);
    turn(20);
    cr_assert_eq(fakes.n_cancelled, 1);
    cr_assert_eq(fakes.n_finished[2], 1);
    cr_assert_eq(api_n_active(t.api), 0);
    t.fd = -1;
}

Test(completion_ends, freeing_the_api_cancels_what_is_open)
{
    post("/v1/completions", "{\"prompt\":\"a\",\"stream\":true}");
    emit_text("a", FINISH_NONE);
    api_free(t.api);
    t.api = NULL;
    cr_assert_eq(fakes.n_cancelled, 1);
}

Test(completion_ends, missing_seeds_differ)
{
    post("/v1/completions", "{\"prompt\":\"a\"}");
    uint64_t first = fakes.sampling.seed;
    emit_text("a", FINISH_LENGTH);
    hear();
    post("/v1/completions", "{\"prompt\":\"a\"}");
    cr_assert_neq(fakes.sampling.seed, first);
}

static int get(const char *path)
{
    struct bytes out = {0};
    bytes_printf(&out, "GET %s HTTP/1.1\r\n\r\n", path);
    cr_assert_eq(send(t.fd, out.data, out.size, MSG_NOSIGNAL), (ssize_t)out.size);
    bytes_fini(&out);
    turn(10);
    return hear();
}

Test(completion_ends, small_routes_answer)
{
    cr_expect_eq(get("/v1/models"), 200);
    cr_expect(strstr(t.body.data, "\"object\":\"list\",\"data\":[{\"id\":\"m\""));
    cr_expect_eq(get("/v1/models/m"), 200);
    cr_expect_eq(get("/v1/models/other"), 404);
    cr_expect(strstr(t.body.data, "\"model_not_found\""));
    cr_expect_str_eq(fakes.last_route, "/v1/models/{id}");
    cr_expect_eq(get("/metrics"), 200);
    cr_expect_str_eq(t.body.data, "a_metric 1\n");
    cr_expect(strstr(t.got.data, "Content-Type: text/plain; version=0.0.4"));
    cr_expect_eq(get("/readyz"), 200);
    fakes.is_ready = false;
    cr_expect_eq(get("/livez"), 200);
    cr_expect_eq(get("/readyz"), 503);
    cr_expect(strstr(t.got.data, "Retry-After: "));
    cr_expect_eq(get("/health"), 503);
    cr_expect_eq(get("/nothing"), 404);
    cr_expect(
        strstr(t.body.data, "\"type\":\"invalid_request_error\",\"param\":null,\"code\":null"));
    cr_expect_str_eq(fakes.last_route, "other");
}

Test(completion_ends, tokenize_and_detokenize_in_vllms_shape)
{
    post("/tokenize", "{\"model\":\"m\",\"prompt\":\"a<eos>\"}");
    cr_expect_eq(hear(), 200);
    cr_expect_str_eq(t.body.data, "{\"count\":2,\"max_model_len\":100,\"tokens\":[97,256],"
                                  "\"token_strs\":null}");
    post("/tokenize", "{\"prompt\":\"<e\",\"parse_special\":false,\"return_token_strs\":true}");
    hear();
    cr_expect_str_eq(t.body.data, "{\"count\":2,\"max_model_len\":100,\"tokens\":[60,101],"
                                  "\"token_strs\":[\"<\",\"e\"]}");
    post("/tokenize", CHAT ",\"add_generation_prompt\":false}");
    hear();
    cr_expect(strstr(t.body.data, "\"count\":8,"));
    post("/tokenize", "{\"prompt\":1}");
    cr_expect_eq(hear(), 400);
    post("/detokenize", "{\"tokens\":[97,256,195,169]}");
    cr_expect_eq(hear(), 200);
    cr_expect_str_eq(t.body.data, "{\"prompt\":\"a<eos>\xc3\xa9\"}");
    post("/detokenize", "{\"tokens\":[259]}");
    cr_expect_eq(hear(), 400);
    cr_expect(strstr(t.body.data, "\"param\":\"tokens\""));
}
