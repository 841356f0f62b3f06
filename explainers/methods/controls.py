"""Controls: maps that do not depend on the network, as reference for maps that explain it.

If a map is no better than the edges of the image or than a centered blob, there is no evidence that it explains the
model. The target is validated and then ignored.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

from torch import Tensor, nn
from typing_extensions import Unpack

from explainers.call.run import open_run
from explainers.keywords import Call
from explainers.options import Range, Seed
from explainers.perturbation.control_maps import center_map, edge_map, random_map
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
