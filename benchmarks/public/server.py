"""The app in a separate process, what it uses of the system, and the table that each command prints."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 180.0
"""Seconds until the first model must be loaded."""
RUN = "import runpy; {}\nrunpy.run_module('saliscope', run_name='__main__', alter_sys=True)"


@dataclass(frozen=True)
class Server:
    """A running app."""

    url: str
    process: subprocess.Popen[bytes]
    uploads: Path
    log: Path

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return "127.0.0.1", int(self.url.rpartition(":")[2])

    def lines(self) -> list[dict[str, object]]:
        """Return the JSON lines of all requests."""
        lines = self.log.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


@contextlib.contextmanager
def running(*arguments: str, before: str = "", wait: bool = True, **variables: str) -> Iterator[Server]:
    """Start the app offline, with environment variables and code that runs before it.

    Waits for its first response, and if `wait` until its model answers.
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        place, log = Path(folder) / "uploads", Path(folder) / "app.log"
        environment = {**os.environ, "SALISCOPE_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "GRADIO_TEMP_DIR": str(place)}
        environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]), **variables}
        program = ["-c", RUN.format(before)] if before else ["-m", "saliscope"]
        command = [sys.executable, *program, "serve", "--port", str(port), "--log-format", "json", *arguments]
        with open(log, "wb") as output:
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
        server = Server(f"http://127.0.0.1:{port}", process, place, log)
        try:
            _wait(server, wait)
            yield server
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()


def _wait(server: Server, model: bool) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and server.process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            httpx.get(server.url, timeout=PATIENCE)
            body, address = {"data": []}, f"{server.url}/gradio_api/run/list_models"
            if not model or httpx.post(address, json=body, timeout=PATIENCE).status_code == 200:
                return
        time.sleep(0.02)
    raise RuntimeError(f"The app does not answer: {server.log.read_text(encoding='utf-8')[-2000:]}")


# What a process uses, from /proc (Linux only)


def processor_seconds(process: int) -> float:
    """Return the processor time of all threads of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def megabytes(process: int, name: str = "VmRSS") -> float:
    """Return the resident memory of a process, or its peak with "VmHWM"."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1024


def reset_peak(process: int) -> None:
    """Let the peak of the memory start at its current value."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{process}/clear_refs").write_text("5")


def children(process: int) -> list[int]:
    """Return the numbers of the processes that a process has started and that still run, also by other processes."""
    found = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(number) for number in path.read_text().split()]
    return found + [each for child in found for each in children(child)]


# The table


@dataclass(frozen=True)
class Row:
    """One line of a table: what was tested, what was measured, the limit, and whether it holds."""

    name: str
    measured: str
    limit: str
    passed: bool


def show(title: str, rows: Iterable[Row], failures: Iterable[str] = ()) -> int:
    """Print the rows and the failures.

    Returns  the exit status: 1 if a row has failed or there are failures
    """
    rows, failures = list(rows), list(failures)
    names = [max([len(title), *(len(getattr(row, field)) for row in rows)]) for field in ("name", "measured", "limit")]
    print(f"{title:<{names[0]}}  {'measured':<{names[1]}}  {'limit':<{names[2]}}")
    for row in rows:
        end = "" if row.passed else "  FAILED"
        print(f"{row.name:<{names[0]}}  {row.measured:<{names[1]}}  {row.limit:<{names[2]}}{end}".rstrip())
    for failure in failures:
        print(f"FAILED: {failure}")
    return int(bool(failures) or not all(row.passed for row in rows))
