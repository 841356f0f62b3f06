"""Class-activation maps whose weights are measured by forward passes, without a gradient.

Score-CAM and its kin look at the picture through each channel's activations: enlarged to the picture (bilinear, centres
of cells stay), then scaled to [0, 1]. Masks are made a chunk at a time. A channel of one value everywhere has no mask;
its picture is blank, and one forward pass serves all such channels. Where a layer has more channels than `channels`,
those whose masks are alike share one look and its score: on EfficientNet-Lite0's last layer, of whose 1280 channels 450
to 710 are not blank, 320 looks keep a rank correlation of 0.998 with the map of all (`python -m benchmarks.drift`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor, nn

from explainers.findings import note_finding
from explainers.layers.layout import LayerLayout
from explainers.maps.resize import resize
from explainers.methods.cams.channel_groups import grouped
from explainers.options import Choice, LayerName, Precision, Range, Seed, SteadyPrecision
from explainers.passes.at_layer import SuffixBatch, activation_and_score
from explainers.passes.loop import Loop, Progress
from explainers.passes.run import Run, at_least_float32, open_run
from explainers.perturbation.rng import PerImageGenerators
from explainers.registry import method
from explainers.targets import TargetLike

Relu = Annotated[bool, "Keep only what speaks for the class"]
Weights = Annotated[
    str, Choice("softmax", "increase", help="softmax of the scores (the paper), or score less that of a blank picture")
]
Channels = Annotated[
    int, Range(1, 65536, help="channels looked through, alike ones share a look; as many as there are: the paper's run")
]
Vary = Callable[[Tensor, int, Tensor], Tensor]
"""(masks [b, H, W], picture, number of the repeat [b]) -> what the picture is multiplied by [b, H, W]."""
_SHARES = "the channels' weights are a softmax: shares of 1, however large the scores are"


@method(family="cam", returns="grid", title="Ablation-CAM", paper="Desai & Ramaswamy 2020, WACV")
def ablation_cam(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    layer: LayerName | None = None,
    relu: Relu = True,
    batch_size: int | None = None,
    progress: Progress | None = None,
    budget: float | None = None,
) -> Tensor:
    """Ablation-CAM: each channel weighted by the score that is lost when it is set to zero.

    The weights are in logits: score - score without the channel, not divided by the score as in the paper's eq. 3,
    where a negative score would turn the map around.

    Returns  (n, h, w) at the layer's own size, >= 0, in logits
    Errors   LayerNotFound, LayerRanRepeatedly, NothingSpatial, UnsupportedModel
    Source   Desai & Ramaswamy 2020, eqs. 3 and 4, doi:10.1109/WACV45572.2020.9093360
    """
    with open_run(model, images, target) as run:
        layout, activations, scores = activation_and_score(run, layer)
        a = layout.to_maps(at_least_float32(activations))

        def weighted(drops: Tensor) -> Tensor:
            maps = torch.einsum("nk,nkhw->nhw", drops, a)
            return maps.relu() if relu else maps

        loop = Loop(batch_size, progress, budget)
        return weighted(channel_drops(run, layout, activations, scores, loop, weighted))


@method(family="cam", returns="grid", title="Score-CAM", scale_free=_SHARES, paper="Wang et al. 2020, arXiv:1910.01279")
def score_cam(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    layer: LayerName | None = None,
    channels: Channels = 320,
    weights: Weights = "softmax",
    relu: Relu = True,
    batch_size: int | None = None,
    precision: Precision = "float32",
    progress: Progress | None = None,
    budget: float | None = None,
) -> Tensor:
    """Score-CAM: each channel weighted by the score of the picture seen through it.

    The paper's softmax over all channels' scores makes weights of nearly one size where scores are close; a finding
    says so. weights="increase" takes score - score of a blank picture instead, in logits. Of more channels than
    `channels`, those with like masks share a look, and a finding says so. Stopped early, channels not reached have no
    weight.

    Returns  (n, h, w) at the layer's own size, >= 0, a mean of activations (logits × activation for "increase")
    Errors   LayerNotFound, LayerRanRepeatedly, NothingSpatial, UnsupportedModel
    Source   Wang et al. 2020, algorithm 1, arXiv:1910.01279
    """
    loop = Loop(batch_size, progress, budget)
    with open_run(model, images, target, many=True, precision=precision) as run:
        seen = _Seen(run, layer, channels, weights, relu)
        return seen.map(loop, 1, lambda masks, picture, repeat: masks)


@method(family="cam", returns="grid", title="SS-CAM", scale_free=_SHARES, paper="Wang et al. 2020, arXiv:2006.14255")
def ss_cam(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    layer: LayerName | None = None,
    samples: Annotated[int, Range(1, 1000, help="noisy copies of each mask; the paper takes 35")] = 3,
    sigma: Annotated[float, Range(0, 4, 0.1, help="noise, as a share of the mask's range")] = 2.0,
    seed: Seed = 0,
    channels: Channels = 320,
    weights: Weights = "softmax",
    relu: Relu = True,
    batch_size: int | None = None,
    precision: SteadyPrecision = "float32",
    progress: Progress | None = None,
    budget: float | None = None,
) -> Tensor:
    """SS-CAM: Score-CAM with the mean score over noisy copies of each mask.

    The noise is added to the scaled mask, before the picture is multiplied by it. All channels get their first copy
    before any gets its second. Looks are shared as in `score_cam`, and there are 3 copies, where the paper takes 35:
    on EfficientNet-Lite0 the map's ranks hardly differ. Stopped early, the means are over the copies done.

    Returns  (n, h, w) at the layer's own size, >= 0, a mean of activations (logits × activation for "increase")
    Errors   LayerNotFound, LayerRanRepeatedly, NothingSpatial, UnsupportedModel
    Source   Wang et al. 2020, section 3 (smooth on feature map), arXiv:2006.14255
    """
    loop = Loop(batch_size, progress, budget)
    with open_run(model, images, target, many=True, precision=precision) as run:
        seen, draws = _Seen(run, layer, channels, weights, relu), PerImageGenerators(len(images), seed)

        def vary(masks: Tensor, picture: int, repeat: Tensor) -> Tensor:
            return masks + sigma * draws.normal(picture, len(masks), *masks.shape[1:]).to(masks)

        return seen.map(loop, samples, vary)


@method(family="cam", returns="grid", title="IS-CAM", scale_free=_SHARES, paper="Naidu et al. 2020, arXiv:2010.03023")
def is_cam(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    layer: LayerName | None = None,
    steps: Annotated[int, Range(1, 1000, help="brightnesses of each masked picture; the paper takes 10")] = 3,
    channels: Channels = 320,
    weights: Weights = "softmax",
    relu: Relu = True,
    batch_size: int | None = None,
    precision: Precision = "float32",
    progress: Progress | None = None,
    budget: float | None = None,
) -> Tensor:
    """IS-CAM: Score-CAM with the mean score over a path from the blank to the masked picture.

    The path's points are i / steps for i = 1 … steps, so that no picture is brighter than the photograph. All channels
    get their full brightness first. Looks are shared as in `score_cam`, and there are 3 points, where the paper takes
    10: on EfficientNet-Lite0 the map's ranks hardly differ. Stopped early, the means are over the points done.

    Returns  (n, h, w) at the layer's own size, >= 0, a mean of activations (logits × activation for "increase")
    Errors   LayerNotFound, LayerRanRepeatedly, NothingSpatial, UnsupportedModel
    Source   Naidu et al. 2020, section 3, arXiv:2010.03023
    """
    loop = Loop(batch_size, progress, budget)
    with open_run(model, images, target, many=True, precision=precision) as run:
        seen = _Seen(run, layer, channels, weights, relu)
        return seen.map(
            loop, steps, lambda masks, picture, repeat: masks * ((steps - repeat).to(masks) / steps).view(-1, 1, 1)
        )


# Softmax weights whose spread, times their number, is below this are called nearly uniform.
_UNIFORM = 0.5


@dataclass
class _Seen:
    """Scores of the pictures seen through each channel, summed, and the maps that follow from them."""

    run: Run
    layer: LayerName | None
    channels: int
    weights: str
    relu: bool
    a: Tensor = field(init=False)
    blank: Tensor = field(init=False)
    sums: Tensor = field(init=False)
    times: Tensor = field(init=False)
    leader: Tensor = field(init=False)

    def __post_init__(self) -> None:
        layout, activations, _ = activation_and_score(self.run, self.layer)
        self.a = layout.to_maps(at_least_float32(activations))
        self.sums = torch.zeros_like(self.a[:, :, 0, 0])
        self.times = torch.zeros_like(self.sums)
        # Whose score each channel has: its own, or that of the one whose mask is most like its own.
        self.leader = torch.arange(self.a.shape[1], device=self.a.device).repeat(len(self.a), 1)
        self.blank = self.run.values(torch.zeros_like(self.run.images), range(len(self.a)))[:, None].to(self.sums)

    def map(self, loop: Loop, repeats: int, vary: Vary) -> Tensor:
        """The map after `repeats` looks through each channel; channels of one value give the blank picture's score."""
        planes = self.a.flatten(2)
        live = [row.nonzero()[:, 0] for row in planes.amax(2) > planes.amin(2)]
        looks = [self._shared(picture, row) for picture, row in enumerate(live)]
        most = max(len(row) for row in looks)

        def work(chunk: range) -> None:
            jobs = torch.arange(chunk.start, chunk.stop, device=self.a.device)
            for picture, channels in enumerate(looks):
                own = jobs[jobs % most < len(channels)]
                if len(own):
                    self._look(picture, channels[own % most], own // most, vary)

        loop.run(repeats * most, loop.rows(self.run.images), work, lambda: self._map(live))
        self._tell(live)
        return self._map(live)

    def _shared(self, picture: int, live: Tensor) -> Tensor:
        """The channels that are looked through for all of `live`."""
        chosen, leader = grouped(self.a[picture, live], self.channels)
        self.leader[picture, live] = live[leader]
        if len(chosen) < len(live):
            note_finding(
                "shared_looks",
                f"{len(chosen)} of {len(live)} channels were looked through; each of the others has the score of the "
                "one whose mask is most like its own.",
                {"channels": len(live)},
                picture,
            )
        return live[chosen]

    def _look(self, picture: int, channels: Tensor, repeat: Tensor, vary: Vary) -> None:
        x = self.run.images[picture]
        through = vary(_masks(self.a[picture, channels], (x.shape[-2], x.shape[-1])), picture, repeat)
        found = self.run.values(x * through[:, None].to(x), [picture] * len(channels))
        self.sums[picture].index_add_(0, channels, found.to(self.sums))
        self.times[picture].index_add_(0, channels, torch.ones_like(found).to(self.times))

    def _weights(self, live: list[Tensor]) -> Tensor:
        times = self.times.gather(1, self.leader)
        scores = (self.sums.gather(1, self.leader) / times).where(times > 0, 0)
        reached = times > 0
        for picture, channels in enumerate(live):
            still = torch.ones_like(reached[picture]).index_fill(0, channels, False)
            scores[picture] = scores[picture].where(~still, self.blank[picture])
            reached[picture] |= still
        if self.weights == "increase":
            return (scores - self.blank) * reached
        return scores.masked_fill(~reached, -torch.inf).softmax(1)

    def _map(self, live: list[Tensor]) -> Tensor:
        maps = torch.einsum("nk,nkhw->nhw", self._weights(live), self.a)
        return maps.relu() if self.relu else maps

    def _tell(self, live: list[Tensor]) -> None:
        if self.weights != "softmax":
            return
        shares = self._weights(live) * self.a.shape[1]
        for picture, (low, high) in enumerate(zip(shares.amin(1).tolist(), shares.amax(1).tolist(), strict=True)):
            if high - low < _UNIFORM:
                note_finding(
                    "uniform_weights",
                    f"The weights of the {self.a.shape[1]} channels are nearly uniform ({low:.2f} to {high:.2f} of an "
                    "even share), so the map is nearly the mean activation, whatever the class.",
                    {"weights": "increase"},
                    picture,
                )


def _masks(planes: Tensor, size: tuple[int, int]) -> Tensor:
    """Planes (b, h, w) enlarged to (b, H, W) and then scaled to [0, 1]."""
    enlarged = resize(planes, size)
    low, high = enlarged.amin((1, 2), keepdim=True), enlarged.amax((1, 2), keepdim=True)
    return ((enlarged - low) / (high - low)).where(high > low, 0)


def channel_drops(
    run: Run, layout: LayerLayout, activations: Tensor, scores: Tensor, loop: Loop, shown: Callable[[Tensor], Tensor]
) -> Tensor:
    """Score less score without channel k, for every picture and channel, (n, k); each layer before runs once a
    chunk.
    """
    axis = layout.channel_axis
    count = activations.shape[axis]
    drops = at_least_float32(scores.new_zeros(len(scores), count))
    branches = [SuffixBatch(run, picture, layout) for picture in range(len(scores))]

    def work(channels: range) -> None:
        def silence(copies: Tensor) -> Tensor:
            rows = torch.arange(len(channels), device=copies.device)
            copies.movedim(axis, 1)[rows, torch.tensor(channels, device=copies.device)] = 0
            return copies

        for picture, branch in enumerate(branches):
            found = branch.values(silence, len(channels))
            drops[picture, channels.start : channels.stop] = scores[picture] - found

    at_once = loop.batch_size or max(8, min(count, _VALUES // max(1, activations[0].numel())))
    loop.run(count, at_once, work, lambda: shown(drops))
    return drops


# Values of the layer at once (256 MB in float32): each chunk runs the layers before it again, so few large ones win.
_VALUES = 64_000_000
