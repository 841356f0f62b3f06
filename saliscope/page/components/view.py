"""The wire format of answers for the scripts in saliscope/page/.

Maps are sent as base64 of little-endian floats (a JSON list of 224 x 224 numbers takes a second to draw), images as
JPEG in a data URL. No field has the name `path` or `url`, which gradio rewrites. Final maps are float32, so that the
displayed values and the `.npy` file are exact. Large partial maps, and final maps larger than 512 x 512, are float16.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from typing import Any

import torch
from PIL import Image
from torch.nn import functional

from saliscope.compute import messages, scene
from saliscope.compute.answers import Answer, Refining, Scene, Settings, Stages
from saliscope.compute.bundles import links
from saliscope.compute.bundles.record import caption, record
from saliscope.compute.maps import top
from saliscope.compute.methods.findings import caution, describe, label
from saliscope.compute.methods.messages import NO_CLASS_TIP
from saliscope.compute.methods.papers import bibtex
from saliscope.compute.objects import messages as object_messages
from saliscope.compute.rail.messages import no_layer
from saliscope.compute.text_messages import SIMILARITIES
from saliscope.images.pixels import encode
from saliscope.page import wire
from saliscope.page.components.thumbnails import reduced
from saliscope.percentages import number as number_text

LARGEST = 768  # pixels of the longer side of an image
SMALL = 64 * 64  # values; partial maps up to this size are float32
PREVIEW = 64  # cells per side of the maps of all blocks
LARGE = 512 * 512  # values; larger final maps are float16 because float32 would be too large for the page
SMALL_SIDE = 64  # values of the longer side of a small map over an image
OUTLINE = 320  # pixels of the longer side of region masks


def numbers(values: torch.Tensor) -> dict[str, str]:
    """Pack the values of a tensor as float32, without its shape."""
    data = values.detach().float().cpu().contiguous().numpy().tobytes()
    return {"b64": wire.base64_text(data), "dtype": "float32"}


def floats(values: torch.Tensor, *, exact: bool = True, by_size: bool = False, small: int = SMALL) -> dict[str, Any]:
    """Pack a map [h, w] with its range, in float32, or in float16 times `scale` if it is large.

    A map that is not `exact` is float16 if it has more than `small` values.

    With `by_size` the map is drawn by magnitude unless the user selects signed values, as for pixel attributions.
    """
    values = values.detach().float().cpu().contiguous()
    finite = values[values.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 0.0)
    packed: dict[str, Any] = {"h": values.shape[-2], "w": values.shape[-1], "lo": low, "hi": high, "signed": low < 0}
    packed["by_size"] = by_size
    if values.numel() <= (LARGE if exact else small):
        return packed | numbers(values)
    scale = max(abs(low), abs(high)) or 1.0  # to [-1, 1], because the range and precision of float16 are limited
    return packed | {
        "b64": wire.base64_text((values / scale).half().numpy().tobytes()),
        "dtype": "float16",
        "scale": scale,
    }


def small_map(values: torch.Tensor, by_size: bool) -> dict[str, Any]:
    """Pack a map [h, w] reduced by averaging; gradients use magnitudes, because neighboring signs would cancel."""
    return floats(reduced((values.abs() if by_size else values)[None], SMALL_SIDE)[0], exact=False)


def jpeg(image: Image.Image, largest: int = LARGEST) -> dict[str, Any]:
    """Pack an image as JPEG with a longer side of at most `largest` pixels."""
    shown = image
    if max(image.size) > largest:
        shown = image.copy()
        shown.thumbnail((largest, largest), Image.Resampling.LANCZOS)
    return {"src": "data:image/jpeg;base64," + wire.base64_text(encode(shown, "JPEG", quality=90))}


def crop(image: Image.Image, held: Collection[str]) -> dict[str, Any]:
    """Pack a crop with a key of its pixels, and without its image if the browser has it, that is, holds the key."""
    key = hashlib.blake2b(image.tobytes(), digest_size=12, key=repr((image.mode, image.size)).encode()).hexdigest()
    return {"key": key} if key in held else {"key": key, **jpeg(image)}


def question(settings: Settings) -> dict[str, Any]:
    """Pack a resolved request for the scripts; `Question` in page/store.js describes it."""
    return {
        "id": wire.new_number(),
        "key": settings.key,
        "subject": settings.subject,
        "names": settings.names,
        "options": settings.options,
        "unused": _unused(settings),
        "address": links.state(settings),
    }


def _unused(settings: Settings) -> dict[str, str]:
    """Return why the map does not depend on the layer or the class, by setting."""
    found, method = {}, settings.method
    if not settings.method.takes_layer:
        found["layer"] = no_layer(method) if settings.loaded.layers else messages.NO_GRID
    if not method.reads_class and not settings.loaded.detects_objects:
        found["target"] = NO_CLASS_TIP
    return found


def answer(step: Answer, ident: int, held: Collection[str] = ()) -> dict[str, Any]:
    """Pack the overlay of a finished map; `held` are the keys of the crops that the browser has."""
    packed = floats(step.map, by_size=step.settings.method.by_size)
    stored = record(step, packed)
    return {
        "id": ident,
        "state": "done" if step.share >= 1 else "stopped",
        "share": step.share,
        "seconds": step.explanation.seconds,
        "map": packed,
        "crop": crop(step.crop, held) | _window(step.settings),
        "record": stored,
        "caption": caption(stored),
        "verdict": stored["answer"]["verdict"],
        "citation": bibtex(step.settings.method),
        **_described(step, step.map, step.plane),
    }


def _described(step: Answer | Refining, plane: torch.Tensor, number: int = 0) -> dict[str, Any]:
    """Pack what a map [h, w] shows: its identity, with which limits and the selected cell are kept, name and words."""
    settings = step.settings
    return {
        "about": f"{settings.loaded.name}/{settings.layer}/{settings.method.name}/{step.name}/{number}",
        "key": settings.key,
        "name": messages.file_name(step),
        "words": messages.overlay(step, plane),
        **_objects(step.scene),
    }


def _window(settings: Settings) -> dict[str, Any]:
    """Pack the position of the crop in the image."""
    window = settings.window
    return {"window": list(window.box), "aspect": window.aspect} if window else {}


def refining(step: Refining, ident: int) -> dict[str, Any]:
    """Pack the overlay of a partial map."""
    assert step.map is not None
    return {
        "id": ident,
        "state": "partial",
        "share": step.fraction,
        "seconds": step.seconds,
        "map": floats(step.map, exact=False, by_size=step.settings.method.by_size),
        "crop": jpeg(step.crop, 384) | _window(step.settings),
        **_described(step, step.map),
    }


def image_only(step: Scene, ident: int) -> dict[str, Any]:
    """Pack the crop and the detected objects without a map."""
    alt = {"alt": step.message, "unit": "", "hint": ""}
    return {
        "id": ident,
        "state": "done",
        "crop": jpeg(step.crop) | _window(step.settings),
        "words": alt,
        **_objects(step),
    }


def objects(step: Scene, ident: int) -> dict[str, Any]:
    """Pack the list of detected objects in the format of the predictions."""
    items = [
        {"index": k, "name": item.name, "share": item.share, "color": item.label % messages.COLORS}
        for k, item in enumerate(step.objects)
    ]
    title, _ = object_messages.OBJECTS[step.settings.loaded.model.task]
    chosen = step.objects.index(step.chosen) if step.chosen else None
    return {"id": ident, "chosen": chosen, "items": items, "title": title}


def notes(sentences: Iterable[str], ident: int) -> dict[str, Any]:
    """Pack the notes on a request as findings."""
    return {"id": ident, "items": [{"sentence": note} for note in sentences]}


def reason(step: Scene, sentences: Iterable[str], ident: int) -> dict[str, Any]:
    """Pack the notes on a request as findings, and a button for a remedy if nothing was detected."""
    packed = notes(sentences, ident)
    if step.remedy:
        button = {"remedy": step.remedy, "label": label(step.remedy)}
        packed["items"].append({"sentence": object_messages.AT_LOWER_SCORE, **button})
    return packed


def _objects(step: Scene | None) -> dict[str, Any]:
    """Pack boxes, or a plane with the number of the smallest region at each pixel, for selection by a click."""
    if step is None:
        return {}
    items = [
        {
            "name": item.name,
            "box": item.box,
            "color": item.label % messages.COLORS,
            "share": item.share,
            "label": item.label,
            "whole": item.mask is not None and not item.rank,
            "ground": scene.is_background(step.settings.loaded, item.label),
        }
        for item in step.objects
    ]
    masks = [item.mask for item in step.objects if item.mask is not None]
    objects = {"items": items, "chosen": step.objects.index(step.chosen) if step.chosen else None}
    return {"things": objects | ({"plane": _regions(masks)} if masks else {})}


def _regions(masks: list[torch.Tensor]) -> dict[str, Any]:
    """Pack the index of the last mask at each pixel, from 1 (0 for none): bytes [h, w], no side above `OUTLINE`."""
    height, width = masks[0].shape
    scale = min(1.0, OUTLINE / max(height, width))
    rows, columns = (
        ((torch.arange(max(1, round(scale * side))) + 0.5) / scale).long().clamp(max=side - 1)
        for side in (height, width)
    )
    plane = torch.zeros(len(rows), len(columns), dtype=torch.uint8)
    for number, mask in enumerate(masks[:255], 1):
        plane[mask[rows[:, None], columns]] = number
    return {"h": len(rows), "w": len(columns), "b64": wire.base64_text(plane.numpy().tobytes())}


def classes(step: Answer | Refining, ident: int) -> dict[str, Any]:
    """Pack the most likely classes, and the method of their small maps, or the detected objects."""
    if step.scene:
        return objects(step.scene, ident)
    names = step.settings.class_names
    items: list[dict[str, Any]] = [{"index": k, "name": names[k], "share": share} for k, share in step.top]
    if not step.settings.loaded.has_probabilities:  # scores as numbers, with bars relative to the largest
        largest = max((abs(score) for _, score in step.top), default=0.0) or 1.0
        items = [row | {"share": max(0.0, row["share"] / largest), "text": number_text(row["share"])} for row in items]
    packed: dict[str, Any] = {} if step.probabilities is None else {"all": floats(step.probabilities[None])}
    if step.settings.loaded.encodes_text:  # two sentences at most
        packed = {"title": SIMILARITIES}
    method = top.method_of(step.settings, step.explanation.seconds) if isinstance(step, Answer) else None
    if method is not None and step.settings.key:
        where = f" at {step.settings.layer}" if method.takes_layer else ""
        text = f"Small maps: {method.title}{where}, each with its own color range"
        packed |= {"key": step.settings.key, "maps": {"method": method.name, "text": text}}
    return {"id": ident, "chosen": None if step.settings.unit else step.target, "items": items, **packed}


def findings(step: Answer, ident: int) -> dict[str, Any]:
    """Pack the notes on the request, the caution of the method, and the findings with buttons for their remedies."""
    packed = notes(step.settings.notes, ident)
    packed["items"] += caution(step.settings)
    packed["items"] += [describe(finding, step) for finding in step.explanation.findings[0]]
    return packed


def bands(settings: Settings, requested: str) -> dict[str, Any]:
    """Pack the band picker; for an RGB image it is hidden and keeps the `requested` bands for the next image."""
    choice = settings.bands
    if choice is None:
        return {"text": requested}
    return {"text": choice.text, **vars(choice), "three": list(choice.three)}


def stages(step: Stages, ident: int) -> dict[str, Any]:
    """Pack the maps of all blocks, with at most `PREVIEW` cells per side."""
    answer, score = step.answer, ""
    if answer.settings.sentences and answer.probabilities is not None:  # for two, the difference of similarities
        own, *against = answer.probabilities.tolist()
        score = number_text(own - sum(against))
    elif not answer.settings.unit:
        score = messages.confidence(answer)
    packed = [{"layer": name, "map": _preview(plane)} for name, plane in step.maps.items()]
    return {
        "id": ident,
        "chosen": answer.settings.layer,
        "subject": answer.settings.subject,
        "name": messages.subject(answer),
        "score": score,
        "unit": answer.settings.measure,
        "stages": packed,
        "crop": jpeg(answer.crop, 128),
    }


def _preview(plane: torch.Tensor) -> dict[str, Any]:
    """Pack a map for a preview; cells of a large map are averaged."""
    factor = -(-max(plane.shape) // PREVIEW)
    height, width = (max(1, round(side / factor)) for side in plane.shape)
    averaged = functional.adaptive_avg_pool2d(plane[None], (height, width))[0]
    return floats(averaged, exact=False, small=0)


def schema(settings: Settings) -> list[dict[str, Any]]:
    """Return the options of method and network for `options.js`, without options whose default has no form field."""
    return [
        {**vars(option), "choices": list(option.choices)}
        for option in (*scene.options(settings.loaded).values(), *settings.method.options.values())
        if option.default is None or isinstance(option.default, (bool, int, float, str))
    ]
