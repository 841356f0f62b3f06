"""FullGrad: the score decomposed into contributions of the input and of every bias.

In a network of convolutions, linear layers, batch norms, ReLUs and pools the score is exactly

    y(x) = Σ x · ∂y/∂x  +  Σ over all layers of b · ∂y/∂(output)

with b the bias of a layer; for a batch norm it is β - γ mean / standard deviation. Gradients are computed at the layer
outputs of every call, so it does not matter how the activations between layers are implemented.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from explainers.call.current import check_images
from explainers.call.forward_wrapper import Forward, wrap_forward
from explainers.call.layers import list_layers
from explainers.call.run import Run, open_run
from explainers.call.scores import at_least_float32
from explainers.dtypes import to_float64
from explainers.errors import UnsupportedModel
from explainers.findings import note_images, note_promised_sum
from explainers.hooks.capture import capture
from explainers.hooks.locate import find_hook_point, why_no_hooks
from explainers.keywords import Call
from explainers.layers.layer import Layer, layout_of
from explainers.layers.layout import LayerLayout, channel_axis
from explainers.maps.resize import resize
from explainers.options import check_keywords
from explainers.placement import Placement, place_axis
from explainers.registry import method
from explainers.targets import TargetLike


@dataclass(frozen=True)
class FullGradients:
    """The decomposition of each image's score.

    `input` [N, C, H, W] is input × gradient; `biases` contains bias × gradient [N, K, h, w] of each layer with a grid,
    by name in forward order; `elsewhere` [N] is the sum over the biases without a position, including that of the head;
    `scores` [N] are the scores that all parts should sum to.
    """

    input: Tensor
    biases: dict[str, Tensor]
    elsewhere: Tensor
    scores: Tensor

    def total(self) -> Tensor:
        """Return the sum of all parts, [N], which equals the score if the identity covers all layers of the network."""
        placed = [part.flatten(1).sum(1) for part in (self.input, *self.biases.values())]
        return torch.stack([*placed, self.elsewhere]).sum(0)


@method(
    family="gradient",
    returns="heat",
    title="FullGrad",
    signed=False,
    needs=why_no_hooks,
    paper="Srinivas & Fleuret 2019, arXiv:1905.00780",
)
def full_grad(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    magnitude: Annotated[bool, "Sum magnitudes, as in the paper; otherwise signed values that sum to the score"] = True,
    **call: Unpack[Call],
) -> Tensor:
    """FullGrad: input × gradient and every bias × gradient, upsampled and summed.

        Σ_c |x ∘ ∂y/∂x| + Σ_layers upsample(Σ_k |b ∘ ∂y/∂(output)|)

    With magnitude=False, values keep their signs, and the value of each position is divided over the pixels it covers,
    so that the map sums to the score minus the biases without a position (`full_gradients` returns all parts). Unlike
    in pytorch-grad-cam, layers are not rescaled to a common range. A finding reports how much of the score is missing.

    `forward` and `through` are as in `explain`.

    Returns  (n, h, w) at the input's resolution, in logits; >= 0 unless magnitude=False
    Errors   UnsupportedModel, BadTarget
    Source   Srinivas & Fleuret 2019, sections 3 and 4 (without the rescaling), arXiv:1905.00780

    Example
        >>> full_grad(model, images, 281).shape
        torch.Size([1, 224, 224])
    """
    gradients, layouts = _decompose(model, images, target)
    _note_missing(gradients, images.dtype)
    size = tuple(images.shape[2:])
    parts = [(part, layouts[name]) for name, part in gradients.biases.items()]
    if magnitude:
        maps = [resize(part.abs().sum(1), size, placement=layout.placement) for part, layout in parts]
        return torch.stack([gradients.input.abs().sum(1), *maps]).sum(0)
    note_promised_sum(gradients.scores - gradients.elsewhere)
    maps = [_spread(part.sum(1), size, layout.placement) for part, layout in parts]
    return torch.stack([gradients.input.sum(1), *maps]).sum(0)


@check_keywords
@torch.inference_mode(False)
def full_gradients(
    model: nn.Module, images: Tensor, target: TargetLike = None, *, forward: Forward | None = None
) -> FullGradients:
    """Compute FullGrad's parts: contributions of the input, of each layer's biases and of biases without a position.

    `forward` is as in `explain`.

    Returns  a `FullGradients`, signed and unscaled, in logits
    Errors   UnsupportedModel, BadTarget
    Source   Srinivas & Fleuret 2019, proposition 1, arXiv:1905.00780

    Example
        >>> parts = full_gradients(model, images, 281)
        >>> torch.allclose(parts.total(), parts.scores, atol=1e-4)
        True
    """
    model = wrap_forward(model, forward, images)
    check_images(model, images)
    return _decompose(model, images, target)[0]


def _decompose(model: nn.Module, images: Tensor, target: TargetLike) -> tuple[FullGradients, dict[str, LayerLayout]]:
    """Return the parts, and the layout of each layer with a grid."""
    with open_run(model, images, target) as run:
        gradients = run.by_image(_full_gradients)
        layers = {layer.name: layer for layer in list_layers(run.view.given, run.images)}
        layouts = {name: layout_of(layers[name], find_hook_point(run.view.network, name)) for name in gradients.biases}
        return gradients, layouts


def _full_gradients(run: Run) -> FullGradients:
    layers = {layer.name: layer for layer in list_layers(run.view.given, run.images)}
    modules = dict(run.view.network.named_modules())
    bias_of = {name: bias for name, module in modules.items() if (bias := _affine_bias(module)) is not None}
    with capture(run.view.network, list(bias_of), gradients=True) as captured:
        scores, gradient = run.backward.scores_and_gradient(run.images)
    biases, elsewhere = {}, torch.zeros_like(scores)
    for name, g in captured.gradients.items():
        layer, path = layers.get(name), name.partition("#")[0]
        part = _bias_times_gradient(bias_of[path], g, _channel_axis(modules[path], name, bias_of[path], g, layer))
        if layer is None or layer.grid is None:
            elsewhere += _by_image(name, part, len(scores)).flatten(1).sum(1)
        else:
            biases[name] = layout_of(layer, find_hook_point(run.view.network, name)).to_maps(part)
    order = {name: i for i, name in enumerate(layers)}
    biases = dict(sorted(biases.items(), key=lambda item: order.get(item[0], 0)))
    return FullGradients(gradient * at_least_float32(run.images), biases, elsewhere, scores)


def _by_image(name: str, part: Tensor, count: int) -> Tensor:
    """Return a part with one row for each image, also of a layer that runs on windows or frames of a single image.

    Errors   UnsupportedModel if it is unknown to which image a row belongs
    """
    if len(part) != count > 1:
        raise UnsupportedModel(
            f"Layer {name!r} has {len(part)} rows for {count} images, and it is unknown which belong to which image. "
            "Explain one image at a time."
        )
    return part if len(part) == count else part.flatten()[None]


def _affine_bias(module: nn.Module) -> Tensor | None:
    """Return the constant term of the module's affine map, one value per channel, or None if there is none."""
    mean, variance = getattr(module, "running_mean", None), getattr(module, "running_var", None)
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and mean is not None and variance is not None:
        weight = 1 if module.weight is None else to_float64(module.weight)
        scale = (to_float64(variance) + module.eps).rsqrt() * weight
        return (0 if module.bias is None else to_float64(module.bias)) - to_float64(mean) * scale
    kinds = (nn.modules.conv._ConvNd, nn.Linear, nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._BatchNorm)
    bias = getattr(module, "bias", None)
    return to_float64(bias) if isinstance(module, kinds) and isinstance(bias, Tensor) else None


def _channel_axis(module: nn.Module, name: str, bias: Tensor, gradient: Tensor, layer: Layer | None) -> int:
    """Return the first axis of the layer's output along which its bias runs.

    Subclasses of LayerNorm may have the channels first, also as an option, so the axis follows from the layout.

    Errors   UnsupportedModel if it is not known
    """
    if isinstance(module, nn.Linear) or type(module).forward is nn.LayerNorm.forward:
        return gradient.ndim - bias.ndim
    if not isinstance(module, nn.LayerNorm):
        return 1
    if layer is not None and layer.grid is not None and bias.ndim == 1:
        return channel_axis(layer.layout)
    fitting = [axis for axis in range(1, gradient.ndim) if gradient.shape[axis : axis + bias.ndim] == bias.shape]
    if len(fitting) != 1:
        raise UnsupportedModel(
            f"Layer {name!r} ({type(module).__name__}) returns a tensor of shape {tuple(gradient.shape)}, and it is "
            f"unknown along which axis its bias of shape {tuple(bias.shape)} runs. Use another method, such as "
            "integrated_gradients."
        )
    return fitting[0]


def _bias_times_gradient(bias: Tensor, gradient: Tensor, axis: int) -> Tensor:
    """Return bias × gradient in the layer's own layout; the bias runs along the axis, and those after it if it has
    several.
    """
    spread = bias.reshape(*bias.shape, *[1] * (gradient.ndim - axis - bias.ndim))
    wide = to_float64(gradient)
    return at_least_float32(spread.to(wide.device) * wide).to(at_least_float32(gradient))


def _spread(maps: Tensor, size: tuple[int, ...], placement: Placement | None) -> Tensor:
    """Upsample maps (bilinear) with each position's value divided over its pixels, so that the sum is preserved."""
    centers = (None,) * len(size) if placement is None else placement.centers
    sides = zip(maps.shape[1:], size, centers, strict=True)
    *frames, rows, columns = (_pixel_weights(maps, cells, pixels, at) for cells, pixels, at in sides)
    for weights in frames:
        maps = (maps.movedim(1, -1) @ weights).movedim(-1, 1)
    return rows.T @ maps @ columns


def _pixel_weights(like: Tensor, cells: int, pixels: int, centers: tuple[float, ...] | None) -> Tensor:
    """Return the weights of each position in the pixels of a line, (positions, pixels); every row sums to 1."""
    one_hot = torch.eye(cells, dtype=like.dtype, device=like.device)[None]
    placed = one_hot if centers is None else place_axis(one_hot, centers, pixels)
    # Bilinear sampling skips positions if there are more of them than pixels.
    weights = resize(placed, (cells, pixels), "bilinear" if placed.shape[2] <= pixels else "area")[0]
    outside = weights.sum(1) == 0  # in the network's padding: the nearest pixel
    for cell in outside.nonzero().flatten().tolist():
        weights[cell, 0 if centers and centers[cell] < 0 else -1] = 1
    return weights / weights.sum(1, keepdim=True)


def _note_missing(parts: FullGradients, dtype: torch.dtype) -> None:
    eps = torch.finfo(dtype).eps
    sizes = torch.stack([part.abs().flatten(1).sum(1) for part in (parts.input, *parts.biases.values())]).sum(0)
    missing = parts.scores - parts.total()
    allowed = max(1e-3, 8 * eps) * parts.scores.abs() + 8 * eps * sizes
    note_images(
        "incomplete",
        missing.abs() > allowed,
        "{missing:.3g} of the score {score:.3g} is missing from the parts: the network has layers that are not "
        "piecewise linear (smooth activations, attention, layer norm), for which FullGrad is not complete.",
        missing=missing,
        score=parts.scores,
    )
