"""Decode more than a thousand hostile files, and load hostile checkpoints: `make hostile`.

Each file is opened by a decoder process of the page as an image for networks with three, one and five channels, and as
a preview. It must be opened or refused with a message; nothing may crash, take more than 3 s of processor time, or
1 GB of memory. The files of a folder are added with SALISCOPE_HOSTILE=FOLDER.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.public.client import Row, show
from benchmarks.public.files import checkpoints, images
from benchmarks.public.files.images import REFUSED, VALID, Case
from saliscope.errors import Refused
from saliscope.images.bands import SHOWN_AS_IMAGE
from saliscope.images.decoder import pool

SECONDS, MEGABYTES, ACCEPTED = 3.0, 1024.0, 0.99
TASKS = (("open", 3), ("open", 1), ("open", 5), ("preview", 3))
"""Tasks and numbers of channels; a file without bands has only the first."""


@dataclass
class Found:
    """The outcomes of one group of files."""

    files: int = 0
    opened: int = 0
    seconds: float = 0.0
    megabytes: float = 0.0
    failures: list[str] = field(default_factory=list)


def decode(cases: Iterable[Case]) -> dict[str, Found]:
    """Decode all files and return the outcomes by group."""
    groups: dict[str, Found] = {}
    with contextlib.closing(pool.Pool(1)) as decoder:
        decoder.prepare()
        for case in cases:
            found = groups.setdefault(case.group, Found())
            data = case.make()
            found.files += 1
            calls = TASKS if data.startswith(SHOWN_AS_IMAGE) else TASKS[:1]
            for task, channels in calls:
                first = (task, channels) == TASKS[0]
                outcome, message = _outcome(decoder, data, task, channels)
                found.opened += first and outcome == VALID
                wrong = outcome not in (VALID, REFUSED) or (first and case.expected == REFUSED != outcome)
                seconds, megabytes = decoder.used[0], decoder.used[1] / 2**20
                if wrong or seconds > SECONDS or megabytes > MEGABYTES:
                    what = f"{case.group}: {case.name} ({task}, {channels} channels): {outcome}"
                    used = f"{message!r}, {seconds:.1f} s, {megabytes:.0f} MB"
                    found.failures.append(f"{what} instead of {case.expected}: {used}")
                found.seconds, found.megabytes = max(found.seconds, seconds), max(found.megabytes, megabytes)
    return groups


def _outcome(decoder: pool.Pool, data: bytes, task: str, channels: int) -> tuple[str, str]:
    """Return whether a file is opened or refused, or what else happens; and the message."""
    restarts, outcome, message = decoder.restarts, VALID, ""
    try:
        decoder.call(data, task=task, channels=channels, requested="")
    except Refused as error:
        message = str(error)
        outcome = REFUSED if message.endswith(".") and not {"\n", "{"} & set(message) else "no message"
    except Exception as error:
        outcome = repr(error)
    if decoder.restarts != restarts or message == pool.CRASHED:
        outcome = "the decoder ended"
        decoder.prepare()
    return outcome, message


def rows(groups: dict[str, Found]) -> list[Row]:
    """Return the lines of the table."""
    lines = []
    for name, found in groups.items():
        measured = f"{found.files:5} files, {found.opened:4} opened, {found.seconds:4.1f} s, {found.megabytes:4.0f} MB"
        limit = f"{SECONDS:g} s, {MEGABYTES:.0f} MB each" + f", {ACCEPTED:.0%} opened" * (name == "valid")
        enough = name != "valid" or found.opened >= ACCEPTED * found.files
        lines.append(Row(name, measured, limit, enough and not found.failures))
    return lines


def main() -> None:
    """Print the table; end with the status 1 if anything failed."""
    folder = os.environ.get("SALISCOPE_HOSTILE")
    groups = decode([*images.cases(), *(images.folder(Path(folder)) if folder else [])])
    found, failures = checkpoints.load()
    failures = [*(failure for group in groups.values() for failure in group.failures), *failures]
    show("hostile files", [*rows(groups), found], failures)


if __name__ == "__main__":
    main()
