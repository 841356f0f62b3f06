"""Rounds of equal use: `make soak`.

In each round, visitors of the page ask the same `--questions` questions of all methods about other images. After each
round, as soon as the page is at rest, the bytes in use (`meter.py`), open files, threads and the folder of uploads are
measured: they must not grow from round to round. The rounds end as soon as there are enough to notice a leak of 100 MB
per 1,000 answers (`growth.py`), which depends on the noise. If `--rounds` or `--minutes` end before, the command fails.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx

from benchmarks.public import growth, meter, processes
from benchmarks.public.client import SIDES, Visitor, crop
from benchmarks.public.server import Server, running
from benchmarks.public.table import Row, show
from saliscope import limits
from saliscope.compute.jobs.memory import IDLE

QUOTA = limits.UPLOADS / limits.MB
"""Megabytes of the folder of uploads."""
LATE = 60.0
"""Seconds after which a request has failed."""
PATIENCE = 0.7
"""Seconds after which a slow method is stopped."""
SETTLED = 6
"""Questions at the end of a round, more than a cache of the metered page holds."""
START = 2
"""Rounds that are not judged, in which caches are filled."""
KEPT = {"files": 1, "threads": 5}
"""How many more after each of the later rounds than before are a failure; the server keeps idle threads for a while."""
FEWEST = 10
"""Rounds that are judged at least."""
METER = "from benchmarks.public import meter; meter.install()"
"""Code that installs the meter in the page."""
MOST, NAP, CALM = 20, 0.5, 3
"""Measurements at rest, seconds between two of them, and the number without a lower value that ends them."""


@dataclass(frozen=True)
class Sample:
    """The page at rest after a round."""

    memory: float
    """Megabytes in use."""
    resident: float
    """Megabytes of the process, with freed memory and libraries."""
    files: int
    threads: int
    uploads: float
    """Megabytes of the folder of uploads."""


def ask(server: Server, session: str, number: int, image: bytes, quick: bool = False) -> bool:
    """Ask the question with this number as a new visitor; return whether it failed."""
    try:
        with httpx.Client(base_url=server.url, timeout=LATE) as client:
            Visitor(client, session).ask(random.Random(number), PATIENCE, image, quick)
    except (httpx.HTTPError, RuntimeError):
        return True
    return False


def at_rest(server: Server) -> Sample:
    """Return the lowest memory, once it does not fall any more."""
    time.sleep(IDLE + NAP)
    process = server.process.pid
    lowest, calm = meter.read(process, server.uploads), 0
    for _ in range(MOST):
        time.sleep(NAP)
        now = meter.read(process, server.uploads)
        lowest, calm = (now, 0) if now < lowest else (lowest, calm + 1)
        if calm >= CALM:
            break
    size = 0
    for path in server.uploads.rglob("*"):
        with contextlib.suppress(OSError):
            size += path.stat().st_size
    files, threads = processes.open_files(process), processes.threads(process)
    return Sample(lowest, processes.megabytes(process), files, threads, size / 2**20)


def soak(server: Server, rounds: int, questions: int, users: int, minutes: float) -> tuple[list[Row], list[str]]:
    """Send the questions and measure; return the lines of the table and the failures."""
    failed, samples, until = 0, list[Sample](), time.monotonic() + 60 * minutes
    for turn in range(START + rounds):
        if time.monotonic() > until or server.process.poll() is not None:
            break

        def visit(number: int, turn: int = turn) -> bool:
            image = crop(random.Random(f"{turn} {number}"), SIDES[number % len(SIDES)])
            return ask(server, f"soak{turn}x{number}", number, image)

        with ThreadPoolExecutor(users) as pool:
            failed += sum(pool.map(visit, range(questions)))
        for number in range(SETTLED):  # one after the other, always about the same images, so that caches are equal
            failed += ask(server, f"rest{turn}x{number}", number, crop(random.Random(number), SIDES[0]), quick=True)
        samples.append(at_rest(server))
        found = f"round {turn + 1}: {samples[-1].memory:.1f} MB in use, {failed} failed"
        print(found, file=sys.stderr, flush=True)
        judged = [each.memory for each in samples[START:]]
        if len(judged) >= FEWEST and growth.judge(judged, questions + SETTLED)[2]:
            break
    return report(samples[START:], questions + SETTLED, failed)


def report(samples: list[Sample], questions: int, failed: int) -> tuple[list[Row], list[str]]:
    """Return the lines of the table and the failures."""
    grown, leaks, sure = growth.judge([each.memory for each in samples], questions)
    rows = [
        Row("questions", f"{len(samples)} rounds of {questions}, {failed} failed", "0 failed", failed == 0),
        Row("memory per 1,000 answers", f"{grown:+.0f} MB", f"{growth.LIMIT:.0f} MB", not leaks),
        Row("resident memory", f"{samples[-1].resident:.0f} MB at the end" if samples else "none", "-", True),
        Row("rounds", "enough" if sure else "too few", f"enough to notice {growth.LEAK:.0f} MB", sure),
    ]
    for name in KEPT:
        counts = [getattr(each, name) for each in samples] or [0]
        grown = min(counts[len(counts) // 2 :]) - max(counts[: (len(counts) + 1) // 2])
        title = f"open {name}" * (name == "files") or name
        rows.append(Row(title, " ".join(map(str, counts)), f"not {KEPT[name]} more", grown < KEPT[name]))
    most = max([each.uploads for each in samples], default=0.0)
    rows.append(Row("folder of uploads", f"{most:.0f} MB", f"{QUOTA:.0f} MB", most <= QUOTA))
    return rows, []


def main() -> int:
    """Print the table; return 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=24, help="at most")
    parser.add_argument("--questions", type=int, default=24, help="questions in a round")
    parser.add_argument("--users", type=int, default=4, help="visitors at the same time")
    parser.add_argument("--minutes", type=float, default=20.0, help="until no new round starts")
    given = parser.parse_args()
    with processes.ends_within(given.minutes + 10), running(before=METER) as server:
        return show("soak", *soak(server, given.rounds, given.questions, given.users, given.minutes))


if __name__ == "__main__":
    sys.exit(main())
