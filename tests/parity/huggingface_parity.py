#!/usr/bin/env python3
"""The golden values of ViT, BERT and GPT-2 against Hugging Face's own models: run where `transformers` is at hand.

  huggingface_parity.py      compares the losses of all steps and two numbers of every gradient with golden/*.json; exit
                             code 1 if they differ

Parameters are filled by the rule of counter_random.py under this project's names and handed to Hugging Face's
ViTForImageClassification, BertForSequenceClassification, BertForQuestionAnswering and GPT2LMHeadModel in double;
queries, keys and values are one tensor here and three in the first three; GPT-2's weights are exchanged there.
"""

import json
import os
import sys

import numpy as np
import torch
import transformers

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import counter_random
import torch_transformers

PARTS = [".query.", ".key.", ".value."]
TOLERANCE = 1e-6  # Hugging Face's softmax is in single precision


def hugging_face(model, golden):
    if model == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=golden["vocabulary"], n_embd=golden["width"], n_layer=golden["layers"],
            n_head=golden["heads_of_attention"], n_inner=golden["mlp"], resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            attn_implementation="eager")
        return transformers.GPT2LMHeadModel(config).double()
    common = {"hidden_size": golden["width"], "num_hidden_layers": golden["layers"],
              "num_attention_heads": golden["heads_of_attention"], "intermediate_size": golden["mlp"],
              "num_labels": golden.get("classes", 2), "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
              "layer_norm_eps": torch_transformers.EPSILON, "attn_implementation": "eager"}
    if model.startswith("vit"):
        config = transformers.ViTConfig(image_size=golden["image"], patch_size=golden["patch"], **common)
        return transformers.ViTForImageClassification(config).double()
    config = transformers.BertConfig(vocab_size=golden["vocabulary"], classifier_dropout=0.0, **common)
    if model == "bert_span":
        return transformers.BertForQuestionAnswering(config).double()
    return transformers.BertForSequenceClassification(config).double()


def is_exchanged(name):
    return name.endswith(".weight") and any(part in name for part in [".attn.c_", ".mlp.c_"])


def logits_of(model, theirs, inputs):
    outputs = theirs(**inputs)
    if model == "bert_span":
        return torch.stack([outputs.start_logits, outputs.end_logits], dim=1)
    return outputs.logits


def sources(name):
    """The names under which a file has what is one tensor here."""
    return [name.replace(".qkv.", part) for part in PARTS] if ".qkv." in name else [name]


# transformers 5 calls ViT's layers otherwise in memory than in files.
RENAMED = [("vit.encoder.layer.", "vit.layers."), (".attention.attention.query.", ".attention.q_proj."),
           (".attention.attention.key.", ".attention.k_proj."), (".attention.attention.value.", ".attention.v_proj."),
           (".attention.output.dense.", ".attention.o_proj."), (".intermediate.dense.", ".mlp.fc1."),
           (".output.dense.", ".mlp.fc2.")]


class InMemory(dict):
    """A model's parameters by the names of files."""

    def __missing__(self, name):
        for old, new in RENAMED:
            name = name.replace(old, new)
        return dict.__getitem__(self, name)


def check(model):
    with open(os.path.join(HERE, "golden", f"{model}.json")) as file:
        golden = json.load(file)
    case = torch_transformers.CASES[model]
    shapes = torch_transformers.shapes_of(model, case)
    theirs = hugging_face(model, golden)
    parameters = InMemory(theirs.named_parameters())
    used = set()
    for name, shape in shapes.items():
        value = torch.from_numpy(counter_random.filled(name, shape, torch_transformers.role_of(name))).double()
        names = sources(name)
        value = value.t() if is_exchanged(name) else value
        for part, piece in zip(names, value.chunk(len(names)) if len(names) > 1 else [value]):
            parameters[part].data.copy_(piece.reshape(parameters[part].shape))
            used.add(id(parameters[part]))
    assert len(used) == len(parameters), (len(used), len(parameters))
    labels = torch_transformers.labels_of(model, case)
    if model.startswith("vit"):
        shape = (golden["batch"], 3, golden["image"], golden["image"])
        inputs = {"pixel_values": torch.from_numpy(counter_random.filled("__images__", shape, "plain")).double()}
    else:
        tokens, segments = torch_transformers.tokens_of(case)
        inputs = {"input_ids": tokens.clamp(min=0), "attention_mask": (tokens >= 0).long()}
        if model != "gpt2":
            inputs["token_type_ids"] = segments
    optimizer = torch_transformers.optimizer_of(list(theirs.parameters()), case)
    theirs.train()
    worst_loss = worst_gradient = 0.0
    for step, expected in enumerate(golden["losses"]):
        optimizer.zero_grad(set_to_none=True)
        logits = logits_of(model, theirs, inputs)
        if step == 0:
            kept = torch.tensor(golden["logits"], dtype=torch.float64)
            worst_logit = (logits.detach().reshape(-1)[: len(kept)] - kept).abs().max().item()
        loss = torch_transformers.loss_of(logits, labels)
        loss.backward()
        worst_loss = max(worst_loss, abs(loss.item() - expected) / expected)
        if step == 0:
            for name, digest in golden["gradients"].items():
                parts = [parameters[part].grad for part in sources(name)]
                gradient = torch.cat(parts).numpy() if len(parts) > 1 else parts[0].numpy()
                gradient = gradient.T if is_exchanged(name) else gradient
                direction = counter_random.filled(f"dot.{name}", shapes[name], "plain").astype(np.float64)
                dot = float(np.sum(gradient.reshape(shapes[name]) * direction))
                error = max(abs(float(np.linalg.norm(gradient)) - digest["norm"]), abs(dot - digest["dot"]))
                worst_gradient = max(worst_gradient, error / digest["scale"])
        if "clip_norm" in case:
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), case["clip_norm"])
        optimizer.step()
    good = worst_loss < TOLERANCE and worst_gradient < TOLERANCE and worst_logit < 10 * TOLERANCE
    print(f"{model}: logits within {worst_logit:.1e}, {len(golden['losses'])} losses within {worst_loss:.1e}, {len(golden['gradients'])} gradients within "
          f"{worst_gradient:.1e} of Hugging Face's (transformers {transformers.__version__}): {'ok' if good else 'FAILED'}")
    return good


if __name__ == "__main__":
    sys.exit(0 if all([check(model) for model in torch_transformers.CASES]) else 1)
