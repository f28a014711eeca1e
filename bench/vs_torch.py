#!/usr/bin/python3
"""Millrace against PyTorch on the same training step: same model, batch and threads, fresh processes in turn.

Use bench/vs_torch.sh, which installs PyTorch first. PyTorch runs eagerly in fp32, in both of its memory formats:
contiguous, its default, and channels_last. Ratios are against the faster one, and apart against the default. Prints
a table and writes a record under bench/results/.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import bench_record

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MILLRACE = os.path.join(ROOT, "build/release/bin/millrace")
BATCH = {"vgg16": 16, "resnet50": 16, "alexnet": 128, "vit_b_16": 8}
SPEED_TARGET = {"vgg16": 2.5, "resnet50": 1.7, "alexnet": 1.4, "vit_b_16": 1.4}
MEMORY_TARGET = 0.75
DEFAULT_FORMAT = "contiguous"
FORMATS = [DEFAULT_FORMAT, "channels_last"]
MiB = 1 << 20


def torch_step_times(args, batch, wrap=lambda model: model):
    """Seconds of each step of this process after the warm-up; `wrap` makes the model a distributed one."""
    import torch
    import torchvision

    torch.manual_seed(0)
    memory_format = torch.channels_last if args.format == "channels_last" else torch.contiguous_format
    model = getattr(torchvision.models, args.model)(weights=None, num_classes=1000).train()
    model = wrap(model.to(memory_format=memory_format))
    images = torch.randn(batch, 3, 224, 224).contiguous(memory_format=memory_format)
    labels = torch.randint(1000, (batch,))
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    times = []
    for _ in range(args.warmup + args.steps):
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        loss.item()
        times.append(time.perf_counter() - begin)
    return times[args.warmup :]


def torch_worker(args):
    """One measurement of PyTorch; runs in a process of its own and prints one JSON line."""
    import torch

    torch.set_num_threads(args.threads)
    timed = torch_step_times(args, args.batch)
    record = {
        "samples_per_s": args.batch / statistics.median(timed),  # of the median step, as `millrace bench` has it
        "step_ms": [1e3 * t for t in timed],
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "format": args.format,
    }
    print(json.dumps(record))


def environment(threads):
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}


def failed(what, result):
    lines = (result.stderr.strip() or result.stdout.strip() or "no output").splitlines()
    raise SystemExit(f"vs_torch: {what} failed with exit code {result.returncode}: {lines[-1]}")


def run_torch(model, batch, memory_format, warmup, steps, threads):
    command = [sys.executable, os.path.abspath(__file__), "--torch-worker", "--format", memory_format]
    command += ["--models", model, "--batch", str(batch), "--warmup", str(warmup)]
    command += ["--steps", str(steps), "--threads", str(threads)]
    result = subprocess.run(command, env=environment(threads), capture_output=True, text=True)
    if result.returncode != 0:
        failed(f"PyTorch on {model}", result)
    return json.loads(result.stdout.strip().splitlines()[-1])


def run_millrace(binary, model, batch, warmup, steps, threads):
    with tempfile.TemporaryDirectory() as folder:
        record = os.path.join(folder, "bench.json")
        settings = {"batch": batch, "steps": steps, "threads": threads}
        command = [binary, "bench", os.path.join(ROOT, "jobs", f"{model}.yaml")]
        command += ["--warmup", str(warmup), "--json", record]
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        result = subprocess.run(command, env=environment(threads), capture_output=True, text=True)
        if result.returncode != 0:
            failed(f"millrace on {model}", result)
        with open(record) as file:
            bench = json.load(file)
    return {
        "samples_per_s": bench["samples_per_s"],
        "step_ms": bench["step_ms"],
        "peak_bytes": bench["peak_bytes"]["process"],
        "bench": bench,
    }


def compare(model, args):
    runs = {side: [] for side in FORMATS + ["millrace"]}
    work = {key: getattr(args, key) for key in ["warmup", "steps", "threads"]}
    work |= {"model": model, "batch": args.batches[model]}
    for number in range(args.repeats):
        for memory_format in FORMATS:
            runs[memory_format].append(run_torch(memory_format=memory_format, **work))
        runs["millrace"].append(run_millrace(args.millrace, **work))
        turn = ", ".join(f"{side} {runs[side][-1]['samples_per_s']:.2f}" for side in runs)
        print(f"{model} run {number + 1} of {args.repeats}, samples/s: {turn}", file=sys.stderr, flush=True)
    speed = {side: statistics.median(run["samples_per_s"] for run in runs[side]) for side in runs}
    peak = {side: statistics.median(run["peak_bytes"] for run in runs[side]) for side in runs}
    formats = {
        f: {
            "median_samples_per_s": speed[f],
            "speed_ratio": speed["millrace"] / speed[f],
            "median_peak_bytes": peak[f],
            "memory_ratio": peak["millrace"] / peak[f],
        }
        for f in FORMATS
    }
    faster = max(FORMATS, key=speed.get)
    return {
        **work,
        "torch_format": faster,
        "median_samples_per_s": {"torch": speed[faster], "millrace": speed["millrace"]},
        "speed_ratio": formats[faster]["speed_ratio"],
        "speed_ratio_to_default": formats[DEFAULT_FORMAT]["speed_ratio"],
        "median_peak_bytes": {"torch": peak[faster], "millrace": peak["millrace"]},
        "memory_ratio": formats[faster]["memory_ratio"],
        "memory_ratio_to_default": formats[DEFAULT_FORMAT]["memory_ratio"],
        "torch_formats": formats,
        "runs": runs,
    }


def print_table(results):
    """A ratio stands in the row of the format that Millrace is compared with; the headline is that of the faster."""
    header = ["model", "batch", "", "samples/s", "median", "ratio", "peak MiB", "ratio"]
    rows = []
    for result in results:
        for side, runs in result["runs"].items():
            ours = side == "millrace"
            numbers = result if ours else result["torch_formats"][side]
            speed, peak = numbers["median_samples_per_s"], numbers["median_peak_bytes"]
            name = f"torch, {side}" + (" (default)" if side == DEFAULT_FORMAT else "")
            rows.append(
                [
                    result["model"] if side == DEFAULT_FORMAT else "",
                    str(result["batch"]) if side == DEFAULT_FORMAT else "",
                    side if ours else name,
                    "  ".join(f"{run['samples_per_s']:.2f}" for run in runs),
                    f"{speed['millrace'] if ours else speed:.2f}",
                    "" if ours else f"{numbers['speed_ratio']:.2f}x",
                    f"{(peak['millrace'] if ours else peak) / MiB:.0f}",
                    "" if ours else f"{numbers['memory_ratio']:.2f}x",
                ]
            )
    widths = [max(len(row[i]) for row in [header] + rows) for i in range(len(header))]
    for row in [header, ["-" * width for width in widths]] + rows:
        cells = [f"{c:<{w}}" if i in (0, 2) else f"{c:>{w}}" for i, (c, w) in enumerate(zip(row, widths))]
        print("  ".join(cells).rstrip())
    for result in results:
        print(
            f"{result['model']}: Millrace at {result['speed_ratio']:.2f}x the samples/s and {result['memory_ratio']:.2f}x "
            f"the memory of PyTorch's faster format ({result['torch_format']}), "
            f"{result['speed_ratio_to_default']:.2f}x and {result['memory_ratio_to_default']:.2f}x of its default"
        )


def versions():
    # Asked of a process of its own: importing PyTorch here would not change the runs, but it takes seconds.
    code = "import torch, torchvision; print(torch.__version__, torchvision.__version__)"
    torch, torchvision = bench_record.output_of(sys.executable, "-c", code).split()
    packages = ["python3-torch", "python3-torchvision", "libdnnl2", "libopenblas0-pthread"]
    debian = {name: bench_record.output_of("dpkg-query", "-W", "-f", "${Version}", name) or None for name in packages}
    blas = os.path.realpath("/etc/alternatives/libblas.so.3-" + platform.machine() + "-linux-gnu")
    python = platform.python_version()
    return {"torch": torch, "torchvision": torchvision, "python": python, "blas": blas, "debian": debian}


def write_record(results, args):
    figures = {
        "versions": versions(),
        "arguments": {key: getattr(args, key) for key in ["models", "repeats", "warmup", "steps", "threads"]},
        "results": results,
    }
    name = f"vs_torch-{bench_record.slug(bench_record.machine())}.json"
    path = args.out or os.path.join(ROOT, "bench", "results", name)
    bench_record.write(path, "vs_torch", figures)
    return path


def missed_targets(results):
    for result in results:
        model = result["model"]
        if result["speed_ratio"] < SPEED_TARGET[model]:
            yield f"{model}: {result['speed_ratio']:.2f}x PyTorch's samples/s, the target is {SPEED_TARGET[model]}x"
        if result["memory_ratio"] > MEMORY_TARGET:
            yield f"{model}: {result['memory_ratio']:.2f}x PyTorch's peak memory, the target at most {MEMORY_TARGET}x"


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(BATCH), default=list(BATCH))
    parser.add_argument("--batch", type=int, help="instead of each model's own: vgg16 16, resnet50 16, alexnet 128")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5, help="timed steps of a run")
    parser.add_argument("--warmup", type=int, default=2, help="steps before the timed ones")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--millrace", default=MILLRACE, help="the binary (default: build/release/bin/millrace)")
    parser.add_argument("--out", metavar="FILE", help="the record (default: bench/results/vs_torch-<cpu>.json)")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a ratio misses its target")
    parser.add_argument("--torch-worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--format", choices=FORMATS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    for key in ["repeats", "steps", "threads"]:
        if getattr(args, key) < 1:
            parser.error(f"--{key} {getattr(args, key)}: write 1 or more")
    args.batches = {model: args.batch or BATCH[model] for model in args.models}
    return args


def main():
    args = parse()
    if args.torch_worker:
        args.model = args.models[0]
        return torch_worker(args)
    if not os.access(args.millrace, os.X_OK):
        build = "cmake --preset release && cmake --build --preset release"
        raise SystemExit(f"vs_torch: {args.millrace} is not there; build it first: {build}")
    results = [compare(model, args) for model in args.models]
    print_table(results)
    print(f"record: {os.path.relpath(write_record(results, args))}")
    missed = list(missed_targets(results)) if args.check else []
    for line in missed:
        print(f"vs_torch: {line}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
