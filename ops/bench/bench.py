#!/usr/bin/env python3
"""How fast is the node on this machine? Starts it on a free port, drives it over HTTP as a client would, and
prints one table: medians of interleaved rounds. Nothing is asserted: speed is judged by reading.

    ops/bench/bench.py --build build --model FILE.gguf [--rounds 5] [--json FILE] [-- FLAGS of kvnode serve]
"""
import argparse
import asyncio
import json
import os
import pathlib
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import aiohttp

PROMPT_TOKENS = 1500  # of a long prompt
SUFFIX_TOKENS = 40    # new tokens behind a cached prefix
READY = re.compile(r"kvnode ready: (http://\S+) model (\S+), (.*)")


def ids(n, salt):
    """n token ids, the same for the same salt, different from the first one on for another."""
    x, out = 7919 * (salt + 1), []
    for _ in range(n):
        x = (x * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        out.append(1000 + (x >> 33) % 40000)
    return out


async def stream(session, url, prompt, max_tokens):
    """Times of the tokens of one streamed completion, seconds from its start, and its cached tokens."""
    body = {"prompt": prompt, "max_tokens": max_tokens, "stream": True, "temperature": 0, "ignore_eos": True,
            "stream_options": {"include_usage": True}, "logprobs": 0}
    times, usage, start = [], {}, time.perf_counter()
    async with session.post(url + "/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            now = time.perf_counter() - start
            usage = event.get("usage") or usage
            if event["choices"] and event["choices"][0].get("logprobs"):
                times += [now] * len(event["choices"][0]["logprobs"]["tokens"])
    assert len(times) == max_tokens == usage["completion_tokens"], (len(times), usage)
    return times, usage["prompt_tokens_details"]["cached_tokens"]


async def measure(url, rounds):
    rows = {"decode, 1 stream (128 in, 256 out)": [], "decode, 8 streams (128 in, 128 out)": [],
            "decode, 16 streams (128 in, 128 out)": [], f"prefill ({PROMPT_TOKENS} tokens)": [],
            "time to first token, cold": [], "time to first token, cached": []}
    names = list(rows)
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        await stream(session, url, ids(64, 1), 8)  # warm up
        for r in range(rounds):
            salt = 1000 * (r + 1)
            times, _ = await stream(session, url, ids(128, salt), 256)
            rows[names[0]].append(255 / (times[-1] - times[0]))
            for row, n in ((1, 8), (2, 16)):
                start = time.perf_counter()
                await asyncio.gather(*(stream(session, url, ids(128, salt + 10 * n + i), 128) for i in range(n)))
                rows[names[row]].append(n * 128 / (time.perf_counter() - start))
            prefix = ids(PROMPT_TOKENS, salt + 500)
            times, cached = await stream(session, url, prefix, 1)
            assert cached == 0
            rows[names[3]].append(PROMPT_TOKENS / times[0])
            times, cached = await stream(session, url, ids(PROMPT_TOKENS + SUFFIX_TOKENS, salt + 501), 1)
            rows[names[4]].append(times[0] * 1000)
            times, cached = await stream(session, url, prefix + ids(SUFFIX_TOKENS, salt + 502), 1)
            assert cached >= PROMPT_TOKENS - 16
            rows[names[5]].append(times[0] * 1000)
    return rows


def machine():
    names = [line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    flags = next(line for line in open("/proc/cpuinfo") if line.startswith("flags"))
    wide = [f for f in ("avx2", "avx512_vnni", "avx512_bf16", "amx_int8") if f in flags]
    return f"{len(names)} cores, {names[0]}, {' '.join(wide)}, {platform.system()} {platform.release()}"


def start(build, model, directory, flags):
    command = [str(build / "kvnode"), "serve", model, "--port", "0", "--name", f"bench{os.getpid()}",
               "--runtime-dir", directory, "--kv-memory", "1GiB", *flags]
    begun = time.perf_counter()
    node = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in node.stdout:
        if match := READY.match(line):
            return node, match, time.perf_counter() - begun
    sys.exit(node.stderr.read())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build", type=pathlib.Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="write all samples there")
    parser.add_argument("flags", nargs="*")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        node, match, ready_s = start(options.build, options.model, directory, options.flags)
        try:
            rows = asyncio.run(measure(match[1], options.rounds))
        finally:
            node.send_signal(signal.SIGTERM)
            node.communicate(timeout=60)
    print(f"{match[2]}: {match[3]}\n{machine()}\nmedian of {options.rounds} rounds (least to most)\n")
    print("| measure | figure |\n|---|---|")
    for name, samples in rows.items():
        unit = "ms" if name.startswith("time") else "tokens/s"
        print(f"| {name} | {statistics.median(samples):.0f} {unit} ({min(samples):.0f} to {max(samples):.0f}) |")
    print(f"| start to ready | {ready_s:.2f} s |")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
