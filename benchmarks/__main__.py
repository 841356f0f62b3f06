"""`python -m benchmarks`: median ratios to a bare inference forward, ours beside captum, grad-cam and torchcam.

python -m benchmarks                    the whole run; trust it on a quiet machine only
python -m benchmarks --smoke            a small version in under two minutes
python -m benchmarks --only Grad-CAM    the cases whose title holds the word
python -m benchmarks --out figures.md   also write the table to a file
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import time
import warnings
from collections.abc import Iterable
from pathlib import Path

import torch

from benchmarks.cases import OURS, Case, smoke, whole
from benchmarks.timing import UNIT, Measured, race

HEAD = "| case | who | times a bare forward: median (min–max) | memory, MB |\n|---|---|---|---|"


def rows(case: Case, measured: Iterable[Measured]) -> list[str]:
    """The case's lines of the table; the bare forward's own line gives its milliseconds."""
    found = []
    for one in measured:
        memory = "" if one.megabytes is None else f"{one.megabytes:.0f}"
        if one.failed:
            figure = f"could not run: {one.failed}"
        elif one.name == UNIT:
            figure = f"1 = {1000 * sorted(one.seconds)[len(one.seconds) // 2]:.0f} ms"
        elif len(one.ratios) == 1:
            figure = f"{one.median:.2f} (one run)"
        else:
            figure = f"{one.median:.2f} ({min(one.ratios):.2f}–{max(one.ratios):.2f})"
        bold = "**" if one.name.startswith(OURS) else ""
        name = case.unit if one.name == UNIT else one.name
        found.append(f"| {case.title} | {bold}{name}{bold} | {figure} | {memory} |")
    return found


def about(rounds: int) -> str:
    """Where the figures come from."""
    load = f", load {os.getloadavg()[0]:.1f} at the start" if hasattr(os, "getloadavg") else ""
    versions = ", ".join(
        f"{name} {version(name)}" for name in ("torch", "captum", "grad-cam", "torchcam") if version(name)
    )
    return (
        f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {torch.get_num_threads()} threads{load}; {versions}; "
        f"float32 on the CPU, one picture, up to {rounds} interleaved rounds after a warm-up."
    )


def version(name: str) -> str | None:
    """The installed version of a package, None where it is not installed."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as found

    try:
        return found(name).partition("+")[0]
    except PackageNotFoundError:
        return None


def main() -> None:
    """Run the cases and print their table as it grows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="a small version of every kind of case")
    parser.add_argument("--rounds", type=int, help="interleaved rounds (default 13, with --smoke 3)")
    parser.add_argument("--only", default="", help="only cases whose title holds this text")
    parser.add_argument("--threads", type=int, help="torch threads (default: torch's own choice)")
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")  # the peers warn about hooks and gradients at every call
    if given.threads:
        torch.set_num_threads(given.threads)
    rounds = given.rounds or (3 if given.smoke else 13)
    lines = [about(rounds), "", HEAD]
    print("\n".join(lines), flush=True)
    for case in smoke() if given.smoke else whole():
        if given.only.lower() not in case.title.lower():
            continue
        found = rows(case, race(case.make(), min(rounds, case.rounds or rounds), slow=case.slow))
        print("\n".join(found), flush=True)
        lines += found
        gc.collect()
    if given.out:
        given.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
