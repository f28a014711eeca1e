#!/usr/bin/python3
"""Runs the tests that need a GPU under compute-sanitizer, each by itself, and says which are clean.

  compute_sanitizer.py [--build build/release] [--tool memcheck ...] [--filter Cuda*] [--jobs 8] [--seconds 120]
                       [--budget 480] [--out FILE]

racecheck looks at our own kernels only: those of libraries use instructions that it does not know. Tests share the GPU,
so many of them run side by side. One that does not end within --seconds is listed as such, and so is what --budget left
no time for: neither counts as clean. Exit code 1 if anything was found.
"""

import argparse
import concurrent.futures
import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def tests_of(binary, pattern):
    listing = subprocess.run([binary, "--gtest_list_tests", f"--gtest_filter={pattern}"], capture_output=True, text=True)
    suite = ""
    for line in listing.stdout.splitlines():
        name = line.split("#")[0].rstrip()
        if not name.startswith(" "):
            suite = name
        elif suite.endswith("."):
            yield suite + name.strip()


def check(binary, tool, test, seconds, deadline):
    left = min(seconds, deadline - time.monotonic())
    if left <= 1:
        return "not run"
    kernels = ["--kernel-regex", "kns=millrace"] if tool == "racecheck" else []
    command = ["compute-sanitizer", "--tool", tool, *kernels, "--error-exitcode", "9", "--launch-timeout", "120",
               str(binary), f"--gtest_filter={test}"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=left)
    except subprocess.TimeoutExpired:
        return "not ended"
    output = ran.stdout + ran.stderr
    if "[  SKIPPED ]" in output:
        return "skipped"
    if ran.returncode == 0:
        return "clean"
    errors = [line for line in output.splitlines() if line.startswith("=========") and line.strip("= ")]
    return "found: " + " | ".join(errors[1:6] or [f"exit code {ran.returncode}", output[-300:]])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--tool", nargs="+", default=["memcheck", "racecheck"])
    parser.add_argument("--filter", default="*Cuda*")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--budget", type=float, default=480)
    parser.add_argument("--out")
    options = parser.parse_args()
    folder = ROOT / options.build / "bin"
    work = [(folder / name, tool, test) for tool in options.tool for name in ("backend_tests", "runtime_tests")
            for test in tests_of(folder / name, options.filter)]
    if not work:
        sys.exit(f"compute_sanitizer.py: no test in {folder} matches {options.filter}")
    deadline = time.monotonic() + options.budget
    found = {}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        futures = {pool.submit(check, *item, options.seconds, deadline): item for item in work}
        for future in concurrent.futures.as_completed(futures):
            _, tool, test = futures[future]
            found.setdefault(tool, {})[test] = future.result()
            if future.result() != "clean":
                print(f"{tool} {test}: {future.result()}", flush=True)
    bad = 0
    for tool, results in found.items():
        counts = {}
        for verdict in results.values():
            kind = verdict.split(":")[0]
            counts[kind] = counts.get(kind, 0) + 1
        bad += counts.get("found", 0)
        print(f"{tool}: " + ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
    if options.out:
        Path(options.out).write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
