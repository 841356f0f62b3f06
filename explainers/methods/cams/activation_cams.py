"""Class-activation maps from what the layer shows: principal components, strong cells, factors, and the first CAM.

    A  activations of the layer   (n, k, h, w)
    G  d score / d A              (n, k, h, w), only where a method says so

A principal component has no sign of its own, and what a linear algebra library returns changes with the order of the
channels. Here each component is turned so that it correlates positively, over the cells, with the sum of its matrix
over the channels; where that correlation is 0, so that its value of the largest magnitude is positive. Every picture
is decomposed alone, in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from explainers.errors import BadOption
from explainers.methods.cams.linear_head import linear_activations
from explainers.methods.cams.nmf import factors_of
from explainers.options import Choice, LayerName, Range, Seed
from explainers.passes.at_layer import activations_and_gradients, features
from explainers.registry import METHODS, check_images, method
from explainers.targets import TargetLike

Relu = Annotated[bool, "Keep only positive values"]
# Cells whose kernel matrix, the square of their number, still fits a small machine (0.5 GB).
_CELLS = 8000
_CLASSLESS = "the map is made of the layer's activations alone; the score has no part in it"


def _rectified(maps: Tensor, relu: bool) -> Tensor:
    return maps.relu() if relu else maps


@method(family="cam", returns="grid", title="CAM", paper="Zhou et al. 2016, arXiv:1512.04150")
def cam(
    model: nn.Module, images: Tensor, target: TargetLike = None, *, layer: LayerName | None = None, relu: Relu = False
) -> Tensor:
    """CAM: the head's weights of the class times the activations before global pooling.

    The weights are read off the gradient, w = h w G, after two checks that hold for every head of this kind and for no
    other: G is the same in every cell, and does not change when A does.

    Returns  (n, h, w) at the layer's own size, signed (the paper has no ReLU), in logits; its mean is logit - bias
    Errors   UnsupportedModel where the score is not a linear function of the pooled activations; LayerNotFound,
             LayerRanRepeatedly, NothingSpatial
    Source   Zhou et al. 2016, eq. 2, arXiv:1512.04150
    """
    a, g = linear_activations(model, images, layer, target)
    weights = g.mean(dim=(2, 3), keepdim=True) * a[0, 0].numel()
    return _rectified((weights * a).sum(dim=1), relu)


@method(
    family="cam",
    returns="grid",
    title="Eigen-CAM",
    scale_free=_CLASSLESS,
    reads_class=False,
    paper="Muhammad & Yeasin 2020, arXiv:2008.00299",
)
def eigen_cam(
    model: nn.Module, images: Tensor, target: TargetLike = None, *, layer: LayerName | None = None, relu: Relu = False
) -> Tensor:
    """Eigen-CAM: the activations' first principal component; the target plays no part.

    Channels are centred over the cells. The component is positive where activations are strong (the sign rule of this
    file). The forward pass ends at the layer.

    Returns  (n, h, w) at the layer's own size, signed with mean 0, in the layer's units
    Errors   LayerNotFound, LayerRanRepeatedly, NothingSpatial, UnsupportedModel
    Source   Muhammad & Yeasin 2020, section III, arXiv:2008.00299
    """
    return _rectified(_per_picture(principal_component, features(model, images, layer)), relu)


@method(family="cam", returns="grid", title="Eigen-Grad-CAM", paper="Muhammad & Yeasin 2020, arXiv:2008.00299")
def eigen_grad_cam(
    model: nn.Module, images: Tensor, target: TargetLike = None, *, layer: LayerName | None = None, relu: Relu = False
) -> Tensor:
    """Eigen-Grad-CAM: first principal component of gradient times activation, so that the class has a say.

    Channels are centred over the cells; the component is positive where gradient times activation is large in sum.

    Returns  (n, h, w) at the layer's own size, signed with mean 0, in logits
    Errors   LayerNotFound, LayerRanRepeatedly, NothingSpatial, UnsupportedModel
    Source   Muhammad & Yeasin 2020, section III, with G A for A, arXiv:2008.00299
    """
    a, g = activations_and_gradients(model, images, layer, target)
    return _rectified(_per_picture(principal_component, g * a), relu)


@method(family="cam", returns="grid", title="Seg-Eigen-CAM", paper="Chung & Ying 2025, doi:10.3390/app15137562")
def seg_eigen_cam(
    model: nn.Module, images: Tensor, target: TargetLike = None, *, layer: LayerName | None = None, relu: Relu = False
) -> Tensor:
    """Seg-Eigen-CAM: first principal component of activations weighted by the gradient's magnitude, its sign corrected.

    The sign is the paper's: the value of the largest magnitude is positive. Made for segmentation (`MaskScores`), it
    takes any target.

    Returns  (n, h, w) at the layer's own size, signed with mean 0, in logits
    Errors   LayerNotFound, LayerRanRepeatedly, NothingSpatial, UnsupportedModel
    Source   Chung & Ying 2025, eqs. 10 to 13, doi:10.3390/app15137562
    """
    a, g = activations_and_gradients(model, images, layer, target)
    return _rectified(_per_picture(lambda each: peak_up(_projection(each)), g.abs() * a), relu)


@method(
    family="cam",
    returns="grid",
    title="KPCA-CAM",
    scale_free=_CLASSLESS,
    reads_class=False,
    paper="Karmani et al. 2024, arXiv:2410.00267",
)
def kpca_cam(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    layer: LayerName | None = None,
    kernel: Annotated[str, Choice("sigmoid", "rbf", help="how alike two cells are")] = "sigmoid",
    gamma: Annotated[float | None, Range(0, 1000, help="the kernel's width; empty: 1 / channels")] = None,
    relu: Relu = False,
) -> Tensor:
    """KPCA-CAM: the activations' first principal component in a kernel's space; the target plays no part.

    Kernels of two cells' centred channel vectors: "sigmoid" tanh(gamma x·y + 1), "rbf" exp(-gamma |x - y|²). The
    component is positive where activations are strong (the sign rule of this file).

    Returns  (n, h, w) at the layer's own size, signed with mean 0, without a unit
    Errors   BadOption for a grid of more than 8,000 cells; LayerNotFound, LayerRanRepeatedly, NothingSpatial,
             UnsupportedModel
    Source   Karmani et al. 2024, section 3, arXiv:2410.00267; Schölkopf et al. 1998, eq. 11
    """
    a = features(model, images, layer)
    if a[0, 0].numel() > _CELLS:
        raise BadOption(
            f"layer gives a grid of {a.shape[2]}x{a.shape[3]}: a kernel between all pairs of its cells would not fit. "
            "Choose a later layer, or eigen_cam."
        )
    width = 1 / a.shape[1] if gamma is None else gamma
    return _rectified(_per_picture(lambda each: _kernel_component(each, kernel, width), a), relu)


@method(
    family="cam",
    returns="grid",
    title="FEM",
    signed=False,
    scale_free=_CLASSLESS,
    reads_class=False,
    paper="Fuad et al. 2020, hal-02963298",
)
def fem(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    layer: LayerName | None = None,
    threshold: Annotated[float, Range(0, 10, 0.1, help="deviations above a channel's mean that count as strong")] = 2.0,
    form: Annotated[str, Choice("activations", "cells", help="what is summed: activations, or strong cells")] = (
        "activations"
    ),
) -> Tensor:
    """FEM: the channels' strong cells, those some deviations above the channel's mean; the target plays no part.

    "activations" is the form in use: each channel weighted by its share of strong cells. "cells" is the paper's: the
    strong cells themselves, weighted by the channel's mean. The deviation is that of the population.

    Returns  (n, h, w) at the layer's own size, in the layer's units; negative only where activations are
    Errors   LayerNotFound, LayerRanRepeatedly, NothingSpatial, UnsupportedModel
    Source   Fuad et al. 2020, section III, hal.science/hal-02963298
    """
    a = features(model, images, layer)
    means = a.mean(dim=(2, 3), keepdim=True)
    strong = (a > means + threshold * a.std(dim=(2, 3), keepdim=True, correction=0)).to(a)
    if form == "cells":
        return (means * strong).sum(dim=1)
    return (strong.mean(dim=(2, 3), keepdim=True) * a).sum(dim=1)


@method(
    family="features",
    returns="features",
    unit="",
    title="Deep feature factorization",
    signed=False,
    reduce="norm",
    scale_free=_CLASSLESS,
    reads_class=False,
    paper="Collins et al. 2018, arXiv:1806.10206",
)
def deep_feature_factorization(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    layer: LayerName | None = None,
    components: Annotated[int, Range(1, 64, help="factors")] = 5,
    seed: Seed = 0,
) -> Tensor:
    """Deep feature factorization: the layer as a sum of a few factors, each a place and a direction in channel space.

    Activations are factorised without negative numbers, each picture by itself; what is negative in a channel is taken
    off first. `feature_factors` also gives directions and each factor's share of a class's score.

    Returns  (n, components, h, w) at the layer's own size, >= 0, in the layer's units, the largest factor first
    Errors   LayerNotFound, LayerRanRepeatedly, NothingSpatial, UnsupportedModel
    Source   Collins et al. 2018, section 3, arXiv:1806.10206
    """
    return torch.stack([factors_of(each, components, seed)[0] for each in features(model, images, layer)])


@dataclass(frozen=True)
class Factors:
    """`maps` [N, F, h, w], `directions` [N, F, K] of length 1, and `effects` [N, F], each factor's part of the score;
    `rest` [N] is what the factors leave of the sum of gradient times activation.
    """

    maps: Tensor
    directions: Tensor
    effects: Tensor
    rest: Tensor


def feature_factors(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    layer: LayerName | None = None,
    components: int = 5,
    seed: int = 0,
) -> Factors:
    """Deep feature factorization with each factor's direction, and its effect on the target's score.

    An effect is the sum of gradient times the factor's share of the activations. Under pooling and a linear head the
    effects and the rest sum to logit - bias; under other heads they are the score's first order.

    Returns  a `Factors`; effects in logits
    Errors   LayerNotFound, LayerRanRepeatedly, NothingSpatial, UnsupportedModel
    Source   Collins et al. 2018, section 3, arXiv:1806.10206
    """
    check_images(model, images)
    METHODS["deep_feature_factorization"].options["components"].check(components)
    a, g = activations_and_gradients(model, images, layer, target)
    found = [factors_of(each, components, seed) for each in a]
    maps, directions = (torch.stack(each) for each in zip(*found, strict=True))
    effects = torch.einsum("nkhw,nfhw,nfk->nf", g, maps, directions)
    return Factors(maps, directions, effects, (g * a).sum((1, 2, 3)) - effects.sum(1))


def principal_component(planes: Tensor) -> Tensor:
    """First principal component (h, w) of (k, h, w), turned by the rule of this file."""
    return _turned(_projection(planes), planes.sum(0))


def peak_up(component: Tensor) -> Tensor:
    """The component or its negative, whichever has the value of the largest magnitude positive."""
    return -component if -component.min() > component.max() else component


def _per_picture(decompose: Callable[[Tensor], Tensor], maps: Tensor) -> Tensor:
    """`decompose` of each picture's maps; of values that are not finite nothing but NaN can come."""
    found = [decompose(each.double().nan_to_num()) for each in maps]
    finite = [bool(each.isfinite().all()) for each in maps]
    kept = [one if fine else torch.full_like(one, torch.nan) for one, fine in zip(found, finite, strict=True)]
    return torch.stack(kept).to(maps.dtype)


def _centred(planes: Tensor) -> Tensor:
    """One row a cell, one column a channel of mean 0."""
    rows = planes.flatten(1).T
    return rows - rows.mean(dim=0)


def _projection(planes: Tensor) -> Tensor:
    """The cells' coordinates on the direction of the largest variance: first left singular vector times its value."""
    u, s, _ = torch.linalg.svd(_centred(planes), full_matrices=False)
    return (u[:, 0] * s[0]).view(planes.shape[1:])


def _turned(component: Tensor, guide: Tensor) -> Tensor:
    agreement = float(((guide - guide.mean()) * component).sum())
    size = float((guide - guide.mean()).norm() * component.norm())
    # Below rounding there is no correlation to go by.
    if abs(agreement) <= 1e-12 * size:
        return peak_up(component)
    return component if agreement > 0 else -component


def _kernel_component(planes: Tensor, kernel: str, gamma: float) -> Tensor:
    rows = _centred(planes)
    if kernel == "sigmoid":
        alike = torch.tanh(gamma * rows @ rows.T + 1)
    else:
        alike = torch.exp(-gamma * torch.cdist(rows, rows) ** 2)
    alike = alike - alike.mean(0) - alike.mean(1, keepdim=True) + alike.mean()
    value, vector = _largest(alike)
    component = vector * value.clamp(min=0).sqrt()
    return _turned(component.view(planes.shape[1:]), planes.sum(0))


def _largest(symmetric: Tensor) -> tuple[Tensor, Tensor]:
    """The largest eigenvalue and its vector; large matrices by iteration from a fixed start, as no global generator is
    drawn from.
    """
    if len(symmetric) <= 800:
        values, vectors = torch.linalg.eigh(symmetric)
        return values[-1], vectors[:, -1]
    # The column of the largest diagonal entry cannot be orthogonal to everything of large variance.
    start = symmetric[:, symmetric.diagonal().argmax()][:, None]
    values, vectors = torch.lobpcg(symmetric, X=start, largest=True, niter=500, tol=1e-12)
    return values[0], vectors[:, 0]
