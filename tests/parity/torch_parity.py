#!/usr/bin/python3
"""Whole models against PyTorch, from the same weights, images and labels.

  torch_parity.py --probe PROBE [--model NAME ...]  runs both and compares; exit code 1 if they differ
  torch_parity.py --golden FILE --model NAME        writes PyTorch's losses and gradient digests, in double

The probe is called as
  PROBE <model> <classes> <image> <batch> <steps> <lr> <in.safetensors> <out.safetensors> [--winograd auto|off]
and reads parameters (torchvision's names), `__images__` and `__labels__`; it writes `loss` (one per step, before that
step's update) and `grad.<name>` (of the first step), as this script does for PyTorch.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch
import torchvision

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import counter_random
import safetensors_file

MODELS = ["alexnet", "vgg16", "vgg16_bn", "resnet18", "resnet34", "resnet50"]
MOMENTUM = 0.9
NORM_SHIFT = 2.0  # see counter_random.filled()
LOSS_TOLERANCE = 1e-4
GRADIENT_TOLERANCE = 1e-3

# Steps small enough that rounding is not amplified by a loss that overshoots or falls to almost nothing, and large
# enough that the loss moves by far more than the tolerance.
LEARNING_RATE = {"alexnet": 1e-2, "vgg16": 1e-2, "vgg16_bn": 1e-4, "resnet18": 3e-5, "resnet34": 3e-5, "resnet50": 3e-5}


def build(args):
    """The model in training mode, dropout off so that both sides compute the same function."""
    options = {"num_classes": args.classes}
    if not args.model.startswith("resnet"):
        options["dropout"] = 0.0
    return getattr(torchvision.models, args.model)(weights=None, **options).train()


def parameters_of(model):
    """Parameters and running statistics as float32 arrays, without PyTorch's batch counters."""
    state = model.state_dict()
    return {name: value.numpy() for name, value in state.items() if not name.endswith("num_batches_tracked")}


def random_inputs(model, args):
    """torchvision's own initialisation, but for batch norm's shift, and normal images."""
    parameters = parameters_of(model)
    for name, value in parameters.items():
        if counter_random.role_of(name, parameters) == "norm_shift":
            value.fill(args.norm_shift)
    generator = torch.Generator().manual_seed(args.seed)
    images = torch.randn(args.batch, 3, args.image, args.image, generator=generator)
    labels = torch.randint(args.classes, (args.batch,), generator=generator)
    return {**parameters, "__images__": images.numpy(), "__labels__": labels.numpy().astype(np.float32)}


def golden_inputs(model, args):
    """Numbers that a test can make again without PyTorch."""
    shapes = {name: value.shape for name, value in parameters_of(model).items()}
    tensors = {
        name: counter_random.filled(name, shape, counter_random.role_of(name, shapes)) for name, shape in shapes.items()
    }
    tensors["__images__"] = counter_random.filled("__images__", (args.batch, 3, args.image, args.image), "plain")
    tensors["__labels__"] = (np.arange(args.batch) % args.classes).astype(np.float32)
    return tensors


def train(model, tensors, args, dtype):
    """Losses of each step before its update, and every parameter's gradient of the first step."""
    state = {name: torch.from_numpy(value) for name, value in tensors.items() if not name.startswith("__")}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and all(name.endswith("num_batches_tracked") for name in missing), (missing, unexpected)
    model = model.to(dtype)
    images = torch.from_numpy(tensors["__images__"]).to(dtype)
    labels = torch.from_numpy(tensors["__labels__"]).long()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=MOMENTUM)
    losses, gradients = [], {}
    for step in range(args.steps):
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            gradients = {name: value.grad.detach().numpy().copy() for name, value in model.named_parameters()}
        optimizer.step()
    return np.array(losses), gradients


def as_output(losses, gradients):
    return {"loss": losses.astype(np.float64), **{f"grad.{name}": value for name, value in gradients.items()}}


def loss_error(losses, reference):
    return np.abs(losses - reference) / np.abs(reference)


def gradient_scale(name, gradients):
    """What an error of this gradient is measured against: its norm, but at least 1% of its layer's weight gradient.

    The bias of a convolution before batch norm has a gradient of exactly zero, of which any float32 run shows only
    rounding.
    """
    norm = np.linalg.norm(gradients[name].astype(np.float64))
    layer = name.rpartition(".")[0]
    return max(norm, 0.01 * np.linalg.norm(gradients[f"{layer}.weight"].astype(np.float64)))


def gradient_error(name, gradients, reference):
    difference = gradients[name].astype(np.float64).reshape(reference[name].shape) - reference[name]
    return np.linalg.norm(difference) / gradient_scale(name, reference)


def run_probe(args, inputs, outputs):
    command = [args.probe, args.model, args.classes, args.image, args.batch, args.steps, args.lr, inputs, outputs]
    command += ["--winograd", args.winograd]
    subprocess.run([str(word) for word in command], check=True)
    return safetensors_file.read(outputs)


def print_table(rows, columns):
    cells = [columns] + [[cell if isinstance(cell, str) else f"{cell:.2e}" for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    for index, row in enumerate(cells):
        print("  " + "  ".join(f"{c:<{w}}" if i == 0 else f"{c:>{w}}" for i, (c, w) in enumerate(zip(row, widths))))
        if index == 0:
            print("  " + "  ".join("-" * width for width in widths))


def compare(args, folder):
    """Prints one table for args.model and says whether both tolerances hold."""
    torch.manual_seed(args.seed)
    inputs = random_inputs(build(args), args)
    input_file = os.path.join(folder, "in.safetensors")
    reference_file = os.path.join(folder, "reference.safetensors")
    safetensors_file.write(input_file, inputs)

    single = as_output(*train(build(args), inputs, args, torch.float32))
    reference = as_output(*train(build(args), inputs, args, torch.float64)) if args.double else single
    safetensors_file.write(reference_file, reference)

    sides = {}
    if args.probe:
        sides["millrace"] = run_probe(args, input_file, os.path.join(folder, "out.safetensors"))
    if args.double:
        sides["torch f32"] = single
    if not sides:
        raise SystemExit("torch_parity.py: nothing to compare: give --probe PROBE, --double, or both")

    names = [name for name in reference if name.startswith("grad.")]
    for side, output in sides.items():
        absent = [name for name in ["loss"] + names if name not in output]
        if absent:
            print(f"{args.model}: {side} wrote no {', '.join(absent[:3])} ({len(absent)} missing)")
            return False

    first = next(iter(sides))
    losses = {side: loss_error(output["loss"], reference["loss"]) for side, output in sides.items()}
    errors = {name: [gradient_error(name, output, reference) for output in sides.values()] for name in names}
    # Where PyTorch's own float32 is off by more than the tolerance - one value that rounds to the other side of
    # ReLU's corner is enough - float32 cannot do better, and twice that is allowed.
    own = list(sides).index("torch f32") if args.double else None
    allowed = {name: GRADIENT_TOLERANCE for name in names}
    if own is not None:
        allowed = {name: max(GRADIENT_TOLERANCE, 2 * errors[name][own]) for name in names}
    names.sort(key=lambda name: -errors[name][0] / allowed[name])
    rows = [
        ["loss, first step"] + [losses[side][0] for side in sides] + [LOSS_TOLERANCE],
        [f"loss, worst of {args.steps}"] + [losses[side].max() for side in sides] + [LOSS_TOLERANCE],
        [f"gradients, median of {len(names)}"] + list(np.median(list(errors.values()), axis=0)) + [GRADIENT_TOLERANCE],
    ]
    rows += [[name] + errors[name] + [allowed[name]] for name in names[: args.rows]]
    good = bool(losses[first].max() <= LOSS_TOLERANCE and errors[names[0]][0] <= allowed[names[0]])
    print(
        f"{args.model} {args.image}x{args.image}, {args.classes} classes, batch {args.batch}, {args.steps} steps, "
        f"lr {args.lr:g}, winograd {args.winograd}, against torch {'f64' if args.double else 'f32'}; "
        f"loss {reference['loss'][0]:.4f} -> {reference['loss'][-1]:.4f}: {'ok' if good else 'FAILED'}"
    )
    print_table(rows, ["relative error of"] + list(sides) + ["allowed"])
    print()
    return good


def write_golden(args):
    """Losses, and for each gradient two numbers that hardly any wrong gradient shares: its norm and a projection.

    An error of either is to be divided by `scale`. What PyTorch's own float32 run differs by stands beside, as
    `float32`: a tolerance far above that is safe.
    """
    model = build(args)
    inputs = golden_inputs(model, args)
    losses, gradients = train(model, inputs, args, torch.float64)
    single_losses, single = train(build(args), inputs, args, torch.float32)
    digest = {}
    for name, gradient in gradients.items():
        direction = counter_random.filled(f"dot.{name}", gradient.shape, "plain").astype(np.float64)
        digest[name] = {
            "norm": float(np.linalg.norm(gradient)),
            "dot": float(np.sum(gradient * direction)),
            "scale": float(gradient_scale(name, gradients)),
        }
    keys = ["model", "image", "classes", "batch", "steps", "lr"]
    head = {key: getattr(args, key) for key in keys}
    head |= {"momentum": MOMENTUM, "torch": torch.__version__, "torchvision": torchvision.__version__}
    # The first values of two tensors: where these differ, the filling rule does, not the training.
    first_weight = next(name for name in inputs)
    head["heads"] = {name: [float(v) for v in inputs[name].reshape(-1)[:6]] for name in ["__images__", first_weight]}
    head["float32"] = {
        "loss_error": float(loss_error(single_losses, losses).max()),
        "gradient_error": float(max(gradient_error(name, single, gradients) for name in gradients)),
    }
    head["losses"] = losses.tolist()
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    rows = ",\n".join(f"    {json.dumps(name)}: {json.dumps(value)}" for name, value in digest.items())
    with open(args.golden, "w") as file:
        file.write("{\n" + ",\n".join(lines) + ',\n  "gradients": {\n' + rows + "\n  }\n}\n")
    print(f"{args.golden}: loss {losses[0]:.6f} -> {losses[-1]:.6f}, float32 differs by {head['float32']}")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--image", type=int, default=64)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--lr", type=float, help=f"default: {LEARNING_RATE}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--norm-shift", type=float, default=NORM_SHIFT, help="batch norm's bias; torchvision has 0")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rows", type=int, default=5, help="gradients to list, the worst first")
    parser.add_argument("--probe", help="the binary that runs the same steps in Millrace")
    parser.add_argument("--winograd", choices=["auto", "off"], default="off")
    parser.add_argument("--double", action="store_true", help="compare with float64, and show float32's own error")
    parser.add_argument("--keep", metavar="DIR", help="leave the safetensors files in DIR/<model>")
    parser.add_argument("--golden", metavar="FILE", help="write the digest of one model instead of comparing")
    args = parser.parse_args()
    args.models = args.model
    if args.golden and len(args.models) != 1:
        parser.error(f"--golden writes one model's file; --model names {len(args.models)}")
    return args


def main():
    args = parse()
    torch.set_num_threads(args.threads)
    good = True
    asked = args.lr
    for args.model in args.models:
        args.lr = asked if asked is not None else LEARNING_RATE[args.model]
        if args.golden:
            write_golden(args)
        elif args.keep:
            folder = os.path.join(args.keep, args.model)
            os.makedirs(folder, exist_ok=True)
            good &= compare(args, folder)
        else:
            with tempfile.TemporaryDirectory() as folder:
                good &= compare(args, folder)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
