"""What hooks recorded, call by call."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

from explainers.errors import LayerNotFound, LayerRanRepeatedly


class Records(Mapping[str, Any]):
    """What was recorded, by layer name; `name#k` names the k-th call where a module ran more than once."""

    def __init__(self) -> None:
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

    def __getitem__(self, name: str) -> Any:
        path, _, number = name.partition("#")
        calls = self._calls.get(path)
        if not calls or (number and not (number.isdigit() and int(number) in calls)):
            raise LayerNotFound(
                f"Nothing was recorded for layer {name!r}. Recorded were {', '.join(self) or 'no layers'}."
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


def ran_repeatedly(path: str, count: int) -> str:
    """The sentence for a plain name that means several calls."""
    names = ", ".join(repr(f"{path}#{k}") for k in range(count))
    return f"Layer {path!r} runs {count} times in one forward pass. Name the call: {names}."


def map_tensors(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """`function` of every tensor in a value, also inside tuples, lists and dicts; everything else as it is."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(item, function) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(map_tensors(item, function) for item in value)
    if isinstance(value, dict):
        return type(value)({name: map_tensors(item, function) for name, item in value.items()})
    return value


def _shape(value: Any) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__


def only_tensor(output: Any) -> Tensor | None:
    """The tensor that an output is, or the single one in a tuple, list or dict, as layers give it beside None."""
    if isinstance(output, Tensor):
        return output
    places = _places(output)
    found = output[places[0]] if len(places) == 1 else None
    return found if isinstance(found, Tensor) else None


def with_only_tensor(output: Any, tensor: Any) -> Any:
    """The output with another tensor in the place of the only one; None stays None."""
    if tensor is None or not (places := _places(output)):
        return tensor
    if isinstance(output, tuple):
        values = [tensor if i == places[0] else value for i, value in enumerate(output)]
        return type(output)(*values) if hasattr(output, "_fields") else tuple(values)
    changed = copy.copy(output)
    changed[places[0]] = tensor
    return changed


def _places(output: Any) -> list[Any]:
    """Where the tensors of a tuple, list or dict stand; several where one of its entries holds more."""
    if isinstance(output, (tuple, list)):
        entries: list[tuple[Any, Any]] = list(enumerate(output))
    else:
        entries = list(output.items()) if isinstance(output, dict) else []
    nested = [key for key, value in entries if isinstance(value, (tuple, list, dict)) and value]
    return [key for key, value in entries if isinstance(value, Tensor)] + nested
