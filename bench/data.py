#!/usr/bin/python3
"""Pictures to network input on one thread: Millrace's ImageTransform against Pillow and torchvision.

Use bench/data.sh, which installs the packages first. Both sides read the same JPEG files into memory, then decode, take
a random resized crop of 224, mirror half of them and normalise to a float tensor, on one thread. Fresh processes in
turn, medians, by CPU time, so that what else runs on the machine counts little. Two sets of pictures: of the size of
ImageNet's, whose ratio counts, and of twice that size, where crops are large enough to be decoded at a reduced size.
Then ResNet-50 trains from these pictures, as OFRecord files of 64 parts read in random order, in turn with synthetic
images that need no loading: time waited for data, step time of both, memory planned and measured.
Prints a table; --json FILE writes a record.
"""

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import bench_record

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SPEED_TARGET = 2.0
WAIT_TARGET = 0.01
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def picture(random, width, height):
    """Something a camera could have seen: light falling off, flat shapes with edges, texture, a little noise."""
    import numpy

    y, x = numpy.mgrid[0:height, 0:width].astype(numpy.float32)
    levels = numpy.zeros((height, width, 3), numpy.float32)
    levels += 90 + 70 * random.random(3)
    levels += ((x / width - 0.5) * random.normal(0, 60) + (y / height - 0.5) * random.normal(0, 60))[..., None]
    for _ in range(random.integers(4, 9)):
        cx, cy = random.random() * width, random.random() * height
        rx, ry = width * random.uniform(0.05, 0.3), height * random.uniform(0.05, 0.3)
        inside = ((x - cx) / rx) ** 2 + ((y - cy) / ry) ** 2 < 1
        levels[inside] = levels[inside] * 0.4 + 0.6 * 255 * random.random(3)
    fx = numpy.fft.rfftfreq(width)[None, :] * width
    fy = numpy.fft.fftfreq(height)[:, None] * height
    fall = numpy.maximum(numpy.hypot(fx, fy), 1) ** -1.3
    grey = None
    for channel in range(3):
        noise = numpy.fft.irfft2(numpy.fft.rfft2(random.normal(size=(height, width))) * fall, s=(height, width))
        noise /= noise.std()
        grey = noise if grey is None else grey
        levels[..., channel] += 24 * grey + 8 * noise
    levels += random.normal(0, 1.5, size=(height, width, 1))
    return numpy.clip(levels, 0, 255).astype(numpy.uint8)


def make_pictures(folder, count, width, height, quality):
    """Returns the mean size of the files."""
    import numpy
    from PIL import Image

    random = numpy.random.default_rng(0)
    sizes = []
    for i in range(count):
        path = os.path.join(folder, f"{i:04}.jpg")
        Image.fromarray(picture(random, width, height)).save(path, quality=quality, subsampling="4:2:0")
        sizes.append(os.path.getsize(path))
    return statistics.mean(sizes)


def torch_worker(args):
    """One measurement of the other side; runs in a process of its own and prints one JSON line."""
    import torch
    from PIL import Image
    from torchvision import transforms

    torch.set_num_threads(1)
    torch.manual_seed(0)
    files = []
    for name in sorted(os.listdir(args.torch_worker)):
        with open(os.path.join(args.torch_worker, name), "rb") as file:
            files.append(file.read())
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(args.size),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    seconds, decode = 0.0, 0.0
    for turn in range(-1, args.passes):  # the first only warms up
        for data in files:
            begin = time.process_time()
            image = Image.open(io.BytesIO(data)).convert("RGB")
            middle = time.process_time()
            transform(image)
            end = time.process_time()
            if turn >= 0:
                seconds += end - begin
                decode += middle - begin
    count = len(files) * args.passes
    print(json.dumps({"images_per_s": count / seconds, "decode_ms": 1e3 * decode / count,
                      "rest_ms": 1e3 * (seconds - decode) / count}))


def run(command):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    if result.returncode != 0:
        lines = (result.stderr.strip() or result.stdout.strip() or "no output").splitlines()
        raise SystemExit(f"data: {os.path.basename(command[0])} failed with exit code {result.returncode}: {lines[-1]}")
    return json.loads(result.stdout.strip().splitlines()[-1])


def measure(count, width, height, args):
    runs = {"torchvision": [], "millrace": []}
    with tempfile.TemporaryDirectory() as folder:
        mean_bytes = make_pictures(folder, count, width, height, args.quality)
        other = [sys.executable, os.path.abspath(__file__), "--torch-worker", folder]
        other += ["--passes", str(args.passes), "--size", str(args.size)]
        ours = [args.probe, folder, str(args.passes), str(args.size)]
        for _ in range(args.repeats):
            runs["torchvision"].append(run(other))
            runs["millrace"].append(run(ours))
    ratio = median(runs["millrace"], "images_per_s") / median(runs["torchvision"], "images_per_s")
    return {"images": count, "width": width, "height": height, "mean_file_bytes": mean_bytes, "speed_ratio": ratio,
            "runs": runs}


def median(runs, key):
    return statistics.median(run[key] for run in runs)


def report(result, args):
    other, ours = result["runs"]["torchvision"], result["runs"]["millrace"]
    print(f"{result['images']} pictures of {result['width']}x{result['height']}, quality {args.quality}, 4:2:0, "
          f"{result['mean_file_bytes'] / 1e3:.0f} kB on average; crops of {args.size}; one thread, from memory, "
          f"by CPU time; medians of {args.repeats}")
    print(f"  {'':<12}{'images/s':>10}{'decode ms':>12}{'rest ms':>10}")
    for name, side, rest in [("torchvision", other, "rest_ms"), ("millrace", ours, "resample_ms")]:
        print(f"  {name:<12}{median(side, 'images_per_s'):>10.0f}{median(side, 'decode_ms'):>12.2f}"
              f"{median(side, rest):>10.2f}")
    print(f"  ratio {result['speed_ratio']:.2f}; only checking a file takes {median(ours, 'check_ms'):.2f} ms")
    print(f"  {100 * ours[0]['reduced_share']:.0f}% of crops decoded at a reduced size: against whole decoding "
          f"{ours[0]['reduced_mean_difference']:.2f} levels of 255 on average, "
          f"{ours[0]['reduced_max_difference']:.0f} at most", flush=True)


JOB = """name: data
batch: 16
steps: {steps}
model: {{name: resnet50, classes: 10, image_size: {size}}}
data: {data}
optimizer: {{lr: 0.001}}
"""


def millrace(args, *command):
    done = subprocess.run([args.millrace, *command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr.strip() or done.stdout)


def train(args):
    """Training from records and on synthetic images in turn; `copies` of each picture, in ten classes."""
    with tempfile.TemporaryDirectory() as folder:
        pictures, records = os.path.join(folder, "pictures"), os.path.join(folder, "records")
        os.mkdir(pictures)
        for label in range(10):
            os.mkdir(os.path.join(pictures, f"class{label}"))
        made = os.path.join(folder, "made")
        os.mkdir(made)
        make_pictures(made, args.images, args.width, args.height, args.quality)
        for copy in range(args.copies):
            for i, name in enumerate(sorted(os.listdir(made))):
                os.link(os.path.join(made, name), os.path.join(pictures, f"class{i % 10}", f"{copy}-{name}"))
        millrace(args, "convert", pictures, records, "--to", "ofrecord", "--parts", "64", "--shuffle")
        kinds = {"records": f"{{kind: ofrecord, train: {records}}}", "synthetic": "{kind: synthetic}"}
        runs = {name: [] for name in kinds}
        for repeat in range(args.repeats):
            for name, data in kinds.items():
                job, out = os.path.join(folder, "job.yaml"), os.path.join(folder, f"{name}-{repeat}")
                with open(job, "w") as file:
                    file.write(JOB.format(steps=args.steps, size=args.size, data=data))
                millrace(args, "train", job, "--out", out)
                with open(os.path.join(out, "summary.json")) as file:
                    summary = json.load(file)
                runs[name].append({"step_ms": summary["step_ms"]["p50"], "data_wait_share": summary["data_wait_share"],
                                   "planned_bytes": summary["peak_bytes"]["planned"],
                                   "measured_bytes": summary["peak_bytes"]["measured"]})
        size = sum(os.path.getsize(os.path.join(records, name)) for name in os.listdir(records))
    return {"samples": args.images * args.copies, "parts": 64, "bytes": size, "steps": args.steps, "runs": runs}


def report_training(result):
    print(f"ResNet-50, batch 16, {result['steps']} steps, from {result['samples']} records in {result['parts']} parts "
          f"({result['bytes'] / 1e6:.0f} MB), in random order; medians")
    print(f"  {'':<12}{'step ms':>10}{'waiting':>10}{'planned MiB':>13}{'measured MiB':>14}")
    for name, runs in result["runs"].items():
        print(f"  {name:<12}{median(runs, 'step_ms'):>10.0f}{100 * median(runs, 'data_wait_share'):>9.2f}%"
              f"{median(runs, 'planned_bytes') / 2**20:>13.0f}{median(runs, 'measured_bytes') / 2**20:>14.0f}", flush=True)


def versions():
    import PIL
    import torch
    import torchvision

    jpeg = bench_record.output_of("dpkg-query", "-W", "-f", "${Version}", "libjpeg62-turbo")
    return {"torch": torch.__version__, "torchvision": torchvision.__version__, "pillow": PIL.__version__,
            "libjpeg-turbo": jpeg or None}


def write_record(results, training, args):
    bench_record.write(args.json, "data", {
        "versions": versions(),
        "arguments": {key: getattr(args, key) for key in ["quality", "size", "passes", "repeats", "steps"]},
        "speed_ratio": results[0]["speed_ratio"],
        "results": results,
        "training": training,
    })


def parse_args():
    parser = argparse.ArgumentParser(prog="data.sh", description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--width", type=int, default=500)
    parser.add_argument("--height", type=int, default=375)
    parser.add_argument("--quality", type=int, default=90)
    parser.add_argument("--size", type=int, default=224, help="of the crops")
    parser.add_argument("--passes", type=int, default=3, help="over the pictures, in each process")
    parser.add_argument("--repeats", type=int, default=3, help="processes of each side")
    parser.add_argument("--copies", type=int, default=8, help="of each picture, in the records that training reads")
    parser.add_argument("--steps", type=int, default=20, help="of training")
    parser.add_argument("--json", metavar="FILE", help="write a record")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--probe", default=os.path.join(ROOT, "build/release/bin/data_probe"), help=argparse.SUPPRESS)
    parser.add_argument("--millrace", default=os.path.join(ROOT, "build/release/bin/millrace"), help=argparse.SUPPRESS)
    parser.add_argument("--torch-worker", metavar="FOLDER", help=argparse.SUPPRESS)
    args = parser.parse_args()
    for key in ["images", "width", "height", "size", "passes", "repeats", "copies", "steps"]:
        if getattr(args, key) < 1:
            parser.error(f"--{key} {getattr(args, key)}: write 1 or more")
    return args


def main():
    args = parse_args()
    if args.torch_worker:
        torch_worker(args)
        return
    sets = [(args.images, args.width, args.height), (max(args.images // 4, 1), 2 * args.width, 2 * args.height)]
    results = []
    for one in sets:
        results.append(measure(*one, args))
        report(results[-1], args)
    training = train(args)
    report_training(training)
    if args.json:
        write_record(results, training, args)
    ratio = results[0]["speed_ratio"]
    if args.check and ratio < SPEED_TARGET:
        raise SystemExit(f"data: {ratio:.2f}x torchvision's images/s, the target is {SPEED_TARGET}x")
    waited = median(training["runs"]["records"], "data_wait_share")
    if args.check and waited >= WAIT_TARGET:
        raise SystemExit(f"data: {100 * waited:.2f}% of the time waiting for data, the target is below {WAIT_TARGET:.0%}")


if __name__ == "__main__":
    main()
