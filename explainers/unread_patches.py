"""Patches that nothing reads: behind a transformer's last attention often the class token alone counts.

Every patch then has a gradient of exactly zero, and a map of them is black without a word. The input of the attention
before stands in, and a finding says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from .layers import Place, attended_later, layer_whose_patches_count
from .recording import note_finding
from .sites import LayerName

if TYPE_CHECKING:
    from .passes import Run

Both = tuple[Tensor, Tensor]
"""A layer's activations and gradients, in its own layout."""


def gradient_place(run: Run, layer: LayerName | None) -> Place:
    """As `run.place`, for methods that take gradients there: the layer before, where the patches have none.

    Only behind the last attention, and where a class token stands before the patches, it costs a pass to look.
    """
    asked = run.place(layer)
    if not _has_class_token(asked) or attended_later(run.model, run.images, asked.name):
        return asked
    return read_instead(run, asked, run.at([asked], run.images.clone())[asked.name])[0]


def read_instead(run: Run, asked: Place, both: Both) -> tuple[Place, Both]:
    """The layer asked for with what was found there, or the last one before it whose patches count, with its own."""
    where = asked
    while _unread(where, both[1]):
        name = layer_whose_patches_count(run.model, run.images, where.name)
        if name is None:
            break
        where = run.place(name)
        both = run.at([where], run.images.clone())[where.name]
    if where is not asked:
        note_finding(
            "token_only_gradient",
            f"After layer {asked.name!r} only the class token is read, so its patches have no gradient. The map is "
            f"that of {where.name!r}, the last layer before it whose patches count.",
            {"layer": where.name},
        )
    return where, both


def _has_class_token(where: Place) -> bool:
    return where.layout == "tokens" and where.extra_tokens > 0


def _unread(where: Place, gradient: Tensor) -> bool:
    """Exactly zero on all patches, but not on the tokens before them: a score of nothing is no unread patch."""
    extra = where.extra_tokens
    return _has_class_token(where) and not bool(gradient[:, extra:].any()) and bool(gradient[:, :extra].any())
