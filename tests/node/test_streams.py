"""Many streams at once, and clients that go away (DESIGN invariants 3 and 6; case 7)."""
import concurrent.futures
import json
import socket
import struct
import time

import openai
from conftest import PATIENCE, wait_until
from test_prefix_sharing import ids_prompt


def client_of(node):
    return openai.OpenAI(base_url=node.url + "/v1", api_key="none", max_retries=0, timeout=120 * PATIENCE)


def stream_text(node, prompt, **fields):
    text, finish = "", None
    for chunk in client_of(node).completions.create(model=node.model, prompt=prompt, stream=True, **fields):
        text += chunk.choices[0].text
        finish = chunk.choices[0].finish_reason or finish
    return text, finish


def test_sixteen_streams_equal_their_solo_runs(shared_node):
    jobs = [{"prompt": ids_prompt(30 + 23 * i, salt=600 + i), "max_tokens": 20 + i, "seed": i,
             "temperature": 0 if i % 2 else 0.9} for i in range(16)]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda job: stream_text(shared_node, **job), jobs))
    alone = [stream_text(shared_node, **job) for job in jobs]
    assert together == alone
    assert all(finish in ("stop", "length") for _, finish in together)


def test_streamed_text_equals_plain_text(shared_node):
    client = client_of(shared_node)
    for seed in range(12):
        ask = {"model": shared_node.model, "max_tokens": 40, "seed": seed, "temperature": 1.5,
               "messages": [{"role": "user", "content": "Say something with emoji: 🧵👩🏽‍🚀 한글"}]}
        plain = client.chat.completions.create(**ask)
        streamed = "".join(c.choices[0].delta.content or ""
                           for c in client.chat.completions.create(stream=True, **ask))
        assert streamed == plain.choices[0].message.content


def open_request(node, fields, path="/v1/chat/completions"):
    body = json.dumps(fields).encode()
    s = socket.create_connection((node.host, node.port))
    s.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
              b"Content-Length: %d\r\n\r\n" % (path.encode(), len(body)) + body)
    return s


def test_a_client_that_goes_away_frees_its_blocks_at_once(shared_node):
    wait_until(shared_node.idle)
    aborted = shared_node.metric("vllm:request_success_total", finished_reason="abort")
    ask = {"messages": [{"role": "user", "content": "Count from one to a thousand in words."}],
           "max_tokens": 4000, "ignore_eos": True}
    streamed = [open_request(shared_node, {**ask, "stream": True}) for _ in range(4)]
    plain = [open_request(shared_node, ask) for _ in range(3)]
    half_sent = socket.create_connection((shared_node.host, shared_node.port))
    half_sent.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
    for s in streamed:
        assert s.recv(1)
    wait_until(lambda: shared_node.metric("vllm:num_requests_running") == 7)
    reset = streamed.pop()  # one goes by RST
    reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    for s in [reset, *streamed, *plain, half_sent]:
        s.close()
    wait_until(shared_node.idle, timeout_s=5)
    assert shared_node.metric("vllm:request_success_total", finished_reason="abort") == aborted + 7


def test_other_streams_do_not_notice_one_that_leaves(shared_node):
    job = {"prompt": ids_prompt(40, salt=700), "max_tokens": 60, "temperature": 0}
    alone = stream_text(shared_node, **job)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        beside = pool.submit(stream_text, shared_node, **job)
        for _ in range(5):
            leaver = open_request(shared_node, {"prompt": "x", "max_tokens": 500, "stream": True},
                                  "/v1/completions")
            time.sleep(0.05)
            leaver.close()
        assert beside.result() == alone
    wait_until(shared_node.idle)
