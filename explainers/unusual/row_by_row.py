"""A wrapper that runs the rows of a batch one at a time, each with the same random numbers.

For networks in which the rows of a batch affect each other, or that draw random numbers: the result for each image and
each variant is then that of a pass with this row alone. To all passes the wrapper is an ordinary module that shares the
network's modules, parameters and buffers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from torch import Tensor, nn

from explainers.hooks.locate import frozen_graph
from explainers.nested import concatenate_outputs
from explainers.probe.behavior import Behavior
from explainers.probe.generators import Generators


class RowByRow(nn.Module):
    """The modules, parameters and buffers of a network whose rows run one at a time.

    `generators` start from a fixed seed for every row; None if the network does not draw random numbers. `behavior` is
    the reason. `on_draw` is called after a row that drew from a generator, if this may differ from row to row.
    """

    wraps_inner = True
    inner: nn.Module
    generators: Generators | None
    behavior: Behavior
    on_draw: Callable[[], None] | None

    def __init__(
        self,
        network: nn.Module,
        generators: Generators | None,
        behavior: Behavior,
        on_draw: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        own = self.__dict__
        if frozen_graph(network) is None:
            own.update(_modules=network._modules, _parameters=network._parameters, _buffers=network._buffers)
        else:
            self._modules["model"] = network  # compiled code stores its tables elsewhere; no hooks are set in it
        own.update(inner=network, generators=generators, behavior=behavior, on_draw=on_draw)
        own.update(training=getattr(network, "training", False))

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["inner"], name)

    def forward(self, batch: Tensor) -> Any:
        """Return the network's output for each row, concatenated."""
        if len(batch) == 1:
            return self._run(batch)
        # Clones, because the network may modify its input in place, which autograd does not allow for such views.
        return concatenate_outputs([self._run(batch[n : n + 1].clone()) for n in range(len(batch))])

    def _run(self, row: Tensor) -> Any:
        if self.generators is None:
            return self.inner(row)
        with self.generators.fixed():
            if self.on_draw is None:
                return self.inner(row)
            start = self.generators.states()
            output = self.inner(row)
            if self.generators.states() != start:
                self.on_draw()
            return output


def row_by_row(
    network: nn.Module,
    generators: Generators | None,
    behavior: Behavior,
    on_draw: Callable[[], None] | None = None,
) -> RowByRow:
    """Return the network as a `RowByRow` whose class has the network's name, for messages."""
    return _kind(type(network).__name__)(network, generators, behavior, on_draw)


@lru_cache(maxsize=64)
def _kind(name: str) -> type[RowByRow]:
    return type(name, (RowByRow,), {})
