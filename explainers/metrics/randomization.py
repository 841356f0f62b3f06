"""`randomization_test`: randomize the weights of a network and compare its maps with those of the trained network."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from explainers.blocks.weights import WeightGroup, weight_groups
from explainers.call.current import check_images, eval_view
from explainers.call.loop import Loop, Partial, Progress
from explainers.call.method import Method
from explainers.call.run import open_run
from explainers.derived_targets import LayerTarget
from explainers.display.charts import charts_html, charts_images, line_chart
from explainers.display.display import Display, Displayed, folded, paragraphs, table_html, target_name
from explainers.errors import BadImages, BadOption, BadTarget, UnsupportedModel, shorten
from explainers.explanation.run import explain
from explainers.hooks.locate import find_hook_point, unwrap
from explainers.maps.resize import rank_correlation, reduce_channels, resize, ssim
from explainers.metrics.evaluation import as_slice
from explainers.metrics.randomized_copy import RandomizedCopy
from explainers.options import Choice, LayerName, Range, Seed, options_of
from explainers.placement import place
from explainers.registry import find, find_function
from explainers.targets import Logit, Target, TargetLike, as_target, describe_target

ORDERS = ("cascade", "independent", "logit")
MAX_STEPS = 12
MapFunction = Callable[[nn.Module, Tensor, Any], Tensor]
"""(model, images, target) -> maps [N, h, w] or attributions [N, C, H, W]."""

STATISTICS = ("signed", "magnitude", "ssim", "absolute", "blank")


@dataclass(frozen=True, eq=False)
class Randomization(Displayed):
    """The result of `randomization_test`: the similarity of the map to the maps of networks with randomized weights.

    `steps` are the names of the randomized blocks, from the output to the input; `signed`, `magnitude` (Spearman's rank
    correlation of the maps, and of their magnitudes) and `ssim` are [steps, N], means over the seeds; NaN if a map is
    constant or not finite, or if the test stopped before. `absolute` [steps, N] is the mean of |`correlation`|, which
    is 1 for a map that only changes its sign between seeds; `blank` [steps, N] is the fraction of seeds with a constant
    map. `by_size`: the map has one attribution per pixel and is drawn by magnitude. `done` of `total` maps were
    computed.
    """

    LAST_LAYER: ClassVar[float] = 0.8
    ALL_LAYERS: ClassVar[float] = 0.5
    """Limits of the rank correlation: below them, a map depends on the weights of the last layer, or of all layers.

    On EfficientNet-Lite0 and four images, the plain gradient, input x gradient and DeepLIFT have 0.49 to 0.56 after the
    last layer and 0.05 to 0.18 at the end. Guided backpropagation, deconvnet and excitation backpropagation have 0.99
    to 1.00 and 0.21 to 0.45, maps that ignore the network 1.00 and 1.00.
    """

    steps: tuple[str, ...]
    signed: Tensor
    magnitude: Tensor
    ssim: Tensor
    absolute: Tensor
    blank: Tensor
    method: str
    layer: str | None
    target: list[int] | str
    order: str
    by_size: bool
    done: int
    total: int
    options: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def __len__(self) -> int:
        return self.signed.shape[1]

    def __getitem__(self, index: int | slice) -> Randomization:
        """Return the result for one image or for several."""
        one = as_slice(index, len(self))
        target = self.target[one] if isinstance(self.target, list) else self.target
        return replace(self, target=target, **{name: getattr(self, name)[:, one] for name in STATISTICS})

    @property
    def correlation(self) -> Tensor:
        """The correlations [steps, N]: `magnitude` for maps that are drawn by magnitude, else `signed`."""
        return self.magnitude if self.by_size else self.signed

    @property
    def after_last_layer(self) -> float:
        """The mean correlation after randomizing the last layer with weights, over the images that have one."""
        return float(self.correlation[0].nanmean())

    @property
    def after_all_layers(self) -> float:
        """The mean correlation at the end of a cascade, NaN for the other orders."""
        return float(self.correlation[-1].nanmean()) if self.order == "cascade" else math.nan

    @property
    def passes(self) -> bool | None:
        """Whether the map depends on the weights, None if unknown.

        The correlation must fall below `LAST_LAYER` after the last layer and, in a cascade, below `ALL_LAYERS` at the
        end.
        """
        known = [(self.after_last_layer, self.LAST_LAYER)]
        known += [(self.after_all_layers, self.ALL_LAYERS)] if self.order == "cascade" else []
        if any(abs(value) >= limit for value, limit in known) or self.turns:
            return False
        return None if any(math.isnan(value) for value, _ in known) else True

    def depends_on_weights(self, reads_class: bool = True) -> bool | None:
        """Return whether a map depends on the weights, None if unknown, by the verdict of the test for its method.

        A class-agnostic method (`METHODS[name].reads_class` is False) does not depend on the last layer, so only the
        end of a cascade counts.
        """
        if reads_class or self.order != "cascade":
            return self.passes
        correlation = self.after_all_layers
        return None if math.isnan(correlation) else abs(correlation) < self.ALL_LAYERS

    @property
    def turns(self) -> bool:
        """Whether only the sign of the map changes, between seeds or images."""
        checked = self.absolute[[0, -1] if self.order == "cascade" else [0]]
        return bool((checked.nanmean(1) >= self.LAST_LAYER).any()) and abs(self.after_last_layer) < self.LAST_LAYER

    def to_rows(self) -> list[dict[str, Any]]:
        """Return one row for each image and step."""
        return [
            {"image": n, "step": step, "drawn": name}
            | {each: float(getattr(self, each)[step, n]) for each in STATISTICS}
            for n in range(len(self))
            for step, name in enumerate(self.steps)
        ]

    def __str__(self) -> str:
        what = "rank correlation of magnitudes" if self.by_size else "rank correlation"
        if self.after_last_layer != self.after_last_layer:
            reason = "the map is constant or not finite" if self.done else "it was stopped before the first map"
            return f"{self.method}: the randomization test has no result, because {reason}."
        unknown = "has not completed" if self.done < self.total else "has no verdict in"
        verdict = {True: "passes", False: "fails", None: unknown}[self.passes]
        found = f"{self.after_last_layer:.2f} after randomizing {self.steps[0]} (limit {self.LAST_LAYER})"
        if self.order == "cascade" and not math.isnan(self.after_all_layers):
            found += f", {self.after_all_layers:.2f} after randomizing all weights (limit {self.ALL_LAYERS})"
        elif self.order == "independent":
            means = self.correlation.nanmean(1)
            found += f"; least affected by {self.steps[int(means.nan_to_num(-2).argmax())]} ({float(means.max()):.2f})"
        blank = float(self.blank.nanmean())
        notes = f" {blank:.0%} of the maps were constant or not finite." if blank > 0 else ""
        notes += " Only the sign of the map changes with the weights." if self.turns else ""
        short = f" Stopped after {self.done} of {self.total} maps." if self.done < self.total else ""
        return f"{self.method} {verdict} the randomization test: {what} {found}.{notes}{short}"

    def display(self, labels: Sequence[str] | None = None) -> Display:
        """Return the verdict, and the correlation after each step."""
        means = self.correlation.double().nanmean(1).tolist()
        points = list(enumerate(means, 1))
        charts = line_chart("Rank correlation with the original map", {"map": points}, x="randomized blocks", y="")
        rows = [[k, name, mean] for (k, mean), name in zip(points, self.steps, strict=True)]
        table = folded(f"{len(rows)} steps", table_html(["step", "randomized block", "correlation"], rows))
        about = paragraphs([f"Target: {target_name(self.target, labels)}.", str(self)])
        return Display(about + charts_html(charts) + table, repr(self), charts_images(charts))

    def __repr__(self) -> str:
        where = f" at {self.layer}" if self.layer else ""
        return (
            f"Randomization({self.method}{where}, {self.order}, {len(self.steps)} steps, {len(self)} "
            f"image{'s' * (len(self) > 1)}, passes {self.passes})"
        )


@torch.inference_mode(False)
def randomization_test(
    model: nn.Module,
    images: Tensor,
    method: str | Method | MapFunction,
    *,
    target: TargetLike = None,
    layer: LayerName | None = None,
    order: Annotated[str, Choice(*ORDERS, help="which weights are randomized together")] = "cascade",
    seeds: Annotated[int, Range(1, 100, help="number of randomized networks for each step")] = 3,
    seed: Seed = 0,
    progress: Progress | None = None,
    budget: float | None = None,
    **options: Any,
) -> Randomization:
    """Model parameter randomization test: does the map change when the weights are randomized?

    The weights of a private copy are randomized (see metrics/randomized_copy.py), block by block from the output to the
    input in at most `MAX_STEPS` steps, starting with the last layer that has weights. `order` "cascade" keeps earlier
    blocks randomized, so that no trained weights are left at the end; "independent" randomizes one block at a time;
    "logit" randomizes only the last layer. Each map, for the class of the trained network and at the same layer, is
    compared with the map of the trained network: before its final ReLU, by rank correlation with and without sign, and
    by `ssim` as it is drawn.

    Passing is necessary but not sufficient: a map of pure noise passes, because noise has no rank correlation with any
    map (Hedström et al. 2024, arXiv:2405.02383). Failing means that the map hardly depends on what the network has
    learned. The correlation of maps that keep the image's edges, such as magnitudes, decreases slowly; this is not an
    error if the task depends on edges (Yona & Greenfeld 2021, arXiv:2110.14297).

    `method` is a name in METHODS, or a function (model, images, target) -> maps; `options` are those of the method.
    Each step uses `seeds` randomized networks, with seeds `seed`, `seed` + 1, ...; `progress` gets the signed
    correlations [steps, N] so far as the `map` of its `Partial`.

    Returns  a `Randomization`: correlations [steps, N] in [-1, 1], whether the map `passes`, and a summary as `str`
    Errors   BadOption; UnsupportedModel for compiled graphs and packed weights; those of the method
    Source   Adebayo et al. 2018, section 3, arXiv:1810.03292; thresholds: docs/metrics.md

    Example
        >>> result = randomization_test(model, images, "saliency", order="logit", seeds=1)
        >>> result.steps, result.passes
        (('fc',), True)
    """
    start = time.monotonic()
    loop = Loop(None, progress, budget)
    for name, value in (("order", order), ("seeds", seeds), ("seed", seed)):
        options_of(randomization_test)[name].check(value)
    if "compare" in options:
        raise BadOption("compare= computes a second map, which this test does not use. Omit compare.")
    if "forward" in options:
        raise BadOption(
            "forward= is not supported, because it would run the given model instead of the randomized copy. Wrap the "
            "model and the function in an nn.Module that takes only images."
        )
    check_images(model, images)
    if images.ndim == 5:
        raise BadImages(
            f"randomization_test compares maps of images [N, C, H, W]; images has shape {tuple(images.shape)}. For "
            "videos and volumes, compare the maps with those of a copy of the network with random weights."
        )
    if isinstance(target, LayerTarget):
        raise BadTarget(
            f"The target reads layer {shorten(target.layer)}, and does not depend on the weights after that layer. "
            "Give a class, or a function of the network's output."
        )
    view = eval_view(model)
    maps = _Maps(method, model, layer, options)
    with torch.inference_mode(False), torch.no_grad():
        copy = RandomizedCopy(view)
        images = images.detach().clone()
        with open_run(copy.network, images, target) as run:
            run.scoring.score_inputs()
            # None becomes the top classes of the trained network.
            fixed = run.scoring.target if target is None else as_target(target, len(images))
        assert fixed is not None, "score_inputs sets it"
        groups = weight_groups(copy.network, images, MAX_STEPS)[::-1]
        if not groups:
            raise BadOption("The network has no weights to randomize. Give a network with weights.")
        test = _Test(copy, images, fixed, maps, groups if order != "logit" else groups[:1], order, seeds, seed, loop)
        test.run()
    steps = tuple(group.name for group in test.groups)
    found: dict[str, Any] = {**test.means(), "options": {**options, "seeds": seeds, "seed": seed}, "order": order}
    found |= {"target": describe_target(fixed, len(images)), "seconds": time.monotonic() - start}
    found |= {"layer": maps.layer if isinstance(maps.layer, str) else None, "by_size": maps.by_size}
    return Randomization(steps=steps, method=maps.name, done=test.done, total=test.total, **found)


class _Maps:
    """The method, as a function from a network to its signed maps [N, h, w]."""

    def __init__(
        self, method: str | Method | MapFunction, model: nn.Module, layer: LayerName | None, options: dict[str, Any]
    ) -> None:
        function = method.function if isinstance(method, Method) else method
        self.method = find(method) if isinstance(method, str) else find_function(function)
        if self.method is None and not callable(method):
            raise BadOption(
                f"method={shorten(method)} is not valid. Give a name, or a function of model, images, target."
            )
        if self.method is not None and (self.method.planes or self.method.returns == "channels"):
            raise BadOption(
                f"{self.method.name} does not return a map of the image, but {self.method.returns}. Use another method."
            )
        self.function = method
        own = getattr(method, "name", getattr(method, "__name__", "")) or type(method).__name__
        self.name = str(own) if self.method is None else self.method.name
        self.by_size = self.method is not None and self.method.returns == "pixels"
        self.layer = find_hook_point(unwrap(model), layer).name if isinstance(layer, nn.Module) else layer
        self.options = options
        self.grad = torch.is_grad_enabled()

    def __call__(self, network: nn.Module, images: Tensor, target: Target, inside: Progress | None) -> Tensor:
        if self.method is not None:
            given = {"layer": self.layer, "compare": False, **self.options}
            given |= {"progress": inside} if inside is not None and self.method.long else {}
            found = explain(self.method.name, network, images, target, **given)
            self.layer = found.layer if self.method.takes_layer else self.layer
            return place(found.raw, found.placement) if found.raw.ndim == 3 else found.map
        at = {} if self.layer is None else {"layer": self.layer}
        classes = torch.tensor(describe_target(target, len(images))) if isinstance(target, Logit) else target
        with torch.set_grad_enabled(self.grad):
            maps = self.function(network, images.clone(), classes, **at, **self.options)  # type: ignore[operator]
        if not isinstance(maps, Tensor) or maps.ndim not in (3, 4) or len(maps) != len(images):
            form = tuple(maps.shape) if isinstance(maps, Tensor) else type(maps).__name__
            raise BadOption(f"{self.name} returned {form}. It must return maps [N, h, w] or [N, C, H, W].")
        self.by_size = maps.ndim == 4
        return reduce_channels(maps.detach()) if maps.ndim == 4 else maps.detach()


class _Stopped(Exception):
    """Raised inside a long method if the caller or the budget stops the test."""


@dataclass(eq=False)
class _Test:
    """The loop over seeds and steps, with its results: `STATISTICS`, [5, seeds, steps, N]."""

    copy: RandomizedCopy
    images: Tensor
    target: Target
    maps: _Maps
    groups: Sequence[WeightGroup]
    order: str
    seeds: int
    seed: int
    loop: Loop
    done: int = 0
    started: bool = False

    def __post_init__(self) -> None:
        self.total = self.seeds * len(self.groups)
        form = len(STATISTICS), self.seeds, len(self.groups), len(self.images)
        self.found = torch.full(form, torch.nan, dtype=torch.float64)

    def run(self) -> None:
        """Run all steps, or as many as the time allows."""
        with suppress(_Stopped):
            self.original = self._map()
            self.started = True
            before = self.copy.outputs(self.images)
            self._randomize(0)
            after = self.copy.outputs(self.images)
            if before and all(map(torch.equal, before, after)):
                raise UnsupportedModel(
                    f"The copy of the network returns the same output after {self.groups[0].name} was randomized, "
                    "because its forward uses the modules of the original. Give a network whose forward uses self."
                )
            self.loop.run(self.total, 1, self._work, lambda: self.means()["signed"])

    def _work(self, chunk: range) -> None:
        for unit in chunk:
            self._randomize(unit)
            s, k = divmod(unit, len(self.groups))
            self.found[:, s, k] = self._compare(self._map()).cpu()
            self.done += 1

    def _randomize(self, unit: int) -> None:
        s, k = divmod(unit, len(self.groups))
        if k == 0 or self.order == "independent":
            self.copy.restore()
        self.copy.randomize(self.groups[k].modules, self.seed + s)

    def _map(self) -> Tensor:
        watches = self.loop.progress is not None or self.loop.budget is not None
        return self.maps(self.copy.network, self.images, self.target, self._report_method if watches else None)

    def _report_method(self, partial: Partial) -> None:
        """Report progress of a long method within a step. The first step always completes."""
        fraction = min(1.0, (self.done + partial.fraction) / self.total) if self.started else 0.0
        whole = Partial(fraction, self.means()["signed"], self.done, self.total)
        stopped = self.loop.progress is not None and self.loop.progress(whole) is False
        if stopped or (self.done and self.loop.left <= 0):
            raise _Stopped

    def _compare(self, randomized: Tensor) -> Tensor:
        """Return the `STATISTICS` [5, N] of a map of the randomized network."""
        pair = self.original, randomized
        shown = [each.abs() if self.maps.by_size else each for each in pair]
        size = self.images.shape[-2], self.images.shape[-1]
        full = [each if each.shape[1:] == size else resize(each, size) for each in shown]
        signed = rank_correlation(*pair)
        is_signed = any(bool((each < 0).any()) for each in pair)
        magnitude = rank_correlation(pair[0].abs(), pair[1].abs()) if is_signed else signed
        absolute = (magnitude if self.maps.by_size else signed).abs()
        return torch.stack([signed, magnitude, ssim(*full), absolute, signed.isnan().double()])

    def means(self) -> dict[str, Tensor]:
        """Return the means over the seeds, [steps, N] each."""
        return {name: values.nanmean(0) for name, values in zip(STATISTICS, self.found, strict=True)}
