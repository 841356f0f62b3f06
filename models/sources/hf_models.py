"""The image classifiers of transformers: `hf:USER/NAME`, `hf:USER/NAME@REVISION` of the hub, or `hf:FOLDER`.

Preprocessing is the processor's that comes with the weights, class names are the configuration's. Code of the hub is
never run. transformers is an extra: it is imported when the first of these names is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from models.downloads import Progress
from models.model import MODES, Model, Preparation
from models.own import UNKNOWN
from models.sources import hub
from models.sources.source import ModelUnavailable, OpenSource
from models.transforms import BadTransform, measured

PREFIX = "hf:"
LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
"""Everything is on the disk when transformers is asked; no code that came with the weights is run."""


class HuggingFaceModels(OpenSource):
    """Image classifiers in the hub's cache, or in a folder written by `save_pretrained`."""

    def accepts(self, name: str) -> bool:
        return name.startswith(PREFIX)

    def load(self, name: str, progress: Progress | None = None) -> Model:
        folder = _folder(name)
        classifiers = _transformers().AutoModelForImageClassification
        config = _configuration(name, folder)
        try:
            network, report = classifiers.from_pretrained(
                folder, config=config, dtype=torch.float32, weights_only=True, output_loading_info=True, **LOCAL
            )
        except Exception as error:  # of its readers and of torch
            raise ModelUnavailable(f"{name!r} cannot be loaded: {hub.first_line(error)}") from error
        _check_complete(name, report)
        return _model(name, network, config, folder)

    def build(self, name: str, classes: int | None) -> Model:
        folder = _folder(name)
        config = _configuration(name, folder)
        if classes and classes != config.num_labels:
            config.num_labels = classes
        network = _transformers().AutoModelForImageClassification.from_config(config, trust_remote_code=False)
        return _model(name, network, config, folder)

    def ready(self, name: str) -> bool:
        try:
            return _folder(name, fetch=False).is_dir()
        except ModelUnavailable:
            return False


SOURCE = HuggingFaceModels()


def _transformers() -> Any:
    try:
        import transformers  # of the extra hf; it takes seconds
    except ImportError as error:
        raise ModelUnavailable(hub.missing("transformers", "hf")) from error
    return transformers


def _folder(name: str, fetch: bool = True) -> Path:
    """The folder with config.json, weights and the processor's settings.

    Errors   ModelUnavailable
    """
    _transformers()
    asked = name.removeprefix(PREFIX)
    folder = Path(asked).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelUnavailable(f"{folder} has no config.json. Give a folder written by save_pretrained")
        return folder
    if asked.startswith(("/", ".", "~")) or "\\" in asked or asked.count("/") > 1:
        raise ModelUnavailable(f"There is no folder {folder}")
    return hub.folder(asked, fetch=fetch)


def _configuration(name: str, folder: Path) -> Any:
    """The network's configuration.

    Errors   ModelUnavailable for a network whose code is not in transformers, and for one that is no image classifier
    """
    transformers = _transformers()
    try:
        config = transformers.AutoConfig.from_pretrained(folder, **LOCAL)
    except Exception as error:  # unreadable files, code of the hub, networks of a newer version
        raise ModelUnavailable(
            f"{name!r} is no network of transformers {transformers.__version__} ({hub.first_line(error)}); code that "
            "comes with weights is never run"
        ) from error
    if type(config) not in transformers.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING:
        raise ModelUnavailable(
            f"{name!r} is a network of the kind {config.model_type!r}, for which transformers has no image classifier"
        )
    return config


def _check_complete(name: str, report: dict[str, Any]) -> None:
    """transformers fills what the weights lack with random numbers, such as the head of a network without classes.

    Errors   ModelUnavailable
    """
    problems = []
    for title, key in (("missing", "missing_keys"), ("other shapes", "mismatched_keys")):
        names = sorted(str(entry[0] if isinstance(entry, tuple) else entry) for entry in report.get(key) or ())
        if names:
            more = f" and {len(names) - 12} more" if len(names) > 12 else ""
            problems.append(f"{title} ({len(names)}): {', '.join(names[:12])}{more}")
    if problems:
        raise ModelUnavailable(f"{name!r} has no weights for the whole classifier: {'; '.join(problems)}")


def _model(name: str, network: nn.Module, config: Any, folder: Path) -> Model:
    """The network with its processor and its labels; UNKNOWN preprocessing where the folder has none."""
    names = config.id2label or {}
    labels = [str(names[index]) for index in range(len(names))] if set(names) == set(range(len(names))) else []
    return Model(name, network, labels, _preparation(name, int(getattr(config, "num_channels", 3) or 3), folder))


def _preparation(name: str, channels: int, folder: Path) -> Preparation:
    """The processor's own preprocessing; for other channels than a photograph's, the same size, mean and std."""
    if not any((folder / file).is_file() for file in hub.SETTINGS[1:]):
        return UNKNOWN
    try:
        processor = _transformers().AutoImageProcessor.from_pretrained(folder, **LOCAL)
        if channels in MODES:
            return measured(_pixels(processor), channels)
        return _of_bands(processor, channels)
    except Exception as error:  # of the processor's reading and of its work
        raise ModelUnavailable(f"{name!r} has a processor that cannot be used: {hub.first_line(error)}") from error


def _pixels(processor: Any) -> Callable[[Image.Image], Tensor]:
    """What the processor makes of one photograph, [C, h, w]."""

    def pixels(photo: Image.Image) -> Tensor:
        values = processor(images=photo, return_tensors="pt")["pixel_values"]
        return values[0]

    return pixels


def _of_bands(processor: Any, channels: int) -> Preparation:
    """The size, mean and std in the processor's settings, for a network of N bands.

    Errors   BadTransform where they are not for so many channels
    """
    mean, std, size = processor.image_mean, processor.image_std, dict(processor.size or {})
    side = size.get("shortest_edge")
    height, width = int(size.get("height", side) or 0), int(size.get("width", side) or 0)
    if mean is None or len(mean) != channels or len(std) != channels or not (height and width):
        raise BadTransform(f"its settings are not for {channels} channels: give size, mean and std")
    return Preparation(height if height == width else (height, width), (height, width), tuple(mean), tuple(std))
