"""The wire format of what an index knows about channels, for page/channels/channels.js and unit.js."""

from __future__ import annotations

from typing import Any

from saliscope.compute.channels import messages
from saliscope.compute.units import ACROSS, SIDE, Crop, LayerUnits
from saliscope.page.wire import base64_text


def layer(found: LayerUnits | None) -> dict[str, Any] | None:
    """Pack names, their tests, and the sprites for the tiles of a layer."""
    if found is None:
        return None
    tested = [unit.name is not None and unit.auc is not None for unit in found.units]
    return {
        "names": [unit.name if has else None for unit, has in zip(found.units, tested, strict=True)],
        "tests": [messages.unit_test(unit) if has else None for unit, has in zip(found.units, tested, strict=True)],
        "sprites": {kind: f"hl/units/{name}" for kind, name in found.sprites.items()},
        "side": SIDE,
        "across": ACROSS,
    }


def unit(found: LayerUnits | None, number: int) -> dict[str, Any]:
    """Pack everything about an open channel."""
    if found is None:
        return {}
    unit, photos = found.units[number], list[bytes]()
    by = [messages.BY_RESPONSE, messages.by_effect(found)] if unit.effects else [messages.BY_RESPONSE]
    return {
        "number": number,
        "lines": messages.unit(unit, found),
        "image": None if unit.image is None else _source(unit.image, "webp"),
        "crops": [[_crop(crop, photos) for crop in crops] for crops in (unit.crops, unit.effects) if crops],
        "by": by,
        "photos": [_source(photo, "jpeg") for photo in photos],
        "nearest": [other for other in unit.nearest or [] if 0 <= other < len(found.units)],
    }


def _crop(crop: Crop, photos: list[bytes]) -> dict[str, Any]:
    """Pack a crop; its photo is added to the photos unless it is among them."""
    packed = {"src": _source(crop.image, "jpeg"), "box": crop.box, "value": crop.value, "label": crop.label or ""}
    if crop.photo is None:
        return {**packed, "photo": None}
    if crop.photo not in photos:
        photos.append(crop.photo)
    return {**packed, "photo": photos.index(crop.photo)}


def _source(image: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64_text(image)}"
