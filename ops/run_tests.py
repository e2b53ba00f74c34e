#!/usr/bin/env python3
"""Runs test programs and suites one after another and ends in one line, `N passed, N failed`, over all.

    ops/run_tests.py [--build DIR] [--fuzz SECONDS] PROGRAM|tests/node|fuzz_PROGRAM ...

Criterion programs are judged by their summary and exit code, tests/node by pytest's, fuzz programs (named fuzz_*)
by their exit code. Under AddressSanitizer Criterion exits 0 despite a leak: a report file is a failure here.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUMMARY = re.compile(r"Synthesis: Tested: (\d+) \| Passing: (\d+) \| Failing: (\d+) \| Crashing: (\d+)")
PYTEST = re.compile(r"(\d+) (passed|failed|error|errors|skipped)")
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def run(command, env):
    """Exit code and output; the output is shown at once where it is not a mere success."""
    done = subprocess.run(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, text=True,
                          errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, ANSI.sub("", done.stdout)


def criterion(program, env):
    # in parallel Criterion's own runner leaks a few bytes, which a leak check would count as ours
    jobs = ["-j1"] if "asan" in program else []
    code, output = run([program, "--short-filename", *jobs], env)
    found = SUMMARY.search(output)
    if not found:
        return 0, 1, 0, output or f"exit code {code}, no output"
    tested, passing, failing, crashing = map(int, found.groups())
    bad = failing + crashing or (1 if code != 0 else 0)
    return passing, bad, tested - passing - failing - crashing, output if bad else ""


def node_tests(folder, env):
    python = str(ROOT / ".cache/venv/bin/python")
    code, output = run([python, "-m", "pytest", "-q", "-x" if env.get("KVNODE_FAIL_FAST") else "-ra",
                        "-p", "no:cacheprovider", "--durations=5", folder], env)
    counts = {kind.rstrip("s"): int(n) for n, kind in PYTEST.findall(output.splitlines()[-1] if output else "")}
    bad = counts.get("failed", 0) + counts.get("error", 0)
    if code not in (0, 1) or (code == 1 and not bad):
        bad += 1
    return counts.get("passed", 0), bad, counts.get("skipped", 0), output if bad else ""


def fuzz(program, env, seconds, build):
    name = pathlib.Path(program).name
    corpus = build / "corpus" / name
    seeds = [s for s in (ROOT / "tests/fuzz/seeds" / name, build / "fuzz/seeds" / name) if s.is_dir()]
    corpus.mkdir(parents=True, exist_ok=True)
    command = [program, str(corpus), *map(str, seeds)]
    code, output = run(command + [f"-max_total_time={seconds}", "-rss_limit_mb=2048", "-timeout=10",
                                  f"-artifact_prefix={corpus}-", "-print_final_stats=1"], env)
    return (1, 0, 0, "") if code == 0 else (0, 1, 0, output[-6000:])


def sanitizer_reports(folder):
    return "\n".join(p.read_text(errors="replace") for p in sorted(folder.glob("report*")))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--fuzz", type=int, default=10, help="seconds a fuzz program runs")
    parser.add_argument("what", nargs="+")
    options = parser.parse_args()
    build = ROOT / options.build
    reports = build / "sanitizer"
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir(parents=True)
    # criterion's own sandbox and the embedded Python keep memory to the end by design: see lsan.supp
    env = dict(os.environ, KVNODE_BUILD=options.build,
               ASAN_OPTIONS=f"log_path={reports}/report:detect_odr_violation=0",
               UBSAN_OPTIONS=f"print_stacktrace=1:log_path={reports}/report",
               TSAN_OPTIONS=f"log_path={reports}/report:history_size=4:suppressions={ROOT}/tests/tsan.supp",
               LSAN_OPTIONS=f"suppressions={ROOT}/tests/lsan.supp:print_suppressions=0")
    total = [0, 0, 0]
    for what in options.what:
        started = time.monotonic()
        name = pathlib.Path(what).name
        if name.startswith("fuzz_"):
            result = fuzz(what, {k: v for k, v in env.items() if k != "ASAN_OPTIONS"}, options.fuzz, build)
        elif what.startswith("tests/node"):
            result = node_tests(what, env)
        else:
            result = criterion(what, env)
        passed, failed, skipped, output = result
        report = sanitizer_reports(reports)
        if report:
            failed += 1
            output += "\n" + report
            shutil.rmtree(reports)
            reports.mkdir()
        if output:
            print(output)
        total = [total[0] + passed, total[1] + failed, total[2] + skipped]
        note = f", {skipped} skipped" if skipped else ""
        print(f"{'FAIL' if failed else 'ok  '} {what}: {passed} passed{note} "
              f"({time.monotonic() - started:.1f} s)", flush=True)
    skipped = f", {total[2]} skipped" if total[2] else ""
    print(f"{total[0]} passed, {total[1]} failed{skipped}")
    return 1 if total[1] or not total[0] else 0


if __name__ == "__main__":
    sys.exit(main())
