"""Real nodes for the tests: each runs on a free port of loopback, in a runtime directory of its own, under a
name of its own, and is stopped by its process id. KVNODE_BUILD names the build to test (default: build)."""
import itertools
import json
import os
import pathlib
import re
import select
import signal
import subprocess
import time
import urllib.error
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("KVNODE_BUILD", "build")
MODEL = ROOT / ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf"
READY = re.compile(r"^kvnode ready: http://([\d.]+):(\d+) model (\S+), (\d+) workers? x (\d+) threads? "
                   r"\((\w+)\), KV capacity (\d+) tokens$")
# instrumented builds are many times slower
PATIENCE = 8 if "san" in BUILD.name else 1
_serial = itertools.count()


def wait_until(what, timeout_s=20, every_s=0.02):
    """Waits until what() is true and returns its value; fails after timeout_s."""
    deadline = time.monotonic() + timeout_s * PATIENCE
    while True:
        value = what()
        if value:
            return value
        assert time.monotonic() < deadline, f"still not so after {timeout_s} s: {what}"
        time.sleep(every_s)


def alive(pid):
    """Whether the process exists and is no zombie."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Node:
    """A running node. Use as `with Node(tmp_path, workers=2) as node:`."""

    def __init__(self, directory, model=MODEL, name=None, wait=True, config_text=None, program=None, **keys):
        self.directory = pathlib.Path(directory)
        self.name = name or f"t{os.getpid()}-{next(_serial)}"
        keys = {"port": 0, "kv_memory": "128MiB", "threads": 1,
                **({"worker_hang_timeout_s": 600} if PATIENCE > 1 else {}), **keys}
        self.arguments = [str(program or BUILD / "kvnode"), "serve", str(model), "--name", self.name,
                          "--runtime-dir", str(self.directory)]
        if config_text is not None:
            path = self.directory / "node.yaml"
            path.write_text(config_text)
            self.arguments += ["--config", str(path)]
        for key, value in keys.items():
            self.arguments += ["--" + key.replace("_", "-"), str(value)]
        self.log_path = self.directory / f"{self.name}.log"
        self.start(wait)

    def start(self, wait=True):
        self.log = open(self.log_path, "ab")
        # a test run under nohup ignores SIGHUP; a node started by a person does not
        self.process = subprocess.Popen(["env", "--default-signal=HUP", *self.arguments],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=self.log, text=True)
        self.pid = self.process.pid
        self.ready_line = None
        if wait:
            try:
                self.wait_ready()
            except BaseException:
                self.stop(signal.SIGTERM)
                raise

    def wait_ready(self, timeout_s=60):
        deadline = time.monotonic() + timeout_s * PATIENCE
        while True:
            readable, _, _ = select.select([self.process.stdout], [], [], 0.1)
            line = self.process.stdout.readline() if readable else None
            if line:
                match = READY.match(line.rstrip("\n"))
                assert match, f"not a ready line: {line!r}"
                self.ready_line = line.rstrip("\n")
                self.host, self.port = match[1], int(match[2])
                self.model, self.n_workers = match[3], int(match[4])
                self.isa, self.capacity = match[6], int(match[7])
                self.url = f"http://{self.host}:{self.port}"
                return
            if line == "" or time.monotonic() > deadline:
                raise AssertionError(f"node did not get ready:\n{self.log_text()}")

    def log_text(self):
        return self.log_path.read_text(errors="replace")

    def kvctl(self, *arguments):
        return subprocess.run([str(BUILD / "kvctl"), "--name", self.name, "--runtime-dir",
                               str(self.directory), *arguments], capture_output=True, text=True,
                              timeout=30)

    def status(self):
        result = self.kvctl("status", "--json")
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    def worker_pids(self):
        return [w["pid"] for w in self.status()["workers"]]

    def get(self, path):
        """(status, body text) of a GET."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=30 * PATIENCE) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def post(self, path, body, headers=None, timeout_s=120):
        """(status, parsed body) of a POST; body: an object, or bytes as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data,
                                         {"Content-Type": "application/json", **(headers or {})})
        try:
            with urllib.request.urlopen(request, timeout=timeout_s * PATIENCE) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def metric(self, name, **labels):
        """Value of one sample of /metrics: all of the given labels must match."""
        for line in self.get("/metrics")[1].splitlines():
            match = re.match(r"([a-z_:A-Z0-9]+)(?:\{(.*)\})? (\S+)$", line)
            if match and match[1] == name:
                have = dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
                if all(have.get(k) == str(v) for k, v in labels.items()):
                    return float(match[3])
        raise AssertionError(f"no metric {name} {labels}")

    def idle(self):
        """No request, no pin, no filling block."""
        return (self.metric("vllm:num_requests_running") == 0
                and self.metric("vllm:num_requests_waiting") == 0
                and self.metric("kvnode_kv_blocks", state="pinned") == 0
                and self.metric("kvnode_kv_blocks", state="filling") == 0)

    def left_behind(self):
        """What a node of this name still owns: shared memory and sockets."""
        return ([str(p) for p in pathlib.Path("/dev/shm").glob(f"kvnode-{self.name}*")]
                + [str(p) for p in self.directory.glob(f"{self.name}.*") if p != self.log_path])

    def stop(self, how=signal.SIGTERM):
        """Stops the node and returns its exit code."""
        if self.process.poll() is None:
            os.kill(self.pid, how)
        code = self.process.wait(timeout=60 * PATIENCE)
        self.process.stdout.close()
        self.log.close()
        return code

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if self.process.poll() is None:
            self.stop()
        if kind is not None:
            print(self.log_text()[-4000:])


@pytest.fixture(scope="session")
def shared_node(tmp_path_factory):
    """A node of two workers for tests that leave it as they found it."""
    with Node(tmp_path_factory.mktemp("node"), workers=2) as node:
        yield node
