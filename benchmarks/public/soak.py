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
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx

from benchmarks.page import memory
from benchmarks.public import growth, meter, processes
from benchmarks.public.server import Server, running
from benchmarks.public.table import Row, show
from saliscope import limits
from saliscope.session.jobs.memory import IDLE

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
KEPT = 5
"""More open files or threads after each of the later rounds than before, which are a failure."""
FEWEST = 8
"""Rounds that are judged at least."""
METERED = "meter"
"""The name under which `faults` installs the meter in the page; another fault may follow after a plus sign."""
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


class Visits:
    """Questions of several visitors, counted."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.count = self.failed = 0
        self._lock = threading.Lock()

    def ask(self, turn: int, number: int) -> None:
        """Send a question, the same in each round except for its image, as a new visitor."""
        image = memory.crop(random.Random(f"{turn} {number}"), memory.SIDES[number % len(memory.SIDES)])
        self._send(f"soak{turn}x{number}", random.Random(number), image)

    def settle(self, turn: int) -> None:
        """Send a few questions one after the other, always about the same images, so that caches are equal."""
        for number in range(SETTLED):
            image = memory.crop(random.Random(number), memory.SIDES[0])
            self._send(f"rest{turn}x{number}", random.Random(number), image, quick=True)

    def _send(self, session: str, rng: random.Random, image: bytes, quick: bool = False) -> None:
        failed = False
        try:
            with httpx.Client(base_url=self.server.url, timeout=LATE) as client:
                memory.ask(memory.Visitor(client, session), rng, PATIENCE, image, quick)
        except (httpx.HTTPError, RuntimeError):
            failed = True
        with self._lock:
            self.count += 1
            self.failed += failed


def at_rest(server: Server) -> Sample:
    """Return the lowest memory, once it does not fall any more."""
    time.sleep(IDLE + NAP)
    lowest, calm = meter.read(server.process.pid, server.uploads), 0
    for _ in range(MOST):
        time.sleep(NAP)
        now = meter.read(server.process.pid, server.uploads)
        lowest, calm = (now, 0) if now < lowest else (lowest, calm + 1)
        if calm >= CALM:
            break
    sizes = []
    for path in server.uploads.rglob("*"):
        with contextlib.suppress(OSError):
            sizes.append(path.stat().st_size)
    files, threads = processes.open_files(server.process.pid), processes.threads(server.process.pid)
    resident = processes.megabytes(server.process.pid)
    return Sample(lowest, resident, files, threads, sum(sizes) / 2**20)


def soak(server: Server, rounds: int, questions: int, users: int, minutes: float) -> tuple[list[Row], list[str]]:
    """Send the questions and measure; return the lines of the table and the failures."""
    visits, samples, until = Visits(server), list[Sample](), time.monotonic() + 60 * minutes
    for turn in range(START + rounds):
        if time.monotonic() > until or server.process.poll() is not None:
            break
        with ThreadPoolExecutor(users) as pool:
            list(pool.map(lambda number, turn=turn: visits.ask(turn, number), range(questions)))
        visits.settle(turn)
        samples.append(at_rest(server))
        found = f"round {turn + 1}: {samples[-1].memory:.1f} MB in use, {visits.failed} failed"
        print(found, file=sys.stderr, flush=True)
        judged = [each.memory for each in samples[START:]]
        if len(judged) >= FEWEST and growth.judge(judged, questions + SETTLED)[2]:
            break
    return report(samples[START:], questions + SETTLED, visits.failed)


def report(samples: list[Sample], questions: int, failed: int) -> tuple[list[Row], list[str]]:
    """Return the lines of the table and the failures."""
    grown, leaks, sure = growth.judge([each.memory for each in samples], questions)
    rows = [
        Row("questions", f"{len(samples)} rounds of {questions}, {failed} failed", "0 failed", failed == 0),
        Row("memory per 1,000 answers", f"{grown:+.0f} MB", f"{growth.LIMIT:.0f} MB", not leaks),
        Row("resident memory", f"{samples[-1].resident:.0f} MB at the end" if samples else "none", "-", True),
        Row("rounds", "enough" if sure else "too few", f"enough to notice {growth.LEAK:.0f} MB", sure),
    ]
    for name in ("files", "threads"):
        counts = [getattr(each, name) for each in samples] or [0]
        grown = min(counts[len(counts) // 2 :]) - max(counts[: (len(counts) + 1) // 2])
        title = f"open {name}" * (name == "files") or name
        rows.append(Row(title, " ".join(map(str, counts)), f"not {KEPT} more", grown < KEPT))
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
    with processes.ends_within(given.minutes + 10), running(fault=METERED) as server:
        return show("soak", *soak(server, given.rounds, given.questions, given.users, given.minutes))


if __name__ == "__main__":
    sys.exit(main())
