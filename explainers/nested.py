"""Tensors inside containers and objects: the inputs and outputs of networks and layers."""

from __future__ import annotations

import copy
from collections.abc import Callable, MutableMapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

TRANSFORM = "a transform of torch.func (such as vmap)"


def is_transformed(tensor: Tensor) -> bool:
    """Return whether a tensor exists only inside a transform of torch.func: it has no memory that others may read."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def map_tensors(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """Apply `function` to every tensor in a value, also inside containers and objects, and keep everything else.

    Containers are tuples, lists and dicts with their subclasses, and registered types (`register_output`). The
    attributes of all other objects count too, such as those of dataclasses and namespaces, except for modules.
    """
    return _map(value, function, {})


def list_tensors(value: Any) -> list[Tensor]:
    """Return the tensors that `map_tensors` finds in a value, in order."""
    found: list[Tensor] = []
    _collect(value, found, {})
    return found


def _collect(value: Any, found: list[Tensor], known: dict[int, Any]) -> None:
    if isinstance(value, Tensor):
        found.append(value)
    elif not isinstance(value, _PLAIN) and id(value) not in known and (each := _parts(value)) is not None:
        known[id(value)] = value
        for part in each[0]:
            _collect(part, found, known)


def _map(value: Any, function: Callable[[Tensor], Any], known: dict[int, tuple[Any, Any]]) -> Any:
    """Return the mapped value; `known` has each container with its result, since objects may contain themselves."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, _PLAIN):
        return value
    if id(value) in known:
        return known[id(value)][1]
    found = _parts(value)
    if found is None:
        return value
    known[id(value)] = value, value
    parts, rebuild = found
    result = rebuild([_map(part, function, known) for part in parts])
    known[id(value)] = value, result
    return result


_PLAIN = (type(None), bool, int, float, complex, str, bytes, type, nn.Module, torch.dtype, torch.device)

Flatten = Callable[[Any], Sequence[Any]]
Rebuild = Callable[[Any, Sequence[Any]], Any]
_CONTAINED = (Tensor, list, tuple, *_PLAIN)
"""Elements of a list that are not the results of one image."""
_registered: dict[type, tuple[Flatten, Rebuild]] = {}


def register_output(kind: type, flatten: Flatten, rebuild: Rebuild) -> None:
    """Register a type of model output whose tensors are not in its attributes.

    Tuples, lists, dicts, dataclasses, namespaces and other objects with attributes need no registration.

    Args     flatten: returns the parts of an output, as a sequence
             rebuild: takes an output and new parts, and returns a copy of the output with these parts

    Example
        >>> class Masks:
        ...     def __init__(self, planes):
        ...         self.read = lambda: planes  # hidden in a function
        >>> register_output(Masks, lambda masks: masks.read(), lambda masks, planes: Masks(planes))
        >>> class Doubled(torch.nn.Module):
        ...     def forward(self, images):
        ...         return Masks([2 * images])
        >>> saliency(Doubled(), torch.ones(1, 1, 2, 2), lambda masks: masks.read()[0].sum((1, 2, 3)))
        tensor([[[[2., 2.],
                  [2., 2.]]]])
    """
    _registered[kind] = flatten, rebuild


def _parts(value: Any) -> tuple[Sequence[Any], Callable[[Sequence[Any]], Any]] | None:
    """Return the parts of a container or object, and a function that returns a copy with other parts; None if none."""
    if (known := _registered.get(type(value))) is not None:
        return known[0](value), lambda parts: known[1](value, parts)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return value, lambda parts: type(value)(*parts)
    if isinstance(value, (tuple, list)):
        return value, type(value)
    if isinstance(value, MutableMapping):
        return list(value.values()), lambda parts: _with_items(value, dict(zip(value, parts, strict=True)))
    if attributes := attributes_of(value):
        names = list(attributes)
        return [*attributes.values()], lambda parts: _with_attributes(value, dict(zip(names, parts, strict=True)))
    return None


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object that holds values, such as a dataclass; none for functions and modules."""
    if callable(value) or isinstance(value, (*_PLAIN, ModuleType)):
        return {}
    slots = [vars(kind).get("__slots__", ()) for kind in type(value).__mro__]
    names = [name for each in slots for name in ([each] if isinstance(each, str) else each)]
    found = {name: getattr(value, name) for name in names if not name.startswith("__") and hasattr(value, name)}
    return {**vars(value), **found} if hasattr(value, "__dict__") else found


def _with_items(value: Any, items: dict[Any, Any]) -> Any:
    changed = copy.copy(value)
    for key, item in items.items():
        changed[key] = item
    return changed


def _with_attributes(value: Any, attributes: dict[str, Any]) -> Any:
    changed = copy.copy(value)
    for name, attribute in attributes.items():
        object.__setattr__(changed, name, attribute)  # also of frozen dataclasses
    return changed


def concatenate_outputs(parts: Sequence[Any]) -> Any:
    """Concatenate the outputs of several batches, in the containers and objects that contain their tensors.

    A list with one dict or object for each image, the output of detectors, becomes one list for all images.
    """
    return _concatenate(parts, listed=True)


def _concatenate(parts: Sequence[Any], listed: bool) -> Any:
    """Concatenate; only with `listed` may a list have one element for each image: inside a dict, it has heads."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(list(parts)) if first.ndim else torch.stack(list(parts))
    if listed and isinstance(first, list) and first:
        elements = [each for part in parts for each in part]
        if not any(isinstance(each, _CONTAINED) for each in elements):
            return type(first)(elements)
    if isinstance(first, _PLAIN) or (found := _parts(first)) is None:
        return first
    columns = zip(found[0], *(_parts(part)[0] for part in parts[1:]), strict=True)  # type: ignore[index]
    return found[1]([_concatenate(column, isinstance(first, tuple)) for column in columns])
