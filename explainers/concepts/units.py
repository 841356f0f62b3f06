"""`index_units`: the images to which each channel of a layer responds most, from one pass over many images."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from explainers.call.current import check_images, one_call
from explainers.call.forward_wrapper import Forward, ForwardWrapper, wrap_forward
from explainers.call.fused_copy import channels_last, fused_copy
from explainers.call.loop import check_progress
from explainers.call.run import Run, open_run
from explainers.call.scores import StopForward, maps_of
from explainers.errors import (
    BadImages,
    BadOption,
    LayerNotFound,
    NoSpatialOutput,
    UnsupportedModel,
    check_type,
    shorten,
    wrong_type,
)
from explainers.hooks.calls import replaced_outputs
from explainers.hooks.locate import find_hook_point
from explainers.hooks.records import did_not_run, single_tensor
from explainers.layers.layout import LayerLayout
from explainers.layers.receptive import receptive_fields
from explainers.options import LayerName, check_keywords, check_whole, whole_numbers
from explainers.targets import Target

Batch = Tensor | tuple[Tensor, Sequence[int] | Tensor]
"""Images [N, C, H, W], or these with the position of each image, a number that no other image has."""
PREDICTED = "predicted"


@dataclass(frozen=True, eq=False)
class TopImages:
    """The images with the largest values of each of K channels, the largest first.

    `values` [K, top] are activations or effects, `images` [K, top] the positions of the images, `cells` [K, top, 2] the
    row and column of the cell that has the largest value, and `boxes` [K, top, 4] the receptive field of that cell:
    left, top, right and bottom as fractions of the image. For fewer images than `top`, there are as many columns as
    images. Many images have equal values in a layer that saturates, such as ReLU6: of these, the one with the largest
    mean activation over all cells comes first, `means` [K, top], and of equal ones the lower position.
    """

    values: Tensor
    means: Tensor
    images: Tensor
    cells: Tensor
    boxes: Tensor

    def merge(self, other: TopImages, top: int) -> TopImages:
        """Return the largest values of both."""
        joined = [torch.cat(pair, 1) for pair in zip(self._fields(), other._fields(), strict=True)]
        return TopImages(*joined).sort(top)

    def sort(self, top: int) -> TopImages:
        """Return the `top` largest values, the largest first."""
        order = self.images.argsort(dim=1, stable=True)
        for key in (self.means, self.values):  # stable, so the last key decides first
            order = order.gather(1, key.gather(1, order).argsort(dim=1, descending=True, stable=True))
        order = order[:, :top]
        wide = order[..., None]  # of cells and boxes, which have a third axis
        return TopImages(*(each.take_along_dim(order if each.ndim == 2 else wide, 1) for each in self._fields()))

    def _fields(self) -> tuple[Tensor, ...]:
        return self.values, self.means, self.images, self.cells, self.boxes


@dataclass(frozen=True, eq=False)
class LayerUnits:
    """The units (channels) of one layer.

    `top` has the images with the strongest activation of each channel, `effects` those with its largest effect on the
    score, or None. `mean` [K] is the mean over all cells of all images, `sparsity` [K] the share of images in which no
    cell is above 0, and `lowest` [K] the lowest activation. `grid` is (height, width), `count` the number of images.
    """

    layer: str
    grid: tuple[int, ...]
    count: int
    top: TopImages
    effects: TopImages | None
    mean: Tensor
    sparsity: Tensor
    lowest: Tensor

    @property
    def dead(self) -> Tensor:
        """Whether each channel [K] has the same value in all cells of all images."""
        return self.lowest == self.top.values[:, 0]

    @property
    def form(self) -> str:
        """What must be equal in two indices that are merged."""
        effects = "" if self.effects is None else " with effects"
        return f"{self.layer}: {len(self.mean)} channels of {self.grid}{effects}"

    def merge(self, other: LayerUnits, top: int) -> LayerUnits:
        """Return the units of the same layer over the images of both."""
        count, share = self.count + other.count, other.count / (self.count + other.count)
        effects = self.effects and other.effects and self.effects.merge(other.effects, top)
        mean, sparsity = self.mean.lerp(other.mean, share), self.sparsity.lerp(other.sparsity, share)
        lowest, merged = torch.minimum(self.lowest, other.lowest), self.top.merge(other.top, top)
        return LayerUnits(self.layer, self.grid, count, merged, effects, mean, sparsity, lowest)


@dataclass(frozen=True, eq=False)
class UnitIndex:
    """The result of `index_units`: `layers` by name, for `count` images and the `top` images of each channel.

    `skipped` is the number of images that were left out because they, or their activations, are not finite.
    `index | other` merges two indices of different images.
    """

    layers: dict[str, LayerUnits]
    count: int
    skipped: int
    top: int

    def __or__(self, other: UnitIndex) -> UnitIndex:
        """Return the index of the images of both.

        Errors   BadOption for other layers or another `top`, or if both have images with the same positions
        """
        if not isinstance(other, UnitIndex):
            return NotImplemented
        forms = [[f"top {each.top}", *(units.form for units in each.layers.values())] for each in (self, other)]
        if forms[0] != forms[1]:
            raise BadOption(
                f"Cannot merge an index of {', '.join(forms[0])} and one of {', '.join(forms[1])}. Index the same "
                "layers of the same model with the same options."
            )
        for name, units in self.layers.items():
            common = units.top.images[torch.isin(units.top.images, other.layers[name].top.images)]
            if len(common):
                raise BadOption(
                    f"Both indices have an image at position {int(common[0])}. Give each image its own position: "
                    "batches (images, positions)."
                )
        layers = {name: units.merge(other.layers[name], self.top) for name, units in self.layers.items()}
        return UnitIndex(layers, self.count + other.count, self.skipped + other.skipped, self.top)

    def __repr__(self) -> str:
        layers = ", ".join(f"{name}: {len(units.mean)} channels" for name, units in self.layers.items())
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        return f"UnitIndex({layers}; top {self.top} of {self.count} images{skipped})"


@dataclass(frozen=True, eq=False)
class IndexedBatch:
    """What `progress` gets after each batch: the index so far, and what is new.

    `positions` [n] are those of the batch's images, without skipped ones. `peaks` and `means` are the strongest and the
    mean activation of each channel in each of them, [n, K] by layer; `name_units` takes either.
    """

    index: UnitIndex
    positions: Tensor
    peaks: dict[str, Tensor]
    means: dict[str, Tensor]


_Peaks = dict[str, Tensor]
"""Of each channel in each image, [n, K]: the largest "value", its "cell" (a flat index), the "mean" and the "lowest"
value, and if requested the "effect" and its "effect_cell"."""


@check_keywords
@torch.inference_mode(False)
def index_units(
    model: nn.Module,
    images: Tensor | Iterable[Batch],
    layers: LayerName | Sequence[LayerName],
    *,
    top: int = 9,
    effects: int | str | Target | None = None,
    batch_size: int = 32,
    progress: Callable[[IndexedBatch], Any] | None = None,
    forward: Forward | None = None,
) -> UnitIndex:
    """Find the images, and the places in them, to which each channel of some layers responds most.

    `images` is a tensor, or an iterable of batches, which is read once. A batch is a tensor, or a tuple of a tensor and
    the position of each image, which identifies it in the result; otherwise the images are numbered from 0. All
    images must have the same size. Larger batches than `batch_size` are split. Memory depends on the numbers of
    channels and `top`, not on the number of images.

    The receptive field is that of `Layer.receptive_fields`, clipped at the borders of the image; if it cannot be
    determined, the box is the part of the image that the cell covers.

    `effects` also finds the images in which each channel contributes most to the score of a class, of a `Target`, or of
    each image's top class ("predicted"). The effect is gradient × activation, as in `channel_contributions`. It equals
    `channel_effects` if the score is a linear function of the layer, as after the last layer before global pooling and
    a linear head; otherwise it is a first-order estimate.

    `progress` is called with an `IndexedBatch` after each batch. If it returns False, the index so far is returned;
    merge it with an index of the other images to continue. `forward` is as in `explain`.

    Returns  a `UnitIndex`, with tensors on the CPU
    Errors   BadImages without images, for images of different sizes, or videos; LayerNotFound; NoSpatialOutput for a
             layer without a grid; BadOption

    Example
        >>> index = index_units(model, images, ["layer3", "layer4"], top=1)
        >>> index.layers["layer4"].top.images.shape
        torch.Size([512, 1])
    """
    names = _checked_layers(layers)
    check_whole(1, top=top, batch_size=batch_size)
    several = isinstance(effects, (bool, list, tuple, Tensor)) or getattr(effects, "ndim", 0) != 0
    if several or (isinstance(effects, str) and effects != PREDICTED):
        raise BadOption(f"effects={shorten(effects)} is not valid. Give the index of a class, 'predicted' or a Target.")
    check_progress(progress, "an IndexedBatch")
    batches = _read(images, batch_size)
    first = next(batches, None)
    if first is None:
        raise BadImages("images has no image. Give a tensor [N, C, H, W], or batches of them.")
    check_images(model, first[0].nan_to_num(0, 0, 0) if first[0].is_floating_point() else first[0])
    model = model if forward is None else wrap_forward(model, forward, first[0])
    with torch.no_grad(), one_call(model):
        indexing = _Pass(model, names, effects, top, tuple(first[0].shape[1:]))
        for batch, positions in itertools.chain([first], batches):
            indexed = indexing.add(batch, positions)
            if progress is not None and indexed is not None and progress(indexed) is False:
                break
    if indexing.index is None:
        raise BadImages(f"None of the {indexing.skipped} images is finite, or none has finite activations.")
    return indexing.index


def _checked_layers(layers: LayerName | Sequence[LayerName]) -> list[LayerName]:
    names = [layers] if isinstance(layers, (str, nn.Module)) else layers
    if not isinstance(names, (list, tuple)) or not names:
        raise wrong_type("layers", layers, "the name of a layer, or a list of names from list_layers(model, images)")
    return list(names)


def _read(images: Tensor | Iterable[Batch], size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of at most `size` images with their positions.

    Errors   WrongType, BadImages
    """
    count = 0
    check_type("images", images, Iterable, "a tensor [N, C, H, W], or an iterable of batches")
    for given in [images] if isinstance(images, Tensor) else images:
        batch, positions = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
        if not isinstance(batch, Tensor):
            raise wrong_type("A batch of images", batch, "a tensor [N, C, H, W], or a tuple (tensor, positions)")
        if batch.ndim != 4:
            raise BadImages(f"A batch of images has shape {tuple(batch.shape)}. Give images [N, C, H, W].")
        numbers = range(count, count + len(batch)) if positions is None else whole_numbers(positions)
        if numbers is None or len(numbers) != len(batch):
            raise BadImages(
                f"positions={shorten(positions)} does not match {len(batch)} images. Give one whole number for each."
            )
        count += len(batch)
        for start in range(0, len(batch), size):
            yield batch[start : start + size], torch.tensor(numbers[start : start + size])


class _Pass:
    """One pass over the images, inside one call of the model."""

    def __init__(
        self, model: nn.Module, names: list[LayerName], effects: Any, top: int, shape: tuple[int, ...]
    ) -> None:
        self.model, self.names, self.effects, self.top, self.shape = model, names, effects, top, shape
        self.index: UnitIndex | None = None
        self.skipped = 0
        self._boxes: dict[str, Tensor] = {}
        self._copy: nn.Module | None = None

    def add(self, batch: Tensor, positions: Tensor) -> IndexedBatch | None:
        """Add a batch to the index; returns None if no image of it is finite."""
        if tuple(batch.shape[1:]) != self.shape:
            raise BadImages(
                f"images of shape {tuple(batch.shape[1:])} follow images of shape {self.shape}. Resize all images to "
                "one size."
            )
        finite = batch.flatten(1).isfinite().all(1) if batch.is_floating_point() else torch.ones(len(batch)).bool()
        peaks: dict[str, _Peaks] = {}
        if bool(finite.any()):
            peaks = self._peaks(batch if bool(finite.all()) else batch[finite])
        positions = positions[finite.cpu()]
        if peaks:
            each = [
                values.isfinite().all(1) for of in peaks.values() for values in (of["value"], of["lowest"], of["mean"])
            ]
            finite = torch.stack(each).all(0)
            peaks = {name: {field: x[finite] for field, x in of.items()} for name, of in peaks.items()}
            positions = positions[finite]
        self.skipped += len(batch) - len(positions)
        if len(positions):
            layers = {name: self._units(name, each, positions) for name, each in peaks.items()}
            new = UnitIndex(layers, len(positions), 0, self.top)
            self.index = new if self.index is None else self.index | new
        if self.index is None:
            return None
        self.index = replace(self.index, skipped=self.skipped)
        values, means = ({name: each[field] for name, each in peaks.items()} for field in ("value", "mean"))
        return IndexedBatch(self.index, positions, values, means)

    def _peaks(self, batch: Tensor) -> dict[str, _Peaks]:
        """Return the peaks of each layer for finite images."""
        check_images(self.model, batch)
        target = None if self.effects in (None, PREDICTED) else self.effects
        with open_run(self.model, batch[:1] if self.effects is None else batch, target, several=True) as run:
            if len(batch) > 1 and (run.view.decides or run.view.is_row_by_row):
                parts = [self._peaks(row) for row in batch.split(1)]
                return {name: _joined([part[name] for part in parts]) for name in parts[0]}
            layouts = [run.layer_layout(name) for name in self.names]
            for layout in layouts:
                if layout.name not in self._boxes:
                    self._boxes[layout.name] = _fields(run, layout)
            if self.effects is not None:
                both = run.backward.scores_at(layouts, run.images)[1]
                return {layout.name: _with_effects(layout, *both[layout.name]) for layout in layouts}
            if self.index is None:
                self._copy = _fast_copy(run, batch[:1], layouts)
            # The copy is fastest with channels last, for which some networks are not written.
            copied = batch.clone() if self._copy is None else channels_last(batch)
            return _read_layers(self._copy or run.view.network, layouts, copied)

    def _units(self, name: str, peaks: _Peaks, positions: Tensor) -> LayerUnits:
        """Return the index of one layer for one batch."""
        boxes = self._boxes[name]

        def top_of(values: Tensor, cells: Tensor) -> TopImages:
            rows, columns = cells.T // boxes.shape[1], cells.T % boxes.shape[1]
            images = positions.expand(values.shape[1], -1)
            places = torch.stack([rows, columns], 2), boxes[rows, columns]
            return TopImages(values.T, peaks["mean"].T, images, *places).sort(self.top)

        effects = top_of(peaks["effect"], peaks["effect_cell"]) if "effect" in peaks else None
        top, sparsity = top_of(peaks["value"], peaks["cell"]), (peaks["value"] <= 0).double().mean(0)
        mean, lowest = peaks["mean"].double().mean(0), peaks["lowest"].amin(0)
        return LayerUnits(name, tuple(boxes.shape[:2]), len(positions), top, effects, mean, sparsity, lowest)


def _joined(parts: Sequence[_Peaks]) -> _Peaks:
    return {field: torch.cat([part[field] for part in parts]) for field in parts[0]}


def _peaks_of(maps: Tensor) -> _Peaks:
    """Return the peaks of maps [n, K, h, w], on the CPU."""
    cells = maps.flatten(2)
    values, at = cells.max(2)
    return {"value": values.cpu(), "cell": at.cpu(), "mean": cells.mean(2).cpu(), "lowest": cells.amin(2).cpu()}


def _with_effects(layout: LayerLayout, activations: Tensor, gradients: Tensor) -> _Peaks:
    """Return the peaks of a layer, and the sum of gradient × activation of each channel with its largest cell."""
    products = activations.detach() * gradients
    cells = maps_of(layout, products).flatten(2)
    whole = products.movedim(layout.channel_axis, 1).flatten(2).sum(2)
    effects = {"effect": whole.to(cells).cpu(), "effect_cell": cells.argmax(2).cpu()}
    return _peaks_of(maps_of(layout, activations)) | effects


def _read_layers(network: nn.Module, layouts: Sequence[LayerLayout], batch: Tensor) -> dict[str, _Peaks]:
    """Return the peaks of layers, from one forward pass that stops after the last of them.

    The network may modify the batch in place.
    """
    found: dict[str, _Peaks] = {}

    def read(layout: LayerLayout, output: Any) -> None:
        maps = maps_of(layout, single_tensor(layout.name, output))
        if len(maps) != len(batch):
            raise UnsupportedModel(
                f"Layer {layout.name!r} has {len(maps)} rows for {len(batch)} images: the network runs it on parts "
                "of the batch. Set batch_size=1."
            )
        found[layout.name] = _peaks_of(maps)
        if len(found) == len({each.name for each in layouts}):
            raise StopForward

    edits = [(find_hook_point(network, layout.name), partial(read, layout)) for layout in layouts]
    with replaced_outputs(network, edits), suppress(StopForward):
        network(batch)
    for layout in layouts:
        if layout.name not in found:
            raise LayerNotFound(did_not_run(layout.name))
    return {layout.name: found[layout.name] for layout in layouts}


def _fast_copy(run: Run, image: Tensor, layouts: Sequence[LayerLayout]) -> nn.Module | None:
    """Return the copy of the network with folded batch norm, or None if it does not compute the layers."""
    view = run.view
    if view.kind is not None or view.is_row_by_row or view.decides or isinstance(view.network, ForwardWrapper):
        return None
    output = view.network(image.clone())
    copy = fused_copy(view, image, output) if isinstance(output, Tensor) else None
    if copy is None or any(layout.name.partition("#")[0] in copy.fused for layout in layouts):
        return None
    return copy.network


def _fields(run: Run, layout: LayerLayout) -> Tensor:
    """Return the receptive field of each cell, [h, w, 4], as fractions of the image.

    Errors   NoSpatialOutput for a layer of a video network
    """
    if layout.grid is None or len(layout.grid) != 2:
        raise NoSpatialOutput(f"Layer {layout.name!r} has the grid {layout.grid}, and a unit needs (height, width).")
    sides, spans = run.images.shape[-2:], None
    with suppress(ValueError, RuntimeError):  # it depends on the image, or an operation has no rule
        spans = receptive_fields(run.view.network, run.images[:1], layout)
    if spans is None:
        parts = [torch.linspace(0, 1, n + 1).double() for n in layout.grid]
        rows, columns = (torch.stack([part[:-1], part[1:]], 1) for part in parts)
    else:
        rows, columns = (torch.tensor(span).double() / side for span, side in zip(spans, sides, strict=True))
    shape = *layout.grid, 2
    tops, lefts = rows[:, None].expand(shape), columns[None].expand(shape)
    return torch.stack([lefts[..., 0], tops[..., 0], lefts[..., 1], tops[..., 1]], 2)
