"""Run networks in separate processes with time limits, several at a time, and yield their rows.

Every process is forked from one that has imported the packages. A signal ends a check that takes too long in its
process; a network that takes too long, or whose process dies, ends with its process.
"""

from __future__ import annotations

import multiprocessing
import re
import signal
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

import explainers
from benchmarks.zoo.checks import CHECKS, FOR_EVERY_SIZE, Noted, Wrong
from benchmarks.zoo.subject import Network, Size, Subject

WAY = re.compile(
    r"\b(Give|Use|Choose|Take|Try|Pass|Call|Set|Write|Ask|Leave|Run|Remove|Return|Select|Specify|Provide|Install|Convert)\b"
)
"""Verbs of an error message that says what to do."""


@dataclass(frozen=True)
class Row:
    """One cell: `verdict` is "right", "refused", "wrong", "crash" or "slow"; `words` are the reason or the result."""

    network: str
    size: Size
    check: str
    verdict: str
    words: str
    seconds: float
    trace: str = ""


@dataclass(frozen=True)
class Limits:
    """Limits: CPU seconds of one check, seconds of one network, and seconds of all networks."""

    check: float = 20.0
    network: float = 90.0
    whole: float = 1140.0


class _Slow(BaseException):
    """Raised by the signal; not an `Exception`, so networks and the library cannot catch it."""


def _end_the_check(*_: object) -> None:
    raise _Slow


def wanted_checks(network: Network, names: Sequence[str], size: Size) -> list[str]:
    """Return the checks that run for an image size: those that have an oracle for this network."""
    wanted = [name for name in names if size == network.sizes[0] or name in FOR_EVERY_SIZE]
    return [name for name in wanted if not network.checks or name in network.checks]


def examine(network: Network, names: Sequence[str], limits: Limits) -> Iterator[Row]:
    """Yield the rows of one network, in this process."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGVTALRM, _end_the_check)
    for size in network.sizes:
        wanted = wanted_checks(network, names, size)
        subject: Subject | None = None
        for name in wanted:
            start, trace = time.process_time(), ""
            signal.setitimer(signal.ITIMER_VIRTUAL, limits.check)
            try:
                subject = subject or Subject(network, size)
                verdict, words = "right", CHECKS[name](subject)
            except _Slow:
                verdict, words = "slow", f"more than {limits.check:.0f} seconds"
            except Wrong as wrong:
                verdict, words = "wrong", str(wrong)
            except Noted as finding:
                verdict, words = "refused", str(finding)
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
    return ours and isinstance(error, (ValueError, TypeError)) and bool(WAY.search(str(error)))


@dataclass
class _Worker:
    network: Network
    process: BaseProcess
    until: float
    wanted: list[tuple[Size, str]] = field(default_factory=list)

    def rest(self, verdict: str, words: str) -> Iterator[Row]:
        """Yield a row for each missing cell."""
        for size, name in self.wanted:
            yield Row(self.network.name, size, name, verdict, words, 0.0)


def examine_all(networks: Sequence[Network], names: Sequence[str], workers: int, limits: Limits) -> Iterator[Row]:
    """Yield the rows of all networks as they arrive."""
    context, waiting, end = multiprocessing.get_context("fork"), list(networks), time.monotonic() + limits.whole
    running: dict[Connection, _Worker] = {}
    while waiting or running:
        late = time.monotonic() > end
        while waiting and (late or len(running) < workers):
            network = waiting.pop(0)
            wanted = [(size, name) for size in network.sizes for name in wanted_checks(network, names, size)]
            if late:
                yield from (
                    Row(network.name, *cell, "slow", "not started: the time limit of the whole run was reached", 0.0)
                    for cell in wanted
                )
                continue
            reader, writer = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(network, names, limits, writer), daemon=True)
            process.start()
            writer.close()
            running[reader] = _Worker(network, process, time.monotonic() + limits.network, wanted)
        for pipe in wait(list(running), 0.5):
            worker = running[pipe]
            try:
                row = pipe.recv()
                worker.wanted.remove((row.size, row.check))
                yield row
            except EOFError:
                worker.process.join()
                del running[pipe]
                yield from worker.rest("crash", f"its process ended with {worker.process.exitcode}")
        for pipe, worker in list(running.items()):
            if time.monotonic() > min(worker.until, end + 30):
                worker.process.kill()
                worker.process.join()
                del running[pipe]
                yield from worker.rest("slow", f"more than {limits.network:.0f} seconds for the network")


def _work(network: Network, names: Sequence[str], limits: Limits, pipe: Connection) -> None:
    warnings.filterwarnings("ignore")
    for row in examine(network, names, limits):
        pipe.send(row)
    pipe.close()
