#!/usr/bin/env python3
"""Does the tree keep to the house's rules? Prints one line a violation, exits 1 if there is any.

Checks what compilers do not: who may include whom (the table of folders), unique file names, file and
function lengths, a comment at the head of every .c, `#pragma once`, words that mark unfinished work, paths
of one machine. Formatting and static analysis are clang-format's and cppcheck's (Makefile, `lint`).
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# folder -> folders its files may include (itself is always allowed); the longest matching prefix rules
MAY_INCLUDE = {
    "config/base": [],
    "config": ["config/base"],
    "ipc": ["config"],
    "prefixcache": ["config", "ipc"],
    "router": ["config", "ipc", "prefixcache"],
    "worker": ["config", "ipc", "prefixcache"],
    "cuda": ["config/base/err.h"],
    "ops": ["config", "ipc"],
    "tests": [""],
}
# the one file that may know the GPU
EXTRA = {"worker/backend/backend_cuda.c": ["cuda"]}
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK|placeholder|not implemented|for now)\b", re.I)
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|root|home/\w+)/")


def tracked():
    out = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                         cwd=ROOT, check=True, capture_output=True).stdout
    return [p for p in out.decode().split("\0") if p and (ROOT / p).is_file()]


def rule(path):
    folder = max((f for f in MAY_INCLUDE if path.startswith(f + "/")), key=len, default=None)
    return folder, MAY_INCLUDE.get(folder, [])


def check_includes(path, text, say):
    folder, allowed = rule(path)
    if folder is None:
        return
    top = "config/base" if folder == "config/base" else folder
    allowed = [top] + allowed + EXTRA.get(path, [])
    for n, line in enumerate(text.splitlines(), 1):
        m = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        if not m:
            continue
        target = m.group(1)
        if folder != "tests" and not (ROOT / target).is_file():
            say(path, n, f'include "{target}" is not a path from the root')
        elif not any(a == "" or target == a or target.startswith(a + "/") for a in allowed):
            say(path, n, f'{folder}/ may not include "{target}"')


def check_functions(path, lines, say):
    start = None
    for n, line in enumerate(lines, 1):
        if line.startswith("{"):
            start = n
        elif line.startswith("}") and start:
            if n - start - 1 > MAX_FUNCTION_LINES:
                say(path, start, f"function of {n - start - 1} lines (at most {MAX_FUNCTION_LINES})")
            start = None


def check_c(path, text, say):
    lines = text.splitlines()
    if len(lines) > MAX_FILE_LINES:
        say(path, len(lines), f"file of {len(lines)} lines (at most {MAX_FILE_LINES})")
    if path.endswith(".h") and "#pragma once" not in text:
        say(path, 1, "header without #pragma once")
    if path.endswith(".c") and not text.startswith("/*"):
        say(path, 1, "no opening comment: which question does this file answer?")
    check_includes(path, text, say)
    check_functions(path, lines, say)


def main():
    problems = []

    def say(path, line, what):
        problems.append(f"{path}:{line}: {what}")

    names = {}
    for path in tracked():
        name = pathlib.PurePath(path).name
        is_code = path.endswith((".c", ".h", ".cu", ".cuh"))
        if is_code and name != "main.c":
            if name in names:
                say(path, 1, f"file name is not unique: also {names[name]}")
            names[name] = path
        if path.startswith("tests/fixtures/"):
            continue
        try:
            text = (ROOT / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if is_code:
            check_c(path, text, say)
        if path != "ops/lint.py":
            for n, line in enumerate(text.splitlines(), 1):
                if is_code or path.endswith((".py", ".sh")) or name == "Makefile":
                    if UNFINISHED.search(line):
                        say(path, n, "a word that marks unfinished work")
                if MACHINE_PATH.search(line):
                    say(path, n, "a path of one machine")
    print("\n".join(sorted(problems)) if problems else "lint: the house's rules hold")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
