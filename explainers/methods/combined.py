"""Products of two methods."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor, nn

from ..backward_rules import why_not
from ..maps import resize
from ..options import Choice
from ..registry import method
from ..sites import LayerName
from ..targets import TargetLike
from .gradient_cams import grad_cam
from .modified_backprop import guided_backprop


@method(
    family="backward rule",
    returns="pixels",
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
    layer: LayerName | None = None,
    interpolate: Annotated[str, Choice("bilinear", "nearest", help="how the Grad-CAM is enlarged")] = "bilinear",
) -> Tensor:
    """Guided Grad-CAM: guided backpropagation times the enlarged Grad-CAM (with its ReLU).

    Returns  (n, c, h, w), signed; zero wherever the Grad-CAM is
    Errors   as `grad_cam` and `guided_backprop`
    Source   Selvaraju et al. 2017, section 3.2, arXiv:1610.02391
    """
    pixels = guided_backprop(model, images, target)
    cam = grad_cam(model, images, target, layer=layer)
    height, width = images.shape[-2:]
    return pixels * resize(cam, (height, width), mode=interpolate)[:, None]
