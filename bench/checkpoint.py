#!/usr/bin/env python3
"""What saving costs: AlexNet (61 M parameters, 488 MB with momentum) with and without a checkpoint every 50 steps, in
turn. Prints how long workers waited for a snapshot, what all steps took together, and the peak of memory beside what was
planned. On a GPU (--device cuda) steps are short: with --steps 4000 --every 1500 one is written before the next.
Options: [--device cpu] [--batch 64] [--steps 120] [--every 50] [--repeats 3] [--build build/release] [--out FILE]"""
import argparse, json, shutil, statistics, subprocess, tempfile
from pathlib import Path

import bench_record

ROOT = Path(__file__).resolve().parent.parent


def train(options, every, run):
    shutil.rmtree(run, ignore_errors=True)
    sets = [f"device={options.device}", f"batch={options.batch}", f"steps={options.steps}", f"checkpoint.every={every}",
            "data.train_samples=0"]
    subprocess.run([str(ROOT / options.build / "bin/millrace"), "train", "jobs/alexnet.yaml", "--out", str(run)] +
                   [word for setting in sets for word in ("--set", setting)], cwd=ROOT, check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    summary = json.loads((run / "summary.json").read_text())
    seconds = [json.loads(line)["seconds"] for line in open(run / "metrics.jsonl") if '"step"' in line][5:]
    return summary, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--out")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="millrace-checkpoint-") as work:
        for _ in range(options.repeats):
            _, without = train(options, "off", Path(work) / "run")
            summary, with_saving = train(options, f"{options.every} steps", Path(work) / "run")
            saves = options.steps // options.every
            step_s = statistics.median(without)
            row = {"step_ms": 1e3 * step_s, "saves": saves,
                   "wait_ms_per_save": 1e3 * summary["save_wait_s"] / (saves + 1),  # one more at the end
                   "mean_step_ms_without": 1e3 * statistics.mean(without),
                   "mean_step_ms_with": 1e3 * statistics.mean(with_saving),
                   "not_saved": summary["failed_saves"], "peak_bytes": summary["peak_bytes"]}
            row["wait_share_of_a_step"] = row["wait_ms_per_save"] / row["step_ms"]
            row["slowdown"] = row["mean_step_ms_with"] / row["mean_step_ms_without"] - 1
            rows.append(row)
            peak = row["peak_bytes"]
            print(f"step {row['step_ms']:.3g} ms; waited {row['wait_ms_per_save']:.2f} ms a save "
                  f"({100 * row['wait_share_of_a_step']:.2f}% of a step); all steps {100 * row['slowdown']:+.2f}%; "
                  f"memory {peak['planned'] / 2**20:.0f} MiB planned, {peak['measured'] / 2**20:.0f} measured", flush=True)
    print(f"medians: {100 * statistics.median(r['wait_share_of_a_step'] for r in rows):.2f}% of a step waited a save, "
          f"all steps {100 * statistics.median(r['slowdown'] for r in rows):+.2f}%")
    if options.out:
        bench_record.write(options.out, "checkpoint", {"device": options.device, "batch": options.batch,
                                                       "every": options.every, "steps": options.steps, "runs": rows})


main()
