"""The wire format: answers as the dictionaries that the scripts of ui/static/ read.

Maps travel as base64 of little-endian floats (a JSON list of 224 x 224 numbers takes a second to paint), pictures as
JPEG in a data URL. No field is called `path` or `url`: gradio rewrites those. Final maps are float32, so that the
read-out and the `.npy` file are exact; large partial maps, and final ones of more than 512 x 512, are float16.
"""

from __future__ import annotations

import base64
import io
import itertools
from typing import TYPE_CHECKING, Any

from PIL import Image

from ui import words
from ui.engine import scene
from ui.engine.messages import Answer, Refining, Scene, Settings, Stages
from ui.methods.findings import caution, said
from ui.share.record import record

if TYPE_CHECKING:
    import torch

LARGEST = 768  # pixels of a picture's longer side
SMALL = 64 * 64  # values; partial maps up to this are float32 too
LARGE = 512 * 512  # values; final maps above this are float16: as float32 they would be more than the page can hold
OUTLINE = 320  # pixels of the longer side of the regions that are sent
COLOURS = 10  # colours of classes, see static/drawing/things.js
_count = itertools.count(1)


def number() -> int:
    """A new answer's number, larger than all before it."""
    return next(_count)


def floats(values: torch.Tensor, *, exact: bool = True, by_size: bool = False) -> dict[str, Any]:
    """A map [h, w] with its range: float32, or float16 times `scale` where it is large and need not be exact.

    `by_size`: drawn by magnitude until the visitor asks for signs, as pixel attributions are.
    """
    values = values.detach().float().cpu().contiguous()
    finite = values[values.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 0.0)
    packed: dict[str, Any] = {"h": values.shape[-2], "w": values.shape[-1], "lo": low, "hi": high, "signed": low < 0}
    packed["by_size"] = by_size
    if values.numel() <= (LARGE if exact else SMALL):
        return packed | {"b64": _text(values.numpy().tobytes()), "dtype": "float32"}
    scale = max(abs(low), abs(high)) or 1.0  # to [-1, 1]: halves end at 65,504 and lose small numbers
    return packed | {"b64": _text((values / scale).half().numpy().tobytes()), "dtype": "float16", "scale": scale}


def picture(image: Image.Image, largest: int = LARGEST) -> dict[str, Any]:
    """A JPEG with no side above `largest`."""
    shown = image
    if max(image.size) > largest:
        shown = image.copy()
        shown.thumbnail((largest, largest), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    shown.save(file, "JPEG", quality=90)
    return {"src": "data:image/jpeg;base64," + _text(file.getvalue())}


def answer(step: Answer, ident: int) -> dict[str, Any]:
    """The overlay of a finished map."""
    settings, packed = step.settings, floats(step.map, by_size=step.settings.method.by_size)
    return {
        "v": 1,
        "id": ident,
        "state": "done" if step.share >= 1 else "stopped",
        "about": _about(settings, step.name, step.plane),
        "key": settings.key,
        "share": step.share,
        "seconds": step.explanation.seconds,
        "map": packed,
        "crop": picture(step.seen) | _window(settings),
        "name": words.file_name(step),
        "words": words.overlay(step, step.map),
        "record": record(step, packed),
        **_things(step.scene),
    }


def _window(settings: Settings) -> dict[str, Any]:
    """Which part of the picture the crop is."""
    window = settings.window
    return {"window": list(window.box), "aspect": window.aspect} if window else {}


def refining(step: Refining, ident: int) -> dict[str, Any]:
    """The overlay of a partial map."""
    assert step.map is not None
    settings = step.settings
    return {
        "v": 1,
        "id": ident,
        "state": "partial",
        "about": _about(settings, step.name),
        "key": settings.key,
        "share": step.fraction,
        "seconds": step.seconds,
        "map": floats(step.map, exact=False, by_size=settings.method.by_size),
        "crop": picture(step.seen, 384) | _window(settings),
        "name": words.file_name(step),
        "words": words.overlay(step, step.map),
        **_things(step.scene),
    }


def _about(settings: Settings, name: str, plane: int = 0) -> str:
    """The identity of a map: colour limits and read-out stay while it is the same."""
    return f"{settings.loaded.name}/{settings.layer}/{settings.method.name}/{name}/{plane}"


def picture_alone(step: Scene, ident: int) -> dict[str, Any]:
    """What the network saw, and what it found there; no map."""
    alt = {"alt": step.sentence, "unit": "", "hint": ""}
    return {
        "v": 1,
        "id": ident,
        "state": "done",
        "crop": picture(step.seen) | _window(step.settings),
        "words": alt,
        **_things(step),
    }


def found(step: Scene, ident: int) -> dict[str, Any]:
    """The list of what was found, as that of the most likely classes."""
    items = [
        {"index": k, "name": each.name, "share": each.share, "colour": each.label % COLOURS}
        for k, each in enumerate(step.found)
    ]
    title, _ = words.THINGS[step.settings.loaded.model.task]
    chosen = step.found.index(step.chosen) if step.chosen else None
    return {"id": ident, "chosen": chosen, "items": items, "title": title}


def reason(step: Scene, ident: int) -> dict[str, Any]:
    """As findings: the notes on the request, and a button where a changed request finds something."""
    items: list[dict[str, Any]] = [{"sentence": note} for note in step.settings.notes]
    if step.remedy:
        item = {"sentence": words.AT_LOWER_SCORE, "remedy": step.remedy, "label": words.remedy(step.remedy)}
        items.append(item)
    return {"id": ident, "items": items}


def _things(step: Scene | None) -> dict[str, Any]:
    """Boxes, or a plane with the number of the smallest region at each pixel, that a click on the picture chooses."""
    if step is None:
        return {}
    items = [
        {
            "name": each.name,
            "box": each.box,
            "colour": each.label % COLOURS,
            "share": each.share,
            "label": each.label,
            "whole": each.mask is not None and not each.rank,
            "ground": scene.is_background(step.settings.loaded, each.label),
        }
        for each in step.found
    ]
    masks = [each.mask for each in step.found if each.mask is not None]
    things = {"items": items, "chosen": step.found.index(step.chosen) if step.chosen else None}
    return {"things": things | ({"plane": _regions(masks)} if masks else {})}


def _regions(masks: list[torch.Tensor]) -> dict[str, Any]:
    """The last of the masks at each pixel, counted from 1, 0 for none: bytes [h, w] with no side above `OUTLINE`."""
    import torch  # torch takes seconds to start

    height, width = masks[0].shape
    scale = min(1.0, OUTLINE / max(height, width))
    rows, columns = (
        ((torch.arange(max(1, round(scale * side))) + 0.5) / scale).long().clamp(max=side - 1)
        for side in (height, width)
    )
    plane = torch.zeros(len(rows), len(columns), dtype=torch.uint8)
    for number, mask in enumerate(masks[:255], 1):
        plane[mask[rows[:, None], columns]] = number
    return {"h": len(rows), "w": len(columns), "b64": _text(plane.numpy().tobytes())}


def classes(step: Answer, ident: int) -> dict[str, Any]:
    """The most likely classes, or what was found."""
    if step.scene:
        return found(step.scene, ident)
    names = step.settings.loaded.names
    items = [{"index": index, "name": names[index], "share": share} for index, share in step.top]
    return {"id": ident, "chosen": None if step.settings.unit else step.target, "items": items}


def findings(step: Answer, ident: int) -> dict[str, Any]:
    """Notes on the request, the method's caution, then findings, with a button where there is a remedy."""
    items: list[dict[str, Any]] = [{"sentence": note} for note in step.settings.notes]
    items += caution(step.settings)
    items += [said(finding, step) for finding in step.explanation.findings[0]]
    return {"id": ident, "items": items}


def bands(settings: Settings, asked: str) -> dict[str, Any]:
    """The picker of a picture's bands; of a photograph it is hidden, and keeps what was `asked` for another one."""
    choice = settings.bands
    if choice is None:
        return {"text": asked}
    return {"text": choice.text, **vars(choice), "three": list(choice.three)}


def stages(step: Stages, ident: int) -> dict[str, Any]:
    """The maps of all stages."""
    packed = [
        {"layer": name, "grid": f"{plane.shape[0]} × {plane.shape[1]}", "map": floats(plane, exact=False)}
        for name, plane in step.maps.items()
    ]
    return {"id": ident, "chosen": step.settings.layer, "stages": packed, "crop": picture(step.seen, 128)}


def schema(settings: Settings) -> list[dict[str, Any]]:
    """The options of method and network as `options.js` draws them, without those whose default no form can hold."""
    return [
        {**vars(option), "default": _plain(option.default), "choices": list(option.choices)}
        for option in (*scene.options(settings.loaded).values(), *settings.method.options.values())
        if option.default is None or _plain(option.default) is not None
    ]


def _plain(value: Any) -> Any:
    """A default that a form can hold, or None."""
    return value if isinstance(value, (bool, int, float, str)) else None


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
