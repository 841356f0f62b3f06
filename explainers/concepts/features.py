"""The features of a layer on many images."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from explainers.call.run import Run
from explainers.call.scores import maps_of
from explainers.layers.layout import LayerLayout


def collect(
    run: Run, layout: LayerLayout, images: Tensor, pick: Callable[[Tensor], Tensor] = lambda maps: maps
) -> Tensor:
    """Return the layer's features [N, K, h, w] of images, or what `pick` returns for each batch of them.

    The images may be others than those of the run. They pass in batches, with progress, stop and budget.
    """
    parts: list[Tensor] = []

    def work(rows: range) -> None:
        parts.append(pick(maps_of(layout, run.forward.outputs(layout, images[rows.start : rows.stop].detach()))))

    run.loop.run(len(images), run.loop.rows(), work, lambda: images.new_zeros(0))
    return torch.cat(parts)
