#!/usr/bin/env python3
"""ViT-B/16 on one GPU with 0, 4, 8 and 11 of its 12 layers frozen, their output computed and kept: what a step takes,
beside what the planner says it will, from one profile of the whole model.
Options: [--precision fp16] [--batch 64] [--build build/gpu] [--out FILE]"""
import argparse, json, statistics, subprocess, sys, tempfile
from pathlib import Path

import bench_record

ROOT = Path(__file__).resolve().parent.parent
JOB = """name: vit
batch: %d
epochs: 5
device: cuda
precision: %s
threads: 8
model: {name: vit_b_16, classes: 100, image_size: 224}
data: {kind: synthetic, train_samples: %d, threads: 8, ahead: 4}
optimizer: {kind: adamw, lr: 1e-5}
elastic: {cache_gib: 24}
"""


def call(*words):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--build", default="build/gpu")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    millrace = ROOT / arguments.build / "bin/millrace"
    batches = 30
    rows = []
    with tempfile.TemporaryDirectory(prefix="millrace-elastic-gpu-") as folder:
        work = Path(folder)
        job = work / "job.yaml"
        job.write_text(JOB % (arguments.batch, arguments.precision, batches * arguments.batch))
        call(millrace, "profile", job, "-o", work / "profile.json")
        print(f"{'frozen':>6}  {'cache':>5}  {'predicted':>10}  {'measured':>10}  {'ratio':>6}")
        for frozen in (0, 4, 8, 11):
            for cache in ("off", "on"):
                if frozen == 0 and cache == "on":
                    continue
                sets = ["--set", f"model.frozen={frozen}", "--set", f"elastic.cache={cache}"]
                call(millrace, "plan", job, *sets, "--profile", work / "profile.json", "--json", work / "plan.json")
                predicted = json.loads((work / "plan.json").read_text())["predicted"]["step_ms"]
                out = work / f"run-{frozen}-{cache}"
                call(millrace, "train", job, *sets, "--out", out)
                steps = [json.loads(line) for line in open(out / "metrics.jsonl")]
                last = [1e3 * s["seconds"] for s in steps if "seconds" in s][-2 * batches:]
                waited = json.loads((out / "summary.json").read_text())["data_wait_share"]
                measured = statistics.median(last)
                rows.append({"frozen": frozen, "cache": cache == "on", "predicted_ms": predicted, "measured_ms": measured,
                             "data_wait_share": waited})
                print(f"{frozen:6}  {cache:>5}  {predicted:7.2f} ms  {measured:7.2f} ms  {predicted / measured:6.3f}"
                      f"  (waiting for data {100 * waited:.1f}%)", flush=True)
    if arguments.out:
        bench_record.write(arguments.out, "elastic_gpu", {
            "gpu": call("nvidia-smi", "--query-gpu=name", "--format=csv,noheader"),
            "precision": arguments.precision,
            "batch": arguments.batch,
            "rows": rows,
        })


main()
