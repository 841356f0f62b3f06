"""Networks that end in global average pooling and one linear layer, recognised by what they compute.

Where the score is a linear function of the pooled activations, and only there, its gradient at the layer is the same in
every cell and stays the same whatever the activations are. Both are measured: the rest of the network sees each
picture's activations and, in the same forward pass, quite other ones.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from .errors import ExplainerError, UnsupportedModel
from .hooks import edit_outputs
from .layers import Place, channel_axis, list_layers
from .passes import Cut, Run, maps_of, opened
from .recording import note_gradient, note_layer
from .sites import LayerName
from .targets import TargetLike


def linear_activations(
    model: nn.Module, images: Tensor, layer: LayerName | None, target: TargetLike
) -> tuple[Tensor, Tensor]:
    """Activations A of the layer before global pooling and d score / dA, both [N, K, h, w].

    `layer` None is the default layer, or the last one with a grid where the default is not the right one.

    Errors   UnsupportedModel where the score is no linear function of the pooled activations; those of the layer
    """
    reason = ""
    with opened(model, images, target) as run:
        for place in _candidates(run, layer):
            a, g, elsewhere = (maps_of(place, each) for each in _gradients(run, place))
            why = _why_not_linear(g, elsewhere, images.dtype)
            if not why:
                note_gradient(g)
                note_layer(place.name)
                return a, g
            reason = reason or f"At layer {place.name!r} {why}"
    raise UnsupportedModel(
        f"{reason}, so there are no class weights for CAM to use. Name the layer right before global average pooling "
        "and the linear head where there is one, or use grad_cam or hires_cam, which need none."
    )


def _candidates(run: Run, layer: LayerName | None) -> Iterator[Place]:
    first = run.place(layer)
    yield first
    if layer is None:
        last = list_layers(run.model, run.images, spatial=True)[-1].name
        if last != first.name:
            yield run.place(last)


def _gradients(run: Run, place: Place) -> tuple[Tensor, Tensor, Tensor]:
    """A, the gradient at A, and the gradient at other activations, in the layer's layout."""
    try:
        return _side_by_side(run, place)
    except (RuntimeError, ValueError, IndexError) as refused:
        if isinstance(refused, ExplainerError) or "out of memory" in str(refused):
            raise
    # The rest of the network takes no other batch size than the images' own.
    a, g = run.at([place], run.images)[place.name]
    rows, instead = range(len(run.images)), {place.name: lambda output: _other(output, place)}
    return a, g, run.at([place], run.images, rows, instead=instead)[place.name][1]


def _other(activations: Tensor, place: Place) -> Tensor:
    """Other activations: channels exchanged, so that a normalisation has another input; turned round, so that other
    rectifiers are open; and as large as 10, because near 0 every smooth function is linear.
    """
    exchanged = activations.roll(1, channel_axis(place.layout))
    largest = exchanged.abs().max()
    return -exchanged * (10 / largest if largest > 0 else 1)


def _side_by_side(run: Run, place: Place) -> tuple[Tensor, Tensor, Tensor]:
    count = len(run.images)
    cut = Cut(place, lambda output: torch.cat([output, _other(output, place)]))
    with torch.no_grad(), edit_outputs(run.network, {place.name: cut.keep}):
        scores = run.forward(run.images.clone())
        both = cut.only()
        if not isinstance(scores, Tensor) or len(scores) != 2 * count:
            raise RuntimeError("the score does not follow the layer's batch")
        total = run.score(scores[:count]).sum() + run.score(scores[count:], range(count)).sum()
        (gradient,) = run.pull(total, [both])
    return both.detach()[:count], gradient[:count], gradient[count:]


def _why_not_linear(g: Tensor, elsewhere: Tensor, dtype: torch.dtype) -> str:
    if not g.any():
        return "the score has no gradient at all"
    size = g.abs().amax(dim=(1, 2, 3), keepdim=True) * min(32 * torch.finfo(dtype).eps, 0.05)
    if bool(((g - g.mean(dim=(2, 3), keepdim=True)).abs() > size).any()):
        return "the score's gradient differs from cell to cell, so no plain global average pooling follows it"
    if bool(((g - elsewhere).abs() > size).any()):
        return "the score's gradient depends on the activations, so more than one linear layer follows the pooling"
    return ""
