"""Class-activation maps of the activations: principal components, thresholds, factors, and the original CAM.

    A  activations of the layer   (n, k, h, w)
    G  ∂y / ∂A                    (n, k, h, w), only if the method says so

The sign of a principal component is arbitrary, and the sign that a linear algebra library returns depends on the order
of the channels. Here the sign is chosen so that the component correlates positively, over the positions, with the sum
of its matrix over the channels. If that correlation is 0, the value with the largest magnitude is positive. Every image
is decomposed separately, in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from explainers.call.current import check_images
from explainers.call.forward_wrapper import Forward, wrap_forward
from explainers.call.run import activations_and_gradients, features
from explainers.call.scores import cell_axes
from explainers.dtypes import to_float64
from explainers.errors import BadOption
from explainers.keywords import LayerCall
from explainers.methods.cams.linear_head import linear_activations
from explainers.methods.cams.nmf import factors_of
from explainers.options import Choice, LayerName, Range, Seed, check_keywords
from explainers.registry import METHODS, method, on_lite0
from explainers.targets import TargetLike

Relu = Annotated[bool, "Keep positive values only (ReLU)"]
# Maximum number of positions; their kernel matrix takes 0.5 GB.
_POSITIONS = 8000
_class_agnostic = partial(
    method,
    family="cam",
    returns="grid",
    gradients=False,
    reads_class=False,
    scale_free="the map is computed only from the layer's activations and does not depend on the score",
)


@method(family="cam", returns="grid", title="CAM", paper="Zhou et al. 2016, arXiv:1512.04150")
def cam(
    model: nn.Module, images: Tensor, target: TargetLike = None, *, relu: Relu = False, **call: Unpack[LayerCall]
) -> Tensor:
    """CAM: the head's class weights times the activations before global average pooling.

        L = Σ_k w_k A_k

    The weights are read from the gradient, w = h w G, after two checks that only a pooled linear head passes: G is the
    same at every position, and does not depend on A.

    `forward` and `through` are as in `explain`.

    Returns  (n, h, w) at the layer's own size, signed (the paper has no ReLU), in logits; its mean is logit - bias
    Errors   UnsupportedModel if the score is not a linear function of the pooled activations; LayerNotFound,
             LayerRanRepeatedly, NoSpatialOutput
    Source   Zhou et al. 2016, eq. 2, arXiv:1512.04150

    Example
        >>> cam(model, images, 281, layer="layer4").shape
        torch.Size([1, 7, 7])
    """
    a, g = linear_activations(model, images, call.get("layer"), target)
    weights = g.mean(dim=cell_axes(g), keepdim=True) * a[0, 0].numel()
    return (weights * a).sum(dim=1)


@_class_agnostic(
    title="Eigen-CAM",
    paper="Muhammad & Yeasin 2020, arXiv:2008.00299",
    caution=on_lite0("no better than the image's edges", "Grad-CAM instead"),
)
def eigen_cam(
    model: nn.Module, images: Tensor, target: TargetLike = None, *, relu: Relu = False, **call: Unpack[LayerCall]
) -> Tensor:
    """Eigen-CAM: first principal component of the activations; independent of the target.

    Channels are centered over the positions. The component is positive where activations are strong (the sign rule of
    this module). The forward pass stops at the layer.

    `forward` and `through` are as in `explain`.

    Returns  (n, h, w) at the layer's own size, signed with mean 0, in the layer's units
    Errors   LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel
    Source   Muhammad & Yeasin 2020, section III, arXiv:2008.00299

    Example
        >>> eigen_cam(model, images, layer="layer4").shape
        torch.Size([1, 7, 7])
    """
    return _per_image(principal_component, features(model, images, call.get("layer")))


@method(family="cam", returns="grid", title="Eigen-Grad-CAM", paper="Muhammad & Yeasin 2020, arXiv:2008.00299")
def eigen_grad_cam(
    model: nn.Module, images: Tensor, target: TargetLike = None, *, relu: Relu = False, **call: Unpack[LayerCall]
) -> Tensor:
    """Eigen-Grad-CAM: first principal component of gradient times activation, which makes Eigen-CAM class-specific.

    Channels are centered over the positions; the component is positive where Σ_k G_k A_k is large.

    `forward` and `through` are as in `explain`.

    Returns  (n, h, w) at the layer's own size, signed with mean 0, in logits
    Errors   LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel
    Source   Muhammad & Yeasin 2020, section III, with G A for A, arXiv:2008.00299

    Example
        >>> eigen_grad_cam(model, images, 281, layer="layer4").shape
        torch.Size([1, 7, 7])
    """
    a, g = activations_and_gradients(model, images, call.get("layer"), target)
    return _per_image(principal_component, g * a)


@method(family="cam", returns="grid", title="Seg-Eigen-CAM", paper="Chung & Ying 2025, doi:10.3390/app15137562")
def seg_eigen_cam(
    model: nn.Module, images: Tensor, target: TargetLike = None, *, relu: Relu = False, **call: Unpack[LayerCall]
) -> Tensor:
    """Seg-Eigen-CAM: first principal component of the activations weighted by the gradient's magnitude.

    The channels are |G_k| A_k, centered over the positions. As in the paper, the value with the largest magnitude is
    positive. The method was designed for segmentation (`MaskScores`), but accepts any target.

    `forward` and `through` are as in `explain`.

    Returns  (n, h, w) at the layer's own size, signed with mean 0, in logits
    Errors   LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel
    Source   Chung & Ying 2025, eqs. 10 to 13, doi:10.3390/app15137562

    Example
        >>> seg_eigen_cam(model, images, 281, layer="layer4").shape
        torch.Size([1, 7, 7])
    """
    a, g = activations_and_gradients(model, images, call.get("layer"), target)
    return _per_image(lambda planes: make_peak_positive(_project(planes)), g.abs() * a)


@_class_agnostic(
    title="KPCA-CAM",
    paper="Karmani et al. 2024, arXiv:2410.00267",
    caution=on_lite0("no better than the image's edges", "Grad-CAM instead"),
)
def kpca_cam(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    kernel: Annotated[str, Choice("sigmoid", "rbf", help="kernel between spatial positions")] = "sigmoid",
    gamma: Annotated[float | None, Range(0, 1000, help="γ of the kernel; empty: 1 / channels")] = None,
    relu: Relu = False,
    **call: Unpack[LayerCall],
) -> Tensor:
    """KPCA-CAM: first kernel principal component of the activations; independent of the target.

    The kernels compare the centered channel vectors x and y of two positions: "sigmoid" is tanh(gamma x·y + 1), "rbf"
    is exp(-gamma |x - y|²). The component is positive where activations are strong (the sign rule of this module).

    `forward` and `through` are as in `explain`.

    Returns  (n, h, w) at the layer's own size, signed with mean 0, without a unit
    Errors   BadOption for a grid of more than 8,000 positions; LayerNotFound, LayerRanRepeatedly, NoSpatialOutput,
             UnsupportedModel
    Source   Karmani et al. 2024, section 3, arXiv:2410.00267; Schölkopf et al. 1998, eq. 11

    Example
        >>> kpca_cam(model, images, layer="layer4", kernel="rbf").shape
        torch.Size([1, 7, 7])
    """
    a = features(model, images, call.get("layer"))
    if a[0, 0].numel() > _POSITIONS:
        raise BadOption(
            f"The layer has a grid of {'x'.join(map(str, a.shape[2:]))}. A kernel between all positions would not fit "
            "in memory. Choose a later layer, or use eigen_cam."
        )
    width = 1 / a.shape[1] if gamma is None else gamma
    return _per_image(lambda planes: _kernel_component(planes, kernel, width), a)


@_class_agnostic(
    title="FEM",
    signed=False,
    paper="Fuad et al. 2020, hal-02963298",
    caution=on_lite0("not significantly better than the image's edges", "Grad-CAM instead"),
)
def fem(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    threshold: Annotated[float, Range(0, 10, 0.1, help="standard deviations above a channel's mean")] = 2.0,
    form: Annotated[
        str, Choice("activations", "cells", help="sum of activations, or of positions above the threshold")
    ] = "activations",
    **call: Unpack[LayerCall],
) -> Tensor:
    """FEM: activations above mean + threshold × standard deviation of their channel; independent of the target.

        L = Σ_k mean_ij(B_k) A_k    form="activations", the usual form;  B_k = [A_k > mean A_k + threshold × std A_k]
        L = Σ_k mean_ij(A_k) B_k    form="cells", as in the paper

    with the population standard deviation.

    `forward` and `through` are as in `explain`.

    Returns  (n, h, w) at the layer's own size, in the layer's units; negative only where activations are
    Errors   LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel
    Source   Fuad et al. 2020, section III, hal.science/hal-02963298

    Example
        >>> fem(model, images, layer="layer4").shape
        torch.Size([1, 7, 7])
    """
    a = features(model, images, call.get("layer"))
    means = a.mean(dim=cell_axes(a), keepdim=True)
    strong = (a > means + threshold * a.std(dim=cell_axes(a), keepdim=True, correction=0)).to(a)
    if form == "cells":
        return (means * strong).sum(dim=1)
    return (strong.mean(dim=cell_axes(a), keepdim=True) * a).sum(dim=1)


@_class_agnostic(
    family="features",
    returns="features",
    unit="",
    title="Deep feature factorization",
    signed=False,
    reduce="norm",
    paper="Collins et al. 2018, arXiv:1806.10206",
    caution=on_lite0("not significantly better than the image's edges", "Grad-CAM instead"),
)
def deep_feature_factorization(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    components: Annotated[int, Range(1, 64, help="non-negative factors")] = 5,
    seed: Seed = 0,
    **call: Unpack[LayerCall],
) -> Tensor:
    """Deep feature factorization: non-negative factors of the activations, each a map and a channel direction.

        A - min(A, 0) ≈ Σ_f maps_f directions_f,  both >= 0

    with the minimum over each channel; every image is factorized separately. `feature_factors` also returns the
    directions and the contribution of each factor to a class score.

    `forward` and `through` are as in `explain`.

    Returns  (n, components, h, w) at the layer's own size, >= 0, in the layer's units, the largest factor first
    Errors   LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel
    Source   Collins et al. 2018, section 3, arXiv:1806.10206

    Example
        >>> deep_feature_factorization(model, images, layer="layer4", components=3).shape
        torch.Size([1, 3, 7, 7])
    """
    return torch.stack(
        [factors_of(planes, components, seed)[0] for planes in features(model, images, call.get("layer"))]
    )


@dataclass(frozen=True)
class Factors:
    """Factors of a layer's activations, with their contributions to the score.

    `maps` [N, F, h, w]; `directions` [N, F, K] of length 1; `effects` [N, F], the contribution of each factor to the
    score; `rest` [N], the sum of gradient times activation minus the effects.
    """

    maps: Tensor
    directions: Tensor
    effects: Tensor
    rest: Tensor


@check_keywords
@torch.inference_mode(False)
def feature_factors(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    layer: LayerName | None = None,
    components: int = 5,
    seed: int = 0,
    forward: Forward | None = None,
) -> Factors:
    """Compute a deep feature factorization with the direction of each factor and its effect on the target's score.

        effect_f = Σ_kij G_k maps_f directions_f,k

    With pooling and a linear head, the effects and the rest sum to logit - bias; otherwise they are first order.
    `forward` is as in `explain`.

    Returns  a `Factors`; effects in logits
    Errors   LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel
    Source   Collins et al. 2018, section 3, arXiv:1806.10206

    Example
        >>> factors = feature_factors(model, images, 281, layer="layer4", components=3)
        >>> factors.maps.shape, factors.directions.shape, factors.effects.shape
        (torch.Size([1, 3, 7, 7]), torch.Size([1, 3, 512]), torch.Size([1, 3]))
    """
    model = wrap_forward(model, forward, images)
    check_images(model, images)
    for name, value in (("components", components), ("seed", seed)):
        METHODS["deep_feature_factorization"].options[name].check(value)
    a, g = activations_and_gradients(model, images, layer, target)
    factors = [factors_of(planes, components, seed) for planes in a]
    maps, directions = (torch.stack(parts) for parts in zip(*factors, strict=True))
    cells = "thw"[-len(cell_axes(a)) :]
    effects = torch.einsum(f"nk{cells},nf{cells},nfk->nf", g, maps, directions)
    return Factors(maps, directions, effects, (g * a).sum((1, *cell_axes(a))) - effects.sum(1))


def principal_component(planes: Tensor) -> Tensor:
    """Return the first principal component (h, w) of (k, h, w), with the sign rule of this module."""
    return _orient(_project(planes), planes.sum(0))


def make_peak_positive(component: Tensor) -> Tensor:
    """Choose the sign of a component so that the value with the largest magnitude is positive."""
    return torch.where(-component.min() > component.max(), -component, component)


def _per_image(decompose: Callable[[Tensor], Tensor], maps: Tensor) -> Tensor:
    """Apply `decompose` to the maps of each image; an image with values that are not finite gives NaN."""
    components = [decompose(to_float64(planes).nan_to_num()) for planes in maps]
    is_finite = maps.flatten(1).isfinite().all(1).to(components[0].device)
    return torch.stack(components).where(is_finite.view(-1, *[1] * components[0].ndim), torch.nan).to(maps)


def _center(planes: Tensor) -> Tensor:
    """Return a matrix with one row per position and one column per channel, each column with mean 0."""
    rows = planes.flatten(1).T
    return rows - rows.mean(dim=0)


def _project(planes: Tensor) -> Tensor:
    """Project the positions on the first principal axis: first left singular vector times its singular value."""
    u, s, _ = torch.linalg.svd(_center(planes), full_matrices=False)
    return (u[:, 0] * s[0]).view(planes.shape[1:])


def _orient(component: Tensor, guide: Tensor) -> Tensor:
    agreement = ((guide - guide.mean()) * component).sum()
    size = (guide - guide.mean()).norm() * component.norm()
    oriented = torch.where(agreement > 0, component, -component)
    # Treat correlations below rounding error as 0.
    return torch.where(agreement.abs() <= 1e-12 * size, make_peak_positive(component), oriented)


def _kernel_component(planes: Tensor, kernel: str, gamma: float) -> Tensor:
    rows = _center(planes)
    if kernel == "sigmoid":
        gram = torch.tanh(gamma * rows @ rows.T + 1)
    else:
        gram = torch.exp(-gamma * torch.cdist(rows, rows) ** 2)
    gram = gram - gram.mean(0) - gram.mean(1, keepdim=True) + gram.mean()
    value, vector = _largest_eigenpair(gram)
    component = vector * value.clamp(min=0).sqrt()
    return _orient(component.view(planes.shape[1:]), planes.sum(0))


def _largest_eigenpair(symmetric: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest eigenvalue and its eigenvector.

    Large matrices are solved iteratively, from a fixed start, so that no global random generator is used.
    """
    if len(symmetric) <= 800:
        values, vectors = torch.linalg.eigh(symmetric)
        return values[-1], vectors[:, -1]
    # Start at the column of the largest diagonal entry, which is not orthogonal to all directions of large variance.
    start = symmetric[:, symmetric.diagonal().argmax()][:, None]
    values, vectors = torch.lobpcg(symmetric, X=start, largest=True, niter=500, tol=1e-12)
    return values[0], vectors[:, 0]
