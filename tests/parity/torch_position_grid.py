#!/usr/bin/python3
"""Places of a vision transformer resized by torch, as Hugging Face and timm do it, for tests/state/position_grid_test.cpp.

  torch_position_grid.py > tests/parity/golden/position_grid.json

The table is filled by a rule that the test repeats: value i is ((37 i) mod 101) / 50 - 1.
"""

import json

import torch

CASES = [(3, 5, 2), (5, 3, 2), (7, 2, 1), (2, 7, 1), (1, 3, 2), (4, 4, 1)]  # side from, side to, width


def resized(side, to, width):
    table = torch.tensor([((37 * i) % 101) / 50 - 1 for i in range((1 + side * side) * width)], dtype=torch.float32)
    table = table.view(1, 1 + side * side, width)
    grid = table[:, 1:].reshape(1, side, side, width).permute(0, 3, 1, 2)
    grid = torch.nn.functional.interpolate(grid, size=(to, to), mode="bicubic", align_corners=False)
    grid = grid.permute(0, 2, 3, 1).reshape(1, to * to, width)
    return torch.cat([table[:, :1], grid], dim=1).flatten().tolist()


cases = [json.dumps({"from": side, "to": to, "width": width, "table": resized(side, to, width)})
         for side, to, width in CASES]
print("[\n  " + ",\n  ".join(cases) + "\n]")
