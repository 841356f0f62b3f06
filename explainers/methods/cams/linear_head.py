"""Detection of networks that end in global average pooling and one linear layer, by their computed gradients.

The score is a linear function of the pooled activations if and only if its gradient at the layer is the same at every
position and for all activations. Both conditions are tested: the rest of the network runs on the activations of each
image and, in the same forward pass, on very different activations.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from explainers.call.at_layer import retry_with_repeated_batch
from explainers.call.layers import list_layers
from explainers.call.run import Run, open_run
from explainers.call.scores import LayerLeaf, cell_axes, maps_of
from explainers.errors import UnsupportedModel
from explainers.findings import note_gradient
from explainers.hooks.calls import replaced_outputs
from explainers.layers.layout import LayerLayout
from explainers.options import LayerName
from explainers.targets import TargetLike


def linear_activations(
    model: nn.Module, images: Tensor, layer: LayerName | None, target: TargetLike
) -> tuple[Tensor, Tensor]:
    """Return the activations A of the layer before global pooling and d score / dA, both [N, K, h, w].

    If `layer` is None, the default layer is used, or the last layer with a grid if the default one does not qualify.

    Errors   UnsupportedModel if the score is not a linear function of the pooled activations; errors of the layer
    """
    reason = ""
    with open_run(model, images, target, several=True) as run:
        for layout in _candidates(run, layer):
            a, g, other_gradient = (maps_of(layout, tensor) for tensor in _gradients(run, layout))
            why = _why_not_linear(g, other_gradient, images.dtype)
            if not why:
                note_gradient(g)
                run.use_layer(layout)
                return a, g
            reason = reason or f"At layer {layout.name!r} {why}"
    raise UnsupportedModel(
        f"{reason}, so CAM cannot read class weights. Give the layer right before global average pooling and the "
        "linear head if the network has one, or use grad_cam or hires_cam, which do not need it."
    )


def _candidates(run: Run, layer: LayerName | None) -> Iterator[LayerLayout]:
    first = run.layer_layout(layer)
    yield first
    if layer is None:
        last = list_layers(run.view.given, run.images, spatial=True)[-1].name
        if last != first.name:
            yield run.layer_layout(last)


def _gradients(run: Run, layout: LayerLayout) -> tuple[Tensor, Tensor, Tensor]:
    """Return A, the gradient at A, and the gradient at other activations, in the layer's layout."""

    def in_two_passes() -> tuple[Tensor, Tensor, Tensor]:
        a, g = run.backward.at([layout], run.images)[layout.name]
        rows, instead = range(len(run.images)), {layout.name: lambda output: _different_activations(output, layout)}
        return a, g, run.backward.at([layout], run.images, rows, replacements=instead)[layout.name][1]

    if run.view.is_row_by_row:
        return in_two_passes()
    return retry_with_repeated_batch(lambda: _gradients_in_one_pass(run, layout), in_two_passes)


def _different_activations(activations: Tensor, layout: LayerLayout) -> Tensor:
    """Return very different activations, to test whether the gradient depends on them.

    Channels are permuted to change the input of normalization layers, negated to activate other ReLUs, and scaled to
    10, because every smooth function is nearly linear around 0.
    """
    exchanged = activations.roll(1, layout.channel_axis)
    largest = exchanged.abs().max()
    return -exchanged * (10 / largest if largest > 0 else 1)


def _gradients_in_one_pass(run: Run, layout: LayerLayout) -> tuple[Tensor, Tensor, Tensor]:
    count = len(run.images)
    leaf = LayerLeaf(layout, lambda output: torch.cat([output, _different_activations(output, layout)]))
    with torch.no_grad(), replaced_outputs(run.view.network, [(layout, leaf.hook)]):
        scores = run.forward(run.images.clone())
        both = leaf.single_output(count)
        if not isinstance(scores, Tensor) or len(scores) != 2 * count:
            raise RuntimeError("the batch size of the score does not match that of the layer")
        total = run.scoring.score(scores[:count]).sum() + run.scoring.score(scores[count:], range(count)).sum()
        (gradient,) = run.backward.vjp(total, [both])
    return both.detach()[:count], gradient[:count], gradient[count:]


def _why_not_linear(g: Tensor, other_gradient: Tensor, dtype: torch.dtype) -> str:
    if not g.any():
        return "the score has no gradient"
    size = g.abs().amax(dim=(1, *cell_axes(g)), keepdim=True) * min(32 * torch.finfo(dtype).eps, 0.05)
    if bool(((g - g.mean(dim=cell_axes(g), keepdim=True)).abs() > size).any()):
        return "the score's gradient differs between positions, so it is not followed by plain global average pooling"
    if bool(((g - other_gradient).abs() > size).any()):
        return (
            "the score's gradient depends on the activations, so the pooling is not followed by a single linear layer"
        )
    return ""
