/* router/api end to end over a loopback socket, with a dispatch that this program plays. Expected
 * shapes: OpenAI's API reference and the project's cases from the field 1, 2, 4, 6, 7, 11, 13. */
#include "tests/unit/router/api/support_completion.h"

TestSuite(completion, .init = start, .fini = stop, .timeout = 10);

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
