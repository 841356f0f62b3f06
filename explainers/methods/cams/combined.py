"""Combinations of methods: products of two methods or of several layers, and means over windows of the image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from explainers.call.current import check_images, one_call
from explainers.call.forward_wrapper import Forward, wrap_forward
from explainers.call.layers import default_layer, stages
from explainers.call.run import Run, activations_and_gradients_of, layer_with_patch_gradients, open_run
from explainers.call.score_kind import score_kind
from explainers.call.scores import at_least_float32, maps_of
from explainers.derived_targets import LogProbability, Probability
from explainers.errors import BadOption, shorten
from explainers.findings import note_layer
from explainers.hooks.locate import find_hook_point, unwrap, why_no_hooks
from explainers.keywords import Call, LayerCall, LayerSteadyCost
from explainers.layers.layout import LayerLayout
from explainers.maps.resize import fuse, resize
from explainers.methods.backward.modified_backprop import guided_backprop
from explainers.methods.cams.gradient_cams import FORMULAS
from explainers.options import Choice, LayerName, Range, check_keywords
from explainers.probabilities import log_probability_of
from explainers.registry import MethodLike, find, method, rectifies
from explainers.rules.rectifiers.relu_rules import why_not
from explainers.targets import TargetLike, as_target, scores_of


@torch.inference_mode(False)
def sweep(
    method: MethodLike,
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    layers: LayerName | Sequence[LayerName] | None = None,
    forward: Forward | None = None,
    **options: Any,
) -> dict[str, Tensor]:
    """Compute a method's maps at several layers, for any method with a `layer`; by default at every stage.

    The methods of `FORMULAS` (Grad-CAM, Grad-CAM++, HiResCAM, LayerCAM, XGrad-CAM and element-wise Grad-CAM) need one
    forward and one backward pass for all layers together; all other methods run separately for each layer. `fuse`
    combines the maps. `forward` is as in `explain`.

    Returns  the method's result for each layer, by the layer's name, in the order given
    Errors   BadOption for a method without a layer; errors of the method
    Source   as for the method

    Example
        >>> maps = sweep("layer_cam", model, images, 281, layers=["layer3", "layer4"])
        >>> {name: tuple(heat.shape) for name, heat in maps.items()}
        {'layer3': (1, 14, 14), 'layer4': (1, 7, 7)}
    """
    chosen = find(method)
    if not chosen.takes_layer:
        raise BadOption(f"{chosen.name} does not use a layer, so its map is the same for all layers. Call it once.")
    model = wrap_forward(model, forward, images)
    check_images(model, images)
    if target is not None:
        target = as_target(target, len(images))
    given = None if layers is None else _listed(layers)
    with one_call(model):
        names = stages(model, images) if given is None else given
        if chosen.name not in FORMULAS or set(options) - {"relu"}:
            by_name = {find_hook_point(unwrap(model), layer).name: layer for layer in names}
            return {name: chosen(model, images, target, layer=layer, **options) for name, layer in by_name.items()}
        rectify = rectifies(chosen, options)
        both = activations_and_gradients_of(model, images, names, target)
        formula = FORMULAS[chosen.name]
        maps = {name: formula(at.activations, at.gradients) for name, at in both.items()}
        return {name: raw.relu() if rectify else raw for name, raw in maps.items()}


def _listed(layers: Any) -> list[LayerName]:
    """Return the layers as a list; a single one does not need a list.

    Errors   BadOption
    """
    if isinstance(layers, (str, nn.Module)):
        return [layers]
    if not isinstance(layers, (list, tuple)) or not layers:
        raise BadOption(
            f"Invalid layers={shorten(layers)}. Give a list of one or more names, such as ['layer3', 'layer4']."
        )
    return list(layers)


@check_keywords
def grad_cam_sweep(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    layers: LayerName | Sequence[LayerName] | None = None,
    relu: bool = True,
    forward: Forward | None = None,
) -> dict[str, Tensor]:
    """Compute Grad-CAM at several layers in one forward and one backward pass; by default at every stage.

    `forward` is as in `explain`.

    Returns  a map (n, h, w) for each layer, by its name, in the order given; the same values as from `grad_cam`
    Errors   LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel
    Source   Selvaraju et al. 2017, eqs. 1 and 2, arXiv:1610.02391

    Example
        >>> list(grad_cam_sweep(model, images, 281))
        ['relu', 'layer1', 'layer2', 'layer3', 'layer4']
    """
    return sweep("grad_cam", model, images, target, layers=layers, relu=relu, forward=forward)


Inner = Annotated[str, Choice(*FORMULAS, help="method whose maps are combined")]


@method(
    family="backward rule",
    returns="pixels",
    unit="squared logit per unit of input",
    title="Guided Grad-CAM",
    reduce="abs_max",
    needs=why_not,
    paper="Selvaraju et al. 2017, arXiv:1610.02391",
)
def guided_grad_cam(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    interpolate: Annotated[str, Choice("bilinear", "nearest", help="interpolation of the Grad-CAM")] = "bilinear",
    **call: Unpack[LayerCall],
) -> Tensor:
    """Guided Grad-CAM: guided backpropagation times the upsampled Grad-CAM (with its ReLU).

    `forward` and `through` are as in `explain`.

    Returns  (n, c, h, w), signed; zero wherever the Grad-CAM is zero
    Errors   as `grad_cam` and `guided_backprop`
    Source   Selvaraju et al. 2017, section 3.2, arXiv:1610.02391

    Example
        >>> guided_grad_cam(model, images, 281, layer="layer4").shape
        torch.Size([1, 3, 224, 224])
    """
    pixels = guided_backprop(model, images, target)
    (at,) = activations_and_gradients_of(model, images, [call.get("layer")], target).values()
    cam = FORMULAS["grad_cam"](at.activations, at.gradients).relu()
    return pixels * resize(cam, tuple(images.shape[2:]), interpolate, placement=at.layout.placement)[:, None]


@method(
    family="cam",
    returns="heat",
    title="RefineCAM",
    signed=False,
    needs=why_no_hooks,
    scale_free="each layer's map is divided by its own maximum",
    paper="Domeniconi et al. 2026, arXiv:2605.14641",
)
def refine_cam(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    layers: Sequence[LayerName] | None = None,
    inner: Inner = "element_wise_grad_cam",
    **call: Unpack[Call],
) -> Tensor:
    """RefineCAM: the product of several layers' maps, with detail from early and class evidence from late layers.

        L = Π_l upsample(ReLU(L_l) / max ReLU(L_l))

    It needs one forward and one backward pass for all layers, by default the last three stages. The inner method must
    be valid at early layers, where a single weight per channel is not: on EfficientNet-Lite0, with Grad-CAM++, Grad-CAM
    or XGrad-CAM it was no better than the controls; with element-wise Grad-CAM it was better than any single layer.

    `forward` and `through` are as in `explain`.

    Returns  (n, h, w) at the input's resolution, in [0, 1]
    Errors   LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel
    Source   Domeniconi et al. 2026, arXiv:2605.14641

    Example
        >>> refine_cam(model, images, 281).shape
        torch.Size([1, 224, 224])
    """
    names = (stages(model, images)[-3:] or [default_layer(model, images)]) if layers is None else _listed(layers)
    found = activations_and_gradients_of(model, images, names, target).values()
    maps = [FORMULAS[inner](at.activations, at.gradients) for at in found]
    placements = [at.layout.placement for at in found]
    return fuse(maps, "product", size=tuple(images.shape[2:]), placements=placements)


@method(
    family="cam", returns="heat", title="SESS", signed=False, paper="Tursun et al. 2022, arXiv:2207.01769", videos=False
)
def sess(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    inner: Inner = "grad_cam",
    scales: Annotated[int, Range(1, 24, help="number of scales; the first is the image's own size")] = 6,
    growth: Annotated[float, Range(0.05, 2, 0.05, help="scale increment, as a fraction of the image's size")] = 0.3,
    **cost: Unpack[LayerSteadyCost],
) -> Tensor:
    """SESS: the mean of CAM maps over sliding windows at growing scales, weighted by class probability.

    Windows have the size of the original image and do not overlap, except for the last ones, which are shifted back
    inside. The map of each window is rectified, multiplied by the class probability in that window relative to the
    highest one, and pasted at its position. Each pixel gets the mean over the windows whose map is positive there.
    Without class scores all windows have weight 1. The paper uses 12 scales, each 2/7 larger. If stopped early, the
    mean covers the windows processed so far, small scales first.

    `forward` and `through` are as in `explain`.

    Returns  (n, h, w) at the input's resolution, >= 0, in logits
    Errors   LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel, BadOption
    Source   Tursun et al. 2022, section 3, arXiv:2207.01769

    Example
        >>> sess(model, images, 281, layer="layer4", scales=2).shape
        torch.Size([1, 224, 224])
    """
    height, width = images.shape[-2:]
    windows = [
        _Window((tall, wide), top, left)
        for step in range(scales)
        for tall, wide in [(round(height * (1 + step * growth)), round(width * (1 + step * growth)))]
        for top in _window_starts(tall, height)
        for left in _window_starts(wide, width)
    ]
    with open_run(model, images, target, many=True, cost=cost) as run:
        run.scoring.score_inputs()
        mean = _WindowMean(run, layer_with_patch_gradients(run, cost.get("layer")), inner)

        def work(chunk: range) -> None:
            for index in range(len(images)):
                mean.add(index, windows[chunk.start : chunk.stop])

        run.loop.run(len(windows), run.loop.rows(passes=2), work, mean.map)
        note_layer(mean.layout.name)
        return mean.map()


class _Window(NamedTuple):
    """The top left corner of a window in an image resized to `within`."""

    within: tuple[int, int]
    top: int
    left: int


class _WindowMean:
    """The mean of the window maps at each pixel, over the windows whose map is positive there."""

    def __init__(self, run: Run, layout: LayerLayout, inner: str) -> None:
        self.run, self.layout, self.inner, self.kind = run, layout, inner, "logit"
        self.total = at_least_float32(torch.zeros_like(run.images[:, 0]))
        self.counts = torch.zeros_like(self.total)
        self.highest = torch.full_like(self.total[:, 0, 0], -torch.inf)
        scores = run.scoring.clean_output
        if isinstance(scores, Tensor) and scores.ndim == 2:
            self.kind = score_kind(run.view, run.images, scores).score

    def add(self, index: int, windows: Sequence[_Window]) -> None:
        height, width = self.total.shape[1:]
        x = self.run.images[index : index + 1]
        resized = {w.within: _resize_images(x, w.within) for w in windows}
        batch = torch.cat([resized[w.within][:, :, w.top : w.top + height, w.left : w.left + width] for w in windows])
        rows = [index] * len(windows)
        known = self.run.loop.run_in_halves(self._log_probabilities, batch, rows)
        shares = self._relative_probabilities(index, known)
        raw, g = self.run.backward.at([self.layout], batch, rows)[self.layout.name]
        maps = FORMULAS[self.inner](maps_of(self.layout, raw), maps_of(self.layout, g)).relu()
        large = resize(maps, (height, width), placement=self.layout.placement)
        for heat, share, w in zip(large, shares, windows, strict=True):
            canvas = heat.new_zeros(1, *w.within)
            canvas[0, w.top : w.top + height, w.left : w.left + width] = heat
            back = resize(canvas, (height, width))[0]
            self.total[index] += share * back
            self.counts[index] += ~(back <= 0)  # counts NaN, so that it propagates

    def _relative_probabilities(self, index: int, log_probabilities: Tensor) -> Tensor:
        """Return probabilities relative to the highest so far, and rescale the running sum to the same reference."""
        finite = log_probabilities.clamp(min=torch.finfo(log_probabilities.dtype).min)  # log 0
        highest = torch.maximum(self.highest[index], finite.max().to(self.highest))
        self.total[index] *= (self.highest[index] - highest).exp()
        self.highest[index] = highest
        return (finite.to(highest) - highest).exp()

    def _log_probabilities(self, batch: Tensor, rows: Sequence[int]) -> Tensor:
        with torch.no_grad(), self.run.scoring.autocast():
            output = self.run.forward(batch.clone())  # the network may modify its input, which is needed again
            scores = self.run.scoring.plain(self.run.scoring.score(output, rows))
        if isinstance(self.run.scoring.target, Probability):
            return scores.log()
        if isinstance(self.run.scoring.target, LogProbability):
            return scores
        if not isinstance(output, Tensor) or output.ndim != 2 or self.kind == "logit":
            return torch.zeros_like(scores)
        return log_probability_of(scores, at_least_float32(scores_of(output)), self.kind)

    def map(self) -> Tensor:
        return (self.total / self.counts).where(self.counts > 0, 0)


def _resize_images(x: Tensor, size: tuple[int, int]) -> Tensor:
    return torch.nn.functional.interpolate(x, size, mode="bilinear", align_corners=False)


def _window_starts(length: int, window: int) -> list[int]:
    return [*range(0, length - window, window), length - window]
