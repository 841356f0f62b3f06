"""Networks that end in global average pooling and one linear layer, recognised by what they compute.

Where the score is a linear function of the pooled activations, and only there, its gradient at the layer is the same at
every position and for all activations. Both are measured: the rest of the network gets each image's activations and, in
the same forward pass, quite different ones.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from explainers.errors import UnsupportedModel
from explainers.findings import note_gradient, note_layer
from explainers.hooks.calls import replaced_outputs
from explainers.layers.layout import LayerLayout
from explainers.layers.lookup import list_layers
from explainers.options import LayerName
from explainers.passes.at_layer import or_with_rows_repeated
from explainers.passes.leaf import LayerLeaf
from explainers.passes.run import Run, maps_of, open_run
from explainers.targets import TargetLike


def linear_activations(
    model: nn.Module, images: Tensor, layer: LayerName | None, target: TargetLike
) -> tuple[Tensor, Tensor]:
    """Activations A of the layer before global pooling and d score / dA, both [N, K, h, w].

    `layer` None is the default layer, or the last one with a grid where the default is not the right one.

    Errors   UnsupportedModel where the score is not a linear function of the pooled activations; those of the layer
    """
    reason = ""
    with open_run(model, images, target) as run:
        for layout in _candidates(run, layer):
            a, g, elsewhere = (maps_of(layout, tensor) for tensor in _gradients(run, layout))
            why = _why_not_linear(g, elsewhere, images.dtype)
            if not why:
                note_gradient(g)
                note_layer(layout.name)
                return a, g
            reason = reason or f"At layer {layout.name!r} {why}"
    raise UnsupportedModel(
        f"{reason}, so there are no class weights for CAM to use. Name the layer right before global average pooling "
        "and the linear head where there is one, or use grad_cam or hires_cam, which need none."
    )


def _candidates(run: Run, layer: LayerName | None) -> Iterator[LayerLayout]:
    first = run.layer_layout(layer)
    yield first
    if layer is None:
        last = list_layers(run.model, run.images, spatial=True)[-1].name
        if last != first.name:
            yield run.layer_layout(last)


def _gradients(run: Run, layout: LayerLayout) -> tuple[Tensor, Tensor, Tensor]:
    """A, the gradient at A, and the gradient at other activations, in the layer's layout."""

    def in_two_passes() -> tuple[Tensor, Tensor, Tensor]:
        a, g = run.at([layout], run.images)[layout.name]
        rows, instead = range(len(run.images)), {layout.name: lambda output: _other(output, layout)}
        return a, g, run.at([layout], run.images, rows, instead=instead)[layout.name][1]

    return or_with_rows_repeated(lambda: _side_by_side(run, layout), in_two_passes)


def _other(activations: Tensor, layout: LayerLayout) -> Tensor:
    """Other activations: channels permuted, so that a normalisation has another input; negated, so that other ReLUs are
    active; and scaled to 10, because near 0 every smooth function is linear.
    """
    exchanged = activations.roll(1, layout.channel_axis)
    largest = exchanged.abs().max()
    return -exchanged * (10 / largest if largest > 0 else 1)


def _side_by_side(run: Run, layout: LayerLayout) -> tuple[Tensor, Tensor, Tensor]:
    count = len(run.images)
    leaf = LayerLeaf(layout, lambda output: torch.cat([output, _other(output, layout)]))
    with torch.no_grad(), replaced_outputs(run.network, [(layout, leaf.hook)]):
        scores = run.forward(run.images.clone())
        both = leaf.single_output()
        if not isinstance(scores, Tensor) or len(scores) != 2 * count:
            raise RuntimeError("the score does not follow the layer's batch")
        total = run.score(scores[:count]).sum() + run.score(scores[count:], range(count)).sum()
        (gradient,) = run.vjp(total, [both])
    return both.detach()[:count], gradient[:count], gradient[count:]


def _why_not_linear(g: Tensor, elsewhere: Tensor, dtype: torch.dtype) -> str:
    if not g.any():
        return "the score has no gradient at all"
    size = g.abs().amax(dim=(1, 2, 3), keepdim=True) * min(32 * torch.finfo(dtype).eps, 0.05)
    if bool(((g - g.mean(dim=(2, 3), keepdim=True)).abs() > size).any()):
        return "the score's gradient differs between positions, so what follows is not plain global average pooling"
    if bool(((g - elsewhere).abs() > size).any()):
        return "the score's gradient depends on the activations, so more than one linear layer follows the pooling"
    return ""
