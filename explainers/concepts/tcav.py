"""`tcav`: whether the score of a class depends on a concept that is given by example images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from explainers.call.current import check_images
from explainers.call.forward_wrapper import Forward, wrap_forward
from explainers.call.run import activations_and_gradients_of, open_run
from explainers.concepts.factors import collect
from explainers.derived_targets import Direction
from explainers.display.display import Display, Displayed, paragraphs
from explainers.dtypes import to_cpu_float64
from explainers.errors import BadOption, BadTarget, check_type, shorten
from explainers.options import LayerName, check_keywords, check_whole
from explainers.students_t import t_tail
from explainers.targets import TargetLike

_SETS = 5
"""The fewest sets of random images, whose concepts have a standard deviation."""
_RIDGE = 0.1
"""Penalty of a concept's classifier, as a part of the mean squared length of the features."""


@dataclass(frozen=True, eq=False)
class Tcav(Displayed):
    """The result of `tcav`.

    `score` is the part of the images whose score increases along the concept, `sensitivity` the mean of their
    `sensitivities` [N], in units of the target. `random` [R] are the mean sensitivities for the sets of random images,
    and `p_value` says how often a random concept has one as large as the concept's, times the number of `comparisons`.
    `accuracy` is the part of left-out images that a linear classifier of concept and random images recognizes.
    `direction` is the concept, a target and a value of `through=`.
    """

    score: float
    sensitivity: float
    p_value: float
    accuracy: float
    comparisons: int
    direction: Direction
    sensitivities: Tensor = field(repr=False)
    random: Tensor = field(repr=False)

    @property
    def is_significant(self) -> bool:
        """Whether the p-value is below 0.05."""
        return self.p_value < 0.05

    def display(self, labels: Sequence[str] | None = None) -> Display:
        """Return the sentence about the result."""
        return Display(paragraphs([repr(self)]), repr(self))

    def __repr__(self) -> str:
        n = len(self.sensitivities)
        verdict = "differs" if self.is_significant else "does not differ"
        return (
            f"Tcav(the score of {self.score:.0%} of {n} image{'s' * (n != 1)} increases along the concept; its "
            f"sensitivity {self.sensitivity:.3g} {verdict} from that of {len(self.random)} random concepts, "
            f"p = {self.p_value:.2g}; the concept is separated with accuracy {self.accuracy:.0%})"
        )


@check_keywords
@torch.inference_mode(False)
def tcav(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    concept_images: Tensor,
    random_images: Tensor | Sequence[Tensor],
    layer: LayerName | None = None,
    comparisons: int = 1,
    forward: Forward | None = None,
) -> Tcav:
    """Test whether the score of images depends on a concept more than on random concepts (TCAV).

        s = ∂y/∂a · v,  v = mean a of the concept - mean a of random images

    a are the means of the layer's features over its cells, and s is the change of the score, to first order, if the
    features of an image change as from random images to the concept. v has no direction that the images do not have,
    unlike the weights of a classifier (Pahde et al.). The features change alike in all cells, so choose a late layer:
    at an early one, where a concept is in few cells, even the sign may be wrong. `random_images` are several sets, or
    one tensor that is split into sets as large as the concept's.

    Each set of random images is a random concept with its own s. A two-sided t-test compares the mean s of the concept
    with these. Its p-value is multiplied by `comparisons`, the number of concepts and classes that you test
    (Bonferroni). Kim et al. instead compare several scores of the same concept images, which are not independent.

    `images` are those of the class whose score is explained; `target`, `layer` and `forward` are as in the methods.

    Returns  a `Tcav`
    Errors   BadOption for fewer than 5 sets of random images or 2 images in a set, or if the concept's classifier is
             not better than chance on held-out images; LayerNotFound, LayerRanRepeatedly, NoSpatialOutput
    Source   Kim et al. 2018, sections 3.2 to 3.5, arXiv:1711.11279; Pahde et al. 2022, section 3, arXiv:2202.03482

    Example
        >>> stripes, others = torch.rand(12, 3, 224, 224) + images, torch.rand(60, 3, 224, 224)
        >>> found = tcav(model, images, 281, concept_images=stripes, random_images=others, layer="layer4")
        >>> 0 <= found.score <= 1
        True
    """
    check_images(model, images)
    check_whole(1, comparisons=comparisons)
    model = model if forward is None else wrap_forward(model, forward, images)
    sets = _sets_of(random_images, concept_images)
    (at,) = activations_and_gradients_of(model, images, [layer], target).values()
    gradients = to_cpu_float64(at.gradients.flatten(2).sum(2))
    if not bool(gradients.any()):
        raise BadTarget("The score does not depend on the layer: its gradient is 0. Choose another layer.")
    own, *others = (_pooled(model, each, at.layout.name) for each in (concept_images, *sets))
    accuracy = sum(_left_out_accuracy(own, other) for other in others) / len(others)
    _refuse_chance(accuracy, len(own))
    means = torch.stack([each.mean(0) for each in others])
    vector = own.mean(0) - means.mean(0)
    sensitivities, random = gradients @ vector, (means - means.mean(0)) @ gradients.mean(0)
    mean, spread = float(sensitivities.mean()), float(random.std()) * math.sqrt(1 + 1 / len(random))
    p_value = min(1.0, comparisons * t_tail(mean / spread, len(random) - 1)) if spread else 1.0
    score = float((sensitivities > 0).double().mean())
    direction = Direction(at.layout.name, vector)
    return Tcav(score, mean, p_value, accuracy, comparisons, direction, sensitivities, random)


def _sets_of(given: Tensor | Sequence[Tensor], concept: Tensor) -> list[Tensor]:
    """Return the sets of random images, each with at least two images.

    Errors   BadOption
    """
    check_type("concept_images", concept, Tensor, "images of the concept [N, C, H, W]")
    for name, each in (("concept_images", concept), ("random_images", given)):
        if isinstance(each, Tensor) and not each.ndim:
            raise BadOption(f"{name}={shorten(each)} is not valid. Give images [N, C, H, W].")
    sets = list(given) if isinstance(given, (list, tuple)) else []
    if isinstance(given, Tensor):
        size = max(1, len(concept))
        sets = [part for part in given.split(size) if len(part) == size]
    if len(sets) < _SETS or min(map(len, [concept, *sets])) < 2:
        raise BadOption(
            f"There are {len(concept)} concept images and {len(sets)} sets of random images. Give at least 2 images of "
            f"the concept, and {_SETS} sets as large, better 20: {_SETS * max(2, len(concept))} random images or more."
        )
    return sets


def _pooled(model: nn.Module, images: Tensor, layer: str) -> Tensor:
    """Return the mean of the layer's features over its cells, [N, K]."""
    check_images(model, images)
    with open_run(model, images[:2], cost={}) as run:
        return collect(run, run.layer_layout(layer), images, lambda maps: to_cpu_float64(maps.flatten(2).mean(2)))


def _left_out_accuracy(positive: Tensor, negative: Tensor) -> float:
    """Return the accuracy of a linear classifier of two sets of features on each image, fitted to the others.

    It is the regression of the labels 1 and -1 with a squared penalty, whose predictions for images that are left out
    follow from one inverse.

    Source   Rasmussen & Williams 2006, section 5.4.2 (leave-one-out predictions)
    """
    rows = torch.cat([positive, negative])
    rows = rows - (positive.mean(0) + negative.mean(0)) / 2
    labels = torch.cat([torch.ones(len(positive)), -torch.ones(len(negative))]).to(rows)
    products = rows @ rows.T
    size = float(products.diagonal().mean())
    if not size:
        return 0.5
    inverse = torch.linalg.inv(products + _RIDGE * size * torch.eye(len(rows), dtype=rows.dtype))
    left_out = labels - inverse @ labels / inverse.diagonal()
    return float((left_out * labels > 0).double().mean())


def _refuse_chance(accuracy: float, count: int) -> None:
    """Raise an error if a classifier of `count` images in each class is not better than chance at a level of 5%.

    Errors   BadOption
    """
    least = 0.5 + 1.645 * 0.5 / math.sqrt(2 * count)
    if accuracy < least:
        raise BadOption(
            f"The concept images are not separated from the random images: {accuracy:.0%} of left-out images are "
            f"classified correctly, and chance with {count} images reaches {least:.0%}. Give more or clearer images of "
            "the concept, or another layer."
        )
