"""Controls: maps that do not depend on the network, as reference for maps that explain it.

If a map is no better than the edges of the image or than a centered blob, there is no evidence that it explains the
model. The target is validated and then ignored.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import Unpack

from explainers.call.run import open_run
from explainers.call.scores import at_least_float32
from explainers.keywords import Call
from explainers.options import Range, Seed
from explainers.perturbation.rng import PerImageGenerators
from explainers.registry import method
from explainers.targets import TargetLike

_control = partial(
    method,
    family="control",
    returns="heat",
    paper="Adebayo et al. 2018, arXiv:1810.03292",
    signed=False,
    reads_class=False,
    scale_free="A control is independent of the network, so its values do not scale with the score.",
)


@_control(title="Random")
def random_control(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    cells: Annotated[int, Range(1, 4096, help="random cells along the shorter side")] = 7,
    seed: Seed = 0,
    **call: Unpack[Call],
) -> Tensor:
    """Random control: uniform random numbers in square cells, the same for all images of a size.

    7 cells are as coarse as a class-activation map; with one cell per pixel the map is noise.

    `forward` and `through` are as in `explain`.

    Returns  (n, height, width), in [0, 1), no unit
    Errors   BadTarget
    Source   the random baseline of Adebayo et al. 2018, arXiv:1810.03292

    Example
        >>> random_control(model, images).shape
        torch.Size([1, 224, 224])
    """
    with open_run(model, images, target) as run:
        run.scoring.score_inputs()
        return random_map(run.images, cells, seed)


@_control(title="Edges")
def edge_control(model: nn.Module, images: Tensor, target: TargetLike = None, **call: Unpack[Call]) -> Tensor:
    """Edge control: the magnitude of the image's Sobel gradient at each pixel, over all channels.

    `forward` and `through` are as in `explain`.

    Returns  (n, height, width), >= 0, in units of the model's input per pixel; borders are replicated
    Errors   BadTarget
    Source   the edge detector of Adebayo et al. 2018, section 5, arXiv:1810.03292

    Example
        >>> edge_control(model, images).shape
        torch.Size([1, 224, 224])
    """
    with open_run(model, images, target) as run:
        run.scoring.score_inputs()
        return edge_map(run.images)


@_control(title="Center")
def center_control(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    width: Annotated[
        float, Range(0.01, 10, 0.01, help="standard deviation of the blob, as a fraction of each side")
    ] = 0.25,
    **call: Unpack[Call],
) -> Tensor:
    """Center control: a centered Gaussian blob, since most photos show their object in the center.

    `forward` and `through` are as in `explain`.

    Returns  (n, height, width), in (0, 1], no unit
    Errors   BadTarget
    Source   a control in the sense of Adebayo et al. 2018, arXiv:1810.03292

    Example
        >>> center_control(model, images).shape
        torch.Size([1, 224, 224])
    """
    with open_run(model, images, target) as run:
        run.scoring.score_inputs()
        return center_map(run.images, width)


def random_map(images: Tensor, cells: int = 7, seed: int = 0) -> Tensor:
    """Return the random control [N, H, W] of images [N, C, H, W].

    Along the third axis of videos and volumes there are as many cells as along the shorter side, or one per frame.
    """
    frames, side = images.shape[2:-2], min(images.shape[-2:])
    indices = [_cell_indices(count, count, cells) for count in frames]
    indices += [_cell_indices(length, side, cells) for length in images.shape[-2:]]
    generators = PerImageGenerators(len(images), seed)
    shape = [int(index.max()) + 1 for index in indices]
    values = torch.cat([generators.uniform(index, 1, *shape) for index in range(len(images))])
    for axis, index in enumerate(indices, 1):
        values = values.index_select(axis, index)
    return values.to(at_least_float32(images))


def _cell_indices(size: int, side: int, cells: int) -> Tensor:
    return torch.arange(size) * min(cells, side) // side


def edge_map(images: Tensor) -> Tensor:
    """Return the edge control [N, H, W] of images [N, C, H, W]; of videos and volumes, that of each frame."""
    if images.ndim == 5:
        return edge_map(images.transpose(1, 2).flatten(0, 1)).unflatten(0, (len(images), -1))
    x = at_least_float32(images)
    planes = functional.pad(x.flatten(0, 1)[:, None], (1, 1, 1, 1), mode="replicate")
    kernel = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]).to(x) / 8
    slopes = functional.conv2d(planes, torch.stack([kernel, kernel.T])[:, None])
    return torch.linalg.vector_norm(slopes.unflatten(0, x.shape[:2]), dim=(1, 2))


def center_map(images: Tensor, width: float = 0.25) -> Tensor:
    """Return the center control [N, H, W] of images [N, C, H, W]."""
    profiles = [
        torch.exp(-(((torch.arange(size, dtype=torch.float64) + 0.5) / size - 0.5) ** 2) / (2 * width**2))
        for size in images.shape[2:]
    ]
    blob = profiles[0]
    for profile in profiles[1:]:
        blob = blob[..., None] * profile
    return blob.to(at_least_float32(images)).expand(len(images), *blob.shape).clone()
