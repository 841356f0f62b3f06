"""Interleaved rounds in one process: every contender runs once per round, its time divided by that of a bare forward.

Other load slows a whole round, not one contender, so ratios within a round are reliable and single times are not. On a
machine with more work than cores, use the processor time of the process and one thread.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

UNIT = "bare forward"
Clock = Callable[[], float]
"""Returns seconds."""


def processor_time() -> float:
    """Return the processor time of this process and of its finished child processes."""
    children = os.times()
    return time.process_time() + children.children_user + children.children_system


@dataclass
class Measured:
    """One contender of one case: ratios to the bare forward pass, seconds, peak memory, or the reason for a failure."""

    name: str
    ratios: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    megabytes: float | None = None
    failed: str | None = None

    @property
    def median(self) -> float:
        """The median ratio."""
        return statistics.median(self.ratios)


def _once(work: Callable[[], object], clock: Clock) -> float:
    start = clock()
    work()
    return clock() - start


def race(
    contenders: dict[str, Callable[[], object]],
    rounds: int,
    *,
    slow: Sequence[str] = (),
    clock: Clock = time.perf_counter,
) -> list[Measured]:
    """Time the contenders, of which `UNIT` must be one; those in `slow` run in the first round only.

    The order rotates by one each round, so that a contender's position has no constant effect. With 0 rounds, each
    contender runs once: the time of its warm-up, and only the memory of `UNIT`.
    """
    results = {name: Measured(name) for name in contenders}
    for name, work in contenders.items():
        if name in slow:
            continue
        try:
            seconds = _once(work, clock)  # warm-up: caches, lazily built kernels, our own layer list
        except Exception as error:  # a library may reject the model: its row says so, and the others continue
            results[name].failed = f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"
        else:
            if not rounds:
                results[name].seconds.append(seconds)
                results[name].ratios.append(seconds / results[UNIT].seconds[0])
    if not rounds:
        results[UNIT].megabytes = peak_megabytes(contenders[UNIT])
        return list(results.values())
    names = list(contenders)
    for number in range(rounds):
        order = names[number % len(names) :] + names[: number % len(names)]
        unit = _once(contenders[UNIT], clock)
        for name in order:
            one = results[name]
            if one.failed or (name in slow and number) or name == UNIT:
                continue
            seconds = _once(contenders[name], clock)
            one.seconds.append(seconds)
            one.ratios.append(seconds / unit)
        results[UNIT].seconds.append(unit)
        results[UNIT].ratios.append(1.0)
    for name, one in results.items():
        if not one.failed and name not in slow:
            one.megabytes = peak_megabytes(contenders[name])
    return list(results.values())


def peak_megabytes(work: Callable[[], object]) -> float | None:
    """Return peak CPU tensor memory during `work` minus that before it, or None if the profiler reports none."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        work()
    inner = getattr(profile, "profiler", None)
    events = inner.kineto_results.events() if inner is not None and inner.kineto_results is not None else []
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    if not changes:
        return None
    current = peak = 0
    for _, size in changes:
        current += size
        peak = max(peak, current)
    return peak / 2**20
