"""timm's classifiers: `timm:NAME` or `timm:NAME.TAG` from its list, `timm:hf-hub:USER/NAME`, `timm:local-dir:FOLDER`.

Weights come from the cache, a local folder or the Hub; preprocessing and class names come from timm. timm is an
optional dependency and is imported when one of these names is used.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from saliscope.names import did_you_mean, nearest
from saliscope.zoo import downloads
from saliscope.zoo.downloads import Progress
from saliscope.zoo.model import MODES, Model, Preparation
from saliscope.zoo.sources import hub
from saliscope.zoo.sources.source import ModelUnavailable, OpenSource
from saliscope.zoo.transforms import BadTransform, measure

PREFIX = "timm:"
SAFE_NAMES = {
    "pytorch_model.bin": "model.safetensors",
    "open_clip_pytorch_model.bin": "open_clip_model.safetensors",
}
"""The file on the Hub that is used instead of a pickled one."""
HUB = ("hf-hub", "hf_hub")
"""timm's prefixes for a repository on the Hub."""


class TimmModels(OpenSource):
    """timm's classifiers, by their names in timm."""

    def accepts(self, name: str) -> bool:
        return name.startswith(PREFIX)

    def load(self, name: str, progress: Progress | None = None) -> Model:
        timm_name = _local(name)
        file = None if timm_name.startswith("local-dir:") else _weights(timm_name, progress)
        notes = hub.verify(file.parent if file else Path(timm_name.removeprefix("local-dir:")))
        if file and not (file.parent.parent.name == "snapshots" or downloads.digest_of(file.name)):
            notes = (downloads.NOT_VERIFIED.format(names=file.name),)
        overlay = {"file": str(file)} if file else None
        network = _create(timm_name, pretrained=True, pretrained_cfg_overlay=overlay)
        return dataclasses.replace(_model(name, network), notes=notes)

    def build(self, name: str, classes: int | None) -> Model:
        timm_name = _local(name)
        _configuration(timm_name)
        return _model(name, _create(timm_name, pretrained=False, **({"num_classes": classes} if classes else {})))

    def may_download(self, name: str) -> bool:
        """Return whether the Hub may be used, where timm has the weights of almost all names."""
        return not hub.forbidden()

    def ready(self, name: str) -> bool:
        try:
            timm_name = _local(name)
            return timm_name.startswith("local-dir:") or _weights(timm_name, None, fetch=False).is_file()
        except ModelUnavailable:
            return False


SOURCE = TimmModels()


def preparation_of(network: nn.Module) -> Preparation:
    """Return timm's preprocessing for this network; the same steps on tensors for other than 1 or 3 channels.

    Errors   BadTransform
    """
    from timm.data import create_transform, resolve_model_data_config  # timm is an extra

    config = resolve_model_data_config(network)
    channels, height, width = config["input_size"]
    if channels in MODES and len(config["mean"]) == len(config["std"]) == channels:
        return measure(create_transform(**config, is_training=False), channels)
    mean, std = (_of_channels(config[part], channels) for part in ("mean", "std"))
    resize = math.floor(height / config["crop_pct"]), math.floor(width / config["crop_pct"])
    shorter = resize if config["crop_mode"] == "squash" or height != width else resize[0]
    kind = config["interpolation"] if config["interpolation"] != "random" else "bilinear"
    return Preparation(height if height == width else (height, width), shorter, mean, std, kind)


def labels_of(network: nn.Module) -> list[str]:
    """Return the class names in the order of the outputs: the weights' own, or ImageNet's; empty if unknown."""
    from timm.data import ImageNetInfo, infer_imagenet_subset  # timm is an extra

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
    """Return one value per channel: the given values, or the average over the colors."""
    return tuple(values) if len(values) == channels else (sum(values) / len(values),) * channels


def _timm() -> Any:
    try:
        import timm  # an extra, which takes seconds to start
    except ImportError as error:
        raise ModelUnavailable(hub.missing("timm", "timm")) from error
    return timm


def _local(name: str) -> str:
    """Return the name for timm: a name from its list, or a folder with config.json and weights.

    Errors   ModelUnavailable
    """
    _timm()
    timm_name = name.removeprefix(PREFIX)
    source, _, rest = timm_name.partition(":")
    if source in HUB:
        return f"local-dir:{hub.folder(rest, (*SAFE_NAMES.values(), *SAFE_NAMES))}"
    if source == "local-dir":
        folder = Path(rest).expanduser()
        if not (folder / "config.json").is_file():
            raise ModelUnavailable(f"{folder} has no config.json. Use a folder written by timm's save_for_hf")
        return f"local-dir:{folder}"
    return timm_name


def _configuration(name: str) -> Any:
    """Return timm's configuration of a name in its list; None for a folder.

    Errors   ModelUnavailable for a name that timm does not have
    """
    timm = _timm()
    if name.startswith("local-dir:"):
        return None
    network, _, tag = name.partition(".")
    known = timm.list_models()
    if network not in known:
        hint = did_you_mean(repr(PREFIX + name) for name in nearest(network, known))
        raise ModelUnavailable(f"Unknown timm model {network!r}. {hint}".rstrip())
    tags = [name.partition(".")[2] for name in timm.list_pretrained(f"{network}.*")]
    if tag and tag not in tags:
        raise ModelUnavailable(f"Unknown weights {tag!r} of {network}. Available: {', '.join(tags) or 'none'}")
    return timm.models.get_pretrained_cfg(name)


def _weights(timm_name: str, progress: Progress | None, fetch: bool = True) -> Path:
    """Return the file of weights of a name in timm's list, downloading it if it is not cached.

    Errors   ModelUnavailable
    """
    config = _configuration(timm_name)
    if config is not None and config.hf_hub_id:
        name = config.hf_hub_filename or "pytorch_model.bin"
        names = [name for name in (SAFE_NAMES.get(name), name) if name]
        folder = hub.folder(config.hf_hub_id, names, fetch=fetch)
        return next(path for name in names if (path := folder / name).is_file())
    if config is not None and config.url:
        try:
            return downloads.fetch(timm_name, config.url, progress) if fetch else downloads.path_of(config.url)
        except downloads.FetchFailed as error:
            raise ModelUnavailable(str(error)) from error
    raise ModelUnavailable(f"timm has no weights for {timm_name!r}. Pass a file with weights= (--weights)")


def _create(timm_name: str, **keywords: Any) -> nn.Module:
    try:
        return _timm().create_model(timm_name, **keywords)
    except Exception as error:  # timm raises many types of errors
        raise ModelUnavailable(f"timm cannot load {timm_name!r}: {hub.first_line(error)}") from error


def _model(name: str, network: nn.Module) -> Model:
    """Return the network with timm's preprocessing and labels.

    Errors   ModelUnavailable for a network without classes
    """
    if not getattr(network, "num_classes", 1):
        raise ModelUnavailable(f"{name!r} has no classifier, so there is no class score to explain")
    try:
        return Model(name, network, labels_of(network), preparation_of(network))
    except BadTransform as error:
        raise ModelUnavailable(f"Cannot prepare images for {name!r}: {error}") from error
