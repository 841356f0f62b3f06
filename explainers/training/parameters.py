"""Selection of parameters: anything an optimiser takes, or a shell pattern over dotted names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from explainers.errors import BadOption
from explainers.hooks.locate import unwrap

Params = nn.Module | Tensor | Mapping[str, Any] | Iterable[Any]


def gather(params: Params) -> dict[str, Tensor]:
    """The tensors that require grad, each once, by name, or by number where they have none.

    Errors   BadOption when none requires grad; TypeError for anything but tensors
    """
    tensors: dict[str, Tensor] = {}
    known: set[int] = set()
    for name, tensor in _named(params):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{tensor!r} is no tensor. Give what an optimiser takes, such as model.parameters().")
        if tensor.requires_grad and id(tensor) not in known:
            known.add(id(tensor))
            tensors[name] = tensor
    if not tensors:
        raise BadOption("None of the tensors requires grad, so they get no gradient. Call requires_grad_() on some.")
    return tensors


def _named(params: Params) -> Iterator[tuple[str, Any]]:
    if isinstance(params, nn.Module):
        yield from unwrap(params).named_parameters()
    elif isinstance(params, Tensor):
        yield "0", params
    elif isinstance(params, Mapping):
        yield from params.items()
    else:
        for number, item in enumerate(params):
            if isinstance(item, Mapping) and "params" in item:
                yield from ((f"{number}.{name}", tensor) for name, tensor in _named(item["params"]))
            elif isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str):
                yield item[0], item[1]
            else:
                yield str(number), item


def matching(model: nn.Module, pattern: str) -> dict[str, nn.Parameter]:
    """The parameters whose dotted name the shell pattern matches, each once.

    Errors   BadOption with the three nearest names when there are none
    """
    names = dict(unwrap(model).named_parameters(remove_duplicate=False))
    unique = {names[name]: name for name in reversed(matching_names(pattern, names))}
    return {name: parameter for parameter, name in reversed(unique.items())}


def matching_names(pattern: str, names: Iterable[str]) -> list[str]:
    """The names that the shell pattern matches.

    Errors   BadOption with the three nearest names when there are none
    """
    names = list(names)
    matches = [name for name in names if fnmatchcase(name, pattern)]
    if not matches:
        near = ", ".join(repr(name) for name in difflib.get_close_matches(pattern, names, n=3, cutoff=0.0))
        raise BadOption(
            f"No parameter's name matches {pattern!r}. "
            + (f"The nearest are {near}; '*' matches anything." if near else "There are no parameters.")
        )
    return matches
