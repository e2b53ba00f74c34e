/* router/api/request: bodies in, a struct or a refusal that names the field out. The rows follow
 * the project's cases from the field (4, 5, 10, 11, 13) and OpenAI's API reference. */
#include "router/api/request.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TestSuite(request, .timeout = 5);

static const struct request_context context = {.model = "m", .vocab_size = 259, .json_depth = 8};

static int parse(enum request_kind kind, const char *body, struct request *r, struct api_error *e)
{
    memset(e, 0, sizeof *e);
    return request_parse(&context, kind, body, strlen(body), r, e) == OK ? 200 : e->status;
}

/* `fields` is put into an otherwise valid body. */
static int parse_fields(enum request_kind kind, const char *fields, struct request *r,
                        struct api_error *e)
{
    char body[1024];
    snprintf(body, sizeof body, "{%s%s%s}",
             kind == REQUEST_CHAT ? "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
                                  : "\"model\":\"m\"",
             *fields ? "," : "", fields);
    return parse(kind, body, r, e);
}

struct row {
    const char *fields;
    const char *param; /* NULL: accepted */
};

static void check_rows(enum request_kind kind, const struct row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct request r;
        struct api_error e;
        int status = parse_fields(kind, rows[i].fields, &r, &e);
        if (!rows[i].param) {
            cr_expect_eq(status, 200, "%s: %s", rows[i].fields, e.message);
            if (status == 200)
                request_fini(&r);
            continue;
        }
        cr_expect_eq(status, 400, "%s", rows[i].fields);
        cr_expect_str_eq(e.param, rows[i].param, "%s", rows[i].fields);
        cr_expect(e.message[0]);
        if (status == 200)
            request_fini(&r);
    }
}

#define CHECK(kind, rows) check_rows(kind, rows, sizeof rows / sizeof *rows)

Test(request, numbers_are_checked_by_type_and_range)
{
    static const struct row both[] = {
        {"\"max_tokens\":8", NULL},
        {"\"max_tokens\":1e3", NULL},
        {"\"max_tokens\":null", NULL},
        {"\"max_tokens\":9223372036854775807", NULL},
        {"\"max_tokens\":-1", "max_tokens"},
        {"\"max_tokens\":1.5", "max_tokens"},
        {"\"max_tokens\":\"8\"", "max_tokens"},
        {"\"max_tokens\":true", "max_tokens"},
        {"\"max_tokens\":9223372036854775808", "max_tokens"},
        {"\"max_tokens\":99999999999999999999999", "max_tokens"},
        {"\"temperature\":0", NULL},
        {"\"temperature\":2", NULL},
        {"\"temperature\":2.1", "temperature"},
        {"\"temperature\":-0.1", "temperature"},
        {"\"temperature\":\"hot\"", "temperature"},
        {"\"top_p\":1", NULL},
        {"\"top_p\":0", "top_p"},
        {"\"top_p\":1e-60", "top_p"},
        {"\"top_p\":1.01", "top_p"},
        {"\"top_k\":-1", NULL},
        {"\"top_k\":0", NULL},
        {"\"top_k\":-2", "top_k"},
        {"\"min_p\":1", NULL},
        {"\"min_p\":1.5", "min_p"},
        {"\"seed\":-9223372036854775808", NULL},
        {"\"seed\":\"1\"", "seed"},
        {"\"min_tokens\":-1", "min_tokens"},
        {"\"min_tokens\":9,\"max_tokens\":8", "min_tokens"},
        {"\"ignore_eos\":1", "ignore_eos"},
        {"\"user\":\"u\",\"metadata\":{\"a\":\"b\"}", NULL},
        {"\"user\":1", "user"},
        {"\"metadata\":[]", "metadata"},
    };
    CHECK(REQUEST_CHAT, both);
    CHECK(REQUEST_COMPLETION, both);
    static const struct row chat[] = {{"\"max_tokens\":0", "max_tokens"},
                                      {"\"logprobs\":true,\"top_logprobs\":20", NULL},
                                      {"\"logprobs\":true,\"top_logprobs\":21", "top_logprobs"},
                                      {"\"top_logprobs\":2", "top_logprobs"},
                                      {"\"logprobs\":2", "logprobs"}};
    CHECK(REQUEST_CHAT, chat);
    static const struct row completion[] = {{"\"max_tokens\":0", NULL},
                                            {"\"logprobs\":0", NULL},
                                            {"\"logprobs\":5", NULL},
                                            {"\"logprobs\":6", "logprobs"},
                                            {"\"logprobs\":true", "logprobs"}};
    CHECK(REQUEST_COMPLETION, completion);
}

Test(request, stops_and_stream_options_are_checked)
{
    static const struct row rows[] = {
        {"\"stop\":\"a\"", NULL},
        {"\"stop\":[]", NULL},
        {"\"stop\":null", NULL},
        {"\"stop\":[\"a\",\"b\",\"c\",\"d\"]", NULL},
        {"\"stop\":[\"a\",\"b\",\"c\",\"d\",\"e\"]", "stop"},
        {"\"stop\":\"\"", "stop"},
        {"\"stop\":[\"a\",\"\"]", "stop"},
        {"\"stop\":[1]", "stop"},
        {"\"stream\":true,\"stream_options\":{}", NULL},
        {"\"stream\":true,\"stream_options\":null", NULL},
        {"\"stream\":true,\"stream_options\":{\"include_usage\":true}", NULL},
        {"\"stream\":true,\"stream_options\":{\"include_usage\":1}", "stream_options"},
        {"\"stream_options\":{}", "stream_options"},
        {"\"stream\":false,\"stream_options\":{\"include_usage\":true}", "stream_options"},
        {"\"stream\":\"yes\"", "stream"},
    };
    CHECK(REQUEST_CHAT, rows);
    CHECK(REQUEST_COMPLETION, rows);
}

Test(request, what_is_not_served_is_refused_by_name_unless_neutral)
{
    static const struct row rows[] = {
        {"\"n\":1", NULL},
        {"\"n\":2", "n"},
        {"\"best_of\":1", NULL},
        {"\"best_of\":2", "best_of"},
        {"\"echo\":false", NULL},
        {"\"echo\":true", "echo"},
        {"\"suffix\":null", NULL},
        {"\"suffix\":\"x\"", "suffix"},
        {"\"logit_bias\":{}", NULL},
        {"\"logit_bias\":[]", "logit_bias"},
        {"\"logit_bias\":{\"5\":1}", "logit_bias"},
        {"\"frequency_penalty\":0,\"presence_penalty\":0.0", NULL},
        {"\"frequency_penalty\":0.5", "frequency_penalty"},
        {"\"presence_penalty\":-1", "presence_penalty"},
        {"\"repetition_penalty\":1.0", NULL},
        {"\"repetition_penalty\":1.1", "repetition_penalty"},
        {"\"tools\":[],\"tool_choice\":\"auto\"", NULL},
        {"\"tools\":null", NULL},
        {"\"tools\":[{}]", "tools"},
        {"\"tool_choice\":\"required\"", "tool_choice"},
        {"\"functions\":[{}]", "functions"},
        {"\"response_format\":{\"type\":\"text\"}", NULL},
        {"\"response_format\":{\"type\":\"json_object\"}", "response_format"},
        {"\"modalities\":[\"text\"]", NULL},
        {"\"modalities\":[\"text\",\"audio\"]", "modalities"},
        {"\"audio\":{}", "audio"},
        {"\"stop_token_ids\":[1]", "stop_token_ids"},
        {"\"cache_salt\":\"s\"", "cache_salt"},
        {"\"parallel_tool_calls\":true", NULL},
    };
    CHECK(REQUEST_CHAT, rows);
    CHECK(REQUEST_COMPLETION, rows);
}

Test(request, messages_are_checked_by_path)
{
    static const struct row rows[] = {
        {"[{\"role\":\"developer\",\"content\":\"a\"}]", NULL},
        {"[{\"role\":\"user\",\"content\":\"\"},{\"role\":\"assistant\",\"content\":\"\"}]", NULL},
        {"[{\"role\":\"user\",\"content\":[]}]", NULL},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}],\"name\":\"n\"}]",
         NULL},
        {"[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c\",\"type\":"
         "\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},{\"role\":\"tool\","
         "\"tool_call_id\":\"c\",\"content\":\"r\"}]",
         NULL},
        {"[]", "messages"},
        {"{}", "messages"},
        {"null", "messages"},
        {"[1]", "messages[0]"},
        {"[{\"content\":\"a\"}]", "messages[0].role"},
        {"[{\"role\":\"wizard\",\"content\":\"a\"}]", "messages[0].role"},
        {"[{\"role\":\"user\"}]", "messages[0].content"},
        {"[{\"role\":\"user\",\"content\":null}]", "messages[0].content"},
        {"[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":5}]",
         "messages[1].content"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}}]}]",
         "messages[0].content[0].type"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", "messages[0].content[0].text"},
        {"[{\"role\":\"user\",\"content\":[7]}]", "messages[0].content[0]"},
        {"[{\"role\":\"user\",\"content\":\"a\",\"name\":3}]", "messages[0].name"},
        {"[{\"role\":\"assistant\",\"content\":\"a\",\"tool_calls\":[{}]}]",
         "messages[0].tool_calls[0].function"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[512];
        struct request r;
        struct api_error e;
        snprintf(body, sizeof body, "{\"messages\":%s}", rows[i].fields);
        int status = parse(REQUEST_CHAT, body, &r, &e);
        cr_expect_eq(status, rows[i].param ? 400 : 200, "%s: %s", body, e.message);
        cr_expect_str_eq(e.param, rows[i].param ? rows[i].param : "", "%s", body);
        if (status == 200)
            request_fini(&r);
    }
}

Test(request, prompts_come_as_text_or_ids)
{
    static const struct row rows[] = {
        {"\"\"", NULL},
        {"[\"\"]", NULL},
        {"[1,2,258]", NULL},
        {"[[1,2]]", NULL},
        {"null", NULL},
        {"[]", "prompt"},
        {"[[]]", "prompt"},
        {"[\"a\",\"\"]", "prompt"},
        {"[[1],[2]]", "prompt"},
        {"[259]", "prompt"},
        {"[-1]", "prompt"},
        {"[1.5]", "prompt"},
        {"[true]", "prompt"},
        {"5", "prompt"},
        {"{}", "prompt"},
        {"[1,\"a\"]", "prompt"},
        {"[18446744073709551616]", "prompt"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[128];
        struct request r;
        struct api_error e;
        snprintf(body, sizeof body, "{\"prompt\":%s}", rows[i].fields);
        int status = parse(REQUEST_COMPLETION, body, &r, &e);
        cr_expect_eq(status, rows[i].param ? 400 : 200, "%s: %s", body, e.message);
        cr_expect_str_eq(e.param, rows[i].param ? rows[i].param : "", "%s", body);
        if (status == 200)
            request_fini(&r);
    }
}

Test(request, bodies_that_are_no_json_object_are_refused)
{
    static const char *const bodies[] = {
        "",
        "{",
        "{\"a\":1,}",
        "[]",
        "null",
        "\"x\"",
        "{\"model\":\"m\",\"model\":\"m\"}",
        "{\"temperature\":NaN}",
        "{\"prompt\":\"\\ud800\"}",
        "{\"prompt\":\"\xff\"}",
        "{\"prompt\":\"\xed\xa0\x80\"}",
        "{\"a\":[[[[[[[[1]]]]]]]]}",
        "{\"prompt\":\"a\"} x",
        "{\"temperature\":1e999}",
    };
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        struct request r;
        struct api_error e;
        cr_expect_eq(parse(REQUEST_COMPLETION, bodies[i], &r, &e), 400, "%s", bodies[i]);
        cr_expect(e.message[0]);
    }
}

Test(request, brackets_inside_strings_are_not_depth)
{
    struct request r;
    struct api_error e;
    const char *body = "{\"prompt\":\"[[[[[[[[[[[[\\\"[[[[{{{{{{\"}";
    cr_assert_eq(parse(REQUEST_COMPLETION, body, &r, &e), 200, "%s", e.message);
    cr_assert_eq(r.text_bytes, strlen("[[[[[[[[[[[[\"[[[[{{{{{{"));
    request_fini(&r);
}

Test(request, many_containers_are_refused_before_parsing)
{
    size_t n = 70000;
    char *body = malloc(3 * n + 64), *p = body;
    p += sprintf(p, "{\"x\":[");
    for (size_t i = 0; i < n; i++)
        p += sprintf(p, "%s[]", i ? "," : "");
    strcpy(p, "]}");
    struct request r;
    struct api_error e;
    cr_assert_eq(parse(REQUEST_COMPLETION, body, &r, &e), 400);
    free(body);
}

Test(request, nul_is_a_character_like_any_other)
{
    struct request r;
    struct api_error e;
    cr_assert_eq(
        parse(REQUEST_COMPLETION, "{\"prompt\":\"a\\u0000b\",\"stop\":\"\\u0000\"}", &r, &e), 200,
        "%s", e.message);
    cr_assert_eq(r.text_bytes, 3);
    cr_assert_arr_eq(r.text, "a\0b", 3);
    cr_assert_eq(r.stop_bytes[0], 1);
    request_fini(&r);
}

Test(request, the_model_must_be_the_served_one)
{
    struct request r;
    struct api_error e;
    cr_assert_eq(parse(REQUEST_COMPLETION, "{\"model\":\"other\"}", &r, &e), 404);
    cr_assert_str_eq(e.code, "model_not_found");
    cr_assert_str_eq(e.param, "model");
    cr_assert_eq(parse(REQUEST_COMPLETION, "{\"model\":\"m\\u0000\"}", &r, &e), 404);
    cr_assert_eq(parse(REQUEST_COMPLETION, "{\"model\":1}", &r, &e), 400);
    cr_assert_eq(parse(REQUEST_COMPLETION, "{\"model\":\"\"}", &r, &e), 200);
    request_fini(&r);
}

Test(request, values_arrive_as_given)
{
    struct request r;
    struct api_error e;
    cr_assert_eq(parse_fields(REQUEST_COMPLETION,
                              "\"max_tokens\":8,\"max_completion_tokens\":4,\"temperature\":0.5,"
                              "\"top_k\":7,\"seed\":-3,\"logprobs\":2,\"stop\":[\"x\",\"yz\"],"
                              "\"stream\":true,\"stream_options\":{\"include_usage\":true},"
                              "\"wishes\":1,\"more\":2",
                              &r, &e),
                 200, "%s", e.message);
    cr_assert(r.has_max_tokens && r.max_tokens == 4);
    cr_assert_float_eq(r.temperature, 0.5, 0);
    cr_assert_float_eq(r.top_p, 1, 0);
    cr_assert_eq(r.top_k, 7);
    cr_assert(r.has_seed && r.seed == -3);
    cr_assert_eq(r.n_logprobs, 2);
    cr_assert_eq(r.n_stop, 2);
    cr_assert_str_eq(r.stop[1], "yz");
    cr_assert(r.is_stream && r.include_usage);
    cr_assert_eq(r.n_unknown_fields, 2);
    request_fini(&r);
}
