"""Rounds of equal use: `make soak`.

In each round, `--users` visitors of the page ask the same `--questions` questions of all methods about other images.
After each round, as soon as the page is at rest, the bytes in use (`meter.py`), open files, threads and the folder
of uploads are measured: they must not grow from round to round. The rounds end as soon as there are enough to
notice a leak of 100 MB per 1,000 answers, which depends on the noise. If `--rounds` or `--minutes` end before, the
command fails.
"""

from __future__ import annotations

import math
import os
import random
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import httpx
from scipy import stats  # a requirement of scikit-learn

from benchmarks import options
from benchmarks.public import meter
from benchmarks.public.client import SIDES, Row, Server, Visitor, crop, megabytes, running, show
from saliscope import limits
from saliscope.compute.jobs.memory import IDLE

QUOTA = limits.UPLOADS / limits.MB
"""Megabytes of the folder of uploads."""
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
NAP, CALM = 0.5, 3
"""Seconds between measurements at rest, and the number without a lower value that ends them."""
LEAK = 100.0
"""Megabytes per 1,000 answers that must be noticed."""
LIMIT = LEAK / 2
"""Megabytes per 1,000 answers that are a failure, if they are not noise."""
CHANCE = 0.04
"""Share of orders of the same values that may grow as steadily as a failure."""
SURE = 3.3
"""Standard errors of the slope in a leak that is noticed in 19 of 20 runs: 1.65 for each of the two errors."""


class Sample(NamedTuple):
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
        with httpx.Client(base_url=server.url, timeout=60.0) as client:
            Visitor(client, session).ask(random.Random(number), 0.7, image, quick)
    except (httpx.HTTPError, RuntimeError):
        return True
    return False


def at_rest(server: Server) -> Sample:
    """Return the lowest memory, once it does not fall any more."""
    time.sleep(IDLE + NAP)
    process = server.process.pid
    lowest, calm = meter.read(process, server.uploads), 0
    while calm < CALM:
        time.sleep(NAP)
        now = meter.read(process, server.uploads)
        lowest, calm = (now, 0) if now < lowest else (lowest, calm + 1)
    size = sum(path.stat().st_size for path in server.uploads.rglob("*") if path.is_file())
    files, threads = (len(os.listdir(f"/proc/{process}/{kind}")) for kind in ("fd", "task"))
    return Sample(lowest, megabytes(process), files, threads, size / 2**20)


# Whether memory grows from round to round of equal work, in spite of noise


def error(values: Sequence[float], growth: float) -> float:
    """Return the standard error of the growth from one value to the next."""
    rest, count = [value - growth * number for number, value in enumerate(values)], len(values)
    return float(stats.median_abs_deviation(rest, scale="normal")) / math.sqrt(count * (count * count - 1) / 12)


def judge(values: Sequence[float], answers: int) -> tuple[float, bool, bool]:
    """Judge the memory in megabytes at rest after each round with this number of answers.

    Returns  the growth in megabytes per 1,000 answers; whether it is a leak; and whether this is sure: memory that
             grows, but not steadily, may be a leak behind noise
    """
    if len(values) < 6:
        return 0.0, False, False
    per_thousand = 1000 / answers
    growth = float(stats.theilslopes(values).slope)
    # Kendall's test: the share of orders of the values that grow at least as steadily.
    chance = float(stats.kendalltau(range(len(values)), values, alternative="greater").pvalue)
    uncertain = SURE * error(values, growth) * per_thousand > LEAK
    growth *= per_thousand
    grows = growth > LIMIT and chance <= CHANCE
    return growth, grows, grows or (growth <= LIMIT and not uncertain)


# The rounds


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
        if len(judged) >= FEWEST and judge(judged, questions + SETTLED)[2]:
            break
    return report(samples[START:], questions + SETTLED, failed)


def report(samples: list[Sample], questions: int, failed: int) -> tuple[list[Row], list[str]]:
    """Return the lines of the table and the failures."""
    grown, leaks, sure = judge([each.memory for each in samples], questions)
    rows = [
        Row("questions", f"{len(samples)} rounds of {questions}, {failed} failed", "0 failed", failed == 0),
        Row("memory per 1,000 answers", f"{grown:+.0f} MB", f"{LIMIT:.0f} MB", not leaks),
        Row("resident memory", f"{samples[-1].resident:.0f} MB at the end" if samples else "none", "-", True),
        Row("rounds", "enough" if sure else "too few", f"enough to notice {LEAK:.0f} MB", sure),
    ]
    for name in KEPT:
        counts = [getattr(each, name) for each in samples] or [0]
        grown = min(counts[len(counts) // 2 :]) - max(counts[: (len(counts) + 1) // 2])
        title = f"open {name}" * (name == "files") or name
        rows.append(Row(title, " ".join(map(str, counts)), f"not {KEPT[name]} more", grown < KEPT[name]))
    most = max([each.uploads for each in samples], default=0.0)
    rows.append(Row("folder of uploads", f"{most:.0f} MB", f"{QUOTA:.0f} MB", most <= QUOTA))
    return rows, []


def main() -> None:
    """Print the table; end with the status 1 if anything failed."""
    given = options(__doc__, rounds=24, questions=24, users=4, minutes=20.0)
    with running(before=METER) as server:
        show("soak", *soak(server, given.rounds, given.questions, given.users, given.minutes))


if __name__ == "__main__":
    main()
