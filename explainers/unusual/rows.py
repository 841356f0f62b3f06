"""Run a network row by row for the rest of a call, each row with the same random numbers, and report why.

For networks in which the rows of a batch affect each other, or that draw random numbers: the result for each image and
each variant is then that of a pass with this row alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from explainers.errors import UnsupportedModel
from explainers.findings import note_finding
from explainers.hooks.locate import Wrapper
from explainers.nested import concatenate_outputs
from explainers.probe.behavior import Behavior
from explainers.probe.generators import SEED, Generators

_ALONE = "each image and each of its variants ran in a separate batch, which is slower."
"""The end of the sentences about the cause."""


class RowByRow(Wrapper):
    """The modules, parameters and buffers of a network whose rows run one at a time; to all passes an ordinary module.

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


def run_alone(network: nn.Module, images: Tensor, found: Behavior) -> RowByRow:
    """Return a network that runs one row at a time.

    Errors   UnsupportedModel if the network does not accept a single image
    """
    name = type(network).__name__
    if not found.takes_one_row:
        does = "draws random numbers" if found.is_stochastic else "combines the images of a batch"
        does = "decides by the values of its images" if found.reads else does
        raise UnsupportedModel(
            f"This {name} {does}, so the result for an image depends on its batch of {len(images)}, but it does not "
            "accept a single image. Change its forward pass so that it accepts one image, or remove the cause."
        )
    if not found.reads:
        generators = Generators(network, images.device, found.drawn) if found.drawn else None
        return RowByRow.of(network, generators, found)
    # Whether it draws random numbers may depend on the image, so all generators are fixed, and the draws reported.
    drawing = replace(found, drawn=frozenset({"any"}), noise=0.0)
    return RowByRow.of(network, Generators(network, images.device), found, partial(_note_stochastic, name, drawing))


def note_behavior(network: nn.Module) -> None:
    """Note why a network, returned by `run_alone`, runs row by row."""
    assert isinstance(network, RowByRow), "`run_alone` returned it"
    name, found = type(network).__name__, network.behavior
    if found.reads:
        note_finding(
            "decides_by_image",
            f"The forward pass of this {name} reads values of the image ({found.reads}), so it may run other "
            "operations for another image or for a variant of the image. Therefore layers and positions were "
            f"determined for each image, and {_ALONE} Gradients do not include the decision itself.",
            reads=found.reads,
        )
        if not found.is_repeatable:
            _note_stochastic(name, found)
    elif found.is_stochastic:
        _note_stochastic(name, found)
    elif found.misplaced:
        note_finding(
            "rows_depend",
            f"Layer {found.misplaced!r} of this {name} does not run on the images of a batch in order: the network "
            f"reorders them, runs the layer on some of them, or runs it for each one. Therefore {_ALONE}",
            layer=found.misplaced,
        )
    else:
        note_finding(
            "rows_depend",
            f"The output of this {name} for an image depends on the other images in the batch, which changed it by "
            f"{_percent(found.mixing)} in a test. Therefore {_ALONE} Check the forward pass for operations over the "
            "batch dimension (maximum, mean, batch statistics).",
            mixing=found.mixing,
        )


def _note_stochastic(name: str, found: Behavior) -> None:
    by = f"by {_percent(found.noise)} from pass to pass"
    if found.is_repeatable:
        sentence = (
            f"This {name} draws random numbers in evaluation mode, which "
            f"{f'changes its output {by}' if found.noise else 'may change its output'}. All passes of this call used "
            f"the same random numbers (seed {SEED}), one image at a time, so the result is reproducible but describes "
            "only one sample of the noise. To explain the network without noise, turn it off in the forward pass "
            "(dropout with training=True, randn_like, random masks)."
        )
    else:
        sentence = (
            f"The output of this {name} for the same image changes {by}, even with fixed seeds, so the result contains "
            "noise and is not reproducible. Remove the cause from the forward pass (a counter, the time, a separate "
            "random generator), or draw from torch's global generator."
        )
    note_finding("stochastic", sentence, noise=found.noise, is_repeatable=found.is_repeatable)


def _percent(share: float | None) -> str:
    return f"{100 * (share or 0):.2g}%"
