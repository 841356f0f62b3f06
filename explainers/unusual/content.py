"""A key for everything that the forward pass of an image depends on: the image, and the network's tensors."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from explainers.nested import list_tensors

_MOST_BYTES = 2**29
"""Larger networks have no key: reading them takes about as long as a forward pass."""


def content_key(modules: Sequence[nn.Module], images: Tensor) -> bytes | None:
    """Return a hash of the values of the first image and of all parameters, buffers and other tensors of the modules.

    None if one of them cannot be read, as with sharded and quantized tensors, or if there are too many.
    """
    tensors = [images[0], *_tensors(modules)]
    if any(not _is_plain(tensor) for tensor in tensors):
        return None
    if sum(tensor.numel() * tensor.element_size() for tensor in tensors) > _MOST_BYTES:
        return None
    found = hashlib.blake2b()
    with torch.no_grad():
        for tensor in tensors:
            found.update(repr((tensor.shape, tensor.dtype, tensor.device)).encode())
            values = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
            size = values.numel() * values.element_size()
            if size:
                found.update((ctypes.c_char * size).from_address(values.data_ptr()))
    return found.digest()


def _tensors(modules: Sequence[nn.Module]) -> Iterator[Tensor]:
    known: set[int] = set()
    for module in modules:
        for name, value in vars(module).items():
            if name == "_modules" or name.endswith("_hooks"):
                continue
            for tensor in list_tensors(value):
                if id(tensor) not in known:
                    known.add(id(tensor))
                    yield tensor


def _is_plain(tensor: Tensor) -> bool:
    is_readable = tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_meta
    return type(tensor) in (Tensor, nn.Parameter) and is_readable
