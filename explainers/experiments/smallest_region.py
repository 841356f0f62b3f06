"""`smallest_region`: the fewest pixels of a map, in its order, that keep a prediction, or whose removal changes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from explainers.call.current import check_images
from explainers.call.forward_wrapper import Forward, wrap_forward
from explainers.call.method import Method
from explainers.call.run import open_run
from explainers.call.score_kind import score_kind
from explainers.dtypes import to_float64
from explainers.errors import BadOption, BadTarget, check_type, kind_of, shorten
from explainers.explanation.result import Explanation
from explainers.explanation.run import explain
from explainers.maps.resize import resize
from explainers.options import Baseline, check_choice, check_keywords
from explainers.perturbation.baselines import baseline_of
from explainers.probabilities import check_score, probabilities_of
from explainers.registry import MethodLike
from explainers.targets import Logit, as_target, out_of_range

GOALS = ("keep", "half", "change")


@dataclass(frozen=True, eq=False)
class SmallestRegion:
    """The result of `smallest_region` for N images.

    `mask` [N, H, W] is True inside the region, `fraction` [N] its part of the pixels. `classes` are the predictions for
    the images, or the given ones, `scores` [N, K] the scores with only the region ("keep", "half") or without it
    ("change"). `reached` [N] says whether the goal can be reached in the order of the map; where it is False, the
    region is the whole image. `passes` is the number of forward passes of each image.
    """

    goal: str
    mask: Tensor
    fraction: Tensor
    classes: list[int]
    scores: Tensor
    reached: Tensor
    passes: int

    def __repr__(self) -> str:
        n = len(self.mask)
        what = {"keep": "keeps", "half": "keeps half of the probability of", "change": "changes"}[self.goal]
        shares = ", ".join(f"{float(each):.1%}" for each in self.fraction[:4]) + ", ..." * (n > 4)
        failed = n - int(self.reached.sum())
        note = f", not reached for {failed}" if failed else ""
        return (
            f"SmallestRegion({shares} of the pixels {what} the prediction of {n} image{'s' * (n != 1)}{note}, "
            f"{self.passes} forward passes)"
        )


@check_keywords
@torch.inference_mode(False)
def smallest_region(
    model: nn.Module,
    images: Tensor,
    maps: Tensor | Explanation | MethodLike,
    target: int | Sequence[int] | Tensor | None = None,
    *,
    goal: str = "keep",
    baseline: Baseline = "blur",
    forward: Forward | None = None,
    score: str | None = None,
) -> SmallestRegion:
    """Find the fewest pixels, in the order of a map, that keep the prediction or whose removal changes it.

    The pixels of `maps` [N, h, w], which cover the images evenly, of an `Explanation`, or of the map of a method,
    are ordered from the highest value to the lowest. All others (goals "keep" and "half"), or the first ones (goal
    "change"), are replaced by `baseline`, as in `evaluate`. "keep" keeps the class, whatever its probability;
    "half" also keeps at least half of its probability. Bisection finds a number k so that the goal is reached with
    the first k pixels and not with the first k - 1. A smaller k may reach it too, if the prediction changes several
    times along the order. The prediction is that for the images, or the class `target`, one for all images or one
    for each, which is also the target of a method. `forward` and `score` are as in `explain`.

    Returns  a `SmallestRegion`; it takes 3 + log2(H W) forward passes of each image at most
    Errors   BadOption for another goal or baseline, a constant map, values that are not finite, maps of another shape,
             or goal "half" if the scores are not probabilities; BadImages for videos; BadTarget if the output of the
             model is not [N, K]
    Source   Dabkowski & Gal 2017, section 3 (smallest sufficient and smallest destroying region), arXiv:1705.07857

    Example
        >>> found = smallest_region(model, images, "grad_cam")
        >>> found.mask.shape
        torch.Size([1, 224, 224])
    """
    check_images(model, images)
    check_choice("goal", goal, GOALS)
    check_score(score)
    given = None if target is None else as_target(target, len(images))
    if given is not None and not isinstance(given, Logit):
        raise BadTarget(
            f"target={shorten(target)} is not a class, but a prediction is kept or changed. Give the index of a class."
        )
    model = model if forward is None else wrap_forward(model, forward, images)
    if isinstance(maps, (str, Method)) or callable(maps):
        maps = explain(maps, model, images, given, compare=False)
    ranks = pixel_ranks(maps.placed if isinstance(maps, Explanation) else maps, images)
    with open_run(model, images, several=True) as run:
        cover = baseline_of(run.images, baseline)
        first = run.forward.scores(run.images)
        classes = first.argmax(1)
        if given is not None:
            classes = torch.tensor(given.classes, device=first.device).expand(len(images))
        if int(classes.max()) >= first.shape[1]:
            raise BadTarget(out_of_range(int(classes.max()), first.shape[1]))
        kind = score_kind(run.view, run.images, first, score).score if goal == "half" else None
        if kind == "logit":
            raise BadOption("goal='half' needs probabilities, and score='logit' says that there are none. Give 'keep'.")

        def probability_of(scores: Tensor) -> Tensor:
            """Return the probability [N] of the prediction."""
            found = probabilities_of(to_float64(scores), kind)
            assert found is not None, "refused above"
            return found.gather(1, classes[:, None])[:, 0]

        def scores_with(counts: Tensor) -> Tensor:
            """Return the scores if the first pixels of each image, as many as in `counts`, are the region."""
            inside = (ranks < counts[:, None, None])[:, None]
            shown, hidden = (cover, run.images) if goal == "change" else (run.images, cover)
            return run.forward.scores(torch.where(inside, shown, hidden))

        def is_reached(scores: Tensor) -> Tensor:
            same: Tensor = scores.argmax(1) == classes
            if goal == "half":
                return same & (probability_of(scores) >= probability_of(first) / 2)
            return same if goal == "keep" else ~same

        counts, scores, passes = _bisect(scores_with, is_reached, ranks)
    mask = ranks < counts[:, None, None]
    fraction = mask.float().flatten(1).mean(1)
    return SmallestRegion(goal, mask, fraction, classes.tolist(), scores, is_reached(scores), passes + 1)


def _bisect(
    scores_with: Callable[[Tensor], Tensor], is_reached: Callable[[Tensor], Tensor], ranks: Tensor
) -> tuple[Tensor, Tensor, int]:
    """Return the smallest found counts [N] that reach the goal, their scores, and the number of passes.

    `low` never reaches the goal and `high` always does, if it can be reached at all. A goal for another class than the
    prediction may be reached without any pixel.
    """
    total = ranks[0].numel()
    high = torch.full((len(ranks),), total, device=ranks.device)
    low = torch.zeros_like(high)
    best, none = scores_with(high), scores_with(low)
    passes, possible, at_once = 2, is_reached(best), is_reached(none)
    high = torch.where(at_once, 0, high)
    best = torch.where(at_once[:, None], none, best)
    while bool((open_rows := possible & (high - low > 1)).any()):
        middle = torch.where(open_rows, (low + high) // 2, high)
        scores = scores_with(middle)
        passes += 1
        success = open_rows & is_reached(scores)
        best = torch.where(success[:, None], scores, best)
        high = torch.where(success, middle, high)
        low = torch.where(open_rows & ~success, middle, low)
    return high, best, passes


def pixel_ranks(maps: Tensor, images: Tensor) -> Tensor:
    """Return the position of each pixel in the order of its map, from 0 for the highest value.

    `maps` [N, h, w] are resized to the images; equal values are in reading order. `smallest_region` uses this order.

    Returns  int64 (n, height, width)
    Errors   BadOption for maps of another shape, constant maps, and values that are not finite

    Example
        >>> pixel_ranks(torch.tensor([[[0.1, 0.4], [0.3, 0.2]]]), torch.zeros(1, 3, 2, 2))
        tensor([[[3, 0],
                 [1, 2]]])
    """
    check_type("images", images, Tensor, "images [N, C, H, W]")
    if not isinstance(maps, Tensor) or maps.ndim != 3 or len(maps) != len(images) or images.ndim != 4:
        given = f"of shape {tuple(maps.shape)}" if isinstance(maps, Tensor) else kind_of(maps)
        raise BadOption(
            f"maps is {given}. Give one map [h, w] for each of the {len(images)} images: the map of explain, or pixel "
            "attributions reduced with .sum(1)."
        )
    values = maps.detach().to(images.device)
    values = resize(values if values.is_floating_point() else values.float(), tuple(images.shape[-2:])).flatten(1)
    if not bool(values.isfinite().all()):
        raise BadOption("A map has values that are not finite, so its pixels have no order. Use another method, layer.")
    if bool((values.amax(1) == values.amin(1)).any()):
        raise BadOption("A map is constant, so its pixels have no order. Use another method, layer or class.")
    order = values.argsort(dim=1, descending=True, stable=True)
    places = torch.arange(values.shape[1], device=values.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, places).reshape(len(images), *images.shape[-2:])
