"""Run networks in separate processes with time limits, several at a time, and write their table.

Every process is forked from one that has imported the packages. A signal ends a check that takes too long, and another
one the process of a network that takes too long.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import re
import signal
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import torch

import explainers
from benchmarks import filled
from benchmarks.zoo.attributions import CHECKS
from benchmarks.zoo.checks import FOR_EVERY_SIZE, TITLES, Noted, Wrong
from benchmarks.zoo.subject import Network, Size, Subject

WAYS = "Give Use Choose Take Try Pass Call Set Write Ask Leave Run Remove Return Select Specify Provide Install Convert"
"""Verbs of an error message that says what to do."""
PACKAGES = ("torch", "torchvision", "timm", "transformers", "segmentation-models-pytorch")
WORST = ("crash", "wrong", "slow", "refused", "right")
SHOWN = {"refused": "unsupported", "right": "correct"}
"""Verdicts with another name on the page."""


class Row(NamedTuple):
    """One cell: `verdict` is "right", "refused", "wrong", "crash" or "slow"; `words` are the reason or the result."""

    network: str
    size: Size
    check: str
    verdict: str
    words: str
    seconds: float = 0.0
    trace: str = ""


class Limits(NamedTuple):
    """Limits: CPU seconds of one check, seconds of one network, and seconds of all networks."""

    check: float = 20.0
    network: float = 90.0
    whole: float = 1140.0


class _Slow(BaseException):
    """Raised by the signal; not an `Exception`, so networks and the library cannot catch it."""


def _end_the_check(*_: object) -> None:
    raise _Slow


def cells(network: Network, names: Sequence[str]) -> list[tuple[Size, str]]:
    """Return the image sizes and checks that run: those that have an oracle for this network."""
    wanted = [name for name in names if not network.checks or name in network.checks]
    first = network.sizes[0]
    return [(size, name) for size in network.sizes for name in wanted if size == first or name in FOR_EVERY_SIZE]


def examine(network: Network, names: Sequence[str], limits: Limits) -> Iterator[Row]:
    """Yield the rows of one network, in this process."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGVTALRM, _end_the_check)
    subjects: dict[Size, Subject] = {}
    for size, name in cells(network, names):
        start, trace = time.process_time(), ""
        signal.setitimer(signal.ITIMER_VIRTUAL, limits.check)
        try:
            subjects[size] = subjects.get(size) or Subject(network, size)
            verdict, words = "right", CHECKS[name](subjects[size])
        except _Slow:
            verdict, words = "slow", f"more than {limits.check:.0f} seconds"
        except (Wrong, Noted) as error:
            verdict, words = "wrong" if isinstance(error, Wrong) else "refused", str(error)
        except Exception as error:
            verdict = "refused" if is_refusal(error) else "crash"
            words = str(error) if verdict == "refused" else f"{type(error).__name__}: {error}"
            trace = traceback.format_exc()[-2000:]
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        yield Row(network.name, size, name, verdict, words, round(time.process_time() - start, 2), trace)


def is_refusal(error: Exception) -> bool:
    """Return whether the library raised this error with a message that says what to do."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = bool(frames) and Path(explainers.__file__).parent in Path(frames[-1].filename).parents
    advises = bool(set(WAYS.split()) & set(re.findall(r"\w+", str(error))))
    return ours and isinstance(error, (ValueError, TypeError)) and advises


def examine_all(networks: Sequence[Network], names: Sequence[str], workers: int, limits: Limits) -> Iterator[Row]:
    """Yield the rows of all networks, in their order."""
    end, lock = time.monotonic() + limits.whole, Lock()
    with ThreadPoolExecutor(workers) as pool:
        for rows in pool.map(lambda network: list(_in_a_process(network, names, limits, end, lock)), networks):
            yield from rows


def _in_a_process(network: Network, names: Sequence[str], limits: Limits, end: float, lock: Lock) -> Iterator[Row]:
    """Yield the rows of one network from a process of its own, and those that it did not send."""
    missing, left = cells(network, names), end - time.monotonic()
    verdict, words = "slow", "not started: the time limit of the whole run was reached"
    if left > 0:
        context, seconds = multiprocessing.get_context("fork"), math.ceil(min(limits.network, left + 30))
        with lock:  # no other process gets the end of the pipe that writes
            reader, writer = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(network, names, limits, seconds, writer), daemon=True)
            process.start()
            writer.close()
        with contextlib.suppress(EOFError):
            while row := reader.recv():
                missing.remove((row.size, row.check))
                yield row
        process.join()
        verdict, words = "crash", f"its process ended with {process.exitcode}"
        if process.exitcode == -signal.SIGALRM:
            verdict, words = "slow", f"more than {limits.network:.0f} seconds for the network"
    yield from (Row(network.name, *cell, verdict, words) for cell in missing)


def _work(network: Network, names: Sequence[str], limits: Limits, seconds: int, pipe: Connection) -> None:
    warnings.filterwarnings("ignore")
    signal.alarm(seconds)  # ends this process
    for row in examine(network, names, limits):
        pipe.send(row)
    pipe.close()


# The table: one row per network, errors as notes below


def summary(rows: Iterable[Row]) -> str:
    """Return the number of cells by verdict."""
    counts = Counter(row.verdict for row in rows)
    return ", ".join(f"{counts[verdict]} {SHOWN.get(verdict, verdict)}" for verdict in reversed(WORST)) + "."


def write(rows: Sequence[Row], page: Path) -> None:
    """Replace the table of the page: the oracles, one row per network, the notes."""
    checks = [check for check in CHECKS if any(row.check == check for row in rows)]
    names, notes = list(dict.fromkeys(row.network for row in rows)), dict[str, int]()
    versions = ", ".join(f"{name} {version(name).partition('+')[0]}" for name in PACKAGES)
    lines = [f"{len(names)} networks. Cells: {summary(rows)} {versions}.", "", "| column | oracle |", "|---|---|"]
    lines += [f"| {TITLES[check]} | {(CHECKS[check].__doc__ or '').splitlines()[0]} |" for check in checks]
    lines += ["", "| network | default layer | " + " | ".join(TITLES[check] for check in checks) + " |"]
    lines.append("|---|---|" + "---|" * len(checks))
    for name in names:
        own = [row for row in rows if row.network == name]
        fixed = " *(fixed: {} × {})*".format(*own[0].size) if len({row.size for row in own}) == 1 else ""
        first = next((row for row in own if row.check == "default_layer" and row.verdict == "right"), None)
        layer = "`{}` {}".format(*first.words.split(" ", 1)) if first else ""
        cells = [_cell([row for row in own if row.check == check], notes) for check in checks]
        lines.append(f"| {name}{fixed} | {layer} | " + " | ".join(cells) + " |")
    lines += ["", "## Notes", "", *(f"{number}. {note}" for note, number in notes.items())]
    page.write_text(filled(page.read_text(encoding="utf-8"), "networks", lines), encoding="utf-8")


def _cell(rows: list[Row], notes: dict[str, int]) -> str:
    """Return the worst verdict of a check over the sizes."""
    if not rows:
        return ""
    worst = min(rows, key=lambda row: WORST.index(row.verdict))
    if worst.verdict in ("right", "slow"):
        return "✓" if worst.verdict == "right" else "slow"
    note = " ".join(worst.words.split()).replace("|", "\\|")
    number = notes.setdefault(note, len(notes) + 1)
    return f"unsupported {number}" if worst.verdict == "refused" else f"**{worst.verdict}** {number}"
