"""One store for all workers: what one computed another reuses, and no answer shows the difference
(DESIGN invariants 2 and 3; cases 8)."""
import concurrent.futures

import pytest
from conftest import Node, wait_until

BLOCK = 16


def ids_prompt(n, salt):
    """n token ids that no other test uses: plain words of the vocabulary, in a fixed pseudo-random walk."""
    x, ids = 1000 + salt, []
    for _ in range(n):
        x = (x * 1103515245 + 12345) % (1 << 31)
        ids.append(1000 + x % 40000)
    return ids


def complete(node, prompt, worker=None, **fields):
    headers = {} if worker is None else {"x-data-parallel-rank": str(worker)}
    status, answer = node.post("/v1/completions", {"prompt": prompt, "temperature": 0, "max_tokens": 24,
                                                   "logprobs": 3, "ignore_eos": True, **fields}, headers)
    assert status == 200, answer
    return answer


def facts(answer):
    """What must not depend on cache, company or worker."""
    choice = answer["choices"][0]
    return choice["text"], choice["logprobs"], choice["finish_reason"]


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_a_second_worker_reuses_all_full_blocks_with_the_same_bytes(shared_node):
    prompt = ids_prompt(600, salt=1)
    cold = complete(shared_node, prompt, worker=0)
    warm = complete(shared_node, prompt, worker=1)
    assert cached(cold) == 0
    assert cached(warm) == 600 // BLOCK * BLOCK == 592
    assert facts(warm) == facts(cold)


@pytest.mark.parametrize("n", [BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK - 1, 3 * BLOCK, 3 * BLOCK + 1])
def test_at_least_one_prompt_token_is_computed(shared_node, n):
    prompt = ids_prompt(n, salt=100 + n)
    cold = complete(shared_node, prompt, worker=1)
    warm = complete(shared_node, prompt, worker=0)
    assert cached(cold) == 0
    assert cached(warm) == (n - 1) // BLOCK * BLOCK
    assert facts(warm) == facts(cold)


def test_cold_warm_alone_and_in_company_give_the_same_bytes(shared_node):
    prompt = ids_prompt(300, salt=2)
    cold = complete(shared_node, prompt)
    warm = complete(shared_node, prompt)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        others = [pool.submit(complete, shared_node, ids_prompt(60 + 31 * i, salt=200 + i), max_tokens=40)
                  for i in range(7)]
        company = complete(shared_node, prompt)
        for other in others:
            other.result()
    assert cached(warm) > 0
    assert facts(cold) == facts(warm) == facts(company)


def test_decoded_blocks_are_shared_too(shared_node):
    """The next turn of a chat starts with what was generated before."""
    prompt = ids_prompt(64, salt=3)
    first = complete(shared_node, prompt, worker=0, max_tokens=64)
    status, ids = shared_node.post("/tokenize", {"prompt": first["choices"][0]["text"],
                                                 "add_special_tokens": False})
    assert status == 200
    # only where the text encodes to the very tokens that were generated can it hit
    if len(ids["tokens"]) == 64:
        second = complete(shared_node, prompt + ids["tokens"] + [1234], worker=1)
        assert cached(second) >= 64 + 48


def test_eviction_changes_no_answer(tmp_path):
    """A pool of 64 blocks is overrun: cold, evicted and recomputed answers are equal."""
    with Node(tmp_path, workers=1, kv_memory=64 * 368640, max_context=1024) as node:
        prompts = [ids_prompt(400, salt=300 + i) for i in range(6)]
        cold = [facts(complete(node, p)) for p in prompts]
        again = [facts(complete(node, p)) for p in prompts]
        assert cold == again
        assert node.metric("kvnode_kv_blocks_evicted_total") > 0
        wait_until(node.idle)


def test_preemption_changes_no_answer(tmp_path):
    """Eight sequences that together need more blocks than there are: all finish, as they do alone."""
    with Node(tmp_path, workers=1, kv_memory=64 * 368640, max_context=1024) as node:
        prompts = [ids_prompt(120, salt=400 + i) for i in range(8)]
        alone = [facts(complete(node, p, max_tokens=100)) for p in prompts]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            together = list(pool.map(lambda p: facts(complete(node, p, max_tokens=100)), prompts))
        assert together == alone
        wait_until(node.idle)


def test_prompt_tokens_are_accounted_once_by_source(tmp_path):
    with Node(tmp_path, workers=2) as node:
        prompts = [ids_prompt(50 + 17 * i, salt=500 + i % 3) for i in range(9)]
        for p in prompts:
            complete(node, p, max_tokens=2)
        total = sum(node.metric("kvnode_prompt_tokens_total", source=s) for s in ("computed", "host"))
        assert total == sum(len(p) for p in prompts)
