#!/usr/bin/env python3
"""Millrace against PyTorch on one GPU: one training step (forward, backward, optimizer) on synthetic data that lies on
the device, both sides in one run, taking turns, medians of several rounds.

    python3 bench/vs_torch_gpu.py --millrace build/gpu/bin/millrace --out bench/results/vs_torch_gpu.json

PyTorch: channels-last, fused optimizers, torch.compile (and eager with --eager), autocast with GradScaler for fp16.
Transformers are Hugging Face's, with scaled_dot_product_attention and AdamW; the others torchvision's, with SGD.
"""
import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import bench_record

ROWS = [  # model, batch, precision
    ("resnet50", 256, "fp16"),
    ("resnet50", 256, "bf16"),
    ("resnet50", 256, "tf32"),
    ("alexnet", 256, "fp16"),
    ("alexnet", 256, "tf32"),
    ("vgg16", 64, "fp16"),
    ("vgg16", 64, "tf32"),
    ("vit_b_16", 128, "bf16"),
    ("bert_base", 64, "bf16"),
    ("gpt2", 16, "bf16"),
]
# What a job says of them besides; dropout as the peer has it.
TRANSFORMERS = {
    "vit_b_16": {"classes": 1000},
    "bert_base": {"classes": 2, "tokens": 128},
    "gpt2": {"tokens": 1024},
}


def transformer(model, batch, dropout):
    """Hugging Face's network, and what it is called with."""
    import torch
    import transformers

    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    settings = TRANSFORMERS[model]
    attention = {"attn_implementation": "sdpa"}
    if model == "vit_b_16":
        config = transformers.ViTConfig(num_labels=settings["classes"], **rates, **attention)
        images = torch.randn(batch, 3, 224, 224, device="cuda")
        labels = torch.randint(0, settings["classes"], (batch,), device="cuda")
        return transformers.ViTForImageClassification(config), {"pixel_values": images, "labels": labels}
    if model == "bert_base":
        config = transformers.BertConfig(num_labels=settings["classes"], **rates, **attention)
        tokens = torch.randint(0, config.vocab_size, (batch, settings["tokens"]), device="cuda")
        labels = torch.randint(0, settings["classes"], (batch,), device="cuda")
        return transformers.BertForSequenceClassification(config), {"input_ids": tokens, "labels": labels}
    config = transformers.GPT2Config(resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, use_cache=False,
                                     **attention)
    tokens = torch.randint(0, config.vocab_size, (batch, settings["tokens"]), device="cuda")
    return transformers.GPT2LMHeadModel(config), {"input_ids": tokens, "labels": tokens}


class TorchSide:
    def __init__(self, model, batch, precision, compiled, dropout):
        import torch

        self.torch, self.batch = torch, batch
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
        torch.manual_seed(1)
        device = "cuda"
        scaler = torch.amp.GradScaler("cuda", init_scale=32768.0, enabled=precision == "fp16")
        half = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision)
        if model in TRANSFORMERS:
            net, inputs = transformer(model, batch, dropout)
            net = net.to(device).train()
            optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)

            def loss_of_batch():
                return net(**inputs).loss
        else:
            import torchvision

            net = getattr(torchvision.models, model)().to(device).to(memory_format=torch.channels_last).train()
            loss = torch.nn.CrossEntropyLoss()
            optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9, fused=True)
            images = torch.randn(batch, 3, 224, 224, device=device).to(memory_format=torch.channels_last)
            labels = torch.randint(0, 1000, (batch,), device=device)

            def loss_of_batch():
                return loss(net(images), labels)

        def forward():
            with torch.autocast("cuda", dtype=half, enabled=half is not None):
                return loss_of_batch()

        forward = torch.compile(forward) if compiled else forward

        def step():
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(forward()).backward()
            scaler.step(optimizer)
            scaler.update()

        self.step = step
        torch.cuda.reset_peak_memory_stats()
        for _ in range(12):
            step()
        torch.cuda.synchronize()

    def round(self, steps):
        torch = self.torch
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(steps):
            self.step()
        torch.cuda.synchronize()
        return self.batch * steps / (time.perf_counter() - begin)

    def peak_mib(self):
        return self.torch.cuda.max_memory_allocated() / 2**20


def millrace_round(binary, model, batch, precision, steps, dropout):
    settings, optimizer = {"name": model}, "lr: 0.001, momentum: 0.9"
    if model in TRANSFORMERS:
        settings |= {**TRANSFORMERS[model], "dropout": dropout}
        optimizer = "kind: adamw, lr: 0.0001, weight_decay: 0.01"
    with tempfile.TemporaryDirectory() as folder:
        job, record = os.path.join(folder, "job.yaml"), os.path.join(folder, "record.json")
        with open(job, "w") as file:
            file.write(f"device: cuda\nprecision: {precision}\nbatch: {batch}\nsteps: {steps}\n"
                       f"model: {json.dumps(settings)}\noptimizer: {{{optimizer}}}\n")
        done = subprocess.run([binary, "bench", job, "--warmup", "6", "--json", record], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr.strip() or done.stdout)
        with open(record) as file:
            return json.load(file)


def version_facts(binary):
    import torch

    return {
        "gpu": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "torch_cudnn": torch.backends.cudnn.version(),
        "millrace": binary,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", default="build/gpu/bin/millrace")
    parser.add_argument("--rows", default="", help="only these, as in resnet50/fp16,alexnet/tf32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--eager", action="store_true", help="also PyTorch without torch.compile")
    parser.add_argument("--alone", action="store_true", help="without PyTorch")
    parser.add_argument("--dropout", type=float, default=0.0, help="of transformers, on both sides")
    parser.add_argument("--out", default="")
    arguments = parser.parse_args()
    wanted = [row for row in arguments.rows.split(",") if row]

    records = []
    print(f"{'model':10} {'batch':>5} {'prec':>5} {'torch':>8} {'millrace':>9} {'ratio':>6} {'torch MiB':>10} {'MiB':>7} {'ratio':>6}")
    for model, batch, precision in ROWS:
        if wanted and f"{model}/{precision}" not in wanted:
            continue
        sides = {}
        if not arguments.alone:
            sides["compile"] = TorchSide(model, batch, precision, True, arguments.dropout)
            peak = {"compile": sides["compile"].peak_mib()}
            if arguments.eager:
                sides["eager"] = TorchSide(model, batch, precision, False, arguments.dropout)
        speeds = {name: [] for name in [*sides, "millrace"]}
        ours = None
        for _ in range(arguments.rounds):
            for name, side in sides.items():
                speeds[name].append(side.round(arguments.steps))
            ours = millrace_round(arguments.millrace, model, batch, precision, arguments.steps, arguments.dropout)
            speeds["millrace"].append(ours["samples_per_s"])
        medians = {name: statistics.median(values) for name, values in speeds.items()}
        best = max((value for name, value in medians.items() if name != "millrace"), default=float("nan"))
        planned = ours["peak_bytes"]["planned"] / 2**20
        torch_mib = peak["compile"] if sides else float("nan")
        record = {"model": model, "batch": batch, "precision": precision, "dropout": arguments.dropout, "samples_per_s": speeds, "medians": medians,
                  "ratio": medians["millrace"] / best, "torch_peak_mib": torch_mib, "millrace_planned_mib": planned,
                  "millrace_measured_mib": ours["peak_bytes"]["measured"] / 2**20, "memory_ratio": planned / torch_mib,
                  "millrace": ours}
        records.append(record)
        print(f"{model:10} {batch:5} {precision:>5} {best:8.0f} {medians['millrace']:9.0f} {record['ratio']:6.2f} "
              f"{torch_mib:10.0f} {planned:7.0f} {record['memory_ratio']:6.2f}", flush=True)
        if arguments.out:  # after each row: a run that is cut short has measured something
            facts = {} if arguments.alone else version_facts(arguments.millrace)
            bench_record.write(arguments.out, "vs_torch_gpu", {**facts, "rows": records})
        sides.clear()
        if not arguments.alone:
            import torch

            torch._dynamo.reset()
            gc.collect()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
