"""Copies a GGUF's metadata without its tensors: python3 vocab_only.py IN.gguf OUT.gguf.

How tests/fixtures/tiny/*-vocab.gguf were made from the tiny checkpoints of the reference fixtures
(tiny/llama/model-Q4_0.gguf, tiny/qwen3/model-Q4_0.gguf, tiny/deepseek_v3/model-F16.gguf)."""
import struct
import sys

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9


def skip_value(data, at, kind):
    if kind == STRING:
        return at + 8 + struct.unpack_from("<Q", data, at)[0]
    if kind == ARRAY:
        inner, n = struct.unpack_from("<IQ", data, at)
        at += 12
        for _ in range(n):
            at = skip_value(data, at, inner)
        return at
    return at + SIZES[kind]


def main():
    data = open(sys.argv[1], "rb").read()
    magic, version, _, n_pairs = struct.unpack_from("<4sIQQ", data, 0)
    at = 24
    for _ in range(n_pairs):
        at = skip_value(data, at, STRING)
        kind = struct.unpack_from("<I", data, at)[0]
        at = skip_value(data, at + 4, kind)
    with open(sys.argv[2], "wb") as out:
        out.write(struct.pack("<4sIQQ", magic, version, 0, n_pairs) + data[24:at])


main()
