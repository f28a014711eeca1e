"""The record of a measurement: what was measured, by which command, of which commit, on which machine. As a command it
reads figures from standard input: bench_record.py BENCHMARK FILE COMMAND..."""
import json
import os
import platform
import re
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def output_of(*command):
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def machine():
    with open("/proc/cpuinfo") as file:
        info = file.read()
    name = re.search(r"^model name\s*:\s*(.+)$", info, re.M)
    flags = re.search(r"^flags\s*:\s*(.+)$", info, re.M)
    flags = flags.group(1).split() if flags else []
    return {
        "cpu": name.group(1).strip() if name else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "vector_instructions": [f for f in flags if f in ("avx2", "avx512f", "avx512_vnni", "amx_tile")],
        "system": output_of("sh", "-c", ". /etc/os-release && echo $PRETTY_NAME") or platform.platform(),
    }


def slug(where):
    """A machine in the name of a file."""
    return re.sub(r"[^a-z0-9]+", "-", f"{where['cpu']}-{where['cores']}".lower()).strip("-")


def command_line():
    """This process's, without where it writes to."""
    words = [os.path.relpath(os.path.abspath(sys.argv[0]), ROOT), *sys.argv[1:]]
    return re.sub(r" --(out|json)[ =]\S+", "", " ".join(words))


def write(path, benchmark, figures, command=None):
    """Whole or not at all."""
    facts = {
        "benchmark": benchmark,
        "command": command or command_line(),
        "commit": output_of("git", "rev-parse", "HEAD") or None,
        "uncommitted_changes": bool(output_of("git", "status", "--porcelain", "--", "millrace", "cli", "jobs", "CMakeLists.txt")),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
    }
    path = os.path.abspath(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".tmp", "w") as file:
        json.dump({**facts, **figures}, file, indent=1)
        file.write("\n")
    os.replace(path + ".tmp", path)


if __name__ == "__main__":
    write(sys.argv[2], sys.argv[1], json.load(sys.stdin), " ".join(sys.argv[3:]))
