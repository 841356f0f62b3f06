"""The drawing of a loaded network: blocks, skip connections, stages; made once for each."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ui.engine.messages import Loaded
from ui.rail import words

if TYPE_CHECKING:
    from torch import nn

    from explainers.layers.blocks.partition import Block, Blocks, Skip, Step

MOST_ARCS = 600
"""Arcs drawn; of networks with more, of all that end alike the longest and the shortest."""
_drawn: weakref.WeakKeyDictionary[nn.Module, dict[str, Any]] = weakref.WeakKeyDictionary()


def drawing(loaded: Loaded) -> dict[str, Any]:
    """What rail.js draws: "layers" as in `_layer`, which the others name by their numbers."""
    network = loaded.model.network
    if network not in _drawn:
        _drawn[network] = packed(_blocks(loaded))
    return {"model": loaded.name, **_drawn[network]}


def _blocks(loaded: Loaded) -> Blocks:
    import torch  # torch takes seconds to start

    from explainers.layers.blocks.partition import network_blocks  # torch takes seconds to start

    model = loaded.model
    return network_blocks(model.network, torch.zeros(1, model.channels, *model.size, device=loaded.device))


def packed(network: Blocks) -> dict[str, Any]:
    """The drawing of these blocks; "stages" as the first block, the last, and whether there will be a thumbnail."""
    steps = [step for block in network.blocks for step in block.steps]
    blocks, first = [], 0
    for block in network.blocks:
        blocks.append({"out": first + block.out, "first": first, "count": len(block.steps)})
        first += len(block.steps)
    whys = list(dict.fromkeys(words.why(step.why, step.layer) for step in steps))
    return {
        "layers": [_layer(step, whys) for step in steps],
        "whys": whys,
        "aliases": {name: k for k, step in enumerate(steps) for name in step.names if name != step.layer.name},
        "blocks": blocks,
        "arcs": [[skip.start, skip.end, int(skip.projected)] for skip in few(network.skips)],
        "stages": _stages(network.blocks),
    }


def _layer(step: Step, whys: list[str]) -> list[Any]:
    from explainers.layers.layout import channel_axis  # torch takes seconds to start

    layer = step.layer
    height, width = layer.grid or (0, 0)
    axis = channel_axis(layer.layout) if layer.grid else 1
    channels = layer.shape[axis] if len(layer.shape) > axis else 0
    why, can_be_chosen = whys.index(words.why(step.why, layer)), step.why not in words.NOT_LISTED
    return [layer.name, height, width, channels, layer.kind, why, step.why, can_be_chosen]


def few(skips: Sequence[Skip]) -> list[Skip]:
    """At most about `MOST_ARCS`, longest first, so that shorter ones are drawn over them."""
    skips = sorted(skips, key=lambda skip: skip.start - skip.end)
    if len(skips) > MOST_ARCS:
        ends = [[skip for skip in skips if skip.end == end] for end in sorted({skip.end for skip in skips})]
        skips = [skip for same in ends for skip in dict.fromkeys((same[0], same[-1]))]
    return list(skips)


def _stages(blocks: Sequence[Block]) -> list[list[int]]:
    """Consecutive blocks of one resolution, as the numbers of the first and the last."""

    def grid(k: int) -> tuple[int, int]:
        found = blocks[k].layer.grid
        return found if found and found != (1, 1) else (0, 0)

    runs = [list(run) for _, run in groupby(range(len(blocks)), grid)]
    marked = [sum(step.layer.stage for k in run for step in blocks[k].steps) for run in runs]
    return [[run[0], run[-1], int(count > 0 and sum(marked) > 1)] for run, count in zip(runs, marked, strict=True)]
