"""Objects and regions detected in an image, the object that a request refers to, and the layers to map.

A detection is explained with `BoxScores`: the score of the detection with the same label and an overlap of at least
one half, times the overlap, or 0 if a perturbed image has no such detection. Pixels are explained with `MaskScores`:
the mean logit of their class over the pixels that the network assigned to that class in the clean image.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import replace

import torch
from PIL import Image
from torch.nn import functional

import explainers
from saliscope import zoo
from saliscope.compute import network_calls
from saliscope.compute.answers import (
    CHANNEL,
    MIN_SCORE,
    Answer,
    DetectedObject,
    LoadedModel,
    Scene,
    Settings,
    Subject,
    ranked,
)
from saliscope.compute.objects import messages
from saliscope.compute.text import sentences
from saliscope.compute.text_messages import quoted

MOST = 50
"""Maximum number of detections, and of regions of one class."""
LEAST = 0.005
"""Minimum size of a separate connected region, as a fraction of the image."""
SIDE = 256
"""Longer side in pixels at which connected regions are computed; 520 pixels would take a second."""
LEAST_SCORE = explainers.Option(
    MIN_SCORE, 0.5, "float", 0.01, 1.0, 0.01, help="detections below this score are ignored"
)
"""The option of all detectors."""
WITHOUT_MAP = frozenset({"no grid", "one cell", "unused"})
"""Reasons for which a block has no Grad-CAM, by the `why` of its `BlockStep`."""
_blocks: weakref.WeakKeyDictionary[zoo.Model, explainers.Blocks] = weakref.WeakKeyDictionary()


def options(loaded: LoadedModel) -> dict[str, explainers.Option]:
    """Return the options of a request that belong to the network instead of the method."""
    return {MIN_SCORE: LEAST_SCORE} if loaded.model.task == "detection" else {}


def parse_target(name: str, loaded: LoadedModel) -> tuple[str, int]:
    """Return the class and the rank in a target such as "dog#2"; a class name that contains "#" is not split."""
    head, mark, tail = name.rpartition("#")
    if loaded.detects_objects and mark and name not in loaded.names and tail.isdecimal() and len(tail) < 4:
        return head, int(tail)
    return name, 0


def unit(name: str, loaded: LoadedModel) -> tuple[str, int] | None:
    """Return layer and channel of a target such as "channel 12 of head", or None for other targets and detectors."""
    match = CHANNEL.fullmatch(name)
    if match is None or loaded.detects_objects or name in loaded.names:
        return None
    channel, path = int(match[1]), match[2]
    layer = next((layer for layer in loaded.layers if layer.name == path), None)
    return (path, channel) if layer and channel < layer.shape[layer.channel_axis] else None


def target_of(settings: Settings) -> int | explainers.Target | None:
    """Return the class, the mean of a channel or the similarity to a sentence, or None for the top class.

    Errors   Refused for a sentence that cannot be embedded
    """
    if settings.sentences:
        return sentences.target_of(settings)
    return explainers.unit(*settings.unit) if settings.unit else settings.target


def target_of_answer(answer: Answer) -> int | explainers.Target:
    """Return the explained target; that of the top class is its index."""
    target = answer.detected_object.target if answer.scene else target_of(answer.settings)
    return answer.target if target is None else target


def subject_of(settings: Settings, crop: Image.Image, images: torch.Tensor) -> Subject | None:
    """Return the requested class or sentence, the top prediction (also if a channel is explained), or the object.

    Returns  None if there is no object or no sentence
    """
    if settings.loaded.encodes_text:
        given = settings.sentences
        return Subject(quoted(given), 0, sentences.target_of(settings)) if given else None
    if settings.loaded.detects_objects:
        chosen = inspect(settings, crop, images).chosen
        return Subject(chosen.name, chosen.label, chosen.target) if chosen else None
    label = settings.target
    if label is None:
        label = int(network_calls.scores(settings.loaded.name, images).argmax())
    return Subject(settings.loaded.names[label], label, label)


def target_of_label(settings: Settings, label: int) -> int | explainers.Target:
    """Return the target of one of `class_names`."""
    return sentences.target_of_one(settings, label) if settings.sentences else label


def sweeps_of(settings: Settings) -> tuple[list[str], list[str]]:
    """Return the layers of the blocks that can have a map, and the last layers of the stages.

    Layers after an explained channel are left out.
    """
    names = [layer.name for layer in settings.loaded.layers]
    known = names[: names.index(settings.unit[0]) + 1] if settings.unit else names
    outs = [block.steps[block.out] for block in network_blocks(settings.loaded).blocks]
    blocks = [step.layer.name for step in outs if step.why not in WITHOUT_MAP and step.layer.name in known]
    return blocks, [layer.name for layer in settings.loaded.layers if layer.stage and layer.name in known]


def network_blocks(loaded: LoadedModel) -> explainers.Blocks:
    """Return the blocks of a network, computed once."""
    model = loaded.model
    if model not in _blocks:
        images = torch.zeros(1, model.channels, *model.size, device=loaded.device)
        _blocks[model] = explainers.network_blocks(model.network, images)
    return _blocks[model]


def inspect(settings: Settings, crop: Image.Image, images: torch.Tensor) -> Scene:
    """Return everything that is detected in the input, and the object to explain.

    A requested object that was not detected is replaced by the default with a note.

    Errors   Refused for an unsupported output of the network
    """
    if settings.loaded.model.task == "detection":
        all_objects = _detections(settings, images)
        objects = [item for item in all_objects if item.share >= settings.min_score]
        default, message = next(iter(objects), None), messages.nothing_found(settings, all_objects[:1])
        remedy = _lower_min_score(all_objects)
    else:
        objects, remedy = _regions(settings, images), {}
        default = next((item for item in objects if not is_background(settings.loaded, item.label)), None)
        message = messages.ONLY_BACKGROUND
    chosen = default
    if settings.target is not None:
        same = [item for item in objects if item.label == settings.target]
        # Rank 1 may be omitted: the strongest detection has no rank, and a single region is the whole class.
        ranks = (settings.rank, 0) if settings.rank == 1 else (settings.rank,)
        chosen = next((item for rank in ranks for item in same if item.rank == rank), None)
        if chosen is None and default is not None:
            note = messages.not_detected(settings, [item.name for item in objects], default.name)
            settings, chosen = replace(settings, notes=(*settings.notes, note)), default
        if chosen is not None:
            settings = replace(settings, target=chosen.label, rank=chosen.rank)
    if chosen is not None:
        message, remedy = "", {}
    return Scene(settings, crop, tuple(objects), chosen, message, remedy)


def _lower_min_score(objects: list[DetectedObject]) -> dict[str, float]:
    """Return the minimum score that includes the strongest detection, or an empty dictionary if it is too low."""
    score = math.floor(100 * objects[0].share) / 100 if objects else 0.0
    return {MIN_SCORE: score} if score >= 0.05 else {}


def least_overlap(settings: Settings) -> float:
    """Return the minimum overlap with the explained detection; the target of D-RISE has no minimum."""
    return 0.0 if settings.method.name == "d_rise" else 0.5


def _detections(settings: Settings, images: torch.Tensor) -> list[DetectedObject]:
    """Return at most `MOST` detections, strongest first."""
    boxes, labels, scores = network_calls.detections(settings.loaded.name, images)
    overlap = least_overlap(settings)
    sides = torch.tensor([*images.shape[:1:-1]] * 2)
    counts: dict[int, int] = {}
    objects = []
    for row in explainers.detections_by_score({"boxes": boxes, "scores": scores})[:MOST]:
        label = int(labels[row])
        counts[label] = count = counts.get(label, 0) + 1
        rank = count if count > 1 else 0
        left, top, right, bottom = (boxes[row] / sides).clamp(0, 1).tolist()
        target = explainers.BoxScores(boxes[row : row + 1], (label,), overlap)
        name = ranked(settings.loaded.name_of(label), rank)
        objects.append(DetectedObject(name, label, rank, float(scores[row]), (left, top, right, bottom), target))
    return objects


def _regions(settings: Settings, images: torch.Tensor) -> list[DetectedObject]:
    """Return the classes by area, the background last, each followed by its connected regions if there are several."""
    classes = network_calls.pixel_classes(settings.loaded.name, images)
    loaded = settings.loaded
    background = [label for label in range(len(loaded.names)) if is_background(loaded, label)]
    parts = _connected(classes)
    objects = []
    for label in list(explainers.classes_by_area(classes, background))[:MOST]:
        masks = [
            classes == label,
            *(mask for region_label, mask in parts if region_label == label and not is_background(loaded, label)),
        ]
        objects += [_region(loaded, label, rank, mask) for rank, mask in enumerate(masks)]
    return objects


def _connected(classes: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
    """Return class and mask of connected regions, largest first, for classes with several of at least `LEAST`."""
    height, width = classes.shape
    scale = min(1.0, SIDE / max(height, width))
    size = max(1, round(scale * height)), max(1, round(scale * width))
    small = functional.interpolate(classes[None, None].float(), size)[0, 0].long()
    numbers = explainers.connected_components(small)
    counts = numbers.flatten().bincount()
    large = [k for k in counts.argsort(descending=True, stable=True).tolist() if counts[k] >= LEAST * numbers.numel()]
    regions = functional.interpolate(numbers[None, None].float(), (height, width))[0, 0].long()
    label_of = {k: int(small.flatten()[(numbers == k).flatten()][0]) for k in large}
    several = {label for label in label_of.values() if [*label_of.values()].count(label) > 1}
    return [(label_of[k], (regions == k) & (classes == label_of[k])) for k in large if label_of[k] in several][:MOST]


def _region(loaded: LoadedModel, label: int, rank: int, mask: torch.Tensor) -> DetectedObject:
    rows, columns = mask.any(1).nonzero()[:, 0], mask.any(0).nonzero()[:, 0]
    height, width = mask.shape
    box = (int(columns[0]) / width, int(rows[0]) / height, (int(columns[-1]) + 1) / width, (int(rows[-1]) + 1) / height)
    target = explainers.MaskScores(mask, label)
    return DetectedObject(
        ranked(loaded.name_of(label), rank), label, rank, float(mask.float().mean()), box, target, mask
    )


def nearer_layer(scene: Scene, images: torch.Tensor) -> Settings | None:
    """Return settings with the last stage that affects the detection, if the default layer does not affect it.

    Boxes of one scale do not depend on the layers of another scale. For example, the first scale of SSD does not use
    its later stages.
    """
    settings, loaded = scene.settings, scene.settings.loaded
    if scene.chosen is None or settings.layer != loaded.default or not settings.method.takes_layer:
        return None
    names = [layer.name for layer in loaded.layers if layer.stage or layer.name == loaded.default]
    earlier = names[: names.index(loaded.default)]
    for name in reversed(earlier):
        options = {"target": scene.chosen.target, "layer": name, "relu": False}
        if network_calls.run(loaded.name, explainers.hires_cam, images, **options).any():  # it has a gradient there
            return replace(settings, layer=name)
    return None


def note_other_layer(answer: Answer, wanted: str) -> Answer:
    """Return the answer with a finding that it uses another layer than requested."""
    finding = explainers.Finding("other_layer", messages.other_layer(wanted, answer.settings.layer))
    findings = [[finding, *row] for row in answer.explanation.findings]
    return replace(answer, explanation=replace(answer.explanation, findings=findings))


def is_background(loaded: LoadedModel, label: int) -> bool:
    """Return whether this class of a segmentation network is the background."""
    return loaded.model.task == "segmentation" and explainers.is_background(loaded.name_of(label))
