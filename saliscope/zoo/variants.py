"""A model with another size, crop, mean, std, score or device, written after its name: `NAME?size=96x64&crop=whole`.

Visitors of a page may use such names for every offered model, so links, batches and the API work as for other names.
"""

from __future__ import annotations

import copy
import dataclasses
import re

from saliscope.errors import Refused
from saliscope.zoo import devices, overrides
from saliscope.zoo.model import Model
from saliscope.zoo.names import split_device
from saliscope.zoo.names import split_name as split_name  # the page calls it here
from saliscope.zoo.overrides import BadOverride, Overrides
from saliscope.zoo.sources.source import ModelUnavailable

MAX_SIDE = 512
"""The longest side in pixels that a name may request, because visitors could otherwise fill the memory. The owner can
set any size when the model is added."""
_HOW = (
    "Write NAME?size=HEIGHTxWIDTH&crop=X,Y&mean=0.5,0.5,0.5&std=0.5,0.5,0.5&score=softmax&device=cpu, with only what "
    "you want to change"
)
WHOLE = "whole"
"""The crop of the whole image."""


def parse_settings(text: str) -> Overrides:
    """Return the settings of a name, except for its device.

    Errors   BadOverride
    """
    found: dict[str, str] = {}
    for part in text.split("&"):
        key, equals, value = part.partition("=")
        if key not in ("size", "crop", "mean", "std", "score") or not equals or not value or key in found:
            raise BadOverride(f"Cannot read the setting {part!r}. {_HOW}")
        found[key] = value
    mean, std = (_numbers(key, found[key]) if key in found else None for key in ("mean", "std"))
    size = _side(found["size"]) if "size" in found else None
    crop = _crop(found["crop"]) if "crop" in found else None
    return Overrides(mean=mean, std=std, size=size, score=found.get("score"), crop=crop)


def _side(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,5})(?:[x×](\d{1,5}))?", text)
    sides = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not all(1 <= side <= MAX_SIDE for side in sides):
        raise BadOverride(f"Invalid size {text!r}. Use pixels from 1 to {MAX_SIDE}, such as 224 or 96x64")
    return sides


def _crop(text: str) -> str | tuple[float, float]:
    if text == WHOLE:
        return text
    match = re.fullmatch(r"([01](?:\.\d{1,4})?),([01](?:\.\d{1,4})?)", text)
    x, y = (float(match[1]), float(match[2])) if match else (2.0, 2.0)
    if max(x, y) > 1:
        raise BadOverride(f"Invalid crop {text!r}. Use {WHOLE}, or its position from 0 to 1, such as 0.5,0")
    return x, y


def _numbers(key: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(value) for value in text.split(","))
    except ValueError:
        raise BadOverride(f"Invalid {key} {text!r}. Use one number per channel, such as 0.5,0.5,0.5") from None


def change_settings(model: Model, text: str) -> Model:
    """Return the model with the settings of a name; it shares the network, unless the name has another device.

    Errors   ModelUnavailable
    """
    others, device = split_device(text)
    try:
        changed = overrides.change(model, parse_settings(others)) if others else model
        changed = _on_device(changed, device) if device else changed
    except (BadOverride, Refused) as error:
        raise ModelUnavailable(f"{str(error).rstrip('.')}.") from error
    return dataclasses.replace(changed, name=f"{model.name}?{text}")


def _on_device(model: Model, name: str) -> Model:
    """Return the model with a copy of its network on a device.

    Errors   Refused with the available devices
    """
    return dataclasses.replace(model, network=copy.deepcopy(model.network).to(devices.choose(name)))
