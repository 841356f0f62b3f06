"""`python -m benchmarks`: run times in bare forward passes (median), compared with those of three other libraries.

python -m benchmarks                    the full run; reliable only on an idle machine
python -m benchmarks --smoke            every case once on small images, in a minute; its times say little
python -m benchmarks --only Grad-CAM    the cases whose title contains the word
python -m benchmarks --rounds 5         at most 5 interleaved rounds instead of 13; with --smoke one run
"""

from __future__ import annotations

import gc
import itertools
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version

import torch

from benchmarks import options
from benchmarks.cases import BF16, OURS, UNIT, cases

HEAD = "| case | library | bare forward passes: median (min–max) | peak memory, MB |\n|---|---|---|---|"


@dataclass
class Measured:
    """One contender of one case: ratios to the bare forward pass, seconds, peak memory, or the reason for a failure."""

    name: str
    ratios: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    megabytes: float | None = None
    failed: str = ""

    def row(self, title: str, unit: str) -> str:
        """Return a row of the table; that of the bare forward pass, or another unit, has its milliseconds."""
        if self.failed:
            result = f"could not run: {self.failed}"
        elif self.name == UNIT:
            result = f"1 = {1000 * statistics.median(self.seconds):.0f} ms"
        else:
            most = f"{min(self.ratios):.2f}–{max(self.ratios):.2f}" if len(self.ratios) > 1 else "one run"
            result = f"{statistics.median(self.ratios):.2f} ({most})"
        memory = "" if self.megabytes is None else f"{self.megabytes:.0f}"
        return f"| {title} | {unit if self.name == UNIT else self.name} | {result} | {memory} |"


# Interleaved rounds in one process: every contender runs once per round, its time divided by that of a bare forward.
# Other load slows a whole round, not one contender, so ratios within a round are reliable and single times are not.


def race(contenders: dict[str, Callable[[], object]], rounds: int, slow: Sequence[str] = ()) -> list[Measured]:
    """Time the contenders, of which `UNIT` must be the first; those in `slow` run in the first round only.

    The order rotates by one each round, so that a contender's position has no constant effect. With 0 rounds, each
    contender runs once: the time of its warm-up, and only the memory of `UNIT`.
    """
    results = {name: Measured(name) for name in contenders}

    def once(name: str, unit: float = 0.0) -> float:
        start = time.perf_counter()
        contenders[name]()
        seconds = time.perf_counter() - start
        results[name].seconds.append(seconds)
        results[name].ratios.append(seconds / (unit or seconds))
        return seconds

    for name in contenders:
        if name not in slow or not rounds:
            try:  # warm-up: caches, lazily built kernels, our own layer list
                once(name, next(iter(results[UNIT].seconds), 0.0))
            except Exception as error:  # a library may reject the model: its row says so, and the others continue
                results[name].failed = f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"
    names = [name for name in contenders if name != UNIT and not results[name].failed]
    if rounds:
        for one in results.values():
            one.seconds, one.ratios = [], []
    for number in range(rounds):
        unit, first = once(UNIT), number % len(names)
        for name in names[first:] + names[:first]:
            if name not in slow or not number:
                once(name, unit)
    for name in [UNIT, *names] if rounds else [UNIT]:
        if name not in slow:
            results[name].megabytes = peak_megabytes(contenders[name])
    return list(results.values())


def peak_megabytes(work: Callable[[], object]) -> float | None:
    """Return peak CPU tensor memory during `work` minus that before it, or None if the profiler reports none."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        work()
    inner = getattr(profile, "profiler", None)
    events = inner.kineto_results.events() if inner is not None and inner.kineto_results is not None else []
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    return max(itertools.accumulate(size for _, size in changes)) / 2**20 if changes else None


def about(rounds: int) -> str:
    """Return the line with date, machine, versions and settings."""
    load = f", load {os.getloadavg()[0]:.1f} at the start" if hasattr(os, "getloadavg") else ""
    versions = [f"{name} {version(name).partition('+')[0]}" for name in ("torch", "captum", "grad-cam", "torchcam")]
    count = f"up to {rounds} interleaved rounds after a warm-up" if rounds else "one run without a warm-up"
    bf16 = "" if BF16 else " This processor has no instructions for bfloat16: its rows are omitted."
    return (
        f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {torch.get_num_threads()} threads{load}; "
        f"{', '.join(versions)}; float32 on the CPU, one image, {count}.{bf16}"
    )


def main() -> None:
    """Run the cases and print each row of the table when it is measured."""
    arguments = options(__doc__, smoke=False, rounds=int, only="")
    warnings.filterwarnings("ignore")  # other libraries warn about hooks and gradients at every call
    rounds = arguments.rounds or (0 if arguments.smoke else 13)
    print(f"{about(rounds)}\n\n{HEAD}", flush=True)
    failed = []
    for title, case, name in cases(arguments.smoke):
        if arguments.only.lower() in title.lower():
            contenders = case.contenders(name, arguments.smoke)
            measured = race(contenders, min(rounds, case.rounds or rounds), case.slow)
            print("\n".join(one.row(title, case.unit) for one in measured), flush=True)
            failed += [f"{title}, {one.name}: {one.failed}" for one in measured if one.failed and OURS in one.name]
            gc.collect()
    if failed:
        sys.exit("These could not run:\n" + "\n".join(failed))


if __name__ == "__main__":
    main()
