#!/usr/bin/env python3
"""Millrace and Hugging Face train from one safetensors file: run where `transformers` and a GPU are.

  huggingface_training.py --millrace build/gpu/bin/millrace    exit code 1 if a loss is further off than allowed

Small models as Hugging Face initialises and saves them, the same few samples as files, AdamW with clipping, every step
over all samples so that their order does not matter. Losses of 50 steps: fp32 within 1e-3 of Hugging Face's in fp32,
bf16 within 2e-2.
"""

import argparse
import copy
import json
import os
import random
import subprocess
import sys
import tempfile

import torch
import transformers

STEPS, LR, DECAY, CLIP = 50, 3e-4, 0.01, 1.0
ALLOWED = {"fp32": 1e-3, "bf16": 2e-2}
SAMPLES, WIDTH, LAYERS, HEADS, MLP = 16, 64, 3, 4, 128
COMMON = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": MLP,
          "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MODEL = {"width": WIDTH, "layers": LAYERS, "heads": HEADS, "mlp": MLP, "dropout": 0}


def gpt2(folder, dice):
    vocabulary, length = 101, 24
    tokens = [dice.randrange(vocabulary) for _ in range(SAMPLES * length + 1)]
    with open(os.path.join(folder, "train.bin"), "wb") as file:
        file.write(b"".join(token.to_bytes(2, "little") for token in tokens))
    config = transformers.GPT2Config(vocab_size=vocabulary, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_inner=MLP,
                                     resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None,
                                     eos_token_id=None)
    rows = torch.tensor(tokens)
    inputs = {"input_ids": rows[:-1].view(SAMPLES, length)}
    job = {"model": {"name": "gpt2", "vocabulary": vocabulary, "tokens": length, **MODEL},
           "data": {"kind": "token_file", "train": os.path.join(folder, "train.bin")}}
    return transformers.GPT2LMHeadModel(config), inputs, rows[1:].view(SAMPLES, length), job


def bert(folder, dice):
    words, length, classes = 40, 16, 3
    with open(os.path.join(folder, "vocab.txt"), "w") as file:
        file.write("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]"] + [f"w{i}" for i in range(words)]) + "\n")
    tokens, labels = torch.zeros(SAMPLES, length, dtype=torch.long), []
    mask = torch.zeros_like(tokens)
    with open(os.path.join(folder, "train.tsv"), "w") as file:
        file.write("sentence\tlabel\n")
        for row in range(SAMPLES):
            ids = [4 + dice.randrange(words) for _ in range(dice.randrange(3, length - 1))]
            labels.append(dice.randrange(classes))
            file.write(" ".join(f"w{i - 4}" for i in ids) + f"\t{labels[-1]}\n")
            tokens[row, : len(ids) + 2] = torch.tensor([2, *ids, 3])
            mask[row, : len(ids) + 2] = 1
    config = transformers.BertConfig(vocab_size=words + 4, num_labels=classes, classifier_dropout=0.0, **COMMON)
    job = {"model": {"name": "bert_base", "vocabulary": words + 4, "tokens": length, "classes": classes, **MODEL},
           "data": {"kind": "tsv_text", "train": os.path.join(folder, "train.tsv"),
                    "vocab": os.path.join(folder, "vocab.txt")}}
    inputs = {"input_ids": tokens, "attention_mask": mask}
    return transformers.BertForSequenceClassification(config), inputs, torch.tensor(labels), job


def vit(folder, dice):
    classes = 10
    pictures = torch.tensor([[dice.randrange(256) for _ in range(3 * 32 * 32)] for _ in range(SAMPLES)])
    labels = [dice.randrange(classes) for _ in range(SAMPLES)]
    with open(os.path.join(folder, "data_batch_1.bin"), "wb") as file:
        for label, picture in zip(labels, pictures.tolist()):
            file.write(bytes([label, *picture]))
    config = transformers.ViTConfig(image_size=32, patch_size=8, num_labels=classes, **COMMON)
    level = [127.5] * 3
    job = {"model": {"name": "vit_b_16", "image_size": 32, "patch": 8, "classes": classes, **MODEL},
           "data": {"kind": "cifar10", "train": folder, "mean": level, "std": level,
                    "train_transform": {"kind": "resize", "mirror": 0}}}
    images = (pictures.view(SAMPLES, 3, 32, 32) - 127.5) / 127.5
    return transformers.ViTForImageClassification(config), {"pixel_values": images}, torch.tensor(labels), job


def their_losses(model, inputs, labels, half=False):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    model, labels = model.cuda().train(), labels.cuda()
    inputs = {name: value.cuda() for name, value in inputs.items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=DECAY)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=half):
            logits = model(**inputs).logits.float()
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        losses.append(loss.item())
    return losses


def our_losses(binary, folder, job, precision):
    job = {**job, "device": "cuda", "precision": precision, "batch": SAMPLES, "steps": STEPS,
           "optimizer": {"kind": "adamw", "lr": LR, "weight_decay": DECAY, "clip_norm": CLIP}}
    job["model"]["init"] = os.path.join(folder, "model.safetensors")
    path, out = os.path.join(folder, "job.yaml"), os.path.join(folder, f"run-{precision}")
    with open(path, "w") as file:
        json.dump(job, file)
    done = subprocess.run([binary, "train", path, "--out", out], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    with open(os.path.join(out, "metrics.jsonl")) as file:
        return [record["loss"] for record in map(json.loads, file) if "loss" in record]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", default="build/gpu/bin/millrace")
    binary = os.path.abspath(parser.parse_args().millrace)
    good = True
    for make in [vit, bert, gpt2]:
        with tempfile.TemporaryDirectory() as folder:
            torch.manual_seed(0)
            model, inputs, labels, job = make(folder, random.Random(1))
            model.save_pretrained(folder)
            theirs = their_losses(copy.deepcopy(model), inputs, labels)
            theirs_in_bf16 = their_losses(model, inputs, labels, half=True)
            apart = max(abs(a - b) / b for a, b in zip(theirs_in_bf16, theirs))
            print(f"{make.__name__}: Hugging Face's own bf16 is within {apart:.1e} of its fp32")
            for precision, allowed in ALLOWED.items():
                ours = our_losses(binary, folder, job, precision)
                assert len(ours) == len(theirs) == STEPS, (len(ours), len(theirs))
                worst = max(abs(a - b) / b for a, b in zip(ours, theirs))
                good &= worst <= allowed
                print(f"{make.__name__}, {precision}: {STEPS} losses from {theirs[0]:.4f} to {theirs[-1]:.4f} within "
                      f"{worst:.1e} of Hugging Face's, {allowed:g} allowed: {'ok' if worst <= allowed else 'FAILED'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
