"""`concepts`: the features of a layer on many images as a sum of parts, and what each part does to the score."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from explainers.call.at_layer import SuffixBatch, activation_and_score, suffix_batches
from explainers.call.current import check_images
from explainers.call.forward_wrapper import Forward, wrap_forward
from explainers.call.loop import Progress
from explainers.call.run import Run, open_run
from explainers.call.scores import maps_of
from explainers.concepts.dictionaries import Dictionary, PcaFit
from explainers.concepts.nmf import NmfFit
from explainers.concepts.resuming import check_resume, report_part
from explainers.concepts.sae import SaeFit
from explainers.derived_targets import Direction
from explainers.display.display import Display, Displayed, paragraphs
from explainers.errors import BadOption, check_type, shorten
from explainers.layers.layout import LayerLayout
from explainers.methods.perturbation.sensitivity import sobol_designs, total_indices
from explainers.options import LayerName, check_choice, check_keywords, check_whole, whole_number
from explainers.targets import TargetLike

METHODS = ("nmf", "sae", "pca")
Read = Callable[[SuffixBatch, Callable[[Tensor], Tensor], int], Tensor]
"""Values computed from copies of a layer's output that a function edits."""
_NUMBERS = 2**26
"""Maximum number of values that a fit reads. Of more, random cells of each image are used."""
_NMF_CELLS = 2**17
"""Maximum number of cells for "nmf", whose steps then take a fraction of a second."""


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


@dataclass(frozen=True, eq=False)
class Concept(Direction):
    """One concept of `concepts`: a target, its activation, and a value of `through=`, the gradient that flows along it.

    `at` is as in `unit`.
    """

    dictionary: Dictionary = field(kw_only=True)
    index: int = field(kw_only=True)

    def __repr__(self) -> str:
        return f"Concept(layer={shorten(self.layer)}, index={self.index}, at={self.at!r})"

    def activations(self, cells: Tensor) -> Tensor:
        """Return the activation of the concept in each cell [..., K]."""
        super().activations(cells)  # checks the number of channels
        return self.dictionary.encode(cells)[..., self.index]


@dataclass(frozen=True, eq=False)
class ScaleConcepts:
    """A change of a layer for `intervene(value=...)`: each concept times its factor, and the rest of the layer kept."""

    dictionary: Dictionary
    factors: Tensor

    def __call__(self, values: Tensor) -> Tensor:
        """Return the changed values [N, K, ...]."""
        return self.dictionary.scaled(values.movedim(1, -1), self.factors).movedim(-1, 1)

    def __repr__(self) -> str:
        changed = {i: round(f, 3) for i, f in enumerate(self.factors.tolist()) if f != 1}
        return f"concepts scaled by {changed}"


@dataclass(frozen=True, eq=False)
class Concepts(Displayed):
    """The result of `concepts`: k concepts of `layer`, found by `method`.

    `error` is the part of the variance that they do not explain, in the `cells` of the `images` from which they were
    computed, or a random part of many. `steps` of the fit are done; `finished` is False if it was stopped
    early. `concepts[i]` is a `Concept`. Concepts are sorted by their contribution to the features.
    """

    layer: str
    method: str
    dictionary: Dictionary = field(repr=False)
    error: float
    images: int
    cells: int
    steps: int
    finished: bool
    model: nn.Module = field(repr=False)
    state: dict[str, Any] = field(repr=False)
    """What a fit that continues needs, with the options that must be the same."""

    def __len__(self) -> int:
        return len(self.dictionary.directions)

    def __getitem__(self, index: int) -> Concept:
        return self.concept(index)

    def __iter__(self) -> Iterator[Concept]:
        return map(self.concept, range(len(self)))

    def concept(self, index: int, at: tuple[int, ...] | str | None = None) -> Concept:
        """Return a concept as a target and as a value of `through=`; `at` is as in `unit`."""
        number = whole_number(index)
        if number is None or not -len(self) <= number < len(self):
            # An IndexError, as for lists, ends a loop over the concepts.
            raise IndexError(f"Concept {shorten(index)} does not exist. Give an index from 0 to {len(self) - 1}.")
        number %= len(self)
        return Concept(self.layer, self.dictionary.directions[number], at, dictionary=self.dictionary, index=number)

    def encode(self, features: Tensor) -> Tensor:
        """Return the activations [N, k, h, w] of the concepts in features [N, K, h, w] of the layer."""
        return self.dictionary.encode(self._cells(features)).movedim(-1, 1)

    def decode(self, codes: Tensor) -> Tensor:
        """Return the features [N, K, h, w] with these activations [N, k, h, w]."""
        return self.dictionary.decode(codes.movedim(1, -1)).movedim(-1, 1)

    def scaled(self, features: Tensor, factors: Mapping[int, float] | Sequence[float] | Tensor) -> Tensor:
        """Return features [N, K, h, w] with each concept times its factor; what no concept explains is kept."""
        return self.dictionary.scaled(self._cells(features), self._factors(factors)).movedim(-1, 1)

    def scaling(self, factors: Mapping[int, float] | Sequence[float] | Tensor) -> ScaleConcepts:
        """Return the same change for `intervene`.

        `factors` are one for each concept, or those of some concepts: {3: 0} removes concept 3, {3: 2} doubles it.

        Example
            >>> intervene(model, images, found.layer, value=found.scaling({0: 0})).change.shape
            torch.Size([1, 1000])
        """
        return ScaleConcepts(self.dictionary, self._factors(factors))

    def features(self, images: Tensor) -> Tensor:
        """Return the layer's features [N, K, h, w] of images."""
        check_images(self.model, images)
        with open_run(self.model, images[:2], cost={}) as run:
            return collect(run, run.layer_layout(self.layer), images)

    def maps(self, images: Tensor) -> Tensor:
        """Return the activation of each concept in each cell, [N, k, h, w]."""
        return self.encode(self.features(images))

    def unexplained(self, images: Tensor) -> float:
        """Return the part of the variance of the features of images that the concepts do not explain."""
        return self.dictionary.unexplained(self._cells(self.features(images)).flatten(0, -2))

    def effects(
        self,
        images: Tensor,
        target: TargetLike = None,
        *,
        progress: Progress | None = None,
        budget: float | None = None,
    ) -> Tensor:
        """Return how much of the score each concept accounts for: y - y(without the concept), [N, k].

        The concept is removed at all positions, also from class tokens, and the rest of the network runs. `progress`
        and `budget` are as in the methods; concepts that are not reached have an effect of 0.
        """
        factors = 1 - torch.eye(len(self))
        scores, found = self._variants(images, target, factors, progress=progress, budget=budget)
        return (scores[:, None] - found).nan_to_num()

    def class_effects(self, images: Tensor, *, progress: Progress | None = None, budget: float | None = None) -> Tensor:
        """Return the mean effect of each concept on the score of each class, [k, classes], as `effects` does."""
        factors = torch.cat([torch.ones(1, len(self)), 1 - torch.eye(len(self))])
        read = SuffixBatch.class_scores
        _, found = self._variants(images, None, factors, read, progress=progress, budget=budget)
        return (found[:, :1] - found[:, 1:]).mean(0).nan_to_num()

    def predicted_effects(self, images: Tensor, target: TargetLike = None) -> Tensor:
        """Return `effects` as predicted by the gradient: Σ_ij u_ij d · ∂y/∂x_ij, [N, k]. It needs one pass."""
        check_images(self.model, images)
        with open_run(self.model, images, target) as run:
            layout = run.layer_layout(self.layer)
            ((a, g),) = run.backward.at([layout], run.images).values()
        a, g = (each.detach().movedim(layout.channel_axis, -1) for each in (a, g))
        products = self.dictionary.encode(a) * (g @ self.dictionary.directions.to(g).T)
        return products.flatten(1, -2).sum(1)

    def importance(
        self,
        images: Tensor,
        target: TargetLike = None,
        *,
        samples: int = 32,
        seed: int = 0,
        progress: Progress | None = None,
        budget: float | None = None,
    ) -> Tensor:
        """Return the total Sobol index of each concept, [N, k]: its part of the variance of the score, in [0, 1].

        All concepts are scaled by factors between 0 and 1. An index includes interactions, so the sum may exceed 1.

        Source   Fel et al. 2023 (CRAFT), section 3.3, arXiv:2211.10154; Jansen 1999
        """
        designs = sobol_designs(samples, len(self), seed)
        _, scores = self._variants(images, target, designs, progress=progress, budget=budget)
        reached = ~scores.isnan().any(0)
        return torch.stack([total_indices(row[reached].cpu(), len(self)).nan_to_num() for row in scores]).to(images)

    def display(self, labels: Sequence[str] | None = None) -> Display:
        """Return the sentence about the result."""
        return Display(paragraphs([repr(self)]), repr(self))

    def __repr__(self) -> str:
        stopped = "" if self.finished else ", stopped early"
        return (
            f"Concepts({len(self)} concepts of {self.layer} by {self.method}: {1 - self.error:.1%} of the variance of "
            f"{self.cells:,} cells of {self.images:,} image{'s' * (self.images != 1)} explained{stopped})"
        )

    def _variants(
        self, images: Tensor, target: TargetLike, factors: Tensor, read: Read = SuffixBatch.values, **cost: Any
    ) -> tuple[Tensor, Tensor]:
        """Return the scores [N] of images, and with concepts scaled by each row of factors [M, k], [N, M].

        `read` may return something else than the score for each variant. Rows that were not reached are NaN.
        """
        check_images(self.model, images)
        with open_run(self.model, images, target, cost=cost) as run:
            layout, _, scores = activation_and_score(run, self.layer)
            axis, branches = layout.channel_axis, suffix_batches(run, layout)
            parts: list[dict[int, Tensor]] = [{} for _ in branches]

            def work(rows: range) -> None:
                def edit(copies: Tensor) -> Tensor:  # all copies are equal
                    cells = copies[:1].movedim(axis, -1)
                    return self.dictionary.scaled(cells, factors[rows.start : rows.stop]).movedim(-1, axis).to(copies)

                for branch, found in zip(branches, parts, strict=True):
                    found[rows.start] = read(branch, edit, len(rows))

            done = run.loop.run(len(factors), run.loop.suffix_rows(), work, lambda: images.new_zeros(0))
        whole = torch.stack([torch.cat(list(found.values())) for found in parts])
        rest = whole.new_full((len(whole), len(factors) - done, *whole.shape[2:]), torch.nan)
        return scores, torch.cat([whole, rest], 1)

    def _cells(self, features: Tensor) -> Tensor:
        """Return features [N, K, h, w] as [N, h, w, K].

        Errors   BadOption
        """
        check_type("features", features, Tensor, "the features of the layer [N, K, h, w]")
        channels = len(self.dictionary.offset)
        if features.ndim < 2 or features.shape[1] != channels:
            raise BadOption(
                f"The features have shape {tuple(features.shape)}, but layer {self.layer!r} has {channels} channels. "
                "Give [N, K, h, w], or images to maps()."
            )
        return features.movedim(1, -1)

    def _factors(self, given: Mapping[int, float] | Sequence[float] | Tensor) -> Tensor:
        """Return the factors of all concepts, [k].

        Errors   BadOption
        """
        k, factors = len(self), torch.ones(len(self), dtype=torch.float64)
        if isinstance(given, Mapping):
            for index, factor in given.items():
                if whole_number(index) is None or not 0 <= index < k:
                    raise BadOption(f"Concept {shorten(index)} does not exist. Give an index from 0 to {k - 1}.")
                factors[index] = factor
        else:
            factors = torch.as_tensor(given, dtype=torch.float64)
        if factors.shape != (k,) or not bool(factors.isfinite().all()):
            raise BadOption(f"factors={shorten(given)} is not valid. Give one finite number for each of {k} concepts.")
        return factors


@check_keywords
@torch.inference_mode(False)
def find_concepts(
    model: nn.Module,
    images: Tensor,
    layer: LayerName | None = None,
    k: int = 10,
    method: str = "nmf",
    *,
    active: int = 8,
    epochs: int = 20,
    seed: int = 0,
    resume: Concepts | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
    budget: float | None = None,
    forward: Forward | None = None,
) -> Concepts:
    """Describe the features of a layer on many images as sums of k concepts.

        x ≈ b + Σ_i u_i d_i

    x are the channels of one cell, and the directions d of the concepts are the same in all cells of all images.
    `method` is how they are found:

        "nmf"    non-negative factors: u, d >= 0 (CRAFT)
        "sae"    a sparse autoencoder: at most `active` concepts of a cell are not 0. k may exceed the number of
                 channels. `epochs` are passes over all cells
        "pca"    principal components: orthogonal directions of largest variance

    If there are more than 2^26 values, or 2^17 cells for "nmf", random cells of each image are used. `seed` determines
    them, and the initial values. `progress` gets the directions so far as `map`. If it returns False, or after `budget`
    seconds, the fit stops; `resume`, with the same arguments, continues it, and the result is that of a fit that was
    not stopped. `layer`, `batch_size` and `forward` are as in the methods.

    Returns  `Concepts`
    Errors   BadOption for an unknown method, too few cells, a layer with constant features, or a `resume` with other
             arguments; LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel
    Source   Fel et al. 2023 (CRAFT), arXiv:2211.10154; Gao et al. 2024 (top-k SAE), arXiv:2406.04093

    Example
        >>> found = find_concepts(model, images, "layer4", k=3)
        >>> found.maps(images).shape
        torch.Size([1, 3, 7, 7])
    """
    check_images(model, images)
    settings = {"k": k, "method": method, "active": active, "epochs": epochs, "seed": seed}
    _check_settings(settings, resume)
    model = model if forward is None else wrap_forward(model, forward, images)
    loop = {"batch_size": batch_size, "budget": budget, "progress": report_part(progress, 0.0, 0.5)}
    with open_run(model, images[:2], cost=loop) as run:
        layout = run.layer_layout(layer)
        most = _NMF_CELLS if method == "nmf" else _NUMBERS
        cells = collect(run, layout, images, _cell_picker(len(images), most, seed))
        if len(cells) < max(2, k):
            raise BadOption(f"k={k} needs at least {max(2, k)} cells, but there are {len(cells)}. Give more images.")
        if not bool((cells != cells[0]).any()):
            raise BadOption(
                f"All {len(cells)} cells of layer {layout.name!r} are equal, so there is nothing to decompose. Choose "
                "another layer, or give images for which it is active."
            )
        fit = _fit_of(cells, settings, None if resume is None else resume.state["fit"])
        run.loop.progress = report_part(progress, 0.5, 1.0)
        done = fit.done

        def work(_: range) -> bool:
            fit.step()
            return fit.is_converged()

        if fit.steps > done and not (done and fit.is_converged()):
            run.loop.run(fit.steps - done, 1, work, lambda: fit.directions)
        found = fit.result()
        error, finished = found.unexplained(found.sample(cells)), not run.loop.ended_early
    state = {"fit": fit.state, "settings": settings}
    return Concepts(layout.name, method, found, error, len(images), len(cells), fit.done, finished, model, state)


def _check_settings(settings: dict[str, Any], resume: Concepts | None) -> None:
    """Check the options of `find_concepts`.

    Errors   BadOption
    """
    check_choice("method", settings["method"], METHODS)
    check_whole(1, k=settings["k"], active=settings["active"], epochs=settings["epochs"])
    check_whole(0, seed=settings["seed"])
    check_resume(resume, Concepts, "find_concepts", settings)


def _fit_of(cells: Tensor, settings: dict[str, Any], state: dict[str, Any] | None) -> NmfFit | PcaFit | SaeFit:
    """Return the fit of cells [P, K], or one that continues from a state."""
    k, seed = settings["k"], settings["seed"]
    if settings["method"] == "pca":
        return PcaFit(cells, k)
    if settings["method"] == "nmf":
        return NmfFit(cells, k, seed, state)
    return SaeFit(cells, k, settings["active"], settings["epochs"], seed, state)


def _cell_picker(count: int, most_cells: int, seed: int) -> Callable[[Tensor], Tensor]:
    """Return a function from features [B, K, h, w] to cells [P, K], at random if those of all images are too many."""
    generator = torch.Generator().manual_seed(seed)

    def pick(maps: Tensor) -> Tensor:
        cells = maps.flatten(2).transpose(1, 2)
        most = max(1, min(_NUMBERS // cells.shape[2], most_cells) // count)
        if most < cells.shape[1]:
            chosen = torch.stack([torch.randperm(cells.shape[1], generator=generator)[:most] for _ in cells])
            cells = cells.gather(1, chosen.to(cells.device)[..., None].expand(-1, -1, cells.shape[2]))
        return cells.flatten(0, 1)

    return pick
