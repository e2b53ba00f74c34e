"""kvctl against a fake node: a Unix socket that says what each test tells it to."""

import json
import os
import re
import socket
import subprocess
import threading
from pathlib import Path

import pytest

KVCTL = Path(os.environ.get("KVNODE_BUILD", "build")) / "kvctl"

STATUS = {
    "ok": True,
    "node": {"name": "kvnode", "version": "9.8.7", "pid": 4711, "uptime_s": 7200.0, "state": "ready",
             "address": "127.0.0.1:8000", "model": "SmolLM2", "isa": "avx512", "max_context": 8192},
    "workers": [
        {"index": 0, "pid": 4712, "state": "ready", "restarts": 1, "running": 3, "waiting": 5, "in_flight": 8,
         "phase": "step", "step": 123456, "threads": 2, "last_exit": "killed by signal 9"},
        {"index": 1, "pid": 4713, "state": "starting", "restarts": 0, "running": 0, "waiting": 0, "in_flight": 0,
         "phase": "idle", "step": 0, "threads": 2, "last_exit": None},
    ],
    "kv": {"block_size": 16, "blocks": 100, "free": 41, "filling": 2, "ready": 57, "pinned": 11, "tokens": 1600,
           "bytes": 3 << 20, "huge_pages": False, "evicted": 77, "prompt_tokens": {"computed": 25, "host": 75}},
    "requests": {"active": 13, "finished": 101, "failed": 102, "retried": 103, "aborted": 104},
}


class FakeNode:
    """Answers one connection after the other with the same bytes and keeps what it was asked."""

    def __init__(self, path, answer):
        self.path, self.answer, self.requests = str(path), answer, []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(4)
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        while True:
            try:
                conn, _ = self.listener.accept()
            except OSError:
                return
            with conn:
                self.requests.append(conn.makefile("rb").readline())
                # in pieces: an answer need not come in one read
                try:
                    for i in range(0, len(self.answer), 1000):
                        conn.sendall(self.answer[i:i + 1000])
                except BrokenPipeError:
                    pass  # kvctl has had enough: that is what the test judges

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(5)


@pytest.fixture
def node(tmp_path):
    started = []

    def start(answer, path=tmp_path / "kvnode.sock"):
        if not isinstance(answer, bytes):
            answer = json.dumps(answer).encode() + b"\n"
        started.append(FakeNode(path, answer))
        return started[-1]

    yield start
    for fake in started:
        fake.close()


def kvctl(*args, **env):
    return subprocess.run([KVCTL, *map(str, args)], capture_output=True, text=True, timeout=20,
                          env={**os.environ, **env})


def one_line(text):
    return text.count("\n") == 1 and text.endswith("\n")


def test_status_shows_every_number_once(node):
    fake = node(STATUS)
    done = kvctl("--socket", fake.path, "status")
    assert done.returncode == 0 and done.stderr == ""
    assert json.loads(fake.requests[0]) == {"cmd": "status"}
    assert fake.requests[0].endswith(b"\n")
    out = done.stdout
    assert re.search(r"^kvnode: ready, up 2\.0 h, pid 4711, version 9\.8\.7$", out, re.M)
    assert "http://127.0.0.1:8000" in out and "SmolLM2 (avx512, window 8192 tokens)" in out
    rows = [re.split(r"  +", line.strip()) for line in out.splitlines() if re.match(r"^ +[0-9]+ +[a-z]", line)]
    assert rows == [
        ["0", "ready", "4712", "3", "5", "8", "step", "123456", "2", "1", "killed by signal 9"],
        ["1", "starting", "4713", "0", "0", "0", "idle", "0", "2", "0", "-"],
    ]
    assert "100 blocks of 16 tokens = 1600 tokens, 3.0 MiB, small pages" in out
    assert "41 free, 2 filling, 57 ready, 11 pinned; 77 evicted" in out
    assert "25 tokens computed, 75 from cache (75.0 % hit)" in out
    assert "13 active, 101 finished, 102 failed, 103 retried, 104 aborted" in out
    assert all(line == line.rstrip() for line in out.splitlines())


def test_status_json_is_the_answer_as_it_is(node):
    raw = b'{"ok": true,  "node":{"name":"kvnode"}, "new": [1.50]}'
    fake = node(raw + b"\n")
    done = kvctl("status", "--json", "--socket", fake.path)
    assert (done.returncode, done.stdout.encode()) == (0, raw + b"\n")


@pytest.mark.parametrize("path", [
    (), ("node",), ("node", "uptime_s"), ("workers",), ("workers", 0, "pid"), ("workers", 0, "phase"), ("kv",),
    ("kv", "bytes"), ("kv", "prompt_tokens"), ("kv", "prompt_tokens", "host"), ("requests",), ("requests", "failed"),
])
@pytest.mark.parametrize("how", ["missing", "null", "of another type"])
def test_status_lives_with_fields_that_are(node, path, how):
    answer = json.loads(json.dumps(STATUS))
    if not path:
        answer = {"ok": True}
    else:
        parent = answer
        for key in path[:-1]:
            parent = parent[key]
        if how == "missing":
            del parent[path[-1]]
        else:
            parent[path[-1]] = None if how == "null" else [{"a": [1]}, 2.5]
    done = kvctl("--socket", node(answer).path, "status")
    assert done.returncode == 0 and done.stderr == ""
    if path and path[0] != "requests":
        assert "101 finished" in done.stdout
    if path and path[0] != "node":
        assert "pid 4711" in done.stdout


def test_control_characters_never_reach_the_terminal(node):
    answer = json.loads(json.dumps(STATUS))
    answer["node"]["model"] = "\x1b[2Jevil\n"
    done = kvctl("--socket", node(answer).path, "status")
    assert done.returncode == 0 and "\x1b" not in done.stdout and "?[2Jevil?" in done.stdout


@pytest.mark.parametrize("command", ["drain", "undrain", "shutdown"])
def test_commands_say_what_happens_in_one_line(node, command):
    fake = node({"ok": True})
    done = kvctl(command, "--socket", fake.path)
    assert done.returncode == 0 and done.stderr == ""
    assert one_line(done.stdout) and fake.path in done.stdout
    assert json.loads(fake.requests[0]) == {"cmd": command}


def test_name_and_directory_find_the_socket(node, tmp_path):
    fake = node({"ok": True}, tmp_path / "blue.sock")
    assert kvctl("--runtime-dir", tmp_path, "--name", "blue", "drain").returncode == 0
    assert len(fake.requests) == 1


def test_the_default_place_follows_xdg(node, tmp_path):
    (tmp_path / "kvnode").mkdir()
    fake = node({"ok": True}, tmp_path / "kvnode" / "kvnode.sock")
    assert kvctl("drain", XDG_RUNTIME_DIR=str(tmp_path)).returncode == 0
    assert len(fake.requests) == 1


@pytest.mark.parametrize("answer, words", [
    ({"ok": False, "error": "already\ndraining"}, "already draining"),
    ({"ok": False}, "drain"),
    ({"error": "x"}, "x"),
    ({"ok": 1}, "drain"),
    (b"[]\n", "JSON"),
    (b"hello\n", "JSON"),
    (b'{"ok":true}', "closed before it answered"),
    (b"", "closed before it answered"),
    pytest.param(b"a" * (4 * 1024 * 1024 + 1), "longer than", id="4 MiB and a byte"),
])
def test_no_and_nonsense_are_one_line_on_stderr(node, answer, words):
    fake = node(answer)
    done = kvctl("--socket", fake.path, "drain")
    assert (done.returncode, done.stdout) == (1, "")
    assert one_line(done.stderr) and fake.path in done.stderr and words in done.stderr


def test_no_node_names_the_socket(tmp_path):
    missing = tmp_path / "none.sock"
    stale = tmp_path / "stale.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(stale))
    left.close()
    for path in (missing, stale):
        done = kvctl("--socket", path, "status")
        assert (done.returncode, done.stdout) == (1, "")
        assert one_line(done.stderr) and str(path) in done.stderr and "no node" in done.stderr


@pytest.mark.parametrize("args, words", [
    ([], "no command"), (["reboot"], "reboot"), (["status", "now"], "now"), (["--socket"], "--socket"),
    (["--colour", "status"], "--colour"), (["--socket", "a", "--name", "b", "status"], "--socket"),
    (["--json", "drain"], "--json"), (["--name", "../etc", "status"], "../etc"), (["--name", "", "status"], "name"),
    (["--runtime-dir", "/" + "d" * 200, "status"], "d" * 200),
])
def test_wrong_usage_exits_2(args, words):
    done = kvctl(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert one_line(done.stderr) and words in done.stderr


def test_help_and_version():
    done = kvctl("--help")
    assert done.returncode == 0
    for word in ("status", "drain", "undrain", "shutdown", "--socket", "--name", "--runtime-dir", "--json", "--version"):
        assert word in done.stdout
    assert re.fullmatch(r"kvctl \d+\.\d+\.\d+\n", kvctl("--version").stdout)
