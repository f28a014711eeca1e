#!/usr/bin/python3
"""GPUs of several processes joined by NCCL train to the same bits as through the host.

  nccl_parity.py MILLRACE [--only NAME ...] [--several-gpus] [--mpirun MPIRUN]

Runs small jobs under mpirun both ways and compares the models they leave, byte for byte; then kills a worker and sees
that the others end and name it. Exit code 1 if anything differs, or if NCCL was not really used.

One GPU is enough: each process is given an NCCL_HOSTID of its own, so that NCCL takes them for processes of different
hosts and joins them by sockets. With --several-gpus every process takes the GPU of its number, as in a real run.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

IMAGES = """name: parity
batch: 16
steps: 12
seed: 5
device: cuda
deterministic: true
model: {name: resnet_small, classes: 10, image_size: 32}
data: {kind: generated, train_samples: 120, test_samples: 40}
optimizer: {lr: 0.05, weight_decay: 1e-3}
"""
# Tied embeddings, whose gradients meet, and clipping, for which all stages agree.
TEXT = """name: parity
batch: 8
steps: 12
seed: 5
device: cuda
deterministic: true
model: {name: gpt2, dropout: 0.1, width: 64, layers: 2, heads: 2, mlp: 96, vocabulary: 61, tokens: 24}
data: {kind: synthetic, train_samples: 64}
optimizer: {kind: adamw, lr: 2e-3, clip_norm: 0.5}
"""
# Large enough that a bucket is summed in several pieces, and a message is more than NCCL buffers.
LARGE = """name: parity
batch: 32
steps: 4
seed: 5
device: cuda
deterministic: true
model: {name: alexnet, classes: 1000, image_size: 224}
data: {kind: synthetic}
optimizer: {lr: 0.01}
"""

DP = ["parallel.mode=dp"]
PIPE = ["parallel.mode=1f1b", "parallel.microbatches=4"]
CASES = {
    "dp2": (2, IMAGES, DP + ["parallel.placement=0:0-1"]),
    "dp3": (3, IMAGES, DP + ["parallel.placement=0:0-2", "parallel.bucket_mib=0.05"]),
    "pp2": (2, IMAGES, PIPE + ["parallel.placement=0:0.0:1"]),
    "pp2_fp16": (2, IMAGES, PIPE + ["parallel.placement=0:0.0:1", "precision=fp16"]),
    "pp2xdp2": (4, IMAGES, PIPE + ["parallel.placement=0:0-1.0:2-3"]),
    "interleaved": (2, IMAGES, PIPE + ["parallel.placement=0:0.0:1.0:0.0:1"]),
    "pipedream": (3, IMAGES, ["parallel.mode=pipedream", "parallel.placement=0:0-1.0:2", "parallel.replicas=round_robin"]),
    "text_pp2": (2, TEXT, PIPE + ["parallel.placement=0:0.0:1"]),
    "large_dp2": (2, LARGE, DP + ["parallel.placement=0:0-1", "parallel.bucket_mib=100"]),
    "large_pp2": (2, LARGE, PIPE + ["parallel.placement=0:0.0:1"]),
}


class Runner:
    def __init__(self, args, folder):
        self.args, self.folder, self.runs = args, folder, 0
        self.environment = dict(os.environ, XDG_CACHE_HOME=os.path.join(folder, "cache"))
        if not args.several_gpus:
            self.environment.setdefault("NCCL_SOCKET_IFNAME", "lo")
            self.environment.setdefault("NCCL_IB_DISABLE", "1")

    def start(self, processes, job, sets, nccl):
        self.runs += 1
        out = os.path.join(self.folder, f"run{self.runs}")
        path = out + ".yaml"
        with open(path, "w", encoding="utf-8") as file:
            file.write(job)
        # The process id stays when sh becomes the program.
        own = "" if self.args.several_gpus else "export NCCL_HOSTID=host$OMPI_COMM_WORLD_RANK; "
        shell = own + f'echo $$ > {out}.pid$OMPI_COMM_WORLD_RANK; exec "$0" "$@"'
        command = [self.args.mpirun, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(processes)]
        command += ["sh", "-c", shell, os.path.abspath(self.args.millrace), "train", path, "--out", out]
        for setting in sets + [f"parallel.nccl={nccl}"]:
            command += ["--set", setting]
        with open(out + ".log", "w", encoding="utf-8") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=self.environment)
        return process, out

    def run(self, processes, job, sets, nccl):
        process, out = self.start(processes, job, sets, nccl)
        try:
            code = process.wait(timeout=self.args.timeout)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
            fail(f"no end after {self.args.timeout} s", out)
        if code != 0:
            fail(f"exit code {code}", out)
        with open(out + "/summary.json", encoding="utf-8") as file:
            summary = json.load(file)
        with open(out + "/model.safetensors", "rb") as file:
            return summary, file.read()


def fail(what, out):
    with open(out + ".log", encoding="utf-8", errors="replace") as file:
        sys.stderr.write(file.read()[-6000:])
    sys.exit(f"nccl_parity: {what}")


def p50(summary):
    return summary["step_ms"]["p50"]


def compare(runner, name):
    processes, job, sets = CASES[name]
    # Which algorithms are fastest is measured once and remembered; then all runs choose alike.
    runner.run(processes, job, sets, "off")
    host_summary, host = runner.run(processes, job, sets, "off")
    equal = True
    for _ in range(2):
        summary, joined = runner.run(processes, job, sets, "auto")
        way = summary.get("gpus_exchange", "")
        if not way.startswith("by NCCL"):
            sys.exit(f"nccl_parity: {name}: NCCL was not used: GPUs exchange {way or 'nothing'}")
        equal &= joined == host
        equal &= summary["bytes_sent"] == host_summary["bytes_sent"] > 0
        equal &= summary["loss"] == host_summary["loss"]
    words = "the same bits" if equal else "DIFFERENT"
    print(f"{name:12} {words} {way}; a step {p50(summary):.2f} ms, through the host {p50(host_summary):.2f} ms", flush=True)
    return equal


def lose_a_worker(runner, name):
    """The others must neither hang in a kernel that waits for it nor in giving their memory back."""
    processes, job, sets = CASES[name]
    process, out = runner.start(processes, job, sets + ["steps=1000000"], "auto")
    metrics = out + "/metrics.jsonl"
    began = time.time()
    while not os.path.exists(metrics) or os.path.getsize(metrics) < 2000:
        if process.poll() is not None or time.time() - began > runner.args.timeout:
            fail("it never trained", out)
        time.sleep(0.1)
    with open(out + ".pid1", encoding="utf-8") as file:
        os.kill(int(file.read()), signal.SIGKILL)
    killed = time.time()
    try:
        code = process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        fail(f"{name}: the others hang when worker 1 dies", out)
    with open(out + ".log", encoding="utf-8", errors="replace") as file:
        said = file.read()
    named = "worker 1 on " in said
    print(f"{name:12} ends {time.time() - killed:.1f} s after a worker died, which is {'' if named else 'NOT '}named", flush=True)
    if not named:
        print(said[-3000:], flush=True)
    return code != 0 and named


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("millrace")
    parser.add_argument("--only", nargs="+", choices=sorted(CASES), default=list(CASES))
    parser.add_argument("--several-gpus", action="store_true")
    parser.add_argument("--mpirun", default="mpirun")
    parser.add_argument("--timeout", type=float, default=180, help="seconds of one run")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nccl-parity-") as folder:
        runner = Runner(args, folder)
        results = [compare(runner, name) for name in args.only]
        results += [lose_a_worker(runner, name) for name in ("dp2", "pp2") if name in args.only]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
