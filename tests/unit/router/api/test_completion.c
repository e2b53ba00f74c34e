/* router/api end to end over a loopback socket, with a dispatch that this program plays. Expected
 * shapes: OpenAI's API reference and the project's cases from the field 1, 2, 4, 6, 7, 11, 13. */
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

static bool is_ready(void *ctx)
{
    (void)ctx;
    return fakes.is_ready;
}

static bool is_draining(void *ctx)
{
    (void)ctx;
    return fakes.is_draining;
}

static void render_metrics(void *ctx, struct bytes *out)
{
    (void)ctx;
    bytes_append_str(out, "a_metric 1\n");
}

static char model_name[] = "m", host[] = "127.0.0.1";

static void start(void)
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

static void stop(void)
{
    close(t.fd);
    api_free(t.api);
    event_base_free(t.base);
    bytes_fini(&t.got);
    bytes_fini(&t.body);
}

TestSuite(completion, .init = start, .fini = stop, .timeout = 10);

static void turn(int ms)
{
    uint64_t end = clock_now_us() + (uint64_t)ms * 1000;
    do {
        event_base_loop(t.base, EVLOOP_NONBLOCK);
        usleep(300);
    } while (clock_now_us() < end);
}

static void post_with(const char *path, const char *headers, const char *body)
{
    struct bytes out = {0};
    bytes_printf(&out, "POST %s HTTP/1.1\r\n%sContent-Length: %zu\r\n\r\n%s", path, headers,
                 strlen(body), body);
    cr_assert_eq(send(t.fd, out.data, out.size, MSG_NOSIGNAL), (ssize_t)out.size);
    bytes_fini(&out);
    turn(10);
}

static void post(const char *path, const char *body)
{
    post_with(path, "", body);
}

/* Takes what has come, as status and body. */
static int hear(void)
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
static void emit(const uint32_t *ids, uint32_t n, enum finish_reason finish)
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

static void emit_text(const char *s, enum finish_reason finish)
{
    uint32_t ids[64], n = 0;
    for (; *s; s++)
        ids[n++] = (unsigned char)*s;
    emit(ids, n, finish);
}

static void admit(uint32_t n_cached)
{
    struct sequence_tokens s = {.id = fakes.last_id, .is_admission = true, .n_cached = n_cached};
    fakes.sink.on_tokens(fakes.sink.ctx, &s);
}

static const char *text_at(const json_t *v, const char *key)
{
    const char *s = json_string_value(json_object_get(v, key));
    return s ? s : "(none)";
}

static json_t *body_json(void)
{
    json_error_t je;
    json_t *v = json_loads(t.body.data, JSON_REJECT_DUPLICATES, &je);
    cr_assert(v, "%s in %s", je.text, t.body.data);
    return v;
}

#define CHAT "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

Test(completion, a_chat_is_rendered_sampled_and_answered_whole)
{
    post("/v1/chat/completions", CHAT ",\"temperature\":0.5,\"seed\":7}");
    cr_assert_eq(fakes.n_submitted, 1);
    cr_assert_eq(fakes.prompt[0], FAKE_TURN);
    cr_assert_eq(fakes.n_prompt, 9); /* <turn> u s e r : h i <turn> */
    cr_assert_eq(fakes.sampling.max_tokens, 91);
    cr_assert_eq(fakes.sampling.seed, 7);
    cr_assert_eq(fakes.sampling.n_stop_ids, 1);
    cr_assert_eq(fakes.pinned_worker, -1);
    cr_assert_eq(api_n_active(t.api), 1);
    admit(4);
    emit_text("yo", FINISH_NONE);
    emit((uint32_t[]){FAKE_EOS}, 1, FINISH_STOP);
    cr_assert_eq(hear(), 200);
    json_t *v = body_json();
    const json_t *choice = json_array_get(json_object_get(v, "choices"), 0);
    const json_t *message = json_object_get(choice, "message");
    cr_expect_str_eq(text_at(v, "object"), "chat.completion");
    cr_expect_str_eq(text_at(v, "model"), "m");
    cr_expect_str_eq(text_at(message, "role"), "assistant");
    cr_expect_str_eq(text_at(message, "content"), "yo");
    cr_expect_str_eq(text_at(choice, "finish_reason"), "stop");
    cr_expect(strstr(t.body.data,
                     "\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3,\"total_tokens\":12,"
                     "\"prompt_tokens_details\":{\"cached_tokens\":4}}"));
    cr_expect_eq(fakes.n_finished[0], 1);
    cr_expect_eq(fakes.n_first_token, 1);
    cr_expect_eq(fakes.n_inter_token, 2);
    cr_expect_eq(fakes.n_end_to_end, 1);
    cr_expect_str_eq(fakes.last_route, "/v1/chat/completions");
    json_decref(v);
}

Test(completion, control_text_in_a_message_stays_text)
{
    post("/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"<eos><turn>\"}],\"max_tokens\":1}");
    uint32_t n_control = 0;
    for (uint32_t i = 0; i < fakes.n_prompt; i++)
        n_control += fakes.prompt[i] >= FAKE_EOS;
    cr_assert_eq(n_control, 2);
    emit_text("a", FINISH_LENGTH);
    hear();
    post("/v1/completions", "{\"prompt\":\"<eos>a\"}");
    cr_assert_eq(fakes.n_prompt, 2);
    cr_assert_eq(fakes.prompt[0], FAKE_EOS);
}

/* The deltas' texts joined; counts events that are JSON with a choice. */
static char *joined(int *n_events, const char *key)
{
    struct bytes out = {0};
    char *events = strdup(t.body.data), *save = NULL;
    *n_events = 0;
    for (char *line = strtok_r(events, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        json_t *v = json_loads(line + 6, 0, NULL);
        if (!v)
            continue;
        const json_t *choice = json_array_get(json_object_get(v, "choices"), 0);
        const json_t *delta = json_object_get(choice, "delta");
        const char *s = json_string_value(json_object_get(delta ? delta : choice, key));
        bytes_append_str(&out, s ? s : "");
        *n_events += choice != NULL;
        json_decref(v);
    }
    free(events);
    bytes_append(&out, "", 1);
    return out.data;
}

Test(completion, a_chat_stream_has_role_deltas_end_usage_and_done)
{
    post("/v1/chat/completions",
         CHAT ",\"stream\":true,\"stream_options\":{\"include_usage\":true}}");
    admit(0);
    turn(5);
    cr_assert_eq(hear(), 0); /* no byte before there is text */
    emit_text("a", FINISH_NONE);
    emit_text("b", FINISH_LENGTH);
    cr_assert_eq(hear(), 200);
    cr_expect(strstr(t.got.data, "Content-Type: text/event-stream; charset=utf-8\r\n"));
    cr_expect(strstr(t.got.data, "Cache-Control: no-cache\r\n"));
    int n;
    char *text = joined(&n, "content");
    cr_expect_str_eq(text, "ab");
    cr_expect_eq(n, 4); /* role, a, b, end */
    free(text);
    static const char *const in_order[] = {
        "\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":"
        "null}],\"usage\":null}\n\n",
        "\"delta\":{\"content\":\"a\"}",
        "\"delta\":{\"content\":\"b\"}",
        "\"delta\":{},\"logprobs\":null,\"finish_reason\":\"length\"}],\"usage\":null}\n\n",
        "\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,",
        "data: [DONE]\n\n"};
    const char *p = t.body.data;
    for (size_t i = 0; i < sizeof in_order / sizeof *in_order; i++) {
        p = strstr(p, in_order[i]);
        cr_assert(p, "%s missing in %s", in_order[i], t.body.data);
    }
    cr_expect_eq(strlen(p), strlen("data: [DONE]\n\n"));
}

Test(completion, usage_is_in_a_stream_only_when_asked)
{
    static const char *const options[] = {"", ",\"stream_options\":{}", ",\"stream_options\":null",
                                          ",\"stream_options\":{\"include_usage\":false}"};
    for (size_t i = 0; i < 4; i++) {
        char body[200];
        snprintf(body, sizeof body, "{\"prompt\":\"a\",\"stream\":true%s}", options[i]);
        post("/v1/completions", body);
        emit_text("z", FINISH_LENGTH);
        cr_assert_eq(hear(), 200);
        cr_expect(!strstr(t.body.data, "usage"), "%s", t.body.data);
        cr_expect(strstr(t.body.data, "\"text\":\"z\""));
        cr_expect(strstr(t.body.data, "data: [DONE]\n\n"));
    }
}

Test(completion, a_stop_string_over_chunks_is_never_shown)
{
    post("/v1/completions", "{\"prompt\":\"a\",\"stream\":true,\"stop\":[\"STOP\"]}");
    emit_text("one S", FINISH_NONE);
    emit_text("T", FINISH_NONE);
    hear();
    cr_expect(strstr(t.body.data, "\"text\":\"one \""));
    cr_expect(!strstr(t.body.data, "\"text\":\"\""));
    emit_text("A ST", FINISH_NONE); /* the first was none: released in order */
    emit_text("OPxx", FINISH_NONE);
    cr_expect_eq(fakes.n_cancelled, 1);
    hear();
    int n;
    char *text = joined(&n, "text");
    cr_expect_str_eq(text, "STA ");
    cr_expect(strstr(t.body.data, "\"finish_reason\":\"stop\""));
    cr_expect_eq(fakes.n_finished[0], 1);
    free(text);
}

Test(completion, a_part_of_a_stop_string_is_released_at_the_end)
{
    post("/v1/completions", "{\"prompt\":\"a\",\"stop\":[\"seven\\nNEVER\"]}");
    emit_text("six seven\n", FINISH_NONE);
    emit_text("N", FINISH_LENGTH);
    cr_assert_eq(hear(), 200);
    cr_expect(strstr(t.body.data, "\"text\":\"six seven\\nN\""), "%s", t.body.data);
    cr_expect(strstr(t.body.data, "\"finish_reason\":\"length\""));
    cr_expect(strstr(t.body.data, "\"completion_tokens\":11"));
}

Test(completion, characters_split_over_tokens_arrive_whole)
{
    post("/v1/completions", "{\"prompt\":\"a\",\"stream\":true}");
    const char *s = "\xf0\x9f\xa7\xb5\xc3\xa9"; /* U+1F9F5 U+00E9, a byte a token */
    for (; *s; s++)
        emit((uint32_t[]){(unsigned char)*s}, 1, FINISH_NONE);
    emit((uint32_t[]){0xe2, 0x82}, 2, FINISH_LENGTH); /* an unfinished tail */
    cr_assert_eq(hear(), 200);
    int n;
    char *text = joined(&n, "text");
    cr_expect_str_eq(text, "\xf0\x9f\xa7\xb5\xc3\xa9\xef\xbf\xbd");
    cr_expect_eq(n, 4); /* two characters, the tail, the end */
    free(text);
}

Test(completion, chat_logprobs_go_with_their_text)
{
    post("/v1/chat/completions", CHAT ",\"stream\":true,\"logprobs\":true,\"top_logprobs\":2}");
    cr_assert_eq(fakes.sampling.n_logprobs, 2);
    emit((uint32_t[]){0xc3}, 1, FINISH_NONE);
    cr_assert_eq(hear(), 0);
    emit((uint32_t[]){0xa9}, 1, FINISH_NONE);
    emit((uint32_t[]){FAKE_EOS}, 1, FINISH_STOP);
    cr_assert_eq(hear(), 200);
    const char *chunk = strstr(t.body.data, "\"delta\":{\"content\":\"\xc3\xa9\"}");
    cr_assert(chunk);
    const char *entry =
        strstr(chunk, "{\"token\":\"bytes:\\\\xc3\",\"logprob\":-0.5,\"bytes\":[195],"
                      "\"top_logprobs\":[{\"token\":\"x\",\"logprob\":-1,\"bytes\":"
                      "[120]},{\"token\":\"y\",\"logprob\":-9999.0,\"bytes\":[121]}]"
                      "},{\"token\":\"bytes:\\\\xa9\"");
    cr_expect(entry && strchr(chunk, '\n') > entry, "%s", chunk);
    cr_expect(!strstr(t.body.data, "<eos>"));
}

Test(completion, legacy_logprobs_have_four_equal_columns)
{
    post("/v1/completions", "{\"prompt\":\"a\",\"logprobs\":2,\"stop\":\"!\"}");
    emit((uint32_t[]){FAKE_FAMILY, 'x', '!'}, 3, FINISH_NONE);
    cr_assert_eq(hear(), 200);
    cr_expect(strstr(t.body.data, "\"logprobs\":{\"tokens\":[\"\xf0\x9f\xa7\xb5\",\"x\"],"
                                  "\"token_logprobs\":[-0.5,-0.5],\"top_logprobs\":[{\"x\":-1,"
                                  "\"y\":-9999.0,\"\xf0\x9f\xa7\xb5\":-0.5},{\"x\":-1,\"y\":"
                                  "-9999.0}],\"text_offset\":[0,1]}"),
              "%s", t.body.data);
    cr_expect(strstr(t.body.data, "\"completion_tokens\":3"));
}

Test(completion, ignored_eos_is_output_like_any_token)
{
    post("/v1/completions", "{\"prompt\":\"a\",\"ignore_eos\":true}");
    cr_assert(fakes.sampling.ignore_eos);
    emit((uint32_t[]){'a', FAKE_EOS, 'b'}, 3, FINISH_LENGTH);
    hear();
    cr_expect(strstr(t.body.data, "\"text\":\"a<eos>b\""), "%s", t.body.data);
}

Test(completion, lengths_follow_the_window)
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

Test(completion, zero_tokens_ask_no_worker)
{
    post("/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":0}");
    cr_assert_eq(hear(), 200);
    cr_expect_eq(fakes.n_submitted, 0);
    cr_expect(strstr(t.body.data, "\"text\":\"\"") && strstr(t.body.data, "\"length\"") &&
              strstr(t.body.data, "\"completion_tokens\":0"));
}

Test(completion, an_empty_prompt_starts_the_document)
{
    post("/v1/completions", "{\"prompt\":\"\"}");
    cr_assert_eq(fakes.n_prompt, 1);
    cr_assert_eq(fakes.prompt[0], FAKE_EOS); /* this model has no BOS */
}

Test(completion, a_template_that_refuses_is_the_clients_fault)
{
    fakes.refuses = true;
    post("/v1/chat/completions", CHAT "}");
    cr_assert_eq(hear(), 400);
    cr_expect(strstr(t.body.data,
                     "{\"error\":{\"message\":\"roles must alternate\",\"type\":"
                     "\"invalid_request_error\",\"param\":\"messages\",\"code\":null}}"));
}

Test(completion, failures_before_the_first_byte_have_their_status)
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

Test(completion, a_refused_submit_has_its_status)
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

Test(completion, a_failure_amid_a_stream_is_an_event_and_no_success)
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

Test(completion, a_client_that_leaves_is_cancelled)
{
    post("/v1/completions", "{\"prompt\":\"a\"}");
    close(t.fd);
    turn(20);
    cr_assert_eq(fakes.n_cancelled, 1);
    cr_assert_eq(fakes.n_finished[2], 1);
    cr_assert_eq(api_n_active(t.api), 0);
    t.fd = -1;
}

Test(completion, freeing_the_api_cancels_what_is_open)
{
    post("/v1/completions", "{\"prompt\":\"a\",\"stream\":true}");
    emit_text("a", FINISH_NONE);
    api_free(t.api);
    t.api = NULL;
    cr_assert_eq(fakes.n_cancelled, 1);
}

Test(completion, missing_seeds_differ)
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

Test(completion, small_routes_answer)
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

Test(completion, tokenize_and_detokenize_in_vllms_shape)
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
