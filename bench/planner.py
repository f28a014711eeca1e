"""What the planner predicts beside what runs: one worker, data parallel, a straight pipeline with a flush and one
without, each on workers of one thread; and the plan it chooses against the first two."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

import bench_record

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MILLRACE = os.path.join(ROOT, "build", "release", "bin", "millrace")
BATCH = {"alexnet": 64, "vgg16": 8, "resnet50": 16}
STEP_WITHIN, MEMORY_WITHIN = 0.10, 0.05


def millrace(*arguments):
    result = subprocess.run([MILLRACE, *map(str, arguments)], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"planner: millrace {' '.join(map(str, arguments))}\n{result.stderr[-2000:]}")
    return result.stdout


def read(path):
    with open(path) as file:
        return json.load(file)


class Model:
    def __init__(self, name, folder, args):
        self.name, self.folder, self.args = name, folder, args
        self.batch = BATCH[name]
        self.job = os.path.join(ROOT, "jobs", f"{name}.yaml")
        self.cluster = os.path.join(folder, "local.yaml")
        self.settings = ["--set", f"batch={self.batch}", "--set", "threads=1"]

    def path(self, name):
        return os.path.join(self.folder, f"{self.name}-{name}")

    def profiles(self, workers):
        """Measured with as many workers at once as will run."""
        sizes = ",".join(map(str, sorted({max(1, self.batch // part) for part in (16, 4, 1)})))
        out = self.path(f"profile{workers}.json")
        millrace("profile", self.job, *self.settings, "--rows", sizes, "--workers", workers, "--repeats", 3, "-o", out)
        stem, ending = os.path.splitext(out)
        return [option for rows in sizes.split(",") for option in ("--profile", f"{stem}-{rows}{ending}")]

    def plan(self, profiles, *options):
        out = self.path("plan.json")
        millrace("plan", self.job, *self.settings, "--cluster", self.cluster, *profiles, "--json", out, *options)
        return read(out)

    def predict(self, parallel, profiles, name):
        plan, out = self.path(f"{name}.json"), self.path(f"{name}-predicted.json")
        with open(plan, "w") as file:
            json.dump({"parallel": parallel}, file)
        millrace("simulate", self.job, *self.settings, "--plan", plan, "--cluster", self.cluster, *profiles,
                 "--trace", self.path("trace.json"), "--json", out)
        predicted = read(out)
        return {"step_ms": predicted["predicted"]["step_ms"],
                "memory_bytes": sum(worker["memory_bytes"] for worker in predicted["workers"])}

    def run(self, parallel, name):
        plan, out = self.path(f"{name}.json"), self.path(f"{name}-run")
        with open(plan, "w") as file:
            json.dump({"parallel": parallel}, file)
        millrace("train", self.job, *self.settings, "--set", f"steps={self.args.steps}", "--plan", plan, "--out", out,
                 "--overwrite")
        summary = read(os.path.join(out, "summary.json"))
        with open(os.path.join(out, "metrics.jsonl")) as file:
            seconds = [line["seconds"] for line in map(json.loads, file) if "seconds" in line][2:]
        # Without a flush steps end in bursts: their mean counts there.
        middle = statistics.mean if parallel["mode"] in ("ssp", "pipedream") else statistics.median
        return {"step_ms": 1e3 * middle(seconds), "memory_bytes": summary["peak_bytes"]["measured"]}


def ways(model):
    """The four ways to run, with the profiles they are predicted from."""
    alone, together = model.profiles(1), model.profiles(2)
    plan = model.plan(together)
    stale = model.plan(together, "--stale")
    one = dict(plan["baselines"]["data_parallel"]["parallel"], placement="0:0", microbatches="1", shares="", cuts="[]")
    straight = plan["baselines"]["straight_pipeline"]["parallel"]
    ssp = dict(straight, mode="ssp", microbatches="1")
    found = {
        "1 worker": (one, alone),
        "data parallel": (plan["baselines"]["data_parallel"]["parallel"], together),
        "1f1b": (straight, together),
        "ssp": (ssp, together),
    }
    return found, {"chosen": plan["parallel"], "chosen, stale": stale["parallel"]}


def two_hosts(model):
    """Where the planner cuts AlexNet on two hosts of one core joined by 1 Gb/s."""
    model.settings = ["--set", "batch=128", "--set", "threads=1"]
    model.batch = 128
    model.cluster = os.path.join(ROOT, "clusters", "two-hosts-1g.yaml")
    profiles = model.profiles(1)
    found = {}
    for name, options in {"synchronous": [], "stale": ["--stale"]}.items():
        plan = model.plan(profiles, *options)
        found[name] = {"parallel": plan["parallel"], "predicted": plan["predicted"],
                       "data_parallel": plan["baselines"]["data_parallel"]}
        gain = plan["predicted"]["samples_per_s"] / plan["baselines"]["data_parallel"]["samples_per_s"]
        print(f"two hosts at 1 Gb/s, {name}: {plan['predicted']['plan']}, predicted {gain:.2f}x data parallel", flush=True)
    return found


def compare(model, args):
    found, chosen = ways(model)
    rows = []
    for name, (parallel, profiles) in found.items():
        predicted = model.predict(parallel, profiles, name.replace(" ", "-"))
        runs = [model.run(parallel, name.replace(" ", "-")) for _ in range(args.repeats)]
        real = {key: statistics.median(run[key] for run in runs) for key in predicted}
        off = {key: predicted[key] / real[key] - 1 for key in predicted}
        rows.append({"model": model.name, "batch": model.batch, "way": name, "parallel": parallel,
                     "predicted": predicted, "real": real, "off": off, "runs": runs})
        print(f"{model.name:<9} {name:<14} step {predicted['step_ms']:8.1f} ms predicted, {real['step_ms']:8.1f} real "
              f"({100 * off['step_ms']:+5.1f}%)   memory {predicted['memory_bytes'] / 2**20:7.0f} MiB predicted, "
              f"{real['memory_bytes'] / 2**20:7.0f} real ({100 * off['memory_bytes']:+5.1f}%)", flush=True)
    real = {row["way"]: row["real"]["step_ms"] for row in rows}
    best = min(real["data parallel"], real["1f1b"])
    choices = []
    for name, parallel in chosen.items():
        known = [row for row in rows if row["parallel"] == parallel]
        step = known[0]["real"]["step_ms"] if known else statistics.median(
            model.run(parallel, "chosen")["step_ms"] for _ in range(args.repeats))
        choices.append({"model": model.name, "what": name, "parallel": parallel, "step_ms": step, "of_best": step / best})
        print(f"{model.name:<9} {name:<14} {parallel['mode']} on {parallel['placement']}: {step:.1f} ms, "
              f"{step / best:.2f}x the better of data parallel and straight pipeline", flush=True)
    return rows, choices


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+", default=list(BATCH), choices=BATCH)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", metavar="FILE")
    args = parser.parse_args()
    rows, choices = [], []
    with tempfile.TemporaryDirectory() as folder:
        millrace("cluster", "detect", "-o", os.path.join(folder, "local.yaml"))
        for name in args.models:
            more_rows, more_choices = compare(Model(name, folder, args), args)
            rows += more_rows
            choices += more_choices
        hosts = two_hosts(Model("alexnet", folder, args))
    within = {"step": sum(abs(row["off"]["step_ms"]) <= STEP_WITHIN for row in rows),
              "memory": sum(abs(row["off"]["memory_bytes"]) <= MEMORY_WITHIN for row in rows)}
    print(f"step within {100 * STEP_WITHIN:.0f}% in {within['step']} of {len(rows)}, memory within "
          f"{100 * MEMORY_WITHIN:.0f}% in {within['memory']} of {len(rows)}")
    if args.out:
        bench_record.write(args.out, "planner", {"rows": rows, "choices": choices, "two_hosts": hosts})


if __name__ == "__main__":
    main()
