"""The router's edges: descriptors run out, terminals hang up, sizes change between lives of a node."""
import concurrent.futures
import contextlib
import json
import os
import pathlib
import resource
import signal
import socket
import time

import pytest
from conftest import PATIENCE, Node, alive, wait_until
from test_prefix_sharing import complete, ids_prompt


def control(node):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(10)
    s.connect(str(node.directory / f"{node.name}.sock"))
    return s


def n_descriptors(node):
    return len(list(pathlib.Path(f"/proc/{node.pid}/fd").iterdir()))


@contextlib.contextmanager
def at_most(node, n):
    """The node may have n descriptors."""
    soft, hard = resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (n, hard))
    yield
    resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (soft, hard))


def cpu_s(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_control_answers_a_client_that_has_shut_its_sending_side(tmp_path):
    """What `echo '{"cmd":"status"}' | socat - UNIX:...` does (DESIGN section 9)."""
    with Node(tmp_path, workers=1) as node:
        for _ in range(20):
            with control(node) as s:
                s.sendall(b'{"cmd":"status"}\n{"cmd":"status"}\n')
                s.shutdown(socket.SHUT_WR)
                data = b""
                while part := s.recv(65536):
                    data += part
            assert [json.loads(line)["ok"] for line in data.splitlines()] == [True, True]


def test_a_control_client_that_never_reads_costs_no_memory(tmp_path):
    def rss(node):
        status = pathlib.Path(f"/proc/{node.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) // 1024

    with Node(tmp_path, workers=1) as node:
        before = rss(node)
        with control(node) as s:
            s.settimeout(1)
            try:
                for _ in range(2000):
                    s.sendall(b'{"cmd":"status"}\n' * 200)
            except OSError:
                pass
            assert rss(node) - before < 32 * PATIENCE  # a sanitizer keeps freed memory for a while
        assert node.status()["ok"]


def test_no_descriptor_for_a_control_client_makes_no_spin(tmp_path):
    with Node(tmp_path, workers=1) as node:
        with at_most(node, n_descriptors(node)):
            s = control(node)
            before, log_bytes = cpu_s(node.pid), len(node.log_text())
            time.sleep(1.5)
            assert cpu_s(node.pid) - before < 0.3
            assert len(node.log_text()) - log_bytes < 10000
        with s:
            s.sendall(b'{"cmd":"status"}\n')
            assert s.recv(1)


def test_a_worker_that_cannot_be_watched_does_not_stop_the_router(tmp_path):
    """pidfd_open fails, for want of a descriptor, right after a worker was started."""
    with Node(tmp_path, workers=1) as node:
        with socket.create_connection((node.host, node.port)) as http:
            http.settimeout(3)
            http.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            assert http.recv(4096)
            pid = node.worker_pids()[0]
            # no number below the pidfd's is free, nor becomes free with it
            pidfd = min(int(p.name) for p in pathlib.Path(f"/proc/{node.pid}/fd").iterdir()
                        if "pidfd" in os.readlink(p))
            with at_most(node, pidfd):
                os.kill(pid, signal.SIGKILL)
                wait_until(lambda: not pathlib.Path(f"/proc/{pid}").exists())
                for _ in range(10):
                    time.sleep(0.1)
                    http.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
                    assert http.recv(4096).startswith(b"HTTP/1.1 200")
        wait_until(lambda: node.get("/readyz")[0] == 200)
        assert complete(node, "again", max_tokens=2)


class LimitedNode(Node):
    """A node under a limit of open files. limit: arguments of the shell's ulimit."""

    def __init__(self, directory, limit, **keys):
        self.limit = limit
        super().__init__(directory, **keys)

    def start(self, wait=True):
        self.arguments = ["bash", "-c", f'ulimit {self.limit}; exec "$@"', "-", *self.arguments]
        super().start(wait)


@pytest.mark.parametrize("limit", ["-Sn 220", "-n 220"])
def test_clients_cannot_take_the_descriptors_that_workers_need(tmp_path, limit):
    """ZeroMQ aborts its process when a connection comes and there is no descriptor for it."""
    with LimitedNode(tmp_path, limit, workers=1) as node:
        clients = []
        for _ in range(260):
            clients.append(socket.create_connection((node.host, node.port)))
        pid = node.worker_pids()[0]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: node.status()["workers"][0]["state"] == "ready" and node.worker_pids()[0] != pid)
        for c in clients:
            c.close()
        wait_until(lambda: node.get("/readyz")[0] == 200)
        assert complete(node, "again", max_tokens=2)


def test_a_terminal_that_hangs_up_is_a_clean_stop(tmp_path):
    """SIGHUP goes to the whole foreground group: router and workers."""
    with Node(tmp_path, workers=2) as node:
        workers = node.worker_pids()
        for pid in [*workers, node.pid]:
            os.kill(pid, signal.SIGHUP)
        assert node.process.wait(30) == 0
        assert not any(alive(pid) for pid in workers)
        assert node.left_behind() == []


def test_more_workers_than_the_former_store_has_leases_for(tmp_path):
    with Node(tmp_path, workers=1, worker_orphan_grace_s=30) as node:
        os.kill(node.pid, signal.SIGKILL)
        node.process.wait()
        at = node.arguments.index("--workers")
        node.arguments[at + 1] = "12"
        node.start()
        assert node.n_workers == 12


def test_workers_inherit_no_descriptor_of_the_router(tmp_path):
    with Node(tmp_path, workers=1) as node:
        clients = [socket.create_connection((node.host, node.port)) for _ in range(20)]
        with control(node):
            pid = node.worker_pids()[0]
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: node.status()["workers"][0]["state"] == "ready"
                       and node.worker_pids()[0] != pid)
            links = [os.readlink(p) for p in pathlib.Path(f"/proc/{node.worker_pids()[0]}/fd").iterdir()]
            mine = [os.readlink(p) for p in pathlib.Path(f"/proc/{node.pid}/fd").iterdir()]
        for c in clients:
            c.close()
        shared = {x for x in links if x.startswith(("socket:", "pipe:"))} & set(mine)
        standard = {os.readlink(f"/proc/{node.pid}/fd/{n}") for n in (0, 1, 2)}
        assert shared <= standard
        assert not any(x.endswith(".lock") for x in links)


def test_a_plain_answer_survives_the_death_of_its_worker(tmp_path):
    """Nothing was sent yet, however many tokens there were: retried once (DESIGN section 11, 5)."""
    with Node(tmp_path, workers=2) as node:
        body = {"prompt": ids_prompt(40, salt=71), "max_tokens": 150, "ignore_eos": True,
                "temperature": 0.8, "seed": 5, "logprobs": 1, "stop": ["no such text \u2603"]}
        calm = node.post("/v1/completions", body)[1]["choices"]
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(node.post, "/v1/completions", body)
            first = node.metric("vllm:time_to_first_token_seconds_count")
            wait_until(lambda: node.metric("vllm:time_to_first_token_seconds_count") > first, every_s=0)
            busy = [w for w in node.status()["workers"] if w["in_flight"]]
            os.kill(busy[0]["pid"], signal.SIGKILL)
            status, body = answer.result()
        assert node.metric("kvnode_requests_retried_total") == 1
        assert status == 200, body
        assert body["choices"] == calm
        assert body["usage"]["completion_tokens"] == 150
        wait_until(node.idle)


@pytest.mark.parametrize("path, body", [
    ("/v1/completions", {"prompt": " " * 7_000_000}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 7_000_000}]}),
])
def test_a_text_far_above_the_window_holds_nobody_up(shared_node, path, body):
    data = json.dumps(body).encode()
    before = cpu_s(shared_node.pid)
    status, answer = shared_node.post(path, data)
    assert status == 400 and answer["error"]["code"] == "context_length_exceeded"
    assert answer["error"]["param"] == ("messages" if "chat" in path else "prompt")
    assert cpu_s(shared_node.pid) - before < 1 * PATIENCE


@pytest.mark.parametrize("head", [
    b"Transfer-Encoding:\r\n chunked\r\n",
    b"Transfer-Encoding: chunked\r\n \r\n",
    b"Transfer-Encoding: \tchunked\r\n",
    b"Transfer-Encoding: chunked \r\n",
    b"Content-Length:\r\n 5\r\n",
    b"Content-Length: 5\r\n 0\r\n",
    b"Content-Length : 5\r\n",
    b"Content-Length: 5\r\nContent-Length: 5\r\n",
    b"Content-Length: 5, 5\r\n",
    b"Content-Length: +5\r\n",
    b"Transfer-Encoding: chunked, identity\r\n",
    b"Transfer-Encoding: identity\r\nContent-Length: 5\r\n",
    b"Transfer-Encoding:\x0bchunked\r\n",
])
def test_no_head_makes_part_of_a_body_the_next_request(shared_node, head):
    """One request, one answer, however its length is written (RFC 9112 section 6.3)."""
    with socket.create_connection((shared_node.host, shared_node.port)) as s:
        s.settimeout(5)
        inner = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(inner), inner) if b"ransfer" in head else b"{ }  " + inner
        s.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n" + body)
        data = b""
        try:
            while part := s.recv(65536):
                data += part
        except TimeoutError:
            pass
    statuses = [int(x.split()[0]) for x in data.split(b"HTTP/1.1 ")[1:]]
    if b"ransfer" in head:
        assert len(statuses) == 1 and statuses[0] >= 400, data
    else:  # where the length is understood, what follows is a request of its own
        assert statuses[0] >= 400 and statuses[1:] in ([], [200]), data
