"""Many users at once: `make load`.

Each of `--users` uses `gradio_client` with an image of its own, whose answer is computed once before. Everyone must get
the answer for this image; the only refusal is "queue is full", after which a user tries again. Part of the traffic is
hostile and must change nothing. A request waits for the answers to those that were sent before: the answers that come
until its own are counted. Times are shown only, because a busy machine changes them. Starts no request after
`--minutes`.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from gradio_client import Client, handle_file
from PIL import Image

from benchmarks.public import processes
from benchmarks.public.server import ROOT, Server, running
from benchmarks.public.table import Row, show

DAMAGED = b"\x89PNG\r\n\x1a\n" + bytes(99)
FULL = ("Queue is full", "requests are in progress")
MORE = 1.3
"""Times the number of requests that were sent before, which may be answered before a request."""
EXTRA = 4
"""Answers more: the order in which requests are sent is not exactly the order in which they arrive."""
LATE, TIMES = 300.0, 10.0
"""Seconds, and times as long as all users need one after the other, after which an answer is lost."""
WAIT = {"timeout": 600.0}
"""For the client, which otherwise gives up after a few seconds on a busy server."""
AGAIN = 10.0
"""Seconds until a user who was refused tries again."""
EXAMPLES = sorted((ROOT / "assets" / "examples").glob("*.jpg"))
METHODS = ("grad_cam", "hires_cam", "layer_cam", "saliency")


@dataclass
class User:
    """A user with an image, its answer, and what the user received."""

    client: Client
    image: Path
    method: str
    expected: tuple[Any, ...] = ()
    seconds: list[float] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    """Requests without an answer when its request was sent, with this one."""
    until: list[int] = field(default_factory=list)
    """Answers to all users from then until its own, with this one."""
    wrong: list[str] = field(default_factory=list)
    full: int = 0


def picture(number: int, folder: Path) -> Path:
    """Write an image that no other user has: a part of an example."""
    rng = random.Random(number)
    with Image.open(EXAMPLES[number % len(EXAMPLES)]) as image:
        left, top = rng.uniform(0, 0.3), rng.uniform(0, 0.3)
        box = (left * image.width, top * image.height, image.width * (0.7 + left), image.height * (0.7 + top))
        part = image.convert("RGB").resize((300, 260), box=box)
    path = folder / f"{number}.png"
    part.save(path)
    return path


def answer(user: User, late: float) -> tuple[Any, ...]:
    """Return what identifies the answer: the method, the classes with their probabilities, and the map's statistics."""
    job = user.client.submit(handle_file(user.image), method=user.method, api_name="/explain")
    found = job.result(late)
    top = [(each["name"], round(each["probability"], 4)) for each in found["predictions"]]
    numbers = {name: round(value, 3) for name, value in found["statistics"].items() if isinstance(value, float)}
    return found["method"], tuple(top), tuple(sorted(numbers.items()))


class Traffic:
    """Requests of all users, counted."""

    def __init__(self, until: float, late: float) -> None:
        self.until, self.late = until, late
        self._waiting, self._answers, self._lock = 0, 0, threading.Lock()

    def ask(self, user: User, rounds: int) -> None:
        """Ask again and again; after a refusal, try again a little later."""
        while len(user.seconds) + len(user.wrong) < rounds and time.monotonic() < self.until:
            with self._lock:
                self._waiting += 1
                before, answers = self._waiting, self._answers
            started, refused = time.monotonic(), False
            try:
                found = answer(user, self.late)
            except Exception as error:
                refused = any(text in str(error) for text in FULL)
                if not refused:
                    user.wrong.append(f"{type(error).__name__}: {str(error)[:150]}")
            else:
                user.seconds.append(time.monotonic() - started)
                with self._lock:
                    self._answers += 1
                    user.until.append(self._answers - answers)
                user.before.append(before)
                if found != user.expected:
                    user.wrong.append(f"another answer: {found} instead of {user.expected}")
            finally:
                with self._lock:
                    self._waiting -= 1
            if refused:
                user.full += 1
                time.sleep(AGAIN)


def attack(server: Server, stop: threading.Event, sent: list[int]) -> None:
    """Send hostile requests until the end."""
    rng = random.Random(1)
    with httpx.Client(base_url=server.url, timeout=60) as client:
        while not stop.wait(0.3):
            with contextlib.suppress(httpx.TransportError):
                choice = rng.randrange(4)
                if choice == 0:
                    client.post("/gradio_api/upload", files={"files": ("x.png", rng.randbytes(200_000))})
                elif choice == 1:
                    client.post("/gradio_api/call/explain", content=b"[" * 50_000)
                elif choice == 2:
                    client.get("/gradio_api/file=/etc/passwd")
                else:
                    path = client.post(
                        "/gradio_api/upload", files={"files": ("x.png", b"\x89PNG\r\n\x1a\n" + bytes(99))}
                    )
                    file = {"path": path.json()[0], "meta": {"_type": "gradio.FileData"}}
                    client.post("/gradio_api/call/explain", json={"data": [file, "", "", "", "", None, ""]})
                sent.append(choice)


def load(server: Server, count: int, rounds: int, minutes: float, hostile: bool = True) -> tuple[list[Row], list[str]]:
    """Send the requests; return the lines of the table and the failures."""
    until = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with ThreadPoolExecutor(8) as pool:

            def make(number: int) -> User:
                client = Client(server.url, verbose=False, download_files=False, httpx_kwargs=WAIT)
                return User(client, picture(number, folder), METHODS[number % 4])

            users = list(pool.map(make, range(count)))
        times = []
        for user in users:  # the known answers, one after the other
            started = time.monotonic()
            user.expected = answer(user, LATE)
            times.append(time.monotonic() - started)
        one = statistics.mean(times[len(times) // 4 :])
        late = LATE + TIMES * sum(times)
        traffic, stop, sent = Traffic(until, late), threading.Event(), list[int]()
        attacker = threading.Thread(target=attack, args=(server, stop, sent))
        if hostile:
            attacker.start()
        threads = [threading.Thread(target=traffic.ask, args=(user, rounds)) for user in users]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stop.set()
        if hostile:
            attacker.join()
    return report(users, one, len(sent))


def _before(user: User) -> list[int]:
    return user.before


def _until(user: User) -> list[int]:
    return user.until


def report(users: list[User], one: float, hostile: int) -> tuple[list[Row], list[str]]:
    """Return the lines of the table and the failures."""
    seconds = sorted(each for user in users for each in user.seconds)
    wrong = [failure for user in users for failure in user.wrong]
    full = sum(user.full for user in users)
    served = sum(bool(user.seconds) for user in users)
    before, until = (sorted(each for user in users for each in row(user)) for row in (_before, _until))
    late, most_before, most_until = (row[int(0.95 * len(row))] if row else 0.0 for row in (seconds, before, until))
    fair = most_until <= MORE * most_before + EXTRA
    distinct = len({user.expected for user in users})
    most = f"{MORE} times + {EXTRA}"
    rows = [
        Row("users", f"{len(users)}, {distinct} different answers", "all different", distinct == len(users)),
        Row("users with answers", f"{served} of {len(users)}", "all", served == len(users)),
        Row("wrong answers and other errors", str(len(wrong)), "0", not wrong),
        Row("refusals because the queue is full", f"{full} of {full + len(seconds)} requests", "-", True),
        Row("hostile requests", str(hostile), "-", True),
        Row("one request without others", f"{one:.2f} s", "-", True),
        Row("95th percentile", f"{late:.1f} s", "-", True),
        Row("answers until one's own", f"{most_until:.0f}, sent before {most_before:.0f}", most, fair),
    ]
    return rows, wrong[:10]


def main() -> int:
    """Print the table; return 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3, help="requests of each user")
    parser.add_argument("--minutes", type=float, default=10.0)
    arguments = parser.parse_args()
    with processes.ends_within(arguments.minutes + 3 * LATE / 60), running() as server:
        return show("load", *load(server, arguments.users, arguments.rounds, arguments.minutes))


if __name__ == "__main__":
    sys.exit(main())
