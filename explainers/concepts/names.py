"""`name_units`: names of units, proposed on one half of the images and tested on the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from explainers.dtypes import to_float64
from explainers.errors import BadOption, check_type, shorten
from explainers.options import check_finite, check_keywords, check_whole

NORMAL = 1.959964
"""The normal distribution has 95% of its mass within this number of standard deviations."""
FEWEST = 5
"""Images with a name, and without it, that both halves need. A test on fewer says little."""
SHARED = 2
"""Strongest images that must share a name before it is proposed."""

Labels = Sequence[str | Collection[str] | None]
"""For each image its name, all its names (a label and its ancestors), or None if they are not known."""


@dataclass(frozen=True)
class UnitName:
    """A name of a unit, with its test on images that were not used to propose it.

    `auc` is the probability that the unit is more active on an image that has the name than on one that does not, ties
    counting half; `low` and `high` are its 95% interval. `count` images of the test have the name, `others` do not.
    """

    name: str
    auc: float
    low: float
    high: float
    count: int
    others: int

    def __str__(self) -> str:
        return f"{self.name} (AUC {self.auc:.2f}, {self.low:.2f} to {self.high:.2f}, {self.count} images)"


@check_keywords
@torch.no_grad()
def name_units(
    activations: Tensor,
    labels: Labels,
    *,
    held_out: Sequence[bool] | Tensor | None = None,
    top: int = 25,
    least: float = 0.85,
) -> list[UnitName | None]:
    """Name the units of a layer by the labels of their strongest images, and test each name on other images.

    `activations` [N, K] are those of K units in N images: `IndexedBatch.means` or `IndexedBatch.peaks`. The images are
    divided into two parts. On the first, the names that at least two of the `top` strongest images share are
    proposed, and the one with the highest lower end of its interval is chosen. The second, `held_out` [N], tests this
    one name. Choosing among many names makes a number better than it is only on the images on which they are
    compared, so the number on the second part is not biased by the choice. Without `held_out`, every second image with
    the same labels is held out.

    A unit has no name if its AUC on the second part is below `least`, if no name is shared, or if a part has fewer than
    5 images with or without it. Among many units, some are above `least` by chance: read the interval, which is that
    of one unit. It has no width if the AUC is 1.

    An image may have several names, such as its label and its ancestors in WordNet, or the names whose sentences are
    most similar to it according to a sentence encoder. Images whose label is None are not used.

    Returns  a `UnitName` or None for each unit
    Errors   BadOption if `activations` is not a finite [N, K], or `labels` or `held_out` have another length

    Example
        >>> activations = torch.eye(2)[torch.arange(40) % 2]
        >>> name_units(activations, ["cat", "dog"] * 20)[1].name
        'dog'
    """
    names = _checked_names(activations, labels)
    check_whole(1, top=top)
    check_finite("least", least, "a number from 0 to 1", least=0, most=1)
    known = torch.tensor([bool(each) for each in names])
    try:
        tests = _every_second(names) if held_out is None else torch.as_tensor(held_out).bool().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadOption(f"held_out={shorten(held_out)} is not valid. Give True or False for each image.") from error
    if tests.shape != known.shape:
        raise BadOption(f"held_out has shape {tuple(tests.shape)}. Give one value for each of {len(names)} images.")
    vocabulary = {name: index for index, name in enumerate(sorted(set().union(*names)))}
    has = torch.zeros(len(vocabulary), len(names), dtype=torch.bool)
    for image, each in enumerate(names):
        has[[vocabulary[name] for name in each], image] = True
    values = to_float64(activations.detach()).cpu()
    parts = [(values[part], has[:, part]) for part in (known & ~tests, known & tests)]
    words = list(vocabulary)
    return [_name(unit, words, parts, top, least) for unit in range(values.shape[1])]


def _checked_names(activations: Tensor, labels: Labels) -> list[frozenset[str]]:
    """Return the names of each image, none for those that are not known.

    Errors   WrongType, BadOption
    """
    check_type("activations", activations, Tensor, "a tensor [N, K]")
    if activations.ndim != 2 or not bool(activations.isfinite().all()):
        raise BadOption(f"activations is {shorten(activations)}. Give finite values [N, K], one row for each image.")
    if isinstance(labels, str) or not isinstance(labels, Sequence) or len(labels) != len(activations):
        raise BadOption(f"labels={shorten(labels)} does not match {len(activations)} images. Give one for each.")
    return [frozenset([each] if isinstance(each, str) else each or ()) for each in labels]


def _every_second(names: Sequence[frozenset[str]]) -> Tensor:
    """Return whether each image [N] is held out: every second one with the same names, so that both parts have all."""
    seen: Counter[frozenset[str]] = Counter()
    held_out = []
    for each in names:
        held_out.append(seen[each] % 2 == 1)
        seen[each] += 1
    return torch.tensor(held_out, dtype=torch.bool)


def _name(
    unit: int, words: list[str], parts: Sequence[tuple[Tensor, Tensor]], top: int, least: float
) -> UnitName | None:
    """Return the name of a unit; each part has activations [n, K] and which names its images have, [names, n]."""
    (first, has), (second, tested) = parts
    strongest = first[:, unit].argsort(descending=True, stable=True)[:top]
    proposed = has[:, strongest].sum(1) >= SHARED
    for each in (has, tested):
        count = each.sum(1)
        proposed &= (count >= FEWEST) & (each.shape[1] - count >= FEWEST)
    candidates = proposed.nonzero()[:, 0]
    if not len(candidates):
        return None
    chosen = int(candidates[auc_intervals(first[:, unit], has[candidates])[1].argmax()])
    auc, low, high = (float(each) for each in auc_intervals(second[:, unit], tested[chosen : chosen + 1]))
    if auc < least:
        return None
    images = int(tested[chosen].sum())
    return UnitName(words[chosen], auc, low, high, images, tested.shape[1] - images)


def auc_intervals(values: Tensor, has: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the AUC of each name [C] by the values [n] of images, and the ends of its 95% interval.

    `has` [C, n] is whether each image has the name, at least two with and two without it. Ties count half.

    Source   DeLong et al. 1988, Biometrics 44: the variance of the Mann-Whitney statistic from its components, here
             summed over groups of equal values
    """
    groups = values.unique(return_inverse=True)[1]
    with_name = torch.zeros(len(has), int(groups.max()) + 1, dtype=torch.float64).index_add_(1, groups, has.double())
    without = torch.bincount(groups) - with_name
    count, others = with_name.sum(1, keepdim=True), without.sum(1, keepdim=True)
    # For each value: the share of images without the name below it, and of images with the name above it.
    below = (without.cumsum(1) - without / 2) / others
    above = 1 - (with_name.cumsum(1) - with_name / 2) / count
    auc = (with_name * below).sum(1, keepdim=True) / count
    variance = (with_name * (below - auc) ** 2).sum(1, keepdim=True) / (count * (count - 1))
    variance += (without * (above - auc) ** 2).sum(1, keepdim=True) / (others * (others - 1))
    half = NORMAL * variance.sqrt()
    return auc[:, 0], (auc - half).clamp(min=0)[:, 0], (auc + half).clamp(max=1)[:, 0]
