"""Decode more than a thousand hostile files, and load hostile checkpoints: `make hostile`.

Each file is opened by a decoder process of the page as an image for networks with three, one and five channels, and as
a preview. It must be opened or refused with a message; nothing may crash, take more than 3 s of processor time, or
1 GB of memory. The files of a folder are added with SALISCOPE_HOSTILE=FOLDER. Ends after at most 10 minutes.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.public import processes
from benchmarks.public.attacks import decoder as decoders
from benchmarks.public.files import checkpoints as hostile_checkpoints
from benchmarks.public.files import images as hostile_images
from benchmarks.public.files.case import EITHER, REFUSED, VALID, Case
from benchmarks.public.table import Row, show
from saliscope import limits
from saliscope.errors import Refused
from saliscope.images.bands import SHOWN_AS_PNG
from saliscope.images.decoder import pool

SECONDS, MEGABYTES, ACCEPTED = 3.0, 1024.0, 0.99
MINUTES = 10.0
LIMITS_OF_DECODER = {
    "Max address space": limits.DECODE_MEMORY,
    "Max cpu time": int(limits.DECODE_SECONDS) + 2,
    "Max file size": 0,
    "Max open files": 0,
    "Max processes": 0,
    "Max core file size": 0,
}
"""Names in /proc/PID/limits, and what a decoder may have."""


@dataclass
class Found:
    """The outcomes of one group of files."""

    files: int = 0
    opened: int = 0
    seconds: float = 0.0
    megabytes: float = 0.0
    slowest: str = ""
    failures: list[str] = field(default_factory=list)


def decode(
    cases: Iterable[Case], minutes: float = MINUTES, module: tuple[str, ...] = (pool.WORKER,)
) -> dict[str, Found]:
    """Decode all files and return the outcomes by group; `module` is the program of the decoder."""
    groups: dict[str, Found] = {}
    decoder, until = pool.Pool(1, module=module), time.monotonic() + 60 * minutes
    decoder.prepare()
    try:
        for case in cases:
            found = groups.setdefault(case.group, Found())
            if time.monotonic() > until:
                found.failures.append(f"{case.group}: not all files within {minutes:g} minutes")
                break
            _decode(case, decoder, found)
    finally:
        decoder.close()
    return groups


def _decode(case: Case, decoder: pool.Pool, found: Found) -> None:
    data = case.make()
    deep = data.startswith(SHOWN_AS_PNG)
    tasks = [("open", channels) for channels in ((3, 1, 5) if deep else (3,))] + [("preview", 3)] * deep
    found.files += 1
    for task, channels in tasks:
        what, first = f"{case.group}: {case.name} ({task}, {channels} channels)", task == "open" and channels == 3
        restarts, outcome, message = decoder.restarts, VALID, ""
        try:
            decoder.call(data, task=task, channels=channels, raw=False, requested="")
        except Refused as error:
            outcome, message = REFUSED, str(error)
        except Exception as error:
            found.failures.append(f"{what}: {error!r}")
        found.opened += first and outcome == VALID
        if decoder.restarts != restarts or message == pool.CRASHED:
            found.failures.append(f"{what}: the decoder ended: {message}")
            decoder.prepare()
            continue
        if outcome == REFUSED and not (message.endswith(".") and "\n" not in message and "{" not in message):
            found.failures.append(f"{what}: no message: {message!r}")
        if first and outcome not in (case.expected, outcome if case.expected in (EITHER, VALID) else ""):
            found.failures.append(f"{what}: {outcome} instead of {case.expected}: {message}")
        _measure(*decoder.used, what, found)


def _measure(seconds: float, memory: int, what: str, found: Found) -> None:
    peak = memory / 2**20
    if seconds > found.seconds:
        found.seconds, found.slowest = seconds, what
    found.megabytes = max(found.megabytes, peak)
    if seconds > SECONDS or peak > MEGABYTES:
        found.failures.append(f"{what}: {seconds:.1f} s, {peak:.0f} MB")


def limits_of_decoder(before: tuple[str, ...] = ()) -> Row:
    """Look at the limits of a decoder from outside, and let it take more memory than it may have.

    `before` is the program that runs the decoder.
    """
    decoder, outcome = pool.Pool(1, module=(*before, decoders.HIJACKED)), "opened"
    try:
        decoder.prepare()
        decoder.mechanisms()  # it is in the sandbox now
        child = processes.children(decoder.processes()[0])[0]
        found = {name: processes.limit(child, name) for name in LIMITS_OF_DECODER}
        try:
            decoder.call(b"", task="attempt", name="reserve", argument=str(2 * limits.DECODE_MEMORY))
        except Refused:
            outcome = "refused"
        peak = decoder.used[1] / 2**20
    finally:
        decoder.close()
    wrong = [f"{name} {found[name]}" for name, value in LIMITS_OF_DECODER.items() if found[name] != str(value)]
    measured = f"{outcome}, {peak:.0f} MB{'; ' if wrong else ''}{', '.join(wrong)}"
    fits = not wrong and outcome == "refused" and peak <= MEGABYTES
    return Row("a decoder that wants 2 GB", measured, f"refused, {MEGABYTES:.0f} MB, all limits set", fits)


def rows(groups: dict[str, Found]) -> list[Row]:
    """Return the lines of the table."""
    lines = []
    for name, found in groups.items():
        measured = f"{found.files:5} files, {found.opened:4} opened, {found.seconds:4.1f} s, {found.megabytes:4.0f} MB"
        needed = f", {ACCEPTED:.0%} opened" if name == "valid" else ""
        enough = name != "valid" or found.opened >= ACCEPTED * found.files
        limit = f"{SECONDS:g} s, {MEGABYTES:.0f} MB each{needed}"
        lines.append(Row(name, measured, limit, enough and not found.failures))
    return lines


def main() -> int:
    """Print the table; return 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="use every Nth file")
    parser.add_argument("--folder", default=os.environ.get("SALISCOPE_HOSTILE", ""), help="a folder with more files")
    parser.add_argument("--only", choices=["images", "checkpoints"])
    parser.add_argument("--group", help="use only one group of image files, such as 'TIFF tags'")
    arguments = parser.parse_args()
    with processes.ends_within(MINUTES + 2):
        return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    lines, failures = [], []
    if arguments.only != "checkpoints":
        cases = [case for case in hostile_images.cases() if arguments.group in (None, case.group)][:: arguments.every]
        groups = decode([*cases, *(hostile_images.folder(Path(arguments.folder)) if arguments.folder else [])])
        lines += [*rows(groups), limits_of_decoder()]
        failures += [failure for found in groups.values() for failure in found.failures]
    if arguments.only != "images":
        found, more = hostile_checkpoints.load(arguments.every)
        lines.append(found)
        failures += more
    return show("hostile files", lines, failures)


if __name__ == "__main__":
    sys.exit(main())
