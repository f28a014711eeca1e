#!/usr/bin/python3
"""ViT and BERT for classes, BERT for spans and GPT-2, written out in PyTorch layer by layer as Hugging Face's models
compute them, to give golden values to tests/runtime/golden_test.cpp: logits, losses of 50 steps, and two numbers of
each gradient.

  for case in vit_b_16 bert_base bert_span gpt2; do
    tests/parity/torch_transformers.py $case > tests/parity/golden/$case.json; done

Small shapes of all: the graph is the same. Names are Hugging Face's, but queries, keys and values are one layer, "qkv".
"""

import json
import math
import os
import sys

import numpy as np
import torch
from torch.nn import functional as F

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import counter_random

STEPS, MOMENTUM = 50, 0.9
LOGITS = 300  # that are kept
EPSILON = 1e-12
SHAPE = {"width": 48, "layers": 3, "heads": 4, "mlp": 96}
CASES = {
    "vit_b_16": {"image": 32, "patch": 8, "classes": 10, "batch": 5, "lr": 2e-3, **SHAPE},
    "bert_base": {"tokens": 12, "vocabulary": 50, "classes": 3, "batch": 5, "lr": 2e-3, **SHAPE},
    "bert_span": {"tokens": 12, "vocabulary": 50, "batch": 5, "lr": 2e-3, **SHAPE},
    "gpt2": {"tokens": 12, "vocabulary": 50, "batch": 5, "lr": 1e-3, "optimizer": "adamw", "beta1": 0.9, "beta2": 0.99,
             "epsilon": 1e-8, "weight_decay": 0.05, "clip_norm": 0.5, **SHAPE},
}


def block_shapes(prefix, attention, norms, case):
    width, mlp = case["width"], case["mlp"]
    shapes = {}
    for name, (rows, columns) in {
        f"{attention}.qkv": (3 * width, width),
        "attention.output.dense": (width, width),
        "intermediate.dense": (mlp, width),
        "output.dense": (width, mlp),
    }.items():
        shapes[f"{prefix}.{name}.weight"] = (rows, columns)
        shapes[f"{prefix}.{name}.bias"] = (rows,)
    for name in norms:
        shapes[f"{prefix}.{name}.weight"] = shapes[f"{prefix}.{name}.bias"] = (width,)
    return shapes


def vit_shapes(case):
    width, patch = case["width"], case["patch"]
    shapes = {
        "vit.embeddings.patch_embeddings.projection.weight": (width, 3, patch, patch),
        "vit.embeddings.patch_embeddings.projection.bias": (width,),
        "vit.embeddings.cls_token": (width,),
        "vit.embeddings.position_embeddings": (1 + (case["image"] // patch) ** 2, width),
    }
    for i in range(case["layers"]):
        norms = ["layernorm_before", "layernorm_after"]
        shapes |= block_shapes(f"vit.encoder.layer.{i}", "attention.attention", norms, case)
    shapes |= {"vit.layernorm.weight": (width,), "vit.layernorm.bias": (width,)}
    return shapes | {"classifier.weight": (case["classes"], width), "classifier.bias": (case["classes"],)}


def bert_shapes(case):
    width = case["width"]
    shapes = {
        "bert.embeddings.word_embeddings.weight": (case["vocabulary"], width),
        "bert.embeddings.token_type_embeddings.weight": (2, width),
        "bert.embeddings.position_embeddings.weight": (512, width),
        "bert.embeddings.LayerNorm.weight": (width,),
        "bert.embeddings.LayerNorm.bias": (width,),
    }
    for i in range(case["layers"]):
        norms = ["attention.output.LayerNorm", "output.LayerNorm"]
        shapes |= block_shapes(f"bert.encoder.layer.{i}", "attention.self", norms, case)
    if "classes" not in case:
        return shapes | {"qa_outputs.weight": (2, width), "qa_outputs.bias": (2,)}
    shapes |= {"bert.pooler.dense.weight": (width, width), "bert.pooler.dense.bias": (width,)}
    return shapes | {"classifier.weight": (case["classes"], width), "classifier.bias": (case["classes"],)}


def gpt2_shapes(case):
    """Weights of layers are out x in, as in all other models; Hugging Face keeps them exchanged."""
    width, mlp = case["width"], case["mlp"]
    shapes = {"transformer.wte.weight": (case["vocabulary"], width), "transformer.wpe.weight": (1024, width)}
    for i in range(case["layers"]):
        layer = f"transformer.h.{i}"
        for name, (rows, columns) in {"attn.c_attn": (3 * width, width), "attn.c_proj": (width, width),
                                      "mlp.c_fc": (mlp, width), "mlp.c_proj": (width, mlp)}.items():
            shapes[f"{layer}.{name}.weight"] = (rows, columns)
            shapes[f"{layer}.{name}.bias"] = (rows,)
        for name in ["ln_1", "ln_2"]:
            shapes[f"{layer}.{name}.weight"] = shapes[f"{layer}.{name}.bias"] = (width,)
    return shapes | {"transformer.ln_f.weight": (width,), "transformer.ln_f.bias": (width,)}


def linear(p, name, x):
    return F.linear(x, p[f"{name}.weight"], p[f"{name}.bias"])


def norm(p, name, x, epsilon=EPSILON):
    return F.layer_norm(x, x.shape[-1:], p[f"{name}.weight"], p[f"{name}.bias"], epsilon)


def attention(qkv, heads, mask=None):
    batch, length, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    q, k, v = (t.view(batch, length, heads, width // heads).transpose(1, 2) for t in qkv.chunk(3, dim=-1))
    scores = q @ k.transpose(-1, -2) / math.sqrt(width // heads)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return (scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(batch, length, width)


def vit(p, images, case):
    x = F.conv2d(images, p["vit.embeddings.patch_embeddings.projection.weight"],
                 p["vit.embeddings.patch_embeddings.projection.bias"], stride=case["patch"])
    x = x.flatten(2).transpose(1, 2)
    x = torch.cat([p["vit.embeddings.cls_token"].expand(len(x), 1, -1), x], dim=1) + p["vit.embeddings.position_embeddings"]
    for i in range(case["layers"]):
        layer = f"vit.encoder.layer.{i}"
        y = linear(p, f"{layer}.attention.attention.qkv", norm(p, f"{layer}.layernorm_before", x))
        y = attention(y, case["heads"])
        x = x + linear(p, f"{layer}.attention.output.dense", y)
        y = F.gelu(linear(p, f"{layer}.intermediate.dense", norm(p, f"{layer}.layernorm_after", x)))
        x = x + linear(p, f"{layer}.output.dense", y)
    return linear(p, "classifier", norm(p, "vit.layernorm", x)[:, 0])


def bert(p, features, case):
    tokens, segments = features
    mask = tokens >= 0
    x = p["bert.embeddings.word_embeddings.weight"][tokens.clamp(min=0)] * mask[..., None]
    x = x + p["bert.embeddings.token_type_embeddings.weight"][segments]
    x = x + p["bert.embeddings.position_embeddings.weight"][: tokens.shape[1]]
    x = norm(p, "bert.embeddings.LayerNorm", x)
    for i in range(case["layers"]):
        layer = f"bert.encoder.layer.{i}"
        y = attention(linear(p, f"{layer}.attention.self.qkv", x), case["heads"], mask[:, None, None, :])
        x = norm(p, f"{layer}.attention.output.LayerNorm", x + linear(p, f"{layer}.attention.output.dense", y))
        y = linear(p, f"{layer}.output.dense", F.gelu(linear(p, f"{layer}.intermediate.dense", x)))
        x = norm(p, f"{layer}.output.LayerNorm", x + y)
    if "classes" not in case:
        return linear(p, "qa_outputs", x).transpose(1, 2)
    return linear(p, "classifier", torch.tanh(linear(p, "bert.pooler.dense", x[:, 0])))


def gpt2(p, features, case):
    tokens, _ = features
    epsilon = 1e-5
    x = p["transformer.wte.weight"][tokens] + p["transformer.wpe.weight"][: tokens.shape[1]]
    seen = torch.ones(tokens.shape[1], tokens.shape[1]).tril().bool()
    for i in range(case["layers"]):
        layer = f"transformer.h.{i}"
        y = linear(p, f"{layer}.attn.c_attn", norm(p, f"{layer}.ln_1", x, epsilon))
        x = x + linear(p, f"{layer}.attn.c_proj", attention(y, case["heads"], seen))
        y = F.gelu(linear(p, f"{layer}.mlp.c_fc", norm(p, f"{layer}.ln_2", x, epsilon)), approximate="tanh")
        x = x + linear(p, f"{layer}.mlp.c_proj", y)
    return F.linear(norm(p, "transformer.ln_f", x, epsilon), p["transformer.wte.weight"])


def role_of(name):
    kind = name.rpartition(".")[2]
    if "norm" in name.lower() or ".ln_" in name:
        return "norm_scale" if kind == "weight" else "norm_shift"
    return "bias" if kind == "bias" else "weight"


def token(case, n, i):
    """None is 0, whose embedding Hugging Face does not train in BERT; the rule is repeated in golden_test.cpp."""
    return 1 + (7 * n + 3 * i * i + i) % (case["vocabulary"] - 1)


def tokens_of(case):
    """Where there are classes, sample n has n tokens less than there is room for."""
    tokens = np.full((case["batch"], case["tokens"]), -1)
    for n in range(case["batch"]):
        for i in range(case["tokens"] - (n if "classes" in case else 0)):
            tokens[n, i] = token(case, n, i)
    segments = np.broadcast_to((np.arange(case["tokens"]) >= 5).astype(np.int64), tokens.shape)
    return torch.from_numpy(tokens), torch.from_numpy(segments.copy())


def labels_of(model, case):
    """A class for each sample, the token that comes next everywhere, or the two ends of a span."""
    batch = range(case["batch"])
    if "classes" in case:
        return torch.arange(case["batch"]) % case["classes"]
    if model == "gpt2":
        return torch.tensor([[token(case, n, i + 1) for i in range(case["tokens"])] for n in batch])
    return torch.tensor([[n % case["tokens"], (2 * n + 3) % case["tokens"]] for n in batch])


def loss_of(logits, labels):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


def optimizer_of(parameters, case):
    if case.get("optimizer") == "adamw":
        return torch.optim.AdamW(parameters, lr=case["lr"], betas=(case["beta1"], case["beta2"]), eps=case["epsilon"],
                                 weight_decay=case["weight_decay"])
    return torch.optim.SGD(parameters, lr=case["lr"], momentum=MOMENTUM)


def shapes_of(model, case):
    return {"vit": vit_shapes, "bert": bert_shapes, "gpt2": gpt2_shapes}[model.split("_")[0]](case)


def main():
    model = sys.argv[1]
    case = CASES[model]
    forward, shapes = {"vit": vit, "bert": bert, "gpt2": gpt2}[model.split("_")[0]], shapes_of(model, case)
    values = {name: counter_random.filled(name, shape, role_of(name)) for name, shape in shapes.items()}
    p = {name: torch.from_numpy(value).double().requires_grad_() for name, value in values.items()}
    heads = {}
    if model.startswith("vit"):
        images = counter_random.filled("__images__", (case["batch"], 3, case["image"], case["image"]), "plain")
        heads["__images__"] = images
        features = torch.from_numpy(images).double()
    else:
        features = tokens_of(case)
    first = next(iter(values))
    heads[first] = values[first]
    labels = labels_of(model, case)

    optimizer = optimizer_of(list(p.values()), case)
    losses, digest = [], {}
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        outputs = forward(p, features, case)
        loss = loss_of(outputs, labels)
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            logits = outputs.detach().reshape(-1)[:LOGITS].tolist()
            for name, tensor in p.items():
                gradient = tensor.grad.numpy()
                direction = counter_random.filled(f"dot.{name}", gradient.shape, "plain").astype(np.float64)
                size = float(np.linalg.norm(gradient))
                layer = name.rpartition(".")[0] + ".weight"
                other = float(np.linalg.norm(p[layer].grad.numpy())) if layer in p and p[layer].grad is not None else size
                digest[name] = {"norm": size, "dot": float(np.sum(gradient * direction)), "scale": max(size, 0.01 * other)}
        if "clip_norm" in case:
            torch.nn.utils.clip_grad_norm_(p.values(), case["clip_norm"])
        optimizer.step()
    head = {"model": model, **{"heads_of_attention" if key == "heads" else key: case[key] for key in case}, "steps": STEPS, "momentum": MOMENTUM, "torch": torch.__version__,
            "heads": {name: [float(v) for v in value.reshape(-1)[:6]] for name, value in heads.items()},
            "logits": logits, "losses": losses}
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    rows = [f"    {json.dumps(name)}: {json.dumps(value)}" for name, value in digest.items()]
    print("{\n" + ",\n".join(lines) + ',\n  "gradients": {\n' + ",\n".join(rows) + "\n  }\n}")


if __name__ == "__main__":
    main()
