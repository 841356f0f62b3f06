"""`python -m benchmarks`: run times in bare forward passes (median), compared with those of three other libraries.

python -m benchmarks                    the full run; reliable only on an idle machine
python -m benchmarks --smoke            every case once on small images, in a minute; its times say little
python -m benchmarks --only Grad-CAM    the cases whose title contains the word
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import sys
import time
import warnings
from importlib.metadata import version

import torch

from benchmarks.cases import BF16, OURS, cases
from benchmarks.timing import race

HEAD = "| case | library | bare forward passes: median (min–max) | peak memory, MB |\n|---|---|---|---|"


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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a small version of every kind of case")
    parser.add_argument("--rounds", type=int, help="interleaved rounds (default 13; with --smoke one run)")
    parser.add_argument("--only", default="", help="only cases whose title contains this text")
    arguments = parser.parse_args()
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
