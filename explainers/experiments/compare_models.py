"""`compare_models`: where two models, or two checkpoints, differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from explainers.call.current import check_images
from explainers.call.layers import list_layers
from explainers.call.run import Run, open_run
from explainers.call.scores import at_least_float32
from explainers.display.display import Display, Displayed, class_name, folded, paragraphs, table_html
from explainers.dtypes import to_float64
from explainers.errors import BadImages, BadOption, BadTarget
from explainers.explanation.run import explain
from explainers.hooks.locate import find_hook_point
from explainers.hooks.records import only_tensor
from explainers.maps.resize import rank_correlation, resize
from explainers.options import check_finite
from explainers.registry import MethodLike, find
from explainers.students_t import t_quantile

MOST = 8
"""Images for which the outputs of all layers are compared, since those of the first model are kept."""
CELLS = 4
"""Minimum number of cells of two maps for a rank correlation: that of two cells is always 1 or −1."""


@dataclass(frozen=True)
class ModelComparison(Displayed):
    """Two models, A and B, on the same N images.

    `scores_a`, `scores_b` are their scores [N, K]. `maps_a`, `maps_b` are the maps [N, h, w] of `method` for A's
    prediction, at the larger of both resolutions, and `map_correlations` [N] their rank correlations. `map_notes` has
    the reason for each that is NaN, such as a map with the same value everywhere, and an empty text for the others.

    `similarity` is the unbiased linear CKA [LA, LB] of the layers `layers_a` and `layers_b`, in [-1, 1], and
    `similarity_interval` [LA, LB, 2] its 95% interval over the images (jackknife), in [0, 1]. Both are NaN for fewer
    than 8 different images, and for a layer with the same output for all of them; `similarity_note` is the reason.

    `differences` are relative differences of the outputs of all layers with the same name, in running order, if both
    models have the same architecture: 0 means equal. `first_difference` is the first layer above the tolerance, None if
    there is none or if the architectures differ.
    """

    method: str
    scores_a: Tensor
    scores_b: Tensor
    maps_a: Tensor
    maps_b: Tensor
    map_correlations: Tensor
    map_notes: list[str]
    layers_a: list[str]
    layers_b: list[str]
    similarity: Tensor
    similarity_interval: Tensor
    similarity_note: str
    differences: dict[str, float]
    first_difference: str | None

    @property
    def predictions(self) -> tuple[list[int], list[int]]:
        """The top classes of both models."""
        return self.scores_a.argmax(1).tolist(), self.scores_b.argmax(1).tolist()

    @property
    def changed(self) -> list[int]:
        """The images for which both models predict different classes."""
        return [n for n, (a, b) in enumerate(zip(*self.predictions, strict=True)) if a != b]

    @property
    def similarity_texts(self) -> list[list[str]]:
        """The similarities with their intervals; only the interval if it includes 0, and "–" without a value."""

        def text(value: float, low: float, high: float) -> str:
            if math.isnan(value):
                return "–"
            return f"{value:.2f} ({low:.2f}–{high:.2f})" if low > 0 else f"0–{high:.2f}"

        cells = zip(self.similarity.tolist(), self.similarity_interval.tolist(), strict=True)
        return [[text(value, *limits) for value, limits in zip(*row, strict=True)] for row in cells]

    def display(self, labels: Sequence[str] | None = None) -> Display:
        """Return the predictions and maps by image, and the differences of the layers."""
        rows: list[list[Any]] = []
        for n, (a, b) in enumerate(zip(*self.predictions, strict=True)):
            correlation = self.map_notes[n] or float(self.map_correlations[n])
            rows.append([n, class_name(a, labels), class_name(b, labels), "changed" * (a != b), correlation])
        heads = ["image", "class of A", "class of B", "prediction", f"rank correlation of {self.method}"]
        parts = [paragraphs([repr(self)]), table_html(heads, rows)]
        if self.similarity_note:
            parts.append(paragraphs([f"Similarity of layers (CKA): {self.similarity_note}"]))
        if self.similarity.isfinite().any():
            rows = [[name, *row] for name, row in zip(self.layers_a, self.similarity_texts, strict=True)]
            table = table_html(["A \\ B", *self.layers_b], rows)
            parts.append(folded("Similarity of layers (CKA, 95% interval)", table))
        if self.differences:
            layers = table_html(["layer", "relative difference"], list(self.differences.items()))
            parts.append(folded(f"{len(self.differences)} layers", layers))
        return Display("".join(parts), repr(self))

    def __repr__(self) -> str:
        n = len(self.scores_a)
        known = self.map_correlations[~self.map_correlations.isnan()]
        of = "" if len(known) == n else f" ({len(known)} of {n} images)"
        mean = f"{float(known.mean()):.2f}{of}" if len(known) else f"not tested ({self.map_notes[0]})"
        where = "" if self.first_difference is None else f", first different layer {self.first_difference}"
        return (
            f"ModelComparison({len(self.changed)} of {n} prediction{'s' * (n != 1)} changed, mean rank correlation of "
            f"{self.method} {mean}{where})"
        )


@torch.inference_mode(False)
def compare_models(
    model_a: nn.Module,
    model_b: nn.Module,
    images: Tensor,
    *,
    images_b: Tensor | None = None,
    method: MethodLike = "grad_cam",
    tolerance: float = 1e-3,
    **options: Any,
) -> ModelComparison:
    """Compare the predictions, maps and layers of two models on the same images.

    `images_b` are the images prepared for model B, if it needs another size or normalization. `method` and its options
    compute the maps, for A's prediction in both models. Layers are compared by unbiased linear CKA with a 95% interval
    (each stage of A with each of B, on all different images, at least 8) and, if both have the same architecture, by
    the relative difference of the outputs of every layer (on the first 8 images); `tolerance` is the largest difference
    that counts as equal.

    Returns  a `ModelComparison`
    Errors   BadImages if the numbers of images differ; BadTarget if the models have different numbers of classes;
             BadOption for a method without maps or a negative tolerance; errors of the method
    Source   linear CKA: Kornblith et al. 2019, arXiv:1905.00414

    Example
        >>> compare_models(model, model, images).changed
        []
    """
    images_b = images if images_b is None else images_b
    check_images(model_a, images)
    check_images(model_b, images_b)
    if len(images) != len(images_b):
        raise BadImages(f"images has {len(images)} images and images_b has {len(images_b)}. Give the same images.")
    check_finite("tolerance", tolerance, "a number of at least 0", least=0)
    chosen = find(method)
    if not chosen.gives_map:
        raise BadOption(f"{chosen.name} does not return maps. Choose a method such as grad_cam.")
    scores_a, layers_a, grams_a = _layers(model_a, images)
    scores_b, layers_b, grams_b = _layers(model_b, images_b)
    if scores_a.shape != scores_b.shape:
        raise BadTarget(
            f"The models have {scores_a.shape[1]} and {scores_b.shape[1]} classes, so their predictions cannot be "
            "compared. Give two models with the same classes."
        )
    target = scores_a.argmax(1)
    maps_a, maps_b = (
        explain(chosen, model, batch, target, compare=False, **options).placed
        for model, batch in ((model_a, images), (model_b, images_b))
    )
    map_notes = _map_notes(maps_a, maps_b)
    size = tuple(map(max, maps_a.shape[1:], maps_b.shape[1:]))
    maps_a, maps_b = resize(maps_a, size), resize(maps_b.to(maps_a.device), size)
    correlations = rank_correlation(maps_a, maps_b)
    correlations[[bool(note) for note in map_notes]] = torch.nan
    kept = sorted({*_first_of_equal(images)} & {*_first_of_equal(images_b)})
    pairs = [[linear_cka(*(gram[kept][:, kept] for gram in (a, b.to(a.device)))) for b in grams_b] for a in grams_a]
    similarity = torch.tensor(pairs).reshape(len(layers_a), len(layers_b), 3)
    differences = _differences(model_a, images[:MOST], model_b, images_b[:MOST])
    return ModelComparison(
        method=chosen.name,
        scores_a=scores_a,
        scores_b=scores_b,
        maps_a=maps_a,
        maps_b=maps_b,
        map_correlations=correlations,
        map_notes=map_notes,
        layers_a=layers_a,
        layers_b=layers_b,
        similarity=similarity[..., 0],
        similarity_interval=similarity[..., 1:],
        similarity_note=_similarity_note(len(images), len(kept), similarity),
        differences=differences,
        first_difference=next((name for name, found in differences.items() if not found <= tolerance), None),
    )


def _map_notes(maps_a: Tensor, maps_b: Tensor) -> list[str]:
    """Return why the maps of each image have no rank correlation; empty texts for those that have one."""
    cells = min(maps[0].numel() for maps in (maps_a, maps_b))
    if cells < CELLS:
        few = f"not tested: a map has {cells} cell{'s' * (cells != 1)}, and a rank correlation needs at least {CELLS}"
        return [few] * len(maps_a)
    notes = []
    for pair in zip(maps_a, maps_b, strict=True):
        a, b = map(_map_problem, pair)
        if a and a == b:
            notes.append(f"each map {a}")
        else:
            parts = [f"the map of {name} {problem}" for name, problem in (("A", a), ("B", b)) if problem]
            notes.append("; ".join(parts))
    return notes


def _map_problem(map: Tensor) -> str:
    if not bool(map.isfinite().all()):
        return "has values that are not finite"
    if bool((map == map.flatten()[0]).all()):
        return "is zero everywhere" if not bool(map.any()) else "has the same value everywhere"
    return ""


def _first_of_equal(images: Tensor) -> list[int]:
    """Return the indices of the images that equal no earlier one."""
    groups = torch.unique(at_least_float32(images.detach()).flatten(1), dim=0, return_inverse=True)[1].tolist()
    return [n for n, group in enumerate(groups) if group not in groups[:n]]


def _similarity_note(given: int, different: int, similarity: Tensor) -> str:
    """Return why the similarity of layers is not known, in general or for some pairs."""
    if different < FEWEST:
        equal = f", {different} of them different" if different < given else ""
        return (
            f"Not tested: needs at least {FEWEST} different images; given: {given}{equal}. With fewer, unrelated "
            "layers can reach 0.5 by chance."
        )
    if not similarity.numel():
        return "Not tested: at least one model has no layers with a spatial output."
    missing = int(similarity[..., 0].isnan().sum())
    if not missing:
        return ""
    return (
        f"Not tested for {missing} of {similarity[..., 0].numel()} pairs of layers: at least one of the two gives the "
        "same output for all images, or for all but one or two."
    )


def _layers(model: nn.Module, images: Tensor) -> tuple[Tensor, list[str], list[Tensor]]:
    """Return the scores, the names of the stages and their Gram matrices, from one forward pass."""
    names = [layer.name for layer in list_layers(model, images, spatial=True) if layer.stage]
    with open_run(model, images) as run:
        grams: dict[str, Tensor] = {}
        scores = _observe(run, names, lambda name, output: grams.update({name: gram_matrix(output)}))
    return scores, list(grams), list(grams.values())


def _observe(run: Run, names: Sequence[str], act: Callable[[str, Tensor], None]) -> Tensor:
    """Run the images once, call `act` with the output of each layer, and return the scores.

    `act` gets the tensor inside the network, which later layers may overwrite, as soon as the layer returns. If images
    run one by one, it gets their outputs together at the end.
    """
    one_by_one = len(run.forward.batches(run.images)) > 1
    kept: dict[str, list[Tensor]] = {name: [] for name in names}
    seen: set[str] = set()

    def observer(name: str) -> Callable[[Any], None]:
        def observe(output: Any) -> None:
            tensor = only_tensor(output)
            if tensor is None or tensor.is_complex():
                return
            if one_by_one:
                kept[name].append(at_least_float32(tensor).clone())
            elif name not in seen:
                seen.add(name)
                act(name, at_least_float32(tensor))

        return observe

    edits = [(find_hook_point(run.view.network, name), observer(name)) for name in names]
    scores = run.forward.scores(run.images, lambda start, end: edits)
    for name in names:
        if kept[name]:
            act(name, torch.cat(kept[name]))
    return scores


def _differences(model_a: nn.Module, images_a: Tensor, model_b: nn.Module, images_b: Tensor) -> dict[str, float]:
    """Return the relative difference of the output of each layer; empty if the architectures differ."""
    found = [list_layers(model, images) for model, images in ((model_a, images_a), (model_b, images_b))]
    named = [[(layer.name, layer.shape) for layer in layers] for layers in found]
    if named[0] != named[1]:
        return {}
    names = [name for name, _ in named[0]]
    outputs: dict[str, Tensor] = {}
    with open_run(model_a, images_a) as run:
        _observe(run, names, lambda name, output: outputs.update({name: output.clone()}))
    differences: dict[str, float] = {}

    def compare(name: str, output: Tensor) -> None:
        other = outputs.pop(name).to(output.device)
        if output.shape == other.shape:
            size = torch.maximum(output.norm(), other.norm())
            differences[name] = float((output - other).norm() / size) if float(size) else 0.0

    with open_run(model_b, images_b) as run:
        _observe(run, names, compare)
    return differences


FEWEST = 8
"""Images that a comparison of layers needs. The standard deviation for two unrelated layers is about
√(2 / (n (n − 3))), so that 95% of their values are up to 0.44 from 0 with 8 images, and up to 0.52 with 7 images.
"""
LEVEL = 0.95
"""The level of the intervals, of each pair of layers on its own."""
UNDEFINED = float("nan"), float("nan"), float("nan")


def gram_matrix(features: Tensor) -> Tensor:
    """Return the products [N, N] of all pairs of rows of features [N, ...], in float64 if the device has it.

    Rows that differ only by rounding errors of their dtype count as equal.
    """
    rows = to_float64(features.detach().flatten(1))
    centered = rows - rows.mean(0)  # the estimate does not depend on it, and rounding errors are smaller
    if centered.norm() <= 8 * torch.finfo(features.dtype).eps * rows.norm():
        centered = torch.zeros_like(centered)
    return centered @ centered.T


def linear_cka(first: Tensor, second: Tensor) -> tuple[float, float, float]:
    """Return the linear CKA of two Gram matrices [N, N] with the unbiased estimate of HSIC, and its 95% interval.

    The usual biased estimate is close to 1 for any two layers with more features than images. This one is about 0 for
    unrelated layers, so that it is negative for about half of them. The population value, which the interval is for, is
    between 0 and 1. The interval is that of the jackknife over images, on the scale of Fisher's z with the quantile of
    Student's t. A bootstrap is not used: its samples contain images twice, and its intervals are too short.

    Returns  the estimate in [-1, 1], where 1 means equal up to rotation and scale, and the lower and upper limit in
             [0, 1]; NaN for fewer than 8 images, or if a layer gives the same output for all images, or for all but one
             or two
    Source   Kornblith et al. 2019, equation 4, arXiv:1905.00414; unbiased HSIC: Song et al. 2012, equation 5, as in
             Nguyen et al. 2021, equation 3, arXiv:2010.15327; jackknife: Efron & Stein 1981, doi:10.1214/aos/1176345462
    """
    n = len(first)
    if n < FEWEST:
        return UNDEFINED
    products, own, other = _hsic(first, second), _hsic(first, first), _hsic(second, second)
    for spread, gram in ((own, first), (other, second)):
        if not bool((spread > 1e-12 * gram.diagonal().mean() ** 2).all()):
            return UNDEFINED
    found = (products / (own * other).sqrt()).clamp(-1, 1)
    z = found.clamp(-1 + 1e-12, 1 - 1e-12).atanh()
    error = float(((z[1:] - z[1:].mean()).square().sum() * (n - 1) / n).sqrt())
    middle, half = max(0.0, float(z[0])), t_quantile(LEVEL, n - 1) * error
    return float(found[0]), max(0.0, math.tanh(middle - half)), math.tanh(middle + half)


def _hsic(first: Tensor, second: Tensor) -> Tensor:
    """Return the unbiased HSIC [N + 1]: of all images, then without each one."""
    n = len(first)
    a, b = (matrix - torch.diag(matrix.diagonal()) for matrix in (first, second))
    products, a_rows, b_rows = a * b, a.sum(1), b.sum(1)
    a_sum, b_sum = a_rows.sum(), b_rows.sum()

    def estimate(n: int, products: Tensor, sums: Tensor, rows: Tensor) -> Tensor:
        return (products + sums / ((n - 1) * (n - 2)) - 2 * rows / (n - 2)) / (n * (n - 3))

    whole = estimate(n, products.sum(), a_sum * b_sum, (a_rows * b_rows).sum())
    rest = estimate(
        n - 1,
        products.sum() - 2 * products.sum(1),
        (a_sum - 2 * a_rows) * (b_sum - 2 * b_rows),
        ((a_rows - a) * (b_rows - b)).sum(1) - a_rows * b_rows,
    )
    return torch.cat([whole[None], rest])
