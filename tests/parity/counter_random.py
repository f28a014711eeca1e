"""The numbers of millrace/base/random.h in numpy, and the rule by which golden tests fill tensors from them."""

import math

import numpy as np

_MASK32 = np.uint64(0xFFFFFFFF)
_MASK64 = (1 << 64) - 1
_SHIFT32 = np.uint64(32)
_BLOCKS_AT_ONCE = 1 << 20
_SEED = 1234


def hash_name(name):
    """FNV-1a, as hash_name() in random.h."""
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = ((value ^ byte) * 0x100000001B3) & _MASK64
    return value


def _scramble(x):
    x = (x + 0x9E3779B97F4A7C15) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


def mix(a, b):
    """RandomStream::mix()."""
    return _scramble((_scramble(a) + b) & _MASK64)


def _philox(first_block, num_blocks, key):
    """Blocks [first_block, first_block + num_blocks) of four words, for sample 0."""
    index = np.arange(first_block, first_block + num_blocks, dtype=np.uint64)
    c0, c1 = index & _MASK32, index >> _SHIFT32
    c2, c3 = np.zeros_like(index), np.zeros_like(index)
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p0 = c0 * np.uint64(0xD2511F53)
        p1 = c2 * np.uint64(0xCD9E8D57)
        c0 = (p1 >> _SHIFT32) ^ c1 ^ np.uint64(k0)
        c2 = (p0 >> _SHIFT32) ^ c3 ^ np.uint64(k1)
        c1, c3 = p1 & _MASK32, p0 & _MASK32
        k0 = (k0 + 0x9E3779B9) & 0xFFFFFFFF
        k1 = (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=1).reshape(-1)


def _uniform(name, count):
    """uniform(word i) in double, with word i = RandomStream(mix(1234, hash_name(name)), 0, 0).at(i / 4)[i % 4]."""
    key = mix(mix(_SEED, hash_name(name)), 0)
    values = np.empty(count, dtype=np.float64)
    for begin in range(0, count, 4 * _BLOCKS_AT_ONCE):
        end = min(count, begin + 4 * _BLOCKS_AT_ONCE)
        words = _philox(begin // 4, (end - begin + 3) // 4, key)[: end - begin]
        values[begin:end] = (words >> np.uint64(8)).astype(np.float64) * 2.0**-24
    return values


def role_of(name, names):
    """What a tensor of a torchvision model is for; `names` are all of the model's, by which batch norm is known."""
    layer, _, kind = name.rpartition(".")
    if kind in ("running_mean", "running_var"):
        return kind
    if f"{layer}.running_mean" in names:
        return "norm_scale" if kind == "weight" else "norm_shift"
    return kind  # "weight" or "bias"


def filled(name, shape, role):
    """The golden tensor called `name`, float32: the whole rule, to be repeated word for word in C++.

    Element i is offset + scale * (2 * u_i - 1), computed in double and rounded once to float, where u_i is
    _uniform(name, ...)[i] and i counts in row-major order over the plain layout (OIHW, out x in, NCHW).
      weight                  offset 0, scale 1 / sqrt(fan_in), fan_in = elements / shape[0]
      bias                    offset 0, scale 0.1
      norm_scale              offset 1, scale 0.1
      norm_shift              offset 2, scale 0.1
      running_mean            constant 0
      running_var             constant 1
      plain                   offset 0, scale 1: `__images__` and `dot.<parameter>`
    Labels are i % classes.

    Why batch norm shifts by 2: with a shift near 0 many values lie at ReLU's corner, where rounding decides which
    gradients pass. PyTorch's own float32 gradients of ResNet-50 are then 2% off, and nothing could be compared.
    """
    offset, scale = {
        "bias": (0.0, 0.1),
        "norm_scale": (1.0, 0.1),
        "norm_shift": (2.0, 0.1),
        "running_mean": (0.0, 0.0),
        "running_var": (1.0, 0.0),
        "plain": (0.0, 1.0),
        "weight": (0.0, 1.0 / math.sqrt(math.prod(shape[1:]))),
    }[role]
    values = offset + scale * (2.0 * _uniform(name, math.prod(shape)) - 1.0)
    return values.astype(np.float32).reshape(shape)
