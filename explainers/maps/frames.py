"""Maps of videos and volumes as images: one overlay for each frame, all with the same colors and limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from explainers.errors import BadImages, kind_of
from explainers.maps.overlays import color_limits, overlay
from explainers.maps.resize import resize
from explainers.options import check_keywords
from explainers.placement import Placement, place

if TYPE_CHECKING:
    from PIL import Image


@check_keywords
def overlay_frames(
    frames: Sequence[Image.Image | Tensor] | Tensor,
    map: Tensor,
    *,
    opacity: float = 1.0,
    colors: str | None = None,
    limits: tuple[float, float] | None = None,
    signed: bool = True,
    smooth: bool = True,
    placement: Placement | None = None,
) -> list[Image.Image]:
    """Draw the map of a video or volume over each of its frames, with the options of `overlay`.

    `frames` are the frames or slices that the network received, as images, or as one tensor [T, 3, H, W], [T, H, W, 3]
    or [T, H, W]. The map [t, h, w] is interpolated linearly in time. All frames have the same colors and limits, by
    default the widest of those that `overlay` chooses for single frames, so that they are comparable.

    Returns  new images, one for each frame
    Errors   BadImages if the map is not [t, h, w], or without frames; those of `overlay`

    Example
        >>> from PIL import Image
        >>> clip = [Image.new("RGB", (64, 48)) for _ in range(4)]
        >>> drawn = overlay_frames(clip, torch.rand(2, 6, 8))
        >>> len(drawn), drawn[0].size
        (4, (64, 48))
    """
    if not isinstance(map, Tensor) or map.ndim != 3 or not map.numel():
        given = f"shape {tuple(map.shape)}" if isinstance(map, Tensor) else kind_of(map)
        raise BadImages(
            f"overlay_frames draws one map [t, h, w], not {given}. For a batch, give one map, such as "
            "explanation.map[0]."
        )
    is_clip = isinstance(frames, Sequence) or (isinstance(frames, Tensor) and frames.ndim >= 3)
    if not is_clip or not len(frames):
        raise BadImages("frames is not a sequence of images. Give a list of images, or a tensor [T, 3, H, W].")
    map = place(map, placement)
    maps = resize(map[None].detach(), (len(frames), *map.shape[1:]))[0]
    if colors is None and limits is None:
        colors = "signed" if signed and bool((maps < 0).any()) else "magma"
    shown = [heat for heat in maps if bool((heat.nan_to_num(0, 0, 0) != 0).any())]  # maps of zeros have any limits
    if limits is None and shown:
        own = [color_limits(heat, colors, signed=signed) for heat in shown]
        limits = min(low for _, low, _ in own), max(high for _, _, high in own)
    drawing: dict[str, Any] = {"opacity": opacity, "colors": colors, "limits": limits}
    return [overlay(one, heat, **drawing, signed=signed, smooth=smooth) for one, heat in zip(frames, maps, strict=True)]
