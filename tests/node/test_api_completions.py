"""/v1/completions, /tokenize and /detokenize as clients see them: shapes, streams, stops, limits, edges (cases 1, 2,
4, 5, 6, 9, 11). Tokeniser goldens: tokenizer_smollm2.jsonl, detok_smollm2.jsonl (HF tokenizers)."""
import asyncio
import concurrent.futures
import json

import openai
import pytest
from conftest import ROOT, Node
from support_api import (ask, client_of, complete, data_of, events, exchange, fixture, joined, refused, texts,
                         vocabulary)

PATH = "/v1/completions"
TINY = ROOT / "tests/fixtures/tiny/llama/model-F16.gguf"
WINDOW_TOKENS = 512  # of the tiny model
COUNTED = "one two three four five six seven\none two three four five six seven\none two"


@pytest.fixture(scope="module")
def tiny_node(tmp_path_factory):
    """A model of random weights over 384 tokens, all single bytes among them: fast, and its text is often broken."""
    with Node(tmp_path_factory.mktemp("tiny"), model=TINY, kv_memory="4MiB") as node:
        yield node


# --- shapes


def test_the_openai_client_gets_a_whole_completion(shared_node):
    answer = client_of(shared_node).completions.create(model=shared_node.model, prompt="The capital of France is",
                                                       max_tokens=4, temperature=0, logprobs=2)
    choice = answer.choices[0]
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-") and answer.model == shared_node.model
    assert choice.text.startswith(" Paris") and choice.finish_reason == "length" and choice.index == 0
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (5, 4, 9)
    assert usage.prompt_tokens_details.cached_tokens == 0
    logprobs = choice.logprobs
    assert "".join(logprobs.tokens) == choice.text and len(logprobs.tokens) == 4
    assert [choice.text[o:o + len(t)] for o, t in zip(logprobs.text_offset, logprobs.tokens)] == logprobs.tokens
    for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs):
        assert top[token] == logprob == max(top.values()) and len(top) == 2


def test_a_streamed_completion_equals_the_plain_one_logprobs_and_all(shared_node):
    fields = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "logprobs": 3}
    plain = complete(shared_node, **fields)["choices"][0]
    chunks = events(shared_node, PATH, fields)
    assert joined(chunks) == (plain["text"], plain["finish_reason"])
    whole = {key: [] for key in plain["logprobs"]}
    for chunk in chunks:
        assert chunk["object"] == "text_completion"
        for key, values in (chunk["choices"][0]["logprobs"] or {}).items():
            whole[key] += values
    assert whole == plain["logprobs"]


def test_the_async_client_runs_streams_side_by_side(shared_node):
    async def one(client, i):
        text = ""
        async for chunk in await client.completions.create(model=shared_node.model, prompt=f"{i}, {i + 1},",
                                                           stream=True, max_tokens=6, temperature=0):
            text += chunk.choices[0].text
        return text

    async def all_of_them():
        async with client_of(shared_node, openai.AsyncOpenAI) as client:
            return await asyncio.gather(*(one(client, i) for i in range(6)))

    assert asyncio.run(all_of_them()) == [complete(shared_node, f"{i}, {i + 1},", max_tokens=6)["choices"][0]["text"]
                                          for i in range(6)]


@pytest.mark.parametrize("prompt", ["The capital of France is", ["The capital of France is"],
                                    [504, 3575, 282, 4649, 314], [[504, 3575, 282, 4649, 314]]])
def test_a_prompt_may_be_text_or_ids_alone_or_in_a_list(shared_node, prompt):
    answer = complete(shared_node, prompt, max_tokens=2)
    assert answer["usage"]["prompt_tokens"] == 5
    assert answer["choices"][0]["text"] == complete(shared_node, "The capital of France is",
                                                    max_tokens=2)["choices"][0]["text"]


# --- usage in streams (case 11)


@pytest.mark.parametrize("options, has_usage", [
    ({}, False), ({"stream_options": None}, False), ({"stream_options": {}}, False),
    ({"stream_options": {"include_usage": False}}, False), ({"stream_options": {"include_usage": True}}, True),
    ({"stream_options": {"include_usage": True}, "stop": ["four"]}, True)])
def test_usage_comes_once_and_only_when_asked_for(shared_node, options, has_usage):
    fields = {"prompt": COUNTED, "max_tokens": 6, "temperature": 0, **options}
    chunks = events(shared_node, PATH, fields)
    if not has_usage:
        assert all("usage" not in c and len(c["choices"]) == 1 for c in chunks)
        return
    *others, last = chunks
    assert all(c["usage"] is None and len(c["choices"]) == 1 for c in others)
    assert last["choices"] == []
    plain = complete(shared_node, **{k: v for k, v in fields.items() if k != "stream_options"})["usage"]
    assert {**last["usage"], "prompt_tokens_details": 0} == {**plain, "prompt_tokens_details": 0}


def test_stream_options_without_a_stream_are_refused(shared_node):
    for fields in ({}, {"stream": False}):
        error = refused(shared_node, PATH, {"prompt": "x", "stream_options": {"include_usage": True}, **fields})
        assert error["param"] == "stream_options"


# --- stop strings (case 2)


@pytest.mark.parametrize("stop", [["ree four fi"], "ree four fi", ["seven\nNEVER"], ["four", "three four"],
                                  ["nothing", "of", "the", "kind\n\n"]])
def test_a_stop_string_is_never_shown_and_failed_matches_are_released(shared_node, stop):
    fields = {"prompt": COUNTED, "max_tokens": 24, "temperature": 0}
    whole = complete(shared_node, **fields)["choices"][0]
    free = whole["text"]
    assert free.startswith(" three four five six seven\n")  # the model copies, so that the stops are hit
    hits = [free.find(s) for s in ([stop] if isinstance(stop, str) else stop) if s in free]
    want = free[:min(hits)] if hits else free
    plain = complete(shared_node, **fields, stop=stop)
    chunks = events(shared_node, PATH, {**fields, "stop": stop, "stream_options": {"include_usage": True}})
    assert plain["choices"][0]["text"] == want
    finish = "stop" if hits else whole["finish_reason"]
    assert joined(chunks) == (want, finish) and plain["choices"][0]["finish_reason"] == finish
    assert chunks[-1]["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]
    shown = [c["choices"][0]["text"] for c in chunks if c["choices"]]
    assert all(shown[:-1])  # no empty chunks while text is held back


@pytest.mark.parametrize("stop", [[""], "", ["a", "b", "c", "d", "e"], [1], {"a": 1}, [["x"]]])
def test_stops_that_cannot_be_are_refused(shared_node, stop):
    assert refused(shared_node, PATH, {"prompt": "x", "stop": stop})["param"] == "stop"


def test_completion_tokens_count_what_a_stop_string_cut(shared_node):
    """" three four fi": the stop ends inside the third word."""
    answer = complete(shared_node, COUNTED, max_tokens=24, stop=["ree four fi"])
    assert answer["choices"][0]["text"] == " th" and answer["usage"]["completion_tokens"] == 3


# --- characters over several tokens (case 1)


def as_shown(ids, model):
    """HF's decode of the ids without control tokens: invalid UTF-8 becomes U+FFFD once a maximal subpart, as in
    Python."""
    return data_of(ids, model).decode("utf-8", "replace")


def test_broken_text_streams_as_it_decodes(tiny_node):
    """Tokens at random: every event is valid, the stream equals the plain text, which equals the decoded tokens."""
    names = {text: i for i, text in enumerate(texts(range(384), TINY))}
    control = {names[t] for t in texts(range(380, 384), TINY)}

    def run(seed):
        fields = {"prompt": "🧵👩🏽‍🚀", "max_tokens": 40, "temperature": 2, "seed": seed}
        plain = ask(tiny_node, PATH, {**fields, "logprobs": 0})
        return plain["choices"][0], joined(events(tiny_node, PATH, fields))

    n_broken = n_wide = 0
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for plain, streamed in pool.map(run, range(100)):
            ids = [names[token] for token in plain["logprobs"]["tokens"]]
            want = as_shown([i for i in ids if i not in control], TINY)
            assert plain["text"] == want and streamed == (want, plain["finish_reason"])
            n_broken += "\ufffd" in want
            n_wide += any("\x7f" < c != "\ufffd" for c in want)
    assert n_broken > 50 and n_wide > 10


def test_copied_emoji_stream_whole(shared_node):
    line = "Copy exactly: 🧵👩🏽‍🚀🏴‍☠️ 𝔛 한글 ทดสอบ\n"
    fields = {"prompt": line * 2 + "Copy exactly: 🧵", "max_tokens": 40, "temperature": 0}
    plain = complete(shared_node, **fields)["choices"][0]["text"]
    chunks = events(shared_node, PATH, fields)
    assert joined(chunks)[0] == plain
    assert plain.startswith("👩🏽‍🚀🏴‍☠️ 𝔛 한글")
    # max_tokens may cut a character: what there is of it leaves at the end
    assert "\ufffd" not in "".join(c["choices"][0]["text"] for c in chunks[:-2])


def test_hot_streams_equal_plain_answers(shared_node):
    def run(seed):
        fields = {"prompt": "🧵👩🏽‍🚀 한글:", "max_tokens": 12, "temperature": 2, "seed": seed}
        plain = ask(shared_node, PATH, fields)["choices"][0]
        return joined(events(shared_node, PATH, fields)) == (plain["text"], plain["finish_reason"])

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(run, range(40)))


# --- how much is generated (case 4)


@pytest.mark.parametrize("fields, n", [
    ({"max_tokens": 8}, 8), ({"max_tokens": 1}, 1), ({"max_tokens": 0}, 0), ({"max_tokens": 1e1}, 10), ({}, 16),
    ({"max_tokens": None}, 16), ({"max_tokens": 8, "max_completion_tokens": 4}, 4), ({"max_completion_tokens": 5}, 5)])
def test_exactly_max_tokens_are_generated(tiny_node, fields, n):
    answer = ask(tiny_node, PATH, {"prompt": "the cat", "ignore_eos": True, **fields})
    assert answer["usage"]["completion_tokens"] == n and answer["choices"][0]["finish_reason"] == "length"


def test_max_tokens_0_streams_an_end_only(tiny_node):
    chunks = events(tiny_node, PATH, {"prompt": "the cat", "max_tokens": 0})
    assert joined(chunks) == ("", "length") and len(chunks) == 1


@pytest.mark.parametrize("value", ["-1", "2147483648", "9223372036854775808", "1e300", "1e3", "1.5", '"8"', "true",
                                   "[]", "{}"])
@pytest.mark.parametrize("path, prompt", [(PATH, '"prompt":"x"'),
                                          ("/v1/chat/completions", '"messages":[{"role":"user","content":"x"}]')])
def test_a_max_tokens_that_cannot_be_is_refused(tiny_node, value, path, prompt):
    """1e3 is an integer, but more than the tiny window has room for."""
    for field in ("max_tokens", "max_completion_tokens"):
        error = refused(tiny_node, path, f'{{{prompt},"{field}":{value}}}'.encode())
        assert error["param"] == field
        assert error["code"] == ("context_length_exceeded" if value in ("2147483648", "1e3") else None)


def test_min_tokens_keeps_the_end_away_and_ignore_eos_shows_it(shared_node):
    prompt = "<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\n"
    usual = complete(shared_node, prompt, max_tokens=60)
    assert usual["choices"][0]["finish_reason"] == "stop"
    n = usual["usage"]["completion_tokens"]
    longer = complete(shared_node, prompt, max_tokens=60, min_tokens=n + 5)
    assert longer["usage"]["completion_tokens"] >= n + 5
    assert longer["choices"][0]["text"].startswith(usual["choices"][0]["text"])
    beyond = complete(shared_node, prompt, max_tokens=n + 3, ignore_eos=True)
    assert beyond["usage"]["completion_tokens"] == n + 3 and beyond["choices"][0]["finish_reason"] == "length"
    assert beyond["choices"][0]["text"].startswith(usual["choices"][0]["text"] + "<|im_end|>")
    error = refused(shared_node, PATH, {"prompt": "x", "max_tokens": 3, "min_tokens": 4})
    assert error["param"] == "min_tokens"


# --- empty and full prompts (cases 5, 6)


def test_an_empty_prompt_starts_like_a_document(shared_node):
    """SmolLM2 names <|im_start|>, id 1, as its BOS."""
    from_bos = complete(shared_node, [1], max_tokens=4)
    for fields in ({"prompt": ""}, {"prompt": [""]}, {}, {"prompt": None}):
        answer = ask(shared_node, PATH, {"max_tokens": 4, "temperature": 0, **fields})
        assert answer["usage"]["prompt_tokens"] == 1
        assert answer["choices"] == from_bos["choices"]


@pytest.mark.parametrize("prompt", [[], [[]], ["a", ""], [["a"]], [1, "a"], [-1], [49152], [1.5], [True], [None], 5,
                                    True, {"text": "x"}, [[1], [2]], [2 ** 64]])
def test_prompts_that_cannot_be_are_refused(shared_node, prompt):
    assert refused(shared_node, PATH, {"prompt": prompt, "max_tokens": 1})["param"] == "prompt"


def test_the_window_is_exact(tiny_node):
    assert json.loads(tiny_node.get("/v1/models")[1])["data"][0]["max_model_len"] == WINDOW_TOKENS
    last = complete(tiny_node, [65] * (WINDOW_TOKENS - 1), ignore_eos=True)
    assert last["usage"]["completion_tokens"] == 1 and last["choices"][0]["finish_reason"] == "length"
    for n in (WINDOW_TOKENS, WINDOW_TOKENS + 1, 5000):
        error = refused(tiny_node, PATH, {"prompt": [65] * n})
        assert error["code"] == "context_length_exceeded" and error["param"] == "prompt"
        assert str(n) in error["message"] and str(WINDOW_TOKENS) in error["message"]
    error = refused(tiny_node, PATH, {"prompt": [65] * 500, "max_tokens": 13})
    assert error["code"] == "context_length_exceeded" and error["param"] == "max_tokens"
    assert complete(tiny_node, [65] * 500, max_tokens=12, ignore_eos=True)["usage"]["total_tokens"] == WINDOW_TOKENS
    assert tiny_node.idle()


# --- sampling


def test_seeds_reproduce_and_differ(shared_node):
    def text(**fields):
        return ask(shared_node, PATH, {"prompt": "My favourite", "max_tokens": 10, **fields})["choices"][0]["text"]

    assert text(seed=7) == text(seed=7) == text(seed=7, temperature=1, top_p=1, top_k=-1, min_p=0)
    assert len({text(seed=s) for s in (1, 2, 3, -4, 2 ** 62)}) > 2
    assert len({text() for _ in range(4)}) > 1  # without a seed, another one each time
    greedy = text(temperature=0)
    assert greedy == text(top_k=1, seed=1) == text(top_p=1e-6, seed=2) == text(min_p=1, seed=3)


@pytest.mark.parametrize("field, value", [
    ("temperature", -0.1), ("temperature", 2.1), ("temperature", "1"), ("temperature", True), ("top_p", 0),
    ("top_p", 1.1), ("top_p", -1), ("top_k", -2), ("top_k", 1.5), ("top_k", "3"), ("min_p", -0.1), ("min_p", 1.1),
    ("seed", 1.5), ("seed", "1"), ("seed", 2 ** 63), ("logprobs", 6), ("logprobs", -1), ("logprobs", True),
    ("logprobs", "1"), ("ignore_eos", 1), ("ignore_eos", "true"), ("min_tokens", -1), ("min_tokens", 17),
    ("stream", "yes"), ("stream", 1), ("user", 5), ("model", 7), ("stream_options", [])])
def test_a_field_out_of_range_is_refused_by_name(tiny_node, field, value):
    assert refused(tiny_node, PATH, {"prompt": "x", field: value})["param"] == field


# --- tokens (cases 1 and 9)


def rows_over_http():
    rows = fixture("tokenizer_smollm2.jsonl")
    for row in rows:
        yield row
        if row.get("same_unparsed"):
            yield {**row, "parse_special": False}


def test_tokenize_equals_the_reference(shared_node):
    rows = list(rows_over_http())
    assert len(rows) > 120
    for row in rows:
        answer = ask(shared_node, "/tokenize", {"prompt": row["text"], "add_special_tokens": row["add_special"],
                                                "parse_special": row["parse_special"]})
        assert answer["tokens"] == row["ids"] and answer["count"] == len(row["ids"]), row["id"]
        assert answer["max_model_len"] == 5824 and answer["token_strs"] is None


def test_token_strings_name_each_token(shared_node):
    answer = ask(shared_node, "/tokenize", {"prompt": "Hi 🧵<|im_end|>", "return_token_strs": True})
    assert answer["token_strs"] == texts(answer["tokens"])
    assert data_of(answer["tokens"]).decode() == "Hi 🧵<|im_end|>" and len(vocabulary()) == 49152


def test_detokenize_equals_the_reference(shared_node):
    rows = [r for r in fixture("detok_smollm2.jsonl") if r["keep_special"]]
    assert len(rows) > 50
    for row in rows:
        assert ask(shared_node, "/detokenize", {"tokens": row["ids"]})["prompt"] == row["text"], row["id"]


def test_control_text_in_a_completions_prompt_is_parsed(shared_node):
    text = "<|im_start|>user\nx<|im_end|>"
    parsed = ask(shared_node, "/tokenize", {"prompt": text})
    unparsed = ask(shared_node, "/tokenize", {"prompt": text, "parse_special": False})
    assert parsed["tokens"][0] == 1 and parsed["tokens"][-1] == 2 and unparsed["count"] > parsed["count"]
    assert complete(shared_node, text, max_tokens=1)["usage"]["prompt_tokens"] == parsed["count"]


@pytest.mark.parametrize("path, fields, param", [
    ("/tokenize", {}, "prompt"), ("/tokenize", {"prompt": 5}, "prompt"), ("/tokenize", {"prompt": ["a"]}, "prompt"),
    ("/tokenize", {"prompt": "a", "messages": []}, "messages"), ("/tokenize", {"messages": []}, "messages"),
    ("/tokenize", {"prompt": "a", "parse_special": 1}, "parse_special"),
    ("/tokenize", {"prompt": "a", "add_special_tokens": "no"}, "add_special_tokens"),
    ("/detokenize", {}, "tokens"), ("/detokenize", {"tokens": "1"}, "tokens"),
    ("/detokenize", {"tokens": [49152]}, "tokens"), ("/detokenize", {"tokens": [-1]}, "tokens"),
    ("/detokenize", {"tokens": [1, None]}, "tokens")])
def test_token_routes_refuse_by_name(shared_node, path, fields, param):
    assert refused(shared_node, path, fields)["param"] == param


def test_cached_tokens_are_whole_blocks_below_the_prompt(shared_node):
    prompt = "Numbers: " + ", ".join(str(i) for i in range(40))
    cold = complete(shared_node, prompt, max_tokens=1)["usage"]
    warm = complete(shared_node, prompt, max_tokens=1)["usage"]
    assert cold["prompt_tokens_details"]["cached_tokens"] == 0
    assert warm["prompt_tokens_details"]["cached_tokens"] == (cold["prompt_tokens"] - 1) // 16 * 16 > 0


def test_the_request_id_is_taken_and_given_back(shared_node):
    body, kind = {"prompt": "x", "max_tokens": 1}, {"Content-Type": "application/json"}
    assert exchange(shared_node, PATH, body, {**kind, "x-request-id": "mine-7"})[1]["x-request-id"] == "mine-7"
    drawn = [exchange(shared_node, PATH, body, kind)[1]["x-request-id"] for _ in range(2)]
    assert all(drawn) and drawn[0] != drawn[1]
