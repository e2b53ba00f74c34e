"""One real worker process, and this test as its router: the protocol page (ipc/message.h) spoken in msgpack over
a ROUTER socket. The store is made by build/tests/helper_worker_store; the part of the router's process is played
by a child that can be killed. Greedy goldens: tests/fixtures/logits_smollm2.jsonl (transformers, fp32)."""
import itertools
import json
import pathlib
import signal
import struct
import subprocess
import os

import msgpack
import pytest
import zmq

from conftest import BUILD, MODEL, PATIENCE, ROOT, wait_until

_serial = itertools.count()
GOLDENS = [json.loads(line) for line in open(ROOT / "tests/fixtures/logits_smollm2.jsonl")]
# A token is certain where the reference's margin is above twice the path's tolerance on logits, as far as no
# uncertain one came before it (the fixtures' README): 1e-3 for fp32 arithmetic, 0.4 for int8 activations.
CERTAIN_MARGIN = {"plain": 2e-3, "avx2": 0.8, "avx512": 0.8}
FINISH_STOP, FINISH_LENGTH = 1, 2
KINDS = {name: number for number, name in enumerate(
    "HELLO WELCOME SUBMIT CANCEL TOKENS FAILED STATS DRAIN STOP".split(), start=1)}


class Stand:
    """The store, a stand-in for the router's process, and the router's socket."""

    def __init__(self, directory, **keys):
        self.directory = pathlib.Path(directory)
        self.name = f"w{os.getpid()}-{next(_serial)}"
        keys = {"isa": "plain", "threads": 2, "worker_orphan_grace_s": 2, **keys}
        self.flags = [str(MODEL), "--name", self.name, "--runtime-dir", str(self.directory)]
        for key, value in keys.items():
            self.flags += ["--" + key.replace("_", "-"), str(value)]
        self.store = subprocess.Popen([str(BUILD / "tests/helper_worker_store"), *self.flags], text=True,
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.hello = json.loads(self.store.stdout.readline())
        self.root = bytes.fromhex(self.hello["root"])
        self.router = None
        self.context = zmq.Context()
        self.socket = None
        self.workers = []
        self.listen()

    def listen(self):
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.bind(f"ipc://{self.directory}/{self.name}.zmq")
        self.router = subprocess.Popen(["sleep", "1000"])

    def die(self):
        """What the kernel does to a router that is killed: no process, no listener; the files stay."""
        self.socket.close()
        self.router.kill()
        self.router.wait()
        for suffix in ("zmq", "sock"):
            (self.directory / f"{self.name}.{suffix}").touch()

    def start_worker(self, index=0, **environment):
        log = open(self.directory / f"worker{len(self.workers)}.log", "w")
        worker = subprocess.Popen([str(BUILD / "kvnode-worker"), *self.flags], stderr=log, stdin=subprocess.DEVNULL,
                                  env={**os.environ, "KVNODE_WORKER_INDEX": str(index), **environment})
        log.close()
        self.workers.append(worker)
        return worker

    def log_text(self):
        return "".join(p.read_text() for p in sorted(self.directory.glob("worker*.log")))

    def receive(self, timeout_s=30):
        def has_come():
            if self.socket.poll(100):
                return True
            assert not self.workers or any(w.poll() is None for w in self.workers), f"dead:\n{self.log_text()}"
            return False
        wait_until(has_come, timeout_s)
        peer, frame = self.socket.recv_multipart()
        return peer, msgpack.unpackb(frame)

    def expect(self, kind, timeout_s=30):
        """The next message of that kind; STATS come whenever they like."""
        while True:
            peer, message = self.receive(timeout_s)
            if message["t"] == KINDS[kind]:
                return peer, message
            assert message["t"] in (KINDS["STATS"], KINDS["HELLO"]), message

    def send(self, peer, kind, **fields):
        self.socket.send_multipart([peer, msgpack.packb({"t": KINDS[kind], **fields})])

    def welcome(self):
        peer, hello = self.expect("HELLO")
        stat = pathlib.Path(f"/proc/{self.router.pid}/stat").read_text()
        self.send(peer, "WELCOME", protocol=1, router_pid=self.router.pid,
                  router_start=int(stat.rsplit(")", 1)[1].split()[19]))
        return peer, hello

    def submit(self, peer, id, ids, **sampling):
        defaults = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": 0, "choice": 0,
                    "n_logprobs": -1, "max_tokens": 32, "min_tokens": 0, "ignore_eos": True, "stop_ids": b""}
        self.send(peer, "SUBMIT", id=id, n_prompt=len(ids), n_emitted=0, root=self.root, priority=0, is_counted=False,
                  tokens=struct.pack(f"<{len(ids)}I", *ids), sampling={**defaults, **sampling})

    def collect(self, ids):
        """Entries of these sequences until each has a finish: id -> tokens, logprobs, n_cached, finish."""
        out = {i: {"tokens": [], "logprobs": [], "n_cached": None, "finish": 0} for i in ids}
        while not all(o["finish"] for o in out.values()):
            _, message = self.expect("TOKENS")
            for entry in message["sequences"]:
                seen = out[entry["id"]]
                tokens = entry["tokens"]
                seen["tokens"] += struct.unpack(f"<{len(tokens) // 4}I", tokens)
                seen["logprobs"] += entry["logprobs"]
                assert ("n_cached" in entry) == (seen["n_cached"] is None)
                seen["n_cached"] = entry.get("n_cached", seen["n_cached"])
                seen["finish"] = entry["finish"]
        return out

    def stats(self):
        self.store.stdin.write("stats\n")
        self.store.stdin.flush()
        return json.loads(self.store.stdout.readline())

    def is_clean(self):
        stats = self.stats()
        return stats["pinned"] == 0 and stats["filling"] == 0

    def left_behind(self):
        return (list(pathlib.Path("/dev/shm").glob(f"kvnode-{self.name}*"))
                + [p for s in ("sock", "zmq") for p in self.directory.glob(f"{self.name}.{s}")])

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()
            worker.wait()
        self.router.kill()
        self.router.wait()
        self.context.destroy(linger=0)
        self.store.communicate("remove\n")
        if kind is not None:
            print(self.log_text()[-4000:])


def assert_greedy(golden, seen, isa):
    margins = golden["greedy_margin"]
    certain = next((k for k, m in enumerate(margins) if m <= CERTAIN_MARGIN[isa]), len(margins))
    assert seen["tokens"][:certain] == golden["greedy_ids"][:certain], golden["id"]
    assert seen["finish"] == FINISH_LENGTH and len(seen["tokens"]) == len(margins)
    return certain


def test_greedy_tokens_equal_the_reference_on_the_plain_path(tmp_path):
    goldens = [g for g in GOLDENS if g["id"] in ("p_capital", "p_list")]
    with Stand(tmp_path) as stand:
        stand.start_worker()
        peer, hello = stand.welcome()
        assert hello["worker"] == 0 and hello["pid"] == stand.workers[0].pid and hello["isa"] == "plain"
        assert hello["fingerprint"].hex() == stand.hello["fingerprint"]
        for i, golden in enumerate(goldens):
            stand.submit(peer, i, golden["ids"])
        out = stand.collect(range(len(goldens)))
        assert [assert_greedy(g, out[i], "plain") for i, g in enumerate(goldens)] == [32, 32]


def test_tokens_are_the_same_together_alone_and_cached(tmp_path):
    with Stand(tmp_path, isa="auto") as stand:
        stand.start_worker()
        peer, hello = stand.welcome()
        for i, golden in enumerate(GOLDENS):
            stand.submit(peer, i, golden["ids"], n_logprobs=0)
        together = stand.collect(range(len(GOLDENS)))
        certain = [assert_greedy(g, together[i], hello["isa"]) for i, g in enumerate(GOLDENS)]
        assert sum(certain) >= 1
        for i, golden in enumerate(GOLDENS):
            stand.submit(peer, 100 + i, golden["ids"], n_logprobs=0)
            again = stand.collect([100 + i])[100 + i]
            # whole blocks, and one token at least is computed
            assert again["n_cached"] == (len(golden["ids"]) - 1) // 16 * 16
            assert again["tokens"] == together[i]["tokens"]
            assert again["logprobs"] == together[i]["logprobs"]
        stats = stand.stats()
        assert stats["pinned"] == 0 and stats["filling"] == 0
        assert stats["computed"] + stats["host"] == 2 * sum(len(g["ids"]) for g in GOLDENS)


def test_stops_at_stop_ids_and_bans_them_before_min_tokens(tmp_path):
    golden = GOLDENS[0]
    third = struct.pack("<I", golden["greedy_ids"][2])
    first = golden["greedy_ids"].index(golden["greedy_ids"][2])
    with Stand(tmp_path) as stand:
        stand.start_worker()
        peer, _ = stand.welcome()
        stand.submit(peer, 1, golden["ids"], stop_ids=third, ignore_eos=False)
        stand.submit(peer, 2, golden["ids"], stop_ids=third, ignore_eos=False, min_tokens=8, max_tokens=8)
        out = stand.collect([1, 2])
        assert out[1]["tokens"] == golden["greedy_ids"][:first + 1] and out[1]["finish"] == FINISH_STOP
        assert golden["greedy_ids"][2] not in out[2]["tokens"] and len(out[2]["tokens"]) == 8


def test_survives_everything_that_a_router_may_send_wrongly(tmp_path):
    with Stand(tmp_path, isa="auto") as stand:
        worker = stand.start_worker()
        peer, _ = stand.welcome()
        for garbage in (b"", b"\xc1", b"\x81\xa1t\x03", os.urandom(200), b"\xdf\xff\xff\xff\xff",
                        msgpack.packb({"t": KINDS["SUBMIT"], "id": 1}), msgpack.packb({"t": 77}),
                        msgpack.packb({"t": KINDS["TOKENS"], "step": 1, "sequences": []})):
            stand.socket.send_multipart([peer, garbage])
        stand.socket.send_multipart([peer, b"two", b"frames"])
        stand.send(peer, "CANCEL", id=12345)
        stand.submit(peer, 7, [1, 2, 4_000_000_000])
        _, failed = stand.expect("FAILED")
        assert failed["id"] == 7 and failed["code"] == "PARSE" and "4000000000" in failed["text"]
        stand.submit(peer, 8, [1] * 9000)
        _, failed = stand.expect("FAILED")
        assert failed["id"] == 8 and failed["code"] == "LIMIT" and "9000" in failed["text"]
        stand.submit(peer, 9, GOLDENS[0]["ids"], max_tokens=4)
        assert len(stand.collect([9])[9]["tokens"]) == 4
        assert worker.poll() is None


def test_cancel_frees_all_blocks(tmp_path):
    with Stand(tmp_path, isa="auto") as stand:
        stand.start_worker()
        peer, _ = stand.welcome()
        for i in range(4):
            stand.submit(peer, i, GOLDENS[5]["ids"][:100 + 20 * i], max_tokens=400)
        stand.expect("TOKENS")
        assert not stand.is_clean()
        for i in range(4):
            stand.send(peer, "CANCEL", id=i)
        wait_until(stand.is_clean, 5)


def test_a_lost_routers_sequences_are_void_and_the_next_router_is_served(tmp_path):
    with Stand(tmp_path, isa="auto", worker_orphan_grace_s=20) as stand:
        worker = stand.start_worker()
        peer, _ = stand.welcome()
        stand.submit(peer, 1, GOLDENS[5]["ids"], max_tokens=700)
        stand.expect("TOKENS")
        stand.die()
        wait_until(stand.is_clean, 5)
        assert worker.poll() is None
        (stand.directory / f"{stand.name}.zmq").unlink()
        stand.listen()
        peer, _ = stand.welcome()
        stand.submit(peer, 1, GOLDENS[0]["ids"], max_tokens=4)  # the id is free again
        assert len(stand.collect([1])[1]["tokens"]) == 4


def test_without_a_router_workers_leave_and_the_last_one_clears_up(tmp_path):
    with Stand(tmp_path, isa="auto") as stand:
        workers = [stand.start_worker(0), stand.start_worker(1)]
        stand.welcome()
        stand.welcome()
        stand.die()
        assert stand.left_behind()
        for worker in workers:
            assert worker.wait(timeout=10 * PATIENCE) == 0
        assert stand.left_behind() == []


@pytest.mark.parametrize("how", ["STOP", "SIGTERM"])
def test_stops_cleanly_and_leaves_the_store_to_the_router(tmp_path, how):
    with Stand(tmp_path, isa="auto") as stand:
        worker = stand.start_worker()
        peer, _ = stand.welcome()
        stand.submit(peer, 1, GOLDENS[5]["ids"], max_tokens=700)
        stand.expect("TOKENS")
        worker.send_signal(signal.SIGINT)  # the router's to decide
        stand.expect("TOKENS")
        if how == "STOP":
            stand.send(peer, "STOP")
        else:
            worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=10 * PATIENCE) == 0
        stats = stand.stats()
        assert stats["pinned"] == 0 and stats["filling"] == 0 and stats["leases"] == 0
        assert stand.left_behind()


@pytest.mark.parametrize("flags, words", [
    (["--kv-format", "f32"], "fingerprint"),
    (["--name", "no-such-node"], "no-such-node"),
    (["--nonsense", "1"], "--nonsense"),
])
def test_refuses_in_one_line_what_does_not_fit(tmp_path, flags, words):
    with Stand(tmp_path, isa="auto") as stand:
        command = [str(BUILD / "kvnode-worker"), *stand.flags, *flags]
        result = subprocess.run(command, env={**os.environ, "KVNODE_WORKER_INDEX": "0"}, capture_output=True,
                                text=True, timeout=30 * PATIENCE)
        assert result.returncode == 1
        assert words in result.stderr and result.stderr.count("\n") == 1, result.stderr
