"""Class-activation maps whose channel weights are measured by forward passes, without gradients.

Score-CAM and its variants mask the image with each channel's activations, upsampled to the image (bilinear, cell
centers aligned) and scaled to [0, 1]. Masks are created in chunks. A constant channel has no mask: its masked image is
blank, and all such channels share one forward pass. If a layer has more channels than `channels`, those with similar
masks share one forward pass and its score: on the last layer of EfficientNet-Lite0, where 450 to 710 of 1280 channels
are not constant, 320 passes give a rank correlation of 0.998 with the full map (`python -m benchmarks.drift`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from explainers.call.at_layer import activation_and_score, suffix_batches
from explainers.call.batch_size import max_tensor_count
from explainers.call.run import Run, open_run
from explainers.call.scores import at_least_float32
from explainers.dtypes import to_float64
from explainers.findings import note_finding, note_images
from explainers.keywords import LayerCost, LayerLimits, LayerSteadyCost
from explainers.layers.layout import LayerLayout
from explainers.maps.resize import resize
from explainers.methods.cams.channel_groups import group_channels
from explainers.options import Choice, LayerName, Range, Relu, Seed
from explainers.perturbation.rng import PerImageGenerators
from explainers.placement import place
from explainers.registry import method, on_lite0
from explainers.targets import TargetLike

Weights = Annotated[
    str, Choice("softmax", "increase", help="softmax of the scores (the paper), or score minus that of a blank image")
]
Channels = Annotated[
    int,
    Range(
        1, 65536, help="maximum number of channels scored separately; similar channels share a score (the paper: all)"
    ),
]
Vary = Callable[[Tensor, int, Tensor], Tensor]
"""(masks [b, H, W], image index, number of the repeat [b]) -> factors of the image [b, H, W]."""
_softmax_cam = partial(
    method,
    family="cam",
    returns="grid",
    gradients=False,
    scale_free="the channel weights are a softmax, which sums to 1 regardless of the size of the scores",
)


@method(family="cam", returns="grid", gradients=False, title="Ablation-CAM", paper="Desai & Ramaswamy 2020, WACV")
def ablation_cam(
    model: nn.Module, images: Tensor, target: TargetLike = None, *, relu: Relu = True, **cost: Unpack[LayerLimits]
) -> Tensor:
    """Ablation-CAM: each channel weighted by the drop of the score when it is set to zero.

        L = ReLU(Σ_k w_k A_k),  w_k = y - y(A_k = 0)

    The weights are in logits. They are not divided by the score as in eq. 3 of the paper, because a negative score
    would flip the sign of the map.

    `forward` is as in `explain`. `through` raises an error, because it restricts gradients and this method only uses
    scores.

    Returns  (n, h, w) at the layer's own size, >= 0, in logits
    Errors   LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel
    Source   Desai & Ramaswamy 2020, eqs. 3 and 4, doi:10.1109/WACV45572.2020.9093360

    Example
        >>> ablation_cam(model, images, 281, layer="layer4").shape
        torch.Size([1, 7, 7])
    """
    with open_run(model, images, target, cost=cost) as run:
        layout, activations, scores = activation_and_score(run, cost.get("layer"))
        a = layout.to_maps(at_least_float32(activations))

        def weighted(drops: Tensor) -> Tensor:
            return _weighted_sum(drops, a)

        return weighted(channel_drops(run, layout, activations, scores, weighted))


def _weighted_sum(weights: Tensor, activations: Tensor) -> Tensor:
    """Return the sum [N, ...] of activations [N, K, ...] with weights [N, K], also in float32 inside autocast."""
    return (weights.reshape(*weights.shape, *[1] * (activations.ndim - 2)) * activations).sum(1)


@_softmax_cam(title="Score-CAM", paper="Wang et al. 2020, arXiv:1910.01279")
def score_cam(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    channels: Channels = 320,
    weights: Weights = "softmax",
    relu: Relu = True,
    **cost: Unpack[LayerCost],
) -> Tensor:
    """Score-CAM: each channel weighted by the score of the image masked by it.

        L = ReLU(Σ_k w_k A_k),  w = softmax_k y(x ∘ m_k),  m_k = A_k upsampled and scaled to [0, 1]

    The paper's softmax over all channels gives nearly uniform weights if scores are close, which a finding reports.
    weights="increase" uses y(x ∘ m_k) - y(blank) instead, in logits. If there are more than `channels` channels, those
    with similar masks share a forward pass, which a finding reports. If stopped early, remaining channels get weight 0.

    `forward` is as in `explain`. `through` raises an error, because it restricts gradients and this method only uses
    scores.

    Returns  (n, h, w) at the layer's own size, >= 0, a mean of activations (logits × activation for "increase")
    Errors   LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel
    Source   Wang et al. 2020, algorithm 1, arXiv:1910.01279

    Example
        >>> score_cam(model, images, 281, layer="layer4", channels=16).shape
        torch.Size([1, 7, 7])
    """
    with open_run(model, images, target, many=True, cost=cost) as run:
        masked = _MaskedScores(run, cost.get("layer"), channels, weights)
        return masked.map(1, lambda masks, index, repeat: masks)


@_softmax_cam(
    title="SS-CAM",
    paper="Wang et al. 2020, arXiv:2006.14255",
    caution=on_lite0("not significantly better than the image's edges", "Grad-CAM instead"),
)
def ss_cam(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    samples: Annotated[int, Range(1, 1000, help="noisy copies of each mask; the paper: 35")] = 3,
    sigma: Annotated[
        float, Range(0, 4, 0.1, help="standard deviation of the noise, as a fraction of the mask's range")
    ] = 2.0,
    seed: Seed = 0,
    channels: Channels = 320,
    weights: Weights = "softmax",
    relu: Relu = True,
    **cost: Unpack[LayerSteadyCost],
) -> Tensor:
    """SS-CAM: Score-CAM with the mean score over noisy copies of each mask.

        w = softmax_k mean_s y(x ∘ (m_k + ε_s)),  ε_s ~ N(0, sigma²)

    All channels get their first copy before any gets its second, and share passes as in `score_cam`. The default is 3
    copies instead of the paper's 35: on EfficientNet-Lite0 the ranks of the map hardly differ. If stopped early, the
    means cover the copies processed so far.

    `forward` is as in `explain`. `through` raises an error, because it restricts gradients and this method only uses
    scores.

    Returns  (n, h, w) at the layer's own size, >= 0, a mean of activations (logits × activation for "increase")
    Errors   LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel
    Source   Wang et al. 2020, section 3 (smooth on feature map), arXiv:2006.14255

    Example
        >>> ss_cam(model, images, 281, layer="layer4", channels=8, samples=2).shape
        torch.Size([1, 7, 7])
    """
    with open_run(model, images, target, many=True, cost=cost) as run:
        masked = _MaskedScores(run, cost.get("layer"), channels, weights)
        generators = PerImageGenerators(len(images), seed, run.images.device)

        def vary(masks: Tensor, index: int, repeat: Tensor) -> Tensor:
            return masks + sigma * generators.normal_noise(index, len(masks), *masks.shape[1:]).to(masks)

        return masked.map(samples, vary)


@_softmax_cam(title="IS-CAM", paper="Naidu et al. 2020, arXiv:2010.03023")
def is_cam(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    steps: Annotated[int, Range(1, 1000, help="integration steps per mask; the paper: 10")] = 3,
    channels: Channels = 320,
    weights: Weights = "softmax",
    relu: Relu = True,
    **cost: Unpack[LayerCost],
) -> Tensor:
    """IS-CAM: Score-CAM with the mean score over a path from the blank to the masked image.

        w = softmax_k mean_i y(i / steps × x ∘ m_k),  i = 1 … steps

    All channels start with i = steps, the full mask, and share passes as in `score_cam`. The default is 3 steps instead
    of the paper's 10: on EfficientNet-Lite0 the ranks of the map hardly differ. If stopped early, the means cover the
    steps processed so far.

    `forward` is as in `explain`. `through` raises an error, because it restricts gradients and this method only uses
    scores.

    Returns  (n, h, w) at the layer's own size, >= 0, a mean of activations (logits × activation for "increase")
    Errors   LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel
    Source   Naidu et al. 2020, section 3, arXiv:2010.03023

    Example
        >>> is_cam(model, images, 281, layer="layer4", channels=8, steps=2).shape
        torch.Size([1, 7, 7])
    """
    with open_run(model, images, target, many=True, cost=cost) as run:
        masked = _MaskedScores(run, cost.get("layer"), channels, weights)
        return masked.map(
            steps,
            lambda masks, index, repeat: masks * ((steps - repeat).to(masks) / steps).view(-1, *[1] * (masks.ndim - 1)),
        )


# Softmax weights count as nearly uniform if their range, times their number, is below this.
_UNIFORM = 0.5


class _MaskedScores:
    """Sums of the scores of masked images by channel, and the resulting maps."""

    def __init__(self, run: Run, layer: LayerName | None, channels: int, weights: str) -> None:
        self.run, self.channels, self.weights = run, channels, weights
        self.layout, activations, _ = activation_and_score(run, layer)
        self.a = self.layout.to_maps(at_least_float32(activations))
        self.sums = torch.zeros_like(self.a.flatten(2)[:, :, 0])
        self.counts = torch.zeros_like(self.sums)
        # The channel whose score each channel uses: itself, or the one with the most similar mask.
        self.representative = torch.arange(self.a.shape[1], device=self.a.device).repeat(len(self.a), 1)
        blank = run.scoring.values(torch.zeros_like(run.images), range(len(self.a)))
        self.blank = blank[:, None].to(self.sums)

    def map(self, repeats: int, vary: Vary) -> Tensor:
        """Return the map after `repeats` passes for each channel; constant channels get the blank image's score."""
        planes = self.a.flatten(2)
        varying = [row.nonzero()[:, 0] for row in planes.amax(2) > planes.amin(2)]
        rows = [self._choose_scored(index, channels) for index, channels in enumerate(varying)]
        longest = max(map(len, rows))

        def work(chunk: range) -> None:
            jobs = torch.arange(chunk.start, chunk.stop, device=self.a.device)
            for index, channels in enumerate(rows):
                own = jobs[jobs % longest < len(channels)]
                if len(own):
                    self._add(index, channels[own % longest], own // longest, vary)

        self.run.loop.run(repeats * longest, self.run.loop.rows(), work, lambda: self._map(varying))
        self._note_uniform(varying)
        return self._map(varying)

    def _choose_scored(self, index: int, varying: Tensor) -> Tensor:
        """Choose the channels to score; all others in `varying` use the score of one of these."""
        chosen, representative = group_channels(self.a[index, varying], self.channels)
        self.representative[index, varying] = varying[representative]
        if len(chosen) < len(varying):
            note_finding(
                "shared_looks",
                f"Only {len(chosen)} of {len(varying)} channels were scored separately. Each of the others uses the "
                "score of the channel with the most similar mask.",
                {"channels": len(varying)},
                index,
                scored=len(chosen),
                channels=len(varying),
            )
        return varying[chosen]

    def _add(self, index: int, channels: Tensor, repeat: Tensor, vary: Vary) -> None:
        x = self.run.images[index]
        masks = vary(_masks(place(self.a[index, channels], self.layout.placement), tuple(x.shape[1:])), index, repeat)
        scores = self.run.scoring.values(x * masks[:, None].to(x), [index] * len(channels)).to(self.sums)
        self.sums[index].index_add_(0, channels, scores)
        self.counts[index].index_add_(0, channels, torch.ones_like(scores))

    def _weights(self, varying: list[Tensor]) -> Tensor:
        counts = self.counts.gather(1, self.representative)
        scores = (self.sums.gather(1, self.representative) / counts).where(counts > 0, 0)
        reached = counts > 0
        for index, channels in enumerate(varying):
            constant = torch.ones_like(reached[index]).index_fill(0, channels, False)
            scores[index] = scores[index].where(~constant, self.blank[index])
            reached[index] |= constant
        if self.weights == "increase":
            return (scores - self.blank) * reached
        return scores.masked_fill(~reached, -torch.inf).softmax(1)

    def _map(self, varying: list[Tensor]) -> Tensor:
        return _weighted_sum(self._weights(varying), self.a)

    def _note_uniform(self, varying: list[Tensor]) -> None:
        if self.weights != "softmax":
            return
        shares = self._weights(varying) * self.a.shape[1]
        low, high = shares.amin(1), shares.amax(1)
        note_images(
            "uniform_weights",
            to_float64(high) - to_float64(low) < _UNIFORM,
            f"The weights of the {self.a.shape[1]} channels are nearly uniform ({{low:.2f}} to {{high:.2f}} times the "
            "mean weight), so the map is nearly the mean activation for any class.",
            {"weights": "increase"},
            low=low,
            high=high,
        )


def _masks(planes: Tensor, size: tuple[int, ...]) -> Tensor:
    """Upsample planes (b, h, w) to (b, H, W), then scale them to [0, 1]."""
    upsampled = resize(planes, size)
    cells = tuple(range(1, upsampled.ndim))
    low, high = upsampled.amin(cells, keepdim=True), upsampled.amax(cells, keepdim=True)
    return ((upsampled - low) / (high - low)).where(high > low, 0)


def channel_drops(
    run: Run, layout: LayerLayout, activations: Tensor, scores: Tensor, shown: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return the drop of the score when channel k is set to zero, for every image and channel, (n, k).

    The layers before run once per chunk.
    """
    axis = layout.channel_axis
    count = activations.shape[axis]
    drops = at_least_float32(scores.new_zeros(len(scores), count))
    loop, branches = run.loop, suffix_batches(run, layout)

    def ablated(channels: Tensor, images: Sequence[int]) -> Tensor:
        def ablate(copies: Tensor) -> Tensor:
            rows = torch.arange(len(channels), device=copies.device)
            copies.movedim(axis, 1)[rows, channels.to(copies.device)] = 0
            return copies

        return branches[images[0]].values(ablate, len(channels))

    def work(chunk: range) -> None:
        channels = torch.arange(chunk.start, chunk.stop)
        for index in range(len(branches)):
            own = loop.run_in_halves(ablated, channels, [index] * len(channels))
            drops[index, chunk.start : chunk.stop] = scores[index] - own

    copy = activations[0].numel() * activations.element_size()
    rows = loop.suffix_rows(largest=max_tensor_count(count, copy, activations.device))
    loop.run(count, rows, work, lambda: shown(drops))
    return drops
