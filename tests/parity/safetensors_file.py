"""Reading and writing safetensors files with numpy alone: an 8-byte header length, a JSON header, the bytes."""

import json
import struct

import numpy as np

_TYPES = {"F32": "<f4", "F64": "<f8", "I32": "<i4", "I64": "<i8", "U8": "|u1"}
_CODES = {np.dtype(code): name for name, code in _TYPES.items()}


def write(path, tensors):
    """Writes a dict of name -> numpy array."""
    header, offset = {}, 0
    for name, array in tensors.items():
        header[name] = {
            "dtype": _CODES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the data starts aligned
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).data)


def read(path):
    """A dict of name -> numpy array, mapped from the file."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    data = np.memmap(path, dtype=np.uint8, mode="r", offset=8 + length)
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = np.asarray(data[begin:end]).view(_TYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors
