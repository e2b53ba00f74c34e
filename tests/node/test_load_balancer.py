"""Two nodes behind haproxy, health-checked on /readyz: one is drained, stopped, started again under load, and
no client sees it (DESIGN §9, load balancer contract)."""
import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.request

import pytest
from conftest import PATIENCE, Node, wait_until

HAPROXY = shutil.which("haproxy") or "/usr/sbin/haproxy"

CONFIG = """
global
    maxconn 256
    stats socket {stats} mode 600
defaults
    mode http
    timeout connect 2s
    timeout client 60s
    timeout server 60s
    option httpchk GET /readyz
    option redispatch
frontend front
    bind 127.0.0.1:{port}
    default_backend nodes
backend nodes
    balance leastconn
    server a {a} check inter 100ms fall 1 rise 1
    server b {b} check inter 100ms fall 1 rise 1
"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def backend_state(stats, server):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(str(stats))
        s.sendall(b"show stat\n")
        text = b""
        while part := s.recv(65536):
            text += part
    for line in text.decode().splitlines():
        fields = line.split(",")
        if fields[:2] == ["nodes", server]:
            return fields[17]
    raise AssertionError(f"haproxy knows no server {server}")


class Load(threading.Thread):
    """Requests one after another through the balancer until told to end; keeps what went wrong."""

    def __init__(self, port, serial):
        super().__init__()
        self.url, self.serial = f"http://127.0.0.1:{port}/v1/completions", serial
        self.n, self.failures, self.ending = 0, [], threading.Event()

    def run(self):
        while not self.ending.is_set():
            body = json.dumps({"prompt": f"Request {self.serial} {self.n}:", "max_tokens": 12,
                               "stream": self.n % 2 == 0, "ignore_eos": True}).encode()
            request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    text = answer.read().decode()
                    whole = "data: [DONE]" in text if self.n % 2 == 0 else "finish_reason" in text
                    if not whole or '"error"' in text:
                        self.failures.append(text[-300:])
            except Exception as error:  # every kind counts
                self.failures.append(repr(error))
            self.n += 1


@pytest.mark.skipif(not shutil.which(HAPROXY), reason="haproxy is not installed")
def test_a_node_is_drained_stopped_and_started_without_a_failed_request(tmp_path):
    (tmp_path / "a").mkdir(mode=0o700)
    (tmp_path / "b").mkdir(mode=0o700)
    with Node(tmp_path / "a", workers=1, port=free_port()) as a, \
            Node(tmp_path / "b", workers=1, port=free_port()) as b:
        port, stats = free_port(), tmp_path / "stats.sock"
        config = tmp_path / "haproxy.cfg"
        config.write_text(CONFIG.format(port=port, stats=stats, a=f"{a.host}:{a.port}",
                                        b=f"{b.host}:{b.port}"))
        haproxy = subprocess.Popen([HAPROXY, "-f", str(config), "-db"], stderr=subprocess.DEVNULL)
        load = [Load(port, i) for i in range(6)]
        try:
            wait_until(lambda: stats.exists() and backend_state(stats, "a") == "UP")
            for thread in load:
                thread.start()
            time.sleep(1)
            for node, name in ((a, "a"), (b, "b")):
                assert node.kvctl("drain").returncode == 0
                wait_until(lambda: backend_state(stats, name) == "DOWN")
                wait_until(lambda: node.status()["requests"]["active"] == 0)
                assert node.stop() == 0
                time.sleep(0.5)
                node.start()
                wait_until(lambda: backend_state(stats, name).startswith("UP"))
                before = sum(thread.n for thread in load)
                wait_until(lambda: sum(thread.n for thread in load) > before + 10)
        finally:
            for thread in load:
                thread.ending.set()
            for thread in load:
                if thread.ident:
                    thread.join(60 * PATIENCE)
            haproxy.terminate()
            haproxy.wait()
        assert [f for thread in load for f in thread.failures] == []
        assert sum(thread.n for thread in load) > 40


def test_drain_and_undrain_change_only_readiness(shared_node):
    assert shared_node.kvctl("drain").returncode == 0
    assert shared_node.get("/readyz")[0] == 503
    assert shared_node.get("/livez")[0] == 200
    status, _ = shared_node.post("/v1/completions", {"prompt": "still served", "max_tokens": 2})
    assert status == 200
    assert shared_node.kvctl("undrain").returncode == 0
    assert shared_node.get("/readyz")[0] == 200
