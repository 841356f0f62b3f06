"""Notice in a forward pass that a network reads values which depend on the image, so that it may decide by them.

A network whose forward pass contains `if x.max() > 1:` or crops the image to its non-zero box may run other operations
for the next image, for a variant of the image, or for a batch. Nothing that one image shows about it, such as its
layers or the position of their cells, then has to hold for another one.

Values are read when they leave the tensors, as numbers or lists, or when the size of a result depends on them. Checks
for NaN and infinity do not count, since the images are finite, and neither do values of parameters and buffers.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from explainers.errors import ExplainerError, LayerNotFound, LayerRanRepeatedly, UnsupportedModel, is_out_of_memory
from explainers.nested import is_transformed

NEW = frozenset(
    "new_zeros new_ones new_empty new_full new_empty_strided zeros_like ones_like empty_like full_like rand_like "
    "randn_like".split()
)
"""Operations that return a new tensor, which has the shape or type of their input, but none of its values."""
one_mode_at_a_time = threading.RLock()
"""torch stores in a global whether any thread is in a dispatch mode, and restores it wrongly if two threads overlap."""
_CONVERSIONS = frozenset({"numpy", "tolist", "__array__", "__dlpack__", "tensor_split"})
"""Functions that read values without a tensor operation."""
_UNTAGGED = frozenset({"nms", "_pack_padded_sequence", "_pad_packed_sequence", "_to_sparse"})
"""Operations whose result has a size that depends on values, which torch does not mark as such."""
_READABLE = {"_local_scalar_dense": "item", "_unique2": "unique", "index": "boolean indexing"}


class Decisions:
    """What a network reads of the images in a forward pass: `reads` has the names of the operations."""

    def __init__(self) -> None:
        self.reads: list[str] = []
        self._storages: set[int] = set()

    @contextmanager
    def watch(self, images: Tensor) -> Iterator[None]:
        """Watch the operations of the calling thread on the images inside the block."""
        self._storages.add(storage_of(images))
        with one_mode_at_a_time, _Functions(self), _Operations(self):
            yield

    def depends(self, tensors: Iterable[Tensor]) -> bool:
        """Return whether one of the tensors depends on the images."""
        return any(storage_of(tensor) in self._storages for tensor in tensors)

    def note(self, func: Any, name: str, args: Any, inputs: list[Tensor], result: Any) -> None:
        """Note the operation, and which of its results depend on the images."""
        depends = self.depends(inputs)
        outputs = list(plain_tensors((result,)))
        if depends and _reads(func, name, args, outputs, self):
            self.reads.append(_READABLE.get(name, name))
        depends = depends and name not in NEW and not _is_check(name, args)
        own = set(map(storage_of, inputs))
        for output in outputs:
            storage = storage_of(output)
            if depends:
                self._storages.add(storage)
            elif storage not in own:
                self._storages.discard(storage)  # reused memory


class DispatchMode(TorchDispatchMode):
    """A mode that sees each operation of the calling thread, also inside torch's higher-order operators."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch wraps the method below in one that imports torch._dynamo, which takes seconds


class _Operations(DispatchMode):
    """Notes every tensor operation of the calling thread."""

    def __init__(self, decisions: Decisions) -> None:
        super().__init__()
        self.decisions = decisions

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = getattr(func, "overloadpacket", func).__name__
        self.decisions.note(func, name, args, list(plain_tensors((*args, *kwargs.values()))), result)
        return result


class _Functions(TorchFunctionMode):
    """Notes conversions to numpy and lists, which read values without a tensor operation."""

    def __init__(self, decisions: Decisions) -> None:
        super().__init__()
        self.decisions = decisions

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _CONVERSIONS and self.decisions.depends(plain_tensors((*args, *(kwargs or {}).values()))):
            self.decisions.reads.append(name.strip("_"))
        before = len(self.decisions.reads)
        result = func(*args, **(kwargs or {}))
        if name == "one_hot" and (len(args) > 1 or kwargs):  # it only checks that the classes are in range
            del self.decisions.reads[before:]
        return result


def explain_decision(name: str, error: Exception) -> None:
    """Raise an error that says why a layer or a size differs between the passes of a network that decides by the image.

    Errors of the caller's code, and other errors of this library, are left alone.
    """
    why = f"This {name} decides by the values of its image, so images and variants of an image may run other layers"
    if isinstance(error, (LayerNotFound, LayerRanRepeatedly)):
        raise type(error)(f"{error} {why}.") from error
    if not isinstance(error, ExplainerError) and not is_out_of_memory(error) and _is_of_library(error):
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise UnsupportedModel(
            f"{why}, or have layers of other sizes, which this call does not support ({reason}). Give one image at a "
            "time, or use a method without a layer, such as saliency or occlusion."
        ) from error


def _is_of_library(error: Exception) -> bool:
    """Return whether code of this library raised the error, and not the network or a function of the caller."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__", "")).startswith("explainers.")


def _reads(func: Any, name: str, args: Any, outputs: list[Tensor], decisions: Decisions) -> bool:
    """Return whether values leave the tensors: the result is a number, or its size depends on the values."""
    if name == "index":  # its tag does not distinguish numbers, which keep the size, from a mask
        masks = (each for each in plain_tensors(args[1]) if each.dtype in (torch.bool, torch.uint8))
        return decisions.depends(masks)
    tags = getattr(func, "tags", ())
    return name in _UNTAGGED or torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags


def _is_check(name: str, args: Any) -> bool:
    """Return whether an operation tests for NaN or infinity, which has the same result for all finite values.

    So does the operation by which torch.distributions checks its arguments.
    """
    if name in ("isnan", "isinf", "_is_all_true"):
        return True
    if name not in ("eq", "ne") or len(args) < 2:
        return False
    return args[0] is args[1] or (isinstance(args[1], float) and math.isinf(args[1]))


def is_plain(tensor: Tensor) -> bool:
    """Return whether the tensor is dense and outside of torch's transforms, so that its storage is known."""
    return tensor.layout == torch.strided and not is_transformed(tensor)


def plain_tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the plain tensors among values, also in lists and tuples."""
    for value in values:
        if isinstance(value, Tensor):
            if is_plain(value):
                yield value
        elif isinstance(value, (list, tuple)):
            yield from plain_tensors(value)


def storage_of(tensor: Tensor) -> int:
    """Return a number for the memory of a tensor, which its views share."""
    return tensor.untyped_storage()._cdata
