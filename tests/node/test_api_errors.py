"""What clients get wrong is told to them in OpenAI's error object, and the node serves on (case 13). JSON faults by
RFC 8259, media types by RFC 9110 section 15.5.16, HTTP framing by RFC 9112."""
import json
import socket

import openai
import pytest
from conftest import PATIENCE, wait_until
from support_api import ask, client_of, error_of, exchange, refused

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
HI = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
JSON_TYPE = {"Content-Type": "application/json"}


@pytest.fixture(autouse=True)
def serves_on(shared_node):
    """After each of these tests the node is idle, and the next request is served."""
    yield
    wait_until(shared_node.idle)
    assert ask(shared_node, CHAT, HI)["usage"]["completion_tokens"] == 1


# --- bodies


NO_OBJECTS = [
    b"", b"{", b"}", b'{"a":1,}', b"[]", b"null", b'"x"', b"5", b"true", b"{}x", b"{} {}", b"{'a':1}", b'{"a":01}',
    b'{"a":+1}', b'{"a":.5}', b'{"a":NaN}', b'{"a":Infinity}', b'{"a":"\n"}', b'{"a":"\\x41"}',
    b'{"a":"\\ud800"}',
    b'{"a":"\xff"}', b'{"a":"\xc3\x28"}', b'{"a":"\xed\xa0\x80"}', b'\xef\xbb\xbf{}', b"\xff\xfe{\x00}\x00", b"// x\n{}",
    b'{"a":' + b"[" * 100 + b"]" * 100 + b"}", b"[" * 100000, b'{"a":' * 50000, b'{"a":"\x00"}', b"\x00"]


@pytest.mark.parametrize("path", [CHAT, COMPLETION, "/tokenize", "/detokenize"])
def test_bodies_that_are_no_object_are_refused(shared_node, path):
    for body in NO_OBJECTS:
        assert refused(shared_node, path, body)["type"] == "invalid_request_error", body[:80]


def test_a_key_given_twice_is_refused(shared_node):
    body = b'{"model":"%s","model":"x","prompt":"a"}' % shared_node.model.encode()
    assert "duplicate" in refused(shared_node, COMPLETION, body)["message"]


def test_nan_as_a_number_is_refused(shared_node):
    body = b'{"prompt":"a","temperature":NaN}'
    assert refused(shared_node, COMPLETION, body)["type"] == "invalid_request_error"


def test_deep_and_wide_bodies_are_refused_by_limit(shared_node):
    """64 levels by default (http.json_depth); 65536 containers and 1048576 values."""
    for path, body, limit in ((COMPLETION, b'{"a":' + b"[" * 64 + b"]" * 64 + b"}", "64"),
                              (COMPLETION, b'{"prompt":[' + b"[]," * 70000 + b"[]]}", "65536"),
                              ("/detokenize", b'{"tokens":[' + b"1," * 1100000 + b"1]}", "1048576")):
        assert limit in refused(shared_node, path, body)["message"]
    ask(shared_node, COMPLETION, {"prompt": "x", "max_tokens": 1, "unknown": json.loads("[" * 63 + "]" * 63)})


def test_a_body_beyond_the_limit_is_413(shared_node):
    error = refused(shared_node, COMPLETION, b'{"prompt":"' + b"x" * (8 << 20) + b'"}', status=413)
    assert error["type"] == "invalid_request_error"


def test_unknown_fields_are_ignored(shared_node):
    assert ask(shared_node, CHAT, {**HI, "nobody_knows_this": [1, 2], "extra_body": None})["usage"]


def test_nul_and_controls_are_text(shared_node):
    text = "a\x00b\x01\x7f\u2028\ufeff"
    ids = ask(shared_node, "/tokenize", {"prompt": text})["tokens"]
    assert ask(shared_node, "/detokenize", {"tokens": ids})["prompt"] == text
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 1}
    assert ask(shared_node, CHAT, body)["usage"]["completion_tokens"] == 1


# --- media types


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data",
                                          "application/jsonx", "application/octet-stream", "json", ""])
def test_another_media_type_is_415(shared_node, content_type):
    error = refused(shared_node, CHAT, HI, 415, {"Content-Type": content_type})
    assert error["type"] == "invalid_request_error" and "application/json" in error["message"]


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "application/json; charset=utf-8"},
                                     {"Content-Type": "Application/JSON"}, {"content-type": "application/json;"}])
def test_json_by_any_of_its_names_or_none_is_served(shared_node, headers):
    status, _, data = exchange(shared_node, CHAT, HI, headers)
    assert status == 200, data


# --- options that are not served


NOT_SERVED = {
    "n": 2, "logit_bias": {"5": 5}, "presence_penalty": 0.5, "frequency_penalty": -0.5, "best_of": 2, "echo": True,
    "suffix": "x", "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required",
    "response_format": {"type": "json_object"}, "modalities": ["audio"], "audio": {"voice": "x"},
    "reasoning_effort": "high", "repetition_penalty": 1.1, "stop_token_ids": [5], "bad_words": ["x"],
    "guided_regex": ".*", "logits_processors": ["x"], "priority": 1, "cache_salt": "x", "chat_template": "x",
    "use_beam_search": True, "prompt_logprobs": 1, "continue_final_message": True, "add_generation_prompt": False,
}


@pytest.mark.parametrize("field", NOT_SERVED)
def test_an_option_that_is_not_served_is_refused_by_name(shared_node, field):
    for path, body in ((CHAT, HI), (COMPLETION, {"prompt": "x", "max_tokens": 1})):
        error = refused(shared_node, path, {**body, field: NOT_SERVED[field]})
        assert error["param"] == field and error["code"] == "unsupported_parameter" and field in error["message"]


@pytest.mark.parametrize("bias", [{"999999": 5}, {"-1": 5}, {"AI": 5}, {"5.0": 5}, {" 5": 5}, {"5": 101}, {"5": "x"},
                                  [], [5], "x", 5])
def test_no_logit_bias_gets_through(shared_node, bias):
    assert refused(shared_node, CHAT, {**HI, "logit_bias": bias})["param"] == "logit_bias"


def test_options_at_the_value_that_changes_nothing_are_served(shared_node):
    neutral = {"n": 1, "logit_bias": {}, "presence_penalty": 0, "frequency_penalty": 0.0, "tools": [],
               "tool_choice": "none", "response_format": {"type": "text"}, "echo": None, "parallel_tool_calls": True,
               "user": "me", "metadata": {"a": "b"}, "service_tier": "auto", "store": False}
    plain = ask(shared_node, CHAT, {**HI, "temperature": 0})["choices"]
    assert ask(shared_node, CHAT, {**HI, "temperature": 0, **neutral})["choices"] == plain


# --- models, paths, methods


def test_another_model_is_404_by_name(shared_node):
    for path, body in ((CHAT, HI), (COMPLETION, {"prompt": "x"}), ("/tokenize", {"prompt": "x"})):
        error = refused(shared_node, path, {**body, "model": "gpt-9"}, 404)
        assert error["code"] == "model_not_found" and error["param"] == "model" and "gpt-9" in error["message"]
    for model in (shared_node.model, "", None):
        assert ask(shared_node, CHAT, {**HI, "model": model})["model"] == shared_node.model


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/embeddings", "/v1/chat/completions/", "/v1/completions/x", "//livez",
                                  "/v1/models/nobody", "/metrics/x", "/%2e%2e/etc/passwd", "/favicon.ico"])
def test_a_path_that_is_not_there_is_404(shared_node, path):
    status, headers, data = exchange(shared_node, path, method="GET")
    assert status == 404 and error_of(headers, data)["type"] == "invalid_request_error"


@pytest.mark.parametrize("method, path, allowed", [
    ("GET", CHAT, "POST"), ("PUT", CHAT, "POST"), ("DELETE", "/v1/models", "GET"), ("POST", "/livez", "GET"),
    ("POST", "/metrics", "GET"), ("PATCH", "/tokenize", "POST")])
def test_another_method_is_405_and_names_the_right_one(shared_node, method, path, allowed):
    status, headers, data = exchange(shared_node, path, b"", method=method)
    assert status == 405 and allowed in headers["allow"]
    error_of(headers, data)


@pytest.mark.parametrize("rank", ["2", "-1", "x", "", "1.0", "99999999999999999999", "0 "])
def test_a_worker_that_is_not_there_is_refused(shared_node, rank):
    headers = {**JSON_TYPE, "x-data-parallel-rank": rank}
    if rank == "0 ":  # space around a value is no part of it
        assert exchange(shared_node, CHAT, HI, headers)[0] == 200
        return
    assert refused(shared_node, CHAT, HI, headers=headers)["param"] == "x-data-parallel-rank"


def test_the_openai_client_raises_its_own_errors(shared_node):
    client = client_of(shared_node)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=shared_node.model, messages=HI["messages"], temperature=9)
    assert caught.value.param == "temperature" and caught.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="nobody", messages=HI["messages"])
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model=shared_node.model, prompt="x", stream=True, n=3)


def test_a_stream_that_is_refused_is_a_plain_error(shared_node):
    assert refused(shared_node, CHAT, {**HI, "stream": True, "temperature": -1})["param"] == "temperature"


# --- malformed HTTP


def raw(node, data, half_close=False):
    """What comes back for these bytes until the node closes: [(status, headers, body)]."""
    s = socket.create_connection((node.host, node.port), timeout=10 * PATIENCE)
    s.sendall(data)
    if half_close:
        s.shutdown(socket.SHUT_WR)
    received = b""
    try:
        while part := s.recv(65536):
            received += part
    except ConnectionResetError:
        pass
    s.close()
    answers = []
    while received:
        head, _, received = received.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
        n = int(headers["content-length"])
        answers.append((int(lines[0].split()[1]), headers, received[:n]))
        received = received[n:]
    return answers


GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n"
POST = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize("data, statuses", [
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), {400}),  # a TLS client hello
    (b"hello\r\n\r\n", {400}),
    (b"GET\r\n\r\n", {400}),
    (b"GET /livez\r\n\r\n", {400, 505}),  # HTTP/0.9
    (b"GET /livez HTTP/9.9\r\nHost: x\r\n\r\n", {400, 505}),
    (b"G\x00T /livez HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    (b"FROB /livez HTTP/1.1\r\nHost: x\r\n\r\n", {400, 405, 501}),
    (b"GET /liv\x00ez HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    (b"GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    (b"GET /%00 HTTP/1.1\r\nHost: x\r\n\r\n", {400, 404}),
    (b"GET livez HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    (GET + b"Host: y\r\n\r\n", {400}),
    (GET + b"no colon here\r\n\r\n", {400}),
    (GET + b"spaced : x\r\n\r\n", {400}),
    (GET + b": x\r\n\r\n", {400}),
    (GET + b"x: a\x00b\r\n\r\n", {400}),
    (GET + b"x: " + b"a" * 40000 + b"\r\n\r\n", {431}),
    (GET + b"x: y\r\n" * 10000 + b"\r\n", {431}),
    (b"GET /" + b"a" * 40000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", {414, 431}),
    (POST + b"Content-Length: x\r\n\r\n{}", {400}),
    (POST + b"Content-Length: -1\r\n\r\n{}", {400}),
    (POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ", {400}),
    (POST + b"Content-Length: 99999999999999999999\r\n\r\n{}", {400, 413}),
    (POST + b"Content-Length: 9000000000\r\n\r\n{}", {413}),
    (POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", {400}),
    (POST + b"Transfer-Encoding: gzip\r\n\r\n{}", {400, 501}),
    (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n", {400}),
    (POST + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n{}\r\n0\r\n\r\n", {400, 413}),
], ids=range(28))
def test_malformed_http_gets_a_json_error_and_a_close(shared_node, data, statuses):
    (status, headers, body), = raw(shared_node, data)
    assert status in statuses
    assert error_of(headers, body)["type"] == "invalid_request_error"
    assert headers["connection"] == "close"


def test_a_length_that_is_too_short_spoils_only_its_own_connection(shared_node):
    """The rest of the body is read as the next request."""
    answers = raw(shared_node, POST + b'Content-Length: 14\r\n\r\n{"prompt":"a"}{"prompt":"b"}\r\n\r\n')
    assert [a[0] for a in answers] == [200, 400]
    assert json.loads(answers[0][2])["count"] == 1
    error_of(*answers[1][1:])


def test_a_length_that_is_too_long_is_waited_for_and_not_answered(shared_node):
    assert raw(shared_node, POST + b'Content-Length: 50\r\n\r\n{"prompt":"a"}', half_close=True) == []


def test_requests_may_be_pipelined_and_chunked(shared_node):
    first = POST + b'Transfer-Encoding: chunked\r\n\r\n7\r\n{"promp\r\n7\r\nt":"a"}\r\n0\r\n\r\n'
    second = POST + b'Connection: close\r\nContent-Length: 14\r\n\r\n{"prompt":"b"}'
    answers = raw(shared_node, first + second)
    assert [json.loads(body)["tokens"] for _, _, body in answers] == [[81], [82]]
    assert answers[-1][1]["connection"] == "close"
