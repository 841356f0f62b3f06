"""The page that `Explanation.to_html` writes: the maps of one call, its scores, settings and findings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from explainers.display.classes import class_name, target_name
from explainers.display.display import Display
from explainers.display.encoding import escape
from explainers.display.tables import table_html
from explainers.explanation.figures import Explained, display_maps

TOP = 5
"""Listed classes of each image."""


class Reported(Explained, Protocol):
    """The parts of an `Explanation` that a page lists."""

    @property
    def options(self) -> dict[str, Any]: ...
    @property
    def statistics(self) -> list[dict[str, Any]]: ...
    @property
    def seconds(self) -> float: ...
    @property
    def device(self) -> str: ...


def report(explanation: Reported, images: Any = None, labels: Sequence[str] | None = None) -> Display:
    """Return the maps with their controls, the most likely classes, the settings and the statistics of the maps."""
    maps = display_maps([explanation], images, labels=labels, most=len(explanation.map))
    parts = ["<h1>", _title(explanation), "</h1>", maps.content]
    if predictions := _predictions(explanation, labels):
        heads = ("image", "class", "score", "probability")
        parts += ["<h2>Most likely classes</h2>", table_html(heads, predictions)]
    parts += ["<h2>Settings</h2>", table_html(("setting", "value"), _settings(explanation, labels))]
    if explanation.statistics:
        names = [name for name in explanation.statistics[0] if _is_plain(explanation, name)]
        rows = [[n, *(row.get(name) for name in names)] for n, row in enumerate(explanation.statistics)]
        parts += ["<h2>Statistics of the maps</h2>", table_html(("image", *names), rows)]
    return Display("".join(parts), maps.text)


def _title(explanation: Reported) -> str:
    where = f" at {explanation.layer}" if explanation.layer else ""
    return escape(f"{explanation.method}{where}")


def _predictions(explanation: Reported, labels: Sequence[str] | None) -> list[list[Any]]:
    scores, probabilities = explanation.scores, explanation.probabilities
    if scores is None or scores.ndim != 2:
        return []
    rows: list[list[Any]] = []
    for n, values in enumerate(scores.detach().to("cpu").float()):
        for index in values.nan_to_num(float("-inf")).topk(min(TOP, len(values))).indices.tolist():
            share = None if probabilities is None else float(probabilities[n, index])
            rows.append([n, class_name(index, labels), float(values[index]), share])
    return rows


def _settings(explanation: Reported, labels: Sequence[str] | None) -> list[tuple[str, str]]:
    values = {
        "method": explanation.method,
        "layer": explanation.layer,
        "target": target_name(explanation.target, labels),
        **explanation.options,
        "score": explanation.score,
        "map": " x ".join(map(str, explanation.map.shape)),
        "device": explanation.device,
        "seconds": f"{explanation.seconds:.3f}",
    }
    return [(name, str(value)) for name, value in values.items() if value is not None]


def _is_plain(explanation: Reported, name: str) -> bool:
    """Return whether a statistic is a number or text for every image."""
    return all(isinstance(row.get(name), (int, float, str, type(None))) for row in explanation.statistics)
