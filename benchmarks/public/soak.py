"""Minutes of ordinary use: `make soak`.

Visitors of the page ask `--rate` questions a second of all methods for `--minutes`. Memory, open files, threads and the
folder of uploads are measured; after a start of a fifth of the time they must not grow: memory at most 1 MB per 1,000
requests (slope of a straight line through the lowest value of each half minute, without what its uncertainty
explains), files and threads not at all.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from benchmarks.page import memory
from benchmarks.public import processes
from benchmarks.public.server import Server, running
from benchmarks.public.table import Row, show

SLOPE = 1.0
"""Megabytes per 1,000 requests."""
QUOTA = 2048
"""Megabytes of the folder of uploads, which has those of the last hour."""
LATE = 60.0
"""Seconds after which a request has failed."""
EVERY, REST = 3.0, 10
"""Seconds between two measurements, and the number of them of which the lowest memory counts: jobs need some more."""


class Visits:
    """Requests of several visitors, counted."""

    def __init__(self, server: Server, seed: int) -> None:
        self.server, self.seed = server, seed
        self.count = self.failed = 0
        self._lock = threading.Lock()

    def ask(self, number: int) -> None:
        """Send one question as a new or an old visitor, and count it."""
        rng = random.Random(self.seed + number)
        try:
            with httpx.Client(base_url=self.server.url, timeout=LATE) as client:
                visitor = memory.Visitor(client, f"soak{number // 5}x{number % 5}")
                memory.ask(visitor, rng, patience=1.0)
        except httpx.HTTPStatusError as error:
            failed = error.response.status_code != 503  # the queue is full
        except (httpx.HTTPError, RuntimeError):
            failed = True
        else:
            failed = False
        with self._lock:
            self.count += 1
            self.failed += failed


def sample(server: Server, visits: Visits) -> tuple[float, ...]:
    """Return requests, megabytes of all processes, open files, threads and megabytes of uploads."""
    everyone = [server.process.pid, *processes.children(server.process.pid)]
    resident = 0.0
    for process in everyone:
        with contextlib.suppress(OSError, StopIteration):
            resident += processes.megabytes(process)
    size = sum(path.stat().st_size for path in server.uploads.rglob("*") if path.is_file()) / 2**20
    files, threads = processes.open_files(server.process.pid), processes.threads(server.process.pid)
    return visits.count, resident, files, threads, size


def soak(server: Server, minutes: float, rate: float, users: int) -> tuple[list[Row], list[str]]:
    """Send the requests and measure; return the lines of the table and the failures."""
    visits, samples = Visits(server, 1000), list[tuple[float, ...]]()
    following = measured = time.monotonic()
    end, number = following + 60 * minutes, 0
    with ThreadPoolExecutor(users) as pool:
        running_ones: set[object] = set()
        while time.monotonic() < end and server.process.poll() is None:
            running_ones = {each for each in running_ones if not each.done()}  # type: ignore[attr-defined]
            if len(running_ones) < users:
                running_ones.add(pool.submit(visits.ask, number))
                number += 1
            following += 1 / rate
            time.sleep(max(0.0, following - time.monotonic()))
            following = max(following, time.monotonic() - 5)
            if time.monotonic() >= measured:
                measured = time.monotonic() + EVERY
                samples.append(sample(server, visits))
                requests, memory = samples[-1][:2]
                print(f"{requests:.0f} requests, {memory:.0f} MB", file=sys.stderr, flush=True)
    time.sleep(5)
    samples.append(sample(server, visits))
    return report(samples, visits, minutes)


def slope(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the slope of a straight line through points, and its standard error."""
    if len(points) < 3:
        return 0.0, math.inf
    x, y = zip(*points, strict=True)
    spread = sum((each - statistics.mean(x)) ** 2 for each in x)
    if spread == 0:
        return 0.0, math.inf
    value, start = statistics.linear_regression(x, y)
    rest = sum((b - value * a - start) ** 2 for a, b in points)
    return value, math.sqrt(rest / (len(points) - 2) / spread)


def report(samples: list[tuple[float, ...]], visits: Visits, minutes: float) -> tuple[list[Row], list[str]]:
    """Return the lines of the table and the failures."""
    later = samples[len(samples) // 5 :]
    lowest = [min(later[k : k + REST], key=lambda each: each[1]) for k in range(0, len(later), REST)]
    grown, error = slope([(each[0] / 1000, each[1]) for each in lowest])
    half = len(later) // 2
    first, last = later[:half] or later, later[half:]
    rows = [
        Row(
            "requests", f"{visits.count} in {minutes:g} minutes, {visits.failed} failed", "0 failed", visits.failed == 0
        )
    ]
    steady = math.isfinite(error) and grown - 2 * error <= SLOPE
    limit = f"{SLOPE:g} MB per 1,000"
    rows.append(Row("memory per 1,000 requests", f"{grown:+.1f} ± {2 * error:.1f} MB", limit, steady))
    rows.append(Row("memory at the end", f"{samples[-1][1]:.0f} MB", "-", True))
    for name, index, margin in (("open files", 2, 8), ("threads", 3, 8)):
        before, after = (statistics.median(each[index] for each in part) for part in (first, last))
        rows.append(Row(name, f"{before:.0f}, then {after:.0f}", f"+{margin}", after <= before + margin))
    rows.append(Row("folder of uploads", f"{samples[-1][4]:.0f} MB", f"{QUOTA} MB", samples[-1][4] <= QUOTA))
    return rows, []


def main() -> int:
    """Print the table; return 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=2.0, help="questions a second")
    parser.add_argument("--users", type=int, default=8, help="visitors at the same time")
    arguments = parser.parse_args()
    with running() as server:
        return show("soak", *soak(server, arguments.minutes, arguments.rate, arguments.users))


if __name__ == "__main__":
    sys.exit(main())
