"""The drawing of a network: its blocks and skip connections, packed once per model."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from explainers import Blocks, BlockStep, SkipConnection
from saliscope import zoo
from saliscope.compute import scene
from saliscope.compute.answers import LoadedModel
from saliscope.compute.rail import messages

MOST_ARCS = 600
"""Approximate limit of arcs; for networks with more, only the longest and shortest arc of each end are drawn."""
_drawings: weakref.WeakKeyDictionary[zoo.Model, dict[str, Any]] = weakref.WeakKeyDictionary()


def drawing(loaded: LoadedModel) -> dict[str, Any]:
    """Return the drawing for rail.js; other entries refer to "layers" (see `_layer`) by index."""
    model = loaded.model
    if model not in _drawings:
        _drawings[model] = pack(scene.network_blocks(loaded))
    return {"model": loaded.name, "input": list(model.size), **_drawings[model]}


def pack(network: Blocks) -> dict[str, Any]:
    """Return the drawing of these blocks."""
    steps = [step for block in network.blocks for step in block.steps]
    blocks, first = [], 0
    for block in network.blocks:
        blocks.append({"out": first + block.out, "first": first, "count": len(block.steps)})
        first += len(block.steps)
    reasons = list(dict.fromkeys(messages.why(step.why, step.layer) for step in steps))
    return {
        "layers": [_layer(step, reasons) for step in steps],
        "whys": reasons,
        "aliases": {name: k for k, step in enumerate(steps) for name in step.names if name != step.layer.name},
        "blocks": blocks,
        "arcs": [[skip.start, skip.end, int(skip.projected)] for skip in limit_arcs(network.skips)],
    }


def _layer(step: BlockStep, reasons: list[str]) -> list[Any]:
    layer = step.layer
    height, width = layer.grid or (0, 0)
    axis = layer.channel_axis if layer.grid else 1
    channels = layer.shape[axis] if len(layer.shape) > axis else 0
    why, can_be_chosen = reasons.index(messages.why(step.why, layer)), step.why not in messages.NOT_LISTED
    return [layer.name, height, width, channels, layer.kind, why, step.why, can_be_chosen]


def limit_arcs(skips: Sequence[SkipConnection]) -> list[SkipConnection]:
    """Return about `MOST_ARCS` skip connections, longest first, so that shorter ones are drawn on top."""
    skips = sorted(skips, key=lambda skip: skip.start - skip.end)
    if len(skips) > MOST_ARCS:
        ends = [[skip for skip in skips if skip.end == end] for end in sorted({skip.end for skip in skips})]
        skips = [skip for skips_to_end in ends for skip in dict.fromkeys((skips_to_end[0], skips_to_end[-1]))]
    return list(skips)
