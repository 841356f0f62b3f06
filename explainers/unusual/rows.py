"""Run a network row by row for the rest of a call, and report why."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import Tensor, nn

from explainers.errors import UnsupportedModel
from explainers.findings import note_finding
from explainers.probe.behavior import Behavior
from explainers.probe.generators import SEED, Generators
from explainers.unusual.row_by_row import RowByRow


def run_alone(network: nn.Module, images: Tensor, found: Behavior) -> RowByRow:
    """Return a network that runs one row at a time.

    Errors   UnsupportedModel if the network does not accept a single image
    """
    _refuse_without_single_rows(network, found, len(images))
    if not found.reads:
        generators = Generators(network, images.device, found.drawn) if found.drawn else None
        return RowByRow.of(network, generators, found)
    # Whether it draws random numbers may depend on the image, so all generators are fixed, and the draws reported.
    drawing = replace(found, drawn=frozenset({"any"}), noise=0.0)
    note_draw = partial(_note_stochastic, type(network).__name__, drawing)
    return RowByRow.of(network, Generators(network, images.device), found, note_draw)


def _refuse_without_single_rows(network: nn.Module, found: Behavior, count: int) -> None:
    if not found.takes_one_row:
        does = (
            "decides by the values of its images"
            if found.reads
            else "draws random numbers"
            if found.is_stochastic
            else "combines the images of a batch"
        )
        raise UnsupportedModel(
            f"This {type(network).__name__} {does}, so the result for an image depends on its batch of {count}, but it "
            "does not accept a single image. Change its forward pass so that it accepts one image, or remove the cause."
        )


def note_behavior(network: nn.Module) -> None:
    """Note why a network, returned by `run_alone`, runs row by row."""
    assert isinstance(network, RowByRow), "`run_alone` returned it"
    name, found = type(network).__name__, network.behavior
    if found.reads:
        _note_reads(name, found)
    elif found.is_stochastic:
        _note_stochastic(name, found)
    elif found.misplaced:
        _note_misplaced(name, found)
    else:
        _note_mixing(name, found)


def _note_reads(name: str, found: Behavior) -> None:
    note_finding(
        "decides_by_image",
        f"The forward pass of this {name} reads values of the image ({found.reads}), so it may run other operations "
        "for another image or for a variant of the image. Therefore layers and positions were determined for each "
        "image, and each image and each of its variants ran in a separate batch, which is slower. Gradients do not "
        "include the decision itself.",
        reads=found.reads,
    )
    if not found.is_repeatable:
        _note_stochastic(name, found)


def _note_misplaced(name: str, found: Behavior) -> None:
    note_finding(
        "rows_depend",
        f"Layer {found.misplaced!r} of this {name} does not run on the images of a batch in order: the network "
        "reorders them, runs the layer on some of them, or runs it for each one. Therefore each image and each of its "
        "variants ran in a separate batch, which is slower.",
        layer=found.misplaced,
    )


def _note_mixing(name: str, found: Behavior) -> None:
    note_finding(
        "rows_depend",
        f"The output of this {name} for an image depends on the other images in the batch, which changed it by "
        f"{_percent(found.mixing)} in a test. Therefore each image and each of its variants ran in a separate batch, "
        "which is slower. Check the forward pass for operations over the batch dimension (maximum, mean, batch "
        "statistics).",
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
