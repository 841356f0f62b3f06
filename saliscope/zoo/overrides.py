"""The user's settings for a network: labels, size, mean and std, each checked against the network.

Missing settings get defaults, which are reported in `Model.notes`.

    BadOverride(ValueError)    what does not match the network, and what to use
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

from explainers import BadOption, BadTarget, check_score
from saliscope.zoo import checkpoints, text
from saliscope.zoo.model import Model, Preparation, Task

UNKNOWN = Preparation(0, 0, (), ())
"""The preprocessing of a network about which nothing is known."""
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZES = (224, 32, 28, 64, 96, 128, 160, 192, 256, 299, 384, 512)
"""Input sides that are tried in this order if none is given; most networks run at the first one."""
SET_SCORE = "If it is not a logit, set score= (--score)"
SET_THEM = "Set size=, mean= and std= (--size, --mean, --std), or return a zoo.Model"

Labels = Sequence[str] | Mapping[Any, Any] | str | Path


class BadOverride(ValueError):
    """A setting that does not match the network."""


@dataclasses.dataclass(frozen=True)
class Overrides:
    """The user's settings; None keeps the setting of the source."""

    weights: str | Path | None = None
    """A file of weights; the network is then built without its pretrained weights."""
    labels: Labels | None = None
    """Class names in the order of the outputs, or a file of them: one per line, or JSON."""
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    """For pixel values in [0, 1], one value per channel."""
    size: int | tuple[int, int] | None = None
    """Height and width of the input, or (height, width)."""
    score: str | None = None
    """How scores become probabilities, as in `explainers.explain`."""
    crop: str | tuple[float, float] | None = None
    """The position of the crop, (x, y) from 0 to 1, or "whole" for the whole image with black margins."""

    def __bool__(self) -> bool:
        return any(value is not None for value in vars(self).values())


def complete(model: Model, custom: Overrides, labels: Sequence[str] | None, notes: Sequence[str] = ()) -> Model:
    """Return the model in evaluation mode with the user's settings, and with defaults for missing settings.

    `labels` are the user's, as returned by `read_labels`, or None for those of the model. `notes` come before the notes
    about defaults.

    Errors   BadOverride
    """
    network = model.network.eval().float().cpu()
    if model.tokenize is not None:
        network = text.image_encoder(network).eval()
        model = dataclasses.replace(model, network=network)
    if bad := checkpoints.not_finite(network):
        raise BadOverride(f"{model.name!r} has NaN or infinite weights: {', '.join(bad[:12])}. Check the checkpoint")
    preparation, assumed = _preparation(model, custom)
    if preparation.size == (0, 0):
        output, preparation, note = _try_sizes(model.name, network, preparation)
        assumed.append(note)
    else:
        output = _output(model.name, network, preparation)
    network.requires_grad_(False)  # now that lazy layers have their shapes
    if model.tokenize is not None:
        _check_text(model, custom, labels, output)
        found = (*model.notes, *notes, *assumed)
        return dataclasses.replace(model, labels=[], preparation=preparation, score="logit", notes=found)
    task, count = _task(model.name, output)
    names = list(model.labels if labels is None else labels)
    if not names and count:
        names = [f"class {index}" for index in range(count)]
    if count and len(names) != count:
        raise BadOverride(f"{model.name!r} has {count} outputs but {len(names)} labels were given. Pass one per output")
    completed = dataclasses.replace(
        model, labels=names, preparation=preparation, task=task, score=_score(model, custom, task, output)
    )
    if task == "classification" and count == 1 and completed.score_kind == "sigmoid" and completed.score is None:
        assumed.append(f"{model.name!r} has one output, whose sigmoid is reported as a probability. {SET_SCORE}.")
    return dataclasses.replace(completed, notes=(*model.notes, *notes, *assumed))


def change(model: Model, custom: Overrides) -> Model:
    """Return a completed model with another size, mean, std or score; it shares the network.

    Errors   BadOverride
    """
    preparation, _ = _preparation(model, custom)
    output = _output(model.name, model.network, preparation)
    if model.tokenize is not None:
        _check_text(model, custom, None, output)
        return dataclasses.replace(model, preparation=preparation, notes=())
    task, count = _task(model.name, output)
    if task != model.task or (count and count != len(model.labels)):
        raise BadOverride(f"{model.name!r} returns other classes with these settings. Use another size")
    score = _score(model, custom, task, output)
    return dataclasses.replace(model, preparation=preparation, score=score, notes=())


def _check_text(model: Model, custom: Overrides, labels: Sequence[str] | None, output: Any) -> None:
    """Check that both encoders of a network return embeddings of the same length, and that it has no classes.

    Errors   BadOverride
    """
    given = [name for name, value in {"labels": labels, "score": custom.score}.items() if value is not None]
    if given:
        raise BadOverride(
            f"{model.name!r} compares images with sentences, so it has no {' and no '.join(given)}. Remove "
            f"{' and '.join(given)}, and enter sentences as targets"
        )
    if not isinstance(output, Tensor) or output.ndim != 2:
        raise BadOverride(
            f"{model.name!r} returns {_shape(output)} for one image. A network with a tokenizer must return "
            "an embedding [1, D], or have a method encode_image or get_image_features that does"
        )
    for sentence in ("a photo of a dog", "a cat"):
        try:
            text.target(model, text.Sentences(sentence))(output.cpu())
        except (text.BadSentence, BadTarget) as error:
            raise BadOverride(f"{str(error).rstrip('.')}. Return a tokenizer that suits the text encoder") from error


def _score(model: Model, custom: Overrides, task: Task, output: Any) -> str | None:
    """Return how the scores become probabilities according to the user or else the model; None if it is detected.

    Errors   BadOverride if that does not suit the output of the network
    """
    score = model.score if custom.score is None else custom.score
    try:
        check_score(score, output if task == "classification" else None)
    except BadOption as error:
        raise BadOverride(str(error)) from error
    return score


def read_labels(labels: Labels) -> list[str]:
    """Return class names by index from a list, a mapping between indices and names in either direction, or a file.

    Errors   BadOverride
    """
    where = "The labels"
    if isinstance(labels, (str, Path)):
        path = Path(labels).expanduser()
        where = path.name
        try:
            text = path.read_text(encoding="utf-8-sig").strip()
            labels = json.loads(text) if text[:1] in ("[", "{") else text.split("\n") if text else []
        except OSError as error:
            raise BadOverride(
                f"Cannot read {path}: {error.strerror or error}. Use a text file with one label per line"
            ) from error
        except ValueError as error:
            raise BadOverride(f"{where} is neither UTF-8 text nor valid JSON: {error}") from error
    if isinstance(labels, Mapping):
        labels = _by_index(labels, where)
    names = [str(name[-1] if isinstance(name, (list, tuple)) and name else name).strip() for name in labels]
    if empty := [number for number, name in enumerate(names, 1) if not name]:
        raise BadOverride(f"{where}: label {empty[0]} is empty. Pass one label per output")
    if not names:
        raise BadOverride(f"{where}: no labels found. Pass one label per output")
    return names


def _by_index(table: Mapping[Any, Any], where: str) -> list[Any]:
    """Return the names of {index: name} or {name: index} in the order of the indices."""
    if all(isinstance(value, int) for value in table.values()):
        table = {index: name for name, index in table.items()}
    try:
        names = {int(index): name for index, name in table.items()}
    except (TypeError, ValueError) as error:
        raise BadOverride(f"{where}: the mapping must be from indices to names, or from names to indices") from error
    if missing := set(range(max(names, default=0) + 1)) - set(names):
        raise BadOverride(f"{where}: the label of index {min(missing)} is missing")
    return [names[index] for index in sorted(names)]


def _preparation(model: Model, custom: Overrides) -> tuple[Preparation, list[str]]:
    """Return the preprocessing with the user's settings, and notes; its size is (0, 0) if the size is unknown."""
    base, notes = model.preparation, []
    known = base is not UNKNOWN
    mean, std = (None if values is None else tuple(map(float, values)) for values in (custom.mean, custom.std))
    channels = base.channels if known else _first_channels(model.network)
    if not known and (mean is None) != (std is None):
        raise BadOverride(f"Only one of mean and std was given for {model.name!r}. Pass both")
    if mean is None and std is None and not known:
        mean, std = IMAGENET if channels == 3 else ((0.0,) * channels, (1.0,) * channels)
        means = "ImageNet's mean and std" if channels == 3 else "mean 0 and std 1"
        notes.append(f"The preprocessing of {model.name!r} is unknown; using {means}. {SET_THEM}.")
    mean, std = (base.mean if mean is None else mean), (base.std if std is None else std)
    mean, std = (values * channels if len(values) == 1 else values for values in (mean, std))
    if len(mean) != len(std) or not all(map(math.isfinite, (*mean, *std))) or min(std) <= 0:
        raise BadOverride(f"Invalid mean {mean} or std {std}. Pass one value per channel, and a positive std")
    if custom.mean is not None and Preparation(1, 1, mean, std).raw:
        unit = "pixel values from 0 to 255" if len(mean) in (1, 3) else "the bands' own values"
        notes.append(f"The mean or std exceeds 1, so both are applied to {unit}.")
    size = (0, 0) if custom.size is None and not known else base.size if custom.size is None else _size(custom.size)
    position = base.position if custom.crop is None else None if isinstance(custom.crop, str) else custom.crop
    if custom.crop is not None and type(base) is not Preparation:
        raise BadOverride(f"{model.name!r} has its own preprocessing, so its crop cannot be moved. Remove crop=")
    if known and size == base.size and len(mean) == base.channels:
        return dataclasses.replace(base, mean=mean, std=std, position=position), notes
    return dataclasses.replace(_plain(size, mean, std, base), position=position), notes


def _plain(size: tuple[int, int], mean: tuple[float, ...], std: tuple[float, ...], base: Preparation) -> Preparation:
    """Return a preprocessing that resizes the shorter side and crops the center, or the whole image if not square."""
    side = size[0] if size[0] == size[1] else size
    return Preparation(side, side, mean, std, base.interpolation)


def _size(size: int | tuple[int, int]) -> tuple[int, int]:
    """Return the size as (height, width).

    Errors   BadOverride
    """
    sides = (size, size) if isinstance(size, int) else tuple(size)
    if len(sides) != 2 or not all(isinstance(side, int) and 0 < side <= 8192 for side in sides):
        raise BadOverride(f"Invalid size {size!r}. Pass pixels, such as 224 or (height, width)")
    return sides[0], sides[1]


def _first_channels(network: nn.Module) -> int:
    """Return the input channels of the first convolution, or 3 if there is none."""
    kinds = (nn.Conv2d, nn.Conv3d)
    return next((layer.in_channels for layer in network.modules() if isinstance(layer, kinds)), 3)


def _try_sizes(name: str, network: nn.Module, preparation: Preparation) -> tuple[Any, Preparation, str]:
    """Return the output, the preprocessing and a note for the first of SIZES that the network accepts.

    Errors   BadOverride if it accepts none of them
    """
    for side in SIZES:
        sized = _plain((side, side), preparation.mean, preparation.std, preparation)
        try:
            output = _output(name, network, sized)
        except BadOverride:
            continue
        return output, sized, f"The input size of {name!r} is unknown; using {side} x {side} pixels. {SET_THEM}."
    if _takes_videos(network):
        raise BadOverride(_VIDEOS.format(name))
    raise BadOverride(f"{name!r} fails on all tested square inputs with {preparation.channels} channels. {SET_THEM}")


def _output(name: str, network: nn.Module, preparation: Preparation) -> Any:
    """Return the output of the network for a ramp of the input size.

    Errors   BadOverride
    """
    channels, (height, width) = preparation.channels, preparation.size
    device = next((tensor.device for tensor in network.parameters()), None)
    image = torch.linspace(-1, 1, height * width, device=device).view(1, 1, height, width).repeat(1, channels, 1, 1)
    try:
        with torch.no_grad():  # inference tensors could stay in caches of the network
            return getattr(network, "_orig_mod", network)(image)  # torch.compile would take minutes
    except Exception as error:  # the user's own code
        if _takes_videos(network):
            raise BadOverride(_VIDEOS.format(name)) from error
        text = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise BadOverride(f"{name!r} fails on an input of shape {list(image.shape)} ({text}). {SET_THEM}") from error


_VIDEOS = (
    "{!r} takes videos or volumes, but the page and data sets show images. In Python, pass the network and clips "
    "[N, C, T, H, W] to the functions of explainers"
)


def _takes_videos(network: nn.Module) -> bool:
    """Return whether the first convolution of a network that fails on images is over time or depth."""
    kinds = (nn.Conv2d, nn.Conv3d)
    return isinstance(next((layer for layer in network.modules() if isinstance(layer, kinds)), None), nn.Conv3d)


def _shape(output: Any) -> list[int] | str:
    """Return the shape of an output that is a tensor, or the name of its type."""
    return list(output.shape) if isinstance(output, Tensor) else type(output).__name__


def _task(name: str, output: Any) -> tuple[Task, int]:
    """Return the task of the network, determined from its output, and its number of classes (0 if unknown).

    Errors   BadOverride
    """
    if isinstance(output, (list, tuple)) and output and isinstance(output[0], dict) and "boxes" in output[0]:
        return "detection", 0
    logits = getattr(output, "logits", output)
    scores = logits["out"] if isinstance(logits, dict) and "out" in logits else logits
    if not isinstance(scores, Tensor) or scores.ndim not in (2, 4) or len(scores) != 1:
        raise BadOverride(
            f"{name!r} returns {_shape(scores)} for one image. A classifier must return scores [1, classes]"
        )
    if not bool(scores.isfinite().all()):
        raise BadOverride(f"{name!r} returns NaN or infinity for a test image. Check its weights, mean and std")
    return ("classification" if scores.ndim == 2 else "segmentation"), scores.shape[1]
