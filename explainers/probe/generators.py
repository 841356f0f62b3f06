"""The random generators that a network can draw from: their states, and a block in which they start from a fixed seed.

These are the global generators of torch (CPU and accelerator), Python and NumPy, and generators that are attributes of
the network's modules. They are shared with the rest of the process, so only networks that draw from them are run in
such a block, and only the generators that they draw from are changed. Blocks of several threads run one after another.
Code outside of this library that draws from the same generator in another thread at the same time disturbs both sides.
"""

from __future__ import annotations

import random
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

SEED = 0
lock = threading.RLock()
"""Held while a generator's state is fixed, so that every thread restores the state that it found."""


@dataclass(frozen=True)
class _Source:
    """One generator: how to read, restore and seed it."""

    name: str
    get: Callable[[], Any]
    restore: Callable[[Any], Any]
    seed: Callable[[], Any]


States = list[tuple[_Source, Any]]


class Generators:
    """The generators that a network on some devices can draw from, or only those with the given names."""

    def __init__(self, network: nn.Module, device: torch.device, names: Iterable[str] | None = None) -> None:
        found = [*_of_torch(network, device), *_of_python(), *_of_modules(network)]
        self._sources = [each for each in found if names is None or each.name in names]

    def states(self) -> dict[str, Any]:
        """Return the state of each generator by name; equal states compare equal."""
        return {source.name: _comparable(source.get()) for source in self._sources}

    def save(self) -> States:
        """Return what `restored` needs to restore the generators."""
        return [(source, source.get()) for source in self._sources]

    @contextmanager
    def restored(self, before: States | None = None) -> Iterator[set[str]]:
        """Restore the generators after the block: those whose names are in the yielded set, at first all of them.

        They get the states that they had at the start of the block, or when `before` was saved.
        """
        with lock:
            before = self.save() if before is None else before
            chosen = {source.name for source in self._sources}
            try:
                yield chosen
            finally:
                for source, state in before:
                    if source.name in chosen:
                        source.restore(state)

    @contextmanager
    def fixed(self) -> Iterator[None]:
        """Start all generators from `SEED` inside the block, and restore them after it."""
        with self.restored():
            for source in self._sources:
                source.seed()
            yield


def _of_torch(network: nn.Module, device: torch.device) -> Iterator[_Source]:
    yield _torch_source("torch", torch.default_generator)
    for each in {device, *(parameter.device for parameter in network.parameters())}:
        backend: Any = getattr(torch, each.type, None)
        if each.type == "mps":
            yield _torch_source("mps", backend._get_default_mps_generator())
        elif (generators := getattr(backend, "default_generators", None)) and each.type not in ("cpu", "meta"):
            index = each.index if each.index is not None else backend.current_device()
            yield _torch_source(f"{each.type}:{index}", generators[index])


def _torch_source(name: str, generator: torch.Generator) -> _Source:
    return _Source(name, generator.get_state, generator.set_state, lambda: generator.manual_seed(SEED))


def _of_python() -> Iterator[_Source]:
    yield _Source("random", random.getstate, random.setstate, lambda: random.seed(SEED))
    if (numpy := sys.modules.get("numpy")) is not None:
        yield _Source(
            "numpy",
            lambda: numpy.random.get_state(legacy=False),
            numpy.random.set_state,
            lambda: numpy.random.seed(SEED),
        )


_NO_GENERATORS = frozenset((bool, int, float, str, tuple, dict, OrderedDict, set, type(None)))


def _of_modules(network: nn.Module) -> Iterator[_Source]:
    for path, module in network.named_modules():
        for name, value in vars(module).items():
            if type(value) in _NO_GENERATORS:  # quicker than the tests below, for nearly all attributes
                continue
            label = f"{path}.{name}"
            if isinstance(value, torch.Generator):
                yield _torch_source(label, value)
            elif isinstance(value, random.Random):
                yield _Source(label, value.getstate, value.setstate, lambda value=value: value.seed(SEED))  # type: ignore[misc]
            elif type(value).__module__.startswith("numpy.random") and hasattr(value, "bit_generator"):
                yield _numpy_source(label, value.bit_generator)


def _numpy_source(name: str, bits: Any) -> _Source:
    def restore(state: Any) -> None:
        bits.state = state

    return _Source(name, lambda: bits.state, restore, lambda: restore(type(bits)(SEED).state))


def _comparable(state: Any) -> Any:
    """Return a state as a value with `==`: arrays and tensors become bytes."""
    if isinstance(state, dict):
        return {name: _comparable(each) for name, each in state.items()}
    if isinstance(state, Tensor):
        return state.tolist()
    return state.tobytes() if hasattr(state, "tobytes") else state
