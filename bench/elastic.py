#!/usr/bin/env python3
"""A 12-layer vision transformer on four workers of this machine, for the same number of epochs: a static pipeline,
plain data parallelism, and elastic training with its switches on one after another. The data is a generated set in the
format of CIFAR-100. As layers freeze in fine-tuning, every run begins with the weights of one that was trained on the
same pictures under other labels. Runs alternate, seed after seed.
Options: [--seeds 3] [--epochs 10] [--samples 4000] [--noise 40] [--out FILE] [--only NAME,...]
[--freeze schedule|gradient]
With --cache-cost instead: what elastic.cache costs where it cannot pay. One cheap layer with a large output stands still
from the beginning, on one worker, and the run ends before much of what was kept is fetched: after --epochs 1 to 3. The
same job with the cache and without it, in turn, as often as --seeds says. Promised is a ratio of at most 1.02."""
import argparse, json, math, random, statistics, subprocess, sys, tempfile
from pathlib import Path

import bench_record

ROOT = Path(__file__).resolve().parent.parent
MILLRACE = ROOT / "build/release/bin/millrace"
CLASSES, SIDE = 100, 32
JOB = """name: elastic
batch: 64
epochs: %(epochs)d
seed: %(seed)d
model: {name: vit_s_16, classes: 100, image_size: 32, patch: 8, width: 96, layers: 12, heads: 3, mlp: 384, dropout: 0.1%(init)s}
data: {kind: cifar100, train: %(data)s/%(set)s_train.bin, test: %(data)s/%(set)s_test.bin}
data.train_transform: {kind: resize, mirror: 0}
data.test_transform: {kind: resize, mirror: 0}
optimizer: {kind: adamw, lr: 5e-4, weight_decay: 0.05, clip_norm: 1}
schedule: {kind: cosine, warmup_epochs: 1}
eval: {every_epochs: 0}
"""
PIPELINE = ["parallel.mode=1f1b", "parallel.placement=0:0.0:1.0:2.0:3", "parallel.microbatches=4", "parallel.balance=flops"]
# The stem of a small residual network: 27 multiplications for each value that would be fetched.
CACHE_COST_JOB = """name: cache-cost
batch: 50
epochs: %(epochs)d
seed: 1
threads: 1
model: {name: resnet_small, classes: 100, image_size: 32, frozen: 1}
data: {kind: cifar100, train: %(data)s/first_train.bin, threads: 1}
data.train_transform: {kind: resize, mirror: 0}
optimizer: {lr: 0.05}
"""
FREEZE = ["elastic.freeze=%s", "elastic.alpha=1/3"]
RUNS = {
    "static pipeline": PIPELINE,
    "data parallel": ["parallel.mode=dp", "parallel.placement=0:0-3", "parallel.microbatches=4"],
    "freeze": PIPELINE + FREEZE,
    "freeze + pipe": PIPELINE + FREEZE + ["elastic.pipe=on"],
    "freeze + pipe + dp": PIPELINE + FREEZE + ["elastic.pipe=on", "elastic.dp=on"],
    "freeze + cache": PIPELINE + FREEZE + ["elastic.cache=on"],
    "all four": PIPELINE + FREEZE + ["elastic.pipe=on", "elastic.dp=on", "elastic.cache=on"],
}


def smooth_picture(dice):
    """Random waves, so that neighbouring pixels are alike as in a photograph."""
    waves = [[(dice.uniform(0, 3), dice.uniform(0, 3), dice.uniform(0, 6.3), dice.uniform(10, 30)) for _ in range(3)]
             for _ in range(3)]
    return [128 + sum(a * math.sin(fx * x / 5 + fy * y / 5 + p) for fx, fy, p, a in channel)
            for channel in waves for y in range(SIDE) for x in range(SIDE)]


def write_sets(folder, samples, tests, level):
    """CIFAR-100's binary format: coarse label, fine label, 3072 pixels. Twice the same kind of pictures; the second set
    has new ones, and other labels."""
    dice = random.Random(7)
    patterns = [smooth_picture(dice) for _ in range(CLASSES)]
    noise = [[dice.gauss(0, level) for _ in range(3 * SIDE * SIDE)] for _ in range(64)]
    labels = {"first": list(range(CLASSES)), "second": dice.sample(range(CLASSES), CLASSES)}
    for name, count in (("first_train", samples), ("first_test", tests), ("second_train", samples),
                        ("second_test", tests)):
        with open(folder / f"{name}.bin", "wb") as file:
            for i in range(count):
                # Every sample its own mixture of two sheets of noise, and its own light.
                a, b = noise[dice.randrange(64)], noise[dice.randrange(64)]
                light, shift = dice.gauss(0, 12), dice.randrange(3 * SIDE * SIDE)
                n = len(a)
                pixels = bytes(max(0, min(255, int(p + light + 0.7 * (a[(k + shift) % n] + b[k]))))
                               for k, p in enumerate(patterns[i % CLASSES]))
                label = labels[name.split("_")[0]][i % CLASSES]
                file.write(bytes([label // 5, label]) + pixels)


def train(job, out, settings):
    """Its metrics, step by step, and the seconds of all steps."""
    words = [str(MILLRACE), "train", str(job), "--out", str(out), "--overwrite"]
    for setting in settings:
        words += ["--set", setting]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{out.name}: {done.stderr.strip()}")
    metrics = [json.loads(line) for line in open(out / "metrics.jsonl")]
    return done.stdout, [step["seconds"] for step in metrics if "seconds" in step]


def run(work, name, settings, seed, arguments, which="second"):
    job = work / "job.yaml"
    init = "" if which == "first" else f", init: {work}/first/model.safetensors"
    job.write_text(JOB % {"epochs": arguments.epochs, "seed": seed, "data": work, "set": which, "init": init})
    out = work / "first" if which == "first" else work / f"{name.replace(' ', '_')}-{seed}"
    _, seconds = train(job, out, [setting % arguments.freeze if "%s" in setting else setting for setting in settings])
    train_s = sum(seconds)
    summary = json.loads((out / "summary.json").read_text())
    record = {"name": name, "seed": seed, "train_s": train_s, "top1": summary["accuracy"]["top1"],
              "loss": summary["loss"]}
    if (out / "elastic.json").exists():
        record["elastic"] = json.loads((out / "elastic.json").read_text())
        record["pause_ms"] = [t["pause_ms"] for t in record["elastic"]["transitions"]]
        record["train_s"] += sum(record["pause_ms"]) / 1e3  # between steps
    return record


def cache_cost(work, arguments):
    job = work / "job.yaml"
    job.write_text(CACHE_COST_JOB % {"epochs": arguments.epochs, "data": work})
    seconds = {"off": [], "on": []}
    for turn in range(arguments.seeds):
        for cache in ("off", "on") if turn % 2 == 0 else ("on", "off"):
            said, steps = train(job, work / f"cache-{cache}", [f"elastic.cache={cache}"])
            seconds[cache].append(sum(steps))
            verdict = next((line.split("make: ")[1] for line in said.splitlines() if " make: " in line), "")
            print(f"turn {turn + 1}  cache {cache:3}  {seconds[cache][-1]:7.2f} s of steps, median "
                  f"{1e3 * statistics.median(steps):.2f} ms  {verdict}", flush=True)
    medians = {cache: statistics.median(seconds[cache]) for cache in seconds}
    ratio = medians["on"] / medians["off"]
    print(f"\nwith the cache {medians['on']:.2f} s, without {medians['off']:.2f} s: {ratio:.4f}x")
    return {"median_s": medians, "ratio": ratio, "runs_s": seconds}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--noise", type=float, default=40)
    parser.add_argument("--freeze", default="schedule", choices=["schedule", "gradient"])
    parser.add_argument("--only", default="")
    parser.add_argument("--out")
    parser.add_argument("--cache-cost", action="store_true")
    arguments = parser.parse_args()
    chosen = {name: RUNS[name] for name in RUNS if not arguments.only or name in arguments.only.split(",")}
    records = []
    with tempfile.TemporaryDirectory(prefix="millrace-elastic-") as folder:
        work = Path(folder)
        write_sets(work, arguments.samples, 1000, arguments.noise)
        if arguments.cache_cost:
            figures = cache_cost(work, arguments)
            if arguments.out:
                bench_record.write(arguments.out, "elastic_cache_cost", figures)
            return
        first = run(work, "first", RUNS["data parallel"], 100, arguments, which="first")
        print(f"weights to begin with: top-1 {100 * first['top1']:.1f}% of the first set", flush=True)
        for seed in range(1, arguments.seeds + 1):
            for name, settings in chosen.items():
                records.append(run(work, name, settings, seed, arguments))
                r = records[-1]
                print(f"seed {seed}  {name:20}  {r['train_s']:7.1f} s  top-1 {100 * r['top1']:5.1f}%", flush=True)
    base = next(iter(chosen))
    medians = {name: statistics.median(r["train_s"] for r in records if r["name"] == name) for name in chosen}
    accuracy = {name: statistics.mean(r["top1"] for r in records if r["name"] == name) for name in chosen}
    print(f"\n{'':20}  {'time':>9}  {'against ' + base:>24}  {'top-1':>7}")
    for name in chosen:
        print(f"{name:20}  {medians[name]:7.1f} s  {medians[base] / medians[name]:23.2f}x  {100 * accuracy[name]:6.1f}%")
    if arguments.out:
        bench_record.write(arguments.out, "elastic", {"median_s": medians, "top1": accuracy, "runs": records})


main()
