"""Badges in the method list that warn about failed faithfulness tests.

The results are in verdicts.json, which `python -m benchmarks.faithfulness` writes for the bundled network over a set of
images. Without that file, or for a method that was not measured, the only badge tells whether it uses the class.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import explainers
from saliscope.compute.answers import LoadedModel
from saliscope.compute.methods import messages

FILE = Path(__file__).resolve().parent / "verdicts.json"

Badge = tuple[str, str]
"""The label, and its tooltip."""


@cache
def table() -> dict[str, Any]:
    """Return the table of results, or an empty dictionary if the file is missing."""
    try:
        content: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content


def badges(method: explainers.Method, loaded: LoadedModel) -> list[Badge]:
    """Return the badges of a method for this network."""
    result: list[Badge] = []
    if not method.reads_class:
        result.append((messages.NO_CLASS, messages.NO_CLASS_TIP))
    measured = table().get("methods", {}).get(method.name, {})
    if method.family == "control":
        return result
    return [*result, *_weights(measured, method), *_controls(measured, loaded)]


def _weights(measured: dict[str, Any], method: explainers.Method) -> list[Badge]:
    """Return the badge of the randomization test; class-agnostic methods are tested with all layers randomized."""
    last, everything = measured.get("logit"), measured.get("cascade")
    if measured.get("depends_on_weights") is not False or last is None or everything is None:
        return []
    if not method.reads_class and abs(everything) < explainers.Randomization.ALL_LAYERS:
        return []
    limits = explainers.Randomization.LAST_LAYER, explainers.Randomization.ALL_LAYERS
    return [(messages.NO_WEIGHTS, messages.weights_tip(last, everything, limits, table()["network"]))]


def _controls(measured: dict[str, Any], loaded: LoadedModel) -> list[Badge]:
    if not measured.get("n") or measured.get("better_than_controls") is not False:
        return []
    verdicts = {control: comparison["verdict"] for control, comparison in measured.get("beside", {}).items()}
    if all(verdict == "better" for verdict in verdicts.values()):
        return []
    network = table()["network"]
    where = messages.HERE if loaded.name == network else f"on {network}"
    failed = {control: verdict for control, verdict in verdicts.items() if verdict != "better"}
    tip = messages.controls_tip(explainers.describe_results(verdicts), measured["n"], network, table()["test"])
    return [(f"{explainers.describe_results(failed)} {where}", tip)]
