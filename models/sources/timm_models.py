"""timm's classifiers: `timm:NAME` or `timm:NAME.TAG` of its list, `timm:hf-hub:USER/NAME`, `timm:local-dir:FOLDER`.

Weights come from the cache, a local folder or the hub, preprocessing and class names from timm itself. timm is an
extra: it is imported when the first of these names is asked for.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torchvision.transforms import InterpolationMode

from models import downloads
from models.downloads import Progress
from models.model import MODES, Model, Preparation
from models.sources import hub
from models.sources.source import ModelUnavailable, OpenSource
from models.transforms import BadTransform, measured

PREFIX = "timm:"
SAFE_NAMES = {
    "pytorch_model.bin": "model.safetensors",
    "open_clip_pytorch_model.bin": "open_clip_model.safetensors",
}
"""Which file of the hub is taken in place of a pickled one."""
HUB = ("hf-hub", "hf_hub")
"""timm's spellings of a name of the hub."""


class TimmModels(OpenSource):
    """timm's classifiers by their names there."""

    def accepts(self, name: str) -> bool:
        return name.startswith(PREFIX)

    def load(self, name: str, progress: Progress | None = None) -> Model:
        asked = _local(name)
        overlay = None if asked.startswith("local-dir:") else {"file": str(_weights(asked, progress))}
        return _model(name, _created(asked, pretrained=True, pretrained_cfg_overlay=overlay))

    def build(self, name: str, classes: int | None) -> Model:
        asked = _local(name)
        _configuration(asked)
        return _model(name, _created(asked, pretrained=False, **({"num_classes": classes} if classes else {})))

    def ready(self, name: str) -> bool:
        try:
            asked = _local(name)
            return asked.startswith("local-dir:") or _weights(asked, None, fetch=False).is_file()
        except ModelUnavailable:
            return False


SOURCE = TimmModels()


def preparation_of(network: nn.Module) -> Preparation:
    """What timm does to a photograph for this network, by timm itself; the same steps of ours for other channels.

    Errors   BadTransform
    """
    from timm.data import create_transform, resolve_model_data_config  # the extra timm

    config = resolve_model_data_config(network)
    channels, height, width = config["input_size"]
    if channels in MODES and len(config["mean"]) == len(config["std"]) == channels:
        return measured(create_transform(**config, is_training=False), channels)
    mean, std = (_of_channels(config[part], channels) for part in ("mean", "std"))
    resize = math.floor(height / config["crop_pct"]), math.floor(width / config["crop_pct"])
    shorter = resize if config["crop_mode"] == "squash" or height != width else resize[0]
    kind = InterpolationMode(config["interpolation"] if config["interpolation"] != "random" else "bilinear")
    return Preparation(height if height == width else (height, width), shorter, mean, std, kind)


def labels_of(network: nn.Module) -> list[str]:
    """Class names in the order of the outputs: the weights' own, else ImageNet's by their number; empty if unknown."""
    from timm.data import ImageNetInfo, infer_imagenet_subset  # the extra timm

    config: Mapping[str, Any] = getattr(network, "pretrained_cfg", None) or {}
    count = int(getattr(network, "num_classes", 0) or 0)
    names: Sequence[str] = config.get("label_names") or ()
    if len(names) == count:
        described = config.get("label_descriptions") or {}
        return [str(described.get(name, name)) if isinstance(described, Mapping) else str(name) for name in names]
    subset = infer_imagenet_subset(network)
    if not subset or names:
        return []
    info = ImageNetInfo(subset)
    return [info.index_to_description(index) for index in range(count)]


def _of_channels(values: Sequence[float], channels: int) -> tuple[float, ...]:
    """One value a channel: as given, else the average of the colours."""
    return tuple(values) if len(values) == channels else (sum(values) / len(values),) * channels


def _timm() -> Any:
    try:
        import timm  # of the extra timm; it takes seconds
    except ImportError as error:
        raise ModelUnavailable(hub.missing("timm", "timm")) from error
    return timm


def _local(name: str) -> str:
    """What timm is asked for: a name of its list, or a folder with config.json and weights.

    Errors   ModelUnavailable
    """
    _timm()
    asked = name.removeprefix(PREFIX)
    source, _, rest = asked.partition(":")
    if source in HUB:
        return f"local-dir:{hub.folder(rest, (*SAFE_NAMES.values(), *SAFE_NAMES))}"
    if source == "local-dir":
        folder = Path(rest).expanduser()
        if not (folder / "config.json").is_file():
            raise ModelUnavailable(f"{folder} has no config.json. Give a folder written by timm's save_for_hf")
        return f"local-dir:{folder}"
    return asked


def _configuration(asked: str) -> Any:
    """timm's entry for a name of its list; None for a folder.

    Errors   ModelUnavailable for a name that timm does not have
    """
    timm = _timm()
    if asked.startswith("local-dir:"):
        return None
    network, _, tag = asked.partition(".")
    known = timm.list_models()
    if network not in known:
        near = difflib.get_close_matches(network, known, 3)
        hint = f": did you mean {' or '.join(repr(PREFIX + name) for name in near)}?" if near else ""
        raise ModelUnavailable(f"timm has no model {network!r}{hint}")
    tags = [name.partition(".")[2] for name in timm.list_pretrained(f"{network}.*")]
    if tag and tag not in tags:
        raise ModelUnavailable(f"timm has no weights {tag!r} of {network}; it has: {', '.join(tags) or 'none'}")
    return timm.models.get_pretrained_cfg(asked)


def _weights(asked: str, progress: Progress | None, fetch: bool = True) -> Path:
    """The file of weights of a name of timm's list: in the cache, else downloaded.

    Errors   ModelUnavailable
    """
    config = _configuration(asked)
    if config is not None and config.hf_hub_id:
        name = config.hf_hub_filename or "pytorch_model.bin"
        names = [name for name in (SAFE_NAMES.get(name), name) if name]
        found = hub.folder(config.hf_hub_id, names, fetch=fetch)
        return next(path for name in names if (path := found / name).is_file())
    if config is not None and config.url:
        try:
            return downloads.fetch(asked, config.url, progress) if fetch else downloads.path_of(config.url)
        except downloads.FetchFailed as error:
            raise ModelUnavailable(str(error)) from error
    raise ModelUnavailable(f"timm has no weights for {asked!r}: give weights= with a file of your own (--weights)")


def _created(asked: str, **keywords: Any) -> nn.Module:
    try:
        return _timm().create_model(asked, **keywords)
    except Exception as error:  # timm's own, of every kind
        raise ModelUnavailable(f"timm cannot load {asked!r}: {hub.first_line(error)}") from error


def _model(name: str, network: nn.Module) -> Model:
    """The network with timm's preprocessing and labels.

    Errors   ModelUnavailable for a network that has no classes
    """
    if not getattr(network, "num_classes", 1):
        raise ModelUnavailable(f"{name!r} gives features and no classes: there is no score to explain")
    try:
        return Model(name, network, labels_of(network), preparation_of(network))
    except BadTransform as error:
        raise ModelUnavailable(f"{name!r} cannot be prepared for: {error}") from error
