#!/usr/bin/env python3
"""Directories that `millrace export` wrote, loaded by Hugging Face's own from_pretrained: run where `transformers` is.

  huggingface_export.py DIR...   each has model.safetensors and config.json; exit code 1 if a tensor is missing,
                                 unexpected or of another shape, or if a forward pass gives anything but finite
                                 numbers
"""

import json
import os
import sys

import torch
import transformers


def inputs_of(config):
    torch.manual_seed(0)
    if config.model_type == "vit":
        return {"pixel_values": torch.randn(2, config.num_channels, config.image_size, config.image_size)}
    length = min(8, getattr(config, "max_position_embeddings", 8))
    return {"input_ids": torch.randint(config.vocab_size, (2, length))}


def check(folder):
    with open(os.path.join(folder, "config.json")) as file:
        architecture = json.load(file)["architectures"][0]
    model, info = getattr(transformers, architecture).from_pretrained(folder, output_loading_info=True)
    for key in ["missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"]:
        assert not info.get(key), f"{folder}: {key}: {list(info[key])[:5]}"
    model.eval()
    with torch.no_grad():
        outputs = model(**inputs_of(model.config))
    shapes = {}
    for name in ["logits", "start_logits", "end_logits"]:
        value = getattr(outputs, name, None)
        if value is None:
            continue
        assert torch.isfinite(value).all(), f"{folder}: {name} are not finite"
        shapes[name] = list(value.shape)
    assert shapes, f"{folder}: no logits"
    print(f"{folder}: {architecture}, {sum(p.numel() for p in model.parameters())} parameters, {shapes}: ok "
          f"(transformers {transformers.__version__})")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    failed = 0
    for folder in sys.argv[1:]:
        try:
            check(folder)
        except (AssertionError, OSError, ValueError, RuntimeError) as error:
            print(f"FAILED: {error}", file=sys.stderr)
            failed = 1
    sys.exit(failed)


if __name__ == "__main__":
    main()
