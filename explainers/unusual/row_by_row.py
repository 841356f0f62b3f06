"""A wrapper that runs the rows of a batch one at a time, each with the same random numbers.

For networks in which the rows of a batch affect each other, or that draw random numbers: the result for each image and
each variant is then that of a pass with this row alone. To all passes the wrapper is an ordinary module that shares the
network's modules, parameters and buffers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from explainers.hooks.locate import Wrapper
from explainers.nested import concatenate_outputs
from explainers.probe.behavior import Behavior
from explainers.probe.generators import Generators


class RowByRow(Wrapper):
    """The modules, parameters and buffers of a network whose rows run one at a time.

    `generators` start from a fixed seed for every row; None if the network does not draw random numbers. `behavior` is
    the reason. `on_draw` is called after a row that drew from a generator, if this may differ from row to row.
    """

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
        super().__init__(network)
        self.__dict__.update(generators=generators, behavior=behavior, on_draw=on_draw)

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
