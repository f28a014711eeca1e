#!/usr/bin/env python3
"""Writes docs/performance.md from the records under bench/results/. Run it after a benchmark; never edit the page."""

import glob
import json
import os
import statistics

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MiB = 1 << 20
TRANSFORMERS = ["vit_b_16", "bert_base", "gpt2"]


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def torch_formats(result):
    """PyTorch's numbers by memory format; a record of before both were measured has those of the faster one."""
    measured = {
        "median_samples_per_s": result["median_samples_per_s"]["torch"],
        "speed_ratio": result["speed_ratio"],
        "median_peak_bytes": result["median_peak_bytes"]["torch"],
        "memory_ratio": result["memory_ratio"],
    }
    return result.get("torch_formats", {result["torch_format"]: measured})


def speed_rows(record):
    """One row per format of PyTorch; the ratios against the faster one are bold."""
    for result in record["results"]:
        for number, (name, torch) in enumerate(torch_formats(result).items()):
            mark = "**" if name == result["torch_format"] else ""
            first = number == 0
            yield [
                result["model"] if first else "",
                str(result["batch"]) if first else "",
                f"{torch['median_samples_per_s']:.2f} ({name.replace('_', ' ')})",
                f"{result['median_samples_per_s']['millrace']:.2f}" if first else "",
                f"{mark}{torch['speed_ratio']:.2f}x{mark}",
                f"{torch['median_peak_bytes'] / MiB:.0f}",
                f"{result['median_peak_bytes']['millrace'] / MiB:.0f}" if first else "",
                f"{mark}{torch['memory_ratio']:.2f}x{mark}",
            ]


def median_bench(result):
    """The run of Millrace whose speed is the median."""
    runs = sorted(result["runs"]["millrace"], key=lambda run: run["samples_per_s"])
    return runs[len(runs) // 2]["bench"]


def where_time_goes(result):
    bench = median_bench(result)
    step = sum(bench["operators_ms"].values())
    rows = [[kind, f"{ms:.1f}", f"{100 * ms / step:.1f}%"] for kind, ms in bench["operators_ms"].items() if ms >= 0.002 * step]
    gflop = bench["gflops"] * bench["step_ms"]["p50"] * 1e-3
    floor = gflop / bench["peak_gflops"] * 1e3
    planned, measured = bench["peak_bytes"]["planned"], bench["peak_bytes"]["measured"]
    return (
        f"### {result['model']}, batch {result['batch']}\n\n"
        f"Step {bench['step_ms']['p50']:.0f} ms (p10 {bench['step_ms']['p10']:.0f}, p90 {bench['step_ms']['p90']:.0f}). "
        f"Its {gflop:.0f} GFLOP would take {floor:.0f} ms at the measured peak of {bench['peak_gflops']:.0f} GFLOP/s without "
        f"Winograd. Outside kernels: {100 * bench['outside_kernels_share']:.3f}%. Memory planned {planned / MiB:.0f} MiB, "
        f"measured {measured / MiB:.0f} MiB ({100 * (measured - planned) / planned:+.1f}%).\n\n"
        + table(["operator, pass", "ms a step", "share"], rows)
    )


def page(record):
    machine, versions = record["machine"], record["versions"]
    arguments = record["arguments"]
    both = any("torch_formats" in result for result in record["results"])
    formats = "PyTorch in both memory formats, contiguous being its default; bold: against the faster. " if both else ""
    # A result may be of another commit than the rest of its record.
    earlier = [f"{result['model']}: {result['commit'][:10]}" for result in record["results"] if "commit" in result]
    others = f" ({', '.join(earlier)})" if earlier else ""
    parts = [
        f"## {machine['cpu']}, {machine['cores']} cores{', ' + record['results'][0]['model'] if len(record['results']) == 1 else ''}\n",
        f"{machine['system']}, PyTorch {versions['torch']} with OpenBLAS and oneDNN {versions['debian']['libdnnl2']}, "
        f"{arguments['threads']} threads, fp32, 224x224, 1000 classes. Samples/s: median of {arguments['repeats']} runs in turn, "
        f"each the median of {arguments['steps']} steps. Peak: resident memory of the whole process, MiB. "
        f"{formats}Commit {record['commit'][:10]}{others}, `bench/vs_torch.sh`.\n",
        table(
            ["model", "batch", "PyTorch", "Millrace", "speed", "PyTorch MiB", "Millrace MiB", "memory"],
            speed_rows(record),
        ),
    ]
    parts += [where_time_goes(result) for result in record["results"]]
    return "\n".join(parts)


def gpu_floor(row):
    """Where the time of a step goes, against bytes over measured bandwidth and operations over measured rate."""
    bench = row["millrace"]
    kinds, floors = bench["operators_ms"], bench["floor_ms"]
    total, floor = sum(kinds.values()), sum(floors.values())
    rows = [
        [kind, f"{ms:.2f}", f"{100 * ms / total:.1f}%", f"{floors.get(kind, 0):.2f}", f"{ms - floors.get(kind, 0):.2f}"]
        for kind, ms in kinds.items()
        if ms >= 0.004 * total
    ]
    rows.append(["all", f"{total:.2f}", "100.0%", f"{floor:.2f}", f"{total - floor:.2f}"])
    planned, measured = bench["peak_bytes"]["planned"], bench["peak_bytes"]["measured"]
    return (
        f"### {row['model']}, {row['precision']}, batch {row['batch']}\n\n"
        f"Step {bench['step_ms']['p50']:.2f} ms (p10 {bench['step_ms']['p10']:.2f}, p90 {bench['step_ms']['p90']:.2f}). Measured "
        f"rates: {bench['peak_bytes_per_s'] * 1e-12:.2f} TB/s (copy, read and written), {bench['peak_gflops'] * 1e-3:.0f} TFLOP/s "
        f"(8192 x 8192 x 8192 product). Floor: every operand of a node once, or its operations. Times of single nodes are taken "
        f"with a mark between any two, outside the CUDA graph, so their sum is above the step. Memory planned "
        f"{planned / MiB:.0f} MiB, measured {measured / MiB:.0f} MiB ({100 * (measured - planned) / planned:+.1f}%).\n\n"
        + table(["operator, pass", "ms a step", "share", "floor ms", "above it"], rows)
    )


def gpu_page(record):
    rows = [
        [
            row["model"],
            str(row["batch"]),
            row["precision"],
            f"{row['medians']['compile']:.0f}",
            f"{row['medians']['millrace']:.0f}",
            f"**{row['ratio']:.2f}x**",
            f"{row['torch_peak_mib']:.0f}",
            f"{row['millrace_planned_mib']:.0f}",
            f"**{row['memory_ratio']:.2f}x**",
        ]
        for row in record["rows"]
    ]
    rounds = len(record["rows"][0]["samples_per_s"]["millrace"])
    transformers = [row for row in record["rows"] if row["model"] in TRANSFORMERS]
    peer, title = "channels-last, fused SGD, autocast; synthetic data on the device, 224x224, 1000 classes", ""
    if transformers:
        title = ", transformers"
        peer = (f"Hugging Face's models with scaled_dot_product_attention, fused AdamW, autocast, dropout "
                f"{record['rows'][0]['dropout']:g}; synthetic data on the device, 224x224, 128 tokens (BERT) and 1024 (GPT-2)")
    parts = [
        f"## {record['gpu']}{title}\n",
        f"PyTorch {record['torch']} (cuDNN {record['torch_cudnn']}), torch.compile, {peer}. Samples/s: median of {rounds} rounds in turn. Memory: PyTorch's peak "
        f"allocation, Millrace's plan, MiB. Commit {record['commit'][:10]}, `{record['command']}`.\n",
        table(
            ["model", "batch", "precision", "PyTorch", "Millrace", "speed", "PyTorch MiB", "Millrace MiB", "memory"], rows
        ),
    ]
    shown = transformers or [row for row in record["rows"] if row["precision"] == "fp16"]
    return "\n".join(parts + [gpu_floor(row) for row in shown])


def elastic_gpu_page(record):
    rows = [[str(row["frozen"]), "fetched" if row["cache"] else "computed", f"{row['predicted_ms']:.2f}",
             f"{row['measured_ms']:.2f}", f"{100 * (row['predicted_ms'] / row['measured_ms'] - 1):+.1f}%"]
            for row in record["rows"]]
    return "\n".join([
        f"## {record['gpu']}, frozen layers\n",
        f"ViT-B/16, {record['precision']}, batch {record['batch']}, images from the host, a step with so many of its 12 layers "
        f"frozen; predicted by the planner from one profile of the whole model. Commit {record['commit'][:10]}, "
        f"`{record['command']}`.\n",
        table(["frozen", "their output", "predicted ms", "measured ms", "off"], rows)])


def data_page(record):
    def median(runs, key):
        return statistics.median(run[key] for run in runs)

    rows = []
    for result in record["results"]:
        other, ours = result["runs"]["torchvision"], result["runs"]["millrace"]
        rows.append([f"{result['width']}x{result['height']}, {result['mean_file_bytes'] / 1e3:.0f} kB",
                     f"{median(other, 'images_per_s'):.0f}", f"{median(ours, 'images_per_s'):.0f}",
                     f"**{result['speed_ratio']:.2f}x**", f"{median(ours, 'decode_ms'):.2f}",
                     f"{median(ours, 'resample_ms'):.2f}", f"{100 * ours[0]['reduced_share']:.0f}%",
                     f"{ours[0]['reduced_mean_difference']:.2f}, {ours[0]['reduced_max_difference']:.0f}"])
    training, versions = record["training"], record["versions"]
    steps = [[name, f"{median(runs, 'step_ms'):.0f}", f"{100 * median(runs, 'data_wait_share'):.2f}%",
              f"{median(runs, 'planned_bytes') / MiB:.0f}", f"{median(runs, 'measured_bytes') / MiB:.0f}"]
             for name, runs in training["runs"].items()]
    return "\n".join([
        f"## Data, {record['machine']['cpu']}\n",
        f"JPEG to normalised input of 224x224 (random resized crop, mirror) on one thread, images/s by CPU time: "
        f"torchvision {versions['torchvision']} with Pillow {versions['pillow']} against Millrace, medians of "
        f"{record['arguments']['repeats']} in turn. Reduced: crops decoded at half or a quarter of the size, and how far "
        f"they are from whole decoding (mean and largest, in levels of 255). Commit {record['commit'][:10]}, "
        f"`bench/data.sh`.\n",
        table(["pictures", "torchvision", "Millrace", "ratio", "decode ms", "resize ms", "reduced", "difference"], rows),
        f"ResNet-50, batch 16, {training['steps']} steps on {record['machine']['cores']} cores, from {training['samples']} "
        f"records in {training['parts']} parts in random order, in turn with images that need no loading:\n",
        table(["data", "step ms", "waiting for data", "planned MiB", "measured MiB"], steps)])


RECORDS = [  # as they follow one another on the page
    ("vs_torch_gpu[-_]*", gpu_page),
    ("elastic_gpu-*", elastic_gpu_page),
    ("vs_torch-*", page),
    ("vs_torch_vit-*", page),
    ("data-*", data_page),
]


def main():
    pages = []
    for name, page_of in RECORDS:
        for path in sorted(glob.glob(os.path.join(ROOT, f"bench/results/{name}.json"))):
            with open(path) as file:
                pages.append(page_of(json.load(file)))
    head = "# Performance\n\nGenerated by `bench/performance_page.py` from the records in `bench/results/`. "
    head += "Passes: F forward, I input gradient, W weight gradient, U update.\n\n"
    with open(os.path.join(ROOT, "docs/performance.md"), "w") as file:
        file.write(head + "\n".join(pages))


if __name__ == "__main__":
    main()
