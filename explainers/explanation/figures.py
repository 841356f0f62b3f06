"""The maps of an `Explanation` for notebooks, with targets, scores, units and findings, and the page about a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from explainers.display.display import (
    NO_PILLOW,
    Display,
    check_labels,
    class_name,
    escape,
    has_pillow,
    name_classes,
    table_html,
    target_name,
)
from explainers.display.figure import SIDE, MapFigure, Shown, given_images, maps_html, network_inputs
from explainers.explanation.facts import Explained
from explainers.maps.color_maps import color_map
from explainers.options import check_flags
from explainers.placement import place_each
from explainers.probabilities import UNITS, WORDS
from explainers.registry import METHODS

FINEST = 256
"""The longest side of a shown map in cells; larger maps are averaged."""
MOST = 12
"""Maps that are shown unless the caller asks for more."""
TOP = 5
"""Listed classes of each image on a page."""


def display_maps(
    explanations: Sequence[Explained],
    images: Any = None,
    *,
    labels: Sequence[str] | None = None,
    signed: bool | None = None,
    colors: str | None = None,
    limits: tuple[float, float] | None = None,
    most: int = MOST,
) -> Display:
    """Return the maps with their controls; the arguments are those of `show`.

    Errors   ImportError without Pillow; BadImages if the number of images is not the number of maps; BadOption
    """
    if not has_pillow():
        raise ImportError(NO_PILLOW)
    check_labels(labels)
    if signed is not None:
        check_flags(signed=signed)
    if colors is not None:
        color_map(colors)
    shown: list[MapFigure] = []
    for each in explanations:
        signs = signed if signed is not None else colors == "signed" or not each.by_size
        found = figures(each, images, labels, most - len(shown))
        shown += [replace(figure, signed=signs, colors=colors, limits=limits) for figure in found]
    total = sum(len(each.map) for each in explanations)
    count, rest = f"{total} map{'s' * (total != 1)}", ""
    if total > len(shown):
        count = f"{len(shown)} of {count}"
        rest = f'<p class="saliscope-quiet">{count} are shown. most={total} shows all of them.</p>'
    return Display(maps_html(shown) + rest, f"Display({count})", [figure.drawn for figure in shown])


def figures(
    explanation: Explained, photos: Any = None, labels: Sequence[str] | None = None, most: int | None = None
) -> list[MapFigure]:
    """Return a figure for each map, or for the first `most`. `photos` are the images, by default the network's inputs.

    Errors   BadImages if the number of images is not the number of maps
    """
    maps = place_each(explanation.map, explanation.placement)
    frames: list[int | None] = [None] * len(maps)
    if explanation.map.ndim == 4:  # of videos: the frame with the strongest values
        frames = [int(one.nan_to_num().abs().flatten(1).amax(-1).argmax()) for one in maps]
    images = _images(explanation, photos, frames, [len(one) for one in maps])[:most]
    return [_figure(explanation, n, maps[n], labels, image, frames[n]) for n, image in enumerate(images)]


def _figure(
    explanation: Explained, n: int, map: Tensor, labels: Sequence[str] | None, image: Shown | None, frame: int | None
) -> MapFigure:
    whole = map.detach().to("cpu")
    values = whole if frame is None else whole[frame]
    method = METHODS.get(explanation.method)
    where = f" at {explanation.layer}" if explanation.layer else ""
    cells = " x ".join(f"{side}" for side in explanation.map[n].shape)
    lines = [f"{method.title if method else explanation.method}{where}, map of {cells} cells"]
    lines += [*_score(explanation, n), explanation.verdicts[n].sentence.rstrip(".")]
    if frame is not None:
        lines.append(f"the frame with the strongest values, {frame + 1} of {len(whole)}")
    if image is None:
        lines.append("the explanation has no image")
    elif image.note:
        lines.append(image.note)
    if max(values.shape) > FINEST:
        lines.append(f"shown with means of cells, at most {FINEST} in a row")
        factor = FINEST / max(values.shape)
        size = max(1, round(values.shape[0] * factor)), max(1, round(values.shape[1] * factor))
        values = functional.adaptive_avg_pool2d(values[None].float(), size)[0]
    findings = explanation.findings[n] if n < len(explanation.findings) else []
    gray = torch.full((SIDE, max(1, round(SIDE * values.shape[1] / values.shape[0])), 3), 128, dtype=torch.uint8)
    return MapFigure(
        values,
        gray if image is None else image.pixels,
        title_of(explanation, n, labels),
        tuple(lines),
        tuple(name_classes(each.sentence, labels) for each in findings),
        quantity_of(explanation),
        signed=not explanation.by_size,
    )


def _images(
    explanation: Explained, photos: Any, frames: list[int | None], cells: list[int]
) -> list[Shown] | list[None]:
    """Return the images below the maps; of a video with a map of `cells` frames, the frame that belongs to it."""
    count, inputs = len(explanation.map), explanation.images
    if photos is not None:
        return given_images(photos, count)
    if inputs is None:
        return [None] * count
    if inputs.ndim == 5:
        at = [int((int(frame or 0) + 0.5) * inputs.shape[2] / n) for frame, n in zip(frames, cells, strict=True)]
        inputs = torch.stack([clip[:, k] for clip, k in zip(inputs, at, strict=True)])
    return network_inputs(inputs)


def title_of(explanation: Explained, n: int, labels: Sequence[str] | None) -> str:
    """Return the explained class with its name and probability, such as "tabby (class 281), 94.0%"."""
    target = explanation.target
    if not isinstance(target, list):
        return target_name(target, labels)
    index = target[n]
    name = class_name(index, labels)
    probabilities = explanation.probabilities
    if probabilities is None or probabilities.ndim != 2 or not 0 <= index < probabilities.shape[1]:
        return name
    return f"{name}, {float(probabilities[n, index]):.1%}"


def _score(explanation: Explained, n: int) -> list[str]:
    """Return the score of the explained class, and what its probability is."""
    scores, target = explanation.scores, explanation.target
    if scores is None or scores.ndim != 2 or not isinstance(target, list) or not 0 <= target[n] < scores.shape[1]:
        return []
    text = f"score {float(scores[n, target[n]]):.4g}"
    return [text if explanation.probabilities is None else f"{text}; {WORDS[explanation.score or 'softmax']}"]


def quantity_of(explanation: Explained) -> str:
    """Return what the values of the map are, with their unit, such as "logit" or "|gradient| in logit per pixel"."""
    method, target = METHODS.get(explanation.method), explanation.target
    if method is None:
        return ""
    word = UNITS.get(explanation.score or "", "logit")
    if isinstance(target, str):
        kinds = {"Unit(": "activation", "Probability(": "probability", "LogProbability(": "log-probability"}
        word = next((kind for start, kind in kinds.items() if target.startswith(start)), "score")
    unit = method.unit.replace("logit", word)
    return f"|gradient| in {unit}" if explanation.by_size else unit


def report(explanation: Explained, images: Any = None, labels: Sequence[str] | None = None) -> Display:
    """Return the maps with their controls, the most likely classes, the settings and the statistics of the maps."""
    maps = display_maps([explanation], images, labels=labels, most=len(explanation.map))
    where = f" at {explanation.layer}" if explanation.layer else ""
    parts = ["<h1>", escape(f"{explanation.method}{where}"), "</h1>", maps.content]
    if predictions := _predictions(explanation, labels):
        heads = ("image", "class", "score", "probability")
        parts += ["<h2>Most likely classes</h2>", table_html(heads, predictions)]
    target, shape = target_name(explanation.target, labels), " x ".join(map(str, explanation.map.shape))
    settings = {"method": explanation.method, "layer": explanation.layer, "target": target, **explanation.options}
    settings |= {"score": explanation.score, "map": shape, "device": explanation.device}
    settings |= {"seconds": f"{explanation.seconds:.3f}"}
    listed = [(name, str(value)) for name, value in settings.items() if value is not None]
    parts += ["<h2>Settings</h2>", table_html(("setting", "value"), listed)]
    if explanation.statistics:
        table = explanation.statistics
        plain = (int, float, str, type(None))
        names = [name for name in table[0] if all(isinstance(row.get(name), plain) for row in table)]
        rows = [[n, *(row.get(name) for name in names)] for n, row in enumerate(table)]
        parts += ["<h2>Statistics of the maps</h2>", table_html(("image", *names), rows)]
    return Display("".join(parts), maps.text)


def _predictions(explanation: Explained, labels: Sequence[str] | None) -> list[list[Any]]:
    scores, probabilities = explanation.scores, explanation.probabilities
    if scores is None or scores.ndim != 2:
        return []
    rows: list[list[Any]] = []
    for n, values in enumerate(scores.detach().to("cpu").float()):
        for index in values.nan_to_num(float("-inf")).topk(min(TOP, len(values))).indices.tolist():
            share = None if probabilities is None else float(probabilities[n, index])
            rows.append([n, class_name(index, labels), float(values[index]), share])
    return rows
