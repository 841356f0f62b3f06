"""Labels and messages of the Channels view."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from saliscope.compute import messages
from saliscope.percentages import number, percent

if TYPE_CHECKING:
    from saliscope.compute.answers import Answer, Settings
    from saliscope.compute.channels.answers import (
        Channel,
        Contribution,
        InputGradient,
        Measures,
        ReceptiveFields,
        Sheet,
    )
    from saliscope.compute.units import LayerUnits, Unit

FEATURES = "Channels"
EMPTY_GRID = "The channels of the layer appear here after you explain an image."
EMPTY_CHANNEL = "Choose a channel to enlarge it."
NO_CHANNELS = "No layer of this network has cells with positions, so there are no channels to show."
EFFECTS = "Setting each channel to zero"
EFFECTS_STOPPED = (
    "Stopped before the effect of every channel was measured. Sort by measured effect again, or by another measure."
)
NO_EFFECTS = (
    "Nothing was detected in this image, so channels have no contribution. Sort by a measure of the channel itself."
)
NO_SUBJECT = "Nothing was detected in this image, so there is no class to compute a contribution for."

GRID = {
    "label": "Channels",
    "sort": "Sort by",
    "sorts": [
        ["mean", "Mean activation"],
        ["highest", "Largest activation"],
        ["sparsity", "Sparsity (Hoyer)"],
        ["gradient", "Gradient × activation"],
        ["effect", "Measured effect"],
        ["here", "Value at a cell"],
        ["number", "Channel number"],
    ],
    "sort_titles": {
        "mean": "Mean over all cells, largest first",
        "highest": "Largest value of any cell, largest first",
        "sparsity": "Hoyer sparsity: 1 if a single cell is active, 0 if all cells are equally active; sparsest first",
        "gradient": "Gradient of the class score times activation, summed over all cells, largest first",
        "effect": "Drop of the class score when the channel is set to zero, largest first",
        "here": "Value at the cell that you clicked on the large map, largest first",
        "number": "In the order of the network",
    },
    "no_cell": "Click a cell of the large map first.",
    "one_cell": "Sparsity is not defined for channels with a single cell.",
    "measure": {
        "mean": "mean",
        "highest": "largest",
        "sparsity": "sparsity",
        "gradient": "gradient × activation",
        "effect": "effect",
        "here": "value at the cell",
        "number": "mean",
    },
    "search": "Find",
    "search_title": "A word of a name, or the number of a channel",
    "search_number": "The number of a channel",
    "matches": "{count} of {total} match “{text}”.",
    "no_match": "No channel of this layer matches “{text}”. Try a shorter word, or clear the search.",
    "show": "Tiles",
    "shows": [
        ["response", "Response to this image"],
        ["synthetic", "Synthetic image"],
        ["top", "Top image"],
    ],
    "show_titles": {
        "response": "The values of the channel for this image",
        "synthetic": "An image that was optimized so that the channel becomes as active as possible",
        "top": "The part of a photo with the largest value of the channel",
    },
    "range": "Range",
    "own": "Per channel",
    "shared": "Shared",
    "range_title": "Per channel: each tile uses all colors. Shared: equal colors mean equal values in all tiles.",
    "smooth": "Smooth",
    "dead": "Hide dead",
    "dead_title": "Channels that are zero everywhere for this image",
    "save": "Save all",
    "png": "PNG",
    "npy": ".npy",
    "stop": "Stop",
    "stop_name": "Stop measuring the channels",
    "previous": "Previous page",
    "next": "Next page",
    "page": "Page",
    "of": "of",
    "channel": "Channel",
    "no_value": "no value",
    "own_ends": ["0", "channel maximum"],
    "own_signed": ["−", "0", "+"],
    "select": "Select",
    "selected": "Select ({count})",
    "select_title": "Select channels to change them: click tiles, or Shift-click for a range",
}
"""Labels used by page/channels/channels.js."""

OPEN = {
    "previous": "Previous",
    "next": "Next",
    "channel": "Channel",
    "of": "of",
    "close": "Close",
    "closed": "Choose a channel to enlarge it, or enter its number.",
    "waiting": "Computing …",
    "field": "Receptive field",
    "no_field": "no pixels",
    "whole_field": "the whole crop ({size})",
    "why": "Input gradient",
    "here": "Sort by this cell",
    "here_title": "List first the channels that are most active at this cell",
    "share": "Contribution to the class score",
    "target": "Use as target",
    "target_title": "Explain the mean of this channel instead of a class in every view",
    "explained": "Current target",
}
"""Labels used by page/channels/channel.js."""

UNIT = {
    "title": "What it responds to",
    "synthetic": "Synthetic image",
    "synthetic_note": "Optimized from noise so that the channel becomes as active as possible. It is not a photo.",
    "crops": "Photos to which it responds most",
    "crops_note": "Each image is the part of a photo that the strongest cell sees. A small square shows where.",
    "photo_note": "Each image is the part of a photo that the strongest cell sees. Choose one to see the whole photo.",
    "crop": "Photo {rank}{label}, value {value}",
    "photo": "The whole photo, with the box of photo {rank}",
    "order": "Order of the photos",
    "nearest": "Similar channels",
    "nearest_note": "Their mean activations in the images correlate most with those of this channel.",
}
"""Labels used by page/channels/unit.js."""
BY_RESPONSE = "By response"


def by_effect(found: LayerUnits) -> str:
    """Return the name of the order of photos by the effect of a channel on a class."""
    return f"By effect on {'the predicted class' if found.effects == 'predicted' else found.effects or 'the class'}"


HINT = "Hover to read a value. Click a cell to see its input gradient and how its value is computed."
"""Shown below the enlarged channel."""


def no_channel(number: int, layer: str, count: int) -> str:
    """Return the message for a channel that does not exist."""
    return f"Layer {layer} has no channel {number}. Choose a channel from 0 to {count - 1}."


OUTSIDE = "The layer has no cell at this position. Choose another one."


def no_cell(cell: tuple[int, int], grid: tuple[int, ...]) -> str:
    """Return the message for a cell that does not exist."""
    return f"No cell at row {cell[0] + 1}, column {cell[1] + 1}: the layer has {grid[0]} × {grid[1]} cells."


def gone(number: int, layer: str, count: int) -> str:
    """Return the message for an open channel that the new layer does not have."""
    return f"Channel {number} was closed because {layer} only has channels 0 to {count - 1}."


def sheet(step: Sheet, cell: tuple[int, int]) -> str:
    """Return the line above the tiles."""
    height, width = step.maps.shape[1:]
    dead = int(step.dead.sum())
    parts = [f"{step.settings.layer}: {step.total:,} channels of {height} × {width}"]
    if dead:
        parts.append(f"{dead:,} {'is' if dead == 1 else 'are'} dead (zero everywhere for this image)")
    if cell != (height, width):
        parts.append(f"tiles averaged to {cell[0]} × {cell[1]}")
    return "; ".join(parts) + "."


def measured(step: Measures) -> str:
    """Return the description of a measure, which follows the line above the tiles."""
    if step.subject is None:
        row, column = step.cell or (0, 0)
        return f"Value at the cell in row {row + 1}, column {column + 1}."
    unit = step.settings.loaded.measure
    if step.kind == "effect":
        return f"Effect: drop of the {unit} of {step.subject.name} when the channel is set to zero."
    total = float(step.values.double().sum())
    return f"Gradient × activation for {step.subject.name}: {number(total, '+.3g')} {_units(unit)} in total."


def unit_test(unit: Unit) -> str:
    """Return the test of the name of a channel, which always accompanies the name."""
    source = f", by {unit.names_by}" if unit.names_by else ""
    return f"AUC {unit.auc:.2f} ({unit.low:.2f} to {unit.high:.2f}){source}"


def unit(unit: Unit, found: LayerUnits) -> list[str]:
    """Return the sentences about an open channel: its name, and how active it is in the indexed images."""
    lines = []
    if unit.name is not None and unit.auc is not None:
        lines.append(
            f"{unit.name}, AUC {unit.auc:.2f} (95% interval {unit.low:.2f} to {unit.high:.2f}): in "
            f"{100 * unit.auc:.0f} of 100 pairs of a photo with this name and one without it, the channel is more "
            f"active on the first. Tested on {unit.count:,} photos with this name that were not used to choose it."
        )
        if unit.names_by:
            lines.append(
                f"The name is by {unit.names_by}: the encoder chose the photos with this name, and may be wrong."
            )
    elif any(other.name for other in found.units):
        lines.append("No name: no label of the photos describes this channel well enough in the test.")
    source = f"the {found.images:,} images of the index" + (f" ({found.photos})" if found.photos else "")
    if unit.dead:
        lines.append(f"Dead: all cells have the same value in {source}.")
    else:
        lines.append(f"Active in {percent(1 - unit.sparsity)} of {source}.")
    if found.own:
        lines.append(f"The photos are from your {found.own} image{'s' * (found.own != 1)} of the Batch view.")
    return lines


def channel_file(step: Channel) -> str:
    """Return the file name of a saved channel without its extension."""
    return _stem(step.settings, f"channel-{step.number}")


def sheet_file(settings: Settings) -> str:
    """Return the file name of all saved channels without its extension."""
    return _stem(settings, "channels")


def _stem(settings: Settings, what: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", f"{settings.loaded.name}-{settings.layer}-{what}")[:120]


def channel(step: Channel) -> dict[str, Any]:
    """Return the alternative text and the hint of the open channel."""
    strongest = messages._strongest(step.map)
    alt = f"Channel {step.number} of layer {step.settings.layer}; {strongest}."
    return {"alt": alt, "unit": "", "hint": HINT}


def facts(step: Channel, sparsity: float) -> list[list[str]]:
    """Return the statistics of the open channel."""
    plane = step.map
    rows = [
        ["Mean", number(float(plane.mean()), ".4g")],
        ["Largest", number(float(plane.max()), ".4g")],
        ["Smallest", number(float(plane.min()), ".4g")],
        ["Zeros", percent(float((plane == 0).float().mean()))],
    ]
    return rows + ([["Sparsity", f"{sparsity:.2f}"]] if sparsity == sparsity else [])


def contribution(step: Contribution) -> list[str]:
    """Return the lines about the contribution of the channel to the class score."""
    if step.subject is None:
        return [step.reason]
    unit, name, lines = step.settings.loaded.measure, step.subject.name, []
    if step.parts is not None:
        own, total = float(step.parts[step.number]), float(step.parts.double().sum())
        positive = float(step.parts.clamp(min=0).double().sum())
        rank = int((step.parts > step.parts[step.number]).sum()) + 1
        position = f"rank {rank:,} of {len(step.parts):,} channels" if own else "no contribution"
        lines.append(
            f"Gradient × activation: {number(own, '+.3g')} {_units(unit)}{_percent(own, step.parts)}, {position}."
        )
        lines.append(
            f"All channels: {number(total, '+.3g')} ({number(positive, '+.3g')} positive, "
            f"{number(total - positive, '+.3g')} negative)."
        )
    else:
        lines.append(step.reason)
    if step.effect is not None:
        lines.append(f"With this channel set to zero, the {unit} of {name} {_change(step.effect)}.")
    return lines


def _percent(own: float, parts: Any) -> str:
    """Return the share of the layer's sum, or an empty string if positive and negative parts nearly cancel."""
    total, sizes = float(parts.double().sum()), float(parts.double().abs().sum())
    if total > 0.25 * sizes:
        return f", {percent(own / total)} of the layer's sum"
    return ""


def _change(effect: float) -> str:
    if not effect:
        return "does not change"
    return f"{'falls' if effect > 0 else 'rises'} by {abs(effect):.3g}"


def contribution_title(step: Contribution) -> str:
    """Return the heading above the contribution of the channel."""
    return f"Contribution to {step.subject.name}" if step.subject else OPEN["share"]


def input_gradient(step: InputGradient) -> str:
    """Return the caption of the small map next to the large one."""
    row, column = step.cell[0] + 1, step.cell[1] + 1
    where = f"{'strongest ' if step.strongest else ''}cell (row {row}, column {column})"
    if step.reason:
        return step.reason
    if step.map is None or not bool(step.map.any()):
        return f"The input gradient of the {where} is zero, so no pixel changes its value {step.value:.3g}."
    part = " Enlarged to the pixels that it depends on." if step.window else ""
    if step.before is not None:
        value = "its value" if math.isnan(step.before) else number(step.before)
        return (
            f"Input gradient of the {where} before the activation function, which sets {value} to {step.value:.3g}: "
            f"bright pixels change it most.{part}"
        )
    return f"Input gradient of the {where}, value {step.value:.3g}: bright pixels change it most.{part}"


def receptive_fields(step: ReceptiveFields) -> str:
    """Return the message for unknown receptive fields, or an empty string."""
    return "" if step.spans else "The receptive fields of this layer are not known."


def planes(step: Answer) -> dict[str, Any]:
    """Return the labels used by page/maps/planes.js."""
    pager = messages.planes(step)
    return {**pager, "label": f"All {step.planes} {pager['word'].lower()}s"}


def _units(unit: str) -> str:
    return f"{unit}s" if unit == "logit" else unit
