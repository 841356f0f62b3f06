"""A network with what its user says about it: labels, size, mean and std; each is checked against the network.

What nobody said is assumed and noted (`Model.notes`), never silently.

    Unfit(ValueError)    one sentence: what does not fit, and what to give
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from models import checkpoints
from models.model import Model, Preparation, Task

UNKNOWN = Preparation(0, 0, (), ())
"""The preparation of a network about which nothing is known."""
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZES = (224, 32, 28, 64, 96, 128, 160, 192, 256, 299, 384, 512)
"""Sides that are tried, in this order, where nobody gave one; most networks run at the first."""
SAY = "Give size=, mean= and std= (--size, --mean, --std), or return a models.Model"

Labels = Sequence[str] | Mapping[Any, Any] | str | Path


class Unfit(ValueError):
    """Something said about a network that does not fit it."""


@dataclasses.dataclass(frozen=True)
class Given:
    """What the user says; None leaves it to the source."""

    weights: str | Path | None = None
    """A file of weights; the network is then built without its own."""
    labels: Labels | None = None
    """Class names in the order of the outputs, or a file of them: one a line, or JSON."""
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    """Of pixel values in [0, 1], one a channel."""
    size: int | tuple[int, int] | None = None
    """Height and width of the input, or (height, width)."""

    def __bool__(self) -> bool:
        return any(value is not None for value in vars(self).values())


def complete(model: Model, given: Given, labels: Sequence[str] | None, notes: Sequence[str] = ()) -> Model:
    """The model in evaluation mode with all that was said and, where nothing was said, found out about it.

    `labels` are the user's, as `read_labels` gives them; None for the model's own. `notes` precede what is assumed.

    Errors   Unfit
    """
    network = model.network.eval().float().cpu()
    if bad := checkpoints.not_finite(network):
        raise Unfit(f"{model.name!r} has NaN or infinite weights: {', '.join(bad[:12])}. Train or save it anew")
    preparation, assumed = _preparation(model, given)
    if preparation.size == (0, 0):
        output, preparation, said = _tried(model.name, network, preparation)
        assumed.append(said)
    else:
        output = _output(model.name, network, preparation)
    network.requires_grad_(False)  # now that lazy layers have their shapes
    task, count = _task(model.name, output)
    names = list(model.labels if labels is None else labels)
    if not names and count:
        names = [f"class {index}" for index in range(count)]
    if count == 1 and task == "classification":
        assumed.append(f"{model.name!r} gives one score: its share of all classes is always 100%, and says nothing.")
    if count and len(names) != count:
        raise Unfit(f"{len(names)} labels were given for {model.name!r}, which has {count} outputs: give one an output")
    return dataclasses.replace(
        model, labels=names, preparation=preparation, task=task, notes=(*model.notes, *notes, *assumed)
    )


def read_labels(labels: Labels) -> list[str]:
    """Class names by their index: a list, a mapping of indices to names or of names to indices, or a file of one.

    Errors   Unfit
    """
    where = "The labels"
    if isinstance(labels, (str, Path)):
        path = Path(labels).expanduser()
        where = path.name
        try:
            text = path.read_text(encoding="utf-8-sig").strip()
            labels = json.loads(text) if text[:1] in ("[", "{") else text.split("\n") if text else []
        except OSError as error:
            raise Unfit(
                f"{path} cannot be read: {error.strerror or error}. Give a text file of one label a line"
            ) from error
        except ValueError as error:
            raise Unfit(f"{where} is neither text (UTF-8) nor valid JSON: {error}") from error
    if isinstance(labels, Mapping):
        labels = _by_index(labels, where)
    names = [str(name[-1] if isinstance(name, (list, tuple)) and name else name).strip() for name in labels]
    if empty := [number for number, name in enumerate(names, 1) if not name]:
        raise Unfit(f"{where}: label {empty[0]} is empty. Give one label an output")
    if not names:
        raise Unfit(f"{where}: there is no label. Give one an output")
    return names


def _by_index(table: Mapping[Any, Any], where: str) -> list[Any]:
    """The values of {index: name} or {name: index} in the order of the indices."""
    if all(isinstance(value, int) for value in table.values()):
        table = {index: name for name, index in table.items()}
    try:
        names = {int(index): name for index, name in table.items()}
    except (TypeError, ValueError) as error:
        raise Unfit(f"{where}: the mapping must be of indices to names, or of names to indices") from error
    if lost := set(range(max(names, default=0) + 1)) - set(names):
        raise Unfit(f"{where}: there is no label of index {min(lost)}")
    return [names[index] for index in sorted(names)]


def _preparation(model: Model, given: Given) -> tuple[Preparation, list[str]]:
    """The model's preparation with what the user said; (0, 0) as its size where nobody knows it."""
    base, notes = model.preparation, []
    known = base is not UNKNOWN
    mean, std = (None if values is None else tuple(map(float, values)) for values in (given.mean, given.std))
    channels = base.channels if known else _first_channels(model.network)
    if not known and (mean is None) != (std is None):
        raise Unfit(f"Only one of mean and std was given for {model.name!r}: give both")
    if mean is None and std is None and not known:
        mean, std = IMAGENET if channels == 3 else ((0.0,) * channels, (1.0,) * channels)
        means = "ImageNet's mean and std" if channels == 3 else "mean 0 and std 1"
        notes.append(f"Nothing is said about the preprocessing of {model.name!r}: {means} are assumed. {SAY}.")
    mean, std = (base.mean if mean is None else mean), (base.std if std is None else std)
    mean, std = (values * channels if len(values) == 1 else values for values in (mean, std))
    if len(mean) != len(std) or not all(map(math.isfinite, (*mean, *std))) or min(std) <= 0:
        raise Unfit(f"The mean {mean} and std {std} do not fit: give one value a channel, and a std above 0")
    if given.mean is not None and Preparation(1, 1, mean, std).raw:
        unit = "pixel values from 0 to 255" if len(mean) in (1, 3) else "the bands' own values"
        notes.append(f"The mean or std exceeds 1: both are taken to be of {unit}.")
    size = (0, 0) if given.size is None and not known else base.size if given.size is None else _size(given.size)
    if known and size == base.size and len(mean) == base.channels:
        return dataclasses.replace(base, mean=mean, std=std), notes
    return _plain(size, mean, std, base), notes


def _plain(size: tuple[int, int], mean: tuple[float, ...], std: tuple[float, ...], base: Preparation) -> Preparation:
    """Shorter side to the square's, then its centre; other sizes are taken of the whole picture."""
    side = size[0] if size[0] == size[1] else size
    return Preparation(side, side, mean, std, base.interpolation)


def _size(size: int | tuple[int, int]) -> tuple[int, int]:
    """(height, width).

    Errors   Unfit
    """
    sides = (size, size) if isinstance(size, int) else tuple(size)
    if len(sides) != 2 or not all(isinstance(side, int) and 0 < side <= 8192 for side in sides):
        raise Unfit(f"The size {size!r} is none: give pixels, as 224 or (height, width)")
    return sides[0], sides[1]


def _first_channels(network: nn.Module) -> int:
    """Channels that the first convolution takes; 3 where there is none."""
    kinds = (nn.Conv2d, nn.Conv3d)
    return next((layer.in_channels for layer in network.modules() if isinstance(layer, kinds)), 3)


def _tried(name: str, network: nn.Module, preparation: Preparation) -> tuple[Any, Preparation, str]:
    """The output and the size at the first of SIZES where the network runs.

    Errors   Unfit where it runs at none of them
    """
    for side in SIZES:
        sized = _plain((side, side), preparation.mean, preparation.std, preparation)
        try:
            output = _output(name, network, sized)
        except Unfit:
            continue
        return output, sized, f"The input of {name!r} is assumed to have {side} x {side} pixels. {SAY}."
    raise Unfit(f"{name!r} runs on no square input of {preparation.channels} channels that was tried. {SAY}")


def _output(name: str, network: nn.Module, preparation: Preparation) -> Any:
    """What the network gives for a ramp of its own size.

    Errors   Unfit
    """
    channels, (height, width) = preparation.channels, preparation.size
    picture = torch.linspace(-1, 1, height * width).view(1, 1, height, width).repeat(1, channels, 1, 1)
    try:
        with torch.no_grad():  # inference tensors might stay in the network's own caches
            return getattr(network, "_orig_mod", network)(picture)  # torch.compile would take minutes
    except Exception as error:  # the user's own code
        text = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise Unfit(f"{name!r} does not run on an input of {list(picture.shape)} ({text}). {SAY}") from error


def _task(name: str, output: Any) -> tuple[Task, int]:
    """What the network is for, by its output, and its number of classes; 0 where the output does not tell.

    Errors   Unfit
    """
    if isinstance(output, (list, tuple)) and output and isinstance(output[0], dict) and "boxes" in output[0]:
        return "detection", 0
    logits = getattr(output, "logits", output)
    scores = logits["out"] if isinstance(logits, dict) and "out" in logits else logits
    if not isinstance(scores, Tensor) or scores.ndim not in (2, 4) or len(scores) != 1:
        given = list(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise Unfit(f"{name!r} gives {given} for one picture: a classifier gives [1, classes]. Return its scores alone")
    if not bool(scores.isfinite().all()):
        raise Unfit(f"{name!r} gives NaN or infinity for a plain picture. Check its weights, and mean and std")
    return ("classification" if scores.ndim == 2 else "segmentation"), scores.shape[1]
