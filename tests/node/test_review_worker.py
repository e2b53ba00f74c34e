"""What a worker must not do to those who come after it (a router that has just started, its store), and what no
edge may change in an answer: chunks, budgets, resumes, the end of the window, odd parameters."""
import fcntl
import struct

import pytest
from conftest import PATIENCE
from test_worker_protocol import FINISH_LENGTH, GOLDENS, Stand


def test_the_last_worker_out_leaves_what_a_starting_router_has_taken(tmp_path):
    """A router holds the name's lock before it adopts the store, long before its control socket listens."""
    with Stand(tmp_path, isa="auto", worker_orphan_grace_s=1) as stand:
        worker = stand.start_worker()
        stand.welcome()
        stand.die()
        with open(tmp_path / f"{stand.name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert worker.wait(timeout=20 * PATIENCE) == 0
            assert len(stand.left_behind()) == 3, "the new router's store or sockets are gone"
        assert stand.is_clean()


def test_of_workers_that_leave_together_one_clears_up(tmp_path):
    for _ in range(3):
        with Stand(tmp_path, isa="auto", worker_orphan_grace_s=1) as stand:
            workers = [stand.start_worker(i) for i in range(3)]
            for _ in workers:
                stand.welcome()
            stand.die()
            for worker in workers:
                assert worker.wait(timeout=20 * PATIENCE) == 0
            assert stand.left_behind() == []
            assert not (tmp_path / f"{stand.name}.lock").exists()


def submit(stand, peer, id, ids, n_emitted=0, **sampling):
    """Like Stand.submit, the last n_emitted of ids being output that is out already."""
    defaults = {"temperature": 0.9, "top_p": 0.95, "top_k": 50, "min_p": 0.0, "seed": 2 ** 63 + 5, "choice": 0,
                "n_logprobs": 2, "max_tokens": 40, "min_tokens": 20, "ignore_eos": False, "stop_ids": b""}
    stand.send(peer, "SUBMIT", id=id, n_prompt=len(ids) - n_emitted, n_emitted=n_emitted, root=stand.root,
               priority=0, is_counted=False, tokens=struct.pack(f"<{len(ids)}I", *ids), sampling={**defaults, **sampling})


PROMPTS = [(GOLDENS[5]["ids"] * 3)[:n] for n in (1, 15, 16, 17, 47, 48, 49, 160)]
RESUMED_AT = (1, 15, 16, 17, 19, 20, 39)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The answers, one after another, each prompt in one chunk, nothing cached but shorter prompts."""
    with Stand(tmp_path_factory.mktemp("whole"), isa="auto") as stand:
        stand.start_worker()
        peer, _ = stand.welcome()
        out = []
        for i, ids in enumerate(PROMPTS):
            submit(stand, peer, i, ids)
            out.append(stand.collect([i])[i])
        assert all(o["finish"] == FINISH_LENGTH and len(o["tokens"]) == 40 for o in out)
        return out


@pytest.mark.parametrize("budget", [3, 17])
def test_no_budget_changes_an_answer(tmp_path, whole, budget):
    """64 blocks for 8 sequences: prompts come in chunks of any cut, batched with decodes of others."""
    with Stand(tmp_path, isa="auto", scheduler_max_batch_tokens=budget) as stand:
        stand.start_worker()
        peer, _ = stand.welcome()
        for i in reversed(range(len(PROMPTS))):
            submit(stand, peer, i, PROMPTS[i])
        out = stand.collect(range(len(PROMPTS)))
        for i, one in enumerate(whole):
            assert (out[i]["tokens"], out[i]["logprobs"]) == (one["tokens"], one["logprobs"]), len(PROMPTS[i])
        assert stand.is_clean()


def test_a_resume_goes_on_as_if_nothing_had_happened(tmp_path, whole):
    """Of a stop id that would come before min_tokens, too: it is banned by what is out already."""
    ids, one = PROMPTS[5], whole[5]
    with Stand(tmp_path, isa="auto", scheduler_max_batch_tokens=20) as stand:
        stand.start_worker()
        peer, _ = stand.welcome()
        for n in RESUMED_AT:
            submit(stand, peer, n, ids + one["tokens"][:n], n_emitted=n)
        out = stand.collect(RESUMED_AT)
        for n in RESUMED_AT:
            assert out[n]["tokens"] == one["tokens"][n:], n
            assert out[n]["logprobs"] == one["logprobs"][n:], n
        stop = struct.pack("<I", one["tokens"][30])
        for id, n in ((100, 0), (110, 10), (125, 25)):
            submit(stand, peer, id, ids + one["tokens"][:n], n_emitted=n, stop_ids=stop, min_tokens=20)
        stopped = stand.collect((100, 110, 125))
        if one["tokens"][30] not in one["tokens"][:30]:  # the ban changed nothing before
            assert stopped[125]["tokens"] == one["tokens"][25:31]
        assert stopped[110]["tokens"] == stopped[100]["tokens"][10:]
        assert struct.unpack("<I", stop)[0] not in stopped[100]["tokens"][:19]
        submit(stand, peer, 140, ids + one["tokens"], n_emitted=40)
        assert stand.expect("FAILED")[1]["code"] == "LIMIT"
        assert stand.is_clean()


@pytest.mark.parametrize("window", [17, 48])
def test_an_answer_ends_with_the_window(tmp_path, whole, window):
    with Stand(tmp_path, isa="auto", max_context=window) as stand:
        stand.start_worker()
        peer, _ = stand.welcome()
        fitting = [i for i, ids in enumerate(PROMPTS) if len(ids) < window]
        for i in range(len(fitting), len(PROMPTS)):
            submit(stand, peer, i, PROMPTS[i])
            assert stand.expect("FAILED")[1]["id"] == i
        for i in fitting:
            submit(stand, peer, i, PROMPTS[i])
        out = stand.collect(fitting)
        for i in fitting:
            n = min(40, window - len(PROMPTS[i]))
            assert out[i]["tokens"] == whole[i]["tokens"][:n] and out[i]["finish"] == FINISH_LENGTH
        assert stand.is_clean()


def test_odd_parameters_are_served(tmp_path, whole):
    """Limits that leave one token are greedy; none of them hangs, and all are drawn in one batch."""
    ids = PROMPTS[3]
    greedy = [{"temperature": 0.0}, {"temperature": 1e-6}, {"temperature": 1e-5}, {"top_k": 1, "temperature": 2.0},
              {"min_p": 1.0, "temperature": 100.0}, {"top_p": 1e-30}]
    others = [{"temperature": 3e38, "top_p": 1.0, "top_k": 0}, {"top_k": 2 ** 32 - 1, "top_p": 1.0, "seed": 2 ** 64 - 1},
              {"min_tokens": 2 ** 32 - 1}, {"stop_ids": struct.pack("<64I", *range(2 ** 32 - 64, 2 ** 32))},
              {"n_logprobs": 20}, {"n_logprobs": -1}]
    with Stand(tmp_path, isa="auto") as stand:
        stand.start_worker()
        peer, _ = stand.welcome()
        for i, odd in enumerate(greedy + others):
            submit(stand, peer, i, ids, **odd)
        out = stand.collect(range(len(greedy + others)))
        assert all(len(o["tokens"]) == 40 for o in out.values())
        assert all(out[i]["tokens"] == out[0]["tokens"] for i in range(len(greedy)))
        n = len(greedy) + 2
        assert all(out[i]["tokens"] == whole[3]["tokens"] for i in range(n, n + 4))
        assert out[n]["logprobs"] == whole[3]["logprobs"]
