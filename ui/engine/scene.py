"""What segmentation networks and detectors find in a picture, and which of it a request means.

A detection is explained by `BoxScores`: the score of the detection of that label whose box overlaps by half at least,
times the overlap; 0 where a perturbed picture has none. Pixels are explained by `MaskScores`: the mean logit of their
class, over the pixels that the network gave that class in the clean picture.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from PIL import Image

from ui import words
from ui.engine import network_calls
from ui.engine.messages import MIN_SCORE, Answer, Found, Loaded, Scene, Settings, Subject, ranked

if TYPE_CHECKING:
    import torch

    from explainers.layers.layer import Layer
    from explainers.options import Option
    from explainers.targets import Target

MOST = 50
"""Detections, and regions of one class, that can be chosen."""
LEAST = 0.005
"""The smallest connected region with a name of its own, in parts of the picture."""
SIDE = 256
"""Pixels of the longer side at which connected regions are looked for: at 520 pixels that takes a second."""
BACKGROUND = ("__background__", "background")


def options(loaded: Loaded) -> dict[str, Option]:
    """The options of a request that belong to the network and not to the method."""
    if loaded.model.task != "detection":
        return {}
    from explainers.options import Option  # torch takes seconds to start

    return {MIN_SCORE: Option(MIN_SCORE, 0.5, "float", 0.01, 1.0, 0.01, help="detections below it are left out")}


def parsed(name: str, loaded: Loaded) -> tuple[str, int]:
    """The class and the rank in a target such as "dog#2"; a whole name that is a class stays as it is."""
    head, mark, tail = name.rpartition("#")
    if loaded.finds and mark and name not in loaded.names and tail.isdecimal() and len(tail) < 4:
        return head, int(tail)
    return name, 0


def unit(name: str, loaded: Loaded) -> tuple[str, int] | None:
    """Layer and number of the channel that a target such as "channel 12 of head" names, where a class is explained."""
    found = re.fullmatch(r"channel (\d{1,6}) of (.+)", name)
    if found is None or loaded.finds or name in loaded.names:
        return None
    channel, path = int(found[1]), found[2]
    layer = next((layer for layer in loaded.layers if layer.name == path), None)
    return (path, channel) if layer and channel < layer.shape[_channel_axis(layer)] else None


def _channel_axis(layer: Layer) -> int:
    from explainers.layers.layout import channel_axis  # torch takes seconds to start

    return channel_axis(layer.layout)


def target_of(settings: Settings) -> int | Target | None:
    """The class, or the mean of a channel; None for the top class."""
    import explainers  # torch takes seconds to start

    return explainers.unit(*settings.unit) if settings.unit else settings.target


def subject_of(settings: Settings, seen: Image.Image, images: torch.Tensor) -> Subject | None:
    """The requested class, or the top prediction (also where a channel is explained); what is found, or nothing."""
    if settings.loaded.finds:
        chosen = look(settings, seen, images).chosen
        return Subject(chosen.name, chosen.label, chosen.target) if chosen else None
    label = settings.target
    if label is None:
        label = int(network_calls.scores(settings.loaded.name, images).argmax())
    return Subject(settings.loaded.names[label], label, label)


def stages_of(settings: Settings) -> list[str]:
    """The layers at which stages end; later ones than a channel have no part in it."""
    names = [layer.name for layer in settings.loaded.layers]
    last = names.index(settings.unit[0]) if settings.unit else len(names)
    return [layer.name for layer in settings.loaded.layers[: last + 1] if layer.stage]


def look(settings: Settings, seen: Image.Image, images: torch.Tensor) -> Scene:
    """Everything that is found in the network's input, and what of it is to be explained.

    What was asked for and is not there becomes the default and a note.

    Errors   Refused where the network's output is none that is read here
    """
    if settings.loaded.model.task == "detection":
        everything = _detections(settings, images)
        found = [each for each in everything if each.share >= settings.min_score]
        default, sentence = next(iter(found), None), words.nothing_found(settings, everything[:1])
        remedy = _lower(everything)
    else:
        found, remedy = _regions(settings, images), {}
        default = next((each for each in found if not is_background(settings.loaded, each.label)), None)
        sentence = words.ONLY_BACKGROUND
    chosen = default
    if settings.target is not None:
        same = [each for each in found if each.label == settings.target]
        # The strongest detection needs no rank, a region without others beside it is all there is of its class.
        ranks = (settings.rank, 0) if settings.rank == 1 else (settings.rank,)
        chosen = next((each for rank in ranks for each in same if each.rank == rank), None)
        if chosen is None and default is not None:
            note = words.not_in_picture(settings, [each.name for each in found], default.name)
            settings, chosen = replace(settings, notes=(*settings.notes, note)), default
    if chosen is not None:
        sentence, remedy = "", {}
    return Scene(settings, seen, tuple(found), chosen, sentence, remedy)


def _lower(everything: list[Found]) -> dict[str, float]:
    """The least score with which the strongest detection is found, where there is one to speak of."""
    score = math.floor(100 * everything[0].share) / 100 if everything else 0.0
    return {MIN_SCORE: score} if score >= 0.05 else {}


def least_overlap(settings: Settings) -> float:
    """The overlap from which a detection is the one that is explained; D-RISE's own target has none."""
    return 0.0 if settings.method.name == "d_rise" else 0.5


def _detections(settings: Settings, images: torch.Tensor) -> list[Found]:
    """The detections, strongest first, `MOST` at most."""
    import torch  # torch takes seconds to start

    import explainers  # torch takes seconds to start

    boxes, labels, scores = network_calls.detections(settings.loaded.name, images)
    overlap = least_overlap(settings)
    sides = torch.tensor([*images.shape[:1:-1]] * 2)
    counts: dict[int, int] = {}
    found = []
    real = (boxes[:, 2:] > boxes[:, :2]).all(1)  # a box clipped at the picture's edge may have no area left
    order = [row for row in scores.argsort(descending=True, stable=True).tolist() if real[row]]
    for row in order[:MOST]:
        label = int(labels[row])
        counts[label] = count = counts.get(label, 0) + 1
        rank = count if count > 1 else 0
        left, top, right, bottom = (boxes[row] / sides).clamp(0, 1).tolist()
        target = explainers.BoxScores(boxes[row : row + 1], (label,), overlap)
        name = ranked(settings.loaded.name_of(label), rank)
        found.append(Found(name, label, rank, float(scores[row]), (left, top, right, bottom), target))
    return found


def _regions(settings: Settings, images: torch.Tensor) -> list[Found]:
    """The classes with pixels, largest first, the background last; after each its connected regions, where several."""
    import torch  # torch takes seconds to start

    classes = network_calls.pixel_classes(settings.loaded.name, images)
    labels, counts = torch.unique(classes[classes >= 0], return_counts=True)
    loaded = settings.loaded
    order = sorted(
        zip(labels.tolist(), counts.tolist(), strict=True), key=lambda pair: (is_background(loaded, pair[0]), -pair[1])
    )
    parts = _connected(classes)
    found = []
    for label, _ in order[:MOST]:
        masks = [classes == label, *(mask for of, mask in parts if of == label and not is_background(loaded, label))]
        found += [_region(loaded, label, rank, mask) for rank, mask in enumerate(masks)]
    return found


def _connected(classes: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
    """Class and mask of the connected regions of classes [h, w] that have several of `LEAST` or more, largest first."""
    from torch.nn import functional  # torch takes seconds to start

    from explainers.perturbation.segments import components  # torch takes seconds to start

    height, width = classes.shape
    scale = min(1.0, SIDE / max(height, width))
    size = max(1, round(scale * height)), max(1, round(scale * width))
    small = functional.interpolate(classes[None, None].float(), size)[0, 0].long()
    numbers = components(small)
    counts = numbers.flatten().bincount()
    large = [k for k in counts.argsort(descending=True, stable=True).tolist() if counts[k] >= LEAST * numbers.numel()]
    regions = functional.interpolate(numbers[None, None].float(), (height, width))[0, 0].long()
    of = {k: int(small.flatten()[(numbers == k).flatten()][0]) for k in large}
    several = {label for label in of.values() if [*of.values()].count(label) > 1}
    return [(of[k], (regions == k) & (classes == of[k])) for k in large if of[k] in several][:MOST]


def _region(loaded: Loaded, label: int, rank: int, mask: torch.Tensor) -> Found:
    import explainers  # torch takes seconds to start

    rows, columns = mask.any(1).nonzero()[:, 0], mask.any(0).nonzero()[:, 0]
    height, width = mask.shape
    box = (int(columns[0]) / width, int(rows[0]) / height, (int(columns[-1]) + 1) / width, (int(rows[-1]) + 1) / height)
    target = explainers.MaskScores(mask, label)
    return Found(ranked(loaded.name_of(label), rank), label, rank, float(mask.float().mean()), box, target, mask)


def nearer_layer(around: Scene, images: torch.Tensor) -> Settings | None:
    """The settings with the last stage that a path leads from to the detection, where the default layer has none.

    The boxes of one scale do not come from the layers of another: those of SSD's first do not pass its later stages.
    """
    settings, loaded = around.settings, around.settings.loaded
    if around.chosen is None or settings.layer != loaded.default or not settings.takes_layer:
        return None
    names = [layer.name for layer in loaded.layers if layer.stage or layer.name == loaded.default]
    before = names[: names.index(loaded.default)]
    for name in reversed(before):
        if network_calls.reaches(loaded.name, images, around.chosen.target, name):
            return replace(settings, layer=name)
    return None


def elsewhere(answer: Answer, wanted: str) -> Answer:
    """The answer, with the finding that it is not at the layer that was wanted."""
    from explainers.findings import Finding  # torch takes seconds to start

    finding = Finding("other_layer", words.other_layer(wanted, answer.settings.layer))
    findings = [[finding, *row] for row in answer.explanation.findings]
    return replace(answer, explanation=replace(answer.explanation, findings=findings))


def is_background(loaded: Loaded, label: int) -> bool:
    """Whether this class of a segmentation network is what belongs to none of the others."""
    return loaded.model.task == "segmentation" and loaded.name_of(label) in BACKGROUND
