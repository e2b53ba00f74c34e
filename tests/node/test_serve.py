"""`kvnode serve` from the outside: the ready line, the small routes, metrics as Prometheus reads them, help and
config that agree, stops that leave nothing, and the README's examples as printed."""
import concurrent.futures
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import openai
import pytest
from conftest import BUILD, MODEL, PATIENCE, ROOT, Node, alive, wait_until
from support_api import ask, client_of, complete, events, exchange, joined
from test_streams import open_request

TINY = ROOT / "tests/fixtures/tiny/llama/model-F16.gguf"
# SmolLM2's shape (fixtures: smollm2_gguf_dump.txt): 30 layers, K and V, 3 heads of 64, f16
KV_BYTES_PER_TOKEN = 30 * 2 * 3 * 64 * 2


def kvnode(*arguments, **environment):
    return subprocess.run([str(BUILD / "kvnode"), *map(str, arguments)], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, env={**os.environ, **environment}, timeout=20 * PATIENCE)


class FileNode(Node):
    """A node that is configured by its file alone."""

    def __init__(self, directory, text, name):
        self.directory, self.name = pathlib.Path(directory), name
        path = self.directory / "config.yaml"
        path.write_text(text)
        self.arguments = [str(BUILD / "kvnode"), "serve", "--config", str(path)]
        self.log_path = self.directory / f"{name}.log"
        self.start()


# --- starting


def test_the_ready_line_says_where_what_and_how_much(shared_node):
    blocks = (128 << 20) // (16 * KV_BYTES_PER_TOKEN)
    isa = shared_node.isa
    assert shared_node.ready_line == (f"kvnode ready: {shared_node.url} model SmolLM2-135M-Instruct.Q4_1, 2 workers x "
                                      f"1 thread ({isa}), KV capacity {blocks * 16} tokens")
    assert isa in ("plain", "avx2", "avx512") and shared_node.host == "127.0.0.1"


def test_an_ipv6_address_stands_in_brackets(tmp_path):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    with Node(tmp_path, model=TINY, kv_memory="1MiB", wait=False, host="::1") as node:
        url = re.match(r"kvnode ready: (http://\[::1\]:\d+) ", node.process.stdout.readline())[1]
        with urllib.request.urlopen(url + "/livez", timeout=10 * PATIENCE) as answer:
            assert answer.status == 200


def test_a_config_file_alone_configures_a_node(tmp_path):
    name = f"file-{os.getpid()}"
    text = f"""
model: {TINY}
served_model_name: tiny-one
name: {name}
port: 0
isa: plain
threads: 1
max_context: 64
runtime_dir: {tmp_path}
kv: {{memory: 64KiB, format: f32, block_size: 32}}
http:
  max_body: 1KiB
"""
    with FileNode(tmp_path, text, name) as node:
        assert node.model == "tiny-one" and node.isa == "plain"
        block = 32 * 3 * 2 * 2 * 16 * 4  # tokens, layers, K and V, heads, head_dim, bytes
        assert node.capacity == (64 << 10) // block * 32
        assert complete(node, "the cat", max_tokens=2)["model"] == "tiny-one"
        assert exchange(node, "/tokenize", {"prompt": "x" * 2000})[0] == 413
        assert json.loads(node.get("/v1/models")[1])["data"][0]["max_model_len"] == min(64, node.capacity)


def test_the_example_config_serves(tmp_path):
    example = kvnode("config", "example")
    assert example.returncode == 0 and example.stderr == ""
    with Node(tmp_path, model=TINY, kv_memory="1MiB", config_text=example.stdout) as node:
        assert complete(node, "the cat", max_tokens=2)["usage"]["completion_tokens"] == 2


def test_a_flag_wins_over_the_file(tmp_path):
    text = "served_model_name: from-the-file\nthreads: 3\nkv:\n  memory: 32KiB\n"
    with Node(tmp_path, model=TINY, config_text=text, kv_memory="1MiB", threads=2) as node:
        assert node.model == "from-the-file" and " x 2 threads " in node.ready_line
        assert node.capacity == (1 << 20) // (16 * 3 * 2 * 2 * 16 * 2) * 16


def test_the_environment_chooses_the_isa_where_no_flag_does(tmp_path, monkeypatch):
    monkeypatch.setenv("KVNODE_ISA", "plain")
    with Node(tmp_path, model=TINY, kv_memory="1MiB") as node:
        assert node.isa == "plain"
    result = kvnode("serve", TINY, KVNODE_ISA="mmx")
    assert result.returncode == 2 and "mmx" in result.stderr and result.stderr.count("\n") == 1


# --- help and refusals


def example_keys():
    """Dotted keys of the example, by its own indentation."""
    keys, folder = [], ""
    for line in kvnode("config", "example").stdout.splitlines():
        match = re.match(r"( *)([a-z_]+):(.*)", line)
        if match and not match[3].strip() and not match[1]:
            folder = match[2] + "."
        elif match:
            keys.append((folder if match[1] else "") + match[2])
    return keys


def test_help_example_and_readme_agree():
    result = kvnode("--help")
    flags = set(re.findall(r"--[a-z][a-z-]*", result.stdout)) - {"--help", "--version", "--key", "--config"}
    keys = {"--" + key.replace(".", "-").replace("_", "-") for key in example_keys()}
    assert result.returncode == 0 and result.stderr == "" and len(keys) > 20
    assert flags - {"--model"} == keys - {"--model"}
    serve_help = kvnode("serve", "--help")
    assert serve_help.returncode == 0 and serve_help.stdout == result.stdout


def test_the_version_is_the_headers():
    version = re.search(r'KVNODE_VERSION "(.*)"', (ROOT / "config/version.h").read_text())[1]
    result = kvnode("--version")
    assert (result.returncode, result.stdout, result.stderr) == (0, f"kvnode {version}\n", "")


@pytest.mark.parametrize("arguments, words", [
    (["serve", "x", "--kv-memry", "1"], 'unknown flag "--kv-memry": did you mean "--kv-memory"?'),
    (["serve", "x", "--wrokers=2"], '--workers'),
    (["serve", "x", "--port"], "--port"),
    (["serve", "x", "--port", "99999"], "--port"),
    (["serve", "x", "y"], "y"),
    (["serve", "x", "--config", "no-such-file.yaml"], "no-such-file.yaml"),
])
def test_a_wrong_command_line_is_one_line_and_code_2(arguments, words):
    result = kvnode(*arguments)
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.startswith("kvnode: ") and result.stderr.count("\n") == 1 and words in result.stderr


@pytest.mark.parametrize("arguments", [[], ["serv"], ["config"], ["config", "exmple"], ["serve"]])
def test_half_a_command_line_shows_the_usage(arguments):
    result = kvnode(*arguments)
    assert result.returncode == 2 and result.stdout == "" and "usage: kvnode serve MODEL" in result.stderr


def test_a_port_in_use_is_one_line_and_leaves_nothing(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port, name = taken.getsockname()[1], f"port-{os.getpid()}"
        result = kvnode("serve", TINY, "--port", port, "--name", name, "--runtime-dir", tmp_path / "run", "--kv-memory",
                        "1MiB")
    assert result.returncode == 1 and result.stdout == "" and result.stderr.count("\n") == 1, result.stderr
    assert str(port) in result.stderr and "in use" in result.stderr
    assert list((tmp_path / "run").iterdir()) == [] and list(pathlib.Path("/dev/shm").glob(f"kvnode-{name}*")) == []


def test_a_name_in_use_is_one_line_and_the_first_node_lives(tmp_path):
    with Node(tmp_path, model=TINY, kv_memory="1MiB") as node:
        result = kvnode("serve", TINY, "--port", 0, "--name", node.name, "--runtime-dir", tmp_path)
        assert result.returncode == 1 and node.name in result.stderr and result.stderr.count("\n") == 1
        assert complete(node, "the cat", max_tokens=2)["usage"]["completion_tokens"] == 2
        assert node.left_behind()


# --- stopping


def test_ctrl_c_lets_a_stream_finish_and_leaves_nothing(tmp_path):
    """Ctrl-C reaches the workers too, and is not theirs to act on."""
    with Node(tmp_path, model=TINY, kv_memory="4MiB", workers=2) as node:
        workers = node.worker_pids()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            stream = pool.submit(events, node, "/v1/completions", {"prompt": "the cat", "max_tokens": 500,
                                                                   "ignore_eos": True, "temperature": 0})
            wait_until(lambda: node.metric("vllm:num_requests_running") == 1, every_s=0)
            for pid in workers:
                os.kill(pid, signal.SIGINT)
            assert node.stop(signal.SIGINT) == 0
            assert joined(stream.result())[1] == "length"
        assert node.left_behind() == [] and not any(alive(pid) for pid in workers)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((node.host, node.port))


@pytest.mark.parametrize("delay_s", [0.02, 0.06, 0.12, 0.2])
def test_a_stop_while_the_model_loads_leaves_nothing(tmp_path, delay_s):
    """From the lock on, which is what there is first."""
    with Node(tmp_path, wait=False, workers=2) as node:
        wait_until(lambda: (tmp_path / f"{node.name}.lock").exists(), every_s=0.001)
        time.sleep(delay_s)
        assert node.stop() == 0
        assert node.left_behind() == []


def test_a_second_signal_ends_the_grace(tmp_path):
    with Node(tmp_path, workers=1) as node:
        ask_much = {"prompt": "x", "max_tokens": 5000, "ignore_eos": True, "stream": True}
        s = open_request(node, ask_much, "/v1/completions")
        assert s.recv(1)
        begin = time.monotonic()
        os.kill(node.pid, signal.SIGTERM)
        wait_until(lambda: "stopping" in node.log_text())
        assert node.stop(signal.SIGTERM) == 0
        assert time.monotonic() - begin < 10 * PATIENCE
        tail = b""
        while part := s.recv(65536):
            tail += part
        assert b"[DONE]" not in tail
        s.close()
        assert node.left_behind() == []


# --- small routes


def test_models_are_listed_by_the_openai_client(shared_node):
    client = client_of(shared_node)
    model, = client.models.list().data
    assert model.id == shared_node.model and model.object == "model" and model.owned_by == "kvnode"
    assert client.models.retrieve(shared_node.model).id == model.id
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody")


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health"])
def test_health_is_json_and_answers_head_too(shared_node, path):
    status, headers, data = exchange(shared_node, path, method="GET")
    assert status == 200 and json.loads(data) == {"status": "ok"} and headers["content-type"] == "application/json"
    status, headers, data = exchange(shared_node, path, method="HEAD")
    assert status == 200 and data == b"" and headers["content-length"] == "15"


# --- metrics


NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_]\w*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (-?[0-9.]+(?:e[+-]?\d+)?|[+-]Inf|NaN)")


def exposition(text):
    """Strict reading of Prometheus's text format 0.0.4: {family: (type, {(name, labels): value})}."""
    assert text.endswith("\n") and "\n\n" not in text
    families, current, seen = {}, None, set()
    for line in text.splitlines():
        if line.startswith("# HELP "):
            current = line.split(" ", 3)[2]
            assert current not in families and line.split(" ", 3)[3], line
            families[current] = [None, {}]
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == current and families[name][0] is None and not families[name][1], line
            assert kind in ("counter", "gauge", "histogram"), line
            families[name][0] = kind
        else:
            match = SAMPLE.fullmatch(line)
            assert match, f"not a sample: {line!r}"
            kind, samples = families[current]
            base = re.sub("_(bucket|sum|count)$", "", match[1]) if kind == "histogram" else match[1]
            assert base == current and kind, f"{line!r} within {current}"
            labels = tuple(sorted(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2] or "")))
            assert (match[1], labels) not in seen, f"twice: {line!r}"
            seen.add((match[1], labels))
            samples[match[1], labels] = float(match[3])
    return families


def test_metrics_are_prometheus_text(shared_node):
    complete(shared_node, "the cat", max_tokens=3)
    exchange(shared_node, '/v1/"quoted"\\path', method="GET")
    status, headers, data = exchange(shared_node, "/metrics", method="GET")
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    families = exposition(data.decode("utf-8", "strict"))
    assert {"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:request_success_total",
            "vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:time_to_first_token_seconds",
            "kvnode_kv_blocks", "kvnode_worker_up", "kvnode_prompt_tokens_total"} <= set(families)
    for name, (kind, samples) in families.items():
        assert (kind == "counter") == name.endswith("_total"), name
        if kind != "histogram":
            continue
        buckets = [(float(dict(labels)["le"]), v) for (n, labels), v in samples.items() if n.endswith("_bucket")]
        assert buckets == sorted(buckets) and buckets[-1][0] == float("inf")
        assert [v for _, v in buckets] == sorted(v for _, v in buckets)
        count, = (v for (n, _), v in samples.items() if n.endswith("_count"))
        assert count == buckets[-1][1] > 0


def test_a_model_name_is_escaped_in_metrics(tmp_path):
    with Node(tmp_path, model=TINY, kv_memory="1MiB", wait=False, served_model_name='a"b\\c') as node:
        wait_until(lambda: "ready" in node.log_text())
        line = node.process.stdout.readline()
        node.url = re.search(r"http://\S+", line)[0]
        samples = exposition(node.get("/metrics")[1])["vllm:prompt_tokens_total"][1]
        assert list(samples) == [("vllm:prompt_tokens_total", (("model_name", 'a\\"b\\\\c'),))]
        assert json.loads(node.get("/v1/models")[1])["data"][0]["id"] == 'a"b\\c'


def test_counters_count(tmp_path):
    with Node(tmp_path, model=TINY, kv_memory="1MiB") as node:
        for _ in range(3):
            complete(node, "the cat sat", max_tokens=5, ignore_eos=True)
        n = complete(node, "the cat sat", max_tokens=1)["usage"]["prompt_tokens"]
        exchange(node, "/v1/completions", b"{")
        assert node.metric("vllm:request_success_total", finished_reason="length") == 4
        assert node.metric("vllm:prompt_tokens_total") == 4 * n
        assert node.metric("vllm:generation_tokens_total") == 16
        assert node.metric("vllm:time_to_first_token_seconds_count") == 4
        assert node.metric("vllm:inter_token_latency_seconds_count") == 12
        assert node.metric("kvnode_http_responses_total", route="/v1/completions", status=200) == 4
        assert node.metric("kvnode_http_responses_total", route="/v1/completions", status=400) == 1


def quick(node, path, limit_s=2, **fields):
    begin = time.monotonic()
    status = node.post(path, fields)[0] if fields else node.get(path)[0]
    assert time.monotonic() - begin < limit_s * PATIENCE, path
    return status


def test_the_router_answers_while_its_workers_are_busy_or_stopped(tmp_path):
    with Node(tmp_path, workers=1, kv_memory="256MiB") as node:
        s = open_request(node, {"prompt": [500 + i % 7000 for i in range(6000)], "max_tokens": 1}, "/v1/completions")
        wait_until(lambda: node.metric("vllm:num_requests_running") + node.metric("vllm:num_requests_waiting") == 1)
        for _ in range(5):
            assert [quick(node, path) for path in ("/metrics", "/livez", "/readyz", "/v1/models")] == [200] * 4
        pid, = node.worker_pids()
        os.kill(pid, signal.SIGSTOP)
        try:
            assert [quick(node, path) for path in ("/metrics", "/livez", "/v1/models")] == [200] * 3
            assert quick(node, "/tokenize", prompt="hello") == 200
        finally:
            os.kill(pid, signal.SIGCONT)
        s.close()
        wait_until(node.idle)
        assert ask(node, "/v1/completions", {"prompt": "x", "max_tokens": 1})


# --- the README's examples


def readme_block(marker):
    text = (ROOT / "README.md").read_text()
    match = re.search(rf"<!-- test: {marker} -->\n```\w+\n(.*?)```", text, re.S)
    assert match, f"README.md has no block marked {marker}"
    return match[1]


def printed(node, command, block):
    assert "http://127.0.0.1:8000" in block and node.model in block
    block = block.replace("http://127.0.0.1:8000", node.url)
    result = subprocess.run([*command, block], capture_output=True, text=True, timeout=60 * PATIENCE)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_readmes_curl_example_streams_an_answer(shared_node):
    out = printed(shared_node, ["bash", "-euc"], readme_block("curl"))
    chunks = [json.loads(line[6:]) for line in out.splitlines() if line.startswith("data: {")]
    assert out.rstrip().endswith("data: [DONE]") and len(chunks) > 5 and joined(chunks)[0].strip()


def test_the_readmes_python_example_works_as_printed(shared_node):
    assert len(printed(shared_node, [sys.executable, "-c"], readme_block("python")).strip()) > 20


def test_the_readme_names_flags_and_model_that_exist():
    readme = (ROOT / "README.md").read_text()
    assert MODEL.name.removesuffix(".gguf") in readme
    helped = kvnode("--help").stdout
    for command in re.findall(r"build/kvnode(?: [^`\n]*)", readme):
        for flag in re.findall(r"--[a-z][a-z-]*", command):
            assert flag in helped, command


def test_unknown_fields_are_counted(shared_node):
    before = shared_node.metric("kvnode_unknown_fields_total")
    status, _ = shared_node.post("/v1/completions", {"prompt": "x", "max_tokens": 1, "no_such_field": 1,
                                                     "nor_this": None})
    assert status == 200
    assert shared_node.metric("kvnode_unknown_fields_total") == before + 2
