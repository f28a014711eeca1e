#!/usr/bin/python3
"""Two processes of one thread each, on the same work, in turn.

Data parallel: Millrace (mpirun -n 2) against PyTorch's DistributedDataParallel over Gloo, in both memory formats.
Pipelines: the measured step of two-stage 1F1B and SSP against the step that the simulator finds for the same lists and
the same times of their actions. Prints tables and writes a record under bench/results/.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile

import bench_record
import vs_torch
from vs_torch import FORMATS, ROOT, environment, failed, torch_step_times

DDP_BATCH = {"resnet50": 16, "alexnet": 128}  # of both processes together
DDP_TARGET = 1.5
SIMULATION_TARGET = 0.10
PROCESSES = 2


def ddp_worker(args):
    """One process of PyTorch's; process 0 prints one JSON line."""
    import torch

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    ddp = torch.nn.parallel.DistributedDataParallel
    timed = torch_step_times(args, args.batch // PROCESSES, lambda model: ddp(model, gradient_as_bucket_view=True))
    if torch.distributed.get_rank() == 0:
        print(json.dumps({"samples_per_s": args.batch / statistics.median(timed), "step_ms": [1e3 * t for t in timed]}))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_ddp(model, memory_format, args):
    command = [sys.executable, os.path.abspath(__file__), "--ddp-worker", "--format", memory_format, "--model", model]
    command += ["--batch", str(DDP_BATCH[model]), "--warmup", str(args.warmup), "--steps", str(args.steps)]
    shared = {**environment(1), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    shared |= {"WORLD_SIZE": str(PROCESSES), "GLOO_SOCKET_IFNAME": "lo"}
    workers = [
        subprocess.Popen(command, env={**shared, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(PROCESSES)
    ]
    outputs = [worker.communicate() for worker in workers]
    for worker, (out, err) in zip(workers, outputs):
        if worker.returncode != 0:
            failed(f"PyTorch on {model}", subprocess.CompletedProcess(command, worker.returncode, out, err))
    return json.loads(outputs[0][0].strip().splitlines()[-1])


def run_millrace(job, settings, args, steps):
    """`millrace train` under mpirun; its summary."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["mpirun", "-n", str(PROCESSES), "--bind-to", "core", "--oversubscribe"]
        if os.geteuid() == 0:
            command.append("--allow-run-as-root")
        command += [args.millrace, "train", os.path.join(ROOT, "jobs", f"{job}.yaml"), "--out", os.path.join(folder, "run")]
        for key, value in {"threads": 1, "steps": steps, **settings}.items():
            command += ["--set", f"{key}={value}"]
        result = subprocess.run(command, env=environment(1), capture_output=True, text=True)
        if result.returncode != 0:
            failed(f"millrace on {job}", result)
        with open(os.path.join(folder, "run", "summary.json")) as file:
            return json.load(file)


def data_parallel(model, args):
    batch = DDP_BATCH[model]
    runs = {side: [] for side in FORMATS + ["millrace"]}
    for number in range(args.repeats):
        for memory_format in FORMATS:
            runs[memory_format].append(run_ddp(model, memory_format, args))
        summary = run_millrace(model, {"batch": batch, "parallel.placement": f"0:0-{PROCESSES - 1}"}, args, args.warmup + args.steps)
        runs["millrace"].append({"samples_per_s": batch / summary["step_ms"]["p50"] * 1e3, "summary": summary})
        turn = ", ".join(f"{side} {runs[side][-1]['samples_per_s']:.2f}" for side in runs)
        print(f"{model} run {number + 1} of {args.repeats}, samples/s: {turn}", file=sys.stderr, flush=True)
    speed = {side: statistics.median(run["samples_per_s"] for run in runs[side]) for side in runs}
    return {
        "model": model,
        "batch": batch,
        "median_samples_per_s": speed,
        "ratio_to_faster": speed["millrace"] / max(speed[f] for f in FORMATS),
        "ratio_to_default": speed["millrace"] / speed[FORMATS[0]],
        "runs": runs,
    }


def pipeline(mode, args):
    # AlexNet at 128 pixels: convolutions on one side, linear layers on the other, cut by measured times.
    settings = {"batch": 64, "model.image_size": 128, "parallel.mode": mode, "parallel.placement": "0:0.0:1"}
    settings |= {"parallel.balance": "time", "parallel.microbatches": 8 if mode == "1f1b" else 1}
    runs = []
    for number in range(args.repeats):
        summary = run_millrace("alexnet", settings, args, 20)
        measured, simulated = summary["step_ms"]["p50"], summary["simulated_step_ms"]
        runs.append({"measured_ms": measured, "simulated_ms": simulated, "off": measured / simulated - 1, "summary": summary})
        print(f"{mode} run {number + 1} of {args.repeats}: measured {measured:.1f} ms, simulated {simulated:.1f} ms "
              f"({100 * runs[-1]['off']:+.1f}%), bubble {100 * summary['bubble_share']:.1f}%", file=sys.stderr, flush=True)
    return {"mode": mode, "median_off": statistics.median(run["off"] for run in runs), "runs": runs}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(DDP_BATCH), choices=DDP_BATCH)
    parser.add_argument("--modes", nargs="+", default=["1f1b", "ssp"])
    parser.add_argument("--only", choices=["data", "pipeline"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--millrace", default=vs_torch.MILLRACE)
    parser.add_argument("--out", metavar="FILE")
    parser.add_argument("--ddp-worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--format", default=FORMATS[0], help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ddp_worker:
        return ddp_worker(args)

    figures = {"versions": vs_torch.versions()}
    if args.only != "pipeline":
        figures["data_parallel"] = [data_parallel(model, args) for model in args.models]
        for result in figures["data_parallel"]:
            speed = result["median_samples_per_s"]
            print(f"{result['model']}, batch {result['batch']}: Millrace {speed['millrace']:.2f} samples/s, "
                  + ", ".join(f"DDP {f} {speed[f]:.2f}" for f in FORMATS)
                  + f": {result['ratio_to_faster']:.2f}x the faster (target {DDP_TARGET}x), {result['ratio_to_default']:.2f}x the default")
    if args.only != "data":
        figures["pipeline"] = [pipeline(mode, args) for mode in args.modes]
        for result in figures["pipeline"]:
            print(f"{result['mode']}: measured step {100 * result['median_off']:+.1f}% off the simulated one "
                  f"(target within {100 * SIMULATION_TARGET:.0f}%)")
    if args.out:
        bench_record.write(args.out, "parallel", figures)


if __name__ == "__main__":
    main()
