#!/usr/bin/env python3
"""Faults at random moments of a run on two emulated hosts (network namespaces, MPI over TCP): a worker is killed or
stopped, its link is cut, its disk is full. Every run must come to its end by itself, with the weights of one that was
never disturbed, and leave no process, shared memory or half-written checkpoint. Needs root.
Options: [--rounds 20] [--seed N] [--out FILE]"""
import argparse, json, os, random, shutil, signal, subprocess, sys, tempfile, time
from pathlib import Path

import bench_record

ROOT = Path(__file__).resolve().parent.parent
MILLRACE = ROOT / "build/release/bin/millrace"
SILENCE = 3  # seconds; parallel.silence_s
JOB = """name: faults
batch: 8
steps: 300
threads: 1
seed: 5
device: reference
model: {name: alexnet_small, classes: 10, image_size: 24, dropout: 0.5}
data: {kind: generated, train_samples: 26}
optimizer: {lr: 0.02, weight_decay: 1e-3}
checkpoint: {every: 10 steps}
parallel: {silence_s: %d}
""" % SILENCE
MODES = {
    "1f1b": ["parallel.mode=1f1b", "parallel.microbatches=2", "parallel.placement=0:0.1:0"],
    "ssp": ["parallel.mode=ssp", "parallel.placement=0:0.1:0"],
    "dp": ["parallel.mode=dp", "parallel.placement=0:0,1:0"],
}


def sh(*words, check=True):
    return subprocess.run([str(w) for w in words], check=check, capture_output=True, text=True)


class Hosts:
    """Two network namespaces joined by a link."""

    def __init__(self, work):
        self.id = f"mf{os.getpid()}"
        for side in "ab":
            sh("ip", "netns", "add", self.id + side)
        sh("ip", "link", "add", self.id + "a", "netns", self.id + "a", "type", "veth", "peer", "name", self.id + "b",
           "netns", self.id + "b")
        for side, address in (("a", "10.78.0.1"), ("b", "10.78.0.2")):
            sh("ip", "-n", self.id + side, "addr", "add", address + "/24", "dev", self.id + side)
            sh("ip", "-n", self.id + side, "link", "set", "lo", "up")
        self.link("up")
        agent = work / "agent"
        agent.write_text(f"#!/bin/sh\nshift\nexec ip netns exec {self.id}b unshare --uts sh -c "
                         "\"hostname host-b; exec sh -c '$*'\"\n")
        agent.chmod(0o755)
        self.launcher = (f"mpirun --oversubscribe --bind-to none --mca plm_rsh_agent {agent} --mca btl self,tcp --mca pml ob1"
                         " --mca btl_tcp_if_include 10.78.0.0/24 --mca oob_tcp_if_include 10.78.0.0/24 -x HOME")
        self.inside = ["ip", "netns", "exec", self.id + "a", "unshare", "--uts", "sh", "-c",
                       'hostname host-a; exec "$@"', "sh"]

    def link(self, state):
        for side in "ab":
            sh("ip", "-n", self.id + side, "link", "set", self.id + side, state)

    def close(self):
        for side in "ab":
            sh("ip", "netns", "del", self.id + side, check=False)


def processes(text):
    """Ids of the processes whose command line holds the text."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line:
            found.append((int(entry.name), line))
    return found


def workers(run):
    """Those that compute: neither the supervisor nor mpirun nor its daemons."""
    return sorted(pid for pid, line in processes(str(run)) if line.startswith(str(MILLRACE)) and "--restarts" not in line)


def steps_done(run):
    try:
        return sum('"step"' in line for line in open(run / "metrics.jsonl"))
    except OSError:
        return 0


def weights(run):
    return (run / "model.safetensors").read_bytes()


def one_round(hosts, work, number, fault, mode, at):
    run = work / f"disk/round-{number}"
    sets = [word for setting in MODES[mode] for word in ("--set", setting)]
    log = open(work / f"round-{number}.log", "w")
    shared_before = set(os.listdir("/dev/shm"))
    began = time.time()
    supervisor = subprocess.Popen(
        hosts.inside + [str(MILLRACE), "train", str(work / "job.yaml"), "--out", str(run), *sets, "--restarts", "20",
                        "--backoff", "0.5", "--hosts", "10.78.0.1,10.78.0.2", "--launcher", hosts.launcher],
        stdout=log, stderr=subprocess.STDOUT)
    while steps_done(run) < at and supervisor.poll() is None and time.time() - began < 120:
        time.sleep(0.005)
    time.sleep(random.random() * 0.05)
    injected = time.time()
    victims = workers(run)
    if fault in ("kill", "stop") and victims:
        os.kill(random.choice(victims), signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
    elif fault == "cut":
        hosts.link("down")
        time.sleep(SILENCE + 2)
        hosts.link("up")
    elif fault == "full":
        with open(work / "disk/ballast", "wb") as ballast:
            try:
                while True:
                    ballast.write(bytes(1 << 20))
            except OSError:
                pass
        time.sleep(1)
        os.unlink(work / "disk/ballast")
    try:
        code = supervisor.wait(timeout=240)
    except subprocess.TimeoutExpired:
        code = "hangs"
        for pid, _ in processes(str(run)):
            os.kill(pid, signal.SIGKILL)
    ended = time.time()
    time.sleep(0.3)
    history = [json.loads(line) for line in open(run / "restarts.jsonl")] if (run / "restarts.jsonl").exists() else []
    text = (work / f"round-{number}.log").read_text()
    told = [line for line in text.splitlines() if line.startswith("millrace: worker")]
    first_end = history[0]["began"] + history[0]["seconds"] if len(history) > 1 else None
    left = [line for _, line in processes(str(run))]
    result = {
        "fault": fault, "mode": mode, "at_step": at, "exit_code": code, "restarts": max(0, len(history) - 1),
        "noticed_after_s": round(first_end - injected, 2) if first_end else None,
        "seconds": round(ended - began, 1), "named": told[0] if told else None,
        "left_out": text.count("is left out"),
        "same_weights": code == 0 and weights(run) == weights(work / f"disk/whole-{mode}"),
        "processes_left": len(left), "shared_memory_left": len(set(os.listdir("/dev/shm")) - shared_before),
        "half_written_left": sum(name.startswith(".") for name in os.listdir(run / "checkpoints")),
    }
    needs_restart = fault != "full"
    result["good"] = (code == 0 and result["same_weights"] and not left and result["shared_memory_left"] == 0 and
                      result["half_written_left"] == 0 and (not needs_restart or result["restarts"] > 0))
    if not result["good"]:
        print(text[-3000:], file=sys.stderr)
    shutil.rmtree(run, ignore_errors=True)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--out")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("faults: needs root to make network namespaces")
    if not MILLRACE.exists():
        sys.exit("faults: build first: cmake --preset release && cmake --build --preset release")
    random.seed(options.seed)
    work = Path(tempfile.mkdtemp(prefix="millrace-faults-"))
    (work / "disk").mkdir()
    sh("mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", work / "disk")
    hosts = Hosts(work)
    results = []
    try:
        (work / "job.yaml").write_text(JOB)
        for mode, settings in MODES.items():
            sh(MILLRACE, "train", work / "job.yaml", "--out", work / f"disk/whole-{mode}",
               *[word for setting in settings for word in ("--set", setting)])
            shutil.rmtree(work / f"disk/whole-{mode}/checkpoints")
        faults = ["kill", "stop", "cut", "full"]
        for number in range(options.rounds):
            result = one_round(hosts, work, number, faults[number % 4], random.choice(list(MODES)),
                               random.randint(1, 240))
            results.append(result)
            noticed = f"noticed after {result['noticed_after_s']} s, " if result["noticed_after_s"] is not None else ""
            print(f"{number + 1:3} {result['fault']:<5} {result['mode']:<5} at step {result['at_step']:>3}: "
                  f"{'good' if result['good'] else 'BAD '}  {noticed}{result['restarts']} restarts, "
                  f"{result['seconds']} s; {result['named'] or ''}", flush=True)
    finally:
        hosts.close()
        sh("umount", work / "disk", check=False)
        shutil.rmtree(work, ignore_errors=True)
    good = sum(result["good"] for result in results)
    print(f"{good} of {len(results)} rounds good, seed {options.seed}")
    if options.out:
        bench_record.write(options.out, "faults",
                           {"silence_s": SILENCE, "seed": options.seed, "good": good, "rounds": results})
    sys.exit(0 if good == len(results) else 1)


main()
