"""Read and write NumPy's array files without NumPy and without pickle.

Source   NEP 1, "A Simple File Format for NumPy Arrays"
"""

from __future__ import annotations

import ast
import ctypes
import struct
import zipfile
from collections.abc import Mapping
from typing import IO

import torch
from torch import Tensor

from explainers.errors import ExplainerError

_NAMES = {torch.float64: "<f8", torch.float32: "<f4", torch.float16: "<f2", torch.int64: "<i8", torch.int32: "<i4"}
_NAMES |= {torch.uint8: "|u1", torch.bool: "|b1"}
_TYPES = {name: dtype for dtype, name in _NAMES.items()}


def npy_bytes(tensor: Tensor) -> bytes:
    """Return the tensor as the content of a `.npy` file, version 1.0, in C order."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype not in _NAMES:
        tensor = tensor.float()
    header = repr({"descr": _NAMES[tensor.dtype], "fortran_order": False, "shape": tuple(tensor.shape)})
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    data = ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size()) if tensor.numel() else b""
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode("latin1") + data


def from_npy(content: bytes) -> Tensor:
    """Return the tensor in the content of a `.npy` file.

    Errors   ExplainerError if it is not a C-ordered array of plain numbers
    """
    if content[:8] != b"\x93NUMPY\x01\x00" or len(content) < 12:
        raise ExplainerError("The content is not a .npy file of version 1.0.")
    start = 10 + struct.unpack("<H", content[8:10])[0]
    header = ast.literal_eval(content[10:start].decode("latin1"))
    if header["fortran_order"] or header["descr"] not in _TYPES:
        raise ExplainerError(f"Cannot read an array of type {header['descr']!r}. Save plain numbers in C order.")
    dtype, shape = _TYPES[header["descr"]], header["shape"]
    data = bytearray(content[start:])
    return torch.frombuffer(data, dtype=dtype).reshape(shape) if data else torch.empty(shape, dtype=dtype)


def save_npz(file: str | IO[bytes], arrays: Mapping[str, Tensor], text: Mapping[str, str]) -> None:
    """Write arrays, and strings as UTF-8 byte arrays, to an `.npz` file that `numpy.load` reads without pickle."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, tensor in arrays.items():
            archive.writestr(f"{name}.npy", npy_bytes(tensor))
        for name, value in text.items():
            archive.writestr(f"{name}.npy", npy_bytes(torch.frombuffer(bytearray(value.encode()), dtype=torch.uint8)))


def load_npz(file: str | IO[bytes]) -> dict[str, Tensor]:
    """Return all arrays of an `.npz` file by name; strings are uint8 arrays of UTF-8."""
    with zipfile.ZipFile(file) as archive:
        return {name.removesuffix(".npy"): from_npy(archive.read(name)) for name in archive.namelist()}
