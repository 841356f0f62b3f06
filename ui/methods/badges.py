"""What a method is measured not to do, in a few words in the list: from verdicts.json, as
`python -m benchmarks.faithfulness` writes it over photographs with the network on board. Without that file, or for a
method that was not measured, there is nothing to say but whether it reads the class.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ui.methods import words

if TYPE_CHECKING:
    import explainers
    from ui.engine.messages import Loaded

FILE = Path(__file__).resolve().parent / "verdicts.json"

Badge = tuple[str, str]
"""The words, and what was measured."""


@cache
def table() -> dict[str, Any]:
    """The table as written; empty where there is none."""
    try:
        found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def badges(method: explainers.Method, loaded: Loaded) -> list[Badge]:
    """What is to be said of a method beside its line, with this network."""
    found: list[Badge] = []
    if not method.reads_class:
        found.append((words.NO_CLASS, words.NO_CLASS_TIP))
    measured = table().get("methods", {}).get(method.name, {})
    if method.family == "control":
        return found
    return [*found, *_weights(measured, method), *_controls(measured, loaded)]


def _weights(measured: dict[str, Any], method: explainers.Method) -> list[Badge]:
    """Of a method that reads no class, new weights of the last layer prove nothing: all layers' do."""
    from explainers.metrics.randomisation_result import ALL_LAYERS, LAST_LAYER  # torch takes seconds to start

    last, everything = measured.get("logit"), measured.get("cascade")
    if measured.get("depends_on_weights") is not False or last is None or everything is None:
        return []
    if not method.reads_class and abs(everything) < ALL_LAYERS:
        return []
    return [(words.NO_WEIGHTS, words.weights_tip(last, everything, (LAST_LAYER, ALL_LAYERS), table()["network"]))]


def _controls(measured: dict[str, Any], loaded: Loaded) -> list[Badge]:
    if not measured.get("n") or measured.get("better_than_controls") is not False:
        return []
    verdicts = {control: place["verdict"] for control, place in measured.get("beside", {}).items()}
    if all(verdict == "better" for verdict in verdicts.values()):
        return []
    network = table()["network"]
    where = words.HERE if loaded.name == network else f"on {network}"
    return [(words.no_better(verdicts, where), words.controls_tip(verdicts, measured["n"], network))]
