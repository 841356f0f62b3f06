"""What the lists of models, layers, classes and methods show in columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from saliscope.compute.methods import costs

if TYPE_CHECKING:
    import explainers
    from saliscope import zoo
    from saliscope.compute.answers import LoadedModel

ON_DISK, TO_DOWNLOAD, OFFLINE, MISSING = "on disk", "download", "offline", "not installed"
STAGE, FOR_CAMS, WHOLE = "stage", "default for CAMs", "whole image"
HEADS = {
    "model": ["Model", "Accuracy", "Size", "Weights"],
    "layer": ["Layer", "Size", "Channels", "Receptive field", ""],
    "target": ["Class", "Prediction"],
    "method": ["Method", "Family", "Time"],
}
"""Column titles of the lists of names, by setting."""
METHOD_TIME = 2
"""The column of the estimated time in `HEADS["method"]`."""


def model_columns(info: zoo.ModelInfo) -> list[str]:
    """Return what a list of models shows in columns: title and task, accuracy, size, and whether it is on disk."""
    task = "" if info.task == "classification" else f" · {info.task}"
    accuracy = f"{info.accuracy:.1f}% {info.measure}" if info.accuracy else ""
    size = f"{info.megabytes:.0f} MB" if info.megabytes else ""
    state = ON_DISK if info.cached else OFFLINE if info.offline else TO_DOWNLOAD if info.fetched else MISSING
    return [info.title + task, accuracy, size, state]


def method_columns(method: explainers.Method, loaded: LoadedModel) -> list[str]:
    """Return what a list of methods shows in columns: title, family, and estimated time."""
    return [method.title, method.family, costs.badge(costs.seconds(method.name, loaded))]


def layer_columns(layer: explainers.Layer, loaded: LoadedModel) -> list[str]:
    """Return what a list of layers shows in columns: name, size, channels, receptive field of a cell, and its use.

    The receptive field is known for the stages; the default layer is the one for class-activation maps.
    """
    height, width = layer.grid or (0, 0)
    field = loaded.fields.get(layer.name)
    covers = field is not None and all(a >= b for a, b in zip(field, loaded.model.size, strict=True))
    seen = WHOLE if covers else f"{field[0]} × {field[1]} px" if field else ""
    use = FOR_CAMS if layer.name == loaded.default else STAGE * layer.stage
    return [layer.name, f"{height} × {width}", f"{layer.shape[layer.channel_axis]}", seen, use]
