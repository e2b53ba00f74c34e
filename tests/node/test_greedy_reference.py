"""The numbers of each ISA path over HTTP against the fp32 reference (fixtures: logits_smollm2.jsonl, transformers,
with the tolerances of the fixtures' README)."""
import concurrent.futures
import math

import pytest
from conftest import Node
from support_api import complete, fixture, texts

GOLDENS = {g["id"]: g for g in fixture("logits_smollm2.jsonl")}
SHORT = ["p_capital", "p_list", "p_unicode", "p_code", "p_chat"]
FP32 = 1e-3  # logits, plain path with f32 KV
# int8 activations: logprobs of the reference's top 5 within 0.4, argmax equal where the margin is above 0.5
INT8_LOGPROB, INT8_MARGIN = 0.4, 0.5


def has(isa):
    flags = next(line for line in open("/proc/cpuinfo") if line.startswith("flags")).split()
    return {"plain": True, "avx2": "avx2" in flags, "avx512": "avx512_vnni" in flags}[isa]


@pytest.fixture(scope="module")
def plain_node(tmp_path_factory):
    with Node(tmp_path_factory.mktemp("plain"), workers=2, isa="plain", kv_format="f32") as node:
        yield node


@pytest.fixture(scope="module", params=["avx2", "avx512"])
def fast_node(request, tmp_path_factory):
    if not has(request.param):
        pytest.skip(f"this machine has no {request.param}")
    with Node(tmp_path_factory.mktemp(request.param), isa=request.param) as node:
        assert node.isa == request.param
        yield node


def reference_logprobs(golden, n=5):
    """Text of the n likeliest tokens -> log-softmax, from the golden's logits."""
    ids = golden["top_ids"][:n]
    return dict(zip(texts(ids), (logit - golden["logsumexp"] for logit in golden["top_logits"])))


def first_step(node, ids, **fields):
    choice = complete(node, ids, max_tokens=1, logprobs=5, ignore_eos=True, **fields)["choices"][0]
    return choice["logprobs"]["tokens"][0], choice["logprobs"]["top_logprobs"][0]


def test_plain_logprobs_are_those_of_the_reference(plain_node):
    for name in SHORT:
        golden = GOLDENS[name]
        _, top = first_step(plain_node, golden["ids"])
        want = reference_logprobs(golden)
        assert list(top) == list(want) or golden["greedy_margin"][0] < 0.1, name
        assert set(top) == set(want), name
        for token, logprob in want.items():
            assert math.isclose(top[token], logprob, abs_tol=FP32), (name, token, top[token], logprob)


def test_plain_greedy_tokens_are_those_of_the_reference(plain_node):
    def run(name):
        return complete(plain_node, GOLDENS[name]["ids"], max_tokens=12, logprobs=0, ignore_eos=True)

    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        answers = dict(zip(SHORT, pool.map(run, SHORT)))
    n_compared = 0
    for name, answer in answers.items():
        margins = GOLDENS[name]["greedy_margin"][:12]
        certain = next((k for k, m in enumerate(margins) if m <= 2 * FP32), len(margins))
        got = answer["choices"][0]["logprobs"]["tokens"]
        assert got[:certain] == texts(GOLDENS[name]["greedy_ids"][:certain]), name
        n_compared += certain
    assert n_compared >= 50


def test_fast_logprobs_are_near_the_reference(fast_node):
    for name, golden in GOLDENS.items():
        _, top = first_step(fast_node, golden["ids"])
        for token, logprob in reference_logprobs(golden).items():
            # one that fell out of our top 5 is at most as likely as the fifth
            got = top.get(token, min(top.values()))
            low_enough = token not in top or got < logprob + INT8_LOGPROB
            assert got > logprob - INT8_LOGPROB and low_enough, (name, token, got, logprob)


def test_fast_paths_choose_the_reference_token_where_the_margin_is_wide(fast_node):
    """Teacher-forced: the reference's own tokens so far are the prompt, so that each step stands for itself."""
    n_wide = 0
    for name in SHORT:
        golden = GOLDENS[name]
        for step, margin in enumerate(golden["greedy_margin"][:16]):
            if margin <= INT8_MARGIN:
                continue
            token, _ = first_step(fast_node, golden["ids"] + golden["greedy_ids"][:step])
            assert [token] == texts(golden["greedy_ids"][step:step + 1]), (name, step, margin)
            n_wide += 1
    assert n_wide > 40
