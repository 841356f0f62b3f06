"""`python -m benchmarks`: run times in bare forward passes (median), compared with those of four other libraries.

python -m benchmarks                    the full run; reliable only on an idle machine
python -m benchmarks --smoke            every case once on small images, in a minute; its times say little
python -m benchmarks --only Grad-CAM    the cases whose title contains the word
python -m benchmarks --out figures.md   also write the table to a file
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import sys
import time
import warnings
from collections.abc import Iterable
from pathlib import Path

import torch

from benchmarks.cases import CPU, OURS, Case, full, smoke
from benchmarks.timing import UNIT, Measured, processor_time, race
from explainers.network.fast.fused_copy import computes_bf16

HEAD = "| case | library | bare forward passes: median (min–max) | peak memory, MB |\n|---|---|---|---|"


def rows(case: Case, measured: Iterable[Measured]) -> list[str]:
    """Return the rows of a case; the row of the bare forward pass has its milliseconds."""
    lines = []
    for one in measured:
        memory = "" if one.megabytes is None else f"{one.megabytes:.0f}"
        if one.failed:
            result = f"could not run: {one.failed}"
        elif one.name == UNIT:
            result = f"1 = {1000 * sorted(one.seconds)[len(one.seconds) // 2]:.0f} ms"
        elif len(one.ratios) == 1:
            result = f"{one.median:.2f} (one run)"
        else:
            result = f"{one.median:.2f} ({min(one.ratios):.2f}–{max(one.ratios):.2f})"
        bold = "**" if one.name.startswith(OURS) else ""
        name = case.unit if one.name == UNIT else one.name
        lines.append(f"| {case.title} | {bold}{name}{bold} | {result} | {memory} |")
    return lines


def about(rounds: int, cpu_time: bool = False) -> str:
    """Return the line with date, machine, versions and settings."""
    load = f", load {os.getloadavg()[0]:.1f} at the start" if hasattr(os, "getloadavg") else ""
    versions = ", ".join(
        f"{name} {version(name)}" for name in ("torch", "captum", "grad-cam", "torchcam", "zennit") if version(name)
    )
    count = f"up to {rounds} interleaved rounds after a warm-up" if rounds else "one run without a warm-up"
    bf16 = "" if computes_bf16(CPU) else " This processor has no instructions for bfloat16: its rows are omitted."
    return (
        f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {torch.get_num_threads()} threads{load}; {versions}; "
        f"float32 on the CPU, one image, {count}{', processor time' if cpu_time else ''}.{bf16}"
    )


def version(name: str) -> str | None:
    """Return the installed version of a package, or None."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed_version

    try:
        return installed_version(name).partition("+")[0]
    except PackageNotFoundError:
        return None


def main() -> None:
    """Run the cases and print each row of the table when it is measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="a small version of every kind of case")
    parser.add_argument("--rounds", type=int, help="interleaved rounds (default 13; with --smoke one run)")
    parser.add_argument("--only", default="", help="only cases whose title contains this text")
    parser.add_argument("--threads", type=int, help="torch threads (default: torch's own choice)")
    parser.add_argument("--cpu-time", action="store_true", help="processor time, for a busy machine")
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")  # the peers warn about hooks and gradients at every call
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    clock = processor_time if arguments.cpu_time else time.perf_counter
    rounds = arguments.rounds or (0 if arguments.smoke else 13)
    lines, failed = [about(rounds, arguments.cpu_time), "", HEAD], []
    print("\n".join(lines), flush=True)
    for case in smoke() if arguments.smoke else full():
        if arguments.only.lower() not in case.title.lower():
            continue
        measured = race(case.make(), min(rounds, case.rounds or rounds), slow=case.slow, clock=clock)
        new = rows(case, measured)
        print("\n".join(new), flush=True)
        lines += new
        failed += [f"{case.title}, {one.name}: {one.failed}" for one in measured if one.failed and OURS in one.name]
        gc.collect()
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if failed:
        sys.exit("These could not run:\n" + "\n".join(failed))


if __name__ == "__main__":
    main()
