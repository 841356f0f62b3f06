"""The check of positions: feature maps change where the image changes, also if the network crops or pads it."""

from __future__ import annotations

import torch
from torch import Tensor

import explainers
from benchmarks.zoo.checks import check, expect
from benchmarks.zoo.oracles import patches
from benchmarks.zoo.subject import Subject

CLEAR = 0.6
"""Least correlation, of either sign, between patches and changes that shows a layer to be local."""


@check
def positions(subject: Subject) -> str:
    """Check that the maps of the default layer and of all stages are at the changed patches, to a cell.

    A layer after global operations, whose changes are everywhere, is not judged.
    """
    names = list(dict.fromkeys([*(layer.name for layer in subject.layers if layer.stage), subject.default]))
    judged, wrong = 0, []
    for name in names[-4:]:
        words = _misplaced(subject, name)
        judged += words is not None
        wrong += [words] if words else []
    expect(not wrong, "; ".join(wrong))
    return f"{judged} of {len(names[-4:])} layers are local"


def _misplaced(subject: Subject, name: str) -> str | None:
    """Return what is wrong with the positions of a layer, an empty string if nothing is, None if it is not local."""
    one = subject.images[:1]
    before = _maps(subject, one, name)
    changed = [(_maps(subject, image, name) - before, position) for image, position in patches(one)]
    seen = [(maps.norm(dim=1)[0].double(), position) for maps, position in changed if bool(maps.any())]
    if len(seen) < 6:
        return None  # one patch at a time must remain inside the part that the network sees
    changes = torch.stack([heat for heat, _ in seen])
    relative = changes / changes.mean((1, 2), keepdim=True)
    relative = relative / relative.mean(0).clamp(min=1e-3 * float(relative.mean()))
    weights = (relative / relative.amax((1, 2), keepdim=True)) ** 16
    weights = weights / weights.sum((1, 2), keepdim=True)
    judged = False
    for axis, side in enumerate(subject.size):
        cells = weights.shape[1 + axis]
        at = (torch.arange(cells, dtype=torch.float64) + 0.5) / cells
        found = (weights.sum(2 - axis) * at).sum(1)
        expected = torch.tensor([position[axis] for _, position in seen], dtype=torch.float64)
        correlation = float(torch.corrcoef(torch.stack([expected, found]))[0, 1].nan_to_num())
        if abs(correlation) < CLEAR:
            continue
        judged = True
        stride = next(layer.stride for layer in subject.layers if layer.name == name)[axis] / side
        off = float((found - expected).abs().median())
        if correlation < 0 or off > max(stride, 1 / 12):
            kind = ("height", "width")[axis]
            return f"{name}: changes are off by {off:.2f} of the image's {kind} (correlation {correlation:.2f})"
    return "" if judged else None


def _maps(subject: Subject, images: Tensor, name: str) -> Tensor:
    return explainers.feature_maps(subject.model, images, layer=name, **subject.options)
