"""Values recorded by hooks, call by call, and the tensor in a layer's output."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from explainers.errors import LayerNotFound, LayerRanRepeatedly, UnsupportedModel, WrongType, kind_of, nearest
from explainers.hooks.locate import find_hook_point
from explainers.nested import TRANSFORM, is_transformed, list_tensors, map_tensors
from explainers.options import LayerName


class NotRecorded(LayerNotFound, KeyError):
    """Raised for a layer without a record; also a `KeyError`, so that `in` and `get` work."""

    __str__ = Exception.__str__  # a KeyError quotes its message


class Records(Mapping[Any, Any]):
    """Recorded values by layer, given by its name or as the module.

    `name#k` is the k-th call of a module that ran more than once.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._calls: dict[str, dict[int, Any]] = {}

    def put(self, path: str, call: int, value: Any) -> None:
        self._calls.setdefault(path, {})[call] = value

    def clear(self) -> None:
        self._calls.clear()

    def freeze(self) -> None:
        """Detach all records, so that no autograd graph stays alive."""
        for calls in self._calls.values():
            for k, value in calls.items():
                calls[k] = map_tensors(value, Tensor.detach)

    def __getitem__(self, layer: LayerName) -> Any:
        name = layer if isinstance(layer, str) else find_hook_point(self._model, layer).name
        path, _, number = name.partition("#")
        calls = self._calls.get(path)
        if not calls or (number and not (number.isdigit() and int(number) in calls)):
            raise NotRecorded(
                f"Nothing was recorded for layer {name!r}. {nearest(name, self)}Recorded layers: "
                f"{', '.join(self) or 'none'}."
            )
        if number:
            return calls[int(number)]
        if len(calls) > 1:
            raise LayerRanRepeatedly(ran_repeatedly(path, len(calls)))
        return next(iter(calls.values()))

    def __iter__(self) -> Iterator[str]:
        for path, calls in self._calls.items():
            yield from [path] if list(calls) == [0] else [f"{path}#{k}" for k in sorted(calls)]

    def __len__(self) -> int:
        return sum(len(calls) for calls in self._calls.values())

    def __repr__(self) -> str:
        return f"Records({', '.join(f'{n}: {_shape(self[n])}' for n in self)})"


def refuse_transformed(name: str, value: Any) -> None:
    """Refuse a layer that runs inside a transform of torch.func, outside of which its tensors cannot be read.

    Errors   UnsupportedModel
    """
    if any(map(is_transformed, list_tensors(value))):
        raise UnsupportedModel(
            f"Layer {name!r} runs inside {TRANSFORM}, so its tensors cannot be read. Choose a layer outside of the "
            "transform, or a method that only needs the gradient of the input, such as saliency."
        )


def did_not_run(name: str) -> str:
    """Return the message for a layer whose hooks were not called."""
    return (
        f"Layer {name!r} did not run in this forward pass, or the network calls its forward method directly, which no "
        "hook sees. Choose a layer from list_layers(model, images)."
    )


def ran_repeatedly(path: str, count: int) -> str:
    """Return the message for a plain name that refers to several calls."""
    names = ", ".join(repr(f"{path}#{k}") for k in range(count))
    return f"Layer {path!r} runs {count} times in one forward pass. Name the call: {names}."


def _shape(value: Any) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__


def only_tensor(output: Any) -> Tensor | None:
    """Return the output if it is a tensor, or the only tensor in a tuple, list or dict, such as (tensor, None)."""
    if isinstance(output, Tensor):
        return output
    keys = _tensor_keys(output)
    found = output[keys[0]] if len(keys) == 1 else None
    return found if isinstance(found, Tensor) else None


def with_only_tensor(output: Any, tensor: Any) -> Any:
    """Replace the only tensor of an output by `tensor`; None stays None."""
    if tensor is None or not (keys := _tensor_keys(output)):
        return tensor
    if isinstance(output, tuple):
        values = [tensor if i == keys[0] else value for i, value in enumerate(output)]
        return type(output)(*values) if hasattr(output, "_fields") else tuple(values)
    changed = copy.copy(output)
    changed[keys[0]] = tensor
    return changed


def _tensor_keys(output: Any) -> list[Any]:
    """Return the keys of the tensors in a tuple, list or dict; nested containers count as additional tensors."""
    if isinstance(output, (tuple, list)):
        entries: list[tuple[Any, Any]] = list(enumerate(output))
    else:
        entries = list(output.items()) if isinstance(output, dict) else []
    nested = [key for key, value in entries if isinstance(value, (tuple, list, dict)) and value]
    return [key for key, value in entries if isinstance(value, Tensor)] + nested


def single_tensor(name: str, output: Any) -> Tensor:
    """Return a layer's output, which must be a single tensor; a quantized tensor is dequantized.

    Errors   WrongType if it is a tuple, a dict or anything else; UnsupportedModel inside a transform of torch.func
    """
    if isinstance(output, Tensor):
        refuse_transformed(name, output)
        return output.dequantize() if output.is_quantized else output
    raise WrongType(
        f"Layer {name!r} returns {kind_of(output)}, not a single tensor. Choose a layer inside or after it "
        "from list_layers(model, images)."
    )


def match_quantization(output: Any, edited: Tensor) -> Tensor:
    """Return an edited layer output in the format of the original: quantized with the same scale if `output` is."""
    if not isinstance(output, Tensor) or not output.is_quantized:
        return edited
    if output.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return torch.quantize_per_tensor(edited, output.q_scale(), output.q_zero_point(), output.dtype)
    scales, zeros, axis = output.q_per_channel_scales(), output.q_per_channel_zero_points(), output.q_per_channel_axis()
    return torch.quantize_per_channel(edited, scales, zeros, axis, output.dtype)
