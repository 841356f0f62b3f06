"""How long a method takes, in three steps, from costs.json: its forward passes, as measure.py measured them.

For the network of the table these are times on two idle cores. For any other, one forward pass of its own is timed
here, once; the methods take about as many of those.
"""

from __future__ import annotations

import json
import threading
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ui import limits
from ui.methods import words

if TYPE_CHECKING:
    from ui.engine.messages import Loaded

FILE = Path(__file__).resolve().parent / "costs.json"
STEPS = ((1.0, words.INSTANT), (15.0, words.SECONDS))
"""Up to so many seconds, these words; `words.MINUTE` beyond, which is where every run ends."""

_own: dict[str, float] = {}
_lock = threading.Lock()


@cache
def table() -> dict[str, Any]:
    """The table as written."""
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def seconds(method: str, loaded: Loaded) -> float | None:
    """About how long this method takes with this network; None for one that was never measured."""
    passes = table()["passes"].get(method)
    return None if passes is None else passes * forward(loaded)


def badge(taken: float | None) -> str:
    """The time in words; empty where it is not known."""
    if taken is None:
        return ""
    return next((word for limit, word in STEPS if taken < limit), words.MINUTE)


def is_measured(loaded: Loaded) -> bool:
    """Whether the table's times are this network's; on a GPU that is lent by the call they are the best there is."""
    return limits.SHARED_GPU or (loaded.name == table()["network"] and loaded.device.type == "cpu")


def forward(loaded: Loaded) -> float:
    """Seconds of one forward pass."""
    if is_measured(loaded):
        return float(table()["forward"])
    with _lock:
        if loaded.name not in _own:
            _own[loaded.name] = _timed(loaded)
        return _own[loaded.name]


def _timed(loaded: Loaded) -> float:
    """On the CPU the time of this thread, which works in every parallel region: other visitors' runs do not count."""
    import torch  # torch takes seconds to start

    network, picture = loaded.model.network, torch.zeros(1, loaded.model.channels, *loaded.model.size)
    picture, clock = picture.to(loaded.device), time.thread_time
    with torch.inference_mode():
        if loaded.device.type != "cpu":
            clock = time.perf_counter
            network(picture)  # the first one also loads kernels
            _finished(loaded)
        began = clock()
        network(picture)
        _finished(loaded)
        return clock() - began


def _finished(loaded: Loaded) -> None:
    """Wait for an accelerator."""
    import torch  # torch takes seconds to start

    if loaded.device.type == "cuda":
        torch.cuda.synchronize(loaded.device)
