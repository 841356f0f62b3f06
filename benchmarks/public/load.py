"""Many users at once: `make load`.

Each of `--users` uses `gradio_client` with a different image, whose answer is computed once before, and asks `--rounds`
times. Everyone must get the answer for this image; the only refusal is "queue is full", after which a user tries again.
Part of the traffic is hostile and must change nothing. Requests are answered in turn, so the number of answers between
a request and its own answer is counted. Times are shown only, because a busy machine changes them. Starts
no request after `--minutes`.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradio_client import Client, handle_file

from benchmarks import options
from benchmarks.public.client import FILE, Row, Server, crop, repeatedly, running, show, status, upload

MORE = 1.3
"""Times the number of requests that were sent before, which may be answered before a request."""
EXTRA = 4
"""Answers more: the order in which requests are sent is not exactly the order in which they arrive."""
LATE, TIMES = 300.0, 10.0
"""Seconds, and times as long as all users need one after the other, after which an answer is lost."""
METHODS = ("grad_cam", "hires_cam", "layer_cam", "saliency")


@dataclass
class User:
    """A user with an image and its answer."""

    client: Client
    image: Path
    method: str
    expected: tuple[Any, ...] = ()

    def answer(self, late: float) -> tuple[Any, ...]:
        """Return what identifies an answer: the method, the classes with probabilities, and the map's statistics."""
        found = self.client.submit(handle_file(self.image), method=self.method, api_name="/explain").result(late)
        top = [(each["name"], round(each["probability"], 4)) for each in found["predictions"]]
        numbers = {name: round(value, 3) for name, value in found["statistics"].items() if isinstance(value, float)}
        return found["method"], tuple(top), tuple(sorted(numbers.items()))


class Traffic:
    """Requests of all users, counted."""

    def __init__(self, until: float, late: float) -> None:
        self.end, self.late, self.waiting = until, late, set[Path]()
        self.answers: list[tuple[float, int, int]] = []
        """The seconds, the requests without an answer when it was sent, and the answers to all users from then until
        its own; with this one.
        """
        self.wrong: list[str] = []
        self.full: list[str] = []

    def ask(self, user: User, rounds: int) -> bool:
        """Ask again and again, after a refusal a little later; return whether there was an answer."""
        done, answered = 0, False
        while done < rounds and time.monotonic() < self.end:
            self.waiting.add(user.image)
            before, answers, started = len(self.waiting), len(self.answers), time.monotonic()
            found, error = None, ""
            try:
                found = user.answer(self.late)
            except Exception as failure:
                error = f"{type(failure).__name__}: {str(failure)[:150]}"
            full = "Queue is full" in error or "requests are in progress" in error
            self.waiting.discard(user.image)
            if not error:
                self.answers.append((time.monotonic() - started, before, len(self.answers) + 1 - answers))
                error = "" if found == user.expected else f"another answer: {found} instead of {user.expected}"
                answered = True
            if full:
                self.full.append(error)
                time.sleep(10.0)
            elif error:
                self.wrong.append(error)
            done += not full
        return answered


def attack(server: Server, rng: random.Random, sent: list[int]) -> None:
    """Send a hostile request."""
    sent.append(rng.randrange(3))
    if sent[-1] == 0:
        file = {"path": upload(server, b"\x89PNG\r\n\x1a\n" + rng.randbytes(200_000), "x.png"), "meta": FILE}
        status(server, "POST /gradio_api/call/explain", {"data": [file, "", "", "", "", None, ""]})
    elif sent[-1] == 1:
        status(server, "POST /gradio_api/call/explain", b"[" * 50_000)
    else:
        status(server, "GET /gradio_api/file=/etc/passwd")


def load(server: Server, count: int, rounds: int, minutes: float) -> tuple[list[Row], list[str]]:
    """Send the requests; return the lines of the table and the failures."""
    until = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory() as folder:

        def make(number: int) -> User:
            path = Path(folder) / f"{number}.jpg"
            path.write_bytes(crop(random.Random(number), 300))  # an image that no other user has
            patient = {"timeout": 600.0}  # otherwise it gives up after a few seconds on a busy server
            client = Client(server.url, verbose=False, download_files=False, httpx_kwargs=patient)
            return User(client, path, METHODS[number % 4])

        with ThreadPoolExecutor(8) as pool:
            users = list(pool.map(make, range(count)))
        times = []
        for user in users:  # the known answers, one after the other
            started = time.monotonic()
            user.expected = user.answer(LATE)
            times.append(time.monotonic() - started)
        traffic, sent, rng = Traffic(until, LATE + TIMES * sum(times)), list[int](), random.Random(1)
        with repeatedly(lambda: attack(server, rng, sent), pause=0.3), ThreadPoolExecutor(count) as pool:
            served = sum(pool.map(lambda user: traffic.ask(user, rounds), users))
    full, wrong = len(traffic.full), traffic.wrong
    one, distinct = statistics.mean(times[len(times) // 4 :]), len({user.expected for user in users})
    columns = [sorted(column) for column in zip(*traffic.answers or [(0.0, 0, 0)], strict=True)]
    late, most_before, most_until = (column[int(0.95 * len(column))] for column in columns)
    most, fair = f"{most_until}, sent before {most_before}", most_until <= MORE * most_before + EXTRA
    rows = [
        Row("users", f"{count}, {distinct} different answers", "all different", distinct == count),
        Row("users with answers", f"{served} of {count}", "all", served == count),
        Row("wrong answers and other errors", str(len(wrong)), "0", not wrong),
        Row("refusals because the queue is full", f"{full} of {full + len(traffic.answers)} requests", "-", True),
        Row("hostile requests", str(len(sent)), "-", True),
        Row("one request without others", f"{one:.2f} s", "-", True),
        Row("95th percentile", f"{late:.1f} s", "-", True),
        Row("answers until one's own", most, f"{MORE} times + {EXTRA}", fair),
    ]
    return rows, wrong[:10]


def main() -> None:
    """Print the table; end with the status 1 if anything failed."""
    arguments = options(__doc__, users=100, rounds=3, minutes=10.0)
    with running() as server:
        show("load", *load(server, arguments.users, arguments.rounds, arguments.minutes))


if __name__ == "__main__":
    main()
