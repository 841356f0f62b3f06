"""Every sentence about a layer's channels."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ui import words

if TYPE_CHECKING:
    from ui.channels.messages import Channel, Fields, Measures, Share, Sheet, Why
    from ui.engine.messages import Answer, Settings

FEATURES = "Feature maps"
EMPTY_GRID = "The layer's channels appear here once a picture is explained."
EMPTY_CHANNEL = "Choose a channel to see it large."
EFFECTS = "Setting each channel to zero"
GRADIENTS = "Gradient × activation of each channel"
EFFECTS_STOPPED = "Stopped before every channel was set to zero. Sort by measured effect again, or by another figure."
NO_EFFECTS = (
    "Nothing was found in this picture, so no channel has a share of it. Sort by a figure of the channel itself."
)
NO_SUBJECT = "Nothing was found in this picture, so there is no class to have a share of."

GRID = {
    "label": "Channels",
    "sort": "Sort by",
    "sorts": [
        ["mean", "Mean activation"],
        ["highest", "Largest activation"],
        ["sparsity", "Sparsity (Hoyer)"],
        ["gradient", "Gradient × activation"],
        ["effect", "Measured effect"],
        ["number", "Channel number"],
    ],
    "sort_titles": {
        "mean": "Mean over all cells, largest first",
        "highest": "Largest value of any cell, largest first",
        "sparsity": "Hoyer's measure: 1 where a single cell fires, 0 where all cells fire alike; sparsest first",
        "gradient": "Gradient of the class's score times activation, summed over all cells, largest first",
        "effect": "How far the class's score falls when the channel is set to zero, largest first",
        "number": "In the network's own order",
    },
    "one_cell": "Channels of a single cell have no sparsity.",
    "measure": {
        "mean": "mean",
        "highest": "largest",
        "sparsity": "sparsity",
        "gradient": "gradient × activation",
        "effect": "effect",
        "number": "mean",
    },
    "range": "Range",
    "own": "Each its own",
    "shared": "Shared",
    "range_title": "Each its own: every tile uses all colours. Shared: equal colours are equal values in all tiles.",
    "smooth": "Smooth",
    "dead": "Hide dead",
    "dead_title": "Channels that are zero everywhere in this picture",
    "save": "Save all",
    "png": "PNG",
    "npy": ".npy",
    "stop": "Stop",
    "previous": "Previous page",
    "next": "Next page",
    "page": "Page",
    "of": "of",
    "channel": "Channel",
    "no_value": "no value",
    "own_ends": ["0", "largest of the channel"],
    "own_signed": ["−", "0", "+"],
    "preparing": "Fetching tiles",
}
"""The words of static/channels/channels.js."""

OPEN = {
    "previous": "Previous",
    "next": "Next",
    "channel": "Channel",
    "of": "of",
    "close": "Close",
    "closed": "Choose a channel to see it large, or enter its number.",
    "waiting": "computing …",
    "field": "Receptive field",
    "no_field": "no pixel",
    "why": "Why it fired",
    "share": "Its share of the class",
    "target": "Use as target",
    "target_title": "Explain the mean of this channel instead of a class, on every tab",
    "explained": "Is the target",
}
"""The words of static/channels/channel.js."""


HINT = "Point: read a value. Click: why it fired."
"""Below the large channel."""


def no_channel(number: int, layer: str, count: int) -> str:
    """When a channel does not exist."""
    return f"Layer {layer} has no channel {number}; it has channels 0 to {count - 1}."


def no_cell(cell: tuple[int, int], grid: tuple[int, ...]) -> str:
    """When a cell does not exist."""
    return f"There is no cell in row {cell[0] + 1}, column {cell[1] + 1}: the layer has {grid[0]} × {grid[1]}."


def no_gradient(error: Exception) -> str:
    """When the network has no gradient there."""
    return words.plain(str(error))


def gone(number: int, layer: str, count: int) -> str:
    """When the open channel does not exist at the layer that is shown now."""
    return f"Channel {number} is closed: {layer} has channels 0 to {count - 1}."


def sheet(step: Sheet, cell: tuple[int, int]) -> str:
    """The line above the tiles."""
    height, width = step.maps.shape[1:]
    dead = int(step.dead.sum())
    parts = [f"{step.settings.layer}: {step.total:,} channels of {height} × {width}"]
    if dead:
        parts.append(f"{dead:,} {'is' if dead == 1 else 'are'} dead, zero everywhere in this picture")
    if cell != (height, width):
        parts.append(f"tiles averaged to {cell[0]} × {cell[1]}")
    return "; ".join(parts) + "."


def measured(step: Measures) -> str:
    """What a measure is, behind the line above the tiles."""
    unit = _measure(step.settings)
    if step.kind == "effect":
        return f"Effect: the {unit} of {step.subject.name} minus that with the channel set to zero."
    total = float(step.values.double().sum())
    return f"Gradient × activation for {step.subject.name}: together {_signed(total)} {_units(unit)}."


def channel_file(step: Channel) -> str:
    """The stem of a saved channel's file name."""
    return _stem(step.settings, f"channel-{step.number}")


def sheet_file(settings: Settings) -> str:
    """The stem of the file names of all channels."""
    return _stem(settings, "channels")


def _stem(settings: Settings, what: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", f"{settings.loaded.name}-{settings.layer}-{what}")[:120]


def channel(step: Channel) -> dict[str, Any]:
    """The open channel's alternative text and hint."""
    strongest = words._strongest(step.map)
    alt = f"Channel {step.number} of layer {step.settings.layer}; {strongest}."
    return {"alt": alt, "unit": "", "hint": HINT}


def facts(step: Channel, sparsity: float) -> list[list[str]]:
    """The open channel's figures."""
    plane = step.map
    found = [
        ["Mean", f"{float(plane.mean()):.4g}"],
        ["Largest", f"{float(plane.max()):.4g}"],
        ["Smallest", f"{float(plane.min()):.4g}"],
        ["Zeros", f"{100 * float((plane == 0).float().mean()):.0f}%"],
    ]
    found = [[name, text.replace("-", "−")] for name, text in found]
    return found + ([["Sparsity", f"{sparsity:.2f}"]] if sparsity == sparsity else [])


def share(step: Share) -> list[str]:
    """What the channel does for the class, in sentences."""
    if step.subject is None:
        return [step.reason]
    unit, name, said = _measure(step.settings), step.subject.name, []
    if step.parts is not None:
        own, total = float(step.parts[step.number]), float(step.parts.double().sum())
        rank = int((step.parts > step.parts[step.number]).sum()) + 1
        place = f"number {rank:,} of {len(step.parts):,} channels" if own else "nothing"
        said.append(f"Gradient × activation: {_signed(own)} {_units(unit)}{_percent(own, step.parts)}, {place}.")
        said.append(
            f"All channels: {_signed(total)}; {_signed(float(step.parts.clamp(min=0).double().sum()))} for it, "
            f"{_signed(float(step.parts.clamp(max=0).double().sum()))} against."
        )
    else:
        said.append(step.reason)
    if step.effect is not None:
        said.append(f"Set to zero, the {unit} of {name} {_moves(step.effect)}.")
    return said


def _measure(settings: Settings) -> str:
    """What a class is measured in, also where a channel is explained."""
    return "score" if settings.loaded.model.task == "detection" else "logit"


def _percent(own: float, parts: Any) -> str:
    """In parts of the whole, where that says something: where what is for the class and against it do not cancel."""
    total, sizes = float(parts.double().sum()), float(parts.double().abs().sum())
    if total > 0.25 * sizes:
        return f", {100 * own / total:.2g}% of the layer's sum".replace("-", "−")
    return ""


def _moves(effect: float) -> str:
    if not effect:
        return "stays as it is"
    return f"{'falls' if effect > 0 else 'rises'} by {abs(effect):.3g}"


def share_title(step: Share) -> str:
    return f"Its share of {step.subject.name}" if step.subject else OPEN["share"]


def why(step: Why) -> str:
    """What the small map beside the large one is."""
    row, column = step.cell[0] + 1, step.cell[1] + 1
    where = f"{'strongest cell, ' if step.strongest else ''}row {row}, column {column}"
    if step.reason:
        return step.reason
    if step.map is None or not bool(step.map.any()):
        return f"No pixel changes the value {step.value:.3g} of its {where}: the gradient is zero."
    part = " Enlarged: the part of the picture that it sees." if step.window else ""
    if step.of_mean:
        return (
            f"Gradient of its mean at each pixel: bright pixels change it most. That of its {where} is zero: the value "
            f"{step.value:.3g} is at the activation function's limit.{part}"
        )
    return f"Gradient of its {where} (value {step.value:.3g}) at each pixel: bright pixels change it most.{part}"


def fields(step: Fields) -> str:
    """Where the receptive fields are not known."""
    return "" if step.spans else "The receptive fields of this layer are not known."


def planes(step: Answer) -> dict[str, Any]:
    """The words of static/maps/planes.js."""
    pager = words.planes(step)
    return {**pager, "label": f"All {step.planes} {pager['word'].lower()}s"}


def _signed(value: float) -> str:
    return f"{value:+.3g}".replace("-", "−")


def _units(unit: str) -> str:
    return f"{unit}s" if unit == "logit" else unit
