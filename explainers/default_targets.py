"""What is explained if no target is given: the top class, the largest class of a segmentation, or the best detection.

The page lists the regions and the detections of an image in the same order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from explainers.derived_targets import LayerTarget, LogProbability, Probability
from explainers.errors import BadOption, BadTarget, check_type
from explainers.findings import note_finding
from explainers.output_targets import BoxScores, MaskScores, are_detections
from explainers.outputs import class_maps_of, scores_in
from explainers.targets import Logit, Target, scores_of, select

BACKGROUND = ("__background__", "background")
"""Names of the class of a segmentation network that is explained only on request."""
CHOSEN = ("largest_class", "best_detection")
"""Codes of the findings about a chosen target."""


@dataclass(frozen=True)
class DefaultTarget(Target):
    """The target of a call without one; `overlap` is that of `BoxScores` for a chosen detection."""

    overlap: float = 0.5


@dataclass(frozen=True, eq=False)
class EachDetection(Target):
    """One detection of each image, found in that image only."""

    detections: tuple[BoxScores, ...]

    def rows(self, image_indices: Sequence[int]) -> Target:
        return EachDetection(tuple(self.detections[i] for i in image_indices))

    def __call__(self, output: Any) -> Tensor:
        """Return the scores [N], between 0 and 1."""
        if not isinstance(output, (list, tuple)) or len(output) != len(self.detections):
            return self.detections[0](output)  # refuses the output
        return torch.cat([target([found]) for target, found in zip(self.detections, output, strict=True)])

    def __repr__(self) -> str:
        return f"BoxScores(1 box of each image, labels={tuple(each.labels[0] for each in self.detections)})"


def resolve_target(target: Target | None, output: Any, count: int, model: nn.Module | None = None) -> Target:
    """Return the target with fixed cells; without a target, choose one for each image by the network's `output`.

    Errors   BadTarget for a class out of range, or an output in which nothing can be chosen
    """
    if isinstance(target, LayerTarget):
        return target.fixed(output, count)
    if isinstance(target, (Logit, Probability, LogProbability)):
        select(scores_of(output), target.classes)
    if target is not None and not isinstance(target, DefaultTarget):
        return target
    if isinstance(output, Tensor) and output.ndim == 2:
        return Logit(output.argmax(1))
    if isinstance(output, (list, tuple)) and output and all(map(are_detections, output)):
        return _best_detections(output, target.overlap if target else DefaultTarget.overlap)
    if (maps := _class_maps(output)) is not None:
        return _largest_classes(maps, background_of(model))
    return Logit(scores_of(output).argmax(1))


def pixel_classes(output: Any) -> Tensor:
    """Return the class of every pixel [N, H, W] by the output of a segmentation network.

    The output is a tensor of class maps [N, K, H, W], {"out": maps}, an object with `logits`, or one with classes and a
    mask for each query. A single map is that of class 0 against nothing, which is -1: scores above 0, or probabilities
    above 0.5.

    Returns  int64 (n, h, w)
    Errors   BadTarget for another output

    Example
        >>> pixel_classes({"out": torch.tensor([[[[1.0, 2.0]], [[3.0, 0.0]]]])})
        tensor([[[1, 0]]])
    """
    maps = class_maps_of(output)
    if maps.shape[1] > 1:
        return maps.argmax(1)
    are_probabilities = bool(((maps >= 0) & (maps <= 1)).all())
    return (maps[:, 0] > (0.5 if are_probabilities else 0.0)).long() - 1


def classes_by_area(classes: Tensor, last: Collection[int] = ()) -> dict[int, int]:
    """Return the number of pixels of each class in the classes of pixels [H, W], the largest class first.

    Classes in `last`, such as the background, come after all others. Pixels of class -1 belong to none.

    Errors   WrongType

    Example
        >>> classes_by_area(torch.tensor([[0, 0, 0], [2, 2, 1]]), last={0})
        {2: 2, 1: 1, 0: 3}
    """
    check_type("classes", classes, Tensor, "a tensor of the classes of all pixels [H, W]")
    check_type("last", last, Collection, "a set or a list of classes")
    labels, counts = torch.unique(classes[classes >= 0], return_counts=True)
    pairs = zip(labels.tolist(), counts.tolist(), strict=True)
    return dict(sorted(pairs, key=lambda pair: (pair[0] in last, -pair[1])))


def detections_by_score(found: Mapping[str, Tensor]) -> list[int]:
    """Return the rows of an image's detections, best first; boxes without area, at the image's edge, are left out.

    `found` has "boxes" [n, 4] (left, top, right, bottom) and "scores" [n], as the detectors of torchvision return them.

    Errors   WrongType; BadOption if it lacks one of them

    Example
        >>> boxes = torch.tensor([[0.0, 0, 5, 5], [2, 2, 2, 9], [1, 1, 3, 3]])
        >>> detections_by_score({"boxes": boxes, "scores": torch.tensor([0.4, 0.9, 0.7])})
        [2, 0]
    """
    check_type("found", found, Mapping, 'the detections of one image: {"boxes": boxes, "scores": scores}')
    if not {"boxes", "scores"} <= found.keys():
        raise BadOption(f"found has {', '.join(map(repr, found)) or 'nothing'}. Give 'boxes' [n, 4] and 'scores' [n].")
    boxes = found["boxes"]
    has_area = (boxes[:, 2:] > boxes[:, :2]).all(1).tolist()
    order: list[int] = found["scores"].argsort(descending=True, stable=True).tolist()
    return [row for row in order if has_area[row]]


def is_background(name: str) -> bool:
    """Return whether a class of a segmentation network is the background, by its name, in any case.

    Errors   WrongType

    Example
        >>> is_background("Background"), is_background("dog")
        (True, False)
    """
    check_type("name", name, str, "the name of a class")
    return name.lower() in BACKGROUND


def background_of(model: nn.Module | None) -> frozenset[int]:
    """Return the background classes of a segmentation network, by the names in its configuration.

    The networks of torchvision have no names; class 0 of their weights is the background.
    """
    if type(model).__module__.startswith("torchvision.models.segmentation"):
        return frozenset({0})
    names = getattr(getattr(model, "config", None), "id2label", None)
    found = names.items() if isinstance(names, Mapping) else ()
    return frozenset(int(label) for label, name in found if is_background(str(name)))


def _class_maps(output: Any) -> Tensor | None:
    """Return the class maps [N, K, H, W] of a segmentation output, or None for another output.

    A tensor of more channels than cells consists of features.
    """
    if isinstance(scores := scores_in(output), Tensor) and scores.ndim == 2:
        return None
    try:
        maps = class_maps_of(output)
    except BadTarget:
        return None
    return maps if maps.is_floating_point() and maps.shape[1] < maps.shape[2] * maps.shape[3] else None


def _largest_classes(maps: Tensor, background: Collection[int]) -> Target:
    maps = maps.detach()
    chosen: list[int] = []
    classes = pixel_classes(maps)
    for image, own in enumerate(classes):
        areas = classes_by_area(own, background)
        objects = [each for each in areas if each not in background]
        if not objects:
            raise BadTarget(_only_background(_named(image, len(classes)), next(iter(areas), None)))
        label, second = objects[0], objects[1] if len(objects) > 1 else None
        chosen.append(label)
        share = areas[label] / own.numel()
        note_finding(
            "largest_class",
            f"No target was given, so the map explains class {label}, the largest class of the image"
            + (" except for the background" if background else "")
            + f" ({share:.1%} of the pixels): its mean score over these pixels. "
            + ("" if second is None else f"The next one is class {second} ({areas[second] / own.numel():.1%}). ")
            + "For another class, give target=MaskScores(mask, class_).",
            image=image,
            label=label,
            share=share,
            next=second,
        )
    mask = classes == torch.tensor(chosen, device=classes.device)[:, None, None]
    return MaskScores(mask, chosen)


def _named(image: int, count: int) -> str:
    """Return how a message names an image; the only image of a call has no number."""
    return "the image" if count == 1 else f"image {image}"


def _only_background(image: str, label: int | None) -> str:
    if label is None:
        return (
            f"The network assigns no pixel of {image} to its class, so there is nothing to explain. Give another "
            "image, or a target such as MaskScores(mask, 0)."
        )
    return (
        f"The network assigns every pixel of {image} to the background (class {label}). Give another image, or "
        f"the background as target=MaskScores(mask, {label})."
    )


def _best_detections(output: Sequence[Mapping[str, Tensor]], overlap: float) -> Target:
    chosen = []
    for image, found in enumerate(output):
        if "scores" not in found:
            return Logit(scores_of(output).argmax(1))  # refuses candidates, many of which are not detections
        row = next(iter(detections_by_score(found)), None)
        if row is None:
            raise BadTarget(
                f"The detector found nothing in {_named(image, len(output))}, so there is nothing to explain. Leave "
                "this image out, or give the object as target=BoxScores(boxes, labels)."
            )
        box, label = found["boxes"][row].detach(), int(found["labels"][row])
        score = float(found["scores"][row].detach())
        chosen.append(BoxScores(box[None], (label,), overlap))
        corners = ", ".join(f"{value:.0f}" for value in box.tolist())
        note_finding(
            "best_detection",
            f"No target was given, so the map explains the detection with the highest score: label {label} with score "
            f"{score:.2f} at ({corners}). For another one, give target=BoxScores(boxes, labels).",
            image=image,
            label=label,
            score=score,
            box=[float(value) for value in box.tolist()],
        )
    return EachDetection(tuple(chosen))
