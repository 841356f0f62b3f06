"""Estimated run time of each method, from the number of forward passes in costs.json.

`python -m benchmarks.costs` writes that file. For the network of the table, the times were measured on two idle cores.
For any other network, one forward pass is timed once, and the methods are assumed to take the same number of passes. An
estimate that is wrong by a factor of two is replaced by the time of the last run.
"""

from __future__ import annotations

import json
import threading
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saliscope import limits
from saliscope.compute.methods import messages

if TYPE_CHECKING:
    from saliscope.compute.answers import LoadedModel

FILE = Path(__file__).resolve().parent / "costs.json"
MOMENT = 0.3
"""Seconds that a visitor waits without a message; as long as the delay of page/shared/status.js."""
STEPS = ((1.0, messages.INSTANT), (15.0, messages.SECONDS))
"""Upper limits in seconds and their labels; longer methods get `messages.MINUTE`, the time limit of every run."""

WRONG = 2.0
"""If an estimate is wrong by this factor or more, the time of the run replaces it."""
MOST = 1000
"""Runs whose times are kept."""

_forward_seconds: dict[str, float] = {}
_observed: dict[tuple[str, str], float] = {}
"""Seconds of the last run by network and method, if the estimate was wrong."""
_lock = threading.Lock()


@cache
def table() -> dict[str, Any]:
    """Return the table of costs."""
    content: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return content


def seconds(method: str, loaded: LoadedModel) -> float | None:
    """Return the estimated time of a method with this network, or None if the method was not measured."""
    with _lock:
        if known := _observed.get((loaded.timed_name, method)):
            return known
    passes = table()["passes"].get(method)
    return None if passes is None else passes * forward(loaded)


def correct(method: str, loaded: LoadedModel, took: float) -> bool:
    """Replace the estimate for a method by the time of a complete run with default options, if it is wrong.

    Returns  whether the label of the method changes
    """
    estimate = seconds(method, loaded)
    if estimate is not None and took > 0 and 1 / WRONG < estimate / took < WRONG:
        return False
    with _lock:
        if len(_observed) >= MOST:
            _observed.clear()
        _observed[loaded.timed_name, method] = took
    return badge(estimate) != badge(took)


def badge(estimate: float | None) -> str:
    """Return the label for a time, or an empty string if the time is unknown."""
    if estimate is None:
        return ""
    return next((label for limit, label in STEPS if estimate < limit), messages.MINUTE)


def is_measured(loaded: LoadedModel) -> bool:
    """Return whether the table has the times of this network; on a shared GPU they are the best estimate."""
    return limits.SHARED_GPU or (loaded.timed_name == table()["network"] and loaded.device.type == "cpu")


def forward(loaded: LoadedModel) -> float:
    """Return the seconds of one forward pass."""
    if is_measured(loaded):
        return float(table()["forward"])
    name = loaded.timed_name
    with _lock:
        if name not in _forward_seconds:
            _forward_seconds[name] = _time_forward(loaded)
        return _forward_seconds[name]


def _time_forward(loaded: LoadedModel) -> float:
    """Time one forward pass.

    On the CPU this uses the time of the calling thread, which takes part in every parallel region, so that runs of
    other users do not count.
    """
    import torch  # the page needs the table before torch

    network, images = loaded.model.network, torch.zeros(1, loaded.model.channels, *loaded.model.size)
    images, clock = images.to(loaded.device), time.thread_time
    with torch.inference_mode():
        if loaded.device.type != "cpu":
            clock = time.perf_counter
            network(images)  # the first pass also loads kernels
            torch.accelerator.synchronize(loaded.device)
        start = clock()
        network(images)
        if loaded.device.type != "cpu":
            torch.accelerator.synchronize(loaded.device)
        return clock() - start
