"""What the API tests share: raw requests with their headers, streams read strictly, the model's vocabulary."""
import functools
import http.client
import json

import openai
from conftest import MODEL, PATIENCE, ROOT
from support_gguf import Gguf, token_bytes, token_text


def client_of(node, kind=openai.OpenAI):
    return kind(base_url=node.url + "/v1", api_key="none", max_retries=0, timeout=120 * PATIENCE)


def fixture(name):
    return [json.loads(line) for line in open(ROOT / "tests/fixtures" / name)]


def exchange(node, path, body=b"", headers=None, method="POST"):
    """(status, headers with lower-case names, body bytes) of one request on a connection of its own."""
    connection = http.client.HTTPConnection(node.host, node.port, timeout=60 * PATIENCE)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} if headers is None else headers
    connection.request(method, path, data, headers)
    answer = connection.getresponse()
    result = answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    connection.close()
    return result


def refused(node, path, body, status=400, headers=None):
    """The error object of a request that must be refused with this status; its form is checked."""
    got, answer_headers, data = exchange(node, path, body, headers)
    assert got == status, (got, data)
    return error_of(answer_headers, data)


def error_of(headers, data):
    assert headers["content-type"].split(";")[0] == "application/json", headers
    answer = json.loads(data.decode("utf-8", "strict"))
    assert list(answer) == ["error"] and set(answer["error"]) == {"message", "type", "param", "code"}, answer
    error = answer["error"]
    assert isinstance(error["message"], str) and error["message"]
    assert isinstance(error["type"], str) and error["type"]
    assert all(error[key] is None or isinstance(error[key], str) for key in ("param", "code"))
    return error


def ask(node, path, fields):
    """The answer's object; it must be 200."""
    status, answer = node.post(path, fields)
    assert status == 200, answer
    return answer


def complete(node, prompt, **fields):
    return ask(node, "/v1/completions", {"prompt": prompt, "temperature": 0, **fields})


def chat(node, content, **fields):
    messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
    return ask(node, "/v1/chat/completions", {"messages": messages, "temperature": 0, **fields})


def events(node, path, fields):
    """The events of a stream, which must be exactly `data: JSON` blocks of valid UTF-8 and end with [DONE]."""
    status, headers, data = exchange(node, path, {"stream": True, **fields})
    assert status == 200, data
    assert headers["content-type"].split(";")[0] == "text/event-stream"
    blocks = data.split(b"\n\n")
    assert blocks[-2:] == [b"data: [DONE]", b""]
    parsed = []
    for block in blocks[:-2]:
        assert block.startswith(b"data: {") and b"\n" not in block
        parsed.append(json.loads(block[6:].decode("utf-8", "strict")))
    assert len({e["id"] for e in parsed}) == 1 and len({e["created"] for e in parsed}) == 1
    return parsed


def joined(chunks):
    """(text, finish_reason) of a stream's events, of either shape."""
    text, finish = "", None
    for chunk in chunks:
        for choice in chunk["choices"]:
            assert finish is None, "a choice goes on after its finish_reason"
            text += choice["text"] if "text" in choice else choice["delta"].get("content") or ""
            finish = choice["finish_reason"]
    return text, finish


@functools.cache
def vocabulary(model=MODEL):
    """The pieces of the model's vocabulary, read from its file."""
    return Gguf(model).array("tokenizer.ggml.tokens")


def texts(ids, model=MODEL):
    """Tokens as the completions' logprobs name them."""
    return [token_text(vocabulary(model)[i]) for i in ids]


def data_of(ids, model=MODEL):
    """The bytes of tokens."""
    return b"".join(token_bytes(vocabulary(model)[i]) for i in ids)
