"""`Explanation`, the result of `explain`: a map with its scores, statistics and findings; `show`; whole batches."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from explainers.call.images import first_broken_value
from explainers.display.display import Display, Displayed, check_labels
from explainers.errors import BadOption, WrongType, kind_of
from explainers.explanation.diagnosis import Evidence, statistics
from explainers.explanation.facts import Explained
from explainers.explanation.figures import MOST, display_maps, report
from explainers.explanation.npz import load_npz, save_npz
from explainers.findings import Finding, scatter_rows
from explainers.maps.arrays import one_for_each
from explainers.maps.overlays import overlay, overlay_frames
from explainers.maps.resize import resize
from explainers.options import check_whole
from explainers.placement import Placement, join_placements, place_each, spread_placements
from explainers.targets import TargetLike, as_target, describe_target

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True, eq=False)
class Explanation(Explained, Displayed):
    """The result of `explain`.

    `map` is [N, h, w] as in the paper, [N, t, h, w] for videos and volumes; `raw` the result before the final ReLU or
    reduction; `scores` [N, K] the model's output from the same forward pass, None if the method does not need it;
    `target` class indices or the target's repr; `statistics` and `findings` have one entry per image; `seconds` is wall
    time. `keywords` are the keyword arguments that the method received, including `through`; None after `load` if a
    file cannot store them. `score` says how the scores become probabilities (as in `explain`), given or detected; None
    if the scores are unknown. `device` is the device that computed the result, such as "cpu" or "cuda:0". `images` are
    those that the method received, not a copy, to show the map in notebooks; `save` does not write them, and
    `dataclasses.replace(e, images=None)` releases them. `done` of `total` samples of each image were computed (steps,
    masks, permutations or windows, by method; at most `total` if the method chooses the number); both are 1 for methods
    without samples. `placement` says where the cells of `map` and `raw` lie in the image, None if they cover it evenly.
    """

    def upsample(self, size: tuple[int, ...]) -> Tensor:
        """Resize the map to [N, height, width], or [N, frames, height, width] for videos and volumes.

        The cells are moved to where they lie in the image (`placement`). The interpolation is bilinear,
        `align_corners=False`, without clipping.
        """
        return resize(self.map, size, placement=self.placement)

    def overlay(
        self,
        images: Image.Image | Tensor | Sequence[Image.Image | Tensor],
        *,
        signed: bool | None = None,
        **options: Any,
    ) -> list[Image.Image]:
        """Draw each map over its image (the crop that the network received), with the options of `overlay`.

        Gradients of pixels are shown as magnitudes, since their sign depends on whether a pixel is bright or dark,
        unless `signed=True` or `colors="signed"`. All other maps are drawn with their signs: red is evidence for the
        target, blue against it.

        Errors   BadImages if the number of images is not the number of maps, or for videos (use `overlay_frames`)
        """
        if self.map.ndim == 4:
            raise BadOption("These are maps of videos or volumes. Use overlay_frames, which draws each frame.")
        signed = self._draws_signs(signed, options)
        several = one_for_each(images, len(self.map))
        placed = place_each(self.map, self.placement)
        return [overlay(image, one, signed=signed, **options) for image, one in zip(several, placed, strict=True)]

    def overlay_frames(
        self,
        clips: Sequence[Sequence[Image.Image | Tensor] | Tensor] | Tensor,
        *,
        signed: bool | None = None,
        **options: Any,
    ) -> list[list[Image.Image]]:
        """Draw each map of videos or volumes over the frames of its clip, with the options of `overlay_frames`.

        `clips` has one clip for each map: a list of images, or a tensor [T, 3, H, W], [T, H, W, 3] or [T, H, W].
        `signed` is as in `overlay`.

        Returns  one list of images for each clip
        Errors   BadOption if the number of clips is not the number of maps, or for maps of images
        """
        if self.map.ndim == 3:
            raise BadOption("These are maps of images, without frames. Use overlay.")
        signed = self._draws_signs(signed, options)
        if len(clips) != len(self.map):
            raise BadOption(
                f"{len(clips)} clips were given for {len(self.map)} maps. Give a list with the frames of each clip."
            )
        placed = place_each(self.map, self.placement)
        return [overlay_frames(clip, one, signed=signed, **options) for clip, one in zip(clips, placed, strict=True)]

    def _draws_signs(self, signed: bool | None, options: dict[str, Any]) -> bool:
        if signed is not None:
            return signed
        return not self.by_size or str(options.get("colors")) == "signed"

    def save(self, path: str) -> None:
        """Write the explanation to an `.npz` file that NumPy reads without pickle."""
        arrays = {"map": self.map, "raw": self.raw}
        if self.scores is not None:
            arrays["scores"] = self.scores
        names = "method layer target statistics seconds score device done total options findings placement".split()
        about = {name: getattr(self, name) for name in names}
        about["keywords"] = self.keywords if _is_plain(self.keywords) else None

        def plain(value: Any) -> Any:
            if isinstance(value, (Finding, Placement)):
                return asdict(value)
            return value.tolist() if isinstance(value, Tensor) else repr(value)

        save_npz(path, arrays, {"about": json.dumps(about, default=plain)})

    @classmethod
    def load(cls, path: str) -> Explanation:
        """Read a file written by `save`.

        Errors   OSError, zipfile.BadZipFile or ExplainerError if the file is missing or invalid
        """
        arrays = load_npz(path)
        about = json.loads(bytes(arrays["about"].tolist()))
        findings = [[Finding(**fields) for fields in row] for row in about.pop("findings")]
        where = about.pop("placement", None)
        placement = [_placement(each) for each in where] if isinstance(where, list) else _placement(where)
        maps: dict[str, Any] = {name: arrays.get(name) for name in ("map", "raw", "scores")}
        for row in about["statistics"]:
            row |= {name: tuple(value) for name, value in row.items() if isinstance(value, list)}
        return cls(**about, **maps, findings=findings, placement=placement)

    def to_html(self, path: str | Path, images: Any = None, *, labels: Sequence[str] | None = None) -> None:
        """Write a page about this explanation: its maps with controls, the scores, the settings and the findings.

        `images` and `labels` are as in `show`.

        Errors   ImportError without Pillow; OSError; BadImages if the number of images is not the number of maps
        """
        report(self, images, labels).to_html(path, f"{self.method} – Saliscope")

    def display(self, labels: Sequence[str] | None = None) -> Display:
        """Return the maps with controls, and static images."""
        return display_maps([self], labels=labels)

    def __repr__(self) -> str:
        n, *cells = self.map.shape
        where = f" at {self.layer}" if self.layer else ""
        codes = sorted({finding.code for row in self.findings for finding in row})
        notes = f", findings: {', '.join(codes)}" if codes else ""
        finite = self.map[self.map.isfinite()]
        low, high = (float(finite.min()), float(finite.max())) if len(finite) else (math.nan, math.nan)
        target = self.target if not isinstance(self.target, list) or len(self.target) != 1 else self.target[0]
        samples = "" if self.is_complete else f", {self.done:,} of {self.total:,} samples"
        return (
            f"Explanation({self.method}{where}, target {target}, {n} map{'s' * (n > 1)} of "
            f"{'x'.join(map(str, cells))} in [{low:.3g}, {high:.3g}], {self.seconds:.2f} s{samples}{notes})"
        )


def _placement(stored: Any) -> Placement | None:
    return None if stored is None else Placement(tuple(map(tuple, stored["centers"])), tuple(stored["size"]))


def _is_plain(keywords: dict[str, Any] | None) -> bool:
    """Return whether the keywords are unchanged after a round trip through JSON."""
    try:
        return bool(json.loads(json.dumps(keywords)) == keywords)
    except (TypeError, ValueError):
        return False


def show(
    explanations: Explanation | Sequence[Explanation] | Displayed,
    images: Any = None,
    *,
    labels: Sequence[str] | None = None,
    signed: bool | None = None,
    colors: str | None = None,
    limits: tuple[float, float] | None = None,
    most: int = MOST,
) -> Display:
    """Show the maps of one or several explanations next to each other, with controls, in a notebook.

    `images` are the images below the maps, one for each map of an explanation, as `Explanation.overlay` accepts them;
    by default those that the network received, with the normalization undone. `labels` are the names of the classes.
    `signed`, `colors` and `limits` are as in `overlay`. At most `most` maps are shown.

    Other results, such as those of `evaluate`, `intervene` and `compare_models`, are shown one at a time with the names
    of their classes; they take no other arguments than `labels`.

    Returns  a `Display`, which a notebook shows if it is the last value of a cell
    Errors   ImportError without Pillow; WrongType for values without a display; BadImages if the number of images is
             not the number of maps; BadOption as in `overlay`, if `most` is not a positive integer, or if a result
             other than explanations gets more than `labels`

    Example
        >>> e = explain("grad_cam", model, images, 281, layer="layer4")
        >>> show(e)
        Display(1 map)
    """
    check_whole(1, most=most)
    check_labels(labels)
    if isinstance(explanations, Displayed) and not isinstance(explanations, Explanation):
        given = {"images": images, "signed": signed, "colors": colors, "limits": limits}
        if unused := [name for name, value in given.items() if value is not None]:
            kind = type(explanations).__name__
            raise BadOption(f"show of a {kind} takes only labels; {', '.join(unused)} would have no effect.")
        return explanations.display(labels)
    listed: list[Any] = list(explanations) if isinstance(explanations, (list, tuple)) else [explanations]
    for each in listed:
        if not isinstance(each, Explanation):
            raise WrongType(f"show takes explanations, not {kind_of(each)}. Give the result of explain, or a list.")
    return display_maps(listed, images, labels=labels, signed=signed, colors=colors, limits=limits, most=most)


NO_CLASS = -1
"""The target of an image for which no class was chosen."""


def join_images(parts: list[Explanation], given: Mapping[str, Any]) -> Explanation:
    """Return the explanations of single images as that of their batch; `given` are the options of its call."""
    first = _with_options(parts[0], given)
    if len(parts) == 1:
        return first
    classes = [each for part in parts if isinstance(part.target, list) for each in part.target]
    of_images = [part.images for part in parts if part.images is not None]
    slowest = min(parts, key=lambda part: part.done / part.total)
    return replace(
        first,
        target=classes if len(classes) == len(parts) else first.target,
        map=torch.cat([part.map for part in parts]),
        raw=torch.cat([part.raw for part in parts]),
        scores=None if first.scores is None else torch.cat([part.scores for part in parts if part.scores is not None]),
        statistics=[each for part in parts for each in part.statistics],
        findings=[each for part in parts for each in part.findings],
        seconds=sum(part.seconds for part in parts),
        images=torch.cat(of_images) if of_images else None,
        placement=join_placements([part.placement for part in parts]),
        done=slowest.done,
        total=slowest.total,
    )


def add_missing(part: Any, images: Any, target: TargetLike, given: Mapping[str, Any], rows: Sequence[int]) -> Any:
    """Return the explanation of the images at `rows` as that of all images: the maps of the others are NaN.

    A finding says for each of the others why it was left out. `given` are the options of the call with all images.
    Several inputs have a tuple of explanations, or that of a layer, which shows one of them.
    """
    if isinstance(part, tuple):
        return tuple(add_missing(own, each, target, given, rows) for own, each in zip(part, images, strict=True))
    if isinstance(images, tuple):
        images = scatter_rows(part.images, rows, len(images[0]))
    count = len(images)

    def spread(values: Sequence[Any], missing: Any) -> list[Any]:
        known = dict(zip(rows, values, strict=True))
        return [known.get(row, missing) for row in range(count)]

    map, raw = scatter_rows(part.map, rows, count), scatter_rows(part.raw, rows, count)
    first = next(row for row in range(count) if row not in rows)
    empty = Evidence(
        map=map[first].cpu(), signed=map[first].cpu(), raw=raw[first].cpu(), method=part.method, layer=part.layer
    )
    classes: Any = part.target
    if isinstance(classes, list):
        classes = spread(classes, NO_CLASS) if target is None else describe_target(as_target(target), count)
    findings = spread(part.findings, None)
    return replace(
        _with_options(part, given),
        target=classes,
        map=map,
        raw=raw,
        scores=None if part.scores is None else scatter_rows(part.scores, rows, count),
        statistics=spread(part.statistics, statistics(empty)),
        findings=[[_left_out(row, images[row])] if own is None else own for row, own in enumerate(findings)],
        images=images.detach(),
        placement=spread_placements(part.placement, rows, count),
    )


def _with_options(part: Explanation, given: Mapping[str, Any]) -> Explanation:
    """Return the explanation with options as in the call of all images, of which it may have only some rows."""
    keywords = {name: given.get(name, value) for name, value in (part.keywords or {}).items()}
    return replace(
        part, keywords=keywords, options={name: given.get(name, value) for name, value in part.options.items()}
    )


def _left_out(row: int, image: Tensor) -> Finding:
    here = "NaN or infinity in another input" if bool(image.isfinite().all()) else first_broken_value(image)
    return Finding(
        "non_finite",
        f"Image {row} contains {here}, so it was left out, and its map is NaN. Check how it is loaded and normalized. "
        "The maps of the other images do not depend on it.",
        facts={"part": "image", "layer": None, "image": row},
    )
